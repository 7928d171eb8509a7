"""Convert values of Arrow to Python objects, also values that Python's own types cannot express."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

# These are the errors of pyarrow and of the libraries of time zones for such values.
_CANNOT_EXPRESS = (ValueError, OverflowError, KeyError, pa.ArrowException)


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as Python objects.

    These values become text: times outside of the years 1 to 9999, times in a zone that is not
    known here, durations that are too long, and strings that are not UTF-8.

    >>> python_values(pa.array([0, 2**60], pa.timestamp("s")))
    [datetime.datetime(1970, 1, 1, 0, 0), '<value out of range: 1152921504606846976>']
    """
    try:
        return column.to_pylist()
    except _CANNOT_EXPRESS:
        # A single value makes the conversion of a column fail.
        return [python_value(scalar) for scalar in column]


def python_value(scalar: pa.Scalar) -> Any:
    """Return one value, as `python_values` does."""
    try:
        return scalar.as_py()
    except _CANNOT_EXPRESS:
        pass
    kind, value = scalar.type, scalar
    if isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar | pa.RunEndEncodedScalar):
        return python_value(value.value)
    if isinstance(value, pa.StructScalar):
        return {name: python_value(value[number]) for number, name in enumerate(kind.names)}
    if isinstance(value, pa.MapScalar):
        entries = value.values
        return [
            (python_value(key), python_value(item))
            for key, item in zip(entries.field(0), entries.field(1), strict=True)
        ]
    if pt.is_nested(kind):
        return [python_value(item) for item in value.values]
    if pt.is_temporal(kind):
        return _time_text(scalar)
    return value.as_buffer().to_pybytes().decode(errors="backslashreplace")


def _time_text(scalar: pa.Scalar) -> str:
    if pt.is_duration(scalar.type):
        return f"{scalar.cast(pa.int64()).as_py()} {scalar.type.unit}"
    is_zoned = pt.is_timestamp(scalar.type) and scalar.type.tz is not None
    plain_type = pa.timestamp(scalar.type.unit) if is_zoned else scalar.type
    (text,) = pa.repeat(scalar.cast(plain_type), 1).cast(pa.string()).to_pylist()
    # Without its zone, the time is that of UTC.
    return f"{text}Z" if is_zoned else text

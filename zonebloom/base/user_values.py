"""Convert the values that callers give to Arrow without loss, or refuse them.

    Arrow data, and objects that export it (Polars, DuckDB, arro3, ...)    as they are
    NumPy arrays, pandas Series and Index                                 by their exact dtype
    other iterables, and single values                                    value by value

`pyarrow.array` alone is not exact. It cuts the nanoseconds of pandas scalars, drops the time of a
datetime beside a date, drops the zone of a time, and ignores the multiple in ``datetime64[25s]``.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base import arguments
from zonebloom.base.arrays import array_of, decode_dictionary, from_numpy, is_view_type
from zonebloom.errors import InvalidArgument

# Longer lists are converted faster by pyarrow itself.
_MAX_SHORT = 1024
_STRUCT_ID = pa.struct([]).id
_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError)
_ATTOSECONDS = {
    **{"W": 604_800 * 10**18, "D": 86_400 * 10**18, "h": 3600 * 10**18, "m": 60 * 10**18},
    **{"s": 10**18, "ms": 10**15, "us": 10**12, "ns": 10**9, "ps": 10**6, "fs": 1000, "as": 1},
}
# Python's own times are microseconds, so values that need no other unit get this one.
_PREFERRED_UNITS = ("us", "ns", "ms", "s")
_NAIVE_EPOCH = dt.datetime(1970, 1, 1)
_UTC_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# pandas' scalars have one of these methods.
_TO_NUMPY = ("to_datetime64", "to_timedelta64")
_MICROSECOND = dt.timedelta(microseconds=1)


def to_arrow(values: Any, parameter: str, column: str = "") -> pa.Array:
    """Convert a container of values to one Arrow array that holds exactly these values.

    If the values are a table, the error message advises to pass its column named ``column``.

    >>> to_arrow((2**63, None), "keys").type
    DataType(uint64)

    Raises
    ------
    InvalidArgument
        If the values are no container, or have no common Arrow type that holds them exactly.
    """
    # Most callers give a list, which needs none of the checks for other containers.
    is_list = type(values) is list
    if not is_list:
        _refuse_text_and_tables(values, parameter, column)
    try:
        array = _one_array(_from_python(values) if is_list else _from_container(values))
    except _ERRORS as error:
        raise InvalidArgument(
            f"{parameter} is {arguments.short_repr(values)}, which pyarrow cannot convert to an "
            f"array exactly ({_error_text(error)}); give values of one type"
        ) from None
    if array is None:
        raise arguments.invalid_value(values, parameter, "give a list or an array")
    if array.type.id != _STRUCT_ID:
        return array
    # Tables are exported as structs, one field for each column.
    if array.type.num_fields != 1:
        names = [array.type.field(number).name for number in range(array.type.num_fields)]
        raise _table_refusal(parameter, names, column, "table")
    return _one_array(array.flatten()[0])


def _refuse_text_and_tables(values: Any, parameter: str, column: str) -> None:
    """Raise `InvalidArgument` for text, a mapping or a DataFrame, whose items are no values."""
    if isinstance(values, str | bytes | bytearray):
        raise InvalidArgument(
            f"{parameter} is {arguments.short_repr(values)}, a single value; give a list: "
            f"[{arguments.short_repr(values)}]"
        )
    if isinstance(values, Mapping):
        raise arguments.invalid_value(values, parameter, "give a list or an array")
    if is_data_frame(values):
        raise _table_refusal(parameter, list(values.columns), column, "df")


def to_scalar(value: Any, parameter: str) -> pa.Scalar:
    """Convert one value to an Arrow scalar that is exactly this value.

    >>> to_scalar(np.timedelta64(5, "ns"), "value").type
    DurationType(duration[ns])

    Raises
    ------
    InvalidArgument
        If no Arrow type holds the value exactly.
    """
    if isinstance(value, pa.Scalar):
        return value
    try:
        return _from_python([value])[0]
    except _ERRORS as error:
        raise InvalidArgument(
            f"{parameter} is {arguments.short_repr(value)}, which pyarrow cannot convert to a "
            f"scalar exactly ({_error_text(error)})"
        ) from None


def is_data_frame(values: object) -> bool:
    """Return whether the values are a DataFrame of pandas or Polars.

    A whole frame is not exported to Arrow exactly if a column holds Python objects. A single
    column is always converted exactly.
    """
    frames = [getattr(sys.modules.get(name), "DataFrame", None) for name in ("pandas", "polars")]
    return any(isinstance(frame, type) and isinstance(values, frame) for frame in frames)


def _error_text(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _table_refusal(
    parameter: str, names: Sequence[object], column: str, variable: str
) -> InvalidArgument:
    wanted = column if column in names or not names else names[0]
    return InvalidArgument(
        f"{parameter} is a table with {len(names):,} columns; pass one of them: "
        f"{variable}[{wanted!r}]"
    )


def _one_array(values: Any) -> Any:
    """Join chunks, and decode dictionaries of views, for which pyarrow has no kernels."""
    if isinstance(values, pa.ChunkedArray):
        if values.num_chunks == 1:
            return _one_array(values.chunk(0))
        if pt.is_dictionary(values.type) and is_view_type(values.type.value_type):
            values = pa.chunked_array([decode_dictionary(chunk) for chunk in values.chunks])
        return values.combine_chunks()
    if isinstance(values, pa.DictionaryArray) and is_view_type(values.type.value_type):
        return decode_dictionary(values)
    return values


def _from_container(values: Any) -> pa.Array | pa.ChunkedArray | None:
    """Convert a container. Return None if the values are not one."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if pandas is not None and isinstance(
        values, pandas.Series | pandas.Index | pandas.api.extensions.ExtensionArray
    ):
        return _from_pandas(values, pandas)
    if polars is not None and isinstance(values, polars.Series) and values.dtype == polars.Object:
        # Polars exports the addresses of the objects.
        return _from_python(values.to_list())
    if isinstance(values, np.ndarray):
        return _from_numpy(values)
    array = _from_arrow_export(values)
    if array is None and callable(getattr(values, "to_arrow", None)):
        array = _from_arrow_export(values.to_arrow())
    if array is None and isinstance(values, Iterable):
        array = _from_python(list(values))
    return array


def _from_arrow_export(values: Any) -> pa.Array | pa.ChunkedArray | None:
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_array__"):
        return pa.array(values)
    return pa.chunked_array(values) if hasattr(values, "__arrow_c_stream__") else None


def _from_pandas(values: Any, pandas: Any) -> pa.Array | pa.ChunkedArray:
    """Convert a Series, an Index or an array of pandas, in which NaN means null."""
    array, dtype = getattr(values, "array", values), values.dtype
    if isinstance(dtype, pandas.PeriodDtype):
        raise TypeError("a period is not a point in time")
    if isinstance(dtype, pandas.CategoricalDtype):
        # The categories may be Python objects.
        categories = _one_array(_from_pandas(array.categories, pandas))
        codes = pa.array(array.codes, mask=array.codes < 0)
        return pa.DictionaryArray.from_arrays(codes, categories)
    if isinstance(dtype, pandas.SparseDtype):
        return _from_pandas(pandas.Series(np.asarray(array)), pandas)
    is_exact = isinstance(dtype, pandas.DatetimeTZDtype) or hasattr(array, "__arrow_array__")
    if is_exact or (isinstance(dtype, np.dtype) and dtype.kind in "biufmM"):
        return pa.array(values)
    return _from_python([None if _is_nan(value) else value for value in array])


def _is_nan(value: object) -> bool:
    return isinstance(value, float | np.floating) and math.isnan(value)


def _from_numpy(values: np.ndarray) -> pa.Array:
    if isinstance(values, np.ma.MaskedArray):
        is_valid = ~np.ma.getmaskarray(values)
        positions = pa.array(np.cumsum(is_valid) - 1, mask=~is_valid)
        return _from_numpy(values.compressed()).take(positions)
    if values.ndim != 1:
        raise ValueError(f"it has {values.ndim} dimensions")
    kind = values.dtype.kind
    if kind in "OSU":
        # pyarrow cuts texts and bytes of NumPy at the first NUL.
        return _from_python(values.tolist())
    if kind in "mM":
        return _from_numpy_times(values)
    if kind == "f" and values.dtype.itemsize > 8:
        values = _cast_exactly(values, np.float64)
    return pa.array(values.astype(values.dtype.newbyteorder("="), copy=False))


def _from_numpy_times(values: np.ndarray) -> pa.Array:
    """Convert datetime64 or timedelta64 values of any unit to a unit of Arrow, exactly."""
    kind, (unit, step) = values.dtype.kind, np.datetime_data(values.dtype)
    if unit in _PREFERRED_UNITS and step == 1 and values.dtype.isnative:
        return pa.array(values)
    is_null = np.isnat(values)
    if is_null.all():
        return pa.nulls(values.size, pa.timestamp("s") if kind == "M" else pa.duration("s"))
    if unit == "generic" or (kind == "m" and unit in "YM"):
        raise ValueError(f"{values.dtype} has no fixed length")
    if unit in ("Y", "M", "W", "D") and kind == "M":
        days = _cast_exactly(values, "M8[D]").astype(np.int64)
        days[is_null] = 0
        if np.abs(days).max(initial=0) < 2**31:
            return pa.array(days.astype(np.int32), pa.int32(), mask=is_null).cast(pa.date32())
    if unit not in _PREFERRED_UNITS:
        unit = "ns" if unit in ("ps", "fs", "as") else "s"
    return pa.array(_cast_exactly(values, f"{kind}8[{unit}]"))


def _cast_exactly(values: np.ndarray, dtype: Any) -> np.ndarray:
    cast = values.astype(dtype)
    is_same = cast.astype(values.dtype) == values
    # NaN and NaT differ from themselves. np.isnan is true for both.
    if not (is_same | np.isnan(values)).all():
        raise ValueError(f"not every {values.dtype} value is a {np.dtype(dtype)} value")
    return cast


def _from_python(values: list[Any]) -> pa.Array:
    """Convert Python, NumPy and pandas scalars to the type that holds them all exactly."""
    kinds = set(map(type, values))
    if len(values) <= _MAX_SHORT:
        # `pa.array` would import pandas, which takes longer than a lookup.
        if kinds == {str}:
            return array_of(values, pa.string())
        if kinds == {int}:
            try:
                return from_numpy(np.array(values, dtype=np.int64))
            except OverflowError:
                pass
    nulls = _null_types()
    if not kinds.isdisjoint(nulls[1:]):
        values = [None if isinstance(value, nulls) else value for value in values]
    kinds.difference_update(nulls)
    if not kinds:
        return pa.nulls(len(values))
    families = {_family(kind) for kind in kinds}
    if families in ({"integer", "float"}, {"integer", "decimal"}):
        families.discard("integer")
    if len(families) > 1:
        raise TypeError(f"it mixes {' and '.join(sorted(kind.__name__ for kind in kinds))}")
    convert = _CONVERTERS.get(families.pop(), _convert_directly)
    return convert(values, kinds)


def _null_types() -> tuple[type, ...]:
    pandas = sys.modules.get("pandas")
    return (type(None),) if pandas is None else (type(None), type(pandas.NA), type(pandas.NaT))


# Subclasses stand before their bases: a bool is an int, a datetime is a date, and NumPy's
# timedelta64 is a signed integer.
_PYTHON_FAMILIES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("boolean", (bool, np.bool_)),
    ("duration", (dt.timedelta, np.timedelta64)),
    ("moment", (dt.datetime, np.datetime64)),
    ("date", (dt.date,)),
    ("time", (dt.time,)),
    ("integer", (int, np.integer)),
    ("float", (float, np.floating)),
    ("decimal", (Decimal,)),
    ("text", (str,)),
    ("bytes", (bytes, bytearray, memoryview)),
    ("uuid", (uuid.UUID,)),
    ("scalar", (pa.Scalar,)),
)


def _family(kind: type) -> str:
    return next((name for name, bases in _PYTHON_FAMILIES if issubclass(kind, bases)), "")


def _convert_directly(values: list[Any], kinds: set[type]) -> pa.Array:
    return pa.array(values)


def _convert_other_objects(values: list[Any], kinds: set[type]) -> pa.Array:
    array = pa.array(values)
    # Columns with nested values cannot be looked up, so a loss inside of such values does no harm.
    if not pt.is_nested(array.type):
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"{names} cannot be converted")
    return array


def _convert_integers(values: list[Any], kinds: set[type]) -> pa.Array:
    if len(kinds) == 1 and issubclass(next(iter(kinds)), np.integer):
        return pa.array(values)
    numbers = values
    if kinds == {int}:
        # This takes two thirds of the time of `pa.array`, but fails for None.
        with suppress(OverflowError, TypeError):
            return from_numpy(np.fromiter(values, np.int64, len(values)))
    else:
        numbers = [None if value is None else int(value) for value in values]
    with suppress(pa.ArrowException, OverflowError):
        return pa.array(numbers, pa.int64())
    return pa.array(numbers, pa.uint64())


def _convert_floats(values: list[Any], kinds: set[type]) -> pa.Array:
    if len(kinds) == 1 and not kinds & {np.longdouble}:
        return pa.array(values)
    return pa.array(
        [None if value is None else _to_exact_float(value) for value in values], pa.float64()
    )


def _to_exact_float(value: Any) -> float:
    # NumPy would compare an integer with a double after rounding it.
    exact = int(value) if isinstance(value, int | np.integer) else value
    number = float(exact)
    if number != exact and not math.isnan(number):
        raise ValueError(f"{value!r} is not exactly a double")
    return number


def _convert_decimals(values: list[Any], kinds: set[type]) -> pa.Array:
    # pyarrow ignores integers when it chooses the precision, so they become decimals.
    return pa.array([Decimal(int(v)) if _is_integer(v) else v for v in values])


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer)


def _convert_times(values: list[Any], kinds: set[type]) -> pa.Array:
    if any(value is not None and value.tzinfo is not None for value in values):
        raise ValueError("no column type has times of day with a time zone")
    return pa.array(values, pa.time64("us"))


def _convert_durations(values: list[Any], kinds: set[type]) -> pa.Array:
    if kinds == {dt.timedelta}:
        with suppress(pa.ArrowException, OverflowError):
            return pa.array(values, pa.duration("us"))
    return _convert_from_any_unit(values, kinds, pa.duration)


def _convert_moments(values: list[Any], kinds: set[type]) -> pa.Array:
    has_zone = {_has_zone(value) for value in values if value is not None}
    if len(has_zone) > 1:
        raise ValueError("some times have a time zone and others have none")
    zone = None
    if True in has_zone:
        zone = _zone_name(next(value for value in values if value is not None))
    if kinds == {dt.datetime} and zone is None:
        return pa.array(values, pa.timestamp("us"))
    if kinds == {dt.datetime}:
        # pyarrow would drop the microseconds of an offset from UTC.
        ticks = [value and (value - _UTC_EPOCH) // _MICROSECOND for value in values]
        return pa.array(ticks, pa.int64()).cast(pa.timestamp("us", zone))
    return _convert_from_any_unit(values, kinds, lambda unit: pa.timestamp(unit, zone))


def _has_zone(value: Any) -> bool:
    return isinstance(value, dt.datetime) and value.utcoffset() is not None


def _zone_name(value: dt.datetime) -> str:
    """Return pyarrow's name of a time zone, or UTC if pyarrow has no name for it."""
    try:
        plain = dt.datetime(value.year, value.month, value.day, tzinfo=value.tzinfo)
        return pa.scalar(plain).type.tz
    except _ERRORS:
        return "UTC"


def _convert_from_any_unit(
    values: list[Any], kinds: set[type], type_of_unit: Callable[[str], pa.DataType]
) -> pa.Array:
    """Convert times or durations of Python, NumPy and pandas."""
    from_pandas = any(hasattr(kind, method) for kind in kinds for method in _TO_NUMPY)
    if from_pandas:
        values = list(map(_to_numpy_scalar, values))
    dtypes = {getattr(value, "dtype", None) for value in values if value is not None}
    if len(dtypes) > 1 or None in dtypes:
        return _convert_to_exact_unit(values, type_of_unit)
    dtype: Any = dtypes.pop()
    null = dtype.type("NaT")
    array = _from_numpy_times(np.array([null if v is None else v for v in values], dtype))
    if not from_pandas:
        return array
    # pandas uses nanoseconds even if microseconds are enough. Microseconds reach more years.
    with suppress(pa.ArrowException):
        array = array.cast(pa.timestamp("us") if dtype.kind == "M" else pa.duration("us"))
    return array.cast(pa.int64()).cast(type_of_unit(array.type.unit))


def _to_numpy_scalar(value: Any) -> Any:
    """Return a pandas scalar as a NumPy scalar, with its nanoseconds. Return others unchanged."""
    for method in _TO_NUMPY:
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def _convert_to_exact_unit(
    values: list[Any], type_of_unit: Callable[[str], pa.DataType]
) -> pa.Array:
    """Convert times or durations to the first unit that holds all of them exactly."""
    counts = [None if value is None else _attoseconds(value) for value in values]
    numbers = [count for count in counts if count is not None]
    least, most = min(numbers, default=0), max(numbers, default=0)
    for unit in _PREFERRED_UNITS:
        step = _ATTOSECONDS[unit]
        is_in_range = -(2**63) * step <= least and most < 2**63 * step
        if is_in_range and all(count % step == 0 for count in numbers):
            ticks = [None if count is None else count // step for count in counts]
            return pa.array(ticks, pa.int64()).cast(type_of_unit(unit))
    raise ValueError("no unit of time holds all values exactly")


def _attoseconds(value: Any) -> int | None:
    """Return the attoseconds since 1970, or those of a duration. Return None for NaT."""
    if isinstance(value, dt.datetime):
        epoch = _NAIVE_EPOCH if value.utcoffset() is None else _UTC_EPOCH
        return (value - epoch) // _MICROSECOND * _ATTOSECONDS["us"]
    if isinstance(value, dt.timedelta):
        return value // _MICROSECOND * _ATTOSECONDS["us"]
    if np.isnat(value):
        return None
    unit, step = np.datetime_data(value.dtype)
    if isinstance(value, np.datetime64) and unit in "YM":
        unit, step, value = "D", 1, _cast_exactly(np.array([value]), "M8[D]")[0]
    if unit not in _ATTOSECONDS:
        raise ValueError(f"{value.dtype} has no fixed length")
    return int(value.astype(np.int64)) * step * _ATTOSECONDS[unit]


_CONVERTERS: dict[str, Callable[[list[Any], set[type]], pa.Array]] = {
    "": _convert_other_objects,
    "integer": _convert_integers,
    "float": _convert_floats,
    "decimal": _convert_decimals,
    "time": _convert_times,
    "duration": _convert_durations,
    "moment": _convert_moments,
}

"""Convert the values that callers give to Arrow without loss, or refuse them.

    Arrow data, and objects that export it (Polars, DuckDB, arro3, ...)    as they are
    NumPy arrays, pandas Series and Index                                 by their exact dtype
    other iterables, and single values                                    value by value

`pyarrow.array` converts them, except where it is not exact: it cuts the nanoseconds of pandas
scalars, drops the time of a datetime beside a date, drops the zone of a time, rounds a float16
beside an integer, wraps large dates, and ignores the multiple in ``datetime64[25s]``.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
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
_ARROW_UNITS = ("s", "ms", "us", "ns")
_UTC_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
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
        raise _refusal(values, parameter, "an array", error) from None
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
        raise _refusal(value, parameter, "a scalar", error) from None


def is_data_frame(values: object) -> bool:
    """Return whether the values are a DataFrame of pandas or Polars.

    A whole frame is not exported to Arrow exactly if a column holds Python objects. A single
    column is always converted exactly.
    """
    frames = [getattr(sys.modules.get(name), "DataFrame", None) for name in ("pandas", "polars")]
    return any(isinstance(frame, type) and isinstance(values, frame) for frame in frames)


def _refusal(value: Any, parameter: str, target: str, error: BaseException) -> InvalidArgument:
    if hasattr(value, "dtype"):
        types = str(value.dtype)
    else:
        is_list = isinstance(value, list | tuple | set)
        types = _names(set(map(type, value)) if is_list else {type(value)})
    reason = " ".join(str(error).split())[:200]
    return InvalidArgument(
        f"{parameter} is {arguments.short_repr(value)}, which pyarrow cannot convert to {target} "
        f"exactly ({types}: {reason}); give numbers, text, bytes, UUIDs, dates or times of one "
        "type, or Arrow data"
    )


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
    kind = values.dtype.kind
    if kind in "OSU":
        # pyarrow cuts texts and bytes of NumPy at the first NUL.
        return _from_python(values.tolist())
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    return _from_numpy_times(values) if kind in "mM" else pa.array(values)


def _from_numpy_times(values: np.ndarray) -> pa.Array:
    """Convert datetime64 or timedelta64 values of a unit that Arrow has."""
    kind, (unit, step) = values.dtype.kind, np.datetime_data(values.dtype)
    is_unit = unit in _ARROW_UNITS
    if (kind, unit) == ("M", "D"):
        # pyarrow wraps dates that need more than 32 bits.
        is_unit = bool((np.isnat(values) | (np.abs(values.astype(np.int64)) < 2**31)).all())
    if not is_unit or step != 1:
        raise ValueError(f"{values.dtype} is no unit of Arrow; cast it to {kind}8[s]")
    return pa.array(values)


# The types of values that may be mixed. A subclass stands before its base: a bool is an int, a
# datetime is a date, and NumPy's timedelta64 is a signed integer.
_FAMILIES: tuple[tuple[type, ...], ...] = (
    (bool, np.bool_),
    (np.timedelta64,),
    (np.datetime64,),
    (dt.timedelta,),
    (dt.datetime,),
    (dt.date,),
    (dt.time,),
    (int, float, Decimal, np.integer, np.float16, np.float32, np.float64),
    (str,),
    (bytes, bytearray, memoryview),
    (uuid.UUID,),
    (pa.Scalar,),
)


def _family(kind: type) -> tuple[type, ...]:
    return next((family for family in _FAMILIES if issubclass(kind, family)), (object,))


def _from_python(values: list[Any]) -> pa.Array:
    """Convert Python, NumPy and pandas scalars to the type that holds them all exactly."""
    kinds = set(map(type, values))
    if kinds == {str} and len(values) <= _MAX_SHORT:
        # `pa.array` would import pandas, which takes longer than a lookup.
        return array_of(values, pa.string())
    if kinds == {int}:
        # This is faster than `pa.array`, and does not import pandas either.
        try:
            return from_numpy(np.fromiter(values, np.int64, len(values)))
        except OverflowError:
            pass
    nulls = _null_types()
    if not kinds.isdisjoint(nulls[1:]):
        values = [None if isinstance(value, nulls) else value for value in values]
    kinds.difference_update(nulls)
    if not kinds:
        return pa.nulls(len(values))
    families = set(map(_family, kinds))
    has_pandas_times = {_is_pandas_time(kind) for kind in kinds}
    if len(families) > 1 or len(has_pandas_times) > 1:
        raise TypeError("the types are mixed")
    (family,) = families
    if family in ((np.datetime64,), (np.timedelta64,)):
        return _from_numpy_scalars(values)
    if True in has_pandas_times:
        return _from_pandas_times(values)
    if family == (dt.datetime,):
        return _from_datetimes(values)
    if family == (dt.time,) and _have_zone(values):
        raise ValueError("no column type has times of day with a time zone")
    if len(kinds) > 1:
        # pyarrow rounds a float16 beside an integer to an integer.
        values = [value.item() if isinstance(value, np.generic) else value for value in values]
    try:
        array = pa.array(values)
    except OverflowError:
        array = pa.array(values, pa.uint64())
    # Columns with nested values cannot be looked up, so a loss inside of such values does no harm.
    if family == (object,) and not pt.is_nested(array.type):
        raise TypeError("this is no type of Arrow")
    return array


def _names(kinds: Iterable[type]) -> str:
    return " and ".join(sorted(kind.__name__ for kind in kinds))


def _null_types() -> tuple[type, ...]:
    pandas = sys.modules.get("pandas")
    return (type(None),) if pandas is None else (type(None), type(pandas.NA), type(pandas.NaT))


def _is_pandas_time(kind: type) -> bool:
    return hasattr(kind, "to_numpy") and issubclass(kind, dt.datetime | dt.timedelta)


def _have_zone(values: Iterable[Any]) -> bool:
    """Return whether times have a time zone. Raise ValueError if only some have one."""
    have_zone = {
        getattr(value, "tzinfo", None) is not None for value in values if value is not None
    }
    if len(have_zone) > 1:
        raise ValueError("some times have a time zone and others have none")
    return True in have_zone


def _from_datetimes(values: list[Any]) -> pa.Array:
    if not _have_zone(values):
        return pa.array(values, pa.timestamp("us"))
    # pyarrow would drop the microseconds of an offset from UTC.
    ticks = [value and (value - _UTC_EPOCH) // _MICROSECOND for value in values]
    return pa.array(ticks, pa.int64()).cast(pa.timestamp("us", "UTC"))


def _from_pandas_times(values: list[Any]) -> pa.Array:
    """Convert Timestamps or Timedeltas of pandas, whose nanoseconds `pa.array` would cut."""
    array = _from_numpy_scalars([None if value is None else value.to_numpy() for value in values])
    return array.cast(pa.timestamp(array.type.unit, "UTC")) if _have_zone(values) else array


def _from_numpy_scalars(values: list[Any]) -> pa.Array:
    """Convert datetime64 or timedelta64 scalars, or None, to the finest of their units."""
    valid = [value for value in values if value is not None and not np.isnat(value)]
    if not valid:
        return pa.nulls(len(values))
    nat = valid[0].dtype.type("NaT")
    array = np.array([nat if value is None else value for value in values])
    if len({value.dtype for value in valid}) > 1:
        # NumPy wraps times that a finer unit does not hold.
        pairs = zip(array[~np.isnat(array)], valid, strict=True)
        if not all(cast.astype(value.dtype) == value for cast, value in pairs):
            raise ValueError("no unit of time holds all values exactly")
    return _from_numpy_times(array)

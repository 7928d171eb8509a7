"""Compare keys and literals of every library with the same values in Arrow arrays.

The oracle of each table test is the answer to `pa.array` of the column's own type, which is itself
compared with the rows one by one.
"""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import arro3.core
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zonebloom as zb
from zonebloom import errors
from zonebloom.base.user_values import to_arrow, to_scalar
from zonebloom.predicates import Compares, Equals, IsIn

# 2024-01-01 00:00:00.123456789 and other values that need all digits of their type.
NANOSECONDS = [1_704_067_200_123_456_789, -1, 1]
DIGITS = [Decimal("12345678901234567890123456789.012345678"), Decimal("0.000000001")]
TEXTS = ["a", "\u00e9", "a text too long for an inlined view"]
UUIDS = [uuid.UUID(int=2**127 + 1), uuid.UUID(int=1)]


def ticks(numbers: list[int], kind: pa.DataType) -> pa.Array:
    return pa.array(numbers, f"int{kind.bit_width}").view(kind)


COLUMNS: dict[str, pa.Array] = {
    "int8": pa.array([-128, 127], pa.int8()),
    "int64": pa.array([2**53 + 1, -(2**63), 2**63 - 1], pa.int64()),
    "uint32": pa.array([2**32 - 1, 0], pa.uint32()),
    "uint64": pa.array([2**64 - 1, 2**63, 5], pa.uint64()),
    "half": pa.array(np.array([0.1, 2.0], np.float16)),
    "float": pa.array(np.array([0.1, 1e-45], np.float32)),
    "double": pa.array([0.1, 2.0**53, 5e-324]),
    "decimal": pa.array(DIGITS, pa.decimal128(38, 9)),
    "wide_decimal": pa.array([Decimal(10**60 + 1), Decimal(-1)], pa.decimal256(70, 0)),
    "string": pa.array(TEXTS),
    "string_view": pa.array(TEXTS, pa.string_view()),
    "dictionary": pa.array(TEXTS).dictionary_encode(),
    "binary": pa.array([b"\0", b"\xff\0", b""]),
    "raw": pa.array([value.bytes for value in UUIDS], pa.binary(16)),
    "uuid": pa.array(UUIDS),
    "date": pa.array([dt.date(2024, 2, 29), dt.date(1, 1, 1)]),
    "seconds": ticks([253_402_300_799, -1], pa.timestamp("s")),
    "milliseconds": ticks([1_704_067_200_123, -1], pa.timestamp("ms")),
    "microseconds": ticks([1_704_067_200_123_456, -1], pa.timestamp("us")),
    "nanoseconds": ticks(NANOSECONDS, pa.timestamp("ns")),
    "instant": ticks(NANOSECONDS, pa.timestamp("ns", "Europe/Berlin")),
    "time_ms": ticks([1, 86_399_999], pa.time32("ms")),
    "time_us": ticks([1, 86_399_999_999], pa.time64("us")),
    "duration_us": ticks([1, -1, 2**53 + 1], pa.duration("us")),
    "duration_ns": ticks([1, -1, 2**53 + 1], pa.duration("ns")),
}


# Columns in which all functions are asked for all containers.
ASKED = "uint64", "uuid", "nanoseconds", "instant"


def neighbours(values: pa.Array) -> pa.Array:
    """Return values that become equal to others if cut to microseconds or converted to doubles."""
    kind = values.type
    if pa.types.is_temporal(kind) and kind.bit_width == 64:
        numbers = values.view(pa.int64()).to_pylist()
        nearby = {number // 1000 * 1000 + step for number in numbers for step in (0, 1000)}
        if pa.types.is_time(kind):
            nearby = {number for number in nearby if number < 86_400_000_000}
        return ticks(sorted(nearby - set(numbers)), kind)
    if kind in (pa.int64(), pa.uint64()):
        return pa.array([2**53, 2**53 + 2, 2**62, 6], kind)
    return values.slice(0, 0)


@pytest.fixture(scope="module")
def datasets() -> dict[str, zb.Dataset]:
    datasets = {}
    for name, values in COLUMNS.items():
        # Each key lies in several rows, and null in one.
        nothing = pa.nulls(1, values.type)
        column = pa.concat_arrays([values, neighbours(values), nothing, values])
        table = pa.table({"key": column, "row": range(len(column))})
        datasets[name] = zb.dataset(table)
        datasets[name].create_scalar_index("key", spark=False, number_of_items=2)
    return datasets


class ArrayExport:
    def __init__(self, values: pa.Array):
        self._values = values

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._values.__arrow_c_array__(requested_schema)


class StreamExport:
    def __init__(self, values: pa.Array):
        self._values = pa.chunked_array([values.slice(0, 1), values.slice(1)])

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._values.__arrow_c_stream__(requested_schema)


class ToArrow:
    def __init__(self, values: pa.Array):
        self._values = values

    def to_arrow(self) -> pa.Array:
        return self._values


def numpy_scalars(values: pa.Array) -> list[Any]:
    return list(values.to_numpy(zero_copy_only=False))


def pandas_scalars(values: pa.Array) -> list[Any]:
    return list(values.to_pandas())


def polars_series(values: pa.Array) -> pl.Series:
    return pl.Series(pl.from_arrow(values))


def object_array(values: pa.Array) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = pandas_scalars(values)
    return array


def categories_of_objects(values: pa.Array) -> pd.Series:
    objects = pd.Index(object_array(values), dtype=object)
    return pd.Series(pd.Categorical(objects, categories=objects))


def view_dictionary(values: pa.Array) -> Any:
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if kind not in (pa.string(), pa.binary()):
        raise TypeError(kind)
    plain = values.dictionary_decode() if isinstance(values, pa.DictionaryArray) else values
    view = pa.binary_view() if pa.types.is_binary(plain.type) else pa.string_view()
    indices = pa.array(range(len(plain)), pa.int32())
    return pa.DictionaryArray.from_arrays(indices, plain.cast(view))


CONTAINERS: dict[str, Callable[[pa.Array], Any]] = {
    "chunks": lambda values: pa.chunked_array([values.slice(0, 1), values.slice(1)]),
    "dictionary": lambda values: values.dictionary_encode(),
    "dictionary of views": view_dictionary,
    "chunks of dictionaries of views": lambda values: pa.chunked_array(
        [view_dictionary(values.slice(0, 1)), view_dictionary(values.slice(1))]
    ),
    "table": lambda values: pa.table({"other": values}),
    "arrow scalars": list,
    "python": lambda values: values.to_pylist(),
    "tuple": lambda values: tuple(values.to_pylist()),
    "iterator": lambda values: iter(values.to_pylist()),
    "set": lambda values: set(values.to_pylist()),
    "numpy": lambda values: values.to_numpy(zero_copy_only=False),
    "numpy, other byte order": lambda values: (
        array := values.to_numpy(zero_copy_only=False)
    ).astype(array.dtype.newbyteorder(">")),
    "masked numpy": lambda values: np.ma.array(values.to_numpy(zero_copy_only=False), mask=False),
    "numpy scalars": numpy_scalars,
    "numpy objects": object_array,
    "pandas series": lambda values: values.to_pandas(),
    "pandas index": lambda values: pd.Index(values.to_pandas()),
    "pandas array": lambda values: values.to_pandas().array,
    "pandas objects": lambda values: pd.Series(object_array(values), dtype=object),
    "pandas scalars": pandas_scalars,
    "pandas categories": lambda values: values.to_pandas().astype("category"),
    "pandas categories of objects": categories_of_objects,
    "pandas arrow": lambda values: pd.Series(
        pd.arrays.ArrowExtensionArray(pa.chunked_array([values]))
    ),
    "pandas nullable": lambda values: values.to_pandas().convert_dtypes(),
    "polars": polars_series,
    "polars chunks": lambda values: pl.concat(
        [polars_series(values.slice(0, 1)), polars_series(values.slice(1))], rechunk=False
    ),
    "polars objects": lambda values: pl.Series(pandas_scalars(values), dtype=pl.Object),
    "arro3": arro3.core.Array.from_arrow,
    "array export": ArrayExport,
    "stream export": StreamExport,
    "to_arrow": ToArrow,
}

# NumPy has no times with a zone.
WITHOUT_ZONES = "numpy", "numpy, other byte order", "masked numpy", "numpy scalars"


def held_by(column: str) -> Iterator[tuple[str, Any]]:
    """Yield containers by name that make their keys anew, where their library can hold them."""
    for name, make in CONTAINERS.items():
        try:
            make(COLUMNS[column])
        except (Exception, pl.exceptions.PanicException):  # noqa: BLE001 - of many libraries
            continue
        if column != "instant" or name not in WITHOUT_ZONES:
            yield name, partial(make, COLUMNS[column])


def answers(ds: zb.Dataset, keys: Callable[[], Any], ordered: bool) -> list[Any]:
    """Return what every function that takes keys answers."""
    rows = ds.lookup("key", keys(), ["row"])
    places = ds.locate("key", keys())
    files = ds.files_with_keys("key", keys())
    zones = ds.search_many("key", keys()).read_all()
    if not ordered:
        rows, places, zones = (table.drop_columns("key_index") for table in (rows, places, zones))
    return [
        files.to_pylist(),
        *(
            sorted(map(repr, table.drop_columns(names).to_pylist()))
            for table, names in ((rows, []), (places, ["path"]), (zones, []))
        ),
    ]


@pytest.mark.parametrize("column", COLUMNS)
def test_arrow_keys_are_found_row_by_row(datasets: dict[str, zb.Dataset], column: str) -> None:
    ds, values = datasets[column], COLUMNS[column]
    stored = list(ds.to_table(["key"])["key"])
    result = ds.lookup("key", values, ["row"])
    assert sorted(map(tuple, (row.values() for row in result.to_pylist()))) == sorted(
        (number, row)
        for number, key in enumerate(values)
        for row, value in enumerate(stored)
        if key.equals(value)
    )


@pytest.mark.parametrize("column", ASKED)
def test_every_container_holds_the_same_keys(datasets: dict[str, zb.Dataset], column: str) -> None:
    ds, values = datasets[column], COLUMNS[column]
    in_order, in_no_order = (answers(ds, lambda: values, ordered) for ordered in (True, False))
    for name, keys in held_by(column):
        result = answers(ds, keys, name != "set")
        assert result == (in_no_order if name == "set" else in_order), name


@pytest.mark.parametrize("column", COLUMNS)
def test_no_container_loses_precision(column: str) -> None:
    values = list(map(exact, COLUMNS[column]))
    for name, keys in held_by(column):
        result = list(map(exact, to_arrow(keys(), "keys")))
        assert result == values or (name == "set" and sorted(result) == sorted(values)), name


UNITS = {"s": 10**18, "ms": 10**15, "us": 10**12, "ns": 10**9, "ps": 10**6, "fs": 1000, "as": 1}
UNITS |= {"m": 60 * 10**18, "h": 3600 * 10**18, "D": 86_400 * 10**18, "W": 604_800 * 10**18}


MISSING = None, pd.NaT, pd.NA, np.ma.masked


def exact(value: Any) -> Any:
    """Return a value of Arrow, Python, NumPy or pandas as a family and an exact number."""
    if isinstance(value, pa.DictionaryScalar | pa.ExtensionScalar):
        return exact(value.value)
    if isinstance(value, pa.Scalar) and value.is_valid:
        kind: Any = value.type
        if pa.types.is_timestamp(kind):
            return "time", kind.tz is not None, Fraction(value.value * UNITS[kind.unit])
        if pa.types.is_date(kind):
            return "time", False, Fraction(value.value * UNITS["D"])
        if pa.types.is_duration(kind) or pa.types.is_time(kind):
            name = "duration" if pa.types.is_duration(kind) else "clock"
            return name, Fraction(value.value * UNITS[kind.unit])
        return exact(value.as_py())
    if isinstance(value, pa.Scalar) or any(value is null for null in MISSING):
        return None
    if isinstance(value, pd.Timestamp | pd.Timedelta):
        zone = getattr(value, "tzinfo", None)
        name = ("time", zone is not None) if isinstance(value, pd.Timestamp) else ("duration",)
        return *name, Fraction(value.as_unit("ns").value * UNITS["ns"])
    if isinstance(value, np.datetime64 | np.timedelta64):
        if np.isnat(value):
            return None
        unit, step = np.datetime_data(value.dtype)
        name = ("time", False) if isinstance(value, np.datetime64) else ("duration",)
        return *name, Fraction(int(value.astype(np.int64)) * step * UNITS[unit])
    if isinstance(value, dt.datetime):
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC if value.tzinfo else None)
        return "time", value.tzinfo is not None, fraction(value - epoch)
    if isinstance(value, dt.date):
        return "time", False, fraction(value - dt.date(1970, 1, 1))
    if isinstance(value, dt.timedelta):
        return "duration", fraction(value)
    if isinstance(value, dt.time):
        of_day = dt.datetime.combine(dt.date.min, value) - dt.datetime.min
        return "clock", fraction(of_day)
    if isinstance(value, bool | np.bool_):
        return "boolean", bool(value)
    if isinstance(value, int | np.integer):
        return "number", Fraction(int(value))
    if isinstance(value, float | np.floating):
        return ("number", Fraction(*value.as_integer_ratio())) if np.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return "number", Fraction(value)
    if isinstance(value, uuid.UUID):
        return value.bytes
    # DuckDB exports a UUID as its text.
    return uuid.UUID(value).bytes if isinstance(value, str) and len(value) == 36 else value


def fraction(length: dt.timedelta) -> Fraction:
    return Fraction((length.days * 86_400 + length.seconds) * 10**6 + length.microseconds) * 10**12


ZONES = st.sampled_from(
    [
        *(dt.UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")),
        dt.timezone(dt.timedelta(seconds=-5, microseconds=7)),
    ]
)
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-128, 127).map(np.int8),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.floats(),
    st.floats(width=32).map(np.float32),
    st.floats(width=16).map(np.float16),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**53, 2**53 + 1, Decimal("1e50"), np.longdouble(1) / 3, np.longdouble(2)]),
)
MOMENTS = st.one_of(
    st.datetimes(),
    st.datetimes(timezones=ZONES),
    st.dates(),
    st.integers(-(2**63) + 1, 2**63 - 1).map(pd.Timestamp),
    st.integers(0, 2**62).map(lambda number: pd.Timestamp(number, tz="Europe/Berlin")),
    st.integers(0, 10**15).map(lambda number: np.datetime64(number, "us")),
    st.builds(
        np.datetime64,
        st.integers(-(10**6), 10**6),
        st.sampled_from(["W", "D", "h", "m", "s", "25s", "ms", "us", "ns", "ps", "fs", "as"]),
    ),
)
DURATIONS = st.one_of(
    st.timedeltas(),
    st.integers(-(2**63) + 1, 2**63 - 1).map(lambda number: pd.Timedelta(number, "ns")),
    st.builds(
        np.timedelta64,
        st.integers(-(10**6), 10**6),
        st.sampled_from(["W", "D", "h", "m", "s", "ms", "7ms", "us", "ns", "ps", "as"]),
    ),
)
NULLS = st.sampled_from([None, pd.NA, pd.NaT, np.datetime64("NaT"), np.timedelta64("NaT", "s")])
OTHERS = st.one_of(
    *(st.text(max_size=3), st.binary(max_size=3), st.booleans(), st.uuids()),
    *(st.times(), st.fractions(), st.builds(np.bool_, st.booleans())),
)


def same_or_refused(values: list[Any], convert: Callable[[], Iterable[pa.Scalar]]) -> None:
    try:
        converted = list(convert())
    except errors.InvalidArgument:
        return
    assert list(map(exact, converted)) == list(map(exact, values))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        *(
            st.lists(st.one_of(family, NULLS), max_size=4)
            for family in (NUMBERS, MOMENTS, DURATIONS, st.one_of(NUMBERS, MOMENTS, OTHERS))
        )
    )
)
def test_scalars_are_converted_exactly_or_refused(values: list[Any]) -> None:
    same_or_refused(values, lambda: to_arrow(values, "keys"))
    # pandas takes a NaN among objects for a missing value.
    without_floats = [value for value in values if not isinstance(value, float | np.floating)]
    same_or_refused(
        without_floats, lambda: to_arrow(pd.Index(without_floats, dtype=object), "keys")
    )
    for value in values:
        same_or_refused([value], lambda value=value: [to_scalar(value, "key")])


def masked(values: np.ndarray) -> np.ndarray:
    return np.ma.array(values, mask=[True, *[False] * (len(values) - 1)])


NS = 1_704_067_200_123_456_789
BERLIN = ZoneInfo("Europe/Berlin")
# Seven microseconds beside a whole minute.
ODD_ZONE = dt.timezone(dt.timedelta(minutes=60, microseconds=7))
UTC_TIME = pa.timestamp("us", "UTC")


class Text(str):
    __slots__ = ()


class Colour(enum.IntEnum):
    RED = 1


# Values with the type that holds them exactly, or None if they are refused.
TABLE: list[tuple[Any, pa.DataType | None]] = [
    ([2**63 - 1, -(2**63), None], pa.int64()),
    ([2**63, None, 5], pa.uint64()),
    ([np.uint64(2**64 - 1), 1], pa.uint64()),
    ([-1, 2**63], None),
    ([2**64], None),
    ([np.int8(1), 300], pa.int64()),
    ([Colour.RED, 2], pa.int64()),
    ([True, np.bool_(False), None], pa.bool_()),
    ([True, 1], None),
    ([1, 2.5], pa.float64()),
    ([2**53 + 1, 0.5], None),
    ([np.int64(2**53 + 1), np.float64(0.5)], None),
    ([np.float32(0.1), None], pa.float32()),
    ([np.float16(0.1)], pa.float16()),
    ([np.float32(0.1), 0.1, 16_777_217], pa.float64()),
    ([0, np.float16(0.5)], pa.float64()),
    ([np.longdouble(1) / 3], None),
    (np.array([1], np.longdouble), None),
    ([1j], None),
    (np.array([1j]), None),
    ([Decimal("1.5"), Decimal("1E+5"), 7], pa.decimal128(7, 1)),
    ([Decimal(10**60 + 1)], pa.decimal256(61, 0)),
    ([Decimal(10**80)], None),
    ([Decimal("NaN")], None),
    ([Decimal("0.1"), 0.1], None),
    ([Fraction(1, 2)], None),
    ([Text("a"), "b", np.str_("a\0b")], pa.string()),
    (np.array(["a\0b", "c"]), pa.string()),
    (np.array([b"a\0b", b"c"]), pa.binary()),
    ([b"a", bytearray(b"b"), memoryview(b"c")], pa.binary()),
    (["a", b"a"], None),
    (["\ud800"], None),
    (np.array(["a\ud800"]), None),
    (["5", 5], None),
    ([UUIDS[0], None], pa.uuid()),
    ([UUIDS[0], str(UUIDS[0])], None),
    ([dt.date(1, 1, 1), None], pa.date32()),
    ([dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 5)], None),
    ([dt.datetime(2024, 1, 1, 5, 0, 0, 1)], pa.timestamp("us")),
    ([dt.datetime(2024, 1, 1, tzinfo=BERLIN), dt.datetime(1, 1, 1, tzinfo=dt.UTC)], UTC_TIME),
    ([dt.datetime(1, 1, 1, tzinfo=BERLIN), dt.datetime(2024, 1, 1, tzinfo=ODD_ZONE)], UTC_TIME),
    ([dt.datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=BERLIN) for fold in (0, 1)], UTC_TIME),
    ([dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], None),
    ([dt.time(1, 2, 3, 4)], pa.time64("us")),
    ([dt.time(1, tzinfo=dt.UTC)], None),
    ([dt.timedelta(microseconds=-1)], pa.duration("us")),
    ([dt.timedelta.max], None),
    ([pd.Timestamp(NS), pd.Timestamp("2024-01-01"), pd.NaT], pa.timestamp("ns")),
    ([pd.Timestamp(NS, tz="Europe/Berlin"), None], pa.timestamp("ns", "UTC")),
    ([pd.Timestamp(NS), pd.Timestamp(NS, tz="UTC")], None),
    ([pd.Timestamp(1), pd.Timestamp(dt.datetime(9999, 1, 1))], None),
    ([pd.Timestamp(1), dt.datetime(2024, 1, 1)], None),
    ([pd.Timestamp(1), pd.Timedelta(1, "ns")], None),
    ([pd.Timedelta(1, "ns"), pd.NaT], pa.duration("ns")),
    ([pd.NA, 5], pa.int64()),
    ([pd.Period("2024", "D")], None),
    (pd.period_range("2024", periods=2, freq="D"), None),
    ([pd.Interval(0, 1)], None),
    ([pd.DateOffset(days=1)], None),
    (pd.Series([1.0, 0.0], dtype="Sparse[float]"), pa.float64()),
    ([np.datetime64(1, "ns"), np.datetime64(1, "s"), np.datetime64("NaT")], pa.timestamp("ns")),
    ([np.datetime64("9999-01-01", "s"), np.datetime64(1, "ns")], None),
    ([np.datetime64(1, "D"), None], pa.date32()),
    ([np.datetime64(1, "ps")], None),
    ([np.timedelta64(-1, "ns"), np.timedelta64("NaT")], pa.duration("ns")),
    ([np.timedelta64(1, "M")], None),
    ([np.timedelta64(1, "s"), 1], None),
    *(
        (np.array([0, 1, -7, "NaT"], f"M8[{unit}]"), kind)
        for units, kind in (
            (("D",), pa.date32()),
            *(((unit,), pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")),
            (("Y", "M", "W", "h", "m", "25s", "7ms", "ps"), None),
        )
        for unit in units
    ),
    (np.array([2**31], "M8[D]"), None),
    (np.array([2**62], "M8[m]"), None),
    (np.array([NS], ">M8[ns]"), pa.timestamp("ns")),
    (np.array([1], "m8[h]"), None),
    (masked(np.array([1, 2, 3], "m8[ns]")), pa.duration("ns")),
    (masked(np.array([1, 2**63, 3], np.uint64)), pa.uint64()),
    (np.array([1], "m8[M]"), None),
    (np.zeros((2, 2)), None),
    (np.zeros(2, [("a", "i4")]), None),
    (pl.Series([NS]).cast(pl.Datetime("ns")), pa.timestamp("ns")),
    (pl.Series([NS]).cast(pl.Datetime("ns", "UTC")), pa.timestamp("ns", "UTC")),
    (pl.Series([1]).cast(pl.Duration("ns")), pa.duration("ns")),
    (pl.Series([object()], dtype=pl.Object), None),
    (pl.Series([2**100], dtype=pl.Int128), None),
    ([pa.scalar(NS, pa.timestamp("ns")), None], pa.timestamp("ns")),
    ([pa.scalar(1, pa.int8()), 2], None),
    *((values, None) for values in ({1: 2}, "abc", b"abc", 5, pl.col("id"))),
]


@pytest.mark.parametrize(("values", "kind"), TABLE)
def test_values_are_exact_or_refused(values: Any, kind: pa.DataType | None) -> None:
    if kind is None:
        with pytest.raises(errors.InvalidArgument, match=r"keys is .*; give") as caught:
            to_arrow(values, "keys")
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        return
    result = to_arrow(values, "keys")
    assert result.type == kind
    is_polars = isinstance(values, pl.Series)
    plain = values.to_arrow() if is_polars else values
    assert list(map(exact, result)) == list(map(exact, plain))
    if isinstance(values, list):
        assert [exact(to_scalar(value, "key")) for value in values] == list(map(exact, values))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("other_columns", [{}, {"name": ["a", "b"]}])
def test_a_data_frame_is_not_accepted_as_a_column(
    frame: Any, other_columns: dict[str, Any]
) -> None:
    ds = zb.dataset(pa.table({"id": range(10), "name": list("abcdefghij")}))
    ds.create_scalar_index("id", spark=False)
    keys = frame({**other_columns, "id": [7, 3]})
    for method in (ds.lookup, ds.locate, ds.files_with_keys, ds.search_many):
        with pytest.raises(errors.InvalidArgument, match=r"pass one of them: df\['id'\]"):
            method("id", keys)
    assert ds.lookup("id", keys["id"])["id"].to_pylist() == [3, 7]
    with pytest.raises(errors.InvalidArgument, match=r"table with 2 columns; .*table\['id'\]"):
        ds.lookup("id", pa.table({"name": ["a"], "id": [1]}))


@pytest.mark.parametrize(
    "table",
    [
        lambda table: table,
        lambda table: table.to_batches()[0],
        lambda table: table.to_pydict(),
        lambda table: table.to_pandas(),
        lambda table: table.to_pandas().astype(object),
        pl.from_arrow,
        duckdb.from_arrow,
        arro3.core.Table.from_arrow,
    ],
)
def test_any_table_may_hold_keys_of_several_columns(table: Callable[[pa.Table], Any]) -> None:
    moments = ticks([NANOSECONDS[0], NANOSECONDS[0] + 1], pa.timestamp("ns"))
    rows = pa.table({"at": moments, "id": [1, 2]})
    ds = zb.dataset(rows)
    keys = table(pa.table({"id": [2, 1, 2], "at": moments.take([1, 1, 0]), "more": [0, 0, 0]}))
    assert ds.locate(["at", "id"], keys)["row"].to_pylist() == [1, None, None]
    with pytest.raises(errors.InvalidArgument, match="no column 'nope'; they need id, nope"):
        zb.dataset(pa.table({"id": [1], "nope": [1]})).locate(["id", "nope"], keys)


def test_a_repeated_key_column_is_refused() -> None:
    ds = zb.dataset(pa.table({"id": [1], "day": [1]}))
    twice = pa.table([[1], [1], [2]], names=["id", "day", "day"])
    for keys in (twice, twice.to_pandas()):
        with pytest.raises(errors.InvalidArgument, match="several columns 'day'"):
            ds.locate(["id", "day"], keys)


# Filters


def test_tuple_filters_do_not_cut_pandas_scalars() -> None:
    moments = ticks([1000, 1001, 2000], pa.timestamp("ns"))
    ds = zb.dataset(pa.table({"at": moments, "for": moments.view(pa.duration("ns"))}))
    ds.create_scalar_index(["at", "for"], spark=False)
    for name, value in (("at", pd.Timestamp(1001)), ("for", pd.Timedelta(1001, "ns"))):
        for operator, count in (("=", 1), ("!=", 2), ("<", 1), (">=", 2)):
            assert ds.count_rows([(name, operator, value)]) == count
        assert ds.count_rows([(name, "in", {value, pd.NaT})]) == 1
        assert ds.count_rows([[(name, "=", value)], [(name, "not in", [value])]]) == 3
    with pytest.raises(errors.FilterError, match="cannot convert to an array exactly"):
        ds.count_rows([("at", "in", [pd.Timestamp(1), dt.datetime(9999, 1, 1)])])


def test_predicates_take_python_values() -> None:
    moments = ticks([1000, 1001, 2000], pa.timestamp("ns"))
    ds = zb.dataset(pa.table({"at": moments}))
    ds.create_scalar_index("at", spark=False)
    value: Any = pd.Timestamp(1001)
    several: Any = pl.Series([1001, 2000]).cast(pl.Datetime("ns"))
    assert ds.count_rows(Equals(("at",), value)) == 1
    assert ds.count_rows(Compares(("at",), "<", value)) == 1
    assert ds.count_rows(IsIn(("at",), several)) == 2
    with pytest.raises(errors.InvalidArgument, match="the values of IsIn hold a null"):
        IsIn(("at",), [value, None])


def test_filters_of_sbbf_hold_nanoseconds() -> None:
    bloom = zb.Sbbf(100)
    bloom.insert([pd.Timestamp(1001)])
    assert bloom.check(ticks([1000, 1001], pa.timestamp("ns"))).tolist() == [False, True]
    bloom.insert(pl.Series([2**64 - 1], dtype=pl.UInt64))
    assert bloom.check([2**64 - 1]).tolist() == [True]
    views = view_dictionary(pa.array(TEXTS))
    bloom.insert(views)
    assert bloom.check(pa.array(TEXTS)).all()

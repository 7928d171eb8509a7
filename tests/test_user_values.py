"""Compare keys and literals of every library with the same values in Arrow arrays.

The oracle of each table test is the answer to `pa.array` of the column's own type, which is itself
compared with the rows one by one.
"""

from __future__ import annotations

import collections
import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
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
    "time_ns": ticks([1, 86_399_999_999_999], pa.time64("ns")),
    "duration_us": ticks([1, -1, 2**53 + 1], pa.duration("us")),
    "duration_ns": ticks([1, -1, 2**53 + 1], pa.duration("ns")),
}


# Columns in which all functions are asked for all containers.
ASKED = (
    *("uint64", "float", "decimal", "string_view", "uuid", "date", "nanoseconds", "instant"),
    *("time_ns", "duration_ns"),
)


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
    "record batch": lambda values: pa.record_batch({"other": values}),
    "arrow scalars": list,
    "python": lambda values: values.to_pylist(),
    "tuple": lambda values: tuple(values.to_pylist()),
    "iterator": lambda values: iter(values.to_pylist()),
    "deque": lambda values: collections.deque(values.to_pylist()),
    "dict keys": lambda values: dict.fromkeys(values.to_pylist()).keys(),
    "dict values": lambda values: dict(enumerate(values.to_pylist())).values(),
    "set": lambda values: set(values.to_pylist()),
    "numpy": lambda values: values.to_numpy(zero_copy_only=False),
    "numpy, other byte order": lambda values: (
        array := values.to_numpy(zero_copy_only=False)
    ).astype(array.dtype.newbyteorder(">")),
    "numpy, every second": lambda values: np.repeat(values.to_numpy(zero_copy_only=False), 2)[::2],
    "masked numpy": lambda values: np.ma.array(values.to_numpy(zero_copy_only=False), mask=False),
    "numpy scalars": numpy_scalars,
    "numpy objects": object_array,
    "pandas series": lambda values: values.to_pandas(),
    "pandas index": lambda values: pd.Index(values.to_pandas()),
    "pandas array": lambda values: values.to_pandas().array,
    "pandas objects": lambda values: pd.Series(object_array(values), dtype=object),
    "pandas index of objects": lambda values: pd.Index(object_array(values), dtype=object),
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
    "polars to list": lambda values: polars_series(values).to_list(),
    "arro3": arro3.core.Array.from_arrow,
    "arro3 chunks": lambda values: arro3.core.ChunkedArray.from_arrow(pa.chunked_array([values])),
    "duckdb": lambda values: duckdb.from_arrow(pa.table({"other": values})),
    "array export": ArrayExport,
    "stream export": StreamExport,
    "to_arrow": ToArrow,
}

# Some libraries lose digits of a type before this package gets the values.
_PYTHON_TIMES = ("python", "tuple", "iterator", "deque", "dict keys", "dict values", "set")
_OBJECTS = (
    *("numpy", "numpy, other byte order", "numpy, every second", "masked numpy", "numpy scalars"),
    *("numpy objects", "pandas series", "pandas index", "pandas array", "pandas objects"),
    *("pandas index of objects", "pandas scalars", "pandas categories", "pandas nullable"),
    *("pandas categories of objects", "polars objects"),
)
CUT_BEFORE = {
    *((name, "time_ns") for name in (*_PYTHON_TIMES, *_OBJECTS, "polars to list")),
    *(
        (name, column)
        for name in ("polars to list",)
        for column in ("nanoseconds", "instant", "duration_ns")
    ),
    *(
        (name, "instant")
        for name in (
            *("numpy", "numpy, other byte order", "numpy, every second", "masked numpy"),
            "numpy scalars",
        )
    ),
    *(("duckdb", column) for column in ("wide_decimal", "instant", "duration_us", "duration_ns")),
}


def held_by(column: str, containers: Iterable[str] = CONTAINERS) -> Iterator[tuple[str, Any]]:
    """Yield containers by name that make their keys anew, where their library can hold them."""
    for name in containers:
        try:
            CONTAINERS[name](COLUMNS[column])
        except (Exception, pl.exceptions.PanicException):  # noqa: BLE001 - of many libraries
            continue
        if (name, column) not in CUT_BEFORE:
            yield name, lambda name=name: CONTAINERS[name](COLUMNS[column])


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


def test_every_container_is_tested_with_some_columns() -> None:
    counts = collections.Counter(name for column in COLUMNS for name, _ in held_by(column))
    assert set(counts) == set(CONTAINERS)
    # Views and lists of one kind of values are the exceptions.
    assert sorted(counts.values())[5] >= 15, counts


UNITS = {"s": 10**18, "ms": 10**15, "us": 10**12, "ns": 10**9, "ps": 10**6, "fs": 1000, "as": 1}
UNITS |= {"m": 60 * 10**18, "h": 3600 * 10**18, "D": 86_400 * 10**18, "W": 604_800 * 10**18}


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
    if isinstance(value, pa.Scalar) or value is None or value is pd.NaT or value is pd.NA:
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


PLAIN = st.one_of(st.integers(), st.text(), st.none(), st.booleans(), st.floats())


@given(st.one_of(st.lists(PLAIN), st.lists(st.integers()), st.lists(st.text()), st.tuples(PLAIN)))
def test_plain_python_values_have_the_type_that_pyarrow_finds(values: Any) -> None:
    try:
        expected = pa.array(values)
        result = to_arrow(values, "keys")
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return
    assert result.type == expected.type
    assert str(result) == str(expected)


@settings(max_examples=100, deadline=None)
@given(st.one_of(MOMENTS, DURATIONS, OTHERS, st.integers(-(2**63), 2**64 - 1), st.floats()))
def test_a_scalar_that_arrow_can_hold_is_accepted(value: Any) -> None:
    is_refused = isinstance(value, Fraction)
    if isinstance(value, np.datetime64 | np.timedelta64):
        is_refused = np.datetime_data(value.dtype)[0] in ("ps", "fs", "as")
    if isinstance(value, dt.timedelta):
        # From here on microseconds need more than 64 bits.
        is_refused = abs(value) > dt.timedelta(days=106_751_991)
    if not is_refused:
        assert exact(to_scalar(value, "key")) == exact(value)


@pytest.mark.parametrize("values", [[b"a\0b", b"c"], ["a\0b", "c"]], ids=["bytes", "text"])
def test_values_of_numpy_may_contain_a_nul(values: list[Any]) -> None:
    assert to_arrow(np.array(values), "keys").to_pylist() == values


def test_arrays_of_every_numpy_unit_are_converted() -> None:
    for dtype in ("M8[Y]", "M8[M]", "M8[W]", "M8[D]", "M8[h]", "M8[25s]", "M8[ms]", "M8[7ns]"):
        values = np.array([0, 1, -7, "NaT"], dtype)
        nanoseconds = values.astype("M8[ns]")
        assert list(map(exact, to_arrow(values, "keys"))) == list(map(exact, nanoseconds)), dtype
    days = np.array([2**40], "M8[D]")
    assert exact(to_arrow(days, "keys")[0]) == exact(days[0])
    whole = np.array([3000, "NaT"], "M8[ps]")
    assert to_arrow(whole, "keys").equals(pa.array([3, None], pa.timestamp("ns")))
    masked = np.ma.array(np.array([1, 2, 3], "m8[h]"), mask=[True, False, False])
    assert to_arrow(masked, "keys").equals(pa.array([None, 7200, 10_800], pa.duration("s")))


REFUSED: dict[str, Any] = {
    "a date and a datetime": [dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 5)],
    "times with and without a zone": [
        dt.datetime(2024, 1, 1),
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    ],
    "a clock time with a zone": [dt.time(1, tzinfo=dt.UTC)],
    "text and bytes": ["a", b"a"],
    "a decimal and a double": [Decimal("0.1"), 0.1],
    "an integer that is no double": [2**53 + 1, 0.5],
    "NumPy's integer that is no double": [np.int64(2**53 + 1), np.float64(0.5)],
    "integers below 0 and from 2**63": [-1, 2**63],
    "picoseconds": np.array([1], "M8[ps]"),
    "a picosecond": [np.datetime64(1, "ps")],
    "months of a duration": np.array([1], "m8[M]"),
    "years too large for seconds": np.array([2**62], "M8[m]"),
    "a nanosecond and a day too far from it": [pd.Timestamp(1), dt.datetime(9999, 1, 1)],
    "a long double": np.array([1], np.longdouble) / 3,
    "complex numbers": np.array([1j]),
    "a matrix": np.zeros((2, 2)),
    "a structured array": np.zeros(2, [("a", "i4")]),
    "periods": pd.period_range("2024", periods=2, freq="D"),
    "a period": [pd.Period("2024", "D")],
    "an interval": [pd.Interval(0, 1)],
    "fractions": [Fraction(1, 2)],
    "objects in Polars": pl.Series([object()], dtype=pl.Object),
    "integers of 128 bits": pl.Series([2**100], dtype=pl.Int128),
    "half a character": ["\ud800"],
    "half a character of NumPy": np.array(["a\ud800"]),
    "a dictionary": {1: 2},
    "text": "abc",
    "bytes": b"abc",
    "a number": 5,
    "a Polars expression": pl.col("id"),
}


@pytest.mark.parametrize("values", REFUSED.values(), ids=REFUSED)
def test_values_without_an_exact_form_are_refused(values: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="keys is") as caught:
        to_arrow(values, "keys")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


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


def brute_force(ds: zb.Dataset, values: pa.Array) -> list[int]:
    stored = enumerate(ds.to_table(["key"])["key"])
    return [row for row, value in stored if any(value.equals(key) for key in values)]


# PyArrow compares no UUIDs, no half floats and no such decimals.
NOT_COMPARED = {"uuid", "half", "decimal", "wide_decimal"}
FILTERED = (
    *("numpy", "numpy scalars", "pandas series", "pandas objects", "python", "polars", "set"),
    *("pandas scalars", "tuple", "arrow scalars"),
)


@pytest.mark.parametrize("column", sorted(set(COLUMNS) - NOT_COMPARED))
def test_tuple_filters_take_the_same_values(datasets: dict[str, zb.Dataset], column: str) -> None:
    ds = datasets[column]
    wanted = brute_force(ds, COLUMNS[column])
    for name, values in held_by(column, FILTERED):
        result = ds.to_table(["row"], [("key", "in", values())])
        assert result["row"].to_pylist() == wanted, name
        if isinstance(values(), list | tuple):
            rows = [ds.to_table(["row"], [("key", "=", value)])["row"] for value in values()]
            assert sorted(pa.chunked_array(rows, pa.int64()).to_pylist()) == wanted, name


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


def test_dictionaries_of_views_can_be_indexed() -> None:
    column = view_dictionary(pa.array(TEXTS))
    ds = zb.dataset(pa.table({"key": column, "row": range(3)}))
    ds.create_scalar_index("key", spark=False, number_of_items=1)
    for keys in (TEXTS[1:2], column.slice(1, 1), pl.Series(TEXTS[1:2], dtype=pl.Categorical)):
        assert ds.lookup("key", keys, ["row"])["row"].to_pylist() == [1]
        assert ds.locate("key", keys)["row"].to_pylist() == [1]

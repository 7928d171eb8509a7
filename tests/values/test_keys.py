"""Test keys of other types than their column: they are compared exactly, or refused with advice."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom import errors

ROWS = 1000
ITEMS = 20
IDS = [uuid.UUID(int=value * 12345678901234567890123 + 7) for value in range(ROWS)]
RAW = pa.array([value.bytes for value in IDS], pa.binary(16))
TIMES = pa.array([value * 86_400_000_000 for value in range(ROWS)], pa.int64())

COLUMNS: dict[str, pa.Array] = {
    "int32": pa.array(range(ROWS), pa.int32()),
    "uint64": pa.array([2**64 - 1 - value for value in range(ROWS)], pa.uint64()),
    "double": pa.array([value / 4 for value in range(ROWS)]),
    "decimal": pa.array([Decimal(value) / 4 for value in range(ROWS)], pa.decimal128(12, 2)),
    "string": pa.array([f"k{value}" for value in range(ROWS)]),
    "dictionary": pa.array([f"k{value}" for value in range(ROWS)]).dictionary_encode(),
    "binary": pa.array([f"k{value}".encode() for value in range(ROWS)]),
    "raw": RAW,
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), RAW),
    "date": pa.array(range(ROWS), pa.date32()),
    "naive": TIMES.cast(pa.timestamp("us")),
    "zoned": TIMES.cast(pa.timestamp("us", "UTC")),
    "duration": TIMES.cast(pa.duration("us")),
}


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> zb.Dataset:
    folder = tmp_path_factory.mktemp("keys")
    pq.write_table(pa.table(COLUMNS), folder / "0.parquet", row_group_size=200)
    ds = zb.dataset(folder)
    ds.create_scalar_index(list(COLUMNS), spark=False, number_of_items=ITEMS)
    return ds


def zones(ds: zb.Dataset, column: str, keys: Any) -> set[tuple[int, int | None]]:
    result = ds.search_many(column, keys).read_all()
    return set(zip(result["key_index"].to_pylist(), result["zone"].to_pylist(), strict=True))


DAY = datetime.date(1970, 1, 1) + datetime.timedelta(days=77)
NOON = datetime.datetime(1970, 3, 19)
SAME: list[tuple[str, Any]] = [
    ("int32", [77]),
    ("int32", [77.0]),
    ("int32", [Decimal(77)]),
    ("int32", np.array([77], np.uint8)),
    ("int32", pa.array([77], pa.uint64())),
    ("uint64", [2**64 - 78]),
    ("uint64", [2**64 - 78, 1, None]),
    ("double", [19.25]),
    ("double", [Decimal("19.25")]),
    ("double", pa.array([19.25], pa.float32())),
    ("decimal", [Decimal("19.250")]),
    ("string", ["k77"]),
    ("string", pa.array(["k77"]).dictionary_encode()),
    ("dictionary", ["k77"]),
    ("dictionary", pa.array(["k77"], pa.string_view())),
    ("binary", [b"k77"]),
    ("raw", [IDS[77]]),
    ("raw", [IDS[77].bytes]),
    ("uuid", [IDS[77]]),
    ("uuid", [str(IDS[77])]),
    ("uuid", [IDS[77].hex, None]),
    ("uuid", [IDS[77].bytes]),
    ("date", [DAY]),
    ("date", [NOON]),
    ("naive", [NOON]),
    ("naive", [DAY]),
    ("naive", [np.datetime64("1970-03-19", "s")]),
    ("zoned", [NOON.replace(tzinfo=datetime.UTC)]),
    ("zoned", [datetime.datetime.fromisoformat("1970-03-19T05:00:00+05:00")]),
    ("duration", [datetime.timedelta(days=77)]),
]


@pytest.mark.parametrize(("column", "keys"), SAME, ids=lambda value: str(value)[:40])
def test_keys_of_every_type_are_found(ds: zb.Dataset, column: str, keys: Any) -> None:
    result = zones(ds, column, keys)
    assert (0, 77 // ITEMS) in result
    # A key that is compared exactly is in one of 50 zones, except for false positives.
    assert len([zone for key, zone in result if key == 0]) < 5


ABSENT: list[tuple[str, Any, str]] = [
    ("int32", [5.5], "int32 = 5.5"),
    ("int32", [Decimal("5.5")], "int32 = 5.5"),
    ("int32", [2**40], f"int32 = {2**40}"),
    ("uint64", [-1], "uint64 = -1"),
    ("decimal", [Decimal("0.125")], "decimal = 0.125"),
    ("raw", [b"short"], "raw = X'0102'"),
    (
        "naive",
        pa.array([1], pa.timestamp("ns")),
        "naive = TIMESTAMP '1970-01-01 00:00:00.000000001'",
    ),
    ("int32", [None], "int32 = NULL"),
    ("int32", [], "FALSE"),
]


@pytest.mark.parametrize(("column", "keys", "sql"), ABSENT, ids=lambda value: str(value)[:40])
def test_keys_outside_of_the_columns_type_match_nothing_as_in_sql(
    ds: zb.Dataset, column: str, keys: Any, sql: str
) -> None:
    assert zones(ds, column, keys) == set()
    assert ds.count_rows(sql) == 0


def test_sql_cuts_nanoseconds_of_a_text_as_duckdb_does(ds: zb.Dataset) -> None:
    """The text has no type of its own, so it takes that of the column."""
    assert ds.count_rows("naive = '1970-01-01 00:00:00.000000001'") == 1
    assert ds.count_rows("naive = '1970-01-01 00:00:00.000001'") == 0


REFUSED: list[tuple[str, Any, str]] = [
    ("string", "k5", r"keys is 'k5', a single value; give a list: \['k5'\]"),
    ("binary", b"k5", r"give a list: \[b'k5'\]"),
    ("int32", 5, "keys is 5; give a list"),
    ("int32", {5: 5}, "give a list"),
    ("int32", ["a"], "keys are string, column 'int32' is int32; give values of type int32"),
    ("int32", [True], "keys are bool"),
    ("int32", [[5]], "keys are list"),
    ("int32", ["a", 5], "cannot convert to an array"),
    ("int32", [2**70], "cannot convert to an array"),
    ("uint64", [2**63, -1], "cannot convert to an array"),
    ("string", [5], "keys are int64, column 'string' is string; give text"),
    ("string", [b"k5"], "keys are binary"),
    ("dictionary", [5], "give text"),
    ("binary", ["k5"], "keys are string, column 'binary' is binary; give bytes"),
    ("raw", [str(IDS[5])], r"give bytes, and for the text of a UUID uuid\.UUID\(text\)"),
    ("uuid", ["k5"], "no UUID; write '00000000-"),
    ("uuid", [5], "keys are int64"),
    ("decimal", [0.5], r"keys are double, column 'decimal' is decimal128\(12, 2\)"),
    ("naive", [NOON.replace(tzinfo=datetime.UTC)], "'naive': .*, with a zone, is compared"),
    ("zoned", [NOON], "'zoned': .*, without a zone, is compared"),
    ("zoned", [DAY], "'zoned': .*, without a zone, is compared"),
    ("duration", [5], "keys are int64"),
]


@pytest.mark.parametrize(("column", "keys", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_keys_of_other_kinds_are_refused(
    ds: zb.Dataset, column: str, keys: Any, words: str
) -> None:
    with pytest.raises(errors.InvalidArgument, match=words):
        ds.search_many(column, keys)


def equal_rows(values: pa.Array, key: pa.Scalar) -> list[int]:
    """Compare with PyArrow, or else with Python, which compares numbers of all types exactly."""
    plain = key.value if isinstance(key, pa.ExtensionScalar) else key
    stored = values.storage if isinstance(values, pa.ExtensionArray) else values
    try:
        equal = pc.equal(stored, plain)
    except pa.ArrowException:
        equal = pa.array([value == plain.as_py() for value in stored.to_pylist()])
    return np.flatnonzero(equal.to_numpy(zero_copy_only=False)).tolist()


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("of", COLUMNS)
def test_random_keys_lose_no_row(ds: zb.Dataset, column: str, of: str) -> None:
    """The zones of a key from another column include all equal rows, or the keys are refused."""
    keys = COLUMNS[of].slice(70, 9)
    try:
        result = zones(ds, column, keys)
    except errors.InvalidArgument:
        assert column != of
        return
    values = COLUMNS[column]
    for number, key in enumerate(keys):
        for row in equal_rows(values, key):
            assert (number, row // ITEMS) in result or (number, None) in result

"""Compare Iceberg tables with what pyiceberg reads, filtered by brute force."""

from __future__ import annotations

import datetime
import os
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    LongType,
    StringType,
)
from support.snapshot_rows import ROWS, in_order, rows

import zonebloom as zb
from zonebloom.errors import (
    FragmentUnreadable,
    IndexNotUsedWarning,
    InvalidArgument,
    SourceError,
    UnsupportedType,
)


@pytest.fixture
def indexed(catalog):
    """Return an indexed table of three snapshots. Each snapshot adds one file."""
    table = catalog.create_table("n.t", schema=rows(0, 1).schema)
    for seed in range(3):
        table.append(rows(seed))
    zb.dataset(table).create_scalar_index(["id", "key"])
    return table


def same_rows(table, expression: pc.Expression, text: str) -> int:
    """Compare a lookup with brute force over pyiceberg's rows, and return the number of rows."""
    want = table.scan().to_arrow().filter(expression)
    ds = zb.dataset(table)
    for filter in (expression, text):
        table_rows = ds.to_table(filter=filter)
        # pyiceberg gives columns that a file lacks other types than columns that it reads.
        assert table_rows.schema == ds.schema
        want = want.cast(table_rows.schema)
        assert in_order(table_rows) == in_order(want)
    assert ds.count_rows(filter=text) == want.num_rows
    return want.num_rows


def test_a_missing_file_of_the_snapshot_is_an_error(indexed):
    ds = zb.dataset(indexed)
    os.remove(ds.files[1])
    for filter in ("id = 50000", None):
        with pytest.raises(FragmentUnreadable, match="needs it"):
            ds.to_table(filter=filter)


def test_a_table_without_files_is_empty(catalog):
    table = catalog.create_table("n.t", schema=rows(0, 1).schema)
    # It has no snapshot yet.
    assert zb.dataset(table).to_table().equals(rows(0, 1).slice(1))
    table.append(rows(0, 10))
    table.delete("id >= 0")
    assert zb.dataset(table).to_table(filter="id = 5").num_rows == 0


# Partitions

PARTITIONS = {
    "text": pa.array(["a b", "x/y", "p%20q+#?", "é ü/=", None]),
    "date": pa.array([datetime.date(2020, 2, 29), datetime.date(1969, 1, 1), None] * 2)[:5],
    "time": pa.array([0, 86_399_999_999, 5, None, 1], pa.time64("us")),
    "seconds": pa.array([0, 1_582_934_400_123_456, -1, None, 1], pa.timestamp("us")),
    "zoned": pa.array([0, 1_582_934_400_123_456, -1, None, 1], pa.timestamp("us", "UTC")),
    "int32": pa.array([1, -4, 2**31 - 1, None, 0], pa.int32()),
    "int64": pa.array([1, -(2**63), 2**63 - 1, None, 0], pa.int64()),
    "decimal": pa.array([Decimal("1.50"), Decimal("-0.01"), None, 0, 7], pa.decimal128(10, 2)),
    "boolean": pa.array([True, False, None, True, False]),
    "double": pa.array([1.5, -1e-7, float("inf"), None, 0.1]),
    "bytes": pa.array([b"\x00\xff", b"", None, b"a/b", b"%"]),
    "fixed": pa.array([b"\x00\xff", b"ab", None, b"//", b"%%"], pa.binary(2)),
}


@pytest.mark.many
@pytest.mark.parametrize("name", PARTITIONS)
def test_partition_values_have_the_table_s_type(catalog, name):
    data = pa.table({"id": range(5), "part": PARTITIONS[name], "key": list("abcde")})
    table = catalog.create_table("n.t", schema=data.schema)
    with table.update_spec() as update:
        update.add_identity("part")
    try:
        table.append(data)
    except (TypeError, ValueError, NotImplementedError, OSError) as error:
        pytest.skip(f"pyiceberg does not write it: {error}")
    ds = zb.dataset(table)
    assert ds.schema == table.scan().to_arrow().schema
    assert in_order(ds.to_table()) == in_order(data)
    if name != "double":
        with pytest.raises((InvalidArgument, UnsupportedType)):
            ds.create_scalar_index("part")
    ds.create_scalar_index("id")
    ds = zb.dataset(table)
    for number, value in enumerate(data["part"]):
        by_part = pc.field("part") == value if value.is_valid else pc.field("part").is_null()
        assert in_order(ds.to_table(filter=by_part)) == in_order(data.filter(by_part))
        by_both = by_part & (pc.field("id") == number)
        assert ds.to_table(filter=by_both).to_pylist() == data.slice(number, 1).to_pylist()
    assert ds.count_rows(filter="part IS NULL") == data["part"].null_count


@pytest.mark.slow
def test_files_of_older_partition_specs_are_read(indexed):
    """Some files have a spec with a column's own value, and others have specs without."""
    with indexed.update_spec() as update:
        update.add_identity("part")
    indexed.append(rows(3))
    with indexed.update_spec() as update:
        update.remove_field("part")
    indexed.append(rows(4))
    zb.dataset(indexed).create_scalar_index(["id", "key"])
    for number in (7, 50_001, 120_001, 120_004, 160_001):
        assert same_rows(indexed, pc.field("id") == number, f"id = {number}") == 1
    null = pc.field("part").is_null() & pc.field("id").isin([4, 5, 120_004, 120_006, 160_009])
    text = "part IS NULL AND id IN (4, 5, 120004, 120006, 160009)"
    assert same_rows(indexed, null, text) == 3
    assert same_rows(indexed, pc.field("part") == "p 1/%", "part = 'p 1/%'") == ROWS


def test_files_that_lack_their_partition_column_get_its_value(catalog, tmp_path):
    """Files lack the partition column, as after Spark's add_files on Hive folders."""
    data = rows(0, 1000)
    table = catalog.create_table("n.t", schema=data.schema)
    with table.update_spec() as update:
        update.add_identity("part")
    table.append(data)
    for path in zb.dataset(table).files:
        # Drop the column and keep the other field ids, as in a file of a Hive folder.
        pq.write_table(pq.ParquetFile(path).read().drop_columns(["part"]), path)
    zb.dataset(table).create_scalar_index("id")
    ds = zb.dataset(table)
    assert in_order(ds.to_table()) == in_order(data)
    assert ds.to_table(filter="id = 7 AND part = 'p 2/%'").num_rows == 1
    assert ds.count_rows(filter="part IS NULL") == 200


def test_a_floating_partition_value_is_not_trusted(catalog):
    data = pa.table({"id": range(3), "part": [0.1, -1e-7, None]})
    table = catalog.create_table("n.t", schema=data.schema)
    with table.update_spec() as update:
        update.add_identity("part")
    table.append(data)
    assert same_rows(table, pc.field("part") == 0.1, "part = 0.1") == 1
    path = zb.dataset(table).files[0]
    pq.write_table(pq.ParquetFile(path).read().drop_columns(["part"]), path)
    with pytest.raises(SourceError, match="does not keep exactly"):
        zb.dataset(table)


# Schemas that changed


def test_widened_columns_are_read_and_indexed(catalog):
    def data(first, *, wide):
        numbers = range(first, first + 50)
        return pa.table(
            {
                "i": pa.array(numbers, pa.int64() if wide else pa.int32()),
                "f": pa.array([n / 4 for n in numbers], pa.float64() if wide else pa.float32()),
                "d": pa.array(map(Decimal, numbers), pa.decimal128(18 if wide else 9, 2)),
            }
        )

    table = catalog.create_table("n.t", schema=data(0, wide=False).schema)
    table.append(data(0, wide=False))
    zb.dataset(table).create_scalar_index("i")
    with table.update_schema() as update:
        update.update_column("i", field_type=LongType())
        update.update_column("f", field_type=DoubleType())
        update.update_column("d", field_type=DecimalType(18, 2))
    table.append(data(50, wide=True))
    zb.dataset(table).create_scalar_index(["i", "f", "d"])
    for number in (0, 3, 49, 50, 99):
        assert same_rows(table, pc.field("i") == number, f"i = {number}") == 1
        assert same_rows(table, pc.field("f") == number / 4, f"f = {number / 4}") == 1
        assert same_rows(table, pc.field("d") == Decimal(number), f"d = {number}") == 1


def test_an_index_is_not_used_after_its_column_is_widened(catalog):
    data = pa.table({"i": pa.array(range(9), pa.int32())})
    table = catalog.create_table("n.t", schema=data.schema)
    table.append(data)
    zb.dataset(table).create_scalar_index("i")
    with table.update_schema() as update:
        update.update_column("i", field_type=LongType())
    with pytest.warns(IndexNotUsedWarning):
        assert zb.dataset(table).to_table(filter="i = 5").to_pylist() == [{"i": 5}]


def test_struct_fields_that_were_added_later_are_null_in_older_files(catalog):
    data = pa.table({"id": [1, 2], "s": [{"a": 1}, {"a": 2}]})
    table = catalog.create_table("n.t", schema=data.schema)
    table.append(data)
    with table.update_schema() as update:
        update.add_column(("s", "b"), StringType())
    table.append(pa.table({"id": [3], "s": [{"a": 3, "b": "x"}]}))
    zb.dataset(table).create_scalar_index(["id", "s.a", "s.b"])
    for number in (1, 2, 3):
        assert same_rows(table, pc.field("id") == number, f"id = {number}") == 1
        assert same_rows(table, pc.field("s", "a") == number, f"s.a = {number}") == 1
    assert same_rows(table, pc.field("s", "b") == "x", "s.b = 'x'") == 1

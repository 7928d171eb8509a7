"""Test what a receipt proves, and that it survives whatever happens after the commit."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.changed_tables import KINDS, SCHEMA
from support.seams import replace_function
from support.snapshot_rows import in_order

import zonebloom as zb


@pytest.fixture(params=list(KINDS))
def table(request, tmp_path):
    (tmp_path / "lake").mkdir()
    table = KINDS[request.param](random.Random(1), tmp_path, is_partitioned=False)
    for _ in range(2):
        table.append(table.new_rows(30))
    return table


def with_other_value(rows: pa.Table) -> pa.Table:
    return with_values(rows, "num", lambda row: (row[3] + 100, row[4]))


def with_swapped_keys(rows: pa.Table) -> pa.Table:
    return with_values(rows, "id", lambda row: (row[4], row[3]))


def with_values(rows: pa.Table, name: str, change: Any) -> pa.Table:
    """Change the values of a column in two rows. Files may have another name for the column."""
    number = SCHEMA.names.index(name)
    values = rows[number].to_pylist()
    values[3:5] = change(values)
    field = rows.schema.field(number)
    return rows.set_column(number, field, pa.array(values, field.type))


DAMAGES = {
    "a value of the batch": (with_other_value, "do not have the values of the batch"),
    "swapped keys": (with_swapped_keys, "do not have the values of the batch"),
    "a row twice": (
        lambda rows: pa.concat_tables([rows.slice(1), rows.slice(3, 1)]),
        "4 of these rows hold a key, and not those 3 that should",
    ),
    "a lost row": (lambda rows: rows.slice(1), "the new files hold 31 rows, and not 32"),
    "nothing": (lambda rows: rows, ""),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_upsert_is_proven_by_the_keys_and_values_of_its_rows(table, damage, monkeypatch):
    write = pq.ParquetWriter.write_table
    damages = [DAMAGES[damage][0]]

    def write_damaged(self, rows, **options):
        # The first row group that is written has the changed row.
        write(self, damages.pop()(rows) if damages else rows, **options)

    replace_function(monkeypatch, pq.ParquetWriter, "write_table", write_damaged)
    ds = zb.dataset(table.load(), **table.options)
    changed = {**table.rows[3], "s": "changed", "n": {"a": 1, "l": [None]}}
    verification = ds.upsert(table.table([changed, *table.new_rows(2)]), on="id").verification
    assert verification is not None and not damages
    problem = DAMAGES[damage][1]
    assert verification.is_proven == (not problem)
    assert problem in verification.problem


def test_a_receipt_survives_if_the_new_version_cannot_be_loaded(table, monkeypatch):
    ds = zb.dataset(table.load(), **table.options)
    ds.create_scalar_index("id", "HASH", spark=False)

    # A folder is listed before the change, too.
    num_calls = 2 if isinstance(table, KINDS["folder"]) else 1
    refresh, calls = zb.Dataset.refresh, []

    def fail_after_commit(self):
        calls.append(self)
        if len(calls) == num_calls:
            raise ValueError("the catalog does not answer")
        refresh(self)

    replace_function(monkeypatch, zb.Dataset, "refresh", fail_after_commit)
    receipt = ds.erase("id", [1])
    assert receipt.is_committed and receipt.num_deleted == 1
    assert "neither read nor indexed: the catalog does not answer" in str(receipt)
    assert receipt.traces is not None and "cannot be searched" in str(receipt.traces)
    table.rows = [row for row in table.rows if row["id"] != 1]
    assert in_order(table.read()) == in_order(table.rows)
    assert receipt.check(ds, [1]).is_searched
    assert in_order(ds.to_table()) == in_order(table.rows)


def test_nested_values_that_python_cannot_express_are_compared(tmp_path):
    kind = pa.struct({"x": pa.float64(), "t": pa.timestamp("us"), "n": pa.timestamp("ns")})
    # Python's times end in the year 9999, and have no nanoseconds.
    moments = pa.array([1 << 60], pa.int64())
    values = pa.StructArray.from_arrays(
        [pa.array([math.nan]), moments.cast(pa.timestamp("us")), moments.cast(pa.timestamp("ns"))],
        fields=list(kind),
    )
    folder = tmp_path / "table"
    folder.mkdir()
    pq.write_table(pa.table({"id": [0, 1], "n": pa.nulls(2, kind)}), folder / "0.parquet")
    receipt = zb.dataset(folder).upsert(pa.table({"id": [1], "n": values}), "id")
    assert receipt.verification.is_proven and receipt.num_updated == 1

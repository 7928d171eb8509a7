"""Test the files that changes write: their keys of all types, and the options of their writers."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import FIXED_TYPES, PLAIN_TYPES, sample

import zonebloom as zb


def gather(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return rows by number. PyArrow cannot take views by number."""
    return pa.concat_tables([table.slice(row, 1) for row in rows.tolist()]).combine_chunks()


def distinct_values(kind: pa.DataType) -> pa.Array:
    """Return values as Parquet holds them, without NaN and zeros of either sign."""
    array, encoded = sample(kind, 60, nulls=0)
    if pa.types.is_decimal(kind) or kind == pa.timestamp("s"):
        # Not all bytes are values of the type, or of Parquet's.
        numbers = range(-30, 30)
        made = [Decimal(number) for number in numbers] if pa.types.is_decimal(kind) else numbers
        array = pa.array(made, kind)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"k": array}), sink)
    array = pq.read_table(pa.BufferReader(sink.getvalue()))["k"].combine_chunks()
    if kind in FIXED_TYPES:
        values = array.buffers()[1].to_pybytes()
        width = kind.byte_width
        encoded = [values[start : start + width] for start in range(0, len(array) * width, width)]
    first = list(dict(zip(reversed(encoded), reversed(range(len(encoded))), strict=True)).values())
    array = gather(pa.table([array], ["k"]), np.array(sorted(first)))["k"].combine_chunks()
    if pa.types.is_floating(kind):
        numbers = array.to_numpy(zero_copy_only=False)
        array = array.filter(pa.array(~np.isnan(numbers) & (numbers != 0)))
    return array


def in_order(folder) -> pa.Table:
    table = pq.read_table(folder)
    return gather(table, np.argsort(table["number"].to_numpy()))


@pytest.mark.many
@pytest.mark.parametrize("kind", PLAIN_TYPES, ids=str)
def test_keys_of_each_type_are_updated_and_inserted(tmp_path, kind):
    values = distinct_values(kind)
    count = len(values)
    numbers = np.arange(count)
    rows = pa.table(
        {"k": values, "number": numbers, "half": pa.array(numbers % 2, pa.int8()), "x": numbers * 0}
    )
    pq.write_table(rows[: count // 4], tmp_path / "0.parquet")
    pq.write_table(rows[count // 4 : count // 2], tmp_path / "1.parquet", row_group_size=4)
    ds = zb.dataset(tmp_path)
    for index_kind in ("HASH", "BLOOMFILTER"):
        ds.create_scalar_index("k", index_kind, name=index_kind, spark=False)
    batch = rows[count // 4 :].set_column(3, "x", pa.array(np.ones(count - count // 4, np.int64)))
    for on, x in (("k", 1), (["k", "half"], 2)):
        batch = batch.set_column(3, "x", pa.array(np.full(batch.num_rows, x)))
        receipt = ds.upsert(batch, on=on)
        inserted = count - count // 2 if x == 1 else 0
        assert (receipt.num_updated, receipt.num_inserted) == (batch.num_rows - inserted, inserted)
        assert receipt.verification is not None and receipt.verification.is_proven
        found = in_order(tmp_path)
        assert found["number"].to_pylist() == list(range(count))
        assert found["k"].combine_chunks().equals(values)
        assert found["x"].to_pylist() == [0] * (count // 4) + [x] * batch.num_rows
        assert zb.dataset(tmp_path).to_table().num_rows == count
    receipt = ds.erase("k", gather(pa.table([values], ["k"]), numbers[::2])["k"])
    assert receipt.num_deleted == len(numbers[::2])
    found = in_order(tmp_path)
    assert found["number"].to_pylist() == numbers[1::2].tolist()


def many_rows(count: int = 1000) -> pa.Table:
    numbers = np.arange(count)
    moment = dt.datetime(2026, 1, 1)
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "7"})
    return pa.table(
        [
            numbers,
            [f"text {number % 7}" for number in numbers],
            numbers * 0.5,
            [moment + dt.timedelta(seconds=int(number)) for number in numbers],
            [[int(number)] * (number % 3) for number in numbers],
        ],
        schema=pa.schema(
            [
                field,
                pa.field("s", pa.dictionary(pa.int32(), pa.string())),
                pa.field("x", pa.float64()),
                pa.field("t", pa.timestamp("us")),
                pa.field("l", pa.list_(pa.int64())),
            ],
            metadata={"owner": "somebody"},
        ),
    )


LEAVES = ["id", "s", "x", "t", "l.list.element"]
OPTIONS = {
    "plain": {"compression": "none", "use_dictionary": False, "version": "1.0"},
    "by column": {
        "compression": dict.fromkeys(LEAVES, "zstd") | {"x": "gzip"},
        "use_dictionary": ["s"],
        "column_encoding": {"x": "BYTE_STREAM_SPLIT", "id": "DELTA_BINARY_PACKED"},
        "row_group_size": 300,
    },
    "pages": {"write_page_index": True, "max_rows_per_page": 50, "row_group_size": 400},
    "int96": {"use_deprecated_int96_timestamps": True, "store_schema": False},
    "filters": {"bloom_filter_options": {"id": {"ndv": 500}, "s": True}},
    "sorted": {"sorting_columns": [pq.SortingColumn(0)], "data_page_version": "2.0"},
}


def described(path) -> dict:
    """Return what a footer says of the options of its writer."""
    file = pq.ParquetFile(path)
    metadata = file.metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return {
        "rows": [group.num_rows for group in groups[:-1]],
        "sorting": [group.sorting_columns for group in groups],
        "chunks": [
            [
                (
                    chunk.path_in_schema,
                    chunk.compression,
                    chunk.has_dictionary_page,
                    set(chunk.encodings),
                    chunk.physical_type,
                    chunk.has_offset_index,
                    chunk.has_column_index,
                    chunk.bloom_filter_length,
                )
                for chunk in map(group.column, range(metadata.num_columns))
            ]
            for group in groups
        ],
        "format": metadata.format_version,
        "schema": file.schema.to_arrow_schema(),
        "field ids": [field.metadata for field in file.schema_arrow],
        # The schema is compared above.
        "metadata": {**metadata.metadata, b"ARROW:schema": b""} if metadata.metadata else None,
    }


def first_rows(pages, leaf: int) -> list[int] | None:
    located = pages.locations(0, leaf)
    return None if located is None else located.first_rows.tolist()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_a_new_file_is_written_like_the_one_it_replaces(tmp_path, options):
    path = tmp_path / "0.parquet"
    rows = many_rows()
    pq.write_table(rows, path, **options)
    before = described(path)
    ds = zb.dataset(tmp_path)
    # The index knows the pages of a file.
    ds.create_scalar_index("id", spark=False)
    pages = ds.opened.look().pages(ds.opened.look().fragments[0])
    old = pq.read_table(path)
    changed = old.slice(3, 1).set_column(2, "x", pa.array([-1.0]))
    assert ds.upsert(changed, on="id").num_updated == 1
    assert described(path) == before
    new = pq.read_table(path)
    assert new.schema.equals(old.schema, check_metadata=True)
    assert new["x"].to_pylist() == [*old["x"].to_pylist()[:3], -1.0, *old["x"].to_pylist()[4:]]
    assert new.drop_columns("x").equals(old.drop_columns("x"))
    if "max_rows_per_page" in options:
        again = ds.opened.look().pages(ds.opened.look().fragments[0])
        for leaf in range(len(LEAVES)):
            assert first_rows(pages, leaf) == first_rows(again, leaf)
    # Rows with new keys get a file with the same codecs.
    assert ds.upsert(changed.set_column(0, "id", pa.array([5000])), on="id").num_inserted == 1
    [added] = [file for file in tmp_path.glob("*.parquet") if file != path]
    assert [chunk[1] for chunk in described(added)["chunks"][0]] == [
        chunk[1] for chunk in before["chunks"][0]
    ]
    assert ds.erase("id", [10, 11]).num_deleted == 2
    assert described(path)["chunks"][0] == before["chunks"][0]
    assert sum(pq.read_table(path)["id"].to_pylist()) == sum(range(1000)) - 21


def test_a_file_is_called_sorted_only_if_it_is(tmp_path):
    path = tmp_path / "a.parquet"
    numbers = list(range(10))
    rows = pa.table({"id": numbers, "t.x": numbers, "o": numbers})
    batch = pa.table({"id": [1], "t.x": [99], "o": [99]})
    orders = []
    for change, group_rows in (("t.x", 10), ("o", 10), ("new", 10), ("erase", 10), ("erase", 5)):
        order = [pq.SortingColumn(1)]
        pq.write_table(rows, path, sorting_columns=order, row_group_size=group_rows)
        other = tmp_path / "b.parquet"
        pq.write_table(rows.slice(0, 0).append_column("new", pa.array([], pa.int64())), other)
        ds = zb.dataset(tmp_path, schema="union")
        if change == "erase":
            # Row groups are filled again, and each was sorted for itself.
            receipt = ds.erase("id", [1])
        else:
            given = batch.append_column("new", batch["id"])
            receipt = ds.upsert(given, on="id", columns=[change])
        assert receipt.is_committed
        orders.append(pq.read_metadata(path).row_group(0).sorting_columns)
    assert list(map(len, orders)) == [0, 1, 0, 1, 0]


def test_files_of_iceberg_keep_their_field_ids(tmp_path):
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("n")
    rows = many_rows(100).set_column(1, "s", many_rows(100)["s"].cast(pa.string()))
    rows = rows.cast(pa.schema([field.remove_metadata() for field in rows.schema]))
    table = catalog.create_table("n.t", rows.schema)
    table.append(rows)

    def ids(table) -> list:
        [task] = table.scan().plan_files()
        schema = pq.ParquetFile(task.file.file_path.removeprefix("file://")).schema
        return [str(schema), task.file.lower_bounds.keys(), task.file.null_value_counts]

    before = ids(table)
    zb.dataset(table).upsert(rows[3:5].set_column(2, "x", pa.array([-1.0, -2.0])), on="id")
    after = ids(table)
    assert after[0].partition("\n")[2] == before[0].partition("\n")[2]
    assert after[1:] == before[1:]
    assert table.scan().to_arrow().num_rows == 100

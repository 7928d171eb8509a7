"""Test tables in memory as datasets."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest
from support.e2e_helpers import assert_equals_pyarrow, build

import zonebloom as zb
from zonebloom import errors

ID = pc.field("id")


def chunked(chunks: int, rows: int) -> pa.Table:
    parts = [
        pa.table({"id": range(rows * i, rows * i + rows), "s": [f"s{i}"] * rows})
        for i in range(chunks)
    ]
    return pa.concat_tables([*parts, parts[0].slice(0, 0)])


@pytest.mark.parametrize(("chunks", "rows"), [(1, 1000), (7, 33), (500, 2)])
def test_rows_equal_those_of_pyarrow(chunks: int, rows: int) -> None:
    table = chunked(chunks, rows)
    ds = zb.dataset(table)
    build(ds, "id", number_of_items=50)
    source = pads.dataset(table)
    for expression in (ID == 65, ID.isin([0, 1, 64, 66, 199]), ID >= 10, ID == -1):
        for columns in (None, ["s"], [], {"t": pc.field("s")}):
            assert_equals_pyarrow(ds, source, expression, expression, columns)


@pytest.mark.parametrize(
    "table",
    [
        pa.schema({"id": pa.int64()}).empty_table(),
        pa.table({"id": pa.array([], pa.int64())}),
        pa.table({"id": pa.chunked_array([], pa.int64())}),
    ],
)
def test_tables_without_rows_can_be_searched(table: pa.Table) -> None:
    ds = zb.dataset(table)
    build(ds, "id")
    assert ds.to_table(filter=ID == 3).equals(table)
    assert ds.count_rows() == 0


def test_rows_of_all_chunks_are_counted_searched_and_taken() -> None:
    table = pa.concat_tables([pa.table({"id": range(first, first + 50)}) for first in (0, 50, 100)])
    assert table.column("id").num_chunks == 3
    ds = zb.dataset(table)
    for _ in ("without an index", "with an index"):
        assert ds.count_rows() == len(ds) == 150
        assert len(ds.search("id > 7").at_most) == 150
        assert ds.take([149, 0])["id"].to_pylist() == [149, 0]
        assert ds.take_rows([149, 0])["id"].to_pylist() == [149, 0]
        assert len(next(iter(ds.get_fragments(pc.field("id") == 149))).to_table()) >= 1
        build(ds, "id", number_of_items=10)


def test_nulls_within_a_dictionary_are_found() -> None:
    words = pa.DictionaryArray.from_arrays(
        pa.array([0, 1] * 500, pa.int8()), pa.array(["a", None], pa.string())
    )
    table = pa.table({"k": words})
    ds = zb.dataset(table)
    build(ds, "k", number_of_items=100)
    for expression in (pc.field("k") == "a", pc.field("k").is_null(), pc.field("k").is_valid()):
        assert_equals_pyarrow(ds, pads.dataset(table), expression, expression)


def test_an_index_dir_raises() -> None:
    with pytest.raises(errors.InvalidArgument, match="index_dir"):
        zb.dataset(chunked(1, 10), index_dir="/somewhere")

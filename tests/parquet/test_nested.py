"""Test that kernels read lists, maps and structs as pyarrow does, and refuse contradictions."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import footers
from support.parquet_helpers import (
    File,
    check_file,
    random_value,
    rows_by_nested_reader,
    same,
    sample,
    sliced,
    written,
)

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import nested_kernels, thrift
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.page_table import PAGE


@pytest.mark.parametrize("kind", ["list", "struct"])
@pytest.mark.parametrize("name", ["array", "x_tuple", "bag"])
def test_lists_of_older_writers_are_read(tmp_path: Path, name: str, kind: str):
    """The name of the repeated group decides whether it is the item itself."""
    item = pa.struct([("a", pa.int32())]) if kind == "struct" else pa.list_(pa.int32())
    path = tmp_path / "a.parquet"
    table = pa.table({"x": sample(pa.list_(item), 300, random.Random(0))})
    path.write_bytes(written(table, store_schema=False))

    def rename(footer: footers.Fields) -> None:
        # The elements are the root, `x`, and its repeated group.
        repeated = footer[2][1][1][2]
        repeated[4] = thrift.BINARY, name.encode()

    footers.rewrite(path, rename)
    kinds = pq.read_schema(path).field("x").type
    assert (kinds.value_type == pa.list_(pa.int32())) == (kind == "list" and name == "bag")
    check_file(path.read_bytes())


def test_rows_that_span_pages_are_read():
    rows = [list(range(start, start + 500)) for start in range(40)]
    table = pa.table({"x": pa.array(rows)})
    data = written(
        table,
        write_page_index=False,
        data_page_version="1.0",
        data_page_size=256,
        write_batch_size=100,
        use_dictionary=False,
    )
    file = check_file(data)
    assert file.walked(0, 0) is None
    wanted = RowRanges([(3, 4), (39, 40)])
    assert file.rows(0, wanted, file.nowhere)[0].to_pylist() == [rows[3], rows[39]]


PAIR = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])
REQUIRED = [
    pa.field("x", PAIR, nullable=False),
    pa.field("x", PAIR),
    pa.field("x", pa.list_(pa.field("element", PAIR, nullable=False)), nullable=False),
    pa.field("x", pa.map_(pa.int32(), pa.field("value", PAIR, nullable=False))),
    pa.field("x", pa.list_(pa.field("element", pa.int64(), nullable=False), 2), nullable=False),
]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("field", REQUIRED, ids=str)
def test_required_fields_are_read(field: pa.Field, version: str):
    rng = random.Random(0)
    values = pa.array([random_value(field, rng, 0.3, 3) for _ in range(400)], field.type)
    table = pa.Table.from_arrays([values], schema=pa.schema([field]))
    check_file(written(table, data_page_version=version))


def test_one_row_of_a_list_is_read_from_one_page():
    table = pa.table({"x": sample(pa.list_(pa.int64()), 2000, random.Random(0))})
    file = File(written(table, row_group_size=2000, use_dictionary=False, max_rows_per_page=100))
    pages = file.indexed(0, 0)
    assert pages is not None
    columns = file.rows(0, RowRanges([(250, 251)]))
    assert columns[0].to_pylist() == table["x"].slice(250, 1).to_pylist()
    page = int(np.searchsorted(pages.first_rows, 250, side="right")) - 1
    start, size = pages.starts[page], pages.sizes[page]
    assert file.requests == [(start, start + size)]


def test_leaves_with_other_lists_are_refused():
    """Items of a list of structs belong together only if all leaves have the same lists."""
    pair = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.int64())])
    item = pa.field("element", pair, nullable=False)
    structs = pa.array([[{"a": 1, "b": 2}, {"a": 3, "b": 4}], [{"a": 5, "b": 6}]], pa.list_(item))
    schema = File(written(pa.table({"x": structs}))).footer.schema
    for second, is_refused in (([[2, 4], [6]], False), ([[2], [4, 6]], True)):
        file = File(written(pa.table({"a": [[1, 3], [5]], "b": second})))
        pages = FilePages(schema, file.footer.row_groups)
        rows = RowRanges([(0, 2)])
        if is_refused:
            with pytest.raises(FragmentUnreadable, match="contradict"):
                rows_by_nested_reader(file, pages, 0, rows)
        else:
            assert rows_by_nested_reader(file, pages, 0, rows)[0].to_pylist() == structs.to_pylist()


def test_levels_that_contradict_one_another_are_refused():
    """A slot cannot continue a list that is empty."""
    pages = np.zeros(1, dtype=PAGE)
    # Levels in RLE: runs of one value, each with its length and its value.
    runs = {"repetition": [(1, 0), (1, 1)], "definition": [(1, 1), (1, 3)]}
    encoded = [
        bytes(b for length, value in part for b in (length << 1, value)) for part in runs.values()
    ]
    data = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    pages["num_rows"], pages["num_slots"] = 1, 2
    pages["level_bytes"], pages["body_start"] = len(encoded[0]), data.size
    arguments = pages, 3, np.array([0, 2]), 2, np.array([0])
    assert nested_kernels.read_slots(data, *arguments)[0] == nested_kernels.DAMAGED
    # The first slot is a null item now, and not an empty list.
    sound = data.copy()
    sound[5] = 2
    num_nulls, counts, *_, slots = nested_kernels.read_slots(sound, *arguments)
    assert (num_nulls, slots.tolist()) == (1, [0, 1])
    assert counts.tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]


class Tagged(pa.ExtensionType):
    """An extension type over a struct."""

    def __init__(self) -> None:
        super().__init__(pa.struct([("a", pa.int32()), ("b", pa.string())]), "zonebloom.tagged")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Tagged:
        return cls()


def test_extension_types_at_any_depth_are_read():
    pa.register_extension_type(Tagged())
    try:
        kind = Tagged()
        storage = sample(kind.storage_type, 300, random.Random(0))
        tagged = pa.ExtensionArray.from_storage(kind, storage)
        offsets = pa.array(range(0, 301, 3), pa.int32())
        for array in (tagged, pa.ListArray.from_arrays(offsets, tagged)):
            data = written(pa.table({"x": array}))
            whole = pq.read_table(io.BytesIO(data))
            assert whole["x"].type == array.type
            rows = RowRanges([(5, 6), (70, 90)])
            values = File(data).rows(0, rows)[0]
            assert same(values, sliced(whole["x"], rows))
    finally:
        pa.unregister_extension_type("zonebloom.tagged")


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_a_required_leaf_of_structs_that_are_all_null_is_read(kind: pa.DataType):
    """The leaf stores no value. Arrays of dictionary type are left to pyarrow."""
    struct = pa.struct([pa.field("a", kind, nullable=False)])
    data = written(pa.table({"x": pa.array([None] * 50, struct)}))
    columns = File(data).rows(0, RowRanges([(7, 9)]))
    assert (0 in columns) == (kind == pa.string())
    if columns:
        assert columns[0].to_pylist() == [None, None]
        assert columns[0].type == struct


def test_dictionaries_are_those_of_the_chunk():
    """Equal dictionary arrays have the same dictionary, so rows get all of pyarrow's."""
    kind = pa.dictionary(pa.int16(), pa.string())
    table = pa.table({"x": sample(kind, 600, random.Random(0))})
    data = written(table)
    whole = pq.read_table(io.BytesIO(data))
    values = File(data).rows(0, RowRanges([(10, 12)]))[0]
    assert values.equals(whole["x"].slice(10, 2))

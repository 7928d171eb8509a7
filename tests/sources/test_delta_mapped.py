"""Compare Delta tables with deletion vectors and column mapping with deltalake's own scan."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.delta_by_hand import MappedTable, add, commit, metadata, protocol
from support.snapshot_rows import check_reads, in_order

import zonebloom as zb
from zonebloom.errors import (
    FragmentUnreadable,
    IndexNotUsedWarning,
    InvalidArgument,
    SchemaMismatch,
)

SMALL = {"row_group_size": 64, "max_rows_per_page": 16, "write_page_index": True}
SOUGHT = [3, 40, 41, 170, 999_999]


def theirs(path) -> pa.Table:
    """Return the rows that deltalake reads."""
    return pa.table(DeltaTable(path).scan().read_all())


def open_table(path) -> zb.Dataset:
    return zb.dataset(DeltaTable(path))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table"


@pytest.fixture(params=["name", "id"])
def mapped(path, request):
    """Return an indexed table of two files with 200 rows under physical names."""
    table = MappedTable(path, request.param)
    inner = (
        {"type": "struct", "fields": [table.field("a", "long"), table.field("b", "string")]}
        for _ in range(3)
    )
    items = {"type": "array", "elementType": next(inner), "containsNull": True}
    values = {"type": "map", "keyType": "string", "valueType": next(inner)}
    values["valueContainsNull"] = True
    kinds = {"id": "long", "key": "string", "x": "double", "s": next(inner)}
    kinds |= {"l": items, "m": values}
    table.set_fields([table.field(name, kind) for name, kind in kinds.items()])
    for first in (0, 200):
        table.append([row(number) for number in range(first, first + 200)], **SMALL)
    open_table(path).create_scalar_index(["id", "key", "s.a"], number_of_items=16)
    return table


def row(number):
    inner = {"a": number, "b": f"b {number}"}
    return {
        "id": number,
        "key": None if number % 7 == 0 else f"key {number}",
        "x": number / 2,
        "s": None if number % 11 == 0 else inner,
        "l": [inner, None] if number % 3 else [],
        "m": {f"k{number}": inner},
    }


def check(table, sought=SOUGHT) -> zb.Dataset:
    """Check that every way of reading returns the rows that deltalake scans."""
    ds = open_table(table.path)
    check_reads(ds, theirs(table.path), sought)
    return ds


def test_columns_are_identified_by_names_or_ids(mapped):
    ds = check(mapped)
    assert ds.schema.names == ["id", "key", "x", "s", "l", "m"]
    assert ds.to_table(filter="id = 41").to_pylist() == [
        {**row(41), "m": [("k41", {"a": 41, "b": "b 41"})]}
    ]
    counts = []
    for text in ("key = 'key 170'", "s.a = 170", "s.b = 'b 170'", "id = 170"):
        ds.scanner(filter=text, scan_stats_callback=counts.append).to_table()
        assert counts[-1].rows_found == 1
        if "s.b" not in text:
            assert counts[-1].rows_read == 16 and not counts[-1].whole_row_groups
    assert ds.validate_index("s.a_idx", sample="all").zones_read == 26


def renamed(fields, old, new):
    """Return the fields with a name replaced at any depth."""
    if isinstance(fields, list):
        return [renamed(field, old, new) for field in fields]
    if not isinstance(fields, dict):
        return fields
    new_fields = {k: v if k == "metadata" else renamed(v, old, new) for k, v in fields.items()}
    if new_fields.get("name") == old and "metadata" in new_fields:
        new_fields["name"] = new
    return new_fields


@pytest.mark.slow
def test_renamed_columns_keep_their_values_and_index(mapped):
    fields = renamed(mapped.fields, "key", "other")
    mapped.set_fields(renamed(renamed(fields, "a", "z"), "x", "key"))
    ds = check(mapped)
    assert ds.schema.names == ["id", "other", "key", "s", "l", "m"]
    assert ds.schema.field("s").type.names == ["z", "b"]
    # Indices follow their renamed columns.
    assert [index.column for index in ds.describe_indices()] == ["id", "other", "s.z"]
    for text in ("other = 'key 41'", "s.z = 41"):
        plan = ds.scanner(filter=text).plan()
        assert plan.indices[0].kept_zones == 1
        assert ds.count_rows(text) == 1
    assert ds.count_rows("key = 20.5") == 1
    assert not ds.scanner(filter="key = 20.5").plan().indices
    assert not ds.optimize.optimize_indices(spark=False)[0].fragments_added
    assert "sound" in str(ds.validate_index("key_idx", sample="all"))
    mapped.append([{"id": 1000, "other": "key 1000", "s": {"z": 1000, "b": ""}}])
    ds = open_table(mapped.path)
    ds.optimize.optimize_indices(spark=False)
    ds = check(mapped, [1000, *SOUGHT])
    assert ds.count_rows("s.z IN (41, 1000)") == ds.count_rows("other IN ('key 41', 'key 1000')")


@pytest.mark.slow
def test_a_column_that_is_dropped_and_added_again_is_another_column(mapped):
    without = [field for field in mapped.fields if field["name"] != "key"]
    mapped.set_fields(without)
    assert "key" not in check(mapped).schema.names
    mapped.set_fields([*without, mapped.field("key", "string")])
    ds = check(mapped)
    with pytest.warns(IndexNotUsedWarning, match="another column of its name"):
        assert ds.count_rows("key = 'key 41'") == 0
    with pytest.warns(IndexNotUsedWarning):
        assert ds.count_rows("key IS NULL") == 400
    mapped.append([{"id": 1000, "key": "key 41"}])
    with pytest.raises(SchemaMismatch, match="another column"):
        ds.optimize.optimize_indices(["key_idx"])
    ds = open_table(mapped.path)
    ds.create_scalar_index("key", number_of_items=16)
    assert ds.count_rows("key = 'key 41'") == 1
    assert ds.scanner(filter="key = 'key 41'").plan().indices


@pytest.mark.slow
@pytest.mark.parametrize("in_file", [False, True])
def test_deletion_vectors_hide_rows(mapped, in_file):
    first, second = mapped.adds
    before = open_table(mapped.path)
    old_candidates = before.search("id = 41").at_most
    mapped.delete(first, [0, 41, 63, 64, 199], in_file)
    ds = check(mapped)
    assert ds.describe_indices()[0].num_fragments_indexed == 2
    assert ds.count_rows() == 395 and ds.count_rows("id = 41") == 0
    searched = ds.search("id = 41")
    assert searched.at_most == old_candidates & searched.universe != old_candidates
    assert "deleted rows: 5 left out" in ds.scanner().explain_plan()
    assert "deleted rows: 1 left out" in ds.scanner(filter="id = 40").analyze_plan()
    [fragment_id] = before.search("id = 41").to_table()["fragment_id"].to_pylist()
    with pytest.raises(InvalidArgument, match=r"row 41 of fragment .* has deleted it"):
        ds.take_rows([(fragment_id << 32) + 40, (fragment_id << 32) + 41])
    # The open dataset keeps its snapshot until it is refreshed.
    assert before.count_rows("id = 41") == 1
    mapped.delete(second, range(200), in_file)
    assert check(mapped).count_rows() == 195
    mapped.delete(first, range(200), in_file)
    assert check(mapped).to_table().num_rows == 0
    assert open_table(mapped.path).validate_index("id_idx", sample="all").zones_read == 26


def test_a_refresh_sees_rows_deleted_from_the_same_files(mapped):
    table = DeltaTable(mapped.path)
    ds = zb.dataset(table)
    frame = ds.to_polars()
    assert ds.count_rows("id = 41") == frame.collect().height - 399
    mapped.delete(next(iter(mapped.adds)), [41])
    table.update_incremental()
    ds.refresh()
    assert ds.count_rows("id = 41") == 0
    assert frame.collect().height == 399


def test_arrow_datasets_pickle(mapped):
    mapped.delete(next(iter(mapped.adds)), [41])
    arrow = pickle.loads(pickle.dumps(open_table(mapped.path)))
    assert in_order(arrow.to_table()) == in_order(theirs(mapped.path).cast(arrow.schema))
    # PyArrow alone would return other rows than the table has.
    with pytest.raises(OSError, match="unindexed"):
        arrow.children[0].to_table()
    (fragment, _) = arrow.get_fragments()
    with pytest.raises(InvalidArgument, match="differs from what the table has"):
        _ = fragment.metadata


def test_partition_columns_have_physical_names(path):
    table = MappedTable(path, "name", ["part"])
    table.set_fields([table.field(*field) for field in (("id", "long"), ("part", "string"))])
    names = [
        table.append([{"id": 10 * number + n, "part": part} for n in range(10)])
        for number, part in enumerate(["a b", "x/y", None])
    ]
    open_table(path).create_scalar_index("id")
    table.partitioned_by = ["piece"]
    table.set_fields(renamed(table.fields, "part", "piece"))
    table.delete(names[1], [5])
    ds = check(table, [5, 15, 16, 25])
    assert ds.count_rows("piece = 'x/y'") == 9
    assert ds.count_rows("piece IS NULL AND id = 25") == 1
    located = ds.locate(["id", "piece"], {"id": [15, 16], "piece": ["x/y", "x/y"]})
    assert located["row"].to_pylist() == [None, 6]


def test_files_without_field_ids_raise_in_id_mode(path):
    path.mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3]}), path / "a.parquet")
    inner = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "id"}
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": inner}]
    commit(
        path,
        protocol("columnMapping"),
        metadata(fields, **{"delta.columnMapping.mode": "id"}),
        add(path / "a.parquet", "a.parquet"),
    )
    with pytest.raises(FragmentUnreadable, match="no field ids"):
        zb.dataset(DeltaTable(path)).to_table()


def test_row_groups_that_only_pyarrow_reads_have_the_tables_names(mapped):
    """Kernels do not read Brotli, so a row group is read whole, under the table's names."""
    rows = [row(number) for number in range(200)]
    mapped.append(rows, removed=list(mapped.adds), **{**SMALL, "compression": "brotli"})
    open_table(mapped.path).optimize.optimize_indices(spark=False)
    mapped.delete(next(iter(mapped.adds)), [41])
    fields = renamed(renamed(mapped.fields, "id", "?"), "x", "id")
    mapped.set_fields(renamed(fields, "?", "x"))
    ds = open_table(mapped.path)
    assert in_order(ds.to_table()) == in_order(theirs(mapped.path).cast(ds.schema))
    assert [ds.count_rows(f"x = {value}") for value in (40, 41)] == [1, 0]

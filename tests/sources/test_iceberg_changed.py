"""Compare Iceberg tables with deletes and changed columns with rows in memory and pyiceberg.

pyiceberg does not read all of these tables.
"""

from __future__ import annotations

import json
import math
import pathlib
import pickle
import random
import tracemalloc

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import StaticTable
from pyiceberg.types import IntegerType, StringType
from pyroaring import BitMap64
from support.e2e_helpers import CountingFileSystem
from support.iceberg_by_hand import (
    add_delete_file,
    delete_by_vector,
    delete_equal,
    delete_positions,
)
from support.snapshot_rows import check_reads

import zonebloom as zb
from zonebloom.errors import (
    FragmentUnreadable,
    IndexNotUsedWarning,
    SourceError,
    StaleIndexWarning,
)

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "key": pa.string(),
        "part": pa.string(),
        "x": pa.float64(),
        "s": pa.struct({"a": pa.int64(), "b": pa.string()}),
        "l": pa.list_(pa.struct({"c": pa.int64()})),
    }
)
SOUGHT = [3, 40, 41, 170, 999_999]


def data(first: int, count: int = 200) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "key": [None if number % 7 == 0 else f"key {number}" for number in numbers],
            "part": [f"p {number % 3}" for number in numbers],
            "x": [number / 2 for number in numbers],
            "s": [
                None if number % 11 == 0 else {"a": number, "b": f"b {number}"}
                for number in numbers
            ],
            "l": [[{"c": number}] if number % 3 else [] for number in numbers],
        },
        schema=SCHEMA,
    )


@pytest.fixture
def table(catalog):
    """Return an indexed table of two files with 200 rows."""
    new_table = catalog.create_table("n.t", schema=data(0, 1).schema)
    new_table.append(data(0))
    new_table.append(data(200))
    zb.dataset(new_table).create_scalar_index(["id", "key", "s.a"], number_of_items=16)
    return new_table


def locations(table) -> list[str]:
    return sorted(
        (task.file.file_path for task in table.scan().plan_files()),
        key=lambda path: pq.read_table(path)["id"][0].as_py(),
    )


def check(table, want: pa.Table | None = None, sought=SOUGHT) -> zb.Dataset:
    ds = zb.dataset(table)
    check_reads(ds, table.scan().to_arrow() if want is None else want, sought)
    return ds


def without(table: pa.Table, *ids: int) -> pa.Table:
    return table.filter(~pc.field("id").isin(ids))


# Columns that changed


def test_renamed_columns_keep_their_values_and_index(table):
    with table.update_schema() as update:
        update.rename_column("key", "name")
        update.rename_column("s.a", "z")
        update.rename_column("l.element.c", "d")
        update.move_first("x")
    ds = check(table)
    assert [index.column for index in ds.describe_indices()] == ["id", "name", "s.z"]
    for text in ("name = 'key 41'", "s.z = 41"):
        assert ds.scanner(filter=text).plan().indices[0].kept_zones == 1
        assert ds.count_rows(text) == 1
    renamed_rows = data(400).rename_columns(["id", "name", "part", "x", "s", "l"])
    table.append(renamed_rows.select(ds.schema.names).cast(ds.schema))
    with pytest.warns(StaleIndexWarning):
        ds = check(table)
    assert ds.optimize.optimize_indices(spark=False)[0].fragments_added == 1
    assert ds.count_rows("name IN ('key 41', 'key 401')") == 2


def test_a_column_that_is_dropped_and_added_again_is_another_column(table):
    with table.update_schema() as update:
        update.delete_column("key")
    assert "key" not in check(table).schema.names
    with table.update_schema() as update:
        update.add_column("key", StringType())
    ds = check(table)
    with pytest.warns(IndexNotUsedWarning, match="another column of its name"):
        assert ds.count_rows("key IS NULL") == 400
    ds.create_scalar_index("key", number_of_items=16)
    assert ds.count_rows("key = 'key 41'") == 0
    assert ds.scanner(filter="key = 'key 41'").plan().indices[0].kept_zones == 0


def test_older_files_have_the_initial_default(catalog):
    """Files from before a column was added have its default, also in an index."""
    new_table = catalog.create_table("n.t", schema=data(0, 1).schema)
    new_table.append(data(0))
    with new_table.update_schema() as update:
        update.add_column("new", IntegerType(), default_value=7, required=True)
    added = data(200).append_column(
        pa.field("new", pa.int32(), nullable=False), pa.array(range(200), pa.int32())
    )
    new_table.append(added)
    want = pa.concat_tables(
        [
            data(0).append_column(added.schema.field("new"), pa.array([7] * 200, pa.int32())),
            added,
        ]
    )
    ds = zb.dataset(new_table)
    ds.create_scalar_index(["id", "new"], number_of_items=16)
    ds = check(new_table, want)
    assert ds.count_rows("new = 7") == 201
    assert ds.scanner(filter="new = 8").plan().indices[0].kept_zones == 1
    assert ds.count_rows("new > 190 OR new = 7") == 9 + 201
    assert "sound" in str(ds.validate_index("new_idx", sample="all"))
    assert ds.lookup("new", [7], columns=["id"]).num_rows == 201


def test_files_of_format_version_1(catalog):
    new_table = catalog.create_table(
        "n.t", schema=data(0, 1).schema, properties={"format-version": "1"}
    )
    new_table.append(data(0))
    check(new_table)
    # Columns are identified by their ids, so other names in the file do not matter.
    path = zb.dataset(new_table).files[0]
    stored = pq.ParquetFile(path).read()
    pq.write_table(stored.rename_columns(["id", "key", "old", "x", "s", "l"]), path)
    check(new_table, data(0))


def test_files_without_field_ids(catalog, tmp_path):
    pq.write_table(data(0), tmp_path / "a.parquet")
    new_table = catalog.create_table("n.t", schema=data(0).schema)
    new_table.add_files([(tmp_path / "a.parquet").as_uri()])
    check(new_table)
    with new_table.update_schema() as update:
        update.rename_column("key", "name")
        update.rename_column("s.a", "z")
    ds = check(new_table)
    assert ds.count_rows("name = 'key 41' AND s.z = 41") == 1
    with new_table.transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    with pytest.raises(FragmentUnreadable, match="no field ids"):
        zb.dataset(new_table).to_table()


# Deletes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_many_position_deletes_are_read_once(catalog, tmp_path, seed):
    """Deletes with and without bounds, in any order, apply to files that are not newer."""
    chance = random.Random(seed)
    table = catalog.create_table("n.many", schema=pa.schema({"id": pa.int64()}))
    files = [tmp_path / f"{number}.parquet" for number in range(6)]
    for number, file in enumerate(files):
        pq.write_table(pa.table({"id": range(100 * number, 100 * number + 100)}), file)
    remaining = {}
    for number, file in enumerate(files):
        table.add_files([file.as_uri()])
        remaining[file.as_uri()] = set(range(100 * number, 100 * number + 100))
        for _ in range(4):
            # Some name files that are added later.
            names = sorted(chance.sample(range(6), 3))
            rows = {files[n].as_uri(): chance.choices(range(100), k=5) for n in names}
            bounds = [{2147483546: files[n].as_uri().encode()} for n in (names[0], names[-1])]
            bounds = dict(zip(("lower_bounds", "upper_bounds"), bounds, strict=True))
            delete_positions(table, tmp_path, rows, **(bounds if chance.random() < 0.5 else {}))
            for name, deleted in rows.items():
                if name in remaining:
                    first = 100 * files.index(tmp_path / name.rpartition("/")[2])
                    remaining[name] -= {first + row for row in deleted}
    read = []

    class Recording(CountingFileSystem):
        def open_input_file(self, path):
            if path.endswith("-deletes.parquet"):
                read.append(path)
            return super().open_input_file(path)

    ds = zb.dataset(table, filesystem=Recording().wrapped())
    assert not read
    name, want = chance.choice(list(remaining.items()))
    assert set(ds.to_table(fragments=[name.removeprefix("file://")])["id"].to_pylist()) == want
    want = sorted(set().union(*remaining.values()))
    assert sorted(ds.to_table()["id"].to_pylist()) == want
    assert ds.count_rows() == len(want)
    assert len(read) == len(set(read)) > 0


@pytest.mark.parametrize("cut", [0, 4])
def test_position_deletes_are_read_only_for_paths_in_their_bounds(table, tmp_path, cut):
    """Bounds may be cut off. Positions that lie outside the bounds show which files were read."""
    first, second = sorted(locations(table))[:2]
    bounds = {2147483546: first.encode()[: len(first) - cut]}
    before = zb.dataset(table).to_table()["id"].to_pylist()
    rows = {first: [5, 1, 1], second: [0]}
    delete_positions(table, tmp_path, rows, lower_bounds=bounds, upper_bounds=bounds)
    ids = {
        location: pq.read_table(location.removeprefix("file://"))["id"].to_pylist()
        for location in (first, second)
    }
    hidden = [ids[first][1], ids[first][5]]
    # A bound that is cut off covers both paths if they begin alike.
    if second.startswith(first[: len(first) - cut]):
        hidden.append(ids[second][0])
    ds = zb.dataset(table)
    assert ds.to_table()["id"].to_pylist() == [number for number in before if number not in hidden]
    assert pickle.loads(pickle.dumps(ds)).count_rows() == len(before) - len(hidden)


def test_format_version_3(table, tmp_path):
    """Write metadata of version 3 by hand, because pyiceberg only reads that version."""
    [first, _] = locations(table)
    delete_by_vector(table, tmp_path, first, [41])
    path = pathlib.Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text()) | {"format-version": 3, "next-row-id": 400}
    for entry in metadata["snapshots"]:
        entry |= {"first-row-id": 0, "added-rows": 400}
    path = path.with_name("3.metadata.json")
    path.write_text(json.dumps(metadata))
    newer = StaticTable.from_metadata(path.as_uri())
    assert newer.format_version == 3
    assert check(newer).describe_indices()[0].num_fragments_indexed == 2


def test_a_damaged_deletion_vector_raises(table, tmp_path):
    delete_by_vector(table, tmp_path, locations(table)[0], [41])
    ds = zb.dataset(table)
    [path] = tmp_path.glob("*.puffin")
    content = bytearray(path.read_bytes())
    content[content.rindex(bytes([0xD1, 0xD3, 0x39, 0x64])) + 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(FragmentUnreadable, match="holds no deletion vector"):
        ds.to_table(filter="id = 41")
    path.unlink()
    with pytest.raises(FragmentUnreadable, match="restore the file"):
        zb.dataset(table).count_rows()


@pytest.mark.parametrize("row", [2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_deletion_vector_of_impossible_rows_raises(table, tmp_path, row):
    delete_by_vector(table, tmp_path, locations(table)[0], [41, row])
    with pytest.raises(FragmentUnreadable, match="restore the file"):
        zb.dataset(table).to_table(filter="id = 42")


def test_deleting_billions_of_rows_takes_no_memory(table, tmp_path):
    rows = BitMap64()
    rows.add_range(100, 2**31)
    rows.run_optimize()
    delete_by_vector(table, tmp_path, locations(table)[0], rows)
    tracemalloc.start()
    ids = zb.dataset(table).to_table(["id"])["id"].to_pylist()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sorted(ids) == [*range(100), *range(200, 400)]
    assert peak < 64 << 20


def test_a_deletion_vector_must_lie_within_its_file(table, tmp_path):
    path = tmp_path / "dv.puffin"
    path.write_bytes(bytes(100))
    older = []
    places = [(0, 2**40), (0, 2**62), (2**62, 2**62), (-1, 9), (4, -1), (4, 0), (4, 7)]
    for offset, size in places:
        add_delete_file(
            table,
            path,
            1,
            dropped=older,
            content=DataFileContent.POSITION_DELETES,
            file_format=FileFormat.PUFFIN,
            referenced_data_file=locations(table)[0],
            content_offset=offset,
            content_size_in_bytes=size,
        )
        with pytest.raises(FragmentUnreadable, match=f"vector at byte {offset:,}, where"):
            zb.dataset(table).to_table()
        older = [table.current_snapshot().manifests(table.io)[0].manifest_path]


def test_invalid_position_deletes_raise(table, tmp_path):
    delete_positions(table, tmp_path, {"a": [1]})
    [path] = tmp_path.glob("*-deletes.parquet")
    for columns in (
        {"file_path": ["a"], "pos": [-1]},
        {"file_path": ["a", "a"], "pos": [41, None]},
        {"file_path": ["a", None], "pos": [41, 1]},
        {"file_path": ["a"], "pos": ["first"]},
        {"file_path": ["a"], "pos": [41.5]},
        {"file_path": ["a"], "pos": [[41]]},
        {"file_path": ["a"]},
        {"pos": [41]},
    ):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(FragmentUnreadable, match="restore the file"):
            zb.dataset(table).to_table()


@pytest.mark.slow
def test_equality_deletes_hide_rows(table, tmp_path):
    everything = pa.concat_tables([data(0), data(200)])
    delete_equal(table, tmp_path, {"id": [41, 250, 5000]})
    want = without(everything, 41, 250)
    ds = check(table, want)
    assert "deleted rows: 2 left out" in ds.scanner().explain_plan()
    arrow = pickle.loads(pickle.dumps(ds))
    assert arrow.count_rows() == 398
    # Null equals null, and all columns must be equal.
    delete_equal(table, tmp_path, {"key": [None, "key 40"], "part": ["p 1", "p 0"]})
    deleted_ids = [n for n in range(400) if n % 7 == 0 and n % 3 == 1]
    want = without(want, *deleted_ids)
    assert 40 in check(table, want).to_table()["id"].to_pylist()
    # Rows that are added with the delete or later stay.
    table.append(data(41, 1))
    zb.dataset(table).optimize.optimize_indices(spark=False)
    want = pa.concat_tables([want, data(41, 1)])
    check(table, want)
    delete_equal(table, tmp_path, {"key": ["key 41"]})
    check(table, without(want, 41))


def test_equality_deletes_compare_floats_as_java_does(catalog, tmp_path):
    """Floats compare as in Java: NaN equals NaN, and 0.0 differs from -0.0."""
    values = [0.0, -0.0, math.nan, 1.5, None]
    numbers = pa.table({"id": pa.array(range(5), pa.int64()), "x": values})
    new_table = catalog.create_table("n.t", schema=numbers.schema)
    new_table.append(numbers)
    delete_equal(new_table, tmp_path, {"x": [math.nan, -0.0]})
    assert zb.dataset(new_table).to_table()["id"].to_pylist() == [0, 3, 4]
    delete_equal(new_table, tmp_path, {"x": [None]})
    assert zb.dataset(new_table).to_table()["id"].to_pylist() == [0, 3]


@pytest.mark.slow
def test_deletes_apply_to_their_partition(catalog, tmp_path):
    new_table = catalog.create_table("n.t", schema=data(0, 1).schema)
    new_table.append(data(1000, 30))
    with new_table.update_spec() as update:
        update.add_identity("part")
    for first in (0, 200):
        new_table.append(data(first))
    zb.dataset(new_table).create_scalar_index(["id", "key"], number_of_items=16)
    everything = pa.concat_tables([data(0), data(200), data(1000, 30)])
    # This deletes in partition "p 1" only, which holds 40 but not 41.
    delete_equal(new_table, tmp_path, {"id": [40, 41, 1000]}, partition=("p 1",))
    check(new_table, without(everything, 40))
    delete_equal(new_table, tmp_path, {"part": ["p 1"], "id": [43]}, partition=("p 1",))
    want = without(everything, 40, 43)
    check(new_table, want)
    # Deletes of an unpartitioned spec apply to all partitions.
    delete_equal(new_table, tmp_path, {"id": [41, 1001]}, spec_id=0)
    want = without(want, 41, 1001)
    check(new_table, want)
    # Positions in a file of another partition are ignored.
    ds = zb.dataset(new_table)
    located = ds.locate("id", [3, 4]).to_pylist()
    rows_by_key = {row["key_index"]: row for row in located}
    rows_of = {f"file://{row['path']}": [row["row"]] for row in rows_by_key.values()}
    delete_positions(new_table, tmp_path, rows_of, partition=("p 0",))
    check(new_table, without(want, 3))


def test_a_column_that_became_a_partition_later_keeps_its_index(catalog, tmp_path):
    new_table = catalog.create_table("n.t", schema=data(0, 1).schema)
    new_table.append(data(0))
    zb.dataset(new_table).create_scalar_index(["id", "part"], "HASH", number_of_items=16)
    with new_table.update_spec() as update:
        update.add_identity("id")
    later = data(200, 3)
    new_table.append(later)
    ds = zb.dataset(new_table)
    with pytest.warns(StaleIndexWarning):
        assert set(ds.lookup("id", [3, 201, 999_999])["id"].to_pylist()) == {3, 201}
    ds.optimize.optimize_indices()
    assert "id_idx" in ds.scanner(filter="id = 3").explain_plan()
    check(new_table, pa.concat_tables([data(0), later]), [3, 40, 201, 999_999])


def test_unsupported_tables_raise(table, tmp_path):
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    inner = table.schema().find_field("s.a").field_id
    content = DataFileContent.EQUALITY_DELETES
    add_delete_file(table, path, 1, content=content, equality_ids=[inner])
    with pytest.raises(SourceError, match=r"equality deletes by fields .* rewrite"):
        zb.dataset(table)
    content = DataFileContent.POSITION_DELETES
    add_delete_file(table, path, 1, content=content, file_format=FileFormat.ORC)
    with pytest.raises(SourceError, match="no Parquet file"):
        zb.dataset(table)

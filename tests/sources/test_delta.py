"""Compare Delta Lake tables with what deltalake reads, filtered by brute force."""

from __future__ import annotations

import datetime
import os
import shutil
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.delta_by_hand import add, commit, metadata, protocol
from support.snapshot_rows import in_order, rows

import zonebloom as zb
from zonebloom.errors import (
    FragmentUnreadable,
    InvalidArgument,
    SourceError,
    UnsupportedType,
)

deltalake = pytest.importorskip("deltalake")
from deltalake import DeltaTable, Field, Schema, write_deltalake  # noqa: E402
from deltalake.schema import PrimitiveType  # noqa: E402

NULLABLE = {"nullable": True, "metadata": {}}


def same_rows(path, expression: pc.Expression, text: str, version: int | None = None) -> int:
    """Compare a lookup with brute force over deltalake's rows, and return the number of rows."""
    table = DeltaTable(path, version=version)
    want = table.to_pyarrow_table().filter(expression)
    ds = zb.dataset(table)
    for filter in (expression, text):
        result = ds.to_table(filter=filter)
        assert result.schema == want.schema
        assert in_order(result) == in_order(want)
    assert ds.count_rows(filter=text) == want.num_rows
    return want.num_rows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table"


@pytest.fixture
def indexed(path):
    """Return the path of an indexed table of three commits with one file each."""
    for seed in range(3):
        write_deltalake(path, rows(seed), mode="append")
    zb.dataset(DeltaTable(path)).create_scalar_index(["id", "key"])
    return path


def test_an_older_version_has_its_old_rows(indexed):
    DeltaTable(indexed).delete("id >= 40000")
    assert same_rows(indexed, pc.field("id") == 50_000, "id = 50000") == 0
    assert same_rows(indexed, pc.field("id") == 50_000, "id = 50000", version=2) == 1
    assert same_rows(indexed, pc.field("id") == 50_000, "id = 50000", version=0) == 0
    assert same_rows(indexed, pc.field("id") == 7, "id = 7", version=0) == 1


def test_a_missing_file_of_the_version_is_an_error(indexed):
    ds = zb.dataset(DeltaTable(indexed))
    os.remove(ds.files[1])
    for filter in ("id = 50000", None):
        with pytest.raises(FragmentUnreadable, match="version 2 needs it"):
            ds.to_table(filter=filter)


def test_the_folder_of_a_table_is_refused_because_deleted_rows_would_return(tmp_path):
    write_deltalake(
        tmp_path / "t", pa.table({"id": range(10), "day": ["a", "b"] * 5}), partition_by="day"
    )
    table = DeltaTable(tmp_path / "t")
    table.delete("id = 4")
    for path in ("day=a", "*/*.parquet"):
        with pytest.raises(SourceError, match=r"is a Delta table.*give deltalake\.DeltaTable\("):
            zb.dataset(f"{tmp_path}/t/{path}")
    with pytest.raises(SourceError, match="is a Delta table"):
        zb.dataset(table.file_uris())
    ds = zb.dataset(table)
    ds.create_scalar_index("id", spark=False)
    assert ds.count_rows("id = 4") == 0
    assert ds.count_rows() == 9
    # The expected rows are those that deltalake itself reads.
    assert zb.dataset(table.to_pyarrow_dataset(), index_dir="i").count_rows() == 9


def test_refresh_takes_the_version_the_table_has_loaded(indexed):
    table = DeltaTable(indexed)
    ds = zb.dataset(table)
    before = ds.count_rows()
    write_deltalake(indexed, rows(9, 10), mode="append")
    ds.refresh()
    assert ds.count_rows() == before
    table.update_incremental()
    ds.refresh()
    assert ds.count_rows() == before + 10
    frame = ds.to_polars()
    write_deltalake(indexed, rows(10, 10), mode="append")
    table.update_incremental()
    (outcome,) = [
        index for index in ds.optimize.optimize_indices(spark=False) if index.name == "id_idx"
    ]
    assert outcome.fragments_added == 2
    assert ds.count_rows() == frame.collect().height == before + 20


def test_vacuum_leaves_the_index(indexed):
    DeltaTable(indexed).optimize.compact()
    (indexed / "stray").mkdir()
    (indexed / "stray" / "x.parquet").write_bytes(b"")
    vacuumed = DeltaTable(indexed).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
    )
    assert any("stray" in path for path in vacuumed)
    assert not any("_zonebloom" in path for path in vacuumed)
    assert zb.dataset(DeltaTable(indexed)).version > 0


PARTITIONS = {
    "text": pa.array(["a b", "x/y", "p%20q+#?", "é ü/=", None]),
    "date": pa.array([datetime.date(2020, 2, 29), datetime.date(1969, 1, 1), None] * 2)[:5],
    "seconds": pa.array([0, 1_582_934_400_123_456, -1, None, 1], pa.timestamp("us")),
    "zoned": pa.array([0, 1_582_934_400_123_456, -1, None, 1], pa.timestamp("us", "UTC")),
    "int8": pa.array([1, -128, 127, None, 0], pa.int8()),
    "int32": pa.array([1, -4, 2**31 - 1, None, 0], pa.int32()),
    "int64": pa.array([1, -(2**63), 2**63 - 1, None, 0], pa.int64()),
    "decimal": pa.array(
        [Decimal("1.50"), Decimal("0.07"), Decimal("9" * 8 + ".00"), None, 0], pa.decimal128(10, 2)
    ),
    "boolean": pa.array([True, False, None, True, False]),
    "double": pa.array([1.5, -1e-7, float("inf"), None, 0.1]),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_partition_values_have_the_table_s_type(path, name):
    data = pa.table({"id": range(5), "part": PARTITIONS[name], "key": list("abcde")})
    write_deltalake(path, data, partition_by=["part"])
    ds = zb.dataset(DeltaTable(path))
    want = DeltaTable(path).to_pyarrow_table()
    assert ds.schema == want.schema
    assert in_order(ds.to_table()) == in_order(want) == in_order(data)
    with pytest.raises((InvalidArgument, UnsupportedType)):
        ds.create_scalar_index("part")
    ds.create_scalar_index("id")
    ds = zb.dataset(DeltaTable(path))
    for number, value in enumerate(data["part"]):
        by_part = pc.field("part") == value if value.is_valid else pc.field("part").is_null()
        want = in_order(data.filter(by_part))
        assert in_order(ds.to_table(filter=by_part)) == want
        by_both = by_part & (pc.field("id") == number)
        assert ds.to_table(filter=by_both).to_pylist() == data.slice(number, 1).to_pylist()
    assert ds.count_rows(filter="part IS NULL") == data["part"].null_count


def test_struct_fields_that_were_added_later_are_null_in_older_files(path):
    write_deltalake(path, pa.table({"id": [1, 2], "s": [{"a": 1}, {"a": 2}]}))
    write_deltalake(
        path,
        pa.table({"id": [3, 4], "s": [{"a": 3, "b": "x"}, {"a": 4, "b": "y"}]}),
        mode="append",
        schema_mode="merge",
    )
    ds = zb.dataset(DeltaTable(path))
    ds.create_scalar_index(["id", "s.a", "s.b"])
    for number in range(1, 5):
        assert same_rows(path, pc.field("id") == number, f"id = {number}") == 1
        assert same_rows(path, pc.field("s", "a") == number, f"s.a = {number}") == 1
    assert same_rows(path, pc.field("s", "b") == "y", "s.b = 'y'") == 1


def test_widened_columns_are_read_and_indexed(path):
    """Spark widens a column's type, and older files keep the narrow type."""
    path.mkdir()
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "x", "type": "double", "nullable": True, "metadata": {}},
    ]
    pq.write_table(
        pa.table({"id": pa.array(range(9), pa.int32()), "x": pa.array(range(9), pa.float32())}),
        path / "a.parquet",
    )
    pq.write_table(
        pa.table(
            {"id": pa.array(range(9, 18), pa.int64()), "x": pa.array(range(9, 18), pa.float64())}
        ),
        path / "b.parquet",
    )
    commit(
        path,
        protocol("typeWidening"),
        metadata(fields),
        add(path / "a.parquet", "a.parquet"),
        add(path / "b.parquet", "b.parquet"),
    )
    try:
        ds = zb.dataset(DeltaTable(path))
    except deltalake.exceptions.DeltaError:
        pytest.skip("deltalake does not load such tables")
    ds.create_scalar_index(["id", "x"])
    for number in range(18):
        for text in (f"id = {number}", f"x = {number}.0"):
            assert ds.to_table(filter=text).to_pydict() == {"id": [number], "x": [number]}
    assert ds.count_rows(filter="id = 18") == 0


def test_files_with_a_uri_in_the_log_are_read(path, tmp_path):
    """The log names files outside the table, like that of a shallow clone."""
    path.mkdir()
    far = tmp_path / "far away"
    far.mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), far / "a b.parquet")
    pq.write_table(pa.table({"id": [3]}), path / "c%20d.parquet")
    commit(
        path,
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        metadata([{"name": "id", "type": "long", **NULLABLE}]),
        add(far / "a b.parquet", (far / "a b.parquet").as_uri()),
        add(path / "c%20d.parquet", "c%2520d.parquet"),
    )
    ds = zb.dataset(DeltaTable(path))
    ds.create_scalar_index("id")
    ds = zb.dataset(DeltaTable(path))
    assert sorted(ds.files) == sorted([str(far / "a b.parquet"), str(path / "c%20d.parquet")])
    assert [ds.count_rows(filter=f"id = {i}") for i in range(1, 5)] == [1, 1, 1, 0]


def test_partitioning_by_bytes_raises(path):
    write_deltalake(path, pa.table({"id": [1], "part": [b"\x00\xff"]}), partition_by=["part"])
    with pytest.raises(SourceError, match="partition it by another"):
        zb.dataset(DeltaTable(path))


@pytest.mark.slow
def test_tables_with_deletion_vectors_written_by_deltalake(path):
    """deltalake lists variantType in their protocol, though no column has that type."""
    configuration = {"delta.enableDeletionVectors": "true"}
    write_deltalake(path, rows(0), configuration=configuration, partition_by=["part"])
    assert "deletionVectors" in DeltaTable(path).protocol().reader_features
    zb.dataset(DeltaTable(path)).create_scalar_index("id")
    DeltaTable(path).delete("id = 7")
    write_deltalake(path, rows(1), mode="append")
    ds = zb.dataset(DeltaTable(path))
    ds.optimize.optimize_indices()
    want = pa.concat_tables([rows(0).filter(pc.field("id") != 7), rows(1)])
    assert in_order(ds.to_table()) == in_order(want)
    by_keys = pc.field("id").isin([7, 8, 50_001])
    assert in_order(ds.to_table(filter=by_keys)) == in_order(want.filter(by_keys))
    assert ds.count_rows(filter="id = 7") == 0


# Every reader feature of PROTOCOL.md and its accepted RFCs, spelled as in the protocol.
READER_FEATURES = [
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantType",
    "variantType-preview",
    "variantShredding",
    "variantShredding-preview",
    "geospatial",
    "catalogManaged",
    "catalogOwned-preview",
    "ofTheFuture",
]
# A table that lists one of these may hold other rows than its log says.
UNREADABLE_FEATURES = {"catalogManaged", "catalogOwned-preview", "ofTheFuture"}


class Declared(DeltaTable):
    """A Delta table whose protocol lists other reader features than deltalake itself loads."""

    def __init__(self, path, features):
        super().__init__(path)
        self._features = features

    def protocol(self):
        return super().protocol()._replace(min_reader_version=3, reader_features=self._features)


def table_with(path, features, kind="long"):
    """Write a table of two rows by hand, whose column x has a type and is in no file."""
    path.mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), path / "a.parquet")
    fields = [{"name": "id", "type": "long"} | NULLABLE, {"name": "x", "type": kind} | NULLABLE]
    commit(path, protocol(*features), metadata(fields), add(path / "a.parquet", "a.parquet"))


@pytest.mark.parametrize("feature", READER_FEATURES)
def test_an_unused_reader_feature_is_accepted(path, feature):
    try:
        table_with(path, [feature])
        table = DeltaTable(path)
    except deltalake.exceptions.DeltaError:
        # This version of deltalake raises an error for the feature. Later versions may not.
        shutil.rmtree(path)
        table_with(path, [])
        table = Declared(path, [feature])
    if feature in UNREADABLE_FEATURES:
        with pytest.raises(SourceError, match=f"needs {feature.lower()}, which"):
            zb.dataset(table)
    else:
        want = [{"id": 1, "x": None}, {"id": 2, "x": None}]
        ds = zb.dataset(table)
        ds.create_scalar_index("id")
        assert ds.to_table().to_pylist() == want
        assert ds.to_table(filter="id = 2").to_pylist() == want[1:]


def in_struct(kind):
    return {"type": "struct", "fields": [{"name": "a.b", "type": kind, **NULLABLE}]}


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("variant", "x"),
        (in_struct("variant"), "x.a.b"),
        ({"type": "array", "elementType": "variant", "containsNull": True}, "x.element"),
        (
            {
                "type": "map",
                "keyType": "string",
                "valueType": in_struct(in_struct("variant")),
                "valueContainsNull": True,
            },
            "x.value.a.b.a.b",
        ),
    ],
)
@pytest.mark.parametrize("features", [["variantType"], ["variantType", "variantShredding"]])
def test_the_error_names_a_column_of_an_unreadable_type(path, kind, column, features):
    table_with(path, features, kind)
    with pytest.raises(SourceError, match=f"column '{column}' of the .* has type variant"):
        zb.dataset(DeltaTable(path))


@pytest.mark.parametrize(
    "kind",
    [
        *["string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary"],
        *["date", "timestamp", "timestamp_ntz", "decimal(10,2)", "decimal(38,0)"],
        in_struct("decimal(38,18)"),
    ],
)
def test_every_primitive_type_with_an_unused_reader_feature(path, kind):
    table_with(path, ["deletionVectors", "variantType", "timestampNtz"], kind)
    assert zb.dataset(DeltaTable(path)).to_table().column("x").null_count == 2


def test_a_table_without_files_is_empty(path):
    DeltaTable.create(path, Schema([Field("id", PrimitiveType("long"))]))
    assert zb.dataset(DeltaTable(path)).to_table(filter="id = 1").num_rows == 0


def test_a_folder_with_a_space_in_it_can_be_moved(tmp_path):
    first_folder, moved_folder = tmp_path / "my é table", tmp_path / "elsewhere"
    write_deltalake(first_folder, rows(0, 1000), partition_by=["part"])
    zb.dataset(DeltaTable(first_folder)).create_scalar_index("id")
    assert same_rows(first_folder, pc.field("id") == 7, "id = 7") == 1
    shutil.move(first_folder, moved_folder)
    ds = zb.dataset(DeltaTable(moved_folder))
    assert ds.count_rows(filter="id = 7") == 1
    assert ds.describe_indices()[0].num_fragments_indexed == len(ds.files)


def test_a_table_whose_rows_are_all_deleted_is_empty(tmp_path):
    columns = pa.table({"id": [1, 2], "p": ["x", "y"]})
    path = str(tmp_path / "table")
    write_deltalake(path, columns, partition_by=["p"])
    DeltaTable(path).delete()
    table = DeltaTable(path)
    ds = zb.dataset(table)
    ds.create_scalar_index("id")
    assert ds.to_table(filter="id = 1 AND p = 'x'") == columns.slice(0, 0)
    assert ds.count_rows() == ds.lookup("id", [1]).num_rows == 0
    assert ds.locate("id", [1])["row"].to_pylist() == [None]
    write_deltalake(path, columns, mode="append")
    table.update_incremental()
    ds.optimize.optimize_indices()
    assert ds.lookup("id", [1])["p"].to_pylist() == ["x"]

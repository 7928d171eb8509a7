"""Compare the files that are found without pyarrow.dataset with those that it finds."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import FragmentUnreadable
from zonebloom.sources.plain_files import list_local, plain_files

LOCAL = pafs.LocalFileSystem()
NAMES = ["b.parquet", "a.parquet", "sub/x.parquet", "sub.parquet", "sub/deep/é.parquet", "z/1"]
HIDDEN = ["_meta.parquet", ".x.parquet", "_dir/a.parquet", "sub/.dir/deep/a", "sub/_SUCCESS"]


def write(folder, names):
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [number], name: [name]}), path)


def files_of(folder):
    """Return the source of a local folder, as a dataset opens it."""
    return plain_files(LOCAL, folder, list_local(LOCAL, folder))


def assert_same(source, expected):
    assert [fragment.path for fragment in source.fragments] == expected.files
    assert source.schema.equals(expected.schema, check_metadata=True)
    assert source.format == expected.format
    assert source.partition_columns() == set()
    opened = [source.open(fragment, LOCAL) for fragment in source.fragments]
    assert (
        pads.FileSystemDataset(opened, source.schema, source.format, LOCAL).to_table()
        == expected.to_table()
    )


@pytest.mark.parametrize("end", ["", "/", "//"])
def test_a_folder_gives_the_files_of_pyarrow(tmp_path, end):
    write(tmp_path, NAMES + HIDDEN)
    (tmp_path / "empty" / "_x").mkdir(parents=True)
    os.symlink(tmp_path / "a.parquet", tmp_path / "linked.parquet")
    os.symlink(tmp_path / "z", tmp_path / "y")
    source = files_of(f"{tmp_path}{end}")
    assert_same(source, pads.dataset(f"{tmp_path}", partitioning="hive"))
    assert source.root == str(tmp_path)
    assert [fragment.key for fragment in source.fragments] == [
        os.path.relpath(fragment.path, tmp_path) for fragment in source.fragments
    ]


@pytest.mark.parametrize("name", ["a.parquet", "_hidden", "sub/.dir/x", "year=1/x"])
def test_one_file_gives_the_dataset_of_pyarrow(tmp_path, name):
    write(tmp_path, [name, "other.parquet"])
    source = plain_files(LOCAL, f"{tmp_path / name}")
    if "=" in name:
        # The folders above a single file give no partition values.
        assert [fragment.key for fragment in source.fragments] == ["x"]
    assert_same(source, pads.dataset(f"{tmp_path / name}"))


@pytest.mark.parametrize("names", [["year=1/a"], ["a.parquet", "sub/x=/b"], [], HIDDEN])
def test_pyarrow_handles_partition_folders_and_missing_files(tmp_path, names):
    write(tmp_path, names)
    assert files_of(str(tmp_path)) is None


def test_pyarrow_raises_for_invalid_files(tmp_path):
    write(tmp_path, ["b.parquet"])
    (tmp_path / "a.parquet").write_bytes(b"no Parquet")
    assert files_of(str(tmp_path)) is None
    with pytest.raises(FragmentUnreadable, match=r"a\.parquet"):
        zb.dataset(tmp_path)
    assert list_local(LOCAL, str(tmp_path / "nothing")) is None
    assert list_local(pafs.SubTreeFileSystem(str(tmp_path), LOCAL), "/") is None


TYPES = [
    *(pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.bool_(), pa.null()),
    *(pa.decimal32(5, 2), pa.decimal128(30, 2), pa.decimal256(60, 2)),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary(3)),
    *(pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int8(), pa.string())),
    *(pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"), pa.duration("us")),
    *(pa.timestamp("s"), pa.timestamp("ns", "Europe/Berlin"), pa.uuid(), pa.json_()),
    *(pa.list_(pa.int8()), pa.large_list(pa.string()), pa.map_(pa.string(), pa.int8())),
    pa.struct({"x": pa.int8(), "y": pa.list_(pa.uuid())}),
]


def typed():
    fields = [pa.field(f"{kind}", kind, metadata={"key": "of a column"}) for kind in TYPES]
    columns = [pa.nulls(1, kind) for kind in TYPES]
    fields.append(pa.field("never null", pa.int8(), nullable=False))
    schema = pa.schema(fields, metadata={"of": "the file"})
    return pa.Table.from_arrays([*columns, pa.array([1], pa.int8())], schema=schema)


@pytest.mark.parametrize("store_schema", [True, False])
@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}])
def test_types_and_metadata_equal_those_of_pyarrow(tmp_path, store_schema, options):
    pq.write_table(typed(), tmp_path / "a", store_schema=store_schema, **options)
    source = files_of(str(tmp_path))
    expected = pads.dataset(f"{tmp_path}", partitioning="hive")
    assert source.schema.equals(expected.schema, check_metadata=True)
    assert zb.dataset(tmp_path).to_table() == expected.to_table()

"""Compare listed files with pyarrow.dataset, DuckDB and Polars, and patterns with ``glob.glob``."""

from __future__ import annotations

import glob
import os
import tempfile
from pathlib import Path

import duckdb
import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from obstore.store import LocalStore
from support.e2e_helpers import unreadable

import zonebloom as zb
from zonebloom.errors import FragmentUnreadable, NoFragments, SourceError

LOCAL = pafs.LocalFileSystem()

# Folders

HIDDEN = [
    "_meta.parquet",
    ".x.parquet",
    "_dir/a.parquet",
    "sub/.dir/deep/a",
    "sub/_SUCCESS",
    "_y=1/a",
]
FOLDERS = {
    "plain": ["b.parquet", "a.parquet", "sub/x", "sub.parquet", "sub/deep/é.parquet", "z/1"],
    "hive": ["y=1/b", "y=10/a", "y=2/a", "y=2/z=q/a", "c"],
    "escaped": [
        "c=a%20b/1",
        "c=x%2Fy/1",
        "c=%C3%A9%25/1",
        "c=ü b/1",
        "my%20col=3/1",
        "größe=日本/1",
    ],
    "null": ["y=__HIVE_DEFAULT_PARTITION__/1", "y=3/1"],
    "equals": ["k=a=b/1", "k==c/1", "k=/1", "k=d/1", "f=1.parquet"],
    "nested": ["b=1/a=2/1", "a=1/b=2/1", "c=1/1", "a=1/a=2/1"],
    "numbers": ["m=01/1", "m=2/1", "n=-1/1", "n=2/1", "y z=1/[1]"],
    "hidden values": ["k=_x/1", "k=.y/1", "k=z/_1/1"],
}


def write(folder: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [number]}), path)


@pytest.mark.parametrize("partitioning", ["hive", None])
@pytest.mark.parametrize("kind", ["local", "subtree", "fsspec", "obstore"])
def test_folders_have_the_files_and_columns_of_pyarrow(tmp_path, kind, partitioning):
    for name, files in FOLDERS.items():
        folder = tmp_path / name
        write(folder, files + HIDDEN)
        (folder / "empty" / "_x").mkdir(parents=True)
        if kind in ("local", "subtree"):
            os.symlink(folder / files[0], folder / "linked.parquet")
            os.symlink(folder / "sub", folder / "y=5")
        expected = pads.dataset(str(folder), partitioning=partitioning)
        source, filesystem = {
            "local": (f"{folder}//", None),
            "subtree": (name, pafs.SubTreeFileSystem(str(tmp_path), LOCAL)),
            "fsspec": (str(folder), fsspec.filesystem("file")),
            "obstore": (name, LocalStore(tmp_path)),
        }[kind]
        scheme = "auto" if partitioning else None
        ds = zb.dataset(source, filesystem=filesystem, partitioning=scheme)
        keys = [os.path.relpath(path, folder) for path in expected.files]
        assert [fragment.key for fragment in ds.opened.source.fragments] == keys
        assert ds.schema.equals(expected.schema, check_metadata=True)
        assert ds.to_table() == expected.to_table()


@pytest.mark.parametrize("name", ["a.parquet", "_hidden", "sub/.dir/x", "year=1/x"])
def test_one_file_gives_the_dataset_of_pyarrow(tmp_path, name):
    write(tmp_path, [name, "other.parquet"])
    ds = zb.dataset(tmp_path / name)
    # The folders above a single file give no partition values.
    assert [fragment.key for fragment in ds.opened.source.fragments] == [os.path.basename(name)]
    assert ds.to_table() == pads.dataset(f"{tmp_path / name}").to_table()


def test_the_root_of_a_file_system_is_a_folder(tmp_path):
    write(tmp_path, ["day=1/a", "b"])
    below = pafs.SubTreeFileSystem(str(tmp_path), LOCAL)
    ds = zb.dataset("/", filesystem=below, index_dir="index")
    assert ds.to_table().to_pylist() == [{"id": 1, "day": None}, {"id": 0, "day": 1}]
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(SourceError, match="Delta"):
        zb.dataset("/", filesystem=below, index_dir="index")


@pytest.mark.parametrize("kind", ["folder", "list", "local store"])
def test_inferred_types_are_those_of_polars_and_duckdb(tmp_path, kind):
    values = {
        "day": ["2024-01-31", "2023-12-01", "__HIVE_DEFAULT_PARTITION__"],
        "number": ["-5", "7", "20240101123456"],
        "text": ["x", "1", "2024-01-01"],
        "no_day": ["2024-02-30", "2024-01-01", "2024-01-02"],
        "code": ["1-2", "3", "4"],
        "zeros": ["007", "7", "70"],
    }
    for row in range(3):
        folders = [f"{name}={texts[row]}" for name, texts in values.items()]
        write(tmp_path / "data", [os.path.join(*folders, f"{row}.parquet")])
    pattern = f"{tmp_path}/data/**/*.parquet"
    source = {"folder": tmp_path / "data", "list": [tmp_path / "data"], "local store": "data"}[kind]
    filesystem = LocalStore(tmp_path) if kind == "local store" else None
    ds = zb.dataset(source, filesystem=filesystem, partitioning="infer")
    assert [str(ds.schema.field(name).type) for name in values] == [
        *("date32[day]", "int64", "string", "string", "string", "string")
    ]
    rows = ds.to_table().select(list(values)).to_pylist()
    query = f"SELECT {', '.join(values)} FROM read_parquet('{pattern}')"
    by_duckdb = pl.DataFrame(duckdb.sql(query).arrow().read_all())
    assert sorted(by_duckdb.to_dicts(), key=str) == sorted(rows, key=str)
    # Polars alone takes texts with leading zeros for integers.
    by_polars = pl.scan_parquet(pattern, hive_partitioning=True).collect().drop("id", "zeros")
    rows = [{name: row[name] for name in by_polars.columns} for row in rows]
    assert sorted(by_polars.to_dicts(), key=str) == sorted(rows, key=str)
    assert ds.count_rows("day = DATE '2024-01-31' AND number = -5") == 1


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


@pytest.mark.parametrize("store_schema", [True, False])
@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}])
def test_types_and_metadata_equal_those_of_pyarrow(tmp_path, store_schema, options):
    fields = [pa.field(f"{kind}", kind, metadata={"key": "of a column"}) for kind in TYPES]
    columns = [*(pa.nulls(1, kind) for kind in TYPES), pa.array([1], pa.int8())]
    fields.append(pa.field("never null", pa.int8(), nullable=False))
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata={"of": "the file"}))
    pq.write_table(table, tmp_path / "a", store_schema=store_schema, **options)
    ds, expected = zb.dataset(tmp_path), pads.dataset(f"{tmp_path}", partitioning="hive")
    # PyArrow's datasets ignore that Parquet marks UUIDs.
    marked = {field.name: field for field in pq.read_schema(tmp_path / "a") if "uuid" in str(field)}
    schema = pa.schema([marked.get(field.name, field) for field in expected.schema])
    schema = schema.with_metadata(expected.schema.metadata)
    expected = pads.dataset(f"{tmp_path}", schema=schema)
    assert ds.schema.equals(expected.schema, check_metadata=True)
    assert ds.to_table() == expected.to_table()


# Patterns

FILES = [
    "a.parquet",
    "b.csv",
    ".hidden.parquet",
    "x/a.parquet",
    "x/y/b.parquet",
    "x/y/[1].parquet",
    "day=1/a.parquet",
    ".index/a.parquet",
    "_zonebloom/versions/1.arrow",
    "x/_zonebloom/a.parquet",
]
PATTERNS = [
    "*.parquet",
    "*",
    "**",
    "**/*.parquet",
    "x/**",
    "x/**/*.parquet",
    "*/a.parquet",
    "day=[0-9]/?.parquet",
    "x/y/[[]1].parquet",
    ".*/*.parquet",
    "**/y/*",
    "nothing/*",
    "a.parquet/*",
    "_*/*/*",
    "*/*/*",
]


def rows_file(path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), path)


def matching_files(pattern: str) -> list[str]:
    """Return the files of the dataset of a pattern."""
    try:
        return zb.dataset(pattern, index_dir="/nowhere").files
    except NoFragments:
        return []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows_file(path)
    (tmp_path / "link").symlink_to(tmp_path / "x")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "dangling.parquet").symlink_to("nowhere")
    return tmp_path


@pytest.mark.parametrize("pattern", PATTERNS)
def test_matching_files_equal_those_of_glob(folder: Path, pattern: str):
    whole = os.path.join(folder, pattern)
    globbed = filter(os.path.isfile, glob.glob(whole, recursive=True))
    expected = sorted(path for path in globbed if "/_zonebloom/" not in path)
    assert matching_files(whole) == expected


def test_an_index_folder_is_matched_by_name(folder: Path):
    assert matching_files(f"{folder}/x/_zonebloom/*") == [f"{folder}/x/_zonebloom/a.parquet"]


def test_a_folder_that_cannot_be_listed_raises():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "a" / "b").mkdir(parents=True)
        rows_file(root / "a" / "b" / "c.parquet")
        for pattern in ("**/*.parquet", "*/*/*.parquet", "a/b/*"):
            with unreadable(root / "a" / "b"), pytest.raises(FragmentUnreadable, match="a/b"):
                matching_files(str(root / pattern))
        # The folder can be listed, but its files cannot be looked at.
        with unreadable(root / "a", 0o744), pytest.raises(FragmentUnreadable, match="a/b"):
            matching_files(str(root / "**"))


def test_folders_that_no_part_matches_are_not_listed():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for folder in ("day=1/closed", "other"):
            (root / folder).mkdir(parents=True)
        rows_file(root / "day=1" / "c.parquet")
        (root / "other").chmod(0)
        with unreadable(root / "day=1" / "closed"):
            assert matching_files(f"{root}/day=*/c.parquet") == [f"{root}/day=1/c.parquet"]


def test_hidden_folders_and_links_to_a_folder_above_do_not_fail():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for folder in ("a", ".trash"):
            (root / folder).mkdir()
        rows_file(root / "a" / "b.parquet")
        (root / "a" / "up").symlink_to(root / "a")
        pattern = f"{root}/**/*.parquet"
        with unreadable(root / ".trash"):
            assert matching_files(pattern) == sorted(glob.glob(pattern, recursive=True))

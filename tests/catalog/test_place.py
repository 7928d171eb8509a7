"""The folder of an index, and other readers of the folders around it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from support.helpers import copy_dataset, index_folder, without_privileges

import zonebloom as zb
from zonebloom.errors import (
    CatalogError,
    ZoneBloomWarning,
)

LOCAL = pafs.LocalFileSystem()
ROWS, FILES = 1000, 3


def write(folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ids = [number * ROWS + row for row in range(ROWS)]
    pq.write_table(pa.table({"id": ids}), folder / f"{number}.parquet")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake" / "logs"
    for number in range(FILES):
        write(folder, number)
    return folder


def build(ds: zb.Dataset) -> zb.Dataset:
    ds.create_scalar_index("id", number_of_items=100, spark=False)
    return ds


def num_zones(ds: zb.Dataset, key: int = 42) -> int:
    """Check the rows of a lookup, and return how many zones it read."""
    assert ds.to_table(filter=f"id = {key}")["id"].to_pylist() == [key]
    return len(list(ds.search(f"id = {key}").at_most.starts))


# Other readers


def ids_of_readers(folder: Path) -> dict[str, list[int]]:
    """Return the ids that each reader finds in the folder itself."""
    found = {
        "pl.read_parquet": pl.read_parquet(folder)["id"].to_list(),
        "pl.scan_parquet": pl.scan_parquet(folder).collect()["id"].to_list(),
        "duckdb": [
            row[0] for row in duckdb.sql(f"SELECT id FROM read_parquet('{folder}/**')").fetchall()
        ],
        "pyarrow.dataset": pads.dataset(folder).to_table()["id"].to_pylist(),
        "pyarrow.parquet": pq.read_table(folder)["id"].to_pylist(),
        "pandas": pd.read_parquet(folder)["id"].to_list(),
    }
    return {name: sorted(ids) for name, ids in found.items()}


def test_readers_of_the_folder_find_the_same_rows_before_and_after_a_build(lake):
    def assert_right(num_files: int) -> None:
        for name, ids in ids_of_readers(lake).items():
            assert ids == list(range(num_files * ROWS)), name

    before = sorted(lake.rglob("*"))
    assert_right(FILES)
    ds = build(zb.dataset(lake))
    assert sorted(lake.rglob("*")) == before
    assert_right(FILES)
    write(lake, FILES)
    ds.optimize.optimize_indices(spark=False)
    assert_right(FILES + 1)
    assert num_zones(zb.dataset(lake), 3042) == 1


def test_readers_of_the_parent_pass_over_the_index(lake):
    parent = lake.parent
    write(parent / "other", 7)
    both = [*range(FILES * ROWS), *range(7 * ROWS, 8 * ROWS)]
    build(zb.dataset(lake))
    assert sorted(pads.dataset(parent).to_table()["id"].to_pylist()) == both
    assert sorted(pl.scan_parquet(f"{parent}/**/*.parquet").collect()["id"].to_list()) == both
    # The README documents this pattern, which Polars needs for the parent folder.
    with pytest.raises(pl.exceptions.InvalidOperationError, match="glob pattern"):
        pl.scan_parquet(parent).collect()
    found = duckdb.sql(f"SELECT id FROM '{parent}/**/*.parquet' ORDER BY id").fetchall()
    assert [row[0] for row in found] == both
    # The parent is also a dataset, with its own index.
    ds = build(zb.dataset(parent))
    assert ds.index_dir == str(parent.parent / "_zonebloom" / parent.name)
    assert len(ds.files) == FILES + 1
    assert num_zones(zb.dataset(parent)) == num_zones(zb.dataset(lake)) == 1


# The index folder of a data folder


def test_two_spellings_of_a_folder_share_one_index(lake, monkeypatch):
    build(zb.dataset(lake))
    link = lake.parent.parent / "link"
    link.symlink_to(lake, target_is_directory=True)
    monkeypatch.chdir(lake.parent)
    spellings = ["logs", "./logs/", "../lake/logs", f"{lake}/", link, "logs/*.parquet"]
    spellings += ["logs/**/*.parquet", f"file://{lake}", "logs/1.parquet"]
    places = set()
    for spelling in spellings:
        ds = zb.dataset(spelling)
        places.add(ds.index_dir)
        assert ds.describe_indices()[0].num_fragments_indexed == len(ds.files), spelling
    monkeypatch.chdir(lake)
    places.add(zb.dataset(".").index_dir)
    assert places == {str(lake.parent / "_zonebloom" / "logs")}


@pytest.mark.parametrize("name", ["_staging", ".hidden", "a b", "é", "versions"])
def test_any_name_of_a_folder_has_a_place(tmp_path, name):
    folder = tmp_path / "lake" / name
    write(folder, 0)
    ds = build(zb.dataset(folder))
    assert ds.index_dir == str(tmp_path / "lake" / "_zonebloom" / name)
    assert num_zones(zb.dataset(folder)) == 1


def test_folders_of_one_name_have_indices_of_their_own(tmp_path):
    folders = [tmp_path / "a" / "logs", tmp_path / "b" / "logs", tmp_path / "a" / "other"]
    for number, folder in enumerate(folders):
        write(folder, number)
        build(zb.dataset(folder))
    for number, folder in enumerate(folders):
        assert num_zones(zb.dataset(folder), number * ROWS + 42) == 1
    assert len({zb.dataset(folder).index_dir for folder in folders}) == 3


def test_a_partition_has_its_index_outside_the_whole_dataset(tmp_path):
    logs = tmp_path / "lake" / "logs"
    for number in range(2):
        write(logs / "year=2026" / f"day={number}", number)
    ds = build(zb.dataset(logs / "year=2026" / "day=1"))
    assert ds.index_dir == str(tmp_path / "lake" / "_zonebloom" / "logs" / "year=2026" / "day=1")
    assert pl.read_parquet(logs).height == 2 * ROWS
    # The index of the whole dataset lies above, and the two do not interfere.
    assert zb.dataset(logs).describe_indices() == []
    build(zb.dataset(logs))
    assert num_zones(zb.dataset(logs)) == 1
    assert num_zones(zb.dataset(logs / "year=2026" / "day=1"), 1042) == 1


def test_stores_keep_buckets_apart_and_local_roots_inside():
    def place(root: str, filesystem: pafs.FileSystem = LOCAL) -> str:
        return index_folder(root, filesystem).as_posix()

    s3 = pafs.S3FileSystem(region="eu-west-1", anonymous=True)
    assert place("bucket/a", s3) == "bucket/_zonebloom/a"
    assert place("bucket", s3) == "bucket/_zonebloom"
    below = pafs.SubTreeFileSystem("/nowhere", LOCAL)
    assert place("a", below) == "_zonebloom/a"
    assert place("/missing") == "/missing/_zonebloom"
    # An index stays on the volume of its data. In a folder like /tmp, users could forge one.
    assert place("/proc/self") == "/proc/self/_zonebloom" or os.path.islink("/proc/self")
    assert place("/proc") == "/proc/_zonebloom"


def test_beside_data_of_other_users_the_index_lies_inside(lake):
    lake.parent.chmod(0o1777)
    with pytest.warns(ZoneBloomWarning, match="no folder above it can hold"):
        build(zb.dataset(lake))
    assert zb.dataset(lake).index_dir == str(lake / "_zonebloom")
    assert num_zones(zb.dataset(lake)) == 1


def test_where_the_parent_cannot_be_written_a_build_asks_for_a_folder(tmp_path):
    # Only privileged users can enter the folder of the test itself.
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    lake = tmp_path / "lake" / "logs"
    write(lake, 0)
    lake.parent.chmod(0o555)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o777)
    elsewhere.chmod(0o777)
    with without_privileges():
        with pytest.raises(CatalogError, match=r"cannot write to .*give another index_dir"):
            build(zb.dataset(lake))
        build(zb.dataset(lake, index_dir=str(elsewhere)))
    assert num_zones(zb.dataset(lake, index_dir=str(elsewhere))) == 1


def test_data_and_index_can_be_copied_together(lake, tmp_path):
    build(zb.dataset(lake))
    copy = copy_dataset(lake, tmp_path / "there" / "copy")
    ds = zb.dataset(copy)
    assert ds.describe_indices()[0].num_fragments_indexed == FILES
    assert num_zones(ds) == 1
    # Moving the parent moves the indices of all its folders.
    shutil.copytree(lake.parent, tmp_path / "all")
    ds = zb.dataset(tmp_path / "all" / "logs")
    assert num_zones(ds) == 1


def test_a_catalog_is_relative_to_the_data(lake):
    build(zb.dataset(lake))
    (document,) = (lake.parent / "_zonebloom" / "logs" / "versions").glob("*.json")
    assert str(lake) not in document.read_text()
    keys = {f"{number}.parquet" for number in range(FILES)}
    assert set(zb.dataset(lake).opened.version.fragments) == keys
    assert json.loads(document.read_text())["content"]["version"] == 1

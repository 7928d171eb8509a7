"""Test that lists of folders and patterns give the same rows and columns as their folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import NoFragments, SourceError

DAYS = ["2024-05-01", "2024-05-02", None]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Write a hive dataset of two shops and three days, with a hidden file in each folder."""
    folder = tmp_path / "k=v" / "logs"
    for shop in range(2):
        for number, day in enumerate(DAYS):
            name = day or "__HIVE_DEFAULT_PARTITION__"
            below = folder / f"shop={shop}" / f"day={name}"
            below.mkdir(parents=True)
            first = 1000 * shop + 100 * number
            pq.write_table(pa.table({"id": range(first, first + 100)}), below / "0.parquet")
            (below / "_SUCCESS").write_bytes(b"")
    return folder


def in_order(table: pa.Table) -> list[dict]:
    return sorted(table.to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize(
    ("pattern", "columns"),
    [
        ("logs/**/*.parquet", ["id", "shop", "day"]),
        ("logs/**", ["id", "shop", "day"]),
        ("logs/shop=*/day=*/0.parquet", ["id", "shop", "day"]),
        ("logs/shop=1/**/*.parquet", ["id", "day"]),
        ("logs/shop=1/day=2024-05-0?/*.parquet", ["id", "day"]),
        ("logs/shop=1/day=2024-05-01/*.parquet", ["id"]),
    ],
)
def test_a_pattern_has_the_columns_of_its_folder(logs, pattern, columns):
    if pattern.endswith("**"):
        # Patterns do not skip names that begin with an underscore.
        for path in logs.rglob("_SUCCESS"):
            path.unlink()
    ds = zb.dataset(f"{logs.parent}/{pattern}")
    whole = pads.dataset(str(logs), partitioning="hive").to_table().select(columns)
    ids = ds.to_table(["id"])["id"]
    want = whole.filter(pc.is_in(whole["id"], ids.combine_chunks()))
    assert ds.schema.equals(want.schema)
    assert in_order(ds.to_table()) == in_order(want)
    ds.create_scalar_index("id", number_of_items=10, spark=False)
    assert ds.count_rows("id = 1001") == 1
    if "day" in columns:
        condition = pc.field("day") == "2024-05-01"
        assert ds.count_rows("day = '2024-05-01'") == want.filter(condition).num_rows
        assert ds.count_rows("day IS NULL") == want["day"].null_count
        assert "skipped" in ds.scanner(filter="day = '2024-05-01'").explain_plan()


def test_partitions_of_a_pattern_are_parsed_below_its_folder(tmp_path):
    for year in ("2023", "2024"):
        (tmp_path / "data" / year).mkdir(parents=True)
        pq.write_table(pa.table({"id": [int(year)]}), tmp_path / "data" / year / "0.parquet")
    ds = zb.dataset(f"{tmp_path}/data/*/0.parquet", partitioning=["year"])
    assert in_order(ds.to_table()) == [{"id": year, "year": year} for year in (2023, 2024)]
    assert zb.dataset(f"{tmp_path}/data/*/0.parquet").schema.names == ["id"]
    assert zb.dataset(f"{tmp_path}/data/*/0.parquet", partitioning=None).schema.names == ["id"]


def test_files_of_a_pattern_may_hold_the_path_column(tmp_path):
    for day in (1, 2):
        folder = tmp_path / "data" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(
            pa.table({"id": [day], "day": pa.array([day], pa.int8())}), folder / "0.parquet"
        )
    whole, matching = zb.dataset(f"{tmp_path}/data"), zb.dataset(f"{tmp_path}/data/*/*.parquet")
    assert matching.schema == whole.schema == pa.schema({"id": pa.int64(), "day": pa.int8()})
    assert in_order(matching.to_table()) == in_order(whole.to_table())


LISTS = [
    ["shop=0", "shop=1"],
    ["shop=1", "shop=0"],
    ["shop=0/day=2024-05-01", "shop=1"],
    ["shop=0/day=2024-05-01/0.parquet", "shop=1"],
    ["shop=1/", "shop=1/day=2024-05-01/0.parquet", "shop=1"],
    ["."],
]


@pytest.mark.many
@pytest.mark.parametrize("kind", ["local", "relative", "file system"])
@pytest.mark.parametrize("names", LISTS)
def test_a_list_of_folders_has_the_files_of_all(logs, names, kind, monkeypatch):
    paths = [os.path.join(logs, name) for name in names]
    filesystem = None
    if kind == "relative":
        monkeypatch.chdir(logs.parent)
        paths = [os.path.join("logs", name) for name in names]
    elif kind == "file system":
        filesystem = pafs.SubTreeFileSystem(str(logs.parent), pafs.LocalFileSystem())
        paths = [os.path.normpath(os.path.join("logs", name)) for name in names]
    ds = zb.dataset(paths, filesystem=filesystem)
    monkeypatch.chdir("/")
    whole = pads.dataset(str(logs), partitioning="hive").to_table()
    wanted = [
        path
        for path in logs.rglob("*.parquet")
        if any(path.is_relative_to(os.path.normpath(logs / name)) for name in names)
    ]
    ids = [id for path in wanted for id in pq.read_table(path, partitioning=None)["id"].to_pylist()]
    want = whole.filter(pc.is_in(whole["id"], pa.array(ids)))
    common = os.path.commonpath(
        [os.path.normpath(logs / name.replace("/0.parquet", "")) for name in names]
    )
    columns = [name for name in want.column_names if f"{name}=" not in common]
    assert in_order(ds.to_table().select(columns)) == in_order(want.select(columns))
    assert ds.schema.names == columns

    ds.create_scalar_index("id", number_of_items=10, spark=False)
    assert ds.count_rows("id = 1001") == 1
    new_folder = logs / "shop=1" / "day=2024-05-09"
    new_folder.mkdir()
    pq.write_table(pa.table({"id": [5000]}), new_folder / "0.parquet")
    ds.refresh()
    assert ds.count_rows() == want.num_rows + 1
    (refreshed,) = ds.optimize.optimize_indices(spark=False)
    assert refreshed.fragments_added == 1
    assert ds.count_rows("id = 5000") == 1


def test_lists_of_files_keep_their_order_and_columns(logs):
    files = sorted(map(str, logs.rglob("*.parquet")))
    ds = zb.dataset(files)
    assert (ds.files, ds.schema.names) == (files, ["id"])
    ds.refresh()
    assert (ds.files, ds.schema.names) == (files, ["id"])


def test_invalid_lists_raise(logs, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoFragments, match="empty holds no data file"):
        zb.dataset([str(logs), str(tmp_path / "empty")])
    with pytest.raises(NoFragments, match="nowhere"):
        zb.dataset([str(logs), str(tmp_path / "nowhere")])
    for item in ("", 5, "a\0"):
        with pytest.raises(zb.errors.InvalidArgument, match="an item of source"):
            zb.dataset([str(logs), item])
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "delta" / "0.parquet")
    with pytest.raises(SourceError, match="is a Delta table"):
        zb.dataset([str(logs), str(tmp_path / "delta")])


@pytest.mark.parametrize(
    ("names", "pattern", "num_files"),
    [
        (["*.parquet", "a.parquet"], "*.parquet", 2),
        (["?.parquet", "a.parquet", "bc.parquet"], "?.parquet", 2),
        (["a[1].parquet", "a1.parquet"], "a[1].parquet", 1),
    ],
)
def test_a_file_with_the_name_of_a_pattern_hides_no_other(tmp_path, names, pattern, num_files):
    for name in names:
        pq.write_table(pa.table({"id": [1]}), tmp_path / name)
    assert len(zb.dataset(tmp_path / pattern).files) == num_files


@pytest.mark.parametrize("partition", ["", "day="])
def test_a_table_below_a_local_folder_is_noticed(tmp_path, partition):
    for number in range(20):
        folder = tmp_path / "data" / f"{partition}{number}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), folder / "0.parquet")
    assert len(zb.dataset(tmp_path / "data").files) == 20
    for marker, kind in [("_delta_log", "Delta"), (".hoodie", "Hudi"), ("metadata", "Iceberg")]:
        below = tmp_path / "data" / f"{partition}3" / marker
        below.mkdir()
        (below / "v1.metadata.json").write_bytes(b"{}")
        with pytest.raises(SourceError, match=f"{partition}3 is an? {kind} table"):
            zb.dataset(tmp_path / "data")
        shutil.rmtree(below)

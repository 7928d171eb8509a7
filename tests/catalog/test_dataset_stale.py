"""Test files that change after the build: rows are right, and a warning gives the reason."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import (
    assert_equals_pyarrow,
    at_most_rows,
    build,
    numbered,
    touch_later,
    unreadable,
    write_files,
)
from support.helpers import index_folder
from support.seams import replace_function

import zonebloom as zb
from zonebloom import errors
from zonebloom.errors import IndexNotUsedWarning, StaleIndexWarning

ROWS = 100
# Files of as many rows have the same size.
PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False}


def part(number: int, ids: Any = None) -> pa.Table:
    """Return the rows of a file: ``id`` is the row number unless given, ``name`` depends on it."""
    first_row = number * ROWS
    values = list(range(first_row, first_row + ROWS)) if ids is None else list(ids)
    return numbered(
        first_row,
        len(values),
        id=pa.array(values, pa.int64()),
        name=pa.array([f"n{value}" for value in values]),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, [part(number) for number in range(3)], row_group_size=25, **PLAIN)
    build(zb.dataset(tmp_path), "id", number_of_items=10)
    return tmp_path


@pytest.fixture(params=["open all along", "opened again"])
def stale(request: pytest.FixtureRequest, folder: Path) -> Iterator[Any]:
    """Apply a change, and return the dataset: opened before the change, or after it."""
    before = zb.dataset(folder)
    assert before.count_rows("id = 150") == 1

    def change(action: Any) -> zb.Dataset:
        action()
        return before if request.param == "open all along" else zb.dataset(folder)

    yield change


def assert_right(ds: zb.Dataset, folder: Path, ids: list[int]) -> None:
    """Check the rows of each id, whatever warnings are issued."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ZoneBloomWarning)
        for value in ids:
            assert_equals_pyarrow(ds, folder, f"id = {value}", pc.field("id") == value)
        filter = pc.field("id").isin(ids)
        assert_equals_pyarrow(ds, folder, filter, filter)
        assert_equals_pyarrow(ds, folder, None, None)
        assert_equals_pyarrow(ds, folder, "id IS NULL", pc.field("id").is_null())


IDS = [0, 50, 99, 100, 150, 199, 200, 299, 1100, 1150, 5000]


def rewrite(path: Path, table: pa.Table, **options: Any) -> None:
    pq.write_table(table, path, **options)
    touch_later(path)


def write_part(folder: Path, number: int) -> None:
    pq.write_table(part(number), folder / f"part-{number:03d}.parquet")


def rewrite_with_the_same_size(folder: Path) -> None:
    path, other_ids = folder / "part-001.parquet", pa.array(range(1100, 1200), pa.int64())
    size = path.stat().st_size
    table = part(1).set_column(1, "id", other_ids)
    rewrite(path, table, row_group_size=25, **PLAIN)
    assert path.stat().st_size == size


def rewrite_with_another_size(folder: Path) -> None:
    rewrite(folder / "part-001.parquet", part(1, range(1100, 1250)))


def swap(folder: Path) -> None:
    first, last = folder / "part-000.parquet", folder / "part-002.parquet"
    first.rename(folder / "x")
    last.rename(first)
    (folder / "x").rename(last)


@pytest.mark.parametrize("change", [rewrite_with_the_same_size, rewrite_with_another_size])
def test_a_rewritten_file_is_noticed(folder: Path, stale: Any, change: Callable[[Path], None]):
    ds = stale(lambda: change(folder))
    with pytest.warns(StaleIndexWarning, match=r"1 of 3 files.*part-001\.parquet \(changed"):
        assert ds.count_rows("id = 1150") == 1
    assert ds.count_rows("id = 150") == 0
    assert_right(ds, folder, IDS)
    described = ds.describe_indices()[0]
    assert (described.num_fragments_indexed, described.num_fragments) == (2, 3)
    assert described.num_rows_indexed == 200


def test_a_touched_file_with_the_same_content_is_unchanged(folder: Path, stale: Any):
    ds = stale(lambda: touch_later(folder / "part-001.parquet"))
    # A warning would be an error.
    assert at_most_rows(ds, "id = 5") == set(range(10))
    assert_right(ds, folder, IDS)


def test_copies_are_not_indexed_again(folder: Path):
    before = zb.dataset(folder)
    for path in folder.glob("*.parquet"):
        shutil.copy(path, folder / "copy")
        os.replace(folder / "copy", path)
    (folder / "part-000.parquet").chmod(0o600)
    (outcome,) = before.optimize.optimize_indices(spark=False)
    assert (outcome.fragments_added, outcome.fragments_dropped, outcome.changed) == (0, 0, False)
    ds = zb.dataset(folder)
    assert ds.version == 2
    assert_right(ds, folder, IDS)
    # The new times were recorded, so that they suffice the next time.
    ds.optimize.optimize_indices(spark=False)
    assert ds.version == 2


@pytest.mark.parametrize("comes", [False, True])
def test_a_copied_dataset_can_be_indexed_and_refreshed(folder: Path, tmp_path_factory, comes):
    """The files have other times and inodes than in the index, but nobody else wrote them."""
    copied = tmp_path_factory.mktemp("copied") / "data"
    shutil.copytree(folder, copied)
    if comes:
        write_files(copied / "later", [part(3)], row_group_size=25)
    ds = zb.dataset(copied)
    if comes:
        ds.optimize.optimize_indices(spark=False)
    build(ds, "id")
    build(ds, "row")
    described = zb.dataset(copied).describe_indices()
    assert len(described) == 2
    assert all(index.num_fragments_indexed == index.num_fragments for index in described)
    assert_right(ds, copied, IDS)


def test_a_warning_is_issued_once_and_again_when_more_files_change(folder: Path):
    ds = zb.dataset(folder)
    rewrite(folder / "part-001.parquet", part(1, range(1100, 1250)))
    with pytest.warns(StaleIndexWarning):
        ds.count_rows("id = 5")
    # Warnings are errors here, so another one would raise.
    ds.count_rows("id = 5")
    ds.count_rows("id = 6")
    rewrite(folder / "part-000.parquet", part(0, range(50)))
    with pytest.warns(StaleIndexWarning, match="2 of 3 files"):
        assert ds.count_rows("id = 5") == 1


def ways_to_ask(ds: zb.Dataset) -> list[Any]:
    """Return each way to ask for the rows of all files, with the index and without."""
    ways: list[Any] = [
        lambda: ds.to_table(filter="id = 50"),
        lambda: ds.to_table(filter="id = 50", use_scalar_index=False),
        ds.to_table,
        lambda: ds.count_rows("row >= 0"),
        ds.count_rows,
        lambda: ds.head(1),
        lambda: ds.search("id = 50"),
        lambda: ds.take_rows([0]),
        lambda: ds.scanner(filter="id = 50").explain_plan(),
    ]
    if ds.describe_indices():
        ways.append(lambda: ds.search_many("id", pa.array([50])).read_all())
    return ways


def ways_of_others(ds: zb.Dataset) -> list[Any]:
    """Return the same through libraries that raise their own errors with our message."""
    frame = ds.to_polars()
    return [
        lambda: pa.table(ds),
        lambda: frame.filter(pl.col("id") == 50).collect(),
        frame.collect,
        lambda: duckdb.from_arrow(ds).filter("id = 50").fetchall(),
    ]


@pytest.mark.parametrize("indexed", [True, False], ids=["index", "no index"])
def test_a_deleted_file_raises_until_the_dataset_is_reopened(folder: Path, indexed: bool):
    ds = zb.dataset(folder)
    if not indexed:
        ds.drop_index("id_idx")
    theirs = pads.dataset(folder)
    os.unlink(folder / "part-001.parquet")
    with pytest.raises(FileNotFoundError):
        theirs.to_table()
    message = r"part-001\.parquet is gone.* call ds\.refresh\(\)"
    for ask in ways_to_ask(ds):
        with pytest.raises(errors.FragmentUnreadable, match=message):
            ask()
    for ask in ways_of_others(ds):
        with pytest.raises(Exception, match=message):
            ask()
    # The dataset can still be displayed.
    assert repr(ds).startswith("<zonebloom.Dataset")
    # A dataset opened now never saw the file, and a refresh forgets it.
    ds.refresh()
    for opened in (ds, zb.dataset(folder)):
        assert opened.count_rows("id = 150") == 0
        assert opened.count_rows("id = 250") == 1
        assert_right(opened, folder, IDS)


def test_deleted_files_are_left_out_on_request(folder: Path):
    ds = zb.dataset(folder, stale="ignore-missing")
    os.unlink(folder / "part-001.parquet")
    with pytest.warns(errors.MissingFilesWarning, match=r"part-001\.parquet is gone.* left out"):
        assert ds.count_rows() == 200
    # The warning is issued once. Another one would be an error.
    assert ds.count_rows("id = 150") == 0
    assert ds.count_rows("id = 250") == 1
    for ask in [*ways_to_ask(ds), *ways_of_others(ds)]:
        ask()
    assert_right(ds, folder, IDS)
    os.unlink(folder / "part-002.parquet")
    with pytest.warns(errors.MissingFilesWarning, match="and 1 more are gone"):
        assert ds.to_polars().collect().height == 100
    # This dataset keeps the option it was opened with.
    ds.refresh()
    os.unlink(folder / "part-000.parquet")
    write_part(folder, 3)
    with pytest.raises(errors.NoFragments):
        ds.count_rows()
    with pytest.raises(errors.InvalidArgument, match="one of read, raise, ignore-missing"):
        zb.dataset(folder, stale="ignore")


def test_a_stale_index_raises_on_request(folder: Path):
    build(zb.dataset(folder), "id", number_of_items=10)
    write_part(folder, 3)
    ds = zb.dataset(folder, stale="raise")
    ask_index: list[Any] = [
        lambda: ds.to_table(filter="id = 50"),
        lambda: ds.search("id = 50"),
        lambda: ds.search_many("id", [50]),
        lambda: ds.lookup("id", [50]),
        lambda: ds.locate("id", [50]),
        lambda: ds.scanner(filter="id = 50").explain_plan(),
    ]
    for ask in ask_index:
        with pytest.raises(errors.StaleIndex, match=r"1 of 4 files .*part-003\.parquet \(not ind"):
            ask()
    with pytest.raises(Exception, match="1 of 4 files is not covered by the index: "):
        ds.to_polars().filter(pl.col("id") == 50).collect()
    # Requests that would not use the index are answered.
    assert ds.count_rows() == ds.count_rows("row >= 0") == 400
    assert ds.count_rows("id = 50", use_scalar_index=False) == 1
    ds.optimize.optimize_indices(spark=False)
    assert ds.count_rows("id = 50") == 1
    path = folder / "part-001.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    for ask in ask_index:
        with pytest.raises(errors.StaleIndex, match="changed since it was indexed"):
            ask()
    ds.optimize.optimize_indices(spark=False)
    for table in index_folder(folder).rglob("bloomfilter.arrow"):
        table.write_bytes(table.read_bytes()[:-1])
    ds.refresh()
    for ask in ask_index:
        with pytest.raises(errors.CorruptIndex):
            ask()


def test_an_older_index_is_not_used_for_a_file_that_only_a_newer_index_covers(folder: Path):
    rewrite(folder / "part-001.parquet", part(1, range(1100, 1250)))
    ds = zb.dataset(folder)
    build(ds, "name", number_of_items=10)
    ds = zb.dataset(folder)
    # The catalog knows the new file, but id_idx has zones of the old one.
    assert ds.count_rows("name = 'n1150'") == 1
    with pytest.warns(StaleIndexWarning, match=r"part-001\.parquet \(not in index id_idx\)"):
        assert ds.count_rows("id = 1150") == 1
    assert_right(ds, folder, IDS)
    plan = str(ds.scanner(filter="id = 5").plan())
    assert "part-001.parquet: not covered by id_idx" in plan
    assert "2 of 3 fragments covered" in plan
    covered = {index.name: index.num_fragments_indexed for index in ds.describe_indices()}
    assert covered == {"id_idx": 2, "name_idx": 3}
    condition = "id = 1150 AND name = 'n1150'"
    assert len(at_most_rows(ds, condition)) == 10
    assert ds.count_rows(condition) == 1


def test_ids_of_deleted_files_are_not_reused(folder: Path):
    os.unlink(folder / "part-002.parquet")
    build(zb.dataset(folder), "name", number_of_items=10)
    pq.write_table(part(2, range(5000, 5100)), folder / "part-002.parquet")
    touch_later(folder / "part-002.parquet")
    ds = zb.dataset(folder)
    with pytest.warns(StaleIndexWarning):
        assert ds.count_rows("id = 5050") == 1
    build(ds, "name", number_of_items=10)
    ds = zb.dataset(folder)
    with pytest.warns(StaleIndexWarning, match="not in index id_idx"):
        assert ds.count_rows("id = 5050") == 1
    assert_right(ds, folder, IDS)


# Files that were added or deleted after the dataset was opened


def opened_as(folder: Path, source_kind: str) -> zb.Dataset:
    return {
        "folder": lambda: zb.dataset(folder),
        "pattern": lambda: zb.dataset(f"{folder}/*.parquet"),
        "URI": lambda: zb.dataset(folder.as_uri()),
        "index_dir": lambda: zb.dataset(folder, index_dir=f"{folder}-apart"),
        "relative path": lambda: zb.dataset(os.path.relpath(folder)),
    }[source_kind]()


@pytest.mark.parametrize("source_kind", ["folder", "pattern", "URI", "index_dir", "relative path"])
def test_refresh_lists_the_files_anew(
    folder: Path, source_kind: str, monkeypatch: pytest.MonkeyPatch
):
    ds = opened_as(folder, source_kind)
    monkeypatch.chdir("/")
    build(ds, "id", number_of_items=10)
    frame, filtered = ds.to_polars(), ds.to_polars().filter(pl.col("id") == 350)
    write_part(folder, 3)
    os.unlink(folder / "part-000.parquet")
    ds.refresh()
    assert [Path(file).name for file in ds.files] == [f"part-00{i}.parquet" for i in (1, 2, 3)]
    with pytest.warns(StaleIndexWarning, match="not indexed"):
        assert filtered.collect()["id"].to_list() == [350]
    assert frame.collect()["id"].to_list() == list(range(100, 400))
    assert ds.to_polars().collect().equals(frame.collect())
    assert_right(ds, folder, [*IDS, 350])
    opened = ds.opened
    ds.refresh()
    # The files are the same, so the dataset keeps the loaded index.
    assert ds.opened is opened


@pytest.mark.parametrize("kind", ["files", "pyarrow"])
def test_a_refresh_of_named_files_only_takes_the_newest_index(folder: Path, kind: str):
    ds = zb.dataset(sorted(folder.glob("*.parquet")) if kind == "files" else pads.dataset(folder))
    write_part(folder, 3)
    build(zb.dataset(folder), "name", number_of_items=10)
    ds.refresh()
    assert [index.name for index in ds.describe_indices()] == ["id_idx", "name_idx"]
    assert (len(ds.files), ds.count_rows("name = 'n150'"), ds.count_rows("name = 'n350'")) == (
        3,
        1,
        0,
    )


def test_a_refresh_that_fails_leaves_the_dataset_as_it_was(folder: Path):
    days = folder / "days"
    write_files(days / "day=a", [part(5)])
    ds = zb.dataset(f"{days}/*/*.parquet")
    write_files(days / "day=b", [part(6)])
    with pytest.raises(errors.SourceError, match=r"their index would be in .*; open the dataset"):
        ds.refresh()
    assert ds.count_rows() == 100
    shutil.rmtree(days)
    with pytest.raises(errors.NoFragments):
        ds.refresh()
    assert len(ds.files) == 1


def test_a_lazy_frame_is_refused_when_a_refresh_has_changed_the_columns(folder: Path):
    ds = zb.dataset(folder)
    frame = ds.to_polars()
    for number in range(3):
        rewrite(folder / f"part-{number:03d}.parquet", part(number).drop(["name"]))
    ds.refresh()
    with pytest.raises(Exception, match="columns of the dataset have changed"):
        frame.collect()


# Files whose metadata cannot be read


@pytest.fixture
def shared() -> Iterator[Path]:
    """Write two folders of files that another user may reach and read."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        root = Path(name) / "lake"
        for number, day in enumerate("ab"):
            write_files(root / f"day={day}", [part(number)])
        build(zb.dataset(root), "id", number_of_items=10)
        yield root


def test_a_folder_that_may_not_be_entered_is_an_error_as_in_pyarrow(shared: Path):
    ds = zb.dataset(shared)
    other = pads.dataset(shared, partitioning="hive")
    opening: list[Any] = [
        lambda: zb.dataset(f"{shared}/*/*.parquet"),
        lambda: zb.dataset(f"{shared}/**/*.parquet"),
        lambda: zb.dataset(shared / "day=b" / "part-000.parquet"),
        lambda: zb.dataset(shared),
        lambda: ds.optimize.optimize_indices(spark=False),
        lambda: build(ds, "name"),
    ]
    own_calls, other_calls = [*ways_to_ask(ds), *opening], ways_of_others(ds)
    message = r"cannot .*day=b.*Permission denied"
    with unreadable(shared / "day=b"):
        with pytest.raises(PermissionError):
            other.to_table()
        for ask in own_calls:
            with pytest.raises(errors.FragmentUnreadable, match=message):
                ask()
        for ask in other_calls:
            with pytest.raises(Exception, match=message):
                ask()
    # The dataset has not forgotten the files meanwhile.
    assert zb.dataset(shared).describe_indices()[0].num_fragments_indexed == 2
    assert at_most_rows(ds, "id = 150") == set(range(150, 160))


# Damage to the index itself


def test_a_column_whose_type_changed_is_scanned(folder: Path):
    for number in range(3):
        table = part(number)
        text = table["id"].cast(pa.string())
        rewrite(folder / f"part-{number:03d}.parquet", table.set_column(1, "id", text))
    ds = zb.dataset(folder)
    with pytest.warns(IndexNotUsedWarning, match="when column id was int64, but it is string now"):
        assert ds.count_rows("id = '150'") == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ZoneBloomWarning)
        text = ds.scanner(filter="id = '150'").explain_plan()
    assert "it is string now; build it again" in text
    build(ds, "id", number_of_items=10)
    assert at_most_rows(zb.dataset(folder), "id = '150'") == set(range(150, 160))


def test_a_dataset_without_its_indexed_column_is_readable(folder: Path):
    for number in range(3):
        rewrite(folder / f"part-{number:03d}.parquet", part(number).drop(["id"]))
    ds = zb.dataset(folder)
    assert ds.count_rows("name = 'n150'") == 1
    with pytest.raises(errors.FilterError, match="no column id"):
        ds.count_rows("id = 150")
    assert [index.name for index in ds.describe_indices()] == ["id_idx"]
    ds.drop_index("id_idx")
    assert zb.dataset(folder).describe_indices() == []


@pytest.fixture(params=["local", "other"])
def sharing(request, tmp_path: Path) -> Callable[[str], zb.Dataset]:
    """Open datasets "a", "b" and "a/part" with one index_dir, by absolute and relative paths."""
    for number, name in enumerate(("a", "b", "a/part")):
        (tmp_path / name).mkdir()
        ids = pa.array(range(number * 1000, (number + 1) * 1000), pa.int64())
        table = pa.table({"id": ids, f"of_{name[0]}": ids})
        pq.write_table(table, tmp_path / name / "data.parquet")
    if request.param == "local":
        return lambda name: zb.dataset(tmp_path / name, index_dir=str(tmp_path / "shared"))
    local = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    return lambda name: zb.dataset(name, filesystem=local, index_dir="shared")


def covered_by(ds: zb.Dataset) -> dict[str, int]:
    return {index.name: index.num_fragments_indexed for index in ds.describe_indices()}


def test_a_build_does_not_replace_another_datasets_index_in_a_shared_folder(sharing):
    sharing("a").create_scalar_index("id", number_of_items=100, spark=False)
    other = sharing("b")
    with pytest.raises(
        errors.IndexExists, match=r"'id_idx' in .*shared belongs to another dataset"
    ):
        other.create_scalar_index("id", number_of_items=100, spark=False)
    assert covered_by(sharing("a")) == {"id_idx": 2}
    # A dataset of some of its files must not replace it either.
    with pytest.raises(errors.IndexExists):
        sharing("a/part").create_scalar_index("id", spark=False)
    other.create_scalar_index("id", name="of b", number_of_items=100, spark=False)
    sharing("a").create_scalar_index("id", number_of_items=100, spark=False)
    assert covered_by(sharing("a")) == {"id_idx": 2, "of b": 0}
    assert covered_by(sharing("b")) == {"id_idx": 0, "of b": 1}
    # Its own index is used, although the index of "a" is newer.
    assert len(sharing("b").search("id = 1500").at_most) == 100


def test_an_index_of_another_dataset_is_refreshed_only_when_it_is_named(sharing):
    sharing("a").create_scalar_index("of_a", number_of_items=100, spark=False)
    sharing("b").create_scalar_index("of_b", number_of_items=100, spark=False)
    # "b" does not have the column of the index of "a".
    (outcome,) = sharing("b").optimize.optimize_indices(spark=False)
    assert (outcome.name, outcome.changed) == ("of_b_idx", False)
    assert covered_by(sharing("a")) == {"of_a_idx": 2, "of_b_idx": 0}


def test_refreshing_a_named_index_keeps_fragments_of_another_dataset(sharing):
    sharing("a").create_scalar_index("id", number_of_items=100, spark=False)
    (outcome,) = sharing("b").optimize.optimize_indices(["id_idx"], spark=False)
    assert (outcome.fragments_added, outcome.fragments_dropped) == (1, 0)
    assert covered_by(sharing("a")) == {"id_idx": 2}
    assert covered_by(sharing("b")) == {"id_idx": 1}


def test_the_index_of_a_deleted_dataset_is_replaced(sharing, tmp_path: Path):
    sharing("a").create_scalar_index("id", number_of_items=100, spark=False)
    shutil.rmtree(tmp_path / "a")
    sharing("b").create_scalar_index("id", number_of_items=100, spark=False)
    assert covered_by(sharing("b")) == {"id_idx": 1}


def test_an_index_that_another_dataset_builds_meanwhile_is_not_replaced(sharing, monkeypatch):
    ds = sharing("b")
    catalog = ds.opened.catalog
    commit = catalog.commit

    def overtaken(change):
        replace_function(monkeypatch, catalog, "commit", commit)
        sharing("a").create_scalar_index("id", number_of_items=100, spark=False)
        return commit(change)

    replace_function(monkeypatch, catalog, "commit", overtaken)
    with pytest.raises(errors.CatalogError):
        ds.create_scalar_index("id", number_of_items=100, spark=False)
    assert covered_by(sharing("a")) == {"id_idx": 2}


# Files over 1 MiB, of which a digest covers samples only


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Write two files of random ids, each larger than 1 MiB, and index them."""
    ids = np.random.default_rng(0).permutation(400_000)
    tables = [pa.table({"id": ids[start::2]}) for start in (0, 1)]
    paths = write_files(tmp_path / "data", tables, **PLAIN)
    assert min(path.stat().st_size for path in paths) > 1 << 20
    build(zb.dataset(tmp_path / "data"), "id")
    # A warning that a file was just written would be an error.
    assert zb.dataset(tmp_path / "data").count_rows("id = 7") == 1
    return tmp_path / "data"


@pytest.mark.parametrize("change", ["chmod", "hard link", "copy", "rename"])
def test_a_refresh_indexes_large_files_that_only_look_changed(large: Path, change: str):
    first = min(large.glob("*.parquet"))
    if change == "chmod":
        first.chmod(0o600)
    elif change == "hard link":
        os.link(first, large.parent / "snapshot")
    elif change == "copy":
        shutil.copy2(first, large.parent / "copy")
        os.replace(large.parent / "copy", first)
    else:
        first.rename(large / "renamed.parquet")
    ds = zb.dataset(large)
    with pytest.warns(StaleIndexWarning, match="1 of 2 files is not covered"):
        assert ds.count_rows("id = 7") == 1
    (refreshed,) = ds.optimize.optimize_indices(spark=False)
    assert (refreshed.fragments_added, refreshed.fragments_dropped) == (1, 1)
    for number in range(0, 400_000, 40_009):
        assert ds.count_rows(f"id = {number}") == 1
    assert ds.validate_index("id_idx", sample="all").state == "sound"

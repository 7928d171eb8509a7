"""The folder of an index, other readers of the folders around it, and moving an index."""

from __future__ import annotations

import json
import os
import shutil
import threading
import warnings
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from helpers import copy_dataset, without_privileges
from seams import replace_function

import zonebloom as zb
from zonebloom.building import move
from zonebloom.catalog.place import can_create_index, default_index_folders
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    CatalogError,
    CommitConflict,
    IndexExists,
    IndexNotFound,
    InvalidArgument,
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


def build_inside(folder: Path) -> Path:
    """Build an index in the folder that earlier releases used."""
    build(zb.dataset(folder, index_dir=str(folder / "_zonebloom")))
    assert (folder / "_zonebloom" / "versions").is_dir()
    return folder / "_zonebloom"


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
    zb.dataset(logs).move_index(str(tmp_path / "elsewhere"))
    assert num_zones(zb.dataset(logs / "year=2026" / "day=1"), 1042) == 1


def test_stores_keep_buckets_apart_and_local_roots_inside():
    def places(root: str, filesystem: pafs.FileSystem = LOCAL) -> tuple[str, ...]:
        return default_index_folders(filesystem, root)

    s3 = pafs.S3FileSystem(region="eu-west-1", anonymous=True)
    assert places("bucket/a", s3) == ("bucket/_zonebloom/a", "bucket/a/_zonebloom")
    assert places("bucket", s3) == ("bucket/_zonebloom",)
    below = pafs.SubTreeFileSystem("/nowhere", LOCAL)
    assert places("a", below) == ("_zonebloom/a", "a/_zonebloom")
    assert places("/missing") == ("/missing/_zonebloom",)
    # An index stays on the volume of its data. In a folder like /tmp, users could forge one.
    assert places("/proc/self") == ("/proc/self/_zonebloom",) or os.path.islink("/proc/self")
    assert places("/proc") == ("/proc/_zonebloom",)


def test_beside_data_of_other_users_the_index_lies_inside(lake):
    lake.parent.chmod(0o1777)
    with pytest.warns(ZoneBloomWarning, match="no folder above it can hold"):
        build(zb.dataset(lake))
    assert zb.dataset(lake).index_dir == str(lake / "_zonebloom")
    assert num_zones(zb.dataset(lake)) == 1


def test_where_the_parent_cannot_be_written_the_index_lies_inside(tmp_path):
    # Only privileged users can enter the folder of the test itself.
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    lake = tmp_path / "lake" / "logs"
    write(lake, 0)
    lake.chmod(0o777)
    lake.parent.chmod(0o555)
    wanted = (
        rf"(?s){lake}/_zonebloom, because {lake.parent}/_zonebloom/logs cannot be .*Polars.*Spark"
    )
    with without_privileges(), pytest.warns(ZoneBloomWarning, match=wanted):
        ds = build(zb.dataset(lake))
    assert ds.index_dir == zb.dataset(lake).index_dir == str(lake / "_zonebloom")
    assert not (lake.parent / "_zonebloom").exists()
    # The warning is issued once.
    build(zb.dataset(lake))
    assert num_zones(zb.dataset(lake)) == 1


def test_an_index_can_be_created_below_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "missing")
    for folder in ("new", "new/_zonebloom/logs", "./new", "../new", ""):
        assert can_create_index(LOCAL, folder), folder
    for folder in ("file/new", "dangling/new"):
        assert not can_create_index(LOCAL, folder), folder


def test_a_folder_shares_its_place_as_its_parent_is_shared(lake):
    lake.parent.chmod(0o777)
    lake.chmod(0o750)
    build(zb.dataset(lake))
    shared = lake.parent / "_zonebloom"
    assert shared.stat().st_mode & 0o777 == 0o777
    assert (shared / "logs").stat().st_mode & 0o777 == 0o750


def test_data_and_index_can_be_copied_together(lake, tmp_path):
    build(zb.dataset(lake))
    copy = copy_dataset(lake, tmp_path / "there" / "copy")
    ds = zb.dataset(copy)
    ds.adopt_index()
    assert ds.describe_indices()[0].num_fragments_indexed == FILES
    assert num_zones(ds) == 1
    # Moving the parent moves the indices of all its folders.
    shutil.copytree(lake.parent, tmp_path / "all")
    ds = zb.dataset(tmp_path / "all" / "logs")
    assert ds.adopt_index().left == ()
    assert num_zones(ds) == 1


# An index inside the data folder, as earlier releases built it


def test_an_index_inside_is_found_and_written_to(lake):
    inside = build_inside(lake)
    for source in (lake, f"{lake}/*.parquet", [str(path) for path in lake.glob("*.parquet")]):
        ds = zb.dataset(source)
        assert ds.index_dir == str(inside)
        assert num_zones(ds) == 1
    write(lake, FILES)
    ds = zb.dataset(lake)
    ds.optimize.optimize_indices(spark=False)
    build(ds)
    assert num_zones(zb.dataset(lake), 3042) == 1
    assert not (lake.parent / "_zonebloom").exists()


@pytest.mark.parametrize("source", ["folder", "list"])
def test_a_dataset_that_is_open_follows_its_index(lake, source):
    build_inside(lake)
    paths = [str(path) for path in sorted(lake.glob("*.parquet"))]
    ds = zb.dataset(lake if source == "folder" else paths)
    moved = zb.dataset(lake).move_index()
    assert moved == move.MovedIndex(str(lake.parent / "_zonebloom" / "logs"), 3, ())
    assert sorted(os.listdir(lake)) == [f"{number}.parquet" for number in range(FILES)]
    ds.checkout_latest()
    assert (ds.index_dir, num_zones(ds)) == (moved.index_dir, 1)
    build(ds)
    assert not (lake / "_zonebloom").exists()
    assert num_zones(zb.dataset(lake)) == 1


def test_a_commit_to_an_index_that_was_moved_is_refused(lake):
    build_inside(lake)
    late = zb.dataset(lake)
    zb.dataset(lake).move_index()
    with pytest.raises(CommitConflict, match="was moved or deleted"):
        late.drop_index("id_idx")
    assert not (lake / "_zonebloom").exists()


# Moving


@pytest.mark.parametrize("encryption", [None, zb.Encryption("a", {"a": bytes(32)})])
def test_an_index_is_moved_to_any_folder_and_back(lake, tmp_path, encryption):
    elsewhere = str(tmp_path / "elsewhere")
    ds = build(zb.dataset(lake, encryption=encryption))
    default = ds.index_dir
    for index_dir in (elsewhere, str(lake / "_zonebloom"), elsewhere, None):
        moved = ds.move_index(index_dir)
        assert (moved.index_dir, moved.foreign_files) == (index_dir or default, ())
        assert ds.index_dir == moved.index_dir
        again = zb.dataset(lake, index_dir=index_dir, encryption=encryption)
        for opened in (ds, again):
            opened.refresh()
            assert num_zones(opened) == 1
            assert opened.validate_index("id_idx", sample="all").state == "sound"
        others = {default, elsewhere, str(lake / "_zonebloom")} - {moved.index_dir}
        assert not any(map(os.path.exists, others))
    write(lake, FILES)
    ds.optimize.optimize_indices(spark=False)
    assert num_zones(zb.dataset(lake, encryption=encryption), 3042) == 1
    assert ds.move_index().num_files == 0


def test_a_move_is_refused_where_it_would_lose_an_index(lake, tmp_path):
    other = tmp_path / "other"
    write(other, 7)
    with pytest.raises(IndexNotFound, match="to move"):
        zb.dataset(lake).move_index(str(tmp_path / "new"))
    shared = str(tmp_path / "shared")
    build(zb.dataset(other, index_dir=shared))
    ds = build(zb.dataset(lake))
    with pytest.raises(IndexExists, match="already holds an index"):
        ds.move_index(shared)
    zb.dataset(lake, index_dir=shared).create_scalar_index("id", name="mine", spark=False)
    with pytest.raises(InvalidArgument, match="also covers other files"):
        zb.dataset(lake, index_dir=shared).move_index(str(tmp_path / "new"))
    assert num_zones(zb.dataset(lake)) == 1
    assert num_zones(zb.dataset(other, index_dir=shared), 7042) == 1
    assert not (tmp_path / "new").exists()


def test_a_move_is_refused_when_another_writer_commits_meanwhile(lake, monkeypatch):
    inside = build_inside(lake)
    copy, writer = move.copy_file, zb.dataset(lake)

    def copied(*arguments):
        copy(*arguments)
        if writer.version == 1:
            build(writer)

    replace_function(monkeypatch, move, "copy_file", copied)
    with pytest.raises(CommitConflict, match="another writer committed"):
        zb.dataset(lake).move_index()
    assert not (lake.parent / "_zonebloom").exists()
    ds = zb.dataset(lake)
    assert (ds.index_dir, ds.version, num_zones(ds)) == (str(inside), 2, 1)
    build(ds)
    monkeypatch.undo()
    assert zb.dataset(lake).move_index().foreign_files == ()


def test_while_an_index_moves_no_writer_commits(lake, monkeypatch):
    build_inside(lake)
    commit, seen = Catalog.commit, []

    def watched(catalog, change):
        if catalog.folder == str(lake.parent / "_zonebloom" / "logs"):
            # The old index is complete, and closed for writers.
            ds = zb.dataset(lake)
            assert (ds.index_dir, num_zones(ds)) == (str(lake / "_zonebloom"), 1)
            with pytest.raises(CommitConflict, match="is being moved to"):
                ds.drop_index("id_idx")
            seen.append(ds.version)
        return commit(catalog, change)

    replace_function(monkeypatch, Catalog, "commit", watched)
    zb.dataset(lake).move_index()
    assert seen == [2]
    assert num_zones(zb.dataset(lake)) == 1


# Other processes at the same time


def before_commits(monkeypatch, folder: Path, act) -> None:
    """Call a function once, before the first commit to a folder."""
    commit, calls = Catalog.commit, []

    def acting(catalog, change):
        if catalog.folder == str(folder) and not calls:
            calls.append(act)
            act()
        return commit(catalog, change)

    replace_function(monkeypatch, Catalog, "commit", acting)


def assert_one_sound_index(lake: Path, folder: Path) -> None:
    ds = zb.dataset(lake)
    assert (ds.index_dir, num_zones(ds)) == (str(folder), 1)
    assert ds.validate_index("id_idx", sample="all").state == "sound"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(ds)
    segments = {path.name for path in (folder / "segments").iterdir()}
    assert segments >= ds.opened.version.segment_names


@pytest.fixture
def places(lake: Path) -> tuple[Path, Path]:
    """The default folders for the index: beside the data and inside."""
    return lake.parent / "_zonebloom" / "logs", lake / "_zonebloom"


def test_a_build_in_the_other_default_folder_survives_a_move_that_has_nothing_to_do(
    lake, places, monkeypatch
):
    beside, inside = places
    builder = zb.dataset(lake, index_dir=str(inside))
    build(zb.dataset(lake))
    moved = []
    before_commits(monkeypatch, inside, lambda: moved.append(zb.dataset(lake).move_index()))
    build(builder)
    assert moved == [move.MovedIndex(str(beside), 0, ())]
    assert builder.validate_index("id_idx", sample="all").state == "sound"
    assert_one_sound_index(lake, beside)
    with pytest.raises(IndexExists, match="another index"):
        zb.dataset(lake).move_index()
    assert builder.validate_index("id_idx", sample="all").state == "sound"


def test_a_build_in_the_new_folder_survives_a_move_to_it_that_fails(lake, places, monkeypatch):
    """Another writer commits first. The index in the old folder can be written to again."""
    beside, inside = places
    build_inside(lake)
    builder = Catalog(LOCAL, str(beside))
    # Files of another build that has not committed.
    running = beside / "segments" / f"{'a' * 16}-0-0000-0"

    def build_in_new_folder() -> None:
        builder.commit(lambda version: version)
        running.mkdir(parents=True)
        (running / "bloomfilter.arrow").write_bytes(b"x")

    before_commits(monkeypatch, beside, build_in_new_folder)
    with pytest.raises(IndexExists, match="delete one of both"):
        zb.dataset(lake).move_index()
    assert [path.name for path in (beside / "segments").iterdir()] == [running.name]
    assert builder.newest_number() == 1
    old = Catalog(LOCAL, str(inside)).latest()
    assert (old.number, old.moved_to) == (3, "")
    shutil.rmtree(beside)
    assert_one_sound_index(lake, inside)


def test_a_move_commits_before_a_build_in_the_new_folder(lake, places, monkeypatch):
    beside, inside = places

    def build_and_move() -> None:
        build_inside(lake)
        moves.append(zb.dataset(lake).move_index())

    moves: list[move.MovedIndex] = []
    before_commits(monkeypatch, beside, build_and_move)
    # The build replaces the index of the same name that was moved.
    build(zb.dataset(lake))
    assert moves == [move.MovedIndex(str(beside), 3, ())]
    assert not inside.exists()
    assert_one_sound_index(lake, beside)


@pytest.mark.parametrize("step", ["copy_file", "close", "commit"])
def test_of_two_moves_to_one_folder_one_fails_and_the_index_stays_whole(
    lake, places, monkeypatch, step
):
    """The second move runs from its begin to its end in the middle of the first."""
    beside, inside = places
    build_inside(lake)
    copy, calls = move.copy_file, []

    def move_in_between() -> None:
        if not calls:
            calls.append(step)
            assert zb.dataset(lake).move_index().index_dir == str(beside)

    def copied(*arguments):
        copy(*arguments)
        move_in_between()

    if step == "copy_file":
        replace_function(monkeypatch, move, "copy_file", copied)
    else:
        before_commits(monkeypatch, inside if step == "close" else beside, move_in_between)
    with pytest.raises(CommitConflict):
        zb.dataset(lake).move_index()
    assert calls and not inside.exists()
    assert len(list((beside / "segments").iterdir())) == 2
    assert_one_sound_index(lake, beside)


def test_moves_at_the_same_time_leave_one_whole_index(lake, places):
    beside, inside = places
    build_inside(lake)
    errors: list[Exception] = []

    def move_once(barrier: threading.Barrier) -> None:
        ds = zb.dataset(lake)
        barrier.wait()
        try:
            ds.move_index()
        except Exception as error:  # noqa: BLE001 - handed to the test's thread
            errors.append(error)

    for round_number in range(5):
        ds = zb.dataset(lake)
        if round_number:
            ds.move_index(str(inside))
        barrier = threading.Barrier(3)
        threads = [threading.Thread(target=move_once, args=(barrier,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(isinstance(error, CommitConflict) for error in errors), errors
        assert_one_sound_index(lake, Path(zb.dataset(lake).index_dir))
        zb.dataset(lake).move_index()
        assert not inside.exists()
        assert_one_sound_index(lake, beside)


def test_an_old_file_that_cannot_be_deleted_is_named_and_not_called_foreign(open_folder):
    lake = open_folder / "lake" / "logs"
    write(lake, 0)
    ds = build(zb.dataset(lake))
    elsewhere = open_folder / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    old = Path(ds.index_dir)
    (segment,) = old.glob("segments/*/bloomfilter.arrow")
    for path in (old, *old.rglob("*")):
        path.chmod(0o777)
    segment.parent.chmod(0o555)
    with without_privileges(), pytest.raises(CatalogError, match="make that folder writable") as e:
        ds.move_index(str(elsewhere))
    assert f"was moved to {elsewhere}, but its old files in {old}" in str(e.value)
    assert num_zones(zb.dataset(lake, index_dir=str(elsewhere))) == 1
    segment.parent.chmod(0o777)
    (old / "notes.txt").touch()
    with without_privileges():
        moved = ds.move_index(str(elsewhere))
    assert moved == move.MovedIndex(str(elsewhere), 0, (str(old / "notes.txt"),))


class Killed(BaseException):
    """An error that simulates the end of the process."""


@pytest.mark.parametrize("target", ["beside", "inside", "inside, encrypted"])
@pytest.mark.parametrize("call", ["copy_file", "_commit_move", "_delete_index", "delete_segment"])
def test_a_move_that_died_leaves_one_whole_index_and_is_finished(
    lake, places, monkeypatch, call, target
):
    old, new = places[::-1] if target == "beside" else places
    encryption = zb.Encryption("a", {"a": bytes(32)}) if "encrypted" in target else None
    build(zb.dataset(lake, index_dir=str(old), encryption=encryption))
    todo = getattr(move, call)

    def dying(*arguments):
        if call != "_delete_index":
            todo(*arguments)
        raise Killed

    replace_function(monkeypatch, move, call, dying)
    with pytest.raises(Killed):
        zb.dataset(lake, encryption=encryption).move_index(str(new))
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = zb.dataset(lake, encryption=encryption)
        assert num_zones(ds) == 1
        assert ds.validate_index("id_idx", sample="all").state == "sound"
    zb.dataset(lake, encryption=encryption).move_index(str(new))
    assert not old.exists()
    assert num_zones(zb.dataset(lake, encryption=encryption)) == 1


def test_a_copy_that_differs_is_not_used(lake, monkeypatch):
    build_inside(lake)
    create = Catalog.open_output_stream

    def create_and_forget(catalog, path):
        stream = create(catalog, path)
        if not path.endswith("bloomfilter.arrow"):
            return stream
        # The file stays empty, because the bytes go to a device that stores nothing.
        stream.close()
        return open(os.devnull, "wb")

    replace_function(monkeypatch, Catalog, "open_output_stream", create_and_forget)
    with pytest.raises(zb.errors.CatalogError, match="is not a copy of"):
        zb.dataset(lake).move_index()
    monkeypatch.undo()
    assert num_zones(zb.dataset(lake)) == 1
    assert zb.dataset(lake).index_dir == str(lake / "_zonebloom")


def test_what_others_keep_in_the_old_folder_stays(lake, tmp_path):
    inside = build_inside(lake)
    foreign = [inside / "notes.txt", inside / "segments" / "theirs" / "data.bin"]
    foreign += [inside / "versions" / "latest.json", inside / "segments" / f"{'0' * 16}-0" / "x"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    aside = tmp_path / "aside"
    aside.mkdir()
    (aside / "pages.arrow").write_bytes(b"x")
    (inside / "segments" / f"{'1' * 16}-0").symlink_to(aside, target_is_directory=True)
    moved = zb.dataset(lake).move_index()
    assert set(map(str, foreign)) <= set(moved.foreign_files)
    assert all(path.exists() for path in foreign) and (aside / "pages.arrow").exists()
    assert not list((inside / "versions").glob("0*"))
    assert num_zones(zb.dataset(lake)) == 1


def test_the_catalog_in_a_moved_index_is_relative_to_the_data(lake):
    build(zb.dataset(lake))
    (document,) = (lake.parent / "_zonebloom" / "logs" / "versions").glob("*.json")
    assert str(lake) not in document.read_text()
    assert set(Catalog(LOCAL, str(lake.parent / "_zonebloom" / "logs")).latest().fragments) == {
        f"{number}.parquet" for number in range(FILES)
    }
    assert json.loads(document.read_text())["content"]["version"] == 1

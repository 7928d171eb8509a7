"""Test that a vacuum deletes what the newest version does not name, and nothing else."""

from __future__ import annotations

import os
import shutil
import threading
import time
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from support.helpers import index_folder, run_python, without_privileges

import zonebloom as zb
from zonebloom.building.segments import compact_indices
from zonebloom.catalog.model import PAGE_MAP_FILE, PageMapEntry
from zonebloom.catalog.page_maps import load_page_map
from zonebloom.catalog.store import Catalog
from zonebloom.catalog.vacuum import vacuum_catalog
from zonebloom.catalog.version_log import VersionLog
from zonebloom.errors import CatalogError, CommitConflict, IndexNotUsedWarning
from zonebloom.parquet.page_map import merge_page_maps
from zonebloom.results import Vacuumed
from zonebloom.storage.store import LOCAL


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"id": range(20_000), "x": range(20_000)}), tmp_path / "a.parquet")
    return tmp_path


def age(folder: Path) -> None:
    then = time.time() - 3600
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def test_a_vacuum_deletes_replaced_and_dropped_segments_and_lookups_still_work(lake):
    dataset = zb.dataset(lake)
    for column in ("id", "id", "x"):
        dataset.create_scalar_index(column, spark=False)
    dataset.drop_index("x_idx")
    folder = index_folder(lake)
    age(folder)
    # Every build wrote a segment and a page map. The last page map is shared by all indices.
    assert len(list((folder / "segments").iterdir())) == 6
    result = dataset.vacuum(older_than=timedelta(minutes=1))
    assert (result.num_segments, result.num_versions) == (4, 4)
    # 20,000 rows have three zones. The filter of the short one is folded.
    assert result.num_bytes > 2 * (2 * 32_768 + 8_192)
    assert len(list((folder / "segments").iterdir())) == 2
    reopened = zb.dataset(lake)
    # One version marks the segments for deletion.
    assert reopened.version == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reopened.count_rows(filter="id = 7") == 1
    assert "zones kept" in reopened.scanner(filter="id = 7").explain_plan()


def test_a_vacuum_keeps_young_segments(lake):
    dataset = zb.dataset(lake)
    dataset.create_scalar_index("id", spark=False)
    dataset.create_scalar_index("id", spark=False)
    under_way = index_folder(lake) / "segments" / "0123456789abcdef-0-0000-0"
    under_way.mkdir()
    (under_way / "bloomfilter.arrow").write_bytes(b"")
    before = sorted(index_folder(lake).rglob("*"))
    assert dataset.vacuum() == Vacuumed(0, 0, 0)
    assert sorted(index_folder(lake).rglob("*")) == before


def test_a_reader_of_a_deleted_version_loses_no_row(lake):
    reader = zb.dataset(lake)
    reader.create_scalar_index("id", spark=False)
    writer = zb.dataset(lake)
    stale = zb.dataset(lake)
    writer.create_scalar_index("id", spark=False)
    age(index_folder(lake))
    writer.vacuum(older_than=timedelta(minutes=1))
    with pytest.warns(IndexNotUsedWarning, match="cannot open"):
        assert stale.count_rows(filter="id = 19999") == 1


def test_a_vacuum_keeps_versions_that_were_replaced_recently(lake):
    zb.dataset(lake).create_scalar_index("id", spark=False)
    folder = index_folder(lake)
    long_ago = time.time() - timedelta(days=30).total_seconds()
    for path in folder.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    reader = zb.dataset(lake)
    zb.dataset(lake).create_scalar_index("id", spark=False)
    assert zb.dataset(lake).vacuum() == Vacuumed(0, 0, 0)
    # The tables of the index are loaded now, and no warning is issued.
    assert len(reader.search("id = 7").at_most) == 8192
    replaced = time.time() - timedelta(days=8).total_seconds()
    (newest,) = (folder / "versions").glob("*2.json")
    os.utime(newest, (replaced, replaced))
    result = zb.dataset(lake).vacuum()
    assert (result.num_versions, result.num_segments) == (1, 2)
    assert zb.dataset(lake).validate_index("id_idx") == 3


def set_age(path: Path, days: int) -> None:
    then = time.time() - timedelta(days=days).total_seconds()
    os.utime(path, (then, then))


def set_segment_ages(folder: Path, days: int) -> None:
    for path in (folder / "segments").rglob("*"):
        set_age(path, days)


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["plain", "encrypted"])
def test_segments_written_long_before_their_commit_are_kept_for_its_readers(lake, key):
    """The versions before and after the commit do not name the segments."""
    encryption = None if key is None else zb.Encryption("a", {"a": key})
    folder = index_folder(lake)

    def open_lake() -> zb.Dataset:
        return zb.dataset(lake, encryption=encryption)

    def version_files(number: int) -> list[Path]:
        return list((folder / "versions").glob(f"*{number}.json"))

    open_lake().create_scalar_index("id", spark=False)
    open_lake().create_scalar_index("id", spark=False)
    # The second build began before the limit of the vacuum, and committed after it.
    set_segment_ages(folder, days=30)
    reader = open_lake()
    open_lake().create_scalar_index("id", spark=False)
    (second,), (third,) = version_files(2), version_files(3)
    set_age(second, days=7)
    for path in (folder / "versions").glob("*1*"):
        set_age(path, days=30)
    names = reader.opened.version.segment_names
    assert not names & open_lake().opened.version.segment_names
    result = open_lake().vacuum(timedelta(days=7, minutes=1))
    assert (result.num_versions, result.num_segments) == (0, 0)
    assert names <= {path.name for path in (folder / "segments").iterdir()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(reader.search("id = 7").at_most) == 8192
    # One version later, only the first version was replaced before the limit.
    result = open_lake().vacuum(timedelta(days=6))
    assert (result.num_versions, result.num_segments) == (1, 2)
    assert names <= {path.name for path in (folder / "segments").iterdir()}
    set_age(third, days=7)
    result = open_lake().vacuum(timedelta(days=6))
    assert (result.num_versions, result.num_segments) == (1, 2)
    assert not names & {path.name for path in (folder / "segments").iterdir()}
    assert open_lake().validate_index("id_idx") == 3


def test_nothing_is_deleted_while_a_kept_version_cannot_be_read(lake):
    for _ in range(3):
        zb.dataset(lake).create_scalar_index("id", spark=False)
    folder = index_folder(lake)
    set_segment_ages(folder, days=30)
    (second,) = (folder / "versions").glob("*2.json")
    document = second.read_bytes()
    second.write_bytes(document[:-20])
    before = sorted(folder.rglob("*"))
    assert zb.dataset(lake).vacuum() == Vacuumed(0, 0, 0)
    assert sorted(folder.rglob("*")) == before
    (third,) = (folder / "versions").glob("*3.json")
    set_age(third, days=8)
    set_age(second, days=9)
    # The first version is younger than the limit, so its file is kept. Its segments are not.
    assert zb.dataset(lake).vacuum().num_segments == 4
    assert zb.dataset(lake).validate_index("id_idx") == 3


@pytest.mark.parametrize(
    ("options", "num_versions"),
    [({}, 4), ({"retention": None}, 4), ({"retention": timedelta(0)}, 1)],
    ids=["default", "none", "zero"],
)
def test_a_refresh_forgets_segments_that_were_replaced_long_ago(lake, options, num_versions):
    zb.dataset(lake).create_scalar_index("id", spark=False)
    for number in range(3):
        pq.write_table(pa.table({"id": [number], "x": [0]}), lake / f"late-{number}.parquet")
        ds = zb.dataset(lake)
        ds.optimize.optimize_indices(spark=False, **options)
    segments = {path.name for path in (index_folder(lake) / "segments").iterdir()}
    assert len(list((index_folder(lake) / "versions").glob("*.json"))) == num_versions
    if num_versions == 1:
        assert segments == ds.opened.version.segment_names
    assert zb.dataset(lake).validate_index("id_idx", sample="all") == 6


class Vacuuming(threading.Thread):
    """Vacuum without a grace period until the event is set."""

    def __init__(self, lake: Path):
        super().__init__()
        self._catalog = Catalog(pafs.LocalFileSystem(), str(index_folder(lake)))
        self._stopped = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                vacuum_catalog(self._catalog, timedelta(0))
        except Exception as error:  # noqa: BLE001 - handed to the test's thread
            self.error = error

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        if self.error is not None:
            raise self.error


@pytest.mark.slow
def test_a_build_during_vacuums_without_grace_fails_or_is_complete(lake):
    zb.dataset(lake).create_scalar_index("x", spark=False)
    vacuuming = Vacuuming(lake)
    vacuuming.start()
    outcomes = set()
    try:
        for number in range(30):
            writer = zb.dataset(lake)
            try:
                writer.create_scalar_index("id", name=f"id{number % 3}", spark=False)
            except CommitConflict:
                outcomes.add("refused")
                continue
            outcomes.add("built")
    finally:
        vacuuming.stop()
    newest = zb.dataset(lake)
    for index in newest.describe_indices():
        assert newest.validate_index(index.name) == 3
    assert "x_idx" in {index.name for index in newest.describe_indices()}
    assert outcomes


def test_a_log_is_never_empty_while_each_version_is_replaced_by_the_next(tmp_path):
    log = VersionLog(LOCAL, str(tmp_path))
    Path(log.path(1)).touch()
    stopped = threading.Event()

    def replace_versions() -> None:
        number = 1
        while not stopped.is_set():
            Path(log.path(number + 1)).touch()
            Path(log.path(number)).unlink()
            number += 1

    writer = threading.Thread(target=replace_versions)
    writer.start()
    try:
        assert all(log.numbers() for _ in range(3000))
    finally:
        stopped.set()
        writer.join()


@pytest.mark.slow
def test_a_dataset_can_be_opened_while_index_folders_appear_and_disappear(lake):
    zb.dataset(lake).create_scalar_index("x", spark=False)
    stop_event = threading.Event()
    folders = [index_folder(lake) / "segments" / f"passing-{number}" for number in range(50)]

    def come_and_go() -> None:
        while not stop_event.is_set():
            for folder in folders:
                (folder / "below").mkdir(parents=True)
            for folder in folders:
                shutil.rmtree(folder)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(200):
            assert zb.dataset(lake).count_rows() == 20_000
    finally:
        stop_event.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["drop_index", "vacuum", "create_scalar_index"])
def test_the_error_on_a_full_disk_says_what_to_do(lake, deed):
    zb.dataset(lake).create_scalar_index("x", spark=False)
    output = run_python(
        """
        import resource, sys
        from datetime import timedelta
        import zonebloom as zb
        from zonebloom.errors import CatalogError

        ds = zb.dataset(sys.argv[1])
        zb.warmup()
        # Import everything first: a module imported now would be truncated for later processes.
        sys.dont_write_bytecode = True
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        arguments = {"vacuum": timedelta(0), "drop_index": "x_idx", "create_scalar_index": "id"}
        try:
            getattr(ds, sys.argv[2])(arguments[sys.argv[2]])
        except CatalogError as error:
            print(error, error.__cause__, error.__suppress_context__)
        """,
        lake,
        deed,
    )
    if deed == "vacuum":
        # Deleting needs no disk space.
        assert output == ""
    else:
        assert f"cannot write to {index_folder(lake)}" in output
        assert "make room there, or give another index_dir" in output
        assert output.rstrip().endswith("None True")
    assert zb.dataset(lake).validate_index("x_idx") == 3


@pytest.mark.parametrize("deed", ["drop_index", "vacuum"])
def test_the_error_for_an_unwritable_folder_says_what_to_do(open_folder, deed):
    data = open_folder / "data"
    data.mkdir()
    pq.write_table(pa.table({"x": range(20_000)}), data / "a.parquet")
    for _ in range(2):
        zb.dataset(data).create_scalar_index("x", spark=False)
    for path in (open_folder, *open_folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    ds = zb.dataset(data)
    acts = {
        "drop_index": lambda: ds.drop_index("x_idx"),
        "vacuum": lambda: ds.vacuum(timedelta(0)),
    }
    with without_privileges(), pytest.raises(CatalogError, match="make it writable") as caught:
        acts[deed]()
    assert str(index_folder(data)) in str(caught.value)
    assert zb.dataset(data).validate_index("x_idx") == 3


def test_an_unlistable_catalog_is_reported_and_the_data_is_read(open_folder):
    data, index = open_folder / "data", open_folder / "index"
    data.mkdir()
    pq.write_table(pa.table({"x": range(20_000)}), data / "a.parquet")
    zb.dataset(data, index_dir=str(index)).create_scalar_index("x", spark=False)
    (index / "versions").chmod(0)
    with without_privileges():
        with pytest.warns(IndexNotUsedWarning, match="make it readable"):
            ds = zb.dataset(data, index_dir=str(index))
        assert ds.count_rows(filter="x = 7") == 1
        with pytest.warns(IndexNotUsedWarning), pytest.raises(CatalogError, match=str(index)):
            ds.create_scalar_index("x", spark=False)


def test_vacuum_of_a_dataset_without_an_index_does_nothing(lake):
    assert zb.dataset(lake).vacuum().num_bytes == 0
    assert not index_folder(lake).exists()


# Foreign files and folders


@pytest.fixture
def shared(lake: Path, tmp_path_factory) -> tuple[zb.Dataset, Path, Path]:
    """Return a dataset with one index, the index folder, and a folder of another program."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "bloomfilter.arrow").write_bytes(b"of others")
    ds = zb.dataset(lake)
    ds.create_scalar_index("id", spark=False)
    return ds, index_folder(lake), elsewhere


def test_a_vacuum_deletes_segments_that_a_spark_task_left(shared):
    ds, folder, _ = shared
    names = ["0123456789abcdef-0-0003-00c0ffee-1", "0123456789abcdef-0-0003-00c0ffee-pages"]
    names += ["0123456789abcdef-0-0003-00c0ffee-1-keys", "0123456789abcdef-1-all-2"]
    for name in names:
        (folder / "segments" / name).mkdir()
    age(folder)
    result = ds.vacuum(timedelta(minutes=1))
    assert (result.num_segments, result.foreign) == (4, ())


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_vacuum_deletes_no_copy_of_a_segment_in_a_foreign_folder(shared, is_remote):
    ds, folder, _ = shared
    (segment,) = {path.name for path in (folder / "segments").iterdir() if "pages" not in path.name}
    copied = folder / "segments" / "mine" / segment
    shutil.copytree(folder / "segments" / segment, copied)
    (copied / "export.arrow").write_bytes(b"of others")
    names = sorted(os.listdir(copied))
    ds.create_scalar_index("id", number_of_items=500, replace=True, spark=False)
    age(folder)
    filesystem, root = LOCAL.filesystem, str(folder)
    if is_remote:
        filesystem = pafs.SubTreeFileSystem(str(folder.parent), filesystem)
        root = folder.name
    result = vacuum_catalog(Catalog(filesystem, root), timedelta(minutes=1))
    assert (result.num_segments, result.foreign) == (2, ("segments/mine",))
    assert sorted(os.listdir(copied)) == names


def split_page_maps(catalog: Catalog) -> None:
    """Commit a version that has a page map of its own for each fragment."""
    entries = []
    for entry in catalog.latest().page_maps:
        table = load_page_map(catalog, entry).table
        for row, fragment_id in enumerate(table["fragment_id"].to_pylist()):
            name = f"{catalog.new_segment_prefix()}-pages"
            data = merge_page_maps([table.slice(row, 1)])
            written = catalog.write(catalog.path(name, PAGE_MAP_FILE), data)
            entries.append(PageMapEntry(name, *written, (fragment_id,)))
    catalog.commit(lambda latest: replace(latest, page_maps=tuple(entries)))


@pytest.mark.parametrize("everything", [False, True])
def test_page_maps_are_merged_even_if_no_segments_are(tmp_path, everything):
    num_files = 20
    for number in range(num_files):
        rows = pa.table({"id": range(number * 1000, (number + 1) * 1000)})
        pq.write_table(rows, tmp_path / f"{number:02d}.parquet")
    zb.dataset(tmp_path).create_scalar_index("id", spark=False)
    folder = index_folder(tmp_path)
    catalog = Catalog(pafs.LocalFileSystem(), str(folder))
    split_page_maps(catalog)
    before = catalog.latest()
    assert len(before.page_maps) == num_files
    assert len(before.indices["id_idx"].segments) == 1

    compact_indices(catalog, ["id_idx"], everything=everything)
    after = catalog.latest()
    assert after.indices == before.indices
    assert after.number == before.number + 1
    (page_map,) = after.page_maps
    assert sorted(page_map.fragment_ids) == list(range(num_files))
    ds = zb.dataset(tmp_path)
    for fragment in ds.opened.look().fragments:
        assert ds.opened.look().page_maps.file_pages(fragment) is not None
    for key in (0, 10_500, 19_999, 20_000):
        assert ds.scanner(filter=f"id = {key}").count_rows() == (key < 20_000)

    # There is nothing left to merge, so there is no new version and no new file.
    files = sorted(folder.rglob("*"))
    compact_indices(catalog, ["id_idx"], everything=everything)
    assert sorted(folder.rglob("*")) == files

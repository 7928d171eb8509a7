"""Test IndexManager with queries: apply, explain, why_not and hybrid scan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.spark_data import files_read, rows

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import IndexNotFound, IndexNotUsedWarning, InvalidArgument
from zonebloom.spark import BFIndexConfig, IndexManager

pytestmark = pytest.mark.usefixtures("no_pushdown")
ROWS = 500
FILES = 6
SYSTEM_PATH = "zonebloom.system.path"
EVERY = list(range(FILES))


def write(lake: Path, number: int, rows: int = ROWS) -> None:
    """Write a file with unique ids. Every file holds the name "everywhere"."""
    ids = np.random.default_rng(number).permutation(rows) + number * 1_000
    names = ["everywhere", None, *(f"n{i}" for i in ids[2:])]
    pq.write_table(pa.table({"id": ids, "Name": names, "x": ids % 7}), lake / f"{number}.parquet")


def make_lake(folder: Path, files: int = FILES) -> Path:
    folder.mkdir(parents=True)
    for number in range(files):
        write(folder, number)
    return folder


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Write files that no test changes."""
    return make_lake(tmp_path_factory.mktemp("use") / "the lake")


@pytest.fixture(scope="module")
def system(spark, lake, tmp_path_factory):
    """Return a manager with an index on the lake."""
    folder = str(tmp_path_factory.mktemp("system"))
    spark.conf.set(SYSTEM_PATH, folder)
    manager = IndexManager(spark)
    manager.create_index(str(lake), BFIndexConfig("ids", ["id", "Name"]))
    spark.conf.unset(SYSTEM_PATH)
    return folder


@pytest.fixture
def manager(spark, conf, system):
    conf.set(SYSTEM_PATH, system)
    return IndexManager(spark)


@pytest.fixture
def changing(spark, conf, tmp_path):
    """Return a manager and a lake that the test may change."""
    conf.set(SYSTEM_PATH, str(tmp_path / "system"))
    manager = IndexManager(spark)
    lake = make_lake(tmp_path / "lake")
    manager.create_index(str(lake), BFIndexConfig("ids", ["id"]))
    return manager, lake


def files(manager, frame):
    """Return the numbers of the files that a frame reads according to the manager."""
    plan = manager.why_not(frame)
    return sorted(
        int(Path(path).stem) for relation in plan.relations for path in relation.kept_paths
    )


def reasons(manager, frame, *name):
    """Return the names of the reasons why the manager does not use an index."""
    return {reason.name for reason in manager.why_not(frame, *name).reasons}


def applied(manager, frame):
    """Return the rows of a frame with indices, and check those of the session."""
    result = rows(manager.apply(frame))
    manager.enable()
    assert rows(frame.alias("again")) == result
    manager.disable()
    return result


def read(frame):
    """Return the number of files that a frame reads when it runs."""
    frame.collect()
    return files_read(frame)


# apply


def test_a_manager_enables_the_session(manager, spark, lake):
    frame = spark.read.parquet(str(lake))
    assert not manager.is_enabled()
    manager.enable()
    assert manager.is_enabled() and IndexManager(spark).isEnabled()
    assert read(frame.where("id = 2003")) == [1]
    zs.disable(spark)
    assert not manager.is_enabled() and read(frame.where("id = 2004")) == [FILES]


# Hybrid scan


def test_without_hybrid_scan_any_change_takes_an_index_out_of_use(changing, spark, conf):
    manager, lake = changing
    conf.set("zonebloom.index.hybridscan.enabled", "false")
    write(lake, 7)
    frame = spark.read.parquet(str(lake)).where("id IN (2003, 7004)")
    assert files(manager, frame) == [*EVERY, 7]
    assert "HYBRID_SCAN_DISABLED" in reasons(manager, frame)
    message = (
        r"hybrid scan is disabled: not indexed, so kept: 7\.parquet; refresh the index, or set"
    )
    with pytest.warns(IndexNotUsedWarning, match=message):
        assert applied(manager, frame) == rows(frame)
    manager.refresh_index("ids", mode="quick")
    assert files(manager, frame) == [2, 7]
    write(lake, 0, rows=ROWS - 100)
    frame = spark.read.parquet(str(lake)).where("id IN (2003, 7004)")
    # A quick refresh does not read the changed file, so the index stays out of use.
    manager.refresh_index("ids", mode="quick")
    assert files(manager, frame) == [*EVERY, 7]
    message = r"hybrid scan is disabled: changed since they were indexed, so kept: 0\.parquet"
    with pytest.warns(IndexNotUsedWarning, match=message):
        assert applied(manager, frame) == rows(frame)
    manager.refresh_index("ids", mode="incremental")
    assert files(manager, frame) == [2, 7]
    conf.set("zonebloom.index.hybridscan.enabled", "no")
    with pytest.warns(IndexNotUsedWarning, match="enabled is 'no'; set it to true or false"):
        assert applied(manager, frame) == rows(frame)


def test_queries_run_although_the_system_folder_cannot_be_read(
    manager, spark, conf, lake, tmp_path
):
    (tmp_path / "file").write_bytes(b"")
    conf.set(SYSTEM_PATH, str(tmp_path / "file"))
    assert read(manager.apply(spark.read.parquet(str(lake)).where("id = 2003"))) == [1]
    with pytest.raises(InvalidArgument, match="documents of indices cannot be stored in"):
        manager.indexes()


def test_a_manager_notices_deleted_and_restored_indices(changing, spark, conf):
    manager, lake = changing
    other = IndexManager(spark)
    frame = spark.read.parquet(str(lake)).where("id = 2003")
    assert files(other, frame) == [2]
    manager.delete_index("ids")
    assert files(manager, frame) == EVERY
    assert "NOT_ACTIVE" in reasons(manager, frame, "ids")
    # Nor is it used by the session.
    zs.enable(spark)
    try:
        assert read(spark.read.parquet(str(lake)).where("id = 2003")) == [FILES]
        manager.restore_index("ids")
        assert read(spark.read.parquet(str(lake)).where("id = 2003")) == [1]
        manager.delete_index("ids")
    finally:
        zs.disable(spark)
    assert files(other, frame) == EVERY
    manager.restore_index("ids")
    assert files(other, frame) == [2]


@pytest.mark.parametrize("index_dir", [None, "relative", "link"])
def test_no_function_uses_a_deleted_index(spark, conf, tmp_path, monkeypatch, index_dir):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    conf.set(SYSTEM_PATH, str(tmp_path / "system"))
    conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    lake = make_lake(tmp_path / "lake")
    manager = IndexManager(spark, index_dir=index_dir)
    manager.create_index(str(lake), BFIndexConfig("ids", ["id"]))
    ds = zb.dataset(lake, index_dir=index_dir)
    frame, keys = spark.read.parquet(str(lake)), spark.range(2003, 2004)
    functions = {
        "apply": lambda: zs.explain(manager.apply(frame.where("id = 2003"))).relations[0].indices,
        "scan": lambda: zs.explain(zs.scan(spark, ds, "id = 2003")).scans[0].indices,
        "join": lambda: zs.explain(zs.filter_join(keys, frame, "id", right_index=ds)).notes,
    }
    assert all(function() for function in functions.values())
    manager.delete_index("ids")
    # A document that cannot be read does not bring the others back into use.
    (tmp_path / "system" / "other.json").mkdir()
    with pytest.warns(IndexNotUsedWarning, match="made without an index"):
        assert not [name for name, function in functions.items() if function()]
    with pytest.warns(IndexNotUsedWarning, match="there is no index on id"):
        assert zs.tag_location(keys, ds, "id").where("path IS NOT NULL").count() == 1


# why_not


def test_a_column_may_have_several_indices(changing, spark):
    manager, lake = changing
    frame = spark.read.parquet(str(lake)).where("id = 2003")

    def used(query):
        return manager.why_not(query).relations[0].indices, reasons(manager, query)

    manager.create_index(str(lake), BFIndexConfig("later", ["id"]))
    assert used(frame) == (("ids.id", "later.id"), set())
    manager.delete_index("later")
    assert used(frame) == (("ids.id",), {"NOT_ACTIVE"})
    assert reasons(manager, frame, "ids") == set()
    with pytest.raises(IndexNotFound, match="no index 'nope'"):
        manager.why_not(frame, "nope")


def test_a_file_is_read_only_if_no_index_of_the_column_excludes_it(spark, tmp_path):
    lake = tmp_path / "lake"
    lake.mkdir()
    ids_of_files = {n: set(range(n * 100, n * 100 + 400, 2)) for n in range(12)}
    for number, ids in ids_of_files.items():
        pq.write_table(pa.table({"id": sorted(ids)}), lake / f"{number}.parquet")
    # Filters with many false positives, better ones, and bounds. Bounds of several files overlap.
    kinds = {
        "coarse": ("BLOOMFILTER", {"probability": 0.5}),
        "fine": ("BLOOMFILTER", {"probability": 0.1}),
        "bounds": ("ZONEMAP", {}),
    }
    for name, (kind, parameters) in kinds.items():
        for folder in (name, "all"):
            ds = zb.dataset(lake, index_dir=tmp_path / folder)
            ds.create_scalar_index("id", kind, name=name, spark=False, **parameters)
    totals = dict.fromkeys([*kinds, "all"], 0)
    for key in range(50, 1_250, 61):
        frame = spark.read.parquet(str(lake)).where(f"id = {key}")
        kept = {}
        for folder in totals:
            query = zs.prune(frame, index_dir=tmp_path / folder)
            kept[folder] = set(zs.explain(query).relations[0].kept_paths)
            totals[folder] += len(kept[folder])
        assert kept["all"] == set.intersection(*map(kept.get, kinds))
        holders = [number for number, ids in ids_of_files.items() if key in ids]
        assert [row.id for row in query.collect()] == [key] * len(holders)
    assert totals["all"] < min(totals[name] for name in kinds), totals


def test_lost_indices_lose_no_rows(changing, spark):
    manager, lake = changing
    frame = spark.read.parquet(str(lake)).where("id = 2003")
    zb.dataset(lake).drop_index("ids.id")
    assert applied(manager, frame) == rows(frame)
    assert "MISSING" in reasons(manager, frame)
    manager.refresh_index("ids", mode="full")
    assert files(manager, frame) == [2]


# explain


def test_explain_shows_what_is_read_and_the_plan(manager, spark, lake, capsys):
    frame = spark.read.parquet(str(lake)).where("id = 2003 AND Name < '<b>&'")
    manager.explain(frame)
    printed = capsys.readouterr().out
    assert "files: 1 of 6 kept" in printed and "indices: ids.id" in printed
    assert "filter: id = 2003" in printed and "not answered by an index: Name <" in printed
    assert "FileScan" not in printed
    texts = []
    manager.explain(frame, True, texts.append)
    manager.explain(frame, verbose=True, redirectFunc=texts.append)
    assert capsys.readouterr().out == ""
    assert all("FileScan parquet" in text and "IndexedFiles" in text for text in texts)

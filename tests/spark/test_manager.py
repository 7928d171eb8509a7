"""Test IndexManager: the life of an index while files are added, changed and deleted."""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import index_folder

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import (
    ColumnNotFound,
    EngineError,
    FragmentUnreadable,
    IndexExists,
    IndexNotFound,
    InvalidArgument,
    InvalidState,
    NoFragments,
    StaleIndexWarning,
    UnsupportedType,
)
from zonebloom.spark import BFIndexConfig, IndexManager

SYSTEM_PATH = "zonebloom.system.path"
ROWS = 1_000
COUNTS = ["Source", "Appended", "Deleted"]


def table(number: int, rows: int = ROWS) -> pa.Table:
    """Return rows of one file, with unique ids and shared names."""
    generator = np.random.default_rng(number)
    ids = np.arange(rows) + number * 1_000_000
    names = [None if i % 9 == 0 else f"n{i}" for i in generator.integers(0, 500, rows)]
    return pa.table(
        {
            "id": pa.array(generator.permutation(ids)),
            "Name": pa.array(names),
            "flag": pa.array([bool(i % 2) for i in range(rows)]),
            "st": pa.array([{"a": int(i)} for i in ids], pa.struct([("a", pa.int32())])),
            "tags": pa.array([["x"]] * rows),
        }
    )


def write(lake: Path, number: int, rows: int = ROWS) -> None:
    pq.write_table(table(number, rows), lake / f"{number}.parquet")


@pytest.fixture
def lake(tmp_path):
    folder = tmp_path / "a lake"
    folder.mkdir()
    for number in range(3):
        write(folder, number)
    return folder


@pytest.fixture
def manager(spark, conf, tmp_path):
    conf.set(SYSTEM_PATH, str(tmp_path / "system"))
    yield IndexManager(spark)
    zs.disable(spark)


@pytest.fixture
def ids(manager, spark, lake):
    """Build an index on two columns of the lake."""
    manager.create_index(spark.read.parquet(str(lake)), BFIndexConfig("ids", ["id", "Name"]))
    return manager


def state(manager, name="ids"):
    return manager.index(name).first().state


def counts(manager):
    row = manager.indexes().first()
    return [row[f"num{kind}Files"] for kind in COUNTS]


def in_catalog(lake):
    return sorted(zb.dataset(lake).opened.version.indices)


def brute_force(lake, column, value):
    """Return the ids of rows with a value, found without an index."""
    whole = pa.concat_tables(pq.read_table(path) for path in sorted(lake.glob("*.parquet")))
    return sorted(r["id"] for r in whole.to_pylist() if r[column] == value)


def assert_right(lake, covered):
    """Check that the index finds all existing rows, and covers a number of files."""
    dataset = zb.dataset(lake)
    for index in dataset.describe_indices():
        assert index.num_fragments_indexed == covered
        over_all = dataset.global_filter(index.column)
        assert len(over_all.covered) == covered
        assert len(over_all.missing) == len(dataset.files) - covered
    for column, value in [
        ("id", 5),
        ("id", 1_000_007),
        ("id", 2_000_400),
        ("id", 7_000_003),
        ("id", 999_999),
        ("Name", "n7"),
        ("Name", "nobody"),
    ]:
        filter = [(column, "=", value)]
        with warnings.catch_warnings():
            # The first query warns about files that changed after they were indexed.
            warnings.simplefilter("ignore", StaleIndexWarning)
            result = dataset.to_table(filter=filter)
        assert sorted(result["id"].to_pylist()) == brute_force(lake, column, value)


# The life of an index


def test_an_index_passes_through_all_states(manager, spark, lake, tmp_path):
    frame = spark.read.parquet(str(lake))
    assert manager.indexes().collect() == []
    manager.create_index(frame, BFIndexConfig("ids", ["id", "name"], 5_000, fpp=0.02))
    assert in_catalog(lake) == ["ids.Name", "ids.id"]
    assert_right(lake, 3)
    row = manager.index("ids").first()
    assert (row.name, row.state, row.kind) == ("ids", "ACTIVE", "BloomFilter")
    assert row.indexedColumns == ["id", "Name"]
    assert row.indexLocation == str(index_folder(lake))
    assert (row.expectedNumItems, row.fpp, row.sourcePath) == (5_000, 0.02, str(lake))
    assert (row.numSourceFiles, row.numAppendedFiles, row.numDeletedFiles) == (3, 0, 0)
    assert row.sizeSourceFiles == sum(path.stat().st_size for path in lake.glob("*.parquet"))
    files = [Path(path) for path in row.indexContentPaths]
    assert all(path.is_file() for path in files) and len(set(files)) == row.numIndexFiles
    assert row.sizeIndexFiles == sum(path.stat().st_size for path in files)
    # Three files of 1,000 rows have one zone each, for two columns.
    assert row.numZones == 6
    global_filter = zb.dataset(lake).global_filter("Name")
    assert (global_filter.num_items, global_filter.probability, len(global_filter.covered)) == (
        5_000,
        0.02,
        3,
    )
    assert row.globalFilterBytes == 2 * len(global_filter.sbbf.to_parquet_bytes())
    assert manager.indexes().first() == row[: len(manager.indexes().columns)]

    manager.delete_index("ids")
    assert state(manager) == "DELETED"
    assert in_catalog(lake) == ["ids.Name", "ids.id"]
    manager.restore_index("ids")
    assert state(manager) == "ACTIVE"
    manager.delete_index("ids")
    manager.vacuum_index("ids")
    assert manager.indexes().collect() == []
    assert in_catalog(lake) == []
    assert not any(path.exists() for path in files)
    with pytest.raises(IndexNotFound, match="no index 'ids'"):
        manager.index("ids")

    # The name can be used again.
    manager.create_index(frame, BFIndexConfig("ids", ["id"]))
    row = manager.index("ids").first()
    assert (row.state, row.expectedNumItems) == ("ACTIVE", 3 * ROWS)
    assert row.createdAt.startswith("20") and row.message == ""


def test_invalid_transitions_are_refused_and_change_nothing(ids, spark, lake):
    frame = spark.read.parquet(str(lake))
    unknown = [
        *(ids.delete_index, ids.restore_index, ids.vacuum_index, ids.refresh_index),
        *(ids.optimize_index, ids.index),
    ]
    for action in unknown:
        with pytest.raises(IndexNotFound, match=r"no index 'none'; there is: ids; indexes\(\)"):
            action("none")
    config = BFIndexConfig("ids", ["id"])
    with pytest.raises(IndexExists, match="there is an index 'ids' already"):
        ids.create_index(frame, config)
    for action, message in [
        (ids.restore_index, "nothing to restore"),
        (ids.vacuum_index, "call delete_index first"),
    ]:
        with pytest.raises(InvalidState, match=f"'ids' is ACTIVE.*{message}"):
            action("ids")
    ids.delete_index("ids")
    for action, message in [
        (ids.delete_index, "deleted already"),
        (ids.refresh_index, "call restore_index first"),
        (ids.optimize_index, "call restore_index first"),
    ]:
        with pytest.raises(InvalidState, match=f"'ids' is DELETED.*{message}"):
            action("ids")
    with pytest.raises(IndexExists, match="restore it or vacuum it first"):
        ids.create_index(frame, config)
    assert state(ids) == "DELETED"
    # Unknown names leave nothing in the system folder.
    assert os.listdir(ids._documents().path) == ["ids.json"]


# Refresh


class History:
    """A lake that changes at random, and the files that its index must cover."""

    def __init__(self, lake: Path, seed: int) -> None:
        self.lake, self.dice = lake, random.Random(seed)
        self.files = {number: ROWS for number in range(3)}
        self.covered = dict(self.files)
        # The last number of rows of each file, so that no version of a file equals another.
        self.sizes = dict(self.files)

    def change(self) -> None:
        """Add a file, perhaps again, rewrite one, or delete one."""
        number = self.dice.randrange(len(self.sizes) + 1)
        if number in self.files and self.dice.random() < 0.4 and len(self.files) > 2:
            (self.lake / f"{number}.parquet").unlink()
            del self.files[number]
        else:
            self.files[number] = self.sizes[number] = self.sizes.get(number, ROWS + 1) - 1
            write(self.lake, number, self.files[number])

    def refresh(self, manager: IndexManager) -> None:
        mode = self.dice.choice(["full", "incremental", "quick", "quick", "optimize"])
        if mode == "optimize":
            manager.optimize_index("ids", self.dice.choice(["quick", "full"]))
            return
        totals = set()
        manager.refresh_index("ids", mode, progress=lambda _, total: totals.add(total))
        new = {n: rows for n, rows in self.files.items() if self.covered.get(n) != rows}
        if mode == "quick":
            # A file that has the name of another one is a changed file, which quick leaves.
            new = {number: rows for number, rows in new.items() if number not in self.covered}
            assert totals <= {sum(new.values())}
        self.covered = {**self.covered, **new} if mode == "quick" else dict(self.files)


@pytest.mark.parametrize("seed", range(3))
def test_an_index_follows_any_history_of_its_files(ids, spark, lake, seed):
    history = History(lake, seed)
    for _ in range(6):
        for _ in range(history.dice.randint(0, 3)):
            history.change()
        history.refresh(ids)
        files, covered = history.files.items(), history.covered.items()
        assert counts(ids) == [len(covered), len(files - covered), len(covered - files)]
        assert_right(lake, len(files & covered))
        value = max(history.files) * 1_000_000 + history.dice.randrange(ROWS - 100)
        frame = spark.read.parquet(str(lake)).where(f"id = {value}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StaleIndexWarning)
            assert [row.id for row in ids.apply(frame).collect()] == [value]
        kept = {path.rpartition("/")[2] for path in ids.why_not(frame).relations[0].kept_paths}
        stale = {f"{number}.parquet" for number, _ in files - covered}
        assert stale <= kept <= stale | {f"{max(history.files)}.parquet"}
    ids.refresh_index("ids", "incremental")
    assert zb.dataset(lake).validate_index("ids.id") >= len(history.files)


def test_the_manager_notices_an_index_that_was_dropped_without_it(ids, lake):
    zb.dataset(lake).drop_index("ids.Name")
    with pytest.raises(IndexNotFound, match=r"ids\.Name.*mode='full'"):
        ids.refresh_index("ids", mode="incremental")
    with pytest.raises(IndexNotFound, match=r"ids\.Name.*mode='full'"):
        ids.optimize_index("ids")
    assert state(ids) == "DOESNOTEXIST"
    ids.refresh_index("ids", mode="full")
    assert state(ids) == "ACTIVE"
    assert_right(lake, 3)
    ids.delete_index("ids")
    zb.dataset(lake).drop_index("ids.id")
    with pytest.raises(IndexNotFound, match=r"ids\.id is not in the catalog"):
        ids.restore_index("ids")
    assert state(ids) == "DELETED"
    ids.vacuum_index("ids")
    assert in_catalog(lake) == []


def test_the_manager_reports_deleted_data(ids, lake):
    lake.rename(lake.parent / "elsewhere")
    row = ids.index("ids").first()
    assert row.numSourceFiles is None and "cannot be read" in row.message
    assert ids.indexes().first().numAppendedFiles is None
    for mode in ("full", "incremental", "quick"):
        with pytest.raises(NoFragments):
            ids.refresh_index("ids", mode=mode)
    assert state(ids) == "ACTIVE"
    ids.delete_index("ids")
    ids.vacuum_index("ids")
    assert ids.indexes().collect() == []
    assert not lake.exists()


# Errors during actions


def test_a_failed_build_changes_nothing(manager, spark, lake):
    frame = spark.read.parquet(str(lake))
    good = (lake / "1.parquet").read_bytes()
    # The footer of this file is intact, but its pages are damaged.
    torn = bytearray(good)
    torn[4:-8_000] = b"\xff" * (len(good) - 8_004)
    (lake / "1.parquet").write_bytes(torn)
    with pytest.raises(FragmentUnreadable, match=r"1\.parquet"):
        manager.create_index(frame, BFIndexConfig("ids", ["id"]))
    assert manager.indexes().collect() == []
    assert in_catalog(lake) == []

    (lake / "1.parquet").write_bytes(good)
    manager.create_index(spark.read.parquet(str(lake)), BFIndexConfig("ids", ["id"]))
    (lake / "1.parquet").write_bytes(torn)
    for mode in ("full", "incremental"):
        with pytest.raises(FragmentUnreadable, match=r"1\.parquet"):
            manager.refresh_index("ids", mode=mode)
    assert state(manager) == "ACTIVE"
    (lake / "1.parquet").write_bytes(good)
    manager.refresh_index("ids", mode="incremental")
    assert_right(lake, 3)


def test_an_index_name_that_the_catalog_has_is_refused(manager, lake):
    zb.dataset(lake).create_scalar_index("id", name="ids.id", spark=False)
    with pytest.raises(IndexExists, match=r"has an index 'ids\.id' already.*drop_index"):
        manager.create_index(str(lake), BFIndexConfig("ids", ["id"]))
    assert in_catalog(lake) == ["ids.id"]
    assert manager.indexes().collect() == []


# Errors before any work


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        (["nope"], ColumnNotFound, "no column 'nope'"),
        (["id", "st.b"], ColumnNotFound, r"no column 'st\.b'"),
        (["st"], UnsupportedType, r"leaves instead: st\.a"),
        (["id", "ID"], InvalidArgument, "'id' is given twice"),
        (["year"], InvalidArgument, "'year' is read from the paths"),
    ],
)
def test_columns_that_cannot_be_indexed_are_named(manager, spark, tmp_path, columns, error, says):
    folder = tmp_path / "parts" / "year=2024"
    folder.mkdir(parents=True)
    write(folder, 0)
    frame = spark.read.parquet(str(tmp_path / "parts"))
    with pytest.raises(error, match=says):
        manager.create_index(frame, BFIndexConfig("ids", columns))
    assert manager.indexes().collect() == []
    assert not index_folder(tmp_path / "parts").exists()


def test_leaves_and_names_are_compared_as_the_session_does(manager, spark, lake):
    frame = spark.read.parquet(str(lake))
    spark.conf.set("spark.sql.caseSensitive", "true")
    with pytest.raises(ColumnNotFound, match="'name'"):
        manager.create_index(frame, BFIndexConfig("ids", ["name"]))
    spark.conf.set("spark.sql.caseSensitive", "false")
    manager.create_index(frame, BFIndexConfig("ids", ["name", "ST.a"]))
    assert manager.index("ids").first().indexedColumns == ["Name", "st.a"]
    result = zb.dataset(lake).search("st.a = 1000003").to_table()
    assert [Path(p).name for p in result["path"].to_pylist()] == ["1.parquet"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": ""}, "cannot name an index"),
        ({"name": "a.b"}, "cannot name an index"),
        ({"name": "a\nb"}, "cannot name an index"),
        ({"name": "x" * 81}, "cannot name an index"),
        ({"columns": []}, "columns is empty"),
        ({"columns": "id"}, "give a list"),
        ({"fpp": 0.0}, "fpp is 0.0"),
        ({"fpp": float("nan")}, "fpp is nan"),
        ({"expected_num_items": 0}, "expected_num_items is 0"),
    ],
)
def test_invalid_configurations_raise(arguments, says):
    with pytest.raises(InvalidArgument, match=says):
        BFIndexConfig(**{"name": "ids", "columns": ["id"], **arguments})


def test_frames_with_more_than_a_read_are_refused(manager, spark, lake, tmp_path):
    frame = spark.read.parquet(str(lake))
    config = BFIndexConfig("ids", ["id"])
    csv = tmp_path / "csv"
    frame.select("id").write.csv(str(csv), header=True)
    for wrong_frame in [
        frame.where("id = 5"),
        frame.select("id"),
        frame.limit(5),
        frame.union(frame),
        spark.range(5),
        spark.createDataFrame([(1,)], "id int"),
        spark.read.csv(str(csv), header=True),
        spark.read.parquet(str(lake / "0.parquet"), str(lake / "1.parquet")),
        spark.read.option("pathGlobFilter", "0*").parquet(str(lake)),
    ]:
        with pytest.raises(
            InvalidArgument, match=r"not just a read|not of Parquet|all files of one"
        ):
            manager.create_index(wrong_frame, config)
    with pytest.raises(InvalidArgument, match="df is 5; give a DataFrame, or the path"):
        manager.create_index(5, config)
    with pytest.raises(InvalidArgument, match="give a BFIndexConfig"):
        manager.create_index(frame, {"name": "ids"})
    with pytest.raises(EngineError, match="give a SparkSession"):
        IndexManager("local[2]")
    assert not index_folder(lake).exists()


def test_frames_and_paths_may_name_the_folder(manager, spark, lake):
    frame = spark.read.parquet(str(lake))
    frame.createOrReplaceTempView("lake_view")
    sources = [
        frame.alias("x"),
        spark.table("lake_view"),
        spark.read.parquet(str(lake / "*.parquet")),
        lake,
        f"file://{lake}",
        spark.read.parquet(str(lake / "1.parquet")),
    ]
    for number, source in enumerate(sources):
        manager.create_index(source, BFIndexConfig(f"ids{number}", ["id"]))
    rows = sorted(manager.indexes().collect())
    assert [row.numSourceFiles for row in rows] == [3, 3, 3, 3, 3, 1]
    assert [row.sourcePath for row in rows] == [*[str(lake)] * 5, str(lake / "1.parquet")]
    assert {row.indexLocation for row in rows} == {str(index_folder(lake))}


def test_the_manager_indexes_partitioned_data_in_a_separate_index_folder(manager, spark, tmp_path):
    parts = tmp_path / "parts"
    for year in (2023, 2024):
        folder = parts / f"year={year}"
        folder.mkdir(parents=True)
        write(folder, year)
    frame = spark.read.parquet(str(parts))
    manager = IndexManager(spark, index_dir=tmp_path / "aside")
    manager.create_index(frame, BFIndexConfig("ids", ["id"]))
    assert not index_folder(parts).exists()
    row = manager.index("ids").first()
    assert row.indexLocation == str(tmp_path / "aside") and row.numSourceFiles == 2
    write(parts / "year=2024", 9)
    assert counts(manager) == [2, 1, 0]
    manager.refresh_index("ids", "incremental")
    assert counts(manager) == [3, 0, 0]
    id_ = table(9)["id"][0].as_py()
    query = manager.apply(spark.read.parquet(str(parts)).where(f"id = {id_}"))
    assert query.count() == 1 and manager.why_not(query).relations[0].kept_files == 1


# The conf


def test_keys_are_read_in_two_ways(manager, spark, tmp_path):
    spark.conf.set(f"spark.{SYSTEM_PATH}", str(tmp_path / "other"))
    assert manager._documents().path == str(tmp_path / "system")
    spark.conf.unset(SYSTEM_PATH)
    assert manager._documents().path == str(tmp_path / "other")
    spark.conf.set(SYSTEM_PATH, "hdfs://host/indexes")
    with pytest.raises(InvalidArgument, match=r"(?s)hdfs://host/indexes.*zonebloom\.system\.path"):
        manager.indexes()


def test_the_default_system_path_is_in_the_warehouse(manager, spark):
    spark.conf.unset(SYSTEM_PATH)
    warehouse = spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")
    assert manager._documents().path == f"{warehouse}/zonebloom_indexes"
    assert not Path(warehouse, "zonebloom_indexes").exists()


def test_every_method_has_a_name_in_camel_case():
    names = {name for name in dir(IndexManager) if not name.startswith("_")}
    pairs = {
        *(("create_index", "createIndex"), ("refresh_index", "refreshIndex")),
        *(("optimize_index", "optimizeIndex"), ("delete_index", "deleteIndex")),
        *(("restore_index", "restoreIndex"), ("vacuum_index", "vacuumIndex")),
        *(("why_not", "whyNot"), ("is_enabled", "isEnabled")),
    }
    assert {name for name in names if "_" in name} == {snake for snake, _ in pairs}
    assert {name for name in names if name.lower() != name} == {camel for _, camel in pairs}
    for snake, camel in pairs:
        assert getattr(IndexManager, snake) is getattr(IndexManager, camel)

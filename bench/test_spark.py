"""Measure builds and reads on Spark, compared with builds in this process and plain Spark reads."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
import zonebloom.spark as zs
from bench.conftest import NOTES
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.spark.pruning.index_lookup import IndexLookup
from zonebloom.spark.pruning.optimizer_rule import FileChooser, jvm_plans
from zonebloom.spark.session_state import SessionState
from zonebloom.spark.versions import query_execution

# The files among which Spark's queries choose. Writing and indexing 100,000 takes minutes.
MANY_FILES = int(os.environ.get("ZONEBLOOM_BENCH_FILES", "10000"))


@pytest.fixture(scope="module")
def indexed16(lake16: Path):
    dataset = zb.dataset(lake16)
    dataset.create_scalar_index("id", spark=False)
    yield dataset
    shutil.rmtree(dataset.index_dir)


@pytest.mark.parametrize("columns", [["id"], ["id", "uuid"]], ids=["one", "two"])
def test_build_on_spark(versus, spark, lake16, tmp_path, columns):
    """Build sixteen files in a warm session, compared with the same build in this process."""
    dataset = zb.dataset(lake16, index_dir=str(tmp_path / "index"))
    versus(
        lambda: dataset.create_scalar_index(columns, spark=spark),
        {"in process": lambda: dataset.create_scalar_index(columns, spark=False)},
        rounds=3,
    )


def test_point_lookup_on_spark(versus, spark, indexed16, lake16, keys):
    """Read all columns of one key, with a new plan each time."""
    path, ours, theirs = str(lake16), itertools.cycle(keys), itertools.cycle(keys)
    versus(
        lambda: zs.scan(spark, path, f"id = {next(ours)}").collect(),
        {
            "spark.read.parquet": lambda: (
                spark.read.parquet(path).where(f"id = {next(theirs)}").collect()
            )
        },
        rounds=9,
    )
    dataset = zb.dataset(path)
    runs = [dataset.scanner(filter=f"id = {key}").analyze_plan() for key in keys[:20]]
    max_bytes = max(run.stats.data_bytes + run.plan.index_bytes for run in runs)
    NOTES.append(
        f"one key, all columns: about {max_bytes / 1000:,.0f} kB of data and index, "
        f"1/{runs[0].plan.all_bytes // max_bytes} of the files' bytes."
    )


# Queries by keys, and queries that an index cannot help.
_QUERIES = {
    "one key": "SELECT * FROM lake WHERE id = {key}",
    "one key and more": "SELECT y, count(*) FROM lake WHERE id = {key} AND x > 0 GROUP BY y",
    "two keys of a union": (
        "SELECT * FROM lake WHERE id = {key} UNION ALL SELECT * FROM lake WHERE id = {key} + 1"
    ),
    "no filter": "SELECT y, count(*), sum(x) FROM lake GROUP BY y",
    "a range": "SELECT count(*) FROM lake WHERE id > {key}",
    "another column": "SELECT sum(x) FROM lake WHERE y = 7",
    "a key of every file": "SELECT count(*) FROM lake WHERE id IN ({many})",
}


@pytest.mark.parametrize("query", _QUERIES)
def test_session_switched_on(versus, spark, indexed16, lake16, keys, query):
    """Compare two sessions, one of which uses the index, even for queries that it cannot help."""
    ours, theirs = itertools.cycle(keys), itertools.cycle(keys)
    many, indexed = ", ".join(map(str, keys)), spark.newSession()
    for session in (spark, indexed):
        session.read.parquet(str(lake16)).createOrReplaceTempView("lake")
    zs.enable(indexed)

    def run(session, key: int) -> None:
        session.sql(_QUERIES[query].format(key=key, many=many)).collect()

    peer = {"switched off": lambda: run(spark, next(theirs))}
    versus(lambda: run(indexed, next(ours)), peer, rounds=15, in_turn=True)


@pytest.mark.parametrize("num_files, num_links", [(10_000, 1), (10_000, 10)])
def test_one_key_of_many_files(versus, spark, tmp_path, num_files, num_links):
    """Plan and read files of four rows, which are linked under several names, from one listing."""
    _write_tiny(tmp_path, num_files, num_links)
    zb.dataset(tmp_path).create_scalar_index("id", spark=False, number_of_items=4)
    start = time.perf_counter()
    frame = spark.read.parquet(str(tmp_path))
    listing_seconds = time.perf_counter() - start
    pruned, keys = zs.prune(frame), itertools.count(0, 2654435761)
    before, start = _resident_bytes(), time.perf_counter()
    num_rows = pruned.where(f"id = {next(keys)}").count()
    first_seconds = time.perf_counter() - start
    memory, cpu_seconds = _resident_bytes() - before, time.process_time()
    assert num_rows == num_links
    peer = {"spark.read.parquet": lambda: frame.where(f"id = {next(keys)}").collect()}
    # With so many files, a query takes a minute.
    versus(
        lambda: pruned.where(f"id = {next(keys)}").collect(),
        peer if num_links == 1 else {},
        rounds=3,
    )
    cpu_seconds = time.process_time() - cpu_seconds
    NOTES.append(
        f"one key of {num_files * num_links:,} files: this process grew by {memory / 1e6:,.0f} MB, "
        f"and took {cpu_seconds / 4:.2f} s of a processor for each warm query; Spark listed them "
        f"in {listing_seconds:.2f} s, and the first query took {first_seconds:.2f} s."
    )


@pytest.fixture(scope="module")
def many_files(tmp_path_factory):
    """Write folders of 100 files of four rows, and index them."""
    root = tmp_path_factory.mktemp("many")
    for first in range(0, MANY_FILES, 100):
        folder = root / f"{first:08d}"
        folder.mkdir()
        _write_tiny(folder, min(100, MANY_FILES - first), 1, first)
    zb.dataset(root).create_scalar_index("id", spark=False, number_of_items=4)
    return root


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "again"])
def test_choose_among_many_files(versus, spark, many_files, is_first):
    """Choose the files of one key, from the request of the JVM to the answer, in folders of 100.

    The first choice reads the listing and the catalog. The floor is a look at each file.
    """
    KERNELS.load()
    frame = spark.read.option("recursiveFileLookup", "true").parquet(str(many_files))
    leaf = query_execution(frame.where("id = 0")).sparkPlan().collectLeaves().head()
    java_scan = jvm_plans(spark).scan(leaf)
    paths = [str(path) for path in many_files.rglob("*.parquet")]
    assert len(paths) == MANY_FILES

    def new_chooser():
        return FileChooser(IndexLookup(spark).ask, SessionState())

    def choose(chooser):
        marks = json.loads(chooser.apply(java_scan.request(), java_scan))["kept"]
        assert len(marks) == MANY_FILES and "1" in marks and "0" in marks

    chooser = new_chooser()
    before = _resident_bytes()
    choose(chooser)
    memory = _resident_bytes() - before
    versus(
        lambda: choose(new_chooser() if is_first else chooser),
        {"os.stat of each file": lambda: list(map(os.stat, paths))},
        rounds=9,
        in_turn=True,
    )
    NOTES.append(f"{MANY_FILES:,} files: this process grew by {memory / 1e6:,.0f} MB.")


def _write_tiny(folder: Path, num_files: int, num_links: int, first: int = 0) -> None:
    for number in range(first, first + num_files):
        ids = np.arange(number * 4, number * 4 + 4) * 2654435761 % (1 << 40)
        path = folder / f"{number:06d}-0.parquet"
        pq.write_table(pa.table({"id": ids, "x": ids / 2}), path, write_statistics=False)
        for link in range(1, num_links):
            os.link(path, folder / f"{number:06d}-{link}.parquet")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

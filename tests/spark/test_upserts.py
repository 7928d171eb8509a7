"""Change folders that Spark writes and reads.

Run the streaming job in the docstring of `tag_location`, stop it anywhere, and restart it.
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrameWriter
from support.seams import replace_function

import zonebloom
import zonebloom.spark as zs
from zonebloom.results import DatasetOptimizer

BATCHES = 6


class Stopped(Exception):
    """The error that stops the job."""


@pytest.fixture
def lake(tmp_path):
    """Write an indexed relation, and batches with its keys, repeated keys and new keys."""
    (tmp_path / "orders/batch=-1").mkdir(parents=True)
    (tmp_path / "incoming").mkdir()
    for number in range(3):
        ids = pa.array(range(number * 100, number * 100 + 100), pa.int64())
        table = pa.table({"id": ids, "x": ids})
        pq.write_table(table, tmp_path / f"orders/batch=-1/{number}.parquet")
    zonebloom.dataset(tmp_path / "orders").create_scalar_index("id", number_of_items=20)
    for number in range(BATCHES):
        ids = [number * 7, 150 + number, 1000 + number, 1000 + number // 2, 2000]
        table = pa.table({"id": pa.array(ids, pa.int64()), "x": [number] * len(ids)})
        pq.write_table(table, tmp_path / f"incoming/{number}.parquet")
    return tmp_path


def stop_after(monkeypatch, owner, name, stops):
    """Stop after some calls of a function, which are counted from 0."""
    real = getattr(owner, name)
    calls = []

    def called(*args, **kwargs):
        result = real(*args, **kwargs)
        calls.append(args)
        if len(calls) - 1 in stops:
            if name == "parquet":
                # Only a part of the data was written.
                next(Path(args[1]).glob("*.parquet")).unlink()
            raise Stopped(name)
        return result

    replace_function(monkeypatch, owner, name, called)


def places(folder, ids):
    """Return the positions of keys in all files below a folder, found by reading them all."""
    counts = Counter()
    for path in folder.rglob("*.parquet"):
        stored = pq.ParquetFile(path).read(["id"])["id"].to_pylist()
        counts.update((key, str(path), row) for row, key in enumerate(stored) if key in ids)
    return counts


@pytest.mark.filterwarnings("ignore::zonebloom.errors.StaleIndexWarning")
def test_a_job_that_stops_anywhere_tags_each_key_correctly(spark, lake, monkeypatch):
    example = inspect.getdoc(zs.tag_location).partition("first one wrote::\n")[2]
    recipe = textwrap.dedent(example.partition("\nExamples\n")[0])
    # The JVM has another working folder.
    recipe = re.sub(r'"(orders|changes|checkpoint(?=\"))', rf'"{lake}/\1', recipe)
    # Stop the first attempts at the batches 0 to 4. Each is followed by another attempt.
    stop_after(monkeypatch, shutil, "rmtree", {0})
    stop_after(monkeypatch, zs, "tag_location", {1})
    stop_after(monkeypatch, DataFrameWriter, "parquet", {4, 7})
    stop_after(monkeypatch, DatasetOptimizer, "optimize_indices", {4})
    stream = (
        spark.readStream.schema("id bigint, x bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(lake / "incoming"))
    )
    stops = 0
    while True:
        names = {"stream": stream, "zs": zs, "zonebloom": zonebloom, "shutil": shutil}
        exec(recipe, names)
        query = names["changed"].trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            break
        except StreamingQueryException:
            stops += 1
    assert stops == 5
    earlier = places(lake / "orders/batch=-1", range(10_000))
    kinds = Counter()
    for number in range(BATCHES):
        written = pq.read_table(lake / f"orders/batch={number}", partitioning=None)
        keys = written["id"].to_pylist()
        # A key that a batch contains twice is tagged twice.
        times = Counter(keys)
        wanted = Counter({p: n * times[p[0]] for p, n in earlier.items() if p[0] in times})
        known_keys = {place[0] for place in wanted}
        wanted.update((key, None, None) for key in keys if key not in known_keys)
        tagged = pq.read_table(lake / f"changes/batch={number}", partitioning=None)
        result = Counter(
            zip(*(tagged[name].to_pylist() for name in ("id", "path", "row_offset")), strict=True)
        )
        assert result == wanted, number
        kinds.update("insert" if path is None else "update" for _, path, _ in result)
        earlier += places(lake / f"orders/batch={number}", range(10_000))
    assert kinds["insert"] >= BATCHES and kinds["update"] > 2 * BATCHES
    # Everything is indexed, and each batch once.
    (index,) = zonebloom.dataset(lake / "orders").describe_indices()
    assert index.num_fragments_indexed == index.num_fragments
    assert zonebloom.dataset(lake / "orders").count_rows() == 300 + 5 * BATCHES


def test_spark_reads_a_folder_of_its_own_after_changes(spark, tmp_path):
    """Spark writes a hidden file of checksums beside each file, and compares them later."""
    path = str(tmp_path / "own")
    frame = spark.range(100).selectExpr("id", "concat('c', id) c", "id % 2 part")
    frame.write.partitionBy("part").parquet(path)
    ds = zonebloom.dataset(path, partitioning="infer")
    ds.create_scalar_index("id")
    ds.upsert(pa.table({"id": [5, 1000], "c": ["new", "more"], "part": [1, 0]}), on="id")
    ds.erase("id", [7, 8])
    # All rows of one file.
    ds.erase(filter="part = 0 AND id < 1000")
    expected = {id: f"c{id}" for id in range(1, 100, 2)} | {5: "new", 1000: "more"}
    del expected[7]
    read = spark.read.parquet(path).select("id", "c").collect()
    assert sorted(map(tuple, read)) == sorted(expected.items())

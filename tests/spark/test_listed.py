"""Test the listing of files: the root of each file, and whether the file is unchanged."""

from __future__ import annotations

import os
import posixpath
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import cases
from support.spark_data import files_read

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import StaleIndexWarning
from zonebloom.spark.pruning.jvm_scan import ListedFiles

FOLDERS = ["file:/a", "file:/a/b", "file:/a/b/c", "file:/ab", "file:/d"]


def listing_of(runs):
    """Return a listing of runs of files, in the form in which the JVM sends it."""
    fields, before = [], ""
    for folder, names, sizes, mtimes_ms in runs:
        for name, size, mtime_ms in zip(names, sizes, mtimes_ms, strict=True):
            fields += ["" if folder == before else folder, name, size, mtime_ms]
            before = folder
    return ListedFiles.from_text("".join(f"{field}\0" for field in fields))


@pytest.mark.parametrize("seed", range(cases(20)))
def test_each_file_belongs_to_its_longest_root(seed):
    dice = random.Random(seed)
    listed = [(dice.choice(FOLDERS), dice.choice("uvwxyz")) for _ in range(20)]
    runs = [(folder, [name], [ord(name)], [len(folder)]) for folder, name in listed]
    roots = dice.sample(FOLDERS, dice.randint(1, 3))
    files = listing_of(runs)
    by_root = files.positions_by_root(roots)
    groups = [(root, files.below([(root, root, by_root[root])])) for root in by_root]
    pairs = [(root, path) for root, below in groups for path in below.paths.to_pylist()]
    wanted = set()
    for folder, name in listed:
        above = [root for root in roots if f"{folder}/".startswith(f"{root}/")]
        wanted.add((max(above, key=len, default=folder), f"{folder}/{name}"))
    assert sorted(pairs) == sorted(wanted)
    for _, below in groups:
        paths = below.paths.to_pylist()
        assert below.sizes.tolist() == [ord(path[-1]) for path in paths]
        assert below.mtimes_ms.tolist() == [len(posixpath.dirname(path)) for path in paths]
        # A number stands for all positions of a path in the listing.
        is_meant = np.isin(files.numbers, below.numbers).tolist()
        assert is_meant == [path in paths for path in files.paths.to_pylist()]


def test_an_empty_listing_has_no_roots():
    assert listing_of([]).positions_by_root(["file:/a"]) == {}


def test_files_of_several_roots_are_ordered_without_duplicates():
    files = listing_of([("b:/r", "zx", (1, 2), (3, 4)), ("b:/q", "y", (5,), (6,))] * 2)
    by_root = files.positions_by_root(["b:/r", "b:/q"])
    below = files.below([(root, f"/{root[-1]}", by_root[root]) for root in by_root])
    assert below.paths.to_pylist() == ["/q/y", "/r/x", "/r/z"]
    assert (below.sizes.tolist(), below.mtimes_ms.tolist()) == ([5, 2, 1], [6, 4, 3])
    assert below.numbers.tolist() == np.unique(files.numbers).tolist()


@pytest.mark.parametrize(
    "mtime_ms, mtime_ns, is_still",
    [
        (1_234_567, 1_234_567_890_123, True),
        (1_234_567, 1_234_568_000_000, False),
        # Some file systems give Spark times in whole seconds.
        (1_234_000, 1_234_567_890_123, True),
        (1_234_000, 1_233_999_999_999, False),
        (1_235_000, 1_234_567_890_123, False),
    ],
)
def test_files_with_another_size_or_time_are_changed(mtime_ms, mtime_ns, is_still):
    files = listing_of([("file:/a", ["x", "y"], [5, 6], [mtime_ms, mtime_ms])])
    sizes_and_times = np.array([5, 5]), np.array([mtime_ns, mtime_ns])
    assert files.unchanged_mask(*sizes_and_times).tolist() == [is_still, False]


def test_a_changed_listing_is_read_again(spark, tmp_path):
    path = tmp_path / "t" / "1.parquet"
    path.parent.mkdir()
    for number in (0, 1):
        table = pa.table({"id": range(number * 10, number * 10 + 10)})
        pq.write_table(table, path.with_name(f"{number}.parquet"))
    zb.dataset(str(path.parent)).create_scalar_index("id", spark=False)

    def count(num_files):
        frame = zs.prune(spark.read.parquet(str(path.parent)).where("id = 5"))
        assert len(frame.collect()) == 1
        assert files_read(frame) == [num_files]

    count(1)
    count(1)
    # Change nothing but the time, by one millisecond.
    mtime_ns = path.stat().st_mtime_ns
    os.utime(path, ns=(mtime_ns, mtime_ns + 10**6))
    count(1)
    with pytest.warns(StaleIndexWarning):
        pq.write_table(pa.table({"id": range(100, 5000)}), path)
        count(2)

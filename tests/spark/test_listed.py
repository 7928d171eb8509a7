"""Test the listing of files: the root of each file, and whether the file is unchanged."""

from __future__ import annotations

import posixpath
import random

import numpy as np
import pytest
from helpers import cases
from seams import replace_function

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.spark.pruning.listed_files import ListedFiles

FOLDERS = ["file:/a", "file:/a/b", "file:/a/b/c", "file:/ab", "file:/d"]


@pytest.mark.parametrize("seed", range(cases(20)))
def test_each_file_belongs_to_its_longest_root(seed):
    dice = random.Random(seed)
    listed = [(dice.choice(FOLDERS), dice.choice("uvwxyz")) for _ in range(20)]
    runs = [(folder, [name], [ord(name)], [len(folder)]) for folder, name in listed]
    roots = dice.sample(FOLDERS, dice.randint(1, 3))
    files = ListedFiles.of(runs)
    groups = files.by_root(roots)
    assert len(dict(groups)) == len(groups)
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
    assert ListedFiles.of([]).by_root(["file:/a"]) == []


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
    files = ListedFiles.of([("file:/a", ["x", "y"], [5, 6], [mtime_ms, mtime_ms])])
    sizes_and_times = np.array([5, 5]), np.array([mtime_ns, mtime_ns])
    assert files.unchanged_mask(*sizes_and_times).tolist() == [is_still, False]


def test_an_unchanged_listing_is_read_once(spark, tmp_path, monkeypatch):
    folder = tmp_path / "\u00fc \u20ac"
    folder.mkdir()
    read_paths = []

    def of(runs):
        read_paths.append(runs)
        return original(runs)

    original = ListedFiles.of
    replace_function(monkeypatch, ListedFiles, "of", of)
    for number in range(3):
        spark.range(number * 10, number * 10 + 10, 1, 1).write.parquet(
            str(folder / f"{number}.parquet")
        )
    paths = [str(folder / f"{number}.parquet") for number in range(3)]
    zb.dataset(str(folder)).create_scalar_index("id", spark=False)
    frame = zs.prune(spark.read.parquet(*paths))
    for number in (5, 15, 25):
        assert [row.id for row in frame.where(f"id = {number}").collect()] == [number]
    assert len(read_paths) == 1

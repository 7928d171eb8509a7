"""Compare the files that match a pattern with ``glob.glob``."""

from __future__ import annotations

import glob
import os
import tempfile
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from e2e_helpers import unreadable

from zonebloom.errors import FragmentUnreadable
from zonebloom.storage.patterns import is_pattern, matching_files

LOCAL = pafs.LocalFileSystem()
FILES = [
    "a.parquet",
    "b.csv",
    ".hidden.parquet",
    "x/a.parquet",
    "x/y/b.parquet",
    "x/y/[1].parquet",
    "day=1/a.parquet",
    ".index/a.parquet",
    "_zonebloom/versions/1.arrow",
    "x/_zonebloom/a.parquet",
]
PATTERNS = [
    "*.parquet",
    "*",
    "**",
    "**/*.parquet",
    "x/**",
    "x/**/*.parquet",
    "*/a.parquet",
    "day=[0-9]/?.parquet",
    "x/y/[[]1].parquet",
    ".*/*.parquet",
    "**/y/*",
    "nothing/*",
    "a.parquet/*",
    "_*/*/*",
    "*/*/*",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "dangling.parquet").symlink_to("nowhere")
    return tmp_path


@pytest.mark.parametrize("pattern", PATTERNS)
def test_matching_files_equal_those_of_glob(folder: Path, pattern: str):
    whole = os.path.join(folder, pattern)
    globbed = filter(os.path.isfile, glob.glob(whole, recursive=True))
    expected = sorted(path for path in globbed if "/_zonebloom/" not in path)
    assert is_pattern(pattern)
    assert matching_files(LOCAL, whole) == expected


def test_an_index_folder_is_matched_by_name(folder: Path):
    assert matching_files(LOCAL, f"{folder}/x/_zonebloom/*") == [f"{folder}/x/_zonebloom/a.parquet"]


def test_a_folder_that_cannot_be_listed_raises():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        (root / "a" / "b").mkdir(parents=True)
        (root / "a" / "b" / "c.parquet").write_bytes(b"")
        for pattern in ("**/*.parquet", "*/*/*.parquet", "a/b/*"):
            with unreadable(root / "a" / "b"), pytest.raises(FragmentUnreadable, match="a/b"):
                matching_files(LOCAL, str(root / pattern))
        # The folder can be listed, but its files cannot be looked at.
        with unreadable(root / "a", 0o744), pytest.raises(FragmentUnreadable, match="a/b"):
            matching_files(LOCAL, str(root / "**"))


def test_folders_that_no_part_matches_are_not_listed():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for folder in ("day=1/closed", "other"):
            (root / folder).mkdir(parents=True)
        (root / "day=1" / "c.parquet").write_bytes(b"")
        (root / "other").chmod(0)
        with unreadable(root / "day=1" / "closed"):
            assert matching_files(LOCAL, f"{root}/day=*/c.parquet") == [f"{root}/day=1/c.parquet"]


def test_hidden_folders_and_links_to_a_folder_above_do_not_fail():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for folder in ("a", ".trash"):
            (root / folder).mkdir()
        (root / "a" / "b.parquet").write_bytes(b"")
        (root / "a" / "up").symlink_to(root / "a")
        pattern = f"{root}/**/*.parquet"
        with unreadable(root / ".trash"):
            assert matching_files(LOCAL, pattern) == sorted(glob.glob(pattern, recursive=True))

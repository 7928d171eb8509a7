"""Run core tests without the functions that other systems lack, and paths as Windows has them."""

from __future__ import annotations

import ntpath
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.seams import replace_function, set_constant

from zonebloom.storage import paths
from zonebloom.storage.local_files import create_exclusively

CORE = ["scan/test_locate.py", "scan/test_execute.py", "changes/test_upserts.py"]


def test_the_core_needs_no_function_of_linux():
    tests = Path(__file__).parents[1]
    options = ["-q", "-p", "tests.support.without_linux", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(tests / name) for name in CORE)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tests.parent,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
    )
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.parametrize(
    "path", ["C:\\lake\\orders", "C:/lake/orders", "C:\\lake\\.\\orders", "C:\\lake\\x\\..\\orders"]
)
def test_drive_letters_and_backslashes(monkeypatch, path):
    for name in ("abspath", "expanduser"):
        replace_function(monkeypatch, os.path, name, getattr(ntpath, name))
    set_constant(monkeypatch, os, "sep", ntpath.sep)
    assert not paths.is_uri(path)
    assert paths.absolute_path(path) == "C:/lake/orders"


@pytest.mark.parametrize("uri", ["file:///C:/lake/a%20b", "file:/C:/lake/a%20b"])
def test_the_uri_of_a_file_on_a_drive_is_its_path(monkeypatch, uri):
    set_constant(monkeypatch, os, "name", "nt")
    assert paths.split_path(uri, encoded=True) == ("", "C:/lake/a b")
    assert paths.plain_path("file:///lake/C:/a") == "/lake/C:/a"


def test_a_draft_lies_in_the_folder_of_its_file(monkeypatch, tmp_path):
    set_constant(monkeypatch, os, "path", ntpath)
    assert create_exclusively(f"{tmp_path.as_posix()}/new/1", b"version")
    assert (tmp_path / "new/1").read_bytes() == b"version"
    assert os.listdir(tmp_path) == ["new"]

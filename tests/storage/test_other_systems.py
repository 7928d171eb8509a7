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

"""Workers with another version of the package are refused, and a failed build leaves nothing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import separately
from support.helpers import index_folder

import zonebloom as zb
from zonebloom.errors import EngineError


@contextmanager
def workers_run(spark, command: str) -> Iterator[None]:
    """Run the jobs of a session in another Python for a while."""
    context, settings = spark.sparkContext, spark._jsc.sc().conf()
    before, daemon = context.pythonExec, settings.get("spark.python.daemon.module")
    context.pythonExec = command
    settings.remove("spark.python.daemon.module")
    try:
        yield
    finally:
        context.pythonExec = before
        settings.set("spark.python.daemon.module", daemon)


def script(path: Path, text: str) -> str:
    # Otherwise Python would find the package in the current folder.
    path.write_text(f"#!/bin/sh\ncd {path.parent}\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def dataset(tmp_path):
    separately.write_lake(tmp_path / "lake", files=2, rows=1_000)
    return zb.dataset(tmp_path / "lake")


@pytest.fixture
def older(tmp_path) -> Path:
    """Write a copy of the package, with its compiled kernels, and with another version number."""
    copy = tmp_path / "older"
    # Another process of the tests may write temporary files.
    without = shutil.ignore_patterns("*.pyc*", "*.tmp.*")
    shutil.copytree(separately.ROOT / "zonebloom", copy / "zonebloom", ignore=without)
    version = copy / "zonebloom" / "base" / "version.py"
    text = version.read_text().replace(f'__version__ = "{zb.__version__}"', '__version__ = "0.0.9"')
    version.write_text(text)
    return copy


def test_a_build_with_another_worker_version_raises(spark, dataset, tmp_path, older):
    command = f'PYTHONPATH={older}:$PYTHONPATH exec {sys.executable} "$@"'
    with (
        workers_run(spark, script(tmp_path / "python", command)),
        pytest.raises(EngineError, match=f"Executors need zonebloom {zb.__version__}") as raised,
    ):
        dataset.create_scalar_index("id", spark=spark)
    assert "executors have zonebloom 0.0.9 and the driver" in str(raised.value.__cause__)
    assert not index_folder(tmp_path / "lake").exists()

"""Test the archives: the wheel contains enough to run a command, and the sources are complete."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tarfile
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import PACKAGE, ROOT

from zonebloom import __version__

SUFFIXES = (".py", ".java", ".typed", ".jinja2", ".css")


def build(target, folder):
    """Build an archive of a target of hatchling in a folder, and return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    path = build("wheel", tmp_path_factory.mktemp("wheel"))
    assert path.name == f"zonebloom-{__version__}-py3-none-any.whl"
    return path


def test_the_wheel_contains_only_the_packages(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    source_files = [path for path in PACKAGE.rglob("*") if path.suffix in SUFFIXES]
    source_files += ROOT.glob("*_*/__init__.py")
    packed_files = {name for name in names if ".dist-info/" not in name}
    assert packed_files == {path.relative_to(ROOT).as_posix() for path in source_files}
    assert {"zonebloom/py.typed", "zonebloom/spark/pruning/IndexedFiles.java"} <= packed_files


@pytest.mark.slow
def test_the_wheel_works_without_the_repository(wheel, tmp_path):
    """Count rows without an index, because a build would compile the kernels again.

    `tests/support/smoke.py` tests a build.
    """
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "0.parquet")
    script = (
        "import importlib.metadata as metadata, sys, zonebloom;"
        "print(zonebloom.__file__, zonebloom.__version__, flush=True);"
        "[command] = metadata.distribution('zonebloom').entry_points;"
        "sys.argv[1:] = ['count', '0.parquet', 'id < 42'];"
        "sys.exit(command.load()())"
    )
    process = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = f"{installed / 'zonebloom' / '__init__.py'} {__version__}\n42\n"
    assert (process.returncode, process.stdout) == (0, expected), process.stderr


def test_the_archive_of_the_sources_contains_the_guides_and_the_tests(tmp_path):
    path = build("sdist", tmp_path)
    assert path.name == f"zonebloom-{__version__}.tar.gz"
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    guides = {path.name for path in ROOT.glob("*.md")}
    assert {"CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"} <= guides
    files = [path for path in PACKAGE.rglob("*") if path.suffix in SUFFIXES]
    files += (ROOT / "tests").rglob("*.py")
    assert {*guides, "LICENSE", "pyproject.toml"} <= names
    assert {path.relative_to(ROOT).as_posix() for path in files} <= names
    # Caches and built files stay out.
    assert not [name for name in names if "__pycache__" in name or name.endswith(".nbi")]


def test_the_metadata_name_the_urls_and_versions(wheel):
    (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA"))
    metadata = email.message_from_bytes(zipfile.ZipFile(wheel).read(name))
    urls = dict(entry.split(", ") for entry in metadata.get_all("Project-URL"))
    assert set(urls) == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"

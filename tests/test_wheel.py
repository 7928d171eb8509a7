"""The wheel: what is in it, and that what is in it is enough."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import PACKAGE, ROOT

from zonebloom.base.version import __version__

pytest.importorskip("hatchling")

KINDS = (".py", ".java", ".typed", ".jinja2", ".css")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.iterdir()
    assert made.name == f"zonebloom-{__version__}-py3-none-any.whl"
    return made


def test_it_holds_the_packages_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = [path for path in PACKAGE.rglob("*") if path.suffix in KINDS]
    ours += ROOT.glob("*_*/__init__.py")
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == {path.relative_to(ROOT).as_posix() for path in ours}
    assert {"zonebloom/py.typed", "zonebloom/spark/pruning/IndexedFiles.java"} <= packed


def test_what_is_in_it_works_alone(wheel, tmp_path):
    """Without a build, whose kernels would be compiled anew; `tests/smoke.py` has one."""
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "0.parquet")
    script = (
        "import sys, zonebloom; from zonebloom.cli.main import main;"
        "print(zonebloom.__file__, zonebloom.__version__, flush=True);"
        "sys.exit(main(['count', '0.parquet', 'id < 42']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    wanted = f"{installed / 'zonebloom' / '__init__.py'} {__version__}\n42\n"
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr

"""The lock on the cache of compiled kernels: no process waits for it forever."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.helpers import ROOT, run_python
from support.seams import set_constant

from zonebloom.sbbf.jit import LOCK_PREFIX, CacheLocks

HOLD = """
import sys
from zonebloom.sbbf.jit import LOCKS

with LOCKS.hold("zonebloom.storage.pread_kernel") as held:
    print(held, flush=True)
    sys.stdin.read()
"""

IMPORT = """
import json, warnings
from zonebloom.sbbf import jit

jit.LOCKS.timeout_seconds = 0.3
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from zonebloom.storage.pread_kernel import read_pieces
    import zonebloom.sbbf.xxh64
print(json.dumps({
    "prefix": jit.LOCKS.prefix,
    "cached": read_pieces.stats.cache_path is not None,
    "compiled": len(read_pieces.signatures),
    "warnings": [str(each.message) for each in caught if "kernels" in str(each.message)],
}))
"""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """An environment whose cache and temporary folders are the test's own."""
    for name in ("cache", "tmp"):
        (tmp_path / name).mkdir()
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "tmp"),
    }


def imported(places: dict[str, str]) -> dict:
    return json.loads(run_python(IMPORT, **places))


@pytest.mark.slow
def test_a_process_that_hangs_with_the_lock_delays_no_import_for_long(places):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env=places,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "True\n"
            report = imported(places)
        finally:
            holder.kill()
    assert report["compiled"] == 1
    assert not report["cached"]
    # One wait, however many kernels there are.
    (warning,) = report["warnings"]
    assert report["prefix"] in warning and "end that process" in warning


@pytest.mark.slow
def test_the_lock_is_the_users_alone(places, tmp_path):
    report = imported(places)
    assert report["cached"] and report["warnings"] == []
    assert report["prefix"] == str(tmp_path / "cache" / "zonebloom" / LOCK_PREFIX)
    assert (tmp_path / "cache" / "zonebloom").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "tmp").iterdir()) == []


def link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(exist_ok=True)
    folder.symlink_to(folder.parent / "elsewhere")


def link_to_nothing(folder: Path) -> None:
    folder.symlink_to(folder.parent / "elsewhere")


def file(folder: Path) -> None:
    folder.write_bytes(b"")


def writable_for_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def of_somebody_else(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes folders of others")
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)


@pytest.mark.parametrize("trap", [link, link_to_nothing, file, writable_for_all, of_somebody_else])
def test_what_others_may_have_put_there_is_not_used(tmp_path, monkeypatch, trap):
    cache, temporary = tmp_path / "cache" / "zonebloom", tmp_path / "tmp"
    cache.parent.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
    set_constant(monkeypatch, tempfile, "tempdir", str(temporary))
    trap(cache)
    locks = CacheLocks()
    own = temporary / f"zonebloom-{os.geteuid()}"
    assert locks.prefix == str(own / LOCK_PREFIX)
    with locks.hold("a") as is_held:
        assert is_held
    shutil.rmtree(own)
    trap(own)
    locks = CacheLocks()
    assert locks.prefix is None
    with locks.hold("a") as is_held:
        assert not is_held
    assert not list(tmp_path.glob("*/elsewhere/*"))


FORK = """
import os, sys
import zonebloom.sbbf.xxh64

child = os.fork()
if not child:
    import zonebloom.storage.pread_kernel
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_loads_more_kernels():
    """As servers and data loaders do, that fork when all is imported."""
    run_python(FORK)


WINDOWS = """
import numba
import tests.support.without_linux
from zonebloom.sbbf.jit import CacheLocks

first, second = CacheLocks(), CacheLocks()
second.timeout_seconds = 0
with first.hold("a") as is_held, second.hold("a") as is_held_twice:
    assert is_held and not is_held_twice
    with CacheLocks().hold("b") as is_another_held:
        assert is_another_held
with CacheLocks().hold("a") as is_held_again:
    assert is_held_again
"""


def test_windows_locks_the_cache_by_its_own_module():
    run_python(WINDOWS)

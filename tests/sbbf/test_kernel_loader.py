"""A thread loads the kernels after a dataset with an index is opened, and lookups do not wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import ROOT, run_python

NUM_ROWS = 20_000
# Each test looks these up. The last one does not exist.
KEYS = [42, 15_000, 7, -1]
OPEN = "ds = zb.dataset(sys.argv[1])"
# The imports and functions that the programs of the tests share.
START = """
    import json, os, sys, threading, time
    import zonebloom as zb
    from zonebloom.sbbf import kernel_loader
    from zonebloom.sbbf.kernel_loader import KERNELS

    def look_up(key):
        return ds.to_table(filter=f"id = {key}").to_pylist()

    def wait_until(is_true):
        while not is_true():
            time.sleep(0.001)
"""


def run_quietly(body: str, *arguments: object, **environment: str) -> str:
    """Run code in a new process, and return its output. OPEN opens the dataset.

    The process must exit with code 0 and print nothing on stderr.
    """
    program = textwrap.dedent(START) + textwrap.dedent(body).replace("OPEN", OPEN)
    process = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout


def rows_of(key: int) -> list[dict[str, object]]:
    return [{"id": key, "name": f"name {key}"}] if 0 <= key < NUM_ROWS else []


@pytest.fixture(scope="module", params=["BLOOMFILTER", "HASH"])
def folder(request, tmp_path_factory):
    """Write a file with an index."""
    folder = tmp_path_factory.mktemp("data") / "data"
    folder.mkdir()
    ids = range(NUM_ROWS)
    table = pa.table({"id": ids, "name": [f"name {key}" for key in ids]})
    pq.write_table(table, folder / "0.parquet", write_page_index=True)
    run_python(
        """
        import sys
        import zonebloom as zb

        _, path, kind = sys.argv
        zb.dataset(path).create_scalar_index("id", kind, spark=False)
        """,
        folder,
        request.param,
    )
    return folder


def test_kernels_are_loaded_after_opening_and_find_the_same_rows(folder):
    output = run_quietly(
        """
        OPEN
        keys = json.loads(sys.argv[2])
        before, was_loaded = [look_up(key) for key in keys], KERNELS.are_loaded
        wait_until(lambda: KERNELS.are_loaded)
        names = set(kernel_loader.LOOKUP_MODULES)
        print(json.dumps([before, was_loaded, [look_up(key) for key in keys],
                          names <= set(sys.modules)]))
        """,
        folder,
        json.dumps(KEYS),
    )
    before, was_loaded, after, has_modules = json.loads(output)
    assert before == after == [rows_of(key) for key in KEYS]
    assert not was_loaded
    assert has_modules


def test_many_threads_find_their_rows_while_kernels_are_loaded(folder):
    output = run_quietly(
        f"""
        OPEN
        wrong = []

        def search(first):
            key = first
            while not KERNELS.are_loaded or key < first + 100:
                key = (key + 13) % {NUM_ROWS}
                if look_up(key) != [{{"id": key, "name": f"name {{key}}"}}]:
                    wrong.append(key)

        threads = [threading.Thread(target=search, args=(1000 * n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(KERNELS.are_loaded, wrong)
        """,
        folder,
    )
    assert output == "True []\n"


# Conditions for the thread to have begun: it waits, imports Numba, or loads kernels.
STAGES = {
    "waiting": "KERNELS._thread.is_alive()",
    "importing": "'numba' in sys.modules",
    "loading": "'zonebloom.sbbf.blocks' in sys.modules",
    "later": "'zonebloom.parquet.leaf_reader' in sys.modules",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("stage", STAGES)
def test_a_process_that_is_forked_meanwhile_loads_kernels_itself(folder, stage):
    output = run_quietly(
        f"""
        OPEN
        import warnings
        # Python 3.12 and later warn if other threads exist.
        warnings.simplefilter("ignore")
        wait_until(lambda: {STAGES[stage]})
        keys = json.loads(sys.argv[2])
        child = os.fork()
        found = [[look_up(key) for key in keys]]
        wait_until(lambda: KERNELS.are_loaded)
        found.append([look_up(key) for key in keys])
        if not child:
            print(json.dumps(found), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(json.dumps(found))
        """,
        folder,
        json.dumps(KEYS),
    )
    expected = [[rows_of(key) for key in KEYS]] * 2
    assert [json.loads(line) for line in output.splitlines()] == [expected, expected]


@pytest.mark.parametrize("stage", STAGES)
def test_a_process_exits_while_kernels_are_loaded(folder, stage):
    assert run_quietly(f"OPEN\nwait_until(lambda: {STAGES[stage]})\nprint(look_up(42))", folder)


@pytest.mark.parametrize("seconds", [0.0, 1.0, 2.5])
def test_a_process_exits_while_kernels_are_compiled(tmp_path, folder, seconds):
    output = run_quietly(
        f"""
        OPEN
        wait_until(lambda: "zonebloom.sbbf.blocks" in sys.modules)
        time.sleep({seconds})
        print(KERNELS.are_loaded, look_up(42))
        """,
        folder,
        NUMBA_CACHE_DIR=str(tmp_path / "numba"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert output == f"False {rows_of(42)}\n"


def test_without_threads_kernels_are_loaded_when_they_are_worth_it(folder):
    output = run_quietly(
        """
        def refuse(thread):
            raise RuntimeError("can't start new thread")

        threading.Thread.start = refuse
        OPEN
        keys = json.loads(sys.argv[2])
        found = [[look_up(key) for key in keys]]
        assert "numba" not in sys.modules
        KERNELS._max_checks = 0
        found.append([look_up(key) for key in keys])
        print(json.dumps([found, "numba" in sys.modules]))
        """,
        folder,
        json.dumps(KEYS),
    )
    assert json.loads(output) == [[[rows_of(key) for key in KEYS]] * 2, True]


def test_an_error_in_the_thread_is_raised_where_kernels_are_needed(folder):
    output = run_quietly(
        """
        sys.modules["numba"] = None
        OPEN
        KERNELS._thread.join()
        keys = json.loads(sys.argv[2])
        found = [look_up(key) for key in keys]
        try:
            zb.warmup()
        except ImportError as error:
            print(json.dumps([found, error.name]))
        """,
        folder,
        json.dumps(KEYS),
    )
    found, name = json.loads(output)
    assert found == [rows_of(key) for key in KEYS]
    assert name.startswith("numba")


def test_a_second_process_compiles_the_last_modules_first(tmp_path):
    """The first module waits for a file that the last one writes when another process loads it."""
    written = tmp_path / "written"
    (tmp_path / "waits.py").write_text(
        f"import os, time\nend = time.monotonic() + 60\n"
        f"while not os.path.exists({str(written)!r}) and time.monotonic() < end:\n"
        f"    time.sleep(0.01)\n"
    )
    (tmp_path / "writes.py").write_text(
        f"import os\nwith open({str(written)!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
    )
    program = """
        import os, sys
        sys.path.append(sys.argv[1])
        from zonebloom.sbbf.kernel_loader import KernelLoader

        KernelLoader(["waits", "writes"]).load()
        print(os.getpid())
    """
    own = run_python(program, tmp_path, XDG_CACHE_HOME=str(tmp_path)).split()
    others = [line for line in written.read_text().splitlines() if line not in own]
    assert len(others) == 1
    # The kernels are marked as compiled now.
    written.unlink()
    (tmp_path / "waits.py").write_text("")
    own = run_python(program, tmp_path, XDG_CACHE_HOME=str(tmp_path)).split()
    assert written.read_text().split() == own

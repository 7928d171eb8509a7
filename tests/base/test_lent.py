"""A process ends correctly while threads of pyarrow hold some of its objects."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zonebloom.base.exit_guard import GuardedBytes

# Python does not wait for this thread at its end, as it does not wait for pyarrow's threads.
DROPPED_LATE = """
    import os, threading, time
    import pyarrow.fs as pafs
    from zonebloom.base.exit_guard import GuardedBytes, GuardedIterator
    from zonebloom.storage.files import ReadCounter, counting_filesystem

    def drop():
        held = [{guarded}]
        is_held.set()
        time.sleep(0.3)
        os.write(1, b"dropped")
        del held[:]

    is_held = threading.Event()
    threading.Thread(target=drop, daemon=True).start()
    is_held.wait()
"""


def run(code, *arguments):
    """Run code in a process of its own, which must end without an error. Return its output."""
    program = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    ended = subprocess.run(program, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(4):
        keys = np.arange(number * 50_000, (number + 1) * 50_000)
        table = pa.table({"id": keys, "name": keys.astype(str)})
        pq.write_table(table, tmp_path / f"data/{number}.parquet", row_group_size=10_000)
    return tmp_path


@pytest.mark.parametrize(
    "guarded",
    [
        "GuardedBytes(b'abc')",
        "GuardedIterator(iter([1]))",
        "counting_filesystem(pafs.LocalFileSystem(), ReadCounter())",
        "counting_filesystem(pafs.LocalFileSystem(), ReadCounter()).open_input_file('/dev/null')",
    ],
)
def test_a_process_waits_until_threads_drop_guarded_objects(guarded):
    assert run(DROPPED_LATE.format(guarded=guarded)) == "dropped"


def test_a_process_does_not_wait_for_other_objects():
    assert run(DROPPED_LATE.format(guarded="object()")) == ""


def test_a_guarded_object_in_use_until_the_end_does_not_block_the_end():
    assert (
        run("""
        from zonebloom.base.exit_guard import GuardedBytes, GuardedIterator
        kept = GuardedBytes(b"abc"), GuardedIterator(iter([1]))
    """)
        == ""
    )


@pytest.mark.slow
def test_batches_made_in_python_end_with_the_process():
    """PyArrow's scanner reads ahead after the first rows, and aborts if it reads a generator."""
    assert (
        run("""
        import time
        import pyarrow as pa
        import pyarrow.dataset as pads
        from zonebloom.base.exit_guard import GuardedIterator

        def batches():
            for _ in range(10_000):
                time.sleep(0.001)
                yield pa.record_batch({"id": range(100)})

        schema = pa.schema({"id": pa.int64()})
        reader = pa.RecordBatchReader.from_batches(schema, GuardedIterator(batches()))
        print(pads.Scanner.from_batches(reader).head(5).num_rows)
    """)
        == "5\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [
        "ds.scanner(filter='id >= 3', limit=7, scan_stats_callback=print).to_table()",
        "ds.head(7, filter=pc.field('id') >= 3)",
        "next(ds.to_batches(filter=pc.field('id') >= 3)).slice(0, 7)",
        "zb.dataset(path, filesystem=fsspec.filesystem('file')).scanner(limit=7).to_table()",
        "zb.dataset('data', filesystem=LocalStore(folder)).scanner(limit=7).to_table()",
    ],
)
def test_unfinished_reads_end_with_the_process(folder, read):
    printed = run(
        f"""
        import sys
        import fsspec
        import pyarrow.compute as pc
        from obstore.store import LocalStore
        import zonebloom as zb

        folder = sys.argv[1]
        path = f"{{folder}}/data"
        ds = zb.dataset(path)
        rows = {read}
        print(rows.num_rows)
        """,
        folder,
    )
    assert printed.splitlines()[-1] == "7"


@pytest.mark.parametrize("data", [b"", b"abc", pa.py_buffer(b"abc")])
def test_guarded_bytes_are_equal_to_the_bytes(data):
    assert pa.py_buffer(GuardedBytes(data)).to_pybytes() == pa.py_buffer(data).to_pybytes()

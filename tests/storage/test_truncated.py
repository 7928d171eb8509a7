"""Test that files truncated while they are open give right rows or an error, and never a crash."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import copy_dataset, run_python

import zonebloom as zb

ROWS, ITEMS = 40_000, 128
KEYS = range(0, ROWS, 997)

# This prints the result of each lookup. A process that is ended by a signal prints nothing.
LOOKUPS = """
    import os, sys, warnings
    from pathlib import Path
    import zonebloom as zb

    folder, format, pattern = Path(sys.argv[1]), *sys.argv[2:4]
    warnings.simplefilter("ignore")

    def ask(ds, key):
        try:
            return str(ds.to_table(["text"], filter=f"id = {key}")["text"].to_pylist())
        except zb.errors.ZoneBloomError as error:
            return type(error).__name__

    for size in map(int, sys.argv[4].split(",")):
        ds = zb.dataset(folder / str(size), format=format)
        assert ask(ds, 5) == "['text 5']"
        list(ds.key_ranges("id").to_pylist())
        global_filter = ds.global_filter("id")
        folders = folder / str(size), Path(ds.index_dir)
        paths = sorted(path for each in folders for path in each.rglob(pattern) if path.is_file())
        assert paths
        for path in paths:
            os.truncate(path, min(size, path.stat().st_size))
        for key in map(int, sys.argv[5:]):
            print(size, key, ask(ds, key), sep="|")
        list(ds.search_many("id", list(range(5000))))
        try:
            ds.index_statistics("id_idx")
        except zb.errors.CorruptIndex:
            pass
"""


def lookups_after_truncation(
    folder: Path, format: str, pattern: str, sizes: list[int]
) -> dict[tuple[int, int], str]:
    """Return the result of each lookup by size and key, with files truncated to that size.

    All lookups run in one process.
    """
    for size in sizes:
        copy_dataset(folder / "whole", folder / str(size))
    out = run_python(LOOKUPS, folder, format, pattern, ",".join(map(str, sizes)), *KEYS)
    lines = [line.split("|") for line in out.splitlines()]
    return {(int(size), int(key)): text for size, key, text in lines}


def table() -> pa.Table:
    return pa.table({"id": range(ROWS), "text": [f"text {n}" for n in range(ROWS)]})


def index(folder: Path, format: str, kind: str) -> None:
    ds = zb.dataset(folder, format=format)
    ds.create_scalar_index("id", kind, spark=False, number_of_items=ITEMS, global_filter=True)


@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_truncated_index_files_lose_no_row(tmp_path: Path, kind: str) -> None:
    (tmp_path / "whole").mkdir()
    pq.write_table(table(), tmp_path / "whole" / "a.parquet")
    index(tmp_path / "whole", "parquet", kind)
    expected = {(size, key): f"['text {key}']" for size in (0, 5000) for key in KEYS}
    results = lookups_after_truncation(tmp_path, "parquet", "segments/*/*", [0, 5000])
    assert results == expected


def test_truncated_arrow_ipc_files_raise(tmp_path: Path) -> None:
    """The lost part of a file may hold any key, so each lookup raises an error."""
    (tmp_path / "whole").mkdir()
    with pa.ipc.new_file(str(tmp_path / "whole" / "a.arrow"), table().schema) as writer:
        writer.write_table(table(), 3000)
    index(tmp_path / "whole", "ipc", "BLOOMFILTER")
    expected = {(size, key): "FragmentUnreadable" for size in (0, 100_000) for key in KEYS}
    assert lookups_after_truncation(tmp_path, "ipc", "a.arrow", [0, 100_000]) == expected


def test_a_file_that_is_truncated_during_a_read_keeps_returned_batches_valid(
    tmp_path: Path,
) -> None:
    """Batches that were returned before the truncation stay valid."""
    path = tmp_path / "a.arrow"
    whole = table().append_column("list", pa.array([[n] for n in range(ROWS)]))
    with pa.ipc.new_file(str(path), whole.schema) as writer:
        writer.write_table(whole, 3000)
    out = run_python(
        """
        import os, sys
        import zonebloom as zb

        ds = zb.dataset(sys.argv[1], format="ipc")
        ds.create_scalar_index("id", spark=False, number_of_items=128)
        scanner = ds.scanner(filter="id IN (1, 3500, 20000, 39000)", batch_size=1)
        batches = iter(scanner.to_batches())
        received = [next(batches)]
        os.truncate(sys.argv[1] + "/a.arrow", 0)
        try:
            received += batches
        except zb.errors.ZoneBloomError as error:
            print(type(error).__name__)
        print([row for batch in received for row in batch.to_pylist()][0])
        """,
        tmp_path,
    )
    assert out.splitlines()[-1] == "{'id': 1, 'text': 'text 1', 'list': [1]}"

"""A process that follows an index over many versions keeps neither files nor memory of the old."""

from __future__ import annotations

import gc
import os
import tracemalloc
from datetime import timedelta
from pathlib import Path

import pytest
from support.e2e_helpers import numbered, write_files

import zonebloom as zb

ROWS = 100
ROUNDS = 12


def num_open_files() -> int:
    """Return how many file descriptors this process has open."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_a_reader_holds_the_files_of_one_version_only(tmp_path: Path, kind):
    write_files(tmp_path, [numbered(0, ROWS)], row_group_size=25)
    writer = zb.dataset(tmp_path)
    writer.create_scalar_index("row", kind, number_of_items=10, spark=False)
    reader = zb.dataset(tmp_path)
    open_files, traced_bytes = [], []
    tracemalloc.start()
    try:
        for number in range(1, 3 * ROUNDS + 1):
            # Every round replaces the index and deletes the files of the one before.
            writer.create_scalar_index("row", kind, number_of_items=10, spark=False)
            writer.vacuum(timedelta(0))
            reader.refresh()
            row = number % ROWS
            assert reader.to_table(filter=f"row = {row}")["row"].to_pylist() == [row]
            if number % ROUNDS == 0:
                open_files.append(num_open_files())
                traced_bytes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert open_files[-1] <= open_files[1]
    # Small caches of texts and numbers may still fill up; 12 indices would be far larger.
    assert traced_bytes[-1] - traced_bytes[1] < 256 << 10

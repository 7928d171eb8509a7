"""Measure lookups in one large index, in a process of its own.

``python -m bench.scale_lookup INDEX KEYS BATCH`` prints the measurements as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from bench.cold import bytes_read, peak_bytes
from bench.scale import Index, Scaled, keys_of
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
from zonebloom.index.rows import read_row_table
from zonebloom.index.sliced import SlicedTable

_BATCH_SECONDS = 2.0


class Lookup:
    """An open index: the whole file in row layout, or the directory of a sliced file."""

    def __init__(self, index: Index):
        opened = read_row_table if index.layout == "table" else SlicedTable
        self._table = opened(pafs.LocalFileSystem(), index.path, index.num_bytes, index.checksum)
        self.batch_piece = 4096 if index.layout == "table" else 100_000

    def one(self, hashed: int) -> np.ndarray:
        """Return the zones that may contain a hash. The first lookups do not need Numba."""
        return self._table.find(np.array([hashed], dtype=np.uint64))

    def many(self, hashes: np.ndarray) -> int:
        """Return the total number of zones that may contain the hashes."""
        return sum(zones.size for _, zones in self._table.pairs(hashes))


def _hash(key: int) -> int:
    return xxhash.xxh64_intdigest(key.to_bytes(8, "little"))


def main(described: str, num_keys: str, batch: str) -> None:
    """Look up keys, and print the measurements."""
    index = Index(**json.loads(described))
    random = np.random.default_rng(11)
    rows = random.integers(0, index.rows, int(num_keys)).tolist()
    hashes = [_hash(key) for key in keys_of(np.array(rows)).tolist()]

    # The first conversion to NumPy makes pyarrow import pandas if it is installed.
    pa.array([0]).to_numpy()
    base, before = peak_bytes(), bytes_read()
    start = time.perf_counter()
    lookup = Lookup(index)
    found = lookup.one(hashes[0])
    cold_seconds = time.perf_counter() - start
    after, cold_peak = bytes_read(), peak_bytes()
    _require(found, rows[0])

    import zonebloom.sbbf.blocks  # noqa: F401

    _bring_in(index.path)
    lookup.one(hashes[0])
    taken, beyond = [], []
    for row, hashed in zip(rows, hashes, strict=True):
        start = time.perf_counter()
        found = lookup.one(hashed)
        taken.append(time.perf_counter() - start)
        _require(found, row)
        beyond.append(found.size - 1)
    scaled = Scaled(
        index.layout,
        index.rows,
        index.num_zones,
        index.num_bytes,
        index.build_seconds,
        cold_seconds,
        after[0] - before[0] if after and before else None,
        after[1] - before[1] if after and before else None,
        cold_peak - base,
        statistics.median(taken),
        _batch_rate(lookup, int(batch), index.rows),
        peak_bytes() - base,
        statistics.mean(beyond),
    )
    print(json.dumps(asdict(scaled)))


def _bring_in(path: str) -> None:
    """Read a file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(16 << 20):
            pass


def _require(found: np.ndarray, row: int) -> None:
    """Fail if the zone of a row is not among the zones found."""
    assert row // DEFAULT_NUMBER_OF_ITEMS in found, (row, found)


def _batch_rate(lookup: Lookup, count: int, rows: int) -> float:
    """Return the keys looked up per second. Stop after a few seconds if there are keys left."""
    # The row numbers are beyond the last row, so their keys are absent.
    keys = keys_of(np.arange(rows, rows + count, dtype=np.uint64))
    hashes = np.array([_hash(key) for key in keys.tolist()], dtype=np.uint64)
    size = min(count, lookup.batch_piece)
    lookup.many(hashes[:size])
    start = time.perf_counter()
    done = 0
    while done < count and time.perf_counter() - start < _BATCH_SECONDS:
        lookup.many(hashes[done : done + size])
        done += size
    return min(done, count) / (time.perf_counter() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])

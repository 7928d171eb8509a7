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
from bench.scale import Index, ScaleResult, keys_of
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
from zonebloom.index.zone_bloom.rows import read_row_table
from zonebloom.index.zone_bloom.sliced import SlicedTable

_BATCH_SECONDS = 2.0


class Lookup:
    """An open index: the whole file in row layout, or the directory of a sliced file."""

    def __init__(self, index: Index):
        open_index = read_row_table if index.layout == "table" else SlicedTable
        self._table = open_index(
            pafs.LocalFileSystem(), index.path, index.num_bytes, index.checksum
        )
        self.batch_piece = 4096 if index.layout == "table" else 100_000

    def find_one(self, key_hash: int) -> np.ndarray:
        """Return the zones that may contain a hash. The first lookups do not need Numba."""
        return self._table.find(np.array([key_hash], dtype=np.uint64))

    def count_many(self, hashes: np.ndarray) -> int:
        """Return the total number of zones that may contain the hashes."""
        return sum(zones.size for _, zones in self._table.pairs(hashes))


def _hash(key: int) -> int:
    return xxhash.xxh64_intdigest(key.to_bytes(8, "little"))


def main(index_json: str, num_keys: str, batch: str) -> None:
    """Look up keys, and print the measurements."""
    index = Index(**json.loads(index_json))
    random = np.random.default_rng(11)
    rows = random.integers(0, index.rows, int(num_keys)).tolist()
    hashes = [_hash(key) for key in keys_of(np.array(rows)).tolist()]

    # The first conversion to NumPy makes pyarrow import pandas if it is installed.
    pa.array([0]).to_numpy()
    memory_before, bytes_before = peak_bytes(), bytes_read()
    start = time.perf_counter()
    lookup = Lookup(index)
    zones = lookup.find_one(hashes[0])
    cold_seconds = time.perf_counter() - start
    bytes_after, cold_peak = bytes_read(), peak_bytes()
    _require_zone_of_row(zones, rows[0])

    import zonebloom.sbbf.blocks  # noqa: F401

    _load_into_page_cache(index.path)
    lookup.find_one(hashes[0])
    lookup_seconds, false_zones = [], []
    for row, key_hash in zip(rows, hashes, strict=True):
        start = time.perf_counter()
        zones = lookup.find_one(key_hash)
        lookup_seconds.append(time.perf_counter() - start)
        _require_zone_of_row(zones, row)
        false_zones.append(zones.size - 1)
    storage_bytes = read_bytes = None
    if bytes_before is not None and bytes_after is not None:
        storage_bytes = bytes_after[0] - bytes_before[0]
        read_bytes = bytes_after[1] - bytes_before[1]
    result = ScaleResult(
        layout=index.layout,
        rows=index.rows,
        num_zones=index.num_zones,
        index_bytes=index.num_bytes,
        build_seconds=index.build_seconds,
        cold_seconds=cold_seconds,
        cold_storage_bytes=storage_bytes,
        cold_read_bytes=read_bytes,
        cold_peak_bytes=cold_peak - memory_before,
        warm_seconds=statistics.median(lookup_seconds),
        batch_keys_per_second=_batch_rate(lookup, int(batch), index.rows),
        peak_bytes=peak_bytes() - memory_before,
        false_zones=statistics.mean(false_zones),
    )
    print(json.dumps(asdict(result)))


def _load_into_page_cache(path: str) -> None:
    """Read a file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(16 << 20):
            pass


def _require_zone_of_row(zones: np.ndarray, row: int) -> None:
    """Fail if the zone of a row is not among some zones."""
    assert row // DEFAULT_NUMBER_OF_ITEMS in zones, (row, zones)


def _batch_rate(lookup: Lookup, count: int, rows: int) -> float:
    """Return the keys looked up per second. Stop after a few seconds if there are keys left."""
    # The row numbers are beyond the last row, so their keys are absent.
    keys = keys_of(np.arange(rows, rows + count, dtype=np.uint64))
    hashes = np.array([_hash(key) for key in keys.tolist()], dtype=np.uint64)
    size = min(count, lookup.batch_piece)
    lookup.count_many(hashes[:size])
    start = time.perf_counter()
    position = 0
    while position < count and time.perf_counter() - start < _BATCH_SECONDS:
        lookup.count_many(hashes[position : position + size])
        position += size
    return min(position, count) / (time.perf_counter() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])

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
import xxhash

from bench.cold import bytes_read, peak_bytes
from bench.scale import Index, ScaleResult, keys_of
from zonebloom.catalog.store import read_file
from zonebloom.index.hash.table import HashTable
from zonebloom.index.table import IndexTable
from zonebloom.index.zone_bloom.rows import RowTable
from zonebloom.storage.store import LOCAL

_BATCH_SECONDS = 2.0
# Hashes that are looked up together. Filters test each in every zone.
_TABLE_BATCH = 4096


def _open(index: Index) -> IndexTable:
    """Open an index: the whole file of filters, or the end of a file of a hash index."""
    place = LOCAL, index.path, index.num_bytes, index.checksum
    return RowTable(read_file(*place), index.path) if index.layout == "table" else HashTable(*place)


def _find_one(table: IndexTable, key_hash: int) -> np.ndarray:
    """Return the zones that may hold a hash. The first lookups do not need Numba."""
    return table.find(np.array([key_hash], dtype=np.uint64))


def _count_zones(table: IndexTable, hashes: np.ndarray) -> int:
    """Return the total number of zones that may hold the hashes."""
    return sum(zones.size for _, zones in table.pairs(hashes))


def _hash(keys: np.ndarray) -> list[int]:
    return [xxhash.xxh64_intdigest(key.to_bytes(8, "little")) for key in keys.tolist()]


def main(index_json: str, num_keys: str, batch: str) -> None:
    """Look up keys, and print the measurements."""
    index = Index(**json.loads(index_json))
    random = np.random.default_rng(11)
    rows = random.integers(0, index.rows, int(num_keys)).tolist()
    hashes = _hash(keys_of(np.array(rows)))

    # The first conversion to NumPy makes pyarrow import pandas if it is installed.
    pa.array([0]).to_numpy()
    memory_before, bytes_before = peak_bytes(), bytes_read()
    start = time.perf_counter()
    table = _open(index)
    zones = _find_one(table, hashes[0])
    cold_seconds = time.perf_counter() - start
    bytes_after, cold_peak, cold_index_bytes = bytes_read(), peak_bytes(), table.loaded_bytes
    _require_zone_of_row(zones, rows[0], index)

    import zonebloom.sbbf.blocks  # noqa: F401

    _load_into_page_cache(index.path)
    _find_one(table, hashes[0])
    warm_seconds = _time_lookups(table, index, rows, hashes)
    again_seconds = _time_lookups(table, index, rows, hashes)
    storage_bytes = None
    if bytes_before is not None and bytes_after is not None:
        storage_bytes = bytes_after[0] - bytes_before[0]
    rate, core_rate, false_zones = _measure_batch(table, index, int(batch))
    result = ScaleResult(
        layout=index.layout,
        rows=index.rows,
        num_zones=index.num_zones,
        index_bytes=index.num_bytes,
        build_seconds=index.build_seconds,
        build_peak_bytes=index.build_peak_bytes,
        cold_seconds=cold_seconds,
        cold_index_bytes=cold_index_bytes,
        cold_storage_bytes=storage_bytes,
        cold_peak_bytes=cold_peak - memory_before,
        warm_seconds=warm_seconds,
        again_seconds=again_seconds,
        batch_keys_per_second=rate,
        batch_keys_per_core_second=core_rate,
        peak_bytes=peak_bytes() - memory_before,
        false_zones=false_zones,
    )
    print(json.dumps(asdict(result)))


def _time_lookups(table: IndexTable, index: Index, rows: list[int], hashes: list[int]) -> float:
    """Return the median time to look up the key of a row. Fail if its zone is not found."""
    seconds = []
    for row, key_hash in zip(rows, hashes, strict=True):
        start = time.perf_counter()
        zones = _find_one(table, key_hash)
        seconds.append(time.perf_counter() - start)
        _require_zone_of_row(zones, row, index)
    return statistics.median(seconds)


def _load_into_page_cache(path: str) -> None:
    """Read a file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(16 << 20):
            pass


def _require_zone_of_row(zones: np.ndarray, row: int, index: Index) -> None:
    """Fail if the zone of a row is not among some zones."""
    assert row // index.zone_rows in zones, (row, zones)


def _measure_batch(table: IndexTable, index: Index, count: int) -> tuple[float, float, float]:
    """Look up keys of which about half are present, and then absent keys.

    Return the keys per second and per second of CPU time, and the mean number of zones of an absent
    key. Stop after a few seconds if there are keys left.
    """
    # Rows from the number of rows on do not exist.
    rows = np.random.default_rng(13).integers(0, 2 * index.rows, count)
    hashes = np.array(_hash(keys_of(rows)), dtype=np.uint64)
    absent = hashes[rows >= index.rows]
    size = min(count, _TABLE_BATCH if index.layout == "table" else count)
    _count_zones(table, hashes[:_TABLE_BATCH])
    start, cpu_start = time.perf_counter(), time.process_time()
    position = 0
    while position < count and time.perf_counter() - start < _BATCH_SECONDS:
        _count_zones(table, hashes[position : position + size])
        position += size
    num_keys = min(position, count)
    rates = num_keys / (time.perf_counter() - start), num_keys / (time.process_time() - cpu_start)
    absent = absent[: max(1, num_keys)]
    return *rates, _count_zones(table, absent) / absent.size


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Write one large index from generated keys, in a process of its own.

``python -m bench.scale_build LAYOUT ROWS PATH`` prints size, checksum, time and memory as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from bench.cold import peak_bytes
from bench.scale import MERGED, keys_of, zone_rows
from zonebloom.index.hash.parameters import HashParameters
from zonebloom.index.hash.table import HashTable
from zonebloom.index.hash.writer import HashSegmentWriter, merge_hash_tables
from zonebloom.index.table import WrittenTable
from zonebloom.index.zone_bloom.rows import RowTableWriter, ZoneParameters, Zones
from zonebloom.sbbf import blocks, xxh64
from zonebloom.sbbf.hashing import Hashes
from zonebloom.sbbf.sizing import DEFAULT_ZONE_PROBABILITY
from zonebloom.storage.store import LOCAL

_MAX_FRAGMENT_ROWS = 1 << 20
# Segments of which the merged file is made. There may be fewer of a small index.
_SEGMENTS = 8
_WARM_ROWS = 20_000
_FILES = pafs.LocalFileSystem()
_NO_NULLS = np.empty(0, dtype=np.uint8)


class _Timer:
    """The time that is spent in the `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._start


class _Segments:
    """A file system that creates the folders of segments, as a catalog does."""

    def open_output_stream(self, path: str) -> pa.NativeFile:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return _FILES.open_output_stream(path)


class _Fragment(NamedTuple):
    """Consecutive rows. All fragments but the last have whole zones."""

    number: int
    first_row: int
    num_rows: int

    def keys(self) -> np.ndarray:
        return keys_of(np.arange(self.first_row, self.first_row + self.num_rows, dtype=np.uint64))


def _fragments(rows: int) -> list[_Fragment]:
    items = zone_rows("table")
    size = min(_MAX_FRAGMENT_ROWS, max(1, rows // _SEGMENTS // items) * items)
    return [
        _Fragment(number, first, min(size, rows - first))
        for number, first in enumerate(range(0, rows, size))
    ]


def _hash(keys: np.ndarray) -> np.ndarray:
    hashes = np.empty(keys.size, dtype=np.uint64)
    xxh64.hash_width_8(keys, hashes)
    return hashes


def _build_table(rows: int, path: str, timer: _Timer) -> WrittenTable:
    items = zone_rows("table")
    words = ZoneParameters().filter_bytes // 4
    with timer:
        writer = RowTableWriter(_FILES, path, items, DEFAULT_ZONE_PROBABILITY)
    for fragment in _fragments(rows):
        keys = fragment.keys()
        with timer:
            hashes = _hash(keys)
            zones = -(-keys.size // items)
            filters = np.zeros((zones, words), dtype=np.uint32)
            has_null = np.zeros(zones, dtype=bool)
            blocks.insert_zones(filters, hashes, _NO_NULLS, 0, 0, items, has_null)
            starts = np.arange(zones, dtype=np.uint64) * np.uint64(items)
            stops = np.minimum(starts + np.uint64(items), np.uint64(keys.size))
            writer.write(fragment.number, Zones(starts, stops - starts, has_null, filters))
    with timer:
        return writer.close()


def _build_buckets(fragments: Sequence[_Fragment], path: str, timer: _Timer) -> WrittenTable:
    # The temporary segments of a large build lie beside the folder of its file.
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        written = _write_buckets(fragments, f"{folder}/0/{Path(path).name}", timer)
        Path(folder, "0", Path(path).name).rename(path)
    return written


def _write_buckets(fragments: Sequence[_Fragment], path: str, timer: _Timer) -> WrittenTable:
    with timer:
        writer = HashSegmentWriter(_Segments(), LOCAL, path, HashParameters())
    for fragment in fragments:
        keys = fragment.keys()
        with timer:
            writer.add(fragment.number, Hashes(_hash(keys), _NO_NULLS, 0, 0))
            writer.end_fragment(fragment.number)
    with timer:
        return writer.close()


def _merge_buckets(rows: int, path: str, timer: _Timer) -> WrittenTable:
    """Build segments, which is not timed, and merge them."""
    fragments = _fragments(rows)
    step = -(-len(fragments) // _SEGMENTS)
    paths, tables = [], []
    for number in range(0, len(fragments), step):
        paths.append(f"{path}.{number}")
        _build_buckets(fragments[number : number + step], paths[-1], _Timer())
    try:
        with timer:
            tables = [HashTable(LOCAL, part) for part in paths]
            return merge_hash_tables(tables, _FILES, path)
    finally:
        for table in tables:
            table.close()
        for part in paths:
            Path(part).unlink()


def _write(layout: str, rows: int, path: str, timer: _Timer) -> WrittenTable:
    if layout == "table":
        return _build_table(rows, path, timer)
    if layout == MERGED:
        return _merge_buckets(rows, path, timer)
    return _build_buckets(_fragments(rows), path, timer)


def _warm_up(layout: str) -> None:
    """Write a small index, so that imports and kernels are loaded before anything is timed."""
    with tempfile.TemporaryDirectory() as folder:
        _write(layout, _WARM_ROWS, f"{folder}/{layout}", _Timer())


def main(layout: str, rows: str, path: str) -> None:
    """Write an index, and print its measurements."""
    _warm_up(layout)
    memory_before = peak_bytes()
    timer = _Timer()
    written = _write(layout, int(rows), path, timer)
    record = {
        "num_bytes": written.num_bytes,
        "checksum": written.checksum,
        "build_seconds": timer.seconds,
        "build_peak_bytes": peak_bytes() - memory_before,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])

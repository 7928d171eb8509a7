"""Make and measure an index of up to a billion rows, from generated keys without data files.

The key of row ``i`` is SplitMix64 of ``i``, so all keys are different, and the zone of each key is
known. The filters are those of a build with defaults (8,192 rows, 32 KiB), written by the same
kernels and the same writer. Both layouts contain the same bits.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow.fs as pafs

from bench.cold import drop_from_cache
from bench.processes import run_module

SIZES = (1_000_000, 10_000_000, 100_000_000)
FULL_SIZES = (*SIZES, 1_000_000_000)
LAYOUTS = ("table", "sliced")

# A fragment has 2**20 rows.
_FRAGMENT_ZONES = 128
_MANIFEST = "index.json"


@dataclass(frozen=True, slots=True)
class Index:
    """One file of an index, as a catalog would describe it.

    Attributes
    ----------
    layout : {"table", "sliced"}
    rows : int
    path : str
    num_bytes : int
    checksum : str
    build_seconds : float
        Time to build the table from keys, or the sliced file from the table.
    """

    layout: str
    rows: int
    path: str
    num_bytes: int
    checksum: str
    build_seconds: float

    @property
    def num_zones(self) -> int:
        """The number of zones of all rows."""
        return num_zones(self.rows)


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """The measurements of lookups in one index, in seconds and bytes.

    Attributes
    ----------
    cold_seconds : float
        Time to open and verify the index, and look up one key, with an empty page cache.
    cold_storage_bytes, cold_read_bytes : int or None
        Bytes read from the disk, and by read calls.
    cold_peak_bytes : int
        Peak memory after the first lookup, minus that of the imports.
    warm_seconds : float
        Median time to look up one key.
    batch_keys_per_second : float
        Rate of a lookup of many absent keys.
    peak_bytes : int
        Peak memory at the end, minus that of the imports, including mapped files.
    false_zones : float
        Mean number of kept zones that do not contain the key.
    """

    layout: str
    rows: int
    num_zones: int
    index_bytes: int
    build_seconds: float
    cold_seconds: float
    cold_storage_bytes: int | None
    cold_read_bytes: int | None
    cold_peak_bytes: int
    warm_seconds: float
    batch_keys_per_second: float
    peak_bytes: int
    false_zones: float


def num_zones(rows: int) -> int:
    """Return the number of zones of a number of rows."""
    from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS

    return -(-rows // DEFAULT_NUMBER_OF_ITEMS)


def keys_of(rows: np.ndarray) -> np.ndarray:
    """Return the keys of rows by their numbers: SplitMix64, a bijection of 64 bits.

    The result is uint64 of shape ``(n,)``.
    """
    # Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def make(rows: int, root: Path | None = None) -> list[Index]:
    """Write an index of a size in each layout, unless it exists already.

    Parameters
    ----------
    rows : int
    root : Path, optional
        By default a folder in the temporary folder of the system.
    """
    folder = (root or Path(tempfile.gettempdir()) / "zonebloom-bench") / f"scale-{rows}"
    manifest = folder / _MANIFEST
    if manifest.exists():
        records = json.loads(manifest.read_text(encoding="utf-8"))
        indices = [Index(**record) for record in records]
        if [index.layout for index in indices] == list(LAYOUTS):
            return indices
    folder.mkdir(parents=True, exist_ok=True)
    indices = [_make_table(rows, str(folder / "bloomfilter.arrow"))]
    indices.append(_make_sliced(indices[0], str(folder / "bloomfilter.sliced")))
    manifest.write_text(json.dumps([asdict(index) for index in indices]), encoding="utf-8")
    return indices


def _make_table(rows: int, path: str) -> Index:
    from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
    from zonebloom.index.zone_bloom.parameters import ZoneParameters
    from zonebloom.index.zone_bloom.rows import RowTableWriter
    from zonebloom.index.zone_bloom.table import Zones
    from zonebloom.sbbf import blocks, xxh64
    from zonebloom.sbbf.sizing import DEFAULT_ZONE_PROBABILITY

    words = ZoneParameters().filter_bytes // 4
    no_nulls = np.empty(0, dtype=np.uint8)
    start = time.perf_counter()
    writer = RowTableWriter(
        pafs.LocalFileSystem(), path, DEFAULT_NUMBER_OF_ITEMS, DEFAULT_ZONE_PROBABILITY
    )
    for fragment, first in enumerate(range(0, rows, _FRAGMENT_ZONES * DEFAULT_NUMBER_OF_ITEMS)):
        count = min(_FRAGMENT_ZONES * DEFAULT_NUMBER_OF_ITEMS, rows - first)
        keys = keys_of(np.arange(first, first + count, dtype=np.uint64))
        hashes = np.empty(count, dtype=np.uint64)
        xxh64.hash_width_8(keys, hashes)
        zones = num_zones(count)
        filters = np.zeros((zones, words), dtype=np.uint32)
        has_null = np.zeros(zones, dtype=bool)
        blocks.insert_zones(filters, hashes, no_nulls, 0, 0, DEFAULT_NUMBER_OF_ITEMS, has_null)
        starts = np.arange(zones, dtype=np.uint64) * np.uint64(DEFAULT_NUMBER_OF_ITEMS)
        stops = np.minimum(starts + np.uint64(DEFAULT_NUMBER_OF_ITEMS), np.uint64(count))
        writer.write(fragment, Zones(starts, stops - starts, has_null, filters))
    file = writer.close()
    seconds = time.perf_counter() - start
    return Index("table", rows, path, file.num_bytes, file.checksum, seconds)


def _make_sliced(table: Index, path: str) -> Index:
    from zonebloom.index.zone_bloom.rows import read_row_table
    from zonebloom.index.zone_bloom.sliced_merge import merge_tables

    filesystem = pafs.LocalFileSystem()
    start = time.perf_counter()
    row_table = read_row_table(filesystem, table.path, table.num_bytes, table.checksum)
    file = merge_tables([row_table], filesystem, path)
    seconds = time.perf_counter() - start
    return Index("sliced", table.rows, path, file.num_bytes, file.checksum, seconds)


def measure(index: Index, *, keys: int = 200, batch: int = 100_000) -> ScaleResult:
    """Measure an index in a new process.

    Parameters
    ----------
    keys : int
        Number of keys that are looked up one by one.
    batch : int
        Maximum number of keys in a batch; for a slow layout it is smaller.
    """
    drop_from_cache([Path(index.path)])
    arguments = (json.dumps(asdict(index)), str(keys), str(batch))
    return ScaleResult(**run_module("bench.scale_lookup", *arguments, timeout=1800))


def run(
    *,
    full: bool = False,
    root: Path | None = None,
    sizes: tuple[int, ...] | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> list[ScaleResult]:
    """Make and measure every size in every layout.

    Parameters
    ----------
    full : bool
        Whether to go up to a billion rows, which are 4 GB per layout.
    root : Path, optional
    sizes : tuple of int, optional
        Numbers of rows.
    progress : callable, optional
        Called with one line at a time.
    """
    results: list[ScaleResult] = []
    for rows in sizes or (FULL_SIZES if full else SIZES):
        for index in make(rows, root):
            progress(f"scale: {rows:,} rows, {index.layout}")
            results.append(measure(index))
    return results

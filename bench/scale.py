"""Make and measure an index of up to a billion rows, from generated keys without data files.

The key of row ``i`` is SplitMix64 of ``i``, so all keys are different, and the zone of each key is
known. The files are those of a build with defaults, written by the same kernels and writers.
`bench.scale_build` writes a file, and `bench.scale_lookup` looks up keys in it, each in a process
of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.cold import drop_from_cache
from bench.data import DATA_FOLDER
from bench.processes import run_module

# 20 M rows is what `pytest bench` uses.
SIZES = (1_000_000, 10_000_000, 20_000_000, 100_000_000)
FULL_SIZES = (*SIZES, 1_000_000_000)
# The layouts, with the file that each has. The last one is a hash index that is merged from several
# segments, as an index that grew by appends.
MERGED = "buckets, merged"
FILES = {
    "table": "bloomfilter.arrow",
    "buckets": "hash.buckets",
    MERGED: "merged.buckets",
}
LAYOUTS = tuple(FILES)

_MANIFEST = "index.json"
_TIMEOUT = 7200.0


@dataclass(frozen=True, slots=True)
class Index:
    """One file of an index, as a catalog would describe it.

    Attributes
    ----------
    layout : str
        A member of `LAYOUTS`.
    rows : int
    path : str
    num_bytes : int
    checksum : str
    build_seconds : float
        Time to hash the keys and write the file. The merged file is written from its segments.
    build_peak_bytes : int
        Peak memory of the build, minus that of the imports. Includes mapped files.
    """

    layout: str
    rows: int
    path: str
    num_bytes: int
    checksum: str
    build_seconds: float
    build_peak_bytes: int

    @property
    def zone_rows(self) -> int:
        """The number of rows in a zone."""
        return zone_rows(self.layout)

    @property
    def num_zones(self) -> int:
        """The number of zones of all rows."""
        return -(-self.rows // self.zone_rows)


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """The measurements of lookups in one index, in seconds and bytes.

    Attributes
    ----------
    cold_seconds : float
        Time to open and verify the index, and look up one key, with an empty page cache.
    cold_index_bytes : int
        Bytes of the index that this needs.
    cold_storage_bytes : int or None
        Bytes read from the disk, including readahead.
    cold_peak_bytes : int
        Peak memory after the first lookup, minus that of the imports.
    warm_seconds : float
        Median time to look up one key.
    again_seconds : float
        The same for keys that were looked up before, whose blocks may be in memory.
    batch_keys_per_second : float
        Rate of a lookup of many keys, half of them present.
    batch_keys_per_core_second : float
        The same by CPU time.
    peak_bytes : int
        Peak memory at the end, minus that of the imports, including mapped files.
    false_zones : float
        Mean number of zones that are kept for an absent key.
    """

    layout: str
    rows: int
    num_zones: int
    index_bytes: int
    build_seconds: float
    build_peak_bytes: int
    cold_seconds: float
    cold_index_bytes: int
    cold_storage_bytes: int | None
    cold_peak_bytes: int
    warm_seconds: float
    again_seconds: float
    batch_keys_per_second: float
    batch_keys_per_core_second: float
    peak_bytes: int
    false_zones: float


def zone_rows(layout: str) -> int:
    """Return the number of rows in a zone of a layout."""
    from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
    from zonebloom.index.hash.parameters import DEFAULT_ZONE_ROWS

    return DEFAULT_NUMBER_OF_ITEMS if layout == "table" else DEFAULT_ZONE_ROWS


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
    folder = (root or DATA_FOLDER) / f"scale-{rows}"
    manifest = folder / _MANIFEST
    if manifest.exists():
        records = json.loads(manifest.read_text(encoding="utf-8"))
        if [record["layout"] for record in records] == list(LAYOUTS):
            return [Index(**record) for record in records]
    folder.mkdir(parents=True, exist_ok=True)
    indices: list[Index] = []
    for layout in LAYOUTS:
        path = str(folder / FILES[layout])
        arguments = (layout, str(rows), path)
        record = run_module("bench.scale_build", *arguments, timeout=_TIMEOUT)
        indices.append(Index(layout, rows, path, **record))
    manifest.write_text(json.dumps([asdict(index) for index in indices]), encoding="utf-8")
    return indices


def measure(index: Index, *, keys: int = 200, batch: int = 1_000_000) -> ScaleResult:
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
    return ScaleResult(**run_module("bench.scale_lookup", *arguments, timeout=_TIMEOUT))


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
        Whether to go up to a billion rows, which need 40 GB of disk, 15 GB of them at the end.
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

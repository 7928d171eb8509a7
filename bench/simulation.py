"""Simulate an index of up to a trillion rows: real files, but with holes instead of most blocks.

A simulated file has the head, the runs and the shape of a build over that many unique keys, and a
sample of its blocks, filled with random pairs. The rest of it are holes, which take no space on
disk. The reader of the package opens the file and looks up the keys of these blocks, so its reads,
requests, times and false zones are those of a complete file.

Sizes of zone Blooms follow from the layout of their files. Those of Lance's BTREE are measured at
one size; they grow linearly.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from bench import scale
from bench.scale import MERGED, keys_of
from bench.tables import count_text, header, size_text, time_text
from zonebloom.building.segments import _MANY_SEGMENTS, _tiers
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS, Segment
from zonebloom.index.file_end import END_BYTES
from zonebloom.index.hash.file import (
    HEAD_WORDS,
    MAGIC,
    OVERFLOW,
    Head,
    compress_runs,
    encode_tail,
    slot_offset,
)
from zonebloom.index.hash.parameters import (
    DEFAULT_PROBABILITY,
    DEFAULT_ZONE_ROWS,
    BlockShape,
    choose_shape,
    hash_bits_to_keep,
)
from zonebloom.index.hash.plan import PAIR_BITS, choose_slot_bytes
from zonebloom.index.hash.spool import MORE_HASH_BITS, PARTITION_BITS, zone_bits_for
from zonebloom.index.hash.table import HashTable
from zonebloom.index.table import ZoneRuns
from zonebloom.index.zone_bloom.sliced_file import PAGE_BYTES, SLICED_MAGIC, Directory
from zonebloom.index.zone_bloom.sliced_merge import _ALIGNED_ROW_WORDS, MERGED_TILE_ZONES
from zonebloom.sbbf.sizing import DEFAULT_ZONE_PROBABILITY, false_positive_probability, size_for
from zonebloom.sbbf.slice_layout import ROWS_PER_BLOCK, Tile, place_tile
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, WORDS_PER_BLOCK

SIZES = tuple(10**power for power in range(6, 13))
# The merge of this many rows is measured.
MERGE_ROWS = 20_000_000
LANCE_ROWS = 2_000_000
HASH, ZONE_BLOOM = "HASH", "BLOOMFILTER, sliced"

# Rows of a file, on average. They differ from file to file, which makes the runs larger.
_FILE_ROWS = 1 << 20
# Blocks that are filled, and random absent keys that are looked up in each.
_SAMPLED_BLOCKS = 256
_ABSENT_KEYS = 4096
# Blocks from whose sizes the size of a slot is chosen.
_SIZED_BLOCKS = 1 << 14
# Appends to an index, each of as many rows, that are merged as `refresh` merges them.
_APPENDS = 1000
# Rows of an append, for the bits of each hash that an index keeps which grew by appends.
_APPEND_ROWS = 1_000_000
_LANCE_PAGE_ROWS = 4096
_SALT = 23


@dataclass(frozen=True, slots=True)
class IndexCosts:
    """The sizes of an index, and what the first lookup of one key reads, in bytes.

    Attributes
    ----------
    end_bytes : int
        Bytes of the directory, which a first lookup reads.
    first_bytes, first_requests : int
        What a first lookup reads, including the directory.
    next_bytes, next_requests : int
        What the lookup of another key reads.
    false_zones : float
        Zones that are kept for an absent key.
    zone_rows : int
    """

    num_bytes: int
    end_bytes: int
    first_bytes: int
    first_requests: int
    next_bytes: int
    next_requests: int
    false_zones: float
    zone_rows: int


@dataclass(frozen=True, slots=True)
class SimulatedHash:
    """A simulated hash index of one segment, and the times of its reader in seconds.

    Attributes
    ----------
    num_files : int
        Number of data files.
    open_seconds : float
        Time to read and decode the end of the file, which is in the page cache.
    lookup_seconds : float
        Median time to look up one key, each in another block.
    """

    rows: int
    num_files: int
    shape: BlockShape
    costs: IndexCosts
    open_seconds: float
    lookup_seconds: float


class _SampledBlock(NamedTuple):
    """A block that is filled: its number, and its pairs in the order of hashes."""

    number: int
    hashes: np.ndarray
    zones: np.ndarray


def make_runs(rows: int, items: int) -> ZoneRuns:
    """Return the runs of a table of many files with different numbers of rows."""
    num_files = max(1, round(rows / _FILE_ROWS))
    random = np.random.default_rng(17)
    weights = random.uniform(0.5, 1.5, num_files)
    stops = np.round(np.cumsum(weights) / weights.sum() * rows).astype(np.uint64)
    num_rows = np.diff(stops, prepend=np.uint64(0))
    return ZoneRuns(
        np.arange(num_files, dtype=np.uint64),
        np.zeros(num_files, dtype=np.uint64),
        (num_rows + np.uint64(items - 1)) // np.uint64(items),
        num_rows,
        items,
    )


def simulate_hash(runs: ZoneRuns, folder: Path, hash_bits: int | None = None) -> SimulatedHash:
    """Write a hash index with holes to a folder, look up keys in it, and delete it.

    Parameters
    ----------
    runs : ZoneRuns
    folder : Path
    hash_bits : int, optional
        Leading bits of each hash that the index keeps. By default as many as the probability needs.
    """
    path = folder / "hash.buckets"
    bits = hash_bits or hash_bits_to_keep(int(runs.num_rows.sum()), DEFAULT_PROBABILITY)
    try:
        return _measure_hash(runs, _write_with_holes(runs, path, bits), path)
    finally:
        path.unlink(missing_ok=True)


def writer_hash_bits(runs: ZoneRuns) -> int:
    """Return how many bits of each hash the writer of one segment keeps. It packs hash and zone."""
    rows = int(runs.num_rows.sum())
    widest = min(PARTITION_BITS + MORE_HASH_BITS, PAIR_BITS - zone_bits_for(len(runs)))
    return min(hash_bits_to_keep(rows, DEFAULT_PROBABILITY), widest)


def _write_with_holes(runs: ZoneRuns, path: Path, hash_bits: int) -> list[_SampledBlock]:
    """Write the end of a hash index, and some blocks, which are returned. The rest are holes."""
    rows, num_zones = int(runs.num_rows.sum()), len(runs)
    shape = choose_shape(rows, 0, num_zones, hash_bits)
    random = np.random.default_rng(19)
    counts = _draw_counts(rows, shape, random)
    slot_bytes, heap_share = _size_slots(counts, shape)
    numbers = random.choice(
        shape.num_blocks, min(_SAMPLED_BLOCKS, shape.num_blocks), replace=False, shuffle=False
    )
    sample = [
        _fill_block(number, count, num_zones, shape, random)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=False)
    ]
    heap_offset = heap_end = slot_offset(shape.num_blocks, slot_bytes)
    with path.open("wb") as file:
        file.write(MAGIC)
        for block in sample:
            slot, heap = _encode_slot(block, shape, slot_bytes, heap_end)
            file.seek(slot_offset(block.number, slot_bytes))
            file.write(slot)
            file.seek(heap_end)
            file.write(heap)
            heap_end += len(heap)
        heap_bytes = max(heap_end - heap_offset, round(heap_share * shape.num_blocks) // 8 * 8)
        compressed_runs = compress_runs(runs)
        head = Head(
            number_of_items=runs.items,
            probability=DEFAULT_PROBABILITY,
            num_zones=num_zones,
            num_runs=runs.num_zones.size,
            num_entries=rows,
            num_postings=0,
            num_pairs=rows,
            slot_bytes=slot_bytes,
            heap_bytes=heap_bytes,
            null_bytes=0,
            null_checksum=0,
            run_bytes=len(compressed_runs),
            salt=_SALT,
            content=0,
            block_bits=shape.block_bits,
            bucket_bits=shape.bucket_bits,
            remainder_bits=shape.remainder_bits,
            group_bits=shape.group_bits,
            zone_shift=0,
        )
        file.seek(heap_offset + heap_bytes)
        file.write(encode_tail(head, compressed_runs))
    return sample


def _draw_counts(rows: int, shape: BlockShape, random: np.random.Generator) -> np.ndarray:
    """Return how many keys some blocks have, or all blocks if there are few."""
    share = 1 / shape.num_blocks
    if shape.num_blocks <= _SIZED_BLOCKS:
        return random.multinomial(rows, np.full(shape.num_blocks, share))
    return random.binomial(rows, share, _SIZED_BLOCKS)


def _size_slots(counts: np.ndarray, shape: BlockShape) -> tuple[int, float]:
    """Return the bytes of a slot, and the mean bytes that the block of a slot has in the heap."""
    words = HEAD_WORDS - (-(counts + shape.num_buckets) // 64) - (-counts * shape.entry_bits // 64)
    slot_bytes = choose_slot_bytes(8 * words)
    return slot_bytes, float(np.where(8 * words > slot_bytes, 8 * words, 0).mean())


def _fill_block(
    number: int, count: int, num_zones: int, shape: BlockShape, random: np.random.Generator
) -> _SampledBlock:
    """Return random keys of one block, each in a random zone."""
    hashes = _random_hashes(number, count, shape, random)
    return _SampledBlock(number, hashes, random.integers(0, num_zones, count, dtype=np.uint32))


def _random_hashes(
    block: int, count: int, shape: BlockShape, random: np.random.Generator
) -> np.ndarray:
    free_bits = 64 - shape.block_bits
    hashes = random.integers(0, (1 << free_bits) - 1, count, dtype=np.uint64, endpoint=True)
    return hashes | np.uint64(block << free_bits)


def _encode_block(block: _SampledBlock, shape: BlockShape) -> bytes:
    """Return the words of a block after its checksum, as docs/format.md describes them."""
    prefixes = block.hashes >> np.uint64(64 - shape.hash_bits)
    order = np.lexsort((block.zones, prefixes))
    prefixes, zones = prefixes[order], block.zones[order].astype(np.uint64)
    is_new = np.ones(zones.size, dtype=bool)
    is_new[1:] = (prefixes[1:] != prefixes[:-1]) | (zones[1:] != zones[:-1])
    prefixes, zones = prefixes[is_new], zones[is_new]
    remainders = prefixes & np.uint64((1 << shape.remainder_bits) - 1)
    buckets = prefixes >> np.uint64(shape.remainder_bits) & np.uint64(shape.num_buckets - 1)
    counts = np.zeros(zones.size + shape.num_buckets, dtype=bool)
    counts[np.arange(zones.size) + buckets.astype(np.int64)] = True
    entries = remainders << np.uint64(shape.group_bits) | zones
    entry_bits = entries[:, np.newaxis] >> np.arange(shape.entry_bits, dtype=np.uint64)
    head = zones.size.to_bytes(8, "little")
    return head + _pack_words(counts) + _pack_words((entry_bits & np.uint64(1)).ravel() == 1)


def _pack_words(bits: np.ndarray) -> bytes:
    data = np.packbits(bits, bitorder="little").tobytes()
    return data + bytes(-len(data) % 8)


def _seal(content: bytes, offset: int) -> bytes:
    """Return a piece of the file: the checksum, then the content."""
    return xxhash.xxh64_intdigest(content, _SALT + offset).to_bytes(8, "little") + content


def _encode_slot(
    block: _SampledBlock, shape: BlockShape, slot_bytes: int, heap_end: int
) -> tuple[bytes, bytes]:
    """Return the slot of a block, and the piece of the heap that it needs if it is too large."""
    content = _encode_block(block, shape)
    offset = slot_offset(block.number, slot_bytes)
    free_bytes = slot_bytes - 8 - len(content)
    if free_bytes >= 0:
        return _seal(content + bytes(free_bytes), offset), b""
    piece = _seal(content, heap_end)
    reference = np.array([OVERFLOW, heap_end, len(piece)], dtype="<u8").tobytes()
    return _seal(reference.ljust(slot_bytes - 8, b"\0"), offset), piece


def _measure_hash(runs: ZoneRuns, sample: Sequence[_SampledBlock], path: Path) -> SimulatedHash:
    first, *others = [block for block in sample if block.hashes.size]
    table = _open(path)
    _find_key(table, first)
    first_bytes, first_requests = table.counter.num_bytes, table.counter.num_requests
    seconds = []
    for block in others:
        start = time.perf_counter()
        _find_key(table, block)
        seconds.append(time.perf_counter() - start)
    next_bytes = (table.counter.num_bytes - first_bytes) / max(1, len(others))
    next_requests = (table.counter.num_requests - first_requests) / max(1, len(others))
    head = table.head
    costs = IndexCosts(
        num_bytes=table.num_bytes,
        end_bytes=table.num_bytes - head.null_offset - head.null_bytes,
        first_bytes=first_bytes,
        first_requests=first_requests,
        next_bytes=round(next_bytes),
        next_requests=round(next_requests),
        false_zones=_count_false_zones(table, sample),
        zone_rows=runs.items,
    )
    table.close()
    start = time.perf_counter()
    _open(path).close()
    open_seconds = time.perf_counter() - start
    return SimulatedHash(
        int(runs.num_rows.sum()),
        runs.num_rows.size,
        table.shape,
        costs,
        open_seconds,
        statistics.median(seconds or [0.0]),
    )


def _open(path: Path) -> HashTable:
    return HashTable(pafs.LocalFileSystem(), str(path))


def _find_key(table: HashTable, block: _SampledBlock) -> None:
    """Look up the first key of a block. Fail if its zone is not found."""
    zones = table.find(block.hashes[:1])
    assert block.zones[0] in zones, (block.number, block.zones[0], zones)


def _count_false_zones(table: HashTable, sample: Sequence[_SampledBlock]) -> float:
    """Return how many zones are kept for a random hash of the sampled blocks, on average."""
    random = np.random.default_rng(29)
    hashes = np.concatenate(
        [_random_hashes(block.number, _ABSENT_KEYS, table.shape, random) for block in sample]
    )
    return sum(zones.size for _, zones in table.pairs(hashes)) / hashes.size


def zone_bloom_costs(runs: ZoneRuns) -> IndexCosts:
    """Return the sizes of a zone Bloom index in sliced layout, from the layout of its file."""
    num_zones = len(runs)
    filter_bytes = size_for(runs.items, DEFAULT_ZONE_PROBABILITY)
    num_blocks = filter_bytes // BYTES_PER_BLOCK
    tiles: list[Tile] = []
    end = len(SLICED_MAGIC)
    for first in range(0, num_zones, MERGED_TILE_ZONES):
        count = min(MERGED_TILE_ZONES, num_zones - first)
        tile = place_tile(0, end, count, num_blocks, tiles[-1] if tiles else None, 0)
        if tile.row_words >= _ALIGNED_ROW_WORDS:
            tile = tile._replace(offset=-(-end // PAGE_BYTES) * PAGE_BYTES)
        tiles.append(tile)
        end = tile.offset + tile.num_bytes
    has_null = np.zeros(num_zones, dtype=bool)
    directory = Directory(DEFAULT_ZONE_PROBABILITY, runs, has_null, tuple(tiles), None, 0, 0)
    end_bytes = len(directory.to_bytes())
    num_bytes = end + end_bytes
    # The eight rows that a hash selects, and the checks of their block.
    next_bytes = sum(8 * (WORDS_PER_BLOCK * tile.row_words + ROWS_PER_BLOCK) for tile in tiles)
    next_requests = (WORDS_PER_BLOCK + 1) * len(tiles)
    return IndexCosts(
        num_bytes=num_bytes,
        end_bytes=end_bytes,
        first_bytes=next_bytes + max(end_bytes, min(END_BYTES, num_bytes)),
        first_requests=next_requests + (1 if end_bytes <= END_BYTES else 2),
        next_bytes=next_bytes,
        next_requests=next_requests,
        false_zones=num_zones * false_positive_probability(runs.items, filter_bytes),
        zone_rows=runs.items,
    )


def measure_lance_btree(rows: int) -> IndexCosts:
    """Write a BTREE index of Lance, and return its sizes.

    Lance loads all of its list of pages at the first lookup, and then the page of the key.
    """
    import lance

    with tempfile.TemporaryDirectory() as folder:
        keys = keys_of(np.arange(rows)).view(np.int64)
        dataset = lance.write_dataset(pa.table({"id": keys}), folder)
        dataset.create_scalar_index("id", "BTREE")
        sizes = {
            file.name: file.stat().st_size
            for file in Path(folder, "_indices").rglob("*")
            if file.is_file()
        }
    list_bytes = sizes.pop("page_lookup.lance")
    num_bytes = sum(sizes.values())
    page_bytes = num_bytes * _LANCE_PAGE_ROWS // rows
    return IndexCosts(
        num_bytes=num_bytes + list_bytes,
        end_bytes=list_bytes,
        first_bytes=list_bytes + page_bytes,
        first_requests=2,
        next_bytes=page_bytes,
        next_requests=1,
        false_zones=0.0,
        zone_rows=1,
    )


def _scale_btree(btree: IndexCosts, factor: float) -> IndexCosts:
    """Return the costs of a larger B-tree. A lookup reads one page of any of them."""
    list_bytes = round(btree.end_bytes * factor)
    return replace(
        btree,
        num_bytes=round(btree.num_bytes * factor),
        end_bytes=list_bytes,
        first_bytes=list_bytes + btree.next_bytes,
    )


class Appends(NamedTuple):
    """An index that grew by appends of equally many rows, merged as `refresh` merges segments.

    Attributes
    ----------
    rewrites : float
        How often a row was rewritten, on average.
    mean_segments : float
        How many segments a lookup asked, on average.
    max_segments : int
    """

    rewrites: float
    mean_segments: float
    max_segments: int


def simulate_appends(appends: int = _APPENDS) -> Appends:
    """Append to an index of no segments, and merge the segments by their sizes."""
    segments: list[Segment] = []
    rewritten = 0
    counts = []
    for _ in range(appends):
        segments.append(_segment(1))
        if len(segments) > _MANY_SEGMENTS:
            groups = _tiers([[segment] for segment in segments])
            sums = [sum(segment.num_zones for segment in group) for group in groups]
            rewritten += sum(
                count for group, count in zip(groups, sums, strict=True) if len(group) > 1
            )
            segments = [_segment(count) for count in sums]
        counts.append(len(segments))
    return Appends(rewritten / appends, statistics.mean(counts), max(counts))


def _segment(num_zones: int) -> Segment:
    return Segment("", "", 0, "", num_zones, ())


@dataclass(frozen=True, slots=True)
class Simulation:
    """Simulated indices of growing sizes, and what they are compared with.

    Attributes
    ----------
    hash_indices : list of SimulatedHash
    limited_indices : list of SimulatedHash or None
        The same with as many bits of each hash as the writer of one segment can keep, if fewer.
    zone_blooms, btrees : list of IndexCosts
        For the same numbers of rows. There are no B-trees if Lance is not installed.
    merge_seconds_per_row : dict of str to float
        Time to merge segments of a hash index, and to write filters in sliced layout.
    merge_rows : int
        The number of rows for which this was measured.
    appends : Appends
    """

    hash_indices: list[SimulatedHash]
    limited_indices: list[SimulatedHash | None]
    zone_blooms: list[IndexCosts]
    btrees: list[IndexCosts]
    merge_seconds_per_row: dict[str, float]
    merge_rows: int
    appends: Appends


def run(
    *,
    root: Path | None = None,
    sizes: Sequence[int] = SIZES,
    merge_rows: int = MERGE_ROWS,
    lance_rows: int = LANCE_ROWS,
    progress: Callable[[str], object] = lambda line: None,
) -> Simulation:
    """Simulate an index of each size.

    Parameters
    ----------
    root : Path, optional
        Folder of the indices that `bench.scale` makes, of which ``merge_rows`` rows are merged.
    sizes : sequence of int
        Numbers of rows.
    merge_rows, lance_rows : int
        Numbers of rows of the indices that are really written.
    progress : callable, optional
        Called with one line at a time.
    """
    hash_indices, limited_indices, zone_blooms = [], [], []
    with tempfile.TemporaryDirectory(dir=root) as folder:
        for rows in sizes:
            progress(f"simulation: {rows:,} rows")
            runs = make_runs(rows, DEFAULT_ZONE_ROWS)
            hash_indices.append(simulate_hash(runs, Path(folder)))
            bits = writer_hash_bits(runs)
            is_limited = bits < hash_indices[-1].shape.hash_bits
            limited_indices.append(simulate_hash(runs, Path(folder), bits) if is_limited else None)
            zone_blooms.append(zone_bloom_costs(make_runs(rows, DEFAULT_NUMBER_OF_ITEMS)))
    btrees = []
    if find_spec("lance") is not None:
        btree = measure_lance_btree(lance_rows)
        btrees = [_scale_btree(btree, rows / lance_rows) for rows in sizes]
    progress(f"simulation: merges of {merge_rows:,} rows")
    indices = {index.layout: index for index in scale.make(merge_rows, root)}
    merge_seconds_per_row = {
        name: indices[layout].build_seconds / merge_rows
        for name, layout in ((HASH, MERGED), (ZONE_BLOOM, "sliced"))
    }
    return Simulation(
        hash_indices,
        limited_indices,
        zone_blooms,
        btrees,
        merge_seconds_per_row,
        merge_rows,
        simulate_appends(),
    )


def markdown(simulation: Simulation) -> str:
    """Return a description and two tables: the costs of all indices, and those of merges."""
    return "\n".join(
        [
            *_words(simulation),
            "",
            *_cost_table(simulation),
            "",
            *_merge_words(simulation),
            "",
            *_merge_table(simulation),
            "",
        ]
    )


def _words(simulation: Simulation) -> list[str]:
    return [
        "Unique keys in files of about a million rows. Each hash index is one file with the head, "
        "the runs and the shape of a real one, a sample of its blocks, and holes instead of the "
        f"others. The package opens it and looks up a key in each of {_SAMPLED_BLOCKS} blocks, "
        f"and {_ABSENT_KEYS:,} absent keys: bytes, reads, times and false zones are measured, "
        "with the file in the page cache. The sizes of zone Blooms in sliced layout follow from "
        "the layout of their file, and those of Lance's BTREE from an index that was written, in "
        "proportion to the rows. A first lookup also reads the directory. Rows in vain are those "
        "of the false zones of an absent key. The file format allows as many bits of each hash as "
        "the probability needs. Where the writer of one segment keeps fewer, because it packs hash "
        "and zone in 64 bits, a row shows the file with these."
    ]


def _cost_table(simulation: Simulation) -> list[str]:
    names = ["files", "size", "bits per row", "directory", "first lookup", "next lookup"]
    names += ["false zones", "rows in vain", "opening", "one key"]
    lines = header(names, "rows, index")
    for number, hash_index in enumerate(simulation.hash_indices):
        rows = hash_index.rows
        lines.append(_hash_row(HASH, hash_index))
        limited = simulation.limited_indices[number]
        if limited is not None:
            lines.append(_hash_row(f"{HASH}, {limited.shape.hash_bits} bits", limited))
        lines.append(_cost_row(ZONE_BLOOM, simulation.zone_blooms[number], rows))
        if simulation.btrees:
            lines.append(_cost_row("Lance BTREE", simulation.btrees[number], rows))
    return lines


def _hash_row(name: str, index: SimulatedHash) -> str:
    times = [time_text(index.open_seconds), time_text(index.lookup_seconds)]
    return _cost_row(name, index.costs, index.rows, index.num_files, times)


def _cost_row(
    name: str,
    costs: IndexCosts,
    rows: int,
    num_files: int | None = None,
    times: Sequence[str] = ("", ""),
) -> str:
    cells = [
        "" if num_files is None else f"{num_files:,}",
        size_text(costs.num_bytes),
        f"{8 * costs.num_bytes / rows:.1f}",
        size_text(costs.end_bytes),
        f"{size_text(costs.first_bytes)} in {costs.first_requests:,}",
        f"{size_text(costs.next_bytes)} in {costs.next_requests:,}",
        f"{costs.false_zones:.3g}",
        count_text(costs.false_zones * costs.zone_rows),
        *times,
    ]
    return f"| {count_text(rows)}, {name} | {' | '.join(cells)} |"


def _merge_words(simulation: Simulation) -> list[str]:
    appends = simulation.appends
    times = ", ".join(
        f"{1e9 * seconds:.0f} ns per row for {name}"
        for name, seconds in simulation.merge_seconds_per_row.items()
    )
    return [
        f"An index that grows by {_APPENDS:,} appends of equally many rows has "
        f"{appends.mean_segments:.1f} segments on average and at most {appends.max_segments}, and "
        f"rewrites each row {appends.rewrites:.1f} times. A lookup reads a directory and a block "
        f"in each segment. A merge of {simulation.merge_rows:,} rows takes "
        f"{times}, on this machine. The first table shows the false zones of an index that was "
        "built at once; a merge keeps as many bits of each hash as the smallest segment has. The "
        "following is for all merges together, in proportion to the rows:"
    ]


def _merge_table(simulation: Simulation) -> list[str]:
    names = [
        f"{name}, {what}" for name in simulation.merge_seconds_per_row for what in ("bytes", "time")
    ]
    names.append(f"false zones after appends of {count_text(_APPEND_ROWS)} rows")
    lines = header(names, "rows")
    append_bits = hash_bits_to_keep(_APPEND_ROWS, DEFAULT_PROBABILITY)
    rewrites = simulation.appends.rewrites
    for hash_index, zone_bloom in zip(simulation.hash_indices, simulation.zone_blooms, strict=True):
        cells = []
        for costs, seconds in zip(
            (hash_index.costs, zone_bloom), simulation.merge_seconds_per_row.values(), strict=True
        ):
            cells.append(size_text(rewrites * costs.num_bytes))
            cells.append(_duration_text(rewrites * seconds * hash_index.rows))
        false_zones = hash_index.rows / 2 ** min(append_bits, hash_index.shape.hash_bits)
        cells.append(f"{false_zones:.3g}")
        lines.append(f"| {count_text(hash_index.rows)} | {' | '.join(cells)} |")
    return lines


def _duration_text(seconds: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return time_text(seconds)

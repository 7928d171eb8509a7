"""Merge tables of a hash index in the order of their hashes.

The tables are read twice: to measure their pairs, and to encode them. If the heap of the file does
not fit in memory, they are read once more for it. So a merge holds only the pairs of a few parts in
memory, and writes no temporary file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import xxhash

from zonebloom.errors import CorruptIndex, InvalidArgument
from zonebloom.index.hash.file import require_numbered_zones
from zonebloom.index.hash.pairs import PairBits, sort_packed
from zonebloom.index.hash.parameters import hash_bits_to_keep, zone_bits_for
from zonebloom.index.hash.plan import PAIR_BITS, SortedPairs
from zonebloom.index.hash.segment_file import write_file
from zonebloom.index.hash.table import HashTable
from zonebloom.index.table import HashingFile, WrittenTable, ZoneRuns
from zonebloom.storage.files import FileCreator

_PAIRS_PER_PART = 1 << 16


def merge_hash_tables(tables: Sequence[HashTable], creator: FileCreator, path: str) -> WrittenTable:
    """Write the zones of all tables, in order, as one file.

    The merged file keeps as many bits of each hash as the table that has the fewest. So a key that
    is absent has more false zones in it than in a file that was built from the rows.
    """
    all_parameters = {(table.head.number_of_items, table.head.probability) for table in tables}
    if len(all_parameters) != 1:
        raise InvalidArgument(
            f"{len(tables)} tables with {len(all_parameters)} sets of parameters cannot become one"
        )
    ((items, probability),) = all_parameters
    num_zones = [len(table) for table in tables]
    require_numbered_zones(sum(num_zones))
    all_runs = [table.runs for table in tables]
    runs = ZoneRuns(
        np.concatenate([runs.fragment_ids for runs in all_runs]),
        np.concatenate([runs.first_rows for runs in all_runs]),
        np.concatenate([runs.num_zones for runs in all_runs]),
        np.concatenate([runs.num_rows for runs in all_runs]),
        items,
    )
    first_zones = np.cumsum([0, *num_zones])[:-1].tolist()
    nulls = [
        table.zones_with_null() + first for table, first in zip(tables, first_zones, strict=True)
    ]
    sink = HashingFile(creator.open_output_stream(path))
    return write_merged(sink, tables, first_zones, runs, np.concatenate(nulls), probability)


def write_merged(
    sink: HashingFile,
    tables: Sequence[HashTable],
    first_zones: Iterable[int],
    runs: ZoneRuns,
    null_zones: np.ndarray,
    probability: float,
) -> WrittenTable:
    """Write the pairs of some tables as one file, and close it.

    ``first_zones`` has the number in the file of the first zone of each table.
    """
    try:
        pairs = _measured_pairs(tables, first_zones, len(runs), probability)
        return write_file(sink, pairs, runs, null_zones, probability)
    except BaseException:
        sink.close()
        raise


def _measured_pairs(
    tables: Sequence[HashTable], first_zones: Iterable[int], num_zones: int, probability: float
) -> SortedPairs:
    # An upper bound, because pairs become equal where fewer bits of their hashes are kept.
    max_pairs = sum(table.head.num_pairs for table in tables)
    zone_bits = zone_bits_for(num_zones)
    hash_bits = min(
        hash_bits_to_keep(max_pairs, probability),
        PAIR_BITS - zone_bits,
        *(table.shape.hash_bits for table in tables),
    )
    # At least one kept bit has to follow those that choose the part.
    part_bits = min(hash_bits - 1, 1 + (max_pairs // _PAIRS_PER_PART).bit_length())
    bits = PairBits(hash_bits, zone_bits)
    readers = [
        _PartReader(table, bits, part_bits, first)
        for table, first in zip(tables, first_zones, strict=True)
    ]
    digests: dict[int, int] = {}

    def part(number: int) -> np.ndarray:
        pairs = sort_packed(np.concatenate([reader.part(number) for reader in readers]))
        digest = xxhash.xxh3_64_intdigest(pairs.data)
        # The kernels that encode pairs write as much as was measured.
        if digests.setdefault(number, digest) != digest:
            raise CorruptIndex(f"{tables[0].path}, or a file beside it, changed during a merge")
        return pairs

    return SortedPairs.measured(bits, part_bits, max_pairs, part, part)


class _PartReader:
    """A reader of the pairs of a table by the leading bits of the hash.

    Several threads may use it.
    """

    def __init__(self, table: HashTable, bits: PairBits, part_bits: int, first_zone: int):
        self._table = table
        self._bits = bits
        self._part_bits = part_bits
        self._first_zone = first_zone
        # The slot that was read last, and its pairs. With fewer slots than parts, a slot has the
        # pairs of several parts.
        self._last = -1, np.empty(0, np.uint64)

    def part(self, number: int) -> np.ndarray:
        """Return the pairs of a part as numbers. They may not be sorted."""
        spare_bits = self._table.shape.block_bits - self._part_bits
        if spare_bits >= 0:
            slots = range(number << spare_bits, (number + 1) << spare_bits)
            return np.concatenate([self._decode(slot) for slot in slots])
        slot = number >> -spare_bits
        last, pairs = self._last
        if slot != last:
            pairs = self._decode(slot)
            self._last = slot, pairs
        return pairs[pairs >> np.uint64(sum(self._bits) - self._part_bits) == np.uint64(number)]

    def _decode(self, slot: int) -> np.ndarray:
        hashes, zones = self._table.decode(slot)
        hash_bits, zone_bits = self._bits
        prefixes = hashes >> np.uint64(64 - hash_bits) << np.uint64(zone_bits)
        return prefixes | (zones + self._first_zone).astype(np.uint64)

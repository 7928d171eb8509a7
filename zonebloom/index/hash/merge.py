"""Merge tables of a hash index in the order of their hashes, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from zonebloom.errors import InvalidArgument
from zonebloom.index.hash.file import Groups
from zonebloom.index.hash.parameters import DEFAULT_BUILD_MEMORY, HashParameters, hash_bits_to_keep
from zonebloom.index.hash.plan import keep_pairs
from zonebloom.index.hash.spool import MORE_HASH_BITS, PairArrays, pack_unsorted
from zonebloom.index.hash.table import HashTable
from zonebloom.index.hash.writer import require_numbered_zones, write_file
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
    # An upper bound, because pairs become equal where fewer bits of their hashes are kept_pairs.
    max_pairs = sum(table.head.num_pairs for table in tables)
    hash_bits = min(
        hash_bits_to_keep(max_pairs, probability), *(table.shape.hash_bits for table in tables)
    )
    # At least one kept bit has to follow those that choose the part.
    part_bits = 1 + (max_pairs // _PAIRS_PER_PART).bit_length()
    part_bits = min(hash_bits - 1, max(part_bits, hash_bits - MORE_HASH_BITS))
    readers = [
        _PartReader(table, part_bits, first)
        for table, first in zip(tables, first_zones, strict=True)
    ]
    min_shift = max(table.head.zone_shift for table in tables)
    # Parts are read here, in order, because a `_PartReader` is stateful and not thread-safe. The
    # threads of `keep_pairs` only sort them.
    kept_pairs = keep_pairs(
        (partial(_return_part, _read_part(readers, number)) for number in range(1 << part_bits)),
        part_bits,
        max_pairs,
        hash_bits,
        Groups.of_runs(runs.num_zones, min_shift),
        DEFAULT_BUILD_MEMORY // 4,
    )
    try:
        # Groups of zones are as large as those of the tables, which may not be grouped at all.
        parameters = HashParameters(items, probability, fold=False)
        sink = HashingFile(creator.open_output_stream(path))
        try:
            return write_file(sink, kept_pairs, runs, np.concatenate(nulls), parameters)
        except BaseException:
            sink.close()
            raise
    finally:
        kept_pairs.pairs.close()


def _return_part(part: PairArrays) -> PairArrays:
    return part


def _read_part(readers: Sequence[_PartReader], number: int) -> PairArrays:
    return [reader.part(number) for reader in readers]


class _PartReader:
    """A reader of the pairs of a table by the leading bits of the hash, in order."""

    def __init__(self, table: HashTable, part_bits: int, first_zone: int):
        self._table = table
        self._groups: Groups = table.groups
        self._part_bits = part_bits
        self._first_zone = first_zone
        self._slot = -1
        self._pairs = np.empty(0, np.uint64), np.empty(0, np.int64)

    def part(self, number: int) -> np.ndarray:
        """Return unsorted pairs of a hash and the first zone of each group.

        Zones are numbered among those of all tables.
        """
        block_bits = self._table.shape.block_bits
        spare_bits = block_bits - self._part_bits
        if spare_bits >= 0:
            slots = range(number << spare_bits, (number + 1) << spare_bits)
            hashes, zones = map(np.concatenate, zip(*map(self._decode, slots), strict=True))
            return pack_unsorted(hashes, zones, self._part_bits)
        slot = number >> -spare_bits
        if slot != self._slot:
            self._slot, self._pairs = slot, self._decode(slot)
        hashes, zones = self._pairs
        parts = hashes >> np.uint64(64 - self._part_bits)
        start, stop = np.searchsorted(parts, [number, number + 1]).tolist()
        return pack_unsorted(hashes[start:stop], zones[start:stop], self._part_bits)

    def _decode(self, slot: int) -> tuple[np.ndarray, np.ndarray]:
        hashes, groups = self._table.decode(slot)
        zones, _ = self._groups.bounds(groups)
        return hashes, zones + self._first_zone

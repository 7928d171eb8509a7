"""From tables of either layout to rows, bit for bit: for exchange, for one table of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.errors import CorruptIndex
from zonebloom.index.sliced import SlicedTable
from zonebloom.index.sliced_directory import Tile
from zonebloom.index.sliced_walk import load_blocks
from zonebloom.index.table import (
    TableWriter,
    WrittenTable,
    Zones,
    ZoneTable,
    table_schema,
    to_batch,
)
from zonebloom.sbbf.sizing import BYTES_PER_BLOCK, WORDS_PER_BLOCK

# Filters a record batch, as many as a build writes at a time.
_BATCH_BYTES = 4 << 20
# Filters turned back at a time.
_TURNED_BYTES = 128 << 20
_RUN_BYTES = 2 << 20


def zones_of(table: ZoneTable | SlicedTable) -> Iterator[tuple[int, Zones]]:
    """The zones of a table in their order, with their fragment, some of one fragment at a time."""
    turned = {}
    if isinstance(table, SlicedTable):
        turned = {
            each.num_blocks: _Filters(table, each.num_blocks) for each in table.directory.tiles
        }
    fragment_ids, num_blocks = table.fragment_ids, table.num_blocks
    changes = (np.diff(fragment_ids) != 0) | (np.diff(num_blocks) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(table)]
    for first, end in pairwise(bounds):
        if first == end:
            continue
        size = int(num_blocks[first])
        step = max(1, _BATCH_BYTES // (size * BYTES_PER_BLOCK))
        for start in range(first, end, step):
            part = slice(start, min(start + step, end))
            if isinstance(table, SlicedTable):
                filters = turned[size].take(part.stop - part.start)
            else:
                filters = np.stack([table.filter_words(zone) for zone in range(*part.indices(end))])
            zones = Zones(table.starts[part], table.lengths[part], table.has_null[part], filters)
            yield int(fragment_ids[first]), zones


def write_rows(
    tables: Sequence[ZoneTable | SlicedTable], filesystem: pafs.FileSystem, path: str
) -> WrittenTable:
    """Write tables of one index as one in the row layout: the file a build would have written."""
    first = tables[0]
    writer = TableWriter(filesystem, path, first.number_of_items, first.probability)
    try:
        for table in tables:
            for fragment_id, zones in zones_of(table):
                writer.write(fragment_id, zones)
    except BaseException:
        writer.abort()
        raise
    return writer.close()


def to_rows(table: SlicedTable) -> ZoneTable:
    """A table in the row layout, in memory: as large as the index."""
    schema = table_schema(table.number_of_items, table.probability)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as file:
        for fragment_id, zones in zones_of(table):
            file.write_batch(to_batch(fragment_id, zones, schema))
    return ZoneTable(sink.getvalue(), table.path)


class _Filters:
    """The filters of one size, handed out in order."""

    def __init__(self, table: SlicedTable, num_blocks: int):
        self._pieces = self._turned(table, num_blocks)
        self._held = np.empty((0, num_blocks * WORDS_PER_BLOCK), dtype=np.uint32)

    def take(self, count: int) -> np.ndarray:
        """The next filters, uint32, shape ``(count, words)``."""
        taken = []
        while count:
            if not len(self._held):
                self._held = next(self._pieces)
            taken.append(self._held[:count])
            self._held = self._held[count:]
            count -= len(taken[-1])
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    @staticmethod
    def _turned(table: SlicedTable, num_blocks: int) -> Iterator[np.ndarray]:
        step = max(64, _TURNED_BYTES // (num_blocks * BYTES_PER_BLOCK) // 64 * 64)
        for tile in table.directory.tiles:
            if tile.num_blocks == num_blocks:
                for first in range(0, tile.num_zones, step):
                    yield _turn(table, tile, first, min(step, tile.num_zones - first))


def _turn(table: SlicedTable, tile: Tile, first: int, count: int) -> np.ndarray:
    from zonebloom.sbbf import slices

    filters = np.empty((count, tile.num_blocks * WORDS_PER_BLOCK), dtype=np.uint32)
    steps = np.arange(count, dtype=np.uint64) * np.uint64(filters.strides[0])
    addresses = np.uint64(filters.ctypes.data) + steps
    step = max(1, _RUN_BYTES // (tile.block_words * 8))
    for start in range(0, tile.num_blocks, step):
        stop = min(start + step, tile.num_blocks)
        blocks, damage = load_blocks(table.file, tile, start, stop)
        if damage:
            raise CorruptIndex(f"{table.path}: {damage}; build the index again")
        slices.unslice_blocks(
            blocks, start, stop - start, tile.row_words, tile.block_words, first, addresses
        )
    return filters

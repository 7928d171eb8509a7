"""Read and write tables of zone filters: Arrow IPC files with one filter per row, as in Lance.

A file is read whole, because a lookup touches every filter, and because truncation of a
memory-mapped file would kill the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from zonebloom.base.arrays import to_numpy
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.base.threads import map_in_order, map_slices, num_cores, thread_pool
from zonebloom.base.version import require_known_format, with_format_version
from zonebloom.catalog.folder import read_file
from zonebloom.errors import CorruptIndex
from zonebloom.index.table import HashingFile, IndexTable, Pairs, WrittenTable, ZoneRuns
from zonebloom.index.zone_bloom.table import (
    FIELDS,
    ITEM_KEY,
    PROBABILITY_KEY,
    RowColumns,
    Zones,
    table_schema,
    to_batch,
)
from zonebloom.sbbf.lookup import check_any
from zonebloom.sbbf.sizing import fold_filters
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, MAX_BYTES, WORDS_PER_BLOCK
from zonebloom.storage.files import FileCreator
from zonebloom.storage.ipc_layout import open_uncompressed

if TYPE_CHECKING:
    from zonebloom.storage.encryption import IndexStore

# Filters of a larger batch would not fit the 32-bit offsets of a binary column.
_MAX_BATCH_BYTES = 1 << 30
# Bytes of filters that are copied at a time, about as many as a build writes at a time.
_BATCH_BYTES = 4 << 20
# Opening a table costs time per batch, so the zones of small files share a batch.
_SHARED_BATCH_BYTES = 4 << 20
# With fewer hashes than this, one call per hash over all zones is faster than one per zone.
_MIN_BATCHED_HASHES = 64
# Fewer checks than this take less time than starting threads.
_MIN_THREADED_CHECKS = 1 << 18


class RowTable(IndexTable):
    """A table of zones, each with a filter and a null flag, in memory.

    ``words`` is the whole file as uint32. ``first_words`` are the positions in it at which the
    filters of the zones begin, uint64.
    """

    def __init__(self, buffer: pa.Buffer, where: str):
        self.path = where
        self.num_bytes = buffer.size
        self.words = np.frombuffer(buffer, dtype=np.uint32, count=buffer.size // 4)
        self.words.flags.writeable = False
        try:
            self._read(buffer)
        except (pa.ArrowException, ValueError, KeyError, OSError) as error:
            raise CorruptIndex(
                f"{where} is not a bloomfilter table ({error}); build the index again"
            ) from None

    def _read(self, buffer: pa.Buffer) -> None:
        reader = open_uncompressed(buffer)
        require_known_format(reader.schema)
        if not reader.schema.remove_metadata().equals(FIELDS):
            raise ValueError(f"its columns are {', '.join(reader.schema.names)}")
        metadata = reader.schema.metadata or {}
        self.number_of_items = int(metadata[ITEM_KEY])
        if not 0 < self.number_of_items <= MAX_ROWS_PER_FRAGMENT:
            raise ValueError(f"its zones claim {self.number_of_items} rows each")
        self.probability = float(metadata[PROBABILITY_KEY])
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        parts = [np.empty((2, 0), dtype=np.uint64)]
        parts += [_filter_locations(batch, buffer) for batch in batches]
        self.first_words, self._num_blocks = np.concatenate(parts, axis=1)
        columns = pa.Table.from_batches(batches, reader.schema)
        ids, starts, lengths = (to_numpy(columns[i]) for i in range(3))
        # The sum of start and length could overflow, so compare differences.
        limit = np.uint64(MAX_ROWS_PER_FRAGMENT)
        if (lengths > limit).any() or (starts > limit - lengths).any():
            raise ValueError(f"it holds a zone past row {MAX_ROWS_PER_FRAGMENT:,}")
        self.runs = ZoneRuns.from_zones(ids, starts, lengths, self.number_of_items)
        self.has_null = to_numpy(columns[3])

    @property
    def num_blocks(self) -> np.ndarray:
        """Return the number of blocks of each zone's filter, uint64, shape ``(zones,)``."""
        return self._num_blocks

    def filter_words(self, zone: int) -> np.ndarray:
        first = int(self.first_words[zone])
        return self.words[first : first + int(self._num_blocks[zone]) * WORDS_PER_BLOCK]

    def find(self, hashes: np.ndarray) -> np.ndarray:
        num_zones = self.first_words.size
        if hashes.size * num_zones < _MIN_THREADED_CHECKS:
            return check_any(self.words, self.first_words, self._num_blocks, hashes).nonzero()[0]

        def check(part: slice) -> np.ndarray:
            return check_any(self.words, self.first_words[part], self._num_blocks[part], hashes)

        return np.flatnonzero(np.concatenate(map_slices(num_zones, check)))

    def _pairs(self, hashes: np.ndarray) -> Iterator[Pairs]:
        if hashes.size < _MIN_BATCHED_HASHES:
            for key in range(hashes.size):
                zones = self.find(hashes[key : key + 1])
                yield np.full(zones.size, key, dtype=np.int64), zones
            return

        def search(zone: int) -> Pairs:
            keys = np.flatnonzero(self._check(zone, hashes))
            return keys, np.full(keys.size, zone, dtype=np.int64)

        # Check all hashes against one filter while it is in the processor's cache.
        threads = num_cores()
        with thread_pool(threads) as pool:
            yield from map_in_order(pool, search, range(len(self)), 2 * threads)

    def may_hold(self, zones: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        hit = np.empty(hashes.size, dtype=bool)
        changes = np.flatnonzero(np.diff(zones)) + 1
        for first, end in pairwise([0, *changes.tolist(), zones.size]):
            if first < end:
                hit[first:end] = self._check(int(zones[first]), hashes[first:end])
        return hit

    def _check(self, zone: int, hashes: np.ndarray) -> np.ndarray:
        from zonebloom.sbbf import blocks

        hit = np.empty(hashes.size, dtype=bool)
        blocks.check(self.filter_words(zone), hashes, hit)
        return hit

    def zones(self) -> Iterator[tuple[int, Zones]]:
        """Yield all zones with the id of their fragment, a few megabytes at a time."""
        fragment_ids, num_blocks = self.fragment_ids, self.num_blocks
        changes = (np.diff(fragment_ids) != 0) | (np.diff(num_blocks) != 0)
        for first, end in pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), len(self)]):
            if first == end:
                continue
            step = max(1, _BATCH_BYTES // (int(num_blocks[first]) * BYTES_PER_BLOCK))
            for start in range(first, end, step):
                part = slice(start, min(start + step, end))
                words = np.stack([self.filter_words(zone) for zone in range(part.start, part.stop)])
                zones = Zones(self.starts[part], self.lengths[part], self.has_null[part], words)
                yield int(fragment_ids[first]), zones

    def batches(self) -> Iterator[pa.RecordBatch]:
        schema = table_schema(self.number_of_items, self.probability)
        for fragment_id, zones in self.zones():
            yield to_batch(fragment_id, zones, schema)

    def to_table(self) -> pa.Table:
        schema = table_schema(self.number_of_items, self.probability)
        return pa.Table.from_batches(self.batches(), schema)


def _filter_locations(batch: pa.RecordBatch, buffer: pa.Buffer) -> np.ndarray:
    """Return the first word and the number of blocks of each filter of a batch.

    Raise `ValueError` if a filter is not inside the file.
    """
    batch.validate(full=True)
    if any(column.null_count for column in batch.columns):
        raise ValueError("it holds nulls")
    filters = batch.column("bloom_filter_data")
    _, offsets, data = filters.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32, count=filters.offset + len(filters) + 1)
    bounds = bounds[filters.offset :].astype(np.int64)
    sizes = np.diff(bounds)
    if (sizes <= 0).any() or (sizes % BYTES_PER_BLOCK).any() or (sizes > MAX_BYTES).any():
        raise ValueError("it holds a filter that is not whole blocks")
    starts = (data.address - buffer.address if data is not None else 0) + bounds[:-1]
    if (starts % 4).any() or (starts < 0).any() or (starts + sizes > buffer.size).any():
        raise ValueError("it holds a filter outside its file")
    return np.stack([starts // 4, sizes // BYTES_PER_BLOCK]).astype(np.uint64)


class RowTableWriter:
    def __init__(
        self,
        creator: FileCreator,
        path: str,
        number_of_items: int,
        probability: float,
        fold: bool = False,
    ):
        self._fold_to = probability if fold else None
        self._schema = with_format_version(table_schema(number_of_items, probability))
        self._sink = HashingFile(creator.open_output_stream(path))
        self._file = pa.PythonFile(self._sink, mode="w")
        self._writer = pa.ipc.new_file(self._file, self._schema)
        self._num_zones = 0
        self._pending: list[RowColumns] = []
        self._pending_bytes = 0

    def write(self, fragment_id: int, zones: Zones) -> None:
        step = max(1, _MAX_BATCH_BYTES // zones.filters.strides[0])
        for start in range(0, len(zones), step):
            part = zones.slice(start, start + step)
            rows = RowColumns.of_zones(fragment_id, part, *self._filters_to_write(part))
            if self._pending_bytes + rows.num_bytes > min(_SHARED_BATCH_BYTES, _MAX_BATCH_BYTES):
                self._write_pending()
            self._pending.append(rows)
            self._pending_bytes += rows.num_bytes
        self._num_zones += len(zones)

    def _filters_to_write(self, zones: Zones) -> tuple[np.ndarray, np.ndarray]:
        """Return the filters, one after another, and the words of each."""
        filters = np.ascontiguousarray(zones.filters)
        if self._fold_to is not None:
            words, sizes = fold_filters(filters, self._fold_to)
            is_buffer_large = words.nbytes < filters.nbytes // 2
        else:
            words, sizes = filters, np.full(len(filters), filters.shape[1], dtype=np.int64)
            is_buffer_large = 2 * filters.nbytes <= _SHARED_BATCH_BYTES
        # Copy few filters of a large buffer, so that it can be freed.
        return (words.copy() if is_buffer_large else words), sizes

    def _write_pending(self) -> None:
        if self._pending:
            rows = RowColumns.concatenate(self._pending)
            self._writer.write_batch(rows.to_batch(self._schema))
        self._pending, self._pending_bytes = [], 0

    def close(self) -> WrittenTable:
        self._write_pending()
        self._writer.close()
        self._file.close()
        self._sink.close()
        return WrittenTable(self._sink.size, self._sink.checksum.hexdigest(), self._num_zones)

    def abort(self) -> None:
        """Close the file after a failure. It is not a valid table."""
        self._sink.close()


def write_row_table(tables: Sequence[RowTable], creator: FileCreator, path: str) -> WrittenTable:
    writer = RowTableWriter(creator, path, tables[0].number_of_items, tables[0].probability)
    try:
        for table in tables:
            for fragment_id, zones in table.zones():
                writer.write(fragment_id, zones)
    except BaseException:
        writer.abort()
        raise
    return writer.close()


def read_row_table(store: IndexStore, path: str, num_bytes: int, checksum: str) -> RowTable:
    return RowTable(read_file(store, path, num_bytes, checksum), path)

"""Read and write tables of zone filters: Arrow IPC files with one filter per row, as in Lance.

A file is read whole, because a lookup touches every filter, and because truncation of a
memory-mapped file would kill the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.arrays import to_numpy
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.base.threads import map_in_order, map_slices, num_cores, thread_pool
from zonebloom.base.version import require_known_format, with_format_version
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
from zonebloom.errors import CorruptIndex
from zonebloom.index.table import (
    HashedTable,
    HashingFile,
    Pairs,
    WrittenTable,
    ZoneRuns,
    require_zone_rows,
)
from zonebloom.sbbf.lookup import check_any
from zonebloom.sbbf.sizing import DEFAULT_ZONE_PROBABILITY, fold_filters, size_for
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, MAX_BYTES, WORDS_PER_BLOCK
from zonebloom.storage.files import FileCreator
from zonebloom.storage.ipc_layout import open_uncompressed

ITEM_KEY = b"bloomfilter_item"
PROBABILITY_KEY = b"bloomfilter_probability"

FIELDS = pa.schema(
    [
        pa.field("fragment_id", pa.uint64(), nullable=False),
        pa.field("zone_start", pa.uint64(), nullable=False),
        pa.field("zone_length", pa.uint64(), nullable=False),
        pa.field("has_null", pa.bool_(), nullable=False),
        pa.field("bloom_filter_data", pa.binary(), nullable=False),
    ]
)

# Filters of a larger batch would not fit the 32-bit offsets of a binary column.
_MAX_BATCH_BYTES = 1 << 30
# Opening a table costs time per batch, so the zones of small files share a batch.
_SHARED_BATCH_BYTES = 4 << 20
# With fewer hashes than this, one call per hash over all zones is faster than one per zone.
_MIN_BATCHED_HASHES = 64
# Fewer checks than this take less time than starting threads.
_MIN_THREADED_CHECKS = 1 << 18


@dataclass(frozen=True, slots=True)
class ZoneParameters:
    """The parameters of the zones of an index and of their filters."""

    # Rows in a zone. If a row has one key, the filter is sized for as many distinct keys.
    number_of_items: int = DEFAULT_NUMBER_OF_ITEMS
    probability: float = DEFAULT_ZONE_PROBABILITY
    # If True, the filter of a zone with few distinct values is halved while `probability` allows.
    # The filters of Lance all have one size.
    fold: bool = True

    def __post_init__(self) -> None:
        require_zone_rows(self.number_of_items)
        arguments.require_bool(self.fold, "fold")
        size_for(self.number_of_items, self.probability)

    @property
    def filter_bytes(self) -> int:
        """Return the size of the filter of each zone, if a row has one key, before it is folded."""
        return size_for(self.number_of_items, self.probability)


@dataclass(frozen=True, slots=True)
class Zones:
    """Consecutive zones of one fragment; ``filters`` are uint32, shape ``(n, words)``."""

    starts: np.ndarray
    lengths: np.ndarray
    has_null: np.ndarray
    filters: np.ndarray

    def __len__(self) -> int:
        return self.starts.size

    def slice(self, start: int, stop: int) -> Zones:
        part = slice(start, stop)
        return Zones(self.starts[part], self.lengths[part], self.has_null[part], self.filters[part])


def table_schema(number_of_items: int, probability: float) -> pa.Schema:
    """Return the schema of a table with its two metadata keys, formatted as in Lance."""
    # Lance writes the shortest decimal that reads back exactly, and never an exponent.
    decimal = format(Decimal(repr(float(probability))), "f")
    return FIELDS.with_metadata(
        {ITEM_KEY: str(number_of_items).encode(), PROBABILITY_KEY: decimal.encode()}
    )


class RowTable(HashedTable):
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
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        parts = [np.empty((2, 0), dtype=np.uint64)]
        parts += [_filter_locations(batch, buffer) for batch in self._batches]
        self.first_words, self.num_blocks = np.concatenate(parts, axis=1)
        columns = pa.Table.from_batches(self._batches, reader.schema)
        ids, starts, lengths = (to_numpy(columns[i]) for i in range(3))
        # The sum of start and length could overflow, so compare differences.
        limit = np.uint64(MAX_ROWS_PER_FRAGMENT)
        if (lengths > limit).any() or (starts > limit - lengths).any():
            raise ValueError(f"it holds a zone past row {MAX_ROWS_PER_FRAGMENT:,}")
        self.runs = ZoneRuns.from_zones(ids, starts, lengths, self.number_of_items)
        self.has_null = to_numpy(columns[3])

    def filter_words(self, zone: int) -> np.ndarray:
        first = int(self.first_words[zone])
        return self.words[first : first + int(self.num_blocks[zone]) * WORDS_PER_BLOCK]

    def find(self, hashes: np.ndarray) -> np.ndarray:
        num_zones = self.first_words.size
        if hashes.size * num_zones < _MIN_THREADED_CHECKS:
            return check_any(self.words, self.first_words, self.num_blocks, hashes).nonzero()[0]

        def check(part: slice) -> np.ndarray:
            return check_any(self.words, self.first_words[part], self.num_blocks[part], hashes)

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

    def batches(self) -> list[pa.RecordBatch]:
        """Return the rows, with the metadata of Lance alone."""
        schema = table_schema(self.number_of_items, self.probability)
        return [pa.RecordBatch.from_arrays(part.columns, schema=schema) for part in self._batches]

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


def _to_batch(
    fragment_id: int, zones: Zones, words: np.ndarray, sizes: np.ndarray, schema: pa.Schema
) -> pa.RecordBatch:
    """Return zones of one fragment as a batch, with other filters than theirs.

    ``words`` has the filters one after another, uint32; ``sizes`` the words of each, int64.
    """
    offsets = np.zeros(len(zones) + 1, dtype=np.int32)
    np.cumsum(4 * sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(words.reshape(-1))]
    filters = pa.Array.from_buffers(pa.binary(), len(zones), buffers)
    ids = np.full(len(zones), fragment_id, dtype=np.uint64)
    columns = map(pa.array, (ids, zones.starts, zones.lengths, zones.has_null))
    return pa.RecordBatch.from_arrays([*columns, filters], schema=schema)


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
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0

    def write(self, fragment_id: int, zones: Zones) -> None:
        step = max(1, _MAX_BATCH_BYTES // zones.filters.strides[0])
        for start in range(0, len(zones), step):
            part = zones.slice(start, start + step)
            filters = self._filters_to_write(part)
            self.write_batch(_to_batch(fragment_id, part, *filters, self._schema))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write rows of `table_schema`."""
        if self._pending_bytes + batch.nbytes > min(_SHARED_BATCH_BYTES, _MAX_BATCH_BYTES):
            self._write_pending()
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        self._num_zones += batch.num_rows

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
            rows = pa.Table.from_batches(self._pending, self._schema).combine_chunks()
            self._writer.write_table(rows)
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
            for batch in table.batches():
                writer.write_batch(batch)
    except BaseException:
        writer.abort()
        raise
    return writer.close()

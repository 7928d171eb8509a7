"""The base class of tables of zone filters in any layout, and the schema of their rows.

The schema is that of Lance.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from zonebloom.index.table import IndexTable
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, WORDS_PER_BLOCK

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

# Bytes of filters in a batch, about as many as a build writes at a time.
_BATCH_BYTES = 4 << 20
# Bytes of filters that are loaded at a time. Sliced filters are transposed back.
_MAX_LOADED_BYTES = 128 << 20


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


class FilterRun(NamedTuple):
    """Filters of one size, of which ranges of blocks can be loaded.

    ``load`` takes zones of the run and blocks ``start`` to ``stop``. It returns memory that holds
    these blocks, and the address at which each whole filter would begin in it, uint64, shape
    ``(zones,)``.
    """

    num_blocks: int
    zones: range
    load: Callable[[range, int, int], tuple[np.ndarray, np.ndarray]]


class ZoneTable(IndexTable):
    """A file of zones, each with a filter and a null flag."""

    number_of_items: int
    probability: float

    @property
    @abstractmethod
    def num_blocks(self) -> np.ndarray:
        """Return the number of blocks of each zone's filter, uint64, shape ``(zones,)``."""

    @abstractmethod
    def filter_runs(self) -> Iterator[FilterRun]:
        """Yield all filters. Filters of the same size come in the order of their zones."""

    def _filters(self, num_blocks: int) -> Iterator[np.ndarray]:
        """Yield the filters of one size in the order of their zones, uint32, shape ``(words,)``."""
        size = num_blocks * WORDS_PER_BLOCK
        step = max(64, _MAX_LOADED_BYTES // (num_blocks * BYTES_PER_BLOCK) // 64 * 64)
        for run in self.filter_runs():
            for start in range(0, len(run.zones), step) if run.num_blocks == num_blocks else ():
                memory, addresses = run.load(run.zones[start : start + step], 0, num_blocks)
                first_words = (addresses - np.uint64(memory.ctypes.data)) // np.uint64(4)
                for first_word in first_words.tolist():
                    yield memory.reshape(-1)[first_word : first_word + size]

    def zones(self) -> Iterator[tuple[int, Zones]]:
        fragment_ids, num_blocks = self.fragment_ids, self.num_blocks
        changes = (np.diff(fragment_ids) != 0) | (np.diff(num_blocks) != 0)
        filters = {size: self._filters(size) for size in np.unique(num_blocks).tolist()}
        for first, end in pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), len(self)]):
            if first == end:
                continue
            size = int(num_blocks[first])
            step = max(1, _BATCH_BYTES // (size * BYTES_PER_BLOCK))
            for start in range(first, end, step):
                stop = min(start + step, end)
                part = slice(start, stop)
                words = np.stack(list(islice(filters[size], stop - start)))
                zones = Zones(self.starts[part], self.lengths[part], self.has_null[part], words)
                yield int(fragment_ids[first]), zones

    def batches(self) -> Iterator[pa.RecordBatch]:
        schema = table_schema(self.number_of_items, self.probability)
        for fragment_id, zones in self.zones():
            yield to_batch(fragment_id, zones, schema)

    def to_table(self) -> pa.Table:
        schema = table_schema(self.number_of_items, self.probability)
        return pa.Table.from_batches(self.batches(), schema)


def table_schema(number_of_items: int, probability: float) -> pa.Schema:
    """Return the schema of a table with its two metadata keys, formatted as in Lance."""
    # Lance writes the shortest decimal that reads back exactly, and never an exponent.
    decimal = format(Decimal(repr(float(probability))), "f")
    return FIELDS.with_metadata(
        {ITEM_KEY: str(number_of_items).encode(), PROBABILITY_KEY: decimal.encode()}
    )


def to_batch(fragment_id: int, zones: Zones, schema: pa.Schema) -> pa.RecordBatch:
    """Return zones of one fragment as a batch. It shares the memory of the filters."""
    filters = np.ascontiguousarray(zones.filters)
    sizes = np.full(len(zones), filters.shape[1], dtype=np.int64)
    return RowColumns.of_zones(fragment_id, zones, filters, sizes).to_batch(schema)


class RowColumns(NamedTuple):
    """The columns of rows of a table. Their filters may have any sizes.

    ``words`` has the filters one after another, uint32; ``sizes`` the words of each, int64.
    """

    fragment_ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    has_null: np.ndarray
    words: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of_zones(
        cls, fragment_id: int, zones: Zones, words: np.ndarray, sizes: np.ndarray
    ) -> RowColumns:
        """Return the rows of some zones with other filters than theirs."""
        ids = np.full(len(zones), fragment_id, dtype=np.uint64)
        return cls(ids, zones.starts, zones.lengths, zones.has_null, words.reshape(-1), sizes)

    @classmethod
    def concatenate(cls, parts: Sequence[RowColumns]) -> RowColumns:
        """Return the rows of several parts. A single part is not copied."""
        return parts[0] if len(parts) == 1 else cls(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def num_bytes(self) -> int:
        """The size of the batch."""
        count = self.starts.size
        return 3 * 8 * count + -(-count // 8) + 4 * (count + 1) + self.words.nbytes

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        offsets = np.zeros(self.starts.size + 1, dtype=np.int32)
        np.cumsum(4 * self.sizes, out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.words)]
        filters = pa.Array.from_buffers(pa.binary(), self.starts.size, buffers)
        columns = [*map(pa.array, self[:4]), filters]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

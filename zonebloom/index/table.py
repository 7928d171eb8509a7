"""The base class of zone tables in any layout, and the schema of their rows, which is Lance's."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.sbbf.sizing import fold_filter
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, WORDS_PER_BLOCK
from zonebloom.storage.files import OutputStream

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
_MIN_PAIRS = 1 << 16

# Positions of hashes, and the numbers of zones that may hold them; both int64, shape (n,).
Pairs: TypeAlias = tuple[np.ndarray, np.ndarray]


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


class HashingFile(io.RawIOBase):
    """An output file that computes the checksum and the size of what is written to it."""

    def __init__(self, stream: OutputStream):
        self._stream = stream
        self.checksum = xxhash.xxh3_64()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.checksum.update(data)
        self._stream.write(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        self._stream.close()
        super().close()


@dataclass(frozen=True, slots=True)
class WrittenTable:
    num_bytes: int
    checksum: str
    num_zones: int


@dataclass(frozen=True)
class ZoneRuns:
    """Zones in run-length encoding. Arrays are uint64, shape ``(runs,)``.

    A run is consecutive zones of a fragment. Each has ``items`` rows; the last one may have fewer.
    """

    fragment_ids: np.ndarray
    first_rows: np.ndarray
    num_zones: np.ndarray
    num_rows: np.ndarray
    items: int

    @classmethod
    def from_zones(
        cls, fragment_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, items: int
    ) -> ZoneRuns:
        continues_run = np.zeros(starts.size, dtype=bool)
        if 0 < items <= MAX_ROWS_PER_FRAGMENT:
            zone_rows = np.uint64(items)
            continues_run[1:] = (
                (fragment_ids[1:] == fragment_ids[:-1])
                & (lengths[:-1] == zone_rows)
                & (starts[1:] == starts[:-1] + lengths[:-1])
                & (lengths[1:] > 0)
                & (lengths[1:] <= zone_rows)
            )
        run_starts = np.flatnonzero(~continues_run)
        num_zones = np.diff(run_starts, append=starts.size).astype(np.uint64)
        num_rows = np.add.reduceat(lengths, run_starts) if run_starts.size else lengths[:0]
        return cls(fragment_ids[run_starts], starts[run_starts], num_zones, num_rows, items)

    @cached_property
    def _run_stops(self) -> np.ndarray:
        return np.cumsum(self.num_zones).astype(np.int64)

    def locate(self, zones: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return fragment, start and length of zones by number; each uint64, shape ``(n,)``."""
        run = np.searchsorted(self._run_stops, zones, side="right")
        items = np.uint64(max(self.items, 0))
        rows_before = (
            (zones - self._run_stops[run]).astype(np.uint64) + self.num_zones[run]
        ) * items
        lengths = self.num_rows[run] - rows_before
        is_long = self.num_zones[run] != 1
        lengths[is_long] = np.minimum(lengths[is_long], items)
        return self.fragment_ids[run], self.first_rows[run] + rows_before, lengths


@dataclass(frozen=True, slots=True)
class FilterRun:
    """Filters of one size, of which ranges of blocks can be loaded.

    ``load`` takes zones of the run and blocks ``start`` to ``stop``. It returns memory that holds
    these blocks, and the address at which each whole filter would begin in it, uint64, shape
    ``(zones,)``.
    """

    num_blocks: int
    zones: range
    load: Callable[[range, int, int], tuple[np.ndarray, np.ndarray]]


class ZoneTable(ABC):
    """A file of zones, numbered from 0, each with a filter and a null flag.

    If a filter is damaged, every value counts as a possible match, or opening the table fails.
    """

    layout: ClassVar[str]
    path: str
    num_bytes: int
    number_of_items: int
    probability: float
    runs: ZoneRuns
    has_null: np.ndarray

    def __len__(self) -> int:
        return self.has_null.size

    @property
    @abstractmethod
    def loaded_bytes(self) -> int:
        """Return the number of bytes of the file that were read so far."""

    @property
    @abstractmethod
    def num_blocks(self) -> np.ndarray:
        """Return the number of blocks of each zone's filter, uint64, shape ``(zones,)``."""

    @abstractmethod
    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Return the numbers of zones that may hold any of the hashes, int64, ascending."""

    @abstractmethod
    def _pairs(self, hashes: np.ndarray) -> Iterator[Pairs]:
        """Yield the parts of `pairs`. A part may be of any size, or empty."""

    @abstractmethod
    def may_hold(self, zones: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        """Return for each pair of a zone and a hash whether the zone may hold the hash, bool."""

    @abstractmethod
    def filter_runs(self) -> Iterator[FilterRun]:
        """Yield all filters. Filters of the same size come in the order of their zones."""

    def verify(self) -> None:  # noqa: B027 - a layout may have nothing left to do
        """Verify everything that was not verified when the table was opened."""

    def close(self) -> None:  # noqa: B027
        """Close the file. It is also closed when the table is garbage-collected."""

    @cached_property
    def _zones(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.runs.locate(np.arange(len(self), dtype=np.int64))

    @property
    def fragment_ids(self) -> np.ndarray:
        """Return the fragment id of each zone, uint64, shape ``(zones,)``."""
        return self._zones[0]

    @property
    def starts(self) -> np.ndarray:
        """Return the first row of each zone in its fragment, uint64, shape ``(zones,)``."""
        return self._zones[1]

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of rows of each zone, uint64, shape ``(zones,)``."""
        return self._zones[2]

    def pairs(self, hashes: np.ndarray) -> Iterator[Pairs]:
        """Yield pairs of a hash and a zone that may hold it, each once, in bounded memory."""
        parts: list[Pairs] = []
        count = 0
        for part in self._pairs(hashes) if hashes.size and len(self) else ():
            parts.append(part)
            count += part[0].size
            if count >= _MIN_PAIRS:
                yield _concatenate_pairs(parts)
                parts, count = [], 0
        if count:
            yield _concatenate_pairs(parts)

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


def _concatenate_pairs(parts: list[Pairs]) -> Pairs:
    keys, zones = zip(*parts, strict=True)
    return np.concatenate(keys), np.concatenate(zones)


def table_schema(number_of_items: int, probability: float) -> pa.Schema:
    """Return the schema of a table with its two metadata keys, formatted as in Lance."""
    # Lance writes the shortest decimal that reads back exactly, and never an exponent.
    decimal = format(Decimal(repr(float(probability))), "f")
    return FIELDS.with_metadata(
        {ITEM_KEY: str(number_of_items).encode(), PROBABILITY_KEY: decimal.encode()}
    )


def to_batch(
    fragment_id: int, zones: Zones, schema: pa.Schema, fold_to: float | None = None
) -> pa.RecordBatch:
    """Return zones of one fragment as a batch, folded to a false positive probability if given."""
    count = len(zones)
    filters = np.ascontiguousarray(zones.filters)
    sizes = np.full(count, filters.strides[0], dtype=np.int32)
    if fold_to is not None:
        folded = [fold_filter(words, fold_to) for words in filters]
        sizes = np.array([words.nbytes for words in folded], dtype=np.int32)
        filters = np.concatenate(folded)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    data = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(filters)]
    )
    columns = [
        pa.array(np.full(count, fragment_id, dtype=np.uint64)),
        pa.array(zones.starts),
        pa.array(zones.lengths),
        pa.array(zones.has_null),
        data,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)

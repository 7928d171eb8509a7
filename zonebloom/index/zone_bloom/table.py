"""The rows of a table of zone filters, and their schema, which is that of Lance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pyarrow as pa

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

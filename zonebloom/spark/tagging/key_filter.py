"""Which rows may equal one of many keys: a Bloom filter of the keys, asked for every row.

Where keys are as dense as zones, no zone can be passed over, but most rows can: rows stream past
one filter of all keys, which fits the processor's cache, and few are left to be joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zonebloom.sbbf.hashing import hash_array
from zonebloom.sbbf.sizing import size_for
from zonebloom.spark.jobs import mapped
from zonebloom.spark.tagging.key_ranges import KeyRanges, fragments_with
from zonebloom.values.types import hash_domain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A row in five hundred is joined in vain: far fewer than are found where keys are dense.
_PROBABILITY = 0.002
# It is sent to every task; with more keys than it was meant for, more rows are joined in vain.
_MOST_BYTES = 1 << 26
# What the driver takes in at most; spark.driver.maxResultSize is 1 GiB by default.
_COLLECTED_BYTES = 1 << 27
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class KeyRows:
    """The rows that may equal a key, as a filter of a scan.

    Attributes
    ----------
    names : tuple of str
    types : tuple of DataType
        In which Spark compares.
    words : uint32 array
        A filter of all keys without a null.
    """

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    words: np.ndarray

    @property
    def columns(self) -> frozenset[str]:
        """Columns that it reads."""
        return frozenset(self.names)

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Numbers of the rows that may equal a key, ascending."""
        from zonebloom.sbbf import blocks

        columns = [table[name].combine_chunks() for name in self.names]
        hashes, valid = hash_rows(columns, self.types)
        hit = np.empty(hashes.size, dtype=bool)
        blocks.check(self.words, hashes, hit)
        return np.flatnonzero(hit & valid)


def filter_words(num_keys: int) -> int:
    """Size of a filter for so many keys, 32-bit words."""
    most_keys = _MOST_BYTES * 8 // 16
    num_bytes = size_for(min(max(num_keys, 1), most_keys), _PROBABILITY, "exact")
    return min(num_bytes, _MOST_BYTES) // 4


def summarize(
    batches: Iterable[pa.RecordBatch],
    num_words: int,
    types: Sequence[pa.DataType],
    ranges: Sequence[KeyRanges],
) -> tuple[np.ndarray, np.ndarray]:
    """Pass over keys: a filter of those without a null, and which fragments may hold any."""
    from zonebloom.sbbf import blocks

    words = np.zeros(num_words, dtype=np.uint32)
    fragments = np.zeros(ranges[0].is_empty.size, dtype=bool)
    for batch in batches:
        hashes, valid = hash_rows(batch.columns, types)
        blocks.insert(words, hashes[valid])
        fragments |= fragments_with(ranges, batch.columns)
    return words, fragments


def summarize_frame(
    probes: DataFrame, num_words: int, types: Sequence[pa.DataType], ranges: Sequence[KeyRanges]
) -> tuple[np.ndarray, np.ndarray]:
    """The same of a frame of keys, in so few tasks that what they send fits the driver."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrays = summarize(batches, num_words, types, ranges)
        columns = [pa.array([array.tobytes()], pa.binary()) for array in arrays]
        yield pa.RecordBatch.from_arrays(columns, names=["words", "fragments"])

    tasks = max(_COLLECTED_BYTES // (num_words * 4), 1)
    rows = mapped(probes.coalesce(tasks), work, "words binary, fragments binary").collect()
    words, fragments = summarize([], num_words, types, ranges)
    for row in rows:
        words |= np.frombuffer(row.words, dtype=np.uint32)
        fragments |= np.frombuffer(row.fragments, dtype=bool)
    return words, fragments


def hash_rows(
    columns: Sequence[pa.Array], types: Sequence[pa.DataType]
) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of rows, one for all that Spark calls equal, and whether a row has no null."""
    hashes: Any = None
    valid = np.ones(len(columns[0]), dtype=bool)
    for column, kind in zip(columns, types, strict=True):
        hashed = hash_array(_comparable(column, kind))
        if hashed.null_count:
            valid &= hashed.is_valid()
        # Odd multipliers keep all bits; the order of the columns counts.
        hashes = hashed.values if hashes is None else hashes * _MIX + hashed.values
    return np.ascontiguousarray(hashes), valid


def _comparable(column: pa.Array, kind: pa.DataType) -> pa.Array:
    while isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pt.is_boolean(kind):
        return column.cast(pa.int8())
    if hash_domain(column.type) != hash_domain(kind):
        column = column.cast(kind)
    return _one_zero_one_nan(column) if pt.is_floating(kind) else column


def _one_zero_one_nan(column: pa.Array) -> pa.Array:
    """Spark has -0.0 = 0.0 and NaN = NaN, of whatever bits."""
    values = np.array(column.to_numpy(zero_copy_only=False))
    values[values == 0] = 0.0
    values[np.isnan(values)] = np.nan
    return pa.array(values, column.type, mask=~np.asarray(column.is_valid()))

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

from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.hashing import hash_array
from zonebloom.spark.jobs import mapped
from zonebloom.spark.tagging.key_ranges import KeyRanges, fragments_with
from zonebloom.values.types import hash_domain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A row in five hundred is joined in vain: far fewer than are found where keys are dense.
_PROBABILITY = 0.002
# The filter of so many keys, 64 MiB at most, is sent to every task; of more keys it is of the same
# size, and more rows are joined in vain.
_MOST_KEYS = 1 << 25
# What the driver takes in at most; spark.driver.maxResultSize is 1 GiB by default.
_COLLECTED_BYTES = 1 << 27
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class KeyRows:
    """The rows that may equal a key, as a filter of a scan."""

    names: tuple[str, ...]
    # In which Spark compares.
    types: tuple[pa.DataType, ...]
    # Of all keys without a null.
    sbbf: Sbbf

    @property
    def columns(self) -> frozenset[str]:
        """Columns that it reads."""
        return frozenset(self.names)

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Numbers of the rows that may equal a key, ascending."""
        columns = [table[name].combine_chunks() for name in self.names]
        hashes, valid = _hash_rows(columns, self.types)
        return np.flatnonzero(self.sbbf.check_hashes(hashes) & valid)


def summarize(
    batches: Iterable[pa.RecordBatch],
    num_keys: int,
    types: Sequence[pa.DataType],
    ranges: Sequence[KeyRanges],
) -> tuple[Sbbf, np.ndarray]:
    """Pass over keys: a filter of those without a null, and which fragments may hold any."""
    sbbf = Sbbf(min(max(num_keys, 1), _MOST_KEYS), _PROBABILITY, sizing="exact")
    fragments = np.zeros(ranges[0].is_empty.size, dtype=bool)
    for batch in batches:
        hashes, valid = _hash_rows(batch.columns, types)
        sbbf.insert_hashes(hashes[valid])
        fragments |= fragments_with(ranges, batch.columns)
    return sbbf, fragments


def summarize_frame(
    probes: DataFrame, num_keys: int, types: Sequence[pa.DataType], ranges: Sequence[KeyRanges]
) -> tuple[Sbbf, np.ndarray]:
    """The same of a frame of keys, in so few tasks that what they send fits the driver."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sbbf, fragments = summarize(batches, num_keys, types, ranges)
        columns = [pa.array([data], pa.binary()) for data in (sbbf.to_bytes(), fragments.tobytes())]
        yield pa.RecordBatch.from_arrays(columns, names=["filter", "fragments"])

    sbbf, fragments = summarize([], num_keys, types, ranges)
    tasks = max(_COLLECTED_BYTES // sbbf.nbytes, 1)
    for row in mapped(probes.coalesce(tasks), work, "filter binary, fragments binary").collect():
        sbbf.merge(Sbbf.from_bytes(row.filter))
        fragments |= np.frombuffer(row.fragments, dtype=bool)
    return sbbf, fragments


def _hash_rows(
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

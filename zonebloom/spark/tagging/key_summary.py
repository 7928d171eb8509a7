"""What is known of many keys: a filter of them, asked for every row, and the fragments whose key
ranges hold any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import DataFrame

from zonebloom.dataset import Dataset
from zonebloom.errors import EncryptedIndex, IndexNotFound
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.hashing import hash_array
from zonebloom.spark.jobs import mapped
from zonebloom.spark.rebase import may_be_rebased
from zonebloom.spark.tagging.keys import KeyColumns
from zonebloom.values.types import hash_domain

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


@dataclass(frozen=True)
class KeyRanges:
    """Key ranges of fragments in one column."""

    # Null where they are not known: such a fragment may hold any key.
    minimum: pa.Array
    maximum: pa.Array
    # Where it is known that there is no value.
    is_empty: np.ndarray

    def may_hold(self, keys: pa.Array) -> np.ndarray:
        """Which fragments may hold any of some keys; a null is in none, and NaN may be in any."""
        # Spark gives instants in the session's zone.
        keys = keys.drop_null().cast(self.minimum.type)
        has_nan = False
        if pt.is_floating(keys.type):
            values = keys.to_numpy()
            has_nan = bool(np.isnan(values).any())
            keys = pa.array(values[~np.isnan(values)], keys.type)
        keys = keys.take(pc.call_function("array_sort_indices", [keys]))
        known = _as_numpy(self.minimum.is_valid()) & _as_numpy(self.maximum.is_valid())
        hit = np.full(known.size, has_nan or len(keys) > 0)
        if known.any() and not has_nan:
            low, high = (bound.filter(pa.array(known)) for bound in (self.minimum, self.maximum))
            hit[known] = _search(keys, high, "right") > _search(keys, low, "left")
        return hit & ~self.is_empty


def key_ranges(ds: Dataset, columns: KeyColumns) -> tuple[KeyRanges, ...]:
    """What is known of each fragment there is, a column each."""
    return tuple(map(partial(_of_column, ds, columns), columns.names, columns.schema.types))


def _of_column(ds: Dataset, columns: KeyColumns, name: str, kind: pa.DataType) -> KeyRanges:
    source, present = ds.opened.source, ds.opened.planner.to_read().present
    if name in source.partition_columns():
        stored = source.schema.field(name).type
        plain = stored.value_type if pt.is_dictionary(stored) else stored
        texts = [source.constants(file.fragment).get(name) for file in present]
        values = pa.array(texts, plain).cast(kind)
        # A null equals no key.
        empty = ~_as_numpy(values.is_valid())
        return KeyRanges(values, values, empty) if _can_order(kind) else _unknown(kind, empty)
    unknown = _unknown(kind, np.zeros(len(present), dtype=bool))
    if name in columns.rebase.instants or not _can_order(kind):
        return unknown
    try:
        table: Any = ds.key_ranges(name)
        bounds = [table[bound].combine_chunks().cast(kind) for bound in ("minimum", "maximum")]
    except (IndexNotFound, EncryptedIndex, pa.ArrowException):
        return unknown
    if table["fragment_id"].to_pylist() != [file.fragment_id for file in present]:
        # Files came or changed between.
        return unknown
    known = table["is_known"].to_numpy()
    if name in columns.rebase.times:
        # Shown by Spark, they may be earlier.
        known = known & ~_as_numpy(may_be_rebased(bounds[0]).fill_null(False))
    has_nan = table["has_nan"].fill_null(True).to_numpy()
    empty = known & ~has_nan & ~_as_numpy(bounds[0].is_valid())
    # Not through Python, whose dates end with the year 9999.
    choices = pa.array(known), pa.scalar(None, kind)
    low, high = (pc.call_function("if_else", [choices[0], end, choices[1]]) for end in bounds)
    return KeyRanges(low, high, empty)


def _unknown(kind: pa.DataType, empty: np.ndarray) -> KeyRanges:
    nothing = pa.nulls(empty.size, kind)
    return KeyRanges(nothing, nothing, empty)


def fragments_with(ranges: Sequence[KeyRanges], columns: Sequence[pa.Array]) -> np.ndarray:
    """Which fragments may hold any of some keys, by every key column."""
    return np.logical_and.reduce(
        [column_ranges.may_hold(keys) for column_ranges, keys in zip(ranges, columns, strict=True)]
    )


def _can_order(kind: pa.DataType) -> bool:
    """Whether values of a type can be searched among others."""
    if pt.is_nested(kind) or pt.is_dictionary(kind):
        return False
    try:
        _search(pa.nulls(0, kind), pa.nulls(0, kind), "left")
    except pa.ArrowNotImplementedError:
        return False
    return True


def _search(keys: pa.Array, bounds: pa.Array, side: str) -> np.ndarray:
    compute: Any = pc
    return _as_numpy(compute.search_sorted(keys, bounds, side=side)).astype(np.int64)


def _as_numpy(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False)


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

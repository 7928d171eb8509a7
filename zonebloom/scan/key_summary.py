"""Summarize many keys of one or several columns.

The summary is a Bloom filter, which is applied to every row, and the fragments whose key ranges may
hold a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import array_of
from zonebloom.errors import EncryptedIndex, IndexNotFound
from zonebloom.index.zone_map.bounds import ZoneBounds
from zonebloom.predicates.ast import ColumnPath
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.hashing import hash_array
from zonebloom.scan.key_values import normalized_column, normalized_values
from zonebloom.scan.search import file_bounds
from zonebloom.snapshot import Snapshot
from zonebloom.values.normal_types import decoded_type
from zonebloom.values.types import hash_domain

# False positive rate: one row in 500 is compared with the keys needlessly.
_FALSE_POSITIVE_RATE = 0.002
# With more keys than this the filter stays at 64 MiB, and its false positive rate grows.
_MAX_FILTER_KEYS = 1 << 25
_SAMPLE_KEYS = 1 << 12
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class FilterByKeys:
    """The base of scan filters that compare columns with keys.

    Attributes
    ----------
    paths : tuple of column paths
    """

    paths: tuple[ColumnPath, ...]

    @property
    def columns(self) -> frozenset[str]:
        """Return the columns that the filter reads."""
        return frozenset(path[0] for path in self.paths)

    def __str__(self) -> str:
        return f"keys of {', '.join(sorted(self.columns))}"


@dataclass(frozen=True)
class KeyBloomFilter(FilterByKeys):
    """A scan filter that keeps rows which may equal a key. NaN may equal NaN.

    Attributes
    ----------
    types : tuple of DataType
        The types in which keys and rows are compared.
    sbbf : Sbbf
        Bloom filter of all keys without a null.
    """

    types: tuple[pa.DataType, ...]
    sbbf: Sbbf

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Return the row numbers that may equal a key, ascending."""
        hits = [np.empty(0, dtype=bool)]
        for batch in table.to_batches():
            columns = [normalized_column(batch, path) for path in self.paths]
            hashes, valid = _hash_key_rows(columns, self.types)
            hits.append(self.sbbf.check_hashes(hashes) & valid)
        return np.flatnonzero(np.concatenate(hits))


def _hash_key_rows(
    columns: Sequence[pa.Array], types: Sequence[pa.DataType]
) -> tuple[np.ndarray, np.ndarray]:
    """Return hashes of rows, and a mask of the rows without a null.

    Rows that are equal when compared in ``types`` have equal hashes.
    """
    hashes: Any = None
    valid = np.ones(len(columns[0]), dtype=bool)
    for column, kind in zip(columns, types, strict=True):
        hashed = hash_array(_with_equal_bytes(column, kind))
        if hashed.null_count:
            valid &= hashed.is_valid()
        # An odd multiplier loses no bits, and makes the order of the columns count.
        hashes = hashed.values if hashes is None else hashes * _HASH_MULTIPLIER + hashed.values
    return np.ascontiguousarray(hashes), valid


def _with_equal_bytes(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values in a form in which equal values have equal bytes, and all NaN are the same."""
    if pt.is_boolean(kind):
        return column.cast(pa.int8())
    if hash_domain(column.type) != hash_domain(kind):
        column = column.cast(kind)
    if not pt.is_floating(kind):
        return column
    nan = array_of([np.nan], pa.float64())[0].cast(column.type)
    return pc.call_function("if_else", [pc.call_function("is_nan", [column]), nan, column])


def fragment_key_ranges(snapshot: Snapshot, column: str, kind: pa.DataType) -> ZoneBounds:
    """Return the bounds of the values in each fragment, with bounds of type ``kind``."""
    source, present = snapshot.source, snapshot.fragments
    if column in source.constant_columns():
        value_type = decoded_type(source.schema.field(column).type)
        path_values = [source.constants(file.fragment).get(column) for file in present]
        return ZoneBounds.of_values(pa.array(path_values, value_type).cast(kind))
    try:
        return file_bounds(snapshot, column).cast(kind)
    except (IndexNotFound, EncryptedIndex, pa.ArrowException):
        return ZoneBounds.unknown(kind, len(present))


def fragments_with_keys(ranges: Sequence[ZoneBounds], columns: Sequence[pa.Array]) -> np.ndarray:
    """Return a mask of the fragments whose ranges of every key column may hold some keys."""
    return np.logical_and.reduce(
        [column_ranges.may_hold(keys) for column_ranges, keys in zip(ranges, columns, strict=True)]
    )


def summarize_keys(
    keys: Iterable[Sequence[pa.Array]],
    num_keys: int,
    types: Sequence[pa.DataType],
    ranges: Sequence[ZoneBounds],
) -> tuple[Sbbf, np.ndarray]:
    """Return a Bloom filter of the keys without a null, and a mask of fragments that may hold any.

    ``keys`` yields batches of keys as one array per key column.
    """
    sbbf = Sbbf(min(max(num_keys, 1), _MAX_FILTER_KEYS), _FALSE_POSITIVE_RATE, sizing="exact")
    fragments = np.zeros(ranges[0].lengths.size, dtype=bool)
    for columns in keys:
        hashes, valid = _hash_key_rows(list(map(normalized_values, columns)), types)
        sbbf.insert_hashes(hashes[valid])
        fragments |= fragments_with_keys(ranges, columns)
    return sbbf, fragments

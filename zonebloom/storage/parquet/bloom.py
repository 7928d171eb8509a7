"""Bloom filters that Parquet's writers embedded in their files, one a column chunk.

They answer for a row group as a whole, so they matter where no index covers a file. NULL and
NaN are not theirs to answer; both zeros are looked up for either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.predicates.ast import Constant, Equals, IsIn, Leaf, Predicate, fold
from zonebloom.storage.parquet.bloom_bytes import MALFORMED, FilterBytes, not_used
from zonebloom.storage.parquet.layout import ReadRanges
from zonebloom.storage.parquet.physical import PhysicalLeaf, leaves_of
from zonebloom.values.columns import leaf_type

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# Of some row groups, those where a predicate may be true, or false; None: it may be anywhere.
_Bound: TypeAlias = Callable[[np.ndarray], np.ndarray]
_Bounds: TypeAlias = tuple[_Bound | None, _Bound | None]


@dataclass(frozen=True, slots=True)
class EmbeddedColumn:
    """A leaf column that has filters: in how many row groups, and the bytes of their blocks."""

    path: tuple[str, ...]
    row_groups: int
    num_bytes: int


class EmbeddedFilters:
    """The filters embedded in one Parquet file."""

    def __init__(self, metadata: pq.FileMetaData, file_bytes: int, read: ReadRanges):
        self._metadata = metadata
        self._bytes = FilterBytes(metadata, file_bytes, read)
        self._leaves: list[PhysicalLeaf] = []
        try:
            self._leaves = leaves_of(metadata)
        except MALFORMED as error:
            not_used(f"its schema cannot be read ({error})")
        named = Counter(leaf.path for leaf in self._leaves)
        # Of two columns with one name there is no telling which is meant.
        self._by_path = {leaf.path: leaf for leaf in self._leaves if named[leaf.path] == 1}

    def columns(self) -> list[EmbeddedColumn]:
        """The leaf columns that have filters, in file order; reads the headers."""
        columns = []
        for leaf in self._leaves:
            sizes = [span[1] - span[0] for span in self._bytes.located(leaf) if span is not None]
            if sizes:
                columns.append(EmbeddedColumn(leaf.path, len(sizes), sum(sizes)))
        return columns

    def row_groups(self, predicate: Predicate, schema: pa.Schema) -> list[int] | None:
        """Which row groups may hold a row for which a predicate is true.

        Ascending; None when the filters cannot help, and none was read.
        """

        def leaf(node: Leaf) -> _Bounds:
            match node:
                case Constant(value):
                    nowhere = np.zeros_like
                    return None if value is True else nowhere, None if value is False else nowhere
                case Equals(column, values) | IsIn(column, values, False):
                    # A filter says where a value is not; other values may be anywhere.
                    return self._lookup(column, values, schema), None
            return None, None

        # AND is true where all terms are; it is false where any term is. OR: reversed.
        bound, _ = fold(
            predicate,
            leaf,
            lambda bounds: (_every([t for t, _ in bounds]), _any([f for _, f in bounds])),
            lambda bounds: (_any([t for t, _ in bounds]), _every([f for _, f in bounds])),
            lambda bounds: (bounds[1], bounds[0]),
        )
        if bound is None:
            return None
        kept = bound(np.ones(self._metadata.num_row_groups, dtype=bool))
        return np.flatnonzero(kept).tolist()

    def _lookup(self, column: tuple[str, ...], values: Any, schema: pa.Schema) -> _Bound | None:
        leaf, wanted = self._by_path.get(column), leaf_type(schema, column)
        if leaf is None or wanted is None or not any(self._bytes.claims(leaf)):
            return None
        hashes = leaf.hashes(wanted, values)
        return None if hashes is None else lambda among: self._bytes.may_hold(leaf, hashes, among)


def _every(bounds: list[_Bound | None]) -> _Bound | None:
    known = [bound for bound in bounds if bound is not None]

    def bound(among: np.ndarray) -> np.ndarray:
        for each in known:
            if among.any():
                among = each(among)
        return among

    return bound if known else None


def _any(bounds: list[_Bound | None]) -> _Bound | None:
    known = [bound for bound in bounds if bound is not None]

    def bound(among: np.ndarray) -> np.ndarray:
        kept = np.zeros_like(among)
        for each in known:
            kept |= each(among & ~kept)
        return kept

    return bound if len(known) == len(bounds) else None

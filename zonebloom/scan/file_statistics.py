"""Leave out rows by the statistics in the files, where no index answers a filter."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_, or_
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.index.zone_map.bounds import ordered_values
from zonebloom.index.zone_map.zone_bounds import ZoneBounds
from zonebloom.parquet.page_statistics import PageBounds
from zonebloom.predicates.ast import (
    Compares,
    Equals,
    IsIn,
    IsNull,
    LeafPredicate,
    Predicate,
    Unknown,
    fold_predicate,
)
from zonebloom.values.literal import Unanswerable
from zonebloom.values.normal_types import decoded_type, normalized_type
from zonebloom.values.types import family

# The rows of a file for which a condition may be true, and those for which it may be false. None
# stands for all rows.
_RowsPair: TypeAlias = tuple[RowRanges | None, RowRanges | None]
# A function that returns the bounds of the pages of a column by its name.
BoundsOf: TypeAlias = Callable[[str], PageBounds | None]


def rows_where_true(
    predicate: Predicate, schema: pa.Schema, bounds_of: BoundsOf
) -> RowRanges | None:
    """Return the rows of a file for which a predicate may be true, or None for all rows."""

    def leaf(node: LeafPredicate) -> _RowsPair:
        if isinstance(node, Unknown):
            required = node.requires
            return (
                None if required is None else rows_where_true(required, schema, bounds_of),
                None,
            )
        if not isinstance(node, Equals | IsIn | Compares | IsNull) or len(node.column) != 1:
            return None, None
        return _rows_of_leaf(node, schema, bounds_of)

    return fold_predicate(
        predicate,
        leaf,
        lambda pairs: (_intersect([t for t, _ in pairs]), _unite([f for _, f in pairs])),
        lambda pairs: (_unite([t for t, _ in pairs]), _intersect([f for _, f in pairs])),
        lambda pair: (pair[1], pair[0]),
    )[0]


def _rows_of_leaf(
    node: Equals | IsIn | Compares | IsNull, schema: pa.Schema, bounds_of: BoundsOf
) -> _RowsPair:
    (name,) = node.column
    if name not in schema.names:
        return None, None
    pages = bounds_of(name)
    column_type = decoded_type(schema.field(name).type)
    # The order of the values may change if they are cast to the type of the dataset.
    if pages is None or normalized_type(pages.least.type) != normalized_type(column_type):
        return None, None
    zones = _zone_bounds(pages)
    try:
        where_true = _rows(pages, zones.zones_where_true(column_type, node))
        # Statistics do not count NaN, for which the negation of a comparison is true.
        if isinstance(node, IsIn) or (
            family(column_type) == "float" and node != IsNull(node.column)
        ):
            return where_true, None
        return where_true, _rows(pages, zones.zones_where_false(column_type, node))
    except Unanswerable:
        return None, None


def _zone_bounds(pages: PageBounds) -> ZoneBounds:
    lengths = np.diff(pages.first_rows)
    is_known = pages.null_counts >= 0
    return ZoneBounds(
        ordered_values(pages.least),
        ordered_values(pages.greatest),
        null_count=np.where(is_known, pages.null_counts, 0).astype(np.uint64),
        nan_count=np.zeros(lengths.size, np.uint64),
        lengths=lengths.astype(np.uint64),
        has_null=pages.null_counts != 0,
    )


def _rows(pages: PageBounds, numbers: np.ndarray) -> RowRanges:
    return RowRanges.from_arrays(pages.first_rows[numbers], pages.first_rows[numbers + 1])


def _intersect(parts: list[RowRanges | None]) -> RowRanges | None:
    known = [part for part in parts if part is not None]
    return reduce(and_, known) if known else None


def _unite(parts: list[RowRanges | None]) -> RowRanges | None:
    known = [part for part in parts if part is not None]
    return reduce(or_, known, RowRanges()) if len(known) == len(parts) else None

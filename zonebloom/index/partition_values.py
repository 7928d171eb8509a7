"""Answer conditions on partition columns, whose values are in the paths (``year=2024/...``).

All rows of a fragment have the same value, so a fragment is a zone between equal bounds. The answer
is exact, whether the fragment is indexed or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, OFFSET_BITS, RowRanges
from zonebloom.index.zone_map.bounds import ZoneBounds, ZoneMapLeaf
from zonebloom.values.literal import Unanswerable
from zonebloom.values.normal_types import decoded_type


class PartitionValues:
    """The values of the partition columns of fragments."""

    def __init__(
        self,
        schema: pa.Schema,
        columns: set[str],
        fragments: Sequence[tuple[int, Mapping[str, Any]]],
    ):
        self.columns = columns
        ids = np.array([fragment_id for fragment_id, _ in fragments], dtype=np.int64)
        self._starts = ids << OFFSET_BITS
        self._types = {name: decoded_type(schema.field(name).type) for name in columns}
        self._bounds: dict[str, ZoneBounds] = {}
        self._is_unknown: dict[str, np.ndarray] = {}
        for name in columns:
            values_of_column = [values.get(name) for _, values in fragments]
            try:
                array = pa.array(values_of_column, self._types[name])
                self._bounds[name] = ZoneBounds.of_values(array)
            except (pa.ArrowException, TypeError, ValueError):
                # The values in the paths do not fit the column's type in the dataset's schema.
                continue
            self._is_unknown[name] = np.array([name not in values for _, values in fragments], bool)

    def has_null(self, column: str) -> bool:
        """Return whether a column is null in some fragment, or is unknown."""
        return column not in self._bounds or bool(self._bounds[column].has_null.any())

    def rows(self, predicate: ZoneMapLeaf) -> tuple[RowRanges, RowRanges] | None:
        """Return the row addresses where a condition may be true, and where it certainly is.

        Return None if the values cannot be compared.
        """
        name = predicate.column[0]
        if len(predicate.column) > 1 or name not in self._bounds:
            return None
        type_, is_unknown = self._types[name], self._is_unknown[name]
        may_match = np.zeros(is_unknown.size, dtype=bool)
        try:
            may_match[self._bounds[name].zones_where_true(type_, predicate)] = True
        except (pa.ArrowException, Unanswerable):
            return None
        # Some engines round floats, and they differ on zeros, so no float is certain to match.
        is_certain = may_match & ~is_unknown & (not pa.types.is_floating(type_))
        return self._all_rows_of(may_match | is_unknown), self._all_rows_of(is_certain)

    def _all_rows_of(self, is_selected: np.ndarray) -> RowRanges:
        starts = self._starts[is_selected]
        return RowRanges.from_arrays(starts, starts + MAX_ROWS_PER_FRAGMENT)

"""Answer conditions on partition columns, whose values are in the paths (``year=2024/...``).

All rows of a fragment have the same value, so the answer is exact, whether the fragment is indexed
or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, OFFSET_BITS, RowRanges
from zonebloom.predicates.ast import Compares, Equals, IsIn, IsNull
from zonebloom.values.normal_types import decoded_type

# PyArrow creates its compute functions at import, so type checkers do not know them.
_functions: Any = pc
_COMPARE_FUNCTIONS = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


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
        self._values: dict[str, pa.Array] = {}
        self._is_unknown: dict[str, np.ndarray] = {}
        for name in columns:
            values_of_column = [values.get(name) for _, values in fragments]
            try:
                self._values[name] = pa.array(
                    values_of_column, decoded_type(schema.field(name).type)
                )
            except (pa.ArrowException, TypeError, ValueError):
                # The values in the paths do not fit the column's type in the dataset's schema.
                continue
            self._is_unknown[name] = np.array([name not in values for _, values in fragments], bool)

    def has_null(self, column: str) -> bool:
        """Return whether a column is null in some fragment, or is unknown."""
        return column not in self._values or bool(self._values[column].null_count)

    def rows(
        self, predicate: Equals | IsIn | Compares | IsNull
    ) -> tuple[RowRanges, RowRanges] | None:
        """Return the row addresses where a condition may be true, and where it certainly is.

        Return None if the values cannot be compared.
        """
        name = predicate.column[0]
        if len(predicate.column) > 1 or name not in self._values:
            return None
        try:
            mask = _evaluate(self._values[name], predicate)
        except (pa.ArrowException, ValueError, OverflowError):
            return None
        may_match = np.asarray(mask.fill_null(False)).astype(bool)
        is_unknown = self._is_unknown[name]
        # Engines differ on zeros and NaN in a set, so no float is certain to be in it.
        is_uncertain = isinstance(predicate, IsIn) and pa.types.is_floating(self._values[name].type)
        is_certain = np.zeros_like(may_match) if is_uncertain else may_match & ~is_unknown
        return self._all_rows_of(may_match | is_unknown), self._all_rows_of(is_certain)

    def _all_rows_of(self, is_selected: np.ndarray) -> RowRanges:
        starts = self._starts[is_selected]
        return RowRanges.from_arrays(starts, starts + MAX_ROWS_PER_FRAGMENT)


def _evaluate(values: pa.Array, predicate: Equals | IsIn | Compares | IsNull) -> pa.Array:
    match predicate:
        case Equals(_, value):
            return _functions.equal(values, value)
        case Compares(_, operator, value):
            return _functions.call_function(_COMPARE_FUNCTIONS[operator], [values, value])
        case IsNull():
            return _functions.is_null(values)
        case IsIn(_, wanted, null_matches):
            # is_in would cast the set with loss, so cast here without loss, or fail.
            left, right = _cast_to_one_type(values, wanted)
            if pa.types.is_floating(left.type):
                # is_in compares bits, but the zeros are equal. Adding 0.0 turns -0.0 into 0.0.
                left, right = _functions.add(left, 0.0), _functions.add(right, 0.0)
            mask = _functions.is_in(left, right.cast(left.type))
            return _functions.or_(mask, _functions.is_null(values)) if null_matches else mask


def _cast_to_one_type(values: pa.Array, wanted: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return both arrays in one of their types. Raise `ValueError` if a cast changes a value."""
    for left, right in ((values, wanted), (wanted, values)):
        try:
            cast = left.cast(right.type)
            # A checked cast still rounds floating point numbers.
            is_lossless = cast.cast(left.type).equals(left)
        except pa.ArrowException:
            continue
        if is_lossless:
            return (cast, right) if left is values else (right, cast)
    raise ValueError(f"{values.type} and {wanted.type} have no type in common")

"""Evaluate SQL conditions that PyArrow's expressions cannot write.

PyArrow has no expression that searches a list, or that counts from its end. Such a part is computed
from whole columns, and becomes a column with a name that the expression of the filter refers to:

    id = 42 AND list_contains(tags, 'x')
    derived column   "list_contains(tags, 'x')"    from tags
    expression       id == 42 and field("list_contains(tags, 'x')")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import empty_table
from zonebloom.predicates.arrow_form import expression_text, referenced_columns
from zonebloom.predicates.evaluate import evaluate, row_value_error
from zonebloom.values.normal_types import without_views

_functions: Any = pc


@dataclass(frozen=True, slots=True, eq=False)
class DerivedColumn:
    """A column that a function computes from the values of an expression."""

    name: str
    source: pc.Expression
    compute: Callable[[Any], pa.Array]


@dataclass(frozen=True, slots=True, eq=False)
class SqlRowFilter:
    """A row filter of SQL: an expression over the columns of a table and derived columns.

    A derived column may be computed from those before it.
    """

    expression: pc.Expression
    derived_columns: tuple[DerivedColumn, ...]

    @property
    def columns(self) -> frozenset[str] | None:
        """The top-level columns that the filter reads, or None if they are not known."""
        expressions = [self.expression, *(column.source for column in self.derived_columns)]
        sets = [referenced_columns(expression) for expression in expressions]
        known_sets = [names for names in sets if names is not None]
        if len(known_sets) < len(sets):
            return None
        derived_names = {column.name for column in self.derived_columns}
        return frozenset().union(*known_sets) - derived_names

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Return the numbers of the rows that match, int64 and ascending."""
        try:
            for column in self.derived_columns:
                combined = _values_of(column.source, table).combine_chunks()
                if isinstance(combined, pa.ChunkedArray):
                    combined = pa.concat_arrays(combined.chunks)
                table = table.append_column(column.name, column.compute(combined))
            mask = _values_of(self.expression, table)
        except pa.ArrowException as error:
            raise row_value_error(str(self), self.expression, table.schema, error) from None
        # A null condition does not match.
        return np.flatnonzero(mask.fill_null(False).to_numpy())

    def check(self, schema: pa.Schema) -> None:
        """Raise `FilterError` if the filter fails on every table."""
        self.matching_rows(empty_table(schema))

    def is_same(self, other: SqlRowFilter) -> bool:
        """Return whether both filters keep the same rows. Return False if that is not known."""
        names, other_names = (
            [column.name for column in row_filter.derived_columns] for row_filter in (self, other)
        )
        expression: Any = self.expression
        return names == other_names and expression.equals(other.expression)

    def __and__(self, other: pc.Expression | SqlRowFilter) -> SqlRowFilter:
        if isinstance(other, pc.Expression):
            return SqlRowFilter(self.expression & other, self.derived_columns)
        # Derived columns with the same name are the same, because their name is their SQL, and the
        # time if the SQL contains it.
        columns = {column.name: column for column in self.derived_columns + other.derived_columns}
        return SqlRowFilter(self.expression & other.expression, tuple(columns.values()))

    __rand__ = __and__

    def __str__(self) -> str:
        return expression_text(self.expression)


def _values_of(expression: pc.Expression, table: pa.Table) -> pa.ChunkedArray:
    """Return the values of an expression. A column of the table is returned as it is."""
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if expression.equals(pc.field(name)) and without_views(kind) is kind:
            return table.column(name)
    return evaluate(table, [expression], ["values"]).column(0)


def lists_with_match(lists: Any, condition: pc.Expression, item_name: str) -> pa.Array:
    """Return which lists have an element for which a condition is true. Null lists give null."""
    items = pa.table({item_name: _functions.list_flatten(lists)})
    is_match = evaluate(items, [condition], ["match"]).column(0).fill_null(False)
    numbers = _functions.list_parent_indices(lists).to_numpy()
    has_match = np.zeros(len(lists), bool)
    has_match[numbers[is_match.to_numpy()]] = True
    return pa.array(has_match, mask=lists.is_null().to_numpy(zero_copy_only=False))


def fields_of_elements(lists: Any, names: Sequence[str]) -> pa.Array:
    """Return for each list of structs the list of a field of the structs."""
    values = lists.values
    for name in names:
        values = _functions.struct_field(values, [name])
    offsets = pa.array(lists.offsets.to_numpy(), lists.offsets.type)
    mask = pa.array(lists.is_null().to_numpy(zero_copy_only=False))
    taken = type(lists).from_arrays(offsets, values, mask=mask)
    return taken.cast(pa.list_(values.type))


def elements_from_end(lists: Any, number: int) -> pa.Array:
    """Return the elements with a number from the end, 1 for the last. Null if there is none."""
    if pt.is_fixed_size_list(lists.type):
        lists = lists.cast(pa.list_(lists.type.value_type))
    offsets = lists.offsets.to_numpy().astype(np.int64)
    # No list is so long, and larger numbers do not fit int64.
    positions = offsets[1:] - min(number, 1 << 62)
    is_missing = positions < offsets[:-1]
    is_missing |= lists.is_null().to_numpy(zero_copy_only=False)
    return lists.values.take(pa.array(np.where(is_missing, 0, positions), mask=is_missing))

"""Conditions on one column under Spark's semantics, for whoever reads them: SQL or pushed filters.

What Spark compares otherwise than by exact value is `Maybe`; NaN is above every number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.predicates import ast, literals
from zonebloom.predicates.spark_values import Maybe, Value, place
from zonebloom.values.columns import find_leaf, leaf_type


class Comparer:
    """Columns compared with literals as Spark does."""

    def __init__(self, schema: pa.Schema, opaque: frozenset[str], timezone: str | None):
        self.schema = schema
        self._opaque = opaque
        self._timezone = timezone

    def path(self, names: Sequence[str]) -> ast.ColumnPath:
        """The column, or leaf of structs, that names mean, whatever their case."""
        path = find_leaf(self.schema, names)
        if path is None:
            raise Maybe(f"there is no one column {ast.column_text(tuple(names))}")
        if path[0] in self._opaque:
            raise Maybe(f"how Spark compares {path[0]} is not followed")
        return path

    def type_of(self, path: ast.ColumnPath) -> pa.DataType:
        """The type of a column's values."""
        found = leaf_type(self.schema, path)
        assert found is not None
        return literals.plain(found)

    def equal(self, path: ast.ColumnPath, value: Value | None) -> ast.Predicate:
        if value is None:
            return ast.Constant(None)
        placed = place(value, self.type_of(path), self._timezone)
        if not placed.exact or placed.scalar is None:
            return self._never(path)
        return ast.Equals(path, placed.scalar)

    def compare(self, path: ast.ColumnPath, operator: Any, value: Value | None) -> ast.Predicate:
        if value is None:
            return ast.Constant(None)
        type_ = self.type_of(path)
        if pt.is_boolean(type_):
            raise Maybe("the order of truth values is not followed")
        placed = place(value, type_, self._timezone)
        below = operator in ("<", "<=")
        if placed.scalar is None:
            never = self._never(path)
            return negated(never) if below == (placed.beyond > 0) else never
        if not placed.exact:
            operator = "<=" if below else ">"
        if pt.is_floating(type_) and not below:
            # NaN is above every number, and for Arrow below none.
            return ast.Not(ast.Compares(path, "<=" if operator == ">" else "<", placed.scalar))
        return ast.Compares(path, operator, placed.scalar)

    def is_in(self, path: ast.ColumnPath, values: Sequence[Value | None]) -> ast.Predicate:
        type_ = self.type_of(path)
        given = [value for value in values if value is not None]
        # The items are brought to one type with the column, and may be rounded together.
        kinds = {value.kind for value in given}
        if len(kinds) > 1 and not (kinds <= {"integer", "decimal"}):
            raise Maybe("values of several kinds are cast to one")
        if "text" in kinds and not literals.is_text(type_):
            raise Maybe("the column may be cast to text")
        if kinds & {"integer", "decimal"} and not pt.is_floating(type_):
            whole = max(value.whole for value in given)
            scale = max(value.scale for value in given)
            given = [value.widened(whole, scale) for value in given]
        placed = [place(value, type_, self._timezone) for value in given]
        scalars = [each.scalar for each in placed if each.exact and each.scalar is not None]
        target = scalars[0].type if scalars else pa.int8()
        found = ast.IsIn(path, pa.array(scalars, target)) if scalars else self._never(path)
        if len(given) < len(values):
            return ast.Or((found, ast.Constant(None)))
        return found

    def _never(self, path: ast.ColumnPath) -> ast.Predicate:
        """False where the column holds a value, null where it does not."""
        return ast.IsIn(path, pa.array([], literals.plain(self.type_of(path))))


def negated(predicate: ast.Predicate) -> ast.Predicate:
    """What is true where a condition is false."""
    return predicate.term if isinstance(predicate, ast.Not) else ast.Not(predicate)

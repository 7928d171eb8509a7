"""Evaluate PyArrow expressions on tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from zonebloom.errors import FilterError
from zonebloom.predicates.arrow_form import (
    columns_cast_to_integers,
    expression_text,
    referenced_columns,
)
from zonebloom.predicates.ast import shorten
from zonebloom.values.columns import find_leaf_type
from zonebloom.values.normal_types import without_views

if TYPE_CHECKING:
    import pyarrow.compute as pc


def evaluate(
    table: pa.Table, expressions: Sequence[pc.Expression], names: Sequence[str]
) -> pa.Table:
    """Return a table of the values of some expressions. Its columns have no views."""
    from pyarrow import acero

    if has_views(table.schema):
        table = cast_table(table, schema_without_views(table.schema))
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    options = acero.ProjectNodeOptions(list(expressions), list(names))
    projected = acero.Declaration("project", options)
    # Use one thread, which keeps the order of the rows and is fastest for few rows.
    return acero.Declaration.from_sequence([source, projected]).to_table(use_threads=False)


@dataclass(frozen=True, slots=True, eq=False)
class ExpressionFilter:
    """An expression that is evaluated on rows only, and never on statistics of row groups."""

    expression: pc.Expression

    @property
    def columns(self) -> frozenset[str] | None:
        """The top-level columns that the filter reads, or None if they are not known."""
        return referenced_columns(self.expression)

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Return the numbers of the rows that match, int64 and ascending."""
        return rows_where_true(table, self.expression)

    def __str__(self) -> str:
        return expression_text(self.expression)


def rows_where_true(table: pa.Table, expression: pc.Expression) -> np.ndarray:
    """Return the numbers of the rows for which a condition is true, ascending."""
    try:
        mask = evaluate(table, [expression], ["mask"]).column(0)
    except pa.ArrowException as error:
        # A filter that always fails was refused before the scan, so a value of some row caused
        # this.
        text = shorten(expression_text(expression))
        raise row_value_error(text, expression, table.schema, error) from None
    # A null condition does not match.
    return np.flatnonzero((mask.fill_null(False) if mask.null_count else mask).to_numpy())


def row_value_error(
    text: str, expression: pc.Expression, schema: pa.Schema, error: Exception
) -> FilterError:
    """Return the error for a filter that fails on values of the rows."""
    types = [find_leaf_type(schema, path) for path in columns_cast_to_integers(expression)]
    advice = "correct it, or read without it and filter the table"
    if any(type_ is not None and pa.types.is_floating(type_) for type_ in types):
        advice = (
            "write round(x)::INT, in PyArrow pc.round(x).cast(...), to cast floats with fractions"
        )
    return FilterError(f"the filter {text} fails on values of the rows: {error}; {advice}")


def has_views(schema: pa.Schema) -> bool:
    """Return whether a column has a view type, which Arrow cannot filter."""
    return any(without_views(type_) is not type_ for type_ in schema.types)


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """Return the schema with view types replaced by types that Arrow can filter and gather."""
    fields = [field.with_type(without_views(field.type)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast each column to its type in a schema.

    `pa.Table.cast` refuses nulls in a field that is not nullable. A file without the column
    gives such nulls, although the schema of another file says that there are none.
    """
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)

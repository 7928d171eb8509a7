"""Evaluate PyArrow expressions on tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

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

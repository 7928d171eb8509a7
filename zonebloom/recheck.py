"""The user's whole filter and projection, applied by Arrow's own engine to the rows read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc


def recheck(
    table: pa.Table,
    filter: pc.Expression | None,
    columns: Sequence[str] | Mapping[str, pc.Expression] | None,
) -> pa.Table:
    """Keep the rows a filter is true for, and of them the columns asked for.

    Parameters
    ----------
    table : pyarrow.Table
        Every column filter and projection name.
    filter : pyarrow.compute.Expression, optional
    columns : list of str, or dict of name to Expression, optional
        All of the table's by default.

    Returns
    -------
    pyarrow.Table
        In the rows' own order.
    """
    from pyarrow import acero

    schema = table.schema
    if holds_views(schema):
        table = table.cast(_without_views(schema))
    steps = [acero.Declaration("table_source", acero.TableSourceNodeOptions(table))]
    if filter is not None:
        steps.append(acero.Declaration("filter", acero.FilterNodeOptions(filter)))
    if isinstance(columns, Mapping):
        names, expressions = list(columns), list(columns.values())
    else:
        names = schema.names if columns is None else list(columns)
        expressions = [pc.field(name) for name in names]
    if not names:
        # A projection to nothing would lose the number of rows.
        kept = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
        return kept.select([])
    steps.append(acero.Declaration("project", acero.ProjectNodeOptions(expressions, names)))
    # One thread: for few rows that is quickest, and it keeps their order.
    kept = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
    if holds_views(schema) and not isinstance(columns, Mapping):
        kept = kept.cast(pa.schema([schema.field(name) for name in names]))
    return kept


def holds_views(schema: pa.Schema) -> bool:
    """Whether a column is of a view type: Arrow has no kernel that filters those."""
    return any(_is_view(each.type) for each in schema)


def _is_view(arrow_type: pa.DataType) -> bool:
    return pa.types.is_string_view(arrow_type) or pa.types.is_binary_view(arrow_type)


def _without_views(schema: pa.Schema) -> pa.Schema:
    wide = []
    for each in schema:
        if pa.types.is_string_view(each.type):
            each = each.with_type(pa.large_string())
        elif pa.types.is_binary_view(each.type):
            each = each.with_type(pa.large_binary())
        wide.append(each)
    return pa.schema(wide, metadata=schema.metadata)

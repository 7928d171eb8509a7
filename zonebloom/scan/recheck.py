"""Apply the user's whole filter and projection to the rows that were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import copied_slices, empty_table, to_numpy
from zonebloom.errors import FilterError, InvalidArgument
from zonebloom.predicates import (
    And,
    Constant,
    Equals,
    IsIn,
    IsNull,
    Not,
    Predicate,
    RowFilter,
    Unknown,
    row_filter_columns,
)
from zonebloom.predicates.arrow_form import expression_text
from zonebloom.predicates.ast import LeafPredicate, bound_by_leaves, replace_leaves
from zonebloom.predicates.duckdb_engine import DuckDBExpression, evaluate_by_duckdb
from zonebloom.predicates.expression import (
    cast_table,
    evaluate,
    expression_from_predicate,
    has_views,
    rows_where_true,
    schema_without_views,
)
from zonebloom.predicates.polars import PolarsFilter
from zonebloom.values.normal_types import with_64_bit_offsets

# Types, besides integers, that PyArrow compares without a cast. It has no kernels for some others.
_COMPARABLE_TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())

Columns: TypeAlias = "Sequence[str] | Mapping[str, str | pc.Expression] | None"
# A projection that was checked.
Projection: TypeAlias = "list[str] | dict[str, pc.Expression | DuckDBExpression] | None"

# With more runs of consecutive rows than this, a gather is faster than slices.
_MAX_COPIED_RUNS = 32
_MAX_TEXT = 200
# Lookups of more keys have a hash table of them, which PyArrow would build for each batch.
_MAX_LISTED_VALUES = 1 << 12


def recheck(
    table: pa.Table,
    filter: RowFilter | None,
    columns: Projection,
    bound: Predicate | None = None,
) -> pa.Table:
    """Return the rows for which a filter is true, in order, with the columns of a projection."""
    if filter is not None:
        table = select_rows(table, matching_rows(table, filter, bound))
    return project(table, columns)


def matching_rows(table: pa.Table, filter: RowFilter, bound: Predicate | None = None) -> np.ndarray:
    """Return the numbers of the rows for which a filter is true.

    ``bound`` is the predicate of the filter. ``a = 5 AND b + a > 1`` may overflow in rows that
    ``a = 5`` excludes. An index excludes them before they are read, so they never make a filter
    fail.
    """
    try:
        return _rows_where_true(table, filter)
    except FilterError:
        if bound is None or (rows := _rows_in_bound(table, bound)).size == table.num_rows:
            raise
    return rows[_rows_where_true(select_rows(table, rows), filter)]


def _rows_in_bound(table: pa.Table, bound: Predicate) -> np.ndarray:
    """Return the numbers of rows that the plain conditions of a filter leave."""

    def bounds(leaf: LeafPredicate) -> tuple[Predicate, Predicate]:
        if isinstance(leaf, Constant):
            return leaf, leaf
        if not is_plain(leaf):
            return Constant(True), Constant(False)
        if isinstance(leaf, IsIn):
            # For null, PyArrow's is_in is false, so its negation is true.
            return leaf, And((leaf, Not(IsNull(leaf.column))))
        return leaf, leaf

    def is_plain(leaf: LeafPredicate) -> bool:
        """Return whether a leaf can be evaluated, and never fails."""
        if isinstance(leaf, Unknown):
            # An index may answer a condition of texts or elements.
            return leaf.requires is not None and leaf.expression is not None
        try:
            expression_from_predicate(leaf, table.schema)
        except FilterError:
            return False
        return True

    plain = expression_from_predicate(bound_by_leaves(bound, bounds), table.schema)
    return _rows_where_true(table, plain)


def _rows_where_true(table: pa.Table, filter: RowFilter) -> np.ndarray:
    names = row_filter_columns(filter)
    if names is not None and len(names) < table.num_columns:
        # An engine takes time for each column. Keep one at least, for the number of rows.
        schema = table.schema
        numbers = {schema.get_field_index(name) for name in names} - {-1}
        table = table.select(sorted(numbers) or [0])
    if not isinstance(filter, pc.Expression):
        return filter.matching_rows(table)
    return rows_where_true(table, filter)


def is_key_test(filter: RowFilter | None, predicate: Predicate, schema: pa.Schema) -> bool:
    """Return whether a filter only tests whether a column equals one key or one of several.

    Then the predicate alone decides which rows match, so the filter need not be evaluated. PyArrow
    and Polars would also hash a list of keys again for each batch that they filter.
    """
    if not isinstance(predicate, Equals | IsIn):
        return False
    name, *nested_path = predicate.column
    is_one = isinstance(predicate, Equals)
    keys = predicate.value if isinstance(predicate, Equals) else predicate.values
    if nested_path or (isinstance(predicate, IsIn) and predicate.null_matches):
        return False
    kind = schema.field(name).type
    if kind not in _COMPARABLE_TYPES and not pa.types.is_integer(kind):
        return False
    # Texts of both sizes are equal if their bytes are.
    if keys.type != kind and with_64_bit_offsets(keys.type) != with_64_bit_offsets(kind):
        return False
    if isinstance(filter, PolarsFilter):
        # Polars does not round such values, so the predicate is true for the same rows.
        return True
    if not isinstance(filter, pc.Expression):
        return False
    column = pc.field(name)
    is_key: Any = column == keys if is_one else column.isin(keys)
    if is_key.equals(filter):
        return True
    if is_one:
        return False
    # DuckDB writes the IN of SQL in this form.
    null: Any = pa.scalar(None, pa.bool_())
    if_else: Any = pc.if_else  # pyright: ignore[reportAttributeAccessIssue]
    return if_else(column.is_valid(), is_key, null).equals(filter)


def narrow_predicate(predicate: Predicate, narrow_lists: Sequence[tuple[IsIn, IsIn]]) -> Predicate:
    """Return a predicate without keys of long lists that no row of a snapshot holds.

    It is true for the same rows, unless a file changes after the snapshot. ``narrow_lists`` are
    long lists in the predicate, and the same without such keys.
    """
    lists = {id(leaf): narrow for leaf, narrow in narrow_lists}
    return replace_leaves(predicate, lambda leaf: lists.get(id(leaf), leaf)) if lists else predicate


def narrow_filter(
    filter: RowFilter | None, narrow_lists: Sequence[tuple[IsIn, IsIn]], schema: pa.Schema
) -> RowFilter | None:
    """Return a filter without the keys that `narrow_predicate` leaves out, or None if unknown."""
    if isinstance(filter, PolarsFilter):
        return filter.with_lists(narrow_lists, schema)
    return None


def rows_matching_predicate(table: pa.Table, predicate: Equals | IsIn) -> np.ndarray | None:
    """Return the row numbers that satisfy a predicate, or None if the filter has to tell.

    This avoids PyArrow's expression engine: it imports pandas, which takes longer than a lookup.
    """
    wanted = predicate.value if isinstance(predicate, Equals) else predicate.values
    name, *nested_path = predicate.column
    column = table.column(name)
    if nested_path or column.type != wanted.type:
        return None
    if not pa.types.is_integer(column.type) and column.type not in _COMPARABLE_TYPES:
        return None
    if isinstance(predicate, Equals):
        if pa.types.is_integer(column.type) and not column.null_count:
            return np.flatnonzero(to_numpy(column) == wanted.as_py())
        mask = pc.call_function("equal", [column, wanted])
    elif predicate.null_matches or len(predicate.values) > _MAX_LISTED_VALUES:
        return None
    else:
        mask = pc.call_function("is_in", [column], pc.SetLookupOptions(wanted))
    # A null comparison result does not match.
    return to_numpy(pc.call_function("indices_nonzero", [mask])).astype(np.int64)


def project(table: pa.Table, columns: Projection) -> pa.Table:
    if columns is None:
        return table
    if isinstance(columns, dict):
        return _computed_columns(table, columns)
    return table.select(columns)


def _computed_columns(
    table: pa.Table, columns: Mapping[str, pc.Expression | DuckDBExpression]
) -> pa.Table:
    arrow = {name: value for name, value in columns.items() if isinstance(value, pc.Expression)}
    others = {name: value for name, value in columns.items() if isinstance(value, DuckDBExpression)}
    try:
        computed = evaluate(table, list(arrow.values()), list(arrow))
        if not others:
            return computed
        arrays = dict(
            zip(others, evaluate_by_duckdb([*others.values()], table).columns, strict=True)
        )
    except (pa.ArrowException, FilterError) as error:
        raise InvalidArgument(
            f"the columns {', '.join(columns)} cannot be computed from values of the rows: "
            f"{error}; correct the expressions, or compute from the table"
        ) from None
    arrays.update(zip(arrow, computed.columns, strict=True))
    return pa.table({name: arrays[name] for name in columns})


def select_rows(table: pa.Table, rows: np.ndarray) -> pa.Table:
    if rows.size == table.num_rows:
        return table
    if rows.size == 0:
        return empty_table(table.schema)
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    if cuts.size >= _MAX_COPIED_RUNS:
        return gather(table, rows)
    runs = np.split(rows, cuts)
    return copied_slices(pa.concat_tables([table.slice(int(run[0]), run.size) for run in runs]))


def gather(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return rows of a table by number, in any order and with repetitions."""
    schema = table.schema
    if not schema.names:
        # `take` on a table without columns loses the number of rows.
        rows_only = pa.array([{}] * rows.size, pa.struct([]))
        return pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows_only)], schema)
    if has_views(schema):
        return cast_table(
            cast_table(table, schema_without_views(schema)).take(pa.array(rows)), schema
        )
    return table.take(pa.array(rows))


def filter_text(filter: RowFilter) -> str:
    """Return a filter as text for messages, shortened if it is long."""
    text = expression_text(filter) if isinstance(filter, pc.Expression) else str(filter)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."

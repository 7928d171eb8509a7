"""Let DuckDB evaluate SQL on rows that were read: conditions that are no plain comparisons.

    id = 42 AND upper(name) = 'X'
    plain      id == 42                 PyArrow evaluates it first
    terms      upper("name") = 'X'      DuckDB evaluates it on the remaining rows

A text of a user must not read files, settings or variables, and its result must depend on the row
alone. So connections have no access to anything outside, texts have no queries, and call only
functions of `function_names`.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import empty_table
from zonebloom.errors import FilterError, MissingDependency
from zonebloom.predicates.arrow_form import referenced_columns
from zonebloom.predicates.ast import shorten
from zonebloom.predicates.expression import (
    cast_table,
    has_views,
    rows_where_true,
    schema_without_views,
)
from zonebloom.values.columns import find_leaf_type
from zonebloom.values.normal_types import decoded_type

_CONFIG = {
    **dict.fromkeys(("autoinstall_known_extensions", "autoload_known_extensions"), "false"),
    **{"enable_external_access": "false", "threads": 1},
}
# In interactive Python, DuckDB prints a progress bar by default.
# The optimizer of DuckDB 2.0.1 makes date_trunc('hour', day) = DATE '2020-02-29' always false.
_SETTINGS = """
SET TimeZone = 'UTC'; SET python_enable_replacements = false; PRAGMA disable_optimizer;
SET enable_progress_bar = false; SET lock_configuration = true
"""
# DuckDB's parser knows these, so its list of functions lacks them.
_SPECIAL_FUNCTIONS = frozenset(["coalesce", "if", "ifnull"])
_SAFE_MACROS = ("list_", "array_", "map_contains_", "nullif", "split_part", "days_in_month", "fdiv")
# Functions that depend on the session, or are there for tests.
_REFUSED_PREFIXES = ("current_", "in_search_path", "txid_", "vector_type", "stats", "error", "get_")
# A short text would make these take all memory.
_REFUSED_FUNCTIONS = (
    *("version", "getvariable", "repeat", "lpad", "rpad", "bar", "format", "printf", "range"),
    *("generate_series", "list_resize", "array_resize"),
)
_local = threading.local()


@dataclass(frozen=True, slots=True)
class DuckDBExpression:
    """A SQL expression for DuckDB, and the columns that it reads.

    ``names`` are pairs of a top-level column and its name in the expression.
    """

    sql: str
    names: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(column for column, _ in self.names)


def result_types(expressions: Sequence[DuckDBExpression], schema: pa.Schema) -> list[pa.DataType]:
    """Return the types of some expressions. Raise `FilterError` if DuckDB refuses one."""
    try:
        return evaluate_by_duckdb(expressions, empty_table(schema)).schema.types
    except FilterError as error:
        text = shorten(" AND ".join(expression.sql for expression in expressions))
        raise FilterError(
            f"cannot read the filter: DuckDB refuses {text}: {error}; correct it, or write that "
            "part as a pyarrow.compute expression"
        ) from None


def join_by_and(expressions: Sequence[DuckDBExpression]) -> DuckDBExpression:
    names = {pair for expression in expressions for pair in expression.names}
    sql = " AND ".join(f"({expression.sql})" for expression in expressions)
    return DuckDBExpression(sql, tuple(sorted(names)))


@dataclass(frozen=True, slots=True, eq=False)
class DuckDBFilter:
    """A row filter that DuckDB evaluates where ``plain``, an expression of PyArrow, is true.

    A row matches if all terms are true. If a term fails on values of a row, the terms are evaluated
    one after the other.
    """

    text: str
    plain: pc.Expression | None
    terms: tuple[DuckDBExpression, ...]

    @property
    def columns(self) -> frozenset[str] | None:
        """The top-level columns that the filter reads, or None if they are not known."""
        names = frozenset() if self.plain is None else referenced_columns(self.plain)
        return None if names is None else names.union(*(term.columns for term in self.terms))

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Return the numbers of the rows that match, int64 and ascending."""
        rows = np.arange(table.num_rows)
        if self.plain is not None:
            rows = rows_where_true(table, self.plain)
        try:
            return _narrow(table, rows, self.terms)
        except FilterError as error:
            if len(self.terms) == 1:
                raise self._row_error(error) from None
        try:
            for term in self.terms:
                rows = _narrow(table, rows, [term])
        except FilterError as error:
            raise self._row_error(error) from None
        return rows

    def _row_error(self, error: FilterError) -> FilterError:
        return FilterError(
            f"the filter {shorten(self.text)} fails on values of the rows: {error}; correct it, "
            "write TRY_CAST instead of CAST, or read without it and filter the table"
        )

    def is_same(self, other: DuckDBFilter) -> bool:
        """Return whether both filters keep the same rows. Return False if that is not known."""
        if self.plain is None or other.plain is None:
            return self.plain is other.plain and self.terms == other.terms
        plain: Any = self.plain
        return self.terms == other.terms and plain.equals(other.plain)

    def __and__(self, other: pc.Expression | DuckDBFilter) -> DuckDBFilter:
        terms, text, plain = self.terms, self.text, [self.plain]
        if isinstance(other, DuckDBFilter):
            terms, text = terms + other.terms, f"({text}) AND ({other.text})"
            plain.append(other.plain)
        else:
            plain.append(other)
        expressions = [expression for expression in plain if expression is not None]
        return DuckDBFilter(text, reduce(and_, expressions) if expressions else None, terms)

    __rand__ = __and__

    def __str__(self) -> str:
        return self.text


def _narrow(table: pa.Table, rows: np.ndarray, terms: Sequence[DuckDBExpression]) -> np.ndarray:
    """Return those of some rows of a table for which all terms are true."""
    if rows.size == 0:
        return rows
    if rows.size < table.num_rows:
        names = frozenset().union(*(term.columns for term in terms))
        table = table.select(sorted(names) or [0])
        if has_views(table.schema):
            table = cast_table(table, schema_without_views(table.schema))
        table = table.take(pa.array(rows))
    masks = evaluate_by_duckdb(terms, table)
    is_match = np.ones(table.num_rows, bool)
    for mask in masks.columns:
        is_match &= mask.cast(pa.bool_()).fill_null(False).to_numpy()
    return rows[is_match]


def evaluate_by_duckdb(expressions: Sequence[DuckDBExpression], table: pa.Table) -> pa.Table:
    """Return the values of some expressions, in the order of the rows.

    Raise `FilterError` with DuckDB's words if DuckDB cannot compute them.
    """
    names = dict(pair for expression in expressions for pair in expression.names)
    if not names:
        rows = pa.table({"row": pa.nulls(table.num_rows, pa.int8())})
    else:
        # DuckDB takes time for each column that it gets.
        columns = [_column_for_duckdb(table.column(name), name) for name in names]
        rows = pa.table(columns, list(names.values()))
    projection = ", ".join(f"({expr.sql}) AS c{n}" for n, expr in enumerate(expressions))
    try:
        return _connection().from_arrow(rows).project(projection).to_arrow_table()
    except _duckdb().Error as error:
        raise FilterError(_first_paragraph(error)) from None


def constant_value(sql: str) -> pa.Scalar:
    """Return the value of an expression without columns. Raise `FilterError` if it has none."""
    try:
        return _connection().sql(f"SELECT ({sql}) AS c0").to_arrow_table().column(0)[0]
    except _duckdb().Error as error:
        raise FilterError(
            f"cannot read the filter: DuckDB cannot compute {shorten(sql)}: "
            f"{_first_paragraph(error)}; correct it"
        ) from None


def require_known_type(column: str, type_: pa.DataType) -> None:
    """Raise `FilterError` if DuckDB lacks the type of a column, or rounds its values."""
    for inner in _types_in(type_):
        is_lossy = pt.is_duration(inner) and inner.unit == "ns"
        is_nested_half = pt.is_float16(inner) and not pt.is_float16(type_)
        if is_lossy or is_nested_half or pt.is_decimal256(inner) or pt.is_union(inner):
            raise FilterError(
                f"cannot read the filter: column {column} is {type_}, and DuckDB has no type for "
                "its values, so only comparisons with literals are possible; write a "
                "pyarrow.compute expression"
            )


def _types_in(type_: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and all types in it."""
    type_ = decoded_type(type_)
    yield type_
    if pt.is_nested(type_):
        for number in range(type_.num_fields):
            yield from _types_in(type_.field(number).type)


def _column_for_duckdb(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    require_known_type(name, column.type)
    return column.cast(pa.float32()) if pt.is_float16(column.type) else column


@functools.cache
def function_names() -> frozenset[str]:
    """Return the functions whose result depends on their arguments alone."""
    functions = _connection().sql(
        "SELECT DISTINCT lower(function_name), function_type, stability FROM duckdb_functions()"
    )
    return _SPECIAL_FUNCTIONS.union(
        name
        for name, kind, stability in functions.fetchall()
        if name not in _REFUSED_FUNCTIONS
        and not name.startswith(_REFUSED_PREFIXES)
        and (
            (kind == "scalar" and stability in ("CONSISTENT", "CONSISTENT_WITHIN_QUERY"))
            or (kind == "macro" and name.startswith(_SAFE_MACROS))
        )
    )


def duckdb_names(schema: pa.Schema) -> Mapping[str, str]:
    """Return a name for each column by which DuckDB finds it, without regard to case."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for number, name in enumerate(schema.names):
        unique = name if name and name.lower() not in taken else f"{name}#{number}"
        taken.add(unique.lower())
        names[name] = unique
    return names


def field_positions(schema: pa.Schema, path: Sequence[str]) -> list[int]:
    """Return the positions, from 1, of the fields of structs on a path below its column."""
    positions = []
    for depth in range(1, len(path)):
        struct: Any = find_leaf_type(schema, path[:depth])
        positions.append([field.name for field in struct].index(path[depth]) + 1)
    return positions


def _connection() -> Any:
    """Return the connection of this thread. Forked processes have their own."""
    if getattr(_local, "pid", None) != os.getpid():
        _local.connection = _duckdb().connect(":memory:", config=_CONFIG)
        _local.connection.execute(_SETTINGS)
        _local.pid = os.getpid()
    return _local.connection


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise MissingDependency(
            "SQL beyond plain conditions needs DuckDB; run pip install 'zonebloom[sql]'"
        ) from None
    return duckdb


def _first_paragraph(error: Exception) -> str:
    return shorten(" ".join(str(error).split("\n\n")[0].split()))

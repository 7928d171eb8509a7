"""Translate filters of every language into a row filter and a predicate that an index can answer.

The row filter decides which rows match. The predicate only narrows down where to look: it is true
for at least the rows that match.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from operator import and_, eq, ne
from types import NoneType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.base.arrays import is_view_type
from zonebloom.base.user_values import to_arrow, to_scalar
from zonebloom.errors import FilterError, InvalidArgument
from zonebloom.predicates.arrow_form import referenced_columns
from zonebloom.predicates.ast import (
    MAX_DEPTH,
    And,
    ColumnPath,
    Compares,
    Constant,
    Equals,
    IsIn,
    IsNull,
    Not,
    Or,
    Predicate,
    Unknown,
    depth,
    flatten,
    probed_columns,
    shorten,
    unknowns,
)
from zonebloom.predicates.duckdb_engine import DuckDBFilter
from zonebloom.predicates.expression import (
    ORDER_OPERATORS,
    expression_from_predicate,
    join_balanced,
)
from zonebloom.predicates.sql_literals import is_uuid_for_binary_column
from zonebloom.values.columns import find_leaf_type
from zonebloom.values.normal_types import comparable_type

__all__ = [
    "And",
    "ColumnPath",
    "Compares",
    "Constant",
    "EngineFilter",
    "Equals",
    "IsIn",
    "IsNull",
    "Not",
    "Or",
    "Predicate",
    "RowFilter",
    "Unknown",
    "is_same_filter",
    "join_filters",
    "probed_columns",
    "row_filter_columns",
    "translate_filter",
    "unknowns",
]

_DNF_COMPARISONS = {"=": eq, "==": eq, "!=": ne, **ORDER_OPERATORS}
# Longer SQL is translated each time, so that the cached translations stay small.
_MAX_CACHED_TEXT = 1000
# The current time, which a filter may name by one of these, is outdated at once.
_CLOCK = re.compile("now|today|current_|localtimestamp|transaction_timestamp", re.IGNORECASE)
_ACCEPTED_FILTERS = (
    'a SQL string such as "id = 42", a pyarrow.compute Expression, a list of PyArrow\'s DNF '
    'tuples such as [("id", "=", 42)], a Polars expression, a Predicate, a list of filters that '
    "must all match, or None"
)


@runtime_checkable
class EngineFilter(Protocol):
    """A filter that an engine such as Polars evaluates itself, row by row.

    Whether a row matches must not depend on any other row.
    """

    @property
    def columns(self) -> frozenset[str] | None:
        """The top-level columns that the filter reads, or None if they are not known."""
        ...

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Return the numbers of the rows that match, int64 and ascending."""
        ...

    def __str__(self) -> str:
        """Return the filter as its user would recognise it."""
        ...


RowFilter: TypeAlias = "pc.Expression | EngineFilter"


def is_same_filter(a: RowFilter | None, b: RowFilter | None) -> bool:
    """Return whether two filters keep the same rows. Return False if that is not known."""
    if isinstance(a, pc.Expression) and isinstance(b, pc.Expression):
        expression: Any = a
        return expression.equals(b)
    if isinstance(a, DuckDBFilter) and isinstance(b, DuckDBFilter):
        return a.is_same(b)
    return a is b


def translate_filter(filter: Any, schema: pa.Schema) -> tuple[RowFilter | None, Predicate]:
    """Translate a filter into a row filter and a predicate.

    The row filter is None if it would keep all rows. The predicate is true for at least the rows
    that the row filter keeps.
    """
    try:
        return _translate(filter, schema)
    except FilterError as error:
        # The message names the place in the filter. A traceback through the translator would not
        # help the user.
        error.args = (arguments.shorten_message(str(error)),)
        raise error.with_traceback(None) from None


def _translate(filter: Any, schema: pa.Schema) -> tuple[RowFilter | None, Predicate]:
    if filter is None:
        return None, Constant(True)
    if isinstance(filter, str):
        is_cached = len(filter) <= _MAX_CACHED_TEXT and _CLOCK.search(filter) is None
        translate = _cached_sql if is_cached else _translate_sql
        return translate(_SqlFilter(filter, schema))
    if isinstance(filter, pc.Expression):
        expression = filter
    elif isinstance(filter, list) and not all(isinstance(part, list | tuple) for part in filter):
        return _translate_all(filter, schema)
    elif isinstance(filter, (list, tuple)):
        expression = _expression_from_dnf(filter, schema)
    elif isinstance(filter, Predicate):
        flat = _flatten_or_error(filter)
        return _expression_or_error(flat, schema), flat
    elif type(filter).__module__.split(".")[0] == "polars":
        from zonebloom.predicates.polars import translate_polars

        return translate_polars(filter, schema)
    else:
        raise FilterError(f"a {type(filter).__name__} is not a filter; write {_ACCEPTED_FILTERS}")
    from zonebloom.predicates.arrow import translate_arrow

    return translate_arrow(expression, schema)


def _translate_all(filters: list[Any], schema: pa.Schema) -> tuple[RowFilter | None, Predicate]:
    """Translate a list of filters, of which a row has to match all."""
    for filter in filters:
        if filter is None or isinstance(filter, list | tuple):
            raise FilterError(
                f"the list of filters contains {arguments.short_repr(filter)}; give SQL strings, "
                "pyarrow.compute expressions and Predicates, which must all match, or only DNF "
                "tuples"
            )
    return join_filters([_translate(filter, schema) for filter in filters])


def join_filters(
    translations: Sequence[tuple[RowFilter | None, Predicate]],
) -> tuple[RowFilter | None, Predicate]:
    """Return the row filter and the predicate of rows that match all of some filters.

    Raise `InvalidArgument` if another engine has to evaluate one of them.
    """
    if len(translations) == 1:
        return translations[0]
    row_filters = [row_filter for row_filter, _ in translations if row_filter is not None]
    for row_filter in row_filters:
        if not isinstance(row_filter, pc.Expression | DuckDBFilter):
            raise InvalidArgument(
                "a Polars expression cannot be combined with another filter of the dataset; give "
                "it as SQL or as a pyarrow expression"
            )
    joined: Any = functools.reduce(and_, row_filters) if row_filters else None
    return joined, And(tuple(predicate for _, predicate in translations))


@dataclass(frozen=True, slots=True)
class _SqlFilter:
    """The key of a cached translation."""

    text: str
    # Equal filters have equal schemas. The hash leaves the schema out, because hashing a wide one
    # takes milliseconds. Equality ignores the metadata of schemas, which no translation reads.
    schema: pa.Schema = field(hash=False)


def _translate_sql(filter: _SqlFilter) -> tuple[RowFilter, Predicate]:
    # Lookups by key need no SQL.
    from zonebloom.predicates.sql import translate_sql

    return translate_sql(filter.text, filter.schema)


_cached_sql = functools.lru_cache(maxsize=256)(_translate_sql)


def _expression_or_error(predicate: Predicate, schema: pa.Schema) -> pc.Expression:
    try:
        return expression_from_predicate(predicate, schema)
    except RecursionError:
        raise FilterError(
            "the filter is nested too deeply; write a chain of OR or AND without parentheses, or IN"
        ) from None


def row_filter_columns(filter: RowFilter) -> frozenset[str] | None:
    return referenced_columns(filter) if isinstance(filter, pc.Expression) else filter.columns


def _flatten_or_error(predicate: Predicate) -> Predicate:
    flat = flatten(predicate)
    if depth(flat) > MAX_DEPTH:
        raise FilterError(
            f"the predicate is nested {depth(flat):,} levels deep, but at most {MAX_DEPTH} work; "
            "join fewer conditions, or write them as a pyarrow.compute expression"
        )
    return flat


def _expression_from_dnf(dnf: list[Any] | tuple[Any, ...], schema: pa.Schema) -> pc.Expression:
    """Return the expression that ``pyarrow.parquet.filters_to_expression`` gives.

    That function truncates nanoseconds, fails for integers from 2**63 on, and nests one level per
    term, so it is not called.
    """
    try:
        if not dnf or not all(dnf):
            raise ValueError("a list is empty")
        if isinstance(dnf, tuple) and isinstance(dnf[0], str):
            raise ValueError("a tuple needs a list around it")
        chains = [dnf] if isinstance(dnf[0][0], str) else dnf
        conjunctions = [
            join_balanced(
                [_dnf_term(schema, name, operator, value) for name, operator, value in chain],
                is_or=False,
            )
            for chain in chains
        ]
        return join_balanced(conjunctions, is_or=True)
    except FilterError:
        raise
    except Exception as error:  # noqa: BLE001 - PyArrow raises many kinds
        raise FilterError(
            f"{arguments.short_repr(dnf)} is not a PyArrow DNF ({shorten(str(error))}); "
            f"write {_ACCEPTED_FILTERS}"
        ) from None


def _dnf_term(schema: pa.Schema, name: Any, operator: str, value: Any) -> pc.Expression:
    # PyArrow takes a tuple of names for a leaf of a struct.
    path = (name,) if isinstance(name, str) else tuple(name)
    column, type_ = pc.field(*path), find_leaf_type(schema, path)
    if operator not in ("in", "not in"):
        if operator not in _DNF_COMPARISONS:
            raise ValueError(f"{arguments.short_repr(operator)} is not an operator")
        return _DNF_COMPARISONS[operator](column, _convert_dnf_value(value, type_))
    negative: list[Any] = []
    if isinstance(value, list | tuple | Set):
        value = [_uuid_as_bytes(item, type_) for item in value]
        if type_ == pa.uint64():
            value, all_values = _as_uint64(value), value
            if isinstance(value, pa.Array):
                negative = [item for item in all_values if item is not None and item < 0]
    values = to_arrow(value, f"the values of {name!r}")
    is_in = column.isin(values.cast(comparable_type(values.type)))
    if negative:
        # No one type holds all of these integers. A later file may hold the negative ones.
        is_in = is_in | column.isin(pa.array(negative, pa.int64()))
    return is_in if operator == "in" else ~is_in


def _convert_dnf_value(value: Any, column: pa.DataType | None) -> Any:
    """Convert a value to Arrow. UUIDs become their 16 bytes, and integers uint64 if need be."""
    value = _uuid_as_bytes(value, column)
    if column == pa.uint64():
        values = _as_uint64([value])
        return values[0] if len(values) else value
    # PyArrow itself converts these types exactly, without importing pandas.
    if isinstance(value, bool | int | float | str | bytes | NoneType):
        return value
    scalar = to_scalar(value, "the value of a comparison")
    return scalar.cast(comparable_type(scalar.type)) if is_view_type(scalar.type) else scalar


def _uuid_as_bytes(value: Any, column: pa.DataType | None) -> Any:
    if isinstance(value, str) and column is not None and is_uuid_for_binary_column(value, column):
        raise FilterError(
            f"{value!r} is the text of a UUID, but the column stores UUIDs as {column}; give "
            f"uuid.UUID({value!r})"
        )
    return value.bytes if isinstance(value, uuid.UUID) else value


def _as_uint64(values: list[Any]) -> Any:
    """Return integers as a uint64 array if one of them is 2**63 or more.

    PyArrow would convert them to int64 and fail. Other values are returned as they are.
    """
    are_integers = all(value is None or type(value) is int for value in values)
    if not are_integers or not any(value is not None and value >= 2**63 for value in values):
        return values
    # Integers outside the range of uint64 equal no value of the column.
    in_range = [value for value in values if value is None or 0 <= value < 2**64]
    return pa.array(in_range, pa.uint64())

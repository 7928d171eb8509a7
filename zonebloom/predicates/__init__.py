"""Filters of any language brought to what is applied to rows, and to what an index can answer."""

from __future__ import annotations

import uuid
from collections.abc import Set
from types import NoneType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import is_view_type
from zonebloom.base.user_values import to_arrow, to_scalar
from zonebloom.errors import FilterError
from zonebloom.predicates.arrow import predicate_from_arrow, translate_arrow
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
    limit_depth,
    probed_columns,
    unknowns,
)
from zonebloom.predicates.expression import (
    comparable_type,
    expression_from_predicate,
    join_balanced,
)
from zonebloom.predicates.sql import predicate_from_sql as sql_to_predicate
from zonebloom.predicates.sql_literals import is_uuid_for_binary_column
from zonebloom.values.columns import find_leaf_type

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
    "columns",
    "columns_of",
    "to_predicate",
    "translate",
    "unknowns",
]

_MOST_TERMS = 500
_ACCEPTED = (
    'a SQL string such as "id = 42", a pyarrow.compute Expression, a list of PyArrow\'s DNF '
    'tuples such as [("id", "=", 42)], a Polars expression, a Predicate, or None'
)


@runtime_checkable
class EngineFilter(Protocol):
    """A filter with the semantics of its engine; whether a row passes depends on that row alone."""

    @property
    def columns(self) -> frozenset[str] | None:
        """Top-level columns it reads; None when that cannot be told."""
        ...

    def matching_rows(self, table: pa.Table) -> np.ndarray: ...

    def __str__(self) -> str:
        """The filter as its user would recognise it."""
        ...


RowFilter: TypeAlias = pc.Expression | EngineFilter


def translate_filter(filter: Any, schema: pa.Schema) -> tuple[RowFilter | None, Predicate]:
    """A filter as what is applied to rows (None keeps all), and a predicate true for those at
    least."""
    try:
        return _translated(filter, schema)
    except FilterError as error:
        # It says where in the filter; where in the translator helps nobody who wrote one.
        raise error.with_traceback(None) from None


def _translated(filter: Any, schema: pa.Schema) -> tuple[RowFilter | None, Predicate]:
    if filter is None:
        return None, Constant(True)
    if isinstance(filter, str):
        predicate = sql_to_predicate(filter, schema)
        return _written(predicate, schema), limit_depth(predicate)
    if isinstance(filter, pc.Expression):
        expression = filter
    elif isinstance(filter, (list, tuple)):
        expression = _from_dnf(filter, schema)
    elif isinstance(filter, Predicate):
        flat = _flat(filter)
        return _written(flat, schema), flat
    elif type(filter).__module__.split(".")[0] == "polars":
        from zonebloom.predicates.polars import translate_polars

        return translate_polars(filter, schema)
    else:
        raise FilterError(f"a {type(filter).__name__} is no filter; write {_ACCEPTED}")
    return translate_arrow(expression, schema)


def _written(predicate: Predicate, schema: pa.Schema) -> pc.Expression:
    try:
        return expression_from_predicate(predicate, schema)
    except RecursionError:
        raise FilterError(
            "the filter is nested too deeply; write a chain of OR or AND without parentheses, or IN"
        ) from None


def row_filter_columns(filter: RowFilter) -> set[str] | None:
    if isinstance(filter, pc.Expression):
        return referenced_columns(filter)
    return None if filter.columns is None else set(filter.columns)


def _flat(predicate: Predicate) -> Predicate:
    flat = flatten(predicate)
    if depth(flat) > MAX_DEPTH:
        raise FilterError(
            f"the predicate is nested {depth(flat):,} levels deep, and the most is {MAX_DEPTH}; "
            "join fewer conditions, or write them as a pyarrow.compute expression"
        )
    return flat


def _with_exact_values(filter: Any, schema: pa.Schema) -> Any:
    """Convert the values of DNF tuples to Arrow, because PyArrow cuts nanoseconds.

    UUIDs become their 16 bytes, and whole numbers the uint64 of their column.
    """
    if isinstance(filter, tuple) and len(filter) == 3 and isinstance(filter[0], str):
        name, operator, value = filter
        column = find_leaf_type(schema, (name,))
        if operator not in ("in", "not in"):
            return name, operator, _exact_value(value, column)
        if isinstance(value, list | tuple | Set):
            value = [_bytes_of_uuid(item, column) for item in value]
            value = _as_uint64(value) if column == pa.uint64() else value
        values = to_arrow(value, f"the values beside {name!r}")
        return name, operator, values.cast(comparable_type(values.type))
    if isinstance(filter, list | tuple):
        return [_with_exact_values(term, schema) for term in filter]
    return filter


def _exact_value(value: Any, column: pa.DataType | None) -> Any:
    value = _bytes_of_uuid(value, column)
    if column == pa.uint64():
        values = _as_uint64([value])
        return values[0] if len(values) else value
    # PyArrow converts these exactly, and without importing pandas.
    if isinstance(value, bool | int | float | str | bytes | NoneType):
        return value
    scalar = to_scalar(value, "the value of a comparison")
    return scalar.cast(comparable_type(scalar.type)) if is_view_type(scalar.type) else scalar


def _bytes_of_uuid(value: Any, column: pa.DataType | None) -> Any:
    if isinstance(value, str) and column is not None and is_uuid_for_binary_column(value, column):
        raise FilterError(
            f"{value!r} is the text of a UUID and the column is {column}, of its bytes; give "
            f"uuid.UUID({value!r})"
        )
    return value.bytes if isinstance(value, uuid.UUID) else value


def _as_uint64(values: list[Any]) -> Any:
    """Integers as uint64 where one of them is no int64, as which PyArrow reads them."""
    are_integers = all(each is None or type(each) is int for each in values)
    if not are_integers or not any(each is not None and each >= 2**63 for each in values):
        return values
    # Other integers equal no value of the column.
    return pa.array([each for each in values if each is None or 0 <= each < 2**64], pa.uint64())


def _from_dnf(dnf: list[Any] | tuple[Any, ...], schema: pa.Schema) -> pc.Expression:
    # Imported late: pyarrow.parquet brings much that no other filter needs.
    from pyarrow.parquet import filters_to_expression

    try:
        filter = _with_exact_values(dnf, schema)
        rows = [filter] if filter and isinstance(filter[0][0], str) else filter
        # Of many terms PyArrow makes a chain as deep as it is long.
        ends = [
            join_balanced(
                [
                    filters_to_expression([terms[at : at + _MOST_TERMS]])
                    for at in range(0, max(len(terms), 1), _MOST_TERMS)
                ],
                is_or=False,
            )
            for terms in rows
        ]
        expression = join_balanced(ends, is_or=True) if ends else filters_to_expression(list(rows))
    except FilterError:
        raise
    except Exception as error:  # noqa: BLE001 - PyArrow raises many kinds
        raise FilterError(f"{dnf!r} is no PyArrow DNF ({error}); write {_ACCEPTED}") from None
    if not isinstance(expression, pc.Expression):
        raise FilterError(f"{dnf!r} is no PyArrow DNF; write {_ACCEPTED}")
    return expression


# The public names of these functions.
columns = probed_columns
columns_of = row_filter_columns
to_predicate = predicate_from_arrow
translate = translate_filter

"""Filters of any language, brought to one predicate tree.

filter (SQL, PyArrow, DNF, Predicate) -> PyArrow expression, applied in full to every row read
filter (Polars)                       -> the same expression, applied by Polars
any of them                           -> predicate, what an index can answer of it
"""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.errors import FilterError
from zonebloom.predicates.arrow import referenced_columns, to_predicate
from zonebloom.predicates.ast import (
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
    columns,
    unknowns,
)
from zonebloom.predicates.engine import EngineFilter, RowFilter
from zonebloom.predicates.expression import from_predicate
from zonebloom.predicates.literals import is_uuid_of_bytes
from zonebloom.predicates.sql import to_expression
from zonebloom.values import leaf_type

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
    "to_expression",
    "to_predicate",
    "translate",
    "unknowns",
]

_ACCEPTED = (
    'a SQL string such as "id = 42", a pyarrow.compute Expression, a list of PyArrow\'s DNF '
    'tuples such as [("id", "=", 42)], a Polars expression, a Predicate, or None'
)


def translate(filter: Any, schema: pa.Schema) -> tuple[RowFilter | None, Predicate]:
    """Bring a filter of any accepted kind to what is applied to rows and a predicate.

    Parameters
    ----------
    filter
        A SQL string, a PyArrow expression, PyArrow's DNF (a list of tuples, all to hold, or a
        list of such lists, one to hold), a Polars expression, a `Predicate`, or None for every
        row.
    schema
        The schema of the data.

    Returns
    -------
    filter
        What is applied to the rows that are read, with the semantics of the language the
        filter was written in; None keeps them all.
    predicate
        What an index can answer; true for every row the expression keeps, perhaps for more.

    Raises
    ------
    FilterError
        The filter is of another kind, or cannot be read.

    Examples
    --------
    >>> _, predicate = translate([("id", "in", [1, 2])], pa.schema({"id": pa.int64()}))
    >>> print(predicate)
    id IN (1, 2)
    """
    if filter is None:
        return None, Constant(True)
    if isinstance(filter, str):
        expression = to_expression(filter, schema)
    elif isinstance(filter, pc.Expression):
        expression = filter
    elif isinstance(filter, (list, tuple)):
        expression = _from_dnf(_with_bytes_of_uuids(filter, schema))
    elif isinstance(filter, Predicate):
        return from_predicate(filter, schema), filter
    elif type(filter).__module__.split(".")[0] == "polars":
        from zonebloom.predicates.polars import translate_polars

        return translate_polars(filter, schema)
    else:
        raise FilterError(f"a {type(filter).__name__} is no filter; write {_ACCEPTED}")
    return expression, to_predicate(expression, schema)


def columns_of(filter: RowFilter) -> set[str] | None:
    """Names of the top-level columns a filter reads, None when that cannot be told."""
    if isinstance(filter, pc.Expression):
        return referenced_columns(filter)
    return None if filter.columns is None else set(filter.columns)


def _with_bytes_of_uuids(filter: Any, schema: pa.Schema) -> Any:
    """DNF tuples with the 16 bytes of their UUIDs, which is what PyArrow compares.

    Raises
    ------
    FilterError
        The text of a UUID stands beside a column of such bytes.
    """
    if isinstance(filter, tuple) and len(filter) == 3 and isinstance(filter[0], str):
        name, operator, value = filter
        several = isinstance(value, list | tuple | set | frozenset)
        column = leaf_type(schema, (name,))
        values = [_bytes_of_uuid(each, column) for each in (value if several else [value])]
        return name, operator, values if several else values[0]
    if isinstance(filter, list | tuple):
        return [_with_bytes_of_uuids(each, schema) for each in filter]
    return filter


def _bytes_of_uuid(value: Any, column: pa.DataType | None) -> Any:
    if isinstance(value, str) and column is not None and is_uuid_of_bytes(value, column):
        raise FilterError(
            f"{value!r} is the text of a UUID and the column is {column}, of its bytes; give "
            f"uuid.UUID({value!r})"
        )
    return value.bytes if isinstance(value, uuid.UUID) else value


def _from_dnf(filter: list[Any] | tuple[Any, ...]) -> pc.Expression:
    # Imported late: pyarrow.parquet brings much that no other filter needs.
    from pyarrow.parquet import filters_to_expression

    try:
        expression = filters_to_expression(list(filter))
    except Exception as error:  # noqa: BLE001 - PyArrow raises many kinds
        raise FilterError(f"{filter!r} is no PyArrow DNF ({error}); write {_ACCEPTED}") from None
    if not isinstance(expression, pc.Expression):
        raise FilterError(f"{filter!r} is no PyArrow DNF; write {_ACCEPTED}")
    return expression

"""Filters of any language, brought to one predicate tree.

filter (SQL, PyArrow, DNF) -> PyArrow expression, applied in full to every row read
                           -> predicate, what an index can answer of it
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.errors import FilterError
from zonebloom.predicates.arrow import to_predicate
from zonebloom.predicates.ast import (
    And,
    ColumnPath,
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
from zonebloom.predicates.sql import to_expression

__all__ = [
    "And",
    "ColumnPath",
    "Constant",
    "Equals",
    "IsIn",
    "IsNull",
    "Not",
    "Or",
    "Predicate",
    "Unknown",
    "columns",
    "to_expression",
    "to_predicate",
    "translate",
    "unknowns",
]

_ACCEPTED = (
    'a SQL string such as "id = 42", a pyarrow.compute Expression, a list of PyArrow\'s DNF '
    'tuples such as [("id", "=", 42)], or None'
)


def translate(filter: Any, schema: pa.Schema) -> tuple[pc.Expression | None, Predicate]:
    """Bring a filter of any accepted kind to an expression and a predicate.

    Parameters
    ----------
    filter
        A SQL string, a PyArrow expression, PyArrow's DNF (a list of tuples, all to hold, or a
        list of such lists, one to hold), or None for every row.
    schema
        The schema of the data.

    Returns
    -------
    expression
        What PyArrow applies to the rows that are read; None keeps them all.
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
        expression = _from_dnf(filter)
    else:
        raise FilterError(f"a {type(filter).__name__} is no filter; write {_ACCEPTED}")
    return expression, to_predicate(expression, schema)


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

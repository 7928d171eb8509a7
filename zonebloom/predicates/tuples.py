"""Add to a predicate what its equalities say of several columns together.

    region = 'eu' AND id IN (1, 2)    the columns (region, id) hold ('eu', 1) or ('eu', 2)
    (region, id) IN (('eu', 1), ...)  the same with the tuples of the list

An index of a combination of columns looks up such tuples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from zonebloom.base.arrays import from_numpy
from zonebloom.predicates import ast
from zonebloom.values.normal_types import without_views

# More tuples than this are not made from the sets of several columns.
_MAX_PRODUCT = 1 << 16
# From this number on, tuples are looked up at once, without asking the other indices of a column.
_MIN_TERMS_TO_UNITE = 64


def with_tuples(
    predicate: ast.Predicate, column_sets: Collection[Sequence[ast.ColumnPath]]
) -> ast.Predicate:
    """Return the predicate with a `HasTuple` for each set of columns that a conjunction compares.

    It is true for the same rows.
    """

    def conjunction(terms: list[ast.Predicate]) -> ast.Predicate:
        found = [_tuples_of(terms, columns) for columns in column_sets]
        # A search visits them first, so that it does not ask for an index of each column.
        return ast.And((*(part for part in found if part is not None), *terms))

    def disjunction(terms: list[ast.Predicate]) -> ast.Predicate:
        return _united_tuples(terms, column_sets) or ast.Or(tuple(terms))

    return ast.fold_predicate(predicate, lambda leaf: leaf, conjunction, disjunction, ast.negation)


def tuples_of_keys(
    keys: Mapping[ast.ColumnPath, pa.Array], column_sets: Collection[Sequence[ast.ColumnPath]]
) -> list[ast.HasTuple]:
    """Return the conditions that columns hold the tuples at each position of ``keys``."""
    return [
        ast.HasTuple(tuple(columns), tuple(keys[column] for column in columns))
        for columns in column_sets
        if keys.keys() >= set(columns)
    ]


def _tuples_of(
    terms: Sequence[ast.Predicate], columns: Sequence[ast.ColumnPath]
) -> ast.HasTuple | None:
    """Return the tuples that a conjunction requires, or None if it does not compare all columns."""
    if any(isinstance(term, ast.HasTuple) and term.columns == tuple(columns) for term in terms):
        return None
    sets: dict[ast.ColumnPath, pa.Array] = {}
    used_terms: list[ast.Predicate] = []
    for term in terms:
        if isinstance(term, ast.Equals) and term.column in columns:
            sets[term.column] = pa.array([term.value], term.value.type)
            used_terms.append(term)
        elif isinstance(term, ast.IsIn) and term.column in columns and not term.null_matches:
            sets.setdefault(term.column, term.values)
            used_terms.append(term)
    if len(sets) < len(columns):
        return None
    sizes = [len(sets[column]) for column in columns]
    if math.prod(sizes) > _MAX_PRODUCT:
        return None
    numbers = np.indices(sizes).reshape(len(sizes), -1)
    # PyArrow cannot gather views.
    values = [
        sets[column].cast(without_views(sets[column].type)).take(from_numpy(positions))
        for column, positions in zip(columns, numbers, strict=True)
    ]
    return ast.HasTuple(tuple(columns), tuple(values), tuple(used_terms))


def _united_tuples(
    terms: Sequence[ast.Predicate], column_sets: Collection[Sequence[ast.ColumnPath]]
) -> ast.HasTuple | None:
    """Return the tuples of many conjunctions as one condition, or None if one lacks them."""
    if len(terms) < _MIN_TERMS_TO_UNITE:
        return None
    for columns in column_sets:
        parts = [
            next((part for part in _parts(term) if part.columns == tuple(columns)), None)
            for term in terms
        ]
        found = [part for part in parts if part is not None]
        if len(found) < len(terms):
            continue
        arrays = list(zip(*(part.values for part in found), strict=True))
        if all(len({str(array.type) for array in column}) == 1 for column in arrays):
            values = tuple(pa.concat_arrays(column) for column in arrays)
            return ast.HasTuple(tuple(columns), values)
    return None


def _parts(term: ast.Predicate) -> list[ast.HasTuple]:
    parts = term.terms if isinstance(term, ast.And) else (term,)
    return [part for part in parts if isinstance(part, ast.HasTuple)]

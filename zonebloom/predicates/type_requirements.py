"""Find the columns whose literals do not fit the type that the dataset gives the column.

Such a literal equals no value of the column, but only where a file stores the column in this type
or in a narrower one. A translator that simplifies a condition for this reason adds a
`TypeRequirement`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from zonebloom.predicates.ast import (
    And,
    ColumnPath,
    Compares,
    Equals,
    IsIn,
    Predicate,
    TypeRequirement,
    Unknown,
    walk,
)
from zonebloom.values.columns import find_leaf_type
from zonebloom.values.literal import Literal, Unanswerable, integers_in_range, to_stored
from zonebloom.values.normal_types import hashed_type
from zonebloom.values.types import family, hash_domain, is_lossless_cast

# More values of another type are not converted one by one.
_MAX_CONVERTED_VALUES = 1 << 10


def with_type_requirement(predicate: Predicate, columns: Iterable[ColumnPath]) -> Predicate:
    """Return a predicate that tells a search to check the types of some columns."""
    required = frozenset(columns)
    if not required:
        return predicate
    terms = predicate.terms if isinstance(predicate, And) else (predicate,)
    return And((TypeRequirement(True, required), *terms))


def columns_of_unfitting_literals(predicate: Predicate, schema: pa.Schema) -> set[ColumnPath]:
    """Return the columns that are compared with a literal that their type does not hold."""
    columns: set[ColumnPath] = set()
    for node in walk(predicate):
        if isinstance(node, TypeRequirement):
            columns |= node.columns
        elif isinstance(node, Unknown) and node.requires is not None:
            columns |= columns_of_unfitting_literals(node.requires, schema)
        elif isinstance(node, Equals | Compares | IsIn):
            values = node.values if isinstance(node, IsIn) else node.value
            column_type = find_leaf_type(schema, node.column)
            if column_type is not None and not _fit(values, column_type):
                columns.add(node.column)
    return columns


def _fit(values: pa.Array | pa.Scalar, column_type: pa.DataType) -> bool:
    """Return whether a type holds literals exactly."""
    if values.type == column_type or is_lossless_cast(values.type, column_type):
        return True
    column_type = hashed_type(column_type)
    if not isinstance(values, pa.Array):
        return _fits(values, column_type)
    if family(values.type) == "integer" == family(column_type):
        return len(integers_in_range(values, column_type)[0]) == len(values)
    return len(values) <= _MAX_CONVERTED_VALUES and all(
        _fits(value, column_type) for value in values
    )


def _fits(value: pa.Scalar, column_type: pa.DataType) -> bool:
    literal = Literal.from_scalar(value)
    if literal is None or hash_domain(value.type) == hash_domain(column_type):
        return True
    try:
        stored = to_stored(literal, column_type)
    except (Unanswerable, AttributeError, TypeError):
        return False
    if pa.types.is_fixed_size_binary(column_type):
        return len(stored.value) == column_type.byte_width
    return stored.is_exact

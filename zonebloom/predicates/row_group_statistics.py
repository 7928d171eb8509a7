"""What of a filter pyarrow may pass over row groups by: whatever their statistics are right for.

pyarrow takes minimum and maximum for bounds of every value, which they are not:

    floating point   NaN is left out, and rows are lost for which ``f <> 73`` or ``NOT f > 73``
                     is true; so is the sign of zeros, by which ``f IN (0.0)`` tells them apart
    decimals         some old writers ordered them by their bytes; nothing in the file says so

Comparisons that are not negated are safe from NaN. Other types are ordered as one expects
wherever pyarrow uses the statistics at all; nulls it counts apart.
"""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.errors import FilterError
from zonebloom.predicates import ast
from zonebloom.predicates.arrow import predicate_from_arrow
from zonebloom.predicates.arrow_form import referenced_columns
from zonebloom.predicates.expression import expression_from_predicate
from zonebloom.values.columns import find_leaf_type


def statistics_safe_filter(filter: pc.Expression, schema: pa.Schema) -> pc.Expression | None:
    """The part of a filter that is safe beside statistics, true wherever the filter is."""
    named = referenced_columns(filter)
    if named is not None and all(
        _is_exact(schema.field(name).type) for name in named if name in schema.names
    ):
        return filter
    predicate = predicate_from_arrow(filter, schema)
    terms = predicate.terms if isinstance(predicate, ast.And) else (predicate,)
    safe = tuple(term for term in terms if _is_safe(term, schema))
    if len(safe) == len(terms):
        return filter
    try:
        return expression_from_predicate(ast.conjunction(safe), schema) if safe else None
    except FilterError:
        return None


def _is_safe(predicate: ast.Predicate, schema: pa.Schema) -> bool:
    """Whether no row group that holds a row it is true for would be passed over."""

    def leaf(node: ast.LeafPredicate) -> tuple[bool, bool]:
        """Whether it is safe where it is true, and where it is false."""
        if isinstance(node, ast.Constant):
            return True, True
        if isinstance(node, ast.Unknown):
            return False, False
        type_ = find_leaf_type(schema, node.column)
        is_exact, is_floating = _is_exact(type_), type_ is not None and pt.is_floating(type_)
        if isinstance(node, ast.IsNull):
            return True, is_exact
        if isinstance(node, ast.IsIn):
            # Of a set, the tree says less than the filter does where it is false.
            return is_exact or (is_floating and _are_ordinary(node.values)), False
        return is_exact or is_floating, is_exact

    def every(pairs: list[tuple[bool, bool]]) -> tuple[bool, bool]:
        return all(true for true, _ in pairs), all(false for _, false in pairs)

    return ast.fold_predicate(predicate, leaf, every, every, lambda pair: (pair[1], pair[1]))[0]


def _is_exact(arrow_type: pa.DataType | None) -> bool:
    """Whether a minimum and a maximum of a type bound all of its values, whoever wrote them."""
    if arrow_type is None or pt.is_floating(arrow_type) or pt.is_decimal(arrow_type):
        return False
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _is_exact(arrow_type.storage_type)
    if pt.is_dictionary(arrow_type):
        return _is_exact(arrow_type.value_type)
    if pt.is_nested(arrow_type):
        inner = (arrow_type.field(at).type for at in range(arrow_type.num_fields))
        return all(map(_is_exact, inner))
    return True


def _are_ordinary(values: pa.Array) -> bool:
    """Whether none is a zero or NaN, which a set looks up by their bits."""
    return all(each != 0 and not math.isnan(each) for each in values.to_pylist())

"""Select the part of a filter by which pyarrow may skip row groups safely.

pyarrow assumes that all values of a row group lie between the minimum and the maximum of its
statistics. This is wrong for two kinds of types:

    floating point   Statistics ignore NaN, so pyarrow would lose rows for which ``f <> 73`` or
                     ``NOT f > 73`` is true. They also ignore the sign of zeros, but ``f IN (0.0)``
                     distinguishes 0.0 from -0.0.
    decimals         Some old writers ordered them by their bytes. Their files do not say so.

Comparisons that are not negated are safe, because they are false for NaN. For other types the
statistics are correct wherever pyarrow uses them. pyarrow counts nulls separately.
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
from zonebloom.values.normal_types import innermost_types


def statistics_safe_filter(filter: pc.Expression, schema: pa.Schema) -> pc.Expression | None:
    """Return the part of a filter by which row groups may be skipped, or None if there is none.

    The part is true for every row for which the filter is true.
    """
    column_names = referenced_columns(filter)
    if column_names is not None and all(
        _has_exact_statistics(schema.field(name).type)
        for name in column_names
        if name in schema.names
    ):
        return filter
    predicate = predicate_from_arrow(filter, schema)
    terms = predicate.terms if isinstance(predicate, ast.And) else (predicate,)
    safe_terms = tuple(term for term in terms if _is_safe_with_statistics(term, schema))
    if len(safe_terms) == len(terms):
        return filter
    try:
        return (
            expression_from_predicate(ast.conjunction(safe_terms), schema) if safe_terms else None
        )
    except FilterError:
        return None


def _is_safe_with_statistics(predicate: ast.Predicate, schema: pa.Schema) -> bool:
    """Return whether pyarrow skips no row group that has a row for which the predicate is true."""

    def leaf(node: ast.LeafPredicate) -> tuple[bool, bool]:
        """Return whether the leaf is safe, and whether its negation is safe."""
        if isinstance(node, ast.Constant):
            return True, True
        if isinstance(node, ast.Unknown):
            return False, False
        type_ = find_leaf_type(schema, node.column)
        is_exact, is_floating = (
            _has_exact_statistics(type_),
            type_ is not None and pt.is_floating(type_),
        )
        if isinstance(node, ast.IsNull):
            return True, is_exact
        if isinstance(node, ast.IsIn):
            # The negation is unsafe: for null rows, IN of a predicate is null, but PyArrow's is_in
            # is false, so its negation is true.
            return is_exact or (is_floating and _has_no_zero_or_nan(node.values)), False
        return is_exact or is_floating, is_exact

    def every(pairs: list[tuple[bool, bool]]) -> tuple[bool, bool]:
        return all(is_safe for is_safe, _ in pairs), all(negation for _, negation in pairs)

    return ast.fold_predicate(predicate, leaf, every, every, lambda pair: (pair[1], pair[1]))[0]


def _has_exact_statistics(arrow_type: pa.DataType | None) -> bool:
    """Return whether statistics of a type bound all its values, whichever writer made them."""
    return arrow_type is not None and not any(
        pt.is_floating(type_) or pt.is_decimal(type_) for type_ in innermost_types(arrow_type)
    )


def _has_no_zero_or_nan(values: pa.Array) -> bool:
    """Return whether no value is a zero or NaN. `is_in` compares these by their bits."""
    return all(value != 0 and not math.isnan(value) for value in values.to_pylist())

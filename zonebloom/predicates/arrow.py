"""Translate PyArrow expressions into predicates, and rewrite comparisons in which PyArrow fails.

If the serialized expression has a layout that `arrow_form` does not know, the whole filter becomes
`Unknown`. This is slower but never wrong. A comparison in which PyArrow would round a value also
becomes `Unknown`.

`statistics_safe_filter` selects the part of a filter by which pyarrow may skip row groups. pyarrow
assumes that all values of a row group lie between the minimum and the maximum of its statistics.
This is wrong for two kinds of types:

    floating point   Statistics ignore NaN, so pyarrow would lose rows for which ``f <> 73`` or
                     ``NOT f > 73`` is true. They also ignore the sign of zeros, but ``f IN (0.0)``
                     distinguishes 0.0 from -0.0.
    decimals         Some old writers ordered them by their bytes. Their files do not say so.

Comparisons that are not negated are safe, because they are false for NaN. For other types the
statistics are correct wherever pyarrow uses them. pyarrow counts nulls separately.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import decode_dictionary
from zonebloom.errors import FilterError
from zonebloom.predicates import ast
from zonebloom.predicates.arrow_form import (
    ExpressionNode,
    MalformedExpression,
    expression_text,
    parse_entries,
    plain_literals,
    read_expression,
    referenced_columns,
    require_bounded_depth,
    subexpression,
)
from zonebloom.predicates.expression import (
    equal_is_exact,
    expression_from_predicate,
    lookup_is_exact,
)
from zonebloom.predicates.sql_literals import refuse_uuid_text
from zonebloom.predicates.text_requirements import like_tokens, require_call, require_like
from zonebloom.values.columns import find_leaf_type, resolve_type
from zonebloom.values.literal import Unanswerable
from zonebloom.values.normal_types import decoded_type, innermost_types
from zonebloom.values.types import (
    TIME_ZONE_ADVICE,
    family,
    has_nulls_outside_bitmap,
    is_lossless_cast,
    may_hold_nan,
    time_zone_mismatch_message,
    time_zones_differ,
)

_INT64_TYPES = {pa.int64(), pa.uint64()}
# The functions of SQL with the same meaning. They take a pattern as an option.
_TEXT_FUNCTIONS = {
    "match_like": "like",
    "match_substring": "contains",
    "match_substring_regex": "regexp_matches",
    "starts_with": "starts_with",
    "ends_with": "ends_with",
}
_ARROW_COMPARISONS = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}


class _ArrowColumn(NamedTuple):
    """A column of the expression. `type` is its type after all lossless casts around it."""

    path: ast.ColumnPath
    type: pa.DataType


def translate_arrow(
    expression: pc.Expression, schema: pa.Schema
) -> tuple[pc.Expression, ast.Predicate]:
    """Translate an expression into the row filter to apply and a predicate."""
    translator = _translate_or_unknown(expression, schema)
    if isinstance(translator, ast.Unknown):
        return expression, translator
    return translator.row_filter(), translator.predicate


def predicate_from_arrow(expression: pc.Expression, schema: pa.Schema) -> ast.Predicate:
    """Return the predicate of a PyArrow expression, `Unknown` if its layout is not known."""
    translator = _translate_or_unknown(expression, schema)
    return translator if isinstance(translator, ast.Unknown) else translator.predicate


def _translate_or_unknown(
    expression: pc.Expression, schema: pa.Schema
) -> _ArrowTranslator | ast.Unknown:
    try:
        return _ArrowTranslator(expression, schema)
    except FilterError:
        raise
    except Exception as error:  # noqa: BLE001 - an unknown layout must not make the scan fail
        detail = f": {error}" if str(error) else ""
        return ast.Unknown(
            expression_text(expression),
            f"the expression cannot be parsed ({type(error).__name__}{detail})",
        )


class _ArrowTranslator:
    """A translated expression: its predicate, and the row filter to apply.

    Each node gets a meaning: a column, a scalar, a predicate, or the reason why it has none.
    """

    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self._expression = expression
        self._schema = schema
        self._serialized = read_expression(expression)
        plain_expression = plain_literals(self._serialized)
        if plain_expression is not None:
            self._expression = plain_expression
            self._serialized = read_expression(plain_expression)
        self._nodes = parse_entries(self._serialized.entries)
        # The nodes that PyArrow refuses, with predicates for exactly the same rows.
        self._refused_nodes: list[tuple[ExpressionNode, ast.Predicate]] = []
        for node in self._nodes:
            self._set_meaning(node)
        self.predicate = ast.simplify(self._as_condition(self._nodes[-1]))

    def _set_meaning(self, node: ExpressionNode) -> None:
        try:
            if node.path:
                node.meaning = _ArrowColumn(node.path, resolve_type(self._schema, node.path))
            elif node.name == "literal":
                node.meaning = self._options(node)
            else:
                node.meaning = self._translate_call(node)
        except Unanswerable as reason:
            node.meaning = reason
        except LookupError as error:
            node.meaning = Unanswerable(str(error.args[0]))

    def _translate_call(self, node: ExpressionNode) -> object:
        name, args = node.name, node.args
        # The non-Kleene functions return null for some rows where the Kleene functions return true
        # or false. They are true and false for fewer rows, so the predicate bounds both.
        if name in ("and", "and_kleene"):
            return ast.And(tuple(map(self._as_condition, args)))
        if name in ("or", "or_kleene"):
            return ast.Or(tuple(map(self._as_condition, args)))
        if name == "invert" and len(args) == 1:
            return ast.negation(self._as_condition(args[0]))
        if name in ("and_not", "and_not_kleene") and len(args) == 2:
            return ast.And((self._as_condition(args[0]), ast.negation(self._as_condition(args[1]))))
        if name in _ARROW_COMPARISONS:
            return self._translate_comparison(node, _ARROW_COMPARISONS[name])
        if name == "is_in":
            return self._translate_is_in(node)
        if name in ("is_null", "is_valid"):
            null = self._translate_is_null(node)
            return null if name == "is_null" else ast.negation(null)
        if name == "if_else" and len(args) == 3:
            return _if_else_predicate(*map(self._as_condition, args))
        if name == "cast":
            return self._translate_cast(node)
        raise Unanswerable(f"the function {name} is not answered by hashes of values")

    def _text_requirement(self, node: ExpressionNode) -> ast.Predicate | None:
        """Return what a string needs if the node is a function that searches it."""
        if node.name not in _TEXT_FUNCTIONS:
            return None
        column = node.args[0].meaning if len(node.args) == 1 else None
        is_search = self._option(node, "_type_name") == b"MatchSubstringOptions"
        if not isinstance(column, _ArrowColumn) or family(column.type) != "text" or not is_search:
            return None
        pattern, ignores_case = (self._option(node, name) for name in ("pattern", "ignore_case"))
        if isinstance(pattern, bytes):
            try:
                pattern = pattern.decode()
            except UnicodeDecodeError:
                return None
        if not isinstance(pattern, str):
            return None
        if node.name == "match_like":
            tokens = like_tokens(pattern, "\\")
            # PyArrow takes some escapes literally.
            if "\\" in pattern or tokens is None:
                return None
            return require_like(column.path, tokens, ignores_case=bool(ignores_case))
        function = _TEXT_FUNCTIONS[node.name]
        return require_call(column.path, function, [pattern], ignores_case=bool(ignores_case))

    def _as_condition(self, node: ExpressionNode) -> ast.Predicate:
        meaning = node.meaning
        if isinstance(meaning, _ArrowColumn):
            meaning = Unanswerable("a boolean column is not indexed")
        elif isinstance(meaning, pa.Scalar):
            value = meaning.as_py()
            if value is None or isinstance(value, bool):
                return ast.Constant(value)
            meaning = Unanswerable("the literal is not a condition")
        if isinstance(meaning, Unanswerable):
            try:
                return self._unknown_condition(node, str(meaning))
            except FilterError:
                # It is nested too deeply to be cut out of the expression.
                return ast.Unknown("...", str(meaning))
        assert isinstance(meaning, ast.Predicate)
        return meaning

    def _translate_comparison(self, node: ExpressionNode, operator: str) -> ast.Predicate:
        args = node.args
        if len(args) != 2:
            raise MalformedExpression("a comparison takes two arguments")
        left, right = args
        for side in args:
            if isinstance(side.meaning, pa.Scalar) and not side.meaning.is_valid:
                return ast.Constant(None)
        if isinstance(left.meaning, pa.Scalar):
            left, right, operator = right, left, ast.FLIPPED_OPERATORS[operator]
        _check_operand_time_zones(left.meaning, right.meaning)
        column, value = _require_arrow_column(left, ast.ONLY_LITERALS), right.meaning
        if isinstance(value, Unanswerable):
            raise value
        if not isinstance(value, pa.Scalar):
            raise Unanswerable(ast.ONLY_LITERALS)
        refuse_uuid_text(value, column.type)
        if not equal_is_exact(column.type, value.type):
            raise Unanswerable(f"comparing {column.type} with {value.type} may round")
        if operator in ("=", "!="):
            equals = ast.Equals(column.path, value)
            predicate = equals if operator == "=" else ast.negation(equals)
        elif pa.types.is_floating(value.type) and math.isnan(value.as_py()):
            raise Unanswerable("the order of NaN depends on the engine")
        else:
            predicate = ast.Compares(column.path, operator, value)  # pyright: ignore[reportArgumentType]
        self._note_refused(node, predicate, column.type, value.type)
        return predicate

    def _note_refused(
        self, node: ExpressionNode, exact: ast.Predicate, column: pa.DataType, value: pa.DataType
    ) -> None:
        is_uuid = isinstance(decoded_type(column), pa.UuidType)
        if is_uuid or (column != value and {column, value} == _INT64_TYPES):
            self._refused_nodes.append((node, exact))

    def _translate_is_in(self, node: ExpressionNode) -> ast.Predicate:
        if len(node.args) != 1 or self._option(node, "_type_name") != b"SetLookupOptions":
            raise MalformedExpression("is_in takes one argument and a set")
        column = _require_arrow_column(node.args[0], "only a column looked up in a set is answered")
        values = self._options(node)["value_set"].values
        if isinstance(values, pa.DictionaryArray):
            values = decode_dictionary(values)
        # The option is one of enum NullMatchingBehavior { MATCH, SKIP, EMIT_NULL, INCONCLUSIVE }.
        # A null row is in the set only if the option is MATCH and the set contains a null.
        null_matching = self._option(node, "null_matching_behavior")
        null_matches = null_matching == 0 and values.null_count > 0
        values = values.drop_null()
        if len(values):
            _check_operand_time_zones(column, values[0])
            refuse_uuid_text(values[0], column.type)
            if not lookup_is_exact(column.type, values):
                raise Unanswerable(f"looking {column.type} up in a set of {values.type} may round")
        predicate = ast.IsIn(column.path, values, null_matches)
        if null_matches:
            self._note_refused(node, predicate, column.type, values.type)
        elif null_matching in (0, 1):
            # PyArrow's is_in returns false for null.
            is_in = ast.And((predicate, ast.Not(ast.IsNull(column.path))))
            self._note_refused(node, is_in, column.type, values.type)
        return predicate

    def _translate_is_null(self, node: ExpressionNode) -> ast.Predicate:
        if len(node.args) != 1:
            raise MalformedExpression(f"{node.name} takes one argument")
        column = _require_arrow_column(node.args[0], "an index knows nulls only of columns")
        if has_nulls_outside_bitmap(column.type):
            raise Unanswerable(f"the nulls of {column.type} are not indexed")
        if (
            node.options_column is not None
            and self._option(node, "nan_is_null")
            and may_hold_nan(column.type)
        ):
            raise Unanswerable("no index answers is_null with nan_is_null")
        return ast.IsNull(column.path)

    def _translate_cast(self, node: ExpressionNode) -> object:
        if len(node.args) != 1 or self._option(node, "_type_name") != b"CastOptions":
            raise MalformedExpression("cast takes one argument and a type")
        meaning = node.args[0].meaning
        if isinstance(meaning, pa.Scalar):
            if meaning.is_valid:
                raise Unanswerable("the literal is wrapped in a cast")
            return meaning
        column = _require_arrow_column(node.args[0], "a condition is wrapped in a cast")
        # PyArrow serializes the target type as the type of a null field.
        target = self._options(node).type.field("to_type").type
        if not is_lossless_cast(column.type, target):
            raise Unanswerable(f"casting {column.type} to {target} may make values equal")
        return _ArrowColumn(column.path, target)

    def _options(self, node: ExpressionNode) -> Any:
        if node.options_column is None:
            raise MalformedExpression(f"{node.name} has no options")
        return self._serialized.row.column(node.options_column)[0]

    def _option(self, node: ExpressionNode, name: str) -> object:
        return self._options(node)[name].as_py()

    def _unknown_condition(self, node: ExpressionNode, reason: str) -> ast.Unknown:
        expression = subexpression(self._serialized, node)
        text = " ".join(expression_text(expression).split())
        requires = self._text_requirement(node)
        return ast.Unknown(ast.shorten(text), reason, expression=expression, requires=requires)

    def row_filter(self) -> pc.Expression:
        """Return the expression, with other comparisons of UUIDs, and of int64 with uint64.

        PyArrow has no comparison of UUIDs, so their bytes are compared. It casts uint64 to int64 to
        compare the two, which fails from 2**63 on. The result is true, false and null for the same
        rows.
        """
        if not self._refused_nodes:
            require_bounded_depth(self._serialized.entries)
            return self._expression
        replacements = [
            (node, expression_from_predicate(predicate, self._schema, exact=True))
            for node, predicate in self._refused_nodes
        ]
        return subexpression(self._serialized, self._nodes[-1], replacements)


def _if_else_predicate(
    test: ast.Predicate, if_true: ast.Predicate, if_false: ast.Predicate
) -> ast.Predicate:
    if (
        isinstance(if_true, ast.IsIn)
        and not if_true.null_matches
        and (test, if_false) == (ast.Not(ast.IsNull(if_true.column)), ast.Constant(None))
    ):
        # DuckDB writes IN this way, because PyArrow's is_in returns false for null. The IN of SQL
        # and of our predicates returns null.
        return if_true
    # If the test is null, if_else returns null and this predicate may return false. This is safe,
    # because a search only bounds the rows for which the condition is true, or is false.
    return ast.Or((ast.And((test, if_true)), ast.And((ast.negation(test), if_false))))


def _require_arrow_column(node: ExpressionNode, reason: str) -> _ArrowColumn:
    if isinstance(node.meaning, Unanswerable):
        raise node.meaning
    if not isinstance(node.meaning, _ArrowColumn):
        raise Unanswerable(reason)
    return node.meaning


def _check_operand_time_zones(left: object, right: object) -> None:
    """Raise `FilterError` if only one of two times has a time zone.

    PyArrow would silently compare them in UTC, or fail when it reads the rows.
    """
    if isinstance(left, _ArrowColumn) and isinstance(right, pa.Scalar):
        message = time_zone_mismatch_message(ast.column_text(left.path), left.type, right)
        if message is not None:
            raise FilterError(message)
    if not isinstance(left, _ArrowColumn) or not isinstance(right, _ArrowColumn):
        return
    if time_zones_differ(left.type, right.type):
        names = ast.column_text(left.path), ast.column_text(right.path)
        raise FilterError(
            f"{names[0]} is {left.type} and {names[1]} is {right.type}; {TIME_ZONE_ADVICE}"
        )


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
    safe = ast.bound_by_leaves(predicate, lambda leaf: _bounds_by_statistics(leaf, schema))
    try:
        return expression_from_predicate(safe, schema) if ast.searched_columns(safe) else None
    except FilterError:
        return None


def _bounds_by_statistics(
    leaf: ast.LeafPredicate, schema: pa.Schema
) -> tuple[ast.Predicate, ast.Predicate]:
    """Return a leaf, and once more for its negation, or constants where it is not safe."""
    if isinstance(leaf, ast.Constant):
        return leaf, leaf
    is_safe = is_negation_safe = False
    if not isinstance(leaf, ast.Unknown):
        type_ = find_leaf_type(schema, leaf.column)
        is_exact = _has_exact_statistics(type_)
        is_floating = type_ is not None and pt.is_floating(type_)
        is_safe = is_exact or is_floating or isinstance(leaf, ast.IsNull)
        is_negation_safe = is_exact
        if isinstance(leaf, ast.IsIn):
            is_safe = is_exact or (is_floating and _has_no_zero_or_nan(leaf.values))
            # For null rows, IN of a predicate is null, but PyArrow's is_in is false, so its
            # negation is true.
            is_negation_safe = False
    return (
        leaf if is_safe else ast.Constant(True),
        leaf if is_negation_safe else ast.Constant(False),
    )


def _has_exact_statistics(arrow_type: pa.DataType | None) -> bool:
    """Return whether statistics of a type bound all its values, whichever writer made them."""
    return arrow_type is not None and not any(
        pt.is_floating(type_) or pt.is_decimal(type_) for type_ in innermost_types(arrow_type)
    )


def _has_no_zero_or_nan(values: pa.Array) -> bool:
    """Return whether no value is a zero or NaN. `is_in` compares these by their bits."""
    return all(value != 0 and not math.isnan(value) for value in values.to_pylist())

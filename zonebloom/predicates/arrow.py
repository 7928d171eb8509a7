"""PyArrow expressions brought to predicates, and as they are best applied.

What is not laid out as `arrow_form` knows it makes the whole filter `Unknown`: slower, never
wrong. So does every comparison in which PyArrow would round a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    nesting_error,
    parse_entries,
    read_expression,
    subexpression,
)
from zonebloom.predicates.expression import (
    equal_is_exact,
    expression_from_predicate,
    lookup_is_exact,
)
from zonebloom.values.columns import resolve_type
from zonebloom.values.literal import Unanswerable
from zonebloom.values.time_zones import TIME_ZONE_ADVICE, time_zone_mismatch_message
from zonebloom.values.types import (
    has_nulls_outside_bitmap,
    is_lossless_cast,
    may_hold_nan,
    time_zones_differ,
)

# Expressions of fewer entries are applied as they are.
_LONG = 600
# From OR to AND and back: PyArrow's stack ends somewhere.
_MOST_TURNS = 200
_WHOLE = {pa.int64(), pa.uint64()}
_JOINS = ("and_kleene", "or_kleene", "invert")
_COMPARISONS = {"equal": "=", "less": "<", "less_equal": "<=", "greater": ">"}
_COMPARISONS |= {"greater_equal": ">=", "not_equal": "!="}
_ONLY_LITERALS = "only a column compared with a literal is answered by a Bloom filter"


class _Column(NamedTuple):
    """A column as the expression sees it: `type` is after any cast that loses nothing."""

    path: ast.ColumnPath
    type: pa.DataType


def translate_arrow(
    expression: pc.Expression, schema: pa.Schema
) -> tuple[pc.Expression, ast.Predicate]:
    reader = _read(expression, schema)
    if isinstance(reader, ast.Unknown):
        return expression, reader
    return reader.rows(), reader.predicate


def predicate_from_arrow(expression: pc.Expression, schema: pa.Schema) -> ast.Predicate:
    reader = _read(expression, schema)
    return reader if isinstance(reader, ast.Unknown) else reader.predicate


def _read(expression: pc.Expression, schema: pa.Schema) -> _Reader | ast.Unknown:
    try:
        return _Reader(expression, schema)
    except FilterError:
        raise
    except Exception as error:  # noqa: BLE001 - a filter is never the reason to fail
        detail = f": {error}" if str(error) else ""
        return ast.Unknown(
            expression_text(expression),
            f"the expression cannot be taken apart ({type(error).__name__}{detail})",
        )


class _Reader:
    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self._expression = expression
        self._schema = schema
        self._form = read_expression(expression)
        self._nodes = parse_entries(self._form.entries)
        self._mixes_signs = False
        for node in self._nodes:
            self._understand(node)
        self.predicate = ast.simplify(self._condition(self._nodes[-1]))

    def _understand(self, node: ExpressionNode) -> None:
        try:
            if node.path:
                node.meaning = _Column(node.path, resolve_type(self._schema, node.path))
            elif node.name == "literal":
                node.meaning = self._options(node)
            else:
                node.meaning = self._call(node)
        except Unanswerable as reason:
            node.meaning = reason
        except LookupError as error:
            node.meaning = Unanswerable(str(error.args[0]))

    def _call(self, node: ExpressionNode) -> object:
        name, args = node.name, node.args
        # The non-Kleene forms give null where the Kleene ones still know an answer, so they are
        # true (and false) for fewer rows: the same bounds hold for both.
        if name in ("and", "and_kleene"):
            return ast.And(tuple(map(self._condition, args)))
        if name in ("or", "or_kleene"):
            return ast.Or(tuple(map(self._condition, args)))
        if name == "invert" and len(args) == 1:
            return ast.negation(self._condition(args[0]))
        if name in ("and_not", "and_not_kleene") and len(args) == 2:
            return ast.And((self._condition(args[0]), ast.negation(self._condition(args[1]))))
        if name in _COMPARISONS:
            return self._comparison(args, _COMPARISONS[name])
        if name == "is_in":
            return self._is_in(node)
        if name in ("is_null", "is_valid"):
            null = self._is_null(node)
            return null if name == "is_null" else ast.negation(null)
        if name == "if_else" and len(args) == 3:
            return _choice(*map(self._condition, args))
        if name == "cast":
            return self._cast(node)
        raise Unanswerable(f"the function {name} is not answered by a Bloom filter")

    def _condition(self, node: ExpressionNode) -> ast.Predicate:
        meaning = node.meaning
        if isinstance(meaning, _Column):
            meaning = Unanswerable("a boolean column is not indexed")
        elif isinstance(meaning, pa.Scalar):
            value = meaning.as_py()
            if value is None or isinstance(value, bool):
                return ast.Constant(value)
            meaning = Unanswerable("the literal is no condition")
        if isinstance(meaning, Unanswerable):
            try:
                return self._unknown(node, str(meaning))
            except FilterError:
                return ast.Unknown("...", str(meaning))
        assert isinstance(meaning, ast.Predicate)
        return meaning

    def _comparison(self, args: list[ExpressionNode], operator: str) -> ast.Predicate:
        if len(args) != 2:
            raise MalformedExpression("a comparison takes two arguments")
        if operator == "!=":
            return ast.negation(self._comparison(args, "="))
        left, right = args
        for side in args:
            if isinstance(side.meaning, pa.Scalar) and not side.meaning.is_valid:
                return ast.Constant(None)
        if isinstance(left.meaning, pa.Scalar):
            left, right, operator = right, left, ast.FLIPPED_OPERATORS[operator]
        _check_zones(left.meaning, right.meaning)
        column, value = _column(left, _ONLY_LITERALS), right.meaning
        if isinstance(value, Unanswerable):
            raise value
        if not isinstance(value, pa.Scalar):
            raise Unanswerable(_ONLY_LITERALS)
        if not equal_is_exact(column.type, value.type):
            raise Unanswerable(f"comparing {column.type} with {value.type} may round")
        self._mixes_signs = self._mixes_signs or _differ_in_sign(column.type, value.type)
        if operator == "=":
            return ast.Equals(column.path, value)
        if pa.types.is_floating(value.type) and math.isnan(value.as_py()):
            raise Unanswerable("the order of NaN depends on the engine")
        return ast.Compares(column.path, operator, value)  # pyright: ignore[reportArgumentType]

    def _is_in(self, node: ExpressionNode) -> ast.Predicate:
        if len(node.args) != 1 or self._option(node, "_type_name") != b"SetLookupOptions":
            raise MalformedExpression("is_in takes one argument and a set")
        column = _column(node.args[0], "only a column looked up in a set is answered")
        values = self._options(node)["value_set"].values
        if isinstance(values, pa.DictionaryArray):
            values = decode_dictionary(values)
        # enum NullMatchingBehavior { MATCH, SKIP, EMIT_NULL, INCONCLUSIVE }: only under MATCH is
        # a null row ever in the set, and only if the set holds a null.
        matching = self._option(node, "null_matching_behavior")
        null_matches = matching == 0 and values.null_count > 0
        values = values.drop_null()
        if len(values):
            _check_zones(column, values[0])
            if not lookup_is_exact(column.type, values):
                raise Unanswerable(f"looking {column.type} up in a set of {values.type} may round")
            self._mixes_signs = self._mixes_signs or _differ_in_sign(column.type, values.type)
        return ast.IsIn(column.path, values, null_matches)

    def _is_null(self, node: ExpressionNode) -> ast.Predicate:
        if len(node.args) != 1:
            raise MalformedExpression(f"{node.name} takes one argument")
        column = _column(node.args[0], "only the nulls of a column are known to an index")
        if has_nulls_outside_bitmap(column.type):
            raise Unanswerable(f"the nulls of {column.type} are not indexed")
        if (
            node.options_column is not None
            and self._option(node, "nan_is_null")
            and may_hold_nan(column.type)
        ):
            raise Unanswerable("NaN counted as null is not answered by a Bloom filter")
        return ast.IsNull(column.path)

    def _cast(self, node: ExpressionNode) -> object:
        if len(node.args) != 1 or self._option(node, "_type_name") != b"CastOptions":
            raise MalformedExpression("cast takes one argument and a type")
        meaning = node.args[0].meaning
        if isinstance(meaning, pa.Scalar):
            if meaning.is_valid:
                raise Unanswerable("the literal is wrapped in a cast")
            return meaning
        column = _column(node.args[0], "a condition is wrapped in a cast")
        # The type travels as the type of a null child.
        target = self._options(node).type.field("to_type").type
        if not is_lossless_cast(column.type, target):
            raise Unanswerable(f"casting {column.type} to {target} may join values")
        return _Column(column.path, target)

    def _options(self, node: ExpressionNode) -> Any:
        if node.options_column is None:
            raise MalformedExpression(f"{node.name} comes without options")
        return self._form.row.column(node.options_column)[0]

    def _option(self, node: ExpressionNode, name: str) -> object:
        return self._options(node)[name].as_py()

    def _unknown(self, node: ExpressionNode, reason: str) -> ast.Unknown:
        expression = subexpression(self._form, node)
        text = " ".join(expression_text(expression).split())
        return ast.Unknown(ast.shorten(text), reason, expression=expression)

    def rows(self) -> pc.Expression:
        """The expression as it is best applied: true, false and null for the same rows.

            a = 0 OR a = 1 OR ... OR s LIKE 'x%'    ->    a IN (0, 1, ...) OR s LIKE 'x%'
            u = 5, of a uint64 and an int64         ->    u = 5, of two uint64

        PyArrow takes more than linear time for a chain, and fails at 2**63 with a uint64 as int64.
        """
        if len(self._form.entries) <= _LONG and not self._mixes_signs:
            return self._expression
        root = self._nodes[-1]
        conditions = {id(root)}
        for node in reversed(self._nodes):
            if id(node) in conditions and node.name in _JOINS:
                conditions.update(map(id, node.args))
        trees: dict[int, ast.Predicate] = {}
        for node in self._nodes:
            if id(node) in conditions:
                trees[id(node)] = self._exact(node, [trees.get(id(arg)) for arg in node.args])
        tree = ast.flatten(trees[id(root)])
        if ast.depth(tree) > _MOST_TURNS:
            raise nesting_error(_MOST_TURNS)
        return expression_from_predicate(tree, self._schema, exact=True)

    def _exact(self, node: ExpressionNode, terms: Sequence[Any]) -> ast.Predicate:
        """What is true, false and null for the very rows; a meaning may say less."""
        meaning = node.meaning
        if node.name == "invert":
            return ast.negation(*terms)
        if node.name in _JOINS:
            return (ast.And if node.name == "and_kleene" else ast.Or)(tuple(terms))
        leaf = meaning.term if isinstance(meaning, ast.Not) else meaning
        if isinstance(leaf, ast.Equals | ast.Compares | ast.IsNull):
            return meaning
        if isinstance(leaf, ast.IsIn) and pt.is_integer(leaf.values.type):
            if leaf.null_matches or node.name == "if_else":
                return leaf
            if self._option(node, "null_matching_behavior") in (0, 1):
                # Of null, PyArrow's is_in is false.
                return ast.And((leaf, ast.Not(ast.IsNull(leaf.column))))
        return self._unknown(node, "")


def _choice(test: ast.Predicate, then: ast.Predicate, otherwise: ast.Predicate) -> ast.Predicate:
    if (
        isinstance(then, ast.IsIn)
        and not then.null_matches
        and (test, otherwise) == (ast.Not(ast.IsNull(then.column)), ast.Constant(None))
    ):
        # DuckDB's IN: of null PyArrow's is false, SQL's and ours is null.
        return then
    # Where the test is null the choice is, and this may be false: no less is bounded by it.
    return ast.Or((ast.And((test, then)), ast.And((ast.negation(test), otherwise))))


def _differ_in_sign(one: pa.DataType, other: pa.DataType) -> bool:
    return one != other and {one, other} == _WHOLE


def _column(node: ExpressionNode, otherwise: str) -> _Column:
    if isinstance(node.meaning, Unanswerable):
        raise node.meaning
    if not isinstance(node.meaning, _Column):
        raise Unanswerable(otherwise)
    return node.meaning


def _check_zones(left: object, right: object) -> None:
    """Refuse what PyArrow compares in UTC unasked, or refuses when it reads."""
    if isinstance(left, _Column) and isinstance(right, pa.Scalar):
        refusal = time_zone_mismatch_message(ast.column_text(left.path), left.type, right)
        if refusal is not None:
            raise FilterError(refusal)
    if not isinstance(left, _Column) or not isinstance(right, _Column):
        return
    if time_zones_differ(left.type, right.type):
        names = ast.column_text(left.path), ast.column_text(right.path)
        raise FilterError(
            f"{names[0]} is {left.type} and {names[1]} is {right.type}; {TIME_ZONE_ADVICE}"
        )

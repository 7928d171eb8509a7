"""Translate SQL conditions that sqlglot has parsed. Subclasses define each dialect's semantics."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates import ast
from zonebloom.predicates.ast import Constant, Predicate, Unknown
from zonebloom.predicates.expression import cast_to_comparable, expression_from_predicate
from zonebloom.predicates.text_requirements import like_tokens, require_like
from zonebloom.values.literal import Literal, Unanswerable
from zonebloom.values.types import family, has_nulls_outside_bitmap

SQL_OPERATORS = {"eq": "=", "neq": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
# PyArrow creates its functions at import, so a type checker does not know them.
_functions: Any = pc
TEXT_REASON = "text patterns are not answered by hashes of values"
PYARROW_ADVICE = "write that part as a pyarrow.compute expression"


class Entry(NamedTuple):
    """A column of lists or maps, with the key of an entry, or the field of a struct in a list."""

    column: ast.ColumnPath
    key: pa.Scalar | None = None
    field: ast.ColumnPath = ()


@dataclass(slots=True)
class Operand:
    """A column or a computed value.

    A column has a `path`. A computed value has none, and `reason` tells why no index can answer
    conditions on it. `cast_type` is the type of numbers or times that functions take the value for,
    if a CAST names one that keeps all values of the column. `is_big_integer` is explained at
    `TypedValue`. `requires` is what `ast.Unknown` has, for a condition. `entry` says of which
    column the value is an element. `elements` does so for a list of the fields of a list of
    structs. `lower_of` is a column if the value is it in lower case.
    """

    expression: pc.Expression
    type: pa.DataType
    path: ast.ColumnPath | None = None
    reason: str = ast.ONLY_LITERALS
    cast_type: pa.DataType | None = None
    is_big_integer: bool = False
    requires: Predicate | None = None
    entry: Entry | None = None
    elements: Entry | None = None
    lower_of: ast.ColumnPath | None = None


SqlValue: TypeAlias = Operand | Literal


class SqlTranslator:
    """A translator for parsed SQL conditions.

    Subclasses for the dialects define columns, literals, and how these are compared.
    """

    dialect = ""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        # The columns that a literal does not fit, or whose type holds nothing but nulls.
        self.unfitting_columns: set[ast.ColumnPath] = set()
        self.condition_methods: dict[str, Callable[[Any], Predicate]] = {
            **dict.fromkeys(("and", "or"), self._translate_junction),
            **dict.fromkeys(("like", "ilike", "escape"), self._translate_like),
            **dict.fromkeys(("nullsafeeq", "nullsafeneq"), self._translate_null_safe),
            **dict.fromkeys(SQL_OPERATORS, self._translate_comparison_node),
            "not": self._translate_not,
            "in": self._translate_in,
            "is": self._translate_is,
            "between": self._translate_between,
        }

    def translate_comparison(
        self, symbol: str, left: SqlValue, right: SqlValue, node: Any
    ) -> Predicate:
        """Return the predicate ``left symbol right``, also for the symbol "!="."""
        raise NotImplementedError

    def translate_membership(self, value: SqlValue, items: list[SqlValue], node: Any) -> Predicate:
        """Return the predicate ``value IN (items)``."""
        raise NotImplementedError

    def translate_value(self, node: Any) -> SqlValue:
        """Translate a column, a number, a cast, or another value of the dialect."""
        raise NotImplementedError

    def fail(self, what: str, advice: str, node: Any) -> NoReturn:
        """Raise an error because a node cannot be translated to a predicate."""
        raise NotImplementedError

    # Conditions

    def translate_condition(self, node: Any) -> Predicate:
        node = self.strip_parentheses(node)
        if method := self.condition_methods.get(node.key):
            return method(node)
        value = self.translate_operand(node)
        if isinstance(value, Literal):
            if value.kind in ("boolean", "null"):
                return Constant(value.value)
        elif pt.is_boolean(value.type):
            if value.path is not None:
                return ast.Equals(value.path, pa.scalar(True))
            return self.unknown_condition(node, value.reason, value.expression, value.requires)
        self.fail("this is a value, not a condition", "compare it: id = 42", node)

    def unknown_condition(
        self,
        node: Any,
        reason: str,
        expression: pc.Expression | None = None,
        requires: Predicate | None = None,
    ) -> Unknown:
        text = ast.shorten(self.sql_text(node))
        return Unknown(text, reason, expression=expression, requires=requires)

    def sql_text(self, node: Any) -> str:
        """Return the SQL of a node, which names a condition in the plan of a scan."""
        return node.sql(dialect=self.dialect)

    def _translate_junction(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expression")
        terms = tuple(self.translate_condition(term) for term in node.flatten(unnest=False))
        return ast.Or(terms) if node.key == "or" else ast.And(terms)

    def _translate_not(self, node: Any) -> Predicate:
        self.require_only(node, "this")
        term = self.translate_condition(node.this)
        if isinstance(term, ast.IsIn):
            # Null is neither in a set nor outside it. Say so explicitly, so that the negation can
            # exclude files whose path makes the column null.
            term = ast.Or((term, ast.And((ast.IsNull(term.column), Constant(None)))))
        return ast.negation(term)

    def _translate_comparison_node(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expression")
        if _is_condition_with_is(node.expression):
            # sqlglot reads a = (b IS NULL), but SQL means (a = b) IS NULL.
            self.fail(
                "IS follows a comparison without parentheses",
                "write (a = b) IS NULL, or a = (b IS NULL)",
                node,
            )
        left, right = self.translate_operand(node.this), self.translate_operand(node.expression)
        return self.translate_comparison(SQL_OPERATORS[node.key], left, right, node)

    def _translate_null_safe(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expression")
        left, right = self.translate_operand(node.this), self.translate_operand(node.expression)
        condition = self.null_safe_equality(left, right, node)
        return condition if node.key == "nullsafeeq" else ast.negation(condition)

    def null_safe_equality(self, left: SqlValue, right: SqlValue, node: Any) -> Predicate:
        """Return the predicate that two values are equal, or both are null. It is never null."""
        if isinstance(left, Literal) and left.kind == "null":
            left, right = right, left
        if isinstance(right, Literal) and right.kind == "null":
            return self._null_condition(left, node)
        # The IS NOT NULL terms make the condition false where one side is null.
        nulls = [
            self._null_condition(side, node)
            for side in (left, right)
            if not isinstance(side, Literal)
        ]
        equal = self.translate_comparison("=", left, right, node)
        condition = ast.And((equal, *map(ast.negation, nulls)))
        if len(nulls) == 2:
            condition = ast.Or((condition, ast.And(tuple(nulls))))
        return condition

    def _null_condition(self, side: SqlValue, node: Any) -> Predicate:
        if isinstance(side, Literal):
            return Constant(side.kind == "null")
        if side.path is None:
            return self.unknown_condition(node, side.reason, side.expression.is_null())
        if has_nulls_outside_bitmap(side.type):
            reason = f"the nulls of {side.type} are not indexed"
            return self.unknown_condition(node, reason, side.expression.is_null())
        return ast.IsNull(side.path)

    def _translate_is(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expression")
        if node.expression.key == "null":
            return self._null_condition(self.translate_operand(node.this), node)
        if node.expression.key != "boolean":
            self.fail("IS takes NULL, TRUE or FALSE", "use = to compare", node)
        condition = self.translate_condition(node.this)
        if not node.expression.this:
            condition = ast.negation(condition)
        is_valid = expression_from_predicate(condition, self.schema, exact=True).is_valid()
        unknown = self.unknown_condition(node, "nulls of a condition are not known", is_valid)
        return ast.And((condition, unknown))

    def _translate_between(self, node: Any) -> Predicate:
        self.require_only(node, "this", "low", "high")
        value, low, high = (
            self.translate_operand(node.args[name]) for name in ("this", "low", "high")
        )
        bounds = (
            self.translate_comparison(">=", value, low, node),
            self.translate_comparison("<=", value, high, node),
        )
        return ast.And(bounds)

    def _translate_in(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expressions")
        value = self.translate_operand(node.this)
        items = [self.translate_operand(item) for item in node.expressions]
        if not items:
            self.fail("the IN list is empty", "name at least one value, or write FALSE", node)
        return self.translate_membership(value, items, node)

    def _translate_like(self, node: Any) -> Predicate:
        escape, like = "\\", node
        if node.key == "escape":
            self.require_only(node, "this", "expression")
            escape_literal = self.translate_operand(node.expression)
            like = self.strip_parentheses(node.this)
            if (
                not isinstance(escape_literal, Literal)
                or escape_literal.kind != "text"
                or len(escape_literal.value) != 1
            ):
                self.fail("ESCAPE takes one character", "write ESCAPE '!'", node)
            if like.key not in ("like", "ilike"):
                self.fail("ESCAPE belongs to LIKE", PYARROW_ADVICE, node)
            escape = escape_literal.value
        self.require_only(like, "this", "expression", "negate")
        value, pattern = self.translate_operand(like.this), self.translate_operand(like.expression)
        if not isinstance(pattern, Literal) or isinstance(value, Literal):
            self.fail("LIKE takes a column and a literal pattern", PYARROW_ADVICE, node)
        if pattern.kind == "null" or pt.is_null(value.type):
            return Constant(None)
        if pattern.kind != "text" or family(value.type) != "text":
            self.fail(
                f"LIKE takes strings, not a column of type {value.type}", PYARROW_ADVICE, node
            )
        tokens = like_tokens(pattern.value, escape)
        if tokens is None:
            self.fail("the pattern ends in its escape character", "double it", node)
        ignore_case = like.key == "ilike"
        requires = require_like(
            value.path or value.lower_of,
            tokens,
            ignores_case=ignore_case or value.lower_of is not None,
        )
        if ignore_case or any(is_wildcard for is_wildcard, _ in tokens):
            column, _ = cast_to_comparable(value.expression, value.type)
            if ignore_case:
                # DuckDB compares in lower case. RE2 would also take a long s for an s.
                column = _functions.utf8_lower(column)
                characters = pa.array([character for _, character in tokens], pa.string())
                tokens = [
                    (is_wildcard, character)
                    for (is_wildcard, _), character in zip(
                        tokens, _functions.utf8_lower(characters).to_pylist(), strict=True
                    )
                ]
            expression = _like_expression(column, tokens)
            reason = TEXT_REASON
            predicate: Predicate = self.unknown_condition(node, reason, expression, requires)
        else:
            # A pattern without wildcards is an equality, which an index can answer.
            text = "".join(character for _, character in tokens)
            predicate = self.translate_comparison("=", value, Literal("text", text), node)
        return ast.negation(predicate) if like.args.get("negate") else predicate

    # Values

    def translate_operand(self, node: Any) -> SqlValue:
        node = self.strip_parentheses(node)
        try:
            return self._translate_operand_node(node)
        except Unanswerable as error:
            self.fail(str(error), error.advice or PYARROW_ADVICE, node)

    def _translate_operand_node(self, node: Any) -> SqlValue:
        match node.key:
            case "literal" if node.is_string:
                return Literal("text", node.this)
            case "null":
                return Literal("null")
            case "boolean":
                return Literal("boolean", bool(node.this))
            case "neg":
                value = self.translate_operand(node.this)
                if isinstance(value, Literal) and value.kind in ("number", "duration"):
                    return replace(value, value=-value.value)
            case "hexstring":
                try:
                    return Literal("bytes", bytes.fromhex(node.this))
                except ValueError:
                    raise Unanswerable(
                        "a binary literal takes pairs of hex digits", "write X'0a1b'"
                    ) from None
        return self.translate_value(node)

    # Parts

    def strip_parentheses(self, node: Any) -> Any:
        while node.key == "paren":
            self.require_only(node, "this")
            node = node.this
        return node

    def require_only(self, node: Any, *known_args: str) -> None:
        unknown_args = [
            name for name, value in node.args.items() if value and name not in known_args
        ]
        if unknown_args:
            self.fail(f"{unknown_args[0].upper()} is not understood here", PYARROW_ADVICE, node)


def _is_condition_with_is(node: Any) -> bool:
    """Return whether a node is IS NULL, IS NOT TRUE, IS DISTINCT FROM, ... without parentheses."""
    if node.key == "not":
        node = node.this
    return node.key in ("is", "nullsafeeq", "nullsafeneq")


def _like_expression(column: pc.Expression, tokens: list[tuple[bool, str]]) -> pc.Expression:
    if all(is_wildcard or character not in "\\%_" for is_wildcard, character in tokens):
        pattern = "".join(character for _, character in tokens)
        return _functions.match_like(column, pattern)
    # match_like takes some escapes literally. For example, its pattern %\\b does not match a\b.
    wildcards = {"%": ".*", "_": "."}
    regex = "".join(
        wildcards[character] if is_wildcard else re.escape(character)
        for is_wildcard, character in tokens
    )
    return _functions.match_substring_regex(column, rf"(?s)\A(?:{regex})\z")

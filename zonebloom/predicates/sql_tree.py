"""Translate SQL conditions that sqlglot has parsed to leaves that an index can answer.

`SqlTranslator` walks over the tree. A subclass for each dialect says what columns and literals are,
and compares them: `zonebloom.predicates.sql` as DuckDB does, `zonebloom.predicates.spark` as Spark.
A condition that has no exact leaf becomes `Unknown`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.predicates import ast
from zonebloom.predicates.ast import Constant, Predicate, Unknown
from zonebloom.predicates.text_requirements import like_tokens, require_like
from zonebloom.values.literal import Literal, Unanswerable
from zonebloom.values.types import LIST_TYPES, family, has_nulls_outside_bitmap

SQL_OPERATORS = {"eq": "=", "neq": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
TEXT_REASON = "text patterns are not answered by hashes of values"
PYARROW_ADVICE = "write that part as a pyarrow.compute expression"


class Entry(NamedTuple):
    """A column of lists or maps, with the key of an entry, or the field of a struct in a list."""

    column: ast.ColumnPath
    type: pa.DataType
    key: pa.Scalar | None = None
    field: ast.ColumnPath = ()


@dataclass(slots=True)
class Operand:
    """A column or a computed value.

    A column has a `path` and a type. `cast_type` is the type that a CAST gives it, if the cast
    keeps all values of the column. A computed value has no path, and `reason` tells why no index
    can answer comparisons of it. `entry` says of which column it is an element, `elements` of which
    column it is a list, and `lower_of` which column it is in lower case. `requires` is what a
    condition requires, as in `ast.Unknown`.
    """

    type: pa.DataType | None = None
    path: ast.ColumnPath | None = None
    reason: str = ast.ONLY_LITERALS
    cast_type: pa.DataType | None = None
    entry: Entry | None = None
    elements: Entry | None = None
    lower_of: ast.ColumnPath | None = None
    requires: Predicate | None = None


SqlValue: TypeAlias = Operand | Literal


class SqlTranslator:
    """A translator for parsed SQL conditions.

    Subclasses for the dialects define columns, literals, and how these are compared.
    """

    dialect: Any = ""
    # The character that escapes in LIKE without ESCAPE, or an empty string.
    default_escape = ""

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
        elif value.path is None:
            return self.unknown_condition(node, value.reason, value.requires)
        elif value.type is not None and pt.is_boolean(value.type):
            return ast.Equals(value.path, pa.scalar(True))
        self.fail("this is a value, not a condition", "compare it: id = 42", node)

    def unknown_condition(
        self, node: Any, reason: str, requires: Predicate | None = None
    ) -> Unknown:
        return Unknown(ast.shorten(self.sql_text(node)), reason, requires=requires)

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
        left, right = self.translate_operand(node.this), self.translate_operand(node.expression)
        return self.translate_comparison(SQL_OPERATORS[node.key], left, right, node)

    def _translate_null_safe(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expression")
        left, right = self.translate_operand(node.this), self.translate_operand(node.expression)
        condition = self.null_safe_equality(left, right, node)
        return condition if node.key == "nullsafeeq" else ast.negation(condition)

    def null_safe_equality(self, left: SqlValue, right: SqlValue, node: Any) -> Predicate:
        """Return the predicate that two values are equal, or both are null. It is never null."""
        if isinstance(left, Literal):
            left, right = right, left
        if isinstance(right, Literal) and right.kind == "null":
            return self._null_condition(left, node)
        if not isinstance(right, Literal) or isinstance(left, Literal) or left.path is None:
            return self.unknown_condition(node, ast.ONLY_LITERALS)
        equal = self.translate_comparison("=", left, right, node)
        # The IS NOT NULL makes the condition false where the column is null.
        return ast.And((equal, ast.negation(self._null_condition(left, node))))

    def _null_condition(self, side: SqlValue, node: Any) -> Predicate:
        if isinstance(side, Literal):
            return Constant(side.kind == "null")
        if side.path is None:
            return self.unknown_condition(node, side.reason)
        if side.type is not None and has_nulls_outside_bitmap(side.type):
            return self.unknown_condition(node, f"the nulls of {side.type} are not indexed")
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
        return self.unknown_condition(node, "nulls of a condition are not known", condition)

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
        escape, like = self.default_escape, node
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
        if isinstance(value, Literal) or not isinstance(pattern, Literal):
            return self.unknown_condition(node, ast.ONLY_LITERALS)
        if pattern.kind == "null" or (value.type is not None and pt.is_null(value.type)):
            return Constant(None)
        if value.type is not None and family(value.type) != "text":
            is_list = isinstance(value.type, LIST_TYPES)
            self.fail(
                f"LIKE takes strings, not a column of type {value.type}",
                "write list_contains(column, value)" if is_list else PYARROW_ADVICE,
                node,
            )
        if pattern.kind != "text":
            self.fail("LIKE takes a pattern in single quotes", "write LIKE 'a%'", node)
        tokens = like_tokens(pattern.value, escape)
        if tokens is None:
            self.fail("the pattern ends in its escape character", "double it", node)
        ignore_case = like.key == "ilike"
        if ignore_case or value.path is None or any(is_wildcard for is_wildcard, _ in tokens):
            requires = require_like(
                value.path or value.lower_of,
                tokens,
                ignores_case=ignore_case or value.lower_of is not None,
            )
            predicate: Predicate = self.unknown_condition(node, TEXT_REASON, requires)
            # The node of NOT LIKE is the negation itself.
            return replace(predicate, requires=None) if like.args.get("negate") else predicate
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

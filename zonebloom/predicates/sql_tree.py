"""Conditions of SQL text, walked as sqlglot parsed them; each dialect says what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates import ast
from zonebloom.predicates.ast import Constant, Predicate, Unknown
from zonebloom.predicates.expression import cast_to_comparable, expression_from_predicate
from zonebloom.values.literal import Literal, Unanswerable
from zonebloom.values.types import family, has_nulls_outside_bitmap

SQL_OPERATORS = {"eq": "=", "neq": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
PYARROW_ADVICE = "write that part as a pyarrow.compute expression"
ONLY_LITERALS_REASON = "only a column compared with a literal is answered by a Bloom filter"


@dataclass(slots=True)
class Operand:
    """A column, with its `path`, or what is computed, with the `reason` why no index answers."""

    expression: pc.Expression
    type: pa.DataType
    path: ast.ColumnPath | None = None
    reason: str = ONLY_LITERALS_REASON


OperandOrLiteral: TypeAlias = Operand | Literal


class SqlTranslator:
    """Walks a parsed condition; a dialect gives columns, literals, and how they are compared."""

    dialect = ""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.condition_methods: dict[str, Callable[[Any], Predicate]] = {
            **dict.fromkeys(("and", "or"), self._junction),
            **dict.fromkeys(("like", "ilike", "escape"), self._like),
            **dict.fromkeys(("nullsafeeq", "nullsafeneq"), self._null_safe),
            **dict.fromkeys(SQL_OPERATORS, self._comparison),
            "not": self._not,
            "in": self._in,
            "is": self._is,
            "between": self._between,
        }

    def translate_comparison(
        self, symbol: str, left: OperandOrLiteral, right: OperandOrLiteral, node: Any
    ) -> Predicate:
        """What two sides compared come to; "!=" is among the symbols."""
        raise NotImplementedError

    def translate_membership(
        self, value: OperandOrLiteral, items: list[OperandOrLiteral], node: Any
    ) -> Predicate:
        """What a value looked up in a list comes to."""
        raise NotImplementedError

    def translate_value(self, node: Any) -> OperandOrLiteral:
        """A column, a number, a cast, or whatever else the dialect knows."""
        raise NotImplementedError

    def fail(self, what: str, advice: str, node: Any) -> NoReturn:
        """Say that a node has no meaning here."""
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
            return self.unknown_condition(node, value.reason, value.expression)
        self.fail("this is a value, not a condition", "compare it: id = 42", node)

    def unknown_condition(
        self, node: Any, reason: str, expression: pc.Expression | None = None
    ) -> Unknown:
        text = ast.shorten(node.sql(dialect=self.dialect))
        return Unknown(text, reason, expression=expression)

    def _junction(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expression")
        terms = tuple(self.translate_condition(term) for term in node.flatten(unnest=False))
        return ast.Or(terms) if node.key == "or" else ast.And(terms)

    def _not(self, node: Any) -> Predicate:
        self.require_only(node, "this")
        term = self.translate_condition(node.this)
        if isinstance(term, ast.IsIn):
            # Null is neither in a set nor outside it, so NOT IN leaves out the paths that give it.
            term = ast.Or((term, ast.And((ast.IsNull(term.column), Constant(None)))))
        return ast.negation(term)

    def _comparison(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expression")
        left, right = self.translate_operand(node.this), self.translate_operand(node.expression)
        return self.translate_comparison(SQL_OPERATORS[node.key], left, right, node)

    def _null_safe(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expression")
        left, right = self.translate_operand(node.this), self.translate_operand(node.expression)
        if isinstance(left, Literal) and left.kind == "null":
            left, right = right, left
        if isinstance(right, Literal) and right.kind == "null":
            same = self._null(left, node)
        else:
            # Never null itself: where a side is null, the comparison is cut off.
            nulls = [self._null(s, node) for s in (left, right) if not isinstance(s, Literal)]
            equal = self.translate_comparison("=", left, right, node)
            same = ast.And((equal, *map(ast.negation, nulls)))
            if len(nulls) == 2:
                same = ast.Or((same, ast.And(tuple(nulls))))
        return same if node.key == "nullsafeeq" else ast.negation(same)

    def _null(self, side: OperandOrLiteral, node: Any) -> Predicate:
        if isinstance(side, Literal):
            return Constant(side.kind == "null")
        if side.path is None:
            return self.unknown_condition(node, side.reason, side.expression.is_null())
        if has_nulls_outside_bitmap(side.type):
            reason = f"the nulls of {side.type} are not indexed"
            return self.unknown_condition(node, reason, side.expression.is_null())
        return ast.IsNull(side.path)

    def _is(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expression")
        if node.expression.key == "null":
            return self._null(self.translate_operand(node.this), node)
        if node.expression.key != "boolean":
            self.fail("IS takes NULL, TRUE or FALSE", "use = to compare", node)
        truth = self.translate_condition(node.this)
        truth = truth if node.expression.this else ast.negation(truth)
        valid = expression_from_predicate(truth, self.schema, exact=True).is_valid()
        return ast.And(
            (truth, self.unknown_condition(node, "nulls of a condition are not known", valid))
        )

    def _between(self, node: Any) -> Predicate:
        self.require_only(node, "this", "low", "high")
        value, low, high = (self.translate_operand(node.args[k]) for k in ("this", "low", "high"))
        bounds = (
            self.translate_comparison(">=", value, low, node),
            self.translate_comparison("<=", value, high, node),
        )
        return ast.And(bounds)

    def _in(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expressions")
        value = self.translate_operand(node.this)
        items = [self.translate_operand(item) for item in node.expressions]
        if not items:
            self.fail("the IN list is empty", "name at least one value, or write FALSE", node)
        return self.translate_membership(value, items, node)

    def _like(self, node: Any) -> Predicate:
        escape, like = "\\", node
        if node.key == "escape":
            self.require_only(node, "this", "expression")
            mark, like = self.translate_operand(node.expression), self.strip_parentheses(node.this)
            if not isinstance(mark, Literal) or mark.kind != "text" or len(mark.value) != 1:
                self.fail("ESCAPE takes one character", "write ESCAPE '!'", node)
            if like.key not in ("like", "ilike"):
                self.fail("ESCAPE belongs to LIKE", PYARROW_ADVICE, node)
            escape = mark.value
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
        tokens = _like_tokens(pattern.value, escape)
        if tokens is None:
            self.fail("the pattern ends in its escape character", "double it", node)
        no_case = like.key == "ilike"
        if no_case or any(wild for wild, _ in tokens):
            match = _match_like(
                cast_to_comparable(value.expression, value.type)[0], tokens, no_case
            )
            reason = "text patterns are not answered by a Bloom filter"
            found: Predicate = self.unknown_condition(node, reason, match)
        else:  # no wildcard: an equality, which an index can answer
            found = self.translate_comparison(
                "=", value, Literal("text", "".join(c for _, c in tokens)), node
            )
        return ast.negation(found) if like.args.get("negate") else found

    # Values

    def translate_operand(self, node: Any) -> OperandOrLiteral:
        node = self.strip_parentheses(node)
        try:
            return self._operand(node)
        except Unanswerable as error:
            self.fail(str(error), error.advice or PYARROW_ADVICE, node)

    def _operand(self, node: Any) -> OperandOrLiteral:
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

    def require_only(self, node: Any, *known: str) -> None:
        extra = [name for name, value in node.args.items() if value and name not in known]
        if extra:
            self.fail(f"{extra[0].upper()} is not understood here", PYARROW_ADVICE, node)


def _like_tokens(pattern: str, escape: str) -> list[tuple[bool, str]] | None:
    """Split a pattern into (is a wildcard, character); None if it ends within an escape."""
    tokens = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            character = next(characters, "")
            if not character:
                return None
            tokens.append((False, character))
        else:
            tokens.append((character in "%_", character))
    return tokens


def _match_like(
    column: pc.Expression, tokens: list[tuple[bool, str]], ignore_case: bool
) -> pc.Expression:
    # PyArrow makes its functions when it is imported, out of a type checker's sight.
    functions: Any = pc
    if all(wild or c not in "\\%_" for wild, c in tokens):
        pattern = "".join(c for _, c in tokens)
        return functions.match_like(column, pattern, ignore_case=ignore_case)
    # match_like takes some escapes literally: its pattern %\\b does not find a\b.
    wildcards = {"%": ".*", "_": "."}
    regex = "".join(wildcards[c] if wild else re.escape(c) for wild, c in tokens)
    return functions.match_substring_regex(column, rf"(?s)\A(?:{regex})\z", ignore_case=ignore_case)

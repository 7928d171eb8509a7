"""Translate comparisons of columns with literals and with other columns in SQL filters."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base import arguments
from zonebloom.base.arrays import array_of
from zonebloom.errors import FilterError
from zonebloom.predicates import ast, sql_literals
from zonebloom.predicates.arrow_form import referenced_columns
from zonebloom.predicates.ast import Constant, Predicate
from zonebloom.predicates.expression import (
    ORDER_OPERATORS,
    build_expression,
    cast_to_comparable,
    decimal_as_float,
)
from zonebloom.predicates.sql_keywords import LITERAL_WORDS
from zonebloom.predicates.sql_literals import comparison_predicate, membership_predicate
from zonebloom.predicates.sql_parser import as_sentence, mark_place
from zonebloom.predicates.sql_tree import (
    PYARROW_ADVICE,
    Operand,
    SqlTranslator,
    SqlValue,
)
from zonebloom.predicates.text_requirements import Piece, require_pieces
from zonebloom.values.columns import matching_names
from zonebloom.values.literal import (
    Literal,
    StoredValue,
    Unanswerable,
    round_to_float,
    to_stored,
)
from zonebloom.values.normal_types import comparable_type
from zonebloom.values.time_zones import TIME_ZONE_ADVICE
from zonebloom.values.types import (
    TICKS_PER_SECOND,
    family,
    integer_bounds,
    is_lossless_cast,
    time_zones_differ,
)

TIME_ZONE_CAST_ADVICE = f"{PYARROW_ADVICE}: {TIME_ZONE_ADVICE}"
_COMPARISON_OPERATORS = {"=": operator.eq, **ORDER_OPERATORS}
# Longer integers are outside the range of every column type.
_MAX_INTEGER_DIGITS = 40
_SIMPLE_LITERAL = r"(?:-?\d+(?:\.\d+)?|'[^'\\\x00-\x1f]*')"
_SIMPLE_LITERALS = re.compile(_SIMPLE_LITERAL, re.ASCII)
_SIMPLE_CONDITION = re.compile(
    r""" *(?P<name>[A-Za-z_][A-Za-z0-9_]*|"[^"\\\x00-\x1f]+"|`[^`\\\x00-\x1f]+`) *"""
    rf"(?:= *(?P<one>{_SIMPLE_LITERAL})"
    rf"| [Ii][Nn] *\( *(?P<many>{_SIMPLE_LITERAL}(?: *, *{_SIMPLE_LITERAL})*) *\)) *",
    re.ASCII,
)
_AND = re.compile(r"(?<=[ )])AND ", re.ASCII | re.IGNORECASE)


def translate_simple_condition(
    text: str, schema: pa.Schema
) -> tuple[Predicate, frozenset[ast.ColumnPath]] | None:
    """Translate ``column = literal``, ``column IN (literals)``, or several of these with AND.

        tailnum = 'N14228'      "Delay" = -1.5 AND id IN (1, 2, 3)

    Return the predicate, and the columns that a literal does not fit. Return None for other text.
    Importing sqlglot takes longer than looking up a key.
    """
    matches: list[re.Match[str]] = []
    end = 0
    while match := _SIMPLE_CONDITION.match(text, end):
        matches.append(match)
        conjunction = _AND.match(text, match.end())
        if conjunction is None:
            break
        end = conjunction.end()
    if not matches or matches[-1].end() != len(text):
        return None
    translator = PlainSqlTranslator(text, schema)
    predicates = tuple(map(translator.translate_simple, matches))
    predicate = predicates[0] if len(predicates) == 1 else ast.flatten(ast.And(predicates))
    return predicate, frozenset(translator.unfitting_columns)


class PlainSqlTranslator(SqlTranslator):
    """A translator for SQL with the semantics of DuckDB.

    A part that has no meaning raises `FilterError`, which shows the place in the text.
    """

    def __init__(self, text: str, schema: pa.Schema) -> None:
        super().__init__(schema)
        self.text = text

    def translate_condition(self, node: Any) -> Predicate:
        if node.key in ("select", "union", "subquery", "command"):
            self.fail("a filter is a condition, not a query", "write the part after WHERE", node)
        return super().translate_condition(node)

    def translate_comparison(
        self, symbol: str, left: SqlValue, right: SqlValue, node: Any
    ) -> Predicate:
        if symbol == "!=":
            return ast.negation(self.translate_comparison("=", left, right, node))
        if isinstance(left, Literal):
            if isinstance(right, Literal):
                return self._compare_literals(symbol, left, right, node)
            symbol, left, right = ast.FLIPPED_OPERATORS[symbol], right, left
        if not isinstance(right, Literal):
            return self._compare_columns(symbol, left, right, node)
        if right.kind == "null" or pt.is_null(left.type):
            return Constant(None)
        stored_value = self._to_stored_value(right, left.type, node)
        if not is_held(left.type, stored_value):
            self._note_unfitting(left)
        predicate = comparison_predicate(
            left.path or (), comparable_type(left.type), symbol, stored_value
        )
        return self._over_operand(left, predicate, node)

    def translate_simple(self, match: re.Match[str]) -> Predicate:
        """Translate a match of ``column = literal`` or ``column IN (literals)``."""
        name = match["name"]
        if name.upper() in LITERAL_WORDS:
            raise FilterError("this is a literal, not a column")
        column = self.resolve_column([name[1:-1] if name[0] in '"`' else name], None)
        if match["one"] is not None:
            return self.translate_comparison("=", column, _simple_literal(match["one"]), None)
        texts = _SIMPLE_LITERALS.findall(match["many"])
        values = [text[1:-1] if text[0] == "'" else _plain_integer(text) for text in texts]
        set_of_plain_values = plain_set(column, values)
        if set_of_plain_values is not None:
            return set_of_plain_values
        return self.translate_membership(column, list(map(_simple_literal, texts)), None)

    def translate_membership(self, value: SqlValue, items: list[SqlValue], node: Any) -> Predicate:
        literals = [item for item in items if isinstance(item, Literal)]
        if isinstance(value, Literal) or len(literals) < len(items):
            return ast.Or(
                tuple(self.translate_comparison("=", value, item, node) for item in items)
            )
        if pt.is_null(value.type):
            return Constant(None)
        nodes = [None] * len(literals) if node is None else node.expressions
        stored_values = [
            self._to_stored_value(literal, value.type, literal_node)
            for literal, literal_node in zip(literals, nodes, strict=True)
            if literal.kind != "null"
        ]
        if not all(is_held(value.type, stored_value) for stored_value in stored_values):
            self._note_unfitting(value)
        type_ = comparable_type(value.type)
        membership = membership_predicate(value.path or (), type_, stored_values)
        predicate = self._over_operand(value, membership, node)
        has_null = len(stored_values) < len(items)
        return ast.Or((predicate, Constant(None))) if has_null else predicate

    def _note_unfitting(self, operand: Operand) -> None:
        """Note that the columns of an operand are compared with a literal they do not hold."""
        if operand.path is not None:
            self.unfitting_columns.add(operand.path)
        elif operand.entry is not None:
            self.unfitting_columns.add(operand.entry.column)
        else:
            names = referenced_columns(operand.expression) or set()
            self.unfitting_columns.update((name,) for name in names.intersection(self.schema.names))

    def _over_operand(self, operand: Operand, predicate: Predicate, node: Any) -> Predicate:
        if operand.path is not None:
            return predicate
        expression = build_expression(
            predicate, lambda _: (operand.expression, operand.type), exact=True
        )
        requires = _requirement_on(operand, predicate)
        return self.unknown_condition(node, operand.reason, expression, requires)

    def _to_stored_value(self, literal: Literal, column: pa.DataType, node: Any) -> StoredValue:
        try:
            literal = sql_literals.adapt_literal(literal, column)
            if family(column) == "float":
                # The values of the column and the literal are compared as doubles.
                return StoredValue(float(literal.value))
            return to_stored(literal, comparable_type(column))
        except Unanswerable as error:
            self.fail(str(error), error.advice or PYARROW_ADVICE, node)

    def _compare_columns(self, symbol: str, left: Operand, right: Operand, node: Any) -> Predicate:
        if pt.is_null(left.type) or pt.is_null(right.type):
            return Constant(None)
        a, a_type = cast_to_comparable(left.expression, left.type)
        b, b_type = cast_to_comparable(right.expression, right.type)
        if a_type != b_type:
            common = self._common_type(a_type, b_type, node)
            a, b = _cast_column(a, a_type, common), _cast_column(b, b_type, common)
        return self.unknown_condition(node, ast.ONLY_LITERALS, _COMPARISON_OPERATORS[symbol](a, b))

    def _common_type(self, a: pa.DataType, b: pa.DataType, node: Any) -> pa.DataType:
        """Return a type that holds the values of both types.

        The type that PyArrow would choose may be too small.
        """
        for narrow, wide in ((a, b), (b, a)):
            if is_lossless_cast(narrow, wide, checked=True):
                return wide
        families = {family(a), family(b)}
        if families == {"bytes"}:
            return pa.large_binary()
        if families == {"integer"}:
            return pa.decimal128(20, 0) if 64 in (a.bit_width, b.bit_width) else pa.int64()
        if families <= {"integer", "decimal", "float"}:
            if "float" in families:
                return pa.float64()
            whole_digits = max(
                type_.precision - type_.scale if pt.is_decimal(type_) else 20 for type_ in (a, b)
            )
            scale = max(type_.scale if pt.is_decimal(type_) else 0 for type_ in (a, b))
            return pa.decimal256(min(whole_digits + scale, 76), scale)
        if families <= {"date", "timestamp"}:
            return a if pt.is_timestamp(a) else b
        if families in ({"time"}, {"duration"}):
            return max(a, b, key=lambda type_: TICKS_PER_SECOND[type_.unit])
        if time_zones_differ(a, b):
            self.fail(f"columns of types {a} and {b} are compared", TIME_ZONE_CAST_ADVICE, node)
        self.fail(f"columns of types {a} and {b} cannot be compared", "cast one of them", node)

    def _compare_literals(self, symbol: str, left: Literal, right: Literal, node: Any) -> Predicate:
        if "null" in (left.kind, right.kind):
            return Constant(None)
        if left.kind != right.kind and not {left.kind, right.kind} <= {"date", "timestamp"}:
            self.fail("two literals of different kinds are compared", "write TRUE or FALSE", node)
        return Constant(bool(_COMPARISON_OPERATORS[symbol](left.value, right.value)))

    def resolve_column(self, names: list[str], node: Any) -> Operand:
        full_name = ".".join(names)
        is_column = bool(matching_names(self.schema.names, names[0]))
        if not is_column and matching_names(self.schema.names, full_name):
            names = [full_name]
        path: list[str] = []
        fields: pa.Schema | pa.DataType = self.schema
        for number, name in enumerate(names):
            if isinstance(fields, pa.DataType) and is_list_of_structs(fields):
                return self.list_of_fields(tuple(path), fields, names[number:], node)
            if not isinstance(fields, pa.Schema | pa.StructType):
                parent = ast.column_text(tuple(path))
                self.fail(f"{parent} is {fields} and has no fields", PYARROW_ADVICE, node)
            field_names = [field.name for field in fields]
            matches = matching_names(field_names, name)
            if len(matches) > 1:
                candidates = ", ".join(matches)
                self.fail(
                    f"more than one column is called {name}: {candidates}", "rename one", node
                )
            if not matches:
                advice = arguments.suggest_names(name, field_names, "the columns are")
                if len(names) == 1 and self._is_in_double_quotes(node):
                    quoted = "'" + name.replace("'", "''") + "'"
                    advice = f"write a string in single quotes: {quoted}; {advice}"
                self.fail(f"there is no column {full_name}", advice, node)
            path += matches
            fields = fields.field(matches[0]).type
        if isinstance(fields, pa.DataType) and pt.is_null(fields):
            self.unfitting_columns.add(tuple(path))
        return Operand(pc.field(*path), fields, tuple(path))

    def list_of_fields(
        self, path: ast.ColumnPath, list_type: pa.DataType, names: list[str], node: Any
    ) -> Operand:
        """Return the list of a field of all structs in a list."""
        name = ast.column_text(path)
        self.fail(f"{name} is {list_type} and has no fields", PYARROW_ADVICE, node)

    def _is_in_double_quotes(self, column: Any) -> bool:
        """Return whether the text of a column is one name in double quotes."""
        if column is None or column.key != "column":
            return False
        start = column.this.meta.get("start")
        return start is not None and self.text[start] == '"'

    def fail(self, what: str, advice: str, node: Any) -> NoReturn:
        nodes = () if node is None else node.walk()
        spans = [n.meta for n in nodes if "start" in n.meta and "end" in n.meta]
        place = f"  {self.text}"
        if spans:
            start, end = min(m["start"] for m in spans), max(m["end"] for m in spans)
            line = self.text.count("\n", 0, start)
            column = start - (self.text.rfind("\n", 0, start) + 1)
            place = mark_place(self.text, line, column, end - start + 1)
        raise FilterError(f"cannot read the filter: {what}.\n{place}\n{as_sentence(advice)}")


def is_held(type_: pa.DataType, stored_value: StoredValue) -> bool:
    """Return whether a type holds a literal, as all float types hold NaN."""
    value = stored_value.value
    if stored_value.is_exact and isinstance(value, float | Fraction) and family(type_) == "float":
        bits = comparable_type(type_).bit_width
        return math.isnan(value) or round_to_float(value, bits) == value
    return stored_value.is_exact


def is_list_of_structs(type_: Any) -> bool:
    is_list = pt.is_list(type_) or pt.is_large_list(type_)
    return is_list and pt.is_struct(type_.value_type)


def _requirement_on(operand: Operand, predicate: Predicate) -> Predicate | None:
    """Return what a comparison of a computed value requires of the column it is computed from."""
    if operand.entry is not None:
        column, key, field = operand.entry
        match predicate:
            case ast.Equals(_, value):
                return ast.HasElement(column, pa.array([value], value.type), field, key)
            case ast.IsIn(_, values, False):
                return ast.HasElement(column, values, field, key)
    if operand.lower_of is not None and isinstance(predicate, ast.Equals):
        piece = Piece(predicate.value.as_py(), is_first=True, is_last=True)
        return require_pieces(operand.lower_of, [piece], ignores_case=True)
    return None


def _cast_column(
    expression: pc.Expression, type_: pa.DataType, common: pa.DataType
) -> pc.Expression:
    if type_ == common:
        return expression
    if pt.is_decimal(type_) and pt.is_floating(common):
        return decimal_as_float(expression, common)
    return expression.cast(common)


def plain_set(operand: SqlValue, values: Sequence[int | str | None]) -> Predicate | None:
    """Return a column's set of plain integers or strings, or None for any other values.

    `PlainSqlTranslator.translate_membership` returns the same predicate, but takes ten times as
    long per literal.
    """
    if isinstance(operand, Literal) or operand.path is None or not values:
        return None
    type_, kind = comparable_type(operand.type), family(operand.type)
    numbers = [value for value in values if isinstance(value, int)]
    if kind == "integer" and pt.is_integer(type_) and len(numbers) == len(values):
        low, high = integer_bounds(type_)
        if low <= min(numbers) and max(numbers) <= high:
            return ast.IsIn(operand.path, array_of(numbers, type_))
    if kind == "text" and all(isinstance(value, str) for value in values):
        return ast.IsIn(operand.path, array_of(list(values), type_))
    return None


def plain_value(node: Any) -> int | str | None:
    """Return the value of a node that is a string or a plain integer, or None."""
    if node.key == "neg" and node.this.key == "literal" and not node.this.is_string:
        return _plain_integer(f"-{node.this.this}")
    if node.key != "literal":
        return None
    return node.this if node.is_string else _plain_integer(node.this)


def _plain_integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    is_plain = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_INTEGER_DIGITS
    return int(text) if is_plain else None


def _simple_literal(text: str) -> Literal:
    return Literal("text", text[1:-1]) if text[0] == "'" else sql_literals.parse_number(text)

"""SQL filters brought to predicates: sqlglot parses, each node gets its meaning over a schema.

What no index answers becomes `Unknown` with the PyArrow expression that is applied for it. Names
match exactly, then without case if one column fits. Literals take their type from the column. Of a
time and a column either both or neither has a zone: engines differ in the one they take. LIKE
escapes with a backslash unless ESCAPE says otherwise. NaN equals nothing, itself included.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection
from contextlib import suppress
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base import arguments
from zonebloom.base.arrays import array_of
from zonebloom.errors import FilterError
from zonebloom.predicates import ast, sql_literals
from zonebloom.predicates.ast import Constant, Predicate
from zonebloom.predicates.expression import (
    ORDER_OPERATORS,
    build_expression,
    cast_to_comparable,
    comparable_type,
    expression_from_predicate,
)
from zonebloom.predicates.sql_keywords import quote_keyword_columns
from zonebloom.predicates.sql_literals import comparison_predicate, membership_predicate
from zonebloom.predicates.sql_simple import parse_simple
from zonebloom.predicates.sql_tree import (
    ONLY_LITERALS_REASON,
    PYARROW_ADVICE,
    Operand,
    OperandOrLiteral,
    SqlTranslator,
)
from zonebloom.values.columns import matching_names, resolve_type
from zonebloom.values.literal import Literal, StoredValue, Unanswerable, to_stored
from zonebloom.values.time_zones import TIME_ZONE_ADVICE
from zonebloom.values.types import (
    TICKS_PER_SECOND,
    decoded_type,
    family,
    integer_bounds,
    is_lossless_cast,
    time_zones_differ,
)

_ZONES = f"{PYARROW_ADVICE}: {TIME_ZONE_ADVICE}"
_COMPARE = {"=": operator.eq, **ORDER_OPERATORS}
_TYPES: dict[str, pa.DataType] = {
    **{"BOOLEAN": pa.bool_(), "DATE": pa.date32(), "TIME": pa.time64("ns"), "UUID": pa.uuid()},
    **{"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64()},
    **{"UTINYINT": pa.uint8(), "USMALLINT": pa.uint16(), "UINT": pa.uint32()},
    **{"UBIGINT": pa.uint64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64()},
    **dict.fromkeys(("VARCHAR", "CHAR", "TEXT"), pa.string()),
    **dict.fromkeys(("BINARY", "VARBINARY"), pa.binary()),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPNTZ"), pa.timestamp("us")),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
}
_SECONDS = {"WEEK": 604800, "DAY": 86400, "HOUR": 3600, "MINUTE": 60, "SECOND": 1}
_FRACTIONS = {"MILLISECOND": 10**3, "MICROSECOND": 10**6, "NANOSECOND": 10**9}


def predicate_from_sql(text: str, schema: pa.Schema) -> Predicate:
    """Translate a SQL condition, the part behind WHERE; `from_predicate` makes it an expression."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError(
            f"the filter holds {text[error.start]!r} at {error.start}, which is half a character; "
            "put the whole one there"
        ) from None
    simple = parse_simple(text)
    if simple is not None:
        # What has no meaning is refused below, where sqlglot's nodes say at which place.
        with suppress(FilterError):
            return ast.flatten(_Translator(text, schema).translate_condition(simple))
    try:
        return ast.flatten(
            _Translator(text, schema).translate_condition(_parse(text, schema.names))
        )
    except RecursionError:
        raise FilterError(
            "cannot read the filter: it is nested too deeply; write a chain of OR or AND without "
            "parentheses, or IN"
        ) from None


@functools.cache
def _dialect() -> Any:
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.tokens import Tokenizer as Plain

    class ZoneBloom(Dialect):
        """Plain SQL, with both ways of quoting a name and X'0a' for bytes."""

        class Tokenizer(Plain):
            IDENTIFIERS: ClassVar = ['"', "`"]
            HEX_STRINGS: ClassVar = [("x'", "'"), ("X'", "'")]
            # No word begins a statement whose rest is one string: a column may have its name.
            COMMANDS: ClassVar = set()

    return ZoneBloom


_STATEMENTS = """
SELECT WITH FROM VALUES TABLE SHOW DESCRIBE DESC EXPLAIN INSERT UPDATE DELETE MERGE CREATE ALTER
DROP TRUNCATE SET USE CALL EXECUTE
"""
_STATEMENT_WORDS = frozenset(_STATEMENTS.split())


def _parse(text: str, names: Collection[str] = ()) -> Any:
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError

    tokens: list[Any] = []
    try:
        # Not as a statement: sqlglot takes "set = 5" for one, and logs a warning.
        dialect = _dialect()()
        tokens = quote_keyword_columns(dialect.tokenize(text), names)
        statements = dialect.parser().parse_into(exp.Condition, tokens, text)
    except ParseError as error:
        if not error.errors:
            raise FilterError(f"cannot read the filter: {error}\n  {text}") from None
        if tokens and tokens[0].text.upper() in _STATEMENT_WORDS:
            first_line = _caret(text, tokens[0].line - 1, 0, len(tokens[0].text))
            raise FilterError(
                "cannot read the filter: a filter is a condition, not a query.\n"
                f"{first_line}\nWrite the part behind WHERE."
            ) from None
        first = error.errors[0]
        line, mark = first.get("line") or 1, first.get("highlight") or "?"
        what = str(first.get("description", "not SQL")).split("<")[0].strip()
        if what.startswith("Required keyword"):  # sqlglot's words for a missing operand
            what = "something is missing"
        place = _caret(text, line - 1, (first.get("col") or 1) - len(mark), len(mark))
        raise FilterError(
            f"cannot read the filter: {what}.\n{place}\n"
            'Correct it there; a column named like a keyword goes in quotes: "case" = 1.'
        ) from None
    except SqlglotError as error:
        raise FilterError(
            f"cannot read the filter: {error}\n  {text}\nClose every quote; write X'0a' in hex."
        ) from None
    # Text behind a comment's end or a trailing semicolon parses to None.
    found = [statement for statement in statements if statement is not None]
    if not found:
        raise FilterError("the filter is empty; write a condition such as id = 42, or pass None")
    if len(found) > 1:
        raise FilterError(
            f"the filter holds {len(found)} statements; write one condition, joined by AND or OR\n"
            f"  {text}"
        )
    return found[0]


class _Translator(SqlTranslator):
    """SQL over a schema, as DuckDB answers it; what has no meaning is refused, and where."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        super().__init__(schema)
        self.text = text

    def translate_condition(self, node: Any) -> Predicate:
        if node.key in ("select", "union", "subquery", "command"):
            self.fail("a filter is a condition, not a query", "write the part behind WHERE", node)
        return super().translate_condition(node)

    def translate_comparison(
        self, symbol: str, left: OperandOrLiteral, right: OperandOrLiteral, node: Any
    ) -> Predicate:
        if symbol == "!=":
            return ast.negation(self.translate_comparison("=", left, right, node))
        if isinstance(left, Literal):
            if isinstance(right, Literal):
                return self._fold(symbol, left, right, node)
            symbol, left, right = ast.FLIPPED_OPERATORS[symbol], right, left
        if not isinstance(right, Literal):
            return self._compare_columns(symbol, left, right, node)
        if right.kind == "null" or pt.is_null(left.type):
            return Constant(None)
        stored = self._stored(right, left.type, node)
        predicate = comparison_predicate(
            left.path or (), comparable_type(left.type), symbol, stored
        )
        return self._of(left, predicate, node)

    def _in(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expressions")
        found = self._plain_in(node)
        return super()._in(node) if found is None else found

    def _plain_in(self, node: Any) -> Predicate | None:
        """Return a column's set of plain integers or strings, or None for any other list.

        `among` gives the same predicate, but takes ten times as long for each literal.
        """
        value = self.translate_operand(node.this)
        if isinstance(value, Literal) or value.path is None or not node.expressions:
            return None
        type_ = comparable_type(value.type)
        if family(value.type) == "integer" and pt.is_integer(type_):
            numbers = sql_literals.parse_plain_integers(node.expressions)
            if numbers is None:
                return None
            low, high = integer_bounds(type_)
            return ast.IsIn(value.path, array_of([n for n in numbers if low <= n <= high], type_))
        are_texts = all(item.key == "literal" and item.is_string for item in node.expressions)
        if family(value.type) != "text" or not are_texts:
            return None
        return ast.IsIn(value.path, array_of([item.this for item in node.expressions], type_))

    def translate_membership(
        self, value: OperandOrLiteral, items: list[OperandOrLiteral], node: Any
    ) -> Predicate:
        literals = [item for item in items if isinstance(item, Literal)]
        if isinstance(value, Literal) or len(literals) < len(items):
            return ast.Or(
                tuple(self.translate_comparison("=", value, item, node) for item in items)
            )
        if pt.is_null(value.type):
            return Constant(None)
        stored = [
            self._stored(literal, value.type, item)
            for literal, item in zip(literals, node.expressions, strict=True)
            if literal.kind != "null"
        ]
        found = self._of(
            value, membership_predicate(value.path or (), comparable_type(value.type), stored), node
        )
        return found if len(stored) == len(items) else ast.Or((found, Constant(None)))

    def _of(self, operand: Operand, predicate: Predicate, node: Any) -> Predicate:
        if operand.path is not None:
            return predicate
        expression = build_expression(predicate, lambda _: (operand.expression, operand.type), True)
        return self.unknown_condition(node, operand.reason, expression)

    def _stored(self, literal: Literal, column: pa.DataType, node: Any) -> StoredValue:
        try:
            literal = sql_literals.adapt_literal(literal, column)
            if family(column) == "float":
                # One that the column does not hold is compared with its values as doubles.
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
            common = self._common(a_type, b_type, node)
            a = a.cast(common) if a_type != common else a
            b = b.cast(common) if b_type != common else b
        return self.unknown_condition(node, ONLY_LITERALS_REASON, _COMPARE[symbol](a, b))

    def _common(self, a: pa.DataType, b: pa.DataType, node: Any) -> pa.DataType:
        """Return a type that holds the values of both; PyArrow's own choice may be too small."""
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
            whole = max(t.precision - t.scale if pt.is_decimal(t) else 20 for t in (a, b))
            scale = max(t.scale if pt.is_decimal(t) else 0 for t in (a, b))
            return pa.decimal256(min(whole + scale, 76), scale)
        if families <= {"date", "timestamp"}:
            return a if pt.is_timestamp(a) else b
        if families in ({"time"}, {"duration"}):
            return max(a, b, key=lambda each: TICKS_PER_SECOND[each.unit])
        if time_zones_differ(a, b):
            self.fail(f"columns of types {a} and {b} are compared", _ZONES, node)
        self.fail(f"columns of types {a} and {b} cannot be compared", "cast one of them", node)

    def _fold(self, symbol: str, left: Literal, right: Literal, node: Any) -> Predicate:
        if "null" in (left.kind, right.kind):
            return Constant(None)
        if left.kind != right.kind:
            self.fail("two literals of different kinds are compared", "write TRUE or FALSE", node)
        return Constant(bool(_COMPARE[symbol](left.value, right.value)))

    # Values

    def translate_value(self, node: Any) -> OperandOrLiteral:
        match node.key:
            case "column" | "dot":
                return self._column(node)
            case "literal":
                return sql_literals.parse_number(node.this)
            case "cast":
                return self._cast(node)
            case "interval":
                return self._interval(node)
            case key if key in self.condition_methods:
                condition = expression_from_predicate(
                    self.translate_condition(node), self.schema, exact=True
                )
                return Operand(condition, pa.bool_())
        self.fail(f"{node.sql()} is not understood in a filter", PYARROW_ADVICE, node)

    def _interval(self, node: Any) -> Literal:
        self.require_only(node, "this", "unit")
        unit = str(node.args.get("unit") or "").upper().removesuffix("S")
        if node.this is None or node.this.key != "literal" or unit not in _SECONDS | _FRACTIONS:
            self.fail("an interval takes a fixed unit", "write INTERVAL '90' SECOND", node)
        count = sql_literals.parse_number(node.this.this)
        return Literal("duration", count.value * _SECONDS.get(unit, 1) / _FRACTIONS.get(unit, 1))

    def _cast(self, node: Any) -> OperandOrLiteral:
        self.require_only(node, "this", "to")
        target, value = self._type(node.args["to"]), self.translate_operand(node.this)
        if isinstance(value, Literal):
            return sql_literals.cast_literal(value, target)
        if isinstance(decoded_type(value.type), pa.UuidType) and target != value.type:
            self.fail("a column of UUIDs cannot be cast", "compare it with UUID '...'", node)
        if is_lossless_cast(value.type, target):
            return value
        expression, type_ = cast_to_comparable(value.expression, value.type)
        if time_zones_differ(type_, target):
            self.fail(f"a cast from {type_} to {target} depends on a zone", _ZONES, node)
        reason = f"casting {type_} to {target} may join values"
        return Operand(expression.cast(target), target, reason=reason)

    def _type(self, node: Any) -> pa.DataType:
        name = getattr(node.this, "name", str(node.this))
        sizes = [str(part.this) for part in node.expressions]
        if name == "DECIMAL" and len(sizes) in (1, 2) and all(s.isdigit() for s in sizes):
            precision, scale = int(sizes[0]), int(sizes[1]) if len(sizes) > 1 else 0
            if 1 <= precision <= 76 and scale <= precision:
                exact = pa.decimal128 if precision <= 38 else pa.decimal256
                return exact(precision, scale)
        if sizes or name not in _TYPES:
            known = ", ".join([*_TYPES, "DECIMAL(p, s)"])
            self.fail(f"there is no cast to {node.sql()}", f"cast to one of {known}", node)
        return _TYPES[name]

    def _column(self, node: Any) -> Operand:
        parts = []
        outer = node
        while node.key == "dot":
            parts.insert(0, node.expression)
            node = node.this
        if node.key != "column":
            self.fail(f"{outer.sql()} is not understood in a filter", PYARROW_ADVICE, outer)
        self.require_only(node, "this", "table", "db", "catalog")
        parts = [*node.parts, *parts]
        if any(part.key != "identifier" for part in parts):
            self.fail(f"{outer.sql()} is not a column", "name one column", outer)
        names = [part.this for part in parts]
        path = self._path(names, outer)
        return Operand(pc.field(*path), resolve_type(self.schema, path), path)

    def _path(self, names: list[str], node: Any) -> ast.ColumnPath:
        joined = ".".join(names)
        if joined in self.schema.names or (
            not matching_names(self.schema.names, names[0])
            and matching_names(self.schema.names, joined)
        ):
            names = [joined]
        path: list[str] = []
        fields: pa.Schema | pa.DataType = self.schema
        for name in names:
            if not isinstance(fields, pa.Schema | pa.StructType):
                at = ast.column_text(tuple(path))
                self.fail(f"{at} is {fields} and has no fields", PYARROW_ADVICE, node)
            known = [field.name for field in fields]
            found = matching_names(known, name)
            if len(found) > 1:
                shown = ", ".join(found)
                self.fail(f"more than one column is called {name}: {shown}", "rename one", node)
            if not found:
                advice = arguments.suggest_names(name, known, "the columns are")
                self.fail(f"there is no column {joined}", advice, node)
            path += found
            fields = fields.field(found[0]).type
        return tuple(path)

    def fail(self, what: str, advice: str, node: Any) -> NoReturn:
        spans = [n.meta for n in node.walk() if "start" in n.meta and "end" in n.meta]
        place = f"  {self.text}"
        if spans:
            start, end = min(m["start"] for m in spans), max(m["end"] for m in spans)
            line = self.text.count("\n", 0, start)
            column = start - (self.text.rfind("\n", 0, start) + 1)
            place = _caret(self.text, line, column, end - start + 1)
        raise FilterError(f"cannot read the filter: {what}.\n{place}\n{_sentence(advice)}")


def _caret(text: str, line: int, column: int, width: int) -> str:
    lines = text.split("\n")
    shown = lines[min(line, len(lines) - 1)]
    column = max(0, min(column, len(shown)))
    return f"  {shown}\n  {' ' * column}{'^' * max(1, min(width, len(shown) - column))}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")

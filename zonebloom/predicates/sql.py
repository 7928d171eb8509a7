"""Translate SQL filters, as DuckDB reads them, to a predicate and a row filter.

Plain conditions compare a column with literals exactly. They become leaves of the predicate, and
PyArrow evaluates them. Any other condition becomes `Unknown`, and DuckDB evaluates it:

    id = 42 AND upper(name) = 'X'
    predicate     Equals(id, 42) AND Unknown(upper(name) = 'X')
    row filter    DuckDBFilter with the plain part id == 42 and the term upper("name") = 'X'

A comparison is plain only if it is true for the same rows in DuckDB, which casts the literal or the
column before it compares them. Constant parts, such as ``40 + 2``, are computed by DuckDB first.

Two rules are stricter than DuckDB's: a time and a column must both have a time zone, or both have
none, and a quoted number is not compared with a column of numbers.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base import arguments
from zonebloom.base.arguments import shorten_message
from zonebloom.base.arrays import array_of
from zonebloom.errors import FilterError, MissingDependency
from zonebloom.predicates import ast, sql_literals
from zonebloom.predicates.ast import Constant, Predicate
from zonebloom.predicates.duckdb_engine import (
    DuckDBExpression,
    DuckDBFilter,
    constant_value,
    duckdb_names,
    field_positions,
    function_names,
    join_by_and,
    require_known_type,
    result_types,
)
from zonebloom.predicates.expression import expression_from_predicate, require_short_chain
from zonebloom.predicates.sql_literals import comparison_predicate, membership_predicate
from zonebloom.predicates.sql_parser import (
    LITERAL_WORDS,
    MAX_TEXT,
    as_sentence,
    duckdb_text,
    mark_place,
    parse_sql,
    sql_text,
)
from zonebloom.predicates.sql_tree import (
    PYARROW_ADVICE,
    SQL_OPERATORS,
    TEXT_REASON,
    Entry,
    Operand,
    SqlTranslator,
    SqlValue,
)
from zonebloom.predicates.text_requirements import Piece, require_call, require_pieces
from zonebloom.predicates.type_requirements import with_type_requirement
from zonebloom.values.columns import matching_names
from zonebloom.values.literal import (
    Literal,
    StoredValue,
    Unanswerable,
    round_to_float,
    to_stored,
)
from zonebloom.values.normal_types import comparable_type, without_views
from zonebloom.values.types import (
    LIST_TYPES,
    TIME_ZONE_ADVICE,
    family,
    integer_bounds,
    is_lossless_cast,
    time_zones_differ,
)

# The nodes of sqlglot that a filter may have. All others are refused: queries, names of tables,
# aggregates, parameters, and what sqlglot writes otherwise than DuckDB reads it.
_KNOWN_NODES = set(
    """
    and or not paren eq neq lt lte gt gte is in between like ilike escape nullsafeeq nullsafeneq
    literal null boolean hexstring column identifier dot neg add sub mul div intdiv mod dpipe
    bitwiseand bitwiseor bitwisenot bitwiseleftshift bitwiserightshift case if cast trycast datatype
    datatypeparam anonymous lambda bracket slice array tuple any extract var interval intervalspan
    trim substring attimezone similarto glob regexplike
    """.split()  # noqa: SIM905
)
_QUERIES = ("select", "union", "subquery", "exists", "all", "command")
_CLOCK_FUNCTIONS = {
    **dict.fromkeys(("now", "current_timestamp", "get_current_timestamp"), "TIMESTAMPTZ"),
    "transaction_timestamp": "TIMESTAMPTZ",
    **dict.fromkeys(("today", "current_date"), "DATE"),
    **dict.fromkeys(("localtimestamp", "current_localtimestamp"), "TIMESTAMP"),
}
# sqlglot takes these names for columns, unless parentheses follow.
_NAMES_OF_CLOCK = ("localtimestamp", "current_localtimestamp", "current_timestamp", "current_date")
_TYPES_WITH_NANOSECONDS = ("TIMESTAMPTZ", "TIMESTAMP", "TIME")
_LIST_SEARCHES = ("list_contains", "list_has", "array_contains", "array_has", "contains")
_SEARCHES_FOR_ANY = ("list_has_any", "array_has_any")
_SEARCHES_FOR_ALL = ("list_has_all", "array_has_all")
_MAP_FUNCTIONS = ("map_extract_value", "element_at")
_LIST_REASON = "an index does not store elements of lists"
_RANGE_ADVICE = "compare the column itself, for example with >= and <"
_PARTS_OF_TIMES = (
    "date_trunc",
    "datetrunc",
    "date_part",
    "datepart",
    "year",
    "month",
    "day",
    "hour",
)
_ROWS_ADVICE = "write (a, b) IN ((1, 'x'), (2, 'y'))"
_MAX_GROWTH = 1000
# Casts of texts that need no DuckDB, and casts of columns that may keep all values.
_CAST_TYPES: dict[str, pa.DataType] = {
    **{"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64()},
    **{"UTINYINT": pa.uint8(), "USMALLINT": pa.uint16(), "UINT": pa.uint32()},
    **{"UBIGINT": pa.uint64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64()},
    **{"DATE": pa.date32(), "TIME": pa.time64("us"), "UUID": pa.uuid()},
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPNTZ"), pa.timestamp("us")),
    **dict.fromkeys(("VARCHAR", "TEXT"), pa.string()),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
}
_UNIT_SECONDS = {
    **{"WEEK": Fraction(604800), "DAY": Fraction(86400), "HOUR": Fraction(3600)},
    **{"MINUTE": Fraction(60), "SECOND": Fraction(1), "MILLISECOND": Fraction(1, 10**3)},
    **{"MICROSECOND": Fraction(1, 10**6), "NANOSECOND": Fraction(1, 10**9)},
}
_MAX_DECIMAL_DIGITS = 38
_HUGEINT_LIMIT = 2**127
# Up to these limits, a quotient of two floats is the float nearest to a decimal.
_FLOAT_LIMITS = {32: (2**24, 10), 64: (2**53, 22)}
# Beyond them, the result is nearer than this to the nearest float.
_MAX_ROUNDED_FLOATS = 8
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
_WORD_SEPARATOR = r"[\x00-/:-@\[-`{-\x7f]"


# A translated SQL condition: the row filter and the predicate.
SqlTranslation: TypeAlias = "tuple[pc.Expression | DuckDBFilter, Predicate]"


@dataclass(frozen=True, slots=True)
class _ComputedText(Literal):
    """A text that is not written as a literal, so it does not take the type of a column."""


def translate_sql(text: str, schema: pa.Schema) -> SqlTranslation:
    """Return the row filter and the predicate of a SQL condition, the part after WHERE.

    Raises
    ------
    FilterError
        If the text is not understood, by us or by DuckDB.
    """
    with _raising_filter_errors(text):
        try:
            simple = _translate_simple(text, schema)
        except (FilterError, Unanswerable):
            # sqlglot parses the text below, because its nodes tell the place of an error.
            if len(text) > MAX_TEXT:
                raise
            simple = None
        if simple is not None:
            return simple
        translator = DuckDBTranslator(text, schema)
        node = translator.checked(parse_sql(text))
        node = translator.strip_parentheses(node)
        terms = list(node.flatten(unnest=False)) if node.key == "and" else [node]
        pairs = [(term, translator.translate_condition(term)) for term in terms]
        whole = ast.flatten(ast.And(tuple(part for _, part in pairs)))
        plain = [part for _, part in pairs if not ast.unknowns(part)]
        others = [(term, part) for term, part in pairs if ast.unknowns(part)]
        expression = None
        if plain or not others:
            expression = expression_from_predicate(ast.flatten(ast.And(tuple(plain))), schema)
        row_filter = translator.row_filter(expression, others)
        predicate = with_type_requirement(ast.limit_depth(whole), translator.unfitting_columns)
    return row_filter, predicate


def column_from_sql(text: str, schema: pa.Schema) -> pc.Expression | DuckDBExpression:
    """Return a SQL value, such as ``upper(name)``, as an expression of PyArrow or of DuckDB."""
    with _raising_filter_errors(text):
        translator = DuckDBTranslator(text, schema)
        node = translator.checked(parse_sql(text))
        path = translator.strip_parentheses(node).meta.get("path")
        if path is not None:
            return pc.field(*path)
        expression = translator.duckdb_expression(node)
        result_types([expression], schema)
    return expression


@contextmanager
def _raising_filter_errors(text: str) -> Iterator[None]:
    """Turn each error of a translation into a `FilterError`."""
    try:
        text.encode()
        yield
    except FilterError as error:
        error.args = (shorten_message(str(error)),)
        raise
    except MissingDependency:
        raise
    except UnicodeEncodeError as error:
        raise FilterError(
            f"the filter contains {text[error.start]!r} at {error.start}, which is half a "
            "character; write the whole character"
        ) from None
    except Unanswerable as error:
        raise FilterError(
            f"cannot read the filter: {error}; {error.advice or PYARROW_ADVICE}"
        ) from None
    except RecursionError:
        raise FilterError(
            "cannot read the filter: it is nested too deeply; write a chain of OR or AND without "
            "parentheses, or IN"
        ) from None
    except Exception as error:
        raise FilterError(
            f"cannot read the filter: {type(error).__name__}: {error}; {PYARROW_ADVICE}"
        ) from error


def _translate_simple(text: str, schema: pa.Schema) -> SqlTranslation | None:
    """Translate ``column = literal``, ``column IN (literals)``, or several of these with AND.

        tailnum = 'N14228'      "Delay" = -1.5 AND id IN (1, 2, 3)

    Return None for other text. Importing sqlglot takes longer than looking up a key.
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
    translator = DuckDBTranslator(text, schema)
    terms = tuple(map(translator.translate_simple, matches))
    predicate = ast.flatten(terms[0] if len(terms) == 1 else ast.And(terms))
    row_filter = expression_from_predicate(predicate, schema)
    predicate = with_type_requirement(predicate, translator.unfitting_columns)
    return row_filter, predicate


class DuckDBTranslator(SqlTranslator):
    """A translator for SQL with the semantics of DuckDB.

    A part that has no meaning raises `FilterError`, which shows the place in the text.
    """

    def __init__(self, text: str, schema: pa.Schema) -> None:
        super().__init__(schema)
        self.text = text
        self._names: list[str] = schema.names
        self._duckdb_names = duckdb_names(schema)
        # The current time, if the filter contains it. All its parts see the same time.
        self._now: datetime.datetime | None = None

    # The tree

    def checked(self, root: Any) -> Any:
        """Return a tree after a check that DuckDB may evaluate all of it.

        Columns and clocks get the text by which DuckDB reads them.
        """
        for node in root.walk():
            if node.key in _QUERIES:
                self._refuse_query(node)
        growths: dict[int, float] = {}
        for node in reversed(list(root.walk(bfs=False))):
            kind = node.args.get("kind") if node.key == "datatype" else None
            is_name = kind is None or re.fullmatch(r"\w+", getattr(kind, "name", str(kind)))
            if node.key not in _KNOWN_NODES or not is_name:
                self.fail(f"{sql_text(node)} is not understood in a filter", PYARROW_ADVICE, node)
            if node.key == "column":
                self._check_column(node)
            elif node.key == "literal" and not node.is_string:
                self.translate_operand(node)
            elif node.key == "var" and not re.fullmatch("[A-Za-z_]+", node.name):
                self.fail(f"{node.name} is not understood", PYARROW_ADVICE, node)
            elif node.key in SQL_OPERATORS and not SQL_OPERATORS.keys().isdisjoint(
                (node.this.key, node.expression.key)
            ):
                self.fail("comparisons are chained", "write 1 < id AND id < 3", node)
            elif node.key == "any" and node.parent.key not in ("eq", "neq"):
                self.fail("ANY comes after =", "write 'x' = ANY(tags)", node)
            elif node.key == "dot" and node.expression.key != "identifier":
                self.fail(f"{sql_text(node)} is not a field", "write upper(name)", node)
            elif node.key == "anonymous":
                self._check_call(node, growths)
            elif node.key == "cast" and node.this.key == "literal":
                name, text = getattr(node.args["to"].this, "name", ""), str(node.this.this)
                if name in _TYPES_WITH_NANOSECONDS and re.search(r"\.\d{7}[ \d:+Z-]*$", text):
                    # DuckDB would cut the nanoseconds of a TIMESTAMP.
                    node.meta["duckdb"] = f"CAST({duckdb_text(node.this)} AS {name}_NS)"
        return root

    def _check_call(self, node: Any, growths: dict[int, float]) -> None:
        name = node.this.lower() if isinstance(node.this, str) else ""
        if name in _CLOCK_FUNCTIONS and not node.expressions:
            self._check_clock(node, name)
        elif name == "contains_token":
            self._check_contains_token(node)
        elif name not in function_names():
            known = arguments.suggest_names(name, sorted(function_names()), "the functions are")
            known = known.split("?")[0] + "?" if "?" in known else "use a scalar function of DuckDB"
            self.fail(
                f"there is no function {arguments.shorten_message(name)} that depends on its "
                "arguments alone",
                known,
                node,
            )
        if name in ("replace", "regexp_replace"):
            self._require_little_growth(node, growths)

    def _check_contains_token(self, node: Any) -> None:
        word = node.expressions[1] if len(node.expressions) == 2 else None
        text = word.this if word is not None and word.key == "literal" and word.is_string else ""
        if not text or any(c.isascii() and not c.isalnum() for c in text):
            self.fail(
                f"contains_token takes a column and one word, not {text!r}",
                "write one word of letters and digits, or use contains",
                node,
            )
        node.meta["token_pattern"] = (
            rf"(?:\A|{_WORD_SEPARATOR}){re.escape(text)}(?:{_WORD_SEPARATOR}|\z)"
        )

    def _require_little_growth(self, node: Any, growths: dict[int, float]) -> None:
        """Raise `FilterError` if nested calls of replace make texts so long that memory ends."""
        growth = max(growths.get(id(inner), 1.0) for inner in node.walk())
        if len(node.expressions) > 2 and node.expressions[2].key == "literal":
            part, replacement = (str(argument.this) for argument in node.expressions[1:3])
            # A pattern may match an empty text.
            length = len(part) if node.this.lower() == "replace" else 1
            growth *= max(1.0, len(replacement) / max(1, length))
        if growth > _MAX_GROWTH:
            self.fail(
                f"replace may make a text {growth:,.0f} times as long",
                "read without this condition and filter the table",
                node,
            )
        growths[id(node)] = growth

    def _check_clock(self, node: Any, name: str) -> None:
        self._now = self._now or datetime.datetime.now(datetime.UTC)
        node.meta["is_clock"] = True
        node.meta["duckdb"] = f"CAST(TIMESTAMPTZ '{self._now}' AS {_CLOCK_FUNCTIONS[name]})"

    def _check_column(self, node: Any) -> None:
        name = node.name.lower()
        is_clock = name in _NAMES_OF_CLOCK and len(node.parts) == 1 and not node.this.quoted
        if is_clock and not matching_names(self._names, name):
            self._check_clock(node, name)
            return
        self.require_only(node, "this", "table", "db", "catalog")
        operand = self.resolve_column([part.this for part in node.parts], node)
        path = operand.path if operand.elements is None else operand.elements.column
        assert path is not None
        text = '"' + self._duckdb_names[path[0]].replace('"', '""') + '"'
        for position in field_positions(self.schema, path):
            text = f"struct_extract_at({text}, {position})"
        if operand.elements is None:
            node.meta["path"] = path
        else:
            item = "x"
            for part in operand.elements.field:
                item = f"struct_extract({item}, '" + part.replace("'", "''") + "')"
            text = f"list_transform({text}, lambda x: {item})"
        node.meta["column"], node.meta["duckdb"] = path[0], text

    def duckdb_expression(self, node: Any) -> DuckDBExpression:
        columns = sorted({part.meta["column"] for part in node.walk() if "column" in part.meta})
        for column in columns:
            require_known_type(column, self.schema.field(column).type)
        names = tuple((column, self._duckdb_names[column]) for column in columns)
        return DuckDBExpression(duckdb_text(node), names)

    def row_filter(
        self, plain: pc.Expression | None, terms: Sequence[tuple[Any, Predicate]]
    ) -> pc.Expression | DuckDBFilter:
        """Return the filter of an expression of PyArrow, and of terms that DuckDB evaluates.

        Those that an index may answer are apart, because a row that it excludes is not read.
        """
        if plain is not None and not terms:
            return plain
        for node in ast.walk(ast.And(tuple(predicate for _, predicate in terms))):
            require_short_chain(len(node.terms) if isinstance(node, ast.And | ast.Or) else 0)
        expressions = [self.duckdb_expression(node) for node, _ in terms]
        groups: dict[bool, list[DuckDBExpression]] = {True: [], False: []}
        types = result_types(expressions, self.schema)
        for (node, predicate), expression, type_ in zip(terms, expressions, types, strict=True):
            if not pt.is_boolean(type_) and not pt.is_null(type_):
                self.fail(
                    f"this is a value of type {type_}, not a condition",
                    "compare it: id = 42",
                    node,
                )
            is_answerable = all(part.requires is not None for part in ast.unknowns(predicate))
            groups[is_answerable].append(expression)
        joined = tuple(join_by_and(group) for group in groups.values() if group)
        return DuckDBFilter(self.text.strip(), plain, joined)

    def _refuse_query(self, node: Any) -> NoReturn:
        if node.parent is None and node.key in ("select", "union", "subquery", "command"):
            self.fail("a filter is a condition, not a query", "write the part after WHERE", node)
        self.fail(
            "queries inside a filter are not supported",
            'read the values first and give them as a list: pc.field("id").isin(values)',
            node,
        )

    # Conditions

    def translate_condition(self, node: Any) -> Predicate:
        node = self.strip_parentheses(node)
        if node.key not in ("and", "or", "not", "boolean", "null") and _is_constant(node):
            value = self.translate_operand(node)
            if isinstance(value, Literal) and value.kind in ("boolean", "null"):
                return Constant(value.value)
        return super().translate_condition(node)

    def sql_text(self, node: Any) -> str:
        return sql_text(node)

    def translate_comparison(
        self, symbol: str, left: SqlValue, right: SqlValue, node: Any
    ) -> Predicate:
        if isinstance(left, Literal):
            symbol, left, right = ast.FLIPPED_OPERATORS[symbol], right, left
        if symbol == "!=":
            equal = self.translate_comparison("=", left, right, node)
            if not ast.unknowns(equal):
                return ast.negation(equal)
            return replace(ast.unknowns(equal)[0], requires=None)
        if isinstance(left, Literal) or not isinstance(right, Literal):
            self._require_same_zones(left, right, node)
            return self.unknown_condition(node, ast.ONLY_LITERALS)
        if right.kind == "null" or (left.type is not None and pt.is_null(left.type)):
            return Constant(None)
        if left.path is None:
            requires = self._requirement_on(left, [right], node) if symbol == "=" else None
            return self.unknown_condition(node, left.reason, requires)
        try:
            (stored_value,) = self._stored_values(left, [right], [node])
        except Unanswerable as reason:
            requires = _near_requirement(left, symbol, [right])
            return self.unknown_condition(node, str(reason), requires)
        return self._compare(left, symbol, stored_value)

    def _compare(self, column: Operand, symbol: str, stored_value: StoredValue) -> Predicate:
        assert column.path is not None
        type_ = comparable_type(column.type)
        if not is_held(type_, stored_value):
            self._note_unfitting(column)
        if pt.is_floating(type_) and symbol in (">", ">="):
            # NaN is greater than every number. In Arrow, every comparison with NaN is false, so
            # negate the opposite comparison.
            opposite = "<=" if symbol == ">" else "<"
            return ast.Not(comparison_predicate(column.path, type_, opposite, stored_value))
        return comparison_predicate(column.path, type_, symbol, stored_value)

    def _translate_between(self, node: Any) -> Predicate:
        self.require_only(node, "this", "low", "high")
        value, low, high = (
            self.translate_operand(node.args[name]) for name in ("this", "low", "high")
        )
        bounds = [bound for bound in (low, high) if isinstance(bound, Literal)]
        if isinstance(value, Literal) or len(bounds) < 2:
            return self.unknown_condition(node, ast.ONLY_LITERALS)
        if value.path is None:
            return self.unknown_condition(node, value.reason)
        if value.type is None or pt.is_null(value.type):
            return Constant(None)
        try:
            # DuckDB casts all three to one type.
            stored = iter(self._stored_values(value, bounds, [node.args["low"], node.args["high"]]))
        except Unanswerable as reason:
            return self.unknown_condition(node, str(reason))
        return ast.And(
            tuple(
                Constant(None)
                if bound.kind == "null"
                else self._compare(value, symbol, next(stored))
                for symbol, bound in zip((">=", "<="), bounds, strict=True)
            )
        )

    def translate_membership(self, value: SqlValue, items: list[SqlValue], node: Any) -> Predicate:
        literals = [item for item in items if isinstance(item, Literal)]
        if isinstance(value, Literal) or len(literals) < len(items):
            for item in items:
                self._require_same_zones(value, item, node)
            return self.unknown_condition(node, ast.ONLY_LITERALS)
        if value.type is not None and pt.is_null(value.type):
            return Constant(None)
        if value.path is None:
            requires = self._requirement_on(value, literals, node)
            return self.unknown_condition(node, value.reason, requires)
        try:
            nodes = [None] * len(literals) if node is None else node.expressions
            stored_values = self._stored_values(value, literals, nodes)
        except Unanswerable as reason:
            requires = _near_requirement(value, "=", literals)
            return self.unknown_condition(node, str(reason), requires)
        type_ = comparable_type(value.type)
        if not all(is_held(type_, stored_value) for stored_value in stored_values):
            self._note_unfitting(value)
        predicate = membership_predicate(value.path, type_, stored_values)
        has_null = len(stored_values) < len(items)
        return ast.Or((predicate, Constant(None))) if has_null else predicate

    def _translate_in(self, node: Any) -> Predicate:
        if node.args.get("query") is not None:
            self._refuse_query(node.args["query"])
        self.require_only(node, "this", "expressions")
        if self.strip_parentheses(node.this).key == "tuple":
            return self._translate_rows_in(node)
        condition = plain_condition(
            self.translate_operand(node.this), list(map(plain_value, node.expressions))
        )
        return super()._translate_in(node) if condition is None else condition

    def translate_simple(self, match: re.Match[str]) -> Predicate:
        """Translate a match of ``column = literal`` or ``column IN (literals)``."""
        name = match["name"]
        if name.upper() in LITERAL_WORDS:
            raise FilterError("this is a literal, not a column")
        column = self.resolve_column([name[1:-1] if name[0] in '"`' else name], None)
        is_one = match["one"] is not None
        texts = [match["one"]] if is_one else _SIMPLE_LITERALS.findall(match["many"])
        values = [text[1:-1] if text[0] == "'" else _plain_integer(text) for text in texts]
        predicate = plain_condition(column, values)
        if predicate is not None:
            return predicate
        literals: list[SqlValue] = [_simple_literal(text) for text in texts]
        if is_one:
            predicate = self.translate_comparison("=", column, literals[0], None)
        else:
            predicate = self.translate_membership(column, literals, None)
        if ast.unknowns(predicate):
            raise Unanswerable("DuckDB has to compare it")
        return predicate

    def unknown_condition(
        self, node: Any, reason: str, requires: Predicate | None = None
    ) -> ast.Unknown:
        return (
            ast.Unknown("", reason)
            if node is None
            else super().unknown_condition(node, reason, requires)
        )

    # Rows

    def _translate_comparison_node(self, node: Any) -> Predicate:
        left, right = map(self.strip_parentheses, (node.this, node.expression))
        if left.key == right.key == "tuple" and node.key in ("eq", "neq"):
            if len(left.expressions) != len(right.expressions):
                self.fail("rows of different lengths are compared", _ROWS_ADVICE, node)
            return self._rows_are_among(left.expressions, [right.expressions], node)
        return super()._translate_comparison_node(node)

    def _translate_rows_in(self, node: Any) -> Predicate:
        columns = self.strip_parentheses(node.this).expressions
        rows = [row.expressions if row.key == "tuple" else () for row in node.expressions]
        for row, values in zip(node.expressions, rows, strict=True):
            if len(values) != len(columns):
                self.fail(
                    f"a row of {len(columns)} values is compared with something else",
                    _ROWS_ADVICE,
                    row,
                )
        if not rows:
            self.fail("the IN list is empty", "name at least one row, or write FALSE", node)
        return self._rows_are_among(columns, rows, node)

    def _rows_are_among(
        self, columns: Sequence[Any], rows: Sequence[Sequence[Any]], node: Any
    ) -> Predicate:
        """Translate ``(a, b) IN ((1, 'x'), (2, 'y'))`` to ``a = 1 AND b = 'x' OR ...``.

        DuckDB compares rows as structs, in which a null equals a null. So the predicate is exact
        only if no literal is null, and if nothing but AND and OR is around it. There, a condition
        that is false and one that is null keep the same rows.
        """
        unknown = self.unknown_condition(node, ast.ONLY_LITERALS)
        if node.key == "neq" or not _is_top_level(node):
            return unknown
        terms: list[list[Predicate]] = [[] for _ in rows]
        is_exact = True
        for number, column_node in enumerate(columns):
            column = self.translate_operand(column_node)
            values = [self.translate_operand(row[number]) for row in rows]
            literals = [value for value in values if isinstance(value, Literal)]
            if isinstance(column, Literal) or column.path is None or len(literals) < len(values):
                is_exact = False
                continue
            if any(literal.kind == "null" for literal in literals):
                return unknown
            if family(column.type or pa.null()) != "text":
                # DuckDB may cast the column to text instead of the literal.
                is_exact &= all(literal.kind != "text" for literal in literals)
            try:
                nodes = [row[number] for row in rows]
                stored_values = self._stored_values(column, literals, nodes)
            except Unanswerable:
                is_exact = False
                continue
            for row_terms, stored_value in zip(terms, stored_values, strict=True):
                row_terms.append(self._compare(column, "=", stored_value))
        if not terms[0]:
            return unknown
        among = ast.Or(tuple(ast.And(tuple(row_terms)) for row_terms in terms))
        return among if is_exact else ast.And((among, unknown))

    # Literals

    def _stored_values(
        self, column: Operand, literals: Sequence[Literal], nodes: Sequence[Any]
    ) -> list[StoredValue]:
        """Return the positions of literals, without nulls, among the values of a column's type.

        DuckDB casts the column and all literals to one type. Raise `Unanswerable` if that may round
        one of them.
        """
        try:
            return self._exact_values(column, literals, nodes)
        except Unanswerable:
            # A file that stores the column in a wider type may hold the literal.
            self._note_unfitting(column)
            raise

    def _note_unfitting(self, column: Operand) -> None:
        if column.path is not None:
            self.unfitting_columns.add(column.path)

    def _exact_values(
        self, column: Operand, literals: Sequence[Literal], nodes: Sequence[Any]
    ) -> list[StoredValue]:
        type_: Any = comparable_type(column.type)
        target = type_ if column.cast_type is None else comparable_type(column.cast_type)
        if pt.is_decimal(target) and target.precision > _MAX_DECIMAL_DIGITS:
            # DuckDB lacks the type, so no digit is rounded.
            literals = [replace(literal, bits=0, digits=(0, 0)) for literal in literals]
        widths = {literal.bits for literal in literals} - {0}
        is_mixed = len(literals) > 1 and 32 in widths and not pt.is_float64(target)
        if is_mixed or (widths and family(target) == "decimal"):
            raise Unanswerable("DuckDB rounds the numbers to one type")
        if 64 in widths and family(target) in ("integer", "float"):
            target = pa.float64()
        whole = max((literal.digits[0] for literal in literals), default=0)
        scale = max((literal.digits[1] for literal in literals), default=0)
        stored_values = []
        for literal, node in zip(literals, nodes, strict=True):
            if literal.kind == "null":
                continue
            literal = self._adapt(literal, column.cast_type or column.type, node)
            if literal.kind == "number" and not pt.is_floating(target):
                _require_digits(target, whole, scale)
            if literal.kind == "number" and pt.is_floating(target):
                number = _nearest_float(literal, target)
                if pt.is_floating(type_):
                    if type_.bit_width < 64 and number != literal.value:
                        self._note_unfitting(column)
                    stored_values.append(StoredValue(number))
                    continue
                exact = Fraction(number) if math.isfinite(number) else number
                literal = Literal("number", exact, target.bit_width)
            stored_values.append(to_stored(literal, type_))
        return stored_values

    def _adapt(self, literal: Literal, column: Any, node: Any) -> Literal:
        """Return a literal as one of the kind of a column. Fail if they cannot be compared."""
        is_text = literal.kind == "text"
        if is_text and isinstance(literal, _ComputedText) and family(column) != "text":
            raise Unanswerable("DuckDB casts the text")
        is_local = family(column) in ("date", "timestamp")
        parts = node.walk() if node is not None and literal.kind == "instant" and is_local else ()
        if any("is_clock" in part.meta for part in parts):
            self.fail(
                f"the current time, of UTC, is compared with a column of {column}, without a zone",
                "write now() AT TIME ZONE 'UTC' if the column holds UTC",
                node,
            )
        try:
            adapted = sql_literals.adapt_literal(literal, column)
        except Unanswerable as error:
            self.fail(str(error), error.advice or PYARROW_ADVICE, node)
        if is_text and pt.is_temporal(comparable_type(column)):
            is_cut = pt.is_date(comparable_type(column)) and adapted.kind != "date"
            if is_cut or not to_stored(adapted, comparable_type(column)).is_exact:
                raise Unanswerable("DuckDB rounds the text to the type of the column")
        return adapted

    def _require_same_zones(self, left: SqlValue, right: SqlValue, node: Any) -> None:
        sides = [side.type for side in (left, right) if isinstance(side, Operand)]
        types = [comparable_type(type_) for type_ in sides if type_ is not None]
        if len(types) == 2 and time_zones_differ(*types):
            self.fail(
                f"columns of types {types[0]} and {types[1]} are compared",
                f"{PYARROW_ADVICE}: {TIME_ZONE_ADVICE}",
                node,
            )

    # Requirements

    def _requirement_on(
        self, operand: Operand, literals: Sequence[Literal], node: Any
    ) -> Predicate | None:
        """Return what a computed value that equals one of some literals requires of its column."""
        if operand.entry is not None:
            return self._has_element(operand.entry, literals, node)
        (literal, *others) = literals
        if operand.lower_of is not None and literal.kind == "text" and not others:
            piece = Piece(literal.value, is_first=True, is_last=True)
            return require_pieces(operand.lower_of, [piece], ignores_case=True)
        return None

    def _has_element(
        self, entry: Entry, literals: Sequence[Literal], node: Any
    ) -> Predicate | None:
        """Return the condition that a list or map holds one of some literals."""
        if any(literal.kind == "null" for literal in literals) or not literals:
            return None
        try:
            stored_values = self._stored_values(
                Operand(entry.type), literals, [node] * len(literals)
            )
        except Unanswerable:
            return None
        type_ = comparable_type(entry.type)
        if pt.is_floating(type_) and any(
            literal.value != Fraction(stored_value.value)
            for literal, stored_value in zip(literals, stored_values, strict=True)
        ):
            # DuckDB's functions of lists may cast the list or the literal.
            return None
        if not all(is_held(type_, stored_value) for stored_value in stored_values):
            self.unfitting_columns.add(entry.column)
        match membership_predicate(entry.column, type_, stored_values):
            case ast.IsIn(_, values, False):
                return ast.HasElement(entry.column, values, entry.field, entry.key)
        return None

    def _element_requirement(
        self, list_node: Any, items: Sequence[SqlValue], node: Any
    ) -> Predicate | None:
        """Return the condition that a list, which a node names, holds one of some items."""
        entry = _entry_of(self.translate_operand(list_node))
        literals = [item for item in items if isinstance(item, Literal)]
        if entry is None or len(literals) < len(items):
            return None
        return self._has_element(entry, literals, node)

    def _call_requirement(self, name: str, arguments: Sequence[Any], node: Any) -> Predicate | None:
        """Return what a function needs of its first argument to be true, or None."""
        if len(arguments) < 2:
            return None
        source = self.translate_operand(arguments[0])
        if isinstance(source, Literal):
            return None
        entry = _entry_of(source)
        if name in _SEARCHES_FOR_ANY + _SEARCHES_FOR_ALL and arguments[1].key == "array":
            items = list(map(self.translate_operand, arguments[1].expressions))
            if name in _SEARCHES_FOR_ANY:
                return self._element_requirement(arguments[0], items, node)
            found = [self._element_requirement(arguments[0], [item], node) for item in items]
            known = tuple(part for part in found if part is not None)
            return ast.And(known) if known else None
        others = [self.translate_operand(argument) for argument in arguments[1:]]
        if name in _LIST_SEARCHES and entry is not None and len(others) == 1:
            return self._element_requirement(arguments[0], others, node)
        texts = [other.value for other in others if isinstance(other, Literal)]
        if len(texts) < len(others) or not all(isinstance(text, str) for text in texts):
            return None
        if source.type is not None and family(source.type) != "text":
            return None
        column = source.path or source.lower_of
        return require_call(column, name, texts, ignores_case=source.lower_of is not None)

    # Values

    def translate_value(self, node: Any) -> SqlValue:
        if "is_clock" in node.meta:
            return self._constant(node)
        match node.key:
            case "column":
                return self.resolve_column([part.this for part in node.parts], node)
            case "dot":
                parts = []
                inner = node
                while inner.key == "dot":
                    parts.insert(0, inner.expression)
                    inner = inner.this
                if inner.key == "column":
                    names = [part.this for part in [*inner.parts, *parts]]
                    return self.resolve_column(names, node)
            case "literal":
                return _number_literal(node.this)
            case "cast":
                return self._translate_cast(node)
            case "interval":
                count = str(getattr(node.this, "this", ""))
                unit = str(node.args.get("unit") or "").upper().removesuffix("S")
                if unit in _UNIT_SECONDS and re.fullmatch(r"-?\d{1,30}", count):
                    # DuckDB may cut large numbers.
                    return Literal("duration", int(count) * _UNIT_SECONDS[unit])
        if _is_constant(node):
            return self._constant(node)
        match node.key:
            case "any":
                list_ = self.translate_operand(node.this)
                return Operand(reason=_LIST_REASON, entry=_entry_of(list_))
            case "bracket" if len(node.expressions) == 1:
                return self._translate_subscript(node.this, node.expressions[0], node)
            case "anonymous":
                return self._translate_call(node.this.lower(), node.expressions, node)
            case "regexplike":
                sides = [node.this, node.expression]
                return self._translate_call("regexp_matches", sides, node)
            case key if key in self.condition_methods:
                return Operand()
        return Operand(reason=f"no index holds {ast.shorten(sql_text(node))}")

    def _translate_call(self, name: str, arguments: Sequence[Any], node: Any) -> SqlValue:
        if name in ("lower", "lcase") and len(arguments) == 1:
            source = self.translate_operand(arguments[0])
            lower_of = source.path if isinstance(source, Operand) else None
            is_text = isinstance(source, Operand) and family(source.type or pa.null()) == "text"
            return Operand(reason=_reason(name), lower_of=lower_of if is_text else None)
        if name in _MAP_FUNCTIONS and len(arguments) == 2:
            return self._translate_subscript(arguments[0], arguments[1], node)
        requires = self._call_requirement(name, arguments, node)
        return Operand(reason=_reason(name), requires=requires)

    def _translate_subscript(self, container: Any, key: Any, node: Any) -> SqlValue:
        """Translate ``struct['name']``, ``map['key']`` and ``list[1]``."""
        computed = Operand(reason=_LIST_REASON)
        if key.key == "slice":
            return computed
        value, literal = self.translate_operand(container), self.translate_operand(key)
        if not isinstance(value, Operand) or value.path is None or not isinstance(literal, Literal):
            return computed
        type_: Any = without_views(value.type) if value.type is not None else pa.null()
        if pt.is_struct(type_) and literal.kind == "text":
            return self.resolve_column([*value.path, literal.value], node)
        if pt.is_map(type_) and literal.kind != "null":
            entry = Entry(value.path, type_.key_type)
            match self._has_element(entry, [literal], node):
                case ast.HasElement(_, values) if len(values) == 1:
                    return replace(computed, entry=Entry(value.path, type_.item_type, values[0]))
        if isinstance(type_, LIST_TYPES):
            return replace(computed, entry=_entry_of(value))
        return computed

    def _translate_cast(self, node: Any) -> SqlValue:
        self.require_only(node, "this", "to")
        target = _cast_type(node.args["to"])
        inner = self.strip_parentheses(node.this)
        if inner.key == "literal" and inner.is_string and target is not None:
            literal = self._text_as(inner.this, target, node)
            if literal is not None:
                return literal
        if _is_constant(node):
            return self._constant(node)
        value = self.translate_operand(node.this)
        text = node.args["to"].sql()
        if isinstance(value, Operand) and value.path is not None and target is not None:
            source = value.cast_type or value.type
            families = family(source), family(target)
            is_kept = family(source) != "" and is_lossless_cast(source, target)
            numbers = ("integer", "decimal", "float")
            is_number = families[0] in numbers and families[1] in numbers
            if is_kept and (is_number or families[0] == families[1] or families[0] == "date"):
                return replace(value, cast_type=target)
        return Operand(reason=f"casting to {text} may make values equal; {_RANGE_ADVICE}")

    def _text_as(self, text: str, target: pa.DataType, node: Any) -> Literal | None:
        """Return ``DATE 'text'`` and the like, or None if DuckDB has to compute it."""
        if family(target) not in ("date", "timestamp", "instant", "time") and not isinstance(
            target, pa.UuidType
        ):
            return None
        try:
            literal = sql_literals.parse_typed_text(text, target)
        except Unanswerable as error:
            self.fail(str(error), error.advice or PYARROW_ADVICE, node)
        is_cut = pt.is_date(target) and text.strip()[10:] != ""
        is_rounded = literal.kind != "bytes" and (literal.value * 10**9).denominator != 1
        return None if is_cut or is_rounded else literal

    def _constant(self, node: Any) -> SqlValue:
        """Return the value that DuckDB computes for a node without columns."""
        scalar: Any = constant_value(duckdb_text(node))
        if pa.types.is_interval(scalar.type) and scalar.is_valid:
            months, days, nanoseconds = scalar.as_py()
            if months == 0:
                return Literal("duration", days * Fraction(86400) + Fraction(nanoseconds, 10**9))
            return Operand()
        literal = Literal("null") if pt.is_null(scalar.type) else Literal.from_scalar(scalar)
        if literal is None:
            return Operand()
        if literal.kind == "null" and pt.is_floating(scalar.type):
            return replace(literal, bits=scalar.type.bit_width)
        return _ComputedText(literal.kind, literal.value) if literal.kind == "text" else literal

    # Columns

    def resolve_column(self, names: list[str], node: Any) -> Operand:
        full_name = ".".join(names)
        is_column = bool(matching_names(self._names, names[0]))
        if not is_column and matching_names(self._names, full_name):
            names = [full_name]
        path: list[str] = []
        fields: Any = self.schema
        for number, name in enumerate(names):
            if path and is_list_of_structs(fields):
                return self._list_of_fields(tuple(path), fields, names[number:], node)
            if not isinstance(fields, pa.Schema | pa.StructType):
                parent = ast.column_text(tuple(path))
                self.fail(f"{parent} is {fields} and has no fields", PYARROW_ADVICE, node)
            field_names = self._names if not path else [field.name for field in fields]
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
        if pt.is_null(fields):
            self.unfitting_columns.add(tuple(path))
        return Operand(fields, tuple(path))

    def _list_of_fields(
        self, path: ast.ColumnPath, list_type: Any, names: list[str], node: Any
    ) -> Operand:
        """Translate ``events.id`` to the list of the ids of all structs in the list events."""
        fields: list[str] = []
        type_ = list_type.value_type
        for name in names:
            matches = matching_names([field.name for field in type_], name)
            if len(matches) != 1:
                parent = ast.column_text((*path, *fields))
                self.fail(f"{parent} has no field {name}", PYARROW_ADVICE, node)
            fields += matches
            type_ = type_.field(matches[0]).type
            if not pt.is_struct(type_):
                break
        if len(fields) < len(names):
            self.fail(f"{ast.column_text((*path, *fields))} has no fields", PYARROW_ADVICE, node)
        return Operand(reason=_LIST_REASON, elements=Entry(path, type_, field=tuple(fields)))

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
    """Return whether a type holds a literal."""
    value = stored_value.value
    if stored_value.is_exact and isinstance(value, float | Fraction) and family(type_) == "float":
        return round_to_float(value, comparable_type(type_).bit_width) == value
    return stored_value.is_exact


def _near_requirement(
    column: Operand, symbol: str, literals: Sequence[Literal]
) -> Predicate | None:
    """Return what a float column requires to be equal to a literal that DuckDB rounds.

    DuckDB divides and adds floats, so the result may be some floats away from the nearest one.
    """
    type_: Any = column.type
    values = [literal.value for literal in literals if literal.kind != "null"]
    if not (pt.is_float32(type_) or pt.is_float64(type_)) or column.path is None:
        return None
    if column.cast_type is not None or not all(isinstance(value, Fraction) for value in values):
        return None
    near: list[float] = []
    to_numpy_type = np.float32 if pt.is_float32(type_) else np.float64
    for value in values:
        number = round_to_float(value, type_.bit_width)
        if number is None or not math.isfinite(number):
            return None
        for direction in (-math.inf, math.inf):
            neighbour = to_numpy_type(number)
            for _ in range(_MAX_ROUNDED_FLOATS):
                near.append(float(neighbour))
                with np.errstate(all="ignore"):
                    neighbour = np.nextafter(neighbour, to_numpy_type(direction))
    if symbol == "=":
        return ast.IsIn(column.path, pa.array(near, type_))
    if symbol in ("<", "<="):
        return ast.Compares(column.path, "<=", pa.scalar(max(near), type_))
    return ast.Not(ast.Compares(column.path, "<", pa.scalar(min(near), type_)))


def is_list_of_structs(type_: Any) -> bool:
    return isinstance(type_, pa.ListType | pa.LargeListType) and pt.is_struct(type_.value_type)


def _entry_of(value: SqlValue) -> Entry | None:
    """Return which elements a list of the rows has, or None if the value is no such list."""
    if isinstance(value, Literal) or value.elements is not None:
        return None if isinstance(value, Literal) else value.elements
    type_: Any = without_views(value.type) if value.type is not None else pa.null()
    if value.path is None or not isinstance(type_, LIST_TYPES):
        return None
    return Entry(value.path, type_.value_type)


def _reason(name: str) -> str:
    if name in _LIST_SEARCHES + _SEARCHES_FOR_ANY + _SEARCHES_FOR_ALL:
        return _LIST_REASON
    if require_call(("column",), name, ["text"], ignores_case=False) is not None:
        return TEXT_REASON
    advice = f"; {_RANGE_ADVICE}" if name in _PARTS_OF_TIMES else ""
    return f"no index holds what {name} returns{advice}"


def _is_constant(node: Any) -> bool:
    """Return whether a node has neither columns nor variables of lambdas."""
    return not any(
        part.key == "lambda" or (part.key == "column" and "is_clock" not in part.meta)
        for part in node.walk()
    )


def _is_top_level(node: Any) -> bool:
    """Return whether only AND, OR and parentheses are around a condition."""
    outer = node.parent
    while outer is not None and outer.key in ("and", "or", "paren"):
        outer = outer.parent
    return outer is None


def _cast_type(node: Any) -> pa.DataType | None:
    """Return the type that sqlglot's node of a type names, or None if it is another one."""
    name = getattr(node.this, "name", "")
    sizes = [str(part.this) for part in node.expressions]
    if name == "DECIMAL" and len(sizes) in (1, 2) and all(size.isdigit() for size in sizes):
        precision, scale = int(sizes[0]), int(sizes[1]) if len(sizes) > 1 else 0
        if 1 <= precision <= _MAX_DECIMAL_DIGITS and scale <= precision:
            return pa.decimal128(precision, scale)
    return None if sizes else _CAST_TYPES.get(name)


def _require_digits(target: Any, whole: int, scale: int) -> None:
    """Raise `Unanswerable` if no decimal of DuckDB holds a column and the digits of literals."""
    if pt.is_integer(target):
        whole = max(whole, len(str(integer_bounds(target)[1])))
    elif pt.is_decimal(target) and target.precision <= _MAX_DECIMAL_DIGITS:
        whole = max(whole, target.precision - target.scale)
        scale = max(scale, target.scale)
    if scale and whole + scale > _MAX_DECIMAL_DIGITS:
        raise Unanswerable("DuckDB rounds the numbers to a decimal of 38 digits")


def _nearest_float(literal: Literal, target: pa.DataType) -> float:
    """Return the float that DuckDB makes of a number. Raise `Unanswerable` if it is not certain."""
    value = literal.value
    if isinstance(value, float):
        if math.isnan(value):
            raise Unanswerable("NaN equals NaN in DuckDB, and an index cannot help to find it")
        return value
    if literal.bits:
        return float(value)
    limit, max_scale = _FLOAT_LIMITS[target.bit_width]
    scale = literal.digits[1]
    if scale > max_scale or abs(value) * 10**scale >= limit:
        raise Unanswerable("DuckDB rounds the number to a float")
    number = round_to_float(value, target.bit_width)
    assert number is not None
    return number


def _number_literal(text: str) -> Literal:
    """Return the literal of a number: 1e0 is a double, 1.0 a decimal, and 1 an integer."""
    literal = sql_literals.parse_number(text)
    digits, _, decimals = text.removeprefix("-").partition(".")
    is_long = len(digits) + len(decimals) > _MAX_DECIMAL_DIGITS
    if "." not in text:
        is_long = is_long and abs(literal.value) >= _HUGEINT_LIMIT
    if "e" in text.lower() or is_long:
        if round_to_float(literal.value, 64) is None:
            raise Unanswerable("the number does not fit a double", "write a smaller number")
        return replace(literal, bits=64)
    return replace(literal, digits=(len(digits), len(decimals)))


def plain_condition(operand: SqlValue, values: Sequence[int | str | None]) -> Predicate | None:
    """Return the condition that a column holds a plain integer or string, or one of several.

    Return None for any other values. `DuckDBTranslator.translate_membership` returns an equal
    condition, but takes ten times as long per literal.
    """
    if isinstance(operand, Literal) or operand.path is None or not values:
        return None
    type_, kind = comparable_type(operand.type), family(operand.type)
    numbers = [value for value in values if isinstance(value, int)]
    if kind == "integer" and pt.is_integer(type_) and len(numbers) == len(values):
        low, high = integer_bounds(type_)
        if low <= min(numbers) and max(numbers) <= high:
            return _among(operand.path, numbers, type_)
    if kind == "text" and all(isinstance(value, str) for value in values):
        return _among(operand.path, list(values), type_)
    return None


def _among(path: ast.ColumnPath, values: list[Any], type_: pa.DataType) -> Predicate:
    array = array_of(values, type_)
    return ast.Equals(path, array[0]) if len(values) == 1 else ast.IsIn(path, array)


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
    return Literal("text", text[1:-1]) if text[0] == "'" else _number_literal(text)

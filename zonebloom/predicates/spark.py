"""Translate Spark SQL filters to predicates with the semantics of Spark.

The predicate must be true or unknown for every row that Spark keeps. So a comparison is translated
only if Spark compares this column type and this literal exactly, whatever its settings. All other
conditions are `Unknown`. The differences from the SQL of `zonebloom.predicates.sql` are:

- NaN equals NaN and is greater than every number. So ``x > 5`` is translated as NOT ``x <= 5``,
  which is true for NaN in Arrow too. A NaN literal is unknown.
- Spark's settings decide whether double quotes enclose a string or a name, whether a backslash
  escapes, and whether ``${`` begins a substitution. A filter with any of these is unknown.
- A timestamp without a time zone is in the session's zone, which not every caller knows.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.errors import FilterError
from zonebloom.predicates import ast
from zonebloom.predicates.expression import expression_from_predicate
from zonebloom.predicates.spark_compare import (
    SparkComparer,
    parse_spark_datetime,
    parse_spark_number,
)
from zonebloom.predicates.sql_parser import MAX_TEXT
from zonebloom.predicates.sql_tree import Operand, SqlTranslator, SqlValue
from zonebloom.predicates.type_requirements import with_type_requirement
from zonebloom.values.columns import find_column
from zonebloom.values.literal import Literal, Unanswerable

_SETTING_DEPENDENT_TEXTS = ('"', "\\", "${")
# The functions of sqlglot's tree that search a string, and those of SQL with the same meaning.
_TEXT_FUNCTIONS = {
    "contains": "contains",
    "startswith": "starts_with",
    "endswith": "ends_with",
    "regexplike": "regexp_matches",
    "like": "like",
}
_INTEGER_CAST_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_DATETIME_CASTS = {
    "DATE": "date",
    "TIMESTAMPNTZ": "timestamp",
    "TIMESTAMPTZ": "local",
    "TIMESTAMPLTZ": "local",
}


@dataclass(frozen=True, slots=True)
class SparkFilter:
    """A translated Spark SQL condition.

    The predicate is true or unknown for every row that Spark keeps. `columns` are the top-level
    columns of the condition, or None if they are not known.
    """

    predicate: ast.Predicate
    columns: frozenset[str] | None

    def row_filter(self, schema: pa.Schema) -> pc.Expression | None:
        """Return the terms that PyArrow may apply to rows, joined by AND, or None without any.

        A term with an unknown part is left out.
        """
        predicate = self.predicate
        terms = predicate.terms if isinstance(predicate, ast.And) else (predicate,)
        known_terms = [term for term in terms if not ast.unknowns(term)]
        expressions = [expression_from_predicate(term, schema) for term in known_terms]
        return reduce(and_, expressions) if expressions else None


def translate_spark_sql(
    text: str,
    schema: pa.Schema,
    opaque_columns: frozenset[str] = frozenset(),
    timezone: str | None = None,
) -> SparkFilter:
    """Translate a Spark SQL condition, the part after WHERE, for a schema.

    Text that cannot be translated gives an `Unknown` predicate and never an error.
    """
    ambiguous = next((symbol for symbol in _SETTING_DEPENDENT_TEXTS if symbol in text), None)
    if ambiguous is not None:
        return _unknown_filter(text, f"the meaning of {ambiguous} depends on Spark's settings")
    if len(text) > MAX_TEXT:
        return _unknown_filter(text, f"it has more than {MAX_TEXT:,} characters")
    try:
        node = _parse_spark_sql(text)
        comparer = SparkComparer(schema, opaque_columns, timezone)
        condition = ast.simplify(_SparkSqlTranslator(comparer).translate_condition(node))
        predicate = with_type_requirement(condition, comparer.unfitting_columns)
        return SparkFilter(predicate, _referenced_column_names(node, schema))
    except RecursionError:
        return _unknown_filter(text, "it is nested too deeply")
    except _SparkSqlParseError as error:
        return _unknown_filter(text, str(error))


def _unknown_filter(text: str, reason: str) -> SparkFilter:
    return SparkFilter(ast.Unknown(ast.shorten(text), reason), None)


class _SparkSqlParseError(Exception):
    """sqlglot cannot parse the text. Spark may be able to."""


def _parse_spark_sql(text: str) -> Any:
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import SqlglotError

    try:
        # Do not parse it as a statement, because sqlglot logs a warning if it does not know one.
        conditions = Dialect.get_or_raise("spark").parse_into(exp.Condition, text)
    except SqlglotError as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _SparkSqlParseError(f"it cannot be parsed: {line}") from None
    if len(conditions) != 1 or conditions[0] is None:
        raise _SparkSqlParseError("it is not one condition")
    return conditions[0]


def _referenced_column_names(node: Any, schema: pa.Schema) -> frozenset[str] | None:
    """Return the top-level columns of a condition, or None if they are not known."""
    names: set[str] = set()
    for part in node.walk():
        if part.key in ("select", "lambda", "star", "placeholder", "parameter"):
            return None
        if part.key == "column":
            name = find_column(schema.names, part.parts[0].this)
            if name is None:
                return None
            names.add(name)
    return frozenset(names)


class _SparkSqlTranslator(SqlTranslator):
    """A translator for Spark SQL. Parts whose meaning is not certain become `Unknown`."""

    dialect = "spark"
    default_escape = "\\"

    def __init__(self, comparer: SparkComparer):
        super().__init__(comparer.schema)
        self._comparer = comparer
        # Spark rejects some patterns with a custom escape character, so leave ESCAPE unknown.
        del self.condition_methods["escape"]

    def translate_condition(self, node: Any) -> ast.Predicate:
        try:
            return super().translate_condition(node)
        except (Unanswerable, FilterError) as reason:
            node = self.strip_parentheses(node)
            requires = None
            with suppress(Unanswerable, FilterError):
                requires = self._requirement_of(node)
            return self.unknown_condition(node, str(reason), requires=requires)

    def _requirement_of(self, node: Any) -> ast.Predicate | None:
        """Return what a condition requires that searches a string, an array or a map."""
        if node.key == "arraycontains":
            item = self.translate_operand(node.expression)
            names = [part.this for part in getattr(node.this, "parts", ())]
            for stop in range(1, len(names)):
                # events.id is an array of the ids of all structs in the array events.
                with suppress(Unanswerable):
                    path = self._comparer.resolve_path(names[:stop])
                    found = self._comparer.requires_element(path, item, names[stop:])
                    if found is not None:
                        return found
            return self._comparer.requires_element(self._path_of(node.this), item)
        # Other nodes, such as CASE and most functions, have no operand here that is a node.
        if node.key not in ("eq", "in", *_TEXT_FUNCTIONS) or node.args.get("negate"):
            return None
        side, others = node.this, node.expressions or [node.expression]
        # Equality alone is symmetric.
        if node.key == "eq" and others[0].key in ("bracket", "lower"):
            side, others = others[0], [side]
        items = [self.translate_operand(other) for other in others if other is not None]
        if side.key == "bracket" and len(side.expressions) == 1 and node.key in ("eq", "in"):
            key = self.translate_operand(side.expressions[0])
            return self._comparer.requires_entry(self._path_of(side.this), key, items)
        is_lower = side.key == "lower"
        name = "=" if node.key == "eq" and is_lower else _TEXT_FUNCTIONS.get(node.key)
        if name is None or len(items) != 1:
            return None
        path = self._path_of(side.this if is_lower else side)
        return self._comparer.requires_text(path, name, items[0], ignores_case=is_lower)

    def _path_of(self, node: Any) -> ast.ColumnPath:
        value = self.translate_value(node)
        if isinstance(value, Literal) or value.path is None:
            raise Unanswerable(ast.ONLY_LITERALS)
        return value.path

    def translate_comparison(
        self, symbol: str, left: SqlValue, right: SqlValue, node: Any
    ) -> ast.Predicate:
        if isinstance(left, Literal):
            symbol, left, right = ast.FLIPPED_OPERATORS[symbol], right, left
        if isinstance(left, Literal) or not isinstance(right, Literal) or left.path is None:
            self.fail(ast.ONLY_LITERALS, "", node)
        return self._comparer.compare(left.path, symbol, right)

    def translate_membership(
        self, value: SqlValue, items: list[SqlValue], node: Any
    ) -> ast.Predicate:
        literals = [item for item in items if isinstance(item, Literal)]
        if isinstance(value, Literal) or value.path is None or len(literals) < len(items):
            self.fail(ast.ONLY_LITERALS, "", node)
        return self._comparer.is_in(value.path, literals)

    def translate_value(self, node: Any) -> SqlValue:
        if node.key == "literal":
            return parse_spark_number(node.this)
        if node.key in ("cast", "trycast") and node.this.key == "literal":
            self.require_only(node, "this", "to")
            return self._translate_literal_cast(node)
        if node.key != "column" or any(part.key != "identifier" for part in node.parts):
            self.fail(ast.ONLY_LITERALS, "", node)
        self.require_only(node, "this", "table", "db", "catalog")
        path = self._comparer.resolve_path([part.this for part in node.parts])
        return Operand(self._comparer.column_type(path), path)

    def _translate_literal_cast(self, node: Any) -> Literal:
        """Translate a literal with a type before it, DATE '...', or a letter after it, 5L."""
        name, inner = node.args["to"].this.name, node.this
        if inner.is_string and name in _DATETIME_CASTS:
            return parse_spark_datetime(inner.this, _DATETIME_CASTS[name])
        if not inner.is_string:
            value = parse_spark_number(inner.this)
            if name == "DOUBLE":
                return Literal("number", value.value, 64)
            bits = _INTEGER_CAST_BITS.get(name)
            is_integer = value.digits[0] and not value.digits[1]
            if is_integer and bits and value.value < 2 ** (bits - 1):
                return value
        raise Unanswerable("casts are not supported")

    def fail(self, what: str, advice: str, node: Any) -> NoReturn:
        raise Unanswerable(what)

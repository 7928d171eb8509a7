"""Spark SQL filters brought to predicates, with Spark's semantics or not at all.

A row Spark would keep must be true, or unknown, in the predicate: placed are only pairs of column
type and literal that Spark compares exactly whatever its settings. What differs from the SQL of
`zonebloom.predicates.sql`:

- NaN equals NaN and is above every number: ``x > 5`` is written NOT ``x <= 5``, which holds for
  NaN here as there; a NaN literal is unknown.
- A double-quoted text is a string or a name, a backslash an escape or not, and ``${`` a
  substitution, as settings say: a filter with one of them is unknown as a whole.
- A timestamp without a zone is one of the session's zone, which not every caller knows.
"""

from __future__ import annotations

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
from zonebloom.predicates.sql_tree import Operand, OperandOrLiteral, SqlTranslator
from zonebloom.values.columns import find_column
from zonebloom.values.literal import Literal, Unanswerable

_ONLY_LITERALS = "only a column compared with a literal is known to an index"
_AMBIGUOUS = ('"', "\\", "${")
_INTEGER_CASTS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_TEXT_CASTS = {
    "DATE": "date",
    "TIMESTAMPNTZ": "timestamp",
    "TIMESTAMPTZ": "local",
    "TIMESTAMPLTZ": "local",
}


@dataclass(frozen=True, slots=True)
class SparkFilter:
    """A Spark SQL condition: its predicate is true or unknown for every row Spark keeps; columns
    are the top-level ones it names, None when that cannot be told."""

    predicate: ast.Predicate
    columns: frozenset[str] | None

    def row_filter(self, schema: pa.Schema) -> pc.Expression | None:
        """What PyArrow may apply to rows: the parts joined by AND that are exact."""
        predicate = self.predicate
        terms = predicate.terms if isinstance(predicate, ast.And) else (predicate,)
        exact = [
            expression_from_predicate(each, schema) for each in terms if not ast.unknowns(each)
        ]
        return reduce(and_, exact) if exact else None


def translate_spark_sql(
    text: str,
    schema: pa.Schema,
    opaque_columns: frozenset[str] = frozenset(),
    timezone: str | None = None,
) -> SparkFilter:
    """Translate the condition behind a Spark SQL WHERE; nothing is refused."""
    found = next((each for each in _AMBIGUOUS if each in text), None)
    if found is not None:
        return _unknown(text, f"what {found} means in it depends on Spark's settings")
    try:
        node = _parse(text)
        condition = _Translator(
            SparkComparer(schema, opaque_columns, timezone)
        ).translate_condition(node)
        return SparkFilter(ast.simplify(condition), _names(node, schema))
    except RecursionError:
        return _unknown(text, "it is nested too deeply")
    except _Unparsed as error:
        return _unknown(text, str(error))


def _unknown(text: str, reason: str) -> SparkFilter:
    return SparkFilter(ast.Unknown(text, reason), None)


class _Unparsed(Exception):
    """sqlglot cannot read the text; Spark perhaps can."""


def _parse(text: str) -> Any:
    from sqlglot import exp
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import SqlglotError

    try:
        # Not as a statement: sqlglot logs a warning about statements that it does not know.
        found = Dialect.get_or_raise("spark").parse_into(exp.Condition, text)
    except SqlglotError as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _Unparsed(f"it cannot be parsed: {line}") from None
    if len(found) != 1 or found[0] is None:
        raise _Unparsed("it is not one condition")
    return found[0]


def _names(node: Any, schema: pa.Schema) -> frozenset[str] | None:
    names: set[str] = set()
    for each in node.walk():
        if each.key in ("select", "lambda", "star", "placeholder", "parameter"):
            return None
        if each.key == "column":
            name = find_column(schema.names, each.parts[0].this)
            if name is None:
                return None
            names.add(name)
    return frozenset(names)


class _Translator(SqlTranslator):
    """Spark SQL over a schema; what is not followed for certain is unknown."""

    dialect = "spark"

    def __init__(self, comparer: SparkComparer):
        super().__init__(comparer.schema)
        self._comparer = comparer
        # Spark refuses some patterns of an escape character of one's own.
        del self.condition_methods["escape"]

    def translate_condition(self, node: Any) -> ast.Predicate:
        try:
            return super().translate_condition(node)
        except (Unanswerable, FilterError) as reason:
            return self.unknown_condition(self.strip_parentheses(node), str(reason))

    def translate_comparison(
        self, symbol: str, left: OperandOrLiteral, right: OperandOrLiteral, node: Any
    ) -> ast.Predicate:
        if isinstance(left, Literal):
            symbol, left, right = ast.FLIPPED_OPERATORS[symbol], right, left
        if isinstance(left, Literal) or not isinstance(right, Literal) or left.path is None:
            self.fail(_ONLY_LITERALS, "", node)
        return self._comparer.compare(left.path, symbol, right)

    def translate_membership(
        self, value: OperandOrLiteral, items: list[OperandOrLiteral], node: Any
    ) -> ast.Predicate:
        literals = [item for item in items if isinstance(item, Literal)]
        if isinstance(value, Literal) or value.path is None or len(literals) < len(items):
            self.fail(_ONLY_LITERALS, "", node)
        return self._comparer.is_in(value.path, literals)

    def translate_value(self, node: Any) -> OperandOrLiteral:
        if node.key == "literal":
            return parse_spark_number(node.this)
        if node.key in ("cast", "trycast") and node.this.key == "literal":
            self.require_only(node, "this", "to")
            return self._cast(node)
        if node.key != "column" or any(part.key != "identifier" for part in node.parts):
            self.fail(_ONLY_LITERALS, "", node)
        self.require_only(node, "this", "table", "db", "catalog")
        path = self._comparer.resolve_path([part.this for part in node.parts])
        return Operand(pc.field(*path), self._comparer.column_type(path), path)

    def _cast(self, node: Any) -> Literal:
        """A literal with a type before it, DATE '...', or a letter behind it, 5L."""
        name, inner = node.args["to"].this.name, node.this
        if inner.is_string and name in _TEXT_CASTS:
            return parse_spark_datetime(inner.this, _TEXT_CASTS[name])
        if not inner.is_string:
            value = parse_spark_number(inner.this)
            if name == "DOUBLE":
                return Literal("number", value.value, 64)
            bits = _INTEGER_CASTS.get(name)
            is_integer = value.digits[0] and not value.digits[1]
            if is_integer and bits and value.value < 2 ** (bits - 1):
                return value
        raise Unanswerable("casts are not followed")

    def fail(self, what: str, advice: str, node: Any) -> NoReturn:
        raise Unanswerable(what)

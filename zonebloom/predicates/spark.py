"""Spark SQL filters brought to predicates, with Spark's semantics or not at all.

Spark applies the filter itself, or the scan does where the translation is exact; either way a
row Spark would keep must be true, or unknown, in the predicate. So every pair of column type
and literal is listed here for which Spark compares exact values, whatever its settings say of
ANSI casts, time zones or literals; all other pairs are `Unknown`, and so are columns named
opaque (collated strings, partition values Spark reads as another type), functions, casts and
columns compared with columns. What differs from the SQL of `zonebloom.predicates.sql`:

- NaN equals NaN and is above every number: ``x > 5`` is written NOT ``x <= 5``, which holds for
  NaN here as there; a NaN literal is unknown.
- A double-quoted text is a string or a name, a backslash an escape or not, and ``${`` a
  substitution, as settings say: a filter with one of them is unknown as a whole.
- A timestamp without a zone is one of the session's zone, which not every caller knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates import ast
from zonebloom.predicates.expression import from_predicate
from zonebloom.predicates.spark_compare import Comparer, read_number, read_text
from zonebloom.values.columns import find_column
from zonebloom.values.literal import Literal, Maybe
from zonebloom.values.types import family

_ONLY_LITERALS = "only a column compared with a literal is known to an index"
_OPERATORS = {
    **{"eq": "=", "neq": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="},
    **{"nullsafeeq": "<=>", "nullsafeneq": "<=>"},
}
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
    """A Spark SQL condition, as far as it is understood.

    Attributes
    ----------
    predicate : Predicate
        True or unknown for every row Spark keeps.
    columns : frozenset of str or None
        Top-level columns it names; None when that cannot be told.
    """

    predicate: ast.Predicate
    columns: frozenset[str] | None

    def row_filter(self, schema: pa.Schema) -> pc.Expression | None:
        """What PyArrow may apply to rows: the parts joined by AND that are exact."""
        predicate = self.predicate
        terms = predicate.terms if isinstance(predicate, ast.And) else (predicate,)
        exact = [from_predicate(each, schema) for each in terms if not ast.unknowns(each)]
        return reduce(and_, exact) if exact else None


def to_spark_filter(
    text: str,
    schema: pa.Schema,
    opaque: frozenset[str] = frozenset(),
    timezone: str | None = None,
) -> SparkFilter:
    """Translate the condition behind a Spark SQL WHERE.

    Nothing is refused: Spark may understand what this module does not.

    Examples
    --------
    >>> schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> print(to_spark_filter("ID = 42 AND upper(name) = 'A'", schema).predicate)
    id = 42 AND UPPER(name) = 'A'
    """
    found = next((each for each in _AMBIGUOUS if each in text), None)
    if found is not None:
        return _unknown(text, f"what {found} means in it depends on Spark's settings")
    try:
        node = _parse(text)
        condition = _Translator(Comparer(schema, opaque, timezone)).condition(node)
        return SparkFilter(ast.simplified(condition), _names(node, schema))
    except RecursionError:
        return _unknown(text, "it is nested too deeply")
    except _Unparsed as error:
        return _unknown(text, str(error))


def _unknown(text: str, reason: str) -> SparkFilter:
    return SparkFilter(ast.Unknown(text, reason), None)


class _Unparsed(Exception):
    """sqlglot cannot read the text; Spark perhaps can."""


def _parse(text: str) -> Any:
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        found = sqlglot.parse(text, dialect="spark")
    except SqlglotError as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _Unparsed(f"it cannot be parsed: {line}") from None
    if len(found) != 1 or found[0] is None:
        raise _Unparsed("it is not one condition")
    return found[0]


def _names(node: Any, schema: pa.Schema) -> frozenset[str] | None:
    """Top-level columns a filter names, None when one of them is not found."""
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


class _Translator:
    """Walks one parsed filter."""

    def __init__(self, comparer: Comparer):
        self._comparer = comparer

    def condition(self, node: Any) -> ast.Predicate:
        """What a node that is true, false or null for a row comes to."""
        while node.key == "paren":
            node = node.this
        try:
            return self._condition(node)
        except Maybe as reason:
            return ast.Unknown(_text(node), str(reason))

    def _condition(self, node: Any) -> ast.Predicate:
        key = node.key
        if key in ("and", "or"):
            terms = tuple(map(self.condition, node.flatten(unnest=False)))
            return ast.And(terms) if key == "and" else ast.Or(terms)
        if key == "not":
            return ast.negation(self.condition(node.this))
        _only(node, "this", "expression", "expressions", "low", "high", "table", "db", "catalog")
        if key in _OPERATORS:
            found = self._comparison(_OPERATORS[key], _bare(node.this), _bare(node.expression))
            return ast.negation(found) if key == "nullsafeneq" else found
        if key == "is" and node.expression.key == "null":
            return ast.IsNull(self._column(node.this))
        if key == "in" and node.expressions:
            return self._comparer.is_in(
                self._column(node.this), [self._value(e) for e in node.expressions]
            )
        if key == "between":
            path = self._column(node.this)
            low, high = self._value(node.args["low"]), self._value(node.args["high"])
            above = self._comparer.compare(path, ">=", low)
            return ast.And((above, self._comparer.compare(path, "<=", high)))
        if key == "like":
            return self._like(node)
        if key == "boolean":
            return ast.Constant(bool(node.this))
        if key == "null":
            return ast.Constant(None)
        if key == "column":
            path = self._column(node)
            if pt.is_boolean(self._comparer.type_of(path)):
                return ast.Equals(path, pa.scalar(True))
        raise Maybe("it is not followed")

    def _like(self, node: Any) -> ast.Predicate:
        path, value = self._column(node.this), self._value(node.expression)
        if value.kind != "text" or "%" in value.value or "_" in value.value:
            raise Maybe("text patterns are not answered by a Bloom filter")
        if family(self._comparer.type_of(path)) != "text":
            raise Maybe("LIKE casts the column")
        return self._comparer.compare(path, "=", value)

    # Columns and values

    def _comparison(self, operator: str, left: Any, right: Any) -> ast.Predicate:
        if left.key not in ("column", "dot"):
            left, right, operator = right, left, ast.FLIPPED[operator]
        return self._comparer.compare(self._column(left), operator, self._value(right))

    def _column(self, node: Any) -> ast.ColumnPath:
        node = _bare(node)
        if node.key != "column" or any(part.key != "identifier" for part in node.parts):
            raise Maybe(_ONLY_LITERALS)
        _only(node, "this", "table", "db", "catalog")
        return self._comparer.path([part.this for part in node.parts])

    def _value(self, node: Any) -> Literal:
        node = _bare(node)
        key = node.key
        if key == "null":
            return Literal("null")
        if key == "boolean":
            return Literal("boolean", bool(node.this))
        if key == "literal":
            return Literal("text", node.this) if node.is_string else read_number(node.this)
        if key == "neg":
            value = self._value(node.this)
            if value.kind == "number":
                return replace(value, value=-value.value)
        if key == "hexstring" and len(node.this) % 2 == 0:
            return Literal("bytes", bytes.fromhex(node.this))
        if key in ("cast", "trycast") and node.this.key == "literal":
            _only(node, "this", "to")
            return self._cast(node)
        raise Maybe(_ONLY_LITERALS)

    def _cast(self, node: Any) -> Literal:
        """A literal with a type before it, DATE '...', or a letter behind it, 5L."""
        name, inner = node.args["to"].this.name, node.this
        if inner.is_string and name in _TEXT_CASTS:
            return read_text(inner.this, _TEXT_CASTS[name])
        if not inner.is_string:
            value = read_number(inner.this)
            if name == "DOUBLE":
                return Literal("number", value.value, 64)
            bits = _INTEGER_CASTS.get(name)
            is_integer = value.digits[0] and not value.digits[1]
            if is_integer and bits and value.value < 2 ** (bits - 1):
                return value
        raise Maybe("casts are not followed")


def _bare(node: Any) -> Any:
    while node.key == "paren":
        node = node.this
    return node


def _only(node: Any, *known: str) -> None:
    """Leave a node that carries more than is looked at here."""
    if any(value and name not in known for name, value in node.args.items()):
        raise Maybe("it is not followed")


def _text(node: Any) -> str:
    return node.sql(dialect="spark")

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

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates import ast, literals
from zonebloom.predicates.expression import from_predicate
from zonebloom.predicates.spark_compare import Comparer, negated
from zonebloom.predicates.spark_values import Maybe, Value, read_number, read_text
from zonebloom.values.columns import find_column

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPERATORS = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_AMBIGUOUS = ('"', "\\", "${")
_INTEGER_CASTS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_TEXT_CASTS = {
    "DATE": "date",
    "TIMESTAMPNTZ": "timestamp_ntz",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
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

    @property
    def is_exact(self) -> bool:
        """Whether the predicate is true for exactly the rows Spark keeps."""
        return not ast.unknowns(self.predicate)

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
        translator = _Translator(schema, opaque, timezone)
        names = translator.names(node)
        return SparkFilter(translator.condition(node), names)
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


class _Translator:
    """Walks one parsed filter."""

    def __init__(self, schema: pa.Schema, opaque: frozenset[str], timezone: str | None):
        self._comparer = Comparer(schema, opaque, timezone)

    def names(self, node: Any) -> frozenset[str] | None:
        """Top-level columns a filter names, None when one of them is not found."""
        found = set()
        for each in node.walk():
            if each.key in ("select", "lambda", "star", "placeholder", "parameter"):
                return None
            if each.key == "column":
                name = find_column(self._comparer.schema.names, each.parts[0].this)
                if name is None:
                    return None
                found.add(name)
        return frozenset(found)

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
            kind = ast.And if key == "and" else ast.Or
            terms: list[ast.Predicate] = []
            for each in node.flatten(unnest=False):
                term = self.condition(each)
                terms.extend(term.terms if isinstance(term, kind) else (term,))
            return kind(tuple(terms))
        if key == "not":
            return negated(self.condition(node.this))
        _only(node, "this", "expression", "expressions", "low", "high", "table", "db", "catalog")
        if key in ("eq", "neq"):
            path, value = self._sides(node)
            equal = self._comparer.equal(path, value)
            return equal if key == "eq" else negated(equal)
        if key in _OPERATORS:
            path, value, flipped = self._sided(node)
            operator = _OPERATORS[key]
            return self._comparer.compare(path, _MIRRORED[operator] if flipped else operator, value)
        if key in ("nullsafeeq", "nullsafeneq"):
            path, value = self._sides(node)
            null = ast.IsNull(path)
            if value is not None:
                null = ast.And((self._comparer.equal(path, value), negated(null)))
            return null if key == "nullsafeeq" else negated(null)
        if key == "is" and node.expression.key == "null":
            return ast.IsNull(self._column(node.this))
        if key == "in" and node.expressions:
            return self._comparer.is_in(
                self._column(node.this), [self._value(e) for e in node.expressions]
            )
        if key == "between":
            path = self._column(node.this)
            low, high = self._value(node.args["low"]), self._value(node.args["high"])
            return ast.And(
                (self._comparer.compare(path, ">=", low), self._comparer.compare(path, "<=", high))
            )
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
        if value is None or value.kind != "text" or "%" in value.value or "_" in value.value:
            raise Maybe("text patterns are not answered by a Bloom filter")
        if not literals.is_text(self._comparer.type_of(path)):
            raise Maybe("LIKE casts the column")
        return self._comparer.equal(path, value)

    # Columns and values

    def _sides(self, node: Any) -> tuple[ast.ColumnPath, Value | None]:
        path, value, _ = self._sided(node)
        return path, value

    def _sided(self, node: Any) -> tuple[ast.ColumnPath, Value | None, bool]:
        """Column, literal, and whether they are written the other way round."""
        left, right = _bare(node.this), _bare(node.expression)
        if left.key in ("column", "dot"):
            return self._column(left), self._value(right), False
        return self._column(right), self._value(left), True

    def _column(self, node: Any) -> ast.ColumnPath:
        node = _bare(node)
        if node.key != "column" or any(part.key != "identifier" for part in node.parts):
            raise Maybe("only a column compared with a literal is known to an index")
        _only(node, "this", "table", "db", "catalog")
        return self._comparer.path([part.this for part in node.parts])

    def _value(self, node: Any) -> Value | None:
        """A literal; None for NULL."""
        node = _bare(node)
        key = node.key
        if key == "null":
            return None
        if key == "boolean":
            return Value("bool", bool(node.this))
        if key == "literal":
            return Value("text", node.this) if node.is_string else read_number(node.this)
        if key == "neg":
            value = self._value(node.this)
            if value is not None and value.kind in ("integer", "decimal", "double"):
                return value.negated()
        if key == "hexstring" and len(node.this) % 2 == 0:
            return Value("bytes", bytes.fromhex(node.this))
        if key in ("cast", "trycast") and node.this.key == "literal":
            _only(node, "this", "to")
            return self._cast(node)
        raise Maybe("only a column compared with a literal is known to an index")

    def _cast(self, node: Any) -> Value:
        """A literal with a type before it, DATE '...', or a letter behind it, 5L."""
        name, inner = node.args["to"].this.name, node.this
        if inner.is_string and name in _TEXT_CASTS:
            return read_text(inner.this, _TEXT_CASTS[name])
        if not inner.is_string:
            value = read_number(inner.this)
            if name == "DOUBLE":
                return Value("double", value.value)
            bits = _INTEGER_CASTS.get(name)
            if value.kind == "integer" and bits and value.value < 2 ** (bits - 1):
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

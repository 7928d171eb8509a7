"""Filters of a physical plan, as Catalyst holds them, brought to predicates.

Both sides of a comparison have one type there, for Spark has cast them already. A column is
followed only where that type is the one its Arrow type stands for; a column cast, collated,
padded, matched by field id, filled by a default, or taken from a path is not.
"""

from __future__ import annotations

import datetime
import json
import math
import struct
import uuid
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import pyarrow as pa

from zonebloom.errors import UnsupportedType
from zonebloom.predicates import ast
from zonebloom.predicates.spark import Comparer
from zonebloom.predicates.spark_compare import negated
from zonebloom.predicates.spark_values import Maybe, Value
from zonebloom.spark.types import spark_type

_PACKAGE = "org.apache.spark.sql.catalyst.expressions."
_OPERATORS = {
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
# A py4j call takes some 50 us: longer filters cost more than they save.
_MOST_NODES = 2_000
_MOST_BINARIES = 1_000
_HARMLESS = {"comment", "CURRENT_DEFAULT"}
_CHAR_OR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_EPOCH = datetime.datetime(1970, 1, 1)
_INTEGERS = {"tinyint", "smallint", "int", "bigint"}


class Catalyst:
    """Translates the filters of one scan."""

    def __init__(
        self,
        jvm: Any,
        schema: pa.Schema,
        names: Mapping[int, str],
        opaque: Mapping[str, str],
        case_sensitive: bool,
    ):
        self._jvm = jvm
        self._comparer = Comparer(schema, frozenset(), None)
        self._names = names
        self._opaque = opaque
        self._case_sensitive = case_sensitive
        self._left = _MOST_NODES

    def predicate(self, filters: Any) -> ast.Predicate:
        """What holds for every row that passes all of a Scala sequence of filters."""
        terms: list[ast.Predicate] = []
        for each in items(filters):
            try:
                term = self._followed(each)
            except RecursionError:
                term = ast.Unknown(shortened(each), "it is nested too deeply")
            terms.extend(term.terms if isinstance(term, ast.And) else (term,))
        # Spark puts one beside each comparison and each key of a join; no filter answers them.
        telling = [each for each in terms if not _is_not_null(each)] or terms
        return ast.conjunction(telling) if telling else ast.Constant(True)

    def _followed(self, node: Any) -> ast.Predicate:
        self._left -= 1
        if self._left < 0:
            return ast.Unknown("...", "the filter is too long")
        try:
            return self._condition(node)
        except Maybe as reason:
            return ast.Unknown(shortened(node), str(reason))

    def _condition(self, node: Any) -> ast.Predicate:
        kind = _kind(node)
        if kind in ("And", "Or"):
            made = tuple(self._followed(each) for each in _flattened(node, kind))
            return ast.And(made) if kind == "And" else ast.Or(made)
        if kind == "Not":
            return negated(self._followed(node.child()))
        if kind == "IsNull":
            return ast.IsNull(self._column(node.child())[0])
        if kind == "IsNotNull":
            return ast.Not(ast.IsNull(self._column(node.child())[0]))
        if kind == "EqualTo":
            path, value, _ = self._sides(node)
            return self._comparer.equal(path, value)
        if kind == "EqualNullSafe":
            path, value, _ = self._sides(node)
            null = ast.IsNull(path)
            if value is None:
                return null
            return ast.And((self._comparer.equal(path, value), negated(null)))
        if kind in _OPERATORS:
            path, value, is_flipped = self._sides(node)
            operator = _OPERATORS[kind]
            return self._comparer.compare(
                path, _MIRRORED[operator] if is_flipped else operator, value
            )
        if kind == "In":
            path, type_ = self._column(node.value())
            return self._comparer.is_in(
                path, [_literal(each, type_) for each in items(node.list())]
            )
        if kind == "InSet":
            path, type_ = self._column(node.child())
            return self._comparer.is_in(path, _literals(node.hset(), type_))
        if kind == "Literal" and node.dataType().catalogString() in ("boolean", "void"):
            return ast.Constant(node.value())
        if kind == "AttributeReference":
            path, type_ = self._column(node)
            if type_ == "boolean":
                return ast.Equals(path, pa.scalar(True))
        raise Maybe("only a column compared with a literal is known to an index")

    def _sides(self, node: Any) -> tuple[ast.ColumnPath, Value | None, bool]:
        """Column, literal, and whether they are written the other way round."""
        left, right = node.left(), node.right()
        is_flipped = _kind(left) == "Literal"
        if is_flipped:
            left, right = right, left
        path, type_ = self._column(left)
        return path, _literal(right, type_), is_flipped

    def _column(self, node: Any) -> tuple[ast.ColumnPath, str]:
        """A column or leaf of structs, and Spark's name of its type."""
        names: list[str] = []
        top = node
        while _kind(top) == "GetStructField":
            inner = top.child()
            leaf = inner.dataType().apply(top.ordinal())
            why = opaque_reason(leaf)
            if why is not None:
                raise Maybe(why)
            names.append(leaf.name())
            top = inner
        if _kind(top) != "AttributeReference":
            raise Maybe("only a column compared with a literal is known to an index")
        name = self._names.get(top.exprId().id())
        if name is None:
            raise Maybe(f"{top.name()} is no column of the files")
        if name in self._opaque:
            raise Maybe(self._opaque[name])
        wanted = (name, *reversed(names))
        path = self._comparer.path(wanted)
        if self._case_sensitive and path != wanted:
            raise Maybe(f"there is no one column {ast.column_text(wanted)}")
        type_ = node.dataType().catalogString()
        arrow = self._comparer.type_of(path)
        if type_ != _spark_name(arrow):
            raise Maybe(f"Spark reads {ast.column_text(path)} as {type_}, and it is {arrow}")
        return path, type_


def opaque_reason(attribute: Any) -> str | None:
    """Why the metadata of an attribute, or a field, forbids to compare it by its stored values."""
    text = attribute.metadata().json()
    if text == "{}":
        return None
    for key, value in json.loads(text).items():
        if key == _CHAR_OR_VARCHAR and str(value).lower().startswith("varchar"):
            continue
        # What Spark itself puts there changes what a column means; users' own keys do not.
        if key not in _HARMLESS and (key.startswith(("__", "parquet.")) or key.isupper()):
            return f"how Spark compares a column with {key} is not followed"
    return None


def items(seq: Any) -> list[Any]:
    """The items of a Scala sequence."""
    # Of a linked list the n-th item is n steps away.
    seq = seq.toIndexedSeq()
    return [seq.apply(at) for at in range(seq.size())]


def shortened(node: Any) -> str:
    """An expression as Spark's plans show it."""
    text = node.toString()
    return text if len(text) <= 100 else f"{text[:97]}..."


def _is_not_null(term: ast.Predicate) -> bool:
    return isinstance(term, ast.Not) and isinstance(term.term, ast.IsNull)


def _kind(node: Any) -> str:
    name = node.getClass().getName()
    return name.removeprefix(_PACKAGE) if name.startswith(_PACKAGE) else ""


def _flattened(node: Any, kind: str) -> Iterator[Any]:
    """Operands of a chain of ANDs or ORs, left to right."""
    stack = [node]
    while stack:
        each = stack.pop()
        if _kind(each) == kind:
            stack += [each.right(), each.left()]
        else:
            yield each


def _spark_name(arrow: pa.DataType) -> str | None:
    try:
        return spark_type(arrow, "").simpleString()
    except UnsupportedType:
        return None


def _literal(node: Any, type_: str) -> Value | None:
    """A literal of the column's type; None for NULL."""
    if _kind(node) != "Literal" or node.dataType().catalogString() != type_:
        raise Maybe("only a column compared with a literal is known to an index")
    value = node.value()
    if value is None:
        return None
    if type_ == "string":
        return Value("text", _utf8(value.getBytes()))
    if type_.startswith("decimal"):
        return _value(value.toString(), type_)
    return _value(value, type_)


def _literals(values: Any, type_: str) -> list[Value | None]:
    """The values of a Scala set, in one call where their texts are themselves."""
    found: list[Value | None] = []
    if values.contains(None):
        found.append(None)
        values = values.excl(None)
    count = values.size()
    if type_ == "binary":
        if count > _MOST_BINARIES:
            raise Maybe("there are too many values")
        return found + [_value(each, type_) for each in items(values.toSeq())]
    mark = uuid.uuid4().hex
    texts = values.mkString(mark).split(mark) if count else []
    if len(texts) != count:
        raise Maybe("the values cannot be read")
    if type_ == "string":
        # Where bytes are no UTF-8, Java puts this instead.
        if any("\ufffd" in text for text in texts):
            raise Maybe("a text is not UTF-8")
        return found + [Value("text", text) for text in texts]
    return found + [_value(text, type_) for text in texts]


def _utf8(data: bytes) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise Maybe("a text is not UTF-8") from None


def _value(value: Any, type_: str) -> Value:
    """A value of a type: as py4j gives it, or its text in Java."""
    if type_ in _INTEGERS:
        return Value("integer", Fraction(int(value)), 20)
    if type_ in ("double", "float"):
        number = float(value)
        if not math.isfinite(number):
            raise Maybe("NaN and infinities are not followed")
        if type_ == "float":
            # Java's shortest text of a float names another double.
            (number,) = struct.unpack("<f", struct.pack("<f", number))
        return Value("double", Fraction(number))
    if type_.startswith("decimal"):
        precision, scale = map(int, type_.removeprefix("decimal(").removesuffix(")").split(","))
        return Value("decimal", Fraction(value), precision - scale, scale)
    if type_ == "boolean":
        return Value("bool", value if isinstance(value, bool) else value == "true")
    if type_ == "binary":
        return Value("bytes", bytes(value))
    if type_ == "date":
        return Value("date", _moment(days=int(value)).date().isoformat())
    if type_ == "timestamp":
        return Value("timestamp", _moment(microseconds=int(value)).isoformat(sep=" ") + "+00:00")
    if type_ == "timestamp_ntz":
        return Value("timestamp_ntz", _moment(microseconds=int(value)).isoformat(sep=" "))
    raise Maybe(f"a {type_} literal is not followed")


def _moment(days: int = 0, microseconds: int = 0) -> datetime.datetime:
    try:
        return _EPOCH + datetime.timedelta(days=days, microseconds=microseconds)
    except OverflowError:
        raise Maybe("the time is out of reach") from None

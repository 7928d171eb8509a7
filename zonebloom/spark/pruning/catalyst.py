"""Filters of a physical plan, as Catalyst holds them, brought to predicates.

Both sides of a comparison have one type there, for Spark has cast them already. A column is
followed only where that type is the one its Arrow type stands for; a column cast, collated,
padded, matched by field id, filled by a default, or taken from a path is not.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from zonebloom.errors import UnsupportedType
from zonebloom.predicates import ast
from zonebloom.predicates.spark import Comparer
from zonebloom.predicates.spark_compare import of_python
from zonebloom.spark.relation import items, opaque_reason
from zonebloom.spark.types import spark_type
from zonebloom.values.literal import Literal, Maybe, nearest

_PACKAGE = "org.apache.spark.sql.catalyst.expressions."
_OPERATORS = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
# A py4j call takes some 50 us: longer filters cost more than they save.
_MOST_NODES = 2_000
_MOST_BINARIES = 1_000
_EPOCH = datetime.datetime(1970, 1, 1)
_NOT_COMPARED = "only a column compared with a literal is known to an index"


class Catalyst:
    """Translates the filters of one scan.

    Names of its columns are by expression id; of those that are opaque it is said why they are
    not compared by their stored values.
    """

    def __init__(
        self,
        schema: pa.Schema,
        names: Mapping[int, str],
        opaque: Mapping[str, str],
        case_sensitive: bool,
    ):
        self._comparer = Comparer(schema, frozenset(), None)
        self._names = names
        self._opaque = opaque
        self._case_sensitive = case_sensitive
        self._left = _MOST_NODES

    def predicate(self, filters: Any) -> ast.Predicate:
        """What holds for every row that passes all of a Scala sequence of filters."""
        terms: list[ast.Predicate] = []
        for condition in items(filters):
            try:
                term = self._followed(condition)
            except RecursionError:
                term = self._unknown(condition, "it is nested too deeply")
            terms.extend(term.terms if isinstance(term, ast.And) else (term,))
        # Spark puts one beside each comparison and each key of a join; no filter answers them.
        telling = [term for term in terms if not _is_not_null(term)] or terms
        return ast.conjunction(telling) if telling else ast.Constant(True)

    def _followed(self, node: Any) -> ast.Predicate:
        self._left -= 1
        if self._left < 0:
            return ast.Unknown("...", "the filter is too long")
        try:
            return self._condition(node)
        except Maybe as reason:
            return self._unknown(node, str(reason))

    def _unknown(self, node: Any, reason: str) -> ast.Unknown:
        text = node.toString()
        ids = [column.exprId().id() for column in items(node.references().toSeq())]
        columns = frozenset(self._names[id_] for id_ in ids if id_ in self._names)
        return ast.Unknown(text if len(text) <= 100 else f"{text[:97]}...", reason, columns)

    def _condition(self, node: Any) -> ast.Predicate:
        kind = _kind(node)
        if kind in ("And", "Or"):
            terms = tuple(map(self._followed, _flattened(node, kind)))
            return ast.And(terms) if kind == "And" else ast.Or(terms)
        if kind == "Not":
            return ast.negation(self._followed(node.child()))
        if kind == "IsNull":
            return ast.IsNull(self._column(node.child())[0])
        if kind == "IsNotNull":
            return ast.Not(ast.IsNull(self._column(node.child())[0]))
        if kind in _OPERATORS:
            left, right, operator = node.left(), node.right(), _OPERATORS[kind]
            if _kind(left) == "Literal":
                left, right, operator = right, left, ast.FLIPPED[operator]
            path, type_ = self._column(left)
            return self._comparer.compare(path, operator, _literal(right, type_))
        if kind == "In":
            path, type_ = self._column(node.value())
            values = [_literal(item, type_) for item in items(node.list())]
            return self._comparer.is_in(path, values)
        if kind == "InSet":
            path, type_ = self._column(node.child())
            return self._comparer.is_in(path, _literals(node.hset(), type_))
        if kind == "Literal" and node.dataType().catalogString() in ("boolean", "void"):
            return ast.Constant(node.value())
        if kind == "AttributeReference":
            path, type_ = self._column(node)
            if type_ == "boolean":
                return ast.Equals(path, pa.scalar(True))
        raise Maybe(_NOT_COMPARED)

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
            raise Maybe(_NOT_COMPARED)
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


def _is_not_null(term: ast.Predicate) -> bool:
    return isinstance(term, ast.Not) and isinstance(term.term, ast.IsNull)


def _kind(node: Any) -> str:
    name = node.getClass().getName()
    return name.removeprefix(_PACKAGE) if name.startswith(_PACKAGE) else ""


def _flattened(node: Any, kind: str) -> Iterator[Any]:
    """Operands of a chain of ANDs or ORs, left to right."""
    stack = [node]
    while stack:
        node = stack.pop()
        if _kind(node) == kind:
            stack += [node.right(), node.left()]
        else:
            yield node


def _spark_name(arrow: pa.DataType) -> str | None:
    try:
        return spark_type(arrow, "").simpleString()
    except UnsupportedType:
        return None


def _literal(node: Any, type_: str) -> Literal:
    """A literal of the column's type."""
    if _kind(node) != "Literal" or node.dataType().catalogString() != type_:
        raise Maybe(_NOT_COMPARED)
    value = node.value()
    if type_ == "string" and value is not None:
        value = _utf8(value.getBytes())
    return _value(value, type_)


def _literals(values: Any, type_: str) -> list[Literal]:
    """The values of a Scala set, in one call where their texts are themselves."""
    literals: list[Literal] = []
    if values.contains(None):
        literals.append(Literal("null"))
        values = values.excl(None)
    count = values.size()
    if type_ == "binary":
        if count > _MOST_BINARIES:
            raise Maybe("there are too many values")
        return literals + [_value(value, type_) for value in items(values.toSeq())]
    mark = uuid.uuid4().hex
    texts = values.mkString(mark).split(mark) if count else []
    if len(texts) != count:
        raise Maybe("the values cannot be read")
    # Where bytes are no UTF-8, Java puts this instead.
    if type_ == "string" and any("\ufffd" in text for text in texts):
        raise Maybe("a text is not UTF-8")
    return literals + [_value(text, type_) for text in texts]


def _utf8(data: bytes) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise Maybe("a text is not UTF-8") from None


def _value(value: Any, type_: str) -> Literal:
    """A value of a type, as py4j gives it or as Java writes it."""
    name = type_.partition("(")[0]
    if name not in _READERS:
        raise Maybe(f"a {type_} literal is not followed")
    try:
        return of_python(None if value is None else _READERS[name](value))
    except OverflowError:
        raise Maybe("the value is out of reach") from None


def _float(value: Any) -> float:
    # Java's shortest text of a float names another double.
    number = nearest(float(value), 32)
    if number is None:
        raise OverflowError
    return number


def _day(value: Any) -> datetime.date:
    return (_EPOCH + datetime.timedelta(days=int(value))).date()


def _local_time(value: Any) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=int(value))


def _instant(value: Any) -> datetime.datetime:
    return _local_time(value).replace(tzinfo=datetime.UTC)


_READERS = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    "boolean": lambda value: str(value).lower() == "true",
    "double": float,
    "float": _float,
    "decimal": lambda value: Decimal(str(value)),
    "string": str,
    "binary": bytes,
    "date": _day,
    "timestamp": _instant,
    "timestamp_ntz": _local_time,
}

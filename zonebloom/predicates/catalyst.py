"""Translate Catalyst's filters of a scan, which `IndexedFiles.java` sends as JSON, to predicates.

Spark has already cast both sides of a comparison to one type. A column is compared only if this
type is the one that Spark gives to the column's Arrow type.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa

from zonebloom.predicates import ast
from zonebloom.predicates.spark import SparkComparer
from zonebloom.predicates.spark_compare import literal_from_python
from zonebloom.predicates.type_requirements import with_type_requirement
from zonebloom.values.columns import matching_names
from zonebloom.values.literal import Literal, Unanswerable, round_to_float, stored_bytes
from zonebloom.values.normal_types import hashed_type

# A condition or operand in the JSON that the JVM sends.
CatalystNode = Mapping[str, Any]

_CATALYST_OPERATORS = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
# The classes of Catalyst that search a string, and the functions of SQL with the same meaning.
_TEXT_FUNCTIONS = {
    "Contains": "contains",
    "StartsWith": "starts_with",
    "EndsWith": "ends_with",
    "RLike": "regexp_matches",
    "Like": "like",
}
# Names under which a node has what is compared in place of the column itself.
_PARTS = frozenset({"key", "field", "lower"})
_EPOCH_DATETIME = datetime.datetime(1970, 1, 1)
_HARMLESS_METADATA_KEYS = {"comment", "CURRENT_DEFAULT"}
_CHAR_VARCHAR_KEY = "__CHAR_VARCHAR_TYPE_STRING"
_INTEGER_NAMES = ("tinyint", "smallint", "int", "bigint")
# Spark shows several stored types as one of these types. This one holds all of its values.
_WIDEST_TYPES = {
    **dict(zip(_INTEGER_NAMES, (pa.int8(), pa.int16(), pa.int32(), pa.int64()), strict=True)),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
    "date": pa.date32(),
}


class CatalystTranslator:
    """A translator for the filters of one scan.

    ``spark_type_name`` returns Spark's name of an Arrow type, or None if Spark has no such type.
    """

    def __init__(
        self,
        schema: pa.Schema,
        partition_columns: Sequence[str],
        is_case_sensitive: bool,
        spark_type_name: Callable[[pa.DataType], str | None],
    ):
        self._comparer = SparkComparer(schema, frozenset(), None)
        self._partition_columns = partition_columns
        self._is_case_sensitive = is_case_sensitive
        self._name_of = spark_type_name

    def translate(self, filters: Sequence[CatalystNode]) -> ast.Predicate:
        """Return a predicate that is true for every row that passes all of the filters."""
        terms: list[ast.Predicate] = []
        for condition in filters:
            term = self._translate_node(condition)
            terms.extend(term.terms if isinstance(term, ast.And) else (term,))
        # Spark adds an IS NOT NULL for each comparison and each join key. A Bloom filter cannot
        # answer these, so drop them if there are other terms.
        others = [
            term
            for term in terms
            if not (isinstance(term, ast.Not) and isinstance(term.term, ast.IsNull))
        ]
        terms = others or terms
        predicate = ast.conjunction(terms) if terms else ast.Constant(True)
        return with_type_requirement(predicate, self._comparer.unfitting_columns)

    def _translate_node(self, node: CatalystNode) -> ast.Predicate:
        if "terms" in node:
            terms = tuple(map(self._translate_node, node["terms"]))
            if node["kind"] == "Not":
                return ast.negation(terms[0])
            return ast.And(terms) if node["kind"] == "And" else ast.Or(terms)
        try:
            return self._translate_leaf(node["kind"], node["operands"])
        except Unanswerable as reason:
            requires = None
            with suppress(Unanswerable, LookupError):
                requires = self._requirement_of(node["kind"], node["operands"])
            columns = frozenset(node["columns"])
            return ast.Unknown(node["text"], str(reason), columns, requires=requires)

    def _requirement_of(self, kind: str, operands: Sequence[CatalystNode]) -> ast.Predicate | None:
        """Return what a condition requires that searches a string, an array or a map."""
        if len(operands) != 2:
            return None
        # Equality alone is symmetric: contains('abc', name) asks nothing of a part of the name.
        is_flipped = kind == "EqualTo" and "values" in operands[0]
        column, other = operands[::-1] if is_flipped else operands
        path, type_ = self._resolve_column(column, is_part=True)
        literals = _parse_literals(other, other["type"])
        if "key" in column:
            if kind not in ("EqualTo", "In", "InSet"):
                return None
            (key,) = _parse_literals(column["key"], column["key"]["type"])
            return self._comparer.requires_entry(path, key, literals)
        if len(literals) != 1:
            return None
        if kind == "ArrayContains":
            return self._comparer.requires_element(path, literals[0], column.get("field", ()))
        is_lower = "lower" in column
        function = "=" if kind == "EqualTo" and is_lower else _TEXT_FUNCTIONS.get(kind)
        if function is None or type_ != "string" or "field" in column:
            return None
        return self._comparer.requires_text(path, function, literals[0], ignores_case=is_lower)

    def _translate_leaf(self, kind: str, operands: Sequence[CatalystNode]) -> ast.Predicate:
        if kind in ("IsNull", "IsNotNull"):
            null = ast.IsNull(self._resolve_column(operands[0])[0])
            return null if kind == "IsNull" else ast.Not(null)
        if kind in _CATALYST_OPERATORS:
            operator = _CATALYST_OPERATORS[kind]
            if "values" in operands[0]:
                operands, operator = operands[::-1], ast.FLIPPED_OPERATORS[operator]
            path, type_ = self._resolve_column(operands[0])
            literals = self._column_literals(operands[1], path, type_)
            return self._comparer.compare(path, operator, *literals)
        if kind in ("In", "InSet"):
            path, type_ = self._resolve_column(operands[0])
            return self._comparer.is_in(path, self._column_literals(operands[1], path, type_))
        if kind == "Literal" and operands[0]["type"] in ("boolean", "void"):
            (value,) = operands[0]["values"]
            return ast.Constant(None if value is None else value == "true")
        if kind == "AttributeReference":
            path, type_ = self._resolve_column(operands[0])
            if type_ == "boolean":
                return ast.Equals(path, pa.scalar(True))
        raise Unanswerable(ast.ONLY_LITERALS)

    def _resolve_column(
        self, node: CatalystNode, *, is_part: bool = False
    ) -> tuple[ast.ColumnPath, str]:
        """Return the path of a column, or of a field in a struct, and the name of its type.

        If ``is_part``, the column may be an array, a map or a string of which a part is compared.
        """
        if "column" not in node or (not is_part and not _PARTS.isdisjoint(node)):
            raise Unanswerable(ast.ONLY_LITERALS)
        names, type_ = tuple(node["column"]), node["type"]
        if matching_names(self._partition_columns, names[0]):
            raise Unanswerable("the values of a partition column come from paths")
        for reason in map(opaque_reason, node["metadata"]):
            if reason is not None:
                raise Unanswerable(reason)
        path = self._comparer.resolve_path(names)
        if self._is_case_sensitive and path != names:
            raise Unanswerable(f"there is not exactly one column {ast.column_text(names)}")
        arrow = self._comparer.column_type(path)
        if not is_part and not _is_shown_as(self._name_of(arrow), type_):
            raise Unanswerable(f"Spark reads {ast.column_text(path)} as {type_}, but it is {arrow}")
        return path, type_

    def _column_literals(
        self, node: CatalystNode, path: ast.ColumnPath, type_: str
    ) -> list[Literal]:
        """Return the literals that a column is compared with.

        Raise `Unanswerable` if the indexed type does not hold one of them: files that are not
        indexed may store a wider type.
        """
        arrow = hashed_type(self._comparer.column_type(path))
        literals = _parse_literals(node, type_)
        if arrow != _WIDEST_TYPES.get(type_, arrow):
            for literal in literals:
                if literal.kind != "null" and not stored_bytes(literal, arrow):
                    raise Unanswerable(f"other files than those of {arrow} may hold the value")
        return literals


def _is_shown_as(name: str | None, type_: str) -> bool:
    """Return whether Spark shows a type of a name as a type, or widens its integers to it."""
    if name in _INTEGER_NAMES and type_ in _INTEGER_NAMES:
        return _INTEGER_NAMES.index(name) <= _INTEGER_NAMES.index(type_)
    return name == type_


def opaque_reason(text: str) -> str | None:
    """Return why the metadata of a Spark column forbids comparing its stored values, or None."""
    if text == "{}":
        return None
    for key, value in json.loads(text).items():
        if key == _CHAR_VARCHAR_KEY and str(value).lower().startswith("varchar"):
            continue
        # Keys that Spark itself writes may change the meaning of a column. Keys of users do not.
        if key not in _HARMLESS_METADATA_KEYS and (
            key.startswith(("__", "parquet.")) or key.isupper()
        ):
            return f"it is not known how Spark compares a column with {key}"
    return None


def _parse_literals(node: CatalystNode, type_: str) -> list[Literal]:
    """Return the literals of an operand, which must have the type of the column."""
    if "values" not in node or node["type"] != type_:
        raise Unanswerable(ast.ONLY_LITERALS)
    read = _LITERAL_PARSERS.get(type_.partition("(")[0])
    if read is None:
        raise Unanswerable(f"a {type_} literal is not supported")
    try:
        return [
            literal_from_python(None if text is None else read(text)) for text in node["values"]
        ]
    except UnicodeDecodeError:
        raise Unanswerable("a string is not UTF-8") from None
    except OverflowError:
        raise Unanswerable("the value is out of range") from None


def _parse_float32(text: str) -> float:
    # Java prints the shortest text that identifies a float. Read as a double, this text gives
    # another number, so round it to the float.
    number = round_to_float(float(text), 32)
    if number is None:
        raise OverflowError
    return number


def _parse_local_timestamp(text: str) -> datetime.datetime:
    return _EPOCH_DATETIME + datetime.timedelta(microseconds=int(text))


_LITERAL_PARSERS = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    "boolean": lambda text: text == "true",
    "double": float,
    "float": _parse_float32,
    "decimal": Decimal,
    "string": lambda text: bytes.fromhex(text).decode(),
    "binary": bytes.fromhex,
    "date": lambda text: (_EPOCH_DATETIME + datetime.timedelta(days=int(text))).date(),
    "timestamp": lambda text: _parse_local_timestamp(text).replace(tzinfo=datetime.UTC),
    "timestamp_ntz": _parse_local_timestamp,
}

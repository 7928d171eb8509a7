"""Filters of a scan, as Catalyst holds them and `IndexedFiles.java` writes them, as predicates.

Both sides of a comparison have one type there, for Spark has cast them already. A column is
followed only where that type is the one its Arrow type stands for.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from zonebloom.predicates import ast
from zonebloom.predicates.spark import SparkComparer
from zonebloom.predicates.spark_compare import literal_from_python
from zonebloom.values.columns import matching_names
from zonebloom.values.literal import Literal, Unanswerable, round_to_float

# A condition or operand as the JSON of a scan's question has it.
CatalystNode = Mapping[str, Any]

_OPERATORS = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_EPOCH = datetime.datetime(1970, 1, 1)
_HARMLESS = {"comment", "CURRENT_DEFAULT"}
_CHAR_OR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_NOT_COMPARED = "only a column compared with a literal is known to an index"


class CatalystTranslator:
    """Translates the filters of one scan of files with a schema; ``name_of`` gives Spark's name of
    an Arrow type, None where it has none."""

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
        """What holds for every row that passes all of some filters."""
        terms: list[ast.Predicate] = []
        for condition in filters:
            term = self._followed(condition)
            terms.extend(term.terms if isinstance(term, ast.And) else (term,))
        # Spark puts one beside each comparison and each key of a join; no filter answers them.
        telling = [term for term in terms if not _is_not_null(term)] or terms
        return ast.conjunction(telling) if telling else ast.Constant(True)

    def _followed(self, node: CatalystNode) -> ast.Predicate:
        if "terms" in node:
            terms = tuple(map(self._followed, node["terms"]))
            if node["kind"] == "Not":
                return ast.negation(terms[0])
            return ast.And(terms) if node["kind"] == "And" else ast.Or(terms)
        try:
            return self._compared(node["kind"], node["operands"])
        except Unanswerable as reason:
            return ast.Unknown(node["text"], str(reason), frozenset(node["columns"]))

    def _compared(self, kind: str, operands: Sequence[CatalystNode]) -> ast.Predicate:
        if kind in ("IsNull", "IsNotNull"):
            null = ast.IsNull(self._column(operands[0])[0])
            return null if kind == "IsNull" else ast.Not(null)
        if kind in _OPERATORS:
            operator = _OPERATORS[kind]
            if "values" in operands[0]:
                operands, operator = operands[::-1], ast.FLIPPED_OPERATORS[operator]
            path, type_ = self._column(operands[0])
            return self._comparer.compare(path, operator, *_literals(operands[1], type_))
        if kind in ("In", "InSet"):
            path, type_ = self._column(operands[0])
            return self._comparer.is_in(path, _literals(operands[1], type_))
        if kind == "Literal" and operands[0]["type"] in ("boolean", "void"):
            (value,) = operands[0]["values"]
            return ast.Constant(None if value is None else value == "true")
        if kind == "AttributeReference":
            path, type_ = self._column(operands[0])
            if type_ == "boolean":
                return ast.Equals(path, pa.scalar(True))
        raise Unanswerable(_NOT_COMPARED)

    def _column(self, node: CatalystNode) -> tuple[ast.ColumnPath, str]:
        """A column or leaf of structs, and Spark's name of its type."""
        if "column" not in node:
            raise Unanswerable(_NOT_COMPARED)
        wanted, type_ = tuple(node["column"]), node["type"]
        if matching_names(self._partition_columns, wanted[0]):
            raise Unanswerable("its values come from paths")
        for reason in map(opaque_reason, node["metadata"]):
            if reason is not None:
                raise Unanswerable(reason)
        path = self._comparer.resolve_path(wanted)
        if self._is_case_sensitive and path != wanted:
            raise Unanswerable(f"there is no one column {ast.column_text(wanted)}")
        arrow = self._comparer.column_type(path)
        if type_ != self._name_of(arrow):
            raise Unanswerable(f"Spark reads {ast.column_text(path)} as {type_}, and it is {arrow}")
        return path, type_


def opaque_reason(text: str) -> str | None:
    """Why metadata of an attribute, or a field, forbids to compare it by its stored values."""
    if text == "{}":
        return None
    for key, value in json.loads(text).items():
        if key == _CHAR_OR_VARCHAR and str(value).lower().startswith("varchar"):
            continue
        # What Spark itself puts there changes what a column means; users' own keys do not.
        if key not in _HARMLESS and (key.startswith(("__", "parquet.")) or key.isupper()):
            return f"how Spark compares a column with {key} is not followed"
    return None


def _is_not_null(term: ast.Predicate) -> bool:
    return isinstance(term, ast.Not) and isinstance(term.term, ast.IsNull)


def _literals(node: CatalystNode, type_: str) -> list[Literal]:
    """Literals of a column's type."""
    if "values" not in node or node["type"] != type_:
        raise Unanswerable(_NOT_COMPARED)
    read = _READERS.get(type_.partition("(")[0])
    if read is None:
        raise Unanswerable(f"a {type_} literal is not followed")
    try:
        return [
            literal_from_python(None if text is None else read(text)) for text in node["values"]
        ]
    except UnicodeDecodeError:
        raise Unanswerable("a text is not UTF-8") from None
    except OverflowError:
        raise Unanswerable("the value is out of reach") from None


def _float(text: str) -> float:
    # Java's shortest text of a float names another double.
    number = round_to_float(float(text), 32)
    if number is None:
        raise OverflowError
    return number


def _local_time(text: str) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=int(text))


_READERS = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    "boolean": lambda text: text == "true",
    "double": float,
    "float": _float,
    "decimal": Decimal,
    "string": lambda text: bytes.fromhex(text).decode(),
    "binary": bytes.fromhex,
    "date": lambda text: (_EPOCH + datetime.timedelta(days=int(text))).date(),
    "timestamp": lambda text: _local_time(text).replace(tzinfo=datetime.UTC),
    "timestamp_ntz": _local_time,
}

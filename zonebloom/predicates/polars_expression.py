"""Translate Polars expressions, serialized as JSON or MessagePack, to predicates.

Both use the names of the Polars optimizer:

    pl.col("id") == 5    {"BinaryExpr": {"left": {"Column": "id"}, "op": "Eq",
                                         "right": {"Literal": {"Dyn": {"Int": 5}}}}}

This format is private to Polars and may change. Polars evaluates every filter itself on the rows
that are read, so a part that is not exactly as expected becomes `Unknown`, which is slower but
never wrong. A comparison that Polars makes after rounding becomes a range of timestamps, or
`Unknown`, because an index looks up the literal without rounding. Measurements showed these rules:

- An Int64 column and a float are compared as Float64, so 2**53 + 1 equals 2.0**53.
- A float literal is rounded to the type of a Float32 column, so 0.1 finds the float32 of 0.1.
- Timestamps of different units are compared in the coarser unit, rounded down. A literal of
  microseconds finds a thousand values of a nanosecond column. For a millisecond column, the literal
  is rounded down to milliseconds.
- A decimal and a float are compared as Float64. A string is parsed as a number to compare it with
  a decimal.
- Booleans, dates and times equal the integers that represent them.
- NaN equals NaN and is greater than every number. The JSON does not distinguish it from infinities.
- `is_in` does not round. It rejects sets whose kind differs from the column.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base.arrays import decode_dictionary
from zonebloom.errors import FilterError
from zonebloom.predicates import ast
from zonebloom.predicates.sql_literals import refuse_uuid_text
from zonebloom.predicates.text_requirements import Piece, require_call, require_pieces
from zonebloom.predicates.type_requirements import with_type_requirement
from zonebloom.values.columns import resolve_type
from zonebloom.values.literal import Literal, Unanswerable, to_stored
from zonebloom.values.normal_types import (
    comparable_type,
    decoded_type,
    is_opaque_extension,
    with_64_bit_offsets,
    without_views,
)
from zonebloom.values.types import (
    LIST_TYPES,
    family,
    has_nulls_outside_bitmap,
    is_comparable,
    is_lossless_cast,
    value_step,
)

if TYPE_CHECKING:
    import polars as pl

_POLARS_COMPARISONS = {
    **{"Eq": "=", "NotEq": "!=", "EqValidity": "<=>", "NotEqValidity": "NOT <=>"},
    **{"Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="},
}
_JUNCTIONS = {"And": "and", "LogicalAnd": "and", "Or": "or", "LogicalOr": "or"}
# The operators for the lower and the upper bound of a range, by its closed sides.
_BOUND_OPERATORS = {
    "Both": (">=", "<="),
    "Left": (">=", "<"),
    "Right": (">", "<="),
    "None": (">", "<"),
}
_POLARS_TYPES = {
    **{f"Int{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"UInt{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{"Float32": "float32", "Float64": "float64", "String": "string", "Binary": "binary"},
    **{"Boolean": "bool", "Date": "date32", "Time": "time64[ns]", "Null": "null"},
}
_POLARS_TIME_UNITS = {"Nanoseconds": "ns", "Microseconds": "us", "Milliseconds": "ms"}
_LEFT_OPERAND_PREFIX = '{"BinaryExpr":{"left":'
_OPERATOR_PATTERN = re.compile(r',"op":"(\w+)","right":')
# Longer expressions, such as those with long lists of keys, are serialized as MessagePack.
_MAX_JSON_BYTES = 1 << 14
# A range of more values than this is not looked up value by value.
_MAX_LOOKED_UP_VALUES = 2048
_NIL, _FALSE, _TRUE = 0xC0, 0xC2, 0xC3
_INT128_BYTES = 16
# By the first byte of a value: the format of the number that follows it.
_NUMBERS = {
    **{0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"},
    **{0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"},
}
# By the first byte of a value: the format of the size that follows it.
_BYTES_SIZES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_TEXT_SIZES = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_ARRAY_SIZES = {0xDC: ">H", 0xDD: ">I"}
_MAP_SIZES = {0xDE: ">H", 0xDF: ">I"}


@dataclass(frozen=True, slots=True)
class _PolarsColumn:
    """A column of the expression.

    `stored` is its type in the data, and `type` is its type after all lossless casts around it.
    """

    path: ast.ColumnPath
    stored: pa.DataType
    type: pa.DataType


def predicate_from_polars_json(root: Any, schema: pa.Schema) -> ast.Predicate:
    return ast.simplify(_translate_condition(root, schema))


def parse_polars_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        pass
    # A chain such as a | b | c | ... is deep only in its left operands. Parse the innermost
    # operand first, then add the operators around it.
    decoder = json.JSONDecoder()
    depth = 0
    while text.startswith(_LEFT_OPERAND_PREFIX, depth * len(_LEFT_OPERAND_PREFIX)):
        depth += 1
    node, position = decoder.raw_decode(text, depth * len(_LEFT_OPERAND_PREFIX))
    for _ in range(depth):
        match = _OPERATOR_PATTERN.match(text, position)
        if match is None:
            raise ValueError("the chain has an unexpected part")
        right, position = decoder.raw_decode(text, match.end())
        if not text.startswith("}}", position):
            raise ValueError("the chain has no end")
        position += 2
        node = {"BinaryExpr": {"left": node, "op": match[1], "right": right}}
    return node


def parse_expression(expr: pl.Expr) -> Any:
    """Return the tree of an expression."""
    data = expr.meta.serialize(format="binary")
    if len(data) > _MAX_JSON_BYTES:
        try:
            return unpack(data)
        except (ValueError, RecursionError):
            pass
    return parse_polars_json(expr.meta.serialize(format="json"))


def polars_json_text(node: Any) -> str:
    import polars as pl

    try:
        expr = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
    except Exception:  # noqa: BLE001 - the text is only for people to read
        return "..."
    return polars_text(expr)


def polars_text(expr: pl.Expr) -> str:
    """Return an expression as text for people to read."""
    import polars as pl

    try:
        return ast.shorten(str(expr))
    except pl.exceptions.PanicException:
        # Polars cannot write dates and times that Python's own types cannot hold.
        return "..."


def _translate_condition(node: Any, schema: pa.Schema) -> ast.Predicate:
    try:
        meaning = _translate_node(node, schema)
        if isinstance(meaning, _PolarsColumn):
            if not pt.is_boolean(meaning.type) or meaning.type != meaning.stored:
                raise Unanswerable("the column is not a condition")
            return ast.Equals(meaning.path, pa.scalar(True))
        if not isinstance(meaning, pa.Scalar):
            return meaning
        if pt.is_boolean(meaning.type) or pt.is_null(meaning.type):
            return ast.Constant(meaning.as_py())
        raise Unanswerable("the literal is not a condition")
    except FilterError:
        raise
    except Exception as error:  # noqa: BLE001 - the format of this part is not as expected
        reason = (
            str(error)
            if isinstance(error, Unanswerable)
            else f"Polars wrote it in an unknown form ({error!r})"
        )
        requires = None
        with suppress(Exception):
            requires = _requirement_of(node, schema)
        return ast.Unknown(polars_json_text(node), reason, requires=requires)


def _translate_node(node: Any, schema: pa.Schema) -> Any:
    match node:
        case {"Column": str(name)}:
            return _resolve_column((name,), schema)
        case {"Literal": {"Scalar": value} | {"Dyn": value}}:
            return _parse_scalar(value)
        case {"Alias": [inner, _]}:
            return _translate_node(inner, schema)
        case {"BinaryExpr": {"op": str(operator)}} if operator in _JUNCTIONS:
            join = ast.conjunction if _JUNCTIONS[operator] == "and" else ast.disjunction
            return join(
                _translate_condition(term, schema)
                for term in _junction_terms(node, _JUNCTIONS[operator])
            )
        case {"BinaryExpr": {"left": left, "op": str(operator), "right": right}}:
            if operator not in _POLARS_COMPARISONS:
                raise Unanswerable(f"the operator {operator} is not answered by an index")
            sides = _translate_node(left, schema), _translate_node(right, schema)
            return _translate_comparison(sides[0], _POLARS_COMPARISONS[operator], sides[1])
        case {"Cast": {"expr": inner, "dtype": {"Literal": dtype}}}:
            return _translate_cast(_translate_node(inner, schema), _parse_dtype(dtype))
        case {"Ternary": {"predicate": test, "truthy": truthy, "falsy": falsy}}:
            # The optimizer writes this for a comparison that no value of the column can satisfy.
            ends = _translate_condition(truthy, schema), _translate_condition(falsy, schema)
            if all(isinstance(end, ast.Constant) and not end.value for end in ends):
                constant = ends[0] if ends[0] == ends[1] else ast.Constant(False)
                columns = ast.searched_columns(_translate_condition(test, schema))
                return with_type_requirement(constant, columns)
        case {"Function": {"input": [struct], "function": {"StructExpr": {"FieldByName": name}}}}:
            column = _translate_node(struct, schema)
            if isinstance(column, _PolarsColumn):
                return _resolve_column((*column.path, name), schema)
        case {"Function": {"function": {"StringExpr": _}}}:
            raise Unanswerable("text is not answered by hashes of values")
        case {"Function": {"function": {"ListExpr": _} | {"ArrayExpr": _}}}:
            raise Unanswerable("elements are not answered by hashes of values")
        case {"Function": {"input": arguments, "function": {"Boolean": function}}}:
            return _translate_function(function, arguments, schema)
        case {"Selector": _}:
            raise Unanswerable("a selector may stand for several columns")
    raise Unanswerable(ast.ONLY_LITERALS)


def _requirement_of(node: Any, schema: pa.Schema) -> ast.Predicate | None:
    """Return what a condition requires if it is itself a search of a string or a list."""
    match node:
        case {"Alias": [inner, _]}:
            return _requirement_of(inner, schema)
        case {"Function": {"input": [column, *arguments], "function": {"StringExpr": function}}}:
            return _text_requirement(function, column, arguments, schema)
        case {
            "Function": {
                "input": [lists, item],
                "function": {"ListExpr": {"Contains": _}} | {"ArrayExpr": {"Contains": _}},
            }
        }:
            return _element_requirement(lists, item, schema)
    return None


def _text_requirement(
    function: Any, column_node: Any, arguments: list[Any], schema: pa.Schema
) -> ast.Predicate | None:
    """Return what a string needs for a function of Polars that searches it to be true."""
    column = _translate_node(column_node, schema)
    if not isinstance(column, _PolarsColumn) or family(column.stored) != "text":
        return None
    match function:
        case {"ContainsAny": {"ascii_case_insensitive": bool(ignores_case)}}:
            texts = _parse_literal_set(arguments[0]).to_pylist()
            parts = [
                require_pieces(column.path, [Piece(text or "")], ignores_case=ignores_case)
                for text in texts
            ]
            known = tuple(part for part in parts if part is not None)
            return ast.Or(known) if known and len(known) == len(parts) else None
        case {"Contains": {"literal": bool(is_literal)}}:
            name = "contains" if is_literal else "regexp_matches"
        case "StartsWith" | "EndsWith":
            name = {"StartsWith": "starts_with", "EndsWith": "ends_with"}[function]
        case _:
            return None
    texts = [_translate_node(argument, schema) for argument in arguments]
    if len(texts) != 1 or not isinstance(texts[0], pa.Scalar) or not pt.is_string(texts[0].type):
        return None
    return require_call(column.path, name, [texts[0].as_py()], ignores_case=False)


def _element_requirement(
    lists_node: Any, item_node: Any, schema: pa.Schema
) -> ast.Predicate | None:
    """Return the requirement that a list holds an element that Polars takes for an item."""
    lists, item = _translate_node(lists_node, schema), _translate_node(item_node, schema)
    if not isinstance(lists, _PolarsColumn) or not isinstance(item, pa.Scalar) or not item.is_valid:
        return None
    list_type: Any = lists.stored
    if not isinstance(list_type, LIST_TYPES):
        return None
    element = pa.schema([("item", list_type.value_type)])
    match _translate_equals(_resolve_column(("item",), element), item):
        case ast.Equals(_, value):
            return ast.HasElement(lists.path, pa.array([value], value.type))
    return None


def _junction_terms(node: Any, junction: str) -> list[Any]:
    """Return the terms of a chain of AND or OR from left to right.

    Programs generate long chains, which are deep only in their left operands.
    """
    terms: list[Any] = []
    while True:
        match node:
            case {"BinaryExpr": {"left": left, "op": op, "right": right}} if (
                _JUNCTIONS.get(op) == junction
            ):
                terms.append(right)
                node = left
            case _:
                return [node, *reversed(terms)]


def _resolve_column(path: ast.ColumnPath, schema: pa.Schema) -> _PolarsColumn:
    try:
        type_ = resolve_type(schema, path)
    except LookupError as error:
        raise Unanswerable(error.args[0]) from None
    kind = decoded_type(type_)
    if (pt.is_timestamp(kind) or pt.is_duration(kind)) and kind.unit == "s":
        raise Unanswerable(f"Polars reads {kind} as milliseconds, which may overflow")
    if is_opaque_extension(kind):
        raise Unanswerable(f"how Polars reads {kind} is not known")
    return _PolarsColumn(path, type_, type_)


def _translate_function(function: Any, arguments: list[Any], schema: pa.Schema) -> ast.Predicate:
    match function, arguments:
        case "AllHorizontal", _:
            return ast.And(tuple(_translate_condition(argument, schema) for argument in arguments))
        case "AnyHorizontal", _:
            return ast.Or(tuple(_translate_condition(argument, schema) for argument in arguments))
        case "Not", [inner]:
            return ast.negation(_translate_condition(inner, schema))
        case (("IsNull" | "IsNotNull"), [inner]):
            null = _translate_is_null(_translate_node(inner, schema))
            return null if function == "IsNull" else ast.negation(null)
        case {"IsIn": {"nulls_equal": bool(nulls_equal)}}, [inner, values]:
            return _translate_is_in(
                _translate_node(inner, schema), _parse_literal_set(values), nulls_equal
            )
        case {"IsBetween": {"closed": closed}}, [inner, low, high] if closed in _BOUND_OPERATORS:
            ends = _translate_node(low, schema), _translate_node(high, schema)
            return _translate_between(_translate_node(inner, schema), *ends, closed)
    name = function if isinstance(function, str) else next(iter(function), "")
    raise Unanswerable(f"the function {name} is not answered by an index")


def _translate_comparison(left: Any, operator: str, right: Any) -> ast.Predicate:
    if isinstance(left, pa.Scalar):
        left, right, operator = right, left, ast.FLIPPED_OPERATORS.get(operator, operator)
    if not isinstance(left, _PolarsColumn) or not isinstance(right, pa.Scalar):
        raise Unanswerable(ast.ONLY_LITERALS)
    refuse_uuid_text(right, comparable_type(left.stored))
    if operator in ("!=", "NOT <=>"):
        return ast.negation(_translate_comparison(left, "=" if operator == "!=" else "<=>", right))
    if not right.is_valid:
        return _translate_is_null(left) if operator == "<=>" else ast.Constant(None)
    if operator in ("=", "<=>"):
        return _translate_equals(left, right)
    if (rounded := _values_rounded_to(left, right)) is not None:
        right = rounded[0] if operator in ("<", ">=") else rounded[1]
    _check_no_rounding(left, right)
    if pt.is_floating(left.stored) and operator in (">", ">="):
        raise Unanswerable("NaN is greater than every number")
    if pt.is_boolean(left.stored) or pt.is_dictionary(left.stored):
        raise Unanswerable(f"the order of {left.stored} is not that of an index")
    return ast.Compares(left.path, operator, right)  # pyright: ignore[reportArgumentType]


def _translate_equals(column: _PolarsColumn, value: pa.Scalar) -> ast.Predicate:
    if (rounded := _values_rounded_to(column, value)) is not None:
        return _translate_between(column, *rounded, "Both")
    _check_no_rounding(column, value)
    return ast.Equals(column.path, value)


def _values_rounded_to(column: _PolarsColumn, value: pa.Scalar) -> tuple[Any, Any] | None:
    """Return the first and the last value of a column that Polars rounds to a literal.

    Polars rounds timestamps down to the literal's unit if that is coarser than the column's. Return
    None if it rounds nothing.
    """
    if not pt.is_timestamp(column.type) or column.stored != column.type:
        return None
    if family(value.type) != family(column.type):
        return None
    unit_ratio = value_step(value.type) / value_step(column.type)
    if unit_ratio <= 1:
        return None
    first = value.cast(pa.timestamp(column.type.unit, column.type.tz))
    return first, pa.scalar(first.value + int(unit_ratio) - 1, pa.int64()).cast(first.type)


def _translate_between(column: Any, low: Any, high: Any, closed: str) -> ast.Predicate:
    if not isinstance(low, pa.Scalar) or not isinstance(high, pa.Scalar):
        raise Unanswerable("only literal bounds are answered by an index")
    if low.type != high.type and low.is_valid and high.is_valid:
        raise Unanswerable(f"Polars casts bounds of types {low.type} and {high.type} to another")
    lower_condition, upper_condition = (
        _translate_comparison(column, operator, bound)
        for operator, bound in zip(_BOUND_OPERATORS[closed], (low, high), strict=True)
    )
    condition = ast.conjunction((lower_condition, upper_condition))
    if (
        closed == "Both"
        and pt.is_timestamp(low.type)
        and value_step(low.type) == value_step(column.type)
        and condition == ast.And((lower_condition, upper_condition))
    ):
        # The optimizer writes this if a nanosecond column is compared with a literal of
        # microseconds.
        first, last = low.value, high.value
        if first < last < first + _MAX_LOOKED_UP_VALUES:
            values = pa.array(range(first, last + 1), pa.int64()).cast(low.type)
            return ast.And((ast.IsIn(column.path, values), lower_condition, upper_condition))
    return condition


def _translate_is_null(column: Any) -> ast.Predicate:
    if not isinstance(column, _PolarsColumn):
        raise Unanswerable("an index knows nulls only of columns")
    if not family(column.stored) or has_nulls_outside_bitmap(column.stored):
        raise Unanswerable(f"the nulls of {column.stored} are not indexed")
    return ast.IsNull(column.path)


def _translate_is_in(column: Any, values: pa.Array, nulls_equal: bool) -> ast.Predicate:
    if not isinstance(column, _PolarsColumn):
        raise Unanswerable("only a column looked up in a set is answered by an index")
    null_matches = nulls_equal and values.null_count > 0
    null = _translate_is_null(column) if null_matches else ast.Constant(False)
    if values.null_count == len(values):
        # `is_in` of an empty set is false for every row, so its negation is true for every row.
        return null
    values = values.drop_null()
    families = {family(column.type), family(values.type)}
    if "" in families or (len(families) > 1 and families != {"integer", "decimal"}):
        raise Unanswerable(f"{column.type} is looked up in a set of {values.type}")
    if families == {"float"}:
        # This check also finds NaN, because NaN does not equal itself.
        rounded_values = values.cast(column.type, safe=False)
        if not rounded_values.cast(values.type, safe=False).equals(values):
            raise Unanswerable(f"the set contains NaN, or numbers that are not {column.type}")
    if column.stored != column.type:
        for value in values:
            _check_no_rounding(column, value)
    return ast.IsIn(column.path, _with_stored_offsets(values, column.stored), null_matches)


def _with_stored_offsets(values: pa.Array, stored: pa.DataType) -> pa.Array:
    """Return texts or bytes with offsets as wide as those of the column."""
    if values.type == stored or with_64_bit_offsets(values.type) != with_64_bit_offsets(stored):
        return values
    try:
        return values.cast(stored)
    except pa.ArrowInvalid:
        # There are more than 2 GiB of them.
        return values


def _translate_cast(inner: Any, target: pa.DataType) -> _PolarsColumn | pa.Scalar:
    if isinstance(inner, _PolarsColumn):
        # A double may not hold an integer exactly. `_check_no_rounding` decides by the literal.
        fits = pt.is_integer(inner.type) and pt.is_float64(target)
        if not fits and not is_lossless_cast(inner.type, target):
            raise Unanswerable(f"casting {inner.type} to {target} may make values equal")
        return _PolarsColumn(inner.path, inner.stored, target)
    if not isinstance(inner, pa.Scalar):
        raise Unanswerable("a condition is wrapped in a cast")
    if inner.is_valid and {family(inner.type), family(target)} not in ({"integer"}, {"text"}):
        raise Unanswerable("the literal is wrapped in a cast")
    try:
        return inner.cast(target)
    except pa.ArrowException:
        raise Unanswerable(f"the literal is not a {target}") from None


def _check_no_rounding(column: _PolarsColumn, value: pa.Scalar) -> None:
    """Raise `Unanswerable` if Polars rounds before it compares, or if the kinds differ."""
    column_family, value_family = family(column.type), family(value.type)
    if not is_comparable(column.type, value.type):
        raise Unanswerable(f"a {column.type} column is compared with {value.type}")
    if "float" in (column_family, value_family):
        literal = replace(_literal_from_scalar(value), bits=64)
        to_stored(literal, column.type)
        to_stored(literal, column.stored)
    elif column_family == value_family and column_family in ("timestamp", "instant", "duration"):
        if column.stored != column.type or value_step(value.type) > value_step(column.type):
            raise Unanswerable(f"the column is rounded down to the unit of {value.type}")
        if not to_stored(_literal_from_scalar(value), column.type).is_exact:
            raise Unanswerable("the literal is rounded down to the unit of the column")


def _literal_from_scalar(value: pa.Scalar) -> Literal:
    literal = Literal.from_scalar(value)
    assert literal is not None
    return literal


def _parse_scalar(value: Any) -> pa.Scalar:
    match value:
        case "Null" | {"Null": _}:
            return pa.scalar(None)
        case {"Int": int(number)} | {"Int128": int(number)}:
            return _integer_scalar(number)
        case {"UInt128": int(number)}:
            # MessagePack holds it as a signed number.
            return _integer_scalar(number % 2**128)
        case {"Float": float(number)} | {"Float64": float(number)}:
            return pa.scalar(number, pa.float64())
        case {"Float32": float(number)}:
            return pa.scalar(number, pa.float32())
        case {"Float": _} | {"Float32": _} | {"Float64": _}:
            raise Unanswerable(
                "NaN equals NaN in Polars, whose JSON does not tell infinities from NaN"
            )
        case {"String": str(text)}:
            return pa.scalar(text)
        case {"Binary": list(numbers)}:
            return pa.scalar(bytes(numbers))
        case {"Boolean": bool(truth)}:
            return pa.scalar(truth)
        case {"Date": int(number)}:
            return pa.scalar(number, pa.int32()).cast(pa.date32())
        case {"Time": int(number)}:
            return pa.scalar(number, pa.int64()).cast(pa.time64("ns"))
        case {"Datetime": [int(number), *kind]} | {"Duration": [int(number), *kind]}:
            return pa.scalar(number, pa.int64()).cast(_parse_dtype({next(iter(value)): kind}))
        case {"Decimal": [int(number), int(precision), int(scale)]}:
            digits = tuple(int(digit) for digit in str(abs(number)))
            exact = Decimal((int(number < 0), digits, -scale))
            return pa.scalar(exact, pa.decimal128(precision, scale))
    name, number = next(iter(value.items()))
    if isinstance(number, int) and "Int" in name:
        return pa.scalar(number, _parse_dtype(name))
    raise Unanswerable(f"a literal of type {name} is not looked up")


def _integer_scalar(number: int) -> pa.Scalar:
    if -(2**63) <= number < 2**64:
        return pa.scalar(number, pa.int64() if number < 2**63 else pa.uint64())
    return pa.scalar(Decimal(number), pa.decimal128(38, 0))


def _parse_dtype(dtype: Any) -> pa.DataType:
    match dtype:
        case str(name) if name in _POLARS_TYPES:
            return pa.type_for_alias(_POLARS_TYPES[name])
        case {"Datetime": [str(unit_), zone]}:
            return pa.timestamp(_POLARS_TIME_UNITS[unit_], None if zone is None else zone["inner"])
        case {"Duration": str(unit_) | [str(unit_)]}:
            return pa.duration(_POLARS_TIME_UNITS[unit_])
        case {"Decimal": [int(precision), int(scale)]}:
            return pa.decimal128(precision, scale)
    raise Unanswerable(f"the type {dtype} is not supported")


def _parse_literal_set(node: Any) -> pa.Array:
    match node:
        case {"Alias": [inner, _]}:
            return _parse_literal_set(inner)
        case {"Literal": {"Series": data}}:
            column = _read_ipc_column(data)
            if pt.is_list(column.type) or pt.is_large_list(column.type):
                # Polars SQL writes a set as a series that has one list.
                if len(column) != 1 or column.null_count:
                    raise Unanswerable("a series of lists is looked up row by row")
                column = column.flatten()
        case {"Literal": {"Scalar": {"List": data}}}:
            column = _read_ipc_column(data)
        case _:
            raise Unanswerable("only a set of literals is answered by an index")
    if pt.is_dictionary(column.type):
        column = decode_dictionary(column)
    return column.cast(without_views(column.type))


def _read_ipc_column(data: list[int] | bytes) -> Any:
    try:
        with pa.ipc.open_stream(bytes(data)) as stream:
            column = stream.read_all().column(0).combine_chunks()
    except (pa.ArrowException, ValueError, TypeError) as error:
        # A set of 128-bit integers, for example, has no Arrow type.
        raise Unanswerable(f"Arrow cannot read the set: {error}") from None
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def unpack(data: bytes) -> Any:
    """Return the value that the bytes hold, as `json.loads` would return it for the JSON of Polars.

    The bytes are MessagePack. In JSON, a list of a million keys takes ten times as long, because
    each byte of it is a number. Integers of 128 bits are signed. NaN and infinities are None. Other
    bytes stay bytes.

    Raises
    ------
    ValueError
        If the bytes are not one value.
    RecursionError
        If values are nested too deep.
    """
    unpacker = _Unpacker(data)
    try:
        value = unpacker.value()
    except (IndexError, struct.error):
        raise ValueError("the bytes end within a value") from None
    if unpacker.position != len(data):
        raise ValueError("bytes follow the value")
    return value


class _Unpacker:
    def __init__(self, data: bytes):
        self._data = data
        self.position = 0

    def value(self) -> Any:
        kind = self._data[self.position]
        self.position += 1
        if kind < 0x80:
            return kind
        if kind >= 0xE0:
            return kind - 0x100
        if kind < 0x90:
            return self._map(kind & 0x0F)
        if kind < 0xA0:
            return [self.value() for _ in range(kind & 0x0F)]
        if kind < 0xC0:
            return self._bytes(kind & 0x1F).decode()
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind in _BYTES_SIZES:
            data = self._bytes(self._size(_BYTES_SIZES[kind]))
            is_int128 = len(data) == _INT128_BYTES
            return int.from_bytes(data, "big", signed=True) if is_int128 else data
        if kind in _TEXT_SIZES:
            return self._bytes(self._size(_TEXT_SIZES[kind])).decode()
        if kind in _ARRAY_SIZES:
            return [self.value() for _ in range(self._size(_ARRAY_SIZES[kind]))]
        if kind in _MAP_SIZES:
            return self._map(self._size(_MAP_SIZES[kind]))
        if kind in (_NIL, _FALSE, _TRUE):
            return {_NIL: None, _FALSE: False, _TRUE: True}[kind]
        raise ValueError(f"no value begins with the byte {kind}")

    def _map(self, size: int) -> dict[Any, Any]:
        values = {}
        for _ in range(size):
            key = self.value()
            values[key] = self.value()
        return values

    def _number(self, format: str) -> int | float | None:
        (number,) = struct.unpack_from(format, self._data, self.position)
        self.position += struct.calcsize(format)
        return number if isinstance(number, int) or math.isfinite(number) else None

    def _size(self, format: str) -> int:
        (size,) = struct.unpack_from(format, self._data, self.position)
        self.position += struct.calcsize(format)
        return size

    def _bytes(self, size: int) -> bytes:
        data = self._data[self.position : self.position + size]
        if len(data) != size:
            raise ValueError("the bytes end within a value")
        self.position += size
        return data

"""Polars expressions brought to predicates.

A Polars expression says what it is made of as JSON, in the optimizer's own words:

    pl.col("id") == 5    {"BinaryExpr": {"left": {"Column": "id"}, "op": "Eq",
                                         "right": {"Literal": {"Dyn": {"Int": 5}}}}}

That form is Polars' own business and may change. Polars applies every filter itself to what is
read, so a part that is not exactly as known here is `Unknown`: slower, never wrong. So is what
Polars compares after rounding, for an index looks a literal up as it is. The traps, measured:

- An Int64 column beside a float is compared as Float64, so 2**53 + 1 equals 2.0**53.
- A float literal beside a Float32 column is rounded to it, so 0.1 finds 0.1 as float32.
- Timestamps of two units meet in the coarser one, cut downwards. A literal of microseconds finds a
  thousand values of a nanosecond column; one beside a millisecond column is cut to milliseconds.
- A decimal meets a float as Float64. A string is read as a number beside a decimal.
- Integers equal truth values, dates and times by their numbers.
- NaN equals NaN and is greater than every number; it is written in JSON as infinities are.
- `is_in` rounds nothing: it refuses sets of another kind than the column.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zonebloom.base.arrays import decode_dictionary
from zonebloom.predicates import ast
from zonebloom.values.columns import resolve_type
from zonebloom.values.literal import Literal, Unanswerable, to_stored
from zonebloom.values.types import (
    decoded_type,
    family,
    has_nulls_outside_bitmap,
    is_comparable,
    is_lossless_cast,
    value_step,
)

_COMPARISONS = {
    **{"Eq": "=", "NotEq": "!=", "EqValidity": "<=>", "NotEqValidity": "NOT <=>"},
    **{"Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="},
}
_JUNCTIONS = {"And": "and", "LogicalAnd": "and", "Or": "or", "LogicalOr": "or"}
# The operators at the lower and the upper end of a range closed on these sides.
_CLOSED = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_TYPES = {
    **{f"Int{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"UInt{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{"Float32": "float32", "Float64": "float64", "String": "string", "Binary": "binary"},
    **{"Boolean": "bool", "Date": "date32", "Time": "time64[ns]", "Null": "null"},
}
_UNITS = {"Nanoseconds": "ns", "Microseconds": "us", "Milliseconds": "ms"}
_LEFT = '{"BinaryExpr":{"left":'
_OPERATOR = re.compile(r',"op":"(\w+)","right":')
# More values than this are not looked up one by one.
_MOST_VALUES = 2048


@dataclass(frozen=True, slots=True)
class _Column:
    """A column, what the data holds, and what casts that lose nothing make of it."""

    path: ast.ColumnPath
    stored: pa.DataType
    type: pa.DataType


def predicate_from_polars_json(root: Any, schema: pa.Schema) -> ast.Predicate:
    return ast.simplify(_condition(root, schema))


def parse_polars_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        pass
    # a | b | c | ... is deep on the left alone: read the innermost, then outwards.
    decoder = json.JSONDecoder()
    deep = 0
    while text.startswith(_LEFT, deep * len(_LEFT)):
        deep += 1
    node, at = decoder.raw_decode(text, deep * len(_LEFT))
    for _ in range(deep):
        match = _OPERATOR.match(text, at)
        if match is None:
            raise ValueError("a chain of other parts")
        right, at = decoder.raw_decode(text, match.end())
        if not text.startswith("}}", at):
            raise ValueError("a chain without an end")
        at += 2
        node = {"BinaryExpr": {"left": node, "op": match[1], "right": right}}
    return node


def polars_json_text(node: Any) -> str:
    import polars as pl

    try:
        expr = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
    except Exception:  # noqa: BLE001 - it is for people alone
        return "..."
    return ast.shorten(str(expr))


def _condition(node: Any, schema: pa.Schema) -> ast.Predicate:
    try:
        meaning = _meaning(node, schema)
        if isinstance(meaning, _Column):
            if not pt.is_boolean(meaning.type) or meaning.type != meaning.stored:
                raise Unanswerable("the column is no condition")
            return ast.Equals(meaning.path, pa.scalar(True))
        if not isinstance(meaning, pa.Scalar):
            return meaning
        if pt.is_boolean(meaning.type) or pt.is_null(meaning.type):
            return ast.Constant(meaning.as_py())
        raise Unanswerable("the literal is no condition")
    except Exception as error:  # noqa: BLE001 - a part of another form than known
        reason = (
            str(error) if isinstance(error, Unanswerable) else f"it is of another form ({error!r})"
        )
        return ast.Unknown(polars_json_text(node), reason)


def _meaning(node: Any, schema: pa.Schema) -> Any:
    match node:
        case {"Column": str(name)}:
            return _column((name,), schema)
        case {"Literal": {"Scalar": value} | {"Dyn": value}}:
            return _literal(value)
        case {"Alias": [inner, _]}:
            return _meaning(inner, schema)
        case {"BinaryExpr": {"op": str(operator)}} if operator in _JUNCTIONS:
            join = ast.conjunction if _JUNCTIONS[operator] == "and" else ast.disjunction
            return join(_condition(term, schema) for term in _terms(node, _JUNCTIONS[operator]))
        case {"BinaryExpr": {"left": left, "op": str(operator), "right": right}}:
            if operator not in _COMPARISONS:
                raise Unanswerable(f"the operator {operator} is not answered by a Bloom filter")
            sides = _meaning(left, schema), _meaning(right, schema)
            return _comparison(sides[0], _COMPARISONS[operator], sides[1])
        case {"Cast": {"expr": inner, "dtype": {"Literal": dtype}}}:
            return _cast(_meaning(inner, schema), _type(dtype))
        case {"Ternary": {"truthy": truthy, "falsy": falsy}}:
            # So the optimizer writes a comparison that no value of the column's type can meet.
            ends = _condition(truthy, schema), _condition(falsy, schema)
            if all(isinstance(end, ast.Constant) and not end.value for end in ends):
                return ends[0] if ends[0] == ends[1] else ast.Constant(False)
        case {"Function": {"input": [struct], "function": {"StructExpr": {"FieldByName": name}}}}:
            column = _meaning(struct, schema)
            if isinstance(column, _Column):
                return _column((*column.path, name), schema)
        case {"Function": {"input": arguments, "function": {"Boolean": function}}}:
            return _function(function, arguments, schema)
        case {"Selector": _}:
            raise Unanswerable("it stands for several columns, or for one told by place or type")
    raise Unanswerable("only columns compared with literals are answered by a Bloom filter")


def _terms(node: Any, junction: str) -> list[Any]:
    """The terms of a chain, left to right; programs make long ones, deep on the left."""
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


def _column(path: ast.ColumnPath, schema: pa.Schema) -> _Column:
    try:
        type_ = resolve_type(schema, path)
    except LookupError as error:
        raise Unanswerable(error.args[0]) from None
    kind = decoded_type(type_)
    if (pt.is_timestamp(kind) or pt.is_duration(kind)) and kind.unit == "s":
        raise Unanswerable(f"Polars reads {kind} as milliseconds, which may overflow")
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.UuidType):
        raise Unanswerable(f"how Polars reads {kind} is not known")
    return _Column(path, type_, type_)


def _function(function: Any, arguments: list[Any], schema: pa.Schema) -> ast.Predicate:
    match function, arguments:
        case "AllHorizontal", _:
            return ast.And(tuple(_condition(argument, schema) for argument in arguments))
        case "AnyHorizontal", _:
            return ast.Or(tuple(_condition(argument, schema) for argument in arguments))
        case "Not", [inner]:
            return ast.negation(_condition(inner, schema))
        case (("IsNull" | "IsNotNull"), [inner]):
            null = _is_null(_meaning(inner, schema))
            return null if function == "IsNull" else ast.negation(null)
        case {"IsIn": {"nulls_equal": bool(nulls_equal)}}, [inner, values]:
            return _is_in(_meaning(inner, schema), _set(values), nulls_equal)
        case {"IsBetween": {"closed": closed}}, [inner, low, high] if closed in _CLOSED:
            ends = _meaning(low, schema), _meaning(high, schema)
            return _between(_meaning(inner, schema), *ends, closed)
    name = function if isinstance(function, str) else next(iter(function), "")
    raise Unanswerable(f"the function {name} is not answered by a Bloom filter")


def _comparison(left: Any, operator: str, right: Any) -> ast.Predicate:
    if isinstance(left, pa.Scalar):
        left, right, operator = right, left, ast.FLIPPED_OPERATORS.get(operator, operator)
    if not isinstance(left, _Column) or not isinstance(right, pa.Scalar):
        raise Unanswerable("only a column compared with a literal is answered by a Bloom filter")
    if operator in ("!=", "NOT <=>"):
        return ast.negation(_comparison(left, "=" if operator == "!=" else "<=>", right))
    if not right.is_valid:
        return _is_null(left) if operator == "<=>" else ast.Constant(None)
    if operator in ("=", "<=>"):
        return _equals(left, right)
    _check(left, right)
    if pt.is_floating(left.stored) and operator in (">", ">="):
        raise Unanswerable("NaN is greater than every number")
    if pt.is_boolean(left.stored) or pt.is_dictionary(left.stored):
        raise Unanswerable(f"the order of {left.stored} is not that of an index")
    return ast.Compares(left.path, operator, right)  # pyright: ignore[reportArgumentType]


def _equals(column: _Column, value: pa.Scalar) -> ast.Predicate:
    kind = family(column.type)
    if kind in ("timestamp", "instant") and family(value.type) == kind:
        cut = value_step(value.type) / value_step(column.type)
        if cut > 1 and column.stored == column.type and pt.is_timestamp(column.type):
            # The column is cut to the literal's unit.
            first = value.cast(pa.timestamp(column.type.unit, column.type.tz))
            last = pa.scalar(first.value + int(cut) - 1, pa.int64()).cast(first.type)
            return _between(column, first, last, "Both")
    _check(column, value)
    return ast.Equals(column.path, value)


def _between(column: Any, low: Any, high: Any, closed: str) -> ast.Predicate:
    if not isinstance(low, pa.Scalar) or not isinstance(high, pa.Scalar):
        raise Unanswerable("only literal bounds are answered by a Bloom filter")
    if low.type != high.type and low.is_valid and high.is_valid:
        raise Unanswerable(f"bounds of two types, {low.type} and {high.type}, meet in a third")
    above, below = (
        _comparison(column, operator, end)
        for operator, end in zip(_CLOSED[closed], (low, high), strict=True)
    )
    both = ast.conjunction((above, below))
    if closed == "Both" and pt.is_timestamp(low.type) and both == ast.And((above, below)):
        # So the optimizer writes that a column of nanoseconds equals a literal of microseconds.
        first, last = low.value, high.value
        if first < last < first + _MOST_VALUES:
            values = pa.array(range(first, last + 1), pa.int64()).cast(low.type)
            return ast.And((ast.IsIn(column.path, values), above, below))
    return both


def _is_null(column: Any) -> ast.Predicate:
    if not isinstance(column, _Column):
        raise Unanswerable("only the nulls of a column are known to an index")
    if not family(column.stored) or has_nulls_outside_bitmap(column.stored):
        raise Unanswerable(f"the nulls of {column.stored} are not indexed")
    return ast.IsNull(column.path)


def _is_in(column: Any, values: pa.Array, nulls_equal: bool) -> ast.Predicate:
    if not isinstance(column, _Column):
        raise Unanswerable("only a column looked up in a set is answered by a Bloom filter")
    null_matches = nulls_equal and values.null_count > 0
    null = _is_null(column) if null_matches else ast.Constant(False)
    if values.null_count == len(values):
        # Of an empty set it is false, so what it is not is true.
        return null
    values = values.drop_null()
    kinds = {family(column.type), family(values.type)}
    if "" in kinds or (len(kinds) > 1 and kinds != {"integer", "decimal"}):
        raise Unanswerable(f"{column.type} is looked up in a set of {values.type}")
    if kinds == {"float"}:
        # NaN is unequal to itself.
        narrow = values.cast(column.type, safe=False)
        if not narrow.cast(values.type, safe=False).equals(values):
            raise Unanswerable(f"the set holds NaN, or numbers that are no {column.type}")
    if column.stored != column.type:
        for value in values:
            _check(column, value)
    return ast.IsIn(column.path, values, null_matches)


def _cast(inner: Any, target: pa.DataType) -> _Column | pa.Scalar:
    if isinstance(inner, _Column):
        # What does not fit a double is told by the literal: see `_check`.
        fits = pt.is_integer(inner.type) and pt.is_float64(target)
        if not fits and not is_lossless_cast(inner.type, target):
            raise Unanswerable(f"casting {inner.type} to {target} may join values")
        return _Column(inner.path, inner.stored, target)
    if not isinstance(inner, pa.Scalar):
        raise Unanswerable("a condition is wrapped in a cast")
    if inner.is_valid and {family(inner.type), family(target)} not in ({"integer"}, {"text"}):
        raise Unanswerable("the literal is wrapped in a cast")
    try:
        return inner.cast(target)
    except pa.ArrowException:
        raise Unanswerable(f"the literal is no {target}") from None


def _check(column: _Column, value: pa.Scalar) -> None:
    """Refuse a comparison that Polars makes after rounding, or of two kinds of values."""
    kind, other = family(column.type), family(value.type)
    if not is_comparable(column.type, value.type):
        raise Unanswerable(f"a {column.type} column is compared with {value.type}")
    if "float" in (kind, other):
        literal = replace(_exact(value), bits=64)
        to_stored(literal, column.type)
        to_stored(literal, column.stored)
    elif kind == other and kind in ("timestamp", "instant", "duration"):
        if column.stored != column.type or value_step(value.type) > value_step(column.type):
            raise Unanswerable(f"the column is cut to the unit of {value.type}")
        if not to_stored(_exact(value), column.type).is_exact:
            raise Unanswerable("the literal is cut to the unit of the column")


def _exact(value: pa.Scalar) -> Literal:
    literal = Literal.from_scalar(value)
    assert literal is not None
    return literal


def _literal(value: Any) -> pa.Scalar:
    match value:
        case "Null" | {"Null": _}:
            return pa.scalar(None)
        case {"Int": int(number)} | {"Int128": int(number)} | {"UInt128": int(number)}:
            return _integer(number)
        case {"Float": float(number)} | {"Float64": float(number)}:
            return pa.scalar(number, pa.float64())
        case {"Float32": float(number)}:
            return pa.scalar(number, pa.float32())
        case {"Float": _} | {"Float32": _} | {"Float64": _}:
            raise Unanswerable("NaN equals NaN in Polars, and infinities are written as NaN is")
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
            return pa.scalar(number, pa.int64()).cast(_type({next(iter(value)): kind}))
        case {"Decimal": [int(number), int(precision), int(scale)]}:
            digits = tuple(int(digit) for digit in str(abs(number)))
            exact = Decimal((int(number < 0), digits, -scale))
            return pa.scalar(exact, pa.decimal128(precision, scale))
    name, number = next(iter(value.items()))
    if isinstance(number, int) and "Int" in name:
        return pa.scalar(number, _type(name))
    raise Unanswerable(f"a literal of type {name} is not looked up")


def _integer(number: int) -> pa.Scalar:
    if -(2**63) <= number < 2**64:
        return pa.scalar(number, pa.int64() if number < 2**63 else pa.uint64())
    return pa.scalar(Decimal(number), pa.decimal128(38, 0))


def _type(dtype: Any) -> pa.DataType:
    match dtype:
        case str(name) if name in _TYPES:
            return pa.type_for_alias(_TYPES[name])
        case {"Datetime": [str(unit_), zone]}:
            return pa.timestamp(_UNITS[unit_], None if zone is None else zone["inner"])
        case {"Duration": str(unit_) | [str(unit_)]}:
            return pa.duration(_UNITS[unit_])
        case {"Decimal": [int(precision), int(scale)]}:
            return pa.decimal128(precision, scale)
    raise Unanswerable(f"the type {dtype} is not followed")


def _set(node: Any) -> pa.Array:
    match node:
        case {"Alias": [inner, _]}:
            return _set(inner)
        case {"Literal": {"Series": data}}:
            column = _ipc(data)
            if pt.is_list(column.type) or pt.is_large_list(column.type):
                # SQL writes a set as a series of one list.
                if len(column) != 1 or column.null_count:
                    raise Unanswerable("a series of lists is looked up row by row")
                column = column.flatten()
        case {"Literal": {"Scalar": {"List": data}}}:
            column = _ipc(data)
        case _:
            raise Unanswerable("only a set of literals is answered by a Bloom filter")
    if pt.is_dictionary(column.type):
        column = decode_dictionary(column)
    # There are few kernels for views.
    if pt.is_string_view(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pt.is_binary_view(column.type) else column


def _ipc(data: list[int]) -> Any:
    try:
        with pa.ipc.open_stream(bytes(data)) as stream:
            column = stream.read_all().column(0).combine_chunks()
    except (pa.ArrowException, ValueError, TypeError) as error:
        # Arrow has no integers of 128 bits.
        raise Unanswerable(f"Arrow cannot read the set: {error}") from None
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column

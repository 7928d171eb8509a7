"""The JSON that Polars writes an expression as, read as far as it is known.

A node is a name, or an object of one key: {"Column": "id"}. Sets and series are Arrow IPC streams,
written as lists of bytes.
"""

from __future__ import annotations

import json
import re
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.values.literal import Maybe

_LONG_LIST = re.compile(r"\[[0-9,]{2000,}\]")
_LEFT = '{"BinaryExpr":{"left":'
_OPERATOR = re.compile(r',"op":"(\w+)","right":')
_BYTES = "bytes"
_NOT_FINITE = "NaN equals NaN in Polars, and infinities are written as NaN is"
_UNITS = {"Nanoseconds": "ns", "Microseconds": "us", "Milliseconds": "ms"}
_TYPES = {
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Float16": pa.float16(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "String": pa.string(),
    "Binary": pa.binary(),
    "Boolean": pa.bool_(),
    "Date": pa.date32(),
    "Time": pa.time64("ns"),
    "Null": pa.null(),
}


def read(text: str) -> Any:
    """Read an expression's JSON, however long its sets and however deep its chains are."""
    blocks: list[bytes] = []

    def take(match: re.Match[str]) -> str:
        blocks.append(np.fromstring(match[0][1:-1], np.uint8, sep=",").tobytes())
        # Inside a string this would end it, and the text be no JSON any more.
        return f'{{"{_BYTES}":{len(blocks) - 1}}}'

    short = _LONG_LIST.sub(take, text) if len(text) > 4000 else text
    try:
        root = _parse(short)
    except ValueError:
        return _parse(text)
    _put_back(root, blocks)
    return root


def _parse(text: str) -> Any:
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
    if at != len(text):
        raise ValueError("text behind the end")
    return node


def _put_back(root: Any, blocks: list[bytes]) -> None:
    stack = [root] if blocks else []
    while stack:
        node = stack.pop()
        inner = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in list(inner):
            if isinstance(value, dict) and list(value) == [_BYTES]:
                node[key] = blocks[value[_BYTES]]
            elif isinstance(value, dict | list):
                stack.append(value)


def kind_of(node: Any) -> tuple[str, Any]:
    """The name of a node and what is in it, None if nothing is."""
    if isinstance(node, str):
        return node, None
    if isinstance(node, dict) and len(node) == 1:
        return next(iter(node.items()))
    raise Maybe("a part of the expression is of another form than known")


def literal_of(body: Any) -> pa.Scalar:
    """The value of a literal, exactly."""
    kind, value = kind_of(body)
    if kind == "Dyn":
        kind, value = kind_of(value)
        if kind == "Int" and _is_integer(value):
            return _integer(value)
        if kind == "Float":
            return _float(value, pa.float64())
        raise Maybe(f"a literal of kind {kind} is not known")
    if kind != "Scalar":
        raise Maybe("a series is compared row by row")
    kind, value = kind_of(value)
    try:
        return _scalar(kind, value)
    except (ValueError, TypeError, LookupError, OverflowError, pa.ArrowException):
        raise Maybe(f"a literal of type {kind} is written otherwise than known") from None


def _scalar(kind: str, value: Any) -> pa.Scalar:
    if kind == "Null":
        return pa.scalar(None)
    if kind == "Float16" and _is_integer(value):
        # The only float that is written as its bits: 19600 is 18.25.
        number = np.frombuffer(struct.pack("<H", value), "<f2")[0]
        if not np.isfinite(number):
            raise Maybe(_NOT_FINITE)
        return pa.scalar(number, pa.float16())
    if kind in ("Float32", "Float64"):
        return _float(value, _TYPES[kind])
    if kind == "UInt128" and _is_integer(value) and 0 <= value < 2**64:
        return pa.scalar(value, pa.uint64())
    if kind in ("Int128", "UInt128") and _is_integer(value):
        return _integer(value)
    if kind == "Binary" and isinstance(value, list | bytes):
        return pa.scalar(bytes(value), pa.binary())
    if kind == "Date":
        return pa.scalar(value, pa.int32()).cast(pa.date32())
    if kind == "Time":
        return pa.scalar(value, pa.int64()).cast(pa.time64("ns"))
    if kind == "Datetime":
        number, unit, zone = value
        type_ = pa.timestamp(_UNITS[unit], None if zone is None else zone["inner"])
        return pa.scalar(number, pa.int64()).cast(type_)
    if kind == "Duration":
        number, unit = value
        return pa.scalar(number, pa.int64()).cast(pa.duration(_UNITS[unit]))
    if kind == "Decimal":
        # Polars before 1.36 did not write the precision.
        number, *precision, scale = value
        digits = tuple(int(digit) for digit in str(abs(number)))
        exact = Decimal((int(number < 0), digits, -scale))
        return pa.scalar(exact, pa.decimal128(*(precision or [38]), scale))
    if (kind == "String" and isinstance(value, str)) or (
        kind == "Boolean" and isinstance(value, bool)
    ):
        return pa.scalar(value, _TYPES[kind])
    if kind in _TYPES and pa.types.is_integer(_TYPES[kind]) and _is_integer(value):
        return pa.scalar(value, _TYPES[kind])
    raise Maybe(f"a literal of type {kind} is not looked up")


def _is_integer(value: Any) -> bool:
    """Whether JSON has a number without a point, which Polars writes no float as."""
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(value: int) -> pa.Scalar:
    if -(2**63) <= value < 2**63:
        return pa.scalar(value, pa.int64())
    if 0 <= value < 2**64:
        return pa.scalar(value, pa.uint64())
    if abs(value) < 10**38:
        return pa.scalar(Decimal(value), pa.decimal128(38, 0))
    raise Maybe("the number has more than 38 digits")


def _float(value: Any, type_: pa.DataType) -> pa.Scalar:
    if not isinstance(value, float):
        # JSON has no other numbers, and Polars writes null for them.
        raise Maybe(_NOT_FINITE)
    number = np.dtype(type_.to_pandas_dtype()).type(value)
    # Written as the shortest digits that make this number, so those must come back.
    if float(np.format_float_scientific(number, unique=True)) != value:
        raise Maybe("the literal's digits are of no such number")
    return pa.scalar(number, type_)


def set_of(node: Any) -> pa.Array:
    """The values of a set that others are looked up in."""
    kind, body = kind_of(node)
    while kind == "Alias":
        kind, body = kind_of(body[0])
    if kind != "Literal":
        raise Maybe("only a set of literals is answered by a Bloom filter")
    kind, value = kind_of(body)
    if kind == "Scalar":
        kind, value = kind_of(value)
        if kind != "List":
            raise Maybe(f"a set of kind {kind} is not known")
    elif kind != "Series":
        raise Maybe(f"a set of kind {kind} is not known")
    try:
        with pa.ipc.open_stream(bytes(value)) as stream:
            table = stream.read_all()
    except (pa.ArrowException, ValueError, TypeError) as error:
        # Arrow has no integers of 128 bits.
        raise Maybe(f"Arrow cannot read the set: {error}") from None
    if table.num_columns != 1:
        raise Maybe("a set of several columns")
    column = table.column(0).combine_chunks()
    if not isinstance(column, pa.Array):
        column = pa.concat_arrays(column.chunks)
    if isinstance(column, pa.ListArray | pa.LargeListArray) and kind == "Series":
        # SQL writes a set as a series of one list.
        if len(column) != 1 or column.null_count:
            raise Maybe("a series of lists is looked up row by row")
        column = column.flatten()
    return _of_plain_text(column)


def _of_plain_text(values: pa.Array) -> pa.Array:
    """Values as they are, but of views, for which Arrow has few kernels, of a plain type."""
    if isinstance(values, pa.DictionaryArray):
        plain = _of_plain_text(values.dictionary)
        return pa.DictionaryArray.from_arrays(values.indices, plain)
    if pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    if pa.types.is_binary_view(values.type):
        return values.cast(pa.large_binary())
    return values


def type_of(node: Any) -> pa.DataType:
    """The Arrow type of the values of a Polars type."""
    kind, value = kind_of(node)
    if kind == "Literal":
        kind, value = kind_of(value)
        if kind in _TYPES:
            return _TYPES[kind]
        if kind == "Datetime":
            unit, zone = value
            return pa.timestamp(_UNITS[unit], None if zone is None else zone["inner"])
        if kind == "Duration":
            return pa.duration(_UNITS[value])
        if kind == "Decimal" and all(map(_is_integer, value)):
            return pa.decimal128(*value)
        if kind in ("Categorical", "Enum"):
            return pa.dictionary(pa.uint32(), pa.string())
    raise Maybe(f"a cast to {kind} is not followed")

"""The form in which PyArrow writes an expression down, taken apart and put together.

PyArrow has no public walk over an `Expression`, and its Substrait export refuses half of the
filters people write (an implicit cast is enough). But an expression pickles, and the pickled
bytes are an Arrow IPC file: the schema's metadata is the tree in prefix order, the columns of
its one row are the literals and the options.

    is_in(a, [1, 2]) and (b == 5)

    call     and_kleene
    call     is_in
    field_ref  a
    options    0           column 0: {value_set: [1, 2], null_matching_behavior: 0, ...}
    end      is_in
    call     equal
    field_ref  b
    literal    1           column 1: 5
    end      equal
    end      and_kleene

That layout is PyArrow's own business and may change: whatever is not exactly as above is refused.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.errors import FilterError

_Entry: TypeAlias = tuple[str, str]

# An IPC file begins with its name, padded to eight bytes, and the schema's message.
_MAGIC = b"ARROW1\0\0"
_MESSAGE = struct.Struct("<II")
_MOST_REMEMBERED = 1 << 16
_METADATA_OFFSET = 2 * ctypes.sizeof(ctypes.c_void_p)
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
# PyArrow's stack was seen to end at some ten thousand levels.
_DEEPEST = 1000


SHORTEN_ADVICE = "write IN for equalities, or read less and filter the table"


class MalformedExpression(Exception):
    """The serialised expression is not laid out as this module knows it."""


class SerializedExpression(NamedTuple):
    """The entries of the prefix order, the row of literals and options, and what reads both."""

    entries: list[_Entry]
    row: pa.RecordBatch
    unpickle: Callable[[pa.Buffer], pc.Expression]


@dataclass(slots=True, eq=False)
class ExpressionNode:
    """A call, reference or literal; `options` is the column of its options, or of the literal."""

    name: str
    start: int
    end: int
    path: tuple[str, ...] = ()
    args: list[ExpressionNode] = field(default_factory=list)
    options_column: int | None = None
    meaning: Any = None


def read_expression(expression: pc.Expression) -> SerializedExpression:
    """Read what an expression pickles to; the schema of filters alike but for literals is read
    once."""
    make, (buffer,) = expression.__reduce__()[:2]
    message = _message(buffer)
    if message is not None:
        try:
            entries, schema = _outline(message)
            row = pa.ipc.read_record_batch(buffer[len(_MAGIC) + len(message) :], schema)
            return SerializedExpression(entries, row, make)
        except (pa.ArrowException, OSError):
            # A literal with a dictionary: that lies between the schema and the row.
            pass
    with pa.ipc.open_file(buffer) as reader:
        row = reader.get_batch(0)
    return SerializedExpression(_metadata(row.schema), row, make)


def _message(buffer: pa.Buffer) -> bytes | None:
    """The schema's message; None of filters made by programs, too long to be remembered."""
    continuation, size = _MESSAGE.unpack_from(buffer, len(_MAGIC))
    end = len(_MAGIC) + _MESSAGE.size + size
    if continuation != 0xFFFFFFFF or end >= min(buffer.size, _MOST_REMEMBERED):
        return None
    return buffer[len(_MAGIC) : end].to_pybytes()


@functools.lru_cache(maxsize=256)
def _outline(message: bytes) -> tuple[list[_Entry], pa.Schema]:
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    return _metadata(schema), schema


def _metadata(schema: pa.Schema) -> list[_Entry]:
    """The schema's metadata in order, repeated keys included, which `Schema.metadata` drops.

    By the public C data interface: an int32 count, then each key and value by its int32 length.
    https://arrow.apache.org/docs/format/CDataInterface.html
    """
    # The capsule owns the struct and releases it when collected: keep it until all is copied.
    capsule = schema.__arrow_c_schema__()
    address = _capsule_pointer(capsule, b"arrow_schema")
    cursor = ctypes.c_void_p.from_address(address + _METADATA_OFFSET).value
    if cursor is None:
        raise MalformedExpression("no metadata")
    read_int = ctypes.c_int32.from_address
    count = read_int(cursor).value
    cursor += 4
    texts = []
    for _ in range(2 * count):
        length = read_int(cursor).value
        texts.append(ctypes.string_at(cursor + 4, length).decode())
        cursor += 4 + length
    del capsule
    return list(zip(texts[::2], texts[1::2], strict=True))


def parse_entries(entries: list[_Entry]) -> list[ExpressionNode]:
    """The nodes of an expression, arguments before their calls; the last one is all of it."""
    nodes: list[ExpressionNode] = []
    # Recursion would end at long chains of OR.
    root = ExpressionNode("root", 0, 0)
    stack = [root]
    at = 0
    while at < len(entries):
        key, text = entries[at]
        top = stack[-1]
        if top.options_column is not None and key != "end":
            raise MalformedExpression("an argument after the options")
        start = at
        at += 1
        if key == "call":
            stack.append(ExpressionNode(text, start, at))
            continue
        if key == "options" and top is not root:
            top.options_column = int(text)
            continue
        if key == "end":
            if top is root or top.name != text:
                raise MalformedExpression(f"unexpected end of {text}")
            node = stack.pop()
            node.end = at
        elif key in ("field_ref", "nested_field_ref"):
            parts = [(key, text)]
            if key == "nested_field_ref":
                at += int(text)
                parts = entries[start + 1 : at]
                if len(parts) != int(text) or {each for each, _ in parts} != {"field_ref"}:
                    raise MalformedExpression("a nested reference of other parts")
            node = ExpressionNode("field_ref", start, at, tuple(name for _, name in parts))
        elif key == "literal":
            node = ExpressionNode(key, start, at, options_column=int(text))
        else:
            raise MalformedExpression(f"unexpected entry {key}")
        stack[-1].args.append(node)
        nodes.append(node)
    if len(stack) != 1 or len(root.args) != 1:
        raise MalformedExpression("calls are left open")
    return nodes


def subexpression(form: SerializedExpression, node: ExpressionNode) -> pc.Expression:
    entries: list[_Entry] = []
    literals: list[pa.Array] = []
    deep = 0
    for key, text in form.entries[node.start : node.end]:
        deep += {"call": 1, "end": -1}.get(key, 0)
        if deep > _DEEPEST:
            raise nesting_error(_DEEPEST)
        if key in ("literal", "options"):
            literals.append(form.row.column(int(text)))
            text = str(len(literals) - 1)
        entries.append((key, text))
    # A file's row needs a column.
    literals = literals or [pa.nulls(1)]
    fields = [pa.field("", each.type) for each in literals]
    schema = pa.schema(fields, pa.KeyValueMetadata(entries))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as file:
        file.write_batch(pa.record_batch(literals, schema=schema))
    return form.unpickle(sink.getvalue())


def nesting_error(most: int) -> FilterError:
    return FilterError(f"the filter is nested more than {most:,} levels deep; {SHORTEN_ADVICE}")


def expression_text(expression: pc.Expression) -> str:
    """An expression as PyArrow shows it; bytes of a view it shows as if they were text."""
    try:
        return str(expression)
    except UnicodeDecodeError as error:
        return error.object.decode(errors="backslashreplace")


def referenced_columns(expression: pc.Expression) -> set[str] | None:
    try:
        message = _message(expression.__reduce__()[1][0])
        entries = read_expression(expression).entries if message is None else _outline(message)[0]
        return {node.path[0] for node in parse_entries(entries) if node.path}
    except Exception:  # noqa: BLE001 - reading every column is always right
        return None

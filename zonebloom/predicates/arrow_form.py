"""Parse the serialized form of PyArrow expressions, and cut subexpressions out of it.

PyArrow has no public function that walks over an `Expression`. Its Substrait export rejects half of
the filters that people write: one implicit cast is enough. But an expression can be pickled, and
the pickled bytes are an Arrow IPC file. The schema's metadata is the tree in prefix order. The file
has one row, and its columns are the literals and the options.

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

The layout is private to PyArrow and may change, so the parser rejects everything that differs from
the above.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import is_view_type
from zonebloom.errors import FilterError
from zonebloom.values.normal_types import comparable_type, decoded_type

_Entry: TypeAlias = tuple[str, str]

# An IPC file begins with these magic bytes, which are padded to eight. The schema message follows,
# prefixed by a continuation marker and its size.
_IPC_FILE_MAGIC = b"ARROW1\0\0"
_IPC_MESSAGE_PREFIX = struct.Struct("<II")
_MAX_CACHED_SCHEMA_END = 1 << 16
_METADATA_OFFSET = 2 * ctypes.sizeof(ctypes.c_void_p)
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
# PyArrow recurses. With a stack of 8 MiB it bears 8,000 levels of OR, AND, NOT, sums and if_else,
# and fails at 16,000, as tests showed.
_MAX_EXPRESSION_DEPTH = 2000

_CAST_OPTIONS = re.compile(r", \{to_type=([^{}]*?), allow_int_overflow=[^{}]*\}")
SHORTEN_ADVICE = "write IN for equalities, or read less and filter the table"


class MalformedExpression(Exception):
    """The serialized expression has a layout that this module does not know."""


class SerializedExpression(NamedTuple):
    """A serialized expression, in parts.

    `entries` is the tree in prefix order. `row` has the literals and options as columns. `unpickle`
    makes an expression from the bytes of an IPC file.
    """

    entries: list[_Entry]
    row: pa.RecordBatch
    unpickle: Callable[[pa.Buffer], pc.Expression]


@dataclass(slots=True, eq=False)
class ExpressionNode:
    """A call, field reference or literal of an expression.

    `start` and `end` delimit its entries. `options_column` is the number of the column that holds
    the options of a call, or the value of a literal. `meaning` is what a translator makes of it.
    """

    name: str
    start: int
    end: int
    path: tuple[str, ...] = ()
    args: list[ExpressionNode] = field(default_factory=list)
    options_column: int | None = None
    meaning: Any = None


def read_expression(expression: pc.Expression) -> SerializedExpression:
    """Serialize an expression and return its parts.

    Expressions that differ only in their literals have the same schema message, so the parsed
    schema is cached.
    """
    make, (buffer,) = expression.__reduce__()[:2]
    message = _schema_message(buffer)
    if message is not None:
        try:
            entries, schema = _parse_schema_message(message)
            row = pa.ipc.read_record_batch(buffer[len(_IPC_FILE_MAGIC) + len(message) :], schema)
            return SerializedExpression(entries, row, make)
        except (pa.ArrowException, OSError):
            # A literal of a dictionary type puts a dictionary message between the schema and the
            # row. The complete reader below handles it.
            pass
    with pa.ipc.open_file(buffer) as reader:
        row = reader.get_batch(0)
    return SerializedExpression(_schema_entries(row.schema), row, make)


def _schema_message(buffer: pa.Buffer) -> bytes | None:
    """Return the schema message, or None if it is too long to be cached."""
    continuation, size = _IPC_MESSAGE_PREFIX.unpack_from(buffer, len(_IPC_FILE_MAGIC))
    end = len(_IPC_FILE_MAGIC) + _IPC_MESSAGE_PREFIX.size + size
    if continuation != 0xFFFFFFFF or end >= min(buffer.size, _MAX_CACHED_SCHEMA_END):
        return None
    return buffer[len(_IPC_FILE_MAGIC) : end].to_pybytes()


@functools.lru_cache(maxsize=256)
def _parse_schema_message(message: bytes) -> tuple[list[_Entry], pa.Schema]:
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    return _schema_entries(schema), schema


def _schema_entries(schema: pa.Schema) -> list[_Entry]:
    """Return the metadata of a schema in order, including repeated keys.

    `Schema.metadata` drops repeated keys, so read them through the public C data interface. The
    metadata is an int32 count, followed by keys and values with an int32 length before each. See
    https://arrow.apache.org/docs/format/CDataInterface.html
    """
    # The capsule owns the struct and frees it when it is collected, so keep the capsule until
    # everything is copied.
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
    """Return the nodes of an expression in postfix order, so the last node is the root."""
    nodes: list[ExpressionNode] = []
    # Use a stack, because recursion would fail for long chains of OR.
    root = ExpressionNode("root", 0, 0)
    stack = [root]
    position = 0
    while position < len(entries):
        key, text = entries[position]
        top = stack[-1]
        if top.options_column is not None and key != "end":
            raise MalformedExpression("an argument after the options")
        start = position
        position += 1
        if key == "call":
            stack.append(ExpressionNode(text, start, position))
            continue
        if key == "options" and top is not root:
            top.options_column = int(text)
            continue
        if key == "end":
            if top is root or top.name != text:
                raise MalformedExpression(f"unexpected end of {text}")
            node = stack.pop()
            node.end = position
        elif key in ("field_ref", "nested_field_ref"):
            parts = [(key, text)]
            if key == "nested_field_ref":
                position += int(text)
                parts = entries[start + 1 : position]
                if len(parts) != int(text) or {kind for kind, _ in parts} != {"field_ref"}:
                    raise MalformedExpression("a nested reference has unexpected parts")
            node = ExpressionNode("field_ref", start, position, tuple(name for _, name in parts))
        elif key == "literal":
            node = ExpressionNode(key, start, position, options_column=int(text))
        else:
            raise MalformedExpression(f"unexpected entry {key}")
        stack[-1].args.append(node)
        nodes.append(node)
    if len(stack) != 1 or len(root.args) != 1:
        raise MalformedExpression("a call has no end")
    return nodes


def plain_literals(form: SerializedExpression) -> pc.Expression | None:
    """Return an expression with literals of comparable types, or None if its literals are so.

    PyArrow compares no views, and no dictionaries in a set, although columns may have such types.
    """
    literals = form.row.columns
    plain = list(map(_plain_literal, literals))
    if all(a is b for a, b in zip(plain, literals, strict=True)):
        return None
    row = pa.record_batch(plain, [str(number) for number in range(len(plain))])
    root = parse_entries(form.entries)[-1]
    return subexpression(SerializedExpression(form.entries, row, form.unpickle), root)


def _plain_literal(literal: Any) -> pa.Array:
    """Return the value of a literal, or the options of a call, with a comparable type."""
    type_ = literal.type
    if is_view_type(type_) or pt.is_dictionary(type_):
        return literal.cast(decoded_type(type_)).cast(comparable_type(type_))
    if not pt.is_struct(type_) or type_.get_field_index("value_set") < 0:
        return literal
    sets = literal.field("value_set")
    values = sets.values
    plain_values = _plain_literal(values)
    if plain_values is values:
        return literal
    fields = {field.name: literal.field(field.name) for field in type_}
    fields["value_set"] = pa.ListArray.from_arrays(sets.offsets, plain_values)
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))


def require_bounded_depth(entries: list[_Entry]) -> None:
    """Raise `FilterError` if PyArrow could overflow its stack with an expression."""
    depth = 0
    for key, _ in entries:
        depth += {"call": 1, "end": -1}.get(key, 0)
        if depth > _MAX_EXPRESSION_DEPTH:
            raise FilterError(
                f"the filter is nested more than {_MAX_EXPRESSION_DEPTH:,} levels deep; "
                f"{SHORTEN_ADVICE}"
            )


def subexpression(
    form: SerializedExpression,
    node: ExpressionNode,
    replacements: Sequence[tuple[ExpressionNode, pc.Expression]] = (),
) -> pc.Expression:
    """Return the part of an expression that starts at a node, with other expressions for some."""
    entries: list[_Entry] = []
    literals: list[pa.Array] = []

    def copy(part: SerializedExpression, start: int, end: int) -> None:
        for key, text in part.entries[start:end]:
            if key in ("literal", "options"):
                literals.append(part.row.column(int(text)))
                text = str(len(literals) - 1)
            entries.append((key, text))

    position = node.start
    for replaced_node, expression in sorted(replacements, key=lambda pair: pair[0].start):
        copy(form, position, replaced_node.start)
        replacement = read_expression(expression)
        copy(replacement, 0, len(replacement.entries))
        position = replaced_node.end
    copy(form, position, node.end)
    require_bounded_depth(entries)
    # The row of an IPC file needs at least one column.
    literals = literals or [pa.nulls(1)]
    fields = [pa.field("", literal.type) for literal in literals]
    schema = pa.schema(fields, pa.KeyValueMetadata(entries))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as file:
        file.write_batch(pa.record_batch(literals, schema=schema))
    return form.unpickle(sink.getvalue())


def expression_text(expression: pc.Expression) -> str:
    """Return an expression as PyArrow prints it, but casts without their options.

    >>> expression_text(pc.field("x").cast(pa.int32()) == 5)
    '(cast(x AS int32) == 5)'
    """
    try:
        text = str(expression)
    except UnicodeDecodeError as error:
        # PyArrow prints the bytes of a binary view as if they were UTF-8.
        text = error.object.decode(errors="backslashreplace")
    return _CAST_OPTIONS.sub(r" AS \1", text)


def columns_cast_to_integers(expression: pc.Expression) -> list[tuple[str, ...]]:
    """Return the paths of the columns that an expression casts to integers.

    Return none if its layout is not known.
    """
    try:
        form = read_expression(expression)
        return [
            path
            for node in parse_entries(form.entries)
            if node.name == "cast" and node.options_column is not None
            # PyArrow serializes the target type as the type of a null field.
            if pt.is_integer(form.row.column(node.options_column).type.field("to_type").type)
            for path in [arg.path for arg in node.args if arg.path]
        ]
    except Exception:  # noqa: BLE001 - this only makes a message more helpful
        return []


def referenced_columns(expression: pc.Expression) -> frozenset[str] | None:
    """Return the top-level columns of an expression, or None if its layout is not known."""
    try:
        message = _schema_message(expression.__reduce__()[1][0])
        if message is not None:
            return _columns_of_message(message)
        return _columns_of_entries(read_expression(expression).entries)
    except Exception:  # noqa: BLE001 - the caller can always read all columns
        return None


@functools.lru_cache(maxsize=256)
def _columns_of_message(message: bytes) -> frozenset[str]:
    return _columns_of_entries(_parse_schema_message(message)[0])


def _columns_of_entries(entries: list[_Entry]) -> frozenset[str]:
    return frozenset(node.path[0] for node in parse_entries(entries) if node.path)

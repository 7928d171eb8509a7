"""PyArrow expressions brought to predicates.

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

That layout is PyArrow's own business and may change, so whatever is not exactly as above makes
the whole filter `Unknown`: slower, never wrong. The same goes for every comparison in which
PyArrow would round a value, since the index looks values up exactly.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.errors import FilterError
from zonebloom.predicates import ast
from zonebloom.predicates.expression import equal_is_exact, lookup_is_exact
from zonebloom.values.columns import resolve
from zonebloom.values.literal import Maybe
from zonebloom.values.time_zones import TIME_ZONE_FUNCTIONS, time_zone_refusal
from zonebloom.values.types import holds_nan, nulls_are_elsewhere, time_zones_differ, widens

Entry: TypeAlias = tuple[str, str]
Form: TypeAlias = tuple[list[Entry], pa.RecordBatch]

# An IPC file begins with its name, padded to eight bytes, and the schema's message.
_MAGIC = b"ARROW1\0\0"
_MESSAGE = struct.Struct("<II")
_MOST_REMEMBERED = 1 << 16
_METADATA_OFFSET = 2 * ctypes.sizeof(ctypes.c_void_p)
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

_PATTERNS = {
    "match_like",
    "match_substring",
    "match_substring_regex",
    "starts_with",
    "ends_with",
}
_COMPARISONS = {
    "equal": "=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_SYMBOLS = {
    **_COMPARISONS,
    "not_equal": "!=",
    "and": "AND",
    "and_kleene": "AND",
    "or": "OR",
    "or_kleene": "OR",
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
}
_ONLY_LITERALS = "only a column compared with a literal is answered by a Bloom filter"


class Malformed(Exception):
    """The serialised expression is not laid out as this module knows it."""


class Node:
    """A call, a reference or a literal: the entries it is written in, and what it means.

    `meaning` is a predicate for a condition, a `_Column` for a reference, a `pa.Scalar` for a
    literal, and `Maybe` for whatever the index cannot follow. `options` is the number of the
    column that holds a call's options, or the literal itself.
    """

    __slots__ = ("args", "end", "meaning", "name", "options", "path", "start")

    def __init__(self, name: str, start: int, end: int = 0, path: ast.ColumnPath = ()) -> None:
        self.name = name
        self.start = start
        self.end = end or start + 1
        self.path = path
        self.args: list[Node] = []
        self.options: int | None = None
        self.meaning: Any = None


class _Column:
    """A column as the expression sees it: `type` is after any cast that loses nothing."""

    __slots__ = ("path", "type")

    def __init__(self, path: ast.ColumnPath, type_: pa.DataType) -> None:
        self.path = path
        self.type = type_


def to_predicate(
    expression: pc.Expression, schema: pa.Schema, form: Form | None = None
) -> ast.Predicate:
    """What an index can answer of a PyArrow expression; `form` is what `read` gives of it.

    >>> schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> print(to_predicate((pc.field("id") == 42) & (pc.field("name") > "m"), schema))
    id = 42 AND name > 'm'
    """
    try:
        form = form or read(expression)
        nodes = parse(form)
        reader = _Reader(form[1], schema)
        for node in nodes:
            reader.understand(node)
        return ast.simplified(reader.condition(nodes[-1]))
    except FilterError:
        raise
    except Exception as error:  # noqa: BLE001 - a filter is never the reason to fail
        detail = f": {error}" if str(error) else ""
        return ast.Unknown(
            expression_text(expression),
            f"the expression cannot be taken apart ({type(error).__name__}{detail})",
        )


def expression_text(expression: pc.Expression) -> str:
    """An expression as PyArrow shows it; bytes of a view it shows as if they were text."""
    try:
        return str(expression)
    except UnicodeDecodeError as error:
        return error.object.decode(errors="backslashreplace")


def parse(form: Form) -> list[Node]:
    """The nodes of an expression, arguments before their calls; the last one is all of it."""
    entries, _ = form
    nodes: list[Node] = []
    # Recursion would end at long chains of OR.
    root = Node("root", 0)
    stack = [root]
    at = 0
    while at < len(entries):
        key, text = entries[at]
        top = stack[-1]
        if top.options is not None and key != "end":
            raise Malformed("an argument after the options")
        start = at
        at += 1
        if key == "call":
            stack.append(Node(text, start))
            continue
        if key == "options" and top is not root:
            top.options = int(text)
            continue
        if key == "end":
            if top is root or top.name != text:
                raise Malformed(f"unexpected end of {text}")
            node = stack.pop()
            node.end = at
        elif key in ("field_ref", "nested_field_ref"):
            parts = [(key, text)]
            if key == "nested_field_ref":
                at += int(text)
                parts = entries[start + 1 : at]
                if len(parts) != int(text) or {each for each, _ in parts} != {"field_ref"}:
                    raise Malformed("a nested reference of other parts")
            node = Node("field_ref", start, at, tuple(name for _, name in parts))
        elif key == "literal":
            node = Node(key, start)
            node.options = int(text)
        else:
            raise Malformed(f"unexpected entry {key}")
        stack[-1].args.append(node)
        nodes.append(node)
    if len(stack) != 1 or len(root.args) != 1:
        raise Malformed("calls are left open")
    return nodes


def read(expression: pc.Expression) -> Form:
    """The entries of the prefix order, and the row of literals and options.

    The file's schema message holds all but the values of the literals, so filters that differ
    in those alone share it: it is read once.
    https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format
    """
    _, (buffer,) = expression.__reduce__()[:2]
    continuation, size = _MESSAGE.unpack_from(buffer, len(_MAGIC))
    row_at = len(_MAGIC) + _MESSAGE.size + size
    # Of filters made by programs the message may be long, and is not worth remembering.
    if continuation == 0xFFFFFFFF and row_at < min(buffer.size, _MOST_REMEMBERED):
        try:
            entries, schema = _outline(buffer[len(_MAGIC) : row_at].to_pybytes())
            return entries, pa.ipc.read_record_batch(buffer[row_at:], schema)
        except (pa.ArrowException, OSError):
            # A literal with a dictionary: that lies between the schema and the row.
            pass
    with pa.ipc.open_file(buffer) as reader:
        row = reader.get_batch(0)
    return _metadata(row.schema), row


@functools.lru_cache(maxsize=256)
def _outline(message: bytes) -> tuple[list[Entry], pa.Schema]:
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    return _metadata(schema), schema


def _metadata(schema: pa.Schema) -> list[Entry]:
    """Return the schema's metadata in order, repeated keys included.

    `Schema.metadata` is a dict and keeps one entry a key, so this reads the public C data
    interface: struct ArrowSchema {const char* format, *name, *metadata; ...}, where metadata is
    an int32 count, then for each key and value an int32 length and as many bytes.
    https://arrow.apache.org/docs/format/CDataInterface.html
    """
    # The capsule owns the struct and releases it when collected: keep it until all is copied.
    capsule = schema.__arrow_c_schema__()
    address = _capsule_pointer(capsule, b"arrow_schema")
    cursor = ctypes.c_void_p.from_address(address + _METADATA_OFFSET).value
    if cursor is None:
        raise Malformed("no metadata")
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


class _Reader:
    """Says what the nodes of one expression mean."""

    def __init__(self, row: pa.RecordBatch, schema: pa.Schema) -> None:
        self._row = row
        self._schema = schema

    def understand(self, node: Node) -> None:
        """Find the meaning of a node whose arguments have theirs."""
        try:
            if node.path:
                node.meaning = _Column(node.path, resolve(self._schema, node.path))
            elif node.name == "literal":
                node.meaning = self._options(node)
            else:
                node.meaning = self._call(node)
        except Maybe as reason:
            node.meaning = reason
        except LookupError as error:
            node.meaning = Maybe(str(error.args[0]))

    def _call(self, node: Node) -> object:
        name, args = node.name, node.args
        # The non-Kleene forms give null where the Kleene ones still know an answer, so they are
        # true (and false) for fewer rows: the same bounds hold for both.
        if name in ("and", "and_kleene"):
            return ast.And(tuple(map(self.condition, args)))
        if name in ("or", "or_kleene"):
            return ast.Or(tuple(map(self.condition, args)))
        if name == "invert" and len(args) == 1:
            return ast.negation(self.condition(args[0]))
        if name in ("and_not", "and_not_kleene") and len(args) == 2:
            return ast.And((self.condition(args[0]), ast.negation(self.condition(args[1]))))
        if name in _COMPARISONS:
            return self._comparison(args, _COMPARISONS[name])
        if name == "not_equal":
            return ast.negation(self._comparison(args, "="))
        if name == "is_in":
            return self._is_in(node)
        if name in ("is_null", "is_valid"):
            null = self._is_null(node)
            return null if name == "is_null" else ast.negation(null)
        if name == "cast":
            return self._cast(node)
        if name in _PATTERNS:
            raise Maybe("text patterns are not answered by a Bloom filter")
        raise Maybe(f"the function {name} is not answered by a Bloom filter")

    def condition(self, node: Node) -> ast.Predicate:
        """Read a node as a condition on rows."""
        meaning = node.meaning
        if isinstance(meaning, _Column):
            meaning = Maybe("a boolean column is not indexed")
        elif isinstance(meaning, pa.Scalar):
            value = meaning.as_py()
            if value is None or isinstance(value, bool):
                return ast.Constant(value)
            meaning = Maybe("the literal is no condition")
        if isinstance(meaning, Maybe):
            return ast.Unknown(self._text(node), str(meaning))
        assert isinstance(meaning, ast.Predicate)
        return meaning

    def _comparison(self, args: list[Node], operator: str) -> ast.Predicate:
        if len(args) != 2:
            raise Malformed("a comparison takes two arguments")
        left, right = args
        for side in args:
            if isinstance(side.meaning, pa.Scalar) and not side.meaning.is_valid:
                return ast.Constant(None)
        if isinstance(left.meaning, pa.Scalar):
            left, right, operator = right, left, ast.FLIPPED[operator]
        _check_zones(left.meaning, right.meaning)
        column, value = _column(left, _ONLY_LITERALS), right.meaning
        if isinstance(value, Maybe):
            raise value
        if not isinstance(value, pa.Scalar):
            raise Maybe(_ONLY_LITERALS)
        if not equal_is_exact(column.type, value.type):
            raise Maybe(f"comparing {column.type} with {value.type} may round")
        if operator == "=":
            return ast.Equals(column.path, value)
        if pa.types.is_floating(value.type) and math.isnan(value.as_py()):
            raise Maybe("the order of NaN depends on the engine")
        return ast.Compares(column.path, operator, value)  # pyright: ignore[reportArgumentType]

    def _is_in(self, node: Node) -> ast.Predicate:
        if len(node.args) != 1 or self._option(node, "_type_name") != b"SetLookupOptions":
            raise Malformed("is_in takes one argument and a set")
        column = _column(node.args[0], "only a column looked up in a set is answered")
        values = self._options(node)["value_set"].values
        if isinstance(values, pa.DictionaryArray):
            values = values.dictionary_decode()
        # enum NullMatchingBehavior { MATCH, SKIP, EMIT_NULL, INCONCLUSIVE }: only under MATCH is
        # a null row ever in the set, and only if the set holds a null.
        matching = self._option(node, "null_matching_behavior")
        null_matches = matching == 0 and values.null_count > 0
        values = values.drop_null()
        if len(values):
            _check_zones(column, values[0])
            if not lookup_is_exact(column.type, values):
                raise Maybe(f"looking {column.type} up in a set of {values.type} may round")
        return ast.IsIn(column.path, values, null_matches)

    def _is_null(self, node: Node) -> ast.Predicate:
        if len(node.args) != 1:
            raise Malformed(f"{node.name} takes one argument")
        column = _column(node.args[0], "only the nulls of a column are known to an index")
        if nulls_are_elsewhere(column.type):
            raise Maybe(f"the nulls of {column.type} are not indexed")
        if (
            node.options is not None
            and self._option(node, "nan_is_null")
            and holds_nan(column.type)
        ):
            raise Maybe("NaN counted as null is not answered by a Bloom filter")
        return ast.IsNull(column.path)

    def _cast(self, node: Node) -> object:
        if len(node.args) != 1 or self._option(node, "_type_name") != b"CastOptions":
            raise Malformed("cast takes one argument and a type")
        meaning = node.args[0].meaning
        if isinstance(meaning, pa.Scalar):
            if meaning.is_valid:
                raise Maybe("the literal is wrapped in a cast")
            return meaning
        column = _column(node.args[0], "a condition is wrapped in a cast")
        # The type travels as the type of a null child.
        target = self._options(node).type.field("to_type").type
        if not widens(column.type, target):
            raise Maybe(f"casting {column.type} to {target} may join values")
        return _Column(column.path, target)

    def _options(self, node: Node) -> Any:
        if node.options is None:
            raise Malformed(f"{node.name} comes without options")
        return self._row.column(node.options)[0]

    def _option(self, node: Node, name: str) -> object:
        return self._options(node)[name].as_py()

    def _text(self, node: Node) -> str:
        """Write a node as SQL would, for people; long ones are cut."""
        if isinstance(node.meaning, pa.Scalar):
            text = ast.value_text(node.meaning)
        elif node.path:
            text = ast.column_text(node.path)
        elif node.name in _SYMBOLS and len(node.args) == 2:
            parts = [
                f"({self._text(each)})" if each.name in _SYMBOLS else self._text(each)
                for each in node.args
            ]
            text = f" {_SYMBOLS[node.name]} ".join(parts)
        else:
            inner = [self._text(each) for each in node.args]
            if node.options is not None:
                inner += _options_text(self._options(node))
            text = f"{node.name}({', '.join(inner)})"
        return ast.shortened(text)


def _column(node: Node, otherwise: str) -> _Column:
    if isinstance(node.meaning, Maybe):
        raise node.meaning
    if not isinstance(node.meaning, _Column):
        raise Maybe(otherwise)
    return node.meaning


def _check_zones(left: object, right: object) -> None:
    """Refuse what PyArrow compares in UTC unasked, or refuses when it reads."""
    if isinstance(left, _Column) and isinstance(right, pa.Scalar):
        refusal = time_zone_refusal(ast.column_text(left.path), left.type, right)
        if refusal is not None:
            raise FilterError(refusal)
    if not isinstance(left, _Column) or not isinstance(right, _Column):
        return
    if time_zones_differ(left.type, right.type):
        names = ast.column_text(left.path), ast.column_text(right.path)
        raise FilterError(
            f"{names[0]} is {left.type} and {names[1]} is {right.type}; {TIME_ZONE_FUNCTIONS}"
        )


def _options_text(options: pa.StructScalar) -> list[str]:
    shown = []
    for field in options.type:
        if field.name == "to_type":
            shown.append(str(field.type))
        elif field.name in ("pattern", "value_set"):
            value = options[field.name]
            if isinstance(value, pa.ListScalar) and value.values is not None:
                shown.append(f"{len(value.values)} values")
            else:
                text = value.as_py()
                shown.append(
                    repr(text.decode(errors="replace") if isinstance(text, bytes) else text)
                )
    return shown


def referenced_columns(expression: pc.Expression) -> set[str] | None:
    """Names of the top-level columns an expression reads, None when that cannot be told."""
    try:
        nodes = parse(read(expression))
    except Exception:  # noqa: BLE001 - reading every column is always right
        return None
    return {node.path[0] for node in nodes if node.path}

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
from zonebloom.predicates import ast, literals

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

_AND = {"and", "and_kleene"}
_RANGES = {"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PATTERNS = {
    "match_like",
    "match_substring",
    "match_substring_regex",
    "starts_with",
    "ends_with",
}
_SYMBOLS = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and": "AND",
    "and_kleene": "AND",
    "or": "OR",
    "or_kleene": "OR",
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
}
_SHOWN_TEXT = 200


class _Malformed(Exception):
    """The serialised expression is not laid out as this module knows it."""


class _Node:
    """One node of the tree, and what is known of it so far.

    `meaning` is a predicate or a `_Chain` for a condition, a `_Column` for a reference, a
    `pa.Scalar` for a literal, and a string, the reason, for whatever the index cannot follow.
    """

    __slots__ = ("args", "meaning", "name", "options")

    def __init__(self, name: str, meaning: Any = None) -> None:
        self.name = name
        self.args: list[_Node] = []
        self.options: pa.StructScalar | None = None
        self.meaning = meaning


class _Column:
    """A column as the expression sees it: `type` is after any cast that loses nothing."""

    __slots__ = ("path", "type")

    def __init__(self, path: ast.ColumnPath, type_: pa.DataType) -> None:
        self.path = path
        self.type = type_


class _Chain:
    """Terms joined by AND or by OR, to which the call around it may add.

    A predicate is made of the outermost alone: of each, a chain would take its length squared.
    """

    __slots__ = ("kind", "terms")

    def __init__(self, kind: type[ast.And | ast.Or], terms: list[ast.Predicate]) -> None:
        self.kind = kind
        self.terms = terms


def to_predicate(
    expression: pc.Expression, schema: pa.Schema, form: Form | None = None
) -> ast.Predicate:
    """Translate a PyArrow expression into what an index can answer.

    Parameters
    ----------
    expression
        Any filter PyArrow would apply to data of this schema.
    schema
        The dataset's schema; it says what each reference means.
    form
        What `read` gives of the expression, if it is read.

    Returns
    -------
    Predicate
        Whatever cannot be answered is `Unknown` with a reason.

    Raises
    ------
    FilterError
        A time without a zone is compared with one that has a zone.

    Examples
    --------
    >>> schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> print(to_predicate((pc.field("id") == 42) & (pc.field("name") > "m"), schema))
    id = 42 AND name > 'm'
    """
    try:
        return ast.bounded(_condition(_tree(form or read(expression), schema)))
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


def _tree(form: Form, schema: pa.Schema) -> _Node:
    """Read the prefix order with a stack; recursion would end at long chains of OR."""
    entries, row = form
    root = _Node("root")
    stack = [root]
    position = 0
    while position < len(entries):
        key, text = entries[position]
        position += 1
        top = stack[-1]
        if top.options is not None and key != "end":
            raise _Malformed("an argument after the options")
        if key == "call":
            stack.append(_Node(text))
        elif key == "end":
            if top is root or top.name != text:
                raise _Malformed(f"unexpected end of {text}")
            stack.pop()
            top.meaning = _meaning(top)
            stack[-1].args.append(top)
        elif key == "field_ref":
            top.args.append(_reference((text,), schema))
        elif key == "nested_field_ref":
            count = int(text)
            parts = entries[position : position + count]
            position += count
            if count < 1 or len(parts) != count or any(k != "field_ref" for k, _ in parts):
                raise _Malformed("a nested reference of other parts")
            top.args.append(_reference(tuple(name for _, name in parts), schema))
        elif key == "literal":
            top.args.append(_Node("literal", row.column(int(text))[0]))
        elif key == "options" and top is not root:
            top.options = row.column(int(text))[0]
        else:
            raise _Malformed(f"unexpected entry {key}")
    if len(stack) != 1 or len(root.args) != 1:
        raise _Malformed("calls are left open")
    return root.args[0]


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
        raise _Malformed("no metadata")
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


def _reference(path: ast.ColumnPath, schema: pa.Schema) -> _Node:
    fields: pa.Schema | pa.StructType = schema
    found: pa.DataType | None = None
    for depth, name in enumerate(path):
        indices = fields.get_all_field_indices(name)
        if len(indices) != 1:
            count = "no" if not indices else "more than one"
            reason = f"the schema has {count} column {ast.column_text(path[: depth + 1])}"
            return _Node(ast.column_text(path), reason)
        found = fields.field(indices[0]).type
        if depth + 1 < len(path):
            if not isinstance(found, pa.StructType):
                reason = f"{ast.column_text(path[: depth + 1])} is {found}, not a struct"
                return _Node(ast.column_text(path), reason)
            fields = found
    assert found is not None
    return _Node(ast.column_text(path), _Column(path, found))


def column_of(path: ast.ColumnPath, schema: pa.Schema) -> tuple[ast.ColumnPath, pa.DataType] | None:
    """The path and type of a column that an expression names, None if it is no single one."""
    found = _reference(path, schema).meaning
    return (found.path, found.type) if isinstance(found, _Column) else None


def _meaning(node: _Node) -> object:
    """Say what a call means, from what its arguments mean."""
    name, args = node.name, node.args
    if name in _AND:
        return _chain(ast.And, args)
    if name in ("or", "or_kleene"):
        return _chain(ast.Or, args)
    if name == "invert" and len(args) == 1:
        return ast.negation(_condition(args[0]))
    if name in ("and_not", "and_not_kleene") and len(args) == 2:
        chain = _chain(ast.And, args[:1])
        chain.terms.append(ast.negation(_condition(args[1])))
        return chain
    if name == "equal":
        return _equal(args)
    if name == "not_equal":
        equal = _equal(args)
        return equal if isinstance(equal, str) else ast.negation(equal)
    if name == "is_in":
        return _is_in(node)
    if name in ("is_null", "is_valid"):
        null = _is_null(node)
        return null if name == "is_null" or isinstance(null, str) else ast.negation(null)
    if name == "cast":
        return _cast(node)
    if name in _PATTERNS:
        return "text patterns are not answered by a Bloom filter"
    if name in _RANGES:
        return _compares(args, _RANGES[name])
    return f"the function {name} is not answered by a Bloom filter"


def _condition(node: _Node) -> ast.Predicate:
    """Read a node as a condition on rows."""
    meaning = node.meaning
    if isinstance(meaning, _Chain):
        terms = tuple(meaning.terms)
        return ast.conjunction(terms) if meaning.kind is ast.And else ast.Or(terms)
    if isinstance(meaning, _Column):
        return ast.Unknown(_text(node), "a boolean column is not indexed")
    if isinstance(meaning, pa.Scalar):
        value = meaning.as_py()
        if value is None or isinstance(value, bool):
            return ast.Constant(value)
        return ast.Unknown(_text(node), "the literal is no condition")
    if isinstance(meaning, str):
        return ast.Unknown(_text(node), meaning)
    assert isinstance(meaning, ast.Predicate)
    return meaning


def _chain(kind: type[ast.And | ast.Or], args: list[_Node]) -> _Chain:
    # The non-Kleene forms give null where the Kleene ones still know an answer, so they are true
    # (and false) for fewer rows: the same bounds hold for both.
    chain: _Chain | None = None
    for arg in args:
        meaning = arg.meaning
        if not (isinstance(meaning, _Chain) and meaning.kind is kind):
            term = _condition(arg)
            meaning = _Chain(kind, list(term.terms) if isinstance(term, kind) else [term])
        if chain is None:
            # No other node holds it.
            chain = meaning
        else:
            chain.terms += meaning.terms
    return chain or _Chain(kind, [])


def _equal(args: list[_Node]) -> ast.Predicate | str:
    if len(args) != 2:
        raise _Malformed("equal takes two arguments")
    left, right = args[0].meaning, args[1].meaning
    for meaning in (left, right):
        if isinstance(meaning, pa.Scalar) and not meaning.is_valid:
            return ast.Constant(None)
    if isinstance(left, pa.Scalar):
        left, right = right, left
    _check_zones(left, right)
    if isinstance(left, _Column) and isinstance(right, pa.Scalar):
        if not literals.equal_is_exact(left.type, right.type):
            return f"comparing {left.type} with {right.type} may round"
        return ast.Equals(left.path, right)
    for meaning in (left, right):
        if isinstance(meaning, str):
            return meaning
    return "only a column compared with a literal is answered by a Bloom filter"


def _compares(args: list[_Node], operator: str) -> ast.Predicate | str:
    if len(args) != 2:
        raise _Malformed("a comparison takes two arguments")
    left, right = args[0].meaning, args[1].meaning
    for meaning in (left, right):
        if isinstance(meaning, pa.Scalar) and not meaning.is_valid:
            return ast.Constant(None)
    if isinstance(left, pa.Scalar):
        left, right, operator = right, left, _FLIPPED[operator]
    _check_zones(left, right)
    if isinstance(left, _Column) and isinstance(right, pa.Scalar):
        if not literals.equal_is_exact(left.type, right.type):
            return f"comparing {left.type} with {right.type} may round"
        if pa.types.is_floating(right.type) and math.isnan(right.as_py()):
            return "the order of NaN depends on the engine"
        return ast.Compares(left.path, operator, right)  # pyright: ignore[reportArgumentType]
    for meaning in (left, right):
        if isinstance(meaning, str):
            return meaning
    return "only a column compared with a literal is known to an index"


def _check_zones(left: object, right: object) -> None:
    """Refuse what PyArrow compares in UTC unasked, or refuses when it reads."""
    if isinstance(left, _Column) and isinstance(right, pa.Scalar):
        refusal = literals.zone_refusal(ast.column_text(left.path), left.type, right)
        if refusal is not None:
            raise FilterError(refusal)
    if not isinstance(left, _Column) or not isinstance(right, _Column):
        return
    if literals.zones_differ(left.type, right.type):
        names = ast.column_text(left.path), ast.column_text(right.path)
        raise FilterError(
            f"{names[0]} is {left.type} and {names[1]} is {right.type}; {literals.ZONE_FUNCTIONS}"
        )


def _is_in(node: _Node) -> ast.Predicate | str:
    if len(node.args) != 1 or _option(node, "_type_name") != b"SetLookupOptions":
        raise _Malformed("is_in takes one argument and a set")
    column = node.args[0].meaning
    if isinstance(column, str):
        return column
    if not isinstance(column, _Column):
        return "only a column looked up in a set is answered by a Bloom filter"
    assert node.options is not None
    values = node.options["value_set"].values
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    # enum NullMatchingBehavior { MATCH, SKIP, EMIT_NULL, INCONCLUSIVE }: only under MATCH is a
    # null row ever in the set, and only if the set holds a null.
    null_matches = _option(node, "null_matching_behavior") == 0 and values.null_count > 0
    values = values.drop_null()
    if len(values):
        _check_zones(column, values[0])
    if len(values) and not literals.lookup_is_exact(column.type, values):
        return f"looking {column.type} up in a set of {values.type} may round"
    return ast.IsIn(column.path, values, null_matches)


def _is_null(node: _Node) -> ast.Predicate | str:
    if len(node.args) != 1:
        raise _Malformed(f"{node.name} takes one argument")
    column = node.args[0].meaning
    if isinstance(column, str):
        return column
    if not isinstance(column, _Column):
        return "only the nulls of a column are known to an index"
    if literals.nulls_are_elsewhere(column.type):
        return f"the nulls of {column.type} are not indexed"
    if (
        node.options is not None
        and _option(node, "nan_is_null")
        and literals.holds_nan(column.type)
    ):
        return "NaN counted as null is not answered by a Bloom filter"
    return ast.IsNull(column.path)


def _cast(node: _Node) -> object:
    if len(node.args) != 1 or _option(node, "_type_name") != b"CastOptions":
        raise _Malformed("cast takes one argument and a type")
    assert node.options is not None
    # The type travels as the type of a null child.
    target = node.options.type.field("to_type").type
    column = node.args[0].meaning
    if isinstance(column, pa.Scalar):
        return column if not column.is_valid else "the literal is wrapped in a cast"
    if not isinstance(column, _Column):
        return column if isinstance(column, str) else "a condition is wrapped in a cast"
    if not literals.is_lossless(column.type, target):
        return f"casting {column.type} to {target} may join values"
    return _Column(column.path, target)


def _option(node: _Node, name: str) -> object:
    if node.options is None:
        raise _Malformed(f"{node.name} comes without options")
    return node.options[name].as_py()


def _text(node: _Node) -> str:
    """Write a node as SQL would, for people; long ones are cut."""
    if isinstance(node.meaning, pa.Scalar):
        text = ast.value_text(node.meaning)
    elif node.name in _SYMBOLS and len(node.args) == 2:
        parts = [f"({_text(a)})" if a.name in _SYMBOLS else _text(a) for a in node.args]
        text = f" {_SYMBOLS[node.name]} ".join(parts)
    elif node.args:
        inner = [_text(a) for a in node.args]
        if node.options is not None:
            inner += _options_text(node.options)
        text = f"{node.name}({', '.join(inner)})"
    else:
        text = node.name
    return text if len(text) <= _SHOWN_TEXT else text[: _SHOWN_TEXT - 3] + "..."


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
        entries, _ = read(expression)
    except Exception:  # noqa: BLE001 - reading every column is always right
        return None
    names = set()
    inner = 0
    for key, text in entries:
        if key == "nested_field_ref":
            inner = int(text)
        elif key == "field_ref":
            # Of a nested reference only the first name is a column.
            if inner >= 0:
                names.add(text)
                inner = -(inner - 1) if inner > 1 else 0
            else:
                inner += 1
        elif key not in ("call", "end", "literal", "options"):
            return None
    return names

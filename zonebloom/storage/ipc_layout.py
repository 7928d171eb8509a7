"""Where the record batches of an Arrow IPC file lie, and some rows of their columns.

pyarrow reads columns of a record batch whole; a lookup wants few rows, whose bytes are found by
arithmetic in columns of fixed width, of text and of binary values.

    file    | ARROW1 | schema | head | body | head | body | ... | footer | its size i32 | ARROW1 |
    head    (0xFFFFFFFF) | size i32 | Message, a flatbuffer (Message.fbs) that describes the body
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

Read = Callable[[int, int], bytes]
Span: TypeAlias = tuple[int, int]

_MAGIC = b"ARROW1"
# Where the schema's message begins, past the magic bytes and their padding.
_SCHEMA = 8
_TAIL_BYTES = 16 << 10
_CONTINUATION = b"\xff\xff\xff\xff"
_RECORD_BATCH, _DICTIONARY = 3, 2
# Where the footer lists them.
_BATCHES, _DICTIONARIES = 3, 2
_BLOCK = np.dtype([("offset", "<i8"), ("head", "<i4"), ("padding", "<i4"), ("body", "<i8")])
_PAIR = np.dtype(("<i8", 2))


class Block(NamedTuple):
    """A record batch in its file: its head from ``start``, its body from ``body`` to ``stop``."""

    start: int
    body: int
    stop: int


class BatchHead(NamedTuple):
    num_rows: int
    nodes: np.ndarray
    buffers: np.ndarray
    is_compressed: bool


class _Table:
    def __init__(self, data: bytes, at: int):
        self._data = data
        self._at = at
        self._slots = at - _number("<i", data, at)
        self._num_bytes = _number("<H", data, self._slots)

    def place(self, slot: int) -> int:
        """Where a field lies; 0 when it is left out."""
        entry = 4 + 2 * slot
        if entry + 2 > self._num_bytes:
            return 0
        offset = _number("<H", self._data, self._slots + entry)
        return self._at + offset if offset else 0

    def number(self, slot: int, format: str) -> int:
        at = self.place(slot)
        return _number(format, self._data, at) if at else 0

    def table(self, slot: int) -> _Table:
        at = self.place(slot)
        if not at:
            raise ValueError("a part of its description is missing")
        return _Table(self._data, at + _number("<I", self._data, at))

    def structs(self, slot: int, dtype: np.dtype) -> np.ndarray:
        at = self.place(slot)
        if not at:
            return np.empty(0, dtype=dtype)
        at += _number("<I", self._data, at)
        count = _number("<I", self._data, at)
        return np.frombuffer(self._data, dtype=dtype, count=count, offset=at + 4)


def _number(format: str, data: bytes, at: int) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(format):
        raise ValueError("its description points outside itself")
    return struct.unpack_from(format, data, at)[0]


def _root(data: bytes) -> _Table:
    return _Table(data, _number("<I", data, 0))


def read_blocks(read: Read, num_bytes: int) -> tuple[list[Block], list[Block], bool]:
    """The record batches of a file, its dictionaries, and whether its numbers are little-endian."""
    tail = read(max(0, num_bytes - _TAIL_BYTES), num_bytes)
    if len(tail) < 10 or not tail.endswith(_MAGIC):
        raise ValueError("it does not end as an Arrow IPC file")
    size = _number("<i", tail, len(tail) - 10)
    if not 0 < size <= num_bytes - 10:
        raise ValueError(f"its footer claims {size:,} bytes")
    if size + 10 > len(tail):
        tail = read(num_bytes - 10 - size, num_bytes)
    footer = _root(tail[-10 - size : -10])
    batches, dictionaries = (
        [
            Block(offset, offset + head, offset + head + body)
            for offset, head, _, body in footer.structs(slot, _BLOCK).tolist()
        ]
        for slot in (_BATCHES, _DICTIONARIES)
    )
    for block in (*batches, *dictionaries):
        if not 0 <= block.start <= block.body <= block.stop <= num_bytes:
            raise ValueError("a record batch lies outside it")
    return batches, dictionaries, footer.table(1).number(0, "<h") == 0


def schema_message(read: Read, blocks: Sequence[Block], num_bytes: int) -> bytes:
    """The message that a file begins with, which lies before all of its blocks."""
    data = read(_SCHEMA, max(_SCHEMA, min((block.start for block in blocks), default=num_bytes)))
    at = 4 if data.startswith(_CONTINUATION) else 0
    return data[: at + 4 + _number("<i", data, at)]


def read_head(read: Read, block: Block) -> BatchHead:
    data = read(block.start, block.body)
    # Files of Arrow before 0.15 lack the mark.
    message = _root(data[8:] if data.startswith(_CONTINUATION) else data[4:])
    kind = message.number(1, "<B")
    if kind not in (_RECORD_BATCH, _DICTIONARY):
        raise ValueError("it has something else where a record batch was to be")
    batch = message.table(2)
    if kind == _DICTIONARY:
        batch = batch.table(1)
    num_rows = batch.number(0, "<q")
    if num_rows < 0:
        raise ValueError(f"it has a record batch of {num_rows} rows")
    nodes, (offsets, sizes) = batch.structs(1, _PAIR), batch.structs(2, _PAIR).T
    # Compared so that no sum can overflow.
    body = block.stop - block.body
    if (
        (offsets < 0).any()
        or (sizes < 0).any()
        or (sizes > body).any()
        or (offsets > body - sizes).any()
    ):
        raise ValueError("a buffer lies outside its record batch")
    buffers = np.stack([offsets, offsets + sizes], axis=1) + block.body
    return BatchHead(num_rows, nodes, buffers, batch.place(3) > 0)


def open_uncompressed(buffer: pa.Buffer) -> pa.ipc.RecordBatchFileReader:
    """An Arrow file of an index, whose arrays are bytes of it; ValueError for one that would take
    more memory than it has bytes: of compressed buffers, or such as are told of twice."""

    def read(start: int, stop: int) -> bytes:
        return buffer[start:stop].to_pybytes()

    end = 0
    batches, dictionaries, _ = read_blocks(read, buffer.size)
    for block in sorted([*batches, *dictionaries]):
        head = read_head(read, block)
        taken = sum((head.buffers[:, 1] - head.buffers[:, 0]).tolist())
        if head.is_compressed:
            raise ValueError("its buffers are compressed, as none of ours are")
        if block.start < end or taken > block.stop - block.body:
            raise ValueError("its buffers overlap")
        end = block.stop
    return pa.ipc.open_file(buffer)


def flat_places(schema: pa.Schema) -> dict[str, tuple[int, int]]:
    """The node and first buffer of each column some rows of which can be read, up to an unknown
    type."""
    return {
        field.name: (node, buffers.start)
        for field, node, buffers in _places(schema)
        if _is_text(field.type) or _bit_width(field.type)
    }


def column_buffers(schema: pa.Schema, head: BatchHead, names: Sequence[str]) -> list[Span] | None:
    """Where the buffers of some columns lie in the file; None past an unknown type."""
    places = {field.name: buffers for field, _, buffers in _places(schema)}
    if not places.keys() >= set(names):
        return None
    return [(start, stop) for name in names for start, stop in head.buffers[places[name]].tolist()]


def _places(schema: pa.Schema) -> Iterator[tuple[pa.Field, int, slice]]:
    """The columns up to an unknown type, with their first node and all their buffers."""
    node = buffer = 0
    for field in schema:
        counts = _counts(field.type)
        if counts is None:
            return
        yield field, node, slice(buffer, buffer + counts[1])
        node, buffer = node + counts[0], buffer + counts[1]


def _is_text(t: pa.DataType) -> bool:
    return pt.is_string(t) or pt.is_binary(t) or _is_large(t)


def _is_large(t: pa.DataType) -> bool:
    return pt.is_large_string(t) or pt.is_large_binary(t)


def _bit_width(t: pa.DataType) -> int:
    """Bits of a value, 0 where values have no fixed width."""
    is_number = pt.is_boolean(t) or pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t)
    is_time = pt.is_temporal(t) and not pt.is_interval(t)
    return t.bit_width if is_number or is_time or pt.is_fixed_size_binary(t) else 0


def _counts(t: pa.DataType) -> tuple[int, int] | None:
    """How many nodes and buffers an array of a type has with its children; None if not known."""
    if pt.is_null(t):
        return 1, 0
    if _bit_width(t) or pt.is_dictionary(t):
        return 1, 2
    if _is_text(t):
        return 1, 3
    is_list = pt.is_list(t) or pt.is_large_list(t)
    if not (is_list or pt.is_struct(t) or pt.is_fixed_size_list(t)):
        return None
    nodes, buffers = 1, 2 if is_list else 1
    for at in range(t.num_fields):
        inner = _counts(t.field(at).type)
        if inner is None:
            return None
        nodes, buffers = nodes + inner[0], buffers + inner[1]
    return nodes, buffers


def flat_rows(
    kind: pa.DataType, head: BatchHead, place: tuple[int, int], spans: Sequence[Span]
) -> Generator[list[Any], Sequence[bytes], None]:
    """Some rows of one column: twice it yields what to read and is sent that (validity with values
    or offsets, then text), then it yields an array a span, checked through and through."""
    node, first = place
    is_text = _is_text(kind)
    buffers = head.buffers[first : first + 2 + is_text].tolist()
    if node >= len(head.nodes) or len(buffers) < 2 + is_text:
        raise ValueError("a record batch has fewer columns than the file")
    num_rows, nulls = head.nodes[node].tolist()
    if num_rows != head.num_rows:
        raise ValueError("a record batch has columns of several lengths")
    offset_type = np.dtype("<i8" if _is_large(kind) else "<i4")
    bits = 8 * offset_type.itemsize if is_text else _bit_width(kind)
    # Bits are read by whole bytes, and everything from the same row on.
    rows = [(start // 8 * 8, stop) for start, stop in spans]
    masks: Sequence[bytes | None] = [None] * len(rows)
    has_nulls = nulls != 0 and buffers[0][0] < buffers[0][1]
    wanted = [_part(buffers[0], at // 8, -(-stop // 8)) for at, stop in rows if has_nulls]
    wanted += [
        _part(buffers[1], at * bits // 8, -(-(stop + is_text) * bits // 8)) for at, stop in rows
    ]
    data = yield wanted
    if has_nulls:
        masks = data[: len(rows)]
    contents = [[values] for values in data[-len(rows) :]]
    offsets = [np.frombuffer(values, dtype=offset_type) for (values,) in contents if is_text]
    if any(of_span[0] < 0 for of_span in offsets):
        raise ValueError("a text lies outside its buffer")
    texts = yield [_part(buffers[2], int(o[0]), int(o[-1])) for o in offsets]
    if is_text:
        contents = [[o - o[0], text] for o, text in zip(offsets, texts, strict=True)]
    arrays = []
    for (start, stop), (at, _), mask, content in zip(spans, rows, masks, contents, strict=True):
        parts = [None if part is None else pa.py_buffer(part) for part in (mask, *content)]
        array = pa.Array.from_buffers(kind, stop - start, parts, offset=start - at)
        array.validate(full=True)
        arrays.append(array)
    yield arrays


def _part(buffer: Sequence[int], first: int, last: int) -> Span:
    start, stop = buffer
    if not first <= last <= stop - start:
        raise ValueError("a buffer is shorter than its rows")
    return start + first, start + last

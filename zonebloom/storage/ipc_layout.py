"""Where the record batches of an Arrow IPC file lie, and some rows of their columns.

pyarrow reads a record batch as a whole, or some of its columns, each as a whole. A lookup wants
few rows of it: the footer names the batches, the head of each its buffers, and of columns of
fixed width, of text and of binary values the bytes of some rows are found by arithmetic.

    file    | ARROW1 | ... | head | body | head | body | ... | footer | its size i32 | ARROW1 |
    head    (0xFFFFFFFF) | size i32 | Message, a flatbuffer that describes the body

A flatbuffer is read as the Arrow format's ``File.fbs`` and ``Message.fbs`` say: a table has a
list of slots, each the place of a field; an empty slot is the field's default.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

Read = Callable[[int, int], bytes]
_Span = tuple[int, int]

_MAGIC = b"ARROW1"
_TAIL_BYTES = 16 << 10
_CONTINUATION = b"\xff\xff\xff\xff"
_RECORD_BATCH = 3
_BLOCK = np.dtype([("offset", "<i8"), ("head", "<i4"), ("padding", "<i4"), ("body", "<i8")])
_PAIR = np.dtype(("<i8", 2))


class Block(NamedTuple):
    """A record batch in its file: its head from ``start``, its body from ``body`` to ``stop``."""

    start: int
    body: int
    stop: int


class BatchHead(NamedTuple):
    """What the head of a record batch says.

    ``nodes`` has the rows and nulls of each array, ``buffers`` where each buffer begins in the
    body and its bytes; int64, shape (n, 2) each.
    """

    num_rows: int
    nodes: np.ndarray
    buffers: np.ndarray
    is_compressed: bool


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, data: bytes, at: int):
        self._data = data
        self._at = at
        self._slots = at - _number("<i", data, at)
        self._num_bytes = _number("<H", data, self._slots)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        """The table a flatbuffer is of."""
        return cls(data, _number("<I", data, 0))

    def number(self, slot: int, format: str) -> int:
        """A number; 0 by default."""
        at = self._place(slot)
        return _number(format, self._data, at) if at else 0

    def table(self, slot: int) -> _Table:
        """A table that must be there."""
        return _Table(self._data, self._pointed(slot))

    def has(self, slot: int) -> bool:
        """Whether a field is there."""
        return self._place(slot) > 0

    def structs(self, slot: int, dtype: np.dtype) -> np.ndarray:
        """A vector of structs; empty by default."""
        if not self.has(slot):
            return np.empty(0, dtype=dtype)
        at = self._pointed(slot)
        count = _number("<I", self._data, at)
        return np.frombuffer(self._data, dtype=dtype, count=count, offset=at + 4)

    def _place(self, slot: int) -> int:
        entry = 4 + 2 * slot
        if entry + 2 > self._num_bytes:
            return 0
        offset = _number("<H", self._data, self._slots + entry)
        return self._at + offset if offset else 0

    def _pointed(self, slot: int) -> int:
        at = self._place(slot)
        if not at:
            raise ValueError("a part of its description is missing")
        return at + _number("<I", self._data, at)


def _number(format: str, data: bytes, at: int) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(format):
        raise ValueError("its description points outside itself")
    return struct.unpack_from(format, data, at)[0]


def read_blocks(read: Read, num_bytes: int) -> tuple[list[Block], bool]:
    """The record batches of a file, and whether its numbers are little-endian."""
    tail = read(max(0, num_bytes - _TAIL_BYTES), num_bytes)
    if len(tail) < 10 or not tail.endswith(_MAGIC):
        raise ValueError("it does not end as an Arrow IPC file")
    size = _number("<i", tail, len(tail) - 10)
    if not 0 < size <= num_bytes - 10:
        raise ValueError(f"its footer claims {size:,} bytes")
    if size + 10 > len(tail):
        tail = read(num_bytes - 10 - size, num_bytes)
    footer = _Table.root(tail[-10 - size : -10])
    blocks = []
    for offset, head, _, body in footer.structs(3, _BLOCK).tolist():
        block = Block(offset, offset + head, offset + head + body)
        if not 0 <= block.start <= block.body <= block.stop <= num_bytes:
            raise ValueError("a record batch lies outside it")
        blocks.append(block)
    return blocks, footer.table(1).number(0, "<h") == 0


def parse_head(data: bytes) -> BatchHead:
    """What the head of a record batch says."""
    # Files of Arrow before 0.15 lack the mark.
    message = _Table.root(data[8:] if data.startswith(_CONTINUATION) else data[4:])
    if message.number(1, "<B") != _RECORD_BATCH:
        raise ValueError("it has something else where a record batch was to be")
    batch = message.table(2)
    num_rows = batch.number(0, "<q")
    if num_rows < 0:
        raise ValueError(f"it has a record batch of {num_rows} rows")
    nodes, buffers = (batch.structs(slot, _PAIR) for slot in (1, 2))
    return BatchHead(num_rows, nodes, buffers, batch.has(3))


def flat_places(schema: pa.Schema) -> dict[str, tuple[int, int]]:
    """Of columns some rows of which can be read: which node and first buffer are theirs.

    Columns after one of a type not known here are left out.
    """
    places: dict[str, tuple[int, int]] = {}
    node = buffer = 0
    for field in schema:
        if _is_text(field.type) or _bit_width(field.type):
            places[field.name] = node, buffer
        counts = _counts(field.type)
        if counts is None:
            break
        node, buffer = node + counts[0], buffer + counts[1]
    return places


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


class FlatRows:
    """Some rows of one column of a record batch: what to read, and the arrays of it."""

    def __init__(
        self,
        arrow_type: pa.DataType,
        head: BatchHead,
        place: tuple[int, int],
        block: Block,
        spans: Sequence[_Span],
    ):
        self._type = arrow_type
        self._is_text = _is_text(arrow_type)
        node, buffer = place
        count = 3 if self._is_text else 2
        if node >= len(head.nodes) or buffer + count > len(head.buffers):
            raise ValueError("a record batch has fewer columns than the file")
        rows, nulls = head.nodes[node].tolist()
        if rows != head.num_rows:
            raise ValueError("a record batch has columns of several lengths")
        self._buffers: list[_Span] = []
        for offset, size in head.buffers[buffer : buffer + count].tolist():
            start = block.body + offset
            if offset < 0 or size < 0 or start + size > block.stop:
                raise ValueError("a buffer lies outside its record batch")
            self._buffers.append((start, start + size))
        # Bits are read by whole bytes, and everything from the same row on.
        self._spans = [(start // 8 * 8, stop) for start, stop in spans]
        self._skipped = [start % 8 for start, _ in spans]
        self._has_nulls = nulls != 0 and self._buffers[0][0] < self._buffers[0][1]
        self._bits = 8 * self._offset_type.itemsize if self._is_text else _bit_width(arrow_type)
        self._firsts: list[np.ndarray] = []
        self._found: list[bytes] = []

    @property
    def _offset_type(self) -> np.dtype:
        return np.dtype("<i8" if _is_large(self._type) else "<i4")

    def ranges(self) -> list[_Span]:
        """What to read first: of each span the validity if there are nulls, then the rest."""
        more = 1 if self._is_text else 0
        wanted = []
        for start, stop in self._spans:
            if self._has_nulls:
                wanted.append(self._part(0, start // 8, -(-stop // 8)))
            ends = start * self._bits // 8, -(-(stop + more) * self._bits // 8)
            wanted.append(self._part(1, *ends))
        return wanted

    def values(self, found: Sequence[bytes]) -> list[_Span]:
        """What to read then, given what was read first: the bytes of text."""
        self._found = list(found)
        if not self._is_text:
            return []
        wanted = []
        for data in found[1::2] if self._has_nulls else found:
            offsets = np.frombuffer(data, dtype=self._offset_type)
            first, last = int(offsets[0]), int(offsets[-1])
            if first < 0:
                raise ValueError("a text lies outside its buffer")
            wanted.append(self._part(2, first, last))
            self._firsts.append(offsets - offsets[0])
        return wanted

    def arrays(self, values: Sequence[bytes]) -> list[pa.Array]:
        """The arrays, one a span, given what was read then; checked through and through."""
        arrays = []
        step = 2 if self._has_nulls else 1
        for number, (start, stop) in enumerate(self._spans):
            *validity, data = self._found[step * number : step * (number + 1)]
            buffers = [pa.py_buffer(validity[0]) if validity else None, pa.py_buffer(data)]
            if self._is_text:
                buffers[1:] = [pa.py_buffer(self._firsts[number]), pa.py_buffer(values[number])]
            skipped = self._skipped[number]
            array = pa.Array.from_buffers(
                self._type, stop - start - skipped, buffers, offset=skipped
            )
            array.validate(full=True)
            arrays.append(array)
        return arrays

    def _part(self, buffer: int, first: int, last: int) -> _Span:
        start, stop = self._buffers[buffer]
        if not first <= last <= stop - start:
            raise ValueError("a buffer is shorter than its rows")
        return start + first, start + last

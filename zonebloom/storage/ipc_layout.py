"""Locate the record batches of an Arrow IPC file, without reading them.

file    | ARROW1 | schema | head | body | head | body | ... | footer | its size i32 | ARROW1 |
head    (0xFFFFFFFF) | size i32 | Message, a flatbuffer (Message.fbs) that describes the body
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

Read = Callable[[int, int], bytes]

_ARROW_MAGIC = b"ARROW1"
# The schema's message begins after the magic bytes and their padding.
_SCHEMA_START = 8
_FOOTER_READ_BYTES = 16 << 10
_CONTINUATION = b"\xff\xff\xff\xff"
_RECORD_BATCH, _DICTIONARY = 3, 2
# Slots of the footer that list the record batches and the dictionaries.
_BATCHES_SLOT, _DICTIONARIES_SLOT = 3, 2
_BLOCK_TYPE = np.dtype([("offset", "<i8"), ("head", "<i4"), ("padding", "<i4"), ("body", "<i8")])
_PAIR_TYPE = np.dtype(("<i8", 2))


class Block(NamedTuple):
    """The position of a record batch: its head begins at `start`, its body ends at `stop`."""

    start: int
    body_start: int
    stop: int


class BatchHead(NamedTuple):
    """The description of a record batch: lengths of its arrays and ranges of its buffers."""

    num_rows: int
    nodes: np.ndarray
    buffers: np.ndarray
    is_compressed: bool


class _FlatbufferTable:
    """A table in a flatbuffer, whose fields are read by their slot."""

    def __init__(self, data: bytes, offset: int):
        self._data = data
        self._offset = offset
        self._vtable = offset - _unpack("<i", data, offset)
        self._vtable_bytes = _unpack("<H", data, self._vtable)

    def field_offset(self, slot: int) -> int:
        """Return the offset of a field, or 0 if the table omits it."""
        entry = 4 + 2 * slot
        if entry + 2 > self._vtable_bytes:
            return 0
        offset = _unpack("<H", self._data, self._vtable + entry)
        return self._offset + offset if offset else 0

    def number(self, slot: int, format: str) -> int:
        offset = self.field_offset(slot)
        return _unpack(format, self._data, offset) if offset else 0

    def table(self, slot: int) -> _FlatbufferTable:
        offset = self.field_offset(slot)
        if not offset:
            raise ValueError("a part of its metadata is missing")
        return _FlatbufferTable(self._data, offset + _unpack("<I", self._data, offset))

    def structs(self, slot: int, dtype: np.dtype) -> np.ndarray:
        offset = self.field_offset(slot)
        if not offset:
            return np.empty(0, dtype=dtype)
        offset += _unpack("<I", self._data, offset)
        count = _unpack("<I", self._data, offset)
        return np.frombuffer(self._data, dtype=dtype, count=count, offset=offset + 4)


def _unpack(format: str, data: bytes, offset: int) -> int:
    if not 0 <= offset <= len(data) - struct.calcsize(format):
        raise ValueError("its metadata has an offset outside the metadata")
    return struct.unpack_from(format, data, offset)[0]


def _root_table(data: bytes) -> _FlatbufferTable:
    return _FlatbufferTable(data, _unpack("<I", data, 0))


def read_footer_blocks(read: Read, num_bytes: int) -> tuple[list[Block], list[Block], bool]:
    """Return the blocks of record batches, those of dictionaries, and if it is little-endian."""
    tail = read(max(0, num_bytes - _FOOTER_READ_BYTES), num_bytes)
    if len(tail) < 10 or not tail.endswith(_ARROW_MAGIC):
        raise ValueError("it does not end as an Arrow IPC file")
    size = _unpack("<i", tail, len(tail) - 10)
    if not 0 < size <= num_bytes - 10:
        raise ValueError(f"its footer claims {size:,} bytes")
    if size + 10 > len(tail):
        tail = read(num_bytes - 10 - size, num_bytes)
    footer = _root_table(tail[-10 - size : -10])
    batches, dictionaries = (
        [
            Block(offset, offset + head, offset + head + body)
            for offset, head, _, body in footer.structs(slot, _BLOCK_TYPE).tolist()
        ]
        for slot in (_BATCHES_SLOT, _DICTIONARIES_SLOT)
    )
    for block in (*batches, *dictionaries):
        if not 0 <= block.start <= block.body_start <= block.stop <= num_bytes:
            raise ValueError("a record batch lies outside it")
    return batches, dictionaries, footer.table(1).number(0, "<h") == 0


def schema_message(read: Read, blocks: Sequence[Block], num_bytes: int) -> bytes:
    """Return the message at the beginning of a file, before its first block."""
    first_block = min((block.start for block in blocks), default=num_bytes)
    data = read(_SCHEMA_START, max(_SCHEMA_START, first_block))
    size_offset = 4 if data.startswith(_CONTINUATION) else 0
    return data[: size_offset + 4 + _unpack("<i", data, size_offset)]


def read_batch_head(read: Read, block: Block) -> BatchHead:
    data = read(block.start, block.body_start)
    # Arrow before 0.15 did not write the continuation mark.
    message = _root_table(data[8:] if data.startswith(_CONTINUATION) else data[4:])
    kind = message.number(1, "<B")
    if kind not in (_RECORD_BATCH, _DICTIONARY):
        raise ValueError("a message of another kind stands in place of a record batch")
    batch = message.table(2)
    if kind == _DICTIONARY:
        batch = batch.table(1)
    num_rows = batch.number(0, "<q")
    if num_rows < 0:
        raise ValueError(f"it has a record batch of {num_rows} rows")
    nodes, (offsets, sizes) = batch.structs(1, _PAIR_TYPE), batch.structs(2, _PAIR_TYPE).T
    # These comparisons are written so that no sum can overflow.
    body_bytes = block.stop - block.body_start
    if (
        (offsets < 0).any()
        or (sizes < 0).any()
        or (sizes > body_bytes).any()
        or (offsets > body_bytes - sizes).any()
    ):
        raise ValueError("a buffer lies outside its record batch")
    buffers = np.stack([offsets, offsets + sizes], axis=1) + block.body_start
    return BatchHead(num_rows, nodes, buffers, batch.field_offset(3) > 0)


def open_uncompressed(buffer: pa.Buffer) -> pa.ipc.RecordBatchFileReader:
    """Open an Arrow file of an index without copying, so that its arrays point into the buffer.

    Raise ValueError if it has compressed or overlapping buffers. Such a file could take more
    memory than it has bytes.
    """

    def read(start: int, stop: int) -> bytes:
        return buffer[start:stop].to_pybytes()

    end = 0
    batches, dictionaries, _ = read_footer_blocks(read, buffer.size)
    for block in sorted([*batches, *dictionaries]):
        head = read_batch_head(read, block)
        buffer_bytes = sum((head.buffers[:, 1] - head.buffers[:, 0]).tolist())
        if head.is_compressed:
            raise ValueError("its buffers are compressed, which index files never are")
        if block.start < end or buffer_bytes > block.stop - block.body_start:
            raise ValueError("its buffers overlap")
        end = block.stop
    return pa.ipc.open_file(buffer)

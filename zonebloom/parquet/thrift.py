"""Read and write Thrift's compact protocol, as far as Parquet's metadata needs it.

Integers are zigzag varints. A field begins with a byte ``delta << 4 | type``, or with the type and
its number. A list begins with a byte ``size << 4 | type``, or with ``0xF0 | type`` and its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from zonebloom.errors import FragmentUnreadable
from zonebloom.sbbf.header import varint

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(14)

Bytes = bytes | memoryview

_MAX_DEPTH = 32
_SHIFT_LIMIT = 63


class MalformedThrift(FragmentUnreadable):
    """Raised for bytes that violate the compact protocol."""


class Struct(dict[int, Any]):
    """The fields of a struct by number. ``start`` and ``stop`` are its place in the bytes."""

    __slots__ = ("start", "stop")

    def __init__(self, start: int):
        super().__init__()
        self.start = start
        self.stop = start


class ThriftReader:
    """Reads values from untrusted bytes. ``at`` is the offset of the next value."""

    __slots__ = ("at", "data")

    def __init__(self, data: Bytes, at: int = 0):
        self.data = data
        self.at = at

    def read_varint(self) -> int:
        """Read an unsigned integer of at most 64 bits."""
        value, self.at = _call_in_bounds(_read_varint, self.data, self.at)
        return value

    def zigzag(self) -> int:
        """Read a signed integer."""
        value = self.read_varint()
        return (value >> 1) ^ -(value & 1)

    def read_struct(self) -> Struct:
        result, self.at = _call_in_bounds(_read_struct, self.data, self.at, 0)
        return result

    def read_value(self, kind: int) -> Any:
        """Read a value of a type."""
        value, self.at = _call_in_bounds(_read_value, self.data, self.at, kind, 0)
        return value

    def find_field(self, wanted: int) -> int:
        """Move to the value of a field of the struct at this place, and return its offset."""
        number = 0
        while True:
            header = self.read_value(BYTE)
            kind = header & 0x0F
            if kind == STOP:
                raise MalformedThrift(f"a struct has no field {wanted}")
            number = number + (header >> 4) if header >> 4 else self.zigzag()
            if number == wanted:
                return self.at
            if kind > FALSE:
                self.read_value(kind)


def _call_in_bounds(read: Callable[..., tuple[Any, int]], *args: Any) -> tuple[Any, int]:
    try:
        return read(*args)
    except IndexError:
        raise MalformedThrift("the bytes end inside a value") from None


# Builds parse the footers of thousands of small files. Functions that get and return the offset
# take half of the time of methods that keep it in an attribute. They let bytes that end too early
# raise `IndexError`.


def _read_varint(data: Bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    result, shift = byte & 0x7F, 0
    while byte >= 0x80:
        at += 1
        shift += 7
        if shift > _SHIFT_LIMIT:
            raise MalformedThrift("a varint is longer than 64 bits")
        byte = data[at]
        result |= (byte & 0x7F) << shift
    return result, at + 1


def _read_struct(data: Bytes, at: int, depth: int) -> tuple[Struct, int]:
    """Read a struct, which is nested in ``depth`` others."""
    if depth > _MAX_DEPTH:
        raise MalformedThrift("structs are nested too deep")
    result = Struct(at)
    number = 0
    while True:
        header = data[at]
        at += 1
        kind = header & 0x0F
        if kind == STOP:
            result.stop = at
            return result, at
        if header >> 4:
            number += header >> 4
        else:
            raw, at = _read_varint(data, at)
            number = (raw >> 1) ^ -(raw & 1)
        if kind <= FALSE:
            result[number] = kind == TRUE
        elif I16 <= kind <= I64:
            raw = data[at]
            at += 1
            if raw >= 0x80:
                raw, at = _read_varint(data, at - 1)
            result[number] = (raw >> 1) ^ -(raw & 1)
        elif kind == BINARY:
            size, at = _read_varint(data, at)
            result[number], at = _read_bytes(data, at, size)
        elif kind == STRUCT:
            result[number], at = _read_struct(data, at, depth + 1)
        else:
            result[number], at = _read_value(data, at, kind, depth)


def _read_value(data: Bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind == BINARY:
        size, at = _read_varint(data, at)
        return _read_bytes(data, at, size)
    if kind == STRUCT:
        return _read_struct(data, at, depth + 1)
    if kind in (LIST, SET):
        return _read_list(data, at, depth)
    if I16 <= kind <= I64:
        raw, at = _read_varint(data, at)
        return (raw >> 1) ^ -(raw & 1), at
    if kind in (BYTE, TRUE, FALSE):
        # Only an element of a map comes here as a boolean. It is stored as a byte.
        return data[at], at + 1
    if kind == DOUBLE:
        return _read_bytes(data, at, 8)
    if kind == UUID:
        return _read_bytes(data, at, 16)
    if kind == MAP:
        return _read_map(data, at, depth)
    raise MalformedThrift(f"there is no type {kind}")


def _require(data: Bytes, at: int, size: int) -> None:
    if size > len(data) - at:
        raise MalformedThrift(f"it claims at least {size} bytes, but {len(data) - at} are left")


def _read_bytes(data: Bytes, at: int, size: int) -> tuple[bytes, int]:
    stop = at + size
    if stop > len(data):
        _require(data, at, size)
    return bytes(data[at:stop]), stop


def _read_list(data: Bytes, at: int, depth: int) -> tuple[list[Any], int]:
    header = data[at]
    at += 1
    kind, size = header & 0x0F, header >> 4
    if size == 0x0F:
        size, at = _read_varint(data, at)
    # Each element takes at least one byte, and a struct that is not empty two.
    _require(data, at, size * (2 if kind == STRUCT else 1))
    if kind <= FALSE:
        return [byte == TRUE for byte in data[at : at + size]], at + size
    if depth > _MAX_DEPTH:
        raise MalformedThrift("lists are nested too deep")
    items: list[Any] = []
    for _ in range(size):
        if kind == STRUCT:
            item, at = _read_struct(data, at, depth + 2)
        else:
            item, at = _read_value(data, at, kind, depth + 1)
        items.append(item)
    return items, at


def _read_map(data: Bytes, at: int, depth: int) -> tuple[list[tuple[Any, Any]], int]:
    size, at = _read_varint(data, at)
    if size == 0:
        return [], at
    if depth > _MAX_DEPTH:
        raise MalformedThrift("maps are nested too deep")
    kinds = data[at]
    at += 1
    _require(data, at, size)
    items = []
    for _ in range(size):
        key, at = _read_value(data, at, kinds >> 4, depth + 1)
        value, at = _read_value(data, at, kinds & 0x0F, depth + 1)
        items.append((key, value))
    return items, at


def encode_integer(value: int) -> bytes:
    """Return a signed 64-bit integer as a zigzag varint."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def encode_binary(value: bytes) -> bytes:
    """Return bytes after their length."""
    return varint(len(value)) + value


def encode_list(kind: int, items: Iterable[bytes]) -> bytes:
    """Return a list of encoded elements of one type."""
    encoded = list(items)
    size = len(encoded)
    header = bytes([size << 4 | kind]) if size < 0x0F else bytes([0xF0 | kind]) + varint(size)
    return header + b"".join(encoded)


def encode_struct(fields: Iterable[tuple[int, int, bytes]], after: int = 0) -> bytes:
    """Return a struct of encoded fields (number, type, value) with ascending numbers.

    If ``after`` is given, return only the end of a struct, after the field of that number.
    """
    out = bytearray()
    last = after
    for number, kind, value in fields:
        delta = number - last
        out += (
            bytes([delta << 4 | kind])
            if 0 < delta < 0x10
            else bytes([kind]) + encode_integer(number)
        )
        out += value
        last = number
    out.append(STOP)
    return bytes(out)

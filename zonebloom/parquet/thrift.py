"""Read and write Thrift's compact protocol, as far as Parquet's metadata needs it.

Integers are zigzag varints. A field begins with a byte ``delta << 4 | type``, or with the type and
its number. A list begins with a byte ``size << 4 | type``, or with ``0xF0 | type`` and its size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zonebloom.errors import FragmentUnreadable
from zonebloom.sbbf.header import varint

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(14)

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

    __slots__ = ("at", "data", "stop")

    def __init__(self, data: bytes | memoryview, at: int = 0):
        self.data = data
        self.at = at
        self.stop = len(data)

    def read_varint(self) -> int:
        """Read an unsigned integer of at most 64 bits."""
        data, at, result, shift = self.data, self.at, 0, 0
        try:
            while True:
                byte = data[at]
                at += 1
                result |= (byte & 0x7F) << shift
                if byte < 0x80:
                    self.at = at
                    return result
                shift += 7
                if shift > _SHIFT_LIMIT:
                    raise MalformedThrift("a varint is longer than 64 bits")
        except IndexError:
            raise MalformedThrift("the bytes end inside a varint") from None

    def zigzag(self) -> int:
        """Read a signed integer."""
        value = self.read_varint()
        return (value >> 1) ^ -(value & 1)

    def read_struct(self, depth: int = 0) -> Struct:
        """Read a struct, which is nested in ``depth`` others."""
        if depth > _MAX_DEPTH:
            raise MalformedThrift("structs are nested too deep")
        result = Struct(self.at)
        number = 0
        while True:
            header = self._byte()
            kind = header & 0x0F
            if kind == STOP:
                result.stop = self.at
                return result
            delta = header >> 4
            number = number + delta if delta else self.zigzag()
            result[number] = kind == TRUE if kind <= FALSE else self._value(kind, depth)

    def find_field(self, wanted: int) -> int:
        """Move to the value of a field of the struct at this place, and return its offset."""
        number = 0
        while True:
            header = self._byte()
            kind = header & 0x0F
            if kind == STOP:
                raise MalformedThrift(f"a struct has no field {wanted}")
            number = number + (header >> 4) if header >> 4 else self.zigzag()
            if number == wanted:
                return self.at
            if kind > FALSE:
                self._value(kind, 0)

    def _byte(self) -> int:
        if self.at >= self.stop:
            raise MalformedThrift("the bytes end inside a struct")
        byte = self.data[self.at]
        self.at += 1
        return byte

    def _value(self, kind: int, depth: int) -> Any:
        if I16 <= kind <= I64:
            return self.zigzag()
        if kind == BINARY:
            return self._bytes(self.read_varint())
        if kind == STRUCT:
            return self.read_struct(depth + 1)
        if kind in (LIST, SET):
            return self._list(depth)
        if kind in (BYTE, TRUE, FALSE):
            # Only an element of a map comes here as a boolean. It is stored as a byte.
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(8)
        if kind == UUID:
            return self._bytes(16)
        if kind == MAP:
            return self._map(depth)
        raise MalformedThrift(f"there is no type {kind}")

    def _require(self, size: int) -> None:
        remaining = self.stop - self.at
        if size > remaining:
            raise MalformedThrift(f"it claims at least {size} bytes, but {remaining} are left")

    def _bytes(self, size: int) -> bytes:
        self._require(size)
        self.at += size
        return bytes(self.data[self.at - size : self.at])

    def _list(self, depth: int) -> list[Any]:
        header = self._byte()
        kind, size = header & 0x0F, header >> 4
        if size == 0x0F:
            size = self.read_varint()
        # Each element takes at least one byte, and a struct that is not empty two.
        self._require(size * (2 if kind == STRUCT else 1))
        if kind <= FALSE:
            return [self._byte() == TRUE for _ in range(size)]
        if depth > _MAX_DEPTH:
            raise MalformedThrift("lists are nested too deep")
        if I16 <= kind <= I64:
            return [self.zigzag() for _ in range(size)]
        return [self._value(kind, depth + 1) for _ in range(size)]

    def _map(self, depth: int) -> list[tuple[Any, Any]]:
        size = self.read_varint()
        if size == 0:
            return []
        if depth > _MAX_DEPTH:
            raise MalformedThrift("maps are nested too deep")
        kinds = self._byte()
        self._require(size)
        return [
            (self._value(kinds >> 4, depth + 1), self._value(kinds & 0x0F, depth + 1))
            for _ in range(size)
        ]


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

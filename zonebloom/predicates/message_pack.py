"""Decode MessagePack, in which Polars serializes expressions as bytes.

In JSON, a list of a million keys takes ten times as long, because each byte of it is a number.
"""

from __future__ import annotations

import math
import struct
from typing import Any

_NIL, _FALSE, _TRUE = 0xC0, 0xC2, 0xC3
_INT128_BYTES = 16
# By the first byte of a value: the format of the number that follows it.
_NUMBERS = {
    **{0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"},
    **{0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"},
}
# By the first byte of a value: the format of the size that follows it.
_BYTES_SIZES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_TEXT_SIZES = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_ARRAY_SIZES = {0xDC: ">H", 0xDD: ">I"}
_MAP_SIZES = {0xDE: ">H", 0xDF: ">I"}


def unpack(data: bytes) -> Any:
    """Return the value that the bytes hold, as `json.loads` would return it for the JSON of Polars.

    Integers of 128 bits are signed. NaN and infinities are None. Other bytes stay bytes.

    Raises
    ------
    ValueError
        If the bytes are not one value.
    RecursionError
        If values are nested too deep.
    """
    unpacker = _Unpacker(data)
    try:
        value = unpacker.value()
    except (IndexError, struct.error):
        raise ValueError("the bytes end within a value") from None
    if unpacker.position != len(data):
        raise ValueError("bytes follow the value")
    return value


class _Unpacker:
    def __init__(self, data: bytes):
        self._data = data
        self.position = 0

    def value(self) -> Any:
        kind = self._data[self.position]
        self.position += 1
        if kind < 0x80:
            return kind
        if kind >= 0xE0:
            return kind - 0x100
        if kind < 0x90:
            return self._map(kind & 0x0F)
        if kind < 0xA0:
            return [self.value() for _ in range(kind & 0x0F)]
        if kind < 0xC0:
            return self._bytes(kind & 0x1F).decode()
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind in _BYTES_SIZES:
            data = self._bytes(self._size(_BYTES_SIZES[kind]))
            is_int128 = len(data) == _INT128_BYTES
            return int.from_bytes(data, "big", signed=True) if is_int128 else data
        if kind in _TEXT_SIZES:
            return self._bytes(self._size(_TEXT_SIZES[kind])).decode()
        if kind in _ARRAY_SIZES:
            return [self.value() for _ in range(self._size(_ARRAY_SIZES[kind]))]
        if kind in _MAP_SIZES:
            return self._map(self._size(_MAP_SIZES[kind]))
        if kind in (_NIL, _FALSE, _TRUE):
            return {_NIL: None, _FALSE: False, _TRUE: True}[kind]
        raise ValueError(f"no value begins with the byte {kind}")

    def _map(self, size: int) -> dict[Any, Any]:
        values = {}
        for _ in range(size):
            key = self.value()
            values[key] = self.value()
        return values

    def _number(self, format: str) -> int | float | None:
        (number,) = struct.unpack_from(format, self._data, self.position)
        self.position += struct.calcsize(format)
        return number if isinstance(number, int) or math.isfinite(number) else None

    def _size(self, format: str) -> int:
        (size,) = struct.unpack_from(format, self._data, self.position)
        self.position += struct.calcsize(format)
        return size

    def _bytes(self, size: int) -> bytes:
        data = self._data[self.position : self.position + size]
        if len(data) != size:
            raise ValueError("the bytes end within a value")
        self.position += size
        return data

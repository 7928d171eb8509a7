"""Parquet files with another footer: the statistics and the writer's name that tests need."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zonebloom.parquet import thrift

# FileMetaData, parquet.thrift.
ROW_GROUPS, CREATED_BY, COLUMN_ORDERS = 4, 6, 7
COLUMNS, META_DATA, STATISTICS = 1, 3, 12
# Statistics.
MAX, MIN, NULL_COUNT, MAX_VALUE, MIN_VALUE = 1, 2, 3, 5, 6

Fields = dict[int, tuple[int, Any]]
"""A struct: its fields' types and values, by number."""


def rewrite(path: Path, change: Callable[[Fields], None]) -> None:
    """Change the footer of a file in place."""
    data = path.read_bytes()
    (size,) = struct.unpack("<I", data[-8:-4])
    body = len(data) - 8 - size
    footer = _Typed(data[body:-8]).fields()
    change(footer)
    encoded = _encoded(thrift.STRUCT, footer)
    path.write_bytes(data[:body] + encoded + struct.pack("<I", len(encoded)) + b"PAR1")


def set_statistics(path: Path, column: int, **known: bytes | int | None) -> None:
    """Give a column's chunks these statistics and no others, as a writer of old times.

    Parameters
    ----------
    path : Path
    column : int
    **known : bytes or int
        Of minimum, maximum (deprecated), min_value, max_value and null_count; and created_by,
        None for no name.
    """
    numbers = {
        "maximum": MAX,
        "minimum": MIN,
        "null_count": NULL_COUNT,
        "max_value": MAX_VALUE,
        "min_value": MIN_VALUE,
    }

    def change(footer: Fields) -> None:
        if "created_by" in known:
            writer = known["created_by"]
            footer.pop(CREATED_BY, None)
            if isinstance(writer, bytes):
                footer[CREATED_BY] = thrift.BINARY, writer
        if "minimum" in known:
            # Deprecated bounds are asked only where the file names no order.
            footer.pop(COLUMN_ORDERS, None)
        for group in footer[ROW_GROUPS][1][1]:
            chunk = group[COLUMNS][1][1][column][META_DATA][1]
            chunk[STATISTICS] = (
                thrift.STRUCT,
                {
                    number: (thrift.I64 if isinstance(known[name], int) else thrift.BINARY, value)
                    for name, number in numbers.items()
                    if (value := known.get(name)) is not None
                },
            )

    rewrite(path, change)


class _Typed(thrift.ThriftReader):
    """Keeps the type of each field, so that all can be written again."""

    def fields(self) -> Fields:
        found: Fields = {}
        number = 0
        while header := self.data[self.at]:
            self.at += 1
            kind = header & 0x0F
            number = number + (header >> 4) if header >> 4 else self.zigzag()
            found[number] = kind, None if kind <= thrift.FALSE else self.value(kind)
        self.at += 1
        return found

    def value(self, kind: int) -> Any:
        if kind == thrift.STRUCT:
            return self.fields()
        if kind in (thrift.LIST, thrift.SET):
            header = self.data[self.at]
            self.at += 1
            size = header >> 4 if header >> 4 != 0x0F else self.read_varint()
            return header & 0x0F, [self.value(header & 0x0F) for _ in range(size)]
        return self._value(kind, 0)


def _encoded(kind: int, value: Any) -> bytes:
    match kind:
        case thrift.TRUE | thrift.FALSE:
            return b"" if value is None else bytes([value])
        case thrift.BYTE:
            return bytes([value])
        case thrift.I16 | thrift.I32 | thrift.I64:
            return thrift.encode_integer(value)
        case thrift.BINARY:
            return thrift.encode_binary(value)
        case thrift.DOUBLE:
            return value
        case thrift.LIST | thrift.SET:
            of, items = value
            return thrift.encode_list(of, [_encoded(of, each) for each in items])
        case thrift.STRUCT:
            ordered = sorted(value.items())
            return thrift.encode_struct((number, k, _encoded(k, v)) for number, (k, v) in ordered)
    raise ValueError(kind)

"""Change the footers of Parquet files, to set statistics and the name of the writer."""

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
"""The fields of a struct. Each field number maps to the field's type and value."""


def rewrite(path: Path, change: Callable[[Fields], None]) -> None:
    """Change the footer of a file in place."""
    data = path.read_bytes()
    (size,) = struct.unpack("<I", data[-8:-4])
    body = len(data) - 8 - size
    footer = _Typed(data[body:-8]).fields()
    change(footer)
    encoded = _encoded(thrift.STRUCT, footer)
    path.write_bytes(data[:body] + encoded + struct.pack("<I", len(encoded)) + b"PAR1")


def set_statistics(path: Path, column: int, **statistics: bytes | int | None) -> None:
    """Replace the statistics of a column's chunks, as older writers stored them.

    Parameters
    ----------
    path : Path
    column : int
    **known : bytes or int
        The values of minimum, maximum (both deprecated), min_value, max_value, null_count and
        created_by. ``created_by=None`` removes the name of the writer.
    """
    numbers = {
        "maximum": MAX,
        "minimum": MIN,
        "null_count": NULL_COUNT,
        "max_value": MAX_VALUE,
        "min_value": MIN_VALUE,
    }

    def change(footer: Fields) -> None:
        if "created_by" in statistics:
            writer = statistics["created_by"]
            footer.pop(CREATED_BY, None)
            if isinstance(writer, bytes):
                footer[CREATED_BY] = thrift.BINARY, writer
        if "minimum" in statistics:
            # Readers use the deprecated bounds only if the file has no column orders.
            footer.pop(COLUMN_ORDERS, None)
        for group in footer[ROW_GROUPS][1][1]:
            chunk = group[COLUMNS][1][1][column][META_DATA][1]
            chunk[STATISTICS] = (
                thrift.STRUCT,
                {
                    number: (
                        thrift.I64 if isinstance(statistics[name], int) else thrift.BINARY,
                        value,
                    )
                    for name, number in numbers.items()
                    if (value := statistics.get(name)) is not None
                },
            )

    rewrite(path, change)


class _Typed(thrift.ThriftReader):
    """A reader that returns the types of fields too, so that structs can be encoded again."""

    def fields(self) -> Fields:
        fields: Fields = {}
        number = 0
        while header := self.data[self.at]:
            self.at += 1
            kind = header & 0x0F
            number = number + (header >> 4) if header >> 4 else self.zigzag()
            fields[number] = kind, None if kind <= thrift.FALSE else self.value(kind)
        self.at += 1
        return fields

    def value(self, kind: int) -> Any:
        if kind == thrift.STRUCT:
            return self.fields()
        if kind in (thrift.LIST, thrift.SET):
            header = self.data[self.at]
            self.at += 1
            size = header >> 4 if header >> 4 != 0x0F else self.read_varint()
            return header & 0x0F, [self.value(header & 0x0F) for _ in range(size)]
        return self.read_value(kind)


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
            return thrift.encode_list(of, [_encoded(of, item) for item in items])
        case thrift.STRUCT:
            ordered = sorted(value.items())
            return thrift.encode_struct((number, k, _encoded(k, v)) for number, (k, v) in ordered)
    raise ValueError(kind)

"""Write and read the header that precedes the blocks of a filter in a Parquet file.

This is Parquet's BloomFilterHeader in Thrift's compact protocol. Only ``numBytes``, a zigzag
varint, differs between filters, so the other bytes are compared with constants. A header with other
bytes is refused, because it could change the meaning of the blocks.
"""

from __future__ import annotations

import re

from zonebloom.errors import InvalidArgument
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, MAX_BYTES

MAX_HEADER_BYTES = 19

_SIZE = b"\x15"
# Algorithm, hash and compression are three unions, each written as: field of the union, field of
# its member, end of the member, end of the union.
_UNIONS = b"\x1c\x1c\0\0" * 3 + b"\0"
_HEADER = re.compile(_SIZE + rb"([\x80-\xff]{0,4}[\0-\x7f])" + re.escape(_UNIONS), re.DOTALL)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_header(num_bytes: int) -> bytes:
    return _SIZE + varint(num_bytes << 1) + _UNIONS


def decode_header(data: bytes) -> tuple[int, int]:
    """Decode the header at the start of ``data``. Return the bytes of the blocks and of itself."""
    header = _HEADER.match(data)
    if header is None:
        raise InvalidArgument(
            "a Bloom filter header is cut short, or not that of split blocks with XXH64 and "
            "without compression"
        )
    zigzag = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(header[1]))
    num_bytes = (zigzag >> 1) ^ -(zigzag & 1)
    if not 0 < num_bytes <= MAX_BYTES or num_bytes % BYTES_PER_BLOCK:
        raise InvalidArgument(
            f"a Bloom filter header claims {num_bytes} bytes: that is not whole blocks of "
            f"{BYTES_PER_BLOCK} bytes, or more than 128 MiB"
        )
    return num_bytes, header.end()

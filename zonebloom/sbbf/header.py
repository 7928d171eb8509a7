"""The header before a filter's blocks in a Parquet file: BloomFilterHeader in compact Thrift.

    field 1   numBytes      i32      size of the blocks
    field 2   algorithm     union    1: BLOCK, the split-block filter
    field 3   hash          union    1: XXHASH
    field 4   compression   union    1: UNCOMPRESSED

Source: parquet.thrift of the Parquet format; each of these unions has one member, an empty
struct. A field's header is a byte ``delta << 4 | type``, its type 5 for an i32 and 12 for a
struct or union; a zero byte ends a struct. A header with anything more is refused: what it
would add might change what the blocks mean.
"""

from __future__ import annotations

from zonebloom.errors import InvalidArgument
from zonebloom.sbbf.sizing import BYTES_PER_BLOCK, MAX_LOG2_BYTES

# A header as all known writers encode it takes at most 19 bytes; longer varints a few more.
MAX_HEADER_BYTES = 64

_STOP, _I32, _STRUCT = 0, 5, 12
_MAX_FILTER_BYTES = 1 << MAX_LOG2_BYTES
_VARINT_BYTES = 5
_UNIONS = {2: "algorithm", 3: "hash", 4: "compression"}
_MEMBERS = {2: "split blocks", 3: "XXH64", 4: "no compression"}


def encode_header(num_bytes: int) -> bytes:
    """Encode the header of a filter whose blocks take ``num_bytes`` bytes."""
    zigzag = num_bytes << 1
    varint = bytearray()
    while zigzag > 0x7F:
        varint.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    varint.append(zigzag)
    # The union's field, its only member's, the end of the member, the end of the union.
    union = bytes([1 << 4 | _STRUCT, 1 << 4 | _STRUCT, _STOP, _STOP])
    return bytes([1 << 4 | _I32]) + varint + union * len(_UNIONS) + bytes([_STOP])


def decode_header(data: bytes) -> tuple[int, int]:
    """Read a header.

    Parameters
    ----------
    data : bytes
        Begins with the header; what follows it is not looked at.

    Returns
    -------
    num_bytes : int
        Size of the blocks, which follow the header.
    header_bytes : int
        Size of the header.

    Raises
    ------
    InvalidArgument
        When it is malformed, of another algorithm, hash or compression, or claims a size that
        is not one or more whole blocks of at most 128 MiB in all.
    """
    reader = _Reader(bytes(data[:MAX_HEADER_BYTES]))
    num_bytes: int | None = None
    seen: set[int] = set()
    number = 0
    while (field := reader.field(number)) is not None:
        number, kind = field
        if number in seen:
            raise InvalidArgument(f"a Bloom filter header has field {number} twice")
        seen.add(number)
        if number == 1 and kind == _I32:
            num_bytes = reader.zigzag()
        elif number in _UNIONS and kind == _STRUCT:
            _expect_first_member(reader, number)
        else:
            raise InvalidArgument(f"a Bloom filter header has field {number} of type {kind}")
    if num_bytes is None or len(seen) != 1 + len(_UNIONS):
        raise InvalidArgument("a Bloom filter header lacks a field")
    if not 0 < num_bytes <= _MAX_FILTER_BYTES or num_bytes % BYTES_PER_BLOCK:
        raise InvalidArgument(
            f"a Bloom filter header claims {num_bytes} bytes: that is not whole blocks of "
            f"{BYTES_PER_BLOCK} bytes, at most 128 MiB"
        )
    return num_bytes, reader.at


def _expect_first_member(reader: _Reader, number: int) -> None:
    empty = reader.field(0) == (1, _STRUCT) and reader.field(0) is None and reader.field(1) is None
    if not empty:
        raise InvalidArgument(
            f"a Bloom filter's {_UNIONS[number]} is of another kind than {_MEMBERS[number]}"
        )


class _Reader:
    """Reads field headers and integers from bytes that are not trusted."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes):
        self.data = data
        self.at = 0

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise InvalidArgument("the bytes end inside a Bloom filter header")
        self.at += 1
        return self.data[self.at - 1]

    def zigzag(self) -> int:
        value = 0
        for place in range(_VARINT_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise InvalidArgument("a Bloom filter header has an integer of more than 32 bits")

    def field(self, last: int) -> tuple[int, int] | None:
        """Number and type of the next field; None at the end of the struct."""
        header = self.byte()
        if header == _STOP:
            return None
        kind, delta = header & 0x0F, header >> 4
        return (last + delta if delta else self.zigzag()), kind

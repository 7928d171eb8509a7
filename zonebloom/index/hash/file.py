"""The file of a hash index: its head, the runs of its zones, and how its pieces are verified.

    magic | slots | heap | nulls | tail | trailer

    slots     2**block_bits slots of ``slot_bytes``, each with one block
    heap      blocks that are larger than a slot, and postings
    nulls     zlib-compressed bitmap of the zones with a null
    tail      `Head`, then the zlib-compressed columns of the runs
    trailer   bytes of the tail u64, its XXH64 u64, version u32, 0 u32, magic

    block     entries u32, postings u32
              one bit 1 for each entry of a bucket, then a bit 0; bucket by bucket
              entries: remainder and zone, packed
              references to postings: offset u64 and bytes u64 of a piece of the heap

A slot and a piece of the heap each begin with the XXH64 of the rest, seeded with the salt of the
file plus their offset. All numbers are little-endian. docs/format.md has every detail.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import astuple, dataclass

import numpy as np
import xxhash

from zonebloom.errors import InvalidArgument
from zonebloom.index.hash.parameters import MAX_ENTRY_BITS, BlockShape, zone_bits_for
from zonebloom.index.table import ZoneRuns
from zonebloom.storage.random_access import RandomAccessFile

MAGIC = b"ZBBUCKET"
VERSION = 1
TRAILER = struct.Struct("<QQII8s")
MIN_SLOT_BYTES = 32
# A block begins with a checksum, then the numbers of entries and of postings.
HEAD_WORDS = 2
# The number of entries of a slot whose block is in the heap.
OVERFLOW = 0xFFFFFFFF
MAX_ZONES = 1 << 32

_HEAD = struct.Struct("<qd12Q4I")
_RUN_COLUMNS = 4
_MAX_TAIL_BYTES = 1 << 31
# The first request reads this much of the file's end. Most tails fit in it.
_END_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Head:
    """The numbers that describe a file of a hash index."""

    number_of_items: int
    probability: float
    num_zones: int
    num_runs: int
    # Entries of all blocks. A posting is one entry.
    num_entries: int
    num_postings: int
    # Pairs of a key and a zone.
    num_pairs: int
    slot_bytes: int
    heap_bytes: int
    null_bytes: int
    null_checksum: int
    runs_bytes: int
    salt: int
    # The XXH3-64 of everything before the tail.
    content: int
    block_bits: int
    bucket_bits: int
    remainder_bits: int
    zone_bits: int

    @property
    def shape(self) -> BlockShape:
        return BlockShape(self.block_bits, self.bucket_bits, self.remainder_bits, self.zone_bits)

    @property
    def heap_offset(self) -> int:
        return slot_offset(1 << self.block_bits, self.slot_bytes)

    @property
    def null_offset(self) -> int:
        return self.heap_offset + self.heap_bytes

    def to_bytes(self) -> bytes:
        return _HEAD.pack(*astuple(self))


def slot_offset(slot: int, slot_bytes: int) -> int:
    return len(MAGIC) + slot * slot_bytes


def require_numbered_zones(num_zones: int) -> None:
    """Raise `InvalidArgument` if a segment cannot have so many zones."""
    if num_zones >= MAX_ZONES:
        raise InvalidArgument(
            f"{num_zones:,} zones do not fit into one segment of a hash index; give a larger "
            "number_of_items"
        )


def encode_tail(head: Head, compressed_runs: bytes) -> bytes:
    """Return the tail and the trailer of a file."""
    tail = head.to_bytes() + compressed_runs
    return tail + TRAILER.pack(len(tail), xxhash.xxh64_intdigest(tail), VERSION, 0, MAGIC)


def compress_runs(runs: ZoneRuns) -> bytes:
    ids = np.diff(runs.fragment_ids, prepend=np.uint64(0))
    columns = ids, runs.first_rows, runs.num_zones, runs.num_rows
    return zlib.compress(b"".join(column.astype("<u8").tobytes() for column in columns))


def compress_nulls(num_zones: int, zones_with_null: np.ndarray) -> bytes:
    """Return the compressed bitmap of zones with a null, or nothing if there are none."""
    if not zones_with_null.size:
        return b""
    bits = np.zeros(num_zones, dtype=bool)
    bits[zones_with_null] = True
    return zlib.compress(np.packbits(bits, bitorder="little").tobytes(), 1)


def decompress_nulls(data: bytes, head: Head) -> np.ndarray:
    """Return the zones with a null, int64, ascending. Raise `ValueError` if the data is damaged."""
    if not data:
        return np.empty(0, dtype=np.int64)
    if xxhash.xxh64_intdigest(data) != head.null_checksum:
        raise ValueError("the checksum of its null flags does not match")
    size = -(-head.num_zones // 8)
    bits = np.frombuffer(_decompress(data, size), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(bits, count=head.num_zones, bitorder="little"))


def read_head(
    file: RandomAccessFile, num_bytes: int | None, checksum: str | None
) -> tuple[Head, ZoneRuns]:
    """Read the end of a file, and validate every number in it.

    ``num_bytes`` and ``checksum`` are the size of the file, and the XXH3-64 of tail and trailer,
    that the catalog states. Raise `ValueError` if the file does not have them, or is damaged.
    """
    size = file.num_bytes
    if num_bytes is not None and size != num_bytes:
        raise ValueError(f"it has {size:,} bytes, but {num_bytes:,} were written")
    end = file.read([(max(0, size - _END_BYTES), size)])[0]
    trailer = end[-TRAILER.size :]
    length = _tail_bytes(trailer, size) + TRAILER.size
    if length > len(end):
        end = file.read([(size - length, size - len(end))])[0] + end
    data = end[-length:]
    if len(data) != length:
        raise ValueError("it was truncated while it was read")
    if checksum is not None and xxhash.xxh3_64_hexdigest(data) != checksum:
        raise ValueError("the checksum of its tail is not the catalog's")
    return _decode_tail(data[: -TRAILER.size], trailer, size)


def _tail_bytes(trailer: bytes, num_bytes: int) -> int:
    """Return the bytes of the tail. Raise `ValueError` if a file of this size cannot have it."""
    if len(trailer) != TRAILER.size:
        raise ValueError("it is too short")
    size, _, version, zero, magic = TRAILER.unpack(trailer)
    if magic != MAGIC:
        raise ValueError("it does not end with the magic bytes")
    if version != VERSION or zero:
        raise ValueError(f"it has format {version}, but only {VERSION} is known")
    largest = min(num_bytes - TRAILER.size - len(MAGIC), _MAX_TAIL_BYTES)
    if not _HEAD.size <= size <= largest:
        raise ValueError(f"its tail claims {size:,} bytes")
    return size


def _decode_tail(tail: bytes, trailer: bytes, num_bytes: int) -> tuple[Head, ZoneRuns]:
    _, checksum, _, _, _ = TRAILER.unpack(trailer)
    if xxhash.xxh64_intdigest(tail) != checksum:
        raise ValueError("the checksum of its tail does not match")
    head = Head(*_HEAD.unpack_from(tail))
    shape = head.shape
    if head.num_zones >= MAX_ZONES or head.num_runs > head.num_zones:
        raise ValueError(f"it claims {head.num_zones:,} zones in {head.num_runs:,} runs")
    if (
        shape.block_bits > 40
        or shape.bucket_bits > 40
        or shape.remainder_bits < 1
        or not 1 <= shape.zone_bits <= 32
        or shape.entry_bits > MAX_ENTRY_BITS
        or shape.hash_bits > 64
    ):
        raise ValueError("its blocks have an impossible shape")
    if not 0 < head.probability < 1:
        raise ValueError(f"it claims a probability of {head.probability}")
    # An entry takes a bit at least, and a zone of a posting a byte of the heap.
    if (
        head.num_entries > 8 * num_bytes
        or head.num_postings > head.num_entries
        or head.num_pairs > head.num_entries + head.heap_bytes
    ):
        raise ValueError(f"it claims {head.num_pairs:,} pairs")
    if head.slot_bytes % 8 or head.slot_bytes < MIN_SLOT_BYTES or head.heap_bytes % 8:
        raise ValueError("its slots or its heap have an impossible size")
    if head.null_offset + head.null_bytes + len(tail) + TRAILER.size != num_bytes:
        raise ValueError("the sizes of its parts do not add up to its size")
    if len(tail) != _HEAD.size + head.runs_bytes:
        raise ValueError("the size of its tail does not match its runs")
    runs = _decode_runs(tail[_HEAD.size :], head)
    if head.zone_bits < zone_bits_for(head.num_zones):
        raise ValueError("its entries are too narrow for its zones")
    return head, runs


def _decode_runs(data: bytes, head: Head) -> ZoneRuns:
    values = np.frombuffer(_decompress(data, 8 * _RUN_COLUMNS * head.num_runs), dtype="<u8")
    ids, first_rows, num_zones, num_rows = values.reshape(_RUN_COLUMNS, head.num_runs)
    runs = ZoneRuns(
        np.cumsum(ids, dtype=np.uint64), first_rows, num_zones, num_rows, head.number_of_items
    )
    runs.require_valid(head.num_zones)
    return runs


def _decompress(data: bytes, size: int) -> bytes:
    """Decompress data that must have a certain size. Raise `ValueError` if it has not."""
    decompressor = zlib.decompressobj()
    try:
        result = decompressor.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"a part of it cannot be decompressed ({error})") from None
    if len(result) != size or not decompressor.eof:
        raise ValueError("a compressed part of it has a wrong size")
    return result

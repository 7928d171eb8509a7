"""Write the file of a hash index, `hash.buckets`, by the rules of docs/format.md alone."""

import struct
import zlib
from collections import defaultdict
from dataclasses import dataclass, field

import xxhash
from support.hash_reader import HEAD, MAGIC, OVERFLOW, TRAILER, Head


@dataclass
class HashParameters:
    """The form of a file. Readers get the same pairs from every form.

    ``postings`` has hashes that get a posting. All other zones are entries.
    ``compression`` is the level of zlib. The bytes of level 0 are the same everywhere.
    """

    number_of_items: int = 1024
    probability: float = 0.004
    block_bits: int = 0
    bucket_bits: int = 0
    remainder_bits: int = 8
    zone_bits: int | None = None
    slot_bytes: int = 32
    postings: set[int] = field(default_factory=set)
    salt: int = 0
    compression: int = 9

    @property
    def total_bits(self):
        return self.block_bits + self.bucket_bits + self.remainder_bits

    def prefix(self, hashed):
        """Return the leading bits of a hash that the file stores."""
        return hashed >> 64 - self.total_bits


def write_hash_file(pairs, runs, zones_with_null, parameters):
    """Return the bytes of a file.

    ``pairs`` are of a hash and a zone. ``runs`` have a fragment id, a first row, a number of zones
    and a number of rows each.
    """
    p = parameters
    num_zones = sum(run[2] for run in runs)
    zone_bits = max(num_zones.bit_length(), 1) if p.zone_bits is None else p.zone_bits
    zones = defaultdict(set)
    for hashed, zone in pairs:
        zones[p.prefix(hashed)].add(zone)
    with_posting = set(map(p.prefix, p.postings))
    heap = Heap(8 + (p.slot_bytes << p.block_bits), p.salt)
    slots = bytearray()
    num_entries = num_postings = 0
    for number in range(2**p.block_bits):
        entries, references = [], []
        for prefix in sorted(zones):
            if prefix >> p.total_bits - p.block_bits != number:
                continue
            if prefix in with_posting:
                entries.append((prefix, 2**zone_bits - 1))
                references.append(heap.add(posting(sorted(zones[prefix]))))
            else:
                entries += [(prefix, zone) for zone in sorted(zones[prefix])]
        body = block(entries, references, p, zone_bits)
        if 8 + len(body) > p.slot_bytes:
            body = struct.pack("<IIQQ", OVERFLOW, 0, *heap.add(body))
        slots += sealed(body.ljust(p.slot_bytes - 8, b"\0"), 8 + len(slots), p.salt)
        num_entries += len(entries)
        num_postings += len(references)
    bitmap = sum(1 << zone for zone in set(zones_with_null))
    nulls = bitmap.to_bytes(-(-num_zones // 8), "little")
    compressed_nulls = zlib.compress(nulls, p.compression) if bitmap else b""
    before_tail = MAGIC + slots + heap.data + compressed_nulls
    compressed_runs = zlib.compress(run_columns(runs), p.compression)
    head = Head(
        number_of_items=p.number_of_items,
        probability=p.probability,
        num_zones=num_zones,
        num_runs=len(runs),
        num_entries=num_entries,
        num_postings=num_postings,
        num_pairs=sum(map(len, zones.values())),
        slot_bytes=p.slot_bytes,
        heap_bytes=len(heap.data),
        null_bytes=len(compressed_nulls),
        null_checksum=xxhash.xxh64_intdigest(compressed_nulls),
        runs_bytes=len(compressed_runs),
        salt=p.salt,
        content=xxhash.xxh3_64_intdigest(before_tail),
        block_bits=p.block_bits,
        bucket_bits=p.bucket_bits,
        remainder_bits=p.remainder_bits,
        zone_bits=zone_bits,
    )
    return with_tail(before_tail, HEAD.pack(*head) + compressed_runs)


def run_columns(runs):
    """Return the bytes of runs before their compression."""
    columns = [list(column) for column in zip(*runs, strict=True)] or [[]] * 4
    ids = columns[0]
    columns[0] = [(now - last) % 2**64 for now, last in zip(ids, [0, *ids], strict=False)]
    return b"".join(struct.pack(f"<{len(column)}Q", *column) for column in columns)


def with_tail(before_tail, tail):
    """Return a file with a trailer that fits its tail."""
    trailer = TRAILER.pack(len(tail), xxhash.xxh64_intdigest(tail), 1, 0, MAGIC)
    return bytes(before_tail + tail + trailer)


def sealed(body, offset, salt):
    """Return a piece: the checksum of its body, and the body."""
    return struct.pack("<Q", xxhash.xxh64_intdigest(bytes(body), (salt + offset) % 2**64)) + body


class Heap:
    """The pieces of the heap, which begins at an offset of the file."""

    def __init__(self, start, salt):
        self.data, self._start, self._salt = bytearray(), start, salt

    def add(self, body):
        """Append a piece. Return its offset in the file and its size."""
        offset, padded = self._start + len(self.data), body + bytes(-len(body) % 8)
        self.data += sealed(padded, offset, self._salt)
        return offset, 8 + len(padded)


def words(bits, num_bits):
    """Return a number in as many whole words of 64 bits as its bits need."""
    return bits.to_bytes(8 * -(-num_bits // 64), "little")


def block(entries, references, p, zone_bits):
    """Return the bytes of a block from its entries, which are pairs of a prefix and a value."""
    num_buckets, width = 1 << p.bucket_bits, p.remainder_bits + zone_bits
    counts = values = 0
    for number, (prefix, value) in enumerate(entries):
        bucket = (prefix >> p.remainder_bits) % num_buckets
        # One 0 bit for each bucket before this one.
        counts |= 1 << number + bucket
        remainder = prefix % 2**p.remainder_bits
        values |= (remainder << zone_bits | value) << number * width
    return b"".join(
        [
            struct.pack("<II", len(entries), len(references)),
            words(counts, len(entries) + num_buckets),
            words(values, len(entries) * width),
            *(struct.pack("<QQ", *reference) for reference in references),
        ]
    )


def posting(zones):
    """Return the bytes of a posting."""
    gaps = (zone - last - 1 for zone, last in zip(zones, [-1, *zones], strict=False))
    return struct.pack("<Q", len(zones)) + b"".join(map(leb128, gaps))


def leb128(number):
    data = bytearray()
    while number >= 128:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])

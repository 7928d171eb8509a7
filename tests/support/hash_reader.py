"""Read the file of a hash index, `hash.buckets`, by the rules of docs/format.md alone."""

import itertools
import struct
import zlib
from typing import NamedTuple

import xxhash

MAGIC = b"ZBBUCKET"
HEAD = struct.Struct("<qd12Q4I")
TRAILER = struct.Struct("<QQII8s")
OVERFLOW = 0xFFFFFFFF
MAX_ROWS = 2**32 - 1


class Head(NamedTuple):
    """The fields of the head, in their order."""

    number_of_items: int
    probability: float
    num_zones: int
    num_runs: int
    num_entries: int
    num_postings: int
    num_pairs: int
    slot_bytes: int
    heap_bytes: int
    null_bytes: int
    null_checksum: int
    runs_bytes: int
    salt: int
    content: int
    block_bits: int
    bucket_bits: int
    remainder_bits: int
    zone_bits: int


class Entry(NamedTuple):
    """An entry of a block. It has a zone, or the offset and the size of a posting."""

    prefix: int
    zone: int | None
    posting: tuple[int, int] | None


def require(condition, problem):
    if not condition:
        raise ValueError(problem)


def segment_checksum(data):
    """Return the checksum that the catalog has for a file: that of its tail and its trailer."""
    tail_bytes = TRAILER.unpack(data[-TRAILER.size :])[0]
    return xxhash.xxh3_64_hexdigest(data[-TRAILER.size - tail_bytes :])


def inflate(data, size):
    """Return the bytes of a zlib stream that must have this size."""
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"not a zlib stream: {error}") from None
    require(len(inflated) == size and stream.eof and not stream.unused_data, "another size")
    return inflated


class HashFile:
    """The bytes of a file, whose head and runs are valid. Otherwise, it raises `ValueError`.

    Attributes
    ----------
    head : Head
    runs : list of tuple
        Fragment id, first row, number of zones, and number of rows of each run.
    """

    def __init__(self, data):
        require(len(data) >= len(MAGIC) + HEAD.size + TRAILER.size, "too short")
        tail_bytes, checksum, version, zero, magic = TRAILER.unpack(data[-TRAILER.size :])
        require(data[:8] == magic == MAGIC and (version, zero) == (1, 0), "another kind of file")
        require(HEAD.size <= tail_bytes <= len(data) - 8 - TRAILER.size, "a bad size of the tail")
        tail = data[-TRAILER.size - tail_bytes : -TRAILER.size]
        require(xxhash.xxh64_intdigest(tail) == checksum, "the tail is damaged")
        self.data, self.head = data, Head(*HEAD.unpack_from(tail))
        head = self.head
        self.total_bits = head.block_bits + head.bucket_bits + head.remainder_bits
        require(max(head.block_bits, head.bucket_bits) <= 40, "too many blocks or buckets")
        require(head.remainder_bits >= 1 and self.total_bits <= 64, "bad bits of the hash")
        require(1 <= head.zone_bits <= 32, "bad bits of zones")
        require(head.remainder_bits + head.zone_bits <= 56, "entries are too wide")
        require(0 < head.probability < 1, "a bad probability")
        require(head.num_postings <= head.num_entries <= 8 * len(data), "too many entries")
        require(head.num_pairs <= head.num_entries + head.heap_bytes, "too many pairs")
        require(head.slot_bytes % 8 == 0 and head.slot_bytes >= 32, "a bad size of a slot")
        require(head.heap_bytes % 8 == 0, "a bad size of the heap")
        require(tail_bytes == HEAD.size + head.runs_bytes, "another size of the tail")
        self.heap_start = 8 + (head.slot_bytes << head.block_bits)
        self.heap_stop = self.heap_start + head.heap_bytes
        tail_start = len(data) - TRAILER.size - tail_bytes
        require(self.heap_stop + head.null_bytes == tail_start, "the sizes do not add up")
        self._read_runs(tail[HEAD.size :])

    def _read_runs(self, compressed):
        head, count = self.head, self.head.num_runs
        require(count <= head.num_zones < 2**32, "bad numbers of zones and runs")
        columns = struct.unpack(f"<{4 * count}Q", inflate(compressed, 32 * count))
        steps, first_rows, zones, rows = (columns[i * count : (i + 1) * count] for i in range(4))
        ids = [total % 2**64 for total in itertools.accumulate(steps)]
        self.runs = list(zip(ids, first_rows, zones, rows, strict=True))
        require(sum(zones) == head.num_zones, "the runs do not add up to the zones")
        for _, first_row, run_zones, num_rows in self.runs:
            require(first_row + num_rows <= MAX_ROWS, "rows past the last possible one")
            if run_zones != 1:
                require(0 < head.number_of_items <= MAX_ROWS and num_rows > 0, "a bad run")
                require(-(-num_rows // head.number_of_items) == run_zones, "a bad run")
        require(head.num_zones < 2**head.zone_bits, "too few bits for the zones")

    @property
    def zones_with_null(self):
        """Return the zones that may have a null: all if the bitmap is damaged."""
        head, compressed = self.head, self.data[self.heap_stop :][: self.head.null_bytes]
        if not compressed:
            return set()
        try:
            require(xxhash.xxh64_intdigest(compressed) == head.null_checksum, "damaged nulls")
            bitmap = int.from_bytes(inflate(compressed, -(-head.num_zones // 8)), "little")
        except ValueError:
            return set(range(head.num_zones))
        return {zone for zone in range(head.num_zones) if bitmap >> zone & 1}

    def zones(self, hashed):
        """Return the zones that may hold a hash: all if a piece that it needs is damaged."""
        prefix = hashed >> 64 - self.total_bits
        try:
            block = self._block(prefix >> self.total_bits - self.head.block_bits)
            entries = [entry for entry in block if entry.prefix == prefix]
            return set().union(*map(self._zones_of_entry, entries))
        except ValueError:
            return set(range(self.head.num_zones))

    def pairs(self):
        """Return all pairs of a prefix and a zone. Raise `ValueError` if any piece is damaged."""
        head = self.head
        before_tail = self.data[: self.heap_stop + head.null_bytes]
        require(xxhash.xxh3_64_intdigest(before_tail) == head.content, "the content is damaged")
        entries = [entry for number in range(2**head.block_bits) for entry in self._block(number)]
        postings = [entry.posting for entry in entries if entry.posting]
        num_pairs = len(entries) - len(postings) + sum(len(self._posting(*p)) for p in postings)
        counts = len(entries), len(postings), num_pairs
        require(counts == (head.num_entries, head.num_postings, head.num_pairs), "other counts")
        return {(entry.prefix, zone) for entry in entries for zone in self._zones_of_entry(entry)}

    def _zones_of_entry(self, entry):
        zones = [entry.zone] if entry.posting is None else self._posting(*entry.posting)
        require(max(zones) < self.head.num_zones, "an unknown zone")
        return set(zones)

    def _piece(self, offset, size):
        checksum, body = self.data[offset : offset + 8], self.data[offset + 8 : offset + size]
        seed = (self.head.salt + offset) % 2**64
        require(xxhash.xxh64_intdigest(body, seed) == int.from_bytes(checksum, "little"), "damaged")
        return body

    def _heap_piece(self, offset, size):
        require(offset % 8 == size % 8 == 0 and size >= 16, "a bad place of a piece")
        require(self.heap_start <= offset <= self.heap_stop - size, "a piece outside the heap")
        return self._piece(offset, size)

    def _slot(self, number):
        return 8 + number * self.head.slot_bytes, self.head.slot_bytes

    def _reference(self, number):
        """Return the offset and size of a block in the heap, or None if it is in its slot."""
        body = self._piece(*self._slot(number))
        num_entries, num_postings, offset, size = struct.unpack_from("<IIQQ", body)
        require(num_entries != OVERFLOW or num_postings == 0, "a bad reference to the heap")
        return (offset, size) if num_entries == OVERFLOW else None

    def _block(self, number):
        """Return the entries of a block."""
        head, reference = self.head, self._reference(number)
        body = self._heap_piece(*reference) if reference else self._piece(*self._slot(number))
        num_entries, num_postings = struct.unpack_from("<II", body)
        require(num_entries != OVERFLOW, "a second reference to the heap")
        width = head.remainder_bits + head.zone_bits
        num_buckets = 1 << head.bucket_bits
        entries_start = 8 + 8 * -(-(num_entries + num_buckets) // 64)
        postings_start = entries_start + 8 * -(-num_entries * width // 64)
        require(postings_start + 16 * num_postings <= len(body), "a block is too long")
        counts = int.from_bytes(body[8:entries_start], "little")
        values = int.from_bytes(body[entries_start:postings_start], "little")
        postings = iter(struct.iter_unpack("<QQ", body[postings_start:][: 16 * num_postings]))
        entries, bucket = [], 0
        for bit in range(num_entries + num_buckets):
            if not counts >> bit & 1:
                bucket += 1
                continue
            value = values >> len(entries) * width & (1 << width) - 1
            remainder, zone = value >> head.zone_bits, value % 2**head.zone_bits
            is_posting = zone == 2**head.zone_bits - 1
            posting = next(postings, None) if is_posting else None
            require(bucket < num_buckets and is_posting == (posting is not None), "a bad block")
            prefix = (number << head.bucket_bits | bucket) << head.remainder_bits | remainder
            entries.append(Entry(prefix, None if is_posting else zone, posting))
        require(bucket == num_buckets and next(postings, None) is None, "a bad block")
        return entries

    def _posting(self, offset, size):
        """Return the zones of a posting, in ascending order."""
        body = self._heap_piece(offset, size)
        (count,) = struct.unpack_from("<Q", body)
        require(0 < count <= self.head.num_zones, "a bad posting")
        zones, next_zone = [], 0
        for step in itertools.islice(leb128(body[8:]), count):
            zones.append(next_zone + step)
            next_zone = zones[-1] + 1
        return zones


def leb128(data):
    """Yield the numbers of a sequence of bytes. Raise `ValueError` at its end."""
    number = shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0
        require(shift < 35, "a number is too long")
    raise ValueError("a posting is too short")

"""The file of a hash index has the format that docs/format.md describes.

`hash_reader` and `hash_writer` are written by the rules of the page alone.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.fs as pafs
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hash_reader import HEAD, TRAILER, HashFile, Head, segment_checksum
from support.hash_writer import (
    HashParameters,
    Heap,
    block,
    leb128,
    posting,
    sealed,
    with_tail,
    write_hash_file,
)
from support.helpers import ROOT, cases

from zonebloom.errors import CorruptIndex
from zonebloom.index.hash.table import HashTable
from zonebloom.index.hash.writer import merge_hash_tables
from zonebloom.storage.store import store_of

LOCAL = pafs.LocalFileSystem()
PAGE = ROOT / "docs" / "format.md"
HASHES = st.integers(0, 2**64 - 1)

Run = tuple[int, int, int, int]
Pairs = set[tuple[int, int]]


class Content(NamedTuple):
    """The content of a file, and how it is written."""

    pairs: Pairs
    runs: list[Run]
    nulls: set[int]
    parameters: HashParameters

    @property
    def num_zones(self) -> int:
        return sum(run[2] for run in self.runs)

    @property
    def expected_pairs(self) -> Pairs:
        """Return the pairs of prefixes and zones."""
        return {(self.parameters.prefix(hashed), zone) for hashed, zone in self.pairs}

    def expected_zones(self, hashed: int) -> set[int]:
        prefix = self.parameters.prefix(hashed)
        return {zone for own, zone in self.expected_pairs if own == prefix}

    def write(self) -> bytes:
        return write_hash_file(self.pairs, self.runs, self.nulls, self.parameters)


def runs_of(items: int, shapes: list[tuple[int, int, int]]) -> list[Run]:
    """Return runs from their fragments, first rows and numbers of rows."""
    return [(fragment, first, -(-rows // items), rows) for fragment, first, rows in shapes]


@st.composite
def contents(draw: st.DrawFn, total_bits: int = 64) -> Content:
    items = draw(st.sampled_from([1, 2, 7, 1024]))
    rows = (
        st.integers(1, 30)
        .map(lambda zones: zones * items)
        .flatmap(lambda most: st.integers(max(most - items + 1, 1), most))
    )
    shapes = st.tuples(st.integers(0, 2**30 - 1), st.integers(0, 1000), rows)
    runs = runs_of(items, draw(st.lists(shapes, max_size=4)))
    num_zones = sum(run[2] for run in runs)
    zones = st.integers(0, num_zones - 1)
    hashes = draw(st.lists(HASHES, max_size=12)) if runs else []
    pairs: Pairs = set()
    for hashed in hashes:
        of_key = draw(
            st.one_of(zones.map(lambda zone: {zone}), st.sets(zones), st.just(range(num_zones)))
        )
        pairs |= {(hashed, zone) for zone in of_key}
    zone_bits = max(num_zones.bit_length(), 1) + draw(st.integers(0, 3))
    block_bits, bucket_bits = draw(st.integers(0, 3)), draw(st.integers(0, 7))
    most = min(total_bits - block_bits - bucket_bits, 56 - zone_bits)
    remainder_bits = draw(st.integers(1, most))
    parameters = HashParameters(
        number_of_items=items,
        block_bits=block_bits,
        bucket_bits=bucket_bits,
        remainder_bits=remainder_bits,
        zone_bits=zone_bits,
        slot_bytes=draw(st.integers(4, 40)) * 8,
        postings={hashed for hashed in hashes if draw(st.booleans())},
        salt=draw(HASHES),
        compression=draw(st.sampled_from([0, 9])),
    )
    nulls = draw(st.sets(zones, max_size=3)) if runs else set[int]()
    return Content(pairs, runs, nulls, parameters)


def key_hash(key: int) -> int:
    return xxhash.xxh64_intdigest(key.to_bytes(8, "little", signed=True))


def example() -> Content:
    """Return the content of the example of the page."""
    ids = [7, 42, 3, 19, 88, 61, 42, 5, 12, None]
    pairs = {(key_hash(key), row // 4) for row, key in enumerate(ids) if key is not None}
    parameters = HashParameters(
        number_of_items=4,
        block_bits=1,
        bucket_bits=1,
        remainder_bits=4,
        postings={key_hash(42)},
        salt=0x1000,
        compression=0,
    )
    return Content(pairs, runs_of(4, [(0, 0, 10)]), {2}, parameters)


def small_contents() -> dict[str, Content]:
    """Return a small file of every form."""
    runs = runs_of(10, [(3, 0, 95), (1, 50, 200), (9, 7, 4)])
    hashes = [key_hash(key) for key in range(12)]
    pairs = {(hashed, (5 * i + 3) % 31) for i, hashed in enumerate(hashes)}
    pairs |= {(hashed, zone) for hashed in hashes[:3] for zone in (1, 2, 3, 9, 10, 30)}
    postings = set(hashes[:3])
    bits: dict[str, Any] = {"block_bits": 2, "bucket_bits": 2, "remainder_bits": 8}
    bits["number_of_items"] = 10
    in_slots = HashParameters(**bits, slot_bytes=128, postings=postings, salt=1)
    in_heap = HashParameters(**bits, slot_bytes=32, postings=postings, salt=2**64 - 60)
    only_entries = HashParameters(**bits, slot_bytes=64, salt=4)
    return {
        "example": example(),
        "slots": Content(pairs, runs, {0, 30}, in_slots),
        "heap": Content(pairs, runs, set(), in_heap),
        "entries": Content(pairs, runs, {5}, only_entries),
        "nulls": Content(set(), runs, set(range(31)), only_entries),
        "empty": Content(set(), [], set(), only_entries),
    }


SMALL = small_contents()


# The example of the page


def example_rows() -> list[tuple[int, bytes, str]]:
    """Return the offset, the bytes and the meaning of each field of the example on the page."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (\d+) \| `((?:[0-9a-f]{2} ?)+)` \| (.*) \|$", page)
    return [(int(offset), bytes.fromhex(data), meaning) for offset, data, meaning in rows]


def test_the_page_shows_the_bytes_of_the_example():
    content, rows = example(), example_rows()
    data = b"".join(field for _, field, _ in rows)
    starts = [0, *itertools.accumulate(len(field) for _, field, _ in rows)]
    assert [offset for offset, _, _ in rows] == starts[:-1]
    assert data == content.write()
    file = HashFile(data)
    assert (file.pairs(), file.zones_with_null) == (content.expected_pairs, content.nulls)
    assert {key: file.zones(key_hash(key)) for key in (7, 42, 12)} == {7: {0}, 42: {0, 1}, 12: {2}}
    # The meaning of each field of the head begins with its name and its value.
    meanings = " ".join(meaning for _, _, meaning in rows)
    names = re.findall(r"`([a-z_]+)`", meanings)
    assert names == list(Head._fields)
    for name, value in re.findall(r"`([a-z_]+)`, ([0-9.x]+[0-9])", meanings):
        assert float(int(value, 16) if "x" in value else value) == getattr(file.head, name), name
    assert starts[-1] == len(data)


def test_the_page_lists_the_fields_of_the_head_with_their_sizes():
    page = PAGE.read_text(encoding="utf-8").partition("| field of the head |")[2]
    rows = re.findall(r"(?m)^\| `?(\w+)`? \| ([48]) \|", page.partition("\n\n")[0])
    assert tuple(name for name, _ in rows) == Head._fields
    assert sum(int(size) for _, size in rows) == HEAD.size == 128
    assert TRAILER.size == 32


def test_the_files_by_the_page_do_not_use_zonebloom():
    for name in ("hash_reader", "hash_writer"):
        code = (ROOT / "tests" / "support" / f"{name}.py").read_text(encoding="utf-8")
        imports = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
        assert set(imports) <= {"xxhash", "support", *sys.stdlib_module_names}


# Forged files, whose checksums are right


# zonebloom


def open_table(path: Path, data: bytes, damages: list[CorruptIndex] | None = None) -> HashTable:
    """Write a file and open it with zonebloom, as a segment of the catalog is opened."""
    path.write_bytes(data)
    report = None if damages is None else damages.append
    return HashTable(store_of(LOCAL), str(path), len(data), segment_checksum(data), report=report)


def zones_of_hashes(table: HashTable, hashes: list[int]) -> list[set[int]]:
    """Return the zones of each hash, after checking that all ways of a lookup agree."""
    values = np.array(hashes, dtype=np.uint64)
    by_hash: list[set[int]] = [set() for _ in hashes]
    for positions, zones in table.pairs(values):
        for position, zone in zip(positions.tolist(), zones.tolist(), strict=True):
            assert zone not in by_hash[position]
            by_hash[position].add(zone)
    by_kernel: list[set[int]] = [set() for _ in hashes]
    order = np.argsort(values)
    for positions, zones in table._sorted_pairs(values[order]) if hashes and len(table) else ():
        for position, zone in zip(order[positions].tolist(), zones.tolist(), strict=True):
            by_kernel[position].add(zone)
    assert by_kernel == by_hash
    for hashed, zones in zip(values, by_hash, strict=True):
        assert table.find(np.array([hashed])).tolist() == sorted(zones)
        assert set(table._zones_by_numpy(int(hashed)).tolist()) == zones
    assert table.find(values).tolist() == sorted(set[int]().union(*by_hash))
    return by_hash


def decoded_pairs(table: HashTable) -> Pairs:
    """Return the pairs of prefixes and zones of all blocks of a table."""
    hash_bits = table.shape.hash_bits
    zone_bits = 64 - hash_bits
    packed = table.packed_pairs(range(table.shape.num_blocks), hash_bits, zone_bits, 0)
    return {divmod(pair, 1 << zone_bits) for pair in packed.tolist()}


def assert_reads_alike(table: HashTable, file: HashFile, hashes: list[int]) -> None:
    """Check that zonebloom reads what the plain reader reads."""
    runs = table.runs
    columns = (runs.fragment_ids, runs.first_rows, runs.num_zones, runs.num_rows)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == file.runs
    assert len(table) == file.head.num_zones
    assert table.zones_with_null().tolist() == sorted(file.zones_with_null)
    assert zones_of_hashes(table, hashes) == [file.zones(hashed) for hashed in hashes]
    assert decoded_pairs(table) == file.pairs()
    table.verify()


@given(contents(), HASHES)
@settings(max_examples=cases(400))
def test_zonebloom_reads_files_that_the_page_taught_to_write(tmp_path_factory, content, other_hash):
    data = content.write()
    hashes = sorted({other_hash, *(hashed for hashed, _ in content.pairs)})
    table = open_table(tmp_path_factory.mktemp("files") / "file", data)
    assert_reads_alike(table, HashFile(data), hashes)


@pytest.mark.parametrize("name", SMALL)
def test_zonebloom_loses_nothing_in_a_damaged_file(tmp_path, name):
    content = SMALL[name]
    data = content.write()
    file = HashFile(data)
    hashes = sorted({key_hash(500), *(hashed for hashed, _ in content.pairs)})
    for position in range(0, len(data), 1 if len(data) < 400 else 5):
        changed = bytearray(data)
        changed[position] ^= 0x10
        (tmp_path / "file").write_bytes(changed)
        damages: list[CorruptIndex] = []
        checksum = segment_checksum(data)
        try:
            table = HashTable(
                store_of(LOCAL), str(tmp_path / "file"), len(data), checksum, report=damages.append
            )
        except CorruptIndex:
            assert position >= file.heap_stop + file.head.null_bytes
            continue
        with pytest.raises(CorruptIndex):
            table.verify()
        nulls = set(table.zones_with_null().tolist())
        if position < 8:
            # zonebloom does not read these bytes, so they harm no lookup.
            changed[:8] = data[:8]
        plain = HashFile(bytes(changed))
        assert nulls == plain.zones_with_null
        zones = zones_of_hashes(table, hashes)
        assert zones == [plain.zones(hashed) for hashed in hashes]
        if zones != [file.zones(hashed) for hashed in hashes] or nulls != content.nulls:
            assert damages


# Files of one block, forged field by field

FORGED_KEY = key_hash(0)
FORM = HashParameters(
    number_of_items=10, bucket_bits=2, remainder_bits=8, zone_bits=8, slot_bytes=256, salt=5
)
FORGED_ZONES = 31


def forge(body: bytes, heap: list[bytes]) -> bytes:
    """Return a file of one block of any bytes, and of heap pieces of any bytes."""
    empty = write_hash_file(set(), runs_of(10, [(3, 0, 95), (1, 50, 210)]), {0}, FORM)
    file = HashFile(empty)
    head = file.head
    pieces = Heap(file.heap_start, FORM.salt)
    for piece in heap:
        pieces.add(piece)
    nulls = empty[file.heap_stop :][: head.null_bytes]
    tail = empty[file.heap_stop + head.null_bytes : -TRAILER.size]
    slot = sealed(body.ljust(FORM.slot_bytes - 8, b"\0"), 8, FORM.salt)
    before_tail = empty[:8] + slot + bytes(pieces.data) + nulls
    head = head._replace(heap_bytes=len(pieces.data), content=xxhash.xxh3_64_intdigest(before_tail))
    return with_tail(before_tail, HEAD.pack(*head) + tail[HEAD.size :])


def forged_block(
    *zones: int, references: list[tuple[int, int]] | None = None, num_postings: int | None = None
) -> bytes:
    """Return a block in which the key has these zones, which need not be valid."""
    entries = [(FORM.prefix(FORGED_KEY), zone) for zone in zones]
    data = block(entries, references or [], FORM, 8)
    return data if num_postings is None else data[:4] + struct.pack("<I", num_postings) + data[8:]


def one_posting(count: int, payload: bytes) -> bytes:
    """Return a file in which the key has one posting."""
    body = struct.pack("<Q", count) + payload
    size = 8 + len(body) + -len(body) % 8
    return forge(forged_block(255, references=[(264, size)]), [body])


def references_to(offset: int, size: int) -> dict[str, bytes]:
    """Return files whose posting, and whose block, is said to be at a place."""
    valid = posting([0, 30])
    as_posting = forge(forged_block(255, references=[(offset, size)]), [valid])
    overflow = struct.pack("<IIQQ", 0xFFFFFFFF, 0, offset, size)
    return {
        f"posting at {offset} of {size}": as_posting,
        f"block at {offset} of {size}": forge(overflow, [forged_block(4)[:24]]),
    }


def words_of(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def varints(*numbers: int) -> bytes:
    return b"".join(map(leb128, numbers))


def invalid_files() -> dict[str, bytes]:
    """Return files with right checksums in which the zones of the key cannot be known."""
    ones = (1 << 64) - 1
    files = {
        "zone past the zones": forge(forged_block(FORGED_ZONES), []),
        "second zone past the zones": forge(forged_block(4, 200), []),
        "mark without posting": forge(forged_block(255), []),
        "more marks than postings": forge(
            forged_block(255, 255, references=[(264, 24)]), [posting([0, 30])]
        ),
        "too many entries": forge(struct.pack("<II", 5000, 0) + bytes(200), []),
        "most entries": forge(struct.pack("<II", 0xFFFFFFFE, 0) + bytes(200), []),
        "too many postings": forge(forged_block(4, num_postings=15), []),
        "most postings": forge(forged_block(4, num_postings=0xFFFFFFFF), []),
        "no end of a bucket": forge(struct.pack("<IIQQ", 3, 0, ones, 0), []),
        "overflow to itself": forge(struct.pack("<IIQQ", 0xFFFFFFFF, 0, 8, 256), []),
        "second overflow": forge(
            struct.pack("<IIQQ", 0xFFFFFFFF, 0, 264, 32),
            [struct.pack("<IIQQ", 0xFFFFFFFF, 0, 264, 32)],
        ),
        "no zones": one_posting(0, words_of(0)),
        "zones past the last": one_posting(2, varints(29, 1)),
        "too few zones": one_posting(20, varints(0)),
        "endless number": one_posting(1, b"\xff" * 8),
        "long number": one_posting(1, b"\x80" * 12 + b"\x01"),
        "large numbers": one_posting(3, varints(2**34, 2**34, 2**34)),
        "zones of 4 billion": one_posting(0xFFFFFFFF, words_of(0)),
        "most zones": one_posting(ones, words_of(0)),
    }
    heap_stop = 264 + 32
    for offset, size in [
        *((offset, 24) for offset in (0, 8, 240, 256, heap_stop, heap_stop - 16, 2**32, 2**63)),
        *((ones - gap, 24) for gap in (7, 15, 23)),
        *((264, size) for size in (0, 8, 16, 20, 40, 2**31, 2**32, 2**63, ones - 7, ones - 263)),
    ]:
        files |= references_to(offset, size)
    return files


INVALID = invalid_files()


@pytest.mark.parametrize("name", INVALID)
def test_a_key_with_forged_entries_may_be_anywhere(tmp_path, name):
    data, everywhere = INVALID[name], list(range(FORGED_ZONES))
    plain = HashFile(data)
    assert plain.zones(FORGED_KEY) == set(everywhere)
    with pytest.raises(ValueError):
        plain.pairs()
    hashes = np.array([FORGED_KEY, key_hash(1)], dtype=np.uint64)
    damages: list[CorruptIndex] = []
    table = open_table(tmp_path / "file", data, damages)
    assert table.find(hashes[:1]).tolist() == everywhere
    assert len(damages) == 1
    assert table._zones_by_numpy(FORGED_KEY).tolist() == everywhere
    assert table.find(hashes).tolist() == everywhere
    zones_of_key = np.concatenate([zones[keys == 0] for keys, zones in table.pairs(hashes)])
    assert sorted(zones_of_key.tolist()) == everywhere
    strict = open_table(tmp_path / "file", data)
    lookups = [
        lambda: strict.find(hashes[:1]),
        lambda: strict._zones_by_numpy(FORGED_KEY),
        lambda: strict.find(hashes),
        lambda: list(strict.pairs(hashes)),
        lambda: strict.packed_pairs(range(1), 8, 8, 0),
        lambda: merge_hash_tables([strict], LOCAL, str(tmp_path / "merged")),
    ]
    for lookup in lookups:
        with pytest.raises(CorruptIndex):
            lookup()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 41) for name in ("block_bits", "bucket_bits")),
        *((name, 2**32 - 1) for name in ("block_bits", "bucket_bits")),
        *(("remainder_bits", bits) for bits in (0, 49, 61, 2**31)),
        *(("zone_bits", bits) for bits in (0, 4, 49, 2**32 - 1)),
        *(("slot_bytes", size) for size in (0, 24, 252, 2**64 - 8)),
        *(("heap_bytes", size) for size in (4, 8, 2**64 - 8)),
        *(("null_bytes", size) for size in (0, 2**64 - 1)),
        *(("runs_bytes", size) for size in (0, 2**64 - 1)),
        *(("num_zones", count) for count in (0, 30, 32, 2**32, 2**64 - 1)),
        *(("num_runs", count) for count in (0, 1, 3, 2**32 - 1, 2**59, 2**64 - 1)),
        *(("number_of_items", items) for items in (0, -1, 9, 2**62)),
        *(("probability", value) for value in (0.0, 1.0, -0.5, math.nan)),
        *((name, 2**62) for name in ("num_entries", "num_postings", "num_pairs")),
    ],
)
def test_a_forged_head_is_refused(tmp_path, name, value):
    data = forge(forged_block(4), [])
    tail_bytes = TRAILER.unpack(data[-TRAILER.size :])[0]
    tail = data[-TRAILER.size - tail_bytes : -TRAILER.size]
    head = Head(*HEAD.unpack_from(tail))
    assert getattr(head, name) != value
    tail = HEAD.pack(*head._replace(**{name: value})) + tail[HEAD.size :]
    forged = with_tail(data[: -TRAILER.size - tail_bytes], tail)
    with pytest.raises(ValueError):
        HashFile(forged)
    with pytest.raises(CorruptIndex):
        open_table(tmp_path / "file", forged)


@pytest.mark.parametrize("claimed_bytes", [16, TRAILER.size, 10**6, 2**31, 2**63, 2**64 - 1])
def test_a_forged_size_of_the_tail_is_refused(tmp_path, claimed_bytes):
    data = forge(forged_block(4), [])
    forged = data[: -TRAILER.size] + struct.pack("<Q", claimed_bytes) + data[8 - TRAILER.size :]
    (tmp_path / "file").write_bytes(forged)
    with pytest.raises(ValueError):
        HashFile(forged)
    with pytest.raises(CorruptIndex):
        HashTable(store_of(LOCAL), str(tmp_path / "file"), len(forged))


def test_a_small_stream_is_not_inflated_to_gigabytes(tmp_path):
    """The runs and the nulls are streams of 64 MiB, and the head claims a few bytes."""
    bomb = zlib.compress(bytes(64 << 20), 9)
    data = forge(forged_block(4), [])
    file = HashFile(data)
    head = file.head
    stop = file.heap_stop
    before_tail = data[:stop] + bomb
    runs = data[stop + head.null_bytes + HEAD.size : -TRAILER.size]
    nulls = head._replace(null_bytes=len(bomb), null_checksum=xxhash.xxh64_intdigest(bomb))
    forged_nulls = with_tail(before_tail, HEAD.pack(*nulls) + runs)
    forged_runs = with_tail(
        data[: stop + head.null_bytes], HEAD.pack(*head._replace(runs_bytes=len(bomb))) + bomb
    )
    tracemalloc.start()
    try:
        with pytest.raises(CorruptIndex):
            open_table(tmp_path / "file", forged_runs)
        damages: list[CorruptIndex] = []
        table = open_table(tmp_path / "file", forged_nulls, damages)
        assert table.zones_with_null().tolist() == list(range(FORGED_ZONES))
        assert damages
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert HashFile(forged_nulls).zones_with_null == set(range(FORGED_ZONES))

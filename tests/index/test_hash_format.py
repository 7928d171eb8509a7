"""The file of a hash index has the format that docs/format.md describes.

`hash_reader.py` and `hash_writer.py` are written by the rules of the page alone.
"""

from __future__ import annotations

import itertools
import re
import sys
from typing import Any, NamedTuple

import pytest
import xxhash
from hash_reader import HEAD, TRAILER, HashFile, Head
from hash_writer import BITMAP, GAPS, RUNS, HashParameters, resealed, write_hash_file
from helpers import ROOT, cases
from hypothesis import given, settings
from hypothesis import strategies as st

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
        """Return the pairs of prefixes and zones, with all zones of the groups of each."""
        group_zones = 2**self.parameters.zone_shift
        groups: list[range] = []
        first = 0
        for _, _, num_zones, _ in self.runs:
            for start in range(first, first + num_zones, group_zones):
                stop = min(start + group_zones, first + num_zones)
                groups += [range(start, stop)] * (stop - start)
            first += num_zones
        return {
            (self.parameters.prefix(hashed), neighbour)
            for hashed, zone in self.pairs
            for neighbour in groups[zone]
        }

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
    zone_shift = draw(st.integers(0, 4))
    num_groups = sum(-(-run[2] // 2**zone_shift) for run in runs)
    zone_bits = max(num_groups.bit_length(), 1) + draw(st.integers(0, 3))
    block_bits, bucket_bits = draw(st.integers(0, 3)), draw(st.integers(0, 7))
    most = min(total_bits - block_bits - bucket_bits, 56 - zone_bits)
    remainder_bits = draw(st.integers(1, most))
    encodings = st.sampled_from([None, BITMAP, GAPS, RUNS])
    postings = {hashed: draw(encodings) for hashed in hashes}
    parameters = HashParameters(
        number_of_items=items,
        block_bits=block_bits,
        bucket_bits=bucket_bits,
        remainder_bits=remainder_bits,
        zone_bits=zone_bits,
        zone_shift=zone_shift,
        slot_bytes=draw(st.integers(4, 40)) * 8,
        postings={hashed: code for hashed, code in postings.items() if code is not None},
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
        postings={key_hash(42): GAPS},
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
    postings = {hashes[0]: BITMAP, hashes[1]: GAPS, hashes[2]: RUNS}
    bits: dict[str, Any] = {"block_bits": 2, "bucket_bits": 2, "remainder_bits": 8}
    bits["number_of_items"] = 10
    in_slots = HashParameters(**bits, slot_bytes=128, postings=postings, salt=1)
    in_heap = HashParameters(**bits, slot_bytes=32, postings=postings, salt=2**64 - 60)
    in_groups = HashParameters(**bits, slot_bytes=64, postings=postings, salt=3, zone_shift=2)
    only_entries = HashParameters(**bits, slot_bytes=64, salt=4)
    return {
        "example": example(),
        "slots": Content(pairs, runs, {0, 30}, in_slots),
        "heap": Content(pairs, runs, set(), in_heap),
        "groups": Content(pairs, runs, {5}, in_groups),
        "entries": Content(pairs, runs, {5}, only_entries),
        "nulls": Content(set(), runs, set(range(31)), only_entries),
        "empty": Content(set(), [], set(), only_entries),
    }


SMALL = small_contents()


def assert_loses_nothing(data: bytes, content: Content) -> None:
    """Check that a damaged file is refused, or that it loses no pair and no null."""
    try:
        file = HashFile(data)
    except ValueError:
        return
    assert file.zones_with_null >= content.nulls
    for hashed, pairs in itertools.groupby(sorted(content.pairs), lambda pair: pair[0]):
        assert file.zones(hashed) >= {zone for _, zone in pairs}


# The writer and the reader


@given(contents(), HASHES)
@settings(max_examples=cases(400))
def test_the_reader_returns_what_the_writer_was_given(content, other_hash):
    file = HashFile(content.write())
    assert file.runs == content.runs
    assert file.zones_with_null == content.nulls
    assert file.pairs() == content.expected_pairs
    for hashed in {other_hash, *(hashed for hashed, _ in content.pairs)}:
        assert file.zones(hashed) == content.expected_zones(hashed)


@pytest.mark.parametrize("name", SMALL)
def test_the_small_files_have_the_forms_that_they_stand_for(name):
    content = SMALL[name]
    file = HashFile(content.write())
    assert file.pairs() == content.expected_pairs
    sizes = [size for offset, size in file.pieces() if offset >= file.heap_start]
    has_heap = name in ("example", "slots", "heap", "groups")
    assert bool(sizes) == has_heap == (file.head.heap_bytes > 0)
    # The pieces of the heap lie one after another.
    assert sum(sizes) == file.head.heap_bytes


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_changed_byte_loses_no_pair(name, mask):
    content = SMALL[name]
    data = content.write()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= mask
        assert_loses_nothing(bytes(changed), content)
        with pytest.raises(ValueError):
            HashFile(bytes(changed)).pairs()


@pytest.mark.parametrize("name", SMALL)
def test_a_cut_or_longer_file_is_refused(name):
    data = SMALL[name].write()
    cuts = [data[:stop] for stop in range(len(data))]
    tails = [data[start:] for start in range(1, len(data))]
    for changed in (*cuts, *tails, data + b"\0", b"\0" + data, data + data):
        with pytest.raises(ValueError):
            HashFile(changed)


def test_pieces_of_other_places_and_files_are_detected():
    content = SMALL["entries"]
    data = content.write()
    first, second = HashFile(data).pieces()[:2]
    swapped = bytearray(data)
    for (start, size), source in ((first, second[0]), (second, first[0])):
        swapped[start : start + size] = data[source : source + size]
    assert_loses_nothing(bytes(swapped), content)
    with pytest.raises(ValueError):
        HashFile(bytes(swapped)).pairs()
    # The block of another file with another salt.
    parameters = HashParameters(**{**vars(content.parameters), "salt": 77})
    other = Content(set(), content.runs, set(), parameters).write()
    start, size = first
    mixed = data[:start] + other[start : start + size] + data[start + size :]
    assert mixed != data
    assert_loses_nothing(mixed, content)


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
    assert names == [name for name in Head._fields if name != "reserved"]
    for name, value in re.findall(r"`([a-z_]+)`, ([0-9.x]+[0-9])", meanings):
        assert float(int(value, 16) if "x" in value else value) == getattr(file.head, name), name
    assert starts[-1] == len(data)


def test_the_page_lists_the_fields_of_the_head_with_their_sizes():
    page = PAGE.read_text(encoding="utf-8").partition("| field of the head |")[2]
    rows = re.findall(r"(?m)^\| `?(\w+)`? \| ([48]) \|", page.partition("\n\n")[0])
    assert tuple(name for name, _ in rows) == Head._fields
    assert sum(int(size) for _, size in rows) == HEAD.size == 136
    assert TRAILER.size == 32


@pytest.mark.parametrize(
    ("start", "stop", "damaged_keys"),
    [
        (0, 8, None),
        (8, 40, {7, 88}),
        (40, 72, {3, 5, 12, 42, 19, 61}),
        (72, 96, {42}),
        (96, 144, {3, 5, 12, 42, 19, 61}),
        (144, 156, set()),
        (156, 367, None),
    ],
    ids=["magic", "slot 0", "slot 1", "posting", "block in the heap", "nulls", "tail and trailer"],
)
def test_damage_concerns_only_what_a_checksum_guards(start, stop, damaged_keys):
    """If a byte changes, the keys that its checksum does not guard are still found exactly."""
    content = example()
    data = content.write()
    assert len(data) == 367
    for position in range(start, stop):
        changed = bytearray(data)
        changed[position] ^= 0x10
        if damaged_keys is None:
            with pytest.raises(ValueError):
                HashFile(bytes(changed))
            continue
        file = HashFile(bytes(changed))
        assert file.zones_with_null == ({0, 1, 2} if start == 144 else {2})
        for key in (7, 88, 3, 5, 12, 42, 19, 61):
            zones = content.expected_zones(key_hash(key))
            assert file.zones(key_hash(key)) == ({0, 1, 2} if key in damaged_keys else zones)


def test_the_files_by_the_page_do_not_use_zonebloom():
    for name in ("hash_reader", "hash_writer"):
        code = (ROOT / "tests" / f"{name}.py").read_text(encoding="utf-8")
        imports = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
        assert set(imports) <= {"xxhash", "hash_reader", *sys.stdlib_module_names}


# Forged files, whose checksums are right


@st.composite
def forged_files(draw: st.DrawFn) -> bytes:
    """Return a small file with changed bytes and fields of the head, and right checksums."""
    data = SMALL[draw(st.sampled_from(sorted(SMALL)))].write()
    pieces = HashFile(data).pieces()
    tail_start = len(data) - TRAILER.size - TRAILER.unpack(data[-TRAILER.size :])[0]
    changed = bytearray(data)
    positions = st.tuples(st.integers(8, tail_start - 1), st.integers(0, 255))
    for position, byte in draw(st.lists(positions, max_size=4)):
        changed[position] = byte
    head = Head(*HEAD.unpack_from(changed, tail_start))
    names = [name for name in Head._fields if name not in ("probability", "number_of_items")]
    for name in draw(st.lists(st.sampled_from(names), max_size=2)):
        limit = 2**32 if Head._fields.index(name) >= 14 else 2**64
        old = getattr(head, name)
        values = st.one_of(
            st.integers(0, 70),
            st.integers(0, limit - 1),
            st.sampled_from([old ^ 1, old + 8, old * 2, old // 2]),
        )
        head = head._replace(**{name: draw(values) % limit})
    tail = HEAD.pack(*head) + bytes(changed[tail_start + HEAD.size : -TRAILER.size])
    return resealed(bytes(changed), pieces, tail)


@given(forged_files(), HASHES)
@settings(max_examples=cases(2000))
def test_a_forged_file_is_refused_or_read_within_its_bounds(data, hashed):
    try:
        file = HashFile(data)
    except ValueError:
        return
    everywhere = set(range(file.head.num_zones))
    assert file.zones_with_null <= everywhere
    for key in (hashed, *map(key_hash, range(12))):
        assert file.zones(key) <= everywhere
    try:
        pairs = file.pairs()
    except ValueError:
        return
    assert {zone for _, zone in pairs} <= everywhere

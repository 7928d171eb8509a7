"""Compare the files of the hash index with brute force over the rows, for any distribution.

`Rows` is the oracle: it knows the hash and the zone of each row. The format itself is tested in
``test_hash_format.py``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hash_reader import HashFile
from support.helpers import cases, without_thread, words_with_hashes, xxh64
from support.seams import set_constant

from zonebloom.index.hash import table, writer
from zonebloom.index.hash.parameters import HashParameters
from zonebloom.index.hash.table import HashTable
from zonebloom.index.hash.writer import HashSegmentWriter, merge_hash_tables
from zonebloom.index.table import WrittenTable
from zonebloom.sbbf.hashing import Hashes, hash_array
from zonebloom.storage.store import store_of

LOCAL = pafs.LocalFileSystem()
GOLDEN_RATIO = 0x9E3779B97F4A7C15


class Rows:
    """Fragments of hashes and null flags, with the zones that each hash has."""

    def __init__(self, fragments: Sequence[tuple[np.ndarray, np.ndarray]], items: int):
        self.fragments = fragments
        self.first_fragment = 0
        self.items = items
        zones_before = 0
        hashes, zones = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        null_zones: set[int] = set()
        # Fragment, first row and rows of each zone.
        self.zones: list[tuple[int, int, int]] = []
        for number, (values, is_null) in enumerate(fragments):
            row_zones = np.arange(values.size) // items + zones_before
            hashes.append(values[~is_null])
            zones.append(row_zones[~is_null])
            null_zones.update(row_zones[is_null].tolist())
            for start in range(0, values.size, items):
                self.zones.append((fragment_id(number), start, min(items, values.size - start)))
            zones_before += -(-values.size // items)
        self.hashes, self.row_zones = np.concatenate(hashes), np.concatenate(zones)
        self.null_zones = sorted(null_zones)

    def __len__(self) -> int:
        return sum(values.size for values, _ in self.fragments)

    def zones_by_hash(self) -> dict[int, set[int]]:
        zones: dict[int, set[int]] = {}
        for hashed, zone in zip(self.hashes.tolist(), self.row_zones.tolist(), strict=True):
            zones.setdefault(hashed, set()).add(zone)
        return zones

    def expected_zones(self, opened: HashTable, hashes: Iterable[int]) -> list[list[int]]:
        """Return the zones that a table returns for each hash, given the bits that it keeps."""
        shift = 64 - opened.shape.hash_bits
        zones_by_prefix: dict[int, set[int]] = {}
        for hashed, zones in self.zones_by_hash().items():
            zones_by_prefix.setdefault(hashed >> shift, set()).update(zones)
        return [sorted(zones_by_prefix.get(hashed >> shift, ())) for hashed in hashes]


def fragment_id(number: int) -> int:
    """Return the id of a fragment. Ids are not consecutive."""
    return number * 3 + 7


def batches(rows: Rows, step: int) -> Iterator[tuple[int, Hashes | None]]:
    """Yield the hashes of each fragment in batches, and None where a fragment ends."""
    for number, (values, is_null) in enumerate(rows.fragments, rows.first_fragment):
        for start in range(0, values.size, step):
            part = slice(start, start + step)
            nulls = int(is_null[part].sum())
            # The bitmap of a slice begins in the middle of a byte.
            bits = np.concatenate([np.zeros(3, dtype=bool), ~is_null[part]])
            bitmap = np.packbits(bits, bitorder="little") if nulls else np.empty(0, np.uint8)
            yield fragment_id(number), Hashes(values[part].copy(), bitmap, 3, nulls)
        yield fragment_id(number), None


def write(segment_writer: HashSegmentWriter, rows: Rows, step: int) -> WrittenTable:
    for number, hashes in batches(rows, step):
        if hashes is None:
            segment_writer.end_fragment(number)
        else:
            segment_writer.add(number, hashes)
    return segment_writer.close()


def build(path: Path, rows: Rows, step: int = 1 << 16, **options: Any) -> HashTable:
    path.parent.mkdir(exist_ok=True)
    parameters = HashParameters(rows.items, **options)
    written = write(HashSegmentWriter(LOCAL, store_of(LOCAL), str(path), parameters), rows, step)
    assert written.num_bytes == os.path.getsize(path)
    return HashTable(store_of(LOCAL), str(path), written.num_bytes, written.checksum)


def pairs_of(opened: HashTable, hashes: np.ndarray) -> list[list[int]]:
    """Return the zones of each hash, ascending, after checking that no pair comes twice."""
    zones_of: list[list[int]] = [[] for _ in range(hashes.size)]
    for keys, zones in opened.pairs(hashes):
        assert keys.size == zones.size > 0
        for key, zone in zip(keys.tolist(), zones.tolist(), strict=True):
            zones_of[key].append(zone)
    for zones in zones_of:
        assert len(zones) == len(set(zones))
    return list(map(sorted, zones_of))


def assert_right(opened: HashTable, rows: Rows, hashes: np.ndarray) -> None:
    """Compare all lookups of some hashes with the oracle, by the kernels and by NumPy."""
    located = zip(
        *(array.tolist() for array in opened.runs.locate(np.arange(len(opened)))), strict=True
    )
    assert list(located) == rows.zones
    opened.require_valid()
    assert opened.zones_with_null().tolist() == rows.null_zones
    assert np.flatnonzero(opened.has_null).tolist() == rows.null_zones
    expected = rows.expected_zones(opened, hashes.tolist())
    truth = rows.zones_by_hash()
    for hashed, zones in zip(hashes.tolist(), expected, strict=True):
        assert truth.get(hashed, set()) <= set(zones)
    for max_checks in (-1, 1 << 40):
        with pytest.MonkeyPatch.context() as monkeypatch:
            set_constant(monkeypatch, table, "KERNELS", without_thread(max_checks))
            assert pairs_of(opened, hashes) == expected
            for hashed, zones in zip(hashes[:20], expected, strict=False):
                assert opened.find(np.array([hashed])).tolist() == zones
            zones = opened.find(hashes)
            assert zones.dtype == np.int64
            assert zones.tolist() == sorted(set().union(*expected))
    opened.verify()


def assert_reads_alike(opened: HashTable, rows: Rows) -> None:
    """Compare the file with the rows, by the reader that follows docs/format.md."""
    file = HashFile(Path(opened.path).read_bytes())
    shift = 64 - opened.shape.hash_bits
    pairs = zip(rows.hashes.tolist(), rows.row_zones.tolist(), strict=True)
    assert file.pairs() == {(hashed >> shift, zone) for hashed, zone in pairs}
    assert file.zones_with_null == set(rows.null_zones)
    sizes = [values.size for values, _ in rows.fragments]
    assert file.runs == [
        (fragment_id(number), 0, -(-size // rows.items), size)
        for number, size in enumerate(sizes)
        if size
    ]


def random_hashes(source: np.random.Generator, count: int) -> np.ndarray:
    return source.integers(0, 1 << 64, count, dtype=np.uint64)


def spread(numbers: np.ndarray) -> np.ndarray:
    """Return a hash of each number, which is different for different numbers."""
    values = numbers.astype(np.uint64) * np.uint64(GOLDEN_RATIO)
    values ^= values >> np.uint64(29)
    return values * np.uint64(0xBF58476D1CE4E5B9)


def sharing(prefix_bits: int) -> Callable[[np.random.Generator, int, int], np.ndarray]:
    """Return a distribution of hashes that share their first bits."""

    def draw(source: np.random.Generator, size: int, items: int) -> np.ndarray:
        rest = random_hashes(source, size) >> np.uint64(prefix_bits)
        return rest | np.uint64(0xABCDEF0123456789 >> (64 - prefix_bits) << (64 - prefix_bits))

    return draw


# Functions of a source of random numbers, the number of rows, and the rows of a zone.
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "unique": lambda source, size, items: random_hashes(source, size),
    "few values": lambda source, size, items: spread(source.integers(0, 7, size)),
    "one value": lambda source, size, items: spread(np.full(size, 5)),
    "sorted": lambda source, size, items: spread(np.arange(size) // 3),
    "zipf": lambda source, size, items: spread(source.zipf(1.3, size) % 100_000),
    "runs of zones": lambda source, size, items: spread(np.arange(size) // (5 * items)),
    "alternating zones": lambda source, size, items: spread(np.arange(size) // items % 3),
    "extreme hashes": lambda source, size, items: source.choice(
        np.array([0, 1, (1 << 64) - 1, 1 << 63, (1 << 63) - 1], np.uint64), size
    ),
    "one block": sharing(8),
    "one bucket": sharing(20),
    "one kept prefix": sharing(60),
}


@st.composite
def drawn_rows(draw: st.DrawFn, max_fragments: int = 9) -> Rows:
    source = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    distribution = DISTRIBUTIONS[draw(st.sampled_from(sorted(DISTRIBUTIONS)))]
    items = draw(st.sampled_from([1, 2, 3, 10, 64, 100, 2000]))
    largest = draw(st.sampled_from([1, 40, 2_500]))
    null_share = draw(st.sampled_from([0.0, 0.0, 0.1, 0.999, 1.0]))
    sizes = draw(st.lists(st.integers(0, largest), max_size=max_fragments))
    values = distribution(source, sum(sizes), items)
    is_null = source.random(sum(sizes)) < null_share
    stops = np.cumsum(sizes, dtype=int)[:-1]
    return Rows(
        list(zip(np.split(values, stops), np.split(is_null, stops), strict=True))[: len(sizes)],
        items,
    )


def hashes_to_ask(rows: Rows, seed: int, count: int = 150) -> np.ndarray:
    """Return present and absent hashes, their neighbours, extreme hashes, and repetitions."""
    source = np.random.default_rng(seed)
    present = source.choice(rows.hashes, min(count, rows.hashes.size), replace=False)
    bits = np.uint64(1) << source.integers(0, 64, present.size, dtype=np.uint64)
    extreme = np.array([0, (1 << 64) - 1], np.uint64)
    hashes = np.concatenate([present, random_hashes(source, count), present ^ bits, extreme])
    return source.choice(hashes, hashes.size + 10)


@pytest.mark.slow
@given(
    rows=drawn_rows(),
    probability=st.sampled_from([0.9, 0.1, 0.004, 1e-6]),
    step=st.sampled_from([7, 100, 1 << 16]),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=cases(200))
def test_lookups_find_exactly_the_zones_of_brute_force(rows, probability, step, seed):
    with tempfile.TemporaryDirectory() as folder:
        opened = build(Path(folder, "segment"), rows, step, probability=probability)
        assert_right(opened, rows, hashes_to_ask(rows, seed))
        assert_reads_alike(opened, rows)
        opened.close()


def one_fragment(values: np.ndarray, items: int, is_null: np.ndarray | None = None) -> Rows:
    return Rows([(values, np.zeros(values.size, bool) if is_null is None else is_null)], items)


# False zones


@pytest.mark.parametrize("probability", [0.5, 0.05, 0.004])
@pytest.mark.parametrize(
    ("name", "size"), [("unique", 100_000), ("one value", 100_000), ("unique", 500)]
)
def test_absent_keys_have_no_more_false_zones_than_the_probability(
    tmp_path, name, size, probability
):
    source = np.random.default_rng(3)
    values = DISTRIBUTIONS[name](source, size, 100)
    opened = build(tmp_path / "segment", one_fragment(values, 100), probability=probability)
    num_asked = 200_000
    num_found = sum(zones.size for _, zones in opened.pairs(random_hashes(source, num_asked)))
    # The number of false zones is binomial, or less where zones share postings. Six deviations.
    assert num_found <= probability * num_asked + 6 * (probability * num_asked) ** 0.5


# Temporary segments


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unique", "zipf", "one bucket", "one value"])
def test_a_build_whose_buffer_fills_finds_the_same_zones(tmp_path, monkeypatch, name):
    """A segment is then merged from temporary ones, which may end within a zone."""
    source = np.random.default_rng(4)
    values = DISTRIBUTIONS[name](source, 200_000, 64)
    is_null = source.random(values.size) < 0.01
    fragments = [slice(0, 70_000), slice(70_000, 70_000), slice(70_000, 200_000)]
    rows = Rows([(values[part], is_null[part]) for part in fragments], 64)
    at_once = build(tmp_path / "one" / "segment", rows, 9_990)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    set_constant(monkeypatch, writer, "MAX_BUFFERED_PAIRS", 1 << 14)
    set_constant(monkeypatch, writer, "_MIN_PAIRS_PER_WRITER", 1 << 14)
    for number in range(20):
        (tmp_path / f"many-{number}").mkdir()
    merged = build(tmp_path / "many" / "segment", rows, 9_990)
    assert len(list(tmp_path.glob("many-*/segment"))) > 3
    assert merged.shape.hash_bits == at_once.shape.hash_bits
    assert decoded_pairs(merged) == decoded_pairs(at_once)
    assert_right(merged, rows, hashes_to_ask(rows, 1))


def decoded_pairs(opened: HashTable) -> list[int]:
    hash_bits = opened.shape.hash_bits
    slots = range(opened.shape.num_blocks)
    return sorted(opened.packed_pairs(slots, hash_bits, 64 - hash_bits, 0).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["few values", "zipf"])
def test_a_heap_that_does_not_fit_in_memory_is_encoded_again(tmp_path, monkeypatch, name):
    values = DISTRIBUTIONS[name](np.random.default_rng(2), 100_000, 10)
    rows = one_fragment(values, 10)
    set_constant(monkeypatch, writer, "_MAX_HEAP_IN_MEMORY", 0)
    opened = build(tmp_path / "segment", rows)
    assert opened.head.heap_bytes > 0
    assert_right(opened, rows, hashes_to_ask(rows, 1))


# Adversarial keys


@pytest.mark.parametrize(("shared_bits", "bytes_per_row"), [(20, 6), (34, 6), (50, 6)])
def test_keys_whose_hashes_share_their_first_bits_cost_no_row(tmp_path, shared_bits, bytes_per_row):
    """An entry has at most 56 bits, so no keys need more than 7 bytes and a bit each."""
    source = np.random.default_rng(6)
    hashes = sharing(shared_bits)(source, 200_000, 1024)
    keys = words_with_hashes(hashes).view(np.int64)
    assert [xxh64(key.tobytes()) for key in keys[:100]] == hashes[:100].tolist()
    assert np.array_equal(hash_array(pa.array(keys)).values, hashes)
    rows = one_fragment(hashes, 1024)
    opened = build(tmp_path / "segment", rows)
    assert opened.num_bytes <= bytes_per_row * len(rows)
    zones = np.arange(hashes.size) // 1024
    # All keys together: each key's zone is among its zones.
    held = np.zeros(hashes.size, dtype=bool)
    for positions, found in opened.pairs(hashes[::20]):
        held[20 * positions[zones[::20][positions] == found]] = True
    assert held[::20].all()
    for row in range(0, hashes.size, 10_007):
        assert zones[row] in opened.find(hashes[row : row + 1])


# Merges


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several segments as those of one."""
    return Rows([fragment for part in parts for fragment in part.fragments], parts[0].items)


def build_all(
    folder: str | Path, parts: Sequence[Rows], num_fragments: int = 0, **options: Any
) -> list[HashTable]:
    """Write each part as a segment. There are some fragments before those of the parts."""
    tables = []
    for number, rows in enumerate(parts):
        path = Path(folder, f"{number}")
        rows.first_fragment = num_fragments
        num_fragments += len(rows.fragments)
        tables.append(build(path, rows, **options))
    return tables


def merged(folder: str | Path, tables: Sequence[HashTable]) -> HashTable:
    path = str(Path(folder, "merged"))
    written = merge_hash_tables(tables, LOCAL, path)
    return HashTable(store_of(LOCAL), path, written.num_bytes, written.checksum)


@pytest.mark.slow
@given(
    parts=st.lists(drawn_rows(max_fragments=4), min_size=2, max_size=20),
    items=st.sampled_from([1, 10, 1024]),
    probability=st.sampled_from([0.5, 0.004]),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=cases(60))
def test_a_merged_segment_finds_the_zones_of_all(parts, items, probability, seed):
    parts = [Rows(part.fragments, items) for part in parts]
    with tempfile.TemporaryDirectory() as folder:
        tables = build_all(folder, parts, probability=probability)
        opened = merged(folder, tables)
        hash_bits = min(table.shape.hash_bits for table in tables)
        assert opened.shape.hash_bits <= hash_bits
        assert_right(opened, joined(parts), hashes_to_ask(joined(parts), seed))
        assert_reads_alike(opened, joined(parts))


@pytest.mark.slow
def test_merging_unique_keys_step_by_step_keeps_the_probability(tmp_path):
    """256 times as many keys use the reserve of 8 bits completely."""
    source = np.random.default_rng(10)
    opened: HashTable | None = None
    parts: list[Rows] = []
    for step in range(4):
        more = [one_fragment(random_hashes(source, 500 * 4**step), 64) for _ in range(3)]
        tables = build_all(tmp_path / f"{step}", more, len(parts))
        parts += more
        opened = merged(tmp_path / f"{step}", tables if opened is None else [opened, *tables])
    assert opened is not None
    rows = joined(parts)
    assert len(opened) == len(rows.zones)
    num_found = sum(zones.size for _, zones in opened.pairs(random_hashes(source, 200_000)))
    assert num_found <= 0.004 * 200_000 + 6 * (0.004 * 200_000) ** 0.5
    assert_right(opened, rows, hashes_to_ask(rows, 3))

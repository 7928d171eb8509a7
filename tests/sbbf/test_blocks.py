"""The block kernels against filters in plain Python."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.format_reader import may_hold
from support.helpers import hashes_of, reference_filter, without_thread, xxh64
from support.seams import set_constant

from zonebloom.sbbf import blocks, lookup
from zonebloom.sbbf.spec import SALT

BLOCK_COUNTS = [1, 2, 3, 5, 31, 64, 604, 1024]

by_count = pytest.mark.parametrize("num_blocks", BLOCK_COUNTS)


def numbers(count, seed=0):
    rng = random.Random(seed)
    return [rng.randbytes(8) for _ in range(count)]


def filter_of(num_blocks, values):
    words = np.zeros(8 * num_blocks, dtype=np.uint32)
    blocks.insert(words, hashes_of(values))
    return words


def checked(words, values):
    out = np.zeros(len(values), dtype=bool)
    blocks.check(words, hashes_of(values), out)
    return out


@given(st.integers(1, 300), st.lists(st.binary(max_size=12), max_size=60))
def test_insert_equals_the_reference_for_any_block_count(num_blocks, values):
    assert filter_of(num_blocks, values).tobytes() == reference_filter(num_blocks, values)


def test_hashes_at_the_ends_fall_in_the_first_and_the_last_block():
    for num_blocks in (1, 3, 604, 1 << 22):
        words = np.zeros(8 * num_blocks, dtype=np.uint32)
        blocks.insert(words, np.array([0, 2**64 - 1], dtype=np.uint64))
        first = [1] * 8
        last = [1 << ((0xFFFFFFFF * salt & 0xFFFFFFFF) >> 27) for salt in SALT.tolist()]
        if num_blocks == 1:
            assert words.tolist() == [a | b for a, b in zip(first, last, strict=True)]
        else:
            assert words[:8].tolist() == first
            assert words[-8:].tolist() == last
            assert not words[8:-8].any()


@by_count
def test_check_equals_the_reference(num_blocks):
    inserted_values = numbers(8 * num_blocks)
    words = filter_of(num_blocks, inserted_values)
    oracle = reference_filter(num_blocks, inserted_values)
    strangers = numbers(2000, seed=1)
    assert checked(words, inserted_values).all()
    hits = checked(words, strangers)
    assert hits.tolist() == [may_hold(oracle, xxh64(value)) for value in strangers]
    assert not hits.all()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=8), st.binary(max_size=9))
def test_check_wants_all_eight_words(words, value):
    block = np.array(words, dtype=np.uint32)
    assert checked(block, [value])[0] == may_hold(block.tobytes(), xxh64(value))


def several_filters():
    """Filters of different sizes in one memory, with a gap of ones between them."""
    rng = random.Random(3)
    memory, firsts, values_by_filter = [], [], []
    for num_blocks in (1, 2, 3, 64, 7, 604):
        memory.extend([0xFFFFFFFF] * rng.randrange(1, 9))
        firsts.append(len(memory))
        values_by_filter.append(numbers(4 * num_blocks, seed=num_blocks))
        memory.extend(filter_of(num_blocks, values_by_filter[-1]).tolist())
    memory.extend([0xFFFFFFFF] * 8)
    return (
        np.array(memory, dtype=np.uint32),
        np.array(firsts, dtype=np.uint64),
        np.array([1, 2, 3, 64, 7, 604], dtype=np.uint64),
        values_by_filter,
    )


def test_check_any_equals_checking_each_filter():
    words, firsts, counts, values_by_filter = several_filters()
    for values in [*values_by_filter, numbers(1, 50), numbers(3, 51), numbers(20, 52), []]:
        for some in (values, values[:1], values[-2:]):
            out = np.zeros(len(firsts), dtype=bool)
            blocks.check_filters(words, firsts, counts, hashes_of(some), out)
            expected = [
                bool(checked(words[first : first + 8 * count], some).any())
                for first, count in zip(firsts.tolist(), counts.tolist(), strict=True)
            ]
            assert out.tolist() == expected


@pytest.mark.parametrize("max_checks", [0, 10**9])
def test_numpy_and_kernels_find_the_same(monkeypatch, max_checks):
    set_constant(monkeypatch, lookup, "KERNELS", without_thread(max_checks))
    words, firsts, counts, values_by_filter = several_filters()
    hashes = hashes_of([v for part in values_by_filter for v in part[:40]])
    for some in (hashes[:0], hashes[:1], hashes[7:90], np.array([0, 2**64 - 1], dtype=np.uint64)):
        out = np.zeros(len(firsts), dtype=bool)
        blocks.check_filters(words, firsts, counts, some, out)
        assert lookup.check_any(words, firsts, counts, some).tolist() == out.tolist()
    for hashed in hashes:
        out[:] = False
        blocks.check_filters(words, firsts, counts, hashed.reshape(1), out)
        assert lookup.check_one(words, firsts, counts, hashed).tolist() == out.tolist()


def insert_zones(zones, num_blocks, zone_rows, values, *, first_row=0, bit=0, splits=()):
    """Insert rows (None for a null) run by run; filters and null flags of the zones."""
    filters = np.zeros((zones, 8 * num_blocks), dtype=np.uint32)
    has_null = np.zeros(zones, dtype=bool)
    valid = [1] * bit + [value is not None for value in values]
    bitmap = np.packbits(valid, bitorder="little")
    if None not in values:
        bitmap = np.empty(0, dtype=np.uint8)
    hashes = hashes_of([b"under a null" if value is None else value for value in values])
    cuts = [0, *sorted(splits), len(values)]
    for start, stop in pairwise(cuts):
        blocks.insert_zones(
            filters, hashes[start:stop], bitmap, bit + start, first_row + start, zone_rows, has_null
        )
    return filters, has_null


def expected_zones(zones, num_blocks, zone_rows, values, first_row=0):
    parts = [[] for _ in range(zones)]
    for row, value in enumerate(values, first_row):
        parts[row // zone_rows].append(value)
    return [reference_filter(num_blocks, part) for part in parts], [None in p for p in parts]


@given(
    values=st.lists(st.none() | st.binary(max_size=9), min_size=1, max_size=70),
    num_blocks=st.integers(1, 6),
    zone_rows=st.integers(1, 20),
    first_row=st.integers(0, 25),
    bit=st.integers(0, 17),
    data=st.data(),
)
def test_any_split_of_the_rows_gives_the_filters_of_the_reference(
    values, num_blocks, zone_rows, first_row, bit, data
):
    splits = data.draw(st.lists(st.integers(0, len(values)), max_size=6))
    zones = (first_row + len(values) - 1) // zone_rows + 1
    filters, has_null = insert_zones(
        zones, num_blocks, zone_rows, values, first_row=first_row, bit=bit, splits=splits
    )
    oracle, nulls = expected_zones(zones, num_blocks, zone_rows, values, first_row)
    assert [row.tobytes() for row in filters] == oracle
    assert has_null.tolist() == nulls

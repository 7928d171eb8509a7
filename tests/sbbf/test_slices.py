"""The bit-sliced kernels against NumPy's bits, the row layout and the plain-Python reference."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from helpers import hashes_of
from hypothesis import given, settings
from hypothesis import strategies as st

from zonebloom.sbbf import blocks, slice_search, slices
from zonebloom.sbbf.reference import ReferenceSbbf
from zonebloom.sbbf.slices_numpy import (
    block_numbers,
    block_words,
    intersect,
    row_numbers,
    row_words,
    set_bits,
)

SHAPES = [(1, 1), (63, 2), (64, 3), (65, 17), (200, 604), (511, 5), (513, 16), (1000, 33)]
# Of the checks: above what a signed number holds, and about to wrap.
SEED, STEP = 2**64 - 300, 256
by_shape = pytest.mark.parametrize(("zones", "num_blocks"), SHAPES)


def random_filters(zones, num_blocks, seed=0, density=2):
    """Filters with one bit in ``2 ** density`` clear, shape ``(zones, 8 z)``."""
    random = np.random.default_rng(seed)
    words = np.zeros((zones, 8 * num_blocks), dtype=np.uint32)
    for _ in range(density):
        words |= random.integers(0, 2**32, words.shape, dtype=np.uint32)
    return words


def addresses(filters):
    steps = np.arange(len(filters), dtype=np.uint64) * np.uint64(filters.strides[0])
    return np.uint64(filters.ctypes.data) + steps


class Tile:
    """A tile made of filters, some blocks at a time."""

    def __init__(self, filters, step=7):
        self.zones, self.num_blocks = len(filters), filters.shape[1] // 8
        self.words = row_words(self.zones)
        self.size = block_words(self.words)
        # Not a zero in sight: whatever is not written shows.
        self.blocks = np.full(self.num_blocks * self.size, 0xA5A5A5A5A5A5A5A5, dtype=np.uint64)
        for start in range(0, self.num_blocks, step):
            stop = min(start + step, self.num_blocks)
            run = self.blocks[start * self.size : stop * self.size]
            slices.slice_blocks(addresses(filters), start, stop - start, self.words, self.size, run)
        slices.seal(self.blocks, self.words, self.size, SEED, STEP)

    def rows(self):
        """Shape ``(blocks, 256, words)``, sharing memory."""
        per_block = self.blocks.reshape(self.num_blocks, self.size)
        return per_block[:, : 256 * self.words].reshape(self.num_blocks, 256, self.words)

    def checks(self):
        per_block = self.blocks.reshape(self.num_blocks, self.size)
        return per_block[:, 256 * self.words : 256 * self.words + 256]

    def pairs(self, hashes, capacity=None):
        capacity = capacity or 4 * self.zones
        keys, zones = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int64)
        state = np.zeros(2, dtype=np.int64)
        found = []
        while state[0] < len(hashes):
            slice_search.find_pairs(
                self.blocks,
                0,
                self.num_blocks,
                self.words,
                self.size,
                self.zones,
                hashes,
                keys,
                zones,
                state,
            )
            found += zip(keys[: state[1]].tolist(), zones[: state[1]].tolist(), strict=True)
        return found


def pieces_of(tile, hashed):
    """What a lookup of one hash reads: eight rows, then the checks of their block."""
    shape = [np.array([n], dtype=np.int64) for n in (0, tile.num_blocks, tile.words, tile.size)]
    offsets, sizes = np.empty(9, dtype=np.int64), np.empty(9, dtype=np.int64)
    slice_search.plan_rows(hashed, *shape, offsets, sizes)
    spans = zip(offsets // 8, (offsets + sizes) // 8, strict=True)
    return np.concatenate([tile.blocks[start:stop] for start, stop in spans])


def by_kernel(tile, hashed, pieces):
    out, state = np.empty(tile.zones, dtype=np.int64), np.empty(2, dtype=np.int64)
    shape = [np.array([n]) for n in (tile.num_blocks, tile.words, tile.zones)]
    seeds = np.array([SEED], dtype=np.uint64)
    slice_search.intersect_rows(pieces, hashed, *shape, seeds, STEP, out, state)
    return out[: state[0]].tolist(), int(state[1])


def by_numpy(tile, hashed, pieces):
    rows = pieces[: 8 * tile.words].reshape(8, tile.words).copy()
    block = int(block_numbers(np.array([hashed], dtype=np.uint64), tile.num_blocks)[0])
    seed = (SEED + block * STEP) % 2**64
    bits, damaged = intersect(rows, pieces[8 * tile.words :], hashed, seed)
    return set_bits(bits, tile.zones).tolist(), damaged


def in_rows(filters, hashed):
    """Zones that may hold a hash, by the row layout."""
    zones, words = filters.shape
    first = np.arange(zones, dtype=np.uint64) * np.uint64(words)
    hit = np.zeros(zones, dtype=bool)
    count = np.full(zones, words // 8, dtype=np.uint64)
    key = np.array([hashed], dtype=np.uint64)
    blocks.check_any(filters.reshape(-1), first, count, key, hit)
    return np.flatnonzero(hit).tolist()


def some_hashes(count, seed=1):
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


# The layout


@by_shape
def test_bit_rows_are_the_filters_bits_turned(zones, num_blocks):
    filters = random_filters(zones, num_blocks)
    tile = Tile(filters)
    bits = np.unpackbits(filters.view(np.uint8), bitorder="little")
    wanted = np.zeros((num_blocks, 256, tile.words * 64), dtype=np.uint8)
    wanted[:, :, :zones] = bits.reshape(zones, num_blocks, 256).transpose(1, 2, 0)
    wanted = np.packbits(wanted, axis=2, bitorder="little").view(np.uint64)
    assert np.array_equal(tile.rows(), wanted)


@pytest.mark.parametrize("zones", [1, 64, 65, 128, 129, 192, 193, 256, 300, 1000])
def test_checks_are_xxh64_seeded_with_the_rows_place(zones):
    tile = Tile(random_filters(zones, 2))
    wanted = [
        [
            xxhash.xxh64_intdigest(row.tobytes(), seed=(SEED + 256 * block + number) % 2**64)
            for number, row in enumerate(rows)
        ]
        for block, rows in enumerate(tile.rows())
    ]
    assert tile.checks().tolist() == wanted


def test_a_block_of_whole_pages_is_padded_to_pages_with_zeros():
    assert [block_words(row_words(zones)) * 8 for zones in (4096, 16384, 32768, 65536)] == [
        256 * 520,
        256 * 2056,
        (256 + 1) * 4096,
        (512 + 1) * 4096,
    ]
    tile = Tile(random_filters(32768, 1))
    assert not tile.blocks[256 * 512 + 256 :].any()


@by_shape
def test_unslicing_gives_the_filters_back(zones, num_blocks):
    filters = random_filters(zones, num_blocks)
    tile = Tile(filters)
    for first in {0, zones // 128 * 64}:
        back = np.zeros_like(filters[first:])
        for start in range(0, num_blocks, 19):
            stop = min(start + 19, num_blocks)
            run = tile.blocks[start * tile.size : stop * tile.size]
            slices.unslice_blocks(
                run, start, stop - start, tile.words, tile.size, first, addresses(back)
            )
        assert np.array_equal(back, filters[first:])


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 9))
def test_slicing_is_exact_both_ways(zones, num_blocks, seed):
    filters = random_filters(zones, num_blocks, seed, density=1)
    tile = Tile(filters, step=16)
    back = np.zeros_like(filters)
    slices.unslice_blocks(tile.blocks, 0, num_blocks, tile.words, tile.size, 0, addresses(back))
    assert np.array_equal(back, filters)
    assert slices.open_damaged(tile.blocks, tile.words, tile.size, SEED, STEP) == 0


def test_filters_may_lie_anywhere_in_memory():
    filters = random_filters(130, 3)
    loose = [row.copy() for row in filters]
    where = np.array([row.ctypes.data for row in loose], dtype=np.uint64)
    tile = Tile(filters)
    out = np.empty_like(tile.blocks)
    slices.slice_blocks(where, 0, 3, tile.words, tile.size, out)
    slices.seal(out, tile.words, tile.size, SEED, STEP)
    assert np.array_equal(out, tile.blocks)


@given(st.integers(1, 150), st.integers(0, 150), st.integers(1, 150), st.integers(0, 150))
@settings(max_examples=40)
def test_splicing_puts_tiles_together(before, skipped, count, after):
    first, second = random_filters(before, 2, 1), random_filters(skipped + count + after, 2, 2)
    wanted = Tile(np.concatenate([first, second[skipped : skipped + count]]))
    out = np.zeros_like(wanted.blocks)
    for tile, start, zones, at in (
        (Tile(first), 0, before, 0),
        (Tile(second), skipped, count, before),
    ):
        slices.splice(
            tile.blocks, tile.words, tile.size, start, zones, wanted.words, wanted.size, at, out
        )
    slices.seal(out, wanted.words, wanted.size, SEED, STEP)
    assert np.array_equal(out, wanted.blocks)


# Lookups


@given(st.integers(1, 70), st.integers(1, 20), st.integers(0, 5))
@settings(max_examples=25)
def test_lookups_equal_the_reference(zones, num_blocks, seed):
    values = [[f"{seed} {zone} {n}".encode() for n in range(num_blocks)] for zone in range(zones)]
    oracles = [ReferenceSbbf(num_blocks) for _ in range(zones)]
    for oracle, held in zip(oracles, values, strict=True):
        for value in held:
            oracle.insert(value)
    stored = b"".join(oracle.to_bytes() for oracle in oracles)
    tile = Tile(np.frombuffer(stored, dtype=np.uint32).reshape(zones, -1).copy())
    asked = [values[0][0], values[-1][-1], b"stranger", b"another"]
    for value, hashed in zip(asked, hashes_of(asked).tolist(), strict=True):
        wanted = [zone for zone, oracle in enumerate(oracles) if oracle.check(value)]
        pieces = pieces_of(tile, hashed)
        assert by_numpy(tile, hashed, pieces) == (wanted, 0)
        assert by_kernel(tile, hashed, pieces) == (wanted, 0)


@by_shape
def test_many_equal_one_at_a_time_and_the_row_layout(zones, num_blocks):
    filters = random_filters(zones, num_blocks, density=3)
    tile = Tile(filters)
    hashes = np.concatenate([some_hashes(40), np.array([0, 2**64 - 1], dtype=np.uint64)])
    wanted = [in_rows(filters, hashed) for hashed in hashes]
    assert any(wanted)
    for hashed, expected in zip(hashes.tolist(), wanted, strict=True):
        assert by_kernel(tile, hashed, pieces_of(tile, hashed)) == (expected, 0)
        assert by_numpy(tile, hashed, pieces_of(tile, hashed)) == (expected, 0)
    pairs = [(key, zone) for key, expected in enumerate(wanted) for zone in expected]
    assert tile.pairs(hashes) == pairs
    assert tile.pairs(hashes, capacity=zones) == pairs
    bits = np.zeros(tile.words, dtype=np.uint64)
    slice_search.find_any(tile.blocks, 0, num_blocks, tile.words, tile.size, hashes, bits)
    assert set_bits(bits, zones).tolist() == sorted({zone for _, zone in pairs})


def test_a_run_of_blocks_answers_for_the_hashes_in_it():
    filters = random_filters(100, 32, density=3)
    tile = Tile(filters)
    hashes = np.sort(some_hashes(400))
    inside = hashes[(block_numbers(hashes, 32) >= 8) & (block_numbers(hashes, 32) < 20)]
    run = tile.blocks[8 * tile.size : 20 * tile.size].copy()
    keys, zones = np.empty(1 << 16, dtype=np.int64), np.empty(1 << 16, dtype=np.int64)
    state = np.zeros(2, dtype=np.int64)
    slice_search.find_pairs(run, 8, 32, tile.words, tile.size, 100, inside, keys, zones, state)
    wanted = [(key, zone) for key, h in enumerate(inside) for zone in in_rows(filters, h)]
    found = zip(keys[: state[1]].tolist(), zones[: state[1]].tolist(), strict=True)
    assert list(found) == wanted


@pytest.mark.parametrize("zones", [1, 64, 65, 500, 700])
def test_set_bits_are_those_below_the_number_of_zones(zones):
    random = np.random.default_rng(zones)
    bits = random.integers(0, 2**64, row_words(zones), dtype=np.uint64)
    flags = np.unpackbits(bits.view(np.uint8), bitorder="little")
    assert set_bits(bits, zones).tolist() == np.flatnonzero(flags[:zones]).tolist()


# Damage


@pytest.mark.parametrize("zones", [5, 70, 300])
def test_a_damaged_row_rules_nothing_out(zones):
    filters = random_filters(zones, 4, density=3)
    tile = Tile(filters)
    hashed = int(some_hashes(1)[0])
    held = in_rows(filters, hashed)
    block = int(block_numbers(np.array([hashed], dtype=np.uint64), 4)[0])
    number = int(row_numbers(hashed)[3])
    tile.rows()[block, number] = 0
    for search in (by_kernel, by_numpy):
        found, damaged = search(tile, hashed, pieces_of(tile, hashed))
        assert damaged == 1
        assert set(held) <= set(found) <= set(range(zones))
    assert slices.open_damaged(tile.blocks, tile.words, tile.size, SEED, STEP) == 1
    assert (tile.rows()[block, number] == 2**64 - 1).all()
    assert set(held) <= {zone for _, zone in tile.pairs(np.array([hashed], dtype=np.uint64))}


def test_all_zeros_are_damage_and_every_zone_is_kept():
    tile = Tile(random_filters(100, 2))
    tile.blocks[:] = 0
    hashes = some_hashes(1)
    for search in (by_kernel, by_numpy):
        pieces = np.zeros(8 * tile.words + 256, dtype=np.uint64)
        assert search(tile, int(hashes[0]), pieces) == (list(range(100)), 8)
    assert slices.open_damaged(tile.blocks, tile.words, tile.size, SEED, STEP) == 512
    assert [zone for _, zone in tile.pairs(hashes)] == list(range(100))


@given(st.integers(0, 2 * 256 * 3 * 64 - 1))
@settings(max_examples=30)
def test_any_flipped_bit_is_noticed(bit):
    tile = Tile(random_filters(150, 2))
    block, at = divmod(bit, 256 * 3 * 64)
    tile.blocks[block * tile.size + at // 64] ^= np.uint64(1 << at % 64)
    assert slices.open_damaged(tile.blocks, tile.words, tile.size, SEED, STEP) == 1

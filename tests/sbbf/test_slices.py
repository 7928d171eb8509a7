"""The bit-sliced kernels against NumPy's bits, the row layout and the plain-Python reference."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from helpers import hashes_of
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ReferenceSbbf

from zonebloom.sbbf import blocks, slice_search, slices
from zonebloom.sbbf.slice_layout import intersect, place_tile, row_numbers, set_bit_numbers
from zonebloom.sbbf.spec import block_numbers

SHAPES = [(1, 1), (63, 2), (64, 3), (65, 17), (200, 604), (511, 5), (513, 16), (1000, 33)]
# This seed of the checks is too large for a signed number, and wraps after a few blocks.
SEED = 2**64 - 300
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


def tile_of(zones, num_blocks=1):
    """The tile of some zones that is first in its file."""
    return place_tile(0, 0, zones, num_blocks, None, SEED)


class Sliced:
    """A tile made of filters, some blocks at a time."""

    def __init__(self, filters, step=7):
        self.zones, self.num_blocks = len(filters), filters.shape[1] // 8
        self.tile = tile_of(self.zones, self.num_blocks)
        self.words = self.tile.row_words
        # Not a zero in sight: whatever is not written shows.
        shape = self.num_blocks, self.tile.block_words
        self.blocks = np.full(shape, 0xA5A5A5A5A5A5A5A5, dtype=np.uint64)
        for start in range(0, self.num_blocks, step):
            run = self.blocks[start : start + step]
            slices.slice_blocks(addresses(filters), start, self.words, run)
        slices.write_checks(self.blocks, self.tile, 0)

    def rows(self):
        """Shape ``(blocks, 256, words)``."""
        return self.blocks[:, : 256 * self.words].reshape(self.num_blocks, 256, self.words)

    def checks(self):
        return self.blocks[:, 256 * self.words : 256 * self.words + 256]

    def numbers(self):
        return np.array(self.tile, dtype=np.uint64)

    def damaged(self):
        return slices.fill_damaged(self.blocks, self.tile, 0)

    def pairs(self, hashes, capacity=None):
        capacity = capacity or 4 * self.zones
        keys, zones = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int64)
        state = np.zeros(2, dtype=np.int64)
        pairs = []
        while state[0] < len(hashes):
            slice_search.find_pairs_in_tile(
                self.blocks, 0, self.numbers(), hashes, keys, zones, state
            )
            pairs += zip(keys[: state[1]].tolist(), zones[: state[1]].tolist(), strict=True)
        return pairs


def pieces_of(sliced, hashed):
    """Return what a lookup of one hash reads: eight rows, then the checks of their block."""
    offsets, sizes = np.empty(9, dtype=np.int64), np.empty(9, dtype=np.int64)
    slice_search.plan_rows(hashed, sliced.numbers()[None], offsets, sizes)
    spans = zip(offsets // 8, (offsets + sizes) // 8, strict=True)
    return np.concatenate([sliced.blocks.reshape(-1)[start:stop] for start, stop in spans])


def by_kernel(sliced, hashed, pieces):
    out, state = np.empty(sliced.zones, dtype=np.int64), np.empty(2, dtype=np.int64)
    slice_search.intersect_rows(pieces, hashed, sliced.numbers()[None], out, state)
    return out[: state[0]].tolist(), int(state[1])


def by_numpy(sliced, hashed, pieces):
    rows = pieces[: 8 * sliced.words].reshape(8, sliced.words).copy()
    seed = sliced.tile.block_seed(int(block_numbers(np.uint64(hashed), sliced.num_blocks)))
    bits, damaged = intersect(rows, pieces[8 * sliced.words :], np.uint64(hashed), seed)
    return set_bit_numbers(bits, sliced.zones).tolist(), damaged


def in_rows(filters, hashed):
    """Zones that may hold a hash, by the row layout."""
    zones, words = filters.shape
    first = np.arange(zones, dtype=np.uint64) * np.uint64(words)
    hit = np.zeros(zones, dtype=bool)
    count = np.full(zones, words // 8, dtype=np.uint64)
    key = np.array([hashed], dtype=np.uint64)
    blocks.check_filters(filters.reshape(-1), first, count, key, hit)
    return np.flatnonzero(hit).tolist()


def some_hashes(count, seed=1):
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


# The layout


@by_shape
def test_bit_rows_are_the_filters_bits_turned(zones, num_blocks):
    filters = random_filters(zones, num_blocks)
    tile = Sliced(filters)
    bits = np.unpackbits(filters.view(np.uint8), bitorder="little")
    wanted = np.zeros((num_blocks, 256, tile.words * 64), dtype=np.uint8)
    wanted[:, :, :zones] = bits.reshape(zones, num_blocks, 256).transpose(1, 2, 0)
    wanted = np.packbits(wanted, axis=2, bitorder="little").view(np.uint64)
    assert np.array_equal(tile.rows(), wanted)


@pytest.mark.parametrize("zones", [1, 64, 65, 128, 129, 192, 193, 256, 300, 1000])
def test_checks_are_xxh64_seeded_with_the_rows_place(zones):
    tile = Sliced(random_filters(zones, 2))
    wanted = [
        [
            xxhash.xxh64_intdigest(row.tobytes(), seed=(SEED + 256 * block + number) % 2**64)
            for number, row in enumerate(rows)
        ]
        for block, rows in enumerate(tile.rows())
    ]
    assert tile.checks().tolist() == wanted


def test_a_block_of_whole_pages_is_padded_to_pages_with_zeros():
    assert [tile_of(zones).block_words * 8 for zones in (4096, 16384, 32768, 65536)] == [
        256 * 520,
        256 * 2056,
        (256 + 1) * 4096,
        (512 + 1) * 4096,
    ]
    tile = Sliced(random_filters(32768, 1))
    assert not tile.blocks[:, 256 * 512 + 256 :].any()


@by_shape
def test_unslicing_gives_the_filters_back(zones, num_blocks):
    filters = random_filters(zones, num_blocks)
    tile = Sliced(filters)
    for first in {0, zones // 128 * 64}:
        back = np.zeros_like(filters[first:])
        for start in range(0, num_blocks, 19):
            stop = min(start + 19, num_blocks)
            slices.unslice_blocks(
                tile.blocks[start:stop], start, tile.words, first, addresses(back)
            )
        assert np.array_equal(back, filters[first:])


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 9))
def test_slicing_is_exact_both_ways(zones, num_blocks, seed):
    filters = random_filters(zones, num_blocks, seed, density=1)
    tile = Sliced(filters, step=16)
    back = np.zeros_like(filters)
    slices.unslice_blocks(tile.blocks, 0, tile.words, 0, addresses(back))
    assert np.array_equal(back, filters)
    assert tile.damaged() == 0


def test_filters_may_lie_anywhere_in_memory():
    filters = random_filters(130, 3)
    loose = [row.copy() for row in filters]
    where = np.array([row.ctypes.data for row in loose], dtype=np.uint64)
    tile = Sliced(filters)
    out = np.empty_like(tile.blocks)
    slices.slice_blocks(where, 0, tile.words, out)
    slices.write_checks(out, tile.tile, 0)
    assert np.array_equal(out, tile.blocks)


# Lookups


@given(st.integers(1, 70), st.integers(1, 20), st.integers(0, 5))
@settings(max_examples=25)
def test_lookups_equal_the_reference(zones, num_blocks, seed):
    values = [[f"{seed} {zone} {n}".encode() for n in range(num_blocks)] for zone in range(zones)]
    oracles = [ReferenceSbbf(num_blocks) for _ in range(zones)]
    for oracle, filter_values in zip(oracles, values, strict=True):
        for value in filter_values:
            oracle.insert(value)
    stored = b"".join(oracle.to_bytes() for oracle in oracles)
    tile = Sliced(np.frombuffer(stored, dtype=np.uint32).reshape(zones, -1).copy())
    lookups = [values[0][0], values[-1][-1], b"stranger", b"another"]
    for value, hashed in zip(lookups, hashes_of(lookups).tolist(), strict=True):
        wanted = [zone for zone, oracle in enumerate(oracles) if oracle.check(value)]
        pieces = pieces_of(tile, hashed)
        assert by_numpy(tile, hashed, pieces) == (wanted, 0)
        assert by_kernel(tile, hashed, pieces) == (wanted, 0)


@by_shape
def test_many_equal_one_at_a_time_and_the_row_layout(zones, num_blocks):
    filters = random_filters(zones, num_blocks, density=3)
    tile = Sliced(filters)
    hashes = np.concatenate([some_hashes(40), np.array([0, 2**64 - 1], dtype=np.uint64)])
    wanted = [in_rows(filters, hashed) for hashed in hashes]
    assert any(wanted)
    for hashed, expected in zip(hashes.tolist(), wanted, strict=True):
        assert by_kernel(tile, hashed, pieces_of(tile, hashed)) == (expected, 0)
        assert by_numpy(tile, hashed, pieces_of(tile, hashed)) == (expected, 0)
    pairs = [(key, zone) for key, expected in enumerate(wanted) for zone in expected]
    assert tile.pairs(hashes) == pairs
    assert tile.pairs(hashes, capacity=zones) == pairs


def test_a_run_of_blocks_answers_for_the_hashes_in_it():
    filters = random_filters(100, 32, density=3)
    tile = Sliced(filters)
    hashes = np.sort(some_hashes(400))
    inside = hashes[(block_numbers(hashes, 32) >= 8) & (block_numbers(hashes, 32) < 20)]
    run = tile.blocks[8:20].copy()
    keys, zones = np.empty(1 << 16, dtype=np.int64), np.empty(1 << 16, dtype=np.int64)
    state = np.zeros(2, dtype=np.int64)
    slice_search.find_pairs_in_tile(run, 8, tile.numbers(), inside, keys, zones, state)
    wanted = [(key, zone) for key, h in enumerate(inside) for zone in in_rows(filters, h)]
    pairs = zip(keys[: state[1]].tolist(), zones[: state[1]].tolist(), strict=True)
    assert list(pairs) == wanted


@pytest.mark.parametrize("zones", [1, 64, 65, 500, 700])
def test_set_bits_are_those_below_the_number_of_zones(zones):
    random = np.random.default_rng(zones)
    bits = random.integers(0, 2**64, -(-zones // 64), dtype=np.uint64)
    flags = np.unpackbits(bits.view(np.uint8), bitorder="little")
    assert set_bit_numbers(bits, zones).tolist() == np.flatnonzero(flags[:zones]).tolist()


# Damage


@pytest.mark.parametrize("zones", [5, 70, 300])
def test_a_damaged_row_rules_nothing_out(zones):
    filters = random_filters(zones, 4, density=3)
    tile = Sliced(filters)
    hashed = int(some_hashes(1)[0])
    matching_zones = in_rows(filters, hashed)
    block = int(block_numbers(np.uint64(hashed), 4))
    number = int(row_numbers(np.uint64(hashed))[3])
    row = tile.blocks[block, number * tile.words : (number + 1) * tile.words]
    row[:] = 0
    for search in (by_kernel, by_numpy):
        zones_found, damaged = search(tile, hashed, pieces_of(tile, hashed))
        assert damaged == 1
        assert set(matching_zones) <= set(zones_found) <= set(range(zones))
    assert tile.damaged() == 1
    assert (row == 2**64 - 1).all()
    assert set(matching_zones) <= {
        zone for _, zone in tile.pairs(np.array([hashed], dtype=np.uint64))
    }


def test_all_zeros_are_damage_and_every_zone_is_kept():
    tile = Sliced(random_filters(100, 2))
    tile.blocks[:] = 0
    hashes = some_hashes(1)
    for search in (by_kernel, by_numpy):
        pieces = np.zeros(8 * tile.words + 256, dtype=np.uint64)
        assert search(tile, int(hashes[0]), pieces) == (list(range(100)), 8)
    assert tile.damaged() == 512
    assert [zone for _, zone in tile.pairs(hashes)] == list(range(100))


@given(st.integers(0, 2 * 256 * 3 * 64 - 1))
@settings(max_examples=30)
def test_any_flipped_bit_is_noticed(bit):
    tile = Sliced(random_filters(150, 2))
    block, bit_in_block = divmod(bit, 256 * 3 * 64)
    tile.blocks[block, bit_in_block // 64] ^= np.uint64(1 << bit_in_block % 64)
    assert tile.damaged() == 1

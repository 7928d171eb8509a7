"""Kernels that look hashes up in bit rows: the AND of the eight rows each hash names.

Many hashes go through whole blocks, in order, so that each block is touched once; one hash
goes through the eight rows of each tile alone.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint64, void

from zonebloom.sbbf.blocks_numpy import SALT
from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.sbbf.slices import _address, _checks_of_eight
from zonebloom.sbbf.vectors import and_64_bytes, trailing_zeros

_ROWS = 256
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)


@inlined
def _block(hashed, num_blocks):
    return np.int64(((hashed >> np.uint64(32)) * np.uint64(num_blocks)) >> np.uint64(32))


@inlined
def _row(hashed, word):
    """Number of the row in its block that word ``word`` of a filter asks for."""
    low = np.uint32(hashed & np.uint64(0xFFFFFFFF))
    return word * 32 + np.int64(np.uint32(low * SALT[word]) >> np.uint32(27))


@inlined
def _emit(bits, first, num_zones, zones, at):
    """Append the numbers of the bits set of one word, ``first`` being that of its lowest."""
    while bits:
        zone = first + np.int64(trailing_zeros(bits))
        bits &= bits - np.uint64(1)
        if zone < num_zones:
            zones[at] = zone
            at += 1
    return at


@inlined
def _zones_left(rows, row_words, num_zones, strip, words, zones, at):
    """Append the zones whose bit is set in all of eight rows, given by address and in words."""
    whole = row_words // 8 * 8
    for word in range(0, whole, 8):
        if and_64_bytes(_address(rows), np.uint64(word * 8), _address(strip)):
            for i in range(8):
                at = _emit(strip[i], (word + i) * 64, num_zones, zones, at)
    for word in range(whole, row_words):
        bits = words[rows[8] + np.uint64(word)]
        for i in range(9, 16):
            bits &= words[rows[i] + np.uint64(word)]
        at = _emit(bits, word * 64, num_zones, zones, at)
    return at


@inlined
def _point(rows, words, row, start):
    """Note where a row begins: its address for vectors, its place for single words."""
    rows[row] = _address(words) + np.uint64(start * 8)
    rows[8 + row] = np.uint64(start)


@kernel(
    void(
        readonly(uint64),
        int64,
        int64,
        int64,
        int64,
        int64,
        readonly(uint64),
        int64[::1],
        int64[::1],
        int64[::1],
    )
)
def find_pairs(
    blocks,
    first_block,
    num_blocks,
    row_words,
    block_words,
    num_zones,
    hashes,
    out_keys,
    out_zones,
    state,
):
    """Find the zones of a tile that may hold each of many hashes.

    Parameters
    ----------
    blocks : uint64 array
        A run of blocks of the tile, all that the hashes fall in.
    first_block : int64
        Number of the run's first block in the tile.
    num_blocks : int64
        Blocks a filter, not of the run.
    row_words, block_words : int64
        Of the tile, in 64-bit words.
    num_zones : int64
        Zones of the tile.
    hashes : uint64 array, shape (n,)
        Best sorted: so are their blocks then.
    out_keys, out_zones : int64 array, shape (capacity,)
        Position in ``hashes`` and number in the tile of each pair found. There is room for
        the pairs of one hash at least, ``num_zones``.
    state : int64 array, shape (2,)
        Where to begin in ``hashes``; replaced by where to go on, which is short of the end
        when another hash's pairs might not fit. Then the number of pairs found.
    """
    rows, strip = np.empty(16, np.uint64), np.empty(8, np.uint64)
    count = 0
    key = state[0]
    while key < hashes.shape[0] and count + num_zones <= out_zones.shape[0]:
        hashed = hashes[key]
        base = (_block(hashed, num_blocks) - first_block) * block_words
        for word in range(8):
            _point(rows, blocks, word, base + _row(hashed, word) * row_words)
        stop = _zones_left(rows, row_words, num_zones, strip, blocks, out_zones, count)
        for i in range(count, stop):
            out_keys[i] = key
        count = stop
        key += 1
    state[0] = key
    state[1] = count


@kernel(void(readonly(uint64), int64, int64, int64, int64, readonly(uint64), uint64[::1]))
def find_any(blocks, first_block, num_blocks, row_words, block_words, hashes, out):
    """Set the bits of the zones of a tile that may hold any of many hashes.

    Parameters are those of `find_pairs`; ``out`` is a bit row, shape ``(row_words,)``.
    """
    starts = np.empty(8, np.int64)
    for key in range(hashes.shape[0]):
        base = (_block(hashes[key], num_blocks) - first_block) * block_words
        for word in range(8):
            starts[word] = base + _row(hashes[key], word) * row_words
        one, two, three, four = starts[0], starts[1], starts[2], starts[3]
        five, six, seven, eight = starts[4], starts[5], starts[6], starts[7]
        for i in range(row_words):
            left = blocks[one + i] & blocks[two + i] & blocks[three + i] & blocks[four + i]
            right = blocks[five + i] & blocks[six + i] & blocks[seven + i] & blocks[eight + i]
            out[i] |= left & right


@kernel(
    void(
        uint64,
        readonly(int64),
        readonly(int64),
        readonly(int64),
        readonly(int64),
        int64[::1],
        int64[::1],
    )
)
def plan_rows(hashed, tile_offsets, num_blocks, row_words, block_words, offsets, sizes):
    """Say which bytes of a file a hash needs: of each tile eight rows, then a block's checks.

    Parameters
    ----------
    hashed : uint64
    tile_offsets : int64 array, shape (tiles,)
        Where each tile begins, bytes.
    num_blocks, row_words, block_words : int64 array, shape (tiles,)
    offsets, sizes : int64 array, shape (9 * tiles,)
        Where each piece begins and how long it is, bytes.
    """
    for tile in range(tile_offsets.shape[0]):
        block = _block(hashed, num_blocks[tile])
        start = tile_offsets[tile] + block * block_words[tile] * 8
        size = row_words[tile] * 8
        for word in range(8):
            offsets[tile * 9 + word] = start + _row(hashed, word) * size
            sizes[tile * 9 + word] = size
        offsets[tile * 9 + 8] = start + _ROWS * size
        sizes[tile * 9 + 8] = _ROWS * 8


@kernel(
    void(
        uint64[::1],
        uint64,
        readonly(int64),
        readonly(int64),
        readonly(int64),
        readonly(uint64),
        uint64,
        int64[::1],
        int64[::1],
    )
)
def intersect_rows(
    pieces, hashed, num_blocks, row_words, num_zones, tile_seeds, seed_step, out, state
):
    """AND the pieces `plan_rows` asked for, which lie one after another.

    Parameters
    ----------
    pieces : uint64 array
        A damaged row is filled with ones here: it no longer rules any zone out.
    hashed : uint64
    num_blocks, row_words, num_zones : int64 array, shape (tiles,)
    tile_seeds : uint64 array, shape (tiles,)
        Of the checks of each tile's first row, as for `zonebloom.sbbf.slices.seal`.
    seed_step : uint64
    out : int64 array, shape (zones,)
        Zones that may hold the hash, those of the tiles counted one after another.
    state : int64 array, shape (2,)
        How many zones were found, and how many rows are damaged.
    """
    rows, strip = np.empty(16, np.uint64), np.empty(8, np.uint64)
    seeds, lanes, checks = np.empty(8, np.uint64), np.empty(32, np.uint64), np.empty(8, np.uint64)
    numbers = np.empty(8, np.int64)
    for word in range(8):
        numbers[word] = _row(hashed, word)
    count = first_zone = damaged = start = 0
    for tile in range(row_words.shape[0]):
        size = row_words[tile]
        seed = tile_seeds[tile] + np.uint64(_block(hashed, num_blocks[tile])) * seed_step
        for word in range(8):
            seeds[word] = seed + np.uint64(numbers[word])
        at = _address(pieces) + np.uint64(start * 8)
        _checks_of_eight(at, size, seeds, lanes, checks)
        for word in range(8):
            row = start + word * size
            if pieces[start + 8 * size + numbers[word]] != checks[word]:
                damaged += 1
                pieces[row : row + size] = _ONES
            _point(rows, pieces, word, row)
        stop = _zones_left(rows, size, num_zones[tile], strip, pieces, out, count)
        for i in range(count, stop):
            out[i] += first_zone
        count = stop
        first_zone += num_zones[tile]
        start += 8 * size + _ROWS
    state[0] = count
    state[1] = damaged

"""Kernels that look hashes up in bit rows.

Many hashes go through whole blocks in order, so that each block is read once. A single hash reads
only its eight rows of each tile. Kernels get a tile as a uint64 array of the fields of `Tile`.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint64, void

from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.sbbf.slice_layout import ALL_ONES, ROWS_PER_BLOCK
from zonebloom.sbbf.slices import address_of
from zonebloom.sbbf.spec import BITS_PER_WORD, SALT
from zonebloom.sbbf.vectors import trailing_zeros
from zonebloom.sbbf.xxh64 import hash_memory

# Positions of the fields of `Tile`.
_, _OFFSET, _NUM_ZONES, _NUM_BLOCKS, _ROW_WORDS, _BLOCK_WORDS, _, _SEED, _SEED_STEP = range(9)


@inlined
def _block_number(hashed, tile):
    return np.int64(((hashed >> np.uint64(32)) * tile[_NUM_BLOCKS]) >> np.uint64(32))


@inlined
def _row_number(hashed, word):
    low = np.uint32(hashed & np.uint64(0xFFFFFFFF))
    return word * BITS_PER_WORD + np.int64(np.uint32(low * SALT[word]) >> np.uint32(27))


@inlined
def _append_zones(words, starts, tile, bits, zones, count):
    """AND the eight rows that begin at ``words[starts]``, and append the zones whose bit remains.

    ``zones`` already holds ``count`` zones. Return the new count.
    """
    # The positions are unsigned, because Numba tests whether signed indices are negative.
    one, two, three, four = starts[0], starts[1], starts[2], starts[3]
    five, six, seven, eight = starts[4], starts[5], starts[6], starts[7]
    num_zones = tile[_NUM_ZONES]
    for i in range(tile[_ROW_WORDS]):
        first_half = words[one + i] & words[two + i] & words[three + i] & words[four + i]
        second_half = words[five + i] & words[six + i] & words[seven + i] & words[eight + i]
        bits[i] = first_half & second_half
    for i in range(tile[_ROW_WORDS]):
        word = bits[i]
        while word:
            zone = i * np.uint64(64) + trailing_zeros(word)
            word &= word - np.uint64(1)
            if zone < num_zones:
                zones[count] = zone
                count += 1
    return count


@kernel(
    void(
        readonly(uint64, 2),
        int64,
        readonly(uint64),
        readonly(uint64),
        int64[::1],
        int64[::1],
        int64[::1],
    )
)
def find_pairs_in_tile(blocks, first_block, tile, hashes, out_keys, out_zones, state):
    """Pair hashes with the zones of a tile that may hold them, until the output may overflow.

    The output must have room for all zones of the tile. ``state[0]`` is the next hash to look up,
    so a further call continues there. ``state[1]`` receives the number of pairs.
    """
    starts = np.empty(8, np.uint64)
    bits = np.empty(np.int64(tile[_ROW_WORDS]), np.uint64)
    row_words, num_zones = np.int64(tile[_ROW_WORDS]), np.int64(tile[_NUM_ZONES])
    words = blocks.reshape(blocks.size)
    count = 0
    key = state[0]
    while key < hashes.shape[0] and count + num_zones <= out_zones.shape[0]:
        base = (_block_number(hashes[key], tile) - first_block) * blocks.shape[1]
        for word in range(8):
            starts[word] = np.uint64(base + _row_number(hashes[key], word) * row_words)
        stop = _append_zones(words, starts, tile, bits, out_zones, count)
        out_keys[count:stop] = key
        count = stop
        key += 1
    state[0] = key
    state[1] = count


@kernel(void(uint64, readonly(uint64, 2), int64[::1], int64[::1]))
def plan_rows(hashed, tiles, offsets, sizes):
    """Compute which pieces of the file a hash needs: nine for each tile, eight rows and the checks.

    ``offsets`` and ``sizes`` are in bytes.
    """
    for number in range(tiles.shape[0]):
        tile = tiles[number]
        start = (
            np.int64(tile[_OFFSET]) + _block_number(hashed, tile) * np.int64(tile[_BLOCK_WORDS]) * 8
        )
        size = np.int64(tile[_ROW_WORDS]) * 8
        for word in range(8):
            offsets[number * 9 + word] = start + _row_number(hashed, word) * size
            sizes[number * 9 + word] = size
        offsets[number * 9 + 8] = start + ROWS_PER_BLOCK * size
        sizes[number * 9 + 8] = ROWS_PER_BLOCK * 8


@kernel(void(uint64[::1], uint64, readonly(uint64, 2), int64[::1], int64[::1]))
def intersect_rows(pieces, hashed, tiles, out, state):
    """AND the rows that `plan_rows` asked for.

    ``pieces`` are the bytes that were read, one piece after another. ``out`` receives the zones,
    counted over all tiles. ``state`` receives their number and the number of damaged rows.
    """
    numbers, starts = np.empty(8, np.int64), np.empty(8, np.uint64)
    bits = np.empty(np.int64(tiles[:, _ROW_WORDS].max()), np.uint64)
    for word in range(8):
        numbers[word] = _row_number(hashed, word)
    count = first_zone = num_damaged = start = 0
    for number in range(tiles.shape[0]):
        tile = tiles[number]
        size = np.int64(tile[_ROW_WORDS])
        seed = tile[_SEED] + np.uint64(_block_number(hashed, tile)) * tile[_SEED_STEP]
        for word in range(8):
            row = start + word * size
            starts[word] = np.uint64(row)
            address = address_of(pieces) + np.uint64(row * 8)
            check = hash_memory(address, np.uint64(size * 8), seed + np.uint64(numbers[word]))
            if check != pieces[start + 8 * size + numbers[word]]:
                num_damaged += 1
                pieces[row : row + size] = ALL_ONES
        stop = _append_zones(pieces, starts, tile, bits, out, count)
        out[count:stop] += first_zone
        count = stop
        first_zone += np.int64(tile[_NUM_ZONES])
        start += 8 * size + ROWS_PER_BLOCK
    state[0] = count
    state[1] = num_damaged

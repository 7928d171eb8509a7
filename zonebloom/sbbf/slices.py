"""Kernels of the bit-sliced layout: turn filters into bit rows and back, AND rows.

The layout is drawn in `zonebloom.sbbf.slices_numpy`. Tiles are handled a run of blocks at a
time, so memory is the run's; a run is a uint64 array of ``block_words`` words a block.

Filters lie all over memory, so they are given by address. The caller keeps them alive, and
has checked that every one of them holds the blocks asked for.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint64, void

from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.sbbf.vectors import (
    absorb_stripes,
    copy_32_bytes,
    copy_64_bytes,
    load_word,
    swaps_into_blocks,
    swaps_into_rows,
    swaps_of_blocks,
    swaps_of_rows,
)
from zonebloom.sbbf.xxh64 import PRIME_5, _absorb_64, _avalanche, _merge_round, _rotate

# Bytes of a filter that are turned at a time, in blocks: 512 pieces fit the second cache.
_PIECE = 16
# Between pieces, 64-bit words: were it a power of two, all would fall in few sets of a cache.
_PIECE_WORDS = _PIECE * 4 + 8
_STRIDE = np.uint64(_PIECE_WORDS * 8)
_STRIP_ZONES = 512
_ROWS = 256
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)

_U0, _U8, _U32, _U64 = np.uint64(0), np.uint64(8), np.uint64(32), np.uint64(64)


@inlined
def _address(array):
    return np.uint64(array.ctypes.data)


@inlined
def _turn_to_rows(pieces, stage, strip, group):
    """Turn one block of 64 zones: a word of each row of ``strip``, 64 bytes a row."""
    for i in range(8):
        at = np.uint64(i)
        source, target = pieces + at * _STRIDE, stage + at * _U32
        swaps_of_blocks(source, _U8 * _STRIDE, _U0, target, _U8 * _U32, _U0)
    for i in range(8):
        at = np.uint64(8 * i)
        target = strip + at * _U64 + np.uint64(group) * _U8
        swaps_into_rows(stage + at * _U32, _U32, _U0, target, _U64, _U64 * _U64)


@inlined
def _turn_to_blocks(strip, stage, pieces):
    """Turn word 0 of each row of ``strip`` into a block of each of 64 zones."""
    for i in range(8):
        at = np.uint64(i)
        target = stage + at * _U32
        swaps_of_rows(strip + at * _U64, _U8 * _U64, _U64 * _U64, target, _U8 * _U32, _U0)
    for i in range(8):
        at = np.uint64(8 * i)
        target = pieces + at * _STRIDE
        swaps_into_blocks(stage + at * _U32, _U32, _U0, target, _STRIDE, _U0)


@kernel(void(readonly(uint64), int64, int64, int64, int64, uint64[::1]))
def slice_blocks(filters, first_block, num_blocks, row_words, block_words, out):
    """Turn a run of blocks of every zone's filter into bit rows; the checks are `seal`'s.

    Parameters
    ----------
    filters : uint64 array, shape (zones,)
        Addresses of the filters of a tile.
    first_block, num_blocks : int64
        The run.
    row_words, block_words : int64
        Of the tile, in 64-bit words.
    out : uint64 array, shape (num_blocks * block_words,)
        All rows of the run are written.
    """
    zones = filters.shape[0]
    pieces = np.empty(_STRIP_ZONES * _PIECE_WORDS, np.uint64)
    stage = np.empty(64 * 4, np.uint64)
    strip = np.empty(_ROWS * 8, np.uint64)
    piece, staged, rows, target = (
        _address(pieces),
        _address(stage),
        _address(strip),
        _address(out),
    )
    for word in range(0, row_words, 8):
        groups = min(8, row_words - word)
        for first in range(0, num_blocks, _PIECE):
            count = min(_PIECE, num_blocks - first)
            for i in range(groups * 64):
                if word * 64 + i < zones:
                    source = filters[word * 64 + i] + np.uint64((first_block + first) * 32)
                    at = piece + np.uint64(i * _PIECE_WORDS * 8)
                    for block in range(count):
                        copy_32_bytes(source + np.uint64(block * 32), at + np.uint64(block * 32))
                else:
                    for k in range(i * _PIECE_WORDS, i * _PIECE_WORDS + count * 4):
                        pieces[k] = _U0
            for block in range(count):
                for group in range(groups):
                    at = (group * 64 * _PIECE_WORDS + block * 4) * 8
                    _turn_to_rows(piece + np.uint64(at), staged, rows, group)
                base = (first + block) * block_words + word
                if groups == 8:
                    for row in range(_ROWS):
                        at = (base + row * row_words) * 8
                        copy_64_bytes(rows + np.uint64(row * 64), target + np.uint64(at))
                else:
                    for row in range(_ROWS):
                        for group in range(groups):
                            out[base + row * row_words + group] = strip[row * 8 + group]


@kernel(void(readonly(uint64), int64, int64, int64, int64, int64, readonly(uint64)))
def unslice_blocks(blocks, first_block, num_blocks, row_words, block_words, first_zone, filters):
    """Turn bit rows back: the inverse of `slice_blocks`.

    Parameters
    ----------
    blocks : uint64 array, shape (num_blocks * block_words,)
        The run.
    first_block, num_blocks : int64
        Where the run lies in a filter.
    row_words, block_words : int64
    first_zone : int64
        First zone to write, in the tile; a multiple of 64.
    filters : uint64 array, shape (n,)
        Addresses of the filters of zones ``first_zone`` on; the run's blocks are written.
    """
    zones = filters.shape[0]
    pieces = np.empty(64 * _PIECE_WORDS, np.uint64)
    stage = np.empty(64 * 4, np.uint64)
    strip = np.empty(_ROWS * 8, np.uint64)
    piece, staged, rows = _address(pieces), _address(stage), _address(strip)
    for zone in range(0, zones, 64):
        word = (first_zone + zone) // 64
        for first in range(0, num_blocks, _PIECE):
            count = min(_PIECE, num_blocks - first)
            for block in range(count):
                base = (first + block) * block_words + word
                for row in range(_ROWS):
                    strip[row * 8] = blocks[base + row * row_words]
                _turn_to_blocks(rows, staged, piece + np.uint64(block * 32))
            for i in range(min(64, zones - zone)):
                at = piece + np.uint64(i * _PIECE_WORDS * 8)
                target = filters[zone + i] + np.uint64((first_block + first) * 32)
                for block in range(count):
                    copy_32_bytes(at + np.uint64(block * 32), target + np.uint64(block * 32))


@inlined
def _checks_of_eight(address, row_words, seeds, state, out):
    """XXH64 of eight rows that follow each other; ``state`` has room for 32 words."""
    stripes = row_words // 4
    size = np.uint64(row_words * 8)
    if stripes:
        absorb_stripes(address, size, np.uint64(stripes), _address(seeds), _address(state))
    for row in range(8):
        if stripes:
            one, two = state[row * 4], state[row * 4 + 1]
            three, four = state[row * 4 + 2], state[row * 4 + 3]
            hashed = (
                _rotate(one, np.uint64(1), np.uint64(63))
                + _rotate(two, np.uint64(7), np.uint64(57))
                + _rotate(three, np.uint64(12), np.uint64(52))
                + _rotate(four, np.uint64(18), np.uint64(46))
            )
            hashed = _merge_round(hashed, one)
            hashed = _merge_round(hashed, two)
            hashed = _merge_round(hashed, three)
            hashed = _merge_round(hashed, four)
        else:
            hashed = seeds[row] + PRIME_5
        hashed += size
        at = address + np.uint64(row) * size
        for word in range(stripes * 4, row_words):
            hashed = _absorb_64(hashed, load_word(at + np.uint64(word * 8)))
        out[row] = _avalanche(hashed)


@kernel(void(uint64[::1], int64, int64, uint64, uint64))
def seal(blocks, row_words, block_words, seed, seed_step):
    """Write the check of every row of a run of blocks, and zeros where it is padded.

    Parameters
    ----------
    blocks : uint64 array
        The run.
    row_words, block_words : int64
    seed : uint64
        Of the check of the run's first row; each row's is one more than that of the row before.
    seed_step : uint64
        From a block's seed to that of the next.
    """
    seeds, state, out = np.empty(8, np.uint64), np.empty(32, np.uint64), np.empty(8, np.uint64)
    for base in range(0, blocks.shape[0], block_words):
        checks = base + _ROWS * row_words
        for first in range(0, _ROWS, 8):
            for i in range(8):
                seeds[i] = seed + np.uint64(first + i)
            at = _address(blocks) + np.uint64((base + first * row_words) * 8)
            _checks_of_eight(at, row_words, seeds, state, out)
            for i in range(8):
                blocks[checks + first + i] = out[i]
        for word in range(checks + _ROWS, base + block_words):
            blocks[word] = _U0
        seed += seed_step


@kernel(int64(uint64[::1], int64, int64, uint64, uint64))
def open_damaged(blocks, row_words, block_words, seed, seed_step):
    """Fill every row of a run of blocks that is not what was written with ones.

    Such a row rules no zone out any more, so nothing is lost. Returns the number of them.
    Parameters are those of `seal`.
    """
    seeds, state, out = np.empty(8, np.uint64), np.empty(32, np.uint64), np.empty(8, np.uint64)
    damaged = 0
    for base in range(0, blocks.shape[0], block_words):
        checks = base + _ROWS * row_words
        for first in range(0, _ROWS, 8):
            for i in range(8):
                seeds[i] = seed + np.uint64(first + i)
            start = base + first * row_words
            at = _address(blocks) + np.uint64(start * 8)
            _checks_of_eight(at, row_words, seeds, state, out)
            for i in range(8):
                if blocks[checks + first + i] != out[i]:
                    damaged += 1
                    blocks[start + i * row_words : start + (i + 1) * row_words] = _ONES
        seed += seed_step
    return damaged


@kernel(void(readonly(uint64), int64, int64, int64, int64, int64, int64, int64, uint64[::1]))
def splice(
    blocks, row_words, block_words, first_zone, num_zones, out_row_words, out_block_words, at, out
):
    """Put bits of every row of a run of blocks into the rows of another tile.

    Parameters
    ----------
    blocks : uint64 array
        A run of blocks.
    row_words, block_words : int64
        Of the tile it belongs to.
    first_zone, num_zones : int64
        Which zones of it.
    out_row_words, out_block_words : int64
        Of the other tile.
    at : int64
        Zone of the other tile the first one becomes.
    out : uint64 array
        The same blocks of the other tile; zero where bits are to be put.
    """
    for block in range(blocks.shape[0] // block_words):
        for row in range(_ROWS):
            source = block * block_words + row * row_words
            target = block * out_block_words + row * out_row_words
            for done in range(0, num_zones, 64):
                place = first_zone + done
                word, shift = source + place // 64, np.uint64(place % 64)
                bits = blocks[word] >> shift
                if shift and place // 64 + 1 < row_words:
                    bits |= blocks[word + 1] << (_U64 - shift)
                if num_zones - done < 64:
                    bits &= (np.uint64(1) << np.uint64(num_zones - done)) - np.uint64(1)
                place = at + done
                word, shift = target + place // 64, np.uint64(place % 64)
                out[word] |= bits << shift
                if shift and place // 64 + 1 < out_row_words:
                    out[word + 1] |= bits >> (_U64 - shift)

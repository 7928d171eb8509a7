"""Kernels of the sliced layout: transpose filters into bit rows and back, and check rows.

Tiles are passed as consecutive blocks, uint64, shape ``(blocks, block_words)``. Filters are passed
as addresses: the caller keeps them alive, and has checked that they are long enough.
"""

from __future__ import annotations

import numpy as np
from numba import int64, uint64, void

from zonebloom.sbbf.addresses import copy_32, copy_64
from zonebloom.sbbf.jit import inlined, kernel, readonly
from zonebloom.sbbf.slice_layout import ALL_ONES, ROWS_PER_BLOCK, Tile
from zonebloom.sbbf.vectors import (
    swaps_into_blocks,
    swaps_into_rows,
    swaps_of_blocks,
    swaps_of_rows,
)
from zonebloom.sbbf.xxh64 import hash_memory

# A piece is this many consecutive blocks of one filter. 512 pieces fit the L2 cache.
_PIECE_BLOCKS = 16
# 64-bit words from one piece to the next. With a power of two, all pieces would compete for the
# same few sets of the cache.
_PIECE_WORDS = _PIECE_BLOCKS * 4 + 8
_STRIDE = np.uint64(_PIECE_WORDS * 8)
_STRIP_ZONES = 512


_U0, _U8, _U32, _U64 = map(np.uint64, (0, 8, 32, 64))


@inlined
def address_of(array):
    return np.uint64(array.ctypes.data)


@inlined
def _transpose_to_rows(pieces, stage, strip, group):
    """Transpose one block of 64 zones into one word of each row of ``strip``, 64 bytes a row."""
    for i in range(8):
        zone = np.uint64(i)
        source, target = pieces + zone * _STRIDE, stage + zone * _U32
        swaps_of_blocks(source, _U8 * _STRIDE, _U0, target, _U8 * _U32, _U0)
    for i in range(8):
        row = np.uint64(8 * i)
        target = strip + row * _U64 + np.uint64(group) * _U8
        swaps_into_rows(stage + row * _U32, _U32, _U0, target, _U64, _U64 * _U64)


@inlined
def _transpose_to_blocks(strip, stage, pieces):
    """Transpose word 0 of each row of ``strip`` into one block of each of 64 zones."""
    for i in range(8):
        row = np.uint64(i)
        target = stage + row * _U32
        swaps_of_rows(strip + row * _U64, _U8 * _U64, _U64 * _U64, target, _U8 * _U32, _U0)
    for i in range(8):
        zone = np.uint64(8 * i)
        target = pieces + zone * _STRIDE
        swaps_into_blocks(stage + zone * _U32, _U32, _U0, target, _STRIDE, _U0)


@kernel(void(readonly(uint64), int64, int64, uint64[:, ::1]))
def slice_blocks(filters, first_block, row_words, out):
    """Transpose consecutive blocks of the filters of a tile into bit rows.

    `write_checks` then writes the checks of the rows.
    """
    zones, num_blocks = filters.shape[0], out.shape[0]
    pieces = np.empty(_STRIP_ZONES * _PIECE_WORDS, np.uint64)
    stage = np.empty(64 * 4, np.uint64)
    strip = np.empty(ROWS_PER_BLOCK * 8, np.uint64)
    piece_start, stage_start = address_of(pieces), address_of(stage)
    strip_start = address_of(strip)
    for word in range(0, row_words, 8):
        groups = min(8, row_words - word)
        for first in range(0, num_blocks, _PIECE_BLOCKS):
            count = min(_PIECE_BLOCKS, num_blocks - first)
            for i in range(groups * 64):
                if word * 64 + i < zones:
                    source = filters[word * 64 + i] + np.uint64((first_block + first) * 32)
                    target = piece_start + np.uint64(i * _PIECE_WORDS * 8)
                    for block in range(count):
                        offset = np.uint64(block * 32)
                        copy_32(target + offset, source + offset)
                else:
                    pieces[i * _PIECE_WORDS : i * _PIECE_WORDS + count * 4] = _U0
            for block in range(count):
                for group in range(groups):
                    start = (group * 64 * _PIECE_WORDS + block * 4) * 8
                    _transpose_to_rows(
                        piece_start + np.uint64(start), stage_start, strip_start, group
                    )
                out_block = address_of(out[first + block]) + np.uint64(word * 8)
                if groups == 8:
                    for row in range(ROWS_PER_BLOCK):
                        out_row = out_block + np.uint64(row * row_words * 8)
                        copy_64(out_row, strip_start + np.uint64(row * 64))
                else:
                    for row in range(ROWS_PER_BLOCK):
                        for group in range(groups):
                            out[first + block, row * row_words + word + group] = strip[
                                row * 8 + group
                            ]


@kernel(void(readonly(uint64, 2), int64, int64, int64, readonly(uint64)))
def unslice_blocks(blocks, first_block, row_words, first_zone, filters):
    """Transpose bit rows back into blocks of filters.

    The zones begin at ``first_zone``, a multiple of 64.
    """
    zones, num_blocks = filters.shape[0], blocks.shape[0]
    pieces = np.empty(64 * _PIECE_WORDS, np.uint64)
    stage = np.empty(64 * 4, np.uint64)
    strip = np.empty(ROWS_PER_BLOCK * 8, np.uint64)
    piece_start, stage_start = address_of(pieces), address_of(stage)
    strip_start = address_of(strip)
    for zone in range(0, zones, 64):
        word = (first_zone + zone) // 64
        for first in range(0, num_blocks, _PIECE_BLOCKS):
            count = min(_PIECE_BLOCKS, num_blocks - first)
            for block in range(count):
                for row in range(ROWS_PER_BLOCK):
                    strip[row * 8] = blocks[first + block, row * row_words + word]
                _transpose_to_blocks(strip_start, stage_start, piece_start + np.uint64(block * 32))
            for i in range(min(64, zones - zone)):
                source = piece_start + np.uint64(i * _PIECE_WORDS * 8)
                target = filters[zone + i] + np.uint64((first_block + first) * 32)
                for block in range(count):
                    copy_32(target + np.uint64(block * 32), source + np.uint64(block * 32))


@kernel(void(readonly(uint64, 2), int64, uint64, uint64, uint64[:, ::1]))
def _hash_bit_rows(blocks, row_words, seed, seed_step, out):
    size = np.uint64(row_words * 8)
    for block in range(blocks.shape[0]):
        address = address_of(blocks[block])
        for row in range(ROWS_PER_BLOCK):
            out[block, row] = hash_memory(address, size, seed + np.uint64(row))
            address += size
        seed += seed_step


def _expected_checks(blocks: np.ndarray, tile: Tile, first_block: int) -> tuple[np.ndarray, int]:
    """Return the right checks for consecutive blocks of a tile, and their position in a block."""
    checks = np.empty((len(blocks), ROWS_PER_BLOCK), dtype=np.uint64)
    _hash_bit_rows(blocks, tile.row_words, tile.block_seed(first_block), tile.seed_step, checks)
    return checks, ROWS_PER_BLOCK * tile.row_words


def write_checks(blocks: np.ndarray, tile: Tile, first_block: int) -> None:
    """Write the check of every row of consecutive blocks of a tile, and zeros as padding."""
    checks, start = _expected_checks(blocks, tile, first_block)
    blocks[:, start : start + ROWS_PER_BLOCK] = checks
    blocks[:, start + ROWS_PER_BLOCK :] = _U0


def fill_damaged(blocks: np.ndarray, tile: Tile, first_block: int) -> int:
    """Fill damaged rows with ones, which excludes no zone. Return the number of these rows."""
    checks, start = _expected_checks(blocks, tile, first_block)
    damaged = np.argwhere(blocks[:, start : start + ROWS_PER_BLOCK] != checks)
    for block, row in damaged.tolist():
        blocks[block, row * tile.row_words : (row + 1) * tile.row_words] = ALL_ONES
    return len(damaged)

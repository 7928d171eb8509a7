"""Insert, check, merge and fold over the blocks of split-block Bloom filters.

A filter is ``z`` blocks of 256 bits; a block is eight 32-bit words:

    filter   | block 0 | block 1 | ...                  | block z-1 |
                  |
    block    | word 0 | word 1 | word 2 | ... | word 7 |     32 bytes
                  |
    word     one bit set:  (uint32(hash) * salt[i]) >> 27

The upper half of a hash picks the block, ``((hash >> 32) * z) >> 32``; the lower half picks
one bit in each of the block's eight words. Source: Parquet format, BloomFilter.md, section
"Technical Approach". ``z`` need not be a power of two.

The eight words are handled as one ``<8 x i32>`` LLVM vector: one load, one or, one store.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import boolean, float64, uint8, uint32, uint64, void

from zonebloom.sbbf.blocks_numpy import SALT, WORDS_PER_BLOCK
from zonebloom.sbbf.jit import inlined, intrinsic, kernel, readonly

_WORD = ir.IntType(32)
_BLOCK = ir.VectorType(_WORD, WORDS_PER_BLOCK)


def _splat(builder, value):
    block = builder.insert_element(ir.Constant(_BLOCK, ir.Undefined), value, ir.Constant(_WORD, 0))
    zeros = ir.Constant(_BLOCK, [0] * WORDS_PER_BLOCK)
    return builder.shuffle_vector(block, ir.Constant(_BLOCK, ir.Undefined), zeros)


def _mask(builder, low):
    """The eight words of a hash's mask, one bit set in each."""
    product = builder.mul(_splat(builder, low), ir.Constant(_BLOCK, SALT.tolist()))
    bit = builder.lshr(product, ir.Constant(_BLOCK, [27] * WORDS_PER_BLOCK))
    return builder.shl(ir.Constant(_BLOCK, [1] * WORDS_PER_BLOCK), bit)


def _block_pointer(context, builder, array_type, array, word):
    data = context.make_array(array_type)(context, builder, array).data
    pointer = builder.gep(data, [word])
    return builder.bitcast(pointer, _BLOCK.as_pointer())


@intrinsic
def _set_block(typing_context, words, word, low):
    """Set the eight bits of ``low`` in the block that begins at ``words[word]``."""

    def generate(context, builder, signature, arguments):
        pointer = _block_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        block = builder.load(pointer, align=4)
        builder.store(builder.or_(block, _mask(builder, arguments[2])), pointer, align=4)
        return context.get_dummy_value()

    return void(words, uint64, uint32), generate


@intrinsic
def _has_block(typing_context, words, word, low):
    """Whether the eight bits of ``low`` are set in the block that begins at ``words[word]``."""

    def generate(context, builder, signature, arguments):
        pointer = _block_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        block = builder.load(pointer, align=4)
        missing = builder.and_(builder.not_(block), _mask(builder, arguments[2]))
        clear = builder.icmp_unsigned("==", missing, ir.Constant(_BLOCK, [0] * WORDS_PER_BLOCK))
        flags = builder.bitcast(clear, ir.IntType(WORDS_PER_BLOCK))
        return builder.icmp_unsigned("==", flags, ir.Constant(ir.IntType(WORDS_PER_BLOCK), 0xFF))

    return boolean(words, uint64, uint32), generate


@inlined
def _first_word(hashed, num_blocks):
    block = ((hashed >> np.uint64(32)) * num_blocks) >> np.uint64(32)
    return block * np.uint64(WORDS_PER_BLOCK)


@inlined
def _low(hashed):
    return np.uint32(hashed & np.uint64(0xFFFFFFFF))


@kernel(void(uint32[::1], readonly(uint64)))
def insert(words, hashes):
    """Insert hashes, shape ``(n,)``, into one filter, shape ``(8 z,)``."""
    num_blocks = np.uint64(words.shape[0] // WORDS_PER_BLOCK)
    for i in range(hashes.shape[0]):
        _set_block(words, _first_word(hashes[i], num_blocks), _low(hashes[i]))


@kernel(
    void(uint32[:, ::1], readonly(uint64), readonly(uint8), uint64, uint64, uint64, boolean[::1])
)
def insert_zones(filters, hashes, validity, validity_offset, first_row, zone_rows, has_null):
    """Insert a run of rows into the filters of the zones they fall in.

    Parameters
    ----------
    filters : uint32 array, shape (zones, 8 z)
        Filters of consecutive zones; modified.
    hashes : uint64 array, shape (n,)
        Hash of each row, anything under a null.
    validity : uint8 array
        Arrow validity bitmap, or of size 0 when no row is null.
    validity_offset : uint64
        Bit of ``hashes[0]`` in the bitmap.
    first_row : uint64
        Row of ``hashes[0]``, counted from the start of ``filters[0]``'s zone.
    zone_rows : uint64
        Rows a zone.
    has_null : bool array, shape (zones,)
        Set for zones that receive a null; modified.
    """
    num_words = np.uint64(filters.shape[1])
    num_blocks = num_words // np.uint64(WORDS_PER_BLOCK)
    words = filters.reshape(filters.size)
    rows = np.uint64(hashes.shape[0])
    row = np.uint64(0)
    zone = first_row // zone_rows
    while row < rows:
        stop = min(rows, (zone + np.uint64(1)) * zone_rows - first_row)
        base = zone * num_words
        if validity.shape[0] == 0:
            for i in range(row, stop):
                _set_block(words, base + _first_word(hashes[i], num_blocks), _low(hashes[i]))
        else:
            for i in range(row, stop):
                bit = validity_offset + np.uint64(i)
                if (validity[bit >> np.uint64(3)] >> (bit & np.uint64(7))) & np.uint8(1):
                    _set_block(words, base + _first_word(hashes[i], num_blocks), _low(hashes[i]))
                else:
                    has_null[zone] = True
        row = stop
        zone += np.uint64(1)


@kernel(void(readonly(uint32), readonly(uint64), boolean[::1]))
def check(words, hashes, out):
    """Tell for each hash, shape ``(n,)``, whether one filter, shape ``(8 z,)``, may hold it."""
    num_blocks = np.uint64(words.shape[0] // WORDS_PER_BLOCK)
    for i in range(hashes.shape[0]):
        out[i] = _has_block(words, _first_word(hashes[i], num_blocks), _low(hashes[i]))


@kernel(void(readonly(uint32), readonly(uint64), readonly(uint64), readonly(uint64), boolean[::1]))
def check_any(words, first_words, num_blocks, hashes, out):
    """Tell for each filter whether it may hold any of the hashes.

    Parameters
    ----------
    words : uint32 array
        Memory in which all the filters lie.
    first_words, num_blocks : uint64 array, shape (filters,)
        Where each filter begins in ``words``, and its number of blocks.
    hashes : uint64 array, shape (n,)
    out : bool array, shape (filters,)
        Set where a hash may be in; entries already true are left alone.
    """
    for zone in range(first_words.shape[0]):
        if out[zone]:
            continue
        for i in range(hashes.shape[0]):
            word = first_words[zone] + _first_word(hashes[i], num_blocks[zone])
            if _has_block(words, word, _low(hashes[i])):
                out[zone] = True
                break


@kernel(void(uint32[::1], readonly(uint32)))
def merge(words, other):
    """OR ``other`` into ``words``; both have shape ``(8 z,)``."""
    for i in range(words.shape[0]):
        words[i] |= other[i]


@intrinsic
def _bits_set(typing_context, word):
    """Number of bits set in a 32-bit word."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return uint32(uint32), generate


@kernel(float64(readonly(uint32)))
def folded_fpp(words):
    """False positive probability of a filter, shape ``(16 z,)``, were it folded once.

    As filled: the mean over blocks of the product over words of the share of bits set.
    """
    blocks = words.shape[0] // (2 * WORDS_PER_BLOCK)
    total = 0.0
    for block in range(blocks):
        share = 1.0
        for word in range(WORDS_PER_BLOCK):
            at = 2 * block * WORDS_PER_BLOCK + word
            share *= _bits_set(words[at] | words[at + WORDS_PER_BLOCK]) / 32.0
        total += share
    return total / blocks


@kernel(void(readonly(uint32), uint32[::1]))
def fold(words, out):
    """OR each pair of adjacent blocks into one: shape ``(16 z,)`` to ``(8 z,)``.

    With half the blocks a hash's block number is half as large, rounded down, so adjacent
    blocks are the ones that meet, and every value inserted is still found.
    """
    for block in range(out.shape[0] // WORDS_PER_BLOCK):
        for word in range(WORDS_PER_BLOCK):
            at = 2 * block * WORDS_PER_BLOCK + word
            out[block * WORDS_PER_BLOCK + word] = words[at] | words[at + WORDS_PER_BLOCK]

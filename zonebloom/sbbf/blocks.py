"""Kernels that insert hashes into filters and check them.

They treat the eight words of a block as one ``<8 x i32>`` LLVM vector.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import boolean, float64, int64, uint8, uint32, uint64, void

from zonebloom.sbbf.addresses import count_ones
from zonebloom.sbbf.jit import intrinsic, kernel, linked, readonly
from zonebloom.sbbf.spec import BITS_PER_WORD, SALT, WORDS_PER_BLOCK

_WORD = ir.IntType(32)
_VECTOR_8X32 = ir.VectorType(_WORD, WORDS_PER_BLOCK)
# The product of the set bits of the words of a block with all bits set.
_FULL_BLOCK = float(BITS_PER_WORD**WORDS_PER_BLOCK)


def _repeat_value(builder, value):
    block = builder.insert_element(
        ir.Constant(_VECTOR_8X32, ir.Undefined), value, ir.Constant(_WORD, 0)
    )
    zeros = ir.Constant(_VECTOR_8X32, [0] * WORDS_PER_BLOCK)
    return builder.shuffle_vector(block, ir.Constant(_VECTOR_8X32, ir.Undefined), zeros)


def _mask(builder, low):
    """Return the mask of a hash: eight words with one bit set in each."""
    product = builder.mul(_repeat_value(builder, low), ir.Constant(_VECTOR_8X32, SALT.tolist()))
    bit = builder.lshr(product, ir.Constant(_VECTOR_8X32, [27] * WORDS_PER_BLOCK))
    return builder.shl(ir.Constant(_VECTOR_8X32, [1] * WORDS_PER_BLOCK), bit)


def _block_pointer(context, builder, array_type, array, word):
    data = context.make_array(array_type)(context, builder, array).data
    pointer = builder.gep(data, [word])
    return builder.bitcast(pointer, _VECTOR_8X32.as_pointer())


@intrinsic
def _set_bits(typing_context, words, word, low):
    """Set the eight bits of ``low`` in the block that begins at ``words[word]``."""

    def generate(context, builder, signature, arguments):
        pointer = _block_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        block = builder.load(pointer, align=4)
        builder.store(builder.or_(block, _mask(builder, arguments[2])), pointer, align=4)
        return context.get_dummy_value()

    return void(words, uint64, uint32), generate


@intrinsic
def _has_bits(typing_context, words, word, low):
    def generate(context, builder, signature, arguments):
        pointer = _block_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        block = builder.load(pointer, align=4)
        missing = builder.and_(builder.not_(block), _mask(builder, arguments[2]))
        clear = builder.icmp_unsigned(
            "==", missing, ir.Constant(_VECTOR_8X32, [0] * WORDS_PER_BLOCK)
        )
        flags = builder.bitcast(clear, ir.IntType(WORDS_PER_BLOCK))
        return builder.icmp_unsigned("==", flags, ir.Constant(ir.IntType(WORDS_PER_BLOCK), 0xFF))

    return boolean(words, uint64, uint32), generate


@linked
def _first_word(hashed, num_blocks):
    block = ((hashed >> np.uint64(32)) * num_blocks) >> np.uint64(32)
    return block * np.uint64(WORDS_PER_BLOCK)


@linked
def _low(hashed):
    return np.uint32(hashed & np.uint64(0xFFFFFFFF))


@kernel(void(uint32[::1], readonly(uint64)))
def insert(words, hashes):
    num_blocks = np.uint64(words.shape[0] // WORDS_PER_BLOCK)
    for i in range(hashes.shape[0]):
        _set_bits(words, _first_word(hashes[i], num_blocks), _low(hashes[i]))


@kernel(
    void(uint32[:, ::1], readonly(uint64), readonly(uint8), uint64, uint64, uint64, boolean[::1])
)
def insert_zones(filters, hashes, validity, validity_offset, first_row, zone_rows, has_null):
    """Insert the hashes of consecutive rows into the filters of the zones that hold the rows.

    ``filters`` has shape ``(zones, 8 z)``. ``validity`` is an Arrow bitmap that begins at bit
    ``validity_offset``, empty if no row is null. ``first_row`` is counted from the first zone.
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
                _set_bits(words, base + _first_word(hashes[i], num_blocks), _low(hashes[i]))
        else:
            for i in range(row, stop):
                bit = validity_offset + np.uint64(i)
                if (validity[bit >> np.uint64(3)] >> (bit & np.uint64(7))) & np.uint8(1):
                    _set_bits(words, base + _first_word(hashes[i], num_blocks), _low(hashes[i]))
                else:
                    has_null[zone] = True
        row = stop
        zone += np.uint64(1)


@kernel(int64(readonly(uint32, 2), float64, uint32[::1], int64[::1]))
def fold_each(filters, probability, out, sizes):
    """Fold filters as `zonebloom.sbbf.sizing.fold_filter` does, and write them one after another.

    ``sizes[i]`` is set to the words of filter i. Return the words of all filters.
    """
    used = 0
    for zone in range(filters.shape[0]):
        words = filters[zone]
        size = words.shape[0]
        folded = out[used : used + size]
        for word in range(size):
            folded[word] = words[word]
        while size % (2 * WORDS_PER_BLOCK) == 0:
            num_blocks = size // (2 * WORDS_PER_BLOCK)
            total = 0.0
            for block in range(num_blocks):
                first = 2 * WORDS_PER_BLOCK * block
                second = first + WORDS_PER_BLOCK
                # The product has at most 41 bits, so it is exact in any order. The sum is added in
                # a fixed order, because its last digit may decide how often a filter is folded.
                product = np.uint64(1)
                for word in range(WORDS_PER_BLOCK):
                    product *= count_ones(np.uint64(folded[first + word] | folded[second + word]))
                total += np.float64(product)
            if total / _FULL_BLOCK / num_blocks > probability:
                break
            for block in range(num_blocks):
                for word in range(WORDS_PER_BLOCK):
                    target = WORDS_PER_BLOCK * block + word
                    first = 2 * WORDS_PER_BLOCK * block + word
                    folded[target] = folded[first] | folded[first + WORDS_PER_BLOCK]
            size //= 2
        sizes[zone] = size
        used += size
    return used


@kernel(void(readonly(uint32), readonly(uint64), boolean[::1]))
def check(words, hashes, out):
    """Set ``out[i]`` to whether one filter, shape ``(8 z,)``, may hold hash i, shape ``(n,)``."""
    num_blocks = np.uint64(words.shape[0] // WORDS_PER_BLOCK)
    for i in range(hashes.shape[0]):
        out[i] = _has_bits(words, _first_word(hashes[i], num_blocks), _low(hashes[i]))


@kernel(void(readonly(uint32), readonly(uint64), readonly(uint64), readonly(uint64), boolean[::1]))
def check_filters(words, first_words, num_blocks, hashes, out):
    """Set ``out[i]`` if filter i may hold any hash. See `zonebloom.sbbf.lookup.check_any`."""
    for zone in range(first_words.shape[0]):
        if out[zone]:
            continue
        for i in range(hashes.shape[0]):
            word = first_words[zone] + _first_word(hashes[i], num_blocks[zone])
            if _has_bits(words, word, _low(hashes[i])):
                out[zone] = True
                break

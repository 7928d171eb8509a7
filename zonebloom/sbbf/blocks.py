"""Kernels that insert hashes into filters and check them.

They treat the eight words of a block as one ``<8 x i32>`` LLVM vector.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import boolean, uint8, uint32, uint64, void

from zonebloom.sbbf.jit import inlined, intrinsic, kernel, readonly
from zonebloom.sbbf.spec import SALT, WORDS_PER_BLOCK

_WORD = ir.IntType(32)
_VECTOR_8X32 = ir.VectorType(_WORD, WORDS_PER_BLOCK)


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


@inlined
def _first_word(hashed, num_blocks):
    block = ((hashed >> np.uint64(32)) * num_blocks) >> np.uint64(32)
    return block * np.uint64(WORDS_PER_BLOCK)


@inlined
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

"""Kernels that cut strings into words or trigrams, and hash these with XXH64.

Bytes that are not UTF-8 stay as they are.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, int32, int64, uint8, uint64

from zonebloom.sbbf.addresses import load_8
from zonebloom.sbbf.jit import kernel, linked, readonly
from zonebloom.sbbf.table_slots import slot_of
from zonebloom.sbbf.xxh64 import hash_memory

_ZERO, _ONE, _TRIGRAM = np.uint64(0), np.uint64(1), np.uint64(3)
_ASCII_STOP = np.uint64(0x80)
_NO_HASH = np.uint64(0)


@linked
def _fold_text(source, length, lower, fold, target):
    """Write a folded text to ``target``. Return its number of bytes, which is no more than before.

    ``lower`` maps ASCII bytes, ``fold`` maps code points, to -1 if they are left out.
    """
    position, end = _ZERO, 0
    while position < length:
        byte = load_8(source + position)
        if byte < _ASCII_STOP:
            target[end] = lower[byte]
            end += 1
            position += _ONE
            continue
        size = _ONE
        if byte >= np.uint64(0xF0):
            size = np.uint64(4)
        elif byte >= np.uint64(0xE0):
            size = np.uint64(3)
        elif byte >= np.uint64(0xC0):
            size = np.uint64(2)
        code = np.int64(-1)
        if size > _ONE and size <= length - position:
            code = np.int64(byte) & ((1 << (7 - np.int64(size))) - 1)
            for i in range(1, np.int64(size)):
                following = np.int64(load_8(source + position + np.uint64(i)))
                if following & 0xC0 != 0x80:
                    code = np.int64(-1)
                    break
                code = (code << 6) | (following & 0x3F)
        if code < 0 or code >= fold.shape[0] or fold[code] == code:
            # Copy one byte of text that is not UTF-8, or a character that stays as it is.
            count = np.int64(size) if code >= 0 else 1
            for i in range(count):
                target[end] = np.uint8(load_8(source + position + np.uint64(i)))
                end += 1
            position += np.uint64(count)
            continue
        folded = np.int64(fold[code])
        if folded >= 0x800:
            target[end] = np.uint8(0xE0 | (folded >> 12))
            target[end + 1] = np.uint8(0x80 | ((folded >> 6) & 0x3F))
            target[end + 2] = np.uint8(0x80 | (folded & 0x3F))
            end += 3
        elif folded >= 0x80:
            target[end] = np.uint8(0xC0 | (folded >> 6))
            target[end + 1] = np.uint8(0x80 | (folded & 0x3F))
            end += 2
        elif folded >= 0:
            target[end] = np.uint8(folded)
            end += 1
        position += size
    return end


@linked
def _hash_words(start, length, is_word, out, count):
    """Write the hash of each word of a text to ``out``. Return the new number of hashes."""
    position = _ZERO
    while position < length:
        while position < length and not is_word[load_8(start + position)]:
            position += _ONE
        first = position
        while position < length and is_word[load_8(start + position)]:
            position += _ONE
        if position > first:
            out[count] = hash_memory(start + first, position - first, _ZERO)
            count += 1
    return count


@kernel(
    int64(
        uint64,
        readonly(int64),
        boolean,
        boolean,
        readonly(boolean),
        readonly(uint8),
        readonly(int32),
        uint8[::1],
        uint64[::1],
        int64[::1],
    )
)
def write_token_hashes(
    address, offsets, is_trigrams, is_folded, is_word, lower, fold, scratch, out, ends
):
    """Hash the words or trigrams of texts.

    Parameters
    ----------
    address : int
        The address of the bytes of all texts.
    offsets : int64 array, shape (texts + 1,)
    is_trigrams, is_folded : bool
    is_word : bool array, shape (256,)
    lower : uint8 array, shape (256,)
    fold : int32 array
        The folded code point of each code point, or -1 if it is left out. It may be shorter.
    scratch : uint8 array
        At least as long as the longest text.
    out : uint64 array
        At least as long as all texts.
    ends : int64 array, shape (texts,)

    Returns
    -------
    int
        The number of hashes.
    """
    count = 0
    for i in range(ends.shape[0]):
        start = address + np.uint64(offsets[i])
        length = np.uint64(offsets[i + 1] - offsets[i])
        if is_folded:
            length = np.uint64(_fold_text(start, length, lower, fold, scratch))
            start = np.uint64(scratch.ctypes.data)
        if is_trigrams:
            for position in range(np.int64(length) - 2):
                out[count] = hash_memory(start + np.uint64(position), _TRIGRAM, _ZERO)
                count += 1
        else:
            count = _hash_words(start, length, is_word, out, count)
        ends[i] = count
    return count


@kernel(int64(readonly(uint64), uint64[::1], uint64, uint64[::1]))
def write_distinct(hashes, table, seed, out):
    """Write the distinct hashes to ``out`` in the order of their first place.

    ``table`` has zeros, a power of two and at least twice as many as there are hashes. The seed is
    one of `table_slots`.
    """
    mask = table.shape[0] - 1
    count, has_zero = 0, False
    for i in range(hashes.shape[0]):
        hashed = hashes[i]
        if hashed == _NO_HASH:
            if not has_zero:
                has_zero = True
                out[count] = hashed
                count += 1
            continue
        slot = slot_of(hashed, seed, table)
        while table[slot] != _NO_HASH and table[slot] != hashed:
            slot = (slot + 1) & mask
        if table[slot] == _NO_HASH:
            table[slot] = hashed
            out[count] = hashed
            count += 1
    return count

"""Kernels that look hashes up in blocks, and that decode all entries of blocks.

Every number in a block is checked before it is used, because a forged file may have a right
checksum.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, int64, types, uint64, void

from zonebloom.index.hash.file import HEAD_WORDS
from zonebloom.sbbf.addresses import address_of, count_ones, trailing_zeros
from zonebloom.sbbf.jit import kernel, linked, readonly
from zonebloom.sbbf.xxh64 import hash_memory

# Positions in the state of a search.
NEXT_KEY, NUM_MATCHES, NUM_FOUND_POSTINGS, NEEDED = range(4)

_U0, _U1, _U6, _U8, _U32, _U63, _U64 = map(np.uint64, (0, 1, 6, 8, 32, 63, 64))
_LOW_HALF = np.uint64(0xFFFFFFFF)
# Larger buckets, which only crafted keys fill, are searched by halving.
_MAX_SCANNED_ENTRIES = 64


@kernel(void(readonly(uint64), int64, readonly(int64), uint64, boolean[::1]))
def check_pieces(words, piece_words, offsets, salt, is_damaged):
    """Compare pieces of one size with their checksums. ``offsets`` are those in the file."""
    address = address_of(words)
    for i in range(offsets.shape[0]):
        start = i * piece_words
        piece = address + np.uint64(start * 8) + _U8
        seed = salt + np.uint64(offsets[i])
        is_damaged[i] = hash_memory(piece, np.uint64(piece_words * 8 - 8), seed) != words[start]


@linked
def _entry(words, first_word, number, entry_bits):
    position = np.uint64(number) * entry_bits
    word = first_word + np.int64(position >> _U6)
    offset = position & _U63
    value = words[word] >> offset
    if offset + entry_bits > _U64:
        value |= words[word + 1] << (_U64 - offset)
    return value & ((_U1 << entry_bits) - _U1)


@linked
def _first_not_below(words, first_word, start, stop, entry_bits, value):
    """Return the first of the sorted entries from ``start`` to ``stop`` that is not below."""
    while start < stop:
        middle = (start + stop) >> 1
        if _entry(words, first_word, middle, entry_bits) < value:
            start = middle + 1
        else:
            stop = middle
    return start


@linked
def _words_of(num_bits):
    return (num_bits + 63) >> 6


@linked
def _fits(num_entries, num_postings, num_buckets, entry_bits, num_words):
    counts = _words_of(num_entries + num_buckets)
    entries = _words_of(num_entries * entry_bits)
    return HEAD_WORDS + counts + entries + 2 * num_postings <= num_words


@linked
def _select_zero(word, number):
    """Return the position of a zero bit of a word, which has more than ``number`` zeros."""
    zeros, position = ~word, np.int64(0)
    # Halve the word down to a byte.
    for width in (32, 16, 8):
        count = np.int64(count_ones(zeros & ((_U1 << np.uint64(width)) - _U1)))
        if count <= number:
            number -= count
            zeros >>= np.uint64(width)
            position += width
    for _ in range(number):
        zeros &= zeros - _U1
    return position + np.int64(trailing_zeros(zeros))


@linked
def _entries_of(words, counts, num_bits, num_entries, bucket, word, zeros_before):
    """Return the first entry of a bucket and the one after its last, and where the search stopped.

    The search for the bucket begins at a word of the counts, before which there are
    ``zeros_before`` zeros. The first entry is -1 if the block contradicts itself.
    """
    # The entries of a bucket begin after the zero that ends the bucket before.
    position = np.int64(0)
    if bucket:
        zeros = 64 - np.int64(count_ones(words[counts + word]))
        while zeros_before + zeros < bucket and (word + 1) * 64 < num_bits:
            zeros_before += zeros
            word += 1
            zeros = 64 - np.int64(count_ones(words[counts + word]))
        if zeros_before + zeros < bucket:
            return np.int64(-1), np.int64(0), word, zeros_before
        position = word * 64 + 1
        position += _select_zero(words[counts + word], bucket - 1 - zeros_before)
    # There are `bucket` zeros before this position, so the rest are entries.
    first = position - bucket
    while position < num_bits and (
        (words[counts + (position >> 6)] >> np.uint64(position & 63)) & _U1
    ):
        position += 1
    if position - bucket > num_entries or position >= num_bits:
        return np.int64(-1), np.int64(0), word, zeros_before
    return first, position - bucket, word, zeros_before


@linked
def _bucket_and_remainder(hashed, block_bits, bucket_bits, remainder_bits):
    low = hashed << block_bits
    # Shift by one bit first, because a shift by 64 bits has no result.
    bucket = np.int64((low >> _U1) >> (_U63 - bucket_bits))
    return bucket, (low << bucket_bits) >> (_U64 - remainder_bits)


@kernel(int64(readonly(uint64), readonly(uint64), readonly(int64), int64[::1]))
def find_one(words, hashes, shape, out):
    """Find the zones of one hash in its block, and return their number.

    Return -1 if the table has to find them without this kernel: if the hash has a posting or too
    many entries for ``out``, or if the block contradicts itself. ``shape`` is the same as for
    `find_sorted`.
    """
    block_bits, bucket_bits = np.uint64(shape[0]), np.uint64(shape[1])
    remainder_bits, zone_bits = np.uint64(shape[2]), np.uint64(shape[3])
    entry_bits = remainder_bits + zone_bits
    num_buckets = np.int64(1) << np.int64(bucket_bits)
    num_entries = np.int64(words[1] & _LOW_HALF)
    num_postings = np.int64(words[1] >> _U32)
    if not _fits(num_entries, num_postings, num_buckets, np.int64(entry_bits), words.shape[0]):
        return -1
    num_bits = num_entries + num_buckets
    bucket, remainder = _bucket_and_remainder(hashes[0], block_bits, bucket_bits, remainder_bits)
    first, last, _, _ = _entries_of(
        words, HEAD_WORDS, num_bits, num_entries, bucket, np.int64(0), np.int64(0)
    )
    if first < 0 or last - first > out.shape[0]:
        return -1
    entries = HEAD_WORDS + _words_of(num_bits)
    zone_mask = (_U1 << zone_bits) - _U1
    count, previous = np.int64(0), np.int64(-1)
    for i in range(first, last):
        value = _entry(words, entries, i, entry_bits)
        if value >> zone_bits == remainder:
            zone = np.int64(value & zone_mask)
            # The mark of a posting is also larger than any zone.
            if zone <= previous or zone >= shape[4]:
                return -1
            out[count] = previous = zone
            count += 1
    return count


@kernel(
    void(
        readonly(uint64),
        int64,
        readonly(int64),
        readonly(int64),
        readonly(uint64),
        readonly(int64),
        int64,
        int64[::1],
        int64[::1],
        int64[::1],
        int64[:, ::1],
        boolean[::1],
        int64[::1],
    )
)
def find_sorted(
    blocks,
    block_words,
    key_starts,
    key_stops,
    hashes,
    shape,
    first_block,
    out_keys,
    out_zones,
    out_posting_keys,
    out_postings,
    is_damaged,
    state,
):
    """Find the zones of sorted hashes in blocks of one size, until the output may overflow.

    Parameters
    ----------
    blocks : uint64 array
        Blocks of ``block_words`` words each, beginning with their checksum.
    key_starts, key_stops : int64 array, one item per block
        Which hashes belong to the block.
    shape : int64 array
        The fields of `BlockShape`, and the number of zones of the file.
    first_block : int
        The block at which to begin. ``state[NEXT_KEY]`` is the hash at which to begin.
    out_keys, out_zones : int64 array
        Receive pairs of a hash, by position, and a zone.
    out_posting_keys, out_postings : int64 array
        Receive the position of a hash, and offset and bytes of a posting.
    is_damaged : bool array, one item per block
        Blocks to leave out. The kernel adds those that contradict themselves.
    state : int64 array
        Receives the next hash, the numbers of matches and of found postings, and, if even one hash
        does not fit into the output, the room it needs.
    """
    block_bits, bucket_bits = np.uint64(shape[0]), np.uint64(shape[1])
    remainder_bits, zone_bits = np.uint64(shape[2]), np.uint64(shape[3])
    entry_bits = remainder_bits + zone_bits
    num_buckets = np.int64(1) << np.int64(bucket_bits)
    mark = (_U1 << zone_bits) - _U1
    num_zones = shape[4]
    capacity = min(out_keys.shape[0], out_postings.shape[0])
    num_matches = num_found_postings = np.int64(0)
    state[NEEDED] = 0
    key = state[NEXT_KEY]
    for number in range(first_block, key_starts.shape[0]):
        key = max(key, key_starts[number])
        stop_key = key_stops[number]
        block = number * block_words
        num_entries = np.int64(blocks[block + 1] & _LOW_HALF)
        num_postings = np.int64(blocks[block + 1] >> _U32)
        if is_damaged[number]:
            continue
        if not _fits(num_entries, num_postings, num_buckets, np.int64(entry_bits), block_words):
            is_damaged[number] = True
            continue
        counts = block + HEAD_WORDS
        num_bits = num_entries + num_buckets
        entries = counts + _words_of(num_bits)
        references = entries + _words_of(num_entries * np.int64(entry_bits))
        word, zeros_before = np.int64(0), np.int64(0)
        last_bucket = np.int64(-1)
        first = last = np.int64(0)
        num_marks = marks_counted_to = np.int64(0)
        while key < stop_key:
            bucket, remainder = _bucket_and_remainder(
                hashes[key], block_bits, bucket_bits, remainder_bits
            )
            if bucket != last_bucket:
                first, last, word, zeros_before = _entries_of(
                    blocks, counts, num_bits, num_entries, bucket, word, zeros_before
                )
                if first < 0:
                    is_damaged[number] = True
                    break
                last_bucket = bucket
            start, stop = first, last
            if stop - start > _MAX_SCANNED_ENTRIES:
                value = remainder << zone_bits
                start = _first_not_below(blocks, entries, start, stop, entry_bits, value)
                value = (remainder + _U1) << zone_bits
                stop = _first_not_below(blocks, entries, start, stop, entry_bits, value)
            size = stop - start
            if num_matches + size > capacity or num_found_postings + size > capacity:
                state[NEXT_KEY] = key
                state[NUM_MATCHES] = num_matches
                state[NUM_FOUND_POSTINGS] = num_found_postings
                state[NEEDED] = size
                return
            # The zones of a hash ascend, and a posting has no other entry beside it.
            previous = np.int64(-1)
            for i in range(start, stop):
                value = _entry(blocks, entries, i, entry_bits)
                if value >> zone_bits != remainder:
                    continue
                zone = value & mark
                if zone != mark:
                    if np.int64(zone) <= previous or np.int64(zone) >= num_zones:
                        is_damaged[number] = True
                        break
                    previous = np.int64(zone)
                    out_keys[num_matches] = key
                    out_zones[num_matches] = np.int64(zone)
                    num_matches += 1
                    continue
                # Hashes are sorted, so the marks before the last one need not be counted again.
                for j in range(marks_counted_to, i):
                    if _entry(blocks, entries, j, entry_bits) & mark == mark:
                        num_marks += 1
                marks_counted_to = i
                if num_marks >= num_postings or previous >= 0:
                    is_damaged[number] = True
                    break
                previous = num_zones
                out_posting_keys[num_found_postings] = key
                out_postings[num_found_postings, 0] = np.int64(blocks[references + 2 * num_marks])
                out_postings[num_found_postings, 1] = np.int64(
                    blocks[references + 2 * num_marks + 1]
                )
                num_found_postings += 1
            key += 1
        key = stop_key
    state[NEXT_KEY] = key
    state[NUM_MATCHES] = num_matches
    state[NUM_FOUND_POSTINGS] = num_found_postings


@linked
def _decode_block(words, shape, block, out_hashes, out_zones):
    """Decode all entries of a block. Return their number, or -1 if the block contradicts itself.

    The hashes have zeros after the bits that the index keeps. The zone of a posting is -1.
    """
    block_bits, bucket_bits = np.uint64(shape[0]), np.uint64(shape[1])
    remainder_bits, zone_bits = np.uint64(shape[2]), np.uint64(shape[3])
    entry_bits = remainder_bits + zone_bits
    hash_bits = block_bits + bucket_bits + remainder_bits
    num_buckets = np.int64(1) << np.int64(bucket_bits)
    mark = (_U1 << zone_bits) - _U1
    num_entries = np.int64(words[1] & _LOW_HALF)
    num_postings = np.int64(words[1] >> _U32)
    entry_width = np.int64(entry_bits)
    if not _fits(num_entries, num_postings, num_buckets, entry_width, words.shape[0]):
        return -1
    num_bits = num_entries + num_buckets
    entries = HEAD_WORDS + _words_of(num_bits)
    entry_mask = (_U1 << entry_bits) - _U1
    last_word = np.int64(words.shape[0] - 1)
    count, num_marks = np.int64(0), np.int64(0)
    for number in range(_words_of(num_bits)):
        ones = words[HEAD_WORDS + number]
        num_left = num_bits - 64 * number
        if num_left < 64:
            ones &= (_U1 << np.uint64(num_left)) - _U1
        while ones:
            # There are `count` ones before this one, so the other bits before it are zeros.
            bucket = 64 * number + np.int64(trailing_zeros(ones)) - count
            ones &= ones - _U1
            if count == num_entries or bucket >= num_buckets:
                return -1
            # Two words without a branch, which would be predicted wrongly for every third entry.
            position = np.uint64(count) * entry_bits
            word = entries + np.int64(position >> _U6)
            offset = position & _U63
            value = words[word] >> offset
            value |= (words[min(word + 1, last_word)] << (_U63 - offset)) << _U1
            value &= entry_mask
            zone = value & mark
            if zone != mark and np.int64(zone) >= shape[4]:
                return -1
            prefix = (np.uint64(block) << bucket_bits) | np.uint64(bucket)
            prefix = (prefix << remainder_bits) | (value >> zone_bits)
            out_hashes[count] = prefix << (_U64 - hash_bits)
            out_zones[count] = -1 if zone == mark else np.int64(zone)
            num_marks += zone == mark
            count += 1
    return count if count == num_entries and num_marks == num_postings else np.int64(-1)


@kernel(
    types.UniTuple(int64, 2)(
        readonly(uint64),
        int64,
        readonly(int64),
        int64,
        readonly(int64),
        boolean[::1],
        uint64[::1],
        uint64[::1],
        int64[:, ::1],
    )
)
def pack_slots(
    words, slot_words, shape, first_slot, packing, is_left_out, out, out_prefixes, out_postings
):
    """Decode the blocks of slots that follow one another, and pack each pair into one number.

    A number has so many first bits of the hash as ``packing[0]`` says, and in the ``packing[1]``
    bits after them the zone, plus ``packing[2]``. For a posting, ``out_prefixes`` gets the number
    with zeros for its zone, and ``out_postings`` where it lies in the heap, and its size.

    Slots that are left out already stay so. A block that lies in the heap, or contradicts itself,
    is left out too. Return the number of pairs, and that of postings.
    """
    hash_shift, zone_bits = _U64 - np.uint64(packing[0]), np.uint64(packing[1])
    num_buckets = np.int64(1) << shape[1]
    entry_bits = shape[2] + shape[3]
    hashes, zones = np.empty(slot_words * 64, np.uint64), np.empty(slot_words * 64, np.int64)
    num_pairs = num_postings = 0
    for i in range(is_left_out.shape[0]):
        if is_left_out[i]:
            continue
        block = words[i * slot_words : (i + 1) * slot_words]
        # A block in the heap claims more entries than fit into a slot.
        count = _decode_block(block, shape, first_slot + i, hashes, zones)
        if count < 0 or count > out.shape[0] - num_pairs:
            is_left_out[i] = True
            continue
        reference = HEAD_WORDS + _words_of(count + num_buckets)
        reference += _words_of(count * entry_bits)
        for k in range(count):
            prefix = hashes[k] >> hash_shift << zone_bits
            if zones[k] >= 0:
                out[num_pairs] = prefix | np.uint64(zones[k] + packing[2])
                num_pairs += 1
                continue
            out_prefixes[num_postings] = prefix
            out_postings[num_postings, 0] = np.int64(block[reference])
            out_postings[num_postings, 1] = np.int64(block[reference + 1])
            reference += 2
            num_postings += 1
    return num_pairs, num_postings

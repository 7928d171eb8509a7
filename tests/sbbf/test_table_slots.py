"""Test that keys chosen for it do not share the slots of hash tables in memory."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from zonebloom.index.row_keys import token_kernels
from zonebloom.parquet.key_tests import index_values
from zonebloom.sbbf import table_slots
from zonebloom.sbbf.xxh64 import PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5

COUNT = 20_000
_BITS = 64


def inverse(odd: np.uint64) -> np.uint64:
    return np.uint64(pow(int(odd), -1, 1 << _BITS))


def rotate_right(words: np.ndarray, bits: int) -> np.ndarray:
    return (words >> np.uint64(bits)) | (words << np.uint64(_BITS - bits))


def undo_xxh64(hashes: np.ndarray) -> np.ndarray:
    """Return the eight bytes that have each hash without a seed."""
    words = (hashes ^ (hashes >> np.uint64(32))) * inverse(PRIME_3)
    words = (words ^ (words >> np.uint64(29)) ^ (words >> np.uint64(58))) * inverse(PRIME_2)
    words = words ^ (words >> np.uint64(33))
    words = rotate_right((words - PRIME_4) * inverse(PRIME_1), 27) ^ (PRIME_5 + np.uint64(8))
    return rotate_right(words * inverse(PRIME_1), 31) * inverse(PRIME_2)


def crafted() -> np.ndarray:
    """Return numbers whose products with a known multiplier have equal bits for the slot."""
    mixed = np.arange(COUNT, dtype=np.uint64) * inverse(PRIME_1)
    return mixed ^ (mixed >> np.uint64(32))


def table_of_numbers() -> np.ndarray:
    (*_, table, _, _), distinct = index_values((crafted(),), COUNT)
    assert distinct == COUNT
    return table


def table_of_texts() -> np.ndarray:
    hashes = crafted()
    texts = undo_xxh64(hashes).view(np.uint8)
    assert xxhash.xxh64_intdigest(texts[:8].tobytes()) == hashes[0]
    (*_, table, _, _), distinct = index_values((texts, np.arange(COUNT + 1) * 8), COUNT)
    assert distinct == COUNT
    return table


def table_of_tokens() -> np.ndarray:
    hashes = np.arange(1, COUNT + 1, dtype=np.uint64) * inverse(np.uint64(0x9E3779B97F4A7C15))
    table, out = np.zeros(1 << 16, dtype=np.uint64), np.empty_like(hashes)
    assert token_kernels.write_distinct(hashes, table, table_slots.TABLE_SEED, out) == COUNT
    return table


@pytest.mark.parametrize("table_of", [table_of_numbers, table_of_texts, table_of_tokens])
def test_no_chosen_keys_share_a_slot(table_of):
    """A table of so few keys has no long run of taken slots, through which a search would go."""
    table = table_of()
    assert np.count_nonzero(table) == COUNT
    free = np.flatnonzero(np.append(table, 0) == 0)
    assert np.diff(free, prepend=-1).max() < 200

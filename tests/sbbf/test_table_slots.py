"""Test that keys chosen for it do not share the slots of hash tables in memory."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import PRIMES, inverse, words_with_hashes, xxh64

from zonebloom.index.row_keys import token_kernels
from zonebloom.parquet.key_tests import index_values
from zonebloom.sbbf import table_slots

COUNT = 20_000


def crafted() -> np.ndarray:
    """Return numbers whose products with a known multiplier have equal bits for the slot."""
    mixed = np.arange(COUNT, dtype=np.uint64) * inverse(PRIMES[0])
    return mixed ^ (mixed >> np.uint64(32))


def table_of_numbers() -> np.ndarray:
    (*_, table, _, _), distinct = index_values((crafted(),), COUNT)
    assert distinct == COUNT
    return table


def table_of_texts() -> np.ndarray:
    hashes = crafted()
    texts = words_with_hashes(hashes).view(np.uint8)
    assert xxh64(texts[:8].tobytes()) == hashes[0]
    (*_, table, _, _), distinct = index_values((texts, np.arange(COUNT + 1) * 8), COUNT)
    assert distinct == COUNT
    return table


def table_of_tokens() -> np.ndarray:
    hashes = np.arange(1, COUNT + 1, dtype=np.uint64) * inverse(0x9E3779B97F4A7C15)
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

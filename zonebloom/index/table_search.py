"""Many hashes through a table in the row layout: each filter is met once, by all of them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from zonebloom.index.table import ZoneTable
from zonebloom.threads import cores, in_order

# Below this many hashes a zone is not worth a call of its own.
_FEW = 64
_MIN_PAIRS = 1 << 16


def search_rows(table: ZoneTable, hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Find the zones that may hold each of many hashes, in bounded memory.

    Position in ``hashes`` and number of a zone; each pair once, in no order of use.
    """
    held: list[tuple[np.ndarray, np.ndarray]] = []
    count = 0
    for pairs in _by_key(table, hashes) if hashes.size < _FEW else _by_zone(table, hashes):
        held.append(pairs)
        count += pairs[0].size
        if count >= _MIN_PAIRS:
            yield _joined(held)
            held, count = [], 0
    if count:
        yield _joined(held)


def _joined(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    keys, zones = zip(*pairs, strict=True)
    return np.concatenate(keys), np.concatenate(zones)


def _by_key(table: ZoneTable, hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    from zonebloom.sbbf import blocks

    for key in range(hashes.size):
        hit = np.zeros(len(table), dtype=bool)
        one = hashes[key : key + 1]
        blocks.check_any(table.words, table.first_words, table.num_blocks, one, hit)
        zones = np.flatnonzero(hit)
        yield np.full(zones.size, key, dtype=np.int64), zones


def _by_zone(table: ZoneTable, hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    from zonebloom.sbbf import blocks

    def search(zone: int) -> tuple[np.ndarray, np.ndarray]:
        hit = np.empty(hashes.size, dtype=bool)
        blocks.check(table.filter_words(zone), hashes, hit)
        keys = np.flatnonzero(hit)
        return keys, np.full(keys.size, zone, dtype=np.int64)

    threads = cores()
    with ThreadPoolExecutor(threads) as pool:
        yield from in_order(pool, search, range(len(table)), 2 * threads)

"""Look up very many keys in an index whose kind finds few zones for each key.

A sample of the keys tells whether this takes less time than reading the rows without an index.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zonebloom.base.arrays import distinct_numbers
from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.index.matching import IndexView
from zonebloom.values.probe import BulkProbe

_SAMPLE_KEYS = 1 << 10
# A search is given up if it finds more pairs than there are rows, and more than this.
_MIN_MAX_PAIRS = 1 << 20
# Zones that were found several times are merged when there are so many.
_MIN_MERGED_ZONES = 1 << 20


class ReadCost(NamedTuple):
    """The cost of reading rows and comparing them with all keys, which a search may save.

    Attributes
    ----------
    rows_per_key : float
        How many rows are read in the time in which one key is looked up. To process a zone that is
        found takes as long.
    max_share : float
        If more than this share of the rows may hold a key, all rows are read anyway.
    """

    rows_per_key: float
    max_share: float = 1.0


# Processor time of 20 million random int64 rows in local files without compression. A lookup takes
# 370 ns for each of a million keys, and 430 ns for each of 3 million; a found zone takes 350 to
# 400 ns. To read a row and compare it with the keys takes
#
#     keys                    100 thousand   1 million   3 million   10 million
#     PyArrow's filter            48 ns         97 ns      144 ns       282 ns
#     Polars' scan                11 ns         21 ns       33 ns        81 ns
#     kernels of `locate`         23 ns         22 ns       35 ns
#
# Rows of texts, compressed rows and remote rows take longer.
FILTERED_BY_ARROW = ReadCost(4)
# Polars scans with all cores, so a search must save more than twice its time.
FILTERED_BY_POLARS = ReadCost(40)
COMPARED_BY_KERNELS = ReadCost(16)


class KeySearch(NamedTuple):
    """The places where the keys of a column may be.

    Attributes
    ----------
    rows : RowRanges
        The rows of zones that may hold a key, and all rows that the index does not cover.
    may_exist : bool array
        Whether a row may hold a key. False for nulls, and for keys that the column cannot hold.
    """

    rows: RowRanges
    may_exist: np.ndarray


class _Hits(NamedTuple):
    """The addresses of the first rows of zones that may hold a hash, and which hashes they hold."""

    zones: np.ndarray
    is_held: np.ndarray
    num_pairs: int


def may_pay(view: IndexView, num_keys: int, cost: ReadCost) -> bool:
    """Return whether looking up a number of keys may take less time than reading the rows."""
    return num_keys < 2 * _SAMPLE_KEYS or cost.rows_per_key * num_keys < len(view.covered)


def search_keys(
    view: IndexView, bulk: BulkProbe, num_keys: int, cost: ReadCost
) -> KeySearch | None:
    """Return where keys may be, or None if looking them up takes longer than reading the rows.

    Also return None if a key is NaN or another float that any zone may hold, or if there are no
    zones.
    """
    if bulk.anywhere.size or not view.num_zones:
        return None
    hashes = bulk.of_keys_and_zeros()
    if not _pays(view, hashes, cost):
        return None
    hits = _find(view, hashes, max_pairs=max(len(view.covered), _MIN_MAX_PAIRS))
    if hits is None:
        return None
    zones = RowRanges.from_arrays(hits.zones, hits.zones + view.index.entry.number_of_items)
    is_held = hits.is_held if not view.uncovered else np.ones(hashes.size, dtype=bool)
    may_exist = np.zeros(num_keys, dtype=bool)
    may_exist[bulk.positions] = is_held[: bulk.positions.size]
    may_exist[bulk.zeros] = is_held[bulk.positions.size :].any()
    return KeySearch((zones & view.covered) | view.uncovered, may_exist)


def _pays(view: IndexView, hashes: np.ndarray, cost: ReadCost) -> bool:
    """Return whether so few zones may hold any of the hashes that a search takes less time."""
    if hashes.size < 2 * _SAMPLE_KEYS:
        return True
    if not may_pay(view, hashes.size, cost):
        return False
    num_rows, lookup_rows = len(view.covered), cost.rows_per_key * hashes.size
    sample = _sample(hashes)
    scale = hashes.size / sample.size
    max_pairs = int((num_rows - lookup_rows) / (cost.rows_per_key * scale))
    hits = _find(view, sample, max_pairs)
    if hits is None:
        return False
    num_pairs = hits.num_pairs * scale
    kept_zones = extrapolate_zones(hits.zones.size, hits.num_pairs, num_pairs, view.num_zones)
    kept_rows = num_rows * kept_zones / view.num_zones
    if kept_rows > cost.max_share * num_rows:
        return False
    return lookup_rows + cost.rows_per_key * num_pairs + kept_rows < num_rows


def _sample(hashes: np.ndarray) -> np.ndarray:
    """Return about `_SAMPLE_KEYS` hashes.

    They are the lowest ones, which lie in few blocks of a hash index. Hashes are random, so they
    are in as many zones as others.
    """
    lowest = hashes[hashes < np.uint64((_SAMPLE_KEYS << 64) // hashes.size)]
    if _SAMPLE_KEYS // 2 < lowest.size < 2 * _SAMPLE_KEYS:
        return lowest
    return hashes[:: hashes.size // _SAMPLE_KEYS]


def extrapolate_zones(
    num_distinct: int, num_drawn: int, num_to_draw: float, num_zones: int
) -> float:
    """Extrapolate the number of distinct zones from a sample of draws.

    The zones are supposed to be drawn uniformly from a part of all zones, of unknown size.
    """
    if not num_drawn:
        return 0.0
    low, high = float(min(num_distinct, num_zones)), float(num_zones)
    if _expected_distinct(high, num_drawn) > num_distinct:
        for _ in range(50):
            middle = (low + high) / 2
            if _expected_distinct(middle, num_drawn) < num_distinct:
                low = middle
            else:
                high = middle
    return _expected_distinct(high, num_to_draw)


def _expected_distinct(size: float, num_drawn: float) -> float:
    return -size * float(np.expm1(-num_drawn / size))


def _find(view: IndexView, hashes: np.ndarray, max_pairs: int) -> _Hits | None:
    """Return the zones that may hold a hash, or None if there are too many pairs of them."""
    # Tables visit their blocks in the order of hashes. Sorting the hashes, and finding those that
    # are held again, takes less time than sorting them with their positions.
    ordered = np.sort(hashes)
    is_repeated = ordered[1:] == ordered[:-1]
    if is_repeated.any():
        ordered = np.delete(ordered, np.flatnonzero(is_repeated))
    is_held = np.zeros(ordered.size, dtype=bool)
    parts, num_pairs = [np.empty(0, dtype=np.int64)], 0
    num_unmerged, merge_at = 0, _MIN_MERGED_ZONES
    for positions, fragment_ids, starts in view.pairs(ordered):
        is_held[positions] = True
        num_pairs += positions.size
        if num_pairs > max_pairs:
            return None
        parts.append(((fragment_ids << np.uint64(OFFSET_BITS)) | starts).astype(np.int64))
        num_unmerged += positions.size
        if num_unmerged > merge_at:
            parts = [distinct_numbers(np.concatenate(parts))]
            num_unmerged = parts[0].size
            merge_at = max(_MIN_MERGED_ZONES, 2 * num_unmerged)
    zones = distinct_numbers(np.concatenate(parts))
    return _Hits(zones, hashes_among(hashes, ordered[is_held]), num_pairs)


def hashes_among(hashes: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Return which hashes are in a sorted array, bool."""
    if not ordered.size:
        return np.zeros(hashes.size, dtype=bool)
    # A table of the low bits excludes most of the others, if few hashes are among them.
    mask = np.uint64((1 << (8 * ordered.size).bit_length()) - 1)
    has_low_bits = np.zeros(int(mask) + 1, dtype=bool)
    has_low_bits[ordered & mask] = True
    is_among = has_low_bits[hashes & mask]
    candidates = np.flatnonzero(is_among)
    nearest = np.minimum(ordered.searchsorted(hashes[candidates]), ordered.size - 1)
    is_among[candidates] = ordered[nearest] == hashes[candidates]
    return is_among

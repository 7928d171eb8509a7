"""Look up keys in an index, if this takes less time than reading the rows that it saves.

    kind of index                      what a sample of many keys tells
    HASH: few zones for each key       how many zones may hold one of all keys
    BLOOMFILTER: a test of each zone   how many zones may hold none of them

`find_keys` looks up any number of keys. `ReadCost` says what reading costs in comparison.
`search_many` pairs each key with the zones that may hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import distinct_numbers, uuids_of
from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.base.user_values import to_arrow
from zonebloom.errors import InvalidArgument
from zonebloom.index.matching import IndexView
from zonebloom.values.literal import hash_keys
from zonebloom.values.normal_types import hashed_type
from zonebloom.values.types import hash_domain, is_comparable, time_zone_mismatch_message

_SAMPLE_KEYS = 1 << 10
# A filter of the default size holds every second zone for so many absent keys.
_LARGE_SAMPLE_KEYS = 1 << 14
# For more keys than this, an index with few zones for each key also tells which keys no zone holds.
_MAX_UNITED_KEYS = 1 << 14
# To look up a key in the filter of a zone takes this share of the time of a lookup in HASH.
_SHARE_OF_FILTER = 0.02
# Reading rows from an object store takes so many times as long as from local files.
_REMOTE_READ_FACTOR = 8
# Lookups in filters cost at most this share of reading the rows in the model, whose estimate of
# the time to read a row is too low for wide rows.
_MAX_FILTER_COST = 0.8
# A search is given up if it finds more pairs than there are rows, and more than this.
_MIN_MAX_PAIRS = 1 << 20
# Zones that were found several times are merged when there are so many.
_MIN_MERGED_ZONES = 1 << 20
# A batch of the zones of zeros has about so many rows.
_MAX_BATCH_PAIRS = 1 << 16
CANDIDATE_SCHEMA = pa.schema(
    [
        pa.field("key_index", pa.int64(), nullable=False),
        pa.field("fragment_id", pa.uint64(), nullable=False),
        pa.field("zone", pa.uint32()),
    ]
)


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


class FoundKeys(NamedTuple):
    """The places where keys may be.

    Attributes
    ----------
    rows : RowRanges
        The rows of zones that may hold a key, and all rows that the index does not cover.
    hashes : uint64 array or None
        The hashes that a zone may hold, ascending. None if each may be in some zone.
    """

    rows: RowRanges
    hashes: np.ndarray | None = None


class _Pairs(NamedTuple):
    """The addresses of the first rows of zones that may hold a hash, and the hashes they hold."""

    zones: np.ndarray
    hashes: np.ndarray
    num_pairs: int


def find_keys(view: IndexView, hashes: np.ndarray, cost: ReadCost) -> FoundKeys:
    """Return where keys may be. It is everywhere if reading all rows takes less time.

    Distinct hashes come first, if only some are distinct.
    """
    if hashes.size <= 2 * _SAMPLE_KEYS:
        return FoundKeys(view.rows_with_any(hashes))
    if not view.index.finds_few_zones:
        return FoundKeys(_rows_by_filters(view, hashes, cost))
    if hashes.size <= _MAX_UNITED_KEYS:
        return FoundKeys(view.rows_with_any(hashes))
    return _find_by_pairs(view, hashes, cost)


def _lookup_cost(view: IndexView, num_keys: float, cost: ReadCost) -> float:
    """Return how many rows are read in the time in which keys are looked up."""
    rows_per_key = cost.rows_per_key
    if not view.index.finds_few_zones:
        rows_per_key *= _SHARE_OF_FILTER * view.num_zones
    return num_keys * rows_per_key / (_REMOTE_READ_FACTOR if view.index.has_round_trips else 1)


def _rows_by_filters(view: IndexView, hashes: np.ndarray, cost: ReadCost) -> RowRanges:
    rows, num_searched = view.uncovered, 0
    num_rows = max(len(view.covered), 1)
    excluded_before = 1.0
    for num_keys in (_SAMPLE_KEYS, _LARGE_SAMPLE_KEYS):
        if hashes.size <= 2 * num_keys:
            break
        rows |= view.rows_with_any(hashes[num_searched:num_keys])
        num_left = hashes.size - num_keys
        excluded = 1 - len(rows & view.covered) / num_rows
        expected = excluded
        if num_searched:
            # Suppose that the other keys exclude zones at the same rate as the second sample.
            expected *= (excluded / excluded_before) ** (num_left / (num_keys - num_searched))
        lookup = min(_lookup_cost(view, num_left, cost), _MAX_FILTER_COST * num_rows)
        # All keys are looked up in an excluded zone, and half of them on average in another one.
        if lookup * (1 + expected) / 2 >= expected * num_rows:
            return view.all_rows
        num_searched, excluded_before = num_keys, excluded
    return rows | view.rows_with_any(hashes[num_searched:])


def _find_by_pairs(view: IndexView, hashes: np.ndarray, cost: ReadCost) -> FoundKeys:
    everywhere = FoundKeys(view.all_rows)
    if not view.num_zones or not _pairs_pay(view, hashes, cost):
        return everywhere
    found = _find_pairs(view, hashes, max_pairs=max(len(view.covered), _MIN_MAX_PAIRS))
    if found is None:
        return everywhere
    zones = RowRanges.from_arrays(found.zones, found.zones + view.index.entry.number_of_items)
    rows = (zones & view.covered) | view.uncovered
    return FoundKeys(rows, None if view.uncovered else found.hashes)


def _pairs_pay(view: IndexView, hashes: np.ndarray, cost: ReadCost) -> bool:
    """Return whether so few zones may hold any of the hashes that a search takes less time."""
    if hashes.size < 2 * _SAMPLE_KEYS:
        return True
    num_rows, lookup = len(view.covered), _lookup_cost(view, hashes.size, cost)
    if lookup >= num_rows:
        return False
    sample = _sample(hashes)
    scale = hashes.size / sample.size
    # To process a zone that is found takes as long as a lookup.
    cost_of_pair = _lookup_cost(view, scale, cost)
    found = _find_pairs(view, sample, int((num_rows - lookup) / cost_of_pair))
    if found is None:
        return False
    num_pairs = found.num_pairs * scale
    kept_zones = extrapolate_zones(found.zones.size, found.num_pairs, num_pairs, view.num_zones)
    kept_rows = num_rows * kept_zones / view.num_zones
    if kept_rows > cost.max_share * num_rows:
        return False
    return lookup + cost_of_pair * found.num_pairs + kept_rows < num_rows


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


def _find_pairs(view: IndexView, hashes: np.ndarray, max_pairs: int) -> _Pairs | None:
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
    return _Pairs(zones, ordered[is_held], num_pairs)


def checked_keys(values: Any, column: str, column_type: pa.DataType) -> pa.Array:
    """Return keys as an Arrow array that can be compared with a column, without rounding any.

    Raise `InvalidArgument` if no value of the column can equal a key of this type.
    """
    keys = to_arrow(values, "keys", column)
    if keys.type == column_type:
        return keys
    if isinstance(column_type, pa.UuidType) and hash_domain(keys.type) == "string":
        uuids = uuids_of(keys)
        if uuids is None:
            raise InvalidArgument(
                "keys hold text that is no UUID; write '00000000-0000-0000-0000-000000000000'"
            )
        return uuids
    for key in keys[:1]:
        mismatch = time_zone_mismatch_message(f"keys of {column!r}", column_type, key)
        if mismatch is not None:
            raise InvalidArgument(mismatch)
    if not pa.types.is_null(keys.type) and not is_comparable(column_type, keys.type):
        raise InvalidArgument(
            f"keys are {keys.type}, column {column!r} is {column_type}; "
            f"{_key_type_advice(column_type, keys.type)}"
        )
    return keys


def _key_type_advice(column_type: pa.DataType, key_type: pa.DataType) -> str:
    if is_comparable(pa.binary(), column_type) and is_comparable(pa.string(), key_type):
        return "give bytes, and for the text of a UUID uuid.UUID(text)"
    if is_comparable(pa.string(), column_type):
        return "give text"
    return f"give values of type {column_type}"


def search_many(
    view: IndexView, column: pa.DataType, keys: pa.Array, uncovered: np.ndarray
) -> Iterator[pa.RecordBatch]:
    """Yield pairs of a key and a zone that may hold it, each pair once, in bounded memory.

    ``keys`` come from `checked_keys`. Every key may be in the fragments with the ids ``uncovered``.
    """
    zone_rows = np.uint64(view.index.entry.number_of_items)
    is_null = pc.call_function("is_null", [keys])
    for fragment_id in uncovered.tolist():
        yield _candidate_batch(np.flatnonzero(~np.asarray(is_null)), fragment_id)
    bulk = hash_keys(hashed_type(column), keys)
    for fragment_id in sorted(view.fragment_ids) if bulk.anywhere.size else ():
        yield _candidate_batch(bulk.anywhere, fragment_id)
    for positions, fragment_ids, starts in view.pairs(bulk.hashes):
        yield _candidate_batch(bulk.positions[positions], fragment_ids, starts // zone_rows)
    if not bulk.zeros.size:
        return
    fragment_ids, starts = view.zones(bulk.zero_hashes)
    step = max(1, _MAX_BATCH_PAIRS // max(starts.size, 1))
    for first in range(0, bulk.zeros.size, step):
        zeros = bulk.zeros[first : first + step]
        yield _candidate_batch(
            np.repeat(zeros, starts.size),
            np.tile(fragment_ids, zeros.size),
            np.tile(starts // zone_rows, zeros.size),
        )


def _candidate_batch(
    key_numbers: np.ndarray, fragments: np.ndarray | int, zones: np.ndarray | None = None
) -> pa.RecordBatch:
    fragment_ids = np.full(key_numbers.size, fragments, dtype=np.uint64)
    no_zones = pa.nulls(key_numbers.size, pa.uint32())
    columns = [
        pa.array(key_numbers, pa.int64()),
        pa.array(fragment_ids),
        no_zones if zones is None else pa.array(zones, pa.uint32()),
    ]
    return pa.record_batch(columns, schema=CANDIDATE_SCHEMA)

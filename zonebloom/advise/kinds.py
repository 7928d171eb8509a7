"""Estimate from sampled zones what an index of each kind costs and saves, and choose the kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from zonebloom.advise.sample import (
    ZoneKeys,
    estimate_zones_with_key,
    find_overlaps,
    find_zone_keys,
)
from zonebloom.base.display import Displayed
from zonebloom.base.text import bytes_text
from zonebloom.catalog.model import DEFAULT_KIND
from zonebloom.index.file_end import END_BYTES
from zonebloom.index.hash.parameters import (
    MAX_BUFFERED_PAIRS,
    HashParameters,
    choose_shape,
    hash_bits_to_keep,
    zone_bits_for,
)

BLOOM_TYPE = DEFAULT_KIND
HASH_TYPE = "HASH"

# With fewer rows, an index of either kind is small and is searched within a moment.
MIN_ROWS_FOR_HASH = 1_000_000
# Both kinds are compared at this number of rows.
BILLION = 10**9
# Sizes that differ by less are called equal, because they are estimates.
_MIN_SMALLER_SIZE = 0.95

# A hash in zones of this many far parts of the dataset is assumed to be as frequent everywhere.
_MIN_CLUSTERS = 3
_NEAR_ZONES = 8
_POSTING_HEAD_BYTES = 16
_REFERENCE_BITS = 128
# A slot is larger than the mean block by about this many standard deviations.
_SLOT_DEVIATIONS = 3
# Measured for 20 million rows: 248 to 257 MiB.
_BUILD_BYTES_PER_ROW = 13


@dataclass(frozen=True, slots=True)
class KindEstimate(Displayed):
    """The estimated costs and savings of an index of one kind on one column.

    Attributes
    ----------
    index_type : str
        "BLOOMFILTER" or "HASH".
    number_of_items : int
        Rows of a zone.
    num_zones : int
        Zones of the dataset.
    index_bytes : int
        The size of the index without its key ranges and page maps.
    lookup_bytes : int
        The bytes of the index that the first lookup of one key reads.
    zones_with_index : float
        The zones that a lookup reads for the key of a random row: zones that hold the key, and
        false ones.
    rows_with_index : float
        The rows of these zones.
    false_zones : float
        The zones that a lookup reads for a key that no row has.
    false_zones_per_billion : float
        The same in a dataset of a billion such rows, after a build from its rows.
    build_bytes : int or None
        Bytes of memory that a build holds for the rows of this column. None for "BLOOMFILTER",
        which holds some zones at a time.

    Examples
    --------
    >>> advice = ds.advise("id")["id"]
    >>> [(kind.index_type, kind.number_of_items, kind.num_zones) for kind in advice.kinds]
    [('BLOOMFILTER', 8192, 3), ('HASH', 1024, 3)]
    """

    index_type: str
    number_of_items: int
    num_zones: int
    index_bytes: int
    lookup_bytes: int
    zones_with_index: float
    rows_with_index: float
    false_zones: float
    false_zones_per_billion: float
    build_bytes: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.index_type}: {bytes_text(self.index_bytes)}, {self.num_zones:,} zones of "
            f"{self.number_of_items:,} rows; a lookup reads {self.rows_with_index:,.0f} rows, and "
            f"{zone_count_text(self.false_zones)} zones for a key that no row has"
        )


def choose_kind(
    bloom: KindEstimate, hashed: KindEstimate, num_rows: int, *, is_for_lance: bool
) -> tuple[str, str]:
    """Return the better kind for a column that is worth an index, and the reason."""
    hash_size, bloom_size = bytes_text(hashed.index_bytes), bytes_text(bloom.index_bytes)
    if num_rows < MIN_ROWS_FOR_HASH:
        reason = f"both kinds are small and fast below {MIN_ROWS_FOR_HASH:,} rows"
        return BLOOM_TYPE, f"{reason}, and Lance can read this one" if is_for_lance else reason
    if hashed.index_bytes <= bloom.index_bytes:
        hash_zones = zone_count_text(hashed.false_zones_per_billion)
        bloom_zones = zone_count_text(bloom.false_zones_per_billion)
        sizes = f"it takes {hash_size} where BLOOMFILTER takes {bloom_size}"
        if hashed.index_bytes > _MIN_SMALLER_SIZE * bloom.index_bytes:
            sizes = f"both kinds take about {bloom_size}"
        return HASH_TYPE, (
            f"{sizes}; in a billion such rows, a key that no row has would read {hash_zones} "
            f"zones, and {bloom_zones} with BLOOMFILTER"
        )
    if bloom.false_zones > 1:
        return HASH_TYPE, (
            f"a key that no row has reads {zone_count_text(hashed.false_zones)} zones, and "
            f"{zone_count_text(bloom.false_zones)} with BLOOMFILTER; it takes {hash_size}, and "
            f"BLOOMFILTER {bloom_size}"
        )
    return BLOOM_TYPE, f"it takes {bloom_size} where HASH takes {hash_size}"


def zone_count_text(count: float) -> str:
    """Return a mean number of zones with about two digits."""
    return f"{count:,.1f}" if count >= 0.95 else f"{count:.2g}"


def bloom_estimate(
    *,
    number_of_items: int,
    num_zones: int,
    num_rows: int,
    index_bytes: int,
    zones_with_key: float,
    probability: float,
) -> KindEstimate:
    """Return the estimate for zone Blooms. ``probability`` is that of a false zone."""
    zones_with_index = zones_with_key + probability * (num_zones - zones_with_key)
    return KindEstimate(
        index_type=BLOOM_TYPE,
        number_of_items=number_of_items,
        num_zones=num_zones,
        index_bytes=index_bytes,
        lookup_bytes=index_bytes,
        zones_with_index=zones_with_index,
        rows_with_index=min(num_rows, zones_with_index * number_of_items),
        false_zones=probability * num_zones,
        false_zones_per_billion=probability * BILLION / number_of_items,
    )


class ZoneSample:
    """The hashes of sampled zones.

    ``positions`` are the numbers of the zones among all ``num_zones`` zones, ascending.
    ``clusters`` has equal numbers for zones that are near each other.
    """

    def __init__(
        self,
        hashes: Sequence[np.ndarray],
        positions: np.ndarray,
        clusters: np.ndarray,
        num_zones: int,
    ):
        self._hashes = hashes
        self.positions = positions
        self.clusters = clusters
        self.num_zones = num_zones

    @cached_property
    def keys(self) -> ZoneKeys:
        return find_zone_keys(self._hashes)

    @property
    def is_complete(self) -> bool:
        return self.positions.size == self.num_zones

    @property
    def scale(self) -> float:
        """Return the number of zones that a sampled zone stands for."""
        return self.num_zones / max(self.positions.size, 1)

    @property
    def num_pairs(self) -> int:
        """Return about how many distinct pairs of a key and a zone there are."""
        return round(self.keys.numbers.size * self.scale)

    def _is_compared(self) -> np.ndarray:
        """Return a mask of some near zones of each cluster, and one zone of each other place.

        The time to compare zones grows with the square of their number.
        """
        numbers = np.arange(self.positions.size)
        is_run_start = np.diff(self.positions, prepend=-2) > 1
        is_cluster_start = np.diff(self.clusters, prepend=-1) > 0
        starts = np.maximum.accumulate(np.where(is_cluster_start, numbers, 0))
        return is_run_start | (numbers - starts < _NEAR_ZONES)

    def zones_with_key(self) -> float:
        """Return the mean number of zones that hold the key of a random row."""
        chosen = np.arange(self.positions.size)
        if not self.is_complete:
            chosen = np.flatnonzero(self._is_compared())
        overlaps = find_overlaps([self._hashes[number] for number in chosen.tolist()])
        shares = overlaps.shared_rows / np.maximum(overlaps.num_rows, 1)[:, None]
        positions = self.positions[chosen]
        return estimate_zones_with_key(shares, overlaps.num_rows, positions, self.num_zones)


class _Plan(NamedTuple):
    """The estimated file of a hash index."""

    num_pairs: int
    hash_bits: int
    num_bytes: int
    block_bytes: int


def hash_estimate(
    sample: ZoneSample,
    parameters: HashParameters,
    *,
    num_rows: int,
    num_non_null_rows: int,
    distinct: int,
) -> KindEstimate:
    """Return the estimate for a hash index."""
    plan = _plan(sample, hash_bits_to_keep(sample.num_pairs, parameters.probability), distinct)
    false_zones = plan.num_pairs * 2.0**-plan.hash_bits
    zones_with_index = min(sample.num_zones, sample.zones_with_key() + false_zones)
    pairs_in_billion = round(plan.num_pairs * BILLION / max(num_rows, 1))
    bits_in_billion = hash_bits_to_keep(pairs_in_billion, parameters.probability)
    return KindEstimate(
        index_type=HASH_TYPE,
        number_of_items=parameters.number_of_items,
        num_zones=sample.num_zones,
        index_bytes=plan.num_bytes,
        lookup_bytes=min(plan.num_bytes, END_BYTES + plan.block_bytes),
        zones_with_index=zones_with_index,
        rows_with_index=min(num_rows, zones_with_index * parameters.number_of_items),
        false_zones=false_zones,
        false_zones_per_billion=pairs_in_billion * 2.0**-bits_in_billion,
        build_bytes=_BUILD_BYTES_PER_ROW * min(num_non_null_rows, MAX_BUFFERED_PAIRS),
    )


def _plan(sample: ZoneSample, hash_bits: int, distinct: int) -> _Plan:
    # For each sampled key, the zones that hold it: in the sample, and about how many in all.
    sampled_counts = np.bincount(sample.keys.numbers)
    scale, num_pairs = sample.scale, sample.num_pairs
    counts = _scale_counts(sample, sampled_counts, scale, num_pairs, distinct)
    # This is the width of an entry by which the writer chooses postings.
    entry_bits = hash_bits // 3 + 2 + zone_bits_for(sample.num_zones)
    posting_bits = _posting_bits(counts, sample.num_zones) + _REFERENCE_BITS + entry_bits
    is_posting = posting_bits < counts * entry_bits
    # A sampled key stands for as many keys as make its number of zones up to that of all zones.
    weights = sampled_counts * scale / np.maximum(counts, 1)
    num_postings = round(weights[is_posting].sum())
    posting_bytes = float((weights * _posting_bits(counts, sample.num_zones))[is_posting].sum()) / 8
    num_entries = round((weights * counts)[~is_posting].sum()) + num_postings
    shape = choose_shape(max(1, num_entries), num_postings, sample.num_zones, hash_bits)
    slot_bits = num_entries * (shape.entry_bits + 1) + shape.num_blocks * shape.num_buckets
    slot_bytes = slot_bits / 8 + 16 * (num_postings + shape.num_blocks)
    # All slots are as large as nearly the largest block. Keys with several entries make blocks
    # less even.
    entry_counts = (weights * counts)[~is_posting]
    entries_per_key = entry_counts @ counts[~is_posting] / max(entry_counts.sum(), 1)
    keys_per_block = num_entries / max(entries_per_key, 1) / shape.num_blocks
    slot_bytes *= 1 + _SLOT_DEVIATIONS / np.sqrt(max(keys_per_block, 1))
    num_bytes = round(slot_bytes + posting_bytes)
    block_bytes = round(slot_bytes / shape.num_blocks)
    return _Plan(num_pairs, hash_bits, num_bytes, block_bytes)


def _scale_counts(
    sample: ZoneSample, sampled_counts: np.ndarray, scale: float, num_pairs: int, distinct: int
) -> np.ndarray:
    """Return about how many of all zones hold each sampled key, float64.

    A key in few parts of the sample may be rare, or be in one part of the dataset only. It counts
    as the mean of all such keys.
    """
    if sample.is_complete:
        return sampled_counts.astype(np.float64)
    # Zones of a key are ascending, so its clusters are, too.
    keys = sample.keys
    clusters = sample.clusters[keys.zones]
    is_new_key = np.diff(keys.numbers, prepend=-1) > 0
    is_new_cluster = np.diff(clusters, prepend=-1) != 0
    num_clusters = np.bincount(keys.numbers, is_new_key | is_new_cluster)
    is_everywhere = num_clusters >= _MIN_CLUSTERS
    counts = sampled_counts * scale
    num_rare = max(1, distinct - int(is_everywhere.sum()))
    rare_pairs = num_pairs - counts[is_everywhere].sum()
    mean = np.clip(rare_pairs / num_rare, 1, sample.num_zones)
    return np.where(is_everywhere, counts, np.maximum(mean, sampled_counts))


def _posting_bits(counts: np.ndarray, num_zones: int) -> np.ndarray:
    """Return the bits of postings of so many zones each, if the zones are in no order."""
    sizes = counts * np.maximum(1, np.ceil(np.log2(num_zones / np.maximum(counts, 1)) / 7))
    return 8 * (_POSTING_HEAD_BYTES + 8 * np.ceil(sizes / 8))

"""Build and read the global filter of a column: one Bloom filter over all its keys.

A join applies it to the other side before the shuffle. Each build task writes the hashes of its
keys, or a filter of the final size if that is smaller. Keys of removed fragments stay in the
filter, which adds false positives but no false negatives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from zonebloom.base.arguments import short_repr
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import GLOBAL_FILTER_FILE, GlobalFilterEntry
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, InvalidArgument
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.sizing import size_for, validate_target
from zonebloom.sbbf.spec import MAX_BYTES

# Spark shuffles the row of a false positive needlessly, which costs more than a larger filter.
DEFAULT_GLOBAL_PROBABILITY = 0.001
# The probability for so many keys that a filter at the default would exceed the largest size.
_PROBABILITY_OF_MANY = 0.01


@dataclass(frozen=True, slots=True)
class GlobalFilterSize:
    num_items: int
    probability: float = DEFAULT_GLOBAL_PROBABILITY

    @classmethod
    def default(cls, num_items: int) -> GlobalFilterSize:
        """Return the size at a probability of 0.001, or of 0.01 if that would exceed 128 MiB."""
        try:
            _ = cls(num_items).num_bytes
        except InvalidArgument:
            return cls(num_items, _PROBABILITY_OF_MANY)
        return cls(num_items)

    @property
    def num_bytes(self) -> int:
        names = ("num_items", "probability")
        validate_target(self.num_items, self.probability, names)
        try:
            return size_for(self.num_items, self.probability, "exact")
        except InvalidArgument:
            raise InvalidArgument(
                f"a global filter of {short_repr(self.num_items)} keys at a false positive "
                f"probability of {self.probability} would be over {MAX_BYTES >> 20} MiB; give a "
                "larger probability, or fewer expected items if keys repeat"
            ) from None


@dataclass(frozen=True, slots=True)
class GlobalFilterPart:
    """The file that one task wrote for a global filter: hashes, or the blocks of a filter."""

    segment: str
    num_bytes: int
    checksum: str
    is_filter: bool


class KeyHashes:
    """The hashes of a task's keys.

    They become a filter once they take as many bytes as the filter would.
    """

    def __init__(self, num_bytes: int):
        self._limit = num_bytes
        self._hashes: list[np.ndarray] = []
        self._hashes_bytes = 0
        self._filter: Sbbf | None = None

    def add(self, hashes: np.ndarray) -> None:
        self._hashes.append(hashes)
        self._hashes_bytes += hashes.nbytes
        if self._hashes_bytes >= self._limit:
            self._filter = self._insert_pending(self._filter or Sbbf.from_bytes(bytes(self._limit)))

    def write(self, catalog: Catalog, segment: str) -> GlobalFilterPart:
        if self._filter is not None:
            data = self._insert_pending(self._filter).to_bytes()
        else:
            data = np.concatenate([np.empty(0, np.uint64), *self._hashes]).astype("<u8").tobytes()
        written = catalog.write(catalog.path(segment, GLOBAL_FILTER_FILE), data)
        return GlobalFilterPart(segment, *written, self._filter is not None)

    def _insert_pending(self, bloom: Sbbf) -> Sbbf:
        for hashes in self._hashes:
            bloom.insert_hashes(hashes)
        self._hashes, self._hashes_bytes = [], 0
        return bloom


def merge_parts(
    catalog: Catalog,
    segment: str,
    size: GlobalFilterSize,
    parts: Iterable[GlobalFilterPart],
    fragment_ids: Sequence[int],
    base: GlobalFilterEntry | None = None,
) -> GlobalFilterEntry:
    """Write the filter of all parts, and of ``base`` if it is given, to a segment."""
    bloom = (
        load_global_filter(catalog, base)
        if base is not None
        else Sbbf.from_bytes(bytes(size.num_bytes))
    )
    for part in parts:
        if not part.num_bytes:
            continue
        path = catalog.path(part.segment, GLOBAL_FILTER_FILE)
        data = catalog.read(path, part.num_bytes, part.checksum)
        if part.is_filter:
            bloom.merge(Sbbf.from_bytes(data))
        else:
            bloom.insert_hashes(np.frombuffer(data, dtype="<u8"))
    written = catalog.write(catalog.path(segment, GLOBAL_FILTER_FILE), bloom.to_parquet_bytes())
    return GlobalFilterEntry(
        segment, *written, tuple(fragment_ids), size.num_items, size.probability
    )


def load_global_filter(catalog: Catalog, entry: GlobalFilterEntry) -> Sbbf:
    path = catalog.path(entry.segment, GLOBAL_FILTER_FILE)
    data = catalog.read(path, entry.num_bytes, entry.checksum)
    try:
        return Sbbf.from_parquet_bytes(data)
    except InvalidArgument as error:
        raise CorruptIndex(f"{path} is not a filter ({error}); build the index again") from None


@dataclass(frozen=True, slots=True, eq=False)
class GlobalFilter:
    """One filter over the keys of a column, compared with the current files.

    Attributes
    ----------
    index, column : str
    type : pyarrow.DataType
        The type as which values are hashed.
    sbbf : Sbbf
    covered : frozenset of int
        Ids of the current fragments whose keys the filter holds.
    missing : tuple of PresentFragment
        The other current fragments.
    num_items : int
        Number of distinct keys that the filter is sized for.
    probability : float
        False positive probability at that number of keys.
    """

    index: str
    column: str
    type: pa.DataType
    sbbf: Sbbf
    covered: frozenset[int]
    missing: tuple[PresentFragment, ...]
    num_items: int
    probability: float

    @property
    def is_current(self) -> bool:
        """Return whether the filter holds the keys of every current fragment."""
        return not self.missing

    @property
    def estimated_fpp(self) -> float:
        """Return the false positive probability, estimated from the bits that are set."""
        return self.sbbf.estimated_fpp

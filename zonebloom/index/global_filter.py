"""One filter over all keys of a column: what a join asks before it shuffles the other side.

A task gives the hashes of its keys, or a filter of the final size where that is smaller. Keys of
fragments that went stay: "maybe" more often, never wrong.
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

# A key that passes in vain is shuffled, which costs more than half as many bits again.
DEFAULT_GLOBAL_PROBABILITY = 0.001
# Of more keys than that leaves room for.
_PROBABILITY_OF_MANY = 0.01


@dataclass(frozen=True, slots=True)
class GlobalFilterSize:
    num_items: int
    probability: float = DEFAULT_GLOBAL_PROBABILITY

    @classmethod
    def default(cls, num_items: int) -> GlobalFilterSize:
        """At 0.001, or at 0.01 where that would be over 128 MiB."""
        try:
            _ = cls(num_items).num_bytes
        except InvalidArgument:
            return cls(num_items, _PROBABILITY_OF_MANY)
        return cls(num_items)

    @property
    def num_bytes(self) -> int:
        names = ("expected_num_items", "global_probability")
        validate_target(self.num_items, self.probability, names)
        try:
            return size_for(self.num_items, self.probability, "exact")
        except InvalidArgument:
            raise InvalidArgument(
                f"a global filter of {short_repr(self.num_items)} keys at a false positive "
                "probability "
                f"of {self.probability} would be over {MAX_BYTES >> 20} MiB; give a "
                "larger probability, or fewer expected items if keys repeat"
            ) from None


@dataclass(frozen=True, slots=True)
class GlobalFilterPart:
    """What one task found for a global filter: a file of hashes, or of a filter's blocks."""

    segment: str
    num_bytes: int
    checksum: str
    is_filter: bool


class KeyHashes:
    """The hashes of a task's keys, in no more memory than the filter takes."""

    def __init__(self, num_bytes: int):
        self._limit = num_bytes
        self._hashes: list[np.ndarray] = []
        self._hashes_bytes = 0
        self._filter: Sbbf | None = None

    def add(self, hashes: np.ndarray) -> None:
        self._hashes.append(hashes)
        self._hashes_bytes += hashes.nbytes
        if self._hashes_bytes >= self._limit:
            self._filter = self._filled(self._filter or Sbbf.from_bytes(bytes(self._limit)))

    def write(self, catalog: Catalog, segment: str) -> GlobalFilterPart:
        if self._filter is not None:
            data = self._filled(self._filter).to_bytes()
        else:
            data = np.concatenate([np.empty(0, np.uint64), *self._hashes]).astype("<u8").tobytes()
        written = catalog.write(catalog.path(segment, GLOBAL_FILTER_FILE), data)
        return GlobalFilterPart(segment, *written, self._filter is not None)

    def _filled(self, bloom: Sbbf) -> Sbbf:
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
    """One filter over the keys of a column, held against the files as they are now.

    Attributes
    ----------
    index, column : str
    type : pyarrow.DataType
        What values are hashed as.
    sbbf : Sbbf
    covered : frozenset of int
        Ids of the fragments there are now whose keys it holds.
    missing : tuple of PresentFragment
        The other fragments there are.
    num_items : int
        Distinct keys it is sized for.
    probability : float
        Of a false positive at that many keys.
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
        """Whether it holds the keys of every fragment there is."""
        return not self.missing

    @property
    def estimated_fpp(self) -> float:
        """False positive probability as filled."""
        return self.sbbf.estimated_fpp

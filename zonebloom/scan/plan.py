"""What a scan is asked for, what it is going to read of each fragment, and what it did read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow.compute as pc

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet.file_layout import FilePages
from zonebloom.predicates import Predicate, RowFilter, row_filter_columns
from zonebloom.sources.source import Fragment
from zonebloom.storage.files import FileIdentity

DEFAULT_BATCH_ROWS = 1 << 17
# What pyarrow takes.
MAX_BATCH_ROWS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Request:
    """What a scan was asked for, checked; no ``columns`` are all of them.

    The predicate is what can be told of the filter without applying it; where it is true for a
    row and `is_predicate`, so is the filter.
    """

    columns: list[str] | dict[str, pc.Expression] | None
    filter: RowFilter | None
    limit: int | None = None
    batch_size: int = DEFAULT_BATCH_ROWS
    predicate: Predicate | None = None
    is_predicate_exact: bool = False

    def columns_read(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Of all columns those the filter names, and the others that are needed; all first if
        unknown."""
        needed = set(names)
        if isinstance(self.columns, list):
            needed = set(self.columns)
        elif self.columns is not None:
            referenced = [row_filter_columns(expression) for expression in self.columns.values()]
            if None not in referenced:
                needed = set().union(*(part or () for part in referenced))
        filtered = needed if self.filter is None else row_filter_columns(self.filter)
        # One column at least: it says how many rows there are.
        first = [name for name in names if filtered is None or name in filtered] or [*names[:1]]
        if self.filter is None:
            return first, []
        rest = needed.difference(first)
        return first, [name for name in names if name in rest]


@dataclass(frozen=True, slots=True)
class FragmentPlan:
    """What a scan reads of one fragment: the offsets in ``rows``, or all when None, and ``why``.

    ``identity`` is the file's when the plan was made, set where ``rows`` is; ``pages`` None has its
    footer say; ``row_groups`` are those an unindexed file's own filters leave; ``deleted`` counts
    rows left out of ``rows`` because the table has deleted them.
    """

    fragment: Fragment
    rows: RowRanges | None
    reason: str = ""
    identity: FileIdentity | None = None
    pages: FilePages | None = field(default=None, repr=False)
    row_groups: tuple[int, ...] | None = None
    num_deleted: int = 0


@dataclass(frozen=True, slots=True)
class FileZones:
    """What an index leaves of one file: the offsets in ``kept`` may match, and ``zone_rows`` are
    those of a zone, 0 where no index that was asked covers the file.

    ``num_rows`` of a file that is not indexed is 0: it is not opened to be counted.
    """

    path: str
    num_rows: int
    zone_rows: int
    kept: RowRanges

    @property
    def num_zones(self) -> int:
        """Zones of the file; 0 where it is not covered."""
        return -(-self.num_rows // self.zone_rows) if self.zone_rows else 0

    @property
    def kept_zones(self) -> int:
        """Zones with a row that may match."""
        if not self.zone_rows:
            return 0
        firsts = self.kept.starts // self.zone_rows
        lasts = (self.kept.stops - 1) // self.zone_rows
        # Two ranges may lie in one zone.
        return int((lasts - firsts + 1).sum() - (firsts[1:] == lasts[:-1]).sum())


@dataclass(slots=True)
class ScanStats:
    """What a scan read, counted where bytes come in.

    Attributes
    ----------
    data_bytes, data_reads : int
        Bytes and requests of the data files, footers included. Dictionary pages that an earlier
        lookup of the process left in memory are not read again.
    index_bytes : int
        Bytes of index files brought into memory; 0 when they were there already.
    rows_read : int
        Rows decoded of fragments read in part, before the filter.
    rows_found : int
        Rows out.
    row_groups_read : int
        Row groups (record batches) of fragments read in part that were touched.
    fragments_read : int
    whole_row_groups : dict of str to int
        Row groups that pyarrow read whole: why, and how many.
    whole_chunks : dict of str to str
        Columns of which whole column chunks were read: why.
    by_pyarrow : dict of str to str
        Columns of fragments read in part whose pages pyarrow decoded: why.
    seconds : float
    """

    data_bytes: int = 0
    data_reads: int = 0
    index_bytes: int = 0
    rows_read: int = 0
    rows_found: int = 0
    row_groups_read: int = 0
    fragments_read: int = 0
    whole_row_groups: dict[str, int] = field(default_factory=dict)
    whole_chunks: dict[str, str] = field(default_factory=dict)
    by_pyarrow: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

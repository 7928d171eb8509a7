"""The request of a scan, its plan for each fragment, and its statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet.file_layout import FilePages
from zonebloom.predicates import Equals, IsIn, Predicate, RowFilter, row_filter_columns
from zonebloom.scan.ordering import SortKey
from zonebloom.scan.recheck import Projection
from zonebloom.sources.source import Fragment
from zonebloom.storage.files import FileIdentity

DEFAULT_BATCH_ROWS = 1 << 17
# The column of the addresses of rows, with Lance's name for it.
ADDRESS_FIELD = pa.field("_rowaddr", pa.uint64(), nullable=False)
# The largest batch size that PyArrow accepts.
MAX_BATCH_ROWS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Request:
    """The validated request of a scan. ``columns`` of None means all columns.

    The predicate is true for every row that matches the filter. If ``is_predicate_exact``, the
    filter also matches every row for which the predicate is true. ``narrow_filter`` matches the
    same rows as the filter, in files that have not changed since the plan was made. ``bound`` is
    the predicate of the filter, also if no index is asked. Where the filter fails on values of the
    rows, `matching_rows` needs it to exclude the rows that an index would exclude. ``limit`` is
    the largest number of rows, after ``offset`` rows in the order of ``sort_keys``.
    """

    columns: Projection
    filter: RowFilter | None
    limit: int | None = None
    batch_size: int = DEFAULT_BATCH_ROWS
    predicate: Predicate | None = None
    is_predicate_exact: bool = False
    narrow_filter: RowFilter | None = None
    bound: Predicate | None = None
    offset: int = 0
    sort_keys: tuple[SortKey, ...] = ()
    # How many of the last columns are only sorted by.
    num_hidden_columns: int = 0
    # Whether the addresses of the rows follow the columns.
    has_addresses: bool = False
    # The paths of the files to read, or None for all.
    paths: frozenset[str] | None = None

    @property
    def is_for_arrow(self) -> bool:
        """Return whether PyArrow can compute all columns."""
        return not isinstance(self.columns, dict) or all(
            isinstance(value, pc.Expression) for value in self.columns.values()
        )

    def columns_read(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the columns that the filter reads, and the other columns that are needed.

        A filter whose columns are unknown reads all columns.
        """
        needed = set(names)
        if isinstance(self.columns, list):
            needed = set(self.columns)
        elif self.columns is not None:
            referenced = [row_filter_columns(expression) for expression in self.columns.values()]
            if None not in referenced:
                needed = set().union(*(part or () for part in referenced))
        if self.filter is None:
            filtered = needed
        elif self.is_predicate_exact and isinstance(self.predicate, Equals | IsIn):
            filtered = {self.predicate.column[0]}
        else:
            filtered = row_filter_columns(self.filter)
        # Read at least one column, to know the number of rows.
        first: list[str] = []
        rest: list[str] = []
        for name in names:
            if filtered is None or name in filtered:
                first.append(name)
            elif name in needed:
                rest.append(name)
        if first:
            return first, rest
        return [*names[:1]], [name for name in rest if name != names[0]]


@dataclass(frozen=True, slots=True)
class FragmentPlan:
    """The rows that a scan reads of one fragment.

    Attributes
    ----------
    fragment : Fragment
    rows : RowRanges or None
        Offsets of the rows to read, or None for all rows.
    reason : str
        The reason why the fragment is read whole, if it is.
    identity : FileIdentity or None
        The identity of the file when the plan was made. It is always set if ``rows`` is.
    pages : FilePages or None
        The locations of pages. If None, they are read from the footer.
    row_groups : tuple of int or None
        The row groups that the embedded filters of an unindexed file keep.
    num_deleted : int
        Number of rows left out of ``rows`` because the table has deleted them.
    fragment_id : int
        The id of the fragment in the addresses of its rows, or -1 if nobody asks for it.
    """

    fragment: Fragment
    rows: RowRanges | None
    reason: str = ""
    identity: FileIdentity | None = None
    pages: FilePages | None = field(default=None, repr=False)
    row_groups: tuple[int, ...] | None = None
    num_deleted: int = 0
    fragment_id: int = -1


class FileZones(NamedTuple):
    """The zones of one file that may match.

    ``kept`` has the offsets of rows that may match. ``zone_rows`` is the number of rows per zone,
    or 0 if no index that was searched covers the file. ``num_rows`` of an unindexed file is 0,
    because the file is not opened to count its rows.
    """

    path: str
    num_rows: int
    zone_rows: int
    kept: RowRanges

    @property
    def num_zones(self) -> int:
        """Return the number of zones of the file, or 0 if it is not covered."""
        return -(-self.num_rows // self.zone_rows) if self.zone_rows else 0

    @property
    def kept_zones(self) -> int:
        """Return the number of zones with a row that may match."""
        if not self.zone_rows:
            return 0
        firsts = self.kept.starts // self.zone_rows
        lasts = (self.kept.stops - 1) // self.zone_rows
        # Count zones that contain the end of one range and the start of the next only once.
        return int((lasts - firsts + 1).sum() - (firsts[1:] == lasts[:-1]).sum())


@dataclass(slots=True)
class ScanStats:
    """Statistics of a scan.

    Attributes
    ----------
    data_bytes, data_reads : int
        Bytes and requests of data files, including footers. Dictionary pages that an earlier lookup
        of the process left in the cache are not read again.
    index_bytes : int
        Bytes of index files loaded into memory. 0 if they were loaded before.
    rows_read : int
        Rows decoded before the filter, in fragments that are read in part.
    rows_found : int
        Rows returned.
    row_groups_read : int
        Row groups (or record batches) read, in fragments that are read in part.
    fragments_read : int
    whole_row_groups : dict of str to int
        Number of row groups that PyArrow read whole, by reason.
    whole_chunks : dict of str to str
        Columns of which whole column chunks were read, with the reason.
    by_pyarrow : dict of str to str
        Columns that PyArrow decoded from whole row groups, in fragments that are read in part, with
        the reason.
    seconds : float
        The time of the search in the indices and of the reads.
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

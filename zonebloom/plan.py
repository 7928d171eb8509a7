"""What a scan is going to read, and what it did read."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow.compute as pc

from zonebloom.predicates import Predicate, RowFilter
from zonebloom.ranges import RowRanges
from zonebloom.storage.files import FileIdentity
from zonebloom.storage.fragments import Fragment
from zonebloom.storage.parquet.pagemap import FilePages

DEFAULT_BATCH_ROWS = 1 << 17
# What pyarrow takes.
MOST_BATCH_ROWS = (1 << 31) - 1


@dataclass(slots=True)
class Request:
    """What a scan was asked for, checked.

    Attributes
    ----------
    columns : list of str, dict of str to pyarrow Expression, or None for all
    filter : pyarrow.compute.Expression, EngineFilter or None
    """

    columns: list[str] | dict[str, pc.Expression] | None
    filter: RowFilter | None
    limit: int | None = None
    batch_size: int = DEFAULT_BATCH_ROWS


@dataclass(frozen=True, slots=True)
class FragmentPlan:
    """What a scan reads of one fragment.

    Attributes
    ----------
    fragment : Fragment
    rows : RowRanges or None
        Offsets of the rows to read; None reads all.
    why : str
        Why all is read, empty otherwise.
    row_groups : tuple of int or None
        Of a fragment no index covers, the row groups its own filters do not rule out.
    identity : FileIdentity or None
        What the file was when the plan was made; set where ``rows`` is.
    pages : FilePages or None
        Where its pages lie; None has its footer say.
    """

    fragment: Fragment
    rows: RowRanges | None
    why: str = ""
    identity: FileIdentity | None = None
    pages: FilePages | None = None
    row_groups: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class IndexUse:
    """What one index contributed to a plan."""

    name: str
    column: str
    num_zones: int
    kept_zones: int
    num_bytes: int
    read_bytes: int
    covered_fragments: int


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """A scan before it runs; `str` and HTML show it.

    Attributes
    ----------
    filter : pyarrow.compute.Expression, EngineFilter or None
        The recheck.
    predicate : Predicate or None
        What indices were asked; None when they were not.
    columns : tuple of str
    fragments : tuple of FragmentPlan
        Those that are read, in order.
    num_fragments : int
        All of the dataset's.
    skipped : int
        Fragments without a row that could match.
    indices : tuple of IndexUse
        Empty in a plan made to run rather than to be shown.
    unanswered : tuple of (str, str)
        Parts of the filter no index took, and why.
    index_bytes : int
        Bytes of index files that planning brought into memory.
    data_bytes, data_reads : int
        What planning read of data files: the filters embedded in them.
    by_path : tuple of (str, int)
        Parts of the filter that the paths of fragments answer, and the fragments they leave;
        empty in a plan made to run.
    """

    filter: RowFilter | None
    predicate: Predicate | None
    columns: tuple[str, ...]
    fragments: tuple[FragmentPlan, ...]
    num_fragments: int
    skipped: int
    indices: tuple[IndexUse, ...] = ()
    unanswered: tuple[tuple[str, str], ...] = ()
    index_bytes: int = 0
    data_bytes: int = 0
    data_reads: int = 0
    by_path: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        from zonebloom.display import plan_text

        return plan_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from zonebloom.display import lines_html

        return lines_html(str(self))


@dataclass(slots=True)
class ScanStats:
    """What a scan read, counted where bytes come in.

    Attributes
    ----------
    data_bytes, data_reads : int
        Bytes and requests of the data files, footers included.
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
    seconds: float = 0.0

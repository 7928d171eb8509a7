"""What a scan is going to read, and what it did read."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow.compute as pc

from zonebloom.predicates import Predicate, RowFilter
from zonebloom.ranges import RowRanges
from zonebloom.storage.files import FileIdentity
from zonebloom.storage.parquet.pagemap import FilePages
from zonebloom.storage.source import Fragment
from zonebloom.text import bytes_text, lines_html

DEFAULT_BATCH_ROWS = 1 << 17
# What pyarrow takes.
MOST_BATCH_ROWS = (1 << 31) - 1


_SHOWN_FRAGMENTS = 5
_SHOWN_RANGES = 3


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
        return _plan_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
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


def _plan_text(plan: ScanPlan) -> str:
    """A plan as a few lines."""
    columns = ", ".join(plan.columns[:8]) + (", ..." if len(plan.columns) > 8 else "")
    filter = "no filter" if plan.filter is None else str(plan.predicate or plan.filter)
    lines = [f"ZoneBloomScan: {filter}", f"  columns: {columns}"]
    for text, kept in plan.by_path:
        lines.append(f"  by path: {text} leaves {kept:,} of {plan.num_fragments:,} fragments")
    for use in plan.indices:
        lines.append(
            f"  index {use.name} on {use.column}: {use.kept_zones:,} of {use.num_zones:,} zones "
            f"kept, {use.covered_fragments:,} of {plan.num_fragments:,} fragments covered, "
            f"{bytes_text(use.num_bytes)}"
        )
    if not plan.indices:
        lines.append("  index: none used")
    parts = [each for each in plan.fragments if each.rows is not None]
    whole = [each for each in plan.fragments if each.rows is None]
    lines.append(
        f"  fragments: {len(parts):,} read in part, {len(whole):,} read whole, "
        f"{plan.skipped:,} skipped"
    )
    lines += [f"    {_part_text(each)}" for each in parts[:_SHOWN_FRAGMENTS]]
    if len(parts) > _SHOWN_FRAGMENTS:
        lines.append(f"    ... {len(parts) - _SHOWN_FRAGMENTS:,} more in part")
    # When nothing was asked of an index, "whole" needs no reason a fragment.
    if plan.indices or any(each.row_groups is not None for each in whole):
        lines += [f"    {_whole_text(each)}" for each in whole[:_SHOWN_FRAGMENTS]]
        if len(whole) > _SHOWN_FRAGMENTS:
            lines.append(f"    ... {len(whole) - _SHOWN_FRAGMENTS:,} more whole")
    lines += [f"  not answered by an index: {text} ({why})" for text, why in plan.unanswered]
    return "\n".join(lines)


def _whole_text(plan: FragmentPlan) -> str:
    if plan.row_groups is None:
        return f"{plan.fragment.key}: {plan.why}"
    left = f"its own filters leave {len(plan.row_groups):,} row groups"
    return f"{plan.fragment.key}: {plan.why}; {left}"


def _part_text(part: FragmentPlan) -> str:
    assert part.rows is not None
    ranges = list(part.rows)
    shown = ", ".join(f"{start:,}-{stop:,}" for start, stop in ranges[:_SHOWN_RANGES])
    more = f", ... {len(ranges) - _SHOWN_RANGES:,} more" if len(ranges) > _SHOWN_RANGES else ""
    return f"{part.fragment.key}: rows {shown}{more}"


def analysis_text(plan: ScanPlan, stats: ScanStats) -> str:
    """A plan and what its run read."""
    lines = [
        _plan_text(plan),
        f"  rows found: {stats.rows_found:,}",
        f"  data read: {bytes_text(stats.data_bytes)} in {stats.data_reads:,} reads, "
        f"{stats.fragments_read:,} fragments opened",
        *(
            f"  {count:,} row groups read whole{': ' if why else ''}{why}"
            for why, count in stats.whole_row_groups.items()
        ),
        *(f"  whole column chunks of {name}: {why}" for name, why in stats.whole_chunks.items()),
        f"  index read: {bytes_text(stats.index_bytes)}",
        f"  time: {stats.seconds * 1000:,.1f} ms",
    ]
    return "\n".join(lines)

"""The plan of a scan, and its text and HTML in ``explain_plan`` and ``analyze_plan``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from zonebloom.base.display import (
    NO_BOUNDS,
    Displayed,
    Strip,
    bounds_up_to,
    list_html,
    pictures_html,
    styled_html,
    title_html,
)
from zonebloom.base.pickling import ProcessBound
from zonebloom.base.row_ranges import RowRanges, ranges_text
from zonebloom.base.text import bytes_text, count_text, time_text
from zonebloom.parquet.file_layout import FilePages
from zonebloom.predicates import IsIn, Predicate, RowFilter
from zonebloom.predicates.ast import shown_text
from zonebloom.scan.plan import FileZones, FragmentPlan, Request, ScanStats
from zonebloom.scan.recheck import narrow_filter, narrow_predicate
from zonebloom.sources.source import groups_with_rows

if TYPE_CHECKING:
    from zonebloom.sources.source import Source

# The docs recommend pages of this size. Smaller ones compress less.
_SMALL_PAGE_ROWS = 2048
# Nobody notices a smaller gain.
_MIN_FACTOR = 2
# If a scan reads more files, only the first ones are looked at.
_MAX_FILES = 64
_MAX_SHOWN_FRAGMENTS = 5
_MAX_SHOWN_RANGES = 3
_MAX_SHOWN_PARTS = 4


def page_size_line(
    parts: Iterable[tuple[FilePages, RowRanges]], columns: Iterable[tuple[str, ...]]
) -> str:
    """Return a line about the pages of some columns, or "" if smaller pages would save little.

    Parameters
    ----------
    parts : iterable of (FilePages, RowRanges)
        Files, and the rows that are read of each.
    columns : iterable of tuple of str
        The paths of the columns in which these rows are read.
    """
    paths = list(columns)
    num_pages = rows_now = rows_then = 0
    for pages, rows in list(parts)[:_MAX_FILES]:
        for number, _, inside in groups_with_rows(rows, pages.group_rows):
            num_rows = pages.group_rows[number]
            small = np.append(np.arange(0, num_rows, _SMALL_PAGE_ROWS), num_rows)
            for path in paths:
                leaf = pages.schema.leaves_by_path.get(path)
                if leaf is None:
                    continue
                locations = pages.locations(number, leaf)
                edges = np.array([0, num_rows]) if locations is None else locations.first_rows
                sizes = _sizes_of_pages(edges, inside)
                num_pages += sizes.size
                rows_now += int(sizes.sum())
                rows_then += int(_sizes_of_pages(np.union1d(edges, small), inside).sum())
    if rows_now < _MIN_FACTOR * max(rows_then, 1):
        return ""
    return (
        f"pages of {rows_now / num_pages:,.0f} rows; pages of {_SMALL_PAGE_ROWS:,} would read "
        f"{rows_now / rows_then:,.0f} times less"
    )


def _sizes_of_pages(edges: np.ndarray, rows: RowRanges) -> np.ndarray:
    """Return the numbers of rows of the pages that hold some rows.

    ``edges`` are the first rows of all pages, and the number of rows of the row group.
    """
    begun = np.zeros(edges.size, dtype=np.int64)
    np.add.at(begun, np.searchsorted(edges, rows.starts, side="right") - 1, 1)
    np.add.at(begun, np.searchsorted(edges, rows.stops, side="left"), -1)
    return np.diff(edges)[np.cumsum(begun)[:-1] > 0]


@dataclass(frozen=True, slots=True)
class IndexUse:
    """An index that a plan uses, the zones that it keeps, and the bytes it read for that.

    ``kept_zones`` are left by all indices together, ``alone`` are the parts of the filter that this
    one answers, each with the number of zones that it keeps for it.
    """

    name: str
    column: str
    num_zones: int
    kept_zones: int
    num_bytes: int
    read_bytes: int
    covered_fragments: int
    alone: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.kept_zones:,} of {self.num_zones:,} zones kept by {self.name}"


@dataclass(frozen=True, slots=True, repr=False)
class ScanPlan(ProcessBound, Displayed):
    """The plan of a scan before it runs. `str` and HTML describe it.

    Attributes
    ----------
    filter : pyarrow.compute.Expression, EngineFilter or None
        The filter of the recheck.
    predicate : Predicate or None
        The predicate that indices were searched for, or None if they were not.
    columns : tuple of str
    fragments : tuple of FragmentPlan
        The fragments to read, in order.
    num_fragments : int
        Number of fragments of the dataset.
    indices : tuple of IndexUse
        The indices that were searched. Empty, like ``partition_pruning`` and ``files``, in a plan
        that is made to run and not to be shown.
    unanswered : tuple of (str, str)
        Parts of the filter that no index could answer, and the reasons.
    index_bytes : int
        Bytes of index files that planning loaded into memory.
    data_bytes, data_reads : int
        Bytes and requests of data files that planning read, for the filters embedded in them.
    partition_pruning : tuple of (str, int)
        Parts of the filter that partition values answer, and the number of fragments they keep.
    files : tuple of FileZones
        All files of the dataset with the zones that may match. Empty without a filter.
    all_bytes : int
        Size of all files of the dataset.
    narrow_lists : tuple of (IsIn, IsIn)
        Long lists of keys in the predicate, and the same without keys that no row holds.
    source : Source or None
        The files that were planned for. A scan of other files refuses the plan.
    paths : frozenset of str or None
        The paths of the files to which the scan was limited, or None for all files.
    """

    filter: RowFilter | None
    predicate: Predicate | None
    columns: tuple[str, ...]
    fragments: tuple[FragmentPlan, ...]
    num_fragments: int
    indices: tuple[IndexUse, ...] = ()
    unanswered: tuple[tuple[str, str], ...] = ()
    index_bytes: int = 0
    data_bytes: int = 0
    data_reads: int = 0
    partition_pruning: tuple[tuple[str, int], ...] = ()
    files: tuple[FileZones, ...] = ()
    all_bytes: int = 0
    narrow_lists: tuple[tuple[IsIn, IsIn], ...] = field(default=(), repr=False)
    source: Source | None = field(default=None, repr=False)
    paths: frozenset[str] | None = field(default=None, repr=False)

    @property
    def skipped(self) -> int:
        """Return the number of fragments in which no row can match."""
        return self.num_fragments - len(self.fragments)

    @property
    def deleted_rows(self) -> int:
        """Return the number of rows that are not read because the table has deleted them."""
        return sum(part.num_deleted for part in self.fragments)

    @property
    def fragments_text(self) -> str:
        """Return a text of how many fragments are read in part, read whole, and skipped."""
        whole = sum(part.rows is None for part in self.fragments)
        return (
            f"fragments: {len(self.fragments) - whole:,} read in part, {whole:,} read whole, "
            f"{self.skipped:,} skipped"
        )

    def __str__(self) -> str:
        head, *facts = self._facts()
        parts = [part for part in self.fragments if part.rows is not None]
        whole = [part for part in self.fragments if part.rows is None]
        lines = [head, *(f"  {fact}" for fact in facts), *_describe_first(parts, "in part")]
        # If no index was searched, all fragments are read whole for the same reason.
        if self.indices or any(part.row_groups is not None for part in whole):
            lines += _describe_first(whole, "whole")
        return "\n".join(lines + [f"  {reason}" for reason in self._reasons()])

    def _facts(self) -> list[str]:
        columns = ", ".join(self.columns[:8]) + (", ..." if len(self.columns) > 8 else "")
        filter: object = "no filter" if self.filter is None else self.predicate or self.filter
        if self.predicate is not None and self.source is not None:
            filter = shown_text(self.predicate, self.source.schema)
        lines = [f"ZoneBloomScan: {filter}", f"columns: {columns}"]
        for text, num_kept in self.partition_pruning:
            share = f"{num_kept:,} of {self.num_fragments:,} fragments"
            lines.append(f"by path: {text} leaves {share}")
        for use in self.indices:
            lines.append(
                f"index {use.name} on {use.column}: {use.kept_zones:,} of {use.num_zones:,} "
                f"zones kept, {use.covered_fragments:,} of {self.num_fragments:,} fragments "
                f"covered, {bytes_text(use.num_bytes)}"
            )
        if sum(len(use.alone) for use in self.indices) > 1:
            lines += [
                f"  {use.name} alone keeps {kept:,} of {use.num_zones:,} zones for {text}"
                for use in self.indices
                for text, kept in use.alone[:_MAX_SHOWN_PARTS]
            ]
        if not self.indices:
            lines.append("index: none used")
        lines.append(self.fragments_text)
        if any(part.fragment.view is not None for part in self.fragments):
            lines.append(f"deleted rows: {self.deleted_rows:,} left out")
        return lines

    def _reasons(self) -> list[str]:
        return [f"not answered by an index: {text} ({reason})" for text, reason in self.unanswered]

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, facts: Sequence[str] = (), bars: Sequence[Strip] = ()) -> str:
        """Return the plan as HTML, with further facts, a drawing of the files, and bars."""
        head, *plan_facts = self._facts()
        plans_by_key = {part.fragment.key: part for part in self.fragments}
        lines = list_html([*plan_facts, *self._reasons(), *facts])
        strips = [_file_strip(file, plans_by_key.get(file.path)) for file in self.files]
        return styled_html(title_html(head), lines, pictures_html(strips, bars))


def _file_strip(file: FileZones, part: FragmentPlan | None) -> Strip:
    words = "skipped" if part is None else _part_text(part)
    if not file.zone_rows:
        return Strip(file.path, words, 1, unindexed=bounds_up_to(1) if file.kept else NO_BOUNDS)
    words = f"{file.kept_zones:,} of {file.num_zones:,} zones: {words}"
    bounds = file.kept.starts, file.kept.stops
    return Strip(file.path, words, file.num_rows, bounds, zone_rows=file.zone_rows)


def narrowed_request(plan: ScanPlan, request: Request, schema: pa.Schema) -> Request:
    """Return a request without the keys of its lists that no row holds, if indices found such."""
    if plan.predicate is None or not plan.narrow_lists:
        return request
    return replace(
        request,
        predicate=narrow_predicate(plan.predicate, plan.narrow_lists),
        narrow_filter=narrow_filter(request.filter, plan.narrow_lists, schema),
    )


def _describe_first(parts: Sequence[FragmentPlan], manner: str) -> list[str]:
    lines = [
        f"    {part.fragment.key}: {_part_text(part)}" for part in parts[:_MAX_SHOWN_FRAGMENTS]
    ]
    if len(parts) > _MAX_SHOWN_FRAGMENTS:
        lines.append(f"    ... {len(parts) - _MAX_SHOWN_FRAGMENTS:,} more {manner}")
    return lines


def _part_text(part: FragmentPlan) -> str:
    if part.rows is not None:
        why = f"{part.reason}, " if part.reason else ""
        return f"{why}rows {ranges_text(part.rows, _MAX_SHOWN_RANGES)}"
    if part.row_groups is None:
        return part.reason
    return f"{part.reason}; its own filters leave {len(part.row_groups):,} row groups"


class PlanText(Displayed, str):
    """The text that ``explain_plan`` and ``analyze_plan`` return, which Jupyter shows as HTML.

    Attributes
    ----------
    plan : ScanPlan
    stats : ScanStats or None
        Statistics of the run, or None if the scan was only planned.
    page_sizes : str
        A line about the pages of the files that were read in part, if smaller pages would have made
        the run much cheaper, else "".
    """

    plan: ScanPlan
    stats: ScanStats | None
    page_sizes: str

    def __new__(
        cls,
        plan: ScanPlan,
        stats: ScanStats | None = None,
        page_sizes: str = "",
    ) -> PlanText:
        facts = [] if stats is None else _stats_facts(stats, page_sizes)
        text = super().__new__(cls, "\n".join([str(plan), *(f"  {fact}" for fact in facts)]))
        text.plan, text.stats, text.page_sizes = plan, stats, page_sizes
        return text

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # A plan refers to objects that cannot leave this process, so pickle only the text.
        return str, (str(self),)

    def _repr_html_(self) -> str:
        if self.stats is None:
            return self.plan.html()
        read, every = self.stats.data_bytes, self.plan.all_bytes
        words = f"{bytes_text(read)} read, {bytes_text(every)} in all files"
        bars = [Strip("bytes read", words, every, bounds_up_to(read))] if every else []
        facts = _stats_facts(self.stats, self.page_sizes)
        return self.plan.html(facts, bars)


def _stats_facts(stats: ScanStats, page_sizes: str) -> list[str]:
    return [
        f"rows found: {stats.rows_found:,}",
        f"data read: {bytes_text(stats.data_bytes)} "
        f"in {count_text(stats.data_reads, 'read')}, "
        f"{count_text(stats.fragments_read, 'fragment')} opened",
        *(
            f"{count_text(count, 'row group')} read whole{': ' if reason else ''}{reason}"
            for reason, count in stats.whole_row_groups.items()
        ),
        *(
            f"whole column chunks of {name}: {reason}"
            for name, reason in stats.whole_chunks.items()
        ),
        *(
            f"row groups decoded by pyarrow: {', '.join(sorted(names))} ({reason})"
            for reason, names in _by_reason(stats.by_pyarrow).items()
        ),
        *([page_sizes] if page_sizes else []),
        f"index read: {bytes_text(stats.index_bytes)}",
        f"time: {time_text(stats.seconds)}",
    ]


def _by_reason(columns: dict[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, reason in columns.items():
        reasons.setdefault(reason, []).append(name)
    return reasons

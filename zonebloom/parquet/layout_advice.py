"""Judge the layout of Parquet files for lookups, and estimate what a rewrite would save.

A lookup decodes whole pages. To find a key, it decodes the pages that hold the rows of a zone. To
return a matching row, it decodes one page of each column. So the rows of a page decide what a
lookup costs. The recommended layout has pages of 2,048 rows, and dictionaries only where they are
small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zonebloom.base import arguments
from zonebloom.base.display import Displayed, list_html, styled_html, title_html
from zonebloom.base.row_ranges import RowRanges
from zonebloom.base.text import bytes_text, count_text
from zonebloom.errors import ColumnNotFound
from zonebloom.parquet.file_layout import FilePages

# The layout that `zonebloom.rewrite` writes.
PAGE_ROWS = 2048
MAX_DICTIONARY_BYTES = 256 << 10
MIN_GROUP_ROWS = 122_880
MAX_GROUP_ROWS = 1 << 20
MAX_GROUP_BYTES = 256 << 20

# A rewrite that saves fewer bytes of pages per lookup, or less than half of the rows, saves no
# time that users notice.
_MIN_SAVED_BYTES = 100_000
_MIN_ROWS_FACTOR = 2
# A dictionary is too large if it is larger than this and makes up this share of its column chunk,
# or belongs to a key whose values hardly repeat.
_LARGE_DICTIONARY_BYTES = 2 * MAX_DICTIONARY_BYTES
_LARGE_DICTIONARY_SHARE = 1 / 3
# Smaller row groups cut pages into pieces, and footers become large.
_SMALL_GROUP_ROWS = PAGE_ROWS
_SMALL_GROUP_BYTES = 16 << 20
_LARGE_GROUP_BYTES = 1 << 30
REMEDY = "`zonebloom rewrite` (in Python zonebloom.rewrite) writes files with small pages"
TABLE_REMEDY = f"set the writer of the table to pages of {PAGE_ROWS:,} rows, and rewrite its files"


@dataclass(frozen=True, slots=True)
class PageCut:
    """The pages of a column in one row group: where they are cut, and their compressed sizes.

    A column of several leaves is one page if its leaves are cut at different rows, because the
    whole row group is then read.

    Attributes
    ----------
    first_rows : int64 array
        The first row of each page, and the number of rows of the row group at the end.
    sizes : int64 array
    is_located : bool
        Whether the places of pages are known. Else the whole column chunk is one page.
    dictionary_bytes : int
    """

    first_rows: np.ndarray
    sizes: np.ndarray
    is_located: bool = True
    dictionary_bytes: int = 0

    @property
    def num_rows(self) -> int:
        return int(self.first_rows[-1])

    @property
    def num_bytes(self) -> int:
        """The bytes of all pages, without the dictionary."""
        return int(self.sizes.sum())

    def recommended(self) -> PageCut:
        """Return the same rows in the recommended pages, or this object if its pages are small."""
        num_rows = self.num_rows
        if self.sizes.size >= num_rows / PAGE_ROWS:
            return self
        first_rows = np.append(np.arange(0, num_rows, PAGE_ROWS), num_rows)
        sizes = self.num_bytes * np.diff(first_rows) / num_rows
        return PageCut(first_rows, sizes)

    def read_one_row(self) -> np.ndarray:
        """Return the rows and bytes of the page of a row, summed over all rows."""
        rows = np.diff(self.first_rows)
        return np.array([(rows * rows).sum(), (rows * self.sizes).sum()], dtype=np.float64)

    def read_zones(self, first_row: int, zone_rows: int, file_rows: int) -> np.ndarray:
        """Return the rows and bytes of the pages of a row's zone, summed over all rows.

        ``first_row`` is the first row of the row group in its file. A zone may begin in one row
        group and end in the next. Its rows then read pages of both.
        """
        stop_row = first_row + self.num_rows
        edges = np.arange(-(-first_row // zone_rows) * zone_rows, stop_row, zone_rows) - first_row
        starts = np.union1d(edges, [0])
        stops = np.append(starts[1:], self.num_rows)
        firsts = np.searchsorted(self.first_rows, starts, side="right") - 1
        ends = np.searchsorted(self.first_rows, stops, side="left")
        first_bytes = np.append(0, np.cumsum(self.sizes))
        rows = self.first_rows[ends] - self.first_rows[firsts]
        num_bytes = first_bytes[ends] - first_bytes[firsts]
        zone_starts = (first_row + starts) // zone_rows * zone_rows
        weights = np.minimum(zone_starts + zone_rows, file_rows) - zone_starts
        return np.array([(weights * rows).sum(), (weights * num_bytes).sum()], dtype=np.float64)

    def read_ranges(self, ranges: RowRanges) -> np.ndarray:
        """Return the rows and bytes of the pages that hold some rows of the row group."""
        is_read = self._num_rows_in_pages(ranges) > 0
        return np.array([np.diff(self.first_rows)[is_read].sum(), self.sizes[is_read].sum()])

    def read_matches(self, ranges: RowRanges, num_matches: int, num_candidates: int) -> np.ndarray:
        """Return the expected rows and bytes of the pages of rows that match.

        The matches are spread evenly over ``num_candidates`` rows, of which ``ranges`` are those
        in the row group.
        """
        share = self._num_rows_in_pages(ranges) / max(num_candidates, 1)
        is_read = 1 - (1 - np.minimum(share, 1.0)) ** num_matches
        return np.array([np.diff(self.first_rows) @ is_read, self.sizes @ is_read])

    def _num_rows_in_pages(self, ranges: RowRanges) -> np.ndarray:
        """Return how many rows of some ranges are in each page."""
        sizes = np.append(0, np.cumsum(ranges.stops - ranges.starts))
        number = np.searchsorted(ranges.starts, self.first_rows, side="right") - 1
        begun = np.maximum(number, 0)
        if not ranges.starts.size:
            return np.zeros(self.sizes.size)
        inside = np.minimum(self.first_rows, ranges.stops[begun]) - ranges.starts[begun]
        return np.diff(np.where(number < 0, 0, sizes[begun] + inside))


def page_cut(pages: FilePages, row_group: int, leaves: Iterable[int]) -> PageCut:
    """Return how the leaves of one column are cut into pages, from their page locations."""
    group = pages.row_groups[row_group]
    located = [(group.chunks[leaf], pages.locations(row_group, leaf)) for leaf in leaves]
    cuts = []
    for chunk, locations in located:
        if locations is None:
            cuts.append(whole_chunk_cut(group.num_rows, chunk.stop - chunk.start))
        else:
            dictionary_bytes = int(locations.starts[0]) - chunk.start
            cuts.append(
                PageCut(locations.first_rows, locations.sizes, dictionary_bytes=dictionary_bytes)
            )
    return join_cuts(cuts)


def whole_chunk_cut(num_rows: int, num_bytes: int) -> PageCut:
    return PageCut(np.array([0, num_rows]), np.array([num_bytes]), is_located=False)


def join_cuts(cuts: Sequence[PageCut]) -> PageCut:
    """Return the cut of a column with several leaves."""
    first = cuts[0]
    if all(np.array_equal(cut.first_rows, first.first_rows) for cut in cuts):
        return PageCut(
            first.first_rows,
            np.sum([cut.sizes for cut in cuts], axis=0),
            all(cut.is_located for cut in cuts),
            sum(cut.dictionary_bytes for cut in cuts),
        )
    num_bytes = sum(cut.num_bytes + cut.dictionary_bytes for cut in cuts)
    return whole_chunk_cut(first.num_rows, num_bytes)


@dataclass(frozen=True, slots=True)
class ColumnLayout(Displayed):
    """The layout of one or several columns, and what a lookup of one key reads of them.

    Attributes
    ----------
    columns : tuple of str
    is_key : bool
        Whether the column is searched for a key, which reads the pages of a whole zone. Otherwise
        the values of one row are read, and the rows below are the mean of the columns.
    rows_per_page : int
        The rows of the page of a random row.
    rows_per_group : int
        The mean number of rows of a row group.
    rows_read : int
        The rows that a lookup decodes.
    rows_after_rewrite : int
        The rows that a lookup decodes if all pages have 2,048 rows.
    bytes_read, bytes_after_rewrite : int
        The compressed bytes of these pages, estimated from the sizes of column chunks. They do not
        include dictionaries, which are read once per process.
    dictionary_bytes : int
        The mean size of the dictionary of a column chunk.
    problem, dictionary_problem : str
        Sentences about the pages and the dictionary, or "" if they are fine.
    """

    columns: tuple[str, ...]
    is_key: bool
    rows_per_page: int
    rows_per_group: int
    rows_read: int
    rows_after_rewrite: int
    bytes_read: int
    bytes_after_rewrite: int
    dictionary_bytes: int
    problem: str = ""
    dictionary_problem: str = ""

    def __str__(self) -> str:
        if self.problem or self.dictionary_problem:
            return "; ".join(filter(None, (self.problem, self.dictionary_problem)))
        return (
            f"{_columns_text(self.columns)}: pages of {self.rows_per_page:,} rows, a lookup "
            f"decodes {self.rows_read:,} rows"
        )


@dataclass(frozen=True, slots=True)
class LayoutAdvice(Displayed):
    """The judgement on the layout of Parquet files, and what a rewrite would save per lookup.

    Attributes
    ----------
    num_files, sampled_files : int
        The files, and how many of them were looked at.
    rows_per_group : int
        The mean number of rows of a row group.
    columns : tuple of ColumnLayout
        One for each key, and then one for all columns of a row together. After a scan, one for the
        columns of its filter, and one for the other columns that it read.
    problems : tuple of str
        Sentences about the layout. Empty if it is fine.
    remedy : str
        What to do about the problems.

    Examples
    --------
    The rows of this file are in one page, as DuckDB writes them.

    >>> table = pa.table({"id": np.random.default_rng(0).permutation(200_000)})
    >>> options = {"row_group_size": 100_000, "max_rows_per_page": 100_000}
    >>> pq.write_table(table, "one_page.parquet", **options, use_dictionary=False)
    >>> layout = zb.dataset("one_page.parquet").advise().file_layout
    >>> layout.is_fine
    False
    >>> layout["id"].rows_read, layout["id"].rows_after_rewrite
    (104096, 9109)
    >>> zb.rewrite("one_page.parquet", "small_pages", progress=False).num_rows
    200000
    >>> zb.dataset("small_pages").advise().file_layout.is_fine
    True
    """

    num_files: int
    sampled_files: int
    rows_per_group: int
    columns: tuple[ColumnLayout, ...]
    problems: tuple[str, ...]
    remedy: str = REMEDY

    @property
    def is_fine(self) -> bool:
        """True if a rewrite would save little."""
        return not self.problems

    def __getitem__(self, column: str) -> ColumnLayout:
        """Return the layout of a key column, or the first one with a column of this name."""
        for layout in self.columns:
            if column in layout.columns:
                return layout
        names = [name for layout in self.columns for name in layout.columns]
        suggestion = arguments.suggest_names(column, names, "there are:")
        raise ColumnNotFound(f"the layout of column {column!r} was not judged; {suggestion}")

    def __str__(self) -> str:
        return "\n".join([self._title(), *(f"  {line}" for line in self.lines)])

    @property
    def lines(self) -> list[str]:
        """The problems and what to do about them. Empty if the layout is fine."""
        return [] if self.is_fine else [*self.problems, self.remedy]

    def _title(self) -> str:
        state = "fine" if self.is_fine else "lookups read more than they need"
        files = count_text(self.num_files, "file")
        return f"file layout: {state}; {files}, row groups of {self.rows_per_group:,} rows"

    def _repr_html_(self) -> str:
        return styled_html(title_html(self._title()), list_html(self.lines))


class LayoutSums:
    """Sums over the row groups of a sample, of one column, for its `ColumnLayout`."""

    def __init__(self) -> None:
        self.num_rows = self.num_groups = self._num_pages = 0
        self._one_row, self._dictionary_bytes, self._chunk_bytes = 0.0, 0, 0
        self._read = np.zeros(2)
        self._after = np.zeros(2)
        self._is_located = True

    def add(self, cut: PageCut, read: Callable[[PageCut], np.ndarray]) -> None:
        """Add a row group. ``read`` returns the rows and bytes that are read of its pages."""
        self.num_rows += cut.num_rows
        self.num_groups += 1
        self._num_pages += cut.sizes.size
        self._one_row += cut.read_one_row()[0]
        self._dictionary_bytes += cut.dictionary_bytes
        self._chunk_bytes += cut.num_bytes + cut.dictionary_bytes
        self._is_located &= cut.is_located
        before = read(cut)
        self._read += before
        self._after += np.minimum(before, read(cut.recommended()))

    def layout(
        self, name: str, *, is_key: bool, is_mean: bool, hardly_repeats: bool = False
    ) -> ColumnLayout:
        """Return the layout of the column.

        ``is_mean`` says that what is read was summed over all rows, so that a lookup of a random
        row reads the mean. ``hardly_repeats`` says that most values of the column are distinct.
        """
        num_rows = max(self.num_rows, 1)
        rows, num_bytes = self._read / (num_rows if is_mean else 1)
        rows_after, bytes_after = self._after / (num_rows if is_mean else 1)
        num_groups = max(self.num_groups, 1)
        layout = ColumnLayout(
            (name,),
            is_key,
            round(self._one_row / num_rows),
            round(num_rows / num_groups),
            round(rows),
            round(rows_after),
            round(num_bytes),
            round(bytes_after),
            round(self._dictionary_bytes / num_groups),
        )
        return replace(
            layout,
            problem=pages_problem(layout, self.cause, is_lookup=is_mean),
            dictionary_problem=self._dictionary_problem(layout, hardly_repeats),
        )

    @property
    def cause(self) -> str:
        """Return how the column is cut, as words."""
        if not self._is_located:
            return "the places of pages are not known"
        if self._num_pages <= self.num_groups:
            return "one page per column chunk"
        return f"pages of {round(self._one_row / max(self.num_rows, 1)):,} rows"

    def _dictionary_problem(self, layout: ColumnLayout, hardly_repeats: bool) -> str:
        share = self._dictionary_bytes / max(self._chunk_bytes, 1)
        is_useless = hardly_repeats or share >= _LARGE_DICTIONARY_SHARE
        if layout.dictionary_bytes <= _LARGE_DICTIONARY_BYTES or not is_useless:
            return ""
        return (
            f"a column chunk of {_columns_text(layout.columns)} has a dictionary of "
            f"{bytes_text(layout.dictionary_bytes)}, although values hardly repeat; the first "
            "lookup reads all of it"
        )


def pages_problem(layout: ColumnLayout, cause: str, *, is_lookup: bool = True) -> str:
    """Return a sentence about pages that are too large, or ""."""
    is_gain = (
        layout.bytes_read - layout.bytes_after_rewrite >= _MIN_SAVED_BYTES
        and layout.rows_read >= _MIN_ROWS_FACTOR * layout.rows_after_rewrite
    )
    if not is_gain:
        return ""
    subject = "each lookup decodes" if is_lookup else "the scan decoded about"
    return (
        f"{_columns_text(layout.columns)}: {cause}, so {subject} {layout.rows_read:,} rows "
        f"({bytes_text(layout.bytes_read)}); rewritten, {layout.rows_after_rewrite:,} rows "
        f"({bytes_text(layout.bytes_after_rewrite)})"
    )


def join_layouts(
    layouts: Sequence[ColumnLayout],
    causes: Sequence[str],
    *,
    factor: float = 1.0,
    is_lookup: bool = True,
) -> ColumnLayout:
    """Return the layout of several columns that are read together.

    Rows are the mean of the columns, and bytes their sum, multiplied by ``factor`` if the columns
    are a sample. ``causes`` says how each column is cut.
    """

    def mean(figures: Iterable[int]) -> int:
        return round(sum(figures) / len(layouts))

    joined = ColumnLayout(
        tuple(name for layout in layouts for name in layout.columns),
        layouts[0].is_key,
        mean(layout.rows_per_page for layout in layouts),
        mean(layout.rows_per_group for layout in layouts),
        mean(layout.rows_read for layout in layouts),
        mean(layout.rows_after_rewrite for layout in layouts),
        round(factor * sum(layout.bytes_read for layout in layouts)),
        round(factor * sum(layout.bytes_after_rewrite for layout in layouts)),
        mean(layout.dictionary_bytes for layout in layouts),
    )
    cause = causes[0]
    if len(set(causes)) > 1:
        cause = f"pages of {joined.rows_per_page:,} rows on average"
    return replace(joined, problem=pages_problem(joined, cause, is_lookup=is_lookup))


def group_problems(num_rows: int, num_bytes: int, num_groups: int, num_files: int) -> list[str]:
    """Return sentences about row groups that are too small or too large."""
    if not num_groups:
        return []
    rows_per_group, bytes_per_group = num_rows / num_groups, num_bytes / num_groups
    is_small = rows_per_group < _SMALL_GROUP_ROWS and bytes_per_group < _SMALL_GROUP_BYTES
    if is_small and num_groups > 2 * num_files:
        return [
            f"row groups of {rows_per_group:,.0f} rows: each has pages and dictionaries of its "
            "own, and readers of the footers read the places of all of them"
        ]
    if bytes_per_group > _LARGE_GROUP_BYTES:
        return [
            f"row groups of {bytes_text(round(bytes_per_group))}: readers that do not read by the "
            "page hold a whole one in memory"
        ]
    return []


def codec_problem(codecs: Iterable[str]) -> list[str]:
    """Return a sentence about codecs that zonebloom's kernels do not know."""
    names = ", ".join(sorted(set(codecs)))
    if not names:
        return []
    return [f"pages are compressed by {names}, which only pyarrow decodes, column by column"]


def _columns_text(columns: Sequence[str]) -> str:
    if len(columns) == 1:
        return columns[0]
    return f"a row of {len(columns):,} columns"

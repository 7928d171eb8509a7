"""Say how much less a lookup would decode if the pages of Parquet files were small.

A lookup decodes whole pages, so the rows of a page decide what it costs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet.file_layout import FilePages
from zonebloom.sources.source import groups_with_rows

# The docs recommend pages of this size. Smaller ones compress less.
_SMALL_PAGE_ROWS = 2048
# Nobody notices a smaller gain.
_MIN_FACTOR = 2
# If a scan reads more files, only the first ones are looked at.
_MAX_FILES = 64


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

"""Judge the layout of the files that a scan read, from what the scan knew about their pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.layout_advice import (
    REMEDY,
    TABLE_REMEDY,
    ColumnLayout,
    LayoutAdvice,
    LayoutSums,
    PageCut,
    join_layouts,
    page_cut,
)
from zonebloom.predicates.ast import And, Predicate, probed_columns
from zonebloom.scan.explain import ScanPlan
from zonebloom.scan.plan import Request
from zonebloom.sources.source import Source, groups_with_rows

# If a scan reads more files or columns, only the first ones are looked at.
_MAX_FILES = 64
_MAX_COLUMNS = 64


def judge_scan(
    plan: ScanPlan, request: Request, source: Source, rows_found: int
) -> LayoutAdvice | None:
    """Return the judgement on the files that a scan read in part, without reading anything.

    Only files whose page map the index stores are judged. Return None if there are none, or if the
    scan stopped early.

    Parameters
    ----------
    plan : ScanPlan
    request : Request
    source : Source
    rows_found : int
        The number of rows that the scan returned.
    """
    if request.limit is not None or request.predicate is None:
        return None
    parts = [
        (part.pages, part.rows)
        for part in plan.fragments[:_MAX_FILES]
        if part.pages is not None and part.rows
    ]
    if not parts:
        return None
    filter_columns, columns_of_matches = request.columns_read(source.schema.names)
    searched = {column[0] for column in probed_columns(_first_term(request.predicate))}
    keys = [name for name in filter_columns if name in searched]
    row_columns = [name for name in (*filter_columns, *columns_of_matches) if name not in searched]
    num_candidates = sum(len(rows) for _, rows in parts)
    layouts = [
        _joined(parts, keys, lambda rows: partial(PageCut.read_ranges, ranges=rows), is_key=True),
        _joined(
            parts,
            row_columns,
            lambda rows: partial(
                PageCut.read_matches,
                ranges=rows,
                num_matches=rows_found,
                num_candidates=num_candidates,
            ),
            is_key=False,
        ),
    ]
    known_layouts = tuple(layout for layout in layouts if layout is not None)
    num_groups = sum(len(pages.row_groups) for pages, _ in parts)
    return LayoutAdvice(
        len(plan.fragments),
        len(parts),
        round(sum(pages.num_rows for pages, _ in parts) / max(num_groups, 1)),
        known_layouts,
        tuple(layout.problem for layout in known_layouts if layout.problem),
        TABLE_REMEDY if source.is_table_snapshot else REMEDY,
    )


def _first_term(predicate: Predicate) -> Predicate:
    """Return the part of a predicate that is searched in all candidate rows."""
    return predicate.terms[0] if isinstance(predicate, And) and predicate.terms else predicate


def _joined(
    parts: Sequence[tuple[FilePages, RowRanges]],
    names: Sequence[str],
    reads: Callable[[RowRanges], Callable[[PageCut], np.ndarray]],
    *,
    is_key: bool,
) -> ColumnLayout | None:
    """Return the layout of some columns together.

    ``reads`` returns, for the candidate rows in a row group, the function that tells what the scan
    read of a column.
    """
    all_sums = {name: LayoutSums() for name in names[:_MAX_COLUMNS]}
    for pages, rows in parts:
        schema = pages.schema
        for group, _, inside in groups_with_rows(rows, pages.group_rows):
            for name, sums in all_sums.items():
                leaves = (
                    schema.field_leaves[schema.fields_by_name[name]]
                    if (name in schema.fields_by_name)
                    else ()
                )
                if leaves:
                    sums.add(page_cut(pages, group, leaves), reads(inside))
    layouts = {
        name: sums.layout(name, is_key=is_key, is_mean=False)
        for name, sums in all_sums.items()
        if sums.num_groups
    }
    if not layouts:
        return None
    causes = [all_sums[name].cause for name in layouts]
    factor = len(names) / len(all_sums)
    return join_layouts(list(layouts.values()), causes, factor=factor, is_lookup=False)

"""How plans and numbers look in a terminal and in Jupyter."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zonebloom.plan import FragmentPlan, ScanPlan, ScanStats

_SHOWN_FRAGMENTS = 5
_SHOWN_RANGES = 3


def bytes_text(count: int) -> str:
    """A size for people, in decimal units.

    >>> bytes_text(999), bytes_text(80_000_000)
    ('999 B', '80.0 MB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def plan_text(plan: ScanPlan) -> str:
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
        plan_text(plan),
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


def table_text(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned, numbers to the right.

    >>> print(table_text(["name", "zones"], [["id_idx", 29]]))
    name    zones
    id_idx     29
    """
    cells = [[_cell_text(cell) for cell in row] for row in rows]
    widths = [max(map(text_width, column)) for column in zip(headers, *cells, strict=True)]
    right = [
        bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        for i in range(len(headers))
    ]
    return "\n".join(
        "  ".join(
            padded(cell, width, to_right)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [list(headers), *cells]
    )


def padded(cell: str, width: int, to_right: bool) -> str:
    """A cell brought to a width with spaces."""
    space = " " * (width - text_width(cell))
    return space + cell if to_right else cell + space


def text_width(text: str) -> int:
    """Columns a text takes in a terminal: East Asian characters two, combining ones none.

    >>> text_width("Łódź"), text_width("城郊")
    (4, 4)
    """
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def _cell_text(cell: object) -> str:
    if isinstance(cell, bool) or cell is None:
        return {True: "yes", False: "no", None: "-"}[cell]
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:.3g}"
    return str(cell)


def table_html(headers: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> str:
    """The same table for Jupyter."""
    head = "".join(f"<th>{html.escape(header)}</th>" for header in headers)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell_text(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    caption = f"<p>{html.escape(title)}</p>" if title else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div>{caption}{table}</div>"


def lines_html(text: str) -> str:
    """Text whose lines matter, for Jupyter."""
    return f"<pre>{html.escape(text)}</pre>"

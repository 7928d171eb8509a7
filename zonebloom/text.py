"""How numbers and tables look in a terminal and in Jupyter."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence


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


def table_text(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned, numbers to the right.

    >>> print(table_text(["name", "zones"], [["id_idx", 29]]))
    name    zones
    id_idx     29
    """
    right = [
        bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        for i in range(len(headers))
    ]
    return aligned([list(headers), *([_cell_text(cell) for cell in row] for row in rows)], right)


def aligned(lines: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Cells of lines brought to the widths of their columns, to the left or to the right."""
    widths = [max(map(text_width, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(_padded, line, widths, right)).rstrip() for line in lines)


def _padded(cell: str, width: int, to_right: bool) -> str:
    space = " " * (width - text_width(cell))
    return space + cell if to_right else cell + space


def text_width(text: str) -> int:
    """Columns a text takes in a terminal: East Asian characters two, combining ones none."""
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


def table_html(
    headers: Sequence[str], rows: Sequence[Sequence[object]], above: str = "", below: str = ""
) -> str:
    head = "".join(f"<th>{html.escape(header)}</th>" for header in headers)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell_text(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    above, below = (f"<p>{html.escape(line)}</p>" if line else "" for line in (above, below))
    return f"<div>{above}{table}{below}</div>"


class Lines:
    """What shows itself as the lines of its `str`, in Jupyter too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return lines_html(str(self))


def lines_html(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"

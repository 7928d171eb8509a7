"""How numbers and tables look in a terminal."""

from __future__ import annotations

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


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "read"), counted(2000, "row group")
    ('1 read', '2,000 row groups')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def table_text(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned, numbers to the right.

    >>> print(table_text(["name", "zones"], [["id_idx", 29]]))
    name    zones
    id_idx     29
    """
    lines = [list(headers), *([cell_text(cell) for cell in row] for row in rows)]
    return aligned(lines, numeric_columns(headers, rows))


def numeric_columns(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[bool]:
    """Which columns hold numbers alone."""
    return [
        bool(rows) and all(isinstance(row[at], int | float) for row in rows)
        for at in range(len(headers))
    ]


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


def cell_text(cell: object) -> str:
    if isinstance(cell, bool) or cell is None:
        return {True: "yes", False: "no", None: "-"}[cell]
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:.3g}"
    if isinstance(cell, list | tuple):
        return ", ".join(map(cell_text, cell))
    return str(cell)

"""Format numbers and tables for a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TypeAlias

# The headers of a table, and its rows.
TextTable: TypeAlias = tuple[Sequence[str], Sequence[Sequence[object]]]


def bytes_text(count: int) -> str:
    """Return a size in decimal units, for people.

    >>> bytes_text(999), bytes_text(80_000_000)
    ('999 B', '80.0 MB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def time_text(seconds: float) -> str:
    """Return a duration as text, such as 12.5 ms or 1.3 s."""
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun in singular or plural.

    >>> count_text(1, "read"), count_text(2000, "row group")
    ('1 read', '2,000 row groups')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def table_text(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with aligned columns. Columns of numbers are aligned to the right.

    >>> print(table_text(["name", "zones"], [["id_idx", 29]]))
    name    zones
    id_idx     29
    """
    lines = [list(headers), *([cell_text(cell) for cell in row] for row in rows)]
    return align_cells(lines, numeric_columns(headers, rows))


def numeric_columns(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[bool]:
    """Return for each column whether all its cells are numbers."""
    return [
        bool(rows) and all(isinstance(row[column], int | float) for row in rows)
        for column in range(len(headers))
    ]


def align_cells(lines: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Pad the cells of lines to the width of their column, and join them.

    ``right`` says for each column whether its cells are aligned to the right.
    """
    widths = [max(map(text_width, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(_padded, line, widths, right)).rstrip() for line in lines)


def _padded(cell: str, width: int, to_right: bool) -> str:
    space = " " * (width - text_width(cell))
    return space + cell if to_right else cell + space


def text_width(text: str) -> int:
    """Return the terminal columns of a text: two for East Asian characters, none for combining."""
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def records_text(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return each row as lines of names and values, for tables that are too wide.

    >>> print(records_text(["name", "zones"], [["id_idx", 29], ["day_idx", 1_000]]))
    name   id_idx
    zones  29
    <BLANKLINE>
    name   day_idx
    zones  1,000
    """
    width = max(map(text_width, headers), default=0)
    records = [
        "\n".join(
            f"{_padded(name, width, to_right=False)}  {cell_text(cell)}".rstrip()
            for name, cell in zip(headers, row, strict=True)
        )
        for row in rows
    ]
    return "\n\n".join(records)


def cell_text(cell: object) -> str:
    """Return a value as text.

    >>> cell_text(1_000), cell_text(1_000.4), cell_text(0.25), cell_text(None), cell_text(["a"])
    ('1,000', '1,000', '0.25', '-', 'a')
    """
    if isinstance(cell, bool) or cell is None:
        return {True: "yes", False: "no", None: "-"}[cell]
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        # Three digits of a number over a thousand would be in scientific notation.
        return f"{cell:,.0f}" if 999.5 <= abs(cell) < float("inf") else f"{cell:.3g}"
    if isinstance(cell, list | tuple):
        return ", ".join(map(cell_text, cell)) or "-"
    return str(cell)

"""Format the results of commands as text, and as values that JSON can represent."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from zonebloom.base.arrays import python_value, python_values
from zonebloom.base.text import (
    TextTable,
    align_cells,
    bytes_text,
    count_text,
    records_text,
    table_text,
    text_width,
    time_text,
)
from zonebloom.storage.paths import key_below

if TYPE_CHECKING:
    from zonebloom.changes.receipt import Receipt, Traces
    from zonebloom.cli.demo import DemoAnswer

FAILED = 1
FOUND_NOTHING = 3

_CELL_WIDTH = 40
# How lines that are commands begin.
_COMMANDS = ("  zonebloom ", "zonebloom build ")
# A terminal shows at most this many rows if the command has no --limit.
MAX_TERMINAL_ROWS = 40


def print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON types: times to ISO 8601, binary to base64, NaN to null.

    A table becomes a list with one object for each row.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    match value:
        case pa.Table():
            return to_json_value(row_dicts(value))
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return base64.b64encode(value).decode()
        case decimal.Decimal():
            return str(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case dict():
            return {str(key): to_json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [to_json_value(item) for item in value]
        case str() | int() | None:
            return value
    # Such as a UUID.
    return str(value)


def row_dicts(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries. Nanoseconds become text or integers.

    Python's own types would round them. Other values that these cannot express become text.
    """
    names = table.column_names
    if not names:
        return [{} for _ in range(table.num_rows)]
    columns = [_row_values(column) for column in table.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _row_values(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if not pa.types.is_temporal(kind) or getattr(kind, "unit", None) != "ns":
        return python_values(column)
    if pa.types.is_duration(kind):
        return column.cast(pa.int64()).to_pylist()
    try:
        texts = column.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        # The time zone is not known here.
        texts = [python_value(value) for value in column]
    return [None if text is None else str(text).replace(" ", "T") for text in texts]


def rows_text(table: pa.Table, width: int | None = None) -> str:
    """Return the rows of a table in aligned columns. Long cells are cut.

    With a width, only the columns that fit are shown, and the others are named below.
    """
    names = table.schema.names
    lines = [[_cut(name) for name in names]]
    lines += [[_cell(row[name]) for name in names] for row in row_dicts(table)]
    is_right_aligned = [_is_number(field.type) for field in table.schema]
    num_columns = len(names) if width is None else _num_fitting_columns(lines, width)
    text = align_cells([line[:num_columns] for line in lines], is_right_aligned[:num_columns])
    if num_columns == len(names):
        return text
    hidden_names = ", ".join(lines[0][num_columns:])
    hidden_text = textwrap.fill(hidden_names, width or 0, subsequent_indent="  ")
    hidden_count = count_text(len(names) - num_columns, "more column")
    return f"{text}\n{hidden_count}, which --columns can name:\n  {hidden_text}"


def _num_fitting_columns(lines: list[list[str]], width: int) -> int:
    """Return how many columns fit into a width, but at least 1."""
    ends = accumulate(max(map(text_width, column)) + 2 for column in zip(*lines, strict=True))
    return max(sum(end - 2 <= width for end in ends), 1)


def _is_number(arrow_type: pa.DataType) -> bool:
    t = pa.types
    return t.is_integer(arrow_type) or t.is_floating(arrow_type) or t.is_decimal(arrow_type)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bytes():
            return _cut(value.hex())
        case datetime.datetime():
            return value.isoformat(" ")
        case list() | dict():
            return _cut(json.dumps(to_json_value(value), ensure_ascii=False))
    return _cut(str(value))


def _cut(text: str) -> str:
    """Return a text without control characters, shortened to the width of a cell."""
    clean = "".join(
        character if character.isprintable() else repr(character)[1:-1]
        for character in text[: _CELL_WIDTH + 1]
    )
    if len(text) <= _CELL_WIDTH and text_width(clean) <= _CELL_WIDTH:
        return clean
    while text_width(clean) >= _CELL_WIDTH:
        clean = clean[:-1]
    return clean + "…"


def fitted_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]], width: int | None
) -> str:
    """Return a table, or a record for each row if the table is wider than the terminal."""
    table = table_text(headers, rows)
    if width is None or not rows or max(map(text_width, table.splitlines())) <= width:
        return table
    return records_text(headers, rows)


def wrap_lines(text: str, width: int) -> str:
    """Break the lines that are wider than the terminal between words, and indent the rest.

    Commands stay on one line, because they could not be pasted otherwise.
    """
    lines = []
    for line in text.splitlines():
        if text_width(line) <= width or line.startswith(_COMMANDS):
            lines.append(line)
            continue
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        )
    return "\n".join(lines)


def table_with_figures(indices: Sequence[Any], figures: Sequence[dict[str, Any]]) -> TextTable:
    """Return a table of indices with the fill and the false positives of those with filters."""
    from zonebloom.index.describe import index_table

    headers, rows = index_table(indices)
    for header, name in (("fill", "fill_mean"), ("fpp", "estimated_fpp_mean")):
        if any(name in index_figures for index_figures in figures):
            headers = [*headers, header]
            cells = [index_figures.get(name) for index_figures in figures]
            rows = [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
    return headers, rows


def places_text(root: str, rows: pa.Table, width: int | None = None) -> str:
    """Return the rows of `locate` or `files`, with the paths of files below the root."""
    headers = rows.column_names
    cells = [
        [key_below(row[name], root) if name == "_file" else _cell(row[name]) for name in headers]
        for row in row_dicts(rows)
    ]
    table = align_cells([headers, *cells], [_is_number(field.type) for field in rows.schema])
    if width is None or not cells or max(map(text_width, table.splitlines())) <= width:
        return table
    return records_text(headers, cells)


def traces_text(
    traces: Traces,
    receipt: Receipt,
    root: str,
    paths: tuple[str | None, str | None],
    width: int | None = None,
) -> str:
    """Return what still holds the keys of a receipt, and the command that removes it.

    ``paths`` are those of the receipt and of the table, if the user gave them.
    """
    # Most commands show no receipts.
    from zonebloom.changes.receipt import trace_sections

    shown_traces = tuple(replace(t, path=key_below(t.path, root)) for t in traces.found)
    lines = [
        part if isinstance(part, str) else fitted_table(*part, width)
        for part in trace_sections(replace(traces, found=shown_traces, calls=()))
    ]
    if traces.calls:
        keys = [f"--key {shlex.quote(f'{column}=VALUE')}" for column in receipt.columns]
        condition = ", if RECEIPT is the file of erase --receipt" if paths[0] is None else ""
        arguments = [paths[0] or "RECEIPT", paths[1] or "PATH"]
        lines += [
            f"This command removes them, and older versions with them{condition}:",
            " ".join(
                [
                    "zonebloom receipt",
                    *map(shlex.quote, arguments),
                    *(keys or ["--filter SQL"]),
                    "--purge",
                ]
            ),
        ]
        if receipt.table == "folder" and any(trace.kind == "file" for trace in traces.found):
            lines.append("It leaves the files of a folder; delete them if nobody needs them.")
    return "\n".join(lines)


def answers_text(answers: list[DemoAnswer], width: int | None = None) -> str:
    """Return a table of the answers of a demo. Lines below a question say why there is no gain."""
    headers = ["question", "rows", "read", *answers[0].seconds, "quicker"]
    rows = [
        [
            answer.question if answer.is_same else f"ROWS DIFFER: {answer.question}",
            answer.num_rows,
            bytes_text(answer.read_bytes),
            *map(time_text, answer.seconds.values()),
            "no" if answer.gain < 1 else f"{answer.gain:,.{0 if answer.gain >= 10 else 1}f} times",
        ]
        for answer in answers
    ]
    explained: dict[str, list[str]] = {}
    for answer in answers:
        explained.setdefault(answer.explanation, []).append(answer.question)
    notes = [f"  {', '.join(names)}: {why}" for why, names in explained.items() if why]
    title = ["Where the gain is small:"] if notes else []
    return "\n".join([fitted_table(headers, rows, width), *title, *notes])


def left_out_text(number: int, noun: str) -> str:
    """Return a line that says how many items a terminal does not show, and how to see them."""
    return f"{count_text(number, f'more {noun}')}: --limit N shows N"

"""Write the answer of a command as text or JSON.

Rows of a dataset can also be written as JSON lines, CSV, Arrow or Parquet, and to a file.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import click
import pyarrow as pa

from zonebloom.base.arrays import python_values
from zonebloom.cli.text import (
    MAX_TERMINAL_ROWS,
    left_out_text,
    print_to_stderr,
    rows_text,
    to_json_value,
    wrap_lines,
)
from zonebloom.errors import InvalidArgument

PIPE_CLOSED = 141

TEXT, JSON, JSON_LINES = "text", "json", "jsonl"
BINARY_FORMATS = ("arrow", "parquet")
FORMATS = (TEXT, JSON)
ROW_FORMATS = (*FORMATS, JSON_LINES, "csv", *BINARY_FORMATS)
_IN_TERMINAL = "zonebloom.in_terminal"
_ENDINGS = {
    ".txt": TEXT,
    ".json": JSON,
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".csv": "csv",
    ".arrow": "arrow",
    ".parquet": "parquet",
}


@dataclass(frozen=True)
class CommandAnswer:
    """The answer of a command in each format, and what is printed to stderr.

    A terminal breaks long lines of a text between words. ``notes`` are printed with every format.
    ``summary`` is not printed with JSON, whose document contains the same facts.
    """

    document: dict[str, Any]
    # A text, or rows of a dataset.
    content: str | pa.Table
    # How these rows are shown as text.
    format_rows: Callable[[pa.Table, int | None], str] = rows_text
    # The user limited the rows, so a terminal shows all of them. Otherwise it shows the first.
    has_limit: bool = True
    # The number of all rows, if `content` has only the first of them.
    num_rows: int = 0
    summary: str = ""
    notes: Sequence[str] = ()
    exit_code: int = 0


def is_in_terminal() -> bool:
    """Return whether the running command prints text to a terminal, which limits long answers."""
    return click.get_current_context().meta[_IN_TERMINAL]


def terminal_width() -> int | None:
    """Return the width of the terminal that shows the answer, or None if none does."""
    return shutil.get_terminal_size().columns if is_in_terminal() else None


def resolve_format(output: str | None, path: str | None) -> str:
    """Return the output format, by its name or by the extension of the file.

    Without both, and for a file without an extension, it is text. Raise a usage error if the
    extension is unknown, or if the terminal cannot show the format.
    """
    meta = click.get_current_context().meta
    ending = os.path.splitext(path or "")[1].lower()
    if output is None and ending and ending not in _ENDINGS:
        raise click.UsageError(
            f"{path} has an unknown extension; give {', '.join(_ENDINGS)}, or name the format of "
            "the file with --output"
        )
    output = output or _ENDINGS.get(ending, TEXT)
    if output in BINARY_FORMATS and path is None and sys.stdout.isatty():
        raise click.UsageError(
            f"{output} is binary and would garble the terminal; give -o FILE, or a pipe"
        )
    meta[_IN_TERMINAL] = output == TEXT and path is None and sys.stdout.isatty()
    return output


def write_answer(answer: CommandAnswer, output: str, path: str | None) -> None:
    if output == TEXT:
        data = _text(answer)
        data += "\n" if data else ""
    elif output in (JSON, JSON_LINES):
        unicode = path is not None or (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        encode = partial(json.dumps, ensure_ascii=not unicode, allow_nan=False)
        if output == JSON:
            data = encode(to_json_value(answer.document), indent=2) + "\n"
        else:
            data = "".join(f"{encode(row)}\n" for row in to_json_value(answer.content))
    else:
        assert not isinstance(answer.content, str)
        data = encode_rows(answer.content, output)
    with _complete_file(path) if path is not None else _stdout() as sink:
        if isinstance(data, str):
            encoding = "utf-8" if path is not None else sys.stdout.encoding or "ascii"
            data = data.encode(encoding, "backslashreplace")
        remaining_bytes = memoryview(data)
        while remaining_bytes:
            # With PYTHONUNBUFFERED, stdout may take only a part of the bytes at once.
            remaining_bytes = remaining_bytes[sink.write(remaining_bytes) :]
    width = terminal_width()
    summary = [answer.summary] if output != JSON and answer.summary else []
    for line in (*summary, *answer.notes):
        print_to_stderr(line if width is None else wrap_lines(line, width))


def _text(answer: CommandAnswer) -> str:
    content, width = answer.content, terminal_width()
    if not isinstance(content, str):
        is_cut = width is not None and not answer.has_limit
        rows = content.slice(0, MAX_TERMINAL_ROWS if is_cut else None)
        parts = [answer.format_rows(rows, width)] if rows.num_rows else []
        num_left_out = max(answer.num_rows, content.num_rows) - rows.num_rows
        if width is not None and num_left_out:
            parts.append(f"{left_out_text(num_left_out, 'row')}, -o FILE writes all")
        content = "\n".join(parts)
    return content if width is None else wrap_lines(content, width)


@contextlib.contextmanager
def _complete_file(path: str) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing, and rename it to ``path`` when it is complete.

    Write directly to a device or a pipe, such as ``/dev/null``, because a file must not replace it.
    """
    # A link stays a link.
    path = os.path.realpath(path)
    is_replaced = not os.path.exists(path) or os.path.isfile(path)
    partial = f"{path}.{os.getpid()}.partial" if is_replaced else path
    try:
        with io.FileIO(partial, "w") as file, io.BufferedWriter(file) as sink:
            yield sink
        if is_replaced:
            os.replace(partial, path)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        if is_replaced:
            with contextlib.suppress(OSError):
                os.remove(partial)


@contextlib.contextmanager
def _stdout() -> Iterator[IO[bytes]]:
    try:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(PIPE_CLOSED) from None


def encode_rows(table: pa.Table, output: str) -> pa.Buffer:
    """Return a table as a CSV, Parquet or Arrow IPC file."""
    sink = pa.BufferOutputStream()
    if output == "csv":
        from pyarrow import csv

        csv.write_csv(_for_csv(table), sink)
    elif output == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, sink)
    else:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


def _for_csv(table: pa.Table) -> pa.Table:
    """Replace types that CSV lacks by text: nested values by JSON, binary values by base64."""
    for number, field in enumerate(table.schema):
        column = table.column(number)
        if not _is_in_csv(column):
            values = [_csv_text(value) for value in python_values(column)]
            table = table.set_column(number, field.name, pa.array(values, pa.string()))
    return table


def _is_in_csv(column: pa.ChunkedArray) -> bool:
    """Return whether pyarrow writes a column to CSV as we want it."""
    from pyarrow import csv

    t, kind = pa.types, column.type
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return False
    try:
        csv.write_csv(pa.table({"": column.slice(0, 1)}), pa.MockOutputStream())
    except pa.ArrowException:
        return False
    return True


def _csv_text(value: Any) -> str | None:
    plain = to_json_value(value)
    return plain if plain is None or isinstance(plain, str) else json.dumps(plain)

"""Write the answer of a command as text, JSON, CSV, Arrow or Parquet, to stdout or to a file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

import click
import pyarrow as pa

from zonebloom.cli.text import left_out_text, print_to_stderr, rows_text, to_json_value
from zonebloom.errors import InvalidArgument

PIPE_CLOSED = 141

TEXT, JSON = "text", "json"
BINARY_FORMATS = ("arrow", "parquet")
FORMATS = (TEXT, JSON, "csv", *BINARY_FORMATS)
_IN_TERMINAL = "zonebloom.in_terminal"
_ENDINGS = {".json": JSON, ".csv": "csv", ".arrow": "arrow", ".parquet": "parquet"}


@dataclass(frozen=True)
class CommandAnswer:
    """The answer of a command in each format, and what is printed to stderr.

    Without ``text``, the rows are printed. ``notes`` are printed with every format. ``summary`` is
    not printed with JSON, whose document contains the same facts.
    """

    document: dict[str, Any]
    # A table, or dictionaries or dataclass instances.
    rows: pa.Table | Sequence[Any]
    text: str | None = None
    # The number of all rows. In a terminal, `rows` may return only the first of them.
    num_rows: int = 0
    summary: str = ""
    notes: Sequence[str] = ()
    exit_code: int = 0


def is_in_terminal() -> bool:
    """Return whether the running command prints text to a terminal, which limits long answers."""
    return click.get_current_context().meta[_IN_TERMINAL]


def resolve_format(output: str | None, path: str | None) -> str:
    """Return the output format, by its name or by the extension of the file.

    Raise a usage error if the terminal cannot show it.
    """
    meta = click.get_current_context().meta
    output = output or _ENDINGS.get(os.path.splitext(path or "")[1], TEXT)
    if output in BINARY_FORMATS and path is None and sys.stdout.isatty():
        raise click.UsageError(
            f"{output} is binary and would garble the terminal; give -o FILE, or a pipe"
        )
    meta[_IN_TERMINAL] = output == TEXT and path is None and sys.stdout.isatty()
    return output


def write_answer(answer: CommandAnswer, output: str, path: str | None) -> None:
    if output == TEXT:
        data = answer.text if answer.text is not None else _rows_text(answer)
        data += "\n" if data else ""
    elif output == JSON:
        unicode = path is not None or (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        document = to_json_value(answer.document)
        data = json.dumps(document, indent=2, ensure_ascii=not unicode, allow_nan=False) + "\n"
    else:
        data = encode_rows(_rows_table(answer), output)
    with _complete_file(path) if path is not None else _stdout() as sink:
        if isinstance(data, str):
            encoding = "utf-8" if path is not None else sys.stdout.encoding or "ascii"
            data = data.encode(encoding, "backslashreplace")
        remaining_bytes = memoryview(data)
        while remaining_bytes:
            # With PYTHONUNBUFFERED, stdout may take only a part of the bytes at once.
            remaining_bytes = remaining_bytes[sink.write(remaining_bytes) :]
    if output != JSON and answer.summary:
        print_to_stderr(answer.summary)
    for note in answer.notes:
        print_to_stderr(note)


def _rows_table(answer: CommandAnswer) -> pa.Table:
    if isinstance(answer.rows, pa.Table):
        return answer.rows
    records = [row if isinstance(row, dict) else asdict(row) for row in answer.rows]
    return pa.Table.from_pylist(records)


def _rows_text(answer: CommandAnswer) -> str:
    table = _rows_table(answer)
    if not is_in_terminal():
        return rows_text(table) if table.num_rows else ""
    parts = [rows_text(table, shutil.get_terminal_size().columns)] if table.num_rows else []
    if answer.num_rows > table.num_rows:
        parts.append(left_out_text(answer.num_rows - table.num_rows, "row"))
    return "\n".join(parts)


@contextlib.contextmanager
def _complete_file(path: str) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing, and rename it to ``path`` when it is complete."""
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with io.FileIO(partial, "w") as file, io.BufferedWriter(file) as sink:
            yield sink
        os.replace(partial, path)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror or error}") from None
    finally:
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
        t, kind = pa.types, field.type
        if t.is_nested(kind):
            values = [
                None if value is None else json.dumps(value)
                for value in _json_values(table.column(number))
            ]
        elif t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
            values = _json_values(table.column(number))
        else:
            continue
        table = table.set_column(number, field.name, pa.array(values, pa.string()))
    return table


def _json_values(column: pa.ChunkedArray) -> list[Any]:
    return [to_json_value(value) for value in column.to_pylist()]

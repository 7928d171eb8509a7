"""How an answer leaves: as text, JSON, CSV, Arrow or Parquet, to stdout or whole into a file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

import click
import pyarrow as pa

from zonebloom.cli.text import json_safe, more_text, rows_text, say
from zonebloom.errors import InvalidArgument

PIPE_CLOSED = 141

TEXT, JSON = "text", "json"
BINARY = ("arrow", "parquet")
OF_ROWS = ("csv", *BINARY)
_IN_TERMINAL = "zonebloom.in_terminal"
_ENDINGS = {".json": JSON, ".csv": "csv", ".arrow": "arrow", ".parquet": "parquet"}


@dataclass(frozen=True)
class Answer:
    """What a command found: one JSON document, and text or rows, of which text is made when none is
    given; notes go to stderr with any format, what is said aside with all but JSON, which holds it.
    """

    document: Callable[[], dict[str, Any]]
    text: Callable[[], str] | None = None
    rows: Callable[[], pa.Table] | None = None
    # Of all rows, where `rows` gives only those a terminal shows.
    num_rows: int = 0
    aside: str = ""
    notes: Sequence[str] = ()
    code: int = 0


def in_terminal() -> bool:
    """Whether the command that runs answers as text in a terminal, where it says no end of rows."""
    return click.get_current_context().meta[_IN_TERMINAL]


def table_of(records: Sequence[Any]) -> pa.Table:
    """Dataclasses or dictionaries as rows."""
    return pa.Table.from_pylist(
        [each if isinstance(each, dict) else asdict(each) for each in records]
    )


def checked_format(output: str | None, path: str | None, has_rows: bool) -> str:
    """The format that is asked for, by name or by a file's ending; refused where it cannot be."""
    meta = click.get_current_context().meta
    output = output or _ENDINGS.get(os.path.splitext(path or "")[1], TEXT)
    if output in OF_ROWS and not has_rows:
        raise click.UsageError(f"this command answers as text or json, not as {output}")
    if output in BINARY and path is None and sys.stdout.isatty():
        raise click.UsageError(
            f"{output} is binary and would garble the terminal; give -o FILE, or a pipe"
        )
    meta[_IN_TERMINAL] = output == TEXT and path is None and sys.stdout.isatty()
    return output


def write_answer(answer: Answer, output: str, path: str | None) -> None:
    if output == TEXT:
        data = answer.text() if answer.text is not None else _rows_text(answer)
        data += "\n" if data else ""
    elif output == JSON:
        unicode = path is not None or (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        document = json_safe(answer.document())
        data = json.dumps(document, indent=2, ensure_ascii=not unicode, allow_nan=False) + "\n"
    else:
        assert answer.rows is not None
        data = encoded(answer.rows(), output)
    with _whole(path) if path is not None else _stdout() as sink:
        if isinstance(data, str):
            encoding = "utf-8" if path is not None else sys.stdout.encoding or "ascii"
            data = data.encode(encoding, "backslashreplace")
        left = memoryview(data)
        while left:
            # Unbuffered, as PYTHONUNBUFFERED has it, not all is taken at once.
            left = left[sink.write(left) :]
    if output != JSON and answer.aside:
        say(answer.aside)
    for note in answer.notes:
        say(note)


def _rows_text(answer: Answer) -> str:
    assert answer.rows is not None
    table = answer.rows()
    if not in_terminal():
        return rows_text(table) if table.num_rows else ""
    parts = [rows_text(table, shutil.get_terminal_size().columns)] if table.num_rows else []
    if answer.num_rows > table.num_rows:
        parts.append(more_text(answer.num_rows - table.num_rows, "row"))
    return "\n".join(parts)


@contextlib.contextmanager
def _whole(path: str) -> Iterator[IO[bytes]]:
    """A file that is there when all of it is written, and not before."""
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
        # Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(PIPE_CLOSED) from None


def encoded(table: pa.Table, output: str) -> pa.Buffer:
    """A table in one of the formats of rows; an Arrow file is of Arrow IPC."""
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
    """The same with text for what CSV lacks: JSON for lists and structs, base64 for binary."""
    for at, field in enumerate(table.schema):
        t, kind = pa.types, field.type
        if t.is_nested(kind):
            values = [
                each if each is None else json.dumps(each)
                for each in _json_values(table.column(at))
            ]
        elif t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
            values = _json_values(table.column(at))
        else:
            continue
        table = table.set_column(at, field.name, pa.array(values, pa.string()))
    return table


def _json_values(column: pa.ChunkedArray) -> list[Any]:
    return [each if each is None else json_safe(each) for each in column.to_pylist()]

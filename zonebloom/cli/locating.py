"""The commands that say where keys are: locate and files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any

import click
import pyarrow as pa

from zonebloom.base.text import count_text, time_text
from zonebloom.cli import text
from zonebloom.cli.keys import given_keys, keys_options
from zonebloom.cli.options import combine_options, rows_command, zonebloom
from zonebloom.cli.output import CommandAnswer, is_in_terminal, terminal_width
from zonebloom.reading import key_locations

if TYPE_CHECKING:
    from zonebloom.facade.opening import OpenedSource
    from zonebloom.scan.locate import KeyLocations

_place_options = combine_options(
    keys_options("A key to look for."),
    click.option("--filter", metavar="SQL", help="A condition that the rows must match, too."),
    click.option("--missing", is_flag=True, help="Print the keys that are not there, instead."),
)


@zonebloom.command("locate", epilog="Example: zonebloom locate orders --on id --keys wanted.csv")
@rows_command
@_place_options
def locate_command(source: OpenedSource, **options: Any) -> CommandAnswer:
    """Print the file and row of each key at PATH.

    There is one row for each row that holds a key: the key, its file as _file, its row number in
    the file as _pos, and the values of the file's partition as _partition. Exits with 3 if nothing
    is printed. As JSON: columns, num_keys (that were given), num_found (of them), num_rows (of
    the rows below), rows (one object each), seconds.
    """
    return _answer(source, _key_rows, **options)


@zonebloom.command("files", epilog="Example: zonebloom files orders --key id=42 --key id=4242")
@rows_command
@_place_options
def files_command(source: OpenedSource, **options: Any) -> CommandAnswer:
    """Print the files at PATH that hold one of the keys.

    There is one row for each file, with the number of distinct keys and of rows with them. Exits
    with 3 if nothing is printed. As JSON: columns, num_keys (that were given), num_found (of
    them), num_rows (of the files below), rows (one object each), seconds.
    """
    return _answer(source, _file_rows, **options)


def _key_rows(locations: KeyLocations, by_key: pa.Table, keys: pa.Table) -> pa.Table:
    found = by_key.filter(by_key["row"].is_valid())
    rows = keys.take(found["key_index"])
    for name in ("_file", "_pos", "_partition"):
        if name in found.column_names:
            rows = rows.append_column(name, found[name])
    return rows


def _file_rows(locations: KeyLocations, by_key: pa.Table, keys: pa.Table) -> pa.Table:
    files = locations.by_file().drop_columns(["path", "fragment_id"])
    return files.select(["_file", *(name for name in files.column_names if name != "_file")])


def _answer(
    source: OpenedSource,
    rows_of: Callable[[KeyLocations, pa.Table, pa.Table], pa.Table],
    *,
    key_texts: Sequence[str],
    keys_file: IO[bytes] | None,
    on: Sequence[str],
    filter: str | None,
    missing: bool,
) -> CommandAnswer:
    given = given_keys(source.opened, key_texts, keys_file, on)
    if not given:
        raise click.UsageError("give --key COLUMN=VALUE, or --keys FILE --on COLUMN")
    names, keys = list(given), pa.table(given)
    start = time.perf_counter()
    given_one = given[names[0]] if len(names) == 1 else keys
    columns = names[0] if len(names) == 1 else names
    locations = key_locations(source.opened, columns, given_one, (filter,))
    by_key = locations.by_key()
    # A key that is not there has one row, with nulls.
    missing_keys = by_key.filter(by_key["row"].is_null())["key_index"]
    num_found = keys.num_rows - len(missing_keys)
    rows = keys.take(missing_keys) if missing else rows_of(locations, by_key, keys)
    seconds = time.perf_counter() - start
    first_rows = rows.slice(0, text.MAX_TERMINAL_ROWS if is_in_terminal() else None)
    root = source.opened.source.root
    shown = "missing key" if missing else "file" if "num_keys" in rows.column_names else "row"
    return CommandAnswer(
        {
            "columns": names,
            "num_keys": keys.num_rows,
            "num_found": num_found,
            "num_rows": rows.num_rows,
            "rows": rows,
            "seconds": seconds,
        },
        first_rows,
        "" if missing else text.places_text(first_rows, root, terminal_width()),
        num_rows=rows.num_rows,
        summary=f"{count_text(rows.num_rows, shown)}; {num_found:,} of "
        f"{count_text(keys.num_rows, 'key')} found in {time_text(seconds)}",
        exit_code=0 if rows.num_rows else text.FOUND_NOTHING,
    )

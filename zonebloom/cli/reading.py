"""The commands that read rows, and find keys: lookup, head, count, explain, locate, files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import click
import pyarrow as pa

from zonebloom.base.arrays import distinct_numbers, to_numpy
from zonebloom.base.text import bytes_text, count_text, time_text
from zonebloom.cli import text
from zonebloom.cli.keys import (
    as_arguments,
    cast_keys,
    given_keys,
    key_option,
    keys_file_option,
    keys_options,
    parse_keys,
    read_keys,
)
from zonebloom.cli.options import (
    columns_options,
    combine_options,
    embedded_filters_option,
    rows_command,
    source_command,
    split_names,
    zonebloom,
)
from zonebloom.cli.output import CommandAnswer, is_in_terminal
from zonebloom.reading import count_all_rows, key_locations, look_up
from zonebloom.scan.scanner import plan_scan

if TYPE_CHECKING:
    from zonebloom.facade.opening import OpenedSource
    from zonebloom.scan.locate import KeyLocations
    from zonebloom.scan.plan import ScanStats
    from zonebloom.scan.scanner import Scanner


@zonebloom.command(
    "lookup", epilog="""Example: zonebloom lookup data/flights "tailnum = 'N14228'" """
)
@rows_command
@click.argument("filter", required=False)
@click.option(
    "--columns",
    metavar="A,B",
    multiple=True,
    help="Columns to print; all by default. Separate them by commas.",
)
@embedded_filters_option
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"Maximum number of rows; by default all, but {text.MAX_TERMINAL_ROWS} in a terminal.",
)
@key_option("Find rows by a key instead of FILTER.")
@keys_file_option(
    "Find rows by the keys in the first column of a CSV or Parquet file, or of stdin. Its name is "
    "the column to search."
)
@click.option(
    "--column",
    metavar="NAME",
    multiple=True,
    help="One of the columns to print; may be repeated. With --keys it is the column to search, "
    "and each line of a text file is a key.",
)
def lookup_command(
    source: OpenedSource,
    filter: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    key_texts: tuple[str, ...],
    keys_file: IO[bytes] | None,
    column: tuple[str, ...],
) -> CommandAnswer:
    """Print the rows at PATH that match FILTER, or that hold a key.

    FILTER is a SQL condition. The amount of data read is printed on stderr. Exits with 3 if no row
    matches. As JSON: filter, num_rows (of the rows below), rows (one object each), indices (zones
    kept of all), read (bytes, seconds, rows_found before --limit). For keys: column (or columns,
    for a composite key), num_keys (that were given), num_rows, rows, seconds.
    """
    if [filter is not None, bool(key_texts), keys_file is not None].count(True) != 1:
        raise click.UsageError("give one of FILTER, --key and --keys")
    names = split_names(columns)
    if keys_file is None:
        names += column
    elif len(column) > 1:
        raise click.UsageError(
            "--column is the column of --keys, so give it once; name columns to print with "
            "--columns A,B"
        )
    if filter is None:
        key_column = column[0] if column else None
        texts = parse_keys(key_texts) if keys_file is None else read_keys(keys_file, [], key_column)
        return _look_up_keys(source, names or None, limit, cast_keys(source.opened, texts))
    runs: list[ScanStats] = []
    scanner = plan_scan(
        source.opened,
        names or None,
        [filter],
        limit=limit,
        scan_stats_callback=runs.append,
    )
    is_cut = limit is None and is_in_terminal()
    table = _first_rows(scanner, text.MAX_TERMINAL_ROWS) if is_cut else scanner.to_table()
    plan, stats = scanner.plan(), runs[0]
    zones = " and ".join(map(str, plan.indices)) or "no index used"
    # A limit of 0 returns no row, so count separately whether one matches.
    num_matches = table.num_rows
    if limit == 0:
        num_matches = plan_scan(source.opened, None, [filter], limit=1).count_rows()
    return CommandAnswer(
        {
            "filter": filter,
            "num_rows": table.num_rows,
            "rows": table,
            "indices": plan.indices,
            "read": stats,
        },
        table,
        has_limit=limit is not None,
        num_rows=stats.rows_found,
        summary=f"{count_text(stats.rows_found, 'row')}; {zones}; read "
        f"{bytes_text(stats.data_bytes)} of data and {bytes_text(stats.index_bytes)} of index in "
        f"{time_text(stats.seconds)}",
        exit_code=0 if num_matches else text.FOUND_NOTHING,
    )


def _first_rows(scanner: Scanner, num_rows: int) -> pa.Table:
    """Scan all rows, so that they are counted, but return only the first ones."""
    batches: list[pa.RecordBatch] = []
    num_rows_to_keep = num_rows
    for batch in scanner.to_batches():
        if num_rows_to_keep:
            batches.append(batch.slice(0, num_rows_to_keep))
            num_rows_to_keep -= batches[-1].num_rows
    return pa.Table.from_batches(batches, scanner.schema)


def _look_up_keys(
    source: OpenedSource,
    columns: list[str] | None,
    limit: int | None,
    keys: dict[str, pa.Array | pa.ChunkedArray],
) -> CommandAnswer:
    """Look up keys of one column, or one composite key, and return the answer with their rows."""
    start = time.perf_counter()
    names, num_keys = list(keys), len(next(iter(keys.values())))
    table = look_up(source.opened, *as_arguments(keys), columns)
    num_matched = distinct_numbers(to_numpy(table.column(0))).size
    seconds = time.perf_counter() - start
    table = table.remove_column(0).slice(0, limit)
    return CommandAnswer(
        {
            **({"column": names[0]} if len(names) == 1 else {"columns": names}),
            "num_keys": num_keys,
            "num_rows": table.num_rows,
            "rows": table,
            "seconds": seconds,
        },
        table,
        has_limit=limit is not None,
        summary=f"{count_text(table.num_rows, 'row')} of {num_matched:,} of "
        f"{count_text(num_keys, 'key')} in {time_text(seconds)}",
        exit_code=0 if num_matched else text.FOUND_NOTHING,
    )


@zonebloom.command(
    "head", epilog="Example: zonebloom head data/flights --limit 3 --columns day,tailnum"
)
@rows_command
@columns_options()
@click.option(
    "--limit", "-n", type=click.IntRange(min=0), default=10, help="Number of rows; 10 by default."
)
def head_command(source: OpenedSource, columns: list[str] | None, limit: int) -> CommandAnswer:
    """Print the first rows at PATH.

    As JSON: path, num_rows (of the rows below), rows (one object each).
    """
    table = plan_scan(source.opened, columns, [None]).head(limit)
    return CommandAnswer({"path": source.title, "num_rows": table.num_rows, "rows": table}, table)


@zonebloom.command(
    "count", epilog="""Example: zonebloom count data/flights "tailnum = 'N14228'" """
)
@source_command
@click.argument("filter", required=False)
@embedded_filters_option
def count_command(source: OpenedSource, filter: str | None) -> CommandAnswer:
    """Count the rows at PATH, or those that match FILTER.

    As JSON: path, filter, num_rows (that match).
    """
    num_rows = (
        count_all_rows(source.opened)
        if filter is None
        else plan_scan(source.opened, None, [filter]).count_rows()
    )
    result = {"path": source.title, "filter": filter, "num_rows": num_rows}
    return CommandAnswer(result, f"{num_rows:,}" if is_in_terminal() else str(num_rows))


@zonebloom.command(
    "explain", epilog="""Example: zonebloom explain data/flights "flight = 1545" --analyze"""
)
@source_command
@click.argument("filter")
@columns_options()
@embedded_filters_option
@click.option("--analyze", is_flag=True, help="Run the lookup as well, and count what it reads.")
def explain_command(
    source: OpenedSource, filter: str, columns: list[str] | None, analyze: bool
) -> CommandAnswer:
    """Explain what a lookup would read, and why.

    As JSON: filter, columns, num_fragments (files of the dataset), skipped (how many of them are
    not read), fragments that are read (path, ranges or null for the whole file, why), indices,
    unanswered; with --analyze also read.
    """
    scanner = plan_scan(source.opened, columns, [filter])
    analysis = scanner.analyze_plan() if analyze else None
    plan = scanner.plan() if analysis is None else analysis.plan
    document = {
        "filter": None if plan.filter is None else str(plan.filter),
        "columns": plan.columns,
        "num_fragments": plan.num_fragments,
        "skipped": plan.skipped,
        "fragments": [
            {
                "path": part.fragment.path,
                # Null means that the whole file is read, for the reason in "why".
                "ranges": None if part.rows is None else list(part.rows),
                "why": part.reason,
            }
            for part in plan.fragments
        ],
        "indices": plan.indices,
        "unanswered": [{"part": part, "why": why} for part, why in plan.unanswered],
        **({} if analysis is None else {"read": analysis.stats}),
    }
    return CommandAnswer(document, str(analysis or plan))


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
    return _locate(source, _key_rows, **options)


@zonebloom.command("files", epilog="Example: zonebloom files orders --key id=42 --key id=4242")
@rows_command
@_place_options
def files_command(source: OpenedSource, **options: Any) -> CommandAnswer:
    """Print the files at PATH that hold one of the keys.

    There is one row for each file, with the number of distinct keys and of rows with them. Exits
    with 3 if nothing is printed. As JSON: columns, num_keys (that were given), num_found (of
    them), num_rows (of the files below), rows (one object each), seconds.
    """
    return _locate(source, _file_rows, **options)


def _key_rows(locations: KeyLocations, by_key: pa.Table, keys: pa.Table) -> pa.Table:
    places = by_key.filter(by_key["row"].is_valid())
    rows = keys.take(places["key_index"])
    for name in ("_file", "_pos", "_partition"):
        if name in places.column_names:
            rows = rows.append_column(name, places[name])
    return rows


def _file_rows(locations: KeyLocations, by_key: pa.Table, keys: pa.Table) -> pa.Table:
    files = locations.by_file().drop_columns(["path", "fragment_id"])
    return files.select(["_file", *(name for name in files.column_names if name != "_file")])


def _locate(
    source: OpenedSource,
    rows_of: Callable[[KeyLocations, pa.Table, pa.Table], pa.Table],
    *,
    key_texts: Sequence[str],
    keys_file: IO[bytes] | None,
    on: Sequence[str],
    column: str | None,
    filter: str | None,
    missing: bool,
) -> CommandAnswer:
    keys_by_column = given_keys(source.opened, key_texts, keys_file, on, column)
    if not keys_by_column:
        raise click.UsageError("give --key COLUMN=VALUE, or --keys FILE with --on or --column")
    start = time.perf_counter()
    locations = key_locations(source.opened, *as_arguments(keys_by_column), (filter,))
    by_key, keys = locations.by_key(), pa.table(keys_by_column)
    # A key that is not there has one row, with nulls.
    missing_keys = by_key.filter(by_key["row"].is_null())["key_index"]
    num_found = keys.num_rows - len(missing_keys)
    rows = keys.take(missing_keys) if missing else rows_of(locations, by_key, keys)
    seconds = time.perf_counter() - start
    root = source.opened.source.root
    noun = "missing key" if missing else "file" if "num_keys" in rows.column_names else "row"
    return CommandAnswer(
        {
            "columns": keys.column_names,
            "num_keys": keys.num_rows,
            "num_found": num_found,
            "num_rows": rows.num_rows,
            "rows": rows,
            "seconds": seconds,
        },
        rows,
        text.rows_text if missing else partial(text.places_text, root),
        has_limit=False,
        summary=f"{count_text(rows.num_rows, noun)}; {num_found:,} of "
        f"{count_text(keys.num_rows, 'key')} found in {time_text(seconds)}",
        exit_code=0 if rows.num_rows else text.FOUND_NOTHING,
    )

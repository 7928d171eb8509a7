"""The commands that read rows: lookup, head, count, explain."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

import click
import pyarrow as pa

from zonebloom.arrays import array_of
from zonebloom.cli import text
from zonebloom.cli.options import (
    embedded,
    in_columns,
    on_dataset,
    on_dataset_as_text,
    split,
    zonebloom,
)
from zonebloom.cli.output import Answer, in_terminal, table_of
from zonebloom.errors import InvalidArgument

if TYPE_CHECKING:
    from zonebloom.dataset import Dataset
    from zonebloom.scan.plan import ScanStats
    from zonebloom.scan.scanner import Scanner


@zonebloom.command(epilog="""Example: zonebloom lookup data/flights "tailnum = 'N14228'" """)
@on_dataset
@click.argument("filter", required=False)
@in_columns
@embedded
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"Rows at most; by default all, of which a terminal shows {text.SHOWN_ROWS}.",
)
@click.option("--key", metavar="COLUMN=VALUE", help="Rows of a key, instead of FILTER.")
@click.option(
    "--keys",
    "keys_file",
    metavar="FILE|-",
    type=click.File("rb"),
    help="Rows of the keys in a CSV file, or of stdin: its first column, by that column's name.",
)
@click.option("--column", help="The column of --keys, whose lines are then a key each.")
def lookup(
    ds: Dataset,
    filter: str | None,
    columns: str | None,
    limit: int | None,
    key: str | None,
    keys_file: IO[bytes] | None,
    column: str | None,
) -> Answer:
    """Print the rows at PATH that match FILTER, or hold a key.

    FILTER is a SQL condition. What was read is said on stderr. Exits with 3 when no row matches.
    As JSON: filter, num_rows, rows (one object each), indices (zones kept of all), read (bytes,
    seconds); of keys column, num_keys, num_rows, rows, seconds.
    """
    if sum(each is not None for each in (filter, key, keys_file)) != 1:
        raise click.UsageError("give one of FILTER, --key and --keys")
    if column is not None and keys_file is None:
        raise click.UsageError("--column is the column of --keys; give --keys FILE with it")
    if filter is None:
        name, keys = _one_key(key) if keys_file is None else _keys_of(keys_file, column)
        return _lookup_of_keys(ds, split(columns), limit, name, _typed(ds, name, keys))
    seen: list[ScanStats] = []
    scanner = ds.scanner(split(columns), filter, limit, scan_stats_callback=seen.append)
    is_cut = limit is None and in_terminal()
    table = _first_rows(scanner, text.SHOWN_ROWS) if is_cut else scanner.to_table()
    plan, stats = scanner.plan(), seen[0]
    return Answer(
        lambda: {
            "filter": filter,
            "num_rows": table.num_rows,
            "rows": text.rows(table),
            "indices": list(map(asdict, plan.indices)),
            "read": asdict(stats),
        },
        rows=lambda: table,
        num_rows=stats.rows_found,
        aside=text.read_text(plan, stats),
        code=0 if table.num_rows else text.FOUND_NOTHING,
    )


def _first_rows(scanner: Scanner, most: int) -> pa.Table:
    """The first rows of what is read to its end, without keeping the others."""
    kept: list[pa.RecordBatch] = []
    left = most
    for batch in scanner.to_batches():
        if left:
            kept.append(batch.slice(0, left))
            left -= kept[-1].num_rows
    return pa.Table.from_batches(kept, scanner.schema)


def _one_key(key: str | None) -> tuple[str, pa.Array]:
    name, sign, value = (key or "").partition("=")
    if not sign:
        raise click.BadParameter("give COLUMN=VALUE", param_hint="--key")
    return name, array_of([value], pa.string())


def _keys_of(file: IO[bytes], column: str | None) -> tuple[str, pa.Array | pa.ChunkedArray]:
    """The column and the keys of a file, as text."""
    if column is not None:
        return column, array_of([line for line in file.read().splitlines() if line], pa.string())
    from pyarrow import csv

    data = pa.py_buffer(file.read())
    try:
        name = csv.open_csv(pa.BufferReader(data)).schema.names[0]
        as_text = csv.ConvertOptions(include_columns=[name], column_types={name: pa.string()})
        return name, csv.read_csv(pa.BufferReader(data), convert_options=as_text).column(0)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"cannot read {file.name}: {error}; give a CSV file whose first line names its "
            "columns, or a key on each line and --column"
        ) from None


def _typed(ds: Dataset, name: str, keys: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Keys read from text as a column's type."""
    leaf = ds.opened.column(name).type
    try:
        keys.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidArgument(f"keys of {name!r} are no UTF-8: {error}; convert them") from None
    stored = leaf.value_type if isinstance(leaf, pa.DictionaryType) else leaf
    # Text of a UUID is read as such by the lookup.
    if isinstance(stored, pa.BaseExtensionType):
        return keys
    try:
        return keys.cast(stored)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"keys of {name!r} cannot be read as {stored}: {error}; correct them"
        ) from None


def _lookup_of_keys(
    ds: Dataset,
    columns: list[str] | None,
    limit: int | None,
    column: str,
    keys: pa.Array | pa.ChunkedArray,
) -> Answer:
    """The rows of some keys."""
    begun = time.perf_counter()
    found = ds.lookup(column, keys, columns)
    seconds = time.perf_counter() - begun
    matched = len(found.column(0).unique())
    table = found.remove_column(0).slice(0, limit)
    shown = table.slice(0, text.SHOWN_ROWS if limit is None and in_terminal() else None)
    return Answer(
        lambda: {
            "column": column,
            "num_keys": len(keys),
            "num_rows": table.num_rows,
            "rows": text.rows(table),
            "seconds": seconds,
        },
        rows=lambda: shown,
        num_rows=table.num_rows,
        aside=f"{text.count(table.num_rows, 'row')} of {matched:,} of "
        f"{text.count(len(keys), 'key')} in {seconds * 1000:,.1f} ms",
        code=0 if table.num_rows else text.FOUND_NOTHING,
    )


@zonebloom.command(epilog="Example: zonebloom head data/flights --limit 3 --columns day,tailnum")
@on_dataset
@in_columns
@click.option("--limit", "-n", type=click.IntRange(min=0), default=10, help="Rows; 10 by default.")
def head(ds: Dataset, columns: str | None, limit: int) -> Answer:
    """Print the first rows at PATH.

    As JSON: path, num_rows, rows (one object each).
    """
    table = ds.scanner(split(columns)).head(limit)
    return Answer(
        lambda: {"path": ds.title, "num_rows": table.num_rows, "rows": text.rows(table)},
        rows=lambda: table,
    )


@zonebloom.command(epilog="""Example: zonebloom count data/flights "tailnum = 'N14228'" """)
@on_dataset
@click.argument("filter", required=False)
@embedded
def count(ds: Dataset, filter: str | None) -> Answer:
    """Count the rows at PATH, or those that match FILTER.

    As JSON: path, filter, num_rows.
    """
    found = {"path": ds.title, "filter": filter, "num_rows": ds.count_rows(filter)}
    return Answer(lambda: found, lambda: str(found["num_rows"]), lambda: table_of([found]))


@zonebloom.command(epilog="""Example: zonebloom explain data/flights "flight = 1545" --analyze""")
@on_dataset_as_text
@click.argument("filter")
@in_columns
@embedded
@click.option("--analyze", is_flag=True, help="Run the lookup too, and count what it reads.")
def explain(ds: Dataset, filter: str, columns: str | None, analyze: bool) -> Answer:
    """Say what a lookup would read, and why.

    As JSON: filter, columns, num_fragments, skipped, fragments (path, ranges or null for all
    of it, why), indices, unanswered; with --analyze also read.
    """
    seen: list[ScanStats] = []
    scanner = ds.scanner(split(columns), filter, scan_stats_callback=seen.append)

    def document() -> dict[str, Any]:
        if not analyze:
            return text.plan_json(scanner.plan())
        for _ in scanner.to_batches():
            pass
        return {**text.plan_json(scanner.plan()), "read": asdict(seen[0])}

    return Answer(document, lambda: str(scanner.analyze_plan() if analyze else scanner.plan()))

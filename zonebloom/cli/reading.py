"""The commands that read rows: lookup, head, count, explain."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import array_of
from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.cli import text
from zonebloom.cli.options import (
    embedded,
    in_columns,
    on_dataset,
    on_dataset_as_text,
    once,
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
@click.option(
    "--key",
    "key_texts",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Rows of a key, instead of FILTER. Repeat it with the same column for several keys, or "
    "with other columns for one key that a row must hold in all of them.",
)
@click.option(
    "--keys",
    "keys_file",
    metavar="FILE|-",
    type=click.File("rb"),
    multiple=True,
    callback=once,
    help="Rows of the keys in a CSV file, or of stdin: its first column, by that column's name.",
)
@click.option(
    "--column",
    multiple=True,
    callback=once,
    help="The column of --keys, whose lines are then a key each.",
)
def lookup(
    ds: Dataset,
    filter: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    key_texts: tuple[str, ...],
    keys_file: IO[bytes] | None,
    column: str | None,
) -> Answer:
    """Print the rows at PATH that match FILTER, or hold a key.

    FILTER is a SQL condition. What was read is said on stderr. Exits with 3 when no row matches.
    As JSON: filter, num_rows, rows (one object each), indices (zones kept of all), read (bytes,
    seconds); of keys column (or columns, of a key in several), num_keys, num_rows, rows, seconds.
    """
    if [filter is not None, bool(key_texts), keys_file is not None].count(True) != 1:
        raise click.UsageError("give one of FILTER, --key and --keys")
    if column is not None and keys_file is None:
        raise click.UsageError("--column is the column of --keys; give --keys FILE with it")
    if filter is None:
        keys = _given_keys(key_texts) if keys_file is None else _keys_of(keys_file, column)
        typed = {name: _typed(ds, name, values) for name, values in keys.items()}
        return _lookup_of_keys(ds, split(columns), limit, typed)
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


def _given_keys(key_texts: Sequence[str]) -> dict[str, pa.Array]:
    """Return the keys that --key gives, by column: several of one column, or one of each."""
    keys: dict[str, list[str]] = {}
    for key_text in key_texts:
        name, sign, value = key_text.partition("=")
        if not sign:
            raise click.BadParameter("give COLUMN=VALUE", param_hint="--key")
        keys.setdefault(name, []).append(value)
    if len(keys) > 1 and len(key_texts) > len(keys):
        repeated = next(name for name, values in keys.items() if len(values) > 1)
        raise click.BadParameter(
            f"it gives several keys of column {repeated!r} and a key of another column, so it is "
            "not clear which belong together; repeat a single column, or give each column once, "
            "or give a FILTER such as 'a IN (1, 2) AND b = 3'",
            param_hint="--key",
        )
    return {name: array_of(values, pa.string()) for name, values in keys.items()}


def _keys_of(file: IO[bytes], column: str | None) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Return the keys of a file as text, by their column."""
    if column is not None:
        lines = [line for line in file.read().splitlines() if line]
        return {column: array_of(lines, pa.string())}
    from pyarrow import csv

    data = pa.py_buffer(file.read())
    try:
        name = csv.open_csv(pa.BufferReader(data)).schema.names[0]
        as_text = csv.ConvertOptions(include_columns=[name], column_types={name: pa.string()})
        return {name: csv.read_csv(pa.BufferReader(data), convert_options=as_text).column(0)}
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"cannot read {file.name}: {error}; give a CSV file whose first line names its "
            "columns, or a key on each line and --column"
        ) from None


def _typed(ds: Dataset, name: str, keys: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Keys read from text as a column's type."""
    leaf = ds.opened.key_column(name).type
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
    keys: dict[str, pa.Array | pa.ChunkedArray],
) -> Answer:
    """Answer with the rows that hold some keys of one column, or one key of several columns."""
    begun = time.perf_counter()
    names = list(keys)
    table, num_matched = (
        _rows_of_one_column(ds, names[0], keys[names[0]], columns)
        if len(names) == 1
        else _rows_of_composite_key(ds, keys, columns)
    )
    seconds = time.perf_counter() - begun
    table = table.slice(0, limit)
    first_rows = table.slice(0, text.SHOWN_ROWS if limit is None and in_terminal() else None)
    num_keys = len(keys[names[0]])
    return Answer(
        lambda: {
            **({"column": names[0]} if len(names) == 1 else {"columns": names}),
            "num_keys": num_keys,
            "num_rows": table.num_rows,
            "rows": text.rows(table),
            "seconds": seconds,
        },
        rows=lambda: first_rows,
        num_rows=table.num_rows,
        aside=f"{text.count(table.num_rows, 'row')} of {num_matched:,} of "
        f"{text.count(num_keys, 'key')} in {seconds * 1000:,.1f} ms",
        code=0 if table.num_rows else text.FOUND_NOTHING,
    )


def _rows_of_one_column(
    ds: Dataset, name: str, keys: pa.Array | pa.ChunkedArray, columns: list[str] | None
) -> tuple[pa.Table, int]:
    """Return the rows that hold one of some keys, and how many of the keys have rows."""
    rows = ds.lookup(name, keys, columns)
    return rows.remove_column(0), len(rows.column(0).unique())


def _rows_of_composite_key(
    ds: Dataset, key: dict[str, pa.Array | pa.ChunkedArray], columns: list[str] | None
) -> tuple[pa.Table, int]:
    """Return the rows that equal a key in all of its columns, and 1 if there are any."""
    located = ds.locate(list(key), key).filter(pc.field("row").is_valid())
    files, rows = (column.to_numpy() for column in (located["fragment_id"], located["row"]))
    table = ds.take((files.astype(np.int64) << OFFSET_BITS) + rows, columns)
    return table, min(table.num_rows, 1)


@zonebloom.command(epilog="Example: zonebloom head data/flights --limit 3 --columns day,tailnum")
@on_dataset
@in_columns
@click.option("--limit", "-n", type=click.IntRange(min=0), default=10, help="Rows; 10 by default.")
def head(ds: Dataset, columns: tuple[str, ...], limit: int) -> Answer:
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
def explain(ds: Dataset, filter: str, columns: tuple[str, ...], analyze: bool) -> Answer:
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

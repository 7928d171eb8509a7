"""The commands that change rows, and check the receipts of changes: erase, upsert, receipt."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

import click

from zonebloom.cli import text
from zonebloom.cli.keys import (
    as_arguments,
    given_keys,
    key_option,
    keys_file_option,
    keys_options,
    lines_option,
    on_option,
)
from zonebloom.cli.options import (
    answer_command,
    catalog_option,
    combine_options,
    dataset_command,
    open_at,
    source_options,
    split_names,
    zonebloom,
)
from zonebloom.cli.output import CommandAnswer, terminal_width
from zonebloom.errors import InvalidArgument
from zonebloom.sources.given_files import open_batches

if TYPE_CHECKING:
    from zonebloom.changes.receipt import Receipt, Traces
    from zonebloom.facade.dataset import Dataset

_change_options = combine_options(
    catalog_option,
    click.option(
        "--dry-run", is_flag=True, help="Print what would happen. Nothing is changed or written."
    ),
    click.option(
        "--receipt",
        "receipt_path",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="A new file for the receipt.",
    ),
)


@zonebloom.command("erase", epilog="Example: zonebloom erase lake/orders --key user_id=u42")
@dataset_command
@keys_options("A key whose rows are deleted.")
@click.option("--filter", metavar="SQL", help="Delete the rows that match it, instead of keys.")
@_change_options
def erase_command(
    ds: Dataset,
    key_texts: tuple[str, ...],
    keys_file: IO[bytes] | None,
    on: tuple[str, ...],
    column: str | None,
    filter: str | None,
    dry_run: bool,
    receipt_path: str | None,
) -> CommandAnswer:
    """Delete the rows at PATH that hold a key, and prove it.

    The rows are deleted without a question; --dry-run shows the plan. Of the files, only those that
    hold a key are written anew. Exits with 1 if the proof fails. As JSON: the receipt.
    """
    keys_by_column = given_keys(ds.opened, key_texts, keys_file, on, column)
    if bool(keys_by_column) == (filter is not None):
        raise click.UsageError(
            "give one of --key COLUMN=VALUE, --keys FILE with --on or --column, and --filter SQL"
        )
    _require_new_file(receipt_path)
    columns, keys = as_arguments(keys_by_column) if keys_by_column else (None, None)
    receipt = ds.erase(columns, keys, filter=filter, plan=dry_run, progress=True)
    return _answer(ds, receipt, receipt_path)


@zonebloom.command(
    "upsert", epilog="Example: zonebloom upsert lake/orders changes.parquet --on order_id,region"
)
@dataset_command
@click.argument("batch", type=click.File("rb"))
@on_option(required=True)
@click.option(
    "--columns",
    metavar="A,B",
    multiple=True,
    help="Columns to update; all of BATCH by default. Separate them by commas.",
)
@click.option(
    "--when-matched",
    type=click.Choice(["update", "ignore"]),
    default="update",
    help="What to do with rows whose key exists; update by default.",
)
@click.option(
    "--when-not-matched",
    type=click.Choice(["insert", "ignore"]),
    default="insert",
    help="What to do with rows whose key is new; insert by default.",
)
@_change_options
def upsert_command(
    ds: Dataset,
    batch: IO[bytes],
    on: tuple[str, ...],
    columns: tuple[str, ...],
    when_matched: Any,
    when_not_matched: Any,
    dry_run: bool,
    receipt_path: str | None,
) -> CommandAnswer:
    """Update or insert the rows of BATCH at PATH, by key.

    Rows whose key exists are updated, and the others are inserted. BATCH is a Parquet or CSV file,
    or - for stdin, with columns of the dataset. In CSV an empty field is null, and "" is an empty
    text. Of the files, only those that hold a key are written anew. Exits with 1 if the proof
    fails. As JSON: the receipt.
    """
    _require_new_file(receipt_path)
    receipt = ds.upsert(
        open_batches(batch, ds.schema),
        split_names(on),
        when_matched=when_matched,
        when_not_matched=when_not_matched,
        columns=split_names(columns) or None,
        plan=dry_run,
        progress=True,
    )
    return _answer(ds, receipt, receipt_path)


@zonebloom.command("receipt", epilog="Example: zonebloom receipt erased.json lake/orders")
@answer_command
@click.argument("file", type=click.Path(dir_okay=False))
@click.argument("path", type=click.Path(), required=False)
@source_options
@catalog_option
@key_option("An erased key, to search all files for it.")
@keys_file_option(
    "A CSV or Parquet file, or stdin, with the erased keys in columns of their names."
)
@lines_option()
@click.option("--filter", metavar="SQL", help="The filter of the erasure, instead of keys.")
@click.option("--purge", is_flag=True, help="Delete older versions, files and filters with keys.")
def receipt_command(
    file: str,
    path: str | None,
    key_texts: tuple[str, ...],
    keys_file: IO[bytes] | None,
    column: str | None,
    filter: str | None,
    purge: bool,
    **options: Any,
) -> CommandAnswer:
    """Print a receipt, and check what still holds its keys.

    The receipt is in FILE, and its table at PATH. With the keys or the filter, all files are
    searched, and otherwise only those that the receipt names. Exits with 1 if something may hold
    them. As JSON: receipt, traces (null without PATH).
    """
    from zonebloom.changes.receipt import Receipt
    from zonebloom.facade.dataset import Dataset

    receipt = Receipt.load(file)
    if path is None:
        if purge or key_texts or keys_file is not None or filter is not None:
            raise click.UsageError("give the PATH of the table to check")
        return CommandAnswer(
            {"receipt": _json(receipt), "traces": None},
            _receipt_text(receipt, receipt.traces, receipt.location, (file, None)),
        )
    ds = Dataset(*open_at(path, **options))
    keys = None
    if key_texts or keys_file is not None:
        on = () if keys_file is None or column else receipt.columns
        keys_by_column = (
            given_keys(ds.opened, key_texts, keys_file, on, column) if receipt.columns else {}
        )
        if set(keys_by_column) != set(receipt.columns) or not keys_by_column:
            names = ", ".join(receipt.columns)
            wanted = f"{names}; give keys of that, or none" if names else "a filter; give --filter"
            raise InvalidArgument(f"the receipt is of {wanted}")
        _, keys = as_arguments(keys_by_column)
    traces = receipt.check(ds, keys, filter=filter, purge=purge)
    return CommandAnswer(
        {"receipt": _json(receipt), "traces": traces},
        _receipt_text(receipt, traces, ds.opened.source.root, (file, path)),
        exit_code=text.FAILED if traces else 0,
    )


def _require_new_file(path: str | None) -> None:
    """Raise `InvalidArgument` before a change whose receipt could not be written."""
    if path is None:
        return
    if os.path.lexists(path):
        raise InvalidArgument(f"{path} exists; give a new file for the receipt")
    folder = os.path.dirname(path) or "."
    if not os.access(folder, os.W_OK):
        raise InvalidArgument(f"cannot write the receipt to {folder}; give another folder")


def _answer(ds: Dataset, receipt: Receipt, receipt_path: str | None) -> CommandAnswer:
    is_refuted = receipt.verification is not None and not receipt.verification.is_proven
    is_saved, notes = False, []
    if receipt_path is not None and receipt.is_committed:
        try:
            receipt.save(receipt_path)
            is_saved = True
            notes.append(f"the receipt is in {receipt_path}")
        except InvalidArgument as error:
            # The change is done, so print its receipt at least.
            notes.append(f"Error: {error}")
    has_failed = is_refuted or (receipt_path is not None and receipt.is_committed and not is_saved)
    return CommandAnswer(
        _json(receipt),
        _receipt_text(
            receipt,
            receipt.traces,
            ds.opened.source.root,
            (receipt_path if is_saved else None, None),
        ),
        notes=notes,
        exit_code=text.FAILED if has_failed else 0,
    )


def _json(receipt: Receipt) -> dict[str, Any]:
    return json.loads(receipt.to_json())


def _receipt_text(
    receipt: Receipt, traces: Traces | None, root: str, paths: tuple[str | None, str | None]
) -> str:
    title = str(replace(receipt, traces=None))
    if traces is None:
        return title
    return f"{title}\n{text.traces_text(traces, receipt, root, paths, terminal_width())}"

"""The command that writes files again in the layout that suits lookups."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import click

from zonebloom.cli.options import answer_command, split_names, zonebloom
from zonebloom.cli.output import CommandAnswer
from zonebloom.cli.text import print_to_stderr
from zonebloom.parquet.rewritten_file import Compression

if TYPE_CHECKING:
    from zonebloom.building.rewrite import Rewritten


@zonebloom.command(
    "rewrite", epilog="Example: zonebloom rewrite data/flights data/flights-small --index tailnum"
)
@click.argument("source", metavar="SRC", type=click.Path())
@click.argument("destination", metavar="DST", type=click.Path())
@click.option(
    "--compression",
    type=click.Choice(get_args(Compression)),
    default="source",
    help="Codec of the new files; that of the source by default.",
)
@click.option(
    "--row-group-rows",
    type=click.IntRange(min=2048),
    help="Rows of a row group; by default those of the source, between 122,880 and 1,048,576.",
)
@click.option(
    "--index",
    "columns",
    multiple=True,
    help="Columns to index in DST, separated by commas. May be repeated.",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted rewrite.")
@answer_command
def rewrite_command(
    source: str,
    destination: str,
    compression: Compression,
    row_group_rows: int | None,
    columns: tuple[str, ...],
    resume: bool,
) -> CommandAnswer:
    """Write Parquet files again, with small pages.

    The files at SRC are written into the new folder DST. Lookups there decode pages of 2,048 rows
    instead of whole column chunks; the advise command says if that would save much. Rows, names,
    folders and schemas stay the same. SRC is not changed. As JSON: source, destination, num_rows,
    bytes_before, bytes_after, seconds, files (path, num_rows, bytes_before, bytes_after,
    was_complete), indices.
    """
    from zonebloom.building.complete_files import STAGING_NAME
    from zonebloom.facade.rewriting import rewrite

    names = split_names(columns) or []
    start = time.perf_counter()
    try:
        rewritten = rewrite(
            source,
            destination,
            compression=compression,
            row_group_rows=row_group_rows,
            index=names or None,
            resume=resume,
            progress=True,
        )
    except KeyboardInterrupt:
        if os.path.isdir(os.path.join(destination, STAGING_NAME)):
            print_to_stderr(f"continue by the same command with --resume, or delete {destination}")
        raise
    seconds = time.perf_counter() - start
    # Messages show the folder as the user wrote it.
    table, _, title = str(replace(rewritten, destination=destination)).rpartition("\n")
    return CommandAnswer(
        {
            "source": source,
            "destination": rewritten.destination,
            "num_rows": rewritten.num_rows,
            "bytes_before": rewritten.bytes_before,
            "bytes_after": rewritten.bytes_after,
            "seconds": seconds,
            "files": list(rewritten.files),
            "indices": names,
        },
        table,
        summary=f"{title}, in {seconds:.1f} s\n{_next_step(rewritten, destination, names)}",
    )


def _next_step(rewritten: Rewritten, destination: str, names: list[str]) -> str:
    folder = shlex.quote(destination)
    if names:
        return f'look up: zonebloom lookup {folder} "{names[0]} = ..."'
    if not rewritten.num_rows:
        return "there are no rows to index"
    return f"build an index: zonebloom build {folder} --column NAME"

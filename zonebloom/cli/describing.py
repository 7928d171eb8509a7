"""The commands that describe a dataset and its indices: ls, schema, stats, advise."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from zonebloom.base.arguments import suggest_names
from zonebloom.base.text import bytes_text, records_text
from zonebloom.cli import text
from zonebloom.cli.options import (
    columns_options,
    drop_unset,
    no_index_message,
    source_command,
    zonebloom,
)
from zonebloom.cli.output import CommandAnswer, is_in_terminal, terminal_width

if TYPE_CHECKING:
    from zonebloom.facade.opening import OpenedSource


@zonebloom.command("ls", epilog="Example: zonebloom ls data/flights")
@source_command
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"Maximum number of files; by default all, but {text.MAX_TERMINAL_ROWS} in a terminal.",
)
def ls_command(source: OpenedSource, limit: int | None) -> CommandAnswer:
    """List the files at PATH, and the indices that cover each.

    The number of rows is known for files that an index covers. As JSON: path, num_files (before
    --limit), files (path, bytes, rows, indices).
    """
    ids_by_index = {
        name: entry.fragment_ids for name, entry in source.opened.version.indices.items()
    }
    present_files = source.opened.look().fragments
    files = [
        {
            "path": file.fragment.key,
            "bytes": file.identity.size,
            "rows": file.num_rows,
            "indices": [name for name, ids in ids_by_index.items() if file.fragment_id in ids],
        }
        for file in present_files[:limit]
    ]
    visible_files = files[: text.MAX_TERMINAL_ROWS if limit is None and is_in_terminal() else None]
    lines = [
        [bytes_text(file["bytes"]), file["rows"], file["indices"], file["path"]]
        for file in visible_files
    ]
    table = text.fitted_table(["size", "rows", "indices", "path"], lines, terminal_width())
    if len(visible_files) < len(files):
        table += f"\n{text.left_out_text(len(files) - len(visible_files), 'file')}"
    return CommandAnswer(
        {"path": source.title, "num_files": len(present_files), "files": files},
        table,
    )


@zonebloom.command("schema", epilog="Example: zonebloom schema data/flights")
@source_command
def schema_command(source: OpenedSource) -> CommandAnswer:
    """Print the columns at PATH, their types and indices.

    As JSON: path, columns (name, type, nullable, indices, by_path: whether the values come from
    the paths of the files).
    """
    from zonebloom.index.row_keys.rules import columns_of_entry

    entries = source.opened.version.indices.values()
    partition_columns = source.opened.source.constant_columns()
    columns = [
        {
            "name": field.name,
            "type": str(field.type),
            "nullable": field.nullable,
            "indices": [
                entry.name
                for entry in entries
                if any(path[0] == field.name for path in columns_of_entry(entry))
            ],
            "by_path": field.name in partition_columns,
        }
        for field in source.opened.source.schema
    ]
    fields = ("name", "type", "nullable", "indices")
    return CommandAnswer(
        {"path": source.title, "columns": columns},
        text.fitted_table(
            ["column", *fields[1:]],
            [[column[field] for field in fields] for column in columns],
            terminal_width(),
        ),
    )


@zonebloom.command("stats", epilog="Example: zonebloom stats data/flights --column tailnum")
@source_command
@columns_options(purpose="Print only the indices on these columns, with all figures.")
@click.option("--name", help="Print only the index of this name, with all figures.")
def stats_command(
    source: OpenedSource, columns: list[str] | None, name: str | None
) -> CommandAnswer:
    """Print coverage, size, fill and false positives of indices.

    Columns with Bloom filters inside the Parquet files are listed too. As JSON: path, files,
    indices, embedded.
    """
    from zonebloom.errors import IndexNotFound
    from zonebloom.facade.indices import describe_opened, statistics_of
    from zonebloom.index.describe import describe_embedded, embedded_table

    source.opened.require_unlocked()
    all_indices = describe_opened(source.opened)
    indices = [
        index
        for index in all_indices
        if name in (None, index.name) and (columns is None or index.column in columns)
    ]
    if not indices and (name or columns):
        if name:
            source.opened.index_entry(name)
        advice = suggest_names(
            columns[0] if columns else "",
            [index.column for index in all_indices],
            "there is one on:",
        )
        raise IndexNotFound(f"there is no index like that at {source.title}; {advice}")
    figures = [statistics_of(source.opened, index.name) for index in indices]
    present_files = [] if name else source.opened.look().fragments
    embedded = [
        filters
        for filters in describe_embedded(source.opened.embedded_filters, present_files)
        if columns is None or filters.column in columns
    ]

    width = terminal_width()
    parts = []
    if embedded:
        parts.append(text.fitted_table(*embedded_table(embedded), width))
    if name or columns:
        parts.append(
            "\n\n".join(
                records_text(list(index_figures), [list(index_figures.values())])
                for index_figures in figures
            )
        )
    elif indices:
        parts.append(text.fitted_table(*text.table_with_figures(indices, figures), width))
    return CommandAnswer(
        {
            "path": source.title,
            "files": len(source.opened.source.fragments),
            "indices": figures,
            "embedded": embedded,
        },
        "\n".join(parts),
        summary="" if indices else no_index_message(source.title),
    )


@zonebloom.command("advise", epilog="Example: zonebloom advise data/flights --column tailnum")
@source_command
@columns_options(purpose="Columns to judge; all by default.")
@click.option("--number-of-items", type=int, help="Rows in a zone; 8192 by default.")
def advise_command(
    source: OpenedSource, columns: list[str] | None, **parameters: Any
) -> CommandAnswer:
    """Judge from a sample which columns are worth an index.

    The command also names the kind of index, and says if the pages of the files are too large for
    lookups. As JSON: path, num_rows and num_zones (of the dataset), sampled_zones (that were
    read), columns (figures, verdict, why, index_type and options of each), commands, page_sizes,
    read (bytes, seconds).
    """
    from zonebloom.advise.advise import advise
    from zonebloom.advise.judge import text_cells

    advices = advise(source.opened, columns, **drop_unset(parameters))
    commands = [_build_command(source.title, *build) for build in advices.builds]
    table = text.fitted_table(*text_cells(advices), terminal_width())
    return CommandAnswer(
        {
            "path": source.title,
            "num_rows": advices.num_rows,
            "num_zones": advices.num_zones,
            "sampled_zones": advices.sampled_zones,
            "columns": list(advices),
            "commands": commands,
            "page_sizes": advices.page_sizes,
            "read": {"bytes": advices.read_bytes, "seconds": advices.seconds},
        },
        "\n".join([table, *advices.reasons, *commands]),
        summary=advices.title,
    )


def _build_command(path: str, columns: list[str], index_type: str, options: dict[str, Any]) -> str:
    """Return the command of a build."""
    words = ["zonebloom", "build", path, *(f"--column={column}" for column in columns)]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return shlex.join([*words, f"--type={index_type}"])

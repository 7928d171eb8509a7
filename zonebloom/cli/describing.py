"""The commands that say what there is: ls, schema, stats, advise."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from zonebloom.base.arguments import suggest_names
from zonebloom.base.text import bytes_text, table_text
from zonebloom.cli import text
from zonebloom.cli.options import given, how_to_build, on_dataset, zonebloom, zones
from zonebloom.cli.output import Answer, in_terminal, table_of

if TYPE_CHECKING:
    from zonebloom.dataset import Dataset


@zonebloom.command(epilog="Example: zonebloom ls data/flights")
@on_dataset
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"Files at most; by default all, of which a terminal shows {text.SHOWN_ROWS}.",
)
def ls(ds: Dataset, limit: int | None) -> Answer:
    """List the files at PATH, and the indices that cover each.

    Rows are told of files an index covers. As JSON: path, num_files, files (path, bytes, rows,
    indices).
    """
    covered = {name: entry.fragment_ids for name, entry in ds.opened.version.indices.items()}
    present = ds.opened.planner.coverage().fragments
    files = [
        {
            "path": each.fragment.key,
            "bytes": each.identity.size,
            "rows": each.num_rows,
            "indices": [n for n, ids in covered.items() if each.fragment_id in ids],
        }
        for each in present[:limit]
    ]
    most = text.SHOWN_ROWS if limit is None and in_terminal() else None
    schema = pa.schema(
        {
            "path": pa.string(),
            "bytes": pa.int64(),
            "rows": pa.int64(),
            "indices": pa.list_(pa.string()),
        }
    )

    def shown() -> str:
        lines = [
            [bytes_text(f["bytes"]), f["rows"], ", ".join(f["indices"]) or "-", f["path"]]
            for f in files[:most]
        ]
        listed = table_text(["size", "rows", "indices", "path"], lines)
        more = len(files) - len(lines)
        return f"{listed}\n{text.more_text(more, 'file')}" if more else listed

    return Answer(
        lambda: {"path": ds.title, "num_files": len(present), "files": files},
        shown,
        lambda: pa.Table.from_pylist(files, schema),
    )


@zonebloom.command(epilog="Example: zonebloom schema data/flights")
@on_dataset
def schema(ds: Dataset) -> Answer:
    """Print the columns at PATH, their types and indices.

    As JSON: path, columns (name, type, nullable, indices).
    """
    indices = ds.describe_indices()
    by_path = ds.opened.source.partition_columns()
    columns = [
        {
            "name": field.name,
            "type": str(field.type),
            "nullable": field.nullable,
            "indices": [i.name for i in indices if i.column.split(".")[0] == field.name],
            "by_path": field.name in by_path,
        }
        for field in ds.schema
    ]
    return Answer(
        lambda: {"path": ds.title, "columns": columns},
        lambda: table_text(
            ["column", "type", "nullable", "indices"],
            [
                [c["name"], c["type"], c["nullable"], ", ".join(c["indices"]) or "-"]
                for c in columns
            ],
        ),
        lambda: table_of(columns),
    )


@zonebloom.command(epilog="Example: zonebloom stats data/flights --column tailnum")
@on_dataset
@click.option("--column", help="Only the index on this column, in full.")
@click.option("--name", help="Only the index of this name, in full.")
def stats(ds: Dataset, column: str | None, name: str | None) -> Answer:
    """Print coverage, size, fill and false positives of indices.

    Columns with Bloom filters inside the Parquet files are listed too. As JSON: path, files,
    indices, embedded.
    """
    from zonebloom.errors import IndexNotFound
    from zonebloom.index.describe import EMBEDDED_HEADERS, embedded_cells

    described = ds.describe_indices()
    chosen = [
        each for each in described if name in (None, each.name) and column in (None, each.column)
    ]
    if not chosen and (name or column):
        if name:
            ds.opened.index_entry(name)
        known = suggest_names(column or "", [each.column for each in described], "there is one on:")
        raise IndexNotFound(f"there is no index like that at {ds.title}; {known}")
    figures = [ds.index_statistics(each.name) for each in chosen]
    of_files = [] if name else ds.embedded_filters()
    embedded = [each for each in of_files if column in (None, each.column)]

    def shown() -> str:
        lines = list(map(embedded_cells, embedded))
        parts = [table_text(EMBEDDED_HEADERS, lines)] if embedded else []
        if name or column:
            width = max(map(len, figures[0]))
            parts += [
                "\n".join(f"{key:<{width}}  {value}" for key, value in each.items())
                for each in figures
            ]
        elif chosen:
            parts.append(text.indices_text(chosen, figures))
        return "\n".join(parts)

    return Answer(
        lambda: {
            "path": ds.title,
            "files": len(ds.files),
            "indices": figures,
            "embedded": list(map(asdict, embedded)),
        },
        shown,
        lambda: table_of(figures),
        aside="" if chosen else how_to_build(ds),
    )


@zonebloom.command(epilog="Example: zonebloom advise data/flights --column tailnum")
@on_dataset
@click.option("--column", "columns", multiple=True, help="May be repeated; all by default.")
@zones
def advise(ds: Dataset, columns: tuple[str, ...], **parameters: Any) -> Answer:
    """Say from a sample which columns are worth an index.

    As JSON: path, num_rows, num_zones, sampled_zones, columns (estimates, verdict and why of
    each), read (bytes, seconds).
    """
    advices = ds.advise(list(columns) or None, **given(parameters))
    title, _, shown = str(advices).partition("\n")
    header, *_ = shown.splitlines()
    if in_terminal() and len(header) > shutil.get_terminal_size().columns:
        shown = text.advices_text(advices)
    return Answer(
        lambda: {
            "path": ds.title,
            "num_rows": advices.num_rows,
            "num_zones": advices.num_zones,
            "sampled_zones": advices.sampled_zones,
            "columns": list(map(asdict, advices)),
            "read": {"bytes": advices.read_bytes, "seconds": advices.seconds},
        },
        lambda: shown,
        lambda: table_of(list(advices)),
        aside=title,
    )

"""The same rows as several writers lay them out by default, and a layout told from its files.

``python -m bench.layouts SOURCE TARGET`` writes the files of a folder again with Spark, whose
virtual machine ends with the process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from bench.processes import run_module
from zonebloom.parquet.footer import read_footer
from zonebloom.storage.random_access import RandomAccessFile

ROW_GROUP_ROWS = 131_072
# Small pages, as the README recommends; row groups as DuckDB's.
RECOMMENDED_OPTIONS = {
    "row_group_size": ROW_GROUP_ROWS,
    "write_page_index": True,
    "max_rows_per_page": 2048,
}
RECOMMENDED, TPCHGEN = "recommended", "tpchgen-cli"
# Dictionary pages of columns with more distinct values would only be in the way.
_FEW_DISTINCT = 1 << 15


def without_views(schema: pa.Schema) -> pa.Schema:
    """A schema with plain strings for views of strings."""
    is_view = pa.types.is_string_view
    plain = [each.with_type(pa.string()) if is_view(each.type) else each for each in schema]
    return pa.schema(plain)


# Writers, each with its defaults


def _recommended(source: Path, target: Path) -> None:
    table = _table(source)
    sample = table.slice(0, ROW_GROUP_ROWS)
    repeated = [name for name in table.column_names if len(sample[name].unique()) < _FEW_DISTINCT]
    pq.write_table(table, target, use_dictionary=repeated, **RECOMMENDED_OPTIONS)


def _pyarrow(source: Path, target: Path) -> None:
    pq.write_table(_table(source), target)


def _polars(source: Path, target: Path) -> None:
    import polars as pl

    # In one chunk, or every chunk becomes a row group.
    pl.read_parquet(source).rechunk().write_parquet(target)


def _duckdb(source: Path, target: Path) -> None:
    import duckdb

    duckdb.sql(f"COPY (FROM read_parquet('{source}')) TO '{target}' (FORMAT parquet)")


def _table(source: Path) -> pa.Table:
    table = pq.read_table(source)
    return table.cast(without_views(table.schema))


def _each(write: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    for file in sorted(source.glob("*.parquet")):
        write(file, target / file.name)


def _spark(source: Path, target: Path) -> None:
    run_module("bench.layouts", str(source), str(target))


# By layout, what writes the files of a folder again into another.
WRITERS: dict[str, Callable[[Path, Path], None]] = {
    RECOMMENDED: partial(_each, _recommended),
    "pyarrow": partial(_each, _pyarrow),
    "Polars": partial(_each, _polars),
    "DuckDB": partial(_each, _duckdb),
    "Spark": _spark,
}
NAMES = (RECOMMENDED, TPCHGEN, *(name for name in WRITERS if name != RECOMMENDED))


def main(source: str, target: str) -> None:
    """Write with Spark, a file for each."""
    from zonebloom.cli.engines import spark_session

    session = spark_session("local[2]", "zonebloom-bench")
    for file in sorted(Path(source).glob("*.parquet")):
        written = Path(target, f"_{file.stem}")
        session.read.parquet(str(file)).coalesce(1).write.parquet(str(written))
        (part,) = written.glob("part-*.parquet")
        part.rename(Path(target, file.name))
        for left in [*written.iterdir()]:
            left.unlink()
        written.rmdir()
    session.stop()
    print(json.dumps(None))


# What files tell


def told(columns: Iterable[tuple[Path, str]]) -> str:
    """The layout of some columns, each of a file, in words."""
    writers, codecs, group_rows, page_rows, indexed, by_dictionary = (set() for _ in range(6))
    for path, name in columns:
        metadata = pq.read_metadata(path)
        writers.add(metadata.created_by.partition(" (build")[0])
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        group_rows.add(max(group.num_rows for group in groups))
        leaf = metadata.schema.names.index(name)
        chunk = groups[0].column(leaf)
        codecs.add(chunk.compression)
        indexed.add(chunk.has_offset_index)
        by_dictionary.add(chunk.has_dictionary_page)
        page_rows.add(_most_page_rows(path, leaf))
    return (
        f"written by {', '.join(sorted(writers))}: row groups of up to {_range(group_rows)} rows, "
        f"pages of {_range(page_rows)} keys, {_yes_or_no('a page index', indexed)}, "
        f"{_yes_or_no('a dictionary', by_dictionary)} of keys, {', '.join(sorted(codecs))}"
    )


def _most_page_rows(path: Path, leaf: int) -> int:
    """Rows of the largest page of a column in the first row group."""
    file = RandomAccessFile(LocalFileSystem(), str(path))
    pages = read_footer(file.num_bytes, file.read, with_pages=True).locations(0, leaf)
    file.close()
    assert pages is not None, path
    return int(np.diff(pages.first_rows).max())


def _range(counts: set[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _yes_or_no(what: str, answers: set[bool]) -> str:
    if len(answers) > 1:
        return f"{what} in some"
    return what if answers.pop() else f"no {what.split(' ', 1)[1]}"


if __name__ == "__main__":
    main(*sys.argv[1:])

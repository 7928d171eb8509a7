"""Write the same rows in the default layouts of several writers, and describe the layout of files.

``python -m bench.layouts SOURCE TARGET`` writes the files of a folder again with Spark. It runs in
a process of its own, so that Spark's virtual machine ends with it.
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
# Pages are small, as the README recommends, and row groups have the size that DuckDB writes.
RECOMMENDED_OPTIONS = {
    "row_group_size": ROW_GROUP_ROWS,
    "write_page_index": True,
    "max_rows_per_page": 2048,
}
RECOMMENDED, TPCHGEN = "recommended", "tpchgen-cli"
# Columns with more distinct values are written without a dictionary, which would only be read in
# addition to them.
_FEW_DISTINCT = 1 << 15


def without_views(schema: pa.Schema) -> pa.Schema:
    """Return a schema with plain strings instead of string views."""
    fields = [
        field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field
        for field in schema
    ]
    return pa.schema(fields)


# The functions below write with the default options of each writer.


def _recommended(source: Path, target: Path) -> None:
    table = _table(source)
    sample = table.slice(0, ROW_GROUP_ROWS)
    columns = [name for name in table.column_names if len(sample[name].unique()) < _FEW_DISTINCT]
    pq.write_table(table, target, use_dictionary=columns, **RECOMMENDED_OPTIONS)


def _pyarrow(source: Path, target: Path) -> None:
    pq.write_table(_table(source), target)


def _polars(source: Path, target: Path) -> None:
    import polars as pl

    # Combine the chunks, because Polars writes a row group for each.
    pl.read_parquet(source).rechunk().write_parquet(target)


def _duckdb(source: Path, target: Path) -> None:
    import duckdb

    duckdb.sql(f"COPY (FROM read_parquet('{source}')) TO '{target}' (FORMAT parquet)")


def _table(source: Path) -> pa.Table:
    table = pq.read_table(source)
    return table.cast(without_views(table.schema))


def _write_files(write: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    for file in sorted(source.glob("*.parquet")):
        write(file, target / file.name)


def _spark(source: Path, target: Path) -> None:
    run_module("bench.layouts", str(source), str(target))


# Functions that write the files of one folder to another folder, by layout.
WRITERS: dict[str, Callable[[Path, Path], None]] = {
    RECOMMENDED: partial(_write_files, _recommended),
    "pyarrow": partial(_write_files, _pyarrow),
    "Polars": partial(_write_files, _polars),
    "DuckDB": partial(_write_files, _duckdb),
    "Spark": _spark,
}
NAMES = (RECOMMENDED, TPCHGEN, *(name for name in WRITERS if name != RECOMMENDED))


def main(source: str, target: str) -> None:
    """Write each file of a folder with Spark, as one file of the same name."""
    from bench.spark_session import spark_session

    session = spark_session("local[2]", "zonebloom-bench")
    for file in sorted(Path(source).glob("*.parquet")):
        folder = Path(target, f"_{file.stem}")
        session.read.parquet(str(file)).coalesce(1).write.parquet(str(folder))
        (part,) = folder.glob("part-*.parquet")
        part.rename(Path(target, file.name))
        for other_file in [*folder.iterdir()]:
            other_file.unlink()
        folder.rmdir()
    session.stop()
    print(json.dumps(None))


def describe_layout(columns: Iterable[tuple[Path, str]]) -> str:
    """Return a description of the layout of columns, each given by its file and name."""
    writers, codecs, group_rows, page_rows = set(), set(), set(), set()
    has_page_index, has_dictionary = set(), set()
    for path, name in columns:
        metadata = pq.read_metadata(path)
        writers.add(metadata.created_by.partition(" (build")[0])
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        group_rows.add(max(group.num_rows for group in groups))
        leaf = metadata.schema.names.index(name)
        chunk = groups[0].column(leaf)
        codecs.add(chunk.compression)
        has_page_index.add(chunk.has_offset_index)
        has_dictionary.add(chunk.has_dictionary_page)
        page_rows.add(_max_page_rows(path, leaf))
    return (
        f"written by {', '.join(sorted(writers))}: row groups of up to {_range(group_rows)} rows, "
        f"pages of {_range(page_rows)} keys, {_yes_or_no('a page index', has_page_index)}, "
        f"{_yes_or_no('a dictionary', has_dictionary)} of keys, {', '.join(sorted(codecs))}"
    )


def _max_page_rows(path: Path, leaf: int) -> int:
    """Return the rows of the largest page of a column in the first row group."""
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

"""Write Parquet files anew, with the options of the file that they replace."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.parquet.file_layout import FilePages
from zonebloom.scan.recheck import gather
from zonebloom.sources.source import Fragment
from zonebloom.storage.store import Store

# Encodings that pyarrow writes when it is told to, besides plain values and dictionaries.
_ENCODINGS = {
    "BYTE_STREAM_SPLIT",
    "DELTA_BINARY_PACKED",
    "DELTA_BYTE_ARRAY",
    "DELTA_LENGTH_BYTE_ARRAY",
}
# Any probability gives the size of a filter, with a number of values that fits.
_FILTER_PROBABILITY = 0.01


@dataclass(frozen=True)
class FileChange:
    """The rows of one file that are removed or replaced.

    Attributes
    ----------
    present : PresentFragment
    rows : int64 array, ascending
        The numbers of the rows in the file.
    replacements : int64 array
        The row of the batch that replaces each of them, or -1 if the row is removed.
    """

    present: PresentFragment
    rows: np.ndarray
    replacements: np.ndarray

    def places_in(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of these rows among consecutive rows, and their replacements.

        ``numbers`` are the numbers of the consecutive rows in the file, without deleted rows.
        """
        start, stop = np.searchsorted(self.rows, [numbers[0], numbers[-1] + 1])
        return np.searchsorted(numbers, self.rows[start:stop]), self.replacements[start:stop]


@dataclass(frozen=True)
class WriterOptions:
    """The way in which a file is written.

    Attributes
    ----------
    group_rows : int
        The number of rows of a row group.
    arguments : dict
        Arguments of `pyarrow.parquet.ParquetWriter`.
    """

    group_rows: int = 1 << 20
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenFile:
    """A file that was written and is not part of the table yet.

    Attributes
    ----------
    path : str
        In the file system of the dataset.
    partition : object
        The partition that its rows belong to, as the table names it.
    metadata : pyarrow.parquet.FileMetaData
    num_bytes : int
    replaced : Fragment or None
        The file whose rows it holds.
    """

    path: str
    partition: Any
    metadata: pq.FileMetaData
    num_bytes: int
    replaced: Fragment | None = None

    @property
    def num_rows(self) -> int:
        return self.metadata.num_rows


def columns_without_bounds(metadata: pq.FileMetaData) -> set[str]:
    """Return the paths of columns with a row group that has values, but no bounds of them."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(metadata.num_columns))
    # PyArrow writes no bounds if a value is longer than 4,096 bytes.
    return {
        chunk.path_in_schema
        for chunk in chunks
        if not (part := chunk.statistics) or (part.num_values and not part.has_min_max)
    }


def options_of_file(
    metadata: pq.FileMetaData,
    pages: FilePages | None,
    schema: pa.Schema | None,
    updated_columns: Collection[str],
) -> WriterOptions:
    """Return the options of a file for a new one with a schema, as far as its footer tells."""
    if not metadata.num_row_groups or not metadata.num_columns:
        return WriterOptions()
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    first = groups[0]
    chunks = [first.column(number) for number in range(metadata.num_columns)]
    compression = {chunk.path_in_schema: chunk.compression for chunk in chunks}
    arguments: dict[str, Any] = {
        "compression": {
            path: "NONE" if codec == "UNCOMPRESSED" else codec
            for path, codec in compression.items()
        },
        "use_dictionary": [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page],
        "column_encoding": {
            chunk.path_in_schema: encoding
            for chunk in chunks
            if not chunk.has_dictionary_page
            for encoding in chunk.encodings
            if encoding in _ENCODINGS
        }
        or None,
        "version": "1.0" if metadata.format_version == "1.0" else "2.6",
        "write_page_index": any(chunk.has_offset_index for chunk in chunks),
        "store_schema": b"ARROW:schema" in (metadata.metadata or {}),
        "use_deprecated_int96_timestamps": any(chunk.physical_type == "INT96" for chunk in chunks),
        "max_rows_per_page": _rows_per_page(pages),
        "bloom_filter_options": {
            chunk.path_in_schema: _filter_options(chunk)
            for chunk in chunks
            if chunk.bloom_filter_offset is not None
        },
    }
    # Row groups are filled anew, and each is sorted for itself. Columns are named by numbers.
    order = first.sorting_columns if len(groups) == 1 else ()
    if order and schema is not None and metadata.schema.to_arrow_schema().equals(schema):
        paths = [f"{chunks[column.column_index].path_in_schema}." for column in order]
        if not any(path.startswith(f"{name}.") for path in paths for name in updated_columns):
            arguments["sorting_columns"] = order
    group_rows = max(group.num_rows for group in groups)
    return WriterOptions(max(group_rows, 1), arguments)


def _filter_options(chunk: pq.ColumnChunkMetaData) -> dict[str, Any]:
    """Return options for an embedded Bloom filter of the size that a column chunk has."""
    if chunk.bloom_filter_length is None:
        return {}
    # The length includes a short header, and the filter has a power of two of bytes.
    num_bits = 8 << (chunk.bloom_filter_length.bit_length() - 1)
    bits_per_value = -8 / math.log(1 - _FILTER_PROBABILITY ** (1 / 8))
    return {"ndv": max(int(num_bits / bits_per_value), 1), "fpp": _FILTER_PROBABILITY}


def _rows_per_page(pages: FilePages | None) -> int | None:
    """Return the most rows of a page of the first row group, if it has several pages."""
    if pages is None or not pages.row_groups:
        return None
    counts = []
    for leaf in range(len(pages.schema.leaves)):
        located = pages.locations(0, leaf)
        if located is not None and located.starts.size > 1:
            counts.append(int(np.diff(located.first_rows).max()))
    return max(counts) if counts else None


def write_parquet(
    store: Store,
    path: str,
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    options: WriterOptions,
    on_rows: Callable[[int], object] | None = None,
) -> tuple[pq.FileMetaData, int] | None:
    """Write rows to a file, one row group after another. Return its metadata and its size.

    Return None, and write no file, if there are no rows.
    """
    collected: list[pq.FileMetaData] = []
    groups = _in_groups(tables, options.group_rows)
    first = next(groups, None)
    if first is None:
        return None
    with store.open_output(path) as stream:
        with pq.ParquetWriter(
            stream, schema, metadata_collector=collected, **options.arguments
        ) as writer:
            for group in chain([first], groups):
                writer.write_table(group.cast(schema), row_group_size=options.group_rows)
                if on_rows is not None:
                    on_rows(group.num_rows)
        return collected[0], stream.tell()


def _in_groups(tables: Iterable[pa.Table], group_rows: int) -> Iterator[pa.Table]:
    """Yield the rows again as tables of ``group_rows`` rows. The last one may be shorter."""
    waiting: list[pa.Table] = []
    num_waiting = 0
    for table in tables:
        while num_waiting + table.num_rows >= group_rows:
            part = table.slice(0, group_rows - num_waiting)
            yield pa.concat_tables([*waiting, part])
            waiting, num_waiting = [], 0
            table = table.slice(part.num_rows)
        if table.num_rows:
            waiting.append(table)
            num_waiting += table.num_rows
    if num_waiting:
        yield pa.concat_tables(waiting)


def changed_rows(
    batches: Iterable[tuple[np.ndarray, pa.Table]], change: FileChange, rows: pa.Table | None
) -> Iterator[pa.Table]:
    """Yield the rows of a file without those that are removed, and with those that are replaced.

    ``batches`` has the row numbers and the rows of the file. ``rows`` are those of the batch; the
    columns that it lacks keep their values.
    """
    for numbers, table in batches:
        if not numbers.size:
            continue
        places, batch_rows = change.places_in(numbers)
        if not places.size:
            yield table
            continue
        is_replaced = batch_rows >= 0
        if rows is not None and is_replaced.any():
            table = _replace(table, places[is_replaced], rows, batch_rows[is_replaced])
        is_kept = np.ones(table.num_rows, dtype=bool)
        is_kept[places[~is_replaced]] = False
        yield table if is_kept.all() else gather(table, np.flatnonzero(is_kept))


def _replace(
    table: pa.Table, places: np.ndarray, rows: pa.Table, batch_rows: np.ndarray
) -> pa.Table:
    new_rows = gather(rows, batch_rows)
    source = np.arange(table.num_rows)
    source[places] = table.num_rows + np.arange(places.size)
    for number, name in enumerate(table.column_names):
        if name in new_rows.column_names:
            new = new_rows.column(name)
            old = table.column(number)
            column = pa.chunked_array([*old.chunks, *new.cast(old.type).chunks], old.type)
            merged = gather(pa.table([column], [name]), source)
            table = table.set_column(number, table.field(number), merged.column(0))
    return table


def with_all_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with all columns of a schema. Those that they lack are null."""
    columns = [
        rows.column(field.name)
        if field.name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, names=schema.names)

"""Read some rows of a Parquet fragment page by page, with the dataset's names and types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.field_names import pages_with_names
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.footer import read_footer
from zonebloom.parquet.key_tests import KeyTests
from zonebloom.parquet.leaf_type import (
    CODECS,
    LeafChunk,
    Undecodable,
    fields_by_name,
    leaf_at,
)
from zonebloom.parquet.row_group_reader import RowGroupReader, select_pages
from zonebloom.predicates.ast import ColumnPath, Equals, IsIn, IsNull
from zonebloom.sbbf.numpy_budget import NUMPY
from zonebloom.sources.source import assemble_columns, groups_with_rows
from zonebloom.storage.file_view import FieldNames
from zonebloom.storage.files import file_errors
from zonebloom.storage.random_access import FragmentFile

if TYPE_CHECKING:
    from zonebloom.parquet.leaf_reader import LeafReader, PageTable

# Reading some rows of a column by pyarrow costs as much as this many block checks, the unit of the
# budget `NUMPY`. So Numba is loaded after about a thousand such reads.
_COLUMN_CHECKS = 1024
# The most page tables that are cached for a file.
_MAX_PAGE_TABLES = 1024
# The most bytes of a row group that are read before it is known whether they are needed. Reading
# them takes as long as one more round trip.
_MAX_READ_AHEAD = 1 << 20

_NOT_LOADED_REASON = "kernels are not loaded for so few rows"


class _DecodableColumns(NamedTuple):
    """The columns that kernels decode, and for each other column the reason for pyarrow."""

    paths: tuple[ColumnPath, ...]
    table: PageTable | None
    reasons: dict[str, str]


class ParquetRows:
    """Reads some rows of a Parquet file.

    If the caller gives page maps, they already have the table's names. `whole_chunks` maps each
    column whose chunks were read whole to the reason, and `pyarrow_columns` maps each column that
    pyarrow decoded to the reason.
    """

    def __init__(
        self,
        file: FragmentFile,
        pages: FilePages | None,
        schema: pa.Schema,
        constants: Mapping[str, object],
        names: FieldNames | None = None,
        defaults: Mapping[str, pa.Scalar] | None = None,
    ):
        self._file = file
        self._defaults = defaults
        self._pages = pages or pages_with_names(read_footer(file.num_bytes, file.read), names)
        self._reader: LeafReader | None = None
        self._schema = schema
        self._constants = constants
        self.whole_chunks: dict[str, str] = {}
        self.pyarrow_columns: dict[str, str] = {}
        self._fields = fields_by_name(self._pages.schema)
        if len(self._fields) < len(self._pages.schema.names):
            raise FragmentUnreadable("it has several columns of one name")

    def row_groups(self, rows: RowRanges) -> Iterator[tuple[int, int, RowRanges]]:
        """Yield the row groups with requested rows: number, first row, and rows from there."""
        return groups_with_rows(rows, (group.num_rows for group in self._pages.row_groups))

    def read_ahead(self, row_group: int, names: Sequence[str], rows: RowRanges) -> None:
        """Read the bytes that `narrow_rows` and `read` need for these rows in one round trip.

        Do nothing for local files, and for more bytes than `_MAX_READ_AHEAD`.
        """
        if self._file.is_local:
            return
        spans = []
        for name in names:
            is_stored = name in self._fields and name not in self._constants
            for leaf in self._pages.schema.field_leaves[self._fields[name]] if is_stored else ():
                pages = self._pages.locations(row_group, leaf)
                if pages is None:
                    return
                selected = select_pages(pages.first_rows, rows).pages
                starts, sizes = pages.starts[selected], pages.sizes[selected]
                spans += zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
                # The dictionary page lies between the chunk's start and its first data page.
                start, stop = self._pages.row_groups[row_group].chunks[leaf].start, pages.starts[0]
                spans += [(start, stop)] if start < stop else []
        if sum(stop - start for start, stop in spans) <= _MAX_READ_AHEAD:
            self._file.read_ahead(spans)

    def narrow_rows(
        self, row_group: int, tests: KeyTests, rows: RowRanges
    ) -> tuple[RowRanges, bool]:
        """Return the rows of a row group that pass the tests, and whether all of them match."""
        reader = self._leaf_reader(1)
        if reader is None:
            return rows, False

        def find(node: Equals | IsIn | IsNull, among: RowRanges) -> tuple[np.ndarray, bool] | None:
            table = self._decodable_columns(row_group, (node.column,)).table
            if table is None:
                return None
            leaf = table.columns[0].leaf
            keys = tests.keys(node, leaf)
            if keys is None:
                return None
            nulls = isinstance(node, IsNull) or (isinstance(node, IsIn) and node.null_matches)
            # Engines disagree on whether 0.0 equals -0.0, so floats need a recheck.
            is_exact = keys.is_exact and not pa.types.is_floating(leaf.arrow_type)
            try:
                return reader.find_rows(table, keys, nulls, among), is_exact
            except Undecodable:
                return None

        return tests.narrow(rows, find)

    def _leaf_reader(self, num_columns: int) -> LeafReader | None:
        """Return the reader that uses Numba, or None until enough columns were read to load it."""
        if self._reader is None and not NUMPY.spend(_COLUMN_CHECKS * num_columns):
            from zonebloom.parquet.leaf_reader import LeafReader

            self._reader = LeafReader(self._file)
        return self._reader

    def _decodable_columns(
        self, row_group: int, paths: tuple[ColumnPath, ...]
    ) -> _DecodableColumns:
        """Return the columns that kernels decode to the dataset's types, from a cache."""
        from zonebloom.parquet.leaf_reader import PageTable

        # The cache belongs to the page maps of one file in one dataset.
        cache = self._pages.page_tables
        key = row_group, paths
        # Another thread may clear the cache at any time, so look up only once.
        columns = cache.get(key)
        if columns is None:
            if len(cache) >= _MAX_PAGE_TABLES:
                cache.clear()
            chunks: dict[ColumnPath, LeafChunk] = {}
            reasons: dict[str, str] = {}
            for path in paths:
                chunk = self._leaf_chunk(row_group, path)
                if isinstance(chunk, str):
                    reasons[path[0]] = chunk
                else:
                    chunks[path] = chunk
            table = PageTable(list(chunks.values())) if chunks else None
            cache[key] = columns = _DecodableColumns(tuple(chunks), table, reasons)
        return columns

    def _leaf_chunk(self, row_group: int, path: ColumnPath) -> LeafChunk | str:
        """Return a column's chunk if kernels can decode it to the dataset's type, or a reason."""
        pages = self._pages
        position = None if path[0] in self._constants else leaf_at(path, pages.schema, self._schema)
        if position is None:
            return "its type"
        number, leaf = position
        chunk = pages.row_groups[row_group].chunks[number]
        chunk_pages = pages.locations(row_group, number)
        if chunk_pages is None:
            return "page locations are not known"
        return LeafChunk(leaf, chunk, chunk_pages) if chunk.codec in CODECS else "its codec"

    def read(self, row_group: int, names: Sequence[str], rows: RowRanges) -> pa.Table:
        """Return columns at some rows of a row group, with the dataset's types."""
        pages = self._pages
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        reader, reasons = self._leaf_reader(len(names)), {}
        if reader is not None and rows:
            decodable = self._decodable_columns(row_group, tuple((name,) for name in names))
            reasons = decodable.reasons
            if decodable.table is not None:
                arrays = zip(decodable.paths, reader.take(decodable.table, rows), strict=True)
                columns.update((path[0], array) for path, array in arrays if array is not None)
        stored = [
            self._fields[name]
            for name in names
            if name not in columns and name in self._fields and name not in self._constants
        ]
        if stored:
            other_reason = _NOT_LOADED_REASON if reader is None else "an encoding of its pages"
            for name in map(pages.schema.names.__getitem__, stored):
                self.pyarrow_columns[name] = reasons.get(name, other_reason)
            group_reader = RowGroupReader(pages, row_group, self._file.read, self._file.coalesce)
            values = group_reader.read(stored, rows)
            for field, reason in group_reader.whole.items():
                self.whole_chunks[pages.schema.names[field]] = reason
            columns.update({pages.schema.names[field]: column for field, column in values.items()})
        with file_errors(self._file.path):
            return assemble_columns(
                self._schema, names, len(rows), self._constants, columns, self._defaults
            )

    def require_unchanged(self) -> None:
        """Raise `FragmentChanged` if the file was written since it was opened."""
        self._file.require_unchanged()

    def close(self) -> None:
        self._file.close()

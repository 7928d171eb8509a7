"""Rows of one Parquet fragment, as the dataset's schema names them, page by page."""

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

# Numba loads in about the time in which pyarrow reads some rows of a column a thousand times.
_COLUMN_CHECKS = 1024
# Page tables that are kept of a file.
_MOST_TABLES = 1024
# What is read of a row group before it is known to be needed: a wait is as long.
_MOST_AHEAD = 1 << 20

_NOT_LOADED = "kernels are not loaded for so few rows"


class _Leaves(NamedTuple):
    """Columns that kernels decode and their pages, and why others are left to pyarrow."""

    paths: tuple[ColumnPath, ...]
    table: PageTable | None
    reasons: dict[str, str]


class ParquetRows:
    """Reads some rows of a fragment.

    Pages that are given have the table's names already. ``whole`` says which columns' chunks it
    read whole, and why, ``by_pyarrow`` which columns it left to pyarrow.
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
        """The row groups with a wanted row: number, first row, and the rows counted from it."""
        return groups_with_rows(rows, (group.num_rows for group in self._pages.row_groups))

    def read_ahead(self, row_group: int, names: Sequence[str], rows: RowRanges) -> None:
        """Of a file in a store, read at once what `narrowed` and `read` of these rows ask for one
        after the other, where that is not much."""
        if self._file.is_local:
            return
        spans = []
        for name in names:
            of_file = name in self._fields and name not in self._constants
            for leaf in self._pages.schema.field_leaves[self._fields[name]] if of_file else ():
                pages = self._pages.locations(row_group, leaf)
                if pages is None:
                    return
                wanted = select_pages(pages.first_rows, rows).pages
                starts = pages.starts[wanted]
                spans += zip(starts.tolist(), (starts + pages.sizes[wanted]).tolist(), strict=True)
                dictionary = self._pages.row_groups[row_group].chunks[leaf].start, pages.starts[0]
                spans += [dictionary] if dictionary[0] < dictionary[1] else []
        if sum(stop - start for start, stop in spans) <= _MOST_AHEAD:
            self._file.read_ahead(spans)

    def narrow_rows(
        self, row_group: int, tests: KeyTests, rows: RowRanges
    ) -> tuple[RowRanges, bool]:
        """Those rows of a row group that tests leave, and whether the predicate is true for all."""
        reader = self._leaf_reader(1)
        if reader is None:
            return rows, False

        def find(node: Equals | IsIn | IsNull, among: RowRanges) -> tuple[np.ndarray, bool] | None:
            table = self._leaves_of(row_group, (node.column,)).table
            if table is None:
                return None
            leaf = table.columns[0].leaf
            keys = tests.keys(node, leaf)
            if keys is None:
                return None
            nulls = isinstance(node, IsNull) or (isinstance(node, IsIn) and node.null_matches)
            # Engines do not agree on whether both zeros are one.
            is_exact = keys.is_exact and not pa.types.is_floating(leaf.arrow_type)
            try:
                return reader.find_rows(table, keys, nulls, among), is_exact
            except Undecodable:
                return None

        return tests.narrow(rows, find)

    def _leaf_reader(self, num_columns: int) -> LeafReader | None:
        """What reads by kernels; None as long as Numba is not worth loading for it."""
        if self._reader is None and not NUMPY.spend(_COLUMN_CHECKS * num_columns):
            from zonebloom.parquet.leaf_reader import LeafReader

            self._reader = LeafReader(self._file)
        return self._reader

    def _leaves_of(self, row_group: int, paths: tuple[ColumnPath, ...]) -> _Leaves:
        """Those of some columns that kernels decode as the dataset has them."""
        from zonebloom.parquet.leaf_reader import PageTable

        # Of one file, which one dataset reads.
        kept = self._pages.page_tables
        key = row_group, paths
        # Threads share them: what is kept now may be cleared by another.
        leaves = kept.get(key)
        if leaves is None:
            if len(kept) >= _MOST_TABLES:
                kept.clear()
            chunks = {path: self._leaf_chunk(row_group, path) for path in paths}
            known = {path: chunk for path, chunk in chunks.items() if not isinstance(chunk, str)}
            reasons = {path[0]: why for path, why in chunks.items() if isinstance(why, str)}
            table = PageTable(list(known.values())) if known else None
            kept[key] = leaves = _Leaves(tuple(known), table, reasons)
        return leaves

    def _leaf_chunk(self, row_group: int, path: ColumnPath) -> LeafChunk | str:
        """The chunk of a column that kernels decode as what the dataset has it as, or why not."""
        pages = self._pages
        found = None if path[0] in self._constants else leaf_at(path, pages.schema, self._schema)
        if found is None:
            return "its type"
        number, leaf = found
        chunk, located = (
            pages.row_groups[row_group].chunks[number],
            pages.locations(row_group, number),
        )
        if located is None:
            return "page locations are not known"
        return LeafChunk(leaf, chunk, located) if chunk.codec in CODECS else "its codec"

    def read(self, row_group: int, names: Sequence[str], rows: RowRanges) -> pa.Table:
        """Some columns at some rows of a row group, with the dataset's types."""
        pages = self._pages
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        reader, reasons = self._leaf_reader(len(names)), {}
        if reader is not None and rows:
            leaves = self._leaves_of(row_group, tuple((name,) for name in names))
            reasons = leaves.reasons
            if leaves.table is not None:
                arrays = zip(leaves.paths, reader.take(leaves.table, rows), strict=True)
                columns.update((path[0], array) for path, array in arrays if array is not None)
        stored = [
            self._fields[name]
            for name in names
            if name not in columns and name in self._fields and name not in self._constants
        ]
        if stored:
            other = _NOT_LOADED if reader is None else "an encoding of its pages"
            for name in map(pages.schema.names.__getitem__, stored):
                self.pyarrow_columns[name] = reasons.get(name, other)
            by_pyarrow = RowGroupReader(pages, row_group, self._file.read, self._file.coalesce)
            values = by_pyarrow.read(stored, rows)
            for field, why in by_pyarrow.whole.items():
                self.whole_chunks[pages.schema.names[field]] = why
            columns.update({pages.schema.names[field]: column for field, column in values.items()})
        with file_errors(self._file.path):
            return assemble_columns(
                self._schema, names, len(rows), self._constants, columns, self._defaults
            )

    def require_unchanged(self) -> None:
        """Raise `FragmentChanged` if the file was written since it was opened."""
        self._file.require_unchanged()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

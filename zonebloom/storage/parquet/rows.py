"""Rows of one Parquet fragment, as the dataset's schema names them, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.predicates.ast import ColumnPath, Equals, IsIn, IsNull
from zonebloom.ranges import RowRanges
from zonebloom.sbbf.numpy_budget import NUMPY
from zonebloom.storage.files import reading
from zonebloom.storage.parquet.footer import read_footer
from zonebloom.storage.parquet.layout import FilePages
from zonebloom.storage.parquet.leaf_type import (
    CODECS,
    LeafChunk,
    Undecodable,
    fields_by_name,
    leaf_at,
)
from zonebloom.storage.parquet.narrow import KeyTests
from zonebloom.storage.parquet.pages import RowGroupReader
from zonebloom.storage.random_access import FragmentFile
from zonebloom.storage.source import dataset_columns, groups_with

if TYPE_CHECKING:
    from zonebloom.storage.parquet.leaf_reader import LeafReader, PageTable

# Numba loads in about the time in which pyarrow reads some rows of a column a thousand times.
_COLUMN_CHECKS = 1024
# Page tables that are kept of a file.
_MOST_TABLES = 1024


class ParquetRows:
    """Reads some rows of a fragment.

    ``whole`` says which columns' chunks it read whole, and why, ``by_pyarrow`` which columns it
    left to pyarrow.
    """

    def __init__(
        self,
        file: FragmentFile,
        pages: FilePages | None,
        schema: pa.Schema,
        constants: Mapping[str, object],
    ):
        self._file = file
        self._pages = pages or read_footer(file.num_bytes, file.read)
        self._leaves: LeafReader | None = None
        self._schema = schema
        self._constants = constants
        self.whole: dict[str, str] = {}
        self.by_pyarrow: dict[str, str] = {}
        self._fields = fields_by_name(self._pages.schema)
        if len(self._fields) < len(self._pages.schema.names):
            raise FragmentUnreadable("it has several columns of one name")

    def row_groups(self, rows: RowRanges) -> Iterator[tuple[int, int, RowRanges]]:
        """The row groups with a wanted row: number, first row, and the rows counted from it."""
        return groups_with(rows, (group.num_rows for group in self._pages.row_groups))

    def narrowed(self, row_group: int, tests: KeyTests, rows: RowRanges) -> tuple[RowRanges, bool]:
        """Those rows of a row group that tests leave, and whether the predicate is true for all."""
        reader = self._leaf_reader(1)
        if reader is None:
            return rows, False

        def find(node: Equals | IsIn | IsNull, among: RowRanges) -> tuple[np.ndarray, bool] | None:
            _, table = self._page_table(row_group, (node.column,))
            if table is None:
                return None
            leaf = table.columns[0].leaf
            keys = tests.keys(node, leaf)
            if keys is None:
                return None
            nulls = isinstance(node, IsNull) or (isinstance(node, IsIn) and node.null_matches)
            # Engines do not agree on whether both zeros are one.
            is_exact = not pa.types.is_floating(leaf.arrow_type)
            try:
                return reader.find(table, keys, nulls, among), is_exact
            except Undecodable:
                return None

        return tests.narrow(rows, find)

    def _leaf_reader(self, num_columns: int) -> LeafReader | None:
        """What reads by kernels; None as long as Numba is not worth loading for it."""
        if self._leaves is None and not NUMPY.spend(_COLUMN_CHECKS * num_columns):
            from zonebloom.storage.parquet.leaf_reader import LeafReader

            self._leaves = LeafReader(self._file)
        return self._leaves

    def _page_table(
        self, row_group: int, paths: tuple[ColumnPath, ...]
    ) -> tuple[tuple[ColumnPath, ...], PageTable | None]:
        """Those of some columns that kernels decode as the dataset has them, and their pages."""
        from zonebloom.storage.parquet.leaf_reader import PageTable

        # Of one file, which one dataset reads.
        kept = self._pages.derived
        key = row_group, paths
        if key not in kept:
            if len(kept) >= _MOST_TABLES:
                kept.clear()
            chunks = {path: self._leaf_chunk(row_group, path) for path in paths}
            known = {path: chunk for path, chunk in chunks.items() if chunk is not None}
            kept[key] = tuple(known), PageTable(list(known.values())) if known else None
        return kept[key]

    def _leaf_chunk(self, row_group: int, path: ColumnPath) -> LeafChunk | None:
        """The chunk of a column that kernels decode as what the dataset has it as."""
        pages = self._pages
        found = None if path[0] in self._constants else leaf_at(path, pages.schema, self._schema)
        if found is None:
            return None
        number, leaf = found
        chunk, located = pages.row_groups[row_group].chunks[number], pages.pages(row_group, number)
        if located is None or chunk.codec not in CODECS:
            return None
        return LeafChunk(leaf, chunk, located)

    def read(self, row_group: int, names: Sequence[str], rows: RowRanges) -> pa.Table:
        """Some columns at some rows of a row group, with the dataset's types."""
        pages = self._pages
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        leaves = self._leaf_reader(len(names))
        if leaves is not None and rows:
            known, table = self._page_table(row_group, tuple((name,) for name in names))
            if table is not None:
                arrays = zip(known, leaves.take(table, rows.rows()), strict=True)
                columns.update((path[0], array) for path, array in arrays if array is not None)
        stored = [
            self._fields[name]
            for name in names
            if name not in columns and name in self._fields and name not in self._constants
        ]
        if stored:
            self.by_pyarrow.update(self._left_to_pyarrow(row_group, field) for field in stored)
            reader = RowGroupReader(pages, row_group, self._file.read, self._file.coalesce)
            values = reader.read(stored, rows)
            for field, why in reader.whole.items():
                self.whole[pages.schema.names[field]] = why
            columns.update({pages.schema.names[field]: column for field, column in values.items()})
        with reading(self._file.path):
            return dataset_columns(self._schema, names, len(rows), self._constants, columns)

    def _left_to_pyarrow(self, row_group: int, field: int) -> tuple[str, str]:
        """A column that kernels do not decode, and why."""
        pages, name = self._pages, self._pages.schema.names[field]
        number = pages.schema.field_leaves[field][0]
        if self._leaves is None:
            return name, "kernels are not loaded for so few rows"
        if leaf_at((name,), pages.schema, self._schema) is None:
            return name, "its type"
        if pages.pages(row_group, number) is None:
            return name, "page locations are not known"
        is_known = pages.row_groups[row_group].chunks[number].codec in CODECS
        return name, "an encoding of its pages" if is_known else "its codec"

    def close(self) -> None:
        """Close the file."""
        self._file.close()

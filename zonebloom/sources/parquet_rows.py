"""Read some rows of a Parquet fragment page by page, with the dataset's names and types.

The first of these that can reads a column:

    PageTable         finds the rows of keys, or takes the values of flat columns at given rows
    FieldTable        takes lists, maps and structs, and flat columns without page locations
    WholeRowGroups    has PyArrow decode row groups, up to the last row that is needed

Kernels do the work of the first two. Reads of few rows do not load them, and leave all columns to
the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from zonebloom.base.memory_cache import MEMORY_CACHE
from zonebloom.base.row_ranges import RowRanges, ranges_of_rows
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.field_names import pages_with_names
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.footer import read_footer
from zonebloom.parquet.key_tests import KeyTests
from zonebloom.parquet.leaf_type import CODECS, LeafChunk, Undecodable, leaf_at
from zonebloom.parquet.whole_row_groups import WholeRowGroups
from zonebloom.predicates.ast import And, ColumnPath, Constant, Equals, IsIn, IsNull, Or, Predicate
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.sources.source import assemble_columns, groups_with_rows
from zonebloom.storage.file_view import FileView
from zonebloom.storage.files import FILE_ERRORS, unreadable
from zonebloom.storage.random_access import FragmentFile

if TYPE_CHECKING:
    from zonebloom.parquet.encryption_keys import ParquetKeys
    from zonebloom.parquet.leaf_reader import PageTable
    from zonebloom.parquet.nested_reader import FieldTable

# Opening a column for pyarrow costs as much as this many block checks, the unit of work of
# `KERNELS`. Reading this many rows of it costs as much as one check.
_COLUMN_CHECKS, _ROWS_PER_CHECK = 1024, 64
# About the bytes of the Python objects of a cached item that holds no pages.
_ITEM_BYTES = 1000
# The most bytes of a file that are read before it is known whether they are needed. Reading them
# takes about as long as one more round trip.
_MAX_READ_AHEAD = 4 << 20

_NOT_LOADED_REASON = "kernels are not loaded for so few rows"


class _DecodableColumns(NamedTuple):
    """The columns that kernels for flat columns decode. The table is None if there are none."""

    names: tuple[str, ...]
    table: PageTable | None

    @property
    def num_bytes(self) -> int:
        return _ITEM_BYTES + (0 if self.table is None else self.table.num_bytes)


class _DecodableFields(NamedTuple):
    """The nested fields that kernels decode, as a table, and why they cannot decode others."""

    reasons: dict[str, str]
    table: FieldTable | None

    @property
    def num_bytes(self) -> int:
        return _ITEM_BYTES + (0 if self.table is None else self.table.num_bytes)


# The rows at which the values of a top-level column are known, and these values, by name.
KnownValues: TypeAlias = dict[str, tuple[RowRanges, pa.Array | pa.ChunkedArray]]
_NOTHING: KnownValues = {}


class ParquetRows:
    """Reads some rows of a Parquet file.

    If the caller gives page maps, they already have the table's names. `whole_chunks` maps each
    column whose chunks were read whole to the reason, and `pyarrow_columns` maps each column that
    pyarrow decoded from whole row groups to the reason.
    """

    def __init__(
        self,
        file: FragmentFile,
        pages: FilePages | None,
        schema: pa.Schema,
        constants: Mapping[str, object],
        view: FileView | None = None,
        keys: ParquetKeys | None = None,
    ):
        self._file = file
        self._defaults = {} if view is None else view.defaults
        names = None if view is None else view.names
        if pages is None:
            pages = pages_with_names(read_footer(file.num_bytes, file.read), names)
        self._pages = pages
        self._whole_row_groups_of = partial(WholeRowGroups, file, names, keys)
        # Kernels are loaded late, because loading takes longer than a few reads without them.
        self._has_kernels = False
        self._schema = schema
        self._constants = constants
        self.whole_chunks: dict[str, str] = {}
        self.pyarrow_columns: dict[str, str] = {}
        self._fields = pages.schema.fields_by_name
        if len(self._fields) < len(pages.schema.names):
            raise FragmentUnreadable("it has several columns of one name")

    @cached_property
    def _whole_row_groups(self) -> WholeRowGroups:
        return self._whole_row_groups_of()

    def row_groups(self, rows: RowRanges) -> Iterator[tuple[int, int, RowRanges]]:
        """Yield the row groups with requested rows: number, first row, and rows from there."""
        return groups_with_rows(rows, self._pages.group_rows)

    def read_ahead(self, names: Sequence[str], rows: RowRanges) -> None:
        """Read the bytes that `narrow_rows` and `read` need for these rows in one round trip.

        Do nothing for local files. Leave out row groups after `_MAX_READ_AHEAD` bytes, and those
        whose pages are not known.
        """
        if not self._file.has_round_trips:
            return
        spans: list[tuple[int, int]] = []
        num_bytes = 0
        for row_group, _, inside in self.row_groups(rows):
            group_spans = self._page_spans(row_group, names, inside)
            if group_spans is None:
                continue
            num_bytes += sum(stop - start for start, stop in group_spans)
            if num_bytes > _MAX_READ_AHEAD:
                break
            spans += group_spans
        self._file.read_ahead(spans)

    def _page_spans(
        self, row_group: int, names: Sequence[str], rows: RowRanges
    ) -> list[tuple[int, int]] | None:
        """Return the byte ranges of the pages of some rows and of the dictionaries, or None."""
        spans: list[tuple[int, int]] = []
        for name in names:
            is_stored = name in self._fields and name not in self._constants
            for leaf in self._pages.schema.field_leaves[self._fields[name]] if is_stored else ():
                pages = self._pages.locations(row_group, leaf)
                if pages is None:
                    return None
                selected = pages.pages_with(rows)
                starts, sizes = pages.starts[selected], pages.sizes[selected]
                spans += zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
                # The dictionary page lies between the chunk's start and its first data page.
                start, stop = self._pages.row_groups[row_group].chunks[leaf].start, pages.starts[0]
                spans += [(start, int(stop))] if start < stop else []
        return spans

    def narrow_rows(
        self,
        row_group: int,
        node: Predicate,
        tests: KeyTests,
        rows: RowRanges,
        known: KnownValues,
    ) -> tuple[RowRanges, bool]:
        """Return the rows for which a predicate may be true, and whether it is true for all.

        ``tests`` has its keys. The values of the columns that are searched are added to ``known``.
        """
        if isinstance(node, Equals | IsIn | IsNull):
            return self._find_rows(row_group, node, tests, rows, known)
        match node:
            case Constant(value):
                return (rows if value else RowRanges()), True
            case And(terms):
                is_exact = True
                for term in terms:
                    if not rows:
                        break
                    rows, is_true = self.narrow_rows(row_group, term, tests, rows, known)
                    is_exact &= is_true
                return rows, is_exact
            case Or(terms):
                parts = [self.narrow_rows(row_group, term, tests, rows, known) for term in terms]
                united = reduce(or_, [part for part, _ in parts], RowRanges())
                return united, all(is_true for _, is_true in parts)
        return rows, False

    def _find_rows(
        self,
        row_group: int,
        node: Equals | IsIn | IsNull,
        tests: KeyTests,
        rows: RowRanges,
        known: KnownValues,
    ) -> tuple[RowRanges, bool]:
        """Return the rows that hold a key, or all rows if their column cannot be searched."""
        if not (self._has_kernels or self._load_kernels(row_group, 1)):
            return rows, False
        table = self._decodable_columns(row_group, (node.column,)).table
        if table is None:
            return rows, False
        leaf = table.columns[0].leaf
        keys = tests.keys(node, leaf)
        if keys is None:
            return rows, False
        nulls = isinstance(node, IsNull) or (isinstance(node, IsIn) and node.null_matches)
        try:
            numbers, values = table.find_rows(self._file, keys, nulls, rows)
        except Undecodable:
            return rows, False
        matches = ranges_of_rows(numbers)
        if values is not None and len(node.column) == 1:
            known[node.column[0]] = matches, values
        # Engines disagree on whether 0.0 equals -0.0, so floats need a recheck.
        return matches, keys.is_exact and not pa.types.is_floating(leaf.arrow_type)

    def _load_kernels(self, row_group: int, num_columns: int) -> bool:
        """Return whether kernels should read columns."""
        checks = _COLUMN_CHECKS + self._pages.group_rows[row_group] // _ROWS_PER_CHECK
        self._has_kernels = KERNELS.are_loaded or KERNELS.are_worth(checks * num_columns)
        return self._has_kernels

    def _decodable_columns(
        self, row_group: int, columns: tuple[str | ColumnPath, ...]
    ) -> _DecodableColumns:
        """Return the columns that kernels decode to the dataset's types, from a cache.

        A column is a name of a top-level column, or the path of a leaf.
        """
        # The owner is the page map of one file in one dataset.
        cache_key = self._pages.cache_owner.token, row_group, columns
        decodable = MEMORY_CACHE.get(cache_key, _DecodableColumns)
        if decodable is None:
            from zonebloom.parquet.leaf_reader import PageTable

            chunks: dict[str, LeafChunk] = {}
            for column in columns:
                path = (column,) if isinstance(column, str) else column
                chunk = self._leaf_chunk(row_group, path)
                if chunk is not None:
                    chunks[path[0]] = chunk
            table = PageTable(list(chunks.values())) if chunks else None
            decodable = _DecodableColumns(tuple(chunks), table)
            MEMORY_CACHE.put(cache_key, decodable)
        return decodable

    def _leaf_chunk(self, row_group: int, path: ColumnPath) -> LeafChunk | None:
        """Return a column's chunk if it is a flat column of the dataset's type, or None."""
        pages = self._pages
        position = None if path[0] in self._constants else leaf_at(path, pages.schema, self._schema)
        if position is None:
            return None
        number, leaf = position
        chunk = pages.row_groups[row_group].chunks[number]
        chunk_pages = pages.locations(row_group, number)
        if chunk_pages is None or chunk.codec not in CODECS:
            return None
        return LeafChunk(leaf, chunk, chunk_pages)

    def read(
        self,
        row_group: int,
        names: Sequence[str],
        rows: RowRanges,
        known: KnownValues = _NOTHING,
        *,
        is_lookup: bool = False,
    ) -> pa.Table:
        """Return columns at some rows of a row group, with the dataset's types.

        Values in ``known`` are not read again if they are those of the same rows. ``is_lookup``
        says whether the rows are those of few keys.
        """
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        for name in names:
            known_rows, values = known.get(name, (None, None))
            if values is not None and (known_rows is rows or known_rows == rows):
                columns[name] = values
        missing = tuple([name for name in names if name not in columns])
        if missing and rows:
            if self._has_kernels or self._load_kernels(row_group, len(missing)):
                decodable = self._decodable_columns(row_group, missing)
                if decodable.table is not None:
                    arrays = decodable.table.take(self._file, rows, is_lookup=is_lookup)
                    for name, array in zip(decodable.names, arrays, strict=True):
                        if array is not None:
                            columns[name] = array
            if len(columns) < len(names):
                columns |= self._read_fields(row_group, missing, rows, columns)
        try:
            return assemble_columns(
                self._schema, names, len(rows), self._constants, columns, self._defaults
            )
        except FILE_ERRORS as error:
            raise unreadable(self._file.path, error) from None

    def _read_fields(
        self,
        row_group: int,
        names: tuple[str, ...],
        rows: RowRanges,
        decoded: Mapping[str, object],
    ) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Return those columns that are stored in the file and not decoded yet.

        These are lists, maps and structs, columns without page locations or of another type than
        the dataset's, and columns that kernels cannot decode.
        """
        fields = {
            name: self._fields[name]
            for name in names
            if name not in decoded and name in self._fields and name not in self._constants
        }
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        reasons = dict.fromkeys(fields, _NOT_LOADED_REASON)
        if self._has_kernels and fields:
            columns, reasons = self._read_by_kernels(row_group, fields, rows)
        rest = [name for name in fields if name not in columns]
        if rest:
            self.pyarrow_columns |= {name: reasons[name] for name in rest}
            columns |= self._whole_row_groups.read(row_group, rest, rows)
        return columns

    def _read_by_kernels(
        self, row_group: int, fields: Mapping[str, int], rows: RowRanges
    ) -> tuple[dict[str, pa.Array | pa.ChunkedArray], dict[str, str]]:
        """Return the fields that kernels decode, and for each other one the reason for pyarrow."""
        # The owner is the page map of one file in one dataset.
        cache_key = self._pages.cache_owner.token, row_group, *fields
        decodable = MEMORY_CACHE.get(cache_key, _DecodableFields)
        if decodable is None:
            decodable = self._decodable_fields(row_group, fields)
            MEMORY_CACHE.put(cache_key, decodable)
        if decodable.table is None:
            return {}, decodable.reasons
        columns = decodable.table.take(self._file, rows)
        for name, reason in decodable.table.whole_chunks.items():
            if name in columns:
                self.whole_chunks[name] = reason
        return {**columns}, decodable.reasons

    def _decodable_fields(self, row_group: int, fields: Mapping[str, int]) -> _DecodableFields:
        from zonebloom.parquet.nested_reader import FieldTable
        from zonebloom.parquet.nested_schema import field_tree

        chunks = self._pages.row_groups[row_group].chunks
        trees, reasons = {}, {}
        for name, field in fields.items():
            tree = field_tree(self._pages.schema, field)
            if tree is None:
                reasons[name] = "its type"
            elif any(chunks[leaf].codec not in CODECS for leaf in tree.leaves):
                reasons[name] = "its codec"
            else:
                reasons[name] = "an encoding of its pages"
                trees[name] = tree
        table = FieldTable(self._pages, row_group, trees) if trees else None
        return _DecodableFields(reasons, table)

    def require_unchanged(self) -> None:
        """Raise `FragmentChanged` if the file was written since it was opened."""
        self._file.require_unchanged()

    def close(self) -> None:
        self._file.close()

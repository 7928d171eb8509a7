"""What is known of where a file's bytes lie: schema, row groups, column chunks, pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from zonebloom.base.row_ranges import RowRanges
from zonebloom.storage.file_view import FieldNames

# Reads some (start, stop) ranges of a file: all of their bytes, or it raises.
ReadRanges: TypeAlias = Callable[[Sequence[tuple[int, int]]], list[bytes]]


@dataclass(frozen=True, slots=True)
class SchemaLeaf:
    """A leaf column of the schema, in the order of column chunks."""

    path: tuple[str, ...]
    field: int  # which top-level field it is under
    physical_type: int  # as in parquet.thrift
    is_repeated: bool  # whether a row can hold more or fewer than one value


# Compared by identity: what is cached by a schema must not hash all of a wide one.
@dataclass(frozen=True, slots=True, eq=False)
class FileSchema:
    """The schema of a file, its parts as the bytes they are written as."""

    elements: tuple[bytes, ...]  # encoded SchemaElements, depth first, the root first
    fields: tuple[tuple[int, int], ...]  # for each top-level field, the range of its elements
    names: tuple[str, ...]  # of the top-level fields
    leaves: tuple[SchemaLeaf, ...]
    field_leaves: tuple[range, ...]  # for each top-level field, the numbers of its leaves
    arrow_schema: bytes | None  # the "ARROW:schema" entry of the metadata
    version: int
    created_by: bytes | None


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    physical_type: int
    codec: int
    encodings: tuple[int, ...]
    num_values: int
    start: int  # of its first page, the dictionary or a data page
    stop: int
    data_start: int  # of its first data page, as the writer says
    index_start: int  # of its OffsetIndex
    index_bytes: int  # 0 when it has none


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one row group, and its chunks in the order of the leaves."""

    first_row: int
    num_rows: int
    chunks: Sequence[ColumnChunk]


@dataclass(frozen=True, slots=True)
class PageLocations:
    """The data pages of a chunk, headers included; ``first_rows`` counts from the row group's
    first, and ends with its number of rows."""

    starts: np.ndarray
    sizes: np.ndarray
    first_rows: np.ndarray


class FilePages:
    """The row groups of one file, and the pages of its chunks: what ``locate`` says, once."""

    def __init__(
        self,
        schema: FileSchema,
        row_groups: tuple[RowGroup, ...],
        locate: Callable[[int, int], PageLocations | None] | None = None,
    ):
        self.schema = schema
        self.row_groups = row_groups
        self.num_rows: int = sum(group.num_rows for group in row_groups)
        self._locate = locate
        self._pages: dict[tuple[int, int], PageLocations | None] = {}
        # What a reader makes of them, kept for the next.
        self.page_tables: dict[tuple[int, tuple[tuple[str, ...], ...]], Any] = {}
        # What a table's names for its fields make of them, and those names.
        self.renamed_pages: tuple[FieldNames, FilePages] | None = None

    def locations(self, row_group: int, leaf: int) -> PageLocations | None:
        """The pages of a chunk, None when their locations are not known: it is read whole."""
        key = row_group, leaf
        if key not in self._pages:
            self._pages[key] = self._locate(row_group, leaf) if self._locate else None
        return self._pages[key]

    def with_locate(self, locate: Callable[[int, int], PageLocations | None]) -> FilePages:
        """The same file, and what is known of it, where others are to locate its pages."""
        same = FilePages(self.schema, self.row_groups, locate)
        same._pages, same.page_tables = self._pages, self.page_tables
        return same

    def subset(self, rows: RowRanges, names: frozenset[str] | None) -> FilePages:
        """What reading some rows asks of it, without the rest: small enough to be sent about."""
        groups = []
        part = FilePages(self.schema, ())
        for number, group in enumerate(self.row_groups):
            if not rows.window(group.first_row, group.first_row + group.num_rows):
                groups.append(replace(group, chunks=()))
                continue
            groups.append(group)
            for leaf, described in enumerate(self.schema.leaves):
                wanted = names is None or self.schema.names[described.field] in names
                if wanted and (names is not None or (number, leaf) in self._pages):
                    part._pages[number, leaf] = self.locations(number, leaf)
        part.row_groups, part.num_rows = tuple(groups), self.num_rows
        return part

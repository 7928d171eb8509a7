"""Describe where the bytes of a Parquet file lie: schema, row groups, column chunks, and pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from zonebloom.base.memory_cache import CacheOwner
from zonebloom.base.row_ranges import RowRanges
from zonebloom.storage.file_view import FieldNames

PARQUET_MAGIC = b"PAR1"

# A function that returns all bytes of the given (start, stop) ranges of a file, or raises.
ReadRanges: TypeAlias = Callable[[Sequence[tuple[int, int]]], list[bytes]]


class SchemaLeaf(NamedTuple):
    """A leaf column of the schema. Leaves have the order of column chunks."""

    path: tuple[str, ...]
    field: int  # the number of its top-level field
    physical_type: int  # as in parquet.thrift
    is_repeated: bool  # whether a row can hold more or fewer than one value


# Schemas are compared by identity, because caches use them as keys and hashing a wide one is slow.
@dataclass(frozen=True, eq=False)
class FileSchema:
    """The schema of a file, with parts as encoded bytes."""

    elements: tuple[bytes, ...]  # encoded SchemaElements, depth first, the root first
    fields: tuple[tuple[int, int], ...]  # for each top-level field, the range of its elements
    names: tuple[str, ...]  # of the top-level fields
    leaves: tuple[SchemaLeaf, ...]
    field_leaves: tuple[range, ...]  # for each top-level field, the numbers of its leaves
    arrow_schema: bytes | None  # the "ARROW:schema" entry of the metadata
    version: int
    created_by: bytes | None

    @cached_property
    def fields_by_name(self) -> dict[str, int]:
        """The numbers of the top-level fields. Of several with one name, the last counts."""
        return {name: field for field, name in enumerate(self.names)}

    @cached_property
    def leaves_by_path(self) -> dict[tuple[str, ...], int]:
        return {leaf.path: number for number, leaf in enumerate(self.leaves)}


class ColumnChunk(NamedTuple):
    """The place and encoding of the values of one leaf in one row group."""

    physical_type: int
    codec: int
    encodings: tuple[int, ...]
    num_values: int
    start: int  # start of its first page, which is the dictionary or a data page
    stop: int
    data_start: int  # start of its first data page, according to the writer
    index_start: int  # start of its OffsetIndex
    index_bytes: int  # size of its OffsetIndex, 0 if it has none


class RowGroup(NamedTuple):
    """The rows of one row group, and its chunks in the order of the leaves."""

    first_row: int
    num_rows: int
    chunks: Sequence[ColumnChunk]


@dataclass(frozen=True, slots=True)
class PageLocations:
    """The places of the data pages of a chunk, including their headers.

    ``first_rows`` counts from the first row of the row group, and ends with its number of rows.
    """

    starts: np.ndarray
    sizes: np.ndarray
    first_rows: np.ndarray

    def pages_with(self, rows: RowRanges) -> np.ndarray:
        """Return the numbers of the pages that hold some of the rows, ascending."""
        firsts, stops = self.first_rows[:-1], self.first_rows[1:]
        # A page overlaps a range that begins before its end and ends after its start.
        num_begun = np.searchsorted(rows.starts, stops, side="left")
        num_ended = np.searchsorted(rows.stops, firsts, side="right")
        # pyarrow sometimes writes pages without rows.
        return np.flatnonzero((num_begun > num_ended) & (stops > firsts))


class FilePages:
    """The row groups of one file, and the page locations of its chunks.

    ``locate`` returns the page locations of a row group and leaf. Its results are cached.
    """

    def __init__(
        self,
        schema: FileSchema,
        row_groups: tuple[RowGroup, ...],
        locate: Callable[[int, int], PageLocations | None] | None = None,
    ):
        self.schema = schema
        self.row_groups = row_groups
        self._locate = locate
        self._pages: dict[tuple[int, int], PageLocations | None] = {}
        # The number of rows of each row group.
        self.group_rows = [group.num_rows for group in row_groups]
        self.num_rows: int = sum(self.group_rows)
        # The owner of what `ParquetRows` prepares to read these pages.
        self.cache_owner = CacheOwner()
        # A table's names for the fields, and these pages with those names.
        self.renamed_pages: tuple[FieldNames, FilePages] | None = None

    def locations(self, row_group: int, leaf: int) -> PageLocations | None:
        """Return the page locations of a chunk, or None if unknown. It is then read whole."""
        key = row_group, leaf
        if key not in self._pages:
            self._pages[key] = self._locate(row_group, leaf) if self._locate else None
        return self._pages[key]

    def with_locate(self, locate: Callable[[int, int], PageLocations | None]) -> FilePages:
        """Return a copy with another function to locate pages, which shares the caches."""
        copy = FilePages(self.schema, self.row_groups, locate)
        copy._pages, copy.cache_owner = self._pages, self.cache_owner
        return copy

    def subset(self, rows: RowRanges, names: frozenset[str] | None) -> FilePages:
        """Return only what reading some rows needs, which is small enough to be pickled.

        Include the locations of the named columns, or if ``names`` is None those known already.
        """
        groups: list[RowGroup] = []
        pages: dict[tuple[int, int], PageLocations | None] = {}
        for number, group in enumerate(self.row_groups):
            if not rows.window(group.first_row, group.first_row + group.num_rows):
                groups.append(group._replace(chunks=()))
                continue
            groups.append(group)
            for leaf, schema_leaf in enumerate(self.schema.leaves):
                is_wanted = names is None or self.schema.names[schema_leaf.field] in names
                if is_wanted and (names is not None or (number, leaf) in self._pages):
                    pages[number, leaf] = self.locations(number, leaf)
        subset = FilePages(self.schema, tuple(groups))
        subset._pages = pages
        return subset

"""Describe the indices of a dataset: parameters, coverage of the current files, statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zonebloom.base.display import Displayed, DisplayedDict, DisplayedList
from zonebloom.base.text import TextTable, bytes_text
from zonebloom.catalog.coverage import Coverage, PresentFragment
from zonebloom.catalog.model import DEFAULT_KIND, IndexEntry
from zonebloom.index.kinds import kind_of
from zonebloom.index.row_keys.rules import indexed_text
from zonebloom.index.table import IndexTable
from zonebloom.sources.fragment_filters import FragmentFilters

_DESCRIBED_FIELDS = (
    *("name", "index_type", "column", "number_of_items", "probability"),
    *("num_segments", "num_zones"),
)


@dataclass(frozen=True, slots=True)
class IndexDescription(Displayed):
    """One index, as `Dataset.describe_indices` lists it.

    Attributes
    ----------
    name, index_type, column : str
    number_of_items : int
        Rows per zone.
    probability : float, optional
        As `Dataset.create_scalar_index` takes it. None for kinds of indices that do not have it.
    num_segments, num_zones : int
        Those in the index files, also of fragments that are gone.
    num_bytes : int
        Size of the index files.
    num_rows_indexed, num_fragments_indexed : int
        Rows and fragments that the index covers and that have not changed since.
    num_fragments : int
        Fragments of the dataset.
    created_at : str
        UTC, in ISO 8601.
    """

    name: str
    index_type: str
    column: str
    number_of_items: int
    probability: float | None
    num_segments: int
    num_zones: int
    num_bytes: int
    num_rows_indexed: int
    num_fragments_indexed: int
    num_fragments: int
    created_at: str

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.index_type} on {self.column}, {self.num_zones:,} zones of "
            f"{self.number_of_items:,} rows, {bytes_text(self.num_bytes)}, "
            f"{self.num_fragments_indexed:,} of {self.num_fragments:,} fragments covered"
        )


NO_INDEX = "no index; make one with create_scalar_index(column)"


def index_table(indices: Sequence[IndexDescription]) -> TextTable:
    """Return a table of indices, with their kinds if any is not of the default kind."""
    headers = ["index", "column", "zones", "rows", "files covered", "size"]
    rows: list[list[object]] = [
        [
            index.name,
            index.column,
            index.num_zones,
            index.num_rows_indexed,
            f"{index.num_fragments_indexed:,} of {index.num_fragments:,}",
            bytes_text(index.num_bytes),
        ]
        for index in indices
    ]
    if any(index.index_type != DEFAULT_KIND for index in indices):
        headers.insert(1, "kind")
        for row, index in zip(rows, indices, strict=True):
            row.insert(1, index.index_type)
    return headers, rows


@dataclass(frozen=True, slots=True)
class EmbeddedDescription:
    """The Bloom filters of one column that Parquet writers embedded in the data files.

    Attributes
    ----------
    column : str
    num_files, num_row_groups : int
        Files and row groups that have such filters.
    num_bytes : int
        Size of the filters' blocks.
    """

    column: str
    num_files: int
    num_row_groups: int
    num_bytes: int


def embedded_table(columns: Sequence[EmbeddedDescription]) -> TextTable:
    return ("filters in files", "files", "row groups", "size"), [
        (column.column, column.num_files, column.num_row_groups, bytes_text(column.num_bytes))
        for column in columns
    ]


def describe_embedded(
    filters: FragmentFilters, files: Iterable[PresentFragment]
) -> DisplayedList[EmbeddedDescription]:
    """Return a description of the Bloom filters inside Parquet files, by column."""
    totals: dict[str, list[int]] = {}
    for file in files:
        for column in filters.columns(file.fragment, file.identity):
            total = totals.setdefault(".".join(column.path), [0, 0, 0])
            total[0] += 1
            total[1] += column.row_groups
            total[2] += column.num_bytes
    descriptions = (EmbeddedDescription(column, *total) for column, total in totals.items())
    return DisplayedList(descriptions, embedded_table, "no filter in any file")


def describe(entries: Iterable[IndexEntry], coverage: Coverage) -> DisplayedList[IndexDescription]:
    row_counts = {
        fragment.fragment_id: fragment.num_rows or 0
        for fragment in coverage.fragments
        if fragment.is_known
    }
    descriptions = []
    for entry in entries:
        covered_ids = [
            i for segment in entry.segments for i in segment.fragment_ids if i in row_counts
        ]
        descriptions.append(
            IndexDescription(
                name=entry.name,
                index_type=entry.kind,
                column=indexed_text(entry),
                number_of_items=entry.number_of_items,
                probability=entry.parameters.get("probability"),
                num_segments=len(entry.segments),
                num_zones=sum(segment.num_zones for segment in entry.segments),
                num_bytes=entry.num_bytes,
                num_rows_indexed=sum(row_counts[i] for i in covered_ids),
                num_fragments_indexed=len(covered_ids),
                num_fragments=len(coverage.fragments),
                created_at=entry.created_at,
            )
        )
    return DisplayedList(descriptions, index_table, NO_INDEX)


def index_statistics(
    description: IndexDescription, entry: IndexEntry, tables: Sequence[IndexTable]
) -> DisplayedDict:
    """Return statistics of an index, with those that only its kind has."""
    of_kind = kind_of(entry).statistics(entry.parameters, tables)
    return DisplayedDict(
        **{name: getattr(description, name) for name in _DESCRIBED_FIELDS},
        num_zones_with_null=sum(table.zones_with_null().size for table in tables),
        num_bytes=description.num_bytes,
        global_filter_bytes=entry.global_filter.num_bytes if entry.global_filter else 0,
        num_indexed_rows=description.num_rows_indexed,
        num_indexed_fragments=description.num_fragments_indexed,
        num_unindexed_fragments=description.num_fragments - description.num_fragments_indexed,
        **of_kind,
        created_at=description.created_at,
    )

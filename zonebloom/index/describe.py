"""What the indices of a dataset are, and what they cover of its files as they are now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zonebloom.catalog.coverage import Coverage
from zonebloom.catalog.model import IndexEntry
from zonebloom.storage.parquet.bloom import EmbeddedColumn
from zonebloom.text import bytes_text

INDEX_TYPE = "BLOOMFILTER"


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """One index, as `Dataset.describe_indices` lists it.

    Attributes
    ----------
    name, index_type, column : str
    number_of_items, probability, sizing
        As it was built.
    layout : {"table", "sliced", "mixed"}
        How the bits of its filters lie.
    num_segments, num_zones, num_bytes : int
    num_rows_indexed : int
        Rows of fragments it covers as they are now.
    num_fragments_indexed, num_fragments : int
        Fragments it covers as they are now, and all.
    created_at : str
        UTC.
    """

    name: str
    index_type: str
    column: str
    number_of_items: int
    probability: float
    sizing: str
    layout: str
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


@dataclass(frozen=True, slots=True)
class EmbeddedDescription:
    """Filters of one column inside Parquet files, as `Dataset.embedded_filters` lists them.

    Attributes
    ----------
    column : str
    num_files, num_row_groups : int
        That have a filter of the column.
    num_bytes : int
    """

    column: str
    num_files: int
    num_row_groups: int
    num_bytes: int


def describe_embedded(files: Iterable[Iterable[EmbeddedColumn]]) -> list[EmbeddedDescription]:
    """Add up the filters of several files."""
    totals: dict[str, list[int]] = {}
    for columns in files:
        for each in columns:
            total = totals.setdefault(".".join(each.path), [0, 0, 0])
            total[0] += 1
            total[1] += each.row_groups
            total[2] += each.num_bytes
    return [EmbeddedDescription(column, *total) for column, total in totals.items()]


def describe(entries: Iterable[IndexEntry], coverage: Coverage) -> list[IndexDescription]:
    """Describe indices against the files as they are."""
    rows = {each.fragment_id: each.num_rows or 0 for each in coverage.present if each.is_known}
    found = []
    for entry in entries:
        covered = [i for segment in entry.segments for i in segment.fragment_ids if i in rows]
        found.append(
            IndexDescription(
                entry.name,
                INDEX_TYPE,
                ".".join(entry.column),
                entry.parameters.number_of_items,
                entry.parameters.probability,
                entry.parameters.sizing,
                entry.layout,
                len(entry.segments),
                sum(segment.num_zones for segment in entry.segments),
                entry.num_bytes,
                sum(rows[i] for i in covered),
                len(covered),
                len(coverage.present),
                entry.created_at,
            )
        )
    return found

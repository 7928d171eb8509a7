"""Describe the indices of a dataset: parameters, coverage of the current files, filter fill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from zonebloom.base.display import Displayed, DisplayedDict, DisplayedList
from zonebloom.base.text import bytes_text
from zonebloom.catalog.coverage import Coverage
from zonebloom.catalog.model import IndexEntry
from zonebloom.index.table import ZoneTable
from zonebloom.parquet.embedded_filters import EmbeddedColumn
from zonebloom.sbbf.filter import Sbbf

INDEX_TYPE = "BLOOMFILTER"
_AS_DESCRIBED = (
    *("name", "index_type", "column", "layout", "number_of_items", "probability", "sizing"),
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
    probability : float
    sizing : {"log2", "exact"}
        Build parameters, as `Dataset.create_scalar_index` takes them.
    layout : {"table", "sliced"}
    num_segments, num_zones : int
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


INDEX_HEADERS = ("index", "column", "zones", "rows", "files covered", "size")
NO_INDEX = "no index; make one with create_scalar_index(column)"


def index_cells(each: IndexDescription) -> list[object]:
    """Return a description as a table row below `INDEX_HEADERS`."""
    return [
        each.name,
        each.column,
        each.num_zones,
        each.num_rows_indexed,
        f"{each.num_fragments_indexed:,} of {each.num_fragments:,}",
        bytes_text(each.num_bytes),
    ]


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


EMBEDDED_HEADERS = ("filters in files", "files", "row groups", "size")


def embedded_cells(each: EmbeddedDescription) -> list[object]:
    return [each.column, each.num_files, each.num_row_groups, bytes_text(each.num_bytes)]


def describe_embedded(
    files: Iterable[Iterable[EmbeddedColumn]],
) -> DisplayedList[EmbeddedDescription]:
    totals: dict[str, list[int]] = {}
    for columns in files:
        for column in columns:
            total = totals.setdefault(".".join(column.path), [0, 0, 0])
            total[0] += 1
            total[1] += column.row_groups
            total[2] += column.num_bytes
    described = (EmbeddedDescription(column, *total) for column, total in totals.items())
    return DisplayedList(described, EMBEDDED_HEADERS, embedded_cells, "no filter in any file")


def describe(entries: Iterable[IndexEntry], coverage: Coverage) -> DisplayedList[IndexDescription]:
    rows = {
        known.fragment_id: known.num_rows or 0 for known in coverage.fragments if known.is_known
    }
    descriptions = []
    for entry in entries:
        covered = [i for segment in entry.segments for i in segment.fragment_ids if i in rows]
        descriptions.append(
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
                len(coverage.fragments),
                entry.created_at,
            )
        )
    return DisplayedList(descriptions, INDEX_HEADERS, index_cells, NO_INDEX)


def measure_filters(tables: Iterable[ZoneTable]) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of set bits and the estimated false positive rate of each zone's filter."""
    measured = [
        (bloom.fill, bloom.estimated_fpp)
        for table in tables
        for _, zones in table.zones()
        for bloom in map(Sbbf.from_bytes, zones.filters)
    ]
    fill, fpp = np.array(measured, dtype=float).reshape(-1, 2).T
    return fill, fpp


def index_statistics(
    described: IndexDescription, entry: IndexEntry, tables: Sequence[ZoneTable]
) -> DisplayedDict:
    """Return statistics of an index, with the measured fill and false positive rate of its filters.
    """
    fill, fpp = measure_filters(tables)
    fill, fpp = (each if len(each) else np.zeros(1) for each in (fill, fpp))
    return DisplayedDict(
        **{name: getattr(described, name) for name in _AS_DESCRIBED},
        num_zones_with_null=sum(int(table.has_null.sum()) for table in tables),
        num_bytes=described.num_bytes,
        filter_bytes=entry.parameters.filter_bytes,
        global_filter_bytes=entry.global_filter.num_bytes if entry.global_filter else 0,
        num_indexed_rows=described.num_rows_indexed,
        num_indexed_fragments=described.num_fragments_indexed,
        num_unindexed_fragments=described.num_fragments - described.num_fragments_indexed,
        fill_mean=float(fill.mean()),
        fill_max=float(fill.max()),
        estimated_fpp_mean=float(fpp.mean()),
        estimated_fpp_max=float(fpp.max()),
        created_at=described.created_at,
    )

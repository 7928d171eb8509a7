"""The index kind BLOOMFILTER: what the zone Bloom index does for each part of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
from zonebloom.catalog.store import Catalog
from zonebloom.index.base_kind import IndexKind, require_tables
from zonebloom.index.table import IndexTable, WrittenTable
from zonebloom.index.zone_bloom.rows import RowTable, write_row_table
from zonebloom.sbbf.sizing import DEFAULT_ZONE_PROBABILITY, size_for

if TYPE_CHECKING:
    from zonebloom.index.zone_bloom.train import ZoneSegmentWriter


@dataclass(frozen=True, slots=True)
class ZoneParameters:
    """The parameters of the zones of an index and of their filters."""

    # Rows in a zone. Its filter is sized for as many distinct values.
    number_of_items: int = DEFAULT_NUMBER_OF_ITEMS
    probability: float = DEFAULT_ZONE_PROBABILITY
    # If True, the filter of a zone with few distinct values is halved while `probability` allows.
    # The filters of Lance all have one size.
    fold: bool = True

    def __post_init__(self) -> None:
        limit = MAX_ROWS_PER_FRAGMENT
        if isinstance(self.number_of_items, int) and self.number_of_items > limit:
            advice = f"a fragment has at most {limit:,} rows"
            raise arguments.invalid_value(self.number_of_items, "number_of_items", advice)
        arguments.require_bool(self.fold, "fold")
        size_for(self.number_of_items, self.probability)

    @property
    def filter_bytes(self) -> int:
        return size_for(self.number_of_items, self.probability)


class ZoneBloom(IndexKind):
    """The zone Bloom index."""

    name = "BLOOMFILTER"
    file_name = "bloomfilter.arrow"
    # Segments are searched one after another at no extra cost, because they are in memory.
    task_size_factor = 1

    def check_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return self.check_fields(ZoneParameters, parameters)

    def create_writer(
        self,
        catalog: Catalog,
        path: str,
        parameters: Mapping[str, Any],
        num_writers: int,
        column_type: pa.DataType,
    ) -> ZoneSegmentWriter:
        from zonebloom.index.zone_bloom.train import ZoneSegmentWriter

        return ZoneSegmentWriter(catalog, path, ZoneParameters(**parameters))

    def table_of(self, content: pa.Buffer, path: str) -> RowTable:
        return RowTable(content, path)

    def merge(self, catalog: Catalog, path: str, tables: Sequence[IndexTable]) -> WrittenTable:
        return write_row_table(require_row_tables(tables), catalog, path)

    def statistics(
        self, parameters: Mapping[str, Any], tables: Sequence[IndexTable]
    ) -> dict[str, Any]:
        fill, fpp = measure_filters(tables)
        if not fill.size:
            fill = fpp = np.zeros(1)
        return {
            "filter_bytes": ZoneParameters(**parameters).filter_bytes,
            "fill_mean": float(fill.mean()),
            "fill_max": float(fill.max()),
            "estimated_fpp_mean": float(fpp.mean()),
            "estimated_fpp_max": float(fpp.max()),
        }


def require_row_tables(tables: Sequence[IndexTable]) -> list[RowTable]:
    problem = "the index has no Bloom filters; give one of kind BLOOMFILTER"
    return require_tables(tables, RowTable, problem)


def measure_filters(tables: Sequence[IndexTable]) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of set bits and the estimated false positive rate of each zone's filter."""
    from zonebloom.sbbf.filter import Sbbf

    measurements = [
        (bloom.fill, bloom.estimated_fpp)
        for table in require_row_tables(tables)
        for bloom in map(Sbbf.from_bytes, map(table.filter_words, range(len(table))))
    ]
    fill, fpp = np.array(measurements, dtype=float).reshape(-1, 2).T
    return fill, fpp


ZONE_BLOOM = ZoneBloom()

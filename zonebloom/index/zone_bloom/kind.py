"""The index kind BLOOMFILTER: what the zone Bloom index does for each part of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zonebloom.catalog.store import Catalog
from zonebloom.index.base_kind import IndexKind, require_tables
from zonebloom.index.table import IndexTable, WrittenTable
from zonebloom.index.zone_bloom.rows import RowTable, ZoneParameters, write_row_table

if TYPE_CHECKING:
    from zonebloom.index.zone_bloom.train import ZoneSegmentWriter


class ZoneBloom(IndexKind):
    """The zone Bloom index."""

    name = "BLOOMFILTER"
    file_name = "bloomfilter.arrow"
    parameters_class = ZoneParameters
    # Segments are searched one after another at no extra cost, because they are in memory.
    task_size_factor = 1

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

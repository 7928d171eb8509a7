"""The index kind BLOOMFILTER: what the zone Bloom index does for each part of the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zonebloom.base.arguments import short_repr
from zonebloom.catalog.model import Segment
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, InvalidArgument
from zonebloom.index.base_kind import IndexKind
from zonebloom.index.table import IndexTable, WrittenTable
from zonebloom.index.zone_bloom.parameters import ZoneParameters
from zonebloom.index.zone_bloom.rows import RowTable, read_row_table, write_row_table

if TYPE_CHECKING:
    from zonebloom.index.zone_bloom.train import ZoneSegmentWriter


class ZoneBloom(IndexKind):
    """The zone Bloom index."""

    name = "BLOOMFILTER"
    file_name = "bloomfilter.arrow"
    # Segments are searched one after another at no extra cost, because they are in memory.
    task_size_factor = 1

    def check_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        known_names = [field.name for field in fields(ZoneParameters)]
        unknown = [name for name in parameters if name not in known_names]
        if unknown:
            raise InvalidArgument(
                f"unknown parameter {', '.join(map(short_repr, unknown))}; there is "
                f"{', '.join(known_names)}"
            )
        return asdict(ZoneParameters(**parameters))

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

    def _open(
        self,
        catalog: Catalog,
        segment: Segment,
        path: str,
        report: Callable[[CorruptIndex], None] | None,
    ) -> RowTable:
        store = catalog.decrypted_store
        return read_row_table(store, path, segment.num_bytes, segment.checksum)

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
    """Return tables as tables of filters. Raise `InvalidArgument` if they are of another kind."""
    row_tables = [table for table in tables if isinstance(table, RowTable)]
    if len(row_tables) < len(tables):
        raise InvalidArgument("the index has no Bloom filters; give one of kind BLOOMFILTER")
    return row_tables


def measure_filters(tables: Sequence[IndexTable]) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of set bits and the estimated false positive rate of each zone's filter."""
    from zonebloom.sbbf.filter import Sbbf

    measurements = [
        (bloom.fill, bloom.estimated_fpp)
        for table in require_row_tables(tables)
        for _, zones in table.zones()
        for bloom in map(Sbbf.from_bytes, zones.filters)
    ]
    fill, fpp = np.array(measurements, dtype=float).reshape(-1, 2).T
    return fill, fpp


ZONE_BLOOM = ZoneBloom()

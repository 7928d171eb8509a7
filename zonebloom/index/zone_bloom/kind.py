"""The index kind BLOOMFILTER: what the zone Bloom index does for each part of the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zonebloom.base.arguments import short_repr
from zonebloom.catalog.model import Segment
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, InvalidArgument
from zonebloom.index.table import IndexTable, WrittenTable
from zonebloom.index.zone_bloom.parameters import ZoneParameters
from zonebloom.index.zone_bloom.rows import read_row_table, write_row_table
from zonebloom.index.zone_bloom.table import ZoneTable
from zonebloom.predicates.ast import Compares, LeafPredicate
from zonebloom.values.types import why_not_indexable

if TYPE_CHECKING:
    from zonebloom.index.zone_bloom.segment_writer import ZoneSegmentWriter

# From this number of zones on, the eight short reads of the sliced layout are faster than testing
# every zone, and its padding is negligible.
SLICED_ZONES = 4096
# A filter of the default size holds every second zone for so many absent keys.
_MAX_SEARCHED_KEYS = 1 << 14


class ZoneBloom:
    """The zone Bloom index, in the row layout ("table") or the sliced layout."""

    name = "BLOOMFILTER"
    layouts: Mapping[str, str] = MappingProxyType(
        {"table": "bloomfilter.arrow", "sliced": "bloomfilter.sliced"}
    )
    layouts_read_in_parts = ("sliced",)
    takes_values = False
    max_searched_keys: int | None = _MAX_SEARCHED_KEYS
    # Merged tables in the sliced layout are searched as one.
    task_size_factor = 1

    def why_not_indexable(self, column_type: pa.DataType, column: str) -> str | None:
        return why_not_indexable(column_type, column)

    def why_not_answered(
        self, leaf: LeafPredicate, column_type: pa.DataType | None = None
    ) -> str | None:
        if isinstance(leaf, Compares):
            return "range comparisons are not answered by a Bloom filter; a ZONEMAP answers them"
        return None

    def check_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        known_names = [field.name for field in fields(ZoneParameters)]
        unknown = [name for name in parameters if name not in known_names]
        if unknown:
            raise InvalidArgument(
                f"unknown parameter {', '.join(map(short_repr, unknown))}; there is "
                f"{', '.join(known_names)}"
            )
        return asdict(ZoneParameters(**parameters))

    def probability_for(self, max_false_zones: float, num_zones: int) -> float:
        # Limit the probability to 0.5, because a filter that passes more is almost useless.
        return min(min(max_false_zones, num_zones) / num_zones, 0.5)

    def choose_layout(self, layout: str, num_zones: int) -> str:
        if layout == "auto":
            return "sliced" if num_zones >= SLICED_ZONES else "table"
        # A table without zones cannot be sliced.
        return layout if num_zones else "table"

    def create_writer(
        self,
        catalog: Catalog,
        path: str,
        parameters: Mapping[str, Any],
        num_writers: int,
        column_type: pa.DataType,
    ) -> ZoneSegmentWriter:
        from zonebloom.index.zone_bloom.segment_writer import ZoneSegmentWriter

        return ZoneSegmentWriter(catalog, path, ZoneParameters(**parameters))

    def open(
        self, catalog: Catalog, segment: Segment, report: Callable[[CorruptIndex], None] | None
    ) -> ZoneTable:
        filesystem, path = catalog.decrypted_filesystem, catalog.path(segment.name, segment.file)
        num_bytes, checksum = segment.num_bytes, segment.checksum
        if segment.file == self.layouts["table"]:
            return read_row_table(filesystem, path, num_bytes, checksum)
        if segment.file == self.layouts["sliced"]:
            from zonebloom.index.zone_bloom.sliced import SlicedTable

            return SlicedTable(filesystem, path, num_bytes, checksum, report=report)
        raise CorruptIndex(f"{path} is not a file of a {self.name} index; build the index again")

    def merge(
        self, catalog: Catalog, path: str, layout: str, tables: Sequence[IndexTable]
    ) -> WrittenTable:
        zone_tables = require_zone_tables(tables)
        if layout == "table":
            return write_row_table(zone_tables, catalog, path)
        from zonebloom.index.zone_bloom.sliced_merge import merge_tables

        return merge_tables(zone_tables, catalog, path)

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


def require_zone_tables(tables: Sequence[IndexTable]) -> list[ZoneTable]:
    """Return tables as tables of filters. Raise `InvalidArgument` if they are of another kind."""
    zone_tables = [table for table in tables if isinstance(table, ZoneTable)]
    if len(zone_tables) < len(tables):
        raise InvalidArgument("the index has no Bloom filters; give one of kind BLOOMFILTER")
    return zone_tables


def measure_filters(tables: Sequence[IndexTable]) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of set bits and the estimated false positive rate of each zone's filter."""
    from zonebloom.sbbf.filter import Sbbf

    measurements = [
        (bloom.fill, bloom.estimated_fpp)
        for table in require_zone_tables(tables)
        for _, zones in table.zones()
        for bloom in map(Sbbf.from_bytes, zones.filters)
    ]
    fill, fpp = np.array(measurements, dtype=float).reshape(-1, 2).T
    return fill, fpp


ZONE_BLOOM = ZoneBloom()

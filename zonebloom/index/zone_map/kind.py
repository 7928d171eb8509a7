"""The index kind ZONEMAP: what the zone map index does for each part of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
from zonebloom.catalog.store import Catalog
from zonebloom.index.base_kind import IndexKind, require_tables
from zonebloom.index.table import HashingFile, IndexTable, WrittenTable, require_zone_rows
from zonebloom.index.zone_map.bounds import ZoneMapTable, require_comparable, write_zone_map
from zonebloom.predicates.ast import Compares, Equals, IsIn, IsNull, LeafPredicate
from zonebloom.values.literal import Unanswerable
from zonebloom.values.normal_types import hashed_type

if TYPE_CHECKING:
    from zonebloom.index.zone_map.writer import ZoneMapWriter


@dataclass(frozen=True, slots=True)
class ZoneMapParameters:
    """The parameters of a zone map."""

    # Rows in a zone.
    number_of_items: int = DEFAULT_NUMBER_OF_ITEMS

    def __post_init__(self) -> None:
        require_zone_rows(self.number_of_items)


class ZoneMap(IndexKind):
    """The zone map index."""

    name = "ZONEMAP"
    file_name = "zonemap.arrow"
    parameters_class = ZoneMapParameters
    takes_values = True

    def why_not_indexable(self, column_type: pa.DataType, column: str) -> str | None:
        if pt.is_boolean(hashed_type(column_type)):
            return None
        return super().why_not_indexable(column_type, column)

    def why_not_answered(
        self, leaf: LeafPredicate, column_type: pa.DataType | None = None
    ) -> str | None:
        if not isinstance(leaf, Equals | IsIn | Compares | IsNull):
            return "a zone map answers only comparisons of values, and prefixes of strings"
        if column_type is None:
            return None
        try:
            require_comparable(column_type, leaf)
        except Unanswerable as reason:
            return str(reason)
        return None

    def create_writer(
        self,
        catalog: Catalog,
        path: str,
        parameters: Mapping[str, Any],
        num_writers: int,
        column_type: pa.DataType,
    ) -> ZoneMapWriter:
        from zonebloom.index.zone_map.writer import ZoneMapWriter

        return ZoneMapWriter(catalog, path, column_type, parameters["number_of_items"])

    def table_of(self, content: pa.Buffer, path: str) -> ZoneMapTable:
        return ZoneMapTable(content, path)

    def merge(self, catalog: Catalog, path: str, tables: Sequence[IndexTable]) -> WrittenTable:
        sink = HashingFile(catalog.open_output_stream(path))
        return write_zone_map(sink, [table.content for table in require_zone_maps(tables)])

    def statistics(
        self, parameters: Mapping[str, Any], tables: Sequence[IndexTable]
    ) -> dict[str, Any]:
        """Return how many zones an equality keeps, on average over the least value of each zone."""
        zone_maps = require_zone_maps(tables)
        return {
            "null_count": sum(int(table.bounds.null_count.sum()) for table in zone_maps),
            "nan_count": sum(int(table.bounds.nan_count.sum()) for table in zone_maps),
            "mean_zones_kept": mean_zones_kept(zone_maps),
        }


def require_zone_maps(tables: Sequence[IndexTable]) -> list[ZoneMapTable]:
    problem = "the index is not a zone map; give one of kind ZONEMAP"
    return require_tables(tables, ZoneMapTable, problem)


def mean_zones_kept(tables: Sequence[ZoneMapTable]) -> float:
    """Return how many zones hold the least value of a zone within their bounds, on average."""
    ends = [end for table in tables for end in (table.bounds.least, table.bounds.greatest)]
    if not ends:
        return 0.0
    options = pc.RankOptions(tiebreaker="dense")
    ranks = pc.call_function("rank", [pa.concat_arrays(ends)], options).to_numpy()
    has_value = np.concatenate([np.asarray(end.is_valid()).astype(bool) for end in ends[::2]])
    parts = np.split(ranks, np.cumsum([len(end) for end in ends])[:-1])
    least, greatest = (np.sort(np.concatenate(parts[i::2])[has_value]) for i in (0, 1))
    if not least.size:
        return 0.0
    num_kept = np.searchsorted(least, least, side="right") - np.searchsorted(greatest, least)
    return float(num_kept.mean())


ZONE_MAP = ZoneMap()

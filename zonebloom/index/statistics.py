"""Figures of one index as it is: coverage, size, fill, estimated false positives, key ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import IndexEntry
from zonebloom.index.describe import IndexDescription
from zonebloom.index.key_ranges import range_type
from zonebloom.index.loaded import Table
from zonebloom.index.sliced_rows import zones_of
from zonebloom.sbbf.filter import Sbbf


def index_statistics(
    described: IndexDescription, entry: IndexEntry, tables: Sequence[Table]
) -> dict[str, Any]:
    """Measure an index.

    ``fill`` and ``estimated_fpp`` are of the filters as they are filled, over all zones.
    """
    fill, fpp, nulls = [], [], 0
    for table in tables:
        nulls += int(table.has_null.sum())
        for _, zones in zones_of(table):
            measured = [Sbbf.from_bytes(words) for words in zones.filters]
            fill += [each.fill for each in measured]
            fpp += [each.estimated_fpp for each in measured]
    zone_rows = entry.parameters.number_of_items
    return {
        "name": described.name,
        "index_type": described.index_type,
        "column": described.column,
        "layout": entry.layout,
        "number_of_items": zone_rows,
        "probability": entry.parameters.probability,
        "sizing": entry.parameters.sizing,
        "num_segments": described.num_segments,
        "num_zones": described.num_zones,
        "num_zones_with_null": nulls,
        "num_bytes": described.num_bytes,
        "filter_bytes": entry.parameters.filter_bytes,
        "global_filter_bytes": entry.global_filter.num_bytes if entry.global_filter else 0,
        "num_indexed_rows": described.num_rows_indexed,
        "num_indexed_fragments": described.num_fragments_indexed,
        "num_unindexed_fragments": described.num_fragments - described.num_fragments_indexed,
        "fill_mean": float(np.mean(fill)) if fill else 0.0,
        "fill_max": float(np.max(fill)) if fill else 0.0,
        "estimated_fpp_mean": float(np.mean(fpp)) if fpp else 0.0,
        "estimated_fpp_max": float(np.max(fpp)) if fpp else 0.0,
        "created_at": described.created_at,
    }


def ranges_of(
    present: Sequence[PresentFragment], stored: pa.Table, arrow_type: pa.DataType
) -> pa.Table:
    """Key ranges of the fragments there are.

    As `zonebloom.Dataset.key_ranges` says.
    """
    rows = {each: row for row, each in enumerate(stored["fragment_id"].to_pylist())}
    at = pa.array([rows.get(e.fragment_id) if e.is_known else None for e in present], pa.int64())
    found = stored.take(at)
    kept = range_type(arrow_type)
    columns = {
        "fragment_id": pa.array([each.fragment_id for each in present], pa.uint64()),
        "path": pa.array([each.fragment.path for each in present], pa.string()),
        "minimum": found["minimum"].cast(kept),
        "maximum": found["maximum"].cast(kept),
        "is_known": found["is_known"].fill_null(False),
        "has_nan": found["has_nan"],
        "null_count": found["null_count"],
        "num_rows": found["num_rows"],
    }
    return pa.table(columns)

"""Figures of one index as it is: coverage, size, fill, estimated false positives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zonebloom.index.catalog import IndexEntry
from zonebloom.index.describe import IndexDescription
from zonebloom.index.loaded import Table
from zonebloom.index.sliced_rows import zones_of
from zonebloom.sbbf.filter import Sbbf


def index_statistics(
    described: IndexDescription, entry: IndexEntry, tables: Sequence[Table]
) -> dict[str, Any]:
    """Measure an index.

    Parameters
    ----------
    described : IndexDescription
    entry : IndexEntry
    tables : sequence of ZoneTable or SlicedTable

    Returns
    -------
    dict
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
        "num_indexed_rows": described.num_rows_indexed,
        "num_indexed_fragments": described.num_fragments_indexed,
        "num_unindexed_fragments": described.num_fragments - described.num_fragments_indexed,
        "fill_mean": float(np.mean(fill)) if fill else 0.0,
        "fill_max": float(np.max(fill)) if fill else 0.0,
        "estimated_fpp_mean": float(np.mean(fpp)) if fpp else 0.0,
        "estimated_fpp_max": float(np.max(fpp)) if fpp else 0.0,
        "created_at": described.created_at,
    }

"""Train the filters of a new segment, and write them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from zonebloom.catalog.store import Catalog
from zonebloom.index.row_keys.zone_hashes import ZoneHashCollector, ZoneHashes
from zonebloom.index.table import WrittenTable
from zonebloom.index.zone_bloom.parameters import ZoneParameters
from zonebloom.index.zone_bloom.rows import RowTableWriter
from zonebloom.index.zone_bloom.table import Zones
from zonebloom.index.zone_bloom.train import ZoneTrainer
from zonebloom.sbbf import blocks
from zonebloom.sbbf.hashing import Hashes, RowHashes
from zonebloom.sbbf.sizing import size_for


class ZoneSegmentWriter:
    """The writer of a segment of a build."""

    def __init__(self, catalog: Catalog, path: str, parameters: ZoneParameters):
        self._parameters = parameters
        self._trainer = ZoneTrainer(parameters)
        self._collector = ZoneHashCollector(parameters.number_of_items)
        # Rows of the fragment in zones of the collector.
        self._num_rows = 0
        fold_to = parameters.probability, parameters.fold
        self._writer = RowTableWriter(catalog, path, parameters.number_of_items, *fold_to)

    def add(self, fragment_id: int, part: Hashes | RowHashes) -> None:
        if isinstance(part, RowHashes):
            self._write_zones(fragment_id, self._collector.add(part))
            return
        for zones in self._trainer.add(part):
            self._writer.write(fragment_id, zones)

    def _write_zones(self, fragment_id: int, zones: Iterable[ZoneHashes]) -> None:
        """Write zones with filters for the number of hashes that each holds."""
        for zone in zones:
            num_bytes = size_for(max(zone.hashes.size, 1), self._parameters.probability)
            filters = np.zeros((1, num_bytes // 4), dtype=np.uint32)
            blocks.insert(filters[0], zone.hashes)
            start, length = (
                np.array([number], dtype=np.uint64) for number in (self._num_rows, zone.num_rows)
            )
            self._writer.write(
                fragment_id, Zones(start, length, np.array([zone.has_null]), filters)
            )
            self._num_rows += zone.num_rows

    def end_fragment(self, fragment_id: int) -> None:
        self._write_zones(fragment_id, self._collector.finish())
        for zones in self._trainer.finish():
            self._writer.write(fragment_id, zones)
        self._trainer = ZoneTrainer(self._parameters)
        self._num_rows = 0

    def close(self) -> WrittenTable:
        return self._writer.close()

    def abort(self) -> None:
        self._writer.abort()

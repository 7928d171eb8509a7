"""Train the filters of a new segment, and write them in the row layout."""

from __future__ import annotations

from zonebloom.catalog.store import Catalog
from zonebloom.index.table import WrittenTable
from zonebloom.index.zone_bloom.parameters import ZoneParameters
from zonebloom.index.zone_bloom.rows import RowTableWriter
from zonebloom.index.zone_bloom.train import ZoneTrainer
from zonebloom.sbbf.hashing import Hashes


class ZoneSegmentWriter:
    """The writer of a segment of a build, which is always in the row layout."""

    def __init__(self, catalog: Catalog, path: str, parameters: ZoneParameters):
        self._parameters = parameters
        self._trainer = ZoneTrainer(parameters)
        fold_to = parameters.probability, parameters.fold
        self._writer = RowTableWriter(catalog, path, parameters.number_of_items, *fold_to)

    def add(self, fragment_id: int, hashes: Hashes) -> None:
        for zones in self._trainer.add(hashes):
            self._writer.write(fragment_id, zones)

    def end_fragment(self, fragment_id: int) -> None:
        for zones in self._trainer.finish():
            self._writer.write(fragment_id, zones)
        self._trainer = ZoneTrainer(self._parameters)

    def close(self) -> WrittenTable:
        return self._writer.close()

    def abort(self) -> None:
        self._writer.abort()

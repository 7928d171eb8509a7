"""Figures of indices as rows of a DataFrame, with the names Hyperspace gives them."""

from __future__ import annotations

from typing import Any

from zonebloom.dataset import Dataset
from zonebloom.errors import ZoneBloomError
from zonebloom.spark.hyperspace.log import Record
from zonebloom.spark.hyperspace.source import Drift, catalog_of, measure_drift, open_recorded

KIND = "BloomFilter"

SUMMARY_DDL = (
    "name string, indexedColumns array<string>, indexLocation string, state string, kind string, "
    "numIndexFiles bigint, sizeIndexFiles bigint, numSourceFiles bigint, sizeSourceFiles bigint, "
    "numAppendedFiles bigint, sizeAppendedFiles bigint, numDeletedFiles bigint, "
    "sizeDeletedFiles bigint, indexContentPaths array<string>"
)
EXTENDED_DDL = SUMMARY_DDL + (
    ", sourcePath string, expectedNumItems bigint, fpp double, numZones bigint, "
    "globalFilterBytes bigint, "
    "createdAt string, updatedAt string, message string, "
    "log array<struct<number: bigint, state: string, action: string, time: string, "
    "message: string>>"
)


class Statistics:
    """Figures of indices; data that several share is looked at once."""

    def __init__(self) -> None:
        self._opened: dict[tuple[str, str], Dataset | str] = {}

    def summary(self, record: Record) -> tuple[Any, ...]:
        """One row of `SUMMARY_DDL`; null where the data cannot be looked at."""
        catalog = catalog_of(record)
        latest = catalog.latest()
        names = latest.indices.keys() & record.indices.values()
        files = catalog.files(latest.with_indices({name: latest.indices[name] for name in names}))
        drift = self._drift(record)
        changes: tuple[int | None, ...] = (None,) * 6
        if isinstance(drift, Drift):
            changes = (
                *(drift.num_indexed, drift.indexed_bytes, drift.num_appended),
                *(drift.appended_bytes, drift.num_deleted, drift.deleted_bytes),
            )
        of_files = (len(files), sum(files.values()), *changes, sorted(files))
        state = str(record.state)
        return record.name, list(record.columns), catalog.folder, state, KIND, *of_files

    def extended(self, record: Record, history: list[Record]) -> tuple[Any, ...]:
        """One row of `EXTENDED_DDL`."""
        there = catalog_of(record).latest().indices
        entries = [there[name] for name in record.indices.values() if name in there]
        drift = self._drift(record)
        return (
            *self.summary(record),
            record.path,
            record.expected_num_items,
            record.fpp,
            sum(segment.num_zones for entry in entries for segment in entry.segments),
            sum(e.global_filter.num_bytes for e in entries if e.global_filter is not None),
            record.created_at,
            record.time,
            drift if isinstance(drift, str) else record.message,
            [(r.number, str(r.state), r.action, r.time, r.message) for r in history],
        )

    def _drift(self, record: Record) -> Drift | str:
        key = (record.path, record.index_dir)
        if key not in self._opened:
            try:
                self._opened[key] = open_recorded(record)
            except (ZoneBloomError, OSError) as error:
                self._opened[key] = f"the data cannot be looked at: {error}"
        opened = self._opened[key]
        return opened if isinstance(opened, str) else measure_drift(opened, record)

"""Figures of indices as rows of a DataFrame, with the names Hyperspace gives them."""

from __future__ import annotations

from typing import Any

from zonebloom.dataset import Dataset
from zonebloom.errors import ZoneBloomError
from zonebloom.spark.hyperspace.records import Record, State
from zonebloom.spark.hyperspace.source import catalog_of, measure_drift, open_recorded

KIND = "BloomFilter"

SUMMARY_DDL = (
    "name string, indexedColumns array<string>, indexLocation string, state string, kind string, "
    "numIndexFiles bigint, sizeIndexFiles bigint, numSourceFiles bigint, sizeSourceFiles bigint, "
    "numAppendedFiles bigint, sizeAppendedFiles bigint, numDeletedFiles bigint, "
    "sizeDeletedFiles bigint, indexContentPaths array<string>"
)
EXTENDED_DDL = SUMMARY_DDL + (
    ", sourcePath string, expectedNumItems bigint, fpp double, numZones bigint, "
    "globalFilterBytes bigint, createdAt string, message string"
)
NUM_OF_SUMMARY = SUMMARY_DDL.count(",") + 1


class Statistics:
    """Figures of indices; data that several share is looked at once."""

    def __init__(self) -> None:
        self._opened: dict[tuple[str, str], Dataset | str] = {}

    def row(self, record: Record) -> tuple[Any, ...]:
        """One row of `EXTENDED_DDL`; null where the data cannot be looked at."""
        catalog = catalog_of(record)
        latest = catalog.latest()
        entries = [latest.indices[n] for n in record.indices.values() if n in latest.indices]
        files = catalog.files(latest.with_indices({entry.name: entry for entry in entries}))
        state = record.state
        opened = self._open(record)
        changes: tuple[int | None, ...] = (None,) * 6
        if isinstance(opened, Dataset):
            drift = measure_drift(opened, record)
            changes = (
                *(drift.num_indexed, drift.indexed_bytes, drift.num_appended),
                *(drift.appended_bytes, drift.num_deleted, drift.deleted_bytes),
            )
            if not entries and state == State.ACTIVE:
                state = State.CREATING
        return (
            *(record.name, list(record.columns), catalog.folder, str(state), KIND),
            *(len(files), sum(files.values()), *changes, sorted(files)),
            *(record.path, record.expected_num_items, record.fpp),
            sum(segment.num_zones for entry in entries for segment in entry.segments),
            sum(e.global_filter.num_bytes for e in entries if e.global_filter is not None),
            min((entry.created_at for entry in entries), default=None),
            opened if isinstance(opened, str) else "",
        )

    def _open(self, record: Record) -> Dataset | str:
        place = (record.path, record.index_dir)
        if place not in self._opened:
            try:
                self._opened[place] = open_recorded(record)
            except (ZoneBloomError, OSError) as error:
                self._opened[place] = f"the data cannot be looked at: {error}"
        return self._opened[place]

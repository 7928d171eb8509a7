"""Figures of indices as rows of a DataFrame, with the names Hyperspace gives them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from zonebloom.dataset import Dataset
from zonebloom.errors import ZoneBloomError
from zonebloom.spark.hyperspace.records import Record, State
from zonebloom.spark.hyperspace.source import catalog_of, measure_drift, open_recorded

KIND = "BloomFilter"
DDL = (
    "name string, indexedColumns array<string>, indexLocation string, state string, kind string, "
    "numIndexFiles bigint, sizeIndexFiles bigint, numSourceFiles bigint, sizeSourceFiles bigint, "
    "numAppendedFiles bigint, sizeAppendedFiles bigint, numDeletedFiles bigint, "
    "sizeDeletedFiles bigint, indexContentPaths array<string>, sourcePath string, "
    "expectedNumItems bigint, fpp double, numZones bigint, globalFilterBytes bigint, "
    "createdAt string, message string"
)


def figures(records: Iterable[Record]) -> Iterator[tuple[Any, ...]]:
    """A row of `DDL` for each index; null where the data cannot be looked at."""
    # What several are over is looked at once.
    datasets: dict[tuple[str, str], Dataset | str] = {}
    for record in records:
        catalog = catalog_of(record)
        latest = catalog.latest()
        entries = [latest.indices[n] for n in record.indices.values() if n in latest.indices]
        files = catalog.files(latest.with_indices({entry.name: entry for entry in entries}))
        place = record.path, record.index_dir
        if place not in datasets:
            datasets[place] = _open(record)
        opened, state = datasets[place], record.state
        changes: tuple[int | None, ...] = (None,) * 6
        if isinstance(opened, Dataset):
            drift = measure_drift(opened, record)
            changes = (
                *(drift.num_indexed, drift.indexed_bytes, drift.num_appended),
                *(drift.appended_bytes, drift.num_deleted, drift.deleted_bytes),
            )
            if not entries and state == State.ACTIVE:
                state = State.CREATING
        yield (
            *(record.name, list(record.columns), catalog.folder, str(state), KIND),
            *(len(files), sum(files.values()), *changes, sorted(files)),
            *(record.path, record.expected_num_items, record.fpp),
            sum(segment.num_zones for entry in entries for segment in entry.segments),
            sum(e.global_filter.num_bytes for e in entries if e.global_filter is not None),
            min((entry.created_at for entry in entries), default=None),
            opened if isinstance(opened, str) else "",
        )


def _open(record: Record) -> Dataset | str:
    try:
        return open_recorded(record)
    except (ZoneBloomError, OSError) as error:
        return f"the data cannot be looked at: {error}"

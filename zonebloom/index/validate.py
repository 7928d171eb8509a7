"""Validate an index against its checksums, the row counts of its fragments, and their values."""

from __future__ import annotations

import numpy as np

from zonebloom.base import arguments
from zonebloom.catalog.coverage import Coverage
from zonebloom.catalog.freshness import are_unchanged
from zonebloom.catalog.model import IndexEntry, Version
from zonebloom.catalog.page_maps import load_page_map
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex
from zonebloom.index.fit import indexed_columns
from zonebloom.index.matching import LoadedIndex
from zonebloom.index.table import IndexTable
from zonebloom.index.validate_rows import RowValidation
from zonebloom.parquet.page_map import PageMap
from zonebloom.sources.source import Source

DEFAULT_SAMPLE = 16


class ValidatedIndex(int):
    """The number of zones of an undamaged index, with details of the validation.

    ``zones_read`` is the number of zones whose rows were read from the data files. Files that
    ``changed`` since they were indexed are scanned by lookups. Files that are ``gone`` were
    deleted.
    """

    zones_read: int
    changed: tuple[str, ...]
    gone: tuple[str, ...]

    def __new__(
        cls,
        num_zones: int,
        zones_read: int = 0,
        changed: tuple[str, ...] = (),
        gone: tuple[str, ...] = (),
    ) -> ValidatedIndex:
        validated = super().__new__(cls, num_zones)
        validated.zones_read, validated.changed, validated.gone = zones_read, changed, gone
        return validated

    @property
    def state(self) -> str:
        """Return "sound", or "stale" if indexed files changed or were deleted since the build."""
        return "stale" if self.changed or self.gone else "sound"

    def __repr__(self) -> str:
        return (
            f"<ValidatedIndex {self.state}: {int(self):,} zones, {self.zones_read:,} read from the "
            f"files, {len(self.changed):,} files changed, {len(self.gone):,} gone>"
        )


def validate_index(
    catalog: Catalog,
    entry: IndexEntry,
    version: Version,
    source: Source,
    coverage: Coverage,
    sample: int | str = DEFAULT_SAMPLE,
) -> ValidatedIndex:
    if isinstance(sample, str):
        arguments.require_choice(sample, "sample", ("all",))
    else:
        sample = arguments.require_integer(sample, "sample")
    row_counts = {indexed.fragment_id: indexed.num_rows for indexed in version.fragments.values()}
    columns = indexed_columns(entry, source)
    covered_ids = entry.fragment_ids
    maps: dict[int, PageMap] = {}
    for page_map in version.page_maps:
        if not covered_ids.isdisjoint(page_map.fragment_ids):
            maps |= dict.fromkeys(page_map.fragment_ids, load_page_map(catalog, page_map))
    index = LoadedIndex(catalog, entry, strict=True)
    for segment, table in zip(entry.segments, index.tables(), strict=True):
        table.verify()
        _require_complete_zones(table, set(segment.fragment_ids), row_counts)
    sample_size = None if isinstance(sample, str) else sample
    zones_read = RowValidation(index, maps, source, columns, coverage.fragments).check(sample_size)
    changed, gone = _changed_and_deleted(entry, version, source, coverage)
    return ValidatedIndex(sum(map(len, index.tables())), zones_read, changed, gone)


def _changed_and_deleted(
    entry: IndexEntry, version: Version, source: Source, coverage: Coverage
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys of indexed files that changed since the build, and of those now missing."""
    covered_ids = entry.fragment_ids
    present = {fragment.fragment.key: fragment for fragment in coverage.fragments}
    changed, gone, unlisted = [], [], []
    for indexed in version.fragments.values():
        if indexed.fragment_id not in covered_ids:
            continue
        if indexed.key in coverage.missing_keys:
            gone.append(indexed.key)
        elif indexed.key not in present:
            unlisted.append(indexed)
        elif not present[indexed.key].is_known:
            changed.append(indexed.key)
    # A refresh of another index may have removed fragments from the version.
    forgotten = covered_ids.difference(
        indexed.fragment_id for indexed in version.fragments.values()
    )
    gone += [f"fragment {i}" for i in sorted(forgotten)]
    # These files are not in the dataset, which may be a selection of the indexed files.
    paths = [source.path_of(indexed.key) for indexed in unlisted]
    results = are_unchanged(source.store, paths, unlisted)
    for indexed, is_unchanged in zip(unlisted, results, strict=True):
        if not is_unchanged:
            (gone if is_unchanged is None else changed).append(indexed.key)
    return tuple(sorted(changed)), tuple(sorted(gone))


def _require_complete_zones(table: IndexTable, ids: set[int], row_counts: dict[int, int]) -> None:
    """Raise `CorruptIndex` if the zones do not cover each row of their fragments once, in order."""
    runs = table.runs
    order = np.argsort(runs.fragment_ids, kind="stable")
    found_ids, first_positions = np.unique(runs.fragment_ids[order], return_index=True)
    missing = {i for i in ids if row_counts.get(i)}.difference(found_ids.tolist())
    if missing:
        raise CorruptIndex(
            f"{table.path} has no zones of fragment {min(missing)}, which it should cover; build "
            "it again"
        )
    runs_of_fragments = np.split(order, first_positions[1:])
    for fragment_id, numbers in zip(found_ids.tolist(), runs_of_fragments, strict=False):
        starts, lengths = runs.first_rows[numbers], runs.num_rows[numbers]
        stops = np.cumsum(lengths)
        # The version may no longer know the row count of a deleted file.
        num_rows = row_counts.get(fragment_id, int(stops[-1]))
        if int(stops[-1]) != num_rows or (starts != stops - lengths).any():
            raise CorruptIndex(
                f"the zones of fragment {fragment_id} in {table.path} are not its {num_rows:,} "
                "rows; build it again"
            )

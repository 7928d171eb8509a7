"""Building indices, and bringing them up to date, on the engine at hand.

train (threads or Spark) -> segments -> arranged in a layout -> one commit

What fails leaves nothing behind: segments of a build are deleted unless its version names them.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zonebloom.errors import CatalogError, ZoneBloomError
from zonebloom.index.build import (
    TrainedSegment,
    TrainFragment,
    commit_index,
    cut_tasks,
    train_locally,
)
from zonebloom.index.catalog import Catalog, IndexEntry, Segment, Version
from zonebloom.index.coverage import PresentFragment, cover
from zonebloom.index.layout import arrange
from zonebloom.index.zones import ZoneParameters
from zonebloom.planner import Planner
from zonebloom.progress import reporting
from zonebloom.storage.columns import Column
from zonebloom.storage.files import identities
from zonebloom.storage.fragments import Source
from zonebloom.storage.memory import TableSource

Progress = bool | Callable[[int, int], Any] | None


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What `Dataset.optimize_indices` did to an index.

    Attributes
    ----------
    name : str
    fragments_added : int
        Indexed now: new files, files that changed, and all of a table that held more zones of
        files that are gone than of others.
    fragments_dropped : int
        Forgotten: files that are gone or changed.
    layout : {"table", "sliced"}
    num_segments : int
    changed : bool
        Whether a new version was committed.
    """

    name: str
    fragments_added: int
    fragments_dropped: int
    layout: str
    num_segments: int
    changed: bool


class Builder:
    """Builds the indices of one dataset.

    Parameters
    ----------
    source : Source
    catalog : Catalog
    planner : Planner
        Counts the rows of files for progress.
    """

    def __init__(self, source: Source, catalog: Catalog, planner: Planner):
        self._source = source
        self._catalog = catalog
        self._planner = planner

    def build(
        self,
        name: str,
        column: Column,
        parameters: ZoneParameters,
        layout: str,
        replace_existing: bool,
        spark: Any,
        progress: Progress,
    ) -> Version:
        """Index every fragment, and commit.

        Raises
        ------
        FragmentUnreadable, SchemaMismatch, CatalogError, CommitConflict
        """
        base = self._planner.version
        coverage = cover(self._source.fragments, self._source.identities(), base)

        def commit(prefix: str) -> tuple[Version, tuple[Segment, ...]]:
            trained = self._train(prefix, column, parameters, coverage.present, spark, progress)
            segments = arrange(
                self._catalog, f"{prefix}-all", [each.segment for each in trained], layout
            )
            version = commit_index(
                self._catalog,
                base,
                name,
                column,
                parameters,
                _keyed(coverage.present),
                segments,
                _rows(trained),
                replace_existing=replace_existing,
            )
            return version, segments

        return self._cleanly(commit)

    def refresh(
        self, entry: IndexEntry, column: Column, layout: str, spark: Any, progress: Progress
    ) -> tuple[Version, Refreshed]:
        """Index what an index does not cover, forget what is gone, and arrange its segments.

        Raises
        ------
        FragmentUnreadable, SchemaMismatch, CatalogError, CommitConflict, CorruptIndex
        """
        base = self._planner.version
        coverage = cover(self._source.fragments, self._source.identities(), base)
        covered = {i for segment in entry.tables for i in segment.fragment_ids}
        alive = coverage.live | self._elsewhere(base, covered)
        items = entry.parameters.number_of_items
        zones = {k.fragment_id: -(-k.num_rows // items) for k in base.fragments.values()}
        kept = _still_used(entry.segments, alive, coverage.live, zones)
        left = {i for segment in kept if segment.layout != "pages" for i in segment.fragment_ids}
        missing = [each for each in coverage.present if each.fragment_id not in left]
        dropped = len(covered - alive)
        added: list[Segment] = []

        def commit(prefix: str) -> tuple[Version, tuple[Segment, ...]]:
            trained = []
            if missing:
                trained = self._train(prefix, column, entry.parameters, missing, spark, progress)
            added.extend(each.segment for each in trained)
            segments = arrange(self._catalog, f"{prefix}-all", [*kept, *added], layout)
            if segments == entry.segments:
                return base, segments
            version = commit_index(
                self._catalog,
                base,
                entry.name,
                column,
                entry.parameters,
                _keyed(missing),
                segments,
                _rows(trained),
                replace_existing=True,
                expected=entry,
            )
            return version, segments

        version = self._cleanly(commit)
        now = version.indices[entry.name]
        changed = version is not base
        done = Refreshed(entry.name, len(missing), dropped, now.layout, len(now.tables), changed)
        return version, done

    def _elsewhere(self, base: Version, covered: set[int]) -> set[int]:
        """Indexed fragments that are none of this dataset's, but still are as they were.

        A dataset of some files may share the index with one of all.
        """
        listed = {fragment.key for fragment in self._source.fragments}
        others = [
            known
            for known in base.fragments.values()
            if known.fragment_id in covered and known.key not in listed
        ]
        paths = [posixpath.join(self._source.root, known.key) for known in others]
        now = identities(self._source.filesystem, paths)
        return {
            known.fragment_id
            for known, identity in zip(others, now, strict=True)
            if identity == known.identity
        }

    def _train(
        self,
        prefix: str,
        column: Column,
        parameters: ZoneParameters,
        fragments: Sequence[PresentFragment],
        spark: Any,
        progress: Progress,
    ) -> list[TrainedSegment]:
        source = self._source
        table = source.table if isinstance(source, TableSource) else None
        tasks = cut_tasks(
            prefix,
            self._catalog,
            source.format,
            source.filesystem,
            source.schema,
            column,
            parameters,
            [fragment for _, fragment in _keyed(fragments)],
            table,
        )
        total = sum(self._planner.count_rows(each) for each in fragments) if progress else 0
        with reporting(progress, total, f"indexing {column.name}") as report:
            # Rows in memory are here, not where Spark's workers are.
            session = None if table is not None else _session(spark)
            if session is None:
                return train_locally(tasks, progress=report)
            from zonebloom.spark.build import train_on_spark

            return train_on_spark(session, tasks, progress=report, num_rows=total)

    def _cleanly(self, commit: Callable[[str], tuple[Version, tuple[Segment, ...]]]) -> Version:
        """Run a build under a prefix of its own, and delete what its version does not name."""
        prefix = self._catalog.new_segment_prefix()
        try:
            version, segments = commit(prefix)
        except BaseException as error:
            self._delete_unnamed(prefix)
            if isinstance(error, OSError) and not isinstance(error, ZoneBloomError):
                raise CatalogError(
                    f"cannot write to {self._catalog.folder} ({error}); make it writable, or give "
                    "another index_dir"
                ) from error
            raise
        self._catalog.delete_segments(prefix, keep=[segment.name for segment in segments])
        self._catalog.delete_tables(
            [s.name for s in segments if s.layout == "pages" and s.name.startswith(prefix)]
        )
        return version

    def _delete_unnamed(self, prefix: str) -> None:
        """Delete the segments of a build that failed, unless its version came to be after all."""
        try:
            newest = self._catalog.latest_for_writing()
        except (CatalogError, OSError):
            # What it names is not known; `vacuum` deletes the segments later.
            return
        entries = newest.indices.values()
        self._catalog.delete_segments(
            prefix, keep=[segment.name for entry in entries for segment in entry.segments]
        )


def _still_used(
    segments: Sequence[Segment],
    alive: frozenset[int],
    present: frozenset[int],
    zones: Mapping[int, int],
) -> list[Segment]:
    """Segments without the fragments that are gone.

    Zones of those stay in a table until they are more than the others: then it is left out as a
    whole, to be made anew, if what is left can be read.
    """
    kept = []
    for segment in segments:
        ids = tuple(i for i in segment.fragment_ids if i in alive)
        used = sum(zones.get(i, 0) for i in ids)
        made_anew = segment.num_zones > 2 * used and present.issuperset(ids)
        if ids and not made_anew:
            kept.append(replace(segment, fragment_ids=ids))
    return kept


def _keyed(fragments: Sequence[PresentFragment]) -> list[tuple[str, TrainFragment]]:
    return [
        (each.fragment.key, TrainFragment(each.fragment_id, each.fragment.path, each.identity))
        for each in fragments
    ]


def _rows(trained: Sequence[TrainedSegment]) -> dict[int, int]:
    return {i: count for each in trained for i, count in each.num_rows.items()}


def _session(spark: Any) -> Any:
    """The session to build on, None for this process."""
    if spark is False:
        return None
    if spark is None:
        # Without pyspark imported there is no active session.
        sql = sys.modules.get("pyspark.sql")
        return sql.SparkSession.getActiveSession() if sql is not None else None
    return spark

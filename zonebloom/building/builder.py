"""Building indices, and bringing them up to date: train -> segments -> a layout -> one commit."""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from zonebloom.base.progress import ProgressOption, report_progress
from zonebloom.building.other_datasets import OtherDatasets
from zonebloom.building.request import IndexSpec
from zonebloom.building.segments import arrange_segments
from zonebloom.building.tasks import TrainedTask, split_into_tasks
from zonebloom.building.train import train_locally
from zonebloom.catalog.coverage import (
    Coverage,
    PresentFragment,
    compute_coverage,
    indexed_identities,
)
from zonebloom.catalog.folder import MissingIndexFile, wrapping_write_errors
from zonebloom.catalog.model import GlobalFilterEntry, IndexEntry, KnownFragment, Segment, Version
from zonebloom.catalog.page_maps import merge_small_page_maps
from zonebloom.errors import CommitConflict, HiddenColumnsWarning, SchemaMismatch
from zonebloom.index.global_filter import GlobalFilterSize, merge_parts
from zonebloom.opened import OpenedDataset
from zonebloom.sources.column_batches import Column
from zonebloom.sources.memory import TableSource

# Of data. Below, threads of one process are done before tasks elsewhere are sent out and begun:
# on two cores a warm Spark session took 3 to 6 times as long for 0.1 to 0.8 GB.
WORTH_AN_ENGINE = 1 << 30


@dataclass(frozen=True, slots=True)
class Engine:
    """What trains tasks elsewhere than on threads of this process."""

    name: str
    # (tasks, *, progress), in the order of the tasks.
    train: Callable[..., list[TrainedTask]]
    # With less data than this, this process trains.
    min_bytes: int = 0


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
    damage : str, optional
        What was damaged of an index that is built anew for it.
    problem : str, optional
        Why the index could not be refreshed, and what to do. It is as it was before.
    """

    name: str
    fragments_added: int
    fragments_dropped: int
    layout: str
    num_segments: int
    changed: bool
    damage: str | None = None
    problem: str | None = None


def failed_refresh(entry: IndexEntry, problem: str) -> Refreshed:
    """Return the record of an index that could not be refreshed."""
    num_segments = len(entry.segments)
    return Refreshed(entry.name, 0, 0, entry.layout, num_segments, changed=False, problem=problem)


REFRESHED_HEADERS = ("index", "files added", "files dropped", "segments", "layout")


def refreshed_cells(refreshed: Refreshed) -> list[object]:
    """What was done to an index as a line of a table below `REFRESHED_HEADERS`."""
    done = (refreshed.fragments_added, refreshed.fragments_dropped, refreshed.num_segments)
    return [refreshed.name, *done, refreshed.layout]


@dataclass(frozen=True, slots=True)
class _Work:
    """What an index needs: `missing` is read, `segments` stay; `alive` are the fragments still as
    indexed, `before` is None of an index made anew."""

    spec: IndexSpec
    missing: tuple[PresentFragment, ...]
    before: IndexEntry | None = None
    segments: tuple[Segment, ...] = ()
    alive: frozenset[int] = frozenset()
    damage: str | None = None

    def refreshed(self, now: IndexEntry) -> Refreshed:
        before = set() if self.before is None else self.before.fragment_ids
        return Refreshed(
            now.name,
            len(self.missing),
            len(before - self.alive),
            now.layout,
            len(now.segments),
            now != self.before,
            self.damage,
        )


class Builder:
    def __init__(self, opened: OpenedDataset):
        opened.require_unlocked()
        self._source = opened.source
        self._catalog = opened.catalog
        self._planner = opened.planner
        self._others = OtherDatasets(opened.source, opened.catalog)

    def build(
        self,
        specs: Sequence[IndexSpec],
        layout: str,
        replace_existing: bool,
        engine: Engine | None,
        progress: ProgressOption,
        prefix: str = "",
    ) -> Version:
        """Index every fragment in one pass, and commit all indices at once."""
        base, coverage = self._now()
        names = [spec.name for spec in specs]

        def check(latest: Version) -> None:
            self._others.refuse_names(names, latest)
            taken = [name for name in names if name in latest.indices.keys() - base.indices.keys()]
            if taken and not replace_existing:
                raise CommitConflict(
                    f"another writer made an index {taken[0]!r} meanwhile; give another name"
                )

        self._others.refuse_names(names, base)
        work = [_Work(spec, coverage.fragments) for spec in specs]
        return self._run(base, work, layout, engine, progress, check, prefix=prefix)

    def own_index_names(self) -> list[str]:
        """Names of the indices but those of other datasets' files alone."""
        version = self._planner.version
        others = {known.fragment_id for known in self._others.fragments(version)}
        covered = {name: entry.fragment_ids for name, entry in version.indices.items()}
        return [name for name, ids in covered.items() if not ids or ids - others]

    def refresh(
        self,
        indices: Sequence[tuple[IndexEntry, Column]],
        layout: str,
        engine: Engine | None,
        progress: ProgressOption,
        damaged: Mapping[str, str],
        *,
        skip_misfits: bool = False,
    ) -> tuple[Version, list[Refreshed]]:
        """Bring indices up to date. Indices in `damaged` are rebuilt from the files alone.

        With `skips_misfits` an index whose column does not fit a file is left as it is, and its
        `Refreshed.problem` says why. Otherwise the misfit raises SchemaMismatch.
        """
        base, coverage = self._now()
        work = [self._outdated(entry, column, base, coverage, damaged) for entry, column in indices]

        def check(latest: Version) -> None:
            for entry, _ in indices:
                found = latest.indices.get(entry.name)
                # Its column may have been renamed since, which no writer noted.
                if found is None or replace(found, column=entry.column) != entry:
                    raise CommitConflict(
                        f"another writer changed index {entry.name!r} meanwhile; try again"
                    )

        seen_again = _seen_again(base, coverage)
        problems: dict[str, str] | None = {} if skip_misfits else None
        version = self._run(base, work, layout, engine, progress, check, seen_again, problems)
        refreshed = [
            failed_refresh(entry, problems[entry.name])
            if problems and entry.name in problems
            else part.refreshed(version.indices[entry.name])
            for (entry, _), part in zip(indices, work, strict=True)
        ]
        return version, refreshed

    def _now(self) -> tuple[Version, Coverage]:
        base = self._planner.version
        fragments = self._source.fragments
        identities = self._source.identities(None, indexed_identities(fragments, base))
        return base, compute_coverage(fragments, identities, base)

    def _outdated(
        self,
        entry: IndexEntry,
        column: Column,
        base: Version,
        coverage: Coverage,
        damaged: Mapping[str, str],
    ) -> _Work:
        stored = entry.global_filter
        size = None if stored is None else GlobalFilterSize(stored.num_items, stored.probability)
        spec = IndexSpec(entry.name, column, entry.parameters, size, entry.field)
        if entry.name in damaged:
            return _Work(spec, coverage.fragments, damage=damaged[entry.name])
        present = coverage.known_ids
        alive = present | self._others.unchanged_ids(base, entry.fragment_ids)
        items = entry.parameters.number_of_items
        zones = {k.fragment_id: -(-k.num_rows // items) for k in base.fragments.values()}
        segments = tuple(_still_used(entry.segments, alive, present, zones))
        left = {i for segment in segments for i in segment.fragment_ids}
        missing = tuple(each for each in coverage.fragments if each.fragment_id not in left)
        return _Work(spec, missing, entry, segments, alive)

    def _run(
        self,
        base: Version,
        work: Sequence[_Work],
        layout: str,
        engine: Engine | None,
        progress: ProgressOption,
        check: Callable[[Version], None],
        seen_again: Sequence[KnownFragment] = (),
        problems: dict[str, str] | None = None,
        prefix: str = "",
    ) -> Version:
        """Train and commit some work. Misfits are added to `problems`, or raised if it is None."""
        prefix = prefix or self._catalog.new_segment_prefix()
        with self._new_segments(prefix, base):
            trained = self._train_missing(prefix, work, engine, progress, problems)
            if problems:
                fits = [part.spec.name not in problems for part in work]
                work, trained = list(compress(work, fits)), list(compress(trained, fits))
            entries: dict[str, IndexEntry] = {}
            for number, (each, tasks) in enumerate(zip(work, trained, strict=True)):
                added = [task.segments[place] for task, place in tasks]
                name = f"{prefix}-{number}"
                segments = arrange_segments(
                    self._catalog, f"{name}-all", each.segments, added, layout
                )
                stored = self._global_filter(f"{name}-keys", each, tasks)
                before = each.before
                if before is None or (segments, stored) != (before.segments, before.global_filter):
                    entries[each.spec.name] = each.spec.make_entry(segments, stored)
            if not entries and not seen_again:
                return base
            identities = {e.fragment_id: e.identity for each in work for e in each.missing}
            done = {task.segments[0].name: task for tasks in trained for task, _ in tasks}.values()
            # Workers elsewhere do not see the inodes that are seen here.
            read = {
                known.key: known._replace(identity=identities[known.fragment_id])
                for task in done
                for known in task.fragments
            }
            page_maps = base.with_indices(
                {**base.indices, **entries},
                [task.page_map for task in done if task.page_map is not None],
            ).page_maps
            page_maps = merge_small_page_maps(self._catalog, f"{prefix}-pages", page_maps)
            new_maps = [each for each in page_maps if each not in base.page_maps]
            anew = {each.spec.name for each in work if each.before is None}

            def change(latest: Version) -> Version:
                _require_same_ids(latest, base, read, self._catalog.folder)
                check(latest)
                again = {
                    known.key: known
                    for known in seen_again
                    if latest.fragments.get(known.key) == base.fragments[known.key]
                }
                ids = [latest.next_fragment_id, *(i + 1 for i in identities)]
                # Last, also when it replaces one: of several on a column the last made is used.
                # One brought up to date keeps its place.
                others = {k: v for k, v in latest.indices.items() if k not in anew}
                return replace(
                    latest,
                    next_fragment_id=max(ids),
                    fragments={**latest.fragments, **again, **read},
                ).with_indices({**others, **entries}, new_maps)

            return self._catalog.commit(change)

    @contextlib.contextmanager
    def _new_segments(self, prefix: str, base: Version) -> Iterator[None]:
        """Within, segments with a prefix are written; those no version names are deleted after."""
        try:
            with wrapping_write_errors(self._catalog.folder):
                yield
        except MissingIndexFile as error:
            if self._catalog.is_damaged(base):
                raise
            raise CommitConflict(
                f"{error}, for another writer replaced it, or a vacuum() deleted it; try again"
            ) from None
        finally:
            # What cannot be deleted is left to `vacuum`: what was committed stands, and of a
            # build that failed the user is to see why.
            self._catalog.delete_orphan_segments([prefix])

    def _train_missing(
        self,
        prefix: str,
        work: Sequence[_Work],
        engine: Engine | None,
        progress: ProgressOption,
        problems: dict[str, str] | None,
    ) -> list[list[tuple[TrainedTask, int]]]:
        """Return the tasks of each index, with the number of its segment in each of them.

        Indices that miss the same fragments share tasks, so that a file is read once for all.
        """
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, each in enumerate(work):
            groups.setdefault(tuple(e.fragment_id for e in each.missing), []).append(number)
        trained: list[list[tuple[TrainedTask, int]]] = [[] for _ in work]
        numbers_of_groups = deque(numbers for ids, numbers in groups.items() if ids)
        count = 0
        while numbers_of_groups:
            numbers = numbers_of_groups.popleft()
            specs = [work[number].spec for number in numbers]
            missing = work[numbers[0]].missing
            try:
                tasks = self._train(f"{prefix}-{count}", specs, missing, engine, progress)
            except SchemaMismatch as error:
                if problems is None:
                    raise
                if len(numbers) == 1:
                    problems[specs[0].name] = f"index {specs[0].name!r} is not refreshed: {error}"
                # The error is of one column. Train each index alone to refresh the others.
                numbers_of_groups.extend([number] for number in numbers if len(numbers) > 1)
                tasks = []
            count += 1
            for place, number in enumerate(numbers):
                trained[number] = [(task, place) for task in tasks]
        return trained

    def _train(
        self,
        prefix: str,
        specs: Sequence[IndexSpec],
        fragments: Sequence[PresentFragment],
        engine: Engine | None,
        progress: ProgressOption,
    ) -> list[TrainedTask]:
        tasks = split_into_tasks(prefix, self._catalog, self._source, specs, fragments)
        total = sum(self._planner.count_rows(each) for each in fragments) if progress else 0
        num_bytes = sum(each.identity.size for each in fragments)
        is_little = engine is not None and num_bytes < engine.min_bytes
        # Rows in memory are here, not where another engine's workers are.
        if is_little or isinstance(self._source, TableSource):
            engine = None
        where = f"on {engine.name}" if engine else "in this process"
        names = ", ".join(spec.column.name for spec in specs)
        with report_progress(progress, total, f"indexing {names} {where}") as report:
            if engine is None:
                trained = train_locally(tasks, progress=report)
            else:
                trained = engine.train(tasks, progress=report)
        if self._source.type_agreement == "first":
            _warn_of_hidden(
                {name: at for task in trained for name, at in task.hidden_columns.items()}
            )
        return trained

    def _global_filter(
        self, segment: str, work: _Work, tasks: Sequence[tuple[TrainedTask, int]]
    ) -> GlobalFilterEntry | None:
        """The global filter of an index with the keys of new files, as it was without any."""
        if work.spec.global_size is None:
            return None
        before = None if work.before is None else work.before.global_filter
        ids = [i for i in before.fragment_ids if i in work.alive] if before is not None else []
        if before is not None and not tasks:
            return replace(before, fragment_ids=tuple(ids))
        parts = [
            part for task, place in tasks if (part := task.global_filter_parts[place]) is not None
        ]
        ids = list(dict.fromkeys([*ids, *(each.fragment_id for each in work.missing)]))
        return merge_parts(self._catalog, segment, work.spec.global_size, parts, ids, before)


def _warn_of_hidden(columns: Mapping[str, str]) -> None:
    if columns:
        shown = ", ".join(f"{name!r} of {path}" for name, path in sorted(columns.items())[:3])
        more = f", and {len(columns) - 3:,} more" if len(columns) > 3 else ""
        warnings.warn(
            f"the dataset has the schema of its first file, which lacks {shown}{more}; open it "
            'with schema="union" to have every column, or give schema= to have this one silently',
            HiddenColumnsWarning,
            stacklevel=2,
        )


def _still_used(
    segments: Sequence[Segment],
    alive: frozenset[int],
    present: frozenset[int],
    zones: Mapping[int, int],
) -> Iterator[Segment]:
    """Segments without the fragments that are gone; one of mostly such is left out whole, to be
    made anew, if what is left can be read."""
    for segment in segments:
        ids = tuple(i for i in segment.fragment_ids if i in alive)
        used = sum(zones.get(i, 0) for i in ids)
        made_anew = segment.num_zones > 2 * used and present.issuperset(ids)
        if ids and not made_anew:
            yield replace(segment, fragment_ids=ids)


def _seen_again(base: Version, coverage: Coverage) -> list[KnownFragment]:
    """Fragments whose files have other times than the catalog says, and are the same still."""
    again = []
    for each in coverage.fragments:
        before = base.fragments.get(each.fragment.key)
        if before is None or before.identity == each.identity:
            continue
        if each.is_known and before.digest:
            again.append(before._replace(identity=each.identity, seen_at=each.seen_at))
    return again


def _require_same_ids(
    latest: Version, base: Version, read: Mapping[str, KnownFragment], folder: str
) -> None:
    """Refuse when an id in the new segments means another file by now."""
    for key, known in read.items():
        theirs = latest.fragments.get(key)
        if theirs is not None and theirs.fragment_id == known.fragment_id:
            # A copy has other times and another inode than the catalog says: that it is the same
            # was settled against `base`, and holds where nobody indexed it since.
            agreed = theirs == base.fragments.get(key) or theirs.identity.is_still(known.identity)
        else:
            # The id is ours to give if it was free when we took it and nobody gave any since.
            agreed = (
                known.fragment_id >= base.next_fragment_id
                and latest.next_fragment_id == base.next_fragment_id
            )
        if not agreed:
            raise CommitConflict(f"{folder}: another writer indexed {key} meanwhile; build again")

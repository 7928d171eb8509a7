"""Build and refresh indices: train segments, merge small ones, and commit them at once."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from zonebloom.base.notices import warn
from zonebloom.base.progress import ProgressOption, report_progress
from zonebloom.base.text import TextTable
from zonebloom.building.other_datasets import OtherDatasets
from zonebloom.building.request import IndexSpec
from zonebloom.building.segments import arrange_segments
from zonebloom.building.train import TrainedTask, split_into_tasks, train_locally
from zonebloom.catalog.coverage import (
    Coverage,
    PresentFragment,
    compute_coverage,
    indexed_identities,
)
from zonebloom.catalog.model import GlobalFilterEntry, IndexEntry, KnownFragment, Segment, Version
from zonebloom.catalog.page_maps import merge_small_page_maps
from zonebloom.catalog.store import MissingIndexFile, wrapping_write_errors
from zonebloom.errors import (
    CommitConflict,
    HiddenColumnsWarning,
    SchemaMismatch,
    UnknownIndexKind,
    UnsupportedType,
)
from zonebloom.index.global_filter import GlobalFilterSize, merge_parts
from zonebloom.index.kinds import index_kind, kind_of
from zonebloom.index.row_keys.rules import rule_of
from zonebloom.scan.opened import OpenedDataset
from zonebloom.sources.column_batches import Column, int96_leaves
from zonebloom.sources.source import Source

# Bytes of data below which this process trains alone, because sending tasks elsewhere takes longer.
# With two cores, a warm Spark session took 3 to 6 times as long for 0.1 to 0.8 GB.
WORTH_AN_ENGINE = 1 << 30


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that trains tasks outside this process, such as Spark."""

    name: str
    # train(tasks, *, progress) returns the results in the order of the tasks.
    train: Callable[..., list[TrainedTask]]
    # With less data than this, this process trains instead.
    min_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The result of `Dataset.optimize_indices` for one index.

    Attributes
    ----------
    name : str
    fragments_added : int
        Number of files that were indexed: new files, changed files, and the files of tables that
        were rebuilt because most of their zones belonged to missing files.
    fragments_dropped : int
        Number of files that were removed from the index because they are missing or changed.
    num_segments : int
    changed : bool
        Whether a new version was committed.
    damage : str, optional
        What was damaged, if the index was rebuilt for that reason.
    problem : str, optional
        Why the index could not be refreshed, and what to do. In this case it was not changed.
    """

    name: str
    fragments_added: int
    fragments_dropped: int
    num_segments: int
    changed: bool
    damage: str | None = None
    problem: str | None = None


def failed_refresh(entry: IndexEntry, problem: str) -> Refreshed:
    return Refreshed(entry.name, 0, 0, len(entry.segments), changed=False, problem=problem)


def refreshed_table(indices: Sequence[Refreshed]) -> TextTable:
    return ("index", "files added", "files dropped", "segments"), [
        (index.name, index.fragments_added, index.fragments_dropped, index.num_segments)
        for index in indices
    ]


@dataclass(frozen=True, slots=True)
class _IndexWork:
    """The work that a build or refresh has to do for one index."""

    spec: IndexSpec
    # The fragments to read and index.
    unindexed: Sequence[PresentFragment]
    # The index before a refresh; None for a new or rebuilt index.
    before: IndexEntry | None = None
    # The segments that are kept.
    segments: tuple[Segment, ...] = ()
    # Ids of the fragments that stay in the index. All others have changed or are missing.
    unchanged_ids: frozenset[int] = frozenset()
    damage: str | None = None

    def refreshed(self, after: IndexEntry) -> Refreshed:
        before = set() if self.before is None else self.before.fragment_ids
        return Refreshed(
            after.name,
            len(self.unindexed),
            len(before - self.unchanged_ids),
            len(after.segments),
            after != self.before,
            self.damage,
        )


class Builder:
    """Builder of indices of one opened dataset."""

    def __init__(self, opened: OpenedDataset):
        opened.require_unlocked()
        self._source = opened.source
        self._catalog = opened.catalog
        self._opened = opened
        self._other_datasets = OtherDatasets(opened.source, opened.catalog)
        # Problems name calls of Python. These are the commands that stand for them.
        self.commands: dict[str, str] = {}

    def build(
        self,
        specs: Sequence[IndexSpec],
        replace_existing: bool,
        engine: Engine | None,
        progress: ProgressOption,
        *,
        train: bool = True,
    ) -> Version:
        """Index all fragments in one pass, and commit all indices at once.

        Without ``train``, the indices cover no fragment until a refresh indexes them. Raise
        `UnsupportedType` if an engine would build an index that it cannot use.
        """
        if engine is not None:
            _refuse_int96(specs, self._source, engine)
        base, coverage = self._current_coverage()
        names = [spec.name for spec in specs]

        def check(latest: Version) -> None:
            self._other_datasets.refuse_names(names, latest)
            taken_names = [
                name for name in names if name in latest.indices.keys() - base.indices.keys()
            ]
            if taken_names and not replace_existing:
                raise CommitConflict(
                    f"another writer has built an index {taken_names[0]!r}; give another name"
                )

        self._other_datasets.refuse_names(names, base)
        fragments = coverage.fragments if train else ()
        work = [_IndexWork(spec, fragments) for spec in specs]
        return self._train_and_commit(base, work, engine, progress, check)

    def own_index_names(self) -> list[str]:
        """Return the names of all indices except those that cover only files of other datasets."""
        version = self._opened.version
        other_ids = {fragment.fragment_id for fragment in self._other_datasets.fragments(version)}
        covered = {name: entry.fragment_ids for name, entry in version.indices.items()}
        return [name for name, ids in covered.items() if not ids or ids - other_ids]

    def refresh(
        self,
        indices: Sequence[tuple[IndexEntry, Sequence[Column]]],
        engine: Engine | None,
        progress: ProgressOption,
        damaged: Mapping[str, str],
        *,
        skip_misfits: bool = False,
        only_appended: bool = False,
    ) -> tuple[Version, list[Refreshed]]:
        """Update indices. Those in `damaged` are rebuilt completely.

        With `only_appended`, add the files that an index has never covered. Changed and deleted
        files stay in the index as they are. Searches ignore them, so changed files are read whole.
        With `skip_misfits`, an index whose column does not fit a file, or whose kind is unknown, is
        not changed, and its `Refreshed.problem` says why. Otherwise the misfit raises
        `SchemaMismatch` or `UnknownIndexKind`.
        """
        problems: dict[str, str] | None = {} if skip_misfits else None
        for entry, _ in indices:
            try:
                kind_of(entry)
            except UnknownIndexKind as error:
                if problems is None:
                    raise
                problems[entry.name] = str(error)
                self.commands |= error.commands
        base, coverage = self._current_coverage()
        work = [
            self._plan_refresh(entry, columns, base, coverage, damaged, only_appended)
            for entry, columns in indices
            if not (problems and entry.name in problems)
        ]

        def check(latest: Version) -> None:
            for entry, _ in indices:
                latest_entry = latest.indices.get(entry.name)
                # The column names may differ: `entry` has the current name from the table.
                if latest_entry is None or replace(latest_entry, column=entry.column) != entry:
                    raise CommitConflict(
                        f"another writer has changed index {entry.name!r}; try again"
                    )

        entries_with_new_times = _entries_with_new_times(base, coverage)
        version = self._train_and_commit(
            base, work, engine, progress, check, entries_with_new_times, problems
        )
        work_by_name = {part.spec.name: part for part in work}
        refreshed = [
            failed_refresh(entry, problems[entry.name])
            if problems and entry.name in problems
            else work_by_name[entry.name].refreshed(version.indices[entry.name])
            for entry, _ in indices
        ]
        return version, refreshed

    def _current_coverage(self) -> tuple[Version, Coverage]:
        base = self._opened.version
        fragments = self._source.fragments
        identities = self._source.identities(None, indexed_identities(fragments, base))
        return base, compute_coverage(fragments, identities, base)

    def _plan_refresh(
        self,
        entry: IndexEntry,
        columns: Sequence[Column],
        base: Version,
        coverage: Coverage,
        damaged: Mapping[str, str],
        only_appended: bool,
    ) -> _IndexWork:
        stored = entry.global_filter
        size = None if stored is None else GlobalFilterSize(stored.num_items, stored.probability)
        column, *others = columns
        spec = IndexSpec(
            entry.name,
            column,
            entry.parameters,
            size,
            entry.field,
            entry.kind,
            rule_of(entry.rule),
            tuple(others),
        )
        if entry.name in damaged:
            return _IndexWork(spec, coverage.fragments, damage=damaged[entry.name])
        if only_appended:
            covered_ids = entry.fragment_ids
            appended = tuple(
                fragment
                for fragment in coverage.fragments
                if (known := base.fragments.get(fragment.fragment.key)) is None
                or known.fragment_id not in covered_ids
            )
            return _IndexWork(spec, appended, entry, entry.segments, frozenset(covered_ids))
        present = coverage.known_ids
        unchanged_ids = present | self._other_datasets.unchanged_ids(base, entry.fragment_ids)
        items = entry.number_of_items
        num_zones = {
            fragment.fragment_id: -(-fragment.num_rows // items)
            for fragment in base.fragments.values()
        }
        segments = tuple(_kept_segments(entry.segments, unchanged_ids, present, num_zones))
        kept_ids = {i for segment in segments for i in segment.fragment_ids}
        unindexed = tuple(
            fragment for fragment in coverage.fragments if fragment.fragment_id not in kept_ids
        )
        return _IndexWork(spec, unindexed, entry, segments, unchanged_ids)

    def _train_and_commit(
        self,
        base: Version,
        work: Sequence[_IndexWork],
        engine: Engine | None,
        progress: ProgressOption,
        check: Callable[[Version], None],
        entries_with_new_times: Sequence[KnownFragment] = (),
        problems: dict[str, str] | None = None,
    ) -> Version:
        """Train and commit some work. `check` raises `CommitConflict` if it no longer applies.

        `entries_with_new_times` are of files with other times but the same content. An index that
        does not fit a file is added to `problems`, or raises `SchemaMismatch` if that is None.
        """
        prefix = self._catalog.new_segment_prefix()
        with self._new_segments(prefix, base) as committed:
            trained = self._train_unindexed(prefix, work, engine, progress, problems)
            if problems:
                fits = [part.spec.name not in problems for part in work]
                work, trained = list(compress(work, fits)), list(compress(trained, fits))
            entries: dict[str, IndexEntry] = {}
            for number, (part, tasks) in enumerate(zip(work, trained, strict=True)):
                added = [task.segments[position] for task, position in tasks]
                name = f"{prefix}-{number}"
                kind = index_kind(part.spec.kind)
                segments = arrange_segments(
                    self._catalog, kind, f"{name}-all", part.segments, added
                )
                stored = self._global_filter(f"{name}-keys", part, tasks)
                before = part.before
                if before is None or (segments, stored) != (before.segments, before.global_filter):
                    entries[part.spec.name] = part.spec.make_entry(segments, stored)
            if not entries and not entries_with_new_times:
                return base
            identities = {
                fragment.fragment_id: fragment.identity
                for part in work
                for fragment in part.unindexed
            }
            # Several indices may share a task.
            results = {
                task.segments[0].name: task for tasks in trained for task, _ in tasks
            }.values()
            # Keep the identities seen by this process: remote workers see other inodes.
            indexed = {
                fragment.key: fragment._replace(identity=identities[fragment.fragment_id])
                for task in results
                for fragment in task.fragments
            }
            page_maps = base.with_indices(
                {**base.indices, **entries},
                [task.page_map for task in results if task.page_map is not None],
            ).page_maps
            page_maps = merge_small_page_maps(self._catalog, f"{prefix}-pages", page_maps)
            new_maps = [page_map for page_map in page_maps if page_map not in base.page_maps]
            new_names = {part.spec.name for part in work if part.before is None}

            def change(latest: Version) -> Version:
                _require_same_ids(latest, base, indexed, self._catalog.folder)
                check(latest)
                updated = {
                    fragment.key: fragment
                    for fragment in entries_with_new_times
                    if latest.fragments.get(fragment.key) == base.fragments[fragment.key]
                }
                ids = [latest.next_fragment_id, *(i + 1 for i in identities)]
                # Move new and replaced indices to the end, because what uses one index of a column
                # uses the last one. Refreshed indices keep their position.
                other_entries = {
                    name: entry for name, entry in latest.indices.items() if name not in new_names
                }
                return replace(
                    latest,
                    next_fragment_id=max(ids),
                    fragments={**latest.fragments, **updated, **indexed},
                ).with_indices({**other_entries, **entries}, new_maps)

            committed.append(self._catalog.commit(change))
            return committed[-1]

    @contextlib.contextmanager
    def _new_segments(self, prefix: str, base: Version) -> Iterator[list[Version]]:
        """Context for writing segments with a prefix. At the end, delete those not committed.

        The list gets the version that is committed.
        """
        committed: list[Version] = []
        try:
            with wrapping_write_errors(self._catalog.folder):
                yield committed
        except MissingIndexFile as error:
            if self._catalog.is_damaged(base):
                raise
            raise CommitConflict(
                f"{error}; another writer replaced it, or a vacuum() deleted it; try again"
            ) from None
        finally:
            # Ignore errors of the deletion: a later vacuum deletes the rest. They must not hide
            # the commit or the error of the build.
            self._catalog.delete_orphan_segments([prefix], next(iter(committed), None))

    def _train_unindexed(
        self,
        prefix: str,
        work: Sequence[_IndexWork],
        engine: Engine | None,
        progress: ProgressOption,
        problems: dict[str, str] | None,
    ) -> list[list[tuple[TrainedTask, int]]]:
        """Return the tasks of each index, each with the position of its segment in the task.

        Indices that lack the same fragments share tasks, so that every file is read once.
        """
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, part in enumerate(work):
            unindexed_ids = tuple(fragment.fragment_id for fragment in part.unindexed)
            groups.setdefault(unindexed_ids, []).append(number)
        trained: list[list[tuple[TrainedTask, int]]] = [[] for _ in work]
        numbers_of_groups = deque(numbers for ids, numbers in groups.items() if ids)
        count = 0
        while numbers_of_groups:
            numbers = numbers_of_groups.popleft()
            specs = [work[number].spec for number in numbers]
            unindexed = work[numbers[0]].unindexed
            try:
                tasks = self._train(f"{prefix}-{count}", specs, unindexed, engine, progress)
            except SchemaMismatch as error:
                if problems is None:
                    raise
                if len(numbers) == 1:
                    problems[specs[0].name] = f"index {specs[0].name!r} is not refreshed: {error}"
                    self.commands |= error.commands
                # Only one column may be at fault, so train each index alone.
                numbers_of_groups.extend([number] for number in numbers if len(numbers) > 1)
                tasks = []
            count += 1
            for position, number in enumerate(numbers):
                trained[number] = [(task, position) for task in tasks]
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
        total = 0
        if progress:
            total = sum(map(self._opened.look().count_rows, fragments))
        num_bytes = sum(fragment.identity.size for fragment in fragments)
        is_little = engine is not None and num_bytes < engine.min_bytes
        # The workers of an engine have no access to the rows in memory.
        if is_little or self._source.is_in_memory:
            engine = None
        where = f"on {engine.name}" if engine else "in this process"
        names = ", ".join(spec.column.name for spec in specs)
        with report_progress(progress, total, f"indexing {names} {where}") as report:
            if engine is None:
                trained = train_locally(tasks, progress=report)
            else:
                trained = engine.train(tasks, progress=report)
        if self._source.type_agreement == "first":
            _warn_of_hidden_columns(
                {name: path for task in trained for name, path in task.hidden_columns.items()}
            )
        return trained

    def _global_filter(
        self, segment: str, work: _IndexWork, tasks: Sequence[tuple[TrainedTask, int]]
    ) -> GlobalFilterEntry | None:
        """Return the global filter of an index with the keys of the new files."""
        if work.spec.global_size is None:
            return None
        before = None if work.before is None else work.before.global_filter
        if before is not None and not tasks:
            return before
        # The filter still holds the keys of files that are gone. Receipts of erasures say so.
        ids = [] if before is None else list(before.fragment_ids)
        parts = [
            part
            for task, position in tasks
            if (part := task.global_filter_parts[position]) is not None
        ]
        ids = list(dict.fromkeys([*ids, *(fragment.fragment_id for fragment in work.unindexed)]))
        return merge_parts(self._catalog, segment, work.spec.global_size, parts, ids, before)


def _refuse_int96(specs: Sequence[IndexSpec], source: Source, engine: Engine) -> None:
    """Refuse columns whose values the engine shows otherwise than they are indexed.

    INT96 is indexed in nanoseconds, which overflow before 1677 and after 2262 and have digits that
    Spark cuts off.
    """
    leaves = int96_leaves(source)
    for column in (column for spec in specs for column in spec.columns):
        if column.name in leaves:
            raise UnsupportedType(
                f"column {column.name!r} is stored as INT96, so queries of {engine.name} could "
                "not use an index of it; set spark.sql.parquet.outputTimestampType to "
                "TIMESTAMP_MICROS and write the files again, or call create_scalar_index with "
                "spark=False for an index that only Python uses"
            )


def _warn_of_hidden_columns(columns: Mapping[str, str]) -> None:
    if columns:
        examples = ", ".join(f"{name!r} of {path}" for name, path in sorted(columns.items())[:3])
        more = f", and {len(columns) - 3:,} more" if len(columns) > 3 else ""
        keep = ", or give schema= to keep this one without warning"
        warn(
            HiddenColumnsWarning(
                f"the dataset has the schema of its first file, which lacks {examples}{more}; open "
                f'it with schema="union" for all columns{keep}',
                commands={'open it with schema="union"': "give --schema union", keep: ""},
            )
        )


def _kept_segments(
    segments: Sequence[Segment],
    unchanged_ids: frozenset[int],
    present_ids: frozenset[int],
    num_zones: Mapping[int, int],
) -> Iterator[Segment]:
    """Yield the segments to keep, without missing and changed fragments.

    Drop a segment if most of its zones are unused, so that its other fragments are indexed again.
    Keep it if some of them belong to another dataset.
    """
    for segment in segments:
        ids = tuple(i for i in segment.fragment_ids if i in unchanged_ids)
        used_zones = sum(num_zones.get(i, 0) for i in ids)
        is_rebuilt = segment.num_zones > 2 * used_zones and present_ids.issuperset(ids)
        if ids and not is_rebuilt:
            yield replace(segment, fragment_ids=ids)


def _entries_with_new_times(base: Version, coverage: Coverage) -> list[KnownFragment]:
    """Return new entries for files that have other times but the content that was indexed."""
    entries_with_new_times = []
    for fragment in coverage.fragments:
        before = base.fragments.get(fragment.fragment.key)
        if before is None or before.identity == fragment.identity:
            continue
        if fragment.is_known and before.digest:
            entry = before._replace(identity=fragment.identity, seen_at=fragment.seen_at)
            entries_with_new_times.append(entry)
    return entries_with_new_times


def _require_same_ids(
    latest: Version, base: Version, indexed: Mapping[str, KnownFragment], folder: str
) -> None:
    """Raise `CommitConflict` if an id in the new segments now belongs to another file."""
    for key, fragment in indexed.items():
        entry = latest.fragments.get(key)
        if entry is not None and entry.fragment_id == fragment.fragment_id:
            # The build recognised this file by its entry in `base`. That is still right if the
            # latest version has the same entry, or one for the file as it is now.
            is_same_file = entry == base.fragments.get(key) or entry.identity.is_still(
                fragment.identity
            )
        else:
            # A new id is valid if it was free in `base` and no ids were assigned since.
            is_same_file = (
                fragment.fragment_id >= base.next_fragment_id
                and latest.next_fragment_id == base.next_fragment_id
            )
        if not is_same_file:
            raise CommitConflict(f"{folder}: another writer has indexed {key}; build again")

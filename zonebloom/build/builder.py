"""Building indices, and bringing them up to date, on threads or the engine that is handed in.

train -> segments -> arranged in a layout -> one commit

What fails leaves nothing behind: segments of a build are deleted unless its version names them.
"""

from __future__ import annotations

import contextlib
import posixpath
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from zonebloom.build.layout import arrange
from zonebloom.build.tasks import NewIndex, commit_indices, cut_tasks, train_locally
from zonebloom.build.train import TrainColumn, TrainedTask, TrainFragment
from zonebloom.catalog.coverage import Coverage, PresentFragment, cover
from zonebloom.catalog.freshness import last_seen
from zonebloom.catalog.model import (
    GlobalFilterEntry,
    IndexEntry,
    KnownFragment,
    Segment,
    Version,
    ZoneParameters,
)
from zonebloom.catalog.writing import not_written
from zonebloom.errors import CatalogError, HiddenColumnsWarning, IndexExists, ZoneBloomError
from zonebloom.index.global_filter import GlobalSize, Part, merge_parts
from zonebloom.opened import Opened
from zonebloom.progress import Progress, reporting
from zonebloom.storage.columns import Column
from zonebloom.storage.files import identities
from zonebloom.storage.memory import TableSource

# Trains tasks elsewhere: (tasks, *, progress, num_rows), in the order of the tasks.
Engine = Callable[..., list[TrainedTask]]


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


@dataclass(frozen=True, slots=True)
class Wanted:
    """An index to be built.

    Attributes
    ----------
    name : str
    column : Column
    parameters : ZoneParameters
    over_all : GlobalSize or None
        Of its global filter, if it is to have one.
    """

    name: str
    column: Column
    parameters: ZoneParameters
    over_all: GlobalSize | None = None

    @property
    def to_train(self) -> TrainColumn:
        """What tasks are told of it."""
        num_bytes = 0 if self.over_all is None else self.over_all.num_bytes
        return TrainColumn(self.column, self.parameters, num_bytes)


@dataclass(frozen=True, slots=True)
class _Change:
    """What is to be done to bring an index up to date.

    Attributes
    ----------
    kept : tuple of Segment
    missing : tuple of PresentFragment
        To be read.
    num_dropped : int
        Fragments forgotten.
    alive : frozenset of int
        Fragments that are as they were indexed.
    """

    entry: IndexEntry
    column: Column
    kept: tuple[Segment, ...]
    missing: tuple[PresentFragment, ...]
    num_dropped: int
    alive: frozenset[int]

    @property
    def to_train(self) -> TrainColumn:
        """What tasks are told of it."""
        stored = self.entry.global_filter
        size = None if stored is None else GlobalSize(stored.num_items, stored.probability)
        return Wanted(self.entry.name, self.column, self.entry.parameters, size).to_train


class Builder:
    """Builds the indices of one dataset."""

    def __init__(self, opened: Opened):
        self._source = opened.source
        self._catalog = opened.catalog
        self._planner = opened.planner

    def build(
        self,
        indices: Sequence[Wanted],
        layout: str,
        replace_existing: bool,
        engine: Engine | None,
        progress: Progress,
        prefix: str = "",
    ) -> Version:
        """Index every fragment in one pass over it, and commit all indices at once.

        The prefix is one of segments' names that no other build has, where it is to be known
        beforehand.
        """
        base = self._planner.version
        self._require_own([each.name for each in indices], base)
        coverage = cover(self._source.fragments, self._source.identities(), base)
        fragments = _keyed(coverage.present)
        ids = [fragment.fragment_id for _, fragment in fragments]

        def commit(prefix: str) -> Version:
            columns = [each.to_train for each in indices]
            trained = self._train(prefix, columns, coverage.present, engine, progress)
            made = []
            for number, each in enumerate(indices):
                segments = [task.segments[number] for task in trained]
                over_all = None
                if each.over_all is not None:
                    name, parts = f"{prefix}-{number}-keys", _parts(trained, number)
                    over_all = merge_parts(self._catalog, name, each.over_all, parts, ids)
                arranged = arrange(self._catalog, f"{prefix}-{number}-all", segments, layout)
                made.append(NewIndex(each.name, each.column, each.parameters, arranged, over_all))
            return commit_indices(
                self._catalog,
                base,
                made,
                fragments,
                trained,
                replace_existing=replace_existing,
                check=lambda latest: self._require_own([each.name for each in made], latest),
            )

        return self._cleanly(commit, prefix)

    def own_indices(self) -> list[str]:
        """Names of the indices but those of other datasets' files alone."""
        version = self._planner.version
        others = {each.fragment_id for each in self._of_others(version)}
        covered = {name: entry.fragment_ids for name, entry in version.indices.items()}
        return [name for name, ids in covered.items() if not ids or ids - others]

    def refresh(
        self,
        indices: Sequence[tuple[IndexEntry, Column]],
        layout: str,
        engine: Engine | None,
        progress: Progress,
    ) -> tuple[Version, list[Refreshed]]:
        """Index what indices do not cover, forget what is gone, and arrange their segments."""
        base = self._planner.version
        coverage = cover(self._source.fragments, self._source.identities(), base)
        changes = [self._change(entry, column, base, coverage) for entry, column in indices]
        seen_again = _seen_again(base, coverage)

        def commit(prefix: str) -> Version:
            trained = self._train_missing(prefix, changes, engine, progress)
            made = []
            for number, (change, tasks) in enumerate(zip(changes, trained, strict=True)):
                entry, at = change.entry, f"{prefix}-{number}"
                added = [task.segments[place] for task, place in tasks]
                segments = arrange(self._catalog, f"{at}-all", [*change.kept, *added], layout)
                over_all = self._over_all(f"{at}-keys", change, tasks)
                if segments != entry.segments or over_all != entry.global_filter:
                    made.append(
                        NewIndex(
                            entry.name, change.column, entry.parameters, segments, over_all, entry
                        )
                    )
            if not made and not seen_again:
                return base
            read = {each.fragment_id: each for change in changes for each in change.missing}
            return commit_indices(
                self._catalog,
                base,
                made,
                _keyed(list(read.values())),
                [task for tasks in trained for task, _ in tasks],
                replace_existing=True,
                seen_again=seen_again,
            )

        version = self._cleanly(commit)
        done = []
        for change in changes:
            now = version.indices[change.entry.name]
            done.append(
                Refreshed(
                    now.name,
                    len(change.missing),
                    change.num_dropped,
                    now.layout,
                    len(now.tables),
                    now != change.entry,
                )
            )
        return version, done

    def _change(
        self, entry: IndexEntry, column: Column, base: Version, coverage: Coverage
    ) -> _Change:
        """What is to be done to bring an index up to date."""
        covered = entry.fragment_ids
        alive = coverage.live | self._elsewhere(base, covered)
        items = entry.parameters.number_of_items
        zones = {k.fragment_id: -(-k.num_rows // items) for k in base.fragments.values()}
        kept = _still_used(entry.segments, alive, coverage.live, zones)
        left = {i for segment in kept if segment.layout != "pages" for i in segment.fragment_ids}
        missing = tuple(each for each in coverage.present if each.fragment_id not in left)
        return _Change(entry, column, tuple(kept), missing, len(covered - alive), alive)

    def _train_missing(
        self, prefix: str, changes: Sequence[_Change], engine: Engine | None, progress: Progress
    ) -> list[list[tuple[TrainedTask, int]]]:
        """Train what each index misses: those that miss the same files in one pass.

        For each change, the tasks and which of their columns is its.
        """
        alike: dict[tuple[int, ...], list[int]] = {}
        for number, change in enumerate(changes):
            alike.setdefault(tuple(e.fragment_id for e in change.missing), []).append(number)
        found: list[list[tuple[TrainedTask, int]]] = [[] for _ in changes]
        for group, numbers in enumerate(each for ids, each in alike.items() if ids):
            columns = [changes[number].to_train for number in numbers]
            missing = changes[numbers[0]].missing
            trained = self._train(f"{prefix}-{group}", columns, missing, engine, progress)
            for place, number in enumerate(numbers):
                found[number] = [(task, place) for task in trained]
        return found

    def _over_all(
        self, segment: str, change: _Change, tasks: Sequence[tuple[TrainedTask, int]]
    ) -> GlobalFilterEntry | None:
        """The global filter of an index with the keys of new files, as it was without any."""
        before = change.entry.global_filter
        if before is None:
            return None
        held = [i for i in before.fragment_ids if i in change.alive]
        if not tasks:
            return replace(before, fragment_ids=tuple(held))
        added = [each.fragment_id for each in change.missing]
        parts = _parts([task for task, _ in tasks], tasks[0][1])
        size = GlobalSize(before.num_items, before.probability)
        ids = [*held, *(i for i in added if i not in held)]
        return merge_parts(self._catalog, segment, size, parts, ids, before)

    def _elsewhere(self, base: Version, covered: set[int]) -> set[int]:
        """Indexed fragments that are none of this dataset's, but still are as they were.

        A dataset of some files may share the index with one of all.
        """
        listed = self._listed()
        return self._unchanged(
            known
            for known in base.fragments.values()
            if known.fragment_id in covered and known.key not in listed
        )

    def _listed(self) -> set[str]:
        return {fragment.key for fragment in self._source.fragments}

    def _unchanged(self, known: Iterable[KnownFragment]) -> set[int]:
        """Ids of the fragments whose files are as they were indexed."""
        fragments = list(known)
        paths = [self._path(each.key) for each in fragments]
        now = identities(self._source.filesystem, paths)
        return {
            each.fragment_id
            for each, path, identity in zip(fragments, paths, now, strict=True)
            if identity is not None and last_seen(path, each, identity) is not None
        }

    def _path(self, key: str) -> str:
        """Where a fragment lies that the catalog knows by a key."""
        # Of all or of none the key is the whole path, which need not begin with a slash.
        if any(fragment.key == fragment.path for fragment in self._source.fragments[:1]):
            return key
        return posixpath.join(self._source.root, key)

    def _of_others(self, version: Version) -> list[KnownFragment]:
        """Fragments that are none of this dataset's and lie elsewhere: of another one's."""
        listed, root = self._listed(), posixpath.join(self._source.root, "")
        return [
            known
            for known in version.fragments.values()
            if known.key not in listed and not self._path(known.key).startswith(root)
        ]

    def _require_own(self, names: Iterable[str], version: Version) -> None:
        """Refuse to replace an index of another dataset, whose files are still there."""
        taken = [version.indices[name] for name in names if name in version.indices]
        others = self._of_others(version) if taken else []
        for entry in taken:
            covered = entry.fragment_ids
            if self._unchanged(each for each in others if each.fragment_id in covered):
                raise IndexExists(
                    f"the index {entry.name!r} in {self._catalog.folder} is of another dataset, "
                    "which shares the folder; give this one another name, or another index_dir"
                )

    def _train(
        self,
        prefix: str,
        columns: Sequence[TrainColumn],
        fragments: Sequence[PresentFragment],
        engine: Engine | None,
        progress: Progress,
    ) -> list[TrainedTask]:
        source = self._source
        table = source.table if isinstance(source, TableSource) else None
        tasks = cut_tasks(
            prefix,
            self._catalog,
            source.format,
            source.filesystem,
            source.schema,
            columns,
            [fragment for _, fragment in _keyed(fragments)],
            table,
        )
        total = sum(self._planner.count_rows(each) for each in fragments) if progress else 0
        names = ", ".join(each.column.name for each in columns)
        with reporting(progress, total, f"indexing {names}") as report:
            # Rows in memory are here, not where another engine's workers are.
            if engine is None or table is not None:
                trained = train_locally(tasks, progress=report)
            else:
                trained = engine(tasks, progress=report, num_rows=total)
        if source.types == "first":
            _warn_of_hidden({name: at for task in trained for name, at in task.hidden.items()})
        return trained

    def _cleanly(self, commit: Callable[[str], Version], prefix: str = "") -> Version:
        """Run a build under a prefix of its own, and delete what its version does not name.

        What cannot be deleted now is left to `vacuum`: a version that was committed stands, and
        of a build that failed the user is to see why.
        """
        prefix = prefix or self._catalog.new_segment_prefix()
        try:
            version = commit(prefix)
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._delete_unnamed(prefix)
            if isinstance(error, OSError) and not isinstance(error, ZoneBloomError):
                raise not_written(self._catalog.folder, error) from None
            raise
        entries = list(version.indices.values())
        named = {name for entry in entries for name in entry.folders}
        with contextlib.suppress(OSError):
            self._catalog.delete_segments(prefix, keep=named)
        with contextlib.suppress(OSError):
            self._catalog.delete_tables(
                segment.name
                for entry in entries
                for segment in entry.segments
                if segment.layout == "pages" and segment.name.startswith(prefix)
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
        self._catalog.delete_segments(prefix, keep={n for entry in entries for n in entry.folders})


def _warn_of_hidden(columns: Mapping[str, str]) -> None:
    """Say which columns of later files the first file's schema leaves out."""
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


def _parts(trained: Sequence[TrainedTask], number: int) -> list[Part]:
    return [part for task in trained if (part := task.parts[number]) is not None]


def _seen_again(base: Version, coverage: Coverage) -> list[KnownFragment]:
    """Fragments whose files have other times than the catalog says, and are the same still."""
    found = []
    for each in coverage.present:
        before = base.fragments.get(each.fragment.key)
        if before is None or not each.is_known or not before.digest:
            continue
        if before.identity != each.identity:
            found.append(replace(before, identity=each.identity, seen_at=each.seen_at))
    return found

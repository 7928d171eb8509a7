"""Hold an opened dataset, its files and its catalog, and take snapshots of it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.notices import call_collecting, warn
from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.catalog.coverage import (
    Coverage,
    compute_coverage,
    indexed_identities,
)
from zonebloom.catalog.model import IndexEntry, Version
from zonebloom.catalog.page_maps import PageMaps
from zonebloom.catalog.place import default_index_folder
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    ColumnNotFound,
    EncryptedIndex,
    FilterError,
    FragmentUnreadable,
    IndexNotFound,
    InvalidArgument,
    MissingFilesWarning,
    SourceError,
    StaleIndex,
    StaleIndexWarning,
    ZoneBloomWarning,
)
from zonebloom.index.key_search import FILTERED_BY_ARROW, ReadCost
from zonebloom.index.matching import LoadedIndex, indexed_columns
from zonebloom.predicates import (
    Equals,
    IsIn,
    Predicate,
    RowFilter,
    join_filters,
    translate_filter,
    unknowns,
)
from zonebloom.predicates.ast import searched_columns
from zonebloom.predicates.type_requirements import columns_of_unfitting_literals
from zonebloom.scan.binding import Binding, known_columns_text, require_column
from zonebloom.scan.explain import ScanPlan
from zonebloom.scan.planner import plan_search, plan_whole_files
from zonebloom.scan.recheck import is_key_test
from zonebloom.scan.search import Search, preferred_index, search_indices
from zonebloom.snapshot import Snapshot, UnindexedFiles
from zonebloom.sources.column_batches import Column
from zonebloom.sources.discovery import add_partition_advice
from zonebloom.sources.fragment_filters import FragmentFilters
from zonebloom.sources.source import Source
from zonebloom.storage.files import FileIdentity
from zonebloom.storage.patterns import INDEX_FOLDER
from zonebloom.values.columns import column_path, find_leaf_type
from zonebloom.values.types import require_indexable

if TYPE_CHECKING:
    from concurrent.futures import Future

# A call in messages, and what users of the command do instead.
_REFRESH = "call optimize.optimize_indices()"
_COMMANDS = {_REFRESH: "run zonebloom refresh PATH"}


class OpenDataset(Protocol):
    """The state of `zonebloom.Dataset`, for functions that cannot import that class."""

    title: str
    opened: OpenedDataset

    def refresh(self) -> None:
        """List the files again if they can be listed, and use the newest index."""
        ...


class _Look(NamedTuple):
    """The identities of the files when they were last looked at, and their snapshot.

    The snapshot can be used again until an identity changes. It cannot if a file was written so
    recently that another write may leave its times as they are.
    """

    identities: Sequence[FileIdentity | None]
    snapshot: Snapshot
    is_reusable: bool


class OpenedDataset:
    """An opened dataset: its listed files, the catalog of its indices and the version in use.

    These stay the same. `look` compares the files with the version, and returns a `Snapshot` for
    searches and plans.

    Attributes
    ----------
    source : Source
    catalog : Catalog
    version : Version
    indices : dict of str to LoadedIndex
    embedded_filters : FragmentFilters
    uses_embedded_filters : bool
        Whether scans use the Bloom filters inside the Parquet files.
    binding : Binding
        Checks filters and projections.
    """

    def __init__(
        self,
        source: Source,
        catalog: Catalog,
        version: Version | None = None,
        embedded_filters: bool = False,
    ):
        version = _with_current_names(catalog.latest() if version is None else version, source)
        is_strict = source.stale == "raise"
        if version.locked_reason and is_strict:
            raise EncryptedIndex(version.locked_reason)
        self.source = source
        self.catalog = catalog
        self.version = version
        self.indices: dict[str, LoadedIndex] = {
            name: LoadedIndex(catalog, entry, strict=is_strict)
            for name, entry in version.indices.items()
        }
        self.embedded_filters = FragmentFilters(source)
        self.uses_embedded_filters = embedded_filters
        self.binding = Binding(source.schema)
        # The columns that were asked for, by name and whether its case was ignored.
        self._columns: dict[tuple[str, bool], Column] = {}
        self._page_maps = PageMaps(catalog, version.page_maps)
        self._unindexed_files = UnindexedFiles(version.next_fragment_id)
        self._last_look: _Look | None = None
        # The last warnings, so that the same warning is issued once.
        self._reported_gaps: Sequence[tuple[str, str]] = ()
        self._reported_missing_keys: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"<OpenedDataset {self.source.root}, index version {self.version.number}>"

    def look(self) -> Snapshot:
        """Return a snapshot of the files that exist now. Some files may be missing.

        The result is the same object for as long as the files do not change.
        """
        last, fragments = self._last_look, self.source.fragments
        before = indexed_identities(fragments, self.version) if last is None else last.identities
        identities = self.source.identities(None, before)
        is_same = last is not None and last.identities == identities
        if last is not None and is_same and last.is_reusable:
            return last.snapshot
        coverage = compute_coverage(
            fragments,
            identities,
            self.version,
            self.new_id,
            earlier=None if last is None else last.snapshot.coverage,
        )
        if (
            last is not None
            and is_same
            and np.array_equal(last.snapshot.coverage.ids, coverage.ids)
        ):
            snapshot = last.snapshot
        else:
            snapshot = self.snapshot_of(coverage)
        # Another thread may do the same for other files, so assign all in one step.
        self._last_look = _Look(identities, snapshot, coverage.is_reusable)
        return snapshot

    @property
    def last_snapshot(self) -> Snapshot:
        """The snapshot of the last look, or of a first one."""
        return self.look() if self._last_look is None else self._last_look.snapshot

    def new_id(self, key: str, identity: FileIdentity) -> int:
        """Return the id of a file that the catalog version does not know."""
        return self._unindexed_files.fragment_id(key, identity)

    def snapshot_of(self, coverage: Coverage) -> Snapshot:
        """Return a snapshot of the files of this dataset with a given coverage."""
        return Snapshot(
            self.source,
            self.version,
            coverage,
            self.indices,
            self._page_maps,
            self.embedded_filters if self.uses_embedded_filters else None,
            self._unindexed_files,
        )

    def look_at_all_files(self) -> Snapshot:
        """Return a snapshot for a scan of all files.

        A missing file raises `FragmentUnreadable`, or warns with stale="ignore-missing".
        """
        snapshot = self.look()
        if snapshot.coverage.missing_keys:
            self._report_missing(snapshot.coverage.missing_keys)
        return snapshot

    def search(
        self, predicate: Predicate, cost: ReadCost = FILTERED_BY_ARROW
    ) -> tuple[Snapshot, Search]:
        """Look at the files, and search the indices for a predicate.

        ``cost`` is that of reading rows without an index.

        While an object store lists the files, the indices and page maps are loaded. The earlier
        snapshot is searched meanwhile, or at first the one to expect if no file has changed since
        it was indexed. The result is used if no file has changed.
        """
        if not self.source.store.has_round_trips:
            snapshot = self.look_at_all_files()
            return snapshot, self.search_snapshot(snapshot, predicate, cost)
        if self._last_look is None:
            self._last_look = self._expected_look()
        last = None if self._last_look is None else self._last_look.snapshot
        columns = searched_columns(predicate)
        indices = [
            index for index in self.indices.values() if not columns.isdisjoint(index.columns)
        ]
        with thread_pool(REMOTE_THREADS) as pool:
            tasks: list[Future[tuple[Any, list[ZoneBloomWarning]]]] = [
                pool.submit(call_collecting, index.tables)
                for index in indices
                if not index.is_loaded
            ]
            early_search = None
            if last is not None:
                early_search = pool.submit(
                    call_collecting, _search_when_loaded, list(tasks), last, predicate, cost
                )
                tasks.append(early_search)
            if indices and self.source.is_parquet:
                pool.submit(self._page_maps.load_ahead)
            snapshot = self.look_at_all_files()
        # A table reports its damage once, so issue these warnings even if a file has changed.
        for task in tasks:
            if task.exception() is None:
                for warning in task.result()[1]:
                    warn(warning)
        if early_search is None or snapshot is not last:
            return snapshot, self.search_snapshot(snapshot, predicate, cost)
        search, _ = early_search.result()
        self._report_gaps(snapshot, tuple(search.used_views))
        return snapshot, search

    def search_filter(
        self, predicate: Predicate, cost: ReadCost = FILTERED_BY_ARROW
    ) -> tuple[Snapshot, Search]:
        """Look at the files, and search the indices for the predicate of a filter.

        Raise `SchemaMismatch` if a literal does not fit the type of its column, and a file stores
        the column in a wider type.
        """
        snapshot, search = self.search(predicate, cost)
        columns = columns_of_unfitting_literals(predicate, self.source.schema)
        if columns:
            snapshot.require_types(columns)
        return snapshot, search

    def open_indices_ahead(self) -> None:
        """Read the ends of the index files in a store in one round trip, if they are few."""
        if not self.source.store.has_round_trips:
            return
        segments = [
            (index, segment)
            for index in self.indices.values()
            for segment in index.segments_to_open_ahead
        ]
        if 0 < len(segments) <= REMOTE_THREADS:
            with thread_pool(len(segments)) as pool:
                for index, segment in segments:
                    pool.submit(index.open_ahead, segment)

    def _expected_look(self) -> _Look | None:
        """Return the look to expect if all files are as they were indexed.

        It holds only if a listing returns the same identities. Return None if some file is not
        indexed, or has no tag by which a store tells that it has not changed.
        """
        fragments = self.source.fragments
        identities: list[FileIdentity | None] = []
        for identity in indexed_identities(fragments, self.version):
            if identity is None or not identity.tag:
                return None
            identities.append(identity)
        coverage = compute_coverage(fragments, identities, self.version)
        return _Look(identities, self.snapshot_of(coverage), coverage.is_reusable)

    def search_snapshot(
        self, snapshot: Snapshot, predicate: Predicate, cost: ReadCost = FILTERED_BY_ARROW
    ) -> Search:
        """Search a snapshot, and warn of files that the indices used do not cover."""
        search = search_indices(snapshot, predicate, cost)
        self._report_gaps(snapshot, tuple(search.used_views))
        return search

    def plan(
        self,
        columns: tuple[str, ...],
        row_filter: RowFilter | None,
        predicate: Predicate | None,
        *,
        is_described: bool = True,
        cost: ReadCost = FILTERED_BY_ARROW,
    ) -> ScanPlan:
        """Return the plan of a scan. Without a filter or a predicate, no index is used.

        ``cost`` is that of reading rows without an index.
        """
        if predicate is None or row_filter is None:
            snapshot = self.look_at_all_files()
            return plan_whole_files(snapshot, columns, row_filter, is_described=is_described)
        bytes_before = {}
        if is_described:
            bytes_before = {name: index.loaded_bytes for name, index in self.indices.items()}
        map_bytes_before = self._page_maps.counter.num_bytes
        snapshot, search = self.search_filter(predicate, cost)
        return plan_search(
            snapshot,
            search,
            columns,
            row_filter,
            bytes_before,
            map_bytes_before,
            is_described=is_described,
        )

    def search_many(self, column: str, values: Any) -> Iterator[pa.RecordBatch]:
        """Yield the zones that may hold each of many keys; see `Dataset.candidates`."""
        from zonebloom.index.key_search import checked_keys, search_many

        snapshot = self.look_at_all_files()
        index, leaf = preferred_index(snapshot, column)
        keys = checked_keys(values, column, leaf)
        view = snapshot.view(index)
        self._report_gaps(snapshot, (index.entry.name,))
        uncovered = [
            present.fragment_id
            for present in snapshot.fragments
            if present.fragment_id in view.uncovered_ids
        ]
        return search_many(view, leaf, keys, np.array(uncovered, dtype=np.uint64))

    def _report_gaps(self, snapshot: Snapshot, index_names: tuple[str, ...]) -> None:
        """Warn once of files that not all named indices cover, or raise `StaleIndex`."""
        gaps = snapshot.gaps(index_names) if index_names else ()
        is_refused = self.source.stale == "raise"
        if not gaps or (gaps == self._reported_gaps and not is_refused):
            return
        self._reported_gaps = gaps
        text = _gaps_text(snapshot, gaps, is_refused=is_refused)
        if is_refused:
            raise StaleIndex(text)
        warn(StaleIndexWarning(text, commands=_COMMANDS))

    def _report_missing(self, missing_keys: Sequence[str]) -> None:
        """Raise `FragmentUnreadable`, or warn once with stale="ignore-missing"."""
        first = posixpath.join(self.source.root, missing_keys[0])
        more = f" and {len(missing_keys) - 1:,} more are" if len(missing_keys) > 1 else " is"
        text = f"{first}{more} gone since the dataset was opened"
        if self.source.stale != "ignore-missing":
            refresh = "call ds.refresh() or open it again"
            ignore = ', or open it with stale="ignore-missing" to leave such files out'
            raise FragmentUnreadable(
                f"{text}; {refresh}{ignore}",
                commands={refresh: "run the command again", ignore: ""},
            )
        if self._reported_missing_keys != missing_keys:
            self._reported_missing_keys = missing_keys
            warn(MissingFilesWarning(f"{text} and left out; call ds.refresh() or open it again"))

    def at_version(self, version: Version) -> OpenedDataset:
        return OpenedDataset(self.source, self.catalog, version, self.uses_embedded_filters)

    def with_newest_index(self) -> OpenedDataset:
        """Return the same files with the newest version of their index."""
        return self.at_version(self.catalog.latest())

    def warn_if_first_index_is_inside(self) -> None:
        """Warn before the build of a first index that disturbs readers of the data folder."""
        source = self.source
        inside = posixpath.join(source.root, INDEX_FOLDER)
        if self.catalog.folder != inside or source.is_table_snapshot:
            return
        is_default = default_index_folder(source.filesystem, source.root) == inside
        if is_default and not self.version.number and not self.catalog.newest_number():
            warn(
                ZoneBloomWarning(
                    f"the index of {source.root} lies inside it, in {inside}, because no folder "
                    "above it can hold an index. Readers that expect only data files in the folder "
                    f"will fail: give Polars and DuckDB {source.root}/**/*.parquet. A Spark job "
                    "that overwrites the folder deletes the index. To avoid both, give an index_dir"
                )
            )

    def with_current_files(self, source: Source, catalog: Catalog) -> OpenedDataset:
        """Return newly listed files with their newest index, or this object if nothing changed."""
        if catalog.folder != self.catalog.folder:
            raise SourceError(
                f"the files now lie below {source.root}, so their index would be in "
                f"{catalog.folder}, but it is in {self.catalog.folder}; open the dataset again"
            )
        version = _with_current_names(self.catalog.latest(), source)
        paths = [fragment.path for fragment in source.fragments]
        paths_before = [fragment.path for fragment in self.source.fragments]
        is_same = paths == paths_before and source.table_version == self.source.table_version
        is_same &= source.schema.equals(self.source.schema, check_metadata=True)
        if is_same and version == self.version:
            return self
        return OpenedDataset(source, self.catalog, version, self.uses_embedded_filters)

    def column(self, name: str, ignore_case: bool = False, *, of_any_type: bool = False) -> Column:
        """Return a column of the files. Raise an error if there is none of this name.

        Unless ``of_any_type``, also raise one if its values cannot be indexed.
        """
        column = self._columns.get((name, ignore_case))
        if column is not None:
            return column
        path = column_path(self.source.schema, name, ignore_case)
        if len(path) == 1:
            require_column(path[0], self.source.schema)
        leaf = find_leaf_type(self.source.schema, path)
        if leaf is None:
            raise ColumnNotFound(
                f"there is no column {arguments.short_repr(name)}, or more than one; "
                f"{known_columns_text(name, self.source.schema)}"
            )
        if not of_any_type:
            require_indexable(leaf, name)
        if path[0] in self.source.constant_columns():
            raise InvalidArgument(
                f"column {name!r} is read from the paths of the files, not from their rows, and "
                "scans skip files by it already; index another column"
            )
        column = Column(path, leaf)
        if not of_any_type:
            self._columns[name, ignore_case] = column
        return column

    def key_column(self, name: str) -> Column:
        """Return a column in which keys are looked up. It may be a partition column."""
        if name in self.source.constant_columns():
            return Column((name,), self.source.schema.field(name).type)
        return self.column(name)

    def require_unlocked(self) -> None:
        if self.version.locked_reason:
            raise EncryptedIndex(self.version.locked_reason)

    def index_entry(self, name: str) -> IndexEntry:
        self.require_unlocked()
        if arguments.require_text(name, "name") not in self.version.indices:
            suggestion = arguments.suggest_names(name, self.version.indices, "there is:")
            raise IndexNotFound(f"there is no index {arguments.short_repr(name)}; {suggestion}")
        return self.version.indices[name]

    def indexed_columns(self, entry: IndexEntry) -> tuple[Column, ...]:
        """Return the column of an index. Raise `SchemaMismatch` if its type has changed."""
        return indexed_columns(entry, self.source)

    def translate(
        self, filters: Sequence[Any], *, is_applied: bool = True
    ) -> tuple[RowFilter | None, Predicate]:
        """Translate filters that must all match into one row filter and one predicate."""
        if len(filters) > 1:
            return join_filters([self.translate([part], is_applied=is_applied) for part in filters])
        (filter,) = filters
        try:
            row_filter, predicate = translate_filter(filter, self.source.schema)
            is_sql = isinstance(filter, str)
            if not is_sql and is_key_test(row_filter, predicate, self.source.schema):
                # PyArrow can apply it to any row, and the check would hash all keys of a list.
                return row_filter, predicate
            # If an index can answer all of a SQL filter, PyArrow can apply it, so skip the check.
            is_key_search = isinstance(predicate, Equals | IsIn)
            if not is_sql or (not is_key_search and unknowns(predicate)):
                self.binding.check_filter(row_filter, is_applied=is_applied or is_sql)
        except FilterError as error:
            add_partition_advice(error, self.source, filter)
            raise
        return row_filter, predicate


def _gaps_text(snapshot: Snapshot, gaps: Sequence[tuple[str, str]], *, is_refused: bool) -> str:
    examples = ", ".join(f"{key} ({reason})" for key, reason in gaps[:3])
    examples += f", and {len(gaps) - 3:,} more" if len(gaps) > 3 else ""
    # A file is listed twice if two indices do not cover it.
    count = len({key for key, _ in gaps})
    verb, them = ("is", "it") if count == 1 else ("are", "them")
    fact = f"{count:,} of {len(snapshot.source.fragments):,} files {verb} not covered by the index"
    advice = f"{_REFRESH} to index {them}"
    if is_refused:
        advice += f', or open the dataset with stale="read" to read {them} whole'
        return f"{fact}: {examples}; {advice}"
    return f"{fact} and {verb} read whole: {examples}; {advice}"


def _search_when_loaded(
    loads: Sequence[Future[Any]], snapshot: Snapshot, predicate: Predicate, cost: ReadCost
) -> Search:
    """Search a snapshot after its indices were loaded, several at a time."""
    for load in loads:
        # The search reports the errors.
        load.exception()
    return search_indices(snapshot, predicate, cost)


def _with_current_names(version: Version, source: Source) -> Version:
    """Return a version whose indices have the current column names of the table."""
    indices = {
        name: replace(entry, column=source.column_of(entry.field) or entry.column)
        if entry.field
        else entry
        for name, entry in version.indices.items()
    }
    return version if indices == version.indices else replace(version, indices=indices)

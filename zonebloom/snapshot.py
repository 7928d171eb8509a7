"""A snapshot of a dataset: its files as they are at one moment, and one version of its indices.

`zonebloom.scan.opened` takes snapshots. Searches and plans are functions of a snapshot and a
request.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, OFFSET_BITS, RowRanges
from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.catalog.coverage import Coverage, PresentFragment
from zonebloom.catalog.model import IndexEntry, Version
from zonebloom.catalog.page_maps import PageMaps
from zonebloom.index.matching import IndexView, LoadedIndex, find_misfit
from zonebloom.index.partition_values import PartitionValues
from zonebloom.parquet.field_names import pages_with_names
from zonebloom.parquet.file_layout import FilePages
from zonebloom.sources.column_batches import require_fitting_type
from zonebloom.sources.fragment_filters import FragmentFilters
from zonebloom.sources.source import Source
from zonebloom.storage.file_view import FileView
from zonebloom.storage.files import FileIdentity, file_errors, is_at_rest, without_short_reads
from zonebloom.values.columns import find_leaf_type

_NO_ROWS = np.empty(0, dtype=np.int64)


class UnindexedFiles:
    """The ids and the row counts of files that the catalog does not know.

    All snapshots of an opened dataset share this object. An id is never given to another file,
    because callers may ask for rows by it later.
    """

    def __init__(self, next_fragment_id: int):
        self._free_ids = itertools.count(next_fragment_id)
        self._ids: dict[tuple[str, FileIdentity], int] = {}
        self.row_counts: dict[tuple[str, FileIdentity], int] = {}
        # The files whose type of a column was checked, as `Snapshot.require_types` does.
        self.fitting_columns: set[tuple[str, FileIdentity, tuple[str, ...]]] = set()

    def fragment_id(self, key: str, identity: FileIdentity) -> int:
        file = key, identity
        if file not in self._ids:
            # Several threads may come here at once. The first one chooses the id.
            self._ids.setdefault(file, next(self._free_ids))
        return self._ids[file]


@dataclass(frozen=True, slots=True)
class ColumnIndices:
    """The indices that can be searched for a column.

    Attributes
    ----------
    indices : tuple of LoadedIndex
        The index to prefer comes last.
    types : tuple of list of pyarrow.DataType
        The types of the columns of each index.
    misfits : tuple of str
        The reasons why indices of the column cannot be used.
    """

    indices: tuple[LoadedIndex, ...] = ()
    types: tuple[list[pa.DataType], ...] = ()
    misfits: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Snapshot:
    """The files of a dataset at one moment, matched with one version of its catalog.

    A snapshot never changes. It computes and loads some parts when they are first needed.

    Attributes
    ----------
    source : Source
    version : Version
    coverage : Coverage
        The files that exist, in scan order, and how the catalog version knows them.
    indices : dict of str to LoadedIndex
        All indices of the version, by name. Their files are loaded when they are first searched.
    page_maps : PageMaps
    embedded_filters : FragmentFilters or None
        The Bloom filters inside the Parquet files, if the dataset uses them.
    unindexed_files : UnindexedFiles
    """

    source: Source
    version: Version
    coverage: Coverage
    indices: Mapping[str, LoadedIndex]
    page_maps: PageMaps
    embedded_filters: FragmentFilters | None
    unindexed_files: UnindexedFiles
    _views: dict[str, IndexView] = field(default_factory=dict, init=False)
    _indices_of_columns: dict[tuple[str, ...], ColumnIndices] = field(
        default_factory=dict, init=False
    )
    _gaps: dict[tuple[str, ...], list[tuple[str, str]]] = field(default_factory=dict, init=False)
    _views_with_deletes: set[FileView] = field(default_factory=set, init=False)

    def __repr__(self) -> str:
        return (
            f"<Snapshot of {self.source.root}, files: {len(self.fragments):,}, "
            f"index version {self.version.number}>"
        )

    @cached_property
    def fragments(self) -> Sequence[PresentFragment]:
        """The files that exist, in scan order."""
        return self.coverage.fragments

    @cached_property
    def universe(self) -> RowRanges:
        """The addresses of all rows. A file that is not indexed counts as the largest possible."""
        return self.coverage.all_rows(lambda fragment: MAX_ROWS_PER_FRAGMENT)

    @cached_property
    def partition_values(self) -> PartitionValues:
        columns = self.source.partition_columns()
        values = [
            (present.fragment_id, self.source.constants(present.fragment))
            for present in (self.fragments if columns else ())
        ]
        return PartitionValues(self.source.schema, columns, values)

    @cached_property
    def combined_columns(self) -> list[tuple[tuple[str, ...], ...]]:
        """The columns of each index of a combination of columns."""
        return [index.columns for index in self.indices.values() if index.rule.other_columns]

    def view(self, index: LoadedIndex) -> IndexView:
        """Return an index restricted to the files that did not change since it was built."""
        name = index.entry.name
        if name not in self._views:
            known_ids = self.coverage.known_ids
            columns = {path[0] for path in index.columns} & self.partition_values.columns
            if columns:
                known_ids = frozenset(
                    present.fragment_id
                    for present in self.fragments_for(columns)
                    if present.is_known
                )
            # A table may hold zones of more fragments than its segment names. Do not trust those.
            known_ids &= index.entry.fragment_ids
            self._views[name] = IndexView(index, known_ids, self.universe)
        return self._views[name]

    def fragments_for(self, columns: Collection[str]) -> Sequence[PresentFragment]:
        """Return the files. Those whose path gives a value of the columns count as not indexed.

        They may store other values than their paths give.
        """
        if self.partition_values.columns.isdisjoint(columns):
            return self.fragments
        return [
            present
            if self.source.constants(present.fragment).keys().isdisjoint(columns)
            else present._replace(num_rows=None)
            for present in self.fragments
        ]

    def indices_of_column(self, path: tuple[str, ...]) -> ColumnIndices:
        """Return the indices that can be searched for conditions on a column."""
        if path not in self._indices_of_columns:
            self._indices_of_columns[path] = self._find_indices(path)
        return self._indices_of_columns[path]

    def _find_indices(self, path: tuple[str, ...]) -> ColumnIndices:
        on_column = [index for index in self.indices.values() if index.entry.column == path]
        if not on_column or path[0] in self.source.constant_columns():
            return ColumnIndices()
        misfits = [find_misfit(index.entry, self.source) for index in on_column]
        usable = [index for index, misfit in zip(on_column, misfits, strict=True) if misfit is None]
        # Other datasets may share the index folder. Prefer indices that cover a file of this one.
        of_dataset = [index for index in usable if self._knows_a_file(index.entry)]
        reasons = tuple(f"{misfit}; build it again" for misfit in misfits if misfit is not None)
        indices = tuple(of_dataset or usable[-1:])
        return ColumnIndices(indices, tuple(map(self._types_of_columns, indices)), reasons)

    def _types_of_columns(self, index: LoadedIndex) -> list[pa.DataType]:
        types = [find_leaf_type(self.source.schema, path) for path in index.columns]
        return [type_ for type_ in types if type_ is not None]

    def _knows_a_file(self, entry: IndexEntry) -> bool:
        known_ids = self.coverage.known_ids
        return any(not known_ids.isdisjoint(segment.fragment_ids) for segment in entry.segments)

    def files_of_unknown_type(self, column: tuple[str, ...]) -> list[PresentFragment]:
        """Return the files that may store values of a column that its type does not hold.

        A build refuses such files, so the type of the files in an index of the column is known.
        """
        indexed_ids: set[int] = set()
        for index in self.indices.values():
            if column in index.columns and find_misfit(index.entry, self.source) is None:
                indexed_ids |= index.entry.fragment_ids
        indexed_ids &= self.coverage.known_ids
        return [present for present in self.fragments if present.fragment_id not in indexed_ids]

    def require_types(self, columns: Iterable[tuple[str, ...]]) -> None:
        """Raise `SchemaMismatch` if a file stores a column in a wider type than the dataset's.

        Only then a literal that the dataset's type does not hold equals no value of the file. The
        schemas of files that no index of the column covers are read, each once.
        """
        if self.source.is_in_memory:
            return
        checked = self.unindexed_files.fitting_columns
        to_check = [
            (present, column)
            for column in columns
            for present in self.files_of_unknown_type(column)
            if (present.fragment.path, present.identity, column) not in checked
        ]

        def check(part: tuple[PresentFragment, tuple[str, ...]]) -> None:
            present, column = part
            checked_at = time.time_ns()
            require_fitting_type(self.source, present.fragment, column)
            # Another write so soon after the last one may leave the identity as it is.
            if is_at_rest(present.identity, checked_at):
                checked.add((present.fragment.path, present.identity, column))

        if len(to_check) == 1:
            check(to_check[0])
        elif to_check:
            with thread_pool(self.source.store.num_threads) as pool:
                for _ in pool.map(check, to_check):
                    pass

    def count_rows(self, present: PresentFragment) -> int:
        """Return the number of rows of a file, from the catalog or else from the file."""
        if present.num_rows is not None:
            return present.num_rows
        row_counts = self.unindexed_files.row_counts
        file = present.fragment.path, present.identity
        if file in row_counts:
            return row_counts[file]
        counted_at = time.time_ns()
        num_rows = self.count_rows_in_file(present)
        # Another write so soon after the last one may leave the identity as it is.
        if is_at_rest(present.identity, counted_at):
            row_counts[file] = num_rows
        return num_rows

    def count_rows_in_file(self, present: PresentFragment) -> int:
        """Return the number of rows of a file as it is now."""
        source, path = self.source, present.fragment.path
        parquet_in = source.filesystem if source.has_statistics else None
        with file_errors(path, parquet_in=parquet_in):
            return source.count_rows(present.fragment, without_short_reads(source.filesystem))

    def pages(self, present: PresentFragment) -> FilePages | None:
        """Return the pages of a file with the table's column names, or None if unknown."""
        pages = self.page_maps.file_pages(present)
        view = present.fragment.view
        if pages is None or view is None:
            return pages
        return pages_with_names(pages, view.names)

    def load_deletes(self, present: Sequence[PresentFragment]) -> None:
        """Read the deletes of several files in parallel. Each file's view keeps its deletes."""
        if not self.source.has_views:
            return
        # Another thread may add to the set, so do not iterate over it.
        seen = self._views_with_deletes
        views = {file.fragment.view for file in present if file.fragment.view is not None}
        views = {view for view in views if view not in seen}
        if not views:
            return
        if len(views) > 1:
            with thread_pool(REMOTE_THREADS) as pool:
                for _ in pool.map(lambda view: view.deleted, views):
                    pass
        seen.update(views)

    def deleted_rows(self) -> RowRanges:
        """Return the addresses of the rows that the table has deleted."""
        self.load_deletes(self.fragments)
        starts, stops = [_NO_ROWS], [_NO_ROWS]
        for present in self.fragments:
            first_address = present.fragment_id << OFFSET_BITS
            deleted_rows = present.fragment.deleted_rows
            starts.append(deleted_rows.starts + first_address)
            stops.append(deleted_rows.stops + first_address)
        return RowRanges.from_arrays(np.concatenate(starts), np.concatenate(stops))

    def gaps(self, index_names: tuple[str, ...]) -> list[tuple[str, str]]:
        """Return the key of each file that one of the named indices lacks, and the reason."""
        if index_names not in self._gaps:
            coverage = self.coverage
            gaps = [(file.fragment.key, file.reason) for file in coverage.unknown_fragments]
            for name in index_names:
                # A file that changed may have been indexed again for other indices only.
                uncovered_ids = coverage.known_ids - self.version.indices[name].fragment_ids
                gaps += [
                    (file.fragment.key, f"not in index {name}")
                    for file in (self.fragments if uncovered_ids else ())
                    if file.fragment_id in uncovered_ids
                ]
            self._gaps[index_names] = gaps
        return self._gaps[index_names]

"""Locate the index of a dataset, and hold an opened dataset: its files, catalog and planner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, Protocol

import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.base.notices import warn
from zonebloom.catalog.model import IndexEntry, Version
from zonebloom.catalog.place import (
    can_create_index,
    current_index_folder,
    default_index_folders,
    find_index_folder,
    was_index_read,
)
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    ColumnNotFound,
    EncryptedIndex,
    IndexNotFound,
    InvalidArgument,
    SourceError,
    ZoneBloomWarning,
)
from zonebloom.index.fit import indexed_column
from zonebloom.predicates import And, Predicate, RowFilter, translate_filter, unknowns
from zonebloom.scan.binding import Binding, known_columns_text, require_column
from zonebloom.scan.planner import Planner
from zonebloom.sources.column_batches import Column
from zonebloom.sources.source import Source
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.files import is_local
from zonebloom.storage.object_store import path_in
from zonebloom.values.columns import column_path, find_leaf_type
from zonebloom.values.types import require_indexable


def locate_catalog(
    source: Source, index_dir: str | None, encryption: Encryption | None = None
) -> tuple[Source, Catalog]:
    """Return the files of a dataset, and the catalog of their existing or future index.

    Every way to open a dataset calls this. The returned source identifies its files as the catalog
    does: by paths below their common folder, or by whole paths.
    """
    if is_local(source.filesystem):
        source = source.with_absolute_paths()
    if index_dir is None and source.root in ("", "/"):
        raise SourceError(
            "the files share no folder except the root, which cannot hold their index; "
            "give index_dir"
        )
    default_folders = default_folders_of(source)
    if index_dir is None:
        existing = find_index_folder(
            source.filesystem, source.root, source.is_table_snapshot, encryption
        )
        for folder in default_folders[1:] if existing is None else ():
            if was_index_read(source.filesystem, folder):
                # Reading this catalog warns that the index was deleted. A new index gets the
                # default folder.
                Catalog(source.filesystem, folder).latest()
        return source, Catalog(source.filesystem, existing or default_folders[0], encryption)
    folder = path_in(source.filesystem, index_dir)
    if is_local(source.filesystem):
        folder = os.path.abspath(folder)
    folder = folder.rstrip("/")
    default = _as_default(source, folder, default_folders)
    if default is None:
        # Several datasets may share the folder, so use whole paths as keys: file names may repeat.
        source = source.with_paths_as_keys()
    return source, Catalog(source.filesystem, default or folder, encryption)


def default_folders_of(source: Source) -> tuple[str, ...]:
    """Return the default folders for the index of a dataset, the preferred one first."""
    return default_index_folders(source.filesystem, source.root, source.is_table_snapshot)


def _as_default(source: Source, index_dir: str, defaults: Sequence[str]) -> str | None:
    """Return the default folder that `index_dir` is another spelling of, or None."""
    if not is_local(source.filesystem):
        return index_dir if index_dir in defaults else None
    real = os.path.realpath(index_dir)
    return next((folder for folder in defaults if os.path.realpath(folder) == real), None)


class OpenDataset(Protocol):
    """The state of `zonebloom.Dataset`, for functions that cannot import that class."""

    opened: OpenedDataset

    def refresh(self) -> None:
        """List the files again, and use their newest index."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class OpenedDataset:
    """An opened dataset: its listed files, the catalog of its indices and the version in use.

    The planner plans scans and lookups. The binding checks filters and projections.
    """

    source: Source
    catalog: Catalog
    version: Version
    planner: Planner
    binding: Binding

    @classmethod
    def create(
        cls,
        source: Source,
        catalog: Catalog,
        version: Version | None = None,
        embedded_filters: bool = False,
    ) -> OpenedDataset:
        version = _with_current_names(catalog.latest() if version is None else version, source)
        if version.locked_reason and source.stale == "raise":
            raise EncryptedIndex(version.locked_reason)
        planner = Planner(source, catalog, version, embedded_filters)
        return cls(source, catalog, version, planner, Binding(source.schema))

    def __repr__(self) -> str:
        return f"<OpenedDataset {self.source.root}, index version {self.version.number}>"

    def at_version(self, version: Version) -> OpenedDataset:
        return OpenedDataset.create(
            self.source, self.catalog, version, self.planner.uses_embedded_filters
        )

    def with_newest_index(self) -> OpenedDataset:
        """Return the same files with their newest index, even if the index was moved meanwhile."""
        source, before = self.source, self.catalog
        folder = current_index_folder(
            source.filesystem, source.root, before.folder, in_table=source.is_table_snapshot
        )
        if folder == before.folder:
            return self.at_version(before.latest())
        catalog = Catalog(source.filesystem, folder, before.encryption)
        return OpenedDataset.create(
            source, catalog, embedded_filters=self.planner.uses_embedded_filters
        )

    def in_writable_folder(self) -> OpenedDataset:
        """Return the dataset with a writable index folder, for the build of its first index.

        Warns
        -----
        ZoneBloomWarning
            If the index will lie inside the data folder, where it disturbs other readers.
        """
        source, catalog, default_folders = (
            self.source,
            self.catalog,
            default_folders_of(self.source),
        )
        is_first = not self.version.number and not catalog.newest_number()
        if not is_first or catalog.folder != default_folders[0] or source.is_table_snapshot:
            return self
        default, inner_folder = default_folders[0], default_folders[-1]
        if default == inner_folder:
            reason = "no folder above it can hold an index"
            _warn_of_readers(source.root, inner_folder, reason)
            return self
        if can_create_index(source.filesystem, default):
            return self
        _warn_of_readers(source.root, inner_folder, f"{default} cannot be written")
        catalog = Catalog(source.filesystem, inner_folder, catalog.encryption)
        return OpenedDataset.create(
            source, catalog, embedded_filters=self.planner.uses_embedded_filters
        )

    def with_current_files(self, source: Source, catalog: Catalog) -> OpenedDataset:
        """Return newly listed files with their newest index, or this object if nothing changed."""
        if catalog.folder != self.catalog.folder:
            if source.root == self.source.root:
                # The folder of the data is the same, so the index was moved.
                return OpenedDataset.create(
                    source, catalog, embedded_filters=self.planner.uses_embedded_filters
                )
            raise SourceError(
                f"the files now lie below {source.root}, so their index would be in "
                f"{catalog.folder}, but it is in {self.catalog.folder}; open the dataset again"
            )
        catalog.share_cache_of(self.catalog)
        version = _with_current_names(catalog.latest(), source)
        paths = [fragment.path for fragment in source.fragments]
        paths_before = [fragment.path for fragment in self.source.fragments]
        is_same = paths == paths_before and source.table_version == self.source.table_version
        is_same &= source.schema.equals(self.source.schema, check_metadata=True)
        if is_same and version == self.version:
            return self
        return OpenedDataset.create(
            source, self.catalog, version, self.planner.uses_embedded_filters
        )

    def column(self, name: str, ignore_case: bool = False) -> Column:
        path = column_path(self.source.schema, name, ignore_case)
        if len(path) == 1:
            require_column(path[0], self.source.schema)
        leaf = find_leaf_type(self.source.schema, path)
        if leaf is None:
            raise ColumnNotFound(
                f"there is no column {arguments.short_repr(name)}, or more than one; "
                f"{known_columns_text(name, self.source.schema)}"
            )
        require_indexable(leaf, name)
        if path[0] in self.source.partition_columns():
            raise InvalidArgument(
                f"column {name!r} is read from the paths of the files, not from their rows, and "
                "scans skip files by it already; index another column"
            )
        return Column(path, leaf)

    def key_column(self, name: str) -> Column:
        """Return a column in which keys are looked up. It may be a partition column."""
        if name in self.source.partition_columns():
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

    def indexed_column(self, entry: IndexEntry) -> Column:
        """Return the column of an index. Raise `SchemaMismatch` if its type has changed."""
        return indexed_column(entry, self.source)

    def translate(
        self, filters: Sequence[Any], *, is_applied: bool = True
    ) -> tuple[RowFilter | None, Predicate]:
        """Translate filters that must all match into one row filter and one predicate."""
        if len(filters) > 1:
            return self._combine(
                [self.translate([part], is_applied=is_applied) for part in filters]
            )
        (filter,) = filters
        expression, predicate = translate_filter(filter, self.source.schema)
        # If an index can answer all of a SQL filter, PyArrow can apply it, so skip the check.
        if not isinstance(filter, str) or unknowns(predicate):
            is_applied = is_applied or isinstance(filter, str)
            self.binding.check_filter(expression, is_applied=is_applied)
        return expression, predicate

    def _combine(
        self, translated: Sequence[tuple[RowFilter | None, Predicate]]
    ) -> tuple[RowFilter | None, Predicate]:
        expressions: list[pc.Expression] = []
        for expression, _ in translated:
            if isinstance(expression, pc.Expression):
                expressions.append(expression)
            elif expression is not None:
                raise InvalidArgument(
                    "a Polars expression cannot be combined with another filter of the dataset; "
                    "give it as SQL or as a pyarrow expression"
                )
        predicate = And(tuple(predicate for _, predicate in translated))
        return (reduce(and_, expressions) if expressions else None), predicate


def _warn_of_readers(root: str, index_folder: str, reason: str) -> None:
    warn(
        ZoneBloomWarning(
            f"the index of {root} lies inside it, in {index_folder}, because {reason}. Readers "
            "that expect only data files in the folder will fail: give Polars and DuckDB "
            f"{root}/**/*.parquet. A Spark job that overwrites the folder deletes the index. To "
            "avoid both, give an index_dir"
        )
    )


def _with_current_names(version: Version, source: Source) -> Version:
    """Return a version whose indices have the current column names of the table."""
    indices = {
        name: replace(entry, column=source.column_of(entry.field) or entry.column)
        if entry.field
        else entry
        for name, entry in version.indices.items()
    }
    return version if indices == version.indices else replace(version, indices=indices)

"""Find the indices of files that Spark listed, and ask them which files may hold matching rows."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from operator import is_
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base import arguments
from zonebloom.base.notices import collected_warnings, warn
from zonebloom.catalog.model import VERSIONS
from zonebloom.catalog.place import default_index_folder
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    IndexNotUsedWarning,
    InvalidArgument,
    SourceError,
    ZoneBloomError,
)
from zonebloom.index.row_keys.rules import columns_of_entry
from zonebloom.spark.managed_indices import DeletedIndices, deleted_indices_in, names_in_use
from zonebloom.spark.pruning.explanation import Note, PruningResult, Reason, merge_results
from zonebloom.spark.pruning.indexed_files import CatalogFiles, find_known_files
from zonebloom.spark.pruning.jvm_scan import JvmScan, ListedFiles
from zonebloom.spark.session_settings import open_path
from zonebloom.spark.session_state import LruCache, session_state
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.object_store import path_in
from zonebloom.storage.paths import absolute_path, folders_above, plain_path
from zonebloom.storage.patterns import data_folder_of
from zonebloom.storage.store import LOCAL, store_of

CachedType = TypeVar("CachedType")
# An answer that depends on more folders is not kept by the JVM.
_MAX_FOLDER_TIMES = 64
IndexDir = str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True, eq=False)
class _SeenFolders:
    """The folders at which a request has looked."""

    # The index folder of each data folder, or None if there is none.
    indices: dict[tuple[str, str], str | None] = field(default_factory=dict)
    # When the folders with versions of an index changed last, as `PruningResult` has it.
    times: dict[str, int] = field(default_factory=dict)

    def add_time(self, filesystem: pafs.FileSystem, index_folder: str) -> None:
        path = posixpath.join(index_folder, VERSIONS)
        is_local = store_of(filesystem) is LOCAL
        # No folder has the time -1, so an answer that depends on object stores never holds.
        self.times[path] = 0 if is_local else -1
        if is_local:
            with suppress(OSError):
                self.times[path] = os.stat(path).st_mtime_ns // 10**6


@dataclass(frozen=True, slots=True, eq=False)
class _Root:
    """A root of files that Spark listed, with the index folders that may know files below it."""

    # The path as Spark writes it, and as a path in the file system.
    path: str
    base: str = ""
    filesystem: Any = None
    # With the data folder of each, or None for an index of several datasets. The nearest is first.
    folders: Mapping[str, str | None] = field(default_factory=dict)
    # Why the path, or an index folder, cannot be opened.
    error: Exception | None = None

    @property
    def place(self) -> Hashable:
        """Return what tells roots with other indices apart."""
        return self.path if self.error else (self.filesystem.type_name, *self.folders.items())


# A function that returns the root with a path. It opens each root once.
FindRoot = Callable[[str], _Root]


class IndexLookup:
    """A lookup that finds the indices of files, and asks them which files may match a filter.

    Opened catalogs and files are cached while the catalog and the listing of files do not change.
    """

    def __init__(
        self,
        spark: Any,
        index_dir: IndexDir = None,
        encryption: Encryption | None = None,
    ):
        if encryption is not None:
            arguments.require_secret(encryption, Encryption, "encryption")
        self._spark = spark
        self._state = session_state(spark)
        self._index_dir = None
        if index_dir is not None:
            index_dir = absolute_path(arguments.require_path(index_dir, "index_dir"))
            self._index_dir = plain_path(index_dir).rstrip("/")
        self.encryption = encryption
        self._cache: LruCache[Any] = LruCache()

    def ask(self, scan: JvmScan) -> PruningResult:
        """Return which files a scan can skip. Files are listed only if they may have an index."""
        seen = _SeenFolders()
        find_root = cache(lambda path: self._root(path, seen))
        with collected_warnings() as issued_warnings:
            results = list(self._results(scan, find_root, seen))
        by_text = {str(warning): warning for warning in issued_warnings}
        damage = [
            Note(Reason.INDEX_DAMAGED, text)
            for text, warning in by_text.items()
            if isinstance(warning, IndexNotUsedWarning)
        ]
        result = merge_results(
            [*results, PruningResult(notes=tuple(damage), warnings=tuple(by_text.values()))]
        )
        is_one = len(results) == 1 and len(seen.times) <= _MAX_FOLDER_TIMES
        if result.warnings or not is_one:
            return result
        return replace(result, folder_times=results[0].folder_times)

    def _results(
        self, scan: JvmScan, find_root: FindRoot, seen: _SeenFolders
    ) -> Iterator[PruningResult]:
        paths = scan.roots
        if not any(root.folders or root.error for root in map(find_root, paths)):
            if paths:
                text = f"there is no index in {paths[0]} or above"
                yield PruningResult.keep_all(Reason.NO_INDEX, text, seen.times)
        elif len(paths) == 1 and not self._may_have_index_on(find_root(paths[0]), scan.columns):
            text = f"no index on {', '.join(sorted(scan.columns))}"
            yield PruningResult.keep_all(Reason.NO_INDEX_ON_COLUMN, text, seen.times)
        else:
            deleted = deleted_indices_in(scan.system_path, self._spark, self._state)
            for root, files in self._files_by_place(scan.files, paths, find_root):
                yield self._ask_root(root, files, scan, deleted)

    def _files_by_place(
        self, files: ListedFiles, paths: Sequence[str], find_root: FindRoot
    ) -> Iterator[tuple[_Root, ListedFiles]]:
        """Yield the files below the roots that have the same indices, with one of these roots."""
        by_root = self._cached(tuple(paths), (files,), lambda: files.positions_by_root(paths))
        groups: dict[Hashable, list[_Root]] = {}
        for root in map(find_root, by_root):
            groups.setdefault(root.place, []).append(root)
        for roots in groups.values():
            parts = [(root.path, root.base, by_root[root.path]) for root in roots]
            key = tuple((root.path, root.base) for root in roots)
            yield roots[0], self._cached(key, (files,), partial(files.below, parts))

    def _root(self, path: str, seen: _SeenFolders) -> _Root:
        try:
            filesystem, base = open_path(self._spark, path)
            folders = self._index_folders(filesystem, base, seen)
        except (ZoneBloomError, OSError, pa.ArrowException) as error:
            return _Root(path, error=error)
        return _Root(path, base, filesystem, folders)

    def missing_index(self) -> IndexNotUsedWarning | None:
        """Return a warning if there is no index in index_dir, because its path may be wrong."""
        if self._index_dir is None:
            return None
        reason = "there is no index in it"
        try:
            filesystem, folder = open_path(self._spark, self._index_dir)
            if Catalog(filesystem, folder).newest_number():
                return None
        except (ZoneBloomError, OSError, pa.ArrowException) as error:
            reason = str(error)
        return IndexNotUsedWarning(
            f"index_dir {self._index_dir} is not used: {reason}; correct the path, or build an "
            "index there"
        )

    def indexed_folders(self, path: str) -> Iterator[tuple[pafs.FileSystem, str, str]]:
        """Yield the data folders with an index at a path or above it, each with its index folder.

        An index_dir does not tell its data folder, so the path stands for it. Raises `SourceError`.
        """
        filesystem, base = open_path(self._spark, path)
        for folder, root in self._index_folders(filesystem, base, _SeenFolders()).items():
            yield filesystem, root or base, folder

    def _may_have_index_on(self, root: _Root, columns: frozenset[str]) -> bool:
        """Return whether files below a root may have an index on one of the given columns."""
        if root.error is not None:
            return True
        try:
            catalogs = [self._catalog(root.filesystem, folder) for folder in root.folders]
            indices = chain.from_iterable(catalog.latest().indices.values() for catalog in catalogs)
            paths = chain.from_iterable(map(columns_of_entry, indices))
            return any(path[0].lower() in columns for path in paths)
        except (ZoneBloomError, OSError, pa.ArrowException):
            return True

    def _index_folders(
        self, filesystem: pafs.FileSystem, base: str, seen: _SeenFolders
    ) -> dict[str, str | None]:
        """Return the folders of indices that may know files below a path, as `_Root` has them."""
        folders: dict[str, str | None] = {}
        if self._index_dir is not None:
            # An index in another file system knows none of these files.
            with suppress(InvalidArgument):
                folder = path_in(filesystem, self._index_dir)
                folders[folder] = data_folder_of(folder)
                seen.add_time(filesystem, folder)
        for root in folders_above(base):
            key = filesystem.type_name, root
            if key not in seen.indices:
                seen.indices[key] = self._folder_at(filesystem, root, seen)
            beside = seen.indices[key]
            if beside is not None:
                folders[beside] = root
        return folders

    def _folder_at(self, filesystem: pafs.FileSystem, root: str, seen: _SeenFolders) -> str | None:
        """Return the folder of the index of a data folder, or None if there is none."""
        folder = default_index_folder(filesystem, root)
        # Note the time before the folder is read, so that no later change is missed.
        seen.add_time(filesystem, folder)
        try:
            has_index = store_of(filesystem).is_folder(posixpath.join(folder, VERSIONS))
        except (OSError, pa.ArrowException):
            # If its catalog cannot be read either, that is reported.
            has_index = True
        cached = self._cache.get(folder)
        # If an index was deleted after it was read, its catalog warns about that.
        return folder if has_index or (cached is not None and cached.was_read) else None

    def _cached(
        self, place: Any, objects: tuple[Any, ...], make: Callable[[], CachedType]
    ) -> CachedType:
        """Return the cached result of `make` for a key, if it was made from the same objects."""
        cached = self._cache.get(place)
        if cached is None or not all(map(is_, cached[0], objects)):
            cached = self._cache.put(place, (objects, make()))
        return cached[1]

    def _ask_root(
        self, root: _Root, files: ListedFiles, scan: JvmScan, deleted: DeletedIndices
    ) -> PruningResult:
        problem = root.error
        if isinstance(problem, SourceError):
            return PruningResult.keep_all(Reason.NO_INDEX, f"no index is searched for: {problem}")
        if problem is None:
            try:
                catalog_files = self._catalog_files(root, files, scan.columns, deleted)
                if catalog_files is not None:
                    return catalog_files.ask(scan)
                text = f"no index knows files of {root.path}"
                return PruningResult.keep_all(Reason.NO_INDEX, text)
            except (ZoneBloomError, OSError, pa.ArrowException) as error:
                problem = error
        return PruningResult.of_unusable_index(f"the index of {root.path} is not used: {problem}")

    def _catalog_files(
        self, root: _Root, files: ListedFiles, columns: frozenset[str], deleted: DeletedIndices
    ) -> CatalogFiles | None:
        """Return the files with the catalog that is used for them, if any catalog knows them.

        The first catalog with an index on one of the columns is used, or else the first one.
        Indices that a manager of the session deleted are not used.
        """
        first = None
        for folder in root.folders:
            try:
                catalog_files = self._open_files(root, folder, files, deleted)
            except (ZoneBloomError, OSError, pa.ArrowException) as error:
                warn(IndexNotUsedWarning(f"the index in {folder} is not used: {error}"))
                continue
            if catalog_files is not None and catalog_files.has_index_on(columns):
                return catalog_files
            first = first or catalog_files
        return first

    def _catalog(self, filesystem: pafs.FileSystem, folder: str) -> Catalog:
        """Return the cached catalog of a folder, which all queries share."""
        catalog = self._cache.get(folder)
        if catalog is None or not catalog.filesystem.equals(filesystem):
            catalog = self._cache.put(folder, Catalog(filesystem, folder, self.encryption))
        return catalog

    def _open_files(
        self, root: _Root, folder: str, files: ListedFiles, deleted: DeletedIndices
    ) -> CatalogFiles | None:
        """Return the files with the catalog in a folder, or None if it knows none of them."""
        catalog = self._catalog(root.filesystem, folder)
        version = catalog.latest()
        names = names_in_use(catalog, version.indices, deleted)

        def open_files() -> CatalogFiles | None:
            known_files = find_known_files(version, files.paths, root.folders[folder])
            if known_files is None:
                return None
            indices = {name: version.indices[name] for name in names}
            return CatalogFiles(catalog, replace(version, indices=indices), known_files, files)

        key = (root.path, root.base), folder, *names
        return self._cached(key, (version, files), open_files)

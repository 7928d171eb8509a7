"""Find the indices of files that Spark listed, and ask them which files may hold matching rows."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import is_
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base import arguments
from zonebloom.base.notices import collected_warnings, warn
from zonebloom.catalog.names import VERSIONS
from zonebloom.catalog.place import (
    default_index_folder,
    root_of_index,
)
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    IndexNotUsedWarning,
    InvalidArgument,
    SourceError,
    ZoneBloomError,
)
from zonebloom.index.row_keys.rules import columns_of_entry
from zonebloom.spark.managed_indices import DeletedIndices, deleted_indices, names_in_use
from zonebloom.spark.pruning.answer import PruningResult, merge_results
from zonebloom.spark.pruning.explanation import Note, Reason
from zonebloom.spark.pruning.indexed_files import CatalogFiles, find_known_files
from zonebloom.spark.pruning.jvm_scan import JvmScan
from zonebloom.spark.pruning.listed_files import ListedFiles
from zonebloom.spark.session_settings import open_path
from zonebloom.spark.session_state import LruCache
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.object_store import path_in
from zonebloom.storage.paths import absolute_path, folders_above, plain_path, split_path
from zonebloom.storage.store import store_of

CachedType = TypeVar("CachedType")

# The index folder of each data folder that a request has looked at, or None if there is none.
KnownFolders = dict[tuple[str, str], str | None]
IndexDir = str | os.PathLike[str] | None


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
        self._index_dir = None
        if index_dir is not None:
            index_dir = absolute_path(arguments.require_path(index_dir, "index_dir"))
            self._index_dir = plain_path(index_dir).rstrip("/")
        self.encryption = encryption
        self._cache: LruCache[Any] = LruCache()

    def ask(self, scan: JvmScan) -> PruningResult:
        """Return which files a scan can skip. Files are listed only if they may have an index."""
        roots, known_folders = scan.roots, KnownFolders()
        with collected_warnings() as issued_warnings:
            if not any(self._may_know(root, known_folders) for root in roots):
                text = f"there is no index in {roots[0]} or above" if roots else ""
                results = [PruningResult.keep_all(Reason.NO_INDEX, text)] if roots else []
            elif len(roots) == 1 and not self._may_know(roots[0], known_folders, scan.columns):
                text = f"no index on {', '.join(sorted(scan.columns))}"
                results = [PruningResult.keep_all(Reason.NO_INDEX_ON_COLUMN, text)]
            else:
                groups = self._files_by_root(scan.files, roots, known_folders)
                deleted = deleted_indices(self._spark)
                results = [
                    self._ask_root(root, files, scan, known_folders, deleted)
                    for root, files in groups
                ]
        by_text = {str(warning): warning for warning in issued_warnings}
        damage = [
            Note(Reason.INDEX_DAMAGED, text)
            for text, warning in by_text.items()
            if isinstance(warning, IndexNotUsedWarning)
        ]
        return merge_results(
            [*results, PruningResult(notes=tuple(damage), warnings=tuple(by_text.values()))]
        )

    def _files_by_root(
        self, files: ListedFiles, roots: Sequence[str], known_folders: KnownFolders
    ) -> list[tuple[str, ListedFiles]]:
        """Return the files below each root, or below each folder in place of several roots."""
        groups = self._cached(tuple(roots), (files,), lambda: files.by_root(roots))
        folders = self._merged_roots([root for root, _ in groups], known_folders)
        if len(folders) == len(groups):
            return groups
        return self._cached(tuple(folders), (files,), lambda: files.by_root(folders))

    def _merged_roots(self, roots: Sequence[str], known_folders: KnownFolders) -> list[str]:
        """Return the roots, with one folder in place of those whose files only one index knows.

        A glob of many folders is then asked about at once.
        """
        groups: dict[tuple[str, str], list[str]] = {}
        for root in roots if len(roots) > 1 else ():
            groups.setdefault(self._place_key(root, known_folders), []).append(root)
        merged: list[str] = []
        for key, group in groups.items():
            # It compares lists item by item.
            common_names = os.path.commonprefix([root.split("/") for root in group])  # noqa: RUF071
            common_folder = "/".join(common_names)
            # Without a slash it is only the scheme of a URI.
            is_folder = "/" in common_folder and bool(split_path(common_folder)[1].strip("/"))
            is_same_place = is_folder and key == self._place_key(common_folder, known_folders)
            merged += [common_folder] if is_same_place else group
        return merged or list(roots)

    def _place_key(self, root: str, known_folders: KnownFolders) -> tuple[str, str]:
        """Return the only index folder that may know a root, or else the root itself.

        The kind of the file system comes first, "" for the root itself.
        """
        try:
            filesystem, base = open_path(self._spark, root)
            folders = self._index_folders(filesystem, base, known_folders)
        except (ZoneBloomError, OSError, pa.ArrowException):
            folders = []
        return (filesystem.type_name, folders[0]) if len(folders) == 1 else ("", root)

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
        for folder in self._index_folders(filesystem, base, KnownFolders()):
            yield filesystem, root_of_index(filesystem, base, folder) or base, folder

    def _may_know(
        self, root: str, known_folders: KnownFolders, columns: frozenset[str] = frozenset()
    ) -> bool:
        """Return whether files below a root may have an index on one of the given columns."""
        try:
            filesystem, base = open_path(self._spark, root)
            folders = self._index_folders(filesystem, base, known_folders)
            if not columns:
                return bool(folders)
            catalogs = [self._catalog(filesystem, folder) for folder in folders]
            indices = chain.from_iterable(catalog.latest().indices.values() for catalog in catalogs)
            paths = chain.from_iterable(map(columns_of_entry, indices))
            return any(path[0].lower() in columns for path in paths)
        except (ZoneBloomError, OSError, pa.ArrowException):
            return True

    def _index_folders(
        self, filesystem: pafs.FileSystem, base: str, known_folders: KnownFolders
    ) -> list[str]:
        """Return the folders of indices that may know files below a path, the nearest first."""
        folders: list[str] = []
        if self._index_dir is not None:
            # An index in another file system knows none of these files.
            with suppress(InvalidArgument):
                folders.append(path_in(filesystem, self._index_dir))
        for root in folders_above(base):
            key = filesystem.type_name, root
            if key not in known_folders:
                known_folders[key] = self._folder_at(filesystem, root)
            folders += filter(None, [known_folders[key]])
        return list(dict.fromkeys(folders))

    def _folder_at(self, filesystem: pafs.FileSystem, root: str) -> str | None:
        """Return the folder of the index of a data folder, or None if there is none."""
        folder = default_index_folder(filesystem, root)
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
        self,
        root: str,
        files: ListedFiles,
        scan: JvmScan,
        known_folders: KnownFolders,
        deleted: DeletedIndices,
    ) -> PruningResult:
        try:
            filesystem, base = open_path(self._spark, root)
        except SourceError as error:
            text = f"no index is searched for: {error}"
            return PruningResult.keep_all(Reason.NO_INDEX, text)
        try:
            place = root, base
            catalog_files = self._catalog_files(
                place, filesystem, files, scan.columns, known_folders, deleted
            )
            results = [files_of_catalog.ask(scan) for files_of_catalog in catalog_files]
        except (ZoneBloomError, OSError, pa.ArrowException) as error:
            return PruningResult.of_unusable_index(f"the index of {root} is not used: {error}")
        if not results:
            return PruningResult.keep_all(Reason.NO_INDEX, f"no index knows files of {root}")
        return merge_results(results)

    def _catalog_files(
        self,
        place: tuple[str, str],
        filesystem: pafs.FileSystem,
        files: ListedFiles,
        columns: frozenset[str],
        known_folders: KnownFolders,
        deleted: DeletedIndices,
    ) -> Iterator[CatalogFiles]:
        """Yield the files with the catalog that is used for them, if any catalog knows them.

        The first catalog with an index on one of the columns is used, or else the first one.
        ``place`` is a root as Spark writes it, and as a path in the file system. Indices that a
        manager of the session deleted are not used.
        """
        first = None
        for folder in self._index_folders(filesystem, place[1], known_folders):
            try:
                catalog = self._catalog(filesystem, folder)
                catalog_files = self._open_files(place, catalog, files, deleted)
            except (ZoneBloomError, OSError, pa.ArrowException) as error:
                warn(IndexNotUsedWarning(f"the index in {folder} is not used: {error}"))
                continue
            if catalog_files is not None and catalog_files.has_index_on(columns):
                yield catalog_files
                return
            first = first or catalog_files
        if first is not None:
            yield first

    def _catalog(self, filesystem: pafs.FileSystem, folder: str) -> Catalog:
        """Return the cached catalog of a folder, which all queries share."""
        catalog = self._cache.get(folder)
        if catalog is None or not catalog.filesystem.equals(filesystem):
            catalog = self._cache.put(folder, Catalog(filesystem, folder, self.encryption))
        return catalog

    def _open_files(
        self,
        place: tuple[str, str],
        catalog: Catalog,
        files: ListedFiles,
        deleted: DeletedIndices,
    ) -> CatalogFiles | None:
        """Return the files with a catalog, or None if it knows none of them."""
        version, (root, base) = catalog.latest(), place
        names = names_in_use(catalog, version.indices, deleted)

        def open_files() -> CatalogFiles | None:
            data_folder = root_of_index(catalog.filesystem, base, catalog.folder)
            known_files = find_known_files(version, files.paths_below(root, base), data_folder)
            if known_files is None:
                return None
            indices = {name: version.indices[name] for name in names}
            return CatalogFiles(catalog, replace(version, indices=indices), known_files, files)

        return self._cached((place, catalog.folder, *names), (version, files), open_files)

"""Where the indices are of files that Spark listed, and asking them which may hold rows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from operator import is_
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base import arguments
from zonebloom.base.notices import collected_warnings, warn
from zonebloom.catalog.place import (
    default_index_folders,
    find_index_folder,
    folders_above,
    root_of_index,
    was_index_read,
)
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    IndexNotUsedWarning,
    InvalidArgument,
    SourceError,
    ZoneBloomError,
)
from zonebloom.spark.pruning.answer import (
    PruningRequest,
    PruningResult,
    merge_results,
    result_of_unusable_index,
    result_without_index,
)
from zonebloom.spark.pruning.indexed_files import CatalogFiles, known_keys
from zonebloom.spark.pruning.listed_files import ListedFiles
from zonebloom.spark.pruning.prune_plan import Note, Reason
from zonebloom.spark.session import open_path
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.object_store import path_in
from zonebloom.storage.paths import plain_path

CachedType = TypeVar("CachedType")

# Roots, catalogs and listings of which something is kept.
_MOST_KEPT = 64
# One folder of indices, or several.
IndexDirs = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None


class BoundedCache(dict[Any, Any]):
    """The entries that were added last. Threads may add entries at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def __setitem__(self, key: Any, value: Any) -> None:
        with self._lock:
            super().__setitem__(key, value)
            if len(self) > _MOST_KEPT:
                self.pop(next(iter(self)))


class IndexLookup:
    """Finds and asks the indices of files: the one way to say which files a filter keeps.

    What it opened is kept while the catalog and the listing of the files stay as they are.
    """

    def __init__(
        self,
        spark: Any,
        index_dir: IndexDirs = None,
        encryption: Encryption | None = None,
        cache: BoundedCache | None = None,
    ):
        self._spark = spark
        self._index_dirs = _index_dirs(index_dir)
        self._encryption = encryption
        self._cache = BoundedCache() if cache is None else cache

    def ask(self, question: PruningRequest) -> PruningResult:
        """Answer a question; the files are listed only where there may be an index of them."""
        roots = question.roots
        with collected_warnings() as issued:
            if not any(map(self._may_know, roots)):
                answers = (
                    [result_without_index(f"there is no index in {roots[0]} or above")]
                    if roots
                    else []
                )
            elif len(roots) == 1 and not self._may_know(roots[0], question.columns):
                text = f"no index on {', '.join(sorted(question.columns))}"
                answers = [PruningResult(notes=(Note(Reason.NO_INDEX_ON_COLUMN, text),))]
            else:
                files = question.list_files()
                groups = self._made(tuple(roots), (files,), lambda: files.by_root(roots))
                answers = [self._ask_root(root, below, question) for root, below in groups]
        by_text = {str(warning): warning for warning in issued}
        damage = [
            Note(Reason.INDEX_DAMAGED, text)
            for text, warning in by_text.items()
            if isinstance(warning, IndexNotUsedWarning)
        ]
        return merge_results(
            [*answers, PruningResult(notes=tuple(damage), warnings=tuple(by_text.values()))]
        )

    def missing_dirs(self) -> Iterator[IndexNotUsedWarning]:
        """Yield a warning for each index_dir without an index, for it may be mistyped."""
        for index_dir in self._index_dirs:
            reason = "there is no index in it"
            try:
                filesystem, folder = open_path(self._spark, index_dir)
                if Catalog(filesystem, folder).newest_number():
                    continue
            except (ZoneBloomError, OSError, pa.ArrowException) as error:
                reason = str(error)
            yield IndexNotUsedWarning(
                f"index_dir {index_dir} is not used: {reason}; correct the path, or build an "
                "index there"
            )

    def _may_know(self, root: str, columns: frozenset[str] = frozenset()) -> bool:
        """Whether there may be an index of files below a root, on one of some columns if given."""
        try:
            filesystem, base = open_path(self._spark, root)
            folders = self._folders(filesystem, base)
            if not columns:
                return bool(folders)
            catalogs = [self._catalog(filesystem, folder) for folder in folders]
            indices = chain.from_iterable(each.latest().indices.values() for each in catalogs)
            return any(entry.column[0].lower() in columns for entry in indices)
        except (ZoneBloomError, OSError, pa.ArrowException):
            return True

    def _folders(self, filesystem: pafs.FileSystem, base: str) -> list[str]:
        """Of the indices that may know files below a place, the nearest first."""
        folders = [*self._given_folders(filesystem), *_folders(filesystem, base)]
        return list(dict.fromkeys(folders))

    def _given_folders(self, filesystem: pafs.FileSystem) -> Iterator[str]:
        for index_dir in self._index_dirs:
            try:
                yield path_in(filesystem, index_dir)
            except InvalidArgument:
                # The index lies in another file system, so it knows none of these files.
                continue

    def _made(self, place: Any, of: tuple[Any, ...], make: Callable[[], CachedType]) -> CachedType:
        """What was made of objects, for as long as the same are given again."""
        cached = self._cache.get(place)
        if cached is None or not all(map(is_, cached[0], of)):
            cached = self._cache[place] = of, make()
        return cached[1]

    def _ask_root(self, root: str, files: ListedFiles, question: PruningRequest) -> PruningResult:
        try:
            filesystem, base = open_path(self._spark, root)
        except SourceError as error:
            return result_without_index(f"no index is looked for: {error}")
        try:
            indexed = self._indexed((root, base), filesystem, files, question.columns)
            answers = [files.ask(question) for files in indexed]
        except (ZoneBloomError, OSError, pa.ArrowException) as error:
            return result_of_unusable_index(f"the index of {root} is not used: {error}")
        return (
            merge_results(answers)
            if answers
            else result_without_index(f"no index knows files of {root}")
        )

    def _indexed(
        self,
        place: tuple[str, str],
        filesystem: pafs.FileSystem,
        files: ListedFiles,
        columns: frozenset[str],
    ) -> Iterator[CatalogFiles]:
        """Yield the files as one catalog knows them, if any knows some of them.

        The first catalog with an index on one of the columns is used, otherwise the first one. A
        place is a root as Spark names it, and as the file system does.
        """
        first = None
        for folder in self._folders(filesystem, place[1]):
            try:
                indexed = self._open(place, self._catalog(filesystem, folder), files)
            except (ZoneBloomError, OSError, pa.ArrowException) as error:
                warn(IndexNotUsedWarning(f"the index in {folder} is not used: {error}"))
                continue
            if indexed is not None and indexed.has_index_on(columns):
                yield indexed
                return
            first = first or indexed
        if first is not None:
            yield first

    def _catalog(self, filesystem: pafs.FileSystem, folder: str) -> Catalog:
        """One for all queries: it remembers what it read."""
        catalog = self._cache.get(folder)
        if catalog is None or not catalog.filesystem.equals(filesystem):
            catalog = self._cache[folder] = Catalog(filesystem, folder, self._encryption)
        return catalog

    def _open(
        self,
        place: tuple[str, str],
        catalog: Catalog,
        files: ListedFiles,
        names: frozenset[str] | None = None,
    ) -> CatalogFiles | None:
        """The files as a catalog has them, with all indices or some; None when it knows none."""
        version, (root, base) = catalog.latest(), place

        def opened() -> CatalogFiles | None:
            paths = [base + path.removeprefix(root) for path in files.paths.to_pylist()]
            data_folder = root_of_index(catalog.filesystem, base, catalog.folder)
            keys = known_keys(version, paths, data_folder)
            if keys is None:
                return None
            # In their order: the last one made on a column is the one asked.
            indices = version.indices.items()
            allowed = {n: entry for n, entry in indices if names is None or n in names}
            return CatalogFiles(catalog, replace(version, indices=allowed), paths, keys, files)

        return self._made((place, catalog.folder, names), (version, files), opened)


def _index_dirs(value: IndexDirs) -> tuple[str, ...]:
    """Return the folders of indices that a caller gives, without slashes at their ends."""
    if value is None or isinstance(value, str | os.PathLike):
        paths = [] if value is None else [arguments.require_path(value, "index_dir")]
    elif isinstance(value, Iterable):
        paths = [arguments.require_path(path, "an item of index_dir") for path in value]
    else:
        raise arguments.invalid_value(value, "index_dir", "give a path, or a list of paths")
    return tuple(plain_path(path).rstrip("/") for path in paths)


def _folders(filesystem: pafs.FileSystem, path: str) -> list[str]:
    """Folders of indices at a path or above it, the nearest first."""
    found = []
    for root in folders_above(path):
        places = default_index_folders(filesystem, root)
        # The catalog of an index that is gone warns of that.
        gone = (place for place in places if was_index_read(filesystem, place))
        folder = find_index_folder(filesystem, root) or next(gone, None)
        if folder is not None:
            found.append(folder)
    return found

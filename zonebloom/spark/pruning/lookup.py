"""Where the indices are of files that Spark listed, and asking them which may hold rows."""

from __future__ import annotations

import contextlib
import gc
import posixpath
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from operator import is_
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    IndexNotUsedWarning,
    SourceError,
    ZoneBloomError,
    ZoneBloomWarning,
)
from zonebloom.spark.pruning.answer import Answer, Question, merged, no_index, unusable
from zonebloom.spark.pruning.indexed_files import IndexedFiles, known_keys
from zonebloom.spark.pruning.listed import ListedFiles
from zonebloom.spark.pruning.pruned import Note, Reason
from zonebloom.spark.session import open_place
from zonebloom.storage.listing import INDEX_FOLDER
from zonebloom.storage.object_store import path_in
from zonebloom.storage.paths import plain_path
from zonebloom.storage.sealed import Encryption

T = TypeVar("T")

# Roots, catalogs and listings of which something is kept.
_MOST_KEPT = 64
# Warnings are caught for a whole process.
_CATCHING = threading.Lock()


class Recent(dict[Any, Any]):
    """What was looked up last; what is older goes."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if len(self) > _MOST_KEPT:
            self.pop(next(iter(self)), None)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Of a hundred thousand files half a million objects are made, and all stay: looking for
    garbage among them takes a third of the time."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


class Lookup:
    """Finds and asks the indices of files: the one way to say which files a filter keeps.

    What it opened is kept while the catalog and the listing of the files stay as they are.
    """

    def __init__(
        self,
        spark: Any,
        index_dir: str | None = None,
        encryption: Encryption | None = None,
        cache: Recent | None = None,
    ):
        self._spark = spark
        self._index_dir = None if index_dir is None else plain_path(index_dir).rstrip("/")
        self._encryption = encryption
        self._cache = Recent() if cache is None else cache

    def ask(self, question: Question) -> Answer:
        """Answer a question; the files are listed only where there may be an index of them."""
        roots = question.roots
        with _CATCHING, _uncollected(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ZoneBloomWarning)
            if not any(map(self._may_know, roots)):
                answers = [no_index(f"there is no index in {roots[0]} or above")] if roots else []
            elif len(roots) == 1 and not self._may_know(roots[0], question.columns):
                text = f"no index on {', '.join(sorted(question.columns))}"
                answers = [Answer(notes=(Note(Reason.NO_INDEX_ON_COLUMN, text),))]
            else:
                files = question.files()
                groups = self._made(tuple(roots), (files,), lambda: files.by_root(roots))
                answers = [self._ask_root(root, below, question) for root, below in groups]
        own = {str(w.message): w.message for w in caught if isinstance(w.message, ZoneBloomWarning)}
        damage = [
            Note(Reason.INDEX_DAMAGED, text)
            for text, warning in own.items()
            if isinstance(warning, IndexNotUsedWarning)
        ]
        # pyarrow's own are none of ours to keep back.
        for w in caught:
            if not isinstance(w.message, ZoneBloomWarning):
                warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
        return merged([*answers, Answer(notes=tuple(damage), warnings=tuple(own.values()))])

    def _may_know(self, root: str, columns: frozenset[str] = frozenset()) -> bool:
        """Whether there may be an index of files below a root, on one of some columns if given."""
        try:
            filesystem, base = open_place(self._spark, root)
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
        given = self._index_dir
        return [path_in(filesystem, given)] if given else _folders(filesystem, base)

    def _made(self, place: Any, of: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What was made of objects, for as long as the same are given again."""
        cached = self._cache.get(place)
        if cached is None or not all(map(is_, cached[0], of)):
            cached = self._cache[place] = of, make()
        return cached[1]

    def _ask_root(self, root: str, files: ListedFiles, question: Question) -> Answer:
        try:
            filesystem, base = open_place(self._spark, root)
        except SourceError as error:
            return no_index(f"no index is looked for: {error}")
        try:
            indexed = self._indexed((root, base), filesystem, files)
            answers = [files.ask(question) for files in indexed]
        except (ZoneBloomError, OSError, pa.ArrowException) as error:
            return unusable(f"the index of {root} is not used: {error}")
        return merged(answers) if answers else no_index(f"no index knows files of {root}")

    def _indexed(
        self, place: tuple[str, str], filesystem: pafs.FileSystem, files: ListedFiles
    ) -> Iterator[IndexedFiles]:
        """The files as the nearest catalog that knows some of them has them.

        A place is a root as Spark has it, and as the file system does.
        """
        for folder in self._folders(filesystem, place[1]):
            indexed = self._open(place, self._catalog(filesystem, folder), files)
            if indexed is not None:
                yield indexed
                return

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
    ) -> IndexedFiles | None:
        """The files as a catalog has them, with all indices or some; None when it knows none."""
        version, (root, base) = catalog.latest(), place

        def opened() -> IndexedFiles | None:
            paths = [base + path.removeprefix(root) for path in files.paths.to_pylist()]
            keys = known_keys(catalog, version, paths)
            if keys is None:
                return None
            # In their order: the last one made on a column is the one asked.
            indices = version.indices.items()
            allowed = {n: entry for n, entry in indices if names is None or n in names}
            return IndexedFiles(catalog, replace(version, indices=allowed), paths, keys, files)

        return self._made((place, catalog.folder, names), (version, files), opened)


def _folders(filesystem: pafs.FileSystem, path: str) -> list[str]:
    """Folders of indices at a path or above it, the nearest first."""
    candidates = []
    while path.strip("/"):
        candidates.append(posixpath.join(path, INDEX_FOLDER))
        path = posixpath.dirname(path)
    infos = filesystem.get_file_info(candidates)
    return [
        folder
        for folder, info in zip(candidates, infos, strict=True)
        # Of one that is gone its catalog says so.
        if info.type == pafs.FileType.Directory or Catalog(filesystem, folder).was_read
    ]

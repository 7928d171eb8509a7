"""Which of the files Spark listed may hold rows, as the index of them says.

One is left out only when a catalog knows it as it is now, and as it was when Spark listed it.
"""

from __future__ import annotations

import contextlib
import gc
import posixpath
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import is_
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.catalog.coverage import Coverage, PresentFragment
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    IndexNotUsedWarning,
    SourceError,
    ZoneBloomError,
    ZoneBloomWarning,
)
from zonebloom.predicates import ast
from zonebloom.ranges import by_fragment
from zonebloom.scan.planner import Planner
from zonebloom.scan.search import NoIndex
from zonebloom.spark.column_case import files_hiding
from zonebloom.spark.pruning.pruned import Note, Reason
from zonebloom.spark.rebase import without_rebased
from zonebloom.spark.session import open_place
from zonebloom.storage.discovery import open_files
from zonebloom.storage.files import FileIdentity
from zonebloom.storage.listing import INDEX_FOLDER
from zonebloom.storage.object_store import path_in
from zonebloom.storage.paths import plain_path
from zonebloom.storage.sealed import Encryption
from zonebloom.storage.source import Fragment, Source

T = TypeVar("T")

_SHOWN = 3
# Roots, catalogs and listings of which something is kept.
_MOST_KEPT = 64
# Warnings are caught for a whole process.
_CATCHING = threading.Lock()


class ListedFile(NamedTuple):
    """A file as Spark listed it: path, size in bytes, mtime in ms."""

    path: str
    size: int
    mtime_ms: int

    def is_still(self, identity: FileIdentity) -> bool:
        """Whether the file is what it was when Spark listed it, as far as Spark can tell."""
        if identity.size != self.size:
            return False
        if identity.mtime_ns // 10**6 == self.mtime_ms:
            return True
        # Some file systems give Spark whole seconds.
        return self.mtime_ms % 1000 == 0 and identity.mtime_ns // 10**9 == self.mtime_ms // 1000


class Question(NamedTuple):
    """Which files below roots, listed when they are needed, hold no row of a condition."""

    roots: Sequence[str]
    files: Callable[[], Sequence[ListedFile]]
    # First names, in small letters, of what the condition speaks of.
    columns: frozenset[str]
    # By the schema of the files.
    predicate: Callable[[pa.Schema], ast.Predicate]
    ignores_case: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Files without a row of a condition, by Spark's names, and what there is to say of it."""

    excluded: frozenset[str] = frozenset()
    predicates: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    warnings: tuple[ZoneBloomWarning, ...] = ()


class Recent(dict[Any, Any]):
    """What was looked up last; what is older goes."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if len(self) > _MOST_KEPT:
            self.pop(next(iter(self)), None)


class _Present:
    """Files as they are now, against the listing of Spark and a catalog version."""

    def __init__(self, coverage: Coverage, files: Mapping[str, ListedFile]):
        self.coverage = coverage
        known = [file for file in coverage.present if file.is_known]
        listed = ((file, files[file.fragment.path]) for file in known)
        # Paths, by their ids, of those that are as they were indexed and as Spark listed them.
        self.same = {f.fragment_id: by.path for f, by in listed if by.is_still(f.identity)}
        self.notes = tuple(_gaps(coverage.present, len(known) - len(self.same)))
        # By column, the ids of files that may call it by another name.
        self.hiding: dict[tuple[str, ...], set[int]] = {}


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Of a hundred thousand files a million objects are made, and all stay: looking for garbage
    among them takes a third of the time."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


class IndexedFiles:
    """Files, by their paths, with the catalog version that knows some of them."""

    def __init__(
        self,
        catalog: Catalog,
        version: Version,
        keys: Mapping[str, str],
        files: Mapping[str, ListedFile],
    ):
        self._files = files
        # The schema is that of the first file by path, as of a dataset of the folder.
        first = open_files([min(keys)], filesystem=catalog.filesystem)
        fragments = tuple(Fragment(path, key) for path, key in keys.items())
        self._source: Source = replace(first, fragments=fragments)
        self._planner = Planner(self._source, catalog, version)
        self._present: _Present | None = None

    def ask(self, question: Question) -> Answer:
        """Say which of these files hold no row of the condition."""
        asked = without_rebased(question.predicate(self._source.schema))
        coverage, search = self._planner.search_present(asked)
        present = self._present
        if present is None or present.coverage is not coverage:
            # It is the same object while the files stay as they are.
            present = self._present = _Present(coverage, self._files)
        may_match = set(by_fragment(search.result.at_most))
        for view in search.used.values() if question.ignores_case else ():
            may_match |= self._hiding(present, view.index.entry.column)
        excluded = frozenset(path for i, path in present.same.items() if i not in may_match)
        notes = [
            Note(
                Reason.NO_INDEX_ON_COLUMN
                if isinstance(why, NoIndex)
                else Reason.FILTER_NOT_ANSWERED,
                f"not answered by an index: {part} ({why})",
            )
            for part, why in search.unanswered
        ]
        return Answer(excluded, (str(asked),), tuple(search.used), (*notes, *present.notes))

    def _hiding(self, present: _Present, column: tuple[str, ...]) -> set[int]:
        if column not in present.hiding:
            hiding = files_hiding(self._planner, present.coverage, self._source, column)
            present.hiding[column] = {file.fragment_id for file, _ in hiding}
        return present.hiding[column]


def _keys(catalog: Catalog, version: Version, paths: Iterable[str]) -> dict[str, str] | None:
    """What a version calls files, None when it knows none of them."""
    root = posixpath.dirname(catalog.folder)
    paths, known = list(paths), version.fragments
    # A folder that is not beside the data may serve several datasets.
    for keys in ([path.removeprefix(f"{root}/") for path in paths], paths):
        if any(key in known for key in keys):
            # Of many files each text counts: the version has most of them.
            same = (known[key].key if key in known else key for key in keys)
            return dict(zip(paths, same, strict=True))
    return None


def _gaps(present: Sequence[PresentFragment], num_changed: int) -> Iterator[Note]:
    new = [file.fragment.key for file in present if file.is_new]
    stale = [file.fragment.key for file in present if not (file.is_known or file.is_new)]
    if new:
        yield Note(Reason.NEW_FILES, f"not indexed, so kept: {_shown(new)}")
    if stale:
        text = f"changed since they were indexed, so kept: {_shown(stale)}"
        yield Note(Reason.STALE_FILES, text)
    if num_changed:
        text = f"changed since Spark listed them, so kept: {num_changed:,} files"
        yield Note(Reason.STALE_FILES, text)


def _shown(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


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
                groups = self._made(tuple(roots), (files,), lambda: _by_root(roots, files))
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
        return _merged([*answers, Answer(notes=tuple(damage), warnings=tuple(own.values()))])

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

    def _ask_root(self, root: str, files: Sequence[ListedFile], question: Question) -> Answer:
        try:
            filesystem, base = open_place(self._spark, root)
        except SourceError as error:
            return no_index(f"no index is looked for: {error}")
        try:
            paths = self._made(
                (root, base), (files,), lambda: {base + f.path.removeprefix(root): f for f in files}
            )
            indexed = self._indexed(root, filesystem, base, paths)
            answers = [files.ask(question) for files in indexed]
        except (ZoneBloomError, OSError, pa.ArrowException) as error:
            return unusable(f"the index of {root} is not used: {error}")
        return _merged(answers) if answers else no_index(f"no index knows files of {root}")

    def _indexed(
        self, root: str, filesystem: pafs.FileSystem, base: str, files: Mapping[str, ListedFile]
    ) -> Iterator[IndexedFiles]:
        """The files as the nearest catalog that knows some of them has them."""
        for folder in self._folders(filesystem, base):
            indexed = self._open(root, self._catalog(filesystem, folder), files)
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
        root: str,
        catalog: Catalog,
        files: Mapping[str, ListedFile],
        names: frozenset[str] | None = None,
    ) -> IndexedFiles | None:
        """The files as a catalog has them, with all indices or some; None when it knows none."""
        version = catalog.latest()

        def opened() -> IndexedFiles | None:
            keys = _keys(catalog, version, files)
            if keys is None:
                return None
            # In their order: the last one made on a column is the one asked.
            indices = version.indices.items()
            allowed = {n: entry for n, entry in indices if names is None or n in names}
            return IndexedFiles(catalog, replace(version, indices=allowed), keys, files)

        return self._made((root, catalog.folder, names), (version, files), opened)


def no_index(text: str) -> Answer:
    """What is said where there is nobody to ask."""
    return Answer(notes=(Note(Reason.NO_INDEX, text),))


def unusable(text: str) -> Answer:
    """What is said, and warned of, where an index cannot answer."""
    return Answer(notes=(Note(Reason.INDEX_DAMAGED, text),), warnings=(IndexNotUsedWarning(text),))


def _merged(answers: Sequence[Answer]) -> Answer:
    def once(several: Iterable[Iterable[T]]) -> tuple[T, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(several)))

    return Answer(
        frozenset().union(*(answer.excluded for answer in answers)),
        once(answer.predicates for answer in answers),
        once(answer.indices for answer in answers),
        once(answer.notes for answer in answers),
        once(answer.warnings for answer in answers),
    )


def _by_root(
    roots: Sequence[str], files: Sequence[ListedFile]
) -> list[tuple[str, list[ListedFile]]]:
    """Files below each root; partitions may lie elsewhere, in folders of their own."""
    groups: dict[str, list[ListedFile]] = {}
    paths = {file.path for file in files}
    # Of files named one by one their folders are asked.
    folders = {posixpath.dirname(root) if root in paths else root for root in roots}
    for file in files:
        root = _root_of(file.path, folders) or posixpath.dirname(file.path)
        groups.setdefault(root, []).append(file)
    return list(groups.items())


def _root_of(path: str, roots: set[str]) -> str | None:
    """The longest of some paths that is a path or above it."""
    while path:
        if path in roots:
            return path
        path = path.rpartition("/")[0]
    return None


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

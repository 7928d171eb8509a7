"""Which of the files Spark listed may hold rows, as the index beside them says.

    files as Spark listed them -> catalogs that know them -> schema -> predicate -> files excluded

A file is left out only when a catalog knows it as it is now, and as it was when Spark listed it,
and the index says that no zone of it can match.
"""

from __future__ import annotations

import posixpath
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import FOLDER, Catalog
from zonebloom.errors import CatalogError, IndexNotUsedWarning, SourceError, ZoneBloomWarning
from zonebloom.predicates import ast
from zonebloom.ranges import by_fragment
from zonebloom.scan.planner import Planner
from zonebloom.scan.search import NoIndex
from zonebloom.spark.column_case import files_hiding
from zonebloom.spark.pruning.pruned import Note, Reason
from zonebloom.spark.rebase import without_rebased
from zonebloom.storage.discovery import open_files
from zonebloom.storage.files import FileIdentity
from zonebloom.storage.paths import filesystem_of, plain_path
from zonebloom.storage.source import Fragment, Source

T = TypeVar("T")

_SHOWN = 3
# What one catalog leaves unanswered another may answer.
_UNANSWERED = (Reason.NO_INDEX_ON_COLUMN, Reason.FILTER_NOT_ANSWERED)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as Spark listed it: path, size in bytes, mtime in ms; -1 where it does not say."""

    path: str
    size: int = -1
    mtime_ms: int = -1

    def is_still(self, identity: FileIdentity) -> bool:
        """Whether the file is what it was when Spark listed it, as far as Spark can tell."""
        if self.mtime_ms < 0:
            return True
        if identity.size != self.size:
            return False
        if identity.mtime_ns // 10**6 == self.mtime_ms:
            return True
        # Some file systems give Spark whole seconds.
        return self.mtime_ms % 1000 == 0 and identity.mtime_ns // 10**9 == self.mtime_ms // 1000


@dataclass(frozen=True, slots=True)
class Answer:
    """Files without a row of a condition, by Spark's names, and what there is to say of it.

    The predicates are what was asked, and the warnings are for a user who asked to prune.
    """

    excluded: frozenset[str] = frozenset()
    predicates: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    warnings: tuple[ZoneBloomWarning, ...] = ()


class IndexedFiles:
    """Files below one root, with the catalog version that knows some of them."""

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
        everything = pc.scalar(True)
        fragments = tuple(Fragment(path, key, everything) for path, key in keys.items())
        self._source: Source = replace(first, fragments=fragments)
        self._planner = Planner(self._source, catalog, version)

    @classmethod
    def known_to(
        cls, catalog: Catalog, version: Version, files: Mapping[str, ListedFile], is_given: bool
    ) -> IndexedFiles | None:
        """Files by their paths, None when a version knows none of them."""
        root = posixpath.dirname(catalog.folder)
        relative = {path: posixpath.relpath(path, root) for path in files}
        if any(key in version.fragments for key in relative.values()):
            return cls(catalog, version, relative, files)
        # A folder that is not beside the data may serve several datasets.
        if is_given and any(path in version.fragments for path in files):
            return cls(catalog, version, {path: path for path in files}, files)
        return None

    @property
    def schema(self) -> pa.Schema:
        """Of the first file."""
        return self._source.schema

    def ask(self, predicate: ast.Predicate, ignores_case: bool) -> Answer:
        """Say which files hold no row for which a predicate is true."""
        coverage, search = self._planner.search_present(predicate)
        may_match = set(by_fragment(search.result.at_most))
        if ignores_case:
            for view in search.used.values():
                hiding = files_hiding(self._planner, self._source, view.index.entry.column)
                may_match |= {file.fragment_id for file, _ in hiding}
        known = [file for file in coverage.present if file.is_known]
        same = [file for file in known if self._listed(file).is_still(file.identity)]
        notes = [
            Note(
                Reason.NO_INDEX_ON_COLUMN
                if isinstance(why, NoIndex)
                else Reason.FILTER_NOT_ANSWERED,
                f"not answered by an index: {part} ({why})",
                _columns(part),
            )
            for part, why in search.unanswered
        ]
        return Answer(
            frozenset(self._listed(f).path for f in same if f.fragment_id not in may_match),
            (str(predicate),),
            tuple(search.used),
            (*notes, *_gaps(coverage.present, len(known) - len(same))),
        )

    def _listed(self, file: PresentFragment) -> ListedFile:
        return self._files[file.fragment.path]


def _columns(part: ast.Predicate) -> frozenset[str]:
    """Top-level columns of a part of a filter, as far as it is known which it names."""
    if isinstance(part, ast.Unknown):
        return part.columns
    if isinstance(part, ast.And | ast.Or | ast.Not | ast.Constant):
        return frozenset()
    return frozenset(part.column[:1])


def _gaps(present: Sequence[PresentFragment], num_changed: int) -> list[Note]:
    new = [file.fragment.key for file in present if file.is_new]
    stale = [file.fragment.key for file in present if not (file.is_known or file.is_new)]
    notes = []
    if new:
        notes.append(Note(Reason.NEW_FILES, f"not indexed, so kept: {_shown(new)}"))
    if stale:
        text = f"changed since they were indexed, so kept: {_shown(stale)}"
        notes.append(Note(Reason.STALE_FILES, text))
    if num_changed:
        text = f"changed since Spark listed them, so kept: {num_changed:,} files"
        notes.append(Note(Reason.STALE_FILES, text))
    return notes


def _shown(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


class Lookup:
    """Finds and asks the indices of files; opened ones are kept for the next question."""

    def __init__(self, index_dir: str | None = None):
        self._index_dir = None if index_dir is None else plain_path(index_dir).rstrip("/")
        self._opened: dict[Any, list[IndexedFiles] | Answer] = {}

    def ask(
        self,
        roots: Sequence[str],
        files: Sequence[ListedFile],
        predicate: Callable[[pa.Schema], ast.Predicate],
        ignores_case: bool,
    ) -> Answer:
        """Say which files hold no row that a condition is true for."""
        answers: list[Answer] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ZoneBloomWarning)
            for root, below in _by_root(roots, files):
                indexed = self._indexed(root, below)
                if isinstance(indexed, Answer):
                    answers.append(indexed)
                    continue
                of_root = [
                    part.ask(without_rebased(predicate(part.schema)), ignores_case)
                    for part in indexed
                ]
                answers.append(_together(of_root))
        own = {str(w.message): w.message for w in caught if isinstance(w.message, ZoneBloomWarning)}
        damage = [
            Note(Reason.INDEX_DAMAGED, text)
            for text, warning in own.items()
            if isinstance(warning, IndexNotUsedWarning)
        ]
        answers.append(Answer(notes=tuple(damage), warnings=tuple(own.values())))
        # pyarrow's own are none of ours to keep back.
        for w in caught:
            if not isinstance(w.message, ZoneBloomWarning):
                warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
        return _merged(answers)

    def _indexed(self, root: str, files: Sequence[ListedFile]) -> list[IndexedFiles] | Answer:
        """Catalogs that know files, or what to say where there is none."""
        key = (root, tuple(files))
        if key not in self._opened:
            try:
                self._opened[key] = self._open(root, files)
            except (SourceError, CatalogError, OSError, pa.ArrowException) as error:
                text = f"the index of {root} is not used: {error}"
                note = Note(Reason.INDEX_DAMAGED, text)
                self._opened[key] = Answer(notes=(note,), warnings=(IndexNotUsedWarning(text),))
        return self._opened[key]

    def _open(self, root: str, files: Sequence[ListedFile]) -> list[IndexedFiles] | Answer:
        try:
            filesystem, base = filesystem_of(root)
        except (OSError, pa.ArrowException, NotImplementedError) as error:
            return no_index(f"pyarrow cannot look into {root}: {error}")
        there = {base + file.path.removeprefix(root): file for file in files}
        return self._of_root(root, filesystem, base, there)

    def _of_root(
        self, root: str, filesystem: pafs.FileSystem, base: str, files: Mapping[str, ListedFile]
    ) -> list[IndexedFiles] | Answer:
        """The files as the nearest catalog that knows some of them has them."""
        is_given = self._index_dir is not None
        folders = [self._index_dir] if self._index_dir else _folders(filesystem, base)
        for folder in folders:
            catalog = Catalog(filesystem, folder)
            indexed = IndexedFiles.known_to(catalog, catalog.latest(), files, is_given)
            if indexed is not None:
                return [indexed]
        if not folders:
            return no_index(f"there is no index in {root} or above")
        return no_index(f"{folders[0]} holds no index of these files")


def no_index(text: str) -> Answer:
    """What is said where there is nobody to ask."""
    return Answer(notes=(Note(Reason.NO_INDEX, text),))


def _together(answers: Sequence[Answer]) -> Answer:
    """What several catalogs say of the same condition over the same files."""
    merged = _merged(answers)
    notes = [
        note
        for note in merged.notes
        if note.reason not in _UNANSWERED or all(note in answer.notes for answer in answers)
    ]
    return Answer(merged.excluded, merged.predicates, merged.indices, tuple(notes))


def _merged(answers: Sequence[Answer]) -> Answer:
    return Answer(
        frozenset().union(*(answer.excluded for answer in answers)),
        once(answer.predicates for answer in answers),
        once(answer.indices for answer in answers),
        once(answer.notes for answer in answers),
        once(answer.warnings for answer in answers),
    )


def once(several: Iterable[Iterable[T]]) -> tuple[T, ...]:
    """The items of several sequences, the first of equal ones."""
    return tuple(dict.fromkeys(chain.from_iterable(several)))


def _by_root(
    roots: Sequence[str], files: Sequence[ListedFile]
) -> list[tuple[str, list[ListedFile]]]:
    """Files below each root; those below none are nobody's."""
    groups: dict[str, list[ListedFile]] = {}
    paths = {file.path for file in files}
    # Of files named one by one their folders are asked.
    folders = {posixpath.dirname(root) if root in paths else root for root in roots}
    for file in files:
        root = root_of(file.path, folders)
        if root is not None:
            groups.setdefault(root, []).append(file)
    return list(groups.items())


def root_of(path: str, roots: Iterable[str]) -> str | None:
    """The longest of some paths that is a path or above it."""
    roots = set(roots)
    while path:
        if path in roots:
            return path
        path = path.rpartition("/")[0]
    return None


def _folders(filesystem: pafs.FileSystem, path: str) -> list[str]:
    """Folders of indices at a path or above it, the nearest first."""
    candidates = []
    while path.strip("/"):
        candidates.append(posixpath.join(path, FOLDER))
        path = posixpath.dirname(path)
    infos = filesystem.get_file_info(candidates)
    return [info.path for info in infos if info.type == pafs.FileType.Directory]

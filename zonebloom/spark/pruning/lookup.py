"""Which of the files Spark listed may hold rows, as the index beside them says.

    files as Spark listed them -> catalog that knows them -> schema -> predicate -> files to keep

A file is left out only when the catalog knows it as it is now, and as it was when Spark listed
it, and the index says that no zone of it can match.
"""

from __future__ import annotations

import posixpath
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.catalog.model import Version
from zonebloom.catalog.store import FOLDER, Catalog
from zonebloom.errors import CatalogError, IndexNotUsedWarning, SourceError, ZoneBloomWarning
from zonebloom.predicates import ast
from zonebloom.spark.pruning.answers import AnsweringFiles, ListedFile
from zonebloom.spark.pruning.pruned import Note, Reason
from zonebloom.spark.rebase import without_old_times
from zonebloom.storage.paths import filesystem_of, plain_path

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Kept:
    """Files that may hold rows, and what there is to say about the rest.

    Attributes
    ----------
    paths : frozenset of str
        As Spark names them.
    predicates : tuple of str
        What was asked; empty when there was nobody to ask.
    indices : tuple of str
    notes : tuple of Note
    warnings : tuple of ZoneBloomWarning
        To be given where a user asked to prune.
    """

    paths: frozenset[str]
    predicates: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    warnings: tuple[ZoneBloomWarning, ...] = ()


class Lookup:
    """Finds and asks the indices of files; opened ones are kept for the next question."""

    def __init__(self, index_dir: str | None):
        self._index_dir = None if index_dir is None else plain_path(index_dir).rstrip("/")
        self._opened: dict[Any, AnsweringFiles | Note] = {}

    def keep(
        self,
        roots: Sequence[str],
        files: Sequence[ListedFile],
        predicate: Callable[[pa.Schema], ast.Predicate],
        ignores_case: bool,
    ) -> Kept:
        """Say which files may hold rows."""
        paths = {each.path for each in files}
        predicates: list[str] = []
        indices: list[str] = []
        notes: list[Note] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ZoneBloomWarning)
            for root, below in _by_root(roots, files):
                found = self._answering(root, below)
                if isinstance(found, Note):
                    notes.append(found)
                    continue
                answer = found.ask(without_old_times(predicate(found.schema)), ignores_case)
                paths -= answer.excluded
                predicates.append(answer.predicate)
                indices += answer.indices
                notes += answer.notes
        by_text = {str(each.message): each.message for each in caught}
        told = [each for each in by_text.values() if isinstance(each, ZoneBloomWarning)]
        notes += [
            Note(Reason.INDEX_DAMAGED, str(each))
            for each in told
            if isinstance(each, IndexNotUsedWarning)
        ]
        # pyarrow's own are none of ours to keep back.
        for each in caught:
            if not isinstance(each.message, ZoneBloomWarning):
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        return Kept(frozenset(paths), _once(predicates), _once(indices), _once(notes), tuple(told))

    def _answering(self, root: str, files: Sequence[ListedFile]) -> AnsweringFiles | Note:
        key = (root, tuple(files))
        if key not in self._opened:
            try:
                self._opened[key] = self._open(root, files)
            except (SourceError, CatalogError, OSError, pa.ArrowException) as error:
                text = f"the index of {root} is not used: {error}"
                warnings.warn(text, IndexNotUsedWarning, stacklevel=2)
                self._opened[key] = Note(Reason.INDEX_DAMAGED, f"{root}: {error}")
        return self._opened[key]

    def _open(self, root: str, files: Sequence[ListedFile]) -> AnsweringFiles | Note:
        try:
            filesystem, base = filesystem_of(root)
        except (OSError, pa.ArrowException, NotImplementedError) as error:
            return Note(Reason.NO_INDEX, f"pyarrow cannot look into {root}: {error}")
        there = {base + each.path.removeprefix(root): each for each in files}
        folders = [self._index_dir] if self._index_dir else _folders(filesystem, base)
        if not folders:
            return Note(Reason.NO_INDEX, f"there is no index in {root} or above")
        for folder in folders:
            catalog = Catalog(filesystem, folder)
            version = catalog.latest()
            keys = keys_of(folder, there, version, self._index_dir is not None)
            if keys:
                return AnsweringFiles(catalog, version, keys, there)
        return Note(Reason.NO_INDEX, f"{folders[0]} holds no index of these files")


def _by_root(
    roots: Sequence[str], files: Sequence[ListedFile]
) -> list[tuple[str, list[ListedFile]]]:
    """Files below each root; those below none are nobody's."""
    found: dict[str, list[ListedFile]] = {}
    paths = {each.path for each in files}
    # Of files named one by one their folders are asked.
    folders = {posixpath.dirname(each) if each in paths else each for each in roots}
    for each in files:
        root = root_of(each.path, folders)
        if root is not None:
            found.setdefault(root, []).append(each)
    return list(found.items())


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
    return [each.path for each in infos if each.type == pafs.FileType.Directory]


def keys_of(
    folder: str, files: Mapping[str, ListedFile], version: Version, is_given: bool
) -> dict[str, str] | None:
    """What the catalog in a folder calls the files, None when it knows none of them."""
    root = posixpath.dirname(folder)
    relative = {path: posixpath.relpath(path, root) for path in files}
    if any(key in version.fragments for key in relative.values()):
        return relative
    # A folder that is not beside the data may serve several datasets.
    if is_given and any(path in version.fragments for path in files):
        return {path: path for path in files}
    return None


def _once(found: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(found))

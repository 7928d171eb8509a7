"""Files that one catalog knows, and which of them may hold rows of a condition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog
from zonebloom.index.loaded import LoadedIndex
from zonebloom.index.view import IndexView
from zonebloom.predicates import ast
from zonebloom.ranges import by_fragment
from zonebloom.scan.planner import Planner
from zonebloom.scan.search import NoIndex
from zonebloom.spark.names import other_name, stored_schema
from zonebloom.spark.pruning.pruned import Note, Reason
from zonebloom.storage.files import FileIdentity
from zonebloom.storage.source import Fragment, Source, open_files

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as Spark listed it: path, size in bytes, mtime in ms; -1 where it does not say."""

    path: str
    size: int
    mtime_ms: int

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
    excluded: set[str]
    predicate: str
    indices: tuple[str, ...]
    notes: tuple[Note, ...]


class AnsweringFiles:
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

    @property
    def schema(self) -> pa.Schema:
        return self._source.schema

    def ask(self, predicate: ast.Predicate, ignores_case: bool) -> Answer:
        """Files that hold no row for which a predicate is true."""
        coverage, found = self._planner.search_present(predicate)
        may_match = by_fragment(found.result.at_most)
        excluded: set[str] = set()
        changed = 0
        hidden = _AllNull(found.used.values()) if ignores_case else None
        for each in coverage.present:
            listed = self._files[each.fragment.path]
            is_same = listed.is_still(each.identity)
            changed += each.is_known and not is_same
            if not each.is_known or not is_same or each.fragment_id in may_match:
                continue
            if hidden and any(self._is_hidden(each, index) for index in hidden.of(each)):
                continue
            excluded.add(listed.path)
        notes = [
            Note(
                Reason.NO_INDEX_ON_COLUMN
                if isinstance(why, NoIndex)
                else Reason.FILTER_NOT_ANSWERED,
                f"not answered by an index: {text} ({why})",
            )
            for text, why in found.unanswered
        ]
        notes += _gaps(coverage.present, changed)
        return Answer(excluded, str(predicate), tuple(found.used), tuple(notes))

    def _is_hidden(self, each: PresentFragment, index: LoadedIndex) -> bool:
        """Whether the file may hold an index's column under its name in another case.

        pyarrow sees no such column, so the index holds nulls; Spark sees its values.
        """
        path = index.entry.column
        pages = index.pages(each.fragment_id, each.identity.size)
        if pages is not None and path[0] in pages.schema.names and len(path) == 1:
            return False
        stored = stored_schema(self._source, each.fragment)
        return stored is None or other_name(stored, path) is not None


class _AllNull:
    """Fragments of which an index knows nothing but nulls."""

    def __init__(self, views: Iterable[IndexView]):
        self._nulls = [(view.index, by_fragment(view.nulls())) for view in views]

    def of(self, each: PresentFragment) -> Iterator[LoadedIndex]:
        """Indices in which every zone of a fragment holds a null."""
        for index, nulls in self._nulls:
            rows = nulls.get(each.fragment_id)
            if rows is not None and len(rows) >= (each.num_rows or 0):
                yield index


def _gaps(present: Sequence[PresentFragment], changed: int) -> list[Note]:
    new = [each.fragment.key for each in present if each.is_new]
    stale = [each.fragment.key for each in present if not (each.is_known or each.is_new)]
    notes = []
    if new:
        notes.append(Note(Reason.NEW_FILES, f"not indexed, so kept: {_listed(new)}"))
    if stale:
        text = f"changed since they were indexed, so kept: {_listed(stale)}"
        notes.append(Note(Reason.STALE_FILES, text))
    if changed:
        text = f"changed since Spark listed them, so kept: {changed:,} files"
        notes.append(Note(Reason.STALE_FILES, text))
    return notes


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more

"""What an opened dataset is: the record that everything over it reads."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, replace
from typing import Any

from zonebloom import arguments
from zonebloom.catalog.model import IndexEntry, Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    ColumnNotFound,
    EncryptedIndex,
    IndexNotFound,
    InvalidArgument,
    SourceError,
)
from zonebloom.index.fit import indexed_column
from zonebloom.predicates import Predicate, RowFilter, translate, unknowns
from zonebloom.scan.binding import Binding, known_columns, require_column
from zonebloom.scan.planner import Planner
from zonebloom.storage.columns import Column
from zonebloom.storage.files import is_local
from zonebloom.storage.listing import INDEX_FOLDER
from zonebloom.storage.object_store import path_in
from zonebloom.storage.sealed import Encryption
from zonebloom.storage.source import Source
from zonebloom.values.columns import column_path, leaf_type
from zonebloom.values.types import require_indexable


def beside(
    source: Source, index_dir: str | None, encryption: Encryption | None = None
) -> tuple[Source, Catalog]:
    if is_local(source.filesystem):
        source = source.with_absolute_paths()
    if index_dir is None and source.root in ("", "/"):
        raise SourceError(
            "the files share no folder but the root, so the index has no place beside them; "
            "give index_dir"
        )
    folder = posixpath.join(source.root, INDEX_FOLDER)
    if index_dir is not None:
        own_folder = path_in(source.filesystem, index_dir)
        if is_local(source.filesystem):
            own_folder = os.path.abspath(own_folder)
        if own_folder.rstrip("/") != folder:
            # Several datasets may share the folder, so whole paths tell files of one name apart.
            folder, source = own_folder, source.with_paths_as_keys()
    return source, Catalog(source.filesystem, folder, encryption)


@dataclass(frozen=True, slots=True, repr=False)
class Opened:
    """A dataset as it is open: its files as listed, the folder of its indices and the version in
    use, what answers over them, and what filters and projections are held against."""

    source: Source
    catalog: Catalog
    version: Version
    planner: Planner
    binding: Binding

    @classmethod
    def of(
        cls,
        source: Source,
        catalog: Catalog,
        version: Version | None = None,
        embedded_filters: bool = False,
    ) -> Opened:
        version = _renamed(catalog.latest() if version is None else version, source)
        if version.locked and source.stale == "raise":
            raise EncryptedIndex(version.locked)
        planner = Planner(source, catalog, version, embedded_filters)
        return cls(source, catalog, version, planner, Binding(source.schema))

    def __repr__(self) -> str:
        return f"<Opened {self.source.root}, index version {self.version.number}>"

    def at(self, version: Version) -> Opened:
        return Opened.of(self.source, self.catalog, version, self.planner.asks_embedded)

    def renewed(self, source: Source, catalog: Catalog) -> Opened:
        """The files there are now with their newest index; the same record if nothing changed."""
        if catalog.folder != self.catalog.folder:
            raise SourceError(
                f"the files lie below {source.root} by now, so their index would be in "
                f"{catalog.folder}, and it is in {self.catalog.folder}; open the dataset again"
            )
        catalog.take_over(self.catalog)
        version = _renamed(catalog.latest(), source)
        paths = [[each.path for each in files.fragments] for files in (source, self.source)]
        is_same = paths[0] == paths[1] and source.state == self.source.state
        is_same &= source.schema.equals(self.source.schema, True)
        if is_same and version == self.version:
            return self
        return Opened.of(source, self.catalog, version, self.planner.asks_embedded)

    def column(self, name: str, ignore_case: bool = False) -> Column:
        path = column_path(self.source.schema, name, ignore_case)
        if len(path) == 1:
            require_column(path[0], self.source.schema)
        leaf = leaf_type(self.source.schema, path)
        if leaf is None:
            raise ColumnNotFound(
                f"there is no column {arguments.shown(name)}, or more than one; "
                f"{known_columns(name, self.source.schema)}"
            )
        require_indexable(leaf, name)
        if path[0] in self.source.partition_columns():
            raise InvalidArgument(
                f"column {name!r} is read from the paths of the files, not from their rows, and a "
                "scan passes over files by it already; index another column"
            )
        return Column(path, leaf)

    def key_column(self, name: str) -> Column:
        """Return a column that keys are looked up in, which the paths of the files may give."""
        if name in self.source.partition_columns():
            return Column((name,), self.source.schema.field(name).type)
        return self.column(name)

    def require_unlocked(self) -> None:
        if self.version.locked:
            raise EncryptedIndex(self.version.locked)

    def entry(self, name: str) -> IndexEntry:
        self.require_unlocked()
        if arguments.text(name, "name") not in self.version.indices:
            known = arguments.choices(name, self.version.indices, "there is:")
            raise IndexNotFound(f"there is no index {arguments.shown(name)}; {known}")
        return self.version.indices[name]

    def indexed_column(self, entry: IndexEntry) -> Column:
        """Return the column of an index. Raise SchemaMismatch if it is not what was indexed."""
        return indexed_column(entry, self.source)

    def translate(
        self, filter: Any, *, is_applied: bool = True
    ) -> tuple[RowFilter | None, Predicate]:
        expression, predicate = translate(filter, self.source.schema)
        # What an index can answer of a SQL text, PyArrow can apply.
        if not isinstance(filter, str) or unknowns(predicate):
            is_applied = is_applied or isinstance(filter, str)
            self.binding.check_filter(expression, is_applied=is_applied)
        return expression, predicate


def _renamed(version: Version, source: Source) -> Version:
    """A version whose indices are on columns as the table names them now."""
    indices = {
        name: replace(entry, column=source.column_of(entry.field) or entry.column)
        if entry.field
        else entry
        for name, entry in version.indices.items()
    }
    return version if indices == version.indices else replace(version, indices=indices)

"""Pickle a dataset as its arguments, file names and catalog version number, and open it again."""

from __future__ import annotations

import os
import posixpath
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import pyarrow.fs as pafs

from zonebloom.base.notices import warn
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CatalogError, IndexNotUsedWarning
from zonebloom.scan.opened import OpenedDataset
from zonebloom.sources.source import Source
from zonebloom.storage.encryption import Encryption


class FileLister(Protocol):
    """A function that lists the files of a source as they are now, and opens their index."""

    @property
    def source(self) -> Any:
        """The source as it was given to `dataset`, with absolute paths."""
        ...

    def __call__(self) -> tuple[Source, Catalog]: ...


@dataclass(frozen=True, slots=True)
class PickledDataset:
    """The state of a dataset that is pickled and sent to another process."""

    # The files by name, so that the other process reads no files that were added since.
    source: Source
    index_dir: str
    encryption: Encryption | None
    # The number of the catalog version, or None if the index is encrypted and the key is missing.
    version: int | None
    embedded_filters: bool
    title: str
    list_files: FileLister | None
    # The index files of a table in memory by path. Other processes lack its temporary folder.
    index_files: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        opened: OpenedDataset,
        title: str,
        list_files: FileLister | None,
    ) -> PickledDataset:
        """Return the state of a dataset. It does not pickle if it holds keys in clear."""
        source, catalog, version = opened.source, opened.catalog, opened.version
        return cls(
            source=source,
            index_dir=catalog.folder,
            encryption=catalog.encryption,
            version=None if version.locked_reason else version.number,
            embedded_filters=opened.uses_embedded_filters,
            title=title,
            # The table object of Delta Lake or Iceberg is not pickled, but its files are.
            list_files=None if source.is_table_snapshot else list_files,
            index_files=_read_files(catalog.folder) if source.is_in_memory else {},
        )

    def open(self) -> OpenedDataset:
        if self.source.is_in_memory:
            catalog = temporary_catalog(self.index_files)
        else:
            catalog = Catalog(self.source.filesystem, self.index_dir, self.encryption)
        return OpenedDataset(self.source, catalog, self._version(catalog), self.embedded_filters)

    def _version(self, catalog: Catalog) -> Version | None:
        """Return the catalog version that was pickled, or None to use the newest."""
        if self.version is None:
            return None
        if self.version == 0:
            # Number 0 means that there was no index, so the catalog has no such version.
            return Version()
        try:
            return catalog.version(self.version)
        except CatalogError as error:
            if self.source.stale == "raise":
                raise
            warn(
                IndexNotUsedWarning(
                    f"{self.title} was pickled with version {self.version} of its index, which "
                    f"cannot be read any more, so the newest is used: {error}"
                )
            )
            return None


def temporary_catalog(files: Mapping[str, bytes] = MappingProxyType({})) -> Catalog:
    """Return a catalog in a temporary folder, which is deleted together with the catalog."""
    folder = tempfile.mkdtemp(prefix="zonebloom-")
    catalog = Catalog(pafs.LocalFileSystem(), folder)
    weakref.finalize(catalog, shutil.rmtree, folder, ignore_errors=True)
    for name, data in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return catalog


def _read_files(folder: str) -> dict[str, bytes]:
    """Return the contents of all files below a folder, by path relative to it."""
    return {
        posixpath.relpath(path, folder): path.read_bytes()
        for path in Path(folder).rglob("*")
        if os.path.isfile(path)
    }

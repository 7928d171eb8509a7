"""Pickle a dataset as its arguments, the names of its files and the number of its catalog version,
and open it again from these."""

from __future__ import annotations

import os
import posixpath
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pyarrow.fs as pafs

from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CatalogError, IndexNotUsedWarning
from zonebloom.opened import OpenedDataset
from zonebloom.sources.memory import TableSource
from zonebloom.sources.pickling import require_no_keys
from zonebloom.sources.source import Source
from zonebloom.sources.table_snapshot import SnapshotSource
from zonebloom.storage.encryption import Encryption


@dataclass(frozen=True, slots=True)
class PickledDataset:
    """The state of a dataset that travels to another process.

    Attributes
    ----------
    source : Source
        The files by name, so that files which other processes add are not read.
    index_dir : str
    encryption : Encryption or None
    version : int or None
        Number of the catalog version; None if the index was locked for want of a key.
    embedded_filters : bool
    title : str
    list_files : callable or None
        Lists the files as they are then and opens their index. None if there is nothing to list.
    index_files : mapping of str to bytes
        The index of a table in memory, which is in no folder that another process knows.
    """

    source: Source
    index_dir: str
    encryption: Encryption | None
    version: int | None
    embedded_filters: bool
    title: str
    list_files: Callable[[], tuple[Source, Catalog]] | None
    index_files: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        opened: OpenedDataset,
        title: str,
        list_files: Callable[[], tuple[Source, Catalog]] | None,
    ) -> PickledDataset:
        """Take the state of a dataset, or raise `NotPicklable`."""
        source, catalog, version = opened.source, opened.catalog, opened.version
        pickled = cls(
            source,
            catalog.folder,
            catalog.encryption,
            None if version.locked_reason else version.number,
            opened.planner.uses_embedded_filters,
            title,
            # The table object of Delta Lake or Iceberg stays here; its files travel.
            None if isinstance(source, SnapshotSource) else list_files,
            _files_below(catalog.folder) if isinstance(source, TableSource) else {},
        )
        require_no_keys(pickled)
        return pickled

    def open(self) -> OpenedDataset:
        if isinstance(self.source, TableSource):
            catalog = temporary_catalog(self.index_files)
        else:
            catalog = Catalog(self.source.filesystem, self.index_dir, self.encryption)
        return OpenedDataset.create(
            self.source, catalog, self._version(catalog), self.embedded_filters
        )

    def _version(self, catalog: Catalog) -> Version | None:
        """Return the catalog version that was pickled, or None to use the newest."""
        if not self.version:
            return self.version if self.version is None else Version()
        try:
            return catalog.version(self.version)
        except CatalogError as error:
            if self.source.stale == "raise":
                raise
            warnings.warn(
                f"{self.title} was pickled with version {self.version} of its index, which cannot "
                f"be read any more, so the newest is used: {error}",
                IndexNotUsedWarning,
                stacklevel=4,
            )
            return None


def temporary_catalog(files: Mapping[str, bytes] = MappingProxyType({})) -> Catalog:
    """Return a catalog in a folder of its own, which is deleted with the catalog."""
    folder = tempfile.mkdtemp(prefix="zonebloom-")
    catalog = Catalog(pafs.LocalFileSystem(), folder)
    weakref.finalize(catalog, shutil.rmtree, folder, ignore_errors=True)
    for name, data in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return catalog


def _files_below(folder: str) -> dict[str, bytes]:
    return {
        posixpath.relpath(path, folder): path.read_bytes()
        for path in Path(folder).rglob("*")
        if os.path.isfile(path)
    }

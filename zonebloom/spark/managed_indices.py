"""The indices of managers: one small document for each in the system folder of a session.

    <system path>/<name of the index>.json

A document tells which data an index covers, and whether it was deleted. Everything else is in the
catalog of the data: an index that is not deleted is ACTIVE if the catalog has it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.notices import collected_warnings, warn
from zonebloom.catalog.store import Catalog
from zonebloom.catalog.version_log import (
    MAX_DOCUMENT_BYTES,
    decode_document,
    encode_document,
    from_json,
)
from zonebloom.errors import (
    CorruptIndex,
    IndexNotFound,
    IndexNotUsedWarning,
    InvalidArgument,
    InvalidState,
    SourceError,
    ZoneBloomError,
)
from zonebloom.facade.dataset import Dataset
from zonebloom.scan.opened import OpenedDataset
from zonebloom.spark.opening import open_dataset
from zonebloom.spark.session_settings import SYSTEM_PATH, open_path, system_path
from zonebloom.spark.session_state import SessionState, session_state
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.store import store_of

_SUFFIX = ".json"


# The catalog's folder and the name of each index that a manager deleted.
DeletedIndices = Collection[tuple[str, str]]


def require_name(name: Any) -> str:
    """Return an index name, or raise `InvalidArgument` if it is not valid."""
    fits = isinstance(name, str) and 0 < len(name.encode(errors="replace")) <= 80
    # In the catalog, a dot separates the name from the column, which may itself contain dots.
    if not fits or not name.isprintable() or "/" in name or "." in name:
        raise InvalidArgument(
            f"{name!r} cannot name an index; give up to 80 bytes of printable characters without "
            "'/' and '.'"
        )
    return name


class State(StrEnum):
    """The states of an index, with Hyperspace's names."""

    ACTIVE = "ACTIVE"
    DELETED = "DELETED"
    DOESNOTEXIST = "DOESNOTEXIST"


@dataclass(frozen=True, slots=True)
class ManagedIndex:
    """An index as its document describes it. The fields are the keys of the document.

    ``path`` is the path of the data.
    """

    name: str
    path: str
    index_dir: str
    columns: tuple[str, ...]
    expected_num_items: int
    fpp: float
    is_deleted: bool = False

    @property
    def indices(self) -> dict[str, str]:
        """Return the names of the indices in the catalog of the data, by column."""
        return {column: f"{self.name}.{column}" for column in self.columns}

    def missing_from(self, indices: Container[str]) -> list[str]:
        """Return the names of its indices that a catalog lacks."""
        return [name for name in self.indices.values() if name not in indices]

    def state_in(self, indices: Container[str]) -> State:
        """Return the state of the index if its catalog has these indices."""
        if self.is_deleted:
            return State.DELETED
        return State.DOESNOTEXIST if self.missing_from(indices) else State.ACTIVE


class Documents:
    """The documents in a system folder, and access to the indices that they describe.

    The folder may not exist yet.
    """

    def __init__(self, path: str, spark: Any = None, encryption: Encryption | None = None):
        self.path = path
        self.spark = spark
        self.encryption = encryption
        try:
            filesystem, folder = open_path(spark, path)
        except SourceError as error:
            raise self._unusable(error) from None
        self._store, self._folder = store_of(filesystem), folder.rstrip("/")

    def files(self) -> tuple[tuple[str, int | None, int | None], ...]:
        """Return the names of all indices, with the times and sizes of their documents."""
        try:
            infos = self._store.list_folder(self._folder, recursive=False)
        except OSError as error:
            raise self._unusable(error) from None
        return tuple(
            sorted(
                (unquote(info.base_name.removesuffix(_SUFFIX)), info.mtime_ns, info.size)
                for info in infos
                if info.base_name.endswith(_SUFFIX)
            )
        )

    def all(self) -> list[ManagedIndex]:
        """Return all indices, ordered by name. Warn of unreadable documents, and leave them out."""
        managed_indices: list[ManagedIndex] = []
        for name, _, _ in self.files():
            try:
                managed = self.get(name)
            except CorruptIndex as error:
                warn(IndexNotUsedWarning(f"index {name!r} is not used: {error}"))
            else:
                managed_indices += [] if managed is None else [managed]
        return managed_indices

    def get(self, name: str) -> ManagedIndex | None:
        """Return an index, or None if it has no document."""
        path = self._path(name)
        try:
            data = self._store.read_whole(path, MAX_DOCUMENT_BYTES)
            managed = from_json(ManagedIndex, decode_document(data.to_pybytes())[1])
            if managed.name != name:
                raise ValueError(f"it is that of index {managed.name!r}")
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise self._unusable(error) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptIndex(
                f"{path} cannot be read ({error}); make it readable, restore it, or delete it, "
                "which removes the index (its filters stay in the catalog of the data)"
            ) from error
        return managed

    def require(self, name: str, is_deleted: bool | None = None, hint: str = "") -> ManagedIndex:
        """Return an index. Raise `InvalidState` if ``is_deleted`` is given and does not fit."""
        managed = self.get(require_name(name))
        if managed is None:
            names = [managed.name for managed in self.all()]
            choices_text = arguments.suggest_names(name, names, "there is:")
            raise IndexNotFound(
                f"there is no index {name!r}; {choices_text}; indexes() describes them"
            )
        if is_deleted not in (None, managed.is_deleted):
            raise InvalidState(f"index {name!r} is {self.state(managed)}: {hint}")
        return managed

    def require_indices(self, managed: ManagedIndex, step: str) -> None:
        """Raise `IndexNotFound` if the catalog lacks one of the indices of a managed index."""
        if missing := managed.missing_from(self.catalog(managed).latest().indices):
            raise IndexNotFound(f"{', '.join(missing)} is not in the catalog; {step}")

    def create(self, managed: ManagedIndex) -> bool:
        """Write the document of a new index. Return False if there is one already."""
        return self._store.put_if_absent(self._path(managed.name), encode_document(managed))

    def replace(self, managed: ManagedIndex) -> None:
        """Write the document of an existing index anew."""
        self._store.replace(self._path(managed.name), encode_document(managed))

    def remove(self, name: str) -> None:
        self._store.filesystem.delete_file(self._path(name))

    def catalog(self, managed: ManagedIndex) -> Catalog:
        """Return the catalog of an index. Its data may be gone."""
        filesystem, _ = open_path(self.spark, managed.path)
        return Catalog(filesystem, managed.index_dir, self.encryption)

    def open(self, managed: ManagedIndex) -> Dataset:
        """Return the data of an index as a dataset with all indices of its catalog."""
        return open_dataset(managed.path, self.spark, managed.index_dir, self.encryption)

    def state(self, managed: ManagedIndex) -> State:
        return managed.state_in(self.catalog(managed).latest().indices)

    def _unusable(self, error: Exception) -> InvalidArgument:
        return InvalidArgument(
            f"documents of indices cannot be stored in {self.path} ({error}); set {SYSTEM_PATH} to "
            "another folder"
        )

    def _path(self, name: str) -> str:
        return posixpath.join(self._folder, quote(name, safe="") + _SUFFIX)


def deleted_indices(spark: Any) -> DeletedIndices:
    """Return the deleted indices of a session's managers."""
    return deleted_indices_in(system_path(spark), spark, session_state(spark))


def deleted_indices_in(path: str, spark: Any, state: SessionState) -> DeletedIndices:
    """Return the deleted indices in a system folder, without a call of the JVM.

    Documents are read again only if one of them changed.
    """
    try:
        documents = Documents(path, spark)
        files = documents.path, documents.files()
        if state.deleted_indices is None or state.deleted_indices[0] != files:
            with collected_warnings():
                deleted_documents = [managed for managed in documents.all() if managed.is_deleted]
            deleted: set[tuple[str, str]] = set()
            for managed in deleted_documents:
                # A query cannot use an index in a file system that cannot be opened.
                with suppress(SourceError):
                    folder = _folder_of(documents.catalog(managed))
                    deleted.update((folder, name) for name in managed.indices.values())
            state.deleted_indices = files, frozenset(deleted)
    except (ZoneBloomError, OSError, pa.ArrowException):
        # Queries do not depend on a system folder, and may use all indices without losing a row.
        return frozenset()
    return state.deleted_indices[1]


def names_in_use(catalog: Catalog, names: Iterable[str], deleted: DeletedIndices) -> list[str]:
    """Return those of the names of indices in a catalog that no manager deleted."""
    folder = _folder_of(catalog) if deleted else ""
    return [name for name in names if (folder, name) not in deleted]


def without_deleted_indices(ds: Dataset, deleted: DeletedIndices) -> Dataset:
    """Return a dataset without the indices that a manager deleted, or the dataset itself."""
    opened = ds.opened
    indices = opened.version.indices
    names = names_in_use(opened.catalog, indices, deleted)
    if len(names) == len(indices):
        return ds
    version = replace(opened.version, indices={name: indices[name] for name in names})
    return Dataset(
        OpenedDataset(opened.source, opened.catalog, version, opened.uses_embedded_filters),
        ds.title,
    )


def _folder_of(catalog: Catalog) -> str:
    """Return the folder of a catalog, without symbolic links if it is local."""
    return store_of(catalog.filesystem).resolve(catalog.folder)

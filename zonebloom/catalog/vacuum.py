"""Deleting versions and segments that nobody needs any more.

Segments are renamed first, and the newest version is read once more: a commit under way either
finds its segments gone and fails, or it is seen here and they get their name back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise

import pyarrow.fs as pafs

from zonebloom.catalog.folder import writing_to
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, EncryptedIndex
from zonebloom.storage.files import is_local

# How long versions are kept that were replaced.
RETENTION = timedelta(days=7)

_ASIDE = "."
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Vacuumed:
    num_versions: int
    num_segments: int
    num_bytes: int


def vacuum(catalog: Catalog, older_than: timedelta) -> Vacuumed:
    with writing_to(catalog.folder):
        return _vacuum(catalog, older_than)


def _vacuum(catalog: Catalog, older_than: timedelta) -> Vacuumed:
    filesystem = catalog.filesystem
    before = datetime.now(UTC) - older_than
    # Before the newest version is read: of segments that come later nothing is known.
    segments = _listed(filesystem, posixpath.join(catalog.folder, "segments"))
    folders = [(folder, _listed(filesystem, folder.path)) for folder in segments]
    versions_folder = posixpath.join(catalog.folder, "versions")
    there = [*segments, *_listed(filesystem, versions_folder), *chain(*(f[1] for f in folders))]
    if not any(_is_older(info, before) for info in there):
        # As after most refreshes: then no version is read.
        return Vacuumed(0, 0, 0)
    newest = catalog.latest(for_writing=True)
    versions = _listed(filesystem, versions_folder)
    oldest = _oldest_kept(catalog, newest, versions, before)
    named = newest.folders | oldest.folders
    files = newest.files | oldest.files
    num_bytes = 0
    unnamed: dict[str, int] = {}
    for folder, inside in folders:
        # An empty folder is of a build that begins.
        if not all(_is_older(info, before) for info in inside or [folder]):
            continue
        if folder.base_name not in named:
            unnamed[folder.base_name] = sum(info.size or 0 for info in inside)
            continue
        # Of a segment whose page map alone is used what else was in it.
        for info in inside:
            if (folder.base_name, info.base_name) not in files:
                num_bytes += info.size or 0
                _delete_file(filesystem, info.path)
    deleted = _delete(catalog, unnamed)
    num_bytes += sum(unnamed[name] for name in deleted)
    num_versions = 0
    for file in versions:
        # Versions in a newer format, or damaged, have later numbers and are kept.
        if file.base_name < f"{oldest.number:020d}" and _is_older(file, before):
            num_bytes += file.size or 0
            num_versions += file.base_name.endswith(".json")
            _delete_file(filesystem, file.path)
    return Vacuumed(num_versions, len(deleted), num_bytes)


def _oldest_kept(
    catalog: Catalog, newest: Version, files: Iterable[pafs.FileInfo], before: datetime
) -> Version:
    """The first version that was the newest after a time.

    What later ones name is in it, in the newest, or was written since.
    """
    oldest = newest
    documents = sorted(
        (file for file in files if file.base_name.endswith(".json")),
        key=lambda file: file.base_name,
    )
    for document, successor in pairwise(documents):
        # A draft of a version has no number.
        number, _, _ = document.base_name.partition(".")
        if number.isdecimal() and int(number) < newest.number and not _is_older(successor, before):
            with contextlib.suppress(CorruptIndex, EncryptedIndex):
                oldest = catalog.version(int(number))
                break
    return oldest


def _delete(catalog: Catalog, names: Iterable[str]) -> list[str]:
    """Delete segments, those left renamed too, unless the newest version needs them."""
    base = posixpath.join(catalog.folder, "segments")
    asides: dict[str, str] = {}
    for name in names:
        asides[name] = name
        if is_local(catalog.filesystem) and not name.startswith(_ASIDE):
            asides[name] = _ASIDE + name
            # Another vacuum may be at work.
            with contextlib.suppress(FileNotFoundError):
                os.rename(posixpath.join(base, name), posixpath.join(base, asides[name]))
    # All, when it cannot be read.
    needed = {name.removeprefix(_ASIDE) for name in asides}
    deleted = []
    try:
        needed = catalog.latest(for_writing=True).folders
    finally:
        for name, aside in asides.items():
            own = name.removeprefix(_ASIDE)
            with contextlib.suppress(FileNotFoundError):
                if own not in needed:
                    if _is_deleted(catalog.filesystem, posixpath.join(base, aside)):
                        deleted.append(name)
                elif aside != own:
                    os.rename(posixpath.join(base, aside), posixpath.join(base, own))
    return deleted


def _is_deleted(filesystem: pafs.FileSystem, path: str) -> bool:
    """Delete a folder; whether that was done, or is left to the next vacuum."""
    for _ in range(_TRIES):
        try:
            filesystem.delete_dir(path)
        except OSError as error:
            # A build that had opened it before it was renamed puts a file there.
            if error.errno != errno.ENOTEMPTY:
                raise
        else:
            return True
    return False


def _delete_file(filesystem: pafs.FileSystem, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        filesystem.delete_file(path)


def _listed(filesystem: pafs.FileSystem, folder: str) -> list[pafs.FileInfo]:
    return filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))


def _is_older(info: pafs.FileInfo, than: datetime) -> bool:
    # Without a time nothing is known to be old.
    return info.mtime is not None and info.mtime < than

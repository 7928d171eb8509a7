"""Deleting versions and segments that nobody needs any more.

A segment that no version names may be of a build under way. So a version is committed that says
which are to be deleted: a build commits before it, and its segments stay, or after it, and fails.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise

import pyarrow.fs as pafs

from zonebloom.catalog.folder import writing_to
from zonebloom.catalog.model import Version
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, EncryptedIndex

# How long versions are kept that were replaced.
RETENTION = timedelta(days=7)

# No build takes longer.
_LONGEST_BUILD = timedelta(days=1)
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What `Dataset.vacuum` deleted.

    Attributes
    ----------
    num_versions, num_segments : int
    num_bytes : int
        Of the segments.
    """

    num_versions: int
    num_segments: int
    num_bytes: int


def vacuum(catalog: Catalog, older_than: timedelta) -> Vacuumed:
    with writing_to(catalog.folder):
        return _vacuum(catalog, older_than)


def _vacuum(catalog: Catalog, older_than: timedelta) -> Vacuumed:
    filesystem = catalog.filesystem
    now = datetime.now(UTC)
    before = now - older_than
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
    is_young = False
    for folder, inside in folders:
        # An empty folder is of a build that begins.
        if not all(_is_older(info, before) for info in inside or [folder]):
            continue
        if folder.base_name not in named:
            unnamed[folder.base_name] = sum(info.size or 0 for info in inside)
            began = now - _LONGEST_BUILD
            is_young |= not all(_is_older(info, began) for info in inside or [folder])
            continue
        # Of a segment whose page map alone is used what else was in it.
        for info in inside:
            if (folder.base_name, info.base_name) not in files:
                num_bytes += info.size or 0
                _delete_file(filesystem, info.path)
    if is_young:
        was_oldest = oldest is newest
        newest = _doomed(catalog, unnamed, {folder.base_name for folder in segments})
        oldest = newest if was_oldest else oldest
        unnamed = {name: size for name, size in unnamed.items() if name in newest.doomed}
    base = posixpath.join(catalog.folder, "segments")
    deleted = [n for n in unnamed if _is_deleted(filesystem, posixpath.join(base, n))]
    num_bytes += sum(unnamed[name] for name in deleted)
    num_versions = 0
    listings = {listing.file for version in (newest, oldest) for listing in version.listings}
    for file in versions:
        # Versions in a newer format, or damaged, have later numbers and are kept.
        is_past = file.base_name < f"{oldest.number:020d}" and file.base_name not in listings
        if is_past and _is_older(file, before):
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


def _doomed(catalog: Catalog, names: Iterable[str], there: Iterable[str]) -> Version:
    """Commit a version that dooms segments, but those that were named since."""

    def change(latest: Version) -> Version:
        doomed = {*names, *latest.doomed}.intersection(there) - latest.folders
        return replace(latest, doomed=tuple(sorted(doomed)))

    return catalog.commit(change)


def _is_deleted(filesystem: pafs.FileSystem, path: str) -> bool:
    """Delete a folder; whether that was done, or is left to the next vacuum."""
    for _ in range(_TRIES):
        try:
            filesystem.delete_dir(path)
        except FileNotFoundError:
            # Another vacuum is at work.
            return False
        except OSError as error:
            # A build under way puts a file there.
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

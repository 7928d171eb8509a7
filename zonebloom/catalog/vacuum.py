"""Delete versions and segments that nobody needs any more.

Others may keep files and folders of theirs in the same place. Only what has a name of an index, and
is no symbolic link, is deleted; all else is reported.

A segment that no version names may be of a build under way. So a version is committed that says
which are to be deleted: a build commits before it, and its segments stay, or after it, and fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise

import pyarrow.fs as pafs

from zonebloom.catalog.folder import (
    delete_file,
    delete_segment,
    is_own_file,
    list_folder,
    wrapping_write_errors,
)
from zonebloom.catalog.model import Version
from zonebloom.catalog.names import SEGMENTS, VERSIONS, is_segment_name, is_version_file_name
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, EncryptedIndex
from zonebloom.storage.files import is_local

# How long versions are kept that were replaced.
RETENTION = timedelta(days=7)

# No build takes longer.
_LONGEST_BUILD = timedelta(days=1)
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Counts of what `Dataset.vacuum` deleted.

    Attributes
    ----------
    num_versions, num_segments : int
    num_bytes : int
        Bytes of the files that were deleted.
    foreign : tuple of str
        Paths, below the folder of the index, of what stands among its segments and versions and is
        not the index's own, symbolic links among them. The vacuum left them alone. A segment that
        holds one is left whole.
    """

    num_versions: int
    num_segments: int
    num_bytes: int
    foreign: tuple[str, ...] = ()


def vacuum_catalog(catalog: Catalog, older_than: timedelta) -> Vacuumed:
    with wrapping_write_errors(catalog.folder):
        return _vacuum(catalog, older_than)


def _vacuum(catalog: Catalog, older_than: timedelta) -> Vacuumed:
    filesystem = catalog.filesystem
    now = datetime.now(UTC)
    before = now - older_than
    segments_folder, versions_folder = (
        posixpath.join(catalog.folder, name) for name in (SEGMENTS, VERSIONS)
    )
    if is_local(filesystem):
        links = tuple(filter(os.path.islink, (segments_folder, versions_folder)))
        if links:
            # Another index may be behind a link, and its versions are not known here.
            return Vacuumed(0, 0, 0, tuple(map(posixpath.basename, links)))
    # Segments are listed before the newest version is read, which knows no later ones.
    segments, strangers = _split(catalog, segments_folder, _is_segment)
    folders: list[tuple[pafs.FileInfo, list[pafs.FileInfo]]] = []
    mixed: set[str] = set()
    for segment in segments:
        own, others = _split(catalog, segment.path, is_own_file)
        folders.append((segment, own))
        strangers += others
        if others:
            mixed.add(segment.base_name)
    versions, others = _split(catalog, versions_folder, _is_version_file)
    strangers += others
    foreign = tuple(sorted(posixpath.relpath(info.path, catalog.folder) for info in strangers))
    there = [*segments, *versions, *chain(*(own for _, own in folders))]
    if not any(_is_older(info, before) for info in there):
        # Most refreshes end here, and read no version.
        return Vacuumed(0, 0, 0, foreign)
    newest = catalog.latest(for_writing=True)
    # Listed again, for others may have committed since.
    versions, _ = _split(catalog, versions_folder, _is_version_file)
    oldest = _oldest_kept(catalog, newest, versions, before)
    named = newest.segment_names | oldest.segment_names
    files = newest.file_sizes | oldest.file_sizes
    num_bytes = 0
    unnamed: dict[str, int] = {}
    is_young = False
    for folder, inside in folders:
        # An empty folder is of a build that begins.
        if not all(_is_older(info, before) for info in inside or [folder]):
            continue
        if folder.base_name not in named:
            if folder.base_name in mixed:
                continue
            unnamed[folder.base_name] = sum(info.size or 0 for info in inside)
            began = now - _LONGEST_BUILD
            is_young |= not all(_is_older(info, began) for info in inside or [folder])
            continue
        # A segment may be in use for its page map alone; its other files are deleted.
        for info in inside:
            if (folder.base_name, info.base_name) not in files:
                num_bytes += info.size or 0
                delete_file(filesystem, info.path, catalog.folder)
    if is_young:
        was_oldest = oldest is newest
        newest = _doomed(catalog, unnamed, {folder.base_name for folder in segments})
        oldest = newest if was_oldest else oldest
        unnamed = {
            name: size for name, size in unnamed.items() if name in newest.segments_to_delete
        }
    deleted = [
        name for name in unnamed if _is_deleted(catalog, posixpath.join(segments_folder, name))
    ]
    num_bytes += sum(unnamed[name] for name in deleted)
    num_versions = 0
    listings = {listing.file for version in (newest, oldest) for listing in version.listings}
    for file in versions:
        # Versions in a newer format, or damaged, have later numbers and are kept.
        is_past = file.base_name < f"{oldest.number:020d}" and file.base_name not in listings
        if is_past and _is_older(file, before):
            num_bytes += file.size or 0
            num_versions += file.base_name.endswith(".json")
            delete_file(filesystem, file.path, catalog.folder)
    return Vacuumed(num_versions, len(deleted), num_bytes, foreign)


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
        doomed = {*names, *latest.segments_to_delete}.intersection(there) - latest.segment_names
        return replace(latest, segments_to_delete=tuple(sorted(doomed)))

    return catalog.commit(change)


def _is_deleted(catalog: Catalog, path: str) -> bool:
    """Delete a segment. Return whether that was done, or is for the next vacuum to do."""
    for _ in range(_TRIES):
        try:
            delete_segment(catalog.filesystem, path, catalog.folder)
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


def _split(
    catalog: Catalog, folder: str, is_own: Callable[[pafs.FileInfo], bool]
) -> tuple[list[pafs.FileInfo], list[pafs.FileInfo]]:
    """List a folder: what is the index's own, and all else."""
    infos = list_folder(catalog.filesystem, folder, catalog.folder)
    return [info for info in infos if is_own(info)], [info for info in infos if not is_own(info)]


def _is_segment(info: pafs.FileInfo) -> bool:
    return info.type == pafs.FileType.Directory and is_segment_name(info.base_name)


def _is_version_file(info: pafs.FileInfo) -> bool:
    return info.type == pafs.FileType.File and is_version_file_name(info.base_name)


def _is_older(info: pafs.FileInfo, than: datetime) -> bool:
    # Without a time nothing is known to be old.
    return info.mtime is not None and info.mtime < than

"""Delete versions and segments that are no longer used.

The index folder may contain foreign files and folders. Only those with the name of an index file
are deleted, never symbolic links. All others are reported.

A segment that no version names may belong to a running build. So the vacuum first commits a version
that marks the segments for deletion. If the build commits before, its segments are kept. If it
commits later, its commit fails.
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

# How long replaced versions are kept.
RETENTION = timedelta(days=7)

# Segments older than this cannot belong to a running build.
_LONGEST_BUILD = timedelta(days=1)
_MAX_DELETE_TRIES = 10


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Counts of what `Dataset.vacuum` deleted.

    Attributes
    ----------
    num_versions, num_segments : int
    num_bytes : int
        Bytes of the files that were deleted.
    foreign : tuple of str
        Paths, below the index folder, of files and folders among the segments and versions that do
        not belong to the index, including symbolic links. The vacuum did not touch them. It also
        keeps all files of a segment that contains a foreign file.
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
    limit = now - older_than
    segments_folder, versions_folder = (
        posixpath.join(catalog.folder, name) for name in (SEGMENTS, VERSIONS)
    )
    if is_local(filesystem):
        links = tuple(filter(os.path.islink, (segments_folder, versions_folder)))
        if links:
            # A link may lead to another index, whose versions are not known here.
            return Vacuumed(0, 0, 0, tuple(map(posixpath.basename, links)))
    # List the segments before reading the newest version: it does not name segments made later,
    # so those must not be in the list.
    segments, foreign_infos = _split(catalog, segments_folder, _is_segment)
    folders: list[tuple[pafs.FileInfo, list[pafs.FileInfo]]] = []
    segments_with_foreign_files: set[str] = set()
    for segment in segments:
        own, others = _split(catalog, segment.path, is_own_file)
        folders.append((segment, own))
        foreign_infos += others
        if others:
            segments_with_foreign_files.add(segment.base_name)
    versions, others = _split(catalog, versions_folder, _is_version_file)
    foreign_infos += others
    foreign = tuple(sorted(posixpath.relpath(info.path, catalog.folder) for info in foreign_infos))
    infos = [*segments, *versions, *chain(*(own for _, own in folders))]
    if not any(_is_older(info, limit) for info in infos):
        # This is the usual case after a refresh, and needs no version to be read.
        return Vacuumed(0, 0, 0, foreign)
    newest = catalog.latest(for_writing=True)
    # List again, because other writers may have committed since.
    versions, _ = _split(catalog, versions_folder, _is_version_file)
    oldest = _oldest_kept(catalog, newest, versions, limit)
    named = newest.segment_names | oldest.segment_names
    files = newest.file_sizes | oldest.file_sizes
    num_bytes = 0
    # Segments that no version names, with their bytes.
    orphans: dict[str, int] = {}
    may_be_in_use = False
    for folder, inside in folders:
        # An empty folder may belong to a build that has just begun, so its own time counts.
        if not all(_is_older(info, limit) for info in inside or [folder]):
            continue
        if folder.base_name not in named:
            if folder.base_name in segments_with_foreign_files:
                continue
            orphans[folder.base_name] = sum(info.size or 0 for info in inside)
            build_limit = now - _LONGEST_BUILD
            may_be_in_use |= not all(_is_older(info, build_limit) for info in inside or [folder])
            continue
        # Delete the unused files of a segment, such as all but its page map.
        for info in inside:
            if (folder.base_name, info.base_name) not in files:
                num_bytes += info.size or 0
                delete_file(filesystem, info.path, catalog.folder)
    if may_be_in_use:
        was_oldest = oldest is newest
        newest = _mark_for_deletion(catalog, orphans, {folder.base_name for folder in segments})
        oldest = newest if was_oldest else oldest
        orphans = {
            name: size for name, size in orphans.items() if name in newest.segments_to_delete
        }
    deleted = [
        name for name in orphans if _delete_orphan(catalog, posixpath.join(segments_folder, name))
    ]
    num_bytes += sum(orphans[name] for name in deleted)
    num_versions = 0
    listings = {listing.file for version in (newest, oldest) for listing in version.listings}
    for file in versions:
        # Damaged versions and versions in a newer format have higher numbers, so they are kept.
        is_past = file.base_name < f"{oldest.number:020d}" and file.base_name not in listings
        if is_past and _is_older(file, limit):
            num_bytes += file.size or 0
            num_versions += file.base_name.endswith(".json")
            delete_file(filesystem, file.path, catalog.folder)
    return Vacuumed(num_versions, len(deleted), num_bytes, foreign)


def _oldest_kept(
    catalog: Catalog, newest: Version, files: Iterable[pafs.FileInfo], limit: datetime
) -> Version:
    """Return the first readable version that was still the newest at or after a time.

    All files that a later version names are named by this version or by the newest, or were
    written after that time.
    """
    oldest = newest
    documents = sorted(
        (file for file in files if file.base_name.endswith(".json")),
        key=lambda file: file.base_name,
    )
    for document, successor in pairwise(documents):
        # The name of a draft has no number.
        number, _, _ = document.base_name.partition(".")
        if number.isdecimal() and int(number) < newest.number and not _is_older(successor, limit):
            with contextlib.suppress(CorruptIndex, EncryptedIndex):
                oldest = catalog.version(int(number))
                break
    return oldest


def _mark_for_deletion(catalog: Catalog, names: Iterable[str], existing: Iterable[str]) -> Version:
    """Commit a version that marks segments for deletion, except those that are in use by now."""

    def change(latest: Version) -> Version:
        marked = {*names, *latest.segments_to_delete}.intersection(existing) - latest.segment_names
        return replace(latest, segments_to_delete=tuple(sorted(marked)))

    return catalog.commit(change)


def _delete_orphan(catalog: Catalog, path: str) -> bool:
    """Delete a segment. Return False if it is left to another vacuum."""
    for _ in range(_MAX_DELETE_TRIES):
        try:
            delete_segment(catalog.filesystem, path, catalog.folder)
        except FileNotFoundError:
            # Another vacuum has deleted it.
            return False
        except OSError as error:
            # A running build has created a file in the folder: try again.
            if error.errno != errno.ENOTEMPTY:
                raise
        else:
            return True
    return False


def _split(
    catalog: Catalog, folder: str, is_own: Callable[[pafs.FileInfo], bool]
) -> tuple[list[pafs.FileInfo], list[pafs.FileInfo]]:
    """List a folder. Return the entries that belong to the index, and the foreign ones."""
    infos = list_folder(catalog.filesystem, folder, catalog.folder)
    return [info for info in infos if is_own(info)], [info for info in infos if not is_own(info)]


def _is_segment(info: pafs.FileInfo) -> bool:
    return info.type == pafs.FileType.Directory and is_segment_name(info.base_name)


def _is_version_file(info: pafs.FileInfo) -> bool:
    return info.type == pafs.FileType.File and is_version_file_name(info.base_name)


def _is_older(info: pafs.FileInfo, limit: datetime) -> bool:
    # Treat a file without a time as new, so that it is kept.
    return info.mtime is not None and info.mtime < limit

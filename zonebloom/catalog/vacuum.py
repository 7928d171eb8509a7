"""Delete versions and segments that are no longer used.

The index folder may contain foreign files and folders. Only those with the name of an index file
are deleted, and symbolic links are not. All others are reported.

A segment that no version names may belong to a running build. So the vacuum first commits a version
that marks the segments for deletion. If the build commits before that version, its segments are
kept. If it commits later, its commit fails.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise

import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS, map_in_order, thread_pool
from zonebloom.catalog.model import (
    SEGMENTS,
    VERSIONS,
    Version,
    is_segment_name,
    is_version_file_name,
)
from zonebloom.catalog.store import (
    Catalog,
    MissingIndexFile,
    delete_segment,
    is_own_file,
    wrapping_write_errors,
)
from zonebloom.errors import CorruptIndex, EncryptedIndex
from zonebloom.storage.store import Store

# Segments older than this cannot belong to a running build.
LONGEST_BUILD = timedelta(days=1)
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
        Files, folders and symbolic links among the segments and versions that do not belong to the
        index, as paths below the index folder. The vacuum did not touch them. If a segment contains
        one of them, the vacuum also keeps the other files of the segment.
    """

    num_versions: int
    num_segments: int
    num_bytes: int
    foreign: tuple[str, ...] = ()


def vacuum_catalog(catalog: Catalog, older_than: timedelta) -> Vacuumed:
    """Delete the versions replaced before `older_than`, and the files that no other version names.

    If a segment may be deleted, the vacuum reads the document of every version that it keeps. This
    takes one request for each, with 16 in parallel. For seven days of refreshes every hour, these
    are 168 requests. Otherwise, it reads the newest and the oldest of them.

    If one of these documents cannot be read, nothing is deleted, because its names are unknown.
    """
    with wrapping_write_errors(catalog.folder):
        return _vacuum(catalog, older_than)


def _vacuum(catalog: Catalog, older_than: timedelta) -> Vacuumed:
    store = catalog.store
    now = datetime.now(UTC)
    # The calendar begins in the year 1.
    keep_since = now - min(older_than, now - datetime.min.replace(tzinfo=UTC))
    segments_folder, versions_folder = (
        posixpath.join(catalog.folder, name) for name in (SEGMENTS, VERSIONS)
    )
    links = tuple(filter(store.is_link, (segments_folder, versions_folder)))
    if links:
        # A link may lead to another index, whose versions are not known here.
        return Vacuumed(0, 0, 0, tuple(map(posixpath.basename, links)))
    # List the segments before reading the newest version, below. Segments that are written later
    # cannot be in that version, so they must not be in the list.
    with thread_pool(1) as pool:
        listing = pool.submit(_list_segments, store, segments_folder)
        version_infos = store.list_index_folder(versions_folder)
    listed, inside_by_name = listing.result()
    segments, foreign_infos = _split(listed, _is_segment)
    folders: list[tuple[pafs.FileInfo, list[pafs.FileInfo]]] = []
    segments_with_foreign_files: set[str] = set()
    for segment in segments:
        own, others = _split(inside_by_name.get(segment.base_name, []), is_own_file)
        folders.append((segment, own))
        foreign_infos += others
        if others:
            segments_with_foreign_files.add(segment.base_name)
    versions, others = _split(version_infos, _is_version_file)
    foreign_infos += others
    foreign = tuple(sorted(posixpath.relpath(info.path, catalog.folder) for info in foreign_infos))
    infos = [*segments, *versions, *chain(*(own for _, own in folders))]
    if not any(_is_older(info, keep_since) for info in infos):
        # This is the usual case after a refresh, and needs no version to be read.
        return Vacuumed(0, 0, 0, foreign)
    newest = catalog.latest(for_writing=True)
    # List again, because other writers may have committed since.
    versions, _ = _split(store.list_index_folder(versions_folder), _is_version_file)
    # An empty folder may belong to a build that has just begun, so its own time counts.
    old_folders = [
        (folder, inside)
        for folder, inside in folders
        if all(_is_older(info, keep_since) for info in inside or [folder])
    ]
    documents = _kept_documents(newest, versions, keep_since)
    may_delete_segments = any(
        (folder.base_name, info.base_name) not in newest.file_sizes
        for folder, inside in old_folders
        for info in inside or [folder]
    )
    # If the oldest version does not name a listing with a lower number, no later version does.
    needed = documents if may_delete_segments else documents[:1]
    names, is_complete = read_names(catalog, map(_number_of, needed))
    if not is_complete:
        return Vacuumed(0, 0, 0, foreign)
    names |= _named_files(newest)
    named_folders = {folder for folder, _ in names}
    num_bytes = 0
    # Segments that no version names, with their bytes.
    orphans: dict[str, int] = {}
    may_be_in_use = False
    for folder, inside in old_folders:
        if folder.base_name not in named_folders:
            if folder.base_name in segments_with_foreign_files:
                continue
            orphans[folder.base_name] = sum(info.size or 0 for info in inside)
            may_be_in_use |= not all(
                _is_older(info, now - LONGEST_BUILD) for info in inside or [folder]
            )
            continue
        # Delete the files of the segment that are not used, such as all but its page map.
        for info in inside:
            if (folder.base_name, info.base_name) not in names:
                num_bytes += info.size or 0
                store.delete_file(info.path)
    only_newest_is_kept = not documents
    if may_be_in_use:
        newest = _mark_for_deletion(catalog, orphans, {folder.base_name for folder in segments})
        names |= _named_files(newest)
        orphans = {
            name: size for name, size in orphans.items() if name in newest.segments_to_delete
        }
    deleted = [
        name for name in orphans if _delete_orphan(catalog, posixpath.join(segments_folder, name))
    ]
    num_bytes += sum(orphans[name] for name in deleted)
    num_versions = 0
    first_kept = f"{newest.number:020d}" if only_newest_is_kept else documents[0].base_name
    # Delete the documents before the listings. A reader that finds a listing gone looks whether its
    # version still exists, and if so, takes the version for damaged.
    for file in sorted(versions, key=lambda file: not file.base_name.endswith(".json")):
        # Damaged versions and versions in a newer format have higher numbers, so they are kept.
        is_past = file.base_name < first_kept and (VERSIONS, file.base_name) not in names
        if is_past and _is_older(file, keep_since):
            num_bytes += file.size or 0
            num_versions += file.base_name.endswith(".json")
            store.delete_file(file.path)
    return Vacuumed(num_versions, len(deleted), num_bytes, foreign)


def _named_files(version: Version) -> set[tuple[str, str]]:
    """Return the files of segments and the listings that a version names, with their folders."""
    return {*version.file_sizes, *((VERSIONS, listing.file) for listing in version.listings)}


def _kept_documents(
    newest: Version, files: Iterable[pafs.FileInfo], keep_since: datetime
) -> list[pafs.FileInfo]:
    """Return the documents of versions that were the newest at or after a time, the oldest first.

    The newest version is not among them.
    """
    documents = sorted(
        (file for file in files if file.base_name.endswith(".json")),
        key=lambda file: file.base_name,
    )
    return [
        document
        for document, successor in pairwise(documents)
        if _number_of(document) < newest.number and not _is_older(successor, keep_since)
    ]


def _number_of(document: pafs.FileInfo) -> int:
    return int(document.base_name.partition(".")[0])


def read_names(catalog: Catalog, numbers: Iterable[int]) -> tuple[set[tuple[str, str]], bool]:
    """Return the folders and names of the files that versions name, and if all could be read.

    Versions that do not exist name none.
    """

    def read(number: int) -> tuple[set[tuple[str, str]], bool]:
        try:
            return _named_files(catalog.version_without_fragments(number)), True
        except MissingIndexFile:
            # Another process has deleted this version.
            return set(), True
        except (CorruptIndex, EncryptedIndex):
            return set(), False

    names: set[tuple[str, str]] = set()
    is_complete = True
    with thread_pool(REMOTE_THREADS) as pool:
        for more, is_readable in map_in_order(pool, read, numbers, 2 * REMOTE_THREADS):
            names |= more
            is_complete &= is_readable
    return names, is_complete


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
            delete_segment(catalog.store, path)
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


def _list_segments(
    store: Store, folder: str
) -> tuple[list[pafs.FileInfo], dict[str, list[pafs.FileInfo]]]:
    """Return the entries of the folder of segments, and those of each segment by its name."""
    if not store.has_round_trips:
        # One listing of all would follow symbolic links.
        listed = store.list_index_folder(folder)
        return listed, {
            info.base_name: store.list_index_folder(info.path)
            for info in listed
            if _is_segment(info)
        }
    # One listing of all files does not wait for each segment. The shortest paths are the entries.
    infos = store.list_folder(folder, recursive=True)
    depth = min((info.path.count("/") for info in infos), default=0)
    inside: dict[str, list[pafs.FileInfo]] = {}
    for info in infos:
        if info.path.count("/") == depth + 1:
            inside.setdefault(posixpath.basename(posixpath.dirname(info.path)), []).append(info)
    return [info for info in infos if info.path.count("/") == depth], inside


def _split(
    infos: Sequence[pafs.FileInfo], is_own: Callable[[pafs.FileInfo], bool]
) -> tuple[list[pafs.FileInfo], list[pafs.FileInfo]]:
    """Return the entries of a folder that belong to the index, and the foreign ones."""
    return [info for info in infos if is_own(info)], [info for info in infos if not is_own(info)]


def _is_segment(info: pafs.FileInfo) -> bool:
    return info.type == pafs.FileType.Directory and is_segment_name(info.base_name)


def _is_version_file(info: pafs.FileInfo) -> bool:
    return info.type == pafs.FileType.File and is_version_file_name(info.base_name)


def _is_older(info: pafs.FileInfo, time: datetime) -> bool:
    # Treat a file without a time as new, so that it is kept.
    return info.mtime is not None and info.mtime < time

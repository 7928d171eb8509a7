"""Keeping the index folder small: versions and segments nobody needs any more."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow.fs as pafs

from zonebloom.index.catalog import MERGED_FILES, Catalog


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What `vacuum` deleted."""

    num_versions: int
    num_segments: int
    num_bytes: int


def vacuum(catalog: Catalog, older_than: timedelta) -> Vacuumed:
    """Delete what the newest version does not name.

    Parameters
    ----------
    catalog : Catalog
    older_than : timedelta
        Files written since are kept: a build may be under way, and readers that opened the
        dataset before may still read the version they found. A reader of a deleted version
        scans the data instead, with a warning.

    Returns
    -------
    Vacuumed

    Raises
    ------
    CorruptIndex
        When the newest version cannot be read, so that what it names is not known.
    """
    filesystem = catalog.filesystem
    before = datetime.now(UTC) - older_than
    newest = catalog.latest_for_writing()
    entries = newest.indices.values()
    named = {name for entry in entries for name in entry.folders}
    of_newest = [segment for entry in entries for segment in entry.segments]
    maps_alone = {segment.name for segment in of_newest}
    maps_alone -= {segment.name for segment in of_newest if segment.layout != "pages"}
    segments = num_bytes = 0
    for folder in _listed(filesystem, posixpath.join(catalog.folder, "segments")):
        inside = _listed(filesystem, folder.path)
        # An empty folder is of a build that begins.
        old = all(_is_older(each, before) for each in inside or [folder])
        if folder.base_name in maps_alone and old:
            # Its filters are in another segment by now.
            for each in inside:
                if each.base_name in MERGED_FILES:
                    num_bytes += each.size or 0
                    filesystem.delete_file(each.path)
        if folder.base_name in named or not old:
            continue
        num_bytes += sum(each.size or 0 for each in inside)
        filesystem.delete_dir(folder.path)
        segments += 1
    versions = 0
    mark = f"{newest.number:020d}"
    for file in _listed(filesystem, posixpath.join(catalog.folder, "versions")):
        # Versions in a newer format, or damaged, have later numbers and are kept.
        if file.base_name < mark and _is_older(file, before):
            num_bytes += file.size or 0
            versions += file.base_name.endswith(".json")
            filesystem.delete_file(file.path)
    return Vacuumed(versions, segments, num_bytes)


def _listed(filesystem: pafs.FileSystem, folder: str) -> list[pafs.FileInfo]:
    return filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))


def _is_older(info: pafs.FileInfo, than: datetime) -> bool:
    # Without a time nothing is known to be old.
    return info.mtime is not None and info.mtime < than

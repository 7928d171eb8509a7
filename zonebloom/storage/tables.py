"""Folders of tables whose metadata says which of their files count: not opened as plain files."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.errors import FragmentUnreadable, SourceError
from zonebloom.storage.files import is_local
from zonebloom.threads import REMOTE_THREADS

# Folders below the data's own that are looked at where each is some round trips.
_REMOTE_FOLDERS = 24

# What a table has in its folder; what it is, what says which files count, what to give instead.
_TABLES = {
    "_delta_log": ("a Delta table", "log", "deltalake.DeltaTable({!r})"),
    "metadata": ("an Iceberg table", "metadata", "the table as pyiceberg's catalog loads it"),
    ".hoodie": (
        "a Hudi table",
        "timeline",
        "a pyarrow.dataset.dataset of the files of its latest snapshot",
    ),
}


def refuse_tables(filesystem: pafs.FileSystem, folder: str, files: Iterable[str] = ()) -> None:
    """Refuse a folder in a Delta, Iceberg or Hudi table, or one with such a table below it."""
    folder = folder.rstrip("/") or "/"
    if not files:
        # Of folders above the data its reader may not be allowed to see anything.
        infos = _infos(filesystem, _above([posixpath.dirname(folder)]), is_lenient=True)
        _refuse(filesystem, [*_infos(filesystem, {folder}), *infos])
        return
    below = _above(posixpath.dirname(file) for file in files) - _above([folder])
    if not is_local(filesystem):
        # The values of partitions are no tables of their own.
        plain = (each for each in below if "=" not in posixpath.basename(each))
        below = set(sorted(plain, key=lambda each: each.count("/"))[:_REMOTE_FOLDERS])
    _refuse(filesystem, _infos(filesystem, below))


def _refuse(filesystem: pafs.FileSystem, infos: Iterable[pafs.FileInfo]) -> None:
    for info in infos:
        if info.type == pafs.FileType.Directory and _is_of_table(filesystem, info):
            folder = posixpath.dirname(info.path)
            kind, teller, instead = _TABLES[info.base_name]
            raise SourceError(
                f"{folder} is {kind}, and its {teller} says which files count; give "
                f"{instead.format(folder)} instead of a path in it"
            )


def _is_of_table(filesystem: pafs.FileSystem, info: pafs.FileInfo) -> bool:
    # Other folders are called metadata too.
    return info.base_name != "metadata" or any(
        each.base_name.endswith(".metadata.json")
        for each in filesystem.get_file_info(pafs.FileSelector(info.path))
    )


def _above(folders: Iterable[str]) -> set[str]:
    above: set[str] = set()
    for folder in folders:
        while folder.strip("/") and folder not in above:
            above.add(folder)
            folder = posixpath.dirname(folder)
    return above


def _infos(
    filesystem: pafs.FileSystem, folders: Iterable[str], is_lenient: bool = False
) -> list[pafs.FileInfo]:
    """What there is in folders of what tells of a table."""
    paths = [posixpath.join(each, name) for each in folders for name in _TABLES]

    def info(path: str) -> pafs.FileInfo:
        try:
            return filesystem.get_file_info(path)
        except (OSError, pa.ArrowException) as error:
            if is_lenient:
                return pafs.FileInfo(path, pafs.FileType.Unknown)
            raise FragmentUnreadable(
                f"cannot look at {path}, which tells whether the files are of a table: {error}; "
                "make the folder readable"
            ) from None

    if is_local(filesystem) or len(paths) < 2:
        return [info(path) for path in paths]
    with ThreadPoolExecutor(REMOTE_THREADS) as pool:
        return list(pool.map(info, paths))

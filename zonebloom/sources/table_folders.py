"""Folders of tables whose metadata says which of their files count: not opened as plain files, but
as the table when that is asked for."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS
from zonebloom.errors import FragmentUnreadable, MissingDependency, SourceError
from zonebloom.storage.files import file_errors, is_local
from zonebloom.storage.paths import absolute_path, filesystem_of_uri

# Folders below the data's own that are looked at where each is some round trips.
_REMOTE_FOLDERS = 24

# Of Iceberg's metadata, with its number: "00003-<uuid>" as catalogs name it, "v3" without one.
_METADATA = re.compile(r"v?(\d+)(?:[-.].*)?\.metadata\.json")

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


def table_at(path: str) -> Any:
    """The Delta or Iceberg table in a folder as it is now, or None.

    Of an Iceberg table the folder does not say which metadata is current, its catalog does: the one
    of the highest number is taken. A path may also name a file of metadata.

    Raises
    ------
    MissingDependency, SourceError
    """
    path = absolute_path(path)
    filesystem, folder = filesystem_of_uri(path.rstrip("/"))
    if _METADATA.fullmatch(posixpath.basename(folder)):
        return _iceberg(path)
    delta, iceberg, _ = _infos(filesystem, [folder], is_lenient=True)
    if delta.type == pafs.FileType.Directory:
        return _delta(path)
    if iceberg.type != pafs.FileType.Directory:
        return None
    infos = filesystem.get_file_info(pafs.FileSelector(iceberg.path))
    found = [(int(name[1]), name[0]) for name in map(_metadata_name, infos) if name]
    if not found:
        return None
    newest = [name for number, name in found if number == max(found)[0]]
    if len(newest) > 1:
        raise SourceError(
            f"{folder} has {len(newest)} files of Iceberg metadata of the highest number, "
            f"{' and '.join(sorted(newest))}, and its catalog says which counts; give the path of "
            "that one"
        )
    return _iceberg(posixpath.join(path, "metadata", newest[0]))


def _metadata_name(info: pafs.FileInfo) -> re.Match[str] | None:
    return _METADATA.fullmatch(info.base_name)


def _delta(path: str) -> Any:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise MissingDependency(
            f"{path} is a Delta table; to read it: pip install 'zonebloom[delta]'"
        ) from error
    try:
        return DeltaTable(path)
    except DeltaError as error:
        raise SourceError(f"cannot open the Delta table {path}: {error}") from None


def _iceberg(path: str) -> Any:
    try:
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise MissingDependency(
            f"{path} is of an Iceberg table; to read it: pip install 'zonebloom[iceberg]'"
        ) from error
    with file_errors(path, "give a file of an Iceberg table's metadata", "open"):
        return StaticTable.from_metadata(path)


def refuse_tables(filesystem: pafs.FileSystem, folder: str, files: Iterable[str] = ()) -> None:
    """Refuse a folder in a Delta, Iceberg or Hudi table, or one with such a table below it."""
    folder = folder.rstrip("/") or "/"
    if not files:
        # Of folders above the data its reader may not be allowed to see anything.
        infos = _infos(filesystem, _above([posixpath.dirname(folder)]), is_lenient=True)
        _refuse(filesystem, [*_infos(filesystem, {folder}), *infos])
        return
    below = _above(file.rpartition("/")[0] for file in files) - _above([folder])
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
    # Of many files few folders.
    for folder in dict.fromkeys(folders):
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

"""Recognise folders of Delta, Iceberg and Hudi tables, whose metadata says which files count.

Such a folder is not opened as plain files. `table_at` opens it as a table.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from itertools import chain, compress
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.errors import FragmentUnreadable, MissingDependency, SourceError
from zonebloom.storage.files import file_errors
from zonebloom.storage.paths import absolute_path, filesystem_of_uri, folders_above
from zonebloom.storage.store import store_of

# The most folders below the data's root that are checked in a remote file system, where each check
# takes some round trips.
_MAX_REMOTE_FOLDERS = 24

# Iceberg's metadata files and their number. Catalogs name them "00003-<uuid>", and tables without a
# catalog name them "v3".
_METADATA_NAME = r"v?(\d+)(?:[-.].*)?\.metadata\.json"

# By the marker in a table's folder: the kind of table, its metadata, and what to give instead.
_TABLE_MARKERS = {
    "_delta_log": ("a Delta table", "log", "deltalake.DeltaTable({!r})"),
    "metadata": ("an Iceberg table", "metadata", "the table as pyiceberg's catalog loads it"),
    ".hoodie": (
        "a Hudi table",
        "timeline",
        "a pyarrow.dataset.dataset of the files of its latest snapshot",
    ),
}


def table_at(path: str) -> Any:
    """Return the current Delta or Iceberg table in a folder, or None if there is none.

    Only the catalog of an Iceberg table knows which metadata file is current. Without it, the file
    with the highest number is used. The path may also name a metadata file.

    Raises
    ------
    MissingDependency
        When deltalake or pyiceberg is not installed.
    SourceError
        When the table cannot be opened, or several metadata files have the highest number.
    """
    path = absolute_path(path)
    filesystem, folder = filesystem_of_uri(path.rstrip("/"))
    if re.fullmatch(_METADATA_NAME, posixpath.basename(folder)):
        return _load_iceberg(path)
    markers = set(map(posixpath.basename, _markers_in(filesystem, [folder], is_lenient=True)))
    if "_delta_log" in markers:
        return _load_delta(path)
    if "metadata" not in markers:
        return None
    names = store_of(filesystem).names_in(posixpath.join(folder, "metadata"))
    matches = (re.fullmatch(_METADATA_NAME, name) for name in names)
    numbered = [(int(match[1]), match[0]) for match in matches if match]
    if not numbered:
        return None
    newest = [name for number, name in numbered if number == max(numbered)[0]]
    if len(newest) > 1:
        raise SourceError(
            f"{folder} has {len(newest)} files of Iceberg metadata of the highest number, "
            f"{' and '.join(sorted(newest))}, and only its catalog knows which is current; give "
            "the path of that file"
        )
    return _load_iceberg(posixpath.join(path, "metadata", newest[0]))


def table_in_catalog(catalog: str, name: str) -> Any:
    """Return the Iceberg table with a name in a catalog that pyiceberg's configuration names.

    Raises
    ------
    MissingDependency
        When pyiceberg is not installed.
    SourceError
        When there is no such catalog or table.
    """
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError
    except ImportError:
        raise MissingDependency(
            "a catalog needs pyiceberg: pip install 'zonebloom[iceberg]'"
        ) from None
    try:
        return load_catalog(catalog).load_table(name)
    except (NoSuchTableError, ValueError) as error:
        raise SourceError(
            f"cannot load the Iceberg table {name} from the catalog {catalog}: {error}; check both "
            "names, and pyiceberg's configuration"
        ) from None


def _load_delta(path: str) -> Any:
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


def _load_iceberg(path: str) -> Any:
    try:
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise MissingDependency(
            f"{path} is an Iceberg table; to read it: pip install 'zonebloom[iceberg]'"
        ) from error
    with file_errors(path, "give a metadata file of an Iceberg table", "open"):
        return StaticTable.from_metadata(path)


def refuse_tables(filesystem: pafs.FileSystem, folder: str, files: Iterable[str]) -> None:
    """Raise `SourceError` if files below a folder lie in a Delta, Iceberg or Hudi table."""
    folder = folder.rstrip("/") or "/"
    below = _folders_between(folder, files)
    if store_of(filesystem).has_round_trips:
        # Partition folders such as day=1 are not tables, so skip them. Check the top folders first.
        folders = (path for path in below if "=" not in posixpath.basename(path))
        below = set(sorted(folders, key=lambda path: path.count("/"))[:_MAX_REMOTE_FOLDERS])
    _refuse_table(filesystem, _markers_in(filesystem, {folder, *below}))
    refuse_tables_above(filesystem, folder)


def refuse_tables_above(filesystem: pafs.FileSystem, folder: str) -> None:
    """Raise `SourceError` if a folder lies in a folder of a table."""
    # A reader of the data may not have access to the folders above, so ignore errors there.
    above = folders_above(posixpath.dirname(folder))
    _refuse_table(filesystem, _markers_in(filesystem, above, is_lenient=True))


def refuse_listed_tables(
    filesystem: pafs.FileSystem, folder: str, folders: Iterable[str], files: Iterable[str]
) -> None:
    """Raise `SourceError` if a folder, or one between it and files, is that of a table.

    ``folders`` are all folders below the folder, so the store is not asked for the markers.
    """
    markers = [path for path in folders if posixpath.basename(path) in _TABLE_MARKERS]
    if markers:
        checked = {folder, *_folders_between(folder, files)}
        _refuse_table(filesystem, (m for m in sorted(markers) if posixpath.dirname(m) in checked))


def _folders_between(folder: str, files: Iterable[str]) -> set[str]:
    """Return the folders of files, and those above them, below a folder."""
    # Many files share few folders, so drop duplicates first.
    folders_of_files = {file.rpartition("/")[0] for file in files}
    below = set(chain.from_iterable(map(folders_above, folders_of_files)))
    return below.difference(folders_above(folder))


def _refuse_table(filesystem: pafs.FileSystem, markers: Iterable[str]) -> None:
    for marker in markers:
        if _is_table_marker(filesystem, marker):
            folder, name = posixpath.split(marker)
            kind, metadata, replacement = _TABLE_MARKERS[name]
            table = replacement.format(folder)
            raise SourceError(
                f"{folder} is {kind}, and its {metadata} says which files count; give {table} "
                "instead of a path in it",
                # The command opens the tables that `table_at` knows by their folders.
                commands={} if name == ".hoodie" else {table: f"the folder {folder}"},
            )


def _is_table_marker(filesystem: pafs.FileSystem, path: str) -> bool:
    # A folder called "metadata" belongs to Iceberg only if it contains a metadata file.
    return posixpath.basename(path) != "metadata" or any(
        name.endswith(".metadata.json") for name in store_of(filesystem).names_in(path)
    )


def _markers_in(
    filesystem: pafs.FileSystem, folders: Iterable[str], is_lenient: bool = False
) -> list[str]:
    """Return the table markers in folders.

    If lenient, leave out those that cannot be looked at, instead of an error.
    """
    paths = [posixpath.join(folder, name) for folder in folders for name in _TABLE_MARKERS]
    store = store_of(filesystem)

    def exists(path: str) -> bool:
        try:
            return store.is_folder(path)
        except (OSError, pa.ArrowException) as error:
            if is_lenient:
                return False
            raise FragmentUnreadable(
                f"cannot look at {path} to find out if the files belong to a table: {error}; make "
                "the folder readable"
            ) from None

    if not store.has_round_trips or len(paths) < 2:
        return list(filter(exists, paths))
    with thread_pool(REMOTE_THREADS) as pool:
        return list(compress(paths, pool.map(exists, paths)))

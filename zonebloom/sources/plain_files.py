"""Find local Parquet files as ``pyarrow.dataset`` does, without importing it.

``pyarrow.dataset`` imports pandas, which takes longer than a lookup.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.store import store_of

# A path is hidden if one of its parts begins with a dot or an underscore.
_HIDDEN_PREFIXES = ("/.", "/_")


class FolderListing(NamedTuple):
    """What is below a local folder.

    Attributes
    ----------
    keys : list of str
        The paths of data files relative to the folder, sorted.
    folders : list of str
        The paths of all folders, each with a slash at its end.
    """

    keys: list[str]
    folders: list[str]


def list_local(filesystem: pafs.FileSystem, folder: str) -> FolderListing | None:
    """Return the listing of a local folder, or None if it is remote or cannot be listed."""
    root = folder.rstrip("/")
    if store_of(filesystem).has_round_trips or not root:
        return None
    try:
        infos = filesystem.get_file_info(pafs.FileSelector(root, recursive=True))
    except (pa.ArrowException, OSError):
        return None
    return FolderListing(_file_keys(infos, root), _folder_paths(infos))


def plain_files(
    filesystem: pafs.FileSystem, path: str, listing: FolderListing | None = None
) -> Source | None:
    """Return the source of a listed folder or of one file, or None to leave it to pyarrow.

    pyarrow handles remote files, folders with partition values, and everything that fails.
    """
    root = posixpath.dirname(path) if listing is None else path.rstrip("/")
    if store_of(filesystem).has_round_trips or not root:
        return None
    from pyarrow.parquet import ParquetFile

    try:
        keys = [posixpath.basename(path)] if listing is None else listing.keys
        base = posixpath.join(root, "")
        if not keys or "=" in "".join(keys):
            return None
        fragments = tuple(Fragment(f"{base}{key}", key) for key in keys)
        path = fragments[0].path
        with ParquetFile(path, filesystem=filesystem, arrow_extensions_enabled=False) as first:
            schema = first.schema_arrow
    except (pa.ArrowException, OSError):
        return None
    if len(set(schema.names)) < len(schema.names):
        return None
    return Source(schema, None, filesystem, root, fragments)


def files_below(filesystem: pafs.FileSystem, folder: str) -> list[str]:
    """Return the files below a folder, sorted, without those that pyarrow considers hidden."""
    root = folder.rstrip("/")
    infos = filesystem.get_file_info(pafs.FileSelector(root, recursive=True))
    return [posixpath.join(folder, key) for key in _file_keys(infos, root)]


def _file_keys(infos: Iterable[pafs.FileInfo], root: str) -> list[str]:
    # Only files have a size. Testing `info.type` instead takes as long as the listing.
    return data_keys((info.path for info in infos if info.size is not None), root)


def _folder_paths(infos: Iterable[pafs.FileInfo]) -> list[str]:
    return [f"{info.path}/" for info in infos if info.size is None]


def data_keys(paths: Iterable[str], root: str) -> list[str]:
    """Return the paths of files relative to a folder, sorted, without hidden ones."""
    start = len(root)
    keys = [path[start:] for path in paths]
    hidden, below = _HIDDEN_PREFIXES
    return sorted(key[1:] for key in keys if hidden not in key and below not in key)

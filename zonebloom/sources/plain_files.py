"""Local Parquet files as ``pyarrow.dataset`` finds them, without loading that: it brings pandas in,
which takes longer than a lookup."""

from __future__ import annotations

import posixpath

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import is_local

# How a part of a path begins that is hidden.
_IGNORED = ("/.", "/_")


def plain_files(filesystem: pafs.FileSystem, path: str, is_folder: bool) -> Source | None:
    """The files of a folder, or one file; None where pyarrow has to look or to say what is wrong,
    as it has of folders that name values."""
    root = path.rstrip("/") if is_folder else posixpath.dirname(path)
    if not is_local(filesystem) or not root:
        return None
    from pyarrow.parquet import ParquetFile

    try:
        keys = _keys(filesystem, root) if is_folder else [posixpath.basename(path)]
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
    """Return the files below a folder, sorted, without those that pyarrow takes for hidden."""
    return [posixpath.join(folder, key) for key in _keys(filesystem, folder.rstrip("/"))]


def _keys(filesystem: pafs.FileSystem, root: str) -> list[str]:
    """Return the paths below a folder. Leave out those of which a part is hidden."""
    found = filesystem.get_file_info(pafs.FileSelector(root, recursive=True))
    start = len(root)
    # Only files have a size; to ask for their type takes as long as to list them.
    keys = [each.path[start:] for each in found if each.size is not None]
    hidden, below = _IGNORED
    return sorted(key[1:] for key in keys if hidden not in key and below not in key)

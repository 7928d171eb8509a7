"""Find the Parquet files below a folder of an object store with one listing.

``pyarrow.dataset`` looks at the folder, lists it, and looks at its first file. One listing tells
the files, their sizes, and the folders of tables among them.
"""

from __future__ import annotations

import posixpath

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import thread_pool
from zonebloom.sources.plain_files import data_keys
from zonebloom.sources.source import Fragment, Source
from zonebloom.sources.table_folders import refuse_listed_tables, refuse_tables_above
from zonebloom.storage.files import PARQUET_EXTENSIONS
from zonebloom.storage.object_store import StoreHandler, object_reader

# Footers of most files fit in it.
_END_BYTES = 64 << 10


def listed_files(filesystem: pafs.FileSystem, path: str) -> Source | None:
    """Return the source of a folder of an object store, or None to leave it to pyarrow.

    pyarrow handles single objects, folders with partition values, and everything that fails.

    Raises
    ------
    SourceError
        When the folder lies in a table, or contains one.
    """
    root = path.rstrip("/")
    if root.lower().endswith(PARQUET_EXTENSIONS):
        return None
    handler = object_reader(filesystem, root)
    if handler is None or not handler.key(root):
        return None
    with thread_pool(1) as pool:
        above = pool.submit(refuse_tables_above, filesystem, root)
        try:
            infos = handler.get_file_info_selector(pafs.FileSelector(root, recursive=True))
        except OSError:
            return None
    above.result()
    files = [info for info in infos if info.type == pafs.FileType.File]
    sizes = {info.path: info.size for info in files}
    keys = data_keys(sizes, root)
    # An empty object may mark a folder.
    if not keys or "=" in "".join(keys) or 0 in sizes.values():
        return None
    fragments = tuple(Fragment(posixpath.join(root, key), key) for key in keys)
    paths = [fragment.path for fragment in fragments]
    refuse_listed_tables(filesystem, root, list(sizes), paths)
    try:
        schema = _read_schema(handler, paths[0], sizes[paths[0]])
    except (pa.ArrowException, OSError):
        return None
    if len(set(schema.names)) < len(schema.names):
        return None
    return Source(schema, None, filesystem, root, fragments)


def _read_schema(handler: StoreHandler, path: str, num_bytes: int) -> pa.Schema:
    """Read the schema of a Parquet file from its end."""
    from pyarrow.parquet import ParquetFile

    end = handler.read_range(path, max(0, num_bytes - _END_BYTES), num_bytes)
    footer_bytes = int.from_bytes(end[-8:-4], "little") + 8
    if len(end) < footer_bytes <= num_bytes:
        end = handler.read_range(path, num_bytes - footer_bytes, num_bytes)
    with ParquetFile(pa.BufferReader(end), arrow_extensions_enabled=False) as file:
        return file.schema_arrow

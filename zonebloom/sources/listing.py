"""List the data files below a folder, of the local disk and of stores alike.

One listing tells the files and the folders of tables among them. Hidden files are left out, as
``pyarrow.dataset`` does.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.threads import thread_pool
from zonebloom.errors import FragmentUnreadable
from zonebloom.sources.table_folders import refuse_listed_tables, refuse_tables_above
from zonebloom.storage.files import PARQUET_EXTENSIONS, file_errors
from zonebloom.storage.random_access import RandomAccessFile
from zonebloom.storage.store import Store, store_of
from zonebloom.values.normal_types import innermost_types

# Footers of most files fit in it.
_END_BYTES = 64 << 10
_BYTES_OF_UUID = pa.binary(16)


class FolderListing(NamedTuple):
    """What a path names, and the data files of a folder, sorted by path, with the size of each."""

    kind: pafs.FileType
    root: str
    sizes: dict[str, int | None]


def list_data_files(filesystem: pafs.FileSystem, path: str) -> FolderListing:
    """Return the data files below a folder, or the file if the path is that of one.

    Raises
    ------
    FragmentUnreadable
        When the folder cannot be listed.
    SourceError
        When the path lies in a table, or the folder contains one.
    """
    store = store_of(filesystem)
    if store.has_round_trips:
        with thread_pool(1) as pool:
            above = pool.submit(refuse_tables_above, filesystem, path)
            kind, infos = _list(store, path)
        if kind != pafs.FileType.NotFound:
            above.result()
    else:
        kind, infos = _list(store, path)
        if kind != pafs.FileType.NotFound:
            refuse_tables_above(filesystem, path)
    if kind != pafs.FileType.Directory:
        return FolderListing(
            kind, posixpath.dirname(path), {info.path: info.size for info in infos}
        )
    root = path.rstrip("/")
    start = f"{root}/" if root else ""
    foreign = next((info.path for info in infos if not info.path.startswith(start)), None)
    if foreign is not None:
        raise FragmentUnreadable(
            f"cannot list {path}: its file system calls a file there {foreign}; give the path of "
            "the folder as the file system does"
        )
    # Only local files have a size. Testing `info.type` instead takes as long as their listing.
    sizes = {
        info.path: info.size
        for info in infos
        if info.size is not None and (not store.has_round_trips or info.is_file)
    }
    # A path is hidden if one of its parts below the folder begins with a dot or an underscore.
    skipped = max(len(start) - 1, 0)
    below = ((file, file[skipped:] if start else f"/{file}") for file in sizes)
    files = sorted(file for file, key in below if "/_" not in key and "/." not in key)
    folders = [info.path for info in infos if info.size is None]
    refuse_listed_tables(filesystem, root, folders, files)
    return FolderListing(kind, root, {file: sizes[file] for file in files})


def _list(store: Store, path: str) -> tuple[pafs.FileType, list[pafs.FileInfo]]:
    """Return what a path names, and all that is below a folder, or the file."""
    store.forget_listings()
    if store.has_round_trips and not path.rstrip("/").lower().endswith(PARQUET_EXTENSIONS):
        # One listing tells more than a look at the folder before it. What fails is looked at.
        try:
            infos = store.list_folder(path, recursive=True)
        except OSError:
            infos = []
        if infos:
            return pafs.FileType.Directory, infos
    with file_errors(path, "make it readable, or try again later", "look at"):
        info = store.filesystem.get_file_info(path)
        if info.type == pafs.FileType.Directory:
            return info.type, store.list_folder(path.rstrip("/") or path, recursive=True)
    return info.type, [] if info.type == pafs.FileType.NotFound else [info]


def read_plain_schema(
    filesystem: pafs.FileSystem, path: str, num_bytes: int | None
) -> pa.Schema | None:
    """Return the schema of a Parquet file, or None to leave the file to ``pyarrow.dataset``.

    That module imports pandas, which takes longer than a lookup. It says what is wrong with a file
    that cannot be read.
    """
    from pyarrow.parquet import ParquetFile

    try:
        file = RandomAccessFile(filesystem, path, num_bytes=num_bytes)
        try:
            (end,) = file.read([(max(0, file.num_bytes - _END_BYTES), file.num_bytes)])
            footer_bytes = int.from_bytes(end[-8:-4], "little") + 8
            if len(end) < footer_bytes <= file.num_bytes:
                (end,) = file.read([(file.num_bytes - footer_bytes, file.num_bytes)])
        finally:
            file.close()

        def read_schema(*, has_extensions: bool) -> pa.Schema:
            with ParquetFile(
                pa.BufferReader(end), arrow_extensions_enabled=has_extensions
            ) as parquet:
                return parquet.schema_arrow

        schema = with_uuids(
            read_schema(has_extensions=False), lambda: read_schema(has_extensions=True)
        )
    except (pa.ArrowException, OSError):
        return None
    return None if len(set(schema.names)) < len(schema.names) else schema


def with_uuids(schema: pa.Schema, read_extended: Callable[[], pa.Schema]) -> pa.Schema:
    """Return the schema of a Parquet file with the type UUID where the file marks UUIDs.

    PyArrow's datasets read them as 16 bytes, which no engine compares with text. ``read_extended``
    reads the schema with all types that files mark. Of these, JSON stays text, which is compared.
    """
    if not any(_BYTES_OF_UUID in innermost_types(type_) for type_ in schema.types):
        return schema
    marked, plain = str(pa.uuid()), str(_BYTES_OF_UUID)
    fields = [
        new if str(new.type).replace(marked, plain) == str(old.type) else old
        for old, new in zip(schema, read_extended(), strict=True)
    ]
    return pa.schema(fields, schema.metadata)

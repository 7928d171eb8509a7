"""`dataset`, the function that opens a dataset."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import pyarrow.fs as pafs

from zonebloom.base import arguments
from zonebloom.catalog.place import locate_catalog
from zonebloom.catalog.store import Catalog
from zonebloom.errors import InvalidArgument, without_secrets
from zonebloom.facade.engine import active_spark_session
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.scan.opened import OpenedDataset
from zonebloom.sources.discovery import (
    Partitioning,
    Schema,
    SourceOptions,
    may_have_other_files,
    open_files,
)
from zonebloom.sources.source import Source, Stale
from zonebloom.storage.object_store import path_in
from zonebloom.storage.paths import absolute_path, filesystem_of_uri, full_path, is_uri

if TYPE_CHECKING:
    from zonebloom.facade.dataset import Dataset
    from zonebloom.parquet.encryption_keys import ParquetKeys
    from zonebloom.storage.encryption import Encryption


def dataset(
    source: Any,
    format: str = "parquet",
    filesystem: Any = None,
    index_dir: str | None = None,
    partitioning: Partitioning = "auto",
    stale: Stale = "read",
    embedded_filters: bool = False,
    schema: Schema = None,
    encryption: Encryption | None = None,
    parquet_keys: ParquetKeys | None = None,
) -> Dataset:
    """Open files or a table as a dataset, with the index that they have.

    Parameters
    ----------
    source : path, URI, list of them, or dataset of pyarrow, deltalake or pyiceberg
        A folder, a file, a glob pattern, a URI, several files and folders, a
        ``pyarrow.dataset.Dataset`` over files, a ``pyarrow.Table`` in memory, a
        ``deltalake.DeltaTable`` or a pyiceberg ``Table`` at the version it has loaded.
    format : str
        "parquet", or another format of ``pyarrow.dataset``. Fragments of other formats are read
        whole.
    filesystem : pyarrow.fs or fsspec file system, optional
        The file system of the paths. By default ``s3a://`` is opened with the settings of the
        active Spark session (``fs.s3a.*``), and other URIs as pyarrow opens them.
    index_dir : str, optional
        Folder of the index, in the same file system. The default for ``lake/orders`` is
        ``lake/_zonebloom/orders``, or ``lake/orders/_zonebloom`` if the parent cannot contain it.
        Several datasets may share a folder, if the names of their indices differ.
    partitioning : "auto", "hive", "infer", list of str, pyarrow.dataset.Partitioning, or None
        How paths encode column values, as in ``pyarrow.dataset.dataset``. "auto" means "hive"
        (``year=2024/month=1``) below a folder, below the folder that a pattern begins with, or
        below the common folder of a list of folders, and None for files named one by one. "infer"
        is "hive" with the types that Polars and DuckDB infer: date32 if all values of a column are
        dates, int64 if all are integers without leading zeros, else string.
    stale : {"read", "raise", "ignore-missing"}
        "read" reads a file that changed since it was indexed whole, with a warning. "raise" raises
        StaleIndex instead, or CorruptIndex if the index is damaged. A missing file is an error, but
        "ignore-missing" leaves it out with a warning, unless it is of a Delta or Iceberg table.
    embedded_filters : bool
        Whether to skip row groups by the Bloom filters inside the Parquet files, for files that no
        index covers. Parquet has no checksum for these filters: if one bit of a filter is wrong,
        lookups miss existing rows.
    schema : pyarrow.Schema or "union", optional
        The columns of the dataset. "union" takes the columns of all files by name, with types
        widened as in ``pyarrow.unify_schemas(..., promote_options="permissive")``, and dictionaries
        and views read as plain values where files differ. By default the columns of the first file.
        A column that a file lacks is null there.
    encryption : Encryption, optional
        Keys to read and write the index. Without keys, an encrypted index is not used: a warning
        says so, and the data is read. With keys, an unencrypted index is not used, because it may
        be forged.
    parquet_keys : ParquetKeys, optional
        Keys of the data files, if they are encrypted Parquet. A build on Spark sends them to the
        executors.

    Returns
    -------
    Dataset
        With the files and the catalog version that exist now. The next scan notices if a file was
        rewritten. `Dataset.refresh`, and methods that build or optimize an index, find new files.

    Raises
    ------
    NoFragments, FragmentUnreadable, SchemaMismatch, SourceError, InvalidArgument

    Notes
    -----
    The documentation says when a file counts as unchanged (page "Concepts"), how tables of Delta
    Lake and Iceberg are read ("Table formats"), and how many requests a store gets ("Object
    stores").

    Only Parquet pages that contain kept rows are read, first those of the filter's columns. Column
    chunks of one page, structs whose pages do not align, and encrypted files whose keys only a
    ``pyarrow.dataset.Dataset`` has are read by the row group. Arrow IPC files are read by the
    record batch. CSV, JSON and ORC files are read whole.

    Examples
    --------
    >>> zb.dataset("orders/*.parquet").count_rows("id < 100")
    100
    >>> zb.dataset("orders", index_dir="elsewhere")
    <zonebloom.Dataset orders: 3 parquet files, 3 columns; no index>
    >>> zb.dataset(table).count_rows("customer = 'C042'")
    6
    """
    from zonebloom.facade.dataset import Dataset

    if isinstance(source, Dataset):
        raise InvalidArgument("the dataset is open already; use it, or give its files")
    options = OpenOptions(
        format=format,
        filesystem=filesystem,
        index_dir=index_dir,
        partitioning=partitioning,
        stale=stale,
        embedded_filters=embedded_filters,
        schema=schema,
        encryption=encryption,
        parquet_keys=parquet_keys,
    )
    opened_source = open_source(source, options)
    if opened_source.opened.indices:
        # A lookup probably follows.
        KERNELS.load_in_background()
    return Dataset(*opened_source)


@dataclass(frozen=True, slots=True)
class OpenOptions(SourceOptions):
    """The parameters of `dataset` besides the source."""

    index_dir: str | None = None
    stale: Stale = "read"
    embedded_filters: bool = False
    encryption: Encryption | None = None

    def checked(self) -> OpenOptions:
        """Return the options with plain values. Raise `InvalidArgument` if one is invalid."""
        arguments.require_choice(self.stale, "stale", get_args(Stale))
        if self.encryption is not None:
            from zonebloom.storage.encryption import Encryption

            arguments.require_secret(self.encryption, Encryption, "encryption")
        if self.parquet_keys is not None:
            from zonebloom.parquet.encryption_keys import ParquetKeys

            arguments.require_secret(self.parquet_keys, ParquetKeys, "parquet_keys")
        index_dir = self.index_dir
        if index_dir is not None:
            index_dir = arguments.require_path(index_dir, "index_dir")
        embedded_filters = arguments.require_bool(self.embedded_filters, "embedded_filters")
        return replace_fields(self, index_dir=index_dir, embedded_filters=embedded_filters)


@dataclass(frozen=True)
class SourceLister:
    """A `FileLister` of a source."""

    source: Any
    options: OpenOptions

    def __call__(self) -> tuple[Source, Catalog]:
        source, options = self.source, self.options
        files = open_files(source, options)
        if files.is_in_memory:
            from zonebloom.facade.dataset import temporary_catalog

            if options.index_dir is None:
                return files, temporary_catalog()
            # A table in memory has no identity, so a kept index might be used for another table.
            raise InvalidArgument(
                "the index of a table in memory cannot outlive it; leave index_dir out, or write "
                "the table to Parquet"
            )
        files = replace_fields(files, stale=options.stale)
        files, catalog = locate_catalog(files, options.index_dir, options.encryption)
        if isinstance(source, str | os.PathLike):
            path = path_in(files.filesystem, os.fspath(source))
            if path.rstrip("/") == files.root:
                _require_unlisted(catalog.folder, files.root)
        return files, catalog


class OpenedSource(NamedTuple):
    """An opened dataset, its name in messages, and a function that lists its files again.

    The function is None if the files were named one by one. Then there is nothing to list.
    """

    opened: OpenedDataset
    title: str
    list_files: SourceLister | None


def open_source(source: Any, options: OpenOptions) -> OpenedSource:
    """List the files of a source, and open their index. Do not import ``pyarrow.dataset``."""
    options = options.checked()
    is_path = isinstance(source, str | os.PathLike)
    title = arguments.require_path(source, "source") if is_path else None
    is_listed = may_have_other_files(source)
    source, filesystem = _absolute_source(source, title, options.filesystem)
    options = replace_fields(options, filesystem=filesystem)
    files, catalog = SourceLister(source, options)()
    if options.index_dir is not None:
        # An absolute path keeps its meaning in another working directory.
        options = replace_fields(options, index_dir=catalog.folder)
    opened = OpenedDataset(files, catalog, embedded_filters=options.embedded_filters)
    opened.open_indices_ahead()
    title = without_secrets(title or opened.source.root)
    is_listed |= opened.source.has_listed_folders
    return OpenedSource(opened, title, SourceLister(source, options) if is_listed else None)


def _absolute_source(source: Any, title: str | None, filesystem: Any) -> tuple[Any, Any]:
    """Return a source and its file system.

    Paths keep their meaning in another working directory and in another process.
    """
    if title is not None and filesystem is None and is_uri(title):
        filesystem, path = _open_uri(title)
        return path, filesystem
    if filesystem is not None and not isinstance(filesystem, pafs.LocalFileSystem):
        return source, filesystem

    def absolute(path: str) -> str:
        return absolute_path(path) if filesystem is None else full_path(path_in(filesystem, path))

    if isinstance(source, list | tuple):
        paths = [arguments.require_path(path, "an item of source") for path in source]
        return [absolute(path) for path in paths], filesystem
    return source if title is None else absolute(title), filesystem


def _require_unlisted(index_dir: str, root: str) -> None:
    """Raise `InvalidArgument` if readers that list the data folder would find the index files."""
    inside = posixpath.relpath(index_dir, root)
    if not any(part.startswith(("_", ".")) for part in inside.split("/")) or inside == ".":
        raise InvalidArgument(
            f"index_dir {index_dir} lies in the folder of the data, so readers would take the "
            "files of the index for data; give a name that begins with _, or a folder elsewhere"
        )


def _open_uri(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a URI, with any credentials of the URI, and the path in it."""
    spark = active_spark_session() if uri.lower().startswith(("s3a:", "s3n:")) else None
    if spark is None:
        return filesystem_of_uri(uri)
    # The settings of the active Spark session apply to Hadoop's own schemes.
    from zonebloom.spark.session_settings import open_path

    return open_path(spark, uri)

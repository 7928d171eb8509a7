"""dataset(): a dataset opened as it lies."""

from __future__ import annotations

import os
import posixpath
from dataclasses import replace as replace_fields
from functools import partial
from typing import Any, get_args

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base import arguments
from zonebloom.catalog.store import Catalog
from zonebloom.dataset.engine import active_spark_session
from zonebloom.dataset.facade import Dataset
from zonebloom.dataset.pickled import temporary_catalog
from zonebloom.errors import InvalidArgument
from zonebloom.opened import OpenedDataset, locate_catalog
from zonebloom.parquet.encryption_keys import ParquetKeys
from zonebloom.sources.delta_lake import is_delta, open_delta
from zonebloom.sources.discovery import Partitioning, Schema, discover_source, require_no_schema
from zonebloom.sources.iceberg import is_iceberg, open_iceberg
from zonebloom.sources.memory import open_memory_table
from zonebloom.sources.source import Source, Stale
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.object_store import path_in
from zonebloom.storage.paths import absolute_path, filesystem_of_uri, is_uri


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
    """Open a dataset as it lies.

    Parameters
    ----------
    source : path, URI, list of them, or dataset of pyarrow, deltalake or pyiceberg
        A folder, a file, a glob pattern, a URI, several files and folders, a
        ``pyarrow.dataset.Dataset`` over files, a ``pyarrow.Table`` in memory, a
        ``deltalake.DeltaTable`` or a pyiceberg ``Table`` at the version it has loaded.
    format : str
        "parquet", or another format of ``pyarrow.dataset``; those are read a whole fragment
        at a time.
    filesystem : pyarrow.fs or fsspec file system, optional
        Where the paths are. Of a path at ``s3a://`` by default as the active Spark session is set
        (``fs.s3a.*``), and of other URIs as pyarrow finds its way there.
    index_dir : str, optional
        Folder of the index, in the same file system. By default that of ``lake/orders`` is
        ``lake/_zonebloom/orders``, or ``lake/orders/_zonebloom`` if there is an index already or
        the parent cannot hold it. Several datasets may share one: names of indices are common to
        them, and none replaces an index of another.
    partitioning : "auto", "hive", list of str, pyarrow.dataset.Partitioning, or None
        What folders say of the rows in them, as ``pyarrow.dataset.dataset`` takes it. "auto"
        is "hive" (``year=2024/month=1``) below a folder, below the folder that a pattern begins
        with, or below the one that folders of a list share, and None for files named one by one.
    stale : {"read", "raise", "ignore-missing"}
        What becomes of files that are others than when the dataset was opened or indexed. One
        that changed or came is read whole, with a warning; "raise" refuses whatever would use
        the index instead, with StaleIndex, and with CorruptIndex where the index is damaged. One
        that is gone is an error, or with "ignore-missing" left out with a warning. The files of a
        Delta or Iceberg table are never left out.
    embedded_filters : bool
        Whether row groups of files no index covers are passed over by the Bloom filters that
        writers put inside them. Parquet has no checksum for those: where one bit of a filter
        has changed, rows are lost that are there. Filters that lack a bound of their column
        chunk's statistics are not used.
    schema : pyarrow.Schema or "union", optional
        The columns of the dataset: those given, or those of all files by name, in types all of
        a column's files widen to as ``pyarrow.unify_schemas(..., promote_options="permissive")``
        has it, for which every file's schema is read. By default those of the first file, as
        for ``pyarrow.dataset.dataset``. A column that a file lacks is null in it.
    encryption : Encryption, optional
        Keys by which the index is read and written. One that is encrypted is not used without
        them: that is warned of, and the data is read. One that is not encrypted is not used with
        them, for it may be forged.
    parquet_keys : ParquetKeys, optional
        Keys of the files themselves, where they are encrypted Parquet. They go to Spark with a
        build there.

    Returns
    -------
    Dataset
        Of the files and the catalog version found now. A file rewritten later is noticed at the
        next scan, a new one by `Dataset.refresh` and by whatever builds or optimizes an index.

    Raises
    ------
    NoFragments, FragmentUnreadable, SchemaMismatch, SourceError, InvalidArgument

    Notes
    -----
    A local file is as it was indexed while its size, times and inode are the same. If times or
    inode differ, a digest of all bytes decides for files up to 1 MiB. A larger file counts as
    changed then, also after ``chmod`` or a new hard link, until `Dataset.adopt_index` reads its
    indexed columns or the index is refreshed. An object of a store is known by its ETag, which is
    asked for anew by each plan.

    Of Parquet only the pages that hold kept rows are read, first those of the filter's columns;
    column chunks of one page, structs whose pages do not align, and encrypted files whose keys
    only a ``pyarrow.dataset.Dataset`` has are read by the row group. Arrow IPC files are read by
    the record batch, CSV, JSON and ORC whole.

    A Delta or Iceberg table is read as of the version it has loaded. Rows deleted by deletion
    vectors, position or equality deletes are on no path. Columns are told by column mapping or
    field ids, so an index stays with a renamed one. A path inside such a table, or a Hudi one, is
    refused. The index lies in ``_zonebloom`` inside the table's folder, for readers of the table
    follow its log. If a clean-up job deletes what it does not know, give index_dir.

    With a store of obstore as file system, or pyarrow's S3FileSystem where obstore is installed,
    an object is asked for by its tag and the pages of all columns come at once: a lookup waits for
    the store twice, at first three or four times, for up to a thousand files.

    Examples
    --------
    >>> zb.dataset("orders/*.parquet").count_rows("id < 100")
    100
    >>> zb.dataset("orders", index_dir="elsewhere")
    <zonebloom.Dataset orders: 3 parquet files, 3 columns; no index>
    >>> zb.dataset(table).count_rows("customer = 'C042'")
    6
    """
    if isinstance(source, pa.Table) or is_delta(source) or is_iceberg(source):
        require_no_schema(source, schema)
    if index_dir is not None:
        index_dir = arguments.require_path(index_dir, "index_dir")
    if isinstance(source, pa.Table):
        return _in_memory(source, index_dir)
    arguments.require_choice(stale, "stale", get_args(Stale))
    if encryption is not None:
        arguments.require_instance(encryption, Encryption, "encryption")
    if parquet_keys is not None:
        arguments.require_instance(parquet_keys, ParquetKeys, "parquet_keys")
        if is_delta(source) or is_iceberg(source) or format != "parquet":
            raise InvalidArgument("parquet_keys is of Parquet files; give their paths")
    embedded_filters = arguments.require_bool(embedded_filters, "embedded_filters")
    title = (
        arguments.require_path(source, "source") if isinstance(source, str | os.PathLike) else None
    )
    if title is not None and filesystem is None and not is_uri(title):
        # The path keeps its meaning in another working directory and in another process.
        source = absolute_path(title)
    elif title is not None and filesystem is None:
        filesystem, source = _place_of(title)
    elif title is not None and isinstance(filesystem, pafs.LocalFileSystem):
        source = os.path.abspath(path_in(filesystem, title))
    elif isinstance(source, list | tuple) and filesystem is None:
        source = [
            absolute_path(arguments.require_path(path, "an item of source")) for path in source
        ]
    list_files = partial(
        _list_files,
        source,
        format=format,
        filesystem=filesystem,
        index_dir=index_dir,
        partitioning=partitioning,
        stale=stale,
        schema=schema,
        encryption=encryption,
        parquet_keys=parquet_keys,
    )
    files, catalog = list_files()
    if index_dir is not None:
        list_files = partial(list_files, index_dir=catalog.folder)
    opened = OpenedDataset.create(files, catalog, embedded_filters=embedded_filters)
    is_listed = title is not None or is_delta(source) or is_iceberg(source)
    is_listed |= opened.source.has_listed_folders
    return Dataset(opened, title, list_files if is_listed else None)


def _list_files(
    source: Any,
    *,
    format: str,
    filesystem: Any,
    index_dir: str | None,
    partitioning: Partitioning,
    stale: Stale,
    schema: Schema,
    encryption: Encryption | None,
    parquet_keys: ParquetKeys | None,
) -> tuple[Source, Catalog]:
    """List the files of a source as they are now, and open their index."""
    if is_delta(source):
        files = open_delta(source, filesystem)
    elif is_iceberg(source):
        files = open_iceberg(source, filesystem)
    else:
        files = discover_source(source, format, filesystem, partitioning, schema, parquet_keys)
    if parquet_keys is not None and files.is_parquet:
        files = replace_fields(files, file_format=None, parquet_keys=parquet_keys)
    files, catalog = locate_catalog(replace_fields(files, stale=stale), index_dir, encryption)
    if isinstance(source, str | os.PathLike):
        path = path_in(files.filesystem, os.fspath(source))
        if path.rstrip("/") == files.root:
            _require_unlisted(catalog.folder, files.root)
    return files, catalog


def _require_unlisted(index_dir: str, root: str) -> None:
    """Refuse an index in a folder of data, where whoever lists that takes its files for data."""
    inside = posixpath.relpath(index_dir, root)
    if not any(part.startswith(("_", ".")) for part in inside.split("/")) or inside == ".":
        raise InvalidArgument(
            f"index_dir {index_dir} lies in the folder of the data, which would be listed with "
            "the index's own files; give a name that begins with _, or a folder elsewhere"
        )


def _place_of(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a URI and the path there; credentials in the URI stay in the
    former."""
    spark = active_spark_session() if uri.lower().startswith(("s3a:", "s3n:")) else None
    if spark is None:
        return filesystem_of_uri(uri)
    # Hadoop's own schemes are opened as the active Spark session is set.
    from zonebloom.spark.session import open_path

    return open_path(spark, uri)


def _in_memory(table: pa.Table, index_dir: str | None) -> Dataset:
    """A table with indices that live as long as the dataset."""
    if index_dir is not None:
        # Another table could not be told from this one later.
        raise InvalidArgument(
            "the index of a table in memory is gone with it; leave index_dir out, or write the "
            "table to Parquet"
        )
    return Dataset(OpenedDataset.create(open_memory_table(table), temporary_catalog()))

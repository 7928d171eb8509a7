"""`rewrite`, the function that writes files again in the layout that suits lookups."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from typing import Any, get_args

from zonebloom.base import arguments
from zonebloom.base.progress import ProgressOption, require_progress
from zonebloom.building.rewrite import Rewritten, rewrite_source
from zonebloom.errors import InvalidArgument
from zonebloom.facade.opening import OpenOptions, dataset, open_source
from zonebloom.parquet.rewritten_file import Compression, FileOptions
from zonebloom.scan.opened import OpenedDataset
from zonebloom.sources.table_folders import table_at
from zonebloom.storage.paths import absolute_path, filesystem_of_uri, is_uri

# Row groups of fewer rows would make pages smaller than the recommended ones.
_MIN_ROW_GROUP_ROWS = 2048


def rewrite(
    source: Any,
    destination: str | os.PathLike[str],
    *,
    compression: Compression = "source",
    row_group_rows: int | None = None,
    index: str | Sequence[str] | None = None,
    resume: bool = False,
    filesystem: Any = None,
    progress: ProgressOption = None,
) -> Rewritten:
    """Write the Parquet files of a dataset into a new folder, in the layout that suits lookups.

    The new files have pages of 2,048 rows, an index of their pages, and dictionaries only for
    columns whose values repeat. They have the same names, folders, rows, order, schema and
    metadata. `Dataset.advise` says if a rewrite is worth it.

    Parameters
    ----------
    source : path, URI, list of them, pyarrow.dataset.Dataset, or zonebloom.Dataset
        As in `zonebloom.dataset`.
    destination : path
        A local folder that does not exist or is empty. It may not be inside the source.
    compression : {"source", "zstd", "snappy", "lz4", "gzip", "none"}
        "source" keeps the codec of each column, except Brotli and LZO, which become Zstandard.
    row_group_rows : int, optional
        Rows of a row group. By default row groups stay as they are, but small ones are joined to
        122,880 rows, and large ones are split after 1,048,576 rows. A row group also ends when its
        rows take 256 MiB of memory.
    index : str or list of str, optional
        Columns to index in the new folder.
    resume : bool
        Whether to continue an interrupted rewrite with the same options. It skips the files that
        are complete and whose source is unchanged.
    filesystem : pyarrow.fs or fsspec file system, optional
        The file system of the source.
    progress : bool or function, optional
        As in `Dataset.create_scalar_index`.

    Returns
    -------
    Rewritten

    Raises
    ------
    InvalidArgument
        If the destination is not empty, or is inside the source.
    SourceError
        If the source is a Delta or Iceberg table, whose own writer has to rewrite it.
    UnsupportedType
        If pyarrow cannot write a type of a file, such as Parquet's ``INTERVAL``.
    FragmentUnreadable, FragmentChanged

    Notes
    -----
    Each core works on one file and holds one row group of it in memory. The new folder has no rows
    until all files are complete. After an error or an interrupt, the complete files stay in its
    hidden folder ``.zonebloom-rewrite``, and a call with ``resume=True`` continues. Bloom filters
    inside the files, the order of sorting that a footer declares, and encodings other than
    dictionaries are not kept.

    Examples
    --------
    >>> print(zb.rewrite("orders", "small_pages", index="id"))
    file       rows  before  after
    0.parquet  1,000 ...
    1.parquet  1,000 ...
    2.parquet  1,000 ...
    3 files, 3,000 rows: ... before, ... after, in ...small_pages
    >>> zb.dataset("small_pages").count_rows("id = 42")
    1
    """
    folder = _local_folder(destination)
    row_groups = row_group_rows
    if row_groups is not None:
        row_groups = arguments.require_integer(row_groups, "row_group_rows", _MIN_ROW_GROUP_ROWS)
    options = FileOptions(
        arguments.require_choice(compression, "compression", get_args(Compression)),  # pyright: ignore[reportArgumentType]
        row_groups,
    )
    require_progress(progress)
    columns = []
    if index is not None:
        columns = (
            [index] if isinstance(index, str) else list(arguments.require_name_list(index, "index"))
        )
    opened = _open(source, filesystem)
    for column in columns:
        opened.column(column)
    rewritten = rewrite_source(
        opened.source,
        folder,
        options,
        is_folder=_is_folder(opened, source),
        resume=arguments.require_bool(resume, "resume"),
        progress=progress,
    )
    if columns:
        dataset(folder).create_scalar_index(columns, spark=False, progress=progress)
    return rewritten


def _local_folder(destination: object) -> str:
    path = _local_path(arguments.require_path(destination, "destination"))
    if is_uri(path):
        raise InvalidArgument(
            f"{path} is not a local folder, and files in a store cannot be renamed when they are "
            "complete; rewrite to a local folder, and upload it"
        )
    return path


def _local_path(path: str) -> str:
    """Return an absolute path for a local path or URI. Return other URIs as they are."""
    if path.startswith("file:"):
        _, path = filesystem_of_uri(path)
    return absolute_path(path)


def _open(source: Any, filesystem: Any) -> OpenedDataset:
    opened = getattr(source, "opened", None)
    if isinstance(opened, OpenedDataset):
        from zonebloom.facade.dataset import require_no_filter

        require_no_filter(source, "rewrite")
        return opened
    if filesystem is None and isinstance(source, str | os.PathLike):
        # A table is refused later, with advice that is better than that for a path in it.
        table = table_at(arguments.require_path(source, "source"))
        source = source if table is None else table
    return open_source(source, OpenOptions(filesystem=filesystem)).opened


def _is_folder(opened: OpenedDataset, source: Any) -> bool:
    """Return whether a source has the files of whole folders, and not files named one by one."""
    files = opened.source
    if isinstance(source, list | tuple):
        return files.has_listed_folders
    if not isinstance(source, str | os.PathLike):
        # A dataset does not tell how it was opened.
        return True
    path = _local_path(arguments.require_path(source, "source"))
    # The root of a file or a pattern is a folder above it.
    return posixpath.basename(path) == posixpath.basename(files.root)

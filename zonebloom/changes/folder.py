"""Change the Parquet files of a folder: write each anew, and rename it over the old one.

Several files do not change at once. After an interruption, the same call again completes the
change. Hidden files that were left are deleted by a later change of files in their folder.
"""

from __future__ import annotations

import os
import posixpath
import time
import uuid
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zonebloom.changes.tables import (
    HIVE_NULL,
    ChangeableTable,
    CommitRefused,
    FileRows,
    RowBatches,
    write_errors,
)
from zonebloom.changes.writing import FileChange, WrittenFile, with_all_columns
from zonebloom.errors import ChangeRefused
from zonebloom.scan.opened import OpenedDataset
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import file_errors
from zonebloom.storage.object_store import path_in
from zonebloom.storage.paths import key_below

# Files that begin with a dot are no data to any reader.
_HIDDEN, _EXTENSION = ".zonebloom-", "tmp"
_SECONDS_OF_A_CHANGE = 86_400


class FileLister(Protocol):
    """A function that lists the files of a source as they are now, and opens their index."""

    @property
    def source(self) -> Any:
        """The source as it was given to `dataset`, with absolute paths."""
        ...

    @property
    def options(self) -> Any:
        """The other arguments of `dataset`."""
        ...

    def __call__(self) -> tuple[Source, Any]: ...


class FolderChanges(ChangeableTable):
    """A folder of Parquet files that can be replaced; see `ChangeableTable`."""

    kind = "folder"

    def __init__(self, opened: OpenedDataset, list_files: FileLister | None):
        super().__init__()
        self.location = opened.source.root
        # None if the files were named one by one.
        self._list_files = list_files
        self.use(opened)

    def load_newest(self) -> None:
        """Do nothing, because a folder has no versions."""

    def use(self, opened: OpenedDataset) -> None:
        super().use(opened)
        fragments = opened.look().fragments
        self._identities = {file.fragment.path: file.identity for file in fragments}
        self._folders: dict[str, str] | None = None

    def require_changeable(self, changes: Sequence[FileChange]) -> None:
        if not self._source.is_parquet or self._source.is_in_memory:
            raise ChangeRefused(
                f"{self.location} is no folder of Parquet files; write its rows to Parquet first"
            )
        if self._source.parquet_keys is not None:
            raise ChangeRefused(
                f"the files of {self.location} are encrypted, and would be written in clear; "
                "change them with the program that wrote them"
            )

    def require_new_files(self, *, loses_rows: bool) -> None:
        """Raise `ChangeRefused` if new files might not be found, or not with their partitions."""
        if loses_rows:
            raise ChangeRefused(
                "rows move to another partition, and after an interruption the same call has to "
                'insert them; give only rows whose keys exist, and no when_not_matched="ignore"'
            )
        lister = self._list_files
        source = None if lister is None else lister.source
        is_folder = isinstance(source, str | os.PathLike) and (
            path_in(self._filesystem, os.fspath(source)).rstrip("/") == self.location.rstrip("/")
        )
        if lister is None or not is_folder:
            raise ChangeRefused(
                f"the dataset is not the whole folder {self.location}, but files, a pattern or "
                "several folders, so files with new rows might not be found; open one folder, or "
                "leave out rows with new keys or for other partitions"
            )
        if not _is_plain_hive(lister.options.partitioning):
            raise ChangeRefused(
                f"the partitioning of {self.location} is not that of Hive with its usual encoding, "
                "so new files might get other values; leave out rows with new keys or for other "
                'partitions, or write the folder anew as column=value and open it with "hive"'
            )

    def partition_of(self, fragment: Fragment) -> Hashable:
        values = self._source.constants(fragment)
        return tuple(values.get(name) for name in self.partition_columns)

    @property
    def partition_columns(self) -> list[str]:
        columns = self._source.partition_columns()
        return [name for name in self._source.schema.names if name in columns]

    def _partition(self, values: tuple[pa.Scalar, ...]) -> Hashable:
        return tuple(value.as_py() for value in values)

    def rows_of(self, fragment: Fragment, updated_columns: Collection[str]) -> FileRows:
        """Return all columns of a file, those that the dataset does not have included.

        Columns that are updated have the types of the dataset, whatever the file has.
        """
        with file_errors(fragment.path, parquet_in=self._filesystem):
            stream = self._open_whole(fragment.path)
            file = pq.ParquetFile(stream)
        schema = file.schema_arrow
        for name in set(updated_columns).difference(self.partition_columns):
            field, number = self._source.schema.field(name), schema.get_field_index(name)
            if number < 0:
                schema = schema.append(field)
            elif schema.field(number).type != field.type:
                schema = schema.set(number, field)
        batches = self._all_columns(stream, file, fragment, schema)
        return FileRows(schema, file.metadata, batches)

    def _all_columns(
        self, stream: pa.NativeFile, file: pq.ParquetFile, fragment: Fragment, schema: pa.Schema
    ) -> RowBatches:
        first = 0
        # ParquetFile closes a file only if it opened it.
        with stream, file_errors(fragment.path, parquet_in=self._filesystem):
            for batch in file.iter_batches():
                numbers = np.arange(first, first + batch.num_rows)
                try:
                    rows = with_all_columns(pa.Table.from_batches([batch]), schema).cast(schema)
                except pa.ArrowInvalid as error:
                    raise ChangeRefused(
                        f"{fragment.path} has values that its dataset does not hold: {error}; open "
                        'the dataset with schema="union"'
                    ) from None
                yield numbers, rows
                first += batch.num_rows

    def new_path(self, partition: Any, replaced: Fragment | None) -> str:
        """Return a hidden path. The commit renames it."""
        # DuckDB and Polars read files that begin with a dot if they end in .parquet.
        name = f"{_HIDDEN}{uuid.uuid4()}.{_EXTENSION}"
        if replaced is not None:
            folder = posixpath.dirname(self._source.store.resolve(replaced.path))
            return posixpath.join(folder, name)
        if HIVE_NULL in partition:
            raise ChangeRefused(
                f"rows have the text {HIVE_NULL!r} in a partition column, which means null in a "
                "path; write another text"
            )
        folder = self._folder_of(partition)
        if folder is not None:
            return posixpath.join(folder, name)
        texts = [None if value is None else str(value) for value in partition]
        return self._hive_path(texts, name)

    def _folder_of(self, partition: Hashable) -> str | None:
        """Return the folder of a partition, however it spells the values, or None."""
        if self._folders is None:
            self._folders = {}
            for fragment in self._source.fragments:
                folder = posixpath.dirname(fragment.path)
                names = key_below(folder, self._source.root).split("/")
                # Deeper folders, and others than those of Hive, may mean something else.
                if len(names) == len(self.partition_columns) and all("=" in n for n in names):
                    # 0.0 equals -0.0, and has another text.
                    self._folders.setdefault(repr(self.partition_of(fragment)), folder)
        return self._folders.get(repr(partition))

    def locked(self) -> AbstractContextManager[None]:
        """Let only one change of a local folder, and of those inside it, run at a time."""
        return self._source.store.locked(self.location)

    def _delete_leftovers(self, folders: Collection[str]) -> None:
        """Delete hidden files that an interrupted change left in some folders."""
        oldest = time.time() - _SECONDS_OF_A_CHANGE
        for folder in folders:
            for info in self._source.store.list_folder(folder, recursive=False):
                is_left = info.base_name.startswith(_HIDDEN) and info.extension == _EXTENSION
                if is_left and info.mtime.timestamp() < oldest:
                    self._delete(info.path)

    def commit(
        self,
        removed: Sequence[Fragment],
        written: Sequence[WrittenFile],
        summary: Mapping[str, str],
    ) -> list[str]:
        if not written and len(removed) == len(self._identities):
            raise ChangeRefused(
                f"no row of {self.location} would be left, and no file with its columns; delete "
                "the folder instead"
            )
        before = [self._identities[fragment.path] for fragment in removed]
        is_changed = self._source.identities(removed, before) != before
        if self._list_files is not None:
            files, _ = self._list_files()
            is_changed |= {file.path for file in files.fragments} != self._identities.keys()
        if is_changed:
            raise CommitRefused(f"another program changed files of {self.location}")
        paths = [fragment.path for fragment in removed] + [file.path for file in written]
        with write_errors(self.location):
            self._delete_leftovers(set(map(posixpath.dirname, paths)))
            return self._replace(removed, written)

    def _replace(self, removed: Sequence[Fragment], written: Sequence[WrittenFile]) -> list[str]:
        # A row that moves to a new file leaves its old one first: after an interruption in between,
        # the same call inserts it again, and could not tell that a second row is the same one.
        replaced_paths = [file.replaced.path for file in written if file.replaced is not None]
        published = [self._publish(file) for file in written if file.replaced is not None]
        for fragment in removed:
            if fragment.path not in replaced_paths:
                # A link is deleted with its target, which would keep the rows.
                for path in {self._source.store.resolve(fragment.path), fragment.path}:
                    self._delete(path)
        published += [self._publish(file) for file in written if file.replaced is None]
        return published

    def _delete(self, path: str) -> None:
        """Delete a file, unless it is gone."""
        self._delete_checksums(path)
        self._source.store.delete_file(self._in_resolved_folder(path))

    def _publish(self, file: WrittenFile) -> str:
        if file.replaced is None:
            path = posixpath.join(posixpath.dirname(file.path), f"part-{uuid.uuid4()}.parquet")
        else:
            path = file.replaced.path
        store = self._source.store
        self._delete_checksums(path)
        # The folder may be a link.
        store.publish(store.resolve(file.path), store.resolve(path))
        return path

    def _delete_checksums(self, path: str) -> None:
        """Delete the checksums of a file, for which Spark would refuse a new file of this name."""
        # Spark looks beside the path that it was given, which may be a link.
        for place in {self._source.store.resolve(path), self._in_resolved_folder(path)}:
            self._source.store.delete_checksums(place)

    def _in_resolved_folder(self, path: str) -> str:
        folder, name = posixpath.split(path)
        return posixpath.join(self._source.store.resolve(folder), name)

    def purge_calls(self) -> tuple[str, ...]:
        return ("the deletion of these files by hand, if nobody needs them",)

    def purge(self) -> None:
        """Do nothing, because a folder keeps no older versions, and other files are not ours."""


def _is_plain_hive(partitioning: Any) -> bool:
    """Return whether the files have Hive's paths, encoding and text for null, or no partitions."""
    if partitioning is None or isinstance(partitioning, str):
        return True
    import pyarrow.dataset as pads

    # A factory, which infers types from the paths, does not tell its options. A partitioning with
    # dictionaries is not equal either, so it is refused: it could not read a value that these lack.
    return isinstance(partitioning, pads.Partitioning) and partitioning == pads.HivePartitioning(
        partitioning.schema
    )

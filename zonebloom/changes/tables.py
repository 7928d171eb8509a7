"""The base class of tables whose rows can be changed: their files, partitions and commits."""

from __future__ import annotations

import posixpath
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zonebloom.base.progress import Report
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.changes.places import OFFSET_MASK, FileChange
from zonebloom.changes.writing import (
    WriterOptions,
    WrittenFile,
    options_of_file,
    write_parquet,
)
from zonebloom.errors import ChangeConflict, SourceError
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.scanner import plan_scan
from zonebloom.snapshot import Snapshot
from zonebloom.sources.source import Fragment
from zonebloom.storage.files import file_errors

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_MAX_TRIES = 5
_SECONDS_BEFORE_RETRY = 0.05
Result = TypeVar("Result")


class CommitRefused(Exception):
    """Another writer changed the table since its files were read."""


def commit_in_doubt(location: str, error: Exception) -> SourceError:
    """Return the error for a commit to which the store answered neither yes nor no."""
    return SourceError(
        f"nobody knows whether the commit to {location} was made ({error}); look at the history "
        "of the table, and call again if it was not"
    )


def retry_after_conflicts(location: str, attempt: Callable[[int], Result]) -> Result:
    """Return the result of an attempt. Repeat it a few times while other writers come first."""
    for number in range(1, _MAX_TRIES + 1):
        try:
            return attempt(number)
        except CommitRefused:
            time.sleep(_SECONDS_BEFORE_RETRY * number)
    raise ChangeConflict(
        f"other writers changed {location} {_MAX_TRIES} times meanwhile; call again when they are "
        "done"
    )


@contextmanager
def permission_errors(location: str) -> Iterator[None]:
    """Say what to do if the system forbids a change of files."""
    try:
        yield
    except PermissionError as error:
        raise SourceError(
            f"cannot change {location}: {error}; get the right to write and delete there, then "
            "call again"
        ) from None


class ChangeableTable(ABC):
    """A table, or a folder, whose files can be replaced.

    Attributes
    ----------
    kind : {"delta", "iceberg", "folder"}
    location : str
    version : str
        The version that is loaded.
    target_bytes : int
        The size of new files.
    opened : OpenedDataset
        The files of the loaded version.
    """

    kind: str
    location: str
    version: Any = ""
    target_bytes = 100 << 20
    opened: OpenedDataset

    def __init__(self) -> None:
        self._new_paths: list[str] = []

    def use(self, opened: OpenedDataset) -> None:
        """Take the files of the loaded version, as a dataset has opened them."""
        self.opened, self._source = opened, opened.source
        self._filesystem = opened.source.filesystem
        self._snapshot: Snapshot | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The files of the loaded version, which are looked at once."""
        if self._snapshot is None:
            self._snapshot = self.opened.look()
        return self._snapshot

    @abstractmethod
    def load_newest(self) -> None:
        """Load the newest version, before the dataset lists its files."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep other changes of this program out, if the table itself does not."""
        return nullcontext()

    @abstractmethod
    def require_changeable(self, changes: Sequence[FileChange]) -> None:
        """Raise `ChangeRefused` if the table does not allow these changes."""

    def require_new_files(self, *, loses_rows: bool) -> None:  # noqa: B027 - Delta and Iceberg take any
        """Raise `ChangeRefused` if the table cannot take files with new rows.

        If rows move and none are inserted, a repeated call would not bring back a row that left
        its old file before an interruption.
        """

    # Partitions

    @property
    @abstractmethod
    def partition_columns(self) -> list[str]:
        """The columns that decide to which partition a row belongs."""

    @abstractmethod
    def partition_of(self, fragment: Fragment) -> Hashable:
        """Return the partition of a file, or None if its rows have to be partitioned anew."""

    def partitions(self, rows: pa.Table) -> list[tuple[Hashable, np.ndarray]]:
        """Return the partitions of rows, each with the numbers of its rows."""
        if not rows.num_rows:
            return []
        if not self.partition_columns:
            return [((), np.arange(rows.num_rows))]
        keys = self._partition_keys(rows)
        names = [f"k{number}" for number in range(keys.num_columns)]
        numbered = pa.table([*keys.columns, pa.array(np.arange(keys.num_rows))], [*names, "row"])
        groups = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])
        values = zip(*(groups.column(name) for name in names), strict=True)
        parts = (np.asarray(part.values) for part in groups.column("row_list"))
        return [(self._partition(key), part) for key, part in zip(values, parts, strict=True)]

    def _partition_keys(self, rows: pa.Table) -> pa.Table:
        """Return the values that make the partition of each row."""
        return rows.select(self.partition_columns)

    @abstractmethod
    def _partition(self, values: tuple[pa.Scalar, ...]) -> Hashable:
        """Return a partition by its values, as `partition_of` does."""

    # Files

    def rows_of(
        self, fragment: Fragment, updated_columns: Collection[str]
    ) -> tuple[pa.Schema, Iterator[tuple[np.ndarray, pa.Table]]]:
        """Return the schema of a file, and its rows in batches, each with their numbers.

        The rows are those that the table sees: without deleted rows, by its own names. They have
        all columns that are updated.
        """
        return self.file_schema, self._scan(fragment, self.file_schema.names)

    def _scan(
        self, fragment: Fragment, columns: list[str]
    ) -> Iterator[tuple[np.ndarray, pa.Table]]:
        opened = self.opened.restricted([fragment.path])
        scan = plan_scan(opened, columns, (None,), with_row_address=True, use_scalar_index=False)
        for batch in scan.to_batches():
            table = pa.Table.from_batches([batch])
            addresses = table.column(table.num_columns - 1).to_numpy().astype(np.int64)
            yield addresses & OFFSET_MASK, table.remove_column(table.num_columns - 1)

    @property
    def file_schema(self) -> pa.Schema:
        """The schema of a new file: that of the table without the columns of its paths."""
        columns = set(self.partition_columns)
        return pa.schema([field for field in self._source.schema if field.name not in columns])

    @abstractmethod
    def new_path(self, partition: Any, replaced: Fragment | None) -> str:
        """Return the path of a new file, in the file system of the dataset."""

    def _hive_path(self, texts: Iterable[str | None], name: str) -> str:
        """Return the path of a file in the folders of a partition, whose values are texts."""
        folders = [
            f"{quote(column, safe='')}={HIVE_NULL if text is None else quote(text, safe='')}"
            for column, text in zip(self.partition_columns, texts, strict=True)
        ]
        return posixpath.join(self._source.root, *folders, name)

    def options_of(
        self,
        present: PresentFragment,
        schema: pa.Schema | None = None,
        updated_columns: Collection[str] = (),
    ) -> WriterOptions:
        """Return the options with which a file was written; see `options_of_file`."""
        path = present.fragment.path
        with file_errors(path), self._filesystem.open_input_file(path) as file:
            footer = pq.read_metadata(file)
        return options_of_file(footer, self.snapshot.pages(present), schema, updated_columns)

    def write(
        self,
        partition: Any,
        replaced: Fragment | None,
        tables: Iterable[pa.Table],
        schema: pa.Schema,
        options: WriterOptions,
        report: Report | None,
    ) -> WrittenFile | None:
        """Write a file. Return None, and write none, if there are no rows."""
        path = self.new_path(partition, replaced)
        self._new_paths.append(path)
        with permission_errors(self.location):
            if replaced is None:
                self._source.store.create_folder(posixpath.dirname(path))
            result = write_parquet(self._filesystem, path, tables, schema, options, report)
        return result and WrittenFile(path, partition, *result, replaced=replaced)

    def delete_new_files(self) -> None:
        """Delete what was written, but not committed."""
        for path in self._new_paths:
            with suppress(OSError):
                self._filesystem.delete_file(path)
        self._new_paths.clear()

    @abstractmethod
    def commit(
        self,
        removed: Sequence[Fragment],
        written: Sequence[WrittenFile],
        summary: Mapping[str, str],
    ) -> list[str]:
        """Replace files, and return the paths of the new ones.

        Raise `CommitRefused` if another writer came first.
        """

    # Files and logs of older versions

    def read_history(self) -> Any:
        """Read the table's log, for the two methods below."""
        return ()

    def retained_files(self, history: Any) -> dict[str, tuple[str, ...]]:
        """Return the data files that only older versions name, with these versions."""
        return {}

    def logs_of(self, history: Any, paths: Collection[str]) -> list[str]:
        """Return the files of the table's log that hold statistics of some data files."""
        return []

    def decoded(self, path: str) -> Iterator[bytes]:
        """Yield the content of a file of the table's log, if it is compressed."""
        if path.endswith(".parquet"):
            with self._filesystem.open_input_file(path) as stream, pq.ParquetFile(stream) as file:
                for batch in file.iter_batches():
                    sink = pa.BufferOutputStream()
                    with pa.ipc.new_stream(sink, batch.schema) as writer:
                        writer.write_batch(batch)
                    yield sink.getvalue().to_pybytes()
        elif path.endswith(".gz.metadata.json"):
            with self._filesystem.open_input_stream(path, compression="gzip") as stream:
                yield stream.read()

    @abstractmethod
    def purge_calls(self) -> tuple[str, ...]:
        """Return the calls that delete older versions."""

    @abstractmethod
    def purge(self) -> None:
        """Delete older versions, and the files that only they name.

        Raise `CommitRefused` if another writer came first.
        """

"""The base class of tables whose rows can be changed: their files, partitions and commits."""

from __future__ import annotations

import errno
import posixpath
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zonebloom.base.progress import Report
from zonebloom.changes.receipt import Trace
from zonebloom.changes.writing import (
    FileChange,
    WriterOptions,
    WrittenFile,
    write_parquet,
)
from zonebloom.errors import (
    ChangeConflict,
    ChangeRefused,
    FragmentChanged,
    FragmentUnreadable,
    SourceError,
)
from zonebloom.scan.opened import OpenDataset, OpenedDataset
from zonebloom.scan.recheck import select_rows
from zonebloom.snapshot import Snapshot
from zonebloom.sources.fragment_rows import read_view_batches_of
from zonebloom.sources.source import Fragment
from zonebloom.storage.files import file_errors

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
# The characters that Hive and Spark write as %XX in the names of folders, and those that Windows
# does not allow. Spark reads each %XX as a character, so a letter such as ö must stay as it is.
_ESCAPED_IN_FOLDERS = re.compile(r"""[\x00-\x1f"#%'*/:<=>?\[\\\]^{|\x7f]""")
_MAX_TRIES = 5
_SECONDS_BEFORE_RETRY = 0.05
# A larger file of a store is read in parts, because the parts fit into memory.
_MAX_WHOLE_BYTES = 128 << 20
Result = TypeVar("Result")
# Rows of a file, each batch with the numbers of its rows.
RowBatches: TypeAlias = Iterator[tuple[np.ndarray, pa.Table]]


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
        except FragmentUnreadable as error:
            # Another writer may have replaced the file, or deleted it.
            if number == _MAX_TRIES and not isinstance(error, FragmentChanged):
                raise
        except CommitRefused:
            pass
        time.sleep(_SECONDS_BEFORE_RETRY * number)
    raise ChangeConflict(
        f"other writers changed {location} {_MAX_TRIES} times meanwhile; call again when they are "
        "done"
    )


def read_log(
    read: Callable[[], list[Any]],
    path: str,
    versions: Sequence[str],
    unreadable: list[Trace] | None,
) -> list[Any]:
    """Return the entries of a file of a log. If it cannot be read, add it to ``unreadable``.

    Raise the error instead if that is None.
    """
    try:
        return read()
    except Exception as error:
        if unreadable is None:
            raise
        reason = f"it cannot be read ({type(error).__name__}), nor the files that only it names"
        unreadable.append(Trace("log", path, tuple(versions), reason))
        return []


@contextmanager
def write_errors(location: str) -> Iterator[None]:
    """Say what to do if the system forbids a change of files, or has no room for it."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            step = "get the right to write and delete there"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            step = "make room there"
        else:
            raise
        raise SourceError(f"cannot change {location}: {error}; {step}, then call again") from None


class FileRows(NamedTuple):
    """An open file whose rows go to a new one. The last batch closes it.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of the new file.
    metadata : pyarrow.parquet.FileMetaData
        The metadata of the open one.
    batches : iterator of numbers of rows, and a table of these rows
    """

    schema: pa.Schema
    metadata: pq.FileMetaData
    batches: RowBatches


class ChangeableTable(ABC):
    """A table, or a folder, whose files can be replaced.

    Attributes
    ----------
    kind : {"delta", "iceberg", "folder"}
    other_commands : str
        The commands of the table's library that may do what is refused here.
    location : str
    version : str
        The version that is loaded.
    target_bytes : int
        The size of new files.
    opened : OpenedDataset
        The files of the loaded version.
    """

    kind: str
    other_commands: str
    location: str
    version: Any = ""
    target_bytes = 100 << 20
    opened: OpenedDataset

    def __init__(self) -> None:
        self._new_paths: list[str] = []

    @property
    def source_version(self) -> str:
        """The `Source.table_version` of the loaded version, or an empty text if it has none."""
        return str(self.version)

    def use(self, opened: OpenedDataset) -> None:
        """Take the files of the loaded version, as a dataset has opened them."""
        self.opened = opened
        self._source = opened.source
        self._filesystem = opened.source.filesystem

    def reopen(self, dataset: OpenDataset) -> None:
        """Let a dataset open the files of the loaded version."""
        dataset.refresh()
        self.use(dataset.opened)

    def reopen_newest(self, dataset: OpenDataset) -> None:
        """Load the newest version, and let a dataset open its files and their newest index."""
        self.load_newest()
        if self.source_version and self.source_version == dataset.opened.source.table_version:
            # The files are open already.
            dataset.opened = dataset.opened.with_newest_index()
            self.use(dataset.opened)
        else:
            self.reopen(dataset)

    @property
    def snapshot(self) -> Snapshot:
        """The files of the loaded version."""
        return self.opened.last_snapshot

    @abstractmethod
    def load_newest(self) -> None:
        """Load the newest version, before the dataset lists its files."""

    def load_committed(self) -> None:
        """Load the version that `commit` has made, or a newer one."""
        self.load_newest()

    def locked(self) -> AbstractContextManager[None]:
        """Keep other changes of this program out, if the table itself does not."""
        return nullcontext()

    def refused(self, reason: str) -> ChangeRefused:
        return ChangeRefused(
            f"the {self.kind.capitalize()} table {self.location} {reason}; change it with Spark, "
            f"or with the {self.other_commands} if they allow it"
        )

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

    def rows_of(self, fragment: Fragment, updated_columns: Collection[str]) -> FileRows:
        """Open a file to read all of its rows in batches, each with their numbers.

        The rows are those that the table sees: without deleted rows, by its own names. They have
        all columns that are updated.
        """
        file = self._open_whole(fragment.path)
        return FileRows(self.file_schema, pq.read_metadata(file), self._batches(file, fragment))

    def _open_whole(self, path: str) -> pa.NativeFile:
        """Open a file all of which is read. From a store, it takes one request unless it is large.

        The caller closes it.
        """
        store = self._source.store
        if store.has_round_trips:
            # The file may be large or gone.
            with suppress(OSError):
                return pa.BufferReader(store.read_whole(path, _MAX_WHOLE_BYTES))
        return self._filesystem.open_input_file(path)

    def _batches(self, file: pa.NativeFile, fragment: Fragment) -> RowBatches:
        first = 0
        with file_errors(fragment.path, parquet_in=self._filesystem):
            names = self.file_schema.names
            for batch in read_view_batches_of(self._source, fragment, file, names):
                is_kept = np.ones(batch.num_rows, dtype=bool)
                deleted = fragment.deleted_rows.window(first, first + batch.num_rows)
                is_kept[deleted.rows()] = False
                numbers = np.flatnonzero(is_kept)
                yield numbers + first, select_rows(pa.Table.from_batches([batch]), numbers)
                first += batch.num_rows

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
            f"{_folder_text(column)}={HIVE_NULL if text is None else _folder_text(text)}"
            for column, text in zip(self.partition_columns, texts, strict=True)
        ]
        return posixpath.join(self._source.root, *folders, name)

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
        tables, schema = self.as_stored(tables, schema)
        path = self.new_path(partition, replaced)
        self._new_paths.append(path)
        with write_errors(self.location):
            if replaced is None:
                self._source.store.create_folder(posixpath.dirname(path))
            result = write_parquet(self._source.store, path, tables, schema, options, report)
        return result and WrittenFile(path, partition, *result, replaced=replaced)

    def as_stored(
        self, tables: Iterable[pa.Table], schema: pa.Schema
    ) -> tuple[Iterable[pa.Table], pa.Schema]:
        """Return rows and their schema with the names that files have."""
        return tables, schema

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

    def read_history(self, stored: Collection[str], unreadable: list[Trace]) -> Any:
        """Read the table's log, for the two methods below.

        ``stored`` has the paths of all files below the root. A file of the log that cannot be read
        is added to ``unreadable``.
        """
        return ()

    def stored_names(self, file_names: Collection[str]) -> dict[str, str]:
        """Return the columns that a file with some names stores, each with its name there.

        Leave out columns that cannot be read by the table's names.
        """
        return {name: name for name in file_names}

    def retained_files(self, history: Any) -> dict[str, tuple[str, ...]]:
        """Return the data files that only older versions name, with these versions."""
        return {}

    def logs_of(self, history: Any, stored: Collection[str], paths: Collection[str]) -> list[str]:
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


def _folder_text(text: str) -> str:
    """Return a name or a value of a column as the name of a Hive partition's folder has it."""
    return _ESCAPED_IN_FOLDERS.sub(lambda match: f"%{ord(match[0]):02X}", text)

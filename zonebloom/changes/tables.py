"""The base class of tables whose rows can be changed: their files, partitions and commits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.changes.places import FileChange
from zonebloom.changes.writing import WrittenFile
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.scanner import plan_scan
from zonebloom.sources.source import Fragment, Source

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


class CommitRefused(Exception):
    """Another writer changed the table since its files were read."""


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
    """

    kind: str
    location: str
    version: Any = ""
    target_bytes = 100 << 20
    _opened: OpenedDataset
    _source: Source

    def use(self, opened: OpenedDataset) -> None:
        """Take the files of the loaded version, as a dataset has opened them."""
        self._opened, self._source = opened, opened.source

    @abstractmethod
    def load_newest(self) -> None:
        """Load the newest version, before the dataset lists its files."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep other changes of this program out, if the table itself does not."""
        return nullcontext()

    @abstractmethod
    def require_changeable(self, changes: Sequence[FileChange]) -> None:
        """Raise `ChangeRefused` if the table does not allow these changes."""

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
        opened = self._opened.restricted([fragment.path])
        scan = plan_scan(opened, columns, (None,), with_row_address=True, use_scalar_index=False)
        for batch in scan.to_batches():
            table = pa.Table.from_batches([batch])
            addresses = table.column(table.num_columns - 1).to_numpy().astype(np.int64)
            yield addresses & _OFFSET_MASK, table.remove_column(table.num_columns - 1)

    @property
    def file_schema(self) -> pa.Schema:
        """The schema of a new file: that of the table without the columns of its paths."""
        columns = set(self.partition_columns)
        return pa.schema([field for field in self._source.schema if field.name not in columns])

    @abstractmethod
    def new_path(self, partition: Any, replaced: Fragment | None) -> str:
        """Return the path of a new file, in the file system of the dataset."""

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

    @abstractmethod
    def purge_calls(self) -> tuple[str, ...]:
        """Return the calls that delete older versions."""

    @abstractmethod
    def purge(self) -> None:
        """Delete older versions, and the files that only they name."""

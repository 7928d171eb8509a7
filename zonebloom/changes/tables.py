"""What an upsert or an erasure needs of a table: its files, its partitions and its commits."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.changes.places import FileChange
from zonebloom.changes.writing import WrittenFile
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.scanner import plan_scan
from zonebloom.sources.source import Fragment

_OFFSET_MASK = (1 << OFFSET_BITS) - 1


class CommitRefused(Exception):
    """Another writer changed the table since its files were read."""


class ChangeableTable(Protocol):
    """A table, or a folder, whose files can be replaced.

    Attributes
    ----------
    kind : {"delta", "iceberg", "folder"}
    location : str
    is_atomic : bool
        Whether all files change in one commit.
    target_bytes : int
        The size of new files.
    """

    kind: str
    location: str
    is_atomic: bool
    target_bytes: int

    @property
    def version(self) -> str:
        """The version that is loaded."""
        ...

    @property
    def partition_columns(self) -> Collection[str]:
        """The columns that decide to which partition a row belongs."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Keep other changes of this program out, if the table itself does not."""
        ...

    def load_newest(self) -> None:
        """Load the newest version."""
        ...

    def use(self, opened: OpenedDataset) -> None:
        """Take the files of the loaded version, as a dataset has opened them."""
        ...

    def require_changeable(self, changes: Sequence[FileChange]) -> None:
        """Raise `ChangeRefused` if the table does not allow these changes."""
        ...

    def partition_of(self, fragment: Fragment) -> Hashable:
        """Return the partition of a file, or None if its rows have to be partitioned anew."""
        ...

    def partitions(self, rows: pa.Table) -> list[tuple[Hashable, np.ndarray]]:
        """Return the partitions of rows, each with the numbers of its rows."""
        ...

    def rows_of(
        self, fragment: Fragment
    ) -> tuple[pa.Schema, Iterator[tuple[np.ndarray, pa.Table]]]:
        """Return the schema of a file, and its rows in batches, each with their numbers."""
        ...

    @property
    def file_schema(self) -> pa.Schema:
        """The schema of a new file."""
        ...

    def new_path(self, partition: Any, replaced: Fragment | None) -> str:
        """Return the path of a new file, in the file system of the dataset."""
        ...

    def commit(
        self,
        removed: Sequence[Fragment],
        written: Sequence[WrittenFile],
        summary: Mapping[str, str],
    ) -> list[str]:
        """Replace files, and return the paths of the new ones.

        Raise `CommitRefused` if another writer came first.
        """
        ...

    def retained_files(self) -> dict[str, tuple[str, ...]]:
        """Return the data files that only older versions name, with these versions."""
        ...

    def logs_of(self, paths: Collection[str]) -> list[str]:
        """Return the files of the table's log that hold statistics of some data files."""
        ...

    def purge_calls(self) -> tuple[str, ...]:
        """Return the calls that delete older versions."""
        ...

    def purge(self, paths: Collection[str]) -> None:
        """Delete older versions, and some data files that no version names any more."""
        ...


def rows_by_scan(
    opened: OpenedDataset, fragment: Fragment, columns: Sequence[str]
) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """Yield the rows of a file as the table sees them: without deleted rows, by its own names."""
    scan = plan_scan(
        opened,
        list(columns),
        (None,),
        fragments=[fragment.path],
        with_row_address=True,
        use_scalar_index=False,
    )
    for batch in scan.to_batches():
        addresses = batch.column(batch.num_columns - 1).to_numpy().astype(np.int64)
        table = pa.Table.from_batches([batch])
        yield addresses & _OFFSET_MASK, table.remove_column(table.num_columns - 1)


def group_rows(keys: pa.Table) -> list[tuple[tuple[Any, ...], np.ndarray]]:
    """Return the distinct rows of a table as tuples, each with the numbers of its rows."""
    names = [f"k{number}" for number in range(keys.num_columns)]
    numbered = pa.table([*keys.columns, pa.array(np.arange(keys.num_rows))], [*names, "row"])
    groups = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])
    distinct = zip(*(groups.column(name).to_pylist() for name in names), strict=True)
    rows = (np.asarray(part.values) for part in groups.column("row_list"))
    return list(zip(distinct, rows, strict=True))

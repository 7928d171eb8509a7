"""Some rows of one fragment, by the unit its format is read in: row group or record batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from zonebloom.ranges import RowRanges
from zonebloom.storage.files import FileIdentity, ReadCounter
from zonebloom.storage.ipc import IpcRows
from zonebloom.storage.memory import TableRows, TableSource
from zonebloom.storage.parquet.pagemap import FilePages
from zonebloom.storage.parquet.rows import ParquetRows
from zonebloom.storage.random_access import FragmentFile
from zonebloom.storage.source import Fragment, Source


class FragmentRows(Protocol):
    """What reads rows of a fragment."""

    def row_groups(self, rows: RowRanges) -> Iterator[tuple[int, int, RowRanges]]:
        """The groups with a wanted row: number, first row, and the rows counted from it."""
        ...

    def read(self, row_group: int, names: Sequence[str], rows: RowRanges) -> pa.Table:
        """Some columns at some rows of a group, with the dataset's types."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


def open_rows(
    source: Source,
    fragment: Fragment,
    identity: FileIdentity,
    pages: FilePages | None,
    counter: ReadCounter,
) -> FragmentRows | None:
    """Open a fragment to read some of its rows.

    None for a format that is read as a whole.
    """
    if isinstance(source, TableSource):
        return TableRows(source.table)
    constants = source.constants(fragment)
    if not (source.is_parquet or source.is_ipc):
        return None
    file = FragmentFile(source.filesystem, fragment.path, identity, counter)
    try:
        if source.is_parquet:
            return ParquetRows(file, pages, source.schema, constants)
        return IpcRows(file, source.schema, constants)
    except BaseException:
        file.close()
        raise

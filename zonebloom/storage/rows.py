"""Some rows of one fragment, by the unit its format is read in: row group or record batch."""

from __future__ import annotations

from typing import TypeAlias

from zonebloom.storage.files import FileIdentity, ReadCounter
from zonebloom.storage.ipc import IpcRows
from zonebloom.storage.memory import TableRows, TableSource
from zonebloom.storage.parquet.layout import FilePages
from zonebloom.storage.parquet.rows import ParquetRows
from zonebloom.storage.random_access import FragmentFile
from zonebloom.storage.source import Fragment, Source

# What reads rows of a fragment: ``row_groups`` gives the groups with a wanted row, their number,
# first row, and the rows counted from it; ``read`` some columns at some rows of a group.
FragmentRows: TypeAlias = ParquetRows | IpcRows | TableRows


def open_rows(
    source: Source,
    fragment: Fragment,
    identity: FileIdentity,
    pages: FilePages | None,
    counter: ReadCounter,
) -> FragmentRows | None:
    """Open a fragment to read some of its rows; None for a format that is read as a whole."""
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

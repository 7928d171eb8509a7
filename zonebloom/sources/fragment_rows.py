"""Some rows of one fragment, by the unit its format is read in: row group or record batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.parquet.decrypted_file import DecryptedFile
from zonebloom.parquet.field_names import metadata_with_names
from zonebloom.parquet.file_layout import FilePages
from zonebloom.sources.ipc_rows import IpcRows
from zonebloom.sources.memory import TableRows, TableSource
from zonebloom.sources.parquet_rows import ParquetRows
from zonebloom.sources.source import Fragment, Source, assemble_columns, require_all_rows
from zonebloom.storage.files import FileIdentity, ReadCounter
from zonebloom.storage.random_access import FragmentFile

# A reader of some rows of a fragment. ``row_groups`` yields the groups with a wanted row: number,
# first row, and the wanted rows counted from it. ``read`` returns columns at some rows of a group.
# ``require_unchanged`` raises `FragmentChanged` if the file was written since it was opened.
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
    place = source.filesystem, fragment.path, identity, counter
    keys = source.parquet_keys if pages is None else None
    file = FragmentFile(*place) if keys is None else DecryptedFile(*place)
    try:
        if source.is_parquet:
            if isinstance(file, DecryptedFile) and keys is not None:
                pages = file.pages(keys)
            return ParquetRows(
                file, pages, source.schema, constants, fragment.names, fragment.defaults
            )
        return IpcRows(file, source.schema, constants)
    except BaseException:
        file.close()
        raise


def read_view_batches(
    source: Source, fragment: Fragment, filesystem: pafs.FileSystem, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield columns of all rows of a Parquet file as the table has them, deleted rows too.

    Raises
    ------
    FragmentUnreadable
        After the last batch, if rows are missing that the footer states.
    """
    import pyarrow.parquet as pq

    constants = source.constants(fragment)
    with filesystem.open_input_file(fragment.path) as file:
        metadata = None
        if fragment.names is not None:
            metadata = metadata_with_names(file, fragment.names)
        opened = pq.ParquetFile(file, metadata=metadata)
        held = [name for name in names if name in opened.schema_arrow.names]
        num_rows = dict.fromkeys(held, 0)
        for batch in opened.iter_batches(columns=held, use_threads=False):
            stored = {name: pa.chunked_array([batch.column(name)]) for name in held}
            for name, values in stored.items():
                num_rows[name] += len(values)
            rows = len(batch), constants, stored, fragment.defaults
            yield from assemble_columns(source.schema, names, *rows).combine_chunks().to_batches()
        for count in num_rows.values():
            require_all_rows(fragment.path, count, opened.metadata.num_rows)

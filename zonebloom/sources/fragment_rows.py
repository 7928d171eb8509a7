"""Open a fragment to read some of its rows, by row group or record batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.parquet.field_names import metadata_with_names
from zonebloom.parquet.file_layout import FilePages
from zonebloom.sources.parquet_rows import ParquetRows
from zonebloom.sources.source import Fragment, Source, assemble_columns, require_all_rows
from zonebloom.storage.files import FileIdentity, ReadCounter
from zonebloom.storage.random_access import FragmentFile

if TYPE_CHECKING:
    from zonebloom.parquet.decrypted_file import DecryptedFile
    from zonebloom.sources.ipc_rows import IpcRows
    from zonebloom.sources.memory import TableRows

# A reader for some rows of a fragment. ``row_groups`` yields the groups that contain requested
# rows: number, first row, and the rows counted from it. ``read`` returns columns at some rows of a
# group. ``require_unchanged`` raises `FragmentChanged` if the file was written since opening.
FragmentRows: TypeAlias = "ParquetRows | IpcRows | TableRows"


def open_rows(
    source: Source,
    fragment: Fragment,
    identity: FileIdentity,
    pages: FilePages | None,
    counter: ReadCounter,
) -> FragmentRows | None:
    """Open a fragment to read some of its rows. Return None for formats without random access."""
    if source.is_in_memory:
        from zonebloom.sources.memory import TableRows, table_of

        return TableRows(table_of(source))
    constants = source.constants(fragment)
    if not (source.is_parquet or source.is_ipc):
        return None
    place = source.filesystem, fragment.path, identity, counter
    decrypted_file: DecryptedFile | None = None
    if pages is None and source.parquet_keys is not None:
        from zonebloom.parquet.decrypted_file import DecryptedFile

        file = decrypted_file = DecryptedFile(*place)
    else:
        file = FragmentFile(*place)
    try:
        if decrypted_file is not None and source.parquet_keys is not None:
            pages = decrypted_file.pages(source.parquet_keys)
        if source.is_parquet:
            return ParquetRows(
                file, pages, source.schema, constants, fragment.view, source.parquet_keys
            )
        from zonebloom.sources.ipc_rows import IpcRows

        return IpcRows(file, source.schema, constants)
    except BaseException:
        file.close()
        raise


def read_view_batches(
    source: Source, fragment: Fragment, filesystem: pafs.FileSystem, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield columns of all rows of a Parquet file in the table's view, including deleted rows.

    Raises
    ------
    FragmentUnreadable
        After the last batch, if the file gave fewer rows than its footer states.
    """
    file = filesystem.open_input_file(fragment.path)
    yield from read_view_batches_of(source, fragment, file, names)


def read_view_batches_of(
    source: Source, fragment: Fragment, file: pa.NativeFile, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the same from an open file, and close it."""
    import pyarrow.parquet as pq

    constants = source.constants(fragment)
    with file:
        metadata = None
        if fragment.names is not None:
            metadata = metadata_with_names(file, fragment.names)
        parquet = pq.ParquetFile(file, metadata=metadata)
        stored_names = [name for name in names if name in parquet.schema_arrow.names]
        num_rows = dict.fromkeys(stored_names, 0)
        for batch in parquet.iter_batches(columns=stored_names, use_threads=False):
            stored = {name: pa.chunked_array([batch.column(name)]) for name in stored_names}
            for name, values in stored.items():
                num_rows[name] += len(values)
            table = assemble_columns(
                source.schema, names, len(batch), constants, stored, fragment.defaults
            )
            yield from table.combine_chunks().to_batches()
        for count in num_rows.values():
            require_all_rows(fragment.path, count, parquet.metadata.num_rows)

"""Open a fragment to read some of its rows, by row group or record batch.

Files of Arrow IPC are not memory-mapped, because the process would crash if a file were truncated.
They are not given to pyarrow as Python files, because a thread of pyarrow may release those after
Python's exit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.field_names import metadata_with_names
from zonebloom.parquet.file_layout import FilePages
from zonebloom.sources.parquet_rows import ParquetRows
from zonebloom.sources.source import (
    Fragment,
    Source,
    assemble_columns,
    groups_with_rows,
    require_all_rows,
)
from zonebloom.storage.files import FileIdentity, ReadCounter, file_errors
from zonebloom.storage.ipc_layout import (
    BatchHead,
    read_batch_head,
    read_footer_blocks,
    schema_message,
)
from zonebloom.storage.random_access import FragmentFile

if TYPE_CHECKING:
    from zonebloom.parquet.decrypted_file import DecryptedFile
    from zonebloom.sources.memory import TableRows

# A reader for some rows of a fragment. ``row_groups`` yields the groups that contain requested
# rows: number, first row, and the rows counted from it. ``read`` returns columns at some rows of a
# group. ``require_unchanged`` raises `FragmentChanged` if the file was written since opening.
FragmentRows: TypeAlias = "ParquetRows | IpcRows | TableRows"


class IpcRows:
    """Reads some rows of an IPC file. Its row groups are the record batches."""

    def __init__(
        self,
        file: FragmentFile,
        schema: pa.Schema,
        constants: Mapping[str, object],
    ):
        self._schema = schema
        self._constants = constants
        self._path = file.path
        self._file = file
        with file_errors(self._path):
            self._blocks, self._dictionaries, _ = read_footer_blocks(
                self._read_range, self._file.num_bytes
            )
            self._schema_message = schema_message(
                self._read_range, [*self._dictionaries, *self._blocks], self._file.num_bytes
            )
            self._stored = pa.ipc.read_schema(pa.py_buffer(self._schema_message))
        self._batch_heads: dict[int, BatchHead] = {}
        self._last_batch: tuple[tuple[int, tuple[int, ...]], pa.RecordBatch] | None = None

    def row_groups(self, rows: RowRanges) -> Iterator[tuple[int, int, RowRanges]]:
        """Yield the record batches with requested rows: number, first row, and rows from there."""
        counts = (self._batch_head(number).num_rows for number in range(len(self._blocks)))
        return groups_with_rows(rows, counts)

    def _batch_head(self, number: int) -> BatchHead:
        if number not in self._batch_heads:
            with file_errors(self._path):
                self._batch_heads[number] = read_batch_head(self._read_range, self._blocks[number])
        return self._batch_heads[number]

    def read(self, row_group: int, names: Sequence[str], rows: RowRanges) -> pa.Table:
        """Return columns at some rows of a record batch, with the dataset's types."""
        stored = [name for name in names if self._is_stored(name)]
        with file_errors(self._path):
            columns = self._read_columns(row_group, stored, rows)
            return assemble_columns(self._schema, names, len(rows), self._constants, columns, {})

    def _is_stored(self, name: str) -> bool:
        count = len(self._stored.get_all_field_indices(name))
        if count > 1:
            raise FragmentUnreadable(f"{self._path} has {count} columns {name!r}; rename them")
        return count == 1 and name not in self._constants

    def _read_columns(
        self, number: int, names: Sequence[str], rows: RowRanges
    ) -> dict[str, pa.ChunkedArray]:
        if not names:
            return {}
        wanted = tuple(sorted(self._stored.get_field_index(name) for name in names))
        if self._last_batch is None or self._last_batch[0] != (number, wanted):
            block = self._blocks[number]
            stream = self._before_batches + self._read_range(block.start, block.stop)
            options = pa.ipc.IpcReadOptions(included_fields=list(wanted))
            batch = pa.ipc.open_stream(stream, options=options).read_next_batch()
            batch.validate(full=True)
            self._last_batch = (number, wanted), batch
        batch = self._last_batch[1]
        pieces = [batch.slice(start, stop - start) for start, stop in rows]
        return {name: pa.chunked_array([piece.column(name) for piece in pieces]) for name in names}

    @cached_property
    def _before_batches(self) -> bytes:
        """The schema and the dictionaries, with which an Arrow stream begins."""
        ranges = [(block.start, block.stop) for block in self._dictionaries]
        return b"".join([self._schema_message, *self._file.read(ranges)])

    def _read_range(self, start: int, stop: int) -> bytes:
        return self._file.read([(start, stop)])[0]

    def require_unchanged(self) -> None:
        """Raise `FragmentChanged` if the file was written since it was opened."""
        self._file.require_unchanged()

    def close(self) -> None:
        self._file.close()


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

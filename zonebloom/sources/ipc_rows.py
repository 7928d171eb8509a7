"""Read some rows of an Arrow IPC fragment, one whole record batch at a time.

The file is not memory-mapped, because the process would crash if the file were truncated. It is not
given to pyarrow as a Python file, because a thread of pyarrow may release that after Python's exit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.sources.source import assemble_columns, groups_with_rows
from zonebloom.storage.files import file_errors
from zonebloom.storage.ipc_layout import (
    BatchHead,
    read_batch_head,
    read_footer_blocks,
    schema_message,
)
from zonebloom.storage.random_access import FragmentFile


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

"""Rows of an Arrow IPC fragment, read at positions: a mapped file cut meanwhile is fatal, and of a
Python file object a thread of pyarrow's lets go at its leisure, fatal where the process ends first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.sources.source import assemble_columns, groups_with_rows
from zonebloom.storage.files import file_errors
from zonebloom.storage.ipc_layout import (
    BatchHead,
    column_buffers,
    flat_places,
    flat_rows,
    read_blocks,
    read_head,
    schema_message,
)
from zonebloom.storage.random_access import FragmentFile, merge_ranges

# Rows between two ranges below which they are read as one.
_GAP_ROWS = 512


class IpcRows:
    """Reads some rows of an IPC file; a record batch is what a row group is to Parquet."""

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
            self._blocks, self._dictionaries, is_little = read_blocks(
                self._one, self._file.num_bytes
            )
            self._schema_message = schema_message(
                self._one, [*self._dictionaries, *self._blocks], self._file.num_bytes
            )
            self._stored = pa.ipc.read_schema(pa.py_buffer(self._schema_message))
        self._flat = flat_places(self._stored) if is_little else {}
        self._heads: dict[int, BatchHead] = {}
        self._last: tuple[tuple[int, tuple[int, ...]], pa.RecordBatch] | None = None

    def row_groups(self, rows: RowRanges) -> Iterator[tuple[int, int, RowRanges]]:
        counts = (self._head(number).num_rows for number in range(len(self._blocks)))
        return groups_with_rows(rows, counts)

    def _head(self, number: int) -> BatchHead:
        if number not in self._heads:
            with file_errors(self._path):
                self._heads[number] = read_head(self._one, self._blocks[number])
        return self._heads[number]

    def read(self, row_group: int, names: Sequence[str], rows: RowRanges) -> pa.Table:
        stored = [name for name in names if self._is_stored(name)]
        flat = [] if self._head(row_group).is_compressed else [n for n in stored if n in self._flat]
        with file_errors(self._path):
            columns = self._some_rows(row_group, flat, rows)
            columns |= self._whole(row_group, [n for n in stored if n not in columns], rows)
            return assemble_columns(self._schema, names, len(rows), self._constants, columns)

    def _is_stored(self, name: str) -> bool:
        count = len(self._stored.get_all_field_indices(name))
        if count > 1:
            raise FragmentUnreadable(f"{self._path} has {count} columns {name!r}; rename them")
        return count == 1 and name not in self._constants

    def _some_rows(
        self, number: int, names: Sequence[str], rows: RowRanges
    ) -> dict[str, pa.ChunkedArray]:
        """Columns whose rows are found by arithmetic: two rounds of reads for all of them."""
        starts, stops = np.asarray(rows.starts), np.asarray(rows.stops)
        is_apart = starts[1:] - stops[:-1] > _GAP_ROWS
        firsts, lasts = starts[np.append(True, is_apart)], stops[np.append(is_apart, True)]
        spans = list(zip(firsts.tolist(), lasts.tolist(), strict=True))
        head = self._head(number)
        columns = [
            flat_rows(self._stored.field(name).type, head, self._flat[name], spans)
            for name in names
        ]
        results = [next(column) for column in columns]
        for _ in range(2):
            pieces = iter(self._file.read([part for parts in results for part in parts]))
            results = [
                column.send([next(pieces) for _ in parts])
                for column, parts in zip(columns, results, strict=True)
            ]
        span_of = np.append(0, np.cumsum(is_apart)).tolist()
        return {
            name: pa.chunked_array(
                arrays[span].slice(start - spans[span][0], stop - start)
                for span, (start, stop) in zip(span_of, rows, strict=True)
            )
            for name, arrays in zip(names, results, strict=True)
        }

    def _whole(
        self, number: int, names: Sequence[str], rows: RowRanges
    ) -> dict[str, pa.ChunkedArray]:
        """Columns that pyarrow reads whole: compressed ones, lists, dictionaries and the like."""
        if not names:
            return {}
        wanted = tuple(sorted(self._stored.get_field_index(name) for name in names))
        if self._last is None or self._last[0] != (number, wanted):
            stream = pa.py_buffer(self._stream(number, names))
            options = pa.ipc.IpcReadOptions(included_fields=list(wanted))
            batch = pa.ipc.open_stream(stream, options=options).read_next_batch()
            batch.validate(full=True)
            self._last = (number, wanted), batch
        batch = self._last[1]
        pieces = [batch.slice(start, stop - start) for start, stop in rows]
        return {name: pa.chunked_array([each.column(name) for each in pieces]) for name in names}

    def _stream(self, number: int, names: Sequence[str]) -> np.ndarray:
        """An Arrow stream of one record batch, in which columns that are not named may be zeros."""
        block = self._blocks[number]
        parts = column_buffers(self._stored, self._head(number), names)
        if parts is None:
            parts = [(block.body, block.stop)]
        begun = self._before_batches + self._one(block.start, block.body)
        # Of memory that nothing is written to, none is taken.
        stream = np.zeros(len(begun) + block.stop - block.body, dtype=np.uint8)
        stream[: len(begun)] = np.frombuffer(begun, dtype=np.uint8)
        body = stream[len(begun) :]
        spans = merge_ranges(parts, self._file.coalesce)
        for (start, stop), data in zip(spans, self._file.read(spans), strict=True):
            body[start - block.body : stop - block.body] = np.frombuffer(data, dtype=np.uint8)
        return stream

    @cached_property
    def _before_batches(self) -> bytes:
        """The schema and dictionaries, as a stream begins."""
        whole = [(each.start, each.stop) for each in self._dictionaries]
        return b"".join([self._schema_message, *self._file.read(whole)])

    def _one(self, start: int, stop: int) -> bytes:
        return self._file.read([(start, stop)])[0]

    def require_unchanged(self) -> None:
        """Raise `FragmentChanged` if the file was written since it was opened."""
        self._file.require_unchanged()

    def close(self) -> None:
        self._file.close()

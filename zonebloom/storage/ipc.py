"""Rows of an Arrow IPC fragment, read at positions: a mapped file cut meanwhile is fatal."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.ranges import RowRanges
from zonebloom.storage.files import reading
from zonebloom.storage.ipc_layout import BatchHead, flat_places, flat_rows, read_blocks, read_head
from zonebloom.storage.random_access import FragmentFile
from zonebloom.storage.source import dataset_columns, groups_with

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
        with reading(self._path):
            self._blocks, is_little = read_blocks(self._one, self._file.num_bytes)
            self._stored = pa.ipc.open_file(self._as_file()).schema
        self._flat = flat_places(self._stored) if is_little else {}
        self._heads: dict[int, BatchHead] = {}
        self._last: tuple[tuple[int, tuple[int, ...]], pa.RecordBatch] | None = None

    def row_groups(self, rows: RowRanges) -> Iterator[tuple[int, int, RowRanges]]:
        counts = (self._head(number).num_rows for number in range(len(self._blocks)))
        return groups_with(rows, counts)

    def _head(self, number: int) -> BatchHead:
        if number not in self._heads:
            with reading(self._path):
                self._heads[number] = read_head(self._one, self._blocks[number])
        return self._heads[number]

    def read(self, row_group: int, names: Sequence[str], rows: RowRanges) -> pa.Table:
        stored = [name for name in names if self._is_stored(name)]
        flat = [] if self._head(row_group).is_compressed else [n for n in stored if n in self._flat]
        with reading(self._path):
            columns = self._some_rows(row_group, flat, rows)
            columns |= self._whole(row_group, [n for n in stored if n not in columns], rows)
            return dataset_columns(self._schema, names, len(rows), self._constants, columns)

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
            options = pa.ipc.IpcReadOptions(included_fields=list(wanted))
            batch = pa.ipc.open_file(self._as_file(), options=options).get_batch(number)
            batch.validate(full=True)
            self._last = (number, wanted), batch
        batch = self._last[1]
        pieces = [batch.slice(start, stop - start) for start, stop in rows]
        return {name: pa.chunked_array([each.column(name) for each in pieces]) for name in names}

    def _one(self, start: int, stop: int) -> bytes:
        return self._file.read([(start, stop)])[0]

    def _as_file(self) -> pa.PythonFile:
        return pa.PythonFile(_AsFile(self._one, self._file.num_bytes), mode="r")

    def close(self) -> None:
        self._file.close()


class _AsFile(io.RawIOBase):
    def __init__(self, read: Callable[[int, int], bytes], num_bytes: int):
        self._read = read
        self._num_bytes = num_bytes
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        end = self._num_bytes
        stop = end if size is None or size < 0 else min(self._at + size, end)
        data = self._read(self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_CUR: self._at, io.SEEK_END: self._num_bytes}.get(whence, 0)
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

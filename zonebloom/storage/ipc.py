"""Rows of one Arrow IPC fragment, record batch by record batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.errors import FragmentChanged, FragmentUnreadable
from zonebloom.ranges import RowRanges
from zonebloom.storage.files import FileIdentity, ReadCounter, counted, identities, is_local


class IpcRows:
    """Reads some rows of an IPC file; a record batch is what a row group is to Parquet.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    path : str
    identity : FileIdentity
        What the file must be.
    schema : pyarrow.Schema
        The dataset's.
    constants : mapping of str to object
        Values of columns that the path gives.
    counter : ReadCounter
        Of a file that is mapped into memory, the buffers of the rows taken are counted.

    Raises
    ------
    FragmentUnreadable
    """

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        path: str,
        identity: FileIdentity,
        schema: pa.Schema,
        constants: Mapping[str, object],
        counter: ReadCounter,
    ):
        self._mapped = is_local(filesystem)
        self._counter = counter
        self._schema = schema
        self._constants = constants
        self._path = path
        with self._reading():
            self._file = (
                pa.memory_map(path)
                if self._mapped
                else counted(filesystem, counter).open_input_file(path)
            )
            self._reader = pa.ipc.open_file(self._file)
        # Asked once the file is open: one put in its place before is noticed.
        if not identity.is_still(identities(filesystem, [path])[0]):
            self.close()
            raise FragmentChanged(f"{path} changed while it was read; read it again")
        self._stored = self._reader.schema
        self._last: tuple[int, pa.RecordBatch] | None = None
        self._checked: int | None = None

    def row_groups(self, rows: RowRanges) -> Iterator[tuple[int, int, RowRanges]]:
        """The batches with a wanted row: number, first row, and the rows counted from it."""
        first, stop = 0, int(rows.stops[-1]) if rows else 0
        for number in range(self._reader.num_record_batches):
            if first >= stop:
                return
            count = self._batch(number).num_rows
            inside = rows.window(first, first + count)
            if inside:
                yield number, first, inside
            first += count

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise FragmentUnreadable(
                f"cannot read {self._path}: {error}; repair or remove the file"
            ) from error

    def _batch(self, number: int) -> pa.RecordBatch:
        """A batch; the last one is kept, since its columns are asked for more than once."""
        if self._last is None or self._last[0] != number:
            with self._reading():
                self._last = number, self._reader.get_batch(number)
        return self._last[1]

    def read(self, row_group: int, names: Sequence[str], rows: RowRanges) -> pa.Table:
        """Some columns at some rows of a batch, with the dataset's types."""
        batch = self._batch(row_group)
        if self._checked != row_group:
            # The buffers of a mapped file are used as they lie: offsets are checked first.
            with self._reading():
                batch.validate(full=True)
            self._checked = row_group
        pieces = [batch.slice(start, stop - start) for start, stop in rows]
        columns = []
        for name in names:
            wanted = self._schema.field(name).type
            if name in self._constants:
                values = pa.repeat(pa.scalar(self._constants[name], wanted), len(rows))
            elif name not in self._stored.names:
                values = pa.nulls(len(rows), wanted)
            else:
                values = pa.chunked_array([piece.column(name) for piece in pieces])
                if self._mapped:
                    self._counter.add(values.nbytes)
                values = values if values.type == wanted else values.cast(wanted)
            columns.append(values)
        kept = pa.schema([self._schema.field(name) for name in names])
        return pa.Table.from_arrays(columns, schema=kept)

    def close(self) -> None:
        """Close the file; batches handed out keep what they need of it."""
        self._file.close()

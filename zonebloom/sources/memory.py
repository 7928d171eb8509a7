"""Use a table in memory as a dataset of one fragment, which is never copied and never stale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base.row_ranges import RowRanges
from zonebloom.sources.source import Fragment, Source, groups_with_rows
from zonebloom.storage.files import FileIdentity

_FRAGMENT_KEY = "table"


@dataclass(frozen=True, slots=True)
class TableSource(Source):
    """A source whose only fragment is a table in memory."""

    table: pa.Table
    identity: FileIdentity

    def open(self, fragment: Fragment, filesystem: pafs.FileSystem) -> Any:
        import pyarrow.dataset as pads

        # PyArrow makes a fragment of each batch, and none of a table without batches.
        batches = self.table.combine_chunks().to_batches()
        batches = batches or [pa.RecordBatch.from_pylist([], self.schema)]
        return next(iter(pads.InMemoryDataset(batches).get_fragments()))

    def count_rows(self, fragment: Fragment, filesystem: pafs.FileSystem) -> int:
        return self.table.num_rows

    def scan_whole(self, fragments: Sequence[Any], filesystem: pafs.FileSystem) -> Any:
        import pyarrow.dataset as pads

        return pads.InMemoryDataset(self.table)

    @property
    def is_in_memory(self) -> bool:
        return True

    @property
    def is_ipc(self) -> bool:
        return False

    def identities(
        self,
        fragments: Sequence[Fragment] | None = None,
        before: Iterable[FileIdentity | None] = (),
    ) -> list[FileIdentity | None]:
        """Return the table's identity, which never changes."""
        return [self.identity for _ in (self.fragments if fragments is None else fragments)]

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling a slice in pyarrow writes the whole table. IPC writes only the slice.
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as writer:
            writer.write_table(self.table)
        return _open_ipc, (sink.getvalue(), self.identity)


def _open_ipc(stream: pa.Buffer, identity: FileIdentity) -> TableSource:
    # The table has another size in memory after IPC, but the index identifies it by the first.
    return replace(open_memory_table(pa.ipc.open_stream(stream).read_all()), identity=identity)


def open_memory_table(table: pa.Table) -> TableSource:
    import pyarrow.dataset as pads

    fragment = Fragment(_FRAGMENT_KEY, _FRAGMENT_KEY)
    return TableSource(
        table.schema,
        pads.IpcFileFormat(),
        pafs.LocalFileSystem(),
        "memory",
        (fragment,),
        table,
        FileIdentity(table.nbytes, 0),
    )


def table_of(source: Source) -> pa.Table:
    """Return the table of a source that is in memory."""
    assert isinstance(source, TableSource)
    return source.table


class TableRows:
    """Reads some rows of a table in memory. Its row groups are the record batches."""

    def __init__(self, table: pa.Table):
        self._batches = table.to_batches()

    def row_groups(self, rows: RowRanges) -> Iterator[tuple[int, int, RowRanges]]:
        return groups_with_rows(rows, (batch.num_rows for batch in self._batches))

    def read(self, row_group: int, names: Sequence[str], rows: RowRanges) -> pa.Table:
        batch = self._batches[row_group].select(list(names))
        pieces = [batch.slice(start, stop - start) for start, stop in rows]
        return pa.Table.from_batches(pieces, batch.schema)

    def require_unchanged(self) -> None:
        """Do nothing: a table never changes."""

    def close(self) -> None:
        """Do nothing: no file is open."""

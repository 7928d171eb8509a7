"""Read columns of row groups with pyarrow from their first row on, and keep some of their rows.

This is how columns are read that kernels cannot decode, and all columns before kernels are loaded.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable, ZoneBloomError
from zonebloom.parquet.field_names import metadata_with_names
from zonebloom.storage.file_view import FieldNames
from zonebloom.storage.random_access import FragmentFile

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from zonebloom.parquet.encryption_keys import ParquetKeys

# Up to this number of ranges in a batch, slices are faster than a gather.
_MAX_SLICES = 32
_BATCH_ROWS = 1 << 16


class WholeRowGroups:
    """The row groups of one opened file, as pyarrow reads them.

    Parameters
    ----------
    file : FragmentFile
    names : FieldNames or None
        A table's names for the fields, if they differ from the file's.
    keys : ParquetKeys or None
        The keys of the file if it is encrypted.
    """

    def __init__(self, file: FragmentFile, names: FieldNames | None, keys: ParquetKeys | None):
        self._file = file
        self._names = names
        self._keys = keys
        self._metadata: pq.FileMetaData | None = None

    def read(
        self, row_group: int, columns: Sequence[str], rows: RowRanges
    ) -> dict[str, pa.ChunkedArray]:
        """Return top-level columns at some rows of a row group.

        Raises
        ------
        FragmentUnreadable
            If pyarrow cannot read the row group, or the row group ends before the last row.
        """
        try:
            # Readers are not shared between threads, but the metadata is.
            parquet = self._open()
            # A column name with dots also selects the leaf of a struct with this path.
            kinds = {name: parquet.schema_arrow.field(name).type for name in columns}
            batches = parquet.iter_batches(_BATCH_ROWS, [row_group], list(columns))
            parts = list(_rows_of(batches, rows))
            values = {
                name: pa.chunked_array([part.column(name) for part in parts], kind)
                for name, kind in kinds.items()
            }
        except ZoneBloomError:
            raise
        except (pa.ArrowException, OSError, ValueError, IndexError, KeyError) as error:
            raise FragmentUnreadable(f"cannot read {self._file.path}: {error}") from None
        num_rows = sum(part.num_rows for part in parts)
        if num_rows != len(rows):
            raise FragmentUnreadable(
                f"cannot read {self._file.path}: {num_rows:,} of {len(rows):,} rows came"
            )
        return values

    def _open(self) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        stream = pa.PythonFile(_StoredBytes(self._file), mode="r")
        if self._metadata is None and self._names is not None:
            self._metadata = metadata_with_names(stream, self._names)
        parquet = pq.ParquetFile(
            stream,
            metadata=self._metadata,
            pre_buffer=False,
            page_checksum_verification=True,
            decryption_properties=None if self._keys is None else self._keys.properties(),
        )
        if self._keys is None:
            self._metadata = parquet.metadata
        return parquet


class _StoredBytes(io.RawIOBase):
    """The bytes of a fragment's file, encrypted if the file is, as a stream for pyarrow."""

    def __init__(self, file: FragmentFile):
        self._file = file
        self._offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._file.num_bytes}
        self._offset = start[whence] + offset
        return self._offset

    def read(self, size: int = -1) -> bytes:
        start, end = self._offset, self._file.num_bytes
        stop = end if size < 0 else min(start + size, end)
        if stop <= start:
            return b""
        (data,) = self._file.read_stored([(start, stop)])
        self._offset = stop
        return data


def _rows_of(batches: Iterator[pa.RecordBatch], rows: RowRanges) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of consecutive batches, and read no batch after the last of them."""
    first_row, last_stop = 0, int(rows.stops[-1]) if rows else 0
    while first_row < last_stop:
        batch = next(batches, None)
        if batch is None:
            return
        wanted = rows.window(first_row, first_row + batch.num_rows)
        yield from _select(batch, wanted)
        first_row += batch.num_rows


def _select(batch: pa.RecordBatch, rows: RowRanges) -> list[pa.RecordBatch]:
    if rows.num_ranges > _MAX_SLICES:
        # pyarrow cannot gather values of view types.
        with contextlib.suppress(pa.ArrowNotImplementedError):
            return [batch.take(pa.array(rows.rows()))]
    return [batch.slice(start, stop - start) for start, stop in rows]

"""Read columns of whole row groups with pyarrow, and keep some of their rows.

This is how columns are read that kernels cannot decode, and all columns before kernels are loaded.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
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

# Up to this number of ranges, slices of a column are faster than a gather.
_MAX_SLICES = 32


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
            If pyarrow cannot read the row group, or reads another number of rows than it has.
        """
        try:
            # Readers are not shared between threads, but the metadata is.
            parquet = self._open()
            num_rows = parquet.metadata.row_group(row_group).num_rows
            # A column name with dots also selects the leaf of a struct with this path.
            table = parquet.read_row_group(row_group, columns=list(columns), use_threads=False)
        except ZoneBloomError:
            raise
        except (pa.ArrowException, OSError, ValueError, IndexError) as error:
            raise FragmentUnreadable(f"cannot read {self._file.path}: {error}") from None
        values = {}
        for name in columns:
            column = table.column(name)
            if len(column) != num_rows:
                raise FragmentUnreadable(
                    f"cannot read {self._file.path}: {len(column):,} of {num_rows:,} rows of "
                    f"column {name!r} came"
                )
            values[name] = _rows_of(column, rows)
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


def _rows_of(column: pa.ChunkedArray, rows: RowRanges) -> pa.ChunkedArray:
    if len(rows) == len(column):
        return column
    if rows.starts.size > _MAX_SLICES:
        try:
            return column.take(pa.array(rows.rows()))
        except pa.ArrowNotImplementedError:
            # pyarrow cannot gather values of view types.
            pass
    pieces = [column.slice(start, stop - start) for start, stop in rows]
    return pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], column.type)

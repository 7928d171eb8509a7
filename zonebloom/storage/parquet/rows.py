"""Rows of one Parquet fragment, as the dataset's schema names them, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.ranges import RowRanges
from zonebloom.storage.parquet.pagemap import FilePages, FooterPages, read_footer
from zonebloom.storage.parquet.pages import RowGroupReader
from zonebloom.storage.ranges import RangeFile


class ParquetRows:
    """Reads some rows of a fragment.

    Attributes
    ----------
    whole : dict of str to str
        Columns whose chunks were read whole, and why.
    """

    def __init__(
        self,
        file: RangeFile,
        pages: FilePages | None,
        schema: pa.Schema,
        constants: Mapping[str, object],
    ):
        self._file = file
        self._pages = pages or FooterPages(read_footer(file.num_bytes, file.read), file.read)
        self._schema = schema
        self._constants = constants
        self.whole: dict[str, str] = {}
        names = self._pages.schema.names
        self._fields = {name: field for field, name in enumerate(names)}
        if len(self._fields) < len(names):
            raise FragmentUnreadable("it has several columns of one name")

    def row_groups(self, rows: RowRanges) -> Iterator[tuple[int, int, RowRanges]]:
        """The row groups with a wanted row: number, first row, and the rows counted from it."""
        for number, group in enumerate(self._pages.row_groups):
            inside = rows.window(group.first_row, group.first_row + group.num_rows)
            if inside:
                yield number, group.first_row, inside

    def read(self, row_group: int, names: Sequence[str], rows: RowRanges) -> pa.Table:
        """Some columns at some rows of a row group.

        With the dataset's types; a column the file does not have is null.
        """
        pages = self._pages
        reader = RowGroupReader(
            pages.schema,
            pages.row_groups[row_group],
            lambda leaf: pages.pages(row_group, leaf),
            self._file.read,
            self._file.coalesce,
        )
        stored = [
            self._fields[name]
            for name in names
            if name in self._fields and name not in self._constants
        ]
        found = reader.read(stored, rows) if stored else {}
        for field, why in reader.whole.items():
            self.whole[pages.schema.names[field]] = why
        count = len(rows)
        columns = []
        for name in names:
            wanted = self._schema.field(name).type
            if name in self._constants:
                scalar = pa.scalar(self._constants[name], wanted)
                columns.append(pa.chunked_array([pa.repeat(scalar, count)], wanted))
            elif name not in self._fields:
                columns.append(pa.chunked_array([pa.nulls(count, wanted)], wanted))
            else:
                values = found[self._fields[name]]
                columns.append(values if values.type == wanted else _cast(values, wanted, name))
        kept = pa.schema([self._schema.field(name) for name in names])
        return pa.Table.from_arrays(columns, schema=kept)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _cast(values: pa.ChunkedArray, wanted: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        return values.cast(wanted)
    except pa.ArrowException as error:
        raise FragmentUnreadable(f"column {name!r} is no {wanted} in it: {error}") from None

"""Rows of one Parquet fragment, as the dataset's schema names them, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.ranges import RowRanges
from zonebloom.storage.files import reading
from zonebloom.storage.parquet.footer import read_footer
from zonebloom.storage.parquet.layout import FilePages
from zonebloom.storage.parquet.pages import RowGroupReader
from zonebloom.storage.random_access import FragmentFile
from zonebloom.storage.source import dataset_columns, groups_with


class ParquetRows:
    """Reads some rows of a fragment; ``whole`` says which chunks it read whole, and why."""

    def __init__(
        self,
        file: FragmentFile,
        pages: FilePages | None,
        schema: pa.Schema,
        constants: Mapping[str, object],
    ):
        self._file = file
        self._pages = pages or read_footer(file.num_bytes, file.read)
        self._schema = schema
        self._constants = constants
        self.whole: dict[str, str] = {}
        names = self._pages.schema.names
        self._fields = {name: field for field, name in enumerate(names)}
        if len(self._fields) < len(names):
            raise FragmentUnreadable("it has several columns of one name")

    def row_groups(self, rows: RowRanges) -> Iterator[tuple[int, int, RowRanges]]:
        """The row groups with a wanted row: number, first row, and the rows counted from it."""
        return groups_with(rows, (group.num_rows for group in self._pages.row_groups))

    def read(self, row_group: int, names: Sequence[str], rows: RowRanges) -> pa.Table:
        """Some columns at some rows of a row group, with the dataset's types."""
        pages = self._pages
        reader = RowGroupReader(pages, row_group, self._file.read, self._file.coalesce)
        stored = [
            self._fields[name]
            for name in names
            if name in self._fields and name not in self._constants
        ]
        values = reader.read(stored, rows) if stored else {}
        for field, why in reader.whole.items():
            self.whole[pages.schema.names[field]] = why
        columns = {pages.schema.names[field]: column for field, column in values.items()}
        with reading(self._file.path):
            return dataset_columns(self._schema, names, len(rows), self._constants, columns)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

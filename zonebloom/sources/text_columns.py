"""Hash a column of strings by kernels, row group by row group, where they can decode it."""

from __future__ import annotations

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.file_layout import FilePages
from zonebloom.parquet.footer import read_footer
from zonebloom.parquet.leaf_type import BYTE_ARRAY, LeafChunk, LeafType, Undecodable, leaf_at
from zonebloom.parquet.page_headers import walk_pages
from zonebloom.parquet.text_hashes import HashedTexts, hash_texts
from zonebloom.sources.column_batches import Column, Run
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.files import FileIdentity, ReadCounter
from zonebloom.storage.random_access import FragmentFile

# Larger row groups are not hashed at once, because their hashes would take too much memory.
_MAX_ROWS = 4 << 20


class TextColumn:
    """A column of strings of a local Parquet file, whose pages kernels may hash."""

    def __init__(self, file: FragmentFile, pages: FilePages, leaf: LeafType, number: int):
        self._file = file
        self._pages = pages
        self._leaf = leaf
        self._number = number

    @classmethod
    def open(
        cls, source: Source, fragment: Fragment, identity: FileIdentity, column: Column
    ) -> TextColumn | None:
        """Return a column, or None if pyarrow has to read it."""
        has_kernels = source.is_parquet and not source.store.has_round_trips
        if not has_kernels or fragment.view is not None:
            return None
        try:
            file = FragmentFile(source.filesystem, fragment.path, identity, ReadCounter())
        except FragmentUnreadable:
            # PyArrow says what is wrong.
            return None
        try:
            pages = read_footer(file.num_bytes, file.read)
        except FragmentUnreadable:
            # The columns may be encrypted. PyArrow reads the file, or says what is wrong.
            file.close()
            return None
        number, leaf = leaf_at(column.path, pages.schema, source.schema) or (0, None)
        if leaf is None or leaf.physical_type != BYTE_ARRAY:
            file.close()
            return None
        return cls(file, pages, leaf, number)

    def run_of(self, row_group: int) -> Run:
        """Return the run of one row group."""
        group = self._pages.row_groups[row_group]
        return Run(group.first_row, group.num_rows, (row_group,))

    def hash_row_group(self, row_group: int) -> list[HashedTexts] | None:
        """Return the hashes of all rows of a row group, or None if pyarrow has to read them."""
        group = self._pages.row_groups[row_group]
        chunk = group.chunks[self._number]
        if not 0 < group.num_rows <= _MAX_ROWS:
            return None
        try:
            locations = self._pages.locations(row_group, self._number)
            if locations is None:
                locations = walk_pages(self._file.read, chunk, group.num_rows)
            if locations is None:
                return None
            hashed = list(hash_texts(self._file, LeafChunk(self._leaf, chunk, locations)))
        except (FragmentUnreadable, Undecodable):
            # PyArrow reads the row group, or says what is wrong with the file.
            return None
        num_rows = sum(part.hashes.values.size for part in hashed)
        return hashed if num_rows == group.num_rows else None

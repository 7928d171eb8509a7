"""Where the pages of a file lie: from its footer, or from a map kept beside the index.

The map (``pages.arrow``) has a row for each row group, so that a lookup opens no footer:

    fragment_id  uint64
    head         binary, as a dictionary: a FileMetaData without row groups
    first_row, num_rows  int64
    chunks       list<int64>, eight a leaf: physical type, codec, encodings as bits, number
                 of values, start, start of data pages, stop, number of pages
    starts, sizes, first_rows  list<int64>, the page locations of all leaves in turn

A leaf with 0 pages has no known locations: its chunk is read whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa

from zonebloom.errors import CorruptIndex, FragmentUnreadable
from zonebloom.ranges import RowRanges
from zonebloom.storage.parquet.footer import checked_pages, parse_footer, parse_offset_index
from zonebloom.storage.parquet.headers import walk_pages
from zonebloom.storage.parquet.layout import (
    Chunk,
    FileSchema,
    Footer,
    Pages,
    ReadRanges,
    RowGroup,
)
from zonebloom.storage.parquet.synthetic import file_metadata, metadata_ends

SCHEMA = pa.schema(
    [
        pa.field("fragment_id", pa.uint64(), nullable=False),
        pa.field("head", pa.dictionary(pa.int32(), pa.binary()), nullable=False),
        pa.field("first_row", pa.int64(), nullable=False),
        pa.field("num_rows", pa.int64(), nullable=False),
        pa.field("chunks", pa.list_(pa.int64()), nullable=False),
        pa.field("starts", pa.list_(pa.int64()), nullable=False),
        pa.field("sizes", pa.list_(pa.int64()), nullable=False),
        pa.field("first_rows", pa.list_(pa.int64()), nullable=False),
    ]
)
_CHUNK_INTS = 8
# Offset indices of more than this are read one at a time.
_MAX_INDEX_BYTES = 256 << 20


class FilePages:
    """The pages of one file."""

    def __init__(self, schema: FileSchema, row_groups: tuple[RowGroup, ...]):
        self.schema = schema
        self.row_groups = row_groups
        self.num_rows = sum(group.num_rows for group in row_groups)
        self._pages: dict[tuple[int, int], Pages | None] = {}

    def pages(self, row_group: int, leaf: int) -> Pages | None:
        """The pages of a chunk, None when their locations are not known."""
        key = (row_group, leaf)
        if key not in self._pages:
            self._pages[key] = self._locate(row_group, leaf)
        return self._pages[key]

    def part(self, rows: RowRanges, names: frozenset[str] | None) -> FilePages:
        """What reading some rows asks of it, without the rest: small enough to be sent about."""
        groups = []
        part = FilePages(self.schema, ())
        for number, group in enumerate(self.row_groups):
            if not rows.window(group.first_row, group.first_row + group.num_rows):
                groups.append(replace(group, chunks=()))
                continue
            groups.append(group)
            for leaf, located in enumerate(self.schema.leaves):
                wanted = names is None or self.schema.names[located.field] in names
                if wanted and (names is not None or (number, leaf) in self._pages):
                    part._pages[number, leaf] = self.pages(number, leaf)
        part.row_groups, part.num_rows = tuple(groups), self.num_rows
        return part

    def _locate(self, row_group: int, leaf: int) -> Pages | None:
        # Of a part that was asked for more: the chunk is then read whole.
        return None


class FooterPages(FilePages):
    """Pages as the file's own footer and offset indices say."""

    def __init__(self, footer: Footer, read: ReadRanges):
        super().__init__(footer.schema, footer.row_groups)
        self._read = read

    def _locate(self, row_group: int, leaf: int) -> Pages | None:
        group = self.row_groups[row_group]
        chunk = group.chunks[leaf]
        if not chunk.index_bytes or not group.num_rows:
            return None
        (data,) = self._read([(chunk.index_start, chunk.index_start + chunk.index_bytes)])
        return parse_offset_index(data, chunk, group.num_rows)

    def load_all(self) -> None:
        """Find the pages of every chunk at once, as a build does.

        Offset indices lie one after another, so that is one request; a chunk without one is
        walked from page header to page header.
        """
        chunks = [
            (number, leaf, group.num_rows, chunk)
            for number, group in enumerate(self.row_groups)
            for leaf, chunk in enumerate(group.chunks)
            if group.num_rows
        ]
        indices = [
            (c.index_start, c.index_start + c.index_bytes) for *_, c in chunks if c.index_bytes
        ]
        start, stop = min(indices, default=(0, 0))[0], max((end for _, end in indices), default=0)
        data = self._read([(start, stop)])[0] if 0 < stop - start <= _MAX_INDEX_BYTES else None
        for number, leaf, num_rows, chunk in chunks:
            key = number, leaf
            if chunk.index_bytes and data is not None:
                at = chunk.index_start - start
                index = data[at : at + chunk.index_bytes]
                self._pages[key] = parse_offset_index(index, chunk, num_rows)
            elif not chunk.index_bytes:
                try:
                    self._pages[key] = walk_pages(self._read, chunk, num_rows)
                except FragmentUnreadable:
                    # What is wrong with it shows when it is read, as a whole.
                    self._pages[key] = None


def map_rows(fragment_id: int, pages: FilePages) -> list[dict[str, object]]:
    """The rows of the map for one file, one for each row group."""
    head = _file_head(pages.schema)
    rows: list[dict[str, object]] = []
    for number, group in enumerate(pages.row_groups):
        chunks: list[int] = []
        found: list[Pages] = []
        for leaf, chunk in enumerate(group.chunks):
            located = pages.pages(number, leaf)
            if located is not None:
                found.append(located)
            bits = sum(1 << encoding for encoding in set(chunk.encodings))
            chunks += [chunk.physical_type, chunk.codec, bits, chunk.num_values, chunk.start]
            chunks += [chunk.data_start, chunk.stop, 0 if located is None else located.starts.size]
        rows.append(
            {
                "fragment_id": fragment_id,
                "head": head,
                "first_row": group.first_row,
                "num_rows": group.num_rows,
                "chunks": chunks,
                "starts": _joined(each.starts for each in found),
                "sizes": _joined(each.sizes for each in found),
                "first_rows": _joined(each.first_rows[:-1] for each in found),
            }
        )
    return rows


def _joined(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=np.int64), *arrays])


def page_map_file(rows: Sequence[dict[str, object]]) -> pa.Buffer:
    """The bytes of ``pages.arrow``."""
    return _written(pa.Table.from_pylist(rows, schema=SCHEMA))


def merged_page_map(tables: Sequence[pa.Table]) -> pa.Buffer:
    """The bytes of one ``pages.arrow`` with the rows of several."""
    return _written(pa.concat_tables(tables).unify_dictionaries().combine_chunks())


def _written(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_table(table)
    return sink.getvalue()


class PageMap:
    """The map of a segment's fragments, over the bytes of its file; ``table`` is of `SCHEMA`."""

    def __init__(self, buffer: pa.Buffer, where: str):
        try:
            reader = pa.ipc.open_file(buffer)
            if not reader.schema.equals(SCHEMA):
                raise ValueError("it has other columns")
            self.table = reader.read_all()
            if self.table["fragment_id"].num_chunks > 1:
                raise ValueError("it has several batches")
            self.table.validate(full=True)
            ids = self.table["fragment_id"].to_numpy()
        except (pa.ArrowException, ValueError, OSError) as error:
            raise CorruptIndex(f"{where} is not a page map ({error})") from None
        self._where = where
        self._rows: dict[int, list[int]] = {}
        for row, fragment_id in enumerate(ids.tolist()):
            self._rows.setdefault(fragment_id, []).append(row)
        self._files: dict[tuple[int, int], FilePages] = {}

    def file(self, fragment_id: int, file_bytes: int) -> FilePages | None:
        """The pages of one fragment's file, None when the map does not have it."""
        key = (fragment_id, file_bytes)
        if fragment_id in self._rows and key not in self._files:
            try:
                self._files[key] = _MappedPages(self.table, self._rows[fragment_id], file_bytes)
            except (ValueError, IndexError, FragmentUnreadable) as error:
                raise CorruptIndex(f"{self._where} does not hold ({error})") from None
        return self._files.get(key)


class _MappedPages(FilePages):
    """Pages as the map says."""

    def __init__(self, table: pa.Table, rows: list[int], file_bytes: int):
        schema = _parsed_head(table["head"][rows[0]].as_py())
        groups, self._located = [], []
        first_row = 0
        for row in rows:
            num_rows = table["num_rows"][row].as_py()
            ints = _numbers(table, "chunks", row)
            if table["first_row"][row].as_py() != first_row or num_rows < 0:
                raise ValueError("its row groups do not follow one another")
            if ints.size != _CHUNK_INTS * len(schema.leaves):
                raise ValueError("its chunks are not those of its schema")
            described = ints.reshape(-1, _CHUNK_INTS)
            groups.append(RowGroup(first_row, num_rows, _chunks(described, file_bytes)))
            self._located.append((table, row, described[:, 7]))
            first_row += num_rows
        super().__init__(schema, tuple(groups))

    def _locate(self, row_group: int, leaf: int) -> Pages | None:
        table, row, counts = self._located[row_group]
        count = int(counts[leaf])
        if not count:
            return None
        first = int(counts[:leaf].sum())
        part = slice(first, first + count)
        group = self.row_groups[row_group]
        starts, sizes = (_numbers(table, name, row)[part] for name in ("starts", "sizes"))
        first_rows = np.append(_numbers(table, "first_rows", row)[part], group.num_rows)
        return checked_pages(starts, sizes, first_rows, group.chunks[leaf])


def _numbers(table: pa.Table, name: str, row: int) -> np.ndarray:
    lists = table[name].chunk(0)
    offsets = np.frombuffer(lists.buffers()[1], dtype=np.int32)[lists.offset + row :]
    return lists.values.to_numpy()[offsets[0] : offsets[1]]


def _chunks(described: np.ndarray, file_bytes: int) -> tuple[Chunk, ...]:
    chunks = []
    for kind, codec, bits, num_values, start, data_start, stop, _ in described.tolist():
        if not (0 <= start <= data_start <= stop <= file_bytes and num_values >= 0):
            raise ValueError("a column chunk lies outside the file")
        encodings = tuple(i for i in range(bits.bit_length()) if bits >> i & 1)
        chunks.append(Chunk(kind, codec, encodings, num_values, start, stop, data_start, 0, 0))
    return tuple(chunks)


@lru_cache(maxsize=64)
def _parsed_head(head: bytes) -> FileSchema:
    """The schema of a head; files of one writer share one, and what is cached by it."""
    return parse_footer(head, 0).schema


def _file_head(schema: FileSchema) -> bytes:
    """A FileMetaData with this schema and no row groups."""
    return file_metadata(*metadata_ends(schema, schema.elements, schema.arrow_schema), 0, [])

"""Read and write page maps, which store in the index where the pages of files lie.

A page map (``pages.arrow``) has a row for each row group, so that a lookup reads no footer:

    fragment_id  uint64
    head         binary, as a dictionary: a FileMetaData without row groups
    first_row, num_rows  int64
    chunks       list<int64>, eight for each leaf: physical type, codec, encodings as bits, number
                 of values, start, start of data pages, stop, number of pages (0 if unknown)
    starts, sizes, first_rows  list<int64>, the page locations of all leaves, leaf after leaf
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from zonebloom.base.arrays import to_numpy
from zonebloom.base.version import require_known_format, with_format_version
from zonebloom.errors import CorruptIndex, FragmentUnreadable
from zonebloom.parquet.file_head import encode_head
from zonebloom.parquet.file_layout import (
    ColumnChunk,
    FilePages,
    FileSchema,
    PageLocations,
    RowGroup,
)
from zonebloom.parquet.footer import checked_locations, parse_footer
from zonebloom.storage.ipc_layout import open_uncompressed

PAGE_MAP_SCHEMA = pa.schema(
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
# The integers of each column chunk in ``chunks``. `PageMapBuilder` has their order.
_CHUNK_INTS = 8


class PageMapBuilder:
    """Builder of a page map from the pages of files. It collects the columns of the rows."""

    def __init__(self) -> None:
        self._heads: dict[bytes, int] = {}
        # Fragment id, number of the head, first row, number of rows, number of integers of the
        # chunks, and number of pages of each row group.
        self._row_groups: list[tuple[int, int, int, int, int, int]] = []
        self._chunks: list[np.ndarray] = []
        # The starts, sizes and first rows of the pages of each chunk.
        self._pages: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, fragment_id: int, file_pages: FilePages) -> None:
        """Add the row groups of a file."""
        head = self._head_number(file_pages.schema)
        for number, group in enumerate(file_pages.row_groups):
            chunks: list[tuple[int, ...]] = []
            total_pages = 0
            for leaf, chunk in enumerate(group.chunks):
                num_pages = 0
                locations = file_pages.locations(number, leaf)
                if locations is not None:
                    first_rows = locations.first_rows[:-1]
                    self._pages.append((locations.starts, locations.sizes, first_rows))
                    num_pages = locations.starts.size
                total_pages += num_pages
                bits = sum(1 << encoding for encoding in set(chunk.encodings))
                values = chunk.physical_type, chunk.codec, bits, chunk.num_values
                chunks.append((*values, chunk.start, chunk.data_start, chunk.stop, num_pages))
            self._chunks.append(np.array(chunks, dtype=np.int64).reshape(-1))
            size = _CHUNK_INTS * len(chunks)
            self._row_groups.append(
                (fragment_id, head, group.first_row, group.num_rows, size, total_pages)
            )

    def _head_number(self, schema: FileSchema) -> int:
        return self._heads.setdefault(_encoded_head(schema), len(self._heads))

    def encode(self) -> pa.Buffer:
        """Return the bytes of ``pages.arrow``."""
        row_groups = np.array(self._row_groups, dtype=np.int64).reshape(-1, 6)
        ids, heads, first_rows, num_rows, num_integers, num_pages = row_groups.T
        dictionary = pa.array(list(self._heads), pa.binary())
        no_pages = (np.empty(0, dtype=np.int64),) * 3
        pages = map(np.concatenate, zip(no_pages, *self._pages, strict=True))
        columns = [
            pa.array(ids.astype(np.uint64)),
            pa.DictionaryArray.from_arrays(pa.array(heads.astype(np.int32)), dictionary),
            pa.array(first_rows),
            pa.array(num_rows),
            _lists_of(num_integers, np.concatenate([np.empty(0, np.int64), *self._chunks])),
            *(_lists_of(num_pages, values) for values in pages),
        ]
        return _encode_table(pa.Table.from_arrays(columns, schema=PAGE_MAP_SCHEMA))


@lru_cache(maxsize=64)
def _encoded_head(schema: FileSchema) -> bytes:
    return encode_head(schema)


def _lists_of(lengths: np.ndarray, values: np.ndarray) -> pa.Array:
    offsets = np.zeros(lengths.size + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def merge_page_maps(tables: Sequence[pa.Table]) -> pa.Buffer:
    """Return the bytes of one ``pages.arrow`` with the rows of several."""
    return _encode_table(pa.concat_tables(tables).unify_dictionaries().combine_chunks())


def _encode_table(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, with_format_version(PAGE_MAP_SCHEMA)) as writer:
        writer.write_table(table.cast(with_format_version(PAGE_MAP_SCHEMA)))
    return sink.getvalue()


class PageMap:
    """The page map of a segment's fragments. ``table`` has the schema `PAGE_MAP_SCHEMA`."""

    def __init__(self, buffer: pa.Buffer, where: str):
        try:
            reader = open_uncompressed(buffer)
            require_known_format(reader.schema)
            if not reader.schema.equals(PAGE_MAP_SCHEMA):
                raise ValueError("it has other columns")
            self.table = reader.read_all()
            if self.table["fragment_id"].num_chunks > 1:
                raise ValueError("it has several batches")
            self.table.validate(full=True)
            ids = to_numpy(self.table["fragment_id"])
        except (pa.ArrowException, ValueError, OSError) as error:
            raise CorruptIndex(f"{where} is not a page map ({error})") from None
        self._where = where
        self._rows: dict[int, list[int]] = {}
        for row, fragment_id in enumerate(ids.tolist()):
            self._rows.setdefault(fragment_id, []).append(row)
        self._files: dict[tuple[int, int], FilePages] = {}

    def file_pages(self, fragment_id: int, file_bytes: int, num_rows: int) -> FilePages | None:
        """Return the pages of a fragment, or None if the map does not have it."""
        key = (fragment_id, file_bytes)
        if fragment_id in self._rows and key not in self._files:
            try:
                pages = _decode_pages(self.table, self._rows[fragment_id], file_bytes)
                if pages.num_rows != num_rows:
                    raise ValueError(f"it has {pages.num_rows:,} of {num_rows:,} rows")
                self._files[key] = pages
            except (ValueError, IndexError, FragmentUnreadable) as error:
                raise CorruptIndex(f"{self._where} does not hold ({error})") from None
        return self._files.get(key)


def _decode_pages(table: pa.Table, rows: list[int], file_bytes: int) -> FilePages:
    """Return the pages of a file from its rows in a page map."""
    schema = _parsed_head(table["head"][rows[0]].as_py())
    lists = {name: _lists(table, name) for name in ("chunks", "starts", "sizes", "first_rows")}
    groups, counts, ends = [], [], []
    first_row = 0
    for row in rows:
        num_rows = table["num_rows"][row].as_py()
        ints = _numbers(lists["chunks"], row)
        if table["first_row"][row].as_py() != first_row or num_rows < 0:
            raise ValueError("its row groups do not follow one another")
        if ints.size != _CHUNK_INTS * len(schema.leaves):
            raise ValueError("its chunks are not those of its schema")
        chunk_ints = ints.reshape(-1, _CHUNK_INTS)
        groups.append(RowGroup(first_row, num_rows, _decode_chunks(chunk_ints, file_bytes)))
        counts.append(chunk_ints[:, 7])
        ends.append(np.cumsum(chunk_ints[:, 7]))
        first_row += num_rows

    def locate(row_group: int, leaf: int) -> PageLocations | None:
        count, row = int(counts[row_group][leaf]), rows[row_group]
        if not count:
            return None
        first = int(ends[row_group][leaf]) - count
        starts, sizes, first_rows = (
            _numbers(lists[name], row)[first : first + count]
            for name in ("starts", "sizes", "first_rows")
        )
        group = groups[row_group]
        return checked_locations(
            starts, sizes, np.append(first_rows, group.num_rows), group.chunks[leaf]
        )

    return FilePages(schema, tuple(groups), locate)


def _lists(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets and the values of a column of lists."""
    lists = table[name].chunk(0)
    offsets = np.frombuffer(lists.buffers()[1], dtype=np.int32)[lists.offset :]
    return offsets, to_numpy(lists.values)


def _numbers(lists: tuple[np.ndarray, np.ndarray], row: int) -> np.ndarray:
    offsets, values = lists
    return values[offsets[row] : offsets[row + 1]]


def _decode_chunks(chunk_ints: np.ndarray, file_bytes: int) -> tuple[ColumnChunk, ...]:
    chunks = []
    for kind, codec, bits, num_values, start, data_start, stop, _ in chunk_ints.tolist():
        if not (0 <= start <= data_start <= stop <= file_bytes and num_values >= 0):
            raise ValueError("a column chunk lies outside the file")
        encodings = tuple(i for i in range(bits.bit_length()) if bits >> i & 1)
        chunks.append(
            ColumnChunk(kind, codec, encodings, num_values, start, stop, data_start, 0, 0)
        )
    return tuple(chunks)


@lru_cache(maxsize=64)
def _parsed_head(head: bytes) -> FileSchema:
    """Return the schema of a head. Files of one writer share the object and its cached results."""
    return parse_footer(head, 0).schema

"""Parse Parquet footers: the schema, and where row groups, column chunks and pages lie.

    | PAR1 | column chunks ... | page indices | FileMetaData | its length, 4 bytes | PAR1 |

Only the fields of parquet.thrift that page reads need are parsed. Others are copied as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.file_layout import (
    PARQUET_MAGIC,
    ColumnChunk,
    FilePages,
    FileSchema,
    PageLocations,
    ReadRanges,
    RowGroup,
    SchemaLeaf,
)
from zonebloom.parquet.page_headers import walk_pages
from zonebloom.parquet.thrift import STOP, STRUCT, Struct, ThriftReader

ENCRYPTED_MAGIC = b"PARE"
TAIL_BYTES = 8
# The first read from the end of a file has this size, because most footers fit in it.
FIRST_READ_BYTES = 64 << 10
# Offset indices that take more bytes than this together are read one by one.
_MAX_INDEX_BYTES = 256 << 20

_MAX_ROWS = 1 << 40
_MAX_INTEGER = (1 << 63) - 1
_MAX_DEPTH = 100
# The greatest Type of parquet.thrift, and the greatest encoding or codec that may be added later.
_MAX_TYPE = 7
_MAX_ENCODING = 31
# Shorter offset indices, of a few pages, are parsed as other structures are, which is faster.
_MIN_ARRAY_BYTES = 64
# Bytes of an OffsetIndex: the header of its first field, which is a list; the size field of a list
# whose size follows as a varint; and a PageLocation, with 0 in place of each value.
_FIRST_LIST, _LONG_LIST = 0x19, 15
_LOCATION = np.array([0x16, 0, 0x15, 0, 0x16, 0, STOP])
# Exceptions that reading a structure of the wrong shape raises.
PARSE_ERRORS = (KeyError, TypeError, ValueError, IndexError, AttributeError)

# A function that returns the chunks of a row group, given its structure, its number and the leaves.
ChunksOf: TypeAlias = Callable[[Struct, int, tuple[SchemaLeaf, ...]], Sequence[ColumnChunk]]


def footer_length(tail: bytes, file_bytes: int, magics: Sequence[bytes] = (PARQUET_MAGIC,)) -> int:
    """Return the length of the FileMetaData. ``tail`` is the last 8 bytes of the file."""
    if tail[4:] == ENCRYPTED_MAGIC and ENCRYPTED_MAGIC not in magics:
        raise FragmentUnreadable("its footer is encrypted, and parquet_keys is not given")
    if len(tail) != TAIL_BYTES or tail[4:] not in magics:
        raise FragmentUnreadable("it does not end as a Parquet file does")
    length = int.from_bytes(tail[:4], "little")
    if length > file_bytes - TAIL_BYTES - len(PARQUET_MAGIC):
        raise FragmentUnreadable(f"its footer claims {length} bytes, more than the file has")
    return length


def parse_footer(data: bytes, file_bytes: int, chunks_of: ChunksOf | None = None) -> FilePages:
    """Return the row groups of a file. If columns are encrypted, ``chunks_of`` parses chunks."""
    try:
        metadata = ThriftReader(data).read_struct()
        schema = _schema(data, metadata)
        groups = []
        first_row = 0
        for number, raw in enumerate(metadata[4]):
            if len(raw[1]) != len(schema.leaves):
                raise ValueError("a row group has other columns than the schema")
            if chunks_of is None:
                leaves = zip(raw[1], schema.leaves, strict=True)
                chunks = tuple(_plain_chunk(chunk, leaf, file_bytes) for chunk, leaf in leaves)
            else:
                chunks = chunks_of(raw, number, schema.leaves)
            group = RowGroup(first_row, _integer(raw, 3, _MAX_ROWS), chunks)
            groups.append(group)
            first_row += group.num_rows
        claimed = _integer(metadata, 3)
    except PARSE_ERRORS as error:
        raise FragmentUnreadable(f"its footer is malformed ({error!r})") from None
    if first_row != claimed:
        raise FragmentUnreadable(f"its row groups have {first_row} rows, but it claims {claimed}")
    return FilePages(schema, tuple(groups))


def read_footer(
    file_bytes: int, read: ReadRanges, *, with_pages: bool = False, with_headers: bool = False
) -> FilePages:
    """Read the footer of a file, and its page locations.

    Locations come from the offset indices, and for chunks without one from the page headers if
    ``with_headers``. They are read at first use, or all at once, with headers, if ``with_pages``.
    """
    footer = parse_footer(read_footer_bytes(file_bytes, read)[0], file_bytes)
    chunks = [chunk for group in footer.row_groups for chunk in group.chunks if chunk.index_bytes]
    first = min((chunk.index_start for chunk in chunks), default=0)
    end = max((chunk.index_start + chunk.index_bytes for chunk in chunks), default=0)
    reads_all = with_pages and 0 < end - first <= _MAX_INDEX_BYTES
    indices = read([(first, end)])[0] if reads_all else b""

    def locate(row_group: int, leaf: int) -> PageLocations | None:
        group = footer.row_groups[row_group]
        chunk = group.chunks[leaf]
        start, stop = chunk.index_start, chunk.index_start + chunk.index_bytes
        if not group.num_rows or not (chunk.index_bytes or with_pages or with_headers):
            return None
        if chunk.index_bytes:
            data = indices[start - first : stop - first] if reads_all else read([(start, stop)])[0]
            return parse_offset_index(data, chunk, group.num_rows)
        try:
            return walk_pages(read, chunk, group.num_rows)
        except FragmentUnreadable:
            # A damaged chunk is not located. The error is raised when it is read as a whole.
            return None

    pages = FilePages(footer.schema, footer.row_groups, locate)
    if with_pages:
        for row_group, group in enumerate(pages.row_groups):
            for leaf in range(len(group.chunks)):
                pages.locations(row_group, leaf)
    return pages


def reader_of_bytes(data: pa.Buffer) -> ReadRanges:
    """Return a function that reads ranges of a file whose bytes are in memory."""
    view = memoryview(data).cast("B")
    return lambda ranges: [bytes(view[start:stop]) for start, stop in ranges]


def is_encrypted(file_bytes: int, read: ReadRanges) -> bool:
    """Return whether columns of a file are encrypted."""
    (tail,) = read([(max(0, file_bytes - TAIL_BYTES), file_bytes)])
    # FileMetaData has this field if columns are encrypted and the footer is not.
    encryption_algorithm = 8
    return (
        tail.endswith(ENCRYPTED_MAGIC)
        or encryption_algorithm
        in ThriftReader(read_footer_bytes(file_bytes, read)[0]).read_struct()
    )


def read_footer_bytes(
    file_bytes: int, read: ReadRanges, magics: Sequence[bytes] = (PARQUET_MAGIC,)
) -> tuple[bytes, bytes]:
    """Return the FileMetaData of a file and the 8 bytes after it.

    This takes one request, or two if the FileMetaData is large.
    """
    if file_bytes < TAIL_BYTES:
        raise FragmentUnreadable(f"it has {file_bytes} bytes: it is not a Parquet file")
    first = max(0, file_bytes - FIRST_READ_BYTES)
    (end,) = read([(first, file_bytes)])
    tail = end[-TAIL_BYTES:]
    start = file_bytes - TAIL_BYTES - footer_length(tail, file_bytes, magics)
    if start < first:
        end = read([(start, first)])[0] + end
        first = start
    return end[start - first : -TAIL_BYTES], tail


def _integer(raw: Struct, field: int, high: int = _MAX_INTEGER, default: int | None = None) -> int:
    """Return a field that is an integer from 0 to ``high``, or raise `ValueError`."""
    value: Any = raw.get(field, default)
    if type(value) is not int or not 0 <= value <= high:
        raise ValueError(f"field {field} is {value!r:.40}")
    return value


def _schema(data: bytes, metadata: Struct) -> FileSchema:
    elements = tuple(data[element.start : element.stop] for element in metadata[2])
    arrow_schema = None
    for entry in metadata.get(5, ()):
        if entry[1] == b"ARROW:schema":
            arrow_schema = entry.get(2)
    created_by = metadata.get(6)
    if not isinstance(arrow_schema, bytes | None) or not isinstance(created_by, bytes | None):
        raise ValueError("metadata is not text")
    return _schema_of(elements, arrow_schema, _integer(metadata, 1, 1 << 31), created_by)


@lru_cache(maxsize=64)
def _schema_of(
    elements: tuple[bytes, ...], arrow_schema: bytes | None, version: int, created_by: bytes | None
) -> FileSchema:
    """Return a schema. Files of one writer share the object and its cached results."""
    raw = [ThriftReader(element).read_struct() for element in elements]
    fields: list[tuple[int, int]] = []
    leaves: list[SchemaLeaf] = []
    field_leaves: list[range] = []
    names: list[str] = []

    def walk(
        number: int, path: tuple[str, ...], field: int, depth: int, *, is_repeated: bool
    ) -> int:
        """Add the leaves below an element. Return the number of the element after them."""
        if depth > _MAX_DEPTH:
            raise ValueError("the schema is nested too deep")
        element = raw[number]
        path = (*path, element[4].decode())
        is_repeated = is_repeated or element.get(3) == 2
        num_children = _integer(element, 5, len(raw), default=0)
        if not num_children and 1 in element:
            leaves.append(SchemaLeaf(path, field, _integer(element, 1, _MAX_TYPE), is_repeated))
        stop = number + 1
        for _ in range(num_children):
            stop = walk(stop, path, field, depth + 1, is_repeated=is_repeated)
        return stop

    start = 1
    for field in range(_integer(raw[0], 5, len(raw), default=0)):
        names.append(raw[start][4].decode())
        first_leaf = len(leaves)
        stop = walk(start, (), field, 0, is_repeated=False)
        fields.append((start, stop))
        field_leaves.append(range(first_leaf, len(leaves)))
        start = stop
    if start != len(raw):
        raise ValueError("the schema has elements outside its tree")
    return FileSchema(
        elements,
        tuple(fields),
        tuple(names),
        tuple(leaves),
        tuple(field_leaves),
        arrow_schema,
        version,
        created_by,
    )


def _plain_chunk(raw: Struct, leaf: SchemaLeaf, file_bytes: int) -> ColumnChunk:
    if 8 in raw or 9 in raw or 3 not in raw:
        raise FragmentUnreadable("its columns are encrypted, and parquet_keys is not given")
    return parse_chunk(raw, raw[3], leaf, file_bytes)


def parse_chunk(raw: Struct, metadata: Struct, leaf: SchemaLeaf, file_bytes: int) -> ColumnChunk:
    """Return the chunk that a ColumnChunk and its ColumnMetaData describe."""
    if raw.get(1):
        raise FragmentUnreadable("its columns lie in another file")
    if _integer(metadata, 1, _MAX_TYPE) != leaf.physical_type:
        raise ValueError(f"a chunk of {'.'.join(leaf.path)} is not of the schema's type")
    encodings = metadata[2]
    if not all(type(number) is int and 0 <= number <= _MAX_ENCODING for number in encodings):
        raise ValueError("there is no such encoding")
    num_values = _integer(metadata, 5)
    if num_values:
        data_start = _integer(metadata, 9)
        # Ignore the offset of a dictionary that is not before the data, as pyarrow does.
        dictionary = _integer(metadata, 11, default=0)
        start = dictionary if 0 < dictionary < data_start else data_start
        stop = start + _integer(metadata, 7)
    else:
        # An empty chunk has no bytes, and writers differ in the offsets that they store for it.
        start = data_start = stop = len(PARQUET_MAGIC)
    if not len(PARQUET_MAGIC) <= start <= data_start <= stop <= max(file_bytes, len(PARQUET_MAGIC)):
        raise ValueError("a column chunk lies outside the file")
    index_bytes = _integer(raw, 5, default=0)
    index_start = _integer(raw, 4, default=0)
    if index_bytes and not 0 < index_start <= index_start + index_bytes <= file_bytes:
        raise ValueError("an offset index lies outside the file")
    return ColumnChunk(
        leaf.physical_type,
        _integer(metadata, 4, _MAX_ENCODING),
        tuple(encodings),
        num_values,
        start,
        stop,
        data_start,
        index_start,
        index_bytes,
    )


def parse_offset_index(data: bytes, chunk: ColumnChunk, num_rows: int) -> PageLocations:
    """Return the page locations of an OffsetIndex.

    All bytes after its first field header are varints, so those of many pages are decoded by array
    operations.
    """
    try:
        if len(data) < _MIN_ARRAY_BYTES:
            raw = ThriftReader(data).read_struct()[1]
            ints = [[_integer(page, field) for page in raw] for field in (1, 2, 3)]
            starts, sizes, first_rows = (np.array(column, dtype=np.int64) for column in ints)
            return checked_locations(starts, sizes, np.append(first_rows, num_rows), chunk)
        body = np.frombuffer(data, dtype=np.uint8, offset=2)
        ends = np.flatnonzero(body < 0x80) + 1
        starts = np.append(0, ends[:-1])
        lengths = ends - starts
        digit_numbers = np.arange(ends[-1]) - np.repeat(starts, lengths)
        digits = (body[: digit_numbers.size] & 0x7F).astype(np.int64)
        numbers = np.add.reduceat(digits << 7 * digit_numbers, starts)
        count = data[1] >> 4
        if count == _LONG_LIST:
            count, numbers, lengths = int(numbers[0]), numbers[1:], lengths[1:]
        size = count * len(_LOCATION)
        locations = numbers[:size].reshape(count, len(_LOCATION))
        is_list = data[0] == _FIRST_LIST and data[1] & 0x0F == STRUCT
        if (
            not is_list
            or lengths[:size].max() > 9
            or (locations[:, ::2] != _LOCATION[::2]).any()
            or (locations[:, 1::2] & 1).any()
        ):
            raise ValueError("it is laid out in another way")
    except PARSE_ERRORS as error:
        raise FragmentUnreadable(f"an offset index is malformed ({error!r})") from None
    starts, sizes, first_rows = (locations[:, 1::2] >> 1).T
    return checked_locations(starts, sizes, np.append(first_rows, num_rows), chunk)


def checked_locations(
    starts: np.ndarray, sizes: np.ndarray, first_rows: np.ndarray, chunk: ColumnChunk
) -> PageLocations:
    """Return page locations, or raise `FragmentUnreadable` if they are impossible.

    Pages must be in order and inside their chunk, and must not overlap.
    """
    is_valid = (
        starts.size > 0
        and starts.size == sizes.size == first_rows.size - 1
        and starts[0] >= chunk.data_start
        and first_rows[0] == 0
        # pyarrow sometimes writes pages without rows.
        and bool((first_rows[1:] >= first_rows[:-1]).all())
        and bool((sizes > 0).all())
        # Compare differences, because a sum could overflow.
        and bool((sizes[:-1] <= starts[1:] - starts[:-1]).all())
        and starts[-1] <= chunk.stop
        and sizes[-1] <= chunk.stop - starts[-1]
    )
    if not is_valid:
        raise FragmentUnreadable("an offset index does not hold for its column chunk")
    return PageLocations(starts, sizes, first_rows)

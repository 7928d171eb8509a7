"""Read the least and greatest values of the pages of a Parquet file.

    | column chunks ... | ColumnIndex of each chunk | OffsetIndex of each chunk | footer |

The bounds of pages are in the ColumnIndex. A chunk without one counts as one page, with the
Statistics in the footer. Bounds are used only of flat columns whose order is the one that Parquet
defines for their type. They are not used of decimals: some old writers ordered these by their
bytes, and do not say so.
https://github.com/apache/parquet-format/blob/master/PageIndex.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.parquet.file_layout import ColumnChunk, ReadRanges
from zonebloom.parquet.footer import (
    PARQUET_MAGIC,
    PARSE_ERRORS,
    parse_footer,
    parse_offset_index,
    read_footer_bytes,
)
from zonebloom.parquet.physical_values import PhysicalLeaf, physical_leaves
from zonebloom.parquet.thrift import Struct, ThriftReader

# Exceptions that statistics of a wrong shape raise.
STATISTICS_ERRORS = (*PARSE_ERRORS, pa.ArrowException, OverflowError)
# Parsing a footer of this size takes about 50 ms. One of more than this share of its file takes
# longer than reading the file.
_MAX_FOOTER_BYTES, _MAX_FOOTER_SHARE = 1 << 16, 1 / 128
# Numbers of the fields of structures in parquet.thrift.
_ROW_GROUPS, _COLUMN_ORDERS, _TYPE_DEFINED_ORDER = 4, 7, 1
_CHUNKS, _CHUNK_METADATA, _INDEX_START, _INDEX_BYTES = 1, 3, 6, 7
_STATISTICS, _NULL_COUNT, _MAX_VALUE, _MIN_VALUE = 12, 3, 5, 6
_NULL_PAGES, _MIN_VALUES, _MAX_VALUES, _NULL_COUNTS = 1, 2, 3, 5


class PageBounds(NamedTuple):
    """The bounds of the values of successive pages of one column.

    Attributes
    ----------
    first_rows : int64 array, shape ``(pages + 1,)``
        The first row of each page in the file, and the number of rows of the file.
    least, greatest : pyarrow.Array
        The bounds, of the type as which PyArrow reads the column. Null if they are not known.
    null_counts : int64 array, shape ``(pages,)``
        The number of nulls, or -1 if it is not known.
    """

    first_rows: np.ndarray
    least: pa.Array
    greatest: pa.Array
    null_counts: np.ndarray


class _Page(NamedTuple):
    """The first row of a page in its row group, its encoded bounds, and its number of nulls."""

    first_row: int
    least: bytes | None
    greatest: bytes | None
    null_count: int


class PageStatistics:
    """The page statistics of one Parquet file.

    Raise `FragmentUnreadable` or one of `STATISTICS_ERRORS` if the footer cannot be used.
    """

    def __init__(self, file_bytes: int, read: ReadRanges):
        import pyarrow.parquet as pq

        footer, tail = read_footer_bytes(file_bytes, read)
        if len(footer) > max(_MAX_FOOTER_BYTES, _MAX_FOOTER_SHARE * file_bytes):
            raise ValueError("its footer takes too long to parse")
        self._groups = parse_footer(footer, file_bytes).row_groups
        metadata = ThriftReader(footer).read_struct()
        self._chunks: list[list[Struct]] = [group[_CHUNKS] for group in metadata[_ROW_GROUPS]]
        self._orders: list[Struct] = metadata.get(_COLUMN_ORDERS, [])
        # PyArrow reads only the schema: its statistics end the process if a size is wrong.
        whole = pa.BufferReader(PARQUET_MAGIC + footer + tail)
        leaves = physical_leaves(pq.ParquetFile(whole).metadata)
        counts = Counter(leaf.path for leaf in leaves)
        self._leaves = {leaf.path: leaf for leaf in leaves if counts[leaf.path] == 1}

    def bounds(self, name: str, read: ReadRanges) -> PageBounds | None:
        """Return the bounds of a top-level column, or None if they cannot be trusted."""
        leaf = self._leaves.get((name,))
        if leaf is None or leaf.arrow_type is None or not self._has_known_order(leaf):
            return None
        pages = [
            page._replace(first_row=group.first_row + page.first_row)
            for number, group in enumerate(self._groups)
            if group.num_rows
            for page in self._pages(self._chunks[number][leaf.number], number, leaf.number, read)
        ]
        if not pages:
            return None
        first_rows, least, greatest, null_counts = zip(*pages, strict=True)
        least, greatest = _decode(leaf, least), _decode(leaf, greatest)
        is_reversed: Any = pc.call_function("greater", [least, greatest])
        if pc.call_function("any", [is_reversed]).as_py():
            raise ValueError("the least value of a page is greater than the greatest")
        end = self._groups[-1].first_row + self._groups[-1].num_rows
        first_rows = np.array([*first_rows, end], dtype=np.int64)
        return PageBounds(first_rows, least, greatest, np.array(null_counts, dtype=np.int64))

    def _has_known_order(self, leaf: PhysicalLeaf) -> bool:
        stored = leaf.stored_type
        if stored is None or pt.is_decimal(stored) or stored == pa.float16():
            return False
        has_orders = len(self._orders) > leaf.number
        return has_orders and _TYPE_DEFINED_ORDER in self._orders[leaf.number]

    def _pages(self, raw: Struct, group: int, leaf: int, read: ReadRanges) -> Iterator[_Page]:
        """Yield the pages of a chunk, or one page for the whole chunk if it has no index."""
        chunk: ColumnChunk = self._groups[group].chunks[leaf]
        if not (raw.get(_INDEX_BYTES) and chunk.index_bytes):
            statistics = raw[_CHUNK_METADATA].get(_STATISTICS, {})
            bounds = statistics.get(_MIN_VALUE), statistics.get(_MAX_VALUE)
            yield _Page(0, *bounds, statistics.get(_NULL_COUNT, -1))
            return
        start, stop = raw[_INDEX_START], raw[_INDEX_START] + raw[_INDEX_BYTES]
        places = (start, stop), (chunk.index_start, chunk.index_start + chunk.index_bytes)
        data, offsets = read(places)
        num_rows = self._groups[group].num_rows
        first_rows = parse_offset_index(offsets, chunk, num_rows).first_rows[:-1].tolist()
        index = ThriftReader(data).read_struct()
        null_counts = index.get(_NULL_COUNTS, [-1] * len(first_rows))
        columns = index[_NULL_PAGES], index[_MIN_VALUES], index[_MAX_VALUES], null_counts
        for first_row, has_no_value, least, greatest, nulls in zip(
            first_rows, *columns, strict=True
        ):
            bounds = (None, None) if has_no_value else (least, greatest)
            yield _Page(first_row, *bounds, nulls)


def _decode(leaf: PhysicalLeaf, values: Sequence[bytes | None]) -> Any:
    """Return encoded bounds as an array. Raise `pa.ArrowException` if a size is wrong."""
    stored: Any = leaf.stored_type
    if pt.is_string(stored) or pt.is_binary(stored):
        return pa.array(values, pa.binary()).cast(stored).cast(leaf.arrow_type)
    bounds: Any = pa.array(values, pa.binary(stored.byte_width)).view(stored)
    if pt.is_floating(stored):
        is_number = pc.call_function("invert", [pc.call_function("is_nan", [bounds])])
        bounds = pc.call_function("if_else", [is_number, bounds, pa.scalar(None, stored)])
    return bounds.cast(leaf.arrow_type)

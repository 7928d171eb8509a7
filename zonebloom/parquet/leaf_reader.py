"""Read leaves of one row group with kernels: find the rows of keys, and take values at rows.

    PageTable    where the pages of some leaves lie; never changes, so all reads share it
    OpenedPages  some of these pages in memory: decompressed, with their definition levels

The values of pages are dictionary indices or PLAIN values. Other encodings are converted to PLAIN.
Kernels search these bytes for keys, and take only the values of the wanted rows. Pages that the
kernels cannot decode raise `Undecodable`, and pyarrow decodes them.

Source: Encodings.md and README.md (data pages) of the Parquet format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import header_kernels, row_kernels, value_kernels
from zonebloom.parquet.codecs import decompressor, error_for_code, verify_checksum
from zonebloom.parquet.dictionaries import DICTIONARY_CACHE, Dictionary
from zonebloom.parquet.header_kernels import (
    BODY_ADDRESS,
    BODY_SIZE,
    ENCODING,
    FILE_START,
    FIRST_POSITION,
    FIRST_ROW,
    HAS_CHECKSUM,
    HAS_INDICES,
    HAS_OTHER_ENCODINGS,
    HAS_PLAIN,
    NUM_BYTES,
    NUM_ROWS,
    NUM_STORED,
    READ_START,
)
from zonebloom.parquet.key_tests import KeySet
from zonebloom.parquet.leaf_type import (
    BOOLEAN,
    MAX_INT32,
    SNAPPY,
    LeafChunk,
    Undecodable,
    fixed_width_array,
    text_array,
)
from zonebloom.storage.random_access import FragmentFile, read_merged_ranges

# Pages are read and decompressed in batches of about this size, so that they fit a cache.
_BATCH_BYTES = 1 << 21
_HAS_NO_INDICES = HAS_PLAIN | HAS_OTHER_ENCODINGS
_NO_ROWS = np.empty(0, dtype=np.int64)


class PageTable:
    """The pages of some leaves of one row group, leaf after leaf."""

    def __init__(self, columns: Sequence[LeafChunk]):
        self.columns = columns
        pages = [column.pages for column in columns]
        self._starts = np.concatenate([locations.starts for locations in pages])
        self._sizes = np.concatenate([locations.sizes for locations in pages])
        first_rows = np.concatenate([locations.first_rows[:-1] for locations in pages])
        stop_rows = np.concatenate([locations.first_rows[1:] for locations in pages])
        self._rows = np.stack([first_rows, stop_rows])
        # The first page of each leaf, and the end of the last one.
        self._bounds = np.cumsum([0, *(locations.starts.size for locations in pages)])
        # The columns as kernels get them: see `header_kernels.MAX_LEVEL`.
        self.descriptions = np.array(
            [[c.leaf.max_level, c.chunk.codec, c.leaf.width] for c in columns], np.int64
        )
        self.widths = self.descriptions[:, header_kernels.WIDTH].copy()
        self.num_texts = int((self.widths == 0).sum())
        # The numbers of the columns that no kernel decompresses.
        self.other_codecs = [i for i, c in enumerate(columns) if c.chunk.codec not in (0, SNAPPY)]
        # Booleans are always converted to PLAIN.
        self.has_booleans = any(c.leaf.physical_type == BOOLEAN for c in columns)

    def find_rows(
        self, file: FragmentFile, keys: KeySet, nulls: bool, rows: RowRanges
    ) -> tuple[np.ndarray, pa.Array | None]:
        """Return the rows that hold one of the keys in the only leaf, ascending, and their values.

        Parameters
        ----------
        file : FragmentFile
        keys : KeySet
        nulls : bool
            Whether to return rows with a null too.
        rows : RowRanges
            The rows to search.

        Raises
        ------
        Undecodable
        FragmentUnreadable
        """
        parts, values = [], []
        # The dictionary is read only if a page needs it, and searched once for all batches.
        hits: np.ndarray | None = None
        for opened in self._open_in_batches(file, rows):
            if hits is None and opened.flags & HAS_INDICES:
                hits = opened.dictionary(0).find_keys(keys)
            part = opened.find_rows(keys, nulls, hits)
            part = part[: row_kernels.rows_within(rows.starts, rows.stops, part)]
            if part.size:
                parts.append(part)
                values += opened.take(part)
        if not parts:
            return _NO_ROWS, None
        return parts[0] if len(parts) == 1 else np.concatenate(parts), _concatenate(values)

    def take(self, file: FragmentFile, rows: RowRanges) -> list[pa.Array | None]:
        """Return the values of each leaf at some rows, with None for undecodable leaves."""
        pages = self._select(rows)
        try:
            if _fit_in_one_batch(file, pages):
                return list(OpenedPages(self, file, *pages).take(rows.rows()))
            if len(self.columns) == 1:
                return [self._take_in_batches(file, rows)]
        except Undecodable:
            if len(self.columns) == 1:
                return [None]
        # The pages are many, or a leaf is undecodable. Thousands of leaves are read in a few parts.
        return [values for half in self._halves for values in half.take(file, rows)]

    @cached_property
    def _halves(self) -> tuple[PageTable, PageTable]:
        middle = len(self.columns) // 2
        return PageTable(self.columns[:middle]), PageTable(self.columns[middle:])

    def _take_in_batches(self, file: FragmentFile, ranges: RowRanges) -> pa.Array:
        parts, rows = [], ranges.rows()
        for opened in self._open_in_batches(file, ranges):
            begin, end = np.searchsorted(rows, opened.row_bounds()).tolist()
            parts += opened.take(rows[begin:end])
        return _concatenate(parts)

    def _select(self, rows: RowRanges) -> tuple[np.ndarray, np.ndarray, int, int]:
        """Return the pages with a row of some ranges. See `row_kernels.choose_pages`."""
        return row_kernels.choose_pages(
            self._starts, self._sizes, self._rows, self._bounds, rows.starts, rows.stops
        )

    def _open_in_batches(self, file: FragmentFile, rows: RowRanges) -> Iterator[OpenedPages]:
        """Yield the pages of the only leaf that hold some rows."""
        selected = pages, *_ = self._select(rows)
        if _fit_in_one_batch(file, selected):
            yield OpenedPages(self, file, *selected)
            return
        cuts = np.flatnonzero(np.diff(pages[READ_START] // _BATCH_BYTES)) + 1
        for batch in map(np.copy, np.split(pages, cuts, axis=1)):
            batch[READ_START] -= batch[READ_START, 0]
            num_bytes, num_rows = batch[[NUM_BYTES, NUM_ROWS]].sum(axis=1).tolist()
            yield OpenedPages(self, file, batch, np.array([0, batch.shape[1]]), num_bytes, num_rows)


class OpenedPages:
    """Some data pages of some leaves of one row group, decompressed.

    Parameters
    ----------
    table : PageTable
    file : FragmentFile
    pages : int64 array, shape (header_kernels.PAGE_FIELDS, m)
        The table of pages that `row_kernels.choose_pages` returned. It is changed in place.
    bounds : int64 array, shape (n + 1,)
        The first page of each column, and the end of the last one.
    num_bytes, num_rows : int
        The totals of all pages.

    Raises
    ------
    FragmentUnreadable
    Undecodable
    """

    def __init__(
        self,
        table: PageTable,
        file: FragmentFile,
        pages: np.ndarray,
        bounds: np.ndarray,
        num_bytes: int,
        num_rows: int,
    ):
        self._table = table
        self._file = file
        self._pages = pages
        self._bounds = bounds
        self._dictionaries: dict[int, Dictionary] = {}
        columns = table.descriptions
        data = _read(file, pages[FILE_START], pages[NUM_BYTES], num_bytes)
        # ``_levels`` has the start of each column in ``_present``, or -1 if no row is null.
        self._column_flags, self._levels = np.empty((2, len(columns)), dtype=np.int64)
        num_bytes = header_kernels.open_pages(data, pages, bounds, columns, self._column_flags)
        # The flags of all columns. The code of a refused page is negative, and so is the union.
        self.flags = int(np.bitwise_or.reduce(self._column_flags))
        if self.flags < 0:
            raise _refusal(self._column_flags.tolist())
        if self.flags & HAS_CHECKSUM:
            for page in pages.T[pages[header_kernels.CHECKSUM] != -1]:
                verify_checksum(data, page)
        # Arrow's pool reuses memory. New memory would cost more time than the decompression.
        bodies = np.frombuffer(pa.allocate_buffer(num_bytes), dtype=np.uint8)
        # Keep the page buffers alive: the addresses in ``pages`` point into them.
        self._buffers: list[object] = [data, bodies]
        for number in table.other_codecs:
            self._decompress(number, data)
        self._present = np.empty(num_rows, dtype=np.uint8)
        status = row_kernels.read_pages(
            data, bodies, pages, bounds, columns, self._present, self._levels
        )
        if status < 0:
            what = "body" if status == -1 else "definition levels"
            raise FragmentUnreadable(f"the {what} of a page cannot be decoded")
        if self.flags & HAS_OTHER_ENCODINGS or table.has_booleans:
            for number, column in enumerate(table.columns):
                self._convert_to_plain(column, self._pages_of(number))

    def row_bounds(self) -> tuple[int, int]:
        """Return the first row of the pages of the only leaf, and the end of the last one."""
        pages = self._pages
        return pages[FIRST_ROW, 0], pages[FIRST_ROW, -1] + pages[NUM_ROWS, -1]

    def _pages_of(self, number: int) -> np.ndarray:
        return self._pages[:, self._bounds[number] : self._bounds[number + 1]]

    def dictionary(self, number: int) -> Dictionary:
        """Return the dictionary of a column. Its memory stays valid as long as these pages do."""
        if number not in self._dictionaries:
            self._dictionaries[number] = dictionary_of(self._file, self._table.columns[number])
        return self._dictionaries[number]

    def find_rows(self, keys: KeySet, nulls: bool, hits: np.ndarray | None) -> np.ndarray:
        """Return the rows of the row group that hold one of the keys, ascending.

        Include rows with a null if ``nulls``. There must be a single column. ``hits`` is the mask
        of keys in its dictionary, which is None if no page has indices.
        """
        parts = []
        for are_indices in (False, True):
            pages = self._pages
            if not self.flags & (HAS_INDICES if are_indices else _HAS_NO_INDICES):
                continue
            if self.flags & _HAS_NO_INDICES and self.flags & HAS_INDICES:
                pages = np.ascontiguousarray(pages[:, _have_indices(pages) == are_indices])
            if nulls:
                width = self._table.columns[0].leaf.width
                _checked_count(value_kernels.check_values(pages, width, are_indices))
            addresses, sizes = pages[BODY_ADDRESS], pages[BODY_SIZE]
            arguments = addresses, sizes, pages[NUM_STORED], pages[FIRST_POSITION]
            capacity = self._present.size + 1
            if are_indices:
                assert hits is not None
                parts.append(_find_indices(hits, arguments, capacity))
            else:
                parts.append(keys.find(*arguments, capacity=capacity))
        rows = parts[0] if len(parts) == 1 else np.sort(np.concatenate([_NO_ROWS, *parts]))
        if self._levels[0] < 0 or not (rows.size or nulls):
            return rows
        out = np.empty(self._present.size, dtype=np.int64)
        count = row_kernels.rows_of_values(self._present, self._pages, rows, nulls, out)
        return out[: _checked_count(count)]

    def take(self, rows: np.ndarray) -> list[pa.Array]:
        """Return the values of each column at ascending rows of the row group."""
        table, num_columns = self._table, len(self._table.columns)
        dictionaries = np.zeros((num_columns, 3), dtype=np.int64)
        if self.flags & HAS_INDICES:
            for number in range(num_columns):
                if self._column_flags[number] & HAS_INDICES:
                    dictionaries[number] = self.dictionary(number).kernel_args
        # The ends of the columns of a fixed width in the output.
        alignment = value_kernels.ALIGNMENT
        ends = np.add.accumulate((table.widths * rows.size + alignment - 1) // alignment)
        ends *= alignment
        out = np.frombuffer(pa.allocate_buffer(ends[-1]), dtype=np.uint8)
        valid = np.empty((num_columns, rows.size), dtype=np.uint8)
        starts, lengths = np.empty((2, table.num_texts, rows.size), dtype=np.int64)
        sources = self._pages, self._bounds, table.descriptions, self._levels, dictionaries
        num_bytes = _checked_count(
            value_kernels.take_values(*sources, self._present, rows, valid, out, starts, lengths)
        )
        if num_bytes > MAX_INT32:
            raise Undecodable
        offsets = texts = np.empty(0, dtype=np.uint8)
        if table.num_texts:
            texts = np.empty(num_bytes, dtype=np.uint8)
            offsets = np.empty((table.num_texts, rows.size + 1), dtype=np.int32)
            _checked_count(value_kernels.copy_texts(starts, lengths, offsets, texts))
        arrays: list[pa.Array] = []
        start = text = text_start = 0
        for number, column in enumerate(table.columns):
            leaf, are_valid = column.leaf, None if self._levels[number] < 0 else valid[number]
            if leaf.width:
                data = out[start : start + leaf.width * rows.size]
                arrays.append(fixed_width_array(leaf, data, are_valid))
            else:
                stop = text_start + int(offsets[text, -1])
                arrays.append(text_array(leaf, offsets[text], texts[text_start:stop], are_valid))
                text, text_start = text + 1, stop
            start = int(ends[number])
        return arrays

    def _decompress(self, number: int, data: np.ndarray) -> None:
        """Decompress the pages of a column with a codec that has no kernel."""
        decompress = decompressor(self._table.columns[number].chunk.codec)
        pages, compressed = self._pages_of(number), data.data
        starts, sizes, decompressed_sizes = pages[
            header_kernels.BODY_START : header_kernels.ENCODING
        ].tolist()
        for page, decompressed_size in enumerate(decompressed_sizes):
            if decompressed_size == 0:
                pages[BODY_ADDRESS, page], pages[BODY_SIZE, page] = data.ctypes.data, 0
            elif decompressed_size > 0:
                start = starts[page]
                body = decompress(compressed[start : start + sizes[page]], decompressed_size)
                self._buffers.append(body)
                pages[BODY_ADDRESS, page], pages[BODY_SIZE, page] = body.address, body.size

    def _convert_to_plain(self, column: LeafChunk, pages: np.ndarray) -> None:
        """Convert the values of pages to PLAIN encoding, with one byte for each boolean."""
        # This is imported late, because few files need its kernels.
        from zonebloom.parquet.plain_encoding import to_plain

        is_boolean = column.leaf.physical_type == BOOLEAN
        is_ready = (pages[ENCODING] == header_kernels.PLAIN) | _have_indices(pages)
        for page in range(pages.shape[1]):
            if is_ready[page] and not is_boolean:
                continue
            address, size, count = pages[[BODY_ADDRESS, BODY_SIZE, NUM_STORED], page].tolist()
            body = np.frombuffer(pa.foreign_buffer(address, size, self._buffers), dtype=np.uint8)
            plain = to_plain(column.leaf, int(pages[ENCODING, page]), body, count)
            self._buffers.append(plain)
            pages[BODY_ADDRESS, page], pages[BODY_SIZE, page] = plain.ctypes.data, plain.size
            pages[ENCODING, page] = header_kernels.PLAIN


def _fit_in_one_batch(
    file: FragmentFile, selected: tuple[np.ndarray, np.ndarray, int, int]
) -> bool:
    """Return whether to read pages together, as always from an object store."""
    return not file.is_local or selected[2] <= _BATCH_BYTES


def _have_indices(pages: np.ndarray) -> np.ndarray:
    return header_kernels.is_dictionary_encoding.py_func(pages[ENCODING])


def dictionary_of(file: FragmentFile, column: LeafChunk) -> Dictionary:
    """Return the dictionary of a chunk, from the cache if possible."""
    # The dictionary ends at the first data page. Some writers let ``data_start`` point to the
    # dictionary instead.
    start, stop = column.chunk.start, int(column.pages.starts[0])
    leaf, codec, identity = column.leaf, column.chunk.codec, file.identity
    # Without an inode or a tag, a replaced file may have the same identity: do not cache it.
    key = None
    if identity.inode or identity.tag:
        key = file.path, identity, start, stop, codec, leaf.width

    def read() -> Dictionary:
        size = stop - start
        data = _read(file, np.array([start]), np.array([size]), size) if size > 0 else None
        return Dictionary(leaf, codec, data)

    return DICTIONARY_CACHE.get(key, read)


def _read(file: FragmentFile, starts: np.ndarray, sizes: np.ndarray, num_bytes: int) -> np.ndarray:
    """Return pieces of the file, one after another, uint8."""
    if file.is_local:
        # Arrow's pool reuses memory. New memory would cost more time than the read.
        data = np.frombuffer(pa.allocate_buffer(num_bytes), dtype=np.uint8)
        if file.read_pieces(starts, sizes, data) != num_bytes:
            raise FragmentUnreadable("it ends before the end of its pages")
        return data
    spans = list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))
    pieces = read_merged_ranges(file.read, spans, file.coalesce)
    return np.frombuffer(b"".join(pieces), dtype=np.uint8)


def _find_indices(hits: np.ndarray, pages: Sequence[np.ndarray], capacity: int) -> np.ndarray:
    """Return the positions of the dictionary indices that refer to a hit."""
    if not hits.size and pages[2].any():
        raise FragmentUnreadable("a page refers to a dictionary, but the column chunk has none")
    if not np.logical_or.reduce(hits):
        return _NO_ROWS
    out = np.empty(capacity, dtype=np.int64)
    return out[: _checked_count(value_kernels.find_indices(*pages, hits, out))]


def _refusal(flags: Sequence[int]) -> FragmentUnreadable | Undecodable:
    """Return the error of a refused page. Damage takes precedence over `Undecodable`."""
    errors = [error_for_code(flag) for flag in flags if flag < 0]
    damage = [error for error in errors if isinstance(error, FragmentUnreadable)]
    return [*damage, *errors][0]


def _checked_count(count: int) -> int:
    if count < 0:
        raise FragmentUnreadable("values of a page lie outside it, or are missing")
    return count


def _concatenate(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

"""Read leaves of one row group with kernels: find the rows of keys, and take values at rows.

    PageTable    where the pages of some leaves lie; all reads share it
    Selection    the pages with the wanted rows
    OpenedPages  some of these pages in memory: decompressed, with their levels

In a local file, a kernel opens the pages of few rows, and finds or takes them, in one call. All
other pages are opened in steps: those of object stores, batches of many pages, and those that the
kernel leaves to others (see `leaf_kernels.STEPS`).

The values of pages are dictionary indices or PLAIN values. Other encodings are converted to PLAIN.
Kernels search these bytes for keys, and take only the values of the wanted rows. Pages that the
kernels cannot decode raise `Undecodable`, and pyarrow decodes them.

A lookup needs few rows of a page. So it decodes large pages as a whole, and caches them. Small
pages are read again each time.

Source: Encodings.md and README.md (data pages) of the Parquet format.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import or_
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from zonebloom.base.memory_cache import MEMORY_CACHE
from zonebloom.base.row_ranges import RowRanges, touching_bounds
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import header_kernels, leaf_kernels, row_kernels
from zonebloom.parquet.codecs import decompress_pages, error_for_code, verify_checksum
from zonebloom.parquet.decoded_pages import (
    STORED_FIELDS,
    DecodedPage,
    allocate_kept_memory,
    decode_page,
)
from zonebloom.parquet.dictionaries import Dictionary
from zonebloom.parquet.header_kernels import (
    HAS_CHECKSUM,
    HAS_INDICES,
    HAS_OTHER_ENCODINGS,
)
from zonebloom.parquet.key_tests import MAX_FEW_KEYS, KeySet
from zonebloom.parquet.leaf_type import (
    MAX_INT32,
    SNAPPY,
    LeafChunk,
    LeafType,
    Undecodable,
    describe_column,
    fixed_width_array,
    text_array,
)
from zonebloom.parquet.value_kernels import ALIGNMENT
from zonebloom.storage.random_access import FragmentFile

# Pages are read and decompressed in batches of about this size, so that they fit a cache.
_BATCH_BYTES = 1 << 21
# The rows of a batch are fewer than this, or few more. Their values and positions should fit too.
_BATCH_ROWS = 1 << 17
# About the bytes of the Python objects of a page table, and of each of its columns.
_TABLE_BYTES, _COLUMN_BYTES = 2000, 1000
# More rows than this are usually in most pages, so caching these would drop everything else.
_MAX_FEW_ROWS = 1 << 10
# Opening a page takes longer than this if it probably came from the disk.
_MAX_OPEN_SECONDS = 500e-6
_NO_HITS = np.empty(0, dtype=np.uint8)
_NO_ROWS = np.empty(0, dtype=np.int64)
# Pages of more rows are decoded and cached.
_MAX_UNCACHED_ROWS = 8 << 10


class DecodedPages(NamedTuple):
    """Decoded pages, and their descriptions for `row_kernels.choose_pages`."""

    descriptions: np.ndarray
    pages: Sequence[DecodedPage]


_NOT_DECODED = DecodedPages(np.empty((0, header_kernels.DECODED_FIELDS), dtype=np.int64), ())


class Selection(NamedTuple):
    """The pages of some leaves that hold some rows.

    Attributes
    ----------
    pages : array of page_table.PAGE
    bounds : int64 array
        The first page of each column in the table, and the end of the last one.
    num_bytes : int
        The bytes of the pages to read.
    decoded : DecodedPages
        Those that are in memory.
    """

    pages: np.ndarray
    bounds: np.ndarray
    num_bytes: int
    decoded: DecodedPages

    def part(self, numbers: np.ndarray) -> Selection:
        """Return some of the pages, given by their ascending numbers."""
        pages = self.pages[numbers]
        sizes = pages["num_bytes"]
        pages["read_start"] = np.cumsum(sizes) - sizes
        bounds = np.searchsorted(numbers, self.bounds)
        return Selection(pages, bounds, int(sizes.sum()), self.decoded)

    def read(self, file: FragmentFile) -> np.ndarray:
        """Return the bytes of the pages to read, one after another."""
        pages = self.pages
        if self.decoded.pages:
            pages = pages[pages["is_decoded"] == 0]
        return read_spans(file, pages["file_start"], pages["num_bytes"], self.num_bytes)


class PageTable:
    """The pages of some leaves of one row group, leaf after leaf."""

    def __init__(self, columns: Sequence[LeafChunk]):
        self.columns = columns
        self.leaves = [column.leaf for column in columns]
        pages = [column.pages for column in columns]
        starts = np.concatenate([locations.starts for locations in pages])
        sizes = np.concatenate([locations.sizes for locations in pages])
        first_rows = np.concatenate([locations.first_rows[:-1] for locations in pages])
        stop_rows = np.concatenate([locations.first_rows[1:] for locations in pages])
        # The first page of each leaf, and the end of the last one.
        bounds = np.cumsum([0, *(locations.starts.size for locations in pages)])
        # The pages as kernels get them: see `row_kernels.choose_pages`.
        self.places = starts, sizes, np.stack([first_rows, stop_rows]), bounds
        self._are_large = np.concatenate([are_large(column) for column in columns]).tolist()
        self._has_large_pages = True in self._are_large
        self._cache_keys: dict[int, tuple[int, ...]] = {}
        # The columns as kernels get them: see `header_kernels.MAX_LEVEL`.
        self.descriptions = np.array(
            [describe_column(column.leaf, column.chunk.codec) for column in columns], np.int64
        )
        self._num_rows = int(pages[0].first_rows[-1])
        # These say whether kernels could not open a page, and which columns had a page with
        # dictionary indices.
        self._needs_steps = False
        self._need_dictionary = [False] * len(columns)

    @property
    def num_bytes(self) -> int:
        """About the bytes that the table takes in memory, with those of its halves."""
        page_bytes = sum(array.nbytes for array in self.places)
        return _TABLE_BYTES + len(self.columns) * _COLUMN_BYTES + 2 * page_bytes

    def find_rows(
        self, file: FragmentFile, keys: KeySet, nulls: bool, rows: RowRanges
    ) -> tuple[np.ndarray, pa.Array | pa.ChunkedArray | None]:
        """Return the rows that hold one of the keys in the only leaf, ascending, and their values.

        The values are None if there are no rows, or if the values are not known.

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
        is_lookup = keys.count <= MAX_FEW_KEYS and 2 * len(rows) <= self._num_rows
        starts, stops = touching_bounds(rows)
        decoded = self.decoded_pages(file, starts, stops, may_drop_others=is_lookup)
        found, values = self._find_by_kernel(file, keys, nulls, starts, stops, decoded), None
        if found is None:
            found, values = self._find_in_steps(file, keys, nulls, rows, decoded)
        if keys.value is not None and found.size:
            values = pa.repeat(keys.value, found.size)
        return found, values

    def _find_by_kernel(
        self,
        file: FragmentFile,
        keys: KeySet,
        nulls: bool,
        starts: np.ndarray,
        stops: np.ndarray,
        decoded: DecodedPages,
    ) -> np.ndarray | None:
        """Return the rows with a key, or None if the pages must be opened in steps."""
        hits, opening = _NO_HITS, self._opening(file, starts, stops, decoded)
        if opening is None:
            return None
        while True:
            if self._need_dictionary[0]:
                hits = cached_dictionary(file, self.columns[0]).find_keys(keys)
            start_time = time.perf_counter()
            needed, num_pages, num_bytes, _, found = leaf_kernels.find_in_file(
                opening, keys.kernel_arguments, hits, nulls
            )
            file.count_pieces(num_bytes, start_time, _MAX_OPEN_SECONDS * num_pages)
            if needed != leaf_kernels.DICTIONARY or self._need_dictionary[0]:
                break
            self._need_dictionary = [True]
        self._needs_steps |= needed == leaf_kernels.STEPS
        return found if needed == leaf_kernels.NOTHING else None

    def _take_by_kernel(
        self, file: FragmentFile, rows: np.ndarray, decoded: DecodedPages
    ) -> list[pa.Array] | None:
        """Return the values at some rows, or None if the pages must be opened in steps."""
        opening = self._opening(file, rows, rows + 1, decoded)
        if opening is None:
            return None
        states = np.empty((2, len(self.columns)), dtype=np.int64)
        while True:
            # Another thread may find that more are needed.
            had_dictionary = self._need_dictionary
            descriptions, _dictionaries = dictionaries_of(file, self.columns, had_dictionary)
            start_time = time.perf_counter()
            needed, num_pages, num_bytes, _, *taken = leaf_kernels.take_from_file(
                opening, descriptions, states
            )
            file.count_pieces(num_bytes, start_time, _MAX_OPEN_SECONDS * num_pages)
            if needed != leaf_kernels.DICTIONARY:
                break
            have_indices = [bool(flags & HAS_INDICES) for flags in states[0].tolist()]
            self._need_dictionary = list(map(or_, had_dictionary, have_indices))
            if had_dictionary == self._need_dictionary:
                # A dictionary that the pages refer to is empty.
                return None
        self._needs_steps |= needed == leaf_kernels.STEPS
        if needed != leaf_kernels.NOTHING:
            return None
        return arrays_of(self.leaves, taken, rows.size, (states[1] >= 0).tolist())

    def _opening(
        self, file: FragmentFile, starts: np.ndarray, stops: np.ndarray, decoded: DecodedPages
    ) -> tuple[Any, ...] | None:
        """Return what a kernel needs to open pages, or None if they must be opened in steps."""
        handle = None if self._needs_steps else file.handle
        if handle is None:
            return None
        if file.is_on_disk:
            pages = self.pages_with(starts, stops, decoded).pages
            file.prefetch_pieces(pages["file_start"], pages["num_bytes"])
        pages = self.places, self.descriptions, starts, stops, decoded.descriptions
        return handle, *pages, (_BATCH_BYTES, 2 * _BATCH_ROWS)

    def _find_in_steps(
        self, file: FragmentFile, keys: KeySet, nulls: bool, rows: RowRanges, decoded: DecodedPages
    ) -> tuple[np.ndarray, pa.Array | None]:
        parts, values = [], []
        # The dictionary is read only if a page needs it, and searched once for all batches.
        hits = _NO_HITS
        for opened in self.open_in_batches(file, rows, decoded):
            if opened.has_indices and not hits.size:
                hits = cached_dictionary(file, self.columns[0]).find_keys(keys)
            part = opened.find_rows(keys, hits, rows, nulls=nulls)
            if part.size:
                parts.append(part)
                values += opened.take(part)
        return (np.concatenate(parts), _concatenate(values)) if parts else (_NO_ROWS, None)

    def take(
        self, file: FragmentFile, rows: RowRanges, *, is_lookup: bool = False
    ) -> list[pa.Array | pa.ChunkedArray | None]:
        """Return the values of each leaf at some rows, with None for undecodable leaves.

        ``is_lookup`` says whether the rows are those of keys. See `decoded_pages`.
        """
        num_rows = len(rows)
        num_values = num_rows * len(self.columns)
        starts, stops = touching_bounds(rows)
        is_lookup = is_lookup and num_rows <= _MAX_FEW_ROWS
        try:
            decoded = self.decoded_pages(file, starts, stops, may_drop_others=is_lookup)
            values = None
            if num_values <= 2 * _BATCH_ROWS:
                values = self._take_by_kernel(file, rows.rows(), decoded)
            if values is not None:
                return [*values]
            selection = self.pages_with(starts, stops, decoded)
            if _fit_in_one_batch(file, selection, num_values):
                return [*OpenedPages(self, file, selection).take(rows.rows())]
            if len(self.columns) == 1:
                return [self._take_in_batches(file, rows, decoded)]
        except Undecodable:
            if len(self.columns) == 1:
                return [None]
        # The pages are many, or a leaf is undecodable. Thousands of leaves are read in a few parts.
        return [values for half in self._halves for values in half.take(file, rows)]

    @cached_property
    def _halves(self) -> tuple[PageTable, PageTable]:
        middle = len(self.columns) // 2
        return PageTable(self.columns[:middle]), PageTable(self.columns[middle:])

    def _take_in_batches(
        self, file: FragmentFile, ranges: RowRanges, decoded: DecodedPages
    ) -> pa.Array | pa.ChunkedArray:
        parts, rows = [], ranges.rows()
        for opened in self.open_in_batches(file, ranges, decoded):
            begin, end = np.searchsorted(rows, opened.row_bounds()).tolist()
            parts += opened.take(rows[begin:end])
        return _concatenate(parts)

    def pages_with(
        self, starts: np.ndarray, stops: np.ndarray, decoded: DecodedPages = _NOT_DECODED
    ) -> Selection:
        """Return the pages with a row of some ranges. See `row_kernels.choose_pages`."""
        pages, bounds, num_bytes, _ = row_kernels.choose_pages(
            *self.places, starts, stops, decoded.descriptions
        )
        return Selection(pages, bounds, num_bytes, decoded)

    def decoded_pages(
        self, file: FragmentFile, starts: np.ndarray, stops: np.ndarray, *, may_drop_others: bool
    ) -> DecodedPages:
        """Return the large pages with a row of some ranges, from the cache or from the file.

        A lookup of few keys may drop other objects from the cache. A scan decodes and caches pages
        only while there is room, because the next scan would find none of them otherwise.

        Raises
        ------
        Undecodable
        FragmentUnreadable
        """
        if not self._has_large_pages:
            return _NOT_DECODED
        _, sizes, page_rows, bounds = self.places
        found = np.empty((2, page_rows.shape[1]), dtype=np.int64)
        count = row_kernels.find_pages_of_ranges(page_rows, bounds, starts, stops, found)
        numbers = found[0]
        file_key = file.cache_key
        is_kept = file_key is not None and file.is_at_rest
        if not (is_kept or may_drop_others):
            return _NOT_DECODED
        room = MEMORY_CACHE.room
        pages: dict[int, DecodedPage] = {}
        # The pages to read, by their places in ``numbers``, and whether to decode all rows.
        missing: dict[int, bool] = {}
        for i, (number, stop) in enumerate(found[:, :count].T.tolist()):
            if not self._are_large[number]:
                continue
            page = None
            if file_key:
                page = MEMORY_CACHE.get((*file_key, *self._cache_key(number)), DecodedPage)
            first_row, stop_row = page_rows[:, number].tolist()
            if page is not None and page.num_rows >= min(stop, stop_row) - first_row:
                pages[number] = page
            elif may_drop_others or room > 0:
                # A page that is used again is decoded whole.
                missing[i] = page is not None
                room -= 2 * int(sizes[number])
        if missing:
            selection = self.pages_with(starts, stops)
            are_whole = [i for i, is_whole in missing.items() if is_whole]
            selection.pages["unwanted_rows"][are_whole] = 0
            decoded = [
                page
                for part in _batches(file, selection.part(np.array(list(missing))))
                for page in OpenedPages(self, file, part, apart=True).decoded_pages()
            ]
            for number, page in zip(numbers[list(missing)].tolist(), decoded, strict=True):
                pages[number] = page
                if file_key is not None and is_kept:
                    MEMORY_CACHE.put((*file_key, *self._cache_key(number)), page)
        if not pages:
            return _NOT_DECODED
        fields = [(number, *page.kernel_args) for number, page in sorted(pages.items())]
        return DecodedPages(np.array(fields, dtype=np.int64), [*pages.values()])

    def _cache_key(self, number: int) -> tuple[int, ...]:
        """Return what the decoded form of a page depends on, besides the file."""
        key = self._cache_keys.get(number)
        if key is None:
            starts, sizes, rows, bounds = self.places
            leaf, chunk, _ = self.columns[int(np.searchsorted(bounds, number, side="right")) - 1]
            form = chunk.codec, leaf.physical_type, leaf.width, leaf.max_level
            place = int(starts[number]), int(sizes[number]), *rows[:, number].tolist()
            key = self._cache_keys[number] = *form, *place
        return key

    def open_in_batches(
        self, file: FragmentFile, rows: RowRanges, decoded: DecodedPages = _NOT_DECODED
    ) -> Iterator[OpenedPages]:
        """Yield the pages of the only leaf that hold some rows."""
        for part in _batches(file, self.pages_with(*touching_bounds(rows), decoded)):
            yield OpenedPages(self, file, part)


class OpenedPages:
    """Some data pages of some leaves of one row group, decompressed.

    Parameters
    ----------
    table : PageTable
    file : FragmentFile
    selection : Selection
        The pages to read. Their table is changed in place.
    apart : bool
        Whether each decompressed page has memory of its own, so that single ones can be kept.

    Raises
    ------
    FragmentUnreadable
    Undecodable
    """

    def __init__(
        self, table: PageTable, file: FragmentFile, selection: Selection, *, apart: bool = False
    ):
        self.pages = pages = selection.pages
        bounds = selection.bounds
        self._table = table
        self._file = file
        self._bounds = bounds
        columns = table.descriptions
        data = selection.read(file)
        flags, target, self._bodies = open_bodies(data, pages, bounds, columns, apart=apart)
        self._have_indices = (flags & HAS_INDICES > 0).tolist()
        self.has_indices = True in self._have_indices
        # Keep the page buffers alive: the addresses in ``pages`` point into them.
        self._buffers: list[object] = [data, selection.decoded, *self._bodies]
        # ``_levels`` has the start of each column in ``_present``, or -1 if no row is null.
        self._levels = np.empty(len(columns), dtype=np.int64)
        num_bytes = row_kernels.level_bytes(pages, bounds, columns)
        self._present = np.empty(num_bytes, dtype=np.uint8)
        status = row_kernels.read_pages(
            data, target, pages, bounds, columns, self._present, self._levels
        )
        if status < 0:
            what = {-1: "body", -2: "definition levels"}.get(status, "values")
            raise FragmentUnreadable(f"the {what} of a page cannot be decoded")
        if np.bitwise_or.reduce(flags) & HAS_OTHER_ENCODINGS:
            # This is imported late, because few files need its kernels.
            from zonebloom.parquet.plain_encoding import convert_pages

            for number, column in enumerate(table.columns):
                self._buffers += convert_pages(column.leaf, self._pages_of(number), self._buffers)

    def decoded_pages(self) -> list[DecodedPage]:
        """Return each page in decoded form. Raise `Undecodable` if one lacks values."""
        decoded = []
        for number, column in enumerate(self._table.columns):
            start = int(self._levels[number])
            pages = self._pages_of(number)
            fields = [
                pages[name].tolist() for name in ("num_rows", "unwanted_rows", *STORED_FIELDS)
            ]
            for num_rows, num_unwanted, *stored in zip(*fields, strict=True):
                num_wanted, present = num_rows - num_unwanted, None
                if start >= 0:
                    present = self._present[start : start + num_wanted]
                    start += num_rows
                width = column.leaf.width
                decoded.append(decode_page(stored, num_wanted, width, present, self._bodies))
        return decoded

    def row_bounds(self) -> tuple[int, int]:
        """Return the first row of the pages of the only leaf, and the end of the last one."""
        pages = self.pages
        return pages["first_row"][0], pages["first_row"][-1] + pages["num_rows"][-1]

    def _pages_of(self, number: int) -> np.ndarray:
        return self.pages[self._bounds[number] : self._bounds[number + 1]]

    def find_rows(
        self, keys: KeySet, hits: np.ndarray, rows: RowRanges, *, nulls: bool
    ) -> np.ndarray:
        """Return those of some rows of the row group that hold one of the keys, ascending.

        Include rows with a null if ``nulls``. There must be a single column. ``hits`` is the mask
        of keys in its dictionary, which is empty if no page has indices.
        """
        status, found = leaf_kernels.find_rows(
            self.pages,
            self._table.columns[0].leaf.width,
            self._levels[0],
            self._present,
            keys.kernel_arguments,
            hits,
            nulls,
            *touching_bounds(rows),
        )
        _require_values(status)
        return found

    @property
    def present(self) -> np.ndarray | None:
        """Return for each row of the only leaf whether it holds a value, uint8.

        Return None if no row is null.
        """
        return None if self._levels[0] < 0 else self._present

    def take(self, rows: np.ndarray) -> list[pa.Array]:
        """Return the values of each column at ascending rows of the row group."""
        table = self._table
        descriptions, _dictionaries = dictionaries_of(self._file, table.columns, self._have_indices)
        stored = self.pages, self._bounds, table.descriptions, self._levels, descriptions
        return take_arrays(
            table.leaves, (*stored, self._present), rows, (self._levels >= 0).tolist()
        )


def take_arrays(
    leaves: Sequence[LeafType],
    stored: tuple[np.ndarray, ...],
    rows: np.ndarray,
    are_nullable: Sequence[bool],
) -> list[pa.Array]:
    """Return the values of columns at ascending rows.

    ``stored`` has the opened pages as `leaf_kernels.take_rows` gets them.
    """
    values = leaf_kernels.take_rows(stored, rows)
    _require_values(values[0])
    return arrays_of(leaves, values, rows.size, are_nullable)


def arrays_of(
    leaves: Sequence[LeafType], taken: Sequence[Any], num_rows: int, are_nullable: Sequence[bool]
) -> list[pa.Array]:
    """Return the arrays of the values that `leaf_kernels.take_rows` returned."""
    size, valid, out, offsets, texts = taken
    if size > MAX_INT32:
        raise Undecodable
    arrays: list[pa.Array] = []
    start = text = text_start = 0
    for number, leaf in enumerate(leaves):
        are_valid = valid[number] if are_nullable[number] else None
        if leaf.width:
            stop = start + leaf.width * num_rows
            arrays.append(fixed_width_array(leaf, out[start:stop], are_valid))
            start = -(-stop // ALIGNMENT) * ALIGNMENT
        else:
            stop = text_start + int(offsets[text, -1])
            arrays.append(text_array(leaf, offsets[text], texts[text_start:stop], are_valid))
            text, text_start = text + 1, stop
    return arrays


def open_bodies(
    data: np.ndarray,
    pages: np.ndarray,
    bounds: np.ndarray,
    columns: np.ndarray,
    *,
    apart: bool = False,
) -> tuple[np.ndarray, int, list[pa.Buffer]]:
    """Read the headers of pages, verify checksums, and decompress what no kernel decompresses.

    The parameters are those of `header_kernels.open_pages`. Return the flags of each column, the
    address for `decompression_kernels.read_bodies`, and the memory of all bodies that are not in
    ``data``. With ``apart``, each has its own memory.

    Raises
    ------
    FragmentUnreadable
    Undecodable
    """
    flags = np.empty(len(columns), dtype=np.int64)
    num_bytes = header_kernels.open_pages(data, pages, bounds, columns, flags)
    # The code of a refused page is negative, and so is the union of all flags.
    union = int(np.bitwise_or.reduce(flags))
    if union < 0:
        raise _refusal(flags.tolist())
    if union & HAS_CHECKSUM:
        for page in pages[pages["checksum"] != -1]:
            verify_checksum(data, page)
    codecs = columns[:, header_kernels.CODEC]
    # Arrow's pool reuses memory. New memory would cost more time than the decompression.
    if apart:
        is_snappy = np.repeat(codecs == SNAPPY, np.diff(bounds))
        sizes = np.where(is_snappy, np.maximum(pages["decompressed_size"], 0), 0)
        buffers = [allocate_kept_memory(size) for size in sizes.tolist()]
        pages["decompressed_start"] = [buffer.address for buffer in buffers]
        target = 0
    else:
        buffers = [pa.allocate_buffer(num_bytes)]
        target = buffers[0].address
    for number in ((codecs != 0) & (codecs != SNAPPY)).nonzero()[0].tolist():
        part = pages[bounds[number] : bounds[number + 1]]
        buffers += decompress_pages(columns[number], part, data)
    return flags, target, buffers


def are_large(column: LeafChunk) -> np.ndarray:
    """Return which pages of a chunk are decoded and cached."""
    return np.diff(column.pages.first_rows) > _MAX_UNCACHED_ROWS


def _fit_in_one_batch(file: FragmentFile, selection: Selection, num_values: int) -> bool:
    """Return whether to read pages together, as always from an object store."""
    is_small = selection.num_bytes <= _BATCH_BYTES and num_values <= 2 * _BATCH_ROWS
    return is_small or file.has_round_trips


def _batches(file: FragmentFile, selection: Selection) -> Iterator[Selection]:
    """Yield the pages of a selection in parts whose memory fits a cache."""
    # Decoded pages need no memory.
    row_counts = selection.pages["num_rows"] * (1 - selection.pages["is_decoded"])
    if _fit_in_one_batch(file, selection, int(row_counts.sum())):
        yield selection
        return
    first_rows = np.cumsum(row_counts) - row_counts
    batches = selection.pages["read_start"] // _BATCH_BYTES, first_rows // _BATCH_ROWS
    cuts = np.flatnonzero(np.diff(np.stack(batches)).any(axis=0)) + 1
    for numbers in np.split(np.arange(selection.pages.size), cuts):
        yield selection.part(numbers)


def dictionaries_of(
    file: FragmentFile, columns: Sequence[LeafChunk], are_needed: Sequence[bool]
) -> tuple[np.ndarray, list[Dictionary]]:
    """Return the descriptions of the needed dictionaries for kernels, and these.

    The dictionaries must live until their values are copied.
    """
    descriptions, dictionaries = np.zeros((len(columns), 3), dtype=np.int64), []
    for number, is_needed in enumerate(are_needed):
        if is_needed:
            dictionaries.append(cached_dictionary(file, columns[number]))
            descriptions[number] = dictionaries[-1].kernel_args
    return descriptions, dictionaries


def cached_dictionary(
    file: FragmentFile, column: LeafChunk, data: np.ndarray | None = None
) -> Dictionary:
    """Return the dictionary of a chunk, from the cache if possible.

    ``data`` has the bytes of its page if they are read already.
    """
    leaf, chunk, pages = column
    # The dictionary ends at the first data page. Some writers let ``data_start`` point to the
    # dictionary, so it is not the end.
    start, size = chunk.start, int(pages.starts[0]) - chunk.start
    key = None
    if file.cache_key is not None:
        key = *file.cache_key, start, size, chunk.codec, leaf.width
    cached = MEMORY_CACHE.get(key, Dictionary)
    if cached is not None:
        return cached
    # Ask this before the read: a file that was just written may be written again without a change
    # of its identity.
    may_cache = key is not None and file.is_at_rest
    if size <= 0:
        data = None
    elif data is None:
        data = read_spans(file, np.array([start]), np.array([size]), size)
    dictionary = Dictionary(leaf, chunk.codec, data)
    if may_cache:
        MEMORY_CACHE.put(key, dictionary)
    return dictionary


def read_spans(
    file: FragmentFile, starts: np.ndarray, sizes: np.ndarray, num_bytes: int
) -> np.ndarray:
    """Return pieces of the file, one after another, uint8."""
    # Arrow's pool reuses memory. New memory would cost more time than the read.
    data = np.frombuffer(pa.allocate_buffer(num_bytes), dtype=np.uint8)
    places = np.ascontiguousarray(starts), np.ascontiguousarray(sizes)
    if file.read_pieces(*places, data) != num_bytes:
        raise FragmentUnreadable("it ends before the end of its pages")
    return data


def _refusal(flags: Sequence[int]) -> FragmentUnreadable | Undecodable:
    """Return the error of a refused page. Damage takes precedence over `Undecodable`."""
    errors = [error_for_code(flag) for flag in flags if flag < 0]
    damage = [error for error in errors if isinstance(error, FragmentUnreadable)]
    return [*damage, *errors][0]


def _require_values(status: int) -> None:
    if status < 0:
        raise FragmentUnreadable("values of a page lie outside it, or are missing")


def _concatenate(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

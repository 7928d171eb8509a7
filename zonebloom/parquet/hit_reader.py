"""Read the rows of few keys from one row group of a file, with a call of a kernel per step.

    find    search the key column for the keys, in the pages of the wanted rows
    take    take the values of the columns at these rows

The search for one key gives its values, so only those of the other columns are taken.

A lookup needs few rows of a page. So large pages, and pages that the kernels cannot decompress, are
decoded as a whole and cached. Small pages are read again each time.

What needs more memory than `_Scratch` has, or what the kernels refuse, is left to `leaf_reader`. It
reads pages with the same kernels, one after another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import cached_property
from operator import or_
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet import hit_kernels
from zonebloom.parquet.dictionaries import Dictionary
from zonebloom.parquet.header_kernels import HAS_INDICES
from zonebloom.parquet.key_tests import KeySet
from zonebloom.parquet.leaf_reader import DecodedPages, PageTable, are_large, dictionary_of
from zonebloom.parquet.leaf_type import SNAPPY, LeafChunk, fixed_width_array, text_array
from zonebloom.parquet.value_kernels import ALIGNMENT
from zonebloom.storage.random_access import FragmentFile

# The most bytes of pages that are read together, and of their decompressed bodies.
_MAX_BYTES = 1 << 21
# The most values of the pages that are searched, the most rows whose values are taken, and the most
# columns.
_MAX_VALUES, _MAX_ROWS, _MAX_COLUMNS = 1 << 18, 1 << 10, 1 << 10
# More keys than this are usually in most pages, so caching these would drop everything else.
_MAX_KEYS_IN_CACHED_PAGES = 256
# A search that takes longer than this has probably read from the disk.
_DISK_SECONDS = 500e-6
_NO_HITS = np.empty(0, dtype=np.uint8)


class HitReader:
    """Reads the rows of few keys from one row group, with all data that do not change prepared.

    Parameters
    ----------
    names : sequence of str
        The columns of the result. The first one is searched.
    chunks : sequence of LeafChunk
        Their chunks.
    """

    def __init__(self, names: Sequence[str], chunks: Sequence[LeafChunk]):
        self.names = names
        self.key_leaf = chunks[0].leaf
        self._chunks = chunks
        self._num_rows = int(chunks[0].pages.first_rows[-1])
        self._has_cached_pages = any(are_large(chunk).any() for chunk in chunks)
        self._key = _Columns(chunks[:1])
        self._others = _Columns(chunks[1:]) if len(chunks) > 1 else None

    @property
    def num_bytes(self) -> int:
        """About the bytes that the reader takes in memory, with a table of all columns."""
        others = 0 if self._others is None else 2 * self._others.table.num_bytes
        return others + 2 * self._key.table.num_bytes

    @cached_property
    def _all(self) -> _Columns:
        return _Columns(self._chunks)

    def read(
        self, file: FragmentFile, keys: KeySet, rows: RowRanges
    ) -> tuple[np.ndarray, list[pa.Array] | None] | None:
        """Return the rows that hold a key, ascending, and the values of all columns there.

        Return None if `leaf_reader` has to search the pages, and None instead of the values if it
        has to read them.
        """
        columns = self._others if keys.value is not None else self._all
        if not keys.is_exact:
            return None
        if self._has_cached_pages and (
            keys.count > _MAX_KEYS_IN_CACHED_PAGES or 2 * len(rows) > self._num_rows
        ):
            # The lookup reads most pages, which would drop everything else from the cache.
            return None
        scratch = _SCRATCH
        started = time.perf_counter()
        count = self._find(file, keys, rows, scratch)
        if count <= 0:
            return None if count < 0 else (_NO_ROWS, [])
        found_rows = scratch.rows[:count].copy()
        if count > _MAX_ROWS:
            return found_rows, None
        if columns is not None and time.perf_counter() - started > _DISK_SECONDS:
            columns.prefetch(file, found_rows)
        values = [] if columns is None else columns.take(file, found_rows, scratch)
        if values is not None and keys.value is not None:
            values.insert(0, pa.repeat(keys.value, count))
        return found_rows, values

    def _find(self, file: FragmentFile, keys: KeySet, rows: RowRanges, scratch: _Scratch) -> int:
        key = self._key
        hits = _NO_HITS
        has_dictionary = key.needs_dictionary[0]
        if has_dictionary:
            hits = dictionary_of(file, key.chunks[0]).find_keys(keys)
            # The keys are probably in too many rows if all values of the dictionary are equally
            # frequent.
            if np.count_nonzero(hits) * len(rows) > _MAX_ROWS * hits.size:
                return hit_kernels.REFUSED
        source = key.source(file, rows.starts, rows.stops, scratch)
        while True:
            result = hit_kernels.find_hits(
                source.handle,
                *key.table.places,
                key.table.descriptions,
                rows.starts,
                rows.stops,
                *keys.kernel_arguments,
                hits,
                source.decoded.descriptions,
                source.data,
                *scratch.memory,
                scratch.positions,
                scratch.rows,
                scratch.summary,
            )
            _count_read(file, scratch)
            if result != hit_kernels.NEEDS_DICTIONARY or has_dictionary:
                return result
            key.needs_dictionary[0] = has_dictionary = True
            hits = dictionary_of(file, key.chunks[0]).find_keys(keys)


class _Columns:
    """Column chunks of one row group.

    ``needs_dictionary`` says for each chunk whether a page was read that has dictionary indices.
    """

    def __init__(self, chunks: Sequence[LeafChunk]):
        self.chunks = chunks
        self.table = PageTable(chunks)
        self.needs_dictionary = [False] * len(chunks)
        self._no_dictionaries = np.zeros((len(chunks), 3), dtype=np.int64)

    def prefetch(self, file: FragmentFile, rows: np.ndarray) -> None:
        """Let the system load the pages of some rows from the disk in parallel."""
        pages = self.table.pages_with(rows, rows + 1).pages
        starts, stops = pages["file_start"], pages["file_start"] + pages["num_bytes"]
        file.prefetch(list(zip(starts.tolist(), stops.tolist(), strict=True)))

    def source(
        self, file: FragmentFile, starts: np.ndarray, stops: np.ndarray, scratch: _Scratch
    ) -> _Source:
        """Return where the kernels find the pages with rows of some ranges.

        Raises
        ------
        FragmentUnreadable
        Undecodable
        """
        decoded = self.table.decoded_pages(file, starts, stops, may_drop_others=True)
        handle, data = file.handle, scratch.data
        if handle is None:
            chosen = self.table.pages_with(starts, stops, decoded)
            handle, data = hit_kernels.NO_HANDLE, chosen.read(file)
        return _Source(handle, data, decoded)

    def take(
        self, file: FragmentFile, rows: np.ndarray, scratch: _Scratch
    ) -> list[pa.Array] | None:
        """Return the values of each column at some rows, or None if the kernel refuses a page."""
        count = len(self.chunks)
        flags, levels = scratch.flags[:count], scratch.levels[:count]
        source = self.source(file, rows, rows + 1, scratch)
        while True:
            descriptions, dictionaries = self._no_dictionaries, None
            # Another thread may find that more are needed.
            had_dictionary = self.needs_dictionary
            if True in had_dictionary:
                # The dictionaries must live until their values are copied.
                descriptions, dictionaries = self._dictionaries(file, had_dictionary)
            result = hit_kernels.take_hits(
                source.handle,
                *self.table.places,
                self.table.descriptions,
                descriptions,
                rows,
                source.decoded.descriptions,
                source.data,
                *scratch.memory,
                scratch.positions,
                flags,
                levels,
                scratch.valid,
                scratch.out,
                scratch.offsets,
                scratch.texts,
                scratch.summary,
            )
            _count_read(file, scratch)
            if result != hit_kernels.NEEDS_DICTIONARY:
                break
            have_indices = [bool(flag & HAS_INDICES) for flag in flags.tolist()]
            needed = list(map(or_, had_dictionary, have_indices))
            if had_dictionary == needed:
                # A dictionary that the pages refer to is empty.
                return None
            self.needs_dictionary = needed
        del dictionaries
        return self._arrays(rows.size, levels, scratch) if result == 0 else None

    def _dictionaries(
        self, file: FragmentFile, are_needed: Sequence[bool]
    ) -> tuple[np.ndarray, list[Dictionary]]:
        """Return the descriptions of the needed dictionaries for the kernel, and these."""
        descriptions, dictionaries = self._no_dictionaries.copy(), []
        for number, chunk in enumerate(self.chunks):
            if are_needed[number]:
                dictionary = dictionary_of(file, chunk)
                dictionaries.append(dictionary)
                descriptions[number] = dictionary.kernel_args
        return descriptions, dictionaries

    def _arrays(self, count: int, levels: np.ndarray, scratch: _Scratch) -> list[pa.Array]:
        """Return the values that the kernel took at so many rows."""
        arrays: list[pa.Array] = []
        start = text = text_start = 0
        for number, chunk in enumerate(self.chunks):
            leaf = chunk.leaf
            valid = None
            if levels[number] >= 0:
                valid = scratch.valid[number * count : (number + 1) * count]
            if leaf.width:
                size = leaf.width * count
                arrays.append(
                    fixed_width_array(leaf, scratch.out[start : start + size].copy(), valid)
                )
                start += (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
            else:
                offsets = scratch.offsets[text : text + count + 1].copy()
                stop = text_start + int(offsets[-1])
                texts = scratch.texts[text_start:stop].copy()
                arrays.append(text_array(leaf, offsets, texts, valid))
                text, text_start = text + count + 1, stop
        return arrays


def _count_read(file: FragmentFile, scratch: _Scratch) -> None:
    num_bytes = int(scratch.summary[hit_kernels.BYTES_READ])
    if num_bytes:
        file.counter.add(num_bytes)


class _Source(NamedTuple):
    """Where the kernels find the pages of some rows.

    Attributes
    ----------
    handle : int
        The handle of a local file, or `hit_kernels.NO_HANDLE` if ``data`` has the pages already.
    data : uint8 array
        The memory for the pages that are not decoded.
    decoded : DecodedPages
        The other pages. They must live until their values are copied.
    """

    handle: int
    data: np.ndarray
    decoded: DecodedPages


class _Scratch(threading.local):
    """The memory of the kernels, for each thread. Memory that is never touched costs nothing."""

    def __init__(self) -> None:
        data, bodies = np.empty((2, _MAX_BYTES), dtype=np.uint8)
        present = np.empty(_MAX_VALUES, dtype=np.uint8)
        self.data = data
        self.memory = bodies, present
        self.positions = np.empty(_MAX_VALUES + 1, dtype=np.int64)
        self.rows = np.empty(_MAX_VALUES, dtype=np.int64)
        self.flags, self.levels = np.empty((2, _MAX_COLUMNS), dtype=np.int64)
        self.valid = np.empty(_MAX_VALUES, dtype=np.uint8)
        self.out, self.texts = np.empty((2, _MAX_BYTES), dtype=np.uint8)
        self.offsets = np.empty(_MAX_VALUES, dtype=np.int32)
        self.summary = np.zeros(2, dtype=np.int64)


_SCRATCH = _Scratch()
_NO_ROWS = np.empty(0, dtype=np.int64)


def can_read(chunks: Sequence[LeafChunk]) -> bool:
    """Return whether `HitReader` can read some chunks together."""
    return len(chunks) <= _MAX_COLUMNS and all(
        chunk.chunk.codec in (0, SNAPPY) or are_large(chunk).all() for chunk in chunks
    )

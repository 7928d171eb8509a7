"""Read the rows of few keys from one row group of a local file, with a call of a kernel per step.

    find    search the key column for the keys, in the pages of the wanted rows
    take    take the values of the other columns at the rows that were found

Pages that need more memory than `_Scratch` has, or that the kernels refuse, are left to
`leaf_reader`. It reads them with the same kernels, one after another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import cached_property
from operator import or_

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet import hit_kernels, row_kernels
from zonebloom.parquet.dictionaries import Dictionary
from zonebloom.parquet.header_kernels import HAS_INDICES, PAGE_FIELDS
from zonebloom.parquet.key_tests import KeySet
from zonebloom.parquet.leaf_reader import dictionary_of, has_large_pages
from zonebloom.parquet.leaf_type import (
    BOOLEAN,
    SNAPPY,
    LeafChunk,
    fixed_width_array,
    text_array,
)
from zonebloom.parquet.value_kernels import ALIGNMENT
from zonebloom.storage.random_access import FragmentFile

# The most bytes of pages that are read together, and of their decompressed bodies.
_MAX_BYTES = 1 << 21
# The most values of the pages that are searched, the most rows whose values are taken, the most
# columns, and the most pages.
_MAX_VALUES, _MAX_ROWS, _MAX_COLUMNS, _MAX_PAGES = 1 << 18, 1 << 10, 1 << 10, 1 << 12
# A search that takes longer than this has read from the disk.
_DISK_SECONDS = 500e-6
_NO_HITS = np.empty(0, dtype=np.uint8)


class HitReader:
    """Reads the rows of few keys from one row group, with all data that do not change prepared.

    Parameters
    ----------
    names : sequence of str
        The columns of the result. The first one is searched.
    chunks : sequence of LeafChunk
        Their chunks. `can_read` is true for each.
    """

    def __init__(self, names: Sequence[str], chunks: Sequence[LeafChunk]):
        self.names = names
        self.key_leaf = chunks[0].leaf
        self._chunks = chunks
        self._key, self._others = _Columns(chunks[:1]), _Columns(chunks[1:])

    @cached_property
    def _all(self) -> _Columns:
        return _Columns(self._chunks)

    def read(
        self, file: FragmentFile, handle: int, keys: KeySet, rows: RowRanges
    ) -> tuple[np.ndarray, list[pa.Array] | None] | None:
        """Return the rows that hold a key, ascending, and the values of all columns there.

        ``handle`` is that of the file. Return None if `leaf_reader` has to search the pages, and
        None instead of the values if it has to read them.
        """
        if not keys.is_exact:
            return None
        scratch = _SCRATCH
        started = time.perf_counter()
        count = self._find(file, handle, keys, rows, scratch)
        if count <= 0:
            return None if count < 0 else (_NO_ROWS, [])
        found = scratch.rows[:count].copy()
        if count > _MAX_ROWS:
            return found, None
        columns = self._others if keys.value is not None else self._all
        if time.perf_counter() - started > _DISK_SECONDS:
            columns.prefetch(file, found)
        values = columns.take(file, handle, found, scratch) if columns.chunks else []
        if values is not None and keys.value is not None:
            values.insert(0, pa.repeat(keys.value, count))
        return found, values

    def _find(
        self, file: FragmentFile, handle: int, keys: KeySet, rows: RowRanges, scratch: _Scratch
    ) -> int:
        key = self._key
        hits = _NO_HITS
        if key.has_indices[0]:
            hits = dictionary_of(file, key.chunks[0]).find_keys(keys)
            # If values are as frequent as others, frequent keys are in too many rows.
            if np.count_nonzero(hits) * len(rows) > _MAX_ROWS * hits.size:
                return hit_kernels.REFUSED
        while True:
            result = hit_kernels.find_hits(
                handle,
                *key.arguments,
                rows.starts,
                rows.stops,
                *keys.kernel_arguments,
                hits,
                *scratch.memory,
                scratch.positions,
                scratch.rows,
                scratch.summary,
            )
            file.counter.add(int(scratch.summary[hit_kernels.BYTES_READ]))
            if result != hit_kernels.NEEDS_DICTIONARY or key.has_indices[0]:
                return result
            key.has_indices[0] = True
            hits = dictionary_of(file, key.chunks[0]).find_keys(keys)


class _Columns:
    """Column chunks of one row group, as the kernels get them.

    ``has_indices`` says for each whether a page that refers to its dictionary was read before.
    """

    def __init__(self, chunks: Sequence[LeafChunk]):
        self.chunks = chunks
        self.has_indices = [False] * len(chunks)
        pages = [chunk.pages for chunk in chunks]
        nothing = [np.empty(0, dtype=np.int64)]
        locations = [
            np.concatenate([*nothing, *arrays])
            for arrays in (
                [page.starts for page in pages],
                [page.sizes for page in pages],
                [page.first_rows[:-1] for page in pages],
                [page.first_rows[1:] for page in pages],
            )
        ]
        descriptions = [
            [c.leaf.max_level, c.chunk.codec, c.leaf.width, c.leaf.physical_type == BOOLEAN]
            for c in chunks
        ]
        self.columns = np.array(descriptions, dtype=np.int64).reshape(-1, 4)
        bounds = np.cumsum([0, *(page.starts.size for page in pages)])
        # The first arguments of the kernels, after the handle of the file.
        self.arguments = np.stack(locations), bounds, self.columns
        self._no_dictionaries = np.zeros((len(chunks), 3), dtype=np.int64)

    def prefetch(self, file: FragmentFile, rows: np.ndarray) -> None:
        """Let the system load the pages of some rows from the disk in parallel."""
        (starts, sizes, *bounds_of_rows), bounds, _ = self.arguments
        pages, *_ = row_kernels.choose_pages(
            starts, sizes, np.stack(bounds_of_rows), bounds, rows, rows + 1
        )
        starts, sizes = pages[:2]
        file.prefetch(list(zip(starts.tolist(), (starts + sizes).tolist(), strict=True)))

    def take(
        self, file: FragmentFile, handle: int, rows: np.ndarray, scratch: _Scratch
    ) -> list[pa.Array] | None:
        """Return the values of each column at some rows, or None if the kernel refuses a page."""
        count = len(self.chunks)
        flags, levels = scratch.flags[:count], scratch.levels[:count]
        while True:
            descriptions, dictionaries = self._no_dictionaries, None
            if True in self.has_indices:
                # The dictionaries must live until their values are copied.
                descriptions, dictionaries = self._dictionaries(file)
            result = hit_kernels.take_hits(
                handle,
                *self.arguments,
                descriptions,
                rows,
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
            file.counter.add(int(scratch.summary[hit_kernels.BYTES_READ]))
            if result != hit_kernels.NEEDS_DICTIONARY:
                break
            has_indices = [bool(flag & HAS_INDICES) for flag in flags.tolist()]
            known = list(map(or_, self.has_indices, has_indices))
            if self.has_indices == known:
                # A dictionary that the pages refer to is empty.
                return None
            self.has_indices = known
        del dictionaries
        return self._arrays(rows.size, levels, scratch) if result == 0 else None

    def _dictionaries(self, file: FragmentFile) -> tuple[np.ndarray, list[Dictionary]]:
        """Return the descriptions of the dictionaries for the kernel, and the dictionaries."""
        descriptions, dictionaries = self._no_dictionaries.copy(), []
        for number, chunk in enumerate(self.chunks):
            if self.has_indices[number]:
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


class _Scratch(threading.local):
    """The memory of the kernels, for each thread. Memory that is never touched costs nothing."""

    def __init__(self) -> None:
        table = np.empty(PAGE_FIELDS * _MAX_PAGES, dtype=np.int64)
        data, bodies = np.empty((2, _MAX_BYTES), dtype=np.uint8)
        present = np.empty(_MAX_VALUES, dtype=np.uint8)
        self.memory = data, bodies, present, table
        self.positions = np.empty(_MAX_VALUES + 1, dtype=np.int64)
        self.rows = np.empty(_MAX_VALUES, dtype=np.int64)
        self.flags, self.levels = np.empty((2, _MAX_COLUMNS), dtype=np.int64)
        self.valid = np.empty(_MAX_VALUES, dtype=np.uint8)
        self.out, self.texts = np.empty((2, _MAX_BYTES), dtype=np.uint8)
        self.offsets = np.empty(_MAX_VALUES, dtype=np.int32)
        self.summary = np.zeros(2, dtype=np.int64)


_SCRATCH = _Scratch()
_NO_ROWS = np.empty(0, dtype=np.int64)


def can_read_all(chunks: Sequence[LeafChunk]) -> bool:
    """Return whether the kernels of this module can read all of some chunks together."""
    return len(chunks) <= _MAX_COLUMNS and all(map(can_read, chunks))


def can_read(chunk: LeafChunk) -> bool:
    """Return whether the kernels of this module can read a chunk.

    Large pages are left to `leaf_reader`, which caches them.
    """
    return chunk.chunk.codec in (0, SNAPPY) and not has_large_pages(chunk.pages)

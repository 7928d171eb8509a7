"""Read top-level fields of one row group at some rows: lists, maps and structs of any depth.

Flat fields whose page locations are not known are read here too.

The pages of each leaf that hold the rows are read and decompressed. Their levels give the slots of
the rows, whose values the kernels for flat columns take: to them a slot is a row. Levels also give
the offsets and nulls of the lists and structs around the values.

Leaves may be cut into pages at different rows. A chunk whose page locations are not known is read
whole, and its pages are found by their headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import header_kernels, nested_kernels, row_kernels
from zonebloom.parquet.decoded_pages import NO_DECODED_PAGES
from zonebloom.parquet.decompression_kernels import read_bodies
from zonebloom.parquet.dictionaries import Dictionary
from zonebloom.parquet.file_layout import ColumnChunk, FilePages
from zonebloom.parquet.header_kernels import (
    HAS_INDICES,
    HAS_OTHER_ENCODINGS,
    HAS_PLAIN,
)
from zonebloom.parquet.leaf_reader import (
    cached_dictionary,
    open_bodies,
    read_spans,
    take_arrays,
)
from zonebloom.parquet.leaf_type import (
    BOOLEAN,
    INT32,
    MAX_INT32,
    LeafType,
    Undecodable,
    describe_column,
)
from zonebloom.parquet.nested_schema import Node
from zonebloom.parquet.page_headers import follow_headers
from zonebloom.parquet.page_table import PAGE
from zonebloom.storage.random_access import FragmentFile

_CONTRADICTION = "the levels of a page contradict one another"


class NestedReader:
    """Reads fields of one row group.

    ``whole_chunks`` has the reasons why whole chunks of fields were read, by name.
    """

    def __init__(self, file: FragmentFile, pages: FilePages, row_group: int):
        self._file = file
        self._group = pages.row_groups[row_group]
        self._pages, self._row_group = pages, row_group
        self.whole_chunks: dict[str, str] = {}

    def read(self, trees: Mapping[str, Node], rows: RowRanges) -> dict[str, pa.Array]:
        """Return the values of fields at rows, without the fields that kernels cannot decode."""
        parts = {
            number: self._select(name, number, rows)
            for name, tree in trees.items()
            for number in tree.leaves
        }
        pages = np.concatenate([part.pages for part in parts.values()])
        places = pages["file_start"], pages["num_bytes"]
        data = read_spans(self._file, *places, num_bytes=int(places[1].sum()))
        pieces: dict[int, np.ndarray] = {}
        start = 0
        for number, part in parts.items():
            stop = start + int(part.pages["num_bytes"].sum())
            pieces[number] = data[start:stop]
            start = stop
        row_numbers = rows.rows()
        arrays: dict[str, pa.Array] = {}
        for name, tree in trees.items():
            try:
                leaves = {}
                for node in _leaf_nodes(tree):
                    number = node.leaves.start
                    part = self._pages_in(parts[number], pieces[number], node, rows)
                    leaves[number] = _OpenedLeaf(
                        self._file, node, part, pieces[number], row_numbers
                    )
                arrays[name] = _assemble(tree, leaves)
            except Undecodable:
                continue
            if len(arrays[name]) != row_numbers.size:
                raise FragmentUnreadable(_CONTRADICTION)
        return arrays

    def _select(self, name: str, number: int, rows: RowRanges) -> _ChunkPart:
        """Return the pages of a leaf that hold some of the rows, or its chunk as one piece."""
        chunk = self._group.chunks[number]
        if chunk.num_values < self._group.num_rows:
            raise FragmentUnreadable(
                f"a chunk of {self._group.num_rows} rows has {chunk.num_values} values"
            )
        locations = self._pages.locations(self._row_group, number)
        if locations is None:
            self.whole_chunks[name] = "page locations are not known"
            pages = np.zeros(1, dtype=PAGE)
            pages["file_start"], pages["num_bytes"] = chunk.start, chunk.stop - chunk.start
            return _ChunkPart(chunk, pages, is_located=False)
        if locations.starts.size == 1:
            self.whole_chunks.setdefault(name, "it is one page")
        pages = _choose_pages(locations.starts, locations.sizes, locations.first_rows, rows)
        # The dictionary ends at the first data page.
        return _ChunkPart(chunk, pages, is_located=True, data_start=int(locations.starts[0]))

    def _pages_in(
        self, part: _ChunkPart, data: np.ndarray, node: Node, rows: RowRanges
    ) -> _ChunkPart:
        """Return the pages of a chunk that hold some of the rows, if it was read whole."""
        if part.is_located:
            return part
        chunk, num_rows = part.chunk, self._group.num_rows
        if not node.repetition and chunk.num_values != num_rows:
            raise FragmentUnreadable(f"a chunk of {num_rows} rows has {chunk.num_values} values")
        walk = follow_headers(lambda start: [(data[start:], 0)], 0, data.size, chunk.num_values)
        walked = np.array(list(walk), dtype=np.int64).reshape(-1, 4).T
        # Leave out the dictionary, and pages without values.
        starts, sizes, num_values, page_rows = walked[:, walked[2] > 0]
        if not node.repetition:
            page_rows = num_values
        first_rows = np.append(0, np.cumsum(page_rows))
        if page_rows.min() > 0:
            if first_rows[-1] != num_rows:
                raise FragmentUnreadable(
                    f"pages have {first_rows[-1]} rows, their row group {num_rows}"
                )
            pages = _choose_pages(starts, sizes, first_rows, rows)
            pages["read_start"] = pages["file_start"]
        else:
            # A page of version 1 may begin inside a row, so decode the levels of all pages.
            pages = np.zeros(starts.size, dtype=PAGE)
            pages["read_start"], pages["num_bytes"], pages["num_rows"] = starts, sizes, -1
        # The dictionary, if there is one, is the first page.
        data_start, dictionary = chunk.start, None
        if walked[2, 0] < 0:
            dictionary = data[: walked[1, 0]]
            data_start += dictionary.size
        return part._replace(
            pages=pages, num_rows=num_rows, data_start=data_start, dictionary=dictionary
        )


class _ChunkPart(NamedTuple):
    """Some pages of a column chunk.

    Attributes
    ----------
    chunk : ColumnChunk
    pages : array of page_table.PAGE
        The places and rows of the pages. If the chunk is not located, it is one piece.
    is_located : bool
        Whether the page locations are known.
    num_rows : int
        The number of rows that pages must have together if their single numbers are not known.
    data_start : int
        The end of the dictionary page in the file.
    dictionary : uint8 array or None
        The dictionary page, if it is read already.
    """

    chunk: ColumnChunk
    pages: np.ndarray
    is_located: bool
    num_rows: int = 0
    data_start: int = 0
    dictionary: np.ndarray | None = None


class _OpenedLeaf:
    """The slots of some rows of a leaf: their levels, and the pages that hold their values."""

    def __init__(
        self,
        file: FragmentFile,
        node: Node,
        part: _ChunkPart,
        data: np.ndarray,
        rows: np.ndarray,
    ):
        self._file, self._part = file, part
        chunk, pages = part.chunk, part.pages
        max_level, max_repetition = node.max_definition, node.repetition
        is_boolean = node.leaf is not None and node.leaf.physical_type == BOOLEAN
        description = np.array([[max_level, chunk.codec, 0, max_repetition, int(is_boolean)]])
        self._bounds = np.array([0, pages.size])
        flags, target, buffers = open_bodies(data, pages, self._bounds, description)
        self._flags = int(flags[0])
        # Keep the page buffers alive: the addresses in the table of pages point into them.
        self._buffers: list[object] = [data, *buffers]
        num_slots = int(pages["num_slots"].sum())
        if num_slots > chunk.num_values:
            raise FragmentUnreadable("pages have more values than their column chunk")
        if read_bodies(data, target, pages, self._bounds, description) < 0:
            raise FragmentUnreadable("the body of a page cannot be decoded")
        definitions = np.empty(num_slots if max_level else 0, dtype=np.uint8)
        repetitions = np.empty(num_slots if max_repetition else 0, dtype=np.uint8)
        self._present = np.empty(num_slots, dtype=np.uint8)
        self._counts = np.zeros((max_repetition + 1, max_level + 1), dtype=np.int64)
        self._covered_rows = _covered_rows(pages["first_row"], pages["num_rows"])
        self.num_nulls = nested_kernels.read_levels(
            data,
            pages,
            max_level,
            np.array(node.item_levels),
            definitions,
            repetitions,
            self._present,
            self._counts,
        )
        if self.num_nulls < 0:
            # Levels are damaged, or contradict one another. pyarrow decides what they mean.
            raise Undecodable
        if part.num_rows and pages["num_rows"][0] < 0:
            num_found = repetitions.size - np.count_nonzero(repetitions)
            if num_found != part.num_rows:
                raise FragmentUnreadable(
                    f"pages have {num_found} rows, their row group {part.num_rows}"
                )
        slots = np.empty(num_slots, dtype=np.int64)
        minimum = node.min_definition
        kept, count = nested_kernels.select_slots(
            pages, rows, minimum, definitions, repetitions, slots
        )
        if kept < 0:
            raise FragmentUnreadable("rows are missing in the pages of a column chunk")
        self._pages, self._slots = pages, slots[:count]
        self._definitions, self._repetitions = definitions[:kept], repetitions[:kept]
        self._size = kept

    def take(self, node: Node) -> pa.Array:
        """Return the values of the slots."""
        kind, leaf = node.arrow_type, node.leaf
        if leaf is None:
            if self.num_nulls < self._present.size:
                raise Undecodable
            values = pa.nulls(self._slots.size)
        else:
            # Slots of a required leaf lack a value only where a struct around it is null.
            is_nullable = node.valid_definition > node.min_definition
            has_nulls = is_nullable and self.num_nulls > 0
            if node.is_dictionary:
                values = self._take_indices(leaf, has_nulls=has_nulls)
            else:
                values = self._take(leaf, self._dictionary_arguments(leaf), has_nulls=has_nulls)
        return _as_type(values, kind)

    def _dictionary_arguments(self, leaf: LeafType) -> tuple[int, int, int]:
        """Return the dictionary as `value_kernels.take_values` gets it."""
        return self._dictionary(leaf).kernel_args if self._flags & HAS_INDICES else (0, 0, 0)

    def _dictionary(self, leaf: LeafType) -> Dictionary:
        part = self._part
        dictionary = cached_dictionary(
            self._file, leaf, part.chunk, part.data_start, part.dictionary
        )
        # The cache may drop it while its memory is in use.
        self._buffers.append(dictionary)
        return dictionary

    def _take_indices(self, leaf: LeafType, *, has_nulls: bool) -> pa.Array:
        """Return the values of the slots with all values of the chunk's dictionary."""
        if self._flags & (HAS_PLAIN | HAS_OTHER_ENCODINGS) or leaf.width:
            # pyarrow makes a dictionary of the values of the whole chunk.
            raise Undecodable
        dictionary = self._dictionary(leaf)
        if not dictionary.size:
            # Slots without a value would have the index 0, which an empty dictionary lacks.
            raise Undecodable
        # The values of a dictionary of the numbers from 0 on are the indices themselves.
        numbers = np.arange(dictionary.size, dtype=np.int32)
        numbers_leaf = LeafType(pa.int32(), INT32, numbers.itemsize, leaf.max_level)
        arguments = numbers.ctypes.data, 0, numbers.size
        indices = self._take(numbers_leaf, arguments, has_nulls=has_nulls)
        return pa.DictionaryArray.from_arrays(indices, dictionary.texts(leaf))

    def _take(
        self, leaf: LeafType, dictionary: tuple[int, int, int], *, has_nulls: bool
    ) -> pa.Array:
        pages, slots = self._pages, self._slots
        if leaf.physical_type == BOOLEAN:
            booleans = np.empty(self._present.size, dtype=np.uint8)
            self._buffers.append(booleans)
            if row_kernels.unpack_booleans(pages, booleans) < 0:
                raise FragmentUnreadable("the values of a page cannot be decoded")
        elif self._flags & HAS_OTHER_ENCODINGS:
            # This is imported late, because few files need its kernels.
            from zonebloom.parquet.plain_encoding import convert_pages

            self._buffers += convert_pages(leaf, pages, self._buffers)
        if leaf.width:
            is_plain = pages["encoding"] == header_kernels.PLAIN
            has_other_size = pages["num_stored"] * leaf.width != pages["size"]
            if (is_plain & has_other_size).any():
                # Levels that are damaged may claim fewer values than there are.
                raise Undecodable
        levels = np.array([0 if self.num_nulls else -1])
        description = np.array([describe_column(leaf, self._part.chunk.codec)])
        stored = pages, self._bounds, description, levels, np.array([dictionary]), self._present
        try:
            return take_arrays([leaf], stored, slots, [has_nulls])[0]
        except FragmentUnreadable:
            # Values lie outside their page, or are missing. pyarrow decides what they are.
            raise Undecodable from None

    def offsets(self, node: Node) -> tuple[np.ndarray, np.ndarray]:
        """Return the offsets of lists, and which lists are not null."""
        offsets = np.empty(self._size + 1, dtype=np.int64)
        valid = np.empty(self._size, dtype=np.uint8)
        count = nested_kernels.read_offsets(
            self._definitions,
            self._repetitions,
            node.repetition + 1,
            node.min_definition,
            node.valid_definition,
            node.item_definition,
            offsets,
            valid,
        )
        return offsets[: count + 1], valid[:count]

    def has_entries_of(self, other: _OpenedLeaf, node: Node) -> bool:
        """Return whether two leaves below a node have as many entries, nulls and items of it.

        This includes the rows that are not wanted: if levels of one are damaged, its later values
        may belong to other rows. If the pages cover other rows, return True.
        """
        if self._covered_rows != other._covered_rows:
            return True
        levels = [(node.repetition, node.min_definition), (node.repetition, node.valid_definition)]
        if node.item_definition:
            levels.append((node.repetition + 1, node.item_definition))
        return all(
            self._counts[: repetition + 1, definition:].sum()
            == other._counts[: repetition + 1, definition:].sum()
            for repetition, definition in levels
        )

    def validity(self, node: Node) -> np.ndarray:
        """Return which structs are not null."""
        valid = np.empty(self._size, dtype=np.uint8)
        count = nested_kernels.read_validity(
            self._definitions,
            self._repetitions,
            node.repetition,
            node.min_definition,
            node.valid_definition,
            valid,
        )
        return valid[:count]


def _covered_rows(first_rows: np.ndarray, num_rows: np.ndarray) -> bytes:
    """Return a key that is the same for pages that together hold the same rows."""
    is_start = np.ones(first_rows.size, dtype=bool)
    is_start[1:] = first_rows[1:] != first_rows[:-1] + num_rows[:-1]
    starts = first_rows[is_start]
    lengths = np.add.reduceat(num_rows, np.flatnonzero(is_start))
    return starts.tobytes() + lengths.tobytes()


def _choose_pages(
    starts: np.ndarray, sizes: np.ndarray, first_rows: np.ndarray, rows: RowRanges
) -> np.ndarray:
    """Return a table of the pages of one chunk that hold some of the rows."""
    bounds, page_rows = np.array([0, starts.size]), np.stack([first_rows[:-1], first_rows[1:]])
    places = np.ascontiguousarray(starts), np.ascontiguousarray(sizes), page_rows, bounds
    pages, *_ = row_kernels.choose_pages(*places, rows.starts, rows.stops, NO_DECODED_PAGES)
    # Only flat columns leave out the values of unwanted rows.
    pages["unwanted_rows"] = 0
    return pages


def _leaf_nodes(node: Node) -> list[Node]:
    if not node.children:
        return [node]
    return [leaf for child in node.children for leaf in _leaf_nodes(child)]


def _assemble(node: Node, leaves: Mapping[int, _OpenedLeaf]) -> pa.Array:
    """Return the entries of a node."""
    if not node.children:
        return leaves[node.leaves.start].take(node)
    kind, below = node.storage_type, [leaves[number] for number in node.leaves]
    if not all(leaf.has_entries_of(below[0], node) for leaf in below[1:]):
        raise FragmentUnreadable(_CONTRADICTION)
    children = [_assemble(child, leaves) for child in node.children]
    if any(len(child) != len(children[0]) for child in children):
        raise FragmentUnreadable(_CONTRADICTION)
    if pa.types.is_struct(kind):
        return _as_type(_structs(node, kind, below, children), node.arrow_type)
    items = children[0]
    if pa.types.is_map(kind):
        if items.null_count:
            raise Undecodable
        entries = pa.struct([kind.key_field, kind.item_field])
        items = pa.Array.from_buffers(entries, len(items), [None], children=children)
    return _as_type(_lists(node, kind, below, items), node.arrow_type)


def _structs(
    node: Node, kind: pa.DataType, leaves: list[_OpenedLeaf], children: list[pa.Array]
) -> pa.Array:
    bitmap, size = None, len(children[0])
    if node.valid_definition > node.min_definition:
        valid, *others = [leaf.validity(node) for leaf in leaves]
        if valid.size != size or not all(np.array_equal(valid, other) for other in others):
            raise FragmentUnreadable(_CONTRADICTION)
        bitmap = _bitmap(valid)
    return pa.Array.from_buffers(kind, size, [bitmap], children=children)


def _lists(node: Node, kind: pa.DataType, leaves: list[_OpenedLeaf], items: pa.Array) -> pa.Array:
    (offsets, valid), *others = [leaf.offsets(node) for leaf in leaves]
    for other_offsets, other_valid in others:
        # The leaves of a row would belong to different items.
        if not (np.array_equal(offsets, other_offsets) and np.array_equal(valid, other_valid)):
            raise FragmentUnreadable(_CONTRADICTION)
    if offsets[-1] != len(items):
        raise FragmentUnreadable(_CONTRADICTION)
    bitmap = _bitmap(valid) if node.valid_definition > node.min_definition else None
    if pa.types.is_fixed_size_list(kind):
        sizes = np.diff(offsets)
        if (sizes != np.where(valid, kind.list_size, 0)).any():
            raise Undecodable
        if bitmap is not None:
            # A null has items too, which no one reads.
            places = np.repeat(offsets[:-1], kind.list_size)
            places += np.tile(np.arange(kind.list_size), valid.size)
            indices = pa.array(places, mask=np.repeat(valid == 0, kind.list_size))
            try:
                items = items.take(indices)
            except pa.ArrowNotImplementedError:
                # pyarrow cannot gather values of view types.
                raise Undecodable from None
        return pa.Array.from_buffers(kind, valid.size, [bitmap], children=[items])
    if not pa.types.is_large_list(kind):
        if offsets[-1] > MAX_INT32:
            raise Undecodable
        offsets = offsets.astype(np.int32)
    buffers = [bitmap, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, valid.size, buffers, children=[items])


def _bitmap(valid: np.ndarray) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _as_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values with their extension type, or as a dictionary."""
    if values.type == kind:
        return values
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _as_type(values, kind.storage_type))
    if pa.types.is_dictionary(kind):
        assert isinstance(values, pa.DictionaryArray)
        try:
            indices = values.indices.cast(kind.index_type)
        except pa.ArrowException:
            raise Undecodable from None
        return pa.DictionaryArray.from_arrays(indices, values.dictionary, ordered=kind.ordered)
    return values.cast(kind)

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
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges, touching_bounds
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import header_kernels, nested_kernels, row_kernels
from zonebloom.parquet.decompression_kernels import read_bodies
from zonebloom.parquet.dictionaries import Dictionary
from zonebloom.parquet.file_layout import ColumnChunk, FilePages, PageLocations
from zonebloom.parquet.header_kernels import (
    HAS_INDICES,
    HAS_OTHER_ENCODINGS,
    HAS_PLAIN,
)
from zonebloom.parquet.leaf_reader import (
    PageTable,
    Selection,
    cached_dictionary,
    open_bodies,
    take_arrays,
)
from zonebloom.parquet.leaf_type import (
    BOOLEAN,
    INT32,
    MAX_INT32,
    LeafChunk,
    LeafType,
    Undecodable,
    describe_column,
)
from zonebloom.parquet.nested_schema import Node
from zonebloom.parquet.page_headers import follow_headers
from zonebloom.parquet.page_table import PAGE
from zonebloom.storage.random_access import FragmentFile

_CONTRADICTION = "the levels of a page contradict one another"


class FieldTable:
    """The pages of the leaves of some fields of one row group. All reads share it.

    ``whole_chunks`` has the reasons why whole chunks of fields are read, by name.
    """

    def __init__(self, pages: FilePages, row_group: int, trees: Mapping[str, Node]):
        group = pages.row_groups[row_group]
        self._trees, self._num_rows = trees, group.num_rows
        self.whole_chunks: dict[str, str] = {}
        # The column of each leaf in the table of pages, whether its page locations are known, and
        # its node, by its number in the file.
        self._leaves: dict[int, tuple[int, bool, Node]] = {}
        columns: list[LeafChunk] = []
        for name, tree in trees.items():
            for node in _leaf_nodes(tree):
                assert node.leaf is not None
                number = node.leaves.start
                chunk = _checked(group.chunks[number], node, group.num_rows)
                located = pages.locations(row_group, number)
                if located is None:
                    self.whole_chunks[name] = "page locations are not known"
                elif located.starts.size == 1:
                    self.whole_chunks.setdefault(name, "it is one page")
                self._leaves[number] = len(columns), located is not None, node
                places = located or _one_piece(chunk, group.num_rows)
                columns.append(LeafChunk(node.leaf, chunk, places))
        self._table = PageTable(columns)

    @property
    def num_bytes(self) -> int:
        """About the bytes that the table takes in memory."""
        return self._table.num_bytes

    def take(self, file: FragmentFile, rows: RowRanges) -> dict[str, pa.Array]:
        """Return the values of fields at rows, without the fields that kernels cannot decode."""
        selection = self._table.pages_with(*touching_bounds(rows))
        data, row_numbers = selection.read(file), rows.rows()
        arrays: dict[str, pa.Array] = {}
        for name, tree in self._trees.items():
            try:
                leaves = {}
                for number in tree.leaves:
                    _, _, node = self._leaves[number]
                    part = self._part(number, selection, data, rows)
                    leaves[number] = _OpenedLeaf(file, node, part, data, row_numbers)
                arrays[name] = _assemble(tree, leaves)
            except Undecodable:
                continue
            if len(arrays[name]) != row_numbers.size:
                raise FragmentUnreadable(_CONTRADICTION)
        return arrays

    def _part(
        self, number: int, selection: Selection, data: np.ndarray, rows: RowRanges
    ) -> _ChunkPart:
        """Return the pages of a leaf that hold some of the rows.

        Find them by their headers if the chunk was read whole.
        """
        position, is_located, _ = self._leaves[number]
        column = self._table.columns[position]
        pages = selection.pages[selection.bounds[position] : selection.bounds[position + 1]]
        dictionary, begins_inside = None, False
        if not is_located:
            piece_start, chunk_start = int(pages["read_start"][0]), column.chunk.start
            piece = data[piece_start : piece_start + int(pages["num_bytes"][0])]
            walked = _walk(piece, column.chunk)
            # The dictionary, if there is one, is the first page.
            if walked[2, 0] < 0:
                dictionary = piece[: walked[1, 0]]
            # Leave out the dictionary, and pages without values.
            starts, sizes, num_values, page_rows = walked[:, walked[2] > 0]
            if not column.leaf.max_repetition:
                page_rows = num_values
            first_rows = np.append(0, np.cumsum(page_rows))
            places = PageLocations(chunk_start + starts, sizes, first_rows)
            column = column._replace(pages=places)
            # A page of version 1 may begin inside a row, so decode the levels of all pages.
            begins_inside = page_rows.min() <= 0
            if not begins_inside:
                _require_rows(int(first_rows[-1]), self._num_rows)
                pages = PageTable([column]).pages_with(*touching_bounds(rows)).pages
                pages["read_start"] = pages["file_start"] - chunk_start + piece_start
            else:
                pages = np.zeros(starts.size, dtype=PAGE)
                pages["read_start"], pages["num_bytes"] = piece_start + starts, sizes
                pages["num_rows"] = -1
        # Only flat columns leave out the values of unwanted rows.
        pages["unwanted_rows"] = 0
        group_rows = self._num_rows if begins_inside else 0
        return _ChunkPart(column, pages, group_rows, dictionary)


class _ChunkPart(NamedTuple):
    """Some pages of a column chunk.

    Attributes
    ----------
    column : LeafChunk
    pages : array of page_table.PAGE
        The places and rows of the pages.
    group_rows : int
        The rows that all pages together must have if their own numbers are not known, or 0.
    dictionary : uint8 array or None
        The dictionary page, if it is read already.
    """

    column: LeafChunk
    pages: np.ndarray
    group_rows: int
    dictionary: np.ndarray | None


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
        self._file, self._node, self._part = file, node, part
        leaf, chunk, _ = part.column
        pages, bounds = part.pages, np.array([0, part.pages.size])
        columns = np.array([describe_column(leaf, chunk.codec)])
        flags, target, buffers = open_bodies(data, pages, bounds, columns)
        self._flags = int(flags[0])
        # Keep the page buffers alive: the addresses in the table of pages point into them.
        self._buffers: list[object] = [data, *buffers]
        if pages["num_slots"].sum() > chunk.num_values:
            raise FragmentUnreadable("pages have more values than their column chunk")
        if read_bodies(data, target, pages, bounds, columns) < 0:
            raise FragmentUnreadable("the body of a page cannot be decoded")
        levels = leaf.max_level, np.array(node.item_levels), node.min_definition
        self.num_nulls, self._counts, self._present, *kept = nested_kernels.read_slots(
            data, pages, *levels, rows
        )
        self._definitions, self._repetitions, self._slots = kept
        if self.num_nulls == nested_kernels.DAMAGED:
            # Levels are damaged, or contradict one another. pyarrow decides what they mean.
            raise Undecodable
        if part.group_rows:
            # Each row begins with a slot of the repetition level 0.
            _require_rows(int(self._counts[0].sum()), part.group_rows)
        if self.num_nulls < 0:
            raise FragmentUnreadable("rows are missing in the pages of a column chunk")

    @cached_property
    def covered_rows(self) -> RowRanges:
        """The rows of the pages."""
        pages, group_rows = self._part.pages, self._part.group_rows
        if group_rows:
            return RowRanges([(0, group_rows)])
        return RowRanges.from_arrays(pages["first_row"], pages["first_row"] + pages["num_rows"])

    def take(self) -> pa.Array:
        """Return the values of the slots."""
        node, (leaf, _, _) = self._node, self._part.column
        if pa.types.is_null(leaf.arrow_type):
            if self.num_nulls < self._present.size:
                raise Undecodable
            return _as_type(pa.nulls(self._slots.size), node.arrow_type)
        # Slots of a required leaf lack a value only where a struct around it is null.
        has_nulls = node.valid_definition > node.min_definition and self.num_nulls > 0
        if node.is_dictionary:
            values = self._take_indices(leaf, has_nulls=has_nulls)
        else:
            dictionary = self._dictionary().kernel_args if self._flags & HAS_INDICES else (0, 0, 0)
            values = self._take(leaf, dictionary, has_nulls=has_nulls)
        return _as_type(values, node.arrow_type)

    def _dictionary(self) -> Dictionary:
        dictionary = cached_dictionary(self._file, self._part.column, self._part.dictionary)
        # The cache may drop it while its memory is in use.
        self._buffers.append(dictionary)
        return dictionary

    def _take_indices(self, leaf: LeafType, *, has_nulls: bool) -> pa.Array:
        """Return the values of the slots with all values of the chunk's dictionary."""
        if self._flags & (HAS_PLAIN | HAS_OTHER_ENCODINGS) or leaf.width:
            # pyarrow makes a dictionary of the values of the whole chunk.
            raise Undecodable
        dictionary = self._dictionary()
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
        (_, chunk, _), pages = self._part.column, self._part.pages
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
        bounds, levels = np.array([0, pages.size]), np.array([0 if self.num_nulls else -1])
        described = np.array([describe_column(leaf, chunk.codec)])
        stored = pages, bounds, described, levels, np.array([dictionary]), self._present
        try:
            return take_arrays([leaf], stored, self._slots, [has_nulls])[0]
        except FragmentUnreadable:
            # Values lie outside their page, or are missing. pyarrow decides what they are.
            raise Undecodable from None

    def offsets(self, node: Node) -> tuple[np.ndarray, np.ndarray]:
        """Return the offsets of lists, and which lists are not null."""
        return nested_kernels.read_offsets(
            self._definitions,
            self._repetitions,
            node.repetition + 1,
            node.min_definition,
            node.valid_definition,
            node.item_definition,
        )

    def has_entries_of(self, other: _OpenedLeaf, node: Node) -> bool:
        """Return whether two leaves below a node have as many entries, nulls and items of it.

        This includes the rows that are not wanted: if levels of one are damaged, its later values
        may belong to other rows. If the pages cover other rows, return True.
        """
        if self.covered_rows != other.covered_rows:
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
        return nested_kernels.read_validity(
            self._definitions,
            self._repetitions,
            node.repetition,
            node.min_definition,
            node.valid_definition,
        )


def _checked(chunk: ColumnChunk, node: Node, num_rows: int) -> ColumnChunk:
    """Return the chunk of a leaf. Raise `FragmentUnreadable` if it cannot have its values."""
    if chunk.num_values < num_rows or (chunk.num_values > num_rows and not node.repetition):
        raise FragmentUnreadable(f"a chunk of {num_rows} rows has {chunk.num_values} values")
    return chunk


def _one_piece(chunk: ColumnChunk, num_rows: int) -> PageLocations:
    """Return a whole chunk as the place of its pages, if these are not known."""
    sizes = np.array([chunk.stop - chunk.start])
    return PageLocations(np.array([chunk.start]), sizes, np.array([0, num_rows]))


def _walk(data: np.ndarray, chunk: ColumnChunk) -> np.ndarray:
    """Return the pages of a chunk as `header_kernels.find_pages` writes them."""
    pages = follow_headers(lambda start: [(data[start:], 0)], 0, data.size, chunk.num_values)
    return np.array(list(pages), dtype=np.int64).reshape(-1, 4).T


def _require_rows(num_found: int, num_rows: int) -> None:
    if num_found != num_rows:
        raise FragmentUnreadable(f"pages have {num_found} rows, their row group {num_rows}")


def _leaf_nodes(node: Node) -> list[Node]:
    if not node.children:
        return [node]
    return [leaf for child in node.children for leaf in _leaf_nodes(child)]


def _assemble(node: Node, leaves: Mapping[int, _OpenedLeaf]) -> pa.Array:
    """Return the entries of a node."""
    if not node.children:
        return leaves[node.leaves.start].take()
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

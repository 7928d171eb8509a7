"""Match the Parquet schema of a top-level field with the Arrow type that pyarrow gives it.

The result is a tree of nodes. Each node says by which repetition and definition levels its entries,
nulls and items are recognised:

    optional group tags (LIST)      list, null below 1, has an item from 2     repetition 1
      repeated group list
        optional group element      struct, null below 3
          required int64 id         leaf, greatest definition level 3

Source: LogicalTypes.md of the Parquet format, "Nested Types", with its rules for older files.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from zonebloom.parquet.file_layout import FileSchema
from zonebloom.parquet.leaf_type import (
    BYTE_ARRAY,
    LeafType,
    SchemaTypes,
    Undecodable,
    leaf_type,
    schema_types,
)
from zonebloom.parquet.thrift import ThriftReader

# Field numbers of a SchemaElement, and values of its repetition_type.
_REPETITION, _CHILDREN = 3, 5
_OPTIONAL, _REPEATED = 1, 2


class Node(NamedTuple):
    """A leaf, a struct, or a list or map, with all entries that the rows have at this depth.

    The entries of a node begin at the slots whose repetition level is at most ``repetition`` and
    whose definition level is at least ``min_definition``.

    Attributes
    ----------
    arrow_type : pyarrow.DataType
    leaves : range
        The numbers of the leaves below it.
    repetition, min_definition : int
        The levels of the innermost list or map around it.
    valid_definition : int
        The definition level from which an entry is not null. It is ``min_definition`` if there are
        no nulls.
    item_levels : tuple of int
        For each repetition level of a leaf, the definition level from which the list of this level
        has an item. That of level 0 is 0.
    item_definition : int
        The definition level from which a list has an item, 0 for structs and leaves.
    children : tuple of Node
        The fields of a struct; the items of a list; the key and the value of a map.
    leaf : LeafType or None
        How a leaf is decoded. Of the type null, no value is ever decoded.
    """

    arrow_type: pa.DataType
    leaves: range
    repetition: int
    min_definition: int
    valid_definition: int
    item_levels: tuple[int, ...]
    item_definition: int = 0
    children: tuple[Node, ...] = ()
    leaf: LeafType | None = None

    @property
    def storage_type(self) -> pa.DataType:
        """The type of the entries before they are wrapped in an extension type."""
        kind = self.arrow_type
        while isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        return kind

    @property
    def is_dictionary(self) -> bool:
        """True if pyarrow reads the leaf as an array of dictionary type."""
        return pa.types.is_dictionary(self.storage_type)


class _Element(NamedTuple):
    """An element of the Parquet schema, and the numbers of the leaves below it."""

    repetition: int
    children: tuple[_Element, ...]
    leaves: range


class _Levels(NamedTuple):
    """The levels at a place of the schema."""

    definition: int = 0
    # The definition levels of the repeated elements around it, after a 0.
    item_levels: tuple[int, ...] = (0,)

    def optional(self) -> _Levels:
        return self._replace(definition=self.definition + 1)

    def repeated(self) -> _Levels:
        definition = self.definition + 1
        return _Levels(definition, (*self.item_levels, definition))

    @property
    def repetition(self) -> int:
        return len(self.item_levels) - 1


_TOP = _Levels()


@lru_cache(maxsize=4096)
def field_tree(schema: FileSchema, field: int) -> Node | None:
    """Return the tree of a top-level field, or None if pyarrow has to decode it."""
    types = schema_types(schema)
    if types is None or len(types.arrow) != len(schema.names):
        return None
    start, stop = schema.fields[field]
    elements = [ThriftReader(element).read_struct() for element in schema.elements[start:stop]]
    root, _, _ = _parse_elements(elements, 0, schema.field_leaves[field].start)
    try:
        return _node(root, types.arrow.field(field).type, types.stored.field(field).type, types)
    except Undecodable:
        return None


def _parse_elements(
    elements: Sequence[dict[int, Any]], number: int, leaf: int
) -> tuple[_Element, int, int]:
    """Return an element, and the numbers of the next element and of the next leaf."""
    element, first_leaf = elements[number], leaf
    children = []
    number += 1
    for _ in range(element.get(_CHILDREN, 0)):
        child, number, leaf = _parse_elements(elements, number, leaf)
        children.append(child)
    if not children:
        leaf += 1
    leaves = range(first_leaf, leaf)
    return _Element(element.get(_REPETITION, 0), tuple(children), leaves), number, leaf


def _node(
    element: _Element,
    kind: pa.DataType,
    stored: pa.DataType,
    types: SchemaTypes,
    levels: _Levels = _TOP,
) -> Node:
    """Return the node of an element. Raise `Undecodable` if it does not fit the Arrow type."""
    if element.repetition == _REPEATED:
        # Without a group around it, a repeated element is a list that is never null.
        if not _is_list(kind) or not _is_list(stored):
            raise Undecodable
        item = _value_node(element, kind.value_type, stored.value_type, types, levels.repeated())
        return _list_node(element, kind, levels, levels, (item,))
    inner = levels.optional() if element.repetition == _OPTIONAL else levels
    return _value_node(element, kind, stored, types, inner, levels)


def _value_node(
    element: _Element,
    kind: pa.DataType,
    stored: pa.DataType,
    types: SchemaTypes,
    levels: _Levels,
    outer: _Levels | None = None,
) -> Node:
    """Return the node of an element, which is not null from the definition level of ``levels``.

    ``outer`` has the levels around it, which are the same if it cannot be null.
    """
    outer = levels if outer is None else outer
    if not element.children:
        return _leaf_node(element, kind, stored, types, levels, outer)
    if isinstance(kind, pa.BaseExtensionType):
        if isinstance(stored, pa.BaseExtensionType):
            stored = stored.storage_type
        node = _value_node(element, kind.storage_type, stored, types, levels, outer)
        return node._replace(arrow_type=kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(stored):
        if not len(element.children) == kind.num_fields == stored.num_fields:
            raise Undecodable
        children = [
            _node(child, kind.field(i).type, stored.field(i).type, types, levels)
            for i, child in enumerate(element.children)
        ]
        return _node_at(element, kind, levels, outer, tuple(children))
    repeated = element.children[0]
    if len(element.children) != 1 or repeated.repetition != _REPEATED:
        raise Undecodable
    inner = levels.repeated()
    if pa.types.is_map(kind) and pa.types.is_map(stored):
        if len(repeated.children) != 2:
            raise Undecodable
        key, item = repeated.children
        entries = (
            _node(key, kind.key_type, stored.key_type, types, inner),
            _node(item, kind.item_type, stored.item_type, types, inner),
        )
        return _list_node(element, kind, levels, outer, entries)
    if not _is_list(kind) or not _is_list(stored):
        raise Undecodable
    item_types = kind.value_type, stored.value_type, types, inner
    try:
        if len(repeated.children) != 1:
            raise Undecodable
        item_node = _node(repeated.children[0], *item_types)
    except Undecodable:
        # In files of older writers, the repeated element is the item itself. It then has one level
        # of structs more, so only one of the two fits the Arrow type.
        item_node = _value_node(repeated, *item_types)
    return _list_node(element, kind, levels, outer, (item_node,))


def _leaf_node(
    element: _Element,
    kind: pa.DataType,
    stored: pa.DataType,
    types: SchemaTypes,
    levels: _Levels,
    outer: _Levels,
) -> Node:
    column = types.parquet.column(element.leaves.start)
    found = column.max_definition_level, column.max_repetition_level
    if found != (levels.definition, levels.repetition):
        raise Undecodable
    value_type = kind
    while isinstance(value_type, pa.BaseExtensionType) and value_type != stored:
        value_type = value_type.storage_type
    if pa.types.is_dictionary(value_type):
        value_type = value_type.value_type
    if pa.types.is_null(value_type):
        leaf = LeafType(value_type, BYTE_ARRAY, 0, *found)
    else:
        leaf = leaf_type(column, value_type, stored)
    if leaf is None:
        raise Undecodable
    return _node_at(element, kind, levels, outer)._replace(leaf=leaf)


def _node_at(
    element: _Element,
    kind: pa.DataType,
    levels: _Levels,
    outer: _Levels,
    children: tuple[Node, ...] = (),
) -> Node:
    """Return the node of an element, without what only leaves and lists have."""
    is_nullable = levels.definition > outer.definition
    min_definition = outer.item_levels[-1]
    return Node(
        kind,
        element.leaves,
        outer.repetition,
        min_definition,
        valid_definition=levels.definition if is_nullable else min_definition,
        item_levels=levels.item_levels,
        children=children,
    )


def _list_node(
    element: _Element,
    kind: pa.DataType,
    levels: _Levels,
    outer: _Levels,
    children: tuple[Node, ...],
) -> Node:
    node = _node_at(element, kind, levels, outer, children)
    return node._replace(item_definition=levels.definition + 1)


def _is_list(kind: pa.DataType) -> bool:
    is_type = pa.types
    return is_type.is_list(kind) or is_type.is_large_list(kind) or is_type.is_fixed_size_list(kind)

"""Footers with the names a table has for the fields of a file, so that whatever reads by name reads
a table's column where a file tells it by another name or by its field id.

Sources: Iceberg's spec, "Column Projection"; Delta's PROTOCOL.md, "Column Mapping"; LogicalTypes.md
of the Parquet format, "Nested Types".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.file_layout import FilePages, FileSchema
from zonebloom.parquet.footer import PARQUET_MAGIC, parse_footer, read_footer_bytes
from zonebloom.parquet.synthetic_file import file_metadata, metadata_ends
from zonebloom.parquet.thrift import Struct, ThriftReader, encode_binary
from zonebloom.storage.file_view import FieldNames

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# Of a SchemaElement: repetition_type (and its REPEATED), name, num_children, field_id.
_REPETITION, _NAME, _CHILDREN, _FIELD_ID = 3, 4, 5, 9
_REPEATED = 2


def pages_with_names(pages: FilePages, names: FieldNames | None) -> FilePages:
    """The pages of a file, their schema with a table's names."""
    if names is None:
        return pages
    if pages.renamed_pages is None or pages.renamed_pages[0] is not names:
        named = FilePages(_named_schema(pages.schema, names), pages.row_groups, pages.locations)
        pages.renamed_pages = names, named
    return pages.renamed_pages[1]


def metadata_with_names(file: pa.NativeFile, names: FieldNames) -> pq.FileMetaData:
    """The footer of a file as pyarrow has it, with a table's names."""
    import pyarrow.parquet as pq

    def read(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [file.read_at(stop - start, start) for start, stop in ranges]

    data, _ = read_footer_bytes(file.size(), read)
    raw: list[Struct] = ThriftReader(data).read_struct()[2]
    elements = _named([data[each.start : each.stop] for each in raw], names)
    footer = b"".join([data[: raw[0].start], *elements, data[raw[-1].stop :]])
    tail = struct.pack("<I", len(footer)) + PARQUET_MAGIC
    return pq.read_metadata(pa.BufferReader(PARQUET_MAGIC + footer + tail))


@lru_cache(maxsize=256)
def _named_schema(schema: FileSchema, names: FieldNames) -> FileSchema:
    elements = _named(schema.elements, names)
    return parse_footer(
        file_metadata(*metadata_ends(schema, elements, schema.arrow_schema), 0, []), 0
    ).schema


def _named(elements: Sequence[bytes], names: FieldNames) -> list[bytes]:
    """The elements of a schema, depth first, with a table's names; those of fields it does not have
    get names that nothing else has."""
    raw = [ThriftReader(each).read_struct() for each in elements]
    children: list[list[int]] = [[] for _ in raw]

    def nest(at: int) -> int:
        end = at + 1
        for _ in range(raw[at].get(_CHILDREN, 0)):
            children[at].append(end)
            end = nest(end)
        return end

    nest(0)
    by_id = any(_FIELD_ID in each for each in raw[1:])
    if by_id:
        by_id = names.has_field_ids
    elif names.children and not any(each.stored_names for each in names.children):
        raise FragmentUnreadable(
            "it has no field ids, by which the table tells its columns, and no name mapping tells "
            "them by their names; rewrite the file"
        )
    named = list(elements)

    def walk(at: int, node: FieldNames) -> None:
        if node.kind == "struct":
            keys = {
                key: each
                for each in node.children
                for key in ([each.field_id] if by_id else each.stored_names)
            }
            for child in children[at]:
                stored = raw[child][_NAME].decode()
                found = keys.get(raw[child].get(_FIELD_ID) if by_id else stored)
                name = f"{stored}\0{child}" if found is None else found.name
                named[child] = _renamed(elements[child], name)
                if found is not None:
                    walk(child, found)
        elif node.kind != "leaf" and children[at]:
            for child, item in zip(items(at, node.kind), node.children, strict=False):
                walk(child, item)

    def items(at: int, kind: str) -> list[int]:
        """The item of a list, or key and value of a map."""
        repeated = children[at][0]
        if raw[repeated].get(_REPETITION) != _REPEATED:
            # Repeated without a group around it.
            return [at]
        # Older writers have the repeated field be the item itself.
        name, own = raw[repeated][_NAME], raw[at][_NAME]
        is_item = len(children[repeated]) != 1 or name in (b"array", own + b"_tuple")
        return [repeated] if is_item and kind == "list" else children[repeated]

    walk(0, names)
    return named


def _renamed(element: bytes, name: str) -> bytes:
    reader = ThriftReader(element)
    start = reader.find_field(_NAME)
    size = reader.read_varint()
    return element[:start] + encode_binary(name.encode()) + element[reader.at + size :]

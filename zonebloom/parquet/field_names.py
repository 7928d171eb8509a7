"""Rename the fields of a file to the names that its table has for them.

Tables may match columns and files by field ids or by other names. With the renamed schema, all
readers find the columns by the table's names.

Sources: Iceberg's spec, "Column Projection"; Delta's PROTOCOL.md, "Column Mapping"; LogicalTypes.md
of the Parquet format, "Nested Types".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.file_head import encode_head, file_of_metadata
from zonebloom.parquet.file_layout import FilePages, FileSchema
from zonebloom.parquet.footer import parse_footer, read_footer_bytes
from zonebloom.parquet.thrift import Struct, ThriftReader, encode_binary
from zonebloom.storage.file_view import FieldNames

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# Field numbers of a SchemaElement, and the value REPEATED of its repetition_type.
_REPETITION, _NAME, _CHILDREN, _FIELD_ID = 3, 4, 5, 9
_REPEATED = 2


def pages_with_names(pages: FilePages, names: FieldNames | None) -> FilePages:
    """Return the pages of a file with a schema that has a table's names."""
    if names is None:
        return pages
    if pages.renamed_pages is None or pages.renamed_pages[0] is not names:
        schema = _schema_with_names(pages.schema, names)
        pages.renamed_pages = names, FilePages(schema, pages.row_groups, pages.locations)
    return pages.renamed_pages[1]


def metadata_with_names(file: pa.NativeFile, names: FieldNames) -> pq.FileMetaData:
    """Return the metadata of a file, as pyarrow reads it, with a table's names."""
    import pyarrow.parquet as pq

    def read(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [file.read_at(stop - start, start) for start, stop in ranges]

    data, _ = read_footer_bytes(file.size(), read)
    raw: list[Struct] = ThriftReader(data).read_struct()[2]
    elements = _rename_elements([data[element.start : element.stop] for element in raw], names)
    footer = b"".join([data[: raw[0].start], *elements, data[raw[-1].stop :]])
    return pq.read_metadata(file_of_metadata(footer))


@lru_cache(maxsize=256)
def _schema_with_names(schema: FileSchema, names: FieldNames) -> FileSchema:
    elements = _rename_elements(schema.elements, names)
    return parse_footer(encode_head(schema, elements), 0).schema


def _rename_elements(elements: Sequence[bytes], names: FieldNames) -> list[bytes]:
    """Return the elements of a schema, depth first, with a table's names.

    Fields that the table does not have get unique names.
    """
    raw = [ThriftReader(element).read_struct() for element in elements]
    children: list[list[int]] = [[] for _ in raw]

    def collect_children(parent: int) -> int:
        end = parent + 1
        for _ in range(raw[parent].get(_CHILDREN, 0)):
            children[parent].append(end)
            end = collect_children(end)
        return end

    collect_children(0)
    by_id = any(_FIELD_ID in element for element in raw[1:])
    if by_id:
        by_id = names.has_field_ids
    elif names.children and not any(field.stored_names for field in names.children):
        raise FragmentUnreadable(
            "it has no field ids, by which the table identifies its columns, and the table has no "
            "name mapping; rewrite the file"
        )
    renamed = list(elements)

    def walk(parent: int, node: FieldNames) -> None:
        if node.kind == "struct":
            fields_by_key = {
                key: field
                for field in node.children
                for key in ([field.field_id] if by_id else field.stored_names)
            }
            for child in children[parent]:
                stored_name = raw[child][_NAME].decode()
                field = fields_by_key.get(raw[child].get(_FIELD_ID) if by_id else stored_name)
                name = f"{stored_name}\0{child}" if field is None else field.name
                renamed[child] = _rename_element(elements[child], name)
                if field is not None:
                    walk(child, field)
        elif node.kind != "leaf" and children[parent]:
            for child, item in zip(items(parent, node.kind), node.children, strict=False):
                walk(child, item)

    def items(parent: int, kind: str) -> list[int]:
        """Return the item of a list, or the key and the value of a map."""
        repeated = children[parent][0]
        if raw[repeated].get(_REPETITION) != _REPEATED:
            # The field is repeated without a group around it.
            return [parent]
        # In files of older writers the repeated field is the item itself.
        name, parent_name = raw[repeated][_NAME], raw[parent][_NAME]
        is_item = len(children[repeated]) != 1 or name in (b"array", parent_name + b"_tuple")
        return [repeated] if is_item and kind == "list" else children[repeated]

    walk(0, names)
    return renamed


def _rename_element(element: bytes, name: str) -> bytes:
    reader = ThriftReader(element)
    start = reader.find_field(_NAME)
    size = reader.read_varint()
    return element[:start] + encode_binary(name.encode()) + element[reader.at + size :]

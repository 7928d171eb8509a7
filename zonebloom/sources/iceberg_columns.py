"""The columns of an Iceberg table, and how its files tell them: by field id.

Source: Iceberg's spec, "Column Projection", "Name Mapping Serialization", "Default values".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from zonebloom.errors import SourceError
from zonebloom.sources.iceberg_deletes import EqualityColumns
from zonebloom.storage.file_view import FieldNames

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.types import IcebergType, NestedField


class IcebergColumns:
    """The columns of the current schema, and those that equality deletes compare."""

    def __init__(self, table: Table, name: str):
        self._table = table
        self._name = name
        self.ids = {each.name: each.field_id for each in table.schema().fields}
        self.schema = self._as_arrow(table.schema())

    def _as_arrow(self, schema: Schema) -> pa.Schema:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        try:
            arrow = schema_to_pyarrow(schema, include_field_ids=False)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise SourceError(
                f"the schema of the {self._name} has no counterpart in Arrow: {error}"
            ) from None
        return pa.schema([each.with_type(_with_32_bit_offsets(each.type)) for each in arrow])

    @cached_property
    def names(self) -> FieldNames:
        return self._names_of(self._table.schema().fields)

    def _names_of(self, fields: Iterable[NestedField]) -> FieldNames:
        mapping = self._table.name_mapping()
        mapped = {} if mapping is None else dict(_mapped(mapping.root))
        return FieldNames(
            "", kind="struct", children=tuple(_named(each, mapped) for each in fields)
        )

    @cached_property
    def defaults(self) -> dict[str, pa.Scalar]:
        """Values of columns in files that do not have them."""
        columns = {each.name: each for each in self._table.schema().fields}
        for column, field_id in _ids(self._table.schema()).items():
            field = self._table.schema().find_field(field_id)
            if column not in columns and field.initial_default is not None:
                raise SourceError(
                    f"field {column!r} of the {self._name} has an initial default, which older "
                    "files do not hold; zonebloom knows those of top-level columns alone: rewrite "
                    "the table's files first"
                )
        return {
            each.name: scalar_of(each.initial_default, self.schema.field(each.name).type)
            for each in columns.values()
            if each.initial_default is not None
        }

    def keys(self, ids: Sequence[int]) -> EqualityColumns:
        """Columns by id, those of older schemas too, each named by its id."""
        newest_last = [*self._table.schemas().values(), self._table.schema()]
        fields = {each.field_id: each for schema in newest_last for each in schema.fields}
        if not ids or not all(each in fields for each in ids):
            raise SourceError(
                f"the {self._name} has equality deletes by fields {list(ids)}, not all of which "
                "are top-level columns; rewrite its files first (in Spark: CALL "
                "system.rewrite_data_files(table => ..., options => map('rewrite-all', 'true')))"
            )
        from pyiceberg.schema import Schema

        wanted = [fields[each] for each in ids]
        renamed = [each.model_copy(update={"name": str(each.field_id)}) for each in wanted]
        arrow = self._as_arrow(Schema(*renamed))
        # Null is a value here, also of columns that may not be null.
        schema = pa.schema([each.with_nullable(True) for each in arrow])
        defaults = {
            str(each.field_id): scalar_of(
                each.initial_default, schema.field(str(each.field_id)).type
            )
            for each in wanted
            if each.initial_default is not None
        }
        return EqualityColumns(schema, self._names_of(renamed), defaults)

    @property
    def are_kept(self) -> bool:
        """Whether no file can hold a column under another name, by the table's metadata alone."""
        table = self._table
        current = _ids(table.schema())
        schemas = table.schemas()
        # Ids count up from 0: with one missing, a schema was forgotten whose files may live on.
        # With a name mapping files may have no field ids, and any names.
        if table.name_mapping() or sorted(schemas) != list(range(len(schemas))):
            return False
        if not all(_is_same(_ids(each), current) for each in schemas.values()):
            return False
        snapshot = table.current_snapshot()
        assert snapshot is not None
        # Files of format version 1 have sequence number 0; its metadata need not keep schemas.
        return all(manifest.min_sequence_number for manifest in snapshot.manifests(table.io))


def scalar_of(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A value as pyiceberg has it, of a column's type."""
    return pa.scalar(value.bytes if isinstance(value, UUID) else value, kind)


def _named(field: NestedField, mapped: Mapping[int | None, list[str]]) -> FieldNames:
    stored = tuple(mapped.get(field.field_id, ()))
    told = field.name, field.field_id, stored
    return FieldNames(*told, *_inner(field.field_type, mapped))


def _inner(kind: IcebergType, mapped: Mapping[int | None, list[str]]) -> tuple[Any, ...]:
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        return "struct", tuple(_named(each, mapped) for each in kind.fields)
    if isinstance(kind, ListType):
        return "list", (_named(kind.element_field, mapped),)
    if isinstance(kind, MapType):
        return "map", (_named(kind.key_field, mapped), _named(kind.value_field, mapped))
    return "leaf", ()


def _ids(schema: Schema) -> dict[str, int]:
    """Field ids by name, those inside structs, lists and maps too, with dots between."""
    from pyiceberg.schema import index_name_by_id

    return {name: field_id for field_id, name in index_name_by_id(schema).items()}


def _is_same(stored: Mapping[str, int], current: Mapping[str, int]) -> bool:
    """Whether no column goes by another name by now, and no name is another column's."""
    names = {field_id: name for name, field_id in current.items()}
    return all(
        current.get(name, field_id) == field_id and names.get(field_id, name) == name
        for name, field_id in stored.items()
    )


def _mapped(fields: Sequence[MappedField]) -> Iterator[tuple[int | None, list[str]]]:
    for field in fields:
        yield field.field_id, list(field.names)
        yield from _mapped(field.fields)


def _with_32_bit_offsets(type: pa.DataType) -> pa.DataType:
    """A type with 32-bit offsets, as pyiceberg's own scan gives and Parquet files mostly hold."""
    t = pa.types
    if t.is_large_string(type):
        return pa.string()
    if t.is_large_binary(type):
        return pa.binary()
    if t.is_list(type) or t.is_large_list(type):
        return pa.list_(type.value_field.with_type(_with_32_bit_offsets(type.value_type)))
    if t.is_struct(type):
        return pa.struct([each.with_type(_with_32_bit_offsets(each.type)) for each in type.fields])
    if t.is_map(type):
        key, item = type.key_field, type.item_field
        return pa.map_(
            key.with_type(_with_32_bit_offsets(key.type)),
            item.with_type(_with_32_bit_offsets(item.type)),
        )
    return type

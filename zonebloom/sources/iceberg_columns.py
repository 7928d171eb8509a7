"""Map the columns of an Iceberg table to the columns of its files, by field id.

Source: Iceberg's spec, "Column Projection", "Name Mapping Serialization", "Default values".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from zonebloom.errors import SourceError
from zonebloom.sources.iceberg_deletes import EqualityColumns
from zonebloom.sources.table_snapshot import field_names
from zonebloom.storage.file_view import FieldNames
from zonebloom.values.normal_types import with_32_bit_offsets

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import MappedField

_FIELD_ID = b"PARQUET:field_id"


class IcebergColumns:
    """The columns of a table's current schema, and the columns that equality deletes compare."""

    def __init__(self, table: Table, name: str):
        self._table = table
        self._name = name
        self.ids = {field.name: field.field_id for field in table.schema().fields}
        self.schema = self._as_arrow(table.schema())

    def _as_arrow(self, schema: Schema) -> pa.Schema:
        # Most Parquet files and pyiceberg's own scan have 32-bit offsets.
        fields = self._with_field_ids(schema, include_field_ids=False)
        return pa.schema([field.with_type(with_32_bit_offsets(field.type)) for field in fields])

    def _with_field_ids(self, schema: Schema, *, include_field_ids: bool = True) -> pa.Schema:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        try:
            return schema_to_pyarrow(schema, include_field_ids=include_field_ids)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise SourceError(
                f"the schema of the {self._name} has no counterpart in Arrow: {error}"
            ) from None

    @cached_property
    def names(self) -> FieldNames:
        return self._names_of(self._table.schema())

    def _names_of(self, schema: Schema) -> FieldNames:
        mapping = self._table.name_mapping()
        mapped_names = {} if mapping is None else dict(_mapped_names(mapping.root))

        def identify(field: pa.Field) -> tuple[int, tuple[str, ...]]:
            field_id = int(field.metadata[_FIELD_ID])
            return field_id, tuple(mapped_names.get(field_id, ()))

        return field_names(self._with_field_ids(schema), identify)

    @cached_property
    def defaults(self) -> dict[str, pa.Scalar]:
        """The values of columns in files that were written before the column was added."""
        columns = {field.name: field for field in self._table.schema().fields}
        for column, field_id in _field_ids(self._table.schema()).items():
            field = self._table.schema().find_field(field_id)
            if column not in columns and field.initial_default is not None:
                raise SourceError(
                    f"field {column!r} of the {self._name} has an initial default, which "
                    "zonebloom supports for top-level columns only; rewrite the table's files "
                    "first, so that all of them hold the field"
                )
        return {
            column: scalar_of(field.initial_default, self.schema.field(column).type)
            for column, field in columns.items()
            if field.initial_default is not None
        }

    def keys(self, ids: Sequence[int]) -> EqualityColumns:
        """Return the columns with these field ids, also of older schemas. The ids become names."""
        # The current schema comes last, so that its fields replace those of older schemas.
        schemas = [*self._table.schemas().values(), self._table.schema()]
        fields = {field.field_id: field for schema in schemas for field in schema.fields}
        if not ids or not all(field_id in fields for field_id in ids):
            raise SourceError(
                f"the {self._name} has equality deletes by fields {list(ids)}, not all of which "
                "are top-level columns; rewrite its files first (in Spark: CALL "
                "system.rewrite_data_files(table => ..., options => map('rewrite-all', 'true')))"
            )
        from pyiceberg.schema import Schema

        fields_named_by_id = [
            fields[field_id].model_copy(update={"name": str(field_id)}) for field_id in ids
        ]
        key_schema = Schema(*fields_named_by_id)
        # Equality deletes can delete null, so allow nulls in every column.
        schema = pa.schema([field.with_nullable(True) for field in self._as_arrow(key_schema)])
        defaults = {
            field.name: scalar_of(field.initial_default, schema.field(field.name).type)
            for field in fields_named_by_id
            if field.initial_default is not None
        }
        return EqualityColumns(schema, self._names_of(key_schema), defaults)

    @property
    def files_have_table_names(self) -> bool:
        """Return whether the metadata proves that every file has the table's current names."""
        table = self._table
        current = _field_ids(table.schema())
        schemas = table.schemas()
        # Schema ids count up from 0. A missing id means that a schema was removed, and its files
        # may still be in the table. With a name mapping, files may have any names.
        if table.name_mapping() or sorted(schemas) != list(range(len(schemas))):
            return False
        if not all(_has_same_names(_field_ids(schema), current) for schema in schemas.values()):
            return False
        snapshot = table.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(table.io)
        # Sequence number 0 is a file of format version 1, whose metadata may omit old schemas.
        return all(manifest.min_sequence_number for manifest in manifests)


def scalar_of(value: Any, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(value.bytes if isinstance(value, UUID) else value, kind)


def _field_ids(schema: Schema) -> dict[str, int]:
    """Return field ids by dotted name, including fields inside structs, lists and maps."""
    from pyiceberg.schema import index_name_by_id

    return {name: field_id for field_id, name in index_name_by_id(schema).items()}


def _has_same_names(stored: Mapping[str, int], current: Mapping[str, int]) -> bool:
    """Return whether no column was renamed, and no name was given to another column."""
    names = {field_id: name for name, field_id in current.items()}
    return all(
        current.get(name, field_id) == field_id and names.get(field_id, name) == name
        for name, field_id in stored.items()
    )


def _mapped_names(fields: Sequence[MappedField]) -> Iterator[tuple[int | None, list[str]]]:
    for field in fields:
        yield field.field_id, list(field.names)
        yield from _mapped_names(field.fields)

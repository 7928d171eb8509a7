"""Build the source of a Delta Lake or Iceberg snapshot, which names its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.errors import FragmentUnreadable, SourceError
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.files import FileIdentity
from zonebloom.storage.paths import key_below

# The values of partition columns, which the metadata gives to all rows of a file.
ValuesByColumn: TypeAlias = Mapping[str, pa.Scalar]


@dataclass(frozen=True, slots=True)
class SnapshotSource(Source):
    """The source of a table's snapshot. Unlike in a folder, a missing file is an error."""

    kind: Literal["delta", "iceberg"]
    name: str  # of the table and its snapshot, for messages
    values: Mapping[str, ValuesByColumn]  # by path, from the table's metadata
    # Identifiers of columns that survive renaming. Columns identified by their name are left out.
    fields: Mapping[tuple[str, ...], tuple[str, ...]]

    @property
    def is_table_snapshot(self) -> bool:
        return True

    def partition_columns(self) -> set[str]:
        """Return the columns whose value the metadata gives for at least one file."""
        return {name for values in self.values.values() for name in values}

    def field_of(self, column: tuple[str, ...]) -> tuple[str, ...]:
        return self.fields.get(column, column)

    def column_of(self, field: tuple[str, ...]) -> tuple[str, ...] | None:
        matches = (column for column, identifier in self.fields.items() if identifier == field)
        return next(matches, None)

    def constants(self, fragment: Fragment) -> dict[str, Any]:
        """Return the columns whose value the metadata gives for a fragment, with their values."""
        return {name: _python_value(value) for name, value in self.values[fragment.path].items()}

    def identities(
        self,
        fragments: Sequence[Fragment] | None = None,
        before: Iterable[FileIdentity | None] = (),
    ) -> list[FileIdentity | None]:
        """Return the current identities. Raise `FragmentUnreadable` if a file is missing."""
        fragments = self.fragments if fragments is None else fragments
        current = Source.identities(self, fragments, before)
        for fragment, identity in zip(fragments, current, strict=True):
            if identity is None:
                raise FragmentUnreadable(
                    f"{fragment.path} is gone, and the {self.name} needs it; load the table's "
                    "newest version and open that"
                )
        return current


def snapshot_source(
    kind: Literal["delta", "iceberg"],
    name: str,
    schema: pa.Schema,
    filesystem: pafs.FileSystem,
    root: str,
    files: Sequence[tuple[str, ValuesByColumn, FileView | None]],
    *,
    fields: Mapping[tuple[str, ...], tuple[str, ...]],
    table_version: str,
) -> SnapshotSource:
    import pyarrow.dataset as pads

    values = {path: constants for path, constants, _ in files}
    if len(values) < len(files):
        raise SourceError(
            f"the {name} names a file more than once, so its rows count more than once; rewrite "
            "the table first"
        )
    if len(set(schema.names)) < len(schema.names):
        raise SourceError(f"the {name} has several columns of one name; rename them first")
    root = root.rstrip("/")
    fragments = tuple(
        Fragment(path, key_below(path, root), _partition_expression(constants), view)
        for path, constants, view in files
    )
    return SnapshotSource(
        schema,
        pads.ParquetFileFormat(),
        filesystem,
        root,
        fragments,
        kind,
        name,
        values,
        fields,
        table_version=table_version,
    )


def field_names(
    schema: pa.Schema, identify: Callable[[pa.Field], tuple[int | None, tuple[str, ...]]]
) -> FieldNames:
    """Return how files identify the columns of a table.

    `identify` returns the field id and the stored names of a field, also inside other types.
    """

    def names_of(field: pa.Field) -> FieldNames:
        kind, field_type = "leaf", field.type
        fields: list[pa.Field] = []
        if isinstance(field_type, pa.StructType):
            kind, fields = "struct", list(field_type)
        elif isinstance(field_type, pa.ListType | pa.LargeListType):
            kind, fields = "list", [field_type.value_field]
        elif isinstance(field_type, pa.MapType):
            kind, fields = "map", [field_type.key_field, field_type.item_field]
        return FieldNames(field.name, *identify(field), kind, tuple(map(names_of, fields)))

    return FieldNames("", kind="struct", children=tuple(map(names_of, schema)))


def stable_fields(
    names: FieldNames, path: tuple[str, ...] = (), field: tuple[str, ...] = ()
) -> Any:
    """Yield each column, also inside structs, with an identifier that survives renaming."""
    for child in names.children if names.kind == "struct" else ():
        identifier = child.stored_names[0] if child.field_id is None else f"#{child.field_id}"
        child_path, child_field = (*path, child.name), (*field, identifier)
        yield child_path, child_field
        yield from stable_fields(child, child_path, child_field)


def _partition_expression(values: ValuesByColumn) -> pc.Expression | None:
    """Return an expression that holds for every row of a file, or None without values.

    pyarrow takes the values of these columns from it, and skips files by it.
    """
    conditions = [
        pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        for name, value in values.items()
    ]
    return reduce(and_, conditions) if conditions else None


def _python_value(value: pa.Scalar) -> Any:
    if isinstance(value, pa.TimestampScalar) and value.type.unit == "ns":
        # Python's datetime would lose the nanoseconds.
        return value.value
    return value.as_py()

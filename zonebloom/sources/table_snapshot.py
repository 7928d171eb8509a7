"""A source whose files Delta Lake or Iceberg names: unlike a folder it may not lose a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.errors import FragmentUnreadable, NoFragments, SourceError
from zonebloom.sources.source import Fragment, Source
from zonebloom.storage.file_view import FieldNames, FileView
from zonebloom.storage.files import FileIdentity
from zonebloom.storage.paths import key_below

# What the metadata says of every row of a file: partition columns and their value.
PartitionValues: TypeAlias = Mapping[str, pa.Scalar]


@dataclass(frozen=True, slots=True)
class SnapshotSource(Source):
    name: str  # of the table and its snapshot, for messages
    values: Mapping[str, PartitionValues]  # by path, as the table's metadata says
    # What stays of a column when it is renamed; without those of which the name does.
    fields: Mapping[tuple[str, ...], tuple[str, ...]]

    def partition_columns(self) -> set[str]:
        """Columns whose value the metadata gives for some file at least."""
        return {name for values in self.values.values() for name in values}

    def field_of(self, column: tuple[str, ...]) -> tuple[str, ...]:
        return self.fields.get(column, column)

    def column_of(self, field: tuple[str, ...]) -> tuple[str, ...] | None:
        return next((column for column, of in self.fields.items() if of == field), None)

    def constants(self, fragment: Fragment) -> dict[str, Any]:
        """Columns whose value the metadata gives for a fragment, with that value."""
        return {name: _python(value) for name, value in self.values[fragment.path].items()}

    def identities(
        self,
        fragments: Sequence[Fragment] | None = None,
        before: Iterable[FileIdentity | None] = (),
    ) -> list[FileIdentity | None]:
        asked = self.fragments if fragments is None else fragments
        found = Source.identities(self, asked, before)
        for fragment, identity in zip(asked, found, strict=True):
            if identity is None:
                raise FragmentUnreadable(
                    f"{fragment.path} is gone, and the {self.name} needs it; load the table's "
                    "newest version and open that"
                )
        return found


def snapshot_source(
    name: str,
    schema: pa.Schema,
    filesystem: pafs.FileSystem,
    root: str,
    files: Sequence[tuple[str, PartitionValues, FileView | None]],
    *,
    fields: Mapping[tuple[str, ...], tuple[str, ...]],
    state: str,
) -> SnapshotSource:
    import pyarrow.dataset as pads

    if not files:
        raise NoFragments(f"the {name} has no data file; write some rows first")
    values = {path: known for path, known, _ in files}
    if len(values) < len(files):
        raise SourceError(
            f"the {name} names a file more than once, so its rows count more than once; rewrite "
            "the table first"
        )
    if len(set(schema.names)) < len(schema.names):
        raise SourceError(f"the {name} has several columns of one name; rename them first")
    root = root.rstrip("/")
    fragments = tuple(
        Fragment(path, key_below(path, root), _guarantee(known), view)
        for path, known, view in files
    )
    how = name, values, fields
    return SnapshotSource(
        schema, pads.ParquetFileFormat(), filesystem, root, fragments, *how, table_version=state
    )


def stable_fields(
    names: FieldNames, path: tuple[str, ...] = (), field: tuple[str, ...] = ()
) -> Any:
    """Of each column, those inside structs too, what stays of it when it is renamed."""
    for each in names.children if names.kind == "struct" else ():
        told = each.stored_names[0] if each.field_id is None else f"#{each.field_id}"
        below = (*path, each.name), (*field, told)
        yield below
        yield from stable_fields(each, *below)


def _guarantee(values: PartitionValues) -> pc.Expression | None:
    """What holds for every row, for pyarrow to fill columns in by and to pass over files by."""
    known = [
        pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        for name, value in values.items()
    ]
    return reduce(and_, known) if known else None


def _python(value: pa.Scalar) -> Any:
    if isinstance(value, pa.TimestampScalar) and value.type.unit == "ns":
        # Python's own datetime would lose digits.
        return value.value
    return value.as_py()

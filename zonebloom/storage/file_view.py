"""Describe how a table sees one of its files: its column names, defaults and deleted rows.

Delta Lake and Iceberg map columns to files by physical names or field ids, and store deleted rows
outside the data files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import pyarrow as pa

from zonebloom.base.row_ranges import RowRanges

FieldKind: TypeAlias = Literal["leaf", "struct", "list", "map"]


@dataclass(frozen=True, slots=True, eq=False)
class FieldNames:
    """A field of a table, and how data files identify it. The root holds all columns as children.

    Attributes
    ----------
    name : str
        The field's name in the table.
    field_id : int or None
        The field's id in files that have field ids.
    stored_names : tuple of str
        The names that mean this field in files without field ids.
    kind : {"leaf", "struct", "list", "map"}
    children : tuple of FieldNames
        The fields of a struct, the item of a list, key and value of a map.
    """

    name: str
    field_id: int | None = None
    stored_names: tuple[str, ...] = ()
    kind: FieldKind = "leaf"
    children: tuple[FieldNames, ...] = ()

    @property
    def has_field_ids(self) -> bool:
        """Return whether files may identify fields by id."""
        return any(child.field_id is not None for child in self.children)

    @property
    def has_table_names(self) -> bool:
        """Return whether files without field ids call all fields by the table's names."""
        return all(
            child.has_table_names and (self.kind != "struct" or child.stored_names == (child.name,))
            for child in self.children
        )


class Deletes(Protocol):
    """Rows of one file that a table has deleted."""

    def rows(self) -> RowRanges:
        """Return the offsets of the rows. The first call reads them."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class FileView:
    """The differences between one data file and the table's view of it.

    Attributes
    ----------
    names : FieldNames or None
        None if the file has the table's names.
    defaults : mapping of str to pyarrow.Scalar
        Values of columns that were added to the table after the file was written.
    deletes : RowRanges, Deletes or None
    """

    names: FieldNames | None = None
    defaults: Mapping[str, pa.Scalar] = field(default_factory=dict)
    deletes: RowRanges | Deletes | None = None

    @property
    def deleted(self) -> RowRanges:
        """Return the offsets of the rows that are deleted."""
        if self.deletes is None:
            return RowRanges()
        return self.deletes if isinstance(self.deletes, RowRanges) else self.deletes.rows()

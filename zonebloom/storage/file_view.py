"""How a table sees one of its files: names, defaults and deleted rows that the file does not say.

Delta Lake and Iceberg tie columns to files by physical names or field ids, and name deleted rows
beside the files.
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
    """A field as a table has it, and how files tell it; at the root, all columns.

    Attributes
    ----------
    name : str
        In the table.
    field_id : int or None
        In files that have field ids.
    stored : tuple of str
        In files without: each of these names means it.
    kind : {"leaf", "struct", "list", "map"}
    inner : tuple of Names
        The fields of a struct, the item of a list, key and value of a map.
    """

    name: str
    field_id: int | None = None
    stored_names: tuple[str, ...] = ()
    kind: FieldKind = "leaf"
    children: tuple[FieldNames, ...] = ()

    @property
    def has_field_ids(self) -> bool:
        """Whether files may tell fields by id."""
        return any(each.field_id is not None for each in self.children)

    @property
    def has_table_names(self) -> bool:
        """Whether files that tell fields by name have them under the table's names."""
        return all(
            each.has_table_names and (self.kind != "struct" or each.stored_names == (each.name,))
            for each in self.children
        )


class Deletes(Protocol):
    """Rows of one file that a table has deleted."""

    def rows(self) -> RowRanges:
        """Their offsets; looked up when first asked for."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class FileView:
    """What a table says of one of its files.

    Attributes
    ----------
    names : Names or None
        None where the file has the table's names.
    defaults : mapping of str to pyarrow.Scalar
        Values of columns in files that were written before the column came.
    deletes : RowRanges, Deletes or None
    """

    names: FieldNames | None = None
    defaults: Mapping[str, pa.Scalar] = field(default_factory=dict)
    deletes: RowRanges | Deletes | None = None

    @property
    def deleted_rows(self) -> RowRanges:
        """Offsets of the rows that are deleted."""
        if self.deletes is None:
            return RowRanges()
        return self.deletes if isinstance(self.deletes, RowRanges) else self.deletes.rows()

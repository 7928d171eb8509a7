"""The base class of the kinds of indices, and the writer of a segment that each kind has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from zonebloom.base.arguments import short_repr
from zonebloom.catalog.model import Segment
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, InvalidArgument
from zonebloom.index.table import IndexTable, WrittenTable
from zonebloom.predicates.ast import Compares, LeafPredicate
from zonebloom.values.types import why_not_indexable

Table = TypeVar("Table", bound=IndexTable)


class SegmentWriter(Protocol):
    """A writer of the file of one segment."""

    def add(self, fragment_id: int, part: Any) -> None:
        """Add the next rows of a fragment, as a `ZonePart` of the type that the kind takes.

        Every fragment is added completely before the next.
        """
        ...

    def end_fragment(self, fragment_id: int) -> None:
        """Finish the zones of a fragment, which may have no rows."""
        ...

    def close(self) -> WrittenTable: ...

    def abort(self) -> None:
        """Close the file after a failure. It is not a valid table."""
        ...


class IndexKind(ABC):
    """One kind of index: how it is built, stored, opened and merged.

    Attributes
    ----------
    name : str
        The name of the kind, in upper case.
    file_name : str
        The name of the file of a segment.
    parameters_class : class
        A dataclass of the parameters, which refuses values out of range.
    is_read_in_parts : bool
        Whether a file is opened by reading its end, and searched by reading parts. Files of other
        kinds are read whole.
    takes_values : bool
        Whether its writers take `ColumnValues`, and its tables compare values. Otherwise they
        take and search hashes.
    finds_few_zones : bool
        Whether a table goes from a key to its few zones. Otherwise it tests each zone, and many
        keys usually keep almost every zone.
    task_size_factor : int
        How many times as large the tasks of a build are as the smallest ones. A task writes one
        segment, and a lookup may have to read from each segment.
    """

    name: str
    file_name: str
    parameters_class: Any
    is_read_in_parts: bool = False
    takes_values: bool = False
    finds_few_zones: bool = False
    task_size_factor: int = 16

    def why_not_indexable(self, column_type: pa.DataType, column: str) -> str | None:
        """Return why columns of a type cannot be indexed and what to do, or None if they can."""
        return why_not_indexable(column_type, column)

    def why_not_answered(
        self, leaf: LeafPredicate, column_type: pa.DataType | None = None
    ) -> str | None:
        """Return why an index of values cannot answer a part of a filter, or None if it can.

        Without a type, only the kind of the condition decides.
        """
        if isinstance(leaf, Compares):
            return "range comparisons are not answered by hashes of keys; a ZONEMAP answers them"
        return None

    def check_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return some parameters with the defaults of the others, all of them JSON values.

        "number_of_items", the rows of a zone, is among them. Raise `InvalidArgument` for a
        parameter that is unknown or out of range.
        """
        known_names = [field.name for field in fields(self.parameters_class)]
        unknown = [name for name in parameters if name not in known_names]
        if unknown:
            raise InvalidArgument(
                f"unknown parameter {', '.join(map(short_repr, unknown))}; a {self.name} index has "
                f"{', '.join(known_names)}"
            )
        return asdict(self.parameters_class(**parameters))

    @abstractmethod
    def create_writer(
        self,
        catalog: Catalog,
        path: str,
        parameters: Mapping[str, Any],
        num_writers: int,
        column_type: pa.DataType,
    ) -> SegmentWriter:
        """Create the file of a new segment, and return a writer for it.

        ``num_writers`` writers work at the same time in this process, and share its memory.
        """

    def open(
        self, catalog: Catalog, segment: Segment, report: Callable[[CorruptIndex], None] | None
    ) -> IndexTable:
        """Open the file of a segment, and validate what it claims.

        Raise `CorruptIndex` if it is damaged. A table that finds damage later passes it to
        ``report``, or raises it if that is None.
        """
        path = catalog.path(segment.name, segment.file)
        if segment.file != self.file_name:
            raise CorruptIndex(
                f"{path} is not a file of a {self.name} index; build the index again"
            )
        table = self._open(catalog, segment, path, report)
        try:
            table.require_valid()
        except ValueError as error:
            table.close()
            raise CorruptIndex(f"{path} is damaged ({error}); build the index again") from None
        return table

    def _open(
        self,
        catalog: Catalog,
        segment: Segment,
        path: str,
        report: Callable[[CorruptIndex], None] | None,
    ) -> IndexTable:
        return self.table_of(catalog.read(path, segment.num_bytes, segment.checksum), path)

    def table_of(self, content: pa.Buffer, path: str) -> IndexTable:
        """Return the table in a file that is read whole."""
        raise NotImplementedError

    @abstractmethod
    def merge(self, catalog: Catalog, path: str, tables: Sequence[IndexTable]) -> WrittenTable:
        """Write the zones of all tables, in order, as the file of a new segment."""

    @abstractmethod
    def statistics(
        self, parameters: Mapping[str, Any], tables: Sequence[IndexTable]
    ) -> dict[str, Any]:
        """Return statistics that only this kind of index has."""


def require_tables(tables: Sequence[IndexTable], kind: type[Table], problem: str) -> list[Table]:
    """Return tables as those of one kind. Raise `InvalidArgument` if one is of another kind."""
    of_kind = [table for table in tables if isinstance(table, kind)]
    if len(of_kind) < len(tables):
        raise InvalidArgument(problem)
    return of_kind

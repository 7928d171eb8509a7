"""The kinds of indices that can be built and searched.

The kind is the second argument of `Dataset.create_scalar_index`, and `IndexEntry.kind` in the
catalog. `register_index_kind` adds a kind. All kinds divide the rows of a fragment into zones. Most
look up the hashes of keys (`zonebloom.sbbf.hashing`), so a literal is converted in one place for
all of them. Others compare values (`zonebloom.index.zone_map`). All share key ranges and the rules
for which rows an index covers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.catalog.model import IndexEntry, Segment
from zonebloom.catalog.names import is_table_file_name
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, UnknownIndexKind
from zonebloom.index.hash.kind import HASH
from zonebloom.index.table import IndexTable, WrittenTable
from zonebloom.index.zone_bloom.kind import ZONE_BLOOM
from zonebloom.index.zone_map.kind import ZONE_MAP
from zonebloom.predicates.ast import LeafPredicate


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


class IndexKind(Protocol):
    """One kind of index.

    Attributes
    ----------
    name : str
        The name of the kind, in upper case.
    layouts : mapping of str to str
        The layouts of its files, and the name of a file in each. The first one is the layout that
        builds write. A name consists of lower-case letters and ends with ".arrow", ".sliced",
        ".buckets" or ".sbbf", so that a vacuum recognises it.
    layouts_read_in_parts : collection of str
        The layouts whose files are opened by reading their ends, and searched by reading parts.
        Files of other layouts are read whole.
    takes_values : bool
        Whether its writers take `ColumnValues`, and its tables are `ValueTable`. Otherwise they
        take and search hashes.
    max_searched_keys : int or None
        With more keys than this, a search usually keeps almost every zone, so only some of the keys
        are looked up. None if each key keeps few zones, so that any number of keys is looked up by
        `zonebloom.index.key_search`.
    task_size_factor : int
        How many times as large the tasks of a build are as the smallest ones. A task writes one
        segment, and a lookup may have to read from each segment.
    """

    @property
    def name(self) -> str: ...

    @property
    def layouts(self) -> Mapping[str, str]: ...

    @property
    def layouts_read_in_parts(self) -> Collection[str]: ...

    @property
    def takes_values(self) -> bool: ...

    @property
    def max_searched_keys(self) -> int | None: ...

    @property
    def task_size_factor(self) -> int: ...

    def why_not_indexable(self, column_type: pa.DataType, column: str) -> str | None:
        """Return why columns of a type cannot be indexed and what to do, or None if they can."""
        ...

    def why_not_answered(
        self, leaf: LeafPredicate, column_type: pa.DataType | None = None
    ) -> str | None:
        """Return why an index of values cannot answer a part of a filter, or None if it can.

        Without a type, only the kind of the condition decides.
        """
        ...

    def check_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return some parameters with the defaults of the others, all of them JSON values.

        "number_of_items", the rows of a zone, is among them. Raise `InvalidArgument` for a
        parameter that is unknown or out of range.
        """
        ...

    def probability_for(self, max_false_zones: float, num_zones: int) -> float:
        """Return the parameter "probability" for so many false zones of a key, on average.

        ``num_zones`` are all zones of the index.
        """
        ...

    def choose_layout(self, layout: str, num_zones: int) -> str:
        """Return the layout that a file of so many zones gets.

        ``layout`` is the one that the user asks for. It is "auto", or a layout of this kind.
        """
        ...

    def create_writer(
        self,
        catalog: Catalog,
        path: str,
        parameters: Mapping[str, Any],
        num_writers: int,
        column_type: pa.DataType,
    ) -> SegmentWriter:
        """Create the file of a new segment in the layout of builds, and return a writer for it.

        ``num_writers`` writers work at the same time in this process, and share its memory.
        """
        ...

    def open(
        self, catalog: Catalog, segment: Segment, report: Callable[[CorruptIndex], None] | None
    ) -> IndexTable:
        """Open the file of a segment. Raise `CorruptIndex` if it is damaged.

        A table that finds damage later passes it to ``report``, or raises it if that is None.
        """
        ...

    def merge(
        self, catalog: Catalog, path: str, layout: str, tables: Sequence[IndexTable]
    ) -> WrittenTable:
        """Write the zones of all tables, in order, as the file of a new segment in a layout."""
        ...

    def statistics(
        self, parameters: Mapping[str, Any], tables: Sequence[IndexTable]
    ) -> dict[str, Any]:
        """Return statistics that only this kind of index has."""
        ...


_kinds: dict[str, IndexKind] = {kind.name: kind for kind in (ZONE_BLOOM, HASH, ZONE_MAP)}


def register_index_kind(kind: IndexKind) -> None:
    """Let `Dataset.create_scalar_index` build another kind of index, and lookups use it.

    Workers of Spark have to register it too. Raise `InvalidArgument` if the name of the kind is not
    in upper case, or if a vacuum would not recognise the name of a file.
    """
    if kind.name != kind.name.upper():
        raise arguments.invalid_value(kind.name, "the name of a kind", "use upper-case letters")
    for file in kind.layouts.values():
        if not is_table_file_name(file):
            raise arguments.invalid_value(
                file,
                "a file of the kind",
                'use lower-case letters and the suffix ".arrow" or ".buckets"',
            )
    _kinds[kind.name] = kind


def unregister_index_kind(kind: IndexKind) -> None:
    """Undo `register_index_kind`."""
    del _kinds[kind.name]


def registered_kinds() -> list[IndexKind]:
    return list(_kinds.values())


def why_no_kind_answers(leaf: LeafPredicate) -> str | None:
    """Return why an index of any registered kind cannot answer a part of a filter, or None."""
    reasons = [kind.why_not_answered(leaf) for kind in _kinds.values()]
    return None if None in reasons else reasons[0]


def built_layout(kind: IndexKind) -> str:
    """Return the layout that builds write. Merges may write others."""
    return next(iter(kind.layouts))


def is_registered(name: str) -> bool:
    return name in _kinds


def index_kind(name: object) -> IndexKind:
    """Return the kind with a name in any case. Raise `InvalidArgument` if there is none."""
    kind = _kinds.get(name.upper()) if isinstance(name, str) else None
    if kind is None:
        *first_names, last_name = map(repr, _kinds)
        names = f"{', '.join(first_names)} and {last_name}"
        raise arguments.invalid_value(name, "index_type", f"zonebloom builds {names}")
    return kind


def kind_of(entry: IndexEntry) -> IndexKind:
    """Return the kind of an index. Raise `UnknownIndexKind` if it is not registered."""
    kind = _kinds.get(entry.kind)
    if kind is None:
        raise UnknownIndexKind(
            f"index {entry.name!r} is of kind {entry.kind!r}, which is not registered here; import "
            "the package that calls register_index_kind for it, install a newer zonebloom, or call "
            f"drop_index({entry.name!r})"
        )
    return kind


def open_table(
    kind: IndexKind,
    catalog: Catalog,
    segment: Segment,
    report: Callable[[CorruptIndex], None] | None,
) -> IndexTable:
    """Open the file of a segment as `IndexKind.open` does, and validate what the table claims."""
    table = kind.open(catalog, segment, report)
    try:
        table.require_valid()
    except ValueError as error:
        table.close()
        raise CorruptIndex(f"{table.path} is damaged ({error}); build the index again") from None
    return table


def layout_of(entry: IndexEntry) -> str:
    """Return the layout of the segments of an index.

    It is "mixed" if they differ, and "unknown" if the kind of the index is not registered.
    """
    kind = _kinds.get(entry.kind)
    if kind is None:
        return "unknown"
    files = {file: layout for layout, file in kind.layouts.items()}
    layouts = {files.get(segment.file, "unknown") for segment in entry.segments}
    return layouts.pop() if len(layouts) == 1 else "mixed" if layouts else built_layout(kind)

"""Check that the column of an index is still the column that was indexed."""

from __future__ import annotations

from zonebloom.catalog.model import IndexEntry
from zonebloom.errors import SchemaMismatch
from zonebloom.sources.column_batches import Column
from zonebloom.sources.source import Source
from zonebloom.values.columns import find_leaf_type
from zonebloom.values.types import hash_domain


def indexed_column(entry: IndexEntry, source: Source) -> Column:
    """Return the column of an index.

    Raises
    ------
    SchemaMismatch
        If the column was dropped, was dropped and added again, or changed its type since the build.
    """
    index, column = f"index {entry.name!r}", ".".join(entry.column)
    drop = f"drop_index({entry.name!r})"
    rebuild = (
        f"rebuild it with create_scalar_index({column!r}, name={entry.name!r}), or call {drop}"
    )
    leaf = find_leaf_type(source.schema, entry.column)
    if leaf is None:
        raise SchemaMismatch(
            f"{index} is on column {column}, which the dataset no longer has, or has more than "
            f"once; call {drop}"
        )
    if source.field_of(entry.column) != entry.field_or_column:
        raise SchemaMismatch(
            f"{index} was built on another column {column} than the current one; {rebuild}"
        )
    if hash_domain(leaf) != entry.domain:
        raise SchemaMismatch(
            f"{index} was built when column {column} was {entry.domain}, but it is {leaf} now; "
            f"{rebuild}"
        )
    return Column(entry.column, leaf)

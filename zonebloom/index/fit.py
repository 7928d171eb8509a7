"""The column of an index, if it is still the column that was indexed."""

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
        When the column was dropped, was added again, or has another type than when it was indexed.
    """
    index, column = f"index {entry.name!r}", ".".join(entry.column)
    drop = f"drop_index({entry.name!r})"
    rebuild = (
        f"rebuild it with create_scalar_index({column!r}, name={entry.name!r}), or call {drop}"
    )
    leaf = find_leaf_type(source.schema, entry.column)
    if leaf is None:
        raise SchemaMismatch(
            f"{index} is of column {column}, which the dataset does not have any more, or has more "
            f"than once; call {drop}"
        )
    if source.field_of(entry.column) != entry.field_or_column:
        raise SchemaMismatch(
            f"{index} was built of another column {column} than there is now; {rebuild}"
        )
    if hash_domain(leaf) != entry.domain:
        raise SchemaMismatch(
            f"{index} was built when column {column} was {entry.domain}, it is {leaf} now; "
            f"{rebuild}"
        )
    return Column(entry.column, leaf)

"""Check that the column of an index is still the column that was indexed."""

from __future__ import annotations

from zonebloom.catalog.model import IndexEntry
from zonebloom.errors import SchemaMismatch
from zonebloom.sources.column_batches import Column
from zonebloom.sources.source import Source
from zonebloom.values.columns import find_leaf_type
from zonebloom.values.types import hash_domain


def find_misfit(entry: IndexEntry, source: Source) -> str | None:
    """Return how the column of an index differs from the indexed one, or None if it does not."""
    index, column = f"index {entry.name!r}", ".".join(entry.column)
    leaf = find_leaf_type(source.schema, entry.column)
    if leaf is None:
        return (
            f"{index} is on column {column}, which the dataset no longer has, or has more than once"
        )
    if source.field_of(entry.column) != entry.field_or_column:
        return f"{index} was built on another column of its name than the current column {column}"
    if hash_domain(leaf) != entry.domain:
        return f"{index} was built when column {column} was {entry.domain}, but it is {leaf} now"
    return None


def indexed_column(entry: IndexEntry, source: Source) -> Column:
    """Return the column of an index.

    Raises
    ------
    SchemaMismatch
        If the column was dropped, was dropped and added again, or changed its type since the build.
    """
    misfit = find_misfit(entry, source)
    leaf = find_leaf_type(source.schema, entry.column)
    if misfit is None and leaf is not None:
        return Column(entry.column, leaf)
    advice = f"call drop_index({entry.name!r})"
    if leaf is not None:
        column = ".".join(entry.column)
        rebuild = f"create_scalar_index({column!r}, name={entry.name!r})"
        advice = f"rebuild it with {rebuild}, or {advice}"
    raise SchemaMismatch(f"{misfit}; {advice}")

"""Check that the column of an index is still the column that was indexed."""

from __future__ import annotations

import shlex

import pyarrow as pa

from zonebloom.catalog.model import IndexEntry
from zonebloom.errors import SchemaMismatch
from zonebloom.index.row_keys.rules import UnknownRule, rule_of
from zonebloom.sources.column_batches import Column
from zonebloom.sources.source import Source
from zonebloom.values.columns import find_leaf_type


def find_misfit(entry: IndexEntry, source: Source) -> str | None:
    """Return how the column of an index differs from the indexed one, or None if it does not."""
    index = f"index {entry.name!r}"
    rule = rule_of(entry.rule)
    if isinstance(rule, UnknownRule):
        return f"{index} cannot be used, because {rule.problem}; a newer zonebloom may know it"
    types: list[pa.DataType] = []
    columns = [(entry.column, entry.field or entry.column)]
    columns += zip(rule.other_columns, rule.other_fields, strict=True)
    for path, stable_id in columns:
        column, leaf = ".".join(path), find_leaf_type(source.schema, path)
        if leaf is None:
            return (
                f"{index} is on column {column}, which the dataset no longer has, or has more than "
                "once"
            )
        if source.field_of(path) != stable_id:
            return (
                f"{index} was built on another column of its name than the current column {column}"
            )
        types.append(leaf)
    if rule.domain(types) != entry.domain:
        column, now = rule.text([path for path, _ in columns]), ", ".join(map(str, types))
        return f"{index} was built when column {column} was {entry.domain}, but it is {now} now"
    return None


def indexed_columns(entry: IndexEntry, source: Source) -> tuple[Column, ...]:
    """Return the columns of an index.

    Raises
    ------
    SchemaMismatch
        If the column was dropped, was dropped and added again, or changed its type since the build.
    """
    misfit = find_misfit(entry, source)
    leaf = find_leaf_type(source.schema, entry.column)
    has_type_of_first = source.type_agreement == "first" and len(source.fragments) > 1
    if misfit is None:
        paths = entry.column, *rule_of(entry.rule).other_columns
        types = [find_leaf_type(source.schema, path) for path in paths]
        columns = zip(paths, types, strict=True)
        return tuple(Column(path, type_) for path, type_ in columns if type_ is not None)
    advice = drop = f"call drop_index({entry.name!r})"
    name = shlex.quote(entry.name)
    commands = {drop: f"run zonebloom drop PATH --name {name}"}
    if leaf is None and has_type_of_first:
        first = source.fragments[0].path
        unite = 'open the dataset with schema="union"'
        commands[unite] = "give --schema union"
        advice = f"if only {first} lacks it, {unite}; or {drop}"
    if leaf is not None:
        column = ".".join(entry.column)
        rebuild = f"create_scalar_index({column!r}, name={entry.name!r})"
        commands[rebuild] = f"zonebloom build PATH --column {shlex.quote(column)} --name {name}"
        advice = f"rebuild it with {rebuild}, or {drop}"
    raise SchemaMismatch(f"{misfit}; {advice}", commands=commands)

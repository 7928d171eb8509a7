"""The rules that say which keys an index holds of each row.

    rule          column          keys of a row                            asked by
    ValueRule     any             its value                                Equals, IsIn, IsNull
    TupleRule     several         its values together                      HasTuple

A rule hashes rows for the writers of an index, and gives the hashes that a zone with a matching row
holds. `IndexEntry.rule` has a rule as JSON.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from zonebloom.catalog.model import IndexEntry
from zonebloom.index.zone_parts import ColumnValues, ZonePart
from zonebloom.predicates.ast import (
    ColumnPath,
    Compares,
    Equals,
    IsIn,
    IsNull,
    LeafPredicate,
)
from zonebloom.sbbf.hashing import hash_in_batches
from zonebloom.values.normal_types import hashed_values
from zonebloom.values.probe import Probe, probe, probe_many
from zonebloom.values.types import hash_domain, why_not_indexable

_NO_RANGES = "range comparisons are not answered by hashes of values; a ZONEMAP answers them"


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    """What to look up: a row that matches has a hash of each probe.

    Without a probe, only null rows match. ``nulls_match`` says whether null rows match, too.
    """

    probes: tuple[Probe, ...] = ()
    nulls_match: bool = False


class KeyRule(ABC):
    """A rule that says which keys an index holds of each row."""

    name: ClassVar[str]

    @property
    def other_columns(self) -> tuple[ColumnPath, ...]:
        """The columns of a combination after the first one."""
        return ()

    @property
    def other_fields(self) -> tuple[ColumnPath, ...]:
        """The stable identifiers of the other columns, or their paths."""
        return ()

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the rule as JSON values."""
        return {}

    @abstractmethod
    def text(self, columns: Sequence[ColumnPath]) -> str:
        """Return what is indexed, such as ``tags[]``."""

    @abstractmethod
    def why_not_indexable(self, column_types: Sequence[pa.DataType], column: str) -> str | None:
        """Return why columns of some types have no such keys and what to do, or None."""

    @abstractmethod
    def domain(self, column_types: Sequence[pa.DataType]) -> str:
        """Return the name of the byte form in which the keys are hashed."""

    @abstractmethod
    def parts(self, arrays: Sequence[pa.Array]) -> Iterator[ZonePart]:
        """Yield the hashes of consecutive rows, of which ``arrays`` are the columns."""

    @abstractmethod
    def question(
        self, leaf: LeafPredicate, column_types: Sequence[pa.DataType]
    ) -> KeyQuestion | str:
        """Return what to look up for a condition, or why an index of this rule cannot answer it."""


@dataclass(frozen=True, slots=True)
class ValueRule(KeyRule):
    """The value of the column."""

    name = "values"

    def text(self, columns: Sequence[ColumnPath]) -> str:
        return ".".join(columns[0])

    def why_not_indexable(self, column_types: Sequence[pa.DataType], column: str) -> str | None:
        return why_not_indexable(column_types[0], column)

    def domain(self, column_types: Sequence[pa.DataType]) -> str:
        return hash_domain(column_types[0])

    def parts(self, arrays: Sequence[pa.Array]) -> Iterator[ZonePart]:
        return hash_in_batches(arrays[0])

    def question(
        self, leaf: LeafPredicate, column_types: Sequence[pa.DataType]
    ) -> KeyQuestion | str:
        match leaf:
            case Equals(_, value):
                question = KeyQuestion((probe(column_types[0], value),))
            case IsIn(_, values, null_matches):
                question = KeyQuestion((probe_many(column_types[0], values),), null_matches)
            case IsNull():
                return KeyQuestion(nulls_match=True)
            case Compares():
                return _NO_RANGES
            case _:
                return "an index of values does not answer it"
        return question.probes[0].unusable_reason or question


VALUES = ValueRule()
_RULES: dict[str, type[KeyRule]] = {rule.name: rule for rule in (ValueRule,)}


def rule_of(stored: Mapping[str, Any]) -> KeyRule:
    """Return the rule of the JSON in `IndexEntry.rule`. Raise `ValueError` if it is unknown."""
    if not stored:
        return VALUES
    parameters = dict(stored)
    name = parameters.pop("keys", None)
    if name not in _RULES:
        raise ValueError(f"it holds keys of an unknown rule {name!r}")
    return _RULES[name](**parameters)


def rule_json(rule: KeyRule) -> dict[str, Any]:
    """Return a rule as `IndexEntry.rule` stores it."""
    return {} if rule == VALUES else {"keys": rule.name, **rule.parameters}


def indexed_text(entry: IndexEntry) -> str:
    """Return what an index holds, such as ``id`` or ``tags[]``."""
    try:
        rule = rule_of(entry.rule)
    except ValueError:
        return ".".join(entry.column)
    return rule.text([entry.column, *rule.other_columns])


def column_values(arrays: Sequence[pa.Array]) -> Iterator[ZonePart]:
    """Yield the values of consecutive rows, for indices that compare values."""
    yield ColumnValues(hashed_values(arrays[0]))

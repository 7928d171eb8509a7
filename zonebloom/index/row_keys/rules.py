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

import numpy as np
import pyarrow as pa

from zonebloom.catalog.model import IndexEntry
from zonebloom.index.zone_parts import ColumnValues, ZonePart
from zonebloom.predicates.ast import (
    ColumnPath,
    Compares,
    Equals,
    HasTuple,
    IsIn,
    IsNull,
    LeafPredicate,
)
from zonebloom.sbbf.hashing import Hashes, hash_array, hash_in_batches
from zonebloom.values.normal_types import hashed_values
from zonebloom.values.probe import BulkProbe, Probe, hash_keys, probe, probe_many
from zonebloom.values.types import hash_domain, why_not_indexable

# Hashes of so many rows stay in the CPU cache.
_SLICE_ROWS = 1 << 16
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

    @property
    def name_parts(self) -> tuple[str, ...]:
        """Return what the default name of an index has after its columns."""
        return ()

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


@dataclass(frozen=True)
class TupleRule(KeyRule):
    """The values of several columns together: XXH64 of their hashes, in order.

    Each hash counts as 8 bytes, little-endian. Rows with a null in one of the columns have no key.
    """

    columns: tuple[ColumnPath, ...]
    fields: tuple[ColumnPath, ...]
    name = "tuples"

    def __post_init__(self) -> None:
        # The catalog stores them as JSON.
        for attribute in ("columns", "fields"):
            paths = tuple(tuple(map(str, path)) for path in getattr(self, attribute))
            object.__setattr__(self, attribute, paths)
        if not self.columns or len(self.columns) != len(self.fields):
            raise ValueError("it is of a combination of columns that are not known")

    @property
    def parameters(self) -> dict[str, Any]:
        return {"columns": self.columns, "fields": self.fields}

    @property
    def other_columns(self) -> tuple[ColumnPath, ...]:
        return self.columns

    @property
    def other_fields(self) -> tuple[ColumnPath, ...]:
        return self.fields

    def text(self, columns: Sequence[ColumnPath]) -> str:
        return f"({', '.join(map('.'.join, columns))})"

    def why_not_indexable(self, column_types: Sequence[pa.DataType], column: str) -> str | None:
        reasons = (why_not_indexable(type_, column) for type_ in column_types)
        return next(filter(None, reasons), None)

    def domain(self, column_types: Sequence[pa.DataType]) -> str:
        return f"tuples({', '.join(map(hash_domain, column_types))})"

    def parts(self, arrays: Sequence[pa.Array]) -> Iterator[ZonePart]:
        for hashes in zip(*map(_hash_in_slices, arrays), strict=True):
            values = _hash_of_hashes([part.values for part in hashes])
            is_valid = np.logical_and.reduce([part.is_valid() for part in hashes])
            null_count = is_valid.size - int(np.count_nonzero(is_valid))
            yield Hashes(values, np.packbits(is_valid, bitorder="little"), 0, null_count)

    def question(
        self, leaf: LeafPredicate, column_types: Sequence[pa.DataType]
    ) -> KeyQuestion | str:
        if not isinstance(leaf, HasTuple):
            return "an index of several columns needs an equality for each of them"
        if leaf.columns[1:] != self.columns:
            return "another index is of these columns"
        bulk = self.hash_tuples(leaf.values, column_types)
        if bulk is not None:
            return KeyQuestion((Probe(bulk.hashes),))
        found: list[np.ndarray] = []
        for values in zip(*leaf.values, strict=True):
            probes = list(map(probe, column_types, values))
            reason = next(filter(None, (part.unusable_reason for part in probes)), None)
            if reason is not None:
                return reason
            # A floating point zero has two hashes, so a tuple may have several.
            product = np.meshgrid(*(part.hashes for part in probes))
            found.append(_hash_of_hashes([part.ravel() for part in product]))
        return KeyQuestion((Probe(np.unique(np.concatenate(found))),))

    def hash_tuples(
        self, values: Sequence[pa.Array], column_types: Sequence[pa.DataType]
    ) -> BulkProbe | None:
        """Return the hashes of tuples. None if one may have several hashes, or any."""
        bulks = list(map(hash_keys, column_types, values))
        known = [bulk for bulk in bulks if bulk is not None]
        if len(known) < len(bulks) or any(bulk.zeros.size + bulk.anywhere.size for bulk in known):
            return None
        positions = known[0].positions
        for bulk in known[1:]:
            positions = np.intersect1d(positions, bulk.positions, assume_unique=True)
        hashes = [bulk.hashes[np.searchsorted(bulk.positions, positions)] for bulk in known]
        nothing = np.empty(0, dtype=np.int64)
        no_hashes = np.empty(0, dtype=np.uint64)
        return BulkProbe(_hash_of_hashes(hashes), positions, nothing, no_hashes, nothing)


def _hash_in_slices(array: pa.Array) -> Iterator[Hashes]:
    """Yield the hashes of an array in slices of one size, whatever its type."""
    for start in range(0, len(array), _SLICE_ROWS):
        yield hash_array(array.slice(start, _SLICE_ROWS))


def _hash_of_hashes(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return XXH64 of the hashes at each position, uint64."""
    from zonebloom.sbbf import xxh64

    joined = np.ascontiguousarray(np.stack(parts, axis=1))
    hashes = np.empty(joined.shape[0], dtype=np.uint64)
    if hashes.size:
        xxh64.hash_stride(joined.ctypes.data, joined.shape[1] * joined.itemsize, hashes)
    return hashes


VALUES = ValueRule()
_RULES: dict[str, type[KeyRule]] = {rule.name: rule for rule in (ValueRule, TupleRule)}


def rule_of(stored: Mapping[str, Any]) -> KeyRule:
    """Return the rule of the JSON in `IndexEntry.rule`. Raise `ValueError` if it is unknown."""
    if not stored:
        return VALUES
    parameters = dict(stored)
    name = parameters.pop("keys", None)
    if name not in _RULES:
        raise ValueError(f"it holds keys of an unknown rule {name!r}")
    try:
        return _RULES[name](**parameters)
    except TypeError as error:
        raise ValueError(f"it holds keys of a damaged rule ({error})") from None


def rule_json(rule: KeyRule) -> dict[str, Any]:
    """Return a rule as `IndexEntry.rule` stores it."""
    return {} if rule == VALUES else {"keys": rule.name, **rule.parameters}


def default_name(rule: KeyRule, columns: Sequence[str]) -> str:
    """Return the default name of an index, without the suffix ``_idx``."""
    return "_".join([*columns, *rule.name_parts])


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

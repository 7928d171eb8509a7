"""The rules that say which keys an index holds of each row.

    rule          column          keys of a row                            conditions it answers
    ValueRule     any             its value                                Equals, IsIn, IsNull
    TupleRule     several         its values together                      HasTuple
    ElementRule   of lists        the elements, or a field of each         HasElement
    EntryRule     of maps         key and value of each entry              HasElement with a key
    TokenRule     of strings      its words, or its trigrams               HasText, Equals

A rule hashes rows for the writers of an index, and gives the hashes that a zone with a matching row
holds. `IndexEntry.rule` has a rule as JSON.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zonebloom.catalog.model import IndexEntry
from zonebloom.catalog.version_log import from_json, to_json
from zonebloom.index.row_keys.elements import (
    element_type,
    hash_elements,
    hash_entries,
    hash_of_hashes,
    products_of_hashes,
)
from zonebloom.index.row_keys.tokens import (
    TRIGRAMS,
    WORDS,
    hash_of_token,
    hash_tokens,
    tokens_of_text,
)
from zonebloom.index.table import ColumnValues, ZonePart
from zonebloom.predicates.ast import (
    ColumnPath,
    Compares,
    Equals,
    HasElement,
    HasText,
    HasTuple,
    IsIn,
    IsNull,
    LeafPredicate,
)
from zonebloom.sbbf.hashing import Hashes, hash_array, hash_in_batches
from zonebloom.values.literal import BulkProbe, Probe, hash_keys, probe, probe_many
from zonebloom.values.normal_types import hashed_values
from zonebloom.values.types import family, hash_domain, why_not_indexable

# So many tokens of a text are looked up.
_MAX_TOKENS = 16
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

    @property
    def options(self) -> dict[str, Any]:
        """Return the arguments of `Dataset.create_scalar_index` that choose the rule."""
        return {}

    @abstractmethod
    def text(self, columns: Sequence[ColumnPath]) -> str:
        """Return what is indexed, such as ``tags[]``."""

    @abstractmethod
    def why_not_indexable(
        self, column_types: Sequence[pa.DataType], columns: Sequence[str]
    ) -> str | None:
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

    def why_not_indexable(
        self, column_types: Sequence[pa.DataType], columns: Sequence[str]
    ) -> str | None:
        return why_not_indexable(column_types[0], columns[0])

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
            case HasText():
                return "hashes of values do not answer it; an index of words or trigrams may"
            case _:
                return "hashes of values do not answer it"
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
        are_paths = all(self.columns) and all(self.fields)
        if not self.columns or not are_paths or len(self.columns) != len(self.fields):
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

    def why_not_indexable(
        self, column_types: Sequence[pa.DataType], columns: Sequence[str]
    ) -> str | None:
        reasons = map(why_not_indexable, column_types, columns)
        return next(filter(None, reasons), None)

    def domain(self, column_types: Sequence[pa.DataType]) -> str:
        return f"tuples({', '.join(map(hash_domain, column_types))})"

    def parts(self, arrays: Sequence[pa.Array]) -> Iterator[ZonePart]:
        for hashes in zip(*map(_hash_in_slices, arrays), strict=True):
            values = hash_of_hashes([part.values for part in hashes])
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
            return KeyQuestion((Probe(bulk.hashes, keys=bulk),))
        found = [np.empty(0, dtype=np.uint64)]
        for values in zip(*leaf.values, strict=True):
            probes = list(map(probe, column_types, values))
            reason = next(filter(None, (part.unusable_reason for part in probes)), None)
            if reason is not None:
                return reason
            # A floating point zero has two hashes, so a tuple may have several.
            found.append(products_of_hashes([part.hashes for part in probes]))
        return KeyQuestion((Probe(np.unique(np.concatenate(found))),))

    def hash_tuples(
        self, values: Sequence[pa.Array], column_types: Sequence[pa.DataType]
    ) -> BulkProbe | None:
        """Return the hashes of tuples. None if one may have several hashes, or any."""
        bulks = list(map(hash_keys, column_types, values))
        if any(bulk.zeros.size + bulk.anywhere.size for bulk in bulks):
            return None
        positions = bulks[0].positions
        for bulk in bulks[1:]:
            positions = np.intersect1d(positions, bulk.positions, assume_unique=True)
        hashes = [bulk.hashes[np.searchsorted(bulk.positions, positions)] for bulk in bulks]
        nothing = np.empty(0, dtype=np.int64)
        no_hashes = np.empty(0, dtype=np.uint64)
        return BulkProbe(hash_of_hashes(hashes), positions, nothing, no_hashes, nothing)


def _hash_in_slices(array: pa.Array) -> Iterator[Hashes]:
    """Yield the hashes of an array in slices of one size, whatever its type."""
    for start in range(0, len(array), _SLICE_ROWS):
        yield hash_array(array.slice(start, _SLICE_ROWS))


@dataclass(frozen=True)
class ElementRule(KeyRule):
    """The elements of a list, or a field of the structs in it."""

    field: ColumnPath = ()
    name = "elements"

    @property
    def parameters(self) -> dict[str, Any]:
        return {"field": self.field}

    @property
    def name_parts(self) -> tuple[str, ...]:
        return self.field

    def text(self, columns: Sequence[ColumnPath]) -> str:
        return ".".join([f"{'.'.join(columns[0])}[]", *self.field])

    def why_not_indexable(
        self, column_types: Sequence[pa.DataType], columns: Sequence[str]
    ) -> str | None:
        element = element_type(column_types[0], self.field)
        if element is None:
            return "it has no such elements"
        return why_not_indexable(element, columns[0])

    def domain(self, column_types: Sequence[pa.DataType]) -> str:
        element = element_type(column_types[0], self.field)
        return f"elements({element and hash_domain(element)})"

    def parts(self, arrays: Sequence[pa.Array]) -> Iterator[ZonePart]:
        yield hash_elements(arrays[0], self.field)

    def question(
        self, leaf: LeafPredicate, column_types: Sequence[pa.DataType]
    ) -> KeyQuestion | str:
        element = element_type(column_types[0], self.field)
        if isinstance(leaf, IsNull):
            return KeyQuestion(nulls_match=True)
        if not isinstance(leaf, HasElement) or leaf.field != self.field or element is None:
            return "an index of elements answers only whether a list holds a value"
        found = probe_many(element, leaf.values)
        return found.unusable_reason or KeyQuestion((found,))


@dataclass(frozen=True)
class EntryRule(KeyRule):
    """The entries of a map: key and value together."""

    name = "entries"

    def text(self, columns: Sequence[ColumnPath]) -> str:
        return f"{'.'.join(columns[0])}[]"

    def why_not_indexable(
        self, column_types: Sequence[pa.DataType], columns: Sequence[str]
    ) -> str | None:
        map_type: Any = column_types[0]
        if not pt.is_map(map_type):
            return "it is not a map"
        reasons = (why_not_indexable(type_, columns[0]) for type_ in _entry_types(map_type))
        return next(filter(None, reasons), None)

    def domain(self, column_types: Sequence[pa.DataType]) -> str:
        if not pt.is_map(column_types[0]):
            return "entries()"
        return f"entries({', '.join(map(hash_domain, _entry_types(column_types[0])))})"

    def parts(self, arrays: Sequence[pa.Array]) -> Iterator[ZonePart]:
        yield hash_entries(arrays[0])

    def question(
        self, leaf: LeafPredicate, column_types: Sequence[pa.DataType]
    ) -> KeyQuestion | str:
        if isinstance(leaf, IsNull):
            return KeyQuestion(nulls_match=True)
        if not isinstance(leaf, HasElement) or leaf.key is None or leaf.field:
            return "an index of entries answers only whether a map has a value under a key"
        key_type, value_type = _entry_types(column_types[0])
        keys, values = probe(key_type, leaf.key), probe_many(value_type, leaf.values)
        reason = keys.unusable_reason or values.unusable_reason
        return reason or KeyQuestion((Probe(products_of_hashes([keys.hashes, values.hashes])),))


def _entry_types(map_type: Any) -> tuple[pa.DataType, pa.DataType]:
    return map_type.key_type, map_type.item_type


@dataclass(frozen=True)
class TokenRule(KeyRule):
    """The words or the trigrams of a string, without regard to case if ``lower``."""

    unit: str
    lower: bool = False
    name = "tokens"

    def __post_init__(self) -> None:
        if self.unit not in (WORDS, TRIGRAMS) or not isinstance(self.lower, bool):
            raise ValueError(f"it holds unknown tokens {self.unit!r}")

    @property
    def parameters(self) -> dict[str, Any]:
        return {"unit": self.unit, "lower": self.lower}

    @property
    def name_parts(self) -> tuple[str, ...]:
        return (self.unit,)

    @property
    def options(self) -> dict[str, Any]:
        return {"tokens": self.unit, **({"lower": True} if self.lower else {})}

    def text(self, columns: Sequence[ColumnPath]) -> str:
        name = ".".join(columns[0])
        return f"{self.unit} of {f'lower({name})' if self.lower else name}"

    def why_not_indexable(
        self, column_types: Sequence[pa.DataType], columns: Sequence[str]
    ) -> str | None:
        return None if family(column_types[0]) == "text" else "only strings have tokens"

    def domain(self, column_types: Sequence[pa.DataType]) -> str:
        return f"{self.unit}({hash_domain(column_types[0])}{', lower' if self.lower else ''})"

    def parts(self, arrays: Sequence[pa.Array]) -> Iterator[ZonePart]:
        return hash_tokens(arrays[0], self.unit, lower=self.lower)

    def question(
        self, leaf: LeafPredicate, column_types: Sequence[pa.DataType]
    ) -> KeyQuestion | str:
        match leaf:
            case IsNull():
                return KeyQuestion(nulls_match=True)
            case HasText(_, text, starts_word, ends_word, ignores_case):
                if ignores_case and not self.lower:
                    return "the index tells upper and lower case apart; build it with lower=True"
            case Equals(_, value) if family(value.type) == "text":
                text, starts_word, ends_word = value.as_py(), True, True
            case _:
                return f"an index of {self.unit} answers only whether a string has a text"
        tokens = tokens_of_text(
            text, self.unit, lower=self.lower, starts_word=starts_word, ends_word=ends_word
        )
        if not tokens:
            return f"{text!r} is too short to have certain {self.unit}"
        # The longest words are the rarest ones. Trigrams overlap, so take some of all of them.
        tokens.sort(key=len, reverse=True)
        tokens = tokens[:: -(-len(tokens) // _MAX_TOKENS)] if self.unit == TRIGRAMS else tokens
        hashes = [hash_of_token(token) for token in tokens[:_MAX_TOKENS]]
        return KeyQuestion(tuple(Probe(np.array([hashed], np.uint64)) for hashed in hashes))


@dataclass(frozen=True)
class UnknownRule(KeyRule):
    """A rule of a later release, or a damaged one. An index with it is not used."""

    problem: str
    name = "unknown"

    def text(self, columns: Sequence[ColumnPath]) -> str:
        return f"unknown keys of {'.'.join(columns[0])}"

    def why_not_indexable(
        self, column_types: Sequence[pa.DataType], columns: Sequence[str]
    ) -> str | None:
        return self.problem

    def domain(self, column_types: Sequence[pa.DataType]) -> str:
        return ""

    def parts(self, arrays: Sequence[pa.Array]) -> Iterator[ZonePart]:
        return iter(())

    def question(
        self, leaf: LeafPredicate, column_types: Sequence[pa.DataType]
    ) -> KeyQuestion | str:
        return self.problem


VALUES = ValueRule()
_RULES: dict[str, type[KeyRule]] = {
    rule.name: rule for rule in (ValueRule, TupleRule, ElementRule, EntryRule, TokenRule)
}


def rule_of(stored: Mapping[str, Any]) -> KeyRule:
    """Return the rule of the JSON in `IndexEntry.rule`."""
    if not stored:
        return VALUES
    parameters = dict(stored)
    name = parameters.pop("keys", None)
    if not isinstance(name, str) or name not in _RULES:
        return UnknownRule(f"it holds keys of an unknown rule {name!r}")
    try:
        return from_json(_RULES[name], parameters)
    except (TypeError, ValueError) as error:
        return UnknownRule(f"it holds keys of a damaged rule ({error})")


def rule_json(rule: KeyRule) -> dict[str, Any]:
    """Return a rule as `IndexEntry.rule` stores it."""
    # JSON has lists in place of tuples.
    return {} if rule == VALUES else {"keys": rule.name, **json.loads(to_json(rule.parameters))}


def columns_of_entry(entry: IndexEntry) -> tuple[ColumnPath, ...]:
    """Return the paths of all columns of an index."""
    return entry.column, *rule_of(entry.rule).other_columns


def indexed_text(entry: IndexEntry) -> str:
    """Return what an index holds, such as ``id`` or ``tags[]``."""
    return rule_of(entry.rule).text(columns_of_entry(entry))


def column_values(arrays: Sequence[pa.Array]) -> Iterator[ZonePart]:
    """Yield the values of consecutive rows, for indices that compare values."""
    yield ColumnValues(hashed_values(arrays[0]))

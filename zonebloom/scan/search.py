"""Search the indices for a predicate, and return the row ranges that may match.

Rows that no index covers may always match.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from zonebloom.base.notices import warn
from zonebloom.base.row_ranges import RowRanges, SearchResult
from zonebloom.errors import IndexNotUsedWarning
from zonebloom.index.loaded import LoadedIndex
from zonebloom.index.view import IndexView
from zonebloom.predicates.ast import (
    Compares,
    Constant,
    Equals,
    IsIn,
    IsNull,
    LeafPredicate,
    Predicate,
    Unknown,
    fold_predicate,
)
from zonebloom.scan.partition_columns import PartitionValues
from zonebloom.values.columns import find_leaf_type
from zonebloom.values.probe import Probe, probe, probe_many
from zonebloom.values.types import hash_domain


class NoIndex(str):
    """The reason why a part of a filter is not answered, if its column has no index."""


@dataclass(slots=True)
class Search:
    """The result of a search, with details for its description.

    Attributes
    ----------
    predicate : Predicate
    result : SearchResult
    used_views : dict of str to IndexView
        The indices that were searched, by name.
    partition_pruning : list of (str, RowRanges)
        Parts of the filter that partition values answer, and the rows that they keep.
    unanswered : list of (Predicate, str)
        Parts of the filter that no index could answer, and the reasons.
    """

    predicate: Predicate
    result: SearchResult
    used_views: dict[str, IndexView] = field(default_factory=dict)
    partition_pruning: list[tuple[str, RowRanges]] = field(default_factory=list)
    unanswered: list[tuple[Predicate, str]] = field(default_factory=list)


class Searcher:
    """A search over the indices of one state of a dataset.

    ``live`` has the ids of fragments that have not changed since they were indexed. ``universe`` is
    the addresses of all rows.
    """

    def __init__(
        self,
        schema: pa.Schema,
        indices: Mapping[tuple[str, ...], LoadedIndex],
        live: frozenset[int],
        universe: RowRanges,
        partition_values: PartitionValues,
        field_of: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda column: column,
    ):
        self._field_of = field_of
        self._schema = schema
        self._partition_values = partition_values
        self._indices = indices
        self._live = live
        self._universe = universe
        self._views: dict[str, IndexView] = {}
        self._leaf_types: dict[tuple[str, ...], pa.DataType | None] = {}
        self._anything = SearchResult(universe)

    def view(self, index: LoadedIndex) -> IndexView:
        """Return the view of a loaded index on this state of the dataset."""
        name = index.entry.name
        if name not in self._views:
            self._views[name] = IndexView(index, self._live, self._universe)
        return self._views[name]

    def search(self, predicate: Predicate) -> Search:
        search = Search(predicate, self._anything)
        answer = fold_predicate(
            predicate,
            lambda leaf: self._answer_leaf(leaf, search),
            lambda terms: _AllOf(terms, self._universe),
            lambda terms: _AnyOf(terms, self._universe),
            _Not,
        )
        # If nothing limits the matching rows, do not open any index.
        if answer.bounds_true:
            search.result = answer.rows()
        return search

    def _answer_leaf(self, leaf: LeafPredicate, search: Search) -> _Answer:
        """Return the answer of an index or of partition values, or else that any row may match."""
        match leaf:
            case Constant(value):
                return self._answer_constant(value)
            case Unknown(_, reason):
                answer = reason
            case IsIn(_, values, False) if not len(values):
                nothing = self._bounded(RowRanges())
                return _KnownRows(nothing, bounds_true=True, bounds_false=False)
            case _ if leaf.column[0] in self._partition_values.columns:
                answer = self._answer_by_partition(leaf, search)
            case _:
                answer = self._answer_by_index(leaf, search)
        if isinstance(answer, _Answer):
            return answer
        search.unanswered.append((leaf, answer))
        return _AnyRows(self._anything)

    def _answer_constant(self, value: bool | None) -> _Answer:
        at_most = self._universe if value is True else RowRanges()
        at_least = RowRanges() if value is False else self._universe
        return _KnownRows(
            self._bounded(at_most, at_least),
            bounds_true=value is not True,
            bounds_false=value is not False,
        )

    def _answer_by_partition(
        self, predicate: Equals | IsIn | Compares | IsNull, search: Search
    ) -> _Answer | str:
        """Return the answer of partition values, or the reason why they cannot answer."""
        rows = self._partition_values.rows(predicate)
        if rows is None:
            return "the values in the paths cannot be compared with it"
        at_most, at_least = (bound & self._universe for bound in rows)
        search.partition_pruning.append((str(predicate), at_most))
        result = self._bounded(at_most, at_least)
        result.null_free = not self._partition_values.has_null(predicate.column[0])
        return _KnownRows(result, bounds_true=True, bounds_false=True)

    def _answer_by_index(
        self, predicate: Equals | IsIn | Compares | IsNull, search: Search
    ) -> _Answer | str:
        """Return the answer of an index, or the reason why no index can answer."""
        if isinstance(predicate, Compares):
            return "range comparisons are not answered by a Bloom filter"
        index = self.index(predicate.column)
        if isinstance(index, str):
            return index
        leaf_type = self._leaf_types[predicate.column]
        assert leaf_type is not None
        key_probe: Probe | None = None
        matches_null = isinstance(predicate, IsNull)
        if isinstance(predicate, Equals):
            key_probe = probe(leaf_type, predicate.value)
        elif isinstance(predicate, IsIn):
            key_probe = probe_many(leaf_type, predicate.values)
            matches_null = predicate.null_matches
        if key_probe is not None and key_probe.unusable_reason:
            return key_probe.unusable_reason
        return _IndexLookup(self, search, index, key_probe, matches_null=matches_null)

    def look_up(
        self, index: LoadedIndex, key_probe: Probe | None, *, matches_null: bool
    ) -> SearchResult:
        """Return the rows that may equal a key of a probe, or may be null if null matches."""
        view = self.view(index)
        rows = RowRanges() if key_probe is None else view.matches(key_probe)
        return self._bounded(rows | view.nulls() if matches_null else rows)

    def index(self, column: tuple[str, ...]) -> LoadedIndex | str:
        """Return the index of a column, or the reason why none can be used."""
        index = self._indices.get(column)
        if index is None:
            return NoIndex(f"no index on {'.'.join(column)}")
        if column not in self._leaf_types:
            self._leaf_types[column] = find_leaf_type(self._schema, column)
        leaf_type = self._leaf_types[column]
        entry, reason = index.entry, ""
        if self._field_of(column) != entry.field_or_column:
            reason = f"index {entry.name} was built on another column of its name; build it again"
        elif leaf_type is None or hash_domain(leaf_type) != entry.domain:
            reason = (
                f"index {entry.name} was built when the column was {entry.domain}, but it is "
                f"{leaf_type} now; build it again"
            )
        if reason:
            warn(IndexNotUsedWarning(reason))
            return reason
        return index

    def _bounded(self, at_most: RowRanges, at_least: RowRanges | None = None) -> SearchResult:
        return SearchResult(self._universe, at_most=at_most, at_least=at_least)


class _Answer(ABC):
    """The rows of a condition, which are found in an index only if they are needed.

    Attributes
    ----------
    bounds_true, bounds_false : bool
        Whether the answer limits the rows for which the condition is true, and the rows for which
        it is false.
    is_free : bool
        Whether no index has to be searched for the rows.
    """

    bounds_true: bool
    bounds_false: bool
    is_free: bool = False

    @abstractmethod
    def rows(self) -> SearchResult: ...


class _KnownRows(_Answer):
    """Rows that are known without an index."""

    is_free = True

    def __init__(self, result: SearchResult, *, bounds_true: bool, bounds_false: bool):
        self._result = result
        self.bounds_true = bounds_true
        self.bounds_false = bounds_false

    def rows(self) -> SearchResult:
        return self._result


class _AnyRows(_Answer):
    """All rows, for a condition that nothing can answer."""

    bounds_true = False
    bounds_false = False

    def __init__(self, anything: SearchResult):
        self._anything = anything

    def rows(self) -> SearchResult:
        return self._anything


class _IndexLookup(_Answer):
    """The rows that an index finds. It is loaded when they are first needed."""

    bounds_true = True
    bounds_false = False

    def __init__(
        self,
        searcher: Searcher,
        search: Search,
        index: LoadedIndex,
        key_probe: Probe | None,
        *,
        matches_null: bool,
    ):
        self._searcher = searcher
        self._search = search
        self._index = index
        self._key_probe = key_probe
        self._matches_null = matches_null

    def rows(self) -> SearchResult:
        self._search.used_views[self._index.entry.name] = self._searcher.view(self._index)
        return self._searcher.look_up(self._index, self._key_probe, matches_null=self._matches_null)


class _AllOf(_Answer):
    """The rows for which all terms are true."""

    def __init__(self, terms: list[_Answer], universe: RowRanges):
        self._terms = terms
        self._universe = universe
        self.bounds_true = any(term.bounds_true for term in terms)
        self.bounds_false = all(term.bounds_false for term in terms)

    def rows(self) -> SearchResult:
        result = SearchResult(self._universe, at_most=self._universe, at_least=self._universe)
        # Terms without an index come first. If they leave no row, no index is opened.
        for term in sorted(self._terms, key=lambda term: not term.is_free):
            result &= term.rows()
            if not result.at_most and not result.at_least:
                break
        return result


class _AnyOf(_Answer):
    """The rows for which any term is true."""

    def __init__(self, terms: list[_Answer], universe: RowRanges):
        self._terms = terms
        self._universe = universe
        self.bounds_true = all(term.bounds_true for term in terms)
        self.bounds_false = any(term.bounds_false for term in terms)

    def rows(self) -> SearchResult:
        result = SearchResult(self._universe, at_most=RowRanges(), at_least=RowRanges())
        for term in self._terms:
            result |= term.rows()
        return result


class _Not(_Answer):
    """The rows for which a term is false."""

    def __init__(self, term: _Answer):
        self._term = term
        self.bounds_true = term.bounds_false
        self.bounds_false = term.bounds_true
        self.is_free = term.is_free

    def rows(self) -> SearchResult:
        return ~self._term.rows()

"""Search the indices for a predicate, and return the row ranges that may match.

Rows that no index covers may always match.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

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
        path_values: PartitionValues,
        field_of: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda column: column,
    ):
        self._field_of = field_of
        self._schema = schema
        self._path_values = path_values
        self._indices = indices
        self._live = live
        self._universe = universe
        self._views: dict[str, IndexView] = {}
        self._leaves: dict[tuple[str, ...], pa.DataType | None] = {}
        self._anything = SearchResult(universe)

    def view(self, index: LoadedIndex) -> IndexView:
        """Return the view of a loaded index on this state of the dataset."""
        name = index.entry.name
        if name not in self._views:
            self._views[name] = IndexView(index, self._live, self._universe)
        return self._views[name]

    def search(self, predicate: Predicate) -> Search:
        found = Search(predicate, self._anything)
        answer = fold_predicate(
            predicate,
            lambda leaf: self._leaf(leaf, found),
            self._and,
            self._or,
            lambda term: _Answer(
                lambda: ~term.rows(), term.bounds_false, term.bounds_true, term.is_free
            ),
        )
        # If nothing limits the matching rows, do not open any index.
        if answer.bounds_true:
            found.result = answer.rows()
        return found

    def _leaf(self, leaf: LeafPredicate, found: Search) -> _Answer:
        """Return the answer of an index or of partition values, or else that any row may match."""
        match leaf:
            case Constant(value):
                at_most = self._universe if value is True else RowRanges()
                at_least = RowRanges() if value is False else self._universe
                result = self._bounded(at_most, at_least)
                return _Answer(lambda: result, value is not True, value is not False, True)
            case Unknown(_, reason):
                answer = reason
            case IsIn(_, values, False) if not len(values):
                nothing = self._bounded(RowRanges())
                return _Answer(lambda: nothing, True, False, True)
            case _ if leaf.column[0] in self._path_values.columns:
                answer = self._by_path(leaf, found)
            case _:
                answer = self._lookup(leaf, found)
        if isinstance(answer, _Answer):
            return answer
        found.unanswered.append((leaf, answer))
        return _Answer(lambda: self._anything, False, False, False)

    def _and(self, terms: list[_Answer]) -> _Answer:
        def rows() -> SearchResult:
            result = self._bounded(self._universe, self._universe)
            # What costs nothing comes first: when it leaves no row, no index is opened.
            for term in sorted(terms, key=lambda term: not term.is_free):
                result &= term.rows()
                if not result.at_most and not result.at_least:
                    break
            return result

        bounds_true = any(term.bounds_true for term in terms)
        return _Answer(rows, bounds_true, all(term.bounds_false for term in terms), False)

    def _or(self, terms: list[_Answer]) -> _Answer:
        def rows() -> SearchResult:
            nothing = self._bounded(RowRanges(), RowRanges())
            return reduce(or_, (term.rows() for term in terms), nothing)

        bounds_false = any(term.bounds_false for term in terms)
        return _Answer(rows, all(term.bounds_true for term in terms), bounds_false, False)

    def _by_path(
        self, predicate: Equals | IsIn | Compares | IsNull, found: Search
    ) -> _Answer | str:
        rows = self._path_values.rows(predicate)
        if rows is None:
            return "the values in the paths cannot be compared with it"
        at_most, at_least = (each & self._universe for each in rows)
        found.partition_pruning.append((str(predicate), at_most))
        result = self._bounded(at_most, at_least)
        result.null_free = not self._path_values.has_null(predicate.column[0])
        return _Answer(lambda: result, True, True, True)

    def index(self, column: tuple[str, ...]) -> LoadedIndex | str:
        """Return the index of a column, or the reason why none can be used."""
        index = self._indices.get(column)
        if index is None:
            return NoIndex(f"no index on {'.'.join(column)}")
        if column not in self._leaves:
            self._leaves[column] = find_leaf_type(self._schema, column)
        leaf = self._leaves[column]
        entry, reason = index.entry, ""
        if self._field_of(column) != entry.field_or_column:
            reason = f"index {entry.name} was built on another column of its name; build it again"
        elif leaf is None or hash_domain(leaf) != entry.domain:
            reason = (
                f"index {entry.name} was built when the column was {entry.domain}, but it is "
                f"{leaf} now; build it again"
            )
        if reason:
            warn(IndexNotUsedWarning(reason))
            return reason
        return index

    def _lookup(self, predicate: Equals | IsIn | Compares | IsNull, found: Search) -> _Answer | str:
        """Return the answer of an index to a predicate, or the reason why no index can answer."""
        if isinstance(predicate, Compares):
            return "range comparisons are not answered by a Bloom filter"
        index = self.index(predicate.column)
        if isinstance(index, str):
            return index
        leaf = self._leaves[predicate.column]
        assert leaf is not None
        probed: Probe | None = None
        if isinstance(predicate, Equals):
            probed = probe(leaf, predicate.value)
        elif isinstance(predicate, IsIn):
            probed = probe_many(leaf, predicate.values)
        if probed is not None and probed.unusable_reason:
            return probed.unusable_reason
        nulls = isinstance(predicate, IsNull) or (
            isinstance(predicate, IsIn) and predicate.null_matches
        )

        def rows() -> SearchResult:
            view = self.view(index)
            found.used_views[index.entry.name] = view
            rows = view.matches(probed) if probed is not None else RowRanges()
            return self._bounded(rows | view.nulls() if nulls else rows)

        return _Answer(rows, True, False, False)

    def _bounded(self, at_most: RowRanges, at_least: RowRanges | None = None) -> SearchResult:
        return SearchResult(self._universe, at_most=at_most, at_least=at_least)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The rows of a condition, found in an index if they must be; which of true and false it
    bounds, and whether it asks no index."""

    rows: Callable[[], SearchResult]
    bounds_true: bool
    bounds_false: bool
    is_free: bool

"""From a predicate to row ranges, over every index that helps.

Each index answers for the fragments its segments cover as they are now; rows of all others
may match anything.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

import pyarrow as pa

from zonebloom.errors import IndexNotUsedWarning
from zonebloom.index.loaded import LoadedIndex
from zonebloom.index.view import IndexView
from zonebloom.predicates.ast import (
    And,
    Compares,
    Constant,
    Equals,
    IsIn,
    IsNull,
    Not,
    Or,
    Predicate,
    Unknown,
)
from zonebloom.ranges import RowRanges, SearchResult
from zonebloom.scan.partition_columns import PathValues
from zonebloom.values.columns import leaf_type
from zonebloom.values.probe import Probe, hash_domain, probe, probe_many


class NoIndex(str):
    """Why a part of a filter is not answered: no index is on its column."""


@dataclass(slots=True)
class Search:
    """A search and what there is to say about it.

    Attributes
    ----------
    result : SearchResult
    used : dict
        Views that answered, by index name.
    by_path : list of (str, RowRanges)
        Parts of the filter that paths answered, and the rows they leave.
    unanswered : list of (Predicate, str)
        Parts of the filter no index took, and why.
    """

    result: SearchResult
    used: dict[str, IndexView] = field(default_factory=dict)
    by_path: list[tuple[str, RowRanges]] = field(default_factory=list)
    unanswered: list[tuple[Predicate, str]] = field(default_factory=list)


class Searcher:
    """Answers predicates over the indices of one state of a dataset."""

    def __init__(
        self,
        schema: pa.Schema,
        indices: Mapping[tuple[str, ...], LoadedIndex],
        live: frozenset[int],
        universe: RowRanges,
        paths: Mapping[int, str],
        path_values: PathValues,
    ):
        self._schema = schema
        self._path_values = path_values
        self._indices = indices
        self._live = live
        self._universe = universe
        self._paths = paths
        self._views: dict[str, IndexView] = {}
        self._leaves: dict[tuple[str, ...], pa.DataType | None] = {}
        self._anything = SearchResult(universe, paths=paths)

    def view(self, index: LoadedIndex) -> IndexView:
        """The index as it covers this state, loaded."""
        name = index.entry.name
        if name not in self._views:
            self._views[name] = IndexView(index, self._live, self._universe)
        return self._views[name]

    def search(self, predicate: Predicate) -> Search:
        """Bound the rows a predicate is true for."""
        found = Search(self._anything)
        prepared = self._prepare(predicate, found)
        if _bounds_true(prepared):
            found.result = self._evaluate(prepared, found)
        return found

    def _prepare(self, predicate: Predicate, found: Search) -> Predicate | _Lookup | _Known:
        """Replace what an index or the paths can answer by that, all else by Unknown."""
        match predicate:
            case And(terms):
                return And(tuple(self._prepare(term, found) for term in terms))  # pyright: ignore[reportArgumentType]
            case Or(terms):
                return Or(tuple(self._prepare(term, found) for term in terms))  # pyright: ignore[reportArgumentType]
            case Not(term):
                return Not(self._prepare(term, found))  # pyright: ignore[reportArgumentType]
            case Constant():
                return predicate
            case Equals(column, _) | IsIn(column, _, _) | Compares(column, _, _) | IsNull(column):
                if column[0] in self._path_values.columns:
                    prepared = self._by_path(predicate, found)
                else:
                    prepared = self._lookup(column, predicate)
            case Unknown(_, reason):
                found.unanswered.append((predicate, reason))
                return predicate
        if isinstance(prepared, str):
            found.unanswered.append((predicate, prepared))
            return Unknown(str(predicate), prepared)
        return prepared

    def _by_path(self, predicate: Equals | IsIn | Compares | IsNull, found: Search) -> _Known | str:
        rows = self._path_values.rows(predicate)
        if rows is None:
            return "the values in the paths cannot be compared with it"
        at_most, at_least = (each & self._universe for each in rows)
        found.by_path.append((str(predicate), at_most))
        return _Known(at_most, at_least, not self._path_values.has_null(predicate.column[0]))

    def index(self, column: tuple[str, ...]) -> LoadedIndex | str:
        """The index of a column, or why there is none to use."""
        index = self._indices.get(column)
        if index is None:
            return NoIndex(f"no index on {'.'.join(column)}")
        if column not in self._leaves:
            self._leaves[column] = leaf_type(self._schema, column)
        leaf = self._leaves[column]
        if leaf is None or hash_domain(leaf) != index.entry.domain:
            reason = (
                f"index {index.entry.name} was built when the column was {index.entry.domain}, "
                f"it is {leaf} now; build it again"
            )
            warnings.warn(reason, IndexNotUsedWarning, stacklevel=2)
            return reason
        return index

    def _lookup(self, column: tuple[str, ...], predicate: Predicate) -> _Lookup | str:
        """The lookup a predicate on one column asks for, or why no index takes it."""
        if isinstance(predicate, Compares):
            return "range comparisons are not answered by a Bloom filter"
        index = self.index(column)
        if isinstance(index, str):
            return index
        leaf = self._leaves[column]
        assert leaf is not None
        if isinstance(predicate, IsNull):
            return _Lookup(index, None, True)
        if isinstance(predicate, Equals):
            probed, nulls = probe(leaf, predicate.value), False
        else:
            assert isinstance(predicate, IsIn)
            probed, nulls = probe_many(leaf, predicate.values), predicate.null_matches
        return probed.maybe or _Lookup(index, probed, nulls)

    def _evaluate(self, predicate: Predicate | _Lookup | _Known, found: Search) -> SearchResult:
        match predicate:
            case And(terms):
                result = self._bounded(self._universe, self._universe)
                # What paths say costs nothing: when that leaves no row, no index is opened.
                for term in sorted(terms, key=lambda term: not isinstance(term, _Free)):
                    result &= self._evaluate(term, found)
                    if not result.at_most and not result.at_least:
                        break
                return result
            case Or(terms):
                nothing = self._bounded(RowRanges(), RowRanges())
                return reduce(or_, (self._evaluate(term, found) for term in terms), nothing)
            case Not(term):
                return ~self._evaluate(term, found)
            case Constant(value):
                at_most = self._universe if value is True else RowRanges()
                at_least = RowRanges() if value is False else self._universe
                return self._bounded(at_most, at_least)
            case _Known(at_most, at_least, null_free):
                result = self._bounded(at_most, at_least)
                result.null_free = null_free
                return result
            case _Lookup(index, probed, nulls):
                view = self.view(index)
                found.used[index.entry.name] = view
                rows = view.matches(probed) if probed is not None else RowRanges()
                return self._bounded(rows | view.nulls() if nulls else rows)
        return self._anything

    def _bounded(self, at_most: RowRanges, at_least: RowRanges | None = None) -> SearchResult:
        return SearchResult(self._universe, at_most=at_most, at_least=at_least, paths=self._paths)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """One question to one index."""

    index: LoadedIndex
    probe: Probe | None
    nulls: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """What the paths answered already."""

    at_most: RowRanges
    at_least: RowRanges
    null_free: bool


_Free = _Known | Constant


def _bounds_true(predicate: Predicate | _Lookup | _Known) -> bool:
    """Whether anything bounds the rows that are true: if not, no index is opened."""
    match predicate:
        case And(terms):
            return any(map(_bounds_true, terms))
        case Or(terms):
            return all(map(_bounds_true, terms))
        case Not(term):
            return _bounds_false(term)
        case Constant(value):
            return value is not True
    return isinstance(predicate, _Lookup | _Known)


def _bounds_false(predicate: Predicate | _Lookup | _Known) -> bool:
    match predicate:
        case And(terms):
            return all(map(_bounds_false, terms))
        case Or(terms):
            return any(map(_bounds_false, terms))
        case Not(term):
            return _bounds_true(term)
        case Constant(value):
            return value is not False
    return isinstance(predicate, _Known)

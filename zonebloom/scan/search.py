"""Search the indices for a predicate, and return the row ranges that may match.

Rows that no index covers may always match. The functions at the end choose one index of a column,
and return what it knows of all files: the key ranges and the global filter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.base.arrays import from_numpy
from zonebloom.base.notices import warn
from zonebloom.base.row_ranges import RowRanges, SearchResult
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import ColumnNotFound, EncryptedIndex, IndexNotFound, IndexNotUsedWarning
from zonebloom.index.key_search import FILTERED_BY_ARROW, ReadCost, find_keys
from zonebloom.index.kinds import is_known_kind, why_no_kind_answers
from zonebloom.index.matching import IndexView, LoadedIndex, Question
from zonebloom.index.row_keys.rules import KeyQuestion
from zonebloom.index.table import ValueQuestion
from zonebloom.index.zone_map.bounds import ZoneBounds
from zonebloom.predicates.ast import (
    Compares,
    Constant,
    Equals,
    HasElement,
    HasText,
    HasTuple,
    IsIn,
    IsNull,
    LeafPredicate,
    Predicate,
    Unknown,
    fold_predicate,
)
from zonebloom.predicates.tuples import with_tuples
from zonebloom.scan.binding import unknown_column_text
from zonebloom.snapshot import ColumnIndices, Snapshot
from zonebloom.values.columns import find_leaf_type
from zonebloom.values.literal import Probe

if TYPE_CHECKING:
    from zonebloom.index.global_filter import GlobalFilter


ColumnPredicate: TypeAlias = Equals | IsIn | Compares | IsNull | HasElement | HasText | HasTuple


class NoIndex(str):
    """The reason why a part of a filter is not answered, if its column has no index."""


@dataclass
class Search:
    """The result of a search, with details for its description.

    Attributes
    ----------
    predicate : Predicate
    cost : ReadCost
        The cost of reading rows without an index.
    result : SearchResult
    used_views : dict of str to IndexView
        The indices that were searched, by name.
    partition_pruning : list of (str, RowRanges)
        Parts of the filter that partition values answer, and the rows that they keep.
    unanswered : list of (Predicate, str)
        Parts of the filter that no index could answer, and the reasons.
    answered_terms : set of int
        The ids of equalities that an index of several columns answers together.
    uses : list of (str, str, RowRanges)
        The indices that were asked, by name, with the condition and the rows that each left.
    existing_keys : dict of int to (IsIn or HasTuple, int64 array)
        The parts of the filter that are long lists of keys, by their id, and the positions of the
        keys that a row of the snapshot may hold.
    """

    predicate: Predicate
    cost: ReadCost = FILTERED_BY_ARROW
    result: SearchResult = field(init=False)
    used_views: dict[str, IndexView] = field(default_factory=dict)
    partition_pruning: list[tuple[str, RowRanges]] = field(default_factory=list)
    unanswered: list[tuple[Predicate, str]] = field(default_factory=list)
    answered_terms: set[int] = field(default_factory=set)
    uses: list[tuple[str, Predicate, RowRanges]] = field(default_factory=list)
    existing_keys: dict[int, tuple[IsIn | HasTuple, np.ndarray]] = field(default_factory=dict)

    @cached_property
    def narrow_lists(self) -> tuple[tuple[IsIn, IsIn], ...]:
        """The long lists of keys, and the same without keys that no row of the snapshot holds."""
        return tuple(
            (leaf, replace(leaf, values=leaf.values.take(from_numpy(existing))))
            for leaf, existing in self.existing_keys.values()
            if isinstance(leaf, IsIn)
        )


def search_indices(
    snapshot: Snapshot, predicate: Predicate, cost: ReadCost = FILTERED_BY_ARROW
) -> Search:
    """Search the indices of a snapshot for a predicate.

    ``cost`` is that of reading the rows without an index. Long lists of keys are not searched if
    this takes longer.
    """
    universe, search = snapshot.universe, Search(predicate, cost)
    searched = predicate
    if snapshot.combined_columns:
        searched = with_tuples(predicate, snapshot.combined_columns)
    answer = _fold(searched, snapshot, search)
    if answer.bounds_true:
        search.result = answer.rows()
        return search
    # Nothing limits the matching rows, so do not open any index. If all parts of the filter could
    # be answered, negations are the reason.
    search.result = SearchResult(universe)
    if not search.unanswered and not isinstance(predicate, Constant):
        search.unanswered.append((predicate, "negations are not answered by hashes of values"))
    return search


def _fold(predicate: Predicate, snapshot: Snapshot, search: Search) -> _Answer:
    universe = snapshot.universe
    return fold_predicate(
        predicate,
        partial(_answer_leaf, snapshot=snapshot, search=search),
        lambda terms: _AllOf(terms, universe),
        lambda terms: _AnyOf(terms, universe),
        _Not,
    )


def _answer_leaf(leaf: LeafPredicate, snapshot: Snapshot, search: Search) -> _Answer:
    """Return the answer of an index or of partition values, or else that any row may match."""
    universe = snapshot.universe
    match leaf:
        case Constant(value):
            at_most = universe if value is True else RowRanges()
            at_least = RowRanges() if value is False else universe
            result = SearchResult(universe, at_most=at_most, at_least=at_least)
            return _KnownRows(
                result, bounds_true=value is not True, bounds_false=value is not False
            )
        case Unknown(requires=requires) if requires is not None:
            return _Required(leaf, requires, snapshot, search)
        case Unknown(reason=reason):
            answer = reason
        case IsIn(values=values, null_matches=False) if not len(values):
            nothing = SearchResult(universe, at_most=RowRanges())
            return _KnownRows(nothing, bounds_true=True, bounds_false=False)
        case Equals() | IsIn() | Compares() | IsNull() if (
            leaf.column[0] in snapshot.partition_values.columns
        ):
            answer = _answer_by_partition(leaf, snapshot, search)
            # Some files may store the column.
            if snapshot.indices_of_column(leaf.column).indices:
                index_answer = _answer_by_index(leaf, snapshot, search)
                if isinstance(answer, str):
                    answer = index_answer
                elif not isinstance(index_answer, str):
                    answer = _AllOf([answer, index_answer], universe)
        case _:
            answer = _answer_by_index(leaf, snapshot, search)
    if isinstance(answer, str):
        if not isinstance(leaf, HasTuple) and id(leaf) not in search.answered_terms:
            search.unanswered.append((leaf, answer))
        return _KnownRows(SearchResult(universe), bounds_true=False, bounds_false=False)
    if isinstance(leaf, HasTuple):
        search.answered_terms.update(map(id, leaf.terms))
    return answer


def _answer_by_partition(
    predicate: Equals | IsIn | Compares | IsNull, snapshot: Snapshot, search: Search
) -> _Answer | str:
    """Return the answer of partition values, or the reason why they cannot answer."""
    partition_values, universe = snapshot.partition_values, snapshot.universe
    rows = partition_values.rows(predicate)
    if rows is None:
        return "the values in the paths cannot be compared with it"
    at_most, at_least = (bound & universe for bound in rows)
    search.partition_pruning.append((str(predicate), at_most))
    result = SearchResult(universe, at_most=at_most, at_least=at_least)
    result.null_free = not partition_values.has_null(predicate.column[0])
    return _KnownRows(result, bounds_true=True, bounds_false=True)


def _answer_by_index(
    predicate: ColumnPredicate, snapshot: Snapshot, search: Search
) -> _Answer | str:
    """Return the answer of the indices of a column, or the reason why none can answer."""
    on_column = snapshot.indices_of_column(predicate.column)
    if not on_column.indices:
        # Do not recommend an index that could not answer either.
        what = ".".join(predicate.column)
        if isinstance(predicate, HasText):
            what = f"words or trigrams of {what}"
        elif isinstance(predicate, HasElement):
            what = ".".join([f"{what}[]", *predicate.field])
        return why_no_kind_answers(predicate) or _why_no_index(on_column, what)
    questions: list[tuple[LoadedIndex, Question]] = []
    why_not, bounds_false = "", False
    for index, types in zip(on_column.indices, on_column.types, strict=True):
        question = index.question(predicate, types)
        if isinstance(question, str):
            why_not = why_not or question
        else:
            questions.append((index, question))
            bounds_false |= isinstance(question, ValueQuestion)
    if not questions:
        return why_not
    bounds_false &= isinstance(predicate, Equals | Compares | IsNull)
    return _IndexLookup(snapshot, search, questions, predicate, bounds_false=bounds_false)


def _why_no_index(on_column: ColumnIndices, what: str) -> str:
    if on_column.misfits:
        warn(IndexNotUsedWarning(on_column.misfits[0]))
        return on_column.misfits[0]
    return NoIndex(f"no index on {what}")


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


class _IndexLookup(_Answer):
    """The rows that all indices of a column leave. They are loaded when they are first needed."""

    bounds_true = True

    def __init__(
        self,
        snapshot: Snapshot,
        search: Search,
        questions: Sequence[tuple[LoadedIndex, Question]],
        predicate: ColumnPredicate,
        *,
        bounds_false: bool,
    ):
        self._snapshot = snapshot
        self._search = search
        self._questions = questions
        self._predicate = predicate
        self.bounds_false = bounds_false

    def rows(self) -> SearchResult:
        universe = at_most = may_be_false = self._snapshot.universe
        for index, question in self._questions:
            view = self._snapshot.view(index)
            self._search.used_views[index.entry.name] = view
            if isinstance(question, KeyQuestion):
                rows = self._rows_with_keys(view, question)
            else:
                rows = view.rows_where(question, is_true=True)
                if self.bounds_false:
                    may_be_false &= view.rows_where(question, is_true=False)
            self._search.uses.append((index.entry.name, self._predicate, rows))
            at_most = rows if at_most is universe else at_most & rows
        at_least = universe - may_be_false if self.bounds_false else None
        # The index does not say for which rows the condition is null.
        return SearchResult(universe, at_most=at_most, at_least=at_least, null_free=False)

    def _rows_with_keys(self, view: IndexView, question: KeyQuestion) -> RowRanges:
        """Return the rows of zones that may hold the keys, and all rows not covered."""
        if not question.probes:
            return view.nulls()
        rows = self._rows_with_key(view, question.probes[0])
        for probe in question.probes[1:]:
            rows &= self._rows_with_key(view, probe)
        return rows | view.nulls() if question.nulls_match else rows

    def _rows_with_key(self, view: IndexView, probe: Probe) -> RowRanges:
        found = find_keys(view, probe.hashes, self._search.cost)
        leaf, keys = self._predicate, probe.keys
        if found.hashes is not None and keys is not None and isinstance(leaf, IsIn | HasTuple):
            existing = keys.with_hash_among(found.hashes)
            if id(leaf) in self._search.existing_keys:
                _, before = self._search.existing_keys[id(leaf)]
                existing = np.intersect1d(before, existing, assume_unique=True)
            self._search.existing_keys[id(leaf)] = leaf, existing
        return found.rows


class _Required(_Answer):
    """The rows of a condition that an index cannot answer, of which it knows what they need."""

    bounds_false = False

    def __init__(self, leaf: Unknown, requires: Predicate, snapshot: Snapshot, search: Search):
        self._universe = snapshot.universe
        num_before = len(search.unanswered)
        self._answer = _fold(requires, snapshot, search)
        self.bounds_true = self._answer.bounds_true
        self.is_free = self._answer.is_free
        # The parts of what the rows need are no parts of the filter.
        reasons = [reason for _, reason in search.unanswered[num_before:]]
        del search.unanswered[num_before:]
        if not self.bounds_true:
            search.unanswered.append((leaf, reasons[0] if reasons else leaf.reason))

    def rows(self) -> SearchResult:
        at_most = self._answer.rows().at_most
        return SearchResult(self._universe, at_most=at_most, null_free=False)


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
        for term in sorted(self._terms, key=lambda term: (not term.is_free, not term.bounds_true)):
            # A term that does not limit the rows for which it is true can only lower `at_least`.
            if term.bounds_true or result.at_least:
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


def preferred_index(snapshot: Snapshot, column: str) -> tuple[LoadedIndex, pa.DataType]:
    """Return the index to use for a column, and the column's type.

    Raise `IndexNotFound` if there is none.
    """
    arguments.require_text(column, "column")
    if snapshot.version.locked_reason:
        raise EncryptedIndex(snapshot.version.locked_reason)
    schema = snapshot.source.schema
    path = (column,) if column in schema.names else tuple(column.split("."))
    leaf_type = find_leaf_type(schema, path)
    if leaf_type is None:
        raise ColumnNotFound(unknown_column_text(column, schema))
    on_column = snapshot.indices_of_column(path)
    if not on_column.indices:
        raise IndexNotFound(
            f"column {arguments.short_repr(column)} cannot be looked up: "
            f"{_why_no_index(on_column, '.'.join(path))}; call create_scalar_index on it",
            commands={"call create_scalar_index on it": "run zonebloom build PATH"},
        )
    with_hashes = [index for index in on_column.indices if index.hashes_values]
    if not with_hashes:
        raise IndexNotFound(
            f"index {on_column.indices[-1].entry.name!r} of column {arguments.short_repr(column)} "
            "has no hashes of its values; create a HASH or BLOOMFILTER index, too"
        )
    readable = [index for index in with_hashes if is_known_kind(index.entry.kind)]
    return (readable or with_hashes)[-1], leaf_type


def key_ranges(snapshot: Snapshot, column: str) -> pa.Table:
    """Return the key ranges of all files; see `Dataset.key_ranges`."""
    present, stored, rows = _stored_key_ranges(snapshot, column)
    table: Any = stored.take(rows)
    counts = (table[name].cast(pa.int64()) for name in ("null_count", "nan_count", "zone_length"))
    null_count, nan_count, num_rows = counts
    compute: Any = pc
    has_values = compute.less(compute.add(null_count, nan_count), num_rows)
    has_bounds = compute.and_(table["min"].is_valid(), table["max"].is_valid())
    is_known = compute.fill_null(compute.or_(has_bounds, compute.invert(has_values)), False)
    minimum, maximum = (
        compute.if_else(is_known, table[name], pa.scalar(None, table[name].type))
        for name in ("min", "max")
    )
    return pa.table(
        {
            "fragment_id": pa.array([file.fragment_id for file in present], pa.uint64()),
            "path": pa.array([file.fragment.path for file in present], pa.string()),
            "minimum": minimum,
            "maximum": maximum,
            "is_known": is_known,
            "has_nan": compute.greater(nan_count, 0),
            "null_count": null_count,
            "num_rows": num_rows,
        }
    )


def file_bounds(snapshot: Snapshot, column: str) -> ZoneBounds:
    """Return the bounds of a column in each file, in scan order, from the key ranges."""
    _, stored, rows = _stored_key_ranges(snapshot, column)
    return ZoneBounds.from_table(stored).take(rows)


def _stored_key_ranges(
    snapshot: Snapshot, column: str
) -> tuple[Sequence[PresentFragment], pa.Table, pa.Array]:
    """Return the files, the key ranges of an index, and the row of each file in them or null."""
    index, leaf_type = preferred_index(snapshot, column)
    present = snapshot.fragments_for([path[0] for path in index.columns])
    ids = [file.fragment_id if file.is_known else None for file in present]
    stored = index.key_ranges(leaf_type)
    compute: Any = pc
    rows = compute.index_in(pa.array(ids, pa.uint64()), value_set=stored["fragment_id"])
    return present, stored, rows


def global_filter(snapshot: Snapshot, column: str) -> GlobalFilter | None:
    """Return the filter over all keys of a column; see `Dataset.global_filter`."""
    index, leaf_type = preferred_index(snapshot, column)
    present = snapshot.fragments_for([path[0] for path in index.columns])
    return index.global_filter(leaf_type, present)

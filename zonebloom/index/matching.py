"""Open one index of any kind, and apply it to a dataset whose column is still the indexed one.

The kind of the index opens the tables of its segments. This module decides what they cover: rows of
fragments that the index lacks, or that changed since, may always match.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zonebloom.base.notices import call_collecting, collected_warnings, warn
from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT, OFFSET_BITS, RowRanges
from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import KEY_RANGES_FILE, IndexEntry, Segment
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    CorruptIndex,
    IndexNotUsedWarning,
    InvalidArgument,
    SchemaMismatch,
    UnknownIndexKind,
)
from zonebloom.index.base_kind import IndexKind
from zonebloom.index.kinds import kind_of
from zonebloom.index.row_keys.rules import (
    VALUES,
    KeyQuestion,
    KeyRule,
    UnknownRule,
    rule_of,
)
from zonebloom.index.table import (
    HashedTable,
    IndexTable,
    ValueQuestion,
    ZoneRuns,
)
from zonebloom.index.zone_map.bounds import ZoneMapTable, read_zone_map, zone_map_schema
from zonebloom.predicates.ast import ColumnPath, LeafPredicate
from zonebloom.sources.column_batches import Column
from zonebloom.sources.source import Source
from zonebloom.values.columns import find_leaf_type

if TYPE_CHECKING:
    from zonebloom.index.global_filter import GlobalFilter
    from zonebloom.sbbf.filter import Sbbf

# A question to an index.
Question = KeyQuestion | ValueQuestion
# The first address of zones and the address after their last row; both int64, shape (n,).
_AddressBounds = tuple[np.ndarray, np.ndarray]
# The position of a hash, and the fragment id and the first row of a zone.
_ZonePairs = tuple[np.ndarray, np.ndarray, np.ndarray]


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


class LoadedIndex:
    """One index whose files are loaded on first use.

    A damaged file causes a warning and is ignored, or raises `CorruptIndex` if strict. An index of
    an unknown kind also causes a warning, or raises `UnknownIndexKind` if strict. An index with
    rows that no file has always raises `CorruptIndex`, because the list of files may be wrong.
    """

    def __init__(self, catalog: Catalog, entry: IndexEntry, *, strict: bool = False):
        self.entry = entry
        self._catalog = catalog
        self._is_strict = strict
        self._tables: list[IndexTable] | None = None
        # Tables that `open_ahead` opened, by segment. `tables` takes them from here.
        self._opened_tables: dict[str, IndexTable] = {}
        self._key_ranges: pa.Table | None = None
        self._global_filter: Sbbf | None = None

    def __repr__(self) -> str:
        return f"<LoadedIndex {self.entry.name}, {self.entry.kind}>"

    @property
    def loaded_bytes(self) -> int:
        return sum(table.loaded_bytes for table in self._tables or ())

    @property
    def has_round_trips(self) -> bool:
        """Return whether files of the index, and usually of the data, are on a server."""
        return self._catalog.store.has_round_trips

    @cached_property
    def rule(self) -> KeyRule:
        """The rule of the keys that the index holds of each row."""
        return rule_of(self.entry.rule)

    @property
    def columns(self) -> tuple[ColumnPath, ...]:
        """The paths of the columns of the index."""
        return self.entry.column, *self.rule.other_columns

    @property
    def hashes_values(self) -> bool:
        """Return whether the hash of a value of the column can be looked up."""
        return self.rule == VALUES and not (self._kind is not None and self._kind.takes_values)

    def question(self, leaf: LeafPredicate, column_types: Sequence[pa.DataType]) -> Question | str:
        """Return what to ask this index for a part of a filter, or why it cannot answer it.

        ``column_types`` are the types of its columns.
        """
        if self._kind is None:
            return f"index {self.entry.name} is of the unknown kind {self.entry.kind}"
        reason = self._kind.why_not_answered(leaf, column_types[0])
        if reason is not None:
            return reason
        if self._kind.takes_values:
            return ValueQuestion(leaf, column_types[0])
        return self.rule.question(leaf, column_types)

    @property
    def finds_few_zones(self) -> bool:
        """Return whether the index finds few zones; see `IndexKind.finds_few_zones`."""
        return self._kind is not None and self._kind.finds_few_zones

    @cached_property
    def _kind(self) -> IndexKind | None:
        """The kind of the index. None after a warning if it is not registered."""
        try:
            return kind_of(self.entry)
        except UnknownIndexKind as error:
            if self._is_strict:
                raise
            text = f"{error}. Until then the data is read without it"
            warn(IndexNotUsedWarning(text, commands=error.commands))
            return None

    @property
    def is_loaded(self) -> bool:
        return self._tables is not None

    @property
    def segments_to_open_ahead(self) -> tuple[Segment, ...]:
        """The segments that are opened by reading the ends of their files."""
        with collected_warnings():
            kind = self._kind
        return self.entry.segments if kind is not None and kind.is_read_in_parts else ()

    def open_ahead(self, segment: Segment) -> None:
        """Open the table of a segment, so that the first search only has to read its blocks.

        A table that cannot be opened is left to `tables`, which reports it.
        """
        with collected_warnings():
            if self._kind is not None and segment.name not in self._opened_tables:
                table = self._open_or_error(self._kind, segment)
                if not isinstance(table, CorruptIndex):
                    self._opened_tables[segment.name] = table

    def tables(self) -> list[IndexTable]:
        """Return the tables that are not damaged. Blocks are verified when they are read."""
        if self._tables is None:
            self._tables = self._open_tables()
        return self._tables

    def _open_tables(self) -> list[IndexTable]:
        if self._kind is None:
            return []
        try:
            self._kind.check_parameters(self.entry.parameters)
        except (InvalidArgument, TypeError) as error:
            text = f"its parameters are damaged ({error}); build the index again"
            self._report(CorruptIndex(text), "Until then the data is read without it")
            return []
        open_or_error = partial(self._open_or_error, self._kind)
        segments = self.entry.segments
        if len(segments) < 2 or not self.has_round_trips:
            results = list(map(open_or_error, segments))
        else:
            with thread_pool(REMOTE_THREADS) as pool:
                results = list(pool.map(open_or_error, segments))
        tables = []
        for result in results:
            if isinstance(result, CorruptIndex):
                self._report(result, "Until then its fragments are read whole")
            else:
                tables.append(result)
        return tables

    def _open_or_error(self, kind: IndexKind, segment: Segment) -> IndexTable | CorruptIndex:
        # Another thread may take the table at the same time, so do not look first.
        opened = self._opened_tables.pop(segment.name, None)
        if opened is not None:
            return opened
        # Do not pass a bound method: the reference cycle between table and index would keep the
        # file open until the garbage collector runs.
        report = partial(_warn, self.entry.name, instead="Its undamaged parts are still used")
        try:
            table = kind.open(self._catalog, segment, None if self._is_strict else report)
        except CorruptIndex as error:
            return error
        zone_rows, items = table.runs.items, self.entry.number_of_items
        if zone_rows != items:
            return CorruptIndex(
                f"{table.path} has zones of {zone_rows} rows, but its index has zones of {items} "
                "rows; build the index again"
            )
        return table

    def key_ranges(self, column_type: pa.DataType) -> pa.Table:
        """Return a zone map of the indexed fragments, each of which is one zone of it."""
        if self._key_ranges is None:
            tables = [zone_map_schema(column_type, MAX_ROWS_PER_FRAGMENT).empty_table()]
            for segment in self.entry.segments:
                if not segment.ranges_bytes:
                    continue
                path = self._catalog.path(segment.name, KEY_RANGES_FILE)
                try:
                    buffer = self._catalog.read(path, segment.ranges_bytes, segment.ranges_checksum)
                    tables.append(read_zone_map(buffer, path, column_type))
                except CorruptIndex as error:
                    self._report(error, "Until then its fragments may hold any key")
            self._key_ranges = pa.concat_tables(tables).combine_chunks()
        return self._key_ranges

    def global_filter(
        self, arrow_type: pa.DataType, present: Sequence[PresentFragment]
    ) -> GlobalFilter | None:
        """Return the filter over all keys, compared with the current fragments.

        Return None if the index has no such filter, or if its file is damaged.
        """
        from zonebloom.index.global_filter import GlobalFilter, load_global_filter

        stored = self.entry.global_filter
        if stored is None:
            return None
        if self._global_filter is None:
            try:
                self._global_filter = load_global_filter(self._catalog, stored)
            except CorruptIndex as error:
                self._report(error, "Until then there is no global filter")
                return None
        unchanged_ids = {fragment.fragment_id for fragment in present if fragment.is_known}
        covered = unchanged_ids.intersection(stored.fragment_ids)
        return GlobalFilter(
            self.entry.name,
            ".".join(self.entry.column),
            arrow_type,
            self._global_filter,
            frozenset(covered),
            tuple(fragment for fragment in present if fragment.fragment_id not in covered),
            stored.num_items,
            stored.probability,
        )

    def _report(self, error: CorruptIndex, instead: str) -> None:
        if self._is_strict:
            raise error
        _warn(self.entry.name, error, instead)


def _warn(name: str, error: CorruptIndex, instead: str) -> None:
    warn(IndexNotUsedWarning(f"index {name!r}: {error}. {instead}"))


class IndexView:
    """A loaded index, restricted to the fragments that have not changed since it was built."""

    def __init__(self, index: LoadedIndex, known_ids: frozenset[int], universe: RowRanges):
        self.index = index
        self._tables = index.tables()
        self._hashed_tables = [table for table in self._tables if isinstance(table, HashedTable)]
        self._known_ids = known_ids
        self._known_numbers = np.fromiter(known_ids, dtype=np.uint64, count=len(known_ids))
        # The runs of each table, with a mask of those that belong to known fragments.
        self._parts = parts = [(t.runs, self._is_known(t.runs.fragment_ids)) for t in self._tables]
        self._all_known = all(is_known.all() for _, is_known in parts)
        self.num_zones: int = sum(int(runs.num_zones[is_known].sum()) for runs, is_known in parts)
        indexed_rows = _union(
            [
                _addresses(
                    runs.fragment_ids[is_known], runs.first_rows[is_known], runs.num_rows[is_known]
                )
                for runs, is_known in parts
            ]
        )
        if not indexed_rows.issubset(universe):
            # Either the table or the list of files is wrong, and both could lose rows.
            raise CorruptIndex(
                f"index {index.entry.name!r} has zones with rows that its files do not have; build "
                "the index again"
            )
        self.covered: RowRanges = indexed_rows
        # The rows that the index does not cover, which may hold any key.
        self.uncovered: RowRanges = universe - indexed_rows

    @cached_property
    def fragment_ids(self) -> frozenset[int]:
        """Return the ids of the unchanged fragments that the index covers.

        Fragments without rows are covered, too, although they have no zones.
        """
        return (self._known_ids & self.index.entry.fragment_ids) - self.uncovered_ids

    @cached_property
    def uncovered_ids(self) -> frozenset[int]:
        """Return the ids of the fragments with rows that the index does not cover."""
        # A range never spans two fragments, so its start tells the fragment.
        return frozenset(np.unique(self.uncovered.starts >> OFFSET_BITS).tolist())

    def _is_known(self, fragment_ids: np.ndarray) -> np.ndarray:
        return np.asarray(np.isin(fragment_ids, self._known_numbers))

    def rows_where(self, question: ValueQuestion, *, is_true: bool) -> RowRanges:
        """Return the rows of zones where a condition may be true, or false, and uncovered rows."""
        zones_by_table = []
        for table in self._tables:
            if isinstance(table, ZoneMapTable):
                stored: Any = table.bounds
                find = stored.zones_where_true if is_true else stored.zones_where_false
                zones_by_table.append((table, find(question.column_type, question.leaf)))
        return self._rows(zones_by_table)

    @property
    def all_rows(self) -> RowRanges:
        """Return the rows that the index covers, and all others."""
        return self.covered | self.uncovered

    def rows_with_any(self, hashes: np.ndarray) -> RowRanges:
        """Return the rows of zones that may hold any of the hashes, and all rows not covered."""
        tables = self._hashed_tables
        is_local = len(tables) < 2 or not self.index.has_round_trips
        if is_local or all(table.loaded_bytes >= table.num_bytes for table in tables):
            return self._rows([(table, table.find(hashes)) for table in tables])
        with thread_pool(min(REMOTE_THREADS, len(tables))) as pool:
            results = list(pool.map(lambda table: call_collecting(table.find, hashes), tables))
        for _, issued in results:
            for warning in issued:
                warn(warning)
        return self._rows(list(zip(tables, [zones for zones, _ in results], strict=True)))

    def nulls(self) -> RowRanges:
        """Return the rows of zones that hold a null, and all rows not covered."""
        return self._rows([(table, table.zones_with_null()) for table in self._tables])

    def pairs(self, hashes: np.ndarray) -> Iterator[_ZonePairs]:
        """Yield each pair of a hash and a zone that may hold it once.

        An item is the positions of hashes, and the fragment ids and first rows of zones.
        """
        for table in self._hashed_tables:
            for keys, zones in table.pairs(hashes):
                fragment_ids, starts, _ = table.runs.locate(zones)
                used = slice(None) if self._all_known else self._is_known(fragment_ids)
                yield keys[used], fragment_ids[used], starts[used]

    def zones(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return fragment ids and first rows of the zones that may hold any of the hashes."""
        parts = [np.empty(0, dtype=np.int64)]
        parts += [self._bounds(table, table.find(hashes))[0] for table in self._hashed_tables]
        firsts = np.concatenate(parts).astype(np.uint64)
        return firsts >> np.uint64(OFFSET_BITS), firsts & np.uint64((1 << OFFSET_BITS) - 1)

    def count_kept_zones(self, rows: RowRanges) -> int:
        """Return the number of zones that have a row among ``rows``."""
        return sum(
            _count_kept(self._known_runs(runs, is_known), rows) for runs, is_known in self._parts
        )

    def _known_runs(self, runs: ZoneRuns, is_known: np.ndarray) -> ZoneRuns:
        return runs if self._all_known else runs.select(is_known)

    def _rows(self, zones_by_table: Sequence[tuple[IndexTable, np.ndarray]]) -> RowRanges:
        """Return the rows of zones of some tables, and all rows not covered."""
        # Most tables do not hold a key.
        bounds = [self._bounds(table, zones) for table, zones in zones_by_table if zones.size]
        if not bounds:
            return self.uncovered
        rows = _union(bounds)
        return rows | self.uncovered if self.uncovered.starts.size else rows

    def _bounds(self, table: IndexTable, zones: np.ndarray) -> _AddressBounds:
        fragment_ids, starts, lengths = table.runs.locate(zones)
        firsts, stops = _addresses(fragment_ids, starts, lengths)
        if self._all_known:
            return firsts, stops
        is_known = self._is_known(fragment_ids)
        return firsts[is_known], stops[is_known]


_NO_BOUNDS: _AddressBounds = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)


def _union(bounds: Sequence[_AddressBounds]) -> RowRanges:
    if len(bounds) == 1:
        return RowRanges.from_arrays(*bounds[0])
    starts, stops = zip(_NO_BOUNDS, *bounds, strict=True)
    return RowRanges.from_arrays(np.concatenate(starts), np.concatenate(stops))


def _count_kept(runs: ZoneRuns, rows: RowRanges) -> int:
    """Return the number of zones of runs that have a row among ``rows``."""
    run_starts, run_stops = _addresses(runs.fragment_ids, runs.first_rows, runs.num_rows)
    # Pair each run with the ranges that overlap it.
    first_ranges = np.searchsorted(rows.stops, run_starts, side="right")
    num_ranges = np.searchsorted(rows.starts, run_stops, side="left") - first_ranges
    num_ranges = np.maximum(np.where(run_starts < run_stops, num_ranges, 0), 0)
    run = np.repeat(np.arange(num_ranges.size), num_ranges)
    position_in_run = np.arange(run.size) - np.repeat(num_ranges.cumsum() - num_ranges, num_ranges)
    range_numbers = first_ranges[run] + position_in_run
    starts = np.maximum(rows.starts[range_numbers], run_starts[run]) - run_starts[run]
    stops = np.minimum(rows.stops[range_numbers], run_stops[run]) - run_starts[run]
    items = runs.rows_per_zone().astype(np.int64)[run]
    first_zones, last_zones = starts // items, (stops - 1) // items
    # Count a zone once if several ranges of its run have rows in it.
    is_repeated = (run[1:] == run[:-1]) & (first_zones[1:] == last_zones[:-1])
    return int((last_zones - first_zones + 1).sum()) - int(np.count_nonzero(is_repeated))


def _addresses(fragment_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> _AddressBounds:
    firsts = ((fragment_ids << np.uint64(OFFSET_BITS)) + starts).astype(np.int64)
    return firsts, firsts + lengths.astype(np.int64)

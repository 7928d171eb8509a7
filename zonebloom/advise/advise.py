"""Judge from a sample of zones which columns are worth an index, and of which kind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.advise.judge import (
    FROM_PATHS,
    INDEX,
    INDEXED,
    NOT_INDEXABLE,
    Advice,
    Advices,
    with_verdict,
)
from zonebloom.advise.sample import (
    draw_zones,
    estimate_distinct,
    estimate_zones_with_key,
    find_bound_shares,
    find_overlaps,
)
from zonebloom.base import arguments
from zonebloom.base.arrays import empty_table
from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
from zonebloom.errors import ColumnNotFound, FragmentUnreadable, SchemaMismatch
from zonebloom.index.row_keys.elements import element_type
from zonebloom.index.row_keys.rules import VALUES, ElementRule, EntryRule, KeyRule, TokenRule
from zonebloom.index.row_keys.tokens import WORDS
from zonebloom.index.zone_map.bounds import ordered_values
from zonebloom.parquet.field_names import pages_with_names
from zonebloom.parquet.footer import read_footer
from zonebloom.sbbf.hashing import Hashes, RowHashes
from zonebloom.scan.binding import unknown_column_text
from zonebloom.scan.execute import Execution
from zonebloom.scan.explain import page_size_line
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.plan import Request
from zonebloom.scan.planner import plan_addresses
from zonebloom.sources.column_batches import Column
from zonebloom.sources.source import Source
from zonebloom.storage.files import FILE_ERRORS, ReadCounter
from zonebloom.storage.random_access import FragmentFile
from zonebloom.values.columns import column_path
from zonebloom.values.normal_types import hashed_type
from zonebloom.values.types import family

# The sample has at most _MAX_ZONES zones and about _MAX_ROWS rows, but at least _MIN_ZONES zones.
_MAX_ZONES = 50
_MIN_ZONES = 10
_MAX_ROWS = 1 << 19
# The rows of at most this many files are counted. For the other files they are estimated.
_MAX_COUNTED_FILES = 64
# At most this many sampled values are in memory at a time, but at least those of a few columns.
_MAX_VALUES = 1 << 23
_MIN_COLUMNS = 16
# Texts are messages if they have so many spaces on average, and this share of them is distinct.
_MIN_SPACES = 3
_MIN_DISTINCT = 0.5
_RANGE_FAMILIES = ("date", "timestamp", "instant", "time", "duration", "float")


@dataclass(frozen=True, slots=True)
class Target:
    """The values of a column, or other keys of its rows, which an index may hold."""

    column: Column
    rule: KeyRule = VALUES

    @property
    def name(self) -> str:
        """The column as `Dataset.create_scalar_index` takes it."""
        if isinstance(self.rule, TokenRule):
            return self.column.name
        return self.rule.text([self.column.path])

    def hashes(self, values: pa.ChunkedArray) -> np.ndarray:
        """Return the hashes of all keys of some rows, uint64."""
        parts = [part for chunk in values.chunks for part in self.rule.parts([chunk])]
        hashes = [
            part.of_valid_rows() if isinstance(part, Hashes) else part.values
            for part in parts
            if isinstance(part, Hashes | RowHashes)
        ]
        return np.concatenate([np.empty(0, dtype=np.uint64), *hashes])


def advise(
    opened: OpenedDataset,
    columns: str | Sequence[str] | None = None,
    *,
    number_of_items: int = DEFAULT_NUMBER_OF_ITEMS,
) -> Advices:
    """Return which columns are worth an index, judged from a sample of zones."""
    start_time = time.perf_counter()
    number_of_items = arguments.require_integer(number_of_items, "number_of_items", 1)
    targets = _choose_targets(opened.source.schema, columns)
    advices = _refuse(targets, opened.source)
    sample = _Sample(opened, number_of_items)
    advices |= sample.judge([target for target in targets if target not in advices])
    looked_up = [
        target.column.path
        for target in targets
        if advices[target].verdict in (INDEX, INDEXED) and target.rule == VALUES
    ]
    return Advices(
        tuple(advices[target] for target in targets),
        sample.num_rows,
        sample.num_zones,
        number_of_items,
        len(sample.zones),
        sample.counter.num_bytes,
        time.perf_counter() - start_time,
        sample.page_size_line(looked_up),
    )


def _choose_targets(schema: pa.Schema, columns: str | Sequence[str] | None) -> list[Target]:
    """Return what indices of some columns, of their leaves and elements may hold."""
    # If several columns have one name, the advice is about the first.
    first_fields = {field.name: field for field in reversed(list(schema))}
    fields = [first_fields[name] for name in dict.fromkeys(schema.names)]
    targets = [target for field in fields for target in _targets((field.name,), field.type)]
    if columns is None:
        return targets
    names = [columns] if isinstance(columns, str) else columns
    chosen: list[Target] = []
    for name in arguments.require_name_list(names, "columns"):
        path = column_path(schema, name)
        matches = [
            target
            for target in targets
            if target.name == name or target.column.path[: len(path)] == path
        ]
        if not matches:
            raise ColumnNotFound(unknown_column_text(name, schema))
        chosen += matches
    return list(dict.fromkeys(chosen))


def _targets(path: tuple[str, ...], type_: pa.DataType) -> Iterator[Target]:
    """Yield what indices may hold of a column, or of the leaves of a struct."""
    element = element_type(type_, ())
    if pa.types.is_struct(type_) and type_.num_fields:
        for field in type_:
            yield from _targets((*path, field.name), field.type)
    elif pa.types.is_map(type_):
        yield Target(Column(path, type_), EntryRule())
    elif element is None:
        yield Target(Column(path, type_))
    else:
        for leaf in _targets((), element):
            yield Target(Column(path, type_), ElementRule(leaf.column.path))


def _refuse(targets: Sequence[Target], source: Source) -> dict[Target, Advice]:
    """Return the advice on the columns that cannot be indexed."""
    name_counts = Counter(source.schema.names)
    partition_columns = source.constant_columns()
    advices: dict[Target, Advice] = {}
    for target in targets:
        column = target.column
        reason = target.rule.why_not_indexable([column.type], [column.name])
        if name_counts[column.path[0]] > 1:
            advices[target] = _not_indexable(target, "several columns have its name")
        elif column.path[0] in partition_columns:
            why = "its values are in the paths of the files, so scans skip files already"
            advices[target] = Advice(target.name, str(column.type), FROM_PATHS, why)
        elif reason is not None:
            advices[target] = _not_indexable(target, reason)
    return advices


def _not_indexable(target: Target, reason: str) -> Advice:
    verdict = f"{NOT_INDEXABLE}: {reason}"
    return Advice(target.name, str(target.column.type), verdict, reason)


@dataclass(frozen=True, slots=True)
class _Zone:
    """One sampled zone: its rows in a fragment, and its position among all zones."""

    fragment: PresentFragment
    start: int
    stop: int
    position: int


class _Sample:
    """A sample of the zones of a dataset.

    The numbers of rows and zones of the dataset are estimates if there are many files, or if some
    rows of a file cannot be read without reading the whole file.
    """

    def __init__(self, opened: OpenedDataset, number_of_items: int):
        self._source = opened.source
        self._snapshot = opened.look()
        self._number_of_items = number_of_items
        self.counter = ReadCounter()
        self.num_rows = self.num_zones = 0
        self.zones = self._draw()
        self._positions = np.array([zone.position for zone in self.zones], dtype=np.int64)

    def _draw(self) -> list[_Zone]:
        items = self._number_of_items
        max_zones = max(_MIN_ZONES, min(_MAX_ZONES, _MAX_ROWS // items))
        fragments = self._snapshot.fragments
        row_counts = self._count_some(fragments, max_zones)
        num_counted_bytes = sum(
            fragment.identity.size for fragment in fragments if fragment.fragment_id in row_counts
        )
        rows_per_byte = sum(row_counts.values()) / max(num_counted_bytes, 1)
        zones: list[_Zone] = []
        for fragment in fragments:
            num_rows = row_counts.get(fragment.fragment_id, fragment.num_rows)
            if num_rows is None:
                num_rows = round(fragment.identity.size * rows_per_byte)
            starts = range(0, num_rows, items)
            if fragment.fragment_id in row_counts:
                zones += [
                    _Zone(fragment, start, min(start + items, num_rows), self.num_zones + number)
                    for number, start in enumerate(starts)
                ]
            self.num_rows += num_rows
            self.num_zones += len(starts)
        return [zones[number] for number in draw_zones(len(zones), max_zones).tolist()]

    def _count_some(self, fragments: Sequence[PresentFragment], max_zones: int) -> dict[int, int]:
        """Return the numbers of rows of the fragments that may be sampled, by their ids."""
        count = min(len(fragments), _MAX_COUNTED_FILES)
        positions = np.linspace(0, len(fragments) - 1, count).round().astype(int)
        is_parquet = self._source.format.default_extname == "parquet"
        can_read_parts = is_parquet or self._source.is_ipc or self._source.is_in_memory
        if not can_read_parts:
            # Counting and sampling read whole files, so the loop below stops early. In a random
            # order, the files up to there are spread over the dataset.
            positions = np.random.default_rng(0).permutation(positions)
        row_counts: dict[int, int] = {}
        num_zones = 0
        for position in positions.tolist():
            if can_read_parts or num_zones < max_zones:
                num_rows = self._snapshot.count_rows(fragments[position])
                row_counts[fragments[position].fragment_id] = num_rows
                num_zones += -(-num_rows // self._number_of_items)
        return row_counts

    def page_size_line(self, columns: Sequence[tuple[str, ...]]) -> str:
        """Return a line about the pages of some columns in the file of the first zones, or ""."""
        source = self._source
        is_plain_parquet = source.is_parquet and source.parquet_keys is None
        if not (columns and self.zones and is_plain_parquet) or source.is_in_memory:
            return ""
        present = self.zones[0].fragment
        zones = [zone for zone in self.zones if zone.fragment is present]
        try:
            with FragmentFile(
                source.filesystem, present.fragment.path, present.identity, self.counter
            ) as file:
                pages = self._snapshot.pages(present)
                if pages is None:
                    footer = read_footer(file.num_bytes, file.read, with_headers=True)
                    pages = pages_with_names(footer, present.fragment.names)
                parts = [(pages, RowRanges([(zone.start, zone.stop)])) for zone in zones]
                return page_size_line(parts, columns)
        except (FragmentUnreadable, *FILE_ERRORS):
            # Damaged files are not judged. Reading them raises an error.
            return ""

    def judge(self, targets: Sequence[Target]) -> dict[Target, Advice]:
        """Return the advice on each target, by the values in the sampled zones."""
        num_sampled_rows = sum(zone.stop - zone.start for zone in self.zones)
        columns_per_read = max(_MIN_COLUMNS, _MAX_VALUES // max(1, num_sampled_rows))
        advices: dict[Target, Advice] = {}
        for start in range(0, len(targets), columns_per_read):
            advices |= self._judge_group(targets[start : start + columns_per_read])
        return advices

    def _judge_group(self, targets: Sequence[Target]) -> dict[Target, Advice]:
        try:
            table = self._read(list(dict.fromkeys(target.column.path[0] for target in targets)))
        except (SchemaMismatch, FragmentUnreadable) as error:
            if len(targets) == 1:
                return {targets[0]: _not_indexable(targets[0], str(error))}
            # One unreadable column makes the group unreadable, so read each column alone.
            return {target: self._judge_group([target])[target] for target in targets}
        return {target: self._judge(target, table) for target in targets}

    def _read(self, names: list[str]) -> pa.Table:
        source = self._source
        schema = pa.schema([source.schema.field(name) for name in names])
        if not self.zones:
            return empty_table(schema)
        addresses = [
            np.arange(zone.start, zone.stop) + (zone.fragment.fragment_id << OFFSET_BITS)
            for zone in self.zones
        ]
        rows = np.sort(np.concatenate(addresses))
        plan, _ = plan_addresses(self._snapshot, rows, include_deleted=True)
        execution = Execution(source, Request(names, None), self.counter)
        batches = [batch.select(names) for batch in execution.batches(plan.fragments)]
        return pa.Table.from_batches(batches).select(names)

    def _judge(self, target: Target, table: pa.Table) -> Advice:
        path = target.column.path
        values: Any = table.column(path[0])
        if len(path) > 1:
            values = pc.struct_field(values, list(path[1:]))  # pyright: ignore[reportAttributeAccessIssue]
        sizes = [zone.stop - zone.start for zone in self.zones]
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).tolist()
        zones = [values.slice(start, size) for start, size in zip(starts, sizes, strict=False)]
        advice = self._measure(target, zones)
        if target.rule == VALUES and _are_messages(target, zones, advice):
            target = replace(target, rule=TokenRule(WORDS))
            advice = self._measure(target, zones)
        return with_verdict(
            advice,
            num_rows=self.num_rows,
            num_zones=self.num_zones,
            is_asked_by_range=target.rule == VALUES and _is_asked_by_range(target.column.type),
            existing=self._existing_indices(target),
        )

    def _measure(self, target: Target, zones: list[pa.ChunkedArray]) -> Advice:
        """Return the figures of a column, estimated from its values in the sampled zones."""
        overlap = find_overlaps([target.hashes(zone) for zone in zones])
        num_sampled_rows = sum(map(len, zones))
        num_keys = round(self.num_rows * overlap.num_rows.sum() / max(num_sampled_rows, 1))
        distinct = estimate_distinct(overlap, self._positions, self.num_zones, num_keys)
        per_zone = float(overlap.num_distinct.mean()) if zones else 0.0
        bound_shares = find_bound_shares(zones) if zones and target.rule == VALUES else None
        options = target.rule.options
        if self._number_of_items != DEFAULT_NUMBER_OF_ITEMS:
            options = {**options, "number_of_items": self._number_of_items}

        def mean_zones(shares: np.ndarray) -> float:
            weights = overlap.num_rows
            return estimate_zones_with_key(shares, weights, self._positions, self.num_zones)

        return Advice(
            target.name,
            str(target.column.type),
            null_share=sum(zone.null_count for zone in zones) / max(num_sampled_rows, 1),
            distinct=distinct,
            distinct_per_zone=per_zone,
            zones_read=mean_zones(overlap.shares),
            zones_per_value=per_zone * self.num_zones / max(distinct, 1),
            zones_in_bounds=None if bound_shares is None else mean_zones(bound_shares),
            options=options,
        )

    def _existing_indices(self, target: Target) -> dict[str, str]:
        """Return the kinds of the indices on the keys of a target, by their names."""
        # Trigrams, and words without regard to case, answer what words do.
        is_of_words = isinstance(target.rule, TokenRule)
        return {
            index.entry.name: index.entry.kind
            for index in self._snapshot.indices_of_column(target.column.path).indices
            if index.rule == target.rule or (is_of_words and isinstance(index.rule, TokenRule))
        }


def _are_messages(target: Target, zones: Sequence[pa.ChunkedArray], advice: Advice) -> bool:
    """Return whether values are texts of several words, most of them different in a zone."""
    if family(target.column.type) != "text":
        return False
    options = pc.MatchSubstringOptions(" ")
    chunks = [ordered_values(chunk) for zone in zones for chunk in zone.chunks]
    spaces = [pc.call_function("count_substring", [chunk], options) for chunk in chunks]
    num_spaces = sum(pc.call_function("sum", [counts]).as_py() or 0 for counts in spaces)
    num_texts = sum(len(chunk) - chunk.null_count for chunk in chunks)
    num_distinct = (advice.distinct_per_zone or 0) * len(zones)
    return num_spaces >= _MIN_SPACES * num_texts and num_distinct >= _MIN_DISTINCT * num_texts > 0


def _is_asked_by_range(type_: pa.DataType) -> bool:
    """Return whether values are times or have fractions, so that they are rarely keys."""
    name = family(type_)
    return name in _RANGE_FAMILIES or (name == "decimal" and hashed_type(type_).scale > 0)

"""Advise which columns are worth an index, from a sample of zones and the time to read a batch."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.advise.judge import FROM_PATHS, NOT_INDEXABLE, Advice, Advices, with_verdict
from zonebloom.advise.kinds import ZoneSample, bloom_estimate, hash_estimate
from zonebloom.advise.sample import (
    Overlaps,
    draw_zones,
    estimate_distinct,
    estimate_zones_with_key,
    find_clusters,
    find_overlaps,
)
from zonebloom.base import arguments
from zonebloom.base.arrays import empty_table, unwrap_extensions
from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.base.threads import num_cores
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import DEFAULT_NUMBER_OF_ITEMS
from zonebloom.errors import ColumnNotFound, FragmentUnreadable, SchemaMismatch
from zonebloom.index.hash.parameters import DEFAULT_ZONE_ROWS, HashParameters
from zonebloom.index.row_keys.elements import element_type
from zonebloom.index.row_keys.rules import VALUES, ElementRule, EntryRule, KeyRule, TokenRule
from zonebloom.index.row_keys.tokens import TRIGRAMS, WORDS, distinct_hashes
from zonebloom.index.zone_bloom.parameters import ZoneParameters
from zonebloom.index.zone_bloom.train import train_zones
from zonebloom.parquet.field_names import pages_with_names
from zonebloom.parquet.file_layout import FilePages, PageLocations
from zonebloom.parquet.footer import read_footer
from zonebloom.parquet.page_headers import walk_pages
from zonebloom.sbbf.hashing import Hashes, RowHashes
from zonebloom.sbbf.sizing import (
    DEFAULT_ZONE_PROBABILITY,
    expected_folded_size,
    false_positive_probability,
    size_for,
)
from zonebloom.scan.binding import unknown_column_text
from zonebloom.scan.execute import Execution
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.page_sizes import page_size_line
from zonebloom.scan.plan import Request
from zonebloom.scan.planner import plan_addresses
from zonebloom.sources.column_batches import Column, Run, columns_reader
from zonebloom.storage.files import FILE_ERRORS, ReadCounter, counting_filesystem
from zonebloom.storage.random_access import FragmentFile
from zonebloom.values.columns import column_path, find_leaf_type
from zonebloom.values.normal_types import hashed_type, hashed_values, key_range_type
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
# In some formats, reading one column takes as long as reading the whole file. For these, time only
# this many columns, and assume that the others are as fast.
_MAX_FULL_READS = 64
# This many keys of each zone are compared with the key ranges of the other zones.
_KEYS_PER_ZONE = 256
_TIMED_ROWS = 1 << 17
# The bytes of a zone in the bloomfilter table without its filter.
_ROW_BYTES = 28
# At most about this many sampled zones of the kind HASH are compared with each other.
_MAX_HASH_ZONES = 512


@dataclass(frozen=True, slots=True)
class Target:
    """What an index may hold: the values of a column, or other keys of its rows."""

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
    probability: float = DEFAULT_ZONE_PROBABILITY,
    tokens: str | None = None,
    lower: bool = False,
) -> Advices:
    """Return what an index on each column would cost and save, estimated from a sample."""
    start_time = time.perf_counter()
    parameters = ZoneParameters(number_of_items, probability)
    token_rule = None
    if tokens is not None:
        arguments.require_choice(tokens, "tokens", (WORDS, TRIGRAMS))
        token_rule = TokenRule(tokens, arguments.require_bool(lower, "lower"))
    schema = opened.source.schema
    name_counts = Counter(schema.names)
    names = list(name_counts)
    if columns is not None:
        names = (
            [columns]
            if isinstance(columns, str)
            else arguments.require_name_list(columns, "columns")
        )
    targets = [
        target
        for name in names
        for target in _targets(schema, name_counts, name, token_rule)
        # Without columns, tokens are those of all strings.
        if columns is not None or token_rule is None or family(target.column.type) == "text"
    ]
    sample = _Sample(opened, parameters)
    partition_columns = opened.source.constant_columns()
    refusals = {target: _refusal(target, name_counts, partition_columns) for target in targets}
    advice_by_target = sample.measure([target for target in targets if refusals[target] is None])
    advices = [
        advice_by_target.get(target)
        or Advice(
            target.name, str(target.column.type), *(refusals[target] or ("", "")), *sample.size
        )
        for target in targets
    ]
    keys = [
        target.column.path
        for target, advice in zip(targets, advices, strict=True)
        if advice.is_worth_it and target.rule == VALUES
    ]
    return Advices(
        tuple(advices),
        *sample.size,
        number_of_items,
        len(sample.zones),
        sample.counter.num_bytes,
        time.perf_counter() - start_time,
        sample.page_size_line(keys),
        probability,
    )


def _targets(
    schema: pa.Schema, name_counts: Counter[str], name: str, token_rule: TokenRule | None
) -> Iterator[Target]:
    """Yield what indices of a column, or of its leaves and elements, may hold."""
    column_name, has_elements, field = name.partition("[]")
    if name in name_counts or not has_elements:
        for leaf in _leaves(schema, name_counts, name):
            for rule in [token_rule] if token_rule is not None else _rules_of(leaf.type):
                yield Target(leaf, rule)
        return
    for leaf in _leaves(schema, name_counts, column_name):
        rule = ElementRule(tuple(field.split(".")[1:]))
        yield Target(leaf, EntryRule() if pa.types.is_map(leaf.type) else rule)


def _rules_of(type_: Any) -> list[KeyRule]:
    """Return the rules of the indices that may be built on a column of a type."""
    if pa.types.is_map(type_):
        return [EntryRule()]
    element = element_type(type_, ())
    if element is None:
        return [VALUES]
    if not pa.types.is_struct(element):
        return [ElementRule()]
    return [ElementRule(leaf.path) for leaf in _leaves_of_type((), element)]


def _leaves(schema: pa.Schema, name_counts: Counter[str], name: str) -> Iterator[Column]:
    """Yield the column with a name, or its leaves if it is a struct."""
    path = (name,) if name in name_counts else column_path(schema, name)
    if len(path) == 1 and path[0] not in name_counts:
        raise ColumnNotFound(unknown_column_text(name, schema))
    type_ = find_leaf_type(schema, path)
    if type_ is None:
        if name_counts[path[0]] < 2:
            raise ColumnNotFound(unknown_column_text(name, schema))
        # Several columns have this name, so the advice is about the first.
        type_ = schema.field(schema.names.index(path[0])).type
    yield from _leaves_of_type(path, type_)


def _leaves_of_type(path: tuple[str, ...], type_: pa.DataType) -> Iterator[Column]:
    if pa.types.is_struct(type_) and type_.num_fields:
        for field in type_:
            yield from _leaves_of_type((*path, field.name), field.type)
    else:
        yield Column(path, type_)


def _refusal(
    target: Target, name_counts: Counter[str], partition_columns: set[str]
) -> tuple[str, str] | None:
    """Return the verdict and the reason if a column cannot be indexed, else None."""
    column = target.column
    if name_counts[column.path[0]] > 1:
        return _not_indexable("several columns have its name")
    if column.path[0] in partition_columns:
        return FROM_PATHS, "its values are in the paths of the files, so scans skip files already"
    reason = target.rule.why_not_indexable([column.type], [column.name])
    return None if reason is None else _not_indexable(reason)


def _not_indexable(reason: str) -> tuple[str, str]:
    return f"{NOT_INDEXABLE}: {reason}", reason


def _located_pages(file: FragmentFile, present: PresentFragment) -> FilePages:
    """Return the pages of a file, which are located by their headers if it has no offset index."""
    pages = pages_with_names(read_footer(file.num_bytes, file.read), present.fragment.names)

    def locate(row_group: int, leaf: int) -> PageLocations | None:
        group = pages.row_groups[row_group]
        return pages.locations(row_group, leaf) or walk_pages(
            file.read, group.chunks[leaf], group.num_rows
        )

    return pages.with_locate(locate)


@dataclass(frozen=True, slots=True)
class _Zone:
    """One sampled zone: its rows in a fragment, and its position among all zones.

    ``hash_position`` is that of its first rows among all zones of the kind HASH.
    """

    fragment: PresentFragment
    start: int
    stop: int
    position: int
    hash_position: int


class _Sample:
    """A sample of the zones of a dataset.

    The numbers of rows and zones of the dataset are estimates if there are many files, or if some
    rows of a file cannot be read without reading the whole file.
    """

    def __init__(self, opened: OpenedDataset, parameters: ZoneParameters):
        self._source = opened.source
        self._snapshot = opened.look()
        self._parameters = parameters
        self._hash_parameters = HashParameters(min(parameters.number_of_items, DEFAULT_ZONE_ROWS))
        self.counter = ReadCounter()
        self._warm_types: set[str] = set()
        self._is_parquet = opened.source.format.default_extname == "parquet"
        self.zones = self._draw()

    def _draw(self) -> list[_Zone]:
        items = self._parameters.number_of_items
        hash_items = self._hash_parameters.number_of_items
        present = self._snapshot.fragments
        max_zones = max(_MIN_ZONES, min(_MAX_ZONES, _MAX_ROWS // items))
        row_counts = self._count_some(present, max_zones)
        num_bytes = sum(
            fragment.identity.size for fragment in present if fragment.fragment.path in row_counts
        )
        rows_per_byte = sum(row_counts.values()) / max(num_bytes, 1)
        self.num_rows = self.num_zones = self._num_hash_zones = 0
        zones: list[_Zone] = []
        for fragment in present:
            num_rows = row_counts.get(fragment.fragment.path)
            if num_rows is not None:
                zones += [
                    _Zone(
                        fragment,
                        start,
                        min(start + items, num_rows),
                        self.num_zones + start // items,
                        self._num_hash_zones + start // hash_items,
                    )
                    for start in range(0, num_rows, items)
                ]
            elif fragment.num_rows is not None:
                num_rows = fragment.num_rows
            else:
                num_rows = round(fragment.identity.size * rows_per_byte)
            self.num_rows += num_rows
            self.num_zones += -(-num_rows // items)
            self._num_hash_zones += -(-num_rows // hash_items)
        return [zones[number] for number in draw_zones(len(zones), max_zones).tolist()]

    def _count_some(self, present: Sequence[PresentFragment], max_zones: int) -> dict[str, int]:
        """Return the numbers of rows of the fragments that may be sampled, by their paths."""
        can_read_parts = self._can_read_parts()
        if can_read_parts and all(fragment.num_rows is not None for fragment in present):
            fragments = present
        else:
            count = min(len(present), _MAX_COUNTED_FILES)
            positions = np.linspace(0, len(present) - 1, count).round().astype(int)
            if not can_read_parts:
                # Counting and sampling read whole files, so the loop below stops early. In a random
                # order, the files up to there are spread over the dataset.
                positions = np.random.default_rng(0).permutation(positions)
            fragments = [present[position] for position in positions.tolist()]
        row_counts: dict[str, int] = {}
        num_zones = 0
        for fragment in fragments:
            if not can_read_parts and num_zones >= max_zones:
                break
            num_rows = self._snapshot.count_rows(fragment)
            row_counts[fragment.fragment.path] = num_rows
            num_zones += -(-num_rows // self._parameters.number_of_items)
        return row_counts

    def _can_read_parts(self) -> bool:
        """Return whether some rows of a file can be read without reading the whole file."""
        return self._is_parquet or self._source.is_ipc or self._source.is_in_memory

    @property
    def size(self) -> tuple[int, int]:
        return self.num_rows, self.num_zones

    def page_size_line(self, columns: Sequence[tuple[str, ...]]) -> str:
        """Return a line about the pages of some columns in the file of the first zones, or ""."""
        if not (columns and self.zones and self._source.is_parquet) or self._source.is_in_memory:
            return ""
        present = self.zones[0].fragment
        rows = [
            RowRanges([(zone.start, zone.stop)]) for zone in self.zones if zone.fragment is present
        ]
        try:
            with FragmentFile(
                self._source.filesystem, present.fragment.path, present.identity, self.counter
            ) as file:
                pages = self._snapshot.pages(present) or _located_pages(file, present)
                return page_size_line([(pages, zone) for zone in rows], columns)
        except (FragmentUnreadable, *FILE_ERRORS):
            # Encrypted and damaged files are not judged. Reading them raises an error.
            return ""

    def measure(self, targets: Sequence[Target]) -> dict[Target, Advice]:
        """Return the advice on each target, by the values in the sampled zones."""
        paces = self._paces({target.column: target for target in targets})
        num_sampled_rows = sum(zone.stop - zone.start for zone in self.zones)
        columns_per_read = max(_MIN_COLUMNS, _MAX_VALUES // max(1, num_sampled_rows))
        advices: dict[Target, Advice] = {}
        for start in range(0, len(targets), columns_per_read):
            advices.update(self._measure_group(targets[start : start + columns_per_read], paces))
        return advices

    def _measure_group(
        self, targets: Sequence[Target], paces: Mapping[Column, _Pace]
    ) -> dict[Target, Advice]:
        try:
            table = self._read(list(dict.fromkeys(target.column.path[0] for target in targets)))
        except (SchemaMismatch, FragmentUnreadable) as error:
            if len(targets) == 1:
                (target,) = targets
                refusal = _not_indexable(str(error))
                type_text = str(target.column.type)
                return {target: Advice(target.name, type_text, *refusal, *self.size)}
            # One unreadable column makes the group unreadable, so read each column alone.
            groups = [self._measure_group([target], paces) for target in targets]
            return {target: advice for group in groups for target, advice in group.items()}
        advices: dict[Target, Advice] = {}
        for target in targets:
            column = target.column
            values: Any = table.column(column.path[0])
            if len(column.path) > 1:
                values = pc.struct_field(values, list(column.path[1:]))  # pyright: ignore[reportAttributeAccessIssue]
            advices[target] = self._judge(
                target, values, paces.get(column) or _mean_pace(paces.values())
            )
        return advices

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

    def _paces(self, targets: Mapping[Column, Target]) -> dict[Column, _Pace]:
        """Return the paces of the readable columns. Each is read alone.

        If reading a column means reading the whole file, time only `_MAX_FULL_READS` columns.
        """
        paces: dict[Column, _Pace] = {}
        if not self.zones:
            return paces
        fragment = self.zones[0].fragment.fragment
        files = counting_filesystem(self._source.filesystem, self.counter)
        reader = columns_reader(self._source, fragment, list(targets), files)
        with suppress(FragmentUnreadable):
            run = reader.runs(split=True)[0]
            is_full_read = run.row_groups is None and not self._source.is_in_memory
            max_columns = _MAX_FULL_READS if is_full_read else None
            for column, batches in itertools.islice(reader.read_apart(run), max_columns):
                with suppress(SchemaMismatch, FragmentUnreadable):
                    paces[column] = self._pace(targets[column], run, batches)
        return paces

    def _pace(self, target: Target, run: Run, batches: Iterator[list[pa.Array]]) -> _Pace:
        seconds, rows, array = 0.0, 0, pa.nulls(0, pa.int64())
        # The first batch also reads the dictionary, so the second one is timed if there is one.
        for _ in range(2):
            start_time = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            (array,) = batch
            rows = len(array)
            seconds = time.perf_counter() - start_time
        seconds_to_read = seconds / max(rows, 1)
        num_row_groups = len(run.row_groups or ())
        array = array.slice(0, _TIMED_ROWS)
        # Extension types that are defined in Python have no hash, so keep the text of the type.
        type_text = f"{unwrap_extensions(array).type} {target.rule}"
        if type_text not in self._warm_types:
            # The first call for a type loads or compiles kernels, so it is not timed.
            self._train(target, array.slice(0, 1))
            self._warm_types.add(type_text)
        start_time = time.perf_counter()
        self._train(target, array)
        seconds_to_train = (time.perf_counter() - start_time) / max(len(array), 1)
        row_group_rows = (run.num_rows or 0) / num_row_groups if num_row_groups else 0.0
        return _Pace(seconds_to_read + seconds_to_train, row_group_rows)

    def _train(self, target: Target, array: pa.Array) -> None:
        if target.rule == VALUES:
            for _ in train_zones([array], self._parameters, len(array)):
                pass
        else:
            distinct_hashes(target.hashes(pa.chunked_array([array])))

    def _judge(self, target: Target, values: pa.ChunkedArray, pace: _Pace) -> Advice:
        column, is_of_values = target.column, target.rule == VALUES
        values_by_zone = self._split_by_zone(values)
        overlap = find_overlaps([target.hashes(zone) for zone in values_by_zone])
        positions = np.array([zone.position for zone in self.zones], dtype=np.int64)
        keys_per_row = overlap.num_rows.sum() / max(len(values), 1)
        null_share = 1 - keys_per_row if is_of_values else values.null_count / max(len(values), 1)
        num_non_null_rows = round(self.num_rows * keys_per_row)
        distinct = estimate_distinct(overlap, positions, self.num_zones, num_non_null_rows)
        per_zone = float(overlap.num_distinct.mean()) if values_by_zone else 0.0
        sizes = _filter_sizes(overlap, self._parameters, is_of_values)
        fpp = _mean_fpp(overlap, sizes)
        zones_with_key = estimate_zones_with_key(
            overlap.shared_rows / np.maximum(overlap.num_rows, 1)[:, None],
            overlap.num_rows,
            positions,
            self.num_zones,
        )
        range_shares = _range_shares(values_by_zone) if is_of_values else None
        zones_in_range = (
            None
            if range_shares is None
            else estimate_zones_with_key(range_shares, overlap.num_rows, positions, self.num_zones)
        )
        bloom = bloom_estimate(
            number_of_items=self._parameters.number_of_items,
            num_zones=self.num_zones,
            num_rows=self.num_rows,
            index_bytes=self._index_bytes(sizes),
            zones_with_key=zones_with_key,
            probability=fpp,
        )
        hashed = hash_estimate(
            self._hash_sample(target, values_by_zone),
            self._hash_parameters,
            num_rows=self.num_rows,
            num_non_null_rows=num_non_null_rows,
            distinct=distinct,
        )
        advice = Advice(
            target.name,
            str(column.type),
            "",
            "",
            *self.size,
            null_share=float(null_share),
            distinct=distinct,
            distinct_per_zone=per_zone,
            index_bytes=bloom.index_bytes,
            index_bytes_unfolded=self.num_zones * (self._parameters.filter_bytes + _ROW_BYTES)
            if is_of_values
            else bloom.index_bytes,
            build_seconds=pace.seconds * self.num_rows / num_cores(),
            zones_with_index=bloom.zones_with_index,
            zones_with_key_ranges=zones_in_range,
            zones_per_value=per_zone * self.num_zones / max(distinct, 1),
            zones_if_absent=bloom.false_zones,
            kinds=(bloom, hashed),
            options=target.rule.options,
        )
        row_group_zones = pace.row_group_rows / self._parameters.number_of_items
        no_ranges = "" if self._is_parquet else "the files keep no key ranges"
        if self._is_parquet and column.type == pa.uuid():
            # pyarrow cannot compare UUIDs.
            no_ranges = "pyarrow cannot skip row groups by those of UUIDs"
        is_measure = _is_measure(column.type)
        return with_verdict(advice, no_ranges, row_group_zones, is_measure, is_of_values)

    def _split_by_zone(self, values: pa.ChunkedArray) -> list[pa.ChunkedArray]:
        sizes = [zone.stop - zone.start for zone in self.zones]
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).tolist()
        return [values.slice(start, size) for start, size in zip(starts, sizes, strict=False)]

    def _hash_sample(self, target: Target, values_by_zone: list[pa.ChunkedArray]) -> ZoneSample:
        """Return the zones of the kind HASH that are in the sampled zones, or the first of each."""
        items = self._hash_parameters.number_of_items
        max_parts = max(1, _MAX_HASH_ZONES // max(len(self.zones), 1))
        hashes: list[np.ndarray] = []
        positions: list[int] = []
        for zone, values in zip(self.zones, values_by_zone, strict=True):
            for part, start in enumerate(range(0, len(values), items)[:max_parts]):
                hashes.append(target.hashes(values.slice(start, items)))
                positions.append(zone.hash_position + part)
        numbers = np.array(positions, dtype=np.int64)
        return ZoneSample(hashes, numbers, find_clusters(numbers), self._num_hash_zones)

    def _index_bytes(self, filter_sizes: Sequence[int]) -> int:
        if not filter_sizes:
            return 0
        # Zones at the ends of files are shorter, so scale by rows.
        sampled_rows = sum(zone.stop - zone.start for zone in self.zones)
        filter_bytes = sum(filter_sizes) * self.num_rows / max(sampled_rows, 1)
        return round(filter_bytes + self.num_zones * _ROW_BYTES)


def _mean_fpp(overlap: Overlaps, filter_sizes: Sequence[int]) -> float:
    pairs = zip(overlap.num_distinct, filter_sizes, strict=True)
    probabilities = [false_positive_probability(int(count), size) for count, size in pairs]
    return float(np.mean(probabilities)) if probabilities else 0.0


def _filter_sizes(overlap: Overlaps, parameters: ZoneParameters, is_of_values: bool) -> list[int]:
    """Return the bytes of the filter of each sampled zone, as a build makes it."""
    if not is_of_values:
        return [size_for(max(int(ndv), 1), parameters.probability) for ndv in overlap.num_distinct]
    unfolded, probability = parameters.filter_bytes, parameters.probability
    return [expected_folded_size(int(ndv), unfolded, probability) for ndv in overlap.num_distinct]


def _is_measure(type_: pa.DataType) -> bool:
    """Return whether a type is one of measured values, which have fractions and are rarely keys."""
    name = family(type_)
    return name in ("float", "duration") or (name == "decimal" and hashed_type(type_).scale > 0)


@dataclass(frozen=True, slots=True)
class _Pace:
    """The seconds to read and train a row on one core, and the rows of a row group."""

    seconds: float
    row_group_rows: float


def _mean_pace(paces: Collection[_Pace]) -> _Pace:
    count = max(len(paces), 1)
    return _Pace(
        sum(pace.seconds for pace in paces) / count,
        sum(pace.row_group_rows for pace in paces) / count,
    )


def _range_shares(values_by_zone: list[pa.ChunkedArray]) -> np.ndarray | None:
    """Return the share of the keys of each zone that lie in the key range of each zone.

    The shape is (zones, zones). The result is None if pyarrow cannot compare the type.
    """
    if not values_by_zone:
        return None
    num_zones = len(values_by_zone)
    try:
        values_by_zone = [_as_key_range_type(values) for values in values_by_zone]
        ranges = [pc.call_function("min_max", [values]) for values in values_by_zone]
        keys_by_zone = [_spread_sample(values.drop_null()) for values in values_by_zone]
        zone_of_key = np.repeat(np.arange(num_zones), [len(keys) for keys in keys_by_zone])
        chunks = [chunk for keys in keys_by_zone for chunk in keys.chunks]
        all_keys = pa.chunked_array(chunks, values_by_zone[0].type)
        shares = np.zeros((num_zones, num_zones))
        for zone, key_range in enumerate(ranges):
            is_above = pc.call_function("greater_equal", [all_keys, key_range["min"]])
            is_below = pc.call_function("less_equal", [all_keys, key_range["max"]])
            is_inside = pc.call_function("and", [is_above, is_below]).fill_null(False)
            shares[:, zone] = np.bincount(zone_of_key, is_inside, num_zones)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None
    return shares / np.maximum([len(keys) for keys in keys_by_zone], 1)[:, None]


def _spread_sample(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return some values of a zone, at equal distances."""
    if len(values) <= _KEYS_PER_ZONE:
        return values
    return values.take(np.linspace(0, len(values) - 1, _KEYS_PER_ZONE).round().astype(np.int64))


def _as_key_range_type(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values in the type of key ranges, which has the same order and can be compared."""
    range_type = key_range_type(values.type)
    if pa.types.is_decimal128(range_type):
        # Use the full precision, because a value may have more digits than its type allows.
        range_type = pa.decimal128(38, range_type.scale)
    chunks = [hashed_values(chunk).cast(range_type) for chunk in values.chunks]
    return pa.chunked_array(chunks, range_type)

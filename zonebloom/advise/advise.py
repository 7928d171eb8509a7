"""advise(): which columns are worth an index, from a sample of zones and a timed batch each."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.advise.judge import FROM_PATHS, NOT_INDEXABLE, Advice, Advices, with_verdict
from zonebloom.advise.sample import (
    Overlaps,
    draw_zones,
    estimate_distinct,
    estimate_zones_with_key,
    find_overlaps,
)
from zonebloom.base import arguments
from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.base.threads import num_cores
from zonebloom.building.zones import train_zones
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.catalog.model import (
    DEFAULT_NUMBER_OF_ITEMS,
    DEFAULT_ZONE_PROBABILITY,
    ZoneParameters,
)
from zonebloom.errors import ColumnNotFound, FragmentUnreadable, SchemaMismatch
from zonebloom.index.key_ranges import key_range_type
from zonebloom.opened import OpenedDataset
from zonebloom.sbbf.hashing import hash_array, hashed_type
from zonebloom.sbbf.sizing import expected_folded_size, false_positive_probability
from zonebloom.scan.binding import unknown_column_text
from zonebloom.scan.execute import Execution
from zonebloom.scan.plan import Request
from zonebloom.sources.column_batches import Column, Run, columns_reader
from zonebloom.sources.memory import TableSource
from zonebloom.storage.files import ReadCounter, counting_filesystem
from zonebloom.values.columns import column_path, find_leaf_type
from zonebloom.values.types import family, why_not_indexable

if TYPE_CHECKING:
    from zonebloom.scan.planner import Planner
    from zonebloom.sources.source import Source

_ZONES = 50
_FEWEST_ZONES = 10
# Zones of many rows are sampled fewer at a time.
_ROWS = 1 << 19
# Of a dataset of more files, the rows of so many are counted and the others' estimated.
_FILES = 64
# Sampled values held in memory at a time, at least those of a few columns.
_CELLS = 1 << 23
_FEWEST_COLUMNS = 16
# To read one column of some formats takes as long as to read the whole file. Of those formats, so
# many columns are timed, and the others are taken to be as quick.
_MOST_WHOLE_READS = 64
# Keys of a zone that are compared with the ranges of others.
_KEYS = 256
_PACE_ROWS = 1 << 17
# Of a zone in the table besides its filter, bytes.
_ROW_BYTES = 28


def advise(
    opened: OpenedDataset,
    columns: str | Sequence[str] | None = None,
    *,
    number_of_items: int = DEFAULT_NUMBER_OF_ITEMS,
    probability: float = DEFAULT_ZONE_PROBABILITY,
) -> Advices:
    """Say what an index on each column would cost and save, from a sample."""
    started = time.perf_counter()
    parameters = ZoneParameters(number_of_items, probability)
    schema = opened.source.schema
    known = Counter(schema.names)
    names = list(known)
    if columns is not None:
        names = (
            [columns]
            if isinstance(columns, str)
            else arguments.require_name_list(columns, "columns")
        )
    candidates = [leaf for name in names for leaf in _leaves(schema, known, name)]
    sample = _Sample(opened.source, opened.planner, parameters)
    from_paths = opened.source.partition_columns()
    refused = {each: _refusal(each, known, from_paths) for each in candidates}
    measured = sample.measure([each for each in candidates if refused[each] is None])
    advices = [
        measured.get(each)
        or Advice(each.name, str(each.type), *(refused[each] or ("", "")), *sample.size)
        for each in candidates
    ]
    return Advices(
        tuple(advices),
        *sample.size,
        number_of_items,
        len(sample.zones),
        sample.counter.num_bytes,
        time.perf_counter() - started,
    )


def _leaves(schema: pa.Schema, known: Counter[str], name: str) -> Iterator[Column]:
    """Yield the column of a name, or the leaves of a struct."""
    path = (name,) if name in known else column_path(schema, name)
    if len(path) == 1 and path[0] not in known:
        raise ColumnNotFound(unknown_column_text(name, schema))
    leaf = find_leaf_type(schema, path)
    if leaf is None:
        if known[path[0]] < 2:
            raise ColumnNotFound(unknown_column_text(name, schema))
        # The name does not tell several columns apart, so the advice is about the first.
        leaf = schema.field(schema.names.index(path[0])).type
    yield from _below(path, leaf)


def _below(path: tuple[str, ...], kind: pa.DataType) -> Iterator[Column]:
    if pa.types.is_struct(kind) and kind.num_fields:
        for field in kind:
            yield from _below((*path, field.name), field.type)
    else:
        yield Column(path, kind)


def _refusal(column: Column, known: Counter[str], from_paths: set[str]) -> tuple[str, str] | None:
    """Return the verdict and the reason if a column cannot be indexed, else None."""
    if known[column.path[0]] > 1:
        return _not_indexable("there are several columns of its name")
    if column.path[0] in from_paths:
        return FROM_PATHS, "the paths of the files give it, and a scan passes over files by it"
    why = why_not_indexable(column.type, column.name)
    return None if why is None else _not_indexable(why)


def _not_indexable(why: str) -> tuple[str, str]:
    return f"{NOT_INDEXABLE}: {why}", why


@dataclass(frozen=True, slots=True)
class _Zone:
    """One sampled zone: its rows in a fragment, and its place among all zones."""

    fragment: PresentFragment
    start: int
    stop: int
    position: int


class _Sample:
    """Zones drawn from a dataset; its rows and zones are estimates where there are many files."""

    def __init__(self, source: Source, planner: Planner, parameters: ZoneParameters):
        self._source = source
        self._planner = planner
        self._parameters = parameters
        self.counter = ReadCounter()
        self._trained_types: set[pa.DataType] = set()
        self._parquet = source.format.default_extname == "parquet"
        self.zones = self._draw()

    def _draw(self) -> list[_Zone]:
        items = self._parameters.number_of_items
        present = self._planner.coverage().fragments
        looked_at = self._counted(present)
        rows = {each.fragment.path: self._planner.count_rows(each) for each in looked_at}
        num_bytes = sum(each.identity.size for each in looked_at)
        pace = sum(rows.values()) / max(num_bytes, 1)
        self.num_rows = self.num_zones = 0
        drawable: list[_Zone] = []
        for each in present:
            count = rows.get(each.fragment.path)
            if count is None:
                count = round(each.identity.size * pace)
            else:
                drawable += [
                    _Zone(each, at, min(at + items, count), self.num_zones + at // items)
                    for at in range(0, count, items)
                ]
            self.num_rows += count
            self.num_zones += -(-count // items)
        wanted = max(_FEWEST_ZONES, min(_ZONES, _ROWS // items))
        return [drawable[i] for i in draw_zones(len(drawable), wanted).tolist()]

    def _counted(self, present: Sequence[PresentFragment]) -> Sequence[PresentFragment]:
        if all(each.num_rows is not None for each in present) and self._reads_parts():
            return present
        count = min(len(present), _FILES if self._reads_parts() else 1)
        places = np.linspace(0, len(present) - 1, count).round().astype(int)
        return [present[i] for i in np.unique(places).tolist()]

    def _reads_parts(self) -> bool:
        return self._parquet or self._source.is_ipc or isinstance(self._source, TableSource)

    @property
    def size(self) -> tuple[int, int]:
        return self.num_rows, self.num_zones

    def measure(self, columns: Sequence[Column]) -> dict[Column, Advice]:
        """Judge columns by their values in the sampled zones."""
        advices: dict[Column, Advice] = {}
        paces = self._paces(columns, _MOST_WHOLE_READS)
        size = max(_FEWEST_COLUMNS, _CELLS // max(1, sum(z.stop - z.start for z in self.zones)))
        for start in range(0, len(columns), size):
            part = columns[start : start + size]
            try:
                advices.update(self._measure(part, paces))
            except (SchemaMismatch, FragmentUnreadable):
                # A column that was not read alone so far may hide the others of this part.
                unread = [column for column in part if column not in paces]
                if not unread:
                    raise
                advices.update(self._measure(part, {**paces, **self._paces(unread)}))
        return advices

    def _measure(
        self, columns: Sequence[Column], paces: Mapping[Column, _Pace | str]
    ) -> dict[Column, Advice]:
        advices: dict[Column, Advice] = {}
        readable: dict[Column, _Pace] = {}
        for column in columns:
            pace = paces.get(column) or _mean_pace(paces.values())
            if isinstance(pace, str):
                refusal = _not_indexable(pace)
                advices[column] = Advice(column.name, str(column.type), *refusal, *self.size)
            else:
                readable[column] = pace
        if readable:
            table = self._read(list(dict.fromkeys(column.path[0] for column in readable)))
            chunks = dict(zip(table.column_names, table.columns, strict=True))
            for column, pace in readable.items():
                values = chunks[column.path[0]]
                if len(column.path) > 1:
                    values = pc.struct_field(values, list(column.path[1:]))  # pyright: ignore[reportAttributeAccessIssue]
                advices[column] = self._judge(column, values, pace)
        return advices

    def _read(self, names: list[str]) -> pa.Table:
        source = self._source
        schema = pa.schema([source.schema.field(name) for name in names])
        if not self.zones:
            return schema.empty_table()
        addresses = [
            np.arange(zone.start, zone.stop) + (zone.fragment.fragment_id << OFFSET_BITS)
            for zone in self.zones
        ]
        plan, _ = self._planner.plan_rows(np.sort(np.concatenate(addresses)), include_deleted=True)
        execution = Execution(source, Request(names, None), self.counter)
        batches = [batch.select(names) for batch in execution.batches(plan.fragments)]
        return pa.Table.from_batches(batches).select(names)

    def _paces(
        self, columns: Sequence[Column], most_whole_reads: int | None = None
    ) -> dict[Column, _Pace | str]:
        """Measure the pace of each column read alone, or return why it cannot be read.

        Of files that are read as a whole, only the first columns are measured.
        """
        if not self.zones:
            return dict.fromkeys(columns, _Pace(0.0, 0.0))
        paces: dict[Column, _Pace | str] = {}
        fragment = self.zones[0].fragment.fragment
        files = counting_filesystem(self._source.filesystem, self.counter)
        reader = columns_reader(self._source, fragment, columns, files)
        try:
            run = reader.runs(split=True)[0]
            is_whole = run.row_groups is None and not isinstance(self._source, TableSource)
            most = most_whole_reads if is_whole else None
            for column, batches in itertools.islice(reader.read_apart(run), most):
                try:
                    paces[column] = self._pace(run, batches)
                except (SchemaMismatch, FragmentUnreadable) as error:
                    paces[column] = str(error)
        except FragmentUnreadable as error:
            # The file cannot be opened, so none of its columns can be read.
            paces.update({column: str(error) for column in columns if column not in paces})
        return paces

    def _pace(self, run: Run, batches: Iterator[list[pa.Array]]) -> _Pace:
        seconds, rows, array = 0.0, 0, pa.nulls(0, pa.int64())
        # The first batch reads the dictionary. The second, where there is one, is the usual pace.
        for _ in range(2):
            started = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            (array,) = batch
            rows = len(array)
            seconds = time.perf_counter() - started
        read = seconds / max(rows, 1)
        groups = len(run.row_groups or ())
        array = array.slice(0, _PACE_ROWS)
        if array.type not in self._trained_types:
            # The first call for a type loads or compiles kernels.
            self._train(array.slice(0, 1))
            self._trained_types.add(array.type)
        started = time.perf_counter()
        self._train(array)
        trained = (time.perf_counter() - started) / max(len(array), 1)
        return _Pace(read + trained, (run.num_rows or 0) / groups if groups else 0.0)

    def _train(self, array: pa.Array) -> None:
        for _ in train_zones([array], self._parameters, len(array)):
            pass

    def _judge(self, column: Column, values: pa.ChunkedArray, pace: _Pace) -> Advice:
        parts = self._cut(values)
        overlap = find_overlaps([_hashes(part) for part in parts])
        positions = np.array([zone.position for zone in self.zones], dtype=np.int64)
        null_share = 1 - overlap.num_rows.sum() / max(len(values), 1)
        limit = round(self.num_rows * (1 - null_share))
        distinct = estimate_distinct(overlap, positions, self.num_zones, limit)
        per_zone = float(overlap.num_distinct.mean()) if parts else 0.0
        sizes = _filter_sizes(overlap, self._parameters)
        fpp = _false_positives(overlap, sizes)
        holding = estimate_zones_with_key(
            overlap.shared_rows / np.maximum(overlap.num_rows, 1)[:, None],
            overlap.num_rows,
            positions,
            self.num_zones,
        )
        by_range = _range_shares(parts)
        with_ranges = (
            None
            if by_range is None
            else estimate_zones_with_key(by_range, overlap.num_rows, positions, self.num_zones)
        )
        exact = replace(self._parameters, sizing="exact")
        advice = Advice(
            column.name,
            str(column.type),
            "",
            "",
            *self.size,
            null_share=float(null_share),
            distinct=distinct,
            distinct_per_zone=per_zone,
            index_bytes=self._index_bytes(sizes),
            index_bytes_exact=self._index_bytes(_filter_sizes(overlap, exact)),
            index_bytes_unfolded=self.num_zones * (self._parameters.filter_bytes + _ROW_BYTES),
            build_seconds=pace.seconds * self.num_rows / num_cores(),
            zones_with_index=holding + fpp * (self.num_zones - holding),
            zones_with_key_ranges=with_ranges,
            zones_per_value=per_zone * self.num_zones / max(distinct, 1),
            zones_if_absent=fpp * self.num_zones,
        )
        row_group_zones = pace.row_group_rows / self._parameters.number_of_items
        no_ranges = "" if self._parquet else "the files keep no key ranges"
        if self._parquet and column.type == pa.uuid():
            # It has no comparison of them either.
            no_ranges = "pyarrow passes over no row group by those of UUIDs"
        return with_verdict(advice, no_ranges, row_group_zones, _is_measure(column.type))

    def _cut(self, values: pa.ChunkedArray) -> list[pa.ChunkedArray]:
        sizes = [zone.stop - zone.start for zone in self.zones]
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).tolist()
        return [values.slice(start, size) for start, size in zip(starts, sizes, strict=False)]

    def _index_bytes(self, filter_sizes: Sequence[int]) -> int:
        if not filter_sizes:
            return 0
        return round(self.num_zones * (float(np.mean(filter_sizes)) + _ROW_BYTES))


def _false_positives(overlap: Overlaps, filter_sizes: Sequence[int]) -> float:
    pairs = zip(overlap.num_distinct, filter_sizes, strict=True)
    probabilities = [false_positive_probability(int(count), size) for count, size in pairs]
    return float(np.mean(probabilities)) if probabilities else 0.0


def _filter_sizes(overlap: Overlaps, parameters: ZoneParameters) -> list[int]:
    """Bytes of the filter of each zone looked at, folded as a build folds it."""
    whole, most = parameters.filter_bytes, parameters.probability
    return [expected_folded_size(int(count), whole, most) for count in overlap.num_distinct]


def _is_measure(kind: pa.DataType) -> bool:
    """Whether values of a type are measured or computed: no key has a fraction."""
    name = family(kind)
    return name in ("float", "duration") or (name == "decimal" and hashed_type(kind).scale > 0)


@dataclass(frozen=True, slots=True)
class _Pace:
    """Seconds a row takes to be read and trained on one core, and rows of a row group."""

    seconds: float
    row_group_rows: float


def _mean_pace(paces: Iterable[_Pace | str]) -> _Pace:
    known = [pace for pace in paces if isinstance(pace, _Pace)]
    count = max(len(known), 1)
    return _Pace(
        sum(pace.seconds for pace in known) / count,
        sum(pace.row_group_rows for pace in known) / count,
    )


def _hashes(values: pa.ChunkedArray) -> np.ndarray:
    hashes = [hash_array(chunk).of_valid_rows() for chunk in values.chunks]
    return np.concatenate(hashes) if hashes else np.empty(0, dtype=np.uint64)


def _range_shares(parts: list[pa.ChunkedArray]) -> np.ndarray | None:
    """Share of one zone's keys within the bounds of the other, shape (s, s); None without order."""
    if not parts:
        return None
    try:
        parts = [_comparable(part) for part in parts]
        bounds = [pc.call_function("min_max", [part]) for part in parts]
        keys = [_some(part.drop_null()) for part in parts]
        owner = np.repeat(np.arange(len(parts)), [len(each) for each in keys])
        drawn = pa.chunked_array([chunk for each in keys for chunk in each.chunks], parts[0].type)
        shares = np.zeros((len(parts), len(parts)))
        for other, bound in enumerate(bounds):
            above = pc.call_function("greater_equal", [drawn, bound["min"]])
            below = pc.call_function("less_equal", [drawn, bound["max"]])
            inside = pc.call_function("and", [above, below])
            shares[:, other] = np.bincount(owner, inside.fill_null(False), len(parts))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None
    return shares / np.maximum([len(each) for each in keys], 1)[:, None]


def _some(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Keys from all over a zone."""
    if len(values) <= _KEYS:
        return values
    return values.take(np.linspace(0, len(values) - 1, _KEYS).round().astype(np.int64))


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values as a type of the same order that pyarrow compares."""
    while isinstance(values.type, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in values.chunks]
        values = pa.chunked_array(chunks, values.type.storage_type)
    values, wanted = values.cast(hashed_type(values.type)), key_range_type(values.type)
    if pa.types.is_decimal128(wanted):
        # Of full precision: a value may have more digits than its type says.
        wanted = pa.decimal128(38, wanted.scale)
    return values.cast(wanted)

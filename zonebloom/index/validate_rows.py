"""Holding an index against the rows of the files: what it denies must not be there.

Rows are read as a build reads them, through pyarrow and without the index; zone by zone, their
values are asked of all the index has to say of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import CorruptIndex, FragmentChanged, FragmentUnreadable
from zonebloom.index.key_ranges import range_type
from zonebloom.index.loaded import Table
from zonebloom.index.table import ZoneTable
from zonebloom.ranges import RowRanges
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.hashing import Hashes, hash_array
from zonebloom.storage.columns import Column, ColumnsReader, TableColumns, columns_reader, leaf_of
from zonebloom.storage.files import ReadCounter
from zonebloom.storage.parquet.pagemap import FilePages
from zonebloom.storage.rows import open_rows
from zonebloom.storage.source import Source

# Hashes looked up in a sliced table at a time: each time, all of it is read.
_HASHES = 1 << 22


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an index says, to be held against the rows.

    Attributes
    ----------
    index : str
        Its name.
    tables : sequence of ZoneTable or SlicedTable
    ranges : pyarrow.Table
        Key ranges as stored.
    over_all : Sbbf or None
        The filter over all keys.
    held_over_all : frozenset of int
        Ids of the fragments whose keys that one holds.
    pages : callable
        The page map of a fragment, given its id and the size of its file.
    """

    index: str
    tables: Sequence[Table]
    ranges: pa.Table
    over_all: Sbbf | None
    held_over_all: frozenset[int]
    pages: Callable[[int, int], FilePages | None]


@dataclass(frozen=True, slots=True)
class _Zone:
    """One zone: rows ``start`` to ``stop`` of a fragment, and its number in a table."""

    table: Table
    number: int
    start: int
    stop: int


def hold_against_rows(
    evidence: Evidence,
    source: Source,
    column: Column,
    present: Sequence[PresentFragment],
    sample: int | None,
) -> int:
    """Read zones from the files and prove that nothing the index says denies a value of theirs.

    Zones read.
    """
    known = [each for each in present if each.is_known]
    lookups = _SlicedLookups(evidence.index)
    count = 0
    for fragment, zones in _sampled(evidence.tables, known, sample):
        held = _Held(evidence, source, column, fragment, lookups)
        reader = columns_reader(source, fragment.fragment.path, [column])
        held.check_all(reader, zones)
        count += len(zones)
    lookups.finish()
    return count


def _sampled(
    tables: Sequence[Table], known: Sequence[PresentFragment], sample: int | None
) -> Iterator[tuple[PresentFragment, list[_Zone]]]:
    """The zones to read of each fragment, in the order of their rows, one table after another."""
    ids = np.array([each.fragment_id for each in known], dtype=np.uint64)
    by_id = np.argsort(ids)
    columns: list[list[np.ndarray]] = [[], [], []]
    for at, table in enumerate(tables):
        place = np.searchsorted(ids[by_id], table.fragment_ids)
        is_known = np.isin(table.fragment_ids, ids)
        columns[0].append(by_id[place[is_known]])
        columns[1].append(np.flatnonzero(is_known))
        columns[2].append(np.full(int(is_known.sum()), at))
    if not tables:
        return
    fragments, numbers, of_table = (np.concatenate(parts) for parts in columns)
    starts = np.concatenate([t.starts[n] for t, n in zip(tables, columns[1], strict=True)])
    order = np.lexsort([starts, of_table, fragments])
    if sample is not None and sample < order.size:
        order = order[np.linspace(0, order.size - 1, sample).round().astype(np.int64)]
    changes = np.diff(fragments[order]) | np.diff(of_table[order])
    for group in np.split(order, np.flatnonzero(changes) + 1):
        if group.size:
            table = tables[int(of_table[group[0]])]
            chosen = numbers[group]
            bounds = zip(chosen, table.starts[chosen], table.lengths[chosen], strict=True)
            zones = [_Zone(table, int(n), int(a), int(a) + int(b)) for n, a, b in bounds]
            yield known[int(fragments[group[0]])], zones


def _rows_of(
    reader: ColumnsReader | TableColumns, fragment: PresentFragment, zones: Sequence[_Zone]
) -> Iterator[tuple[_Zone, list[pa.Array]]]:
    """The values of each zone, zones being in the order of their rows."""
    done, held = 0, []
    for run in reader.runs(split=True):
        at = run.first_row
        if done == len(zones):
            return
        if run.num_rows is not None and at + run.num_rows <= zones[done].start:
            continue
        for (array,) in reader.read(run):
            end = at + len(array)
            while done < len(zones) and zones[done].start < end:
                zone = zones[done]
                first, last = max(zone.start, at), min(zone.stop, end)
                held.append(array.slice(first - at, last - first))
                if zone.stop > end:
                    break
                yield zone, held
                done, held = done + 1, []
            at = end
            if done == len(zones):
                return
    if done < len(zones):
        raise CorruptIndex(
            f"{fragment.fragment.path} ends before row {zones[done].stop:,}, to which it was "
            "indexed: it was replaced by another file unnoticed, or the index is damaged; build "
            "the index again"
        )


class _Held:
    """One fragment, and what the index says of it."""

    def __init__(
        self,
        evidence: Evidence,
        source: Source,
        column: Column,
        fragment: PresentFragment,
        lookups: _SlicedLookups,
    ):
        self._evidence = evidence
        self._source = source
        self._column = column
        self._fragment = fragment
        self._lookups = lookups
        same = pc.call_function("equal", [evidence.ranges["fragment_id"], fragment.fragment_id])
        self._ranges = evidence.ranges.filter(same)
        self._pages = evidence.pages(fragment.fragment_id, fragment.identity.size)
        # A column that the path gives is not read from the file.
        if column.path[0] in source.partition_columns():
            self._pages = None

    def check_all(self, reader: ColumnsReader | TableColumns, zones: Sequence[_Zone]) -> None:
        """Prove that nothing denies the values of some zones."""
        for zone, arrays in _rows_of(reader, self._fragment, zones):
            self.check(zone, arrays)

    def check(self, zone: _Zone, arrays: Sequence[pa.Array]) -> None:
        """Prove that nothing denies the values of a zone."""
        rows = f"rows {zone.start:,} to {zone.stop:,} of {self._fragment.fragment.path}"
        found = [hash_array(array) for array in arrays]
        hashes = np.concatenate([each.valid() for each in found])
        if any(each.null_count for each in found) and not zone.table.has_null[zone.number]:
            raise _denied(self._evidence.index, rows, "the null flag", "a null")
        if isinstance(zone.table, ZoneTable):
            _require_all(_in_zone(zone.table, zone.number, hashes), self._evidence.index, rows)
        else:
            self._lookups.add(zone.table, zone.number, hashes, rows)
        over_all = self._evidence.over_all
        if self._fragment.fragment_id not in self._evidence.held_over_all:
            over_all = None
        if over_all is not None and not over_all.check_hashes(hashes).all():
            raise _denied(self._evidence.index, rows, "the filter over all keys", "a value")
        self._check_ranges(arrays, sum(each.null_count for each in found), rows)
        if self._pages is not None:
            self._check_pages(zone, found, rows)

    def _check_ranges(self, arrays: Sequence[pa.Array], nulls: int, rows: str) -> None:
        for row in range(len(self._ranges)):
            stored = {name: self._ranges[name][row] for name in self._ranges.column_names}
            counts = stored["null_count"].as_py(), stored["num_rows"].as_py()
            are_right = counts[0] >= nulls and counts[1] == self._fragment.num_rows
            if not are_right or not all(_inside(array, stored) for array in arrays):
                raise _denied(self._evidence.index, rows, "the key range", "a value")

    def _check_pages(self, zone: _Zone, plain: Sequence[Hashes], rows: str) -> None:
        """Read the rows through the page map, too."""
        is_same = self._read_through(self._pages, zone, plain)
        # What is never read by pages is not read so by way of the file's own footer either.
        if is_same or (is_same is None and self._read_through(None, zone, plain) is None):
            return
        raise CorruptIndex(
            f"index {self._evidence.index!r}: {rows} read through the page map are not what the "
            "file holds; build the index again"
        )

    def _read_through(
        self, pages: FilePages | None, zone: _Zone, plain: Sequence[Hashes]
    ) -> bool | None:
        """Whether rows read by pages are those read plainly; None when they cannot be read so."""
        fragment, name = self._fragment, self._column.path[0]
        found: list[Hashes] = []
        reader = None
        try:
            reader = open_rows(
                self._source, fragment.fragment, fragment.identity, pages, ReadCounter()
            )
            if reader is None:
                return None
            for number, _, inside in reader.row_groups(RowRanges([(zone.start, zone.stop)])):
                whole = reader.read(number, [name], inside)[name]
                found += [hash_array(leaf_of(each, self._column.path)) for each in whole.chunks]
        except FragmentChanged:
            raise
        except FragmentUnreadable:
            return None
        finally:
            if reader is not None:
                reader.close()
        return all(map(np.array_equal, _comparable(found), _comparable(plain)))


class _SlicedLookups:
    """Values of many zones looked up in a sliced table at once."""

    def __init__(self, index: str):
        self._index = index
        self._table: Table | None = None
        self._held: list[tuple[int, np.ndarray, str]] = []
        self._count = 0

    def add(self, table: Table, zone: int, hashes: np.ndarray, rows: str) -> None:
        """Take the hashes of a zone."""
        if table is not self._table or self._count >= _HASHES:
            self.finish()
        self._table = table
        self._held.append((zone, hashes, rows))
        self._count += hashes.size

    def finish(self) -> None:
        """Prove that the table denies none of what was taken since."""
        if not self._held or self._table is None or isinstance(self._table, ZoneTable):
            return
        sizes = [hashes.size for _, hashes, _ in self._held]
        zones = np.repeat([zone for zone, _, _ in self._held], sizes)
        kept = np.zeros(zones.size, dtype=bool)
        for keys, found in self._table.search_many(np.concatenate([h for _, h, _ in self._held])):
            kept[keys[found == zones[keys]]] = True
        for part, (_, _, rows) in zip(
            np.split(kept, np.cumsum(sizes)[:-1]), self._held, strict=True
        ):
            _require_all(part, self._index, rows)
        self._held, self._count = [], 0


def _in_zone(table: ZoneTable, zone: int, hashes: np.ndarray) -> np.ndarray:
    from zonebloom.sbbf import blocks

    kept = np.empty(hashes.size, dtype=bool)
    blocks.check(table.filter_words(zone), hashes, kept)
    return kept


def _require_all(kept: np.ndarray, index: str, rows: str) -> None:
    if not kept.all():
        raise _denied(index, rows, "the filter", f"{np.count_nonzero(~kept):,} values")


def _denied(index: str, rows: str, what: str, held: str) -> CorruptIndex:
    return CorruptIndex(
        f"index {index!r}: {what} of {rows} denies {held} they hold: the file was replaced by "
        "another unnoticed, or the index is damaged or of another column; build the index again"
    )


def _inside(array: pa.Array, stored: dict[str, Any]) -> bool:
    """Whether a key range admits every value of an array."""
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    kept = range_type(array.type)
    values = array.cast(kept).drop_null()
    if pa.types.is_floating(kept):
        is_nan = pc.call_function("is_nan", [values])
        if pc.call_function("any", [is_nan]).as_py() and not stored["has_nan"].as_py():
            return False
        values = values.filter(pc.call_function("invert", [is_nan]))
    if not stored["is_known"].as_py() or not len(values):
        return True
    low, high = stored["minimum"], stored["maximum"]
    if not low.is_valid or not high.is_valid:
        return False
    found = pc.call_function("min_max", [values])
    return all(
        pc.call_function("less_equal", pair).as_py()
        for pair in ([low, found["min"]], [found["max"], high])
    )


def _comparable(parts: Sequence[Hashes]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the values that are not null, and which rows are not."""
    if not parts:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=bool)
    valid = np.concatenate([each.is_valid() for each in parts])
    return np.concatenate([each.valid() for each in parts]), valid

"""Where the rows of keys lie, for upserts and erasures: keys of one column, or of several together.

Few keys choose zones. Many would choose about all of them, so then the key columns are decoded
whole, and rows pass a filter of the keys that the processor's cache holds; those that pass are held
against the keys once and exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom import arguments
from zonebloom.arrays import distinct, from_numpy, to_numpy
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import FragmentChanged, IndexNotFound, InvalidArgument
from zonebloom.index.batch_lookup import keys_for
from zonebloom.predicates import And, IsIn
from zonebloom.ranges import RowRanges
from zonebloom.sbbf.filter import Sbbf
from zonebloom.scan.execute import Execution
from zonebloom.scan.key_values import LARGE, as_stored, plain, plain_column, plain_type
from zonebloom.scan.plan import FragmentPlan, Request
from zonebloom.scan.planner import Planner
from zonebloom.storage.columns import Column
from zonebloom.storage.source import Source
from zonebloom.threads import cores, in_order
from zonebloom.values.types import hash_domain

_SCHEMA = pa.schema(
    [
        pa.field("key_index", pa.int64(), nullable=False),
        pa.field("fragment_id", pa.uint64()),
        pa.field("path", pa.dictionary(pa.int32(), pa.string())),
        pa.field("row", pa.int64()),
    ]
)
_FILES_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("path", pa.string()),
            ("fragment_id", pa.uint64()),
            ("num_keys", pa.int64()),
            ("num_rows", pa.int64()),
        )
    ]
)
# With more keys than this, about every zone may hold one.
_MOST_CHOOSING = 1 << 14
# A row in five hundred is held against the keys in vain.
_PROBABILITY = 0.002
# Offsets of 32 bits end there.
_MOST_BYTES = 1 << 31
_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Located:
    """The rows that hold keys, in scan order.

    Attributes
    ----------
    present : tuple of PresentFragment
    files, rows, codes : int64 arrays, one item a row
        Number of its file among those present, its own in that file, and one that rows of the
        same key share.
    keys : int64 array, one item a key
        That number; -1 where no row holds the key.
    """

    present: tuple[PresentFragment, ...]
    files: np.ndarray
    rows: np.ndarray
    codes: np.ndarray
    keys: np.ndarray

    def by_key(self) -> pa.Table:
        """A row for each row of each key, and one of nulls for a key without."""
        counts = np.bincount(self.codes, minlength=1)
        firsts = np.cumsum(counts) - counts
        # Of rows by code; after the last comes the null of keys without.
        order = np.append(np.argsort(self.codes, kind="stable"), self.rows.size)
        is_held = self.keys >= 0
        at = np.where(is_held, firsts[self.keys], self.rows.size)
        key_index = np.arange(self.keys.size)
        if counts.max() > 1:
            repeats = np.where(is_held, counts[self.keys], 1)
            key_index = np.repeat(key_index, repeats)
            within = np.arange(key_index.size) - np.repeat(np.cumsum(repeats) - repeats, repeats)
            at = at[key_index] + within
        at = order[at]
        files = _with_null(self.files.astype(np.int32)).take(from_numpy(at))
        rows = _with_null(self.rows).take(from_numpy(at))
        ids, paths = self._ids_and_paths()
        tagged = [ids.take(files), pa.DictionaryArray.from_arrays(files, paths), rows]
        return pa.table([from_numpy(key_index), *tagged], schema=_SCHEMA)

    def by_file(self) -> pa.Table:
        """The files that hold keys, with how many of them and how many rows."""
        size = int(self.codes.max(initial=0)) + 1
        pairs = distinct(self.files * size + self.codes)
        num_keys = np.bincount(pairs // size, minlength=len(self.present))
        num_rows = np.bincount(self.files, minlength=len(self.present))
        ids, paths = self._ids_and_paths()
        columns = [paths, ids, from_numpy(num_keys), from_numpy(num_rows)]
        held = from_numpy(np.flatnonzero(num_rows))
        return pa.table([each.take(held) for each in columns], schema=_FILES_SCHEMA)

    def _ids_and_paths(self) -> tuple[pa.Array, pa.Array]:
        ids = np.array([each.fragment_id for each in self.present], dtype=np.uint64)
        return from_numpy(ids), pa.array([each.fragment.path for each in self.present], pa.string())


class KeyRows:
    """The rows that may hold keys, as a filter of a scan."""

    def __init__(self, keys: Mapping[Column, pa.Array], is_many: bool):
        self.columns = frozenset(column.path[0] for column in keys)
        self._known: list[tuple[Column, pc.SetLookupOptions | Sbbf]] = []
        for column, values in keys.items():
            known = pc.SetLookupOptions(values)
            if is_many:
                known = Sbbf(len(values), _PROBABILITY, sizing="exact")
                known.insert(values)
            self._known.append((column, known))

    def __str__(self) -> str:
        return f"keys of {', '.join(sorted(self.columns))}"

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Numbers of the rows that may hold a key, ascending."""
        hits = np.ones(table.num_rows, dtype=bool)
        for column, known in self._known:
            values = plain_column(table, column.path)
            if isinstance(known, Sbbf):
                hits &= known.check(values)
            else:
                hits &= to_numpy(pc.call_function("is_in", [values], known))
        return np.flatnonzero(hits)


def key_columns(keys: Any, names: Sequence[str]) -> list[Any]:
    """Of a table of keys, or a dictionary of arrays, the columns of some names."""
    if not isinstance(keys, pa.Table | pa.RecordBatch | Mapping):
        raise arguments.refusal(keys, "keys", f"give a pyarrow Table with {', '.join(names)}")
    held = keys if isinstance(keys, Mapping) else keys.schema.names
    missing = [name for name in names if name not in held]
    if missing:
        raise InvalidArgument(f"keys hold no column {missing[0]!r}; they need {', '.join(names)}")
    return [keys[name] for name in names]


def locate(
    source: Source, planner: Planner, columns: Sequence[Column], given: Sequence[Any]
) -> Located:
    """The rows whose columns equal keys, of which each column has an array."""
    by_path = source.partition_columns()
    in_files = [number for number, each in enumerate(columns) if each.path[0] not in by_path]
    if not in_files:
        raise InvalidArgument(
            f"{', '.join(each.name for each in columns)} is read from the paths of the files; "
            "name a column of their rows as well"
        )
    values, positions, count = _keys(columns, given)
    if positions.size > _MOST_CHOOSING:
        for number in in_files:
            passed = _passed(planner, columns[number], values[number])
            if passed is not None:
                positions = positions[passed]
                values = [each.take(from_numpy(passed)) for each in values]
    is_many = positions.size > _MOST_CHOOSING
    terms = [IsIn(each.path, keys) for each, keys in zip(columns, values, strict=True)]
    predicate = terms[0] if len(terms) == 1 else And(tuple(terms))
    rows = KeyRows({columns[number]: values[number] for number in in_files}, is_many)
    names = list(dict.fromkeys(each.path[0] for each in columns))
    # What `rows` leaves of what the predicate leaves is held against the keys below.
    request = Request(
        names, rows, predicate=None if is_many else predicate, is_predicate=not is_many
    )
    plans = planner.fragments(predicate) if positions.size else []
    present = planner.to_read().present
    parts = _parts(planner, plans, present)
    with ThreadPoolExecutor(cores()) as pool:
        read = partial(_read, Execution(source, request), columns)
        found = list(chain.from_iterable(in_order(pool, read, parts, cores() + 1)))
    files = np.concatenate([_NO_ROWS, *(np.full(rows.size, number) for number, rows, _ in found)])
    offsets = np.concatenate([_NO_ROWS, *(rows for _, rows, _ in found)])
    codes, of_keys = _codes(
        [
            pa.chunked_array(
                [chunk for _, _, stored in found for chunk in stored[number]],
                plain_type(column.type),
            )
            for number, column in enumerate(columns)
        ],
        values,
    )
    all_keys = np.full(count, -1)
    all_keys[positions] = of_keys
    is_key = np.zeros(int(codes.max(initial=0)) + 2, dtype=bool)
    is_key[of_keys] = True
    # Number -1, of keys that are in no row, and of rows that hold none.
    is_key[-1] = False
    held = is_key[codes]
    return Located(present, files[held], offsets[held], codes[held], all_keys)


def _keys(
    columns: Sequence[Column], given: Sequence[Any]
) -> tuple[list[pa.Array], np.ndarray, int]:
    """The keys that rows may equal, as each column stores them, their positions, and how many there
    are in all; a null equals nothing."""
    arrays = [
        keys_for(keys, each.name, each.type) for keys, each in zip(given, columns, strict=True)
    ]
    if len({len(each) for each in arrays}) > 1:
        counts = ", ".join(f"{len(each):,}" for each in arrays)
        raise InvalidArgument(f"keys hold {counts} values of their columns; give as many of each")
    stored = [
        as_stored(plain(keys), plain_type(each.type))
        for keys, each in zip(arrays, columns, strict=True)
    ]
    positions = reduce(np.intersect1d, [at for _, at in stored])
    values = [
        keys if at.size == positions.size else keys.take(from_numpy(at.searchsorted(positions)))
        for keys, at in stored
    ]
    return values, positions, len(arrays[0])


def _passed(planner: Planner, column: Column, values: pa.Array) -> np.ndarray | None:
    """Numbers of the values that a filter over all keys of a column does not rule out."""
    # Both zeros are one here, and two to a filter.
    if hash_domain(values.type) != hash_domain(column.type) or pa.types.is_floating(values.type):
        return None
    try:
        known = planner.global_filter(column.name)
    except IndexNotFound:
        return None
    if known is None or not known.is_current:
        return None
    return np.flatnonzero(known.sbbf.check(values))


def _parts(
    planner: Planner, plans: Sequence[FragmentPlan], present: Sequence[PresentFragment]
) -> list[tuple[int, FragmentPlan]]:
    """What is read, with the number of its file among those present."""
    numbers = {each.fragment.path: number for number, each in enumerate(present)}
    parts = []
    for plan in plans:
        number = numbers[plan.fragment.path]
        file = present[number]
        if plan.identity not in (None, file.identity):
            raise FragmentChanged(
                f"{plan.fragment.path} changed while keys were located in it; call again"
            )
        if plan.rows is None and plan.row_groups is None:
            # Row group by row group, on all cores, where pyarrow would give batch after batch.
            rows = RowRanges([(0, planner.count_rows(file))])
            plan = replace(plan, rows=rows, pages=planner.pages(file))
        parts.append((number, replace(plan, identity=file.identity)))
    return parts


def _read(
    execution: Execution, columns: Sequence[Column], part: tuple[int, FragmentPlan]
) -> list[tuple[int, np.ndarray, list[list[pa.Array]]]]:
    """Rows of a file that may hold a key: its number, theirs, and chunks of their values."""
    return [
        (part[0], rows, [_chunks(plain_column(table, each.path)) for each in columns])
        for rows, table in execution.located(part[1])
        if rows.size
    ]


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return values.chunks if isinstance(values, pa.ChunkedArray) else [values]


def _codes(
    stored: Sequence[pa.ChunkedArray], keys: Sequence[pa.Array]
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of rows and of keys, alike where all columns are; -1 of a key that is in no row."""
    pairs = map(_encoded, stored, keys)
    codes, of_keys = next(pairs)
    for others, of_others in pairs:
        size = int(others.max(initial=0)) + 1
        both = np.where((codes < 0) | (others < 0), -1, codes * size + others)
        of_both = np.where((of_keys < 0) | (of_others < 0), -2, of_keys * size + of_others)
        codes, of_keys = _encoded(pa.chunked_array([from_numpy(both)]), from_numpy(of_both))
    return codes, of_keys


def _encoded(stored: pa.ChunkedArray, keys: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    if stored.nbytes >= _MOST_BYTES and stored.type in LARGE:
        stored, keys = stored.cast(LARGE[stored.type]), keys.cast(LARGE[stored.type])
    # Of a chunked array each chunk would bring a dictionary of its own.
    count = len(stored)
    if len(keys) < 2 * count:
        # In one pass over both; numbers count up as values come, those of the rows first.
        encoded = pa.concat_arrays([*stored.chunks, keys]).dictionary_encode()
        codes = _numbers(encoded.indices)
        rows, of_keys = codes[:count], codes[count:]
        return rows, np.where(of_keys > rows.max(), -1, of_keys)
    encoded = pa.concat_arrays([*stored.chunks, keys.slice(0, 0)]).dictionary_encode()
    values = pc.SetLookupOptions(encoded.dictionary)
    return _numbers(encoded.indices), _numbers(pc.call_function("index_in", [keys], values))


def _numbers(values: Any) -> np.ndarray:
    """Numbers, -1 for null."""
    return to_numpy(values.fill_null(-1) if values.null_count else values).astype(np.int64)


def _with_null(values: np.ndarray) -> pa.Array:
    numbers = from_numpy(values)
    return pa.concat_arrays([numbers, pa.nulls(1, numbers.type)])

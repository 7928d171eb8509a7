"""Find the rows of keys, for upserts and deletes. A key may have one column or several.

A few keys are searched in the indices, which select zones. Many keys would select almost all zones,
so a Bloom filter of the keys is applied to all rows instead, before they are decoded if possible.
The rows that pass are compared with the keys exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.arrays import allocate_array, distinct_numbers, from_numpy, to_numpy
from zonebloom.base.row_ranges import OFFSET_BITS, RowRanges
from zonebloom.base.threads import map_in_order, map_slices, num_cores
from zonebloom.base.user_values import is_data_frame
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import FragmentChanged, IndexNotFound, InvalidArgument
from zonebloom.index.batch_lookup import checked_keys
from zonebloom.predicates import And, IsIn
from zonebloom.scan.execute import Execution
from zonebloom.scan.key_summary import (
    FragmentKeyRanges,
    KeyBloomFilter,
    fragment_key_ranges,
    summarize_keys,
)
from zonebloom.scan.key_values import (
    cast_keys_exactly,
    comparable_column,
    comparable_type,
    comparable_values,
)
from zonebloom.scan.numbering import numbered_keys, shared_codes
from zonebloom.scan.plan import FragmentPlan, Request
from zonebloom.scan.planner import Planner
from zonebloom.sources.column_batches import Column
from zonebloom.sources.source import Source
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
# With more keys than this, almost every zone may hold one.
_MOST_CHOOSING = 1 << 14
_NO_ROWS = np.empty(0, dtype=np.int64)
# The position of a file among the present ones, and its plan.
NumberedPlan: TypeAlias = tuple[int, FragmentPlan]
# Rows of a file that may hold a key: the file's position, the row numbers, and chunks of values for
# each key column.
_Rows: TypeAlias = tuple[int, np.ndarray, list[list[pa.Array]]]


@dataclass(frozen=True)
class KeyLocations:
    """The rows that may hold keys, in scan order.

    Attributes
    ----------
    present : tuple of PresentFragment
    places : int64 array, one item per row
        The position of its file in ``present``, shifted left by `OFFSET_BITS`, plus its row number.
    codes : int64 array, one item per row
        A code that is the same for rows of equal keys, or -1 if the row holds no key.
    keys : int64 array, one item per key
        The code of the key. It is -1 or the code of no row if no row holds the key.
    """

    present: tuple[PresentFragment, ...]
    places: np.ndarray
    codes: np.ndarray
    keys: np.ndarray

    def by_key(self) -> pa.Table:
        """Return a table with each row of each key, and a row of nulls for a key without rows."""
        from zonebloom.scan.number_kernels import count_rows, rows_by_code, rows_by_key

        most = max(self.codes.max(initial=-1), self.keys.max(initial=-1))
        ends = np.zeros(int(most) + 2, dtype=np.int64)
        places = allocate_array(self.places.size, np.int64)
        rows_by_code(self.codes, self.places, ends, places)
        count = count_rows(self.keys, ends)
        key_index, of_rows = allocate_array(count, np.int64), allocate_array(count, np.int64)
        of_files, of_ids = allocate_array(count, np.int32), allocate_array(count, np.uint64)
        is_held = np.empty(count, dtype=bool)
        ids, paths = self._ids_and_paths()
        held = ends, places, to_numpy(ids)
        rows_by_key(self.keys, *held, key_index, of_files, of_ids, of_rows, is_held)
        of_paths = pa.DictionaryArray.from_arrays(from_numpy(of_files, is_held), paths)
        columns = from_numpy(of_ids, is_held), of_paths, from_numpy(of_rows, is_held)
        return pa.table([from_numpy(key_index), *columns], schema=_SCHEMA)

    def by_file(self) -> pa.Table:
        """Return a table of the files that hold keys, with their numbers of keys and of rows."""
        is_held = self.codes >= 0
        files, codes = self.places[is_held] >> OFFSET_BITS, self.codes[is_held]
        size = int(codes.max(initial=0)) + 1
        pairs = distinct_numbers(files * size + codes)
        num_keys = np.bincount(pairs // size, minlength=len(self.present))
        num_rows = np.bincount(files, minlength=len(self.present))
        ids, paths = self._ids_and_paths()
        columns = [paths, ids, from_numpy(num_keys), from_numpy(num_rows)]
        held = from_numpy(np.flatnonzero(num_rows))
        return pa.table([each.take(held) for each in columns], schema=_FILES_SCHEMA)

    def _ids_and_paths(self) -> tuple[pa.Array, pa.Array]:
        ids = np.array([each.fragment_id for each in self.present], dtype=np.uint64)
        return from_numpy(ids), pa.array([each.fragment.path for each in self.present], pa.string())


def select_key_columns(keys: Any, names: Sequence[str]) -> list[Any]:
    """Return the named columns of a table of keys, or of a dictionary of arrays."""
    if is_data_frame(keys):
        available = list(keys.columns)
    elif isinstance(keys, Mapping):
        available = list(keys)
    else:
        keys = _arrow_table(keys, names)
        available = keys.schema.names
    for name in names:
        if available.count(name) != 1:
            problem = "several columns" if name in available else "no column"
            raise InvalidArgument(f"keys have {problem} {name!r}; they need {', '.join(names)}")
    return [keys[name] for name in names]


def _arrow_table(keys: Any, names: Sequence[str]) -> pa.Table:
    with suppress(pa.ArrowException, TypeError, ValueError):
        if isinstance(keys, pa.Table):
            return keys
        if isinstance(keys, pa.RecordBatch) or hasattr(keys, "__arrow_c_stream__"):
            return pa.table(keys)
    raise arguments.invalid_value(keys, "keys", f"give a pyarrow Table with {', '.join(names)}")


def locate_keys(
    source: Source, planner: Planner, columns: Sequence[Column], given: Sequence[Any]
) -> KeyLocations:
    """Return the rows whose columns equal keys. ``given`` has one array of keys per column."""
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
    with ThreadPoolExecutor(num_cores() + 1) as pool:
        # While the files are read.
        numbered = [pool.submit(numbered_keys, keys) for keys in values]
        asked = dict(zip(columns, values, strict=True))
        present, found = _candidates(source, planner, asked, by_path, pool)
    places = [_NO_ROWS, *((number << OFFSET_BITS) + rows for number, rows, _ in found)]
    codes, of_keys = shared_codes(
        [
            pa.chunked_array(
                [chunk for _, _, stored in found for chunk in stored[number]],
                comparable_type(column.type),
            )
            for number, column in enumerate(columns)
        ],
        [each.result() for each in numbered],
    )
    if positions.size < count:
        all_keys = np.full(count, -1)
        all_keys[positions] = of_keys
        of_keys = all_keys
    return KeyLocations(present, np.concatenate(places), codes, of_keys)


def _candidates(
    source: Source,
    planner: Planner,
    columns: Mapping[Column, pa.Array],
    by_path: Collection[str],
    pool: ThreadPoolExecutor,
) -> tuple[tuple[PresentFragment, ...], list[_Rows]]:
    """Return the current files, and the rows of each file read that may hold keys."""
    num_keys = len(next(iter(columns.values())))
    is_many = num_keys > _MOST_CHOOSING
    terms = [IsIn(each.path, keys) for each, keys in columns.items()]
    predicate = terms[0] if len(terms) == 1 else And(tuple(terms))
    in_files = {each: keys for each, keys in columns.items() if each.path[0] not in by_path}
    plans = planner.plan_fragments(predicate) if num_keys else []
    present = planner.coverage_for_scan().fragments
    types = tuple(comparable_type(each.type) for each in in_files)
    ranges = [
        # For few keys, key ranges exclude no more than the filters do.
        fragment_key_ranges(source, planner, present, each.name, kind)
        if is_many
        else FragmentKeyRanges.unknown(kind, len(present))
        for each, kind in zip(in_files, types, strict=True)
    ]
    sbbf, may_hold = summarize_keys([list(in_files.values())], num_keys, types, ranges)
    rows = KeyBloomFilter(tuple(each.path for each in in_files), types, sbbf)
    names = list(dict.fromkeys(each.path[0] for each in columns))
    # The rows that pass the predicate and the Bloom filter are compared with the keys later.
    request = Request(names, rows, predicate=predicate, is_predicate_exact=not is_many)
    parts = [
        _row_groups(planner, present, part)
        for part in plans_with_identity(plans, present, may_hold)
    ]
    read = partial(_read, Execution(source, request), tuple(columns))
    return present, list(chain.from_iterable(map_in_order(pool, read, parts, num_cores() + 1)))


def _keys(
    columns: Sequence[Column], given: Sequence[Any]
) -> tuple[list[pa.Array], np.ndarray, int]:
    """Return the keys that rows may equal, their positions, and the number of all keys.

    There is one array of keys per column, in the type that the column stores. Keys with a null are
    left out, because a null equals nothing.
    """
    arrays = [
        checked_keys(keys, each.name, each.type) for keys, each in zip(given, columns, strict=True)
    ]
    if len({len(each) for each in arrays}) > 1:
        counts = ", ".join(f"{len(each):,}" for each in arrays)
        raise InvalidArgument(f"key columns have {counts} values; give as many in each")
    stored = [
        cast_keys_exactly(comparable_values(keys), comparable_type(each.type))
        for keys, each in zip(arrays, columns, strict=True)
    ]
    positions = reduce(np.intersect1d, [at for _, at in stored])
    values = [
        keys if at.size == positions.size else keys.take(from_numpy(at.searchsorted(positions)))
        for keys, at in stored
    ]
    return values, positions, len(arrays[0])


def _passed(planner: Planner, column: Column, values: pa.Array) -> np.ndarray | None:
    """Return the positions of values that the global filter of a column does not exclude.

    Return None if the column has no filter that can be applied.
    """
    # The keys have one zero, but the filter holds positive and negative zero as two values.
    if hash_domain(values.type) != hash_domain(column.type) or pa.types.is_floating(values.type):
        return None
    try:
        known = planner.global_filter(column.name)
    except IndexNotFound:
        return None
    if known is None or not known.is_current:
        return None
    parts = map_slices(len(values), lambda part: known.sbbf.check(values[part]))
    return np.flatnonzero(np.concatenate(parts))


def plans_with_identity(
    plans: Iterable[FragmentPlan], present: Sequence[PresentFragment], may_hold: np.ndarray
) -> Iterator[NumberedPlan]:
    """Yield the plans of files that may hold a key, with the identities of the files."""
    numbers = {present[at].fragment.path: at for at in np.flatnonzero(may_hold).tolist()}
    for plan in plans:
        number = numbers.get(plan.fragment.path)
        if number is None:
            continue
        identity = present[number].identity
        if plan.identity not in (None, identity):
            raise FragmentChanged(
                f"{plan.fragment.path} changed while keys were located in it; call again"
            )
        yield number, replace(plan, identity=identity)


def _row_groups(
    planner: Planner, present: Sequence[PresentFragment], part: NumberedPlan
) -> NumberedPlan:
    """Return a plan that reads a whole file by row groups on all cores, not in PyArrow's scan."""
    number, plan = part
    if plan.rows is not None or plan.row_groups is not None:
        return part
    rows = RowRanges([(0, planner.count_rows(present[number]))])
    return number, replace(plan, rows=rows, pages=planner.pages(present[number]))


def _read(execution: Execution, columns: Sequence[Column], part: NumberedPlan) -> list[_Rows]:
    return [
        (part[0], rows, [_chunks(comparable_column(table, each.path)) for each in columns])
        for rows, table in execution.matches(part[1])
        if rows.size
    ]


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return values.chunks if isinstance(values, pa.ChunkedArray) else [values]

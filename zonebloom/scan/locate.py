"""Find the rows of keys, for upserts and deletes. A key may have one column or several.

The indices are searched for the keys. They select zones, and a HASH index excludes keys that no row
holds. Many keys may select almost all zones. Then all rows are compared with them, before they are
decoded if possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from zonebloom.base.threads import map_in_order, map_slices, num_cores, thread_pool
from zonebloom.base.user_values import is_data_frame
from zonebloom.catalog.coverage import PresentFragment
from zonebloom.errors import IndexNotFound, InvalidArgument
from zonebloom.index.key_search import checked_keys
from zonebloom.index.zone_map.bounds import ZoneBounds
from zonebloom.predicates import IsIn, Predicate, RowFilter, row_filter_columns
from zonebloom.predicates.ast import conjunction
from zonebloom.predicates.type_requirements import columns_of_unfitting_literals
from zonebloom.scan.execute import Execution
from zonebloom.scan.key_candidates import (
    MAX_SEARCHED_KEYS,
    FilterByKeys,
    NumberedPlan,
    cost_of_keys,
    existing_keys,
    fragment_key_ranges,
    fragments_with_keys,
    key_conditions,
    plan_candidates,
)
from zonebloom.scan.key_numbers import RowNumbers
from zonebloom.scan.key_values import (
    cast_keys_exactly,
    has_unfitting_keys,
    normalized_column,
    normalized_values,
)
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.plan import Request
from zonebloom.scan.recheck import matching_rows, select_rows
from zonebloom.scan.search import Search, global_filter
from zonebloom.snapshot import Snapshot
from zonebloom.sources.column_batches import Column
from zonebloom.sources.source import Source
from zonebloom.values.normal_types import decoded_type, normalized_type
from zonebloom.values.types import hash_domain

_PATH_TYPE = pa.dictionary(pa.int32(), pa.string())
# The last columns have Iceberg's names, and `_partition` may follow them.
_ROWS_SCHEMA = pa.schema(
    [
        pa.field("key_index", pa.int64(), nullable=False),
        pa.field("fragment_id", pa.uint64()),
        pa.field("path", _PATH_TYPE),
        pa.field("row", pa.int64()),
        pa.field("_file", _PATH_TYPE),
        pa.field("_pos", pa.int64()),
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
            ("_file", pa.string()),
        )
    ]
)
_NO_ROWS = np.empty(0, dtype=np.int64)
# Rows of a file: the file's position, the row numbers, and the number of the key that each holds,
# which is negative for none.
_FoundRows: TypeAlias = tuple[int, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class KeyLocations:
    """The rows that may hold keys, in scan order.

    Attributes
    ----------
    source : Source
    present : tuple of PresentFragment
    places : int64 array, one item per row
        The position of its file in ``present``, shifted left by `OFFSET_BITS`, plus its row number.
    numbers : int32 array, one item per row
        The number of the key that the row holds, negative if it holds none.
    key_numbers : int64 array, one item per key
        The number of the key, which equal keys share. It is -1 if no row can hold the key.
    """

    source: Source
    present: Sequence[PresentFragment]
    places: np.ndarray
    numbers: np.ndarray
    key_numbers: np.ndarray

    def by_key(self) -> pa.Table:
        """Return a table with each row of each key, and a row of nulls for a key without rows."""
        from zonebloom.scan.number_kernels import count_rows, group_rows, rows_by_key

        max_number = max(self.numbers.max(initial=-1), self.key_numbers.max(initial=-1))
        ends = np.zeros(int(max_number) + 2, dtype=np.int64)
        places = allocate_array(self.places.size, np.int64)
        group_rows(self.numbers, self.places, ends, places)
        count = count_rows(self.key_numbers, ends)
        key_index, row_numbers = allocate_array(count, np.int64), allocate_array(count, np.int64)
        file_numbers, fragment_ids = (
            allocate_array(count, np.int32),
            allocate_array(count, np.uint64),
        )
        has_row = np.empty(count, dtype=bool)
        ids, paths = self._ids_and_paths()
        grouped_rows = ends, places, to_numpy(ids)
        rows_by_key(
            self.key_numbers,
            *grouped_rows,
            key_index,
            file_numbers,
            fragment_ids,
            row_numbers,
            has_row,
        )
        files = from_numpy(file_numbers, has_row)
        paths = pa.DictionaryArray.from_arrays(files, paths)
        rows = from_numpy(row_numbers, has_row)
        columns = [from_numpy(key_index), from_numpy(fragment_ids, has_row), paths, rows]
        table = pa.table([*columns, paths, rows], schema=_ROWS_SCHEMA)
        return self._with_partitions(table, files)

    def by_file(self) -> pa.Table:
        """Return a table of the files that hold keys, with their numbers of keys and of rows."""
        has_key = self.numbers >= 0
        files, numbers = self.places[has_key] >> OFFSET_BITS, self.numbers[has_key]
        size = int(numbers.max(initial=0)) + 1
        pairs = distinct_numbers(files * size + numbers)
        num_keys = np.bincount(pairs // size, minlength=len(self.present))
        num_rows = np.bincount(files, minlength=len(self.present))
        ids, paths = self._ids_and_paths()
        columns = [paths, ids, from_numpy(num_keys), from_numpy(num_rows), paths]
        file_numbers = from_numpy(np.flatnonzero(num_rows))
        table = pa.table([column.take(file_numbers) for column in columns], schema=_FILES_SCHEMA)
        return self._with_partitions(table, file_numbers)

    def _ids_and_paths(self) -> tuple[pa.Array, pa.Array]:
        ids = np.array([present.fragment_id for present in self.present], dtype=np.uint64)
        return from_numpy(ids), pa.array(
            [present.fragment.path for present in self.present], pa.string()
        )

    def _with_partitions(self, table: pa.Table, file_numbers: pa.Array) -> pa.Table:
        """Add the partition of the file of each row as a struct, unless there are no partitions.

        A file without a partition has a struct of nulls, and not null: whoever drops the rows with
        nulls, those of keys that do not exist, must not lose its rows.
        """
        columns = self.source.partition_columns()
        fields = [field for field in self.source.schema if field.name in columns]
        if not fields:
            return table
        values: list[dict[str, Any]] = [{} for _ in self.present]
        for number in file_numbers.unique().drop_null().to_pylist():
            values[number] = self.source.constants(self.present[number].fragment)
        arrays = [
            pa.array([file.get(field.name) for file in values], decoded_type(field.type))
            for field in fields
        ]
        structs = pa.StructArray.from_arrays(arrays, [field.name for field in fields])
        return table.append_column("_partition", structs.take(file_numbers))


def select_key_columns(keys: Any, names: Sequence[str]) -> list[Any]:
    """Return the named columns of a table, a dictionary of arrays, or a list of tuples."""
    if _are_tuples(keys):
        if any(len(key) != len(names) for key in keys):
            raise arguments.invalid_value(
                keys, "keys", f"give tuples of {len(names)} values, or a table"
            )
        return [[key[number] for key in keys] for number in range(len(names))]
    if is_data_frame(keys):
        available = list(keys.columns)
    elif isinstance(keys, Mapping):
        available = list(keys)
    else:
        keys = _keys_to_table(keys, names)
        available = keys.schema.names
    for name in names:
        if available.count(name) != 1:
            problem = "several columns" if name in available else "no column"
            raise InvalidArgument(f"keys have {problem} {name!r}; they need {', '.join(names)}")
    return [keys[name] for name in names]


def _are_tuples(keys: Any) -> bool:
    return isinstance(keys, list) and all(isinstance(key, tuple | list) for key in keys)


def _keys_to_table(keys: Any, names: Sequence[str]) -> pa.Table:
    with suppress(pa.ArrowException, TypeError, ValueError):
        if isinstance(keys, pa.Table):
            return keys
        if isinstance(keys, pa.RecordBatch) or hasattr(keys, "__arrow_c_stream__"):
            return pa.table(keys)
    raise arguments.invalid_value(
        keys, "keys", f"give tuples, or a pyarrow Table with {', '.join(names)}"
    )


def locate_keys(
    opened: OpenedDataset,
    columns: Sequence[Column],
    given: Sequence[Any],
    filters: Sequence[Any] = (None,),
) -> KeyLocations:
    """Return the rows whose columns equal keys, and that match all filters.

    ``given`` has one array of keys per column.
    """
    row_filter, bound = opened.translate(filters)
    unfitting_filter_columns = columns_of_unfitting_literals(bound, opened.source.schema)
    if unfitting_filter_columns:
        opened.look_at_all_files().require_types(unfitting_filter_columns)
    constant_columns = opened.source.constant_columns()
    stored_numbers = [
        number for number, column in enumerate(columns) if column.path[0] not in constant_columns
    ]
    if not stored_numbers:
        raise InvalidArgument(
            f"{', '.join(column.name for column in columns)} is read from the paths of the files; "
            "name a column of their rows as well"
        )
    paths = tuple(column.path for column in columns)
    values, positions, count, unfitting_columns = convert_keys(columns, given)
    if unfitting_columns:
        opened.look_at_all_files().require_types([column.path for column in unfitting_columns])
    if positions.size > MAX_SEARCHED_KEYS:
        snapshot = opened.look_at_all_files()
        for number in stored_numbers:
            passing = _pass_global_filter(snapshot, columns[number], values[number])
            if passing is not None:
                values, positions = _take_keys(values, positions, passing)
    filter_terms = [] if row_filter is None else [bound]
    snapshot, search, existing = _search_keys(opened, columns, values, filter_terms)
    if existing is not None:
        values, positions = _take_keys(values, positions, existing)
    search.predicate = conjunction(map(IsIn, paths, values))
    with thread_pool(num_cores() + 1) as pool:
        # Build the hash table of the keys while the scan is planned.
        keys = _ExactKeyFilter(paths, pool.submit(RowNumbers, values), row_filter, bound)
        stored = {columns[number]: values[number] for number in stored_numbers}
        found = _find_rows(opened, snapshot, search, keys, stored, pool)
    places = [_NO_ROWS, *((number << OFFSET_BITS) + rows for number, rows, _ in found)]
    numbers = np.concatenate([np.empty(0, np.int32), *(part for _, _, part in found)])
    key_numbers = keys.numbers.result().key_numbers
    if positions.size < count:
        all_keys = np.full(count, -1)
        all_keys[positions] = key_numbers
        key_numbers = all_keys
    return KeyLocations(
        opened.source, snapshot.fragments, np.concatenate(places), numbers, key_numbers
    )


@dataclass(frozen=True)
class _ExactKeyFilter(FilterByKeys):
    """A scan filter that keeps the rows that hold a key.

    Attributes
    ----------
    numbers : future of RowNumbers
    row_filter : RowFilter or None
        A filter that the rows must match, too. It is applied to the rows that hold a key.
    bound : Predicate
        The predicate of that filter.
    """

    numbers: Future[RowNumbers]
    row_filter: RowFilter | None
    bound: Predicate

    def of_rows(self, table: pa.Table) -> np.ndarray:
        """Return the number of the key that each row holds, int32; negative if it holds none."""
        columns = [normalized_column(table, path) for path in self.paths]
        return self.numbers.result().of_rows(columns)

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        return np.flatnonzero(self.of_rows(table) >= 0)

    def found_rows(self, rows: np.ndarray, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the rows that may hold keys, and the key that each holds."""
        numbers = self.of_rows(table)
        if self.row_filter is None:
            return rows, numbers
        holds_key = np.flatnonzero(numbers >= 0)
        table = select_rows(table, holds_key)
        kept = holds_key[matching_rows(table, self.row_filter, self.bound)]
        return rows[kept], numbers[kept]


def _search_keys(
    opened: OpenedDataset,
    columns: Sequence[Column],
    values: Sequence[pa.Array],
    filter_terms: Sequence[Predicate],
) -> tuple[Snapshot, Search, np.ndarray | None]:
    """Search the indices for keys, in rows that meet the terms of a filter.

    Also return the positions of the keys that rows may hold, or None if that may be all of them.
    """
    keys = {column.path: array for column, array in zip(columns, values, strict=True)}
    conditions = key_conditions(keys, opened.indices.values())
    condition = conjunction([*conditions, *filter_terms])
    snapshot, search = opened.search(condition, cost_of_keys(len(values[0])))
    return snapshot, search, existing_keys(search, conditions)


def _find_rows(
    opened: OpenedDataset,
    snapshot: Snapshot,
    search: Search,
    keys: _ExactKeyFilter,
    stored_columns: Mapping[Column, pa.Array],
    pool: ThreadPoolExecutor,
) -> list[_FoundRows]:
    """Return the rows of each file read that may hold keys."""
    present = snapshot.fragments
    has_many_keys = len(next(iter(stored_columns.values()))) > MAX_SEARCHED_KEYS
    types = tuple(normalized_type(column.type) for column in stored_columns)
    ranges = [
        # For few keys, key ranges exclude no more than the filters do.
        fragment_key_ranges(snapshot, column.name, kind)
        if has_many_keys
        else ZoneBounds.unknown(kind, len(present))
        for column, kind in zip(stored_columns, types, strict=True)
    ]
    may_hold = fragments_with_keys(ranges, list(stored_columns.values()))
    names = list(dict.fromkeys(path[0] for path in keys.paths))
    if keys.row_filter is not None:
        filtered_names = row_filter_columns(keys.row_filter)
        names = [
            name
            for name in opened.source.schema.names
            if name in names or filtered_names is None or name in filtered_names
        ]
    # Few rows hold values of few keys in each column. Those that hold no key are left out later.
    is_exact = len(keys.paths) == 1 or not has_many_keys
    request = Request(names, keys, predicate=search.predicate, is_predicate_exact=is_exact)
    plans_to_read = [
        _plan_by_row_groups(snapshot, part) for part in plan_candidates(snapshot, search, may_hold)
    ]
    read = partial(_read_rows, Execution(opened.source, request), keys)
    return list(chain.from_iterable(map_in_order(pool, read, plans_to_read, num_cores() + 1)))


def convert_keys(
    columns: Sequence[Column], given: Sequence[Any]
) -> tuple[list[pa.Array], np.ndarray, int, list[Column]]:
    """Return the keys that rows may equal, their positions, the number of all keys, and columns.

    There is one array of keys per column, in the type that the column stores. Keys with a null are
    left out, because a null equals nothing. So are keys that the type of a column cannot hold. The
    last result is the columns with such keys.
    """
    arrays = [
        checked_keys(keys, column.name, column.type)
        for keys, column in zip(given, columns, strict=True)
    ]
    if len({len(array) for array in arrays}) > 1:
        counts = ", ".join(f"{len(array):,}" for array in arrays)
        raise InvalidArgument(f"key columns have {counts} values; give as many in each")
    arrays = list(map(normalized_values, arrays))
    stored = [
        cast_keys_exactly(keys, normalized_type(column.type))
        for keys, column in zip(arrays, columns, strict=True)
    ]
    unfitting_columns = [
        column
        for column, keys, (_, key_positions) in zip(columns, arrays, stored, strict=True)
        if has_unfitting_keys(keys, key_positions)
    ]
    positions = reduce(np.intersect1d, [key_positions for _, key_positions in stored])
    values = [
        keys
        if key_positions.size == positions.size
        else keys.take(from_numpy(key_positions.searchsorted(positions)))
        for keys, key_positions in stored
    ]
    return values, positions, len(arrays[0]), unfitting_columns


def _take_keys(
    values: list[pa.Array], positions: np.ndarray, numbers: np.ndarray
) -> tuple[list[pa.Array], np.ndarray]:
    if numbers.size == positions.size:
        return values, positions
    return [keys.take(from_numpy(numbers)) for keys in values], positions[numbers]


def _pass_global_filter(snapshot: Snapshot, column: Column, values: pa.Array) -> np.ndarray | None:
    """Return the positions of the values that pass the global filter of a column.

    Return None if the column has no filter that can be applied.
    """
    # The keys have one zero, but the filter holds positive and negative zero as two values.
    if hash_domain(values.type) != hash_domain(column.type) or pa.types.is_floating(values.type):
        return None
    try:
        key_filter = global_filter(snapshot, column.name)
    except IndexNotFound:
        return None
    if key_filter is None or not key_filter.is_current:
        return None
    parts = map_slices(len(values), lambda part: key_filter.sbbf.check(values[part]))
    return np.flatnonzero(np.concatenate(parts))


def _plan_by_row_groups(snapshot: Snapshot, part: NumberedPlan) -> NumberedPlan:
    """Return a plan that reads a whole file by row groups on all cores, without PyArrow's scan."""
    number, plan = part
    if plan.rows is not None or plan.row_groups is not None:
        return part
    present = snapshot.fragments[number]
    rows = RowRanges([(0, snapshot.count_rows(present))])
    return number, replace(plan, rows=rows, pages=snapshot.pages(present))


def _read_rows(execution: Execution, keys: _ExactKeyFilter, part: NumberedPlan) -> list[_FoundRows]:
    return [
        (part[0], *keys.found_rows(rows, table))
        for rows, table in execution.matches(part[1])
        if rows.size
    ]

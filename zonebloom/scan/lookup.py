"""Read rows by key, for one key or millions, with the position of the key that each row holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import array_of, from_numpy, to_numpy
from zonebloom.index.key_search import checked_keys
from zonebloom.predicates.ast import Equals, IsIn
from zonebloom.sbbf.kernel_loader import KERNELS
from zonebloom.scan.execute import Execution
from zonebloom.scan.key_numbers import KeyNumbers
from zonebloom.scan.key_values import (
    cast_keys_exactly,
    has_unfitting_keys,
    normalized_column,
    normalized_values,
)
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.plan import Request
from zonebloom.scan.planner import plan_fragments
from zonebloom.scan.recheck import gather, narrow_predicate
from zonebloom.sources.column_batches import Column
from zonebloom.values.normal_types import normalized_type

_NO_ROWS = np.empty(0, dtype=np.int64)
# The key number of a row that holds none of the keys.
_NO_KEY = array_of([-2], pa.int32())[0]
_KEY_INDEX = pa.field("key_index", pa.int64(), nullable=False)


def lookup_keys(
    opened: OpenedDataset,
    column: Column,
    keys: Any,
    names: Sequence[str],
    match_nulls: bool,
) -> pa.Table:
    """Return the rows that hold one of the keys, with the position of their key."""
    column_keys = ColumnKeys(keys, column, match_nulls)
    snapshot, search = opened.search(column_keys.predicate)
    if column_keys.has_unfitting:
        snapshot.require_types([column.path])
    fragments = plan_fragments(snapshot, search)
    names_to_read = list(dict.fromkeys([*names, column.path[0]]))
    schema = opened.source.schema
    if names_to_read != schema.names:
        schema = pa.schema([schema.field(name) for name in names_to_read])
    batches: Iterable[pa.RecordBatch] = ()
    if fragments:
        request = Request(
            names_to_read,
            column_keys,
            predicate=narrow_predicate(search.predicate, search.narrow_lists),
            is_predicate_exact=True,
        )
        batches = Execution(opened.source, request).batches(fragments)
    return column_keys.with_key_index(pa.Table.from_batches(batches, schema), names)


class ColumnKeys:
    """Keys of a column, as a scan filter that finds the rows that hold them.

    Parameters
    ----------
    given : array, series or iterable
    column : Column
    match_nulls : bool
        Whether a null among the keys finds rows with a null.

    Attributes
    ----------
    predicate : Equals or IsIn
    columns : frozenset of str
        The top-level column that is compared with the keys.
    num_values : int
        Number of distinct keys, without keys that no value of the column can equal.
    has_unfitting : bool
        Whether there are such keys besides null and NaN. A wider type may hold them.
    """

    def __init__(self, given: Any, column: Column, match_nulls: bool):
        keys = normalized_values(checked_keys(given, column.name, column.type))
        self._path = column.path
        self.columns = frozenset(column.path[:1])
        self._null_positions = _NO_ROWS
        if match_nulls and keys.null_count:
            self._null_positions = np.flatnonzero(to_numpy(keys.is_null()))
        self._values, self._positions = cast_keys_exactly(keys, normalized_type(column.type))
        is_complete = len(self._values) == len(keys)
        self.has_unfitting = not is_complete and has_unfitting_keys(keys, self._positions)
        # The index in `_positions` at which the positions of each value begin, or None if each
        # value has one position.
        self._position_starts = None
        self._numbers = self._number_keys()
        is_distinct = len(self._values) <= 1
        if self._numbers is not None:
            is_distinct = self._numbers.num_distinct == len(self._values)
        if not is_distinct:
            encoded = self._values.dictionary_encode()
            if len(encoded.dictionary) < len(self._values):
                numbers = to_numpy(encoded.indices)
                order = np.argsort(numbers, kind="stable")
                self._positions = self._positions[order]
                self._position_starts = np.searchsorted(
                    numbers[order], np.arange(len(encoded.dictionary) + 1)
                )
            self._values = encoded.dictionary
            self._numbers = self._number_keys()
        self.num_values = len(self._values)
        is_one = self.num_values == 1 and not self._null_positions.size
        self.predicate = (
            Equals(column.path, self._values[0])
            if is_one
            else IsIn(column.path, self._values, self._null_positions.size > 0)
        )

    def _number_keys(self) -> KeyNumbers | None:
        """Return a hash table of the keys, or None if kernels are not loaded for so few."""
        num_keys = len(self._values)
        is_worth = num_keys > 1 and (KERNELS.are_loaded or KERNELS.are_worth(num_keys))
        return KeyNumbers(self._values) if is_worth else None

    def __str__(self) -> str:
        return str(self.predicate)

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        return np.flatnonzero(
            self._value_numbers(table) >= (0 if not self._null_positions.size else -1)
        )

    def with_key_index(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return rows that hold a key, with the key's position as the first column.

        A row is repeated for each position of its key.
        """
        numbers = np.zeros(rows.num_rows, dtype=np.int64)
        if rows.num_rows and not isinstance(self.predicate, Equals):
            numbers = self._value_numbers(rows, on_threads=True)
        if self._position_starts is None and not self._null_positions.size:
            positions = self._positions[numbers]
        else:
            repeated, positions = self._repeat_rows(numbers)
            rows = gather(rows, repeated)
        stored = rows.schema.names
        rows = rows.add_column(0, _KEY_INDEX, from_numpy(positions))
        if stored == list(names):
            return rows
        return rows.select([0, *(stored.index(name) + 1 for name in names)])

    def _repeat_rows(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return row numbers, repeated once per equal key, and the positions of these keys."""
        # Null is treated as one more value after the last.
        firsts = (
            np.arange(len(self._values) + 1)
            if self._position_starts is None
            else self._position_starts
        )
        firsts = np.append(firsts, firsts[-1] + self._null_positions.size)
        positions = np.concatenate([self._positions, self._null_positions])
        numbers = np.where(numbers < 0, len(self._values), numbers)
        counts = firsts[numbers + 1] - firsts[numbers]
        repeated = np.repeat(np.arange(numbers.size), counts)
        within = np.arange(repeated.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return repeated, positions[firsts[numbers[repeated]] + within]

    def _value_numbers(self, table: pa.Table, *, on_threads: bool = False) -> np.ndarray:
        """Return for each row the number of the key that it holds: -1 for null, -2 for no key."""
        values = normalized_column(table, self._path)
        if self._numbers is not None:
            numbers = self._numbers
            return (numbers.of_values_on_threads if on_threads else numbers.of_values)(values)
        numbers = pc.call_function("index_in", [values], pc.SetLookupOptions(self._values))
        if not numbers.null_count:
            return to_numpy(numbers)
        is_null = to_numpy(pc.call_function("is_null", [values]))
        return np.where(is_null, -1, to_numpy(pc.call_function("coalesce", [numbers, _NO_KEY])))

"""Rows by key, without a filter language: one key or millions, and which key each row holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.arrays import array_of, from_numpy, to_numpy
from zonebloom.index.batch_lookup import keys_for
from zonebloom.predicates.ast import ColumnPath, Equals, IsIn
from zonebloom.sbbf.hashing import value_type
from zonebloom.scan.execute import Execution
from zonebloom.scan.plan import DEFAULT_BATCH_ROWS, MOST_BATCH_ROWS, Request
from zonebloom.scan.planner import Planner
from zonebloom.scan.recheck import gather
from zonebloom.storage.columns import Column
from zonebloom.storage.source import Source
from zonebloom.values.literal import Literal, Unanswerable, to_stored
from zonebloom.values.types import bounds

# Of a batch, in which keys are looked for.
_ROWS_PER_KEY = 4
_NO_ROWS = np.empty(0, dtype=np.int64)
_PLAIN = {
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
    pa.float16(): pa.float32(),
}
# What a row that holds none of the keys has for its number.
_NONE = array_of([-2], pa.int32())[0]
LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_KEY_INDEX = pa.field("key_index", pa.int64(), nullable=False)


def lookup(
    source: Source,
    planner: Planner,
    column: Column,
    keys: Any,
    names: Sequence[str],
    nulls: bool,
) -> pa.Table:
    """The rows that hold one of some keys, with the position of their key."""
    wanted = Keys(keys, column, nulls)
    fragments = planner.fragments(wanted.predicate)
    read = list(dict.fromkeys([*names, column.path[0]]))
    schema = source.schema
    if read != schema.names:
        schema = pa.schema([schema.field(name) for name in read])
    batches: Iterable[pa.RecordBatch] = ()
    if fragments:
        # The keys are made a set for each batch.
        most = max(DEFAULT_BATCH_ROWS, _ROWS_PER_KEY * wanted.num_values)
        batch_size = min(most, MOST_BATCH_ROWS)
        request = Request(read, wanted, None, batch_size, wanted.predicate, is_predicate=True)
        batches = Execution(source, request).batches(fragments)
    return wanted.indexed(pa.Table.from_batches(batches, schema), names)


class Keys:
    """Some keys of a column, as what finds the rows that hold them.

    Parameters
    ----------
    given : pyarrow Array or ChunkedArray, or a sequence
    column : Column
    nulls : bool
        Whether null is a key where it is among those given.

    Attributes
    ----------
    predicate : Equals or IsIn
    columns : frozenset of str
        The top-level column they are held against.
    num_values : int
        Those that differ, of the column's type.
    """

    def __init__(self, given: Any, column: Column, nulls: bool):
        keys = plain(keys_for(given, column.name, column.type))
        self._path = column.path
        self.columns = frozenset(column.path[:1])
        self._at_null = _NO_ROWS
        if nulls and keys.null_count:
            self._at_null = np.flatnonzero(to_numpy(keys.is_null()))
        self._values, self._positions = as_stored(keys, plain_type(column.type))
        # Of each value where its positions begin, one value after another; None: one of each.
        self._firsts = None
        if len(self._values) > 1:
            encoded = self._values.dictionary_encode()
            if len(encoded.dictionary) < len(self._values):
                numbers = to_numpy(encoded.indices)
                order = np.argsort(numbers, kind="stable")
                self._positions = self._positions[order]
                self._firsts = np.searchsorted(
                    numbers[order], np.arange(len(encoded.dictionary) + 1)
                )
            self._values = encoded.dictionary
        self.num_values = len(self._values)
        is_one = self.num_values == 1 and not self._at_null.size
        self.predicate = (
            Equals(column.path, self._values[0])
            if is_one
            else IsIn(column.path, self._values, self._at_null.size > 0)
        )

    def __str__(self) -> str:
        return str(self.predicate)

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Numbers of the rows that hold a key, ascending."""
        return np.flatnonzero(self._numbers(table) >= (0 if not self._at_null.size else -1))

    def indexed(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Columns of rows that hold a key, once for each position of it, which comes first."""
        numbers = np.zeros(rows.num_rows, dtype=np.int64)
        if rows.num_rows and not isinstance(self.predicate, Equals):
            numbers = self._numbers(rows)
        if self._firsts is None and not self._at_null.size:
            positions = self._positions[numbers]
        else:
            repeated, positions = self._repeated(numbers)
            rows = gather(rows, repeated)
        stored = rows.schema.names
        rows = rows.add_column(0, _KEY_INDEX, from_numpy(positions))
        if stored == list(names):
            return rows
        return rows.select([0, *(stored.index(name) + 1 for name in names)])

    def _repeated(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each row as often as its value is among the keys, and the positions of those."""
        # Null is the last of the values.
        firsts = np.arange(len(self._values) + 1) if self._firsts is None else self._firsts
        firsts = np.append(firsts, firsts[-1] + self._at_null.size)
        positions = np.concatenate([self._positions, self._at_null])
        numbers = np.where(numbers < 0, len(self._values), numbers)
        counts = firsts[numbers + 1] - firsts[numbers]
        repeated = np.repeat(np.arange(numbers.size), counts)
        within = np.arange(repeated.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return repeated, positions[firsts[numbers[repeated]] + within]

    def _numbers(self, table: pa.Table) -> np.ndarray:
        """Which of the values each row holds; -1 for null, below that for none."""
        values = plain_column(table, self._path)
        numbers = pc.call_function("index_in", [values], pc.SetLookupOptions(self._values))
        if not numbers.null_count:
            return to_numpy(numbers)
        is_null = to_numpy(pc.call_function("is_null", [values]))
        return np.where(is_null, -1, to_numpy(pc.call_function("coalesce", [numbers, _NONE])))


def as_stored(keys: pa.Array, stored_type: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Keys that are values of a type, as that type, and their positions."""
    if pa.types.is_null(keys.type):
        return pa.array([], stored_type), np.empty(0, dtype=np.int64)
    if keys.null_count:
        positions = np.flatnonzero(to_numpy(keys.is_valid()))
        keys = keys.drop_null()
    else:
        positions = np.arange(len(keys))
    is_float = pa.types.is_floating(stored_type)
    if LARGE.get(keys.type) == stored_type:
        keys = keys.cast(stored_type)
    if keys.type == stored_type and not is_float:
        return keys, positions
    if pa.types.is_integer(keys.type) and pa.types.is_integer(stored_type):
        numbers = to_numpy(keys)
        # Compared as what they are: of mixed signs NumPy makes floating point numbers.
        least, most = np.iinfo(numbers.dtype).min, np.iinfo(numbers.dtype).max
        low, high = bounds(stored_type)
        is_within = (numbers >= max(low, least)) & (numbers <= min(high, most))
        return from_numpy(numbers[is_within]).cast(stored_type), positions[is_within]
    values = [_stored(key, stored_type) for key in keys]
    is_value = np.array([value is not None for value in values], dtype=bool)
    return _of_stored([v for v in values if v is not None], stored_type), positions[is_value]


def _stored(key: pa.Scalar, stored_type: pa.DataType) -> Any:
    """A key as a type stores it; None where no value of it equals the key, as none equals NaN."""
    literal = Literal.of(key)
    if literal is None:
        return None
    value = literal.value
    if literal.bits or isinstance(value, float):
        is_finite = math.isfinite(value)
        if not is_finite and (math.isnan(value) or not pa.types.is_floating(stored_type)):
            return None
        # A filter leaves numbers to the engine where that may round; here they are what they are.
        literal = replace(literal, value=Fraction(value) if is_finite else value, bits=0)
    try:
        stored = to_stored(literal, stored_type)
    except Unanswerable:
        return None
    if pa.types.is_fixed_size_binary(stored_type) and len(stored.value) != stored_type.byte_width:
        return None
    return stored.value if stored.exact else None


def _of_stored(values: list[Any], stored_type: pa.DataType) -> pa.Array:
    """An array of values as a type stores them."""
    if pa.types.is_decimal(stored_type):
        scale = -stored_type.scale
        return pa.array([Decimal(f"{value}E{scale}") for value in values], stored_type)
    if pa.types.is_temporal(stored_type):
        return pa.array(values, f"int{stored_type.bit_width}").view(stored_type)
    return plain(pa.array(values, stored_type))


def plain_type(stored: pa.DataType) -> pa.DataType:
    """The type `plain` makes of values of a type: what PyArrow has kernels for."""
    kind = value_type(stored)
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    return _PLAIN.get(kind, kind)


def plain_column(table: pa.Table, path: ColumnPath) -> pa.Array | pa.ChunkedArray:
    column: Any = table.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, name)  # pyright: ignore[reportAttributeAccessIssue]
    return plain(column)


def plain(values: Any) -> Any:
    """Values that are held against one another: no extensions, dictionaries or views, one zero."""
    if isinstance(values, pa.ChunkedArray):
        if values.num_chunks == 1:
            return plain(values.chunk(0))
        return pa.chunked_array([plain(chunk) for chunk in values.chunks], plain_type(values.type))
    while isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    if values.type != plain_type(values.type):
        values = values.cast(plain_type(values.type))
    if pa.types.is_floating(values.type):
        return pc.call_function("add", [values, array_of([0.0], pa.float64())[0].cast(values.type)])
    return values

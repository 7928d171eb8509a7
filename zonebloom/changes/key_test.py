"""Tell which rows of a table hold the keys of a change, by brute force and without an index."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import from_numpy, to_numpy
from zonebloom.index.batch_lookup import checked_keys
from zonebloom.scan.key_values import cast_keys_exactly, normalized_column, normalized_values
from zonebloom.scan.locate import select_key_columns
from zonebloom.scan.opened import OpenedDataset
from zonebloom.values.columns import column_path
from zonebloom.values.normal_types import normalized_type


@dataclass(frozen=True)
class KeyTest:
    """Keys in the types of a dataset, compared with rows by PyArrow's ``is_in`` and ``join``.

    Attributes
    ----------
    paths : tuple of tuple of str
        The columns of the keys.
    keys : pyarrow.Table
        One column for each, named k0, k1 and so on. Each key occurs once.
    """

    paths: tuple[tuple[str, ...], ...]
    keys: pa.Table

    @property
    def columns(self) -> list[str]:
        """The top-level columns that have to be read."""
        return list(dict.fromkeys(path[0] for path in self.paths))

    def lines(self) -> list[str]:
        """Return a text for each key, sorted, for digests."""
        columns = [list(map(_text, _plain_values(column))) for column in self.keys.columns]
        return sorted(map("\x1f".join, zip(*columns, strict=True)))

    def within(self, names: Collection[str]) -> KeyTest | None:
        """Return the test of the columns that a file stores, which more rows pass, or None."""
        numbers = [number for number, path in enumerate(self.paths) if path[0] in names]
        if len(numbers) == len(self.paths):
            return self
        keys = self.keys.select(numbers)
        distinct = keys.group_by(keys.column_names).aggregate([]) if numbers else keys
        return KeyTest(tuple(self.paths[n] for n in numbers), distinct) if numbers else None

    def count(self, rows: pa.Table) -> int:
        """Return the number of rows that hold a key."""
        if not self.keys.num_rows or not rows.num_rows:
            return 0
        names = self.keys.column_names
        columns = [
            _with_type(normalized_column(rows, path), self.keys.schema.field(name).type)
            for path, name in zip(self.paths, names, strict=True)
        ]
        if len(columns) == 1:
            keys = pc.SetLookupOptions(self.keys.column(0).combine_chunks())
            is_key = pc.call_function("is_in", [columns[0]], keys)
            return int(np.count_nonzero(to_numpy(is_key)))
        held = pa.table(columns, names)
        return held.join(self.keys, names, join_type="left semi").num_rows


def key_test(opened: OpenedDataset, columns: Sequence[str], keys: Any) -> KeyTest:
    """Return the test for keys as `Dataset.locate` takes them."""
    given = [keys] if len(columns) == 1 else select_key_columns(keys, list(columns))
    stored, positions = [], None
    for name, values in zip(columns, given, strict=True):
        column = opened.key_column(name)
        array = normalized_values(checked_keys(values, column.name, column.type))
        cast, places = cast_keys_exactly(array, normalized_type(column.type))
        stored.append((cast, places))
        positions = places if positions is None else np.intersect1d(positions, places)
    assert positions is not None
    arrays = [cast.take(from_numpy(places.searchsorted(positions))) for cast, places in stored]
    names = [f"k{number}" for number in range(len(arrays))]
    table = pa.table(arrays, names)
    paths = tuple(column_path(opened.source.schema, name) for name in columns)
    return KeyTest(paths, table.group_by(names).aggregate([]).select(names))


def _with_type(values: Any, wanted: pa.DataType) -> Any:
    """Return values of an older file in the type of the keys. Values that do not fit are null."""
    if values.type == wanted:
        return values
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    fitting, places = cast_keys_exactly(values, wanted)
    positions = np.full(len(values), -1)
    positions[places] = np.arange(places.size)
    return fitting.take(pa.array(positions, mask=positions < 0))


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _plain_values(values: pa.ChunkedArray) -> list[Any]:
    try:
        return values.to_pylist()
    except (OverflowError, ValueError):
        # Python's dates and times end in the year 9999, and have no nanoseconds.
        return values.cast(f"int{values.type.bit_width}").to_pylist()

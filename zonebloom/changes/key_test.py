"""Tell which rows a change is about, by brute force and without an index."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from typing import Any, TypeAlias
from urllib.parse import quote
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from zonebloom.errors import InvalidArgument
from zonebloom.index.key_search import checked_keys
from zonebloom.predicates import RowFilter, row_filter_columns
from zonebloom.scan.key_numbers import RowNumbers
from zonebloom.scan.key_values import cast_keys_exactly, normalized_column, normalized_values
from zonebloom.scan.locate import convert_keys, select_key_columns
from zonebloom.scan.opened import OpenedDataset
from zonebloom.scan.recheck import matching_rows
from zonebloom.values.columns import leaf_names

# An error names this many rows.
_MAX_NAMED_ROWS = 3
# The bytes of shorter keys are not searched.
_MIN_CHARACTERS = 4
_MIN_BYTES = 8
_BINARY_KINDS = (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary)


@dataclass(frozen=True)
class KeyTest:
    """Keys in the types of a dataset, by which all rows of a file are tested.

    Attributes
    ----------
    paths : tuple of tuple of str
        The columns of the keys.
    keys : tuple of pyarrow.Array
        The values of the keys in each column.
    """

    paths: tuple[tuple[str, ...], ...]
    keys: tuple[pa.Array, ...]

    @cached_property
    def _row_numbers(self) -> RowNumbers:
        return RowNumbers(self.keys)

    @property
    def columns(self) -> list[str]:
        """The top-level columns that have to be read."""
        return list(dict.fromkeys(path[0] for path in self.paths))

    def lines(self) -> list[str]:
        """Return a text for each distinct key, sorted, for digests."""
        columns = [list(map(_text, _plain_values(column))) for column in self.keys]
        return sorted(set(map("\x1f".join, zip(*columns, strict=True))))

    def byte_forms(self) -> tuple[list[bytes], list[str]]:
        """Return the bytes by which files tell of keys, and a text for each column without any.

        Short values, numbers and times have none, because their few bytes occur by chance.
        """
        forms: list[bytes] = []
        columns_without = []
        for path, column in zip(self.paths, self.keys, strict=True):
            is_long = [False]
            if pt.is_string(column.type) or pt.is_large_string(column.type):
                values = column.to_pylist()
                is_long = [len(text) >= _MIN_CHARACTERS for text in values]
                forms += chain(*map(_forms_of_text, compress(values, is_long)))
            elif any(is_kind(column.type) for is_kind in _BINARY_KINDS):
                values = column.to_pylist()
                is_long = [len(value) >= _MIN_BYTES for value in values]
                forms += chain(*map(_forms_of_bytes, compress(values, is_long)))
            if not all(is_long):
                short = "short values of " if any(is_long) else ""
                columns_without.append(f"{short}{'.'.join(path)}")
        return list(dict.fromkeys(forms)), columns_without

    def missing_columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns that a file with a schema does not store."""
        return sorted({".".join(path) for path in self.paths}.difference(leaf_names(schema)))

    def without(self, missing: Collection[str]) -> KeyTest | None:
        """Return the test of the other columns, which more rows pass, or None."""
        numbers = [n for n, path in enumerate(self.paths) if ".".join(path) not in missing]
        if not numbers:
            return None
        return KeyTest(tuple(self.paths[n] for n in numbers), tuple(self.keys[n] for n in numbers))

    def numbers_of(self, rows: pa.Table) -> np.ndarray:
        """Return the number of the key that each row holds. It is negative if it holds none."""
        columns = [
            _with_type(normalized_column(rows, path), keys.type)
            for path, keys in zip(self.paths, self.keys, strict=True)
        ]
        return self._row_numbers.of_rows(columns)


@dataclass(frozen=True)
class FilterTest:
    """The filter of an erasure, with the methods of `KeyTest`."""

    text: str
    filter: RowFilter
    schema: pa.Schema

    @property
    def columns(self) -> list[str]:
        names = row_filter_columns(self.filter)
        # Without columns, rows would have no number.
        return sorted(self.schema.names if names is None else names) or self.schema.names[:1]

    def lines(self) -> list[str]:
        return [self.text]

    def byte_forms(self) -> tuple[list[bytes], list[str]]:
        return [], ["a filter"]

    def missing_columns(self, schema: pa.Schema) -> list[str]:
        return sorted(set(self.columns).difference(schema.names))

    def without(self, missing: Collection[str]) -> FilterTest | None:
        return None if missing else self

    def numbers_of(self, rows: pa.Table) -> np.ndarray:
        columns = [rows.column(name).cast(self.schema.field(name).type) for name in self.columns]
        numbers = np.full(rows.num_rows, -1)
        numbers[matching_rows(pa.table(columns, self.columns), self.filter)] = 0
        return numbers


RowTest: TypeAlias = KeyTest | FilterTest


def row_test(opened: OpenedDataset, columns: Sequence[str], keys: Any, filter: Any) -> RowTest:
    """Return the test for the rows of a filter, or of keys as `Dataset.locate` takes them.

    Raise `InvalidArgument` for null and NaN keys, which no row equals.
    """
    if filter is not None:
        row_filter, _ = opened.translate([filter])
        assert row_filter is not None
        return FilterTest(str(filter), row_filter, opened.source.schema)
    key_columns = list(map(opened.key_column, columns))
    key_arrays = [keys] if len(columns) == 1 else select_key_columns(keys, list(columns))
    for column, values in zip(key_columns, key_arrays, strict=True):
        array = normalized_values(checked_keys(values, column.name, column.type))
        require_no_nulls(array, column.name, f'or give erase(filter="{column.name} IS NULL")')
    stored = convert_keys(key_columns, key_arrays)[0]
    return KeyTest(tuple(column.path for column in key_columns), tuple(stored))


def require_no_nulls(keys: Any, name: str, advice: str) -> None:
    """Raise `InvalidArgument` if keys are null or NaN, and name the first of them."""
    is_absent = np.asarray(keys.is_null(nan_is_null=True))
    if is_absent.any():
        rows = named_rows(is_absent)
        raise InvalidArgument(
            f"key {name!r} is null or NaN in {rows}; leave these rows out, {advice}"
        )


def named_rows(is_bad: np.ndarray, first_row: int = 0) -> str:
    """Return the numbers of the first bad rows, for an error."""
    numbers = np.flatnonzero(is_bad)
    named = ", ".join(f"{first_row + number:,}" for number in numbers[:_MAX_NAMED_ROWS].tolist())
    more = numbers.size - _MAX_NAMED_ROWS
    rows = "row" if numbers.size == 1 else "rows"
    return f"{rows} {named}" + (f" and {more:,} more" if more > 0 else "")


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


def _forms_of_text(text: str) -> list[bytes]:
    """Return a text as data files, JSON and URIs write it. Most are the same in all of them."""
    return [form.encode() for form in (text, json.dumps(text)[1:-1], quote(text))]


def _forms_of_bytes(value: bytes) -> list[bytes]:
    """Return a binary value as data files and logs write it."""
    forms = [value, value.hex().encode(), b64encode(value)]
    return [*forms, str(UUID(bytes=value)).encode()] if len(value) == 16 else forms


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _plain_values(values: pa.Array) -> list[Any]:
    try:
        return values.to_pylist()
    except (OverflowError, ValueError):
        # Python's dates and times end in the year 9999, and have no nanoseconds.
        return values.cast(f"int{values.type.bit_width}").to_pylist()

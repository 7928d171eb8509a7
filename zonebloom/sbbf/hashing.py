"""Hash the values of Arrow arrays with XXH64, in place.

The hashed bytes are little-endian at the width of the type: IEEE bits for floats, UTF-8 or raw
bytes without a length prefix for strings and binary, the unscaled integer for decimals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.base.arrays import unwrap_extensions
from zonebloom.errors import UnsupportedType

# Hashes of this many rows stay in the CPU cache between hashing and insertion.
_HASH_ROWS = 1 << 16
_NO_BITMAP = np.empty(0, dtype=np.uint8)
_WIDTH_DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


_FIXED = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_decimal,
    pa.types.is_fixed_size_binary,
)
_VIEWS = (pa.types.is_string_view, pa.types.is_binary_view)
_LARGE = (pa.types.is_large_string, pa.types.is_large_binary)
_VARIABLE = (pa.types.is_string, pa.types.is_binary, *_LARGE, *_VIEWS)


def _is_any(arrow_type: pa.DataType, tests: tuple[Callable[[Any], bool], ...]) -> bool:
    return any(test(arrow_type) for test in tests)


def fixed_width(arrow_type: pa.DataType) -> int | None:
    """Return the bytes of one value, or None if the length varies.

    Raise `UnsupportedType` for types that are not hashed.
    """
    if _is_any(arrow_type, _FIXED):
        return arrow_type.byte_width
    if _is_any(arrow_type, _VARIABLE):
        return None
    raise UnsupportedType(f"values of type {arrow_type} are not hashed into Bloom filters")


@dataclass(frozen=True, slots=True)
class Hashes:
    """The hashes of an array, one for each row, and the rows that are null.

    ``validity`` is an Arrow bitmap that begins at bit ``validity_offset``. It is empty if no row is
    null. The hash of a null row has no meaning.
    """

    values: np.ndarray
    validity: np.ndarray
    validity_offset: int
    null_count: int

    @property
    def num_rows(self) -> int:
        return self.values.size

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes

    def by_row(self) -> RowHashes:
        """Return the same as `RowHashes`."""
        is_valid = self.is_valid()
        return RowHashes(self.of_valid_rows(), np.cumsum(is_valid), ~is_valid)

    def of_valid_rows(self) -> np.ndarray:
        """Return the hashes of the rows that are not null."""
        return self.values[self.is_valid()] if self.null_count else self.values

    def is_valid(self) -> np.ndarray:
        """Return a bool array that is False for null rows."""
        if not self.null_count:
            return np.ones(len(self.values), dtype=bool)
        bits = np.unpackbits(self.validity, bitorder="little")
        return bits[self.validity_offset : self.validity_offset + len(self.values)].astype(bool)


@dataclass(frozen=True, slots=True)
class RowHashes:
    """Any number of hashes for each row, such as those of the elements of its list.

    Attributes
    ----------
    values : uint64 array, shape (n,)
    ends : int64 array, shape (rows,)
        The hashes of a row end before this position, and begin where those of the row before end.
    is_null : bool array, shape (rows,)
    """

    values: np.ndarray
    ends: np.ndarray
    is_null: np.ndarray

    @property
    def num_rows(self) -> int:
        return self.ends.size

    @property
    def null_count(self) -> int:
        return int(np.count_nonzero(self.is_null))

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes + self.ends.nbytes


def hash_array(array: pa.Array) -> Hashes:
    """Hash every value of an array of any type that can be indexed, without copying its buffers."""
    array = unwrap_extensions(array)
    if isinstance(array, pa.DictionaryArray):
        return _hash_dictionary(array)
    width = fixed_width(array.type)
    if _is_any(array.type, _VIEWS):
        array = array.cast(pa.large_binary())
    out = np.empty(len(array), dtype=np.uint64)
    if len(array) and width is not None:
        _hash_fixed(array, width, out)
    elif len(array):
        _hash_variable(array, out)
    return Hashes(out, _bitmap(array), array.offset, array.null_count)


def hash_in_batches(array: pa.Array) -> Iterator[Hashes]:
    """Yield the hashes of an array in slices that fit the CPU cache."""
    # Hash a dictionary array in one slice, because every slice hashes the whole dictionary again.
    step = len(array) or 1 if pa.types.is_dictionary(array.type) else _HASH_ROWS
    for start in range(0, len(array), step):
        yield hash_array(array.slice(start, step))


def _bitmap(array: pa.Array) -> np.ndarray:
    if not array.null_count:
        return _NO_BITMAP
    return np.frombuffer(array.buffers()[0], dtype=np.uint8)


def _hash_fixed(array: pa.Array, width: int, out: np.ndarray) -> None:
    from zonebloom.sbbf import xxh64

    data = array.buffers()[1]
    dtype = _WIDTH_DTYPES.get(width)
    if dtype is None or pa.types.is_fixed_size_binary(array.type):
        address = data.address + array.offset * width if data is not None else 0
        xxh64.hash_stride(address, width, out)
        return
    values = np.frombuffer(data, dtype=dtype, count=array.offset + len(array))[array.offset :]
    {1: xxh64.hash_width_1, 2: xxh64.hash_width_2, 4: xxh64.hash_width_4, 8: xxh64.hash_width_8}[
        width
    ](values, out)


def _hash_variable(array: pa.Array, out: np.ndarray) -> None:
    from zonebloom.sbbf import xxh64

    _, offsets, data = array.buffers()
    dtype = np.int64 if _is_any(array.type, _LARGE) else np.int32
    starts = np.frombuffer(offsets, dtype=dtype, count=array.offset + len(array) + 1)
    xxh64.hash_offsets(data.address if data is not None else 0, starts[array.offset :], out)


def _hash_dictionary(array: pa.DictionaryArray) -> Hashes:
    values = hash_array(array.dictionary)
    indices = array.indices
    if not len(values.values):
        out = np.zeros(len(array), dtype=np.uint64)
        return Hashes(out, _bitmap(indices), indices.offset, indices.null_count)
    codes = (indices.fill_null(0) if indices.null_count else indices).to_numpy()
    out = values.values[codes]
    if not values.null_count:
        return Hashes(out, _bitmap(indices), indices.offset, indices.null_count)
    # A null in the dictionary makes rows null that the bitmap of the indices marks as valid.
    valid = values.is_valid()[codes]
    if indices.null_count:
        valid &= indices.is_valid().to_numpy(zero_copy_only=False)
    return Hashes(out, np.packbits(valid, bitorder="little"), 0, int((~valid).sum()))

"""Convert between Python values, NumPy and Arrow without importing pandas.

`pa.array`, `pa.scalar` and ``to_numpy`` import pandas where it is installed, which takes longer
than a lookup.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

# Python's own class also takes signs, underscores and digits of other scripts.
_UUID = re.compile(r"(urn:uuid:)?\{?(-*[0-9a-fA-F]){32}-*\}?")
_TEXT_IDS = {pa.string().id, pa.binary().id}
_NUMPY_BY_ID = {
    pa.from_numpy_dtype(dtype).id: np.dtype(dtype)
    for dtype in (*(f"{sign}{width}" for sign in "iu" for width in (1, 2, 4, 8)), "f8")
}
# These are the errors of pyarrow and of the libraries of time zones for such values.
_CANNOT_EXPRESS = (ValueError, OverflowError, KeyError, pa.ArrowException)


def array_of(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return an array of a given type, as `pa.array` would. No value may be None.

    >>> array_of(["a", "bc"], pa.string()).to_pylist()
    ['a', 'bc']
    """
    if type_.id in _TEXT_IDS:
        pieces = [value.encode() if isinstance(value, str) else value for value in values]
        offsets = np.cumsum([0, *map(len, pieces)])
        if offsets[-1] <= np.iinfo(np.int32).max:
            buffers = [offsets.astype(np.int32), b"".join(pieces)]
            return pa.Array.from_buffers(type_, len(pieces), [None, *map(pa.py_buffer, buffers)])
    dtype = _NUMPY_BY_ID.get(type_.id)
    return pa.array(values, type_) if dtype is None else from_numpy(np.array(values, dtype))


def uuids_of(texts: pa.Array | pa.ChunkedArray) -> pa.Array | None:
    """Return the 16 bytes of UUIDs, or None if a text is no UUID.

    >>> uuids_of(pa.array(["00000000-0000-0000-0000-000000000001"]))[0].as_py()[-1]
    1
    """
    values: list[bytes | None] = []
    for text in texts.to_pylist():
        value = None if text is None else uuid_bytes(text)
        if value is None and text is not None:
            return None
        values.append(value)
    return pa.array(values, pa.binary(16))


def uuid_bytes(text: str) -> bytes | None:
    """Return the 16 bytes of a UUID in any usual spelling, or None if a text is no UUID."""
    return uuid.UUID(text).bytes if _UUID.fullmatch(text) else None


def from_numpy(values: np.ndarray, is_valid: np.ndarray | None = None) -> pa.Array:
    """Return an array that shares the memory of NumPy numbers. Invalid ones become null."""
    validity = None if is_valid is None else pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, buffers)


def allocate_array(size: int, dtype: Any) -> np.ndarray:
    """Return an uninitialised array from Arrow's memory pool.

    This is for arrays that are soon freed: the pool keeps their memory for the next request, while
    NumPy returns it to the system. Memory that a cache keeps is faster from NumPy.
    """
    num_bytes = size * np.dtype(dtype).itemsize
    return np.frombuffer(pa.allocate_buffer(num_bytes), dtype) if size else np.empty(0, dtype)


def to_numpy(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return numbers or booleans as a NumPy array. Raise `pa.ArrowInvalid` if there are nulls."""
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    if values.null_count:
        raise pa.ArrowInvalid("nulls cannot be converted to NumPy numbers")
    kind = np.dtype(values.type.to_pandas_dtype())
    if not len(values):
        return np.empty(0, dtype=kind)
    if pt.is_boolean(values.type):
        first_byte, first_bit = divmod(values.offset, 8)
        data = np.frombuffer(values.buffers()[1], np.uint8, offset=first_byte)
        bits = np.unpackbits(data, count=first_bit + len(values), bitorder="little")
        return bits[first_bit:].view(bool)
    return np.frombuffer(values.buffers()[1], kind, len(values), values.offset * kind.itemsize)


def is_view_type(type_: pa.DataType) -> bool:
    """Return whether a type is string_view or binary_view, for which pyarrow has few kernels."""
    return pt.is_string_view(type_) or pt.is_binary_view(type_)


def copied_slices(table: pa.Table) -> pa.Table:
    """Return a table with a copy of each chunk that is a slice of a larger one.

    A slice keeps the memory of the whole array, and some readers mistake the offset of a struct.
    """
    columns = []
    for column in table.columns:
        chunks: list[Any] = column.chunks
        are_slices = list(map(_is_slice, chunks))
        if any(are_slices):
            # To concatenate is the quickest copy, and PyArrow can do it with every type.
            chunks = [
                pa.concat_arrays([chunk]) if is_slice else chunk
                for chunk, is_slice in zip(chunks, are_slices, strict=True)
            ]
            column = pa.chunked_array(chunks, column.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=table.schema) if columns else table


def _is_slice(array: pa.Array) -> bool:
    return array.offset > 0 or 2 * array.nbytes < array.get_total_buffer_size()


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows. `pa.Schema.empty_table` fails for nested extension types."""
    return pa.Table.from_batches([], schema)


def unwrap_extensions(values: pa.Array) -> pa.Array:
    """Return the storage of an array of an extension type; other arrays as they are."""
    while isinstance(values, pa.ExtensionArray):
        values = values.storage
    return values


def decode_dictionary(values: pa.DictionaryArray) -> pa.Array:
    """Return the values of a dictionary array; views become large strings or large binary.

    `dictionary_decode` alone raises an error for views.
    """
    dictionary = values.dictionary
    if is_view_type(dictionary.type):
        large = pa.large_string() if pt.is_string_view(dictionary.type) else pa.large_binary()
        values = pa.DictionaryArray.from_arrays(values.indices, dictionary.cast(large))
    return values.dictionary_decode()


def distinct_numbers(numbers: np.ndarray) -> np.ndarray:
    """Return the distinct numbers, ascending. `np.unique`, which hashes, takes 20 times as long."""
    ordered = np.sort(numbers)
    is_new = ordered[1:] != ordered[:-1]
    return np.concatenate((ordered[:1], ordered[1:][is_new]))


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as Python objects.

    These values become text: times outside of the years 1 to 9999, times in a zone that is not
    known here, durations that are too long, and strings that are not UTF-8.

    >>> python_values(pa.array([0, 2**60], pa.timestamp("s")))
    [datetime.datetime(1970, 1, 1, 0, 0), '<value out of range: 1152921504606846976>']
    """
    try:
        return column.to_pylist()
    except _CANNOT_EXPRESS:
        # A single value makes the conversion of a column fail.
        return [python_value(scalar) for scalar in column]


def python_value(scalar: pa.Scalar) -> Any:
    """Return one value, as `python_values` does."""
    try:
        return scalar.as_py()
    except _CANNOT_EXPRESS:
        pass
    kind, value = scalar.type, scalar
    if isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar | pa.RunEndEncodedScalar):
        return python_value(value.value)
    if isinstance(value, pa.StructScalar):
        return {name: python_value(value[number]) for number, name in enumerate(kind.names)}
    if isinstance(value, pa.MapScalar):
        entries = value.values
        return [
            (python_value(key), python_value(item))
            for key, item in zip(entries.field(0), entries.field(1), strict=True)
        ]
    if pt.is_nested(kind):
        return [python_value(item) for item in value.values]
    if pt.is_temporal(kind):
        return _time_text(scalar)
    return value.as_buffer().to_pybytes().decode(errors="backslashreplace")


def _time_text(scalar: pa.Scalar) -> str:
    if pt.is_duration(scalar.type):
        return f"{scalar.cast(pa.int64()).as_py()} {scalar.type.unit}"
    is_zoned = pt.is_timestamp(scalar.type) and scalar.type.tz is not None
    plain_type = pa.timestamp(scalar.type.unit) if is_zoned else scalar.type
    (text,) = pa.repeat(scalar.cast(plain_type), 1).cast(pa.string()).to_pylist()
    # Without its zone, the time is that of UTC.
    return f"{text}Z" if is_zoned else text

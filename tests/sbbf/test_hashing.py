"""Hashes of Arrow arrays: the bytes that are hashed for each type, and the rows that are valid."""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import PLAIN_TYPES, REFUSED_TYPES, STRING_TYPES, hashes_of, sample

from zonebloom.errors import UnsupportedType
from zonebloom.sbbf.hashing import fixed_width, hash_array

by_type = pytest.mark.parametrize("arrow_type", PLAIN_TYPES, ids=str)


def check_hashes(array, encoded):
    """The array hashes as these bytes, row by row, with None for a null."""
    hashed = hash_array(array)
    is_valid = [data is not None for data in encoded]
    assert len(hashed.values) == len(array)
    assert hashed.values.dtype == np.uint64
    assert hashed.null_count == is_valid.count(False)
    assert hashed.is_valid().tolist() == is_valid
    if hashed.null_count:
        bits = np.unpackbits(hashed.validity, bitorder="little")[hashed.validity_offset :]
        assert bits[: len(array)].tolist() == is_valid
    expected = hashes_of([data for data in encoded if data is not None])
    assert np.array_equal(hashed.of_valid_rows(), expected)
    assert np.array_equal(hashed.values[is_valid], expected)


@by_type
def test_every_type(arrow_type):
    check_hashes(*sample(arrow_type))


@by_type
def test_slices_of_every_type(arrow_type):
    array, encoded = sample(arrow_type)
    for start, rows in [(0, 0), (1, 5), (3, 1), (7, 60), (8, 8), (63, 37), (100, 0)]:
        check_hashes(array.slice(start, rows), encoded[start : start + rows])
    check_hashes(array.slice(5, 80).slice(6, 30), encoded[11:41])


@by_type
def test_all_null_and_empty_arrays_of_every_type(arrow_type):
    check_hashes(pa.nulls(9, arrow_type), [None] * 9)
    check_hashes(pa.nulls(0, arrow_type), [])


@by_type
@pytest.mark.parametrize("index_type", [pa.int8(), pa.uint64()], ids=str)
def test_dictionaries_of_every_type_hash_as_their_values(arrow_type, index_type):
    values, encoded = sample(arrow_type, rows=20)
    codes = [None if i % 7 == 3 else i * 5 % 20 for i in range(60)]
    array = pa.DictionaryArray.from_arrays(pa.array(codes, index_type), values)
    expected = [None if code is None else encoded[code] for code in codes]
    check_hashes(array, expected)
    check_hashes(array.slice(9, 30), expected[9:39])


def test_dictionary_whose_values_are_a_slice():
    values = pa.array(["x", "a", None, "c", "y"]).slice(1, 3)
    array = pa.DictionaryArray.from_arrays(pa.array([2, 1, 0], pa.int8()), values)
    check_hashes(array, [b"c", None, b"a"])


@pytest.mark.parametrize("length", [0, 4])
def test_empty_dictionary_has_only_nulls(length):
    array = pa.DictionaryArray.from_arrays(
        pa.nulls(length, pa.int32()), pa.array([], pa.string_view())
    )
    check_hashes(array, [None] * length)


@pytest.mark.parametrize("leaf", STRING_TYPES, ids=str)
def test_dictionary_of_dictionaries(leaf):
    inner = pa.DictionaryArray.from_arrays(
        pa.array([2, 0, None, 1], pa.int8()), pa.array(["long " * 9, None, "b"], leaf)
    )
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 3, 2, 0], pa.int16()), inner)
    check_hashes(array, [b"b", b"long " * 9, None, None, None, b"b"])


def test_dictionary_of_an_extension_type():
    ids = [uuid.uuid5(uuid.NAMESPACE_URL, str(i)).bytes for i in range(3)]
    values = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([ids[0], None, ids[2]], pa.binary(16))
    )
    array = pa.DictionaryArray.from_arrays(pa.array([2, 1, 0, None], pa.int8()), values)
    check_hashes(array, [ids[2], None, ids[0], None])


@given(
    st.lists(st.none() | st.text(max_size=50), max_size=60),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from(STRING_TYPES),
)
def test_any_slice_of_any_strings(texts, start, rows, arrow_type):
    array = pa.array(texts, arrow_type).slice(start, rows)
    encoded = [None if text is None else text.encode() for text in texts]
    check_hashes(array, encoded[start : start + rows])


def test_data_buffers_are_not_copied():
    array = pa.array(["x" * 1000] * 10_000)
    before = pa.total_allocated_bytes()
    hash_array(array.slice(3))
    assert pa.total_allocated_bytes() - before < 100_000


@pytest.mark.parametrize("arrow_type", REFUSED_TYPES, ids=str)
def test_types_that_are_not_hashed_are_refused(arrow_type):
    with pytest.raises(UnsupportedType, match="not hashed"):
        hash_array(pa.nulls(2, arrow_type))


@by_type
def test_fixed_width_is_the_bytes_of_a_value(arrow_type):
    _, encoded = sample(arrow_type, rows=50)
    lengths = {len(data) for data in encoded if data is not None}
    assert fixed_width(arrow_type) == (lengths.pop() if len(lengths) == 1 else None)

"""Compare conversions of arrays without pandas with the conversions of pyarrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from zonebloom.base.arrays import array_of, from_numpy, to_numpy

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()]


def assert_same(result, expected):
    result.validate(full=True)
    assert result.type == expected.type
    assert result.equals(expected)


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_integers_are_converted_as_by_pyarrow(kind):
    bits = kind.bit_width
    low, high = (0, 2**bits - 1) if pa.types.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 0)
    for values in ([], [low], [low, high, 1]):
        assert_same(array_of(values, kind), pa.array(values, kind))
    for beyond in (low - 1, 2**bits):
        with pytest.raises(OverflowError):
            array_of([beyond], kind)


@pytest.mark.parametrize("kind", [*INTEGERS, pa.float32(), pa.float64(), pa.bool_()], ids=str)
def test_arrays_survive_a_round_trip_through_numpy(kind):
    values = pa.array([0, 1, 1, 0, 1] * 5, pa.int8()).cast(kind)
    expected = values.to_numpy(zero_copy_only=False)
    for chunked in (values, pa.chunked_array([values]), pa.chunked_array([values[:3], values[3:]])):
        result = to_numpy(chunked)
        assert result.dtype == expected.dtype
        assert result.tolist() == expected.tolist()
    assert to_numpy(values[3:9]).tolist() == expected[3:9].tolist()
    assert to_numpy(values[:0]).size == 0
    assert to_numpy(pa.chunked_array([], kind)).dtype == expected.dtype
    if not pa.types.is_boolean(kind):
        assert_same(from_numpy(expected), values)
        assert_same(from_numpy(expected[::2]), pa.array(expected[::2]))


def test_arrays_with_nulls_cannot_be_converted_to_numpy():
    with pytest.raises(pa.ArrowException):
        to_numpy(pa.array([1, None]))
    assert np.array_equal(to_numpy(pa.array([True, False])), [True, False])


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 13])
@pytest.mark.parametrize("size", [0, 1, 8, 20])
def test_booleans_of_slices_are_numpy_booleans(offset, size):
    values = [row % 3 == 0 or row == 17 for row in range(40)]
    array = pa.array(values).slice(offset, size)
    result = to_numpy(array)
    assert result.dtype == bool
    assert result.tolist() == values[offset : offset + size]
    assert to_numpy(pa.chunked_array([array, array])).tolist() == result.tolist() * 2
    with pytest.raises(pa.ArrowInvalid, match="nulls"):
        to_numpy(pa.array([True, None]))

"""Sbbf: one filter over values of one Arrow type."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import PLAIN_TYPES, reference_filter, sample

from zonebloom import Sbbf
from zonebloom.errors import InvalidArgument, UnsupportedType


def bloom_of(values, ndv=100, probability=0.01, **options):
    bloom = Sbbf(ndv, probability, **options)
    bloom.insert(values)
    return bloom


@pytest.mark.parametrize("arrow_type", PLAIN_TYPES, ids=str)
def test_insert_equals_the_reference_and_check_finds_all_but_nulls(arrow_type):
    array, encoded = sample(arrow_type)
    bloom = bloom_of(array, sizing="exact")
    assert bloom.to_bytes() == reference_filter(bloom.num_blocks, encoded)
    assert bloom.check(array).tolist() == [data is not None for data in encoded]


def test_insert_takes_chunked_arrays_and_plain_lists():
    expected = bloom_of(pa.array([1, 2, 3, None]))
    assert bloom_of([1, 2, 3, None]) == expected
    assert bloom_of(pa.chunked_array([[1, 2], [], [3, None]])) == expected
    assert bloom_of(pa.chunked_array([], pa.int64())) == Sbbf(100, 0.01)


def test_a_null_is_never_found_even_in_a_full_filter():
    full = Sbbf.from_bytes(b"\xff" * 32)
    assert full.check(pa.array([1, None, 3])).tolist() == [True, False, True]
    assert full.check(pa.array([9, 1, None, 3]).slice(1)).tolist() == [True, False, True]
    null_in_dictionary = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None], pa.int8()), pa.array(["a", None])
    )
    assert full.check(null_in_dictionary).tolist() == [True, False, False]


def test_unhashable_types_are_refused():
    for values in ([True], pa.array([[1]]), pa.array([{"a": 1}])):
        with pytest.raises(UnsupportedType):
            Sbbf(10).insert(values)
        with pytest.raises(UnsupportedType):
            Sbbf(10).check(values)


@pytest.mark.parametrize("arguments", [(0,), (10, 0.0), (10, 1.0), (10**9, 1e-9), (10, "x")])
def test_impossible_targets_are_refused(arguments):
    with pytest.raises(InvalidArgument):
        Sbbf(*arguments)


def test_bytes_round_trip():
    bloom = bloom_of(range(80))
    copied = Sbbf.from_bytes(bloom.to_bytes())
    assert copied == bloom
    assert copied.to_bytes() == bloom.to_bytes()
    for kind in (bytearray, memoryview, pa.py_buffer, lambda d: np.frombuffer(d, np.uint8)):
        assert Sbbf.from_bytes(kind(bloom.to_bytes())) == bloom


def test_from_bytes_copies():
    data = bytearray(32)
    bloom = Sbbf.from_bytes(data)
    data[0] = 255
    assert bloom == Sbbf.from_bytes(bytes(32))
    bloom.insert([1])
    assert data[1:] == bytes(31)


@pytest.mark.parametrize("size", [0, 1, 31, 33, (1 << 27) + 32])
def test_from_bytes_refuses_what_is_not_whole_blocks(size):
    with pytest.raises(InvalidArgument, match=f"{size} bytes are not a filter"):
        Sbbf.from_bytes(bytes(size))


def test_merge_takes_in_all_of_the_other():
    one, other = bloom_of(range(40)), bloom_of(range(40, 80))
    before = other.to_bytes()
    one.merge(other)
    assert one == bloom_of(range(80))
    assert other.to_bytes() == before


def test_merge_refuses_another_size():
    with pytest.raises(InvalidArgument, match=r"8 and 1024 blocks.*fold"):
        Sbbf(100, 0.01).merge(Sbbf(8192))


@given(st.lists(st.integers(0, 2**63 - 1), max_size=60), st.sampled_from([0.5, 0.01, 1e-6]))
def test_fold_keeps_every_value_and_the_target(values, probability):
    bloom = bloom_of(pa.array(values, pa.int64()), ndv=8192)
    folded = bloom.fold(probability)
    assert folded.check(pa.array(values, pa.int64())).all()
    assert folded.estimated_fpp <= max(probability, bloom.estimated_fpp)
    encoded = [value.to_bytes(8, "little") for value in values]
    assert folded.to_bytes() == reference_filter(folded.num_blocks, encoded)
    if folded.num_blocks > 1:
        half = Sbbf.from_bytes(reference_filter(folded.num_blocks // 2, encoded))
        assert half.estimated_fpp > probability


def test_fold_leaves_the_filter_alone_and_gives_a_copy_when_nothing_fits():
    bloom = bloom_of(range(100))
    before = bloom.to_bytes()
    folded = bloom.fold(1e-9)
    assert folded == bloom
    folded.insert([-1])
    assert bloom.to_bytes() == before


def test_fill_and_estimated_fpp_are_counted_from_the_bits():
    assert Sbbf(100).fill == 0.0
    assert Sbbf(100).estimated_fpp == 0.0
    assert Sbbf.from_bytes(b"\xff" * 64).fill == 1.0
    assert Sbbf.from_bytes(b"\xff" * 64).estimated_fpp == 1.0
    assert Sbbf.from_bytes(b"\xff" * 32 + bytes(96)).estimated_fpp == 0.25
    half_of_each_word = Sbbf.from_bytes(b"\xff\xff\x00\x00" * 8)
    assert half_of_each_word.fill == 0.5
    assert half_of_each_word.estimated_fpp == 0.5**8
    assert Sbbf.from_bytes(b"\xff" * 28 + bytes(4)).estimated_fpp == 0.0


def test_equality():
    assert Sbbf(100) == Sbbf(100)
    assert Sbbf(100) != bloom_of([1])
    assert Sbbf(100, 0.01) != Sbbf(8192)
    assert Sbbf(100) != bytes(Sbbf(100).nbytes)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Sbbf(100))

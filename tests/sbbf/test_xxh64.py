"""The XXH64 kernels against the xxhash package."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import hashes_of

from zonebloom.sbbf import xxh64
from zonebloom.sbbf.hashing import hash_array

WIDTHS = {
    1: (xxh64.hash_width_1, np.uint8),
    2: (xxh64.hash_width_2, np.uint16),
    4: (xxh64.hash_width_4, np.uint32),
    8: (xxh64.hash_width_8, np.uint64),
}


def values_of(width):
    return st.lists(st.binary(min_size=width, max_size=width), max_size=40)


def out_for(values):
    # Filled, so that an entry left unwritten shows.
    return np.full(len(values), 0xDEAD, dtype=np.uint64)


@pytest.mark.parametrize("width", WIDTHS)
@given(data=st.data())
def test_integers_of_each_width(width, data):
    values = data.draw(values_of(width))
    kernel, dtype = WIDTHS[width]
    out = out_for(values)
    kernel(np.frombuffer(b"".join(values), dtype=dtype), out)
    assert np.array_equal(out, hashes_of(values))


@pytest.mark.parametrize("width", [*range(1, 70), 100, 128, 255])
def test_stride_of_each_width_from_an_odd_address(width):
    rng = random.Random(width)
    values = [rng.randbytes(width) for _ in range(20)]
    memory = np.frombuffer(b"x" + b"".join(values), dtype=np.uint8)
    out = out_for(values)
    xxh64.hash_stride(memory.ctypes.data + 1, width, out)
    assert np.array_equal(out, hashes_of(values))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(values=st.lists(st.binary(max_size=200), min_size=1), lead=st.binary(max_size=9))
def test_variable_length_with_offsets_that_begin_anywhere(dtype, values, lead):
    memory = np.frombuffer(lead + b"".join(values) + b"tail", dtype=np.uint8)
    offsets = np.cumsum([len(lead), *map(len, values)]).astype(dtype)
    out = out_for(values)
    xxh64.hash_offsets(memory.ctypes.data, offsets, out)
    assert np.array_equal(out, hashes_of(values))


def views_over(values, buffers, rng):
    """Views of values laid at random into several buffers; None gets a view of garbage."""
    views = []
    for value in values:
        if value is None:
            views.append(struct.pack("<iIii", 2**31 - 1, 7, 99, 2**31 - 1))
        elif len(value) <= 12:
            views.append(struct.pack("<i12s", len(value), value))
        else:
            buffer_number = rng.randrange(len(buffers))
            views.append(
                struct.pack(
                    "<i4sii", len(value), value[:4], buffer_number, len(buffers[buffer_number])
                ),
            )
            buffers[buffer_number] += value
    return b"".join(views)


@pytest.mark.parametrize("arrow_type", [pa.binary_view(), pa.string_view()])
@given(
    values=st.lists(st.none() | st.text(max_size=60).map(str.encode), min_size=1, max_size=40),
    num_buffers=st.integers(1, 4),
    start=st.integers(0, 12),
    rng=st.randoms(use_true_random=False),
)
def test_views_over_several_buffers_with_garbage_under_nulls(
    arrow_type, values, num_buffers, start, rng
):
    buffers = [bytearray(b"lead") for _ in range(num_buffers)]
    views = views_over(values, buffers, rng)
    bitmap = np.packbits([value is not None for value in values], bitorder="little")
    data = [pa.py_buffer(bytes(buffer)) for buffer in buffers]
    array = pa.Array.from_buffers(
        arrow_type, len(values), [pa.py_buffer(bitmap), pa.py_buffer(views), *data]
    )
    start = min(start, len(values))
    hashed = hash_array(array.slice(start))
    expected = [value for value in values[start:] if value is not None]
    assert np.array_equal(hashed.of_valid_rows(), hashes_of(expected))
    assert hashed.null_count == values[start:].count(None)

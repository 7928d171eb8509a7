"""Compare the Snappy kernel with the library that pyarrow contains."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zonebloom.parquet.decompression_kernels import (
    decompress_first_values,
    decompress_snappy,
    read_bodies,
)
from zonebloom.parquet.leaf_type import SNAPPY as CODEC
from zonebloom.parquet.page_table import PAGE

SNAPPY = pa.Codec("snappy")
# The number of bytes before and after the target that the kernel must not change.
GUARD = 80


def by_kernel(stream: bytes, size: int) -> bytes | None:
    source = np.frombuffer(stream, dtype=np.uint8)
    memory = np.full(GUARD + size + GUARD, 0xA5, dtype=np.uint8)
    result = decompress_snappy(source.ctypes.data, source.size, memory.ctypes.data + GUARD, size)
    assert (memory[:GUARD] == 0xA5).all()
    assert (memory[GUARD + size :] == 0xA5).all()
    data = None if result < 0 else memory[GUARD : GUARD + size].tobytes()
    assert not size or in_a_page(stream, size) == data
    return data


def in_a_page(stream: bytes, size: int) -> bytes | None:
    """Decompress the stream as the body of a page, which may stay in place."""
    data = np.frombuffer(b"header" + stream, dtype=np.uint8)
    out = np.empty(size, dtype=np.uint8)
    page = np.zeros(1, dtype=PAGE)
    page["body_start"], page["body_size"] = len(b"header"), len(stream)
    page["decompressed_size"] = size
    columns = np.array([[0, CODEC]])
    if read_bodies(data, out.ctypes.data, page, np.array([0, 1]), columns) < 0:
        return None
    body = pa.foreign_buffer(int(page["address"][0]), int(page["size"][0]), (data, out))
    return body.to_pybytes()


def by_pyarrow(stream: bytes, size: int) -> bytes | None:
    """Decompress with the library. Return None for an invalid stream, or one of another size."""
    claimed = 0
    for number, byte in enumerate(stream[:10]):
        claimed |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            break
    if claimed != size:
        return None
    try:
        return SNAPPY.decompress(stream, size).to_pybytes()
    except OSError:
        return None


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw a valid stream with elements of all kinds, and its decompressed size."""
    stream, size = bytearray(), 0
    for _ in range(draw(st.integers(0, 25))):
        kind = draw(st.sampled_from(["literal", 1, 2, 4])) if size else "literal"
        if kind == "literal":
            data = draw(st.binary(min_size=1, max_size=90) | st.just(bytes(range(256)) * 3))
            width = draw(st.integers(0 if len(data) <= 60 else (len(data) > 256) + 1, 4))
            tag = len(data) - 1 if width == 0 else 59 + width
            behind = (len(data) - 1).to_bytes(4, "little")[:width]
            stream += bytes([tag << 2]) + behind + data
            size += len(data)
            continue
        near = draw(st.integers(1, min(size, 20)) | st.integers(1, size))
        distance = min(near, 2047 if kind == 1 else 65535)
        length = draw(st.integers(4, 11) if kind == 1 else st.integers(1, 64))
        if kind == 1:
            stream += bytes([distance >> 8 << 5 | (length - 4) << 2 | 1, distance & 0xFF])
        else:
            tag = 2 if kind == 2 else 3
            stream += bytes([(length - 1) << 2 | tag]) + distance.to_bytes(kind, "little")
        size += length
    return varint(size) + bytes(stream), size


@given(streams())
def test_valid_streams_are_decompressed(stream: tuple[bytes, int]):
    data = by_kernel(*stream)
    assert data is not None
    assert data == by_pyarrow(*stream)


@given(streams(), st.data())
def test_damaged_streams_raise_or_give_the_bytes_of_the_library(
    stream: tuple[bytes, int], data: st.DataObject
):
    damaged, size = bytearray(stream[0]), stream[1]
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged)) | st.just(len(damaged))) :]
    assert by_kernel(bytes(damaged), size) == by_pyarrow(bytes(damaged), size)


def test_a_copy_from_before_the_start_is_refused():
    """After a literal of one byte, four bytes are copied from two bytes before."""
    stream = bytes([5, 0, ord("a"), 1, 2])
    assert by_kernel(stream, 5) is None
    assert by_kernel(bytes([*stream[:-1], 1]), 5) == b"aaaaa"


@pytest.mark.parametrize("seed", range(4))
def test_streams_of_pyarrow_are_decompressed(seed: int):
    rng = np.random.default_rng(seed)
    for data in (
        b"",
        rng.bytes(100_000),
        np.sort(rng.integers(0, 1 << 40, 20_000)).tobytes(),
        rng.integers(0, 1000, 50_000).astype(np.int32).tobytes(),
        b"of the field" * 9_000 + rng.bytes(70) + bytes(300_000),
        " ".join(f"{n:x}" for n in rng.integers(0, 5000, 30_000)).encode(),
    ):
        stream = SNAPPY.compress(data).to_pybytes()
        assert by_kernel(stream, len(data)) == data
        assert by_kernel(stream, len(data) + 1) is None


@st.composite
def plain_pages(draw: st.DrawFn) -> tuple[bytes, int, list[int]]:
    """Draw a page of PLAIN values, the width of a value, and the ends of the values."""
    levels = draw(st.sampled_from([0, 1, 40, 3000]))
    page = bytearray()
    if draw(st.booleans()):
        page += levels.to_bytes(4, "little") + bytes(levels)
    width, ends = draw(st.sampled_from([0, 4, 8, 13])), [len(page)]
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    max_length = draw(st.sampled_from([0, 5, 300, 20_000]))
    for _ in range(draw(st.integers(1, 60))):
        length = width or int(random.integers(0, max_length + 1))
        page += b"" if width else length.to_bytes(4, "little")
        page += random.integers(0, 4, length, dtype=np.uint8).tobytes()
        ends.append(len(page))
    return bytes(page), width, ends


def first_values(stream: bytes, size: int, *parameters: int) -> bytes | None:
    source = np.frombuffer(stream, dtype=np.uint8)
    memory = np.full(GUARD + size + GUARD, 0xA5, dtype=np.uint8)
    places = source.ctypes.data, source.size, memory.ctypes.data + GUARD, size
    result = decompress_first_values(*places, *parameters)
    assert (memory[:GUARD] == 0xA5).all()
    assert (memory[GUARD + size :] == 0xA5).all()
    return None if result < 0 else memory[GUARD : GUARD + result].tobytes()


@settings(deadline=None)
@given(plain_pages(), st.data())
def test_pages_are_decompressed_as_far_as_the_first_values_reach(
    drawn: tuple[bytes, int, list[int]], data: st.DataObject
):
    page, width, ends = drawn
    count = data.draw(st.integers(1, len(ends) - 1))
    stream = SNAPPY.compress(page).to_pybytes()
    has_levels = int(ends[0] > 0)
    decompressed = first_values(stream, len(page), has_levels, width, count)
    assert decompressed is not None
    assert ends[count] <= len(decompressed)
    assert page.startswith(decompressed)
    # More values than the page has reach to its end.
    assert first_values(stream, len(page), has_levels, width, 1000) == page
    # Of damaged pages, what is decompressed is what the whole page would have.
    damaged = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    decompressed = first_values(bytes(damaged), len(page), has_levels, width, count)
    whole = by_kernel(bytes(damaged), len(page))
    assert decompressed is None or whole is None or whole.startswith(decompressed)
    assert decompressed is not None or whole is None


def test_little_of_a_page_is_decompressed_for_few_values():
    numbers = np.arange(1 << 16).astype("<i8").tobytes()
    texts = b"".join(b"\x0a\0\0\0%010d" % number for number in range(1 << 16))
    for page, width, value_bytes in (numbers, 8, 8), (texts, 0, 14):
        stream = SNAPPY.compress(page).to_pybytes()
        decompressed = first_values(stream, len(page), 0, width, 1000)
        assert decompressed is not None
        assert 0 <= len(decompressed) - 1000 * value_bytes < 10_000

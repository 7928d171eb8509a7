"""Filters as Parquet embeds them: the bytes are those of pyarrow, and others are refused."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonebloom import Sbbf
from zonebloom.errors import InvalidArgument
from zonebloom.sbbf.header import decode_header, encode_header

UNIONS = bytes.fromhex("1c1c0000" * 3)


def embedded(path, array, **options) -> bytes:
    """Return the bytes that pyarrow writes at ``bloom_filter_offset``."""
    pq.write_table(pa.table({"v": array}), path, bloom_filter_options={"v": options})
    chunk = pq.read_metadata(path).row_group(0).column(0)
    start = chunk.bloom_filter_offset
    return path.read_bytes()[start : start + chunk.bloom_filter_length]


@pytest.mark.parametrize("ndv, fpp", [(1, 0.5), (100, 0.05), (1000, 0.01), (20_000, 0.001)])
@pytest.mark.parametrize("arrow_type", [pa.int64(), pa.int32(), pa.float64(), pa.string()], ids=str)
def test_bytes_are_those_pyarrow_embeds(tmp_path, ndv, fpp, arrow_type):
    rng = random.Random(ndv)
    numbers = pa.array([*(rng.randrange(1 << 30) for _ in range(ndv)), None], pa.int64())
    array = numbers.cast(arrow_type, safe=False)
    theirs = embedded(tmp_path / "f.parquet", array, ndv=ndv, fpp=fpp)
    num_bytes, header_bytes = decode_header(theirs)
    assert header_bytes + num_bytes == len(theirs)
    ours = Sbbf.from_bytes(bytes(num_bytes))
    ours.insert(array)
    assert ours.to_parquet_bytes() == theirs
    assert Sbbf.from_parquet_bytes(theirs) == ours
    assert Sbbf.from_parquet_bytes(theirs).check(array).tolist() == [True] * ndv + [False]


def test_the_header_byte_by_byte():
    assert encode_header(32) == bytes.fromhex("1540") + UNIONS + b"\0"
    assert encode_header(1 << 27) == bytes.fromhex("158080808001") + UNIONS + b"\0"


@given(st.integers(1, 1 << 22))
def test_header_round_trip(num_blocks):
    header = encode_header(32 * num_blocks)
    assert decode_header(header + b"anything") == (32 * num_blocks, len(header))


def header(size: bytes, unions: bytes = UNIONS, stop: bytes = b"\0") -> bytes:
    return b"\x15" + size + unions + stop


@pytest.mark.parametrize(
    "data, message",
    [
        (header(b"\x40") + bytes(31), "claims 32 bytes, but only 31 follow"),
        (header(b"\x3e") + bytes(31), "claims 31 bytes: that is not whole blocks"),
        (header(b"\x00"), "claims 0 bytes"),
        (header(b"\x3f") + bytes(32), "claims -32 bytes"),
        (header(bytes.fromhex("c080808001")), "claims 134217760 bytes"),
        *(
            (data, "header is cut short, or not that of split blocks")
            for data in (
                b"",
                header(b"\x40", stop=b""),
                b"\x15",
                header(b"\x80\x80\x80\x80\x80\x01"),
                header(b"\x40", bytes.fromhex("1c2c0000" + "1c1c0000" * 2)),
                header(b"\x40", bytes.fromhex("1c1c0000" + "1c2c0000" + "1c1c0000")),
                header(b"\x40", bytes.fromhex("1c1c0000" * 2 + "1c2c0000")),
                header(b"\x40", bytes.fromhex("1c1c150200" + "1c1c0000" * 2)),
                header(b"\x40", bytes.fromhex("1c1c0000" * 2)),
                b"\x2c" + UNIONS[1:] + b"\0",
                header(b"\x40", UNIONS + b"\x15\x02"),
                header(b"\x40", b"\x05\x02\x40" + UNIONS),
                b"\x16\x40" + UNIONS + b"\0",
                b"PAR1" * 20,
            )
        ),
    ],
)
def test_what_is_no_filter_is_refused(data, message):
    with pytest.raises(InvalidArgument, match=message):
        Sbbf.from_parquet_bytes(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_filter_or_refused(data):
    try:
        bloom = Sbbf.from_parquet_bytes(data)
    except InvalidArgument:
        return
    assert bloom.nbytes <= len(data)

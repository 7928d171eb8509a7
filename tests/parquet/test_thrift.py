"""Test Thrift's compact protocol: structs survive a round trip, and hostile bytes raise."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.thrift import (
    BINARY,
    I64,
    LIST,
    MalformedThrift,
    ThriftReader,
    encode_binary,
    encode_integer,
    encode_list,
    encode_struct,
    varint,
)

INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    fields=st.dictionaries(
        st.integers(1, 300), st.one_of(INTEGERS, st.binary(), st.lists(INTEGERS)), max_size=12
    )
)
def test_structs_survive_a_round_trip(fields):
    encoded = []
    for number, value in sorted(fields.items()):
        if isinstance(value, int):
            encoded.append((number, I64, encode_integer(value)))
        elif isinstance(value, bytes):
            encoded.append((number, BINARY, encode_binary(value)))
        else:
            encoded.append((number, LIST, encode_list(I64, map(encode_integer, value))))
    data = encode_struct(encoded)
    for view in (data, memoryview(data)):
        read_fields = ThriftReader(view).read_struct()
        assert dict(read_fields) == fields
        assert (read_fields.start, read_fields.stop) == (0, len(data))


def test_a_reader_skips_every_type():
    data = bytes.fromhex(
        "11"  # 1: true
        "12"  # 2: false
        "1305"  # 3: byte
        "1404"  # 4: i16
        "17"
        + "00"
        * 8  # 5: double
        + "1b"
        "0188"
        "0161"
        "0162"  # 6: a map of binary to binary
        "1a"
        "21"
        "0102"  # 7: a set of booleans
        "1d"
        + "00"
        * 16  # 8: uuid
        + "1b"
        "00"  # 9: an empty map
        "1b"
        "0152"
        "0e"
        "01"  # 10: a map of i32 to boolean
        "00"
    )
    fields = ThriftReader(data).read_struct()
    assert fields.stop == len(data)
    assert sorted(fields) == list(range(1, 11))
    assert fields[6] == [(b"a", b"b")]
    assert fields[7] == [True, False]


HOSTILE = {
    "nothing": b"",
    "no end": b"\x15\x02",
    "a varint without end": b"\x16" + b"\xff" * 20,
    "bytes past the end": b"\x18\xff\xff\xff\xff\x07ab",
    "a list past the end": b"\x19\xf5\xff\xff\xff\xff\x07" + b"\x02" * 9,
    "a list of 2**62": b"\x19\xf6" + varint(1 << 62) + b"\x00",
    "a map past the end": b"\x1b" + varint(1 << 31) + b"\x55",
    "a type that is not": b"\x1f\x00",
    "deep structs": b"\x1c" * 5000,
    "deep lists": b"\x19" + b"\x19" * 5000,
    "deep maps": b"\x1b" + b"\x01\xbb" * 5000,
    "many empty structs": b"\x19\xfc" + varint(900) + b"\x00" * 901,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_structs_raise(data):
    with pytest.raises(MalformedThrift):
        ThriftReader(data).read_struct()


@given(data=st.binary(max_size=200))
def test_random_bytes_raise_or_decode(data):
    with contextlib.suppress(FragmentUnreadable):
        assert ThriftReader(data).read_struct().stop <= len(data)

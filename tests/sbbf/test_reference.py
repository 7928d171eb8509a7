"""The oracle itself, against the xxhash package and the Parquet specification."""

from __future__ import annotations

import random
import struct

import pytest
from helpers import xxh64 as packaged_xxh64
from hypothesis import given
from hypothesis import strategies as st
from reference import ReferenceSbbf, xxh64

# Parquet format, BloomFilter.md, section "Technical Approach".
SALT = (
    0x47B6137B,
    0x44974D91,
    0x8824AD5B,
    0xA2B7289D,
    0x705495C7,
    0x2DF1424B,
    0x9EFC4947,
    0x5C6BFB31,
)


@pytest.mark.parametrize("length", range(101))
def test_xxh64_equals_the_xxhash_package_at_every_length(length):
    data = random.Random(length).randbytes(length)
    assert xxh64(data) == packaged_xxh64(data)


@given(st.binary(max_size=300))
def test_xxh64_equals_the_xxhash_package(data):
    assert xxh64(data) == packaged_xxh64(data)


def test_xxh64_of_nothing_is_the_published_value():
    assert xxh64(b"") == 0xEF46DB3751D8E999


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 1000, 1024])
def test_insert_sets_the_bits_the_specification_names(num_blocks):
    filter = ReferenceSbbf(num_blocks)
    filter.insert(b"N14228")
    hashed = packaged_xxh64(b"N14228")
    block = (hashed >> 32) * num_blocks // 2**32
    words = [1 << (((hashed * salt) % 2**32) >> 27) for salt in SALT]
    expected = bytearray(32 * num_blocks)
    expected[32 * block : 32 * block + 32] = struct.pack("<8I", *words)
    assert filter.to_bytes() == expected


def test_check_finds_what_was_inserted_and_little_else():
    filter = ReferenceSbbf(64)
    for i in range(200):
        filter.insert(i.to_bytes(8, "little"))
    assert all(filter.check(i.to_bytes(8, "little")) for i in range(200))
    assert sum(filter.check(i.to_bytes(8, "little")) for i in range(1000, 3000)) < 20


def test_an_empty_filter_holds_nothing():
    filter = ReferenceSbbf(3)
    assert filter.to_bytes() == bytes(96)
    assert not any(filter.check(bytes([i])) for i in range(256))

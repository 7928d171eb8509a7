"""Test the search for many keys among stored values against brute force."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from seams import set_constant

from zonebloom.parquet import key_tests
from zonebloom.parquet.key_tests import KeySet
from zonebloom.parquet.leaf_type import BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY, INT32, INT64, LeafType
from zonebloom.parquet.page_table import PAGE

_LEAVES = {
    "int64": LeafType(pa.int64(), INT64, 8, 0),
    "int32": LeafType(pa.int32(), INT32, 4, 0),
    "string": LeafType(pa.string(), BYTE_ARRAY, 0, 0),
    "fixed": LeafType(pa.binary(3), FIXED_LEN_BYTE_ARRAY, 3, 0),
}
_TEXT_DOMAIN = st.one_of(
    st.sampled_from(["", "a", "b" * 7, "b" * 8, "b" * 9, "c" * 23 + "x", "c" * 23 + "y", "d" * 16]),
    st.text("ab", max_size=20),
)


def _values(kind: str) -> st.SearchStrategy[list]:
    value = {
        "int64": st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)),
        "int32": st.one_of(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1)),
        "string": _TEXT_DOMAIN,
        "fixed": st.binary(min_size=3, max_size=3),
    }[kind]
    return st.lists(value, max_size=700)


def _stored(kind: str, values: list) -> bytes:
    """Return values in PLAIN encoding."""
    if kind == "string":
        texts = [value.encode() for value in values]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    if kind == "fixed":
        return b"".join(values)
    return np.array(values, _LEAVES[kind].arrow_type.to_pandas_dtype()).tobytes()


def _find(kind: str, pages: list[list], keys: pa.Array) -> list[int]:
    bodies = [pa.py_buffer(_stored(kind, page)) for page in pages]
    table = np.zeros(len(pages), dtype=PAGE)
    table["address"], table["size"] = zip(*((b.address, b.size) for b in bodies), strict=True)
    table["num_stored"] = [len(page) for page in pages]
    table["first_position"] = np.cumsum(table["num_stored"]) - table["num_stored"]
    capacity = int(table["num_stored"].sum()) + 1
    positions = KeySet(_LEAVES[kind], keys).find(table, capacity=capacity)
    return positions.tolist()


@pytest.mark.parametrize("kind", list(_LEAVES))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_positions_of_keys_are_those_of_brute_force(kind, data):
    pages = data.draw(st.lists(_values(kind), min_size=1, max_size=3))
    values = [value for page in pages for value in page]
    some = st.lists(st.sampled_from(values), max_size=300) if values else st.just([])
    # Keys may be repeated, and others may occur in no page.
    keys = data.draw(some) + data.draw(_values(kind))
    offset = data.draw(st.integers(0, len(keys)))
    array = pa.array(keys, _LEAVES[kind].arrow_type).slice(offset)
    wanted = set(keys[offset:])
    with pytest.MonkeyPatch.context() as patched:
        # A bitmap of few bits leaves more values to the hash table.
        if data.draw(st.booleans()):
            set_constant(patched, key_tests, "_BITMAP_BITS", 1)
            set_constant(patched, key_tests, "_MIN_BITMAP_BITS", 1)
        found = _find(kind, pages, array)
    assert found == [position for position, value in enumerate(values) if value in wanted]


@pytest.mark.parametrize("count", [2, 300, 70_000, 300_000])
def test_any_number_of_keys_is_found(count):
    rng = np.random.default_rng(count)
    values = rng.integers(-(2**63), 2**63 - 1, 50_000)
    keys = np.concatenate([values[::7], rng.integers(-(2**63), 2**63 - 1, count)])
    found = _find("int64", [values.tolist()], pa.array(keys))
    assert found == list(range(0, values.size, 7))


@given(repeated=st.integers(1, 5_000))
@example(repeated=200_000)
@settings(max_examples=10, deadline=None)
def test_repeated_keys_take_one_slot(repeated):
    keys = pa.array(["a" * 40] * repeated + ["b"])
    assert _find("string", [["b", "a" * 40, "c", "a" * 40]], keys) == [0, 1, 3]

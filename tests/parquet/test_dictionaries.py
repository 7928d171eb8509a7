"""Test that the dictionary cache respects its bound, and never confuses two files."""

from __future__ import annotations

import os
import struct

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from parquet.test_hostile import header
from support.helpers import run_python
from support.seams import replace_function, set_constant

from zonebloom.parquet import dictionaries, leaf_kernels
from zonebloom.parquet.dictionaries import Dictionary
from zonebloom.parquet.key_tests import KeySet
from zonebloom.parquet.leaf_type import (
    BYTE_ARRAY,
    DOUBLE,
    FIXED_LEN_BYTE_ARRAY,
    INT32,
    INT64,
    LeafType,
)
from zonebloom.values.literal import byte_forms

LOCAL = pafs.LocalFileSystem()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_does_not_wait_for_the_lock_of_another_thread() -> None:
    output = run_python(
        """
        import os, threading, warnings
        from zonebloom.base.memory_cache import MEMORY_CACHE, MemoryCache

        warnings.simplefilter("ignore")
        MEMORY_CACHE.put("page", MemoryCache())
        MEMORY_CACHE._lock.acquire()
        child = os.fork()
        if not child:
            print(MEMORY_CACHE.get("page", MemoryCache), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert output == "None\n"


INDEXED_LEAVES = {
    pa.int64(): LeafType(pa.int64(), INT64, width=8, max_level=0),
    pa.int32(): LeafType(pa.int32(), INT32, width=4, max_level=0),
    pa.float64(): LeafType(pa.float64(), DOUBLE, width=8, max_level=0),
    pa.string(): LeafType(pa.string(), BYTE_ARRAY, width=0, max_level=0),
    pa.binary(6): LeafType(pa.binary(6), FIXED_LEN_BYTE_ARRAY, width=6, max_level=0),
}


@pytest.mark.parametrize("distinct", [1, 60, 5000])
@pytest.mark.parametrize("kind", INDEXED_LEAVES)
def test_an_index_finds_the_same_entries(monkeypatch, kind, distinct):
    """A dictionary may repeat values. Then it has no index."""
    set_constant(monkeypatch, dictionaries, "_SEARCHES_BEFORE_INDEX", 3)
    leaf = INDEXED_LEAVES[kind]
    values = [value_of(kind, number * 7919 % distinct) for number in range(5000)]
    dictionary = Dictionary(leaf, 0, dictionary_page(leaf, values))
    full_searches = 0
    find_rows = leaf_kernels.find_rows

    def count(*args) -> tuple[int, np.ndarray]:
        nonlocal full_searches
        full_searches += 1
        return find_rows(*args)

    replace_function(monkeypatch, leaf_kernels, "find_rows", count)
    for number in [*range(60), 4999, 6000]:
        keys = [value_of(kind, number), value_of(kind, number + 1)][: 1 + number % 2]
        forms = [form for key in keys for form in byte_forms(kind, pa.scalar(key, kind))]
        hits = dictionary.find_keys(KeySet(leaf, forms))
        assert hits.tolist() == [value in keys for value in values]
    # The first two searches are without an index.
    assert full_searches == (2 if distinct == 5000 else 62)
    # Many keys are compared with all entries.
    full_searches = 0
    distinct_values = pa.array(values, kind).unique().to_pylist()[:100]
    forms = [form for key in distinct_values for form in byte_forms(kind, pa.scalar(key, kind))]
    hits = dictionary.find_keys(KeySet(leaf, forms))
    assert hits.tolist() == [value in set(distinct_values) for value in values]
    assert full_searches == 1


def value_of(kind: pa.DataType, number: int) -> object:
    texts = {pa.string(): f"text {number}", pa.binary(6): b"%06d" % number}
    return texts.get(kind, float(number) if kind == pa.float64() else number)


def dictionary_page(leaf: LeafType, values: list) -> np.ndarray:
    """Return a dictionary page with values, some of which may be equal."""
    if leaf.arrow_type == pa.string():
        body = b"".join(struct.pack("<i", len(text)) + text.encode() for text in values)
    elif leaf.arrow_type == pa.binary(6):
        body = b"".join(values)
    else:
        body = pa.array(values, leaf.arrow_type).to_numpy().tobytes()
    page_header = header(2, len(body), len(values), 0)
    return np.frombuffer(page_header + body, dtype=np.uint8)

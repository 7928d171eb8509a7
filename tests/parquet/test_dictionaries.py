"""Test that the dictionary cache respects its bound, and never confuses two files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from e2e_helpers import build

import zonebloom as zb
from zonebloom.parquet.dictionaries import DICTIONARY_CACHE, Dictionary, DictionaryCache
from zonebloom.parquet.leaf_type import INT64, LeafType

LEAF = LeafType(pa.int64(), INT64, width=8, max_level=0)


def page(values: np.ndarray) -> np.ndarray:
    """Return a dictionary page from a file that pyarrow wrote."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": values}), sink, compression="none")
    data = sink.getvalue()
    chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    return np.frombuffer(data, np.uint8)[chunk.dictionary_page_offset : chunk.data_page_offset]


def test_the_least_recently_used_dictionary_is_dropped_first() -> None:
    dictionaries = [Dictionary(LEAF, 0, page(np.arange(100) + 1000 * i)) for i in range(3)]
    assert [dictionary.num_bytes for dictionary in dictionaries] == [800] * 3
    cache = DictionaryCache(max_bytes=2 * 800)
    for number in (0, 1, 0, 2):
        dictionary = cache.get(number, lambda number=number: dictionaries[number])
        assert dictionary is dictionaries[number]
    assert cache.num_bytes == 2 * 800
    numbers_read: list[int] = []
    for number in (0, 2, 1):
        cache.get(number, lambda number=number: numbers_read.append(number) or dictionaries[number])
    assert numbers_read == [1]
    # Without a key, nothing is cached.
    assert cache.get(None, lambda: dictionaries[0]) is dictionaries[0]
    assert cache.num_bytes == 2 * 800


def test_a_replaced_file_does_not_use_the_dictionary_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "0.parquet"
    for name in ("first", "other", "third"):
        table = pa.table({"id": range(100), "name": [f"{name} {i % 5}" for i in range(100)]})
        pq.write_table(table, tmp_path / "new", use_dictionary=["name"])
        os.replace(tmp_path / "new", path)
        ds = zb.dataset(path, index_dir=str(tmp_path / "index"))
        build(ds, "id", replace=True)
        before = DICTIONARY_CACHE.num_bytes
        assert ds.lookup("id", [42])["name"].to_pylist() == [f"{name} 2"]
        assert DICTIONARY_CACHE.num_bytes > before
        assert ds.lookup("id", [43])["name"].to_pylist() == [f"{name} 3"]

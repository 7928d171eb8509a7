"""Dictionaries that are kept between lookups: never more than their bound, never another file's."""

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
from zonebloom.sbbf.numpy_budget import NUMPY

LEAF = LeafType(pa.int64(), INT64, 8, False)


def page(values: np.ndarray) -> np.ndarray:
    """A dictionary page, out of a file of pyarrow's."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": values}), sink, compression="none")
    data = sink.getvalue()
    chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    return np.frombuffer(data, np.uint8)[chunk.dictionary_page_offset : chunk.data_page_offset]


def test_the_least_used_goes_first() -> None:
    made = [Dictionary(LEAF, 0, page(np.arange(100) + 1000 * i)) for i in range(3)]
    assert [one.num_bytes for one in made] == [800] * 3
    kept = DictionaryCache(max_bytes=2 * 800)
    for number in (0, 1, 0, 2):
        assert kept.get(number, lambda number=number: made[number]) is made[number]
    assert kept.num_bytes == 2 * 800
    read: list[int] = []
    for number in (0, 2, 1):
        kept.get(number, lambda number=number: read.append(number) or made[number])
    assert read == [1]
    # Without a name nothing is kept.
    assert kept.get(None, lambda: made[0]) is made[0]
    assert kept.num_bytes == 2 * 800


def test_values_of_a_file_that_took_the_place_of_another(tmp_path: Path) -> None:
    NUMPY.end()
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

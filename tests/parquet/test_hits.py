"""Test the reader of few keys against brute force, on columns of every kind that it reads."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.parquet_helpers import SCALARS, File, same, sample, sliced, some_rows, written
from support.seams import set_constant

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet import hit_reader
from zonebloom.parquet.hit_reader import HitReader, can_read
from zonebloom.parquet.key_tests import KeySet
from zonebloom.values.probe import byte_forms

ROWS = 1200
KEYS = ["int64", "int32", "uint64", "string", "binary", "fixed_size_binary[16]"]
OTHERS = [name for name, kind in SCALARS.items() if not pa.types.is_dictionary(kind)]


def read_hits(
    table: pa.Table, data: bytes, num_keys: int, rng: random.Random
) -> tuple[np.ndarray, list[pa.Array] | None, list[int]] | None:
    """Read rows by keys of the first column. Return them with the rows that brute force finds."""
    file = File(data)
    rows = some_rows(table.num_rows, rng, max_ranges=3)
    chunks = file.leaves(0, file.indexed, range(table.num_columns))
    if 0 not in chunks:
        return None
    keys = [table.column(0)[rng.randrange(table.num_rows)] for _ in range(num_keys)]
    keys = [key for key in keys if key.is_valid]
    forms = [form for key in keys for form in byte_forms(table.column(0).type, key)]
    wanted = {key.as_py() for key in keys}
    values = table.column(0).to_pylist()
    expected = [i for start, stop in rows for i in range(start, stop) if values[i] in wanted]
    read = [chunk for chunk in chunks.values() if can_read([chunk])]
    found = file.hits(read, KeySet(chunks[0].leaf, forms), rows)
    return None if found is None else (*found, expected)


@given(
    seed=st.integers(0, 2**32),
    key=st.sampled_from(KEYS),
    others=st.lists(st.sampled_from(OTHERS), max_size=4),
    num_keys=st.sampled_from([1, 1, 2, 7, 80]),
    nulls=st.sampled_from([0.0, 0.15, 0.9]),
    dictionary=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(["none", "snappy"]),
)
def test_rows_are_those_of_brute_force(
    seed, key, others, num_keys, nulls, dictionary, version, codec
):
    rng = random.Random(seed)
    kinds = [SCALARS[name] for name in (key, *others)]
    columns = [sample(kind, ROWS, rng, nulls) for kind in kinds]
    table = pa.table(columns, names=[f"c{i}" for i in range(len(columns))])
    data = written(
        table,
        row_group_size=ROWS,
        use_dictionary=dictionary,
        data_page_version=version,
        compression=codec,
        dictionary_pagesize_limit=rng.choice([300, 1 << 20]),
    )
    result = read_hits(table, data, num_keys, rng)
    assert result is not None
    numbers, arrays, expected = result
    assert numbers.tolist() == expected and arrays is not None
    at_rows = RowRanges.from_rows(numbers)
    whole = pq.ParquetFile(pa.BufferReader(data)).read()
    decodable = [
        number
        for number, chunk in File(data).leaves(0, File(data).indexed, range(len(kinds))).items()
        if can_read([chunk])
    ]
    for number, values in zip(decodable if expected else [], arrays, strict=True):
        values.validate(full=True)
        stored = sliced(whole.column(number), at_rows)
        assert same(pa.chunked_array([values]), stored), kinds[number]


@pytest.mark.parametrize(
    "name, limit",
    [("_MAX_BYTES", 256), ("_MAX_VALUES", 64), ("_MAX_ROWS", 3)],
)
def test_what_exceeds_the_memory_is_left_to_others(monkeypatch, name, limit):
    set_constant(monkeypatch, hit_reader, name, limit)
    set_constant(monkeypatch, hit_reader, "_SCRATCH", hit_reader._Scratch())
    rng = random.Random(0)
    table = pa.table({"k": pa.array(np.arange(ROWS) % 9), "s": [f"{i:0200}" for i in range(ROWS)]})
    data = written(table, row_group_size=ROWS, use_dictionary=False)
    results = [read_hits(table, data, num_keys, rng) for num_keys in (1, 2, 3) for _ in range(9)]
    are_left = None in results
    for result in results:
        if result is not None:
            numbers, values, expected = result
            are_left |= values is None
            assert numbers.tolist() == expected
    assert are_left


def test_an_empty_dictionary_is_left_to_others(tmp_path):
    """A column of nulls has no entry, and another one ends its dictionary before its last page."""
    texts = [f"{number:030}" for number in range(3000)]
    columns = {"k": range(3000), "none": pa.nulls(3000, pa.string()), "text": texts}
    data = written(
        pa.table(columns),
        row_group_size=3000,
        use_dictionary=["none", "text"],
        dictionary_pagesize_limit=2048,
    )
    file = File(data)
    chunks = list(file.leaves(0, file.indexed, range(3)).values())
    reader = HitReader(["k", "none", "text"], chunks)
    (tmp_path / "a.parquet").write_bytes(data)
    with (tmp_path / "a.parquet").open("rb") as opened:
        for key in (5, 2990, 6, 2991):
            keys = KeySet(chunks[0].leaf, byte_forms(pa.int64(), pa.scalar(key)))
            file.handle = opened.fileno()
            found = reader.read(file, keys, RowRanges([(0, 3000)]))
            if found is not None and found[1] is not None:
                assert [values.to_pylist() for values in found[1]] == [[key], [None], [texts[key]]]

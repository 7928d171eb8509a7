"""Test lookups in pages against brute force, on columns of every kind that kernels read."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from support.parquet_helpers import SCALARS, File, same, sample, sliced, some_rows, written

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet.key_tests import KeySet
from zonebloom.values.probe import byte_forms

ROWS = 1200
KEYS = ["int64", "int32", "uint64", "string", "binary", "fixed_size_binary[16]"]
OTHERS = [name for name, kind in SCALARS.items() if not pa.types.is_dictionary(kind)]


def read_hits(
    table: pa.Table, data: bytes, num_keys: int, rng: random.Random
) -> tuple[np.ndarray, list[pa.Array], list[int]]:
    """Read rows by keys of the first column. Return them with the rows that brute force finds."""
    file = File(data)
    rows = some_rows(table.num_rows, rng, max_ranges=3)
    chunks = file.leaves(0, file.indexed, range(table.num_columns))
    keys = [table.column(0)[rng.randrange(table.num_rows)] for _ in range(num_keys)]
    keys = [key for key in keys if key.is_valid]
    forms = [form for key in keys for form in byte_forms(table.column(0).type, key)]
    wanted = {key.as_py() for key in keys}
    values = table.column(0).to_pylist()
    expected = [i for start, stop in rows for i in range(start, stop) if values[i] in wanted]
    return *file.hits([*chunks.values()], KeySet(chunks[0].leaf, forms), rows), expected


@given(
    seed=st.integers(0, 2**32),
    key=st.sampled_from(KEYS),
    others=st.lists(st.sampled_from(OTHERS), max_size=4),
    num_keys=st.sampled_from([1, 1, 2, 7, 80]),
    nulls=st.sampled_from([0.0, 0.15, 0.9]),
    dictionary=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(["none", "snappy", "zstd"]),
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
    numbers, arrays, expected = read_hits(table, data, num_keys, rng)
    assert numbers.tolist() == expected
    at_rows = RowRanges.from_rows(numbers)
    whole = pq.ParquetFile(pa.BufferReader(data)).read()
    decodable = File(data).leaves(0, File(data).indexed, range(len(kinds)))
    for number, values in zip(decodable, arrays, strict=True):
        values.validate(full=True)
        stored = sliced(whole.column(number), at_rows)
        assert same(pa.chunked_array([values]), stored), kinds[number]

"""Test that files of other writers are read like files of pyarrow."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import cases
from support.parquet_helpers import TYPES, check_file, sample
from support.parquet_writers import by_arro3, by_datafusion, by_duckdb, by_polars, by_pyarrow

from zonebloom import RowRanges

ROWS = 3000
# The numbers of the codecs whose pages the kernels decode: none, Snappy, Gzip, Zstandard and LZ4.
CODECS = (0, 1, 2, 6, 7)


def table() -> pa.Table:
    rng = random.Random(0)
    moments = [dt.datetime(2024, 1, 1) + dt.timedelta(seconds=i) for i in range(ROWS)]
    return pa.table(
        {
            "id": pa.array(rng.sample(range(1 << 40), ROWS)),
            "few": sample(pa.int32(), ROWS, rng),
            "s": pa.array([f"{rng.getrandbits(128):032x}" for _ in range(ROWS)]),
            "city": pa.array([rng.choice(["Paris", "Rome", None]) for _ in range(ROWS)]),
            "x": sample(pa.float64(), ROWS, rng),
            "ok": sample(pa.bool_(), ROWS, rng),
            "at": pa.array(moments, pa.timestamp("us")),
            "day": sample(pa.date32(), ROWS, rng),
            "price": sample(pa.decimal128(12, 2), ROWS, rng),
            "raw": sample(pa.binary(), ROWS, rng),
            "tags": sample(pa.list_(pa.string()), ROWS, rng),
            "point": sample(pa.struct([("a", pa.int32()), ("b", pa.string())]), ROWS, rng),
            "none": pa.nulls(ROWS, pa.int64()),
        }
    )


def test_files_of_spark_are_read(spark, tmp_path):
    pq.write_table(table(), tmp_path / "data.parquet")
    frame = spark.read.parquet(str(tmp_path / "data.parquet"))
    for version, codec in (("v1", "snappy"), ("v2", "zstd")):
        out = tmp_path / version
        writer = frame.coalesce(1).write.option("compression", codec)
        writer = writer.option("parquet.page.row.count.limit", 200)
        writer = writer.option("parquet.block.size", 64 << 10)
        writer = writer.option("parquet.writer.version", version)
        writer.parquet(str(out))
        (path,) = out.glob("*.parquet")
        file = check_file(path.read_bytes(), tries=3)
        assert file.footer.num_rows == ROWS
        assert file.footer.row_groups[0].chunks[0].index_bytes


def by_pyarrow_with_int96(table: pa.Table, path: Path, rng: random.Random) -> None:
    by_pyarrow(table, path, rng, use_deprecated_int96_timestamps=rng.random() < 0.3)


# The writers, with the types that they cannot write, or whose values pyarrow cannot read back.
WRITERS: dict[Callable[..., None], tuple[str, ...]] = {
    by_pyarrow_with_int96: (),
    by_polars: ("decimal256", "fixed_size_list"),
    by_duckdb: ("halffloat", "decimal256", "fixed_size_list"),
    by_datafusion: ("dictionary", "struct<a: list"),
    by_arro3: ("dictionary", "struct<a: list"),
}


def generated(kind: pa.DataType, rows: int, rng: random.Random) -> pa.ChunkedArray:
    """Return values at random or in runs, few or many distinct ones, with any share of nulls."""
    pieces = []
    while rows:
        values = sample(kind, rng.randint(1, rows), rng, rng.choice([0, 0, 0.05, 0.5, 0.95, 1]))
        if rng.random() < 0.3:
            single_values = [values.slice(i, 1) for i in range(min(len(values), 5))]
            runs = [[rng.choice(single_values)] * rng.choice([1, 3, 30]) for _ in range(5)]
            values = pa.concat_arrays([value for run in runs for value in run][: len(values)])
        pieces.append(values)
        rows -= len(values)
    return pa.chunked_array(pieces, kind)


@pytest.mark.parametrize("write", WRITERS)
@settings(max_examples=cases(1000, 20))
@given(seed=st.integers(0, 1 << 40), rows=st.integers(1, 1500))
def test_random_files_of_all_writers_are_read(
    tmp_path_factory, write: Callable[..., None], seed: int, rows: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    rng = random.Random(seed)
    names = [name for name in TYPES if not any(word in name for word in WRITERS[write])]
    kinds = {f"c{i}": rng.choice(names) for i in range(rng.randint(1, 4))}
    fields, columns = [], []
    for name, kind in kinds.items():
        columns.append(generated(TYPES[kind], rows, rng))
        is_optional = columns[-1].null_count > 0 or rng.random() < 0.5
        fields.append(pa.field(name, TYPES[kind], is_optional))
    path = folder / "generated.parquet"
    write(pa.Table.from_arrays(columns, schema=pa.schema(fields)), path, rng)
    check_generated(path.read_bytes(), kinds, seed)


def check_generated(data: bytes, kinds: dict[str, Any], seed: int) -> None:
    file = check_file(data, seed, tries=1)
    for number, group in enumerate(file.footer.row_groups):
        every = RowRanges([(0, group.num_rows)])
        decoded = file.rows_by_kernels(number, every, file.walked, range(len(kinds)))
        for field, kind in enumerate(kinds.values()):
            (chunk, *_) = [group.chunks[leaf] for leaf in file.footer.schema.field_leaves[field]]
            if kind in ("int64", "string", "double", "bool") and chunk.codec in CODECS:
                assert field in decoded, f"{kind} is left to pyarrow"

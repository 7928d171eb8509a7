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
from helpers import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet.parquet_helpers import SCALARS, check_file, sample

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet.leaf_type import CODECS

ROWS = 3000


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


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "data.parquet"
    pq.write_table(table(), path)
    return path


def check_folder(folder: Path) -> int:
    """Check all files of a folder. Return the number of chunks that have an OffsetIndex."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.parquet"))
    assert files
    indexed = 0
    rows = 0
    for path in files:
        file = check_file(path.read_bytes(), tries=3)
        rows += file.footer.num_rows
        groups = file.footer.row_groups
        indexed += sum(chunk.index_bytes > 0 for group in groups for chunk in group.chunks)
    assert rows == ROWS
    return indexed


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd", "lz4", "gzip", "brotli"])
def test_files_of_polars_are_read(original, tmp_path, codec):
    pl = pytest.importorskip("polars")
    pl.read_parquet(original).write_parquet(
        tmp_path / "a.parquet", compression=codec, row_group_size=1000, data_page_size=4096
    )
    check_folder(tmp_path)


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd", "gzip", "brotli", "lz4_raw"])
def test_files_of_duckdb_are_read(original, tmp_path, codec, version):
    duckdb = pytest.importorskip("duckdb")
    duckdb.sql(f"select * from '{original}'").query(
        "t",
        f"copy t to '{tmp_path / 'a.parquet'}' "
        f"(format parquet, codec {codec}, row_group_size 2048, parquet_version {version})",
    )
    check_folder(tmp_path)


def test_files_of_datafusion_are_read(original, tmp_path):
    datafusion = pytest.importorskip("datafusion")
    context = datafusion.SessionContext()
    context.sql("set datafusion.execution.parquet.data_page_row_count_limit = 200")
    context.sql("set datafusion.execution.parquet.write_batch_size = 100")
    context.sql("set datafusion.execution.parquet.max_row_group_size = 1000")
    context.read_parquet(str(original)).write_parquet(str(tmp_path / "out"))
    assert check_folder(tmp_path / "out")


@pytest.mark.parametrize("version", ["parquet_1_0", "parquet_2_0"])
@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd(3)", "gzip(6)", "lz4_raw"])
def test_files_of_arro3_are_read(tmp_path, codec, version):
    arro3 = pytest.importorskip("arro3.io")
    arro3.write_parquet(
        table(),
        str(tmp_path / "a.parquet"),
        compression=codec,
        writer_version=version,
        max_row_group_size=1000,
        data_page_row_count_limit=200,
        write_batch_size=100,
    )
    assert check_folder(tmp_path)


def test_files_of_spark_are_read(spark, original, tmp_path):
    frame = spark.read.parquet(str(original))
    for version, codec in (("v1", "snappy"), ("v2", "zstd")):
        out = tmp_path / version
        writer = frame.coalesce(1).write.option("compression", codec)
        writer = writer.option("parquet.page.row.count.limit", 200)
        writer = writer.option("parquet.block.size", 64 << 10)
        writer = writer.option("parquet.writer.version", version)
        writer.parquet(str(out))
        assert check_folder(out)


Write = Callable[[pa.Table, Path, random.Random], None]

NAMED = ["uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"]
RUST_CODECS = ["uncompressed", "snappy", "gzip(6)", "brotli(3)", "zstd(3)", "lz4_raw"]


def _encoding(kind: pa.DataType, rng: random.Random) -> str:
    """Return a random encoding that is defined for a type."""
    is_type = pa.types
    if is_type.is_boolean(kind):
        return rng.choice(["PLAIN", "RLE"])
    if is_type.is_float32(kind) or is_type.is_float64(kind):
        return rng.choice(["PLAIN", "BYTE_STREAM_SPLIT"])
    if is_type.is_integer(kind) or is_type.is_temporal(kind):
        return rng.choice(["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
    if is_type.is_fixed_size_binary(kind):
        return rng.choice(["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"])
    # pyarrow reads Arrow dictionaries only from pages with dictionary or PLAIN encoding.
    if not is_type.is_dictionary(kind) and ("string" in str(kind) or "binary" in str(kind)):
        return rng.choice(["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
    return "PLAIN"


def by_pyarrow(table: pa.Table, path: Path, rng: random.Random) -> None:
    names = [name for name in table.column_names if rng.random() < 0.5]
    encodings = {
        name: _encoding(table.schema.field(name).type, rng)
        for name in table.column_names
        if name not in names
    }
    pq.write_table(
        table,
        path,
        compression=rng.choice(["none", *NAMED[1:]]),
        use_dictionary=names,
        column_encoding=encodings or None,
        data_page_version=rng.choice(["1.0", "2.0"]),
        # With smaller pages, pyarrow loses rows of its own files.
        data_page_size=rng.choice([256, 4096, 1 << 20]),
        max_rows_per_page=rng.choice([100, 1000]),
        write_batch_size=rng.choice([7, 50, 1000]),
        row_group_size=rng.choice([300, 1000]),
        dictionary_pagesize_limit=rng.choice([64, 1000, 1 << 20]),
        write_page_index=rng.random() < 0.5,
        write_page_checksum=rng.random() < 0.2,
        store_schema=rng.random() < 0.8,
        store_decimal_as_integer=rng.random() < 0.5,
        use_deprecated_int96_timestamps=not encodings and rng.random() < 0.3,
    )


def by_polars(table: pa.Table, path: Path, rng: random.Random) -> None:
    import polars as pl

    pl.DataFrame(table).write_parquet(
        path,
        compression=rng.choice(NAMED),
        row_group_size=rng.choice([200, 1000]),
        data_page_size=rng.choice([256, 4096, 1 << 20]),
    )


def by_duckdb(table: pa.Table, path: Path, rng: random.Random) -> None:
    import duckdb

    codec = rng.choice([*NAMED, "lz4_raw"])
    options = f"codec {codec}, parquet_version {rng.choice(['V1', 'V2'])}"
    if rng.random() < 0.3:
        options += ", dictionary_size_limit 1"
    duckdb.from_arrow(table).query("t", f"copy t to '{path}' (format parquet, {options})")


def by_datafusion(table: pa.Table, path: Path, rng: random.Random) -> None:
    import datafusion

    options = datafusion.ParquetWriterOptions(
        compression=rng.choice(RUST_CODECS),
        writer_version=rng.choice(["1.0", "2.0"]),
        dictionary_enabled=rng.random() < 0.5,
        dictionary_page_size_limit=rng.choice([64, 1 << 20]),
        data_page_row_count_limit=rng.choice([50, 1000]),
        write_batch_size=rng.choice([10, 100]),
        max_row_group_size=rng.choice([200, 1000]),
    )
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1))
    context.from_arrow(table).write_parquet_with_options(str(path), options)


def by_arro3(table: pa.Table, path: Path, rng: random.Random) -> None:
    import arro3.io

    plain = [name for name in table.column_names if rng.random() < 0.5]
    arro3.io.write_parquet(
        table,
        str(path),
        compression=rng.choice(RUST_CODECS),
        writer_version=rng.choice(["parquet_1_0", "parquet_2_0"]),
        column_dictionary_enabled={name: False for name in plain},
        column_encoding={name: _encoding(table.schema.field(name).type, rng) for name in plain},
        dictionary_page_size_limit=rng.choice([64, 1 << 20]),
        data_page_row_count_limit=rng.choice([50, 1000]),
        write_batch_size=rng.choice([10, 100]),
        max_row_group_size=rng.choice([200, 1000]),
    )


# The writers, with the types that they cannot write, or whose values pyarrow cannot read back.
WRITERS: dict[Write, tuple[str, ...]] = {
    by_pyarrow: (),
    by_polars: ("decimal256",),
    by_duckdb: ("halffloat", "decimal256"),
    by_datafusion: ("dictionary",),
    by_arro3: ("dictionary",),
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
@settings(max_examples=cases(1000, 8))
@given(seed=st.integers(0, 1 << 40), rows=st.integers(1, 1500))
def test_random_files_of_all_writers_are_read(
    tmp_path_factory, write: Write, seed: int, rows: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    rng = random.Random(seed)
    names = [name for name in SCALARS if not name.startswith(WRITERS[write])]
    kinds = {f"c{i}": rng.choice(names) for i in range(rng.randint(1, 4))}
    fields, columns = [], []
    for name, kind in kinds.items():
        columns.append(generated(SCALARS[kind], rows, rng))
        is_optional = columns[-1].null_count > 0 or rng.random() < 0.5
        fields.append(pa.field(name, SCALARS[kind], is_optional))
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

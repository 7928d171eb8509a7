"""Files by other writers are read as files by pyarrow are."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from storage.parquet.parquet_helpers import check_file, sample

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


def check_folder(path: Path) -> int:
    """Check every file of a folder; how many chunks have an OffsetIndex."""
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    assert files
    indexed = 0
    rows = 0
    for each in files:
        file = check_file(each.read_bytes(), tries=3)
        rows += file.footer.num_rows
        groups = file.footer.row_groups
        indexed += sum(chunk.index_bytes > 0 for group in groups for chunk in group.chunks)
    assert rows == ROWS
    return indexed


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd", "lz4", "gzip", "brotli"])
def test_polars(original, tmp_path, codec):
    pl = pytest.importorskip("polars")
    pl.read_parquet(original).write_parquet(
        tmp_path / "a.parquet", compression=codec, row_group_size=1000, data_page_size=4096
    )
    check_folder(tmp_path)


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd", "gzip", "brotli", "lz4_raw"])
def test_duckdb(original, tmp_path, codec, version):
    duckdb = pytest.importorskip("duckdb")
    duckdb.sql(f"select * from '{original}'").query(
        "t",
        f"copy t to '{tmp_path / 'a.parquet'}' "
        f"(format parquet, codec {codec}, row_group_size 2048, parquet_version {version})",
    )
    check_folder(tmp_path)


def test_datafusion(original, tmp_path):
    datafusion = pytest.importorskip("datafusion")
    context = datafusion.SessionContext()
    context.sql("set datafusion.execution.parquet.data_page_row_count_limit = 200")
    context.sql("set datafusion.execution.parquet.write_batch_size = 100")
    context.sql("set datafusion.execution.parquet.max_row_group_size = 1000")
    context.read_parquet(str(original)).write_parquet(str(tmp_path / "out"))
    assert check_folder(tmp_path / "out")


@pytest.mark.parametrize("version", ["parquet_1_0", "parquet_2_0"])
@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd(3)", "gzip(6)", "lz4_raw"])
def test_arro3(tmp_path, codec, version):
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


def test_spark(spark, original, tmp_path):
    frame = spark.read.parquet(str(original))
    for version, codec in (("v1", "snappy"), ("v2", "zstd")):
        out = tmp_path / version
        writer = frame.coalesce(1).write.option("compression", codec)
        writer = writer.option("parquet.page.row.count.limit", 200)
        writer = writer.option("parquet.block.size", 64 << 10)
        writer = writer.option("parquet.writer.version", version)
        writer.parquet(str(out))
        assert check_folder(out)

"""Scans return every Parquet type as ``spark.read.parquet`` does."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import types as st

import zonebloom as zb
import zonebloom.spark as zs

DAY = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 1, 234567)
# Types and values that PyArrow writes.
ARROW = {
    "bool": (pa.bool_(), [True, None, False]),
    "int8": (pa.int8(), [-128, None, 127]),
    "int16": (pa.int16(), [-1, None, 1]),
    "int32": (pa.int32(), [-1, None, 1]),
    "int64": (pa.int64(), [-(2**63), None, 2**63 - 1]),
    "uint8": (pa.uint8(), [0, None, 255]),
    "uint16": (pa.uint16(), [0, None, 65535]),
    "uint32": (pa.uint32(), [0, None, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, None, 2**64 - 1]),
    "float": (pa.float32(), [-0.0, None, float("nan")]),
    "double": (pa.float64(), [float("inf"), None, 1.5]),
    "string": (pa.string(), ["", None, "ä\0b"]),
    "large": (pa.large_string(), ["", None, "ä"]),
    "view": (pa.string_view(), ["", None, "a long text that is not inlined"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]),
    "binary": (pa.binary(), [b"", None, b"\xff"]),
    "large_binary": (pa.large_binary(), [b"", None, b"\xff"]),
    "fixed": (pa.binary(2), [b"ab", None, b"cd"]),
    "date32": (pa.date32(), [DAY, None, datetime.date(1, 1, 1)]),
    "date64": (pa.date64(), [DAY, None, DAY]),
    "s": (pa.timestamp("s", "UTC"), [MOMENT.replace(microsecond=0), None, MOMENT]),
    "ms": (pa.timestamp("ms", "Europe/Berlin"), [MOMENT.replace(microsecond=5000), None, MOMENT]),
    "us": (pa.timestamp("us", "UTC"), [MOMENT, None, MOMENT]),
    "ntz": (pa.timestamp("us"), [MOMENT, None, MOMENT]),
    "decimal9": (pa.decimal128(9, 2), [Decimal("1.25"), None, Decimal("-9999999.99")]),
    "decimal38": (pa.decimal128(38, 10), [Decimal("1.5"), None, Decimal(10) ** 27]),
    "list": (pa.list_(pa.uint8()), [[1, None], None, []]),
    "large_list": (pa.large_list(pa.string_view()), [["a"], None, []]),
    "fixed_list": (pa.list_(pa.int16(), 2), [[1, 2], [3, 4], [5, 6]]),
    "map": (pa.map_(pa.large_string(), pa.uint16()), [[("a", 1)], None, []]),
    "struct": (
        pa.struct([("a", pa.uint32()), ("b", pa.list_(pa.struct([("c", pa.date32())])))]),
        [{"a": 1, "b": [{"c": DAY}, None]}, None, {"a": None, "b": None}],
    ),
}


def same(spark, path, columns=None):
    """Return types and rows of a scan, and those of Spark's own read."""
    wanted = spark.read.parquet(path)
    result = zs.scan(spark, path, columns=columns)
    if columns is not None:
        wanted = wanted.select(*columns)
    assert result.schema.simpleString() == wanted.schema.simpleString()
    assert [f.dataType for f in result.schema] == [f.dataType for f in wanted.schema]
    assert sorted(map(repr, result.collect())) == sorted(map(repr, wanted.collect()))
    return result


def array(kind, values):
    if pa.types.is_timestamp(kind):
        values_in_zone = pa.array(values, pa.timestamp("us", kind.tz))
        return values_in_zone.cast(kind, safe=False)
    return pa.array(values, kind)


def test_types_written_by_pyarrow_are_read_as_by_spark(spark, tmp_path):
    columns = {name: array(kind, values) for name, (kind, values) in ARROW.items()}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", coerce_timestamps=None)
    same(spark, str(tmp_path))


def test_types_that_spark_cannot_read_are_read(spark, tmp_path):
    table = pa.table(
        {
            "half": pa.array([1.5, None], pa.float16()),
            "uuid": pa.array([uuid.UUID(int=5).bytes, None], pa.uuid()),
            "nothing": pa.nulls(2),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    result = zs.scan(spark, str(tmp_path), columns=["half", "uuid", "nothing"])
    assert [f.dataType.simpleString() for f in result.schema] == ["float", "binary", "void"]
    rows = [tuple(row) for row in result.collect()]
    assert rows == [(1.5, uuid.UUID(int=5).bytes, None), (None, None, None)]


def test_types_written_by_spark_are_read_as_by_spark(spark, tmp_path):
    path = str(tmp_path / "t")
    frame = spark.sql("""
        SELECT id, CAST(id AS tinyint) AS byte, CAST(id AS decimal(20, 3)) AS dec,
            CAST(id AS string) AS text, CAST(id AS string) COLLATE UTF8_LCASE AS nocase,
            CAST(CAST(id AS string) AS binary) AS raw, DATE'2024-01-01' + CAST(id AS int) AS day,
            timestamp_micros(id * 1000003) AS moment, TIMESTAMP_NTZ'2024-01-01 00:00:01' AS ntz,
            make_dt_interval(CAST(id AS int), 1, 2, 3.5) AS span, array(id, NULL) AS list,
            map(CAST(id AS string), id) AS map, named_struct('a', id, 'b', array('x')) AS st
        FROM range(50)""")
    frame.write.parquet(path)
    same(spark, path)


def test_vectors_are_read_as_by_spark(spark, tmp_path):
    vector = Vectors.dense([1.0, 2.0])
    schema = st.StructType(
        [
            st.StructField("v", VectorUDT(), nullable=False),
            st.StructField("vs", st.ArrayType(VectorUDT(), containsNull=False)),
        ]
    )
    frame = spark.createDataFrame([(vector, [vector, Vectors.sparse(3, {1: 0.5})])], schema)
    frame.write.parquet(str(tmp_path / "lake"))
    same(spark, str(tmp_path / "lake"))


def test_int96_timestamps_are_read_as_by_spark(spark, conf, tmp_path):
    path = str(tmp_path / "t")
    conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    conf.set("spark.sql.parquet.int96RebaseModeInWrite", "CORRECTED")
    spark.sql("""SELECT id, CASE id WHEN 0 THEN TIMESTAMP'1650-01-01 00:00:00.123456Z'
        WHEN 1 THEN TIMESTAMP'2500-07-01 00:00:00Z' WHEN 2 THEN NULL
        ELSE timestamp_micros(id * 1234567890) END AS moment FROM range(40)""").write.parquet(path)
    result = same(spark, path)
    assert result.schema["moment"].dataType == st.TimestampType()
    text = "moment = TIMESTAMP'2500-07-01 00:00:00Z' AND id = 1"
    assert zs.scan(spark, path, text).count() == 1


def test_times_of_day_are_read_as_by_spark(spark, conf, tmp_path):
    table = pa.table({"at": pa.array([datetime.time(1, 2, 3, 4), None], pa.time64("us"))})
    pq.write_table(table, tmp_path / "a.parquet")
    conf.set("spark.sql.timeType.enabled", "true")
    same(spark, str(tmp_path))


def test_nanoseconds_are_refused_but_may_be_left_out(spark, tmp_path):
    table = pa.table({"id": [1], "at": pa.array([1], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(AnalysisException, match=r"column 'at' is timestamp\[ns\].*leave it out"):
        zs.scan(spark, str(tmp_path))
    assert zs.scan(spark, str(tmp_path), columns=["id"]).collect() == [(1,)]


def test_year_month_intervals_are_refused(spark, tmp_path):
    path = str(tmp_path / "t")
    spark.sql("SELECT 1 AS id, INTERVAL '2' YEAR AS span").write.parquet(path)
    with pytest.raises(AnalysisException, match="'span' is interval year"):
        zs.scan(spark, path)


def test_rows_of_some_zones_keep_their_nested_values(spark, tmp_path):
    nested = {name: array(*ARROW[name]) for name in ("struct", "map", "fixed_list")}
    part = pa.table(nested)
    rows = pa.concat_tables([part] * 300).append_column("id", pa.array(range(900)))
    options = {"write_page_index": True, "max_rows_per_page": 50, "row_group_size": 400}
    pq.write_table(rows, tmp_path / "a.parquet", **options)
    zb.dataset(tmp_path).create_scalar_index("id", number_of_items=7, spark=False)
    whole = spark.read.parquet(str(tmp_path))
    for text in ("id IN (0, 100, 101, 530, 899)", "id > 397 AND id < 407"):
        result = sorted(map(repr, zs.scan(spark, tmp_path, text).collect()))
        assert result == sorted(map(repr, whole.where(text).collect()))


def test_values_beyond_the_type_are_refused(spark, tmp_path):
    table = pa.table({"at": pa.array([2**62], pa.timestamp("ms", "UTC"))})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(Exception, match=r"SchemaMismatch: .*do not fit"):
        zs.scan(spark, tmp_path).collect()

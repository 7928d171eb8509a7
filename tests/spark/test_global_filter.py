"""Spark expressions give the same result for every key as the filter itself."""

from __future__ import annotations

import datetime
import random
from functools import reduce

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from support.spark_data import settings

from zonebloom.sbbf.filter import Sbbf
from zonebloom.spark.joins.global_filter import filter_mismatch_reason, keep_possible_matches

KEY_SCHEMA = (
    "byte tinyint, short smallint, int int, long bigint, string string, binary binary, "
    "date date, instant timestamp, local timestamp_ntz"
)
DAY = datetime.date(2024, 3, 1)
INSTANT = datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.UTC)
COUNT = 600
SHORTS = (-32_768, 32_767, -1, 1, 127, 128)


def key_columns(seed):
    """Return keys of many types. About half of them are in a filter of the same seed."""
    dice = random.Random(seed)

    def some(make, extra=()):
        keys = [make(dice.randrange(400)) for _ in range(COUNT - 40 - len(extra))]
        return [*keys, *([None] * 40), *extra]

    text = [chr(97 + i % 26) * i for i in range(70)] + ["ä", "城" * 12]
    return {
        "byte": pa.array(some(lambda i: i % 256 - 128), pa.int8()),
        "short": pa.array(some(lambda i: i * 160 - 32_000, SHORTS), pa.int16()),
        "int": pa.array(some(lambda i: i - 200, (-(2**31), 2**31 - 1, 70_000)), pa.int32()),
        "long": pa.array(
            some(
                lambda i: i - 200, (-(2**63), 2**63 - 1, 2**31, 2**32 - 7, 2**32, -(2**31) - 1, 256)
            ),
            pa.int64(),
        ),
        "string": pa.array(some(lambda i: f"n{i}", text), pa.string()),
        "binary": pa.array(some(lambda i: b"\0" * (i % 40) + bytes([i % 256])), pa.binary()),
        "date": pa.array(some(lambda i: DAY + datetime.timedelta(i - 200)), pa.date32()),
        "instant": pa.array(
            some(lambda i: INSTANT + datetime.timedelta(seconds=i, microseconds=i)),
            pa.timestamp("us", "UTC"),
        ),
        "local": pa.array(
            some(lambda i: datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=i)),
            pa.timestamp("us"),
        ),
    }


STORED = {
    "byte": [pa.int32(), pa.int64()],
    "short": [pa.int32(), pa.int64()],
    "int": [pa.int32(), pa.int64()],
    "long": [pa.int32(), pa.int64()],
    "string": [pa.string(), pa.dictionary(pa.int32(), pa.string())],
    "binary": [pa.binary()],
    "date": [pa.date32()],
    "instant": [pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")],
    "local": [pa.timestamp("us")],
}


def as_stored(value, stored):
    """Return a key as a value of the filter's type, or None if it is out of range."""
    if value is None or not pa.types.is_integer(stored):
        return value
    beyond = 2 ** (stored.bit_width - 1)
    return value if -beyond <= value < beyond else None


@pytest.mark.parametrize(("ansi", "codegen"), [("true", "CODEGEN_ONLY"), ("false", "NO_CODEGEN")])
def test_every_key_gets_the_result_of_the_filter(spark, ansi, codegen):
    columns = key_columns("expressions" + ansi)
    frame = spark.createDataFrame(
        pa.table({**columns, "row": range(COUNT)}), f"{KEY_SCHEMA}, row bigint"
    )
    dice = np.random.default_rng(5)
    matches, wanted = [], {}
    for name, types in STORED.items():
        keys = columns[name].to_pylist()
        for stored in types:
            # The numbers of blocks are one, a power of two, and another number.
            sbbf = Sbbf.from_bytes(bytes(32 * int(dice.choice([1, 16, 21, 77]))))
            stored_keys = [as_stored(key, stored) for key in keys]
            inserted_keys = [key for key in stored_keys if key is not None and dice.random() < 0.4]
            values = stored.value_type if pa.types.is_dictionary(stored) else stored
            sbbf.insert(pa.array(inserted_keys, values))
            exact = pa.array(stored_keys, values)
            assert filter_mismatch_reason(frame.schema[name], stored) is None
            label = f"{name} in {stored}"
            wanted[label] = sbbf.check(exact).tolist()
            if codegen == "NO_CODEGEN" and len(wanted) % 2:
                continue
            kept_rows = keep_possible_matches(frame, frame.schema[name], sbbf, stored)
            matches.append(kept_rows.select(sf.lit(label).alias("label"), "row"))
    with settings(
        spark,
        **{
            "spark.sql.ansi.enabled": ansi,
            "spark.sql.codegen.factoryMode": codegen,
            "spark.sql.codegen.wholeStage": str(codegen != "NO_CODEGEN").lower(),
        },
    ):
        results = reduce(DataFrame.union, matches).collect()
    for label in {row.label for row in results}:
        passing = {row.row for row in results if row.label == label}
        assert passing == set(np.flatnonzero(wanted[label]).tolist()), label
    assert 0 < sum(map(sum, wanted.values())) < 0.9 * COUNT * len(wanted)


def test_a_large_filter_is_broadcast_in_pieces(spark):
    sbbf = Sbbf.from_bytes(bytes(64 << 20))
    inserted = range(0, 1_000, 7)
    sbbf.insert(pa.array(inserted))
    keys = spark.range(1_000)
    passing = keep_possible_matches(keys, keys.schema["id"], sbbf, pa.int64())
    assert {row.id for row in passing.collect()} >= set(inserted)
    assert passing.count() < 200


def test_user_defined_functions_do_not_replace_those_of_spark(spark):
    """A user's function with the name of a Spark function is not called instead."""
    sbbf = Sbbf(10)
    sbbf.insert(pa.array([3, 5]))
    names = ["xxhash64", "shiftleft", "shiftrightunsigned", "get"]
    for name in names:
        spark.udf.register(name, lambda *arguments: 7, "bigint")
    try:
        frame = spark.range(9)
        matches = keep_possible_matches(frame, frame.schema["id"], sbbf, pa.int64())
        assert [row.id for row in matches.collect()] == [3, 5]
    finally:
        for name in names:
            spark.sql(f"DROP TEMPORARY FUNCTION {name}")


def test_keys_of_the_old_calendar_pass(spark):
    """Files of old writers store other days for these keys, which Spark corrects."""
    frame = spark.sql("SELECT explode(array(DATE'1582-10-14', DATE'1582-10-15', NULL)) AS d")
    matches = keep_possible_matches(frame, frame.schema["d"], Sbbf(10), pa.date32())
    assert [str(row.d) for row in matches.collect()] == ["1582-10-14"]
    # Spark may show a time before 1900 as up to a day later.
    texts = "1899-12-31 23:59:59Z", "1900-01-02 00:29:19Z", "1902-01-01 00:00:00Z"
    listed = ", ".join(f"TIMESTAMP'{text}'" for text in texts)
    frame = spark.sql(f"SELECT explode(array({listed})) AS t")
    stored = pa.timestamp("us", "UTC")
    assert keep_possible_matches(frame, frame.schema["t"], Sbbf(10), stored).count() == 2


@pytest.mark.parametrize(
    ("key", "stored", "message"),
    [
        (st.DoubleType(), pa.float64(), "0.0 and -0.0"),
        (st.LongType(), pa.float64(), "0.0 and -0.0"),
        (st.StringType(), pa.int64(), "after a cast"),
        (st.LongType(), pa.string(), "after a cast"),
        (st.LongType(), pa.int8(), "so few values"),
        (st.ShortType(), pa.uint16(), "so few values"),
        (st.TimestampType(), pa.date32(), "after a cast"),
        (st.TimestampType(), pa.timestamp("us"), "after a cast"),
        (st.TimestampType(), pa.timestamp("ns", "UTC"), "microseconds"),
        (st.TimestampNTZType(), pa.timestamp("ms"), "other bytes"),
        (st.DateType(), pa.date64(), "other bytes"),
        (st.DecimalType(10, 2), pa.decimal128(10, 2), "other bytes"),
        (st.LongType(), pa.uint32(), "other bytes"),
        (st.DecimalType(20, 0), pa.uint64(), "other bytes"),
        (st.DecimalType(10, 0), pa.int32(), "after a cast"),
        (st.StringType("UTF8_LCASE"), pa.string(), "collation"),
        (st.StructType([]), pa.int64(), "after a cast"),
    ],
)
def test_unsupported_key_types_are_refused_with_a_reason(key, stored, message):
    assert message in filter_mismatch_reason(st.StructField("key", key), stored)

"""Arrow types as Spark's, and batches as the JVM takes them.

Types are those that ``spark.read.parquet`` gives a column, nullable throughout. Files written by
Spark carry its own schema, which says what Parquet cannot: collations, intervals, variants.

    uint8, uint16, uint32, uint64      short, integer, long, decimal(20,0)
    float16                            float
    large, view, dictionary strings    string
    large, view, fixed binary, UUID    binary
    date64                             date
    timestamp with a zone, INT96       timestamp
    timestamp without                  timestamp_ntz
    time                               time(6); needs spark.sql.timeType.enabled
    duration                           interval day to second
    large and fixed-size lists         array

Spark's time has microseconds. Nanoseconds are refused rather than cut, but in INT96, which
Spark's own writers use for microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as st

from zonebloom.errors import SchemaMismatch, UnsupportedType

_ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"
_PLAIN: list[tuple[Any, type[st.DataType]]] = [
    (pt.is_boolean, st.BooleanType),
    (pt.is_int8, st.ByteType),
    (pt.is_int16, st.ShortType),
    (pt.is_uint8, st.ShortType),
    (pt.is_int32, st.IntegerType),
    (pt.is_uint16, st.IntegerType),
    (pt.is_int64, st.LongType),
    (pt.is_uint32, st.LongType),
    (pt.is_float16, st.FloatType),
    (pt.is_float32, st.FloatType),
    (pt.is_float64, st.DoubleType),
    (pt.is_string, st.StringType),
    (pt.is_large_string, st.StringType),
    (pt.is_string_view, st.StringType),
    (pt.is_binary, st.BinaryType),
    (pt.is_large_binary, st.BinaryType),
    (pt.is_binary_view, st.BinaryType),
    (pt.is_fixed_size_binary, st.BinaryType),
    (pt.is_date, st.DateType),
    (pt.is_duration, st.DayTimeIntervalType),
]
# Casts of list views were seen to lose values; Parquet gives none.
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)


def spark_types(
    schema: pa.Schema, names: Sequence[str], known: Mapping[str, st.DataType]
) -> st.StructType:
    """The types ``spark.read.parquet`` shows for columns of an Arrow schema."""
    told = {**_told_by_spark(schema), **known}
    return st.StructType(
        [st.StructField(name, _of_column(schema.field(name), told.get(name))) for name in names]
    )


def opaque_columns(schema: pa.Schema, known: Mapping[str, st.DataType]) -> frozenset[str]:
    """Columns whose values Spark compares otherwise than their Arrow type suggests."""
    opaque = set()
    for name, told in {**_told_by_spark(schema), **known}.items():
        if name in schema.names:
            try:
                same = spark_type(schema.field(name).type, name).json() == told.json()
            except UnsupportedType:
                same = False
            if not same:
                opaque.add(name)
    return frozenset(opaque)


def _told_by_spark(schema: pa.Schema) -> dict[str, st.DataType]:
    """Types by column as Spark wrote them into a file, none in others."""
    text = (schema.metadata or {}).get(_ROW_METADATA)
    if text is None:
        return {}
    try:
        read = st.StructType.fromJson(json.loads(text))
    except Exception:  # noqa: BLE001 - as Spark itself: of an unreadable entry nothing is used
        return {}
    return {each.name: _nullable(each.dataType) for each in read}


def _of_column(field: pa.Field, told: st.DataType | None) -> st.DataType:
    if told is not None and isinstance(told, st.YearMonthIntervalType):
        raise UnsupportedType(
            f"column {field.name!r} is {told.simpleString()}, which no Python data source of "
            "Spark can give; leave it out with columns"
        )
    return spark_type(field.type, field.name) if told is None else told


def spark_type(arrow: pa.DataType, column: str) -> st.DataType:
    """The type ``spark.read.parquet`` shows for an Arrow type; the column is named in errors."""
    if isinstance(arrow, pa.BaseExtensionType):
        return spark_type(arrow.storage_type, column)
    if isinstance(arrow, pa.DictionaryType):
        return spark_type(arrow.value_type, column)
    for is_type, spark in _PLAIN:
        if is_type(arrow):
            return spark()
    if pt.is_null(arrow):
        return st.NullType()
    if pt.is_uint64(arrow):
        return st.DecimalType(20, 0)
    if pt.is_decimal(arrow) and arrow.precision <= 38 and 0 <= arrow.scale <= arrow.precision:
        return st.DecimalType(arrow.precision, arrow.scale)
    if pt.is_timestamp(arrow):
        if arrow.unit == "ns":
            raise UnsupportedType(
                f"column {column!r} is {arrow}, and Spark's timestamps have microseconds; leave "
                "it out with columns, or write it as timestamp[us]"
            )
        return st.TimestampNTZType() if arrow.tz is None else st.TimestampType()
    if pt.is_time(arrow) and arrow.unit != "ns":
        return st.TimeType()
    if isinstance(arrow, _LISTS):
        return st.ArrayType(spark_type(arrow.value_type, column), True)
    if isinstance(arrow, pa.MapType):
        key = spark_type(arrow.key_type, column)
        return st.MapType(key, spark_type(arrow.item_type, column), True)
    if isinstance(arrow, pa.StructType):
        return st.StructType(
            [st.StructField(each.name, spark_type(each.type, column)) for each in arrow]
        )
    raise UnsupportedType(
        f"column {column!r} is {arrow}, for which Spark has no type; leave it out with columns"
    )


def is_collated(kind: st.DataType) -> bool:
    """Whether texts of a type may be equal though their bytes are not."""
    collation = getattr(kind, "collation", None)
    return isinstance(kind, st.StringType) and collation not in (None, "UTF8_BINARY")


def _nullable(spark: st.DataType) -> st.DataType:
    """A type as a read shows it: anything may be null."""
    if isinstance(spark, st.ArrayType):
        return st.ArrayType(_nullable(spark.elementType), True)
    if isinstance(spark, st.MapType):
        return st.MapType(_nullable(spark.keyType), _nullable(spark.valueType), True)
    if isinstance(spark, st.StructType):
        return st.StructType([st.StructField(f.name, _nullable(f.dataType)) for f in spark])
    if isinstance(spark, st.UserDefinedType):
        return _nullable(spark.sqlType())
    return spark


def as_spark(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A batch with the very types of an Arrow schema of Spark's.

    One, or several where the text of one passes the 2 GiB an Arrow string array holds.
    """
    try:
        columns = [_cast(batch.column(each.name), each.type) for each in schema]
    except pa.ArrowException as error:
        # A batch of strings of 64-bit offsets may not fit into one of 32-bit ones.
        if batch.num_rows <= 1 or batch.nbytes < 1 << 31:
            raise SchemaMismatch(f"values do not fit Spark's types: {error}") from error
        half = batch.num_rows // 2
        yield from as_spark(batch.slice(0, half), schema)
        yield from as_spark(batch.slice(half), schema)
        return
    yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    found = values.type
    if found == target:
        return values
    # Nanoseconds come here from INT96 alone, and Spark's reader cuts its digits too.
    cuts = pt.is_timestamp(found) and pt.is_timestamp(target) and found.unit == "ns"
    return values.cast(target, safe=not cuts)

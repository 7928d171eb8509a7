"""Convert Arrow types to the Spark types of ``spark.read.parquet``, and batches for the JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as st

from zonebloom.errors import SchemaMismatch, UnsupportedType
from zonebloom.spark.versions import TIME_TYPE
from zonebloom.values.normal_types import hashed_type

# The collation that compares bytes, as Spark 3 does.
_BINARY = "UTF8_BINARY"
_ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"
_SIMPLE_TYPES: dict[pa.DataType, st.DataType] = {
    pa.null(): st.NullType(),
    pa.bool_(): st.BooleanType(),
    pa.int8(): st.ByteType(),
    **dict.fromkeys((pa.int16(), pa.uint8()), st.ShortType()),
    **dict.fromkeys((pa.int32(), pa.uint16()), st.IntegerType()),
    **dict.fromkeys((pa.int64(), pa.uint32()), st.LongType()),
    pa.uint64(): st.DecimalType(20, 0),
    **dict.fromkeys((pa.float16(), pa.float32()), st.FloatType()),
    pa.float64(): st.DoubleType(),
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), st.StringType()),
    **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), st.BinaryType()),
    **dict.fromkeys((pa.date32(), pa.date64()), st.DateType()),
}
INTEGER_TYPES = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
# List views are missing because their casts have lost values. Parquet files do not contain them.
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)


def spark_types(
    schema: pa.Schema, names: Sequence[str], known: Mapping[str, st.DataType]
) -> st.StructType:
    """Return the types that ``spark.read.parquet`` shows for columns of an Arrow schema."""
    types = {**_types_by_spark(schema), **known}
    for name in names:
        if isinstance(types.get(name), st.YearMonthIntervalType):
            raise UnsupportedType(
                f"column {name!r} is {types[name].simpleString()}, which no Python data source of "
                "Spark can return; leave it out with columns"
            )
        if name not in types:
            types[name] = spark_type(schema.field(name).type, name)
    return st.StructType([st.StructField(name, types[name]) for name in names])


def opaque_columns(schema: pa.Schema, known: Mapping[str, st.DataType]) -> frozenset[str]:
    """Return the columns whose Spark type differs from the one that their Arrow type suggests."""
    types = {**_types_by_spark(schema), **known}
    return frozenset(
        name
        for name, kind in types.items()
        if name in schema.names and type_name(schema.field(name).type) != kind.simpleString()
    )


def _types_by_spark(schema: pa.Schema) -> dict[str, st.DataType]:
    """Return the types by column that Spark stored in a file, empty for files of other writers."""
    text = (schema.metadata or {}).get(_ROW_METADATA)
    if text is None:
        return {}
    try:
        # Spark reads every column and field as nullable.
        spark_schema = st.StructType.fromJson(json.loads(text)).toNullable()
    except Exception:  # noqa: BLE001 - Spark ignores an unreadable entry too
        return {}
    return {field.name: field.dataType for field in spark_schema}


def spark_type(arrow: pa.DataType, column: str) -> st.DataType:
    """Return the type that ``spark.read.parquet`` shows for an Arrow type.

    Raise `UnsupportedType`, which names the column, if Spark has no such type.
    """
    arrow = hashed_type(arrow)
    if arrow in _SIMPLE_TYPES:
        return _SIMPLE_TYPES[arrow]
    if pt.is_fixed_size_binary(arrow):
        return st.BinaryType()
    if pt.is_duration(arrow):
        return st.DayTimeIntervalType()
    if pt.is_decimal(arrow) and arrow.precision <= 38 and 0 <= arrow.scale <= arrow.precision:
        return st.DecimalType(arrow.precision, arrow.scale)
    if pt.is_timestamp(arrow):
        if arrow.unit == "ns":
            raise UnsupportedType(
                f"column {column!r} is {arrow}, but Spark's timestamps have microseconds; leave "
                "it out with columns, or write it as timestamp[us]"
            )
        return st.TimestampNTZType() if arrow.tz is None else st.TimestampType()
    # Spark's time type has microseconds. Nanoseconds are refused, because they would be truncated.
    if pt.is_time(arrow) and arrow.unit != "ns" and TIME_TYPE is not None:
        return TIME_TYPE()
    if isinstance(arrow, _LISTS):
        return st.ArrayType(spark_type(arrow.value_type, column), containsNull=True)
    if isinstance(arrow, pa.MapType):
        key = spark_type(arrow.key_type, column)
        return st.MapType(key, spark_type(arrow.item_type, column), valueContainsNull=True)
    if isinstance(arrow, pa.StructType):
        return st.StructType(
            [st.StructField(field.name, spark_type(field.type, column)) for field in arrow]
        )
    raise UnsupportedType(
        f"column {column!r} is {arrow}, for which Spark has no type; leave it out with columns"
    )


def type_name(arrow: pa.DataType) -> str | None:
    """Return Spark's name of the type that it shows for an Arrow type, or None without a type."""
    try:
        return spark_type(arrow, "").simpleString()
    except UnsupportedType:
        return None


def is_collated(kind: st.DataType) -> bool:
    """Return whether strings of a type may be equal although their bytes differ."""
    return isinstance(kind, st.StringType) and getattr(kind, "collation", _BINARY) != _BINARY


def is_plain_text(key: st.StructField) -> bool:
    """Return whether Spark compares a column as stored. That is true of all but some strings."""
    if not isinstance(key.dataType, st.StringType):
        return True
    # Spark shows a CHAR(n) column of a table as a string, and pads its values.
    declared = str((key.metadata or {}).get("__CHAR_VARCHAR_TYPE_STRING", ""))
    is_plain = type(key.dataType) is st.StringType and not is_collated(key.dataType)
    return is_plain and not declared.startswith("char")


def cast_for_spark(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a batch with its columns cast to an Arrow schema for Spark.

    The batch is split if its strings exceed the 2 GiB that one Arrow string array can hold.
    """
    try:
        columns = [batch.column(field.name).cast(field.type) for field in schema]
    except pa.ArrowException as error:
        # Strings with 64-bit offsets may not fit into one array with 32-bit offsets.
        if batch.num_rows <= 1 or batch.nbytes < 1 << 31:
            raise SchemaMismatch(f"values do not fit Spark's types: {error}") from error
        half = batch.num_rows // 2
        yield from cast_for_spark(batch.slice(0, half), schema)
        yield from cast_for_spark(batch.slice(half), schema)
        return
    yield pa.RecordBatch.from_arrays(columns, schema=schema)

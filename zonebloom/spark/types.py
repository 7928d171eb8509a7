"""Arrow types as Spark's, those that ``spark.read.parquet`` gives a column, and batches as the JVM
takes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from zonebloom.errors import SchemaMismatch, UnsupportedType

_ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"
_PLAIN: dict[pa.DataType, st.DataType] = {
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
# Casts of list views were seen to lose values; Parquet gives none.
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)


def spark_types(
    schema: pa.Schema, names: Sequence[str], known: Mapping[str, st.DataType]
) -> st.StructType:
    """The types ``spark.read.parquet`` shows for columns of an Arrow schema."""
    types = {**_written_types(schema), **known}
    for name in names:
        if isinstance(types.get(name), st.YearMonthIntervalType):
            raise UnsupportedType(
                f"column {name!r} is {types[name].simpleString()}, which no Python data source of "
                "Spark can give; leave it out with columns"
            )
        if name not in types:
            types[name] = spark_type(schema.field(name).type, name)
    return st.StructType([st.StructField(name, types[name]) for name in names])


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """The Arrow schema by which the JVM takes batches of a schema of Spark's."""
    # PySpark from 4.2 on wants the zone of instants named; before, it is UTC and has no name.
    takes_zone = "timezone" in signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if takes_zone else to_arrow_schema(schema)


def opaque_columns(schema: pa.Schema, known: Mapping[str, st.DataType]) -> frozenset[str]:
    """Columns whose values Spark compares otherwise than their Arrow type suggests."""
    types = {**_written_types(schema), **known}
    return frozenset(
        name
        for name, kind in types.items()
        if name in schema.names and type_name(schema.field(name).type) != kind.simpleString()
    )


def _written_types(schema: pa.Schema) -> dict[str, st.DataType]:
    """Types by column as Spark wrote them into a file, none in others."""
    text = (schema.metadata or {}).get(_ROW_METADATA)
    if text is None:
        return {}
    try:
        # A type as a read shows it: anything may be null.
        written = st.StructType.fromJson(json.loads(text)).toNullable()
    except Exception:  # noqa: BLE001 - as Spark itself: of an unreadable entry nothing is used
        return {}
    return {field.name: field.dataType for field in written}


def spark_type(arrow: pa.DataType, column: str) -> st.DataType:
    """The type ``spark.read.parquet`` shows for an Arrow type; the column is named in errors."""
    if isinstance(arrow, pa.BaseExtensionType):
        return spark_type(arrow.storage_type, column)
    if isinstance(arrow, pa.DictionaryType):
        return spark_type(arrow.value_type, column)
    if arrow in _PLAIN:
        return _PLAIN[arrow]
    if pt.is_fixed_size_binary(arrow):
        return st.BinaryType()
    if pt.is_duration(arrow):
        return st.DayTimeIntervalType()
    if pt.is_decimal(arrow) and arrow.precision <= 38 and 0 <= arrow.scale <= arrow.precision:
        return st.DecimalType(arrow.precision, arrow.scale)
    if pt.is_timestamp(arrow):
        if arrow.unit == "ns":
            raise UnsupportedType(
                f"column {column!r} is {arrow}, and Spark's timestamps have microseconds; leave "
                "it out with columns, or write it as timestamp[us]"
            )
        return st.TimestampNTZType() if arrow.tz is None else st.TimestampType()
    # Spark's time has microseconds. Nanoseconds are refused rather than cut.
    if pt.is_time(arrow) and arrow.unit != "ns":
        return st.TimeType()
    if isinstance(arrow, _LISTS):
        return st.ArrayType(spark_type(arrow.value_type, column), True)
    if isinstance(arrow, pa.MapType):
        key = spark_type(arrow.key_type, column)
        return st.MapType(key, spark_type(arrow.item_type, column), True)
    if isinstance(arrow, pa.StructType):
        return st.StructType(
            [st.StructField(field.name, spark_type(field.type, column)) for field in arrow]
        )
    raise UnsupportedType(
        f"column {column!r} is {arrow}, for which Spark has no type; leave it out with columns"
    )


def type_name(arrow: pa.DataType) -> str | None:
    """Spark's name of the type it shows for an Arrow type, None where it has none."""
    try:
        return spark_type(arrow, "").simpleString()
    except UnsupportedType:
        return None


def is_collated(kind: st.DataType) -> bool:
    """Whether texts of a type may be equal though their bytes are not."""
    collation = getattr(kind, "collation", None)
    return isinstance(kind, st.StringType) and collation not in (None, "UTF8_BINARY")


def is_plain_text(key: st.StructField) -> bool:
    """Whether text is compared byte by byte as it is stored; true of columns that are no text."""
    if not isinstance(key.dataType, st.StringType):
        return True
    # Of a table's CHAR(n) Spark shows a string, which it has padded.
    declared = str((key.metadata or {}).get("__CHAR_VARCHAR_TYPE_STRING", ""))
    is_plain = type(key.dataType) is st.StringType and not is_collated(key.dataType)
    return is_plain and not declared.startswith("char")


def cast_for_spark(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A batch with the very types of an Arrow schema of Spark's.

    One, or several where the text of one passes the 2 GiB an Arrow string array holds.
    """
    try:
        columns = [batch.column(field.name).cast(field.type) for field in schema]
    except pa.ArrowException as error:
        # A batch of strings of 64-bit offsets may not fit into one of 32-bit ones.
        if batch.num_rows <= 1 or batch.nbytes < 1 << 31:
            raise SchemaMismatch(f"values do not fit Spark's types: {error}") from error
        half = batch.num_rows // 2
        yield from cast_for_spark(batch.slice(0, half), schema)
        yield from cast_for_spark(batch.slice(half), schema)
        return
    yield pa.RecordBatch.from_arrays(columns, schema=schema)

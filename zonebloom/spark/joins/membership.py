"""Which keys of a Spark column one Bloom filter may hold, as a condition for `where`.

Two ways to the same answer, which is that of `Sbbf.check`:

    expressions   Spark's own XxHash64 with seed 0, and the words of the filter as one
                  array<bigint> from a scalar subquery, which Spark sends to each stage once
    udf           our kernel in an Arrow UDF, the filter inside its closure

Of 20 M bigint keys and a filter of 1 MB, 2 cores, the expressions took 35 to 45 ns of processor
time a key over the plain sum, the UDF about 240. So expressions are taken wherever they can be
made: XxHash64 with a seed of one's own is reached by py4j alone, which Spark Connect has not. The
eight words are tested one by one: half of the bits are set, so most keys are done after two.

A filter knows its values by their bytes, so a key is brought to the filter's type first, and
only where that is exact. Integers meet at any width; one that the filter's type does not hold
matches nothing. Of 8 and 16 bits Spark hashes 32, so filters of those are turned to a bitmap of
all their possible values. Dates before 1582-10-15 and timestamps before 1900 pass unseen: old
files hold them by another calendar, which Spark corrects as it reads.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.errors import EngineError, UnsupportedType
from zonebloom.sbbf.blocks_numpy import SALT, WORDS_PER_BLOCK
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.hashing import value_type
from zonebloom.spark.types import spark_types
from zonebloom.values import hash_domain

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

Way = Literal["auto", "expressions", "udf"]

INTEGERS = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
# Days and microseconds of 1970; before them Spark's legacy writers used another calendar.
_FIRST_DAY = (datetime.date(1582, 10, 15) - datetime.date(1970, 1, 1)).days
_FIRST_INSTANT = -2_208_988_800_000_000
_LOW = 0xFFFF
_BINARY = "UTF8_BINARY"


@dataclass(frozen=True)
class KeyFilter:
    """A filter that holds every key of a column.

    Parameters
    ----------
    sbbf : Sbbf
    type : pyarrow.DataType
        The type the keys were hashed at.
    """

    sbbf: Sbbf
    type: pa.DataType


def why_not(key: st.DataType, arrow: pa.DataType) -> str | None:
    """Why keys of a Spark type cannot be looked up in a filter of an Arrow type, None if they can.

    Parameters
    ----------
    key : pyspark.sql.types.DataType
    arrow : pyarrow.DataType
        That the filter's values were hashed at.
    """
    arrow = value_type(arrow)
    if pt.is_floating(arrow) or isinstance(key, st.FloatType | st.DoubleType):
        return f"{key.simpleString()} keys have several bytes for one value, such as 0.0 and -0.0"
    try:
        own = spark_types(pa.schema([("key", arrow)]), ["key"], {})[0].dataType
    except UnsupportedType as error:
        return str(error)
    if isinstance(own, INTEGERS) and isinstance(key, INTEGERS):
        return None
    if isinstance(key, st.StringType) and not _is_binary(key):
        return f"{key.simpleString()} keys are compared by their collation"
    if own != key:
        return (
            f"{key.simpleString()} keys and {arrow} values are compared after a cast, and the "
            "filter holds the bytes before it"
        )
    if hash_domain(arrow) in ("string", "date32[day]", "timestamp[us]", "timestamp[us, UTC]"):
        return None
    if isinstance(own, st.BinaryType):
        return None
    return f"Spark hashes {key.simpleString()} by other bytes than the filter's {arrow}"


def is_plain_text(key: st.StructField) -> bool:
    """Whether text is compared byte by byte as it is stored; true of columns that are no text."""
    if not isinstance(key.dataType, st.StringType):
        return True
    # Of a table's CHAR(n) Spark shows a string, which it has padded.
    told = str((key.metadata or {}).get("__CHAR_VARCHAR_TYPE_STRING", ""))
    return _is_binary(key.dataType) and not told.startswith("char")


def _is_binary(text: st.StringType) -> bool:
    return (
        getattr(text, "collation", "UTF8_BINARY") == "UTF8_BINARY" and type(text) is st.StringType
    )


def may_hold(
    spark: SparkSession, key: Column, key_type: st.DataType, held: KeyFilter, way: Way = "auto"
) -> tuple[Column, str]:
    """The condition that a filter may hold a key; false or null is certain.

    Parameters
    ----------
    spark : SparkSession
    key : Column
    key_type : DataType
        One that `why_not` has nothing against.
    held : KeyFilter
    way : {"auto", "expressions", "udf"}

    Returns
    -------
    Column
        Boolean; not true under a null.
    str
        The way taken: "expressions" or "udf".

    Raises
    ------
    EngineError
        When the session has neither way.
    """
    if way != "udf":
        try:
            return _expressions(spark, key, key_type, held), "expressions"
        except Exception as error:
            if way == "expressions":
                raise EngineError(
                    "this session gives no way to Spark's XxHash64 expression, which "
                    f"way='expressions' needs ({type(error).__name__}); leave way out"
                ) from error
    return _udf(key, held), "udf"


# Expressions


def _expressions(
    spark: SparkSession, key: Column, key_type: st.DataType, held: KeyFilter
) -> Column:
    arrow = value_type(held.type)
    if pt.is_integer(arrow) and arrow.bit_width <= 16:
        return _in_bitmap(spark, key, held)
    value = _as_stored(key, key_type, arrow)
    hashed = _xxh64(spark, value)
    words = _array(spark, held.sbbf.to_bytes())
    found = value.isNotNull() & _bits_set(spark, hashed, words, held.sbbf.num_blocks)
    first = _first(key_type)
    return found if first is None else (key < first) | found


def _as_stored(key: Column, key_type: st.DataType, arrow: pa.DataType) -> Column:
    """The key as the bytes its equals were hashed from, null when it can have none."""
    if not pt.is_integer(arrow):
        return key
    if pt.is_int64(arrow):
        return key.cast("bigint")
    if pt.is_uint32(arrow):
        # The upper half has the bits of the negative integers.
        wide = key.cast("bigint")
        signed = wide - sf.when(wide >= 1 << 31, _long(1 << 32)).otherwise(_long(0))
        return sf.when((wide >= 0) & (wide < 1 << 32), signed).try_cast("int")
    return key.try_cast("int") if isinstance(key_type, st.LongType) else key.cast("int")


def _first(key_type: st.DataType) -> Column | None:
    """The least key that every file holds by the calendar of today."""
    if isinstance(key_type, st.DateType):
        return sf.date_from_unix_date(sf.lit(_FIRST_DAY))
    if isinstance(key_type, st.TimestampType):
        return sf.timestamp_micros(_long(_FIRST_INSTANT))
    if isinstance(key_type, st.TimestampNTZType):
        return sf.expr("TIMESTAMP_NTZ'1900-01-01 00:00:00'")
    return None


def _in_bitmap(spark: SparkSession, key: Column, held: KeyFilter) -> Column:
    arrow = value_type(held.type)
    low, high = _bounds(arrow)
    # Values by their bits without a sign: no key is too large to find its own.
    domain = np.roll(np.arange(low, high + 1), low)
    bits = np.packbits(held.sbbf.check(pa.array(domain).cast(arrow)), bitorder="little")
    at = key.cast("bigint").bitwiseAND(_long((1 << arrow.bit_width) - 1))
    word = sf.get(_array(spark, bits.tobytes()), sf.shiftright(at, 6).cast("int"))
    is_value = key.between(sf.lit(low), sf.lit(high))
    return is_value & _bit(word, at.bitwiseAND(_long(63)).cast("int"))


def _xxh64(spark: SparkSession, value: Column) -> Column:
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm: Any = spark._jvm  # pyright: ignore[reportAttributeAccessIssue]
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    children = jvm.PythonUtils.toSeq([utils.expression(value._jc)])
    hashed = jvm.org.apache.spark.sql.catalyst.expressions.XxHash64(children, 0)
    return ClassicColumn(utils.column(hashed))


def _array(spark: SparkSession, data: bytes) -> Column:
    """Bytes as an array<bigint> that is computed once a query."""
    longs = pa.array(np.frombuffer(data, dtype="<i8"))
    row = pa.ListArray.from_arrays(pa.array([0, len(longs)], pa.int32()), longs)
    frame: Any = spark.createDataFrame(pa.table({"words": row}))
    return frame.scalar()


def _bits_set(spark: SparkSession, hashed: Column, words: Column, num_blocks: int) -> Column:
    """Whether the eight bits of a hash are set in its block; two words lie in each bigint.

    ``(uint32(hash) * salt[i]) >> 27`` in products of 48 bits: ANSI mode lets none overflow. Built
    of Java columns: PySpark's own ask the JVM some fourteen times an operation.
    """
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm: Any = spark._jvm  # pyright: ignore[reportAttributeAccessIssue]
    functions, to_seq = jvm.org.apache.spark.sql.functions, jvm.PythonUtils.toSeq
    of_hash: Any = hashed
    of_words: Any = words
    java, held = of_hash._jc, of_words._jc
    unsigned = functions.shiftrightunsigned
    low = java.bitwiseAND(_LOW)
    high = unsigned(java, 16).bitwiseAND(_LOW)
    block = unsigned(unsigned(java, 32).multiply(num_blocks), 32)
    first = block.multiply(WORDS_PER_BLOCK // 2).cast("int")
    found: Any = None
    for i in range(WORDS_PER_BLOCK):
        salt = int(SALT[i])
        upper = functions.shiftleft(high.multiply(salt).bitwiseAND(_LOW), 16)
        at = unsigned(low.multiply(salt).plus(upper), 27).bitwiseAND(31).cast("int")
        word = functions.get(held, first.plus(i // 2))
        shifted = functions.call_function("shiftright", to_seq([word, at.plus(32 * (i % 2))]))
        test = shifted.bitwiseAND(1).equalTo(1)
        found = test if found is None else getattr(found, "and")(test)
    return ClassicColumn(found)


def _bit(word: Column, at: Column) -> Column:
    return sf.call_function("shiftright", word, at).bitwiseAND(_long(1)) == _long(1)


def _long(value: int) -> Column:
    return sf.lit(value).cast("bigint")


# Arrow UDF


def _udf(key: Column, held: KeyFilter) -> Column:
    try:
        from pyspark.sql.functions import arrow_udf
    except ImportError as error:
        raise EngineError(
            "checking keys in Python needs arrow_udf, which PySpark has from 4.1 on; use a "
            "classic session, or a newer PySpark"
        ) from error

    def check(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for keys in batches:
            yield pa.array(check_keys(held, keys))

    made: Any = arrow_udf
    return made(check, "boolean")(key)


def check_keys(held: KeyFilter, keys: pa.Array) -> np.ndarray:
    """What `may_hold` is to tell, for an Arrow array of keys.

    Returns
    -------
    bool array, shape (n,)
    """
    compute: Any = pc
    arrow = value_type(held.type)
    if pt.is_integer(arrow):
        low, high = _bounds(arrow)
        own_low, own_high = _bounds(keys.type)
        inside = compute.and_(
            compute.greater_equal(keys, pa.scalar(max(low, own_low), keys.type)),
            compute.less_equal(keys, pa.scalar(min(high, own_high), keys.type)),
        )
        none = pa.scalar(None, keys.type)
        return held.sbbf.check(compute.if_else(inside, keys, none).cast(arrow))
    if pt.is_date(arrow) or pt.is_timestamp(arrow):
        numbers = keys.cast(arrow).view(pa.int32() if pt.is_date(arrow) else pa.int64())
        first = _FIRST_DAY if pt.is_date(arrow) else _FIRST_INSTANT
        early = compute.fill_null(compute.less(numbers, pa.scalar(first, numbers.type)), False)
        return held.sbbf.check(numbers) | np.asarray(early)
    return held.sbbf.check(keys)


def _bounds(integers: pa.DataType) -> tuple[int, int]:
    integers = value_type(integers)
    bits = integers.bit_width
    if pt.is_signed_integer(integers):
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1

"""Which keys of a Spark column one Bloom filter may hold, as a condition for `where`.

Spark's own xxhash64 and arithmetic look a key up, in the words of the filter as one array<bigint>
from a scalar subquery, which Spark sends to each stage once; over Connect too. Of 20 M bigint keys
and a filter of 1 MB, 2 cores, that took about 40 ns of processor time a key over the plain sum, a
kernel in an Arrow UDF about 240. Half of the bits are set, so most keys that are not in it are
done after one bigint, of two words.

SQL's xxhash64 starts from seed 42, and Parquet's filters are of seed 0. But of several columns
each one's hash is the next one's seed, so a literal goes first whose own hash is 0.

A filter knows its values by their bytes, so a key is brought to the filter's type first, and
only where that is exact. Integers meet at any width; one that the filter's type does not hold
matches nothing. Dates and times that may be rebased pass unseen: files may hold them by another
calendar, which Spark corrects as it reads (`zonebloom.spark.rebase`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.errors import UnsupportedType
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.hashing import value_type
from zonebloom.sbbf.spec import SALT, WORDS_PER_BLOCK
from zonebloom.spark.rebase import first_exact
from zonebloom.spark.session import quoted
from zonebloom.spark.types import spark_type
from zonebloom.values.types import hash_domain

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

INTEGERS = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
# The bigint that XXH64 with seed 42 hashes to 0.
_HASHES_TO_0 = -365884300664092260
# Domains of hashes that Spark hashes by the same bytes.
_SAME_BYTES = ("string", "date32[day]", "timestamp[us]", "timestamp[us, UTC]")


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


def why_not(key: st.StructField, arrow: pa.DataType) -> str | None:
    """Why a filter of an Arrow type has no answer for keys of a column; None if it has."""
    arrow, kind = value_type(arrow), key.dataType
    shown = kind.simpleString()
    if pt.is_floating(arrow) or isinstance(kind, st.FloatType | st.DoubleType):
        return f"{shown} keys have several bytes for one value, such as 0.0 and -0.0"
    if pt.is_integer(arrow) and arrow.bit_width <= 16:
        return f"{arrow} has too few values for a filter to leave any out"
    try:
        own = spark_type(arrow, "key")
    except UnsupportedType as error:
        return str(error)
    if isinstance(own, INTEGERS) and isinstance(kind, INTEGERS):
        return None
    if isinstance(kind, st.StringType) and not _is_binary(kind):
        return f"{shown} keys are compared by their collation"
    if own != kind:
        return (
            f"{shown} keys and {arrow} values are compared after a cast, and the filter holds the "
            "bytes before it"
        )
    if not is_plain_text(key):
        return f"{key.name} is text of a fixed width, which Spark pads"
    if isinstance(own, st.BinaryType) or hash_domain(arrow) in _SAME_BYTES:
        return None
    return f"Spark hashes {shown} by other bytes than the filter's {arrow}"


def is_plain_text(key: st.StructField) -> bool:
    """Whether text is compared byte by byte as it is stored; true of columns that are no text."""
    if not isinstance(key.dataType, st.StringType):
        return True
    # Of a table's CHAR(n) Spark shows a string, which it has padded.
    declared = str((key.metadata or {}).get("__CHAR_VARCHAR_TYPE_STRING", ""))
    return _is_binary(key.dataType) and not declared.startswith("char")


def _is_binary(text: st.StringType) -> bool:
    return (
        getattr(text, "collation", "UTF8_BINARY") == "UTF8_BINARY" and type(text) is st.StringType
    )


def may_hold(spark: SparkSession, key: str, kind: st.DataType, held: KeyFilter) -> Column:
    """The condition that a filter may hold a key; false or null is certain.

    Boolean; not true under a null.
    """
    key = quoted(key)
    value = _as_stored(key, kind, value_type(held.type))
    found = _all_set(spark, value, held.sbbf)
    if not isinstance(kind, st.DateType | st.TimestampType | st.TimestampNTZType):
        return found
    return (sf.expr(key) < first_exact(kind)) | found


def _as_stored(key: str, key_type: st.DataType, arrow: pa.DataType) -> str:
    """The key as the bytes its equals were hashed from, null when it can have none."""
    if not pt.is_integer(arrow):
        return key
    if pt.is_int64(arrow):
        return f"CAST({key} AS BIGINT)"
    if pt.is_uint32(arrow):
        # The upper half has the bits of the negative integers.
        wide = f"CAST({key} AS BIGINT)"
        signed = f"CAST(({wide} ^ {1 << 31}L) - {1 << 31}L AS INT)"
        return f"IF({wide} BETWEEN 0L AND {(1 << 32) - 1}L, {signed}, NULL)"
    cast = "TRY_CAST" if isinstance(key_type, st.LongType) else "CAST"
    return f"{cast}({key} AS INT)"


def _bits(value: str, num_blocks: int) -> list[tuple[str, str]]:
    """The eight bits of a value's hash in its block, two words to a bigint: places and masks.

    A word's bit is ``(uint32(hash) * salt[i]) >> 27`` of 32 bits. The salt is taken with its
    sign: the product has the same low bits and fits a bigint, whose overflow ANSI mode refuses.
    What the texts have in common Spark computes once a row.
    """
    hashed = f"xxhash64({_HASHES_TO_0}L, {value})"
    block = f"shiftrightunsigned(shiftrightunsigned({hashed}, 32) * {num_blocks}L, 32)"
    first = f"CAST({block} * {WORDS_PER_BLOCK // 2}L AS INT)"
    salts = SALT.astype(np.int32).tolist()
    bits = [
        f"shiftleft({1 << 32 * (i % 2)}L, CAST("
        f"shiftrightunsigned(({hashed} & {0xFFFF_FFFF}L) * {salt}L, 27) & 31L AS INT))"
        for i, salt in enumerate(salts)
    ]
    pairs = zip(bits[::2], bits[1::2], strict=True)
    return [(f"{first} + {at}", f"{low} | {high}") for at, (low, high) in enumerate(pairs)]


def _all_set(spark: SparkSession, value: str, sbbf: Sbbf) -> Column:
    """Whether a value is not null and every bit of its hash is set in its block."""
    words = _array(spark, sbbf.to_bytes())
    # The same functions and methods, but for two names. PySpark's own ask a classic session's
    # JVM some fourteen times an operation.
    is_classic = hasattr(words, "_jc")
    session: Any = spark
    functions: Any = session._jvm.org.apache.spark.sql.functions if is_classic else sf
    both, equal = ("and", "equalTo") if is_classic else ("__and__", "__eq__")
    array: Any = getattr(words, "_jc", words)
    zero = functions.lit(0)
    condition = functions.expr(f"{value} IS NOT NULL")
    for at, mask in _bits(value, sbbf.num_blocks):
        missing = functions.bitwise_not(functions.get(array, functions.expr(at)))
        test = getattr(missing.bitwiseAND(functions.expr(mask)), equal)(zero)
        condition = getattr(condition, both)(test)
    if not is_classic:
        return condition
    from pyspark.sql.classic.column import Column as ClassicColumn

    return ClassicColumn(condition)


def _array(spark: SparkSession, data: bytes) -> Column:
    """Bytes as an array<bigint> that is computed once a query."""
    longs = pa.array(np.frombuffer(data, dtype="<i8"))
    # Elements of a type without nulls are not looked at twice.
    words = pa.list_(pa.field("word", pa.int64(), nullable=False))
    row = pa.ListArray.from_arrays(pa.array([0, len(longs)], pa.int32()), longs, type=words)
    frame: Any = spark.createDataFrame(pa.table({"words": row}))
    return frame.scalar()

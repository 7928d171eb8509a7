"""The filter over all keys of one side of a join, as a condition on keys of the other: Spark's own
xxhash64 and arithmetic over its words, which a scalar subquery sends to each stage, or a broadcast
join in pieces.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.dataset import Dataset
from zonebloom.errors import UnsupportedType, ZoneBloomError
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.hashing import hashed_type
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, SALT, WORDS_PER_BLOCK
from zonebloom.scan.binding import unknown_column_text
from zonebloom.sources.column_batches import columns_reader
from zonebloom.spark.column_case import require_exact_names
from zonebloom.spark.joins.sides import RuleNotUsed, key_mismatch_reason
from zonebloom.spark.rebase import first_exact_value
from zonebloom.spark.session import byte_count, quote_name
from zonebloom.spark.types import spark_type
from zonebloom.values.columns import find_column
from zonebloom.values.types import hash_domain

# A filter that lets more through than this costs more than it saves.
_MOST_PASS = 0.5
# Of the memory of a JVM that a filter is to fit in several times: with the broadcast, what it is
# made of, and those of joins before it. A larger one is folded, if it bears it.
_HEAP_SHARE = 16
# Of a filter that is part of each task; one that is larger is broadcast in pieces, once to an
# executor, where a lookup takes half as long again.
_SUBQUERY_BYTES = 8 << 20
_PIECE_BITS = 17
_PIECE_BLOCKS = 1 << _PIECE_BITS
_PIECE, _WORDS = "__zonebloom_piece", "__zonebloom_words"
# Rows of files that a filter does not hold yet, whose keys are read here.
_MOST_MISSING_ROWS = 5_000_000
# Folding makes room at the price of keys that pass in vain.
_FOLDED_PASS = (0.01, 0.02, 0.05, 0.1)
# SQL's xxhash64 starts from seed 42, Parquet's filters from seed 0. But of several columns each
# one's hash is the next one's seed, and this bigint's hash with seed 42 is 0.
_HASHES_TO_0 = -365884300664092260
# Domains of hashes that Spark hashes by the same bytes.
_SAME_BYTES = ("int32", "int64", "string", "date32[day]", "timestamp[us]", "timestamp[us, UTC]")


def load_filter(dataset: Dataset, column: str) -> tuple[Sbbf, pa.DataType, str]:
    """The filter over all keys a column holds in the files now, their type, and what was added."""
    name = find_column(dataset.schema.names, column)
    if name is None:
        raise RuleNotUsed(unknown_column_text(column, dataset.schema))
    try:
        stored = dataset.global_filter(name)
    except ZoneBloomError as error:
        raise RuleNotUsed(str(error)) from error
    if stored is None:
        raise RuleNotUsed(
            f"the index on {name!r} has no filter over all keys; build it with "
            "create_scalar_index(..., global_filter=True)"
        )
    if not stored.missing:
        return stored.sbbf, stored.type, ""
    sbbf, num_rows = _with_missing(dataset, name, stored.sbbf, stored.missing)
    files = "1 file" if len(stored.missing) == 1 else f"{len(stored.missing):,} files"
    return sbbf, stored.type, f", {num_rows:,} rows of {files} not indexed yet added now"


def _with_missing(dataset: Dataset, name: str, sbbf: Sbbf, missing: Any) -> tuple[Sbbf, int]:
    """The filter with the keys of files it does not hold, and their number of rows."""
    source = dataset.opened.source
    try:
        num_rows = sum(map(dataset.opened.planner.count_rows, missing))
        if num_rows > _MOST_MISSING_ROWS:
            raise RuleNotUsed(
                f"{len(missing):,} files with {num_rows:,} rows came or changed since the filter "
                f"of {name!r} was built, more than {_MOST_MISSING_ROWS:,}; "
                "call optimize.optimize_indices()"
            )
        grown = Sbbf.from_bytes(sbbf.to_bytes())
        for file in missing:
            require_exact_names(source.open(file.fragment, source.filesystem), [name])
            reader = columns_reader(source, file.fragment, [dataset.opened.column(name)])
            for run in reader.runs(False):
                for (values,) in reader.read(run):
                    grown.insert(values)
    except ZoneBloomError as error:
        raise RuleNotUsed(
            f"a file the filter does not hold yet cannot be added: {error}"
        ) from error
    return grown, num_rows


def fit_to_memory(spark: SparkSession, sbbf: Sbbf) -> Sbbf:
    """A filter that is worth sending, folded where Spark has no room for it."""
    heaps = (spark.conf.get(f"spark.{each}.memory", "1g") for each in ("driver", "executor"))
    most = min(byte_count(heap or "1g") for heap in heaps) // _HEAP_SHARE
    folds = (sbbf.fold(passing) for passing in _FOLDED_PASS)
    fits = next((each for each in chain([sbbf], folds) if each.nbytes <= most), None)
    if fits is None:
        raise RuleNotUsed(
            f"the filter has {sbbf.nbytes:,} bytes, and folded it has more than {most:,}: give "
            f"spark.driver.memory and spark.executor.memory {_HEAP_SHARE} times as much"
        )
    if fits.estimated_fpp > _MOST_PASS:
        raise RuleNotUsed(
            f"the filter is so full that {fits.estimated_fpp:.0%} of all keys would pass; build "
            "it again with larger expected_num_items"
        )
    return fits


def filter_mismatch_reason(key: st.StructField, arrow: pa.DataType) -> str | None:
    """Why a filter of an Arrow type has no answer for keys of a column; None if it has."""
    arrow, kind = hashed_type(arrow), key.dataType
    if pt.is_floating(arrow) or isinstance(kind, st.FloatType | st.DoubleType):
        return f"{kind.simpleString()} keys have several bytes for one value, such as 0.0 and -0.0"
    if pt.is_integer(arrow) and arrow.bit_width <= 16:
        return f"{arrow} has too few values for a filter to leave any out"
    try:
        own = spark_type(arrow, key.name)
    except UnsupportedType as error:
        return str(error)
    why = key_mismatch_reason(key, st.StructField(key.name, own))
    if why is not None:
        return why
    if isinstance(own, st.BinaryType) or hash_domain(arrow) in _SAME_BYTES:
        return None
    return f"Spark hashes {kind.simpleString()} by other bytes than the filter's {arrow}"


def keep_possible_matches(
    frame: DataFrame, key: st.StructField, sbbf: Sbbf, arrow: pa.DataType
) -> DataFrame:
    """The rows of a frame whose keys a filter of an Arrow type may hold, and no row without key."""
    if sbbf.nbytes <= _SUBQUERY_BYTES:
        return frame.where(may_contain(frame.sparkSession, key, sbbf, arrow))
    pieces = _lists(frame.sparkSession, sbbf.to_bytes(), _PIECE_BLOCKS * BYTES_PER_BLOCK)
    block = _block(_hash(_sql_key_as_stored(quote_name(key.name), hashed_type(arrow))), sbbf)
    of_piece = sf.expr(f"shiftright({block}, {_PIECE_BITS})") == sf.col(_PIECE)
    found = of_piece & _all_set(key, sbbf, arrow, sf.col(_WORDS), _PIECE_BLOCKS - 1)
    return frame.join(sf.broadcast(pieces), found, "left_semi")


def may_contain(spark: SparkSession, key: st.StructField, sbbf: Sbbf, arrow: pa.DataType) -> Column:
    """The condition that a filter of an Arrow type may hold a key; false or null is certain."""
    words = _lists(spark, sbbf.to_bytes(), sbbf.nbytes).select(_WORDS)
    return _all_set(key, sbbf, arrow, words.scalar(), -1)


def _sql_key_as_stored(key: str, arrow: pa.DataType) -> str:
    """The key as the bytes its equals were hashed from, null when it can have none."""
    if not pt.is_integer(arrow):
        return key
    return f"TRY_CAST({key} AS {'BIGINT' if pt.is_int64(arrow) else 'INT'})"


def _hash(value: str) -> str:
    return f"xxhash64({_HASHES_TO_0}L, {value})"


def _block(hashed: str, sbbf: Sbbf) -> str:
    high = f"shiftrightunsigned({hashed}, 32)"
    return f"shiftrightunsigned({high} * {sbbf.num_blocks}L, 32)"


def _all_set(
    key: st.StructField, sbbf: Sbbf, arrow: pa.DataType, words: Column, mask: int
) -> Column:
    """Whether a key is not null and every bit of its hash is set in its block of some words.

    A word's bit is ``(uint32(hash) * salt[i]) >> 27`` of 32 bits. The salt is taken with its
    sign: the product has the same low bits and fits a bigint, whose overflow ANSI mode refuses.
    What the texts have in common Spark computes once a row.
    """
    column = quote_name(key.name)
    value = _sql_key_as_stored(column, hashed_type(arrow))
    hashed = _hash(value)
    first = f"CAST(({_block(hashed, sbbf)} & {mask}L) * {WORDS_PER_BLOCK // 2}L AS INT)"
    bits = [
        f"shiftleft({1 << 32 * (i % 2)}L, CAST("
        f"shiftrightunsigned(({hashed} & {0xFFFF_FFFF}L) * {salt}L, 27) & 31L AS INT))"
        for i, salt in enumerate(SALT.astype(np.int32).tolist())
    ]
    condition = sf.expr(f"{value} IS NOT NULL")
    # Two words of the filter to a bigint.
    for at, (low, high) in enumerate(zip(bits[::2], bits[1::2], strict=True)):
        missing = sf.bitwise_not(sf.get(words, sf.expr(f"{first} + {at}")))
        condition = condition & (missing.bitwiseAND(sf.expr(f"{low} | {high}")) == sf.lit(0))
    if not isinstance(key.dataType, st.DateType | st.TimestampType | st.TimestampNTZType):
        return condition
    # Files may hold these by another calendar, which Spark corrects as it reads.
    return (sf.expr(column) < first_exact_value(key.dataType)) | condition


def _lists(spark: SparkSession, data: bytes, num_bytes: int) -> Any:
    """Bytes as numbered lists of bigints, of so many bytes each and the last of what is left."""
    longs = np.frombuffer(data, dtype="<i8")
    starts = np.arange(0, longs.size, num_bytes // longs.itemsize)
    # Elements of a type without nulls are not looked at twice.
    kind = pa.list_(pa.field("word", pa.int64(), nullable=False))
    offsets = pa.array([*starts, longs.size], pa.int32())
    words = pa.ListArray.from_arrays(offsets, pa.array(longs), type=kind)
    return spark.createDataFrame(pa.table({_PIECE: np.arange(starts.size), _WORDS: words}))

"""Apply the global filter of one side of a join to the keys of the other, in Spark expressions.

The condition uses Spark's own xxhash64 and arithmetic over the words of the filter, which a
broadcast join sends to each executor in pieces.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.base.text import bytes_text
from zonebloom.errors import UnsupportedType, ZoneBloomError
from zonebloom.facade.dataset import Dataset
from zonebloom.sbbf.filter import Sbbf
from zonebloom.sbbf.spec import SALT, WORDS_PER_BLOCK
from zonebloom.scan.binding import unknown_column_text
from zonebloom.scan.column_case import require_exact_names
from zonebloom.sources.column_batches import columns_reader
from zonebloom.spark.joins.key_origin import require_stored_column
from zonebloom.spark.joins.sides import JoinSide, RuleNotUsed, key_mismatch_reason
from zonebloom.spark.rebase import first_exact_value
from zonebloom.spark.session_settings import quote_name
from zonebloom.spark.types import spark_type
from zonebloom.spark.versions import frame_of_arrow, heap_bytes
from zonebloom.values.columns import find_column
from zonebloom.values.normal_types import hashed_type
from zonebloom.values.types import hash_domain

# A filter that lets a larger share of keys pass costs more than it saves.
_MAX_FILTER_FPP = 0.5
# A filter may take this fraction (1/16) of the memory of a JVM, which holds it several times: its
# broadcast, the data that this is made from, and the filters of earlier joins. A larger filter is
# folded.
_HEAP_SHARE = 16
# The blocks of a piece, which is a row of the broadcast frame: 4 MiB.
_PIECE_BITS = 17
_PIECE_BLOCKS = 1 << _PIECE_BITS
# The beginning of the name of the frame of pieces.
FILTER_MARK = "zonebloom: "
_PIECE, _WORDS = "__zonebloom_piece", "__zonebloom_words"
# The filter may lack files with up to this number of rows. Their keys are read and added here.
_MAX_MISSING_ROWS = 5_000_000
# False positive probabilities that folding aims at, one after the other, until the filter fits.
_FOLDING_TARGETS = (0.01, 0.02, 0.05, 0.1)
# SQL's xxhash64 starts with seed 42, but Parquet's filters use seed 0. With several arguments, the
# hash of one is the seed of the next. The hash of this bigint with seed 42 is 0.
_HASHES_TO_0 = -365884300664092260
# Hash domains whose values Spark hashes from the same bytes as the filter.
_HASHED_LIKE_SPARK = (
    "int32",
    "int64",
    "string",
    "date32[day]",
    "timestamp[us]",
    "timestamp[us, UTC]",
)


def apply_filter_rule(
    side: JoinSide, other: JoinSide, dataset: Dataset, name: str, frame: DataFrame
) -> DataFrame:
    """Return the rows of a side whose keys may be in the filter of the other side's dataset.

    Raise `RuleNotUsed` if the filter cannot be used.
    """
    key, other_key = side.key_field(name), other.key_field(name)
    sbbf, arrow, added_text = _load_filter(dataset, name)
    for column in (key, other_key):
        reason = filter_mismatch_reason(column, arrow)
        if reason is not None:
            raise RuleNotUsed(reason)
    require_stored_column(other.frame, other_key.name, dataset)
    sbbf = fit_to_memory(sbbf, heap_bytes(side.spark) // _HEAP_SHARE)
    description = (
        f"rows of {side.name} whose {key.name} is none of {other.name} are dropped before they "
        f"are shuffled: filter of {bytes_text(sbbf.nbytes)}, which lets about "
        f"{sbbf.estimated_fpp:.2%} of other keys pass{added_text}"
    )
    return keep_possible_matches(frame, key, sbbf, arrow, description)


def _load_filter(dataset: Dataset, column: str) -> tuple[Sbbf, pa.DataType, str]:
    """Return the filter over all current keys of a column, and their type.

    Also return a text about files that were added to the filter. Raise `RuleNotUsed` if there is
    no such filter.
    """
    name = find_column(dataset.schema.names, column)
    if name is None:
        raise RuleNotUsed(unknown_column_text(column, dataset.schema))
    try:
        stored_filter = dataset.global_filter(name)
    except ZoneBloomError as error:
        raise RuleNotUsed(str(error)) from error
    if stored_filter is None:
        raise RuleNotUsed(
            f"the index on {name!r} has no filter over all keys; build it with "
            "create_scalar_index(..., global_filter=True)"
        )
    if not stored_filter.missing:
        return stored_filter.sbbf, stored_filter.type, ""
    sbbf, num_rows = _with_missing_files(dataset, name, stored_filter.sbbf, stored_filter.missing)
    files = "1 file" if len(stored_filter.missing) == 1 else f"{len(stored_filter.missing):,} files"
    return sbbf, stored_filter.type, f", with {num_rows:,} rows of {files} that are not indexed yet"


def _with_missing_files(dataset: Dataset, name: str, sbbf: Sbbf, missing: Any) -> tuple[Sbbf, int]:
    """Return a filter with the keys of files that it lacks, and the number of their rows."""
    source = dataset.opened.source
    try:
        num_rows = sum(map(dataset.opened.look().count_rows, missing))
        if num_rows > _MAX_MISSING_ROWS:
            raise RuleNotUsed(
                f"{len(missing):,} files with {num_rows:,} rows came or changed since the filter "
                f"of {name!r} was built, more than {_MAX_MISSING_ROWS:,}; "
                "call ds.optimize.optimize_indices()"
            )
        extended_filter = Sbbf.from_bytes(sbbf.to_bytes())
        for file in missing:
            require_exact_names(source.open(file.fragment, source.filesystem), [name])
            reader = columns_reader(source, file.fragment, [dataset.opened.column(name)])
            for run in reader.runs(False):
                for (values,) in reader.read(run):
                    extended_filter.insert(values)
    except ZoneBloomError as error:
        raise RuleNotUsed(f"a file that the filter lacks cannot be added: {error}") from error
    return extended_filter, num_rows


def fit_to_memory(sbbf: Sbbf, limit: int) -> Sbbf:
    """Return the filter, folded if it has more than `limit` bytes.

    Raise `RuleNotUsed` if it does not fit, or if most keys would pass.
    """
    folds = (sbbf.fold(fpp) for fpp in _FOLDING_TARGETS)
    smaller = next((folded for folded in chain([sbbf], folds) if folded.nbytes <= limit), None)
    if smaller is None:
        raise RuleNotUsed(
            f"the filter has {sbbf.nbytes:,} bytes, and folded it has more than {limit:,}: give "
            f"spark.driver.memory and spark.executor.memory {_HEAP_SHARE} times that"
        )
    if smaller.estimated_fpp > _MAX_FILTER_FPP:
        raise RuleNotUsed(
            f"the filter is so full that {smaller.estimated_fpp:.0%} of all keys would pass; build "
            "it again with larger expected_num_items"
        )
    return smaller


def filter_mismatch_reason(key: st.StructField, arrow: pa.DataType) -> str | None:
    """Return why a filter of an Arrow type cannot test keys of a column, or None if it can."""
    arrow, kind = hashed_type(arrow), key.dataType
    if pt.is_floating(arrow) or isinstance(kind, st.FloatType | st.DoubleType):
        return f"{kind.simpleString()} values may be equal with other bytes, such as 0.0 and -0.0"
    if pt.is_integer(arrow) and arrow.bit_width <= 16:
        return f"{arrow} has so few values that a filter may hold them all"
    try:
        spark_kind = spark_type(arrow, key.name)
    except UnsupportedType as error:
        return str(error)
    reason = key_mismatch_reason(key, st.StructField(key.name, spark_kind))
    if reason is not None:
        return reason
    if isinstance(spark_kind, st.BinaryType) or hash_domain(arrow) in _HASHED_LIKE_SPARK:
        return None
    return f"Spark hashes {kind.simpleString()} from other bytes than the filter's {arrow}"


def keep_possible_matches(
    frame: DataFrame,
    key: st.StructField,
    sbbf: Sbbf,
    arrow: pa.DataType,
    description: str = "",
) -> DataFrame:
    """Return the rows of a frame whose keys may be in the filter, without rows with a null key.

    The bit of word i is ``(uint32(hash) * salt[i]) >> 27`` in 32-bit arithmetic. The salt is used
    as a signed number: the product has the same low bits, and fits a bigint, whose overflow is an
    error in ANSI mode. Spark computes common subexpressions of the SQL texts once per row.
    """
    column, stored_type = quote_name(key.name), hashed_type(arrow)
    value = column
    if pt.is_integer(stored_type):
        # Integers that the stored type cannot hold become null.
        value = f"TRY_CAST({column} AS {'BIGINT' if pt.is_int64(stored_type) else 'INT'})"
    hash_ = f"xxhash64({_HASHES_TO_0}L, {value})"
    block = f"shiftrightunsigned(shiftrightunsigned({hash_}, 32) * {sbbf.num_blocks}L, 32)"
    first_word = f"CAST(({block} & {_PIECE_BLOCKS - 1}L) * {WORDS_PER_BLOCK // 2}L AS INT)"
    bits = [
        f"shiftleft({1 << 32 * (i % 2)}L, CAST("
        f"shiftrightunsigned(({hash_} & {0xFFFF_FFFF}L) * {salt}L, 27) & 31L AS INT))"
        for i, salt in enumerate(SALT.astype(np.int32).tolist())
    ]
    # A bigint holds two words of the filter.
    terms = [
        f"~get({_WORDS}, {first_word} + {offset}) & ({low} | {high}) = 0"
        for offset, (low, high) in enumerate(zip(bits[::2], bits[1::2], strict=True))
    ]
    may_match = sf.expr(" AND ".join([f"{value} IS NOT NULL", *terms]))
    if isinstance(key.dataType, st.DateType | st.TimestampType | st.TimestampNTZType):
        # Files may store older values in another calendar, which Spark corrects when it reads, so
        # these always pass.
        may_match = (sf.expr(column) < first_exact_value(key.dataType)) | may_match
    is_in_piece = sf.expr(f"shiftright({block}, {_PIECE_BITS}) = {_PIECE}")
    pieces = _frame_of_pieces(frame.sparkSession, sbbf.to_bytes())
    # `explain` finds the description in the plan, as the name of a subquery.
    pieces = sf.broadcast(pieces.alias(FILTER_MARK + description))
    return frame.join(pieces, is_in_piece & may_match, "left_semi")


def _frame_of_pieces(spark: SparkSession, data: bytes) -> DataFrame:
    """Return a frame of the pieces of a filter as numbered lists of bigints."""
    longs = np.frombuffer(data, dtype="<i8")
    starts = np.arange(0, longs.size, _PIECE_BLOCKS * WORDS_PER_BLOCK // 2)
    # Spark skips null checks for elements of a type without nulls.
    kind = pa.list_(pa.field("word", pa.int64(), nullable=False))
    offsets = pa.array([*starts, longs.size], pa.int32())
    words = pa.ListArray.from_arrays(offsets, pa.array(longs), type=kind)
    return frame_of_arrow(spark, pa.table({_PIECE: np.arange(starts.size), _WORDS: words}))

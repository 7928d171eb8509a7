"""One side of a join: a frame, with or without an index, or files to be read by theirs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField

from zonebloom.base import arguments
from zonebloom.dataset import Dataset
from zonebloom.errors import ColumnNotFound, InvalidArgument
from zonebloom.spark.frames import FilePaths, Indexed
from zonebloom.spark.load import Options, encode_keys
from zonebloom.spark.pruning.prune import prune
from zonebloom.spark.session import open_dataset, quote_name
from zonebloom.spark.types import INTEGER_TYPES, is_plain_text
from zonebloom.storage.files import is_local
from zonebloom.storage.paths import absolute_path
from zonebloom.values.columns import find_column, matching_names

Index: TypeAlias = "FilePaths | Dataset | None"

# The options of a load hold the keys, and go to several processes.
_MOST_KEY_BYTES = 4 << 20
_SMALL_BYTES = 64 << 20


class RuleNotUsed(Exception):
    """Why a rule of a join is not used."""


class JoinSide:
    def __init__(self, name: str, given: Any, index: Index, spark: Any):
        self.name = name
        self.is_indexed_files: bool = isinstance(given, Indexed)
        self._given = given
        self._frame: Any = None
        if isinstance(given, Indexed):
            if index is not None:
                raise InvalidArgument(f"{name} is Indexed already; leave {name}_index out")
            load = given.load(spark)
            self.index: Dataset | None = load.dataset
            # A filter of its own brings columns that are not shown.
            shown = given.columns or load.schema.names
            self._fields = [field for field in load.schema if matching_names(shown, field.name)]
            return
        if not hasattr(given, "sparkSession"):
            advice = "give a DataFrame, or zonebloom.spark.Indexed(path)"
            raise arguments.invalid_value(given, name, advice)
        if given.isStreaming:
            raise InvalidArgument(
                f"{name} is a stream, and an index holds the files there are now; use join()"
            )
        if not isinstance(index, str | os.PathLike | Sequence | Dataset | None):
            raise arguments.invalid_value(
                index, "an index", "give the path of the files, or a Dataset"
            )
        if not isinstance(index, Dataset | None):
            index = open_dataset(Options(Indexed(index).options(spark)).source, spark)
        self.index = index
        self._fields = list(given.schema)

    @property
    def num_columns(self) -> int:
        """How many columns of the side may be read."""
        return len(self._fields)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The side as a frame, which Spark's own reader reads."""
        if self._frame is None:
            self._frame = self._read(spark) if self.is_indexed_files else self._given
        return self._frame

    def _read(self, spark: SparkSession) -> DataFrame:
        given = self._given
        several = not isinstance(given.path, str | os.PathLike)
        paths = map(os.fspath, given.path if several else [given.path])
        frame = spark.read.parquet(*map(absolute_path, paths))
        if given.filter is not None:
            frame = self.prune(frame.where(given.filter))
        return frame if given.columns is None else frame.select(*map(quote_name, given.columns))

    def read_zones(self, spark: SparkSession, keys: pa.Table) -> DataFrame:
        """Of an `Indexed` side the rows that may have some keys."""
        return self._given.frame(spark, encode_keys(keys))

    def prune(self, frame: DataFrame) -> DataFrame:
        """A frame of the side without the files its filters exclude by the index of the side."""
        assert self.index is not None
        catalog = self.index.opened.catalog
        folder = catalog.folder if is_local(catalog.filesystem) else None
        index_dir = self._given.index_dir if self.is_indexed_files else folder
        return prune(frame, index_dir=index_dir, encryption=catalog.encryption)

    def key_field(self, name: str) -> StructField:
        """The field of a key column."""
        names = [field.name for field in self._fields]
        stored = find_column(names, name)
        if stored is None:
            known = arguments.suggest_names(name, names, "it has")
            raise ColumnNotFound(f"{self.name} has no column {name!r}, or several; {known}")
        return self._fields[names.index(stored)]


def collect_side(frame: DataFrame, names: list[str], max_keys: int) -> tuple[DataFrame, pa.Table]:
    """A small frame, computed once and held, and its key columns in rows without a null.

    A frame computed again need not give the same rows, as limit() shows.
    """
    if max_keys < 1:
        raise RuleNotUsed("max_keys is 0")
    if len(set(frame.columns)) < len(frame.columns):
        raise RuleNotUsed("several columns of the other side have one name")
    try:
        rows = frame.limit(max_keys + 1).toArrow()
    except Exception as error:
        # If it is more than a type Arrow has not, the join will say so too.
        lines = str(error).splitlines() or [type(error).__name__]
        raise RuleNotUsed(f"the other side cannot be collected: {lines[0]}") from error
    if rows.num_rows > max_keys:
        raise RuleNotUsed(f"the other side has more than max_keys={max_keys:,} rows")
    # Nulls alone: dropna() of a frame would drop NaN too.
    keys = rows.select(names).drop_null()
    if rows.nbytes > _SMALL_BYTES or keys.nbytes > _MOST_KEY_BYTES:
        raise RuleNotUsed(f"the other side has {rows.nbytes:,} bytes in few rows")
    session: Any = frame.sparkSession
    return session.createDataFrame(rows, schema=frame.schema), keys


def key_mismatch_reason(one: StructField, other: StructField) -> str | None:
    """Why equality of two key columns is more than equality of their values, None if it is not."""
    for key in (one, other):
        if not is_plain_text(key):
            return f"{key.name} is text that Spark compares by a collation or pads"
    both = isinstance(one.dataType, INTEGER_TYPES) and isinstance(other.dataType, INTEGER_TYPES)
    if one.dataType != other.dataType and not both:
        return (
            f"{one.name} is {one.dataType.simpleString()} on one side and "
            f"{other.dataType.simpleString()} on the other, compared after a cast"
        )
    return None

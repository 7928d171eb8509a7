"""A side of a join: a frame with or without an index, or indexed files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField

from zonebloom.base import arguments
from zonebloom.errors import ColumnNotFound, InvalidArgument
from zonebloom.facade.dataset import Dataset
from zonebloom.spark.frames import FilePaths, Indexed
from zonebloom.spark.load import Options, encode_keys
from zonebloom.spark.opening import open_dataset
from zonebloom.spark.pruning.prune import prune
from zonebloom.spark.session_settings import quote_name
from zonebloom.spark.types import INTEGER_TYPES, is_plain_text
from zonebloom.spark.versions import is_classic
from zonebloom.storage.files import is_local
from zonebloom.storage.paths import absolute_path
from zonebloom.values.columns import find_column, matching_names

Index: TypeAlias = "FilePaths | Dataset | None"


class RuleNotUsed(Exception):
    """The reason why a rule of a join is not used."""


class JoinSide:
    def __init__(self, name: str, frame_or_files: Any, index: Index, spark: Any):
        self.name = name
        self.spark = spark
        self.is_indexed_files: bool = isinstance(frame_or_files, Indexed)
        self._input = frame_or_files
        if isinstance(frame_or_files, Indexed):
            if index is not None:
                raise InvalidArgument(f"{name} is Indexed already; leave {name}_index out")
            load = frame_or_files.load(spark)
            self.index: Dataset | None = load.dataset
            # The schema of the load also has columns that only the filter needs.
            names = frame_or_files.columns or load.schema.names
            self._fields = [field for field in load.schema if matching_names(names, field.name)]
            return
        if not hasattr(frame_or_files, "sparkSession"):
            advice = "give a DataFrame, or zonebloom.spark.Indexed(path)"
            raise arguments.invalid_value(frame_or_files, name, advice)
        if frame_or_files.isStreaming:
            raise InvalidArgument(
                f"{name} is a stream, but an index knows only files that exist already; use join()"
            )
        if not isinstance(index, str | os.PathLike | Sequence | Dataset | None):
            raise arguments.invalid_value(
                index, "an index", "give the path of the files, or a Dataset"
            )
        if not isinstance(index, Dataset | None):
            index = open_dataset(Options(Indexed(index).options(spark)).source, spark)
        self.index = index
        self._fields = list(frame_or_files.schema)

    @property
    def num_columns(self) -> int:
        return len(self._fields)

    @cached_property
    def frame(self) -> DataFrame:
        """Return the side as a frame of Spark's own reader, which skips files by the index."""
        frame = self._read_files() if self.is_indexed_files else self._input
        if self.index is None or not self.index.opened.indices or not is_classic(self.spark):
            return frame
        catalog = self.index.opened.catalog
        folder = catalog.folder if is_local(catalog.filesystem) else None
        index_dir = self._input.index_dir if self.is_indexed_files else folder
        return prune(frame, index_dir=index_dir, encryption=catalog.encryption)

    def _read_files(self) -> DataFrame:
        indexed = self._input
        has_several_paths = not isinstance(indexed.path, str | os.PathLike)
        paths = map(os.fspath, indexed.path if has_several_paths else [indexed.path])
        frame = self.spark.read.parquet(*map(absolute_path, paths))
        if indexed.filter is not None:
            frame = frame.where(indexed.filter)
        return frame if indexed.columns is None else frame.select(*map(quote_name, indexed.columns))

    def read_zones(self, keys: pa.Table) -> DataFrame:
        """Return the rows of indexed files that may have one of the keys, read by zones."""
        return self._input.frame(self.spark, encode_keys(keys))

    def key_field(self, name: str) -> StructField:
        names = [field.name for field in self._fields]
        stored_name = find_column(names, name)
        if stored_name is None:
            choices_text = arguments.suggest_names(name, names, "it has")
            raise ColumnNotFound(f"{self.name} has no column {name!r}, or several; {choices_text}")
        return self._fields[names.index(stored_name)]


def key_mismatch_reason(one: StructField, other: StructField) -> str | None:
    """Return why Spark may compare two key columns other than by their values, or None."""
    for key in (one, other):
        if not is_plain_text(key):
            return f"{key.name} is text that Spark compares by a collation or pads"
    both_integers = isinstance(one.dataType, INTEGER_TYPES) and isinstance(
        other.dataType, INTEGER_TYPES
    )
    if one.dataType != other.dataType and not both_integers:
        return (
            f"{one.name} is {one.dataType.simpleString()} on one side and "
            f"{other.dataType.simpleString()} on the other, compared after a cast"
        )
    return None

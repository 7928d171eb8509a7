"""A side of a join: a frame with or without an index."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField

from zonebloom.base import arguments
from zonebloom.errors import ColumnNotFound, InvalidArgument
from zonebloom.facade.dataset import Dataset
from zonebloom.spark.frames import FilePaths, absolute_paths
from zonebloom.spark.managed_indices import deleted_indices, without_deleted_indices
from zonebloom.spark.opening import open_dataset
from zonebloom.spark.pruning.index_lookup import IndexLookup
from zonebloom.spark.pruning.optimizer_rule import with_index
from zonebloom.spark.session_state import session_state
from zonebloom.spark.types import INTEGER_TYPES, is_plain_text
from zonebloom.values.columns import find_column

Index: TypeAlias = "FilePaths | Dataset | None"


class RuleNotUsed(Exception):
    """The reason why a rule of a join is not used."""


class JoinSide:
    """A frame that is a side of a join, with the indexed dataset whose rows it reads, if any."""

    def __init__(self, name: str, frame: Any, index: Index, spark: Any):
        self.name = name
        self.spark = spark
        if arguments.require_instance(frame, DataFrame, name).isStreaming:
            raise InvalidArgument(
                f"{name} is a stream, but an index knows only files that exist already; use join()"
            )
        self._input = frame
        self._fields = list(frame.schema)
        # The dataset of the files, without deleted indices. Paths are opened now.
        self.index: Dataset | None = None
        # The scans of a session under `enable` ask the indices beside their files anyway.
        self._is_asked_anyway = session_state(spark).has_rule and not isinstance(index, Dataset)
        if index is not None:
            if not isinstance(index, Dataset):
                index = open_dataset(absolute_paths(index, f"{name}_index"), spark)
            self.index = without_deleted_indices(index, deleted_indices(spark))

    @cached_property
    def frame(self) -> DataFrame:
        """Return the side as a frame of Spark's own reader, which skips files by the index."""
        if self.index is None or self._is_asked_anyway:
            return self._input
        catalog = self.index.opened.catalog
        folder = None if catalog.store.has_round_trips else catalog.folder
        return with_index(self._input, IndexLookup(self.spark, folder, catalog.encryption).ask)

    def key_position(self, name: str) -> int:
        """Return the position of a key among the columns. Raise `ColumnNotFound` without it."""
        names = [field.name for field in self._fields]
        stored_name = find_column(names, name)
        if stored_name is None:
            choices_text = arguments.suggest_names(name, names, "it has")
            raise ColumnNotFound(f"{self.name} has no column {name!r}, or several; {choices_text}")
        return names.index(stored_name)

    def key_field(self, name: str) -> StructField:
        return self._fields[self.key_position(name)]


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

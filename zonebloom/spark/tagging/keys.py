"""A frame of keys made ready: each as the dataset's column would hold it, if it can. The rows found
are joined by Spark, on the keys as they were given.

Where every value of a column is one of the type Spark compares in, at most one equals a key: the
key cast to the column's type, if it still equals the key then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.base import arguments
from zonebloom.dataset import Dataset
from zonebloom.errors import ColumnNotFound, InvalidArgument, UnsupportedType
from zonebloom.scan.binding import known_columns_text
from zonebloom.spark.load import SparkFiles
from zonebloom.spark.session import quote_name
from zonebloom.spark.types import arrow_schema, is_collated, spark_types
from zonebloom.values.types import require_indexable

PREFIX = "__zonebloom_"
# Where a row found lies: no column of the keys has such names.
FRAGMENT_ID, PATH, ROW_OFFSET, FILE_NUMBER = (
    PREFIX + name for name in ("fragment_id", "path", "row_offset", "file")
)
_SHOWN = 4
_DIGITS = {st.ByteType: 3, st.ShortType: 5, st.IntegerType: 10, st.LongType: 20}
_MOST_DIGITS = 38


@dataclass(frozen=True)
class KeyFrameColumns:
    """The columns that keys and dataset have in common."""

    names: tuple[str, ...]
    # As the dataset has them for Spark, under names that begin with `PREFIX`, and in Arrow.
    fields: tuple[st.StructField, ...]
    schema: pa.Schema
    # Of the keys: their values in the dataset's types, null where no row is equal.
    probes: tuple[Column, ...]

    def join_condition(self) -> Column:
        """Keys against rows found, by Spark's own equality."""
        terms = [
            sf.col(quote_name(name)) == sf.col(field.name)
            for name, field in zip(self.names, self.fields, strict=True)
        ]
        return reduce(and_, terms)


def match_key_columns(keys: DataFrame, files: SparkFiles, names: Sequence[str]) -> KeyFrameColumns:
    """Match the key columns of a frame with those of a dataset."""
    ds = files.dataset
    source = ds.opened.source
    by_path = source.partition_columns()
    for name in names:
        if source.schema.names.count(name) != 1 or keys.columns.count(name) != 1:
            in_keys = arguments.suggest_names(name, keys.columns, "the keys have")
            raise ColumnNotFound(
                f"key column {name!r} must be once in the keys and once in the dataset; "
                f"{known_columns_text(name, source.schema)}; {in_keys}; rename columns of the "
                "keys to "
                "the dataset's names"
            )
    given = {field.name: field.dataType for field in keys.schema}
    probes: list[Column] = []
    fields: list[st.StructField] = []
    for number, field in enumerate(spark_types(source.schema, list(names), files.types)):
        name, kind = field.name, field.dataType
        arrow = source.schema.field(name).type
        if not pt.is_boolean(arrow):
            require_indexable(arrow, name)
        if name in by_path:
            _require_texts(ds, name, given[name], kind)
        fields.append(st.StructField(f"{PREFIX}{number}", kind))
        probes.append(_probe(name, given[name], kind).alias(f"{PREFIX}{number}"))
    return KeyFrameColumns(
        tuple(names),
        tuple(fields),
        arrow_schema(st.StructType(fields)),
        tuple(probes),
    )


def _require_texts(ds: Dataset, name: str, key: st.DataType, stored: st.DataType) -> None:
    """Refuse keys that are no text where paths give text, which no cast need arrive at."""
    if not isinstance(stored, st.StringType) or isinstance(key, st.StringType | st.NullType):
        return
    source = ds.opened.source
    texts = sorted({str(source.constants(file).get(name)) for file in source.fragments} - {"None"})
    shown = ", ".join(map(repr, texts[:_SHOWN])) + (", ..." if len(texts) > _SHOWN else "")
    raise InvalidArgument(
        f"key column {name!r} is {key.simpleString()}, and the paths give texts that are not all "
        f"of one such type: {shown}. Give the keys these very texts (a cast may write a value "
        "otherwise than the path does: 2.0 for 2), or leave the column out to look in all files"
    )


def _probe(name: str, key: st.DataType, stored: st.DataType) -> Column:
    """A key as the dataset's column holds it, null where no value of the column equals it."""
    column = sf.col(quote_name(name))
    for side in filter(is_collated, (key, stored)):
        raise UnsupportedType(
            f"key column {name!r} is {side.simpleString()}: under a collation other texts are "
            "equal than those of the same bytes; cast it to STRING COLLATE UTF8_BINARY"
        )
    # CHAR and VARCHAR: Spark holds their text as it compares it.
    both_text = isinstance(key, st.StringType) and isinstance(stored, st.StringType)
    if both_text or key == stored or isinstance(key, st.NullType):
        return column.cast(stored)
    if not _is_exact(key, stored):
        ours, theirs = key.simpleString(), stored.simpleString()
        raise InvalidArgument(
            f"key column {name!r} is {ours} and the dataset's {theirs}, which Spark casts or "
            f"rounds to compare; cast the keys' column to {theirs} first"
        )
    cast = column.try_cast(stored)
    return sf.when(cast == column, cast)


def _is_exact(key: st.DataType, stored: st.DataType) -> bool:
    """Whether the type Spark compares the two in holds every value of the column as it is."""
    if isinstance(stored, st.DoubleType | st.FloatType):
        # A number and a double meet in a double, and each float is one.
        return isinstance(key, st.NumericType)
    ours, theirs = _digits(key), _digits(stored)
    if ours is None or theirs is None:
        return False
    return max(ours[0], theirs[0]) + max(ours[1], theirs[1]) <= _MOST_DIGITS


def _digits(kind: st.DataType) -> tuple[int, int] | None:
    """Digits before and after the point of a number that is no floating point."""
    if isinstance(kind, st.DecimalType):
        return kind.precision - kind.scale, kind.scale
    return (_DIGITS[type(kind)], 0) if type(kind) in _DIGITS else None


def collect_keys(keys: DataFrame, columns: KeyFrameColumns, most: int) -> pa.Table | None:
    """The probes of all keys, None when there are more than ``most``."""
    probes: Any = keys.select(*columns.probes).limit(most + 1).toArrow()
    return probes.cast(columns.schema) if probes.num_rows <= most else None

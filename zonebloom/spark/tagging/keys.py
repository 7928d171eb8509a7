"""Cast the keys of a frame to the types of a dataset's columns, to look them up in its indices.

The index finds candidate rows for the cast keys. Spark then joins these rows with the original
keys, by its own equality. A cast is exact if the type in which Spark compares both sides can hold
every value of the column. At most one value then equals a key: the key cast to the column's type,
if the result still equals the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from zonebloom.base import arguments
from zonebloom.errors import ColumnNotFound, InvalidArgument, UnsupportedType
from zonebloom.facade.dataset import Dataset
from zonebloom.scan.binding import known_columns_text
from zonebloom.spark.load import SparkFiles
from zonebloom.spark.session_settings import quote_name
from zonebloom.spark.types import is_collated, spark_types
from zonebloom.spark.versions import arrow_schema
from zonebloom.values.types import is_lossless_cast, require_indexable

PREFIX = "__zonebloom_"
# Columns that tell where a candidate row is. Columns of the keys must not have the prefix.
FRAGMENT_ID, PATH, ROW_OFFSET = (PREFIX + name for name in ("fragment_id", "path", "row_offset"))
_MAX_LISTED_TEXTS = 4
_DIGITS = {st.ByteType: 3, st.ShortType: 5, st.IntegerType: 10, st.LongType: 20}
_MAX_DIGITS = 38


@dataclass(frozen=True)
class KeyFrameColumns:
    """The key columns of a frame, matched with the columns of a dataset."""

    names: tuple[str, ...]
    # The columns as Spark reads them from the dataset, under names that begin with `PREFIX`, and
    # their Arrow schema.
    fields: tuple[st.StructField, ...]
    schema: pa.Schema
    # Expressions that cast the keys to the dataset's types. They are null if no row can match.
    probes: tuple[Column, ...]
    # The columns whose keys have a type of which the dataset's type does not hold all values.
    unfitting_names: tuple[str, ...]

    def join_condition(self) -> Column:
        """Return the condition that joins keys with candidate rows, by Spark's own equality."""
        terms = [
            sf.col(quote_name(name)) == sf.col(field.name)
            for name, field in zip(self.names, self.fields, strict=True)
        ]
        return reduce(and_, terms)


def match_key_columns(keys: DataFrame, files: SparkFiles, names: Sequence[str]) -> KeyFrameColumns:
    """Return the key columns of a frame, matched with those of a dataset."""
    ds = files.dataset
    source = ds.opened.source
    partition_columns = source.partition_columns()
    for name in names:
        if source.schema.names.count(name) != 1 or keys.columns.count(name) != 1:
            in_keys = arguments.suggest_names(name, keys.columns, "the keys have")
            raise ColumnNotFound(
                f"key column {name!r} must exist once in the keys and once in the dataset; "
                f"{known_columns_text(name, source.schema)}; {in_keys}; rename columns of the "
                "keys to the dataset's names"
            )
    key_types = {field.name: field.dataType for field in keys.schema}
    probes: list[Column] = []
    fields: list[st.StructField] = []
    for number, field in enumerate(spark_types(source.schema, list(names), files.types)):
        name, kind = field.name, field.dataType
        arrow = source.schema.field(name).type
        if not pt.is_boolean(arrow):
            require_indexable(arrow, name)
        if name in partition_columns:
            _require_texts(ds, name, key_types[name], kind)
        fields.append(st.StructField(f"{PREFIX}{number}", kind))
        probes.append(_cast_key(name, key_types[name], kind).alias(f"{PREFIX}{number}"))
    return KeyFrameColumns(
        tuple(names),
        tuple(fields),
        arrow_schema(st.StructType(fields)),
        tuple(probes),
        tuple(
            name
            for name, field in zip(names, fields, strict=True)
            if not _holds_all_keys(field.dataType, key_types[name])
        ),
    )


def _holds_all_keys(stored: st.DataType, key: st.DataType) -> bool:
    if key == stored or isinstance(key, st.NullType):
        return True
    ours, theirs = arrow_schema(st.StructType().add("key", key).add("stored", stored)).types
    return is_lossless_cast(ours, theirs)


def _require_texts(ds: Dataset, name: str, key: st.DataType, stored: st.DataType) -> None:
    """Raise `InvalidArgument` if a partition column holds strings, but its key column does not.

    A cast of the keys to strings may give other texts than those in the paths.
    """
    if not isinstance(stored, st.StringType) or isinstance(key, st.StringType | st.NullType):
        return
    source = ds.opened.source
    texts = sorted({str(source.constants(file).get(name)) for file in source.fragments} - {"None"})
    texts_shown = ", ".join(map(repr, texts[:_MAX_LISTED_TEXTS]))
    texts_shown += ", ..." if len(texts) > _MAX_LISTED_TEXTS else ""
    raise InvalidArgument(
        f"key column {name!r} is {key.simpleString()}, but the paths hold texts that are not all "
        f"of such a type: {texts_shown}. Give the keys these very texts (a cast may write a value "
        "in another way than the path: 2.0 for 2), or leave the column out to search all files"
    )


def _cast_key(name: str, key: st.DataType, stored: st.DataType) -> Column:
    """Return a key cast to the stored type, null if no value of the column can equal it."""
    column = sf.col(quote_name(name))
    for side in filter(is_collated, (key, stored)):
        raise UnsupportedType(
            f"key column {name!r} is {side.simpleString()}: under a collation, texts with "
            "different bytes may be equal; cast it to STRING COLLATE UTF8_BINARY"
        )
    # Spark stores the values of CHAR and VARCHAR as it compares them.
    both_text = isinstance(key, st.StringType) and isinstance(stored, st.StringType)
    if both_text or key == stored or isinstance(key, st.NullType):
        return column.cast(stored)
    if not _is_comparison_exact(key, stored):
        ours, theirs = key.simpleString(), stored.simpleString()
        raise InvalidArgument(
            f"key column {name!r} is {ours} and the dataset's is {theirs}, which Spark casts or "
            f"rounds to compare; cast the keys' column to {theirs} first"
        )
    # Spark 3.5 has this cast only in SQL.
    cast = sf.expr(f"TRY_CAST({quote_name(name)} AS {stored.simpleString()})")
    return sf.when(cast == column, cast)


def _is_comparison_exact(key: st.DataType, stored: st.DataType) -> bool:
    """Return whether the type in which Spark compares both can hold every value of the column."""
    if isinstance(stored, st.DoubleType | st.FloatType):
        # Spark compares any number with a float or double as doubles, and every float is a double.
        return isinstance(key, st.NumericType)
    ours, theirs = _decimal_digits(key), _decimal_digits(stored)
    if ours is None or theirs is None:
        return False
    return max(ours[0], theirs[0]) + max(ours[1], theirs[1]) <= _MAX_DIGITS


def _decimal_digits(kind: st.DataType) -> tuple[int, int] | None:
    """Return the digits before and after the point of an integer or decimal type, or None."""
    if isinstance(kind, st.DecimalType):
        return kind.precision - kind.scale, kind.scale
    return (_DIGITS[type(kind)], 0) if type(kind) in _DIGITS else None

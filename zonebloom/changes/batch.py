"""Check the rows of an upsert and the keys of an erasure, and convert them exactly."""

from __future__ import annotations

import sys
import tempfile
import textwrap
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.base.arrays import to_numpy, uuids_of
from zonebloom.base.text import count_text
from zonebloom.changes.key_test import named_rows, require_no_nulls
from zonebloom.errors import InvalidArgument
from zonebloom.scan.key_numbers import RowNumbers
from zonebloom.scan.key_values import normalized_column
from zonebloom.scan.recheck import gather
from zonebloom.values.normal_types import convert_at_every_depth, decoded_type, without_views
from zonebloom.values.types import LIST_TYPES, TIME_ZONE_ADVICE, family, time_zones_differ

_MAX_SHOWN_CHARACTERS = 80
# The digits of the largest integer of 64 bits.
_INTEGER_DIGITS = 20


@contextmanager
def checked_rows(
    rows: Any, schema: pa.Schema, keys: Sequence[str], updated: Collection[str] | None
) -> Iterator[pa.Table]:
    """Yield the rows of an upsert in the types of a dataset.

    ``updated`` are the columns whose values replace others, or None for all of the rows.

    A reader of batches may hold more rows than memory does. They go to a temporary file, which is
    mapped into memory.

    Raises
    ------
    InvalidArgument
        If a column is unknown, if a value has no equal in the type of its column, or if keys are
        null or NaN, or occur twice. The message names the first such rows.
    """
    if isinstance(rows, pa.RecordBatchReader):
        with tempfile.TemporaryDirectory(prefix="zonebloom-") as folder:
            path = str(Path(folder, "rows.arrow"))
            wanted = _wanted_schema(rows.schema, schema, keys)
            # A stream may change its dictionaries, unlike a file of Arrow.
            with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, wanted) as writer:
                first_row = 0
                for batch in rows:
                    table = pa.Table.from_batches([batch])
                    table = _cast_exactly(table, wanted, first_row, updated)
                    writer.write_table(table)
                    first_row += batch.num_rows
            with pa.memory_map(path) as file:
                table = pa.ipc.open_stream(file).read_all()
                _require_distinct_keys(table, keys)
                yield table
        return
    table = _as_table(rows)
    table = _cast_exactly(table, _wanted_schema(table.schema, schema, keys), 0, updated)
    _require_distinct_keys(table, keys)
    yield table


def _as_table(rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(rows, pandas.DataFrame):
        # Its export to Arrow would have the index as a column.
        return pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, pa.RecordBatch) or hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    raise arguments.invalid_value(
        rows,
        "rows",
        "give a pyarrow Table or RecordBatchReader, or a frame of Polars or pandas; of a list of "
        "dicts, pa.Table.from_pylist makes a table",
    )


def _wanted_schema(given: pa.Schema, schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """Return the columns that are given, with the types of the dataset."""
    for name in given.names:
        if given.names.count(name) > 1:
            raise InvalidArgument(f"rows have several columns {name!r}; give each once")
        if name not in schema.names:
            hint = arguments.suggest_names(name, schema.names, "the columns are")
            raise InvalidArgument(f"rows have a column {name!r}, and the dataset has none; {hint}")
    for name in keys:
        if name not in given.names:
            raise InvalidArgument(f"rows have no column {name!r}, which is a key; add it")
        given_type, key_type = given.field(name).type, schema.field(name).type
        if not pa.types.is_null(given_type) and _kind(given_type) != _kind(key_type):
            # PyArrow would cast 7 to the text '7', a new key beside '07'.
            raise InvalidArgument(
                f"rows have {given_type} in the column {name!r}, a key of {key_type}; convert it, "
                "and give the rows again"
            )
    return pa.schema([schema.field(name).remove_metadata() for name in given.names])


def _require_whole_values(name: str, values: Any, wanted: pa.DataType, *, replaces: bool) -> None:
    """Raise `InvalidArgument` if PyArrow would convert values to others.

    It takes times without a zone for those of UTC. Fields that structs lack become null, which
    loses values if the rows replace others.
    """
    if values.null_count == len(values):
        return
    given, wanted = decoded_type(values.type), decoded_type(wanted)
    if time_zones_differ(given, wanted):
        raise InvalidArgument(
            f"rows have {given} in the column {name!r}, and the dataset has {wanted}; convert "
            f"them: {TIME_ZONE_ADVICE}"
        )
    if isinstance(given, pa.StructType) and isinstance(wanted, pa.StructType):
        for field in wanted:
            if given.get_field_index(field.name) >= 0:
                part = pc.call_function("struct_field", [values], pc.StructFieldOptions(field.name))
                part_name = f"{name}.{field.name}"
                _require_whole_values(part_name, part, field.type, replaces=replaces)
            elif replaces:
                raise InvalidArgument(
                    f"rows have no field {field.name!r} in the column {name!r}, whose values would "
                    "be lost; add it"
                )
    elif isinstance(given, LIST_TYPES) and isinstance(wanted, LIST_TYPES):
        items = pc.call_function("list_flatten", [values])
        _require_whole_values(name, items, wanted.value_type, replaces=replaces)
    elif isinstance(given, pa.MapType) and isinstance(wanted, pa.MapType):
        given_type, wanted_type = (
            pa.list_(pa.struct([("key", type_.key_type), ("value", type_.item_type)]))
            for type_ in (given, wanted)
        )
        _require_whole_values(name, values.cast(given_type), wanted_type, replaces=replaces)


def _kind(type_: pa.DataType) -> str:
    """Return the kind of a key's type. PyArrow casts keys of one kind without a second spelling."""
    kind = family(decoded_type(type_))
    if kind in ("integer", "float", "decimal"):
        return "number"
    return kind if kind == "boolean" else "other"


def _cast_exactly(
    table: pa.Table, wanted: pa.Schema, first_row: int, updated: Collection[str] | None
) -> pa.Table:
    """Return the rows in other types. Raise `InvalidArgument` for values that would change."""
    columns = []
    for field in wanted:
        column = table.column(field.name)
        if not field.nullable and column.null_count:
            named = named_rows(to_numpy(column.is_null()), first_row)
            raise InvalidArgument(f"column {field.name!r} takes no nulls, but has one in {named}")
        if pa.types.is_null(column.type):
            column = pa.chunked_array([pa.nulls(len(column), field.type)])
        if column.type != field.type:
            if pa.types.is_dictionary(column.type):
                # PyArrow cannot decode a dictionary of views, which is a categorical of Polars.
                values = without_views(column.type.value_type)
                kind = pa.dictionary(column.type.index_type, values)
                column = column.cast(kind).cast(values)
            plain_type = without_views(column.type)
            if plain_type != column.type:
                # PyArrow cannot cast views to dictionaries.
                column = column.cast(plain_type)
            if pa.types.is_nested(column.type):
                # PyArrow casts all items of a list, those outside of a slice included.
                column = _copied(column, 0, len(column))
            replaces = updated is None or field.name in updated
            _require_whole_values(field.name, column, field.type, replaces=replaces)
            column = _cast_column(column, field, first_row)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=wanted)


def _cast_column(column: pa.ChunkedArray, field: pa.Field, first_row: int) -> pa.ChunkedArray:
    try:
        if isinstance(field.type, pa.UuidType) and family(column.type) == "text":
            uuids = uuids_of(column)
            if uuids is not None:
                return pa.chunked_array([uuids.cast(field.type)])
        else:
            values = column
            if pa.types.is_integer(column.type) and pa.types.is_decimal(field.type):
                # PyArrow casts integers only to decimals that hold all integers of their type.
                values = column.cast(pa.decimal128(_INTEGER_DIGITS, 0))
            converted = values.cast(field.type)
            if are_equal(converted.cast(column.type), column):
                return converted
    except pa.ArrowException:
        pass
    if len(column) > 1:
        # Look for the first row that cannot be converted.
        middle = len(column) // 2
        for start, stop in ((0, middle), (middle, len(column))):
            _cast_column(_copied(column, start, stop), field, first_row + start)
    raise InvalidArgument(
        f"row {first_row:,} of the rows has {_shown(column[0])} in column {field.name!r}, which no "
        f"{field.type} equals; convert the column, and give the rows again"
    )


def _copied(column: pa.ChunkedArray, start: int, stop: int) -> pa.ChunkedArray:
    return gather(pa.table([column], ["x"]), np.arange(start, stop)).column(0)


def _shown(value: pa.Scalar) -> str:
    try:
        # Python has no nanoseconds.
        text = value.cast(pa.string()).as_py()
    except pa.ArrowNotImplementedError:
        text = str(value)
    return textwrap.shorten(text, _MAX_SHOWN_CHARACTERS, placeholder="...")


def are_equal(values: pa.ChunkedArray, others: pa.ChunkedArray) -> bool:
    """Return whether columns of one type hold the same values. NaN equals NaN."""
    if values.equals(others):
        return True
    if pa.types.is_floating(values.type):
        return np.array_equal(values.to_numpy(), others.to_numpy(), equal_nan=True)
    # PyArrow takes nested NaN, and values of other dictionaries, for different. Python's dates and
    # times end in the year 9999, and have no nanoseconds.
    plain = convert_at_every_depth(values.type, _without_times)
    if plain != values.type:
        values, others = values.cast(plain), others.cast(plain)
    return repr(values.to_pylist()) == repr(others.to_pylist())


def _without_times(type_: pa.DataType) -> pa.DataType:
    """Return the integers by which a type of dates, times or durations stores its values."""
    if not pa.types.is_temporal(type_) or pa.types.is_interval(type_):
        return type_
    return pa.int32() if type_.bit_width == 32 else pa.int64()


def _require_distinct_keys(table: pa.Table, keys: Sequence[str]) -> None:
    columns = []
    for name in keys:
        column = normalized_column(table, (name,))
        require_no_nulls(column, name, "or give them keys")
        columns.append(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    # Equal keys have the number of their first row.
    numbers = RowNumbers(columns).key_numbers
    repeated = np.flatnonzero(numbers != np.arange(numbers.size))
    if repeated.size:
        number = repeated[0]
        key = table.select(list(keys)).slice(int(number), 1).to_pylist()[0]
        count = np.unique(numbers[repeated]).size
        raise InvalidArgument(
            f"{count_text(count, 'key')} {'occurs' if count == 1 else 'occur'} more than once in "
            f"the rows, first {arguments.short_repr(key)} in rows {numbers[number]:,} and "
            f"{number:,}; keep one row of each key"
        )

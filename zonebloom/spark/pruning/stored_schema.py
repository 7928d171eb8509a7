"""Find the Arrow types in which files hold the columns of a Spark relation, by their indices.

The files of a table may differ: old ones lack new columns, and others store narrower types. So the
types of the relation count, and not those of any file. Spark shows several Arrow types as one type,
such as ``int`` for int32 and uint16. The domain of an index tells which of them it holds.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import types as st

from zonebloom.catalog.model import IndexEntry
from zonebloom.index.row_keys.rules import rule_of
from zonebloom.spark.types import INTEGER_TYPES, is_collated, type_name
from zonebloom.values.columns import find_column

ColumnPath = tuple[str, ...]

# Of the integer types that Spark shows as one type, or widens to it, the widest comes first.
_LEAF_TYPES = (
    *(pa.int64(), pa.uint32(), pa.int32(), pa.uint16(), pa.int16(), pa.uint8(), pa.int8()),
    *(pa.uint64(), pa.bool_(), pa.float32(), pa.float16(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32(), pa.date64()),
    *(pa.timestamp(unit, zone) for zone in ("UTC", None) for unit in ("us", "ms", "s")),
)
# The types of decimals, with the most digits of each.
_DECIMALS = (pa.decimal128, 38), (pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal256, 38)
_FIXED_BINARY = re.compile(r"fixed_size_binary\[(\d+)\]")


def stored_schema(types: Mapping[str, str], indices: Iterable[IndexEntry]) -> pa.Schema:
    """Return the Arrow types of columns, whose Spark types are given as JSON.

    Names are spelled as by the indices. A column of a type that no index can hold is left out.
    """
    indices = list(indices)
    widths = {int(width) for entry in indices for width in _FIXED_BINARY.findall(entry.domain)}
    table = _parse(types)
    stored_types: dict[ColumnPath, pa.DataType] = {}
    for entry in indices:
        rule = rule_of(entry.rule)
        paths = [entry.column, *rule.other_columns]
        choices = [_stored_types(_type_at(table, path), widths) for path in paths]
        names = [".".join(path) for path in paths]
        for choice in itertools.product(*choices):
            if rule.why_not_indexable(choice, names) is None and (
                rule.domain(choice) == entry.domain
            ):
                stored_types.update(zip(paths, choice, strict=True))
                break
    return pa.schema(_fields(table, (), stored_types, widths))


def _parse(types: Mapping[str, str]) -> st.StructType:
    fields: list[st.StructField] = []
    for name, text in types.items():
        field = {"name": name, "type": json.loads(text), "nullable": True, "metadata": {}}
        try:
            fields += st.StructType.fromJson({"fields": [field]}).fields
        except Exception:  # noqa: BLE001 - a type of users, or of a later Spark
            continue
    return st.StructType(fields)


def _type_at(table: st.StructType, path: ColumnPath) -> st.DataType | None:
    kind: st.DataType = table
    for name in path:
        if not isinstance(kind, st.StructType):
            return None
        found = find_column(kind.names, name)
        if found is None:
            return None
        kind = kind[found].dataType
    return kind


def _stored_types(kind: st.DataType | None, widths: Iterable[int]) -> list[pa.DataType]:
    """Return the Arrow types that Spark shows as a type, or widens to it. The usual one is first.

    ``widths`` are those of fixed binary.
    """
    if isinstance(kind, st.ArrayType):
        return [pa.list_(element) for element in _stored_types(kind.elementType, widths)]
    if isinstance(kind, st.MapType):
        sides = _stored_types(kind.keyType, widths), _stored_types(kind.valueType, widths)
        return list(itertools.starmap(pa.map_, itertools.product(*sides)))
    if isinstance(kind, st.StructType):
        return _stored_structs(kind, widths)
    if kind is None or is_collated(kind):
        return []
    names = {kind.simpleString()}
    if isinstance(kind, INTEGER_TYPES):
        narrower_types = INTEGER_TYPES[: INTEGER_TYPES.index(type(kind))]
        names |= {narrower().simpleString() for narrower in narrower_types}
    types = [*_LEAF_TYPES, *map(pa.binary, sorted(widths))]
    if isinstance(kind, st.DecimalType):
        digits = kind.precision, kind.scale
        types = [make(*digits) for make, most in _DECIMALS if digits[0] <= most] + types
    types = [arrow for arrow in types if type_name(arrow) in names]
    # PyArrow reads INT96, which Spark shows as a timestamp, as nanoseconds without a time zone.
    return [*types, pa.timestamp("ns")] if isinstance(kind, st.TimestampType) else types


def _stored_structs(struct: st.StructType, widths: Iterable[int]) -> list[pa.DataType]:
    """Return structs of which at most one field has an unusual type."""
    choices = {field.name: _stored_types(field.dataType, widths) for field in struct}
    usual = {name: types[0] for name, types in choices.items() if types}
    others = [{**usual, name: t} for name, types in choices.items() for t in types[1:]]
    return [pa.struct(list(fields.items())) for fields in (usual, *others)]


def _fields(
    struct: st.StructType,
    above: ColumnPath,
    stored_types: Mapping[ColumnPath, pa.DataType],
    widths: Sequence[int] | set[int],
) -> list[pa.Field]:
    """Return the fields of a struct with the stored types of its leaves."""
    depth = len(above)
    spellings = dict.fromkeys(
        path[depth] for path in stored_types if len(path) > depth and path[:depth] == above
    )
    fields: dict[str, pa.Field] = {}
    for field in struct:
        name = find_column(spellings, field.name) or field.name
        path, kind = (*above, name), field.dataType
        if path in stored_types:
            fields[name] = pa.field(name, stored_types[path])
        elif isinstance(kind, st.StructType):
            fields[name] = pa.field(name, pa.struct(_fields(kind, path, stored_types, widths)))
        elif usual := _stored_types(kind, widths):
            fields[name] = pa.field(name, usual[0])
    return list(fields.values())

"""Read elements of lists, maps and structs in SQL with PyArrow's functions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base import arguments
from zonebloom.predicates.sql_values import TypedValue, call, null_of
from zonebloom.values.columns import matching_names
from zonebloom.values.literal import Unanswerable

_functions: Any = pc
# PyArrow adds the number of an element to the 32-bit offset of its list, and reads memory that is
# not its own if the sum overflows.
_MAX_ELEMENT_NUMBER = 1 << 24


def is_list(type_: pa.DataType) -> bool:
    return pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_)


def refuse_search(list_: TypedValue, item: TypedValue) -> TypedValue:
    raise Unanswerable("only a list of the rows can be searched", "write list_contains(tags, 'x')")


def list_length(list_: TypedValue) -> TypedValue:
    return call(_functions.list_value_length, list_).cast(pa.int64())


def list_element(list_: TypedValue, number: int) -> TypedValue:
    """Return the element with a number. The first is 1. It is null if there is none."""
    if number < 0:
        # The translator handles tags[-1] itself.
        raise Unanswerable("PyArrow cannot count from the end of this list", "write tags[-1]")
    if number > _MAX_ELEMENT_NUMBER:
        raise Unanswerable(
            f"element {number} of a list cannot be read",
            f"write a number up to {_MAX_ELEMENT_NUMBER}",
        )
    list_type: Any = list_.type
    if number == 0:
        return null_of(list_type.value_type)
    # PyArrow fails for lists that are too short, unless they are filled with nulls.
    filled = call(
        _functions.list_slice, list_, start=number - 1, stop=number, return_fixed_size_list=True
    )
    return call(_functions.list_element, filled, TypedValue.constant(0, pa.int64()))


def map_value(map_: TypedValue, key: TypedValue) -> TypedValue:
    """Return the value of a key. It is null if there is none."""
    map_type: Any = map_.type
    if not isinstance(key.value, pa.Scalar):
        raise Unanswerable("PyArrow looks up only constant keys in a map", "write attrs['host']")
    key = key.cast(map_type.key_type)
    return call(_functions.map_lookup, map_, query_key=key.value, occurrence="first")


def struct_field(struct: TypedValue, name: str) -> TypedValue:
    struct_type: Any = struct.type
    names = [field.name for field in struct_type]
    matches = matching_names(names, name)
    if len(matches) != 1:
        raise Unanswerable(
            f"{struct_type} has no field {name}", arguments.suggest_names(name, names, "it has")
        )
    return call(_functions.struct_field, struct, indices=[names.index(matches[0])])

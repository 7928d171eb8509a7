"""Name the functions and operators of SQL filters, and check the arguments of calls.

To add a function, write one that builds its result from `TypedValue` arguments, and give it a name
and the kinds of its parameters in `_FUNCTIONS`. The kinds are:

    text, integer, number, moment, ...    an expression of these types, see `_KINDS`
    'text', 'integer'                     a constant, which the builder gets as a Python value
    kind?                                 may be left out
    kind*                                 any number of arguments, at least one

A null argument makes the result null, unless the function is one of `_NULL_AWARE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base import arguments
from zonebloom.predicates import sql_choices as choices
from zonebloom.predicates import sql_nested as nested
from zonebloom.predicates import sql_numbers as numbers
from zonebloom.predicates import sql_strings as strings
from zonebloom.predicates import sql_times as times
from zonebloom.predicates.sql_tree import SqlValue
from zonebloom.predicates.sql_values import TypedValue, call, null_literal, null_of
from zonebloom.values.literal import Literal, Unanswerable

_functions: Any = pc
_NUMBERS = ("integer", "float", "decimal")
# Names of functions are short, so many pairs that mean different things are 0.7 similar.
_MIN_SIMILARITY = 0.8
_FUNCTIONS_PAGE = (
    "all functions are on the page Filters of the documentation, in the section Functions in SQL"
)
_READ_ADVICE = "read without this condition and filter the table"


def call_function(name: str, values: Sequence[TypedValue]) -> SqlValue:
    """Return the result of a function of SQL. Raise `Unanswerable` if the call is wrong."""
    function = _find_function(name)
    # A column of type null holds nothing but nulls.
    values = [null_of(value.type) if pt.is_null(value.type) else value for value in values]
    arguments_ = _check_arguments(name, function, values)
    is_null = any(value.is_null for value in values)
    if is_null and name not in _NULL_AWARE:
        return _null_result(name, function, values)
    return function.build(*arguments_).to_sql_value(_reason(name))


def _null_result(name: str, function: SqlFunction, values: Sequence[TypedValue]) -> SqlValue:
    """Return a null with the type of DuckDB's result, if other functions may depend on it.

    ``coalesce(f64 + NULL, i8)`` is a double.
    """
    typed_values = [value for value in values if not pt.is_null(value.type)]
    if name in ("+", "-") and len(typed_values) == 1 and times.is_moment(typed_values[0]):
        return null_literal(typed_values[0].type)
    takes_numbers = function.kinds[0] == "number" or name in ("+", "-", "*")
    if not takes_numbers or any(value.family not in _NUMBERS for value in typed_values):
        return Literal("null")
    is_decimal = any(value.family == "decimal" and not value.is_integer for value in typed_values)
    if is_decimal and len(typed_values) < len(values) and name not in ("/", "//"):
        # DuckDB gives no type to dec + NULL either.
        return Literal("null")
    if name == "round":
        return null_literal(values[0].type)
    default = typed_values[0] if typed_values else null_of(pa.int64())
    operands = [default if pt.is_null(value.type) else value for value in values]
    nulls = [
        replace(null_of(operand.type), is_big_integer=operand.is_big_integer)
        for operand in operands
    ]
    return function.build(*nulls).to_sql_value(_reason(name))


def choose_case(conditions: Sequence[TypedValue], values: Sequence[TypedValue]) -> SqlValue:
    """Return the value of CASE: that of the first true condition, else the last one."""
    return choices.case(conditions, values).to_sql_value(_reason("CASE"))


def _reason(name: str) -> str:
    kind = "function" if name[0].isalpha() else "operator"
    return f"an index does not store results of the {kind} {name}"


# Functions and operators whose arguments decide what they do.


def _add(left: TypedValue, right: TypedValue) -> TypedValue:
    for a, b in ((left, right), (right, left)):
        if (times.is_moment(a) or a.family == "time") and times.is_interval(b):
            return _shift(a, b, is_backward=False)
        if a.family == "date" and b.family == "integer":
            return times.shift_date(a, b)
    if left.family == right.family == "duration":
        return call(_functions.add_checked, left, right)
    return numbers.add(*_require_numbers("+", left, right))


def _subtract(left: TypedValue, right: TypedValue) -> TypedValue:
    if (times.is_moment(left) or left.family == "time") and times.is_interval(right):
        return _shift(left, right, is_backward=True)
    if left.family == "date" and right.family == "integer":
        return times.shift_date(left, right, is_backward=True)
    if times.is_moment(left) and times.is_moment(right):
        return times.difference(left, right)
    if left.family == right.family == "duration":
        return call(_functions.subtract_checked, left, right)
    return numbers.subtract(*_require_numbers("-", left, right))


def _shift(moment: TypedValue, interval: TypedValue, *, is_backward: bool) -> TypedValue:
    if moment.family == "time":
        raise Unanswerable(
            "a time of day and an interval may pass midnight, which PyArrow does not compute",
            "compare a timestamp",
        )
    return times.shift(moment, interval, is_backward=is_backward)


def _multiply(left: TypedValue, right: TypedValue) -> TypedValue:
    for a, b in ((left, right), (right, left)):
        if a.family == "duration" and b.family == "integer":
            return call(_functions.multiply_checked, a, b.cast(pa.int64()))
    return numbers.multiply(*_require_numbers("*", left, right))


def _negate_or_subtract(left: TypedValue, right: TypedValue | None = None) -> TypedValue:
    if right is not None:
        return _subtract(left, right)
    if left.family == "duration":
        return call(_functions.negate_checked, left)
    return numbers.negate(*_require_numbers("-", left))


def _require_numbers(operator: str, *values: TypedValue) -> Sequence[TypedValue]:
    for value in values:
        if value.family not in _NUMBERS:
            types = " and ".join(str(value.type) for value in values)
            raise Unanswerable(
                f"the operator {operator} does not take {types}",
                "use it with numbers, or with a date or timestamp and INTERVAL 1 DAY"
                if operator in ("+", "-")
                else "use it with numbers",
            )
    return values


def _length(value: TypedValue) -> TypedValue:
    return nested.list_length(value) if nested.is_list(value.type) else strings.length(value)


def _date_part(name: str, moment: TypedValue) -> TypedValue:
    part = _PARTS.get(name.lower()) or _PARTS.get(name.lower().removesuffix("s"))
    if part is None:
        advice = arguments.suggest_names(name.lower(), _PARTS, "the parts are")
        raise Unanswerable(f"{name.lower()!r} is not a part of a date or time", advice)
    return part(moment)


def _subscript(value: TypedValue, key: TypedValue) -> TypedValue:
    """Return ``value[key]``: an element of a list, a character, or the value of a map's key."""
    if pt.is_map(value.type):
        return nested.map_value(value, key)
    if pt.is_struct(value.type):
        return nested.struct_field(value, _constant("[]", "'text'", key))
    if nested.is_list(value.type):
        return nested.list_element(value, _constant("[]", "'integer'", key))
    if value.family == "text":
        return strings.substring(value, _constant("[]", "'integer'", key), 1)
    raise Unanswerable(
        f"a value of type {value.type} has no elements",
        "write an index only after a list, map or struct: tags[1], attrs['host']",
    )


_PARTS: dict[str, Callable[[TypedValue], TypedValue]] = {
    "year": times.year,
    "quarter": times.quarter,
    "month": times.month,
    "week": times.iso_week,
    "day": times.day,
    "hour": times.hour,
    "minute": times.minute,
    "second": times.second,
    "millisecond": times.millisecond,
    "microsecond": times.microsecond,
    "dayofweek": times.day_of_week,
    "dow": times.day_of_week,
    "weekday": times.day_of_week,
    "isodow": times.iso_day_of_week,
    "isoyear": times.iso_year,
    "dayofyear": times.day_of_year,
    "doy": times.day_of_year,
}


# The table of functions


@dataclass(frozen=True, slots=True)
class SqlFunction:
    """A function or operator: how its result is built, and the kinds of its parameters."""

    build: Callable[..., TypedValue]
    kinds: tuple[str, ...]

    @property
    def num_required(self) -> int:
        return sum(not kind.endswith("?") for kind in self.kinds)

    @property
    def is_variadic(self) -> bool:
        return self.kinds[-1].endswith("*")

    def kind(self, number: int) -> str:
        return self.kinds[min(number, len(self.kinds) - 1)].rstrip("?*")

    def signature(self, name: str) -> str:
        if not name[0].isalpha():
            return f"x {name} y"
        texts = [f"[{kind[:-1]}]" if kind.endswith("?") else kind for kind in self.kinds]
        texts = [f"{kind[:-1]}, ..." if kind.endswith("*") else kind for kind in texts]
        return f"{name}({', '.join(texts)})"


_KINDS: dict[str, tuple[str, Callable[[TypedValue], bool]]] = {
    "text": ("a string", lambda value: value.family == "text"),
    "integer": ("an integer", lambda value: value.family == "integer"),
    "number": ("a number", lambda value: value.family in _NUMBERS),
    "float": ("a float", lambda value: value.family == "float"),
    "moment": ("a date or timestamp", times.is_moment),
    "clock": (
        "a date, timestamp or time",
        lambda value: times.is_moment(value) or value.family == "time",
    ),
    "timestamp": ("a timestamp", lambda value: value.family in ("timestamp", "instant")),
    "list": ("a list", lambda value: nested.is_list(value.type)),
    "map": ("a map", lambda value: pt.is_map(value.type)),
    "struct": ("a struct", lambda value: pt.is_struct(value.type)),
    "sequence": (
        "a string or list",
        lambda value: value.family == "text" or nested.is_list(value.type),
    ),
    "any": ("a value", lambda value: True),
}


def _named(names: str, build: Callable[..., TypedValue], *kinds: str) -> dict[str, SqlFunction]:
    return dict.fromkeys(names.split(), SqlFunction(build, kinds))


_FUNCTIONS: dict[str, SqlFunction] = {
    **_named("+", _add, "any", "any"),
    **_named("-", _negate_or_subtract, "any", "any?"),
    **_named("*", _multiply, "any", "any"),
    **_named("/", numbers.divide, "number", "number"),
    **_named("//", numbers.divide_integers, "number", "number"),
    **_named("% mod", numbers.remainder, "number", "number"),
    **_named("||", strings.join, "any", "any"),
    **_named("abs", numbers.absolute, "number"),
    **_named("sign", numbers.sign, "number"),
    **_named("round", numbers.round_number, "number", "'integer'?"),
    **_named("floor", numbers.floor, "number"),
    **_named("ceil ceiling", numbers.ceil, "number"),
    **_named("trunc", numbers.trunc, "number"),
    **_named("isnan", numbers.is_nan, "float"),
    **_named("isinf", numbers.is_infinite, "float"),
    **_named("isfinite", numbers.is_finite, "float"),
    **_named("lower lcase", strings.lower, "text"),
    **_named("upper ucase", strings.upper, "text"),
    **_named("length len", _length, "sequence"),
    **_named("char_length character_length", strings.length, "text"),
    **_named("strlen", strings.byte_length, "text"),
    **_named("array_length", nested.list_length, "list"),
    **_named("starts_with prefix", strings.starts_with, "text", "'text'"),
    **_named("ends_with suffix", strings.ends_with, "text", "'text'"),
    **_named("contains", strings.contains, "text", "'text'"),
    **_named("contains_token", strings.contains_token, "text", "'text'"),
    # The translator searches lists itself, and calls this only for other values.
    **_named(
        "list_contains list_has array_contains array_has", nested.refuse_search, "list", "any"
    ),
    **_named("regexp_matches", strings.matches_regex, "text", "'text'", "'text'?"),
    **_named("regexp_full_match", strings.matches_whole_regex, "text", "'text'", "'text'?"),
    **_named("trim", strings.trim, "text", "'text'?"),
    **_named("ltrim", strings.trim_left, "text", "'text'?"),
    **_named("rtrim", strings.trim_right, "text", "'text'?"),
    **_named("substring substr", strings.substring, "text", "'integer'", "'integer'?"),
    **_named("left", strings.left, "text", "'integer'"),
    **_named("right", strings.right, "text", "'integer'"),
    **_named("replace", strings.replace, "text", "'text'", "'text'"),
    **_named("concat", strings.concat, "any*"),
    **_named("coalesce", choices.coalesce, "any*"),
    **_named("ifnull", choices.coalesce, "any", "any"),
    **_named("nullif", choices.nullif, "any", "any"),
    **_named("greatest", choices.greatest, "any*"),
    **_named("least", choices.least, "any*"),
    **_named("date_trunc datetrunc", times.truncate, "'text'", "moment"),
    **_named("date_part datepart", _date_part, "'text'", "clock"),
    **_named("timezone", times.at_time_zone, "'text'", "timestamp"),
    **{name: SqlFunction(part, ("clock",)) for name, part in _PARTS.items() if name != "dow"},
    **_named("weekofyear", times.iso_week, "moment"),
    **_named("dayofmonth", times.day, "moment"),
    **_named("[]", _subscript, "any", "any"),
    **_named("list_extract list_element array_extract", nested.list_element, "list", "'integer'"),
    **_named("map_extract_value", nested.map_value, "map", "any"),
    **_named("struct_extract", nested.struct_field, "struct", "'text'"),
}
_NULL_AWARE = {"coalesce", "ifnull", "nullif", "greatest", "least", "concat"}


def _find_function(name: str) -> SqlFunction:
    function = _FUNCTIONS.get(name)
    if function is None:
        names = [name for name in _FUNCTIONS if name[0].isalpha()]
        similar_names = arguments.find_similar_names(name, names, min_similarity=_MIN_SIMILARITY)
        advice = f"did you mean {' or '.join(similar_names)}? " if similar_names else ""
        raise Unanswerable(f"there is no function {name}", advice + _FUNCTIONS_PAGE)
    return function


def _check_arguments(
    name: str, function: SqlFunction, values: Sequence[TypedValue]
) -> list[TypedValue | Any]:
    low, high = function.num_required, len(function.kinds)
    if len(values) < low or (len(values) > high and not function.is_variadic):
        expected = str(low) if low == high else f"{low} or {high}"
        if function.is_variadic:
            expected = "at least 1"
        noun = "argument" if expected.endswith(" 1") or expected == "1" else "arguments"
        raise Unanswerable(
            f"{name} takes {expected} {noun}, not {len(values)}",
            f"write {function.signature(name)}",
        )
    return [
        _constant(name, function.kind(number), value)
        if function.kind(number)[0] == "'"
        else _of_kind(name, function.kind(number), value)
        for number, value in enumerate(values)
    ]


def _of_kind(name: str, kind: str, value: TypedValue) -> TypedValue:
    description, is_of_kind = _KINDS[kind]
    if not is_of_kind(value) and not pt.is_null(value.type):
        raise Unanswerable(
            f"{name} takes {description}, not a value of type {value.type}",
            f"write {_find_function(name).signature(name)}, or cast the value",
        )
    return value


def _constant(name: str, kind: str, value: TypedValue) -> Any:
    """Return the Python value of a constant argument."""
    kind = kind.strip("'")
    description, is_of_kind = _KINDS[kind]
    if pt.is_null(value.type):
        return None
    if not isinstance(value.value, pa.Scalar):
        raise Unanswerable(
            f"{name} takes {description} as a constant here, and PyArrow cannot compute it from a "
            "column",
            _READ_ADVICE,
        )
    if not is_of_kind(value):
        raise Unanswerable(
            f"{name} takes {description}, not a constant of type {value.type}",
            f"write {_find_function(name).signature(name)}",
        )
    return value.value.as_py()

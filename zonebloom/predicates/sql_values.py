"""Define the typed values from which the functions of SQL are computed.

A `TypedValue` is a PyArrow expression over columns, or a scalar if it is constant. PyArrow's
compute functions accept both, so a function of constants is a constant, which an index can look up:

    id = 40 + 2                the scalars 40 and 2 give the scalar 42
    id = quantity + 2          an expression and a scalar give an expression
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base.arrays import array_of
from zonebloom.predicates.expression import cast_to_comparable, decimal_as_float
from zonebloom.predicates.sql_literals import adapt_literal, parse_number
from zonebloom.predicates.sql_tree import Operand, SqlValue
from zonebloom.values.literal import Literal, Unanswerable, round_to_float
from zonebloom.values.normal_types import without_views
from zonebloom.values.types import SECONDS_PER_DAY, TICKS_PER_SECOND, family, time_zones_differ

MAX_DECIMAL128_DIGITS, MAX_DECIMAL256_DIGITS = 38, 76
_MAX_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_MAX_UINT64_DIGITS = 20
# DuckDB's longest integers have 128 bits. Longer ones are doubles.
_HUGEINT_LIMIT = 2**128
_NULL = pa.nulls(1)[0]
# The families whose types are widened to each other, so that even a null decides the result.
_FAMILIES_OF_NULLS = ("integer", "decimal", "float", "date", "timestamp", "instant")
# PyArrow has no interval of months alone.
MONTH_INTERVAL = pa.month_day_nano_interval()


@dataclass(frozen=True, slots=True)
class NumberLiteral(Literal):
    """A number that a function or operator takes for a decimal or float, even if it is whole.

    ``7 // 2`` is 3, but ``7.0 // 2`` is 3.5.
    """

    type: pa.DataType | None = None


@dataclass(frozen=True, slots=True)
class NullLiteral(Literal):
    """A null that functions take for a value of a type.

    ``coalesce(CAST(NULL AS DOUBLE), i8) // 2`` divides doubles.
    """

    type: pa.DataType | None = None


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A value of a SQL expression: an expression over columns, or a scalar if it is constant.

    A big integer has a decimal type, because int64 may not hold it. It is computed from integers
    alone, so ``//`` divides it as an integer and not as a decimal: u64 + 1.
    """

    value: pc.Expression | pa.Scalar
    type: pa.DataType
    is_big_integer: bool = False

    @classmethod
    def constant(cls, value: Any, type_: pa.DataType) -> TypedValue:
        return cls(array_of([value], type_)[0], type_)

    @classmethod
    def of(cls, value: SqlValue) -> TypedValue:
        """Return an operand or a literal with the type that it has for functions."""
        if isinstance(value, Literal):
            scalar = _literal_scalar(value)
            is_big_integer = (
                pt.is_decimal(scalar.type)
                and not isinstance(value, NumberLiteral | NullLiteral)
                and value.value.denominator == 1
            )
            return cls(scalar, scalar.type, is_big_integer)
        if pt.is_nested(value.type):
            return cls(value.expression, without_views(value.type))
        if pt.is_date64(value.type):
            plain = cls(value.expression.cast(pa.date32()), pa.date32())
        else:
            plain = cls(*cast_to_comparable(value.expression, value.type), value.is_big_integer)
        return plain if value.cast_type is None else _cast_without_loss(plain, value.cast_type)

    @property
    def is_constant(self) -> bool:
        return isinstance(self.value, pa.Scalar)

    @property
    def is_null(self) -> bool:
        return isinstance(self.value, pa.Scalar) and not self.value.is_valid

    @property
    def is_integer(self) -> bool:
        return pt.is_integer(self.type) or self.is_big_integer

    @property
    def family(self) -> str:
        return family(self.type)

    def to_sql_value(self, reason: str) -> SqlValue:
        """Return a literal if the value is constant, else an operand that no index answers."""
        if not isinstance(self.value, pa.Scalar):
            return Operand(self.value, self.type, reason=reason, is_big_integer=self.is_big_integer)
        if not self.value.is_valid:
            # A null literal does not tell big integers from decimals.
            return Literal("null") if self.is_big_integer else null_literal(self.type)
        literal = Literal.from_scalar(self.value)
        if literal is None:
            raise Unanswerable(f"a constant of type {self.type} is not supported")
        # The digits matter only for literals whose SQL text an engine parses.
        literal = replace(literal, digits=(0, 0))
        if self.is_integer:
            return literal
        return with_number_type(literal, self.type)

    def cast(self, type_: pa.DataType, *, safe: bool = True) -> TypedValue:
        if type_ == self.type:
            return self
        try:
            value: Any = self.value.cast(type_, safe=safe)  # pyright: ignore[reportCallIssue]
        except pa.ArrowException as error:
            raise Unanswerable(f"a constant cannot be cast to {type_}: {error}") from None
        return TypedValue(value, type_)


def call(function: Callable[..., Any], *arguments: TypedValue, **options: Any) -> TypedValue:
    """Return the result of one of PyArrow's compute functions."""
    values = [argument.value for argument in arguments]
    try:
        if all(argument.is_constant for argument in arguments):
            result = function(*values, **options)
            return TypedValue(result, result.type, _is_big_integer(result.type, arguments))
        # PyArrow tells the type of an expression only for a dataset, but that of an array at once.
        samples = [
            argument.value if argument.is_constant else pa.array([], argument.type)
            for argument in arguments
        ]
        type_ = function(*samples, **options).type
    except pa.ArrowException as error:
        first_line = str(error).strip().splitlines()[0]
        raise Unanswerable(f"PyArrow cannot compute it: {first_line}") from None
    expressions = [
        value if isinstance(value, pc.Expression) else pc.scalar(value) for value in values
    ]
    return TypedValue(function(*expressions, **options), type_, _is_big_integer(type_, arguments))


def null_of(type_: pa.DataType) -> TypedValue:
    return TypedValue(pa.nulls(1, type_)[0], type_)


def cast_to_common_type(values: Sequence[TypedValue]) -> list[TypedValue]:
    """Cast values to the one type that DuckDB would choose for them, or to a wider one."""
    type_ = common_type(values)
    is_big_integer = pt.is_decimal(type_) and all(map(_is_integer_or_null, values))
    return [
        replace(_cast_to_common(value, type_), is_big_integer=is_big_integer) for value in values
    ]


def common_type(values: Iterable[TypedValue]) -> pa.DataType:
    typed_values = [value for value in values if not pt.is_null(value.type)]
    if not typed_values:
        return pa.null()
    types = list(dict.fromkeys(value.type for value in typed_values))
    families = {family(type_) for type_ in types}
    if families <= {"integer", "decimal"} and has_long_form(typed_values):
        return _long_decimal_type(types)
    if len(types) == 1:
        return types[0]
    if families <= {"integer", "decimal", "float"}:
        return _common_number_type(types, families)
    # A quoted date is a date beside dates.
    is_text_constant = [value.is_constant and value.family == "text" for value in typed_values]
    non_text_types = [
        value.type
        for value, is_text in zip(typed_values, is_text_constant, strict=True)
        if not is_text
    ]
    other_families = {family(type_) for type_ in non_text_types}
    if len(other_families) == 1 and other_families <= {"date", "timestamp", "instant", "time"}:
        families = other_families
        types = non_text_types
    if families == {"text"}:
        return pa.large_string()
    if families == {"bytes"}:
        return pa.large_binary()
    if families <= {"date", "timestamp"} or families == {"instant"}:
        return _finest_timestamp_type(types)
    if len(families) == 1 and families <= {"duration", "time"}:
        return max(types, key=lambda type_: TICKS_PER_SECOND[type_.unit])
    if any(time_zones_differ(a, b) for a in types for b in types):
        raise Unanswerable(
            f"values of types {', '.join(map(str, types))} are mixed, and only some have a time "
            "zone",
            "convert with AT TIME ZONE: now() AT TIME ZONE 'UTC'",
        )
    raise Unanswerable(
        f"values of types {' and '.join(map(str, types))} are mixed", "cast them to one type"
    )


def has_long_form(values: Sequence[TypedValue]) -> bool:
    """Return whether big integers are mixed with decimals, so that DuckDB uses 38 digits."""
    decimals = [value for value in values if pt.is_decimal(value.type)]
    return len({value.is_big_integer for value in decimals}) == 2


def is_inexact_mixture(values: Sequence[TypedValue]) -> bool:
    """Return whether DuckDB may round some decimals and integers to cast them to one type.

    DuckDB's decimals have at most 38 digits. A big integer may take all of them.
    """
    if all(map(_is_integer_or_null, values)):
        return False
    return pt.is_decimal256(common_type(values))


def decimal_type(precision: int, scale: int) -> pa.DataType:
    if precision <= MAX_DECIMAL128_DIGITS:
        return pa.decimal128(precision, scale)
    if precision <= MAX_DECIMAL256_DIGITS:
        return pa.decimal256(precision, scale)
    raise Unanswerable(
        f"the result has {precision} digits, but at most {MAX_DECIMAL256_DIGITS} are supported",
        "cast the operands to DOUBLE",
    )


def decimal_form(type_: pa.DataType) -> pa.DataType:
    """Return the decimal type that holds all values of an integer or decimal type."""
    if pt.is_decimal(type_):
        return type_
    is_uint64 = type_ == pa.uint64()
    return pa.decimal128(_MAX_UINT64_DIGITS if is_uint64 else _MAX_INTEGER_DIGITS[type_.bit_width])


def to_decimal(value: TypedValue, type_: pa.DataType) -> TypedValue:
    """Cast an integer or decimal to a decimal type. An integer becomes a big integer."""
    is_integer = value.is_integer
    if isinstance(value.value, pa.Scalar):
        if not value.value.is_valid:
            return replace(null_of(type_), is_big_integer=is_integer)
        if pt.is_integer(value.type):
            scalar = pa.scalar(Decimal(value.value.as_py()), type_)
            return TypedValue(scalar, type_, is_big_integer=True)
    elif pt.is_integer(value.type):
        # PyArrow casts an integer only to a decimal that has room for all integers of its type.
        value = value.cast(decimal_form(value.type))
    return replace(value.cast(type_), is_big_integer=is_integer)


def to_float(value: TypedValue, type_: pa.DataType) -> TypedValue:
    """Cast a number to a float type. It is rounded to the nearest float, as DuckDB does."""
    if isinstance(value.value, pa.Scalar):
        number: Any = value.value.as_py()
        if number is None:
            return null_of(type_)
        return TypedValue(_float_scalar(number, type_), type_)
    if pt.is_decimal(value.type):
        return TypedValue(decimal_as_float(value.value, type_), type_)
    return value.cast(type_, safe=False)


def _cast_without_loss(value: TypedValue, type_: pa.DataType) -> TypedValue:
    if family(type_) in ("integer", "decimal", "float"):
        return cast_number(value, type_)
    return value.cast(type_)


def cast_number(value: TypedValue, type_: pa.DataType) -> TypedValue:
    """Cast a number to a type of numbers. A cast to a float type rounds, and others do not."""
    if pt.is_floating(type_):
        return to_float(value, type_)
    if pt.is_decimal(type_) and not pt.is_floating(value.type):
        return replace(to_decimal(value, type_), is_big_integer=False)
    return value.cast(type_)


def with_number_type(literal: Literal, type_: pa.DataType) -> Literal:
    """Return a literal that functions take for a value of a type, if it is a decimal or float."""
    if literal.kind != "number" or family(type_) not in ("decimal", "float"):
        return Literal(literal.kind, literal.value, literal.bits, literal.digits)
    return NumberLiteral("number", literal.value, literal.bits, literal.digits, type_)


def null_literal(type_: pa.DataType) -> Literal:
    """Return a null that functions take for a value of a type of numbers or times."""
    has_type = family(type_) in _FAMILIES_OF_NULLS
    return NullLiteral("null", type=type_) if has_type else Literal("null")


def number_literal(text: str) -> Literal:
    """Return the literal of a number: 1e0 is a double, 1.0 a decimal, and 1 an integer."""
    literal = parse_number(text)
    if "e" in text.lower():
        return with_number_type(literal, pa.float64())
    whole_digits, point, decimals = text.partition(".")
    precision = len(whole_digits) + len(decimals)
    if not point or precision > MAX_DECIMAL128_DIGITS:
        return literal
    return with_number_type(literal, pa.decimal128(precision, len(decimals)))


def _is_big_integer(result: pa.DataType, arguments: Sequence[TypedValue]) -> bool:
    """Return whether a decimal result is computed from big integers and nulls alone."""
    decimals = [argument for argument in arguments if pt.is_decimal(argument.type)]
    # `null_of` does not mark its nulls, so they count only if there is nothing else.
    numbers = [number for number in decimals if not number.is_null] or decimals
    is_computed_from_them = all(number.is_big_integer for number in numbers)
    return pt.is_decimal(result) and bool(numbers) and is_computed_from_them


def _is_integer_or_null(value: TypedValue) -> bool:
    return value.is_integer or pt.is_null(value.type)


def _cast_to_common(value: TypedValue, type_: pa.DataType) -> TypedValue:
    if pt.is_null(value.type):
        return null_of(type_)
    if value.family == "text" and value.is_constant and family(type_) != "text":
        return _parse_constant(value, type_)
    if pt.is_decimal(type_):
        return to_decimal(value, type_)
    return cast_number(value, type_)


def _parse_constant(value: TypedValue, type_: pa.DataType) -> TypedValue:
    scalar: Any = value.value
    return TypedValue.of(adapt_literal(Literal("text", scalar.as_py()), type_)).cast(type_)


def _common_number_type(types: Sequence[pa.DataType], families: set[str]) -> pa.DataType:
    if "float" in families:
        return pa.float64() if pa.float64() in types else pa.float32()
    if families == {"integer"}:
        if all(pt.is_unsigned_integer(type_) for type_ in types):
            return pa.uint64()
        if pa.uint64() not in types:
            return pa.int64()
    decimals: list[Any] = [decimal_form(type_) for type_ in types]
    whole_digits = max(type_.precision - type_.scale for type_ in decimals)
    scale = max(type_.scale for type_ in decimals)
    return decimal_type(whole_digits + scale, scale)


def _long_decimal_type(types: Sequence[pa.DataType]) -> pa.DataType:
    type_: Any = _common_number_type(types, {"decimal"})
    return decimal_type(max(type_.precision, MAX_DECIMAL128_DIGITS), type_.scale)


def _finest_timestamp_type(types: Sequence[Any]) -> pa.DataType:
    timestamps = [type_ for type_ in types if pt.is_timestamp(type_)]
    if not timestamps:
        return pa.timestamp("us")
    finest = max(timestamps, key=lambda type_: TICKS_PER_SECOND[type_.unit])
    # A constant date among timestamps of seconds must keep its value.
    return pa.timestamp(finest.unit, finest.tz)


def _literal_scalar(literal: Literal) -> pa.Scalar:
    value = literal.value
    match literal.kind:
        case "null":
            type_ = literal.type if isinstance(literal, NullLiteral) else None
            return _NULL if type_ is None else null_of(type_).value
        case "boolean":
            return pa.scalar(value, pa.bool_())
        case "text":
            return pa.scalar(value, pa.string())
        case "bytes":
            return pa.scalar(value, pa.binary())
        case "number":
            type_ = literal.type if isinstance(literal, NumberLiteral) else None
            return _number_scalar(value, type_)
        case "date":
            return array_of([value // SECONDS_PER_DAY], pa.date32())[0]
        case "time":
            return _ticks_scalar(value, pa.time64)
        case "duration":
            return _ticks_scalar(value, pa.duration)
        case "months":
            if not -(2**31) <= value < 2**31:
                raise Unanswerable("the interval is out of range", "write fewer months or years")
            return pa.scalar((value, 0, 0), MONTH_INTERVAL)
        case "timestamp":
            return _ticks_scalar(value, pa.timestamp)
        case "instant":
            return _ticks_scalar(value, lambda unit: pa.timestamp(unit, "UTC"))
    raise Unanswerable(f"{literal.kind} literals are not supported here")


def _ticks_scalar(seconds: Fraction, type_of_unit: Callable[[Any], pa.DataType]) -> pa.Scalar:
    for unit in ("us", "ns"):
        ticks = seconds * TICKS_PER_SECOND[unit]
        if ticks.denominator == 1 and -(2**63) <= ticks < 2**63:
            return pa.scalar(int(ticks), pa.int64()).cast(type_of_unit(unit))
    raise Unanswerable("the time is out of range, or has more than nine digits after the second")


def _number_scalar(value: Fraction | float, type_: pa.DataType | None) -> pa.Scalar:
    """Return a number as a scalar of its type, or of the type that DuckDB gives to its digits."""
    if type_ is not None and pt.is_floating(type_):
        return _float_scalar(value, type_)
    if isinstance(value, float):
        return _float_scalar(value, pa.float64())
    value = Fraction(value)
    if type_ is None and value.denominator == 1 and -(2**63) <= value < 2**63:
        return pa.scalar(int(value), pa.int64())
    scale = _num_decimals(value)
    num_digits = len(str(abs(value.numerator) // value.denominator)) + (scale or 0)
    is_hugeint = type_ is None and value.denominator == 1 and abs(value) < _HUGEINT_LIMIT
    if scale is None or (num_digits > MAX_DECIMAL128_DIGITS and not is_hugeint):
        # DuckDB also makes doubles of such long numbers.
        return _float_scalar(value, pa.float64())
    unscaled = value.numerator * 10**scale // value.denominator
    # Decimal.scaleb would round to the 28 digits of Python's decimal context.
    number = Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    return pa.scalar(number, decimal_type(num_digits, scale))


def _float_scalar(value: Fraction | float | Decimal, type_: pa.DataType) -> pa.Scalar:
    rounded = round_to_float(value, type_.bit_width)  # pyright: ignore[reportArgumentType]
    if rounded is None:
        raise Unanswerable(f"the number does not fit {type_}", "write a smaller number")
    return array_of([rounded], type_)[0]


def _num_decimals(value: Fraction) -> int | None:
    """Return the digits after the point, or None if there are more than a decimal has."""
    for scale in range(MAX_DECIMAL128_DIGITS + 1):
        if (10**scale) % value.denominator == 0:
            return scale
    return None

"""Draw random filters, write them in every language, and compute the rows that they match.

A filter is a tree. A leaf is an operator, a column and literals. Each literal has its own type,
which may differ from the column's. A tree for one language may have leaves of that language only.
"""

from __future__ import annotations

import math
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from support.e2e_helpers import UNITS, array_of, is_text, raw_values, scalar_of, sql_literal
from trust.lakes import Column, exact, is_number, value_type

Literal = tuple[pa.DataType, Any]
Tree = tuple

COMMON = ["=", "=", "=", "in", "in", "not in", "null", "not null"]
COMMON += ["<>", "<", "<=", ">", ">=", "between"]
SPECIAL = {
    "SQL": ["same", "not same", "in with null", "cast", "= null"],
    "PyArrow": ["nan", "starts", "cast", "if_else", "null or nan", "coalesce"],
    "Polars": ["same", "not same", "nan", "starts", "cast", "in with null", "series", "fill"],
}
NUMBERS = [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64()]


class NotWritten(Exception):
    """An error that is raised if a language cannot express a tree."""


def draw(
    columns: list[Column], rng: random.Random, language: str | None = None, depth: int = 0
) -> Tree:
    """Return a random filter. If a language is given, use leaves that only this language has."""
    kind = rng.random()
    if depth < 3 and kind < 0.35:
        terms = [draw(columns, rng, language, depth + 1) for _ in range(rng.randint(2, 3))]
        return (rng.choice(["and", "or"]), *terms)
    if depth < 3 and kind < 0.45:
        return ("not", draw(columns, rng, language, depth + 1))
    column = rng.choice(columns)
    special = language is not None and rng.random() < 0.6
    operator = rng.choice(SPECIAL[language] if special else COMMON)
    counts = {"between": 2, "null": 0, "not null": 0, "nan": 0, "null or nan": 0, "= null": 0}
    many = operator in ("in", "not in", "in with null", "series")
    count = rng.choice([0, 1, 2, 5, 30]) if many else counts.get(operator, 1)
    return (operator, column, [literal(column, rng) for _ in range(count)])


def literal(column: Column, rng: random.Random) -> Literal:
    """Return a value of the column, another value of its type, or one of a similar type."""
    plain = value_type(column.type)
    kind = rng.random()
    if pa.types.is_boolean(plain):
        return plain, rng.random() < 0.5
    if kind < 0.7 and column.raws:
        return plain, rng.choice(column.raws)
    if kind < 0.85:
        return plain, rng.choice(raw_values(plain, 12, rng.randrange(100)))
    near = rng.choice(column.raws) if column.raws and rng.random() < 0.5 else 5
    if is_number(plain):
        return number(near, rng)
    if pa.types.is_timestamp(plain):
        unit = rng.choice(list(UNITS))
        ticks = near * UNITS[unit] // UNITS[plain.unit]
        return pa.timestamp(unit, plain.tz), ticks if abs(ticks) < 2**63 else 0
    return plain, rng.choice(raw_values(plain, 12, 7))


def number(near: Any, rng: random.Random) -> Literal:
    """Return a number of a random type that is close to a value."""
    kind = rng.choice(NUMBERS)
    whole = int(near) if not isinstance(near, float) or math.isfinite(near) else 1
    if pa.types.is_floating(kind):
        value = float(whole) + rng.choice([0, 0, 0.5])
        if kind == pa.float32() and abs(value) < 1e38:
            return kind, float(np.float32(value))
        return pa.float64(), value
    info = np.iinfo(kind.to_pandas_dtype())
    return kind, max(info.min, min(info.max, whole + rng.choice([0, 0, 1])))


# The rows that a filter is true for in SQL, where NaN equals NaN and is greater than every number


def truth(tree: Tree, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two masks: the rows a filter is true for, and those it is false for.

    It is null for the other rows.
    """
    kind = tree[0]
    if kind == "not":
        true, false = truth(tree[1], rows)
        return false, true
    if kind in ("and", "or"):
        true, false = zip(*(truth(term, rows) for term in tree[1:]), strict=True)
        if kind == "and":
            return np.logical_and.reduce(true), np.logical_or.reduce(false)
        return np.logical_or.reduce(true), np.logical_and.reduce(false)
    column: Column = tree[1]
    # Evaluate the leaf for each distinct value, and last for null.
    literals = [_with_greatest_nan(value_in_sql(column.type, *literal)) for literal in tree[2]]
    values = [_with_greatest_nan(value) for value in (*column.values, None)]
    answers = [evaluate_leaf(kind, value, literals) for value in values]
    true = np.array([answer is True for answer in answers])
    false = np.array([answer is False for answer in answers])
    return true[column.codes], false[column.codes]


def _with_greatest_nan(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    is_nan = math.isnan(value)
    return is_nan, 0 if is_nan else value


def columns_of(tree: Tree) -> list[Column]:
    """Return the columns of all leaves."""
    if tree[0] in ("not", "and", "or"):
        return [column for term in tree[1:] for column in columns_of(term)]
    return [tree[1]]


def is_unknown_to_duckdb(kind: pa.DataType) -> bool:
    kind = value_type(kind)
    is_short = pa.types.is_duration(kind) and kind.unit == "ns"
    return is_short or pa.types.is_float16(kind) or pa.types.is_decimal256(kind)


def value_in_sql(column: pa.DataType, arrow_type: pa.DataType, raw: Any) -> Any:
    """Return the value of a SQL literal: a double for a float column, else the exact number."""
    value = exact(arrow_type, raw)
    if pa.types.is_floating(value_type(column)):
        return float(value) if isinstance(value, int) else value
    return Decimal(repr(value)) if isinstance(value, float) else value


def evaluate_leaf(kind: str, value: Any, literals: list[Any]) -> bool | None:
    """Return SQL's answer for one value. None stands for null."""
    match kind:
        case "null":
            return value is None
        case "not null":
            return value is not None
        case "same":
            return value is not None and value == literals[0]
        case "not same":
            return value is None or value != literals[0]
        case "= null":
            return None
    if value is None:
        # An empty list has no members, so even null is not in it.
        return None if literals or kind == "in with null" else kind == "not in"
    match kind:
        case "=" | "cast":
            return value == literals[0]
        case "<>":
            return value != literals[0]
        case "<":
            return value < literals[0]
        case "<=":
            return value <= literals[0]
        case ">":
            return value > literals[0]
        case ">=":
            return value >= literals[0]
        case "between":
            return literals[0] <= value <= literals[1]
        case "in":
            return any(value == literal for literal in literals)
        case "not in":
            return not any(value == literal for literal in literals)
        case "in with null":
            return True if any(value == literal for literal in literals) else None
    raise AssertionError(kind)


# SQL


def sql(tree: Tree, rng: random.Random) -> str:
    """Return a tree as SQL text."""
    kind = tree[0]
    if kind == "not":
        return f"NOT ({sql(tree[1], rng)})"
    if kind in ("and", "or"):
        return f" {kind.upper()} ".join(f"({sql(term, rng)})" for term in tree[1:])
    column: Column = tree[1]
    name = ".".join(f'"{part}"' for part in column.path)
    if kind in ("null", "not null"):
        return f"{name} IS {'NOT ' if kind == 'not null' else ''}NULL"
    if kind == "= null":
        return f"{name} = NULL"
    words = [_sql_word(column, *literal) for literal in tree[2]]
    if kind in ("in", "not in", "in with null"):
        words += ["NULL"] if kind == "in with null" else []
        if not words:
            raise NotWritten
        return f"{name} {'NOT ' if kind == 'not in' else ''}IN ({', '.join(words)})"
    if kind == "between":
        return f"{name} BETWEEN {words[0]} AND {words[1]}"
    if kind == "same":
        return rng.choice([f"{name} IS NOT DISTINCT FROM {words[0]}", f"{name} <=> {words[0]}"])
    if kind == "not same":
        return f"{name} IS DISTINCT FROM {words[0]}"
    if kind == "cast":
        if not pa.types.is_integer(column.type) or column.type == pa.uint64():
            raise NotWritten
        return f"CAST({name} AS BIGINT) = {words[0]}"
    if kind == "=" and rng.random() < 0.3:
        return f"{words[0]} = {name}"
    return f"{name} {kind} {words[0]}"


def _sql_word(column: Column, arrow_type: pa.DataType, raw: Any) -> str:
    if pa.types.is_boolean(arrow_type):
        return str(raw)
    if pa.types.is_floating(value_type(column.type)) and isinstance(raw, Decimal):
        raise NotWritten
    word = sql_literal(arrow_type, raw)
    if word is None:
        raise NotWritten
    return word


# PyArrow


def arrow(tree: Tree) -> pc.Expression:
    """Return a tree as a PyArrow expression."""
    kind = tree[0]
    if kind == "not":
        return ~arrow(tree[1])
    if kind in ("and", "or"):
        expression, *more_terms = (arrow(term) for term in tree[1:])
        for other in more_terms:
            expression = expression & other if kind == "and" else expression | other
        return expression
    column: Column = tree[1]
    field = pc.field(*column.path)
    plain = value_type(column.type)
    literals = [pc.scalar(scalar_of(*literal)) for literal in tree[2]]
    match kind:
        case "null":
            return field.is_null()
        case "not null":
            return field.is_valid()
        case "in" | "not in":
            is_member = field.isin(_array(tree[2], plain))
            return ~is_member if kind == "not in" else is_member
        case "nan":
            _require(pa.types.is_floating(plain))
            return pc.is_nan(field)
        case "null or nan":
            return field.is_null(nan_is_null=True)
        case "starts":
            _require(is_text(plain) and is_text(tree[2][0][0]))
            return pc.starts_with(field, tree[2][0][1][:1])
        case "cast":
            _require(pa.types.is_integer(plain) and plain.bit_width < 64)
            return field.cast(pa.int64()) == literals[0]
        case "if_else":
            return pc.if_else(field.is_valid(), field == literals[0], pc.scalar(False))
        case "coalesce":
            return pc.coalesce(field, literals[0]) == literals[0]
    return _apply_operator(kind, field, literals)


def _array(literals: list[Literal], plain: pa.DataType) -> pa.Array:
    """Return literals as an array of the type they share, or of the column's type if empty."""
    types = {type_ for type_, _ in literals} or {plain}
    _require(len(types) == 1)
    (type_,) = types
    return array_of(type_, [raw for _, raw in literals])


def _require(condition: bool) -> None:
    if not condition:
        raise NotWritten


def _apply_operator(kind: str, field: Any, literals: list[Any]) -> Any:
    match kind:
        case "=":
            return field == literals[0]
        case "<>":
            return field != literals[0]
        case "<":
            return field < literals[0]
        case "<=":
            return field <= literals[0]
        case ">":
            return field > literals[0]
        case ">=":
            return field >= literals[0]
        case "between":
            return (field >= literals[0]) & (field <= literals[1])
    raise NotWritten


# PyArrow's tuples: a disjunction of conjunctions, without NOT


def tuples(tree: Tree) -> list[list[tuple]]:
    """Return a tree as PyArrow's tuples."""
    kind = tree[0]
    if kind == "or":
        return [conjunction for term in tree[1:] for conjunction in tuples(term)]
    if kind == "and":
        conjunctions: list[list[tuple]] = [[]]
        for term in tree[1:]:
            conjunctions = [first + second for first in conjunctions for second in tuples(term)]
        _require(len(conjunctions) < 50)
        return conjunctions
    _require(kind in ("=", "<>", "<", "<=", ">", ">=", "in", "not in", "between"))
    column: Column = tree[1]
    _require(len(column.path) == 1)
    values = [scalar_of(*literal) for literal in tree[2]]
    if kind == "between":
        return [[(column.name, ">=", values[0]), (column.name, "<=", values[1])]]
    if kind in ("in", "not in"):
        return [[(column.name, kind, _array(tree[2], value_type(column.type)))]]
    return [[(column.name, {"=": "==", "<>": "!="}.get(kind, kind), values[0])]]


# Polars


def polars(tree: Tree, rng: random.Random) -> pl.Expr:
    """Return a tree as a Polars expression."""
    kind = tree[0]
    if kind == "not":
        return ~polars(tree[1], rng)
    if kind in ("and", "or"):
        expression, *more_terms = (polars(term, rng) for term in tree[1:])
        for other in more_terms:
            expression = expression & other if kind == "and" else expression | other
        return expression
    column: Column = tree[1]
    field = pl.col(column.path[0])
    for part in column.path[1:]:
        field = field.struct.field(part)
    plain = value_type(column.type)
    match kind:
        case "null":
            return field.is_null()
        case "not null":
            return field.is_not_null()
        case "in" | "not in" | "in with null" | "series":
            values = pl.from_arrow(_array(tree[2], plain))
            if kind == "in with null":
                nulls = pl.Series([None], dtype=values.dtype)
                return field.is_in(values.append(nulls).implode(), nulls_equal=rng.random() < 0.5)
            is_member = field.is_in(values.to_list() if kind == "series" else values.implode())
            return ~is_member if kind == "not in" else is_member
        case "nan":
            _require(pa.types.is_floating(plain))
            return rng.choice([field.is_nan(), field.is_not_nan()])
    literals = [_polars_literal(*literal, rng) for literal in tree[2]]
    match kind:
        case "same":
            return field.eq_missing(literals[0])
        case "not same":
            return field.ne_missing(literals[0])
        case "starts":
            _require(is_text(plain) and is_text(tree[2][0][0]))
            return field.str.starts_with(tree[2][0][1][:1])
        case "cast":
            _require(pa.types.is_integer(plain))
            if rng.random() < 0.3:
                return field.cast(pl.String) == pl.lit(literals[0]).cast(pl.String)
            return field.cast(rng.choice([pl.Int64, pl.Float64])) == literals[0]
        case "fill":
            return field.fill_null(literals[0]) == literals[0]
        case "between":
            closed = rng.choice(["both", "left", "right", "none"])
            return field.is_between(literals[0], literals[1], closed=closed)
    return _apply_operator(kind, field, literals)


def _polars_literal(arrow_type: pa.DataType, raw: Any, rng: random.Random) -> Any:
    if getattr(arrow_type, "unit", None) == "s" and abs(raw) > 2**63 // 1001:
        # Polars converts seconds to milliseconds, which would overflow.
        raise NotWritten
    series = pl.from_arrow(array_of(value_type(arrow_type), [raw]))
    kind = rng.random()
    if kind < 0.03:
        # The documentation says that this is refused, because a series of one value is a literal
        # and a longer one is a column.
        return pl.lit(series)
    if pa.types.is_temporal(arrow_type) and (kind < 0.4 or abs(exact(arrow_type, raw)) > 10**10):
        # Python's times have no nanoseconds and no years after 9999.
        return pl.lit(raw).cast(series.dtype)
    return pl.lit(series[0], series.dtype) if kind < 0.8 else pl.lit(series[0])


def text(tree: Tree) -> str:
    """Return a tree as text for people to read."""
    if tree[0] in ("and", "or", "not"):
        return f"{tree[0]}({', '.join(text(term) for term in tree[1:])})"
    literals = [f"{arrow_type} {raw!r:.80}" for arrow_type, raw in tree[2]]
    return f"{tree[1].name} ({tree[1].type}) {tree[0]} {literals}"


__all__ = ["Fraction", "NotWritten", "arrow", "draw", "polars", "sql", "text", "truth", "tuples"]

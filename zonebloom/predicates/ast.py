"""The predicate an index can answer: seven kinds of node, constants, and an honest "unknown".

Every filter language is brought to this tree, and the search reads nothing else. A node stands
for a three-valued condition on a row (true, false, null). The search keeps two bounds per node:
the rows where it *may be true* and the rows where it *may be false*; a null row may be neither.

    Equals, IsIn, IsNull    may be true: the zones that hit       may be false: everything
    Compares                the same, from key ranges and paths; a Bloom filter cannot say
    Constant                may be true: all if True, else none   may be false: all if False
    Unknown                 may be true: everything               may be false: everything
    And                     intersection                          union
    Or                      union                                 intersection
    Not                     what may be false                     what may be true

A translator may widen a condition (`Unknown` is always right) but never narrow it: a row for
which the user's filter is true must lie in *may be true* of its predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.user_values import to_arrow, to_scalar
from zonebloom.errors import InvalidArgument

ColumnPath: TypeAlias = tuple[str, ...]

# A search follows a predicate by recursion.
MAX_DEPTH = 150
_MANY_TERMS = 64
_SHOWN_VALUES = 2
_SHOWN_TEXT = 200
_FACING = {">=": "<=", "<=": ">="}
# What is meant by a comparison whose sides are exchanged.
FLIPPED_OPERATORS: dict[str, Any] = {
    **{each: each for each in ("=", "!=", "<=>")},
    **{"<": ">", "<=": ">=", ">": "<", ">=": "<="},
}


def _make_scalar(leaf: Equals | Compares) -> None:
    """Convert the value of a leaf that users made of a Python value."""
    if not isinstance(leaf.value, pa.Scalar):
        object.__setattr__(leaf, "value", to_scalar(leaf.value, "the value of a comparison"))


@dataclass(frozen=True, slots=True)
class Equals:
    """The column holds exactly this value; the value is never null."""

    column: ColumnPath
    value: pa.Scalar

    def __post_init__(self) -> None:
        _make_scalar(self)

    def __str__(self) -> str:
        return f"{column_text(self.column)} = {value_text(self.value)}"


@dataclass(frozen=True, slots=True)
class IsIn:
    """The column holds one of these values, or, with `null_matches`, null."""

    column: ColumnPath
    values: pa.Array
    null_matches: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.values, pa.Array):
            object.__setattr__(self, "values", to_arrow(self.values, "the values of IsIn"))
        if self.values.null_count:
            raise InvalidArgument(
                "the values of IsIn hold a null; drop it, and give null_matches=True if null rows "
                "are to match"
            )

    def __str__(self) -> str:
        count = len(self.values)
        shown = count if count <= _SHOWN_VALUES + 1 else _SHOWN_VALUES
        parts = [value_text(self.values[i]) for i in range(shown)]
        if self.null_matches:
            parts.append("NULL")
        if count > shown:
            parts.append(f"... {count - shown} more")
        return f"{column_text(self.column)} IN ({', '.join(parts)})"

    def __repr__(self) -> str:
        return f"<IsIn {self}>"

    # A pa.Array has equality but no hash.
    def __hash__(self) -> int:
        return hash((self.column, str(self.values.type), len(self.values), self.null_matches))


@dataclass(frozen=True, slots=True)
class Compares:
    """The column's value lies to one side of this one; the value is never null, nor NaN."""

    column: ColumnPath
    operator: Literal["<", "<=", ">", ">="]
    value: pa.Scalar

    def __post_init__(self) -> None:
        _make_scalar(self)

    def __str__(self) -> str:
        return f"{column_text(self.column)} {self.operator} {value_text(self.value)}"


@dataclass(frozen=True, slots=True)
class IsNull:
    """The column is null; for a nested leaf, also where a parent is null."""

    column: ColumnPath

    def __str__(self) -> str:
        return f"{column_text(self.column)} IS NULL"


@dataclass(frozen=True, slots=True)
class And:
    terms: tuple[Predicate, ...]

    def __str__(self) -> str:
        return " AND ".join(_operand_text(term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Or:
    terms: tuple[Predicate, ...]

    def __str__(self) -> str:
        return " OR ".join(_operand_text(term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Not:
    """The term is false (not: is not true)."""

    term: Predicate

    def __str__(self) -> str:
        return f"NOT ({self.term})"


@dataclass(frozen=True, slots=True)
class Constant:
    """The same answer for every row; `None` is SQL's NULL, neither true nor false."""

    value: bool | None

    def __str__(self) -> str:
        return {True: "TRUE", False: "FALSE", None: "NULL"}[self.value]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A condition no Bloom filter can answer, and the reason ``explain_plan`` shows.

    ``columns`` are the top-level ones it names, ``expression`` what PyArrow applies to rows for it;
    None where that is not known.
    """

    text: str
    reason: str
    columns: frozenset[str] = frozenset()
    expression: pc.Expression | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text


LeafPredicate: TypeAlias = Equals | IsIn | Compares | IsNull | Constant | Unknown
Predicate: TypeAlias = LeafPredicate | And | Or | Not


_Value = TypeVar("_Value")


def fold_predicate(
    predicate: Predicate,
    leaf: Callable[[LeafPredicate], _Value],
    every: Callable[[list[_Value]], _Value],
    any_of: Callable[[list[_Value]], _Value],
    negate: Callable[[_Value], _Value],
) -> _Value:
    """Bring a tree to one value: of its leaves, left to right, then of what joins them."""
    if not isinstance(predicate, And | Or | Not):
        return leaf(predicate)
    values: dict[int, _Value] = {}
    # Children before parents.
    for node in reversed(_nodes(predicate, reverse=False)):
        match node:
            case And(terms):
                value = every([values[id(term)] for term in terms])
            case Or(terms):
                value = any_of([values[id(term)] for term in terms])
            case Not(term):
                value = negate(values[id(term)])
            case _:
                value = leaf(node)
        values[id(node)] = value
    return values[id(predicate)]


def replace_leaves(predicate: Predicate, leaf: Callable[[LeafPredicate], Predicate]) -> Predicate:
    return fold_predicate(predicate, leaf, conjunction, disjunction, negation)


def walk(predicate: Predicate) -> list[Predicate]:
    return _nodes(predicate, reverse=True)


def _nodes(predicate: Predicate, *, reverse: bool) -> list[Predicate]:
    # A stack instead of recursion: filters made by programs can be very deep.
    nodes, stack = [], [predicate]
    while stack:
        node = stack.pop()
        nodes.append(node)
        below = _below(node)
        stack += reversed(below) if reverse else below
    return nodes


def _below(node: Predicate) -> tuple[Predicate, ...]:
    if isinstance(node, And | Or):
        return node.terms
    return (node.term,) if isinstance(node, Not) else ()


def depth(predicate: Predicate) -> int:
    def above(depths: list[int]) -> int:
        return 1 + max(depths, default=-1)

    return fold_predicate(predicate, lambda leaf: 0, above, above, lambda below: below + 1)


def simplify(predicate: Predicate) -> Predicate:
    """The same condition as a search follows it: chains flat, no NOT of a NOT, not too deep."""
    flat = flatten(predicate)
    return limit_depth(flat) if isinstance(flat, And | Or | Not) else flat


def limit_depth(predicate: Predicate) -> Predicate:
    """The predicate, `Unknown` where it is too deep for a search to follow."""
    if depth(predicate) <= MAX_DEPTH:
        return predicate
    return Unknown("...", f"the filter is nested more than {MAX_DEPTH} levels deep")


def flatten(predicate: Predicate) -> Predicate:
    """Terms of a chain side by side, however they are nested: ``a OR (b OR c)`` is one OR."""
    if not isinstance(predicate, And | Or | Not):
        return predicate
    tops = {id(predicate)}
    for node in walk(predicate):
        tops.update(id(term) for term in _below(node) if type(term) is not type(node))
    flat: dict[int, Predicate] = {}
    for node in reversed(_nodes(predicate, reverse=False)):
        if isinstance(node, Not):
            flat[id(node)] = negation(flat[id(node.term)])
        elif not isinstance(node, And | Or):
            flat[id(node)] = node
        elif id(node) in tops:
            join = conjunction if isinstance(node, And) else disjunction
            flat[id(node)] = join(flat[id(term)] for term in _chain(node))
    return flat[id(predicate)]


def _chain(outer: And | Or) -> Iterator[Predicate]:
    stack: list[Predicate] = [outer]
    while stack:
        node = stack.pop()
        if type(node) is type(outer):
            stack += reversed(_below(node))
        else:
            yield node


def conjunction(terms: Iterable[Predicate]) -> Predicate:
    """All of some terms; ``a >= x`` beside ``a <= x`` is ``a = x``, which a filter answers."""
    kept: list[Predicate] = []
    bounds: dict[tuple[ColumnPath, str], tuple[int, pa.Scalar]] = {}
    for term in terms:
        if isinstance(term, Compares) and term.operator in _FACING:
            facing = term.column, _FACING[term.operator]
            at, value = bounds.get(facing, (0, None))
            if value is not None and value.equals(term.value):
                kept[at] = Equals(term.column, term.value)
                del bounds[facing]
                continue
            bounds[term.column, term.operator] = len(kept), term.value
        kept.append(term)
    if len(kept) >= _MANY_TERMS:
        # NOT a = 1 AND NOT a = 2 is NOT (a = 1 OR a = 2).
        kept = [negation(term) for term in _united([negation(term) for term in kept])]
    return kept[0] if len(kept) == 1 else And(tuple(kept))


def disjunction(terms: Iterable[Predicate]) -> Predicate:
    """Any of some terms; many equalities of one column are a set, which is looked up at once."""
    united = _united(list(terms))
    return united[0] if len(united) == 1 else Or(tuple(united))


def _united(terms: list[Predicate]) -> list[Predicate]:
    if len(terms) < _MANY_TERMS:
        return terms
    sets: dict[tuple[ColumnPath, pa.DataType], list[pa.Scalar]] = {}
    others: list[Predicate] = []
    for term in terms:
        if isinstance(term, Equals):
            sets.setdefault((term.column, term.value.type), []).append(term.value)
        else:
            others.append(term)
    united = [IsIn(column, pa.array(values, type_)) for (column, type_), values in sets.items()]
    return [*united, *others]


def negation(predicate: Predicate) -> Predicate:
    if isinstance(predicate, Not):
        return predicate.term
    if isinstance(predicate, Constant):
        return Constant(None if predicate.value is None else not predicate.value)
    return Not(predicate)


def probed_columns(predicate: Predicate) -> set[ColumnPath]:
    """The paths of the columns a Bloom filter would be asked about."""
    return {n.column for n in walk(predicate) if isinstance(n, (Equals, IsIn, IsNull))}


def unknowns(predicate: Predicate) -> list[Unknown]:
    return [node for node in walk(predicate) if isinstance(node, Unknown)]


def column_text(path: ColumnPath) -> str:
    """Write a column path as SQL would: parts that are no plain names are quoted."""
    return ".".join(
        part if part.isidentifier() else '"' + part.replace('"', '""') + '"' for part in path
    )


def value_text(value: pa.Scalar) -> str:
    """Write one value as a SQL literal, for reading rather than for parsing."""
    try:
        plain = value.as_py()
    except (ValueError, OverflowError):  # Python's dates end at the year 9999
        return f"{getattr(value, 'value', '?')} ({value.type})"
    if plain is None:
        return "NULL"
    if isinstance(plain, bool):
        return "TRUE" if plain else "FALSE"
    if isinstance(plain, str):
        return "'" + plain.replace("'", "''") + "'"
    if isinstance(plain, bytes):
        return f"X'{plain.hex()}'"
    if isinstance(plain, (int, float)):
        return str(plain)
    if pa.types.is_temporal(value.type):
        return f"'{plain}'"
    return str(plain)


def shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_TEXT else text[: _SHOWN_TEXT - 3] + "..."


def _operand_text(term: Predicate) -> str:
    return f"({term})" if isinstance(term, (And, Or)) else str(term)

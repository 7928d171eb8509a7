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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from zonebloom.errors import InvalidArgument

ColumnPath: TypeAlias = tuple[str, ...]

# A search follows a predicate by recursion.
DEEPEST = 150
_MANY_TERMS = 64
_SHOWN_VALUES = 2
_FACING = {">=": "<=", "<=": ">="}


@dataclass(frozen=True, slots=True)
class Equals:
    """The column holds exactly this value; the value is never null."""

    column: ColumnPath
    value: pa.Scalar

    def __str__(self) -> str:
        return f"{column_text(self.column)} = {value_text(self.value)}"


@dataclass(frozen=True, slots=True)
class IsIn:
    """The column holds one of these values, or, with `null_matches`, null."""

    column: ColumnPath
    values: pa.Array
    null_matches: bool = False

    def __post_init__(self) -> None:
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

    # A pa.Array has equality but no hash.
    def __hash__(self) -> int:
        return hash((self.column, str(self.values.type), len(self.values), self.null_matches))


@dataclass(frozen=True, slots=True)
class Compares:
    """The column's value lies to one side of this one; the value is never null, nor NaN."""

    column: ColumnPath
    operator: Literal["<", "<=", ">", ">="]
    value: pa.Scalar

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
    """Every term is true."""

    terms: tuple[Predicate, ...]

    def __str__(self) -> str:
        return " AND ".join(_operand_text(term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Or:
    """At least one term is true."""

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
    """A condition no Bloom filter can answer.

    Parameters
    ----------
    text
        The condition as the user would recognise it.
    reason
        Why it is not answered; shown by ``explain_plan``.
    columns
        Top-level columns it names, where a translator says so.
    """

    text: str
    reason: str
    columns: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.text


Predicate: TypeAlias = Equals | IsIn | Compares | IsNull | And | Or | Not | Constant | Unknown


def walk(predicate: Predicate) -> Iterator[Predicate]:
    """Yield every node of the tree, parents before children, left to right."""
    # A stack instead of recursion: filters made by programs can be very deep.
    stack = [predicate]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, (And, Or)):
            stack.extend(reversed(node.terms))
        elif isinstance(node, Not):
            stack.append(node.term)


def bounded(predicate: Predicate) -> Predicate:
    """The predicate with what lies too deep for a search to follow made `Unknown`.

    Examples
    --------
    >>> deep = Compares(("a",), "<", pa.scalar(5))
    >>> for _ in range(1000):
    ...     deep = And((Or((deep, Constant(None))), IsNull(("b",))))
    >>> depth(bounded(deep)) <= DEEPEST
    True
    """
    if depth(predicate) <= DEEPEST:
        return predicate
    return _cut(predicate, DEEPEST)


def depth(predicate: Predicate) -> int:
    """How many nodes lie above the deepest one."""
    deepest, stack = 0, [(predicate, 0)]
    while stack:
        node, deep = stack.pop()
        deepest = max(deepest, deep)
        stack += [(each, deep + 1) for each in _below(node)]
    return deepest


def flattened(predicate: Predicate) -> Predicate:
    """Terms of a chain side by side, however they are nested: ``a OR (b OR c)`` is one OR."""
    order, inner = [predicate], set()
    for node in order:
        below = _below(node)
        order += below
        inner.update(id(each) for each in below if _joins(node, each))
    made: dict[int, Predicate] = {}
    # Children before parents; a chain within one of its kind is made with that.
    for node in reversed(order):
        if isinstance(node, Not):
            made[id(node)] = negation(made[id(node.term)])
        elif not isinstance(node, And | Or):
            made[id(node)] = node
        elif id(node) not in inner or node is predicate:
            terms: list[Predicate] = []
            stack: list[Predicate] = [node]
            while stack:
                each = stack.pop()
                if each is node or _joins(node, each):
                    stack += reversed(_below(each))
                else:
                    terms.append(made[id(each)])
            made[id(node)] = type(node)(tuple(terms))
    return made[id(predicate)]


def _below(node: Predicate) -> tuple[Predicate, ...]:
    if isinstance(node, And | Or):
        return node.terms
    return (node.term,) if isinstance(node, Not) else ()


def _joins(outer: Predicate, inner: Predicate) -> bool:
    return isinstance(outer, And | Or) and type(outer) is type(inner)


def _cut(predicate: Predicate, left: int) -> Predicate:
    if isinstance(predicate, And | Or | Not) and left == 0:
        return Unknown("...", f"it is nested more than {DEEPEST} levels deep")
    if isinstance(predicate, And | Or):
        return type(predicate)(tuple(_cut(term, left - 1) for term in predicate.terms))
    return Not(_cut(predicate.term, left - 1)) if isinstance(predicate, Not) else predicate


def conjunction(terms: Iterable[Predicate]) -> Predicate:
    """All of some terms; ``a >= x`` beside ``a <= x`` is ``a = x``, which a filter answers.

    Examples
    --------
    >>> five = pa.scalar(5)
    >>> print(conjunction([Compares(("a",), ">=", five), Compares(("a",), "<=", five)]))
    a = 5
    """
    kept: list[Predicate] = []
    bounds: dict[tuple[ColumnPath, str], int] = {}
    for term in terms:
        if isinstance(term, Compares) and term.operator in _FACING:
            at = bounds.get((term.column, _FACING[term.operator]))
            if at is not None and _value_of(kept[at]).equals(term.value):
                kept[at] = Equals(term.column, term.value)
                del bounds[term.column, _FACING[term.operator]]
                continue
            bounds[term.column, term.operator] = len(kept)
        kept.append(term)
    return kept[0] if len(kept) == 1 else And(tuple(kept))


def disjunction(terms: Iterable[Predicate]) -> Predicate:
    """Any of some terms; many equalities of one column are a set, which is looked up at once.

    Examples
    --------
    >>> print(disjunction(Equals(("a",), pa.scalar(number)) for number in range(100)))
    a IN (0, 1, ... 98 more)
    """
    terms = tuple(terms)
    if len(terms) < _MANY_TERMS:
        return Or(terms)
    sets: dict[tuple[ColumnPath, pa.DataType], list[pa.Scalar]] = {}
    others: list[Predicate] = []
    for term in terms:
        if isinstance(term, Equals):
            sets.setdefault((term.column, term.value.type), []).append(term.value)
        else:
            others.append(term)
    made = [IsIn(column, pa.array(values, type_)) for (column, type_), values in sets.items()]
    terms = (*made, *others)
    return terms[0] if len(terms) == 1 else Or(terms)


def negation(predicate: Predicate) -> Predicate:
    """NOT of a predicate, without two of them in a row.

    Examples
    --------
    >>> print(negation(Not(IsNull(("a",)))), negation(Constant(None)))
    a IS NULL NULL
    """
    if isinstance(predicate, Not):
        return predicate.term
    if isinstance(predicate, Constant):
        return Constant(None if predicate.value is None else not predicate.value)
    return Not(predicate)


def _value_of(term: Predicate) -> pa.Scalar:
    assert isinstance(term, Compares)
    return term.value


def columns(predicate: Predicate) -> set[ColumnPath]:
    """Return the paths of the columns a Bloom filter would be asked about.

    Examples
    --------
    >>> columns(Or((IsNull(("id",)), IsNull(("st", "x"))))) == {("id",), ("st", "x")}
    True
    """
    return {n.column for n in walk(predicate) if isinstance(n, (Equals, IsIn, IsNull))}


def unknowns(predicate: Predicate) -> list[Unknown]:
    """Return the parts the index cannot answer, in the order they are written."""
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


def _operand_text(term: Predicate) -> str:
    return f"({term})" if isinstance(term, (And, Or)) else str(term)

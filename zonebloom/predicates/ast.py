"""Define the predicate tree that an index can answer.

The translators of all filter languages produce this tree, and a search reads nothing else. A node
is a three-valued condition on a row: true, false or null. The search computes two bounds for each
node: the rows for which it *may be true* and the rows for which it *may be false*. A row for which
the node is null may be missing from both.

    node                    rows that may be true                 rows that may be false
    Equals, IsIn, IsNull    the zones that may hold a value       all, or less (see below)
    Compares                the zones whose bounds allow it       all, or less
    HasElement, HasText,
    HasTuple                the zones that may hold a key         all
    Constant                all if True, else none                all if False, else none
    Unknown                 those where `requires` may be true    all
    And                     intersection                          union
    Or                      union                                 intersection
    Not                     the rows that may be false            the rows that may be true

A zone map and the values in the paths of files also limit the rows that may be false. Hashes do
not: a zone that may hold a value may hold others, too.

A translator may widen a condition, and `Unknown` is always correct, but it must never narrow one:
a row for which the user's filter is true must be among the rows that *may be true*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.user_values import to_arrow, to_scalar
from zonebloom.errors import InvalidArgument
from zonebloom.values.columns import find_leaf_type

ColumnPath: TypeAlias = tuple[str, ...]

# The reason of `Unknown` for other comparisons.
ONLY_LITERALS = "an index answers only comparisons of a column with a literal"
# A search recurses over the predicate, so its depth is limited.
MAX_DEPTH = 150
_MIN_TERMS_TO_UNITE = 64
_MAX_SHOWN_VALUES = 2
_MAX_SHOWN_CHARACTERS = 200
# ``x >= v AND x <= v`` means ``x = v``. This maps each of the two operators to the other one.
_OPPOSITE_BOUNDS = {">=": "<=", "<=": ">="}
# The operator of a comparison after its sides are exchanged.
FLIPPED_OPERATORS: dict[str, Any] = {
    **{operator: operator for operator in ("=", "!=", "<=>")},
    **{"<": ">", "<=": ">=", ">": "<", ">=": "<="},
}


def _convert_to_scalar(leaf: Equals | Compares) -> None:
    """Convert the Python value that a user passed to Arrow."""
    object.__setattr__(leaf, "value", to_scalar(leaf.value, "the value of a comparison"))


@dataclass(frozen=True, slots=True)
class Equals:
    """The condition that a column equals a value. The value is never null."""

    column: ColumnPath
    value: pa.Scalar

    def __post_init__(self) -> None:
        if not isinstance(self.value, pa.Scalar):
            _convert_to_scalar(self)

    def __str__(self) -> str:
        return f"{column_text(self.column)} = {value_text(self.value)}"


@dataclass(frozen=True, slots=True)
class IsIn:
    """The condition that a column holds one of some values, or null if `null_matches`."""

    column: ColumnPath
    values: pa.Array
    null_matches: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.values, pa.Array):
            object.__setattr__(self, "values", to_arrow(self.values, "the values of IsIn"))
        if self.values.null_count:
            raise InvalidArgument(
                "the values of IsIn hold a null; drop it, and pass null_matches=True if null rows "
                "should match"
            )

    def __str__(self) -> str:
        return f"{column_text(self.column)} {_set_text(self.values, self.null_matches)}"

    def __repr__(self) -> str:
        return f"<IsIn {self}>"

    # Define the hash here because a pa.Array has none.
    def __hash__(self) -> int:
        return hash((self.column, str(self.values.type), len(self.values), self.null_matches))


@dataclass(frozen=True, slots=True)
class Compares:
    """The condition that a column is less or greater than a value, which is never null or NaN."""

    column: ColumnPath
    operator: Literal["<", "<=", ">", ">="]
    value: pa.Scalar

    def __post_init__(self) -> None:
        if not isinstance(self.value, pa.Scalar):
            _convert_to_scalar(self)

    def __str__(self) -> str:
        return f"{column_text(self.column)} {self.operator} {value_text(self.value)}"


@dataclass(frozen=True, slots=True)
class IsNull:
    """The condition that a column is null. A leaf is also null where one of its structs is null."""

    column: ColumnPath

    def __str__(self) -> str:
        return f"{column_text(self.column)} IS NULL"


@dataclass(frozen=True, slots=True)
class HasElement:
    """The condition that a list holds one of some values, none of them null.

    It occurs only in `Unknown.requires`.

    Attributes
    ----------
    column : ColumnPath
        A column of lists or maps.
    values : pyarrow.Array
    field : ColumnPath
        For a list of structs, the field of its elements that is compared.
    key : pyarrow.Scalar or None
        For a map, the key of the entry whose value is compared.
    """

    column: ColumnPath
    values: pa.Array
    field: ColumnPath = ()
    key: pa.Scalar | None = None

    def __str__(self) -> str:
        key = "" if self.key is None else value_text(self.key)
        path = ".".join([f"{column_text(self.column)}[{key}]", *self.field])
        return f"{path} {_set_text(self.values)}"

    def __hash__(self) -> int:
        return hash((self.column, self.field, str(self.values.type), len(self.values)))


@dataclass(frozen=True, slots=True)
class HasText:
    """The condition that a string contains a text. It occurs only in `Unknown.requires`.

    Attributes
    ----------
    column : ColumnPath
    text : str
        Not empty.
    starts_word, ends_word : bool
        Whether a word certainly begins where the text begins, and ends where the text ends. A word
        is a longest run of ASCII letters, ASCII digits and other characters than ASCII. So the
        first and last word of the text are whole words of the string only if this is true.
    ignores_case : bool
    """

    column: ColumnPath
    text: str
    starts_word: bool = False
    ends_word: bool = False
    ignores_case: bool = False

    def __str__(self) -> str:
        function = "contains_token" if self.starts_word and self.ends_word else "contains"
        name = column_text(self.column)
        name = f"lower({name})" if self.ignores_case else name
        return f"{function}({name}, {value_text(pa.scalar(self.text))})"


@dataclass(frozen=True, slots=True)
class HasTuple:
    """The condition that several columns together hold one of some tuples, without nulls.

    ``values`` has one array for each column, and one tuple at each position. Only
    `zonebloom.predicates.tuples` makes this condition, for a search, from the equalities ``terms``.
    """

    columns: tuple[ColumnPath, ...]
    values: tuple[pa.Array, ...]
    terms: tuple[Predicate, ...] = ()

    @property
    def column(self) -> ColumnPath:
        return self.columns[0]

    def __str__(self) -> str:
        names = ", ".join(map(column_text, self.columns))
        count = len(self.values[0])
        first = ", ".join(value_text(array[0]) for array in self.values) if count else ""
        return f"({names}) IN (({first}){f', ... {count - 1} more' if count > 1 else ''})"

    def __hash__(self) -> int:
        return hash((self.columns, len(self.values[0])))


@dataclass(frozen=True, slots=True)
class And:
    """The condition that all terms are true."""

    terms: tuple[Predicate, ...]

    def __str__(self) -> str:
        terms = [term for term in self.terms if not isinstance(term, TypeRequirement)]
        return " AND ".join(map(_operand_text, terms))


@dataclass(frozen=True, slots=True)
class Or:
    """The condition that at least one term is true."""

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
class TypeRequirement(Constant):
    """TRUE, beside a condition that was simplified because of the types of some columns.

    For example, ``id = 3000000000`` is false for each row of an int32 column, but not for a file
    that stores the column as int64. So a search needs to know the types in all files.
    """

    columns: frozenset[ColumnPath] = frozenset()

    def __str__(self) -> str:
        return "TRUE"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A condition that this tree cannot express, and the reason that ``explain_plan`` shows.

    ``columns`` are the top-level columns that it names. ``expression`` is the PyArrow expression
    that evaluates it on rows, or None if there is none. ``requires`` is a predicate that is true
    for every row for which the condition is true, or None. An index may answer it instead: a row
    of ``name LIKE 'Jo%n'`` has a name from 'Jo' to before 'Jp' that contains 'Jo'.
    """

    text: str
    reason: str
    columns: frozenset[str] = frozenset()
    expression: pc.Expression | None = field(default=None, compare=False, repr=False)
    requires: Predicate | None = None

    def __str__(self) -> str:
        return self.text


LeafPredicate: TypeAlias = (
    Equals | IsIn | Compares | IsNull | HasElement | HasText | HasTuple | Constant | Unknown
)
Predicate: TypeAlias = LeafPredicate | And | Or | Not


_Value = TypeVar("_Value")


def fold_predicate(
    predicate: Predicate,
    leaf: Callable[[LeafPredicate], _Value],
    combine_and: Callable[[list[_Value]], _Value],
    combine_or: Callable[[list[_Value]], _Value],
    negate: Callable[[_Value], _Value],
) -> _Value:
    """Reduce a predicate to one value, bottom up.

    `leaf` gives the value of a leaf. `combine_and`, `combine_or` and `negate` combine the values of
    the terms of `And`, `Or` and `Not`. Leaves are visited from left to right.
    """
    if not isinstance(predicate, And | Or | Not):
        return leaf(predicate)
    values: dict[int, _Value] = {}
    # Visit children before their parents.
    for node in reversed(_list_nodes(predicate, reverse=False)):
        match node:
            case And(terms):
                value = combine_and([values[id(term)] for term in terms])
            case Or(terms):
                value = combine_or([values[id(term)] for term in terms])
            case Not(term):
                value = negate(values[id(term)])
            case _:
                value = leaf(node)
        values[id(node)] = value
    return values[id(predicate)]


def replace_leaves(predicate: Predicate, leaf: Callable[[LeafPredicate], Predicate]) -> Predicate:
    return fold_predicate(predicate, leaf, conjunction, disjunction, negation)


def walk(predicate: Predicate) -> list[Predicate]:
    return _list_nodes(predicate, reverse=True)


def _list_nodes(predicate: Predicate, *, reverse: bool) -> list[Predicate]:
    # Use a stack, because filters that programs generate can be too deep for recursion.
    nodes, stack = [], [predicate]
    while stack:
        node = stack.pop()
        nodes.append(node)
        child_terms = _child_terms(node)
        stack += reversed(child_terms) if reverse else child_terms
    return nodes


def _child_terms(node: Predicate) -> tuple[Predicate, ...]:
    if isinstance(node, And | Or):
        return node.terms
    return (node.term,) if isinstance(node, Not) else ()


def depth(predicate: Predicate) -> int:
    def depth_above(depths: list[int]) -> int:
        return 1 + max(depths, default=-1)

    return fold_predicate(
        predicate, lambda leaf: 0, depth_above, depth_above, lambda term_depth: term_depth + 1
    )


def simplify(predicate: Predicate) -> Predicate:
    """Return the condition in the form for a search: flat chains, no double NOT, limited depth."""
    return limit_depth(flatten(predicate))


def limit_depth(predicate: Predicate) -> Predicate:
    """Return the predicate, or `Unknown` if it is too deep for a search."""
    if depth(predicate) <= MAX_DEPTH:
        return predicate
    return Unknown("...", f"the filter is nested more than {MAX_DEPTH} levels deep")


def flatten(predicate: Predicate) -> Predicate:
    """Merge nested chains of the same kind: ``a OR (b OR c)`` becomes one OR of three terms."""
    if not isinstance(predicate, And | Or | Not):
        return predicate
    chain_ids = {id(predicate)}
    for node in walk(predicate):
        chain_ids.update(id(term) for term in _child_terms(node) if type(term) is not type(node))
    flat_predicates: dict[int, Predicate] = {}
    for node in reversed(_list_nodes(predicate, reverse=False)):
        if isinstance(node, Not):
            flat_predicates[id(node)] = negation(flat_predicates[id(node.term)])
        elif not isinstance(node, And | Or):
            flat_predicates[id(node)] = node
        elif id(node) in chain_ids:
            join = conjunction if isinstance(node, And) else disjunction
            flat_predicates[id(node)] = join(
                flat_predicates[id(term)] for term in _chain_terms(node)
            )
    return flat_predicates[id(predicate)]


def _chain_terms(outer: And | Or) -> Iterator[Predicate]:
    stack: list[Predicate] = [outer]
    while stack:
        node = stack.pop()
        if type(node) is type(outer):
            stack += reversed(_child_terms(node))
        else:
            yield node


def conjunction(terms: Iterable[Predicate]) -> Predicate:
    """Return the AND of some terms.

    ``a >= x AND a <= x`` becomes ``a = x``, because a Bloom filter can answer an equality.
    """
    simplified_terms: list[Predicate] = []
    bounds: dict[tuple[ColumnPath, str], tuple[int, pa.Scalar]] = {}
    for term in terms:
        if isinstance(term, Compares) and term.operator in _OPPOSITE_BOUNDS:
            opposite_bound = term.column, _OPPOSITE_BOUNDS[term.operator]
            position, value = bounds.get(opposite_bound, (0, None))
            if value is not None and value.equals(term.value):
                simplified_terms[position] = Equals(term.column, term.value)
                del bounds[opposite_bound]
                continue
            bounds[term.column, term.operator] = len(simplified_terms), term.value
        simplified_terms.append(term)
    if len(simplified_terms) >= _MIN_TERMS_TO_UNITE:
        # NOT a = 1 AND NOT a = 2 equals NOT (a = 1 OR a = 2), which can become NOT a IN (1, 2).
        negated_terms = _unite_equalities([negation(term) for term in simplified_terms])
        simplified_terms = [negation(term) for term in negated_terms]
    return simplified_terms[0] if len(simplified_terms) == 1 else And(tuple(simplified_terms))


def disjunction(terms: Iterable[Predicate]) -> Predicate:
    """Return the OR of some terms.

    Many equalities of one column become one `IsIn`, which is looked up at once.
    """
    united_terms = _unite_equalities(list(terms))
    return united_terms[0] if len(united_terms) == 1 else Or(tuple(united_terms))


def _unite_equalities(terms: list[Predicate]) -> list[Predicate]:
    if len(terms) < _MIN_TERMS_TO_UNITE:
        return terms
    sets: dict[tuple[ColumnPath, pa.DataType], list[pa.Scalar]] = {}
    others: list[Predicate] = []
    for term in terms:
        if isinstance(term, Equals):
            sets.setdefault((term.column, term.value.type), []).append(term.value)
        else:
            others.append(term)
    memberships = [
        IsIn(column, pa.array(values, type_)) for (column, type_), values in sets.items()
    ]
    return [*memberships, *others]


def negation(predicate: Predicate) -> Predicate:
    if isinstance(predicate, Not):
        return predicate.term
    if isinstance(predicate, Constant) and not isinstance(predicate, TypeRequirement):
        return Constant(None if predicate.value is None else not predicate.value)
    return Not(predicate)


def bound_by_leaves(
    predicate: Predicate, bounds: Callable[[LeafPredicate], tuple[Predicate, Predicate]]
) -> Predicate:
    """Return a condition that is true for each row for which the predicate is true.

        a = 5 AND b + a > 1    ->    a = 5 AND TRUE

    ``bounds`` returns two conditions for a leaf. The first is true at least where the leaf is true,
    and the second at most there.
    """

    def join_by(junction: type[And | Or]) -> Callable[[list[tuple[Predicate, Predicate]]], Any]:
        return lambda pairs: tuple(junction(terms) for terms in zip(*pairs, strict=True))

    at_least, _ = fold_predicate(
        predicate,
        bounds,
        join_by(And),
        join_by(Or),
        lambda pair: (negation(pair[1]), negation(pair[0])),
    )
    return at_least


def probed_columns(predicate: Predicate) -> set[ColumnPath]:
    """Return the paths of the columns whose Bloom filters the predicate asks."""
    return {node.column for node in walk(predicate) if isinstance(node, (Equals, IsIn, IsNull))}


def searched_columns(predicate: Predicate) -> set[ColumnPath]:
    """Return the paths of the columns whose indices of any kind a search may ask."""
    columns: set[ColumnPath] = set()
    for node in walk(predicate):
        if isinstance(node, Unknown):
            columns |= set() if node.requires is None else searched_columns(node.requires)
        elif not isinstance(node, And | Or | Not | Constant):
            columns.add(node.column)
    return columns


def unknowns(predicate: Predicate) -> list[Unknown]:
    return [node for node in walk(predicate) if isinstance(node, Unknown)]


def column_text(path: ColumnPath) -> str:
    """Return a column path as SQL text. Parts that are not identifiers are quoted."""
    return ".".join(
        part if part.isidentifier() else '"' + part.replace('"', '""') + '"' for part in path
    )


def value_text(value: pa.Scalar) -> str:
    """Return a value as a SQL literal that people can read. It need not be valid SQL."""
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
    if pa.types.is_temporal(value.type) or isinstance(value.type, pa.UuidType):
        return f"'{plain}'"
    return str(plain)


def shown_text(predicate: Predicate, schema: pa.Schema) -> str:
    """Return a predicate as text, with the values of UUID columns as people write them.

    Searches compare them as bytes, and conditions on tuples and elements show these.
    """

    def with_uuids(leaf: LeafPredicate) -> Predicate:
        if not isinstance(leaf, Equals | Compares | IsIn):
            return leaf
        if not isinstance(find_leaf_type(schema, leaf.column), pa.UuidType):
            return leaf
        # Bytes of another length stay as they are.
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            if isinstance(leaf, IsIn):
                return replace(leaf, values=_as_uuids(leaf.values))
            return replace(leaf, value=_as_uuids(leaf.value))
        return leaf

    return str(replace_leaves(predicate, with_uuids))


def _as_uuids(values: Any) -> Any:
    return values.cast(pa.binary(16)).cast(pa.uuid())


def _set_text(values: pa.Array, null_matches: bool = False) -> str:
    count = len(values)
    num_shown = count if count <= _MAX_SHOWN_VALUES + 1 else _MAX_SHOWN_VALUES
    parts = [value_text(value) for value in values[:num_shown]]
    if null_matches:
        parts.append("NULL")
    if count > num_shown:
        parts.append(f"... {count - num_shown} more")
    return f"IN ({', '.join(parts)})"


def shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 3] + "..."


def _operand_text(term: Predicate) -> str:
    return f"({term})" if isinstance(term, (And, Or)) else str(term)

"""PyArrow expressions as they are best applied: true, false and null for the same rows.

    a = 0 OR a = 1 OR ... OR s LIKE 'x%'    ->    a IN (0, 1, ...) OR s LIKE 'x%'
    u = 5, of a uint64 and an int64         ->    u = 5, of two uint64

PyArrow binds and applies a chain in more than the time of its length, and its stack ends at some
ten thousand terms. And it brings a uint64 to int64 to compare the two, which fails at 2**63.

Expressions are taken apart in the form that `arrow` reads, and parts are put back into it: what
a part does is of no concern here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.errors import FilterError
from zonebloom.predicates import ast
from zonebloom.predicates.arrow import Entry, Form, column_of
from zonebloom.predicates.expression import balanced, from_predicate

# Shorter ones are applied as they are.
LONG = 600
# PyArrow makes a chain as deep as it is long when it simplifies it: at ten thousand terms its
# stack was seen to end.
_MOST_TERMS = 4000
_DEEPEST = 1000
# From OR to AND and back.
_MOST_TURNS = 200
_COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "is_in"}
_WHOLE = {pa.int64(), pa.uint64()}
_ADVICE = "write IN for equalities, or read less and filter the table"


def applied(expression: pc.Expression, schema: pa.Schema, form: Form) -> pc.Expression:
    """The expression to apply to rows.

    The same one if it is short and of matching types, or cannot be read.

    Examples
    --------
    >>> from zonebloom.predicates.arrow import read
    >>> chain = pc.field("a") == 0
    >>> for number in range(1, 200):
    ...     chain = chain | (pc.field("a") == number)
    >>> short = applied(chain, pa.schema({"a": pa.int64()}), read(chain))
    >>> str(short).startswith("(is_in(a, ")
    True
    """
    entries, row = form
    long = len(entries) > LONG
    if not long and not _may_mix(entries, row, schema):
        return expression
    parts = _Parts(expression, entries, row, schema)
    try:
        root = parts.parsed()
    except (ValueError, IndexError):
        # Another layout than is known.
        return expression
    retyped = parts.retype(root)
    if long:
        return parts.rebuilt(root)
    return parts.written(root) if retyped else expression


def _may_mix(entries: list[Entry], row: pa.RecordBatch, schema: pa.Schema) -> bool:
    """Whether a uint64 may stand beside an int64."""
    held = {_type_of_values(each) for each in row.schema.types} & _WHOLE
    if not held:
        return False
    for key, name in entries:
        if key == "nested_field_ref":
            return True
        at = schema.get_field_index(name) if key == "field_ref" else -1
        if at >= 0 and schema.field(at).type in _WHOLE and held != {schema.field(at).type}:
            return True
    return False


def _type_of_values(literal: pa.DataType) -> pa.DataType:
    """Of the set of an `is_in`, the type of its values."""
    if isinstance(literal, pa.StructType) and literal.get_field_index("value_set") >= 0:
        return literal.field("value_set").type.value_type
    return literal


class _Part:
    """A call, a reference or a literal: which entries it is written in."""

    __slots__ = ("end", "name", "parts", "start")

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = start
        self.end = start + 1
        self.parts: list[_Part] = []


class _Parts:
    """The entries of an expression and its literals, some of which may have been exchanged."""

    def __init__(
        self,
        expression: pc.Expression,
        entries: list[Entry],
        row: pa.RecordBatch,
        schema: pa.Schema,
    ):
        self._make: Callable[[pa.Buffer], pc.Expression] = expression.__reduce__()[0]
        self._entries = entries
        self._literals = row.columns
        self._schema = schema

    def parsed(self) -> _Part:
        root = _Part("root", 0)
        stack = [root]
        at = 0
        while at < len(self._entries):
            key, text = self._entries[at]
            if key == "call":
                part = _Part(text, at)
                stack[-1].parts.append(part)
                stack.append(part)
            elif key == "end":
                stack.pop().end = at + 1
            else:
                part = _Part(key, at)
                if key == "nested_field_ref":
                    at += int(text)
                    part.end = at + 1
                stack[-1].parts.append(part)
            at += 1
        (found,) = root.parts
        return found

    # Types

    def retype(self, root: _Part) -> bool:
        """Exchange literals of 64 bits beside columns of the other sign; whether there are any."""
        found, stack = False, [root]
        while stack:
            part = stack.pop()
            stack += part.parts
            if part.name not in _COMPARISONS or len(part.parts) != 2:
                continue
            column, other = part.parts
            if column.name == "literal":
                column, other = other, column
            named = self._column(column)
            if named is None or named[1] not in _WHOLE or other.name not in ("literal", "options"):
                continue
            number = int(self._entries[other.start][1])
            exchanged = _as(self._literals[number], named[1])
            if exchanged is not None:
                self._literals[number] = exchanged
                found = True
        return found

    def _column(self, part: _Part) -> tuple[ast.ColumnPath, pa.DataType] | None:
        if part.name not in ("field_ref", "nested_field_ref"):
            return None
        names = self._entries[part.start : part.end]
        path = tuple(text for key, text in names if key == "field_ref")
        return column_of(path, self._schema)

    # Length

    def rebuilt(self, part: _Part, deep: int = 0) -> pc.Expression:
        """A part with its chains balanced, and their equalities as sets."""
        negated = False
        while part.name == "invert" and len(part.parts) == 1:
            negated, part = not negated, part.parts[0]
        if part.name in ("and_kleene", "or_kleene"):
            if deep == _MOST_TURNS:
                self._refuse_depth()
            made = self._chain(part, deep)
        else:
            made = self.written(part)
        return ~made if negated else made

    def _chain(self, chain: _Part, deep: int) -> pc.Expression:
        is_or = chain.name == "or_kleene"
        alike = "equal" if is_or else "not_equal"
        sets: dict[ast.ColumnPath, tuple[pa.DataType, list[pa.Scalar]]] = {}
        terms: list[pc.Expression] = []
        stack = [chain]
        while stack:
            part = stack.pop()
            if part.name == chain.name:
                stack += reversed(part.parts)
                continue
            equality = self._equality(part) if part.name == alike else None
            if equality is None:
                terms.append(self.rebuilt(part, deep + 1))
                if len(terms) > _MOST_TERMS:
                    raise FilterError(
                        f"the filter joins more than {_MOST_TERMS:,} conditions that are no "
                        f"equalities of one column; {_ADVICE}"
                    )
            else:
                path, type_, value = equality
                values = sets.setdefault(path, (type_, []))[1]
                values += [] if value is None else [value]
        for path, (type_, values) in sets.items():
            found = from_predicate(ast.IsIn(path, pa.array(values, type_)), self._schema)
            terms.append(found if is_or else ~found)
        return balanced(terms, is_or)

    def _equality(self, part: _Part) -> tuple[ast.ColumnPath, pa.DataType, pa.Scalar | None] | None:
        """The column, its type and the value, None for what no value of the type is."""
        if len(part.parts) != 2:
            return None
        left, right = part.parts
        if left.name == "literal":
            left, right = right, left
        column = self._column(left)
        if column is None or right.name != "literal":
            return None
        path, type_ = column
        value = self._literals[int(self._entries[right.start][1])][0]
        if not value.is_valid or not _is_foldable(type_):
            return None
        if value.type == type_:
            return path, type_, value
        if pt.is_integer(type_) and pt.is_integer(value.type):
            return path, type_, _fitted(value, type_)
        return None

    # Writing

    def written(self, part: _Part) -> pc.Expression:
        """A part as it is, in an expression of its own."""
        entries: list[Entry] = []
        literals: list[pa.Array] = []
        deep = 0
        for key, text in self._entries[part.start : part.end]:
            deep += {"call": 1, "end": -1}.get(key, 0)
            if deep > _DEEPEST:
                self._refuse_depth()
            if key in ("literal", "options"):
                literals.append(self._literals[int(text)])
                text = str(len(literals) - 1)
            entries.append((key, text))
        if not literals:
            # A file's row needs a column.
            literals.append(pa.nulls(1))
        fields = [pa.field("", each.type) for each in literals]
        schema = pa.schema(fields, pa.KeyValueMetadata(entries))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as file:
            file.write_batch(pa.record_batch(literals, schema=schema))
        return self._make(sink.getvalue())

    def _refuse_depth(self) -> Any:
        raise FilterError(f"the filter is nested more than {_DEEPEST} levels deep; {_ADVICE}")


def _is_foldable(type_: pa.DataType) -> bool:
    return (
        pt.is_integer(type_)
        or pt.is_float32(type_)
        or pt.is_float64(type_)
        or pt.is_string(type_)
        or pt.is_large_string(type_)
        or pt.is_binary(type_)
        or pt.is_large_binary(type_)
        or pt.is_date32(type_)
        or pt.is_timestamp(type_)
    )


def _fitted(value: pa.Scalar, type_: pa.DataType) -> pa.Scalar | None:
    try:
        return value.cast(type_)
    except pa.ArrowInvalid:
        return None


def _as(literal: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """A literal, or the set of an `is_in`, as another type; None if it needs not or cannot be."""
    if literal.type in _WHOLE - {wanted}:
        fitted = _fitted(literal[0], wanted)
        return None if fitted is None else pa.array([fitted], wanted)
    if not pt.is_struct(literal.type) or _type_of_values(literal.type) not in _WHOLE - {wanted}:
        return None
    values = literal.field("value_set").flatten()
    # Values that do not fit equal none.
    fitted = (_fitted(each, wanted) for each in values.drop_null())
    kept = [each for each in fitted if each is not None] + [None] * values.null_count
    fields = {each.name: literal.field(each.name) for each in literal.type}
    fields["value_set"] = pa.array([pa.array(kept, wanted)], pa.list_(wanted))
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))

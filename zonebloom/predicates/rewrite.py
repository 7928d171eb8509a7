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
from zonebloom.predicates.arrow import Entry, Form, Malformed, Node, parse
from zonebloom.predicates.expression import TOO_LONG, compared_as, from_predicate, joined
from zonebloom.values.columns import leaf_type
from zonebloom.values.literal import integers_within
from zonebloom.values.types import family

# Shorter ones are applied as they are.
LONG = 600
_DEEPEST = 1000
# From OR to AND and back.
_MOST_TURNS = 200
_COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
_WHOLE = {pa.int64(), pa.uint64()}


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
    is_long = len(form[0]) > LONG
    if not is_long and not _may_mix(form, schema):
        return expression
    try:
        root = parse(form)[-1]
    except (Malformed, ValueError, IndexError):
        return expression
    rewriter = _Rewriter(expression, form, schema)
    is_retyped = rewriter.retype(root)
    if is_long:
        return rewriter.rebuilt(root)
    return rewriter.written(root) if is_retyped else expression


def _may_mix(form: Form, schema: pa.Schema) -> bool:
    """Whether a uint64 may stand beside an int64."""
    entries, row = form
    literals = {_type_of_values(each) for each in row.schema.types} & _WHOLE
    if not literals:
        return False
    for key, name in entries:
        if key == "nested_field_ref":
            return True
        at = schema.get_field_index(name) if key == "field_ref" else -1
        if at >= 0 and schema.field(at).type in _WHOLE and literals != {schema.field(at).type}:
            return True
    return False


def _type_of_values(literal: pa.DataType) -> pa.DataType:
    """Of the set of an `is_in`, the type of its values."""
    if isinstance(literal, pa.StructType) and literal.get_field_index("value_set") >= 0:
        return literal.field("value_set").type.value_type
    return literal


class _Rewriter:
    """The entries of an expression and its literals, some of which may have been exchanged."""

    def __init__(self, expression: pc.Expression, form: Form, schema: pa.Schema):
        self._make: Callable[[pa.Buffer], pc.Expression] = expression.__reduce__()[0]
        self._entries, row = form
        self._literals = row.columns
        self._schema = schema

    def retype(self, root: Node) -> bool:
        """Exchange literals of 64 bits beside columns of the other sign; whether there are any."""
        is_retyped, stack = False, [root]
        while stack:
            node = stack.pop()
            stack += node.args
            if node.name == "is_in" and len(node.args) == 1:
                column, literal = node.args[0], node
            elif node.name in _COMPARISONS and len(node.args) == 2:
                column, literal = _column_first(node)
                if literal.name != "literal":
                    continue
            else:
                continue
            type_ = leaf_type(self._schema, column.path) if column.path else None
            if type_ not in _WHOLE or literal.options is None:
                continue
            exchanged = _as(self._literals[literal.options], type_)
            if exchanged is not None:
                self._literals[literal.options] = exchanged
                is_retyped = True
        return is_retyped

    def rebuilt(self, node: Node, deep: int = 0) -> pc.Expression:
        """A part with its chains balanced, and their equalities as sets."""
        is_negated = False
        while node.name == "invert" and len(node.args) == 1:
            is_negated, node = not is_negated, node.args[0]
        if node.name in ("and_kleene", "or_kleene"):
            if deep == _MOST_TURNS:
                self._refuse_depth()
            rebuilt = self._chain(node, deep)
        else:
            rebuilt = self.written(node)
        return ~rebuilt if is_negated else rebuilt

    def _chain(self, chain: Node, deep: int) -> pc.Expression:
        is_or = chain.name == "or_kleene"
        sets: dict[ast.ColumnPath, tuple[pa.DataType, list[pa.Scalar]]] = {}
        terms: list[pc.Expression] = []
        stack = [chain]
        while stack:
            node = stack.pop()
            if node.name == chain.name:
                stack += reversed(node.args)
                continue
            is_alike = node.name == ("equal" if is_or else "not_equal")
            equality = self._equality(node) if is_alike else None
            if equality is None:
                terms.append(self.rebuilt(node, deep + 1))
            else:
                path, type_, value = equality
                values = sets.setdefault(path, (type_, []))[1]
                values += [] if value is None else [value]
        for path, (type_, values) in sets.items():
            inside = from_predicate(
                ast.IsIn(path, pa.array(values, type_)), self._schema, exact=True
            )
            terms.append(inside if is_or else ~inside)
        return joined(terms, is_or)

    def _equality(self, node: Node) -> tuple[ast.ColumnPath, pa.DataType, pa.Scalar | None] | None:
        """The column, its type and the value, None for what no value of the type is."""
        if len(node.args) != 2:
            return None
        column, literal = _column_first(node)
        type_ = leaf_type(self._schema, column.path) if column.path else None
        if type_ is None or literal.name != "literal" or literal.options is None:
            return None
        value = self._literals[literal.options][0]
        if not value.is_valid or compared_as(type_) != type_ or not family(type_):
            return None
        if value.type == type_:
            return column.path, type_, value
        if family(type_) == family(value.type) == "integer":
            within = integers_within(pa.array([value]), type_)
            return column.path, type_, within[0] if len(within) else None
        return None

    def written(self, node: Node) -> pc.Expression:
        """A part as it is, in an expression of its own."""
        entries: list[Entry] = []
        literals: list[pa.Array] = []
        deep = 0
        for key, text in self._entries[node.start : node.end]:
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
        raise FilterError(f"the filter is nested more than {_DEEPEST} levels deep; {TOO_LONG}")


def _column_first(comparison: Node) -> list[Node]:
    return sorted(comparison.args, key=lambda side: side.name == "literal")


def _as(literal: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """A literal, or the set of an `is_in`, as another type; None if it needs not or cannot be."""
    if literal.type in _WHOLE - {wanted}:
        within = integers_within(literal.drop_null(), wanted)
        return within if len(within) else None
    if not pt.is_struct(literal.type) or _type_of_values(literal.type) not in _WHOLE - {wanted}:
        return None
    values = literal.field("value_set").flatten()
    # Values that do not fit equal none.
    kept = [*integers_within(values.drop_null(), wanted), *[None] * values.null_count]
    fields = {each.name: literal.field(each.name) for each in literal.type}
    fields["value_set"] = pa.array([pa.array(kept, wanted)], pa.list_(wanted))
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))

"""SQL filters brought to PyArrow expressions.

sqlglot parses; this module gives each node its meaning over a schema. SQL's three-valued logic
holds exactly where it can be seen, and only there: at the top of a filter, under AND and OR, a
row whose condition is false and one whose condition is null are dropped alike, so `x IN (5)` may
stay PyArrow's `is_in`, which says false for a null. Below NOT or IS the difference shows, and
the longer form is written. That is the flag `exact` of the methods below.

Names are matched exactly, then without regard to case if one column fits. Literals take their
type from the column. A time without a zone beside a column with one, or the other way around, is
refused: engines differ in the zone they take for it. LIKE escapes with a backslash unless ESCAPE
says otherwise. NaN equals nothing, itself included.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.errors import FilterError
from zonebloom.predicates import ast, literals
from zonebloom.predicates.arrow import read
from zonebloom.predicates.expression import balanced, comparable
from zonebloom.predicates.literals import Literal, Misplaced, Placed
from zonebloom.predicates.rewrite import applied
from zonebloom.values.columns import alike

# pa.scalar(None) would import pandas to look for its nulls.
_NULL = pc.scalar(pa.nulls(1, pa.bool_())[0])
_ELSEWHERE = "write that part as a pyarrow.compute expression"
_ZONES = f"{_ELSEWHERE}: {literals.ZONE_FUNCTIONS}"
# Up to here a chain is no matter.
_LONG_TEXT = 1000
_MIRRORED = {"eq": "eq", "neq": "neq", "lt": "gt", "lte": "gte", "gt": "lt", "gte": "lte"}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b,
    "neq": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "lte": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "gte": lambda a, b: a >= b,
}
_TYPES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "TEXT": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("ns"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "UUID": pa.uuid(),
}
_SECONDS = {"WEEK": 604800, "DAY": 86400, "HOUR": 3600, "MINUTE": 60, "SECOND": 1}
_FRACTIONS = {"MILLISECOND": 10**3, "MICROSECOND": 10**6, "NANOSECOND": 10**9}


# Kernels that PyArrow was seen to have, by name and types.
_done: set[tuple[Any, ...] | None] = set()
_MOST_DONE = 1 << 12


@dataclass(slots=True)
class _Operand:
    """One side of a comparison that is no literal."""

    expression: pc.Expression
    type: pa.DataType
    node: Any


def to_expression(text: str, schema: pa.Schema) -> pc.Expression:
    """Translate a SQL condition, the part behind WHERE, into a PyArrow expression.

    Parameters
    ----------
    text
        For instance ``id = 42 AND name IN ('a', 'b')``. Identifiers may be quoted with ``"`` or
        backticks; ``a.b`` is the column of that name, or the field b of the struct a.
    schema
        The schema the filter is applied to; literals take their types from it.

    Raises
    ------
    FilterError
        The text is no single condition over this schema, or says something PyArrow cannot do.

    Examples
    --------
    >>> schema = pa.schema({"id": "int64", "name": "string"})
    >>> print(to_expression("id = 42 AND name <> 'x'", schema))
    ((id == 42) and (name != "x"))
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError(
            f"the filter holds {text[error.start]!r} at {error.start}, which is half a character; "
            "put the whole one there"
        ) from None
    translator = _Translator(text, schema)
    try:
        expression = translator.condition(_parse(text), exact=False)
    except RecursionError:
        raise FilterError(
            "cannot read the filter: it is nested too deeply; write a chain of OR or AND without "
            "parentheses, or IN"
        ) from None
    if len(text) > _LONG_TEXT:
        expression = applied(expression, schema, read(expression))
    translator.check(expression)
    return expression


@functools.cache
def _dialect() -> Any:
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.tokens import Tokenizer as Plain

    class ZoneBloom(Dialect):
        """Plain SQL, with both ways of quoting a name and X'0a' for bytes."""

        class Tokenizer(Plain):
            IDENTIFIERS: ClassVar = ['"', "`"]
            HEX_STRINGS: ClassVar = [("x'", "'"), ("X'", "'")]

    return ZoneBloom


def _parse(text: str) -> Any:
    import sqlglot
    from sqlglot.errors import ParseError, SqlglotError

    try:
        statements = sqlglot.parse(text, dialect=_dialect())
    except ParseError as error:
        if not error.errors:
            raise FilterError(f"cannot read the filter: {error}\n  {text}") from None
        first = error.errors[0]
        line, mark = first.get("line") or 1, first.get("highlight") or "?"
        what = str(first.get("description", "not SQL")).split("<")[0].strip()
        if what.startswith("Required keyword"):  # sqlglot's words for a missing operand
            what = "something is missing"
        place = _caret(text, line - 1, (first.get("col") or 1) - len(mark), len(mark))
        raise FilterError(
            f"cannot read the filter: {what}.\n{place}\n"
            'Correct it there; a column named like a keyword goes in quotes: "case" = 1.'
        ) from None
    except SqlglotError as error:
        raise FilterError(
            f"cannot read the filter: {error}\n  {text}\nClose every quote; write X'0a' in hex."
        ) from None
    # Text behind a comment's end or a trailing semicolon parses to None.
    found = [statement for statement in statements if statement is not None]
    if not found:
        raise FilterError("the filter is empty; write a condition such as id = 42, or pass None")
    if len(found) > 1:
        raise FilterError(
            f"the filter holds {len(found)} statements; write one condition, joined by AND or OR\n"
            f"  {text}"
        )
    return found[0]


class _Translator:
    """Walks one parsed filter; `condition` for truth values, `operand` for values."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self.text = text
        self.schema = schema
        self.used: set[str] = set()
        # What PyArrow is asked to do besides joining conditions: kernels and their types.
        # None is what depends on more than types.
        self.asked: set[tuple[Any, ...] | None] = set()
        self.conditions: dict[str, Callable[[Any, bool], pc.Expression]] = {
            "and": self._junction,
            "or": self._junction,
            "not": self._not,
            "in": self._in,
            "is": self._is,
            "between": self._between,
            "like": self._like,
            "ilike": self._like,
            "escape": self._like,
            "nullsafeeq": self._null_safe,
            "nullsafeneq": self._null_safe,
            **dict.fromkeys(_COMPARE, self._comparison),
        }

    # Conditions

    def condition(self, node: Any, exact: bool) -> pc.Expression:
        """Translate a node that is true, false or null for a row."""
        node = self._bare(node)
        if method := self.conditions.get(node.key):
            return method(node, exact)
        if node.key in ("select", "union", "subquery", "command"):
            self._fail("a filter is a condition, not a query", "write the part behind WHERE", node)
        value = self._operand(node)
        if isinstance(value, Literal):
            if value.kind in ("bool", "null"):
                return pc.scalar(pa.scalar(value.value, pa.bool_()))
        elif pt.is_boolean(value.type):
            return value.expression
        self._fail("this is a value, not a condition", "compare it: id = 42", node)

    def _junction(self, node: Any, exact: bool) -> pc.Expression:
        self._only(node, "this", "expression")
        terms = [self.condition(term, exact) for term in node.flatten(unnest=False)]
        return balanced(terms, node.key == "or")

    def _not(self, node: Any, exact: bool) -> pc.Expression:
        self._only(node, "this")
        return ~self.condition(node.this, exact=True)

    def _comparison(self, node: Any, exact: bool) -> pc.Expression:
        self._only(node, "this", "expression")
        left, right = self._operand(node.this), self._operand(node.expression)
        return self._compare(node.key, left, right, node, exact)

    def _compare(
        self, op: str, left: _Operand | Literal, right: _Operand | Literal, node: Any, exact: bool
    ) -> pc.Expression:
        if isinstance(left, Literal) and not isinstance(right, Literal):
            op, left, right = _MIRRORED[op], right, left
        if isinstance(left, Literal):
            assert isinstance(right, Literal)
            return self._fold(op, left, right, node)
        if not isinstance(right, Literal):
            return self._compare_columns(op, left, right, node)
        if right.kind == "null" or pt.is_null(left.type):
            return _NULL
        expression, type_ = self._plain(left)
        placed = self._place(self._as_stored(right, left.type, node), type_, node)
        self.asked.add((op, type_, None if placed.scalar is None else placed.scalar.type))
        if placed.scalar is not None and placed.scalar.type == pa.float64() != type_:
            expression = expression.cast(pa.float64())
        if placed.exact:
            return _COMPARE[op](expression, placed.scalar)
        # Between two values of the type x < 5.5 is x <= 5; beyond them all it is true or false.
        if op in ("eq", "neq") or placed.scalar is None:
            truth = op == "neq" or ((op in ("lt", "lte")) == (placed.beyond > 0) and op != "eq")
            return _constant(expression, truth, exact)
        return expression <= placed.scalar if op in ("lt", "lte") else expression > placed.scalar

    def _compare_columns(
        self, op: str, left: _Operand, right: _Operand, node: Any
    ) -> pc.Expression:
        if pt.is_null(left.type) or pt.is_null(right.type):
            return _NULL
        self.asked.add(None)
        (a, ta), (b, tb) = self._plain(left), self._plain(right)
        if ta != tb:
            common = self._common(ta, tb, node)
            a, b = a.cast(common) if ta != common else a, b.cast(common) if tb != common else b
        return _COMPARE[op](a, b)

    def _common(self, a: pa.DataType, b: pa.DataType, node: Any) -> pa.DataType:
        """Return a type that holds the values of both; PyArrow's own choice may be too small."""
        if literals.is_text(a) and literals.is_text(b):
            return pa.large_string()
        if literals.is_bytes(a) and literals.is_bytes(b):
            return pa.large_binary()
        for narrow, wide in ((a, b), (b, a)):
            if literals.is_lossless(narrow, wide):
                return wide
        if pt.is_integer(a) and pt.is_integer(b):
            return pa.decimal128(20, 0) if 64 in (a.bit_width, b.bit_width) else pa.int64()
        numeric = [t for t in (a, b) if pt.is_integer(t) or pt.is_decimal(t) or pt.is_floating(t)]
        if len(numeric) == 2:
            if any(pt.is_floating(t) for t in numeric):
                return pa.float64()
            whole = max(t.precision - t.scale if pt.is_decimal(t) else 20 for t in numeric)
            scale = max(t.scale if pt.is_decimal(t) else 0 for t in numeric)
            return pa.decimal256(min(whole + scale, 76), scale)
        if pt.is_timestamp(a) and pt.is_timestamp(b) and (a.tz is None) == (b.tz is None):
            unit = max(a.unit, b.unit, key=["s", "ms", "us", "ns"].index)
            return pa.timestamp(unit, None if a.tz is None else "UTC")
        for one, other in ((a, b), (b, a)):
            if pt.is_date(one) and pt.is_timestamp(other) and other.tz is None:
                return other
        if pt.is_date(a) and pt.is_date(b):
            return pa.date64()
        if literals.zones_differ(a, b):
            self._fail(f"columns of types {a} and {b} are compared", _ZONES, node)
        for family in (pt.is_time, pt.is_duration):
            if family(a) and family(b):
                unit = max(a.unit, b.unit, key=["s", "ms", "us", "ns"].index)
                return pa.time64(unit) if family is pt.is_time else pa.duration(unit)
        self._fail(f"columns of types {a} and {b} cannot be compared", "cast one of them", node)

    def _fold(self, op: str, left: Literal, right: Literal, node: Any) -> pc.Expression:
        if "null" in (left.kind, right.kind):
            return _NULL
        if left.kind != right.kind:
            self._fail("two literals of different kinds are compared", "write TRUE or FALSE", node)
        return pc.scalar(bool(_COMPARE[op](left.value, right.value)))

    def _null_safe(self, node: Any, exact: bool) -> pc.Expression:
        self._only(node, "this", "expression")
        left, right = self._operand(node.this), self._operand(node.expression)
        if isinstance(left, Literal) and left.kind == "null":
            left, right = right, left
        if isinstance(right, Literal) and right.kind == "null":
            null = self._null(left)
            same = pc.scalar(null) if isinstance(null, bool) else null
        else:
            same = self._compare("eq", left, right, node, exact=True)
            # Never null itself: where a side is null, the comparison is cut off.
            nulls = [s.expression.is_null() for s in (left, right) if not isinstance(s, Literal)]
            for null in nulls:
                same = same & ~null
            if len(nulls) == 2:
                same = same | (nulls[0] & nulls[1])
        return same if node.key == "nullsafeeq" else ~same

    def _null(self, side: _Operand | Literal) -> pc.Expression | bool:
        return side.kind == "null" if isinstance(side, Literal) else side.expression.is_null()

    def _is(self, node: Any, exact: bool) -> pc.Expression:
        self._only(node, "this", "expression")
        what = node.expression.key
        if what not in ("null", "boolean"):
            self._fail("IS takes NULL, TRUE or FALSE", "use = to compare", node)
        if what == "null":
            null = self._null(self._operand(node.this))
            return pc.scalar(null) if isinstance(null, bool) else null
        truth = self.condition(node.this, exact=True)
        return (truth if node.expression.this else ~truth) & truth.is_valid()

    def _between(self, node: Any, exact: bool) -> pc.Expression:
        self._only(node, "this", "low", "high")
        value, low, high = (self._operand(node.args[k]) for k in ("this", "low", "high"))
        return self._compare("gte", value, low, node, exact) & self._compare(
            "lte", value, high, node, exact
        )

    def _in(self, node: Any, exact: bool) -> pc.Expression:
        self._only(node, "this", "expressions")
        value = self._operand(node.this)
        items = [self._operand(item) for item in node.expressions]
        if not items:
            self._fail("the IN list is empty", "name at least one value, or write FALSE", node)
        plain_items = [item for item in items if isinstance(item, Literal)]
        if isinstance(value, Literal) or len(plain_items) < len(items):
            parts = [self._compare("eq", value, item, node, exact) for item in items]
            return functools.reduce(lambda a, b: a | b, parts)
        if pt.is_null(value.type):
            return _NULL
        expression, type_ = self._plain(value)
        if pt.is_decimal(type_) and type_.bit_width < 128:  # is_in has no kernel for these
            type_ = pa.decimal128(type_.precision, type_.scale)
            expression = expression.cast(type_)
        if pt.is_fixed_size_binary(type_):
            type_ = pa.binary()
            expression = expression.cast(type_)
        # A literal that is no value of the type equals nothing, so it may go.
        values = []
        for literal, item in zip(plain_items, node.expressions, strict=True):
            if literal.kind != "null":
                scalar = self._place(self._as_stored(literal, value.type, item), type_, item)
                if scalar.exact and scalar.scalar is not None and scalar.scalar.type == type_:
                    values.append(scalar.scalar)
        if pt.is_floating(type_):
            values = _float_set(values)
        self.asked.add(("in", value.type, type_))
        found = expression.isin(pa.array(values, type_))
        # is_in says false where SQL says null; see the module's beginning.
        if not exact:
            return found
        if any(literal.kind == "null" for literal in plain_items):
            return found | _NULL
        return found | (expression.is_null() & _NULL)

    def _like(self, node: Any, exact: bool) -> pc.Expression:
        escape = "\\"
        if node.key == "escape":
            self._only(node, "this", "expression")
            mark, node = self._operand(node.expression), self._bare(node.this)
            if not isinstance(mark, Literal) or mark.kind != "text" or len(mark.value) != 1:
                self._fail("ESCAPE takes one character", "write ESCAPE '!'", node)
            if node.key not in ("like", "ilike"):
                self._fail("ESCAPE belongs to LIKE", _ELSEWHERE, node)
            escape = mark.value
        self._only(node, "this", "expression", "negate")
        value, pattern = self._operand(node.this), self._operand(node.expression)
        if not isinstance(pattern, Literal) or isinstance(value, Literal):
            self._fail("LIKE takes a column and a literal pattern", _ELSEWHERE, node)
        if pattern.kind == "null" or pt.is_null(value.type):
            return _NULL
        expression, type_ = self._plain(value)
        if pattern.kind != "text" or not literals.is_text(type_):
            self._fail(f"LIKE takes strings, not a column of type {type_}", _ELSEWHERE, node)
        self.asked.add(None)
        tokens = _like_tokens(pattern.value, escape)
        if tokens is None:
            self._fail("the pattern ends in its escape character", "double it", node)
        no_case = node.key == "ilike"
        if no_case or any(wild for wild, _ in tokens):
            match = _match_like(expression, tokens, no_case)
        else:  # no wildcard: an equality, which an index can answer
            match = expression == pa.scalar("".join(c for _, c in tokens), type_)
        return ~match if node.args.get("negate") else match

    # Values

    def _operand(self, node: Any) -> _Operand | Literal:
        node = self._bare(node)
        key = node.key
        if key in ("column", "dot"):
            return self._column(node)
        if key == "literal":
            if node.is_string:
                return Literal("text", node.this)
            return self._guard(lambda: Literal("number", literals.number(node.this)), node)
        if key == "null":
            return Literal("null")
        if key == "boolean":
            return Literal("bool", bool(node.this))
        if key == "neg":
            value = self._operand(node.this)
            if isinstance(value, Literal) and value.kind in ("number", "interval"):
                return Literal(value.kind, -value.value)
        if key == "hexstring":
            try:
                return Literal("bytes", bytes.fromhex(node.this))
            except ValueError:
                self._fail("a binary literal takes pairs of hex digits", "write X'0a1b'", node)
        if key == "interval":
            return self._interval(node)
        if key == "cast":
            return self._cast(node)
        if key in self.conditions:
            return _Operand(self.condition(node, exact=True), pa.bool_(), node)
        self._fail(f"{node.sql()} is not understood in a filter", _ELSEWHERE, node)

    def _interval(self, node: Any) -> Literal:
        self._only(node, "this", "unit")
        unit = str(node.args.get("unit") or "").upper().removesuffix("S")
        if node.this is None or node.this.key != "literal" or unit not in _SECONDS | _FRACTIONS:
            self._fail("an interval takes a fixed unit", "write INTERVAL '90' SECOND", node)
        count = self._guard(lambda: literals.number(node.this.this), node)
        return Literal("interval", count * _SECONDS.get(unit, 1) / _FRACTIONS.get(unit, 1))

    def _cast(self, node: Any) -> _Operand | Literal:
        self._only(node, "this", "to")
        target, value = self._type(node.args["to"]), self._operand(node.this)
        if isinstance(value, Literal):
            return self._guard(lambda: literals.cast(value, target), node)
        self.asked.add(None)
        if isinstance(literals.plain(value.type), pa.UuidType) and target != value.type:
            self._fail("a column of UUIDs cannot be cast", "compare it with UUID '...'", node)
        expression, type_ = self._plain(value)
        if literals.zones_differ(type_, target):
            self._fail(f"a cast from {type_} to {target} depends on a zone", _ZONES, node)
        if pt.is_null(type_) or type_ != target:
            expression = expression.cast(target)
        return _Operand(expression, target, node)

    def _type(self, node: Any) -> pa.DataType:
        name = getattr(node.this, "name", str(node.this))
        sizes = [str(part.this) for part in node.expressions]
        if name == "DECIMAL" and len(sizes) in (1, 2) and all(s.isdigit() for s in sizes):
            precision, scale = int(sizes[0]), int(sizes[1]) if len(sizes) > 1 else 0
            if 1 <= precision <= 76 and scale <= precision:
                exact = pa.decimal128 if precision <= 38 else pa.decimal256
                return exact(precision, scale)
        if sizes or name not in _TYPES:
            known = ", ".join([*_TYPES, "DECIMAL(p, s)"])
            self._fail(f"there is no cast to {node.sql()}", f"cast to one of {known}", node)
        return _TYPES[name]

    def _column(self, node: Any) -> _Operand:
        parts = []
        outer = node
        while node.key == "dot":
            parts.insert(0, node.expression)
            node = node.this
        if node.key != "column":
            self._fail(f"{outer.sql()} is not understood in a filter", _ELSEWHERE, outer)
        self._only(node, "this", "table", "db", "catalog")
        parts = [*node.parts, *parts]
        if any(part.key != "identifier" for part in parts):
            self._fail(f"{outer.sql()} is not a column", "name one column", outer)
        names = [part.this for part in parts]
        path = self._path(names, outer)
        type_: Any = self.schema
        for name in path:
            type_ = type_.field(name)
            type_ = type_.type
        self.used.add(path[0])
        field = pc.field(path[0]) if len(path) == 1 else pc.field(*path)
        return _Operand(field, type_, outer)

    def _path(self, names: list[str], node: Any) -> tuple[str, ...]:
        """Find a column: literally "a.b", then the struct a with the field b, then by case."""
        joined = ".".join(names)
        if self.schema.get_all_field_indices(joined):
            return (self._find(self.schema, joined, node) or joined,)
        path, fields = [], self.schema
        for depth, name in enumerate(names):
            found = self._find(fields, name, node)
            if found is None:
                if depth == 0 and (whole := self._find(self.schema, joined, node)):
                    return (whole,)
                self._unknown(joined, name, fields, node)
            path.append(found)
            if depth + 1 < len(names):
                inner = fields.field(found).type
                if not isinstance(inner, pa.StructType):
                    at = ast.column_text(tuple(path))
                    self._fail(f"{at} is {inner} and has no fields", _ELSEWHERE, node)
                fields = inner
        return tuple(path)

    def _find(self, fields: pa.Schema | pa.StructType, name: str, node: Any) -> str | None:
        found = alike(fields.names, name)
        if len(found) > 1:
            shown = ", ".join(found)
            self._fail(f"more than one column is called {name}: {shown}", "rename one", node)
        return found[0] if found else None

    def _unknown(self, whole: str, name: str, fields: Any, node: Any) -> NoReturn:
        names = [field.name for field in fields]
        lowered = {each.lower(): each for each in names}
        close = [lowered[each] for each in difflib.get_close_matches(name.lower(), lowered, 3)]
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        self._fail(f"there is no column {whole}", f"{hint}the columns are {shown}", node)

    def _plain(self, operand: _Operand) -> tuple[pc.Expression, pa.DataType]:
        """An operand as PyArrow can compare it."""
        self.asked.add(("plain", operand.type))
        return comparable(operand.expression, operand.type)

    # Errors

    def check(self, expression: pc.Expression) -> None:
        """Bind the expression to no rows, so that what PyArrow refuses is refused here.

        What it did once it will do again: that takes longer than all the rest.
        """
        if None not in self.asked and self.asked <= _done:
            return
        import pyarrow.dataset as pads

        fields = [self.schema.field(name) for name in sorted(self.used)]
        empty = pa.schema(fields).empty_table()
        try:
            pads.dataset(empty).scanner(columns={"is_true": expression}).to_table()
        except (pa.ArrowException, ValueError, TypeError, NotImplementedError) as error:
            raise FilterError(
                f"PyArrow cannot apply the filter: {error}\n  {self.text}\n{_sentence(_ELSEWHERE)}"
            ) from None
        if None not in self.asked:
            if len(_done) > _MOST_DONE:
                _done.clear()
            _done.update(self.asked)

    def _place(self, literal: Literal, type_: pa.DataType, node: Any) -> Placed:
        return self._guard(lambda: literals.place(literal, type_), node)

    def _as_stored(self, literal: Literal, column: pa.DataType, node: Any) -> Literal:
        """A literal as the bytes a column of UUIDs holds; any other is left as it is."""
        if literal.kind != "text":
            return literal
        if isinstance(literals.plain(column), pa.UuidType):
            return self._guard(lambda: literals.uuid_bytes(literal.value), node)
        if literals.is_uuid_of_bytes(literal.value, column):
            self._fail(
                f"the text of a UUID is compared with a column of type {column}, of its bytes",
                f"write UUID '{literal.value}'",
                node,
            )
        return literal

    def _guard(self, make: Callable[[], Any], node: Any) -> Any:
        try:
            return make()
        except Misplaced as error:
            self._fail(error.what, error.advice, node)

    def _bare(self, node: Any) -> Any:
        while node.key == "paren":
            self._only(node, "this")
            node = node.this
        return node

    def _only(self, node: Any, *known: str) -> None:
        """Refuse a node that carries more than this module looks at."""
        extra = [name for name, value in node.args.items() if value and name not in known]
        if extra:
            self._fail(f"{extra[0].upper()} is not understood here", _ELSEWHERE, node)

    def _fail(self, what: str, advice: str, node: Any) -> NoReturn:
        spans = [n.meta for n in node.walk() if "start" in n.meta and "end" in n.meta]
        place = f"  {self.text}"
        if spans:
            start, end = min(m["start"] for m in spans), max(m["end"] for m in spans)
            line = self.text.count("\n", 0, start)
            column = start - (self.text.rfind("\n", 0, start) + 1)
            place = _caret(self.text, line, column, end - start + 1)
        raise FilterError(f"cannot read the filter: {what}.\n{place}\n{_sentence(advice)}")


def _constant(column: pc.Expression, truth: bool, exact: bool) -> pc.Expression:
    """Return `truth` where the column is valid and null where it is null."""
    if truth:
        return column.is_valid() | _NULL if exact else column.is_valid()
    return column.is_null() & _NULL if exact else pc.scalar(False)


def _float_set(values: list[pa.Scalar]) -> list[pa.Scalar]:
    # is_in compares bits, after making all NaN alike: here zeros are equal and NaN are not.
    numbers = [value for value in values if value.as_py() == value.as_py()]
    kept = [value for value in numbers if value.as_py() != 0]
    if len(kept) < len(numbers):
        kept += [pa.scalar(zero, numbers[0].type) for zero in (0.0, -0.0)]
    return kept


def _like_tokens(pattern: str, escape: str) -> list[tuple[bool, str]] | None:
    """Split a pattern into (is a wildcard, character); None if it ends within an escape."""
    tokens = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            character = next(characters, "")
            if not character:
                return None
            tokens.append((False, character))
        else:
            tokens.append((character in "%_", character))
    return tokens


def _match_like(
    column: pc.Expression, tokens: list[tuple[bool, str]], ignore_case: bool
) -> pc.Expression:
    # PyArrow makes its functions when it is imported, out of a type checker's sight.
    functions: Any = pc
    if all(wild or c not in "\\%_" for wild, c in tokens):
        pattern = "".join(c for _, c in tokens)
        return functions.match_like(column, pattern, ignore_case=ignore_case)
    # match_like takes some escapes literally: its pattern %\\b does not find a\b.
    wildcards = {"%": ".*", "_": "."}
    regex = "".join(wildcards[c] if wild else re.escape(c) for wild, c in tokens)
    return functions.match_substring_regex(column, rf"(?s)\A(?:{regex})\z", ignore_case=ignore_case)


def _caret(text: str, line: int, column: int, width: int) -> str:
    lines = text.split("\n")
    shown = lines[min(line, len(lines) - 1)]
    column = max(0, min(column, len(shown)))
    return f"  {shown}\n  {' ' * column}{'^' * max(1, min(width, len(shown) - column))}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")

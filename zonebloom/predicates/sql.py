"""Translate SQL filters to predicates. sqlglot parses them.

A condition that no index can answer becomes `Unknown`, with the PyArrow expression that evaluates
it on rows. The rules of this dialect are:

- A column name matches exactly, or else without regard to case if exactly one column matches.
- Literals take their type from the column.
- A time and a column must both have a time zone, or both have none. Engines differ in the zone that
  they would assume.
- LIKE escapes with a backslash, unless ESCAPE names another character.
- NaN equals nothing, not even itself.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.base import arguments
from zonebloom.base.arrays import array_of
from zonebloom.errors import FilterError
from zonebloom.predicates import ast, sql_functions, sql_literals, sql_times
from zonebloom.predicates.ast import Constant, Predicate
from zonebloom.predicates.expression import (
    ORDER_OPERATORS,
    build_expression,
    cast_to_comparable,
    expression_from_predicate,
)
from zonebloom.predicates.sql_calls import SqlCall, float_type_of_literal, read_call
from zonebloom.predicates.sql_keywords import LITERAL_WORDS
from zonebloom.predicates.sql_literals import comparison_predicate, membership_predicate
from zonebloom.predicates.sql_nested import is_list
from zonebloom.predicates.sql_parser import as_sentence, mark_place, parse_sql, sql_text
from zonebloom.predicates.sql_row_filter import (
    DerivedColumn,
    elements_from_end,
    lists_with_match,
)
from zonebloom.predicates.sql_tree import (
    PYARROW_ADVICE,
    Operand,
    SqlTranslator,
    SqlValue,
)
from zonebloom.predicates.sql_values import TypedValue
from zonebloom.values.columns import matching_names
from zonebloom.values.literal import Literal, StoredValue, Unanswerable, to_stored
from zonebloom.values.normal_types import comparable_type, decoded_type, without_views
from zonebloom.values.time_zones import TIME_ZONE_ADVICE
from zonebloom.values.types import (
    TICKS_PER_SECOND,
    family,
    integer_bounds,
    is_lossless_cast,
    time_zones_differ,
)

_TIME_ZONE_CAST_ADVICE = f"{PYARROW_ADVICE}: {TIME_ZONE_ADVICE}"
_COMPARISON_OPERATORS = {"=": operator.eq, **ORDER_OPERATORS}
_CAST_TYPES: dict[str, pa.DataType] = {
    **{"BOOLEAN": pa.bool_(), "DATE": pa.date32(), "TIME": pa.time64("ns"), "UUID": pa.uuid()},
    **{"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64()},
    **{"UTINYINT": pa.uint8(), "USMALLINT": pa.uint16(), "UINT": pa.uint32()},
    **{"UBIGINT": pa.uint64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64()},
    **dict.fromkeys(("VARCHAR", "CHAR", "TEXT"), pa.string()),
    **dict.fromkeys(("BINARY", "VARBINARY"), pa.binary()),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPNTZ"), pa.timestamp("us")),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
}
_CLOCK_FUNCTIONS = {
    **dict.fromkeys(("now", "current_timestamp", "get_current_timestamp"), "currenttimestamp"),
    "transaction_timestamp": "currenttimestamp",
    **dict.fromkeys(("today", "current_date"), "currentdate"),
    **dict.fromkeys(("localtimestamp", "current_localtimestamp"), "localtimestamp"),
}
_LIST_SEARCHES = ("list_contains", "list_has", "array_contains", "array_has", "contains")
# The name of a list's elements in the condition that searches it.
_ITEM = "item"
# Longer integers are outside the range of every column type.
_MAX_INTEGER_DIGITS = 40
_SIMPLE_LITERAL = r"(?:-?\d+(?:\.\d+)?|'[^'\\\x00-\x1f]*')"
_SIMPLE_LITERALS = re.compile(_SIMPLE_LITERAL, re.ASCII)
_SIMPLE_CONDITION = re.compile(
    r""" *(?P<name>[A-Za-z_][A-Za-z0-9_]*|"[^"\\\x00-\x1f]+"|`[^`\\\x00-\x1f]+`) *"""
    rf"(?:= *(?P<one>{_SIMPLE_LITERAL})"
    rf"| [Ii][Nn] *\( *(?P<many>{_SIMPLE_LITERAL}(?: *, *{_SIMPLE_LITERAL})*) *\)) *",
    re.ASCII,
)
_UNIT_SECONDS = {"WEEK": 604800, "DAY": 86400, "HOUR": 3600, "MINUTE": 60, "SECOND": 1}
_UNIT_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_UNITS_PER_SECOND = {"MILLISECOND": 10**3, "MICROSECOND": 10**6, "NANOSECOND": 10**9}


class SqlPredicate(NamedTuple):
    """The predicate of a SQL condition.

    `reads_clock` is true if it contains the current time, so that it is outdated at once.
    `derived_columns` are columns to which its expressions refer besides those of the schema.
    """

    predicate: Predicate
    reads_clock: bool = False
    derived_columns: tuple[DerivedColumn, ...] = ()


def predicate_from_sql(text: str, schema: pa.Schema) -> Predicate:
    """Return the predicate of a SQL condition, the part after WHERE.

    `expression_from_predicate` turns it into a row filter.
    """
    return translate_sql(text, schema).predicate


def translate_sql(text: str, schema: pa.Schema) -> SqlPredicate:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError(
            f"the filter contains {text[error.start]!r} at {error.start}, which is half a "
            "character; write the whole character"
        ) from None
    translator = _PlainSqlTranslator(text, schema)
    simple = _SIMPLE_CONDITION.fullmatch(text)
    if simple is not None:
        # If this fails, sqlglot parses the text below. Its nodes tell the place of an error.
        with suppress(FilterError):
            return SqlPredicate(translator.translate_simple(simple))
    try:
        predicate = ast.flatten(translator.translate_condition(parse_sql(text, schema.names)))
    except RecursionError:
        raise FilterError(
            "cannot read the filter: it is nested too deeply; write a chain of OR or AND without "
            "parentheses, or IN"
        ) from None
    return SqlPredicate(predicate, translator.reads_clock, translator.derived_columns)


class _PlainSqlTranslator(SqlTranslator):
    """A translator for SQL with the semantics of DuckDB.

    A part that has no meaning raises `FilterError`, which shows the place in the text.
    """

    def __init__(self, text: str, schema: pa.Schema) -> None:
        super().__init__(schema)
        self.text = text
        # The current time, if the filter contains it. All its parts see the same time.
        self._clock: sql_times.Clock | None = None
        self._derived_columns: dict[str, DerivedColumn] = {}

    @property
    def reads_clock(self) -> bool:
        return self._clock is not None

    @property
    def derived_columns(self) -> tuple[DerivedColumn, ...]:
        return tuple(self._derived_columns.values())

    def translate_condition(self, node: Any) -> Predicate:
        if node.key in ("select", "union", "subquery", "command"):
            self.fail("a filter is a condition, not a query", "write the part after WHERE", node)
        return super().translate_condition(node)

    def translate_comparison(
        self, symbol: str, left: SqlValue, right: SqlValue, node: Any
    ) -> Predicate:
        if symbol == "!=":
            return ast.negation(self.translate_comparison("=", left, right, node))
        if isinstance(left, Literal):
            if isinstance(right, Literal):
                return self._compare_literals(symbol, left, right, node)
            symbol, left, right = ast.FLIPPED_OPERATORS[symbol], right, left
        if not isinstance(right, Literal):
            return self._compare_columns(symbol, left, right, node)
        if right.kind == "null" or pt.is_null(left.type):
            return Constant(None)
        stored_value = self._to_stored_value(right, left.type, node)
        predicate = comparison_predicate(
            left.path or (), comparable_type(left.type), symbol, stored_value
        )
        return self._over_operand(left, predicate, node)

    def translate_simple(self, match: re.Match[str]) -> Predicate:
        """Translate ``column = literal`` or ``column IN (literals)`` without sqlglot.

            tailnum = 'N14228'      "Delay" = -1.5      id IN (1, 2, 3)

        Importing sqlglot takes longer than looking up a key.
        """
        name = match["name"]
        if name.upper() in LITERAL_WORDS:
            raise FilterError("this is a literal, not a column")
        column = self._resolve_column([name[1:-1] if name[0] in '"`' else name], None)
        if match["one"] is not None:
            return self.translate_comparison("=", column, _simple_literal(match["one"]), None)
        texts = _SIMPLE_LITERALS.findall(match["many"])
        values = [text[1:-1] if text[0] == "'" else _plain_integer(text) for text in texts]
        plain_set = _plain_set(column, values)
        if plain_set is not None:
            return plain_set
        return self.translate_membership(column, list(map(_simple_literal, texts)), None)

    def _translate_in(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expressions")
        if self.strip_parentheses(node.this).key == "tuple":
            return self._translate_rows_in(node)
        plain_set = _plain_set(
            self.translate_operand(node.this), list(map(_plain_value, node.expressions))
        )
        return super()._translate_in(node) if plain_set is None else plain_set

    def _translate_rows_in(self, node: Any) -> Predicate:
        """Translate ``(a, b) IN ((1, 'x'), (2, 'y'))`` to ``a = 1 AND b = 'x' OR ...``."""
        columns = [self.translate_operand(column) for column in node.this.expressions]
        rows = []
        for row in node.expressions:
            values = row.expressions if row.key == "tuple" else ()
            if len(values) != len(columns):
                self.fail(
                    f"a row of {len(columns)} values is compared with something else",
                    "write (a, b) IN ((1, 'x'), (2, 'y'))",
                    row,
                )
            equalities = [
                self._row_equality(column, self.translate_operand(value), node)
                for column, value in zip(columns, values, strict=True)
            ]
            rows.append(ast.And(tuple(equalities)))
        if not rows:
            self.fail("the IN list is empty", "name at least one row, or write FALSE", node)
        return ast.Or(tuple(rows))

    def _row_equality(self, column: SqlValue, value: SqlValue, node: Any) -> Predicate:
        """Return the condition that two elements of rows are equal.

        Rows are compared as DuckDB compares structs: a null equals a null, and the condition is
        never null. An equality that is null instead of false keeps the same rows if nothing but
        AND and OR is around it, and is easier to read in a plan.
        """
        outer = node.parent
        while outer is not None and outer.key in ("and", "or", "paren"):
            outer = outer.parent
        if outer is None and isinstance(value, Literal) and value.kind != "null":
            return self.translate_comparison("=", column, value, node)
        return self.null_safe_equality(column, value, node)

    def translate_membership(self, value: SqlValue, items: list[SqlValue], node: Any) -> Predicate:
        literals = [item for item in items if isinstance(item, Literal)]
        if isinstance(value, Literal) or len(literals) < len(items):
            return ast.Or(
                tuple(self.translate_comparison("=", value, item, node) for item in items)
            )
        if pt.is_null(value.type):
            return Constant(None)
        nodes = [None] * len(literals) if node is None else node.expressions
        stored_values = [
            self._to_stored_value(literal, value.type, literal_node)
            for literal, literal_node in zip(literals, nodes, strict=True)
            if literal.kind != "null"
        ]
        type_ = comparable_type(value.type)
        membership = membership_predicate(value.path or (), type_, stored_values)
        predicate = self._over_operand(value, membership, node)
        has_null = len(stored_values) < len(items)
        return ast.Or((predicate, Constant(None))) if has_null else predicate

    def _over_operand(self, operand: Operand, predicate: Predicate, node: Any) -> Predicate:
        if operand.path is not None:
            return predicate
        expression = build_expression(
            predicate, lambda _: (operand.expression, operand.type), exact=True
        )
        return self.unknown_condition(node, operand.reason, expression)

    def _to_stored_value(self, literal: Literal, column: pa.DataType, node: Any) -> StoredValue:
        try:
            literal = sql_literals.adapt_literal(literal, column)
            if family(column) == "float":
                # The values of the column and the literal are compared as doubles.
                return StoredValue(float(literal.value))
            return to_stored(literal, comparable_type(column))
        except Unanswerable as error:
            self.fail(str(error), error.advice or PYARROW_ADVICE, node)

    def _compare_columns(self, symbol: str, left: Operand, right: Operand, node: Any) -> Predicate:
        if pt.is_null(left.type) or pt.is_null(right.type):
            return Constant(None)
        a, a_type = cast_to_comparable(left.expression, left.type)
        b, b_type = cast_to_comparable(right.expression, right.type)
        if a_type != b_type:
            common = self._common_type(a_type, b_type, node)
            a = a.cast(common) if a_type != common else a
            b = b.cast(common) if b_type != common else b
        return self.unknown_condition(node, ast.ONLY_LITERALS, _COMPARISON_OPERATORS[symbol](a, b))

    def _common_type(self, a: pa.DataType, b: pa.DataType, node: Any) -> pa.DataType:
        """Return a type that holds the values of both types.

        The type that PyArrow would choose may be too small.
        """
        for narrow, wide in ((a, b), (b, a)):
            if is_lossless_cast(narrow, wide, checked=True):
                return wide
        families = {family(a), family(b)}
        if families == {"bytes"}:
            return pa.large_binary()
        if families == {"integer"}:
            return pa.decimal128(20, 0) if 64 in (a.bit_width, b.bit_width) else pa.int64()
        if families <= {"integer", "decimal", "float"}:
            if "float" in families:
                return pa.float64()
            whole_digits = max(
                type_.precision - type_.scale if pt.is_decimal(type_) else 20 for type_ in (a, b)
            )
            scale = max(type_.scale if pt.is_decimal(type_) else 0 for type_ in (a, b))
            return pa.decimal256(min(whole_digits + scale, 76), scale)
        if families <= {"date", "timestamp"}:
            return a if pt.is_timestamp(a) else b
        if families in ({"time"}, {"duration"}):
            return max(a, b, key=lambda type_: TICKS_PER_SECOND[type_.unit])
        if time_zones_differ(a, b):
            self.fail(f"columns of types {a} and {b} are compared", _TIME_ZONE_CAST_ADVICE, node)
        self.fail(f"columns of types {a} and {b} cannot be compared", "cast one of them", node)

    def _compare_literals(self, symbol: str, left: Literal, right: Literal, node: Any) -> Predicate:
        if "null" in (left.kind, right.kind):
            return Constant(None)
        if left.kind != right.kind and not {left.kind, right.kind} <= {"date", "timestamp"}:
            self.fail("two literals of different kinds are compared", "write TRUE or FALSE", node)
        return Constant(bool(_COMPARISON_OPERATORS[symbol](left.value, right.value)))

    def sql_text(self, node: Any) -> str:
        return sql_text(node)

    # Values

    def translate_value(self, node: Any) -> SqlValue:
        match node.key:
            case "column":
                return self._translate_column(node)
            case "dot":
                return self._translate_dot(node)
            case "literal":
                return sql_literals.parse_number(node.this)
            case "cast":
                return self._translate_cast(node)
            case "interval":
                return self._translate_interval(node)
            case "case" | "if":
                return self._translate_case(node)
            case "currentdate" | "currenttimestamp" | "localtimestamp":
                return self._current_time(node.key)
            case key if key in self.condition_methods:
                condition = expression_from_predicate(
                    self.translate_condition(node), self.schema, exact=True
                )
                return Operand(condition, pa.bool_())
        call = read_call(node)
        if call is not None:
            return self._translate_call(call, node)
        self.fail(f"{sql_text(node)} is not understood in a filter", PYARROW_ADVICE, node)

    def _translate_call(self, call: SqlCall, node: Any) -> SqlValue:
        if call.name in _CLOCK_FUNCTIONS and not call.arguments:
            return self._current_time(_CLOCK_FUNCTIONS[call.name])
        if call.name == "if" and len(call.arguments) == 3:
            return self._choose([call.arguments[:2]], call.arguments[2])
        if call.name == "[]":
            column, key = map(self.translate_operand, call.arguments)
            if (
                isinstance(column, Operand)
                and column.path
                and pt.is_struct(column.type)
                and isinstance(key, Literal)
                and key.kind == "text"
            ):
                return self._resolve_column([*column.path, key.value], node)
            if isinstance(column, Operand) and isinstance(key, Literal):
                element = self._element_from_end(column, key, node)
                if element is not None:
                    return element
        values = [
            TypedValue.of(argument)
            if isinstance(argument, Literal)
            else self._translate_typed(argument)
            for argument in call.arguments
        ]
        if call.name in _LIST_SEARCHES and len(values) == 2:
            list_, item = map(self.translate_operand, call.arguments)
            if isinstance(list_, Operand) and is_list(list_.type):
                return self._search_list(list_, item, node)
        return sql_functions.call_function(call.name, values)

    def _search_list(self, list_: Operand, item: SqlValue, node: Any) -> SqlValue:
        """Translate ``list_contains(list, item)``."""
        if not isinstance(item, Literal):
            raise Unanswerable(
                "a list is searched for a value that is not constant",
                "search for a constant, or read without this condition and filter the table",
            )
        if item.kind == "null":
            return item
        list_type: Any = without_views(list_.type)
        element = Operand(pc.field(_ITEM), list_type.value_type)
        condition = expression_from_predicate(
            self.translate_comparison("=", element, item, node), self.schema
        )

        def search(lists: pa.Array) -> pa.Array:
            return lists_with_match(lists, condition, _ITEM)

        return self._derived_operand(list_, pa.bool_(), search, node)

    def _element_from_end(self, list_: Operand, number: Literal, node: Any) -> SqlValue | None:
        """Translate ``list[-1]``. Return None if it is something else."""
        if not is_list(list_.type) or number.kind != "number" or number.value >= 0:
            return None
        if number.value.denominator != 1:
            return None
        position = -int(number.value)
        list_type: Any = without_views(list_.type)

        def take(lists: pa.Array) -> pa.Array:
            return elements_from_end(lists, position)

        return self._derived_operand(list_, list_type.value_type, take, node)

    def _derived_operand(
        self, source: Operand, type_: pa.DataType, compute: Callable[[Any], pa.Array], node: Any
    ) -> Operand:
        name = sql_text(node)
        while name in self.schema.names:
            name = f"({name})"
        self._derived_columns[name] = DerivedColumn(name, source.expression, compute)
        return Operand(pc.field(name), type_, reason="an index does not store elements of lists")

    def _translate_typed(self, node: Any) -> TypedValue:
        return TypedValue.of(self.translate_operand(node), float_type_of_literal(node))

    def _translate_case(self, node: Any) -> SqlValue:
        """Translate both forms of CASE, and IF(condition, value, other value)."""
        self.require_only(node, "this", "ifs", "default", "true", "false")
        default = node.args.get("default")
        if node.key == "if":
            return self._choose([(node.this, node.args["true"])], node.args.get("false"))
        branches = [(branch.this, branch.args["true"]) for branch in node.args["ifs"]]
        if node.this is None:
            return self._choose(branches, default)
        subject = self.translate_operand(node.this)
        conditions = [
            self._as_typed_condition(
                self.translate_comparison("=", subject, self.translate_operand(value), value)
            )
            for value, _ in branches
        ]
        return self._choose_typed(conditions, [result for _, result in branches], default)

    def _choose(self, branches: Sequence[Any], default: Any) -> SqlValue:
        conditions = [
            self._as_typed_condition(self.translate_condition(condition))
            for condition, _ in branches
        ]
        return self._choose_typed(conditions, [result for _, result in branches], default)

    def _choose_typed(
        self, conditions: Sequence[TypedValue], results: Sequence[Any], default: Any
    ) -> SqlValue:
        values = [self._translate_typed(result) for result in results]
        null = TypedValue.of(Literal("null"))
        values.append(null if default is None else self._translate_typed(default))
        return sql_functions.choose_case(conditions, values)

    def _as_typed_condition(self, condition: Predicate) -> TypedValue:
        if isinstance(condition, Constant):
            return TypedValue.constant(condition.value, pa.bool_())
        return TypedValue(expression_from_predicate(condition, self.schema, exact=True), pa.bool_())

    def _current_time(self, name: str) -> Literal:
        self._clock = clock = self._clock or sql_times.Clock()
        match name:
            case "currentdate":
                return clock.current_date()
            case "localtimestamp":
                return clock.local_timestamp()
        return clock.now()

    def _translate_interval(self, node: Any) -> Literal:
        self.require_only(node, "this", "unit")
        unit = str(node.args.get("unit") or "").upper().removesuffix("S")
        known_units = {**_UNIT_SECONDS, **_UNITS_PER_SECOND, **_UNIT_MONTHS}
        if node.this is None or unit not in known_units:
            self.fail("an interval takes a number and a unit", "write INTERVAL '90' SECOND", node)
        count = self.translate_operand(node.this)
        if isinstance(count, Literal) and count.kind == "text":
            count = sql_literals.parse_number(count.value)
        if not isinstance(count, Literal) or not isinstance(count.value, Fraction):
            self.fail("an interval takes a constant number", "write INTERVAL '90' SECOND", node)
        if unit != "SECOND" and count.value.denominator != 1:
            # DuckDB rounds INTERVAL '1.5' DAY to one day, but not INTERVAL '1.5 days'.
            self.fail(
                "an interval of a fraction has different meanings in different engines",
                "write whole numbers of a smaller unit: INTERVAL 36 HOUR",
                node,
            )
        if unit in _UNIT_MONTHS:
            return Literal("months", int(count.value) * _UNIT_MONTHS[unit])
        return Literal(
            "duration", count.value * _UNIT_SECONDS.get(unit, 1) / _UNITS_PER_SECOND.get(unit, 1)
        )

    def _translate_cast(self, node: Any) -> SqlValue:
        self.require_only(node, "this", "to")
        target, value = self._cast_type(node.args["to"]), self.translate_operand(node.this)
        if isinstance(value, Literal):
            return sql_literals.cast_literal(value, target)
        if isinstance(decoded_type(value.type), pa.UuidType) and target != value.type:
            self.fail("a column of UUIDs cannot be cast", "compare it with UUID '...'", node)
        if is_lossless_cast(value.type, target):
            return value
        expression, type_ = cast_to_comparable(value.expression, value.type)
        if time_zones_differ(type_, target):
            self.fail(
                f"a cast from {type_} to {target} depends on a zone", _TIME_ZONE_CAST_ADVICE, node
            )
        reason = f"casting {type_} to {target} may make values equal"
        return Operand(expression.cast(target), target, reason=reason)

    def _cast_type(self, node: Any) -> pa.DataType:
        name = getattr(node.this, "name", str(node.this))
        sizes = [str(part.this) for part in node.expressions]
        if name == "DECIMAL" and len(sizes) in (1, 2) and all(size.isdigit() for size in sizes):
            precision, scale = int(sizes[0]), int(sizes[1]) if len(sizes) > 1 else 0
            if 1 <= precision <= 76 and scale <= precision:
                decimal_type = pa.decimal128 if precision <= 38 else pa.decimal256
                return decimal_type(precision, scale)
        if sizes or name not in _CAST_TYPES:
            known_types = ", ".join([*_CAST_TYPES, "DECIMAL(p, s)"])
            self.fail(f"there is no cast to {node.sql()}", f"cast to one of {known_types}", node)
        return _CAST_TYPES[name]

    def _translate_dot(self, outer: Any) -> SqlValue:
        parts: list[Any] = []
        node = outer
        while node.key == "dot":
            parts.insert(0, node.expression)
            node = node.this
        if node.key == "column":
            return self._translate_column(node, parts, outer)
        struct = self.translate_operand(node)
        for part in parts:
            values = [TypedValue.of(struct), TypedValue.of(Literal("text", part.name))]
            struct = sql_functions.call_function("struct_extract", values)
        return struct

    def _translate_column(
        self, node: Any, more_parts: Sequence[Any] = (), outer: Any = None
    ) -> Operand:
        outer = outer or node
        self.require_only(node, "this", "table", "db", "catalog")
        parts = [*node.parts, *more_parts]
        if any(part.key != "identifier" for part in parts):
            self.fail(f"{outer.sql()} is not a column", "name one column", outer)
        return self._resolve_column([part.this for part in parts], outer)

    def _resolve_column(self, names: list[str], node: Any) -> Operand:
        full_name = ".".join(names)
        if full_name in self.schema.names or (
            not matching_names(self.schema.names, names[0])
            and matching_names(self.schema.names, full_name)
        ):
            names = [full_name]
        path: list[str] = []
        fields: pa.Schema | pa.DataType = self.schema
        for name in names:
            if not isinstance(fields, pa.Schema | pa.StructType):
                parent = ast.column_text(tuple(path))
                self.fail(f"{parent} is {fields} and has no fields", PYARROW_ADVICE, node)
            field_names = [field.name for field in fields]
            matches = matching_names(field_names, name)
            if len(matches) > 1:
                candidates = ", ".join(matches)
                self.fail(
                    f"more than one column is called {name}: {candidates}", "rename one", node
                )
            if not matches:
                advice = arguments.suggest_names(name, field_names, "the columns are")
                self.fail(f"there is no column {full_name}", advice, node)
            path += matches
            fields = fields.field(matches[0]).type
        return Operand(pc.field(*path), fields, tuple(path))

    def fail(self, what: str, advice: str, node: Any) -> NoReturn:
        nodes = () if node is None else node.walk()
        spans = [n.meta for n in nodes if "start" in n.meta and "end" in n.meta]
        place = f"  {self.text}"
        if spans:
            start, end = min(m["start"] for m in spans), max(m["end"] for m in spans)
            line = self.text.count("\n", 0, start)
            column = start - (self.text.rfind("\n", 0, start) + 1)
            place = mark_place(self.text, line, column, end - start + 1)
        raise FilterError(f"cannot read the filter: {what}.\n{place}\n{as_sentence(advice)}")


def _plain_set(operand: SqlValue, values: Sequence[int | str | None]) -> Predicate | None:
    """Return a column's set of plain integers or strings, or None for any other values.

    `_PlainSqlTranslator.translate_membership` returns the same predicate, but takes ten times as
    long per literal.
    """
    if isinstance(operand, Literal) or operand.path is None or not values:
        return None
    type_, kind = comparable_type(operand.type), family(operand.type)
    numbers = [value for value in values if isinstance(value, int)]
    if kind == "integer" and pt.is_integer(type_) and len(numbers) == len(values):
        low, high = integer_bounds(type_)
        in_range = [number for number in numbers if low <= number <= high]
        return ast.IsIn(operand.path, array_of(in_range, type_))
    if kind == "text" and all(isinstance(value, str) for value in values):
        return ast.IsIn(operand.path, array_of(list(values), type_))
    return None


def _plain_value(node: Any) -> int | str | None:
    """Return the value of a node that is a string or a plain integer, or None."""
    if node.key == "neg" and node.this.key == "literal" and not node.this.is_string:
        return _plain_integer(f"-{node.this.this}")
    if node.key != "literal":
        return None
    return node.this if node.is_string else _plain_integer(node.this)


def _plain_integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    is_plain = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_INTEGER_DIGITS
    return int(text) if is_plain else None


def _simple_literal(text: str) -> Literal:
    return Literal("text", text[1:-1]) if text[0] == "'" else sql_literals.parse_number(text)

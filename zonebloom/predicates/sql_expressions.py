"""Translate SQL conditions that sqlglot has parsed, with the functions of `sql_functions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates import ast, sql_casts, sql_functions, sql_literals, sql_times
from zonebloom.predicates.ast import Constant, Predicate
from zonebloom.predicates.expression import expression_from_predicate
from zonebloom.predicates.sql_calls import SqlCall, read_call
from zonebloom.predicates.sql_comparisons import (
    PlainSqlTranslator,
    plain_set,
    plain_value,
)
from zonebloom.predicates.sql_nested import is_list
from zonebloom.predicates.sql_parser import sql_text
from zonebloom.predicates.sql_row_filter import (
    DerivedColumn,
    elements_from_end,
    lists_with_match,
)
from zonebloom.predicates.sql_tree import PYARROW_ADVICE, Operand, SqlValue
from zonebloom.predicates.sql_values import TypedValue, number_literal, with_number_type
from zonebloom.values.columns import matching_names
from zonebloom.values.literal import Literal, Unanswerable
from zonebloom.values.normal_types import decoded_type, without_views

_CLOCK_FUNCTIONS = {
    **dict.fromkeys(("now", "current_timestamp", "get_current_timestamp"), "currenttimestamp"),
    "transaction_timestamp": "currenttimestamp",
    **dict.fromkeys(("today", "current_date"), "currentdate"),
    **dict.fromkeys(("localtimestamp", "current_localtimestamp"), "localtimestamp"),
}
# sqlglot takes these names for columns, unless parentheses follow.
_NAMES_OF_CLOCK = {"localtimestamp": "localtimestamp", "current_localtimestamp": "localtimestamp"}
_LIST_SEARCHES = ("list_contains", "list_has", "array_contains", "array_has", "contains")
# The name of a list's elements in the condition that searches it.
_ITEM = "item"
_UNIT_SECONDS = {"WEEK": 604800, "DAY": 86400, "HOUR": 3600, "MINUTE": 60, "SECOND": 1}
_UNIT_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_UNITS_PER_SECOND = {"MILLISECOND": 10**3, "MICROSECOND": 10**6, "NANOSECOND": 10**9}


class SqlExpressionTranslator(PlainSqlTranslator):
    """A translator for parsed conditions with functions, arithmetic, casts and intervals."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        super().__init__(text, schema)
        # The current time, if the filter contains it. All its parts see the same time.
        self._clock: sql_times.Clock | None = None
        self._derived_columns: dict[str, DerivedColumn] = {}

    @property
    def reads_clock(self) -> bool:
        return self._clock is not None

    @property
    def derived_columns(self) -> tuple[DerivedColumn, ...]:
        return tuple(self._derived_columns.values())

    def _translate_in(self, node: Any) -> Predicate:
        if node.args.get("query") is not None:
            self._refuse_query(node)
        self.require_only(node, "this", "expressions")
        if self.strip_parentheses(node.this).key == "tuple":
            return self._translate_rows_in(node)
        set_of_plain_values = plain_set(
            self.translate_operand(node.this), list(map(plain_value, node.expressions))
        )
        return super()._translate_in(node) if set_of_plain_values is None else set_of_plain_values

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
        never null. A plain equality is null where the column is null. If nothing but AND and OR is
        around it, this keeps the same rows as false would, and plans show it more briefly.
        """
        outer = node.parent
        while outer is not None and outer.key in ("and", "or", "paren"):
            outer = outer.parent
        if outer is None and isinstance(value, Literal) and value.kind != "null":
            return self.translate_comparison("=", column, value, node)
        return self.null_safe_equality(column, value, node)

    def sql_text(self, node: Any) -> str:
        return sql_text(node)

    def translate_value(self, node: Any) -> SqlValue:
        match node.key:
            case "column":
                return self._translate_column(node)
            case "dot":
                return self._translate_dot(node)
            case "literal":
                return number_literal(node.this)
            case "cast":
                return self._translate_cast(node)
            case "interval":
                return self._translate_interval(node)
            case "subquery" | "select" | "exists":
                self._refuse_query(node)
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

    def _refuse_query(self, node: Any) -> NoReturn:
        self.fail(
            "queries inside a filter are not supported",
            'read the values first and give them as a list: pc.field("id").isin(values)',
            node,
        )

    def _translate_call(self, call: SqlCall, node: Any) -> SqlValue:
        if call.name in _CLOCK_FUNCTIONS and not call.arguments:
            return self._current_time(_CLOCK_FUNCTIONS[call.name])
        if call.name == "if" and len(call.arguments) == 3:
            return self._choose([call.arguments[:2]], call.arguments[2])
        arguments = [
            argument if isinstance(argument, Literal) else self.translate_operand(argument)
            for argument in call.arguments
        ]
        if call.name == "[]":
            value, key = arguments
            element = self._translate_subscript(value, key, node)
            if element is not None:
                return element
        if call.name in _LIST_SEARCHES and len(arguments) == 2:
            list_, item = arguments
            if isinstance(list_, Operand) and is_list(list_.type):
                return self._search_list(list_, item, node)
        return sql_functions.call_function(call.name, list(map(TypedValue.of, arguments)))

    def _translate_subscript(self, value: SqlValue, key: SqlValue, node: Any) -> SqlValue | None:
        """Translate ``struct['name']`` and ``list[-1]``. Return None for other subscripts."""
        if not isinstance(value, Operand) or not isinstance(key, Literal):
            return None
        if value.path is not None and pt.is_struct(value.type) and key.kind == "text":
            return self.resolve_column([*value.path, key.value], node)
        number = key.value
        is_from_end = isinstance(number, Fraction) and number < 0 and number.denominator == 1
        if is_list(value.type) and is_from_end:
            return self._element_from_end(value, -int(number), node)
        return None

    def _search_list(self, list_: Operand, item: SqlValue, node: Any) -> SqlValue:
        """Translate ``list_contains(list, item)``."""
        if not isinstance(item, Literal):
            raise Unanswerable(
                "a list is searched for a value that is not constant",
                "search for a constant, or read without this condition and filter the table",
            )
        if item.kind == "null":
            # Null is certainly not in an empty list.
            length = sql_functions.call_function("len", [TypedValue.of(list_)])
            is_empty = self.translate_comparison("=", length, Literal("number", Fraction(0)), node)
            answers = [TypedValue.constant(value, pa.bool_()) for value in (False, None)]
            return sql_functions.choose_case([self._as_typed_condition(is_empty)], answers)
        list_type: Any = without_views(list_.type)
        element = Operand(pc.field(_ITEM), list_type.value_type)
        condition = expression_from_predicate(
            self.translate_comparison("=", element, item, node), self.schema
        )

        def search(lists: pa.Array) -> pa.Array:
            return lists_with_match(lists, condition, _ITEM)

        return self._derived_operand(list_, pa.bool_(), search, node)

    def _element_from_end(self, list_: Operand, position: int, node: Any) -> SqlValue:
        list_type: Any = without_views(list_.type)

        def take(lists: pa.Array) -> pa.Array:
            return elements_from_end(lists, position)

        return self._derived_operand(list_, list_type.value_type, take, node)

    def _derived_operand(
        self, source: Operand, type_: pa.DataType, compute: Callable[[Any], pa.Array], node: Any
    ) -> Operand:
        name = sql_text(node)
        if self._clock is not None:
            # Filters that see different times may compute different values from the same text.
            name = f"{name} at {self._clock}"
        while name in self.schema.names:
            name = f"({name})"
        self._derived_columns[name] = DerivedColumn(name, source.expression, compute)
        return Operand(pc.field(name), type_, reason="an index does not store elements of lists")

    def _translate_typed(self, node: Any) -> TypedValue:
        return TypedValue.of(self.translate_operand(node))

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
        target, value = sql_casts.cast_type(node.args["to"]), self.translate_operand(node.this)
        if isinstance(value, Literal):
            return with_number_type(sql_literals.cast_literal(value, target), target)
        if isinstance(decoded_type(value.type), pa.UuidType) and target != value.type:
            self.fail("a column of UUIDs cannot be cast", "compare it with UUID '...'", node)
        return sql_casts.cast_operand(value, target)

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
    ) -> SqlValue:
        outer = outer or node
        name = node.name.lower()
        if name in _NAMES_OF_CLOCK and len(node.parts) == 1 and not more_parts:
            is_column = node.this.quoted or matching_names(self.schema.names, name)
            if not is_column:
                return self._current_time(_NAMES_OF_CLOCK[name])
        self.require_only(node, "this", "table", "db", "catalog")
        parts = [*node.parts, *more_parts]
        if any(part.key != "identifier" for part in parts):
            self.fail(f"{outer.sql()} is not a column", "name one column", outer)
        return self.resolve_column([part.this for part in parts], outer)

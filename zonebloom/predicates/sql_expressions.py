"""Translate SQL conditions that sqlglot has parsed, with the functions of `sql_functions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates import ast, sql_casts, sql_functions, sql_literals, sql_times
from zonebloom.predicates.ast import Constant, Predicate
from zonebloom.predicates.expression import (
    expression_from_predicate,
    join_balanced,
)
from zonebloom.predicates.sql_calls import SqlCall, read_call
from zonebloom.predicates.sql_comparisons import (
    TIME_ZONE_CAST_ADVICE,
    PlainSqlTranslator,
    plain_set,
    plain_value,
)
from zonebloom.predicates.sql_nested import is_list
from zonebloom.predicates.sql_parser import sql_text
from zonebloom.predicates.sql_row_filter import (
    DerivedColumn,
    elements_from_end,
    fields_of_elements,
    lists_with_match,
)
from zonebloom.predicates.sql_tree import PYARROW_ADVICE, Entry, Operand, SqlValue
from zonebloom.predicates.sql_values import (
    TypedValue,
    null_literal,
    number_literal,
    with_number_type,
)
from zonebloom.predicates.text_requirements import require_call
from zonebloom.values.columns import matching_names
from zonebloom.values.literal import Literal, StoredValue, Unanswerable
from zonebloom.values.normal_types import comparable_type, decoded_type, without_views
from zonebloom.values.types import family, time_zones_differ

_CLOCK_FUNCTIONS = {
    **dict.fromkeys(("now", "current_timestamp", "get_current_timestamp"), "currenttimestamp"),
    "transaction_timestamp": "currenttimestamp",
    **dict.fromkeys(("today", "current_date"), "currentdate"),
    **dict.fromkeys(("localtimestamp", "current_localtimestamp"), "localtimestamp"),
}
# sqlglot takes these names for columns, unless parentheses follow.
_NAMES_OF_CLOCK = {"localtimestamp": "localtimestamp", "current_localtimestamp": "localtimestamp"}
_SEARCHES_FOR_ANY = ("list_has_any", "array_has_any")
_SEARCHES_FOR_ALL = ("list_has_all", "array_has_all")
_LIST_SEARCHES = ("list_contains", "list_has", "array_contains", "array_has", "contains")
_MAP_FUNCTIONS = ("[]", "map_extract_value")
_LIST_REASON = "an index does not store elements of lists"
# The name of a list's elements in the condition that searches it.
_ITEM = "item"
_MAX_GROWTH = 1000
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
        # How many times longer calls of replace may make a text, by the id of their nodes.
        self._growths: dict[int, float] = {}

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

    def _translate_comparison_node(self, node: Any) -> Predicate:
        self.require_only(node, "this", "expression")
        left, right = map(self.strip_parentheses, (node.this, node.expression))
        if left.key == right.key == "tuple" and node.key in ("eq", "neq"):
            return self._compare_rows(left, right, node)
        if node.key == "eq" and right.key == "any":
            return self._translate_any(left, right.this, node)
        return super()._translate_comparison_node(node)

    def _compare_rows(self, left: Any, right: Any, node: Any) -> Predicate:
        """Translate ``(a, b) = (1, 'x')`` to ``a = 1 AND b = 'x'``, and its negation."""
        if len(left.expressions) != len(right.expressions):
            self.fail("rows of different lengths are compared", "write (a, b) = (1, 'x')", node)
        equalities = [
            self._row_equality(self.translate_operand(a), self.translate_operand(b), node)
            for a, b in zip(left.expressions, right.expressions, strict=True)
        ]
        equal = ast.And(tuple(equalities))
        return equal if node.key == "eq" else ast.negation(equal)

    def _translate_any(self, item: Any, list_node: Any, comparison: Any) -> Predicate:
        """Translate ``'x' = ANY(tags)``.

        Without a match, ANY may be null where a search of the list is false. So ANY is refused
        where that makes a difference.
        """
        list_ = self.translate_operand(list_node)
        if (
            not isinstance(list_, Operand)
            or not is_list(list_.type)
            or not _is_top_level(comparison)
        ):
            self.fail(
                "ANY is supported only for a list of the rows, and not below NOT or in a value",
                "write list_contains(tags, 'x')",
                comparison,
            )
        try:
            match = self._search_list(
                list_, self.translate_operand(item), comparison, _search_text(list_node, item)
            )
        except Unanswerable as error:
            self.fail(str(error), error.advice or PYARROW_ADVICE, comparison)
        return self._as_predicate(match, comparison)

    def _as_predicate(self, value: SqlValue, node: Any) -> Predicate:
        if isinstance(value, Literal):
            return Constant(value.value)
        return self.unknown_condition(node, value.reason, value.expression, value.requires)

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
        is_plain = isinstance(value, Literal) and value.kind != "null"
        if is_plain and node.key != "neq" and _is_top_level(node):
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
        if call.name in _SEARCHES_FOR_ANY + _SEARCHES_FOR_ALL and len(call.arguments) == 2:
            return self._search_list_for_several(call, node)
        arguments = [
            argument if isinstance(argument, Literal) else self.translate_operand(argument)
            for argument in call.arguments
        ]
        if call.name == "replace":
            self._require_little_growth(arguments, node)
        if call.name == "[]":
            value, key = arguments
            element = self._translate_subscript(value, key, node)
            if element is not None:
                return element
        if call.name in _LIST_SEARCHES and len(arguments) == 2:
            list_, item = arguments
            if isinstance(list_, Operand) and is_list(list_.type):
                return self._search_list(list_, item, node, sql_text(node))
        result = sql_functions.call_function(call.name, list(map(TypedValue.of, arguments)))
        if isinstance(result, Operand) and arguments and isinstance(arguments[0], Operand):
            return _with_requirement(result, call.name, arguments[0], arguments[1:])
        return result

    def _require_little_growth(self, arguments: Sequence[SqlValue], node: Any) -> None:
        """Raise `Unanswerable` if nested calls of replace make texts so long that memory ends."""
        growth = max(self._growths.get(id(inner), 1.0) for inner in node.walk())
        match arguments:
            case [_, Literal("text", str(part)), Literal("text", str(replacement))] if part:
                growth *= max(1.0, len(replacement) / len(part))
        if growth > _MAX_GROWTH:
            raise Unanswerable(
                f"replace may make a text {growth:,.0f} times as long",
                "read without this condition and filter the table",
            )
        self._growths[id(node)] = growth

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

    def _search_list(self, list_: Operand, item: SqlValue, node: Any, name: str) -> SqlValue:
        """Translate ``list_contains(list, item)`` to a derived column with a name."""
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
        is_match = self.translate_comparison("=", _element_of(list_), item, node)
        return self._lists_with_match(list_, is_match, name)

    def _lists_with_match(self, list_: Operand, is_match: Predicate, name: str) -> Operand:
        """Return the condition that a predicate is true for an element of a list."""
        condition = expression_from_predicate(is_match, self.schema)
        requires = is_match.requires if isinstance(is_match, ast.Unknown) else None

        def search(lists: pa.Array) -> pa.Array:
            return lists_with_match(lists, condition, _ITEM)

        return replace(self._derived_operand(list_, pa.bool_(), search, name), requires=requires)

    def _search_list_for_several(self, call: SqlCall, node: Any) -> SqlValue:
        """Translate ``list_has_any(tags, ['a', 'b'])`` and ``list_has_all``."""
        list_, item_nodes = self.translate_operand(call.arguments[0]), call.arguments[1]
        items: list[SqlValue] = []
        if item_nodes.key == "array":
            items = list(map(self.translate_operand, item_nodes.expressions))
        are_constants = all(isinstance(item, Literal) and item.kind != "null" for item in items)
        if (
            not isinstance(list_, Operand)
            or not is_list(list_.type)
            or not (items and are_constants)
        ):
            raise Unanswerable(
                f"{call.name} takes a list of the rows and a list of constants without nulls",
                f"write {call.name}(tags, ['x', 'y'])",
            )
        if call.name in _SEARCHES_FOR_ANY:
            is_match = self.translate_membership(_element_of(list_), items, item_nodes)
            return self._lists_with_match(list_, is_match, sql_text(node))
        matches: list[Operand] = []
        for item, item_node in zip(items, item_nodes.expressions, strict=True):
            is_match = self.translate_comparison("=", _element_of(list_), item, item_node)
            name = _search_text(call.arguments[0], item_node)
            matches.append(self._lists_with_match(list_, is_match, name))
        expressions = [match.expression for match in matches]
        required = [match.requires for match in matches if match.requires is not None]
        return Operand(
            join_balanced(expressions, is_or=False),
            pa.bool_(),
            reason=_LIST_REASON,
            requires=ast.And(tuple(required)) if required else None,
        )

    def _element_from_end(self, list_: Operand, position: int, node: Any) -> SqlValue:
        list_type: Any = without_views(list_.type)

        def take(lists: pa.Array) -> pa.Array:
            return elements_from_end(lists, position)

        return self._derived_operand(list_, list_type.value_type, take, sql_text(node))

    def list_of_fields(
        self, path: ast.ColumnPath, list_type: pa.DataType, names: list[str], node: Any
    ) -> Operand:
        """Translate ``events.id`` to the list of the ids of all structs in the list events."""
        lists: Any = list_type
        fields: list[str] = []
        type_ = lists.value_type
        for name in names:
            matches = matching_names([field.name for field in type_], name)
            if len(matches) != 1:
                parent = ast.column_text((*path, *fields))
                self.fail(f"{parent} has no field {name}", PYARROW_ADVICE, node)
            fields += matches
            type_ = type_.field(matches[0]).type
            if not pt.is_struct(type_):
                break
        if len(fields) < len(names):
            self.fail(f"{ast.column_text((*path, *fields))} has no fields", PYARROW_ADVICE, node)

        def take(values: pa.Array) -> pa.Array:
            return fields_of_elements(values, fields)

        operand = self._derived_operand(
            Operand(pc.field(*path), list_type),
            pa.list_(type_),
            take,
            ast.column_text((*path, *fields)),
        )
        return replace(operand, elements=Entry(path, field=tuple(fields)))

    def _derived_operand(
        self, source: Operand, type_: pa.DataType, compute: Callable[[Any], pa.Array], name: str
    ) -> Operand:
        if self._clock is not None:
            # Filters that see different times may compute different values from the same text.
            name = f"{name} at {self._clock}"
        while name in self.schema.names:
            name = f"({name})"
        self._derived_columns[name] = DerivedColumn(name, source.expression, compute)
        return Operand(pc.field(name), type_, reason=_LIST_REASON)

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

    def _to_stored_value(self, literal: Literal, column: pa.DataType, node: Any) -> StoredValue:
        if (
            literal.kind == "instant"
            and family(column) in ("date", "timestamp")
            and any(map(_is_current_instant, node.walk()))
        ):
            self.fail(
                f"the current time, of UTC, is compared with a column of {column}, without a zone",
                "write now() AT TIME ZONE 'UTC' if the column holds UTC",
                node,
            )
        return super()._to_stored_value(literal, column, node)

    def _translate_cast(self, node: Any) -> SqlValue:
        self.require_only(node, "this", "to")
        target, value = sql_casts.cast_type(node.args["to"]), self.translate_operand(node.this)
        if isinstance(value, Literal) and value.kind == "null":
            return null_literal(target)
        if isinstance(value, Literal):
            return with_number_type(sql_literals.cast_literal(value, target), target)
        if isinstance(decoded_type(value.type), pa.UuidType) and target != value.type:
            self.fail("a column of UUIDs cannot be cast", "compare it with UUID '...'", node)
        type_ = comparable_type(value.type)
        if time_zones_differ(type_, target):
            advice = _zone_advice(node.this, type_, target, node.args["to"].sql())
            self.fail(f"a cast from {type_} to {target} depends on a zone", advice, node)
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


def _is_top_level(node: Any) -> bool:
    """Return whether only AND, OR and parentheses are around a condition.

    There, a condition that is false and one that is null keep the same rows.
    """
    outer = node.parent
    while outer is not None and outer.key in ("and", "or", "paren"):
        outer = outer.parent
    return outer is None


def _element_of(list_: Operand) -> Operand:
    list_type: Any = without_views(list_.type)
    entry = list_.elements if list_.path is None else Entry(list_.path)
    return Operand(pc.field(_ITEM), list_type.value_type, entry=entry)


def _with_requirement(
    result: Operand, name: str, source: Operand, others: Sequence[SqlValue]
) -> Operand:
    """Return the result of a function with what it requires of the column that is its source."""
    constants = [TypedValue.of(other).value for other in others if isinstance(other, Literal)]
    values = [value for value in constants if isinstance(value, pa.Scalar)]
    if len(values) < len(others) or any(not value.is_valid for value in values):
        return result
    if pt.is_map(source.type) and name in _MAP_FUNCTIONS and source.path is not None:
        map_type: Any = source.type
        return replace(result, entry=Entry(source.path, values[0].cast(map_type.key_type)))
    if family(source.type) != "text":
        return result
    if name in ("lower", "lcase"):
        return replace(result, lower_of=source.path)
    column = source.path or source.lower_of
    texts = [value.as_py() for value in values]
    requires = require_call(column, name, texts, ignores_case=source.lower_of is not None)
    return result if requires is None else replace(result, requires=requires)


def _search_text(list_: Any, item: Any) -> str:
    return f"list_contains({sql_text(list_)}, {sql_text(item)})"


def _is_current_instant(node: Any) -> bool:
    if node.key == "anonymous" and isinstance(node.this, str):
        return _CLOCK_FUNCTIONS.get(node.this.lower()) == "currenttimestamp"
    return node.key == "currenttimestamp"


def _zone_advice(value: Any, type_: pa.DataType, target: pa.DataType, target_text: str) -> str:
    """Return advice on a cast between types of which only one has a time zone."""
    if not pt.is_timestamp(type_):
        return TIME_ZONE_CAST_ADVICE
    text = sql_text(value) if value.key in ("column", "paren") else f"({sql_text(value)})"
    text = f"{text} AT TIME ZONE 'UTC'"
    if type_.tz is None:
        return f"write {text} if it holds UTC"
    if not pt.is_timestamp(target):
        text = f"({text})::{target_text}"
    return f"write {text}, or name another zone"

"""Check filters and projections against a schema before a scan.

PyArrow reports some errors only while it reads, so expressions are bound to an empty dataset first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.base.arrays import empty_table
from zonebloom.errors import ColumnNotFound, FilterError, InvalidArgument
from zonebloom.predicates import RowFilter, row_filter_columns
from zonebloom.predicates.ast import column_text
from zonebloom.predicates.duckdb_engine import DuckDBExpression, result_types
from zonebloom.predicates.expression import schema_without_views
from zonebloom.scan.recheck import Columns, Projection, filter_text
from zonebloom.values.columns import find_leaf_type, leaf_names
from zonebloom.values.types import LIST_TYPES

if TYPE_CHECKING:
    import pyarrow.dataset as pads


class Binding:
    """A schema to which PyArrow expressions are bound, to check them and to get their types."""

    def __init__(self, schema: pa.Schema):
        self._schema = schema

    def __repr__(self) -> str:
        return f"<Binding to {', '.join(self._schema.names)}>"

    @cached_property
    def _empty_dataset(self) -> pads.Dataset:
        return _no_rows(self._schema)

    @cached_property
    def _empty_dataset_without_views(self) -> pads.Dataset:
        return _no_rows(schema_without_views(self._schema))

    def check_filter(self, filter: RowFilter | None, *, is_applied: bool = True) -> None:
        """Raise `FilterError` if PyArrow cannot apply a filter to the rows.

        A filter that is only used for a search needs existing columns, but may be one that PyArrow
        cannot evaluate.
        """
        # Filters of other engines were checked by the engine that made them.
        if not isinstance(filter, pc.Expression):
            return
        try:
            result_type = self._empty_dataset_without_views.scanner(
                columns={"is_true": filter}
            ).projected_schema.types[0]
        except pa.ArrowException as error:
            if not is_applied and not self._unknown_names(filter):
                return
            raise FilterError(
                f"PyArrow cannot apply the filter {filter_text(filter)}: "
                f"{self._what_is_wrong(filter, error)}"
            ) from None
        if not pa.types.is_boolean(result_type):
            raise FilterError(
                f"the filter {filter_text(filter)} is of type {result_type}, not a condition; "
                'compare it: pc.field("id") == 42'
            )

    def checked_columns(self, columns: Columns) -> Projection:
        """Return a projection after checking that its columns exist and can be computed.

        A list with fields of structs, such as "a.b", becomes expressions.
        """
        if columns is None:
            return None
        if not isinstance(columns, Mapping):
            names = _name_list(columns, self._schema)
            struct_fields = _struct_field_expressions(names, self._schema)
            checked_names([name for name in names if name not in struct_fields], self._schema)
            if not struct_fields:
                return names
            return {name: struct_fields.get(name, pc.field(name)) for name in names}
        expressions: dict[str, pc.Expression | DuckDBExpression] = {}
        for name, expression in columns.items():
            arguments.require_text(name, "a name in columns")
            if isinstance(expression, str):
                from zonebloom.predicates.sql import column_from_sql

                expression = column_from_sql(expression, self._schema)
            if not isinstance(expression, pc.Expression | DuckDBExpression):
                raise InvalidArgument(
                    f"column {name!r} is to be computed from {arguments.short_repr(expression)}; "
                    'give SQL, or a pyarrow Expression: pc.field("id") + 1'
                )
            expressions[name] = expression
        self.projected_schema(expressions)
        return expressions

    def with_columns(self, projection: Projection, names: Sequence[str]) -> tuple[Projection, int]:
        """Return a checked projection that has some columns too, and how many were added.

        A name is that of a column of the projection, or else of the dataset.
        """
        known = self._schema.names if projection is None else projection
        missing = [name for name in dict.fromkeys(names) if name not in known]
        checked_names(missing, self._schema)
        if not missing or projection is None:
            return projection, 0
        if isinstance(projection, list):
            return [*projection, *missing], len(missing)
        return projection | {name: pc.field(name) for name in missing}, len(missing)

    def projected_schema(
        self, columns: Mapping[str, pc.Expression | DuckDBExpression]
    ) -> pa.Schema:
        others = {
            name: value for name, value in columns.items() if isinstance(value, DuckDBExpression)
        }
        types = result_types(list(others.values()), self._schema) if others else []
        computed = dict(zip(others, map(pa.field, others, types), strict=True))
        schema = self._schema_of_expressions(
            {name: value for name, value in columns.items() if isinstance(value, pc.Expression)}
        )
        if not computed:
            return schema
        fields = [computed.get(name) or schema.field(name) for name in columns]
        return pa.schema(fields, schema.metadata)

    def _schema_of_expressions(self, columns: dict[str, pc.Expression]) -> pa.Schema:
        try:
            return self._empty_dataset.scanner(columns=columns).projected_schema
        except pa.ArrowException as error:
            first_error = error
        for name, expression in columns.items():
            try:
                self._empty_dataset.scanner(columns={name: expression})
            except pa.ArrowException as error:
                unknown = self._unknown_names(expression)
                raise (ColumnNotFound if unknown else InvalidArgument)(
                    f"column {name!r} cannot be computed as {filter_text(expression)}: "
                    f"{self._what_is_wrong(expression, error)}"
                ) from None
        raise InvalidArgument(
            f"the columns cannot be computed: {first_error}; ask for fewer columns"
        ) from None

    def _unknown_names(self, expression: pc.Expression) -> list[str]:
        return sorted((row_filter_columns(expression) or set()).difference(self._schema.names))

    def _what_is_wrong(self, expression: pc.Expression, error: Exception) -> str:
        unknown_names = self._unknown_names(expression)
        if unknown_names:
            return _unknown_field_text(unknown_names[0], self._schema)
        for name in sorted(row_filter_columns(expression) or ()):
            type_ = self._schema.field(name).type
            if isinstance(type_, pa.UuidType):
                return f"PyArrow compares no UUIDs; write it in SQL: {name} = UUID '...'"
            if isinstance(type_, LIST_TYPES):
                return f"PyArrow compares no lists; write it in SQL: list_contains({name}, value)"
        first_line = str(error).strip().splitlines()[0]
        return f"{first_line}; cast the column, or give the literal as the column's type"


def _no_rows(schema: pa.Schema) -> Any:
    # Import this late, because it imports pandas.
    import pyarrow.dataset as pads

    return pads.dataset(empty_table(schema))


def _name_list(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    advice = ""
    if isinstance(columns, str) and columns not in schema.names:
        advice = f"give a list of names, and a condition as filter={arguments.short_repr(columns)}"
    return arguments.require_name_list(columns, "columns", advice)


def _struct_field_expressions(names: Iterable[str], schema: pa.Schema) -> dict[str, pc.Expression]:
    """Return the names that are fields of structs, with expressions that read them."""
    dotted_names = [name for name in names if "." in name]
    # A schema builds a new list of names on each access.
    top_level_names = set(schema.names) if dotted_names else set()
    paths = {name: name.split(".") for name in dotted_names if name not in top_level_names}
    return {
        name: pc.field(*path)
        for name, path in paths.items()
        if find_leaf_type(schema, path) is not None
    }


def checked_names(columns: Sequence[str] | None, schema: pa.Schema) -> list[str] | None:
    if columns is None:
        return None
    names = _name_list(columns, schema)
    # A schema builds a new list of names on each access.
    known_names = set(schema.names)
    for name in names:
        if name not in known_names:
            raise ColumnNotFound(unknown_column_text(name, schema))
    return names


def _unknown_field_text(name: str, schema: pa.Schema) -> str:
    """Return why PyArrow finds no column of a name, and what to write for a field of a struct."""
    path = name.split(".")
    if find_leaf_type(schema, path) is None:
        return unknown_column_text(name, schema)
    names = ", ".join(f'"{part}"' for part in path)
    return (
        f"{arguments.short_repr(name)} is a field of a struct; write pc.field({names}), or in a "
        f"SQL filter {column_text(tuple(path))} = ..."
    )


def require_column(name: str, schema: pa.Schema) -> None:
    if name not in schema.names:
        raise ColumnNotFound(unknown_column_text(name, schema))


def unknown_column_text(name: str, schema: pa.Schema) -> str:
    return f"there is no column {arguments.short_repr(name)}; {known_columns_text(name, schema)}"


def known_columns_text(name: str, schema: pa.Schema) -> str:
    """Return a text of the dataset's columns. It begins with those similar to a mistyped name."""
    if "." not in name:
        return arguments.suggest_names(name, schema.names, "the dataset has")
    # Only names with a dot can be leaves of a struct.
    return arguments.suggest_names(name, leaf_names(schema), "the dataset has")

"""Filters and projections held against a schema over no rows, since PyArrow tells what it cannot do
only as it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base import arguments
from zonebloom.errors import ColumnNotFound, FilterError, InvalidArgument
from zonebloom.predicates import RowFilter, row_filter_columns
from zonebloom.scan.recheck import Columns, filter_text, schema_without_views
from zonebloom.values.columns import leaf_names

if TYPE_CHECKING:
    import pyarrow.dataset as pads


class Binding:
    """What PyArrow makes of expressions over rows of a schema."""

    def __init__(self, schema: pa.Schema):
        self._schema = schema

    def __repr__(self) -> str:
        return f"<Binding to {', '.join(self._schema.names)}>"

    @cached_property
    def _stored(self) -> pads.Dataset:
        return _no_rows(self._schema)

    @cached_property
    def _filtered(self) -> pads.Dataset:
        return _no_rows(schema_without_views(self._schema))

    def check_filter(self, filter: RowFilter | None, *, is_applied: bool = True) -> None:
        """Refuse a filter that PyArrow cannot apply to the rows; one only looked up needs its
        columns alone."""
        # A filter of another engine was made by that engine, for these columns.
        if not isinstance(filter, pc.Expression):
            return
        try:
            kind = self._filtered.scanner(columns={"is_true": filter}).projected_schema.types[0]
        except pa.ArrowException as error:
            if not is_applied and not self._unknown(filter):
                return
            raise FilterError(
                f"PyArrow cannot apply the filter {filter_text(filter)}: "
                f"{self._what_is_wrong(filter, error)}"
            ) from None
        if not pa.types.is_boolean(kind):
            raise FilterError(
                f"the filter {filter_text(filter)} is of type {kind}, not a condition; compare "
                'it: pc.field("id") == 42'
            )

    def checked_columns(self, columns: Columns) -> list[str] | dict[str, pc.Expression] | None:
        """A projection whose columns are there, and whose expressions can be computed."""
        if not isinstance(columns, Mapping):
            return checked_names(columns, self._schema)
        for name, expression in columns.items():
            arguments.require_text(name, "a name in columns")
            if not isinstance(expression, pc.Expression):
                raise InvalidArgument(
                    f"column {name!r} is to be computed from {arguments.short_repr(expression)}; "
                    "give "
                    'a pyarrow Expression: pc.field("id") + 1'
                )
        self.projected_schema(columns)
        return dict(columns)

    def projected_schema(self, columns: Mapping[str, pc.Expression]) -> pa.Schema:
        try:
            return self._stored.scanner(columns=dict(columns)).projected_schema
        except pa.ArrowException as error:
            first = error
        for name, expression in columns.items():
            try:
                self._stored.scanner(columns={name: expression})
            except pa.ArrowException as error:
                unknown = self._unknown(expression)
                raise (ColumnNotFound if unknown else InvalidArgument)(
                    f"column {name!r} cannot be computed as {filter_text(expression)}: "
                    f"{self._what_is_wrong(expression, error)}"
                ) from None
        raise InvalidArgument(f"the columns cannot be computed: {first}; name fewer") from None

    def _unknown(self, expression: pc.Expression) -> list[str]:
        return sorted((row_filter_columns(expression) or set()).difference(self._schema.names))

    def _what_is_wrong(self, expression: pc.Expression, error: Exception) -> str:
        unknown = self._unknown(expression)
        if unknown:
            return unknown_column_text(unknown[0], self._schema)
        for name in sorted(row_filter_columns(expression) or ()):
            if isinstance(self._schema.field(name).type, pa.UuidType):
                return f"PyArrow compares no UUIDs; write it in SQL: {name} = UUID '...'"
        first = str(error).strip().splitlines()[0]
        return f"{first}; cast the column, or give the literal as the column's type"


def _no_rows(schema: pa.Schema) -> Any:
    # Imported late, as everywhere: it brings pandas in.
    import pyarrow.dataset as pads

    return pads.dataset(schema.empty_table())


def checked_names(columns: Sequence[str] | None, schema: pa.Schema) -> list[str] | None:
    if columns is None:
        return None
    advice = ""
    if isinstance(columns, str) and columns not in schema.names:
        advice = f"give a list of names, and a condition as filter={arguments.short_repr(columns)}"
    names = arguments.require_name_list(columns, "columns", advice)
    # A schema builds its list of names anew at each call.
    known = set(schema.names)
    for name in names:
        if name not in known:
            raise ColumnNotFound(unknown_column_text(name, schema))
    return names


def require_column(name: str, schema: pa.Schema) -> None:
    if name not in schema.names:
        raise ColumnNotFound(unknown_column_text(name, schema))


def unknown_column_text(name: str, schema: pa.Schema) -> str:
    return f"there is no column {arguments.short_repr(name)}; {known_columns_text(name, schema)}"


def known_columns_text(name: str, schema: pa.Schema) -> str:
    """List the columns of a dataset, after those that a mistyped name may mean."""
    if "." not in name:
        return arguments.suggest_names(name, schema.names, "the dataset has")
    # Only a name with a dot can mean a leaf of a struct.
    return arguments.suggest_names(name, leaf_names(schema), "the dataset has")

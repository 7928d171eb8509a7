"""Translate SQL filters to predicates. sqlglot parses them.

A condition that no index can answer becomes `Unknown`, with the PyArrow expression that evaluates
it on rows. The rules of this dialect are:

- A column name matches exactly, or else without regard to case if exactly one column matches.
- Literals take their type from the column.
- A time and a column must both have a time zone, or both have none. Engines differ in the zone that
  they would assume.
- LIKE escapes with a backslash, unless ESCAPE names another character.
- NaN equals nothing, not even itself.
- Functions and operators mean the same as in DuckDB; `sql_functions` lists them. Integers are
  widened where DuckDB raises an overflow, and ``x // 0`` is null.

`sql_comparisons` has the rules for columns, literals and comparisons, `sql_casts` those for casts,
and `sql_expressions` those for functions. The last two are imported only for text that sqlglot has
to parse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arguments import shorten_message
from zonebloom.errors import FilterError
from zonebloom.predicates import ast
from zonebloom.predicates.ast import Predicate
from zonebloom.predicates.sql_comparisons import translate_simple_condition
from zonebloom.predicates.sql_parser import MAX_TEXT, parse_sql
from zonebloom.predicates.sql_row_filter import DerivedColumn
from zonebloom.predicates.sql_tree import PYARROW_ADVICE, Operand
from zonebloom.values.literal import Unanswerable


class SqlPredicate(NamedTuple):
    """The predicate of a SQL condition.

    `reads_clock` is true if it contains the current time, so that it is outdated at once.
    `derived_columns` are columns to which its expressions refer besides those of the schema.
    `unfitting_columns` are compared with a literal that their type does not hold.
    """

    predicate: Predicate
    reads_clock: bool = False
    derived_columns: tuple[DerivedColumn, ...] = ()
    unfitting_columns: frozenset[ast.ColumnPath] = frozenset()


def predicate_from_sql(text: str, schema: pa.Schema) -> Predicate:
    """Return the predicate of a SQL condition, the part after WHERE.

    `expression_from_predicate` turns it into a row filter.
    """
    return translate_sql(text, schema).predicate


def expression_from_sql(text: str, schema: pa.Schema) -> pc.Expression:
    """Return the PyArrow expression of a SQL value, such as ``upper(name)``.

    Raises
    ------
    FilterError
        If the text is not understood, or needs a function that PyArrow's expressions lack.
    """
    _require_characters(text)
    from zonebloom.predicates.sql_expressions import SqlExpressionTranslator
    from zonebloom.predicates.sql_values import TypedValue

    translator = SqlExpressionTranslator(text, schema)
    with _raising_filter_errors():
        value = translator.translate_operand(parse_sql(text, schema.names))
        if translator.derived_columns:
            raise FilterError(
                f"{translator.derived_columns[0].name} cannot be computed as a column; use it in a "
                "filter, or compute it from the table"
            )
        if isinstance(value, Operand) and value.cast_type is None:
            return value.expression
        typed_value = TypedValue.of(value).value
    return pc.scalar(typed_value) if isinstance(typed_value, pa.Scalar) else typed_value


def _require_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError(
            f"the filter contains {text[error.start]!r} at {error.start}, which is half a "
            "character; write the whole character"
        ) from None


@contextmanager
def _raising_filter_errors() -> Iterator[None]:
    """Turn each error of a translation into a `FilterError`."""
    try:
        yield
    except FilterError as error:
        error.args = (shorten_message(str(error)),)
        raise
    except Unanswerable as error:
        raise FilterError(
            f"cannot read the filter: {error}; {error.advice or PYARROW_ADVICE}"
        ) from None
    except RecursionError:
        raise FilterError(
            "cannot read the filter: it is nested too deeply; write a chain of OR or AND without "
            "parentheses, or IN"
        ) from None
    except Exception as error:
        # Functions may get values of types that they do not know.
        raise FilterError(
            f"cannot read the filter: {type(error).__name__}: {error}; {PYARROW_ADVICE}"
        ) from error


def translate_sql(text: str, schema: pa.Schema) -> SqlPredicate:
    _require_characters(text)
    with _raising_filter_errors():
        try:
            simple = translate_simple_condition(text, schema)
        except (FilterError, Unanswerable):
            # sqlglot parses the text below, because its nodes tell the place of an error.
            if len(text) > MAX_TEXT:
                raise
            simple = None
    if simple is not None:
        predicate, unfitting_columns = simple
        return SqlPredicate(predicate, unfitting_columns=unfitting_columns)
    from zonebloom.predicates.sql_expressions import SqlExpressionTranslator

    translator = SqlExpressionTranslator(text, schema)
    with _raising_filter_errors():
        predicate = ast.flatten(translator.translate_condition(parse_sql(text, schema.names)))
    return SqlPredicate(
        predicate,
        translator.reads_clock,
        translator.derived_columns,
        frozenset(translator.unfitting_columns),
    )

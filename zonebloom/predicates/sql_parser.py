"""Parse SQL conditions with sqlglot, and show the place of an error in the text."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any, ClassVar

from zonebloom.errors import FilterError

_FUNCTIONS_WITH_SYNTAX = {"CAST", "TRY_CAST", "EXTRACT", "SUBSTRING", "TRIM"}
_STATEMENT_KEYWORDS = """
SELECT WITH FROM VALUES TABLE SHOW DESCRIBE DESC EXPLAIN INSERT UPDATE DELETE MERGE CREATE ALTER
DROP TRUNCATE SET USE CALL EXECUTE
"""
_STATEMENT_WORDS = frozenset(_STATEMENT_KEYWORDS.split())
MAX_TEXT = 1 << 20
# Each row of (a, b) IN ((1, 2), ...) has one pair.
_MAX_PARENTHESES = 10_000
_LONG_TEXT_ADVICE = (
    'give keys to ds.lookup, as a list: pc.field("id").isin(keys), or as rows: ds.lookup(["a", '
    '"b"], table)'
)
_MAX_INTERVAL = 200
_MAX_SHOWN_BEFORE = 200
LITERAL_WORDS = frozenset(["NULL", "TRUE", "FALSE"])
# Keywords of sqlglot that a condition does not have: commands, and types that DuckDB lacks.
_NAMES_OF_COLUMNS = (
    *("ALTER", "CREATE", "DROP", "GRANT", "INSERT", "REVOKE", "ROLLBACK", "VALUES"),
    *("LIST", "NULLABLE", "OBJECT", "RANGE"),
)


@functools.cache
def _dialect() -> Any:
    from sqlglot import exp, parser
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.generator import Generator as PlainGenerator
    from sqlglot.parser import Parser as PlainParser
    from sqlglot.tokens import Tokenizer as Plain
    from sqlglot.tokens import TokenType  # pyright: ignore[reportPrivateImportUsage]

    precedences = getattr(parser, "IsPredicatePrecedence", None)

    class ZoneBloom(Dialect):
        """Plain SQL, with both ways of quoting a name and X'0a' for bytes."""

        class Tokenizer(Plain):
            # A name such as current_date may be that of a column.
            KEYWORDS: ClassVar = {
                word: kind
                for word, kind in {**Plain.KEYWORDS, "//": TokenType.DIV}.items()
                if word not in _NAMES_OF_COLUMNS and kind not in PlainParser.NO_PAREN_FUNCTIONS
            }
            IDENTIFIERS: ClassVar = ['"', "`"]
            HEX_STRINGS: ClassVar = [("x'", "'"), ("X'", "'")]
            # sqlglot would take the text after a command word for one string. A column may have
            # the name of a command, so there are no commands.
            COMMANDS: ClassVar = set()

        class Parser(PlainParser):
            # All functions keep the name and the arguments that the user wrote, except those with
            # a syntax of their own, such as EXTRACT(year FROM ts).
            FUNCTIONS: ClassVar = {}
            FUNCTION_PARSERS: ClassVar = {
                name: parse
                for name, parse in PlainParser.FUNCTION_PARSERS.items()
                if name in _FUNCTIONS_WITH_SYNTAX
            }
            # IF(a, b, c) is a function like others.
            NO_PAREN_FUNCTION_PARSERS: ClassVar = {
                name: parse
                for name, parse in PlainParser.NO_PAREN_FUNCTION_PARSERS.items()
                if name != "IF"
            }
            # a = b IS NULL means (a = b) IS NULL.
            IS_PREDICATE_PRECEDENCE: ClassVar[Any] = getattr(precedences, "LOW", None)

        class Generator(PlainGenerator):
            TRANSFORMS: ClassVar = {
                **PlainGenerator.TRANSFORMS,
                exp.IntDiv: lambda self, node: self.binary(node, "//"),
            }

    return ZoneBloom


@functools.cache
def _target_dialect() -> Any:
    from sqlglot.dialects.duckdb import DuckDB

    class Target(DuckDB):
        """DuckDB's SQL, for trees of `_dialect`, which keeps the positions in tags[1]."""

        INDEX_OFFSET = 0

    return Target


def sql_text(node: Any) -> str:
    """Return the SQL of a node."""
    return node.sql(dialect=_dialect(), normalize_functions=False)


def duckdb_text(node: Any) -> str:
    """Return the SQL of a node for DuckDB, with parentheses around each operator.

    Parts with the text "duckdb" in their metadata are replaced by it. "token_pattern" is the
    pattern of a call of ``contains_token``, which DuckDB lacks.
    """
    from sqlglot import exp

    operators = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.AtTimeZone)
    root = exp.Paren(this=node.copy())
    for part in list(root.walk()):
        if "duckdb" in part.meta:
            part.replace(exp.Var(this=part.meta["duckdb"]))
            continue
        if "token_pattern" in part.meta:
            part.set("this", "regexp_matches")
            part.expressions[1].replace(exp.Literal.string(part.meta["token_pattern"]))
        is_chain = isinstance(part, exp.Connector) and isinstance(part.parent, type(part))
        is_bare = isinstance(part, exp.Paren | exp.Dot | exp.Slice)
        is_pattern = isinstance(part.parent, exp.Escape)
        if isinstance(part, operators) and not (is_chain or is_bare or is_pattern):
            parentheses = exp.Paren()
            part.replace(parentheses)
            parentheses.set("this", part)
    return root.sql(
        dialect=_target_dialect(), identify=True, normalize_functions=False, comments=False
    )


def parse_sql(text: str) -> Any:
    _require_parsable_size(text)
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError

    tokens: list[Any] = []
    try:
        # Do not parse a statement, because sqlglot would take "set = 5" for one and log a warning.
        dialect = _dialect()()
        tokens = dialect.tokenize(text)
        _require_short_intervals(tokens)
        statements = dialect.parser().parse_into(exp.Condition, tokens, text)
    except ParseError as error:
        if not error.errors:
            raise FilterError(f"cannot read the filter: {error}\n  {text}") from None
        if tokens and tokens[0].text.upper() in _STATEMENT_WORDS:
            first_line = mark_place(text, tokens[0].line - 1, 0, len(tokens[0].text))
            raise FilterError(
                "cannot read the filter: a filter is a condition, not a query.\n"
                f"{first_line}\nWrite the part after WHERE."
            ) from None
        first_error = error.errors[0]
        line, highlight = first_error.get("line") or 1, first_error.get("highlight") or "?"
        problem = str(first_error.get("description", "not SQL")).split("<")[0].strip()
        if problem.startswith("Required keyword"):
            # sqlglot reports a missing operand with these words.
            problem = "something is missing"
        column = (first_error.get("col") or 1) - len(highlight)
        place = mark_place(text, line - 1, column, len(highlight))
        raise FilterError(
            f"cannot read the filter: {problem}.\n{place}\n"
            "Correct it there; text goes in single quotes: id = 'a-1', and a column named like a "
            'keyword in double ones: "case" = 1.'
        ) from None
    except SqlglotError as error:
        raise FilterError(
            f"cannot read the filter: {error}\n  {text}\nClose every quote; write X'0a' in hex."
        ) from None
    # A trailing semicolon or comment adds a statement that is None.
    conditions = [statement for statement in statements if statement is not None]
    if not conditions:
        raise FilterError("the filter is empty; write a condition such as id = 42, or pass None")
    if len(conditions) > 1:
        raise FilterError(
            f"the filter contains {len(conditions)} statements; write one condition, joined by AND "
            f"or OR\n  {text}"
        )
    return conditions[0]


def _require_parsable_size(text: str) -> None:
    """Raise `FilterError` if sqlglot would take many seconds to parse a text."""
    if len(text) > MAX_TEXT:
        raise FilterError(
            f"the filter has {len(text):,} characters, and more than {MAX_TEXT:,} are parsed only "
            f"if it is one column IN (numbers or strings); {_LONG_TEXT_ADVICE}"
        )
    if text.count("(") > _MAX_PARENTHESES:
        raise FilterError(
            f"the filter has more than {_MAX_PARENTHESES:,} parentheses; {_LONG_TEXT_ADVICE}"
        )


def _require_short_intervals(tokens: list[Any]) -> None:
    """Raise `FilterError` for a long interval, for which sqlglot takes quadratic time."""
    for token, following in pairwise(tokens):
        if len(following.text) > _MAX_INTERVAL and token.text.upper() == "INTERVAL":
            raise FilterError(
                f"cannot read the filter: an interval has {len(following.text):,} characters; "
                "write INTERVAL '90' SECOND"
            )


def mark_place(text: str, line: int, column: int, width: int) -> str:
    lines = text.split("\n")
    line_text = lines[min(line, len(lines) - 1)]
    column = max(0, min(column, len(line_text)))
    # Show only the surroundings of the place in a long line.
    start = max(0, column - _MAX_SHOWN_BEFORE)
    line_text = line_text[start : start + 2 * _MAX_SHOWN_BEFORE]
    column -= start
    return f"  {line_text}\n  {' ' * column}{'^' * max(1, min(width, len(line_text) - column))}"


def as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")

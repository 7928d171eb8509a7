"""Columns named like SQL keywords: their tokens become quoted names before sqlglot parses.

    (values = 5 AND NOT desc IN (1, 2))   ->   ("values" = 5 AND NOT "desc" IN (1, 2))

A keyword is taken for a column only if the schema has a column of that name, an operand may
begin at its place, and what follows it may follow an operand. No keyword of a condition has
such a place, so text without such columns keeps its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LITERAL_WORDS = frozenset(["NULL", "TRUE", "FALSE"])
# sqlglot's parser tells these by their text alone; its tokens say that they are names.
_NAMED_FUNCTIONS = frozenset(["IF", "CONNECT_BY_ROOT"])
_COMPARISONS = "= == != <> < <= > >= <=>"
_OPERATORS = "AND OR XOR LIKE ILIKE RLIKE REGEXP GLOB BETWEEN"
_BEFORE_OPERANDS = f"{_OPERATORS} {_COMPARISONS} SYMMETRIC ESCAPE FROM DIV ( , [ + - * / % || ; IN"
_AFTER_OPERANDS = f"{_OPERATORS} {_COMPARISONS} IN IS NOT AS ISNULL NOTNULL ) , . :: ;"
# An operand begins after one of these.
_OPENERS = frozenset(_BEFORE_OPERANDS.split())
# One of these follows an operand, unless the text ends.
_FOLLOWERS = frozenset(_AFTER_OPERANDS.split())


def quote_keyword_columns(tokens: Sequence[Any], names: Collection[str]) -> list[Any]:
    """Return the tokens of a condition, those that name columns in quotes.

    Parameters
    ----------
    tokens : sequence of sqlglot.tokens.Token
    names : collection of str
        The columns of the schema.
    """
    from sqlglot.tokens import TokenType  # pyright: ignore[reportPrivateImportUsage]

    columns = {name.lower() for name in names}
    texts = [_text(token) for token in tokens] + [""]
    out = []
    begins_operand = is_part = False
    for number, token in enumerate(tokens):
        text, following = texts[number], texts[number + 1]
        begins_operand = begins_operand or number == 0
        is_name = token.token_type.name == "VAR" and text not in _NAMED_FUNCTIONS
        is_word = not is_name and _WORD.fullmatch(text) is not None
        is_column = is_word and (
            is_part
            or (
                begins_operand
                and text.lower() in columns
                and text not in _LITERAL_WORDS
                and (not following or following in _FOLLOWERS)
                and (text != "NOT" or _is_column_not(texts[number + 1 : number + 3], columns))
            )
        )
        is_part = text == "."
        if is_column:
            place = token.line, token.col, token.start, token.end
            token = type(token)(TokenType.IDENTIFIER, token.text, *place, token.comments)
            begins_operand = False
        elif text != "NOT":
            # A NOT before an operand leaves its place to the operand.
            begins_operand = text in _OPENERS
        out.append(token)
    return out


def _text(token: Any) -> str:
    """Return the text of a word or a symbol in upper case, and "?" for a literal or quoted name."""
    kind = token.token_type.name
    return "?" if kind == "IDENTIFIER" or kind.endswith("STRING") else token.text.upper()


def _is_column_not(following: Sequence[str], columns: Collection[str]) -> bool:
    """Return whether NOT before these texts is a column and not the operator."""
    word = following[0]
    if word == "IN":
        return following[1] == "("
    return word != "NOT" and word.lower() not in columns

"""Quote columns that are named like SQL keywords, before sqlglot parses a condition.

    (values = 5 AND NOT desc IN (1, 2))   ->   ("values" = 5 AND NOT "desc" IN (1, 2))

A keyword is a column only if the schema has a column of that name, an operand may begin at its
place, and the next token may follow an operand. A real keyword never stands at such a place in a
condition, so other text keeps its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

_WORD_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
LITERAL_WORDS = frozenset(["NULL", "TRUE", "FALSE"])
# sqlglot's parser recognises these functions by their text. Its tokenizer marks them as names.
_NAMED_FUNCTIONS = frozenset(["IF", "CONNECT_BY_ROOT"])
_COMPARISON_TOKENS = "= == != <> < <= > >= <=>"
_OPERATOR_TOKENS = "AND OR XOR LIKE ILIKE RLIKE REGEXP GLOB BETWEEN"
_BEFORE_OPERANDS = (
    f"{_OPERATOR_TOKENS} {_COMPARISON_TOKENS} SYMMETRIC ESCAPE FROM DIV ( , [ + - * / // % || ; IN"
)
_AFTER_OPERANDS = f"{_OPERATOR_TOKENS} {_COMPARISON_TOKENS} IN IS NOT AS ISNULL NOTNULL ) , . :: ;"
# An operand may begin after these tokens.
_TOKENS_BEFORE_OPERANDS = frozenset(_BEFORE_OPERANDS.split())
# One of these tokens must follow an operand, unless the text ends.
_TOKENS_AFTER_OPERANDS = frozenset(_AFTER_OPERANDS.split())


def quote_keyword_columns(tokens: Sequence[Any], names: Collection[str]) -> list[Any]:
    """Return the tokens of a condition, with keywords that are columns replaced by quoted names.

    Parameters
    ----------
    tokens : sequence of sqlglot.tokens.Token
    names : collection of str
        The names of the schema's columns.
    """
    from sqlglot.tokens import TokenType  # pyright: ignore[reportPrivateImportUsage]

    columns = {name.lower() for name in names}
    texts = [_token_text(token) for token in tokens] + [""]
    quoted_tokens = []
    begins_operand = is_part = False
    for number, token in enumerate(tokens):
        text, next_text = texts[number], texts[number + 1]
        begins_operand = begins_operand or number == 0
        is_name = token.token_type.name == "VAR" and text not in _NAMED_FUNCTIONS
        is_word = not is_name and _WORD_PATTERN.fullmatch(text) is not None
        is_column = is_word and (
            is_part
            or (
                begins_operand
                and text.lower() in columns
                and text not in LITERAL_WORDS
                and (not next_text or next_text in _TOKENS_AFTER_OPERANDS)
                and (text != "NOT" or _not_is_column_name(texts[number + 1 : number + 3], columns))
            )
        )
        is_part = text == "."
        if is_column:
            positions = token.line, token.col, token.start, token.end
            token = type(token)(TokenType.IDENTIFIER, token.text, *positions, token.comments)
            begins_operand = False
        elif text != "NOT":
            # An operand may still begin after NOT, so NOT does not change `begins_operand`.
            begins_operand = text in _TOKENS_BEFORE_OPERANDS
        quoted_tokens.append(token)
    return quoted_tokens


def _token_text(token: Any) -> str:
    """Return the text of a word or symbol in upper case, or "?" for a string or a quoted name."""
    kind = token.token_type.name
    return "?" if kind == "IDENTIFIER" or kind.endswith("STRING") else token.text.upper()


def _not_is_column_name(following: Sequence[str], columns: Collection[str]) -> bool:
    """Return whether NOT before these tokens is a column rather than the operator."""
    word = following[0]
    if word == "IN":
        return following[1] == "("
    return word != "NOT" and word.lower() not in columns

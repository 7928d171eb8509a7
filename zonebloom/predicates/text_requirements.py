"""Say what a string must hold if it matches a pattern, for indices of words, trigrams and ranges.

    name LIKE 'Jo%n'               from 'Jo' to before 'Jp', contains 'Jo', contains 'n'
    message ~ 'disk (full|slow)'   contains 'disk '

A requirement may be too weak, but never too strong. None stands for no requirement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import NamedTuple

import pyarrow as pa

from zonebloom.predicates import ast

# More texts of one pattern hardly exclude more rows, and each of them is looked up.
_MAX_PIECES = 64
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
# Escapes that engines read in different ways: Rust's edges of words, Java's vertical space, numbers
# of characters, and names of characters.
_AMBIGUOUS = re.compile(r"\\[<>vNuUx0-9]")
# An escaped character, or a class of characters and what it contains. Some engines do not take
# brackets and the operators of sets in it literally.
_CLASS = re.compile(r"\\.|\[(\^?\]?(?:\\.|[^\]\\])*)\]", re.DOTALL)
_SET_SYNTAX = re.compile(r"\[|--|&&|~~|\|\|")
_REPEATS = (parser.MAX_REPEAT, parser.MIN_REPEAT, parser.POSSESSIVE_REPEAT)


class Piece(NamedTuple):
    """A text that a string holds, and whether it is at the start or end of the string."""

    text: str
    is_first: bool = False
    is_last: bool = False


def require_pieces(
    column: ast.ColumnPath | None, pieces: Iterable[Piece], *, ignores_case: bool = False
) -> ast.Predicate | None:
    """Return the condition that a string holds all of some texts."""
    if column is None:
        return None
    terms: list[ast.Predicate] = [
        ast.HasText(
            column,
            piece.text,
            piece.is_first or _is_separator(piece.text[0]),
            piece.is_last or _is_separator(piece.text[-1]),
            ignores_case,
        )
        for piece in islice((piece for piece in pieces if piece.text), _MAX_PIECES)
    ]
    return ast.And(tuple(terms)) if terms else None


def _is_separator(character: str) -> bool:
    return character.isascii() and not character.isalnum()


def require_prefix(column: ast.ColumnPath | None, prefix: str) -> ast.Predicate | None:
    """Return the condition that a string begins with a text."""
    has_text = require_pieces(column, [Piece(prefix, is_first=True)])
    if column is None or has_text is None:
        return None
    terms: list[ast.Predicate] = [has_text, ast.Compares(column, ">=", pa.scalar(prefix))]
    after = _text_after(prefix)
    if after is not None:
        terms.append(ast.Compares(column, "<", pa.scalar(after)))
    return ast.And(tuple(terms))


def _text_after(prefix: str) -> str | None:
    """Return the least text, in the order of code points, after all texts with a prefix."""
    kept = prefix.rstrip(chr(_LAST_CODE_POINT))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    following = _SURROGATES.stop if following in _SURROGATES else following
    return kept[:-1] + chr(following)


def require_like(
    column: ast.ColumnPath | None, tokens: Sequence[tuple[bool, str]], *, ignores_case: bool
) -> ast.Predicate | None:
    """Return what a string needs to match a LIKE pattern.

    ``tokens`` are pairs: whether a character is a wildcard, and the character.
    """
    pieces: list[Piece] = []
    start = 0
    for stop in [i for i, (is_wildcard, _) in enumerate(tokens) if is_wildcard] + [len(tokens)]:
        text = "".join(character for _, character in tokens[start:stop])
        pieces.append(Piece(text, start == 0, stop == len(tokens)))
        start = stop + 1
    requirement = require_pieces(column, pieces, ignores_case=ignores_case)
    prefix = None if ignores_case else require_prefix(column, pieces[0].text)
    if prefix is None or requirement is None:
        return requirement
    return ast.And((prefix, requirement))


def like_tokens(pattern: str, escape: str) -> list[tuple[bool, str]] | None:
    """Split a LIKE pattern into pairs (is a wildcard, character).

    Return None if the pattern ends with its escape character.
    """
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


def require_regex(
    column: ast.ColumnPath | None, pattern: str, *, ignores_case: bool = False
) -> ast.Predicate | None:
    """Return what a string needs to match a regular expression of RE2, Rust or Java anywhere."""
    read = _regex_pieces(pattern)
    if read is None:
        return None
    pieces, has_flag = read
    return require_pieces(column, pieces, ignores_case=ignores_case or has_flag)


def require_call(
    column: ast.ColumnPath | None, function: str, texts: Sequence[str], *, ignores_case: bool
) -> ast.Predicate | None:
    """Return what a string needs for a function of SQL to be true, with constant arguments."""
    match function, texts:
        case "contains", [text]:
            return require_pieces(column, [Piece(text)], ignores_case=ignores_case)
        case "contains_token", [text]:
            word = Piece(text, is_first=True, is_last=True)
            return require_pieces(column, [word], ignores_case=ignores_case)
        case (("starts_with" | "prefix"), [text]):
            if not ignores_case:
                return require_prefix(column, text)
            first = Piece(text, is_first=True)
            return require_pieces(column, [first], ignores_case=ignores_case)
        case (("ends_with" | "suffix"), [text]):
            last = Piece(text, is_last=True)
            return require_pieces(column, [last], ignores_case=ignores_case)
        case (("regexp_matches" | "regexp_full_match"), [pattern, *options]):
            ignores_case |= "i" in "".join(options)
            return require_regex(column, pattern, ignores_case=ignores_case)
    return None


def _regex_pieces(pattern: str) -> tuple[list[Piece], bool] | None:
    """Return the texts that every match holds, and if case does not count.

    Return None if Python does not understand the pattern as other engines do. In Java, U+0085 and
    U+2028 end lines, and a word goes on at them. So neither a ``$``, nor a ``^`` that matches at
    each of the lines, is the edge of a word.
    """
    if _AMBIGUOUS.search(pattern) or any(map(_SET_SYNTAX.search, _CLASS.findall(pattern))):
        return None
    try:
        parts = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    flags = parts.state.flags
    if flags & re.VERBOSE:
        return None
    pieces: list[Piece] = []
    text, is_first = "", False
    for operator, argument in parts:
        if operator is parser.LITERAL:
            text += chr(argument)
            continue
        if operator in _REPEATS:
            low, _, repeated = argument
            if low > 0 and len(repeated) == 1 and repeated[0][0] is parser.LITERAL:
                text += chr(repeated[0][1])
        pieces.append(Piece(text, is_first))
        is_start = (operator, argument) == (parser.AT, parser.AT_BEGINNING)
        text, is_first = "", is_start and not flags & re.MULTILINE
    return [*pieces, Piece(text, is_first)], bool(flags & re.IGNORECASE)

"""Say what a string must hold if it matches a pattern, for indices of words, trigrams and ranges.

    name LIKE 'Jo%n'               from 'Jo' to before 'Jp', contains 'Jo', contains 'n'
    message ~ 'disk (full|slow)'   contains 'disk '

A requirement may be too weak, but never too strong. None stands for no requirement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from zonebloom.predicates import ast

# More texts of one pattern hardly exclude more rows, and each of them is looked up.
_MAX_PIECES = 64
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_LEADING_FLAGS = re.compile(r"\(\?([ims]+)\)")
_QUANTIFIER = re.compile(r"[*+?]|\{(\d+)(?:,\d*)?\}")
_CONTROL_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
# Escapes of one letter that stand for other characters than themselves, or for none. In Java, \v
# is any vertical space.
_CLASS_ESCAPES = set("dDwWsSbBv")


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
    flags = _LEADING_FLAGS.match(pattern)
    has_lines = flags is not None and "m" in flags[1]
    if flags is not None:
        ignores_case |= "i" in flags[1]
        pattern = pattern[flags.end() :]
    pieces = _regex_pieces(pattern, has_lines=has_lines)
    return None if pieces is None else require_pieces(column, pieces, ignores_case=ignores_case)


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


def _regex_pieces(pattern: str, *, has_lines: bool) -> list[Piece] | None:
    """Return the texts that every match holds, or None if the pattern is not understood.

    In Java, U+0085 and U+2028 end lines, and a word goes on at them. So neither a ``$``, nor a
    ``^`` that matches at each of the lines, is the edge of a word.
    """
    pieces: list[Piece] = []
    text, is_first = "", False
    position = 0
    while position < len(pattern):
        # The next part: a literal character, or None for a part that may match several texts.
        literal: str | None = None
        character = pattern[position]
        stop = position + 1
        match character:
            # A quantifier without a character before it repeats an anchor or another quantifier.
            case "|" | ")" | "{" | "*" | "+" | "?":
                return None
            case "^":
                if text:
                    return None
                is_first, position = not has_lines, stop
                continue
            case "$":
                pieces.append(Piece(text, is_first))
                text, is_first, position = "", False, stop
                continue
            case "\\":
                escaped = pattern[stop : stop + 1]
                stop += 1
                if escaped in _CONTROL_ESCAPES:
                    literal = _CONTROL_ESCAPES[escaped]
                elif escaped in ("<", ">"):
                    # Rust matches the edges of words, other engines the characters.
                    return None
                elif escaped.isascii() and not escaped.isalnum() and escaped:
                    literal = escaped
                elif escaped not in _CLASS_ESCAPES:
                    return None
            case "[" | "(":
                end = _end_of_class(pattern, position) if character == "[" else None
                end = _end_of_group(pattern, position) if character == "(" else end
                if end is None:
                    return None
                stop = end
            case ".":
                pass
            case _:
                literal = character
        quantifier = _QUANTIFIER.match(pattern, stop)
        is_optional = quantifier is not None and (
            quantifier[0] in ("*", "?") or (quantifier[1] is not None and int(quantifier[1]) == 0)
        )
        if literal is not None and not is_optional:
            text += literal
        if literal is None or quantifier is not None:
            pieces.append(Piece(text, is_first))
            text, is_first = "", False
        position = stop if quantifier is None else quantifier.end()
        # A lazy or possessive quantifier.
        if quantifier is not None and pattern[position : position + 1] in ("?", "+"):
            position += 1
    return [*pieces, Piece(text, is_first)]


def _end_of_class(pattern: str, start: int) -> int | None:
    """Return the position after a class of characters, or None if it is not a simple one."""
    position = start + 1
    position += pattern[position : position + 1] == "^"
    # A bracket at the start is a member of the class.
    position += pattern[position : position + 1] == "]"
    while position < len(pattern):
        if pattern[position] == "]":
            return position + 1
        if pattern[position] in "[&~-" and pattern[position : position + 2] in ("[:", "[", "&&"):
            return None
        if pattern[position] == "[" or pattern.startswith(("\\c", "\\Q"), position):
            return None
        position += 2 if pattern[position] == "\\" else 1
    return None


def _end_of_group(pattern: str, start: int) -> int | None:
    """Return the position after a group, or None if it changes the meaning of what follows it."""
    is_special = pattern.startswith("(?", start)
    if is_special and not pattern.startswith(("(?:", "(?i:", "(?P<", "(?<"), start):
        return None
    if pattern.startswith(("(?<=", "(?<!"), start):
        return None
    position = start + 1
    while position < len(pattern):
        character = pattern[position]
        if character == ")":
            return position + 1
        if character == "[":
            end = _end_of_class(pattern, position)
        elif character == "(":
            end = _end_of_group(pattern, position)
        elif character == "\\":
            is_quoted = pattern[position + 1 : position + 2] in ("Q", "x", "p", "P", "c", "k", "g")
            end = None if is_quoted else position + 2
        else:
            end = position + 1
        if end is None:
            return None
        position = end
    return None

"""Compute SQL's functions of strings with PyArrow's functions. Positions count code points."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zonebloom.predicates.sql_values import TypedValue, call, cast_to_common_type, null_of
from zonebloom.values.literal import Unanswerable

_functions: Any = pc
# The characters that DuckDB's trim() removes: Unicode's space separators, but no tabs or newlines.
_SPACES = (
    " \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f"
    "\u3000"
)
_REGEX_OPTIONS = {"": "", "c": "", "i": "(?i)", "s": "(?s)"}


def lower(text: TypedValue) -> TypedValue:
    return call(_functions.utf8_lower, text)


def upper(text: TypedValue) -> TypedValue:
    return call(_functions.utf8_upper, text)


def length(text: TypedValue) -> TypedValue:
    return call(_functions.utf8_length, text).cast(pa.int64())


def byte_length(text: TypedValue) -> TypedValue:
    return call(_functions.binary_length, text).cast(pa.int64())


def starts_with(text: TypedValue, prefix: str) -> TypedValue:
    return call(_functions.starts_with, text, pattern=prefix)


def ends_with(text: TypedValue, suffix: str) -> TypedValue:
    return call(_functions.ends_with, text, pattern=suffix)


def contains(text: TypedValue, part: str) -> TypedValue:
    return call(_functions.match_substring, text, pattern=part)


def contains_token(text: TypedValue, word: str) -> TypedValue:
    """Return whether a text has a word: a longest run of letters, digits and non-ASCII."""
    if not word or any(character.isascii() and not character.isalnum() for character in word):
        raise Unanswerable(
            f"{word!r} is not one word", "write one word of letters and digits, or use contains"
        )
    separator = r"[\x00-/:-@\[-`{-\x7f]"
    pattern = rf"(?:\A|{separator}){re.escape(word)}(?:{separator}|\z)"
    return call(_functions.match_substring_regex, text, pattern=pattern)


def matches_regex(text: TypedValue, pattern: str, options: str = "") -> TypedValue:
    unknown = [option for option in options if option not in _REGEX_OPTIONS]
    if unknown:
        raise Unanswerable(
            f"{unknown[0]!r} is not an option of regular expressions",
            "write 'i' to ignore case, or 's' to let a dot match a newline",
        )
    flags = "".join(_REGEX_OPTIONS[option] for option in options)
    try:
        # PyArrow would find an invalid pattern only when it reads the rows.
        _functions.match_substring_regex(pa.scalar(""), pattern=pattern)
    except pa.ArrowInvalid as error:
        raise Unanswerable(
            f"{error}".strip().splitlines()[0], "write a regular expression of RE2"
        ) from None
    return call(_functions.match_substring_regex, text, pattern=flags + pattern)


def matches_whole_regex(text: TypedValue, pattern: str, options: str = "") -> TypedValue:
    return matches_regex(text, rf"\A(?:{pattern})\z", options)


def trim(text: TypedValue, characters: str = _SPACES) -> TypedValue:
    return call(_functions.utf8_trim, text, characters=characters)


def trim_left(text: TypedValue, characters: str = _SPACES) -> TypedValue:
    return call(_functions.utf8_ltrim, text, characters=characters)


def trim_right(text: TypedValue, characters: str = _SPACES) -> TypedValue:
    return call(_functions.utf8_rtrim, text, characters=characters)


def substring(text: TypedValue, start: int, length: int | None = None) -> TypedValue:
    """Return the characters from a position on. The first is 1, and -1 is the last.

    A negative length counts to the left, and position 0 is one before the first.
    """
    if start < 0:
        begin = start
        if length is None:
            return _slice(text, begin, None)
        first, last = sorted((begin, begin + length))
        # The end of the string has no negative number, and nothing is beyond it.
        return _slice(text, first, last) if last < 0 else _slice(text, first, None)
    begin = start - 1
    if length is None:
        return _slice(text, max(begin, 0), None)
    first, last = sorted((begin, begin + length))
    return _slice(text, max(first, 0), max(last, 0))


def left(text: TypedValue, count: int) -> TypedValue:
    return _slice(text, 0, count)


def right(text: TypedValue, count: int) -> TypedValue:
    if count == 0:
        return _slice(text, 0, 0)
    return _slice(text, -count, None)


def replace(text: TypedValue, part: str, replacement: str) -> TypedValue:
    if not part:
        return text
    return call(_functions.replace_substring, text, pattern=part, replacement=replacement)


def join(left: TypedValue, right: TypedValue) -> TypedValue:
    """Return ``left || right``, which is null if one of them is null."""
    return _join((left, right), "", null_handling="emit_null")


def concat(*values: TypedValue) -> TypedValue:
    """Return the values in a row. Nulls are left out."""
    return _join(values, "", null_handling="replace")


def _join(values: tuple[TypedValue, ...], separator: str, null_handling: str) -> TypedValue:
    texts = cast_to_common_type([_as_text(value) for value in values])
    separator_value = TypedValue.constant(separator, pa.string()).cast(texts[0].type)
    return call(
        _functions.binary_join_element_wise, *texts, separator_value, null_handling=null_handling
    )


def _as_text(value: TypedValue) -> TypedValue:
    if value.family == "text":
        return value
    if value.is_null:
        return null_of(pa.string())
    if pt.is_integer(value.type):
        return value.cast(pa.string())
    raise Unanswerable(
        f"a value of type {value.type} is joined to a string",
        "join strings and integers, or cast it: CAST(x AS VARCHAR)",
    )


def _slice(text: TypedValue, start: int, stop: int | None) -> TypedValue:
    for position in (start, stop or 0):
        if not -(2**31) <= position < 2**31:
            raise Unanswerable("the position in the string is out of range", "write a smaller one")
    return call(_functions.utf8_slice_codeunits, text, start=start, stop=stop)

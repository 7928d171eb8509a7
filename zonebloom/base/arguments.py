"""What callers give, checked where they give it: a value of another kind is refused by name, so no
function further down has to expect a value of any type."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from zonebloom.errors import InvalidArgument

Kind = TypeVar("Kind")

# A table may have thousands of columns.
_SHOWN_NAMES = 20

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 80
# Of other types the repr may be of many lines.
_SHOWN_TYPES = (str, bytes, int, float, list, tuple, dict, set, frozenset, type, type(None))


def shown(value: object) -> str:
    """A value as a message shows it: on one line, and short."""
    if not isinstance(value, _SHOWN_TYPES):
        return f"of type {type(value).__name__}"
    try:
        text = " ".join(_SHOWN.repr(value).split())
    except ValueError:
        # Python writes no integer of more than 4300 digits.
        return f"a {type(value).__name__} too long to be shown"
    return text if len(text) <= 200 else text[:197] + "..."


def choices(name: str, known: Iterable[str], introduction: str) -> str:
    """List the names there are, after those that a mistyped name may mean.

    >>> choices("Iid", ["id", "day"], "the dataset has")
    'did you mean id? the dataset has id, day'
    >>> choices("price", ["id", "day"], "the dataset has"), choices("id", [], "there is:")
    ('the dataset has id, day', 'there is: none')
    """
    import difflib

    names = list(known)
    # Names that differ in case alone are the closest.
    by_lower = {known_name.lower(): known_name for known_name in names}
    close = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, 3)]
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    more = ", ..." if len(names) > _SHOWN_NAMES else ""
    return f"{hint}{introduction} {', '.join(names[:_SHOWN_NAMES]) or 'none'}{more}"


def refusal(value: object, parameter: str, advice: str) -> InvalidArgument:
    """What is raised of a value of another kind, and what to give instead."""
    return InvalidArgument(f"{parameter} is {shown(value)}; {advice}")


def text(value: object, parameter: str) -> str:
    """Text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise refusal(value, parameter, "give text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{parameter} is {shown(value)}, which holds half a character (a lone surrogate); "
            "give text that can be written as UTF-8"
        ) from None
    return value


def path(value: object, parameter: str) -> str:
    if not isinstance(value, str | os.PathLike):
        raise refusal(value, parameter, "give a path")
    given = text(os.fspath(value), parameter)
    if not given or "\0" in given:
        raise InvalidArgument(f"{parameter} is {shown(given)}, which names no file; give a path")
    return given


def names(value: object, parameter: str, advice: str = "") -> list[str]:
    """A list of texts; text alone would be taken for the list of its characters."""
    if isinstance(value, str | bytes):
        raise refusal(value, parameter, advice or f"give a list: [{shown(value)}]")
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise refusal(value, parameter, "give a list of names")
    return [text(each, f"an item of {parameter}") for each in value]


def whole(value: object, parameter: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """A whole number from ``least``; of one beyond ``most``, that."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise refusal(value, parameter, f"give a whole number of at least {least}")
    return min(int(value), most)


def flag(value: object, parameter: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise refusal(value, parameter, "give True or False")
    return bool(value)


def choice(value: object, parameter: str, among: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in among:
        raise refusal(value, parameter, f"it is one of {', '.join(among)}")
    return value


def function(value: Any, parameter: str) -> Callable[..., Any] | None:
    if value is not None and not callable(value):
        raise refusal(value, parameter, "give a function, or None")
    return value


def of_type(value: object, kind: type[Kind], parameter: str) -> Kind:
    if not isinstance(value, kind):
        raise refusal(value, parameter, f"give a {kind.__name__}")
    return value


def whole_numbers(
    values: Any, parameter: str, most: int = 2**63 - 1, *, least: int = 0
) -> np.ndarray:
    """Whole numbers between bounds, as they lie if they are an array of them, shape (n,)."""
    try:
        numbers = np.asarray(values)
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        # Rows of unequal length, or what only looks like an array.
        numbers = np.asarray(None)
    if numbers.ndim == 1 and numbers.size == 0:
        return np.empty(0, dtype=np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or int(numbers.min()) < least:
        bound = ", 0 or more" if least == 0 else ""
        raise refusal(values, parameter, f"give a list of whole numbers{bound}")
    if int(numbers.max()) > most:
        raise InvalidArgument(f"{parameter} holds {int(numbers.max())}; the most is {most}")
    return numbers


def with_methods_of(*bases: type) -> Callable[[type[Kind]], type[Kind]]:
    """Make a public class the owner of the methods of its internal bases.

    Python's TypeErrors then name the class that users know: `Dataset.lookup() missing ...`.
    """

    def decorate(cls: type[Kind]) -> type[Kind]:
        for base in bases:
            for method in vars(base).values():
                if isinstance(method, FunctionType):
                    # Both are set, because pickle finds a function by the two.
                    method.__qualname__ = f"{cls.__name__}.{method.__name__}"
                    method.__module__ = cls.__module__
        return cls

    return decorate

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

Instance = TypeVar("Instance")

# A table may have thousands of columns.
_SHOWN_NAMES = 20

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 80
# Of other types the repr may be of many lines.
_SHOWN_TYPES = (str, bytes, int, float, list, tuple, dict, set, frozenset, type, type(None))


def short_repr(value: object) -> str:
    """A value as a message shows it: on one line, and short."""
    if not isinstance(value, _SHOWN_TYPES):
        return f"of type {type(value).__name__}"
    try:
        text = " ".join(_SHOWN.repr(value).split())
    except ValueError:
        # Python writes no integer of more than 4300 digits.
        return f"a {type(value).__name__} too long to be shown"
    return text if len(text) <= 200 else text[:197] + "..."


def suggest_names(name: str, known: Iterable[str], introduction: str) -> str:
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


def invalid_value(value: object, parameter: str, advice: str) -> InvalidArgument:
    """What is raised of a value of another kind, and what to give instead."""
    return InvalidArgument(f"{parameter} is {short_repr(value)}; {advice}")


def require_text(value: object, parameter: str) -> str:
    """Text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise invalid_value(value, parameter, "give text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{parameter} is {short_repr(value)}, which holds half a character (a lone surrogate); "
            "give text that can be written as UTF-8"
        ) from None
    return value


def require_path(value: object, parameter: str) -> str:
    if not isinstance(value, str | os.PathLike):
        raise invalid_value(value, parameter, "give a path")
    given = require_text(os.fspath(value), parameter)
    if not given or "\0" in given:
        raise InvalidArgument(
            f"{parameter} is {short_repr(given)}, which names no file; give a path"
        )
    return given


def require_name_list(value: object, parameter: str, advice: str = "") -> list[str]:
    """A list of texts; text alone would be taken for the list of its characters."""
    if isinstance(value, str | bytes):
        raise invalid_value(value, parameter, advice or f"give a list: [{short_repr(value)}]")
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise invalid_value(value, parameter, "give a list of names")
    return [require_text(each, f"an item of {parameter}") for each in value]


def require_integer(
    value: object, parameter: str, minimum: int = 0, maximum: int = 2**63 - 1
) -> int:
    """A whole number from ``least``; of one beyond ``most``, that."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise invalid_value(value, parameter, f"give a whole number of at least {minimum}")
    return min(int(value), maximum)


def require_bool(value: object, parameter: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise invalid_value(value, parameter, "give True or False")
    return bool(value)


def require_choice(value: object, parameter: str, among: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in among:
        raise invalid_value(value, parameter, f"it is one of {', '.join(among)}")
    return value


def require_function(value: Any, parameter: str) -> Callable[..., Any] | None:
    if value is not None and not callable(value):
        raise invalid_value(value, parameter, "give a function, or None")
    return value


def require_instance(value: object, kind: type[Instance], parameter: str) -> Instance:
    if not isinstance(value, kind):
        raise invalid_value(value, parameter, f"give a {kind.__name__}")
    return value


def require_integers(
    values: Any, parameter: str, maximum: int = 2**63 - 1, *, minimum: int = 0
) -> np.ndarray:
    """Whole numbers between bounds, as they lie if they are an array of them, shape (n,)."""
    try:
        numbers = np.asarray(values)
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        # Rows of unequal length, or what only looks like an array.
        numbers = np.asarray(None)
    if numbers.ndim == 1 and numbers.size == 0:
        return np.empty(0, dtype=np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or int(numbers.min()) < minimum:
        bound = ", 0 or more" if minimum == 0 else ""
        raise invalid_value(values, parameter, f"give a list of whole numbers{bound}")
    if int(numbers.max()) > maximum:
        raise InvalidArgument(f"{parameter} holds {int(numbers.max())}; the most is {maximum}")
    return numbers


def with_methods_of(*bases: type) -> Callable[[type[Instance]], type[Instance]]:
    """Make a public class the owner of the methods of its internal bases.

    Python's TypeErrors then name the class that users know: `Dataset.lookup() missing ...`.
    """

    def decorate(cls: type[Instance]) -> type[Instance]:
        for base in bases:
            for method in vars(base).values():
                if isinstance(method, FunctionType):
                    # Both are set, because pickle finds a function by the two.
                    method.__qualname__ = f"{cls.__name__}.{method.__name__}"
                    method.__module__ = cls.__module__
        return cls

    return decorate

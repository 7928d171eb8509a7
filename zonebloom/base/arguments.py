"""Check the arguments of public functions, so that internal functions can rely on their types.

Each ``require_`` function returns the value in its normal form, or raises `InvalidArgument` with
the name of the parameter.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from zonebloom.errors import InvalidArgument

Instance = TypeVar("Instance")

# A table may have thousands of columns, so messages list only the first ones.
_MAX_LISTED_NAMES = 20
_MAX_MESSAGE = 4000
_MAX_COMPARED_NAME = 200

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80
# The repr of other types may have many lines, so messages give only their type.
_REPR_TYPES = (str, bytes, int, float, list, tuple, dict, set, frozenset, type, type(None))


def short_repr(value: object) -> str:
    """Return a value as error messages show it: on one line, at most 200 characters."""
    if not isinstance(value, _REPR_TYPES):
        return f"of type {type(value).__name__}"
    try:
        text = " ".join(_REPR.repr(value).split())
    except ValueError:
        # Python refuses to write an integer of more than 4300 digits.
        return f"a {type(value).__name__} too long to be shown"
    return text if len(text) <= 200 else text[:197] + "..."


def shorten_message(text: str) -> str:
    """Return a message without its middle if it is long, for example by a name of a megabyte."""
    if len(text) <= _MAX_MESSAGE:
        return text
    return f"{text[: _MAX_MESSAGE // 2]} ... {text[-_MAX_MESSAGE // 2 :]}"


def suggest_names(name: str, known: Iterable[str], introduction: str) -> str:
    """Return advice on an unknown name: first the similar names, then the known names.

    >>> suggest_names("Iid", ["id", "day"], "the dataset has")
    'did you mean id? the dataset has id, day'
    >>> suggest_names("price", ["id", "day"], "the dataset has")
    'the dataset has id, day'
    >>> suggest_names("id", [], "there is:")
    'there is: none'
    """
    names = list(known)
    similar_names: list[str] = []
    if len(name) <= _MAX_COMPARED_NAME:
        import difflib

        # Compare in lower case, so that names that differ only in case are the most similar ones.
        by_lower_case = {known_name.lower(): known_name for known_name in names}
        matches = difflib.get_close_matches(name.lower(), by_lower_case)
        similar_names = [by_lower_case[match] for match in matches]
    hint = f"did you mean {' or '.join(similar_names)}? " if similar_names else ""
    more = ", ..." if len(names) > _MAX_LISTED_NAMES else ""
    return f"{hint}{introduction} {', '.join(names[:_MAX_LISTED_NAMES]) or 'none'}{more}"


def invalid_value(value: object, parameter: str, advice: str) -> InvalidArgument:
    """Return the error for a parameter with a value that cannot be used."""
    return InvalidArgument(f"{parameter} is {short_repr(value)}; {advice}")


def invalid_secret(value: object, parameter: str, advice: str) -> InvalidArgument:
    """Return the error for a parameter that may be a key or password. It shows only the type."""
    return InvalidArgument(f"{parameter} is of type {type(value).__name__}; {advice}")


def require_text(value: object, parameter: str) -> str:
    """Return text that can be written as UTF-8."""
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
    path = require_text(os.fspath(value), parameter)
    if not path or "\0" in path:
        raise InvalidArgument(
            f"{parameter} is {short_repr(path)}, which names no file; give a path"
        )
    return path


def require_name_list(value: object, parameter: str, advice: str = "") -> list[str]:
    """Return a list of names. ``advice`` is the hint for a caller who passed a single name."""
    # A string is an iterable too, namely of its characters.
    if isinstance(value, str | bytes):
        raise invalid_value(value, parameter, advice or f"give a list: [{short_repr(value)}]")
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise invalid_value(value, parameter, "give a list of names")
    return [require_text(name, f"an item of {parameter}") for name in value]


def require_names(value: object, parameter: str) -> list[str]:
    """Return a list of names. A single name stands for a list of it."""
    return require_name_list([value] if isinstance(value, str) else value, parameter)


def require_key_names(value: object, parameter: str) -> list[str]:
    """Return the names of the columns of a key. A single name stands for a list of it."""
    names = require_names(value, parameter)
    if not names or len(set(names)) < len(names):
        raise invalid_value(value, parameter, "name one at least, each once")
    return names


def require_integer(
    value: object, parameter: str, minimum: int = 0, maximum: int = 2**63 - 1
) -> int:
    """Return a whole number of at least ``minimum``. Lower a number above ``maximum`` to it."""
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


def require_secret(value: object, kind: type[Instance], parameter: str) -> Instance:
    """Return an instance of a class that holds keys. The error does not show another value."""
    if not isinstance(value, kind):
        raise invalid_secret(value, parameter, f"give a zonebloom.{kind.__name__}")
    return value


def require_integers(
    values: Any, parameter: str, maximum: int = 2**63 - 1, *, minimum: int = 0
) -> np.ndarray:
    """Return an array of whole numbers, shape (n,). An array of integers is not copied.

    Raise `InvalidArgument` if a number is below ``minimum`` or above ``maximum``.
    """
    try:
        numbers = np.asarray(values)
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        # These are rows of unequal length, or an object that only looks like an array.
        numbers = np.asarray(None)
    if numbers.ndim == 1 and numbers.size == 0:
        return np.empty(0, dtype=np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or int(numbers.min()) < minimum:
        bound = ", 0 or more" if minimum == 0 else ""
        raise invalid_value(values, parameter, f"give a list of whole numbers{bound}")
    if int(numbers.max()) > maximum:
        raise InvalidArgument(f"{parameter} holds {int(numbers.max())}; the most is {maximum}")
    return numbers

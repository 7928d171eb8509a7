"""The public names, and the examples in their docstrings."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from zonebloom.reference.pages import public_names

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_PARSER = doctest.DocTestParser()


@dataclass(frozen=True)
class Public:
    """What users can name: a module, a class, a function, or what a class of ours gives them."""

    name: str
    value: Any

    @property
    def docstring(self) -> str:
        told = inspect.getdoc(self.value) or ""
        # What dataclasses say of themselves.
        return "" if told.startswith(f"{getattr(self.value, '__name__', '')}(") else told

    @property
    def fields(self) -> list[str]:
        return [each.name for each in fields(self.value)] if is_dataclass(self.value) else []

    @property
    def is_called(self) -> bool:
        return not isinstance(self.value, property | ModuleType)

    @property
    def has_examples(self) -> bool:
        return bool(_PARSER.get_examples(self.docstring))

    def run(self, names: dict[str, Any]) -> str:
        """What is wrong with the examples, run with some names known, and what they name new."""
        wrong: list[str] = []
        test = _PARSER.get_doctest(self.docstring, {}, self.name, None, 0)
        test.globs = names
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=wrong.append, clear_globs=False)
        return "".join(wrong)


@cache
def public(module: str) -> tuple[Public, ...]:
    """A module, what its ``__all__`` names, and what the classes among that have."""
    return tuple(_public(import_module(module)))


def _public(module: ModuleType) -> Iterator[Public]:
    yield Public(module.__name__, module)
    for name in public_names(module):
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            continue
        yield Public(f"{module.__name__}.{name}", value)
        if isinstance(value, type) and not issubclass(value, BaseException | Warning):
            yield from _members(f"{module.__name__}.{name}", value)


def _members(name: str, of: type) -> Iterator[Public]:
    inherited = [each for each in of.__mro__ if each.__module__.startswith("zonebloom.")]
    for key in sorted({key for each in inherited for key in vars(each)}):
        member = inspect.getattr_static(of, key)
        value = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        # Fields are told by their class.
        is_told = inspect.isfunction(value) or isinstance(value, property)
        if is_told and re.match("[a-z]", key):
            yield Public(f"{name}.{key}", value)

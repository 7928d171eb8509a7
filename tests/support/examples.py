"""The public names, and the examples in docstrings."""

from __future__ import annotations

import doctest
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from support.public_names import MODULES, public_names

import zonebloom

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_PARSER = doctest.DocTestParser()


@dataclass(frozen=True)
class PublicObject:
    """A public module, class, function, method or property."""

    name: str
    value: Any

    @property
    def docstring(self) -> str:
        docstring = inspect.getdoc(self.value) or ""
        # Dataclasses without a docstring get one that shows their parameters.
        return "" if docstring.startswith(f"{getattr(self.value, '__name__', '')}(") else docstring

    @property
    def fields(self) -> list[str]:
        return [field.name for field in fields(self.value)] if is_dataclass(self.value) else []

    @property
    def is_called(self) -> bool:
        return not isinstance(self.value, property | ModuleType)

    @property
    def has_examples(self) -> bool:
        return bool(_PARSER.get_examples(self.docstring))

    def run(self, names: dict[str, Any]) -> str:
        """Run the examples, and return a report of the failed ones.

        The examples can use `names`, and the names that they define are added to it.
        """
        test = _PARSER.get_doctest(self.docstring, {}, self.name, None, 0)
        test.globs = names
        return run_examples(test)


def run_examples(test: doctest.DocTest) -> str:
    """Run the examples of a docstring, and return a report of the failed ones."""
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=failures.append, clear_globs=False)
    return "".join(failures)


@cache
def public_objects(module: str) -> tuple[PublicObject, ...]:
    """Return a module, the objects in its ``__all__``, and the members of its classes."""
    return tuple(_walk_module(import_module(module)))


def internal_examples() -> list[doctest.DocTest]:
    """Return the examples in all docstrings of the package that belong to no public object.

    They use the names of their own module.
    """
    public_docstrings = {obj.docstring for name in MODULES for obj in public_objects(name)}
    modules = pkgutil.walk_packages(zonebloom.__path__, "zonebloom.")
    return [
        test
        for module in modules
        if not module.name.endswith("__main__")
        for test in doctest.DocTestFinder().find(import_module(module.name))
        if test.examples and inspect.cleandoc(test.docstring or "") not in public_docstrings
    ]


def _walk_module(module: ModuleType) -> Iterator[PublicObject]:
    yield PublicObject(module.__name__, module)
    for name in public_names(module):
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            continue
        yield PublicObject(f"{module.__name__}.{name}", value)
        if isinstance(value, type) and not issubclass(value, BaseException | Warning):
            yield from _walk_class(f"{module.__name__}.{name}", value)


def _walk_class(name: str, owner: type) -> Iterator[PublicObject]:
    own_bases = [base for base in owner.__mro__ if base.__module__.startswith("zonebloom.")]
    for key in sorted({key for base in own_bases for key in vars(base)}):
        member = inspect.getattr_static(owner, key)
        value = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        # The docstring of the class documents its fields.
        is_documented = inspect.isfunction(value) or isinstance(value, property)
        if is_documented and re.match("[a-z]", key):
            yield PublicObject(f"{name}.{key}", value)

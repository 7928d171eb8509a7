"""The one place where tests change what a module of the package contains.

A test changes the package for one of two reasons, and each has its function:

- A limit is too large for a test, such as the bytes of a task or the rows of a run.
  `set_constant` sets it to a small value.
- A fault or another process has to come between two steps, such as a commit of another writer.
  `replace_function` puts a function of the test in place of one of the package.

Prefer real faults where they exist: file systems that fail (`trust.injection`), damaged files
(`trust.damage`) and killed processes (`trust.kill`).

Rules
-----
- Pass the module or class as an object, so that a renamed module fails at the import and both
  names can be found with grep.
- A constant that a test sets is a constant of the module that reads it. The change has no effect
  in modules that imported its name, in kernels that are compiled already, or in other processes.
- The `monkeypatch` fixture, or ``pytest.MonkeyPatch.context()``, restores the old value.
- ``documents/test_seams.py`` rejects any other ``setattr`` and ``mock`` in the tests.
"""

from __future__ import annotations

from typing import Any

import pytest


def set_constant(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any) -> None:
    """Set a constant of a module or class until the end of the test.

    Raises
    ------
    AttributeError
        If the constant does not exist.
    TypeError
        If it is a function or class, or if the value has another type than the constant.
    """
    current = getattr(owner, name)
    if callable(current):
        raise TypeError(f"{_full_name(owner, name)} is no constant; use replace_function")
    if type(value) is not type(current):
        raise TypeError(f"{_full_name(owner, name)} is {current!r}, which {value!r} cannot replace")
    monkeypatch.setattr(owner, name, value)


def replace_function(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, replacement: Any
) -> None:
    """Replace a function, method, property or class of a module or object until the test ends.

    Raises
    ------
    AttributeError
        If there is none of this name.
    TypeError
        If the current value or the replacement is neither callable nor a property.
    """
    for function in (getattr(owner, name), replacement):
        if not callable(function) and not isinstance(function, property):
            raise TypeError(f"{_full_name(owner, name)} is {function!r}; use set_constant")
    monkeypatch.setattr(owner, name, replacement)


def _full_name(owner: Any, name: str) -> str:
    return f"{getattr(owner, '__name__', type(owner).__name__)}.{name}"

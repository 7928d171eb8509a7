"""Test that each name and each word of the package stands for one thing."""

from __future__ import annotations

import ast
import collections
import importlib
import re

import pytest
from support.helpers import PACKAGE, ROOT

# Command functions have the name of their command, and click finds them by it. A module's own list
# of public names, and TypeVars of one letter, are no concepts.
SHARED_NAMES = {"main"}

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([\w.]+):(\w+)` \|$", GLOSSARY, re.MULTILINE)


def public_names():
    """Yield the public classes and functions of each module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                yield node.name, path.relative_to(PACKAGE).as_posix()


def test_no_public_name_is_defined_in_two_modules():
    modules = collections.defaultdict(set)
    for name, module in public_names():
        modules[name].add(module)
    shared = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    assert {name: paths for name, paths in shared.items() if name not in SHARED_NAMES} == {}
    assert set(shared) >= SHARED_NAMES


@pytest.mark.parametrize(("word", "module", "name"), ROWS, ids=[row[0] for row in ROWS])
def test_every_word_of_the_glossary_links_to_its_definition(word, module, name):
    assert hasattr(importlib.import_module(module), name), word


def test_the_test_reads_every_row_of_the_glossary():
    assert len(ROWS) == GLOSSARY.count("\n| ") - 1
    assert len({word for word, _, _ in ROWS}) == len(ROWS)

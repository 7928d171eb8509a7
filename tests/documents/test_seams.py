"""Test `seams`, and that tests change the package only through it."""

from __future__ import annotations

import ast
import types

import pytest
from support.helpers import ROOT
from support.seams import replace_function, set_constant


@pytest.fixture
def module():
    module = types.ModuleType("module")
    module.LIMIT = 8
    module.read = len
    return module


def test_changes_last_until_the_end_of_the_test(module):
    with pytest.MonkeyPatch.context() as patch:
        set_constant(patch, module, "LIMIT", 1)
        replace_function(patch, module, "read", sum)
        assert (module.LIMIT, module.read) == (1, sum)
    assert (module.LIMIT, module.read) == (8, len)


@pytest.mark.parametrize(
    ("change", "name", "value", "error"),
    [
        (set_constant, "REMOVED", 1, AttributeError),
        (set_constant, "LIMIT", 1.0, TypeError),
        (set_constant, "LIMIT", True, TypeError),
        (set_constant, "LIMIT", None, TypeError),
        (set_constant, "read", sum, TypeError),
        (replace_function, "removed", sum, AttributeError),
        (replace_function, "read", 1, TypeError),
        (replace_function, "LIMIT", sum, TypeError),
    ],
)
def test_a_change_that_does_not_fit_raises(module, monkeypatch, change, name, value, error):
    with pytest.raises(error):
        change(monkeypatch, module, name, value)
    assert (module.LIMIT, module.read) == (8, len)


@pytest.mark.slow
def test_tests_change_modules_only_through_the_seams():
    other_changes = []
    for folder in ("tests", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                is_setattr = (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == "setattr"
                )
                is_mock = isinstance(node, ast.Import | ast.ImportFrom) and "mock" in ast.unparse(
                    node
                )
                if (is_setattr or is_mock) and path.name != "seams.py":
                    other_changes.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert other_changes == []

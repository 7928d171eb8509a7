"""The reference: every public name is told, with an example that does as it says."""

from __future__ import annotations

import inspect
import re

import pytest
from examples import Public, public
from matplotlib import pyplot

import zonebloom
from zonebloom.reference import pages

# Examples of Spark run where its session is: `spark/test_examples.py`.
HERE = [each for module in pages.MODULES if module != "zonebloom.spark" for each in public(module)]
EVERY = [*HERE, *public("zonebloom.spark")]

# What has no example beside what pages leave out, by patterns of names: why.
WITHOUT = pages.HIDDEN_MEMBERS | {
    r"zonebloom\.errors\.\w+": "an exception is raised, not called",
    r"zonebloom\.results\.[A-Z]\w+": "it is made by a method, whose example shows it",
    r"zonebloom\.exchange\.hudi\.HudiTables": "a function makes it",
    r"zonebloom\.spark\.(ExecutorReport|(Spark|Join|Prune)Plan|Reason)": "a function makes it",
    r"zonebloom\.spark\.IndexManager\.\w+": "the example of the class goes through its life",
}


def reason(name: str) -> str | None:
    return next((why for pattern, why in WITHOUT.items() if re.fullmatch(pattern, name)), None)


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.name)
def test_it_is_told(each: Public):
    assert each.docstring or reason(each.name)
    # Pages show fields where the docstring of their class does.
    assert [name for name in each.fields if not re.search(rf"\b{name}\b", each.docstring)] == []
    assert each.has_examples or not each.is_called or reason(each.name)


def test_editors_know_all_parameters():
    checked = 0
    for each in EVERY:
        if not inspect.isfunction(each.value):
            continue
        for given in inspect.signature(each.value).parameters.values():
            if given.name in ("self", "cls"):
                continue
            checked += 1
            wanted = str(given.annotation)
            is_open = given.kind in (given.VAR_KEYWORD, given.VAR_POSITIONAL)
            assert not is_open or "Unpack[" in wanted, f"{each.name}: {given}"
            assert given.annotation is not given.empty, f"{each.name}: {given}"
            assert not re.search(r"\| Any\b|\bAny \|", wanted), f"{each.name}: {given}"
    assert checked > 200


@pytest.mark.parametrize("pattern", WITHOUT)
def test_an_exception_is_needed(pattern):
    without = [each.name for each in EVERY if not each.has_examples]
    assert any(re.fullmatch(pattern, name) for name in without)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the examples begin with: where the package's own end."""
    monkeypatch.chdir(tmp_path)
    begun: dict = {}
    assert Public("zonebloom", zonebloom).run(begun) == ""
    yield begun
    pyplot.close("all")


@pytest.mark.parametrize(
    "each", [each for each in HERE if each.has_examples], ids=lambda each: each.name
)
def test_its_examples_do_as_they_say(each: Public, names):
    if each.value is not zonebloom:
        assert each.run(names) == ""


def test_pages_are_made_of_it(tmp_path):
    pages.write_pages(tmp_path)
    for module in pages.MODULES:
        text = (tmp_path / f"{module.replace('.', '/')}.html").read_text()
        for each in public(module):
            anchor = each.name.removeprefix(module).lstrip(".")
            is_there = not anchor or f'id="{anchor}"' in text
            assert is_there != pages.is_hidden(each.name), each.name
        # Nothing private, and no markup that is shown as such.
        assert not re.search(r'id="_[a-z]|&lt;/?(span|code|a)\b', text)

"""Every public name has a docstring with an example, and the examples of the package work."""

from __future__ import annotations

import doctest
import inspect
import os
import re
import subprocess
import sys
import zlib

import pytest
from matplotlib import pyplot
from support.examples import PublicObject, internal_examples, public_objects, run_examples
from support.helpers import ROOT
from support.public_names import HIDDEN_MEMBERS, MODULES, is_hidden

import zonebloom

# The examples of `zonebloom.spark` run in `spark/test_examples.py`, which has a Spark session.
WITHOUT_SPARK = [
    obj for module in MODULES if module != "zonebloom.spark" for obj in public_objects(module)
]
ALL_OBJECTS = [*WITHOUT_SPARK, *public_objects("zonebloom.spark")]

# Objects that need no example, as patterns of their names, with the reason.
WITHOUT_EXAMPLE = HIDDEN_MEMBERS | {
    r"zonebloom\.errors\.\w+": "an exception is raised, not called",
    r"zonebloom\.results\.[A-Z]\w+": "a method returns it, and the example of the method shows it",
    r"zonebloom\.spark\.IndexManager\.\w+": "the example of the class calls every method",
}


def reason(name: str) -> str | None:
    return next(
        (
            explanation
            for pattern, explanation in WITHOUT_EXAMPLE.items()
            if re.fullmatch(pattern, name)
        ),
        None,
    )


@pytest.mark.parametrize("obj", ALL_OBJECTS, ids=lambda obj: obj.name)
def test_every_object_has_a_docstring_and_an_example(obj: PublicObject):
    assert obj.docstring or reason(obj.name)
    # The pages show a field only if the docstring of its class mentions it.
    assert [name for name in obj.fields if not re.search(rf"\b{name}\b", obj.docstring)] == []
    assert obj.has_examples or not obj.is_called or reason(obj.name)


def test_every_parameter_has_a_type():
    checked = 0
    for obj in ALL_OBJECTS:
        if not inspect.isfunction(obj.value) or is_hidden(obj.name):
            continue
        for parameter in inspect.signature(obj.value).parameters.values():
            if parameter.name in ("self", "cls"):
                continue
            checked += 1
            annotation = str(parameter.annotation)
            is_open = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            assert not is_open or "Unpack[" in annotation, f"{obj.name}: {parameter}"
            assert parameter.annotation is not parameter.empty, f"{obj.name}: {parameter}"
            assert not re.search(r"\| Any\b|\bAny \|", annotation), f"{obj.name}: {parameter}"
    assert checked > 200


@pytest.mark.parametrize("pattern", WITHOUT_EXAMPLE)
def test_every_exception_is_used(pattern):
    names = [obj.name for obj in ALL_OBJECTS if not obj.has_examples]
    assert any(re.fullmatch(pattern, name) for name in names)


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Return the names that the example of the package defines, which other examples use."""
    monkeypatch.chdir(tmp_path)
    defined_names: dict = {}
    assert PublicObject("zonebloom", zonebloom).run(defined_names) == ""
    yield defined_names
    pyplot.close("all")


@pytest.mark.many
@pytest.mark.parametrize(
    "obj",
    [obj for obj in WITHOUT_SPARK if obj.has_examples],
    ids=lambda obj: obj.name,
)
def test_examples_print_their_output(obj: PublicObject, names):
    if obj.value is not zonebloom:
        assert obj.run(names) == ""


@pytest.mark.parametrize("test", internal_examples(), ids=lambda test: test.name)
def test_internal_examples_print_their_output(test: doctest.DocTest):
    assert run_examples(test) == ""


@pytest.mark.slow
def test_the_site_can_be_built_and_documents_every_object(tmp_path):
    """Build the site in another process, because MkDocs changes settings of its process."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    inventory = zlib.decompress((tmp_path / "site/objects.inv").read_bytes().split(b"\n", 4)[4])
    documented = {line.split(" ")[0] for line in inventory.decode().splitlines()}
    for module in MODULES:
        for obj in public_objects(module):
            assert (obj.name in documented) != is_hidden(obj.name), obj.name
    assert not [name for name in documented if re.search(r"\._[a-z]", name)]

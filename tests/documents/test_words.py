"""Test that each word of the glossary leads to the code that it names."""

from __future__ import annotations

import importlib
import re

import pytest
from support.helpers import ROOT

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([\w.]+):(\w+)` \|$", GLOSSARY, re.MULTILINE)


@pytest.mark.parametrize(("word", "module", "name"), ROWS, ids=[row[0] for row in ROWS])
def test_every_word_of_the_glossary_links_to_its_definition(word, module, name):
    assert hasattr(importlib.import_module(module), name), word


def test_the_test_reads_every_row_of_the_glossary():
    assert len(ROWS) == GLOSSARY.count("\n| ") - 1
    assert len({word for word, _, _ in ROWS}) == len(ROWS)

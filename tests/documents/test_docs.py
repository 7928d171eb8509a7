"""The code on the README and on the pages of the documentation works and prints what they show.

``ZONEBLOOM_WRITE=1 pytest tests/documents/test_docs.py`` writes the output into the pages.
"""

from __future__ import annotations

import re

import pytest
from support.helpers import ROOT
from support.pages import run_as_a_reader

PAGES = sorted(
    path
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    # Its code needs a Spark session; `spark/test_spark_page.py` runs it.
    if path.name != "spark.md"
)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_code_of_a_page_prints_what_the_page_shows(path, tmp_path):
    run_as_a_reader(path, tmp_path)


@pytest.mark.parametrize("path", [*PAGES, ROOT / "docs/spark.md"], ids=lambda path: path.stem)
def test_a_page_contains_no_path_of_a_machine(path):
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8"))


def test_the_first_figures_of_the_readme_are_those_of_its_table():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^\*\*Find one of 8 million.*$", readme, re.MULTILINE)
    rows = re.findall(r"^\| (one key.*?) \| ([\d.,]+) \| ([\d.,]+) \|", readme, re.MULTILINE)
    first_lookup, warm_lookup = ([*times] for _, *times in rows)
    assert re.findall(r"([\d.,]+) ms", sentence) == warm_lookup + first_lookup


def test_links_of_the_readme_point_to_files():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)", readme):
        assert (ROOT / target).exists(), target

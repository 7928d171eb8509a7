"""The tables of the documentation list what the package has."""

from __future__ import annotations

import inspect

from helpers import ROOT

from zonebloom import errors


def table_rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading of a page, without its header."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lines = text.partition(f"{heading}\n")[2].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_operating_page_lists_every_error_and_warning():
    classes = {
        name: class_
        for name, class_ in inspect.getmembers(errors, inspect.isclass)
        if class_.__module__ == errors.__name__
    }
    warning_rows = table_rows("operating.md", "### Warnings")
    error_rows = table_rows("operating.md", "### Errors")
    warnings = [row[0].strip("`") for row in warning_rows]
    assert sorted(warnings) == sorted(n for n, c in classes.items() if issubclass(c, Warning))
    names = [row[0].strip("`") for row in error_rows]
    assert sorted(names) == sorted(n for n, c in classes.items() if not issubclass(c, Warning))
    for name, bases, *_ in error_rows:
        base_names = [base.strip(" `").rpartition(".")[2] for base in bases.split(",") if base]
        known_names = {base.__name__ for base in classes[name.strip("`")].__mro__}
        assert known_names.issuperset(base_names), name

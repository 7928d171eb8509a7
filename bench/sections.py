"""Sections of Markdown files that commands write: what stands between two comments."""

from __future__ import annotations

from pathlib import Path

# In REPORT.md, of `pytest bench --write`.
BENCHMARKS = "benchmarks"


def read_section(path: Path, name: str) -> str:
    """The text of a section, empty where there is none."""
    _, begin, rest = path.read_text(encoding="utf-8").partition(_begin(name))
    text, end, _ = rest.partition(_end(name))
    return text if begin and end else ""


def write_section(path: Path, name: str, text: str) -> None:
    """Replace the text of a section.

    Raises
    ------
    ValueError
        When the file has no such section.
    """
    whole = path.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(_begin(name))
    _, end, after = rest.partition(_end(name))
    if not begin or not end:
        raise ValueError(f"{path.name} has no {_begin(name).strip()} and {_end(name)}")
    path.write_text(f"{before}{section(name, text)}{after}", encoding="utf-8")


def section(name: str, text: str) -> str:
    """A section with its comments."""
    return f"{_begin(name)}{text}{_end(name)}"


def _begin(name: str) -> str:
    return f"<!-- {name} -->\n"


def _end(name: str) -> str:
    return f"<!-- /{name} -->"

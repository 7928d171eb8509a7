"""Read and write sections of Markdown files: the text between two comments."""

from __future__ import annotations

from pathlib import Path

# The sections of REPORT.md that `pytest bench --write` and `python -m bench scale --write` write.
BENCHMARKS, SCALE = "benchmarks", "index-alone"
ALL = (BENCHMARKS, SCALE)


def read_section(path: Path, name: str) -> str:
    """Return the text of a section, or an empty text if there is none."""
    _, begin, rest = path.read_text(encoding="utf-8").partition(_begin(name))
    text, end, _ = rest.partition(_end(name))
    return text if begin and end else ""


def write_section(path: Path, name: str, text: str) -> None:
    """Replace the text of a section.

    Raises
    ------
    ValueError
        If the file has no such section.
    """
    old_text = path.read_text(encoding="utf-8")
    before, begin, rest = old_text.partition(_begin(name))
    _, end, after = rest.partition(_end(name))
    if not begin or not end:
        raise ValueError(f"{path.name} has no {_begin(name).strip()} and {_end(name)}")
    path.write_text(f"{before}{section(name, text)}{after}", encoding="utf-8")


def section(name: str, text: str) -> str:
    """Return a section with its comments."""
    return f"{_begin(name)}{text}{_end(name)}"


def _begin(name: str) -> str:
    return f"<!-- {name} -->\n"


def _end(name: str) -> str:
    return f"<!-- /{name} -->"

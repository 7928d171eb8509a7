"""The report: every competitor on every data set, as Markdown and plots.

Answers are checked against brute force before anything is timed; a competitor that answers
wrongly ends the run.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from bench import data, scale
from bench.competitors import competitors
from bench.data import DataSet
from bench.measures import Effort, Measured, Questions, measure
from bench.plotted import plot_growth, plot_in_sizes, plot_latency
from bench.scale import Scaled
from bench.tables import full_table, import_table, one_key_table, scale_table

PARTS = ("synthetic", "tpch", "places", "scale")
_PACKAGES = ("pyarrow", "polars", "duckdb", "datafusion", "pylance", "numba")
_HOME = Path(__file__).resolve().parent
_BEGIN, _END = "<!-- peers -->\n", "<!-- /peers -->"
# What the README shows in full.
_SHOWN = "random int64"

Progress = Callable[[str], object]


@dataclass(slots=True)
class Options:
    """What to run, and where to.

    Attributes
    ----------
    rows : int
        Of each synthetic data set.
    scale_factor : float
        Of TPC-H.
    parts : tuple of str
        Of `PARTS`.
    full : bool
        The index of a billion rows too.
    out : Path
        Folder of REPORT.md and plots.
    root : Path or None
        Folder of the data, in the system's temporary one by default.
    effort : Effort
    scale_sizes : tuple of int or None
        Rows of the indices without data.
    """

    rows: int = 2_000_000
    scale_factor: float = 1
    parts: tuple[str, ...] = PARTS
    full: bool = False
    out: Path = _HOME
    root: Path | None = None
    effort: Effort = field(default_factory=Effort)
    scale_sizes: tuple[int, ...] | None = None


@dataclass(slots=True)
class Report:
    """All that was measured, and what was not and why."""

    measured: list[Measured] = field(default_factory=list)
    scaled: list[Scaled] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run(options: Options, progress: Progress = print) -> Report:
    """Measure.

    Raises
    ------
    WrongAnswer
        When a competitor does not find the rows brute force finds.
    """
    started = time.perf_counter()
    here, missing = competitors()
    report = Report(missing=missing)
    for line in missing:
        progress(line)
    for each in _data_sets(options, report, progress):
        questions = Questions.of(each, options.effort)
        progress(f"{each.name}: {each.num_rows:,} rows, {each.num_zones:,} zones")
        for competitor in here:
            began = time.perf_counter()
            found = measure(competitor(each), each, questions, options.effort)
            report.measured.append(found)
            progress(
                f"  {competitor.name}: {found.present * 1e3:.2f} ms a key "
                f"({time.perf_counter() - began:.0f} s)"
            )
    if "scale" in options.parts:
        report.scaled = scale.run(
            full=options.full, root=options.root, sizes=options.scale_sizes, progress=progress
        )
    report.seconds = time.perf_counter() - started
    return report


def _data_sets(options: Options, report: Report, progress: Progress) -> Iterator[DataSet]:
    if "synthetic" in options.parts:
        for name in data.SYNTHETIC:
            yield data.synthetic(name, options.rows, options.root)
    for part in ("tpch", "places"):
        if part not in options.parts:
            continue
        try:
            if part == "tpch":
                yield from data.tpch(options.scale_factor, options.root)
            else:
                yield from data.places(options.root)
        except (ImportError, FileNotFoundError) as error:
            report.missing.append(f"{part} is left out: {error}")
            progress(report.missing[-1])


# Writing


def markdown(report: Report) -> str:
    """The whole report."""
    lines = ["# Against other tools", "", *_preface(report)]
    if report.measured:
        lines += ["", "## One key, all data sets", "", *one_key_table(report.measured)]
        lines += ["", "![Latency by competitor](plots/latency.png)"]
        lines += ["", "![Time by keys of IN](plots/in-sizes.png)"]
    for name in dict.fromkeys(each.data for each in report.measured):
        found = [each for each in report.measured if each.data == name]
        size = f"{found[0].num_rows:,} rows in {found[0].num_zones:,} zones"
        lines += ["", f"## {name}", "", f"{size}.", "", *full_table(found)]
    if report.measured:
        lines += ["", "## Importing", "", *_import_words(), "", *import_table(report.measured)]
    if report.scaled:
        lines += ["", "## The index alone", "", *_scale_words(), "", *scale_table(report.scaled)]
        lines += ["", "![Growth with rows](plots/growth.png)"]
    return "\n".join(lines) + "\n"


def readme_section(report: Report) -> str:
    """What the README shows of it."""
    lines = _preface(report)
    shown = [each for each in report.measured if each.data == _SHOWN]
    if shown:
        lines += ["", f"{_SHOWN}, {shown[0].num_rows:,} rows:", "", *full_table(shown)]
    if report.measured:
        lines += ["", "One key, warm, on each data set:", "", *one_key_table(report.measured)]
        lines += ["", "![Latency by competitor](bench/plots/latency.png)"]
    if report.scaled:
        lines += ["", *_scale_words(), "", *scale_table(report.scaled)]
        lines += ["", "![Growth with rows](bench/plots/growth.png)"]
    lines += ["", "All tables are in [bench/REPORT.md](bench/REPORT.md)."]
    return "\n".join(lines) + "\n"


def _preface(report: Report) -> list[str]:
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    versions = ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _version(name)))
    lines = [
        f"Measured on {machine}, Python {platform.python_version()}, {versions}. Every competitor "
        "is asked for the same keys and returns all columns of the rows, which are checked "
        "against brute force first. In brackets, the figure as a multiple of zonebloom's in the "
        "same run. First lookup: in a fresh process after its imports, with data and index "
        "dropped from the page cache, the data set opened. One key: median, warm. False zones: "
        "zones kept without the key, mean. IN: the keys of so many rows drawn at random. Batch: "
        "100,000 keys, one in 1,000 present.",
    ]
    if report.missing:
        lines += ["", *(f"- {line}" for line in report.missing)]
    return lines


def _import_words() -> list[str]:
    return ["What a process pays before its first lookup, and its memory after it."]


def _scale_words() -> list[str]:
    return [
        "The index alone, without data, of generated keys; first lookup and memory are those of "
        "a fresh process after its imports, the file not in the page cache; warm lookups are of "
        "a new key each, the file in the page cache. The table layout verifies its whole checksum "
        "first, and its memory includes the mapped file."
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except ImportError:
        return ""


def write(report: Report, out: Path) -> None:
    """Write REPORT.md and the plots into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    if report.measured:
        plot_latency(report.measured, out / "plots")
        plot_in_sizes(report.measured, out / "plots")
    if report.scaled:
        plot_growth(report.scaled, out / "plots")
    (out / "REPORT.md").write_text(markdown(report), encoding="utf-8")


def write_readme(report: Report, path: Path = _HOME.parent / "README.md") -> None:
    """Put the section between its markers.

    Raises
    ------
    ValueError
        When the README has no markers.
    """
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{path.name} has no {_BEGIN.strip()} and {_END}")
    path.write_text(f"{before}{begin}{readme_section(report)}{end}{after}", encoding="utf-8")

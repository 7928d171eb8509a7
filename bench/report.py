"""The report: every competitor on every data set, as Markdown and plots.

Answers are checked against brute force before anything is timed; a competitor that answers
wrongly ends the run.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from bench import data, layouts, scale
from bench.competitors import PEERS, Competitor, competitors
from bench.data import DataSet
from bench.measures import Effort, Measured, Questions, measure
from bench.plotted import SHARES, plot_growth, plot_in_sizes, plot_latency, plot_shares
from bench.scale import Scaled
from bench.sections import BENCHMARKS, read_section, section, write_section
from bench.tables import full_table, import_table, lookup_table, ratio_table, scale_table

SCALE = "scale"
SETS = (*data.makers(0, 1, None), SCALE)
# In the layout of every writer; the others as they were first written, and as recommended.
IN_EVERY_LAYOUT = ("random-int64", "uuid-36-bytes", "text-1-000-distinct", "tpch-lineitem")
_PACKAGES = ("pyarrow", "polars", "duckdb", "datafusion", "pylance", "numba")
_HOME = Path(__file__).resolve().parent
_PARTS = (
    "`pytest bench --write` makes 20 million rows in 4 files of row groups of a million (a random "
    "`int64` id, a uuid as text, a `float64`, an `int64`; for Spark the same in 16 files, and a "
    "join of 10 million), measures, and writes this table. Ours and theirs are timed in one run: "
    "compare the ratios, for the times are the machine's."
)

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
    sets, layouts : tuple of str
        Of `SETS`, and of `layouts.NAMES`.
    ratios : bool
        Only what the tables of ratios need: those we are held against, nothing cold.
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
    sets: tuple[str, ...] = SETS
    layouts: tuple[str, ...] = layouts.NAMES
    ratios: bool = False
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
    loads: list[float] = field(default_factory=list)


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
        is_short = options.ratios or not each.is_first
        report.measured += _measured(each, here, options.effort, is_short, progress)
        report.loads.append(os.getloadavg()[0])
    if SCALE in options.sets:
        report.scaled = scale.run(
            full=options.full, root=options.root, sizes=options.scale_sizes, progress=progress
        )
    report.seconds = time.perf_counter() - started
    return report


def _measured(
    each: DataSet,
    here: list[type[Competitor]],
    effort: Effort,
    is_short: bool,
    progress: Progress,
) -> list[Measured]:
    """Every competitor, or those we are held against and these only warm."""
    if is_short:
        here = [competitor for competitor in here if competitor in PEERS]
        effort = replace(effort, cold_runs=0)
    progress(f"{each.name}, {each.layout}: {each.num_rows:,} rows, {each.num_zones:,} zones")
    began = time.perf_counter()
    found = measure(
        [competitor(each) for competitor in here], each, Questions.of(each, effort), effort
    )
    progress(f"  {len(here)} competitors, {time.perf_counter() - began:.0f} s")
    for line in ratio_table(found):
        progress(f"  {line}")
    return found


def _data_sets(options: Options, report: Report, progress: Progress) -> Iterator[DataSet]:
    made = data.makers(options.rows, options.scale_factor, options.root)
    for name in (name for name in options.sets if name != SCALE):
        try:
            first = made[name]()
        except (ImportError, FileNotFoundError) as error:
            report.missing.append(f"{name} is left out: {error}")
            progress(report.missing[-1])
            continue
        known = layouts.WRITERS if name in IN_EVERY_LAYOUT else (layouts.RECOMMENDED,)
        for layout in dict.fromkeys((first.layout, *known)):
            if layout in options.layouts:
                yield first.in_layout(layout)


# Writing


def markdown(report: Report) -> str:
    """The whole report."""
    lines = ["# Against other tools", "", *_preface(report)]
    if report.measured:
        lines += ["", f"![Time of lookups against scans](plots/{SHARES})"]
    lines += _ratios(report.measured)
    first = [each for each in report.measured if each.data.is_first]
    if first:
        lines += ["", "![Latency by competitor](plots/latency.png)"]
        lines += ["", "![Time by keys of IN](plots/in-sizes.png)"]
    if len(first) < len(report.measured):
        lines += ["", "![Time by keys of IN, by layout](plots/layouts.png)"]
    for each in dict.fromkeys(each.data for each in first if each.first):
        found = [one for one in first if one.data == each]
        lines += ["", f"## {each.name}", "", _described(each), "", *full_table(found)]
    if any(each.first for each in first):
        lines += ["", "## Importing", "", *_import_words(), "", *import_table(first)]
    if report.scaled:
        lines += ["", "## The index alone", "", *_scale_words(), "", *scale_table(report.scaled)]
        lines += ["", "![Growth with rows](plots/growth.png)"]
    return "\n".join(lines) + "\n"


def _ratios(measured: list[Measured]) -> list[str]:
    """A table a layout, headed by what its files tell."""
    lines: list[str] = []
    for layout in layouts.NAMES:
        found = [each for each in measured if each.data.layout == layout]
        if not found:
            continue
        sets = dict.fromkeys(each.data for each in found)
        columns = [(file, each.column) for each in sets for file in each.files]
        lines += ["", f"## Layout: {layout}, {layouts.describe_layout(columns)}", ""]
        lines += ratio_table(found)
    return lines


def _described(each: DataSet) -> str:
    told = layouts.describe_layout((file, each.column) for file in each.files)
    return f"{each.num_rows:,} rows in {each.num_zones:,} zones, {told}."


def readme_section(report: Report) -> str:
    """What the README shows of it: a few lookups in files of every layout, and the plot."""
    lines = lookup_table(report.measured)
    lines += ["", f"![Time of lookups against scans](bench/plots/{SHARES})"]
    return "\n".join(lines) + "\n"


def _preface(report: Report) -> list[str]:
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    versions = ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _version(name)))
    lines = [
        f"Measured on {machine}, Python {platform.python_version()}, {versions}. Every competitor "
        "is asked for the same keys and returns all columns of the rows, which are checked "
        "against brute force first. Warm lookups: all take turns, and each has its least time; "
        "one key and an absent key are another one each time, IN has the keys of so many rows "
        "drawn at random, a batch has 100,000 keys, one in 1,000 present.",
        "",
        "`python -m bench report --readme` measures, and writes this file, the plots and the "
        "README's table; `--ratios` measures only what is held against Lance and the scans, "
        "`--sets` and `--layouts` choose by parts of names, `--full` takes an index of a billion "
        "rows too. Every data set is laid out as recommended, lineitem and orders also as their "
        "generator writes them, and four of them as pyarrow, Polars, DuckDB and Spark do by "
        "default; each table's heading tells the layout from the files.",
        "",
        "By layout: zonebloom's `lookup`, and what it takes of others' time; in brackets, of "
        "their time on all cores. By data set, in brackets, the figure as a multiple of "
        "zonebloom's. First lookup: in a fresh process after its imports, with data and index "
        "dropped from the page cache, the data set opened. False zones: zones kept without the "
        "key, mean.",
    ]
    if report.loads:
        low, high = min(report.loads), max(report.loads)
        lines += ["", f"The machine's load average was {low:.1f} to {high:.1f}, of this run and "]
        lines[-1] += "of all else on it."
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
    """Write REPORT.md and the plots into a folder; what `pytest bench --write` wrote stays."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "REPORT.md"
    kept = read_section(path, BENCHMARKS) if path.exists() else ""
    first = [each for each in report.measured if each.data.is_first]
    others = [each for each in report.measured if not each.data.is_first]
    if report.measured:
        plot_shares(report.measured, out / "plots" / SHARES)
    if first:
        plot_latency(first, out / "plots")
        plot_in_sizes(first, out / "plots" / "in-sizes.png")
    if others:
        plot_in_sizes(others, out / "plots" / "layouts.png")
    if report.scaled:
        plot_growth(report.scaled, out / "plots")
    text = f"{markdown(report)}\n## Parts\n\n{_PARTS}\n\n{section(BENCHMARKS, kept)}\n"
    path.write_text(text, encoding="utf-8")


def write_readme(report: Report, path: Path = _HOME.parent / "README.md") -> None:
    """Put the section between its markers.

    Raises
    ------
    ValueError
        When the README has no markers.
    """
    write_section(path, "peers", readme_section(report))

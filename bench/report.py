"""Measure every competitor on every data set, and write the report as Markdown and plots.

Answers are compared with brute force before anything is timed. A wrong answer ends the run.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from bench import data, layouts, scale
from bench.cold import FreshTimes, fresh_times
from bench.competitors import PEERS, Competitor, competitors
from bench.data import DataSet
from bench.measures import Effort, Questions, Result, measure
from bench.plotting import GROWTH, SHARES, plot_growth, plot_in_sizes, plot_shares
from bench.scale import ScaleResult
from bench.sections import ALL, BENCHMARKS, SCALE, read_section, section
from bench.tables import fresh_table, full_table, import_table, ratio_table, scale_table

SCALE_SET = "scale"
NEW_PROCESSES = "new-processes"
_DATA_SETS = tuple(data.makers(0, 1, None))
SETS = (*_DATA_SETS, SCALE_SET, NEW_PROCESSES)
# These data sets are measured in all layouts. The others are measured as they were first written,
# and in the recommended layout.
IN_EVERY_LAYOUT = ("random-int64", "uuid-36-bytes", "text-1-000-distinct", "tpch-lineitem")
_PACKAGES = ("pyarrow", "polars", "duckdb", "datafusion", "pylance", "numba")
_HOME = Path(__file__).resolve().parent
_PARTS = (
    "`pytest bench --write` makes 20 million rows in 4 files of row groups of a million (a random "
    "`int64` id, a uuid as text, a `float64`, an `int64`; for Spark the same in 16 files, and a "
    "join of 10 million), measures, and writes this table. Ours and theirs are timed in one run: "
    "compare the ratios, for the times are the machine's."
)

SCALE_WORDS = (
    "The index alone, without data, for generated keys: filters of 8,192 rows, and "
    "the hash index with zones of 1,024 rows, in one file of a build and in one that is merged "
    "from eight. The build hashes the keys and writes the file; the merged one is written from "
    "its eight segments. First lookup and memory are those of a new "
    "process after its imports, with the file not in the page cache. Each warm lookup has a new "
    "key, with the file in the page cache, and then the same keys are looked up again. The table "
    "layout first verifies the checksum of the "
    "whole file, and its memory includes the mapped file. A batch has a million keys, of which "
    "half are present, or fewer if they take more than two seconds; its rate per core is that by "
    "CPU time. False zones are those of absent keys."
)

_FRESH_WORDS = (
    "One key of 5 million rows in 5 files, which are in the page cache, in a new process. The "
    "command is `zonebloom lookup PATH --key id=KEY`, and DuckDB's scan is that of a Python "
    "program of one line, both from the start of the process to its end, with processor time in "
    "parentheses. The first lookup in Python begins after the imports, and includes opening the "
    "dataset."
)

_IMPORT_WORDS = "The time of imports before the first lookup of a process, and its memory after it."

Progress = Callable[[str], object]


@dataclass(slots=True)
class Options:
    """The measurements to make, and the folders of data and report.

    Attributes
    ----------
    rows : int
        Number of rows of each synthetic data set.
    scale_factor : float
        Scale factor of TPC-H.
    sets, layouts : tuple of str
        Members of `SETS`, and of `layouts.NAMES`.
    ratios : bool
        Whether to measure only what the tables of ratios need: the peers, and no cold lookups.
    full : bool
        Whether to measure an index of a billion rows as well.
    out : Path
        Folder of REPORT.md and plots.
    root : Path or None
        Folder of the data; by default a temporary one.
    effort : Effort
    scale_sizes : tuple of int or None
        Numbers of rows of the indices without data.
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
    """All measurements, and messages about competitors and data sets that are missing."""

    results: list[Result] = field(default_factory=list)
    scale_results: list[ScaleResult] = field(default_factory=list)
    fresh_times: dict[str, FreshTimes] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    seconds: float = 0.0
    loads: list[float] = field(default_factory=list)


def run(options: Options, progress: Progress = print) -> Report:
    """Measure all competitors on all data sets.

    Raises
    ------
    WrongAnswer
        If a competitor does not find the rows that brute force finds.
    """
    start = time.perf_counter()
    available, missing = competitors()
    report = Report(missing=missing)
    for line in missing:
        progress(line)
    for data_set in _data_sets(options, report, progress):
        is_short = options.ratios or not data_set.is_first
        report.results += _measure_set(
            data_set, available, options.effort, is_short=is_short, progress=progress
        )
        report.loads.append(os.getloadavg()[0])
    if SCALE_SET in options.sets:
        report.scale_results = scale.run(
            full=options.full, root=options.root, sizes=options.scale_sizes, progress=progress
        )
    if NEW_PROCESSES in options.sets and not options.ratios:
        progress("one key in new processes")
        report.fresh_times = fresh_times(root=options.root)
    report.seconds = time.perf_counter() - start
    return report


def _measure_set(
    data_set: DataSet,
    available: list[type[Competitor]],
    effort: Effort,
    *,
    is_short: bool,
    progress: Progress,
) -> list[Result]:
    """Measure the available competitors, or only warm lookups of the peers if it is short."""
    if is_short:
        available = [competitor for competitor in available if competitor in PEERS]
        effort = replace(effort, cold_runs=0)
    progress(
        f"{data_set.name}, {data_set.layout}: {data_set.num_rows:,} rows, "
        f"{data_set.num_zones:,} zones"
    )
    start = time.perf_counter()
    results = measure(
        [competitor(data_set) for competitor in available],
        data_set,
        Questions.of(data_set, effort),
        effort,
    )
    progress(f"  {len(available)} competitors, {time.perf_counter() - start:.0f} s")
    for line in ratio_table(results):
        progress(f"  {line}")
    return results


def _data_sets(options: Options, report: Report, progress: Progress) -> Iterator[DataSet]:
    """Yield each data set in each layout to measure, and report those that cannot be made."""
    makers = data.makers(options.rows, options.scale_factor, options.root)
    for name in (name for name in options.sets if name in _DATA_SETS):
        try:
            first = makers[name]()
        except (ImportError, FileNotFoundError) as error:
            report.missing.append(f"{name} is left out: {error}")
            progress(report.missing[-1])
            continue
        other_layouts = layouts.WRITERS if name in IN_EVERY_LAYOUT else (layouts.RECOMMENDED,)
        for layout in dict.fromkeys((first.layout, *other_layouts)):
            if layout in options.layouts:
                yield first.in_layout(layout)


def markdown(report: Report, old_sections: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the whole report as Markdown.

    ``old_sections`` are the texts of sections, for those that this report does not measure.
    """
    lines = ["# Against other tools", "", *_preface(report)]
    if report.results:
        lines += ["", f"![Time of lookups against scans](plots/{SHARES})"]
    lines += _ratios(report.results)
    first_results = [result for result in report.results if result.data.is_first]
    if first_results:
        lines += ["", "![Time by keys of IN](plots/in-sizes.png)"]
    if len(first_results) < len(report.results):
        lines += ["", "![Time by keys of IN, by layout](plots/layouts.png)"]
    for data_set in dict.fromkeys(result.data for result in first_results if result.first):
        results = [result for result in first_results if result.data == data_set]
        lines += ["", f"## {data_set.name}", "", _describe_set(data_set), "", *full_table(results)]
    if any(result.first for result in first_results):
        lines += ["", "## Importing", "", _IMPORT_WORDS, "", *import_table(first_results)]
    if report.fresh_times:
        lines += ["", "## New processes", "", _FRESH_WORDS, "", *fresh_table(report.fresh_times)]
    sections = {name: old_sections.get(name, "") for name in ALL}
    if report.scale_results:
        sections[SCALE] = "\n".join(scale_table(report.scale_results)) + "\n"
    lines += ["", "## The index alone", "", SCALE_WORDS, "", section(SCALE, sections[SCALE])]
    if sections[SCALE]:
        lines += ["", f"![Growth with rows](plots/{GROWTH})"]
    lines += ["", "## Parts", "", _PARTS, "", section(BENCHMARKS, sections[BENCHMARKS])]
    return "\n".join(lines) + "\n"


def _ratios(all_results: list[Result]) -> list[str]:
    """Return a table for each layout, with a description of its files as heading."""
    lines: list[str] = []
    for layout in layouts.NAMES:
        results = [result for result in all_results if result.data.layout == layout]
        if not results:
            continue
        sets = dict.fromkeys(result.data for result in results)
        columns = [(file, data_set.column) for data_set in sets for file in data_set.files]
        lines += ["", f"## Layout: {layout}, {layouts.describe_layout(columns)}", ""]
        lines += ratio_table(results)
    return lines


def _describe_set(data_set: DataSet) -> str:
    layout = layouts.describe_layout((file, data_set.column) for file in data_set.files)
    return f"{data_set.num_rows:,} rows in {data_set.num_zones:,} zones, {layout}."


def _preface(report: Report) -> list[str]:
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    versions = ", ".join(
        f"{name} {installed}" for name in _PACKAGES if (installed := _version(name))
    )
    lines = [
        f"Measured on {machine}, Python {platform.python_version()}, {versions}. All competitors "
        "look up the same keys and return all columns of the rows, which are first compared with "
        "brute force. In warm lookups the competitors take turns, and the shortest time of each "
        "counts. One key and an absent key are different ones each time, IN has the keys of as "
        "many random rows, and a batch has 100,000 keys, of which one in 1,000 is present.",
        "",
        "`python -m bench report` measures, and writes this file and the plots. "
        "`--ratios` measures only what is compared with Lance and the scans, "
        "`--sets` and `--layouts` select by parts of names, and `--full` adds an index of a "
        "billion rows. `python -m bench scale --write` measures only the index alone. Every data "
        "set is measured in the recommended layout, lineitem and orders also in that of their "
        "generator, and four of them in the default layouts of pyarrow, Polars, DuckDB and Spark. "
        "The heading of each table describes the layout of the files.",
        "",
        "The tables by layout show zonebloom's `lookup` with an index of each kind, BLOOMFILTER "
        "and HASH, and its time divided by that of others; in brackets, the same for CPU time on "
        "all cores. In the tables by data set, numbers in brackets are multiples of zonebloom's "
        "figure. A first lookup includes opening the data set, in a new process after its imports, "
        "with data and index dropped from the page cache. False zones is the mean number of kept "
        "zones of 8,192 rows without the key.",
    ]
    if report.loads:
        low, high = min(report.loads), max(report.loads)
        lines += [
            "",
            f"The machine's load average was {low:.1f} to {high:.1f}, including this run.",
        ]
    if report.missing:
        lines += ["", *(f"- {line}" for line in report.missing)]
    return lines


def _version(package: str) -> str:
    try:
        return version(package)
    except ImportError:
        return ""


def write(report: Report, out: Path) -> None:
    """Write REPORT.md and plots to a folder. Keep the sections that were not measured."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "REPORT.md"
    old_sections = {name: read_section(path, name) for name in ALL} if path.exists() else {}
    first_results = [result for result in report.results if result.data.is_first]
    other_results = [result for result in report.results if not result.data.is_first]
    if report.results:
        plot_shares(report.results, out / "plots" / SHARES)
    if first_results:
        plot_in_sizes(first_results, out / "plots" / "in-sizes.png")
    if other_results:
        plot_in_sizes(other_results, out / "plots" / "layouts.png")
    if report.scale_results:
        plot_growth(report.scale_results, out / "plots")
    path.write_text(markdown(report, old_sections), encoding="utf-8")

"""Measure lookups of zonebloom and its competitors.

``python -m bench headline`` measures README's table, and ``python -m bench report`` all
competitors, data sets and layouts. ``python -m bench scale`` measures the index alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import headline, scale
from bench.layouts import NAMES
from bench.plotting import plot_growth
from bench.report import SETS, Options, markdown, run, write
from bench.sections import SCALE, write_section
from bench.tables import scale_table

_HOME = Path(__file__).resolve().parent


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="measure, and write REPORT.md and plots")
    defaults = Options()
    report.add_argument("--rows", type=int, default=defaults.rows, help="rows of a synthetic set")
    report.add_argument(
        "--full", action="store_true", help="add an index of a billion rows (40 GB)"
    )
    report.add_argument(
        "--scale", type=float, default=defaults.scale_factor, help="scale factor of TPC-H"
    )
    report.add_argument("--sets", default="", help=f"parts of names: {', '.join(SETS)}")
    report.add_argument("--layouts", default="", help=f"parts of names: {', '.join(NAMES)}")
    report.add_argument("--ratios", action="store_true", help="only the tables of ratios")
    report.add_argument("--out", type=Path, default=defaults.out, help="folder of the report")
    report.add_argument("--data", type=Path, help="folder of the data; kept for the next run")
    first = commands.add_parser("headline", help="measure the lookups of README's table")
    first.add_argument("--rows", type=int, default=8_000_000, help="rows of the data")
    first.add_argument("--data", type=Path, help="folder of the data; kept for the next run")
    first.add_argument("--readme", action="store_true", help="write the table to the README")
    alone = commands.add_parser("scale", help="measure the index alone, of generated keys")
    alone.add_argument("--rows", type=_counts, help="numbers of rows, separated by commas")
    alone.add_argument("--data", type=Path, help="folder of the indices; kept for the next run")
    alone.add_argument("--write", action="store_true", help="write it into bench/REPORT.md")
    alone.add_argument("--full", action="store_true", help="add a billion rows (40 GB)")
    parsed = parser.parse_args(arguments)
    if parsed.command == "headline":
        return _headline(parsed)
    if parsed.command == "scale":
        return _scale(parsed)
    return _report(parsed, parser)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(float(count)) for count in text.split(","))


def _scale(parsed: argparse.Namespace) -> int:
    results = scale.run(full=parsed.full, root=parsed.data, sizes=parsed.rows, progress=_progress())
    table = "\n".join(scale_table(results)) + "\n"
    print(table)
    if parsed.write:
        plot_growth(results, _HOME / "plots")
        write_section(_HOME / "REPORT.md", SCALE, table)
    return 0


def _headline(parsed: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        root = parsed.data or Path(temporary)
        seconds = headline.measure(headline.write_data(parsed.rows, root), _progress())
    print("\n".join(headline.table(seconds)))
    if parsed.readme:
        headline.write_readme(seconds, Path(__file__).parent.parent / "README.md")
    return 0


def _progress() -> Callable[[str], None]:
    """Return a function that prints a line with the seconds since now."""
    start = time.perf_counter()

    def progress(line: str) -> None:
        print(f"{time.perf_counter() - start:6.0f} s  {line}", file=sys.stderr, flush=True)

    return progress


def _report(parsed: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    sets, layouts = _matching_names(parsed.sets, SETS), _matching_names(parsed.layouts, NAMES)
    if not (sets and layouts):
        parser.error("no data set, or no layout, has such a name")

    progress = _progress()
    options = Options(
        rows=parsed.rows,
        scale_factor=parsed.scale,
        sets=sets,
        layouts=layouts,
        ratios=parsed.ratios,
        full=parsed.full,
        out=parsed.out,
        root=parsed.data,
    )
    results = run(options, progress)
    write(results, parsed.out)
    print(markdown(results))
    progress("done")
    return 0


def _matching_names(parts: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that contain one of several parts, separated by commas."""
    all_parts = parts.lower().split(",")
    return tuple(name for name in names if any(part in name.lower() for part in all_parts))


if __name__ == "__main__":
    sys.exit(main())

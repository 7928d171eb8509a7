"""``python -m bench report``: measure all competitors, and write tables and plots."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bench.layouts import NAMES
from bench.report import SETS, Options, markdown, run, write, write_readme


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="measure, and write REPORT.md and plots")
    defaults = Options()
    report.add_argument("--rows", type=int, default=defaults.rows, help="of each synthetic set")
    report.add_argument("--full", action="store_true", help="an index of a billion rows too (8 GB)")
    report.add_argument("--scale", type=float, default=defaults.scale_factor, help="of TPC-H")
    report.add_argument("--sets", default="", help=f"parts of names: {', '.join(SETS)}")
    report.add_argument("--layouts", default="", help=f"parts of names: {', '.join(NAMES)}")
    report.add_argument("--ratios", action="store_true", help="only the tables of ratios")
    report.add_argument("--readme", action="store_true", help="write the README's section too")
    report.add_argument("--out", type=Path, default=defaults.out, help="folder of the report")
    report.add_argument("--data", type=Path, help="folder of the data; kept for the next run")
    given = parser.parse_args(arguments)
    sets, layouts = _chosen(given.sets, SETS), _chosen(given.layouts, NAMES)
    if not (sets and layouts):
        parser.error("no data set, or no layout, has such a name")

    started = time.perf_counter()

    def progress(line: str) -> None:
        print(f"{time.perf_counter() - started:6.0f} s  {line}", file=sys.stderr, flush=True)

    options = Options(
        given.rows,
        given.scale,
        sets,
        layouts,
        given.ratios,
        given.full,
        given.out,
        given.data,
    )
    found = run(options, progress)
    write(found, given.out)
    if given.readme:
        write_readme(found)
    print(markdown(found))
    progress("done")
    return 0


def _chosen(parts: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names with one of some parts; all names without parts."""
    wanted = parts.lower().split(",")
    return tuple(name for name in names if any(part in name.lower() for part in wanted))


if __name__ == "__main__":
    sys.exit(main())

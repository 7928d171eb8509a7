"""``python -m bench report``: measure all competitors, and write tables and plots."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bench.report import PARTS, Options, markdown, run, write, write_readme


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="measure, and write REPORT.md and plots")
    defaults = Options()
    report.add_argument("--rows", type=int, default=defaults.rows, help="of each synthetic set")
    report.add_argument("--full", action="store_true", help="an index of a billion rows too (8 GB)")
    report.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    report.add_argument("--readme", action="store_true", help="write the README's section too")
    report.add_argument("--out", type=Path, default=defaults.out, help="folder of the report")
    report.add_argument("--data", type=Path, help="folder of the data; kept for the next run")
    given = parser.parse_args(arguments)
    parts = tuple(given.only.split(","))
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only knows {', '.join(PARTS)}, not {', '.join(sorted(unknown))}")

    started = time.perf_counter()

    def progress(line: str) -> None:
        print(f"{time.perf_counter() - started:6.0f} s  {line}", file=sys.stderr, flush=True)

    options = Options(given.rows, 1, parts, given.full, given.out, given.data)
    found = run(options, progress)
    write(found, given.out)
    if given.readme:
        write_readme(found)
    print(markdown(found))
    progress("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())

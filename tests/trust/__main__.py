"""Try the first law, that no row is ever lost, for minutes or hours.

    python -m tests.trust --minutes 10 --seed 7 --only differential,damage

Each part runs its cases in turn until its share of the time is over, and says what it tried and
what failed. A failed case is run again by its number, with --case.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

# Polars' panics say their one line only.
os.environ["RUST_BACKTRACE"] = "0"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trust.report import Report

PARTS = ("differential",)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trust", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1, help="of all parts together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--case", type=int, help="run this one case")
    parser.add_argument("--cases", type=int, default=1 << 40, help="cases a part at most")
    options = parser.parse_args()
    parts = options.only.split(",")
    failed = 0
    for part in parts:
        report = Report(part, options.seed)
        run_case = importlib.import_module(f"trust.{part}").run_case
        until = time.monotonic() + options.minutes * 60 / len(parts)
        first = options.case or 0
        last = first + (1 if options.case is not None else options.cases)
        for case in range(first, last):
            if time.monotonic() > until and case > first:
                break
            with tempfile.TemporaryDirectory(prefix="trust-") as folder:
                before = len(report.failures)
                try:
                    run_case(report, case, Path(folder))
                except Exception:  # noqa: BLE001 - the harness itself, or what it did not expect
                    report.fail(traceback.format_exc())
                for _, text in report.failures[before:][:3]:
                    print(f"FAILED {text}\n  {report.command(case)}", flush=True)
        print(report, flush=True)
        failed += len(report.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

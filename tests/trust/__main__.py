"""Try the first law, that no row is ever lost, for minutes or hours.

    python -m tests.trust --minutes 10 --seed 7 --only differential,damage

Each part runs its cases until its share of the time is over, and says what it tried and what
failed. A failed case is run again by its number, with --case.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[1])
PARTS = (
    "differential",
    "spark",
    "histories",
    "damage",
    "forge",
    "faults",
    "kill",
    "many",
    "pages",
    "bodies",
    "patches",
    "foreign",
    "queries",
    "changes",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trust", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1, help="of all parts together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--case", type=int, help="run this one case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    parts = options.only.split(",")
    cases = range(1 << 40) if options.case is None else range(options.case, options.case + 1)
    if TESTS not in sys.path:
        sys.path.insert(0, TESTS)
    from trust.injection import native_library
    from trust.workers import run

    failed = 0
    with tempfile.TemporaryDirectory(prefix="trust-") as folder:
        preloaded = native_library(Path(folder))
        for part in parts:
            if part in ("faults", "kill") and preloaded:
                os.environ["LD_PRELOAD"] = preloaded
            seconds = options.minutes * 60 / len(parts)
            report = run(part, options.seed, cases, seconds, options.jobs)
            os.environ.pop("LD_PRELOAD", None)
            print(report, flush=True)
            failed += len(report.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Run random histories of upserts and erasures, and kill some of them.

Every fourth number is a case of the same kind of table, so 2,000 cases have 500 histories of each.
"""

from __future__ import annotations

from pathlib import Path

from changes.change_history import run_history
from changes.killed_changes import run_killed_change
from support.changed_tables import KINDS
from trust.report import Report

# Of this many histories of a kind, one is killed.
EACH = 10


def run_case(report: Report, number: int, folder: Path) -> None:
    """Run one history, or kill a change at random moments."""
    rng = report.begin(number)
    kind = list(KINDS)[number % len(KINDS)]
    if number // len(KINDS) % EACH == EACH - 1:
        for outcome in run_killed_change(kind, rng, folder, num_kills=20):
            report.tried[f"{kind}, killed: {outcome}"] += 1
        return
    steps = run_history(kind, rng, folder)
    report.tried[f"{kind}: steps"] += len(steps) - 1

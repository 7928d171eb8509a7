"""A short run of each part of the harness; ``python -m tests.trust`` is the long one."""

from __future__ import annotations

import pytest
from trust import (
    damage,
    differential,
    faults,
    foreign,
    forge,
    histories,
    kill,
    many,
    patches,
    queries,
)
from trust.report import Report, check
from trust.small import WRITERS
from trust.workers import run

# Each part with its number of cases, and the options that keep each case short.
PARTS = [
    (differential, 8, {"trees": 20}),
    (histories, 6, {}),
    (damage, len(damage.SUBJECTS), {"max_damages": 2}),
    (forge, len(forge.CASES), {"num_forgeries": 12}),
    (faults, 2 * len(faults.SCENARIOS), {"max_faults": 2}),
    (kill, len(WRITERS), {"max_kills": 1}),
    (patches, 2, {}),
    (foreign, 12, {"rounds": 2}),
    (queries, 6, {}),
]
CASES = [
    pytest.param(part, case, options, id=f"{part.__name__.rpartition('.')[2]}-{case}")
    for part, count, options in PARTS
    for case in range(count)
]


@pytest.mark.parametrize(("part", "case", "options"), CASES)
def test_no_row_is_lost(tmp_path, part, case, options):
    report = Report(part.__name__.rpartition(".")[2])
    part.run_case(report, case, tmp_path, **options)
    check(report)


@pytest.mark.parametrize(("part", "seconds"), [("pages", 8), ("bodies", 4)])
def test_damaged_files_give_right_rows_or_raise(part, seconds):
    check(run(part, 0, range(200), seconds, 1))


@pytest.mark.parametrize("case", range(len(many.STORES)), ids=many.STORES)
def test_many_writers_and_readers_lose_no_row(tmp_path, case):
    report = Report("many")
    many.run_case(report, case, tmp_path, seconds=3)
    check(report)

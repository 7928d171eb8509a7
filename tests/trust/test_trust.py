"""A short run of each part of the harness; ``python -m tests.trust`` is the long one."""

from __future__ import annotations

import pytest
from trust import damage, differential, faults, histories, kill
from trust.report import Report, check
from trust.small import WRITERS
from trust.workers import run


@pytest.mark.parametrize("case", range(6))
def test_every_way_gives_the_rows_of_the_oracle(tmp_path, case):
    report = Report("differential")
    differential.run_case(report, case, tmp_path)
    check(report)


@pytest.mark.parametrize("case", range(6))
def test_readers_of_a_history_see_the_files_as_they_are(tmp_path, case):
    report = Report("histories")
    histories.run_case(report, case, tmp_path)
    check(report)


@pytest.mark.parametrize("case", range(len(damage.LAYOUTS)))
def test_damage_is_noticed_and_loses_no_row(tmp_path, case):
    report = Report("damage")
    damage.run_case(report, case, tmp_path, most=2)
    check(report)


@pytest.mark.parametrize("case", range(2 * len(faults.SCENARIOS)))
def test_a_failing_call_loses_no_row(tmp_path, case):
    report = Report("faults")
    faults.run_case(report, case, tmp_path, most=2)
    check(report)


@pytest.mark.parametrize("case", range(len(WRITERS)))
def test_a_killed_writer_leaves_what_was(tmp_path, case):
    report = Report("kill")
    kill.run_case(report, case, tmp_path, most=1)
    check(report)


def test_pages_of_damaged_files():
    check(run("pages", 0, range(200), 8, 1))

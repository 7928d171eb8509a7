"""A short run of each part of the harness; ``python -m tests.trust`` is the long one."""

from __future__ import annotations

import pytest
from trust import differential
from trust.report import Report


@pytest.mark.parametrize("case", range(8))
def test_differential(tmp_path, case):
    report = Report("differential")
    differential.run_case(report, case, tmp_path)
    assert report.tried
    assert not report.failures, str(report)

"""The types that methods return, for annotations. Methods create them.

    from zonebloom.results import Scanner

    def count(scan: Scanner) -> int: ...

Most have a one-line `repr`, a longer text for `print`, and HTML for Jupyter.
"""

from __future__ import annotations

from zonebloom.advise.judge import Advice, Advices
from zonebloom.base.display import DisplayedDict as Figures
from zonebloom.base.display import DisplayedList as Rows
from zonebloom.building.builder import Refreshed
from zonebloom.catalog.vacuum import Vacuumed
from zonebloom.changes.receipt import ChangedFile, KeyDigest, Receipt, Trace, Traces, Verification
from zonebloom.facade.fragments import CandidateFragment
from zonebloom.facade.indices import DatasetOptimizer
from zonebloom.index.describe import EmbeddedDescription, IndexDescription
from zonebloom.index.global_filter import GlobalFilter
from zonebloom.index.validate import ValidatedIndex
from zonebloom.scan.explain import PlanText, ScanPlan
from zonebloom.scan.plan import ScanStats
from zonebloom.scan.scanner import Scanner

__all__ = [
    "Advice",
    "Advices",
    "CandidateFragment",
    "ChangedFile",
    "DatasetOptimizer",
    "EmbeddedDescription",
    "Figures",
    "GlobalFilter",
    "IndexDescription",
    "KeyDigest",
    "PlanText",
    "Receipt",
    "Refreshed",
    "Rows",
    "ScanPlan",
    "ScanStats",
    "Scanner",
    "Trace",
    "Traces",
    "Vacuumed",
    "ValidatedIndex",
    "Verification",
]


def __dir__() -> list[str]:
    return __all__

"""zonebloom with Spark: the data source, and building indices on executors.

Names are handed on when they are first used: pyspark is imported no sooner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zonebloom.spark.frames import SparkPlan, plan, register, scan
    from zonebloom.spark.manager import BFIndexConfig, IndexManager
    from zonebloom.spark.pruned import PrunePlan, Reason
    from zonebloom.spark.pruning import prune, prune_plan
    from zonebloom.spark.reread import read_pruned

_HOMES = {
    "BFIndexConfig": "manager",
    "IndexManager": "manager",
    "PrunePlan": "pruned",
    "Reason": "pruned",
    "SparkPlan": "frames",
    "plan": "frames",
    "prune": "pruning",
    "prune_plan": "pruning",
    "read_pruned": "reread",
    "register": "frames",
    "scan": "frames",
}

__all__ = [
    "BFIndexConfig",
    "IndexManager",
    "PrunePlan",
    "Reason",
    "SparkPlan",
    "plan",
    "prune",
    "prune_plan",
    "read_pruned",
    "register",
    "scan",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        from zonebloom.errors import MissingDependency

        raise MissingDependency(
            "zonebloom.spark needs PySpark; run pip install 'zonebloom[spark]'"
        ) from error
    return getattr(import_module(f"zonebloom.spark.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

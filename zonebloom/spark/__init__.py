"""zonebloom with Spark: the whole data pipeline.

    build      Dataset.create_scalar_index(..., spark=), send_package, check_executors
    read       scan, plan, register (format("zonebloom")); prune, prune_plan, read_pruned
    join       filter_join, explain_join
    keys       tag_location, files_with_keys
    manage     IndexManager, BFIndexConfig

Names are handed on when they are first used: pyspark is imported no sooner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zonebloom.spark.executors import ExecutorReport, check_executors
    from zonebloom.spark.frames import SparkPlan, plan, register, scan
    from zonebloom.spark.joins import Indexed, JoinPlan, KeyFilter, explain_join, filter_join
    from zonebloom.spark.manager import BFIndexConfig, IndexManager
    from zonebloom.spark.pruned import PrunePlan, Reason
    from zonebloom.spark.pruning import prune, prune_plan
    from zonebloom.spark.reread import read_pruned
    from zonebloom.spark.ship import send_package
    from zonebloom.spark.tagging import files_with_keys, tag_location

# The module of each name.
_HOMES = {
    "BFIndexConfig": "manager",
    "ExecutorReport": "executors",
    "IndexManager": "manager",
    "Indexed": "joins",
    "JoinPlan": "joins",
    "KeyFilter": "joins",
    "PrunePlan": "pruned",
    "Reason": "pruned",
    "SparkPlan": "frames",
    "check_executors": "executors",
    "explain_join": "joins",
    "files_with_keys": "tagging",
    "filter_join": "joins",
    "plan": "frames",
    "prune": "pruning",
    "prune_plan": "pruning",
    "read_pruned": "reread",
    "register": "frames",
    "scan": "frames",
    "send_package": "ship",
    "tag_location": "tagging",
}

__all__ = [
    "BFIndexConfig",
    "ExecutorReport",
    "IndexManager",
    "Indexed",
    "JoinPlan",
    "KeyFilter",
    "PrunePlan",
    "Reason",
    "SparkPlan",
    "check_executors",
    "explain_join",
    "files_with_keys",
    "filter_join",
    "plan",
    "prune",
    "prune_plan",
    "read_pruned",
    "register",
    "scan",
    "send_package",
    "tag_location",
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

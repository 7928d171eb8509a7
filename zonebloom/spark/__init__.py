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
    from zonebloom.spark.frames import SparkPlan, plan, register, scan
    from zonebloom.spark.hyperspace.index_manager import BFIndexConfig, IndexManager
    from zonebloom.spark.joins.filter_join import (
        Indexed,
        JoinPlan,
        KeyFilter,
        explain_join,
        filter_join,
    )
    from zonebloom.spark.pruning.prune import prune, prune_plan
    from zonebloom.spark.pruning.pruned import PrunePlan, Reason
    from zonebloom.spark.pruning.read_pruned import read_pruned
    from zonebloom.spark.tagging.tag import files_with_keys, tag_location
    from zonebloom.spark.workers.executors import ExecutorReport, check_executors
    from zonebloom.spark.workers.ship import send_package

# The module of each name.
_HOMES = {
    "BFIndexConfig": "hyperspace.index_manager",
    "ExecutorReport": "workers.executors",
    "IndexManager": "hyperspace.index_manager",
    "Indexed": "joins.filter_join",
    "JoinPlan": "joins.filter_join",
    "KeyFilter": "joins.filter_join",
    "PrunePlan": "pruning.pruned",
    "Reason": "pruning.pruned",
    "SparkPlan": "frames",
    "check_executors": "workers.executors",
    "explain_join": "joins.filter_join",
    "files_with_keys": "tagging.tag",
    "filter_join": "joins.filter_join",
    "plan": "frames",
    "prune": "pruning.prune",
    "prune_plan": "pruning.prune",
    "read_pruned": "pruning.read_pruned",
    "register": "frames",
    "scan": "frames",
    "send_package": "workers.ship",
    "tag_location": "tagging.tag",
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

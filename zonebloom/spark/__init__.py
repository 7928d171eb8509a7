"""zonebloom with Spark: the whole data pipeline.

    build      Dataset.create_scalar_index(..., spark=), send_package, check_executors
    read       scan, plan, register (format("zonebloom"))
               table, prune, prune_plan, enable, disable, last_scans
    join       filter_join, explain_join
    keys       tag_location, files_with_keys
    manage     IndexManager, BFIndexConfig

Names are handed on when they are first used: pyspark is imported no sooner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zonebloom.spark.data_source import register as register
    from zonebloom.spark.executors import ExecutorReport as ExecutorReport
    from zonebloom.spark.executors import check_executors as check_executors
    from zonebloom.spark.frames import Indexed as Indexed
    from zonebloom.spark.frames import SparkPlan as SparkPlan
    from zonebloom.spark.frames import plan as plan
    from zonebloom.spark.frames import scan as scan
    from zonebloom.spark.hyperspace.index_manager import BFIndexConfig as BFIndexConfig
    from zonebloom.spark.hyperspace.index_manager import IndexManager as IndexManager
    from zonebloom.spark.joins.filter_join import JoinPlan as JoinPlan
    from zonebloom.spark.joins.filter_join import explain_join as explain_join
    from zonebloom.spark.joins.filter_join import filter_join as filter_join
    from zonebloom.spark.package_archive import send_package as send_package
    from zonebloom.spark.pruning.prune import disable as disable
    from zonebloom.spark.pruning.prune import enable as enable
    from zonebloom.spark.pruning.prune import last_scans as last_scans
    from zonebloom.spark.pruning.prune import prune as prune
    from zonebloom.spark.pruning.prune import prune_plan as prune_plan
    from zonebloom.spark.pruning.prune import table as table
    from zonebloom.spark.pruning.pruned import PrunePlan as PrunePlan
    from zonebloom.spark.pruning.pruned import Reason as Reason
    from zonebloom.spark.tagging.tag import files_with_keys as files_with_keys
    from zonebloom.spark.tagging.tag import tag_location as tag_location

_NAMES = {
    "executors": "ExecutorReport check_executors",
    "frames": "Indexed SparkPlan plan scan",
    "hyperspace.index_manager": "BFIndexConfig IndexManager",
    "joins.filter_join": "JoinPlan explain_join filter_join",
    "pruning.prune": "disable enable last_scans prune prune_plan table",
    "pruning.pruned": "PrunePlan Reason",
    "package_archive": "send_package",
    "data_source": "register",
    "tagging.tag": "files_with_keys tag_location",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


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
    return sorted(_HOMES)

"""zonebloom with Spark: the data source, and building indices on executors.

Names are handed on when they are first used: pyspark is imported no sooner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zonebloom.spark.frames import SparkPlan, plan, register, scan
    from zonebloom.spark.joins import Indexed, JoinPlan, KeyFilter, explain_join, filter_join

__all__ = [
    "Indexed",
    "JoinPlan",
    "KeyFilter",
    "SparkPlan",
    "explain_join",
    "filter_join",
    "plan",
    "register",
    "scan",
]

_MODULES = {
    "Indexed": "joins",
    "JoinPlan": "joins",
    "KeyFilter": "joins",
    "SparkPlan": "frames",
    "explain_join": "joins",
    "filter_join": "joins",
    "plan": "frames",
    "register": "frames",
    "scan": "frames",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        from zonebloom.errors import MissingDependency

        raise MissingDependency(
            "zonebloom.spark needs PySpark; run pip install 'zonebloom[spark]'"
        ) from error
    return getattr(import_module(f"zonebloom.spark.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

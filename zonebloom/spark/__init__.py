"""zonebloom with Spark: the data source, and building indices on executors.

Names are handed on when they are first used: pyspark is imported no sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zonebloom.spark.executors import ExecutorReport, check_executors
    from zonebloom.spark.frames import SparkPlan, plan, register, scan
    from zonebloom.spark.ship import send_package

# Module of each name.
_HOMES = {
    "ExecutorReport": "executors",
    "SparkPlan": "frames",
    "check_executors": "executors",
    "plan": "frames",
    "register": "frames",
    "scan": "frames",
    "send_package": "ship",
}

__all__ = [
    "ExecutorReport",
    "SparkPlan",
    "check_executors",
    "plan",
    "register",
    "scan",
    "send_package",
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
    from importlib import import_module

    return getattr(import_module(f"zonebloom.spark.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

"""zonebloom with Spark: the data source, and building indices on executors.

Names are handed on when they are first used: pyspark is imported no sooner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zonebloom.spark.frames import SparkPlan, plan, register, scan
    from zonebloom.spark.manager import BFIndexConfig, IndexManager

_HOMES = {
    "BFIndexConfig": "manager",
    "IndexManager": "manager",
    "SparkPlan": "frames",
    "plan": "frames",
    "register": "frames",
    "scan": "frames",
}

__all__ = ["BFIndexConfig", "IndexManager", "SparkPlan", "plan", "register", "scan"]


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

"""zonebloom with Spark: the data source, building indices on executors, and locating keys.

Names are handed on when they are first used: pyspark is imported no sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zonebloom.spark.frames import SparkPlan, plan, register, scan
    from zonebloom.spark.tagging import files_with_keys, tag_location

# The module of each name.
_HOMES = {
    "SparkPlan": "frames",
    "plan": "frames",
    "register": "frames",
    "scan": "frames",
    "files_with_keys": "tagging",
    "tag_location": "tagging",
}
__all__ = ["SparkPlan", "files_with_keys", "plan", "register", "scan", "tag_location"]


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

"""zonebloom with Spark: the data source, and building indices on executors.

Names are handed on when they are first used: pyspark is imported no sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zonebloom.spark.frames import SparkPlan, plan, register, scan

__all__ = ["SparkPlan", "plan", "register", "scan"]


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
    from zonebloom.spark import frames

    return getattr(frames, name)


def __dir__() -> list[str]:
    return __all__

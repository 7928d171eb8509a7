"""What is sent to executors is opened there only by the same version of zonebloom.

Objects that unpickle into another version's classes may come out wrong without an error.
"""

from __future__ import annotations

import pickle
from typing import Any

from zonebloom.errors import EngineError
from zonebloom.version import __version__


class Sealed:
    """Pickles as a version and bytes; unpickles as the content itself."""

    def __init__(self, content: Any):
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        from pyspark.cloudpickle import dumps

        return opened, (__version__, dumps(self._content))


def opened(version: str, content: bytes) -> Any:
    """Open what was sealed by a version, on the executor."""
    if version != __version__:
        raise EngineError(
            f"Spark's executors have zonebloom {__version__} and the driver {version}, which "
            f"must be the same: install {version} there, or send it to those of this session "
            "with zonebloom.spark.send_package(spark)"
        )
    return pickle.loads(content)

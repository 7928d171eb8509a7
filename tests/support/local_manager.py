"""An IndexManager without Spark, for tests that fork, kill or interrupt the process of a build."""

# The methods have the names that a session has.
# ruff: noqa: N815

from __future__ import annotations

from typing import Any

from zonebloom.spark import IndexManager
from zonebloom.spark.managed_indices import SYSTEM_PATH


class LocalManager(IndexManager):
    """A manager that builds in its own process. It makes no frames and answers no queries."""

    def __init__(self, folder: Any):
        session: Any = _Session(_Conf({SYSTEM_PATH: str(folder)}))
        super().__init__(session)

    def _engine(self) -> Any:
        return None


class _Conf(dict[str, str]):
    getAll = property(dict)


class _Session:
    """The parts of a session that a manager uses without queries."""

    addArtifacts = None
    session_id = "local"
    is_stopped = False

    def __init__(self, conf: _Conf):
        self.conf = conf

"""The names and parameters of Hyperspace's Python API, over ours.

    Hyperspace                             IndexManager
    createIndex(dataFrame, indexConfig)    create_index
    deleteIndex(indexName)                 delete_index
    restoreIndex(indexName)                restore_index
    vacuumIndex(indexName)                 vacuum_index
    refreshIndex(indexName, mode)          refresh_index
    optimizeIndex(indexName, mode)         optimize_index
    explain(df, verbose, redirectFunc)     explain: both spellings
    whyNot(df, indexName, extended)        why_not
    isEnabled()                            is_enabled

``indexes``, ``index``, ``cancel``, ``enable`` and ``disable`` are spelled alike. A configuration
is a `BFIndexConfig` here as there.
"""

from __future__ import annotations

from typing import Any, Protocol


class _Ours(Protocol):
    """What the class that takes these names has."""

    create_index: Any
    delete_index: Any
    restore_index: Any
    vacuum_index: Any
    refresh_index: Any
    optimize_index: Any
    why_not: Any
    is_enabled: Any


class HyperspaceNames:
    """Hyperspace's spelling of what `IndexManager` does; see there."""

    def createIndex(self: _Ours, dataFrame: Any, indexConfig: Any) -> None:  # noqa: N802, N803
        """`IndexManager.create_index`."""
        self.create_index(dataFrame, indexConfig)

    def deleteIndex(self: _Ours, indexName: str) -> None:  # noqa: N802, N803
        """`IndexManager.delete_index`."""
        self.delete_index(indexName)

    def restoreIndex(self: _Ours, indexName: str) -> None:  # noqa: N802, N803
        """`IndexManager.restore_index`."""
        self.restore_index(indexName)

    def vacuumIndex(self: _Ours, indexName: str) -> None:  # noqa: N802, N803
        """`IndexManager.vacuum_index`."""
        self.vacuum_index(indexName)

    def refreshIndex(self: _Ours, indexName: str, mode: str = "full") -> None:  # noqa: N802, N803
        """`IndexManager.refresh_index`."""
        self.refresh_index(indexName, mode)

    def optimizeIndex(self: _Ours, indexName: str, mode: str = "quick") -> None:  # noqa: N802, N803
        """`IndexManager.optimize_index`."""
        self.optimize_index(indexName, mode)

    def whyNot(self: _Ours, df: Any, indexName: str = "", extended: bool = False) -> Any:  # noqa: N802, N803
        """`IndexManager.why_not`."""
        return self.why_not(df, indexName, extended)

    def isEnabled(self: _Ours) -> bool:  # noqa: N802
        """`IndexManager.is_enabled`."""
        return self.is_enabled()

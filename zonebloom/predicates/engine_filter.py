"""Filters that another engine than Arrow applies to the rows read."""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@runtime_checkable
class EngineFilter(Protocol):
    """A filter that keeps the semantics of the engine it was written for.

    Whether a row passes depends on that row alone.
    """

    @property
    def columns(self) -> frozenset[str] | None:
        """Top-level columns it reads; None when that cannot be told."""
        ...

    def matching_rows(self, table: pa.Table) -> np.ndarray:
        """Numbers of the rows it is true for, ascending, int64."""
        ...

    def __str__(self) -> str:
        """The filter as its user would recognise it."""
        ...


RowFilter: TypeAlias = pc.Expression | EngineFilter

"""`DatasetOptimizer`, the methods that bring the indices of a dataset up to date."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from zonebloom.base.display import DisplayedList
from zonebloom.base.progress import ProgressOption
from zonebloom.building.builder import Refreshed
from zonebloom.catalog.model import RETENTION
from zonebloom.facade import indices
from zonebloom.scan.opened import OpenDataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DatasetOptimizer:
    """The methods that bring the indices of a dataset up to date; see ``Dataset.optimize``."""

    def __init__(self, dataset: OpenDataset):
        self._dataset = dataset

    def __repr__(self) -> str:
        return f"<zonebloom.DatasetOptimizer of {self._dataset.title}>"

    def optimize_indices(
        self,
        index_names: Sequence[str] | None = None,
        *,
        retention: timedelta | None = RETENTION,
        repair: bool = False,
        spark: SparkSession | Literal[False] | None = None,
        progress: ProgressOption = None,
    ) -> DisplayedList[Refreshed]:
        """Index new and changed files, and forget deleted files.

        This method first lists the files again, as `Dataset.refresh` does. It does not read files
        that are unchanged since they were indexed. A new segment is merged with segments of its
        size or smaller. So a refresh costs about as much as it adds, and leaves large segments
        alone.

        Parameters
        ----------
        index_names : list of str, optional
            The indices to refresh. By default all indices of this dataset, but not those of other
            datasets that share the index_dir. If the column of an index was dropped or has another
            type than when it was indexed, a StaleIndexWarning is given, that index stays as it
            is, and the others are refreshed. If such an index is named here, nothing is refreshed.
        retention : timedelta, optional
            After a change, delete versions and segments that were replaced longer ago than this,
            as `Dataset.vacuum` does; None keeps them all. 7 days by default.
        repair : bool
            Whether to verify all checksums of the indices first, and to build damaged indices
            again with the same parameters.
        spark, progress
            As in `Dataset.create_scalar_index`.

        Returns
        -------
        list of Refreshed
            One for each index, in the order of ``index_names``.

        Raises
        ------
        SchemaMismatch
            If the column of an index in ``index_names`` was dropped or has another type.
        FragmentUnreadable
        CorruptIndex
            If a segment that would be kept is damaged, and repair=False.

        Examples
        --------
        >>> pq.write_table(table.slice(0, 10), "orders/late.parquet")
        >>> ds.optimize.optimize_indices(["id_idx"])
        [Refreshed(name='id_idx', fragments_added=1, fragments_dropped=0, ...)]
        """
        ds = self._dataset
        names = indices.require_refresh_options(index_names, retention, repair, progress)
        ds.refresh()
        ds.opened, refreshed = indices.refresh_indices(
            ds.opened,
            names,
            retention=retention,
            repair=repair,
            spark=spark,
            progress=progress,
        )
        return refreshed

"""IndexManager: indices of a lake by name, as users of Hyperspace manage theirs.

    spark.conf        what is allowed            config
    system folder     a log of states an index   log, actions
    catalog           the filters themselves     beside the data, as `Dataset` makes them

An index of the manager is a name for one index a column in the catalog of the data
(``<name>.<column>``), with a global filter each. Filters of files are those of their zones: a
file may match when a zone of it may.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from zonebloom.errors import InvalidArgument
from zonebloom.spark.hyperspace.actions import Actions, Progress
from zonebloom.spark.hyperspace.checks import estimate, require_size, resolve_columns
from zonebloom.spark.hyperspace.config import (
    BFIndexConfig,
    read_settings,
    require_name,
)
from zonebloom.spark.hyperspace.hyperspace_names import HyperspaceNames
from zonebloom.spark.hyperspace.log import Record, State
from zonebloom.spark.hyperspace.queries import Queries
from zonebloom.spark.hyperspace.source import open_source
from zonebloom.spark.hyperspace.states import no_index
from zonebloom.spark.hyperspace.stats import EXTENDED_DDL, SUMMARY_DDL, Statistics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class IndexManager(Queries, HyperspaceNames):
    """Manages indices over Parquet files that Spark reads.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect; its conf is read at each call, with the keys and defaults of
        `zonebloom.spark.hyperspace.config`.

    Raises
    ------
    EngineError
        When it is no session.
    """

    # Life of an index

    def create_index(
        self,
        df: DataFrame | str | os.PathLike[str],
        config: BFIndexConfig,
        *,
        index_dir: str | None = None,
        progress: Progress = None,
    ) -> None:
        """Build an index: for each column, filters of its zones and a global one.

        Parameters
        ----------
        df : DataFrame or path
            ``spark.read.parquet(path)`` as it is, of all files of one folder, or the path.
        config : BFIndexConfig
        index_dir : str, optional
            Folder of the catalog, when it is not to be beside the data.
        progress : bool or callable, optional
            True for a bar, or a function given rows done and rows in all.

        Raises
        ------
        InvalidArgument, ColumnNotFound, UnsupportedType, IndexExists, NoFragments
            Before anything is read but footers.
        InvalidState
            After a creation that never ended.
        FragmentUnreadable, SchemaMismatch, EngineError, CommitConflict
            And nothing is left behind.
        """
        if not isinstance(config, BFIndexConfig):
            raise InvalidArgument(
                f"the configuration is a {type(config).__name__}; give a BFIndexConfig"
            )
        settings = read_settings(self._spark)
        opened, path = open_source(df, index_dir)
        sensitive = self._spark.conf.get("spark.sql.caseSensitive", "false") == "true"
        columns = resolve_columns(opened, config.columns, sensitive)
        size = estimate(opened, len(columns), config.expected_num_items, config.fpp)
        require_size(size, config, settings.max_bytes)
        record = Record(
            config.name,
            path=path,
            index_dir=opened.index_dir,
            columns=columns,
            expected_num_items=size.num_items,
            fpp=config.fpp,
        )
        self._act(lambda actions: actions.create(opened, record, progress))

    def refresh_index(self, name: str, mode: str = "full", *, progress: Progress = None) -> None:
        """Bring an index up to the files as they are now.

        Parameters
        ----------
        name : str
        mode : {"full", "incremental", "quick"}
            "full" builds it anew. "incremental" reads only files that were added or changed and
            forgets those gone. "quick" reads no data: it takes note of the files, and the index
            is used as far as it goes; the ratios of hybrid scan count what changes after it.
        progress : bool or callable, optional

        Raises
        ------
        InvalidArgument, IndexNotFound, InvalidState, CommitConflict, SchemaMismatch
        NoFragments, FragmentUnreadable, EngineError
            And the index is as it was.
        """
        self._act(lambda actions: actions.refresh(require_name(name), mode, progress))

    def delete_index(self, name: str) -> None:
        """Have an index used no more by this manager's queries; `restore_index` takes it back.

        Raises
        ------
        IndexNotFound, InvalidState, CommitConflict
        """
        self._act(lambda actions: actions.delete(require_name(name)))

    def restore_index(self, name: str) -> None:
        """Take back `delete_index`.

        Raises
        ------
        IndexNotFound, InvalidState, CommitConflict
        """
        self._act(lambda actions: actions.restore(require_name(name)))

    def vacuum_index(self, name: str) -> None:
        """Remove a deleted index for good, filters and all.

        Raises
        ------
        IndexNotFound, InvalidState, CommitConflict
        """
        self._act(lambda actions: actions.vacuum(require_name(name)))

    def optimize_index(self, name: str, mode: str = "quick") -> None:
        """Put the segments that refreshes added together; no data is read.

        Parameters
        ----------
        name : str
        mode : {"quick", "full"}
            "quick" merges the small ones; "full" makes one of all, in the layout its size asks
            for.

        Raises
        ------
        InvalidArgument, IndexNotFound, InvalidState, CommitConflict, CorruptIndex
        """
        self._act(lambda actions: actions.optimize(require_name(name), mode))

    def cancel(self, name: str) -> None:
        """Take an index out of the state that a crash left it in, to the stable one before.

        Of a creation or vacuum that never ended, the rest is removed.

        Raises
        ------
        IndexNotFound, InvalidState
            When there is nothing to cancel.
        CommitConflict
            When the action is still under way.
        """
        self._act(lambda actions: actions.cancel(require_name(name)))

    def _act(self, action: Callable[[Actions], None]) -> None:
        try:
            action(Actions(self._system(), self._spark))
        finally:
            self._records = None

    # Figures

    def indexes(self) -> DataFrame:
        """One row an index, with the columns of Hyperspace's IndexStatistics.

        Counts of source files are of those indexed; of appended and deleted ones, of the files
        as they are now. A file written anew counts as both.

        Raises
        ------
        CorruptIndex
            When the record of an index cannot be read.
        """
        statistics = Statistics()
        rows = [statistics.summary(each) for each in self._latest()]
        return self._spark.createDataFrame(rows, SUMMARY_DDL)

    def index(self, name: str) -> DataFrame:
        """The row of one index, with more columns and the log of its states.

        Raises
        ------
        IndexNotFound, CorruptIndex
        """
        log = self._system().log(require_name(name))
        record = log.latest()
        if record.state == State.DOESNOTEXIST:
            raise no_index(name)
        row = Statistics().extended(record, log.history())
        return self._spark.createDataFrame([row], EXTENDED_DDL)

    def _latest(self) -> list[Record]:
        found = [log.latest() for log in self._system().logs()]
        return [each for each in found if each.state != State.DOESNOTEXIST]

    def __repr__(self) -> str:
        found = ", ".join(f"{each.name} ({each.state})" for each in self._latest()) or "no index"
        return f"<zonebloom.IndexManager {self._system().path}: {found}>"


__all__ = ["BFIndexConfig", "IndexManager"]

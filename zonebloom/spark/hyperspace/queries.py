"""What a manager's indices do to queries: apply, explain, why_not, enable and disable."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zonebloom.errors import EngineError
from zonebloom.spark.hyperspace.config import APPLY_ENABLED, read_settings, require_name
from zonebloom.spark.hyperspace.log import Record, State, System
from zonebloom.spark.hyperspace.report import Explanation, WhyNot, explain, why_not
from zonebloom.spark.hyperspace.states import no_index
from zonebloom.spark.hyperspace.use import ManagedPruning

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Queries:
    """The part of `IndexManager` that plans queries; see there."""

    def __init__(self, spark: SparkSession):
        if not hasattr(spark, "conf") or not hasattr(spark, "createDataFrame"):
            raise EngineError(f"spark is a {type(spark).__name__}; give a SparkSession")
        self._spark = spark
        self._records: tuple[float, str, list[Record]] | None = None

    def apply(self, df: DataFrame) -> DataFrame:
        """Leave out the files of a query that its filters exclude, as the indices say.

        `zonebloom.spark.prune`, with the indices of this manager that are ACTIVE and as far as
        the conf allows them; the frame as it is when they are disabled.

        The same rows from fewer files.

        Warns
        -----
        IndexNotUsedWarning
            When more files changed than hybrid scan allows, or an index cannot be used.
        StaleIndexWarning
            When files are not as they were indexed, and are read for that.
        """
        pruning = self._pruning(df)
        if pruning is None:
            return df
        pruning.warn(stacklevel=2)
        return pruning.frame()

    def explain(
        self,
        df: DataFrame,
        verbose: bool = False,
        redirect: Callable[[str], Any] | None = None,
        *,
        redirectFunc: Callable[[str], Any] | None = None,  # noqa: N803
    ) -> None:
        """Show the plan of a query with and without indices, what differs highlighted.

        No Spark job runs. For an object to keep, see `explanation`.
        """
        made = self.explanation(df, verbose)
        show = redirect or redirectFunc
        if show is not None:
            show(str(made))
        elif not _shown_in_notebook(made):
            print(made)

    def explanation(self, df: DataFrame, verbose: bool = False) -> Explanation:
        """What `explain` shows, as an object."""
        return explain(df, self._pruning(df), verbose)

    def why_not(self, df: DataFrame, index_name: str = "", extended: bool = False) -> WhyNot:
        """Say why indices are not used for a query, with a typed reason for each.

        ``.rows`` and ``.reasons`` are for programs, `str` and HTML for people.
        """
        records = self._cached()
        if index_name:
            records = [each for each in records if each.name == require_name(index_name)]
            if not records:
                raise no_index(index_name)
        return why_not(records, self._pruning(df), extended)

    def _pruning(self, df: DataFrame) -> ManagedPruning | None:
        """What is left of a frame, None when indices are disabled."""
        settings = read_settings(self._spark)
        if not settings.apply_enabled:
            return None
        return ManagedPruning(df, self._cached(), settings)

    def enable(self) -> None:
        """Have indices used: sets ``zonebloom.apply.enabled`` in the session."""
        self._spark.conf.set(APPLY_ENABLED, "true")

    def disable(self) -> None:
        """Have no index used by any manager of the session."""
        self._spark.conf.set(APPLY_ENABLED, "false")

    def is_enabled(self) -> bool:
        """Whether indices are used."""
        return read_settings(self._spark).apply_enabled

    def _system(self) -> System:
        return System(read_settings(self._spark).system_path)

    def _in_use(self) -> list[Record]:
        """Records as queries take them: while an action is under way, as they were before."""
        found = []
        for log in self._system().logs():
            stable = log.latest_stable()
            found.append(stable if stable.state != State.DOESNOTEXIST else log.latest())
        return [each for each in found if each.state != State.DOESNOTEXIST]

    def _cached(self) -> list[Record]:
        """Records as they were at most so long ago as the conf allows."""
        settings = read_settings(self._spark)
        now = time.monotonic()
        if self._records is None or (
            now - self._records[0] >= settings.cache_seconds
            or self._records[1] != settings.system_path
        ):
            self._records = (now, settings.system_path, self._in_use())
        return self._records[2]


def _shown_in_notebook(made: Explanation) -> bool:
    """Show it as HTML where a notebook runs this; whether one does."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return False
    from IPython.display import display

    display(made)
    return True

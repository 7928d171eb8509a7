"""scan() and plan(): what users of Spark hold in their hands."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from zonebloom import arguments
from zonebloom.scan.explain import ScanPlan
from zonebloom.spark.data_source import NAME, register
from zonebloom.spark.failures import explained
from zonebloom.spark.load import Load, Options
from zonebloom.spark.rebase import corrects_others
from zonebloom.spark.session import parallelism, quoted, time_zone
from zonebloom.storage.paths import absolute_path
from zonebloom.text import Lines, bytes_text

Path = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def require_sql(filter: object) -> None:
    """Refuse a filter that is no text."""
    if not isinstance(filter, str):
        raise arguments.refusal(
            filter,
            "filter",
            'give Spark SQL text, such as "id = 42". A Column has no text that reads back as '
            "itself: apply it to the result with where()",
        )


@dataclass(frozen=True)
class Indexed:
    """Files with an index: a side of a join of which only some zones need be read.

    Parameters
    ----------
    path : path, URI, glob, or list of them
    columns : list of str, optional
        All by default; with the join's keys.
    filter : str, optional
        A condition in Spark SQL.
    index_dir : str, optional
        The parameters are those of `zonebloom.spark.scan`.
    """

    path: Path
    columns: Sequence[str] | None = None
    filter: str | None = None
    index_dir: str | None = None

    def options(self) -> dict[str, str]:
        """The options of the load, but for those of the session."""
        filter, columns = self.filter, self.columns
        if filter is not None:
            require_sql(filter)
        options = {
            "prune": filter,
            "columns": None if columns is None else json.dumps(arguments.names(columns, "columns")),
            "index_dir": self.index_dir,
        }
        if isinstance(self.path, str | os.PathLike):
            options["path"] = absolute_path(os.fspath(self.path))
        else:
            options["paths"] = json.dumps([absolute_path(os.fspath(path)) for path in self.path])
        return {name: text for name, text in options.items() if text is not None}

    def load(self, session: dict[str, str] | None = None) -> Load:
        """The load, with options of a session."""
        return Load(Options({**self.options(), **(session or {})}))

    def frame(self, spark: SparkSession, keys: str | None = None) -> DataFrame:
        """The rows, or those that may have one of some keys; raises what `scan` raises."""
        register(spark)
        options = {**self.options(), **_of_session(spark)}
        if keys is not None:
            options["keys"] = keys
        with explained():
            frame = spark.read.format(NAME).options(**options).load()
            if self.filter is not None:
                frame = frame.where(self.filter)
            if self.columns is not None:
                frame = frame.select(*map(quoted, self.columns))
            # Connect would only find out what is wrong when the frame is used, and say it in other
            # words; classic sessions have asked for the schema by now.
            frame.schema  # noqa: B018
            return frame


def scan(
    spark: SparkSession,
    path: Path,
    filter: str | None = None,
    columns: Sequence[str] | None = None,
    *,
    index_dir: str | None = None,
) -> DataFrame:
    """Read Parquet files by their index.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.
    path : path, URI, glob, or list of them
        As executors and the driver both see it.
    filter : str, optional
        A condition in Spark SQL. Zones it cannot be true in are not read, and Spark applies it
        to the rows of all others, as ``where`` does: with every function, cast, collation and
        time zone Spark knows.
    columns : list of str, optional
        All by default. Spark does not tell a Python data source which columns a query uses, so
        naming them here is what keeps the others unread.
    index_dir : str, optional
        Folder of the index, when it is not beside the data.

    Returns
    -------
    pyspark.sql.DataFrame
        With the rows and types of ``spark.read.parquet(path).where(filter)``.

    Raises
    ------
    EngineError
        When Spark's Python processes cannot run this package.
    NoFragments, FragmentUnreadable, SourceError, ColumnNotFound, UnsupportedType, InvalidArgument

    Notes
    -----
    The frame fails, and says so, over rows with days before 1582 or times before 1900 of files in
    which Spark would correct them, as those of Spark 2.
    """
    return Indexed(path, columns, filter, index_dir).frame(spark)


@dataclass(frozen=True, repr=False)
class SparkPlan(Lines):
    """What a scan is going to read; `str` and HTML show it.

    Attributes
    ----------
    scan : ScanPlan
    num_tasks : int
    num_bytes : int
        Of data files, about: shares of files are counted by rows.
    all_bytes : int
        Of all data files of the path.
    """

    scan: ScanPlan
    num_tasks: int
    num_bytes: int
    all_bytes: int

    def __str__(self) -> str:
        tasks = "1 task" if self.num_tasks == 1 else f"{self.num_tasks:,} tasks"
        return (
            f"{self.scan}\n  Spark: {tasks}, about {bytes_text(self.num_bytes)} of "
            f"{bytes_text(self.all_bytes)} read, all columns counted"
        )


def plan(
    spark: SparkSession,
    path: Path,
    filter: str | None = None,
    columns: Sequence[str] | None = None,
    *,
    index_dir: str | None = None,
) -> SparkPlan:
    """Say what `scan` would read now, and of which parts of the filter no index says anything.

    The parameters are those of `scan`; no Spark job runs.

    Raises
    ------
    NoFragments, FragmentUnreadable, SourceError
    ColumnNotFound, UnsupportedType
    """
    load = Indexed(path, columns, filter, index_dir).load(_of_session(spark))
    planned = load.plan(described=True)
    tasks = load.tasks(planned)
    identities = load.dataset.opened.source.identities()
    return SparkPlan(
        planned,
        len(tasks),
        sum(piece.num_bytes for pieces in tasks for piece in pieces),
        sum(identity.size for identity in identities if identity is not None),
    )


def _of_session(spark: SparkSession) -> dict[str, str]:
    options = {
        "parallelism": str(parallelism(spark)),
        "old_calendar": str(corrects_others(spark)),
        "timezone": time_zone(spark),
    }
    return {name: text for name, text in options.items() if text is not None}

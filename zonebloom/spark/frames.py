"""scan() and plan(): what users of Spark hold in their hands."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zonebloom.errors import InvalidArgument
from zonebloom.scan.explain import ScanPlan
from zonebloom.spark.failures import explained
from zonebloom.spark.load import Load
from zonebloom.spark.options import Options
from zonebloom.spark.rebase import corrects_others
from zonebloom.spark.session import parallelism, quoted, time_zone
from zonebloom.spark.source import NAME, register
from zonebloom.storage.paths import absolute_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Path = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


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
    return load(spark, scan_options(path, filter, columns, index_dir), filter, columns)


def load(
    spark: SparkSession,
    options: dict[str, str],
    filter: str | None,
    columns: Sequence[str] | None,
) -> DataFrame:
    """Load with the options of a scan and those of the session; raises what `scan` raises."""
    register(spark)
    options = {**options, **_of_session(spark)}
    if corrects_others(spark):
        options["old_calendar"] = "true"
    with explained():
        frame = spark.read.format(NAME).options(**options).load()
        if filter is not None:
            frame = frame.where(filter)
        if columns is not None:
            frame = frame.select(*map(quoted, columns))
        # Connect would only find out what is wrong when the frame is used, and say it in other
        # words; classic sessions have asked for the schema by now.
        frame.schema  # noqa: B018
        return frame


@dataclass(frozen=True)
class SparkPlan:
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
        from zonebloom.text import bytes_text

        tasks = "1 task" if self.num_tasks == 1 else f"{self.num_tasks:,} tasks"
        return (
            f"{self.scan}\n  Spark: {tasks}, about {bytes_text(self.num_bytes)} of "
            f"{bytes_text(self.all_bytes)} read, all columns counted"
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from zonebloom.text import lines_html

        return lines_html(str(self))


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
    options = {**scan_options(path, filter, columns, index_dir), **_of_session(spark)}
    load = Load(Options.read(options))
    made = load.plan(described=True)
    tasks = load.tasks(made)
    found = [each for each in load.dataset.opened.source.identities() if each is not None]
    return SparkPlan(
        made,
        len(tasks),
        sum(piece.num_bytes for pieces in tasks for piece in pieces),
        sum(each.size for each in found),
    )


def scan_options(
    path: Path, filter: str | None, columns: Sequence[str] | None, index_dir: str | None
) -> dict[str, str]:
    """The options of `scan` that do not depend on the session."""
    if filter is not None and not isinstance(filter, str):
        raise InvalidArgument(
            f'filter is a {type(filter).__name__}; give Spark SQL text, such as "id = 42". A '
            "Column has no text that reads back as itself: apply it to the result with where()"
        )
    if isinstance(columns, str):
        raise InvalidArgument(f"columns is {columns!r}; give a list: [{columns!r}]")
    options: dict[str, str] = {}
    if isinstance(path, str | os.PathLike):
        options["path"] = absolute_path(os.fspath(path))
    else:
        options["paths"] = json.dumps([absolute_path(os.fspath(each)) for each in path])
    if filter is not None:
        options["prune"] = filter
    if columns is not None:
        options["columns"] = json.dumps(list(columns))
    if index_dir is not None:
        options["index_dir"] = index_dir
    return options


def _of_session(spark: SparkSession) -> dict[str, str]:
    zone = time_zone(spark)
    options = {"parallelism": str(parallelism(spark))}
    return options if zone is None else {**options, "timezone": zone}

"""Read Parquet files by their index with the data source "zonebloom": scan(), plan(), Indexed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from zonebloom.base import arguments
from zonebloom.scan.explain import ScanPlan
from zonebloom.spark.data_source import NAME, register_for
from zonebloom.spark.failures import explain_spark_errors
from zonebloom.spark.load import Load, Options
from zonebloom.spark.rebase import rebases_unknown_writers
from zonebloom.spark.session_settings import parallelism, quote_name
from zonebloom.spark.versions import is_classic
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.paths import absolute_path

FilePaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Indexed:
    """Indexed files as a side of a join, from which only zones with matching keys are read.

    Parameters
    ----------
    path : path, URI, glob, or list of them
    columns : list of str, optional
        All by default. They must include the join's keys.
    filter : str, optional
        A condition in Spark SQL.
    index_dir : str, optional
    encryption : Encryption, optional
        The parameters are those of `zonebloom.spark.scan`.

    Examples
    --------
    >>> few = spark.createDataFrame([(42, "gold")], "id bigint, tier string")
    >>> orders = zs.Indexed("orders", ["id", "customer"], "id < 100")
    >>> zs.filter_join(few, orders, "id").collect()
    [Row(id=42, tier='gold', customer='C042')]
    """

    path: FilePaths
    columns: Sequence[str] | None = None
    filter: str | None = None
    index_dir: str | None = None
    encryption: Encryption | None = None

    def options(self, spark: SparkSession) -> dict[str, str]:
        """Return the options of the load in a session, without encryption and join keys."""
        filter, columns = self.filter, self.columns
        if not isinstance(filter, str | None):
            raise arguments.invalid_value(
                filter,
                "filter",
                'give Spark SQL text, such as "id = 42". A Column cannot be converted to SQL text: '
                "apply it to the result with where()",
            )
        options = {
            "prune": filter,
            "columns": None
            if columns is None
            else json.dumps(arguments.require_name_list(columns, "columns")),
            # Another process, which may have another working directory, opens the paths.
            "index_dir": None
            if self.index_dir is None
            else absolute_path(arguments.require_path(self.index_dir, "index_dir")),
            "parallelism": str(parallelism(spark)),
            "old_calendar": str(rebases_unknown_writers(spark)),
            # Over Connect the time zone may change until a query runs, so it is read then.
            "timezone": spark.conf.get("spark.sql.session.timeZone") if is_classic(spark) else None,
        }
        is_one = isinstance(self.path, str | os.PathLike)
        options |= {"path": self._paths()[0]} if is_one else {"paths": json.dumps(self._paths())}
        return {name: text for name, text in options.items() if text is not None}

    def _paths(self) -> list[str]:
        paths = [self.path] if isinstance(self.path, str | os.PathLike) else self.path
        return [absolute_path(os.fspath(path)) for path in paths]

    def load(self, spark: SparkSession) -> Load:
        return Load(Options(self.options(spark)), spark, self.encryption)

    def frame(self, spark: SparkSession, keys: str | None = None) -> DataFrame:
        """Return the rows, or only those that may match encoded keys. Raises what `scan` raises."""
        options = self.options(spark)
        number = register_for(spark, self._paths(), self.encryption)
        if number is not None:
            options["encryption"] = number
        if keys is not None:
            options["keys"] = keys
        with explain_spark_errors():
            frame = spark.read.format(NAME).options(**options).load()
            if self.filter is not None:
                frame = frame.where(self.filter)
            if self.columns is not None:
                frame = frame.select(*map(quote_name, self.columns))
            # Connect would raise errors late, when the frame is used, and with other messages. This
            # asks for the schema now, as classic sessions do anyway.
            frame.schema  # noqa: B018
            return frame


def scan(
    spark: SparkSession,
    path: FilePaths,
    filter: str | None = None,
    columns: Sequence[str] | None = None,
    *,
    index_dir: str | None = None,
    encryption: Encryption | None = None,
) -> DataFrame:
    """Read only the zones of Parquet files that may match a filter, by their index.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.
    path : path, URI, glob, or list of them
        The driver and the executors must see the files at the same path.
    filter : str, optional
        A condition in Spark SQL. Zones in which it cannot be true are not read. Spark applies it
        to the rows of the others, as ``where`` does, with all of Spark's functions, casts,
        collations and time zones.
    columns : list of str, optional
        All by default. Spark does not tell a Python data source which columns a query uses, so all
        columns named here are read.
    index_dir : str, optional
        Folder of the index, if it is not beside the data.
    encryption : Encryption, optional
        Keys of an encrypted index, as `zonebloom.dataset` takes them. Spark's driver gets them, but
        they appear in no option and no plan. Executors read only data and get no keys.

    Returns
    -------
    pyspark.sql.DataFrame
        The rows and types of ``spark.read.parquet(path).where(filter)``. Partition columns that
        Spark reads as timestamps, decimals, or doubles such as 1e-5 are refused.

    Raises
    ------
    EngineError
        If Spark's Python processes cannot run this package, or this is Spark 3.
    NoFragments, FragmentUnreadable, SourceError, ColumnNotFound, UnsupportedType, InvalidArgument

    Notes
    -----
    The frame raises an error for date and time columns of files in which Spark would correct dates
    before 1582 and times before 1900, such as files of Spark 2. Use `prune` for these files: Spark
    itself reads them then.

    Examples
    --------
    >>> zs.scan(spark, "orders", "id IN (42, 43)", ["customer"]).collect()
    [Row(customer='C042'), Row(customer='C043')]
    """
    return Indexed(path, columns, filter, index_dir, encryption).frame(spark)


def plan(
    spark: SparkSession,
    path: FilePaths,
    filter: str | None = None,
    columns: Sequence[str] | None = None,
    *,
    index_dir: str | None = None,
    encryption: Encryption | None = None,
) -> ScanPlan:
    """Return what `scan` would read now, and which parts of the filter no index can answer.

    The parameters are those of `scan`; no Spark job runs.

    Raises
    ------
    NoFragments, FragmentUnreadable, SourceError
    ColumnNotFound, UnsupportedType

    Examples
    --------
    >>> print(zs.plan(spark, "orders", "id = 42"))
    ZoneBloomScan: id = 42
      columns: id, customer, day
      index id_idx on id: 1 of 30 zones kept, 3 of 3 fragments covered, 10.0 kB
      fragments: 1 read in part, 0 read whole, 2 skipped
        1.parquet: rows 300-400
    """
    return Indexed(path, columns, filter, index_dir, encryption).load(spark).plan(described=True)

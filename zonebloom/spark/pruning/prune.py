"""prune() and enable(): queries do without the files that their filters exclude.

Spark's own reader, and whatever stands above it, stay as they are. Only classic sessions show
their plans; over Connect there is `zonebloom.spark.pruning.read_pruned.read_pruned`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zonebloom.spark.pruning.file_index import plan_of, set_rule, with_index
from zonebloom.spark.pruning.lookup import Lookup
from zonebloom.spark.pruning.pruned import PrunePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def prune(df: DataFrame, *, index_dir: str | None = None) -> DataFrame:
    """Have a frame, and what is made of it, leave out the files that its filters exclude.

    For each scan of Parquet files (``spark.read.parquet``, a table, a view of one) the index of
    the files, beside them, in a folder above, or in ``index_dir``, is asked by the filters that
    Spark brings down to that scan, when the query is planned. Files in which no row can match are
    not read; Spark's own reader reads the others, under whatever projection, join, aggregate,
    window, union or limit stands above. Files the index does not know as they are then are read.

    Left as they are: relations of other formats, streams, Python and other V2 data sources, and
    what a cached frame answers.

    Parameters
    ----------
    df : DataFrame
        Of a classic session; its filters may come later.
    index_dir : str, optional
        Folder of the index, when it is not beside the data.

    Returns
    -------
    pyspark.sql.DataFrame
        The same rows, or ``df`` itself where it reads no files that could be left out.

    Raises
    ------
    InvalidArgument
        When ``df`` is no DataFrame.

    Warns
    -----
    IndexNotUsedWarning
        Where the session gives no access to plans; when a query is planned, of an index that is
        there and cannot be used.
    StaleIndexWarning
        When a query is planned, of files that are not as they were indexed.

    Examples
    --------
    >>> lake = zonebloom.spark.prune(spark.read.parquet("lake"))    # doctest: +SKIP
    >>> lake.where("id = 42").show()                                # doctest: +SKIP
    """
    lookup = Lookup(index_dir)
    return with_index(df, lambda: lookup)


def prune_plan(df: DataFrame, *, index_dir: str | None = None) -> PrunePlan:
    """Say which files `prune` leaves out of a frame, and why it leaves out no more.

    Parameters and errors are those of `prune`; no Spark job runs, and what `prune` warns of is
    among the notes. `str` and HTML show it; ``.relations`` and ``.reasons`` are for programs.
    """
    return plan_of(df, Lookup(index_dir))


def enable(spark: SparkSession, *, index_dir: str | None = None) -> None:
    """Have each query of a session leave out the files that its filters exclude.

    As `prune` for every frame, view and SQL text of the session, until `disable`.

    Parameters
    ----------
    spark : SparkSession
        Classic; other sessions of the application are switched by themselves.
    index_dir : str, optional
        Folder of the indices, when they are not beside the data.

    Warns
    -----
    IndexNotUsedWarning
        Where the session gives no access to plans: it reads everything, as before.
    """
    lookup = Lookup(index_dir)
    set_rule(spark, lambda: lookup)


def disable(spark: SparkSession) -> None:
    """Take back `enable`."""
    set_rule(spark, None)

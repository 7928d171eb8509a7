"""tag_location() and files_with_keys(): find where in a dataset the rows with given keys are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from zonebloom.base import arguments
from zonebloom.errors import InvalidArgument
from zonebloom.facade.dataset import Dataset, require_no_filter
from zonebloom.spark.load import SparkFiles
from zonebloom.spark.managed_indices import deleted_indices, without_deleted_indices
from zonebloom.spark.opening import open_dataset
from zonebloom.spark.rebase import rebases_unknown_writers
from zonebloom.spark.session_settings import is_case_sensitive, quote_name
from zonebloom.spark.tagging.keys import (
    FRAGMENT_ID,
    PATH,
    PREFIX,
    KeyFrameColumns,
    match_key_columns,
)
from zonebloom.spark.tagging.locate import LocatedKeys, locate_frame_keys
from zonebloom.storage.paths import plain_path
from zonebloom.values.columns import matching_names

ColumnNames = str | Sequence[str]
TAGS = ("fragment_id", "path", "row_offset")


def tag_location(
    keys: DataFrame,
    ds: Dataset | str | os.PathLike[str],
    on: ColumnNames,
    *,
    partition_by: ColumnNames = (),
) -> DataFrame:
    """Add to each key the files and row numbers where it occurs, or nulls if it is new.

    Parameters
    ----------
    keys : pyspark.sql.DataFrame
        A frame of a classic session or of Connect. It may have other columns too.
    ds : Dataset, path or URI
        Its files must be at the same paths for the driver and for the executors. Give a Dataset
        for an index in another folder, or an encrypted one. Executors need no keys.
    on : str or list of str
        Key columns, with the same names on both sides. All of them must be equal in a match. Those
        with an index choose the zones to read.
    partition_by : str or list of str
        Partition columns of the files (``day=2024-05-01``) that the keys have too. A key is then
        searched only in the files of its own partition. By default it is searched in all files.

    Returns
    -------
    pyspark.sql.DataFrame
        All columns of the keys, then ``fragment_id`` bigint, ``path`` string (as in ``ds.files``)
        and ``row_offset`` bigint (the row number in its file, as Spark's
        ``_metadata.row_index``). Each row of the keys appears once for every row of the dataset
        that equals it. If there is none (an insert), it appears once with nulls. Duplicate keys are
        kept. Keys are compared like Spark's ``=``: NaN equals NaN, -0.0 equals 0.0, and null equals
        nothing, so a key with a null appears once with nulls.

        This call locates the rows; the returned frame contains the result.

    Raises
    ------
    InvalidArgument
        If a column of the keys has the name of an added column, or if Spark would round keys or
        stored values to compare them.
    ColumnNotFound, UnsupportedType
    SchemaMismatch
        If a file names a key column in another case (``ID`` for ``id``) and Spark ignores case.
        If a key column has dates or times, and a file to read may hold them in the calendar of
        Spark 2, which Spark would correct.
    FragmentChanged
        If a file is rewritten during the call; call again.
    NoFragments, FragmentUnreadable, SourceError

    Notes
    -----
    The lookup has the levels of Hudi's RFC-37 (metadata-based Bloom index). Fragments that are new
    or changed since they were indexed are read too; their ``fragment_id`` is valid only for this
    catalog version.

    A job that tags a stream can be stopped anywhere and restarted from its checkpoint if each batch
    has its own folder. Otherwise the second attempt would find keys that the first one wrote::

        def upsert(batch, number):
            own = f"orders/batch={number}"
            shutil.rmtree(own, ignore_errors=True)  # left by an attempt that was stopped
            tagged = zs.tag_location(batch, "orders", on="id")  # fragment_id is null: an insert
            tagged.write.mode("overwrite").parquet(f"changes/batch={number}")
            batch.write.mode("overwrite").parquet(own)
            zonebloom.dataset("orders").optimize.optimize_indices()

        changed = stream.writeStream.foreachBatch(upsert).option("checkpointLocation", "checkpoint")

    Examples
    --------
    >>> keys = spark.createDataFrame([(42,), (-1,)], "id bigint")
    >>> zs.tag_location(keys, "orders", "id").drop("path").orderBy("id").collect()
    [Row(id=-1, fragment_id=None, row_offset=None), Row(id=42, fragment_id=1, row_offset=338)]
    """
    for name in arguments.require_instance(keys, DataFrame, "keys").columns:
        if matching_names(TAGS, name):
            raise InvalidArgument(
                f"keys have a column {name!r}, which is the name of an added column; rename it: "
                f"keys.withColumnRenamed({name!r}, ...). Rename a key in the dataset's files and "
                "in the keys, or call files_with_keys, which accepts its name"
            )
    columns, computed_keys, candidates = _locate(keys, ds, on, partition_by)
    tagged_keys = computed_keys.join(candidates.rows, columns.join_condition(), "left")
    return candidates.with_paths(tagged_keys).select(
        *(sf.col(quote_name(name)) for name in keys.columns),
        *(sf.col(PREFIX + name).alias(name) for name in TAGS),
    )


def files_with_keys(
    keys: DataFrame,
    ds: Dataset | str | os.PathLike[str],
    on: ColumnNames,
    *,
    partition_by: ColumnNames = (),
) -> DataFrame:
    """Return the files that hold rows with one of the keys, for example for an erasure request.

    Parameters
    ----------
    keys, ds, on, partition_by
        As `tag_location` takes them.

    Returns
    -------
    pyspark.sql.DataFrame
        One row for each file that holds a key: ``path`` string, ``fragment_id`` bigint,
        ``num_keys`` bigint (distinct keys), ``num_rows`` bigint (rows with these keys).

    Raises
    ------
    As `tag_location`, but the keys may have columns of any name.

    Examples
    --------
    >>> keys = spark.createDataFrame([(42,), (-1,)], "id bigint")
    >>> zs.files_with_keys(keys, "orders", "id").drop("path").collect()
    [Row(fragment_id=1, num_keys=1, num_rows=1)]
    """
    columns, computed_keys, candidates = _locate(keys, ds, on, partition_by)
    distinct_keys = computed_keys.select(
        *(sf.col(quote_name(name)) for name in columns.names)
    ).distinct()
    ids = [sf.col(field.name) for field in columns.fields]
    counts = (
        distinct_keys.join(candidates.rows, columns.join_condition(), "inner")
        .groupBy(FRAGMENT_ID)
        .agg(sf.count_distinct(*ids).alias("num_keys"), sf.count(sf.lit(1)).alias("num_rows"))
    )
    names = sf.col(PATH).alias("path"), sf.col(FRAGMENT_ID).alias("fragment_id")
    return candidates.with_paths(counts).select(*names, "num_keys", "num_rows")


def _locate(
    keys: DataFrame,
    ds: Any,
    on: ColumnNames,
    partition_by: ColumnNames,
) -> tuple[KeyFrameColumns, DataFrame, LocatedKeys]:
    spark = arguments.require_instance(keys, DataFrame, "keys").sparkSession
    names = arguments.require_names(on, "on")
    partition_names = arguments.require_names(partition_by, "partition_by")
    if not names:
        raise InvalidArgument("on is empty; name at least one key column")
    if not isinstance(ds, Dataset):
        path = plain_path(arguments.require_path(ds, "ds"))
        ds = open_dataset(path, spark, columns=names)
    require_no_filter(ds, "zonebloom.spark")
    ds = without_deleted_indices(ds, deleted_indices(spark))
    files = SparkFiles.of(ds, rebases_unknown_writers(spark), not is_case_sensitive(spark))
    partition_columns = ds.opened.source.partition_columns()
    for name in partition_names:
        if name not in partition_columns:
            raise InvalidArgument(
                f"partition_by names {name!r}, which is no partition column "
                f"({', '.join(sorted(partition_columns)) or 'there is none'}); put it into on"
            )
    columns = match_key_columns(keys, files, list(dict.fromkeys([*names, *partition_names])))
    if any(name.lower().startswith(PREFIX) for name in keys.columns):
        raise InvalidArgument(f"columns of keys must not begin with {PREFIX}; rename them")
    # Some frames return other rows when they are computed again, so compute this one once.
    computed_keys = keys.localCheckpoint(eager=False)
    return columns, computed_keys, locate_frame_keys(computed_keys, columns, files)

"""tag_location() and files_with_keys(): where in a dataset the rows of given keys lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from zonebloom.base import arguments
from zonebloom.dataset import Dataset
from zonebloom.errors import InvalidArgument
from zonebloom.spark.failures import explain_spark_errors
from zonebloom.spark.load import SparkFiles
from zonebloom.spark.rebase import rebases_unknown_writers
from zonebloom.spark.session import is_case_sensitive, open_dataset, quote_name
from zonebloom.spark.tagging.keys import (
    FILE_NUMBER,
    FRAGMENT_ID,
    PATH,
    PREFIX,
    KeyFrameColumns,
    match_key_columns,
)
from zonebloom.spark.tagging.locate import LocatedKeys, locate_frame_keys
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.paths import plain_path
from zonebloom.values.columns import matching_names

ColumnNames = str | Sequence[str]
TAGS = ("fragment_id", "path", "row_offset")
# Up to so many rows found are sent to every executor; joining more shuffles both sides.
_BROADCAST_ROWS = 1 << 20


def tag_location(
    keys: DataFrame,
    ds: Dataset | str | os.PathLike[str],
    on: ColumnNames,
    *,
    partition_by: ColumnNames = (),
    encryption: Encryption | None = None,
) -> DataFrame:
    """Tell for each key where its rows lie, and which keys are new.

    Parameters
    ----------
    keys : pyspark.sql.DataFrame
        Of a classic session or of Connect, with any other columns too.
    ds : Dataset, path or URI
        Its files must be at the same paths for the driver and for the executors.
    on : str or list of str
        Key columns, named alike on both sides. Of several, all must be equal; those with an index
        tell zones apart, all are compared.
    partition_by : str or list of str
        Columns that the paths of the files give (``day=2024-05-01``) and the keys carry too: a key
        is looked for in the files of its own partition alone. By default in all files.
    encryption : Encryption, optional
        Keys of the index of a path, as `zonebloom.dataset` takes them; executors need none.

    Returns
    -------
    pyspark.sql.DataFrame
        All columns of the keys, then ``fragment_id`` bigint, ``path`` string (as in ``ds.files``)
        and ``row_offset`` bigint (the row's number in its file, as Spark's
        ``_metadata.row_index``). Each row of the keys comes once for every row of the dataset
        that equals it, and once with nulls when there is none: an insert. Keys that are there
        twice come back twice. Equal is what Spark's ``=`` says: NaN is NaN, -0.0 is 0.0, and a
        null in a key column equals nothing, so that row comes once, with nulls.

        The rows are located by this call; the frame holds where they were found.

    Raises
    ------
    InvalidArgument
        When a column of the keys has the name of one that is added, or Spark would round keys or
        column to compare them.
    ColumnNotFound, UnsupportedType
    SchemaMismatch
        When a file names a key column in another case (``ID`` for ``id``) and Spark ignores case.
        When a key column has dates or times, and a file to look into may hold them by the calendar
        of Spark 2, which Spark corrects.
    FragmentChanged
        When a file is written anew meanwhile; call again.
    NoFragments, FragmentUnreadable, SourceError

    Notes
    -----
    The levels are those of Hudi's RFC-37 (metadata-based Bloom index). Fragments that are new or
    changed since they were indexed are read, as always; their ``fragment_id`` is of this
    catalog version alone.

    A job that tags a stream may be stopped anywhere and started again from its checkpoint where
    each batch has a folder of its own, so that no key is found in what a first attempt wrote::

        def upsert(batch, number):
            own = f"orders/batch={number}"
            shutil.rmtree(own, ignore_errors=True)  # of an attempt that was stopped
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
    taken = [name for name in keys.columns if matching_names(TAGS, name)]
    if taken and taken[0] in ([on] if isinstance(on, str) else on):
        raise InvalidArgument(
            f"key column {taken[0]!r} has the name of one that is added, so rows cannot be tagged "
            "by it under this name: rename it in the dataset's files and in the keys. If the files "
            "must stay as they are, there is no way here; files_with_keys takes the name"
        )
    if taken:
        raise InvalidArgument(
            f"keys have a column {taken[0]!r}, and one of that name is added; rename it first: "
            f"keys.withColumnRenamed({taken[0]!r}, ...)"
        )
    columns, evaluated, located = _located(keys, ds, on, partition_by, encryption)
    tagged = evaluated.join(_rows(located), columns.join_condition(), "left")
    return located.with_paths(tagged).select(
        *(sf.col(quote_name(name)) for name in keys.columns),
        *(sf.col(PREFIX + name).alias(name) for name in TAGS),
    )


def files_with_keys(
    keys: DataFrame,
    ds: Dataset | str | os.PathLike[str],
    on: ColumnNames,
    *,
    partition_by: ColumnNames = (),
    encryption: Encryption | None = None,
) -> DataFrame:
    """Tell which files hold rows of some keys, as an erasure request must know.

    Parameters
    ----------
    keys, ds, on, partition_by, encryption
        As `tag_location` takes them.

    Returns
    -------
    pyspark.sql.DataFrame
        One row a file that holds a key: ``path`` string, ``fragment_id`` bigint, ``num_keys``
        bigint (distinct keys), ``num_rows`` bigint (rows of those keys).

    Raises
    ------
    As `tag_location`, where names of columns are free.

    Examples
    --------
    >>> keys = spark.createDataFrame([(42,), (-1,)], "id bigint")
    >>> zs.files_with_keys(keys, "orders", "id").drop("path").collect()
    [Row(fragment_id=1, num_keys=1, num_rows=1)]
    """
    columns, evaluated, located = _located(keys, ds, on, partition_by, encryption)
    distinct = evaluated.select(*(sf.col(quote_name(name)) for name in columns.names)).distinct()
    ids = [sf.col(field.name) for field in columns.fields]
    counted = (
        distinct.join(_rows(located), columns.join_condition(), "inner")
        .groupBy(FILE_NUMBER)
        .agg(sf.count_distinct(*ids).alias("num_keys"), sf.count(sf.lit(1)).alias("num_rows"))
    )
    names = sf.col(PATH).alias("path"), sf.col(FRAGMENT_ID).alias("fragment_id")
    return located.with_paths(counted).select(*names, "num_keys", "num_rows")


def _located(
    keys: DataFrame,
    ds: Any,
    on: ColumnNames,
    partition_by: ColumnNames,
    encryption: Encryption | None,
) -> tuple[KeyFrameColumns, DataFrame, LocatedKeys]:
    if not isinstance(ds, Dataset):
        path = plain_path(arguments.require_path(ds, "ds"))
        ds = open_dataset(path, keys.sparkSession, None, encryption)
    elif encryption is not None:
        raise InvalidArgument("encryption is of a path; a Dataset is opened with its own")
    spark = keys.sparkSession
    files = SparkFiles.of(ds, rebases_unknown_writers(spark), not is_case_sensitive(spark))
    names = [on] if isinstance(on, str) else list(on)
    scopes = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    if not names:
        raise InvalidArgument("on is empty; name at least one key column")
    of_paths = ds.opened.source.partition_columns()
    for name in scopes:
        if name not in of_paths:
            raise InvalidArgument(
                f"partition_by names {name!r}, which the paths do not give "
                f"({', '.join(sorted(of_paths)) or 'they give no column'}); put it into on"
            )
    columns = match_key_columns(keys, files, list(dict.fromkeys([*names, *scopes])))
    if any(name.lower().startswith(PREFIX) for name in keys.columns):
        raise InvalidArgument(f"columns of keys must not be named {PREFIX}...")
    # Evaluated again, some frames give other rows.
    evaluated = keys.localCheckpoint(eager=False)
    with explain_spark_errors():
        return columns, evaluated, locate_frame_keys(evaluated, columns, files)


def _rows(located: LocatedKeys) -> DataFrame:
    return located.frame.hint("broadcast" if located.num_rows <= _BROADCAST_ROWS else "merge")

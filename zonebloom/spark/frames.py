"""Read the zones of Parquet files that may match a filter: scan()."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zonebloom.base import arguments
from zonebloom.base.notices import collected_warnings
from zonebloom.errors import InvalidArgument, ZoneBloomError
from zonebloom.facade.dataset import Dataset, require_no_filter
from zonebloom.spark.data_source import REQUEST, register_source_for
from zonebloom.spark.load import ScanRequest, digest_of_files
from zonebloom.spark.managed_indices import deleted_indices
from zonebloom.spark.opening import open_dataset
from zonebloom.spark.rebase import rebases_unknown_writers
from zonebloom.spark.session_settings import parallelism, quote_name
from zonebloom.spark.versions import active_session, is_classic, spark_context
from zonebloom.storage.paths import absolute_path, is_uri, plain_path

FilePaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def scan(
    spark: SparkSession,
    path: FilePaths | Dataset,
    filter: str | None = None,
    columns: Sequence[str] | None = None,
    *,
    index_dir: str | None = None,
) -> DataFrame:
    """Read only the zones of Parquet files that may match a filter, by their index.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.
    path : path, URI, glob, list of them, or Dataset
        The driver and the executors must see the files at the same path. A path stands for the
        files that it has when the frame first runs. A Dataset stands for the files with which it
        was opened, with its index folder and its encryption: if files were added or deleted before
        the frame first runs, the frame raises an error. Spark's driver gets the keys, but they
        appear in no option and no plan. Executors read only data and get no keys.
    filter : str, optional
        A condition in Spark SQL. Zones in which it cannot be true are not read. Spark applies it
        to the rows of the others, as ``where`` does, with all of Spark's functions, casts,
        collations and time zones.
    columns : list of str, optional
        All by default. Spark does not tell a Python data source which columns a query uses, so all
        columns named here are read.
    index_dir : str, optional
        Folder of the index, if it is not beside the data.

    Returns
    -------
    pyspark.sql.DataFrame
        The rows and types of ``spark.read.parquet(path).where(filter).select(columns)``. It raises
        an error for a partition column that Spark reads as timestamps, decimals, or doubles such
        as 1e-5. `explain` shows the zones that are read.

    Raises
    ------
    EngineError
        If ``spark`` is no session, or one of Spark 3, which has no Python data sources.
    InvalidArgument
    pyspark.errors.PySparkException
        Spark opens the files in a process of its own. Errors there, such as a missing file or
        column, are raised as Spark's exceptions, whose text names the error of zonebloom.

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
    spark_context(spark)
    if not isinstance(filter, str | None):
        advice = (
            'give Spark SQL text, such as "id = 42". A Column cannot be converted to SQL text: '
            "apply it to the result with where()"
        )
        raise arguments.invalid_value(filter, "filter", advice)
    encryption = digest = None
    if isinstance(path, Dataset):
        if index_dir is not None:
            raise InvalidArgument("index_dir needs a path; a Dataset has its own index folder")
        encryption, index_dir = path.opened.catalog.encryption, path.index_dir
        source, digest = _source_of(path, spark), digest_of_files(path.files)
    else:
        source = absolute_paths(path)
        # Another process, which may have another working directory, opens the paths.
        if index_dir is not None:
            index_dir = absolute_path(arguments.require_path(index_dir, "index_dir"))
    request = ScanRequest(
        source=source,
        filter=filter,
        columns=None if columns is None else arguments.require_name_list(columns, "columns"),
        index_dir=index_dir,
        files_digest=digest,
        # Over Connect the time zone may change until a query runs, so it is read then.
        timezone=spark.conf.get("spark.sql.session.timeZone") if is_classic(spark) else None,
        old_calendar=rebases_unknown_writers(spark),
        parallelism=parallelism(spark),
        deleted=sorted(deleted_indices(spark)),
    )
    with active_session(spark):
        name = register_source_for(spark, source, encryption)
        frame = spark.read.format(name).option(REQUEST, request.to_text()).load()
    if filter is not None:
        frame = frame.where(filter)
    if columns is not None:
        frame = frame.select(*map(quote_name, columns))
    # Connect would raise errors late, when the frame is used, and with other messages. This asks
    # for the schema now, as classic sessions do anyway.
    frame.schema  # noqa: B018
    return frame


def absolute_paths(paths: FilePaths, parameter: str = "path") -> str | list[str]:
    """Return a path or paths as any process opens them."""
    if isinstance(paths, str | os.PathLike):
        return plain_path(absolute_path(arguments.require_path(paths, parameter)))
    if not isinstance(paths, Sequence) or not paths:
        raise arguments.invalid_value(paths, parameter, "give a path, several paths, or a Dataset")
    names = [arguments.require_path(path, f"an item of {parameter}") for path in paths]
    return [plain_path(absolute_path(name)) for name in names]


def _source_of(ds: Dataset, spark: SparkSession) -> str | list[str]:
    """Return the folder or the files by which another process opens the files of a dataset."""
    require_no_filter(ds, "zonebloom.spark")
    source = ds.opened.source
    if source.is_in_memory:
        raise InvalidArgument(
            "a table in memory has no files for Spark to read; write it to Parquet first"
        )
    if source.is_table_snapshot or source.has_views:
        raise InvalidArgument(
            f"{ds.title} is a table, or a part of files, that scan cannot open in another process; "
            "give the path of Parquet files"
        )
    folder = ds.title if is_uri(ds.title) else absolute_path(ds.title)
    encryption = ds.opened.catalog.encryption
    differences: list[str] = []
    errors: list[str] = []
    # The folder may have other files meanwhile, and a list of files has no partition columns.
    for paths in (folder, ds.files):
        try:
            with collected_warnings():
                opened = open_dataset(paths, spark, ds.index_dir, encryption)
        except (ZoneBloomError, OSError, pa.ArrowException) as error:
            errors.append(str(error))
            continue
        if opened.files == ds.files and opened.schema.equals(ds.schema):
            return paths
        differences.append(
            "its schema is not the one that its files have; give the path, and cast the result"
            if opened.files == ds.files
            else "it has other files than when the dataset was opened; call ds.refresh()"
        )
    raise InvalidArgument(
        f"scan cannot open {ds.title} in another process: {(differences or errors)[0]}"
    )

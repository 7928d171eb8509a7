"""Read the settings of a Spark session, classic or Connect, and open paths by its Hadoop settings.

Tasks get the file systems that are opened here, so they need no settings of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.fs as pafs
from pyspark.sql import SparkSession

from zonebloom.spark.versions import from_jvm, is_classic, java_session, spark_context
from zonebloom.storage.paths import (
    NO_SETTINGS,
    absolute_path,
    filesystem_of,
    is_uri,
    plain_path,
    split_path,
)
from zonebloom.storage.s3a import used_settings

SYSTEM_PATH = "zonebloom.system.path"
_S3A_PREFIX = "fs.s3a."


def is_case_sensitive(spark: SparkSession) -> bool:
    """Return whether column names of a session are case-sensitive."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that a classic session runs at one time, or 0 over Connect."""
    context = spark_context(spark)
    return 0 if context is None else context.defaultParallelism


def system_path(spark: Any) -> str:
    """Return the folder of the documents of a session's indices."""
    path = spark.conf.get(SYSTEM_PATH, None) or spark.conf.get(f"spark.{SYSTEM_PATH}", None)
    return system_folder(path, spark.conf.get("spark.sql.warehouse.dir"))


def system_folder(path: str | None, warehouse: str) -> str:
    """Return the folder of documents for a setting, or that in the warehouse if it is not set."""
    path = path or f"{warehouse}/zonebloom_indexes"
    return absolute_path(plain_path(path, encoded=is_uri(path)))


def quote_name(name: str) -> str:
    """Return a column name in backticks, as Spark parses it."""
    return "`" + name.replace("`", "``") + "`"


def s3a_settings(spark: Any, paths: Sequence[str] | None = None) -> Mapping[str, str]:
    """Return the S3A settings of a session without their prefix ``fs.s3a.``.

    The result is empty without a session, or if no path is on S3. If a mapping of such settings is
    given instead of a session, return it.
    """
    if not spark or (paths is not None and all(split_path(path)[0] != "s3" for path in paths)):
        return NO_SETTINGS
    if isinstance(spark, Mapping):
        return spark
    if is_classic(spark):
        hadoop = java_session(spark).sessionState().newHadoopConf()
        return used_settings(from_jvm(spark, hadoop.getPropsWithPrefix(_S3A_PREFIX)))
    # Connect shows only settings of the session, and not those in Hadoop's configuration files.
    session_settings: Mapping[str, str] = spark.conf.getAll
    settings: dict[str, str] = {}
    for prefix in (f"spark.hadoop.{_S3A_PREFIX}", _S3A_PREFIX):
        settings |= {
            key.removeprefix(prefix): value
            for key, value in session_settings.items()
            if key.startswith(prefix)
        }
    return used_settings(settings)


def open_path(spark: Any, path: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path and the path in it. Raises `SourceError`."""
    return filesystem_of(path, s3a_settings(spark, [path]))

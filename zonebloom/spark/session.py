"""What is asked of a Spark session, classic or Connect, and where its tables lie: paths and files
opened as its Hadoop settings say.

Tasks are sent the file systems that are opened here, so they need no settings of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.fs as pafs
from pyspark.sql import SparkSession

from zonebloom.dataset import Dataset, dataset
from zonebloom.errors import EngineError
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.paths import NO_SETTINGS, filesystem_of, filesystem_of_paths, split_path
from zonebloom.storage.s3a import used_settings

_PREFIX = "fs.s3a."
_BYTES = re.compile(r"(-?\d+)\s*([kmgtp]?)b?", re.IGNORECASE)


def spark_context(spark: SparkSession) -> Any:
    """The SparkContext of a classic session, None over Connect."""
    if not hasattr(spark, "addArtifacts"):
        raise EngineError(f"spark is a {type(spark).__name__}; give a SparkSession of Spark 4")
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001 - Connect sessions raise errors of their own tree
        return None


def is_classic(spark: Any) -> bool:
    """Whether a session shows its plans, as classic ones do and Connect does not."""
    return hasattr(spark, "_jsparkSession")


def session_id(spark: Any) -> str:
    """What tells a session from others."""
    return str(spark._jsparkSession.sessionUUID() if is_classic(spark) else spark.session_id)


def is_case_sensitive(spark: SparkSession) -> bool:
    """Whether a session tells names of columns apart by their case."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def parallelism(spark: SparkSession) -> int:
    """Tasks that a classic session runs at one time, 0 over Connect, which does not say."""
    context = spark_context(spark)
    return 0 if context is None else context.defaultParallelism


def byte_count(text: str) -> int:
    """A size as settings have it, such as ``10MB`` or ``1g``; below 0 where it is none.

    >>> byte_count("10485760b"), byte_count("1g"), byte_count("-1")
    (10485760, 1073741824, -1)
    """
    found = _BYTES.fullmatch(text.strip())
    return int(found[1]) << 10 * " kmgtp".index(found[2].lower() or " ") if found else -1


def quote_name(name: str) -> str:
    """A column's name as Spark reads it back."""
    return "`" + name.replace("`", "``") + "`"


def s3a_settings(spark: Any, paths: Sequence[str] | None = None) -> Mapping[str, str]:
    """Hadoop's settings of S3A in a session, without ``fs.s3a.``: none where none of some paths
    needs them, or there is no session. In its place such settings may be given."""
    if not spark or (paths is not None and all(split_path(each)[0] != "s3" for each in paths)):
        return NO_SETTINGS
    if isinstance(spark, Mapping):
        return spark
    if is_classic(spark):
        hadoop = spark._jsparkSession.sessionState().newHadoopConf()
        # One text: each entry of a map would be a call.
        json_of = spark._jvm.com.fasterxml.jackson.databind.ObjectMapper()
        return used_settings(
            json.loads(json_of.writeValueAsString(hadoop.getPropsWithPrefix(_PREFIX)))
        )
    # Connect shows the settings of the session alone, and not what files of Hadoop say.
    given, found = spark.conf.getAll, {}
    for prefix in (f"spark.hadoop.{_PREFIX}", _PREFIX):
        found |= {k.removeprefix(prefix): v for k, v in given.items() if k.startswith(prefix)}
    return used_settings(found)


def open_path(spark: Any, path: str) -> tuple[pafs.FileSystem, str]:
    """The file system a path of a session lies in, and its path there; raises SourceError."""
    return filesystem_of(path, s3a_settings(spark, [path]))


def open_dataset(
    source: str | list[str],
    spark: Any,
    index_dir: str | None = None,
    encryption: Encryption | None = None,
) -> Dataset:
    """Files as a dataset, by a session or its settings; raises what `zonebloom.dataset` raises."""
    paths = [source] if isinstance(source, str) else source
    s3a = s3a_settings(spark, paths)
    if not s3a:
        return dataset(source, index_dir=index_dir, encryption=encryption)
    filesystem, below = filesystem_of_paths(paths, s3a)
    files = below[0] if isinstance(source, str) else below
    return dataset(files, "parquet", filesystem, index_dir, encryption=encryption)

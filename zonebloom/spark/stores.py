"""Where a session's tables lie: paths and files opened as its Hadoop settings say.

Tasks are sent the file systems that are opened here, so they need no settings of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.fs as pafs

from zonebloom.dataset import Dataset, dataset
from zonebloom.storage.paths import NO_SETTINGS, filesystem_of, open_files_of, split_path
from zonebloom.storage.s3a import told
from zonebloom.storage.sealed import Encryption

_PREFIX = "fs.s3a."


def s3a_settings(spark: Any, paths: Sequence[str] | None = None) -> Mapping[str, str]:
    """Hadoop's settings of S3A in a session, without ``fs.s3a.``: none where none of some paths
    needs them, or there is no session. In its place such settings may be given."""
    if not spark or (paths is not None and all(split_path(each)[0] != "s3" for each in paths)):
        return NO_SETTINGS
    if isinstance(spark, Mapping):
        return spark
    if hasattr(spark, "_jsparkSession"):
        hadoop = spark._jsparkSession.sessionState().newHadoopConf()
        # One text: each entry of a map would be a call.
        json_of = spark._jvm.com.fasterxml.jackson.databind.ObjectMapper()
        return told(json.loads(json_of.writeValueAsString(hadoop.getPropsWithPrefix(_PREFIX))))
    # Connect shows the settings of the session alone, and not what files of Hadoop say.
    given, found = spark.conf.getAll, {}
    for prefix in (f"spark.hadoop.{_PREFIX}", _PREFIX):
        found |= {k.removeprefix(prefix): v for k, v in given.items() if k.startswith(prefix)}
    return told(found)


def open_place(spark: Any, path: str) -> tuple[pafs.FileSystem, str]:
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
    filesystem, below = open_files_of(paths, s3a)
    files = below[0] if isinstance(source, str) else below
    return dataset(files, "parquet", filesystem, index_dir, encryption=encryption)

"""Open files as a dataset with the settings of a Spark session.

This is not part of `zonebloom.spark.session_settings`, so that `zonebloom.facade` can import that
module without a circle.
"""

from __future__ import annotations

from typing import Any

from zonebloom.facade.dataset import Dataset
from zonebloom.facade.opening import dataset
from zonebloom.spark.session_settings import s3a_settings
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.paths import filesystem_of_paths


def open_dataset(
    source: str | list[str],
    spark: Any,
    index_dir: str | None = None,
    encryption: Encryption | None = None,
) -> Dataset:
    """Open files as a dataset with the S3 settings of a session or mapping.

    Raises what `zonebloom.dataset` raises.
    """
    paths = [source] if isinstance(source, str) else source
    s3a = s3a_settings(spark, paths)
    if not s3a:
        return dataset(source, index_dir=index_dir, encryption=encryption)
    filesystem, paths_in_filesystem = filesystem_of_paths(paths, s3a)
    files = paths_in_filesystem[0] if isinstance(source, str) else paths_in_filesystem
    return dataset(files, "parquet", filesystem, index_dir, encryption=encryption)

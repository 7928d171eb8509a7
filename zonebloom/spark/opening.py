"""Open files as a dataset with the settings of a Spark session.

This is not part of `zonebloom.spark.session_settings`, so that `zonebloom.facade` can import that
module without a circle.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from zonebloom.errors import SchemaMismatch
from zonebloom.facade.dataset import Dataset
from zonebloom.facade.opening import dataset
from zonebloom.index.matching import find_misfit
from zonebloom.spark.session_settings import s3a_settings
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.paths import filesystem_of_paths
from zonebloom.values.columns import column_path, find_leaf


def open_dataset(
    source: str | list[str],
    spark: Any,
    index_dir: str | None = None,
    encryption: Encryption | None = None,
    columns: Iterable[str] = (),
) -> Dataset:
    """Open files as a dataset with the S3 settings of a session or mapping.

    ``columns`` are needed. Raises what `zonebloom.dataset` raises.
    """
    paths = [source] if isinstance(source, str) else source
    s3a = s3a_settings(spark, paths)
    filesystem, files = None, source
    if s3a:
        filesystem, paths_in_filesystem = filesystem_of_paths(paths, s3a)
        files = paths_in_filesystem[0] if isinstance(source, str) else paths_in_filesystem
    return open_evolved(files, filesystem, index_dir, encryption, columns)


def open_evolved(
    files: str | list[str],
    filesystem: Any,
    index_dir: str | None,
    encryption: Encryption | None,
    columns: Iterable[str] = (),
) -> Dataset:
    """Open files as a dataset with the schema of the first file, or else that of all files.

    Spark adds columns to tables without rewriting old files. If an index or one of the columns is
    not of the schema of the first file, the schemas of all files are read.
    """
    options = {"filesystem": filesystem, "index_dir": index_dir, "encryption": encryption}
    ds = dataset(files, **options)
    source = ds.opened.source
    misfits = (find_misfit(entry, source) for entry in ds.opened.version.indices.values())
    is_evolved = any(misfit is not None for misfit in misfits) or any(
        find_leaf(source.schema, column_path(source.schema, name, ignore_case=True)) is None
        for name in columns
    )
    if is_evolved and len(source.fragments) > 1:
        # Types that have no union are left to the errors of the caller.
        with suppress(SchemaMismatch):
            return dataset(files, schema="union", **options)
    return ds

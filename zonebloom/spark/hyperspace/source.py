"""Open the data of a managed index, and compute the statistics of indices.

The data is a folder of Parquet files, given by a path or by a DataFrame that just reads them.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame

from zonebloom.base import arguments
from zonebloom.catalog.drift import measure_drift
from zonebloom.errors import InvalidArgument, ZoneBloomError, without_secrets
from zonebloom.facade.dataset import Dataset
from zonebloom.spark.managed_indices import Documents, ManagedIndex
from zonebloom.spark.opening import open_dataset
from zonebloom.spark.relation import file_relation, scala_items
from zonebloom.spark.versions import input_files, is_classic, query_execution
from zonebloom.storage.encryption import Encryption
from zonebloom.storage.paths import absolute_path, plain_path, split_path


def open_managed_source(
    source: DataFrame | str | os.PathLike[str],
    index_dir: str | None,
    spark: Any,
    encryption: Encryption | None,
    columns: Sequence[str] = (),
) -> tuple[Dataset, str]:
    """Open the files of a DataFrame or a path as a dataset with some columns.

    Return it with a path to reopen it.
    """
    if isinstance(source, str | os.PathLike):
        path = plain_path(absolute_path(os.fspath(source)))
        # In Azure's URIs the text before @ is a container and no password.
        is_azure = split_path(path)[0] in ("abfs", "abfss", "wasb", "wasbs")
        if not is_azure and without_secrets(path) != path:
            raise InvalidArgument(
                f"{path} contains credentials, which would be stored in the document; set "
                "fs.s3a.access.key and the like in the session"
            )
        return open_dataset(path, spark, index_dir, encryption, columns), path
    roots = _root_paths(source)
    files = {plain_path(file, encoded=True) for file in input_files(source)}
    if not files:
        raise InvalidArgument("the DataFrame reads no file; write some first")
    dataset_text = ""
    folders = roots if len(roots) == 1 else list({posixpath.dirname(file) for file in files})
    if len(folders) == 1:
        ds = open_dataset(folders[0], spark, index_dir, encryption, columns)
        if set(map(_path_in_filesystem, ds.files)) == set(map(_path_in_filesystem, files)):
            return ds, folders[0]
        dataset_text = f" of the {len(ds.files):,} in {folders[0]}"
    raise InvalidArgument(
        f"the DataFrame reads {len(files):,} files{dataset_text}; an index is over all files of "
        "one folder, or over one file: read the folder, or make an index for each"
    )


def _path_in_filesystem(path: str) -> str:
    return split_path(path)[1]


def _root_paths(frame: Any) -> list[str]:
    """Return the root paths that a frame reads. Raise `InvalidArgument` for other frames."""
    if not hasattr(frame, "sparkSession"):
        raise arguments.invalid_value(frame, "df", "give a DataFrame, or the path of a folder")
    if not is_classic(frame.sparkSession):
        raise InvalidArgument(
            f"Spark Connect does not show what a {type(frame).__name__} reads; give the path"
        )
    plan = query_execution(frame).analyzed()
    while plan.nodeName() in ("SubqueryAlias", "View"):
        plan = plan.child()
    relation = file_relation(plan)
    if relation is None:
        raise InvalidArgument(
            f"the frame is a {plan.nodeName()}, not just a read of Parquet files; give "
            "spark.read.parquet(path) as it is, or the path itself"
        )
    return [plain_path(root.toString()) for root in scala_items(relation.location().rootPaths())]


def resolve_columns(ds: Dataset, names: Sequence[str], case_sensitive: bool) -> tuple[str, ...]:
    """Return the names of columns as the files spell them."""
    columns: list[str] = []
    for name in names:
        column = ds.opened.column(name, not case_sensitive).name
        if column in columns:
            raise InvalidArgument(f"column {column!r} is given twice; name each once")
        columns.append(column)
    return tuple(columns)


# Statistics, with Hyperspace's names

STATISTICS_SCHEMA = (
    "name string, indexedColumns array<string>, indexLocation string, state string, kind string, "
    "numIndexFiles bigint, sizeIndexFiles bigint, numSourceFiles bigint, sizeSourceFiles bigint, "
    "numAppendedFiles bigint, sizeAppendedFiles bigint, numDeletedFiles bigint, "
    "sizeDeletedFiles bigint, indexContentPaths array<string>, sourcePath string, "
    "expectedNumItems bigint, fpp double, numZones bigint, globalFilterBytes bigint, "
    "createdAt string, message string"
)


def statistics_rows(
    chosen: Iterable[ManagedIndex], documents: Documents
) -> Iterator[tuple[Any, ...]]:
    """Yield a row of `STATISTICS_SCHEMA` for each index. It has nulls if the data is unreadable."""
    for managed in chosen:
        names, message = managed.indices.values(), ""
        changes: tuple[int | None, ...] = (None,) * 6
        try:
            opened = documents.open(managed).opened
            catalog, latest = opened.catalog, opened.version
            drift = measure_drift(latest, names, opened.look().fragments)
        except (ZoneBloomError, OSError) as error:
            message = f"the data cannot be read: {error}"
            catalog = documents.catalog(managed)
            latest = catalog.latest()
        else:
            parts = drift.indexed, drift.appended, drift.deleted
            changes = tuple(figure for part in parts for figure in (len(part), sum(part)))
        entries = [latest.indices[name] for name in names if name in latest.indices]
        files = catalog.referenced_files(
            latest.with_indices({entry.name: entry for entry in entries})
        )
        state = str(managed.state_in(latest.indices))
        yield (
            *(managed.name, list(managed.columns), catalog.folder, state, "BloomFilter"),
            *(len(files), sum(files.values()), *changes, sorted(files)),
            *(managed.path, managed.expected_num_items, managed.fpp),
            sum(segment.num_zones for entry in entries for segment in entry.segments),
            sum(e.global_filter.num_bytes for e in entries if e.global_filter is not None),
            min((entry.created_at for entry in entries), default=None),
            message,
        )

"""read_pruned(): the files that may hold rows, read anew by Spark's own reader.

It needs no access to plans, so it works over Spark Connect too; in classic sessions
`zonebloom.spark.prune` does the same for a frame made already.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from zonebloom import arguments
from zonebloom.errors import InvalidArgument
from zonebloom.predicates import ast
from zonebloom.predicates.spark import to_spark_filter
from zonebloom.spark.frames import Path
from zonebloom.spark.pruning.lookup import ListedFile, Lookup, root_of
from zonebloom.spark.pruning.prune import is_case_sensitive
from zonebloom.spark.session import quoted, time_zone
from zonebloom.spark.types import opaque_columns
from zonebloom.storage.paths import absolute_path, spark_path
from zonebloom.values.columns import alike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GLOB = re.compile(r"[{}\[\]*?\\]")
_PARTITION = re.compile(r"(?:^|/)([^/=]+)=")


def read_pruned(
    spark: SparkSession,
    path: Path,
    filter: str,
    columns: Sequence[str] | None = None,
    *,
    index_dir: str | None = None,
) -> DataFrame:
    """Read the Parquet files that may hold rows of a filter, with Spark's own reader.

    As ``spark.read.parquet(path).where(filter)``, but that files are left out in which, as the
    index says, no row can match. `zonebloom.spark.scan` leaves out zones within files too, and
    is quicker for few rows; this one keeps Spark's vectorised reader with its pruning of
    columns, and suits filters that many rows of few files match.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect; this process must see the files at the paths Spark does.
    path : path, URI, glob, or list of them
        As ``spark.read.parquet`` takes it.
    filter : str
        A condition in Spark SQL.
    columns : list of str, optional
        All by default.
    index_dir : str, optional
        Folder of the index, when it is not beside the data.

    Returns
    -------
    pyspark.sql.DataFrame
        It names the kept files one by one; a thousand of them take Spark seconds to look up.

    Raises
    ------
    InvalidArgument
        When the filter is no text.

    Warns
    -----
    IndexNotUsedWarning, StaleIndexWarning
    """
    if not isinstance(filter, str):
        raise InvalidArgument(
            f'filter is a {type(filter).__name__}; give Spark SQL text, such as "id = 42"'
        )
    if columns is not None:
        columns = arguments.names(columns, "columns")
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    absolute = [absolute_path(os.fspath(each)) for each in paths]
    roots = list(map(spark_path, absolute))
    whole = spark.read.parquet(*absolute)
    kept = _kept(spark, whole, roots, filter, index_dir)
    frame = whole if kept is None else _reread(spark, whole, roots, kept)
    # Without a file left, the filter is still to be one that Spark understands.
    frame = frame.where(filter) if kept != [] else whole.where(filter).where("false")
    return frame.select(*map(quoted, columns)) if columns is not None else frame


def _kept(
    spark: SparkSession, whole: DataFrame, roots: list[str], filter: str, index_dir: str | None
) -> list[str] | None:
    """Paths of the files to read, None when that is all of them, or not to be told."""
    if _may_overlap(roots):
        return None
    paths = [spark_path(file, encoded=True) for file in whole.inputFiles()]
    below = [root_of(path, roots) for path in paths]
    is_glob = any(root is None for root in below)
    from_paths = {
        unquote(name)
        for path, root in zip(paths, below, strict=True)
        for name in _PARTITION.findall(path.removeprefix(root or ""))
    }
    known = {field.name: field.dataType for field in whole.schema}
    partitioned = {name for name in from_paths if alike(known, name)}
    if is_glob and partitioned:
        # Which folder the values begin below is Spark's secret.
        return None
    zone = time_zone(spark)

    def predicate(schema: pa.Schema) -> ast.Predicate:
        opaque = opaque_columns(schema, known)
        opaque |= {name for name in schema.names if alike(partitioned, name)}
        return to_spark_filter(filter, schema, opaque, zone).predicate

    files = [ListedFile(path) for path in paths]
    asked = paths if is_glob else roots
    answer = Lookup(index_dir).ask(asked, files, predicate, not is_case_sensitive(spark))
    for warning in answer.warnings:
        warnings.warn(warning, stacklevel=3)
    return [path for path in paths if path not in answer.excluded] if answer.excluded else None


def _may_overlap(roots: Sequence[str]) -> bool:
    """Whether a file may be read more than once, which its name alone would not tell."""
    if len(roots) == 1:
        return False
    odd = any(_GLOB.search(root) or "/../" in root or "//" in root for root in roots)
    twice = len(set(roots)) < len(roots)
    return odd or twice or any(root_of(root.rpartition("/")[0], roots) for root in roots)


def _reread(
    spark: SparkSession, whole: DataFrame, roots: list[str], kept: Sequence[str]
) -> DataFrame:
    """Kept files, each group below the root its partition values begin at."""
    groups: dict[str | None, list[str]] = {}
    for path in kept:
        groups.setdefault(root_of(path, roots), []).append(path)
    frames = []
    for root, paths in groups.items():
        reader = spark.read.schema(whole.schema)
        # A file named by itself is no folder to begin at.
        if root is not None and root not in paths:
            reader = reader.option("basePath", root)
        frames.append(reader.parquet(*(_GLOB.sub(r"\\\g<0>", path) for path in paths)))
    return reduce(lambda one, other: one.unionAll(other), frames) if frames else whole

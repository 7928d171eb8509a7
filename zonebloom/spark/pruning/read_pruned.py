"""read_pruned(): a read of fewer files by a filter in words, where no plan is seen."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from functools import reduce
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from zonebloom import arguments
from zonebloom.predicates import ast
from zonebloom.predicates.spark import to_spark_filter
from zonebloom.spark.frames import Path, require_sql
from zonebloom.spark.pruning.lookup import ListedFile, Lookup, Question
from zonebloom.spark.session import is_case_sensitive, quoted, time_zone
from zonebloom.spark.types import opaque_columns
from zonebloom.storage.paths import absolute_path, spark_path
from zonebloom.values.columns import alike

_GLOB = re.compile(r"[{}\[\]*?\\]")
_PARTITION = re.compile(r"/([^/=]+)=")


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
    index says, no row can match. Of a classic session `zonebloom.spark.prune` does the same with
    whatever filters a query has; this one needs no plan, so it is for Spark Connect too.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect; this process must see the files at the paths Spark does.
    path : path, URI, glob, or list of them
        As ``spark.read.parquet`` takes it; of a glob all files are read.
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
    require_sql(filter)
    if columns is not None:
        columns = arguments.names(columns, "columns")
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    absolute = [absolute_path(os.fspath(each)) for each in paths]
    whole = spark.read.parquet(*absolute)
    frame = _pruned(spark, whole, list(map(spark_path, absolute)), filter, index_dir).where(filter)
    return frame.select(*map(quoted, columns)) if columns is not None else frame


def _pruned(
    spark: SparkSession, whole: DataFrame, roots: list[str], filter: str, index_dir: str | None
) -> DataFrame:
    """The files below roots that may hold rows; all of them where roots overlap."""
    files = [spark_path(file, encoded=True) for file in whole.inputFiles()]
    below = {root: [f for f in files if f == root or f.startswith(f"{root}/")] for root in roots}
    # Of other paths it is not known which files are read through them, and how often.
    num_below = list(map(len, below.values()))
    is_plain = all(num_below) and sum(num_below) == len(files) and len(below) == len(roots)
    if not is_plain or any(map(_GLOB.search, roots)):
        return whole
    names = {
        unquote(name)
        for root, inside in below.items()
        for file in inside
        for name in _PARTITION.findall(file.removeprefix(root))
    }
    known = {field.name: field.dataType for field in whole.schema}
    from_paths = {name for name in names if alike(known, name)}
    zone = time_zone(spark)

    def predicate(schema: pa.Schema) -> ast.Predicate:
        opaque = opaque_columns(schema, known)
        opaque |= {name for name in schema.names if alike(from_paths, name)}
        return to_spark_filter(filter, schema, opaque, zone).predicate

    listed = list(map(ListedFile, files))
    question = Question(roots, lambda: listed, predicate, not is_case_sensitive(spark))
    answer = Lookup(index_dir).ask(question)
    for warning in answer.warnings:
        warnings.warn(warning, stacklevel=3)
    if not answer.excluded:
        return whole
    frames = []
    for root in roots:
        kept = [_escaped(file) for file in below[root] if file not in answer.excluded]
        reader = spark.read.schema(whole.schema)
        # A file named by itself is no folder to begin at.
        if root not in below[root]:
            reader = reader.option("basePath", root)
        if kept:
            frames.append(reader.parquet(*kept))
    return (
        reduce(lambda one, other: one.unionAll(other), frames) if frames else whole.where("false")
    )


def _escaped(path: str) -> str:
    return _GLOB.sub(r"\\\g<0>", path)

"""Open what a user gives to `zonebloom.dataset` as a `Source`: its files with their schema."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from zonebloom.errors import InvalidArgument, SourceError
from zonebloom.sources.discovery import (
    Partitioning,
    Schema,
    discover_source,
    is_dataset,
    require_no_schema,
)
from zonebloom.sources.source import Source

if TYPE_CHECKING:
    from zonebloom.parquet.encryption_keys import ParquetKeys


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parameters of `zonebloom.dataset` that say how files are listed and read."""

    format: str = "parquet"
    filesystem: Any = None
    partitioning: Partitioning = "auto"
    schema: Schema = None
    parquet_keys: ParquetKeys | None = None


def open_files(source: Any, options: SourceOptions) -> Source:
    """Return the files of a source as they are now.

    Raise `SourceError` if it is no source, or `InvalidArgument` for options that it cannot use.
    """
    is_delta = _is_delta(source)
    if is_delta or _is_iceberg(source) or _is_memory(source):
        require_no_schema(source, options.schema)
        if options.parquet_keys is not None:
            raise InvalidArgument("parquet_keys is for Parquet files; give their paths")
        if is_delta:
            from zonebloom.sources.delta_lake import open_delta

            return open_delta(source, options.filesystem)
        if _is_iceberg(source):
            from zonebloom.sources.iceberg import open_iceberg

            return open_iceberg(source, options.filesystem)
        from zonebloom.sources.memory import open_memory_table

        return open_memory_table(source)
    is_list = isinstance(source, Sequence) and not isinstance(source, bytes)
    if not (is_list or isinstance(source, os.PathLike) or is_dataset(source)):
        raise SourceError(
            f"a {type(source).__name__} is not a dataset; give a folder, a file, a list of files, "
            "a glob, a URI, a pyarrow.dataset.Dataset, a pyiceberg table, a deltalake.DeltaTable "
            "or a pyarrow.Table"
        )
    keys = options.parquet_keys
    if keys is not None and options.format != "parquet":
        raise InvalidArgument("parquet_keys is for Parquet files; give their paths")
    files = discover_source(
        source, options.format, options.filesystem, options.partitioning, options.schema, keys
    )
    if keys is None or not files.is_parquet:
        return files
    return replace(files, file_format=None, parquet_keys=keys)


def may_have_other_files(source: Any) -> bool:
    """Return whether opening a source again may find other files.

    Folders of a list are listed too, but only the opened files tell: `Source.has_listed_folders`.
    """
    # A table of a library may load a version with other files.
    return isinstance(source, str | os.PathLike) or _is_delta(source) or _is_iceberg(source)


def _is_delta(source: Any) -> bool:
    return _is_instance(source, "deltalake", "DeltaTable")


def _is_iceberg(source: Any) -> bool:
    return _is_instance(source, "pyiceberg.table", "Table")


def _is_memory(source: Any) -> bool:
    return _is_instance(source, "pyarrow", "Table")


def _is_instance(source: Any, module: str, class_name: str) -> bool:
    # Whoever has a table has imported its library.
    library = sys.modules.get(module)
    return library is not None and isinstance(source, getattr(library, class_name))

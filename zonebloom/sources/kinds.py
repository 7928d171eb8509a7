"""The kinds of sources that a dataset can be opened from.

A source is what a user gives to `zonebloom.dataset`: paths, a PyArrow dataset, a Delta table. Its
kind turns it into a `Source`, the files with their schema.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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
    import pyarrow.fs as pafs

    from zonebloom.parquet.encryption_keys import ParquetKeys


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parameters of `zonebloom.dataset` that say how files are listed and read."""

    format: str = "parquet"
    filesystem: Any = None
    partitioning: Partitioning = "auto"
    schema: Schema = None
    parquet_keys: ParquetKeys | None = None


class SourceKind(Protocol):
    """One kind of source.

    Attributes
    ----------
    examples : tuple of str
        Sources that a user may give, for the error message that lists all kinds.
    """

    @property
    def examples(self) -> tuple[str, ...]: ...

    def accepts(self, source: Any) -> bool:
        """Return whether a source is of this kind. Do not import the library of the kind."""
        ...

    def is_listed(self, source: Any) -> bool:
        """Return whether opening the source again may find other files."""
        ...

    def open(self, source: Any, options: SourceOptions) -> Source:
        """Return the files as they are now.

        Raise `InvalidArgument` for options that this kind of source cannot use.
        """
        ...


class _Files:
    """Folders, files, patterns, lists of these, and PyArrow datasets."""

    examples = (
        "a folder",
        "a file",
        "a list of files",
        "a glob",
        "a URI",
        "a pyarrow.dataset.Dataset",
    )

    def accepts(self, source: Any) -> bool:
        is_list = isinstance(source, Sequence) and not isinstance(source, bytes)
        return is_list or isinstance(source, str | os.PathLike) or is_dataset(source)

    def is_listed(self, source: Any) -> bool:
        # Folders of a list are listed too, but only the opened files tell (`has_listed_folders`).
        return isinstance(source, str | os.PathLike)

    def open(self, source: Any, options: SourceOptions) -> Source:
        keys = options.parquet_keys
        if keys is not None and options.format != "parquet":
            raise InvalidArgument("parquet_keys is for Parquet files; give their paths")
        files = discover_source(
            source, options.format, options.filesystem, options.partitioning, options.schema, keys
        )
        if keys is None or not files.is_parquet:
            return files
        return replace(files, file_format=None, parquet_keys=keys)


class _Table(NamedTuple):
    """Tables of a library, which know their schema, as they are in memory or at the loaded version.

    Attributes
    ----------
    examples : tuple of str
    module, class_name : str
        The class of the tables.
    open_table : callable
        Returns the source of a table and a file system.
    has_versions : bool
        Whether the table may load a version with other files.
    """

    examples: tuple[str, ...]
    module: str
    class_name: str
    open_table: Callable[[Any, Any], Source]
    has_versions: bool = False

    def accepts(self, source: Any) -> bool:
        # Whoever has a table has imported its library.
        library = sys.modules.get(self.module)
        return library is not None and isinstance(source, getattr(library, self.class_name))

    def is_listed(self, source: Any) -> bool:
        return self.has_versions

    def open(self, source: Any, options: SourceOptions) -> Source:
        require_no_schema(source, options.schema)
        if options.parquet_keys is not None:
            raise InvalidArgument("parquet_keys is for Parquet files; give their paths")
        return self.open_table(source, options.filesystem)


def _open_memory_table(table: Any, filesystem: pafs.FileSystem | None) -> Source:
    from zonebloom.sources.memory import open_memory_table

    return open_memory_table(table)


def _open_delta(table: Any, filesystem: pafs.FileSystem | None) -> Source:
    from zonebloom.sources.delta_lake import open_delta

    return open_delta(table, filesystem)


def _open_iceberg(table: Any, filesystem: pafs.FileSystem | None) -> Source:
    from zonebloom.sources.iceberg import open_iceberg

    return open_iceberg(table, filesystem)


_KINDS: tuple[SourceKind, ...] = (
    _Table(("a pyarrow.Table",), "pyarrow", "Table", _open_memory_table),
    _Table(("a deltalake.DeltaTable",), "deltalake", "DeltaTable", _open_delta, has_versions=True),
    _Table(("a pyiceberg table",), "pyiceberg.table", "Table", _open_iceberg, has_versions=True),
    _Files(),
)


def source_kind(source: Any) -> SourceKind:
    """Return the kind of a source. Raise `SourceError` if there is none."""
    for kind in _KINDS:
        if kind.accepts(source):
            return kind
    examples = [example for kind in reversed(_KINDS) for example in kind.examples]
    raise SourceError(
        f"a {type(source).__name__} is not a dataset; give {', '.join(examples[:-1])} or "
        f"{examples[-1]}"
    )

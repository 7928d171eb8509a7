"""How a source (folder, file, list, glob, URI, pyarrow dataset) becomes fragments.

A fragment is one data file. Discovery, formats, schemas and partitions are
``pyarrow.dataset``'s own, so that a scan sees what a pyarrow user would see, in the same
order.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom import arguments
from zonebloom.errors import (
    FragmentUnreadable,
    InvalidArgument,
    NoFragments,
    SchemaMismatch,
    SourceError,
)
from zonebloom.storage.files import FileIdentity, forget_listings, identities
from zonebloom.storage.listing import is_pattern, matching_files
from zonebloom.storage.paths import absolute_path, is_uri
from zonebloom.storage.tables import refuse_tables

if TYPE_CHECKING:
    import pyarrow.dataset as pads

Partitioning: TypeAlias = "str | Sequence[str] | pads.Partitioning | None"
Schema: TypeAlias = pa.Schema | Literal["union"] | None

Stale: TypeAlias = Literal["read", "ignore-missing"]

_FORMATS = ("parquet", "ipc", "arrow", "feather", "csv", "json", "orc")
# Footers read side by side: each is a round trip and little else.
_READERS = 16
_PARTITIONINGS = ("auto", "hive")


@dataclass(frozen=True, slots=True)
class Fragment:
    """One file of a dataset.

    Attributes
    ----------
    path : str
        In the dataset's file system.
    key : str
        The path below the dataset's root: its name in the catalog.
    partition : pyarrow.dataset.Expression
        What the path says of every row in it.
    """

    path: str
    key: str
    partition: pads.Expression


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset as pyarrow found it.

    Attributes
    ----------
    schema : pyarrow.Schema
    format : pyarrow.dataset.FileFormat
    filesystem : pyarrow.fs.FileSystem
    root : str
        The folder all fragments lie below.
    fragments : tuple of Fragment
        In the order ``pyarrow.dataset`` scans them.
    stale : {"read", "ignore-missing"}
        Whether a file that is gone is an error, or left out with a warning.
    types : {"first", "shared", "cast"}
        What is known of the files' own schemas: this one is the first file's, and others may
        hold more; columns have these types in all; or they may be cast to these.
    """

    schema: pa.Schema
    format: pads.FileFormat
    filesystem: pafs.FileSystem
    root: str
    fragments: tuple[Fragment, ...]
    stale: Stale = field(default="read", kw_only=True)
    types: Literal["first", "shared", "cast"] = field(default="shared", kw_only=True)

    def open(self, fragment: Fragment, filesystem: pafs.FileSystem) -> pads.Fragment:
        """A pyarrow fragment that reads through the given file system, with nothing cached."""
        return self.format.make_fragment(fragment.path, filesystem, fragment.partition)

    def with_paths_as_keys(self) -> Source:
        """The same, its fragments known by their whole path rather than that below the root."""
        named = tuple(replace(fragment, key=fragment.path) for fragment in self.fragments)
        return replace(self, fragments=named)

    def path_of(self, key: str) -> str:
        """Where a file lies, of this dataset or another in one catalog, that has a key there."""
        # Of all or of none the key is the whole path, which need not begin with a slash.
        if any(fragment.key == fragment.path for fragment in self.fragments[:1]):
            return key
        return posixpath.join(self.root, key)

    def partition_columns(self) -> set[str]:
        """Columns whose value the path of a file gives, whatever the file holds."""
        import pyarrow.dataset as pads

        keys = (pads.get_partition_keys(fragment.partition) for fragment in self.fragments)
        return {name for found in keys for name in found}.intersection(self.schema.names)

    def constants(self, fragment: Fragment) -> dict[str, Any]:
        """Columns whose value the fragment's path gives, with that value."""
        import pyarrow.dataset as pads

        given = pads.get_partition_keys(fragment.partition)
        return {name: given[name] for name in given if name in self.schema.names}

    @property
    def is_parquet(self) -> bool:
        """Whether fragments are Parquet read with pyarrow's default options.

        Options such as columns read as dictionaries change types; those are left to pyarrow.
        """
        return is_plain_parquet(self.format)

    @property
    def has_statistics(self) -> bool:
        """Whether pyarrow passes over parts of a fragment by statistics that writers left."""
        import pyarrow.dataset as pads

        return isinstance(self.format, pads.ParquetFileFormat)

    @property
    def is_ipc(self) -> bool:
        """Whether fragments are Arrow IPC files."""
        import pyarrow.dataset as pads

        return isinstance(self.format, pads.IpcFileFormat)

    def scan_whole(
        self,
        fragments: Sequence[tuple[Fragment, tuple[int, ...] | None]],
        filesystem: pafs.FileSystem,
    ) -> Any:
        """Fragments, or row groups of them, as a pyarrow dataset."""
        import pyarrow.dataset as pads

        opened = []
        for fragment, row_groups in fragments:
            each = self.open(fragment, filesystem)
            if row_groups is not None:
                each = each.subset(row_group_ids=list(row_groups))
            opened.append(each)
        return pads.FileSystemDataset(opened, self.schema, self.format, filesystem)

    def identities(self, fragments: Sequence[Fragment] | None = None) -> list[FileIdentity | None]:
        """What the file of each fragment, or of some, is now; None where it is gone."""
        asked = self.fragments if fragments is None else fragments
        return identities(self.filesystem, (fragment.path for fragment in asked))


def is_plain_parquet(format: pads.FileFormat) -> bool:
    """Whether a format is Parquet without options that only pyarrow's scanner knows."""
    import pyarrow.dataset as pads

    return (
        isinstance(format, pads.ParquetFileFormat)
        and format.read_options == pads.ParquetReadOptions()
    )


def open_source(
    source: Any,
    format: str = "parquet",
    filesystem: Any = None,
    partitioning: Partitioning = "auto",
    schema: Schema = None,
) -> Source:
    """Discover the fragments of a source."""
    # Imported late, as everywhere: it brings pandas in.
    import pyarrow.dataset as pads

    if isinstance(source, pads.Dataset):
        require_no_schema(source, schema)
        return _from_dataset(source, None)
    arguments.choice(format, "format", _FORMATS)
    is_union = isinstance(schema, str) and schema == "union"
    if not (schema is None or is_union or isinstance(schema, pa.Schema)):
        raise InvalidArgument(
            f'schema is {arguments.shown(schema)}; give a pyarrow.Schema, "union" or None'
        )
    partitioning = _checked(partitioning)
    given = schema if isinstance(schema, pa.Schema) else None
    found = _from_files(source, format, as_arrow_filesystem(filesystem), partitioning, given)
    if schema is None:
        return replace(found, types="first")
    return replace(found, types="cast") if given is not None else _united(found)


def require_no_schema(source: Any, schema: Schema) -> None:
    """Refuse a schema for a source that has one."""
    if schema is not None:
        raise InvalidArgument(
            f"a {type(source).__name__} has a schema of its own; leave schema out"
        )


def _from_files(
    source: Any,
    format: str,
    filesystem: pafs.FileSystem | None,
    partitioning: Partitioning,
    schema: pa.Schema | None,
) -> Source:
    if isinstance(source, str | os.PathLike):
        path = arguments.path(source, "source")
        return _open_path(path, format, filesystem, partitioning, schema)
    if isinstance(source, Sequence) and source and not isinstance(source, bytes):
        paths = [arguments.path(each, "an item of source") for each in source]
        return _not_of_tables(open_files(paths, format, filesystem, partitioning, schema), None)
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        raise NoFragments("the list of files is empty; give at least one file")
    raise SourceError(
        f"a {type(source).__name__} is not a dataset; give a folder, a file, a list of files, a "
        "glob, a URI, a pyarrow.dataset.Dataset, a pyarrow.Table, a deltalake.DeltaTable or a "
        "pyiceberg table"
    )


def open_files(
    paths: Sequence[str],
    format: str = "parquet",
    filesystem: pafs.FileSystem | None = None,
    partitioning: Partitioning = None,
    schema: pa.Schema | None = None,
) -> Source:
    """The same of files named one by one, whatever table they may be of."""
    if filesystem is None:
        paths, filesystem = [absolute_path(path) for path in paths], pafs.LocalFileSystem()
    return _from_dataset(_open(list(paths), format, filesystem, partitioning, schema), None)


def _united(source: Source) -> Source:
    """The same with every column of every file, each in a type that all of its files widen to."""

    def stored(fragment: Fragment) -> pa.Schema:
        try:
            return source.open(fragment, source.filesystem).physical_schema
        except (pa.ArrowException, OSError) as error:
            raise FragmentUnreadable(
                f"cannot read the schema of {fragment.path}: {error}; repair or remove the file"
            ) from None

    with ThreadPoolExecutor(_READERS) as pool:
        schemas = list(pool.map(stored, source.fragments))
    union = schemas[0]
    for fragment, each in zip(source.fragments, schemas, strict=True):
        try:
            union = pa.unify_schemas([union, each], promote_options="permissive")
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"{fragment.path} holds columns of types that have none in common with other "
                f"files: {error}; give schema=, or rewrite the file"
            ) from None
    of_paths = [each for each in source.schema if each.name not in union.names]
    is_shared = all(each.type == union.field(each.name).type for one in schemas for each in one)
    schema = pa.schema([*union, *of_paths], union.metadata)
    return replace(source, schema=schema, types="shared" if is_shared else "cast")


def _checked(partitioning: Any) -> Partitioning:
    """What `pyarrow.dataset.dataset` takes for partitioning, refused here if it is not that."""
    import pyarrow.dataset as pads

    if partitioning is None or isinstance(
        partitioning, pads.Partitioning | pads.PartitioningFactory
    ):
        return partitioning
    if isinstance(partitioning, str):
        return arguments.choice(partitioning, "partitioning", _PARTITIONINGS)
    if isinstance(partitioning, list) and partitioning:
        return arguments.names(partitioning, "partitioning")
    raise InvalidArgument(
        f"partitioning is {arguments.shown(partitioning)}; give 'auto', 'hive', a list of column "
        "names, a pyarrow.dataset.Partitioning, or None"
    )


def as_arrow_filesystem(filesystem: Any) -> pafs.FileSystem | None:
    """A file system of pyarrow's, or fsspec's made one."""
    if filesystem is None or isinstance(filesystem, pafs.FileSystem):
        return filesystem
    if not hasattr(filesystem, "open") or not hasattr(filesystem, "info"):
        raise InvalidArgument(
            f"filesystem is a {type(filesystem).__name__}; give one of pyarrow.fs or fsspec"
        )
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))


def _open_path(
    path: str,
    format: str,
    filesystem: pafs.FileSystem | None,
    partitioning: Partitioning,
    schema: pa.Schema | None,
) -> Source:
    if filesystem is None and is_uri(path):
        try:
            filesystem, path = pafs.FileSystem.from_uri(path)
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"{arguments.shown(path)} cannot be opened ({error}); correct the URI, or give "
                "filesystem"
            ) from None
    elif filesystem is None:
        filesystem = pafs.LocalFileSystem()
        path = absolute_path(path)
        if is_pattern(path) and not os.path.lexists(path):
            found = matching_files(path)
            if not found:
                raise NoFragments(f"no file matches {path}; check the pattern")
            return _not_of_tables(open_files(found, format, filesystem, partitioning, schema), None)
    assert filesystem is not None
    forget_listings(filesystem)
    try:
        kind = filesystem.get_file_info(path).type
    except (OSError, pa.ArrowException) as error:
        raise FragmentUnreadable(
            f"cannot look at {path}: {error}; make it readable, or try again when it is"
        ) from None
    if kind == pafs.FileType.NotFound:
        raise NoFragments(f"{path} does not exist; check the path")
    root = path.rstrip("/") if kind == pafs.FileType.Directory else None
    # Before anything is read: a table without rows may have no file.
    refuse_tables(filesystem, path if root is not None else posixpath.dirname(path))
    if partitioning == "auto" and root is not None:
        partitioning = "hive"
    opened = _from_dataset(_open(path, format, filesystem, partitioning, schema), root)
    return _not_of_tables(opened, root)


def _not_of_tables(source: Source, root: str | None) -> Source:
    """A source, when none of its files lies in a table; its root has been looked at if given."""
    if root is None:
        refuse_tables(source.filesystem, source.root)
    refuse_tables(source.filesystem, source.root, [each.path for each in source.fragments])
    return source


def _open(
    paths: str | list[str],
    format: str,
    filesystem: pafs.FileSystem,
    partitioning: Partitioning,
    schema: pa.Schema | None,
) -> pads.Dataset:
    import pyarrow.dataset as pads

    if partitioning == "auto":
        partitioning = None
    try:
        try:
            return pads.dataset(
                paths,
                schema=schema,
                format=format,
                filesystem=filesystem,
                partitioning=partitioning,
            )
        except pa.ArrowTypeError:
            if partitioning != "hive" or schema is not None:
                raise
            return _with_types_of_files(paths, format, filesystem)
    except FileNotFoundError as error:
        raise NoFragments(f"{error}; check the path") from None
    except (pa.ArrowException, OSError) as error:
        raise FragmentUnreadable(
            f"cannot read the schema of {paths if isinstance(paths, str) else paths[0]}: {error}; "
            f"check that every file there is {format}, or name the files to use"
        ) from None


def _with_types_of_files(
    paths: str | list[str], format: str, filesystem: pafs.FileSystem
) -> pads.Dataset:
    """A Hive-partitioned dataset whose files hold columns of their paths as well.

    Some writers keep them, in types that need not be those a path suggests; the files' are
    taken, and the paths' values.
    """
    import pyarrow.dataset as pads

    stored = pads.dataset(paths, format=format, filesystem=filesystem)
    where = pafs.FileSelector(paths, recursive=True) if isinstance(paths, str) else paths
    options = pads.FileSystemFactoryOptions(partitioning=pads.HivePartitioning.discover())
    factory = pads.FileSystemDatasetFactory(filesystem, where, stored.format, options)
    *_, of_paths = factory.inspect_schemas()
    added = [each for each in of_paths if each.name not in stored.schema.names]
    schema = pa.schema([*stored.schema, *added], stored.schema.metadata)
    return pads.dataset(
        paths, schema=schema, format=format, filesystem=filesystem, partitioning="hive"
    )


def _from_dataset(dataset: pads.Dataset, root: str | None) -> Source:
    import pyarrow.dataset as pads

    if not isinstance(dataset, pads.FileSystemDataset):
        raise SourceError(
            f"a {type(dataset).__name__} does not lie in files, so nothing can be skipped; "
            "give the folder or the list of files it was made of"
        )
    try:
        # The order of a scan is that of get_fragments; `files` may be sorted otherwise.
        found = list(dataset.get_fragments())
    except ValueError:
        raise SourceError(
            "the dataset carries a filter of its own; give the dataset it was made of, and the "
            "filter to the scan"
        ) from None
    if not found:
        raise NoFragments(
            f"{root or 'the source'} holds no data file; write some first, or check the path"
        )
    paths = [str(fragment.path) for fragment in found]
    if len(set(paths)) < len(paths) and any(map(_is_part_of_file, found)):
        raise SourceError(
            "the dataset is made of row groups of files rather than of files; give the files"
        )
    if root is None:
        root = _common_folder(paths)
    fragments = tuple(
        Fragment(path, posixpath.relpath(path, root), each.partition_expression)
        for path, each in zip(paths, found, strict=True)
    )
    return Source(dataset.schema, dataset.format, dataset.filesystem, root, fragments)


def _is_part_of_file(fragment: pads.Fragment) -> bool:
    import pyarrow.dataset as pads

    return (
        isinstance(fragment, pads.ParquetFileFragment)
        and fragment.num_row_groups < fragment.metadata.num_row_groups
    )


def _common_folder(paths: Iterable[str]) -> str:
    try:
        return posixpath.commonpath([posixpath.dirname(path) for path in paths]) or "/"
    except ValueError:
        raise SourceError(
            "the files do not share a folder; give an index_dir, or one dataset for each place"
        ) from None

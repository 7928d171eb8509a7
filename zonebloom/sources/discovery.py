"""Find the fragments of a source with the discovery of ``pyarrow.dataset``."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base import arguments
from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.errors import (
    FragmentUnreadable,
    InvalidArgument,
    NoFragments,
    SchemaMismatch,
    SourceError,
)
from zonebloom.sources.column_batches import union_type, unite_schemas
from zonebloom.sources.listed_files import listed_files
from zonebloom.sources.plain_files import FolderListing, files_below, list_local, plain_files
from zonebloom.sources.source import Fragment, Source
from zonebloom.sources.table_folders import refuse_listed_tables, refuse_tables
from zonebloom.storage.files import (
    file_errors,
    require_parquet,
)
from zonebloom.storage.object_store import StoreHandler, is_store, path_in
from zonebloom.storage.paths import absolute_path, filesystem_of_paths, filesystem_of_uri, is_uri
from zonebloom.storage.patterns import fixed_folder, is_pattern, matching_files
from zonebloom.storage.store import store_of

if TYPE_CHECKING:
    import pyarrow.dataset as pads

    from zonebloom.parquet.encryption_keys import ParquetKeys

Partitioning: TypeAlias = "str | Sequence[str] | pads.Partitioning | None"
Schema: TypeAlias = pa.Schema | Literal["union"] | None

_FORMATS = ("parquet", "ipc", "arrow", "feather", "csv", "json", "orc")
_PARTITIONINGS = ("auto", "hive")


def discover_source(
    source: Any,
    format: str = "parquet",
    filesystem: Any = None,
    partitioning: Partitioning = "auto",
    schema: Schema = None,
    keys: ParquetKeys | None = None,
) -> Source:
    is_path = isinstance(source, str | os.PathLike)
    if not is_path and is_dataset(source):
        require_no_schema(source, schema)
        return _from_dataset(source, None)
    arguments.require_choice(format, "format", _FORMATS)
    is_union = isinstance(schema, str) and schema == "union"
    if not (schema is None or is_union or isinstance(schema, pa.Schema)):
        raise arguments.invalid_value(schema, "schema", 'give a pyarrow.Schema, "union" or None')
    user_schema = schema if isinstance(schema, pa.Schema) else None
    discovery = _Discovery(
        format if keys is None else keys.format,
        as_arrow_filesystem(filesystem),
        _check_partitioning(partitioning),
        user_schema,
    )
    if is_path:
        with _undecodable_path_errors():
            opened = discovery.from_path(arguments.require_path(source, "source"))
    else:
        if not source:
            raise NoFragments("the list of files is empty; give at least one file")
        opened = discovery.from_paths(
            [arguments.require_path(item, "an item of source") for item in source]
        )
    if schema is None:
        return replace(opened, type_agreement="first")
    if user_schema is not None:
        return replace(opened, type_agreement="cast")
    return _with_union_schema(opened)


@contextmanager
def _undecodable_path_errors() -> Iterator[None]:
    """Replace the codec's error by one that names the file whose name is not UTF-8."""
    try:
        yield
    except UnicodeError as error:
        if not isinstance(error, UnicodeDecodeError | UnicodeEncodeError):
            raise
        raise FragmentUnreadable(
            f"the name of the file {error.object!a} is not UTF-8, which pyarrow cannot read; "
            "rename the file, or move it out of the folder"
        ) from None


def is_dataset(source: Any) -> bool:
    # Import pyarrow.dataset late here and elsewhere, because it imports pandas.
    import pyarrow.dataset as pads

    return isinstance(source, pads.Dataset)


def require_no_schema(source: Any, schema: Schema) -> None:
    if schema is not None:
        raise InvalidArgument(
            f"a {type(source).__name__} has a schema of its own; leave schema out"
        )


def source_of_files(paths: Sequence[str], filesystem: pafs.FileSystem) -> Source:
    return _from_dataset(_Discovery("parquet", filesystem).dataset(list(paths), filesystem), None)


def as_arrow_filesystem(filesystem: Any) -> pafs.FileSystem | None:
    if filesystem is None:
        return None
    from zonebloom.storage.fsspec_files import FsspecHandler, with_os_errors

    if isinstance(filesystem, pafs.FileSystem):
        return with_os_errors(filesystem)
    if is_store(filesystem):
        return pafs.PyFileSystem(StoreHandler(filesystem))
    if not hasattr(filesystem, "open") or not hasattr(filesystem, "info"):
        raise InvalidArgument(
            f"filesystem is a {type(filesystem).__name__}; give a file system of pyarrow.fs or "
            "fsspec, or a store of obstore"
        )
    return pafs.PyFileSystem(FsspecHandler(filesystem))


def _check_partitioning(partitioning: Any) -> Partitioning:
    """Return the argument if `pyarrow.dataset.dataset` takes it, or raise `InvalidArgument`."""
    if partitioning is None:
        return None
    if isinstance(partitioning, str):
        return arguments.require_choice(partitioning, "partitioning", _PARTITIONINGS)
    if isinstance(partitioning, list) and partitioning:
        return arguments.require_name_list(partitioning, "partitioning")
    import pyarrow.dataset as pads

    if isinstance(partitioning, pads.Partitioning | pads.PartitioningFactory):
        return partitioning
    advice = "give 'auto', 'hive', a list of column names, a pyarrow.dataset.Partitioning, or None"
    raise arguments.invalid_value(partitioning, "partitioning", advice)


@dataclass(frozen=True, slots=True)
class _Discovery:
    """The options with which files are found and opened as a source."""

    format: str | pads.FileFormat
    filesystem: pafs.FileSystem | None
    partitioning: Partitioning = None
    schema: pa.Schema | None = None

    def from_paths(self, paths: list[str], base: str | None = None) -> Source:
        """Return the source of some files and folders.

        Partition values are parsed from paths below `base`. If some paths are folders, `base` is
        the folder that contains all paths.
        """
        filesystem = self.filesystem
        if filesystem is None:
            filesystem, paths = filesystem_of_paths([absolute_path(path) for path in paths])
        paths = [path_in(filesystem, path) for path in paths]
        # With a base, paths come from a pattern, which matches files only.
        folders = _folders_among(filesystem, paths) if base is None else set()
        files, root = paths, None
        if folders:
            files = _expand_folders(filesystem, paths, folders)
            root = base = _shared_folder(
                path.rstrip("/") if path in folders else posixpath.dirname(path) for path in paths
            )
        source = _from_dataset(self.dataset(files, filesystem, base), root)
        refuse_tables(filesystem, source.root)
        return replace(_require_no_tables(source), has_listed_folders=bool(folders))

    def from_path(self, path: str) -> Source:
        """Return the source of a folder, a file, a pattern or a URI."""
        filesystem = self.filesystem
        if filesystem is None and is_uri(path):
            filesystem, path = filesystem_of_uri(path)
        elif filesystem is None:
            filesystem, path = pafs.LocalFileSystem(), absolute_path(path)
        assert filesystem is not None
        path = path_in(filesystem, path)
        # URLs that a file system of fsspec takes as they are may have a query.
        if is_pattern(path) and not is_uri(path) and not _is_name(filesystem, path):
            files = matching_files(filesystem, path)
            if not files:
                raise NoFragments(f"no file matches {path}; check the pattern")
            return replace(self, filesystem=filesystem).from_paths(files, fixed_folder(path))
        if self.format == "parquet" and self._is_auto and self.schema is None:
            listed = listed_files(filesystem, path)
            if listed is not None:
                return listed
        store_of(filesystem).forget_listings()
        with file_errors(path, "make it readable, or try again later", "look at"):
            kind = filesystem.get_file_info(path).type
        if kind == pafs.FileType.NotFound:
            raise NoFragments(f"{path} does not exist; check the path")
        is_folder = kind == pafs.FileType.Directory
        # Check for tables before any discovery, because an empty table may have no data file.
        refuse_tables(filesystem, path if is_folder else posixpath.dirname(path))
        listing = list_local(filesystem, path) if is_folder else None
        if self.format == "parquet" and self._is_auto and self.schema is None:
            # What cannot be listed is left to pyarrow, which says why.
            is_listed = listing is not None or not is_folder
            plain = plain_files(filesystem, path, listing) if is_listed else None
            if plain is not None:
                return _require_no_tables(plain, listing)
        discovery = replace(self, partitioning="hive") if is_folder and self._is_auto else self
        root = path.rstrip("/") if is_folder else None
        return _require_no_tables(_from_dataset(discovery.dataset(path, filesystem), root), listing)

    @property
    def _is_auto(self) -> bool:
        return isinstance(self.partitioning, str) and self.partitioning == "auto"

    def dataset(
        self, paths: str | list[str], filesystem: pafs.FileSystem, base: str | None = None
    ) -> pads.Dataset:
        first = paths if isinstance(paths, str) else paths[0]
        name = self.format if isinstance(self.format, str) else self.format.default_extname
        advice = f"check that every file there is {name}, or name the files to use"
        with (
            file_errors(f"the schema of {first}", advice),
            self._other_format_errors(paths, filesystem),
        ):
            # pyarrow lists the index folder too, and a vacuum may delete files there meanwhile.
            for _ in range(2):
                with suppress(FileNotFoundError):
                    return self._discover(paths, filesystem, base)
            try:
                return self._discover(paths, filesystem, base)
            except FileNotFoundError as error:
                raise NoFragments(f"{error}; check the path") from None

    @contextmanager
    def _other_format_errors(
        self, paths: str | list[str], filesystem: pafs.FileSystem
    ) -> Iterator[None]:
        """If Parquet discovery fails, raise an error that names a file of another format."""
        try:
            yield
        except (pa.ArrowException, OSError, ValueError):
            if self.format == "parquet":
                files = [paths] if isinstance(paths, str) else paths
                if isinstance(paths, str) and store_of(filesystem).is_folder(paths):
                    files = files_below(filesystem, paths)
                require_parquet(filesystem, files)
            raise

    def _discover(
        self, paths: str | list[str], filesystem: pafs.FileSystem, base: str | None
    ) -> pads.Dataset:
        import pyarrow.dataset as pads

        partitioning = self.partitioning
        if self._is_auto:
            # Paths without a "=" have no partition values, and pyarrow is faster without hive.
            is_hive = base is not None and any("=" in path[len(base) :] for path in paths)
            partitioning = "hive" if is_hive else None
        if base is not None and partitioning is not None and not isinstance(paths, str):
            return self._discover_partitions(paths, filesystem, base, partitioning)
        try:
            return pads.dataset(
                paths,
                schema=self.schema,
                format=self.format,
                filesystem=filesystem,
                partitioning=partitioning,
            )
        except pa.ArrowTypeError:
            if partitioning != "hive" or self.schema is not None or not isinstance(paths, str):
                raise
            files = pafs.FileSelector(paths, recursive=True)
            return self._discover_partitions(files, filesystem, paths, partitioning)

    def _discover_partitions(
        self,
        paths: list[str] | pafs.FileSelector,
        filesystem: pafs.FileSystem,
        base: str,
        partitioning: Any,
    ) -> pads.Dataset:
        """Return a dataset of files whose paths below `base` contain partition values.

        A column that files and paths both hold gets the files' type and the paths' values.
        """
        import pyarrow.dataset as pads

        if partitioning == "hive":
            partitioning = pads.HivePartitioning.discover()
        elif isinstance(partitioning, list):
            partitioning = pads.partitioning(field_names=partitioning)
        first = paths if isinstance(paths, list) else paths.base_dir
        stored = pads.dataset(first, format=self.format, filesystem=filesystem)
        options = pads.FileSystemFactoryOptions(base, partitioning)
        factory = pads.FileSystemDatasetFactory(filesystem, paths, stored.format, options)
        if self.schema is not None:
            return factory.finish(self.schema)
        *_, path_schema = factory.inspect_schemas()
        path_fields = [field for field in path_schema if field.name not in stored.schema.names]
        return factory.finish(pa.schema([*stored.schema, *path_fields], stored.schema.metadata))


def _is_name(filesystem: pafs.FileSystem, path: str) -> bool:
    """Return whether a path with wildcards names a file or folder, and is no pattern.

    A name such as a[1].parquet does not match itself, so it may name a file. The file *.parquet
    matches itself, and must not hide the others.
    """
    if fnmatchcase(path, path):
        return False
    with file_errors(path, "make it readable, or try again later", "look at"):
        return filesystem.get_file_info(path).type != pafs.FileType.NotFound


def _folders_among(filesystem: pafs.FileSystem, paths: Sequence[str]) -> set[str]:
    """Return the paths that are folders."""
    candidates = list(paths)
    if store_of(filesystem).has_round_trips:
        # Asking a store about many paths takes long, and paths with an extension are files.
        candidates = [path for path in paths if "." not in posixpath.basename(path)]
    with file_errors(candidates[0] if candidates else "", "make it readable", "look at"):
        infos = filesystem.get_file_info([path.rstrip("/") or "/" for path in candidates])
    return {
        path
        for path, info in zip(candidates, infos, strict=True)
        if info.type == pafs.FileType.Directory
    }


def _expand_folders(
    filesystem: pafs.FileSystem, paths: Sequence[str], folders: Collection[str]
) -> list[str]:
    """Replace folders among paths by the files below them, and drop duplicates."""
    files: dict[str, None] = {}
    for path in paths:
        below = [path]
        if path in folders:
            below = files_below(filesystem, path)
            if not below:
                raise NoFragments(
                    f"{path} holds no data file; write some first, or leave it out of the list"
                )
        files |= dict.fromkeys(below)
    return list(files)


def _shared_folder(folders: Iterable[str]) -> str:
    try:
        return posixpath.commonpath(list(folders)) or "/"
    except ValueError:
        raise SourceError(
            "the files do not share a folder; give an index_dir, or one dataset for each folder"
        ) from None


def _require_no_tables(source: Source, listing: FolderListing | None = None) -> Source:
    """Return the source if no file lies in a table below its root, or raise `SourceError`."""
    files = [fragment.path for fragment in source.fragments]
    if listing is None:
        refuse_tables(source.filesystem, source.root, files)
    else:
        refuse_listed_tables(source.filesystem, source.root, listing.folders, files)
    return source


def _with_union_schema(source: Source) -> Source:
    """Return the source with the union of all files' schemas."""
    parquet_in = source.filesystem if source.has_statistics else None

    def read_schema(fragment: Fragment) -> pa.Schema:
        with file_errors(fragment.path, verb="read the schema of", parquet_in=parquet_in):
            return source.open(fragment, source.filesystem).physical_schema

    with thread_pool(REMOTE_THREADS) as pool:
        schemas = list(pool.map(read_schema, source.fragments))
    union = schemas[0]
    for number, schema in enumerate(schemas):
        try:
            union = unite_schemas(union, schema)
        except pa.ArrowException as error:
            paths = [fragment.path for fragment in source.fragments]
            raise _union_error(paths, schemas[: number + 1], error) from None
    path_fields = [field for field in source.schema if field.name not in union.names]
    is_shared = all(
        field.type == union.field(field.name).type for schema in schemas for field in schema
    )
    schema = pa.schema([*union, *path_fields], union.metadata)
    return replace(source, schema=schema, type_agreement="shared" if is_shared else "cast")


def _union_error(
    paths: Sequence[str], schemas: Sequence[pa.Schema], error: pa.ArrowException
) -> SchemaMismatch:
    """Return the error for a last schema that cannot be united with the schemas before it.

    The error names two files, because only the user knows which of them is wrong.
    """
    *earlier, last = schemas
    for path, schema in zip(paths, earlier, strict=False):
        for field in schema:
            for position in last.get_all_field_indices(field.name):
                if union_type(field.type, last.types[position]) is None:
                    return SchemaMismatch(
                        f"{path} holds column {field.name!r} as {field.type} and "
                        f"{paths[len(earlier)]} as {last.types[position]}, and no type holds both; "
                        "rewrite one of them, leave it out, or give schema="
                    )
    return SchemaMismatch(
        f"{paths[len(earlier)]} holds columns whose types have no common type with other files: "
        f"{error}; give schema=, or rewrite the file"
    )


def _from_dataset(dataset: pads.Dataset, root: str | None) -> Source:
    import pyarrow.dataset as pads

    if not isinstance(dataset, pads.FileSystemDataset):
        raise SourceError(
            f"a {type(dataset).__name__} does not consist of files, so nothing can be skipped; "
            "give the folder or the list of its files"
        )
    try:
        # A scan follows the order of get_fragments, which may differ from `dataset.files`.
        fragments = list(dataset.get_fragments())
    except ValueError:
        raise SourceError(
            "the dataset has a filter; give the dataset without it, and pass the filter to the scan"
        ) from None
    if not fragments:
        raise NoFragments(
            f"{root or 'the source'} holds no data file; write some first, or check the path"
        )
    paths = [str(fragment.path) for fragment in fragments]
    if len(set(paths)) < len(paths) and any(
        isinstance(fragment, pads.ParquetFileFragment)
        and fragment.num_row_groups < fragment.metadata.num_row_groups
        for fragment in fragments
    ):
        raise SourceError(
            "the dataset consists of row groups of files, not of whole files; give the files"
        )
    from zonebloom.storage.fsspec_files import with_os_errors

    root = root or _shared_folder(posixpath.dirname(path) for path in paths)
    files = tuple(
        Fragment(path, posixpath.relpath(path, root), fragment.partition_expression)
        for path, fragment in zip(paths, fragments, strict=True)
    )
    filesystem = with_os_errors(dataset.filesystem)
    return Source(dataset.schema, dataset.format, filesystem, root, files)

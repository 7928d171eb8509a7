"""How a source becomes fragments, by ``pyarrow.dataset``'s own discovery."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base import arguments
from zonebloom.base.threads import REMOTE_THREADS
from zonebloom.errors import (
    FragmentUnreadable,
    InvalidArgument,
    NoFragments,
    SchemaMismatch,
    SourceError,
)
from zonebloom.parquet.encryption_keys import ParquetKeys
from zonebloom.sources.column_batches import union_type
from zonebloom.sources.plain_files import files_below, plain_files
from zonebloom.sources.source import Fragment, Source
from zonebloom.sources.table_folders import refuse_tables
from zonebloom.storage.files import file_errors, forget_listings, is_local, require_parquet
from zonebloom.storage.fsspec_files import FsspecHandler, with_os_errors
from zonebloom.storage.object_store import StoreHandler, is_store, path_in
from zonebloom.storage.paths import absolute_path, filesystem_of_paths, filesystem_of_uri, is_uri
from zonebloom.storage.patterns import fixed_folder, is_pattern, matching_files

if TYPE_CHECKING:
    import pyarrow.dataset as pads

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
    given = schema if isinstance(schema, pa.Schema) else None
    how = format if keys is None else keys.format
    files = _Files(how, as_arrow_filesystem(filesystem), _checked(partitioning), given)
    if is_path:
        with _naming_undecodable_paths():
            opened = files.at(arguments.require_path(source, "source"))
    elif isinstance(source, Sequence) and not isinstance(source, bytes):
        if not source:
            raise NoFragments("the list of files is empty; give at least one file")
        opened = files.named([arguments.require_path(each, "an item of source") for each in source])
    else:
        raise SourceError(
            f"a {type(source).__name__} is not a dataset; give a folder, a file, a list of files, "
            "a glob, a URI, a pyarrow.dataset.Dataset, a pyarrow.Table, a deltalake.DeltaTable or "
            "a pyiceberg table"
        )
    if schema is None:
        return replace(opened, types="first")
    return replace(opened, types="cast") if given is not None else _united(opened)


@contextmanager
def _naming_undecodable_paths() -> Iterator[None]:
    """Name a file whose name is not UTF-8, in place of the codec's error."""
    try:
        yield
    except UnicodeError as error:
        if not isinstance(error, UnicodeDecodeError | UnicodeEncodeError):
            raise
        raise FragmentUnreadable(
            f"the name of the file {error.object!a} is not UTF-8, and pyarrow reads no such file; "
            "rename it, or move it out of the folder"
        ) from None


def is_dataset(source: Any) -> bool:
    # Imported late, as everywhere: it brings pandas in.
    import pyarrow.dataset as pads

    return isinstance(source, pads.Dataset)


def require_no_schema(source: Any, schema: Schema) -> None:
    if schema is not None:
        raise InvalidArgument(
            f"a {type(source).__name__} has a schema of its own; leave schema out"
        )


def source_of_files(paths: Sequence[str], filesystem: pafs.FileSystem) -> Source:
    return _from_dataset(_Files("parquet", filesystem).dataset(list(paths), filesystem), None)


def as_arrow_filesystem(filesystem: Any) -> pafs.FileSystem | None:
    if filesystem is None or isinstance(filesystem, pafs.FileSystem):
        return None if filesystem is None else with_os_errors(filesystem)
    if is_store(filesystem):
        return pafs.PyFileSystem(StoreHandler(filesystem))
    if not hasattr(filesystem, "open") or not hasattr(filesystem, "info"):
        raise InvalidArgument(
            f"filesystem is a {type(filesystem).__name__}; give one of pyarrow.fs or fsspec, "
            "or a store of obstore"
        )
    return pafs.PyFileSystem(FsspecHandler(filesystem))


def _checked(partitioning: Any) -> Partitioning:
    """What `pyarrow.dataset.dataset` takes for partitioning, refused here if it is not that."""
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
class _Files:
    format: str | pads.FileFormat
    filesystem: pafs.FileSystem | None
    partitioning: Partitioning = None
    schema: pa.Schema | None = None

    def named(self, paths: list[str], base: str | None = None) -> Source:
        """Return the source of some files and folders.

        What paths say of the rows counts below `base`, which is the folder that all are in where
        some are folders.
        """
        where = self.filesystem
        if where is None:
            where, paths = filesystem_of_paths([absolute_path(path) for path in paths])
        paths = [path_in(where, path) for path in paths]
        # A pattern names files only.
        folders = _folders_among(where, paths) if base is None else set()
        files, root = paths, None
        if folders:
            files = _files_of(where, paths, folders)
            root = base = _common_folder(
                path.rstrip("/") if path in folders else posixpath.dirname(path) for path in paths
            )
        source = _from_dataset(self.dataset(files, where, base), root)
        refuse_tables(where, source.root)
        return replace(_not_of_tables(source), is_listed=bool(folders))

    def at(self, path: str) -> Source:
        where = self.filesystem
        if where is None and is_uri(path):
            where, path = filesystem_of_uri(path)
        elif where is None:
            where, path = pafs.LocalFileSystem(), absolute_path(path)
            if is_pattern(path) and not os.path.lexists(path):
                matching = matching_files(path)
                if not matching:
                    raise NoFragments(f"no file matches {path}; check the pattern")
                return self.named(matching, fixed_folder(path))
        assert where is not None
        path = path_in(where, path)
        forget_listings(where)
        with file_errors(path, "make it readable, or try again when it is", "look at"):
            kind = where.get_file_info(path).type
        if kind == pafs.FileType.NotFound:
            raise NoFragments(f"{path} does not exist; check the path")
        is_folder = kind == pafs.FileType.Directory
        # Before anything is read: a table without rows may have no file.
        refuse_tables(where, path if is_folder else posixpath.dirname(path))
        if self.format == "parquet" and self._is_auto and self.schema is None:
            plain = plain_files(where, path, is_folder)
            if plain is not None:
                return _not_of_tables(plain)
        files = replace(self, partitioning="hive") if is_folder and self._is_auto else self
        root = path.rstrip("/") if is_folder else None
        return _not_of_tables(_from_dataset(files.dataset(path, where), root))

    @property
    def _is_auto(self) -> bool:
        return isinstance(self.partitioning, str) and self.partitioning == "auto"

    def dataset(
        self, paths: str | list[str], filesystem: pafs.FileSystem, base: str | None = None
    ) -> pads.Dataset:
        first = paths if isinstance(paths, str) else paths[0]
        name = self.format if isinstance(self.format, str) else self.format.default_extname
        advice = f"check that every file there is {name}, or name the files to use"
        with file_errors(f"the schema of {first}", advice), self._naming_foreign(paths, filesystem):
            # pyarrow lists the index folder too, of which a vacuum may delete a part meanwhile.
            for _ in range(2):
                with suppress(FileNotFoundError):
                    return self._discovered(paths, filesystem, base)
            try:
                return self._discovered(paths, filesystem, base)
            except FileNotFoundError as error:
                raise NoFragments(f"{error}; check the path") from None

    @contextmanager
    def _naming_foreign(
        self, paths: str | list[str], filesystem: pafs.FileSystem
    ) -> Iterator[None]:
        """Name a file that is not meant to be Parquet, if the files are and cannot be opened."""
        try:
            yield
        except (pa.ArrowException, OSError, ValueError):
            if self.format == "parquet":
                files = [paths] if isinstance(paths, str) else paths
                if isinstance(paths, str) and _is_folder(filesystem, paths):
                    files = files_below(filesystem, paths)
                require_parquet(filesystem, files)
            raise

    def _discovered(
        self, paths: str | list[str], filesystem: pafs.FileSystem, base: str | None
    ) -> pads.Dataset:
        import pyarrow.dataset as pads

        partitioning = self.partitioning
        if self._is_auto:
            # Without a "=" in a path there is nothing to read from it, and pyarrow is quicker.
            is_hive = base is not None and any("=" in path[len(base) :] for path in paths)
            partitioning = "hive" if is_hive else None
        if base is not None and partitioning is not None and not isinstance(paths, str):
            return self._partitioned(paths, filesystem, base, partitioning)
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
            return self._partitioned(files, filesystem, paths, partitioning)

    def _partitioned(
        self,
        paths: list[str] | pafs.FileSelector,
        filesystem: pafs.FileSystem,
        base: str,
        partitioning: Any,
    ) -> pads.Dataset:
        """Return a dataset of files whose paths below a folder name values.

        A column that files hold too has the files' type and the paths' values.
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
        *_, of_paths = factory.inspect_schemas()
        added = [field for field in of_paths if field.name not in stored.schema.names]
        return factory.finish(pa.schema([*stored.schema, *added], stored.schema.metadata))


def _folders_among(filesystem: pafs.FileSystem, paths: Sequence[str]) -> set[str]:
    """Return the paths that are folders."""
    candidates = list(paths)
    if not is_local(filesystem):
        # To ask a store about each of many files takes long, and files have an extension.
        candidates = [path for path in paths if "." not in posixpath.basename(path)]
    with file_errors(candidates[0] if candidates else "", "make it readable", "look at"):
        infos = filesystem.get_file_info([path.rstrip("/") or "/" for path in candidates])
    return {
        path
        for path, info in zip(candidates, infos, strict=True)
        if info.type == pafs.FileType.Directory
    }


def _files_of(
    filesystem: pafs.FileSystem, paths: Sequence[str], folders: Collection[str]
) -> list[str]:
    """Return the files among paths and those below the folders among them, each once."""
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


def _common_folder(folders: Iterable[str]) -> str:
    try:
        return posixpath.commonpath(list(folders)) or "/"
    except ValueError:
        raise SourceError(
            "the files do not share a folder; give an index_dir, or one dataset for each place"
        ) from None


def _is_folder(filesystem: pafs.FileSystem, path: str) -> bool:
    return filesystem.get_file_info(path).type == pafs.FileType.Directory


def _not_of_tables(source: Source) -> Source:
    """A source, when none of its files lies in a table; its root has been looked at."""
    refuse_tables(source.filesystem, source.root, [each.path for each in source.fragments])
    return source


def _united(source: Source) -> Source:
    parquet_in = source.filesystem if source.has_statistics else None

    def stored(fragment: Fragment) -> pa.Schema:
        with file_errors(fragment.path, verb="read the schema of", parquet_in=parquet_in):
            return source.open(fragment, source.filesystem).physical_schema

    with ThreadPoolExecutor(REMOTE_THREADS) as pool:
        schemas = list(pool.map(stored, source.fragments))
    union = schemas[0]
    for number, schema in enumerate(schemas):
        try:
            union = pa.unify_schemas([union, schema], promote_options="permissive")
        except pa.ArrowException as error:
            paths = [fragment.path for fragment in source.fragments]
            raise _no_union(paths, schemas[: number + 1], error) from None
    of_paths = [each for each in source.schema if each.name not in union.names]
    is_shared = all(each.type == union.field(each.name).type for one in schemas for each in one)
    schema = pa.schema([*union, *of_paths], union.metadata)
    return replace(source, schema=schema, types="shared" if is_shared else "cast")


def _no_union(
    paths: Sequence[str], schemas: Sequence[pa.Schema], error: pa.ArrowException
) -> SchemaMismatch:
    """Return the error for a last schema that has no union with those before it.

    It names two files, for only the user knows which of them is the odd one.
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
        f"{paths[len(earlier)]} holds columns of types that have none in common with other files: "
        f"{error}; give schema=, or rewrite the file"
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
        fragments = list(dataset.get_fragments())
    except ValueError:
        raise SourceError(
            "the dataset carries a filter of its own; give the dataset it was made of, and the "
            "filter to the scan"
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
            "the dataset is made of row groups of files rather than of files; give the files"
        )
    root = root or _common_folder(posixpath.dirname(path) for path in paths)
    files = tuple(
        Fragment(path, posixpath.relpath(path, root), each.partition_expression)
        for path, each in zip(paths, fragments, strict=True)
    )
    filesystem = with_os_errors(dataset.filesystem)
    return Source(dataset.schema, dataset.format, filesystem, root, files)

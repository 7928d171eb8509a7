"""Open folders, files, patterns and PyArrow datasets as sources."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.base import arguments
from zonebloom.base.threads import REMOTE_THREADS, thread_pool
from zonebloom.errors import (
    FilterError,
    FragmentUnreadable,
    InvalidArgument,
    NoFragments,
    SchemaMismatch,
    SourceError,
)
from zonebloom.sources.column_batches import union_type, unite_schemas
from zonebloom.sources.listing import expand_folders, folders_among, is_name, list_data_files
from zonebloom.sources.source import Fragment, Source
from zonebloom.sources.table_folders import refuse_tables
from zonebloom.storage.files import (
    file_errors,
    require_parquet,
)
from zonebloom.storage.object_store import as_arrow_filesystem, path_in
from zonebloom.storage.paths import (
    absolute_path,
    filesystem_of_paths,
    filesystem_of_uri,
    is_uri,
    key_below,
)
from zonebloom.storage.patterns import fixed_folder, is_pattern, matching_files
from zonebloom.storage.random_access import RandomAccessFile
from zonebloom.values.normal_types import innermost_types

if TYPE_CHECKING:
    import pyarrow.dataset as pads

    from zonebloom.parquet.encryption_keys import ParquetKeys

Partitioning: TypeAlias = "str | Sequence[str] | pads.Partitioning | None"
Schema: TypeAlias = pa.Schema | Literal["union"] | None

_FORMATS = ("parquet", "ipc", "arrow", "feather", "csv", "json", "orc")
_PARTITIONINGS = ("auto", "hive", "infer")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
# Polars and DuckDB disagree about leading zeros. As integers, 7 and 007 would be one value.
_INTEGER = re.compile(r"-?(0|[1-9]\d*)")
# Footers of most files fit in it.
_END_BYTES = 64 << 10
_BYTES_OF_UUID = pa.binary(16)


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
        keys,
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
    return discovery.with_union_schema(opened)


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
    return _Discovery("parquet", filesystem).open_files(filesystem, dict.fromkeys(paths))


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
    advice = (
        "give 'auto', 'hive', 'infer', a list of column names, a pyarrow.dataset.Partitioning, "
        "or None"
    )
    raise arguments.invalid_value(partitioning, "partitioning", advice)


@dataclass(frozen=True, slots=True)
class _Discovery:
    """The options with which files are found and opened as a source."""

    format: str | pads.FileFormat
    filesystem: pafs.FileSystem | None
    partitioning: Partitioning = None
    schema: pa.Schema | None = None
    keys: ParquetKeys | None = None

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
        folders = folders_among(filesystem, paths) if base is None else set()
        files, root = dict.fromkeys(paths), None
        if folders:
            files = expand_folders(filesystem, paths, folders)
            root = base = _shared_folder(
                path.rstrip("/") if path in folders else posixpath.dirname(path) for path in paths
            )
        source = self.open_files(filesystem, files, root, base)
        refuse_tables(filesystem, source.root, [fragment.path for fragment in source.fragments])
        return replace(source, has_listed_folders=bool(folders))

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
        if is_pattern(path) and not is_uri(path) and not is_name(filesystem, path):
            files = matching_files(filesystem, path)
            if not files:
                raise NoFragments(f"no file matches {path}; check the pattern")
            return replace(self, filesystem=filesystem).from_paths(files, fixed_folder(path))
        listing = list_data_files(filesystem, path)
        if listing.kind == pafs.FileType.NotFound:
            raise NoFragments(f"{path} does not exist; check the path")
        if not listing.sizes:
            raise _no_data_file(path)
        base = listing.root if listing.kind == pafs.FileType.Directory else None
        return self.open_files(filesystem, listing.sizes, listing.root, base)

    def open_files(
        self,
        filesystem: pafs.FileSystem,
        sizes: Mapping[str, int | None],
        root: str | None = None,
        base: str | None = None,
    ) -> Source:
        """Return the source of files with some sizes, whose common folder is `root`.

        Partition values are parsed from paths below `base`.
        """
        paths = list(sizes)
        partitioning = self.partitioning
        if partitioning == "auto":
            is_hive = base is not None and any("=" in path[len(base) :] for path in paths)
            partitioning = "hive" if is_hive else None
        root = root or _shared_folder(posixpath.dirname(path) for path in paths)
        if partitioning is None and self.format == "parquet" and self.schema is None:
            schema = read_plain_schema(filesystem, paths[0], sizes[paths[0]])
            if schema is not None:
                fragments = tuple(Fragment(path, key_below(path, root)) for path in paths)
                return Source(schema, None, filesystem, root, fragments)
        name = self.format if isinstance(self.format, str) else self.format.default_extname
        advice = f"check that every file there is {name}, or name the files to use"
        try:
            with file_errors(f"the schema of {base or paths[0]}", advice):
                return _from_dataset(self._dataset(filesystem, paths, base, partitioning), root)
        except FragmentUnreadable:
            if self.format == "parquet":
                require_parquet(filesystem, paths)
            raise

    def _dataset(
        self, filesystem: pafs.FileSystem, paths: list[str], base: str | None, partitioning: Any
    ) -> pads.Dataset:
        """Return a dataset of files whose paths below `base` contain partition values.

        A column that files and paths both hold gets the files' type and the paths' values.
        """
        import pyarrow.dataset as pads

        def factory(scheme: Any) -> pads.FileSystemDatasetFactory:
            options = pads.FileSystemFactoryOptions(base, scheme)
            return pads.FileSystemDatasetFactory(filesystem, paths, self._arrow_format, options)

        if partitioning in ("hive", "infer"):
            files = factory(pads.HivePartitioning.discover())
        elif isinstance(partitioning, list):
            files = factory(pads.partitioning(field_names=partitioning))
        else:
            files = factory(partitioning)
        if self.schema is not None and partitioning != "infer":
            return files.finish(self.schema)
        stored, *_, in_paths = files.inspect_schemas()
        if partitioning == "infer":
            files = factory(_infer_hive_types(in_paths.names, paths, base))
            if self.schema is not None:
                return files.finish(self.schema)
            *_, in_paths = files.inspect_schemas()
        # This raises if two columns have one name.
        stored = self._with_uuids(pa.unify_schemas([stored]), filesystem, paths[0])
        path_fields = [field for field in in_paths if field.name not in stored.names]
        return files.finish(pa.schema([*stored, *path_fields], stored.metadata))

    def with_union_schema(self, source: Source) -> Source:
        """Return the source with the union of all files' schemas."""
        parquet_in = source.filesystem if source.has_statistics else None

        def read_schema(fragment: Fragment) -> pa.Schema:
            with file_errors(fragment.path, verb="read the schema of", parquet_in=parquet_in):
                schema = source.open(fragment, source.filesystem).physical_schema
                return self._with_uuids(schema, source.filesystem, fragment.path)

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

    def _with_uuids(self, schema: pa.Schema, filesystem: pafs.FileSystem, path: str) -> pa.Schema:
        """Return the schema of a file with the type UUID where a Parquet file marks UUIDs."""
        # With keys, the format is not a name, but an object that decrypts Parquet files.
        if self.format != "parquet" and self.keys is None:
            return schema

        def read_extended() -> pa.Schema:
            from pyarrow.parquet import read_schema

            properties = None if self.keys is None else self.keys.properties()
            return read_schema(path, filesystem=filesystem, decryption_properties=properties)

        return with_uuids(schema, read_extended)

    @property
    def _arrow_format(self) -> pads.FileFormat:
        import pyarrow.dataset as pads

        if not isinstance(self.format, str):
            return self.format
        if self.format in ("parquet", "csv", "json", "orc"):
            return getattr(pads, f"{self.format.title()}FileFormat")()
        return pads.IpcFileFormat()


def _infer_hive_types(
    names: list[str], paths: Iterable[str], base: str | None
) -> pads.Partitioning:
    """Return a hive partitioning with dates and integers where all values of a name are such.

    Polars and DuckDB infer these types, too.
    """
    import pyarrow.dataset as pads

    as_text = pads.partitioning(pa.schema([(name, pa.string()) for name in names]), flavor="hive")
    start = len(base or "")
    values: dict[str, set[str]] = {name: set() for name in names}
    for folder in {posixpath.dirname(path[start:]) for path in paths}:
        in_path = pads.get_partition_keys(as_text.parse(f"{folder}/file"))
        for name, value in in_path.items():
            if value is not None:
                values[name].add(value)
    types = [(name, _type_of_texts(texts)) for name, texts in values.items()]
    return pads.partitioning(pa.schema(types), flavor="hive")


def _type_of_texts(texts: Collection[str]) -> pa.DataType:
    for pattern, kind in ((_DATE, pa.date32()), (_INTEGER, pa.int64())):
        if texts and all(map(pattern.fullmatch, texts)):
            # A text may look like a date or an integer, and be none.
            with suppress(pa.ArrowInvalid):
                pa.array(texts).cast(kind)
                return kind
    return pa.string()


def add_partition_advice(error: FilterError, source: Source, filter: Any) -> None:
    """Say in a refusal of a filter if it names a partition column of dates or integers as text."""
    # A table has its own types.
    names = set[str]() if source.is_table_snapshot else source.partition_columns()
    for name in sorted(names):
        values = {source.constants(fragment).get(name) for fragment in source.fragments}
        texts = {value for value in values if isinstance(value, str)}
        inferred = _type_of_texts(texts)
        if inferred != pa.string() and re.search(rf"\b{re.escape(name)}\b", str(filter)):
            infer = 'open the dataset with partitioning="infer"'
            text = f"Column {name!r} is text in the paths; {infer} to read it as {inferred}"
            error.args = (f"{error}\n{text}",)
            error.commands[infer] = "give --partitioning infer"


def _shared_folder(folders: Iterable[str]) -> str:
    try:
        return posixpath.commonpath(list(folders)) or "/"
    except ValueError:
        raise SourceError(
            "the files do not share a folder; give an index_dir, or one dataset for each folder"
        ) from None


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


def _no_data_file(path: str) -> NoFragments:
    return NoFragments(f"{path} holds no data file; write some first, or check the path")


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
        raise _no_data_file(root or "the source")
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
        Fragment(path, key_below(path, root), fragment.partition_expression)
        for path, fragment in zip(paths, fragments, strict=True)
    )
    filesystem = with_os_errors(dataset.filesystem)
    return Source(dataset.schema, dataset.format, filesystem, root, files)


def read_plain_schema(
    filesystem: pafs.FileSystem, path: str, num_bytes: int | None
) -> pa.Schema | None:
    """Return the schema of a Parquet file, or None to leave the file to ``pyarrow.dataset``.

    That module imports pandas, which takes longer than a lookup. It says what is wrong with a file
    that cannot be read.
    """
    from pyarrow.parquet import ParquetFile

    try:
        file = RandomAccessFile(filesystem, path, num_bytes=num_bytes)
        try:
            (end,) = file.read([(max(0, file.num_bytes - _END_BYTES), file.num_bytes)])
            footer_bytes = int.from_bytes(end[-8:-4], "little") + 8
            if len(end) < footer_bytes <= file.num_bytes:
                (end,) = file.read([(file.num_bytes - footer_bytes, file.num_bytes)])
        finally:
            file.close()

        def read_schema(*, has_extensions: bool) -> pa.Schema:
            with ParquetFile(
                pa.BufferReader(end), arrow_extensions_enabled=has_extensions
            ) as parquet:
                return parquet.schema_arrow

        schema = with_uuids(
            read_schema(has_extensions=False), lambda: read_schema(has_extensions=True)
        )
    except (pa.ArrowException, OSError):
        return None
    return None if len(set(schema.names)) < len(schema.names) else schema


def with_uuids(schema: pa.Schema, read_extended: Callable[[], pa.Schema]) -> pa.Schema:
    """Return the schema of a Parquet file with the type UUID where the file marks UUIDs.

    PyArrow's datasets read them as 16 bytes, which no engine compares with text. ``read_extended``
    reads the schema with all types that files mark. Of these, JSON stays text, which is compared.
    """
    if not any(_BYTES_OF_UUID in innermost_types(type_) for type_ in schema.types):
        return schema
    marked, plain = str(pa.uuid()), str(_BYTES_OF_UUID)
    fields = [
        new if str(new.type).replace(marked, plain) == str(old.type) else old
        for old, new in zip(schema, read_extended(), strict=True)
    ]
    return pa.schema(fields, schema.metadata)


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
    if is_delta or _is_iceberg(source) or isinstance(source, pa.Table):
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


def _is_instance(source: Any, module: str, class_name: str) -> bool:
    # Whoever has a table has imported its library.
    library = sys.modules.get(module)
    return library is not None and isinstance(source, getattr(library, class_name))

"""Iceberg tables: the files, the schema and the partition values of their current snapshot.

Iceberg ties columns by field id, files are read by name here: names have to mean the same in
every file. Tables with rows deleted by delete files are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.fs as pafs

from zonebloom.errors import NoFragments, SourceError
from zonebloom.storage.discovery import as_arrow_filesystem
from zonebloom.storage.files import reading
from zonebloom.storage.snapshot import SnapshotSource, snapshot_source
from zonebloom.threads import REMOTE_THREADS

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import MappedField


def is_iceberg(source: Any) -> bool:
    # Whoever holds one has imported it.
    library = sys.modules.get("pyiceberg.table")
    return library is not None and isinstance(source, library.Table)


def open_iceberg(table: Table, filesystem: Any = None) -> SnapshotSource:
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import index_name_by_id

    name = f"Iceberg table {'.'.join(table.name())}"
    snapshot = table.current_snapshot()
    if snapshot is None:
        raise NoFragments(f"the {name} has no snapshot; write some rows first")
    schema = table.schema()
    for field_id, column in index_name_by_id(schema).items():
        if getattr(schema.find_field(field_id), "initial_default", None) is not None:
            raise SourceError(
                f"column {column!r} of the {name} has an initial default, which older "
                "files do not hold; rewrite the table without one first"
            )
    files = _data_files(table, name)
    try:
        arrow = schema_to_pyarrow(schema, include_field_ids=False)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise SourceError(
            f"the schema of the {name} has no counterpart in Arrow: {error}"
        ) from None
    arrow = pa.schema([each.with_type(_narrow(each.type)) for each in arrow])
    where, root, paths = _places(
        table, [each.file_path for each in files], as_arrow_filesystem(filesystem), name
    )
    inexact = _inexact(table, arrow)
    if inexact or not _names_are_kept(table):
        _check_files(table, where, paths, inexact, name)
    return snapshot_source(
        f"{name} at snapshot {snapshot.snapshot_id}",
        arrow,
        where,
        root,
        [
            (path, _partition_values(table, each, arrow, name))
            for path, each in zip(paths, files, strict=True)
        ],
    )


def _data_files(table: Table, name: str) -> list[IcebergFile]:
    from pyiceberg.manifest import FileFormat

    advice = (
        "rewrite its files first (in Spark: CALL system.rewrite_data_files(table => ..., options "
        "=> map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')))"
    )
    try:
        tasks = list(table.scan().plan_files())
    except ValueError as error:
        # As when rows are deleted by equality deletes.
        raise SourceError(f"pyiceberg cannot scan the {name}: {error}; {advice}") from None
    files = []
    for task in tasks:
        if task.delete_files:
            raise SourceError(
                f"rows of {task.file.file_path} in the {name} are deleted by a delete file or a "
                f"deletion vector; {advice}"
            )
        if task.file.file_format != FileFormat.PARQUET:
            raise SourceError(
                f"{task.file.file_path} of the {name} is no Parquet file; rewrite the table as "
                "Parquet first"
            )
        files.append(task.file)
    return files


def _ids(schema: Schema) -> dict[str, int]:
    """Field ids by name, those inside structs, lists and maps too, with dots between."""
    from pyiceberg.schema import index_name_by_id

    return {name: field_id for field_id, name in index_name_by_id(schema).items()}


def _other(stored: Iterable[tuple[str, int | None]], current: Mapping[str, int]) -> str | None:
    """The first current column that goes by another name, or whose name is another column's."""
    names = {field_id: name for name, field_id in current.items()}
    for name, field_id in stored:
        if current.get(name, field_id) != field_id:
            return name
        if field_id is not None and names.get(field_id, name) != name:
            return names[field_id]
    return None


def _names_are_kept(table: Table) -> bool:
    """Whether no file can hold a column under another name, by the table's metadata alone."""
    current = _ids(table.schema())
    schemas = table.schemas()
    # Ids count up from 0: with one missing, a schema was forgotten whose files may live on.
    if sorted(schemas) != list(range(len(schemas))):
        return False
    if any(_other(_ids(each).items(), current) for each in schemas.values()):
        return False
    if not _mapping_is_plain(table):
        return False
    snapshot = table.current_snapshot()
    assert snapshot is not None
    # Files of format version 1 have sequence number 0; its metadata need not keep schemas.
    return all(manifest.min_sequence_number for manifest in snapshot.manifests(table.io))


def _mapping_is_plain(table: Table) -> bool:
    """Whether files without field ids, if there are any, name columns as the table does."""
    mapping = table.name_mapping()
    if mapping is None:
        return True
    mapped = dict(_mapped(mapping.root))
    schema = table.schema()
    return all(
        mapped.get(field_id) == [schema.find_field(field_id).name]
        for field_id in _ids(schema).values()
    )


def _mapped(fields: Sequence[MappedField]) -> Iterator[tuple[int | None, list[str]]]:
    for field in fields:
        yield field.field_id, list(field.names)
        yield from _mapped(field.fields)


def _check_files(
    table: Table,
    filesystem: pafs.FileSystem,
    paths: Sequence[str],
    needed: Collection[str],
    name: str,
) -> None:
    """Refuse files that hold a column under another name, or lack one, as their footers say."""
    import pyarrow.parquet as pq

    current = _ids(table.schema())
    named = table.name_mapping() is not None and _mapping_is_plain(table)

    def stored(path: str) -> list[tuple[str, int | None]]:
        with reading(f"{path} of the {name}"), filesystem.open_input_file(path) as file:
            return list(_stored_ids(pq.read_schema(file)))

    with ThreadPoolExecutor(REMOTE_THREADS) as pool:
        for path, ids in zip(paths, pool.map(stored, paths), strict=True):
            for column in needed:
                if all(name != column for name, _ in ids):
                    raise SourceError(
                        f"{path} of the {name} does not hold column {column!r}, whose partition "
                        "values are floating point numbers and not kept exactly; rewrite the file "
                        "first"
                    )
            if all(field_id is None for _, field_id in ids):
                if not named:
                    raise SourceError(
                        f"{path} of the {name} has no field ids, and the table's name mapping does "
                        "not tell its columns by their names alone; rewrite the file first"
                    )
                continue
            other = _other(ids, current)
            if other is not None:
                raise SourceError(
                    f"column {other!r} of the {name} has another name in {path}, which "
                    "was written before it was renamed or added; rewrite the file first (in "
                    "Spark: CALL system.rewrite_data_files(table => ..., options => "
                    "map('rewrite-all', 'true')))"
                )


def _stored_ids(fields: Iterable[pa.Field], prefix: str = "") -> Iterator[tuple[str, int | None]]:
    """What `_ids` gives, of a file's schema; names inside lists and maps are Iceberg's."""
    for field in fields:
        name = prefix + field.name
        field_id = (field.metadata or {}).get(b"PARQUET:field_id")
        yield name, None if field_id is None else int(field_id)
        inner: list[pa.Field] = []
        kind = field.type
        if pa.types.is_struct(kind):
            inner = list(kind.fields)
        elif pa.types.is_map(kind):
            inner = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            inner = [kind.value_field.with_name("element")]
        yield from _stored_ids(inner, f"{name}.")


def _identities(table: Table, spec_id: int) -> Iterator[tuple[int, str]]:
    """The partition values of a spec that are values of columns: their place, and the column."""
    from pyiceberg.transforms import IdentityTransform

    names = {field.field_id: field.name for field in table.schema().fields}
    for at, field in enumerate(table.specs()[spec_id].fields):
        if isinstance(field.transform, IdentityTransform) and field.source_id in names:
            yield at, names[field.source_id]


def _inexact(table: Table, schema: pa.Schema) -> set[str]:
    """Columns whose partition values may be rounded: pyiceberg writes doubles as floats."""
    return {
        column
        for spec_id in table.specs()
        for _, column in _identities(table, spec_id)
        if pa.types.is_floating(schema.field(column).type)
    }


def _partition_values(
    table: Table, file: IcebergFile, schema: pa.Schema, name: str
) -> dict[str, pa.Scalar]:
    """The partition values of a file that are columns' own; files from elsewhere may lack such
    columns."""
    values = {}
    for at, column in _identities(table, file.spec_id):
        value, wanted = file.partition[at], schema.field(column).type
        if pa.types.is_floating(wanted):
            continue
        try:
            values[column] = pa.scalar(value.bytes if isinstance(value, UUID) else value, wanted)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SourceError(
                f"partition value {value!r} of {file.file_path} in the {name} is no {wanted}: "
                f"{error}"
            ) from None
    return values


def _places(
    table: Table, locations: Sequence[str], filesystem: pafs.FileSystem | None, name: str
) -> tuple[pafs.FileSystem, str, list[str]]:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = table.io
    if not isinstance(io, PyArrowFileIO):
        io = PyArrowFileIO(io.properties)
    parsed = [io.parse_location(each, io.properties) for each in [table.location(), *locations]]
    if filesystem is None:
        hosts = dict.fromkeys((scheme, netloc) for scheme, netloc, _ in parsed)
        try:
            first, *others = [io.fs_by_scheme(*each) for each in hosts]
        except (pa.ArrowException, OSError, ValueError, ImportError) as error:
            raise SourceError(
                f"cannot open the file system of the {name}: {error}; give zb.dataset a filesystem "
                "of pyarrow.fs or fsspec that reads it"
            ) from None
        if not all(first.equals(other) for other in others):
            raise SourceError(
                f"the files of the {name} lie in several file systems; give zb.dataset a "
                "filesystem of pyarrow.fs or fsspec that reads all of them"
            )
        # pyiceberg's own local one is a subclass that need not pickle.
        filesystem = pafs.LocalFileSystem() if isinstance(first, pafs.LocalFileSystem) else first
    root, *paths = (path for _, _, path in parsed)
    return filesystem, root, paths


def _narrow(type: pa.DataType) -> pa.DataType:
    """A type with 32-bit offsets, as pyiceberg's own scan gives and Parquet files mostly hold."""
    t = pa.types
    if t.is_large_string(type):
        return pa.string()
    if t.is_large_binary(type):
        return pa.binary()
    if t.is_list(type) or t.is_large_list(type):
        return pa.list_(type.value_field.with_type(_narrow(type.value_type)))
    if t.is_struct(type):
        return pa.struct([each.with_type(_narrow(each.type)) for each in type.fields])
    if t.is_map(type):
        key, item = type.key_field, type.item_field
        return pa.map_(key.with_type(_narrow(key.type)), item.with_type(_narrow(item.type)))
    return type

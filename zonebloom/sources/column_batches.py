"""Read columns of one fragment as a stream of small batches, to build an index from them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from zonebloom.errors import SchemaMismatch
from zonebloom.parquet.field_names import metadata_with_names
from zonebloom.parquet.footer import ENCRYPTED_MAGIC, TAIL_BYTES
from zonebloom.sources.source import (
    Fragment,
    Source,
    missing_column,
    require_all_rows,
    stated_row_count,
)
from zonebloom.storage.files import file_errors, without_short_reads
from zonebloom.values.columns import find_leaf_type, leaf_names
from zonebloom.values.normal_types import (
    convert_at_every_depth,
    decoded_type,
    has_python_extension,
    hashed_type,
)
from zonebloom.values.types import family, is_lossless_cast

if TYPE_CHECKING:
    import pyarrow.dataset as pads
    import pyarrow.parquet as pq

# Rows of a batch: large enough that the cost of calls is negligible, small enough for memory.
_BATCH_ROWS = 1 << 17
# Bytes read at a time within a column chunk, so that a chunk of gigabytes is never in memory.
_PARQUET_READ_BYTES = 1 << 20
# A run of row groups that one thread reads has at least this many rows.
_RUN_ROWS = 1 << 20
_TYPE_OF_VIEW = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_BUILD_ADVICE = "repair or remove the file, then build again"


class Run(NamedTuple):
    """Rows of one fragment that one thread reads. If row_groups is None, the whole fragment."""

    first_row: int
    num_rows: int | None
    row_groups: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Column:
    """A leaf column by its path through structs, with the dataset's type.

    The type is not hashed, because extension types that are defined in Python have no hash.
    """

    path: tuple[str, ...]
    type: pa.DataType = field(hash=False)

    @property
    def name(self) -> str:
        return ".".join(self.path)


def read_to_end(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a scan on one thread, which callers may abandon before its end.

    PyArrow crashes the process if such a scan is dropped before its end and a type of the schema is
    an extension type that is defined in Python. So read the remaining batches then.
    """
    batches = iter(batches)
    try:
        # `yield from` would close PyArrow's generator before the rest is read.
        while (batch := next(batches, None)) is not None:
            yield batch
    finally:
        if any(map(has_python_extension, schema.types)):
            for _ in batches:
                pass


class ColumnsReader:
    """Reads columns of one file, batch by batch.

    ``data`` are the bytes of the file, if they are in memory. They are not used if the file is
    encrypted, and then the runs have no row groups.
    """

    def __init__(
        self,
        source: Source,
        filesystem: pafs.FileSystem,
        fragment: Fragment,
        columns: Sequence[Column],
        data: pa.Buffer | None = None,
    ):
        self._source = source
        self._filesystem = filesystem
        self._fragment = fragment
        self._path = fragment.path
        self._columns = tuple(columns)
        self._data = data
        self._constants = source.constants(fragment)
        self._metadata: pq.FileMetaData | None = None
        # The opened file, if its bytes are in memory.
        self._file: pq.ParquetFile | None = None

    def runs(self, split: bool) -> list[Run]:
        if self._source.is_parquet:
            self._metadata = self._unencrypted_metadata()
        metadata = self._metadata
        if metadata is None:
            return [Run(0, None, None)]
        rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        if not split:
            return [Run(0, sum(rows), tuple(range(len(rows))))]
        runs: list[Run] = []
        first_row, count, row_groups = 0, 0, []
        for number, group_rows in enumerate(rows):
            row_groups.append(number)
            count += group_rows
            if count >= _RUN_ROWS or number == len(rows) - 1:
                runs.append(Run(first_row, count, tuple(row_groups)))
                first_row, count, row_groups = first_row + count, 0, []
        return runs

    def read(self, run: Run) -> Iterator[list[pa.Array]]:
        """Yield the values of the columns, batch by batch.

        Raises
        ------
        FragmentUnreadable
            After the last batch, if the file gave fewer rows than its metadata states.
        SchemaMismatch
            If the file holds a column with a type that does not fit the dataset's.
        """
        num_rows = np.zeros(len(self._columns), dtype=np.int64)
        with file_errors(self._path, _BUILD_ADVICE):
            fragment = None
            if run.row_groups is None:
                fragment = self._source.open(self._fragment, self._filesystem)
            batches = (
                self._row_group_batches(run)
                if fragment is None
                else self._fragment_batches(fragment)
            )
            while (batch := next(batches, None)) is not None:
                # After a short read, PyArrow may return columns of different lengths in a batch.
                num_rows += [len(values) for values in batch]
                yield [
                    self._as_dataset_type(values, column)
                    for values, column in zip(batch, self._columns, strict=True)
                ]
            num_stated = run.num_rows if fragment is None else stated_row_count(fragment)
            for count in num_rows.tolist():
                require_all_rows(self._path, count, num_stated)

    def _unencrypted_metadata(self) -> pq.FileMetaData | None:
        """Return the footer, or None if the file is encrypted. The format may have the keys."""
        import pyarrow.parquet as pq

        errors = file_errors(self._path, _BUILD_ADVICE, parquet_in=self._filesystem)
        with errors, contextlib.ExitStack() as stack:
            file = self._open_input()
            if self._data is None:
                stack.callback(file.close)
            if self._fragment.names is not None:
                return metadata_with_names(file, self._fragment.names)
            file.seek(max(0, file.size() - TAIL_BYTES))
            tail = file.read()
            if tail.endswith(ENCRYPTED_MAGIC):
                return None
            parquet_file = pq.ParquetFile(file)
            metadata = parquet_file.metadata
            # If only columns are encrypted, a signature follows the footer.
            if metadata.serialized_size != int.from_bytes(tail[:4], "little"):
                return None
            if self._data is not None:
                self._file = parquet_file
            return metadata

    def _open_input(self) -> pa.NativeFile:
        if self._data is not None:
            return pa.BufferReader(self._data)
        return self._filesystem.open_input_file(self._path)

    def _fragment_batches(self, fragment: pads.Fragment) -> Iterator[list[pa.Array]]:
        projection = {
            str(number): pc.field(*column.path) for number, column in enumerate(self._columns)
        }
        batches = fragment.to_batches(
            schema=self._source.schema,
            columns=projection,
            batch_size=_BATCH_ROWS,
            use_threads=False,
        )
        for batch in read_to_end(batches, self._source.schema):
            for values in batch.columns:
                # Arrays of an IPC file point into its bytes, so check the offsets first.
                values.validate(full=True)
            yield batch.columns

    def _open_file(self) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        if self._file is not None:
            return self._file
        return pq.ParquetFile(
            self._open_input(),
            metadata=self._metadata,
            buffer_size=_PARQUET_READ_BYTES,
            pre_buffer=False,
        )

    def _row_group_batches(self, run: Run) -> Iterator[list[pa.Array]]:
        file, columns = self._open_file(), self._columns
        fields = file.schema_arrow
        is_stored = [self._is_stored(fields, column) for column in columns]
        # PyArrow reserves memory for all rows of a batch, so do not ask for more than there are.
        num_rows = _BATCH_ROWS if run.num_rows is None else min(run.num_rows, _BATCH_ROWS)
        batches = file.iter_batches(
            batch_size=max(num_rows, 1),
            row_groups=list(run.row_groups or ()),
            columns=[
                column.name for column, stored in zip(columns, is_stored, strict=True) if stored
            ],
            use_threads=False,
        )
        for batch in batches:
            yield [
                # A missing column or leaf gets the same values as in a scan.
                leaf_of(batch.column(column.path[0]), column.path)
                if stored
                else missing_column(column.type, batch.num_rows, self._default_of(column))
                for column, stored in zip(columns, is_stored, strict=True)
            ]

    def _default_of(self, column: Column) -> pa.Scalar | None:
        if column.path[0] in self._constants:
            return pa.scalar(self._constants[column.path[0]], column.type)
        return self._fragment.defaults.get(column.name)

    def _is_stored(self, schema: pa.Schema, column: Column) -> bool:
        if column.path[0] in self._constants:
            return False
        fields: pa.Schema | pa.StructType = schema
        for name in column.path[:-1]:
            if not fields.get_all_field_indices(name):
                return False
            inner = fields.field(name).type
            if not isinstance(inner, pa.StructType):
                raise SchemaMismatch(
                    f"{self._path} holds {name!r} as {inner}, so there is no "
                    f"{column.name!r} in it; rewrite the file, or leave it out"
                )
            fields = inner
        return bool(fields.get_all_field_indices(column.path[-1]))

    def _as_dataset_type(self, values: pa.Array, column: Column) -> pa.Array:
        if values.type == column.type:
            return values
        if not holds_values_of(column.type, values.type):
            raise type_mismatch(self._path, column.name, values.type, column.type)
        return values.cast(column.type)


class TableColumns:
    """Reads columns of a table in memory, with the interface of `ColumnsReader`."""

    def __init__(self, table: pa.Table, columns: Sequence[Column]):
        self._table = table
        self._columns = tuple(columns)

    def runs(self, split: bool) -> list[Run]:
        return [Run(0, self._table.num_rows, None)]

    def read(self, run: Run) -> Iterator[list[pa.Array]]:
        """Yield the values of the columns, in batches that lie within one chunk."""
        names = list(dict.fromkeys(column.path[0] for column in self._columns))
        for batch in self._table.select(names).to_batches():
            yield [leaf_of(batch.column(column.path[0]), column.path) for column in self._columns]


def columns_reader(
    source: Source,
    fragment: Fragment,
    columns: Sequence[Column],
    data: pa.Buffer | None = None,
) -> ColumnsReader | TableColumns:
    if source.is_in_memory:
        from zonebloom.sources.memory import table_of

        return TableColumns(table_of(source), columns)
    filesystem = without_short_reads(source.filesystem)
    return ColumnsReader(source, filesystem, fragment, columns, data)


def require_fitting_type(source: Source, fragment: Fragment, path: tuple[str, ...]) -> None:
    """Raise `SchemaMismatch` if the dataset's type may not hold all values of a column of a file.

    Files that do not state their types are read. This raises an error if a value does not fit.
    """
    wanted = find_leaf_type(source.schema, path)
    if source.is_in_memory or wanted is None or path[0] in source.constants(fragment):
        return
    if not (source.has_statistics or source.is_ipc):
        reader = columns_reader(source, fragment, [Column(path, wanted)])
        for run in reader.runs(split=False):
            for _ in reader.read(run):
                pass
        return
    filesystem = without_short_reads(source.filesystem)
    parquet_in = source.filesystem if source.has_statistics else None
    with file_errors(fragment.path, verb="read the schema of", parquet_in=parquet_in):
        if fragment.names is None:
            schema = source.open(fragment, filesystem).physical_schema
        else:
            with filesystem.open_input_file(fragment.path) as file:
                schema = metadata_with_names(file, fragment.names).schema.to_arrow_schema()
    stored = find_leaf_type(schema, path)
    if stored is not None and not holds_values_of(wanted, stored):
        raise type_mismatch(fragment.path, ".".join(path), stored, wanted)


def holds_values_of(wanted: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether a type holds all values that a file stores in another.

    Fields that only one of two structs has do not count.
    """
    if stored == wanted or is_lossless_cast(stored, wanted, checked=True):
        return True
    if (family(stored), family(wanted)) == ("text", "bytes"):
        # The bytes of a text are hashed, in UTF-8.
        return not pa.types.is_fixed_size_binary(hashed_type(wanted))
    if isinstance(stored, pa.StructType) and isinstance(wanted, pa.StructType):
        shared = {field.name for field in stored} & {field.name for field in wanted}
        return all(
            holds_values_of(wanted.field(name).type, stored.field(name).type) for name in shared
        )
    if not (pa.types.is_nested(stored) and pa.types.is_nested(wanted)):
        return False
    return stored.num_fields == wanted.num_fields and all(
        holds_values_of(wanted.field(number).type, stored.field(number).type)
        for number in range(stored.num_fields)
    )


def type_mismatch(
    path: str, column: str, stored: pa.DataType, wanted: pa.DataType, why: object = None
) -> SchemaMismatch:
    """Return the error for a file that holds a column as another type than the dataset's."""
    union = union_type(stored, wanted)
    reason = "" if why is None else f": {why}"
    unite = 'open the dataset with schema="union"'
    # A dataset opened with schema="union" may already have the union type.
    if union is None or union == wanted:
        advice = "rewrite the file, or read other columns"
    else:
        is_exact = holds_values_of(union, stored) and holds_values_of(union, wanted)
        limit = "" if is_exact else ", but cannot index it"
        advice = f"{unite}, which reads both as {union}{limit}, or rewrite the file"
    return SchemaMismatch(
        f"{path} holds column {column!r} as {stored}, the dataset's schema says {wanted}{reason}; "
        f"{advice}",
        commands={unite: "give --schema union"},
    )


def union_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the type that schema="union" gives a column of two types, or None if there is none."""
    schemas = [pa.schema({"column": first}), pa.schema({"column": second})]
    try:
        return unite_schemas(*schemas).field(0).type
    except pa.ArrowException:
        return None


def unite_schemas(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """Return the union of two schemas. Raise `pyarrow.ArrowException` if there is none.

    PyArrow unites no dictionary, view or UUID with other types, so these become types of plain
    values, and UUIDs become 16 bytes.
    """
    try:
        return pa.unify_schemas([first, second], promote_options="permissive")
    except pa.ArrowException:
        plain_schemas = [_with_plain_types(first, second), _with_plain_types(second, first)]
    return pa.unify_schemas(plain_schemas, promote_options="permissive")


def _with_plain_types(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return a schema without dictionaries, views and UUIDs where another has other types."""
    fields = []
    for column in schema:
        positions = other.get_all_field_indices(column.name)
        if any(other.types[position] != column.type for position in positions):
            type_ = convert_at_every_depth(decoded_type(column.type), _uuid_as_bytes)
            column = column.with_type(_TYPE_OF_VIEW.get(type_, type_))
        fields.append(column)
    return pa.schema(fields, schema.metadata)


def _uuid_as_bytes(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.UuidType) else type_


def leaf_of(values: pa.Array, path: tuple[str, ...]) -> pa.Array:
    for name in path[1:]:
        # Unlike StructArray.field, a null struct makes its leaf null.
        values = pc.struct_field(values, name)  # pyright: ignore[reportAttributeAccessIssue]
    return values


def int96_leaves(source: Source) -> tuple[str, ...]:
    """Return the columns, and leaves of structs with dots, that the first file stores as INT96."""
    has_candidates = any(_may_hold_nanoseconds(type_) for type_ in source.schema.types)
    if not source.is_parquet or not has_candidates:
        return ()
    first_file: Any = source.open(source.fragments[0], source.filesystem)
    parquet_schema = first_file.metadata.schema
    names = leaf_names(source.schema)
    return tuple(
        leaf.path
        for leaf in map(parquet_schema.column, range(len(parquet_schema)))
        if leaf.physical_type == "INT96" and leaf.max_repetition_level == 0 and leaf.path in names
    )


def _may_hold_nanoseconds(type_: pa.DataType) -> bool:
    return type_ == pa.timestamp("ns") or (
        isinstance(type_, pa.StructType) and any(_may_hold_nanoseconds(f.type) for f in type_)
    )

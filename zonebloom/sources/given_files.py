"""Read the CSV and Parquet files that users give with keys, or with the rows of an upsert."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa

from zonebloom.base.arrays import uuids_of
from zonebloom.errors import InvalidArgument
from zonebloom.values.normal_types import decoded_type
from zonebloom.values.types import family

_PARQUET_MAGIC = b"PAR1"
_BYTES_OF_UUID = pa.binary(16)
# The first bytes of a file tell what it is.
_HEAD_BYTES = 64
_JSON_START = re.compile(rb'(\xef\xbb\xbf)?\s*(\{\s*"|\[\s*[{\["])')


def read_columns(
    file: IO[bytes], data: pa.Buffer, names: Sequence[str] | None = None
) -> dict[str, pa.ChunkedArray]:
    """Return some columns of a CSV or Parquet file, by default the first. Those of CSV are text.

    ``data`` are the bytes of the file. Raise `InvalidArgument` if they cannot be read, or lack a
    column.
    """
    with _errors_of(file):
        if is_parquet(data):
            import pyarrow.parquet as pq

            names = _chosen_columns(file, names, pq.read_schema(pa.BufferReader(data)).names)
            table = pq.read_table(pa.BufferReader(data), columns=names)
        else:
            from pyarrow import csv

            available = csv.open_csv(pa.BufferReader(data)).schema.names
            names = _chosen_columns(file, names, available)
            options = _csv_options(dict.fromkeys(names, pa.string()))
            options.include_columns = names
            table = csv.read_csv(pa.BufferReader(data), convert_options=options)
    return {name: table.column(name) for name in names}


def is_parquet(data: pa.Buffer) -> bool:
    return bytes(memoryview(data)[: len(_PARQUET_MAGIC)]) == _PARQUET_MAGIC


def open_batches(file: IO[bytes], schema: pa.Schema) -> pa.RecordBatchReader:
    """Return the rows of a CSV or Parquet file, or of stdin, batch by batch.

    CSV is read in the types of a schema, and UUIDs are text there. Raise `InvalidArgument` if the
    file cannot be read.
    """
    # A pipe cannot be read twice, so look at its first bytes without taking them.
    reader: Any = file if hasattr(file, "peek") else io.BufferedReader(file)  # pyright: ignore[reportArgumentType]
    with _errors_of(file):
        head = reader.peek(_HEAD_BYTES)
        if _JSON_START.match(head):
            raise InvalidArgument(f"{file.name} looks like JSON; give a Parquet or CSV file")
        if head.startswith(_PARQUET_MAGIC):
            import pyarrow.parquet as pq

            parquet = pq.ParquetFile(
                reader if reader.seekable() else pa.BufferReader(reader.read())
            )
            return pa.RecordBatchReader.from_batches(parquet.schema_arrow, parquet.iter_batches())
        from pyarrow import csv

        types = {field.name: decoded_type(field.type) for field in schema}
        as_text = {name: pa.string() for name, type_ in types.items() if family(type_) == "bytes"}
        options = _csv_options({**types, **as_text})
        batches = csv.open_csv(pa.PythonFile(reader, "r"), convert_options=options)
        # An upsert itself reads text for columns of the type UUID, and refuses repeated columns.
        binary = [
            name
            for name in as_text
            if types[name] != pa.uuid() and len(batches.schema.get_all_field_indices(name)) == 1
        ]
        wanted = pa.schema(
            [f.with_type(types[f.name]) if f.name in binary else f for f in batches.schema]
        )
        return pa.RecordBatchReader.from_batches(
            wanted, _csv_batches(file, batches, wanted, binary)
        )


def _csv_batches(
    file: IO[bytes], batches: Any, schema: pa.Schema, binary: Iterable[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a CSV file, in which some columns become the bytes of UUIDs, or nulls.

    Raise `InvalidArgument` for other text, and for values that do not fit their types.
    """
    batches_of_file = iter(batches)
    while True:
        with _errors_of(file):
            batch = next(batches_of_file, None)
        if batch is None:
            return
        for name in binary:
            texts, field = batch.column(name), schema.field(name)
            values = uuids_of(texts) if field.type == _BYTES_OF_UUID else None
            if texts.null_count == len(texts):
                values = pa.nulls(len(texts), field.type)
            if values is None:
                # Otherwise the thread of the reader may still read stdin when the process ends.
                batches.close()
                raise InvalidArgument(
                    f"column {name!r} holds bytes, which CSV holds only as the text of UUIDs; give "
                    "a Parquet file"
                )
            batch = batch.set_column(batch.schema.get_field_index(name), field, values)
        yield batch


def _csv_options(types: dict[str, pa.DataType]) -> Any:
    """Return options by which an empty field is null, and a quoted one an empty text."""
    from pyarrow import csv

    return csv.ConvertOptions(
        column_types=types,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _chosen_columns(
    file: IO[bytes], names: Sequence[str] | None, available: Sequence[str]
) -> list[str]:
    chosen = list(available[:1] if names is None else names)
    for name in chosen:
        if name not in available:
            raise InvalidArgument(
                f"{file.name} has no column {name!r}, but {', '.join(available)}; the first line "
                "of a CSV file names its columns"
            )
    return chosen


@contextmanager
def _errors_of(file: IO[bytes]) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"cannot read {file.name}: {error}; give a Parquet file, or a CSV file whose first "
            "line names its columns and whose values fit their types"
        ) from None

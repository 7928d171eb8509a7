"""Write the rows of a Parquet file again in the layout that is recommended for lookups.

Pages have 2,048 rows and an index of their places. A column has a dictionary if its values repeat.
Rows, schema and metadata stay the same, as far as pyarrow can write them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import xxhash

from zonebloom.base.arrays import empty_table
from zonebloom.errors import FragmentUnreadable, UnsupportedType
from zonebloom.parquet.footer import is_encrypted, read_footer
from zonebloom.parquet.layout_advice import (
    MAX_DICTIONARY_BYTES,
    MAX_GROUP_BYTES,
    MAX_GROUP_ROWS,
    MIN_GROUP_ROWS,
    PAGE_ROWS,
)
from zonebloom.parquet.page_headers import parse_page_header
from zonebloom.parquet.thrift import MalformedThrift
from zonebloom.storage.files import file_errors, without_short_reads
from zonebloom.storage.random_access import RandomAccessFile

if TYPE_CHECKING:
    import pyarrow.parquet as pq

Compression: TypeAlias = Literal["source", "zstd", "snappy", "lz4", "gzip", "none"]

# Codecs of pyarrow's metadata that are kept. Other codecs become Zstandard.
_KEPT_CODECS = {
    "UNCOMPRESSED": "none",
    "SNAPPY": "snappy",
    "ZSTD": "zstd",
    "LZ4": "lz4",
    "GZIP": "gzip",
}
# The first rows of a file tell which columns have a dictionary.
_SAMPLE_ROWS = 1 << 15
# Rows are read in batches of at most this size.
_BATCH_ROWS = 1 << 16
_BATCH_BYTES = 32 << 20
_MIN_BATCH_ROWS = 1 << 10
# A dictionary ends at the first of this many values that exceeds its limit.
_VALUES_BETWEEN_CHECKS = 256
# The times that nanoseconds of 64 bits can express, in microseconds.
_MAX_MICROSECONDS = ((1 << 63) - 1) // 1000
# Names have at most 255 bytes. This leaves room for the dot and the extension.
_MAX_NAME_BYTES = 240
_ADVICE = "repair or remove the file, then rewrite again"
_WRITE_ADVICE = "make room or change the permissions, then continue with resume=True (--resume)"


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Options of the new files. ``row_group_rows`` of None keeps the source's row groups."""

    compression: Compression = "source"
    row_group_rows: int | None = None


class FileSummary(NamedTuple):
    """The rows and bytes of a file before it is rewritten."""

    num_rows: int
    num_bytes: int


def summarize_file(filesystem: pafs.FileSystem, path: str) -> FileSummary:
    """Return the rows and bytes of a file.

    Raises
    ------
    FragmentUnreadable
        If the file is damaged or encrypted.
    """
    import pyarrow.parquet as pq

    with file_errors(path, _ADVICE, parquet_in=filesystem):
        with filesystem.open_input_file(path) as stream:
            num_rows = pq.read_metadata(stream).num_rows
        file = RandomAccessFile(filesystem, path)
        try:
            num_bytes = file.num_bytes
            has_encryption = is_encrypted(num_bytes, file.read)
        except MalformedThrift as error:
            raise FragmentUnreadable(
                f"cannot read the footer of {path}: {error}; {_ADVICE}"
            ) from None
        finally:
            file.close()
    if has_encryption:
        raise FragmentUnreadable(
            f"{path} is encrypted, and a rewrite cannot encrypt files; leave it out"
        )
    return FileSummary(num_rows, num_bytes)


def rewrite_file(
    filesystem: pafs.FileSystem,
    path: str,
    target: str,
    options: FileOptions,
    *,
    report: Callable[[int], None],
    require_unchanged: Callable[[], None],
) -> None:
    """Write a file again to a local path, under a temporary name until it is complete.

    ``report`` gets the number of rows of each row group that is written. ``require_unchanged`` is
    called before the new file gets its name, and raises an error if the source has changed.

    Raises
    ------
    FragmentUnreadable
        If the file cannot be read, or if the new file does not have its rows.
    UnsupportedType
        If pyarrow cannot write a type of the file.
    """
    partial = partial_path(target)
    try:
        with (
            file_errors(path, _ADVICE, "rewrite"),
            without_short_reads(filesystem).open_input_file(path) as stream,
        ):
            _FileRewrite(path, stream, options).write(partial, report)
        require_unchanged()
        os.replace(partial, target)
    finally:
        # This must not hide the error that made the file incomplete.
        with suppress(OSError):
            os.remove(partial)


def partial_path(target: str) -> str:
    """Return the path of a file until it is complete. Readers of a folder skip this name.

    >>> partial_path("new/a.parquet")
    'new/.a.parquet.partial'
    """
    folder, name = os.path.split(target)
    if len(os.fsencode(name)) > _MAX_NAME_BYTES:
        name = xxhash.xxh64_hexdigest(os.fsencode(name))
    return os.path.join(folder, f".{name}.partial")


class _FileRewrite:
    """The source file of a rewrite, and the options with which pyarrow writes it again."""

    def __init__(self, path: str, stream: pa.NativeFile, options: FileOptions):
        import pyarrow.parquet as pq

        self._path, self._stream = path, stream
        self._file = pq.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False)
        self._metadata: pq.FileMetaData = self._file.metadata
        self._schema: pa.Schema = self._file.schema_arrow
        self._options = options
        num_rows = max(self._metadata.num_rows, 1)
        bytes_per_row = sum(group.total_byte_size for group in self._source_groups()) / num_rows
        rows = round(_BATCH_BYTES / max(bytes_per_row, 1))
        self._batch_rows = min(max(rows, _MIN_BATCH_ROWS), _BATCH_ROWS)
        leaves = [self._file.schema.column(number) for number in range(len(self._file.schema))]
        self._int96 = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
        self._type_options = self._options_of_types(leaves)

    def _source_groups(self) -> list[pq.RowGroupMetaData]:
        return [self._metadata.row_group(i) for i in range(self._metadata.num_row_groups)]

    def _first_group(self) -> list[int]:
        """Return the number of the first row group that has rows, or nothing."""
        groups = enumerate(self._source_groups())
        return [number for number, group in groups if group.num_rows][:1]

    def _options_of_types(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Return the options with which pyarrow stores the types as the source does."""
        has_integer_decimals = any(
            leaf.logical_type.type == "DECIMAL" and leaf.physical_type in ("INT32", "INT64")
            for leaf in leaves
        )
        return {
            "store_schema": b"ARROW:schema" in (self._metadata.metadata or {}),
            "store_decimal_as_integer": has_integer_decimals,
            "use_deprecated_int96_timestamps": bool(self._int96),
        }

    def write(self, target: str, report: Callable[[int], None]) -> None:
        """Write all rows to a local path, and verify their number."""
        paths, repeating_paths = self._write_sample()
        # Errors of reading have the name of the source already.
        with (
            file_errors(target, _WRITE_ADVICE, "write"),
            self._open_writer(
                target,
                compression=self._compressions(paths),
                use_dictionary=repeating_paths or False,
                write_page_index=True,
                max_rows_per_page=PAGE_ROWS,
                dictionary_pagesize_limit=MAX_DICTIONARY_BYTES,
                write_batch_size=_VALUES_BETWEEN_CHECKS,
            ) as writer,
        ):
            for table in self._new_groups():
                try:
                    writer.write_table(_with_equal_dictionaries(table), table.num_rows)
                except pa.ArrowNotImplementedError as error:
                    # For example, views inside structs of more than one page.
                    raise self._unwritable(error) from None
                report(table.num_rows)
        self._verify(target)

    @contextmanager
    def _open_writer(self, target: Any, **options: Any) -> Iterator[pq.ParquetWriter]:
        """Open a file with the schema and metadata of the source."""
        import pyarrow.parquet as pq

        with pq.ParquetWriter(target, self._schema, **self._type_options, **options) as writer:
            yield writer
            if self._schema.metadata and not self._type_options["store_schema"]:
                # pyarrow writes metadata only together with the Arrow schema.
                writer.add_key_value_metadata(self._schema.metadata)

    def _unwritable(self, error: Exception) -> UnsupportedType:
        return UnsupportedType(
            f"pyarrow cannot write the types of {self._path}: {error}; leave the file out, or "
            "rewrite it by its own writer"
        )

    def _write_sample(self) -> tuple[list[str], list[str]]:
        """Write the first rows in memory. Return the paths of all leaves, and of repeating ones.

        Values of the latter repeat, so these leaves need a dictionary. Raise `UnsupportedType` if
        pyarrow writes a column as another type.
        """
        import pyarrow.parquet as pq

        sample = next(self._file.iter_batches(_SAMPLE_ROWS, row_groups=self._first_group()), None)
        table = empty_table(self._schema) if sample is None else pa.Table.from_batches([sample])
        sink = pa.BufferOutputStream()
        try:
            with self._open_writer(
                sink, compression="none", dictionary_pagesize_limit=1 << 30
            ) as writer:
                writer.write_table(_with_equal_dictionaries(table))
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise self._unwritable(error) from None
        written = sink.getvalue()
        self._require_same_types(pq.ParquetFile(pa.BufferReader(written)))
        return _repeating_columns(written)

    def _require_same_types(self, written: pq.ParquetFile) -> None:
        before, after = self._file.schema, written.schema
        for number in range(min(len(before), len(after))):
            logical_type = before.column(number).logical_type.type
            # Integers of 32 and 64 bits mean the same without a logical type.
            is_same = logical_type in ("NONE", "INT", after.column(number).logical_type.type)
            if not is_same:
                leaf = before.column(number)
                name = leaf.converted_type if logical_type == "UNKNOWN" else logical_type
                raise UnsupportedType(
                    f"{self._path} stores {leaf.path} as {name}, which pyarrow cannot write; leave "
                    "the file out, or rewrite it by its own writer"
                )
        is_same = written.schema_arrow.equals(self._schema, check_metadata=True)
        if len(before) != len(after) or not is_same:
            raise UnsupportedType(
                f"{self._path} has a schema that pyarrow cannot write again; leave the file out, "
                "or rewrite it by its own writer"
            )

    def _compressions(self, paths: Sequence[str]) -> Any:
        """Return the codec of all columns, or a dictionary with that of each path."""
        if self._options.compression != "source":
            return self._options.compression
        groups = self._source_groups()
        if not groups or not paths:
            return "zstd"
        codecs = [groups[0].column(i).compression for i in range(groups[0].num_columns)]
        return {
            path: _KEPT_CODECS.get(codec, "zstd") for path, codec in zip(paths, codecs, strict=True)
        }

    def _new_groups(self) -> Iterator[pa.Table]:
        """Yield the rows of each new row group.

        Row groups end where those of the source end, or earlier if they have many bytes.
        """
        with file_errors(self._path, _ADVICE, "rewrite"):
            yield from self._cut_batches()

    def _cut_batches(self) -> Iterator[pa.Table]:
        ends = self._new_group_ends()
        end = next(ends, 0)
        pending: list[pa.RecordBatch] = []
        num_pending = num_bytes = row = 0
        for batch in self._batches():
            while batch.num_rows:
                part = batch.slice(0, end - row - num_pending)
                batch = batch.slice(part.num_rows)
                pending.append(part)
                num_pending += part.num_rows
                num_bytes += part.nbytes
                if row + num_pending == end or num_bytes >= MAX_GROUP_BYTES:
                    yield pa.Table.from_batches(pending, self._schema)
                    row += num_pending
                    pending, num_pending, num_bytes = [], 0, 0
                    if row == end:
                        end = next(ends, row)
        if pending:
            yield pa.Table.from_batches(pending, self._schema)

    def _new_group_ends(self) -> Iterator[int]:
        """Yield the last row of each new row group, plus one.

        Small row groups are joined, and large ones are split.
        """
        # `_verify` compares this sum with the number of rows that the footer says.
        total = sum(group.num_rows for group in self._source_groups())
        wanted = self._options.row_group_rows
        if wanted is not None:
            yield from range(wanted, total, wanted)
            yield total
            return
        start = end = 0
        for group in self._source_groups():
            end += group.num_rows
            if end - start >= MIN_GROUP_ROWS or (end == total and end > start):
                yield from range(start + MAX_GROUP_ROWS, end, MAX_GROUP_ROWS)
                yield end
                start = end

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows. No batch has rows of two row groups of the source.

        pyarrow cannot read dictionaries inside lists from two row groups at once.
        """
        coarse_file = self._open_coarse_file() if self._int96 else None
        for number in range(self._metadata.num_row_groups):
            batches = self._file.iter_batches(self._batch_rows, row_groups=[number])
            if coarse_file is None:
                yield from batches
                continue
            coarse_batches = coarse_file.iter_batches(
                self._batch_rows, row_groups=[number], columns=self._int96
            )
            for batch, coarse in zip(batches, coarse_batches, strict=True):
                self._require_nanoseconds(coarse)
                yield batch

    def _open_coarse_file(self) -> pq.ParquetFile:
        """Open the file again, with times of type INT96 as microseconds.

        pyarrow otherwise reads them as nanoseconds, and returns wrong times after the year 2262.
        """
        import pyarrow.parquet as pq

        return pq.ParquetFile(self._stream, pre_buffer=False, coerce_int96_timestamp_unit="us")

    def _require_nanoseconds(self, batch: pa.RecordBatch) -> None:
        for field, values in zip(batch.schema, batch.columns, strict=True):
            if not pa.types.is_timestamp(field.type):
                raise UnsupportedType(
                    f"{self._path} stores times in {field.name} as INT96 inside a nested column, "
                    "which cannot be rewritten; write the file again with other timestamps"
                )
            ends = pc.call_function("min_max", [values.cast(pa.int64())]).as_py().values()
            if any(end is not None and abs(end) > _MAX_MICROSECONDS for end in ends):
                raise UnsupportedType(
                    f"{self._path} stores times in {field.name} as INT96 that pyarrow cannot "
                    "read; write the file again with timestamps of microseconds"
                )

    def _verify(self, target: str) -> None:
        """Raise `FragmentUnreadable` if the new file has other rows, and write it to the disk."""
        import pyarrow.parquet as pq

        with open(target, "rb") as file:
            os.fsync(file.fileno())
            num_rows = pq.read_metadata(file).num_rows
        if num_rows != self._metadata.num_rows:
            raise FragmentUnreadable(
                f"{self._path} gave {num_rows:,} of {self._metadata.num_rows:,} rows; try again, "
                "and if this fails again, repair or remove the file"
            )


def _with_equal_dictionaries(table: pa.Table) -> pa.Table:
    """Return a table in which all chunks of a column have the same dictionary.

    pyarrow stops writing a dictionary at the first chunk with another one.
    """
    with suppress(pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return table.unify_dictionaries()
    return table


def _repeating_columns(written: pa.Buffer) -> tuple[list[str], list[str]]:
    """Return the paths of all leaves of a file in memory, and of those that need a dictionary.

    The file was written with dictionaries, so each dictionary page has the distinct values.
    """
    data = memoryview(written).cast("B")
    footer = read_footer(
        written.size, lambda spans: [data[start:stop].tobytes() for start, stop in spans]
    )
    paths = [".".join(leaf.path) for leaf in footer.schema.leaves]
    if not footer.row_groups:
        return paths, []
    repeating = []
    for path, chunk in zip(paths, footer.row_groups[0].chunks, strict=True):
        if chunk.start == chunk.data_start:
            continue
        header = parse_page_header(data[chunk.start : chunk.stop])
        is_repeating = 2 * header.num_values <= chunk.num_values
        if is_repeating and header.size <= MAX_DICTIONARY_BYTES:
            repeating.append(path)
    return paths, repeating

"""Test the kernels on files of random nested types, and on damaged pages of these files.

Rows must be those that pyarrow reads from the whole row group. Values from a damaged file must be
those of the sound file, or those that pyarrow reads from the damaged file, or an error. Nobody can
detect damage to values that no checksum covers, so files that pyarrow refuses are only counted.
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from parquet.parquet_helpers import CODECS, File, page_bytes, same, sliced, some_rows
from trust.report import PEER, Report

import zonebloom as zb
from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.sbbf.kernel_loader import KERNELS

LEAVES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary(5)),
    *(pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.time64("us")),
    *(pa.decimal128(9, 2), pa.decimal128(30, 4), pa.duration("ms")),
]
# The encodings of pyarrow by physical type.
ENCODINGS = {
    "INT32": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "INT64": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "FLOAT": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "DOUBLE": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "BOOLEAN": ["PLAIN", "RLE"],
    "BYTE_ARRAY": ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"],
    "FIXED_LEN_BYTE_ARRAY": ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"],
}
MAX_DEPTH = 4
# The number of damages of each sound file.
DAMAGES = 4


def random_type(rng: random.Random, depth: int) -> pa.DataType:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(LEAVES)
    container = rng.choice(["list", "list", "large", "fixed", "map", "struct", "struct"])
    if container == "struct":
        num_fields = rng.randint(1, 3)
        return pa.struct([random_field(rng, depth - 1, f"f{i}") for i in range(num_fields)])
    if container == "map":
        key = rng.choice([pa.string(), pa.int32(), pa.int64()])
        return pa.map_(key, random_field(rng, depth - 1, "value"))
    item = random_field(rng, depth - 1, "element")
    if container == "fixed":
        return pa.list_(item, rng.randint(1, 3))
    return pa.large_list(item) if container == "large" else pa.list_(item)


def random_field(rng: random.Random, depth: int, name: str) -> pa.Field:
    kind = random_type(rng, depth)
    return pa.field(name, kind, nullable=pa.types.is_null(kind) or rng.random() < 0.7)


def random_value(field: pa.Field, rng: random.Random, nulls: float, length: int) -> Any:
    """Return a value of a field. Lists have up to ``length`` items."""
    is_type, kind = pa.types, field.type
    if is_type.is_null(kind) or (field.nullable and rng.random() < nulls):
        return None
    if is_type.is_struct(kind):
        return {child.name: random_value(child, rng, nulls, length) for child in kind}
    size = rng.randint(0, length) if rng.random() < 0.8 else 0
    if is_type.is_map(kind):
        keys = {random_value(kind.key_field, rng, 0, length) for _ in range(size)}
        return [(key, random_value(kind.item_field, rng, nulls, length)) for key in keys]
    if is_type.is_fixed_size_list(kind):
        size = kind.list_size
    if is_type.is_nested(kind):
        return [random_value(kind.value_field, rng, nulls, length) for _ in range(size)]
    number = rng.choice([rng.randrange(4), rng.randrange(120)])
    if is_type.is_boolean(kind):
        return number % 2 == 0
    if is_type.is_float16(kind):
        return np.float16(number)
    if is_type.is_floating(kind):
        return number / 3
    if is_type.is_decimal(kind):
        return Decimal(number)
    if kind == pa.binary(5):
        return b"%05d" % number
    if is_type.is_binary(kind):
        return b"b" * (number % 20)
    if "string" in str(kind):
        return f"text {number}" * (number % 3)
    return number


def random_table(rng: random.Random) -> pa.Table:
    num_rows, nulls = rng.randint(1, 300), rng.choice([0.0, 0.1, 0.5, 0.95])
    fields = []
    for number in range(rng.randint(1, 2)):
        depth = rng.randint(1, MAX_DEPTH)
        fields.append(random_field(rng, depth, f"c{number}"))
    length = rng.choice([1, 2, 2, 3, 8])
    columns = []
    for field in fields:
        # Rows with the same value make long runs of levels.
        values: list[Any] = []
        while len(values) < num_rows:
            value = random_value(field, rng, nulls, length)
            values += [value] * min(rng.choice([1, 1, 2, 20]), num_rows - len(values))
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def by_pyarrow(table: pa.Table, rng: random.Random) -> tuple[bytes, bytes]:
    """Return a file, and one with the same row groups and larger pages."""
    options: dict[str, Any] = {
        "row_group_size": max(rng.randint(1, 400), table.num_rows // 3),
        "data_page_version": rng.choice(["1.0", "2.0"]),
        "compression": rng.choice(["none", "snappy", "snappy", "gzip", "brotli", "zstd", "lz4"]),
        "use_dictionary": rng.random() < 0.5,
        "dictionary_pagesize_limit": rng.choice([64, 1 << 20]),
        "write_page_index": rng.random() < 0.6,
        "write_page_checksum": rng.random() < 0.1,
        "store_schema": rng.random() < 0.8,
        "use_compliant_nested_type": rng.random() < 0.8,
    }
    sound = write(table, options)
    if not options["use_dictionary"]:
        schema = pq.ParquetFile(io.BytesIO(sound)).schema
        columns = [schema.column(number) for number in range(len(schema))]
        options["column_encoding"] = {
            column.path: rng.choice(ENCODINGS[column.physical_type])
            for column in columns
            if rng.random() < 0.6
        }
    sizes = {
        "data_page_size": rng.choice([1, 64, 1024, 1 << 20]),
        "max_rows_per_page": rng.choice([1, 5, 50, 1000]),
        "write_batch_size": rng.choice([1, 7, 50, 1000]),
    }
    return write(table, {**options, **sizes}), sound


def write(table: pa.Table, options: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def by_duckdb(table: pa.Table, rng: random.Random, folder: Path) -> bytes:
    path = folder / "duckdb.parquet"
    codec = rng.choice(["uncompressed", "snappy", "gzip", "zstd"])
    version = rng.choice(["V1", "V2"])
    with duckdb.connect() as connection:
        connection.register("rows", table)
        connection.execute(
            f"COPY rows TO '{path}' "
            f"(FORMAT parquet, COMPRESSION {codec}, PARQUET_VERSION {version})"
        )
    return path.read_bytes()


def by_polars(table: pa.Table, rng: random.Random, folder: Path) -> bytes:
    path = folder / "polars.parquet"
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(
        path,
        compression=rng.choice(["uncompressed", "snappy", "gzip", "zstd", "lz4"]),
        data_page_size=rng.choice([64, 1024, 1 << 20]),
        row_group_size=rng.choice([None, 100, 1000]),
    )
    return path.read_bytes()


def random_file(rng: random.Random, folder: Path) -> tuple[str, bytes, bytes] | None:
    """Return the writer, a file, and one with the same rows and groups for pyarrow to read."""
    table = random_table(rng)
    other = rng.choice([None, None, None, by_duckdb, by_polars])
    if other is not None:
        try:
            data = other(table, rng, folder)
            return other.__name__, data, data
        except (duckdb.Error, pl.exceptions.PolarsError, pl.exceptions.PanicException):
            # They lack a type.
            pass
        except (pa.ArrowException, ValueError, TypeError):
            pass
    try:
        return by_pyarrow.__name__, *by_pyarrow(table, rng)
    except (pa.ArrowException, OSError):
        return None


def whole_groups(data: bytes) -> list[pa.Table] | None:
    """Return all row groups as pyarrow reads them, or None if it cannot."""
    try:
        file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
        groups = [
            file.read_row_group(number, use_threads=False) for number in range(file.num_row_groups)
        ]
        for number, group in enumerate(groups):
            group.validate()
            if group.num_rows != file.metadata.row_group(number).num_rows:
                return None
    except (pa.ArrowException, OSError, ValueError):
        return None
    return groups


def read(
    file: File, group: int, rows: RowRanges, fields: Sequence[int]
) -> list[tuple[int, pa.ChunkedArray]]:
    """Return the columns that kernels read with each way to locate pages."""
    results = []
    for located in (file.indexed, file.walked, file.nowhere):
        for field in fields:
            try:
                columns = file.rows(group, rows, located, [field])
            except FragmentUnreadable:
                continue
            results += columns.items()
    return results


def check_sound(
    report: Report, writer: str, data: bytes, groups: list[pa.Table], rng: random.Random
) -> None:
    file = File(data)
    for number, whole in enumerate(groups):
        if not whole.num_rows:
            continue
        everything = RowRanges([(0, whole.num_rows)])
        last = RowRanges([(whole.num_rows - 1, whole.num_rows)])
        for rows in (everything, last, some_rows(whole.num_rows, rng)):
            fields = range(whole.num_columns)
            found = read(file, number, rows, fields)
            codecs = {chunk.codec for chunk in file.footer.row_groups[number].chunks}
            # pyarrow cannot gather the views around a null.
            has_views = "fixed" in str(whole.schema) and "view" in str(whole.schema)
            is_complete = len(found) == 3 * whole.num_columns
            if not is_complete and codecs <= set(CODECS) and not has_views:
                if writer == by_duckdb.__name__:
                    # DuckDB writes more dictionary indices than values for some binary columns.
                    report.refused["kernels leave a file of DuckDB to pyarrow"] += 1
                else:
                    report.fail(f"kernels refuse one of {whole.schema}")
            for field, column in found:
                column.validate(full=True)
                if not same(column, sliced(whole.column(field), rows)):
                    report.fail(f"wrong rows {rows} of {whole.schema.field(field)}")


def check_dataset(
    report: Report, data: bytes, groups: list[pa.Table], rng: random.Random, folder: Path
) -> None:
    """Take rows of a dataset by position, with and without kernels."""
    path = folder / "data.parquet"
    path.write_bytes(data)
    whole = pa.concat_tables(groups)
    if rng.random() < 0.8:
        KERNELS.load()
    rows = sorted(rng.sample(range(whole.num_rows), min(5, whole.num_rows)))
    taken = zb.dataset(path).take(rows)
    for name in whole.column_names:
        expected = sliced(whole.column(name), RowRanges.from_rows(np.array(rows)))
        if not same(taken.column(name), expected):
            report.fail(f"take returns wrong rows of {whole.schema.field(name)}")


def agree(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    try:
        return same(left, right)
    except (UnicodeDecodeError, OverflowError):
        # Only damaged values cannot be converted, and equal ones were found equal before.
        return False


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return the file with one damage: in a page header, its levels, or anywhere in a page."""
    file = File(data)
    chunks = [chunk for group in file.footer.row_groups for chunk in group.chunks]
    chunk = rng.choice([chunk for chunk in chunks if chunk.stop > chunk.start] or chunks)
    pages = []
    start = chunk.start
    while start < chunk.stop:
        size = page_bytes(data[start:])
        pages.append((start, start + size))
        start += size
    if not pages:
        return data
    start, stop = rng.choice(pages)
    place = rng.choice([range(start, min(start + 60, stop)), range(start, stop)])
    result = bytearray(data)
    position = rng.choice(place)
    if rng.random() < 0.6:
        result[position] ^= 1 << rng.randrange(8)
    else:
        result[position] = rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(result)


def check_damaged(report: Report, data: bytes, sound: list[pa.Table], rng: random.Random) -> None:
    wrong = damaged(data, rng)
    file = File(wrong)
    results = []
    for number, whole in enumerate(sound):
        if whole.num_rows:
            rows = some_rows(whole.num_rows, rng)
            fields = range(whole.num_columns)
            results += [(number, rows, *found) for found in read(file, number, rows, fields)]
    report.phase(PEER)
    theirs = whole_groups(wrong)
    for number, rows, field, column in results:
        column.validate()
        groups = [sound] if theirs is None else [sound, theirs]
        if any(agree(column, sliced(group[number].column(field), rows)) for group in groups):
            continue
        everything = RowRanges([(0, len(sound[number]))])
        if theirs is None:
            # pyarrow may refuse damage in rows that are not read. Or it cannot read the sound file.
            report.refused["other values of a damaged page that pyarrow refuses"] += 1
        elif not read(file, number, everything, [field]):
            # Levels of other rows are damaged, so values of later rows in the page are shifted.
            report.refused["other values of a damaged page that we refuse as a whole"] += 1
        else:
            report.fail(f"{column.type}: wrong values of a damaged page, pyarrow reads others")
            break
    report.tried["damaged pages"] += 1


def run_case(report: Report, number: int, folder: Path, damages: int = DAMAGES) -> None:
    """Test one file. Run this in a process of its own, because pyarrow may crash."""
    rng = report.begin(number)
    written = random_file(rng, folder)
    groups = whole_groups(written[2]) if written is not None else None
    if written is None or groups is None:
        report.refused["pyarrow cannot write or read the table"] += 1
        return
    writer, data, _ = written
    report.tried[f"files {writer}"] += 1
    check_sound(report, writer, data, groups, rng)
    # pyarrow loses rows of its own files with pages that are too small.
    if not number % 10 and whole_groups(data) is not None:
        check_dataset(report, data, groups, rng, folder)
    for _ in range(damages):
        report.phase("damaged")
        check_damaged(report, data, groups, rng)

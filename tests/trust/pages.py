"""Test the kernels on files of random types, and on damaged copies of these files.

Rows must be those that pyarrow reads from the whole row group. Values from a damaged file must be
those of the sound file, or those that pyarrow reads from the damaged file, or an error. Nobody can
detect damage to values that no checksum covers, so columns that pyarrow refuses are only counted.
A crash or an error of pyarrow alone is not counted.
"""

from __future__ import annotations

import contextlib
import io
import random
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from support.parquet_helpers import CODECS, File, page_bytes, random_value, same, sliced, some_rows
from support.parquet_writers import by_duckdb, by_polars, by_pyarrow
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
MAX_DEPTH = 4
# The number of damages of each sound file.
DAMAGES = 4
# The limits for a file of some tens of kilobytes.
MOST_BYTES = 64 << 20
MOST_SECONDS = 20
ADDRESS_SPACE = 8 << 30

# The row group, the field, the rows and the values that a read returned.
Found = tuple[int, int, RowRanges, pa.ChunkedArray]
Columns = dict[int, pa.ChunkedArray]


# Random files


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


def random_table(rng: random.Random) -> pa.Table:
    num_rows, nulls = rng.randint(1, 300), rng.choice([0.0, 0.1, 0.5, 0.95])
    # Flat columns take less time than nested ones, so there are more of them.
    depths = [0] * rng.randint(2, 6) if rng.random() < 0.4 else [rng.randint(1, MAX_DEPTH)] * 2
    fields = [random_field(rng, depth, f"c{number}") for number, depth in enumerate(depths)]
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


def random_file(rng: random.Random, folder: Path) -> tuple[str, bytes, bytes] | None:
    """Return the writer, a file, and one with the same rows and groups for pyarrow to read."""
    table, path = random_table(rng), folder / "random.parquet"
    write = rng.choice([by_pyarrow, by_pyarrow, by_pyarrow, by_duckdb, by_polars])
    if write is not by_pyarrow:
        # They lack some types.
        with contextlib.suppress(
            duckdb.Error, pl.exceptions.PolarsError, pl.exceptions.PanicException
        ):
            write(table, path, rng)
            return write.__name__, path.read_bytes(), path.read_bytes()
    seed, row_group_size = rng.random(), max(rng.randint(1, 400), table.num_rows // 3)
    large = {"data_page_size": 1 << 20, "max_rows_per_page": 1000, "write_batch_size": 1000}
    sizes = {
        "data_page_size": rng.choice([1, 64, 1024, 1 << 20]),
        "max_rows_per_page": rng.choice([1, 5, 50, 1000]),
        "write_batch_size": rng.choice([1, 7, 50, 1000]),
    }
    files = []
    for options in (sizes, large):
        sink = io.BytesIO()
        try:
            by_pyarrow(table, sink, random.Random(seed), row_group_size=row_group_size, **options)
        except (pa.ArrowException, OSError):
            return None
        files.append(sink.getvalue())
    return by_pyarrow.__name__, files[0], files[1]


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


# Sound files


def read(
    file: File, group: int, rows: RowRanges, fields: Sequence[int], *, by_leaves: bool = False
) -> Iterator[tuple[int, pa.ChunkedArray]]:
    """Yield the columns that kernels read with each way to locate pages."""
    ways: list[Callable[..., Columns]] = [file.rows]
    if by_leaves:
        ways.append(file.rows_by_kernels)
    for located in (file.indexed, file.walked, file.nowhere):
        for field in fields:
            for way in ways:
                with contextlib.suppress(FragmentUnreadable):
                    yield from way(group, rows, located, [field]).items()


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
            found = list(read(file, number, rows, range(whole.num_columns)))
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


# Damaged files


def page_starts(data: bytes) -> list[int]:
    """Return the offsets of the page headers of a sound file."""
    starts = []
    for group in File(data).footer.row_groups:
        for chunk in group.chunks:
            start = chunk.start
            while start < chunk.stop:
                starts.append(start)
                start += page_bytes(data[start:])
    return starts


def damaged(data: bytes, starts: list[int], rng: random.Random) -> bytes:
    """Return the file with one to three damages."""
    footer = int.from_bytes(data[-8:-4], "little")
    last_page = max(starts, default=4)
    result = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        choice = rng.random()
        if choice < 0.2:
            position = rng.randrange(len(data) - 8 - footer, len(data))
        elif choice < 0.35:
            # The indices of pages lie behind the last page.
            position = rng.randrange(last_page, len(data) - 8 - footer)
        elif choice < 0.75:
            # Levels follow the header of a page.
            position = rng.choice(starts or [4]) + rng.randrange(rng.choice([24, 60]))
        else:
            position = rng.randrange(len(data))
        position = min(position, len(result) - 1)
        choice = rng.random()
        if choice < 0.5:
            result[position] ^= 1 << rng.randrange(8)
        elif choice < 0.75:
            result[position] = rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)])
        elif choice < 0.85:
            result[position : position + 9] = b"\xff" * 8 + b"\x01"
        elif choice < 0.9:
            del result[position : position + rng.randrange(1, 5)]
        elif choice < 0.95:
            result[position:position] = rng.randbytes(rng.randrange(1, 5))
        else:
            length = rng.randrange(len(result))
            result = result[:length] + (result[-8:] if rng.random() < 0.5 else b"")
        if len(result) < 16:
            break
    return bytes(result)


def ours(data: bytes, rng: random.Random) -> list[Found]:
    """Return what zonebloom reads from a damaged file."""
    try:
        file = File(data)
    except FragmentUnreadable:
        return []
    results: list[Found] = []
    for number, group in enumerate(file.footer.row_groups):
        if group.num_rows:
            rows = some_rows(min(group.num_rows, 1 << 20), rng)
            fields = range(len(file.footer.schema.names))
            for field, column in read(file, number, rows, fields, by_leaves=True):
                column.validate()
                results.append((number, field, rows, column))
    return results


def peers(data: bytes, group: int, field: int) -> pa.ChunkedArray | None:
    """Return a column of a row group as pyarrow reads it, or None if pyarrow cannot read it."""
    try:
        file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
        leaves = list(File(data).footer.schema.field_leaves[field])
        table = file.reader.read_row_group(group, column_indices=leaves, use_threads=False)
        column = table.column(0)
        column.validate()
        # pyarrow skips pages of unknown types, and then returns too few rows.
        is_short = len(column) != file.metadata.row_group(group).num_rows
    except (pa.ArrowException, OSError, ValueError, IndexError, MemoryError):
        return None
    return None if is_short else column


def agree(column: pa.ChunkedArray, rows: RowRanges, whole: pa.ChunkedArray) -> bool:
    try:
        return same(column, sliced(whole, rows))
    except (UnicodeDecodeError, OverflowError):
        # Only damaged values cannot be converted, and equal ones were found equal before.
        return False


def compare(report: Report, data: bytes, sound: list[pa.Table], results: list[Found]) -> None:
    """Compare the results from a damaged file with pyarrow's, and with the sound file."""
    wholes: dict[tuple[int, int], pa.ChunkedArray | None] = {}
    for group, field, rows, column in results:
        is_known = group < len(sound) and field < sound[group].num_columns
        # A damaged page can shift the rows that pyarrow reads from the sound pages after it, so
        # the rows of the sound file are right too.
        if is_known and agree(column, rows, sound[group].column(field)):
            continue
        key = group, field
        if key not in wholes:
            wholes[key] = peers(data, *key)
        whole = wholes[key]
        if whole is None:
            # pyarrow may refuse damage in rows that are not read.
            report.refused["other values of a damaged page that pyarrow refuses"] += 1
        elif not agree(column, rows, whole):
            everything = RowRanges([(0, min(len(whole), 1 << 20))])
            if pa.types.is_nested(column.type) and not list(
                read(File(data), group, everything, [field])
            ):
                # Levels of other rows are damaged, so values of later rows are shifted.
                report.refused["other values of a damaged page that we refuse as a whole"] += 1
                continue
            report.fail(f"{column.type}: wrong values in {rows}, pyarrow reads others")
            return


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def run_case(report: Report, number: int, folder: Path, damages: int = DAMAGES) -> None:
    """Test one file. Run this in a process of its own, because a decoder may crash."""
    rng = report.begin(number)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, resource.RLIM_INFINITY))
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
    starts = page_starts(data)
    for _ in range(damages):
        report.phase("damaged")
        wrong = damaged(data, starts, rng)
        signal.alarm(MOST_SECONDS)
        Path("/proc/self/clear_refs").write_text("5")
        before = peak_bytes()
        results = ours(wrong, rng)
        used = peak_bytes() - before
        if used > MOST_BYTES:
            report.fail(f"{used:,} bytes for a file of {len(wrong):,}")
        report.phase(PEER)
        compare(report, wrong, groups, results)
        signal.alarm(0)
        report.tried["damaged, read" if results else "damaged, refused"] += 1

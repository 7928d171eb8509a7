"""Test that damaged Parquet files raise a clear error, or give what pyarrow reads from them.

Nobody can detect damage to values that no checksum covers, so results are compared with pyarrow's
own read of the whole row group. A crash or an error of pyarrow alone is not counted.
"""

from __future__ import annotations

import io
import random
import resource
import signal
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from parquet.parquet_helpers import (
    TYPES,
    File,
    page_bytes,
    same,
    sample,
    sliced,
    some_rows,
    written,
)
from trust.report import PEER, Report

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable

Found = tuple[int, int, RowRanges, pa.ChunkedArray]

BASE_FILES = 24
# The limits for a file of some tens of kilobytes.
MOST_BYTES = 64 << 20
MOST_SECONDS = 20
ADDRESS_SPACE = 8 << 30


@lru_cache(maxsize=32)
def base_file(number: int) -> tuple[bytes, tuple[int, ...]]:
    """Return a sound file and the offsets of its page headers."""
    rng = random.Random(number)
    names = [*rng.sample(sorted(TYPES), 3), "int64", "string", "list<item: int64>"]
    columns = [sample(TYPES.get(name, pa.list_(pa.int64())), 400, rng) for name in names]
    table = pa.Table.from_arrays(columns, [f"c{i}" for i in range(len(names))])
    data = written(
        table,
        row_group_size=300,
        data_page_version=rng.choice(["1.0", "2.0"]),
        compression=rng.choice(["none", "snappy", "gzip", "brotli", "zstd", "lz4"]),
        use_dictionary=rng.random() < 0.5,
        write_page_index=rng.random() < 0.8,
        write_page_checksum=rng.random() < 0.2,
        store_schema=rng.random() < 0.8,
    )
    file = File(data)
    headers = []
    for group in file.footer.row_groups:
        for chunk in group.chunks:
            start = chunk.start
            while start < chunk.stop:
                headers.append(start)
                start += page_bytes(data[start : chunk.stop])
    return data, tuple(headers)


def damaged(case: int) -> bytes:
    """Return a file with one to three damages."""
    rng = random.Random(f"case {case}")
    data, headers = base_file(case % BASE_FILES)
    footer = int.from_bytes(data[-8:-4], "little")
    pages_end = max(headers)
    result = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        region_choice = rng.random()
        if region_choice < 0.3:
            position = rng.randrange(len(data) - 8 - footer, len(data))
        elif region_choice < 0.5:
            position = rng.randrange(pages_end, len(data) - 8 - footer)
        elif region_choice < 0.8:
            position = rng.choice(headers) + rng.randrange(24)
        else:
            position = rng.randrange(len(data))
        change_choice = rng.random()
        position = min(position, len(result) - 1)
        if change_choice < 0.5:
            result[position] ^= 1 << rng.randrange(8)
        elif change_choice < 0.75:
            result[position] = rng.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)])
        elif change_choice < 0.85:
            result[position : position + 9] = b"\xff" * 8 + b"\x01"
        elif change_choice < 0.9:
            del result[position : position + rng.randrange(1, 5)]
        elif change_choice < 0.95:
            result[position:position] = rng.randbytes(rng.randrange(1, 5))
        else:
            length = rng.randrange(len(result))
            result = result[:length] + (result[-8:] if rng.random() < 0.5 else b"")
        if len(result) < 16:
            break
    return bytes(result)


def peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def ours(case: int, data: bytes) -> list[Found]:
    """Return what zonebloom can read: tuples of row group, field, rows and values."""
    rng = random.Random(f"rows {case}")
    try:
        file = File(data)
    except FragmentUnreadable:
        return []
    results: list[Found] = []
    for group, row_group in enumerate(file.footer.row_groups):
        for located in (file.indexed, file.walked, file.nowhere):
            for field in range(len(file.footer.schema.names)):
                if not row_group.num_rows:
                    continue
                rows = some_rows(min(row_group.num_rows, 1 << 20), rng)
                for way in (file.rows, file.rows_by_kernels):
                    try:
                        column = way(group, rows, located, [field]).get(field)
                        if column is not None:
                            column.validate()
                            results.append((group, field, rows, column))
                    except FragmentUnreadable:
                        pass
    return results


def peers(data: bytes, group: int, field: int) -> pa.ChunkedArray | None:
    """Return a column of a row group as pyarrow reads it, or None if pyarrow cannot read it."""
    try:
        file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
        leaves = list(File(data).footer.schema.field_leaves[field])
        table = file.reader.read_row_group(group, column_indices=leaves, use_threads=False)
        column = table.column(0)
        # pyarrow skips pages of unknown types, and then returns too few rows.
        short = len(column) != file.metadata.row_group(group).num_rows
        return None if short else column
    except (pa.ArrowException, OSError, ValueError, IndexError, MemoryError):
        return None


def theirs(case: int, data: bytes, results: list[Found]) -> str:
    """Compare the results with what pyarrow reads. Return the outcome."""
    whole: dict[tuple[int, int], list[pa.ChunkedArray | None]] = {}
    for group, field, rows, column_read in results:
        key = group, field
        if key not in whole:
            # A damaged page can shift the rows that pyarrow reads from the sound pages after it, so
            # the rows of the sound file are right too.
            sound, _ = base_file(case % BASE_FILES)
            whole[key] = [peers(data, *key), peers(sound, *key)]
        if whole[key][0] is None:
            continue
        if not any(
            column is not None and same(column_read, sliced(column, rows)) for column in whole[key]
        ):
            return f"wrong {group} {field} {rows}"
    return "read" if results else "refused"


def run_case(report: Report, number: int, folder: Path) -> None:
    """Test one damaged file. Run this in a process of its own, because a decoder may crash."""
    report.begin(number)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, resource.RLIM_INFINITY))
    data = damaged(number)
    signal.alarm(MOST_SECONDS)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    results = ours(number, data)
    used = peak_bytes() - before
    if used > MOST_BYTES:
        report.fail(f"{used:,} bytes for a file of {len(data):,}")
    report.phase(PEER)
    outcome = theirs(number, data, results)
    signal.alarm(0)
    report.tried[outcome.split()[0]] += 1
    if outcome.startswith("wrong"):
        report.fail(outcome)

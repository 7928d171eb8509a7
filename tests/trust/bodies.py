"""Test the kernels on damaged pages of all encodings and codecs.

Values that they take and keys that they find must be those of the sound file, or those that pyarrow
reads from the damaged file. Or the kernels refuse the page. Unlike in `trust.pages`, values must be
those of the sound file if pyarrow refuses the damaged one.
"""

from __future__ import annotations

import contextlib
import io
import random
import tracemalloc
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from support.parquet_helpers import File, page_bytes, same, sliced, some_rows
from trust.report import PEER, Report

from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet.key_tests import KeySet
from zonebloom.parquet.leaf_reader import PageTable
from zonebloom.parquet.leaf_type import Undecodable
from zonebloom.parquet.thrift import ThriftReader
from zonebloom.values.literal import Unanswerable, byte_forms

# A function that returns whether a result agrees with a column.
Holds: TypeAlias = "partial[bool]"

ROWS = 300
# The limit for a file of some kilobytes.
MOST_BYTES = 4 << 20
# The number of damages of each sound file.
DAMAGES = 10

INTEGERS = ["DICTIONARY", "PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
TEXTS = ["DICTIONARY", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
ENCODINGS = {
    pa.int64(): INTEGERS,
    pa.int32(): INTEGERS,
    pa.bool_(): ["PLAIN", "RLE"],
    pa.float32(): ["BYTE_STREAM_SPLIT"],
    pa.binary(): TEXTS,
    pa.binary(5): ["DICTIONARY", "PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"],
    pa.decimal128(24, 2): ["DICTIONARY"],
}
COLUMNS = [(kind, encoding) for kind, encodings in ENCODINGS.items() for encoding in encodings]
CODECS = ["none", "snappy", "gzip", "zstd", "lz4"]


def values(kind: pa.DataType, rng: random.Random, is_optional: bool) -> pa.Array:
    """Return values and nulls, some of them in runs."""
    numbers: list[int | None] = []
    while len(numbers) < ROWS:
        number = rng.choice([rng.randrange(128), rng.randrange(8)])
        run = rng.choice([1, 1, 2, 9, 40])
        numbers += [None if is_optional and rng.random() < 0.2 else number] * run
    del numbers[ROWS:]
    if pa.types.is_boolean(kind):
        return pa.array([None if n is None else n % 2 == 0 for n in numbers])
    array = pa.array(numbers, pa.int64())
    if kind == pa.binary(5):
        return pa.array([None if n is None else b"%05d" % n for n in numbers], kind)
    if kind == pa.binary():
        return pa.array(
            [None if n is None else b"%d" % (n % 4) + b"xyz" * (n % 5) for n in numbers]
        )
    return array.cast(kind)


@lru_cache(maxsize=4)
def sound_file(number: int) -> bytes:
    """Return a file of one column. Numbers cycle through encodings, codecs and page versions."""
    rng = random.Random(number)
    number, column = divmod(number, len(COLUMNS))
    number, codec = divmod(number, len(CODECS))
    kind, encoding = COLUMNS[column]
    is_optional = rng.random() < 0.7
    schema = pa.schema([pa.field("x", kind, is_optional)])
    is_dictionary = encoding == "DICTIONARY"
    sink = io.BytesIO()
    pq.write_table(
        pa.table([values(kind, rng, is_optional)], schema=schema),
        sink,
        compression=CODECS[codec],
        data_page_version=["1.0", "2.0"][number % 2],
        use_dictionary=is_dictionary,
        column_encoding=None if is_dictionary else {"x": encoding},
        dictionary_pagesize_limit=rng.choice([100, 1 << 20]),
        max_rows_per_page=rng.choice([100, 1000]),
        write_batch_size=50,
        write_page_index=True,
        write_statistics=False,
        write_page_checksum=rng.random() < 0.1,
    )
    return sink.getvalue()


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return the file with one damage: in a header, at the start of a body, or anywhere."""
    chunk = File(data).footer.row_groups[0].chunks[0]
    headers = []
    start = chunk.start
    while start < chunk.stop:
        headers.append((start, start + ThriftReader(data[start:]).read_struct().stop))
        start += page_bytes(data[start:])
    header, body = rng.choice(headers)
    places = [range(header, body), range(body, body + 16), range(chunk.start, chunk.stop)]
    position = min(rng.choice(rng.choice(places)), chunk.stop - 4)
    result = bytearray(data)
    # A byte can belong to several indices, and pyarrow refuses too large ones even in rows that are
    # not read. So only flip single bits there.
    choice = 0.0 if position >= body and chunk.start < chunk.data_start else rng.random()
    if choice < 0.5:
        result[position] ^= 1 << rng.randrange(8)
    elif choice < 0.9:
        result[position] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)])
    else:
        number = rng.choice([b"\xff\xff\xff\x7f", b"\0\0\0\x80", rng.randbytes(4)])
        result[position : position + 4] = number
    return bytes(result)


def ours(data: bytes, sound: pa.ChunkedArray, rng: random.Random) -> list[Holds]:
    """Return checks of the values taken and the keys found, without those that were refused."""
    file = File(data)
    results: list[Holds] = []
    for rows in (RowRanges([(0, ROWS)]), some_rows(ROWS, rng)):
        with contextlib.suppress(FragmentUnreadable):
            for array in file.rows_by_kernels(0, rows, file.indexed, [0]).values():
                results.append(partial(has_values, array, rows))
        for num_keys in (0, 1, 20):
            keys = [sound[rng.randrange(ROWS)] for _ in range(num_keys)]
            keys = [key for key in keys if key.is_valid]
            nulls = rng.random() < 0.5
            with contextlib.suppress(FragmentUnreadable, Undecodable, Unanswerable):
                for column in file.leaves(0, file.indexed, [0]).values():
                    forms = [form for key in keys for form in byte_forms(sound.type, key)]
                    table, key_set = PageTable([column]), KeySet(column.leaf, forms)
                    offsets = table.find_rows(file, key_set, nulls, rows)[0].tolist()
                    wanted = {key.as_py() for key in keys} | ({None} if nulls else set())
                    results.append(partial(has_keys_at, offsets, wanted, rows))
                    if not nulls:
                        found, arrays = file.hits([column, column], key_set, rows)
                        results.append(partial(has_keys_at, found.tolist(), wanted, rows))
                        at_keys = RowRanges.from_rows(found)
                        for array in map(chunked, arrays):
                            results.append(partial(has_values, array, at_keys))
    return results


def chunked(array: pa.Array) -> pa.ChunkedArray:
    return pa.chunked_array([array])


def has_values(array: pa.ChunkedArray, rows: RowRanges, column: pa.ChunkedArray) -> bool:
    return same(array, sliced(column, rows))


def has_keys_at(
    offsets: list[int], wanted: set[object], rows: RowRanges, column: pa.ChunkedArray
) -> bool:
    values = column.to_pylist()
    return offsets == [i for start, stop in rows for i in range(start, stop) if values[i] in wanted]


def peers(data: bytes) -> pa.ChunkedArray | None:
    """Return the column as pyarrow reads it, or None if pyarrow cannot read it."""
    try:
        table = pq.ParquetFile(io.BytesIO(data)).read(use_threads=False)
    except (pa.ArrowException, OSError):
        return None
    return table.column(0) if table.num_rows == ROWS else None


def run_case(report: Report, number: int, folder: Path) -> None:
    """Test one damage. Run this in a process of its own, because pyarrow may crash."""
    rng = report.begin(number)
    sound = sound_file(number // DAMAGES)
    wrong = damaged(sound, rng)
    column = peers(sound)
    assert column is not None
    if not number % DAMAGES:
        assert all(holds(column) for holds in ours(sound, column, rng))
    # It is never stopped, because CPython 3.11 may crash if a thread ends meanwhile (gh-128679).
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    results = ours(wrong, column, rng)
    used = tracemalloc.get_traced_memory()[1] - before
    if used > MOST_BYTES:
        report.fail(f"{used:,} bytes for a file of {len(wrong):,}")
    report.phase(PEER)
    theirs = peers(wrong)
    report.tried["read" if results else "refused"] += 1
    for holds in results:
        if not holds(column) and (theirs is None or not holds(theirs)):
            kind, encoding = COLUMNS[number // DAMAGES % len(COLUMNS)]
            peer = "refuses" if theirs is None else "reads other values"
            report.fail(f"{kind} {encoding}: not {holds.func.__name__}, but pyarrow {peer}")
            break

"""Test that large pages give the same rows from the cache, in blocks, as from the file."""

from __future__ import annotations

import contextlib
import io
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from e2e_helpers import build
from helpers import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet.parquet_helpers import File, check_found, check_rows, same, sliced, some_rows
from seams import replace_function, set_constant

import zonebloom as zb
from zonebloom.base.memory_cache import MemoryCache
from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import hit_reader, leaf_reader
from zonebloom.parquet.block_kernels import BLOCK_ROWS
from zonebloom.parquet.file_layout import PageLocations
from zonebloom.parquet.key_tests import KeySet
from zonebloom.parquet.leaf_reader import PageTable
from zonebloom.parquet.leaf_type import LeafChunk, Undecodable
from zonebloom.parquet.page_blocks import PageBlocks, split_page
from zonebloom.sources import parquet_rows
from zonebloom.storage.files import FileIdentity

ROWS = 5000
CODECS = ["none", "snappy", "zstd", "gzip", "lz4"]
PLAIN, RLE_DICTIONARY = 0, 8
INODES = count(1)


class CachedFile(File):
    """A file in memory whose pages may be cached, unlike those of `File`."""

    def __init__(self, data: bytes):
        super().__init__(data)
        self.identity = FileIdentity(len(data), 0, inode=next(INODES))

    def located(self, group: int, leaf: int) -> PageLocations | None:
        return self.indexed(group, leaf) or self.walked(group, leaf)


@pytest.fixture
def cache(monkeypatch) -> MemoryCache:
    """Cache every page, also small ones, in a new cache. Return it."""
    cache = MemoryCache()
    set_constant(monkeypatch, leaf_reader, "_MAX_UNCACHED_ROWS", 0)
    set_constant(monkeypatch, leaf_reader, "_MAX_UNCACHED_BYTES", 0)
    set_constant(monkeypatch, hit_reader, "_MAX_PAGE_ROWS", 0)
    set_constant(monkeypatch, leaf_reader, "MEMORY_CACHE", cache)
    return cache


def table(nulls: float, rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(0)

    def column(values: Sequence, kind: pa.DataType) -> pa.Array:
        array = pa.array(values).cast(kind)
        mask = pa.array(rng.random(rows) < nulls)
        return pc.if_else(mask, pa.scalar(None, kind), array)

    numbers = rng.integers(0, 1 << 40, rows)
    # Runs of nulls and of equal values, and blocks without any value.
    runs = np.repeat(rng.integers(0, 50, rows // 100 + 1), 100)[:rows]
    sparse = [None if 1000 < i < 4000 else i % 7 for i in range(rows)]
    # Only the last pages have nulls.
    late = [None if nulls and i >= 1900 and i % 3 else n for i, n in enumerate(numbers.tolist())]
    texts = ["é" * int(n % 5) + str(n) for n in numbers]
    return pa.table(
        {
            "number": column(numbers, pa.int64()),
            "small": column(numbers % 11, pa.int32()),
            "run": column(runs, pa.int64()),
            "sparse": pa.array(sparse if nulls else runs, pa.int64()),
            "late": pa.array(late, pa.int64()),
            "text": column(texts, pa.string()),
            "word": column([f"word {n % 300}" for n in numbers], pa.large_string()),
            "bytes": column([n.tobytes()[:5] for n in numbers], pa.binary(5)),
            "double": column(numbers / 7, pa.float64()),
            "flag": column(numbers % 3 == 0, pa.bool_()),
            "price": column(numbers % 10**6, pa.decimal128(24, 2)),
        }
    )


def check_cached(file: CachedFile, whole: pa.Table, rng: random.Random) -> None:
    """Check random rows of the only row group, while more and more of its pages are cached."""
    everything = RowRanges([(0, len(whole))])
    for rows in [*(some_rows(len(whole), rng) for _ in range(4)), everything]:
        check_rows(file, whole, 0, rows, file.located)
        check_found(file, whole, 0, rows, file.located, rng)


def one_row_group(table: pa.Table, **options) -> CachedFile:
    """Return a file of pyarrow with one page in each chunk, unless options differ."""
    sink = io.BytesIO()
    defaults = {"data_page_size": 1 << 30, "write_page_index": True}
    pq.write_table(table, sink, **{**defaults, **options})
    return CachedFile(sink.getvalue())


@pytest.mark.parametrize("nulls", [0.0, 0.2])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("page_rows", [ROWS, 1500])
def test_cached_pages_of_pyarrow_hold_the_same_rows(cache, codec, version, nulls, page_rows):
    whole = table(nulls)
    encodings = {"small": "DELTA_BINARY_PACKED", "double": "BYTE_STREAM_SPLIT", "flag": "RLE"}
    file = one_row_group(
        whole,
        compression=codec,
        data_page_version=version,
        use_dictionary=["run", "sparse", "word"],
        column_encoding=encodings,
        max_rows_per_page=page_rows,
        write_page_checksum=codec == "snappy",
    )
    check_cached(file, whole, random.Random(0))
    # Each column was used more than once, so no page is read any more.
    file.requests.clear()
    rows = RowRanges([(7, 8), (2047, 2050)])
    taken = file.rows_by_kernels(0, rows, file.located, range(whole.num_columns))
    assert not file.requests
    assert len(taken) == whole.num_columns
    for number, values in taken.items():
        assert same(values, sliced(whole.column(number), rows))


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd", "lz4", "gzip"])
def test_cached_pages_of_polars_hold_the_same_rows(cache, tmp_path, codec):
    pl = pytest.importorskip("polars")
    path = tmp_path / "a.parquet"
    frame = pl.from_arrow(table(0.2).drop_columns(["bytes"]))
    frame.write_parquet(path, compression=codec, data_page_size=1 << 30)
    check_cached(CachedFile(path.read_bytes()), pq.read_table(path), random.Random(0))


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd", "gzip", "lz4_raw"])
def test_cached_pages_of_duckdb_hold_the_same_rows(cache, tmp_path, codec, version):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "a.parquet"
    rows = table(0.2)
    duckdb.sql("select * from rows").query(
        "t", f"copy t to '{path}' (format parquet, codec {codec}, parquet_version {version})"
    )
    assert rows.num_rows == ROWS
    check_cached(CachedFile(path.read_bytes()), pq.read_table(path), random.Random(0))


def test_a_page_is_cached_when_it_is_used_again(cache):
    texts = [f"text {number}" for number in range(ROWS)]
    whole = pa.table({"number": range(ROWS), "text": texts})
    file = one_row_group(whole, use_dictionary=False)
    rows = RowRanges([(2000, 2001)])
    sizes, num_requests = [], []
    for _ in range(4):
        file.requests.clear()
        file.rows_by_kernels(0, rows, file.indexed, [0, 1])
        sizes.append(cache.num_bytes)
        num_requests.append(len([span for span in file.requests if span[1] - span[0] > ROWS]))
    assert num_requests == [2, 2, 0, 0]
    # A length of 4 bytes precedes each text. A block has an address, a size and a number of values.
    num_bytes = 8 * ROWS + sum(map(len, texts)) + 4 * ROWS + 2 * 3 * 8 * (ROWS // BLOCK_ROWS + 1)
    assert sizes == [0, num_bytes, num_bytes, num_bytes]


@pytest.mark.parametrize("max_bytes", [0, 1000, 50_000, 200_000])
def test_a_small_cache_forgets_pages_and_changes_no_values(cache, monkeypatch, max_bytes):
    set_constant(monkeypatch, cache, "_max_bytes", max_bytes)
    whole = table(0.1)
    file = one_row_group(whole, use_dictionary=["word"])
    check_cached(file, whole, random.Random(1))
    assert cache.num_bytes <= max_bytes
    assert (cache.num_bytes > 0) == (max_bytes >= 50_000)


@pytest.mark.parametrize("batch_bytes", [20_000, 1 << 21])
@pytest.mark.parametrize("seed", range(4))
def test_pages_in_the_cache_and_in_the_file_are_taken_together(
    cache, monkeypatch, seed, batch_bytes
):
    """Columns have few or many pages, of which any may be cached, and any may be too small."""
    rng = random.Random(seed)
    set_constant(monkeypatch, leaf_reader, "_BATCH_BYTES", batch_bytes)
    set_constant(monkeypatch, leaf_reader, "_MAX_UNCACHED_BYTES", 3000)
    whole = table(0.2 * (seed % 2))
    file = one_row_group(
        whole,
        max_rows_per_page=rng.choice([700, 1900]),
        compression=rng.choice(["snappy", "zstd"]),
        use_dictionary=seed > 1 or ["word"],
    )
    # Batches are for local files.
    file.is_local = True
    replace_function(monkeypatch, leaf_reader, "read_spans", read_from_memory)
    fields = list(range(whole.num_columns))
    columns = file.leaves(0, file.indexed, fields)
    assert len(columns) == len(fields)
    for _ in range(cases(400, quick=80)):
        if rng.random() < 0.1:
            cache.clear()
        chosen = rng.sample(fields, rng.randint(1, 6))
        rows = some_rows(ROWS, rng, max_ranges=rng.choice([2, 6]))
        taken = PageTable([columns[field] for field in chosen]).take(file, rows)
        for field, values in zip(chosen, taken, strict=True):
            assert values is not None
            assert same(pa.chunked_array([values]), sliced(whole.column(field), rows))
        check_found(file, whole, 0, rows, file.indexed, rng)
    assert cache.num_bytes


@pytest.mark.parametrize("name", ["late", "number"])
@pytest.mark.parametrize("nulls", [0.0, 0.2])
def test_a_page_is_read_in_part_beside_a_cached_one(cache, name, nulls):
    """Only later pages of "late" have nulls, so rows and positions of values are not the same."""
    whole = table(nulls).select([name])
    file = one_row_group(whole, use_dictionary=False, max_rows_per_page=1900)
    (column,) = file.leaves(0, file.indexed, [0]).values()
    cached, rows = RowRanges([(2000, 2010)]), RowRanges([(5, 10), (2000, 2010)])
    for _ in range(2):
        PageTable([column]).take(file, cached)
    assert cache.num_bytes
    values = whole.column(0).to_pylist()
    for row in (row for row in rows.rows().tolist() if values[row] is not None):
        # The search would cache the first page when it uses it again.
        cache.note_uses({number: 1 << 40 for number in range(2)})
        keys = KeySet(column.leaf, [values[row].to_bytes(8, "little")])
        found, taken = PageTable([column]).find_rows(file, keys, False, rows)
        assert found.tolist() == [row]
        assert taken is not None and taken.to_pylist() == [values[row]]


def read_from_memory(file: File, starts: np.ndarray, sizes: np.ndarray, num_bytes: int):
    spans = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    data = b"".join(file.read(list(spans)))
    assert len(data) == num_bytes
    return np.frombuffer(data, dtype=np.uint8)


def test_threads_share_cached_pages(cache, monkeypatch):
    set_constant(monkeypatch, cache, "_max_bytes", 150_000)
    whole = table(0.1)
    file = one_row_group(whole, use_dictionary=["word", "run"])

    def check(seed: int) -> int:
        check_cached(file, whole, random.Random(seed))
        return seed

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(check, range(8))) == list(range(8))
    assert 0 < cache.num_bytes <= 150_000


def test_a_rewritten_file_does_not_use_the_pages_of_the_old_one(cache, tmp_path: Path):
    zb.warmup()
    path = tmp_path / "0.parquet"
    for name in ("first", "other", "third"):
        rows = pa.table({"id": range(ROWS), "name": [f"{name} {i % 5}" for i in range(ROWS)]})
        pq.write_table(rows, tmp_path / "new", use_dictionary=False)
        os.replace(tmp_path / "new", path)
        ds = zb.dataset(path, index_dir=str(tmp_path / "index"))
        build(ds, "id", replace=True)
        # A file that was just written is not cached, because its times may hide another write.
        time.sleep(0.1)
        for key in (42, 43, 44, ROWS - 1):
            assert ds.lookup("id", [key])["name"].to_pylist() == [f"{name} {key % 5}"]
    assert cache.num_bytes > 3 * ROWS * 8


def test_pages_of_a_file_that_was_just_written_are_not_cached(cache):
    whole = table(0.1)
    file = one_row_group(whole, use_dictionary=False)
    file.identity = FileIdentity(len(file.data), time.time_ns() + 10**9, inode=next(INODES))
    check_cached(file, whole, random.Random(0))
    assert cache.num_bytes == 0


def outcome(file: File, column: LeafChunk, rows: RowRanges, key: int) -> list:
    """Return the values at rows and the rows of a key, with None for each that is refused."""
    results: list = [None, None]
    with contextlib.suppress(FragmentUnreadable, Undecodable):
        (values,) = PageTable([column]).take(file, rows)
        results[0] = None if values is None else values.to_pylist()
    with contextlib.suppress(FragmentUnreadable, Undecodable):
        form = key.to_bytes(8, "little") if column.leaf.width else str(key).encode()
        keys = KeySet(column.leaf, [form])
        results[1] = PageTable([column]).find_rows(file, keys, False, rows)[0].tolist()
    return results


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("is_dictionary", [False, True])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_cached_damaged_pages_give_no_other_values(cache, kind, codec, is_dictionary, is_checked):
    """The uncached search of the same bytes is the oracle, and `trust.bodies` tests that one.

    If the search of the whole page is refused, the values must be those of the sound file or those
    that pyarrow reads.
    """
    rng = random.Random(0)
    numbers = [None if rng.random() < 0.2 else rng.randrange(40) for _ in range(2500)]
    whole = pa.table({"x": pa.array(numbers, pa.int64()).cast(kind)})
    sound = one_row_group(
        whole, compression=codec, use_dictionary=is_dictionary, write_page_checksum=is_checked
    )
    (column,) = sound.leaves(0, sound.indexed, [0]).values()
    start, size = int(column.pages.starts[0]), int(column.pages.sizes[0])
    num_cached = 0
    for _ in range(cases(600, quick=150)):
        position = start + rng.randrange(rng.choice([40, size]))
        data = bytearray(sound.data)
        data[position] ^= 1 << rng.randrange(8)
        file, uncached = CachedFile(bytes(data)), File(bytes(data))
        first = rng.randrange(len(whole))
        rows = RowRanges([(first, first + 9), (first + 1100, first + 1101)]).window(0, len(whole))
        key = rng.randrange(40)
        expected = outcome(uncached, column, rows, key)
        before = cache.num_bytes
        for _ in range(4):
            results = outcome(file, column, rows, key)
            for result, expectation in zip(results, expected, strict=True):
                if result is not None and result != expectation:
                    assert expectation is None
                    assert result in possible_results(bytes(data), whole, rows, key)
        num_cached += cache.num_bytes > before
    # Some damages only change values, so pages without a checksum are cached.
    assert num_cached or is_checked


def possible_results(data: bytes, whole: pa.Table, rows: RowRanges, key: int) -> list:
    """Return the values at rows, and the rows of a key, as the sound and the damaged file hold."""
    columns = [whole.column(0)]
    with contextlib.suppress(pa.ArrowException, OSError):
        columns.append(pq.read_table(io.BytesIO(data)).column(0))
    results = []
    for column in columns:
        values = column.to_pylist()
        results.append(sliced(column, rows).to_pylist())
        wanted = key if pa.types.is_integer(column.type) else str(key)
        results.append([row for row in rows.rows().tolist() if values[row] == wanted])
    return results


@st.composite
def index_pages(draw: st.DrawFn) -> tuple[int, list[int | None], bytes]:
    """Draw rows with indices or nulls, and a body that stores the indices in runs of any kind."""
    width = draw(st.integers(0, 32))
    index = st.integers(0, (1 << width) - 1)
    body, indices = bytearray([width]), []
    for _ in range(draw(st.integers(0, 30))):
        if draw(st.booleans()):
            length = draw(st.sampled_from([1, 7, 300, 2000]))
            value = draw(index)
            body += varint(length << 1) + value.to_bytes((width + 7) // 8, "little")
            indices += [value] * length
        else:
            values = draw(st.lists(index, min_size=8, max_size=24))
            values = values[: len(values) // 8 * 8]
            body += varint(len(values) // 8 << 1 | 1)
            packed = sum(value << (i * width) for i, value in enumerate(values))
            body += packed.to_bytes(len(values) // 8 * width, "little")
            indices += values
    # Nulls lie anywhere between the values.
    rows: list[int | None] = list(indices)
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 5))):
            position = draw(st.integers(0, len(rows)))
            rows[position:position] = [None] * draw(st.sampled_from([1, 3, 1500]))
    return width, rows, bytes(body)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@given(index_pages())
@settings(max_examples=cases(400), deadline=None)
def test_blocks_hold_the_indices_of_their_rows(page):
    width, rows, body = page
    is_present = np.array([row is not None for row in rows], dtype=np.uint8)
    data = np.frombuffer(body, dtype=np.uint8)
    present = None if is_present.all() else is_present
    blocks = split(data, RLE_DICTIONARY, 8, len(rows), present)
    assert blocks is not None
    num_blocks = blocks.kernel_args[1]
    assert num_blocks == -(-len(rows) // BLOCK_ROWS)
    fields = numbers_at(blocks.kernel_args[0], 3 * num_blocks).reshape(3, num_blocks)
    for number, (address, size, stored) in enumerate(fields.T.tolist()):
        expected = rows[number * BLOCK_ROWS : (number + 1) * BLOCK_ROWS]
        expected = [index for index in expected if index is not None]
        assert stored == len(expected)
        block = bytes(pa.foreign_buffer(address, size))
        assert block[0] == width or not stored
        header = block[1] & 0x7F | block[2] << 7
        assert header == (stored + 7) // 8 << 1 | 1
        packed = int.from_bytes(block[3:], "little")
        assert len(block) == 3 + (header >> 1) * width
        found = [packed >> (i * width) & ((1 << width) - 1) for i in range(stored)]
        assert found == expected
    # A page that lacks its last value has no blocks.
    if rows and rows[-1] is not None and len(body) > 1:
        assert split(data, RLE_DICTIONARY, 8, len(rows) + 40_000, None) is None


def split(
    data: np.ndarray, encoding: int, width: int, num_rows: int, present: np.ndarray | None
) -> PageBlocks | None:
    return split_page(
        data.ctypes.data,
        data.size,
        encoding=encoding,
        width=width,
        num_rows=num_rows,
        present=present,
    )


def numbers_at(address: int, count: int) -> np.ndarray:
    return np.frombuffer(pa.foreign_buffer(address, 8 * count), dtype=np.int64)


@pytest.mark.parametrize("width", [0, 1, 4, 8, 12])
def test_a_page_without_all_values_has_no_blocks(width):
    body = b"".join(pa.py_buffer(b"abcdefgh"[:4]).to_pybytes() for _ in range(3000))
    if not width:
        body = b"".join((3).to_bytes(4, "little") + b"abc" for _ in range(3000))
    data = np.frombuffer(body, dtype=np.uint8)
    num_rows = len(body) // (width or 7)
    assert split(data, PLAIN, width, num_rows, None) is not None
    assert split(data, PLAIN, width, num_rows + 1, None) is None
    assert split(data[:-1], PLAIN, width, num_rows, None) is None


def use(cache: MemoryCache, names: str, *, together: int = 1, may_be_first: bool = False) -> str:
    """Use some objects of ten bytes as a search does, and return those that were cached."""
    found = ""
    for start in range(0, len(names), together):
        part = names[start : start + together]
        cached = cache.find(part, Sized)
        found += "".join(name for name, sized in zip(part, cached, strict=True) if sized)
        missing = {name: 10 for name, sized in zip(part, cached, strict=True) if not sized}
        worth = cache.note_uses(missing, may_be_first=may_be_first)
        for name, is_worth in zip(missing, worth, strict=True):
            if is_worth:
                cache.put(name, Sized(10))
    return found


@pytest.mark.parametrize("may_be_first", [False, True])
@pytest.mark.parametrize("together", [1, 3, 10])
def test_a_cache_that_is_too_small_keeps_a_part(together: int, may_be_first: bool):
    """Dropping the oldest object for each new one would drop every object before its next use."""
    cache = MemoryCache(max_bytes=50)
    options: Any = {"together": together, "may_be_first": may_be_first}
    for _ in range(2):
        use(cache, "abcdefghij", **options)
    for _ in range(5):
        assert len(use(cache, "abcdefghij", **options)) == 5
    # Other objects take their places once they are used more recently.
    for _ in range(3):
        use(cache, "klmno", **options)
    assert use(cache, "klmno", **options) == "klmno"
    assert cache.num_bytes == 50


def test_a_scan_of_objects_that_are_used_once_drops_nothing():
    cache = MemoryCache(max_bytes=50)
    for _ in range(2):
        use(cache, "abcde")
    for number in range(100):
        use(cache, chr(1000 + number))
    assert use(cache, "abcde") == "abcde"


class Sized:
    def __init__(self, num_bytes: int):
        self.num_bytes = num_bytes


def test_page_tables_of_many_row_groups_stay_within_the_bound(tmp_path, monkeypatch):
    cache = MemoryCache(max_bytes=30_000)
    set_constant(monkeypatch, parquet_rows, "MEMORY_CACHE", cache)
    rows = 4_000
    data = pa.table(
        {"id": range(rows), "x": np.arange(rows) / 2, "pair": [[i] for i in range(rows)]}
    )
    options = {"row_group_size": 100, "write_page_index": True, "max_rows_per_page": 10}
    pq.write_table(data, tmp_path / "0.parquet", **options)
    ds = zb.dataset(tmp_path)
    build(ds, "id", number_of_items=100)
    zb.warmup()
    most = 0
    for key in [*range(0, rows, 50), *range(0, rows, 50), 7, 7]:
        assert ds.lookup("id", [key]).drop_columns("key_index").equals(data.slice(key, 1))
        most = max(most, cache.num_bytes)
    assert 15_000 < most <= 30_000

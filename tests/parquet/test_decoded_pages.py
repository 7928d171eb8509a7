"""Test that lookups of few keys find the same rows in decoded pages as in the file."""

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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import build
from support.helpers import cases
from support.parquet_helpers import File, same, sliced
from support.seams import set_constant

import zonebloom as zb
from zonebloom.base.memory_cache import MemoryCache
from zonebloom.base.row_ranges import RowRanges
from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import leaf_reader
from zonebloom.parquet.key_tests import KeySet
from zonebloom.parquet.leaf_reader import PageTable
from zonebloom.parquet.leaf_type import LeafChunk, Undecodable
from zonebloom.sources import parquet_rows
from zonebloom.storage.files import FileIdentity
from zonebloom.values.literal import Unanswerable, byte_forms

ROWS = 5000
CODECS = ["none", "snappy", "zstd", "gzip", "lz4"]
INODES = count(1)


class CachedFile(File):
    """A file in memory whose pages may be cached, unlike those of `File`."""

    has_round_trips = False

    def __init__(self, data: bytes):
        super().__init__(data)
        self.identity = FileIdentity(len(data), 0, inode=next(INODES))

    def chunks(self) -> list[LeafChunk]:
        fields = range(len(self.footer.schema.names))
        return list(self.leaves(0, lambda *c: self.indexed(*c) or self.walked(*c), fields).values())


@pytest.fixture
def cache(monkeypatch) -> MemoryCache:
    """Cache every page, also small ones, in a new cache, and read few together. Return it."""
    cache = MemoryCache()
    set_constant(monkeypatch, leaf_reader, "_MAX_UNCACHED_ROWS", 0)
    set_constant(monkeypatch, leaf_reader, "_BATCH_ROWS", 500)
    set_constant(monkeypatch, leaf_reader, "MEMORY_CACHE", cache)
    return cache


def table(nulls: float, rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(0)

    def column(values: Sequence, kind: pa.DataType) -> pa.Array:
        array = pa.array(values).cast(kind)
        mask = pa.array(rng.random(rows) < nulls)
        return pc.if_else(mask, pa.scalar(None, kind), array)

    numbers = rng.integers(0, 1 << 40, rows)
    # Runs of nulls and of equal values.
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


def one_row_group(table: pa.Table, **options) -> CachedFile:
    """Return a file of pyarrow with one page in each chunk, unless options differ."""
    sink = io.BytesIO()
    defaults = {"data_page_size": 1 << 30, "write_page_index": True}
    pq.write_table(table, sink, **{**defaults, **options})
    return CachedFile(sink.getvalue())


def few_rows(num_rows: int, rng: random.Random) -> RowRanges:
    """Return ranges of at most half of the rows, because lookups of more cache nothing."""
    spans = [(rng.randrange(num_rows), rng.randint(1, num_rows // 9)) for _ in range(4)]
    return RowRanges([(start, min(num_rows, start + size)) for start, size in spans])


def check_hits(file: CachedFile, whole: pa.Table, rng: random.Random, tries: int = 4) -> int:
    """Look keys of each column up, and compare with brute force. Return how many were answered."""
    chunks = file.chunks()
    num_answered = 0
    for number in [number for number in range(len(chunks)) for _ in range(tries)]:
        rows = few_rows(len(whole), rng)
        column = whole.column(number)
        keys = [column[rng.choice(rows.rows().tolist())] for _ in range(rng.choice([1, 1, 4, 70]))]
        wanted = {key.as_py() for key in keys if key.is_valid}
        try:
            forms = [f for key in keys if key.is_valid for f in byte_forms(column.type, key)]
            key_set = KeySet(chunks[number].leaf, forms)
        except (Unanswerable, Undecodable):
            continue
        if len(forms) == 1:
            key_set.value = pa.scalar(next(iter(wanted)), column.type)
        order = [number, *(n for n in range(len(chunks)) if n != number)]
        found, arrays = file.hits([chunks[n] for n in order], key_set, rows)
        values = column.to_pylist()
        # A scan uses and fills the same cache.
        for name, taken in zip(whole.column_names, PageTable(chunks).take(file, rows), strict=True):
            assert taken is not None
            assert same(pa.chunked_array([taken]), sliced(whole.column(name), rows)), name
        expected = [row for row in rows.rows().tolist() if values[row] in wanted]
        num_answered += 1
        assert found.tolist() == expected, whole.column_names[number]
        for n, array in zip(order, arrays, strict=True):
            array.validate(full=True)
            at_rows = sliced(whole.column(n), RowRanges.from_rows(found))
            assert same(pa.chunked_array([array]), at_rows), whole.column_names[n]
    return num_answered


@pytest.mark.many
@pytest.mark.parametrize("nulls", [0.0, 0.2])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("page_rows", [ROWS, 1500])
def test_decoded_pages_of_pyarrow_hold_the_same_rows(cache, codec, version, nulls, page_rows):
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
    assert check_hits(file, whole, random.Random(0), tries=cases(4, quick=2)) > 10
    # Each page was used more than once, so none is read any more.
    file.requests.clear()
    assert check_hits(file, whole, random.Random(1), tries=cases(4, quick=1))
    assert not file.requests


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [1000, 50_000, 150_000])
def test_pages_of_any_size_are_read_within_the_bound(cache, monkeypatch, max_bytes):
    set_constant(monkeypatch, cache, "_max_bytes", max_bytes)
    whole = table(0.1)
    file = one_row_group(whole, use_dictionary=["word"])

    def check(seed: int) -> bool:
        return check_hits(file, whole, random.Random(seed)) > 0

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(check, range(4)))
    assert cache.num_bytes <= max_bytes
    assert (cache.num_bytes > 0) == (max_bytes >= 50_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_decoded_and_small_pages_are_taken_together(cache, monkeypatch, seed):
    set_constant(monkeypatch, leaf_reader, "_MAX_UNCACHED_ROWS", 1000)
    whole = table(0.2 * (seed % 2))
    # A page ends after so many bytes, so those of wide columns have fewer rows.
    file = one_row_group(
        whole, data_page_size=12_000, write_batch_size=100, use_dictionary=seed > 1 or ["word"]
    )
    assert check_hits(file, whole, random.Random(seed), tries=20) > 50
    assert cache.num_bytes


class Whole:
    """A cached object that fills the cache."""

    num_bytes = 1 << 20


def test_a_lookup_of_many_keys_or_rows_drops_nothing_from_the_cache(cache, monkeypatch):
    set_constant(monkeypatch, cache, "_max_bytes", Whole.num_bytes)
    file = one_row_group(table(0.1).select(["number"]), use_dictionary=False)
    (chunk,) = file.chunks()
    everything, half = RowRanges([(0, ROWS)]), RowRanges([(0, ROWS // 2)])
    for num_keys, rows, is_dropped in ((1, everything, False), (300, half, False), (1, half, True)):
        cache.put("other", Whole())
        keys = KeySet(chunk.leaf, [number.to_bytes(8, "little") for number in range(num_keys)])
        PageTable([chunk]).find_rows(file, keys, False, rows)
        assert (cache.get("other", Whole) is None) == is_dropped


def test_pages_of_a_file_that_was_just_written_are_not_cached(cache):
    whole = table(0.1)
    file = one_row_group(whole, use_dictionary=False)
    file.identity = FileIdentity(len(file.data), time.time_ns() + 10**12, inode=next(INODES))
    assert check_hits(file, whole, random.Random(0))
    assert cache.num_bytes == 0


def test_a_rewritten_file_does_not_use_the_pages_of_the_old_one(cache, tmp_path: Path):
    zb.warmup()
    path = tmp_path / "0.parquet"
    for name in ("first", "other", "third"):
        rows = pa.table({"id": range(ROWS), "name": [f"{name} {i % 5}" for i in range(ROWS)]})
        pq.write_table(rows, tmp_path / "new", use_dictionary=False)
        os.replace(tmp_path / "new", path)
        ds = zb.dataset(path, index_dir=str(tmp_path / "index"))
        build(ds, "id", number_of_items=500, replace=True)
        # A file that was just written is not cached, because its times may hide another write.
        time.sleep(0.1)
        for key in (42, 43, 44, ROWS - 1):
            assert ds.lookup("id", [key])["name"].to_pylist() == [f"{name} {key % 5}"]
    assert cache.num_bytes > 3 * ROWS * 8


@pytest.mark.many
@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("is_dictionary", [False, True])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_damaged_pages_give_no_other_values(cache, kind, codec, is_dictionary, is_checked):
    """`PageTable` of the same bytes is the oracle, and `trust.bodies` tests that one.

    If it refuses, the rows must be those of the sound file or those that pyarrow reads.
    """
    rng = random.Random(0)
    numbers = [None if rng.random() < 0.2 else rng.randrange(40) for _ in range(2500)]
    whole = pa.table({"x": pa.array(numbers, pa.int64()).cast(kind)})
    sound = one_row_group(
        whole, compression=codec, use_dictionary=is_dictionary, write_page_checksum=is_checked
    )
    (column,) = sound.chunks()
    start, size = int(column.pages.starts[0]), int(column.pages.sizes[0])
    num_answered = 0
    for _ in range(cases(600, quick=150)):
        position = start + rng.randrange(rng.choice([40, size]))
        data = bytearray(sound.data)
        data[position] ^= 1 << rng.randrange(8)
        file = CachedFile(bytes(data))
        first = rng.randrange(len(whole))
        rows = RowRanges([(first, first + 9), (first + 1100, first + 1101)]).window(0, len(whole))
        key = rng.randrange(40)
        form = key.to_bytes(8, "little") if column.leaf.width else str(key).encode()
        keys = KeySet(column.leaf, [form])
        expected = None
        with contextlib.suppress(FragmentUnreadable, Undecodable):
            expected = PageTable([column]).find_rows(file, keys, False, rows)[0].tolist()
        for _ in range(3):
            with contextlib.suppress(FragmentUnreadable, Undecodable):
                found, _ = file.hits([column], keys, rows)
                num_answered += 1
                possible = [expected]
                if expected is None:
                    possible = possible_rows(bytes(data), whole, rows, key)
                assert found.tolist() in possible
    # Some damages only change values, so pages without a checksum are read.
    assert num_answered or is_checked


def possible_rows(data: bytes, whole: pa.Table, rows: RowRanges, key: int) -> list[list[int]]:
    """Return the rows of a key as the sound and the damaged file hold them."""
    columns = [whole.column(0)]
    with contextlib.suppress(pa.ArrowException, OSError):
        columns.append(pq.read_table(io.BytesIO(data)).column(0))
    wanted = key
    if pa.types.is_string(whole.column(0).type):
        # Damaged strings may not be valid UTF-8.
        wanted, columns = str(key).encode(), [column.cast(pa.binary()) for column in columns]
    return [
        [row for row in rows.rows().tolist() if values[row] == wanted]
        for values in (column.to_pylist() for column in columns)
    ]


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

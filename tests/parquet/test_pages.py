"""Test that reading page by page returns the same rows as reading a whole file."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.parquet_helpers import (
    NESTED,
    SCALARS,
    TYPES,
    File,
    check_file,
    sample,
    written,
)

from zonebloom import RowRanges
from zonebloom.errors import FragmentUnreadable

LOCAL = pafs.LocalFileSystem()

CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]
VERSIONS = ["1.0", "2.0"]


def mixed_table(rows: int = 1000, seed: int = 0) -> pa.Table:
    rng = random.Random(seed)
    names = ["int64", "string", "double", "list<element: int64>", "fixed_size_binary[16]"]
    return pa.table({name: sample(TYPES.get(name, pa.int64()), rows, rng) for name in names})


@pytest.mark.many
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_pages_of_every_type_are_read(kind, version):
    rng = random.Random(1)
    table = pa.table({"x": sample(TYPES[kind], 1000, rng), "n": pa.array(range(1000))})
    check_file(written(table, data_page_version=version))


@pytest.mark.many
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", CODECS)
def test_pages_of_every_codec_are_read(codec, version):
    check_file(written(mixed_table(), compression=codec, data_page_version=version))


@pytest.mark.many
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "encoding, names",
    [
        ("PLAIN", ["int32", "int64", "float", "double", "string", "fixed_size_binary[16]"]),
        ("DELTA_BINARY_PACKED", ["int32", "int64", "timestamp[us, tz=Europe/Paris]"]),
        ("DELTA_LENGTH_BYTE_ARRAY", ["string", "binary", "large_string"]),
        ("DELTA_BYTE_ARRAY", ["string", "binary", "decimal128(38, 10)"]),
        ("BYTE_STREAM_SPLIT", ["float", "double", "int32", "int64", "fixed_size_binary[16]"]),
        ("RLE", ["bool"]),
    ],
)
def test_pages_of_every_encoding_are_read(encoding, names, version):
    rng = random.Random(2)
    table = pa.table({name: sample(SCALARS[name], 1000, rng) for name in names})
    data = written(
        table,
        use_dictionary=False,
        column_encoding=dict.fromkeys(names, encoding),
        data_page_version=version,
    )
    check_file(data)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_chunk_may_change_from_dictionary_to_plain_pages(version):
    rng = random.Random(3)
    table = pa.table({"s": [f"{rng.randrange(10**9):030}" for _ in range(3000)], "n": range(3000)})
    data = written(
        table,
        dictionary_pagesize_limit=8192,
        row_group_size=3000,
        data_page_version=version,
        compression="none",
    )
    file = check_file(data)
    group = file.footer.row_groups[0]
    chunk = group.chunks[0]
    # The last pages are PLAIN, so they are read without the dictionary.
    file.requests.clear()
    file.rows(0, RowRanges([(2990, 3000)]), fields=[0])
    assert all(start >= chunk.data_start for start, _ in file.requests)
    file.requests.clear()
    file.rows(0, RowRanges([(0, 1)]), fields=[0])
    assert any(start == chunk.start for start, _ in file.requests)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("name", ["int64", "string", "bool", *list(NESTED)[:3]])
def test_columns_of_only_nulls_are_read(name, dictionary):
    column = pa.nulls(1000, TYPES[name])
    check_file(written(pa.table({"x": column}), use_dictionary=dictionary))


@pytest.mark.parametrize("use_dictionary", [False, True])
def test_kernels_read_int96_timestamps(use_dictionary):
    maximum = (1 << 63) - 1
    values = [0, -1, 1, maximum, -maximum, 86_400 * 10**9, -86_400 * 10**9 - 1, None]
    moments = pa.array([value for value in values for _ in range(40)], pa.timestamp("ns"))
    table = pa.table({"t": moments})
    options = {"use_deprecated_int96_timestamps": True, "use_dictionary": use_dictionary}
    file = check_file(written(table, store_schema=False, **options))
    assert file.leaves(0, file.indexed, [0])


def test_checksums_detect_damage():
    data = bytearray(
        written(pa.table({"n": range(3000)}), write_page_checksum=True, compression="none")
    )
    pages = File(bytes(data)).indexed(0, 0)
    assert pages is not None
    data[int(pages.starts[2] + pages.sizes[2]) - 3] ^= 1
    file = File(bytes(data))
    file.rows(0, RowRanges([(0, 1)]))
    row = int(pages.first_rows[2])
    with pytest.raises(FragmentUnreadable, match="checksum"):
        file.rows(0, RowRanges([(row, row + 1)]))


def test_row_groups_without_rows_are_read():
    table = mixed_table(100)
    check_file(written(table.slice(0, 0)))


def test_columns_with_equal_or_unusual_names_are_read():
    arrays = [
        pa.array(range(1000)),
        pa.array([str(i) for i in range(1000)]),
        pa.array([1.5] * 1000),
    ]
    for names in (["a", "a", "a"], ["a.b", "", "列"], ["a", "a.list.element", "x\0y"]):
        check_file(written(pa.Table.from_arrays(arrays, names)))


def test_only_requested_columns_of_a_wide_file_are_read():
    table = pa.table({f"c{i}": np.arange(2000) + i for i in range(50)})
    file = File(written(table, row_group_size=2000, use_dictionary=False, max_rows_per_page=100))
    columns = file.rows(0, RowRanges([(150, 160), (1900, 1901)]), fields=[40, 3])
    assert sorted(columns) == [3, 40]
    assert columns[40].to_pylist() == [*range(190, 200), 1940]
    pages = [file.indexed(0, leaf) for leaf in (3, 40)]
    wanted = sum(int(locations.sizes[1] + locations.sizes[19]) for locations in pages if locations)
    assert sum(stop - start for start, stop in file.requests) <= wanted + 4 * 4096


def test_a_page_walk_handles_repeated_columns():
    table = pa.table({"l": sample(pa.list_(pa.int64()), 2000, random.Random(0))})
    options = {"write_page_index": False, "row_group_size": 2000}
    first = File(written(table, data_page_version="1.0", **options))
    assert first.walked(0, 0) is None
    second = File(written(table, data_page_version="2.0", **options))
    pages = second.walked(0, 0)
    assert pages is not None
    assert pages.starts.size > 3
    assert all(stop - start <= 16 << 10 for start, stop in second.requests)


def test_a_page_walk_finds_the_pages_of_the_offset_index():
    file = File(written(mixed_table(), data_page_version="2.0"))
    for leaf in range(len(file.footer.schema.leaves)):
        index, walked = file.indexed(0, leaf), file.walked(0, leaf)
        assert index is not None
        assert walked is not None
        for name in ("starts", "sizes", "first_rows"):
            assert getattr(index, name).tolist() == getattr(walked, name).tolist()


@pytest.mark.slow
@given(data=st.data())
def test_random_files_are_read_as_by_pyarrow(data):
    rng = random.Random(data.draw(st.integers(0, 1 << 32), label="seed"))
    names = data.draw(
        st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4), label="types"
    )
    rows = data.draw(st.integers(1, 700), label="rows")
    nulls = data.draw(st.sampled_from([0.0, 0.1, 0.9]), label="nulls")
    options = {
        "data_page_size": data.draw(st.sampled_from([1, 64, 1024, 1 << 20]), label="page bytes"),
        "max_rows_per_page": data.draw(st.integers(1, 500), label="page rows"),
        "write_batch_size": data.draw(st.integers(1, 200), label="batch"),
        "row_group_size": data.draw(st.integers(1, 800), label="row group"),
        "data_page_version": data.draw(st.sampled_from(VERSIONS), label="page version"),
        "compression": data.draw(st.sampled_from(CODECS), label="codec"),
        "use_dictionary": data.draw(st.booleans(), label="dictionary"),
        "dictionary_pagesize_limit": data.draw(st.sampled_from([64, 1 << 20]), label="limit"),
        "write_page_index": data.draw(st.booleans(), label="index"),
        "write_page_checksum": data.draw(st.booleans(), label="checksum"),
        "store_schema": data.draw(st.booleans(), label="schema"),
    }
    options["row_group_size"] = max(options["row_group_size"], rows // 4)
    columns = [sample(TYPES[name], rows, rng, nulls) for name in names]
    table = pa.Table.from_arrays(columns, [f"{i}" for i in range(len(names))])
    # pyarrow loses rows of its own files if pages are this small, because it writes pages without
    # values, but reads them as the end of a chunk.
    readable = {**options, "data_page_size": 1 << 20, "max_rows_per_page": 1000}
    check_file(written(table, **options), tries=2, same_groups=written(table, **readable))


@pytest.mark.parametrize("version", VERSIONS)
def test_pages_without_values_are_left_out(version):
    """If one row is longer than a page may be, pyarrow writes an empty page before it."""
    table = pa.table({"l": pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float32()))})
    options = {"data_page_size": 1, "write_batch_size": 1, "data_page_version": version}
    for index in (True, False):
        data = written(table, write_page_index=index, **options)
        check_file(data, same_groups=written(table, store_schema=True))

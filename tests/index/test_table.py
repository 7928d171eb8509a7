"""Test tables of zone filters: their schema, its bytes, and how damage is detected."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import cases, train_zones

from zonebloom.base.row_ranges import MAX_ROWS_PER_FRAGMENT
from zonebloom.base.version import FORMAT_VERSION
from zonebloom.catalog.store import read_file
from zonebloom.errors import CorruptIndex
from zonebloom.index.zone_bloom.rows import (
    FIELDS,
    RowTable,
    RowTableWriter,
    ZoneParameters,
    table_schema,
)
from zonebloom.sbbf import blocks
from zonebloom.storage.store import store_of

LOCAL = pafs.LocalFileSystem()
PARAMETERS = ZoneParameters(10, 0.01)


def zones_of(count, first=0, parameters=PARAMETERS):
    numbers = [None if n % 13 == 0 else n for n in range(first, first + count)]
    return list(train_zones([pa.array(numbers, pa.int64())], parameters))


def write(path, fragments, parameters=PARAMETERS):
    writer = RowTableWriter(LOCAL, str(path), parameters.number_of_items, parameters.probability)
    for fragment_id, runs in fragments:
        for zones in runs:
            writer.write(fragment_id, zones)
    return writer.close()


@pytest.fixture
def written(tmp_path):
    """Write a table of two fragments. Return its path, the `WrittenTable`, and the runs."""
    fragments = [(3, zones_of(95)), (7, zones_of(41, first=1000))]
    path = tmp_path / "bloomfilter.arrow"
    return path, write(path, fragments), fragments


def opened(path, written_table):
    num_bytes, checksum = written_table.num_bytes, written_table.checksum
    return RowTable(read_file(store_of(LOCAL), str(path), num_bytes, checksum), str(path))


def stored(columns, schema=None):
    """Return the bytes of an IPC file with one batch."""
    schema = schema or table_schema(8192, 0.00057)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as file:
        file.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return sink.getvalue()


def columns_of(filters, **changed):
    count = len(filters)
    columns = {
        "fragment_id": pa.array([0] * count, pa.uint64()),
        "zone_start": pa.array(range(0, 8192 * count, 8192), pa.uint64()),
        "zone_length": pa.array([8192] * count, pa.uint64()),
        "has_null": pa.array([False] * count, pa.bool_()),
        "bloom_filter_data": pa.array(filters, pa.binary()),
        **changed,
    }
    return list(columns.values())


# Reading


def test_round_trip(written):
    path, written_table, fragments = written
    table = opened(path, written_table)
    runs = [(fragment, zones) for fragment, part in fragments for zones in part]
    assert len(table) == written_table.num_zones
    assert table.fragment_ids.tolist() == [f for f, zones in runs for _ in range(len(zones))]
    assert table.starts.tolist() == [s for _, z in runs for s in z.starts.tolist()]
    assert table.lengths.tolist() == [s for _, z in runs for s in z.lengths.tolist()]
    assert table.has_null.tolist() == [s for _, z in runs for s in z.has_null.tolist()]
    for zone, expected in enumerate(row for _, zones in runs for row in zones.filters):
        assert np.array_equal(table.filter_words(zone), expected)
    assert (table.number_of_items, table.probability) == (10, 0.01)
    assert table.num_bytes == written_table.num_bytes
    with pa.memory_map(str(path)) as source:
        stored = pa.ipc.open_file(source).read_all()
    result = table.to_table()
    assert result.equals(stored)
    assert stored.schema.metadata == {
        **result.schema.metadata,
        b"zonebloom_format": str(FORMAT_VERSION).encode(),
    }


def test_a_table_without_zones(tmp_path):
    written_table = write(tmp_path / "t", [])
    table = opened(tmp_path / "t", written_table)
    assert written_table.num_zones == len(table) == 0
    assert table.to_table().num_rows == 0
    assert table.to_table().schema.equals(table_schema(10, 0.01), check_metadata=True)


def test_filters_of_zones_may_differ_in_size():
    filters = [bytes([i]) * 32 * z for i, z in enumerate((1, 604, 2, 1024), 1)]
    table = RowTable(stored(columns_of(filters)), "t")
    assert table.num_blocks.tolist() == [1, 604, 2, 1024]
    assert [table.filter_words(zone).tobytes() for zone in range(4)] == filters


# Damage


def is_within_bounds(table):
    """Check that every zone's filter is inside the file, so that no lookup reads outside of it."""
    ends = table.first_words + table.num_blocks * np.uint64(8)
    assert (table.first_words <= ends).all()
    assert (ends <= table.words.size).all()
    assert (table.num_blocks > 0).all()
    assert (table.lengths <= MAX_ROWS_PER_FRAGMENT).all()
    assert (table.starts <= np.uint64(MAX_ROWS_PER_FRAGMENT) - table.lengths).all()
    hit = np.zeros(len(table), dtype=bool)
    hashes = np.array([0, 2**64 - 1], dtype=np.uint64)
    blocks.check_filters(table.words, table.first_words, table.num_blocks, hashes, hit)


def check_survives(data):
    """Check that damaged bytes, without a checksum, are refused or give a table within bounds."""
    try:
        table = RowTable(pa.py_buffer(bytes(data)), "t")
    except CorruptIndex:
        return
    is_within_bounds(table)


def test_the_checksum_detects_every_flipped_byte(written):
    path, written_table, _ = written
    data = path.read_bytes()
    rng = random.Random(5)
    for position in [0, len(data) - 1, *rng.sample(range(len(data)), 300)]:
        damaged = bytearray(data)
        damaged[position] ^= rng.randrange(1, 256)
        path.write_bytes(damaged)
        with pytest.raises(CorruptIndex, match="checksum"):
            opened(path, written_table)
        check_survives(damaged)


_SMALL_TABLE = stored(columns_of([b"\x11" * 64, b"\x22" * 32])).to_pybytes()


@settings(max_examples=cases(300))
@given(
    st.lists(
        st.tuples(st.integers(0, len(_SMALL_TABLE) - 1), st.integers(0, 255)),
        min_size=1,
        max_size=6,
    )
)
def test_damaged_bytes_never_cause_a_crash_or_a_read_outside_the_file(changes):
    damaged = bytearray(_SMALL_TABLE)
    for position, byte in changes:
        damaged[position] = byte
    check_survives(damaged)


def test_a_file_that_grew_is_refused(written):
    path, written_table, _ = written
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CorruptIndex, match=r"more than the .* bytes that were written"):
        opened(path, written_table)


def test_a_missing_file_is_reported(tmp_path):
    for filesystem in (LOCAL, pafs.SubTreeFileSystem(str(tmp_path), LOCAL)):
        with pytest.raises(CorruptIndex, match=r"cannot open .*build the index again"):
            read_file(store_of(filesystem), str(tmp_path / "none"), 100, "")


# Hostile tables

BLOCK = bytes(32)


def nullable(schema):
    return pa.schema([field.with_nullable(True) for field in schema], schema.metadata)


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(lambda: stored(columns_of([BLOCK, b"x" * 33])), id="filter not whole blocks"),
        pytest.param(lambda: stored(columns_of([BLOCK, b""])), id="filter of no bytes"),
        pytest.param(lambda: stored(columns_of([bytes((1 << 27) + 32)])), id="filter over 128 MiB"),
        pytest.param(
            lambda: stored(
                columns_of([BLOCK], zone_start=pa.array([2**32 - 8192], pa.uint64())),
            ),
            id="zone past the last row",
        ),
        pytest.param(
            lambda: stored(
                columns_of(
                    [BLOCK],
                    zone_start=pa.array([2**64 - 1], pa.uint64()),
                    zone_length=pa.array([2], pa.uint64()),
                ),
            ),
            id="zone that wraps around",
        ),
        pytest.param(
            lambda: stored(
                columns_of([BLOCK], zone_length=pa.array([2**64 - 1], pa.uint64())),
            ),
            id="zone of 2**64 rows",
        ),
        pytest.param(
            lambda: stored(columns_of([BLOCK, None]), nullable(table_schema(8192, 0.00057))),
            id="nullable columns",
        ),
        pytest.param(
            lambda: stored(columns_of([BLOCK, None])), id="null in a column declared without"
        ),
        pytest.param(
            lambda: stored(columns_of([BLOCK], has_null=pa.array([None], pa.bool_()))),
            id="null flag that is null",
        ),
        pytest.param(
            lambda: stored(columns_of([BLOCK])[:4], pa.schema(list(table_schema(1, 0.5))[:4])),
            id="a column short",
        ),
        pytest.param(
            lambda: stored(
                columns_of([BLOCK], zone_start=pa.array([0], pa.int64())),
                table_schema(1, 0.5).set(1, pa.field("zone_start", pa.int64(), nullable=False)),
            ),
            id="column of another type",
        ),
        pytest.param(lambda: stored(columns_of([BLOCK]), FIELDS), id="no metadata"),
        pytest.param(
            lambda: stored(
                columns_of([BLOCK]),
                FIELDS.with_metadata(
                    {"bloomfilter_item": "many", "bloomfilter_probability": "0.1"}
                ),
            ),
            id="metadata that is no number",
        ),
        *(
            pytest.param(
                lambda items=items: stored(columns_of([BLOCK]), table_schema(items, 0.5)),
                id=f"zones of {items} rows",
            )
            for items in (-1, 0, 2**32, 10**30)
        ),
        pytest.param(lambda: pa.py_buffer(b"ARROW1\0\0" + bytes(100)), id="not Arrow"),
        pytest.param(lambda: pa.py_buffer(b""), id="nothing"),
    ],
)
def test_hostile_tables_are_refused(hostile):
    with pytest.raises(CorruptIndex, match="is not a bloomfilter table"):
        RowTable(hostile(), "there")


def test_a_zone_may_end_with_the_last_row_of_the_largest_fragment():
    first_row = 2**32 - 1 - 8192
    table = RowTable(stored(columns_of([BLOCK], zone_start=pa.array([first_row], pa.uint64()))), "")
    assert (table.starts + table.lengths).tolist() == [2**32 - 1]


def test_offsets_that_decrease_or_leave_the_file_are_refused():
    honest = stored(columns_of([BLOCK, BLOCK, BLOCK])).to_pybytes()
    offsets = np.array([0, 32, 64, 96], dtype=np.int32).tobytes()
    assert honest.count(offsets) == 1
    for bad in ([0, 64, 32, 96], [0, 32, 64, 2**31 - 32], [-32, 0, 32, 64], [0, 32, 64, 1 << 20]):
        forged = honest.replace(offsets, np.array(bad, dtype=np.int32).tobytes())
        with pytest.raises(CorruptIndex):
            RowTable(pa.py_buffer(forged), "there")


def test_unaligned_filters_are_refused():
    honest = stored(columns_of([BLOCK * 2, BLOCK, BLOCK])).to_pybytes()
    offsets = np.array([0, 64, 96, 128], dtype=np.int32).tobytes()
    assert honest.count(offsets) == 1
    shifted = np.array([1, 33, 65, 97], dtype=np.int32).tobytes()
    with pytest.raises(CorruptIndex, match="outside its file"):
        RowTable(pa.py_buffer(honest.replace(offsets, shifted)), "there")

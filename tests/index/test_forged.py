"""Index files that claim more data than they hold do not take more memory than they have bytes."""

from __future__ import annotations

import gc
import os
import shutil
import struct

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import xxhash
from support.helpers import index_folder, rewrite_document
from support.seams import set_constant

import zonebloom as zb
from zonebloom.catalog.versions import decode_listing
from zonebloom.errors import CorruptIndex, IndexNotUsedWarning
from zonebloom.index.hash.table import HashTable
from zonebloom.index.zone_bloom.rows import RowTable
from zonebloom.index.zone_map.bounds import read_zone_map
from zonebloom.parquet.page_map import PageMap
from zonebloom.storage import random_access
from zonebloom.storage.store import store_of

READERS = {
    "bloomfilter.arrow": lambda buffer: RowTable(buffer, "it"),
    "ranges.arrow": lambda buffer: read_zone_map(buffer, "it"),
    "pages.arrow": lambda buffer: PageMap(buffer, "it"),
    "*-*.arrow": decode_listing,
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> dict[str, bytes]:
    """Return the files of an index by their names."""
    folder = tmp_path_factory.mktemp("data")
    for number in range(2):
        ids = np.arange(1000) + 1000 * number
        pq.write_table(pa.table({"id": ids}), folder / f"{number}.parquet")
    zb.dataset(folder).create_scalar_index("id", number_of_items=100, spark=False)
    paths_by_name = {name: list(index_folder(folder).rglob(name)) for name in READERS}
    return {name: paths[0].read_bytes() for name, paths in paths_by_name.items()}


def written(table: pa.Table, **options) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def assert_refused(name: str, data: bytes, message: str) -> None:
    before, peak = pa.total_allocated_bytes(), pa.default_memory_pool().max_memory()
    with pytest.raises((CorruptIndex, ValueError), match=message):
        READERS[name](pa.py_buffer(data))
    assert pa.total_allocated_bytes() - before <= 2 * len(data)
    assert pa.default_memory_pool().max_memory() - peak <= 2 * len(data)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_buffers_are_refused_before_they_are_unpacked(stored, name, codec):
    READERS[name](pa.py_buffer(stored[name]))
    table = pa.ipc.open_file(stored[name]).read_all()
    data = written(table, compression=codec)
    assert_refused(name, data, "compressed")
    # Every buffer claims three gigabytes of decompressed data.
    sizes = {buffer.size for column in table for buffer in column.chunk(0).buffers() if buffer}
    claimed = data
    for size in sizes:
        claimed = claimed.replace(struct.pack("<q", size), struct.pack("<q", 3 << 30))
    assert_refused(name, claimed, "compressed|overlap|outside")


def forged_blocks(data: bytes, times: int) -> bytes:
    """Return a file whose footer lists its record batches this many times."""
    size = struct.unpack_from("<i", data, len(data) - 10)[0]
    footer = data[-10 - size : -10]
    root = struct.unpack_from("<I", footer)[0]
    slots = root - struct.unpack_from("<i", footer, root)[0]
    position = root + struct.unpack_from("<H", footer, slots + 4 + 2 * 3)[0]
    vector = position + struct.unpack_from("<I", footer, position)[0]
    count = struct.unpack_from("<I", footer, vector)[0]
    blocks = footer[vector + 4 : vector + 4 + 24 * count]
    # Write the vector again at the end, where its 8-byte numbers are aligned.
    place = -(-(len(footer) + 4) // 8) * 8 - 4
    new = bytearray(footer.ljust(place, b"\0") + struct.pack("<I", times * count) + blocks * times)
    struct.pack_into("<I", new, position, place - position)
    return data[: -10 - size] + bytes(new) + struct.pack("<i", len(new)) + b"ARROW1"


@pytest.mark.parametrize("name", READERS)
def test_a_batch_listed_many_times_is_refused(stored, name):
    once = forged_blocks(stored[name], 1)
    # Check the forging itself: an unchanged file is valid.
    READERS[name](pa.py_buffer(once))
    data = forged_blocks(stored[name], 1000)
    assert pa.ipc.open_file(data).num_record_batches >= 1000
    assert_refused(name, data, "overlap")


@pytest.mark.parametrize("num_rows", [0, 1, 999])
def test_a_listing_with_fewer_rows_than_zones_loses_no_row(tmp_path, num_rows):
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a.parquet")
    zb.dataset(tmp_path).create_scalar_index("id", number_of_items=100, spark=False)
    [path] = index_folder(tmp_path).glob("versions/*.arrow")
    [version] = index_folder(tmp_path).glob("versions/*.json")
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    field_index = table.schema.get_field_index("num_rows")
    rows = pa.array([num_rows], pa.int64())
    data = written(table.set_column(field_index, table.schema.field(field_index), rows))
    path.write_bytes(data)

    def change(content):
        content["fragments"][0]["checksum"] = xxhash.xxh3_64_hexdigest(data)

    rewrite_document(version, change)
    ds = zb.dataset(tmp_path)
    assert ds.count_rows() == 1000
    with pytest.raises(CorruptIndex, match="build the index again"):
        ds.to_table(filter="id = 500")
    ds.create_scalar_index("id", number_of_items=100, spark=False)
    assert ds.to_table(filter="id = 500")["id"].to_pylist() == [500]


@pytest.mark.parametrize("kind", ["HASH", "BLOOMFILTER"])
def test_indices_that_share_a_segment_are_damage(tmp_path, kind):
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a.parquet")
    zb.dataset(tmp_path).create_scalar_index("id", kind, spark=False)
    [version] = index_folder(tmp_path).glob("versions/*.json")

    def change(content):
        (entry,) = content["indices"]
        content["indices"] = [{**entry, "name": f"i{number}"} for number in range(2000)]

    rewrite_document(version, change)
    with pytest.warns(IndexNotUsedWarning, match="a segment belongs to two indices"):
        assert zb.dataset(tmp_path).to_table(filter="id = 500")["id"].to_pylist() == [500]


def test_zones_whose_length_differs_from_the_index_lose_no_row(tmp_path):
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a.parquet")
    zb.dataset(tmp_path).create_scalar_index("id", number_of_items=100, spark=False)
    [version] = index_folder(tmp_path).glob("versions/*.json")

    def change(content):
        content["indices"][0]["parameters"]["number_of_items"] = 101

    rewrite_document(version, change)
    with pytest.warns(
        IndexNotUsedWarning, match="has zones of 100 rows, but its index has zones of 101"
    ):
        assert zb.dataset(tmp_path).to_table(filter="id = 500")["id"].to_pylist() == [500]


QUERIES = [
    lambda ds: ds.to_table(filter="id = 211")["id"].to_pylist(),
    lambda ds: ds.to_table(filter="id >= 211 AND id < 213")["id"].to_pylist(),
    lambda ds: ds.to_table(filter="id = 211 AND b = 1")["id"].to_pylist(),
    lambda ds: ds.to_table(filter="contains_token(t, 'w211')")["id"].to_pylist(),
    lambda ds: sorted(ds.to_table(filter="list_contains(l, 211)")["id"].to_pylist()),
    lambda ds: ds.lookup("id", [211])["id"].to_pylist(),
    lambda ds: ds.locate("id", [211, 999])["row"].to_pylist(),
]


def places_in(content, path=()):
    """Yield the path of each value in a JSON document."""
    yield path
    parts = {dict: dict.items, list: enumerate}.get(type(content), lambda _: ())(content)
    for key, part in parts:
        yield from places_in(part, (*path, key))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_file_that_was_never_opened_is_forgotten_without_an_error(tmp_path):
    with pytest.raises(CorruptIndex):
        HashTable(store_of(pafs.LocalFileSystem()), str(tmp_path / "missing"))
    gc.collect()


def test_many_hash_files_are_not_open_at_once(tmp_path, monkeypatch):
    set_constant(monkeypatch, random_access, "_MAX_OPEN_FILES", 8)
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a.parquet")
    zb.dataset(tmp_path).create_scalar_index("id", "HASH", spark=False)
    [version] = index_folder(tmp_path).glob("versions/*.json")
    [segment] = index_folder(tmp_path).glob("segments/*/hash.buckets")

    def change(content):
        (entry,) = content["indices"]
        (stored,) = entry["segments"]
        content["indices"] = [
            {**entry, "name": f"i{number}", "segments": [{**stored, "name": f"s{number}"}]}
            for number in range(60)
        ]

    for number in range(60):
        copied = segment.parent.parent / f"s{number}" / segment.name
        copied.parent.mkdir()
        # Opening a damaged file fails, and must not keep it open.
        copied.write_bytes(segment.read_bytes() if number % 3 else b"?" * segment.stat().st_size)
    rewrite_document(version, change)
    ds = zb.dataset(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.warns(IndexNotUsedWarning, match="damaged|not a file of a hash index"):
        for key in (500, 7):
            assert ds.to_table(filter=f"id = {key}")["id"].to_pylist() == [key]
    assert len(os.listdir("/proc/self/fd")) <= before + 8 + 2
    # Files that were closed cannot be opened again.
    shutil.rmtree(segment.parent.parent)
    assert ds.to_table(filter="id = 501")["id"].to_pylist() == [501]
    assert ds.lookup("id", [502])["id"].to_pylist() == [502]

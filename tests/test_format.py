"""The format that docs/format.md describes is the format that zonebloom writes and reads.

`format_reader.py` is written by the rules of the page alone, and finds the same zones.
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Any

import format_reader
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from e2e_helpers import array_of, numbered, raw_values, scalar_of, write_files
from format_decryption import decrypt_folder
from format_writer import write_index
from helpers import index_folder
from index.test_sliced import sliced_table, zones_of
from test_dataset_types import TYPES
from test_golden import GOLDEN, with_times

import zonebloom as zb
from zonebloom.errors import StaleIndexWarning

Ranges = dict[str, list[tuple[int, int]] | None]


def found_by_zonebloom(ds: zb.Dataset, folder: Path, column: str, key: pa.Scalar) -> Ranges:
    """Return the rows of each file that may hold a key, in the form of `format_reader.find`."""
    items = ds.index_statistics(f"{column}_idx")["number_of_items"]
    known = ds.key_ranges(column).select(["fragment_id", "path"]).to_pylist()
    paths = {row["fragment_id"]: row["path"] for row in known}
    names = {i: os.path.relpath(path, folder) for i, path in paths.items()}
    ranges: Ranges = {name: [] for name in names.values()}
    keys = pa.array([key], key.type)
    for pair in sorted(
        ds.search_many(column, keys).read_all().to_pylist(), key=lambda pair: pair["zone"] or 0
    ):
        name, zone = names[pair["fragment_id"]], pair["zone"]
        if zone is None:
            ranges[name] = None
        else:
            of_file = ranges[name]
            assert of_file is not None
            num_rows = pq.ParquetFile(paths[pair["fragment_id"]]).metadata.num_rows
            of_file.append((zone * items, min(zone * items + items, num_rows)))
    return ranges


def found_by_reader(folder: Path, index_dir: Path, column: str, key: pa.Scalar) -> Ranges:
    files = {
        path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.parquet"))
    }
    return format_reader.find(index_dir, files, column, key)


def assert_agree(folder: Path, column: str, keys: list[pa.Scalar], **options: Any) -> Ranges:
    """Check that the plain reader finds what zonebloom finds. Return the last result."""
    ds = zb.dataset(folder, **options)
    found: Ranges = {}
    for key in keys:
        found = found_by_reader(folder, Path(ds.index_dir), column, key)
        assert found == found_by_zonebloom(ds, folder, column, key), key
    return found


def value_type_of(arrow_type: pa.DataType) -> pa.DataType:
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


@pytest.mark.parametrize("layout", ["table", "sliced"])
@pytest.mark.parametrize("arrow_type", TYPES, ids=str)
def test_the_reader_finds_the_same_zones_for_every_type(tmp_path, arrow_type, layout):
    value_type = value_type_of(arrow_type)
    raws = raw_values(value_type, 110)
    rows = [None if row % 11 == 5 else raw for row, raw in enumerate(raws[:100])]
    tables = [
        numbered(start, 50, key=array_of(arrow_type, rows[start : start + 50])) for start in (0, 50)
    ]
    write_files(tmp_path / "data", tables)
    zb.dataset(tmp_path / "data").create_scalar_index(
        "key", number_of_items=16, layout=layout, spark=False
    )
    # Parquet stores some types as others, such as date64 as date32.
    stored_type = value_type_of(zb.dataset(tmp_path / "data").schema.field("key").type)
    sample = [*raws[:8], *raws[60:68], *raws[100:]]
    keys = [scalar_of(value_type, raw).cast(stored_type) for raw in sample]
    assert_agree(tmp_path / "data", "key", keys)


def test_zeros_and_nan_are_found_alike(tmp_path):
    values = [1.5, -0.0, 2.5, None, 0.0, 3.5, float("nan"), -1.0]
    write_files(tmp_path / "data", [pa.table({"key": pa.array(values, pa.float64())})])
    zb.dataset(tmp_path / "data").create_scalar_index("key", number_of_items=2, spark=False)
    keys = [pa.scalar(value, pa.float64()) for value in (0.0, -0.0, 1.5, 7.5, float("nan"))]
    assert assert_agree(tmp_path / "data", "key", keys) == {"part-000.parquet": None}
    assert assert_agree(tmp_path / "data", "key", keys[:1]) == {
        "part-000.parquet": [(0, 2), (4, 6)]
    }


def orders(first: int, rows: int) -> pa.Table:
    """Return rows whose column ``few`` repeats one value in each zone, so its filters fold."""
    ids = np.random.default_rng(first).permutation(np.arange(first, first + rows))
    few = pa.array([None if i % 5 == 0 else f"customer {i // 40 % 3}" for i in range(rows)])
    return pa.table({"id": ids, "few": few})


def write(folder: Path, number: int, table: pa.Table) -> Path:
    (path,) = write_files(folder / f"day={number}", [table])
    return path


def refresh(folder: Path, **options: Any) -> None:
    zb.dataset(folder).optimize.optimize_indices(spark=False, **options)


@pytest.mark.parametrize("layout", ["auto", "table", "sliced"])
@pytest.mark.parametrize("parameters", [{}, {"fold": False}, {"sizing": "exact"}], ids=str)
def test_the_reader_agrees_after_refreshes_merges_and_changes(tmp_path, layout, parameters):
    """Segments are added and merged, filters have several sizes, and files change or vanish."""
    folder = tmp_path / "data"
    keys = [pa.scalar(i, pa.int64()) for i in (0, 7, 333, 500, 1007, 1777, 5000)]
    names = [pa.scalar(f"customer {i}") for i in range(4)]
    write(folder, 0, orders(0, 330))
    options = {"number_of_items": 40, "spark": False, "layout": layout, **parameters}
    zb.dataset(folder).create_scalar_index(["id", "few"], **options)
    for number in range(1, 4):
        write(folder, number, orders(500 * number, 45))
        refresh(folder, layout=layout)
    assert_agree(folder, "id", keys)
    assert_agree(folder, "few", names)
    write(folder, 1, orders(500, 46))
    (folder / "day=2/part-000.parquet").unlink()
    write(folder, 9, orders(5000, 3))
    with pytest.warns(StaleIndexWarning):
        found = assert_agree(folder, "id", keys)
    assert (found["day=1/part-000.parquet"], found["day=9/part-000.parquet"]) == (None, None)
    refresh(folder, layout="sliced" if layout == "table" else "table")
    assert_agree(folder, "id", keys)
    found = assert_agree(folder, "few", names)
    assert None not in found.values() and "day=2/part-000.parquet" not in found


def test_only_times_or_bytes_prove_that_a_file_is_unchanged(tmp_path):
    small, large = orders(0, 100), orders(0, 300_000)
    for number, table in enumerate((small, small, large)):
        write(tmp_path / "data", number, table)
    zb.dataset(tmp_path / "data").create_scalar_index("id", number_of_items=1000, spark=False)
    key = [pa.scalar(-1, pa.int64())]
    paths = [tmp_path / f"data/day={number}/part-000.parquet" for number in range(3)]
    assert list(assert_agree(tmp_path / "data", "id", key).values()) == [[], [], []]
    for path in paths:
        os.utime(path, ns=(1_700_000_000_000_000_001,) * 2)
    with pytest.warns(StaleIndexWarning):
        found = assert_agree(tmp_path / "data", "id", key)
    # The digest covers all bytes of the small files only.
    assert list(found.values()) == [[], [], None]
    # Other bytes of the same size, with the old time.
    status = paths[0].stat()
    paths[0].write_bytes(paths[0].read_bytes()[:-9] + bytes(9))
    os.utime(paths[0], ns=(status.st_mtime_ns,) * 2)
    assert not format_reader.is_fresh(paths[0], entry_of(tmp_path / "data", 0))
    assert format_reader.is_fresh(paths[1], entry_of(tmp_path / "data", 1))


def entry_of(folder: Path, number: int) -> dict[str, Any]:
    version = format_reader.newest_version(index_folder(folder))
    assert version is not None
    return version[1][f"day={number}/part-000.parquet"]


GOLDEN_IDS = [pa.scalar(i, pa.int64()) for i in (0, 7919, 15838, 59383, 67302, 75221, -3)]
GOLDEN_NAMES = [pa.scalar(name) for name in ("n31-0", "n62-0", "n31-500", "n62-500", "n0")]


def test_the_reader_agrees_on_a_folder_that_an_earlier_release_wrote(tmp_path):
    folder = with_times(tmp_path, "catalog-6")
    assert_agree(folder, "id", GOLDEN_IDS)
    assert_agree(folder, "name", GOLDEN_NAMES)


def test_the_reader_agrees_on_an_encrypted_folder_that_it_decrypts(tmp_path):
    folder = with_times(tmp_path, "catalog-6")
    keys = {"golden": bytes(range(32))}
    shutil.rmtree(folder / "_zonebloom")
    shutil.copytree(GOLDEN / "sealed-6" / "_zonebloom", folder / "_zonebloom")
    found = found_by_reader(folder, folder / "_zonebloom", "id", GOLDEN_IDS[1])
    assert set(found.values()) == {None}
    decrypt_folder(folder / "_zonebloom", tmp_path / "clear", keys)
    ds = zb.dataset(folder, encryption=zb.Encryption("golden", keys))
    for column, column_keys in (("id", GOLDEN_IDS), ("name", GOLDEN_NAMES)):
        for key in column_keys:
            found = found_by_reader(folder, tmp_path / "clear", column, key)
            assert found == found_by_zonebloom(ds, folder, column, key)
            assert None not in found.values()


@pytest.mark.parametrize("name", ["catalog-1", "catalog-5"])
def test_the_reader_refuses_earlier_formats_and_reads_all_rows(tmp_path, name):
    folder = with_times(tmp_path, name)
    found = found_by_reader(folder, folder / "_zonebloom", "id", GOLDEN_IDS[0])
    assert set(found.values()) == {None} and len(found) == 2


@pytest.mark.parametrize(
    ("tile_zones", "counts"),
    [(64, {1: 300, 4: 70}), (4096, {1: 4096, 2: 100, 8: 5000}), (32768, {1: 40_000})],
    ids=str,
)
def test_the_reader_agrees_on_sliced_tables_of_many_tiles(tmp_path, tile_zones, counts):
    """Tiles of several groups, also with bit rows of whole pages."""
    fragments = []
    for fragment_id, (num_blocks, count) in enumerate(counts.items()):
        # Each fragment has filters of two sizes, so the zones of a group are not consecutive.
        fragments += [
            (fragment_id, zones_of(count, num_blocks, seed=num_blocks)),
            (10 + fragment_id, zones_of(9, 3, seed=num_blocks)),
        ]
    path = tmp_path / "bloomfilter.sliced"
    table = sliced_table(path, fragments, tile_zones)
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data, len(data) - 32)
    segment = {"checksum": xxhash.xxh3_64_hexdigest(data[-32 - size :])}
    for hashed in np.random.default_rng(0).integers(0, 2**64, 4, dtype=np.uint64).tolist():
        zones = list(format_reader.sliced_layout(data, segment, [hashed]))
        hits = [number for number, zone in enumerate(zones) if zone[3]]
        assert hits == table.find(np.array([hashed], dtype=np.uint64)).tolist()
        columns = table.fragment_ids, table.starts, table.lengths
        assert [zone[:3] for zone in zones] == list(
            zip(*(column.tolist() for column in columns), strict=True)
        )


@pytest.mark.parametrize("layout", ["table", "sliced"])
def test_the_reader_loses_no_row_in_a_damaged_folder(tmp_path, layout):
    folder, index_dir = tmp_path / "data", tmp_path / "_zonebloom" / "data"
    for number in range(2):
        write(folder, number, orders(500 * number, 300))
        zb.dataset(folder).create_scalar_index("id", number_of_items=20, layout=layout, spark=False)
    key = pa.scalar(777, pa.int64())
    whole = found_by_reader(folder, index_dir, "id", key)
    assert whole["day=0/part-000.parquet"] is not None
    damage = np.random.default_rng(0)
    for path in sorted(path for path in index_dir.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for position in damage.integers(0, len(data), 40).tolist():
            for changed in (data[:position], data[:position] + b"\xaa" + data[position + 1 :]):
                path.write_bytes(changed)
                found = found_by_reader(folder, index_dir, "id", key)
                for name, ranges in whole.items():
                    of_file = found[name]
                    assert ranges is not None
                    assert of_file is None or set(of_file) >= set(ranges), (path, position)
        path.write_bytes(data)
    assert found_by_reader(folder, index_dir, "id", key) == whole


def test_zonebloom_uses_an_index_that_the_page_taught_to_write(tmp_path):
    folder = tmp_path / "data"
    values = np.random.default_rng(0).permutation(1000).tolist()
    for number in range(2):
        ids = [None if i % 50 == 0 else i for i in values[500 * number : 500 * (number + 1)]]
        write(folder, number, pa.table({"id": pa.array(ids, pa.int64())}))
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.parquet")}
    write_index(tmp_path / "_zonebloom" / "data", files, "id")
    ds = zb.dataset(folder)
    (index,) = ds.describe_indices()
    assert (index.num_zones, index.num_fragments_indexed, index.num_rows_indexed) == (10, 2, 1000)
    assert ds.validate_index("id_idx") == 10
    assert_agree(folder, "id", [pa.scalar(i, pa.int64()) for i in (1, 2, 50, 777, -1)])
    assert len(ds.search("id = -1").at_most) < 500
    assert ds.count_rows("id IS NULL") == 20
    write(folder, 2, orders(5000, 100).select(["id"]))
    refresh(folder)
    assert zb.dataset(folder).version == 2
    found = assert_agree(folder, "id", [pa.scalar(5007, pa.int64())])
    assert len(found) == 3 and None not in found.values()

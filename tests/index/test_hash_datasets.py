"""Test datasets with a HASH index: refresh, merges, vacuum, damage, a Bloom index beside it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import merge_segments
from support.helpers import index_folder
from support.limits import set_limit
from support.seams import replace_function, set_constant

import zonebloom as zb
from zonebloom import errors
from zonebloom.index.hash import writer
from zonebloom.index.hash.table import HashTable

ROWS, ZONE = 1000, 50
NUM_FILES = 3


def id_of(row: int) -> int | None:
    """Return the id in a row of all files together: some repeat, every 29th is null."""
    if row % 29 == 3:
        return None
    # Value 5 is in every second zone, so it has a posting.
    return 5 if row % 7 == 0 and row // ZONE % 2 else row * 2_654_435_761 % 2**31


def append_file(folder: Path, number: int, first_row: int | None = None) -> None:
    """Write the rows of one file, or others in their place."""
    folder.mkdir(exist_ok=True)
    first = number * ROWS if first_row is None else first_row
    rows = range(first, first + ROWS)
    table = pa.table({"id": pa.array(map(id_of, rows), pa.int64()), "row": rows})
    pq.write_table(table, folder / f"{number:02d}.parquet", row_group_size=ROWS // 2)


def rows_of(numbers: Iterable[int]) -> list[int]:
    return [row for number in numbers for row in range(number * ROWS, (number + 1) * ROWS)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(NUM_FILES):
        append_file(tmp_path / "data", number)
    zb.dataset(tmp_path / "data").create_scalar_index(
        "id", "HASH", number_of_items=ZONE, spark=False
    )
    return tmp_path / "data"


def assert_finds_all_rows(ds: zb.Dataset, rows: list[int]) -> None:
    """Compare scans, lookups and locations with a walk over all rows, which are in file order."""
    present = sorted({key for key in map(id_of, rows[::97]) if key is not None} | {5})
    absent = [key + 1 for key in present if key + 1 not in set(map(id_of, rows))]
    for key in (*present[::5], *absent[::5]):
        expected = [row for row in rows if id_of(row) == key]
        assert ds.to_table(filter=f"id = {key}")["row"].to_pylist() == expected
    nulls = [row for row in rows if id_of(row) is None]
    assert ds.to_table(filter="id IS NULL")["row"].to_pylist() == nulls
    keys = [*present, *absent]
    positions = {key: [i for i, row in enumerate(rows) if id_of(row) == key] for key in present}
    matches = [(k, i) for k, key in enumerate(keys) for i in positions.get(key, [None])]
    lookup = ds.lookup("id", keys)
    # A lookup returns rows in the order of the dataset.
    in_order = sorted((i, k) for k, i in matches if i is not None)
    assert lookup["row"].to_pylist() == [rows[i] for i, _ in in_order]
    assert lookup["key_index"].to_pylist() == [k for _, k in in_order]
    located = ds.locate("id", keys)
    assert located["key_index"].to_pylist() == [k for k, _ in matches]
    places = zip(located["path"].to_pylist(), located["row"].to_pylist(), strict=True)
    assert list(places) == [
        (None, None) if i is None else (ds.files[i // ROWS], i % ROWS) for _, i in matches
    ]


def test_an_index_prunes_and_can_be_validated(folder):
    ds = zb.dataset(folder)
    rows = rows_of(range(NUM_FILES))
    assert_finds_all_rows(ds, rows)
    (description,) = ds.describe_indices()
    assert description.index_type == "HASH"
    key = id_of(1234)
    zones = {row // ZONE for row in rows if id_of(row) == key}
    assert len(ds.search(f"id = {key}").at_most) == ZONE * len(zones)
    null_zones = {row // ZONE for row in rows if id_of(row) is None}
    assert len(ds.search("id IS NULL").at_most) == ZONE * len(null_zones)
    assert ds.validate_index("id_idx", sample="all") == len(rows) // ZONE
    statistics = ds.index_statistics("id_idx")
    pairs = {(id_of(row), row // ZONE) for row in rows if id_of(row) is not None}
    num_repeated = sum(key == 5 for key, _ in pairs)
    assert statistics["num_entries"] == len(pairs) - num_repeated + 1
    assert statistics["num_postings"] == 1


@pytest.mark.slow
def test_appended_changed_and_removed_files_are_refreshed(folder, monkeypatch):
    set_limit(monkeypatch, "segments that are merged", 2)
    for number in range(NUM_FILES, 8):
        append_file(folder, number)
        (refreshed,) = zb.dataset(folder).optimize.optimize_indices(spark=False)
        assert refreshed.fragments_added == 1
        assert_finds_all_rows(zb.dataset(folder), rows_of(range(number + 1)))
    assert refreshed.num_segments <= 2
    append_file(folder, 0, 20 * ROWS)
    (folder / "06.parquet").unlink()
    rows = rows_of([20, 1, 2, 3, 4, 5, 7])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.StaleIndexWarning)
        assert_finds_all_rows(zb.dataset(folder), rows)
    zb.dataset(folder).optimize.optimize_indices(spark=False)
    assert_finds_all_rows(zb.dataset(folder), rows)
    merge_segments(zb.dataset(folder), ["id_idx"])
    ds = zb.dataset(folder)
    assert len(ds.opened.version.indices["id_idx"].segments) == 1
    ds.vacuum(timedelta(0))
    ds = zb.dataset(folder)
    assert_finds_all_rows(ds, rows)
    assert ds.validate_index("id_idx", sample="all").zones_read == 7 * ROWS // ZONE
    assert len(list(index_folder(folder).rglob("hash.buckets"))) == 1


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_build_deletes_its_temporary_segments(tmp_path, monkeypatch, is_encrypted):
    for name in ("MAX_BUFFERED_PAIRS", "_MIN_PAIRS_PER_WRITER"):
        set_constant(monkeypatch, writer, name, ROWS // 2)
    temporary = []

    class RecordingTable(HashTable):
        def __init__(self, filesystem: pafs.FileSystem, path: str, *args: Any, **kwargs: Any):
            super().__init__(filesystem, path, *args, **kwargs)
            temporary.append(Path(path).read_bytes())

    replace_function(monkeypatch, writer, "HashTable", RecordingTable)
    for number in range(NUM_FILES):
        append_file(tmp_path / "data", number)
    encryption = zb.Encryption("key", {"key": bytes(16)}) if is_encrypted else None
    ds = zb.dataset(tmp_path / "data", encryption=encryption)
    ds.create_scalar_index("id", "HASH", number_of_items=ZONE, spark=False)
    assert len(temporary) >= NUM_FILES
    assert [b"ZBBUCKET" in data for data in temporary] == [not is_encrypted] * len(temporary)
    assert len(list(index_folder(tmp_path / "data").rglob("hash.buckets"))) == 1
    ds = zb.dataset(tmp_path / "data", encryption=encryption)
    assert_finds_all_rows(ds, rows_of(range(NUM_FILES)))
    assert ds.validate_index("id_idx", sample="all") == NUM_FILES * ROWS // ZONE


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_damage_is_not_merged(folder):
    append_file(folder, NUM_FILES)
    zb.dataset(folder).optimize.optimize_indices(spark=False)
    path = max(index_folder(folder).rglob("hash.buckets"), key=lambda path: path.stat().st_size)
    flip_a_bit(path)
    ds = zb.dataset(folder)
    with pytest.raises(errors.CorruptIndex, match=r"hash\.buckets"):
        merge_segments(ds, ["id_idx"])
    with pytest.warns(errors.IndexNotUsedWarning):
        assert_finds_all_rows(zb.dataset(folder), rows_of(range(NUM_FILES + 1)))

"""Test that sources of every kind have their fragments in the order in which pyarrow scans them."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import numbered, write_files

import zonebloom as zb
from zonebloom import errors


def discover_source(source, **options):
    """Return the files that a dataset finds."""
    return zb.dataset(source, **options).opened.source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "d", [numbered(i * 5, 5) for i in range(3)])
    write_files(tmp_path / "d" / "deep", [numbered(15, 5)])
    return tmp_path / "d"


KEYS = ["deep/part-000.parquet", "part-000.parquet", "part-001.parquet", "part-002.parquet"]


def test_folder_is_read_recursively_in_pyarrows_order(folder: Path):
    for source in (folder, str(folder), str(folder) + "/", folder.as_uri()):
        ds = discover_source(source)
        assert sorted(fragment.key for fragment in ds.fragments) == KEYS
        plain = [fragment.path for fragment in pads.dataset(str(folder)).get_fragments()]
        assert [fragment.path for fragment in ds.fragments] == plain
        assert ds.root == str(folder)
        assert ds.schema.names == ["row"]


def test_relative_paths_and_the_users_home_are_resolved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    for source in ("d", "./d", "~/d"):
        assert discover_source(source).root == str(folder)


def test_file_list_and_glob(folder: Path, monkeypatch: pytest.MonkeyPatch):
    one = discover_source(folder / "part-001.parquet")
    assert [fragment.key for fragment in one.fragments] == ["part-001.parquet"]
    assert one.root == str(folder)
    matched = discover_source(str(folder / "part-*.parquet"))
    assert [fragment.key for fragment in matched.fragments] == KEYS[1:]
    recursive = discover_source(str(folder / "**" / "*.parquet"))
    assert sorted(fragment.key for fragment in recursive.fragments) == KEYS
    listed = discover_source(
        [folder / "part-002.parquet", str(folder / "deep" / "part-000.parquet")]
    )
    assert [fragment.key for fragment in listed.fragments] == [KEYS[3], KEYS[0]]
    assert listed.root == str(folder)
    monkeypatch.chdir(folder)
    relative = discover_source(["part-000.parquet", "part-001.parquet"])
    assert [fragment.key for fragment in relative.fragments] == KEYS[1:3]


def test_folder_whose_name_has_glob_characters_is_a_folder(tmp_path: Path):
    write_files(tmp_path / "a[1]", [numbered(0, 3)])
    assert len(discover_source(tmp_path / "a[1]").fragments) == 1


def test_list_order_is_kept_in_the_scan(folder: Path):
    names = [folder / "part-002.parquet", folder / "part-000.parquet"]
    numbers = zb.dataset(names).to_table()["row"].to_pylist()
    assert numbers == [*range(10, 15), *range(5)]


def test_pyarrow_dataset_keeps_its_partitions_schema_and_order(tmp_path: Path):
    table = pa.table({"id": range(20), "day": [i % 3 for i in range(20)]})
    pads.write_dataset(
        table, tmp_path, format="parquet", partitioning=["day"], partitioning_flavor="hive"
    )
    source = pads.dataset(tmp_path, partitioning="hive")
    ds = discover_source(source)
    assert ds.schema.names == ["id", "day"]
    assert ds.partition_columns() == {"day"}
    assert [pads.get_partition_keys(fragment.partition) for fragment in ds.fragments] == [
        {"day": i} for i in range(3)
    ]
    assert zb.dataset(source).to_table().equals(source.to_table())
    assert discover_source(tmp_path).partition_columns() == {"day"}
    assert discover_source(tmp_path, partitioning=None).partition_columns() == set()


def test_index_folder_and_hidden_files_are_not_fragments(folder: Path):
    ds = zb.dataset(folder)
    ds.create_scalar_index("row", spark=False)
    (folder / "_SUCCESS").write_bytes(b"")
    (folder / ".part-000.parquet.crc").write_bytes(b"junk")
    assert sorted(fragment.key for fragment in discover_source(folder).fragments) == KEYS
    assert pads.dataset(folder).count_rows() == 20


def test_missing_sources_raise(tmp_path: Path):
    with pytest.raises(errors.NoFragments, match=r"nowhere does not exist; check the path"):
        discover_source(tmp_path / "nowhere")
    with pytest.raises(errors.NoFragments, match="holds no data file; write some first"):
        discover_source(tmp_path)
    with pytest.raises(errors.NoFragments, match=r"no file matches .*\*\.parquet"):
        discover_source(str(tmp_path / "*.parquet"))
    with pytest.raises(errors.NoFragments, match="list of files is empty"):
        discover_source([])
    with pytest.raises(errors.NoFragments, match=r"gone\.parquet"):
        discover_source([tmp_path / "gone.parquet"])
    assert os.listdir(tmp_path) == []


def test_an_open_dataset_is_refused(folder: Path):
    with pytest.raises(errors.InvalidArgument, match="open already"):
        zb.dataset(zb.dataset(folder))


def test_dataset_in_memory_raises_with_advice():
    with pytest.raises(errors.SourceError, match="InMemoryDataset does not consist of files"):
        zb.dataset(pads.dataset(pa.table({"a": [1]})))


def test_files_without_a_common_folder_need_an_index_dir(tmp_path: Path):
    pq.write_table(numbered(0, 3), tmp_path / "a.parquet")
    ds = zb.dataset([tmp_path / "a.parquet"], index_dir=str(tmp_path / "elsewhere"))
    assert ds.index_dir == str(tmp_path / "elsewhere")


MARKS = {
    "_delta_log/00000000000000000000.json": r"is a Delta table.*give deltalake\.DeltaTable\('",
    "metadata/v1.metadata.json": "is an Iceberg table.*as pyiceberg's catalog loads it",
    ".hoodie/hoodie.properties": r"is a Hudi table.*pyarrow\.dataset",
}


@pytest.mark.parametrize("mark", MARKS)
def test_folders_in_tables_are_not_opened_as_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
):
    table = tmp_path / "house" / "t"
    file = table / "data" / "day=a" / "removed.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), file)
    assert discover_source(table).fragments
    (table / mark).parent.mkdir()
    (table / mark).write_text("{}")
    monkeypatch.chdir(table / "data")
    sources = [
        tmp_path / "house",
        table,
        table / "data",
        table / "data" / "day=a",
        file,
        [file],
        [str(file)],
        "day=a",
        "day=a/*.parquet",
        "**/*.parquet",
        f"{tmp_path}/*/*/data/*/*.parquet",
        table.as_uri(),
        file.as_uri(),
        [file.as_uri()],
    ]
    for source in sources:
        with pytest.raises(errors.SourceError, match=rf"{table} {MARKS[mark]}"):
            discover_source(source)
    # A folder of an empty table counts as a table too.
    file.unlink()
    with pytest.raises(errors.SourceError, match=MARKS[mark]):
        discover_source(table)


def test_a_folder_called_metadata_is_not_a_table(tmp_path: Path):
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "notes.txt").write_text("{}")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    assert len(discover_source(tmp_path / "a.parquet").fragments) == 1

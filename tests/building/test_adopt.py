"""Files that were copied, moved or renamed with their index are recognised, and no others."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import ShortReads, build, write_files
from support.helpers import copy_dataset, index_folder
from support.limits import set_limit

import zonebloom as zb
from zonebloom.errors import StaleIndexWarning
from zonebloom.results import Adopted

ROWS = 1000
PARTS = 4


def part(number: int) -> pa.Table:
    # Random values, so that 200,000 rows are larger than the files that are digested completely.
    ids = [(number * ROWS + row) * 2_654_435_761 % 2**40 for row in range(ROWS)]
    return pa.table({"id": ids, "text": [f"value {i}" for i in ids]})


@pytest.fixture
def original(tmp_path: Path) -> Path:
    folder = tmp_path / "original"
    write_files(folder, [part(number) for number in range(PARTS)])
    zb.dataset(folder).create_scalar_index("id", number_of_items=100, spark=False)
    return folder


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    """Copy the files to another folder, with new times."""
    copied = copy_dataset(original, tmp_path / "copy", copy_function=shutil.copyfile)
    for path in copied.glob("*.parquet"):
        os.utime(path, (10**9, 10**9))
    return copied


def paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def forget_small_files(monkeypatch) -> None:
    """Treat all files as large: they count as changed if their times differ."""
    set_limit(monkeypatch, "bytes of a file whose digest covers all", 0)


def assert_right(folder: Path, num_covered: int) -> None:
    """Check that every row is found, and that exactly the uncovered files are reported."""
    ds = zb.dataset(folder)
    (described,) = ds.describe_indices()
    assert described.num_fragments_indexed == num_covered
    rows = pads.dataset(folder).to_table().to_pylist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StaleIndexWarning)
        for row in rows[::97]:
            assert ds.to_table(filter=f"id = {row['id']}").to_pylist() == [row]
        assert ds.count_rows("id = -1") == 0
    assert ds.validate_index("id_idx", sample="all").zones_read == num_covered * ROWS // 100


def test_a_copied_dataset_is_recognised(copy, monkeypatch):
    forget_small_files(monkeypatch)
    ds = zb.dataset(copy)
    with pytest.warns(StaleIndexWarning, match="4 of 4 files"):
        ds.search("id = 7")
    assert ds.adopt_index() == Adopted(PARTS, ())
    assert_right(copy, PARTS)
    # A second call has no file to adopt.
    version = ds.version
    assert ds.adopt_index() == Adopted(0, ())
    assert ds.version == version


def test_renamed_and_exchanged_files_are_recognised_by_content(copy):
    one, two, three, _ = paths(copy)
    one.rename(copy / "aside")
    two.rename(one)
    (copy / "aside").rename(two)
    (copy / "below").mkdir()
    three.rename(copy / "below" / "renamed.parquet")
    ds = zb.dataset(copy)
    assert ds.adopt_index() == Adopted(3, ())
    assert_right(copy, PARTS)


def test_each_copy_of_a_file_has_its_own_id(tmp_path):
    folder = tmp_path / "data"
    write_files(folder, [part(0)] * PARTS)
    zb.dataset(folder).create_scalar_index("id", number_of_items=100, spark=False)
    for number, path in enumerate(paths(folder)):
        path.rename(folder / f"other-{number}.parquet")
    assert zb.dataset(folder).adopt_index().num_files == PARTS
    ds = zb.dataset(folder)
    ids = [fragment.fragment_id for fragment in ds.opened.look().fragments]
    assert len(set(ids)) == PARTS
    assert ds.count_rows(f"id = {part(0)['id'][5]}") == PARTS


def test_changed_and_new_files_are_not_adopted(copy, monkeypatch):
    forget_small_files(monkeypatch)
    changed, rewritten, deleted, _ = paths(copy)
    # Change one byte of the data. The size stays the same.
    data = bytearray(changed.read_bytes())
    position = data.index(b"value ")
    data[position : position + 6] = b"VALUE "
    changed.write_bytes(data)
    # The same rows in another order have another footer or another size.
    table = pq.read_table(rewritten)
    pq.write_table(table.take(list(reversed(range(ROWS)))), rewritten)
    deleted.unlink()
    pq.write_table(part(9), copy / "new.parquet")
    adopted = zb.dataset(copy).adopt_index()
    assert adopted.num_files == 1
    assert {Path(path).name for path in adopted.left} == {
        changed.name,
        rewritten.name,
        "new.parquet",
    }
    assert_right(copy, 1)


def test_a_separate_index_adopts_moved_files(original, tmp_path):
    index = str(tmp_path / "index")
    zb.dataset(original, index_dir=index).create_scalar_index("id", spark=False)
    moved = tmp_path / "moved"
    original.rename(moved)
    ds = zb.dataset(moved, index_dir=index)
    assert ds.adopt_index().num_files + ds.describe_indices()[0].num_fragments_indexed >= PARTS
    assert ds.describe_indices()[0].num_fragments_indexed == PARTS
    assert ds.count_rows(f"id = {part(1)['id'][5]}") == 1


def test_a_copy_does_not_take_fragments_from_the_original(original, tmp_path, monkeypatch):
    forget_small_files(monkeypatch)
    index = str(tmp_path / "index")
    zb.dataset(original, index_dir=index).create_scalar_index("id", spark=False)
    shutil.copytree(original, tmp_path / "copy", copy_function=shutil.copyfile)
    adopted = zb.dataset(tmp_path / "copy", index_dir=index).adopt_index()
    assert (adopted.num_files, len(adopted.left)) == (0, PARTS)
    ds = zb.dataset(original, index_dir=index)
    assert ds.describe_indices()[0].num_fragments_indexed == PARTS


def test_files_of_other_formats_are_not_adopted(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    with pa.ipc.new_file(str(folder / "a.arrow"), part(0).schema) as file:
        file.write_table(part(0))
    zb.dataset(folder, "ipc").create_scalar_index("id", spark=False)
    (folder / "a.arrow").rename(folder / "b.arrow")
    assert zb.dataset(folder, "ipc").adopt_index() == Adopted(0, (str(folder / "b.arrow"),))


def test_adopting_raises_if_another_writer_indexes_the_files_meanwhile(copy, monkeypatch):
    forget_small_files(monkeypatch)
    reads = None

    def index_meanwhile(offset: int, num_bytes: int) -> int:
        if reads is not None:
            reads.append(offset)
            # The first read opens the newest version.
            if len(reads) == 2:
                zb.dataset(copy).optimize.optimize_indices(spark=False)
        return num_bytes

    ds = zb.dataset(str(copy), filesystem=ShortReads(index_meanwhile).wrapped())
    reads = []
    with pytest.raises(zb.errors.CommitConflict, match="try again"):
        ds.adopt_index()
    assert zb.dataset(copy).adopt_index() == Adopted(0, ())


# Files over 1 MiB, whose digest covers samples only

PLAIN: dict[str, Any] = {
    "compression": "none",
    "use_dictionary": False,
    "write_statistics": False,
    "write_page_index": True,
    "max_rows_per_page": 5000,
}
LARGE_ROWS = 400_000


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Write a file without page checksums and statistics, so that a patch leaves no trace."""
    ids = np.random.default_rng(0).permutation(LARGE_ROWS)
    (path,) = write_files(tmp_path / "data", [pa.table({"id": ids, "other": ids + 1})], **PLAIN)
    build(zb.dataset(path.parent), "id")
    return path


def write_at(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def count_quietly(ds: zb.Dataset, value: int) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StaleIndexWarning)
        return ds.count_rows(f"id = {value}")


@pytest.mark.parametrize("change", ["chmod", "hard link", "copy"])
def test_an_unchanged_large_file_is_adopted(large, change):
    ds = zb.dataset(large.parent)
    if change == "chmod":
        large.chmod(0o600)
    elif change == "hard link":
        os.link(large, large.parent.parent / "snapshot")
    else:
        shutil.copy2(large, large.with_suffix(".new"))
        os.replace(large.with_suffix(".new"), large)
    with pytest.warns(StaleIndexWarning, match=r"changed since.*adopt_index\(\)"):
        assert ds.count_rows("id = 7") == 1
    version = ds.opened.version
    assert ds.adopt_index() == Adopted(1, ())
    # A warning would be an error.
    for opened in (ds, zb.dataset(large.parent)):
        assert opened.count_rows("id = 7") == 1
        assert opened.describe_indices()[0].num_fragments_indexed == 1
    (fragment,), (before,) = ds.opened.version.fragments.values(), version.fragments.values()
    assert (fragment.fragment_id, fragment.num_rows) == (before.fragment_id, before.num_rows)
    assert ds.opened.version.indices == version.indices
    ds.validate_index("id_idx", sample="all")


def test_a_large_file_that_was_just_written_can_be_indexed(tmp_path):
    ids = np.arange(LARGE_ROWS)
    (path,) = write_files(tmp_path, [pa.table({"id": ids})], **PLAIN)
    assert path.stat().st_size > 1 << 20
    build(zb.dataset(tmp_path), "id")
    # A warning would be an error.
    assert zb.dataset(tmp_path).count_rows("id = 7") == 1
    write_files(tmp_path / "later", [pa.table({"id": ids + LARGE_ROWS})], **PLAIN)
    ds = zb.dataset(tmp_path)
    ds.optimize.optimize_indices(spark=False)
    assert zb.dataset(tmp_path).count_rows(f"id = {LARGE_ROWS}") == 1


def test_only_unpatched_files_are_adopted(tmp_path, monkeypatch):
    """Both files have the same size and footer, and their content is not known."""
    forget_small_files(monkeypatch)
    tables = [
        pa.table({"id": pa.array(range(offset, offset + 900))}) for offset in range(0, 9000, 1000)
    ]
    paths = write_files(tmp_path, tables, **PLAIN)
    build(zb.dataset(tmp_path), "id", number_of_items=100)
    build(zb.dataset(tmp_path), "id", name="other", number_of_items=300)
    rng = random.Random(0)
    patched = {path for path in paths if rng.random() < 0.3}
    for path in paths:
        if path in patched:
            offset = path.read_bytes().find((1000 * paths.index(path) + 500).to_bytes(8, "little"))
            write_at(path, offset, (10**6).to_bytes(8, "little"))
        path.chmod(0o600)
    ds = zb.dataset(
        str(tmp_path), filesystem=ShortReads(lambda offset, num_bytes: num_bytes).wrapped()
    )
    for path in paths:
        os.utime(path, ns=(10**18, 10**18))
    adopted = ds.adopt_index()
    assert set(adopted.left) == set(map(str, patched)) and patched
    assert adopted.num_files == len(paths) - len(patched)
    assert count_quietly(ds, 10**6) == len(patched)
    for table in tables:
        assert count_quietly(ds, table["id"][7].as_py()) == 1


def test_nothing_is_adopted_for_an_index_that_cannot_be_read(large):
    ds = zb.dataset(large.parent)
    (segment,) = ds.opened.version.indices["id_idx"].segments
    (folder,) = (index_folder(large.parent) / "segments").glob(segment.name)
    (filters,) = folder.glob("bloomfilter.*")
    data = bytearray(filters.read_bytes())
    data[len(data) // 2] ^= 1
    filters.write_bytes(data)
    large.chmod(0o600)
    assert zb.dataset(large.parent).adopt_index() == Adopted(0, (str(large),))

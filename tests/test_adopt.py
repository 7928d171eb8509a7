"""Files copied, moved or renamed with their index are known again, and no others."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from e2e_helpers import write_files

import zonebloom as zb
from zonebloom.build.adopt import Adopted, adopt
from zonebloom.errors import StaleIndexWarning

ROWS = 1000
PARTS = 4


def part(number: int) -> pa.Table:
    # Random enough that a file of 200,000 rows is over the size whose content is digested whole.
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
    """The files at another place, with the times of now."""
    shutil.copytree(original, tmp_path / "copy", copy_function=shutil.copyfile)
    for path in (tmp_path / "copy").glob("*.parquet"):
        os.utime(path, (10**9, 10**9))
    return tmp_path / "copy"


def paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def forget_small_files(monkeypatch) -> None:
    """Have files of any size count as changed where their times differ, as large ones do."""
    monkeypatch.setattr("zonebloom.catalog.freshness.WHOLE_BYTES", 0)


def assert_right(folder: Path, num_covered: int) -> None:
    """Every row is found; that files are not covered is said, and no more are."""
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


def test_a_copy_is_known_again(copy, monkeypatch):
    forget_small_files(monkeypatch)
    ds = zb.dataset(copy)
    with pytest.warns(StaleIndexWarning, match="4 of 4 files"):
        ds.search("id = 7")
    assert ds.adopt_index() == Adopted(PARTS, ())
    assert_right(copy, PARTS)
    # What was done need not be done again.
    version = ds.version
    assert ds.adopt_index() == Adopted(0, ())
    assert ds.version == version


def test_renamed_and_exchanged_files_are_known_by_what_they_are(copy):
    one, two, three, _ = paths(copy)
    one.rename(copy / "aside")
    two.rename(one)
    (copy / "aside").rename(two)
    (copy / "below").mkdir()
    three.rename(copy / "below" / "renamed.parquet")
    ds = zb.dataset(copy)
    assert ds.adopt_index() == Adopted(3, ())
    assert_right(copy, PARTS)


def test_copies_of_one_file_have_an_id_each(tmp_path):
    folder = tmp_path / "data"
    write_files(folder, [part(0)] * PARTS)
    zb.dataset(folder).create_scalar_index("id", number_of_items=100, spark=False)
    for number, path in enumerate(paths(folder)):
        path.rename(folder / f"other-{number}.parquet")
    assert zb.dataset(folder).adopt_index().num_files == PARTS
    ds = zb.dataset(folder)
    ids = [each.fragment_id for each in ds.opened.planner.coverage().present]
    assert len(set(ids)) == PARTS
    assert ds.count_rows(f"id = {part(0)['id'][5]}") == PARTS


def test_other_files_are_left(copy, monkeypatch):
    forget_small_files(monkeypatch)
    changed, rewritten, gone, _ = paths(copy)
    # As long as before: one byte of the data is another.
    data = bytearray(changed.read_bytes())
    at = data.index(b"value ")
    data[at : at + 6] = b"VALUE "
    changed.write_bytes(data)
    # The same rows in another order: the footer tells them apart, or the length does.
    table = pq.read_table(rewritten)
    pq.write_table(table.take(list(reversed(range(ROWS)))), rewritten)
    gone.unlink()
    pq.write_table(part(9), copy / "new.parquet")
    done = zb.dataset(copy).adopt_index()
    assert done.num_files == 1
    assert {Path(path).name for path in done.left} == {changed.name, rewritten.name, "new.parquet"}
    assert_right(copy, 1)


def test_an_index_in_a_folder_of_its_own(original, tmp_path):
    index = str(tmp_path / "index")
    zb.dataset(original, index_dir=index).create_scalar_index("id", spark=False)
    moved = tmp_path / "moved"
    original.rename(moved)
    ds = zb.dataset(moved, index_dir=index)
    assert ds.adopt_index().num_files + ds.describe_indices()[0].num_fragments_indexed >= PARTS
    assert ds.describe_indices()[0].num_fragments_indexed == PARTS
    assert ds.count_rows(f"id = {part(1)['id'][5]}") == 1


def test_a_copy_takes_nothing_from_the_original(original, tmp_path, monkeypatch):
    forget_small_files(monkeypatch)
    index = str(tmp_path / "index")
    zb.dataset(original, index_dir=index).create_scalar_index("id", spark=False)
    shutil.copytree(original, tmp_path / "copy", copy_function=shutil.copyfile)
    done = zb.dataset(tmp_path / "copy", index_dir=index).adopt_index()
    assert (done.num_files, len(done.left)) == (0, PARTS)
    ds = zb.dataset(original, index_dir=index)
    assert ds.describe_indices()[0].num_fragments_indexed == PARTS


def test_only_parquet_has_a_footer_that_tells(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    with pa.ipc.new_file(str(folder / "a.arrow"), part(0).schema) as file:
        file.write_table(part(0))
    zb.dataset(folder, "ipc").create_scalar_index("id", spark=False)
    (folder / "a.arrow").rename(folder / "b.arrow")
    assert zb.dataset(folder, "ipc").adopt_index() == Adopted(0, (str(folder / "b.arrow"),))


def test_another_writer_who_indexed_the_files_meanwhile(copy, monkeypatch):
    forget_small_files(monkeypatch)
    ds = zb.dataset(copy)
    renewed = ds.opened
    zb.dataset(copy).optimize.optimize_indices(spark=False)
    with pytest.raises(zb.errors.CommitConflict, match="try again"):
        adopt(renewed)
    assert ds.adopt_index() == Adopted(0, ())

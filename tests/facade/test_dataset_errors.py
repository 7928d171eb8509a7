"""Test bad input and failures during builds: errors are helpful, and no partial files remain."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from support.e2e_helpers import build, listing, numbered, plain_dataset, write_files
from support.helpers import index_folder
from support.limits import set_limit

import zonebloom as zb
from zonebloom import errors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return plain_dataset(tmp_path / "data", rows=200, row_group_size=50)


def assert_refused(
    ds: zb.Dataset,
    folder: Path,
    kind: type[Exception],
    words: list[str],
    *arguments: Any,
    **options: Any,
) -> None:
    """Check that a build raises an error with these words, and does not change the folder."""
    before = listing(folder)
    options = {"spark": False, **options}
    with pytest.raises(kind) as error_info:
        ds.create_scalar_index(*arguments, **options)
    assert type(error_info.value) is kind
    assert isinstance(error_info.value, errors.ZoneBloomError)
    for word in words:
        assert re.search(word, str(error_info.value)), (word, str(error_info.value))
    assert listing(folder) == before


BAD_ARGUMENTS: list[tuple[type[Exception], list[str], tuple, dict]] = [
    (errors.ColumnNotFound, ["'nope'", "row, id, name, value"], ("nope",), {}),
    (errors.ColumnNotFound, [r"'id\.x'"], ("id.x",), {}),
    (errors.ColumnNotFound, ["''"], ("",), {}),
    (errors.InvalidArgument, ["empty list", "name at least one"], ([],), {}),
    (errors.InvalidArgument, ["several columns"], (["id", "name"],), {"name": "both"}),
    (errors.ColumnNotFound, ["'nope'"], (["id", "nope"],), {}),
    *(
        (errors.InvalidArgument, ["probability is", "between 0 and 1"], ("id",), {"probability": p})
        for p in (0, 1, 0.0, 1.0, -0.1, 1.5, float("nan"), float("inf"), "0.1")
    ),
    *(
        (
            errors.InvalidArgument,
            ["number_of_items is", "at least 1"],
            ("id",),
            {"number_of_items": n},
        )
        for n in (0, -5, 1.5, "100")
    ),
    (
        errors.InvalidArgument,
        ["number_of_items is", "4,294,967,295 rows"],
        ("id",),
        {"number_of_items": 2**33},
    ),
    (
        errors.InvalidArgument,
        ["more than 128 MiB", "fewer items a zone or a larger probability"],
        ("id",),
        {"number_of_items": 2**30, "probability": 0.0001},
    ),
    (errors.InvalidArgument, ["index_type is 'BTREE'", "'BLOOMFILTER'"], ("id", "BTREE"), {}),
    (errors.InvalidArgument, ["index_type is 5"], ("id", 5), {}),
    (
        errors.InvalidArgument,
        ["unknown parameter 'fold'", "a HASH index has number_of_items, probability"],
        ("id", "HASH"),
        {"fold": True},
    ),
    (errors.InvalidArgument, ["probability is 7"], ("id", "bloomfilter"), {"probability": 7}),
    *(
        (errors.InvalidArgument, ["cannot name an index"], ("id",), {"name": name})
        for name in ("", "a/b", "x" * 256, "new\nline", "../up")
        if name
    ),
]


@pytest.mark.parametrize(
    ("kind", "words", "arguments", "options"), BAD_ARGUMENTS, ids=lambda value: str(value)[:60]
)
def test_bad_arguments_are_refused_before_anything_is_written(
    folder: Path, kind: type[Exception], words: list[str], arguments: tuple, options: dict
):
    assert_refused(zb.dataset(folder), folder, kind, words, *arguments, **options)
    assert not index_folder(folder).exists()


def test_an_existing_name_is_refused_without_replace(folder: Path):
    ds = zb.dataset(folder)
    build(ds, "id", number_of_items=50)
    assert_refused(
        ds, folder, errors.IndexExists, ["'id_idx'", "replace=True"], "id", replace=False
    )
    build(ds, "name", name="id_idx", number_of_items=50)
    assert [index.column for index in ds.describe_indices()] == ["name"]


# Sources


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1", b"PAR1" + os.urandom(500) + b"PAR1", os.urandom(300)],
    ids=["zero bytes", "magic alone", "garbage in magic", "garbage"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_the_error_names_an_unreadable_file(folder: Path, content: bytes, is_first: bool):
    name = "part-000.parquet" if is_first else "part-001.parquet"
    (folder / name).write_bytes(content)
    before = listing(folder)
    if is_first:
        with pytest.raises(errors.FragmentUnreadable, match=r"part-000\.parquet"):
            zb.dataset(folder)
    else:
        ds = zb.dataset(folder)
        assert_refused(
            ds, folder, errors.FragmentUnreadable, [r"part-001\.parquet", "repair"], "id"
        )
        with pytest.raises(errors.FragmentUnreadable, match=r"part-001\.parquet|3 fragments"):
            ds.to_table()
        with pytest.raises(errors.FragmentUnreadable, match=r"part-001\.parquet"):
            ds.search("id = 5")
    assert listing(folder) == before


def test_damaged_pages_fail_the_build(tmp_path: Path):
    table = numbered(0, 20_000, id=pa.array(range(20_000)))
    paths = write_files(tmp_path, [table, table], compression="zstd", use_dictionary=False)
    data = bytearray(paths[1].read_bytes())
    for position in range(1000, len(data) - 5000, 50):
        data[position] ^= 0x5A
    paths[1].write_bytes(data)
    ds = zb.dataset(tmp_path)
    assert_refused(ds, tmp_path, errors.FragmentUnreadable, [r"part-001\.parquet", "repair"], "id")


def test_duplicate_column_names_are_refused(tmp_path: Path):
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "f.parquet")
    with pytest.raises(errors.SourceError, match=r"duplicate|more than one"):
        build(zb.dataset(tmp_path), "a")


# Failures during a build


class BrokenProgress:
    """A progress callback that raises an error after a number of rows."""

    def __init__(self, error: BaseException, after: int):
        self.error = error
        self.after = after

    def __call__(self, num_rows: int, total: int) -> None:
        assert total == 600
        if num_rows >= self.after:
            raise self.error


class Abandoned(Exception):
    """An exception class of a user."""


@pytest.mark.parametrize("error", [Abandoned("stop"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("after", [1, 300, 600])
@pytest.mark.parametrize("has_index", [False, True], ids=["without an index", "with an index"])
def test_a_failing_progress_callback_stops_the_build_and_leaves_no_files(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    after: int,
    has_index: bool,
):
    # One task per file, so that some have written their segments when the build stops.
    set_limit(monkeypatch, "bytes of a task of a build", 1)
    ds = zb.dataset(folder)
    if has_index:
        build(ds, "id", number_of_items=50)
    before = listing(folder)
    with pytest.raises(type(error)):
        build(ds, "id", number_of_items=10, progress=BrokenProgress(error, after))
    assert listing(folder) == before
    assert ds.count_rows("id = 50") == 1
    build(ds, "id", number_of_items=20)
    assert zb.dataset(folder).count_rows("id = 5990") == 1


def test_one_failing_column_leaves_no_files(tmp_path: Path):
    """A list of columns is one build with one commit."""
    write_files(
        tmp_path, [numbered(0, 5, key=pa.array(range(5))), numbered(5, 5, key=pa.array(["a"] * 5))]
    )
    ds = zb.dataset(tmp_path)
    with pytest.raises(errors.SchemaMismatch):
        ds.create_scalar_index(["row", "key"], spark=False)
    assert not index_folder(tmp_path).exists()


def test_progress_gets_the_rows_done_and_the_total(folder: Path):
    calls: list[tuple[int, int]] = []
    build(
        zb.dataset(folder), "id", progress=lambda num_rows, total: calls.append((num_rows, total))
    )
    assert calls[-1] == (600, 600)
    assert [num_rows for num_rows, _ in calls] == sorted(num_rows for num_rows, _ in calls)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(folder: Path):
    mode = folder.stat().st_mode
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(errors.CatalogError, match="give a writable index_dir"):
            build(zb.dataset(folder), "id")
    finally:
        folder.chmod(mode)


@pytest.mark.parametrize("name", ["index", "a/b", ".", "a/../index"])
def test_an_index_dir_that_looks_like_data_is_refused(folder: Path, name: str):
    for source in (str(folder), f"{folder}/", folder.as_uri()):
        with pytest.raises(errors.InvalidArgument, match="begins with _"):
            zb.dataset(source, index_dir=os.path.join(folder, name))


@pytest.mark.parametrize("name", ["_index", ".a/b", "a/_b", "../beside", "_zonebloom"])
def test_a_hidden_or_outside_index_dir_is_accepted(folder: Path, name: str):
    ds = zb.dataset(folder, index_dir=os.path.join(folder, name))
    ds.create_scalar_index("id", spark=False)
    reopened = zb.dataset(folder, index_dir=os.path.join(folder, name))
    assert reopened.count_rows("id = 10") == zb.dataset(folder).count_rows("id = 10") == 1
    assert reopened.files == ds.files


def test_listed_files_accept_any_index_dir(folder: Path):
    index = str(folder / "index")
    for source in ([str(path) for path in folder.glob("*.parquet")], f"{folder}/*.parquet"):
        zb.dataset(source, index_dir=index).create_scalar_index("id", spark=False)
        assert zb.dataset(source, index_dir=index).count_rows("id = 10") == 1


def test_a_pattern_does_not_match_the_index(folder: Path):
    zb.dataset(folder).create_scalar_index("id", spark=False)
    ds = zb.dataset(f"{folder}/**/*")
    assert ds.files == zb.dataset(folder).files
    assert "no index used" not in ds.scanner(filter="id = 10").explain_plan()


def test_an_index_dir_that_is_a_file_is_refused(folder: Path, tmp_path: Path):
    (tmp_path / "taken").write_text("in the way")
    ds = zb.dataset(folder, index_dir=str(tmp_path / "taken"))
    before = listing(folder)
    with pytest.raises((errors.CatalogError, OSError)):
        build(ds, "id")
    assert listing(folder) == before
    assert (tmp_path / "taken").read_text() == "in the way"


@pytest.mark.parametrize("format", ["parquet", "csv"])
@pytest.mark.parametrize("is_pattern", [False, True])
def test_the_error_names_a_file_whose_name_is_not_utf_8(tmp_path, format, is_pattern):
    table, last = pa.table({"id": [1]}), tmp_path / f"b.{format}"
    for path in (tmp_path / f"a.{format}", last):
        pq.write_table(table, path) if format == "parquet" else csv.write_csv(table, path)
    try:
        os.rename(last, os.fsencode(tmp_path) + b"/\xff")
    except OSError:
        pytest.skip("the file system takes only UTF-8")
    with pytest.raises(errors.FragmentUnreadable, match=r"is not UTF-8.*rename the file"):
        zb.dataset(f"{tmp_path}/*" if is_pattern else tmp_path, format=format)


def test_a_zone_map_alone_has_no_hashes_to_look_up() -> None:
    ds = zb.dataset(pa.table({"x": [1, 2]}))
    ds.create_scalar_index("x", "ZONEMAP")
    for read in (lambda: ds.key_ranges("x"), lambda: ds.search_many("x", [1]).read_all()):
        with pytest.raises(errors.IndexNotFound, match="'x_idx' of column 'x' has no hashes"):
            read()


def test_a_column_with_a_name_of_pyarrows_scans_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "__filename": ["a"]}), tmp_path / "0.parquet")
    with pytest.raises(errors.SchemaMismatch, match=r"0\.parquet has a column '__filename'"):
        zb.dataset(tmp_path).to_table()
    assert zb.dataset(tmp_path, schema=pa.schema({"x": pa.int64()})).count_rows("x = 1") == 1

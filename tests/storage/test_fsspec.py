"""Test fsspec file systems that raise errors of their own, as s3fs raises botocore's."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import (
    CatalogError,
    FragmentUnreadable,
    IndexNotUsedWarning,
    NoFragments,
    SourceError,
    StaleIndexWarning,
    ZoneBloomError,
)

fsspec = pytest.importorskip("fsspec")

from fsspec.asyn import AsyncFileSystem  # noqa: E402
from fsspec.implementations.dirfs import DirFileSystem  # noqa: E402
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem  # noqa: E402


class StoreError(Exception):
    """An error of a store that is not an OSError."""


class FailingFile(LocalFileOpener):
    """A file whose reads fail if its path contains one of `FailingFiles.failing`."""

    def read(self, size: int = -1) -> bytes:
        if any(part in self.path for part in self.fs.failing):
            raise StoreError("the body is short")
        return self.f.read(size)


class FailingFiles(LocalFileSystem):
    protocol = "failing"
    cachable = False
    failing: tuple[str, ...] = ()

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb":
            return FailingFile(path, mode, fs=self, **options)
        return super()._open(path, mode, **options)


def files_and_dataset(folder: Path, *, is_arrow: bool) -> tuple[FailingFiles, zb.Dataset]:
    files = FailingFiles()
    if is_arrow:
        filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(files))
        return files, zb.dataset(pads.dataset(str(folder), filesystem=filesystem))
    return files, zb.dataset(str(folder), filesystem=files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(2):
        ids = pa.array(range(100 * number, 100 * number + 100))
        pq.write_table(pa.table({"id": ids}), folder / f"{number}.parquet")
    zb.dataset(folder).create_scalar_index("id", spark=False)
    return folder


@pytest.mark.parametrize("is_arrow", [False, True])
def test_a_data_file_that_fails_is_named(folder, is_arrow):
    files, ds = files_and_dataset(folder, is_arrow=is_arrow)
    assert ds.to_table(filter="id = 150")["id"].to_pylist() == [150]
    files.failing = ("1.parquet",)
    for read in (ds.to_table, lambda: ds.to_table(filter="id = 150"), lambda: ds.to_table(["id"])):
        with pytest.raises(FragmentUnreadable, match=r"1\.parquet.*the body is short|fragments"):
            read()


@pytest.mark.parametrize("is_arrow", [False, True])
@pytest.mark.parametrize("failing", ["/segments/", ".arrow", "filters", "pages"])
def test_an_index_file_that_fails_is_not_used(folder, failing, is_arrow, recwarn):
    files, ds = files_and_dataset(folder, is_arrow=is_arrow)
    files.failing = (failing,)
    for key in (150, 5, 250):
        expected = [key] if key < 200 else []
        assert ds.to_table(filter=f"id = {key}")["id"].to_pylist() == expected


@pytest.mark.parametrize("is_arrow", [False, True])
def test_a_file_that_fails_while_opening_a_dataset_raises(folder, is_arrow):
    class Failing(FailingFiles):
        failing = ("0.parquet", "1.parquet")

    filesystem = Failing()
    with pytest.raises((ZoneBloomError, StoreError)) as caught:
        if is_arrow:
            arrow = pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
            zb.dataset(str(folder), filesystem=arrow)
        else:
            zb.dataset(str(folder), filesystem=filesystem)
    assert isinstance(caught.value, ZoneBloomError)


class SilentFiles(LocalFileSystem):
    """Files of a server that does not answer some requests about some paths."""

    protocol = "silent"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.unanswered = re.compile("(?!)")

    def _require_answer(self, path: str) -> None:
        if self.unanswered.search(self._strip_protocol(path)):
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), path)

    def info(self, path: str | os.DirEntry[str], **options: Any) -> Any:
        # An entry of a listing needs no request of its own.
        if isinstance(path, str):
            self._require_answer(path)
        return super().info(path, **options)

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        self._require_answer(path)
        return super().ls(path, detail, **options)

    # Remote file systems inherit these methods, which take every failure for a missing file.
    isfile = fsspec.AbstractFileSystem.isfile
    isdir = fsspec.AbstractFileSystem.isdir
    exists = fsspec.AbstractFileSystem.exists


class CachingFiles(LocalFileSystem):
    """Files whose information is kept until the cache is invalidated, as object stores' is."""

    cachable = False

    def __init__(self, *, has_tags: bool) -> None:
        super().__init__()
        self.has_tags = has_tags
        self.infos: dict[str, Any] = {}

    def info(self, path: str, **options: Any) -> Any:
        path = self._strip_protocol(path)
        if path not in self.infos:
            info = super().info(path, **options)
            if self.has_tags and info["type"] == "file":
                tag = hashlib.md5(Path(path).read_bytes()).hexdigest()
                info = {**{k: info[k] for k in ("name", "type", "size")}, "ETag": tag}
            self.infos[path] = info
        return self.infos[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.infos.clear()


def given_directly(files: Any, folder: Path) -> tuple[Any, str]:
    return files, f"{folder}/"


def wrapped_by_arrow(files: Any, folder: Path) -> tuple[Any, str]:
    return pafs.PyFileSystem(pafs.FSSpecHandler(files)), f"{folder}/"


def below_a_subtree(files: Any, folder: Path) -> tuple[Any, str]:
    base = pafs.PyFileSystem(pafs.FSSpecHandler(files))
    parent = pafs.SubTreeFileSystem(str(folder.parent), base)
    return pafs.SubTreeFileSystem(folder.name, parent), ""


def below_a_folder_of_fsspec(files: Any, folder: Path) -> tuple[Any, str]:
    return DirFileSystem(str(folder), files), ""


WRAPPERS = [given_directly, wrapped_by_arrow, below_a_subtree, below_a_folder_of_fsspec]
Wrap = Callable[[Any, Path], tuple[Any, str]]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_an_unanswered_request_is_no_missing_file(folder: Path, wrap: Wrap):
    files = SilentFiles()
    filesystem, base = wrap(files, folder.parents[1])

    def opened() -> zb.Dataset:
        return zb.dataset(f"{base}{folder.parent.name}/data", filesystem=filesystem)

    ds = opened()
    ds.create_scalar_index("id", spark=False)
    for unanswered, request in (
        ("/data$", opened),
        (r"1\.parquet$", ds.to_table),
        (r"1\.parquet$", lambda: ds.to_table(filter="id = 150")),
        ("/segments$", lambda: ds.vacuum(timedelta(0))),
        (r"01\.json$", lambda: ds.vacuum(timedelta(0))),
    ):
        files.unanswered = re.compile(unanswered)
        with pytest.raises((FragmentUnreadable, SourceError, CatalogError), match="timed out"):
            request()
    [first_version] = folder.parent.rglob("*01.json")
    for unanswered in ("/versions$", r"\.json$"):
        files.unanswered = re.compile(unanswered)
        with pytest.warns(IndexNotUsedWarning, match="timed out"):
            assert opened().to_table(filter="id = 150").num_rows == 1
    files.unanswered = re.compile("(?!)")
    assert ds.to_table().num_rows == opened().to_table().num_rows == 200
    ds.vacuum(timedelta(0))
    assert not first_version.exists()


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_missing_files_are_named(folder: Path, wrap: Wrap):
    filesystem, base = wrap(SilentFiles(), folder.parent)
    for name in ("none", "data/none"):
        with pytest.raises(NoFragments, match=f"{name} does not exist"):
            zb.dataset(f"{base}{name}", filesystem=filesystem)
    with pytest.raises(FragmentUnreadable, match=r"data/none\.parquet"):
        zb.dataset([f"{base}data/none.parquet"], filesystem=filesystem)
    assert zb.dataset(f"{base}data/1.parquet", filesystem=filesystem).count_rows() == 100
    ds = zb.dataset(f"{base}data", filesystem=filesystem, index_dir=f"{base}none")
    assert (ds.version, ds.vacuum().num_bytes) == (0, 0)
    (folder.parent / "none").mkdir()
    (folder.parent / "none/versions").touch()
    with pytest.warns(IndexNotUsedWarning, match="none/versions"):
        zb.dataset(f"{base}data", filesystem=filesystem, index_dir=f"{base}none")
    (folder / "1.parquet").unlink()
    with pytest.raises(SourceError, match=r"1\.parquet is gone"):
        ds.to_table()


class AsyncFiles(AsyncFileSystem):
    """Files of another file system through fsspec's asynchronous methods."""

    protocol = "asynchronous"
    cachable = False

    def __init__(self, files: Any):
        super().__init__()
        self.files = files

    async def _info(self, path: str, **options: Any) -> Any:
        return self.files.info(path)

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return self.files.ls(path, detail)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return self.files.open(path, mode)


class ListedFiles(AsyncFiles):
    """Files of an object store, which lists a tree by one request."""

    async def _find(self, path: str, *arguments: Any, **options: Any) -> Any:
        return self.files.find(path, *arguments, **options)

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        raise AssertionError("the tree is listed folder by folder")


@pytest.mark.parametrize("wrap", [lambda files: files, AsyncFiles, ListedFiles])
def test_files_in_a_folder_that_does_not_answer_are_not_left_out(tmp_path: Path, wrap):
    for part in range(2):
        (tmp_path / f"rows/part={part}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [part]}), tmp_path / f"rows/part={part}/0.parquet")
    files = SilentFiles()
    for unanswered in ("part=1$", "/rows$") if wrap is not ListedFiles else ("/rows$",):
        files.unanswered = re.compile(unanswered)
        with pytest.raises(ZoneBloomError, match=r"cannot (look at|read)"):
            zb.dataset(str(tmp_path / "rows"), filesystem=wrap(files))
    files.unanswered = re.compile("(?!)")
    assert zb.dataset(str(tmp_path / "rows"), filesystem=wrap(files)).count_rows() == 2


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_every_error_is_an_error_of_the_file(folder: Path, wrap: Wrap):
    files = FailingFiles()
    filesystem, base = wrap(files, folder.parent)
    ds = zb.dataset(f"{base}data", filesystem=filesystem)
    files.failing = ("1.parquet",)
    with pytest.raises(FragmentUnreadable, match=r"1\.parquet.*StoreError: the body is short"):
        ds.to_table()


@pytest.mark.parametrize("has_tags", [False, True])
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_changes_are_noticed_despite_cached_listings(tmp_path: Path, wrap: Wrap, has_tags):
    (tmp_path / "data/rows").mkdir(parents=True)
    path = tmp_path / "data/rows/0.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), path)
    filesystem, base = wrap(CachingFiles(has_tags=has_tags), tmp_path)
    ds = zb.dataset(f"{base}data/rows", filesystem=filesystem)
    ds.create_scalar_index("id", spark=False)
    assert ds.to_table(filter="id = 3").num_rows == 0
    pq.write_table(pa.table({"id": [3, 4]}), path)
    for opened in (ds, zb.dataset(f"{base}data/rows", filesystem=filesystem)):
        with pytest.warns(StaleIndexWarning):
            assert opened.to_table(filter="id = 3")["id"].to_pylist() == [3]
    pq.write_table(pa.table({"id": [5]}), tmp_path / "data/rows/1.parquet")
    (outcome,) = ds.optimize.optimize_indices(spark=False)
    assert outcome.fragments_added == 2
    assert ds.to_table(filter="id = 5").num_rows == 1

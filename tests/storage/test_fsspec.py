"""Test fsspec file systems that raise errors of their own, as s3fs raises botocore's."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import FragmentUnreadable, StaleIndexWarning, ZoneBloomError
from zonebloom.storage.fsspec_files import with_os_errors
from zonebloom.storage.object_store import as_arrow_filesystem

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

    def info(self, path: str, **options: Any) -> Any:
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


def wrapped_directly(files: Any, folder: Path) -> tuple[pafs.FileSystem, str]:
    return as_arrow_filesystem(files), f"{folder}/"


def wrapped_by_arrow(files: Any, folder: Path) -> tuple[pafs.FileSystem, str]:
    return with_os_errors(pafs.PyFileSystem(pafs.FSSpecHandler(files))), f"{folder}/"


def below_a_subtree(files: Any, folder: Path) -> tuple[pafs.FileSystem, str]:
    base = pafs.PyFileSystem(pafs.FSSpecHandler(files))
    parent = pafs.SubTreeFileSystem(str(folder.parent), base)
    return with_os_errors(pafs.SubTreeFileSystem(folder.name, parent)), ""


def below_a_folder_of_fsspec(files: Any, folder: Path) -> tuple[pafs.FileSystem, str]:
    return as_arrow_filesystem(DirFileSystem(str(folder), files)), ""


WRAPPERS = [wrapped_directly, wrapped_by_arrow, below_a_subtree, below_a_folder_of_fsspec]
Wrap = Callable[[Any, Path], tuple[pafs.FileSystem, str]]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_an_unanswered_request_is_no_missing_file(tmp_path: Path, wrap: Wrap):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_bytes(b"data")
    files = SilentFiles()
    filesystem, base = wrap(files, tmp_path)
    file, everything = f"{base}a/b/file", pafs.FileSelector(f"{base}a", recursive=True)
    tolerant = pafs.FileSelector(f"{base}a", recursive=True, allow_not_found=True)
    requests = {
        "open_input_file": lambda: filesystem.open_input_file(file).read(),
        "open_input_stream": lambda: filesystem.open_input_stream(file).read(),
        "info": lambda: filesystem.get_file_info(file).size,
        "tolerant listing": lambda: [i.path for i in filesystem.get_file_info(tolerant)],
        "listing": lambda: [i.path for i in filesystem.get_file_info(everything)],
        "listing of a folder": lambda: [i.path for i in filesystem.get_file_info(everything)],
        "delete_file": lambda: filesystem.delete_file(file),
    }
    unanswered = {"listing": "/a$", "tolerant listing": "/a$", "listing of a folder": "/b$"}
    for name, request in requests.items():
        files.unanswered = re.compile(unanswered.get(name, "file$"))
        with pytest.raises(TimeoutError):
            request()
    assert (tmp_path / "a/b/file").exists()
    files.unanswered = re.compile("(?!)")
    below = [f"{base}a/b", file]
    assert [request() for request in requests.values()] == [
        b"data", b"data", 4, below, below, below, None,
    ]  # fmt: skip


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_missing_files_and_wrong_kinds_are_told_apart(tmp_path: Path, wrap: Wrap):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_bytes(b"data")
    filesystem, base = wrap(SilentFiles(), tmp_path)
    for path in ("none", "a/none", "a"):
        for request in (filesystem.open_input_file, filesystem.open_input_stream):
            with pytest.raises(FileNotFoundError):
                request(base + path)
    for path in ("none", "a/none"):
        assert filesystem.get_file_info(base + path).type == pafs.FileType.NotFound
        assert filesystem.get_file_info(pafs.FileSelector(base + path, allow_not_found=True)) == []
        with pytest.raises(FileNotFoundError):
            filesystem.get_file_info(pafs.FileSelector(base + path))
        with pytest.raises(FileNotFoundError):
            filesystem.delete_file(base + path)
    with pytest.raises(NotADirectoryError):
        filesystem.get_file_info(pafs.FileSelector(base + "a/file"))
    (tmp_path / "a/b").mkdir()
    (tmp_path / "a/b/file").write_bytes(b"")
    for recursive, wanted in ((False, ["a/b", "a/file"]), (True, ["a/b", "a/b/file", "a/file"])):
        infos = filesystem.get_file_info(pafs.FileSelector(base + "a", recursive=recursive))
        assert sorted(info.path for info in infos) == [base + path for path in wanted]


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
def test_every_error_is_an_os_error(tmp_path: Path, wrap: Wrap):
    files = FailingFiles()
    filesystem, base = wrap(files, tmp_path)
    (tmp_path / "file").write_bytes(b"data")
    assert filesystem.open_input_file(f"{base}file").read() == b"data"
    files.failing = ("file",)
    with pytest.raises(OSError, match="StoreError: the body is short"):
        filesystem.open_input_file(f"{base}file").read()


def test_other_file_systems_stay_as_they_are(tmp_path: Path):
    local = pafs.LocalFileSystem()
    for filesystem in (local, pafs.SubTreeFileSystem(str(tmp_path), local)):
        assert with_os_errors(filesystem) == filesystem


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

"""Test fsspec file systems that raise errors of their own, as s3fs raises botocore's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import FragmentUnreadable, ZoneBloomError

fsspec = pytest.importorskip("fsspec")

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

"""Test file systems that count reads, and file identities."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from support.e2e_helpers import CountingFileSystem, touch_later

from zonebloom.errors import FragmentUnreadable
from zonebloom.storage.files import FileIdentity, ReadCounter, counting_filesystem
from zonebloom.storage.random_access import FragmentFile
from zonebloom.storage.store import ObjectStore, Store, identities, store_of

LOCAL = pafs.LocalFileSystem()


def test_counted_file_system_lists_and_refuses_to_write(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"xyz")
    filesystem = counting_filesystem(LOCAL, ReadCounter())
    (info,) = filesystem.get_file_info([str(tmp_path / "a")])
    assert (info.type, info.size) == (pafs.FileType.File, 3)
    infos = filesystem.get_file_info(pafs.FileSelector(str(tmp_path)))
    assert [info.base_name for info in infos] == ["a"]
    for write in (
        lambda: filesystem.open_output_stream(str(tmp_path / "b")),
        lambda: filesystem.create_dir(str(tmp_path / "c")),
        lambda: filesystem.delete_file(str(tmp_path / "a")),
    ):
        with pytest.raises(NotImplementedError, match="read-only"):
            write()
    assert os.listdir(tmp_path) == ["a"]


def test_an_identity_has_the_status_of_the_file_and_is_none_if_it_is_missing(tmp_path: Path):
    path, missing = tmp_path / "a", tmp_path / "missing"
    path.write_bytes(b"xyz")
    other = CountingFileSystem().wrapped()
    for filesystem in (LOCAL, other):
        first, missing_identity = identities(filesystem, [str(path), str(missing)])
        assert first is not None and first.is_still(FileIdentity(3, path.stat().st_mtime_ns))
        assert missing_identity is None
        touch_later(path)
        assert identities(filesystem, [str(path)]) != [first]
    (ours,), (theirs,) = identities(LOCAL, [str(path)]), identities(other, [str(path)])
    assert ours is not None and ours.is_still(theirs)
    status = path.stat()
    assert ours[2:] == (status.st_ctime_ns, "", status.st_ino)


def test_each_file_system_has_its_store():
    others = [counting_filesystem(LOCAL, ReadCounter()), pafs.SubTreeFileSystem("/tmp", LOCAL)]
    assert [type(store_of(filesystem)) for filesystem in others] == [Store, Store]
    assert type(store_of(pafs.S3FileSystem(anonymous=True, region="us-east-1"))) is ObjectStore
    assert pickle.loads(pickle.dumps(store_of(LOCAL))) is store_of(LOCAL)


def test_mounts_are_those_of_the_system(tmp_path: Path):
    mounts = Path("/proc/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    paths = [*(line.split()[1] for line in lines), "/", str(tmp_path), str(tmp_path / "missing")]
    store = store_of(LOCAL)
    # None of these paths has a symbolic link.
    assert [store.is_mount(path) for path in paths] == list(map(os.path.ismount, paths))


def test_a_file_that_is_truncated_during_a_read_raises(tmp_path: Path):
    path = tmp_path / "a.parquet"
    path.write_bytes(bytes(range(200)))
    (identity,) = identities(LOCAL, [str(path)])
    with FragmentFile(LOCAL, str(path), identity, ReadCounter()) as file:
        os.truncate(path, 100)
        assert file.read([(90, 100)]) == [path.read_bytes()[90:]]
        with pytest.raises(FragmentUnreadable, match=r"a\.parquet: it ends at 100 bytes"):
            file.read([(0, 10), (90, 101)])

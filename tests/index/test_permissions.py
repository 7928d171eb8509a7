"""An index has the permissions of its data, whatever the umask of the process that builds it.

A build writes to no files except its own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import index_folder, run_python
from seams import replace_function

import zonebloom as zb
from zonebloom.catalog.folder import create_file

NOBODY = 65534
# Import everything before privileges are dropped: only root may be able to read the interpreter.
AS_NOBODY = """
    import os, sys, warnings
    import pyarrow.dataset as pads
    import zonebloom as zb

    def read():
        table = pads.dataset(sys.argv[1], format="parquet").to_table()
        ds = zb.dataset(sys.argv[1], index_dir=sys.argv[2] or None)
        return table.num_rows, ds.count_rows(filter="id = 7"), int(ds.validate_index("hash"))

    warnings.simplefilter("error")
    as_root = read()
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    assert read() == as_root
    print(*as_root)
"""


def build(data: Path, index_dir: str | None = None) -> None:
    ds = zb.dataset(data, index_dir=index_dir)
    for kind in ("BLOOMFILTER", "HASH"):
        ds.create_scalar_index(
            "id", kind, kind.lower(), global_filter=True, number_of_items=100, spark=False
        )
    ds.optimize.optimize_indices()
    ds.drop_index("bloomfilter")


@pytest.fixture(params=[0o077, 0o022, 0o000], ids=oct)
def umask(request) -> Iterator[None]:
    """Set the umask of the user that builds."""
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def place(open_folder) -> Path:
    """Return a folder that other users can reach, with a folder of data."""
    (open_folder / "data").mkdir()
    pq.write_table(pa.table({"id": range(1000)}), open_folder / "data" / "a.parquet")
    (open_folder / "data" / "a.parquet").chmod(0o644)
    return open_folder


def modes(folder: Path, files: bool) -> set[int]:
    paths = [folder, *folder.rglob("*")]
    return {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file() == files}


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o700, 0o775, 0o2770, 0o777, 0o1777])
def test_an_index_beside_the_data_has_the_permissions_of_the_data(place, umask, mode):
    (place / "data").chmod(mode)
    build(place / "data")
    index = index_folder(place / "data")
    assert modes(index, files=False) == {mode & 0o2777}
    assert modes(index, files=True) == {mode & 0o644}
    assert stat.S_IMODE((place / "data").stat().st_mode) == mode


def test_a_separate_index_has_the_permissions_of_its_folder(place, umask):
    (place / "indices").mkdir()
    (place / "indices").chmod(0o750)
    build(place / "data", str(place / "indices"))
    assert modes(place / "indices", files=False) == {0o750}
    assert modes(place / "indices", files=True) == {0o640}


def test_a_separate_index_in_a_new_folder_has_the_permissions_of_the_parent(place, umask):
    build(place / "data", str(place / "new" / "indices"))
    assert modes(place / "new", files=False) == {0o755}
    assert modes(place / "new", files=True) == {0o644}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("index_dir", [None, "indices"])
@pytest.mark.parametrize("umask", [0o077], indirect=True)
def test_another_user_reads_the_data_and_the_index(place, umask, index_dir):
    folder = None if index_dir is None else str(place / index_dir)
    build(place / "data", folder)
    assert run_python(AS_NOBODY, place / "data", folder or "").split() == ["1000", "1", "10"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("umask", [0o077], indirect=True)
def test_an_index_that_root_builds_belongs_to_the_owner_of_the_data(place, umask):
    os.chown(place / "data", NOBODY, NOBODY)
    (place / "data").chmod(0o700)
    build(place / "data")
    index = index_folder(place / "data")
    statuses = [path.stat() for path in (index, *index.rglob("*"))]
    assert {(status.st_uid, status.st_gid) for status in statuses} == {(NOBODY, NOBODY)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("groups", "group", "mode"), [([], NOBODY, 0o755), ([7], 7, 0o775)])
def test_group_permissions_are_not_given_to_another_group(place, groups, group, mode):
    os.chown(place / "data", NOBODY, 7)
    (place / "data").chmod(0o775)
    run_python(
        """
        import os, sys
        from zonebloom.catalog.folder import create_file

        os.setgroups([int(each) for each in sys.argv[2:]])
        os.setgid(65534)
        os.setuid(65534)
        create_file(sys.argv[1] + "/a/b/c", sys.argv[1] + "/a", model_folder=sys.argv[1]).close()
        """,
        place / "data",
        *groups,
    )
    for name in ("a", "a/b"):
        status = (place / "data" / name).stat()
        assert (status.st_gid, stat.S_IMODE(status.st_mode)) == (group, mode)
    assert stat.S_IMODE((place / "data" / "a/b/c").stat().st_mode) == 0o644


# Other users write to the folder while root builds in it

# Plants links in the place of the files that a build is about to create.
PLANT_LINKS = """
    import os, sys

    victim, segments = sys.argv[1:]
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    names = ("ranges.arrow", "pages.arrow", "global.sbbf", "hash.buckets")
    for folder in os.listdir(segments):
        for name in names:
            os.symlink(victim, os.path.join(segments, folder, name))
        # The build is writing the table at this point.
        os.rename(f"{segments}/{folder}/bloomfilter.arrow", f"{segments}/{folder}/moved")
        os.symlink(victim, f"{segments}/{folder}/bloomfilter.arrow")
    print(len(os.listdir(segments)))
"""


@pytest.fixture
def users_place(place) -> Path:
    """Return the same folder with data of a user, and with a file and a folder of root."""
    os.chown(place / "data", NOBODY, NOBODY)
    (place / "root").mkdir(mode=0o700)
    (place / "root" / "file").write_bytes(b"of root")
    (place / "root" / "file").chmod(0o600)
    return place


def assert_untouched(path: Path, mode: int) -> None:
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, 0, mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_links_that_a_user_plants_during_a_build_change_no_file_of_root(users_place):
    victim = users_place / "root" / "file"
    segments = index_folder(users_place / "data") / "segments"
    planted = []

    def plant(_done: int, _total: int) -> None:
        if not planted:
            planted.append(int(run_python(PLANT_LINKS, victim, segments)))

    ds = zb.dataset(users_place / "data")
    with pytest.raises(zb.errors.CommitConflict):
        ds.create_scalar_index("id", global_filter=True, spark=False, progress=plant)
    assert planted and planted[0] > 0
    assert victim.read_bytes() == b"of root"
    assert_untouched(victim, 0o600)
    assert zb.dataset(users_place / "data").count_rows("id = 7") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("name", ["segments", "versions"])
def test_a_build_does_not_write_through_a_link_in_place_of_a_folder(users_place, name):
    index = index_folder(users_place / "data")
    index.mkdir(parents=True)
    (index / name).symlink_to(users_place / "root")
    with pytest.raises(zb.errors.CatalogError, match=f"{name} in .* is a symbolic link"):
        zb.dataset(users_place / "data").create_scalar_index("id", spark=False)
    assert os.listdir(users_place / "root") == ["file"]
    assert_untouched(users_place / "root", 0o700)


def test_an_index_folder_may_be_a_link_itself(place):
    (place / "large").mkdir()
    index = index_folder(place / "data")
    index.parent.mkdir()
    index.symlink_to(place / "large")
    build(place / "data")
    assert sorted(os.listdir(place / "large")) == ["segments", "versions"]
    ds = zb.dataset(place / "data")
    assert len(ds.search("id = 7").at_most) == 100
    assert ds.count_rows("id = 7") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_that_a_user_puts_in_place_of_a_new_one_keeps_its_owner_root(
    users_place, monkeypatch
):
    private = users_place / "data" / "private"
    private.mkdir(mode=0o700)
    (private / "file").write_bytes(b"of root")
    make = os.mkdir

    def exchanged(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        # The owner of a folder may rename its contents at any time.
        make(path, mode, dir_fd=dir_fd)
        if path == "_zonebloom":
            os.rmdir(users_place / "data" / "_zonebloom")
            private.rename(users_place / "data" / "_zonebloom")

    replace_function(monkeypatch, os, "mkdir", exchanged)
    create_file(
        str(users_place / "data/_zonebloom/segments/x"),
        str(users_place / "data/_zonebloom"),
        model_folder=str(users_place / "data"),
    ).close()
    assert_untouched(users_place / "data" / "_zonebloom", 0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_file_belongs_to_its_creator_until_it_is_complete(users_place):
    path = users_place / "data" / "_zonebloom" / "segments" / "file"
    base = str(users_place / "data" / "_zonebloom")
    with create_file(str(path), base, model_folder=str(users_place / "data")) as file:
        file.write(b"first")
        assert_untouched(path, 0o600)
        with pytest.raises(FileExistsError):
            create_file(str(path), base, model_folder=str(users_place / "data"))
        file.write(b" last")
    assert path.read_bytes() == b"first last"
    assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY, NOBODY)

"""A build writes to no files except its own, also where other users write to the folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import index_folder, run_python

import zonebloom as zb

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


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("umask", [0o022], indirect=True)
def test_another_user_reads_an_index_that_the_umask_shares(place, umask):
    build(place / "data")
    assert run_python(AS_NOBODY, place / "data", "").split() == ["1000", "1", "10"]


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
@pytest.mark.parametrize("umask", [0o000], indirect=True)
def test_links_that_a_user_plants_during_a_build_change_no_file_of_root(users_place, umask):
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
    with pytest.raises(zb.errors.CatalogError, match=f"{name} is a symbolic link"):
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

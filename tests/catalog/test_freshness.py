"""Freshness of real files: only a file that is proven to be unchanged counts as unchanged."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from support.seams import replace_function

import zonebloom as zb
from zonebloom.catalog import freshness
from zonebloom.catalog.coverage import compute_coverage
from zonebloom.catalog.fragment_table import fragment_table
from zonebloom.catalog.freshness import CHANGED, wait_for_rest
from zonebloom.catalog.model import KnownFragment, Version
from zonebloom.sources.source import Fragment
from zonebloom.storage.file_states import FileStates
from zonebloom.storage.files import (
    UNKNOWN_MTIME,
    WHOLE_BYTES,
    FileIdentity,
    content_digest,
    is_at_rest,
)
from zonebloom.storage.store import identities

SECOND = 10**9
SIZES = {"small": 1000, "large": 5 * WHOLE_BYTES}


def set_time(path: Path, ns: int) -> None:
    os.utime(path, ns=(ns, ns))


def now(path: Path) -> FileIdentity:
    (found,) = identities(pafs.LocalFileSystem(), [str(path)])
    assert found is not None
    return found


def noted(path: Path, later: int = 10 * SECOND) -> KnownFragment:
    """Return the entry that a build writes if it reads the file some time after its last write."""
    identity = now(path)
    seen_at = max(identity.mtime_ns, identity.ctime_ns) + later
    return KnownFragment(0, path.name, identity, 1, content_digest(str(path)), seen_at)


@pytest.fixture(params=SIZES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "a"
    path.write_bytes(np.random.default_rng(1).bytes(SIZES[request.param]))
    return path


def last_known_unchanged(
    path: str,
    entry: KnownFragment,
    identity: FileIdentity,
    earlier: tuple[FileIdentity, int] | None = None,
) -> int | None:
    """Return when one file was last known to be unchanged, or None if it may have changed."""
    states = FileStates.of_identities([identity])
    (seen_at,) = freshness.last_known_unchanged(
        fragment_table({entry.key: entry}), np.array([0]), states, [path].__getitem__,
        [earlier].__getitem__,
    ).tolist()  # fmt: skip
    return None if seen_at == CHANGED else seen_at


def is_same(path: Path, entry: KnownFragment) -> bool:
    return last_known_unchanged(str(path), entry, now(path)) is not None


def overwrite(path: Path, at: int, mtime_ns: int | None = None) -> None:
    """Change one byte. Set the modification time back if it is given."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    if mtime_ns is not None:
        set_time(path, mtime_ns)


def count_digests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    def counting(path: str) -> str:
        asked.append(path)
        return content_digest(path)

    replace_function(monkeypatch, freshness, "content_digest", counting)
    return asked


def test_a_file_at_rest_is_known_by_its_times(file: Path, monkeypatch: pytest.MonkeyPatch):
    entry = noted(file)
    asked = count_digests(monkeypatch)
    assert last_known_unchanged(str(file), entry, now(file)) == entry.seen_at
    assert asked == []


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.chmod(0o600),
        lambda path: os.link(path, path.with_name("snapshot")),
        lambda path: (shutil.copy2(path, path.with_name("b")), path.with_name("b").replace(path)),
        lambda path: (path.rename(path.with_name("b")), path.with_name("b").rename(path)),
    ],
    ids=["chmod", "hard link", "copy with its time", "rename"],
)
def test_other_attributes_do_not_make_another_file_if_all_bytes_agree(
    file: Path, change, monkeypatch: pytest.MonkeyPatch
):
    entry = noted(file)
    change(file)
    assert now(file) != entry.identity
    digests = count_digests(monkeypatch)
    is_small = file.stat().st_size <= WHOLE_BYTES
    # The digest of a large file covers samples only, so it proves nothing.
    assert is_same(file, entry) == is_small
    assert len(digests) == is_small


def test_a_large_file_patched_in_place_between_samples_has_changed(tmp_path: Path):
    """Keep the size and the modification time, as ``rsync --inplace -t`` does."""
    path = tmp_path / "large"
    path.write_bytes(bytes(8 * WHOLE_BYTES))
    entry = noted(path)
    for at in np.random.default_rng(3).integers(0, 8 * WHOLE_BYTES, 40).tolist():
        overwrite(path, at, entry.identity.mtime_ns)
        if content_digest(str(path)) == entry.digest:
            break
        overwrite(path, at, entry.identity.mtime_ns)
    else:
        pytest.fail("every patch hit a sample")
    assert now(path)[:2] == entry.identity[:2]
    assert not is_same(path, entry)


def test_a_file_written_since_is_the_same_only_where_all_of_it_was_compared(file: Path):
    entry = noted(file)
    set_time(file, entry.identity.mtime_ns + SECOND)
    assert is_same(file, entry) == (file.stat().st_size <= WHOLE_BYTES)


@pytest.mark.parametrize("at", [0, 500, -1])
def test_other_content_of_the_same_size_and_time(file: Path, at: int):
    """Replace the file and keep its modification time, as ``rsync -t`` does."""
    entry = noted(file)
    other = file.with_name("other")
    shutil.copy2(file, other)
    overwrite(other, at % file.stat().st_size, entry.identity.mtime_ns)
    other.replace(file)
    assert now(file)[:2] == entry.identity[:2]
    assert not is_same(file, entry)


def test_one_byte_that_was_written_later_anywhere_makes_another_file(file: Path):
    entry, size = noted(file), file.stat().st_size
    for at in np.random.default_rng(2).integers(0, size, 20).tolist():
        overwrite(file, at, entry.identity.mtime_ns + SECOND)
        assert not is_same(file, entry)
        overwrite(file, at, entry.identity.mtime_ns)


def test_another_size_is_another_file(file: Path):
    entry = noted(file)
    with open(file, "ab") as sink:
        sink.write(b"x")
    set_time(file, entry.identity.mtime_ns)
    assert not is_same(file, entry)


def test_times_alone_are_not_believed_of_a_file_written_when_it_was_indexed(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    """A second write within the resolution of the clock may leave all times as they were."""
    entry = noted(file, later=SECOND // 100)
    digests = count_digests(monkeypatch)
    if file.stat().st_size > WHOLE_BYTES:
        assert not is_same(file, entry) and not digests
        return
    assert is_same(file, entry) and len(digests) == 1
    # Simulate that the file was written just before it was compared.
    moment = now(file).ctime_ns + 1
    replace_function(monkeypatch, freshness.time, "time_ns", lambda: moment)
    earlier = now(file), moment
    assert last_known_unchanged(str(file), entry, now(file), earlier) == moment
    assert len(digests) == 2
    overwrite(file, 0)
    forged = entry._replace(identity=now(file))
    assert not is_same(file, forged)


def test_an_earlier_coverage_saves_comparing_content_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    if file.stat().st_size > WHOLE_BYTES:
        pytest.skip("the digest of a large file proves nothing")
    entry = noted(file, later=0)
    digests = count_digests(monkeypatch)
    later = time.time_ns() + 10 * SECOND
    replace_function(monkeypatch, freshness.time, "time_ns", lambda: later)
    version = Version(1, 1, {file.name: entry})
    coverage = None
    for num_digests, mtime_ns in ((1, None), (1, None), (2, SECOND), (2, None)):
        if mtime_ns is not None:
            # This changes the identity, but not the content.
            set_time(file, mtime_ns)
        coverage = compute_coverage(
            [Fragment(str(file), file.name)], [now(file)], version, earlier=coverage
        )
        (fragment,) = coverage.fragments
        assert fragment.is_known and fragment.seen_at == later
        assert len(digests) == num_digests
    # An earlier coverage proves nothing about a file that was written since.
    overwrite(file, 0, 2 * SECOND)
    coverage = compute_coverage(
        [Fragment(str(file), file.name)], [now(file)], version, earlier=coverage
    )
    assert not coverage.fragments[0].is_known


@pytest.mark.parametrize(("seconds", "is_reusable"), [(0, False), (10, True)])
def test_a_coverage_counts_again_only_if_the_next_write_must_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, is_reusable: bool
):
    file = tmp_path / "a"
    file.write_bytes(b"rows")
    entry = noted(file, later=0)
    moment = now(file).ctime_ns + 1 + seconds * SECOND
    replace_function(monkeypatch, freshness.time, "time_ns", lambda: moment)
    coverage = compute_coverage(
        [Fragment(str(file), file.name)], [now(file)], Version(1, 1, {file.name: entry})
    )
    assert coverage.fragments[0].is_known
    assert coverage.is_reusable == is_reusable


def test_a_file_that_cannot_be_read_is_not_known(file: Path):
    entry = noted(file)
    identity = now(file)._replace(ctime_ns=1)
    file.unlink()
    assert last_known_unchanged(str(file), entry, identity) is None


def test_a_file_without_a_digest_goes_by_size_and_mtime():
    entry = KnownFragment(0, "a", FileIdentity(5, 6), 7, "", SECOND)
    assert last_known_unchanged("a", entry, FileIdentity(5, 6, 8, "", 9)) == SECOND
    for other in (FileIdentity(5, 7, 8, "", 9), FileIdentity(4, 6), FileIdentity(5, UNKNOWN_MTIME)):
        assert last_known_unchanged("a", entry, other) is None


def test_the_name_a_store_gives_the_content_decides():
    entry = KnownFragment(0, "a", FileIdentity(5, 6, 0, "x"), 7, "", 1)
    assert last_known_unchanged("a", entry, FileIdentity(5, 6, 0, "x")) == 1
    assert last_known_unchanged("a", entry, FileIdentity(5, UNKNOWN_MTIME, 0, "x")) == 1
    assert last_known_unchanged("a", entry, FileIdentity(5, 6, 0, "y")) is None
    before = KnownFragment(0, "a", FileIdentity(5, 6), 7, "", SECOND)
    assert last_known_unchanged("a", before, FileIdentity(5, 6, 0, "x")) == SECOND
    unknown = KnownFragment(0, "a", FileIdentity(5, UNKNOWN_MTIME), 7)
    assert last_known_unchanged("a", unknown, FileIdentity(5, UNKNOWN_MTIME)) is None


def test_another_machine_may_see_another_inode():
    identity = FileIdentity(1, 2, 3, "", 4)
    sent = pickle.loads(pickle.dumps(identity))
    assert sent == FileIdentity(1, 2, 3, "", 0)
    assert sent.is_still(identity) and identity.is_still(sent)
    assert sent.is_still(identity._replace(inode=5))
    assert not identity.is_still(identity._replace(inode=5))
    assert not sent.is_still(identity._replace(ctime_ns=4))
    assert not sent.is_still(None)


def test_a_file_of_a_store_without_tags_is_trusted_once_it_is_at_rest():
    for mtime_ns, rest in ((5 * SECOND, 2 * SECOND), (5 * SECOND + 1, SECOND // 20)):
        identity = FileIdentity(9, mtime_ns)
        early = KnownFragment(0, "a", identity, 7, "", mtime_ns + rest)
        assert last_known_unchanged("a", early, identity) is None
        later = early._replace(seen_at=early.seen_at + 1)
        assert last_known_unchanged("a", later, identity) == later.seen_at


def test_a_file_is_at_rest_when_its_times_must_show_a_write():
    seconds = FileIdentity(1, 5 * SECOND, 7 * SECOND)
    assert not is_at_rest(seconds, 9 * SECOND)
    assert is_at_rest(seconds, 9 * SECOND + 1)
    fine = FileIdentity(1, 5 * SECOND, 7 * SECOND + 1)
    assert not is_at_rest(fine, 7 * SECOND + SECOND // 20)
    assert is_at_rest(fine, 7 * SECOND + SECOND // 20 + 2)
    # Anybody can set the modification time, but nobody the change time.
    assert is_at_rest(FileIdentity(1, 20 * SECOND, 7 * SECOND), 10 * SECOND)
    assert not is_at_rest(FileIdentity(1, 20 * SECOND), 10 * SECOND)
    assert is_at_rest(FileIdentity(1, 20 * SECOND, 0, "tag"), 10 * SECOND)


def test_waiting_ends_when_files_are_at_rest(file: Path):
    overwrite(file, 0)
    identity = now(file)
    assert is_at_rest(identity, wait_for_rest([identity]))
    began = time.time_ns()
    # A file with a tag is always at rest, and future times do not cause a long wait.
    wait_for_rest([FileIdentity(1, began + 100 * SECOND, 0, "tag")])
    assert wait_for_rest([]) - began < SECOND


@pytest.mark.parametrize("true_lag", [0, SECOND // 25, 3 * SECOND // 2, 600 * SECOND])
def test_the_lag_of_a_clock_is_never_underestimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, true_lag: int
):
    own, data = tmp_path / "own", tmp_path / "data"
    own.touch()
    data.write_bytes(b"x")
    clock = time.time_ns
    replace_function(monkeypatch, freshness.time, "time_ns", lambda: clock() + true_lag)
    for _ in range(20):
        lag = freshness.clock_lag(str(own), [str(data)])
        assert lag is not None and true_lag <= lag < true_lag + 5 * SECOND
    replace_function(monkeypatch, freshness.time, "time_ns", lambda: clock() - 600 * SECOND)
    assert freshness.clock_lag(str(own), [str(data)]) == 0


def test_the_clock_of_a_file_server_that_is_behind_is_learnt_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Move the clock of this machine ahead, so that the file system's is behind."""
    own, data = tmp_path / "own", tmp_path / "data"
    own.touch()
    data.write_bytes(b"x")
    clock = time.time_ns
    replace_function(monkeypatch, freshness.time, "time_ns", lambda: clock() + 600 * SECOND)
    lag = freshness.clock_lag(str(own), [str(data)])
    assert lag is not None and abs(lag - 600 * SECOND) < 5 * SECOND
    data.write_bytes(b"y")
    identity = now(data)
    # By the clock of this machine, the file would seem to be old.
    assert is_at_rest(identity, freshness.time.time_ns())
    assert not is_at_rest(identity, freshness.time.time_ns() - lag)
    seen_at = wait_for_rest([identity], lag)
    assert is_at_rest(identity, seen_at) and seen_at < clock() + SECOND
    assert freshness.clock_lag(str(own), ["/proc/self/stat"]) is None
    assert freshness.clock_lag(str(tmp_path / "gone"), [str(data)]) is None


def test_with_an_unknown_clock_a_file_must_keep_its_identity_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
):
    waits: list[float] = []
    replace_function(monkeypatch, freshness.time, "sleep", waits.append)
    replace_function(monkeypatch, freshness.time, "time_ns", lambda: 1_000_000 * SECOND)
    hour, day = 3600 * SECOND, 24 * 3600 * SECOND
    for age, rest in ((hour, 2), (hour + 1, 0.05), (2 * day, None), (2 * day + 1, None)):
        waits.clear()
        wait_for_rest([FileIdentity(1, 1_000_000 * SECOND - age)], None)
        assert waits == ([] if rest is None else [pytest.approx(rest, abs=0.002)])
        waits.clear()
        wait_for_rest([FileIdentity(1, 1_000_000 * SECOND - age)], 0)
        assert waits == []


@pytest.mark.parametrize("num_rows", [100, 500_000], ids=["small", "large"])
def test_a_build_records_when_it_read_files_by_the_clock_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_rows: int
):
    path = tmp_path / "data" / "a.parquet"
    path.parent.mkdir()
    ids = np.random.default_rng(1).permutation(num_rows)
    clock = time.time_ns
    replace_function(monkeypatch, freshness.time, "time_ns", lambda: clock() + 600 * SECOND)
    pq.write_table(pa.table({"id": ids}), path)
    assert (path.stat().st_size > WHOLE_BYTES) == (num_rows > 100)
    ds = zb.dataset(path.parent)
    ds.create_scalar_index("id", spark=False)
    (entry,) = ds.opened.version.fragments.values()
    assert entry.seen_at < clock()
    # Builds wait for large files.
    assert num_rows == 100 or is_at_rest(entry.identity, entry.seen_at)
    assert zb.dataset(path.parent).count_rows(filter="id = 7") == 1

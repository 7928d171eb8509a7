"""Decide whether a file is still the file that was indexed.

    size differs                                       changed
    the object store gives a tag for the content       only the tag decides
    identity is equal, and the file was at rest        unchanged
    identity differs or not at rest, up to 1 MiB       the digest of all bytes decides
    identity differs or not at rest, larger            changed, until refreshed or adopted

The identity of a local file is its size, times and inode. A file is at rest if every later write
would change its times. A recently written file is not at rest, because times are coarse: some
milliseconds on most file systems, up to two seconds on some. Builds wait until large files are at
rest. The digest of a large file covers samples only. It can prove a change, but not its absence.

A file server sets these times by its own clock, which may be behind the clock of this machine. So a
build learns that clock from a file that it writes to the index, if index and data lie on one
device. Otherwise it cannot compare the clocks, and waits for the whole time in which times are
coarse. Three cases are not covered, each for a second write within that time after the first:

- A file of up to 1 MiB on a server whose clock is behind, with its index on another device.
- A file of up to 1 MiB on such a server that a reader compares by its digest just after a write.
- A file that was indexed in an early format of the catalog, which has neither digest nor time.

`zonebloom.catalog.coverage` says how this fits coverage and drift together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

import pyarrow.fs as pafs

from zonebloom.catalog.model import KnownFragment
from zonebloom.storage.files import (
    COARSE_REST_NS,
    UNKNOWN_MTIME,
    WHOLE_BYTES,
    FileIdentity,
    content_digest,
    is_at_rest,
    rest_ns,
    rests_from,
    written_at,
)
from zonebloom.storage.store import store_of

_SECOND = 10**9
# The clock of a file server may be behind by less than this if it cannot be learnt.
_MAX_UNKNOWN_LAG_NS = 24 * 3600 * _SECOND


def last_known_unchanged(
    path: str,
    entry: KnownFragment,
    current: FileIdentity,
    earlier: tuple[FileIdentity, int] | None = None,
) -> int | None:
    """Return when a file was last known to be unchanged, or None if it may have changed since.

    The time is in ns since 1970, or 0 if it was not recorded. An earlier result for this entry,
    with the identity that it was for, saves reading the file again.
    """
    indexed = entry.identity
    if indexed.size != current.size or (current.mtime_ns == UNKNOWN_MTIME and not current.tag):
        return None
    # Usually both are the same object, and testing that first is faster for many files.
    if indexed is current or indexed.is_still(current):
        # Old versions, which have no digests, did not record the time.
        is_old = not entry.digest and not entry.seen_at
        if is_old or is_at_rest(current if indexed.tag else indexed, entry.seen_at):
            return entry.seen_at
    if not entry.digest or not digest_covers_file(current):
        return None
    if earlier is not None and earlier[0] == current and is_at_rest(*earlier):
        return earlier[1]
    # Take the time before reading: if the file is written meanwhile, it is not at rest then.
    compared_at = time.time_ns()
    try:
        return compared_at if content_digest(path) == entry.digest else None
    except OSError:
        # The next scan reads the file and reports the error.
        return None


def digest_covers_file(identity: FileIdentity) -> bool:
    """Return whether the digest of a local file covers all of its bytes."""
    return identity.size <= WHOLE_BYTES


def unchanged_ids(
    filesystem: pafs.FileSystem, files: Sequence[tuple[str, KnownFragment]]
) -> set[int]:
    """Return the ids of the fragments whose files are unchanged. `files` has their paths."""
    current = store_of(filesystem).identities([path for path, _ in files])
    return {
        entry.fragment_id
        for (path, entry), identity in zip(files, current, strict=True)
        if identity is not None and last_known_unchanged(path, entry, identity) is not None
    }


def clock_lag(own_file: str, paths: Iterable[str]) -> int | None:
    """Return by how many ns the clock of local files is behind the clock of this machine.

    The time of an open file of the index is set for this. The result is rather too large than too
    small, by the time between two ticks of that clock and by the time that this takes. It is None
    if the files lie on another device than the index.
    """
    try:
        # Without a time, the file server sets its own. A planted link must not lead elsewhere.
        os.utime(own_file, follow_symlinks=os.utime not in os.supports_follow_symlinks)
        status = os.lstat(own_file)
        current = time.time_ns()
        if {os.stat(path).st_dev for path in paths} - {status.st_dev}:
            return None
    except OSError:
        return None
    return max(current - status.st_mtime_ns, 0)


def wait_for_rest(files: Iterable[FileIdentity], lag: int | None = None) -> int:
    """Wait until files are at rest, and return the time after that, in ns since 1970.

    The time is by the clock of the files, which is behind the clock of this machine by `lag`. If
    `lag` is None, this is not known. Then a file is at rest only if its identity, which the caller
    has seen before, stays for the time in which times are coarse. For files that were written more
    than a day ago, the clocks are trusted.

    The wait is at most two seconds, even if the times of a file lie in the future.
    """
    behind = lag or 0
    current = time.time_ns() - behind
    wait = 0
    for file in files:
        if file.tag:
            continue
        remaining = rests_from(file) - current
        if lag is None and remaining > -_MAX_UNKNOWN_LAG_NS:
            remaining = max(remaining, rest_ns(written_at(file)))
        wait = max(wait, remaining)
    if wait > 0:
        # Add a millisecond, because sleep() may return slightly too early.
        time.sleep((min(wait, COARSE_REST_NS) + _SECOND // 1000) / _SECOND)
    return time.time_ns() - behind

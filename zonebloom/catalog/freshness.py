"""Decide whether a file is still the file that was indexed.

    size differs                                       changed
    the object store gives a tag for the content       only the tag decides
    identity is equal, and the file was at rest        unchanged
    identity differs or not at rest, up to 1 MiB       the digest of all bytes decides
    identity differs or not at rest, larger            changed, until refreshed

The identity of a local file is its size, times and inode. A file is at rest if every later write
would change its times. A recently written file is not at rest, because times are coarse: some
milliseconds on most file systems, up to two seconds on some. Builds wait until large files are at
rest. The digest of a large file covers samples only. It can prove a change, but not its absence.

A file server sets these times by its own clock, which may be behind the clock of this machine. So a
build learns that clock from a file that it writes to the index, if index and data lie on one
device. Otherwise it cannot compare the clocks, and waits for the whole time in which times are
coarse. Two cases are not covered, each for a second write within that time after the first:

- A file of up to 1 MiB on a server whose clock is behind, with its index on another device.
- A file of up to 1 MiB on such a server that a reader compares by its digest just after a write.

`zonebloom.catalog.coverage` says how this fits coverage and drift together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import from_numpy, to_numpy
from zonebloom.catalog.fragment_table import LISTING_SCHEMA, FragmentTable, columns_of_fragments
from zonebloom.catalog.model import KnownFragment
from zonebloom.storage.file_states import FileStates, without_quotes
from zonebloom.storage.files import (
    COARSE_REST_NS,
    FINE_REST_NS,
    UNKNOWN_MTIME,
    WHOLE_BYTES,
    FileIdentity,
    content_digest,
    is_at_rest,
    rest_ns,
    rests_from,
    written_at,
)
from zonebloom.storage.store import Store

# Stands for the time of a file that may have changed.
CHANGED = -1
_SECOND = 10**9
# The clock of a file server may be behind by less than this if it cannot be learnt.
_MAX_UNKNOWN_LAG_NS = 24 * 3600 * _SECOND


def last_known_unchanged(
    entries: FragmentTable,
    rows: np.ndarray,
    current: FileStates,
    path_of: Callable[[int], str],
    earlier_state: Callable[[int], tuple[FileIdentity, int] | None] = lambda number: None,
) -> np.ndarray:
    """Return when each file was last known to be unchanged, or -1 if it may have changed since.

    The times are in ns since 1970.

    Parameters
    ----------
    entries : FragmentTable
    rows : int64 array
        The row of each file in the table.
    current : FileStates
        The states of the files now.
    path_of : function
        Returns the path of a file by its number in ``rows``.
    earlier_state : function
        Returns the identity that a file had when it was last found to be unchanged, and when that
        was. It saves reading the file again.
    """
    is_unchanged = _unchanged_by_identity(entries, rows, current)
    times = np.where(is_unchanged, entries.numbers("seen_at")[rows], CHANGED)
    doubtful = np.flatnonzero(~is_unchanged)
    for number, entry in zip(doubtful.tolist(), entries.fragments_at(rows[doubtful]), strict=True):
        identity = current.identity(number)
        if not entry.digest or not _may_have_content(entry.identity, identity):
            continue
        before = earlier_state(number)
        if before is not None and before[0] == identity and is_at_rest(*before):
            times[number] = before[1]
            continue
        # Take the time before reading: if the file is written meanwhile, it is not at rest then.
        compared_at = time.time_ns()
        # The next scan reads a file that cannot be read, and reports the error.
        with suppress(OSError):
            if content_digest(path_of(number)) == entry.digest:
                times[number] = compared_at
    return times


def _may_have_content(indexed: FileIdentity, current: FileIdentity) -> bool:
    """Return whether a digest of a file may prove that it has the content that was indexed."""
    is_known = current.mtime_ns != UNKNOWN_MTIME or current.tag != ""
    return indexed.size == current.size and is_known and digest_covers_file(current)


def _unchanged_by_identity(
    entries: FragmentTable, rows: np.ndarray, current: FileStates
) -> np.ndarray:
    """Return a mask of the files that are at rest, and unchanged by `FileIdentity.is_still`."""
    compute: Any = pc

    def numbers(name: str) -> np.ndarray:
        return entries.numbers(name)[rows]

    def has_text(texts: Any) -> np.ndarray:
        return to_numpy(compute.binary_length(texts)) > 0

    positions = from_numpy(rows)
    mtimes_ns, ctimes_ns, inodes = numbers("mtime_ns"), numbers("ctime_ns"), numbers("inode")
    is_still = (
        (mtimes_ns == current.mtimes_ns)
        & ((ctimes_ns == current.ctimes_ns) | (ctimes_ns == 0) | (current.ctimes_ns == 0))
        & ((inodes == current.inodes) | (inodes == 0) | (current.inodes == 0))
    )
    tags = entries.texts("tag").take(positions)
    has_tag, has_tag_now = has_text(tags), np.zeros(rows.size, bool)
    if current.tags is not None:
        has_tag_now = has_text(current.tags)
        is_same_tag = compute.equal(without_quotes(tags), without_quotes(current.tags))
        is_still = np.where(has_tag & has_tag_now, to_numpy(is_same_tag), is_still)
    is_still &= numbers("size") == current.sizes
    is_still &= (current.mtimes_ns != UNKNOWN_MTIME) | has_tag_now
    # If the entry has a tag, the current file has to be at rest, otherwise the indexed one.
    current_times = np.where(current.ctimes_ns != 0, current.ctimes_ns, current.mtimes_ns)
    indexed_times = np.where(ctimes_ns != 0, ctimes_ns, mtimes_ns)
    written = np.where(has_tag, current_times, indexed_times)
    rests_from = written + np.where(written % _SECOND != 0, FINE_REST_NS, COARSE_REST_NS)
    return is_still & ((has_tag & has_tag_now) | (rests_from < numbers("seen_at")))


def digest_covers_file(identity: FileIdentity) -> bool:
    """Return whether the digest of a local file covers all of its bytes."""
    return identity.size <= WHOLE_BYTES


def are_unchanged(
    store: Store, paths: Sequence[str], entries: Sequence[KnownFragment]
) -> list[bool | None]:
    """Return whether each of some indexed files is unchanged, or None if it is missing."""
    identities = store.identities(paths)
    numbers = [number for number, identity in enumerate(identities) if identity is not None]
    table = FragmentTable([pa.table(columns_of_fragments(entries), schema=LISTING_SCHEMA)])
    times = last_known_unchanged(
        table,
        np.array(numbers, np.int64),
        FileStates.of_identities([identities[number] for number in numbers]),
        lambda number: paths[numbers[number]],
    )
    results: list[bool | None] = [None] * len(identities)
    for number, seen_at in zip(numbers, times.tolist(), strict=True):
        results[number] = seen_at != CHANGED
    return results


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

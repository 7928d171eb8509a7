"""Decide whether a file is still the file that was indexed.

    size differs                                       changed
    identity is equal, and the file was at rest        unchanged
    identity differs or not at rest, up to 1 MiB       the digest of all bytes decides
    identity differs or not at rest, larger            changed, until refreshed or adopted
    the object store gives a tag for the content       only the tag decides

The identity of a local file is its size, times and inode. A file is at rest if every later write
would change its times. A recently written file is not at rest, because times are coarse: some
milliseconds on most file systems, up to two seconds on some. Builds wait until large files are at
rest. The digest of a large file covers samples only. It can prove a change, but not its absence.

`zonebloom.catalog.coverage` says how this fits coverage and drift together.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import pyarrow.fs as pafs

from zonebloom.catalog.model import KnownFragment
from zonebloom.storage.files import (
    UNKNOWN_MTIME,
    WHOLE_BYTES,
    FileIdentity,
    content_digest,
    identities,
)

_SECOND = 10**9
# File systems that store times in whole seconds may round them to two seconds.
_COARSE_REST_NS = 2 * _SECOND
# Other file systems use the time of the last kernel tick, which is at most 10 ms old.
_FINE_REST_NS = _SECOND // 20
_MAX_CACHED_COMPARISONS = 1 << 16
# Results of digest comparisons: (path, digest) -> (identity, time) of a file that had the digest.
_compared: dict[tuple[str, str], tuple[FileIdentity, int]] = {}


def last_known_unchanged(path: str, entry: KnownFragment, current: FileIdentity) -> int | None:
    """Return when a file was last known to be unchanged, or None if it may have changed since.

    The time is in ns since 1970, or 0 if it was not recorded.
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
    key = path, entry.digest
    identity, compared_at = _compared.get(key, (None, 0))
    if identity == current and is_at_rest(current, compared_at):
        return compared_at
    # Take the time before reading: if the file is written meanwhile, it is not at rest then.
    compared_at = time.time_ns()
    if not _has_digest(path, entry.digest):
        return None
    if len(_compared) >= _MAX_CACHED_COMPARISONS:
        _compared.clear()
    _compared[key] = current, compared_at
    return compared_at


def digest_covers_file(identity: FileIdentity) -> bool:
    """Return whether the digest of a local file covers all of its bytes."""
    return identity.size <= WHOLE_BYTES


def unchanged_ids(
    filesystem: pafs.FileSystem, files: Sequence[tuple[str, KnownFragment]]
) -> set[int]:
    """Return the ids of the fragments whose files are unchanged. `files` has their paths."""
    current = identities(filesystem, [path for path, _ in files])
    return {
        entry.fragment_id
        for (path, entry), identity in zip(files, current, strict=True)
        if identity is not None and last_known_unchanged(path, entry, identity) is not None
    }


def is_at_rest(identity: FileIdentity, at: int) -> bool:
    """Return whether every write to a file after a time would change its identity."""
    return bool(identity.tag) or _rests_from(identity) < at


def wait_until_at_rest(files: Iterable[FileIdentity]) -> int:
    """Wait until files are at rest, and return the time after that, in ns since 1970.

    The wait is at most two seconds, even if the times of a file lie in the future.
    """
    current = time.time_ns()
    latest = max((_rests_from(file) for file in files if not file.tag), default=0)
    if latest >= current:
        # Add a millisecond, because sleep() may return slightly too early.
        time.sleep((min(latest - current, _COARSE_REST_NS) + _SECOND // 1000) / _SECOND)
    return time.time_ns()


def _rests_from(identity: FileIdentity) -> int:
    # Prefer the change time: every write sets it, and users cannot set it back.
    written = identity.ctime_ns or identity.mtime_ns
    return written + (_FINE_REST_NS if written % _SECOND else _COARSE_REST_NS)


def _has_digest(path: str, digest: str) -> bool:
    try:
        return content_digest(path) == digest
    except OSError:
        # The next scan reads the file and reports the error.
        return False

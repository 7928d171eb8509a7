"""Decide whether a file is as it was when it was indexed.

    size differs                                       changed
    all of the identity agrees, file was at rest       unchanged
    identity differs or not at rest, up to 1 MiB       the digest of all bytes decides
    identity differs or not at rest, larger            changed, until refreshed or adopted
    an object store names the content (a tag)          the tag decides, and nothing else

The identity of a local file is its size, times and inode. A file was at rest when it was read if a
write after that moment must show in its times. Times have a grain: some milliseconds on most file
systems, up to two seconds on some. Builds wait until large files are at rest. The digest of a large
file is of samples, so it may show a change and never the lack of one.
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
# A file system that keeps whole seconds may count in steps of two.
_COARSE_REST_NS = 2 * _SECOND
# Others take the time of the kernel's last tick, which is at most 10 ms old.
_FINE_REST_NS = _SECOND // 20
_MOST_REMEMBERED = 1 << 16
# Path and digest of files whose content was compared, with their identity and the time then.
_compared: dict[tuple[str, str], tuple[FileIdentity, int]] = {}


def last_known_unchanged(path: str, known: KnownFragment, now: FileIdentity) -> int | None:
    """Return when a file was last known to be as indexed, or None if it may have changed since.

    The time is in ns since 1970, and 0 if it was not noted.
    """
    was = known.identity
    if was.size != now.size or (now.mtime_ns == UNKNOWN_MTIME and not now.tag):
        return None
    # Mostly both are one object, and comparing many files takes longest here.
    if was is now or was.is_still(now):
        # Versions without digests did not note the time.
        is_old = not known.digest and not known.seen_at
        if is_old or is_at_rest(now if was.tag else was, known.seen_at):
            return known.seen_at
    if not known.digest or not digest_covers_file(now):
        return None
    key = path, known.digest
    identity, at = _compared.get(key, (None, 0))
    if identity == now and is_at_rest(now, at):
        return at
    # Taken before the file is read: a write in the meantime finds it not at rest.
    at = time.time_ns()
    if not _has_digest(path, known.digest):
        return None
    if len(_compared) >= _MOST_REMEMBERED:
        _compared.clear()
    _compared[key] = now, at
    return at


def digest_covers_file(identity: FileIdentity) -> bool:
    """Return whether the digest of a local file covers all of its bytes."""
    return identity.size <= WHOLE_BYTES


def unchanged_ids(
    filesystem: pafs.FileSystem, files: Sequence[tuple[str, KnownFragment]]
) -> set[int]:
    """Ids of the fragments, given with their paths, whose files are as they were indexed."""
    now = identities(filesystem, [path for path, _ in files])
    return {
        known.fragment_id
        for (path, known), identity in zip(files, now, strict=True)
        if identity is not None and last_known_unchanged(path, known, identity) is not None
    }


def is_at_rest(identity: FileIdentity, at: int) -> bool:
    """Return whether a write to a file after a moment must show in its identity."""
    return bool(identity.tag) or _rests_from(identity) < at


def wait_until_at_rest(files: Iterable[FileIdentity]) -> int:
    """Wait until files are at rest, and return the time then, in ns since 1970.

    A file whose time lies in the future is not waited for longer than two seconds.
    """
    now = time.time_ns()
    latest = max((_rests_from(file) for file in files if not file.tag), default=0)
    if latest >= now:
        # A clock that sleeps by the microsecond may wake too early.
        time.sleep((min(latest - now, _COARSE_REST_NS) + _SECOND // 1000) / _SECOND)
    return time.time_ns()


def _rests_from(identity: FileIdentity) -> int:
    # Every write sets the change time, and nobody can set it back.
    written = identity.ctime_ns or identity.mtime_ns
    return written + (_FINE_REST_NS if written % _SECOND else _COARSE_REST_NS)


def _has_digest(path: str, digest: str) -> bool:
    try:
        return content_digest(path) == digest
    except OSError:
        # Whoever reads it says why it cannot be read.
        return False

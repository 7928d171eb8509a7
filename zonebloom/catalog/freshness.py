"""Whether a file is as it was when it was indexed: the one answer to that.

    size differs                              another file
    size, times and inode agree               the same, if it was at rest when it was indexed
    times or inode differ, size agrees        the digest of its content decides
    an object store names the content         the name decides, and nothing else

A file is at rest when nothing changed in it for two seconds: before, it may be written again
without its times showing it, and the digest is compared as well, once a process. The digest of a
large file is of samples: no proof for a file that says it was written since.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow.fs as pafs

from zonebloom.catalog.model import KnownFragment
from zonebloom.storage.files import (
    UNKNOWN_MTIME,
    WHOLE_BYTES,
    FileIdentity,
    content_digest,
    identities,
)

_REST_NS = 2 * 10**9
_MOST_REMEMBERED = 1 << 16
# Path and digest of files whose content was compared, with what they were and when.
_compared: dict[tuple[str, str], tuple[FileIdentity, int]] = {}


def last_seen(path: str, known: KnownFragment, now: FileIdentity) -> int | None:
    """Nanoseconds since 1970 when a file was last known as indexed, 0 if not noted; None if it may
    be another by now."""
    was = known.identity
    if was.size != now.size or (now.mtime_ns == UNKNOWN_MTIME and not now.tag):
        return None
    # Most are the very same object: calls for each of many files take longest.
    if (was is now or was.is_still(now)) and (not known.digest or is_at_rest(now, known.seen_at)):
        return known.seen_at
    if not known.digest or (was.mtime_ns != now.mtime_ns and now.size > WHOLE_BYTES):
        return None
    key = path, known.digest
    identity, at = _compared.get(key, (None, 0))
    if identity == now and is_at_rest(now, at):
        return at
    # Before it is read: written in the meantime, it is not at rest then.
    at = time.time_ns()
    if not _has_digest(path, known.digest):
        return None
    if len(_compared) >= _MOST_REMEMBERED:
        _compared.clear()
    _compared[key] = now, at
    return at


def unchanged(filesystem: pafs.FileSystem, files: Sequence[tuple[str, KnownFragment]]) -> set[int]:
    """Ids of the fragments, given with their paths, whose files are as they were indexed."""
    now = identities(filesystem, [path for path, _ in files])
    return {
        known.fragment_id
        for (path, known), identity in zip(files, now, strict=True)
        if identity is not None and last_seen(path, known, identity) is not None
    }


def is_at_rest(identity: FileIdentity, at: int) -> bool:
    """Whether a file that is written after a moment has other times than it had then."""
    return max(identity.mtime_ns, identity.ctime_ns) + _REST_NS < at


def _has_digest(path: str, digest: str) -> bool:
    try:
        return content_digest(path) == digest
    except OSError:
        # Whoever reads it says why it cannot be read.
        return False

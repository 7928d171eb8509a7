"""A digest of a local file's content: of a small file all of it, of a large one samples."""

from __future__ import annotations

import os
import stat

import xxhash

# Files up to this size are read whole, so their digest tells every change.
WHOLE_BYTES = 1 << 20

_SAMPLES = 64
_SAMPLE_BYTES = 4 << 10
# Read of the end of a file that is no Parquet: where other formats have their directory too.
_TAIL_BYTES = 64 << 10
_READ_BYTES = 1 << 20
_PARQUET_ENDS = (b"PAR1", b"PARE")


def content_digest(path: str) -> str:
    """XXH3-128 of a file's size, of its Parquet footer, and of samples evenly spaced before it.

    The footer says where pages lie and how large they are, so files written from other rows
    differ in it as a rule; files without compression may not, hence the samples. Equal digests
    of large files are no proof that all their bytes are equal.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return ""
        size = status.st_size
        digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
        tail = size if size <= WHOLE_BYTES else _tail_bytes(handle, size)
        for at in range(size - tail, size, _READ_BYTES):
            digest.update(_read(handle, at, min(_READ_BYTES, size - at)))
        if tail < size:
            for number in range(_SAMPLES):
                at = number * (size - tail) // _SAMPLES
                digest.update(_read(handle, at, _SAMPLE_BYTES))
        return digest.hexdigest()
    finally:
        os.close(handle)


def _tail_bytes(handle: int, size: int) -> int:
    end = _read(handle, size - 8, 8)
    footer = int.from_bytes(end[:4], "little") + 8 if end[4:] in _PARQUET_ENDS else 0
    return min(size, max(footer, _TAIL_BYTES))


def _read(handle: int, at: int, count: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle, count, at)
    os.lseek(handle, at, os.SEEK_SET)
    return os.read(handle, count)

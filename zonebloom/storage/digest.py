"""A digest of a local file's content: of a small file all of it, of a large one samples."""

from __future__ import annotations

import os
import stat

import pyarrow.fs as pafs
import xxhash

from zonebloom.storage.random_access import RandomAccessFile

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
    if not stat.S_ISREG(os.stat(path).st_mode):
        return ""
    file = RandomAccessFile(pafs.LocalFileSystem(), path)
    size = file.num_bytes
    digest = xxhash.xxh3_128(size.to_bytes(8, "little"))
    tail = size if size <= WHOLE_BYTES else _tail_bytes(file)
    ranges = [(at, min(at + _READ_BYTES, size)) for at in range(size - tail, size, _READ_BYTES)]
    if tail < size:
        starts = (number * (size - tail) // _SAMPLES for number in range(_SAMPLES))
        ranges += [(start, start + _SAMPLE_BYTES) for start in starts]
    for each in ranges:
        digest.update(file.read([each])[0])
    file.close()
    return digest.hexdigest()


def _tail_bytes(file: RandomAccessFile) -> int:
    (end,) = file.read([(file.num_bytes - 8, file.num_bytes)])
    footer = int.from_bytes(end[:4], "little") + 8 if end[4:] in _PARQUET_ENDS else 0
    return min(file.num_bytes, max(footer, _TAIL_BYTES))

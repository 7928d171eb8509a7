"""Read the end of an index file, which describes the rest: a directory, and then a trailer."""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from zonebloom.storage.random_access import RandomAccessFile

# The first request reads this much of the file's end. Most directories fit in it.
END_BYTES = 16 << 10


def read_file_end(
    file: RandomAccessFile,
    num_bytes: int | None,
    checksum: str | None,
    trailer_bytes: int,
    directory_bytes: Callable[[bytes, int], int],
) -> tuple[bytes, bytes]:
    """Return the directory and the trailer of a file.

    Parameters
    ----------
    file : RandomAccessFile
    num_bytes : int, optional
        The size of the file that the catalog states.
    checksum : str, optional
        The XXH3-64 of directory and trailer that the catalog states, in hexadecimal.
    trailer_bytes : int
        The size of the trailer.
    directory_bytes : function of bytes and int
        Returns the size of the directory, given the trailer and the size of the file. It raises
        `ValueError` if the trailer is damaged.

    Raises
    ------
    ValueError
        If the file does not have this size or checksum, or is too short.
    """
    size = file.num_bytes
    if num_bytes is not None and size != num_bytes:
        raise ValueError(f"it has {size:,} bytes, but {num_bytes:,} were written")
    end = file.read([(max(0, size - END_BYTES), size)])[0]
    trailer = end[-trailer_bytes:]
    length = directory_bytes(trailer, size) + trailer_bytes
    if length > len(end):
        end = file.read([(size - length, size - len(end))])[0] + end
    data = end[-length:]
    if len(data) != length:
        raise ValueError("it was truncated while it was read")
    if checksum is not None and xxhash.xxh3_64_hexdigest(data) != checksum:
        raise ValueError("the checksum of its directory is not the catalog's")
    return data[:-trailer_bytes], trailer

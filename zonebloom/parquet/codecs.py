"""Decompress the bodies of pages, verify their checksums, and make errors of kernel codes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import header_kernels
from zonebloom.parquet.decompression_kernels import bytes_to_decompress, decompress_snappy
from zonebloom.parquet.leaf_type import CODECS, GZIP, SNAPPY, ZSTD, Undecodable

# For zlib: the largest window, and a header of either gzip or zlib.
_GZIP_BITS = 47


def decompressor(codec: int) -> Callable[[Any, int], pa.Buffer]:
    """Return a function that decompresses a page body to a given number of bytes.

    ``codec`` is a number of parquet.thrift. If a body yields fewer bytes than claimed, PyArrow
    returns uninitialised memory as the rest, so the size of each body is verified: by PyArrow for
    zstd, by `header_kernels` for LZ4, and by our own kernel for Snappy.
    """
    if codec == SNAPPY:
        return _decompress_snappy
    decompress = pa.Codec(CODECS[codec]).decompress if codec else None

    def decompress_to_size(body: Any, size: int) -> pa.Buffer:
        assert decompress is not None
        try:
            if codec == GZIP:
                # Allow one more byte, so that zlib reads on to the checksum at the end.
                stream = zlib.decompressobj(_GZIP_BITS)
                inflated = pa.py_buffer(stream.decompress(body, size + 1))
                if not stream.eof:
                    raise FragmentUnreadable("a page cannot be decompressed: it does not end")
            else:
                inflated = decompress(body, size)
        except (pa.ArrowException, OSError, ValueError, zlib.error) as error:
            raise FragmentUnreadable(f"a page cannot be decompressed: {error}") from None
        if inflated.size != size:
            raise FragmentUnreadable("a page does not have the size it claims")
        return inflated

    return decompress_to_size


def decompress_pages(column: np.ndarray, pages: np.ndarray, data: np.ndarray) -> list[pa.Buffer]:
    """Decompress the bodies of pages with a codec that has no kernel, and set their addresses.

    Zstandard is decompressed as far as rows are wanted. ``pages`` is the table of
    `header_kernels.open_pages`, and ``column`` describes their column. The addresses are valid as
    long as ``data`` and the returned buffers.
    """
    codec = int(column[header_kernels.CODEC])
    if codec in (0, SNAPPY):
        return []
    decompress, compressed = decompressor(codec), data.data
    buffers = []
    starts, sizes = pages["body_start"].tolist(), pages["body_size"].tolist()
    for number, decompressed_size in enumerate(pages["decompressed_size"].tolist()):
        address, size = data.ctypes.data, 0
        if decompressed_size < 0:
            continue
        if decompressed_size:
            stored = compressed[starts[number] : starts[number] + sizes[number]]
            if codec == ZSTD and pages["unwanted_rows"][number]:
                body = _decompress_first_values(stored, decompressed_size, pages[number], column)
            else:
                body = decompress(stored, decompressed_size)
            buffers.append(body)
            address, size = body.address, body.size
        pages["address"][number], pages["size"][number] = address, size
    return buffers


def _decompress_first_values(body: Any, size: int, page: np.void, column: np.ndarray) -> pa.Buffer:
    """Decompress a page of PLAIN values with Zstandard up to the last wanted row, or farther."""
    has_levels = bool(column[header_kernels.MAX_LEVEL]) and page["level_bytes"] < 0
    num_values = page["num_rows"] - page["unwanted_rows"]
    values = int(has_levels), int(column[header_kernels.WIDTH]), int(num_values)
    values_read = np.frombuffer(pa.allocate_buffer(size), dtype=np.uint8)
    progress = np.zeros(3, dtype=np.int64)
    available = 0
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(body), CODECS[ZSTD])
        while available < size:
            wanted = bytes_to_decompress(values_read.ctypes.data, available, *values, progress)
            if wanted <= available:
                break
            num_read = stream.readinto(values_read[available : min(wanted, size)])
            if not num_read:
                raise FragmentUnreadable("a page does not have the size it claims")
            available += num_read
        if available == size and stream.read(1):
            raise FragmentUnreadable("a page does not have the size it claims")
    except (pa.ArrowException, OSError) as error:
        raise FragmentUnreadable(f"a page cannot be decompressed: {error}") from None
    return pa.py_buffer(values_read[:available])


def _decompress_snappy(body: Any, size: int) -> pa.Buffer:
    stored = np.frombuffer(body, dtype=np.uint8)
    inflated = pa.allocate_buffer(size)
    if decompress_snappy(stored.ctypes.data, stored.size, inflated.address, size) < 0:
        raise FragmentUnreadable("a page cannot be decompressed")
    return inflated


def verify_checksum(data: np.ndarray, page: np.void) -> None:
    """Raise `FragmentUnreadable` if the CRC32 of the bytes after the page header is wrong."""
    stop = page["body_start"] + page["body_size"]
    body = data[page["checked_start"] : stop].tobytes()
    if zlib.crc32(body) != page["checksum"] & 0xFFFFFFFF:
        raise FragmentUnreadable("the checksum of a page is wrong")


def error_for_code(code: int) -> Undecodable | FragmentUnreadable:
    """Return the exception for the code with which a kernel refuses a page."""
    if code in (header_kernels.MALFORMED, header_kernels.UNKNOWN_LEVELS):
        return Undecodable()
    if code == header_kernels.MISPLACED:
        return FragmentUnreadable("a page location does not lead to a page of this size and kind")
    return FragmentUnreadable("a page header contradicts itself")

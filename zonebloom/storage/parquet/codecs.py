"""Bodies of pages: decompressed, and held against their checksums; why a page is refused."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.storage.parquet import header_kernels
from zonebloom.storage.parquet.body_kernels import decompress_snappy
from zonebloom.storage.parquet.leaf_type import CODECS, GZIP, SNAPPY, Undecodable

# The largest window, and gzip's header and trailer or zlib's.
_GZIP_BITS = 47


def decompressor(codec: int) -> Callable[[Any, int], pa.Buffer]:
    """What decompresses a page of a codec, given as in parquet.thrift, to a number of bytes.

    PyArrow leaves what a body does not fill as it was in memory. Of zstd it compares that number
    with what the body says; of LZ4 the header's kernel has done so, of Snappy its own does.
    """
    if codec == SNAPPY:
        return _snappy
    decompress = pa.Codec(CODECS[codec]).decompress if codec else None

    def decompressed(body: Any, size: int) -> pa.Buffer:
        assert decompress is not None
        try:
            if codec == GZIP:
                # One byte more: with room left it goes on to its checksum.
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

    return decompressed


def _snappy(body: Any, size: int) -> pa.Buffer:
    stored = np.frombuffer(body, dtype=np.uint8)
    inflated = pa.allocate_buffer(size)
    if decompress_snappy(stored.ctypes.data, stored.size, inflated.address, size) < 0:
        raise FragmentUnreadable("a page cannot be decompressed")
    return inflated


def verify(data: np.ndarray, page: np.ndarray) -> None:
    """Hold a page against its checksum, a CRC32 of what follows its header."""
    stop = page[header_kernels.BEGIN] + page[header_kernels.SIZE]
    body = data[page[header_kernels.CHECKED] : stop].tobytes()
    if zlib.crc32(body) != page[header_kernels.CHECKSUM] & 0xFFFFFFFF:
        raise FragmentUnreadable("the checksum of a page does not hold")


def refusal(code: int) -> Undecodable | FragmentUnreadable:
    """Why a page is refused, as kernels say."""
    if code in (header_kernels.MALFORMED, header_kernels.UNKNOWN_LEVELS):
        return Undecodable()
    if code == header_kernels.MISPLACED:
        return FragmentUnreadable("a page location does not lead to such a page")
    return FragmentUnreadable("a page header contradicts itself")

"""Convert values of the rarer encodings to the PLAIN encoding.

Source: Encodings.md of the Parquet format.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from zonebloom.errors import FragmentUnreadable
from zonebloom.parquet import delta_encoding_kernels as delta_kernels
from zonebloom.parquet import header_kernels
from zonebloom.parquet.leaf_type import (
    BYTE_ARRAY,
    FIXED_LEN_BYTE_ARRAY,
    INT32,
    INT64,
    MAX_INT32,
    LeafType,
    Undecodable,
)

_DELTA, _DELTA_LENGTH, _DELTA_BYTE_ARRAY, _SPLIT = 5, 6, 7, 9


def convert_pages(leaf: LeafType, pages: np.ndarray, owner: object) -> list[np.ndarray]:
    """Convert the values of pages to PLAIN encoding.

    ``pages`` is the table of pages, which is changed to the new bodies. ``owner`` keeps the old
    ones alive. Return the arrays that hold the new ones. Dictionary indices stay as they are.
    """
    has_indices = header_kernels.is_dictionary_encoding.py_func(pages["encoding"])
    is_ready = (pages["encoding"] == header_kernels.PLAIN) | has_indices
    bodies = []
    for page in range(pages.size):
        if pages["is_decoded"][page] or is_ready[page]:
            continue
        address, size = int(pages["address"][page]), int(pages["size"][page])
        count = int(pages["num_stored"][page])
        body = np.frombuffer(pa.foreign_buffer(address, size, owner), dtype=np.uint8)
        plain = to_plain(leaf, int(pages["encoding"][page]), body, count)
        bodies.append(plain)
        pages["address"][page], pages["size"][page] = plain.ctypes.data, plain.size
        pages["encoding"][page] = header_kernels.PLAIN
    return bodies


def to_plain(leaf: LeafType, encoding: int, body: np.ndarray, count: int) -> np.ndarray:
    """Return ``count`` values in PLAIN encoding, uint8.

    Raises
    ------
    FragmentUnreadable
        If the body is damaged.
    Undecodable
        If the encoding is unknown, or does not fit the type.
    """
    kind = leaf.physical_type
    if encoding == _DELTA and kind in (INT32, INT64):
        numbers = _decode_deltas(body, 0, count, 8 * leaf.width)[0]
        return numbers.astype(f"i{leaf.width}").view(np.uint8)
    if encoding == _DELTA_LENGTH and kind == BYTE_ARRAY:
        lengths, offset = _decode_deltas(body, 0, count)
        return _plain_texts(body, offset, lengths)
    if encoding == _DELTA_BYTE_ARRAY and kind == BYTE_ARRAY:
        return _plain_texts(*_join_prefixes(body, count))
    if encoding == _DELTA_BYTE_ARRAY and kind == FIXED_LEN_BYTE_ARRAY:
        joined, _, lengths = _join_prefixes(body, count)
        if (lengths != leaf.width).any():
            raise FragmentUnreadable("the values of a page do not have the width of their column")
        return joined
    if encoding == _SPLIT and kind != BYTE_ARRAY:
        if count * leaf.width != body.size:
            raise FragmentUnreadable("the size of a page does not fit its number of values")
        return np.ascontiguousarray(body.reshape(leaf.width, count).T).reshape(-1)
    raise Undecodable


def _decode_deltas(
    body: np.ndarray, offset: int, count: int, bits: int = 32
) -> tuple[np.ndarray, int]:
    out = np.empty(count, dtype=np.int64)
    stop = delta_kernels.decode_deltas(body, offset, body.size, bits, out)
    if stop < 0:
        raise FragmentUnreadable("the deltas of a page cannot be decoded")
    return out, stop


def _join_prefixes(body: np.ndarray, count: int) -> tuple[np.ndarray, int, np.ndarray]:
    """Decode DELTA_BYTE_ARRAY. Return the bytes of the strings, their start, and their lengths."""
    prefixes, offset = _decode_deltas(body, 0, count)
    suffixes, offset = _decode_deltas(body, offset, count)
    # Check the single lengths before their sum, which could overflow.
    if count and (
        min(prefixes.min(), suffixes.min()) < 0
        or max(prefixes.max(), suffixes.max()) > MAX_INT32
        or suffixes.sum() > body.size - offset
    ):
        raise FragmentUnreadable("the texts of a page cannot be decoded")
    lengths = prefixes + suffixes
    if count and (prefixes[0] or (prefixes[1:] > lengths[:-1]).any()):
        raise FragmentUnreadable("the prefix of a text is longer than the previous text")
    if lengths.sum() > MAX_INT32:
        raise Undecodable
    out = np.empty(int(lengths.sum()), dtype=np.uint8)
    if delta_kernels.join_prefixes(body, offset, body.size, prefixes, suffixes, out) < 0:
        raise FragmentUnreadable("the texts of a page cannot be decoded")
    return out, 0, lengths


def _plain_texts(data: np.ndarray, offset: int, lengths: np.ndarray) -> np.ndarray:
    # Check the single lengths before their sum, which could overflow.
    room = data.size - offset
    if lengths.size and (lengths.min() < 0 or lengths.max() > room or lengths.sum() > room):
        raise FragmentUnreadable("texts of a page lie outside it")
    out = np.empty(int(lengths.sum()) + 4 * lengths.size, dtype=np.uint8)
    if delta_kernels.write_plain_texts(data, offset, lengths, out) < 0:
        raise FragmentUnreadable("texts of a page lie outside it")
    return out

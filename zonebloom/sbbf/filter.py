"""The public class `Sbbf`: one split-block Bloom filter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from zonebloom.base import arguments
from zonebloom.base.display import (
    Displayed,
    Strip,
    bounds_up_to,
    pictures_html,
    styled_html,
    title_html,
)
from zonebloom.base.user_values import to_arrow
from zonebloom.errors import InvalidArgument
from zonebloom.sbbf.hashing import hash_array
from zonebloom.sbbf.header import MAX_HEADER_BYTES, decode_header, encode_header
from zonebloom.sbbf.sizing import estimated_fpp, fold_filter, size_for, validate_target
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, MAX_BYTES, WORDS_PER_BLOCK

# The hashes of this many values fit the processor's cache while they are checked.
_VALUES_PER_STEP = 1 << 15


class Sbbf(Displayed):
    """A split-block Bloom filter over values of one Arrow type.

    Parameters
    ----------
    ndv : int
        Number of distinct values that the filter is sized for.
    probability : float
        Target false positive probability at that ``ndv``.
    sizing : {"log2", "exact"}
        Take a power of two bytes, as Lance does, or the least number of 32-byte blocks.

    Examples
    --------
    >>> bloom = zb.Sbbf(8192, 0.00057)
    >>> bloom.insert(pa.array(["N14228", "N24211", None]))
    >>> bloom.check(pa.array(["N14228", "N00000"])).tolist()
    [True, False]
    >>> bloom
    <Sbbf 1,024 blocks, 32,768 bytes, 0.006% of bits set>
    """

    __slots__ = ("_words",)

    def __init__(self, ndv: int, probability: float = 0.00057, *, sizing: str = "log2"):
        validate_target(ndv, probability, ("ndv", "probability"))
        self._words = np.zeros(size_for(ndv, probability, sizing) // 4, dtype=np.uint32)

    @classmethod
    def from_bytes(cls, data: Any) -> Sbbf:
        """Make a filter from the bytes of its blocks, as in a row of a bloomfilter table.

        The bytes are copied.

        Raises
        ------
        InvalidArgument
            If the bytes are not one or more whole blocks, or are over 128 MiB.

        Examples
        --------
        >>> zb.Sbbf.from_bytes(bytes(64))
        <Sbbf 2 blocks, 64 bytes, 0.000% of bits set>
        """
        view = _bytes(data)
        if not 0 < len(view) <= MAX_BYTES or len(view) % BYTES_PER_BLOCK:
            raise InvalidArgument(
                f"{len(view)} bytes are not a filter; a filter is one or more blocks of 32 bytes, "
                "at most 128 MiB"
            )
        bloom = cls.__new__(cls)
        bloom._words = np.frombuffer(view, dtype=np.uint8).copy().view(np.uint32)
        return bloom

    def to_bytes(self) -> bytes:
        """Return the bytes of the blocks: little-endian words, one after another.

        >>> len(zb.Sbbf(100, 0.01).to_bytes())
        256
        """
        return self._words.astype("<u4", copy=False).tobytes()

    @classmethod
    def from_parquet_bytes(cls, data: Any) -> Sbbf:
        """Make a filter from the bytes at a column chunk's ``bloom_filter_offset`` in Parquet.

        Bytes after the blocks are ignored, because files of older writers do not say where a
        filter ends.

        Raises
        ------
        InvalidArgument
            If the header is malformed or names another algorithm, hash or compression, or if the
            size that it claims is not whole blocks, is over 128 MiB or is more than what follows.

        Examples
        --------
        >>> bloom = zb.Sbbf(100, 0.01)
        >>> zb.Sbbf.from_parquet_bytes(bloom.to_parquet_bytes() + b"and more") == bloom
        True
        """
        view = _bytes(data)
        num_bytes, start = decode_header(view[:MAX_HEADER_BYTES].tobytes())
        blocks = view[start : start + num_bytes]
        if len(blocks) < num_bytes:
            raise InvalidArgument(
                f"a Bloom filter header claims {num_bytes} bytes, but only {len(blocks)} follow it"
            )
        return cls.from_bytes(blocks)

    def to_parquet_bytes(self) -> bytes:
        """Return the filter as Parquet embeds it: a Thrift header, then the blocks.

        >>> bloom = zb.Sbbf(10, 0.01)
        >>> zb.Sbbf.from_parquet_bytes(bloom.to_parquet_bytes()) == bloom
        True
        """
        return encode_header(self.nbytes) + self.to_bytes()

    @property
    def num_blocks(self) -> int:
        """The number of 256-bit blocks."""
        return self._words.size // WORDS_PER_BLOCK

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self._words.nbytes

    @property
    def fill(self) -> float:
        """The share of the bits that are set."""
        return float(np.bitwise_count(self._words).sum()) / (self.nbytes * 8)

    @property
    def estimated_fpp(self) -> float:
        """The false positive probability of the filter with the bits that it has now.

        In one block, it is the product of the shares of set bits of the eight words. In a filter,
        it is the mean over all blocks.
        """
        return estimated_fpp(self._words)

    def insert(self, values: Iterable[Any]) -> None:
        """Insert values. Nulls are ignored.

        Parameters
        ----------
        values : pyarrow Array or ChunkedArray, or another array, series or iterable
            Values of a type that can be indexed. Their bytes are hashed at the width of the
            array's own type, so the same number has other hashes as int32 and as int64.

        Raises
        ------
        UnsupportedType
            For booleans, lists, structs and nulls, which cannot be indexed.

        Examples
        --------
        >>> bloom = zb.Sbbf(100, 0.01)
        >>> bloom.insert(pa.array([1, 2, None], pa.int32()))
        >>> bloom.check(pa.array([1], pa.int32())), bloom.check(pa.array([1], pa.int64()))
        (array([ True]), array([False]))
        """
        from zonebloom.sbbf import blocks

        for chunk in _chunks(values):
            blocks.insert(self._words, np.ascontiguousarray(hash_array(chunk).of_valid_rows()))

    def insert_hashes(self, hashes: np.ndarray) -> None:
        """Insert values, given as their XXH64 hashes, uint64, shape (n,).

        >>> import xxhash
        >>> bloom = zb.Sbbf(100, 0.01)
        >>> bloom.insert_hashes(np.array([xxhash.xxh64_intdigest(b"N14228")], np.uint64))
        >>> bloom.check(["N14228", "N00000"])
        array([ True, False])
        """
        from zonebloom.sbbf import blocks

        blocks.insert(self._words, _hashes(hashes))

    def check(self, values: Iterable[Any]) -> np.ndarray:
        """Return which values the filter may hold. False is certain, True may be wrong.

        Returns
        -------
        bool array, shape (n,)
            False for a null.

        Raises
        ------
        UnsupportedType
            For the same types as `insert`.

        Examples
        --------
        >>> bloom = zb.Sbbf(100, 0.01)
        >>> bloom.insert(["a", "b"])
        >>> bloom.check(["b", "c", None])
        array([ True, False, False])
        """
        hits = [np.empty(0, dtype=bool)]
        for chunk in _chunks(values):
            for start in range(0, len(chunk), _VALUES_PER_STEP):
                hashes = hash_array(chunk.slice(start, _VALUES_PER_STEP))
                hits.append(self.check_hashes(hashes.values) & hashes.is_valid())
        return np.concatenate(hits)

    def check_hashes(self, hashes: np.ndarray) -> np.ndarray:
        """Return which values the filter may hold, given their XXH64 hashes, uint64, shape (n,).

        Returns
        -------
        bool array, shape (n,)

        Examples
        --------
        >>> zb.Sbbf(100, 0.01).check_hashes(np.array([2**63 + 1], np.uint64))
        array([False])
        """
        from zonebloom.sbbf import blocks

        hashes = _hashes(hashes)
        out = np.empty(hashes.size, dtype=bool)
        blocks.check(self._words, hashes, out)
        return out

    def merge(self, other: Sbbf) -> None:
        """Add all values that another filter of the same size holds.

        Raises
        ------
        InvalidArgument
            If the sizes differ.

        Examples
        --------
        >>> some, others = zb.Sbbf(100, 0.01), zb.Sbbf(100, 0.01)
        >>> others.insert([7])
        >>> some.merge(others)
        >>> some.check([7])
        array([ True])
        """
        arguments.require_instance(other, Sbbf, "other")
        if other.num_blocks != self.num_blocks:
            raise InvalidArgument(
                f"filters of {self.num_blocks} and {other.num_blocks} blocks cannot be merged; "
                "make both with the same ndv and probability, or fold the larger one first"
            )
        self._words |= other._words

    def fold(self, probability: float) -> Sbbf:
        """Return a smaller filter of the same values, made by halving this one.

        Parameters
        ----------
        probability : float
            The highest ``estimated_fpp`` that the result may have. If even one halving would
            exceed it, the result is a copy.

        Examples
        --------
        >>> bloom = zb.Sbbf(8192)
        >>> bloom.insert(range(100))
        >>> bloom.nbytes, bloom.fold(0.00057).nbytes
        (32768, 256)
        """
        validate_target(1, probability)
        return Sbbf.from_bytes(fold_filter(self._words, probability))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sbbf) and np.array_equal(self._words, other._words)

    __hash__: ClassVar[None] = None  # pyright: ignore[reportIncompatibleMethodOverride]

    def __repr__(self) -> str:
        return (
            f"<Sbbf {self.num_blocks:,} blocks, {self.nbytes:,} bytes, {self.fill:.3%} of bits set>"
        )

    def _repr_html_(self) -> str:
        words = f"{self.fill:.3%}; estimated false positive probability {self.estimated_fpp:.2g}"
        set_bits = int(np.bitwise_count(self._words).sum())
        bits = Strip("bits set", words, self.nbytes * 8, bounds_up_to(set_bits))
        return styled_html(title_html(repr(self).strip("<>")), pictures_html((), [bits]))


def _chunks(values: Any) -> list[pa.Array]:
    if isinstance(values, pa.Array):
        return [values]
    if isinstance(values, pa.ChunkedArray):
        return values.chunks
    return [to_arrow(values, "values")]


def _hashes(values: Any) -> np.ndarray:
    if not (isinstance(values, np.ndarray) and values.dtype == np.uint64 and values.ndim == 1):
        values = arguments.require_integers(values, "hashes", 2**64 - 1)
    return np.ascontiguousarray(values, dtype=np.uint64)


def _bytes(data: Any) -> memoryview:
    try:
        return memoryview(data).cast("B")
    except TypeError:
        raise arguments.invalid_value(data, "data", "give bytes") from None

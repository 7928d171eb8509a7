"""Where the filters of a Parquet file lie, and what their blocks say.

    | column chunks ... | header, blocks | header, blocks | ... | footer |
                          ^ bloom_filter_offset of the chunk, in the footer

A lookup reads the headers once, then of each filter just the blocks its values fall in.
Nothing in the file is trusted: a filter that is not where or what it should be, or lacks a
value its chunk holds by its own statistics, is not used, and said so.

The footer is parsed here once more: pyarrow's ``ColumnChunkMetaData`` ends the process, by an
exception nobody catches, on encrypted columns and on statistics of a wrong size.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.errors import IndexNotUsedWarning, InvalidArgument, ZoneBloomError
from zonebloom.sbbf.header import MAX_HEADER_BYTES, decode_header
from zonebloom.sbbf.lookup import check_any
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, WORDS_PER_BLOCK, holds
from zonebloom.storage.parquet.footer import TAIL_BYTES, footer_length
from zonebloom.storage.parquet.layout import ReadRanges
from zonebloom.storage.parquet.physical import PhysicalLeaf, witnesses
from zonebloom.storage.parquet.thrift import Reader, Struct

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_Span: TypeAlias = tuple[int, int]
# What reading a malformed footer raises.
MALFORMED = (
    pa.ArrowException,
    ZoneBloomError,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    LookupError,
)

_MAGIC_BYTES = 4
# With more values a filter is read whole.
_BLOCK_READS = 64
_ONE_FILTER = np.zeros(1, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Claim:
    """What the footer says of one filter; a length is absent in files of older writers."""

    start: int
    length: int | None
    statistics: Struct | None


class FilterBytes:
    """The filters of one file, as bytes; parameters as of `EmbeddedFilters`."""

    def __init__(self, metadata: pq.FileMetaData, file_bytes: int, read: ReadRanges):
        self._metadata = metadata
        self._file_bytes = file_bytes
        self._stop = file_bytes - TAIL_BYTES
        self._read_ranges = read
        self._claims: list[list[Claim | None]] | None = None
        self._blocks: dict[int, list[_Span | None]] = {}
        self._verified: set[tuple[int, int]] = set()

    def may_hold(self, leaf: PhysicalLeaf, hashes: np.ndarray, among: np.ndarray) -> np.ndarray:
        """Those of some row groups whose filter may hold any hash, and those without filter."""
        kept = among.copy()
        if not hashes.size:
            kept[:] = False
            return kept
        blocks = self.located(leaf)
        spans = {g: span for g in np.flatnonzero(among).tolist() if (span := blocks[g]) is not None}
        if hashes.size > _BLOCK_READS:
            for group, span in spans.items():
                words = self._words(leaf, group, span)
                kept[group] = words is None or _holds_any(words, hashes)
            return kept
        # A filter not yet verified is asked for its witnesses too, in the same read.
        hashed = {group: [*self._witnesses(leaf, group), *hashes.tolist()] for group in spans}
        pairs = [(_block_range(spans[g], each), each) for g in spans for each in hashed[g]]
        held = self._blocks_hold(pairs, leaf) if pairs else None
        if held is None:
            return kept
        at = 0
        for group in spans:
            answers = held[at : at + len(hashed[group])]
            at += len(answers)
            count = len(answers) - hashes.size
            if self._verify(leaf, group, answers[:count]):
                kept[group] = answers[count:].any()
        return kept

    def _blocks_hold(self, pairs: list[tuple[_Span, int]], leaf: PhysicalLeaf) -> np.ndarray | None:
        """Tell of ranges and hashes whether the block at the range may hold the hash."""
        distinct = sorted({span for span, _ in pairs})
        data = self._read(distinct, leaf)
        if data is None:
            return None
        read = dict(zip(distinct, data, strict=True))
        words = np.frombuffer(b"".join(read[span] for span, _ in pairs), dtype="<u4")
        hashes = np.array([hashed for _, hashed in pairs], dtype=np.uint64)
        return holds(words.reshape(-1, WORDS_PER_BLOCK), hashes)

    def _words(self, leaf: PhysicalLeaf, group: int, span: _Span) -> np.ndarray | None:
        """All blocks of one filter, verified."""
        data = self._read([span], leaf)
        if data is None:
            return None
        words = np.frombuffer(data[0], dtype="<u4")
        expected = self._witnesses(leaf, group)
        answers = [_holds_any(words, np.array([each], dtype=np.uint64)) for each in expected]
        return words if self._verify(leaf, group, answers) else None

    def _witnesses(self, leaf: PhysicalLeaf, group: int) -> list[int]:
        if (leaf.number, group) in self._verified:
            return []
        claim = self.claims(leaf)[group]
        return [] if claim is None else witnesses(claim.statistics, leaf)

    def _verify(self, leaf: PhysicalLeaf, group: int, answers: Any) -> bool:
        """Drop a filter that lacks a value its chunk holds."""
        if not all(answers):
            self._blocks[leaf.number][group] = None
            not_used(
                f"the filter of row group {group} lacks a bound of the chunk's own statistics", leaf
            )
            return False
        self._verified.add((leaf.number, group))
        return True

    def claims(self, leaf: PhysicalLeaf) -> list[Claim | None]:
        """What the footer says of each row group's filter."""
        claims = self._claims
        if claims is None:
            try:
                claims = self._read_footer()
            except MALFORMED as error:
                not_used(f"the footer cannot be read ({error})")
                claims = [[None] * len(self._metadata.schema)] * self._metadata.num_row_groups
            self._claims = claims
        return [group[leaf.number] for group in claims]

    def _read_footer(self) -> list[list[Claim | None]]:
        """The claims of all row groups, by leaf."""
        (tail,) = self._read_ranges([(max(self._stop, 0), self._file_bytes)])
        length = footer_length(tail, self._file_bytes)
        (data,) = self._read_ranges([(self._stop - length, self._stop)])
        metadata = Reader(data).struct()
        claims = [[_claim(chunk) for chunk in group[1]] for group in metadata[4]]
        expected = [len(self._metadata.schema)] * self._metadata.num_row_groups
        # A signature may follow the metadata in a footer.
        same_size = metadata.stop == self._metadata.serialized_size
        if not same_size or [len(each) for each in claims] != expected:
            raise InvalidArgument("it is not the one that was opened")
        return claims

    def located(self, leaf: PhysicalLeaf) -> list[_Span | None]:
        """The blocks of each row group's filter, their headers read and found sound."""
        if leaf.number in self._blocks:
            return self._blocks[leaf.number]
        claims = self.claims(leaf)
        located: list[_Span | None] = [None] * len(claims)
        ranges: dict[int, _Span] = {}
        for group, claim in enumerate(claims):
            if claim is None:
                continue
            start = claim.start
            stop = self._stop if claim.length is None else start + claim.length
            if _MAGIC_BYTES <= start < stop <= self._stop:
                ranges[group] = start, stop
            else:
                not_used(f"the filter of row group {group} lies outside the file", leaf)
        wanted = [(start, min(stop, start + MAX_HEADER_BYTES)) for start, stop in ranges.values()]
        data = self._read(wanted, leaf) if wanted else []
        for (group, (start, stop)), header in zip(ranges.items(), data or (), strict=False):
            try:
                num_bytes, header_bytes = decode_header(header)
            except InvalidArgument as error:
                not_used(f"row group {group}: {error}", leaf)
                continue
            length = header_bytes + num_bytes
            claim = claims[group]
            if length > stop - start or (claim and claim.length not in (None, length)):
                not_used(f"the filter of row group {group} is not as long as it claims", leaf)
            else:
                located[group] = start + header_bytes, start + length
        self._blocks[leaf.number] = self._without_overlaps(located, leaf)
        return self._blocks[leaf.number]

    def _without_overlaps(
        self, located: list[_Span | None], leaf: PhysicalLeaf
    ) -> list[_Span | None]:
        """Of filters that share bytes one at least is another row group's: none is used."""
        order = sorted((span, group) for group, span in enumerate(located) if span is not None)
        shared: set[int] = set()
        furthest, owner = 0, -1
        for (start, stop), group in order:
            if start < furthest:
                shared |= {owner, group}
            if stop > furthest:
                furthest, owner = stop, group
        if shared:
            not_used(f"the filters of row groups {sorted(shared)} overlap", leaf)
        return [None if group in shared else each for group, each in enumerate(located)]

    def _read(self, ranges: list[_Span], leaf: PhysicalLeaf) -> list[bytes] | None:
        try:
            data = self._read_ranges(ranges)
        except (OSError, ZoneBloomError) as error:
            not_used(f"its filters cannot be read ({error})", leaf)
            return None
        if [len(each) for each in data] != [stop - start for start, stop in ranges]:
            not_used("the file ends before its filters do", leaf)
            return None
        return data


def _claim(chunk: Struct) -> Claim | None:
    metadata: Struct | None = chunk.get(3)
    # In another file, or encrypted.
    if metadata is None or chunk.get(1) or 8 in chunk or 9 in chunk or 14 not in metadata:
        return None
    start, length, statistics = metadata[14], metadata.get(15), metadata.get(12)
    if not isinstance(start, int) or not isinstance(length, int | None):
        raise InvalidArgument("the place of a filter is no number")
    return Claim(start, length, statistics if isinstance(statistics, Struct) else None)


def not_used(reason: str, leaf: PhysicalLeaf | None = None) -> None:
    """Warn that filters are there and not used."""
    of = "" if leaf is None else f" for column {'.'.join(leaf.path)!r}"
    warnings.warn(
        f"a Bloom filter embedded in a Parquet file is not used{of}: {reason}",
        IndexNotUsedWarning,
        stacklevel=3,
    )


def _block_range(span: _Span, hashed: int) -> _Span:
    block = (hashed >> 32) * ((span[1] - span[0]) // BYTES_PER_BLOCK) >> 32
    start = span[0] + block * BYTES_PER_BLOCK
    return start, start + BYTES_PER_BLOCK


def _holds_any(words: np.ndarray, hashes: np.ndarray) -> bool:
    num_blocks = np.array([words.size // WORDS_PER_BLOCK], dtype=np.uint64)
    return bool(check_any(words, _ONE_FILTER, num_blocks, hashes)[0])

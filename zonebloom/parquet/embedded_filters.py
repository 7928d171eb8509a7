"""Query the Bloom filters that writers embed in Parquet files, one for each column chunk.

    | column chunks ... | header, blocks | header, blocks | ... | footer |
                          ^ bloom_filter_offset of the chunk, in the footer

A lookup reads only the blocks of a filter that its hashes fall in. Filters are not trusted: one
that is misplaced or malformed, or lacks a bound of its chunk's statistics, is not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.base.notices import warn
from zonebloom.errors import IndexNotUsedWarning, InvalidArgument, ZoneBloomError
from zonebloom.parquet.file_layout import ReadRanges
from zonebloom.parquet.footer import PARQUET_MAGIC, TAIL_BYTES, read_footer_bytes
from zonebloom.parquet.physical_values import PhysicalLeaf, bound_hashes, physical_leaves
from zonebloom.parquet.thrift import Struct, ThriftReader
from zonebloom.predicates.ast import (
    Constant,
    Equals,
    IsIn,
    LeafPredicate,
    Predicate,
    fold_predicate,
)
from zonebloom.sbbf.header import MAX_HEADER_BYTES, decode_header
from zonebloom.sbbf.spec import BYTES_PER_BLOCK, WORDS_PER_BLOCK, block_numbers, blocks_hold
from zonebloom.storage.random_access import read_merged_ranges
from zonebloom.values.columns import find_leaf_type

# A function that takes a mask of row groups, and returns those in which a predicate may have one
# value.
_Narrow: TypeAlias = Callable[[np.ndarray], np.ndarray]
# Two such functions, for "may be true" and for "may be false". None stands for all row groups.
_NarrowPair: TypeAlias = tuple[_Narrow | None, _Narrow | None]
_Span: TypeAlias = tuple[int, int]
# Exceptions that reading a malformed footer raises.
_FOOTER_ERRORS = (
    pa.ArrowException,
    ZoneBloomError,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    LookupError,
)
# A parsed footer takes about this many times as many bytes as a stored one.
_PARSED_SIZE = 16
# Most blocks are read for more hashes than this, so filters are then read one after another.
_MAX_JOINT_HASHES = 64


@dataclass(frozen=True, slots=True)
class EmbeddedColumn:
    """A leaf column that has embedded filters.

    ``row_groups`` is the number of row groups with a filter, and ``num_bytes`` the size of the
    blocks of all its filters.
    """

    path: tuple[str, ...]
    row_groups: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Claim:
    """The place of one filter according to the footer. Older writers do not store a length."""

    start: int
    length: int | None
    statistics: Struct | None


class EmbeddedFilters:
    """The embedded Bloom filters of one Parquet file."""

    def __init__(self, file_bytes: int, read: ReadRanges):
        import pyarrow.parquet as pq

        self._read = read
        self._stop = file_bytes - TAIL_BYTES
        self._footer, tail = read_footer_bytes(file_bytes, read)
        # The footer is parsed a second time in `_claims`: pyarrow's ColumnChunkMetaData ends the
        # process, by an uncaught exception, for encrypted columns and statistics of a wrong size.
        self._metadata = pq.ParquetFile(
            pa.BufferReader(PARQUET_MAGIC + self._footer + tail)
        ).metadata
        self._leaves: list[PhysicalLeaf] = []
        try:
            self._leaves = physical_leaves(self._metadata)
        except _FOOTER_ERRORS as error:
            _warn_not_used(f"its schema cannot be read ({error})")
        counts = Counter(leaf.path for leaf in self._leaves)
        # If two columns have the same name, a predicate does not say which one it means.
        self._by_path = {leaf.path: leaf for leaf in self._leaves if counts[leaf.path] == 1}
        self._blocks: dict[int, list[_Span | None]] = {}
        self._verified: set[tuple[int, int]] = set()

    @property
    def num_bytes(self) -> int:
        """About the bytes that the parsed footer takes in memory."""
        return _PARSED_SIZE * len(self._footer)

    def columns(self) -> list[EmbeddedColumn]:
        """Return the leaf columns that have filters, in file order. Read the filter headers."""
        columns = []
        for leaf in self._leaves:
            sizes = [stop - start for start, stop in filter(None, self._block_spans(leaf))]
            if sizes:
                columns.append(EmbeddedColumn(leaf.path, len(sizes), sum(sizes)))
        return columns

    def candidate_row_groups(self, predicate: Predicate, schema: pa.Schema) -> list[int] | None:
        """Return the row groups in which a predicate may be true, ascending.

        Return None, without reading a filter, if filters cannot exclude anything.
        """

        def narrow_leaf(node: LeafPredicate) -> _NarrowPair:
            match node:
                case Constant(value):
                    nowhere = np.zeros_like
                    return None if value is True else nowhere, None if value is False else nowhere
                case Equals(column, values) | IsIn(column, values, False):
                    # A filter excludes row groups without the value. Any of them may hold others.
                    return self._lookup(column, values, schema), None
            return None, None

        # AND is true where all terms are true, and false where any term is false. OR is reversed.
        narrow, _ = fold_predicate(
            predicate,
            narrow_leaf,
            lambda pairs: (_intersect([t for t, _ in pairs]), _unite([f for _, f in pairs])),
            lambda pairs: (_unite([t for t, _ in pairs]), _intersect([f for _, f in pairs])),
            lambda pair: (pair[1], pair[0]),
        )
        if narrow is None:
            return None
        candidates = narrow(np.ones(self._metadata.num_row_groups, dtype=bool))
        return np.flatnonzero(candidates).tolist()

    def _lookup(self, column: tuple[str, ...], values: Any, schema: pa.Schema) -> _Narrow | None:
        leaf, wanted = self._by_path.get(column), find_leaf_type(schema, column)
        if leaf is None or wanted is None:
            return None
        if not any(claims[leaf.number] for claims in self._claims):
            return None
        hashes = leaf.hashes(wanted, values)
        return None if hashes is None else lambda mask: self._may_hold(leaf, hashes, mask)

    def _may_hold(self, leaf: PhysicalLeaf, hashes: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the mask without the row groups whose filter holds none of the hashes."""
        if not hashes.size:
            return np.zeros_like(mask)
        candidates, all_spans = mask.copy(), self._block_spans(leaf)
        spans = {
            group: span
            for group in np.flatnonzero(mask).tolist()
            if (span := all_spans[group]) is not None
        }
        if not spans:
            return candidates
        one_by_one = hashes.size > _MAX_JOINT_HASHES
        for groups in [[group] for group in spans] if one_by_one else [list(spans)]:
            # Check a filter that is not verified yet for the bounds of its chunk, in the same read.
            to_check = {
                group: np.append(self._unverified_bounds(leaf, group), hashes) for group in groups
            }
            ranges = [
                span for group in groups for span in _spans_of_hashes(spans[group], to_check[group])
            ]
            try:
                blocks_read = b"".join(read_merged_ranges(self._read, ranges, 0))
            except (OSError, ZoneBloomError) as error:
                _warn_not_used(f"its filters cannot be read ({error})", leaf)
                continue
            words = np.frombuffer(blocks_read, dtype="<u4").reshape(-1, WORDS_PER_BLOCK)
            answers = blocks_hold(
                words, np.concatenate([np.empty(0, np.uint64), *to_check.values()])
            )
            ends = np.cumsum([to_check[group].size for group in groups])
            for group, group_answers in zip(groups, np.split(answers, ends[:-1]), strict=True):
                if self._verify(leaf, group, group_answers[: -hashes.size]):
                    candidates[group] = group_answers[-hashes.size :].any()
        return candidates

    def _unverified_bounds(self, leaf: PhysicalLeaf, group: int) -> np.ndarray:
        """Return hashes that a filter must hold, or none if it is already verified."""
        claim = self._claims[group][leaf.number]
        if claim is None or (leaf.number, group) in self._verified:
            return np.empty(0, dtype=np.uint64)
        return np.array(bound_hashes(claim.statistics, leaf), dtype=np.uint64)

    def _verify(self, leaf: PhysicalLeaf, group: int, answers: np.ndarray) -> bool:
        """Return whether a filter holds the bounds of its chunk. Otherwise never use it again."""
        if answers.all():
            self._verified.add((leaf.number, group))
            return True
        self._blocks[leaf.number][group] = None
        _warn_not_used(
            f"the filter of row group {group} lacks a bound of the chunk's own statistics", leaf
        )
        return False

    @cached_property
    def _claims(self) -> list[list[_Claim | None]]:
        """The places of the filters according to the footer, by row group and leaf."""
        metadata, num_leaves = self._metadata, len(self._metadata.schema)
        try:
            parsed = ThriftReader(self._footer).read_struct()
            claims = [[_claim(chunk) for chunk in group[1]] for group in parsed[4]]
            counts = [len(group_claims) for group_claims in claims]
            # A signature may follow the metadata in a footer.
            is_same = parsed.stop == metadata.serialized_size
            if not is_same or counts != [num_leaves] * metadata.num_row_groups:
                raise InvalidArgument("pyarrow finds other row groups or columns in it")
        except _FOOTER_ERRORS as error:
            _warn_not_used(f"the footer cannot be parsed ({error})")
            return [[None] * num_leaves] * metadata.num_row_groups
        return claims

    def _block_spans(self, leaf: PhysicalLeaf) -> list[_Span | None]:
        """Return where the blocks of each row group's filter lie, after a check of its header."""
        if leaf.number in self._blocks:
            return self._blocks[leaf.number]
        claims = [group_claims[leaf.number] for group_claims in self._claims]
        spans_by_group: list[_Span | None] = [None] * len(claims)
        ranges: dict[int, _Span] = {}
        for group, claim in enumerate(claims):
            if claim is None:
                continue
            stop = self._stop if claim.length is None else claim.start + claim.length
            if len(PARQUET_MAGIC) <= claim.start < stop <= self._stop:
                ranges[group] = claim.start, stop
            else:
                _warn_not_used(f"the filter of row group {group} lies outside the file", leaf)
        spans = [(start, min(stop, start + MAX_HEADER_BYTES)) for start, stop in ranges.values()]
        try:
            headers = self._read(spans) if spans else []
        except (OSError, ZoneBloomError) as error:
            _warn_not_used(f"its filters cannot be read ({error})", leaf)
            headers = []
        for (group, (start, stop)), header in zip(ranges.items(), headers, strict=False):
            try:
                num_bytes, header_bytes = decode_header(header)
            except InvalidArgument as error:
                _warn_not_used(f"row group {group}: {error}", leaf)
                continue
            length = header_bytes + num_bytes
            claim = claims[group]
            if length > stop - start or (claim and claim.length not in (None, length)):
                _warn_not_used(f"the filter of row group {group} is not as long as it claims", leaf)
            else:
                spans_by_group[group] = start + header_bytes, start + length
        self._blocks[leaf.number] = _without_overlaps(spans_by_group, leaf)
        return self._blocks[leaf.number]


def _spans_of_hashes(span: _Span, hashes: np.ndarray) -> list[_Span]:
    """Return where the block of each hash lies. ``span`` is the span of all blocks."""
    numbers = block_numbers(hashes, (span[1] - span[0]) // BYTES_PER_BLOCK)
    starts = span[0] + numbers.astype(np.int64) * BYTES_PER_BLOCK
    return [(start, start + BYTES_PER_BLOCK) for start in starts.tolist()]


def _claim(chunk: Struct) -> _Claim | None:
    metadata: Struct | None = chunk.get(3)
    # The chunk is in another file or encrypted, or has no filter.
    if metadata is None or chunk.get(1) or 8 in chunk or 9 in chunk or 14 not in metadata:
        return None
    start, length, statistics = metadata[14], metadata.get(15), metadata.get(12)
    if not isinstance(start, int) or not isinstance(length, int | None):
        raise InvalidArgument("the place of a filter is not a number")
    return _Claim(start, length, statistics if isinstance(statistics, Struct) else None)


def _without_overlaps(
    spans_by_group: Sequence[_Span | None], leaf: PhysicalLeaf
) -> list[_Span | None]:
    """Return the spans without those that overlap: one of two is in the wrong place."""
    ordered = sorted((span, group) for group, span in enumerate(spans_by_group) if span is not None)
    overlapping: set[int] = set()
    last_stop, last_group = 0, -1
    for (start, stop), group in ordered:
        if start < last_stop:
            overlapping |= {last_group, group}
        if stop > last_stop:
            last_stop, last_group = stop, group
    if overlapping:
        _warn_not_used(f"the filters of row groups {sorted(overlapping)} overlap", leaf)
    return [None if group in overlapping else span for group, span in enumerate(spans_by_group)]


def _warn_not_used(reason: str, leaf: PhysicalLeaf | None = None) -> None:
    column = "" if leaf is None else f" for column {'.'.join(leaf.path)!r}"
    message = f"a Bloom filter embedded in a Parquet file is not used{column}: {reason}"
    warn(IndexNotUsedWarning(message))


def _intersect(functions: Sequence[_Narrow | None]) -> _Narrow | None:
    narrowing = [function for function in functions if function is not None]

    def narrow(mask: np.ndarray) -> np.ndarray:
        for function in narrowing:
            if mask.any():
                mask = function(mask)
        return mask

    return narrow if narrowing else None


def _unite(functions: Sequence[_Narrow | None]) -> _Narrow | None:
    narrowing = [function for function in functions if function is not None]

    def narrow(mask: np.ndarray) -> np.ndarray:
        candidates = np.zeros_like(mask)
        for function in narrowing:
            candidates |= function(mask & ~candidates)
        return candidates

    return narrow if len(narrowing) == len(functions) else None

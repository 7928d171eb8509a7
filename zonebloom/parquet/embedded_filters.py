"""Bloom filters that Parquet's writers embedded in their files, one a column chunk.

    | column chunks ... | header, blocks | header, blocks | ... | footer |
                          ^ bloom_filter_offset of the chunk, in the footer

Of each filter just the blocks are read that values fall in. Nothing is trusted: a filter that is
not where or what it should be, or lacks a bound of its chunk's statistics, is not used.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

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

# Of some row groups, those where a predicate may be true, or false; None: it may be anywhere.
_Bound: TypeAlias = Callable[[np.ndarray], np.ndarray]
_Bounds: TypeAlias = tuple[_Bound | None, _Bound | None]
_Span: TypeAlias = tuple[int, int]
# What reading a malformed footer raises.
_MALFORMED = (
    pa.ArrowException,
    ZoneBloomError,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    LookupError,
)
# With more values a filter is read whole.
_BLOCK_READS = 64


@dataclass(frozen=True, slots=True)
class EmbeddedColumn:
    """A leaf column that has filters: in how many row groups, and the bytes of their blocks."""

    path: tuple[str, ...]
    row_groups: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Claim:
    """What the footer says of one filter; a length is absent in files of older writers."""

    start: int
    length: int | None
    statistics: Struct | None


class EmbeddedFilters:
    def __init__(self, file_bytes: int, read: ReadRanges):
        import pyarrow.parquet as pq

        self._read = read
        self._stop = file_bytes - TAIL_BYTES
        self._footer, tail = read_footer_bytes(file_bytes, read)
        # Read twice: pyarrow's ColumnChunkMetaData ends the process, by an exception nobody
        # catches, on encrypted columns and on statistics of a wrong size.
        self._metadata = pq.ParquetFile(
            pa.BufferReader(PARQUET_MAGIC + self._footer + tail)
        ).metadata
        self._leaves: list[PhysicalLeaf] = []
        try:
            self._leaves = physical_leaves(self._metadata)
        except _MALFORMED as error:
            _not_used(f"its schema cannot be read ({error})")
        named = Counter(leaf.path for leaf in self._leaves)
        # Of two columns with one name there is no telling which is meant.
        self._by_path = {leaf.path: leaf for leaf in self._leaves if named[leaf.path] == 1}
        self._blocks: dict[int, list[_Span | None]] = {}
        self._verified: set[tuple[int, int]] = set()

    def columns(self) -> list[EmbeddedColumn]:
        """The leaf columns that have filters, in file order; reads the headers."""
        columns = []
        for leaf in self._leaves:
            sizes = [span[1] - span[0] for span in self._located(leaf) if span is not None]
            if sizes:
                columns.append(EmbeddedColumn(leaf.path, len(sizes), sum(sizes)))
        return columns

    def candidate_row_groups(self, predicate: Predicate, schema: pa.Schema) -> list[int] | None:
        """Ascending, the row groups a predicate may be true in; None when filters cannot help, and
        none was read."""

        def leaf(node: LeafPredicate) -> _Bounds:
            match node:
                case Constant(value):
                    nowhere = np.zeros_like
                    return None if value is True else nowhere, None if value is False else nowhere
                case Equals(column, values) | IsIn(column, values, False):
                    # A filter says where a value is not; other values may be anywhere.
                    return self._lookup(column, values, schema), None
            return None, None

        # AND is true where all terms are; it is false where any term is. OR: reversed.
        bound, _ = fold_predicate(
            predicate,
            leaf,
            lambda bounds: (_every([t for t, _ in bounds]), _any([f for _, f in bounds])),
            lambda bounds: (_any([t for t, _ in bounds]), _every([f for _, f in bounds])),
            lambda bounds: (bounds[1], bounds[0]),
        )
        if bound is None:
            return None
        kept = bound(np.ones(self._metadata.num_row_groups, dtype=bool))
        return np.flatnonzero(kept).tolist()

    def _lookup(self, column: tuple[str, ...], values: Any, schema: pa.Schema) -> _Bound | None:
        leaf, wanted = self._by_path.get(column), find_leaf_type(schema, column)
        if leaf is None or wanted is None:
            return None
        if not any(claims[leaf.number] for claims in self._claims):
            return None
        hashes = leaf.hashes(wanted, values)
        return None if hashes is None else lambda among: self._may_hold(leaf, hashes, among)

    def _may_hold(self, leaf: PhysicalLeaf, hashes: np.ndarray, among: np.ndarray) -> np.ndarray:
        """Those of some row groups whose filter may hold any hash, and those without filter."""
        if not hashes.size:
            return np.zeros_like(among)
        kept, blocks = among.copy(), self._located(leaf)
        spans = {g: span for g in np.flatnonzero(among).tolist() if (span := blocks[g]) is not None}
        if not spans:
            return kept
        # Of many hashes most blocks are read: those of one filter at a time.
        for groups in [[g] for g in spans] if hashes.size > _BLOCK_READS else [list(spans)]:
            # A filter not yet verified is asked for its witnesses too, in the same read.
            asked = {group: np.append(self._witnesses(leaf, group), hashes) for group in groups}
            ranges = [span for group in groups for span in _blocks_of(spans[group], asked[group])]
            try:
                blocks_read = b"".join(read_merged_ranges(self._read, ranges, 0))
            except (OSError, ZoneBloomError) as error:
                _not_used(f"its filters cannot be read ({error})", leaf)
                continue
            words = np.frombuffer(blocks_read, dtype="<u4").reshape(-1, WORDS_PER_BLOCK)
            answers = blocks_hold(words, np.concatenate([np.empty(0, np.uint64), *asked.values()]))
            ends = np.cumsum([asked[group].size for group in groups])
            for group, of_group in zip(groups, np.split(answers, ends[:-1]), strict=True):
                if self._verify(leaf, group, of_group[: -hashes.size]):
                    kept[group] = of_group[-hashes.size :].any()
        return kept

    def _witnesses(self, leaf: PhysicalLeaf, group: int) -> np.ndarray:
        claim = self._claims[group][leaf.number]
        if claim is None or (leaf.number, group) in self._verified:
            return np.empty(0, dtype=np.uint64)
        return np.array(bound_hashes(claim.statistics, leaf), dtype=np.uint64)

    def _verify(self, leaf: PhysicalLeaf, group: int, answers: np.ndarray) -> bool:
        """Drop a filter that lacks a value its chunk holds."""
        if answers.all():
            self._verified.add((leaf.number, group))
            return True
        self._blocks[leaf.number][group] = None
        _not_used(
            f"the filter of row group {group} lacks a bound of the chunk's own statistics", leaf
        )
        return False

    @cached_property
    def _claims(self) -> list[list[_Claim | None]]:
        """What the footer says of each row group's filters, by leaf."""
        metadata, num_leaves = self._metadata, len(self._metadata.schema)
        try:
            parsed = ThriftReader(self._footer).read_struct()
            claims = [[_claim(chunk) for chunk in group[1]] for group in parsed[4]]
            counts = [len(of_group) for of_group in claims]
            # A signature may follow the metadata in a footer.
            is_same = parsed.stop == metadata.serialized_size
            if not is_same or counts != [num_leaves] * metadata.num_row_groups:
                raise InvalidArgument("pyarrow reads it in another way")
        except _MALFORMED as error:
            _not_used(f"the footer cannot be read ({error})")
            return [[None] * num_leaves] * metadata.num_row_groups
        return claims

    def _located(self, leaf: PhysicalLeaf) -> list[_Span | None]:
        """The blocks of each row group's filter, their headers read and found sound."""
        if leaf.number in self._blocks:
            return self._blocks[leaf.number]
        claims = [of_group[leaf.number] for of_group in self._claims]
        located: list[_Span | None] = [None] * len(claims)
        ranges: dict[int, _Span] = {}
        for group, claim in enumerate(claims):
            if claim is None:
                continue
            stop = self._stop if claim.length is None else claim.start + claim.length
            if len(PARQUET_MAGIC) <= claim.start < stop <= self._stop:
                ranges[group] = claim.start, stop
            else:
                _not_used(f"the filter of row group {group} lies outside the file", leaf)
        wanted = [(start, min(stop, start + MAX_HEADER_BYTES)) for start, stop in ranges.values()]
        try:
            headers = self._read(wanted) if wanted else []
        except (OSError, ZoneBloomError) as error:
            _not_used(f"its filters cannot be read ({error})", leaf)
            headers = []
        for (group, (start, stop)), header in zip(ranges.items(), headers, strict=False):
            try:
                num_bytes, header_bytes = decode_header(header)
            except InvalidArgument as error:
                _not_used(f"row group {group}: {error}", leaf)
                continue
            length = header_bytes + num_bytes
            claim = claims[group]
            if length > stop - start or (claim and claim.length not in (None, length)):
                _not_used(f"the filter of row group {group} is not as long as it claims", leaf)
            else:
                located[group] = start + header_bytes, start + length
        self._blocks[leaf.number] = _without_overlaps(located, leaf)
        return self._blocks[leaf.number]


def _blocks_of(span: _Span, hashes: np.ndarray) -> list[_Span]:
    """Where the block of each of some hashes lies in the filter at a place."""
    numbers = block_numbers(hashes, (span[1] - span[0]) // BYTES_PER_BLOCK)
    starts = span[0] + numbers.astype(np.int64) * BYTES_PER_BLOCK
    return [(start, start + BYTES_PER_BLOCK) for start in starts.tolist()]


def _claim(chunk: Struct) -> _Claim | None:
    metadata: Struct | None = chunk.get(3)
    # In another file, or encrypted.
    if metadata is None or chunk.get(1) or 8 in chunk or 9 in chunk or 14 not in metadata:
        return None
    start, length, statistics = metadata[14], metadata.get(15), metadata.get(12)
    if not isinstance(start, int) or not isinstance(length, int | None):
        raise InvalidArgument("the place of a filter is no number")
    return _Claim(start, length, statistics if isinstance(statistics, Struct) else None)


def _without_overlaps(located: Sequence[_Span | None], leaf: PhysicalLeaf) -> list[_Span | None]:
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
        _not_used(f"the filters of row groups {sorted(shared)} overlap", leaf)
    return [None if group in shared else span for group, span in enumerate(located)]


def _not_used(reason: str, leaf: PhysicalLeaf | None = None) -> None:
    of = "" if leaf is None else f" for column {'.'.join(leaf.path)!r}"
    warnings.warn(
        f"a Bloom filter embedded in a Parquet file is not used{of}: {reason}",
        IndexNotUsedWarning,
        stacklevel=3,
    )


def _every(bounds: Sequence[_Bound | None]) -> _Bound | None:
    known = [bound for bound in bounds if bound is not None]

    def bound(among: np.ndarray) -> np.ndarray:
        for next_bound in known:
            if among.any():
                among = next_bound(among)
        return among

    return bound if known else None


def _any(bounds: Sequence[_Bound | None]) -> _Bound | None:
    known = [bound for bound in bounds if bound is not None]

    def bound(among: np.ndarray) -> np.ndarray:
        kept = np.zeros_like(among)
        for next_bound in known:
            kept |= next_bound(among & ~kept)
        return kept

    return bound if len(known) == len(bounds) else None

"""Query the Bloom filters that writers embed in Parquet files, one for each column chunk.

    | column chunks ... | header, blocks | header, blocks | ... | footer |
                          ^ bloom_filter_offset of the chunk, in the footer

A lookup reads only the blocks of a filter that its hashes fall in. Filters are not trusted: one
that is misplaced or malformed, or lacks a bound of its chunk's statistics, is not used.

Writers hash a value as Parquet stores it, in PLAIN encoding without a length. An int8 has the 4
bytes of an INT32, for example. Literals are converted to the *stored type* of a leaf, the Arrow
type with the same bytes. The filters of a leaf are not used if its stored type is uncertain.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from zonebloom.base.notices import warn
from zonebloom.errors import IndexNotUsedWarning, InvalidArgument, ZoneBloomError
from zonebloom.parquet.file_layout import ReadRanges
from zonebloom.parquet.footer import PARQUET_MAGIC, TAIL_BYTES, read_footer_bytes
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
from zonebloom.values.literal import Literal, hash_bytes, probe, probe_many, to_stored
from zonebloom.values.normal_types import hashed_type
from zonebloom.values.types import is_lossless_cast

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
# The bytes of a value: 0 for any number, -1 for INT96, which has no order and thus no bounds. Each
# FIXED_LEN_BYTE_ARRAY column has its own width.
_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "INT96": -1, "BYTE_ARRAY": 0}
# Field numbers of Statistics in parquet.thrift.
_MAX_VALUE, _MIN_VALUE, _IS_MAX_EXACT, _IS_MIN_EXACT = 5, 6, 7, 8
_UTC = "UTC"
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
class PhysicalLeaf:
    """A leaf column of a file, and how its writer hashed the values."""

    number: int  # the number of its column chunk in each row group
    path: tuple[str, ...]
    # The type as which pyarrow reads the values, or None if the hashed bytes are uncertain.
    arrow_type: pa.DataType | None
    # The type whose bytes are hashed, or None if they are uncertain. Decimals in a
    # FIXED_LEN_BYTE_ARRAY are hashed big-endian.
    stored_type: pa.DataType | None
    physical_type: str
    length: int  # bytes of a FIXED_LEN_BYTE_ARRAY

    def hashes(self, dataset_type: pa.DataType, values: pa.Scalar | pa.Array) -> np.ndarray | None:
        """Return the hashes under which values were inserted, or None if any row may match."""
        if self.arrow_type is None or self.stored_type is None:
            return None
        # Other casts from the file's type to the dataset's may change values.
        if not is_lossless_cast(self.arrow_type, dataset_type):
            return None
        probes = probe if isinstance(values, pa.Scalar) else probe_many
        # A literal must be exact in the type of the dataset and in the stored type.
        dataset_probe = probes(dataset_type, values)  # pyright: ignore[reportArgumentType]
        if dataset_probe.unusable_reason is not None:
            return None
        if not dataset_probe.hashes.size:
            return dataset_probe.hashes
        stored_probe = probes(self.stored_type, values)  # pyright: ignore[reportArgumentType]
        if stored_probe.unusable_reason is not None:
            return None
        if pa.types.is_decimal(self.stored_type) and self.physical_type == "FIXED_LEN_BYTE_ARRAY":
            values = [values] if isinstance(values, pa.Scalar) else values
            return self._decimal_hashes(values, self.stored_type)
        return stored_probe.hashes

    def _decimal_hashes(self, values: Any, stored: pa.DataType) -> np.ndarray | None:
        hashes = set()
        for value in values:
            literal = Literal.from_scalar(value)
            converted = None if literal is None else to_stored(literal, stored)
            if converted is not None and converted.is_exact:
                try:
                    encoded = converted.value.to_bytes(self.length, "big", signed=True)
                    hashes.add(hash_bytes(encoded))
                except OverflowError:
                    return None
        return np.array(sorted(hashes), dtype=np.uint64)


def physical_leaves(metadata: pq.FileMetaData) -> list[PhysicalLeaf]:
    """Return the leaf columns in the order of their chunks.

    Leaves inside lists and maps have no stored type, because their values are not those of rows.
    """
    schema = metadata.schema
    arrow_leaves = list(_walk(schema.to_arrow_schema()))
    if len(arrow_leaves) != len(schema):
        raise ValueError("the leaves of its Arrow schema are not those of its Parquet schema")
    leaves = []
    for number, (path, arrow_type) in enumerate(arrow_leaves):
        column: Any = schema.column(number)
        stored = None
        if arrow_type is None or column.max_repetition_level:
            path, arrow_type = tuple(column.path.split(".")), None
        else:
            if column.path != ".".join(path):
                raise ValueError(f"column {column.path!r} is {'.'.join(path)!r} in Arrow")
            arrow_type = hashed_type(arrow_type)
            stored = _stored_type(column, arrow_type)
        leaves.append(
            PhysicalLeaf(number, path, arrow_type, stored, column.physical_type, column.length)
        )
    return leaves


def _walk(
    fields: Any, parents: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], pa.DataType | None]]:
    """Yield the path and Arrow type of each leaf, with type None inside lists and maps."""
    for field in fields:
        path, kind = (*parents, field.name), hashed_type(field.type)
        if pa.types.is_struct(kind):
            yield from _walk(_children(kind), path)
        elif pa.types.is_nested(kind):
            yield from ((leaf_path, None) for leaf_path, _ in _walk(_children(kind), path))
        else:
            yield path, field.type


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(i) for i in range(kind.num_fields)]


def _stored_type(column: Any, arrow_type: pa.DataType) -> pa.DataType | None:
    """Return the type whose bytes a writer hashes for a leaf, or None if that is uncertain."""
    stored = _annotated_type(column)
    if stored is None or is_lossless_cast(stored, arrow_type):
        return stored
    t = pa.types
    if t.is_integer(stored) and t.is_integer(arrow_type):
        same_sign = t.is_signed_integer(stored) == t.is_signed_integer(arrow_type)
        return stored if same_sign else None
    # Parquet has no durations. They are stored as integers, and only the Arrow schema has the type.
    return arrow_type if stored == pa.int64() and t.is_duration(arrow_type) else None


def _annotated_type(column: Any) -> pa.DataType | None:
    """Return the type by Parquet's annotations, with integers as wide as they are stored."""
    logical = json.loads(column.logical_type.to_json())
    kind, physical = logical["Type"], column.physical_type
    match physical, kind:
        case "INT32", "None":
            return pa.int32()
        case "INT64", "None":
            return pa.int64()
        case "INT32" | "INT64", "Int":
            bits = 32 if physical == "INT32" else 64
            return getattr(pa, f"{'' if logical['isSigned'] else 'u'}int{bits}")()
        case "FLOAT", "None":
            return pa.float32()
        case "DOUBLE", "None":
            return pa.float64()
        case "FIXED_LEN_BYTE_ARRAY", "Float16" if column.length == 2:
            return pa.float16()
        case "INT32", "Date":
            return pa.date32()
        case "INT32", "Time" if logical["timeUnit"] == "milliseconds":
            return pa.time32("ms")
        case "INT64", "Time" if logical["timeUnit"] in ("microseconds", "nanoseconds"):
            return pa.time64(_UNITS[logical["timeUnit"]])
        case "INT64", "Timestamp" if logical["timeUnit"] in _UNITS:
            return pa.timestamp(
                _UNITS[logical["timeUnit"]], _UTC if logical["isAdjustedToUTC"] else None
            )
        case "INT32", "Decimal" if 0 < column.precision <= 9:
            return pa.decimal32(column.precision, column.scale)
        case "INT64", "Decimal" if 0 < column.precision <= 18:
            return pa.decimal64(column.precision, column.scale)
        case "FIXED_LEN_BYTE_ARRAY", "Decimal" if 0 < column.precision <= 76:
            return pa.decimal256(column.precision, column.scale)
        case "FIXED_LEN_BYTE_ARRAY", "None" | "UUID" if column.length > 0:
            return pa.binary(column.length)
        case "BYTE_ARRAY", "String":
            return pa.string()
        case "BYTE_ARRAY", "None":
            return pa.binary()
    # The rest is INT96, BSON, JSON, geometry and more. It includes decimals in BYTE_ARRAY: some
    # writers pad them with leading bytes, so equal numbers may have different hashes.
    return None


def bound_hashes(statistics: Struct | None, leaf: PhysicalLeaf) -> list[int]:
    """Return the hashes of the bounds in a chunk's statistics, which its filter must hold.

    Leave out bounds that may not be values of the chunk: truncated strings, and zeros, whose sign
    may be lost.
    """
    if statistics is None:
        return []
    width = _WIDTHS.get(leaf.physical_type, leaf.length)
    is_float = leaf.physical_type in ("FLOAT", "DOUBLE") or leaf.stored_type == pa.float16()
    hashes = []
    for bound, exact in ((_MAX_VALUE, _IS_MAX_EXACT), (_MIN_VALUE, _IS_MIN_EXACT)):
        value = statistics.get(bound)
        is_exact = statistics.get(exact, bool(width)) is True
        if not is_exact or not isinstance(value, bytes) or width not in (0, len(value)):
            continue
        if not is_float or not _is_zero_or_nan(value):
            hashes.append(hash_bytes(value))
    return hashes


def _is_zero_or_nan(value: bytes) -> bool:
    (number,) = struct.unpack({2: "<e", 4: "<f", 8: "<d"}[len(value)], value)
    return not number or math.isnan(number)


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

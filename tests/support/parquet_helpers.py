"""Parquet files in memory, and checks that compare reads by pages with whole reads of pyarrow."""

from __future__ import annotations

import copy
import io
import random
import tempfile
import time
from collections.abc import Callable, Hashable, Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support.helpers import PLAIN_TYPES, cases

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet.file_layout import FilePages, PageLocations
from zonebloom.parquet.footer import (
    TAIL_BYTES,
    footer_length,
    parse_footer,
    parse_offset_index,
)
from zonebloom.parquet.key_tests import KeyFilter, KeySet
from zonebloom.parquet.leaf_reader import PageTable
from zonebloom.parquet.leaf_type import CODECS, LeafChunk, Undecodable, leaf_types
from zonebloom.parquet.nested_reader import FieldTable
from zonebloom.parquet.nested_schema import field_tree
from zonebloom.parquet.page_headers import walk_pages
from zonebloom.parquet.thrift import ThriftReader
from zonebloom.storage.files import FileIdentity, ReadCounter, is_at_rest
from zonebloom.storage.random_access import copy_pieces
from zonebloom.values.literal import Unanswerable, byte_forms
from zonebloom.values.types import family

# The default decimal context has fewer digits than the widest decimals, which have 76.
_WIDE = Context(prec=80)

Located = Callable[[int, int], PageLocations | None]


def page_bytes(data: bytes) -> int:
    """Return the size of the page at the start of some bytes, with its header."""
    header = ThriftReader(data).read_struct()
    return header.stop + header[3]


class File:
    """A Parquet file in memory; ``requests`` are the byte ranges that were read."""

    has_round_trips = True
    handle: int | None = None
    is_on_disk = False
    coalesce = 4096
    path = "memory"
    identity = FileIdentity(0, 0)

    def __init__(self, data: bytes):
        self.data = data
        self.counter = ReadCounter()
        self.requests: list[tuple[int, int]] = []
        length = footer_length(data[-TAIL_BYTES:], len(data))
        stop = len(data) - TAIL_BYTES
        self.footer: FilePages = parse_footer(data[stop - length : stop], len(data))

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.requests += ranges
        return [self.data[start:stop] for start, stop in ranges]

    def read_pieces(self, offsets: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> int:
        return copy_pieces(self.read, offsets, sizes, out, self.coalesce)

    @property
    def cache_key(self) -> tuple[Hashable, ...] | None:
        return (self.path, self.identity) if self.identity.inode else None

    @property
    def is_at_rest(self) -> bool:
        return is_at_rest(self.identity, time.time_ns())

    def prefetch_pieces(self, offsets: np.ndarray, sizes: np.ndarray) -> None:
        """Do nothing, because the file is in memory."""

    def count_pieces(self, num_bytes: int, start_time: float, max_seconds: float) -> None:
        """Count the bytes that a kernel read."""
        self.counter.add(num_bytes)

    def indexed(self, group: int, leaf: int) -> PageLocations | None:
        """Return the page locations from the OffsetIndex."""
        row_group = self.footer.row_groups[group]
        chunk = row_group.chunks[leaf]
        if not chunk.index_bytes:
            return None
        data = self.data[chunk.index_start : chunk.index_start + chunk.index_bytes]
        return parse_offset_index(data, chunk, row_group.num_rows)

    def walked(self, group: int, leaf: int) -> PageLocations | None:
        """Return the page locations by the page headers."""
        row_group = self.footer.row_groups[group]
        return walk_pages(self.read, row_group.chunks[leaf], row_group.num_rows)

    def nowhere(self, group: int, leaf: int) -> PageLocations | None:
        """Return no locations, so that chunks are read whole."""
        return None

    def rows(
        self, group: int, rows: RowRanges, located: Located | None = None, fields: Any = None
    ) -> dict[int, pa.ChunkedArray]:
        """Return the values of the fields that kernels decode as nested ones."""
        schema = self.footer.schema
        pages = FilePages(schema, self.footer.row_groups, located or self.indexed)
        return rows_by_nested_reader(self, pages, group, rows, fields)

    def leaves(self, group: int, located: Located, fields: Sequence[int]) -> dict[int, LeafChunk]:
        """Return the fields that kernels decode."""
        schema = self.footer.schema
        chunks = {}
        for field in fields:
            numbers = schema.field_leaves[field]
            leaf = leaf_types(schema)[numbers[0]] if len(numbers) == 1 else None
            if len(schema.leaves[numbers[0]].path) > 1:
                leaf = None
            pages = None if leaf is None else located(group, numbers[0])
            if leaf is not None and pages is not None:
                chunk = self.footer.row_groups[group].chunks[numbers[0]]
                if chunk.codec in CODECS:
                    chunks[field] = LeafChunk(leaf, chunk, pages)
        return chunks

    def hits(
        self, chunks: Sequence[LeafChunk], keys: KeySet, rows: RowRanges
    ) -> tuple[np.ndarray, list[pa.Array]]:
        """Return the rows with a key in the first chunk, and all values there, as lookups do.

        Read them from a local file, too, and assert that they are the same.
        """
        results = []
        with tempfile.TemporaryFile() as file:
            file.write(self.data)
            file.flush()
            for handle in (self.handle, file.fileno()):
                opened = copy.copy(self)
                opened.handle = handle
                numbers, _ = PageTable(chunks[:1]).find_rows(opened, keys, False, rows)
                at_keys = RowRanges.from_rows(numbers)
                values = PageTable(chunks).take(opened, at_keys, is_lookup=True)
                results.append((numbers, [array for array in values if array is not None]))
                assert len(results[-1][1]) == len(chunks)
        (numbers, values), (others, other_values) = results
        assert numbers.tolist() == others.tolist()
        for one, other in zip(values, other_values, strict=True):
            assert same(pa.chunked_array([one]), pa.chunked_array([other]))
        return numbers, values

    def rows_by_kernels(
        self, group: int, rows: RowRanges, located: Located, fields: Sequence[int]
    ) -> dict[int, pa.ChunkedArray]:
        """Return the values of the fields that kernels decode."""
        arrays = {}
        for field, column in self.leaves(group, located, fields).items():
            (values,) = PageTable([column]).take(self, rows)
            if values is not None:
                arrays[field] = pa.chunked_array([values])
        return arrays


def rows_by_nested_reader(
    file: Any, pages: FilePages, group: int, rows: RowRanges, fields: Sequence[int] | None = None
) -> dict[int, pa.ChunkedArray]:
    """Return the values of the fields that kernels decode as nested ones."""
    schema = pages.schema
    trees = {}
    for field in range(len(schema.names)) if fields is None else fields:
        tree = field_tree(schema, field)
        chunks = pages.row_groups[group].chunks
        if tree is not None and all(chunks[leaf].codec in CODECS for leaf in tree.leaves):
            trees[str(field)] = tree
    if not trees:
        return {}
    arrays = FieldTable(pages, group, trees).take(file, rows)
    return {int(field): pa.chunked_array([array]) for field, array in arrays.items()}


def written(table: pa.Table, **options: Any) -> bytes:
    """Return a file of pyarrow, with an OffsetIndex and small pages unless options differ."""
    sink = io.BytesIO()
    defaults = {
        "write_page_index": True,
        "data_page_size": 512,
        "write_batch_size": 50,
        "row_group_size": 700,
    }
    pq.write_table(table, sink, **{**defaults, **options})
    return sink.getvalue()


def some_rows(num_rows: int, rng: random.Random, max_ranges: int = 6) -> RowRanges:
    """Return random ranges within a row group, with at least one row."""
    ranges = []
    for _ in range(rng.randint(1, max_ranges)):
        start = rng.randrange(num_rows)
        ranges.append((start, min(num_rows, start + 1 + int(rng.paretovariate(0.5)))))
    return RowRanges(ranges)


def sliced(column: pa.ChunkedArray, rows: RowRanges) -> pa.ChunkedArray:
    pieces = [column.slice(start, stop - start) for start, stop in rows]
    return pa.chunked_array([c for piece in pieces for c in piece.chunks], column.type)


def same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    """Return whether values and types are equal. NaN is equal to NaN."""
    if left.type != right.type or len(left) != len(right):
        return False
    return left.equals(right) or repr(left.to_pylist()) == repr(right.to_pylist())


def check_rows(file: File, whole: pa.Table, group: int, rows: RowRanges, located: Located) -> None:
    """Assert that rows read by pages are those of the whole row group."""
    columns = file.rows(group, rows, located)
    codecs = {chunk.codec for chunk in file.footer.row_groups[group].chunks}
    # Kernels decode everything but Brotli, and Arrow's dictionaries that are not stored as such.
    expected = {i for i, f in enumerate(whole.schema) if "dictionary" not in str(f.type)}
    assert expected <= set(columns) or not codecs <= set(CODECS)
    for field, values in columns.items():
        values.validate(full=True)
        name = whole.column_names[field]
        assert same(values, sliced(whole.column(field), rows)), (name, group, rows)
    fields = range(len(whole.column_names))
    for field, values in file.rows_by_kernels(group, rows, located, fields).items():
        values.validate(full=True)
        expected = sliced(whole.column(field), rows)
        assert same(_decoded(values), _decoded(expected)), (whole.column_names[field], group, rows)
        assert values.type == expected.type


def check_found(
    file: File, whole: pa.Table, group: int, rows: RowRanges, located: Located, rng: random.Random
) -> int:
    """Assert that the keys found are those of the whole row group. Return how many searches ran."""
    count = 0
    fields = range(len(whole.column_names))
    for field, column in file.leaves(group, located, fields).items():
        plain = _decoded(whole.column(field))
        if isinstance(plain.type, pa.BaseExtensionType):
            plain = pa.chunked_array([chunk.storage for chunk in plain.chunks])
        # Python values of other types may be less precise than the column.
        is_float = pa.types.is_floating(plain.type)
        values = plain.to_pylist() if is_float else _codes(plain)
        nulls = rng.random() < 0.5
        # The first search of some pages may find others in the cache.
        for num_keys in rng.sample((0, 1, 1, 5, 70), 5):
            key_rows = [rng.randrange(len(values)) for _ in range(num_keys)]
            key_rows = [row for row in key_rows if values[row] is not None]
            keys = {values[row] for row in key_rows}
            try:
                forms = [
                    form
                    for row in key_rows
                    for form in byte_forms(column.leaf.arrow_type, plain[row])
                ]
                pages, keys_to_find = PageTable([column]), KeySet(column.leaf, forms)
                matches, values_at = pages.find_rows(file, keys_to_find, nulls, rows)
            except (Unanswerable, Undecodable):
                continue
            count += 1
            expected = [
                row
                for start, stop in rows
                for row in range(start, stop)
                if values[row] in keys or (values[row] is None and nulls)
            ]
            case = whole.column_names[field], group, rows, keys, nulls
            assert matches.tolist() == expected, case
            if not nulls:
                found, (values_at_keys,) = file.hits([column], keys_to_find, rows)
                assert found.tolist() == expected, case
                at_matches = sliced(whole.column(field), RowRanges.from_rows(matches))
                assert same(_decoded(values_at_keys), _decoded(at_matches)), case
            if values_at is None:
                assert not expected
            else:
                at_matches = sliced(whole.column(field), RowRanges.from_rows(matches))
                assert same(_decoded(pa.chunked_array([values_at])), _decoded(at_matches)), case
            if key_rows and is_hashed(plain.type):
                key_array = pa.array([plain[row] for row in key_rows], plain.type)
                key_filter = KeyFilter(column.leaf, key_array)
                candidates, _ = pages.find_rows(file, key_filter, nulls, rows)
                extra = set(candidates.tolist()) - set(expected)
                assert candidates.size - len(extra) == len(expected)
                assert len({values[row] for row in extra}) <= 2 + len(set(values)) / 50
    return count


def is_hashed(kind: pa.DataType) -> bool:
    """Return whether many keys of a type are searched with a Bloom filter."""
    return family(kind) in ("integer", "text", "bytes")


def _codes(values: pa.ChunkedArray) -> list[int | None]:
    """Return a number for each value that identifies equal values."""
    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        values = values.cast(pa.large_binary())
    if pa.types.is_decimal32(values.type) or pa.types.is_decimal64(values.type):
        # PyArrow makes no dictionaries of these.
        values = values.cast(pa.decimal128(values.type.precision, values.type.scale))
    return values.combine_chunks().dictionary_encode().indices.to_pylist()


def _decoded(values: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values without their dictionary, as one chunk."""
    if isinstance(values, pa.Array):
        values = pa.chunked_array([values])
    while pa.types.is_dictionary(values.type):
        values = pa.chunked_array(
            [chunk.dictionary_decode() for chunk in values.chunks], values.type.value_type
        )
    return values


def check_file(
    data: bytes, seed: int = 0, tries: int = 0, same_groups: bytes | None = None
) -> File:
    """Check random rows of each row group, with each way to locate pages.

    Without ``tries`` rows are chosen once, or five times if thorough.

    ``same_groups`` is a file with the same rows and row groups for pyarrow to read, if it cannot
    read ``data`` itself.
    """
    rng = random.Random(seed)
    file = File(data)
    parquet = pq.ParquetFile(io.BytesIO(same_groups or data))
    assert file.footer.num_rows == parquet.metadata.num_rows
    for number, group in enumerate(file.footer.row_groups):
        if not group.num_rows:
            continue
        whole = parquet.read_row_group(number)
        everything = RowRanges([(0, group.num_rows)])
        many = RowRanges([(i, i + 1) for i in range(0, group.num_rows, 3)])
        for located in (file.indexed, file.walked, file.nowhere):
            chosen = [some_rows(group.num_rows, rng) for _ in range(tries or cases(5, quick=1))]
            for rows in [everything, many, *chosen]:
                check_rows(file, whole, number, rows, located)
                check_found(file, whole, number, rows, located, rng)
    return file


SCALARS: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in [
        *PLAIN_TYPES,
        pa.bool_(),
        pa.decimal128(9, 2),
        pa.decimal128(18, 2),
        pa.decimal256(70, 5),
        pa.uuid(),
        pa.null(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
        pa.dictionary(pa.int16(), pa.int64()),
    ]
}
NESTED: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in [
        pa.list_(pa.int64()),
        pa.list_(pa.string()),
        pa.large_list(pa.float32()),
        pa.list_(pa.int32(), 3),
        pa.list_(pa.field("item", pa.bool_(), nullable=False)),
        pa.list_(pa.list_(pa.int16())),
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.int32(), pa.list_(pa.string())),
        pa.struct([("a", pa.int32()), ("b", pa.int32())]),
        # The leaves have different widths, so their pages end at different rows.
        pa.struct([("a", pa.int8()), ("b", pa.string()), ("c", pa.decimal128(38, 2))]),
        pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())])),
        pa.struct([("a", pa.list_(pa.int32())), ("b", pa.struct([("c", pa.string())]))]),
    ]
}
TYPES = {**SCALARS, **NESTED}


def sample(kind: pa.DataType, rows: int, rng: random.Random, nulls: float = 0.15) -> pa.Array:
    """Return random values of a type. A share of them is null, and few or many are distinct."""
    if isinstance(kind, pa.UuidType):
        return pa.ExtensionArray.from_storage(kind, sample(pa.binary(16), rows, rng, nulls))
    if pa.types.is_dictionary(kind):
        values = sample(kind.value_type, 20, rng, 0).unique()
        indices = [
            None if rng.random() < nulls else rng.randrange(len(values)) for _ in range(rows)
        ]
        return pa.DictionaryArray.from_arrays(pa.array(indices, kind.index_type), values)
    values = [random_value(pa.field("", kind), rng, nulls) for _ in range(rows)]
    if pa.types.is_nested(kind) and "dictionary" in str(kind):
        return pa.array(values, pa.list_(kind.value_type.value_type)).cast(kind)
    return pa.array(values, kind)


def random_value(field: pa.Field, rng: random.Random, nulls: float, length: int = 4) -> Any:
    """Return a value of a field. Lists have up to ``length`` items."""
    is_type, kind = pa.types, field.type
    if is_type.is_null(kind) or (field.nullable and rng.random() < nulls):
        return None
    if is_type.is_struct(kind):
        return {child.name: random_value(child, rng, nulls, length) for child in kind}
    size = rng.randint(0, length)
    if is_type.is_map(kind):
        keys = {random_value(kind.key_field, rng, 0, length) for _ in range(size)}
        return [(key, random_value(kind.item_field, rng, nulls, length)) for key in keys]
    if is_type.is_fixed_size_list(kind):
        size = kind.list_size
    if is_type.is_nested(kind):
        item = kind.value_field
        if is_type.is_dictionary(item.type):
            item = item.with_type(item.type.value_type)
        return [random_value(item, rng, nulls, length) for _ in range(size)]
    if is_type.is_boolean(kind):
        return rng.random() < 0.5
    if is_type.is_floating(kind):
        number = rng.choice([rng.uniform(-100, 100), float("nan"), -0.0, float("inf")])
        return np.float16(number) if is_type.is_float16(kind) else number
    if is_type.is_decimal(kind):
        return Decimal(rng.randrange(10**kind.precision)).scaleb(-kind.scale, _WIDE)
    if is_type.is_fixed_size_binary(kind):
        return rng.randbytes(kind.byte_width)
    if "string" in str(kind):
        return "".join(rng.choices("ab0é€😀", k=rng.randrange(12)))
    if "binary" in str(kind):
        return rng.randbytes(rng.randrange(20))
    if is_type.is_date(kind):
        return rng.randrange(20_000) * (86_400_000 if is_type.is_date64(kind) else 1)
    if is_type.is_time(kind):
        # A time of day in whole seconds ends at 86,400.
        return rng.randrange(86_400 if str(kind) == "time32[s]" else 86_400_000)
    bits = min(kind.bit_width - 1, rng.choice([2, 4, 12, 40]))
    return rng.randrange(1 << bits)

"""The ``bloomfilter`` table: one row a zone, in Lance's schema, as one Arrow IPC file.

    fragment_id  zone_start  zone_length  has_null  bloom_filter_data
    uint64       uint64      uint64       bool      binary              none nullable

Schema metadata: ``bloomfilter_item`` (rows a zone) and ``bloomfilter_probability``. The
file is uncompressed and read whole: a lookup touches every filter, and a mapped file that
is cut meanwhile would end the process. Each record batch holds a few megabytes, so no binary
column comes near 2 GiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from zonebloom.catalog.folder import read_file
from zonebloom.errors import CorruptIndex
from zonebloom.sbbf.sizing import BYTES_PER_BLOCK, MAX_LOG2_BYTES, WORDS_PER_BLOCK

ITEM_KEY = b"bloomfilter_item"
PROBABILITY_KEY = b"bloomfilter_probability"

FIELDS = pa.schema(
    [
        pa.field("fragment_id", pa.uint64(), nullable=False),
        pa.field("zone_start", pa.uint64(), nullable=False),
        pa.field("zone_length", pa.uint64(), nullable=False),
        pa.field("has_null", pa.bool_(), nullable=False),
        pa.field("bloom_filter_data", pa.binary(), nullable=False),
    ]
)

# Above this a batch's filters would not fit the 32-bit offsets of a binary column.
_MAX_BATCH_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Zones:
    """Consecutive zones of one fragment.

    Attributes
    ----------
    starts, lengths : uint64 array, shape (n,)
        Rows of each zone, as offsets in the fragment.
    has_null : bool array, shape (n,)
    filters : uint32 array, shape (n, words)
    """

    starts: np.ndarray
    lengths: np.ndarray
    has_null: np.ndarray
    filters: np.ndarray

    def __len__(self) -> int:
        return self.starts.size

    def slice(self, start: int, stop: int) -> Zones:
        """Some of the zones, sharing memory."""
        part = slice(start, stop)
        return Zones(self.starts[part], self.lengths[part], self.has_null[part], self.filters[part])


def table_schema(number_of_items: int, probability: float) -> pa.Schema:
    """The table's schema with its two metadata keys, written as Lance writes them."""
    # Lance writes the shortest decimal that reads back, and never an exponent.
    decimal = format(Decimal(repr(float(probability))), "f")
    return FIELDS.with_metadata(
        {ITEM_KEY: str(number_of_items).encode(), PROBABILITY_KEY: decimal.encode()}
    )


def to_batch(
    fragment_id: int, zones: Zones, schema: pa.Schema, fold_to: float | None = None
) -> pa.RecordBatch:
    """Lay out zones of one fragment as rows of the table.

    The filters are not copied, but where ``fold_to`` is given: each is halved as often as keeps
    its false positive probability, as filled, at that or below.
    """
    count = len(zones)
    filters = np.ascontiguousarray(zones.filters)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(filters.strides[0])
    if fold_to is not None:
        filters, offsets = _folded(filters, fold_to)
    data = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(filters)]
    )
    columns = [
        pa.array(np.full(count, fragment_id, dtype=np.uint64)),
        pa.array(zones.starts),
        pa.array(zones.lengths),
        pa.array(zones.has_null),
        data,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _folded(filters: np.ndarray, probability: float) -> tuple[np.ndarray, np.ndarray]:
    """Filters folded, one after another, and where each begins, bytes."""
    from zonebloom.sbbf import blocks

    kept = []
    for words in filters:
        while (
            words.size % (2 * WORDS_PER_BLOCK) == 0
            and words.size
            and blocks.folded_fpp(words) <= probability
        ):
            half = np.empty(words.size // 2, dtype=np.uint32)
            blocks.fold(words, half)
            words = half
        kept.append(words)
    sizes = np.array([words.nbytes for words in kept], dtype=np.int32)
    return np.concatenate(kept), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


class _HashingSink:
    """A file that keeps a checksum and a size of what passes through it."""

    def __init__(self, native: pa.NativeFile):
        self._native = native
        self.checksum = xxhash.xxh3_64()
        self.size = 0

    def write(self, data: Any) -> int:
        self.checksum.update(data)
        self._native.write(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self._native.flush()

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        self._native.close()

    @property
    def closed(self) -> bool:
        return self._native.closed

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """What was written: enough to find damage later."""

    num_bytes: int
    checksum: str
    num_zones: int


class TableWriter:
    """Write a table zone run by zone run; memory is one run's."""

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        path: str,
        number_of_items: int,
        probability: float,
        fold: bool = False,
    ):
        self._fold_to = probability if fold else None
        self._schema = table_schema(number_of_items, probability)
        self._sink = _HashingSink(filesystem.open_output_stream(path))
        self._file = pa.PythonFile(self._sink, mode="w")
        self._writer = pa.ipc.new_file(self._file, self._schema)
        self._num_zones = 0

    def write(self, fragment_id: int, zones: Zones) -> None:
        """Append zones of one fragment."""
        rows = max(1, _MAX_BATCH_BYTES // zones.filters.strides[0])
        for at in range(0, len(zones), rows):
            part = slice(at, at + rows)
            piece = Zones(
                zones.starts[part], zones.lengths[part], zones.has_null[part], zones.filters[part]
            )
            self._writer.write_batch(to_batch(fragment_id, piece, self._schema, self._fold_to))
        self._num_zones += len(zones)

    def close(self) -> WrittenTable:
        """Finish the file."""
        self._writer.close()
        self._file.close()
        self._sink.close()
        return WrittenTable(self._sink.size, self._sink.checksum.hexdigest(), self._num_zones)

    def abort(self) -> None:
        """Close what is open after a failure; the file is not a table."""
        self._sink.close()


class ZoneTable:
    """A table as read: arrays of one entry a zone over the bytes of its file.

    Attributes
    ----------
    fragment_ids, starts, lengths : uint64 array, shape (zones,)
    has_null : bool array, shape (zones,)
    words : uint32 array
        The whole file.
    first_words, num_blocks : uint64 array, shape (zones,)
        Where each zone's filter begins in ``words``, and its number of blocks.
    number_of_items : int
    probability : float
    num_bytes : int
        Size of the file.
    """

    __slots__ = (
        "first_words",
        "fragment_ids",
        "has_null",
        "lengths",
        "num_blocks",
        "num_bytes",
        "number_of_items",
        "probability",
        "starts",
        "words",
    )

    fragment_ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    has_null: np.ndarray
    words: np.ndarray
    first_words: np.ndarray
    num_blocks: np.ndarray
    number_of_items: int
    probability: float
    num_bytes: int

    def __init__(self, buffer: pa.Buffer, where: str):
        """Read a table from its file's bytes."""
        try:
            batches = list(_batches(buffer))
            _fill(self, buffer, batches)
        except (pa.ArrowException, ValueError, KeyError, OSError) as error:
            raise CorruptIndex(
                f"{where} is not a bloomfilter table ({error}); build the index again"
            ) from None

    def __len__(self) -> int:
        return self.starts.size

    def filter_words(self, zone: int) -> np.ndarray:
        """The words of one zone's filter, shape ``(8 z,)``."""
        first = int(self.first_words[zone])
        return self.words[first : first + int(self.num_blocks[zone]) * WORDS_PER_BLOCK]

    def to_table(self) -> pa.Table:
        """The five columns, as an Arrow table."""
        filters = [self.filter_words(zone).tobytes() for zone in range(len(self))]
        return pa.Table.from_arrays(
            [
                pa.array(self.fragment_ids),
                pa.array(self.starts),
                pa.array(self.lengths),
                pa.array(self.has_null),
                pa.array(filters, pa.binary()),
            ],
            schema=table_schema(self.number_of_items, self.probability),
        )


def _batches(buffer: pa.Buffer) -> Iterator[pa.RecordBatch]:
    reader = pa.ipc.open_file(buffer)
    for i in range(reader.num_record_batches):
        yield reader.get_batch(i)


def _fill(table: ZoneTable, buffer: pa.Buffer, batches: list[pa.RecordBatch]) -> None:
    schema = pa.ipc.open_file(buffer).schema
    if not schema.remove_metadata().equals(FIELDS):
        raise ValueError(f"its columns are {', '.join(schema.names)}")
    metadata = schema.metadata or {}
    table.number_of_items = int(metadata[ITEM_KEY])
    table.probability = float(metadata[PROBABILITY_KEY])
    table.num_bytes = buffer.size
    table.words = np.frombuffer(buffer, dtype=np.uint32, count=buffer.size // 4)
    table.words.flags.writeable = False

    parts: list[list[np.ndarray]] = [[], [], [], [], [], []]
    for batch in batches:
        batch.validate(full=True)
        if any(column.null_count for column in batch.columns):
            raise ValueError("it holds nulls")
        filters = batch.column("bloom_filter_data")
        offsets = np.frombuffer(
            filters.buffers()[1], dtype=np.int32, count=filters.offset + len(filters) + 1
        )[filters.offset :].astype(np.int64)
        data = filters.buffers()[2]
        base = (data.address if data is not None else buffer.address) - buffer.address
        sizes = np.diff(offsets)
        if (
            (sizes <= 0).any()
            or (sizes % BYTES_PER_BLOCK).any()
            or (sizes > 1 << MAX_LOG2_BYTES).any()
        ):
            raise ValueError("it holds a filter that is not whole blocks")
        at = base + offsets[:-1]
        if (at % 4).any() or (at < 0).any() or (at + sizes > buffer.size).any():
            raise ValueError("it holds a filter outside its file")
        for part, values in zip(
            parts,
            (
                batch.column("fragment_id").to_numpy(),
                batch.column("zone_start").to_numpy(),
                batch.column("zone_length").to_numpy(),
                batch.column("has_null").to_numpy(zero_copy_only=False),
                (at // 4).astype(np.uint64),
                (sizes // BYTES_PER_BLOCK).astype(np.uint64),
            ),
            strict=True,
        ):
            part.append(values)
    dtypes = (np.uint64, np.uint64, np.uint64, np.bool_, np.uint64, np.uint64)
    (
        table.fragment_ids,
        table.starts,
        table.lengths,
        table.has_null,
        table.first_words,
        table.num_blocks,
    ) = (
        np.concatenate(part) if part else np.empty(0, dtype=dtype)
        for part, dtype in zip(parts, dtypes, strict=True)
    )
    # Compared without a sum, which could wrap.
    limit = np.uint64(1 << 32)
    if (table.lengths > limit).any() or (table.starts > limit - table.lengths).any():
        raise ValueError("it holds a zone past 2**32 rows")


def read_table(
    filesystem: pafs.FileSystem, path: str, num_bytes: int, checksum: str | None
) -> ZoneTable:
    """Open a table; the parameters are those of `read_file`."""
    return ZoneTable(read_file(filesystem, path, num_bytes, checksum), path)

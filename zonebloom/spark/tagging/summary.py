"""One pass over many keys: the filter of them all, and which fragments may hold any.

Each Spark task fills a filter of the size all keys need and counts its keys in every fragment's
key range. Filters are OR-ed: on the driver where they are few and small, else in Spark, so that
the driver takes in one filter whatever the number of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf

from zonebloom.spark.tagging.intervals import KeyRanges, count_in_all
from zonebloom.spark.tagging.key_filter import filter_words, hash_rows, insert_rows
from zonebloom.spark.tagging.keys import KeyColumns
from zonebloom.spark.workers.sealed import Sealed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHUNK_WORDS = 1 << 16
# What the driver takes in at most; spark.driver.maxResultSize is 1 GiB by default.
_COLLECTED_BYTES = 1 << 27
_SCHEMA = pa.schema(
    [("chunk", pa.int32()), ("words", pa.binary()), ("counts", pa.list_(pa.int64()))]
)
_DDL = "chunk int, words binary, counts array<bigint>"


@dataclass(frozen=True)
class Fragments:
    """What is known of fragments before any is read.

    Attributes
    ----------
    count : int
    ranges : tuple of KeyRanges or None
        One for each key column; None where nothing is known.
    groups : int64 array, shape (count,), or None
        Number of the partition of each fragment, where keys carry partition columns.
    partitions : uint64 array
        Hashes of the partitions' values, by number.
    by_path : tuple of int
        Which key columns the paths give.
    """

    count: int
    ranges: tuple[KeyRanges | None, ...]
    groups: np.ndarray | None = None
    partitions: np.ndarray | None = None
    by_path: tuple[int, ...] = ()

    def count_keys(self, columns: Sequence[pa.Array], types: Sequence[pa.DataType]) -> np.ndarray:
        """At most how many of some keys each fragment holds, shape ``(count,)``."""
        if self.groups is None or self.partitions is None:
            return count_in_all(self.ranges, columns, self.count)
        found = np.zeros(self.count, dtype=np.int64)
        hashed = hash_rows([columns[i] for i in self.by_path], [types[i] for i in self.by_path])
        order = np.argsort(hashed.hashes, kind="stable")
        if hashed.valid is not None:
            order = order[hashed.valid[order]]
        ordered = hashed.hashes[order]
        starts = np.searchsorted(ordered, self.partitions, "left")
        stops = np.searchsorted(ordered, self.partitions, "right")
        for number in np.flatnonzero(stops > starts).tolist():
            here = pa.array(order[starts[number] : stops[number]])
            at = np.flatnonzero(self.groups == number)
            ranges = [None if each is None else each.of(at) for each in self.ranges]
            found[at] = count_in_all(ranges, [each.take(here) for each in columns], at.size)
        return found


@dataclass(frozen=True)
class Summary:
    """What one pass over keys found.

    Attributes
    ----------
    num_keys : int
    words : uint32 array
        A filter of all keys without a null.
    counts : int64 array
        At most how many keys each fragment holds.
    """

    num_keys: int
    words: np.ndarray
    counts: np.ndarray


def summarize(frame: DataFrame, columns: KeyColumns, fragments: Fragments) -> Summary:
    """Pass over the keys of a frame."""
    part = frame.select(sf.spark_partition_id().alias("part"))
    row: Any = part.agg(sf.count(sf.lit(1)), sf.max("part")).first()
    num_keys, num_tasks = int(row[0]), (row[1] or 0) + 1
    num_words = filter_words(num_keys)
    work = _summarizer(num_words, columns.schema.types, fragments)
    parts = frame.select(*columns.probes).mapInArrow(work, _DDL)
    if num_words * 4 * num_tasks > _COLLECTED_BYTES:
        parts = parts.groupBy("chunk").applyInArrow(_merged, _DDL)
    words = np.zeros(num_words, dtype=np.uint32)
    counts = np.zeros(fragments.count, dtype=np.int64)
    for part in parts.toLocalIterator() if num_words * 4 > _COLLECTED_BYTES else parts.collect():
        if part.words is not None:
            found = np.frombuffer(part.words, dtype=np.uint32)
            first = part.chunk * _CHUNK_WORDS
            words[first : first + found.size] |= found
        if part.counts is not None:
            counts += np.array(part.counts, dtype=np.int64)
    return Summary(num_keys, words, counts)


def summary_of(table: pa.Table, columns: KeyColumns, fragments: Fragments) -> Summary:
    """The same of keys that are here."""
    words = np.zeros(filter_words(table.num_rows), dtype=np.uint32)
    arrays, types = [column.combine_chunks() for column in table.columns], columns.schema.types
    hashed = hash_rows(arrays, types)
    insert_rows(words, hashed)
    if hashed.valid is not None:
        arrays = [each.filter(pa.array(hashed.valid)) for each in arrays]
    return Summary(table.num_rows, words, fragments.count_keys(arrays, types))


def _summarizer(
    num_words: int, types: Sequence[pa.DataType], fragments: Fragments
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # On a worker this is both.
    sent: Any = Sealed((list(types), fragments))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        types, fragments = sent
        words = np.zeros(num_words, dtype=np.uint32)
        counts = np.zeros(fragments.count, dtype=np.int64)
        for batch in batches:
            insert_rows(words, hash_rows(batch.columns, types))
            counts += fragments.count_keys(batch.columns, types)
        for number, at in enumerate(range(0, num_words, _CHUNK_WORDS)):
            chunk = words[at : at + _CHUNK_WORDS]
            if chunk.any():
                yield _row(number, chunk.tobytes(), None)
        if counts.any():
            yield _row(-1, None, counts.tolist())

    return work


def _merged(table: pa.Table) -> pa.Table:
    """Chunks of one place OR-ed, counts added up."""
    number = table.column("chunk")[0].as_py()
    if number < 0:
        counts = np.sum(table.column("counts").to_pylist(), axis=0)
        return pa.Table.from_batches([_row(number, None, counts.tolist())])
    parts = [np.frombuffer(each.as_buffer(), np.uint32) for each in table.column("words")]
    return pa.Table.from_batches([_row(number, np.bitwise_or.reduce(parts).tobytes(), None)])


def _row(chunk: int, words: bytes | None, counts: list[int] | None) -> pa.RecordBatch:
    row = {"chunk": chunk, "words": words, "counts": counts}
    return pa.RecordBatch.from_pylist([row], schema=_SCHEMA)

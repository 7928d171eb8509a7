"""The index kind HASH: what the hash index does for each part of the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zonebloom.catalog.model import Segment
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex
from zonebloom.index.base_kind import IndexKind, require_tables
from zonebloom.index.hash.parameters import HashParameters
from zonebloom.index.table import IndexTable, WrittenTable

if TYPE_CHECKING:
    from zonebloom.index.hash.table import HashTable
    from zonebloom.index.hash.writer import HashSegmentWriter

_SAMPLED_KEYS = 10_000


class HashKind(IndexKind):
    """The hash index."""

    name = "HASH"
    file_name = "hash.buckets"
    parameters_class = HashParameters
    is_read_in_parts = True
    finds_few_zones = True

    def create_writer(
        self,
        catalog: Catalog,
        path: str,
        parameters: Mapping[str, Any],
        num_writers: int,
        column_type: pa.DataType,
    ) -> HashSegmentWriter:
        from zonebloom.index.hash.writer import HashSegmentWriter

        return HashSegmentWriter(
            catalog, catalog.decrypted_store, path, HashParameters(**parameters), num_writers
        )

    def _open(
        self,
        catalog: Catalog,
        segment: Segment,
        path: str,
        report: Callable[[CorruptIndex], None] | None,
    ) -> HashTable:
        from zonebloom.index.hash.table import HashTable

        return HashTable(
            catalog.decrypted_store, path, segment.num_bytes, segment.checksum, report=report
        )

    def merge(self, catalog: Catalog, path: str, tables: Sequence[IndexTable]) -> WrittenTable:
        from zonebloom.index.hash.writer import merge_hash_tables

        return merge_hash_tables(_require_hash_tables(tables), catalog, path)

    def statistics(
        self, parameters: Mapping[str, Any], tables: Sequence[IndexTable]
    ) -> dict[str, Any]:
        hash_tables = _require_hash_tables(tables)
        heads = [table.head for table in hash_tables]
        num_bytes = sum(table.num_bytes for table in tables)
        num_rows = sum(int(table.runs.num_rows.sum()) for table in tables)
        num_slots = sum(head.shape.num_blocks for head in heads)
        return {
            "num_entries": sum(head.num_entries for head in heads),
            "num_postings": sum(head.num_postings for head in heads),
            "bits_per_row": num_bytes * 8 / num_rows if num_rows else 0.0,
            "block_bytes_mean": sum(head.shape.num_blocks * head.slot_bytes for head in heads)
            / max(num_slots, 1),
            "estimated_false_zones": sum(
                head.num_pairs * 2.0**-head.shape.hash_bits for head in heads
            ),
            "measured_false_zones": _measure_false_zones(hash_tables),
        }


def _require_hash_tables(tables: Sequence[IndexTable]) -> list[HashTable]:
    from zonebloom.index.hash.table import HashTable

    return require_tables(tables, HashTable, "the index is not a hash index; give one of kind HASH")


def _measure_false_zones(tables: Sequence[HashTable]) -> float:
    """Return how many zones all tables together return for a random hash, on average."""
    hashes = np.random.default_rng(0).integers(0, 1 << 64, _SAMPLED_KEYS, dtype=np.uint64)
    num_zones = sum(zones.size for table in tables for _, zones in table.pairs(hashes))
    return num_zones / _SAMPLED_KEYS


HASH = HashKind()

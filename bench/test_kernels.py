"""Measure kernels on one core: filters compared with `np.add`, and pages compared with pyarrow."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow.fs import LocalFileSystem

from zonebloom.base.row_ranges import RowRanges
from zonebloom.index.zone_bloom.rows import ZoneParameters
from zonebloom.index.zone_bloom.train import ZoneTrainer
from zonebloom.parquet.footer import read_footer
from zonebloom.parquet.key_tests import KeySet
from zonebloom.parquet.leaf_reader import PageTable
from zonebloom.parquet.leaf_type import LeafChunk, leaf_types
from zonebloom.parquet.whole_row_groups import WholeRowGroups
from zonebloom.sbbf import blocks, xxh64
from zonebloom.sbbf.hashing import hash_in_batches
from zonebloom.storage.files import ReadCounter, identity_from_status
from zonebloom.storage.random_access import FragmentFile
from zonebloom.values.literal import byte_forms

ROWS = 1 << 20
RANDOM = np.random.default_rng(7)
VALUES = RANDOM.integers(0, 2**64, ROWS, dtype=np.uint64)
OTHER = RANDOM.integers(0, 2**64, ROWS, dtype=np.uint64)
OUT = np.empty(ROWS, dtype=np.uint64)
FLOOR = {"numpy add": lambda: np.add(VALUES, OTHER, out=OUT)}
HASHES = np.empty(ROWS, dtype=np.uint64)
xxh64.hash_width_8(VALUES, HASHES)


def test_hash_and_insert_int64(versus):
    """Insert into filters of 32 KiB, one per zone of 8192 rows, as a build does."""
    array = pa.array(VALUES)

    def build() -> None:
        trainer = ZoneTrainer(ZoneParameters())
        for hashes in hash_in_batches(array):
            list(trainer.add(hashes))
        list(trainer.finish())

    versus(build, FLOOR, rounds=20)


@pytest.mark.parametrize("zones", [2_441])
def test_one_key_in_all_zones(versus, zones):
    """Check one key in every zone of 20 M rows, compared with NumPy doing the same."""
    from zonebloom.sbbf.lookup import check_one

    words = np.zeros(zones * 8192, dtype=np.uint32)
    first = np.arange(zones, dtype=np.uint64) * np.uint64(8192)
    size = np.full(zones, 1024, dtype=np.uint64)
    key = HASHES[:1]

    def kernel() -> None:
        blocks.check_filters(words, first, size, key, np.zeros(zones, dtype=bool))

    versus(kernel, {"numpy": lambda: check_one(words, first, size, key[0])}, rounds=200)


@pytest.mark.parametrize("column", ["id", "uuid"])
def test_one_zone_read_and_tested(versus, paged, column):
    """Find a key in 8192 rows of a column, compared with pyarrow decoding the row group."""
    path = str(min(paged.glob("*.parquet")))
    identity = identity_from_status(os.stat(path))
    rows = RowRanges([(16_384, 24_576)])
    with FragmentFile(LocalFileSystem(), path, identity, ReadCounter()) as file:
        pages = read_footer(file.num_bytes, file.read, with_pages=True)
        field = pages.schema.names.index(column)
        (number,) = pages.schema.field_leaves[field]
        leaf, locations = leaf_types(pages.schema)[field], pages.locations(0, number)
        assert leaf is not None and locations is not None
        table = PageTable([LeafChunk(leaf, pages.row_groups[0].chunks[number], locations)])

        whole = WholeRowGroups(file, None, None)

        def find_with_pyarrow() -> np.ndarray:
            values = whole.read(0, [column], rows)[column]
            return np.flatnonzero(pc.equal(values, key).to_numpy())

        values = whole.read(0, [column], rows)[column]
        key = values[5_000]
        keys = KeySet(leaf, byte_forms(leaf.arrow_type, key))

        def find_with_kernels() -> np.ndarray:
            return table.find_rows(file, keys, nulls=False, rows=rows)[0]

        assert find_with_kernels().tolist() == (find_with_pyarrow() + 16_384).tolist() == [21_384]
        versus(find_with_kernels, {"pyarrow, whole row group": find_with_pyarrow}, rounds=500)

"""`LeafReader` keeps the values that `find_rows` found for a `take` of the same rows."""

from __future__ import annotations

import pyarrow as pa
from parquet.parquet_helpers import File, written

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet.key_set import KeySet
from zonebloom.parquet.leaf_reader import _MAX_CACHED_FINDS, LeafReader, PageTable

GROUP_ROWS = 20


def test_a_search_that_is_repeated_is_forgotten_last():
    num_groups = _MAX_CACHED_FINDS + 1
    values = pa.array(range(num_groups * GROUP_ROWS), pa.int64())
    table = pa.table({"id": values})
    file = File(written(table, row_group_size=GROUP_ROWS, use_dictionary=False))
    reader = LeafReader(file)
    columns = [file.leaves(group, file.indexed, [0])[0] for group in range(num_groups)]

    def find_key(group, row):
        """Search one key in a row group, where it is in the given row."""
        key_bytes = (group * GROUP_ROWS + row).to_bytes(8, "little")
        keys = KeySet(columns[group].leaf, [key_bytes])
        every_row = RowRanges([(0, GROUP_ROWS)])
        matches = reader.find_rows(PageTable([columns[group]]), keys, nulls=False, rows=every_row)
        assert matches.tolist() == [row]

    *cached_groups, last_group = range(num_groups)
    for group in cached_groups:
        find_key(group, row=3)
    find_key(cached_groups[0], row=7)
    # The cache is full, so this search removes the oldest result, which is that of group 1.
    find_key(last_group, row=3)

    def take(group, row):
        """Return a value, and the number of requests to the file."""
        num_requests = len(file.requests)
        (taken,) = reader.take(PageTable([columns[group]]), RowRanges([(row, row + 1)]))
        return taken.to_pylist(), len(file.requests) - num_requests

    assert take(cached_groups[0], row=7) == ([7], 0)
    assert take(last_group, row=3) == ([last_group * GROUP_ROWS + 3], 0)
    assert take(cached_groups[1], row=3) == ([GROUP_ROWS + 3], 1)
    for group in cached_groups[2:]:
        assert take(group, row=3) == ([group * GROUP_ROWS + 3], 0)

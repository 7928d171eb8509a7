"""Test how often `ParquetRows` reads the values that a search for keys has found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from zonebloom.base.row_ranges import RowRanges
from zonebloom.parquet.key_tests import KeyTests
from zonebloom.predicates.ast import And, Equals, Or, Predicate
from zonebloom.sources.parquet_rows import KnownValues, ParquetRows
from zonebloom.storage.files import ReadCounter, identities
from zonebloom.storage.random_access import FragmentFile

ROWS, GROUP = 4000, 1000
LOCAL = pafs.LocalFileSystem()
TABLE = pa.table(
    {
        "id": range(ROWS),
        "tens": [row // 10 for row in range(ROWS)],
        "text": [None if row % 7 == 0 else f"text {row}" for row in range(ROWS)],
        "color": [f"color {row % 3}" for row in range(ROWS)],
    }
)


def equals(name: str, value: object) -> Equals:
    return Equals((name,), pa.scalar(value))


@contextmanager
def opened(tmp_path: Path) -> Iterator[tuple[ParquetRows, ReadCounter]]:
    """Yield a reader of a file with several row groups and pages, and the counter of its reads."""
    path = str(tmp_path / "0.parquet")
    options = {"write_page_index": True, "max_rows_per_page": 100, "use_dictionary": ["color"]}
    pq.write_table(TABLE, path, row_group_size=GROUP, **options)
    (identity,) = identities(LOCAL, [path])
    assert identity is not None
    counter = ReadCounter()
    with FragmentFile(LOCAL, path, identity, counter) as file:
        yield ParquetRows(file, None, TABLE.schema, {}), counter


def find(
    reader: ParquetRows, group: int, predicate: Predicate
) -> tuple[list[int], RowRanges, KnownValues]:
    """Return the matches in a row group as a list and as ranges, and the values that are known."""
    known: KnownValues = {}
    every_row = RowRanges([(0, GROUP)])
    rows, is_exact = reader.narrow_rows(group, KeyTests(predicate), every_row, known)
    assert is_exact
    return rows.rows().tolist(), rows, known


@pytest.mark.parametrize(
    "name, value",
    [("id", 2345), ("tens", 234), ("text", "text 2345"), ("color", "color 1")],
)
def test_values_that_a_search_found_are_not_read_again(tmp_path, name, value):
    with opened(tmp_path) as (reader, counter):
        for group in range(ROWS // GROUP):
            part = TABLE.slice(group * GROUP, GROUP)
            matches, rows, known = find(reader, group, equals(name, value))
            assert matches == [i for i, x in enumerate(part[name].to_pylist()) if x == value]
            if not matches:
                continue
            num_bytes, num_requests = counter.num_bytes, counter.num_requests
            table = reader.read(group, [name], rows, known)
            assert table.equals(part.select([name]).take(matches))
            assert (counter.num_bytes, counter.num_requests) == (num_bytes, num_requests)
            # The other columns are read, and the result does not depend on what is known.
            names = ["text", "id", name] if name not in ("text", "id") else ["color", name]
            table = reader.read(group, names, rows, known)
            assert counter.num_bytes > num_bytes
            assert table.equals(part.select(names).take(matches))
            assert table.equals(reader.read(group, names, rows))


@pytest.mark.parametrize(
    "predicate",
    [
        And((equals("tens", 234), equals("id", 2345))),
        And((equals("color", "color 2"), equals("tens", 234))),
        Or((equals("id", 2345), equals("id", 2999))),
        Or((equals("tens", 299), equals("id", 2345))),
    ],
)
def test_values_at_other_rows_are_read_again(tmp_path, predicate):
    with opened(tmp_path) as (reader, _):
        matches, rows, known = find(reader, 2, predicate)
        assert matches
        table = reader.read(2, TABLE.column_names, rows, known)
        assert table.equals(TABLE.slice(2 * GROUP, GROUP).take(matches))


def test_after_a_term_without_matches_no_other_term_is_searched(tmp_path):
    absent, other = equals("id", -1), equals("tens", 5)
    with opened(tmp_path) as (reader, counter):
        # The first searches also locate the pages.
        assert find(reader, 0, absent)[0] == []
        assert find(reader, 0, other)[0] == list(range(50, 60))
        num_requests = counter.num_requests
        assert find(reader, 0, absent)[0] == []
        num_requests_of_one = counter.num_requests - num_requests
        num_requests = counter.num_requests
        assert find(reader, 0, And((absent, other)))[0] == []
        assert counter.num_requests - num_requests == num_requests_of_one

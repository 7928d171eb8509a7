"""Test searches with filters: bounds over one and several indices, and how values are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import (
    at_most_rows,
    build,
    numbered,
    plain_dataset,
    rows_in,
    write_files,
)

import zonebloom as zb
from zonebloom import errors

EVERYTHING = set(range(300))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[zb.Dataset, Path]:
    """Write 300 rows in 3 files, with ``id`` and ``name`` indexed in zones of 20 rows."""
    folder = plain_dataset(tmp_path_factory.mktemp("plain"), rows=100)
    ds = zb.dataset(folder)
    build(ds, "id", number_of_items=20, probability=1e-6)
    build(ds, "name", number_of_items=20, probability=1e-6)
    return ds, folder


def zone(row: int) -> set[int]:
    return set(range(row // 20 * 20, row // 20 * 20 + 20))


# Bounds


def test_a_search_for_an_absent_value_has_no_candidates(plain: tuple):
    ds, _ = plain
    for filter in ("id = 55555", "id = 50 AND id = 60000", "id = 50 AND name = 'name 200'"):
        result = ds.search(filter)
        assert result.kind == "Exact"
        assert result.ranges == {}
        assert ds.scanner(filter=filter).plan().fragments == ()
        assert ds.to_table(filter=filter).num_rows == 0


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("id = 50 AND name = 'name 5'", zone(5)),
        ("id = 50 AND name = 'name 25'", set()),
        ("id = 50 OR name = 'name 25'", zone(5) | zone(25)),
        ("id IN (50, 250) AND (name = 'name 5' OR name = 'name 25')", zone(5) | zone(25)),
        ("id IN (50, 250) AND (name = 'name 5' OR name = 'name 299')", zone(5)),
        ("id = 50 AND value = 3", zone(5)),
        ("id = 50 OR value = 3", EVERYTHING),
        ("(id = 50 OR value = 3) AND name = 'name 9'", zone(9)),
        ("id = 50 AND id > 10", zone(5)),
        ("NOT (id = 50)", EVERYTHING),
        ("NOT (NOT (id = 50))", zone(5)),
        ("NOT (id <> 50 OR name <> 'name 5')", zone(5)),
        ("NOT (id <> 50 AND name <> 'name 25')", zone(5) | zone(25)),
        ("id = 50 AND NOT (name = 'name 5')", zone(5)),
        ("id <> 50", EVERYTHING),
        ("id > 50", EVERYTHING),
        ("id BETWEEN 40 AND 60", EVERYTHING),
        ("name LIKE 'name 5%'", EVERYTHING),
        ("TRUE", EVERYTHING),
        ("FALSE", set()),
        ("id = 50 OR FALSE", zone(5)),
        ("id = 50 OR TRUE", EVERYTHING),
        ("id = 50 AND FALSE", set()),
    ],
)
def test_and_or_not_over_several_indices(plain: tuple, filter: str, expected: set[int]):
    ds, folder = plain
    assert at_most_rows(ds, filter) == expected
    translated = zb.dataset(folder).to_table(filter=filter, use_scalar_index=False)
    assert ds.to_table(filter=filter).equals(translated)


def test_not_turns_an_upper_bound_into_a_lower_bound(plain: tuple):
    ds, _ = plain
    # NOT has no upper bound, so on its own it searches no index.
    alone = ds.search("NOT (id = 50)")
    assert (len(alone.at_most), len(alone.at_least)) == (300, 0)
    # Combined with a bounded part, the rows in at_least do match it.
    result = ds.search("name = 'name 9' AND NOT (id = 50) OR name = 'name 9'")
    assert rows_in(ds, result.at_most, result.paths) == zone(9)
    negated = ds.search("id = 50 AND NOT (name = 'name 200')")
    assert rows_in(ds, negated.at_most, negated.paths) == zone(5)
    assert rows_in(
        ds, (~ds.search("id = 50")).at_least, {i: p for i, p in negated.paths.items()}
    ) == (EVERYTHING - zone(5))


def test_filter_that_no_index_answers_reads_no_index_bytes(tmp_path: Path):
    ds = zb.dataset(plain_dataset(tmp_path, rows=100))
    build(ds, "id", number_of_items=20)
    build(ds, "name", number_of_items=20)
    ds = zb.dataset(tmp_path)
    for filter in (
        "value = 3",
        "id > 50",
        "id <> 50",
        "id = 50 OR value = 3",
        "NOT (id = 50)",
        "id = 1.5e300 OR value = 1",
        pc.field("id") == pc.field("value"),
        None,
    ):
        stats: list[Any] = []
        ds.scanner(filter=filter, scan_stats_callback=stats.append).to_table()
        assert stats[0].index_bytes == 0, filter
        ds.search(filter)
        assert [table.loaded_bytes for table in ds.opened.indices.values()] == [
            0,
            0,
        ], filter
    ds.search("id = 50 AND value = 3")
    loaded_bytes = {name: table.loaded_bytes for name, table in ds.opened.indices.items()}
    assert loaded_bytes["id_idx"] == ds.index_statistics("id_idx")["num_bytes"]
    assert loaded_bytes["name_idx"] == 0


def test_the_indices_of_one_column_are_intersected(tmp_path: Path):
    ds = zb.dataset(plain_dataset(tmp_path, rows=100))
    build(ds, "id", name="fine", number_of_items=10)
    build(ds, "id", name="coarse", number_of_items=50)
    assert at_most_rows(ds, "id = 0") == set(range(10))
    assert [use.name for use in ds.scanner(filter="id = 0").plan().indices] == ["fine", "coarse"]
    new_rows = pa.array(range(3000, 4000, 10), pa.int64())
    pq.write_table(numbered(300, 100, id=new_rows), tmp_path / "part-003.parquet")
    ds.optimize.optimize_indices(index_names=["coarse"])
    with pytest.warns(errors.StaleIndexWarning, match="not in index fine"):
        assert at_most_rows(ds, "id = 3000") == {300 + row for row in range(50)}
    assert at_most_rows(ds, "id = 0") == set(range(10))


# Semantics of values


def one_column(
    folder: Path, arrow_type: pa.DataType, values: list[Any], items: int = 1
) -> zb.Dataset:
    write_files(folder, [numbered(0, len(values), key=pa.array(values, arrow_type))])
    ds = zb.dataset(folder)
    build(ds, "key", number_of_items=items, probability=1e-6)
    return ds


def found(ds: zb.Dataset, filter: Any) -> list[int]:
    return ds.to_table(["row"], filter)["row"].to_pylist()


def test_is_null_and_null_safe_equality_use_has_null(tmp_path: Path):
    ds = one_column(tmp_path, pa.int64(), [4, None, 6, None])
    for filter in ("key IS NULL", "key <=> NULL", "NULL <=> key", pc.field("key").is_null()):
        assert at_most_rows(ds, filter) == {1, 3}, filter
        assert found(ds, filter) == [1, 3]
    assert found(ds, "key <=> 6") == [2]
    assert at_most_rows(ds, "key <=> 6") == {2}
    assert found(ds, "NOT (key <=> 6)") == [0, 1, 3]


def test_in_with_null_probes_the_values(tmp_path: Path):
    ds = one_column(tmp_path, pa.int64(), [4, None, 5, 6])
    assert found(ds, "key IN (5, NULL)") == [2]
    assert at_most_rows(ds, "key IN (5, NULL)") == {2}
    assert found(ds, "key IN (NULL)") == []
    assert found(ds, "key NOT IN (5, NULL)") == []


@pytest.mark.parametrize("filter", ["id =", "nope = 5", 42, [("id", "~", 5)], "", "id = 5; id = 6"])
def test_unreadable_filters_are_errors_for_search_and_scan(plain: tuple, filter: Any):
    ds, _ = plain
    for call in (ds.search, lambda f: ds.scanner(filter=f), lambda f: ds.to_table(filter=f)):
        with pytest.raises(errors.FilterError) as caught:
            call(filter)
        assert isinstance(caught.value, ValueError)


def test_row_counts_of_files_that_were_just_written_are_not_kept(tmp_path: Path):
    """Another write may leave the times of a file as they are."""
    ds = zb.dataset(plain_dataset(tmp_path, rows=100, files=1))
    snapshot = ds.opened.look()
    (present,) = snapshot.fragments
    future = present.identity._replace(mtime_ns=2**62, ctime_ns=2**62)
    assert snapshot.count_rows(present._replace(identity=future)) == 100
    assert not snapshot.unindexed_files.row_counts
    past = present.identity._replace(mtime_ns=1, ctime_ns=1)
    assert snapshot.count_rows(present._replace(identity=past)) == 100
    assert len(snapshot.unindexed_files.row_counts) == 1

"""Test searches with filters: bounds over one and several indices, and how values are compared."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import (
    assert_equals_pyarrow,
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


def test_an_upper_bound_has_ranges_for_each_fragment(plain: tuple):
    ds, _ = plain
    result = ds.search("id IN (50, 2500, 2590)")
    assert result.kind == "AtMost"
    assert {key: list(ranges) for key, ranges in result.ranges.items()} == {
        0: [(0, 20)],
        2: [(40, 60)],
    }
    assert result.to_table().to_pylist() == [
        {"fragment_id": 0, "path": "part-000.parquet", "start": 0, "stop": 20},
        {"fragment_id": 2, "path": "part-002.parquet", "start": 40, "stop": 60},
    ]
    assert "40 of 300 rows in 2 of 3 fragments" in repr(result)
    assert "part-002.parquet" in result._repr_html_()


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


def test_many_values_at_once(plain: tuple):
    ds, folder = plain
    for count in (1, 64, 65, 300, 5000):
        values = [10 * row for row in range(0, 300, 60)] + list(range(100_001, 100_001 + count))
        for typed in (
            pa.array(values),
            pa.array(values, pa.int32()),
            pa.array(values, pa.uint64()),
        ):
            filter = pc.field("id").isin(typed)
            assert_equals_pyarrow(ds, folder, filter, filter)
            candidate_rows = at_most_rows(ds, filter)
            assert candidate_rows.issuperset(range(0, 300, 60))
            assert len(candidate_rows) < 300


def test_literals_out_of_the_columns_range_in_long_lists(tmp_path: Path):
    write_files(
        tmp_path, [numbered(0, 200, key=pa.array([i % 100 for i in range(200)], pa.int8()))]
    )
    ds = zb.dataset(tmp_path)
    build(ds, "key", number_of_items=10)
    values = pa.array([7, 2**63 - 1, -(2**63), *range(1000, 1100)], pa.int64())
    filter = pc.field("key").isin(values)
    assert ds.to_table(["row"], f"key IN ({', '.join(map(str, values.to_pylist()))})")[
        "row"
    ].to_pylist() == [7, 107]
    candidate_rows = at_most_rows(ds, filter)
    assert {7, 107} <= candidate_rows
    assert len(candidate_rows) < 100


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


def test_literal_5_0_equals_int32_5(tmp_path: Path):
    ds = one_column(tmp_path, pa.int32(), [4, 5, 6])
    for filter in ("key = 5.0", "key = 5e0", "key IN (5.0)", pc.field("key") == 5.0):
        assert at_most_rows(ds, filter) == {1}
        assert found(ds, filter) == [1]


@pytest.mark.parametrize(
    ("arrow_type", "literal"),
    [
        (pa.int32(), "5.5"),
        (pa.uint8(), "300"),
        (pa.uint8(), "-1"),
        (pa.int32(), "99999999999"),
        (pa.int64(), "99999999999999999999999"),
        (pa.timestamp("s"), "TIMESTAMP '1970-01-01 00:00:05.001'"),
        (pa.timestamp("ms"), "TIMESTAMP '1970-01-01 00:00:00.0050001'"),
        (pa.date32(), "TIMESTAMP '1970-01-06 00:00:01'"),
        (pa.decimal128(5, 1), "5.05"),
        (pa.decimal128(3, 1), "500.0"),
    ],
    ids=str,
)
def test_literals_without_exact_form_match_nothing(
    tmp_path: Path, arrow_type: pa.DataType, literal: str
):
    values = (
        [4, 5, 44]
        if pa.types.is_integer(arrow_type) or pa.types.is_decimal(arrow_type)
        else [
            *pa.array([4, 5, 44])
            .cast(pa.int32() if arrow_type == pa.date32() else pa.int64())
            .view(arrow_type if arrow_type != pa.timestamp("s") else pa.timestamp("s"))
        ]
    )
    ds = one_column(tmp_path, arrow_type, values)
    for filter in (f"key = {literal}", f"key IN ({literal})", f"{literal} = key"):
        result = ds.search(filter)
        assert (result.kind, result.ranges) == ("Exact", {}), filter
        assert ds.count_rows(filter) == 0
    assert ds.count_rows(f"key <> {literal}") == 3


def test_finer_timestamps_in_expressions_match_nothing_or_every_zone(tmp_path: Path):
    ds = one_column(tmp_path, pa.timestamp("ms"), [datetime.datetime(2024, 1, 1)] * 2)
    fine = pa.scalar(1_704_067_200_000_001, pa.timestamp("us"))
    exact = pa.scalar(1_704_067_200_000_000, pa.timestamp("us"))
    assert found(ds, pc.field("key") == fine) == []
    assert at_most_rows(ds, pc.field("key") == fine) == set()
    assert found(ds, pc.field("key") == exact) == [0, 1]


def test_every_zone_may_match_if_the_engine_rounds(tmp_path: Path):
    values = [0.1, 0.2, 16_777_216.0]
    ds = one_column(tmp_path, pa.float32(), values)
    # For a double literal on a float32 column, PyArrow widens the column. Lance and others round.
    filter = pc.field("key") == 0.1
    assert at_most_rows(ds, filter) == {0, 1, 2}
    assert_equals_pyarrow(ds, tmp_path, filter, filter)
    assert at_most_rows(ds, pc.field("key") == 16_777_217) == {0, 1, 2}
    assert at_most_rows(ds, pc.field("key") == pa.scalar(0.1, pa.float32())) == {0}


def test_large_integers_are_not_rounded_by_float_comparisons(tmp_path: Path):
    big = 2**53
    ds = one_column(tmp_path, pa.int64(), [big, big + 1, big + 2])
    for literal in (float(big), float(big + 2)):
        filter = pc.field("key") == literal
        expected = pads.dataset(tmp_path)
        try:
            rows = expected.to_table(filter=filter)["row"].to_pylist()
        except pa.ArrowInvalid:
            continue
        assert set(rows) <= at_most_rows(ds, filter)
        assert found(ds, filter) == rows
    assert found(ds, f"key = {big + 1}") == [1]


def test_literals_of_unknown_types_may_match_every_zone(tmp_path: Path):
    ds = one_column(tmp_path, pa.int64(), [4, 5, 6])
    for filter in (
        pc.field("key").cast(pa.string()) == "5",
        pc.field("key").cast(pa.float64()) == 5.0,
        (pc.field("key") + 1) == 6,
        pc.field("key") == pc.field("row"),
    ):
        assert at_most_rows(ds, filter) == {0, 1, 2}
        assert_equals_pyarrow(ds, tmp_path, filter, filter)


def test_lossless_casts_of_the_column_are_ignored(tmp_path: Path):
    ds = one_column(tmp_path, pa.int32(), [4, 5, 6])
    filter = pc.field("key").cast(pa.int64()) == 5
    assert at_most_rows(ds, filter) == {1}
    assert found(ds, filter) == [1]
    # The cast may map two values of the column to one.
    narrowing = pc.field("key").cast(pa.int8(), safe=False) == pa.scalar(5, pa.int8())
    assert at_most_rows(ds, narrowing) == {0, 1, 2}


def test_equals_null_matches_nothing(tmp_path: Path):
    ds = one_column(tmp_path, pa.int64(), [4, None, 6])
    null = pa.scalar(None, pa.int64())
    for filter in ("key = NULL", "key <> NULL", "NULL = key", pc.field("key") == null):
        assert found(ds, filter) == []
        assert at_most_rows(ds, filter) == set()
    assert found(ds, "NOT (key = NULL)") == []


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


def test_timestamps_with_and_without_time_zone_are_not_mixed(tmp_path: Path):
    moment = datetime.datetime(2024, 6, 1, 12, tzinfo=datetime.UTC)
    ds = one_column(tmp_path, pa.timestamp("us", "America/New_York"), [moment, None])
    assert at_most_rows(ds, "key = TIMESTAMP '2024-06-01 14:00:00+02:00'") == {0}
    assert found(ds, "key = TIMESTAMP '2024-06-01 14:00:00+02:00'") == [0]
    filter = pc.field("key") == pa.scalar(moment, pa.timestamp("us", "America/New_York"))
    assert_equals_pyarrow(ds, tmp_path, filter, filter)


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

"""Page statistics leave out rows of files without an index, and never a row that matches."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ordered_values import TYPES, VALUES, column
from seams import set_constant

import zonebloom as zb
from zonebloom.parquet import page_statistics
from zonebloom.predicates.ast import And, Compares, Equals, IsIn, IsNull, Not, Or
from zonebloom.scan import planner
from zonebloom.sources import fragment_statistics

ROWS = 4_000


@pytest.fixture(autouse=True)
def small_files_have_statistics(monkeypatch):
    set_constant(monkeypatch, fragment_statistics, "_MIN_FILE_BYTES", 0)
    set_constant(monkeypatch, planner, "_MIN_ROWS_TO_READ_STATISTICS", 0)


@st.composite
def conditions(draw, kind, literals):
    path = ("x",)
    literal = column(kind, [draw(st.sampled_from(literals))])[0]
    leaf = draw(
        st.sampled_from(
            [
                Equals(path, literal),
                IsIn(path, column(kind, draw(st.lists(st.sampled_from(literals), max_size=3)))),
                IsNull(path),
                *(Compares(path, symbol, literal) for symbol in ("<", "<=", ">", ">=")),
            ]
        )
    )
    return Not(leaf) if draw(st.booleans()) else leaf


@st.composite
def cases(draw):
    # PyArrow writes no float16 statistics, and cannot filter extension types.
    kind = draw(st.sampled_from([kind for kind in TYPES if kind != pa.uuid()]))
    known = VALUES[kind]
    values = draw(st.lists(st.one_of(st.none(), st.sampled_from(known)), min_size=1, max_size=40))
    if draw(st.booleans()):
        values = sorted(values, key=lambda value: -1 if value is None else known.index(value))
    terms = draw(st.lists(conditions(kind, known), min_size=1, max_size=3))
    joined = terms[0] if len(terms) == 1 else draw(st.sampled_from([And, Or]))(tuple(terms))
    options = {
        "write_page_index": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "use_dictionary": draw(st.booleans()),
        "row_group_size": draw(st.sampled_from([7, 100])),
    }
    return kind, values, joined, options


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_the_rows_are_those_of_a_table_in_memory(case, tmp_path_factory):
    kind, values, condition, options = case
    table = pa.table({"x": column(kind, values), "row": range(len(values))})
    folder = tmp_path_factory.mktemp("typed")
    path = folder / "0.parquet"
    pq.write_table(table, path, max_rows_per_page=3, **options)
    try:
        expected = zb.dataset(table).to_table(["row"], filter=condition)["row"]
    except zb.errors.ZoneBloomError as refused:
        with pytest.raises(type(refused)):
            zb.dataset(path).to_table(["row"], filter=condition)
        return
    assert zb.dataset(path).to_table(["row"], filter=condition)["row"].equals(expected)
    shutil.rmtree(folder)


def log(first: int, rows: int = ROWS) -> pa.Table:
    numbers = np.arange(first, first + rows)
    start = np.datetime64("2024-01-01", "us")
    return pa.table(
        {
            "ts": start + numbers.astype("timedelta64[m]"),
            "day": pa.array((start + numbers.astype("timedelta64[m]")).astype("M8[D]")),
            "name": [f"name-{number:06d}" for number in numbers],
            "x": pa.array(numbers / 4, mask=numbers % 50 == 0),
            "key": numbers % 700,
        }
    )


def write_by_pyarrow(table: pa.Table, path: Path, **options) -> None:
    pq.write_table(table, path, row_group_size=1_000, **options)


def write_pages(table: pa.Table, path: Path) -> None:
    write_by_pyarrow(table, path, write_page_index=True, max_rows_per_page=100)


def write_by_polars(table: pa.Table, path: Path) -> None:
    pl.DataFrame(table).write_parquet(path, row_group_size=1_000)


def write_by_duckdb(table: pa.Table, path: Path) -> None:
    duckdb.from_arrow(table).write_parquet(str(path), row_group_size=2048)


WRITERS = {
    "pages": write_pages,
    "row groups": write_by_pyarrow,
    "polars": write_by_polars,
    "duckdb": write_by_duckdb,
}
FILTERS = [
    "ts BETWEEN '2024-01-03 10:00:00' AND '2024-01-03 11:00:00'",
    "ts > '2024-01-06'",
    "day = DATE '2024-01-04'",
    "day IN (DATE '2024-01-02', DATE '2024-01-05')",
    "name LIKE 'name-0041%'",
    "name = 'name-005000'",
    "x < 3 OR x > 1990",
    "x IS NULL",
    "x IS NOT NULL AND ts < '2024-01-01 05:00:00'",
    "NOT (ts < '2024-01-06')",
    "NOT (x < 1990)",
    "key = 5 AND ts < '2024-01-02'",
    "ts < '1999-01-01'",
]


@pytest.mark.parametrize("writer", WRITERS)
def test_the_rows_are_those_of_duckdb(tmp_path, writer):
    for number in range(2):
        WRITERS[writer](log(number * ROWS), tmp_path / f"{number}.parquet")
    ds = zb.dataset(tmp_path)
    indexed = zb.dataset(tmp_path, index_dir=tmp_path / "_other")
    indexed.create_scalar_index("key", number_of_items=64, spark=False)
    files = f"read_parquet('{tmp_path}/*.parquet')"
    for condition in FILTERS:
        expected = duckdb.sql(f"SELECT name FROM {files} WHERE {condition}").fetchall()
        for dataset in (ds, indexed):
            found = dataset.to_table(["name"], filter=condition)["name"].to_pylist()
            assert sorted(found) == sorted(name for (name,) in expected), condition


@pytest.mark.parametrize(
    ("writer", "condition", "rows"),
    [
        ("pages", FILTERS[0], [(3_400, 3_600)]),
        ("row groups", FILTERS[0], [(3_000, 4_000)]),
        ("polars", FILTERS[0], [(3_000, 4_000)]),
        ("duckdb", FILTERS[0], [(2_048, 4_000)]),
        ("pages", "name LIKE 'name-0011%'", [(1_100, 1_200)]),
        ("pages", "NOT (name < 'name-003990') OR name < 'name-000003'", [(0, 100), (3_900, 4_000)]),
        ("pages", "ts > '2024-02-01'", None),
    ],
)
def test_few_rows_are_read(tmp_path, writer, condition, rows):
    WRITERS[writer](log(0), tmp_path / "0.parquet")
    scanner = zb.dataset(tmp_path).scanner(filter=condition)
    plans = scanner.plan().fragments
    if rows is None:
        assert not plans
        return
    (plan,) = plans
    assert list(zip(plan.rows.starts.tolist(), plan.rows.stops.tolist(), strict=True)) == rows
    assert "by its statistics, rows" in scanner.explain_plan()


def test_statistics_and_an_index_leave_the_rows_that_both_leave(tmp_path):
    write_pages(log(0), tmp_path / "0.parquet")
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("key", number_of_items=100, spark=False)
    (alone,) = ds.scanner(filter="key = 5").plan().fragments
    (both,) = ds.scanner(filter="key = 5 AND ts < '2024-01-01 10:00:00'").plan().fragments
    assert len(both.rows) == 100 < len(alone.rows)
    assert not ds.scanner(filter="key = 5 AND ts < '2024-01-01 00:04:00'").to_table().num_rows
    # All rows are known, so statistics cannot help.
    assert len(ds.scanner(filter="key = 5 AND x IS NOT NULL").plan().fragments[0].rows) == len(
        alone.rows
    )


def test_damaged_statistics_are_not_used(tmp_path):
    path = tmp_path / "0.parquet"
    write_pages(log(0), path)
    data = path.read_bytes()
    expected = zb.dataset(path).to_table(filter=FILTERS[0])
    footer = page_statistics.read_footer_bytes(
        len(data), lambda ranges: [data[start:stop] for start, stop in ranges]
    )[0]
    chunk = page_statistics.ThriftReader(footer).read_struct()[4][0][1][0]
    start, length = chunk[page_statistics._INDEX_START], chunk[page_statistics._INDEX_BYTES]
    for garbage in (b"\xff" * length, b"\0" * length, data[start + 5 : start + length] + b"\0" * 5):
        path.write_bytes(data[:start] + garbage + data[start + length :])
        assert zb.dataset(path).to_table(filter=FILTERS[0]).equals(expected)


def test_a_large_footer_is_not_parsed(tmp_path, monkeypatch):
    write_pages(log(0), tmp_path / "0.parquet")
    set_constant(monkeypatch, page_statistics, "_MAX_FOOTER_BYTES", 16)
    set_constant(monkeypatch, page_statistics, "_MAX_FOOTER_SHARE", 0.0)
    (plan,) = zb.dataset(tmp_path).scanner(filter=FILTERS[0]).plan().fragments
    assert plan.rows is None


def test_a_file_that_changes_is_read_anew(tmp_path):
    path = tmp_path / "0.parquet"
    write_pages(log(0), path)
    ds = zb.dataset(tmp_path)
    condition = "ts < '2024-01-01 00:02:00'"
    for first in (0, ROWS, 0, 1):
        write_pages(log(first), path)
        expected = pc.sum(pc.less(log(first)["ts"], datetime.datetime(2024, 1, 1, 0, 2))).as_py()
        assert ds.to_table(filter=condition).num_rows == expected

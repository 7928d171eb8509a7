"""Check that scans return the rows of ``pyarrow.dataset`` in its order, read less, and count it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import (
    CountingFileSystem,
    assert_equals_pyarrow,
    build,
    column_chunk_bytes,
    numbered,
    plain_dataset,
    write_files,
)

import zonebloom as zb
from zonebloom import errors

ROWS, FILES = 1000, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 3 files of 1000 rows, with indices of 100 rows per zone.

    The row groups have 250 rows. The columns ``id`` and ``name`` are indexed.
    """
    folder = plain_dataset(tmp_path_factory.mktemp("scan"), ROWS, FILES, row_group_size=250)
    ds = zb.dataset(folder)
    build(ds, "id", number_of_items=100, probability=1e-6)
    build(ds, "name", number_of_items=100, probability=1e-6)
    return folder


@pytest.fixture
def ds(folder: Path) -> zb.Dataset:
    return zb.dataset(folder)


FILTERS: list[tuple[Any, pc.Expression]] = [
    ("id = 120", pc.field("id") == 120),
    ("id IN (29990, 5, 120, 10010)", pc.field("id").isin([29990, 5, 120, 10010])),
    ("name = 'name 1500' OR id = 0", (pc.field("name") == "name 1500") | (pc.field("id") == 0)),
    ("id = 120 AND value = 5", (pc.field("id") == 120) & (pc.field("value") == 5)),
    ("name IS NULL", pc.field("name").is_null()),
    ("id > 29900", pc.field("id") > 29900),
    ("value = 6", pc.field("value") == 6),
    ("id = 7", pc.field("id") == 7),
]


@pytest.mark.parametrize(("filter", "expression"), FILTERS, ids=[f for f, _ in FILTERS])
@pytest.mark.parametrize(
    "columns",
    [
        None,
        ["row"],
        ["value", "row"],
        ["name", "id"],
        [],
        {"twice": pc.field("id") * 2, "name": pc.field("name")},
        {"five": pc.scalar(5)},
        {},
    ],
    ids=str,
)
def test_any_projection_equals_pyarrow(
    ds: zb.Dataset, folder: Path, filter: str, expression: pc.Expression, columns: Any
):
    assert_equals_pyarrow(ds, folder, filter, expression, columns)
    assert (
        ds.scanner(columns, filter).schema
        == pads.dataset(folder).scanner(columns=columns, filter=expression).projected_schema
    )


def test_nested_columns_equal_pyarrow(tmp_path: Path):
    rows = 400
    table = numbered(
        0,
        rows,
        id=pa.array(range(rows)),
        st=pa.array([{"x": i, "in": {"y": str(i)}} for i in range(rows)]),
        tags=pa.array([[i, i + 1] for i in range(rows)]),
        pairs=pa.array([[("k", i)] for i in range(rows)], pa.map_(pa.string(), pa.int64())),
    )
    write_files(tmp_path, [table.slice(0, 200), table.slice(200)], row_group_size=50)
    ds = zb.dataset(tmp_path)
    build(ds, "id", number_of_items=20)
    build(ds, "st.in.y", number_of_items=20)
    for filter in (
        pc.field("id").isin([3, 250]),
        pc.field("st", "in", "y") == "250",
        (pc.field("st", "x") == 250) & (pc.field("id") == 250),
    ):
        for columns in (
            None,
            ["tags", "st"],
            ["pairs"],
            {"y": pc.field("st", "in", "y"), "first": pc.list_element(pc.field("tags"), 0)},
        ):
            assert_equals_pyarrow(ds, tmp_path, filter, filter, columns)


def test_limit_head_and_count_equal_pyarrow(ds: zb.Dataset, folder: Path):
    expression = pc.field("id").isin([120, 130, 10010, 29990])
    source = pads.dataset(folder)
    for limit in (0, 1, 2, 3, 4, 5, 100):
        expected = source.head(limit, filter=expression) if limit else source.schema.empty_table()
        assert ds.scanner(filter=expression, limit=limit).to_table().equals(expected)
        assert ds.scanner(filter=expression).head(limit).equals(expected)
        assert ds.head(limit, filter=expression).equals(expected)
        assert ds.scanner(filter=expression, limit=limit).count_rows() == min(limit, 4)
    assert ds.head(10).equals(source.head(10))
    assert ds.scanner(limit=1500).to_table().equals(source.to_table().slice(0, 1500))
    assert ds.count_rows(expression) == source.count_rows(filter=expression) == 4
    assert ds.count_rows("value = 3") == source.count_rows(filter=pc.field("value") == 3)
    assert ds.scanner(["name"], expression).count_rows() == 4


@pytest.mark.parametrize("filter", [None, "id = 120", pc.field("id") == 120, pl.col("id") == 120])
def test_a_limit_of_no_rows_reads_nothing(tmp_path: Path, filter: Any):
    build(zb.dataset(plain_dataset(tmp_path)), "id")
    stats: list[Any] = []
    scanner = zb.dataset(tmp_path).scanner(["row"], filter, scan_stats_callback=stats.append)
    # No file can be opened any more.
    for path in tmp_path.rglob("*.*"):
        if path.is_file():
            path.unlink()
    assert scanner.head(0).equals(scanner.schema.empty_table())
    assert [
        (run.rows_found, run.rows_read, run.fragments_read, run.data_reads, run.index_bytes)
        for run in stats
    ] == [(0, 0, 0, 0, 0)]


def test_a_limit_of_no_rows_refuses_an_invalid_filter(ds: zb.Dataset):
    # The schema does not show that this is no filter, and no zone can hold the key.
    filter = pl.col("id").cast(pl.String) + "x"
    for limit in (0, 1):
        with pytest.raises(errors.FilterError):
            ds.scanner(filter=filter, limit=limit).to_table()
    with pytest.raises(errors.ZoneBloomError):
        ds.scanner(filter="no_such_column = 1").head(0)


@pytest.mark.parametrize("batch_size", [1, 7, 100, 1 << 20])
def test_batches_hold_at_most_batch_size_rows_and_none_is_empty(
    ds: zb.Dataset, folder: Path, batch_size: int
):
    for filter, expression in FILTERS[1:6]:
        if batch_size == 1 and filter not in ("id IN (29990, 5, 120, 10010)",):
            continue
        batches = list(ds.to_batches(filter=filter, batch_size=batch_size))
        assert all(0 < batch.num_rows <= batch_size for batch in batches)
        expected = pads.dataset(folder).to_table(filter=expression)
        assert pa.Table.from_batches(batches, expected.schema).equals(expected)


def test_readers_and_the_arrow_stream_interface(ds: zb.Dataset, folder: Path):
    expression = pc.field("id").isin([120, 10010])
    expected = pads.dataset(folder).to_table(filter=expression)
    scanner = ds.scanner(filter=expression)
    assert scanner.to_reader().read_all().equals(expected)
    assert pa.table(scanner).equals(expected)
    # A scanner can run several times.
    assert pa.RecordBatchReader.from_stream(scanner).read_all().equals(expected)
    relation = duckdb.from_arrow(scanner.to_reader())
    assert relation.aggregate("sum(row) as s, count(*) as n").fetchall() == [(12 + 1001, 2)]
    assert ds.scanner(filter="id = 7").to_reader().read_all().equals(ds.schema.empty_table())


# Bytes


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 2 files of 4 row groups of 5000 rows that do not compress."""
    folder = tmp_path_factory.mktemp("wide")
    rows = 20_000
    words = [f"{i * 7919:x}-{i * 104_729:o}" for i in range(2 * rows)]
    tables = [
        numbered(
            start,
            rows,
            id=pa.array(range(start, start + rows)),
            text=pa.array(words[start : start + rows]),
            more=pa.array(words[start : start + rows]),
        )
        for start in (0, rows)
    ]
    write_files(folder, tables, row_group_size=5000, use_dictionary=False)
    ds = zb.dataset(folder)
    build(ds, "id", number_of_items=1000)
    return folder


def counted_dataset(folder: Path) -> tuple[zb.Dataset, CountingFileSystem]:
    """Return the dataset on a file system that counts what is read."""
    counting = CountingFileSystem()
    return zb.dataset(str(folder), filesystem=counting.wrapped()), counting


@pytest.mark.parametrize(
    ("filter", "columns"),
    [
        ("id = 12000", None),
        ("id = 12000", ["row"]),
        ("id IN (1, 39999)", ["text"]),
        ("id IN (1, 6000, 12000, 18000)", None),
        ("id = -1", None),
        ("text = 'x'", ["row"]),
        (None, None),
        (None, ["id"]),
    ],
    ids=str,
)
def test_counted_bytes_equal_those_of_the_file_system(
    wide: Path, filter: str | None, columns: list[str] | None
):
    ds, counting = counted_dataset(wide)
    stats: list[Any] = []
    for _ in range(2):
        # Discover and plan first, because only the run is to be counted.
        scanner = ds.scanner(columns, filter, scan_stats_callback=stats.append)
        _ = (scanner.schema, scanner.plan())
        before = counting.data_bytes, counting.data_reads
        scanner.to_table()
        assert counting.data_bytes - before[0] == stats[-1].data_bytes
        assert counting.data_reads - before[1] == stats[-1].data_reads


def test_row_groups_without_candidates_are_not_read(wide: Path):
    ds, counting = counted_dataset(wide)
    ds.search("id = 12000")
    before = counting.data_bytes
    table = ds.to_table(filter="id = 12000")
    assert table["row"].to_pylist() == [12_000]
    num_bytes = counting.data_bytes - before
    path = wide / "part-000.parquet"
    columns = ["row", "id", "text", "more"]
    needed_bytes = column_chunk_bytes(path, [2], columns)
    other_bytes = column_chunk_bytes(path, [0, 1, 3], columns)
    footer = path.stat().st_size - column_chunk_bytes(path, range(4), columns)
    # A footer may be read twice, in blocks of 64 KiB.
    assert 0 < num_bytes <= needed_bytes + 2 * max(footer, 65_536)
    assert num_bytes < other_bytes


def test_unrequested_columns_are_not_read(wide: Path):
    ds, counting = counted_dataset(wide)
    ds.search("id = 12000")
    before = counting.data_bytes
    assert ds.to_table(["row"], "id = 12000").num_rows == 1
    narrow = counting.data_bytes - before
    before = counting.data_bytes
    assert ds.to_table(None, "id = 12000").num_rows == 1
    everything = counting.data_bytes - before
    texts = column_chunk_bytes(wide / "part-000.parquet", [2], ["text", "more"])
    assert narrow < everything
    if everything >= texts:
        assert everything - narrow >= 0.9 * texts


# Plans


def test_explain_plan_agrees_with_search(ds: zb.Dataset):
    for filter in ("id = 120", "id IN (0, 10, 990, 29990)", "name IN ('name 5', 'name 2005')"):
        plan = ds.scanner(filter=filter).plan()
        result = ds.search(filter)
        rows = {part.fragment.key: part.rows for part in plan.fragments}
        assert rows == {result.paths[i]: ranges for i, ranges in result.ranges.items()}
        assert plan.skipped == FILES - len(rows)
        (use,) = plan.indices
        assert use.kept_zones == sum(len(ranges) for ranges in rows.values()) // 100
        assert use.num_zones == 30


@pytest.mark.parametrize("kind", ["HASH", "BLOOMFILTER", "ZONEMAP"])
def test_plans_count_files_without_rows_as_covered(tmp_path: Path, kind: str):
    write_files(
        tmp_path, [pa.table({"id": range(100)}), pa.table({"id": pa.array([], pa.int64())})]
    )
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("id", kind)
    (use,) = ds.scanner(filter="id = 5").plan().indices
    (index,) = ds.describe_indices()
    assert use.covered_fragments == index.num_fragments_indexed == len(ds.files) == 2


# Bad requests


def test_a_plan_of_another_filter_is_refused(tmp_path: Path):
    """It could leave out rows that match the filter of the scan."""
    write_files(tmp_path, [numbered(0, 10, id=pa.array(range(10)))])
    ds = zb.dataset(tmp_path)
    build(ds, "id", number_of_items=2)
    plan = ds.scanner(filter="id = 3").plan()
    for scanner in (ds.scanner(filter="id = 7"), ds.scanner()):
        with pytest.raises(errors.InvalidArgument, match="made for rows where"):
            scanner.planned(plan)
    assert ds.scanner(filter="id = 3").planned(plan).to_table()["id"].to_pylist() == [3]
    assert ds.scanner(filter="id = 3").planned(ds.scanner().plan()).count_rows() == 1


def test_a_plan_of_other_files_is_refused(tmp_path: Path):
    """It could leave out rows of files that it does not know."""
    write_files(tmp_path, [numbered(0, 10, id=pa.array(range(10))) for _ in range(3)])
    ds = zb.dataset(tmp_path)
    first, second, _ = ds.files
    scan = ds.scanner(filter="id < 3")
    plan = scan.plan()
    of_first = ds.scanner(filter="id < 3", fragments=first)
    others = {
        "another dataset": zb.dataset(first).scanner(filter="id < 3").plan(),
        "one file": of_first.plan(),
    }
    for other in others.values():
        with pytest.raises(errors.InvalidArgument, match="the plan was made for "):
            scan.planned(other)
        with pytest.raises(errors.InvalidArgument, match="the plan was made for "):
            ds.scanner(filter="id < 3", fragments=second).planned(other)
    with pytest.raises(errors.InvalidArgument, match="made for other files"):
        of_first.planned(plan)
    assert scan.planned(plan).count_rows() == 9
    assert of_first.planned(others["one file"]).count_rows() == 3
    for part in ds.get_fragments():
        assert part.to_table(filter=pc.field("id") < 3).num_rows == 3
    pq.write_table(numbered(0, 10, id=pa.array(range(10))), tmp_path / "part-003.parquet")
    ds.refresh()
    with pytest.raises(errors.InvalidArgument, match="before its files were listed again"):
        ds.scanner(filter="id < 3").planned(plan)


def test_error_names_a_file_deleted_during_a_scan(tmp_path: Path):
    write_files(tmp_path, [numbered(0, 10, id=pa.array(range(10)))])
    ds = zb.dataset(tmp_path)
    build(ds, "id", number_of_items=2)
    scanner = ds.scanner(filter="id = 3")
    plan = scanner.plan()
    scanner = scanner.planned(plan)
    (tmp_path / "part-000.parquet").unlink()
    with pytest.raises(errors.FragmentUnreadable, match=r"part-000\.parquet"):
        scanner.to_table()

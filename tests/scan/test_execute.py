"""Test running a plan: the rows returned, files that change during the scan, and counts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.e2e_helpers import assert_equals_pyarrow, build, numbered, plain_dataset, touch_later
from support.helpers import cases
from support.seams import replace_function

import zonebloom as zb
from zonebloom import errors

ROWS = 1000
ID = pc.field("id")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write 3 files of 1000 rows in row groups of 250, with ``id`` indexed in zones of 100 rows."""
    folder = plain_dataset(tmp_path / "data", ROWS, row_group_size=250)
    build(zb.dataset(folder), "id", number_of_items=100, probability=1e-6)
    return folder


def replace(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path)
    touch_later(path)


# Form of the rows


@pytest.mark.parametrize("expression", [ID == 120, ID >= 0, None], ids=str)
@pytest.mark.parametrize(
    "columns", [None, ["name"], [], {"n": pc.field("name")}, {"one": pc.scalar(1)}], ids=str
)
def test_results_keep_columns_that_are_never_null(
    tmp_path: Path, expression: pc.Expression | None, columns: object
) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)]
    )
    values = [pa.array(range(0, 10_000, 10)), pa.array([f"n{i}" for i in range(1000)])]
    pq.write_table(pa.table(values, schema=schema), tmp_path / "a.parquet", row_group_size=100)
    ds = zb.dataset(tmp_path)
    build(ds, "id", number_of_items=100)
    assert_equals_pyarrow(ds, tmp_path, expression, expression, columns)


def test_view_columns_may_get_another_name() -> None:
    """Views are filtered as large strings, and returned as views."""
    views = pa.array([f"a long enough value {i}" for i in range(1000)], pa.string_view())
    ds = zb.dataset(pa.table({"id": range(1000), "v": views}))
    build(ds, "id", number_of_items=100)
    for expression in (ID == 5, ID >= 5):
        result = ds.to_table({"w": pc.field("v")}, expression)
        assert result.schema.field("w").type == pa.string_view()
        assert result["w"][0].as_py() == "a long enough value 5"


def test_errors_of_a_filter_and_of_a_file_are_distinguished(tmp_path: Path) -> None:
    folder = plain_dataset(tmp_path, 100)
    ds = zb.dataset(folder)
    value: pc.Expression = pc.field("value")
    with pytest.raises(errors.FilterError, match=r"value.*divide by zero; correct it"):
        ds.to_table(filter=value / value == 1)
    with pytest.raises(errors.InvalidArgument, match=r"cannot be computed.*divide by zero"):
        ds.to_table({"x": value / value})
    path = folder / "part-001.parquet"
    path.write_bytes(path.read_bytes()[:40] + bytes(200) + path.read_bytes()[240:])
    with pytest.raises(errors.FragmentUnreadable, match="repair or remove the file"):
        ds.to_table(filter=value / 2 == 1)


def test_a_file_of_other_types_and_a_damaged_file_are_distinguished(tmp_path: Path) -> None:
    """A file of a type that pyarrow cannot convert is not damaged."""
    pq.write_table(pa.table({"row": [1, 2], "key": [1, 2]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"row": [3], "key": [[5]]}), tmp_path / "1.parquet")
    ds = zb.dataset(tmp_path)
    for options in ({}, {"filter": "key = 2"}, {"filter": pc.field("key") == 2}):
        with pytest.raises(errors.SchemaMismatch, match=r"1\.parquet holds column 'key' as list"):
            ds.to_table(**options)
    assert ds.to_table(["row"])["row"].to_pylist() == [1, 2, 3]


# Files that change during a scan


def test_a_thread_does_not_cache_a_search_of_old_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread must not cache its search of the old files for the new ones."""
    ds = zb.dataset(folder)
    look = ds.opened.look
    pending = [True]

    def overtaken() -> object:
        snapshot = look()
        if pending:
            pending.clear()
            replace(folder / "part-000.parquet", numbered(0, 3, id=[-1, -2, -3]))
            look()
        return snapshot

    replace_function(monkeypatch, ds.opened, "look", overtaken)
    ds.to_table(filter=ID == 120)
    with pytest.warns(errors.StaleIndexWarning):
        assert ds.count_rows(ID == -2) == 1


def test_a_file_replaced_before_a_second_scan_is_refused(tmp_path: Path) -> None:
    """The second scan would skip as many rows of the new file as the first scan has returned."""
    # Arrow reads some files ahead, and must not reach the last one before the first row is there.
    num_files = 60
    for number in range(num_files):
        kind = pa.string() if number < num_files - 1 else pa.string_view()
        names = pa.array(["a", "b", "a"], kind)
        pq.write_table(pa.table({"name": names}), tmp_path / f"{number:02}.parquet")
    # Arrow cannot filter the views of the last file, so that all files are scanned again.
    condition = pc.field("name") == "a"
    ds = zb.dataset(tmp_path)
    assert ds.to_table(filter=condition)["name"].to_pylist() == ["a"] * 2 * num_files
    batches = ds.to_batches(filter=condition, batch_size=1)
    assert next(batches)["name"].to_pylist() == ["a"]
    replace(tmp_path / "00.parquet", pa.table({"name": ["x", "x", "a"]}))
    with pytest.raises(errors.FragmentChanged, match=r"00\.parquet changed"):
        list(batches)


def test_a_file_replaced_after_the_plan_is_read_whole(folder: Path) -> None:
    scanner = zb.dataset(folder).scanner(["id"], ID == 120)
    plan = scanner.plan()
    replace(folder / "part-000.parquet", numbered(0, 3, id=[7, 7, 120]))
    assert scanner.planned(plan).to_table().to_pydict() == {"id": [120]}


def test_a_csv_file_replaced_after_the_plan_is_read_whole(tmp_path: Path) -> None:
    """The file is opened by its path twice, for the build and for the scan."""
    path = tmp_path / "a.csv"
    pcsv.write_csv(pa.table({"id": range(ROWS)}), path)
    ds = zb.dataset(tmp_path, format="csv")
    build(ds, "id", number_of_items=100)
    scanner = ds.scanner(filter=ID == 950)
    plan = scanner.plan()
    assert plan.fragments[0].rows is not None
    pcsv.write_csv(pa.table({"id": range(ROWS - 1, -1, -1)}), path)
    touch_later(path)
    assert scanner.planned(plan).count_rows() == 1


# Sources that are not whole files


def test_row_groups_as_fragments_are_refused(folder: Path) -> None:
    whole = pads.dataset(folder)
    parts = [part for fragment in whole.get_fragments() for part in fragment.split_by_row_group()]
    source = pads.FileSystemDataset(parts, whole.schema, whole.format, whole.filesystem)
    with pytest.raises(errors.SourceError, match="give the files"):
        zb.dataset(source)


def test_a_dataset_with_a_filter_of_its_own_is_refused(folder: Path) -> None:
    with pytest.raises(errors.SourceError, match="the dataset has a filter"):
        zb.dataset(pads.dataset(folder).filter(ID == 120))


# Rows with their offsets


PLAIN_TERMS: dict[str, Callable[[Any], bool]] = {
    "a = 5": lambda row: row["a"] == 5,
    "a IN (5, 6)": lambda row: row["a"] in (5, 6),
    "NOT a IN (6, 7)": lambda row: row["a"] is not None and row["a"] not in (6, 7),
    "a > 4": lambda row: row["a"] is not None and row["a"] > 4,
    "a IS NOT NULL": lambda row: row["a"] is not None,
    "s LIKE '1%'": lambda row: row["s"].startswith("1"),
    "list_contains(l, 1)": lambda row: 1 in row["l"],
    "(a = 5 OR a < 3)": lambda row: row["a"] is not None and (row["a"] == 5 or row["a"] < 3),
}
# Terms that fail on some rows.
FAILING_TERMS: dict[str, Callable[[Any], bool]] = {
    "b + b > 1": lambda row: _in_int64(2 * row["b"]) > 1,
    "s::INT > 1": lambda row: int(row["s"]) > 1,
}
MIXED_ROWS = st.fixed_dictionaries(
    {
        "a": st.sampled_from([None, 1, 5, 6, 7]),
        "b": st.sampled_from([0, 1, 2, -(2**63)]),
        "s": st.sampled_from(["1", "12", "x", "2"]),
        "l": st.sampled_from([[], [1], [1, 2], [3]]),
    }
)


def _in_int64(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise OverflowError(value)
    return value


@pytest.mark.slow
@settings(max_examples=cases(120), deadline=None)
@given(
    st.lists(MIXED_ROWS, min_size=1, max_size=12),
    st.lists(st.sampled_from(list(PLAIN_TERMS)), max_size=2),
    st.lists(st.sampled_from(list(FAILING_TERMS)), min_size=1, max_size=2),
    st.sampled_from(["HASH", "ZONEMAP", "BLOOMFILTER"]),
    st.randoms(use_true_random=False),
)
def test_an_index_decides_neither_the_answer_nor_the_error(
    rows: list[dict[str, Any]],
    plain: list[str],
    failing: list[str],
    kind: str,
    random: Any,
) -> None:
    terms = plain + failing
    random.shuffle(terms)
    text = " AND ".join(terms)
    left = [row for row in rows if all(PLAIN_TERMS[term](row) for term in plain)]
    try:
        values = [[FAILING_TERMS[term](row) for term in failing] for row in left]
        expected = [row for row, parts in zip(left, values, strict=True) if all(parts)]
    except (OverflowError, ValueError):
        expected = None
    fields = {"a": pa.int64(), "b": pa.int64(), "s": pa.string(), "l": pa.list_(pa.int64())}
    table = pa.Table.from_pylist(rows, pa.schema(fields))
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "d")
        folder.mkdir()
        pq.write_table(table, folder / "0.parquet", row_group_size=3)
        ds = zb.dataset(str(folder))
        outcomes = [_outcome(ds, text)]
        ds.create_scalar_index("a", kind, number_of_items=1)
        if kind != "ZONEMAP":
            ds.create_scalar_index("l[]", kind, number_of_items=1)
        outcomes += [_outcome(ds, text), _outcome(ds, text, use_scalar_index=False)]
    assert outcomes == [expected] * 3, text


def _outcome(ds: zb.Dataset, text: str, **options: Any) -> list[dict[str, Any]] | None:
    try:
        return ds.scanner(filter=text, **options).to_table().to_pylist()
    except errors.FilterError:
        return None


@pytest.mark.parametrize(
    "filter",
    [
        (pl.col("s").cast(pl.Int64) > 1) & (pl.col("a") == 5),
        (pc.field("s").cast(pa.int64()) > 1) & (pc.field("a") == pa.scalar(5.0)),
        [pc.field("s").cast(pa.int64()) > 1, "a = 5"],
    ],
    ids=["Polars", "PyArrow", "list"],
)
def test_each_filter_language_fails_only_on_rows_that_its_plain_terms_leave(
    filter: Any, tmp_path: Path
) -> None:
    table = pa.table({"a": [2**60 + 1, 5, 6, 6], "s": ["10", "10", "y", "x"]})
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=2)
    ds = zb.dataset(str(tmp_path), index_dir=str(tmp_path / "_index"))
    for kind in [None, "HASH", "ZONEMAP"]:
        if kind is not None:
            ds.create_scalar_index("a", kind, replace=True, number_of_items=1)
        assert ds.to_table(filter=filter).to_pylist() == [{"a": 5, "s": "10"}]
        with pytest.raises(errors.FilterError):
            ds.to_table(filter=pl.col("s").cast(pl.Int64) > 1)

"""The judgement on the layout of files: its estimates, and what it says nothing about."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from seams import replace_function

import zonebloom as zb
from zonebloom.advise import layout as layout_module
from zonebloom.base.row_ranges import RowRanges
from zonebloom.cli import main as cli
from zonebloom.errors import ColumnNotFound
from zonebloom.parquet import leaf_reader
from zonebloom.parquet.header_kernels import NUM_ROWS
from zonebloom.parquet.hit_reader import HitReader
from zonebloom.parquet.layout_advice import PageCut
from zonebloom.results import LayoutAdvice
from zonebloom.sources.column_batches import Column
from zonebloom.storage.files import ReadCounter

ROWS = 200_000
ZONE = 8192


def unique_rows(num_rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "id": rng.permutation(num_rows),
            "other": rng.permutation(num_rows),
            "text": [f"text number {i}" for i in rng.integers(0, 1 << 40, num_rows)],
            "list": pa.array([[i, i] for i in range(num_rows)]),
        }
    )


def write_pages(path, table: pa.Table, page_rows: int, group_rows: int, **options) -> None:
    # Pages end after a number of bytes, too, so set that high.
    pq.write_table(
        table,
        path,
        row_group_size=group_rows,
        max_rows_per_page=page_rows,
        data_page_size=1 << 30,
        **{"use_dictionary": False, **options},
    )


def page_starts(num_rows: int, page_rows: int, group_rows: int) -> list[tuple[int, int]]:
    """Return the pages of a file as (start, stop), where row groups are cut into equal pages."""
    pages = []
    for group in range(0, num_rows, group_rows):
        end = min(group + group_rows, num_rows)
        pages += [(start, min(start + page_rows, end)) for start in range(group, end, page_rows)]
    return pages


def rows_of_pages(pages: list[tuple[int, int]], start: int, stop: int) -> int:
    """Return the rows of all pages that overlap a range of rows."""
    return sum(end - begin for begin, end in pages if begin < stop and end > start)


@pytest.mark.parametrize(
    ("page_rows", "group_rows"), [(20_000, 200_000), (32_768, 32_768), (5_000, 25_000)]
)
@pytest.mark.parametrize("is_indexed", [False, True])
def test_estimated_rows_are_those_of_a_random_key(tmp_path, page_rows, group_rows, is_indexed):
    path = tmp_path / "a.parquet"
    write_pages(path, unique_rows().select(["id", "other"]), page_rows, group_rows)
    ds = zb.dataset(path)
    if is_indexed:
        ds.create_scalar_index("id", spark=False)
    layout = ds.advise("id").file_layout
    assert layout is not None
    rng = np.random.default_rng(1)
    for attribute, rows in [("rows_read", page_rows), ("rows_after_rewrite", 2048)]:
        pages = page_starts(ROWS, rows, group_rows)
        picked = rng.integers(0, ROWS, 2000).tolist()
        of_keys = [
            rows_of_pages(pages, row // ZONE * ZONE, min(row // ZONE * ZONE + ZONE, ROWS))
            for row in picked
        ]
        of_rows = [rows_of_pages(pages, row, row + 1) for row in picked]
        assert getattr(layout["id"], attribute) == pytest.approx(np.mean(of_keys), rel=0.05)
        assert getattr(layout["other"], attribute) == pytest.approx(np.mean(of_rows), rel=0.05)
    chunks = pq.read_metadata(path).row_group(0)
    bytes_per_row = chunks.column(0).total_compressed_size / chunks.num_rows
    expected_bytes = layout["id"].rows_read * bytes_per_row
    assert layout["id"].bytes_read == pytest.approx(expected_bytes, rel=0.05)


def test_a_read_of_ranges_is_that_of_a_loop():
    rng = np.random.default_rng(2)
    for _ in range(200):
        bounds = np.append(0, np.cumsum(rng.integers(0, 50, rng.integers(1, 20)) + 1))
        cut = PageCut(bounds, rng.integers(1, 100, bounds.size - 1))
        edges = np.sort(rng.choice(int(bounds[-1]) + 1, 6))
        ranges = RowRanges(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        rows = set(ranges.rows().tolist())
        read = [
            (stop - start, size)
            for start, stop, size in zip(bounds, bounds[1:], cut.sizes, strict=False)
            if rows.intersection(range(start, stop))
        ]
        assert cut.read_ranges(ranges).tolist() == [sum(c) for c in zip(*read, strict=True)] or [
            0,
            0,
        ]
        if rows:
            total, count = np.zeros(2), len(rows)
            for row in rows:
                page = int(np.searchsorted(bounds, row, side="right")) - 1
                total += [bounds[page + 1] - bounds[page], cut.sizes[page]]
            assert np.allclose(cut.read_matches(ranges, 1, count), total / count)
            assert np.allclose(cut.read_matches(ranges, 10**9, count), cut.read_ranges(ranges))


def count_decoded_rows(monkeypatch) -> SimpleNamespace:
    """Count the rows of all pages that kernels decode, of all columns together."""
    counted = SimpleNamespace(rows=0)
    init: Callable = leaf_reader.OpenedPages.__init__

    def count(self, table, file, selection):
        counted.rows += selection.pages[NUM_ROWS].sum()
        init(self, table, file, selection)

    replace_function(monkeypatch, leaf_reader.OpenedPages, "__init__", count)
    # The reader of few keys decodes the same pages, but in a kernel, where nothing counts them.
    replace_function(monkeypatch, HitReader, "read", lambda *arguments: None)
    return counted


@pytest.mark.parametrize("page_rows", [1_000, 50_000])
def test_a_scan_reports_the_rows_that_kernels_decoded(tmp_path, monkeypatch, page_rows):
    zb.warmup()
    table = unique_rows().select(["id", "other", "text"])
    write_pages(tmp_path / "a.parquet", table, page_rows, 100_000)
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("id", spark=False)
    keys = table["id"].to_pylist()
    counted = count_decoded_rows(monkeypatch)
    for key in (keys[5], keys[99_999], keys[-1]):
        counted.rows = 0
        run = ds.scanner(filter=f"id = {key}").analyze_plan()
        assert run.stats is not None and run.stats.rows_found == 1
        layout = run.file_layout
        assert isinstance(layout, LayoutAdvice)
        if run.plan.indices[0].kept_zones == 1:
            num_rows = layout["id"].rows_read + 2 * layout["other"].rows_read
            assert num_rows == pytest.approx(counted.rows, rel=0.01, abs=page_rows * 0.05)
        assert layout.is_fine == ("file layout" not in run) == (page_rows == 1_000)


def test_a_scan_judges_its_files_without_reading_them_again(tmp_path):
    write_pages(tmp_path / "a.parquet", unique_rows(), 100_000, 100_000)
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("id", spark=False)
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes())
    scanner = ds.scanner(filter="id = 77")
    first = scanner.analyze_plan()
    assert first.file_layout is not None and first.file_layout.num_files == 1
    # The judgement works on the plan alone, so files that are gone do not matter.
    plan = scanner.plan()
    (tmp_path / "a.parquet").unlink()
    from zonebloom.scan.judged_layout import judge_scan

    request = scanner._request
    assert judge_scan(plan, request, ds.opened.source, 1) == first.file_layout


@pytest.mark.parametrize(
    "filter", ["id = 5 AND other = 7", "id = 5 OR other = 7", "id IS NULL", "list IS NOT NULL"]
)
def test_any_filter_can_be_analyzed(tmp_path, filter):
    write_pages(tmp_path / "a.parquet", unique_rows(), 100_000, 100_000)
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index(["id", "other"], spark=False)
    for options in ({}, {"limit": 1}, {"columns": ["list"]}, {"columns": []}):
        run = ds.scanner(filter=filter, **options).analyze_plan()
        assert run.startswith("ZoneBloomScan") and "</div>" in run._repr_html_()


def test_small_pages_and_small_files_are_fine(tmp_path):
    table = unique_rows()
    pq.write_table(
        table,
        tmp_path / "good.parquet",
        write_page_index=True,
        max_rows_per_page=2048,
        use_dictionary=False,
    )
    pq.write_table(table.slice(0, 9000), tmp_path / "small.parquet")
    for name in ("good", "small"):
        ds = zb.dataset(tmp_path / f"{name}.parquet")
        layout = ds.advise(number_of_items=1000).file_layout
        assert layout is not None and layout.is_fine, layout
        assert "file layout" not in str(ds.advise(number_of_items=1000))
        assert str(layout).startswith("file layout: fine; 1 file")


def test_advice_names_one_page_dictionaries_groups_and_codecs(tmp_path):
    table = unique_rows()
    write_pages(tmp_path / "pages.parquet", table, ROWS, ROWS)
    write_pages(
        tmp_path / "dictionary.parquet",
        table,
        2048,
        ROWS,
        use_dictionary=True,
        dictionary_pagesize_limit=1 << 30,
        compression="none",
    )
    write_pages(tmp_path / "groups.parquet", table, 1000, 1000)
    write_pages(tmp_path / "codec.parquet", table, 2048, ROWS, compression="brotli")
    problems = {}
    for name in ("pages", "dictionary", "groups", "codec"):
        layout = zb.dataset(tmp_path / f"{name}.parquet").advise("id").file_layout
        assert layout is not None
        problems[name] = " ".join(layout.problems)
        assert not layout.is_fine and layout.lines[-1] == layout.remedy
    assert re.search(
        r"id: one page per column chunk, so each lookup decodes 200,000 rows \(.*kB\); rewritten, "
        r"8,\d\d\d rows \(.* kB\)",
        problems["pages"],
    )
    assert "a row of 4 columns: pages of 200,000 rows on average" in problems["pages"]
    assert "a column chunk of id has a dictionary of 1.6 MB" in problems["dictionary"]
    assert problems["groups"].startswith("row groups of 1,000 rows")
    assert "Brotli, which only pyarrow decodes" in problems["codec"]


def test_only_columns_worth_an_index_are_judged(tmp_path):
    table = pa.table({"day": np.arange(ROWS) // 1000, "few": np.arange(ROWS) % 3})
    write_pages(tmp_path / "a.parquet", table, ROWS, ROWS)
    assert zb.dataset(tmp_path).advise().file_layout is None
    assert zb.dataset(unique_rows(30_000)).advise().file_layout is None


def test_damaged_and_empty_files_are_left_out(tmp_path):
    for number in range(3):
        write_pages(tmp_path / f"{number}.parquet", unique_rows(), ROWS, ROWS)
    pq.write_table(unique_rows(0), tmp_path / "empty.parquet")
    ds = zb.dataset(tmp_path)
    assert ds.advise("id").file_layout.num_files == 4

    (tmp_path / "1.parquet").write_bytes(b"PAR1 damaged PAR1")
    ds = zb.dataset(tmp_path)
    key = layout_module.KeyColumn(Column(("id",), pa.int64()), hardly_repeats=True)
    layout = layout_module.advise_layout(ds.opened.look(), [key], ZONE, ReadCounter())
    assert layout is not None and (layout.num_files, layout.sampled_files) == (4, 3)
    assert layout["id"].rows_read == ROWS


@pytest.mark.parametrize("writer", ["DuckDB", "Polars", "pyarrow"])
def test_default_files_of_each_writer_are_judged(tmp_path, writer):
    table = unique_rows(500_000).select(["id", "text"])
    path = tmp_path / "a.parquet"
    if writer == "DuckDB":
        duckdb = pytest.importorskip("duckdb")
        rows = table
        assert rows.num_rows
        duckdb.sql(f"COPY (FROM rows) TO '{path}' (FORMAT parquet)")
    elif writer == "Polars":
        pl = pytest.importorskip("polars")
        pl.DataFrame(table).write_parquet(path)
    else:
        pq.write_table(table, path)
    layout = zb.dataset(path).advise("id").file_layout
    assert layout is not None and not layout.is_fine
    zb.rewrite(path, tmp_path / "new")
    layout = zb.dataset(tmp_path / "new").advise("id").file_layout
    assert layout is not None and layout.is_fine


def test_the_command_prints_the_judgement(tmp_path, capsys):
    pytest.importorskip("click")
    write_pages(tmp_path / "a.parquet", unique_rows(), ROWS, ROWS)
    assert cli.main(["advise", str(tmp_path), "--column=id"]) == 0
    assert "\nfile layout: id: one page per column chunk" in capsys.readouterr().out
    assert cli.main(["advise", str(tmp_path), "--column=id", "--output=json"]) == 0
    layout = json.loads(capsys.readouterr().out)["file_layout"]
    assert layout["columns"][0]["columns"] == ["id"]
    html = zb.dataset(tmp_path).advise("id")._repr_html_()
    assert "one page per column chunk" in html


def test_repeated_columns_without_page_places_are_one_page(tmp_path):
    """Pages of version 1 do not say how many rows they have, if rows have several values."""
    table = unique_rows().select(["id", "list"])
    write_pages(tmp_path / "a.parquet", table, 2048, ROWS)
    layout = zb.dataset(tmp_path).advise("id").file_layout
    assert layout is not None
    assert layout["list"].rows_read == pytest.approx((ROWS + 2048) / 2, rel=0.01)
    assert "pages of 101,0" in layout["list"].problem


def test_a_page_header_cannot_claim_more_pages_than_fit(tmp_path, monkeypatch):
    pq.write_table(pa.table({"id": np.zeros(ROWS, np.int64)}), tmp_path / "a.parquet")
    parse = layout_module.parse_page_header
    replace_function(
        monkeypatch,
        layout_module,
        "parse_page_header",
        lambda page: parse(page)._replace(num_values=1),
    )
    key = layout_module.KeyColumn(Column(("id",), pa.int64()), hardly_repeats=False)
    snapshot = zb.dataset(tmp_path).opened.look()
    layout = layout_module.advise_layout(snapshot, [key], ZONE, ReadCounter())
    assert layout is not None and layout["id"].rows_per_page == ROWS


def test_the_layout_of_an_unknown_column_is_an_error_that_names_the_known_ones(tmp_path):
    write_pages(tmp_path / "a.parquet", unique_rows(), ROWS, ROWS)
    layout = zb.dataset(tmp_path).advise("id").file_layout
    assert layout is not None
    with pytest.raises(ColumnNotFound, match="'idd' was not judged; did you mean id"):
        layout["idd"]

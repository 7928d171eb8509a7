"""The benchmark report at a tiny size: all competitors answer, and the report has them all."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import ROOT

from bench import competitors, data, layouts, report, scale, sections, tables
from bench.measures import BATCH, Effort, Measured, Questions, Timed, WrongAnswer, measure

TINY = Effort(keys=3, seconds=0.01, rounds=(1, 2), in_sizes=(1, 10, 100), batch=1_000, cold_runs=0)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def found(root):
    """Every competitor on keys with nulls, without fresh processes, and a small index alone."""
    here, missing = competitors.competitors()
    first = data.synthetic("int64, 10 % null", 20_000, root)
    measured = []
    for each in (first, first.in_layout("pyarrow")):
        some = [one(each) for one in here if each.is_first or one in competitors.PEERS]
        measured += measure(some, each, Questions.of(each, TINY), TINY)
    scaled = scale.run(root=root, sizes=(20_000,))
    return report.Report(measured, scaled, missing, loads=[1.0, 2.0])


def test_only_what_is_not_built_yet_is_left_out():
    here, missing = competitors.competitors()
    expected = [each for each in competitors.ALL if each.name != "zonebloom sliced"]
    assert [each for each in here if each.name != "zonebloom sliced"] == expected
    assert len(here) + len(missing) == len(competitors.ALL)


def test_the_report_has_every_row(found):
    text = report.markdown(found)
    recommended, default = text.split("\n## Layout: ")[1:]
    assert "pages of 2,048 keys, a page index, no dictionary of keys, SNAPPY" in recommended
    assert "no page index, a dictionary of keys, SNAPPY" in default
    for table in (recommended, default):
        assert "| int64, 10 % null | zonebloom | " in table
        assert "absent key | one key | IN of 10 | IN of 100 | batch |" in table
        for label in ("of Lance BLOOMFILTER", "of the best scan", "of `to_table(filter=)`"):
            assert table.count(f"|  | {label} | ") == 1
    for each in found.scaled:
        assert f"| {each.rows:,}, {each.num_zones:,}, {each.layout} |" in text
    assert all(line in text for line in found.missing)
    assert "load average was 1.0 to 2.0" in text


def test_a_data_set_has_a_row_for_each_competitor(found):
    first = [each for each in found.measured if each.data.is_first]
    header, _, *rows = tables.full_table(first)
    assert "| IN of 100 | batch, keys/s |" in header
    assert [row.split(" | ")[0] for row in rows] == [f"| {each.competitor}" for each in first]
    assert {row.count("|") for row in rows} == {header.count("|")}


def test_plots_and_readme_are_written(found, tmp_path):
    report.write(found, tmp_path)
    linked = set(re.findall(r"plots/[\w-]+\.png", report.markdown(found)))
    assert linked == {f"plots/{path.name}" for path in (tmp_path / "plots").iterdir()}
    # What another command wrote there stays.
    path = tmp_path / "REPORT.md"
    sections.write_section(path, sections.BENCHMARKS, "| a | table |\n")
    report.write(found, tmp_path)
    assert path.read_text(encoding="utf-8").endswith(
        "<!-- benchmarks -->\n| a | table |\n<!-- /benchmarks -->\n"
    )
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- peers -->\nold\n<!-- /peers -->\nafter\n", encoding="utf-8")
    report.write_readme(found, readme)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- peers -->\n| layout | random int64: one key |")
    assert "plots/against-scans.png" in text
    assert text.endswith("<!-- /peers -->\nafter\n")
    assert "old" not in text


def test_lookups_are_held_against_the_best_scan_and_lance(found):
    header, _, *rows = tables.lookup_table(found.measured, [("int64, 10 % null", 10)])
    assert header == "| layout | int64, 10 % null: IN of 10 |"
    assert [row.split(" | ")[0] for row in rows] == ["| recommended", "| pyarrow"]
    shares = tables.shares_of_scans(found.measured)
    for row, data_set in zip(rows, shares, strict=True):
        of_each = {
            each.competitor: each.warm["IN of 10"].wall
            for each in found.measured
            if each.data == data_set
        }
        ours = of_each["zonebloom"]
        scan = ours / min(of_each[f"{name} scan"] for name in ("DuckDB", "Polars", "pyarrow"))
        lance = ours / of_each["Lance BLOOMFILTER"]
        assert row.endswith(f"| {tables.time_text(ours)}<br>({scan:.2g}, {lance:.2g}) |")
        assert shares[data_set][10] == scan and list(shares[data_set]) == [1, 10, 100]


def test_readme_and_report_have_their_markers():
    for name, section in (("README.md", "peers"), ("bench/REPORT.md", sections.BENCHMARKS)):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text.count(f"<!-- {section} -->") == text.count(f"<!-- /{section} -->") == 1


# Clustered and sorted keys are of the type and the widths of random ones.
KINDS = [name for name in data.SYNTHETIC if name not in ("clustered int64", "sorted int64")]


@pytest.mark.parametrize("name", KINDS)
def test_answers_are_those_of_brute_force(root, name):
    """Of all competitors on each kind of key, one by one and many at once."""
    check_answers(data.synthetic(name, 2_000, root), competitors.competitors()[0])


def check_answers(each, some):
    present, absent = each.present(150), each.absent(10)
    assert each.rows_of(absent).size == 0
    for competitor in some:
        here = competitor(each)
        here.build()
        here.open()
        few = list(dict.fromkeys(present[:5] + absent[:5]))
        for keys in (present[:1], absent[:1], few, present + absent):
            found = data.sorted_ids(here.lookup(keys), each.row_id)
            assert found.equals(each.expected(keys)), (competitor.name, len(keys))
        here.close()


@pytest.mark.parametrize("layout", layouts.WRITERS)
def test_rows_are_the_same_in_every_layout(root, layout):
    first = data.synthetic("uuid, 36 bytes", 2_000, root)
    each = first.in_layout(layout)
    assert data.DataSet.load(each.folder) == each
    assert each.file_rows == first.file_rows
    assert each.keys.to_pylist() == first.keys.to_pylist()
    assert each.ids.to_pylist() == first.ids.to_pylist()
    check_answers(each, competitors.PEERS)


def test_a_layout_is_told_by_its_files(tmp_path):
    """As pyarrow was asked to write them, and united over files."""
    table = pa.table({"other": [1.0] * 3_000, "key": [f"{n}" for n in range(3_000)]})
    paged, plain = tmp_path / "paged.parquet", tmp_path / "plain.parquet"
    options = {"max_rows_per_page": 100, "write_page_index": True, "use_dictionary": False}
    pq.write_table(table, paged, row_group_size=1_000, compression="zstd", **options)
    pq.write_table(table, plain, max_rows_per_page=500)
    writer = f"written by {pq.read_metadata(plain).created_by}"
    assert layouts.describe_layout([(paged, "key")]) == (
        f"{writer}: row groups of up to 1,000 rows, pages of 100 keys, a page index, "
        "no dictionary of keys, ZSTD"
    )
    assert layouts.describe_layout([(plain, "key")]) == (
        f"{writer}: row groups of up to 3,000 rows, pages of 500 keys, no page index, "
        "a dictionary of keys, SNAPPY"
    )
    assert layouts.describe_layout([(plain, "key"), (paged, "key")]) == (
        f"{writer}: row groups of up to 1,000 to 3,000 rows, pages of 100 to 500 keys, "
        "a page index in some, a dictionary in some of keys, SNAPPY, ZSTD"
    )


def test_other_layouts_lie_beside_the_first(root):
    """Under the names older data has; Lance's copy of the rows is shared."""
    first = data.synthetic("random int64", 2_000, root)
    other = first.in_layout("Polars")
    assert first.folder == root / "random-int64-2000"
    assert other.folder == root / "random-int64-2000-polars"
    assert other.first_folder == other.in_layout("DuckDB").first_folder == first.folder


def test_a_wrong_answer_ends_the_run(root):
    each = data.synthetic("sorted int64", 2_000, root)

    class Wrong(competitors.PyArrow):
        def lookup(self, keys):
            return super().lookup(keys[:1]).slice(0, 0)

    with pytest.raises(WrongAnswer, match="brute force finds"):
        measure([Wrong(each)], each, Questions.of(each, TINY), TINY)


def test_first_lookups_run_in_fresh_processes(root):
    from bench.cold import first_lookup

    each = data.synthetic("sorted int64", 2_000, root)
    competitors.ZoneBloom(each).build()
    found = first_lookup(each.folder, competitors.ZoneBloom.name, each.present(1)[0])
    assert found.rows == 1
    assert found.seconds > 0
    assert found.peak_bytes > 10_000_000


def test_a_data_set_that_cannot_be_made_is_named(root, monkeypatch):
    monkeypatch.setattr(data.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(report, "competitors", lambda: ([], []))
    lines: list[str] = []
    found = report.run(report.Options(sets=("tpch-orders",), root=root / "none"), lines.append)
    assert found.missing == ["tpch-orders is left out: tpchgen-cli is not installed"] == lines


def test_zones_that_hold_a_key(root):
    each = data.synthetic("text, 1,000 distinct", 2_000, root)
    key = each.present(1)[0]
    files = np.searchsorted(np.cumsum(each.file_rows), each.rows_of([key]), side="right")
    assert each.zones_of(key) == len(set(files.tolist()))
    assert each.num_zones == 4


def test_keys_of_the_large_index_are_known_and_distinct():
    keys = scale.keys_of(np.arange(3, dtype=np.uint64))
    # The first outputs of SplitMix64 seeded with 0.
    assert keys.tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert np.unique(scale.keys_of(np.arange(10_000))).size == 10_000


def test_figures_stand_beside_multiples_of_ours():
    assert tables.time_text(0.00123) == "1.23 ms"
    assert tables.size_text(4_000_000_000) == "4 GB"
    assert tables._cell(0.002, 0.001, tables.time_text) == "2 ms (2×)"
    assert tables._cell(None, 0.001, tables.time_text) == ""


def test_ratios_are_to_the_best_of_each_kind(root):
    each = data.synthetic("sorted int64", 2_000, root)
    times = {
        "zonebloom": Timed(0.002, 0.004),
        "DuckDB scan": Timed(0.001, 0.016),
        "Polars scan": Timed(0.008, 0.002),
    }
    found = [Measured(each, name, warm={BATCH: timed}) for name, timed in times.items()]
    assert tables.ratio_table(found)[2:] == [
        "| sorted int64 | zonebloom | 2 ms |",
        "|  | of the best scan | 2 (2) |",
    ]

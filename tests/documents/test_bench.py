"""Test the benchmark report at a tiny size: competitors find the rows, and tables show them all."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace

import pytest
from support.helpers import ROOT
from support.seams import set_constant

from bench import (
    competitors,
    data,
    headline,
    layouts,
    report,
    scale,
    sections,
)
from bench.measures import Effort, Questions, WrongAnswer, measure

TINY = Effort(keys=3, seconds=0.01, rounds=(1, 2), in_sizes=(1, 10, 100), batch=1_000, cold_runs=0)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def measured_report(root):
    """Measure every competitor on keys with nulls, and a small index without data files."""
    available, missing = competitors.competitors()
    first = data.synthetic("int64, 10 % null", 20_000, root)
    results = []
    for data_set in (first, first.in_layout("pyarrow")):
        types = [
            competitor
            for competitor in available
            if data_set.is_first or competitor in competitors.PEERS
        ]
        instances = [competitor(data_set) for competitor in types]
        results += measure(instances, data_set, Questions.of(data_set, TINY), TINY)
    scale_results = scale.run(root=root, sizes=(20_000,))
    return report.Report(results, scale_results, missing, loads=[1.0, 2.0])


@pytest.mark.parametrize("path", sorted(ROOT.glob("bench/*.py")), ids=lambda path: path.stem)
def test_modules_import_names_that_exist(path):
    importlib.import_module(f"bench.{path.stem}")


def test_all_competitors_are_available_or_reported_as_missing():
    available, missing = competitors.competitors()
    assert available == list(competitors.ALL)
    assert len(available) + len(missing) == len(competitors.ALL)


def test_plots_and_readme_are_written(measured_report, tmp_path):
    report.write(measured_report, tmp_path)
    linked = set(re.findall(r"plots/[\w-]+\.png", report.markdown(measured_report)))
    assert linked == {f"plots/{path.name}" for path in (tmp_path / "plots").iterdir()}
    # The report keeps the sections that other commands write.
    path = tmp_path / "REPORT.md"
    sections.write_section(path, sections.BENCHMARKS, "| benchmarks | table |\n")
    report.write(measured_report, tmp_path)
    text = path.read_text(encoding="utf-8")
    assert text.endswith("<!-- benchmarks -->\n| benchmarks | table |\n<!-- /benchmarks -->\n")
    # A report that does not measure the index alone keeps its table.
    table = sections.read_section(path, sections.SCALE)
    assert table.count("\n") == 2 + len(measured_report.scale_results)
    report.write(replace(measured_report, scale_results=[]), tmp_path)
    assert sections.read_section(path, sections.SCALE) == table


def test_the_headline_table_has_a_number_for_each_competitor(root, tmp_path, monkeypatch):
    set_constant(monkeypatch, headline, "LOOKUPS", (("one key", True, 1, 1), ("two", True, 2, 1)))
    set_constant(monkeypatch, headline, "_FIRST_LOOKUPS", 1)
    seconds = headline.measure(headline.write_data(4_000, root), lambda line: None)
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- headline -->\nold\n<!-- /headline -->\nafter\n", "utf-8")
    headline.write_readme(seconds, readme)
    before, marker, header, _, *rows, end, after = readme.read_text("utf-8").splitlines()
    assert (before, marker, end, after) == (
        "before",
        "<!-- headline -->",
        "<!-- /headline -->",
        "after",
    )
    assert header.count("|") == len(headline.COMPETITORS) + 2
    assert [row.split(" | ")[0] for row in rows] == [
        "| one key, first lookup of a process",
        "| one key",
        "| two",
    ]
    assert all(re.fullmatch(r"\| [\w ,]+ (\| [\d,.]+ )+\|", row) for row in rows)


def test_readme_and_report_have_their_markers():
    for name, section in (
        ("README.md", headline.SECTION),
        *(("bench/REPORT.md", section) for section in sections.ALL),
    ):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text.count(f"<!-- {section} -->") == text.count(f"<!-- /{section} -->") == 1


# Leave out clustered and sorted keys, which have the type and the width of random ones.
KEY_KINDS = [name for name in data.SYNTHETIC if name not in ("clustered int64", "sorted int64")]


@pytest.mark.parametrize("name", KEY_KINDS)
def test_competitors_find_the_rows_of_brute_force(root, name):
    """Compare all competitors for each kind of key: one key, several keys and many keys."""
    check_answers(data.synthetic(name, 2_000, root), competitors.competitors()[0])


def check_answers(data_set, competitor_types):
    present, absent = data_set.present_keys(150), data_set.absent_keys(10)
    assert data_set.rows_of(absent).size == 0
    for competitor_type in competitor_types:
        competitor = competitor_type(data_set)
        competitor.build()
        competitor.open()
        several = list(dict.fromkeys(present[:5] + absent[:5]))
        for keys in (present[:1], absent[:1], several, present + absent):
            ids = data.sorted_ids(competitor.lookup(keys), data_set.row_id)
            assert ids.equals(data_set.expected_ids(keys)), (competitor.name, len(keys))
        competitor.close()


@pytest.mark.parametrize("layout", layouts.WRITERS)
def test_rows_are_the_same_in_every_layout(root, layout):
    first = data.synthetic("uuid, 36 bytes", 2_000, root)
    data_set = first.in_layout(layout)
    assert data.DataSet.load(data_set.folder) == data_set
    assert data_set.file_rows == first.file_rows
    assert data_set.keys.to_pylist() == first.keys.to_pylist()
    assert data_set.ids.to_pylist() == first.ids.to_pylist()
    check_answers(data_set, competitors.PEERS)


def test_a_wrong_answer_ends_the_run(root):
    data_set = data.synthetic("sorted int64", 2_000, root)

    class LosesRows(competitors.PyArrow):
        def lookup(self, keys):
            return super().lookup(keys[:1]).slice(0, 0)

    with pytest.raises(WrongAnswer, match="brute force finds"):
        measure([LosesRows(data_set)], data_set, Questions.of(data_set, TINY), TINY)

"""The benchmark report at a tiny size: all competitors answer, and the report has them all."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers import ROOT

from bench import competitors, data, report, scale, tables
from bench.measures import Effort, Questions, WrongAnswer, measure

TINY = Effort(keys=3, seconds=0.01, in_sizes=(1, 10, 100), batch=1_000, cold_runs=1)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def found(root):
    """Every competitor on keys with nulls, without fresh processes, and a small index alone."""
    here, missing = competitors.competitors()
    each = data.synthetic("int64, 10 % null", 20_000, root)
    questions = Questions.of(each, TINY)
    warm_only = Effort(TINY.keys, TINY.seconds, TINY.in_sizes, TINY.batch, cold_runs=0)
    measured = [measure(competitor(each), each, questions, warm_only) for competitor in here]
    scaled = scale.run(root=root, sizes=(20_000,))
    return report.Report(measured, scaled, missing)


def test_only_what_is_not_built_yet_is_left_out():
    here, missing = competitors.competitors()
    expected = [each for each in competitors.ALL if each.name != "zonebloom sliced"]
    assert [each for each in here if each.name != "zonebloom sliced"] == expected
    assert len(here) + len(missing) == len(competitors.ALL)


def test_the_report_has_every_row(found):
    text = report.markdown(found)
    header = next(line for line in text.splitlines() if "batch, keys/s" in line)
    for each in found.measured:
        rows = [line for line in text.splitlines() if line.startswith(f"| {each.competitor} |")]
        assert header.count("|") in [row.count("|") for row in rows]
    assert all(count in header for count in ("IN of 10 ", "IN of 100 "))
    for each in found.scaled:
        assert f"| {each.rows:,}, {each.num_zones:,}, {each.layout} |" in text
    assert all(line in text for line in found.missing)


def test_plots_and_readme_are_written(found, tmp_path):
    report.write(found, tmp_path)
    linked = set(re.findall(r"plots/[\w-]+\.png", report.markdown(found)))
    assert linked == {f"plots/{path.name}" for path in (tmp_path / "plots").iterdir()}
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- peers -->\nold\n<!-- /peers -->\nafter\n", encoding="utf-8")
    report.write_readme(found, readme)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- peers -->\nMeasured on")
    assert text.endswith("<!-- /peers -->\nafter\n")
    assert "old" not in text


def test_the_readme_has_its_markers():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("<!-- peers -->") == text.count("<!-- /peers -->") == 1


# Clustered and sorted keys are of the type and the widths of random ones.
KINDS = [name for name in data.SYNTHETIC if name not in ("clustered int64", "sorted int64")]


@pytest.mark.parametrize("name", KINDS)
def test_answers_are_those_of_brute_force(root, name):
    """Of all competitors on each kind of key, one by one and many at once."""
    each = data.synthetic(name, 2_000, root)
    present, absent = each.present(150), each.absent(10)
    assert each.rows_of(absent).size == 0
    for competitor in competitors.competitors()[0]:
        here = competitor(each)
        here.build()
        here.open()
        for keys in (present[:1], absent[:1], present[:5] + absent[:5], present + absent):
            found = data.sorted_ids(here.lookup(keys), each.row_id)
            assert found == each.expected(keys), (competitor.name, len(keys))
        here.close()


def test_a_wrong_answer_ends_the_run(root):
    each = data.synthetic("sorted int64", 2_000, root)

    class Wrong(competitors.PyArrow):
        def lookup(self, keys):
            return super().lookup(keys[:1]).slice(0, 0)

    with pytest.raises(WrongAnswer, match="brute force finds"):
        measure(Wrong(each), each, Questions.of(each, TINY), TINY)


def test_first_lookups_run_in_fresh_processes(root):
    from bench.cold import first_lookup

    each = data.synthetic("sorted int64", 2_000, root)
    competitors.ZoneBloom(each).build()
    found = first_lookup(each.folder, competitors.ZoneBloom.name, each.present(1)[0])
    assert found.rows == 1
    assert found.seconds > 0
    assert found.peak_bytes > 10_000_000
    assert found.index_bytes is not None and found.index_bytes > 32_768


def test_a_data_set_that_cannot_be_made_is_named(root, monkeypatch):
    monkeypatch.setattr(data.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(report, "competitors", lambda: ([], []))
    lines: list[str] = []
    found = report.run(report.Options(parts=("tpch",), root=root / "none"), lines.append)
    assert found.missing == ["tpch is left out: tpchgen-cli is not installed"] == lines


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
    assert tables._cell(0.002, 0.001, tables.time_text, alone=False) == "2 ms (2×)"
    assert tables._cell(None, 0.001, tables.time_text, alone=False) == ""

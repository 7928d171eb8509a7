"""The command line: its output, its exit codes, its errors and its builds on Spark."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import pickle
import re
import shlex
import signal
import struct
import subprocess
import sys
import textwrap
import time
import uuid
from decimal import Decimal
from unicodedata import east_asian_width

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from support import drifting
from support.helpers import ROOT, index_folder, run_command
from support.seams import replace_function

import zonebloom as zb
from zonebloom.errors import FragmentUnreadable, StaleIndexWarning, UnknownIndexKind

ROWS = 30_000
PROGRAM = [sys.executable, "-m", "zonebloom.cli"]


@pytest.fixture
def data(tmp_path):
    """Write three files with keys, names, and a value of every kind that JSON cannot express."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        write_file(folder, number)
    return folder


def write_file(folder, number):
    keys = range(number * ROWS, (number + 1) * ROWS)
    moment = datetime.datetime(2013, 1, 30, 4, 5, 6, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "name": pa.array([f"name {key}" for key in keys]),
            "day": pa.array([datetime.date(2013, 1, 30)] * ROWS),
            "moment": pa.array([moment] * ROWS, pa.timestamp("ns", "UTC")),
            "price": pa.array([Decimal("1.50")] * ROWS, pa.decimal128(7, 2)),
            "ratio": pa.array([float("nan")] * ROWS),
            "raw": pa.array([b"\x00\xff"] * ROWS),
            "tags": pa.array([["a", None]] * ROWS),
        }
    )
    pq.write_table(table, folder / f"{number}.parquet")


@pytest.fixture
def indexed(data, run):
    assert run("build", str(data), "--column", "id")[0] == 0
    return data


@pytest.fixture
def run(capsys):
    """Return a function that runs a command line and returns its exit code, stdout and stderr."""

    def run(*arguments: str):
        capsys.readouterr()
        code = run_command(*arguments)
        return code, *capsys.readouterr()

    return run


def start(*arguments: str, path=str(ROOT), stdin=None, **environment):
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_help_has_an_example_of_every_command_and_its_json_shape(run):
    _, listed, _ = run("--help")
    lines = listed.partition("Commands:\n")[2].splitlines()
    assert len(lines) > 10
    for line in lines:
        name = line.split()[0]
        assert not line.endswith("..."), line
        code, out, _ = run(name, "--help")
        assert (code, "As JSON:" in " ".join(out.split())) == (0, True)
        assert f"zonebloom {name}" in out.partition("Example: ")[2]


def test_build_prints_text_and_json(run, data):
    code, out, err = run("build", str(data), "--column", "id", "--column", "name")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["index", "id_idx", "name_idx"]
    assert err.startswith("built in this process in ")

    options = ["--number-of-items=1000", "--probability=0.01", "--name=keys"]
    code, out, err = run("build", str(data), "--column=id", "--output=json", *options)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["engine"] == "local"
    (index,) = answer["indices"]
    assert (index["name"], index["num_zones"], index["probability"]) == ("keys", 90, 0.01)


def test_lookup_prints_text(run, indexed):
    code, out, err = run("lookup", str(indexed), "id = 42", "--columns", "id,name,tags,raw")
    assert code == 0
    assert out == 'id  name     tags         raw\n42  name 42  ["a", null]  00ff\n'
    assert "1 row; 1 of 12 zones kept by id_idx; read " in err
    assert err.count("\n") == 1


def test_lookup_prints_json(run, indexed):
    code, out, err = run("lookup", str(indexed), "id IN (42, 70000)", "--output", "json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["num_rows"] == 2
    assert answer["rows"][0] == {
        "id": 42,
        "name": "name 42",
        "day": "2013-01-30",
        "moment": "2013-01-30T04:05:06.000000000Z",
        "price": "1.50",
        "ratio": None,
        "raw": base64.b64encode(b"\x00\xff").decode(),
        "tags": ["a", None],
    }
    assert answer["indices"][0]["kept_zones"] == 2
    assert answer["read"]["data_bytes"] > 0
    assert answer["read"]["index_bytes"] > 0


def test_a_lookup_without_rows_exits_with_3(run, indexed):
    code, out, err = run("lookup", str(indexed), "id = -1")
    assert (code, out) == (3, "")
    assert err.startswith("0 rows; 0 of 12 zones kept by id_idx; read 0 B of data")
    code, out, _ = run("lookup", str(indexed), "id = -1", "--output", "json")
    assert code == 3
    assert json.loads(out)["rows"] == []
    _, out, _ = run("lookup", str(indexed), "id > 10", "--columns=id", "--limit=2")
    assert out.split() == ["id", "11", "12"]


@pytest.mark.slow
def test_lookup_finds_keys_from_options_files_and_stdin(run, indexed, tmp_path):
    code, out, err = run("lookup", str(indexed), "--key", "id=42", "--columns", "id,name")
    assert (code, out) == (0, "id  name\n42  name 42\n")
    assert err.startswith("1 row of 1 of 1 key in ")
    assert run("lookup", str(indexed), "--key", "id=-1")[:2] == (3, "")
    assert run("lookup", str(indexed), "--key=name=name 7", "--columns=id")[1].split() == [
        "id",
        "7",
    ]
    assert run("lookup", str(indexed), "--key=day=2013-01-30", "--limit=1")[0] == 0

    keys = tmp_path / "keys.csv"
    keys.write_text("id,why\n70000,a\n-5,b\n42,c\n")
    code, out, err = run("lookup", str(indexed), "--keys", str(keys), "--columns=name")
    assert (code, out) == (0, "name\nname 42\nname 70000\n")
    assert err.startswith("2 rows of 2 of 3 keys in ")
    answer = json.loads(
        run("lookup", str(indexed), "--keys", str(keys), "--limit=1", "--output=json")[1]
    )
    assert (answer["column"], answer["num_keys"], answer["num_rows"]) == ("id", 3, 1)
    assert answer["rows"][0]["name"] == "name 42"
    keys.write_text("70000\n\n42\n-5\n")
    lines = ["--keys", str(keys), "--column=id", "--columns=name"]
    assert run("lookup", str(indexed), *lines)[1] == "name\nname 42\nname 70000\n"
    process = start("lookup", str(indexed), "--keys=-", "--columns=id", stdin=subprocess.PIPE)
    out, err = process.communicate("name\nname 7\nname 8\n", timeout=60)
    assert (process.returncode, out) == (0, "id\n 7\n 8\n")
    keys.write_bytes(b"name \xff\n")
    code, _, err = run("lookup", str(indexed), "--keys", str(keys), "--column=name")
    assert (code, "are not UTF-8" in err) == (1, True)


@pytest.mark.parametrize(
    "options",
    [
        ["--columns", "name,id"],
        ["--columns", "name", "--columns=id"],
        ["--column", "name", "--column=id"],
        ["--columns", "name", "--column=id"],
    ],
)
def test_columns_are_named_together_or_one_by_one(run, indexed, options):
    for command in (["lookup", "id = 42"], ["lookup", "--key=id=42"], ["head", "--limit=1"]):
        code, out, _ = run(command[0], str(indexed), *command[1:], *options, "--output=json")
        assert (code, list(json.loads(out)["rows"][0])) == (0, ["name", "id"])
    out = run("explain", str(indexed), "id = 42", *options, "--output=json")[1]
    assert json.loads(out)["columns"] == ["name", "id"]
    out = run("advise", str(indexed), *options, "--output=json")[1]
    assert [column["column"] for column in json.loads(out)["columns"]] == ["name", "id"]
    assert run("build", str(indexed), *options)[0] == 0
    out = run("stats", str(indexed), *options, "--output=json")[1]
    assert {index["column"] for index in json.loads(out)["indices"]} == {"name", "id"}


def write_orders(folder):
    """Write a hive dataset of rows that share values of a and b, and return its rows."""
    rows = []
    for day in ("2024-05-01", "2024-05-02"):
        table = pa.table({"a": [1, 1, 2, None] * 500, "b": [f"b{i % 6}" for i in range(2000)]})
        (folder / f"day={day}").mkdir(parents=True)
        pq.write_table(table, folder / f"day={day}" / "0.parquet")
        rows += [{**row, "day": day} for row in table.to_pylist()]
    return rows


@pytest.mark.parametrize("has_index", [False, True])
@pytest.mark.parametrize(
    "key",
    [
        {"a": ["1"]},
        {"a": ["1", "2"]},
        {"a": ["2", "-1", "1"]},
        {"b": ["b1", "b5", "none"]},
        {"a": ["1"], "b": ["b0"]},
        {"b": ["b0"], "a": ["1"]},
        {"a": ["2"], "b": ["b0"]},
        {"a": ["1"], "b": ["none"]},
        {"a": ["1"], "b": ["b1"], "day": ["2024-05-02"]},
        {"day": ["2024-05-03"], "a": ["1"]},
    ],
)
def test_several_key_options_find_the_rows_with_these_keys(run, tmp_path, key, has_index):
    folder = tmp_path / "orders"
    rows = write_orders(folder)
    if has_index:
        run("build", str(folder), "--column=a", "--column=b")
    options = [f"--key={name}={value}" for name, values in key.items() for value in values]
    expected = [row for row in rows if all(str(row[name]) in key[name] for name in key)]
    code, out, err = run("lookup", str(folder), *options, "--output=json")
    result = json.loads(out)
    assert code == (0 if expected else 3), err
    assert result["rows"] == expected
    assert result["num_rows"] == len(expected)
    assert result["num_keys"] == max(map(len, key.values()))
    assert result.get("columns", [result.get("column")]) == list(key)
    limited = run("lookup", str(folder), *options, "--limit=3", "--columns=b", "--output=json")[1]
    assert json.loads(limited)["rows"] == [{"b": row["b"]} for row in expected[:3]]


def test_an_index_of_another_use_gets_its_own_name(run, data):
    build = ("build", str(data), "--column=id")
    for options, name, is_replaced in (
        ([], "id_idx", False),
        (["--type=ZONEMAP"], "id_zonemap_idx", False),
        (["--type=ZONEMAP"], "id_zonemap_idx", True),
        (["--type=HASH"], "id_idx", True),
    ):
        code, out, err = run(*build, *options)
        assert (code, out.splitlines()[1].split()[0]) == (0, name)
        assert (f"; replaced {name}" in err) == is_replaced
    indices = json.loads(run("stats", str(data), "--output=json")[1])["indices"]
    kinds = {index["name"]: index["index_type"] for index in indices}
    assert kinds == {"id_idx": "HASH", "id_zonemap_idx": "ZONEMAP"}


def test_messages_name_commands(run, indexed):
    write_file(indexed, 3)
    table = pq.read_table(indexed / "3.parquet")
    pq.write_table(table.append_column("more", table["id"]), indexed / "3.parquet")
    assert "run zonebloom refresh PATH to index it" in run("lookup", str(indexed), "id = 42")[2]
    assert "; give --schema union for all columns" in run("refresh", str(indexed))[2]
    pq.write_table(table.set_column(0, "id", table["id"].cast(pa.string())), indexed / "0.parquet")
    err = run("refresh", str(indexed))[2]
    assert "rebuild it with zonebloom build PATH --column id --name id_idx" in err
    assert "run zonebloom drop PATH --name id_idx" in err


@pytest.mark.parametrize("kind", [FragmentUnreadable, UnknownIndexKind, StaleIndexWarning])
def test_a_message_has_commands_in_place_of_calls(kind):
    commands = {"call ds.refresh()": "run it again", ", or open it with stale=": ""}
    message = kind("a.csv is gone; call ds.refresh(), or open it with stale=\n^", commands=commands)
    for same in (message, pickle.loads(pickle.dumps(message))):
        assert str(same) == "a.csv is gone; call ds.refresh(), or open it with stale=\n^"
        assert same.text_with_commands() == "a.csv is gone; run it again\n^"


@pytest.mark.parametrize("column", [None, "id"])
def test_keys_come_from_parquet(run, indexed, tmp_path, column):
    keys = pa.table({"id": pa.array([42, -1, 43], pa.int32()), "other": ["a", "b", "c"]})
    pq.write_table(keys.select(["id", "other"][:: -1 if column else 1]), tmp_path / "keys")
    options = [] if column is None else [f"--column={column}"]
    lookup = ["lookup", str(indexed), f"--keys={tmp_path / 'keys'}", "--output=json"]
    code, out, _ = run(*lookup, *options)
    assert (code, [row["id"] for row in json.loads(out)["rows"]]) == (0, [42, 43])


@pytest.mark.parametrize("arrow_type", [pa.binary(16), pa.uuid(), pa.string()], ids=str)
def test_uuids_are_keys_whatever_stores_them(run, tmp_path, arrow_type):
    ids = [uuid.UUID(int=number << 64 | 1) for number in range(3)]
    values = list(map(str, ids)) if arrow_type == pa.string() else [key.bytes for key in ids]
    stored = pa.array(values, pa.string() if arrow_type == pa.string() else pa.binary(16))
    keys = stored.cast(arrow_type) if arrow_type != pa.uuid() else pa.uuid().wrap_array(stored)
    folder = tmp_path / "events"
    folder.mkdir()
    pq.write_table(pa.table({"id": keys, "row": [0, 1, 2]}), folder / "0.parquet")
    code, out, _ = run("lookup", str(folder), f"--key=id={ids[1]}", "--columns=row")
    assert (code, out.split()) == (0, ["row", "1"])
    assert run("lookup", str(folder), "--key=id=nothing")[0] != 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["id = 42"], 0),
        (["id = -42"], 3),
        (["name IS NULL AND id = 42"], 3),
        (["--key=id=42"], 0),
        (["--key=id=-42"], 3),
        (["--key=id=42", "--key=name=name 42"], 0),
        (["--key=id=42", "--key=name=name 43"], 3),
    ],
)
def test_a_lookup_that_prints_no_row_tells_whether_one_matches(run, indexed, options, code):
    assert run("lookup", str(indexed), *options)[0] == code
    assert run("lookup", str(indexed), *options, "--limit=1")[0] == code
    limited_code, out, _ = run("lookup", str(indexed), *options, "--limit=0", "--output=json")
    assert limited_code == code
    assert (json.loads(out)["num_rows"], json.loads(out)["rows"]) == (0, [])


def test_explain_shows_indices_and_zones(run, indexed):
    code, out, _ = run("explain", str(indexed), "id = 42 AND name = 'x'")
    assert code == 0
    assert "index id_idx on id: 1 of 12 zones kept" in out
    assert "not answered by an index: name = 'x' (no index on name)" in out
    assert "rows found" not in out
    _, out, _ = run("explain", str(indexed), "id = 42", "--analyze")
    assert "rows found: 1" in out

    _, out, _ = run("explain", str(indexed), "id = 42", "--output", "json")
    answer = json.loads(out)
    assert answer["fragments"][0]["ranges"] == [[0, 8192]]
    assert (answer["num_fragments"], answer["skipped"]) == (3, 2)
    assert "read" not in answer
    _, out, _ = run("explain", str(indexed), "id = 42", "--analyze", "--output", "json")
    assert json.loads(out)["read"]["rows_found"] == 1


def test_stats_describes_an_index(run, indexed):
    _, out, _ = run("stats", str(indexed))
    assert out.splitlines()[1].split()[:2] == ["id_idx", "id"]
    for option in ("--column=id", "--name=id_idx"):
        _, out, _ = run("stats", str(indexed), option)
        assert dict(line.split(maxsplit=1) for line in out.splitlines())["num_zones"] == "12"
    _, out, _ = run("stats", str(indexed), "--output", "json")
    assert json.loads(out)["indices"][0]["num_indexed_rows"] == 3 * ROWS


def test_validate_reports_refreshed_and_damaged_indices(run, indexed):
    write_file(indexed, 3)
    code, out, err = run("refresh", str(indexed))
    assert code == 0
    assert out.splitlines()[1].split() == ["id_idx", "1", "0", "2"]
    assert err.startswith("refreshed in ")
    _, out, _ = run("refresh", str(indexed), "--output", "json")
    (index,) = json.loads(out)["indices"]
    assert (index["changed"], index["fragments_added"]) == (False, 0)
    code, out, _ = run("validate", str(indexed))
    assert (code, out.splitlines()[1].split()) == (0, ["id_idx", "sound", "16", "16", "0", "0"])
    expected = {"name": "id_idx", "state": "sound", "zones": 16, "zones_read": 3, "damage": None}
    expected |= {"changed": [], "gone": []}
    _, out, _ = run("validate", str(indexed), "--output", "json", "--sample", "3")
    assert json.loads(out)["indices"] == [expected]
    code, out, _ = run("validate", str(indexed), "--sample", "all")
    assert (code, out.splitlines()[1].split()[3]) == (0, "16")
    code, _, err = run("validate", str(indexed), "--sample", "-1")
    assert (code, "neither all nor a number" in err) == (2, True)
    segment_files = list(index_folder(indexed).rglob("bloomfilter.arrow"))
    for path in segment_files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    code, out, err = run("validate", str(indexed))
    assert (code, out.splitlines()[1].split()[:2]) == (1, ["id_idx", "damaged"])
    assert "the checksum of" in err
    code, out, _ = run("validate", str(indexed), "--output", "json")
    (index,) = json.loads(out)["indices"]
    assert (code, index["state"], index["zones_read"]) == (1, "damaged", 0)
    assert "the checksum of" in index["damage"]


def test_validate_lists_changed_and_missing_files(run, indexed):
    first, second, third = sorted(indexed.glob("*.parquet"))
    second.write_bytes(first.read_bytes() + b"PAR1")
    third.unlink()
    code, out, _ = run("validate", str(indexed), "--output", "json")
    (index,) = json.loads(out)["indices"]
    assert (code, index["state"], index["changed"], index["gone"]) == (
        0,
        "stale",
        [second.name],
        [third.name],
    )


@pytest.mark.parametrize(
    "damage", ["bloomfilter.arrow", "ranges.arrow", "pages.arrow", "global.sbbf"]
)
def test_refresh_repairs_damaged_files_of_an_index(data, run, damage):
    import zonebloom as zb

    zb.dataset(str(data)).create_scalar_index(
        "id", number_of_items=1000, probability=0.01, global_filter=True, spark=False
    )
    assert run("build", str(data), "--column", "name")[0] == 0
    for path in (index_folder(data) / "segments").rglob(damage):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert run("validate", str(data))[0] == 1
    code, _, err = run("refresh", str(data))
    assert code == 0
    assert "was damaged and is built anew: " in err
    assert run("validate", str(data), "--sample=all")[0] == 0
    (index,) = (
        index for index in zb.dataset(str(data)).describe_indices() if index.name == "id_idx"
    )
    assert (index.number_of_items, index.probability) == (1000, 0.01)
    assert zb.dataset(str(data)).global_filter("id") is not None
    assert run("lookup", str(data), "id = 70000", "--columns=name")[1] == "name\nname 70000\n"
    assert "was damaged" not in run("refresh", str(data))[2]


@pytest.mark.slow
def test_refresh_repairs_a_damaged_version(run, indexed):
    versions = index_folder(indexed) / "versions"
    assert run("build", str(indexed), "--column=name")[0] == 0
    *_, newest = sorted(versions.glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-5])
    code, out, err = run("validate", str(indexed))
    assert (code, out) == (1, "")
    assert "zonebloom refresh" in err
    assert run("refresh", str(indexed))[0] == 0
    code, out, err = run("validate", str(indexed))
    assert (code, err) == (0, "")
    # The lost version was the only one with name_idx, so refresh restores only id_idx.
    assert out.splitlines()[1].split()[:2] == ["id_idx", "sound"]
    for path in versions.glob("*.json"):
        path.write_bytes(b"{}")
    for command in ("validate", "refresh"):
        code, _, err = run(command, str(indexed))
        assert code == 1
        assert "so the indexed columns are unknown; build it again" in err


def test_vacuum_deletes_the_files_of_dropped_indices(run, indexed):
    run("build", str(indexed), "--column=name")
    assert run("drop", str(indexed), "--name=no_idx")[0] == 1
    code, out, _ = run("drop", str(indexed), "--name=name_idx")
    assert (code, out) == (0, "dropped name_idx; left: id_idx\n")
    assert len(list(index_folder(indexed).rglob("bloomfilter.arrow"))) == 2
    code, out, _ = run("vacuum", str(indexed), "--older-than=0s", "--output=json")
    assert (code, json.loads(out)["num_segments"] > 0) == (0, True)
    assert json.loads(out)["foreign"] == []
    for number in range(12):
        (index_folder(indexed) / "segments" / f"theirs{number:02}").mkdir()
    code, out, _ = run("vacuum", str(indexed), "--older-than=0s")
    assert code == 0
    assert out.splitlines()[1] == (
        "left alone 12 paths that are not part of the index: "
        f"{', '.join(f'segments/theirs{number:02}' for number in range(10))} and 2 more"
    )
    assert "theirs11" in run("vacuum", str(indexed), "--output=json")[1]
    assert len(list(index_folder(indexed).rglob("bloomfilter.arrow"))) == 1
    assert run("vacuum", str(indexed), "--older-than=999999999d")[0] == 0
    assert run("stats", str(indexed))[1].splitlines()[1].startswith("id_idx")


def test_ls_head_count_and_schema_describe_the_data(run, indexed):
    write_file(indexed, 7)
    answer = json.loads(run("ls", str(indexed), "--output=json")[1])
    assert [(file["path"], file["rows"], file["indices"]) for file in answer["files"]] == [
        *((f"{number}.parquet", ROWS, ["id_idx"]) for number in range(3)),
        ("7.parquet", None, []),
    ]
    assert run("ls", str(indexed), "--limit=1")[1].splitlines()[1].split()[2:] == [
        "30,000",
        "id_idx",
        "0.parquet",
    ]
    assert run("head", str(indexed), "-n2", "--columns=id,name")[1].splitlines()[1:] == [
        " 0  name 0",
        " 1  name 1",
    ]
    assert run("count", str(indexed))[:2] == (0, f"{4 * ROWS}\n")
    assert run("count", str(indexed), "id IN (4, 5, -1)")[1] == "2\n"
    lines = run("schema", str(indexed))[1].splitlines()
    assert lines[1].split() == ["id", "int64", "yes", "id_idx"]
    assert [line.split()[0] for line in lines[1:]] == pq.read_schema(indexed / "0.parquet").names


def test_output_files_contain_the_rows(run, indexed, tmp_path, monkeypatch):
    lookup = ["lookup", str(indexed), "id IN (42, 70000)"]
    expected = pq.read_table(indexed, filters=[("id", "in", [42, 70000])])
    for output, read in (
        ("parquet", pq.read_table),
        ("arrow", lambda path: pa.ipc.open_file(path).read_all()),
    ):
        path = str(tmp_path / f"rows.{output}")
        code, out, err = run(*lookup, "-o", path)
        assert (code, out) == (0, "")
        assert err.startswith("2 rows; ")
        # The column ratio has only NaN, which does not equal itself.
        assert read(path).drop_columns("ratio").equals(expected.drop_columns("ratio"))
    run(*lookup, "--output=csv", "-o", str(tmp_path / "rows"))
    csv_rows = csv.read_csv(tmp_path / "rows")
    assert csv_rows["name"].to_pylist() == ["name 42", "name 70000"]
    assert csv_rows["tags"].to_pylist() == ['["a", null]'] * 2
    assert base64.b64decode(csv_rows["raw"][0].as_py()) == b"\x00\xff"
    for name in ("rows.jsonl", "rows.ndjson", "rows.JSONL"):
        assert run(*lookup, "-o", str(tmp_path / name))[:2] == (0, "")
        lines = (tmp_path / name).read_text().splitlines()
        assert list(map(json.loads, lines)) == json.loads(run(*lookup, "--output=json")[1])["rows"]
        (tmp_path / name).unlink()
    assert run(*lookup, "--output=jsonl")[1].splitlines() == lines
    code, _, err = run(*lookup, "-o", str(tmp_path / "rows.xlsx"))
    assert (code, "unknown extension" in err, ".ndjson" in err) == (2, True, True)
    assert not (tmp_path / "rows.xlsx").exists()
    code, _, err = run(*lookup, "-o", str(tmp_path / "nowhere" / "rows.csv"))
    assert (code, "cannot write" in err) == (1, True)
    assert sorted(path.name for path in tmp_path.glob("rows*")) == [
        *("rows", "rows.arrow", "rows.parquet"),
    ]


def in_terminal(*arguments, width=80):
    """Run a command in a terminal, and return its exit code and output."""
    # Windows has neither.
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        # A runner of tests may set the width of its own terminal in COLUMNS.
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": str(width)},
        stdout=slave,
        stderr=slave,
        stdin=slave,
    )
    os.close(slave)
    output = b""
    with contextlib.suppress(OSError):
        while data := os.read(master, 65536):
            output += data
    os.close(master)
    # Drop colours and the like.
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    return process.wait(60), text.replace("\r\n", "\n")


@pytest.mark.slow
def test_a_terminal_shows_commands_on_one_line_so_that_they_can_be_pasted(run, data):
    arguments = ["advise", str(data), "--number-of-items=1000"]
    commands = [line for line in run(*arguments)[1].splitlines() if line.startswith("zonebloom ")]
    assert commands
    assert set(commands) <= set(in_terminal(*arguments, width=40)[1].splitlines())


@pytest.mark.slow
def test_a_terminal_shows_what_fits_and_counts_the_rest(run, indexed):
    assert in_terminal("count", str(indexed)) == (0, "90,000\n")
    assert run("count", str(indexed))[1] == "90000\n"
    code, screen = in_terminal("lookup", str(indexed), "id < 100")
    lines = screen.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80 or "rows; " in max(lines, key=len)
    assert lines[40].split()[0] == "39"
    assert "more column" in lines[41]
    assert "60 more rows: --limit N shows N, -o FILE writes all" in screen
    assert "100 rows; " in lines[-1]
    code, screen = in_terminal("lookup", str(indexed), "id < 100", "--limit=90", "--columns=id")
    assert code == 0
    assert len(screen.splitlines()) == 92
    for output in ("arrow", "parquet"):
        code, screen = in_terminal("head", str(indexed), "--output", output)
        assert (code, "garble" in screen) == (2, True)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_delta_and_iceberg_tables_open_like_folders(run, tmp_path, kind):
    table = pa.table({"id": range(1000), "name": [f"name {i}" for i in range(1000)]})
    if kind == "delta":
        deltalake = pytest.importorskip("deltalake")
        folder = tmp_path / "t"
        deltalake.write_deltalake(folder, table.slice(0, 600))
        deltalake.write_deltalake(folder, table.slice(600), mode="append")
        deltalake.DeltaTable(folder).delete("id >= 900")
    else:
        catalogs = pytest.importorskip("pyiceberg.catalog.sql")
        catalog = catalogs.SqlCatalog(
            "c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}"
        )
        catalog.create_namespace("n")
        iceberg_table = catalog.create_table("n.t", schema=table.schema)
        iceberg_table.append(table.slice(0, 600))
        iceberg_table.append(table.slice(600))
        iceberg_table.delete("id >= 900")
        folder = tmp_path / "n" / "t"
    path = str(folder)
    assert run("count", path)[1] == "900\n"
    assert run("build", path, "--column=id")[0] == 0
    code, out, err = run("lookup", path, "id IN (650, 950)")
    assert (code, out) == (0, " id  name\n650  name 650\n")
    assert "kept by id_idx" in err
    assert run("validate", path, "--sample=all")[0] == 0
    if kind == "iceberg":
        *_, newest = sorted((folder / "metadata").glob("*.metadata.json"))
        assert run("count", str(newest))[1] == "900\n"
        twin = newest.with_name(f"{newest.name.partition('-')[0]}-twin.metadata.json")
        twin.write_bytes(newest.read_bytes())
        code, _, err = run("count", path)
        assert (code, "only its catalog knows which is current" in err) == (1, True)


def test_stats_lists_filters_in_the_files(run, tmp_path):
    folder = tmp_path / "embedded"
    folder.mkdir()
    for number in range(2):
        pq.write_table(
            pa.table({"id": range(1000), "other": range(1000)}),
            folder / f"{number}.parquet",
            row_group_size=400,
            bloom_filter_options={"id": {"ndv": 400, "fpp": 0.01}},
        )
    _, out, _ = run("stats", str(folder))
    header, line = out.splitlines()
    assert header.split()[:3] == ["filters", "in", "files"]
    assert line.split()[:3] == ["id", "2", "6"]
    _, out, _ = run("stats", str(folder), "--output", "json")
    (filters,) = json.loads(out)["embedded"]
    assert (filters["column"], filters["num_files"], filters["num_row_groups"]) == ("id", 2, 6)


def test_schema_union_reads_files_of_a_wider_type(run, tmp_path):
    folder = tmp_path / "d"
    drifting.write_file(folder, 0, [1, 2], pa.int32())
    drifting.write_file(folder, 1, [10**12], pa.int64())
    arguments = str(folder), "k = 1000000000000"
    code, _, error = run("lookup", *arguments)
    assert code == 1
    assert "1.parquet holds column 'k' as int64" in error
    assert "--schema union" in error
    assert run("count", *arguments, "--schema=union")[:2] == (0, "1\n")
    assert run("build", str(folder), "--column=k", "--schema=union")[0] == 0
    code, out, _ = run("lookup", *arguments, "--schema=union", "--output=jsonl")
    assert (code, out) == (0, '{"k": 1000000000000, "v": 1}\n')


@pytest.mark.parametrize(
    ("arguments", "message", "num_lines"),
    [
        (["lookup", "DATA", "id ="], "cannot read the filter", 4),
        (["lookup", "DATA", "nothing = 4"], "no column nothing", 4),
        (["lookup", "DATA", "id = 4", "--columns", "id,nothing"], "no column 'nothing'", 1),
        (["lookup", "DATA", "--key", "id=some"], "keys of 'id' cannot be read as int64", 1),
        (["lookup", "DATA", "--key", "nothing=4"], "no column 'nothing'", 1),
        (["lookup", "DATA/nowhere", "id = 4"], "does not exist", 1),
        (["lookup", "DATA", "id = 4", "--format", "odd"], "format is 'odd'", 1),
        (["build", "DATA", "--column=nothing"], "no column 'nothing'", 1),
        (["build", "DATA", "--column=tags"], "cannot be indexed", 1),
        (["build", "DATA", "--column=id", "--probability=2"], "probability", 1),
        (["stats", "DATA", "--name=nothing"], "there is no index 'nothing'", 1),
        (["validate", "DATA"], "zonebloom build", 1),
        (["refresh", "DATA"], "zonebloom build", 1),
    ],
)
def test_an_error_prints_a_message_and_exits_with_1(run, data, arguments, message, num_lines):
    code, out, err = run(*(argument.replace("DATA", str(data)) for argument in arguments))
    assert (code, out) == (1, "")
    assert err.startswith("Error: ")
    # An error of a filter shows the filter, and carets below the mistake.
    assert err.count("\n") == num_lines and ("^" in err) == (num_lines > 1)
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lookup"], "Error:"),
        (["lookup", "data", "--column=id"], "Error:"),
        (["lookup", "data", "--keys", "nowhere"], "Error:"),
        (["lookup", "data", "--key=name"], "give COLUMN=VALUE"),
        (["lookup", "data", "--keys=-", "--column=id", "--column=name"], "give it once"),
        (["lookup", "data", "--keys=-", "--column=id", "--keys=-"], "give it once"),
        (["lookup", "data", "--key=id=1", "--key=id=2", "--key=name=a"], "several keys of column"),
        (["build", "data"], "--column NAME"),
        (["vacuum", "data", "--older-than=week"], "is not a time"),
        (["vacuum", "data", "--older-than=9999999999d"], "is not a time"),
        (["demo", "--spark=fast"], "Error:"),
        # The nearest command or option is suggested.
        (["lokup", "data"], "lookup"),
        (["stats", "data", "--colum=id"], "--column"),
        (["build", "data", "--sprak"], "--spark"),
    ],
)
def test_wrong_usage_exits_with_2(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write_file(tmp_path / "data", 0)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err.partition("Error:")[2] or words == "Error:" in err


def test_the_version_is_that_of_the_package(run):
    import zonebloom

    assert run("--version") == (0, f"zonebloom, version {zonebloom.__version__}\n", "")


def test_a_stale_file_causes_a_warning_of_one_line(run, indexed):
    write_file(indexed, 7)
    code, out, err = run("lookup", str(indexed), "id = 42", "--columns=id")
    assert (code, out.split()) == (0, ["id", "42"])
    warning, _ = err.splitlines()
    assert warning.startswith("Warning: ")
    assert "7.parquet" in warning


def test_the_error_names_the_extra_if_click_is_missing(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "click", None)
    code, out, err = run("--help")
    assert (code, out) == (1, "")
    assert "pip install 'zonebloom[cli]'" in err


@pytest.mark.slow
def test_a_closed_pipe_prints_no_error(indexed):
    process = start("lookup", str(indexed), "id >= 0", "--columns", "id")
    process.stdout.readline()
    process.stdout.close()
    with process.stderr as stderr:
        assert stderr.read() == ""
    assert process.wait(30) == 141


@pytest.mark.parametrize("slow", ["numpy", "pyarrow", "click"])
def test_an_interrupted_import_exits_with_130(tmp_path, slow):
    # Some C modules raise ImportError if an interrupt arrives during their import.
    module = """
        import sys, time
        print("importing", flush=True)
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            raise ImportError("half of it") from None
    """
    (tmp_path / f"{slow}.py").write_text(textwrap.dedent(module))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = start("--help", path=path)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "interrupted; nothing is left half done\n")


@pytest.mark.slow
def test_an_interrupted_build_leaves_no_files_and_the_next_one_works(run, tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    keys = pa.array(range(4_000_000), pa.int64())
    pq.write_table(pa.table({"id": keys, "text": keys.cast(pa.string())}), folder / "0.parquet")
    process = start("build", str(folder), "--column=text", "--column=id")
    segments = index_folder(folder) / "segments"
    while process.poll() is None and not (segments.exists() and any(segments.iterdir())):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.strip() == "interrupted; nothing is left half done"
    assert not index_folder(folder).exists()
    assert run("build", str(folder), "--column=id")[0] == 0
    assert run("lookup", str(folder), "id = 3999999", "--columns=text")[1] == "text\n3999999\n"


FAR = 2**62
UNUSUAL_VALUES = {
    "uuid": (pa.array([b"a" * 16, None], pa.uuid()), f"{'61' * 4}-6161-6161-6161-{'61' * 6}"),
    "json": (pa.array(['{"a": 1}', None], pa.json_()), '{"a": 1}'),
    "view": (pa.array(["a", None], pa.string_view()), "a"),
    "binary_view": (pa.array([b"a", None], pa.binary_view()), "YQ=="),
    "far_date": (
        pa.array([2**31 - 1, None], pa.int32()).cast(pa.date32()),
        "<value out of range: 2147483647>",
    ),
    "far_time": (pa.array([FAR, None], pa.timestamp("us")), f"<value out of range: {FAR}>"),
    "time_ns": (pa.array([1, None], pa.time64("ns")), "00:00:00.000000001"),
    "duration_ns": (pa.array([1, None], pa.duration("ns")), 1),
    "control": (pa.array(["\x1b[31mred", None]), "\x1b[31mred"),
    "wide": (pa.array(["\u57ce" * 30, None]), "\u57ce" * 30),
    "zone": (pa.array([1, None], pa.timestamp("us", "No/Where")), "1970-01-01 00:00:00.000001Z"),
    "zone_ns": (pa.array([1, None], pa.timestamp("ns", "No/Where")), None),
    "nested": (pa.array([[FAR], None], pa.list_(pa.timestamp("us"))), None),
    "struct": (pa.array([{"a": FAR}, None], pa.struct({"a": pa.timestamp("us")})), None),
    "map": (pa.array([[("k", FAR)], None], pa.map_(pa.string(), pa.timestamp("us"))), None),
}


@pytest.mark.parametrize("name", UNUSUAL_VALUES)
def test_values_that_python_cannot_express_are_printed(tmp_path, capsys, name):
    values, expected = UNUSUAL_VALUES[name]
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1, 2], "value": values}), path)
    for output in ["text", "json", "jsonl", "csv"]:
        assert run_command("head", path, "--output", output) == 0
        printed = capsys.readouterr().out
        if output == "text":
            # Control characters are escaped, and long cells are cut.
            assert printed.replace("\n", "").isprintable()
            for line in printed.splitlines():
                assert sum(1 + (east_asian_width(symbol) in "FW") for symbol in line) < 50
        if output == "jsonl":
            first, null = map(json.loads, printed.splitlines())
            assert null == {"id": 2, "value": None}
            assert first["value"] == expected if expected else first["value"]
        if output == "csv":
            options = csv.ConvertOptions(column_types={"value": pa.string()})
            written = csv.read_csv(pa.BufferReader(printed.encode()), convert_options=options)
            value = written["value"][0].as_py()
            assert value == str(expected) if expected else written.num_rows == 2


def test_an_output_never_replaces_a_pipe_or_a_link(data, tmp_path):
    fifo, link, target = tmp_path / "fifo", tmp_path / "link.csv", tmp_path / "target.csv"
    os.mkfifo(fifo)
    link.symlink_to(target)
    reader = subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE)
    head = ["head", str(data), "--columns=id,name"]
    assert run_command(*head, "--output", "csv", "-o", fifo) == 0
    assert reader.communicate(timeout=30)[0].splitlines()[0] == b'"id","name"'
    assert fifo.is_fifo()
    assert run_command(*head, "-o", link) == 0
    assert link.is_symlink() and target.exists()


def test_errors_of_writing_name_the_output(data, capsys):
    if not os.path.exists("/dev/full"):
        pytest.skip("only Linux has this device")
    assert run_command("head", data, "-o", "/dev/full") == 1
    assert "cannot write /dev/full: No space" in capsys.readouterr().err
    assert not os.path.isfile("/dev/full")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_streams_may_be_closed(data, closed):
    shell = f'"$@" {">&-" if closed == "stdout" else "2>&-"}'
    command = ["sh", "-c", shell, "sh", *PROGRAM, "lookup", str(data), "id = 5", "--columns", "id"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0
    assert run.stdout.split() == ([] if closed == "stdout" else ["id", "5"])
    assert "Traceback" not in run.stderr


def test_spark_builds_only_if_it_is_asked_for(monkeypatch, data, run):
    from pyspark.sql import SparkSession

    def start_session(builder):
        raise RuntimeError("no Spark here")

    replace_function(monkeypatch, SparkSession.Builder, "getOrCreate", start_session)
    assert run("build", str(data), "--column=id")[0] == 0
    assert run("refresh", str(data))[0] == 0
    for command in (["build", str(data), "--column=name"], ["refresh", str(data)]):
        code, out, err = run(*command, "--spark")
        assert (code, out) == (1, "")
        assert err.startswith("Error: Spark did not start: no Spark here; check its Java")


def test_spark_without_pyspark_names_the_extra(monkeypatch, data, run):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    code, _, err = run("build", str(data), "--column=id", "--spark")
    assert (code, "pip install 'zonebloom[spark]'" in err) == (1, True)


@pytest.mark.slow
def test_a_spark_that_does_not_start_is_an_error(data, tmp_path):
    environment = {"JAVA_HOME": str(tmp_path), "SPARK_REMOTE": ""}
    process = start("build", str(data), "--column=id", "--spark", **environment)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Error: Spark did not start: " in err
    assert "Traceback" not in err


def read_files(folder, table_format):
    """Return the rows of a table, as its own library reads them."""
    if table_format == "delta":
        return pa.table(pytest.importorskip("deltalake").DeltaTable(str(folder)).to_pyarrow_table())
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


@pytest.fixture(params=["folder", "delta"])
def users(request, tmp_path):
    """Return a table of three files, in which each of 100 users has 9 rows, and its format."""
    folder = tmp_path / "users"
    folder.mkdir()
    for number in range(3):
        ids = range(300 * number, 300 * number + 300)
        rows = pa.table({"id": ids, "user": [f"u{row % 100}" for row in ids], "n": [1.5] * 300})
        if request.param == "delta":
            pytest.importorskip("deltalake").write_deltalake(str(folder), rows, mode="append")
        else:
            pq.write_table(rows, folder / f"{number}.parquet")
    return folder, request.param


def test_erase_deletes_rows_and_its_receipt_is_checked(users, run, tmp_path):
    folder, table_format = users
    path, receipt, keys = str(folder), str(tmp_path / "erased.json"), tmp_path / "keys.csv"
    assert run("build", path, "--column", "user", "--type", "HASH")[0] == 0
    before = read_files(folder, table_format)
    code, out, _ = run("erase", path, "--key", "user=u42", "--dry-run", "--receipt", receipt)
    assert (code, "nothing was changed" in out, os.path.exists(receipt)) == (0, True, False)
    assert read_files(folder, table_format).equals(before)
    keys.write_text("user,why\nu42,asked\n")
    erase = ["erase", path, "--keys", str(keys), "--on", "user", "--filter", "id > 3"]
    assert run(*erase)[0] == run("erase", path)[0] == run(*erase[:4])[0] == 2
    code, out, err = run(*erase[:6], "--receipt", receipt, "--output", "json")
    document = json.loads(out)
    assert (code, document["num_deleted"], f"in {receipt}" in err) == (0, 9, True)
    assert document["verification"]["is_proven"]
    (lines := tmp_path / "keys.txt").write_text("u42\nu43\n")
    plain = ["erase", path, "--keys", str(lines), "--column", "user", "--dry-run"]
    assert json.loads(run(*plain, "--output", "json")[1])["keys"]["count"] == 2
    check = ["receipt", receipt, path, "--output", "json"]
    by_lines = run(*check, "--keys", str(lines), "--column", "user")
    assert by_lines == run(*check, "--key", "user=u42", "--key", "user=u43")
    assert by_lines[0] == 1
    left = read_files(folder, table_format)
    assert left.num_rows == 891
    assert "u42" not in left["user"].to_pylist()
    code, out, err = run("erase", path, "--filter", "id < 10", "--receipt", receipt)
    assert (code, "exists; give a new file" in err) == (1, True)
    assert read_files(folder, table_format).num_rows == 891

    code, out, _ = run("receipt", receipt)
    assert (code, "rows deleted   9" in out) == (0, True)
    code, out, _ = run("receipt", receipt, path, "--keys", str(keys), "--output", "json")
    traces = json.loads(out)["traces"]
    assert (code, traces["is_searched"]) == (1, True)
    kinds = {"file", "log"} if table_format == "delta" else {"index"}
    assert kinds <= {trace["kind"] for trace in traces["found"]}
    assert run("receipt", receipt, "--purge")[0] == 2
    assert "not the 1 key" in run("receipt", receipt, path, "--key", "user=u43")[2]
    assert "is of user" in run("receipt", receipt, path, "--key", "id=43")[2]
    code, out, _ = run("receipt", receipt, path, "--key", "user=u42")
    given = f"{shlex.quote(receipt)} {shlex.quote(path)}"
    command = f"zonebloom receipt {given} --key user=VALUE --purge"
    assert (code, command in out, "vacuum" in out) == (1, True, False)
    code, out, _ = run("receipt", receipt, path, "--key", "user=u42", "--purge")
    assert (code, "Nothing holds these keys." in out.splitlines()) == (0, True)
    assert "were compared with user: in other files" in out.splitlines()[-1]
    receipt = f"{receipt}2"
    erase = ["erase", path, "--filter", "id < 10", "--receipt", receipt, "--output", "json"]
    code, out, _ = run(*erase)
    assert (code, json.loads(out)["num_deleted"]) == (0, 10)
    assert "of a filter; give --filter\n" in run("receipt", receipt, path, "--key", "id=3")[2]


def test_a_receipt_is_checked_with_keys_of_partition_folders(run, tmp_path):
    for day in ("a", "b"):
        folder = tmp_path / "rows" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2, 3]}), folder / "0.parquet")
    path, receipt = str(tmp_path / "rows"), str(tmp_path / "erased.json")
    keys = ["--key", "id=2", "--key", "day=a"]
    assert run("erase", path, *keys, "--receipt", receipt)[0] == 0
    code, out, _ = run("receipt", receipt, path, *keys)
    assert (code, "Nothing holds these keys." in out.splitlines()) == (0, True)


def test_an_interrupted_change_says_that_it_may_be_half_done(users, run, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    replace_function(monkeypatch, pq, "ParquetWriter", interrupted)
    code, _, err = run("erase", str(users[0]), "--key", "user=u42")
    assert (code, "run the command again" in err) == (130, True)


@pytest.mark.slow
def test_upsert_reads_batches_of_csv_and_parquet(users, run, tmp_path):
    folder, table_format = users
    path, batch = str(folder), tmp_path / "batch.csv"
    batch.write_text('id,user,n\n0,,2.25\n5,"",\n1000,new,3\n')
    upsert = ["upsert", path, str(batch), "--on", "id"]
    code, out, _ = run(*upsert, "--dry-run", "--output", "json")
    plan = json.loads(out)
    assert (code, plan["is_committed"], plan["num_updated"]) == (0, False, 2)
    code, out, _ = run(*upsert, "--output", "json")
    receipt = json.loads(out)
    assert (code, receipt["num_updated"], receipt["num_inserted"]) == (0, 2, 1)
    rows = read_files(folder, table_format).sort_by("id").to_pylist()
    assert len(rows) == 901
    assert [rows[number] for number in (0, 5, -1)] == [
        {"id": 0, "user": None, "n": 2.25},
        {"id": 5, "user": "", "n": None},
        {"id": 1000, "user": "new", "n": 3.0},
    ]
    others = tmp_path / "others.parquet"
    pq.write_table(pa.table({"id": [1, 2000], "user": ["x", "y"], "n": [7.5, 7.5]}), others)
    with open(others, "rb") as stdin:
        arguments = ["upsert", path, "-", "--on", "id,user", "--when-matched", "ignore"]
        process = start(*arguments, "--columns", "n", "--output", "json", stdin=stdin)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["num_inserted"] == 2
    code, out, _ = run("upsert", path, str(others), "--on", "id", "--when-not-matched", "ignore")
    assert (code, "rows updated   2" in out.replace(" 3", " 2"), "inserted" in out) == (
        0,
        True,
        False,
    )
    # A wrong value may come in a later block of the file.
    for num_rows in (0, 200_000):
        rows = "".join(f"{number},{number}\n" for number in range(num_rows))
        batch.write_text(f"id,n\n{rows}-1,many\n")
        code, _, err = run(*upsert)
        assert (code, "many" in err, "cannot read" in err) == (1, True, True)
    batch.write_text("id,n,n\n0,1,2\n")
    code, _, err = run(*upsert)
    assert (code, "rows have several columns 'n'" in err) == (1, True)
    batch.write_text("id,n\n0,1\n0,2\n")
    code, _, err = run(*upsert)
    assert (code, "1 key occurs more than once" in err) == (1, True)


@pytest.mark.slow
def test_locate_and_files_print_where_keys_are(indexed, run, tmp_path):
    keys, path = tmp_path / "keys.csv", str(indexed)
    keys.write_text("name,id\nname 5,5\nname 6,7\nname 89999,89999\n")
    code, out, err = run("locate", path, "--on", "id", "--keys", str(keys), "--output", "json")
    document = json.loads(out)
    assert (code, document["num_keys"], document["num_found"]) == (0, 3, 3)
    places = [(row["id"], os.path.basename(row["_file"]), row["_pos"]) for row in document["rows"]]
    assert places == [(5, "0.parquet", 5), (7, "0.parquet", 7), (89999, "2.parquet", 29999)]
    both = ["--on", "id,name", "--keys", str(keys)]
    code, out, err = run("locate", path, *both, "--missing", "--output", "csv")
    assert (code, out) == (0, '"id","name"\n7,"name 6"\n')
    assert "1 missing key; 2 of 3 keys found" in err
    code, out, _ = run("files", path, *both, "--filter", "id > 5", "--output", "json")
    (row,) = json.loads(out)["rows"]
    assert (os.path.basename(row["_file"]), row["num_keys"], row["num_rows"]) == ("2.parquet", 1, 1)
    stored = tmp_path / "keys.parquet"
    pq.write_table(pa.table({"id": pa.array([5, None, -1], pa.int64())}), stored)
    with open(stored, "rb") as stdin:
        process = start("files", path, "--on", "id", "--keys", "-", "--missing", stdin=stdin)
        out, _ = process.communicate()
    assert (process.returncode, out.split()) == (0, ["id", "-", "-1"])
    assert run("locate", path, "--key", "id=-1")[0] == 3
    assert run("locate", path, "--key", "id=5", "--missing")[0] == 3
    code, _, err = run("files", path, "--on", "nowhere", "--keys", str(keys))
    assert (code, "has no column 'nowhere', but name, id" in err) == (1, True)
    lines = tmp_path / "keys.txt"
    lines.write_text("5\n89999\n")
    for command in ("locate", "files"):
        plain = [command, path, "--keys", str(lines), "--column", "id", "--output", "json"]
        as_columns = [command, path, "--key", "id=5", "--key", "id=89999", "--output", "json"]
        answers = [json.loads(run(*arguments)[1])["rows"] for arguments in (plain, as_columns)]
        assert answers[0] == answers[1] != []
    wrong_options = (
        [],
        ["--on", "id"],
        ["--column", "id"],
        ["--keys", str(keys)],
        ["--keys", str(keys), "--on", "id", "--column", "id"],
        ["--key", "id=1", *both],
    )
    for wrong in wrong_options:
        assert run("locate", path, *wrong)[0] == 2


@pytest.mark.slow
def test_an_iceberg_table_is_changed_through_its_catalog(tmp_path, run):
    from pyiceberg.catalog.sql import SqlCatalog

    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = SqlCatalog("lake", uri=uri, warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")
    rows = pa.table({"id": range(100), "user": [f"u{row % 10}" for row in range(100)]})
    table = catalog.create_table("shop.orders", rows.schema)
    table.append(rows)
    code, _, err = run("erase", table.location(), "--key", "user=u4")
    assert (code, "without its catalog" in err) == (1, True)
    arguments = ["erase", "shop.orders", "--catalog", "lake", "--key", "user=u4"]
    # pyiceberg reads its configuration when it is imported.
    process = start(*arguments, "--output", "json", PYICEBERG_CATALOG__LAKE__URI=uri)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["num_deleted"] == 10
    left = catalog.load_table("shop.orders").scan().to_arrow()
    assert sorted(left["id"].to_pylist()) == [row for row in range(100) if row % 10 != 4]
    code, _, err = run("erase", "shop.orders", "--catalog", "nowhere", "--key", "user=u4")
    assert (code, "shop.orders from the catalog nowhere" in err) == (1, True)


def test_text_is_refused_as_a_key_of_bytes(run, tmp_path):
    """The CSV that the command itself writes has bytes in base64."""
    keys, folder = tmp_path / "keys.csv", tmp_path / "rows"
    hashes = [bytes([number] * 16) for number in range(10)]
    folder.mkdir()
    pq.write_table(
        pa.table({"h": pa.array(hashes, pa.binary()), "n": range(10)}), folder / "0.parquet"
    )
    path = str(folder)
    assert run("lookup", path, "n < 3", "--columns", "h", "-o", str(keys))[0] == 0
    as_text = ["--key", "h=" + keys.read_text().splitlines()[1].strip('"')]
    for command, arguments in (
        ("lookup", ["--keys", str(keys)]),
        ("lookup", as_text),
        ("locate", ["--keys", str(keys), "--on", "h"]),
        ("erase", ["--keys", str(keys), "--on", "h"]),
        ("erase", as_text),
    ):
        code, _, err = run(command, path, *arguments)
        assert (code, "column 'h' holds bytes" in err) == (1, True), command
    stored = tmp_path / "keys.parquet"
    pq.write_table(pa.table({"h": pa.array(hashes[:3], pa.binary())}), stored)
    code, out, _ = run("lookup", path, "--keys", str(stored), "--output", "json")
    assert (code, [row["n"] for row in json.loads(out)["rows"]]) == (0, [0, 1, 2])


def test_short_and_empty_files_of_keys_are_read(run, indexed, tmp_path):
    keys = tmp_path / "keys.txt"
    for content, num_keys in (("5\n", 1), ("", 0), ("12", 1)):
        keys.write_text(content)
        for command in ("lookup", "locate"):
            arguments = [command, str(indexed), "--keys", str(keys), "--column", "id"]
            code, out, err = run(*arguments, "--output", "json")
            assert (code in (0, 3), err, json.loads(out)["num_keys"]) == (True, "", num_keys)


def test_an_encrypted_index_is_not_described_as_none(run, tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    pq.write_table(pa.table({"id": range(10)}), folder / "0.parquet")
    encryption = zb.Encryption("a", {"a": bytes(32)})
    zb.dataset(folder, encryption=encryption).create_scalar_index("id")
    for command in ("stats", "vacuum"):
        code, out, err = run(command, str(folder))
        assert (code, out, "is encrypted by key 'a'" in err) == (1, "", True), command


def test_a_path_in_a_table_is_refused_with_the_folder_to_give(run, tmp_path):
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "t", pa.table({"id": range(10)}))
    code, _, err = run("count", f"{tmp_path}/t/*.parquet")
    assert (code, f"give the folder {tmp_path}/t instead" in err) == (1, True)

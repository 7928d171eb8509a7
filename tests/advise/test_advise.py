"""Compare advise() with brute force over all rows, and with real indices."""

from __future__ import annotations

import json
import shlex
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from support.helpers import PLAIN_TYPES, run_command, sample
from support.limits import set_limit

import zonebloom as zb

ZONE = 250
ROWS = 100_000
ZONES = ROWS // ZONE


def columns_table():
    rng = np.random.default_rng(3)
    row_numbers = np.arange(ROWS)
    keys = rng.permutation(ROWS)
    zipf = 1 / np.arange(1, 10_001) ** 1.1
    return pa.table(
        {
            "unique": keys,
            "text": pa.array([f"key {key:08d}" for key in keys]),
            "dozen": rng.permutation(ROWS) // 12,
            "half": pa.array(rng.permutation(ROWS), mask=rng.random(ROWS) < 0.5),
            "skewed": np.where(rng.random(ROWS) < 0.8, -1, keys),
            "message": [f"request r{key} of job {key % 50} took {key % 7} ms" for key in keys],
            "sorted": row_numbers,
            "times": pa.array(row_numbers // 20, pa.timestamp("s")),
            "late": pa.array(row_numbers + rng.integers(0, 40_000, ROWS), pa.timestamp("s")),
            "clustered": row_numbers // 1000 * 50 + rng.integers(0, 150, ROWS),
            "runs": row_numbers // (5 * ZONE),
            "near": row_numbers // ZONE * 25 + rng.integers(0, 250, ROWS),
            "few": rng.integers(0, 40, ROWS),
            "zipf": rng.choice(10_000, ROWS, p=zipf / zipf.sum()),
            "constant": pa.array(["same"] * ROWS),
            "changed": pa.array(keys, pa.timestamp("s")),
            "price": keys / 100,
            "flag": row_numbers % 2 == 0,
            "null": pa.nulls(ROWS, pa.int32()),
            "list": pa.array([[1]] * ROWS),
        }
    )


VERDICTS = {
    **dict.fromkeys(["unique", "text", "dozen", "half", "skewed", "message"], "BLOOMFILTER"),
    **dict.fromkeys(["sorted", "times", "late", "clustered", "runs"], "ZONEMAP"),
    **dict.fromkeys(["few", "constant", "list[]"], "too few distinct values"),
    **dict.fromkeys(["changed", "price"], "rarely looked up"),
    "flag": "not indexable: two values cannot tell zones apart; filter on it without an index",
    "null": "nothing but nulls",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a table, its folder of four files with small pages, and the advice on it."""
    table = columns_table()
    folder = tmp_path_factory.mktemp("advise") / "data"
    folder.mkdir()
    for number in range(4):
        pq.write_table(
            table.slice(number * ROWS // 4, ROWS // 4),
            folder / f"{number}.parquet",
            write_page_index=True,
            max_rows_per_page=250,
            row_group_size=5_000,
            use_dictionary=False,
        )
    return table, folder, zb.dataset(folder).advise(number_of_items=ZONE)


@pytest.mark.slow
@pytest.mark.parametrize("column", VERDICTS)
def test_every_column_gets_the_right_verdict(data, column):
    *_, advices = data
    advice = advices[column]
    assert (advice.index_type or advice.verdict) == VERDICTS[column], advice.why
    assert (advice.verdict == "index") == (advice.index_type is not None)
    assert advice.why
    assert ("tokens" in advice.options) == (column == "message")


def test_figures_of_the_dataset_are_exact(data):
    *_, advices = data
    assert (advices.num_rows, advices.num_zones) == (ROWS, ZONES)
    assert advices.sampled_zones <= 50
    assert advices["null"].null_share == 1.0
    assert advices["half"].null_share == pytest.approx(0.5, abs=0.02)
    assert advices["unique"].distinct_per_zone == ZONE
    assert advices["list[]"].distinct == 1


@pytest.mark.parametrize(
    ("column", "factor"),
    [
        ("unique", 1.01),
        ("text", 1.01),
        ("dozen", 1.2),
        ("half", 1.03),
        ("sorted", 1.01),
        ("times", 1.3),
        ("clustered", 1.4),
        ("runs", 1.6),
        ("near", 1.4),
        ("few", 1),
        ("skewed", 1.1),
        ("zipf", 2.5),
        ("constant", 1),
    ],
)
def test_the_number_of_distinct_values_is_estimated(data, column, factor):
    table, _, advices = data
    truth = len(table.column(column).drop_null().unique())
    assert truth / factor <= advices[column].distinct <= truth * factor


def condition(column: str, key: Any) -> Any:
    if column == "message":
        return f"contains_token(message, '{key}')"
    return [(column, "=", key)]


@pytest.mark.many
@pytest.mark.parametrize(
    ("column", "figure", "factor"),
    [
        ("unique", "zones_read", 1.05),
        ("text", "zones_read", 1.05),
        ("dozen", "zones_read", 1.2),
        ("half", "zones_read", 1.05),
        ("zipf", "zones_read", 1.2),
        ("few", "zones_read", 1.01),
        ("message", "zones_per_value", 1.5),
        ("sorted", "zones_in_bounds", 1.4),
        ("times", "zones_in_bounds", 1.4),
        ("late", "zones_in_bounds", 1.4),
        ("clustered", "zones_in_bounds", 1.4),
        ("runs", "zones_in_bounds", 1.6),
    ],
)
def test_the_estimated_zones_are_those_that_an_index_keeps(data, tmp_path, column, figure, factor):
    table, folder, advices = data
    advice = advices[column]
    kind = advice.index_type or "BLOOMFILTER"
    ds = zb.dataset(folder, index_dir=str(tmp_path))
    options = {"number_of_items": ZONE, **advice.options}
    ds.create_scalar_index(column, kind, spark=False, **options)
    keys = table.column(column).drop_null()
    keys = keys.take(np.random.default_rng(1).integers(0, len(keys), 200)).to_pylist()
    if column == "message":
        keys = [text.split()[1] for text in keys]
    kept = np.mean([len(ds.search(condition(column, key)).at_most) / ZONE for key in keys])
    assert kept / factor <= getattr(advice, figure) <= kept * factor
    # A lookup reads a part of the zones if and only if the verdict is to index the column.
    assert (kept < 0.7 * ZONES) == (advice.index_type is not None) or column == "zipf"
    assert ds.describe_indices()[0].num_zones == advices.num_zones
    # The index is known from now on, so nothing proposes it again.
    again = ds.advise(column, number_of_items=ZONE)
    assert again[column].verdict in ("indexed already", "too few distinct values")
    assert again.calls == [] and ds.describe_indices()[0].name in again[column].why


@pytest.mark.parametrize(
    ("existing", "proposed"),
    [
        (("unique", "HASH"), None),
        (("unique", "ZONEMAP"), "ds.create_scalar_index('unique', 'BLOOMFILTER', name="),
        (("sorted", "BLOOMFILTER"), None),
        (("price", "BLOOMFILTER"), None),
        (("message", "BLOOMFILTER"), "ds.create_scalar_index('message', 'BLOOMFILTER', tokens="),
    ],
)
def test_only_an_index_of_another_purpose_leaves_a_proposal(data, tmp_path, existing, proposed):
    _, folder, _ = data
    ds = zb.dataset(folder, index_dir=str(tmp_path))
    ds.create_scalar_index(*existing, spark=False)
    advices = ds.advise(existing[0])
    assert [call.startswith(proposed or "") for call in advices.calls] == [True] * bool(proposed)
    for call in advices.calls:
        exec(call.replace(")", ", spark=False)"), {"ds": ds})
    assert len(ds.describe_indices()) == 1 + bool(proposed)


def test_hash_is_for_tables_of_many_rows(monkeypatch):
    table = pa.table({"id": np.random.default_rng(0).permutation(50_000)})
    ds = zb.dataset(table)
    assert ds.advise().calls == ["ds.create_scalar_index('id', 'BLOOMFILTER')"]
    set_limit(monkeypatch, "rows of a table for HASH", 50_000)
    assert ds.advise().calls == ["ds.create_scalar_index('id', 'HASH')"]
    assert "50,000 rows" in ds.advise()["id"].why


@pytest.mark.slow
def test_the_suggested_calls_build_what_was_advised(data, tmp_path):
    _, folder, advices = data
    ds = zb.dataset(folder, index_dir=str(tmp_path))
    for call in advices.calls:
        exec(call.replace(")", ", spark=False)"), {"ds": ds})
    built = {index.column: index.index_type for index in ds.describe_indices()}
    built["message"] = built.pop("words of message")
    assert built == {advice.column: advice.index_type for advice in advices if advice.index_type}
    assert {entry.number_of_items for entry in ds.opened.version.indices.values()} == {ZONE}
    assert ds.advise(number_of_items=ZONE).calls == []


def test_texts_of_several_words_are_messages_if_they_differ():
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 10**9, 50_000).tolist()
    table = pa.table(
        {
            "log": [f"user {number} logged in from here" for number in numbers],
            "name": [f"Ada Lovelace {number}" for number in numbers],
            "uuid": [f"{number:08}-1234-5678-9abc-def012345678" for number in numbers],
            "template": [f"the user number {number % 20} is gone" for number in numbers],
        }
    )
    advices = zb.dataset(table).advise()
    assert [advice.options.get("tokens") for advice in advices] == ["words", None, None, None]
    # The numbers, and the words of the template.
    assert advices["log"].distinct == pytest.approx(50_005, rel=0.05)
    assert advices["template"].verdict == "too few distinct values"


def test_only_a_small_part_of_a_large_file_is_read(tmp_path):
    rows = 1_500_000
    table = pa.table({"id": np.random.default_rng(0).permutation(rows)})
    path = tmp_path / "large.parquet"
    pq.write_table(table, path, write_page_index=True, max_rows_per_page=250, use_dictionary=False)
    advices = zb.dataset(path).advise(number_of_items=ZONE)
    assert advices.num_zones == 6000
    assert advices.read_bytes < path.stat().st_size / 4
    assert advices["id"].verdict == "index"


@pytest.mark.parametrize("arrow_type", PLAIN_TYPES, ids=str)
def test_every_indexable_type_gets_advice(arrow_type):
    values, encoded = sample(arrow_type, 5000)
    advices = zb.dataset(pa.table({"a": values})).advise("a", number_of_items=ZONE)
    distinct = len({value for value in encoded if value is not None})
    assert advices["a"].distinct == distinct
    assert advices["a"].zones_read >= 1
    assert advices["a"].null_share == pytest.approx(values.null_count / 5000)


def test_dictionaries_leaves_and_nan_are_sampled():
    rng = np.random.default_rng(2)
    words = pa.array([f"word {i}" for i in rng.integers(0, 3000, 20_000)])
    reals = np.where(rng.random(20_000) < 0.1, np.nan, rng.random(20_000))
    inner = pa.StructArray.from_arrays(
        [words, pa.array(reals)], ["word", "real"], mask=pa.array(rng.random(20_000) < 0.2)
    )
    table = pa.table({"coded": words.dictionary_encode(), "inner": inner, "a.b": words})
    advices = zb.dataset(table).advise(number_of_items=500)
    assert [advice.column for advice in advices] == ["coded", "inner.word", "inner.real", "a.b"]
    assert advices["coded"].distinct == advices["a.b"].distinct == len(words.unique())
    assert advices["coded"].zones_in_bounds == advices["a.b"].zones_in_bounds
    assert advices["inner.word"].null_share == pytest.approx(0.2, abs=0.02)
    assert zb.dataset(table).advise("inner.real")["inner.real"].distinct > 10_000


def test_path_columns_need_no_index(tmp_path):
    table = pa.table({"year": [2023] * 2000 + [2024] * 2000, "id": range(4000)})
    pads.write_dataset(
        table,
        tmp_path,
        format="parquet",
        partitioning=pads.partitioning(pa.schema([("year", pa.int32())]), flavor="hive"),
    )
    advices = zb.dataset(tmp_path).advise(number_of_items=ZONE)
    assert advices["year"].verdict == "read from paths"
    assert advices["id"].distinct == 4000


def write_csv_files(folder, ids):
    for number, file_ids in enumerate(ids):
        table = pa.table(
            {"id": file_ids, "file": [number] * len(file_ids), "same": [7] * len(file_ids)}
        )
        csv.write_csv(table, folder / f"{number:03d}.csv")


@pytest.mark.parametrize("num_files", [1, 2, 3, 40])
@pytest.mark.parametrize("rows_per_file", [1, 100])
def test_a_few_small_csv_files_give_exact_figures(tmp_path, num_files, rows_per_file):
    ids = np.arange(num_files * rows_per_file)
    write_csv_files(tmp_path, np.split(ids, num_files))
    advices = zb.dataset(tmp_path, format="csv").advise()
    assert (advices.num_rows, advices.num_zones) == (ids.size, num_files)
    assert advices.sampled_zones == num_files
    assert [advice.distinct for advice in advices] == [ids.size, num_files, 1]
    assert advices["same"].verdict == (
        "too few rows" if num_files == 1 else "too few distinct values"
    )


@pytest.mark.parametrize("is_ordered", [True, False])
def test_ids_that_begin_with_their_time_are_for_a_zone_map(tmp_path, is_ordered):
    """They are UUIDs of version 7 as in traces: many writers, and each is a little late."""
    random = np.random.default_rng(0)
    for number in range(20):
        times = np.arange(number * 2_000, (number + 1) * 2_000) + random.integers(0, 50, 2_000)
        random_ids = [random.bytes(16).hex() for _ in times]
        ids = [
            f"{1_767_225_600_000 + ms:012x}7{random_id[13:]}"
            for ms, random_id in zip(times, random_ids, strict=True)
        ]
        part = pa.table({"trace_id": ids if is_ordered else random_ids})
        pq.write_table(part, tmp_path / f"{number:02d}.parquet")
    advices = zb.dataset(tmp_path).advise(number_of_items=ZONE)
    assert advices["trace_id"].index_type == ("ZONEMAP" if is_ordered else "BLOOMFILTER")


def test_a_file_with_another_type_makes_the_column_not_indexable(tmp_path):
    pq.write_table(pa.table({"a": ["x"] * 2000, "b": range(2000)}), tmp_path / "0.parquet")
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    ds = zb.dataset(pads.dataset(tmp_path, schema=schema))
    advices = ds.advise(number_of_items=ZONE)
    assert advices["a"].verdict.startswith("not indexable")
    assert advices["b"].distinct == 2000


@pytest.mark.parametrize("rows", [0, 1, 400])
def test_small_datasets_have_too_few_rows_for_an_index(rows, tmp_path):
    pq.write_table(pa.table({"a": pa.array(range(rows), pa.int64())}), tmp_path / "a.parquet")
    advices = zb.dataset(tmp_path).advise()
    assert advices["a"].verdict == "too few rows"
    assert advices["a"].distinct == rows
    assert "a: there " in str(advices)


@pytest.mark.slow
def test_the_method_and_the_command_give_the_same_advice(data, tmp_path, capsys):
    """The commands that it prints build what was advised."""
    _, folder, advices = data
    options = [str(folder), "--index-dir", str(tmp_path), "--number-of-items=250"]
    chosen = ["unique", "few", "times", "message"]
    command = ["advise", *options, *(f"--column={column}" for column in chosen)]
    assert run_command(*command) == 0
    out, err = capsys.readouterr()
    first_words = [line.split()[0] for line in out.splitlines()]
    assert first_words == ["column", *chosen, *(f"{c}:" for c in chosen), *["zonebloom"] * 3]
    assert err.startswith("100,000 rows in 400 zones of 250")
    assert run_command(*command, "--output=json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [column["verdict"] for column in document["columns"]] == [
        advices[column].verdict for column in chosen
    ]
    assert (document["num_zones"], document["read"]["bytes"] > 0) == (400, True)
    for line in document["commands"]:
        name, *words = shlex.split(line)
        assert name == "zonebloom"
        assert run_command(*words, "--index-dir", tmp_path) == 0
    built = zb.dataset(folder, index_dir=str(tmp_path)).describe_indices()
    assert [(index.column, index.index_type) for index in built] == [
        *(("unique", "BLOOMFILTER"), ("times", "ZONEMAP"), ("words of message", "BLOOMFILTER"))
    ]


def test_elements_and_entries_are_judged(tmp_path):
    rows = 4000
    table = pa.table(
        {
            "tags": pa.array([[f"t{i // 100}", "all", None] for i in range(rows)]),
            "attrs": pa.array(
                [[("host", f"h{i // 500}")] for i in range(rows)], pa.map_(pa.string(), pa.string())
            ),
            "events": pa.array([[{"id": i, "kind": "x"}] for i in range(rows)]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    ds = zb.dataset(tmp_path)
    advices = ds.advise(number_of_items=100)
    names = ["tags[]", "attrs[]", "events[].id", "events[].kind"]
    assert [advice.column for advice in advices] == names
    assert [advice.distinct for advice in advices] == [rows // 100 + 1, rows // 500, rows, 1]
    assert advices["events[].kind"].verdict == "too few distinct values"
    assert [advice.column for advice in ds.advise(["events", "tags[]"])] == [
        *("events[].id", "events[].kind", "tags[]")
    ]
    exec(advices.calls[0].replace(")", ", spark=False)"), {"ds": ds})
    assert {index.column for index in ds.describe_indices()} == set(names[:3])
    assert ds.advise("tags", number_of_items=100)["tags[]"].verdict == "indexed already"

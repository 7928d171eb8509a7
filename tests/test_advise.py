"""Compare advise() with brute force over all rows, and with real indices."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from helpers import PLAIN_TYPES, sample
from pyarrow import csv, feather

import zonebloom as zb
from zonebloom.cli import main as cli
from zonebloom.errors import ColumnNotFound, InvalidArgument

ZONE = 250
ROWS = 100_000
ZONES = ROWS // ZONE


def advise(ds: zb.Dataset, *columns: str, **options: Any):
    return ds.advise(*columns, **options)


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
            "sorted": row_numbers,
            "dates": pa.array(row_numbers // 20, pa.timestamp("s")),
            "clustered": row_numbers // 1000 * 50 + rng.integers(0, 150, ROWS),
            "few": rng.integers(0, 40, ROWS),
            "skewed": np.where(rng.random(ROWS) < 0.8, -1, keys),
            "zipf": rng.choice(10_000, ROWS, p=zipf / zipf.sum()),
            "constant": pa.array(["same"] * ROWS),
            "flag": row_numbers % 2 == 0,
            "null": pa.nulls(ROWS, pa.int32()),
            "list": pa.array([[1]] * ROWS),
        }
    )


VERDICTS = {
    "unique": "index",
    "text": "index",
    "dozen": "index",
    "sorted": "key ranges suffice",
    "dates": "key ranges suffice",
    "few": "too few distinct values",
    "constant": "too few distinct values",
    "skewed": "index",
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
    ds = zb.dataset(folder)
    return table, folder, advise(ds, number_of_items=ZONE)


@pytest.mark.parametrize("column", VERDICTS)
def test_every_column_gets_the_right_verdict(data, column):
    *_, advices = data
    assert advices[column].verdict == VERDICTS[column], advices[column].why


def test_every_verdict_has_a_reason(data):
    *_, advices = data
    assert advices["unique"].why.startswith(
        "a lookup reads 1.0 of 400 zones; key ranges alone leave"
    )
    assert advices["sorted"].why.startswith("sorted: key ranges alone leave 1.0 of 400 zones")
    assert advices["constant"].why == (
        "1 distinct value; the value of a random row is in 400 of 400 zones"
    )
    assert "rare values" in advices["skewed"].why
    assert advices["flag"].verdict.startswith("not indexable: two values")
    assert advices["list[]"].verdict == "too few distinct values"
    names = [name.removesuffix("[]") for name in (advice.column for advice in advices)]
    assert names == data[0].column_names
    assert {"unique", "text", "dozen", "skewed"} <= set(advices.worth_it)


def test_measures_are_recognised_by_their_type():
    keys = np.random.default_rng(4).permutation(20_000)
    whole = pa.array(keys)
    columns = {
        "index": [whole, whole.cast(pa.string()), whole.cast(pa.decimal128(19, 0))],
        "a measure": [
            *(whole.cast(pa.float64()), whole.cast(pa.float32()), whole.cast(pa.duration("ms"))),
            whole.cast(pa.decimal128(21, 2)),
        ],
    }
    for verdict, arrays in columns.items():
        names = [str(array.type) for array in arrays]
        advices = advise(zb.dataset(pa.table(arrays, names)), number_of_items=ZONE)
        assert {advice.column: advice.verdict for advice in advices} == dict.fromkeys(
            names, verdict
        )
        assert advices.worth_it == (names if verdict == "index" else [])
        assert all("a lookup reads 1.0 of 80 zones" in advice.why for advice in advices)


@pytest.mark.parametrize(
    ("rows_a_value", "verdict"),
    [(10, "index"), (30, "index"), (100, "too few distinct values")],
)
def test_a_key_in_half_of_the_zones_is_worth_an_index(rows_a_value, verdict):
    values = np.random.default_rng(6).integers(0, 10_000 // rows_a_value, 10_000)
    advices = advise(zb.dataset(pa.table({"a": values})), number_of_items=ZONE)["a"]
    assert advices.verdict == verdict, advices.why
    assert (advices.zones_with_index > 0.5 * 40) == (rows_a_value >= 30)


@pytest.mark.parametrize("column", ["unique", "dozen", "few", "zipf", "constant"])
def test_the_estimated_size_of_an_index_is_near_the_real_size(column):
    ds = zb.dataset(columns_table().select([column]))
    advices = advise(ds, number_of_items=ZONE)[column]
    for fold, bytes_said in [(True, advices.index_bytes), (False, advices.index_bytes_unfolded)]:
        ds.create_scalar_index(column, number_of_items=ZONE, fold=fold, spark=False)
        (built,) = ds.describe_indices()
        assert bytes_said == pytest.approx(built.num_bytes, rel=0.3)
    is_small = column in ("few", "zipf", "constant")
    assert (advices.index_bytes < advices.index_bytes_unfolded) == is_small


def test_figures_of_the_dataset_are_exact(data):
    *_, advices = data
    assert (advices.num_rows, advices.num_zones) == (ROWS, ZONES)
    assert advices.sampled_zones <= 50
    one = advices["unique"]
    assert (one.num_rows, one.num_zones, one.null_share) == (ROWS, ZONES, 0.0)
    assert advices["null"].null_share == 1.0
    assert one.distinct_per_zone == ZONE
    assert advices["list[]"].distinct == 1


@pytest.mark.parametrize(
    ("column", "factor"),
    [
        ("unique", 1.01),
        ("text", 1.01),
        ("dozen", 1.2),
        ("sorted", 1.01),
        ("dates", 1.3),
        ("clustered", 1.4),
        ("few", 1),
        ("skewed", 1.1),
        ("zipf", 2.5),
        ("constant", 1),
    ],
)
def test_the_number_of_distinct_values_is_estimated(data, column, factor):
    table, _, advices = data
    truth = len(table.column(column).unique())
    assert truth / factor <= advices[column].distinct <= truth * factor


@pytest.mark.parametrize(
    ("column", "factor"),
    [("unique", 1.05), ("text", 1.05), ("dozen", 1.2), ("clustered", 1.3), ("zipf", 1.2)],
)
def test_zones_read_are_those_of_an_index(data, tmp_path, column, factor):
    table, folder, advices = data
    ds = zb.dataset(folder, index_dir=str(tmp_path))
    ds.create_scalar_index(column, number_of_items=ZONE, spark=False)
    advice = advices[column]
    rows = np.random.default_rng(1).integers(0, ROWS, 200)
    keys = table.column(column).take(rows).to_pylist()
    mean_kept_zones = np.mean([len(ds.search([(column, "=", key)]).at_most) / ZONE for key in keys])
    assert mean_kept_zones / factor <= advice.zones_with_index <= mean_kept_zones * factor
    described = ds.describe_indices()[0]
    assert described.num_zones == advice.num_zones
    # The index keeps a page map besides; how far a filter folds is decided by its bits.
    assert 0.9 * advice.index_bytes <= described.num_bytes <= 1.3 * advice.index_bytes
    assert advice.build_seconds > 0


@pytest.mark.parametrize("column", ["unique", "text", "sorted", "dates", "clustered", "zipf"])
def test_the_zones_that_key_ranges_leave_are_estimated(data, column):
    table, _, advices = data
    values = table.column(column).to_pylist()
    zones = [values[start : start + ZONE] for start in range(0, ROWS, ZONE)]
    bounds = [(min(zone), max(zone)) for zone in zones]
    keys = [values[i] for i in np.random.default_rng(1).integers(0, ROWS, 200)]
    truth = np.mean([sum(low <= key <= high for low, high in bounds) for key in keys])
    assert truth / 1.4 <= advices[column].zones_with_key_ranges <= truth * 1.4


def test_only_a_small_part_of_a_large_file_is_read(tmp_path):
    rows = 1_500_000
    table = pa.table({"id": np.random.default_rng(0).permutation(rows)})
    path = tmp_path / "large.parquet"
    pq.write_table(table, path, write_page_index=True, max_rows_per_page=250, use_dictionary=False)
    advices = advise(zb.dataset(path), number_of_items=ZONE)
    assert advices.num_zones == 6000
    # Sampled zones, and two batches to measure the pace.
    assert advices.read_bytes < path.stat().st_size / 4
    assert advices["id"].verdict == "index"


def test_few_zones_give_exact_figures():
    rng = np.random.default_rng(5)
    values = rng.integers(0, 300, 10_000)
    advices = advise(zb.dataset(pa.table({"a": values})), number_of_items=ZONE)
    advice = advices["a"]
    assert (advices.sampled_zones, advices.num_zones, advice.distinct) == (40, 40, 300)
    zones = [set(values[start : start + ZONE]) for start in range(0, 10_000, ZONE)]
    truth = np.mean([sum(value in zone for zone in zones) for value in values])
    assert advice.zones_with_index == pytest.approx(truth, rel=1e-3)


@pytest.mark.parametrize("arrow_type", PLAIN_TYPES, ids=str)
def test_every_indexable_type_gets_advice(arrow_type):
    values, encoded = sample(arrow_type, 5000)
    advices = advise(zb.dataset(pa.table({"a": values})), "a", number_of_items=ZONE)
    distinct = len({value for value in encoded if value is not None})
    assert advices["a"].distinct == distinct
    assert advices["a"].zones_with_key_ranges is not None
    assert advices["a"].null_share == pytest.approx(values.null_count / 5000)


def test_dictionaries_leaves_and_nan_are_sampled():
    rng = np.random.default_rng(2)
    words = pa.array([f"word {i}" for i in rng.integers(0, 3000, 20_000)])
    reals = np.where(rng.random(20_000) < 0.1, np.nan, rng.random(20_000))
    inner = pa.StructArray.from_arrays(
        [words, pa.array(reals)], ["word", "real"], mask=pa.array(rng.random(20_000) < 0.2)
    )
    table = pa.table({"coded": words.dictionary_encode(), "inner": inner, "a.b": words})
    advices = advise(zb.dataset(table), number_of_items=500)
    assert [advice.column for advice in advices] == ["coded", "inner.word", "inner.real", "a.b"]
    assert advices["coded"].distinct == advices["a.b"].distinct == len(words.unique())
    assert advices["coded"].zones_with_key_ranges == advices["a.b"].zones_with_key_ranges
    assert advices["inner.word"].null_share == pytest.approx(0.2, abs=0.02)
    assert advise(zb.dataset(table), "inner.real")["inner.real"].distinct > 10_000


def test_path_columns_need_no_index(tmp_path):
    table = pa.table({"year": [2023] * 2000 + [2024] * 2000, "id": range(4000)})
    pads.write_dataset(
        table,
        tmp_path,
        format="parquet",
        partitioning=pads.partitioning(pa.schema([("year", pa.int32())]), flavor="hive"),
    )
    advices = advise(zb.dataset(tmp_path), number_of_items=ZONE)
    assert advices["year"].verdict == "read from paths"
    assert advices["id"].distinct == 4000


def test_ipc_files_keep_no_key_ranges(tmp_path):
    table = pa.table({"id": range(100_000)})
    feather.write_feather(table, tmp_path / "a.arrow", chunksize=10_000)
    advices = advise(zb.dataset(tmp_path, format="ipc"), number_of_items=ZONE)
    assert advices["id"].verdict == "index"
    assert advices["id"].why.endswith("the files keep no key ranges")


def write_csv_files(folder, ids):
    for number, file_ids in enumerate(ids):
        table = pa.table(
            {"id": file_ids, "file": [number] * len(file_ids), "same": [7] * len(file_ids)}
        )
        csv.write_csv(table, folder / f"{number:03d}.csv")


def test_one_large_csv_file_is_sampled(tmp_path):
    keys = np.random.default_rng(0).permutation(80_000)
    write_csv_files(tmp_path, [keys[number::2] for number in range(2)])
    advices = advise(zb.dataset(tmp_path, format="csv"), ["id"], number_of_items=ZONE)
    assert advices.num_rows == pytest.approx(80_000, rel=0.02)
    assert advices["id"].verdict == "index"
    assert advices["id"].distinct == pytest.approx(80_000, rel=0.1)


@pytest.mark.parametrize("num_files", [1, 2, 3, 40])
@pytest.mark.parametrize("rows_per_file", [1, 100])
def test_a_few_small_csv_files_give_exact_figures(tmp_path, num_files, rows_per_file):
    ids = np.arange(num_files * rows_per_file)
    write_csv_files(tmp_path, np.split(ids, num_files))
    advices = advise(zb.dataset(tmp_path, format="csv"))
    assert (advices.num_rows, advices.num_zones) == (ids.size, num_files)
    assert advices.sampled_zones == num_files
    assert [advice.distinct for advice in advices] == [ids.size, num_files, 1]
    assert advices["same"].verdict == (
        "too few rows" if num_files == 1 else "too few distinct values"
    )


def test_many_small_csv_files_are_sampled_everywhere(tmp_path):
    write_csv_files(tmp_path, np.split(np.arange(10_000, 40_000), 300))
    advices = advise(zb.dataset(tmp_path, format="csv"))
    assert 40 <= advices.sampled_zones <= 64
    assert advices.num_rows == pytest.approx(30_000, rel=0.05)
    assert advices["id"].distinct == pytest.approx(30_000, rel=0.1)
    assert advices["same"].verdict == "too few distinct values"


def test_counts_of_indexed_csv_files_are_not_estimated(tmp_path):
    write_csv_files(tmp_path, np.split(np.arange(300_000), [100_000, 100_001]))
    ds = zb.dataset(tmp_path, format="csv")
    ds.create_scalar_index("id", "BLOOMFILTER")
    advices = advise(ds, ["id"], number_of_items=ZONE)
    assert advices.sampled_zones < advices.num_zones
    assert advices.num_rows == 300_000


def test_one_file_with_rows_among_those_that_are_counted(tmp_path):
    """Only one zone is sampled, although estimates say that there are more."""
    ids: list[list[int]] = [[] for _ in range(200)]
    ids[0] = list(range(100))
    write_csv_files(tmp_path, ids)
    advices = advise(zb.dataset(tmp_path, format="csv"), ["id"])
    assert advices.sampled_zones == 1 < advices.num_zones
    assert 100 <= (advices["id"].distinct or 0) <= advices.num_rows


@pytest.mark.parametrize("is_ordered", [True, False])
def test_ids_that_begin_with_their_time_need_no_index(tmp_path, is_ordered):
    """Return UUIDs of version 7 as in traces: many writers, and each is a little late."""
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
    advices = advise(zb.dataset(tmp_path), number_of_items=ZONE)
    assert advices["trace_id"].verdict == ("key ranges suffice" if is_ordered else "index")


def test_uuids_in_order_are_worth_an_index(tmp_path):
    """Row groups have their minima and maxima, but pyarrow reads them all."""
    ids = [number.to_bytes(16) for number in range(400_000)]
    for kind in (pa.uuid(), pa.binary(16)):
        storage = pa.array(ids, pa.binary(16))
        column = pa.ExtensionArray.from_storage(kind, storage) if kind == pa.uuid() else storage
        pq.write_table(pa.table({"id": column}), tmp_path / "a.parquet", row_group_size=10_000)
        ds = zb.dataset(tmp_path)
        whole = ds.scanner(filter=f"id = X'{ids[20_000].hex()}'").analyze_plan()
        assert whole.stats.rows_found == 1
        is_read = whole.stats.data_bytes > 0.9 * whole.plan.all_bytes
        advice = advise(ds)["id"]
        assert advice.is_worth_it is is_read is (kind == pa.uuid()), kind
        assert ("pyarrow cannot skip row groups by those of UUIDs" in advice.why) is is_read


def test_many_files_are_estimated(tmp_path):
    for number in range(80):
        rows = np.arange(number * 1000, (number + 1) * 1000)
        pq.write_table(pa.table({"id": rows}), tmp_path / f"{number:02d}.parquet")
    advices = advise(zb.dataset(tmp_path), number_of_items=ZONE)
    assert advices.num_rows == pytest.approx(80_000, rel=0.02)
    assert advices.num_zones == pytest.approx(320, rel=0.05)
    assert advices["id"].verdict == "key ranges suffice"


def test_a_file_with_another_type_makes_the_column_not_indexable(tmp_path):
    pq.write_table(pa.table({"a": ["x"] * 2000, "b": range(2000)}), tmp_path / "0.parquet")
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    ds = zb.dataset(pads.dataset(tmp_path, schema=schema))
    advices = advise(ds, number_of_items=ZONE)
    assert advices["a"].verdict.startswith("not indexable")
    assert advices["b"].distinct == 2000


@pytest.mark.parametrize("rows", [0, 1, 400])
def test_small_datasets_have_too_few_rows_for_an_index(rows, tmp_path):
    pq.write_table(pa.table({"a": pa.array(range(rows), pa.int64())}), tmp_path / "a.parquet")
    advices = advise(zb.dataset(tmp_path))
    assert advices["a"].verdict == "too few rows"
    assert advices["a"].distinct == rows
    assert "a: there " in str(advices)


def test_wrong_arguments_raise(data):
    _, folder, _ = data
    ds = zb.dataset(folder)
    with pytest.raises(ColumnNotFound, match="'nothing'"):
        advise(ds, ["nothing"])
    with pytest.raises(ColumnNotFound):
        advise(ds, "unique.leaf")
    with pytest.raises(InvalidArgument):
        advise(ds, number_of_items=0)
    with pytest.raises(KeyError):
        advise(ds, "unique")["text"]


def test_advice_is_shown_as_a_table(data):
    *_, advices = data
    title, headers, *lines = str(advices).splitlines()
    assert re.match(r"100,000 rows in 400 zones of 250; looked at \d+ zones, read .*B in", title)
    assert headers.split()[:4] == ["column", "type", "distinct", "size"]
    # The table and the reasons, the reason for the kind of all indices, and their call.
    assert len(lines) == 2 * len(advices) + 2
    assert lines[len(advices) : -2] == [str(advice) for advice in advices]
    assert lines[-2].startswith(f"{', '.join(advices.worth_it)}: BLOOMFILTER, because")
    assert lines[-1] == advices.calls[0]
    assert repr(advices).startswith("<Advices: index ")
    html = advices._repr_html_()
    # Both kinds of the columns that are worth an index are compared in a second table.
    assert html.count("<tr>") == 1 + len(advices) + 1 + 2 * len(advices.worth_it)
    assert html.count("BLOOMFILTER (better)") == len(advices.worth_it)
    assert "key ranges suffice" in html and html.count("<li>") == len(lines) - len(advices)


def test_the_method_and_the_command_give_the_same_advice(data, capsys):
    pytest.importorskip("click")
    _, folder, _ = data
    advices = zb.dataset(folder).advise("dozen", number_of_items=ZONE)
    assert [advice.column for advice in advices] == ["dozen"]
    options = ["advise", str(folder), "--column=unique", "--column=few", "--number-of-items=250"]
    assert cli.main(options) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == [
        *("column", "unique", "few", "unique:", "few:", "unique:", "zonebloom")
    ]
    assert err.startswith("100,000 rows in 400 zones of 250")
    assert cli.main([*options, "--output=json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [advice["verdict"] for advice in document["columns"]] == [
        "index",
        "too few distinct values",
    ]
    assert [kind["index_type"] for kind in document["columns"][0]["kinds"]] == [
        *("BLOOMFILTER", "HASH")
    ]
    assert document["read"]["bytes"] > 0
    assert document["num_zones"] == 400


MANY_ROWS = 1_200_000


@pytest.fixture(scope="module")
def many():
    """Return a table of more than a million rows, and the advice on its columns."""
    rng = np.random.default_rng(8)
    table = pa.table(
        {
            "unique": rng.permutation(MANY_ROWS),
            "dozen": rng.permutation(MANY_ROWS) // 12,
            "fifty": rng.integers(0, MANY_ROWS // 50, MANY_ROWS),
            "near": np.arange(MANY_ROWS) // 8000 * 500 + rng.integers(0, 500, MANY_ROWS),
            "few": rng.integers(0, 40, MANY_ROWS),
            "constant": np.zeros(MANY_ROWS, dtype=np.int64),
            "some": pa.array(rng.permutation(MANY_ROWS), mask=rng.random(MANY_ROWS) < 0.5),
        }
    )
    return table, advise(zb.dataset(table))


# A constant needs some hundred bytes, and an estimate of them may be far off.
@pytest.mark.parametrize("column", ["unique", "dozen", "fifty", "near", "few", "some"])
@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_figures_of_both_kinds_are_those_of_real_indices(many, column, kind):
    table, advices = many
    estimate = advices[column].estimate(kind)
    ds = zb.dataset(table.select([column]))
    ds.create_scalar_index(column, kind, spark=False)
    (built,) = ds.describe_indices()
    assert estimate.num_zones == built.num_zones
    assert estimate.index_bytes == pytest.approx(built.num_bytes, rel=0.15)
    rows = np.random.default_rng(2).integers(0, MANY_ROWS, 200)
    keys = [key for key in table[column].take(rows).to_pylist() if key is not None]
    kept_rows = np.mean([len(ds.search([(column, "=", key)]).at_most) for key in keys])
    # Few of the zones of 1,024 rows are sampled around a key that is only in neighbouring zones.
    tolerance = 0.6 if (kind, column) == ("HASH", "near") else 0.25
    assert estimate.rows_with_index == pytest.approx(kept_rows, rel=tolerance)
    absent_keys = np.random.default_rng(3).integers(1 << 60, 1 << 61, 100_000)
    false_zones = ds.search_many(column, absent_keys).read_all().num_rows / absent_keys.size
    assert estimate.false_zones == pytest.approx(false_zones, rel=0.5, abs=5e-4)


def test_the_smaller_kind_is_advised_for_many_rows(many):
    table, advices = many
    assert [advice.column for advice in advices if advice.verdict == "too few distinct values"] == [
        *("few", "constant")
    ]
    for advice in advices:
        bloom, hashed = advice.estimate("bloomfilter"), advice.estimate("hash")
        if not advice.is_worth_it:
            assert (advice.index_type, advice.why_index_type) == (None, "")
        elif hashed.index_bytes <= bloom.index_bytes:
            assert advice.index_type == "HASH"
            assert "in a billion such rows" in advice.why_index_type
        else:
            assert advice.index_type == "BLOOMFILTER"
    assert {"unique", "dozen", "some"} <= set(advices.worth_it_by_type["HASH"])
    assert table.num_rows == advices.num_rows
    with pytest.raises(InvalidArgument, match="BLOOMFILTER, HASH"):
        advices["unique"].estimate("BTREE")


def test_false_zones_in_a_billion_rows_grow_only_for_zone_blooms(many):
    _, advices = many
    for advice in advices:
        bloom, hashed = advice.kinds
        growth = 1e9 / MANY_ROWS
        # All zones of these rows are full, but for the last.
        assert bloom.false_zones_per_billion == pytest.approx(bloom.false_zones * growth, rel=0.01)
        assert hashed.false_zones_per_billion <= 0.004


def test_the_suggested_calls_build_what_was_advised(many):
    table, advices = many
    ds = zb.dataset(table.slice(0, 50_000))
    for call in advices.calls:
        exec(call.replace(")", ", spark=False)"), {"ds": ds})
    built = {index.column: index.index_type for index in ds.describe_indices()}
    assert built == {advice.column: advice.index_type for advice in advices if advice.is_worth_it}


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({}, {"number_of_items": 8192, "probability": 0.00057}),
        (
            {"number_of_items": 512, "probability": 0.01},
            {"number_of_items": 512, "probability": 0.01},
        ),
    ],
)
def test_a_suggested_call_has_the_parameters_of_the_advice(options, parameters):
    keys = np.random.default_rng(0).permutation(50_000)
    ds = zb.dataset(pa.table({"a 'quoted' name": keys}))
    (call,) = advise(ds, **options).calls
    exec(call.replace(")", ", spark=False)"), {"ds": ds})
    (entry,) = ds.opened.version.indices.values()
    assert {name: entry.parameters[name] for name in parameters} == parameters


def test_a_suggested_command_builds_what_was_advised(data, tmp_path, capsys):
    pytest.importorskip("click")
    _, folder, _ = data
    options = [str(folder), "--index-dir", str(tmp_path)]
    assert cli.main(["advise", *options, "--column=unique", "--output=json"]) == 0
    (command,) = json.loads(capsys.readouterr().out)["commands"]
    name, *words = shlex.split(command)
    assert name == "zonebloom"
    assert cli.main([*words, "--index-dir", str(tmp_path)]) == 0
    (built,) = zb.dataset(folder, index_dir=str(tmp_path)).describe_indices()
    assert (built.column, built.index_type) == ("unique", "BLOOMFILTER")


def test_elements_entries_and_tokens_are_judged(tmp_path):
    """The figures are those of the index that the advice builds."""
    rows = 4000
    table = pa.table(
        {
            "tags": pa.array([[f"t{i // 100}", "all", None] for i in range(rows)]),
            "attrs": pa.array(
                [[("host", f"h{i // 500}")] for i in range(rows)], pa.map_(pa.string(), pa.string())
            ),
            "events": pa.array([[{"id": i, "kind": "x"}] for i in range(rows)]),
            "message": [f"request {i} of job-{i // 200} done" for i in range(rows)],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    ds = zb.dataset(tmp_path)
    advices = ds.advise(number_of_items=100)
    names = ["tags[]", "attrs[]", "events[].id", "events[].kind", "message"]
    assert [advice.column for advice in advices] == names
    assert advices["tags[]"].distinct == rows // 100 + 1
    assert advices["attrs[]"].distinct == rows // 500
    assert advices["events[].kind"].verdict == "too few distinct values"
    assert "Lance" not in advices["attrs[]"].why_index_type
    words = ds.advise("message", number_of_items=100, tokens="words", lower=True)
    # The numbers, those of the jobs among them, and four words.
    assert words["message"].distinct == rows + 4
    assert words["message"].verdict == "index"
    (call,) = words.calls
    assert call.endswith("'BLOOMFILTER', tokens='words', lower=True, number_of_items=100)")
    for advice in (advices["tags[]"], advices["events[].id"], words["message"]):
        ds.create_scalar_index(
            advice.column, number_of_items=100, name="built", spark=False, **advice.options
        )
        (built,) = ds.describe_indices()
        assert built.num_zones == advice.num_zones
        # The file has metadata besides.
        assert 0 < built.num_bytes - advice.index_bytes < 2000 + 0.2 * advice.index_bytes
    assert ds.advise(tokens="trigrams").calls == []

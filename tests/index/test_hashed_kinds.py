"""Test searches, refreshes and damage with indices of each kind that hashes keys."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import (
    assert_equals_pyarrow,
    numbered,
    touch_later,
    write_files,
)
from support.helpers import index_folder
from support.limits import set_limit
from support.seams import replace_function

import zonebloom as zb
from zonebloom.errors import (
    IndexExists,
    StaleIndexWarning,
)

ITEMS = 16
ROWS = 700
KINDS = ["BLOOMFILTER", "HASH"]


def part(number: int) -> pa.Table:
    rng = random.Random(number)
    return numbered(
        number * ROWS,
        ROWS,
        id=pa.array([None if rng.random() < 0.02 else rng.randrange(900) for _ in range(ROWS)]),
        f=pa.array(
            [rng.choice([0.0, -0.0, 1.5, math.nan, None, rng.random()]) for _ in range(ROWS)]
        ),
        s=pa.array([rng.choice(["a", "b", f"x{rng.randrange(500)}"]) for _ in range(ROWS)]),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "data", [part(number) for number in range(4)])
    return tmp_path / "data"


def build(folder: Path, kind: str, columns=("id", "f", "s"), **options) -> zb.Dataset:
    ds = zb.dataset(folder)
    ds.create_scalar_index(list(columns), kind, spark=False, number_of_items=ITEMS, **options)
    return ds


FILTERS = [
    *((f"id = {key}", pc.field("id") == key) for key in (0, 5, 77, 450, 899, 5000)),
    ("id IS NULL", pc.field("id").is_null()),
    ("id IN (1, 2, 3, NULL)", pc.field("id").isin([1, 2, 3])),
    ("f = 0", pc.field("f") == 0.0),
    ("s = 'x7' AND id = 3", (pc.field("s") == "x7") & (pc.field("id") == 3)),
    ("s = 'x7' OR id = 3", (pc.field("s") == "x7") | (pc.field("id") == 3)),
    ("NOT (id <> 9)", pc.field("id") == 9),
    (
        pc.field("id").isin(pa.array(range(0, 900, 3))),
        pc.field("id").isin(pa.array(range(0, 900, 3))),
    ),
]


# Filter sizes


def test_folded_filters_are_smaller_and_lose_nothing(tmp_path):
    tables = [
        numbered(
            n * 500, 500, id=pa.array([n] * 250 + list(range(250))), few=pa.array([n % 2] * 500)
        )
        for n in range(3)
    ]
    write_files(tmp_path, tables)
    sizes = {}
    for fold in (False, True):
        ds = zb.dataset(tmp_path)
        ds.create_scalar_index(["id", "few"], spark=False, number_of_items=250, fold=fold)
        statistics = {name: ds.index_statistics(f"{name}_idx") for name in ("id", "few")}
        assert all(index["estimated_fpp_max"] <= 0.00057 for index in statistics.values())
        sizes[fold] = {name: index["num_bytes"] for name, index in statistics.items()}
        for key in (0, 1, 2, 7, 249, 250):
            assert_equals_pyarrow(ds, tmp_path, f"id = {key}", pc.field("id") == key)
            assert_equals_pyarrow(ds, tmp_path, f"few = {key}", pc.field("few") == key)
    assert sizes[True]["few"] < sizes[False]["few"] / 3
    assert sizes[True]["id"] < sizes[False]["id"]


# Refresh


@pytest.mark.slow
def test_appends_rewrite_a_zone_once_per_doubling_of_the_index(folder, monkeypatch):
    set_limit(monkeypatch, "segments that are merged", 1)
    build(folder, "BLOOMFILTER", ["id"], fold=False)
    for number in range(4, 32):
        pq.write_table(part(number), folder / f"part-{number:03d}.parquet")
        ds = zb.dataset(folder)
        (outcome,) = ds.optimize.optimize_indices(spark=False)
        doublings = (number + 1).bit_length()
        assert outcome.num_segments <= doublings
        # All tables that were ever written still exist, because nothing was vacuumed.
        tables = index_folder(folder).rglob("bloomfilter.arrow")
        written = sum(path.stat().st_size for path in tables)
        assert written <= (1 + doublings) * ds.describe_indices()[0].num_bytes
    assert outcome.num_segments == 1
    for filter, expression in FILTERS:
        assert_equals_pyarrow(ds, folder, filter, expression)
    assert ds.describe_indices()[0].num_zones == 32 * math.ceil(ROWS / ITEMS)


# Searches for many keys


def zones_holding(folder: Path, column: str, key) -> set[tuple[int, int]]:
    """Return the (fragment, zone) of all rows equal to a key, by brute force."""
    zones = set()
    for number, path in enumerate(sorted(folder.glob("*.parquet"))):
        for row, value in enumerate(pq.read_table(path)[column].to_pylist()):
            if value is not None and value == key:
                zones.add((number, row // ITEMS))
    return zones


@pytest.mark.many
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("column", "keys"),
    [
        ("id", pa.array([5, None, 77, 5, 5000, 899])),
        ("id", pa.array(range(-100, 1500, 7), pa.int16())),
        ("s", pa.array(["a", "x7", None, "nope"])),
        ("s", pa.chunked_array([["x1"], ["x2", "x3"]])),
        ("f", pa.array([0.0, 1.5, None, -0.0, 2.0])),
    ],
)
def test_search_many_gives_the_zones_of_single_searches(folder, kind, column, keys):
    ds = build(folder, kind, [column])
    result = ds.search_many(column, keys).read_all()
    assert result.schema.names == ["key_index", "fragment_id", "zone"]
    pairs = list(zip(*(values.to_pylist() for values in result.columns), strict=True))
    assert len(set(pairs)) == len(pairs)
    for number, key in enumerate(keys.to_pylist()):
        zones = {(fragment, zone) for index, fragment, zone in pairs if index == number}
        if key is None:
            assert not zones
            continue
        assert zones >= zones_holding(folder, column, key)
        ranges = ds.search(pc.field(column) == key).to_table()
        rows = {
            (fragment, row // ITEMS)
            for fragment, start, stop in zip(
                *(ranges[name].to_pylist() for name in ("fragment_id", "start", "stop")),
                strict=True,
            )
            for row in range(start, stop)
        }
        assert zones == rows


def test_search_many_lists_files_that_may_hold_any_key(folder):
    ds = build(folder, "BLOOMFILTER", ["f"])
    pq.write_table(part(9), folder / "part-009.parquet")
    ds = zb.dataset(folder)
    with pytest.warns(StaleIndexWarning):
        rows = ds.search_many("f", [math.nan, None, 5.0]).read_all().to_pylist()
    whole_files = {(row["key_index"], row["fragment_id"]) for row in rows if row["zone"] is None}
    # The file that is not indexed may hold both keys, and all files may hold NaN.
    assert whole_files == {(0, 4), (2, 4), (0, 0), (0, 1), (0, 2), (0, 3)}


# Regressions


def test_a_dataset_of_some_files_keeps_the_index_of_the_others(folder):
    build(folder, "BLOOMFILTER", ["id"])
    one = zb.dataset([str(folder / "part-000.parquet")])
    (outcome,) = one.optimize.optimize_indices(spark=False)
    assert (outcome.fragments_added, outcome.fragments_dropped, outcome.changed) == (0, 0, False)
    (folder / "part-003.parquet").unlink()
    (outcome,) = one.optimize.optimize_indices(spark=False)
    assert (outcome.fragments_dropped, outcome.changed) == (1, True)
    assert zb.dataset(folder).describe_indices()[0].num_fragments_indexed == 3


@pytest.mark.parametrize("kind", KINDS)
def test_rewrites_do_not_make_an_index_larger(folder, kind):
    build(folder, kind, ["id"])
    zones = math.ceil(ROWS / ITEMS)
    for number in range(9):
        path = folder / "part-002.parquet"
        pq.write_table(part(20 + number), path)
        touch_later(path)
        ds = zb.dataset(folder)
        (outcome,) = ds.optimize.optimize_indices(spark=False)
        assert outcome.fragments_added in (1, 4)
        assert outcome.fragments_dropped == 1
        # The zones of deleted files are at most as many as the others, except for new ones.
        assert ds.validate_index("id_idx") <= 2 * 4 * zones + zones
        assert_equals_pyarrow(ds, folder, "id = 5", pc.field("id") == 5)
    assert ds.optimize.optimize_indices(spark=False)[0].fragments_dropped == 0


def test_an_index_of_an_empty_file_is_sound_after_the_file_gets_rows(folder):
    pq.write_table(part(5).slice(0, 0), folder / "part-004.parquet")
    build(folder, "BLOOMFILTER", ["id"])
    pq.write_table(part(5), folder / "part-004.parquet")
    ds = zb.dataset(folder)
    ds.optimize.optimize_indices(spark=False)
    assert ds.validate_index("id_idx") == 5 * math.ceil(ROWS / ITEMS)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_segments_of_a_written_version_are_kept(folder, monkeypatch, failure):
    versions, sync, failed = index_folder(folder) / "versions", os.fsync, []

    def fail(handle):
        if versions.exists() and os.path.samestat(os.fstat(handle), versions.stat()):
            failed.append(handle)
            raise failure
        sync(handle)

    replace_function(monkeypatch, os, "fsync", fail)
    try:
        build(folder, "BLOOMFILTER", ["id"])
    except KeyboardInterrupt:
        assert failure is KeyboardInterrupt
    assert failed
    ds = zb.dataset(folder)
    assert ds.validate_index("id_idx") == 4 * math.ceil(ROWS / ITEMS)


@pytest.mark.parametrize(
    ("columns", "options", "name"),
    [
        ([("id", "zonemap")], {}, "id_zonemap_hash_idx"),
        (["id_zonemap", ("id", "zonemap")], {}, "id_zonemap_hash_idx"),
        (["id"], {"tokens": "words"}, "id_words_hash_idx"),
        # Both default names are of other keys.
        (["id"], {"index_type": "ZONEMAP"}, None),
    ],
)
def test_a_default_name_never_replaces_an_index_of_other_keys(tmp_path, columns, options, name):
    texts = pa.array([f"word{row}" for row in range(ROWS)])
    names = ["id", "zonemap", "id_zonemap", "id_words"]
    write_files(tmp_path / "data", [pa.table(dict.fromkeys(names, texts))])
    ds = build(tmp_path / "data", "HASH", ("id", "id_zonemap", "id_words"))
    earlier = {index.name: index.column for index in ds.describe_indices()}
    options = {"index_type": "HASH", "spark": False, **options}
    for _ in range(2):
        if name is None:
            with pytest.raises(IndexExists, match="give name="):
                ds.create_scalar_index(columns, **options)
        else:
            ds.create_scalar_index(columns, **options)
        indices = {index.name: index.column for index in ds.describe_indices()}
        assert earlier.items() <= indices.items()
        assert indices.keys() - earlier == {name} - {None}

"""A damaged file of an index makes every request read the data, and fails none."""

from __future__ import annotations

import warnings
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import index_folder

import zonebloom as zb
from zonebloom.errors import ZoneBloomWarning

ROWS, FILES = 5_000, 3
IDS = np.random.default_rng(0).permutation(FILES * ROWS)
MANY = np.arange(-5, FILES * ROWS, dtype=np.int64)


def _locate(ds: zb.Dataset) -> list[int]:
    places = ds.locate("id", MANY)
    found = places["row"].to_numpy(zero_copy_only=False)
    return np.flatnonzero(~np.isnan(found)).tolist()


def _duckdb(ds: zb.Dataset) -> list[int]:
    return [row[0] for row in duckdb.sql("SELECT id FROM ds WHERE id IN (77, 900000)").fetchall()]


def _polars(ds: zb.Dataset) -> list[int]:
    return ds.to_polars().filter(pl.col("id") == 77).collect()["id"].to_list()


REQUESTS = {
    "filter": (lambda ds: ds.to_table(["id"], "id = 77")["id"].to_pylist(), [77]),
    "range": (lambda ds: ds.count_rows("id >= 77 AND id < 97"), 20),
    "null": (lambda ds: ds.count_rows("id IS NULL"), 0),
    "lookup": (lambda ds: ds.lookup("id", [77, -1])["id"].to_pylist(), [77]),
    "lookup of many": (lambda ds: ds.lookup("id", MANY).num_rows, FILES * ROWS),
    "locate of many": (_locate, list(range(5, FILES * ROWS + 5))),
    "files": (lambda ds: ds.files_with_keys("id", MANY)["num_keys"].to_pylist(), [ROWS] * FILES),
    "search_many": (
        lambda ds: 0 in ds.search_many("id", [77]).read_all()["key_index"].to_pylist(),
        True,
    ),
    "Polars": (_polars, [77]),
    "DuckDB": (_duckdb, [77]),
    "global filter": (lambda ds: ds.global_filter("id") is None or True, True),
}

NEED_AN_INDEX = ("search_many", "global filter")


def _write(folder: Path, kinds: list[str], encryption: zb.Encryption | None) -> None:
    folder.mkdir()
    for number in range(FILES):
        part = IDS[number * ROWS : (number + 1) * ROWS]
        pq.write_table(pa.table({"id": part}), folder / f"{number}.parquet", row_group_size=2_000)
    ds = zb.dataset(folder, encryption=encryption)
    for kind in kinds:
        options = {} if kind == "ZONEMAP" else {"global_filter": True}
        ds.create_scalar_index("id", kind, f"{kind}_idx", spark=False, **options)


@pytest.mark.many
@pytest.mark.parametrize("damage", ["a bit", "truncation", "deletion"])
@pytest.mark.parametrize(
    ("kinds", "is_encrypted"),
    [(["BLOOMFILTER"], False), (["HASH"], False), (["ZONEMAP", "HASH"], True)],
    ids=str,
)
def test_each_file_is_damaged_under_each_request(tmp_path, kinds, is_encrypted, damage):
    encryption = zb.Encryption("k", {"k": bytes(16)}) if is_encrypted else None
    folder = tmp_path / "data"
    _write(folder, kinds, encryption)
    paths = [path for path in index_folder(folder).rglob("*") if path.is_file()]
    assert {path.name for path in paths} >= {"global.sbbf", "pages.arrow", "ranges.arrow"}
    noticed = 0
    for path in paths:
        sound = path.read_bytes()
        damaged = bytearray(sound)
        damaged[len(damaged) // 2] ^= 1
        if damage == "deletion":
            path.unlink()
        else:
            path.write_bytes(damaged if damage == "a bit" else sound[: len(sound) // 2])
        for request, (ask, right) in REQUESTS.items():
            with warnings.catch_warnings(record=True) as issued:
                warnings.simplefilter("always", ZoneBloomWarning)
                ds = zb.dataset(folder, encryption=encryption)
                if request in NEED_AN_INDEX and path.parent.name == "versions":
                    continue
                assert ask(ds) == right, (path.name, request)
            noticed += any(issubclass(warning.category, ZoneBloomWarning) for warning in issued)
        path.write_bytes(sound)
    assert noticed >= len(paths)

"""The Spark example of the README runs and returns the right rows."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import ROOT
from pyspark.sql import DataFrame
from seams import replace_function

import zonebloom as zb
import zonebloom.spark as zs

IDS = np.random.default_rng(0).permutation(4_000)


@pytest.fixture
def orders(tmp_path):
    for number, ids in enumerate(np.split(IDS, 4)):
        table = pa.table({"id": ids, "customer": [f"customer {key % 50}" for key in ids]})
        (tmp_path / "orders").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / f"orders/{number}.parquet")
    return tmp_path / "orders"


def test_the_block_runs_and_finds_the_rows(spark, orders, monkeypatch):
    blocks = re.findall(r"```py\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "zonebloom.spark" in block]
    shown_rows = []
    replace_function(
        monkeypatch, DataFrame, "show", lambda frame: shown_rows.append(frame.collect())
    )
    replace_function(
        monkeypatch, type(spark.range(0)), "show", lambda frame: shown_rows.append(frame.collect())
    )
    updates = spark.createDataFrame([(42, "new"), (-1, "newer")], "id bigint, note string")
    names = {"ds": zb.dataset(orders), "spark": spark, "updates": updates}
    try:
        exec(code.replace('"orders"', f'"{orders}"'), names)
        # After enable(), plain queries of the session use the index.
        query = spark.read.parquet(str(orders)).where("id = 42")
        query.collect()
        (scan,) = zs.last_scans(query).relations
        assert scan.kept_files < scan.num_files == 4
    finally:
        zs.disable(spark)
    of_files, of_zones, joined, tagged = shown_rows
    assert [row.id for row in of_files] == [row.id for row in of_zones] == [42]
    assert [(row.id, row.note, row.customer) for row in joined] == [(42, "new", "customer 42")]
    key_row = int(np.flatnonzero(IDS == 42)[0])
    places = {row.id: (row.path, row.row_offset) for row in tagged}
    assert places == {
        42: (str(orders / f"{key_row // 1000}.parquet"), key_row % 1000),
        -1: (None, None),
    }

"""Test that rows that are found do not keep the memory of the rows around them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from support.e2e_helpers import build

import zonebloom as zb


@pytest.mark.parametrize("file", ["pages", "row groups", "feather"])
def test_rows_that_are_found_are_no_slices(tmp_path: Path, file: str) -> None:
    """A slice keeps the memory of its zone, and DataFusion panics on one of a nested struct."""
    datafusion = pytest.importorskip("datafusion")
    rows = 20_000
    table = pa.table(
        {
            "id": range(rows),
            "s": [{"a": {"b": str(number)}, "c": [number]} for number in range(rows)],
            "u": pa.array([b"%016d" % number for number in range(rows)], pa.uuid()),
            "view": pa.array(map(str, range(rows)), pa.string_view()),
        }
    )
    if file == "feather":
        feather.write_feather(table, tmp_path / "0.arrow", compression="uncompressed")
        ds = zb.dataset(tmp_path, format="ipc")
    else:
        # PyArrow reads whole row groups of a codec that no kernel knows.
        codec = "brotli" if file == "row groups" else "snappy"
        options = {"write_page_index": True, "max_rows_per_page": 1000, "compression": codec}
        pq.write_table(table, tmp_path / "0.parquet", **options)
        ds = zb.dataset(tmp_path)
    build(ds, "id")
    results = {
        "lookup": ds.lookup("id", [4464]).drop_columns("key_index"),
        "filter": ds.to_table(filter="id = 4464"),
        "other filter": ds.to_table(filter="id = 4464 AND s.a.b <> 'x'"),
        "first row": ds.to_table(filter="id = 0"),
        "range": ds.to_table(filter="id BETWEEN 4464 AND 4470"),
        "take": ds.take([4464]),
    }
    for name, found in results.items():
        first = 0 if name == "first row" else 4464
        assert found.equals(table.slice(first, found.num_rows)), name
        for column in found.columns:
            for chunk in column.chunks:
                assert chunk.offset == 0, (name, chunk.type)
                # A copy of views keeps all of their texts.
                if chunk.type != pa.string_view():
                    assert chunk.get_total_buffer_size() < 1000, (name, chunk.type)
        frame = datafusion.SessionContext().from_arrow(found.select(["id", "s"]))
        assert frame.to_pydict() == found.select(["id", "s"]).to_pydict()

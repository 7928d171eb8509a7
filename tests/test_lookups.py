"""Compare ten thousand lookups with brute force: no row may be lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from e2e_helpers import array_of, build, numbered, raw_values, scalar_of, write_files
from pyarrow import feather

import zonebloom as zb
from zonebloom.base.row_ranges import OFFSET_BITS

# (type, rows of each file, distinct values, rows per zone, rows per row group, probability)
SHAPES: list[tuple[pa.DataType, list[int], int, int, int, float]] = [
    (pa.int8(), [300, 300, 1], 200, 50, 70, 0.01),
    (pa.int16(), [1000], 900, 64, 333, 0.00057),
    (pa.int32(), [700, 0, 700], 1000, 100, 100, 0.00057),
    (pa.int64(), [10_000, 10_000, 10_000], 20_000, 8192, 4000, 0.00057),
    (pa.uint8(), [250], 200, 7, 1000, 0.3),
    (pa.uint32(), [999, 1001], 1500, 128, 128, 0.01),
    (pa.uint64(), [2000], 1900, 1, 2000, 0.00057),
    (pa.float32(), [1500, 10], 1000, 100, 700, 0.00057),
    (pa.float64(), [800, 800], 1200, 33, 800, 0.1),
    (pa.string(), [10_000, 10_000, 10_000], 20_000, 8192, 10_000, 0.00057),
    (pa.string(), [100] * 20, 500, 16, 50, 0.00057),
    (pa.large_string(), [1200], 800, 100, 500, 0.00057),
    (pa.binary(), [900, 900], 1000, 128, 400, 0.00057),
    (pa.binary(16), [1300], 1000, 100, 1300, 0.05),
    (pa.decimal128(20, 3), [600, 600], 1000, 90, 100, 0.00057),
    (pa.decimal256(60, 10), [1000], 600, 100, 1000, 0.00057),
    (pa.date32(), [1500, 1500], 2000, 200, 1000, 0.00057),
    (pa.time64("us"), [800], 700, 64, 100, 0.00057),
    (pa.timestamp("ns", "UTC"), [1100, 900], 1500, 128, 300, 0.00057),
    (pa.duration("ms"), [700], 600, 50, 700, 0.00057),
]
LOOKUPS = 10_000 // len(SHAPES)


def rows_of(raws: list[Any]) -> dict[Any, list[int]]:
    result: dict[Any, list[int]] = {}
    for row, raw in enumerate(raws):
        if raw is not None:
            result.setdefault(raw, []).append(row)
    return result


def addresses(lengths: list[int]) -> Iterator[int]:
    """Return the address of each row of the dataset, in order."""
    for fragment_id, rows in enumerate(lengths):
        yield from range(fragment_id << OFFSET_BITS, (fragment_id << OFFSET_BITS) + rows)


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_no_lookup_loses_a_row(tmp_path: Path, number: int):
    arrow_type, lengths, distinct, items, row_group_size, probability = SHAPES[number]
    rng = random.Random(number)
    total = sum(lengths)
    values = raw_values(arrow_type, distinct + 40, seed=number)
    present, absent = values[:distinct], values[distinct:]
    raws = [None if rng.random() < 0.1 else rng.choice(present) for _ in range(total)]
    tables, first_row = [], 0
    for rows in lengths:
        tables.append(
            numbered(first_row, rows, key=array_of(arrow_type, raws[first_row : first_row + rows]))
        )
        first_row += rows
    write_files(tmp_path, tables, row_group_size=row_group_size)
    ds = zb.dataset(tmp_path)
    build(ds, "key", number_of_items=items, probability=probability)

    row_addresses = list(addresses(lengths))
    expected = rows_of(raws)
    num_lost, num_candidates = 0, 0
    for lookup in range(LOOKUPS):
        raw = rng.choice(absent if lookup % 5 == 4 else present)
        rows = expected.get(raw, [])
        filter = pc.field("key") == scalar_of(arrow_type, raw)
        result = ds.search(filter).at_most
        num_lost += sum(row_addresses[row] not in result for row in rows)
        if raw not in expected:
            num_candidates += len(result)
        if lookup % 25 == 0:
            assert ds.to_table(["row"], filter)["row"].to_pylist() == rows
        if lookup % 50 == 1:
            several = rng.sample(present, 5)
            filter = pc.field("key").isin(array_of(arrow_type, several))
            rows = sorted(row for value in several for row in expected.get(value, []))
            assert ds.to_table(["row"], filter)["row"].to_pylist() == rows
            result = ds.lookup("key", array_of(arrow_type, [*several, None]), ["row"], nulls=True)
            keys = {raw: number for number, raw in enumerate([*several, None])}
            assert result.to_pylist() == [
                {"key_index": keys[raw], "row": row} for row, raw in enumerate(raws) if raw in keys
            ]
    assert num_lost == 0
    # The index must also be useful: lookups of absent keys read few rows.
    assert num_candidates < 0.5 * total * LOOKUPS / 5
    nulls = [row for row, raw in enumerate(raws) if raw is None]
    assert ds.to_table(["row"], pc.field("key").is_null())["row"].to_pylist() == nulls


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

"""Test the other results of one pass over the files: key ranges, and filters over all keys."""

from __future__ import annotations

import math
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import array_of, raw_values, touch_later, write_files
from support.helpers import index_folder
from support.limits import set_limit

import zonebloom as zb
from zonebloom import Sbbf, errors

TYPES = [
    pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal32(5, 2),
    pa.decimal64(12, 2), pa.decimal128(38, 20), pa.decimal256(20, 2), pa.string(),
    pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
    pa.binary(3), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("us"),
    pa.timestamp("ns", "UTC"), pa.duration("s"), pa.dictionary(pa.int8(), pa.string()),
]  # fmt: skip


def files_of(
    folder: Path, lists: list[list], arrow_type: pa.DataType, **options: Any
) -> zb.Dataset:
    folder.mkdir(exist_ok=True)
    write_files(folder, [pa.table({"key": pa.array(v, arrow_type)}) for v in lists], **options)
    return zb.dataset(folder)


@pytest.mark.many
@pytest.mark.parametrize("arrow_type", TYPES, ids=str)
def test_ranges_of_every_type_bound_their_values(tmp_path: Path, arrow_type: pa.DataType):
    value_type = arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
    # The extreme values come first. Python cannot represent these dates.
    raws = raw_values(value_type, 19)[10:]
    parts = [array_of(arrow_type, [*raws[start::3], None]) for start in range(3)]
    parts.append(array_of(arrow_type, [None, None]))
    for part in parts:
        ds = zb.dataset(pa.table({"key": part}))
        ds.create_scalar_index("key", spark=False)
        ranges = ds.key_ranges("key")
        # Python cannot represent the longest durations.
        is_duration = pa.types.is_duration(arrow_type)
        type_ = pa.int64() if is_duration else ranges.schema.field("minimum").type
        ends = tuple(ranges[name].cast(type_)[0].as_py() for name in ("minimum", "maximum"))
        (row,) = ranges.drop(["minimum", "maximum"]).to_pylist()
        decoded = part.dictionary_decode() if pa.types.is_dictionary(arrow_type) else part
        stored = decoded.cast(type_)
        values = [value for value in stored.to_pylist() if value is not None]
        bounded = [v for v in values if not (isinstance(v, float) and math.isnan(v))]
        assert row["is_known"]
        assert row["has_nan"] == (len(bounded) < len(values))
        assert (row["null_count"], row["num_rows"]) == (part.null_count, len(part))
        wanted = (min(bounded), max(bounded)) if bounded else (None, None)
        if pa.types.is_dictionary(arrow_type) and bounded:
            # All values of a dictionary count, used or not.
            assert ends[0] <= wanted[0] <= wanted[1] <= ends[1]
        else:
            assert ends == wanted
        assert ds.validate_index("key_idx", sample="all")


def test_ranges_of_nan_zeros_and_long_text(tmp_path: Path):
    # A signaling NaN, 0x7ff0000000000001, after the greatest value.
    bits = np.array([9.0, 0.0, 1.0, 2.0]).view(np.int64)
    bits[1] = 0x7FF0000000000001
    lists = [math.nan, None], [0.0, math.nan, -0.0, -math.inf], bits.view(np.float64)
    ds = files_of(tmp_path / "floats", lists, pa.float64())
    ds.create_scalar_index("key", spark=False)
    ranges = ds.key_ranges("key")
    assert ranges["minimum"].to_pylist() == [None, -math.inf, 1.0]
    assert ranges["maximum"].to_pylist() == [None, 0.0, 9.0]
    assert ranges["has_nan"].to_pylist() == [True] * 3
    long = chr(0x10FFFF) * 99
    ds = files_of(tmp_path / "texts", [["a", "b" * 1000], [long]], pa.string())
    ds.create_scalar_index("key", spark=False)
    rows = ds.key_ranges("key").to_pylist()
    assert rows[0]["minimum"] == "a"
    assert "b" * 1000 < rows[0]["maximum"] < "c"
    assert len(rows[0]["maximum"]) <= 64
    assert rows[1]["minimum"] <= long <= rows[1]["maximum"]
    assert ds.locate("key", ["b" * 1000, long] * 10_000)["row"].null_count == 0


def test_key_ranges_describe_the_current_files(tmp_path: Path):
    ds = files_of(tmp_path, [[3, None, 1], [7, 9], [None], []], pa.int32())
    ds.create_scalar_index("key", spark=False)
    rows = ds.key_ranges("key").to_pylist()
    assert [Path(row["path"]).name for row in rows] == [f"part-00{i}.parquet" for i in range(4)]
    assert [(r["minimum"], r["maximum"]) for r in rows] == [(1, 3), (7, 9), *[(None, None)] * 2]
    assert [(r["null_count"], r["num_rows"]) for r in rows] == [(1, 3), (0, 2), (1, 1), (0, 0)]
    assert all(row["is_known"] for row in rows)
    pq.write_table(pa.table({"key": pa.array([5], pa.int32())}), tmp_path / "part-001.parquet")
    touch_later(tmp_path / "part-001.parquet")
    pq.write_table(pa.table({"key": pa.array([8], pa.int32())}), tmp_path / "part-009.parquet")
    (tmp_path / "part-002.parquet").unlink()
    reopened = zb.dataset(tmp_path)
    assert [row["is_known"] for row in reopened.key_ranges("key").to_pylist()] == [
        True, False, True, False,
    ]  # fmt: skip
    reopened.optimize.optimize_indices(spark=False)
    rows = reopened.key_ranges("key").to_pylist()
    assert [(r["minimum"], r["maximum"]) for r in rows] == [(1, 3), (5, 5), (None, None), (8, 8)]
    with pytest.raises(errors.ColumnNotFound):
        reopened.key_ranges("other")


@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_ranges_and_maps_of_many_segments_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    set_limit(monkeypatch, "bytes of a task of a build", 1)
    ds = files_of(tmp_path, [list(range(i * 10, i * 10 + 10)) for i in range(40)], pa.int64())
    ds.create_scalar_index("key", kind, spark=False, number_of_items=4)
    # Read the table with all key ranges, and one file with the page maps of many files.
    (segment,) = ds.opened.version.indices["key_idx"].segments
    assert segment.file == {"BLOOMFILTER": "bloomfilter.arrow", "HASH": "hash.buckets"}[kind]
    assert len(ds.opened.version.page_maps) < 4
    for opened in (ds, zb.dataset(tmp_path)):
        assert opened.key_ranges("key")["minimum"].to_pylist() == list(range(0, 400, 10))
        assert opened.to_table(filter="key = 123")["key"].to_pylist() == [123]
        assert opened.validate_index("key_idx") == 120
        # The pages come from the page map, so no footer is read.
        plan = opened.scanner(filter="key = 123").plan()
        assert plan.fragments[0].pages is not None
    assert ds.vacuum(timedelta(0)).num_segments == 0


@pytest.mark.parametrize("task_bytes", [1, 1 << 30])
@pytest.mark.parametrize("run_rows", [700, 1 << 20])
def test_global_filter_holds_every_key_and_no_more(tmp_path, monkeypatch, task_bytes, run_rows):
    set_limit(monkeypatch, "bytes of a task of a build", task_bytes)
    set_limit(monkeypatch, "rows of a batch of a build", run_rows)
    # Read no file as a whole, so that files have runs.
    set_limit(monkeypatch, "bytes of a file that a build reads at once", 0)
    rng = np.random.default_rng(1)
    lists = [[*rng.integers(0, 1 << 40, 3000).tolist(), None] for _ in range(3)]
    folder = tmp_path / "d"
    folder.mkdir()
    write_files(
        folder, [pa.table({"key": v, "t": [f"{k}" for k in v]}) for v in lists], row_group_size=350
    )
    ds = zb.dataset(folder)
    ds.create_scalar_index(["key", "t"], spark=False, global_filter=True)
    for name, kind in (("key", pa.int64()), ("t", pa.string())):
        global_filter = ds.global_filter(name)
        wanted = Sbbf(9003, 0.001, sizing="exact")
        wanted.insert(ds.to_table([name])[name])
        assert global_filter.sbbf == wanted
        assert global_filter.is_current
        assert (global_filter.column, global_filter.type, global_filter.num_items) == (
            name,
            kind,
            9003,
        )
        assert global_filter.estimated_fpp == pytest.approx(0.001, abs=0.0002)
    assert ds.validate_index("key_idx") == 3
    # The parts are deleted after they were merged.
    assert len(list(index_folder(folder).rglob("global.sbbf"))) == 2


def test_a_global_filter_is_stale_after_changes_and_a_refresh_updates_it(tmp_path: Path):
    ds = files_of(tmp_path, [[1, 2], [3, 4], [5, 6]], pa.int64())
    ds.create_scalar_index("key", spark=False, global_filter=True)
    assert ds.global_filter("key").covered == {0, 1, 2}
    pq.write_table(pa.table({"key": [77]}), tmp_path / "part-001.parquet")
    touch_later(tmp_path / "part-001.parquet")
    (tmp_path / "part-002.parquet").unlink()
    pq.write_table(pa.table({"key": [88]}), tmp_path / "part-007.parquet")
    reopened = zb.dataset(tmp_path)
    stale = reopened.global_filter("key")
    assert not stale.is_current
    assert [Path(e.fragment.path).name for e in stale.missing] == [
        "part-001.parquet",
        "part-007.parquet",
    ]
    assert stale.covered == {0}
    reopened.optimize.optimize_indices(spark=False)
    refreshed = reopened.global_filter("key")
    assert refreshed.is_current
    assert refreshed.sbbf.check(pa.array([1, 2, 77, 88])).all()
    assert reopened.vacuum(timedelta(0)).num_segments > 0
    assert zb.dataset(tmp_path).global_filter("key").sbbf == refreshed.sbbf


@pytest.mark.slow
def test_very_many_keys_get_a_higher_default_probability():
    """The largest filter is not refused because of the default probability."""

    def probability(num_rows: int) -> float:
        part = pa.nulls(1_000_000, pa.int8())
        ds = zb.dataset(pa.table({"key": pa.chunked_array([part] * (num_rows // len(part)))}))
        ds.create_scalar_index("key", spark=False, train=False, global_filter=True)
        return ds.global_filter("key").probability

    assert probability(1_000_000) == 0.001
    assert probability(67_000_000) == 0.01
    with pytest.raises(errors.InvalidArgument, match="over 128 MiB"):
        probability(112_000_000)


def test_ranges_of_several_runs_are_merged(tmp_path, monkeypatch):
    set_limit(monkeypatch, "rows of a batch of a build", 3)
    set_limit(monkeypatch, "bytes of a file that a build reads at once", 0)
    rng = random.Random(0)
    nulls = [None] * 6
    lists = [[*nulls, *rng.choices([None, *range(-50, 50)], k=rng.randrange(40))] for _ in range(9)]
    ds = files_of(tmp_path, [*lists, nulls, []], pa.int64(), row_group_size=3)
    ds.create_scalar_index("key", spark=False)
    rows = ds.key_ranges("key").to_pylist()
    for values, row in zip([*lists, nulls, []], rows, strict=True):
        known = [value for value in values if value is not None]
        wanted = min(known, default=None), max(known, default=None), values.count(None)
        assert (row["minimum"], row["maximum"], row["null_count"]) == wanted

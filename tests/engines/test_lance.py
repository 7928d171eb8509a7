"""Test the exchange with Lance: equal bytes in both directions, and Lance scans with our tables."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.e2e_helpers import array_of, build, numbered, raw_values, tables_of, write_files
from support.seams import replace_function

import zonebloom as zb
from zonebloom import errors
from zonebloom.exchange.lance import commit_to_lance, from_lance, to_lance
from zonebloom.index.zone_bloom.rows import FIELDS, RowTable

lance = pytest.importorskip("lance")
from lance.file import LanceFileReader, LanceFileWriter  # noqa: E402

ROWS = 10_000
TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    *(pa.date32(), pa.date64()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    pa.timestamp("us", "UTC"),
]


def values(arrow_type: pa.DataType, rows: int = 3 * ROWS) -> pa.Array:
    """Return rows of a type with nulls. One zone is all null, and one has no nulls."""
    distinct = raw_values(arrow_type, 200 if arrow_type in (pa.int8(), pa.uint8()) else 3000)
    if pa.types.is_floating(arrow_type):
        distinct += [-0.0, float("nan")]
    indices = np.random.default_rng(1).integers(0, len(distinct), rows)
    raws = [distinct[i] for i in indices]
    for row in range(0, rows, 17):
        raws[row] = None
    # These are the second zone of the first fragment and the first zone of the second.
    raws[8192:ROWS] = [None] * (ROWS - 8192)
    raws[ROWS : ROWS + 8192] = [raw if raw is not None else distinct[0] for raw in raws[:8192]]
    return array_of(arrow_type, raws)


# Parquet has neither seconds nor date64, and returns milliseconds and date32.
NOT_IN_PARQUET = [pa.date64(), pa.time32("s"), pa.timestamp("s")]


def both(tmp_path: Path, table: pa.Table, column: str, format="parquet", **options) -> tuple:
    """Write the same rows as a Lance dataset and as an indexed folder, one file per fragment."""
    theirs = lance.write_dataset(table, str(tmp_path / "d.lance"), max_rows_per_file=ROWS)
    parts = [table.slice(start, ROWS) for start in range(0, len(table), ROWS)]
    if format == "parquet":
        write_files(tmp_path / "files", parts, row_group_size=3000)
    else:
        (tmp_path / "files").mkdir()
        for number, part in enumerate(parts):
            with pa.ipc.new_file(str(tmp_path / "files" / f"{number}.arrow"), part.schema) as file:
                file.write_table(part, max_chunksize=3000)
    ours = zb.dataset(tmp_path / "files", format)
    build(ours, column, **{"fold": False, **options})
    return theirs, ours, tables_of(ours, f"{column}_idx")


def their_file(dataset) -> str:
    (result,) = Path(dataset.uri).glob("_indices/*/bloomfilter.lance")
    return str(result)


def same_row_numbers(dataset, filter: str) -> list[int]:
    """Return the row numbers that Lance finds. Check that it used its index and lost none."""
    with_index = dataset.scanner(columns=["row"], filter=filter)
    plan = with_index.explain_plan()
    assert "ScalarIndexQuery" in plan
    assert "(BloomFilter)" in plan
    result = with_index.to_table()["row"].to_pylist()
    whole = dataset.scanner(columns=["row"], filter=filter, use_scalar_index=False)
    assert result == whole.to_table()["row"].to_pylist()
    return result


@pytest.mark.many
@pytest.mark.parametrize(
    ("arrow_type", "format"),
    [(item, "ipc") for item in TYPES]
    + [(item, "parquet") for item in TYPES if item not in NOT_IN_PARQUET],
    ids=str,
)
def test_filters_equal_those_of_lance_byte_for_byte(
    tmp_path: Path, arrow_type: pa.DataType, format: str
):
    table = pa.table({"key": values(arrow_type)})
    theirs, ours, tables = both(tmp_path, table, "key", format)
    assert ours.schema.field("key").type == arrow_type
    theirs.create_scalar_index("key", "BLOOMFILTER")
    expected = from_lance(their_file(theirs)).to_table()
    assert expected.num_rows == 6
    assert len(tables) == 1
    result = tables[0].to_table()
    assert result.schema.equals(expected.schema, check_metadata=True)
    assert result["has_null"].to_pylist()[:3] == [True, True, False]
    assert result.equals(expected)


@pytest.mark.parametrize(
    "parameters",
    [
        {"number_of_items": 1000, "probability": 0.01},
        {"number_of_items": 4096, "probability": 0.5},
        {"number_of_items": 100_000, "probability": 0.00001},
    ],
    ids=str,
)
def test_filters_equal_those_of_lance_with_other_parameters(tmp_path: Path, parameters: dict):
    table = pa.table({"key": values(pa.string())})
    theirs, _, tables = both(tmp_path, table, "key", **parameters)
    config = lance.indices.IndexConfig(index_type="bloomfilter", parameters=parameters)
    theirs.create_scalar_index("key", config)
    assert tables[0].to_table().equals(from_lance(their_file(theirs)).to_table())


def test_file_has_the_five_columns_and_the_metadata_lance_writes(tmp_path: Path):
    table = pa.table({"key": values(pa.int64())})
    theirs, ours, tables = both(tmp_path, table, "key")
    theirs.create_scalar_index("key", "BLOOMFILTER")
    size = to_lance(tables, tmp_path / "one.lance")
    ours.index_to_lance("key_idx", tmp_path / "two.lance")
    assert size == os.path.getsize(tmp_path / "one.lance")
    expected = LanceFileReader(their_file(theirs)).metadata().schema
    for name in ("one.lance", "two.lance"):
        result = LanceFileReader(str(tmp_path / name)).metadata().schema
        assert result.equals(expected)
        # Lance's metadata may also have null_bitmap, the number of a buffer of that file.
        assert result.metadata == {
            b"bloomfilter_item": b"8192",
            b"bloomfilter_probability": b"0.00057",
        }
        assert result.metadata.items() <= expected.metadata.items()
        assert from_lance(tmp_path / name).to_table().equals(tables[0].to_table())


@pytest.mark.parametrize(
    ("options", "num_blocks"),
    [
        ({"fold": False}, {1024}),
        # The zones have 8,192 and 1,808 rows, and the fill decides the size.
        ({"fold": True}, {1024, 256, 128}),
    ],
    ids=["log2", "folded"],
)
def test_lance_scans_with_our_table(tmp_path: Path, options: dict, num_blocks: set[int]):
    rows = 3 * ROWS
    table = numbered(
        0, rows, key=pa.array([None if i % 100 == 7 else f"key {i}" for i in range(rows)])
    )
    theirs, _, tables = both(tmp_path, table, "key", **options)
    assert set(tables[0].num_blocks.tolist()) == num_blocks
    theirs = commit_to_lance(theirs, "key", tables)
    described = theirs.describe_indices()[0]
    assert (described.name, described.num_rows_indexed) == ("key_idx", rows)
    # A new dataset object reads the index from its file.
    theirs = lance.dataset(theirs.uri)
    for row in [0, 1, 8191, 8192, 9999, 10_000, 18_191, 18_192, 29_999]:
        expected = [] if row % 100 == 7 else [row]
        assert same_row_numbers(theirs, f"key = 'key {row}'") == expected
    assert same_row_numbers(theirs, "key = 'absent'") == []
    assert same_row_numbers(theirs, "key IN ('key 5', 'key 20001', 'no')") == [5, 20001]
    assert same_row_numbers(theirs, "key IS NULL") == list(range(7, rows, 100))


def test_filters_of_different_sizes_in_one_file_are_used_by_lance(tmp_path: Path):
    rows = 3 * ROWS
    table = numbered(0, rows, key=pa.array(range(rows), pa.int64()))
    theirs, _, tables = both(tmp_path, table, "key")
    mixed = tables[0].to_table().to_pydict()
    for zone in (1, 3, 5):
        bloom = zb.Sbbf.from_bytes(mixed["bloom_filter_data"][zone])
        mixed["bloom_filter_data"][zone] = bloom.fold(0.01).to_bytes()
    assert len({len(data) for data in mixed["bloom_filter_data"]}) > 1
    folded = zone_table(pa.table(mixed, schema=tables[0].to_table().schema))
    theirs = lance.dataset(commit_to_lance(theirs, "key", folded).uri)
    for row in [0, 8191, 8192, 9_999, 19_000, 29_999]:
        assert same_row_numbers(theirs, f"key = {row}") == [row]


@pytest.mark.parametrize(
    ("slices", "indexed"),
    [([(0, 2), (2, 4)], 3), ([(0, 4)], 2)],
    ids=["several segments as one file", "fragments outside the table are read"],
)
def test_lance_searches_parts_of_a_table(tmp_path: Path, slices, indexed):
    rows = 3 * ROWS
    table = numbered(0, rows, key=pa.array(range(rows), pa.int64()))
    theirs, _, tables = both(tmp_path, table, "key")
    whole = tables[0].to_table()
    parts = [zone_table(whole.slice(*part)) for part in slices]
    theirs = lance.dataset(commit_to_lance(theirs, "key", parts, name="ours").uri)
    assert theirs.describe_indices()[0].num_rows_indexed == indexed * ROWS
    for row in [5, 15_000, 29_999]:
        assert same_row_numbers(theirs, f"key = {row}") == [row]


def zone_table(table: pa.Table) -> RowTable:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return RowTable(sink.getvalue(), "a table made in a test")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple:
    table = numbered(0, 100, key=pa.array(range(100), pa.int64()))
    return both(tmp_path_factory.mktemp("small"), table, "key")


def test_tables_of_other_parameters_are_refused(tmp_path: Path, small: tuple):
    _, ours, tables = small
    build(ours, "key", name="other", number_of_items=10)
    with pytest.raises(errors.InvalidArgument, match="2 different parameters"):
        to_lance([tables[0], *tables_of(ours, "other")], tmp_path / "no.lance")
    with pytest.raises(errors.InvalidArgument, match="same fragment"):
        to_lance([tables[0], tables[0]], tmp_path / "no.lance")
    with pytest.raises(errors.InvalidArgument, match="0 different parameters"):
        to_lance([], tmp_path / "no.lance")
    assert not (tmp_path / "no.lance").exists()


def test_commit_refuses_other_rows_columns_and_names(tmp_path: Path, small: tuple):
    theirs, _, tables = small
    fewer = lance.write_dataset(
        pa.table({"key": pa.array(range(99), pa.int64())}), str(tmp_path / "fewer.lance")
    )
    with pytest.raises(errors.InvalidArgument, match="100 rows of fragment 0, the Lance"):
        commit_to_lance(fewer, "key", tables)
    renumbered = tables[0].to_table().to_pydict()
    renumbered["fragment_id"] = [9] * len(renumbered["fragment_id"])
    wrong = zone_table(pa.table(renumbered, schema=tables[0].to_table().schema))
    with pytest.raises(errors.InvalidArgument, match="fragment 9, the Lance dataset has"):
        commit_to_lance(theirs, "key", wrong)
    with pytest.raises(errors.ColumnNotFound, match="no column 'absent'; the Lance dataset has"):
        commit_to_lance(theirs, "absent", tables)
    assert not os.path.exists(os.path.join(theirs.uri, "_indices"))
    committed = commit_to_lance(theirs, "key", tables)
    before = sorted(os.listdir(os.path.join(theirs.uri, "_indices")))
    with pytest.raises(errors.IndexExists, match="'key_idx' already; drop it"):
        commit_to_lance(committed, "key", tables)
    assert sorted(os.listdir(os.path.join(theirs.uri, "_indices"))) == before


def test_failed_commit_leaves_no_file_in_the_lance_dataset(
    tmp_path: Path, small: tuple, monkeypatch: pytest.MonkeyPatch
):
    _, _, tables = small
    table = numbered(0, 100, key=pa.array(range(100), pa.int64()))
    theirs = lance.write_dataset(table, str(tmp_path / "d.lance"))

    def fail(*_, **__):
        raise OSError("disk full")

    replace_function(monkeypatch, lance.LanceDataset, "commit", fail)
    with pytest.raises(OSError, match="disk full"):
        commit_to_lance(theirs, "key", tables)
    assert os.listdir(os.path.join(theirs.uri, "_indices")) == []


def test_files_of_other_kinds_are_not_read_as_tables(tmp_path: Path):
    with pytest.raises(errors.CorruptIndex, match=r"missing\.lance is not a bloomfilter table"):
        from_lance(tmp_path / "missing.lance")
    (tmp_path / "garbage.lance").write_bytes(os.urandom(5000))
    with pytest.raises(errors.CorruptIndex, match=r"garbage\.lance is not"):
        from_lance(tmp_path / "garbage.lance")
    with LanceFileWriter(str(tmp_path / "other.lance"), pa.schema({"a": pa.int64()})) as writer:
        writer.write_batch(pa.record_batch({"a": pa.array([1])}))
    with pytest.raises(errors.CorruptIndex, match="its columns are a"):
        from_lance(tmp_path / "other.lance")
    # This file has the right columns, but not the metadata.
    row = {"fragment_id": [0], "zone_start": [0], "zone_length": [5], "has_null": [False]}
    table = pa.table({**row, "bloom_filter_data": [bytes(32)]}, schema=FIELDS)
    with LanceFileWriter(str(tmp_path / "bare.lance"), FIELDS) as writer:
        writer.write_batch(table)
    with pytest.raises(errors.CorruptIndex, match=r"bare\.lance"):
        from_lance(tmp_path / "bare.lance")


def test_damaged_index_is_not_exported(tmp_path: Path):
    table = numbered(0, 100, key=pa.array(range(100), pa.int64()))
    _, ours, _ = both(tmp_path, table, "key")
    shutil.rmtree(Path(ours.index_dir) / "segments")
    ours = zb.dataset(tmp_path / "files")
    with (
        pytest.warns(errors.IndexNotUsedWarning),
        pytest.raises(errors.CorruptIndex, match="1 of 1 segments of index 'key_idx' are damaged"),
    ):
        ours.index_to_lance("key_idx", str(tmp_path / "no.lance"))
    with pytest.raises(errors.IndexNotFound, match="no index 'nope'; there is: key_idx"):
        ours.index_to_lance("nope", str(tmp_path / "no.lance"))
    assert not (tmp_path / "no.lance").exists()

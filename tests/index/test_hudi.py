"""Test records for Hudi's metadata table: keys, fields, bounds, filters, deleted files."""

from __future__ import annotations

import base64
import datetime
import hashlib
import os
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import xxhash
from helpers import index_folder

import zonebloom as zb
from zonebloom.errors import ColumnNotFound, InvalidArgument
from zonebloom.exchange.hudi import bloom_filter_key, column_stats_key, export

# The expected values are from Hudi's own test (TestHashID.java). That test never compares its list
# of 64-bit hashes, which uses the unsigned seed. The strings that it compares (magic_input.txt)
# agree with the signed seed.
PUBLISHED_128 = {
    "Hudi": "09DAB749F255311C1C9EF6DD7B790170",
    "Col1": "EC0FFE21E704DE2A580661C59A81D453",
}
SIGNED_64 = {"Hudi": "B9A47174FD473C0E", "Col1": "96BBC1B0ADC6560D"}


def of64(text):
    return xxhash.xxh64(text.encode(), seed=(0xDABADABA - 2**32) % 2**64).digest()


def of128(text):
    return hashlib.md5(text.encode()).digest()


def test_record_keys_use_the_hashes_of_hudi():
    for name, text in SIGNED_64.items():
        assert of64(name).hex().upper() == text
        for file, published in PUBLISHED_128.items():
            key = bloom_filter_key(name, file)
            assert base64.b64decode(key[:12]).hex().upper() == text
            assert base64.b64decode(key[12:]).hex().upper() == published
            key = column_stats_key("Col1", name, file)
            assert [len(key), key[12:]] == [48, bloom_filter_key(name, file)]
            assert base64.b64decode(key[:12]).hex().upper() == SIGNED_64["Col1"]


def columns(start):
    moment = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)
    numbers = range(start, start + 500)
    return pa.table(
        {
            "id": pa.array([None if n == start else n for n in numbers], pa.int64()),
            "small": pa.array([n % 100 for n in numbers], pa.int16()),
            "name": [f"n{n}" for n in numbers],
            "x": [n / 4 for n in numbers],
            "nan": [float("nan") if n == start else 1.0 for n in numbers],
            "dec": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(10, 2)),
            "d": pa.array([moment.date() + datetime.timedelta(n) for n in numbers]),
            "t": pa.array([n * 1_000 + 1 for n in numbers], pa.timestamp("ns")),
            "b": [b"%d" % n for n in numbers],
            "nothing": pa.nulls(500, pa.int32()),
        }
    )


@pytest.fixture
def lake(tmp_path):
    for number, day in enumerate(["2024-05-01", "2024-05-02"]):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(columns(number * 1_000), tmp_path / f"day={day}" / "f.parquet")
    pq.write_table(columns(2_000), tmp_path / "root.parquet")
    zb.dataset(tmp_path).create_scalar_index("id", spark=False)
    return tmp_path


NAMES = ["id", "small", "name", "x", "dec", "d", "t", "b", "nothing"]
WRAPPERS = [
    "LongWrapper",
    "IntWrapper",
    "StringWrapper",
    "DoubleWrapper",
    "DecimalWrapper",
    "DateWrapper",
    "TimestampMicrosWrapper",
    "BytesWrapper",
]


def test_bounds_and_counts_equal_those_of_the_files(lake):
    stats = export(zb.dataset(lake), [*NAMES, "nan"]).column_stats
    records = {row["key"]: row for row in stats.to_pylist()}
    assert {row["type"] for row in records.values()} == {3}
    files = {
        ("day=2024-05-01", "f.parquet"): 0,
        ("day=2024-05-02", "f.parquet"): 1_000,
        (".", "root.parquet"): 2_000,
    }
    # A column with NaN has no bounds, because NaN is outside of any.
    assert len(records) == len(files) * len(NAMES)
    for (partition, file), start in files.items():
        for number, name in enumerate(NAMES):
            ids = [of64(name), of64(partition), of128(file)]
            key = "".join(base64.b64encode(hash_bytes).decode() for hash_bytes in ids)
            result = records[key]["ColumnStatsMetadata"]
            values = columns(start)[name]
            assert (result["fileName"], result["columnName"]) == (file, name)
            assert (result["valueCount"], result["nullCount"]) == (500, values.null_count)
            assert result["totalSize"] > 0 and result["totalUncompressedSize"] > 0
            assert result["isDeleted"] is False
            if name == "nothing":
                assert result["minValue"] is None and result["maxValue"] is None
                continue
            low, high = (result[end] for end in ("minValue", "maxValue"))
            assert {k for k, v in low.items() if v is not None} == {WRAPPERS[number]}
            ends = pc.call_function("min_max", [values])
            low, high = (end[WRAPPERS[number]]["value"] for end in (low, high))
            if name == "t":
                # The bounds are the nanoseconds rounded outwards to microseconds.
                assert (low, high) == (ends["min"].value // 1000, -(-ends["max"].value // 1000))
            elif name == "d":
                assert (low, high) == (ends["min"].value, ends["max"].value)
            else:
                assert (low, high) == (ends["min"].as_py(), ends["max"].as_py())


def test_filters_hold_the_keys_of_their_file_and_few_others(lake):
    blooms = export(zb.dataset(lake), "id", probability=0.01).bloom_filters
    records = {row["key"]: row for row in blooms.to_pylist()}
    for partition, file, start in [
        ("day=2024-05-02", "f.parquet", 1_000),
        (".", "root.parquet", 2_000),
    ]:
        key = base64.b64encode(of64(partition)).decode() + base64.b64encode(of128(file)).decode()
        record = records[key]["BloomFilterMetadata"]
        assert records[key]["type"] == 4 and record["type"] == "PARQUET_SPLIT_BLOCK"
        datetime.datetime.strptime(record["timestamp"] + "000", "%Y%m%d%H%M%S%f")
        bloom = zb.Sbbf.from_parquet_bytes(record["bloomFilter"])
        assert bloom.check(columns(start)["id"].drop_null()).all()
        assert bloom.check(pa.array(range(10**6, 10**6 + 10_000))).mean() < 0.02
    assert len(records) == 3


def test_deleted_files_are_flagged(lake):
    os.remove(lake / "root.parquet")
    # A rewritten file is a new file of the same name, and it exists.
    pq.write_table(columns(5_000), lake / "day=2024-05-01" / "f.parquet")
    tables = export(zb.dataset(lake), "id")
    deleted_files = [
        row["BloomFilterMetadata"]["isDeleted"] for row in tables.bloom_filters.to_pylist()
    ]
    assert sorted(deleted_files) == [False, False, True]
    by_key = {row["key"]: row["ColumnStatsMetadata"] for row in tables.column_stats.to_pylist()}
    deleted = by_key[column_stats_key("id", ".", "root.parquet")]
    assert deleted["isDeleted"] and deleted["minValue"] is None and deleted["valueCount"] is None
    anew = by_key[column_stats_key("id", "day=2024-05-01", "f.parquet")]
    assert anew["maxValue"]["LongWrapper"]["value"] == 5_499


@pytest.mark.parametrize("is_apart", [False, True])
def test_files_of_another_dataset_are_not_flagged(tmp_path, is_apart):
    """A dataset of some files shares the index with a dataset of all files."""
    data, folder = tmp_path / "data", str(tmp_path / "apart") if is_apart else None
    data.mkdir()
    for number in range(3):
        pq.write_table(columns(number * 1_000), data / f"{number}.parquet")
    zb.dataset(data, index_dir=folder).create_scalar_index("id", spark=False)
    paths = [str(data / f"{number}.parquet") for number in range(2)]
    ds = zb.dataset(paths, index_dir=folder or str(index_folder(data)))
    os.remove(data / "2.parquet" if is_apart else paths[1])
    records = export(ds, "id").bloom_filters.to_pylist()
    flags = {row["key"]: row["BloomFilterMetadata"]["isDeleted"] for row in records}
    deleted_file = "2.parquet" if is_apart else "1.parquet"
    assert {key for key, deleted in flags.items() if deleted} == {
        bloom_filter_key("", deleted_file)
    }
    assert len(flags) == (3 if is_apart else 2)
    pq.write_table(columns(0), data / deleted_file)
    records = export(zb.dataset(paths, index_dir=folder), "id").bloom_filters.to_pylist()
    assert [row["BloomFilterMetadata"]["isDeleted"] for row in records] == [False, False]


@pytest.mark.parametrize("other", ["orders2", "other", "orders/nested"])
def test_deleted_files_of_another_folder_are_not_flagged(tmp_path, other):
    """Only a file below the dataset's own root can be one of its deleted files."""
    index_dir = str(tmp_path / "indices")
    for name in ("orders", other):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        for file in ("a.parquet", "b.parquet"):
            pq.write_table(columns(0), tmp_path / name / file)
        ds = zb.dataset(tmp_path / name, index_dir=index_dir)
        ds.create_scalar_index("id", name=f"{name.replace('/', '_')}_idx", spark=False)
    os.remove(tmp_path / other / "b.parquet")
    records = export(zb.dataset(tmp_path / "orders", index_dir=index_dir), "id")
    flags = {
        row["key"]: row["BloomFilterMetadata"]["isDeleted"]
        for row in records.bloom_filters.to_pylist()
    }
    expected = {bloom_filter_key("", "a.parquet"): False, bloom_filter_key("", "b.parquet"): False}
    if other == "orders/nested":
        expected |= {
            bloom_filter_key("nested", "a.parquet"): False,
            bloom_filter_key("nested", "b.parquet"): True,
        }
    assert flags == expected


def test_schemas_use_the_names_of_hudi(lake):
    tables = export(zb.dataset(lake), "id")
    stats, bloom = tables.column_stats.schema, tables.bloom_filters.schema
    assert stats.names == ["key", "type", "ColumnStatsMetadata"]
    assert [field.name for field in stats.field(2).type] == [
        "fileName",
        "columnName",
        "minValue",
        "maxValue",
        "valueCount",
        "nullCount",
        "totalSize",
        "totalUncompressedSize",
        "isDeleted",
    ]
    assert bloom.names == ["key", "type", "BloomFilterMetadata"]
    fields = [field.name for field in bloom.field(2).type]
    assert fields == ["type", "timestamp", "bloomFilter", "isDeleted"]


def test_tables_are_written_as_parquet_and_read_back(lake, tmp_path_factory):
    folder = tmp_path_factory.mktemp("metadata")
    for _ in range(2):
        tables = export(zb.dataset(lake), ["id", "name"], str(folder), record_key="name")
    for name in ("column_stats", "bloom_filters"):
        stored_table = pads.dataset(folder / name).to_table()
        assert stored_table.to_pylist() == getattr(tables, name).to_pylist()
    data = tables.bloom_filters.to_pylist()[0]["BloomFilterMetadata"]["bloomFilter"]
    assert zb.Sbbf.from_parquet_bytes(data).check(pa.array(["n1", "n499"])).all()


def test_invalid_arguments_are_refused(lake):
    with pytest.raises(ColumnNotFound):
        export(zb.dataset(lake), "nope")
    with pytest.raises(InvalidArgument, match="give at least one column"):
        export(zb.dataset(lake), [])

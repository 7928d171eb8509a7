"""Test that embedded Bloom filters never exclude a row group that holds a key."""

from __future__ import annotations

import base64
import datetime
import math
import random
import warnings
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import PLAIN_TYPES, sample
from support.spark_data import settings

from zonebloom import Sbbf
from zonebloom.errors import FragmentUnreadable, IndexNotUsedWarning
from zonebloom.parquet.embedded_filters import EmbeddedFilters
from zonebloom.parquet.thrift import ThriftReader, encode_integer
from zonebloom.predicates.ast import Equals, IsIn, IsNull


def open_filters(path: Path | bytes) -> EmbeddedFilters:
    data = path if isinstance(path, bytes) else path.read_bytes()
    return EmbeddedFilters(len(data), lambda ranges: [data[a:b] for a, b in ranges])


def equals(name: str, value, arrow_type=None) -> Equals:
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value, arrow_type)
    return Equals(tuple(name.split(".")), scalar)


def write(path: Path, group_rows: int = 200, ndv: int = 400, fpp=0.001, options=None, **columns):
    """Write a file with a filter on each column."""
    pq.write_table(
        pa.table(columns),
        path,
        row_group_size=group_rows,
        bloom_filter_options=options or {name: {"ndv": ndv, "fpp": fpp} for name in columns},
    )
    return path


def leaf_values(table: pa.Table, name: str) -> pa.ChunkedArray:
    column = table
    for part in name.split("."):
        column = (
            column[part]
            if column is table
            else pa.chunked_array(
                [
                    chunk.field(part)
                    if not chunk.null_count
                    else chunk.flatten()[chunk.type.get_field_index(part)]
                    for chunk in column.chunks
                ]
            )
        )
    return column


def check_keeps_present_drops_absent(
    path: Path, name: str, absent: list[pa.Scalar], *, answers: bool = True, keys: int = 60
) -> None:
    """Assert that = and IN keep the row group of each key, and drop most for absent keys."""
    filters, schema = open_filters(path), pq.read_schema(path)
    file = pq.ParquetFile(path)
    rng = random.Random(0)
    for group in range(file.num_row_groups):
        values = leaf_values(file.read_row_group(group), name).combine_chunks()
        rows = [i for i in range(len(values)) if values[i].is_valid]
        for row in rng.sample(rows, min(keys, len(rows))):
            predicate = equals(name, values[row])
            candidates = filters.candidate_row_groups(predicate, schema)
            assert candidates is None or group in candidates, (name, values[row])
            is_in = IsIn(predicate.column, values.slice(row, 1))
            candidates = filters.candidate_row_groups(is_in, schema)
            assert candidates is None or group in candidates, (name, values[row])
            if answers and not _is_nan(values[row]):
                assert candidates is not None, (name, values[row])
    results = [filters.candidate_row_groups(equals(name, value), schema) for value in absent]
    if not answers:
        assert results == [None] * len(absent)
    elif absent:
        num_checks = file.num_row_groups * len(absent)
        num_candidates = sum(len(groups) for groups in results if groups is not None)
        assert num_candidates <= 0.15 * num_checks
        assert None not in results


def _is_nan(value: pa.Scalar) -> bool:
    return pa.types.is_floating(value.type) and math.isnan(value.as_py())


# pyarrow


@pytest.mark.parametrize("arrow_type", PLAIN_TYPES, ids=str)
def test_filters_of_pyarrow_are_read_for_every_type(tmp_path, arrow_type):
    if arrow_type == pa.date64():
        pytest.skip("random milliseconds are no dates")
    array, _ = sample(arrow_type, 800)
    if pa.types.is_decimal(arrow_type):
        digits = 10 ** min(arrow_type.precision, 30) // 10
        rng = random.Random(1)
        values = [
            Decimal(rng.randrange(-digits, digits)).scaleb(-arrow_type.scale) for _ in range(800)
        ]
        array = pa.array([*values[:790], *[None] * 10], arrow_type)
    if pa.types.is_time(arrow_type) or str(arrow_type) == "timestamp[s]":
        # Times must be within a day. Seconds are stored as milliseconds.
        width = pa.int32() if arrow_type.bit_width == 32 else pa.int64()
        array = pa.array([random.Random(i).randrange(86_400) for i in range(800)], width)
        array = array.cast(arrow_type)
    path = write(tmp_path / "f.parquet", v=array)
    other, _ = sample(arrow_type, 40, nulls=0, seed=99)
    tiny = arrow_type.id in (
        pa.int8().id,
        pa.uint8().id,
        pa.int16().id,
        pa.uint16().id,
        pa.float16().id,
    ) or arrow_type == pa.binary(1)
    skipped = tiny or pa.types.is_decimal(arrow_type) or pa.types.is_temporal(arrow_type)
    present = set() if skipped else set(array.to_pylist())
    absent = [] if skipped else [x for x in other if x.as_py() not in present and not _is_nan(x)]
    check_keeps_present_drops_absent(path, "v", absent)


def test_small_integers_are_hashed_as_int32(tmp_path):
    path = write(
        tmp_path / "f.parquet",
        i=pa.array([1, -1, 5], pa.int8()),
        u=pa.array([1, 200, 255], pa.uint8()),
        w=pa.array([1, 2**32 - 1, 7], pa.uint32()),
    )
    filters, schema = open_filters(path), pq.read_schema(path)
    for name, value, may_match in [
        ("i", -1, True),
        ("i", 5, True),
        ("i", 6, False),
        ("i", 255, False),
        ("i", 300, False),
        ("u", 200, True),
        ("u", -56, False),
        ("u", 300, False),
        ("u", 456, False),
        ("w", 2**32 - 1, True),
        ("w", -1, False),
        ("w", 8, False),
    ]:
        assert filters.candidate_row_groups(equals(name, value), schema) == [0] * may_match, (
            name,
            value,
        )
    assert filters.candidate_row_groups(equals("i", 5.0), schema) == [0]
    assert filters.candidate_row_groups(equals("i", 5.5), schema) == []
    assert filters.candidate_row_groups(equals("i", "5"), schema) is None


def test_zeros_nan_and_nulls(tmp_path):
    nan = float("nan")
    for array in ([0.0, 1.0, nan], [-0.0, 1.0, None]):
        for arrow_type in (pa.float32(), pa.float64(), pa.float16()):
            path = write(tmp_path / "f.parquet", v=pa.array(array, arrow_type))
            filters, schema = open_filters(path), pq.read_schema(path)
            for zero in (0.0, -0.0, 0, Decimal(0)):
                assert filters.candidate_row_groups(equals("v", zero), schema) == [0]
            assert filters.candidate_row_groups(equals("v", 2.0), schema) == []
            assert filters.candidate_row_groups(equals("v", nan), schema) is None
            two_values = IsIn(("v",), pa.array([2.0, nan]))
            assert filters.candidate_row_groups(two_values, schema) is None
            assert filters.candidate_row_groups(IsNull(("v",)), schema) is None
            with_null = IsIn(("v",), pa.array([2.0]), null_matches=True)
            assert filters.candidate_row_groups(with_null, schema) is None
            # float32 cannot represent 0.1, so engines round either the literal or the values.
            expected = [] if arrow_type == pa.float64() else None
            assert filters.candidate_row_groups(equals("v", 0.1), schema) == expected


def test_filters_of_nested_leaves_are_used(tmp_path):
    structs = pa.array([{"x": i, "y.z": str(i)} if i % 3 else None for i in range(400)])
    lists = pa.array([[i, i + 1] for i in range(400)])
    path = write(
        tmp_path / "f.parquet",
        options={"s.x": {"ndv": 400}, "s.y.z": {"ndv": 400}, "l.list.element": {"ndv": 400}},
        s=structs,
        l=lists,
        plain=pa.array(range(400)),
    )
    filters, schema = open_filters(path), pq.read_schema(path)
    columns = filters.columns()
    paths = [column.path for column in columns]
    assert paths == [("s", "x"), ("s", "y.z"), ("l", "list", "element")]
    assert columns[0].row_groups == 2 and columns[0].num_bytes > 0
    candidates = [
        filters.candidate_row_groups(equals("s.x", i), schema) for i in range(200, 400) if i % 3
    ]
    assert all(1 in groups for groups in candidates)
    assert filters.candidate_row_groups(equals("s.x", 250), schema) == [1]
    assert filters.candidate_row_groups(Equals(("s", "y.z"), pa.scalar("250")), schema) == [1]
    for column in [
        ("l",),
        ("l", "list", "element"),
        ("l", "element"),
        ("plain",),
        ("nope",),
        ("s", "y", "z"),
        ("s",),
    ]:
        assert filters.candidate_row_groups(Equals(column, pa.scalar(250)), schema) is None


def test_the_type_of_the_dataset_may_differ_from_the_file(tmp_path):
    path = write(
        tmp_path / "f.parquet",
        i=pa.array([1, 2, 300], pa.int32()),
        f=pa.array([1.5, 2, 3], pa.float32()),
        d=pa.array([1, 2, 3], pa.decimal128(7, 2)),
        t=pa.array([1, 2, 3], pa.timestamp("us")),
        s=pa.array(["a", "b", "c"]),
        g=pa.array(["a", "b", "c"]).dictionary_encode(),
    )
    filters = open_filters(path)

    def ask(name, arrow_type, value, literal_type=None):
        return filters.candidate_row_groups(
            equals(name, value, literal_type), pa.schema({name: arrow_type})
        )

    assert (ask("i", pa.int64(), 300), ask("i", pa.int64(), 301)) == ([0], [])
    assert ask("i", pa.int64(), 2**40) == []
    assert (ask("i", pa.float64(), 300.0), ask("i", pa.float64(), 44.0)) == ([0], [])
    assert ask("i", pa.float64(), 1.5) == []
    # With a narrower type, an engine may wrap around and show 300 as 44.
    for narrower in (pa.int8(), pa.int16(), pa.uint32(), pa.uint64(), pa.float32(), pa.string()):
        assert ask("i", narrower, 44) is None
    assert (ask("f", pa.float64(), 1.5), ask("f", pa.float64(), 2.5)) == ([0], [])
    assert ask("f", pa.float16(), 1.5) is None
    assert ask("d", pa.decimal128(20, 4), Decimal("2.0000")) == [0]
    assert ask("d", pa.decimal128(20, 4), Decimal("2.0001")) == []
    assert ask("d", pa.decimal128(20, 4), 2) == [0]
    for other in (pa.decimal128(7, 1), pa.decimal128(7, 3), pa.int64(), pa.float64()):
        assert ask("d", other, 2) is None
    for other in (pa.timestamp("ms"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.int64()):
        assert ask("t", other, 1, other) is None
    assert ask("t", pa.timestamp("us"), 2, pa.timestamp("us")) == [0]
    assert ask("t", pa.timestamp("us"), 2, pa.timestamp("ns")) == []
    assert ask("s", pa.large_string(), "b") == ask("s", pa.string_view(), "b") == [0]
    assert ask("s", pa.dictionary(pa.int8(), pa.string()), "d") == []
    assert ask("s", pa.binary(), b"d") is None
    assert (ask("g", pa.string(), "c"), ask("g", pa.string(), "d")) == ([0], [])


# Other writers


def test_filters_of_duckdb_are_read(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "d.parquet"
    # DuckDB writes filters only for dictionary-encoded columns, so each row group has 40 values.
    k = "(i // 2048) * 100 + i % 40"
    casts = {
        "i16": "smallint",
        "u16": "usmallint",
        "i32": "integer",
        "u32": "uinteger",
        "i64": "bigint",
        "u64": "ubigint",
        "f32": "float",
        "f64": "double",
        "d7": "decimal(7,2)",
        "d16": "decimal(16,2)",
        "s": "varchar",
    }
    columns = [f"({k})::{kind} AS {name}" for name, kind in casts.items()]
    columns += [
        "(i % 40)::tinyint AS i8",
        "(i % 40)::utinyint AS u8",
        f"({k})::varchar::blob AS bin",
        f"date '2000-01-01' + ({k})::int AS day",
        f"md5(({k})::varchar)::uuid AS uu",
        f"timestamp '2000-01-01' + to_seconds({k}) AS ts",
        f"(timestamp '2000-01-01' + to_seconds({k}))::timestamptz AS tz",
        f"(timestamp '2000-01-01' + to_seconds({k}))::timestamp_ns AS ns",
        f"time '00:00:00' + to_seconds({k}) AS tm",
        f"CASE WHEN i % 3 = 0 THEN NULL ELSE ({k})::int END AS nulls",
        f"{{'x': ({k})::int, 'y': ({k})::varchar}} AS st",
        "CASE WHEN i % 2 = 0 THEN 0.0::double ELSE -0.0::double END AS zeros",
    ]
    duckdb.sql(
        f"COPY (SELECT {', '.join(columns)} FROM range(8192) t(i)) TO '{path}' "
        "(FORMAT parquet, ROW_GROUP_SIZE 2048, BLOOM_FILTER_FALSE_POSITIVE_RATIO 0.001)"
    )
    with_filter = {".".join(column.path) for column in open_filters(path).columns()}
    assert {"i8", "u64", "d7", "d16", "uu", "tz", "st.x", "st.y", "zeros"} <= with_filter
    numbers = [n for n in range(1000, 9000, 301) if n % 100 >= 40]
    for name in sorted(with_filter):
        arrow_type = leaf_values(pq.read_table(path).slice(0, 1), name).type
        absent = [pa.scalar(n) for n in numbers]
        if pa.types.is_string(arrow_type):
            absent = [pa.scalar(str(n)) for n in numbers]
        elif pa.types.is_binary(arrow_type):
            absent = [pa.scalar(str(n).encode()) for n in numbers]
        elif pa.types.is_temporal(arrow_type) or pa.types.is_fixed_size_binary(arrow_type):
            absent = []
        check_keeps_present_drops_absent(path, name, absent)
    schema = pq.read_schema(path)
    for zero in (0.0, -0.0):
        assert open_filters(path).candidate_row_groups(equals("zeros", zero), schema) == [
            0,
            1,
            2,
            3,
        ]
    day = pa.scalar(datetime.date(2000, 1, 1) + datetime.timedelta(days=205))
    assert open_filters(path).candidate_row_groups(equals("day", day), schema) == [2]


SPARK_COLUMNS = [
    "cast(id as short) i16",
    "cast(id as int) i32",
    "id i64",
    "cast(id as float) f32",
    "cast(id as double) f64",
    "cast(id as decimal(7,2)) d7",
    "cast(id as decimal(16,2)) d16",
    "cast(-id as decimal(30,2)) d30",
    "concat('k', id) s",
    "cast(concat('k', id) as binary) b",
    "date_add(date'2020-01-01', cast(id as int)) day",
    "timestamp_seconds(id) ts",
    "cast(timestamp_seconds(id) as timestamp_ntz) ntz",
    "if(id % 3 = 0, null, id) nulls",
    "if(id % 2 = 0, 0D, -0D) + if(id < 9, 0D, id) zeros",
    "named_struct('x', id) st",
]


def write_with_spark(spark, folder):
    """Write filters on all columns, with each of Spark's ways to write decimals and timestamps."""
    frame = spark.range(2000).selectExpr(*SPARK_COLUMNS).coalesce(1)
    for name, legacy, kind in (
        ("plain", "false", "TIMESTAMP_MICROS"),
        ("legacy", "true", "INT96"),
        ("millis", "false", "TIMESTAMP_MILLIS"),
    ):
        options = {
            "spark.sql.parquet.writeLegacyFormat": legacy,
            "spark.sql.parquet.outputTimestampType": kind,
            "spark.sql.session.timeZone": "UTC",
        }
        with settings(spark, **options):
            writer = frame.write.option("parquet.bloom.filter.enabled", "true")
            writer = writer.option("parquet.bloom.filter.max.bytes", "8192")
            for column in [*frame.columns, "st.x"]:
                writer = writer.option(f"parquet.bloom.filter.enabled#{column}", "true")
            writer.parquet(f"{folder}/{name}")


def test_filters_of_spark_are_read(spark, tmp_path):
    write_with_spark(spark, tmp_path)
    for folder in ("plain", "legacy", "millis"):
        (path,) = (tmp_path / folder).glob("*.parquet")
        with_filter = {".".join(column.path) for column in open_filters(path).columns()}
        assert {"i16", "i64", "d7", "d30", "s", "st.x", "nulls"} <= with_filter
        for name in sorted(with_filter):
            low, high = (-9000, -3000) if name == "d30" else (3000, 9000)
            absent = [pa.scalar(n) for n in range(low, high, 301)]
            if name in ("s", "b"):
                absent = [pa.scalar(f"k{n}") for n in range(3000, 9000, 301)]
                absent = [x.cast(pa.binary()) for x in absent] if name == "b" else absent
            elif name in ("day", "ts", "ntz"):
                absent = []
            answers = not (name == "ts" and folder == "legacy")  # INT96
            check_keeps_present_drops_absent(path, name, absent, answers=answers)


# DataFusion writes these types without an annotation, so they are read as other types.
UNANNOTATED = ("time32[s]", "timestamp[s]", "date64[ms]")


def test_filters_of_datafusion_are_read(tmp_path):
    datafusion = pytest.importorskip("datafusion")
    columns = {}
    for number, arrow_type in enumerate(t for t in PLAIN_TYPES if not pa.types.is_decimal(t)):
        if not pa.types.is_time(arrow_type) and arrow_type != pa.date64():
            columns[f"c{number}"] = sample(arrow_type, 600, seed=number)[0]
    for number, (arrow_type, digits) in enumerate(
        [
            (pa.decimal128(7, 2), 7),
            (pa.decimal128(16, 4), 16),
            (pa.decimal128(30, 2), 28),
            (pa.decimal256(70, 3), 28),
        ]
    ):
        rng = random.Random(number)
        columns[f"d{number}"] = pa.array(
            [
                Decimal(rng.randrange(-(10**digits), 10**digits)).scaleb(-arrow_type.scale)
                for _ in range(600)
            ],
            arrow_type,
        )
    path = tmp_path / "f.parquet"
    datafusion.SessionContext().from_arrow(pa.table(columns)).write_parquet_with_options(
        path,
        datafusion.ParquetWriterOptions(
            bloom_filter_on_write=True,
            bloom_filter_ndv=1000,
            bloom_filter_fpp=0.001,
            max_row_group_size=200,
        ),
    )
    path = next(path.glob("*.parquet")) if path.is_dir() else path
    with_filter = {".".join(column.path) for column in open_filters(path).columns()}
    assert with_filter == set(columns)
    for name, values in columns.items():
        answers = str(values.type) not in UNANNOTATED
        check_keeps_present_drops_absent(path, name, [], answers=answers, keys=20)
    absent = [pa.scalar(Decimal(n) / 4) for n in range(-50, 50)]
    for name in ("d0", "d1", "d2", "d3"):
        check_keeps_present_drops_absent(path, name, absent, keys=20)


# Files with false claims


def with_footer(whole: bytes, change) -> bytes:
    """Return a file with a changed footer. Thrift structs store no lengths that had to change."""
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    footer = change(whole[start:-8])
    return whole[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def with_claims(whole: bytes, claims: dict) -> bytes:
    """Return a file whose first chunks claim another filter (offset, length), by row group."""

    def change(footer: bytes) -> bytes:
        groups = ThriftReader(footer).read_struct()[4]
        for group in sorted(claims, reverse=True):
            chunk = groups[group][1][0][3]
            start, length = chunk[14], chunk[15]
            old = encode_integer(start) + b"\x15" + encode_integer(length)
            position = footer.index(old, chunk.start, chunk.stop)
            after = footer[position + len(old) :]
            start, length = claims[group](start, length)
            new = encode_integer(start)
            if length is None:
                # The number of the next field is stored as the difference to this one.
                after = bytes([after[0] + 0x10 if after[0] else 0]) + after[1:]
            else:
                new += b"\x15" + encode_integer(length)
            footer = footer[:position] + new + after
        return footer

    return with_footer(whole, change)


def keys_file(path: Path, arrow_type=None, **options) -> Path:
    arrow_type = arrow_type or pa.int64()
    return write(path, v=pa.array([f"{i:05}" for i in range(800)]).cast(arrow_type), **options)


@pytest.mark.parametrize(
    "claim, message",
    [
        (lambda offset, size: (-5, size), "outside"),
        (lambda offset, size: (0, size), "outside"),
        (lambda offset, size: (10**15, size), "outside"),
        (lambda offset, size: (2**63 - 1, size), "outside"),
        (lambda offset, size: (offset, -1), "outside"),
        (lambda offset, size: (offset, 0), "outside"),
        (lambda offset, size: (offset, 10**9), "outside"),
        (lambda offset, size: (offset, size - 1), "not as long"),
        (lambda offset, size: (offset, size - 32), "not as long"),
        (lambda offset, size: (offset, size + 32), "not as long"),
        (lambda offset, size: (offset, 3), "cut short"),
        (lambda offset, size: (offset + 1, size), "header"),
        (lambda offset, size: (4, size), "header"),
        (lambda offset, size: (4, None), "header"),
        (lambda offset, size: (offset - size, size), "overlap"),
        (lambda offset, size: (offset - size, None), "overlap"),
    ],
)
def test_a_false_claim_loses_no_row_group(tmp_path, claim, message):
    path = keys_file(tmp_path / "f.parquet")
    schema = pq.read_schema(path)
    filters = open_filters(with_claims(path.read_bytes(), {1: claim}))
    with pytest.warns(IndexNotUsedWarning, match=message):
        assert 1 in filters.candidate_row_groups(equals("v", 5), schema)
    assert 1 in filters.candidate_row_groups(equals("v", 205), schema)
    assert 1 in filters.candidate_row_groups(IsIn(("v",), pa.array(range(5000, 5100))), schema)
    assert filters.candidate_row_groups(equals("v", 700), schema)[-1] == 3
    assert 3 not in filters.candidate_row_groups(equals("v", 5), schema)


@pytest.mark.parametrize("whole", [False, True])
def test_exchanged_filters_are_detected_by_the_statistics(tmp_path, whole):
    path = keys_file(tmp_path / "f.parquet")
    spans = [
        (c.bloom_filter_offset, c.bloom_filter_length)
        for c in (pq.read_metadata(path).row_group(g).column(0) for g in range(4))
    ]
    data = with_claims(path.read_bytes(), {0: lambda *_: spans[1], 1: lambda *_: spans[0]})
    filters, schema = open_filters(data), pq.read_schema(path)
    values = pa.array([5, *range(10**6, 10**6 + 100 * whole)])
    with pytest.warns(IndexNotUsedWarning, match="lacks a bound"):
        assert filters.candidate_row_groups(IsIn(("v",), values), schema) == [0, 1]
    assert filters.candidate_row_groups(equals("v", 205), schema) == [0, 1]


@pytest.mark.parametrize("error", [OSError("gone"), FragmentUnreadable("gone")])
@pytest.mark.parametrize("num_good_reads", [1, 2])
def test_failing_reads_lose_no_row_group(tmp_path, error, num_good_reads):
    path = keys_file(tmp_path / "f.parquet")

    whole, requests = path.read_bytes(), []

    def read(ranges):
        requests.append(ranges)
        if len(requests) <= num_good_reads:
            return [whole[a:b] for a, b in ranges]
        raise error

    filters = EmbeddedFilters(path.stat().st_size, read)
    with pytest.warns(IndexNotUsedWarning, match="gone"):
        candidates = filters.candidate_row_groups(equals("v", 5), pq.read_schema(path))
    assert candidates == [0, 1, 2, 3]
    assert len(filters.columns()) == (num_good_reads == 2)


def test_a_header_with_a_huge_claim_causes_small_reads(tmp_path):
    path = keys_file(tmp_path / "f.parquet")
    data = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(1).column(0).bloom_filter_offset
    huge = Sbbf.from_bytes(bytes(1 << 20)).to_parquet_bytes()[:64]
    data[start : start + len(huge)] = huge
    filters = open_filters(with_claims(bytes(data), {1: lambda offset, size: (offset, None)}))
    with pytest.warns(IndexNotUsedWarning, match="not as long"):
        assert filters.candidate_row_groups(equals("v", 5), pq.read_schema(path)) == [0, 1]


@pytest.mark.parametrize(
    "arrow_type", [pa.int64(), pa.int16(), pa.string(), pa.decimal128(20, 2)], ids=str
)
def test_flipped_bytes_lose_no_row_group(tmp_path, arrow_type):
    """Compare with what pyarrow reads from the damaged file. Only headers and footer are damaged,
    because no checksum covers the blocks."""
    path = keys_file(tmp_path / "f.parquet", arrow_type, ndv=100, fpp=0.1)
    whole = path.read_bytes()
    chunks = [pq.read_metadata(path).row_group(g).column(0) for g in range(4)]
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    places = [*range(footer, len(whole) - 8)]
    places += [c.bloom_filter_offset + i for c in chunks for i in range(15)] * 2
    rng = random.Random(7)
    answered = 0
    for _ in range(1200):
        data = bytearray(whole)
        data[rng.choice(places)] ^= 1 << rng.randrange(8)
        data = bytes(data)
        try:
            file = pq.ParquetFile(pa.BufferReader(data))
            schema = file.schema_arrow
            groups = [file.read_row_group(g) for g in range(file.num_row_groups)]
        except (OSError, pa.ArrowException, ValueError, IndexError):
            groups, schema, file = [], None, None
        if file is None or "v" not in schema.names:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IndexNotUsedWarning)
            filters = open_filters(data)
            filters.columns()
            for group, table in enumerate(groups):
                if not len(table):
                    continue
                for row in (0, len(table) // 2):
                    value = table["v"][row]
                    if not value.is_valid:
                        continue
                    candidates = filters.candidate_row_groups(Equals(("v",), value), schema)
                    answered += candidates is not None
                    assert candidates is None or group in candidates
    assert answered > 1000


def test_statistics_of_a_wrong_size_do_not_crash_the_process(tmp_path):
    """``ColumnChunkMetaData.statistics`` of pyarrow 26 aborts the process on them."""
    path = keys_file(tmp_path / "f.parquet")
    maximum = (199).to_bytes(8, "little")

    def shorter(footer):
        assert b"\x08" + maximum in footer
        return footer.replace(b"\x08" + maximum, b"\x05" + maximum[:5])

    data = with_footer(path.read_bytes(), shorter)
    filters, schema = open_filters(data), pq.read_schema(path)
    assert filters.candidate_row_groups(equals("v", 5), schema) == [0]


def test_encrypted_columns_have_no_filters(tmp_path):
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Kms(encryption.KmsClient):
        def wrap_key(self, key_bytes, master_key_identifier):
            return base64.b64encode(key_bytes)

        def unwrap_key(self, wrapped_key, master_key_identifier):
            return base64.b64decode(wrapped_key)

    properties = encryption.CryptoFactory(lambda _: Kms()).file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration("k", column_keys={"k": ["a"]}, plaintext_footer=True),
    )
    table = pa.table({"a": [1, 2], "b": [3, 4]})
    path = tmp_path / "f.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    filters = open_filters(path)
    assert filters.columns() == []
    assert filters.candidate_row_groups(equals("a", 5), table.schema) is None


def test_filters_of_wide_values_and_int96_are_not_used(tmp_path):
    path = tmp_path / "f.parquet"
    stamps = pa.array([datetime.datetime(2020, 1, 1)] * 3)
    pq.write_table(
        pa.table({"t": stamps}),
        path,
        use_deprecated_int96_timestamps=True,
        bloom_filter_options={"t": True},
    )
    filters = open_filters(path)
    assert filters.columns()[0].row_groups == 1
    assert filters.candidate_row_groups(equals("t", stamps[0]), pq.read_schema(path)) is None


def test_negative_and_wide_decimals_are_big_endian(tmp_path):
    values = [Decimal("-0.01"), Decimal("0.00"), Decimal("-99999999999999999999.99")]
    for arrow_type in (pa.decimal128(22, 2), pa.decimal256(60, 2), pa.decimal128(38, 2)):
        path = write(tmp_path / "f.parquet", v=pa.array(values, arrow_type))
        filters, schema = open_filters(path), pq.read_schema(path)
        for value in values:
            assert filters.candidate_row_groups(equals("v", value), schema) == [0]
        assert filters.candidate_row_groups(equals("v", Decimal("0.01")), schema) == []
        assert filters.candidate_row_groups(equals("v", Decimal("0.001")), schema) == []
        assert filters.candidate_row_groups(equals("v", 0), schema) == [0]
        assert filters.candidate_row_groups(IsIn(("v",), pa.array([7, 8])), schema) == []

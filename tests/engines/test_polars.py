"""Compare `to_polars` with `pl.scan_parquet`: the same rows, order and schema."""

from __future__ import annotations

import contextlib
import datetime as dt
import operator
import random
import uuid
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import support.e2e_helpers as e2e
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from support.helpers import cases, run_python
from support.limits import record_polars_reads

import zonebloom as zb
from zonebloom.errors import FilterError

ROWS = 240
ZONE = 24
NAN = float("nan")
VALUES = {
    "i8": (pa.int8(), [0, 5, -1, 127, 6, -128]),
    "i64": (pa.int64(), [0, 5, 2**53, 2**53 + 1, -(2**63), 7, 8, 9]),
    "u64": (pa.uint64(), [0, 5, 2**64 - 1, 2**53 + 1, 6]),
    "f16": (pa.float16(), [0.0, 18.25, 0.5, NAN, -1.5]),
    "f32": (pa.float32(), [0.0, -0.0, 0.1, NAN, 1.5, float("inf")]),
    "f64": (pa.float64(), [0.0, -0.0, 0.1, NAN, 5.0, -1.5]),
    "dec": (pa.decimal128(20, 2), [Decimal(v) for v in ("0.10", "5.00", "1.50", "-1.50")]),
    "s": (pa.string(), ["", "a", "5", "É", "ab", "b"]),
    "sv": (pa.string_view(), ["", "a", "5", "b"]),
    "cat": (pa.dictionary(pa.int32(), pa.string()), ["", "a", "5", "b", "c"]),
    "bin": (pa.binary(), [b"", b"a", b"\xff", b"b"]),
    "b": (pa.bool_(), [True, False]),
    "ts": (pa.timestamp("ns"), [0, 1, 1_577_836_800 * 10**9, 1_577_836_800 * 10**9 + 1]),
    "utc": (pa.timestamp("us", "UTC"), [0, 1, 1_577_836_800 * 10**6]),
    "d32": (pa.date32(), [0, 18262, 18263, -1]),
    "d64": (pa.date64(), [0, 86_400_000, 1_577_836_800_000]),
    "t": (pa.time64("us"), [0, 1, 3_600_000_000]),
    "du": (pa.duration("ms"), [0, 1, 1000, -5]),
}
INDEXED = ["i8", "i64", "u64", "f16", "f32", "f64", "dec", "s", "sv", "cat", "bin", "ts", "utc",
           "d32", "d64", "t", "du", "st.x"]  # fmt: skip
CLOSED = ["both", "left", "right", "none"]


def rows(seed: int, first: int, count: int = ROWS) -> pa.Table:
    """Return rows whose values depend on the zone, so that zones differ."""
    rng = random.Random(seed)
    columns: dict = {"row": pa.array(range(first, first + count), pa.int64())}

    def draw_values(domain):
        for row in range(count):
            candidates = domain[(row // ZONE) % len(domain) :][:2]
            yield None if row // ZONE % 3 == 0 and rng.random() < 0.1 else rng.choice(candidates)

    for name, (kind, domain) in VALUES.items():
        columns[name] = e2e.array_of(kind, list(draw_values(domain)))
    inner_values = list(draw_values([1, 5, 2, 3, 9]))
    columns["st"] = pa.array(
        [None if rng.random() < 0.1 else {"x": x, "y": str(x)} for x in inner_values],
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
    )
    columns["li"] = pa.array([[row % 3] for row in range(count)])
    return pa.table(columns)


def write(folder, number: int, table: pa.Table) -> None:
    pq.write_table(
        table,
        folder / f"part-{number}.parquet",
        row_group_size=90,
        write_page_index=True,
        max_rows_per_page=12,
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Write four indexed files, rewrite one of them, and add one without an index."""
    folder = tmp_path_factory.mktemp("lake")
    for number in range(4):
        write(folder, number, rows(number, number * ROWS))
    ds = zb.dataset(folder)
    for column in INDEXED:
        e2e.build(ds, column, number_of_items=ZONE)
    e2e.build(ds, "row", number_of_items=ZONE)
    write(folder, 2, rows(77, 2 * ROWS))
    e2e.touch_later(folder / "part-2.parquet")
    write(folder, 4, rows(4, 4 * ROWS))
    return folder


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Write three files with an index on each of three columns."""
    folder = tmp_path_factory.mktemp("fresh")
    for number in range(3):
        write(folder, number, rows(number, number * ROWS))
    ds = zb.dataset(folder)
    for column in ("row", "s", "st.x"):
        e2e.build(ds, column, number_of_items=ZONE)
    return folder


def scan(folder) -> pl.LazyFrame:
    return zb.dataset(folder).to_polars()


def scan_natively(folder) -> pl.LazyFrame:
    """Return the scan of Polars, with dates where pyarrow has them and Polars has datetimes."""
    frame = pl.scan_parquet(str(folder / "*.parquet"))
    dates = [name for name in ("d64", "date64[ms]") if name in frame.collect_schema()]
    return frame.with_columns(pl.col(dates).cast(pl.Date)) if dates else frame


@pytest.fixture
def reads(monkeypatch):
    return record_polars_reads(monkeypatch)


def check(ours: pl.LazyFrame, theirs: pl.LazyFrame, **options) -> pl.DataFrame:
    """Check that both queries return the same frame in the same order, and return the frame."""
    try:
        expected = theirs.collect(**options)
    except pl.exceptions.PolarsError:
        # Polars may refuse a comparison only when it reads rows, and our scan may read none.
        with contextlib.suppress(pl.exceptions.PolarsError):
            ours.collect(**options)
        return pl.DataFrame()
    result = ours.collect(**options)
    assert result.schema == expected.schema
    assert_frame_equal(result, expected, check_exact=True)
    return result


# Random trees

LITERALS = [
    0, 5, -1, 6, 7, 300, 2**53 + 1, 2**63, 2**64 - 1, 0.0, -0.0, 0.1, 5.0, 1.5, 2.0**53, NAN,
    Decimal("0.1"), Decimal("1.50"), "", "a", "5", "É", b"", b"a", True, None,
    dt.date(1970, 1, 1), dt.date(2020, 1, 1), dt.datetime(1970, 1, 1), dt.datetime(2020, 1, 1),
    dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),
    dt.time(0), dt.time(1), dt.timedelta(0), dt.timedelta(milliseconds=1),
    dt.timedelta(milliseconds=-5),
]  # fmt: skip
# Literals that Polars can compare with each column. It refuses others, and a refused expression
# tests nothing.
FITTING = {
    "i8": [0, 5, -1, 300, 5.0, 0.1], "i64": [0, 5, 2**53 + 1, 2.0**53, 7, 5.5, Decimal(5)],
    "u64": [0, 5, 2**64 - 1, -1, 6], "f32": [0.0, -0.0, 0.1, NAN, 1.5, 5, float("inf")],
    "f64": [0.0, -0.0, 0.1, NAN, 5, 5.0, -1.5], "dec": [Decimal("0.1"), Decimal("1.50"), 5, 1.5],
    "s": ["", "a", "5", "É", "zz"], "sv": ["", "a", "zz"], "cat": ["", "a", "c", "zz"],
    "bin": [b"", b"a", b"\xff", b"zz"], "b": [True, False],
    "ts": [dt.datetime(1970, 1, 1), dt.datetime(2020, 1, 1), dt.date(2020, 1, 1)],
    "utc": [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(1970, 1, 1, tzinfo=dt.UTC)],
    "d32": [dt.date(1970, 1, 1), dt.date(2020, 1, 1), dt.datetime(2020, 1, 2)],
    "d64": [dt.datetime(1970, 1, 1), dt.datetime(2020, 1, 1), dt.date(2020, 1, 1)],
    "t": [dt.time(0), dt.time(1), dt.time(2)],
    "du": [dt.timedelta(0), dt.timedelta(milliseconds=1), dt.timedelta(milliseconds=-5)],
    "row": [0, 5, 100, 250, 481, 700, 999, 5000], "x": [1, 5, 2, 7],
}  # fmt: skip
COMPARISONS = [
    operator.eq, operator.eq, operator.eq, operator.ne, operator.lt, operator.le, operator.gt,
    operator.ge, pl.Expr.eq_missing, pl.Expr.ne_missing,
]  # fmt: skip


def column(name: str) -> pl.Expr:
    return pl.col("st").struct.field("x") if name == "x" else pl.col(name)


@st.composite
def leaves(draw):
    name = draw(st.sampled_from(list(FITTING)))
    operand, literals = column(name), st.sampled_from(FITTING[name])
    kind = draw(st.sampled_from(["compare", "compare", "in", "between", "null", "other"]))
    if kind == "compare":
        compare = draw(st.sampled_from(COMPARISONS))
        literal = pl.lit(draw(st.one_of(literals, literals, literals, st.sampled_from(LITERALS))))
        return compare(operand, literal) if draw(st.booleans()) else compare(literal, operand)
    if kind == "in":
        # A list has one type, and no type contains both -1 and 2**64 - 1.
        same_type_values = [
            value for value in FITTING[name] if type(value) is type(FITTING[name][0])
        ]
        same_type_values = [value for value in same_type_values if name != "u64" or value >= 0]
        values = draw(st.lists(st.one_of(st.sampled_from(same_type_values), st.none()), max_size=4))
        return operand.is_in(values, nulls_equal=draw(st.booleans()))
    if kind == "between":
        return operand.is_between(
            draw(literals), draw(literals), closed=draw(st.sampled_from(CLOSED))
        )
    if kind == "null":
        return operand.is_null() if draw(st.booleans()) else operand.is_not_null()
    return draw(
        st.sampled_from(
            [pl.col("b"), pl.lit(True), pl.col("s").str.contains("a"), pl.col("i64") % 2 == 1,
             pl.col("row") > pl.col("i8"), pl.col("row") == pl.col("row").max(),
             pl.col("s").is_first_distinct(), pl.col("row").shift(1) == 5]
        )
    )  # fmt: skip


expressions = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds(operator.and_, inner, inner),
        st.builds(operator.and_, inner, inner),
        st.builds(operator.or_, inner, inner),
        inner.map(operator.invert),
        st.builds(pl.all_horizontal, inner, inner),
        st.builds(pl.any_horizontal, inner, inner),
        inner.map(pl.Expr.is_null),
    ),
    max_leaves=4,
)
# If a filter needs all rows and is constantly false, Polars 2.1 returns an empty frame and ignores
# the projection below it. See test_a_false_filter_that_needs_all_rows_returns_no_row.
ALL_ROWS = (".max()", "is_first_distinct", ".shift(")
shapes = st.sampled_from(
    [
        lambda lf, e: lf.filter(e),
        lambda lf, e: lf.filter(e),
        lambda lf, e: lf.filter(e).select("row", "cat", "d64"),
        lambda lf, e: lf.filter(e).head(3),
        lambda lf, e: lf.head(300).filter(e),
        lambda lf, e: lf.filter(e).select(pl.len()),
        lambda lf, e: lf.select("row", "st", *[n for n in VALUES]).filter(e).tail(2),
        lambda lf, e: lf.filter(e).filter(pl.col("row") % 2 == 0).slice(1, 5),
    ]
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::zonebloom.errors.StaleIndexWarning")
@settings(max_examples=cases(500, 60))
@given(expressions, shapes, st.sampled_from(["in-memory", "streaming"]))
def test_random_filters_return_the_rows_of_polars(lake, expression, shape, engine):
    text = str(expression)
    is_constant = any(part in text for part in ("true", "false", "is_in([[]]"))
    assume(not (is_constant and any(part in text for part in ALL_ROWS)))
    check(shape(scan(lake), expression), shape(scan_natively(lake), expression), engine=engine)
    # The filter of a table is evaluated by us.
    with contextlib.suppress(FilterError, pl.exceptions.PolarsError):
        found = zb.dataset(lake).to_table(["row"], expression)
        expected = scan_natively(lake).filter(expression).select("row").collect()
        assert found["row"].to_pylist() == expected["row"].to_list()


def test_a_false_filter_that_needs_all_rows_returns_no_row(fresh):
    false_filter = (pl.col("row") == pl.col("row").max()) & pl.lit(False)
    result = scan(fresh).filter(false_filter).select("row", "s").collect()
    assert result.is_empty()
    assert {"row", "s"} <= set(result.columns)


# Queries of Polars on top of a scan


def test_only_kept_rows_and_columns_are_read(fresh, reads):
    result = scan(fresh).filter(pl.col("row") == 300).select("s").collect()
    assert result.height == 1
    ((request, stats),) = reads
    assert set(request.columns) == {"row", "s"}
    assert stats.rows_read == ZONE


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_queries_on_top_return_the_rows_of_polars(fresh, engine):
    key_frame = pl.LazyFrame({"row": [300, 5, 5, 9999], "k": [1, 2, 3, 4]})

    def filter_rows(lf, *keys):
        return lf.filter(pl.col("row").is_in(keys))

    queries = [
        lambda lf: filter_rows(lf, 300, 5).join(key_frame, on="row", maintain_order="left_right"),
        lambda lf: filter_rows(lf, 300, 5).join(
            filter_rows(lf, 5, 6), on="row", how="left", maintain_order="left_right"
        ),
        lambda lf: lf.filter(pl.col("s") == "a").group_by("s").agg(pl.col("row").sum()),
        lambda lf: lf.filter(pl.col("s").is_null()).sort("row", descending=True).head(3),
        lambda lf: pl.concat([filter_rows(lf, 300), filter_rows(lf, 5)]),
        lambda lf: pl.concat([filter_rows(lf, 300), filter_rows(lf, 300)]),
        lambda lf: filter_rows(lf, 300, 5).with_row_index(),
        lambda lf: lf.with_row_index().filter(pl.col("row") == 300),
        lambda lf: filter_rows(lf, 300, 5).select(pl.len()),
        lambda lf: filter_rows(lf, 300, 5).select([]),
        lambda lf: lf.select(pl.col("row").max()),
        lambda lf: lf.rename({"row": "number"}).filter(pl.col("number") == 300),
        lambda lf: lf.with_columns(row=pl.col("row") + 1).filter(pl.col("row") == 300),
        lambda lf: lf.filter(pl.col("row") == pl.col("row").max()),
        lambda lf: lf.filter(pl.col("st").struct.field("x") == 5).select("st"),
        lambda lf: lf.unnest("st").filter(pl.col("x") == 5),
        lambda lf: lf.filter(pl.col("row") == 300).drop("row"),
        lambda lf: lf.filter(pl.lit(False)),
        lambda lf: lf.remove(pl.col("row") != 300),
        lambda lf: lf,
    ]
    for query in queries:
        check(query(scan(fresh)), query(scan_natively(fresh)), engine=engine)


def test_collect_all_and_sql_use_the_index(fresh, reads):
    ours, theirs = scan(fresh), scan_natively(fresh)
    filters = [pl.col("row") == key for key in (5, 300, -1)]
    frames = pl.collect_all([ours.filter(filter) for filter in filters])
    for frame, filter in zip(frames, filters, strict=True):
        assert_frame_equal(frame, theirs.filter(filter).collect())
    text = "SELECT s, row FROM t WHERE row IN (5, 300) AND s IS NOT NULL ORDER BY row DESC"
    check(*(pl.SQLContext(t=frame).execute(text) for frame in (ours, theirs)))
    # Polars runs the first three at the same time.
    assert sorted(stats.rows_read for _, stats in reads) == [0, ZONE, ZONE, 2 * ZONE]


def test_sinks_write_the_rows_of_polars(fresh, tmp_path):
    query = pl.col("row").is_in([5, 300])
    scan(fresh).filter(query).sink_parquet(tmp_path / "ours.parquet")
    assert_frame_equal(
        pl.read_parquet(tmp_path / "ours.parquet"), scan_natively(fresh).filter(query).collect()
    )
    batches = list(scan(fresh).filter(query).collect_batches(maintain_order=True))
    assert_frame_equal(pl.concat(batches), scan_natively(fresh).filter(query).collect())


def test_files_with_other_columns_and_types_are_read(tmp_path):
    """Use the schema of the first file, as datasets of pyarrow do."""
    pq.write_table(pa.table({"id": pa.array([1, 2]), "s": ["a", "b"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"id": pa.array([2, 3], pa.int32())}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"x": [1], "id": [2], "s": ["c"]}), tmp_path / "2.parquet")
    ds = zb.dataset(tmp_path)
    expected = pl.DataFrame({"id": [1, 2, 2, 3, 2], "s": ["a", "b", None, None, "c"]})
    assert_frame_equal(ds.to_polars().collect(), expected)
    with pytest.warns(zb.errors.HiddenColumnsWarning, match="'x'"):
        e2e.build(ds, "s")
    key = pl.col("s") == "c"
    assert_frame_equal(ds.to_polars().filter(key).collect(), expected.filter(key))


def test_tables_in_memory_and_other_formats_are_scanned(tmp_path, reads):
    table = pa.concat_tables([rows(0, 0), rows(1, ROWS)]).drop_columns(["d64"])
    expected = pl.from_arrow(table).lazy()
    in_memory = zb.dataset(table)
    e2e.build(in_memory, "row", number_of_items=ZONE)
    # With threads, pyarrow would write the chunks in any order.
    pads.write_dataset(table.unify_dictionaries(), tmp_path, format="ipc", use_threads=False)
    on_disk = zb.dataset(tmp_path, format="ipc")
    e2e.build(on_disk, "row", number_of_items=ZONE)
    for ds in (in_memory, on_disk):
        for expression in (pl.col("row") == 300, pl.col("i64") == 5, pl.col("cat") == "a"):
            check(ds.to_polars().filter(expression), expected.filter(expression))
        check(ds.to_polars().select("row", "s").head(3), expected.select("row", "s").head(3))
        check(ds.to_polars(), expected)
        reads.clear()
        ds.to_polars().filter(pl.col("row") == 300).collect()
        assert reads[0][1].rows_read == ZONE


EVERY_TYPE = {
    **{str(kind).replace('/', '-'): kind for kind in (
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
        pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal32(5, 2),
        pa.decimal64(12, 2), pa.decimal128(38, 20), pa.decimal256(20, 2), pa.string(),
        pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
        pa.binary(3), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"),
        pa.time64("ns"),
        *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns")
          for zone in (None, "UTC", "Europe/Paris", "+02:00")),
        *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
        pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()),
        pa.dictionary(pa.int32(), pa.int64()), pa.dictionary(pa.int32(), pa.binary()),
    )},
}  # fmt: skip


def every_type(first: int, count: int) -> pa.Table:
    columns: dict = {"row": pa.array(range(first, first + count), pa.int64())}
    for name, kind in EVERY_TYPE.items():
        value_type = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
        # Skip the extremes, which come first, because Python has no dates for them.
        values = [*e2e.raw_values(value_type, 14)[10:], None]
        columns[name] = e2e.array_of(kind, [values[(row // 8 + row) % 5] for row in range(count)])
    columns["uuid"] = pa.array([bytes([row % 7]) * 16 for row in range(count)], pa.uuid())
    columns["bool"] = pa.array([row % 2 == 0 for row in range(count)])
    columns["null"] = pa.nulls(count)
    columns["map"] = pa.array(
        [[("a", row)] for row in range(count)], pa.map_(pa.string(), pa.int8())
    )
    columns["fixed"] = pa.array([[row, row] for row in range(count)], pa.list_(pa.int32(), 2))
    columns["nested"] = pa.array(
        [{"c": "a", "d": [{"e": row}]} for row in range(count)],
        pa.struct([("c", pa.dictionary(pa.int8(), pa.string())),
                   ("d", pa.list_(pa.struct([("e", pa.int8())])))]),
    )  # fmt: skip
    return pa.table(columns)


@pytest.mark.slow
def test_every_type_has_the_values_that_polars_reads(tmp_path):
    for number in range(2):
        write(tmp_path, number, every_type(number * 80, 80))
    ds = zb.dataset(tmp_path)
    for name in ("row", "uuid", *EVERY_TYPE):
        e2e.build(ds, name, number_of_items=8)
    ours, theirs = ds.to_polars(), scan_natively(tmp_path)
    assert ours.collect_schema() == theirs.collect_schema()
    check(ours, theirs)
    check(ours.filter(pl.col("row") == 90), theirs.filter(pl.col("row") == 90))
    for name in (*EVERY_TYPE, "uuid"):
        for row in (88, 90, 91, 83):
            # Use a literal of the column's type, because a Python value could lose precision.
            value = theirs.filter(pl.col("row") == row).select(name).collect().to_series()
            key = pl.col(name).is_in(value.implode(), nulls_equal=True) & (pl.col("row") > 80)
            check(ours.filter(key), theirs.filter(key))


MOMENTS = [dt.datetime(2024, 1, 1, 0, 0, second) for second in range(50)]
# Files that Polars' reader refuses, or reads as other types than pyarrow does.
ODD_FILES = {
    "INT96": (pa.array(MOMENTS, pa.timestamp("us")), {"flavor": "spark"}),
    "byte stream split": (
        pa.array([bytes([number]) * 4 for number in range(50)], pa.binary(4)),
        {"use_byte_stream_split": ["x"], "use_dictionary": False},
    ),
    "dates in milliseconds": (pa.array(MOMENTS, pa.timestamp("ms")).cast(pa.date64()), {}),
    "zone +05:30": (pa.array(MOMENTS, pa.timestamp("us", "+05:30")), {}),
    "nested zone +05:30": (pa.array([MOMENTS] * 50, pa.list_(pa.timestamp("us", "+05:30"))), {}),
    "binary after string": (pa.array([b"a", b"b"] * 25), {}),
}


@pytest.mark.parametrize("name", ODD_FILES)
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_what_a_table_has_is_in_a_lazy_frame(tmp_path, name, engine):
    values, options = ODD_FILES[name]
    first = values.cast(pa.string()) if name == "binary after string" else values
    for number, column in enumerate((first, values)):
        table = pa.table({"id": range(50 * number, 50 * number + 50), "x": column})
        pq.write_table(table, tmp_path / f"{number}.parquet", **options)
    ds = zb.dataset(tmp_path)
    table = ds.to_table()
    if name.endswith("zone +05:30"):
        in_utc = pa.timestamp("us", "UTC")
        type_ = pa.list_(in_utc) if name.startswith("nested") else in_utc
        table = table.set_column(1, "x", table["x"].cast(type_))
    expected = pl.DataFrame(table)
    for indexed in (False, True):
        if indexed:
            ds.create_scalar_index("id", number_of_items=10)
        for query in (
            lambda f: f,
            lambda f: f.filter(pl.col("id") == 77),
            lambda f: f.filter(pl.col("id") >= 30).select("x"),
            lambda f: f.slice(45, 10),
            lambda f: f.with_row_index().filter(pl.col("id") == 60),
            lambda f: f.select(pl.len()),
        ):
            check(query(ds.to_polars()), query(expected.lazy()), engine=engine)


def test_a_filter_of_polars_compares_times_of_any_zone(tmp_path):
    zone = dt.timezone(dt.timedelta(hours=5.5))
    moments = [moment.replace(tzinfo=zone) for moment in MOMENTS]
    table = pa.table({"id": range(50), "x": pa.array(moments, pa.timestamp("us", "+05:30"))})
    pq.write_table(table, tmp_path / "0.parquet")
    ds = zb.dataset(tmp_path)
    for indexed in (False, True):
        if indexed:
            ds.create_scalar_index("x", number_of_items=10)
        for key in (pl.col("x") == moments[7], pl.col("x").is_in([moments[7]])):
            assert ds.to_table(filter=key)["id"].to_pylist() == [7]
            assert ds.to_polars().filter(key).collect()["id"].to_list() == [7]


def test_an_error_of_a_file_names_it(tmp_path):
    write(tmp_path, 0, rows(0, 0))
    (tmp_path / "part-1.parquet").touch()
    with pytest.raises(Exception, match=r"part-1\.parquet"):
        zb.dataset(tmp_path).to_polars().collect()


def test_partition_columns_have_the_types_of_a_table(tmp_path):
    """A comparison of a text with a date or a number is refused by Polars, and never empty."""
    for day, n in (("2025-02-26", "1"), ("2025-02-27", "99999999999")):
        folder = tmp_path / f"day={day}" / f"n={n}" / "note=a%20b"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), folder / "0.parquet")
    ds, day = zb.dataset(tmp_path), dt.date(2025, 2, 26)
    assert ds.to_polars().collect_schema() == pl.DataFrame(ds.to_table()).schema
    for key in (pl.col("day") == day, pl.col("day").is_in([day]), pl.col("n") == 1):
        with pytest.raises(pl.exceptions.PolarsError, match="cannot"):
            ds.to_polars().filter(key).collect()
    partitioning = pads.partitioning(
        pa.schema({"day": pa.date32(), "n": pa.int64(), "note": pa.string()}), flavor="hive"
    )
    ds = zb.dataset(tmp_path, partitioning=partitioning)
    e2e.build(ds, "id")
    theirs = pl.scan_parquet(str(tmp_path / "**" / "*.parquet"), hive_partitioning=True)
    of_day = (pl.col("day") == day) & (pl.col("note") == "a b") & (pl.col("id") == 1)
    for key in (pl.col("day") == day, pl.col("n") > 1, of_day):
        assert check(ds.to_polars().filter(key), theirs.filter(key)).height == 1


@pytest.mark.parametrize("kind", [pa.uuid(), pa.binary(16)], ids=str)
def test_the_text_of_a_uuid_is_not_compared_with_bytes(tmp_path, kind):
    duckdb = pytest.importorskip("duckdb")
    keys = [uuid.UUID(int=number) for number in range(20)]
    table = pa.table({"u": pa.array([key.bytes for key in keys], kind), "id": range(20)})
    pq.write_table(table, tmp_path / "0.parquet")
    ds, text = zb.dataset(tmp_path), str(keys[7])
    for indexed in (False, True):
        if indexed:
            ds.create_scalar_index("u", number_of_items=4)
        for key in (pl.col("u") == text, pl.lit(text) == pl.col("u"), pl.col("u") != text):
            with pytest.raises(FilterError, match=rf"give the bytes: uuid\.UUID\('{text}'\)"):
                ds.to_table(filter=key)
            with pytest.raises(FilterError, match="give the bytes"):
                ds.to_polars().filter(key & (pl.col("id") >= 0)).collect()
        assert ds.to_polars().filter(pl.col("u") == keys[7].bytes).collect()["id"].to_list() == [7]
        query = f"FROM ds WHERE u = '{text}' OR u = '{keys[8]}'"
        if kind == pa.uuid():
            assert len(duckdb.sql(query).fetchall()) == 2
        else:
            with pytest.raises(duckdb.Error, match="give the bytes"):
                duckdb.sql(query).fetchall()
        assert len(duckdb.sql(f"FROM ds WHERE u = UUID '{text}'").fetchall()) == 1


def test_enums_and_categories_of_polars_are_filtered(tmp_path):
    frame = pl.DataFrame(
        {
            "e": pl.Series(["b", "a", None, "b"], dtype=pl.Enum(["b", "a"])),
            "c": pl.Series(["x", "y", None, "x"], dtype=pl.Categorical),
            "t": [dt.time(1), dt.time(2), None, dt.time(1)],
            "row": [0, 1, 2, 3],
        }
    )
    frame.write_parquet(tmp_path / "0.parquet", row_group_size=2)
    ds = zb.dataset(tmp_path)
    for name in ("e", "c", "t"):
        e2e.build(ds, name, number_of_items=1)
    for expression in (
        pl.col("e") == "a",
        pl.col("e") < "a",
        pl.col("c") == "x",
        pl.col("c").is_in(["x", None], nulls_equal=True),
        pl.col("e").is_in(["a"]),
        pl.col("e") == pl.col("c").cast(pl.String),
        pl.col("t") == dt.time(2),
        pl.col("e").is_null(),
    ):
        check(ds.to_polars().filter(expression), scan_natively(tmp_path).filter(expression))


def test_wrong_filters_raise_errors_of_polars(fresh):
    for expression in (pl.col("zz") == 1, pl.col("row") == "a", pl.col("row") + 1):
        with pytest.raises(pl.exceptions.PolarsError):
            scan(fresh).filter(expression).collect()


def test_a_filter_that_keeps_many_zones_becomes_a_scan_of_polars(fresh, reads):
    key = pl.col("row").is_in(list(range(0, 720, ZONE * 2)))
    check(*(frame.drop("d64").filter(key) for frame in (scan(fresh), scan_natively(fresh))))
    assert [stats.rows_read for _, stats in reads] == [0]


@pytest.mark.slow
def test_queries_run_in_one_thread(fresh):
    code = (
        "import polars as pl; import zonebloom as zb\n"
        f"lf = zb.dataset({str(fresh)!r}).to_polars()\n"
        "key = pl.col('row').is_in([5, 300, 500])\n"
        "for engine in ('in-memory', 'streaming'):\n"
        "    both = lf.filter(key).join(lf.filter(pl.col('row') == 300), on='row')\n"
        "    print(pl.thread_pool_size(), both.collect(engine=engine).height)\n"
    )
    assert run_python(code, POLARS_MAX_THREADS="1") == "1 1\n1 1\n"

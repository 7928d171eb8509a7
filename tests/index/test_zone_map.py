"""Zone maps, against plain Python, PyArrow and the files that Lance writes."""

from __future__ import annotations

import glob
import itertools
import math
import operator

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader
from support.e2e_helpers import merge_segments
from support.ordered_values import TYPES, VALUES, column
from support.predicate_oracle import ORDER, exact

import zonebloom as zb
from zonebloom import errors
from zonebloom.base.version import with_format_version
from zonebloom.exchange.lance import commit_to_lance, from_lance
from zonebloom.index.zone_map.bounds import ZoneBounds, ZoneMapTable, read_zone_map, zone_map_schema
from zonebloom.predicates.ast import Compares, Equals, IsIn, IsNull, Not
from zonebloom.values.normal_types import hashed_values

ITEMS = 4


def table_of(kind: pa.DataType, values: list, tmp_path_factory=None) -> ZoneMapTable:
    ds = zb.dataset(pa.table({"x": column(kind, values)}))
    ds.create_scalar_index("x", "ZONEMAP", number_of_items=ITEMS, spark=False)
    (table,) = ds.opened.indices["x_idx"].tables()
    assert isinstance(table, ZoneMapTable)
    return table


def order(value: pa.Scalar):
    """Return a number, string or bytes that orders like a value, or None for null and NaN."""
    if not value.is_valid:
        return None
    number = exact(value)[1]
    if isinstance(number, str):
        return number.encode()
    return None if isinstance(number, float) and math.isnan(number) else number


@st.composite
def cases(draw):
    kind = draw(st.sampled_from(TYPES))
    known = st.sampled_from(VALUES[kind])
    values = draw(st.lists(st.one_of(st.none(), known), min_size=1, max_size=14))
    literals = draw(st.lists(known, min_size=1, max_size=4))
    return kind, values, literals


def is_nan(value) -> bool:
    return isinstance(value, float) and math.isnan(value)


@pytest.mark.slow
@settings(max_examples=300)
@given(cases())
def test_zones_are_those_that_may_hold_the_values(case):
    """A zone is kept if plain Python finds a row in it, and mostly only then."""
    kind, values, literals = case
    table = table_of(kind, values)
    stored = column(kind, values)
    assert len(table) == -(-len(values) // ITEMS)
    bounds = table.bounds
    zones = [
        [order(stored[i]) for i in range(start, min(start + ITEMS, len(values)))]
        for start in range(0, len(values), ITEMS)
    ]
    literals = [literal for literal in literals if not is_nan(literal)]
    scalars = [column(kind, [literal])[0] for literal in literals]
    for scalar in scalars:
        wanted = order(scalar)
        for symbol, holds in ORDER.items():
            leaf = Compares(("x",), symbol, scalar)
            check(
                bounds.zones_where_true(kind, leaf),
                [any(v is not None and holds(v, wanted) for v in zone) for zone in zones],
                is_tight=not any(isinstance(v, bytes) and len(v) > 60 for z in zones for v in z),
            )
            check(
                bounds.zones_where_false(kind, leaf),
                [any(v is None or not holds(v, wanted) for v in zone) for zone in zones],
            )
        leaf = Equals(("x",), scalar)
        check(bounds.zones_where_true(kind, leaf), [wanted in zone for zone in zones])
        check(
            bounds.zones_where_false(kind, leaf),
            [any(v != wanted for v in zone) for zone in zones],
        )
    if scalars and not isinstance(kind, pa.DictionaryType | pa.UuidType):
        wanted_values = [order(scalar) for scalar in scalars]
        leaf = IsIn(("x",), pa.array(literals, kind), null_matches=False)
        expected = [any(v is not None and v in wanted_values for v in zone) for zone in zones]
        check(bounds.zones_where_true(kind, leaf), expected)
    nulls = [any(not stored[i].is_valid for i in zone_rows(n, values)) for n in range(len(zones))]
    assert bounds.zones_where_true(kind, IsNull(("x",))).tolist() == np.flatnonzero(nulls).tolist()
    others = [any(stored[i].is_valid for i in zone_rows(n, values)) for n in range(len(zones))]
    zones_with_others = bounds.zones_where_false(kind, IsNull(("x",)))
    assert zones_with_others.tolist() == np.flatnonzero(others).tolist()


def zone_rows(number: int, values: list) -> range:
    return range(number * ITEMS, min((number + 1) * ITEMS, len(values)))


def check(zones: np.ndarray, expected: list[bool], *, is_tight: bool = False) -> None:
    assert set(np.flatnonzero(expected).tolist()) <= set(zones.tolist())
    if is_tight:
        assert zones.tolist() == np.flatnonzero(expected).tolist()


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(3):
        ts = np.arange(number * 1000, number * 1000 + 1000)
        pq.write_table(
            pa.table(
                {
                    "ts": pa.array(ts, pa.timestamp("s")),
                    "id": rng.permutation(1000) + number * 1000,
                    "f": np.where(ts % 97 == 0, np.nan, ts / 2),
                    "name": [f"user-{v:06d}" for v in ts],
                    "gap": pa.array([None if v % 500 > 300 else v for v in ts.tolist()]),
                    "old": ts < 1500,
                }
            ),
            tmp_path / f"{number}.parquet",
            row_group_size=400,
        )
    return tmp_path


FILTERS = [
    ("ts BETWEEN '1970-01-01 00:10:00' AND '1970-01-01 00:11:00'", 61),
    ("ts >= TIMESTAMP '1970-01-01 00:49:00'", 60),
    ("NOT (ts < TIMESTAMP '1970-01-01 00:49:00')", 60),
    ("f < 10", 19),
    ("f = 50.3", 0),
    # NaN is greater than every number.
    ("f > 1499.1 AND ts >= TIMESTAMP '1970-01-01 00:49:00'", 1),
    ("f > 1499.1 AND ts < TIMESTAMP '1970-01-01 00:01:40'", 2),
    ("name LIKE 'user-00001%'", 10),
    ("starts_with(name, 'user-0029')", 100),
    ("name > 'user-002995'", 4),
    ("name IN ('user-000001', 'user-002001', 'nobody')", 2),
    ("gap IS NULL AND ts < '1970-01-01 00:08:20'", 199),
    ("gap IS NOT NULL AND ts < '1970-01-01 00:08:20'", 301),
    ("gap = 5", 1),
    ("old AND ts > '1970-01-01 00:24:50'", 9),
    ("NOT old AND ts < '1970-01-01 00:25:10'", 10),
    ("id = 42 AND ts < '1970-01-01 00:16:40'", 1),
    ("id = 42 AND ts >= '1970-01-01 00:16:40'", 0),
    ("ts IS NULL", 0),
]


@pytest.mark.many
@pytest.mark.parametrize(("filter", "count"), FILTERS)
def test_filters_read_few_zones_and_find_all_rows(folder, filter, count):
    ds = zb.dataset(folder)
    for name in ("ts", "f", "name", "gap", "old"):
        ds.create_scalar_index(name, "ZONEMAP", number_of_items=50, spark=False)
    ds.create_scalar_index("id", number_of_items=50, spark=False)
    expected = ds.to_table(columns=["id"], filter=filter, use_scalar_index=False)
    assert expected.num_rows == count
    assert ds.to_table(columns=["id"], filter=filter).equals(expected)
    text = str(ds.scanner(filter=filter).explain_plan())
    assert "not answered" not in text
    # Each row that matches is in a zone that is read, and few zones besides are.
    assert len(ds.search(filter).at_most) <= count + 3 * 50 + (550 if "IS N" in filter else 0)


def test_a_prefix_finds_texts_that_equal_it_and_no_later_ones(tmp_path):
    letters = ["", "a", "b", "\ud7ff", "\U0010ffff"]
    texts = sorted({"".join(part) for part in itertools.product(letters, repeat=2)})
    pq.write_table(pa.table({"s": texts}), tmp_path / "0.parquet")
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("s", "ZONEMAP", number_of_items=2, spark=False)
    for prefix in filter(None, texts):
        filters = f"starts_with(s, '{prefix}')", pc.starts_with(pc.field("s"), prefix)
        expected = [text for text in texts if text.startswith(prefix)]
        for filter_ in (f"s LIKE '{prefix}%'", *filters):
            assert ds.to_table(filter=filter_)["s"].to_pylist() == expected
            assert len(ds.search(filter_).at_most) <= len(expected) + 4


def test_a_plan_shows_what_each_index_leaves(folder):
    ds = zb.dataset(folder)
    ds.create_scalar_index("ts", "ZONEMAP", number_of_items=50, spark=False)
    ds.create_scalar_index("id", number_of_items=50, spark=False)
    text = str(ds.scanner(filter="id = 42 AND ts < '1970-01-01 00:10:00'").explain_plan())
    assert "index ts_idx on ts: 1 of 60 zones kept" in text
    assert "ts_idx alone keeps 12 of 60 zones for ts < '1970-01-01 00:10:00'" in text
    assert "id_idx alone keeps 1 of 60 zones for id = 42" in text
    assert "alone" not in str(ds.scanner(filter="id = 42").explain_plan())


def test_an_index_is_refreshed_merged_validated_and_described(folder):
    ds = zb.dataset(folder)
    ds.create_scalar_index("ts", "zonemap", number_of_items=50, spark=False)
    ts = np.arange(3000, 3100)
    rows = pq.read_table(folder / "0.parquet").slice(0, 100)
    rows = rows.set_column(0, "ts", pa.array(ts, pa.timestamp("s")))
    pq.write_table(rows, folder / "3.parquet")
    ds = zb.dataset(folder)
    filter = "ts >= TIMESTAMP '1970-01-01 00:50:00'"
    with pytest.warns(errors.StaleIndexWarning):
        assert ds.count_rows(filter) == 100
    ds.optimize.optimize_indices(spark=False)
    assert ds.count_rows(filter) == 100
    assert len(ds.search(filter).at_most) == 100
    merge_segments(ds, ["ts_idx"])
    ds = zb.dataset(folder)
    assert len(ds.opened.version.indices["ts_idx"].segments) == 1
    assert len(ds.search(filter).at_most) == 100
    assert ds.validate_index("ts_idx", sample="all").zones_read == 62
    statistics = ds.index_statistics("ts_idx")
    assert statistics["mean_zones_kept"] == 1.0
    assert statistics["index_type"] == "ZONEMAP"
    (description,) = ds.describe_indices()
    assert description.num_zones == 62


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_validation_finds_values_that_the_bounds_exclude(kind):
    low, high = VALUES[kind][0], [v for v in VALUES[kind] if not is_nan(v)][-1]
    bounds = table_of(kind, [low, None, low, low, high]).bounds
    stored = hashed_values(column(kind, [low, None, low, low, high]))
    assert not bounds.excludes(0, stored.slice(0, 4))
    assert not bounds.excludes(1, stored.slice(4))
    assert bounds.excludes(0, stored.slice(4))
    assert bounds.excludes(1, stored.slice(0, 1))
    # A part of a zone may have no null, but the whole zone must have it.
    assert not bounds.excludes(0, stored.slice(2, 2))
    assert bounds.excludes(0, pa.concat_arrays([stored.slice(2, 2), stored.slice(2, 2)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probability": 0.1}, "unknown parameter 'probability'; a ZONEMAP index has"),
        ({"number_of_items": 0}, "number_of_items is 0"),
        ({"global_filter": True}, "a ZONEMAP index has no global filter"),
        ({"tokens": "words"}, "compares the values of one column"),
    ],
)
def test_options_that_a_zone_map_lacks_are_refused(folder, options, message):
    with pytest.raises(errors.InvalidArgument, match=message):
        zb.dataset(folder).create_scalar_index("name", "ZONEMAP", spark=False, **options)


LANCE_TYPES = [
    *(pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.large_string()),
    *(pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.bool_(), pa.decimal128(9, 2)),
]


@pytest.mark.parametrize("kind", LANCE_TYPES, ids=str)
def test_a_zone_map_has_the_bytes_of_lance(kind, tmp_path):
    """The table equals the one that Lance trains, and Lance answers from ours."""
    rng = np.random.default_rng(1)
    known = [value for value in VALUES[kind] if not isinstance(value, str) or len(value) < 60]
    values = [known[i] for i in rng.integers(0, len(known), 20_000)]
    values[::9] = [None] * len(values[::9])
    table = pa.table({"x": pa.array(values, kind)})
    theirs = lance.write_dataset(table, tmp_path / "lance")
    theirs.create_scalar_index("x", "ZONEMAP")
    (path,) = glob.glob(f"{tmp_path}/lance/_indices/*/zonemap.lance")
    expected = LanceFileReader(path).read_all().to_table().replace_schema_metadata(None)
    ds = zb.dataset(table)
    ds.create_scalar_index("x", "ZONEMAP", spark=False)
    ours = str(tmp_path / "zonemap.lance")
    ds.index_to_lance("x_idx", ours)
    written = LanceFileReader(ours).read_all().to_table().replace_schema_metadata(None)
    assert str(written) == str(expected)
    read = from_lance(path)
    assert isinstance(read, ZoneMapTable)
    mine = ds.opened.indices["x_idx"].tables()[0]
    for value in known:
        if not is_nan(value):
            leaf = Equals(("x",), pa.scalar(value, kind))
            zones = [part.bounds.zones_where_true(kind, leaf).tolist() for part in (read, mine)]
            assert zones[0] == zones[1]
    other = lance.write_dataset(table, tmp_path / "other")
    other = commit_to_lance(other, "x", ds.opened.indices["x_idx"].tables())
    assert [index.name for index in other.describe_indices()] == ["x_idx"]
    assert other.count_rows("x IS NULL") == len(values[::9])


def test_lances_missing_bounds_are_unknown(tmp_path):
    """Lance writes no bounds for fixed-size binary, so every zone with a value may hold any."""
    theirs = lance.write_dataset(pa.table({"x": pa.array([b"ab", None], pa.binary(2))}), tmp_path)
    theirs.create_scalar_index("x", "ZONEMAP")
    (path,) = glob.glob(f"{tmp_path}/_indices/*/zonemap.lance")
    read = from_lance(path)
    leaf = Equals(("x",), pa.scalar(b"ab"))
    assert read.bounds.zones_where_true(pa.binary(2), leaf).tolist() == [0]
    within = IsIn(("x",), pa.array([b"ab", b"zz"]))
    assert read.bounds.zones_where_true(pa.binary(2), within).tolist() == [0]


def test_text_that_is_not_utf8_is_kept(tmp_path):
    """Parquet files may hold such strings, and no bound of valid text is after them."""
    raw = pa.array([b"\xff\xfe", b"a"], pa.binary())
    strings = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    pq.write_table(pa.table({"x": strings}), tmp_path / "a.parquet")
    ds = zb.dataset(tmp_path)
    ds.create_scalar_index("x", "ZONEMAP", spark=False)
    assert len(ds.search(Compares(("x",), ">", pa.scalar("zzz"))).at_most) == 2
    assert len(ds.search(Not(Compares(("x",), ">", pa.scalar("zzz")))).at_most) == 2


def test_a_zone_with_more_rows_than_a_file_is_damage():
    schema = zone_map_schema(pa.int64(), 100)
    forged = zip([1, 2, 0, 0, 0, 0, 2**63], schema.types, strict=True)
    table = pa.table([pa.array([value], type_) for value, type_ in forged], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, with_format_version(schema)) as writer:
        writer.write_table(table.cast(with_format_version(schema)))
    with pytest.raises(errors.CorruptIndex, match="more rows than a file"):
        read_zone_map(sink.getvalue(), "ranges.arrow")


@pytest.mark.parametrize("literal", [-0.5, 4.5, 5.0, 5.5, 9.5])
@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_literals_between_the_values_of_a_column_lose_no_zone(compare, literal):
    """Each zone has one value, so a wrong bound loses a zone or keeps one more."""
    values = np.repeat(np.arange(10), ITEMS)
    ds = zb.dataset(pa.table({"x": values}))
    ds.create_scalar_index("x", "ZONEMAP", number_of_items=ITEMS, spark=False)
    expected = [value for value in values.tolist() if compare(value, literal)]
    filter = compare(pc.field("x"), literal)
    assert ds.to_table(filter=filter)["x"].to_pylist() == expected
    assert len(ds.search(filter).at_most) == len(expected)


@pytest.mark.parametrize(
    ("key", "expected"),
    [(0.9, []), (1.0, [0, 1]), (2.0, [0, 1]), (2.1, []), (math.nan, [1]), (None, [])],
)
def test_a_file_may_hold_keys_between_its_bounds_and_nan(key, expected):
    """Joins of Spark take NaN for equal to NaN."""
    least, greatest = pa.array([1.0, 1.0]), pa.array([2.0, 2.0])
    bounds = ZoneBounds(least, greatest, np.zeros(2), np.array([0, 1]), np.full(2, 5))
    assert np.flatnonzero(bounds.may_hold(pa.array([key, None], pa.float64()))).tolist() == expected

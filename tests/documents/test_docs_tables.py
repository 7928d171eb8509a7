"""The tables of the documentation list what the package has."""

from __future__ import annotations

import inspect
import json
import math
import re
import tomllib

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import array_of, raw_values
from support.helpers import ROOT

import zonebloom as zb
from zonebloom import errors

# The types of the tables in types.md by their names there.
TYPES: dict[str, list[pa.DataType]] = {
    **{str(kind): [kind] for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(kind): [kind] for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{"float16": [pa.float16()], "float32": [pa.float32()], "float64": [pa.float64()]},
    **{"decimal32": [pa.decimal32(9, 2)], "decimal64": [pa.decimal64(18, 0)]},
    "decimal128": [pa.decimal128(5, 2), pa.decimal128(15, 2), pa.decimal128(38, 10)],
    "decimal256": [pa.decimal256(50, 0)],
    **{str(kind): [kind] for kind in (pa.string(), pa.large_string(), pa.string_view())},
    **{str(kind): [kind] for kind in (pa.binary(), pa.large_binary(), pa.binary_view())},
    "fixed_size_binary": [pa.binary(16), pa.binary(5)],
    **{"date32": [pa.date32()], "date64": [pa.date64()]},
    "timestamp": [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")],
    "timestamp with a time zone": [pa.timestamp("us", "UTC"), pa.timestamp("ns", "Asia/Tokyo")],
    "time32": [pa.time32("s"), pa.time32("ms")],
    "time64": [pa.time64("us"), pa.time64("ns")],
    "duration": [pa.duration(unit) for unit in ("s", "ms", "us", "ns")],
    "dictionary": [pa.dictionary(pa.int16(), pa.string())],
    **{"bool": [pa.bool_()], "null": [pa.null()], "struct": [pa.struct({"a": pa.int8()})]},
    **{"list": [pa.list_(pa.int8())], "large_list": [pa.large_list(pa.int8())]},
    "fixed_size_list": [pa.list_(pa.int8(), 2)],
    **{"list_view": [pa.list_view(pa.int8())], "large_list_view": [pa.large_list_view(pa.int8())]},
    "map": [pa.map_(pa.string(), pa.int8())],
    "run_end_encoded": [pa.run_end_encoded(pa.int32(), pa.int64())],
    "dense_union": [pa.dense_union([pa.field("a", pa.int8())])],
    "sparse_union": [pa.sparse_union([pa.field("a", pa.int8())])],
    "month_day_nano_interval": [pa.month_day_nano_interval()],
}
LITERALS = {
    "integers": pa.int64(),
    "floats": pa.float64(),
    "decimals": pa.decimal128(10, 2),
    "strings": pa.string(),
    "bytes": pa.binary(),
    "dates": pa.date32(),
    "timestamps": pa.timestamp("us"),
    "instants": pa.timestamp("us", "UTC"),
    "times": pa.time64("us"),
    "durations": pa.duration("us"),
}
# PyArrow cannot make these types.
UNAVAILABLE = {"INTERVAL_DAY_TIME", "INTERVAL_MONTHS"}


def table_rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading of a page, without its header."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lines = text.partition(f"{heading}\n")[2].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_operating_page_lists_every_error_and_warning():
    classes = {
        name: class_
        for name, class_ in inspect.getmembers(errors, inspect.isclass)
        if class_.__module__ == errors.__name__ and not name.startswith("_")
    }
    warning_rows = table_rows("operating.md", "### Warnings")
    error_rows = table_rows("operating.md", "### Errors")
    warnings = [row[0].strip("`") for row in warning_rows]
    assert sorted(warnings) == sorted(n for n, c in classes.items() if issubclass(c, Warning))
    names = [row[0].strip("`") for row in error_rows]
    assert sorted(names) == sorted(n for n, c in classes.items() if not issubclass(c, Warning))
    for name, bases, *_ in error_rows:
        base_names = [base.strip(" `").rpartition(".")[2] for base in bases.split(",") if base]
        known_names = {base.__name__ for base in classes[name.strip("`")].__mro__}
        assert known_names.issuperset(base_names), name


INDEXABLE_ROWS = table_rows("types.md", "## Types that can be indexed")
REFUSED_ROWS = table_rows("types.md", "## Types that cannot be indexed")


def types_of(cell: str) -> dict[str, list[pa.DataType]]:
    """Return the types in a cell of the tables of types.md by their names."""
    names = [name.replace("`", "") for name in re.split(r", (?=`)", cell)]
    return {name: TYPES[name] for name in names}


def are_equal(value: pa.Scalar, key: pa.Scalar) -> bool:
    """Return whether a value equals a key: NaN equals nothing, and the zeros are equal."""
    if pa.types.is_floating(key.type):
        return value.as_py() == key.as_py()
    return value.equals(key)


def takes_literal(ds: zb.Dataset, literal: pa.DataType) -> bool:
    """Return whether keys of a type can be looked up in a column."""
    try:
        ds.locate("x", pa.nulls(0, literal))
    except errors.ZoneBloomError:
        return False
    return True


def test_the_tables_of_types_list_every_type_of_arrow():
    cells = [row[0] for row in (*INDEXABLE_ROWS, *REFUSED_ROWS)]
    names = [name for cell in cells for name in types_of(cell)]
    assert sorted(names) == sorted(TYPES)
    ids = {kind.id for kinds in TYPES.values() for kind in kinds}
    all_ids = {
        getattr(pa.lib, name): name.removeprefix("Type_")
        for name in dir(pa.lib)
        if name.startswith("Type_")
    }
    assert {all_ids[number] for number in all_ids.keys() - ids} == UNAVAILABLE


@pytest.mark.many
@pytest.mark.parametrize("row", INDEXABLE_ROWS, ids=lambda row: row[0][:30])
def test_types_that_can_be_indexed_are_stored_and_found_as_the_table_says(row, tmp_path):
    """The oracle is a comparison of every row by PyArrow."""
    cell, stored_as, _, literals = row
    physical_types = set()
    for number, kind in enumerate(kind for kinds in types_of(cell).values() for kind in kinds):
        empty = zb.dataset(pa.table({"x": pa.nulls(0, kind)}))
        words = {word for word, literal in LITERALS.items() if takes_literal(empty, literal)}
        assert words == set(literals.split(", ")), kind
        value_type = kind.value_type if pa.types.is_dictionary(kind) else kind
        values = array_of(kind, [None, *raw_values(value_type, 40)])
        for variant in ("default", "other"):
            path = tmp_path / f"{number}-{variant}.parquet"
            options = {}
            if variant == "other":
                options = {
                    "store_decimal_as_integer": True,
                    "use_deprecated_int96_timestamps": pa.types.is_timestamp(kind),
                }
            pq.write_table(pa.table({"x": values}), path, row_group_size=20, **options)
            physical_types.add(pq.ParquetFile(path).schema.column(0).physical_type)
            ds = zb.dataset(path)
            ds.create_scalar_index("x", number_of_items=10)
            stored = pads.dataset(path).to_table()["x"].combine_chunks()
            stored = stored.dictionary_decode() if pa.types.is_dictionary(stored.type) else stored
            keys = [value for value in stored if value.is_valid]
            located = (
                ds.locate("x", pa.array(keys, stored.type)).select(["key_index", "row"]).to_pydict()
            )
            expected = [
                (key_index, row)
                for key_index, key in enumerate(keys)
                for row, value in enumerate(stored)
                if are_equal(value, key)
            ]
            # A NaN key equals nothing, so it has one row of nulls.
            locations = zip(located["key_index"], located["row"], strict=True)
            assert [(key, row) for key, row in locations if row is not None] == expected, kind
            assert ds.count_rows("x IS NULL") == stored.null_count
    assert physical_types == {name.strip("`") for name in stored_as.split(", ")}


@pytest.mark.parametrize("row", REFUSED_ROWS, ids=lambda row: row[0][:30])
def test_types_that_cannot_be_indexed_are_refused(row):
    for kinds in types_of(row[0]).values():
        for kind in kinds:
            ds = zb.dataset(pa.table({"x": pa.nulls(0, kind), "id": pa.array([], pa.int64())}))
            with pytest.raises(errors.UnsupportedType, match="cannot be indexed"):
                ds.create_scalar_index("x")


@pytest.mark.parametrize(
    ("column", "filter", "num_kept"),
    [
        (pa.array([1, 7], pa.int32()), "x = 5.5", 0),
        (pa.array([1, 7], pa.uint8()), "x = 300", 0),
        (pa.array([1, 7], pa.timestamp("s")), "x = TIMESTAMP '1970-01-01 00:00:01.5'", 0),
        (pa.array([0.5, 7], pa.float32()), pads.field("x") == 0.1, 2),
        (pa.array([0.5, 7], pa.float32()), "x = 0.1", 0),
        (pa.array([1, 2**53], pa.int64()), pads.field("x") == 2.0**53, 2),
        (pa.array([0.0, -0.0, 1.0]), "x = 0.0", 2),
        (pa.array([0.0, -0.0, 1.0]), "x = -0.0", 2),
        (pa.array([0.5, 7.0]), "x = 'NaN'::DOUBLE", 2),
        (pa.array([0.5, 7.0]), pads.field("x") == pa.scalar(math.nan), 2),
        (pa.array([1, 7]), "x = NULL", 0),
        (pa.array([5, 7, None]), "x IN (5, NULL)", 1),
        (pa.array([5, 7, None]), "x IS NULL", 1),
        (pa.array([b"ab", b"cd"], pa.binary(2)), "x = X'616200'", 0),
    ],
    ids=lambda value: value.replace("/", "") if isinstance(value, str) else "",
)
def test_literals_keep_the_zones_that_the_page_says(column, filter, num_kept):
    ds = zb.dataset(pa.table({"x": column}))
    ds.create_scalar_index("x", number_of_items=1)
    rows = ds.search(filter).to_table()
    ranges = zip(rows["start"].to_pylist(), rows["stop"].to_pylist(), strict=True)
    assert sum(stop - start for start, stop in ranges) == num_kept


def test_the_compatibility_page_lists_the_requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {"always": project["dependencies"], **project["optional-dependencies"]}
    rows = table_rows("compatibility.md", "## Python, systems and packages")
    listed = {extra.strip("`"): packages for extra, packages in rows}
    for extra, packages in listed.items():
        assert [name.strip("`") for name in packages.split(", ")] == extras[extra], extra
    # These only name other extras, or are for people who work on the package.
    assert extras.keys() - listed.keys() == {"demo", "notebook", "docs", "all", "dev"}


def _json_types(value, name=""):
    """Yield the names of all fields of a JSON value, with their types in words."""
    if isinstance(value, dict):
        if name:
            yield name, "object"
        for key, item in value.items():
            yield from _json_types(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for item in value:
            yield from _json_types(item, f"{name}[]")
    elif isinstance(value, list):
        assert all(isinstance(item, str) for item in value)
        yield name, "array of strings"
    elif value is not None:
        kinds = {bool: "boolean", int: "integer", str: "string"}
        yield name, kinds[type(value)]


def test_the_page_on_changes_lists_all_fields_of_a_receipt(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, pa.table({"id": range(100), "user": ["a", "b"] * 50}))
    receipt = zb.dataset(deltalake.DeltaTable(path)).erase("user", ["a"])
    stored = dict(_json_types(json.loads(receipt.to_json())))
    text = (ROOT / "docs/changes.md").read_text(encoding="utf-8")
    section = text.partition("## The receipt")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| `([\w.\[\]]+)` \| ([\w ]+) \|", section, re.MULTILINE))
    # These are null in other receipts.
    listed = {name: kind.removesuffix(" or null") for name, kind in listed.items()}
    stored = {name: kind for name, kind in stored.items() if name != "keys" and name[-1] != "]"}
    assert stored == listed

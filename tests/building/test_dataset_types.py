"""Test every indexable type, from the build of an index to lookups. No row may be lost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import (
    array_of,
    assert_equals_pyarrow,
    at_most_rows,
    build,
    listing,
    numbered,
    raw_values,
    scalar_of,
    sql_literal,
    write_files,
)
from support.helpers import Label

import zonebloom as zb
from zonebloom import errors

ROWS, FILES, ZONE = 80, 3, 16
TOTAL = ROWS * FILES
ABSENT = 10

TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.decimal32(9, 2), pa.decimal64(18, 0)),
    *(pa.decimal128(5, 2), pa.decimal128(38, 10)),
    *(pa.decimal256(50, 0), pa.decimal256(76, 38)),
    *(pa.binary(1), pa.binary(4), pa.binary(16), pa.binary(33)),
    *(pa.date32(), pa.date64()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")),
    pa.timestamp("us", "America/New_York"),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.dictionary(pa.int16(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_binary()),
]


def rows_and_absent(arrow_type: pa.DataType) -> tuple[list[Any], list[Any]]:
    """Return values of all rows, which include a zone of nulls, and values of no row."""
    value_type = arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
    distinct = raw_values(value_type, TOTAL + ABSENT)
    raws = [None if row % 11 == 5 else raw for row, raw in enumerate(distinct[:TOTAL])]
    # The short last zone of the last file has the extreme values again.
    raws[-4:] = distinct[:4]
    raws[2 * ZONE : 3 * ZONE] = [None] * ZONE
    return raws, distinct[TOTAL:]


def layouts(arrow_type: pa.DataType, raws: list[Any]) -> pa.ChunkedArray:
    """Return the values in chunks: a slice of a longer array, an empty chunk, and single rows."""
    whole = array_of(arrow_type, [raws[0], *raws, raws[0]])
    third = len(raws) // 3
    cuts = [(1, third), (third + 1, 0), (third + 1, 1), (third + 2, len(raws) - third - 1)]
    return pa.chunked_array([whole.slice(start, count) for start, count in cuts], arrow_type)


def dataset_of(folder: Path, arrow_type: pa.DataType, raws: list[Any]) -> zb.Dataset:
    tables = [
        numbered(start, ROWS, key=layouts(arrow_type, raws[start : start + ROWS]))
        for start in range(0, TOTAL, ROWS)
    ]
    write_files(folder, tables, row_group_size=30)
    ds = zb.dataset(folder)
    build(ds, "key", number_of_items=ZONE)
    return ds


def filters_for(arrow_type: pa.DataType, raw: Any) -> list[Any]:
    scalar, text = scalar_of(arrow_type, raw), sql_literal(arrow_type, raw)
    filters: list[Any] = [pc.field("key") == scalar]
    # This set has one value. pyarrow decodes its dictionary itself.
    filters.append(pc.field("key").isin(pa.array([scalar], scalar.type)))
    if text is not None:
        filters += [f"key = {text}", f"{text} = key", f"key IN ({text})"]
    return filters


def scan_or_none(folder: Path, filter: pc.Expression) -> pa.Table | None:
    """Return the rows that pyarrow finds, or None if it has no kernel for the type."""
    try:
        return pads.dataset(folder).to_table(filter=filter)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, TypeError):
        return None


@dataclass
class Stored:
    """Return an indexed dataset of one type, the values of its rows, and values of no row."""

    arrow_type: pa.DataType
    folder: Path
    raws: list[Any]
    absent: list[Any]
    ds: zb.Dataset


@pytest.fixture(scope="module", params=TYPES, ids=str)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    folder = tmp_path_factory.mktemp("stored")
    raws, absent = rows_and_absent(request.param)
    return Stored(request.param, folder, raws, absent, dataset_of(folder, request.param, raws))


@pytest.mark.many
def test_every_value_is_found_in_its_zone_and_absent_ones_skip_zones(stored: Stored):
    arrow_type, raws, ds = stored.arrow_type, stored.raws, stored.ds
    numbers: dict[Any, list[int]] = {}
    for row, raw in enumerate(raws):
        numbers.setdefault(raw, []).append(row)
    nulls = numbers.pop(None)

    for number, (raw, expected) in enumerate(numbers.items()):
        equal = pc.field("key") == scalar_of(arrow_type, raw)
        assert at_most_rows(ds, equal).issuperset(expected), raw
        # Test every way to search for the extreme values and for some others.
        if number >= 8 and number % 25:
            continue
        for filter in filters_for(arrow_type, raw):
            assert at_most_rows(ds, filter).issuperset(expected), filter
            if isinstance(filter, str):
                rows_found = ds.to_table(["row"], filter)["row"].to_pylist()
                assert rows_found == expected, filter
            elif (plain := scan_or_none(stored.folder, filter)) is not None:
                assert plain["row"].to_pylist() == expected
                assert ds.to_table(filter=filter).equals(plain)

    num_kept_rows = [
        len(at_most_rows(ds, filters_for(arrow_type, raw)[-1])) for raw in stored.absent
    ]
    assert sum(num_kept_rows) < 0.2 * TOTAL * len(stored.absent)
    for raw in stored.absent[:3]:
        for filter in filters_for(arrow_type, raw):
            if isinstance(filter, str):
                assert ds.count_rows(filter) == 0
                assert ds.scanner(filter=filter).plan().indices[0].kept_zones < 15

    assert ds.to_table(["row"], "key IS NULL")["row"].to_pylist() == nulls
    for filter in (pc.field("key").is_null(), pc.field("key").is_valid()):
        # PyArrow itself cannot filter columns of views.
        if (plain := scan_or_none(stored.folder, filter)) is not None:
            assert ds.to_table(filter=filter).equals(plain)
    assert ds.to_table(["row"], "key IS NOT NULL")["row"].to_pylist() == sorted(
        row for rows_of_value in numbers.values() for row in rows_of_value
    )


@pytest.mark.many
def test_in_lists_find_the_rows_of_all_their_values(stored: Stored):
    arrow_type, raws, ds = stored.arrow_type, stored.raws, stored.ds
    for indices in ([0, 100, 200], list(range(0, TOTAL, 3)), list(range(100, 120))):
        wanted = [raws[i] for i in indices if raws[i] is not None] + stored.absent[:2]
        texts = [sql_literal(arrow_type, raw) for raw in wanted]
        wanted = [raw for raw, text in zip(wanted, texts, strict=True) if text is not None]
        filter = f"key IN ({', '.join(text for text in texts if text is not None)})"
        expected = [row for row, raw in enumerate(raws) if raw is not None and raw in wanted]
        assert ds.to_table(["row"], filter)["row"].to_pylist() == expected
        assert at_most_rows(ds, filter).issuperset(expected)
        values = array_of(arrow_type, wanted)
        if (plain := scan_or_none(stored.folder, pc.field("key").isin(values))) is not None:
            assert plain["row"].to_pylist() == expected
            assert ds.to_table(filter=pc.field("key").isin(values)).equals(plain)


@pytest.mark.parametrize("arrow_type", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_zeros_of_both_signs_and_nan(tmp_path: Path, arrow_type: pa.DataType):
    raws: list[Any] = [float(i + 1) for i in range(64)]
    raws[3], raws[20], raws[40], raws[60] = 0.0, -0.0, math.nan, -math.nan
    raws[50] = None
    write_files(tmp_path, [numbered(0, 64, key=array_of(arrow_type, raws))])
    ds = zb.dataset(tmp_path)
    build(ds, "key", number_of_items=8)
    zeros = ["key = 0", "key = 0.0", "key = -0.0", "key IN (0.0, 99)", "key IN (-0.0, 99)"]
    for filter in zeros:
        assert ds.to_table(["row"], filter)["row"].to_pylist() == [3, 20], filter
        assert at_most_rows(ds, filter) < set(range(64))
    if arrow_type != pa.float16():
        for zero in (0.0, -0.0):
            filter = pc.field("key") == pa.scalar(zero, arrow_type)
            rows_found = assert_equals_pyarrow(ds, tmp_path, filter, filter)
            assert rows_found["row"].to_pylist() == [3, 20]
            # PyArrow's is_in distinguishes the two zeros, and so must a scan with this filter.
            filter = pc.field("key").isin(pa.array([zero, 9.0], arrow_type))
            assert_equals_pyarrow(ds, tmp_path, filter, filter)
        nan = pa.scalar(math.nan, arrow_type)
        for filter in (pc.field("key") == nan, pc.field("key").isin(pa.array([nan.as_py()]))):
            assert_equals_pyarrow(ds, tmp_path, filter, filter)
            assert at_most_rows(ds, filter) == set(range(64))
    assert ds.to_table(["row"], "key IS NULL")["row"].to_pylist() == [50]
    filter = pc.field("key").is_null(nan_is_null=True)
    if arrow_type != pa.float16():
        assert assert_equals_pyarrow(ds, tmp_path, filter, filter)["row"].to_pylist() == [
            40,
            50,
            60,
        ]


@pytest.mark.parametrize("leaf", [pa.int32(), pa.string(), pa.timestamp("us", "UTC")], ids=str)
def test_a_leaf_of_null_structs_is_null(tmp_path: Path, leaf: pa.DataType):
    raws, absent = rows_and_absent(leaf)
    null_structs = np.array([row % 7 == 2 for row in range(TOTAL)])
    inner = pa.StructArray.from_arrays(
        [array_of(leaf, raws), pa.array(range(TOTAL))], ["x", "y"], mask=pa.array(null_structs)
    )
    outer = pa.StructArray.from_arrays(
        [inner], ["in"], mask=pa.array([row % 13 == 4 for row in range(TOTAL)])
    )
    table = numbered(0, TOTAL, st=inner, deep=outer)
    write_files(tmp_path, [table.slice(start, ROWS) for start in range(0, TOTAL, ROWS)])
    ds = zb.dataset(tmp_path)
    build(ds, "st.x", number_of_items=ZONE)
    build(ds, "deep.in.x", number_of_items=ZONE)
    assert [description.column for description in ds.describe_indices()] == ["st.x", "deep.in.x"]
    for names, hidden in (
        (("st", "x"), lambda row: row % 7 == 2),
        (("deep", "in", "x"), lambda row: row % 7 == 2 or row % 13 == 4),
    ):
        column = ".".join(names)
        for raw in [*{r: 0 for r in raws if r is not None}][::9]:
            expected = [r for r in range(TOTAL) if raws[r] == raw and not hidden(r)]
            text = sql_literal(leaf, raw)
            filter = pc.field(*names) == scalar_of(leaf, raw)
            assert assert_equals_pyarrow(ds, tmp_path, filter, filter)["row"].to_pylist() == (
                expected
            )
            if text is not None:
                assert ds.to_table(["row"], f"{column} = {text}")["row"].to_pylist() == expected
        for raw in absent[:5]:
            kept_rows = at_most_rows(ds, pc.field(*names) == scalar_of(leaf, raw))
            assert len(kept_rows) < TOTAL / 2
        filter = pc.field(*names).is_null()
        expected = [r for r in range(TOTAL) if raws[r] is None or hidden(r)]
        assert assert_equals_pyarrow(ds, tmp_path, filter, filter)["row"].to_pylist() == expected
        assert ds.count_rows(f"{column} IS NULL") == len(expected)


def test_a_leaf_is_null_in_a_file_that_lacks_it(tmp_path: Path):
    write_files(
        tmp_path,
        [
            numbered(0, 10, st=pa.array([{"x": i, "y": 0} for i in range(10)])),
            numbered(10, 10, st=pa.array([{"y": 0}] * 10)),
            numbered(20, 10),
        ],
    )
    ds = zb.dataset(tmp_path)
    build(ds, "st.x", number_of_items=5)
    for filter in (pc.field("st", "x") == 3, pc.field("st", "x").is_null()):
        assert_equals_pyarrow(ds, tmp_path, filter, filter)
    assert at_most_rows(ds, "st.x = 3") == {0, 1, 2, 3, 4}


def test_a_column_whose_name_has_a_dot_is_not_taken_for_a_leaf(tmp_path: Path):
    table = numbered(
        0,
        100,
        **{"a.b": pa.array(range(100)), "a": pa.array([{"b": i + 1000} for i in range(100)])},
    )
    write_files(tmp_path, [table])
    ds = zb.dataset(tmp_path)
    build(ds, "a.b", number_of_items=10)
    for filter in (pc.field("a.b") == 42, pc.field("a", "b") == 1042):
        assert assert_equals_pyarrow(ds, tmp_path, filter, filter)["row"].to_pylist() == [42]
    assert at_most_rows(ds, pc.field("a.b") == 42) == set(range(40, 50))


def test_columns_of_only_nulls_or_without_nulls_are_searched(tmp_path: Path):
    write_files(
        tmp_path,
        [numbered(0, 50, none=pa.nulls(50, pa.int64()), all=pa.array(range(50), pa.int64()))],
    )
    ds = zb.dataset(tmp_path)
    build(ds, "none", number_of_items=8)
    build(ds, "all", number_of_items=8)
    assert at_most_rows(ds, "none = 5") == set()
    assert ds.search("none = 5").kind == "Exact"
    assert ds.count_rows("none IS NULL") == 50
    assert at_most_rows(ds, "all IS NULL") == set()
    assert ds.count_rows("all IS NULL") == 0


@pytest.mark.parametrize(
    ("arrow_type", "advice"),
    [
        (pa.bool_(), "two values cannot tell zones apart"),
        (pa.null(), "nothing but nulls"),
        (pa.list_(pa.int32()), "index its elements instead"),
        (pa.large_list(pa.string()), "index its elements instead"),
        (pa.list_(pa.int32(), 2), "index its elements instead"),
        (pa.map_(pa.string(), pa.int32()), "index its entries instead"),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), r"index one of its leaves.*key\.a"),
    ],
    ids=str,
)
def test_the_error_names_a_refused_type_and_an_alternative(
    tmp_path: Path, arrow_type: pa.DataType, advice: str
):
    write_files(tmp_path, [numbered(0, 4, key=pa.nulls(4, arrow_type))])
    before = listing(tmp_path)
    ds = zb.dataset(tmp_path)
    with pytest.raises(errors.UnsupportedType, match=f"column 'key' has type .*{advice}") as caught:
        build(ds, "key")
    assert isinstance(caught.value, TypeError)
    assert str(ds.schema.field("key").type) in str(caught.value)
    assert listing(tmp_path) == before


@pytest.fixture
def label_type():
    """Register the extension type that is defined in Python, as its users do."""
    pa.register_extension_type(Label(pa.string()))
    yield Label
    pa.unregister_extension_type("zonebloom.label")


def write_columns(path: Path, columns: dict[str, pa.Array], format: str) -> zb.Dataset:
    table = pa.table({**columns, "row": pa.array(range(len(next(iter(columns.values())))))})
    path.mkdir()
    if format == "parquet":
        pq.write_table(table, path / "a.parquet", max_rows_per_page=16, write_page_index=True)
    else:
        with pa.ipc.new_file(path / "a.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=ZONE)
    return zb.dataset(path, format=format)


@pytest.mark.parametrize(
    ("storage", "format"),
    [
        (pa.string(), "parquet"),
        (pa.string(), "ipc"),
        (pa.int64(), "parquet"),
        (pa.binary(4), "parquet"),
        # PyArrow aborts when it reads batches of an extension type over dictionaries from Parquet.
        (pa.dictionary(pa.int8(), pa.string()), "ipc"),
    ],
    ids=str,
)
def test_extension_type_that_is_defined_in_python(
    tmp_path: Path, label_type: type[Label], storage: pa.DataType, format: str
):
    value_type = storage.value_type if pa.types.is_dictionary(storage) else storage
    values = raw_values(value_type, 60)
    rows = [values[row % 60] if row % 11 else None for row in range(TOTAL)]
    stored = pa.array(rows, value_type)
    stored = stored.dictionary_encode().cast(storage) if value_type != storage else stored
    column = pa.ExtensionArray.from_storage(label_type(storage), stored)
    leaf = pa.StructArray.from_arrays([column], fields=[pa.field("leaf", column.type)])
    ds = write_columns(tmp_path / "d", {"c": column, "s": leaf}, format)
    assert isinstance(ds.schema.field("c").type, Label)
    for name in ("c", "s.leaf", "row"):
        ds.create_scalar_index(name, "BLOOMFILTER", number_of_items=ZONE)
    for key in values[::7]:
        wanted = [row for row, value in enumerate(rows) if value == key]
        for name in ("c", "s.leaf"):
            assert ds.lookup(name, [key])["row"].to_pylist() == wanted
            # Keys may also have the extension type of the column.
            position = rows.index(key)
            keys = column[position : position + 1]
            assert ds.lookup(name, keys)["row"].to_pylist() == wanted
    assert ds.lookup("row", [3, 3])["c"].to_pylist() == [rows[3]] * 2
    assert ds.scanner(filter="row = 3").to_table()["c"].to_pylist() == [rows[3]]
    assert ds.scanner(filter=pc.field("row") == 3).to_table()["c"].to_pylist() == [rows[3]]
    # PyArrow crashes the process if a scan of this type is dropped before its end.
    assert ds.scanner(limit=3).to_table()["c"].to_pylist() == rows[:3]
    assert {advice.column for advice in ds.advise()} == {"c", "s.leaf", "row"}
    ds.validate_index("c_idx")


def test_views_inside_of_other_types_are_filtered_and_gathered(
    tmp_path: Path, label_type: type[Label]
):
    texts = [f"k{row % 40}" for row in range(TOTAL)]
    views = pa.array(texts, pa.string_view())
    codes = pa.array([row % 40 for row in range(TOTAL)], pa.int8())
    columns = {
        "dictionary": pa.DictionaryArray.from_arrays(codes, views[:40]),
        "pair": pa.FixedSizeListArray.from_arrays(views, 1),
        "label": pa.ExtensionArray.from_storage(label_type(pa.string_view()), views),
    }
    ds = write_columns(tmp_path / "d", columns, "ipc")
    for name in ("row", "dictionary", "label"):
        ds.create_scalar_index(name, "BLOOMFILTER", number_of_items=ZONE)
    wanted = [row for row in range(TOTAL) if texts[row] == "k7"]
    # Repeated keys repeat their rows, so the rows are gathered.
    rows = ds.lookup("row", [7, 7, 50])
    assert rows["row"].to_pylist() == [7, 7, 50]
    for name, column in columns.items():
        assert rows[name].to_pylist() == [column[row].as_py() for row in (7, 7, 50)]
    for name in ("dictionary", "label"):
        assert ds.lookup(name, ["k7"])["row"].to_pylist() == wanted
    for filter in (
        "dictionary = 'k7'",
        "dictionary IN ('k7', 'absent')",
        "dictionary >= 'k7' AND dictionary < 'k70'",
        [("dictionary", "in", ["k7"])],
        pc.field("dictionary") == "k7",
    ):
        rows = ds.scanner(filter=filter).to_table()
        assert rows["row"].to_pylist() == wanted
        assert rows.schema == ds.schema


@pytest.mark.parametrize("nest", [pa.list_, lambda kind: pa.struct([("a", kind)])])
def test_filters_beside_a_nested_uuid(tmp_path: Path, nest: Any):
    kind = nest(pa.uuid())
    storage = pa.array([None] * 20, nest(pa.binary(16)))
    ds = write_columns(tmp_path / "d", {"c": storage.cast(kind)}, "ipc")
    assert ds.scanner(filter=pc.field("row") == 7).to_table()["row"].to_pylist() == [7]
    assert ds.scanner(filter="row = 7").to_table()["row"].to_pylist() == [7]

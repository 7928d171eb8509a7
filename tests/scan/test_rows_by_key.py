"""Compare lookups of rows by key with a search in Python."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather
from support.e2e_helpers import build, numbered, plain_dataset
from support.limits import number_keys_without_kernels, set_limit

import zonebloom as zb

FLOATS = st.sampled_from([0.0, -0.0, 1.5, -2.25, math.nan, math.inf, None])
MOMENTS = st.sampled_from(
    [*(dt.datetime(1970, 1, 1, 0, 0, second, tzinfo=dt.UTC) for second in range(5)), None]
)
TEXTS = st.one_of(st.none(), st.text("ab\u00e9", max_size=3))
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.one_of(st.none(), st.integers(-5, 5))),
    "int32": (pa.int32(), st.one_of(st.none(), st.integers(-5, 5))),
    "uint64": (pa.uint64(), st.one_of(st.none(), st.integers(2**64 - 6, 2**64 - 1))),
    "double": (pa.float64(), FLOATS),
    "float": (pa.float32(), FLOATS),
    "timestamp": (pa.timestamp("us", "UTC"), MOMENTS),
    "date": (
        pa.date32(),
        st.one_of(st.none(), st.dates(dt.date(1969, 12, 29), dt.date(1970, 1, 3))),
    ),
    "decimal": (pa.decimal128(9, 2), st.sampled_from([Decimal("1.50"), Decimal("-2.25"), None])),
    "binary": (pa.binary(), st.one_of(st.none(), st.binary(max_size=2))),
    "string": (pa.string(), TEXTS),
    "large_string": (pa.large_string(), TEXTS),
    "string_view": (pa.string_view(), TEXTS),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), TEXTS),
}


def expected(
    values: Sequence[Any], keys: Sequence[Any], nulls: bool = False
) -> list[tuple[int, int]]:
    """Return a pair of key position and row number for each match, ordered by row."""
    return [
        (position, row)
        for row, value in enumerate(values)
        for position, key in enumerate(keys)
        if (nulls if key is None and value is None else key == value)
    ]


def pairs(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["key_index"].to_pylist(), table["row"].to_pylist(), strict=True))


def use_many_keys_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lookups of few keys and rows take the ways of many: kernels, batches and threads."""
    set_limit(monkeypatch, "values that one thread numbers", 1)
    set_limit(monkeypatch, "rows that one thread reads", 1)
    set_limit(monkeypatch, "keys of a sample", 1)
    set_limit(monkeypatch, "keys that are compared one by one", 1)
    set_limit(monkeypatch, "rows that are decoded together", 8)


@pytest.mark.many
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_lookup_finds_random_keys(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    arrow_type, raw_values = KINDS[kind]
    values = data.draw(st.lists(raw_values, min_size=1, max_size=60))
    keys = data.draw(st.lists(raw_values, max_size=8))
    nulls = data.draw(st.booleans())
    folder = tmp_path_factory.mktemp("lookup")
    half = len(values) // 2
    for number, part in enumerate((values[:half], values[half:])):
        table = numbered(number * half, len(part), key=pa.array(part, arrow_type))
        pq.write_table(
            table,
            folder / f"{number}.parquet",
            row_group_size=data.draw(st.integers(1, 40)),
            max_rows_per_page=data.draw(st.integers(1, 10)),
            write_page_index=data.draw(st.booleans()),
            use_dictionary=data.draw(st.booleans()),
            data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
            compression=data.draw(st.sampled_from(["none", "snappy", "zstd"])),
        )
    ds = zb.dataset(folder)
    if data.draw(st.booleans()):
        build(ds, "key", number_of_items=data.draw(st.integers(1, 20)))
    given_keys = pa.array(
        keys, pa.string() if kind in ("string_view", "dictionary") else arrow_type
    )
    with pytest.MonkeyPatch.context() as patched:
        if data.draw(st.booleans()):
            use_many_keys_and_threads(patched)
        if data.draw(st.booleans()):
            number_keys_without_kernels(patched)
        table = ds.lookup("key", given_keys, nulls=nulls)
    assert table.schema == pa.schema(
        [pa.field("key_index", pa.int64(), nullable=False), *ds.schema]
    )
    assert pairs(table) == expected(values, keys, nulls)
    rows = [row for _, row in pairs(table)]
    stored = pa.array(values, arrow_type).to_pylist()
    # Compare text, because NaN is not equal to itself. No row with NaN is found.
    assert repr(table["key"].to_pylist()) == repr([stored[row] for row in rows])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = plain_dataset(tmp_path_factory.mktemp("plain"), row_group_size=300)
    build(zb.dataset(folder), "id", number_of_items=64)
    return folder


@pytest.mark.parametrize(
    "keys",
    [
        [50],
        [50, 29990, 50, 51, None, -1],
        [50.0, 50.5, 1e300],
        pa.array([50, 60], pa.uint8()),
        pa.chunked_array([[50], [], [29990, 7]]),
        pa.array([], pa.int64()),
        [],
        [None],
        list(range(0, 30_000, 7)),
    ],
    ids=str,
)
def test_lookup_converts_keys_of_other_types(folder: Path, keys: Any) -> None:
    listed = keys if isinstance(keys, list) else keys.to_pylist()
    result = zb.dataset(folder).lookup("id", keys, ["name", "row"])
    assert result.column_names == ["key_index", "name", "row"]
    assert pairs(result) == expected([10 * row for row in range(3000)], listed)
    assert result["name"].to_pylist() == [
        None if row % 10 == 3 else f"name {row}" for row in result["row"].to_pylist()
    ]


D = Decimal


@pytest.mark.parametrize(
    ("values", "keys", "wanted"),
    [
        # Numbers are not rounded, and positions belong to the right keys.
        (pa.array([2**60, 5, 2**60 + 1]), [float(2**60), 5.0, 0.5], [(0, 0), (1, 1)]),
        (pa.array([2**24]), pa.array([2.0**24], pa.float32()), [(0, 0)]),
        (
            pa.array([2**63 - 1, 7]),
            pa.array([2**63, 2**63 - 1, 7, 2**64 - 1], pa.uint64()),
            [(1, 0), (2, 1)],
        ),
        (pa.array([2**64 - 1, 3], pa.uint64()), pa.array([-1, 3]), [(1, 1)]),
        (pa.array([5, 6], pa.int32()), [math.inf, math.nan, 6.0], [(2, 1)]),
        (pa.array([0.5, 0.1, 0.0], pa.float16()), [0.5, 0.1, -0.0], [(0, 0), (2, 2)]),
        (pa.array([D("1.50"), None], pa.decimal32(7, 2)), [D("1.5"), D("1.501")], [(0, 0)]),
        (pa.array([D("1.50"), None], pa.decimal64(12, 2)), [D("1.5")], [(0, 0)]),
        (pa.array([D("7")], pa.decimal128(9, 2)), [7, 8], [(0, 0)]),
        (pa.array([b"ab", b"cd"], pa.binary(2)), [b"abc", b"cd", b""], [(1, 1)]),
        (
            pa.array([5_000_000, 10**15], pa.timestamp("us")),
            pa.array([5, 2**62, 10**9], pa.timestamp("s")),
            [(0, 0), (2, 1)],
        ),
        (pa.array(["a", None, "b"]), pa.DictionaryArray.from_arrays([0, 1], ["a", None]), "null"),
    ],
    ids=str,
)
def test_keys_are_compared_exactly(
    tmp_path: Path, values: pa.Array, keys: Any, wanted: list[tuple[int, int]] | str
) -> None:
    nulls = wanted == "null"
    pq.write_table(numbered(0, len(values), key=values), tmp_path / "0.parquet")
    ds = zb.dataset(tmp_path)
    for _ in range(2):
        result = pairs(ds.lookup("key", keys, nulls=nulls))
        assert result == ([(0, 0), (1, 1)] if nulls else wanted)
        build(ds, "key")


def test_lookup_reads_fields_beside_a_struct_in_an_extension_type(tmp_path: Path) -> None:
    point = pa.opaque(pa.struct([("x", pa.int32()), ("y", pa.int32())]), "point", "test")
    points = pa.StructArray.from_arrays([pa.array(range(500), pa.int32())] * 2, ["x", "y"])
    schema = pa.schema(
        [
            ("at", point),
            pa.field("a", pa.int32(), nullable=False),
            pa.field("b", pa.int64(), nullable=False),
        ]
    ).append(pa.field("c", pa.int64()))
    columns = [pa.ExtensionArray.from_storage(point, points)]
    columns += [pa.array(range(500), pa.int32()), pa.array(range(500)), pa.array(range(500))]
    pq.write_table(pa.table(columns, schema=schema), tmp_path / "0.parquet", row_group_size=100)
    ds = zb.dataset(tmp_path)
    build(ds, "c", number_of_items=10)
    assert ds.lookup("c", [77, 450], ["a", "b"]).to_pydict() == {
        "key_index": [0, 1],
        "a": [77, 450],
        "b": [77, 450],
    }


def test_lookup_returns_requested_columns(folder: Path) -> None:
    ds = zb.dataset(folder)
    names = [None if row % 10 == 3 else f"name {row}" for row in range(3000)]
    for keys in (["name 70"], ["name 70", None, "name 2999"]):
        # The column has no index, so all rows are read.
        result = ds.lookup("name", keys, ["row"], nulls=True)
        assert pairs(result) == expected(names, keys, nulls=True)
    assert ds.lookup("id", [50, 7, 60], []).to_pydict() == {"key_index": [0, 2]}


def test_lookup_finds_leaves_in_other_sources(tmp_path: Path) -> None:
    table = numbered(0, 500, at=pa.array([{"id": i % 50, "x": str(i)} for i in range(500)]))
    wanted = expected([i % 50 for i in range(500)], [7, 49, 50])
    assert pairs(zb.dataset(table).lookup("at.id", [7, 49, 50])) == wanted
    feather.write_feather(table, tmp_path / "0.arrow", compression="uncompressed")
    ds = zb.dataset(tmp_path / "0.arrow", format="ipc")
    assert pairs(ds.lookup("at.id", [7, 49, 50])) == wanted
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=100)
    ds = zb.dataset(tmp_path / "0.parquet")
    build(ds, "at.id")
    result = ds.lookup("at.id", [7, 49, 50], ["at", "row"])
    assert pairs(result) == wanted
    assert result["at"].to_pylist() == [table["at"][row].as_py() for _, row in wanted]


INNER = st.fixed_dictionaries({"id": st.one_of(st.none(), st.integers(0, 3))})
OUTER = st.fixed_dictionaries({"in": st.one_of(st.none(), INNER)})


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(st.none(), OUTER), min_size=1, max_size=60),
    st.sampled_from(["1.0", "2.0"]),
    st.booleans(),
)
def test_lookup_finds_keys_in_nested_structs(
    tmp_path_factory: pytest.TempPathFactory,
    structs: list[Any],
    version: str,
    use_dictionary: bool,
) -> None:
    inner = pa.struct([pa.field("id", pa.int64())])
    column = pa.array(structs, pa.struct([pa.field("in", inner)]))
    file = tmp_path_factory.mktemp("structs") / "0.parquet"
    pq.write_table(
        numbered(0, len(structs), at=column),
        file,
        row_group_size=25,
        max_rows_per_page=7,
        write_page_index=True,
        use_dictionary=use_dictionary,
        data_page_version=version,
    )
    ds = zb.dataset(file)
    build(ds, "at.in.id", number_of_items=5)
    ids = [((outer or {}).get("in") or {}).get("id") for outer in structs]
    result = ds.lookup("at.in.id", [2, None, 0], nulls=True)
    assert pairs(result) == expected(ids, [2, None, 0], nulls=True)
    assert result["at"].to_pylist() == [structs[row] for _, row in pairs(result)]
    scanner = ds.scanner(filter="at.in.id = 2")
    assert scanner.to_table()["row"].to_pylist() == [row for row, i in enumerate(ids) if i == 2]
    assert "decoded by pyarrow" not in scanner.analyze_plan()


def test_columns_of_every_width_are_aligned(tmp_path: Path) -> None:
    """Arrow's kernels require values at multiples of their width."""
    rows = range(100)
    columns = {
        "odd": pa.array([bytes([row] * 5) for row in rows], pa.binary(5)),
        "flag": pa.array([row % 3 == 0 for row in rows]),
        "large": pa.array([float(row) for row in rows]),
    }
    pq.write_table(numbered(0, 100, **columns), tmp_path / "0.parquet", write_page_index=True)
    ds = zb.dataset(tmp_path)
    build(ds, "row", number_of_items=50)
    for column in ds.lookup("row", [3, 50, 51]).itercolumns():
        for buffer in column.chunk(0).buffers():
            assert buffer is None or buffer.address % 8 == 0

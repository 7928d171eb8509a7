"""Test UUIDs as DuckDB, Polars and PyArrow write them, by every way to ask and every spelling."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.helpers import run_command

import zonebloom as zb
from zonebloom.errors import ZoneBloomError

duckdb = pytest.importorskip("duckdb")
pl = pytest.importorskip("polars")

ROWS = 400
# Multiples of a large odd number are in no order.
IDS = [
    uuid.UUID(int=row * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128) if row % 50 else None
    for row in range(ROWS)
]
KEY, OTHER, ABSENT = IDS[101], IDS[302], uuid.UUID(int=1)
SPELLINGS = (
    str,
    lambda key: str(key).upper(),
    lambda key: f"{{{key}}}",
    lambda key: key.hex,
)
KEYS = pa.array([key and key.bytes for key in IDS], pa.uuid())
TABLE = pa.table({"u": KEYS, "s": pa.StructArray.from_arrays([KEYS], ["u"]), "row": range(ROWS)})


def write_pyarrow(path: Path) -> None:
    pq.write_table(TABLE, path)


def write_pyarrow_without_schema(path: Path) -> None:
    pq.write_table(TABLE, path, store_schema=False)


def write_duckdb(path: Path) -> None:
    duckdb.from_arrow(TABLE).write_parquet(str(path))


def write_polars(path: Path) -> None:
    # Polars writes no UUIDs in structs.
    table = TABLE.drop_columns("s")
    pl.DataFrame(table).write_parquet(path, arrow_schema=table.schema)


WRITERS = [write_pyarrow, write_pyarrow_without_schema, write_duckdb, write_polars]


def rows_of(*keys: Any) -> list[int]:
    return [row for row, key in enumerate(IDS) if key is not None and key in keys]


@pytest.fixture(scope="module", params=WRITERS, ids=lambda writer: writer.__name__)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uuids") / "table"
    folder.mkdir()
    request.param(folder / "0.parquet")
    return folder


@pytest.fixture(scope="module", params=[None, "BLOOMFILTER", "HASH"])
def ds(request: pytest.FixtureRequest, folder: Path) -> zb.Dataset:
    ds = zb.dataset(folder)
    if request.param is not None:
        options = {} if request.param == "HASH" else {"number_of_items": 16}
        ds.create_scalar_index("u", request.param, name=request.param, **options)
    return ds


def questions(spell: Any) -> dict[str, list[int]]:
    """Return filters in SQL, with the rows that match by brute force."""
    key, other, absent = spell(KEY), spell(OTHER), spell(ABSENT)
    return {
        f"u = '{key}'": rows_of(KEY),
        f"u = '{absent}'": [],
        f"u = UUID '{key}'": rows_of(KEY),
        f"u = '{key}'::UUID AND row > 0": rows_of(KEY),
        f"u IN ('{key}', '{absent}', '{other}')": rows_of(KEY, OTHER),
        f"u > '{key}'": rows_of(*(value for value in IDS if value is not None and value > KEY)),
        f"u <> '{key}'": rows_of(*(value for value in IDS if value != KEY)),
        f"s.u = '{key}'": rows_of(KEY),
    }


@pytest.mark.many
def test_uuids_are_found_by_their_text(ds: zb.Dataset) -> None:
    for spell in SPELLINGS:
        for filter, expected in questions(spell).items():
            if filter.startswith("s.") and "s" not in ds.schema.names:
                continue
            assert ds.to_table(["row"], filter)["row"].to_pylist() == expected, filter
            query = f"SELECT row FROM ds WHERE {filter} ORDER BY row"
            assert [row for (row,) in duckdb.sql(query).fetchall()] == expected, query


def test_uuids_are_keys_in_each_form(ds: zb.Dataset) -> None:
    for spell in (*SPELLINGS, lambda key: key, lambda key: key.bytes):
        keys = [spell(key) for key in (OTHER, ABSENT, KEY)]
        found = ds.lookup("u", keys, ["row"]).to_pydict()
        expected = [(0, *rows_of(OTHER)), (2, *rows_of(KEY))]
        assert sorted(zip(found["key_index"], found["row"], strict=True)) == expected
        assert {0, 2} <= set(ds.locate("u", keys)["key_index"].to_pylist())
        assert len(ds.files_with_keys("u", keys)) == 1


def test_expressions_of_pyarrow_compare_uuids_by_their_bytes(ds: zb.Dataset) -> None:
    column, key = pc.field("u"), pa.scalar(KEY.bytes, pa.uuid())
    nulls = [row for row, value in enumerate(IDS) if value is None]
    others = [row for row in range(ROWS) if row not in {*rows_of(KEY), *nulls}]
    greater = [row for row in others if IDS[row] > KEY]
    for filter, expected in (
        *((column == spelling, rows_of(KEY)) for spelling in (KEY, KEY.bytes, key)),
        (column != KEY.bytes, others),
        (~(column == KEY.bytes), others),
        (column > KEY.bytes, greater),
        (column > KEY.bytes[:4], sorted([*greater, *rows_of(KEY)])),
        (column.isin([KEY.bytes, OTHER.bytes, ABSENT.bytes]), rows_of(KEY, OTHER)),
        (column.isin([KEY.bytes, None]), sorted([*rows_of(KEY), *nulls])),
        ((column == KEY.bytes) & (pc.field("row") < 0), []),
        ([("u", "in", [KEY, OTHER])], rows_of(KEY, OTHER)),
    ):
        assert ds.to_table(["row"], filter)["row"].to_pylist() == expected, filter


def test_polars_compares_uuids_by_their_bytes(ds: zb.Dataset) -> None:
    """The type of Polars is binary. A comparison with text is refused, and not empty."""
    frame, column = ds.to_polars(), pl.col("u")
    keys = [KEY.bytes, OTHER.bytes]
    assert frame.filter(column == KEY.bytes).collect()["row"].to_list() == rows_of(KEY)
    assert frame.filter(column.is_in(keys)).collect()["row"].to_list() == rows_of(KEY, OTHER)
    for condition in (column == str(KEY), column.is_in([str(KEY)])):
        with pytest.raises((ZoneBloomError, pl.exceptions.PolarsError)):
            frame.filter(condition).collect()


def test_keys_may_be_a_dictionary_with_a_null_among_its_values(ds: zb.Dataset) -> None:
    keys = pa.DictionaryArray.from_arrays([0, 1, 0], pa.array([str(KEY), None]))
    found = ds.lookup("u", keys, columns=["row"])
    assert sorted(found["row"].to_pylist()) == sorted(rows_of(KEY) * 2)


def test_text_that_is_no_uuid_is_refused(ds: zb.Dataset) -> None:
    for text in ("nope", "", f"{KEY}0", f" {KEY}", "{}", f"+{KEY.hex[1:]}", f"0x{KEY.hex[2:]}"):
        for query in (f"u = '{text}'", f"u IN ('{KEY}', '{text}')"):
            with pytest.raises(ZoneBloomError, match="is not a UUID"):
                ds.to_table(filter=query)
            with pytest.raises(duckdb.Error, match="UUID"):
                duckdb.sql(f"FROM ds WHERE {query}").fetchall()
        with pytest.raises(ZoneBloomError, match="no UUID"):
            ds.lookup("u", [text])


def test_results_are_uuids(ds: zb.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    table = ds.to_table(filter=f"u = '{KEY}'")
    assert table.schema.field("u").type == pa.uuid()
    assert table.to_pylist() == TABLE.slice(101, 1).select(table.column_names).to_pylist()
    assert ds.lookup("u", [KEY])["u"].to_pylist() == [KEY]
    path = ds.opened.source.root
    for options in (["--output", "json"], ["--output", "text"]):
        assert run_command("lookup", path, f"u = '{KEY}'", "--columns=u", *options) == 0
        assert str(KEY) in capsys.readouterr().out


@pytest.mark.parametrize("writers", [WRITERS, WRITERS[::-1]], ids=["first", "last"])
@pytest.mark.parametrize("partition", ["", "day=1/"], ids=["plain", "hive"])
@pytest.mark.parametrize("schema", [None, "union"])
@pytest.mark.filterwarnings("ignore::zonebloom.errors.HiddenColumnsWarning")
def test_files_of_all_writers_are_one_dataset(
    tmp_path: Path, writers: list[Any], partition: str, schema: Any
) -> None:
    for number, write in enumerate(writers):
        path = tmp_path / f"table/{partition}{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    ds = zb.dataset(tmp_path / "table", schema=schema)
    assert ds.schema.field("u").type == pa.uuid()
    ds.create_scalar_index("u", number_of_items=16)
    assert ds.to_table(["row"], f"u = '{KEY}'")["row"].to_pylist() == 4 * rows_of(KEY)
    assert len(duckdb.sql(f"FROM ds WHERE u = '{KEY}'").fetchall()) == 4
    assert ds.lookup("u", [str(KEY)]).num_rows == 4


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("is_first", [True, False], ids=["marked-first", "plain-first"])
def test_a_union_with_plain_bytes_has_plain_bytes(
    tmp_path: Path, write: Any, is_first: bool
) -> None:
    folder = tmp_path / "table"
    folder.mkdir()
    write(folder / ("0.parquet" if is_first else "2.parquet"))
    plain = pa.array([key and key.bytes for key in IDS], pa.binary(16))
    structs = pa.StructArray.from_arrays([plain], ["u"])
    pq.write_table(pa.table({"u": plain, "s": structs, "row": range(ROWS)}), folder / "1.parquet")
    ds = zb.dataset(folder, schema="union")
    assert ds.schema.field("u").type == plain.type
    for _ in range(2):
        for filter in (f"u = UUID '{KEY}'", f"u = X'{KEY.hex}'", pc.field("u") == KEY.bytes):
            assert ds.to_table(["row"], filter)["row"].to_pylist() == 2 * rows_of(KEY), filter
        assert ds.lookup("u", [KEY, ABSENT])["u"].to_pylist() == [KEY.bytes] * 2
        in_structs = ds.to_table(["row"], f"s.u = UUID '{KEY}'")["row"].to_pylist()
        assert in_structs == (1 if write is write_polars else 2) * rows_of(KEY)
        ds.create_scalar_index("u", number_of_items=16, replace=True)


def test_plans_show_uuids_as_people_write_them(ds: zb.Dataset) -> None:
    shown = {
        f"u = '{KEY}'": f"u = '{KEY}'",
        f"u = X'{KEY.hex}'": f"u = '{KEY}'",
        f"u IN ('{KEY}', '{OTHER}') AND row < 5": f"u IN ('{KEY}', '{OTHER}') AND row < 5",
        f"NOT u = '{KEY}' OR u < '{OTHER}'": f"NOT (u = '{KEY}') OR u < '{OTHER}'",
        "u = X'00'": "u = X'00'",
    }
    for filter, text in shown.items():
        plan = ds.scanner(filter=filter).explain_plan()
        assert str(plan).splitlines()[0].endswith(f": {text}"), str(plan)
        assert KEY.hex not in str(plan)

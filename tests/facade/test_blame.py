"""Test that errors name the file and the column at fault, and what to do about them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import (
    ColumnNotFound,
    FilterError,
    FragmentUnreadable,
    IndexNotFound,
    SchemaMismatch,
)

INT32 = pa.table({"id": pa.array(range(5), pa.int32())})
INT64 = pa.table({"id": pa.array(range(5, 10), pa.int64())})
HUGE = pa.table({"id": pa.array([1 << 40], pa.int64())})
TEXT = pa.table({"id": [f"x{i}" for i in range(5)]})
DIGITS = pa.table({"id": ["10", "11"]})


def write(folder: Path, **tables: pa.Table) -> str:
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return str(folder)


# The ways to read all rows of a dataset.
READS = {
    "to_table": lambda ds: ds.to_table(),
    "filter": lambda ds: ds.to_table(filter="id = 3"),
    "lookup": lambda ds: ds.lookup("id", [3]),
    "count_rows": lambda ds: ds.count_rows("id = 3"),
    "locate": lambda ds: ds.locate("id", [3]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize(
    ("tables", "culprit"),
    [
        ({"a": INT32, "b": INT64, "c": TEXT}, "c.parquet holds column 'id' as string"),
        ({"a": INT32, "b": DIGITS, "c": HUGE}, "c.parquet holds column 'id' as int64"),
        ({"a": INT32, "b": HUGE, "c": DIGITS}, "b.parquet holds column 'id' as int64"),
        ({"a": INT32, "b": INT64, "c": INT64, "d": HUGE}, "d.parquet holds column 'id' as int64"),
    ],
)
def test_the_file_whose_values_do_not_fit_is_named(tmp_path, tables, culprit, read):
    ds = zb.dataset(write(tmp_path / "data", **tables))
    with pytest.raises(SchemaMismatch) as caught:
        read(ds)
    assert culprit in str(caught.value)
    assert ('schema="union"' in str(caught.value)) == ("int64" in culprit)


def test_the_error_advises_a_union_of_types(tmp_path):
    folder = write(tmp_path / "data", a=INT32, b=INT64)
    advice = r'b\.parquet holds column \'id\' as int64.*schema="union", which reads both as int64'
    with pytest.raises(SchemaMismatch, match=advice):
        zb.dataset(folder).create_scalar_index("id", spark=False)
    ds = zb.dataset(folder, schema="union")
    ds.create_scalar_index("id", spark=False)
    assert [ds.count_rows(f"id = {i}") for i in (-1, 3, 7, 10)] == [0, 1, 1, 0]
    # The error does not advise the union if there is none, or if the dataset already has it.
    write(tmp_path / "other", a=TEXT, b=INT64)
    with pytest.raises(SchemaMismatch, match="rewrite the file, or read other columns"):
        zb.dataset(str(tmp_path / "other")).create_scalar_index("id", spark=False)
    write(tmp_path / "wide", a=pa.table({"id": [1 << 53]}), b=pa.table({"id": [0.5]}))
    with pytest.raises(SchemaMismatch, match="rewrite the file, or read other columns"):
        zb.dataset(str(tmp_path / "wide"), schema="union").create_scalar_index("id", spark=False)


@pytest.mark.parametrize(
    ("tables", "files"),
    [
        ({"a": INT32, "b": INT64, "c": TEXT}, ["a.parquet", "c.parquet"]),
        ({"a": INT32, "b": TEXT, "c": TEXT}, ["a.parquet", "b.parquet"]),
        ({"a": TEXT, "b": TEXT, "c": INT32, "d": TEXT}, ["a.parquet", "c.parquet"]),
        ({"a": pa.table({"k": [1]}), "b": INT32, "c": TEXT}, ["b.parquet", "c.parquet"]),
    ],
)
def test_both_files_without_a_union_are_named(tmp_path, tables, files):
    with pytest.raises(SchemaMismatch) as caught:
        zb.dataset(write(tmp_path / "data", **tables), schema="union")
    message = str(caught.value)
    assert [f"{name}.parquet" for name in tables if f"{name}.parquet" in message] == files
    for name in files:
        kind = tables[name.partition(".")[0]].schema.field("id").type
        assert f"{name} holds column 'id' as {kind}" in message or f"{name} as {kind}" in message


FOREIGN = {
    "README.md": b"# Logs of a shop, one folder a day, kept for three years\n",
    "0": b"",
    "zz.txt": b"x",
    "notes.csv": b"id,why\n1,a\n",
    "sub/LICENSE": b"Apache License " * 20,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_is_not_parquet_is_named(tmp_path, name):
    folder = tmp_path / "data"
    write(folder, a=INT32, b=INT32)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(FOREIGN[name])

    def opened():
        return zb.dataset(str(folder))

    for read in [
        *READS.values(),
        lambda ds: ds.create_scalar_index("id", spark=False),
        lambda ds: ds.search("id = 3"),
        lambda ds: zb.dataset(str(folder), schema="union"),
    ]:
        with pytest.raises(FragmentUnreadable) as caught:
            read(opened())
        message = str(caught.value)
        assert f"{folder / name} is not a Parquet file" in message
        assert f'"{(folder / name).parent}/**/*.parquet"' in message
    ds = zb.dataset(f"{folder}/**/*.parquet")
    assert ds.count_rows() == 10
    ds.create_scalar_index("id", spark=False)
    assert ds.count_rows("id = 3") == 2
    (folder / name).rename((folder / name).with_name(f"_{Path(name).name}"))
    assert opened().count_rows() == 10


def test_a_damaged_file_is_not_reported_as_another_format(tmp_path):
    folder = tmp_path / "data"
    write(folder, a=INT32, b=INT32, c=INT32)
    whole = (folder / "b.parquet").read_bytes()
    for name, data in {"b.parquet": b"<html>", "b": whole[:-9], "b.PARQUET": b""}.items():
        (folder / "b.parquet").unlink(missing_ok=True)
        (folder / name).write_bytes(data)
        for read in READS.values():
            with pytest.raises(FragmentUnreadable, match=rf"cannot read \S*/{name}:.*repair"):
                read(zb.dataset(str(folder)))
        (folder / name).unlink()


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    """Return a folder with an index on "customer", and a struct column without an index."""
    folder = tmp_path_factory.mktemp("names") / "orders"
    rows = {"customer": ["a", "b"], "Day": [1, 2], "place": [{"city": "x"}, {"city": "y"}]}
    write(folder, a=pa.table(rows))
    zb.dataset(str(folder)).create_scalar_index("customer", spark=False)
    return str(folder)


COLUMN_CALLS = {
    "create_scalar_index": lambda ds, name: ds.create_scalar_index(name, spark=False),
    "lookup": lambda ds, name: ds.lookup(name, ["a"]),
    "locate": lambda ds, name: ds.locate(name, ["a"]),
    "locate two": lambda ds, name: ds.locate(["Day", name], {"Day": [1], name: ["a"]}),
    "files_with_keys": lambda ds, name: ds.files_with_keys(name, ["a"]),
    "search_many": lambda ds, name: ds.search_many(name, ["a"]),
    "key_ranges": lambda ds, name: ds.key_ranges(name),
    "global_filter": lambda ds, name: ds.global_filter(name),
    "advise": lambda ds, name: ds.advise(name),
    "advices": lambda ds, name: ds.advise("Day")[name],
    "columns=": lambda ds, name: ds.to_table([name]),
    "columns={}": lambda ds, name: ds.to_table({"x": pc.field(name)}),
    "SQL": lambda ds, name: ds.to_table(filter=f"{name} = 'a'"),
    "SQL count": lambda ds, name: ds.count_rows(f"{name} IS NULL"),
    "pyarrow": lambda ds, name: ds.to_table(filter=pc.field(name) == "a"),
    "tuples": lambda ds, name: ds.to_table(filter=[(name, "=", "a")]),
    "search": lambda ds, name: ds.search(f"{name} = 'a'"),
}
TYPOS = {"custmer": "customer", "CUSTOMER_": "customer", "dya": "Day", "day_": "Day"}


@pytest.mark.parametrize("typo", TYPOS)
@pytest.mark.parametrize("call", COLUMN_CALLS.values(), ids=COLUMN_CALLS)
def test_an_unknown_column_gets_suggestions(orders, call, typo):
    with pytest.raises((ColumnNotFound, FilterError)) as caught:
        call(zb.dataset(orders), typo)
    if call is COLUMN_CALLS["advices"]:
        # There is advice for one column only, so only its misspellings get a suggestion.
        assert ("did you mean Day?" in str(caught.value)) == (TYPOS[typo] == "Day")
    else:
        assert f"did you mean {TYPOS[typo]}?" in str(caught.value).replace("Did", "did")


def test_leaves_get_suggestions_and_unlike_names_get_none(orders):
    ds = zb.dataset(orders)
    for call in ("create_scalar_index", "lookup", "locate", "search_many", "advise"):
        with pytest.raises(ColumnNotFound, match=r"did you mean place\.city\?"):
            COLUMN_CALLS[call](ds, "place.cty")
        with pytest.raises(ColumnNotFound, match=r"the dataset has customer, Day, place$"):
            COLUMN_CALLS[call](ds, "zzz")


INDEX_CALLS = {
    "drop_index": lambda ds, name: ds.drop_index(name),
    "index_statistics": lambda ds, name: ds.index_statistics(name),
    "prewarm_index": lambda ds, name: ds.prewarm_index(name),
    "validate_index": lambda ds, name: ds.validate_index(name),
    "index_to_lance": lambda ds, name: ds.index_to_lance(name, "x.lance"),
    "optimize_indices": lambda ds, name: ds.optimize.optimize_indices([name], spark=False),
}


@pytest.mark.parametrize("call", INDEX_CALLS.values(), ids=INDEX_CALLS)
def test_an_unknown_index_gets_suggestions(orders, call):
    for typo in ("custmer_idx", "customer", "Customer_Index"):
        with pytest.raises(IndexNotFound, match=r"did you mean customer_idx\? there is: cust"):
            call(zb.dataset(orders), typo)
    with pytest.raises(IndexNotFound, match="no index 'zz'; there is: customer_idx"):
        call(zb.dataset(orders), "zz")

"""Test a refresh after the column of one index was dropped, widened or added again.

The other index of the dataset has to be brought up to date all the same. Each case runs over a
plain folder, a Delta table with column mapping and an Iceberg table.
"""

from __future__ import annotations

import json
import warnings

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.delta_by_hand import MappedTable
from support.helpers import index_folder, run_command

import zonebloom as zb
from zonebloom.errors import SchemaMismatch, StaleIndexWarning

ROWS = 200
CHANGES = ["dropped", "widened", "added again"]


INT = pa.int32()


def data(first: int, kind: pa.DataType | None = INT) -> pa.Table:
    """Return rows with a column "kept" and, unless its type is None, a column "changed"."""
    table = pa.table({"kept": [f"k{i}" for i in range(first, first + ROWS)]})
    if kind is None:
        return table
    return table.append_column("changed", pa.array(range(first, first + ROWS)).cast(kind))


class Folder:
    """A plain folder. Its first file decides the schema, so a change rewrites that file."""

    def __init__(self, path):
        self.path = path / "folder"
        self.path.mkdir()
        self._write("b", data(0))

    def load(self):
        return str(self.path)

    def change(self, change):
        kind = {"dropped": None, "widened": pa.int64(), "added again": pa.string()}[change]
        self._write("a", data(ROWS, kind))
        if change == "added again":
            self._write("b", data(0, None))

    def _write(self, name, table):
        pq.write_table(table, self.path / f"{name}.parquet")


class Delta:
    """A Delta table with column mapping, after PROTOCOL.md."""

    def __init__(self, path):
        self._table = MappedTable(path / "delta", "name")
        self._kept = self._table.field("kept", "string")
        self._table.set_fields([self._kept, self._table.field("changed", "integer")])
        self._table.append(data(0).to_pylist())

    def load(self):
        from deltalake import DeltaTable

        return DeltaTable(self._table.path)

    def change(self, change):
        if change == "dropped":
            fields = [self._kept]
        elif change == "widened":
            column = next(field for field in self._table.fields if field["name"] == "changed")
            fields = [self._kept, {**column, "type": "long"}]
        else:
            fields = [self._kept, self._table.field("changed", "long")]
        self._table.set_fields(fields)
        kind = None if change == "dropped" else pa.int64()
        self._table.append(data(ROWS, kind).to_pylist())


class Iceberg:
    """An Iceberg table that pyiceberg writes."""

    def __init__(self, path):
        from pyiceberg.catalog.sql import SqlCatalog

        (path / "house").mkdir()
        catalog = SqlCatalog("c", uri=f"sqlite:///{path}/c.db", warehouse=(path / "house").as_uri())
        catalog.create_namespace("n")
        self._table = catalog.create_table("n.t", schema=data(0).schema)
        self._table.append(data(0))
        self.close = catalog.close

    def load(self):
        return self._table

    def change(self, change):
        from pyiceberg.types import IntegerType, LongType

        with self._table.update_schema() as update:
            if change == "widened":
                update.update_column("changed", LongType())
            else:
                update.delete_column("changed")
        if change == "added again":
            with self._table.update_schema() as update:
                update.add_column("changed", IntegerType())
        kind = {"dropped": None, "widened": pa.int64(), "added again": pa.int32()}[change]
        self._table.append(data(ROWS, kind))


@pytest.fixture(params=[Folder, Delta, Iceberg])
def table(request, tmp_path):
    new_table = request.param(tmp_path)
    ds = zb.dataset(new_table.load())
    ds.create_scalar_index(["changed", "kept"], number_of_items=50, spark=False)
    yield new_table
    getattr(new_table, "close", lambda: None)()


@pytest.mark.parametrize("change", CHANGES)
def test_the_other_indices_are_refreshed(table, change):
    table.change(change)
    ds = zb.dataset(table.load())
    before = ds.version
    with pytest.raises(SchemaMismatch, match="'changed_idx'"):
        ds.optimize.optimize_indices(["kept_idx", "changed_idx"], spark=False)
    assert zb.dataset(table.load()).version == before
    with pytest.raises(SchemaMismatch, match=r"drop_index\('changed_idx'\)"):
        ds.validate_index("changed_idx")
    with pytest.warns(StaleIndexWarning) as caught:
        refreshed = ds.optimize.optimize_indices(repair=True, spark=False)
    (message,) = [str(warning.message) for warning in caught]
    assert "'changed_idx'" in message
    assert "drop_index('changed_idx')" in message
    assert ("create_scalar_index('changed'" in message) == (change != "dropped")
    misfit, healthy = refreshed
    assert (misfit.name, misfit.changed, misfit.problem) == ("changed_idx", False, message)
    assert (healthy.name, healthy.changed, healthy.problem) == ("kept_idx", True, None)
    by_name = {index.name: index for index in zb.dataset(table.load()).describe_indices()}
    assert by_name["kept_idx"].num_fragments_indexed == 2
    assert by_name["changed_idx"].num_zones == ROWS // 50

    ds = zb.dataset(table.load())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in (7, ROWS + 7):
            assert ds.count_rows(f"kept = 'k{number}'") == 1
    assert len(ds.scanner(filter="kept = 'k7'").plan().indices) == 1


@pytest.mark.parametrize("change", CHANGES)
def test_the_advice_can_be_followed(table, change):
    table.change(change)
    ds = zb.dataset(table.load())
    if change == "dropped":
        ds.drop_index("changed_idx")
    else:
        ds.create_scalar_index("changed", name="changed_idx", spark=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refreshed = ds.optimize.optimize_indices(spark=False)
        assert [index.problem for index in refreshed] == [None] * len(refreshed)
        if change != "dropped":
            want = ds.to_table().filter(pc.field("changed").cast("string") == str(ROWS + 7))
            value = f"'{ROWS + 7}'" if ds.schema.field("changed").type == pa.string() else ROWS + 7
            assert ds.to_table(filter=f"changed = {value}") == want
            assert want.num_rows == 1


def test_a_newer_file_of_another_type_is_named(tmp_path):
    """The schema still fits the index, but one file does not."""
    table = Folder(tmp_path)
    ds = zb.dataset(table.load())
    ds.create_scalar_index(["changed", "kept"], number_of_items=50, spark=False)
    pq.write_table(data(ROWS, pa.string()), table.path / "c.parquet")
    with pytest.warns(StaleIndexWarning, match=r"changed_idx.*c\.parquet.* as string"):
        misfit, healthy = ds.optimize.optimize_indices(spark=False)
    assert (misfit.changed, misfit.fragments_added) == (False, 0)
    assert (healthy.changed, healthy.fragments_added) == (True, 1)
    assert [index.num_fragments_indexed for index in ds.describe_indices()] == [1, 2]
    assert ds.count_rows(f"kept = 'k{ROWS + 7}'") == 1
    with pytest.raises(SchemaMismatch, match=r"c\.parquet holds column 'changed' as string"):
        ds.optimize.optimize_indices(["changed_idx"], spark=False)
    segments = index_folder(table.path).glob("segments/*")
    assert {path.name for path in segments} == ds.opened.version.segment_names


@pytest.mark.parametrize("change", CHANGES)
def test_the_command_line_refreshes_the_other_indices(tmp_path, change, capsys):
    table = Folder(tmp_path)
    folder = table.load()
    zb.dataset(folder).create_scalar_index(["changed", "kept"], spark=False)
    table.change(change)
    capsys.readouterr()
    assert run_command("refresh", folder, "--output=json") == 1
    out, err = capsys.readouterr()
    assert "--name changed_idx" in err
    misfit, healthy = json.loads(out)["indices"]
    assert "drop_index('changed_idx')" in misfit["problem"]
    assert (healthy["problem"], healthy["changed"]) == (None, True)
    assert run_command("validate", folder, "--output=json") == 1
    states = [index["state"] for index in json.loads(capsys.readouterr().out)["indices"]]
    assert states == ["unusable", "sound"]
    assert run_command("drop", folder, "--name=changed_idx") == 0
    assert run_command("refresh", folder) == 0

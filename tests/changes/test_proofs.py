"""Test that a receipt proves each value, and that it survives whatever happens after the commit."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

import zonebloom as zb
from zonebloom.changes import apply
from zonebloom.changes.row_digest import digest_of_rows, row_numbers

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")
from changes.changed_tables import KINDS, comparable
from support.helpers import PLAIN_TYPES, sample
from support.seams import replace_function


@pytest.fixture(params=list(KINDS))
def table(request, tmp_path):
    (tmp_path / "lake").mkdir()
    table = KINDS[request.param](random.Random(1), tmp_path, is_partitioned=False)
    for _ in range(2):
        table.append(table.new_rows(30))
    return table


def with_other_value(rows: pa.Table, place: int) -> pa.Table:
    values = rows["num"].to_pylist()
    values[place] += 100
    return rows.set_column(rows.column_names.index("num"), "num", pa.array(values, pa.int32()))


def with_swapped_values(rows: pa.Table, place: int) -> pa.Table:
    values = rows["id"].to_pylist()
    values[place], values[place + 1] = values[place + 1], values[place]
    return rows.set_column(rows.column_names.index("id"), "id", pa.array(values))


DAMAGES = {
    "another row": lambda rows: with_other_value(rows, 20),
    "a row of the batch": lambda rows: with_other_value(rows, 3),
    "rows whose values are swapped": lambda rows: with_swapped_values(rows, 10),
    "a repeated row": lambda rows: pa.concat_tables([rows.slice(0, 25), rows.slice(20, 5)]),
    "nothing": lambda rows: rows,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_upsert_is_proven_by_all_values(table, damage, monkeypatch):
    changed_rows = apply.changed_rows

    def damaged_rows(*arguments):
        yield DAMAGES[damage](pa.concat_tables(changed_rows(*arguments)))

    replace_function(monkeypatch, apply, "changed_rows", damaged_rows)
    ds = zb.dataset(table.load(), **table.options)
    batch = table.table([{**table.rows[3], "s": "changed"}, *table.new_rows(2)])
    verification = ds.upsert(batch, on="id").verification
    assert verification is not None
    assert verification.is_proven == (damage == "nothing")
    assert ("the values of these rows" in verification.problem) == (damage != "nothing")


def test_a_receipt_survives_if_the_new_version_cannot_be_loaded(table, monkeypatch):
    ds = zb.dataset(table.load(), **table.options)
    ds.create_scalar_index("id", "HASH", spark=False)

    reopen, calls = apply.reopen, []

    def fail_after_commit(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise ValueError("the catalog does not answer")
        reopen(*arguments)

    replace_function(monkeypatch, apply, "reopen", fail_after_commit)
    receipt = ds.erase("id", [1])
    assert receipt.is_committed and receipt.num_deleted == 1
    assert "neither read nor indexed: the catalog does not answer" in str(receipt)
    assert receipt.traces is not None and "cannot be searched" in str(receipt.traces)
    table.rows = [row for row in table.rows if row["id"] != 1]
    assert comparable(table.read()) == comparable(table.rows)
    assert receipt.check(ds, [1]).is_searched
    assert comparable(ds.to_table()) == comparable(table.rows)


NESTED = [
    (pa.list_(pa.int64()), [[1, 2], [2, 1], [1], [], [None], [None, None], None]),
    (pa.list_(pa.int64(), 2), [[1, 2], [2, 1], [None, 1], [1, None], None]),
    (pa.list_view(pa.string()), [["a"], ["a", ""], ["", "a"], [], None]),
    (
        pa.map_(pa.string(), pa.int8()),
        [[("a", 1)], [("a", 2)], [("b", 1)], [("a", None)], [], None],
    ),
    (
        pa.struct({"a": pa.int64(), "b": pa.list_(pa.struct({"c": pa.bool_()}))}),
        [
            {"a": 1, "b": []},
            {"a": None, "b": [{"c": True}]},
            {"a": None, "b": [{"c": False}]},
            {"a": None, "b": [{"c": None}]},
            {"a": None, "b": None},
            None,
        ],
    ),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "", None]),
]


@pytest.mark.parametrize(("kind", "values"), NESTED, ids=[str(kind) for kind, _ in NESTED])
def test_numbers_of_rows_differ_for_different_values(kind, values):
    rows = pa.table({"x": pa.array(values, kind)})
    numbers = row_numbers(rows)
    assert len(set(numbers.tolist())) == len(values)
    assert np.array_equal(row_numbers(rows.slice(1)), numbers[1:])
    assert not set(numbers.tolist()) & (set(row_numbers(rows.rename_columns(["y"])).tolist()) - {0})
    assert digest_of_rows(numbers) == digest_of_rows(numbers[::-1])
    assert digest_of_rows(numbers) != digest_of_rows(numbers[1:])


@pytest.mark.parametrize("kind", PLAIN_TYPES, ids=str)
def test_rows_of_all_types_have_numbers(kind):
    array, encoded = sample(kind, 60)
    numbers = row_numbers(pa.table({"x": array})).tolist()
    by_number = dict(zip(numbers, encoded, strict=True))
    assert [by_number[number] for number in numbers] == list(encoded)
    assert len(by_number) == len(set(encoded))

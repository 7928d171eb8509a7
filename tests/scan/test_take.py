"""Test Dataset.take: rows by address, in the requested order."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import build, numbered, plain_dataset, touch_later
from support.seams import replace_function

import zonebloom as zb
from zonebloom import errors

ROWS = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write 3 files of 1000 rows, which become fragments 0 to 2 of an index on ``id``."""
    folder = plain_dataset(tmp_path / "data", ROWS, row_group_size=250)
    build(zb.dataset(folder), "id", number_of_items=100)
    return folder


def address(fragment: int, offset: int) -> int:
    return fragment << 32 | offset


def test_rows_come_in_the_requested_order_with_repetitions(folder: Path) -> None:
    rows = [(2, 999), (0, 3), (1, 250), (0, 3), (0, 0)]
    result = zb.dataset(folder).take_rows([address(*row) for row in rows])
    assert result["row"].to_pylist() == [ROWS * fragment + offset for fragment, offset in rows]


def test_rows_are_taken_by_footers_without_an_index(tmp_path: Path) -> None:
    folder = plain_dataset(tmp_path, 100, row_group_size=30)
    result = zb.dataset(folder).take_rows([address(1, 99), address(0, 31)], columns=["row"])
    assert result.to_pydict() == {"row": [199, 31]}


def test_columns_may_be_named_computed_or_none(folder: Path) -> None:
    ds = zb.dataset(folder)
    addresses = [7, 5, 7]
    assert ds.take_rows(addresses, columns=["row"]).to_pydict() == {"row": [7, 5, 7]}
    assert ds.take_rows(addresses, columns={"next": pc.field("row") + 1}).to_pydict() == {
        "next": [8, 6, 8]
    }
    assert ds.take_rows(addresses, columns={"one": pc.scalar(1)}).to_pydict() == {"one": [1, 1, 1]}
    assert ds.take_rows(addresses, columns=[]).num_rows == 3
    assert ds.take_rows([]).num_rows == 0


@pytest.mark.parametrize(
    "addresses", [[-1], [1.5], ["a"], [True], [[1]], [1 << 63], [address(0, ROWS)], [address(9, 0)]]
)
def test_addresses_without_a_row_are_refused(folder: Path, addresses: list[object]) -> None:
    with pytest.raises(errors.InvalidArgument):
        zb.dataset(folder).take_rows(addresses)


def test_a_file_replaced_before_it_is_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file has other rows at the requested addresses."""
    ds = zb.dataset(folder)
    path, open_file = folder / "part-000.parquet", os.open

    def replace_and_open(opened: Any, *options: Any) -> int:
        # The identity of the file is known, and its rows are read next.
        if os.fspath(opened) == str(path):
            pq.write_table(numbered(10**6, ROWS), path)
            touch_later(path)
        return open_file(opened, *options)

    replace_function(monkeypatch, os, "open", replace_and_open)
    with pytest.raises(errors.FragmentChanged, match="search again"):
        ds.take_rows([5])


def test_views_inside_structs_are_taken(tmp_path: Path) -> None:
    """Arrow has no take kernel for views."""
    kind = pa.struct([("a", pa.string_view()), ("b", pa.list_(pa.binary_view()))])
    values = pa.array([{"a": f"value number {i}", "b": [b"x"]} for i in range(100)], kind)
    result = zb.dataset(pa.table({"id": range(100), "s": values})).take_rows([99, 3, 3])
    assert result.schema.field("s").type == kind
    assert [value["a"] for value in result["s"].to_pylist()] == [
        "value number 99",
        "value number 3",
        "value number 3",
    ]


@pytest.mark.parametrize("change", ["rewritten", "deleted"])
def test_addresses_are_stable_when_another_file_changes(folder: Path, change: str) -> None:
    """Files added after the build have ids too, and an id never moves to another file."""
    pq.write_table(numbered(5000, 10, id=pa.array(range(10))), folder / "part-008.parquet")
    pq.write_table(numbered(6000, 10, id=pa.array(range(10))), folder / "part-009.parquet")
    ds = zb.dataset(folder, stale="ignore-missing")
    with pytest.warns(errors.StaleIndexWarning):
        result = ds.search("id = 3 OR id IS NULL").ranges
    addresses = {fragment: address(fragment, 3) for fragment in result}
    previous, last = sorted(addresses)[-2:]
    assert ds.take_rows([addresses[last]], ["row"])["row"].to_pylist() == [6003]
    path = folder / ("part-000.parquet" if change == "rewritten" else "part-008.parquet")
    if change == "rewritten":
        pq.write_table(numbered(7000, 10, id=pa.array(range(10))), path)
        touch_later(path)
    else:
        path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ZoneBloomWarning)
        assert ds.take_rows([addresses[last]], ["row"])["row"].to_pylist() == [6003]
        if change == "deleted":
            with pytest.raises(errors.InvalidArgument, match="search again"):
                ds.take_rows([addresses[previous]])

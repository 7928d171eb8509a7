"""A file may store a column in another type than the dataset: no request loses a row of it.

The first file gives the schema. A later file holds a key that this type may not hold. Each request
finds the key, or is refused.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import permutations
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather
from support.drifting import PAIRS, Pair, requests_for_key, write_file

import zonebloom as zb
from zonebloom.errors import SchemaMismatch, ZoneBloomError

# The types of indices by their options. None stands for no index.
KINDS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "filters": {"number_of_items": 64},
    "hash": {"index_type": "HASH"},
    "zone map": {"index_type": "ZONEMAP"},
}
_REFUSALS = ZoneBloomError, pl.exceptions.PolarsError, duckdb.Error


def problems(ds: zb.Dataset, pair: Pair) -> list[str]:
    """Return what is wrong with the answers to all requests for the key of the later file."""
    wrong: list[str] = []
    for name, ask in requests_for_key(ds, pair).items():
        try:
            if ask() < 1:
                wrong.append(f"{name} lost the row")
        except _REFUSALS as error:
            # Polars' own reader casts only integers and floats.
            if pair.fits and not name.startswith("lazy"):
                wrong.append(f"{name} is refused: {error}")
    return wrong


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("schema", [None, "union"])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_no_request_loses_a_row(tmp_path, pair: Pair, schema: Any):
    wrong: list[str] = []
    for kind, options in KINDS.items():
        folder = tmp_path / kind
        write_file(folder, 0, pair.values, pair.first)
        try:
            if options is not None:
                zb.dataset(folder).create_scalar_index("k", **options)
        except ZoneBloomError:
            continue
        write_file(folder, 1, [pair.key], pair.later)
        try:
            ds = zb.dataset(folder, schema=schema)
        except SchemaMismatch:
            # No type holds both.
            continue
        wrong += [f"{kind}: {problem}" for problem in problems(ds, pair)]
        if options is not None and kind != "zone map":
            with suppress(ZoneBloomError):
                ds.optimize.optimize_indices()
                wrong += [f"{kind}, refreshed: {problem}" for problem in problems(ds, pair)]
    assert not wrong


@pytest.mark.parametrize("format", ["feather", "csv"])
def test_other_formats_are_checked(tmp_path, format):
    folder = tmp_path / "d"
    folder.mkdir()
    for number, (values, kind) in enumerate([([1, 2], pa.int32()), ([2**40], pa.int64())]):
        table = pa.table({"k": pa.array(values, kind)})
        if format == "csv":
            csv.write_csv(table, folder / f"{number}.csv")
        else:
            feather.write_feather(table, folder / f"{number}.feather")
    ds = zb.dataset(folder, format=format, schema=pa.schema({"k": pa.int32()}))
    with pytest.raises(ZoneBloomError):
        ds.to_table(filter=f"k = {2**40}")
    with pytest.raises(ZoneBloomError):
        ds.lookup("k", [2**40])


_TEXTS = pa.array(["a", "b"])
_FORMS: dict[str, pa.Array] = {
    "string": _TEXTS,
    "large string": _TEXTS.cast(pa.large_string()),
    "dictionary": _TEXTS.dictionary_encode(),
    "view": _TEXTS.cast(pa.string_view()),
    "binary": _TEXTS.cast(pa.binary()),
    "binary view": _TEXTS.cast(pa.binary_view()),
}


@pytest.mark.parametrize("forms", list(permutations(_FORMS, 2)), ids=" and ".join)
def test_forms_of_text_are_united(tmp_path, forms):
    folder = tmp_path / "d"
    folder.mkdir()
    for number, form in enumerate(forms):
        pq.write_table(pa.table({"k": _FORMS[form]}), folder / f"{number}.parquet")
    ds = zb.dataset(folder, schema="union")
    ds.create_scalar_index("k", "HASH", name="hash")
    ds.create_scalar_index("k", "ZONEMAP", name="map")
    is_text = not any("binary" in form for form in forms)
    key, literal = ("b", "'b'") if is_text else (b"b", "X'62'")
    assert ds.to_table()["k"].to_pylist() == (2 * ["a", "b"] if is_text else 2 * [b"a", b"b"])
    assert ds.to_table(filter=f"k = {literal}").num_rows == 2
    assert ds.lookup("k", [key]).num_rows == ds.locate("k", [key]).num_rows == 2


def test_a_dnf_filter_keeps_integers_of_which_no_type_holds_all(tmp_path):
    folder = tmp_path / "d"
    write_file(folder, 0, [1, 2**63 + 1], pa.uint64())
    filter = [("k", "in", [-5, 2**63 + 1])]
    assert zb.dataset(folder).to_table(filter=filter)["k"].to_pylist() == [2**63 + 1]
    write_file(folder, 1, [-5], pa.int64())
    with pytest.raises(SchemaMismatch, match=r"1\.parquet holds column 'k' as int64"):
        zb.dataset(folder).to_table(filter=filter)

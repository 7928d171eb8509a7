"""Test the choice of a kind of index, and catalogs with an index of a kind that is not known."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import merge_segments
from support.helpers import index_folder, rewrite_document
from support.limits import set_limit

import zonebloom as zb
from zonebloom import errors, plots

ROWS = 200


def append_file(folder: Path, number: int) -> None:
    rows = range(number * ROWS, (number + 1) * ROWS)
    pq.write_table(pa.table({"row": rows, "id": rows}), folder / f"{number}.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        append_file(folder, number)
    return folder


@pytest.fixture
def newer(folder: Path) -> Path:
    """Return a folder whose index "id_idx" is of a kind that a newer version may have."""
    zb.dataset(folder).create_scalar_index("id", number_of_items=50, spark=False)

    def change(content):
        content["indices"][0]["kind"] = "TRIE"

    (version,) = index_folder(folder).glob("versions/*.json")
    rewrite_document(version, change)
    return folder


def test_an_index_of_an_unknown_kind_is_not_used(newer):
    ds = zb.dataset(newer)
    with pytest.warns(errors.IndexNotUsedWarning, match=r"'TRIE'.*drop_index\('id_idx'\)"):
        assert ds.to_table(filter="id = 321")["row"].to_pylist() == [321]
    assert len(ds.search("id = 21").at_most) == 3 * ROWS
    assert [index.index_type for index in ds.describe_indices()] == ["TRIE"]
    with pytest.raises(errors.UnknownIndexKind, match="install a newer zonebloom"):
        zb.dataset(newer, stale="raise").to_table(filter="id = 21")
    with pytest.raises(errors.UnknownIndexKind, match="does not know"):
        ds.validate_index("id_idx")


def test_a_refresh_leaves_an_index_of_an_unknown_kind_as_it_is(newer):
    zb.dataset(newer).create_scalar_index("row", spark=False)
    append_file(newer, 3)
    ds = zb.dataset(newer)
    before = ds.opened.version.indices["id_idx"]
    with pytest.warns(errors.StaleIndexWarning, match="'TRIE', which this version does not know"):
        unknown, bloom = ds.optimize.optimize_indices(spark=False)
    assert (unknown.changed, bloom.fragments_added) == (False, 1)
    assert "'TRIE'" in unknown.problem
    with pytest.raises(errors.UnknownIndexKind):
        ds.optimize.optimize_indices(index_names=["id_idx"], spark=False)
    merge_segments(ds, ["id_idx", "row_idx"])
    assert zb.dataset(newer).opened.version.indices["id_idx"] == before
    ds.drop_index("id_idx")
    assert [index.name for index in ds.describe_indices()] == ["row_idx"]


@pytest.mark.parametrize("name", ["HASH", "hash", "Hash"])
def test_the_name_of_a_kind_may_be_in_any_case(folder, name):
    ds = zb.dataset(folder)
    ds.create_scalar_index("id", name, number_of_items=50, spark=False)
    (index,) = ds.describe_indices()
    assert (index.index_type, index.number_of_items) == ("HASH", 50)
    assert ds.to_table(filter="id = 321")["row"].to_pylist() == [321]


def test_an_unknown_kind_is_refused_with_a_list_of_all_kinds(folder):
    kinds_text = "'BLOOMFILTER', 'HASH' and 'ZONEMAP'"
    with pytest.raises(errors.InvalidArgument, match=f"'BTREE'; zonebloom builds {kinds_text}$"):
        zb.dataset(folder).create_scalar_index("id", "BTREE", spark=False)


def test_indices_of_all_kinds_answer_together(folder):
    ds = zb.dataset(folder)
    for kind in ("BLOOMFILTER", "HASH", "ZONEMAP"):
        ds.create_scalar_index("id", kind, kind, number_of_items=50, spark=False)
    assert ds.to_table(filter="id = 321")["row"].to_pylist() == [321]
    plan = ds.scanner(filter="id = 321").explain_plan()
    assert all(kind in plan for kind in ("BLOOMFILTER", "HASH", "ZONEMAP"))
    with pytest.raises(errors.InvalidArgument, match=r"kind 'HASH'.*'BLOOMFILTER'"):
        plots.filters(ds, "HASH")


def test_a_bloom_index_of_many_rows_recommends_a_hash_index(folder, monkeypatch):
    set_limit(monkeypatch, "rows of a large table", 3 * ROWS - 1)
    ds = zb.dataset(folder)
    with pytest.warns(errors.ZoneBloomWarning, match=r"filters for 600 rows.*index_type=\"HASH\""):
        ds.create_scalar_index("id", spark=False)
    ds.create_scalar_index("id", "HASH", spark=False)

"""Kinds of sources that other code registers."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import InvalidArgument, SourceError
from zonebloom.sources.discovery import discover_source
from zonebloom.sources.kinds import register_source_kind, unregister_source_kind
from zonebloom.sources.source import Source


class Manifest:
    """A table whose files are named in a JSON document."""

    def __init__(self, path: Path):
        self.path = path


class ManifestKind:
    examples = ("a Manifest",)

    def accepts(self, source) -> bool:
        return isinstance(source, Manifest)

    def is_listed(self, source) -> bool:
        return True

    def open(self, source, options) -> Source:
        return discover_source(json.loads(source.path.read_text()), "parquet", options.filesystem)


@pytest.fixture
def manifest(tmp_path):
    kind = ManifestKind()
    register_source_kind(kind)
    paths = [str(tmp_path / "data" / f"{number}.parquet") for number in range(3)]
    (tmp_path / "data").mkdir()
    for number, path in enumerate(paths):
        pq.write_table(pa.table({"id": range(100 * number, 100 * number + 100)}), path)
    (tmp_path / "manifest.json").write_text(json.dumps(paths[:2]))
    yield Manifest(tmp_path / "manifest.json")
    unregister_source_kind(kind)


def test_a_registered_kind_is_opened_indexed_and_listed_again(manifest):
    ds = zb.dataset(manifest)
    ds.create_scalar_index("id", number_of_items=10, spark=False)
    assert ds.to_table(filter="id = 150").num_rows == 1
    assert ds.scanner(filter="id = 150").plan().skipped == 1
    assert ds.count_rows("id = 250") == 0
    paths = [str(manifest.path.parent / "data" / f"{number}.parquet") for number in range(3)]
    manifest.path.write_text(json.dumps(paths))
    ds.refresh()
    assert ds.count_rows() == 300
    ds.optimize.optimize_indices(spark=False)
    assert ds.scanner(filter="id = 250").plan().skipped == 2


def test_sources_of_no_kind_are_refused_with_all_kinds(manifest):
    examples = "a Manifest, a folder|a folder.*DeltaTable.*pyarrow.Table or a Manifest"
    with pytest.raises(SourceError, match=examples):
        zb.dataset(object())


def test_an_open_dataset_is_refused(manifest):
    with pytest.raises(InvalidArgument, match="open already"):
        zb.dataset(zb.dataset(manifest))

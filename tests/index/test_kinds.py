"""Indices of another kind than BLOOMFILTER: a tiny kind that keeps the exact keys of each zone."""

from __future__ import annotations

import csv
import io
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import index_folder
from seams import set_constant

import zonebloom as zb
from zonebloom import errors, plots
from zonebloom.base.row_ranges import OFFSET_BITS
from zonebloom.building import segments
from zonebloom.building.segments import compact_indices
from zonebloom.catalog.folder import read_file
from zonebloom.cli import main as cli
from zonebloom.index import kinds
from zonebloom.index.table import HashingFile, IndexTable, WrittenTable, ZoneRuns
from zonebloom.index.zone_map.kind import ZONE_MAP
from zonebloom.predicates.ast import Compares

ROWS, ZONE = 100, 16
SCHEMA = pa.schema(
    [
        ("fragment_id", pa.uint64()),
        ("start", pa.uint64()),
        ("length", pa.uint64()),
        ("has_null", pa.bool_()),
        ("keys", pa.list_(pa.uint64())),
    ]
)


class ExactTable(IndexTable):
    """The zones of one segment, each with the sorted hashes of its keys."""

    def __init__(self, path: str, data: pa.Buffer):
        self.path, self.num_bytes = path, data.size
        self.rows = pa.ipc.open_file(data).read_all()
        ids, starts, lengths, self.has_null = (self.rows[i].to_numpy() for i in range(4))
        items = int(self.rows.schema.metadata[b"number_of_items"])
        self.runs = ZoneRuns.from_zones(ids, starts, lengths, items)
        self._keys = [np.array(keys, np.uint64) for keys in self.rows["keys"].to_pylist()]

    @property
    def loaded_bytes(self):
        return self.num_bytes

    def _pairs(self, hashes):
        for zone, keys in enumerate(self._keys):
            positions = np.flatnonzero(np.isin(hashes, keys))
            yield positions, np.full(positions.size, zone)


class ExactWriter:
    """The writer of the file of one segment."""

    def __init__(self, catalog, path, number_of_items):
        self._items = number_of_items
        self._sink = HashingFile(catalog.open_output_stream(path))
        self._parts = []
        self.rows = [SCHEMA.empty_table()]

    def add(self, fragment_id, hashes):
        self._parts.append((hashes.values.copy(), hashes.is_valid()))

    def end_fragment(self, fragment_id):
        nothing = np.empty(0, np.uint64), np.empty(0, bool)
        parts = zip(nothing, *self._parts, strict=True)
        values, valid = (np.concatenate(arrays) for arrays in parts)
        self._parts = []
        for start in range(0, values.size, self._items):
            zone = slice(start, start + self._items)
            keys = np.unique(values[zone][valid[zone]])
            row = fragment_id, start, values[zone].size, not valid[zone].all(), keys.tolist()
            names = SCHEMA.names
            self.rows.append(pa.Table.from_pylist([dict(zip(names, row, strict=True))], SCHEMA))

    def close(self):
        rows = pa.concat_tables(self.rows)
        items = {"number_of_items": str(self._items)}
        data = pa.BufferOutputStream()
        with pa.ipc.new_file(data, SCHEMA.with_metadata(items)) as writer:
            writer.write_table(rows.replace_schema_metadata(items))
        self._sink.write(data.getvalue())
        self._sink.close()
        return WrittenTable(self._sink.size, self._sink.checksum.hexdigest(), len(rows))

    def abort(self):
        self._sink.close()


class ExactSet:
    """The kind of index that keeps the exact keys of each zone. It answers =, IN and IS NULL."""

    name = "EXACTSET"
    max_searched_keys: int | None = 1 << 14
    layouts_read_in_parts = ()
    task_size_factor = 1
    takes_values = False

    def __init__(self):
        self.layouts = {"table": "exactset.arrow"}
        self.default_items = 8192
        self.answers_ranges = False

    def why_not_indexable(self, column_type, column):
        return "look floats up by ranges" if pa.types.is_floating(column_type) else None

    def why_not_answered(self, leaf, column_type=None):
        if isinstance(leaf, Compares) and not self.answers_ranges:
            return "a set has no order"
        return None

    def check_parameters(self, parameters):
        parameters = {"number_of_items": self.default_items, **parameters}
        if len(parameters) > 1:
            raise errors.InvalidArgument(f"number_of_items is the only parameter of {self.name}")
        return parameters

    def probability_for(self, max_false_zones, num_zones):
        return max_false_zones

    def choose_layout(self, layout, num_zones):
        return "table"

    def create_writer(self, catalog, path, parameters, num_writers, column_type):
        return ExactWriter(catalog, path, parameters["number_of_items"])

    def open(self, catalog, segment, report):
        path = catalog.path(segment.name, segment.file)
        files = catalog.decrypted_filesystem
        return ExactTable(path, read_file(files, path, segment.num_bytes, segment.checksum))

    def merge(self, catalog, path, layout, tables):
        writer = ExactWriter(catalog, path, tables[0].runs.items)
        writer.rows += [table.rows.replace_schema_metadata(None) for table in tables]
        return writer.close()

    def statistics(self, parameters, tables):
        return {"num_keys": sum(len(keys) for table in tables for keys in table.rows["keys"])}


@pytest.fixture
def exact_set() -> Iterator[ExactSet]:
    kind = ExactSet()
    kinds.register_index_kind(kind)
    yield kind
    kinds.unregister_index_kind(kind)


def id_of(row: int) -> int | None:
    """Return the id in a row of all files together. Ids repeat, and every 29th is null."""
    return None if row % 29 == 3 else row * 7 % 1000


def append_file(folder: Path, number: int) -> None:
    rows = range(number * ROWS, (number + 1) * ROWS)
    folder.mkdir(exist_ok=True)
    table = pa.table({"id": pa.array(map(id_of, rows), pa.int64()), "row": rows, "x": [0.5] * ROWS})
    pq.write_table(table, folder / f"{number:02d}.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        append_file(tmp_path / "data", number)
    return tmp_path / "data"


@pytest.fixture
def ds(folder: Path, exact_set: ExactSet) -> zb.Dataset:
    ds = zb.dataset(folder)
    ds.create_scalar_index("id", "EXACTSET", number_of_items=ZONE, spark=False)
    return ds


FILTERS = [
    ("id = 21", lambda key: key == 21),
    ("id = -1", lambda key: False),
    ("id IN (21, 994, -5)", lambda key: key in (21, 994)),
    ("id IS NULL", lambda key: key is None),
    ("id = 21 OR id IS NULL", lambda key: key == 21 or key is None),
    ("id > 500", lambda key: key is not None and key > 500),
]


def assert_finds_all_rows(ds: zb.Dataset, num_files: int = 3) -> None:
    """Compare scans and lookups with a walk over all rows."""
    keys = [id_of(row) for row in range(num_files * ROWS)]
    for text, is_match in FILTERS:
        expected = [row for row, key in enumerate(keys) if is_match(key)]
        assert ds.to_table(filter=text)["row"].to_pylist() == expected
    rows = ds.lookup("id", [21, -1, 994])
    assert sorted(row for row in rows["row"].to_pylist() if row is not None) == [
        row for row, key in enumerate(keys) if key in (21, 994)
    ]


def test_a_search_keeps_exactly_the_zones_that_hold_a_key(ds):
    assert_finds_all_rows(ds)
    for text, is_match in FILTERS[:5]:
        zones = {
            (row // ROWS, row % ROWS // ZONE) for row in range(3 * ROWS) if is_match(id_of(row))
        }
        kept_rows = [
            address for start, stop in ds.search(text).at_most for address in range(start, stop)
        ]
        offsets = (1 << OFFSET_BITS) - 1
        assert {(row >> OFFSET_BITS, (row & offsets) // ZONE) for row in kept_rows} == zones
        plan = ds.scanner(filter=text).plan()
        assert [(use.name, use.kept_zones) for use in plan.indices] == [("id_idx", len(zones))]


def test_an_index_is_described_and_validated(ds):
    (description,) = ds.describe_indices()
    assert (description.index_type, description.layout) == ("EXACTSET", "table")
    assert (description.num_zones, description.num_rows_indexed) == (21, 300)
    assert (description.probability, description.sizing) == (None, None)
    num_keys = sum(
        len({id_of(row) for row in range(start, min(start + ZONE, file + ROWS))} - {None})
        for file in range(0, 3 * ROWS, ROWS)
        for start in range(file, file + ROWS, ZONE)
    )
    assert ds.index_statistics("id_idx")["num_keys"] == num_keys
    assert "fill_mean" not in ds.index_statistics("id_idx")
    validated = ds.validate_index("id_idx", sample="all")
    assert (validated, validated.zones_read) == (21, 21)
    assert ds.key_ranges("id")["minimum"].to_pylist() == [
        min(id_of(row) for row in range(file, file + ROWS) if id_of(row) is not None)
        for file in range(0, 3 * ROWS, ROWS)
    ]


def test_appended_files_are_indexed_and_segments_merged(ds, folder, monkeypatch):
    set_constant(monkeypatch, segments, "_MANY_SEGMENTS", 2)
    for number in range(3, 7):
        append_file(folder, number)
        ds = zb.dataset(folder)
        (refreshed,) = ds.optimize.optimize_indices(spark=False)
        assert (refreshed.fragments_added, refreshed.layout) == (1, "table")
    assert refreshed.num_segments <= 2
    assert_finds_all_rows(ds, 7)
    assert ds.validate_index("id_idx", sample="all") == 7 * 7
    (folder / "06.parquet").unlink()
    ds = zb.dataset(folder)
    assert ds.optimize.optimize_indices(spark=False)[0].fragments_dropped == 1
    assert_finds_all_rows(ds, 6)


def test_all_segments_can_be_merged(ds, folder):
    append_file(folder, 3)
    ds = zb.dataset(folder)
    ds.optimize.optimize_indices(spark=False)
    catalog = ds.opened.catalog
    compact_indices(catalog, ["id_idx"], everything=True)
    ds = zb.dataset(folder)
    (segment,) = ds.opened.version.indices["id_idx"].segments
    assert (segment.file, segment.num_zones) == ("exactset.arrow", 28)
    assert_finds_all_rows(ds, 4)


def test_a_damaged_file_loses_no_row(ds, folder):
    [path] = index_folder(folder).rglob("exactset.arrow")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    ds = zb.dataset(folder)
    with pytest.warns(errors.IndexNotUsedWarning, match="checksum of .*exactset.arrow"):
        assert_finds_all_rows(ds)
    with pytest.raises(errors.CorruptIndex, match="build the index again"):
        ds.validate_index("id_idx")
    (repaired,) = zb.dataset(folder).optimize.optimize_indices(repair=True, spark=False)
    assert "checksum" in repaired.damage
    assert zb.dataset(folder).validate_index("id_idx", sample="all") == 21


class LyingSet(ExactSet):
    """The same kind, with tables that claim what a function makes of the truth."""

    def __init__(self, lie: Callable[[ExactTable], None]):
        super().__init__()
        self._lie = lie

    def open(self, catalog, segment, report):
        table = super().open(catalog, segment, report)
        self._lie(table)
        return table


def lie_about_runs(**arrays: Callable[[np.ndarray], np.ndarray]) -> Callable[[ExactTable], None]:
    def lie(table: ExactTable) -> None:
        changed = {name: change(getattr(table.runs, name)) for name, change in arrays.items()}
        table.runs = replace(table.runs, **changed)

    return lie


def lie_about_nulls(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[ExactTable], None]:
    def lie(table: ExactTable) -> None:
        table.has_null = change(table.has_null)

    return lie


LIES = {
    # The last zones would be rows that no zone holds.
    "more rows than zones": lie_about_runs(num_rows=lambda rows: rows + np.uint64(3 * ZONE)),
    "fewer rows than zones": lie_about_runs(num_rows=lambda rows: rows - np.uint64(3 * ZONE)),
    "no rows": lie_about_runs(num_rows=np.zeros_like),
    "rows past the last": lie_about_runs(first_rows=lambda rows: rows + np.uint64(2**32 - 2)),
    "rows that overflow": lie_about_runs(first_rows=lambda rows: rows + np.uint64(2**64 - 10)),
    "fewer zones": lie_about_runs(num_zones=lambda zones: zones - np.uint64(1)),
    "zones that overflow": lie_about_runs(
        num_zones=lambda zones: zones + np.array([2**63, 2**63, 0], np.uint64)
    ),
    "fewer ids": lie_about_runs(fragment_ids=lambda ids: ids[:1]),
    "fewer first rows": lie_about_runs(first_rows=lambda rows: rows[:1]),
    "signed ids": lie_about_runs(fragment_ids=lambda ids: ids.astype(np.int64)),
    "two dimensions": lie_about_runs(num_rows=lambda rows: rows[:, None]),
    "fewer null flags": lie_about_nulls(lambda flags: flags[:-1]),
    "more null flags": lie_about_nulls(lambda flags: np.append(flags, flags[:1])),
    "null flags of numbers": lie_about_nulls(lambda flags: flags.astype(np.int64)),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_table_with_impossible_claims_loses_no_row(ds, folder, lie):
    append_file(folder, 3)
    zb.dataset(folder).optimize.optimize_indices(spark=False)
    before = zb.dataset(folder).opened.version.indices
    kinds.register_index_kind(LyingSet(lie))
    ds = zb.dataset(folder)
    with pytest.warns(errors.IndexNotUsedWarning, match=r"exactset.arrow is damaged \("):
        assert_finds_all_rows(ds, 4)
    with pytest.raises(errors.CorruptIndex, match="build the index again"):
        ds.validate_index("id_idx")
    with pytest.raises(errors.CorruptIndex, match=r"exactset.arrow is damaged \("):
        compact_indices(ds.opened.catalog, ["id_idx"], everything=True)
    assert zb.dataset(folder).opened.version.indices == before


@pytest.mark.parametrize("items", [1, 3, ZONE])
@pytest.mark.parametrize("sample", ["all", 250])
def test_a_zone_without_a_value_of_its_rows_is_named(folder, exact_set, items, sample):
    """Zones of few rows are checked together, but an error names the one that is wrong."""
    zb.dataset(folder).create_scalar_index("id", "EXACTSET", number_of_items=items, spark=False)
    zones_per_file = -(-ROWS // items)
    row = 61
    assert id_of(ROWS + row) == (ROWS + row) * 7 % 1000
    zone_rows = range(row // items * items, min(row // items * items + items, ROWS))
    num_keys = len({id_of(ROWS + other) for other in zone_rows} - {None})
    first_null = next(other for other in range(ROWS) if id_of(ROWS + other) is None)
    null_rows = range(first_null // items * items, first_null // items * items + items)

    def forget_keys(table: ExactTable) -> None:
        table._keys[zones_per_file + row // items] = np.empty(0, np.uint64)

    def forget_nulls(table: ExactTable) -> None:
        is_kept = np.arange(len(table)) != zones_per_file + first_null // items
        table.has_null = table.has_null & is_kept

    for lie, named_rows, part, lost in (
        (forget_keys, zone_rows, "the filter", f"{num_keys} values"),
        (forget_nulls, null_rows, "the null flag", "a null"),
    ):
        ds = zb.dataset(folder)
        num_zones = 3 * zones_per_file
        num_read = num_zones if sample == "all" else min(sample, num_zones)
        assert ds.validate_index("id_idx", sample=sample).zones_read == num_read
        kinds.register_index_kind(LyingSet(lie))
        rows = f"rows {named_rows.start} to {named_rows.stop} of .*01.parquet"
        with pytest.raises(errors.CorruptIndex, match=f"{part} of {rows} excludes {lost}"):
            zb.dataset(folder).validate_index("id_idx", sample="all")
        kinds.register_index_kind(exact_set)


def test_zones_of_a_fragment_that_the_segment_does_not_name_are_not_trusted(ds, folder):
    append_file(folder, 3)
    ds = zb.dataset(folder)
    ds.create_scalar_index("row", number_of_items=ZONE, spark=False)
    claimed_id = ds.opened.version.fragments["03.parquet"].fragment_id
    lie = lie_about_runs(fragment_ids=lambda ids: np.append(ids[:-1], np.uint64(claimed_id)))
    kinds.register_index_kind(LyingSet(lie))
    with pytest.warns(errors.StaleIndexWarning, match="03.parquet"):
        assert_finds_all_rows(zb.dataset(folder), 4)


def test_it_works_next_to_a_bloom_filter_index_of_the_same_column(ds, folder):
    ds.create_scalar_index("id", "bloomfilter", "bloom", number_of_items=10, spark=False)
    for opened in (ds, zb.dataset(folder)):
        types = [index.index_type for index in opened.describe_indices()]
        assert types == ["EXACTSET", "BLOOMFILTER"]
        assert_finds_all_rows(opened)
    append_file(folder, 3)
    ds = zb.dataset(folder)
    assert [r.fragments_added for r in ds.optimize.optimize_indices(spark=False)] == [1, 1]
    assert_finds_all_rows(ds, 4)
    with pytest.raises(errors.InvalidArgument, match="no Bloom filters"):
        ds.index_to_lance("id_idx", folder / "x.lance")


def test_indices_of_several_kinds_are_shown_with_their_kinds(ds, exact_set):
    ds.create_scalar_index("row", number_of_items=20, spark=False)
    header, *lines = str(ds.describe_indices()).splitlines()
    assert header.split()[:4] == ["index", "kind", "column", "zones"]
    assert [line.split()[:4] for line in lines] == [
        ["id_idx", "EXACTSET", "id", "21"],
        ["row_idx", "BLOOMFILTER", "row", "15"],
    ]
    for html in (ds.describe_indices()._repr_html_(), ds._repr_html_()):
        assert "<td>id_idx</td><td>EXACTSET</td><td>id</td>" in html
        assert "<td>row_idx</td><td>BLOOMFILTER</td><td>row</td>" in html
    assert ds.list_indices()[0]["type"] == "EXACTSET"
    figures = ds.index_statistics("id_idx")
    for text in (str(figures), figures._repr_html_()):
        assert "num_keys" in text
        assert "fill_mean" not in text
    ds.drop_index("id_idx")
    assert str(ds.describe_indices()).split()[:2] == ["index", "column"]


def test_an_index_is_prewarmed(ds, folder):
    ds.prewarm_index("id_idx")
    assert_finds_all_rows(ds)


def test_the_command_line_builds_and_describes_it(folder, exact_set, capsys):
    pytest.importorskip("click")

    def run(*arguments):
        capsys.readouterr()
        assert cli.main([*arguments[:1], str(folder), *arguments[1:]]) == 0
        return capsys.readouterr().out

    options = ["--type=exactset", f"--number-of-items={ZONE}", "--column=id", "--engine=local"]
    assert "EXACTSET" in run("build", *options)
    run("build", "--column=row", "--engine=local", "--layout=sliced")
    assert_finds_all_rows(zb.dataset(folder))
    header, *lines = run("stats").splitlines()
    assert header.split()[-2:] == ["fill", "fpp"]
    assert [line.split()[:3] for line in lines] == [
        ["id_idx", "EXACTSET", "id"],
        ["row_idx", "BLOOMFILTER", "row"],
    ]
    rows = list(csv.DictReader(io.StringIO(run("stats", "--output=csv"))))
    figures = [zb.dataset(folder).index_statistics(name) for name in ("id_idx", "row_idx")]
    for row, of_index in zip(rows, figures, strict=True):
        assert set(row) == set(figures[0]) | set(figures[1])
        assert {name for name, text in row.items() if not text} == {
            name for name in row if of_index.get(name) is None
        }
    assert [index["num_zones"] for index in json.loads(run("stats", "--output=json"))["indices"]]
    assert run("stats", "--column=id").split()[:4] == ["name", "id_idx", "index_type", "EXACTSET"]
    assert "id_idx" in run("ls")
    assert "sound" in run("validate", "--sample=all")
    assert "row_idx" in run("refresh", "--engine=local")
    assert cli.main(["build", str(folder), *options, "--probability=0.01"]) == 1
    assert "only parameter of EXACTSET" in capsys.readouterr().err
    assert cli.main(["build", str(folder), *options, "--layout=sliced"]) == 1
    assert "layout is 'sliced'" in capsys.readouterr().err


def test_a_refresh_applies_a_layout_to_the_indices_whose_kinds_have_it(ds, folder):
    ds.create_scalar_index("row", number_of_items=20, spark=False)
    before = ds.opened.version.indices["id_idx"]
    refreshed = ds.optimize.optimize_indices(layout="sliced", spark=False)
    assert [(r.name, r.layout, r.changed) for r in refreshed] == [
        ("id_idx", "table", False),
        ("row_idx", "sliced", True),
    ]
    assert zb.dataset(folder).opened.version.indices["id_idx"] == before
    assert_finds_all_rows(zb.dataset(folder))


def test_a_pickled_dataset_searches_the_index(ds):
    copy = pickle.loads(pickle.dumps(ds))
    assert_finds_all_rows(copy)
    assert len(copy.search("id = 21").at_most) <= 2 * ZONE


def test_a_dropped_index_is_vacuumed(ds, folder):
    ds.drop_index("id_idx")
    outcome = ds.vacuum(timedelta(0))
    assert outcome.foreign == ()
    assert list((index_folder(folder) / "segments").iterdir()) == []


def test_an_index_moves_with_its_files(ds, folder, tmp_path):
    ds.move_index(str(tmp_path / "elsewhere"))
    ds = zb.dataset(folder, index_dir=str(tmp_path / "elsewhere"))
    assert ds.validate_index("id_idx", sample="all") == 21
    assert_finds_all_rows(ds)


def test_an_encrypted_index_is_searched(folder, exact_set):
    encryption = zb.Encryption("key", {"key": bytes(range(32))})
    ds = zb.dataset(folder, encryption=encryption)
    ds.create_scalar_index("id", "EXACTSET", number_of_items=ZONE, spark=False)
    ds = zb.dataset(folder, encryption=encryption)
    assert_finds_all_rows(ds)
    assert len(ds.search("id = 21").at_most) <= 2 * ZONE


# Kinds that are not registered


def test_an_index_of_an_unknown_kind_is_not_used(ds, folder, exact_set):
    kinds.unregister_index_kind(exact_set)
    try:
        ds = zb.dataset(folder)
        with pytest.warns(errors.IndexNotUsedWarning, match=r"'EXACTSET'.*drop_index\('id_idx'\)"):
            assert_finds_all_rows(ds)
        assert len(ds.search("id = 21").at_most) == 3 * ROWS
        (description,) = ds.describe_indices()
        assert (description.index_type, description.layout) == ("EXACTSET", "unknown")
        with pytest.raises(errors.UnknownIndexKind, match="not registered"):
            zb.dataset(folder, stale="raise").to_table(filter="id = 21")
        with pytest.raises(errors.UnknownIndexKind, match="not registered"):
            ds.validate_index("id_idx")
    finally:
        kinds.register_index_kind(exact_set)
    assert_finds_all_rows(zb.dataset(folder))


def test_a_refresh_leaves_an_index_of_an_unknown_kind_as_it_is(ds, folder, exact_set):
    ds.create_scalar_index("row", spark=False)
    append_file(folder, 3)
    kinds.unregister_index_kind(exact_set)
    try:
        ds = zb.dataset(folder)
        before = ds.opened.version.indices["id_idx"]
        with pytest.warns(errors.StaleIndexWarning, match="'EXACTSET', which is not registered"):
            unknown, bloom = ds.optimize.optimize_indices(spark=False)
        assert (unknown.changed, bloom.fragments_added) == (False, 1)
        assert "'EXACTSET'" in unknown.problem
        with pytest.raises(errors.UnknownIndexKind):
            ds.optimize.optimize_indices(index_names=["id_idx"], spark=False)
        compact_indices(ds.opened.catalog, ["id_idx", "row_idx"], everything=True)
        assert zb.dataset(folder).opened.version.indices["id_idx"] == before
        ds.drop_index("id_idx")
        assert [index.name for index in ds.describe_indices()] == ["row_idx"]
    finally:
        kinds.register_index_kind(exact_set)


# Arguments


@pytest.mark.parametrize("name", ["EXACTSET", "exactset", "ExactSet"])
def test_the_name_of_a_kind_may_be_in_any_case(folder, exact_set, name):
    ds = zb.dataset(folder)
    config = zb.IndexConfig(name, {"number_of_items": 50})
    ds.create_scalar_index("id", config, spark=False)
    assert ds.describe_indices()[0].number_of_items == 50
    assert_finds_all_rows(ds)


def test_an_unknown_kind_is_refused_with_a_list_of_all_kinds(folder, exact_set):
    kinds_text = "'BLOOMFILTER', 'HASH', 'ZONEMAP' and 'EXACTSET'"
    with pytest.raises(errors.InvalidArgument, match=f"'BTREE'; zonebloom builds {kinds_text}$"):
        zb.dataset(folder).create_scalar_index("id", "BTREE", spark=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probability": 0.01}, "only parameter of EXACTSET"),
        ({"fold": False}, "only parameter of EXACTSET"),
        ({"max_false_zones": 0.1}, "only parameter of EXACTSET"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_parameters_of_another_kind_are_refused(folder, exact_set, options, message):
    with pytest.raises(errors.InvalidArgument, match=message):
        zb.dataset(folder).create_scalar_index("id", "EXACTSET", spark=False, **options)


@pytest.mark.parametrize(("given", "expected"), [(None, 32), (8192, 8192), (16, 16)])
def test_a_kind_has_its_own_defaults(folder, exact_set, given, expected):
    exact_set.default_items = 32
    ds = zb.dataset(folder)
    ds.create_scalar_index("id", "EXACTSET", number_of_items=given, spark=False)
    assert ds.describe_indices()[0].number_of_items == expected
    assert_finds_all_rows(ds)


@pytest.mark.parametrize("layout", ["sliced", "rows", 1, None])
def test_a_layout_that_a_kind_lacks_is_refused(folder, exact_set, layout):
    with pytest.raises(errors.InvalidArgument, match=r"layout is .*; it is one of auto, table$"):
        zb.dataset(folder).create_scalar_index("id", "EXACTSET", layout=layout, spark=False)


def test_a_filter_that_no_kind_answers_does_not_ask_for_an_index(folder, exact_set):
    ds = zb.dataset(folder)
    assert "no index on id" in ds.scanner(filter="id > 5").explain_plan()
    kinds.unregister_index_kind(ZONE_MAP)
    try:
        assert "not answered by a Bloom filter" in ds.scanner(filter="id > 5").explain_plan()
        exact_set.answers_ranges = True
        assert "no index on id" in ds.scanner(filter="id > 5").explain_plan()
    finally:
        kinds.register_index_kind(ZONE_MAP)


def test_a_type_that_a_kind_does_not_take_is_refused(folder, exact_set):
    with pytest.raises(errors.UnsupportedType, match="EXACTSET index does not take: look floats"):
        zb.dataset(folder).create_scalar_index("x", "EXACTSET", spark=False)


def test_a_kind_that_no_name_would_find_is_refused():
    kind = ExactSet()
    kind.name = "ExactSet"
    with pytest.raises(errors.InvalidArgument, match="'ExactSet'; use upper-case letters"):
        kinds.register_index_kind(kind)


@pytest.mark.parametrize("file", ["exact set.arrow", "../exact.arrow", "exactset", "pages.arrow"])
def test_a_kind_whose_files_a_vacuum_would_not_recognise_is_refused(file):
    kind = ExactSet()
    kind.layouts = {"table": file}
    with pytest.raises(errors.InvalidArgument, match=r"lower-case letters"):
        kinds.register_index_kind(kind)


@pytest.mark.parametrize("suffix", ["arrow", "sliced", "buckets", "sbbf"])
def test_files_with_every_suffix_are_read_moved_and_vacuumed(folder, tmp_path, exact_set, suffix):
    exact_set.layouts = {"table": f"exactset.{suffix}"}
    ds = zb.dataset(folder)
    ds.create_scalar_index("id", "EXACTSET", number_of_items=ZONE, spark=False)
    assert [path.name for path in index_folder(folder).rglob("exactset.*")] == [
        f"exactset.{suffix}"
    ]
    assert ds.move_index(str(tmp_path / "elsewhere")).foreign_files == ()
    ds = zb.dataset(folder, index_dir=str(tmp_path / "elsewhere"))
    assert_finds_all_rows(ds)
    ds.drop_index("id_idx")
    assert ds.vacuum(timedelta(0)).foreign == ()
    assert list((tmp_path / "elsewhere" / "segments").iterdir()) == []


def test_a_plot_of_filters_refuses_an_index_of_another_kind(ds):
    with pytest.raises(errors.InvalidArgument, match=r"kind 'EXACTSET'.*'BLOOMFILTER'"):
        plots.filters(ds, "id_idx")

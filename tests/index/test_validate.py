"""Test validation of an index against the data: it finds wrong contents with valid checksums."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.e2e_helpers import touch_later, write_files
from support.helpers import PLAIN_TYPES, index_folder, sample

import zonebloom as zb
from zonebloom.catalog.model import IndexEntry
from zonebloom.catalog.page_maps import load_page_map
from zonebloom.catalog.store import Catalog
from zonebloom.errors import CorruptIndex, InvalidArgument, SchemaMismatch
from zonebloom.index.kinds import kind_of
from zonebloom.index.table import HashingFile
from zonebloom.index.zone_bloom.rows import RowTableWriter, Zones
from zonebloom.index.zone_map.bounds import read_zone_map, write_zone_map
from zonebloom.parquet.page_map import merge_page_maps
from zonebloom.sbbf.filter import Sbbf

ITEMS, ROWS, FILES = 16, 100, 3
ZONES = FILES * math.ceil(ROWS / ITEMS)
KINDS = ["BLOOMFILTER", "HASH"]
FILTER = "bloom_filter_data"


def part(number: int) -> pa.Table:
    rows = range(number * ROWS, (number + 1) * ROWS)
    return pa.table(
        {
            "id": pa.array([None if i % 31 == 7 else i * 7 for i in rows], pa.int64()),
            "other": pa.array([i * 7 + 1 for i in rows], pa.int64()),
            "text": [f"text {i}" for i in rows],
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "data", [part(number) for number in range(FILES)], row_group_size=40)
    return tmp_path / "data"


def build(
    folder: Path, kind: str = "BLOOMFILTER", column: Any = "id", **options: Any
) -> zb.Dataset:
    ds = zb.dataset(folder, **options)
    ds.create_scalar_index(
        column, kind, "i", spark=False, number_of_items=ITEMS, global_filter=True
    )
    return ds


# Sound indices


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_index_of_every_type_is_sound(tmp_path: Path, kind: str) -> None:
    # Some random bits are no valid decimals, days or times.
    unlike = {pa.date64(), *(k for k in PLAIN_TYPES if pa.types.is_time(k))}
    kinds = [k for k in PLAIN_TYPES if not pa.types.is_decimal(k) and k not in unlike]
    columns = {f"c{n}": sample(kind, 70, seed=n)[0] for n, kind in enumerate(kinds)}
    in_memory = pa.table(columns)
    numbers = pa.array([None if i % 9 == 4 else i for i in range(70)], pa.int32())
    stored: dict[str, Any] = {
        name: numbers.cast(name)
        for name in ("int8", "uint16", "float", "double", "string", "date32", "time32[s]")
    }
    for name in ("timestamp[ms]", "timestamp[ns]", "duration[us]"):
        stored[name] = numbers.cast("int64").cast(name)
    stored["decimal"] = numbers.cast(pa.decimal128(12, 2))
    stored["large_binary"] = stored["string"].cast("large_binary")
    stored["word"] = pa.array(["a", "b", None, "a", "ä"] * 14).dictionary_encode()
    stored["nan"] = pa.array([math.nan, None, 0.0, -0.0, 1.5, math.inf, 7.0] * 10)
    write_files(tmp_path, [pa.table(stored), pa.table(stored).slice(3)])
    for ds, zones in ((zb.dataset(in_memory), 5), (zb.dataset(tmp_path), 10)):
        names = ds.schema.names
        ds.create_scalar_index(names, kind, spark=False, number_of_items=ITEMS)
        for name in names:
            validated = ds.validate_index(f"{name}_idx", sample="all")
            assert (validated, validated.zones_read, validated.state) == (zones, zones, "sound"), (
                name
            )


@pytest.mark.parametrize("format", ["ipc", "parquet"])
def test_a_new_index_of_other_sources_is_sound(tmp_path: Path, format: str) -> None:
    inner = pa.array([{"a": i} if i % 5 else None for i in range(ROWS)])
    table = pa.table({"st": inner, "x": range(ROWS)})
    for number in range(2):
        path = tmp_path / f"k={number}" / "a.file"
        path.parent.mkdir()
        if format == "ipc":
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table, 30)
        else:
            pq.write_table(table, path, row_group_size=30)
    ds = build(tmp_path, "HASH", "st.a", format=format)
    validated = ds.validate_index("i", sample="all")
    assert validated.zones_read == validated == 14
    memory = zb.dataset(pa.concat_tables([table, table]))
    memory.create_scalar_index("x", spark=False, number_of_items=ITEMS)
    assert memory.validate_index("x_idx", sample="all").zones_read == 13


def test_as_many_zones_are_read_as_are_asked_for(folder: Path) -> None:
    ds = build(folder)
    for count, wanted in ((0, 0), (1, 1), (5, 5), (10**6, ZONES), ("all", ZONES)):
        validated = ds.validate_index("i", sample=count)
        assert (int(validated), validated.zones_read) == (ZONES, wanted)
    assert ds.validate_index("i").zones_read == 16
    for wrong in (-1, 1.5, "some", None, True):
        with pytest.raises(InvalidArgument, match="sample is"):
            ds.validate_index("i", sample=wrong)


# Wrong contents with valid checksums


def rewrite(ds: zb.Dataset, change: Callable[[Catalog, IndexEntry], IndexEntry]) -> zb.Dataset:
    """Commit another description of the index, and open the dataset again."""
    catalog: Catalog = ds.opened.catalog
    catalog.commit(
        lambda version: replace(version, indices={"i": change(catalog, version.indices["i"])})
    )
    return zb.dataset(ds.opened.source.root)


def runs_of(table: Any) -> Iterator[tuple[int, Zones]]:
    """Yield copies of the zones of each fragment whose filters have one size."""
    rows = table.to_table().to_pylist()
    for (fragment, _), group in groupby(rows, lambda row: (row["fragment_id"], len(row[FILTER]))):
        part = list(group)
        starts, lengths = (
            np.array([row[name] for row in part], np.uint64)
            for name in ("zone_start", "zone_length")
        )
        has_null = np.array([row["has_null"] for row in part])
        filters = np.stack([np.frombuffer(row[FILTER], np.uint32) for row in part])
        yield fragment, Zones(starts, lengths, has_null, filters)


def with_table(change: Callable[[Any], None]) -> Callable[[Catalog, IndexEntry], IndexEntry]:
    """Rewrite the zones of every fragment with a change."""

    def changed(catalog: Catalog, entry: IndexEntry) -> IndexEntry:
        segments = []
        for segment in entry.segments:
            table = kind_of(entry).open(catalog, segment, None)
            path = catalog.path(segment.name, segment.file)
            runs = list(runs_of(table))
            for _, zones in runs:
                change(zones)
            writer = RowTableWriter(
                catalog.filesystem, path, table.number_of_items, table.probability
            )
            for fragment, zones in runs:
                writer.write(fragment, zones)
            written_table = writer.close()
            segments.append(
                replace(segment, num_bytes=written_table.num_bytes, checksum=written_table.checksum)
            )
        return replace(entry, segments=tuple(segments))

    return changed


@pytest.mark.parametrize("seed", range(6))
def test_a_cleared_bit_in_a_filter_is_found(folder: Path, seed: int) -> None:
    ds = build(folder)
    assert ds.validate_index("i", sample="all").state == "sound"
    rng = random.Random(seed)
    validated = []

    def clear(zones: Any) -> None:
        if not validated:
            zone = rng.randrange(len(zones))
            bits = np.unpackbits(zones.filters[zone].view(np.uint8), bitorder="little")
            bit = rng.choice(np.flatnonzero(bits).tolist())
            zones.filters[zone].view(np.uint8)[bit // 8] ^= 1 << bit % 8
            validated.append(zone)

    ds = rewrite(ds, with_table(clear))
    assert ds.validate_index("i", sample=0).state == "sound"
    first = validated[0] * ITEMS
    with pytest.raises(CorruptIndex, match=rf"the filter of rows {first} to .*part-000.parquet"):
        ds.validate_index("i", sample="all")


def test_a_sample_has_zones_of_the_first_and_the_last_fragment(folder: Path) -> None:
    runs: list[Any] = []
    rewrite(build(folder), with_table(runs.append))
    for number, path in ((0, "part-000.parquet"), (len(runs) - 1, "part-002.parquet")):
        seen: list[Any] = []

        def clear_one(zones: Any, number: int = number, seen: list[Any] = seen) -> None:
            zones.filters[:] = 0 if len(seen) == number else zones.filters
            seen.append(zones)

        with pytest.raises(CorruptIndex, match=path):
            rewrite(build(folder), with_table(clear_one)).validate_index("i", sample=5)


def test_a_missing_null_flag_is_found(folder: Path) -> None:
    def clear(zones: Any) -> None:
        zones.has_null[:] = False

    with pytest.raises(CorruptIndex, match=r"the null flag of rows 0 to 16 of .* excludes a null"):
        rewrite(build(folder), with_table(clear)).validate_index("i", sample="all")


@pytest.mark.parametrize("kind", KINDS)
def test_filters_of_another_column_are_found(folder: Path, kind: str) -> None:
    """Exchange the files of two indices, and let the catalog name another column."""
    ds = rewrite(build(folder, kind), lambda _, entry: replace(entry, column=("other",)))
    assert ds.count_rows("other = 8") == 0
    for count in (1, 16, "all"):
        with pytest.raises(CorruptIndex, match="excludes"):
            ds.validate_index("i", sample=count)
    ds = rewrite(ds, lambda _, entry: replace(entry, column=("text",)))
    with pytest.raises(SchemaMismatch, match=r"when column text was .*, but it is string now"):
        ds.validate_index("i")
    ds = rewrite(ds, lambda _, entry: replace(entry, column=("nowhere",)))
    with pytest.raises(SchemaMismatch, match="which the dataset no longer has"):
        ds.validate_index("i")


@pytest.mark.parametrize(
    ("column", "value"), [("min", 8), ("max", 600), ("null_count", 0), ("zone_length", 99)]
)
def test_too_narrow_key_ranges_are_found(folder: Path, column: str, value: int) -> None:
    def narrow(catalog: Catalog, entry: IndexEntry) -> IndexEntry:
        (segment,) = entry.segments
        path = catalog.path(segment.name, "ranges.arrow")
        data = catalog.read(path, segment.ranges_bytes, segment.ranges_checksum)
        table = read_zone_map(data, path)
        field = table.schema.field(column)
        values = pa.array([value, *table[column].to_pylist()[1:]], field.type)
        table = table.set_column(table.schema.get_field_index(column), field, values)
        os.unlink(path)
        written = write_zone_map(HashingFile(catalog.open_output_stream(path)), [table])
        changed = replace(segment, ranges_bytes=written.num_bytes, ranges_checksum=written.checksum)
        return replace(entry, segments=(changed,))

    ds = rewrite(build(folder), narrow)
    with pytest.raises(CorruptIndex, match=r"the key range of rows .*part-000.parquet excludes"):
        ds.validate_index("i", sample="all")


def test_a_cleared_bit_in_a_global_filter_is_found(folder: Path) -> None:
    def clear(catalog: Catalog, entry: IndexEntry) -> IndexEntry:
        stored = entry.global_filter
        assert stored is not None
        path = catalog.path(stored.segment, "global.sbbf")
        data = catalog.read(path, stored.num_bytes, stored.checksum)
        words = np.frombuffer(Sbbf.from_parquet_bytes(data).to_bytes(), dtype=np.uint32).copy()
        words[np.flatnonzero(words)[0]] = 0
        bloom = Sbbf.from_bytes(words.tobytes())
        os.unlink(path)
        size, checksum = catalog.write(path, bloom.to_parquet_bytes())
        return replace(entry, global_filter=replace(stored, num_bytes=size, checksum=checksum))

    ds = rewrite(build(folder), clear)
    with pytest.raises(CorruptIndex, match="the filter over all keys of rows"):
        ds.validate_index("i", sample="all")


def test_page_maps_of_other_files_are_found(folder: Path) -> None:
    """The files have the same shape, so the pages are where the map says, but hold other rows."""
    path = folder / "part-001.parquet"
    text = pq.read_table(path).to_pylist()
    pq.write_table(pa.Table.from_pylist(text[::-1]), path, row_group_size=60)

    ds = build(folder)
    catalog = ds.opened.catalog
    (entry,) = ds.opened.version.page_maps
    table = load_page_map(catalog, entry).table
    ids = [1 - i if i < 2 else i for i in table["fragment_id"].to_pylist()]
    table = table.set_column(0, table.schema.field(0), pa.array(ids, pa.uint64()))
    page_map = catalog.path(entry.segment, "pages.arrow")
    os.unlink(page_map)
    written = catalog.write(page_map, merge_page_maps([table]))
    exchanged = replace(entry, num_bytes=written[0], checksum=written[1])
    catalog.commit(lambda version: replace(version, page_maps=(exchanged,)))
    ds = zb.dataset(ds.opened.source.root)
    with pytest.raises(CorruptIndex, match="page map"):
        ds.validate_index("i", sample="all")


# Files that changed


def test_changed_and_deleted_files_are_reported(folder: Path) -> None:
    ds = build(folder)
    assert ds.validate_index("i").state == "sound"
    pq.write_table(part(7), folder / "part-001.parquet")
    touch_later(folder / "part-001.parquet")
    os.unlink(folder / "part-002.parquet")
    pq.write_table(part(8), folder / "part-009.parquet")
    for opened in (ds, zb.dataset(folder)):
        validated = opened.validate_index("i", sample="all")
        assert (validated.state, int(validated), validated.zones_read) == (
            "stale",
            ZONES,
            ZONES // FILES,
        )
        assert validated.changed == ("part-001.parquet",)
        assert validated.gone == ("part-002.parquet",)
        assert "stale" in repr(validated)
    ds = zb.dataset(folder)
    ds.optimize.optimize_indices(spark=False)
    validated = ds.validate_index("i", sample="all")
    assert (validated.state, validated.zones_read) == ("sound", ZONES)


def test_validation_lists_files_outside_of_the_dataset(folder: Path) -> None:
    """Validate an index over all files through a dataset of one. Other files are only listed."""
    build(folder)
    # Change the time but not the file, as a copy does.
    touch_later(folder / "part-001.parquet")
    one = zb.dataset([folder / "part-000.parquet"], index_dir=str(index_folder(folder)))
    validated = one.validate_index("i", sample="all")
    assert (validated.state, int(validated), validated.zones_read) == (
        "sound",
        ZONES,
        ZONES // FILES,
    )
    pq.write_table(part(7), folder / "part-001.parquet")
    os.unlink(folder / "part-002.parquet")
    validated = one.validate_index("i", sample=0)
    assert (validated.changed, validated.gone) == (("part-001.parquet",), ("part-002.parquet",))

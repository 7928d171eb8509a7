"""Files that are written again: the same rows and schemas, small pages, and no half files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from helpers import FIXED_TYPES
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from seams import replace_function, set_constant

import zonebloom as zb
from zonebloom.building import complete_files
from zonebloom.building import rewrite as rewrite_module
from zonebloom.cli import main as cli
from zonebloom.errors import (
    ColumnNotFound,
    FragmentChanged,
    FragmentUnreadable,
    HiddenColumnsWarning,
    InvalidArgument,
    NoFragments,
    SourceError,
    UnsupportedType,
)
from zonebloom.parquet import rewritten_file
from zonebloom.parquet.footer import read_footer
from zonebloom.storage.random_access import RandomAccessFile


def files_below(folder: Path) -> dict[str, Path]:
    return {
        str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()
    }


def assert_same_file(before: Path, after: Path) -> None:
    """Compare rows, order, Arrow schema and metadata of two files as pyarrow reads them."""
    old, new = pq.ParquetFile(before), pq.ParquetFile(after)
    assert new.schema_arrow.equals(old.schema_arrow, check_metadata=True)
    assert (new.metadata.metadata or {}).keys() == (old.metadata.metadata or {}).keys()
    assert new.metadata.num_rows == old.metadata.num_rows
    for column, name in enumerate(old.schema_arrow.names):
        # pyarrow cannot compare all types, and NaN differs from itself.
        assert repr(column_values(old, column)) == repr(column_values(new, column)), name


def column_values(file: pq.ParquetFile, column: int) -> list[object]:
    """Return the values of a column, read by the row group.

    pyarrow cannot read dictionaries inside lists from several row groups at once.
    """
    groups = range(file.num_row_groups)
    return [
        value for group in groups for value in file.read_row_group(group).column(column).to_pylist()
    ]


def assert_recommended(path: Path, max_group_rows: int = 1 << 20) -> None:
    file = RandomAccessFile(pafs.LocalFileSystem(), str(path))
    pages = read_footer(file.num_bytes, file.read)
    for number, group in enumerate(pages.row_groups):
        assert group.num_rows <= max_group_rows
        for leaf, chunk in enumerate(group.chunks):
            assert chunk.index_bytes or not group.num_rows
            locations = pages.locations(number, leaf)
            if locations is not None:
                assert np.diff(locations.first_rows).max() <= 2048
    file.close()


def assert_same_dataset(before: Path, after: Path) -> None:
    old_files = {key: path for key, path in files_below(before).items() if "_zonebloom" not in key}
    new_files = files_below(after)
    assert old_files.keys() == new_files.keys()
    for key, path in old_files.items():
        assert_same_file(path, new_files[key])
        assert_recommended(new_files[key])


@pytest.fixture
def orders(tmp_path):
    """Write partition folders, an empty file, and files with other columns and types."""
    folder = tmp_path / "orders"
    for number in range(4):
        part = folder / f"year={2020 + number % 2}" / "month=1"
        part.mkdir(parents=True, exist_ok=True)
        ids = np.arange(number * 10_000, (number + 1) * 10_000)
        table = pa.table({"id": ids, "name": [f"n{i % 7}" for i in ids.tolist()]})
        pq.write_table(table, part / f"{number}.parquet", row_group_size=3000)
    pq.write_table(table.slice(0, 0), folder / "year=2020" / "month=1" / "empty.parquet")
    extra = table.append_column("more", pa.array([[1]] * 10_000))
    extra = extra.set_column(0, "id", extra["id"].cast(pa.int32()))
    pq.write_table(extra, folder / "year=2021" / "month=1" / "wider.parquet", compression="gzip")
    return folder


def test_a_folder_keeps_names_rows_and_schemas(orders, tmp_path):
    progress = []
    with pytest.warns(HiddenColumnsWarning, match="wider"):
        rewritten = zb.rewrite(
            orders, tmp_path / "new", index="id", progress=lambda *counts: progress.append(counts)
        )
    assert_same_dataset(orders, tmp_path / "new")
    assert rewritten.num_rows == 50_000
    assert (50_000, 50_000) in progress
    sizes = {key: path.stat().st_size for key, path in files_below(tmp_path / "new").items()}
    assert {file.path: file.bytes_after for file in rewritten.files} == sizes
    assert rewritten.bytes_before == sum(p.stat().st_size for p in files_below(orders).values())
    ds = zb.dataset(tmp_path / "new")
    (index,) = ds.describe_indices()
    assert (index.column, index.num_fragments_indexed) == ("id", 6)
    assert ds.to_table(filter="id = 12345")["name"].to_pylist() == ["n4"]


PRIMITIVES = [
    *FIXED_TYPES,
    *(pa.bool_(), pa.string(), pa.large_string(), pa.string_view(), pa.binary()),
    *(pa.large_binary(), pa.binary_view(), pa.null(), pa.uuid(), pa.json_()),
    *(pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.string())),
]
NAMES = st.sampled_from(["a", "b", "a.b", "list", "element", "ü", "key_value", " "])


def nested(children):
    fields = st.dictionaries(NAMES, children, min_size=1, max_size=3)
    return st.one_of(
        st.builds(pa.list_, children),
        st.builds(pa.large_list, children),
        st.builds(pa.list_, children, st.integers(1, 3)),
        st.builds(lambda fields: pa.struct(list(fields.items())), fields),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.int32()]), children),
    )


def random_array(kind: pa.DataType, size: int, rng: np.random.Generator) -> pa.Array:
    """Return random values of a type, a fifth of them null, and many of them equal."""
    nulls = pa.array(rng.random(size) < 0.2)
    if isinstance(kind, pa.BaseExtensionType):
        if kind == pa.json_():
            storage = random_array(pa.int64(), size, rng).cast(pa.string())
        else:
            storage = random_array(kind.storage_type, size, rng)
        return pa.ExtensionArray.from_storage(kind, storage)
    if pa.types.is_null(kind):
        return pa.nulls(size)
    if pa.types.is_dictionary(kind):
        return random_array(kind.value_type, size, rng).dictionary_encode().cast(kind)
    if pa.types.is_struct(kind):
        children = [random_array(field.type, size, rng) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if pa.types.is_fixed_size_list(kind):
        values = random_array(kind.value_type, size * kind.list_size, rng)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=nulls)
    if pa.types.is_nested(kind):
        counts = np.where(nulls.to_numpy(zero_copy_only=False), 0, rng.integers(0, 4, size))
        offsets = np.append(0, np.cumsum(counts))
        if pa.types.is_map(kind):
            keys = pa.array(range(int(offsets[-1]))).cast(kind.key_type)
            items = random_array(kind.item_type, int(offsets[-1]), rng)
            offsets = pa.array(offsets, pa.int32(), mask=np.append(nulls, False))
            return pa.MapArray.from_arrays(offsets, keys, items, kind)
        values = random_array(kind.value_type, int(offsets[-1]), rng)
        if pa.types.is_large_list(kind):
            offsets = pa.array(offsets, pa.int64(), mask=np.append(nulls, False))
            return pa.LargeListArray.from_arrays(offsets, values)
        offsets = pa.array(offsets, pa.int32(), mask=np.append(nulls, False))
        return pa.ListArray.from_arrays(offsets, values)
    numbers = rng.integers(0, 100, size)
    if pa.types.is_fixed_size_binary(kind):
        values = [bytes([number]) * kind.byte_width for number in numbers]
    elif pa.types.is_boolean(kind):
        values = (numbers % 2).astype(bool).tolist()
    elif pa.types.is_decimal(kind):
        values = [Decimal(int(number) % 10) for number in numbers]
    elif pa.types.is_floating(kind):
        return pa.array(numbers, mask=nulls.to_numpy(zero_copy_only=False)).cast(kind)
    elif pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        # Times of a date64 are whole days.
        numbers = numbers * (86_400_000 if kind == pa.date64() else 1)
        return pa.array(numbers, width, mask=nulls.to_numpy(zero_copy_only=False)).cast(kind)
    elif pa.types.is_integer(kind):
        values = numbers.tolist()
    else:
        values = [f"text {number}" for number in numbers]
        if "binary" in str(kind):
            values = [value.encode() for value in values]
    array = pa.array(values, kind)
    return pa.array(array.to_pylist(), kind, mask=nulls.to_numpy(zero_copy_only=False))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(
        NAMES,
        st.recursive(st.sampled_from(PRIMITIVES), nested, max_leaves=5),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 6000),
    st.integers(0, 1 << 32),
    st.sampled_from(["1.0", "2.0"]),
    st.booleans(),
)
def test_generated_tables_round_trip(types, size, seed, page_version, stores_schema):
    rng = np.random.default_rng(seed)
    table = pa.table({name: random_array(kind, size, rng) for name, kind in types.items()})
    table = table.replace_schema_metadata({"owner": "me"})
    with tempfile.TemporaryDirectory() as name:
        before, after = Path(name, "a.parquet"), Path(name, "new", "a.parquet")
        try:
            pq.write_table(
                table,
                before,
                row_group_size=2500,
                data_page_version=page_version,
                store_schema=stores_schema,
            )
            pq.read_table(before)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            reject()  # pyarrow cannot write or read some nested types, such as views.
        try:
            zb.rewrite(before, after.parent)
        except UnsupportedType:
            # pyarrow writes views inside structs only as one page.
            assert any(has_nested_views(kind) for kind in types.values())
            assert not after.exists()
            return
        assert_same_file(before, after)
        assert_recommended(after)


def has_nested_views(kind: pa.DataType) -> bool:
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return any("view" in str(field) for field in inner)


def test_dictionaries_are_only_for_values_that_repeat(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "id": rng.permutation(100_000),
            "country": rng.integers(0, 50, 100_000),
            "many": [f"{'x' * 40}{i}" for i in rng.integers(0, 20_000, 100_000)],
            "s": pa.array([{"tag": f"t{i % 5}", "ids": [i, i + 1]} for i in range(100_000)]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    zb.rewrite(tmp_path / "a.parquet", tmp_path / "new")
    group = pq.read_metadata(tmp_path / "new" / "a.parquet").row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    with_dictionary = {c.path_in_schema for c in columns if c.has_dictionary_page}
    assert with_dictionary == {"country", "s.tag"}
    assert_same_file(tmp_path / "a.parquet", tmp_path / "new" / "a.parquet")


@pytest.mark.parametrize(
    ("groups", "option", "expected"),
    [
        ([122_880, 122_880, 5], None, [122_880, 122_880, 5]),
        ([1000] * 200, None, [123_000, 77_000]),
        ([1_500_000], None, [1_048_576, 451_424]),
        ([100_000, 100_000], 60_000, [60_000, 60_000, 60_000, 20_000]),
        ([70_000, 10], 1_000_000, [70_010]),
        ([1_500_000], 1_200_000, [1_200_000, 300_000]),
    ],
)
def test_row_groups_are_kept_joined_or_split(tmp_path, groups, option, expected):
    schema = pa.schema({"id": pa.int64()})
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        first = 0
        for count in groups:
            ids = pa.array(range(first, first + count), pa.int64())
            writer.write_table(pa.table({"id": ids}), row_group_size=count)
            first += count
    zb.rewrite(tmp_path / "a.parquet", tmp_path / "new", row_group_rows=option)
    metadata = pq.read_metadata(tmp_path / "new" / "a.parquet")
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == expected
    assert pq.read_table(tmp_path / "new")["id"].to_pylist() == list(range(first))


def test_row_groups_end_before_they_fill_the_memory(tmp_path, monkeypatch):
    set_constant(monkeypatch, rewritten_file, "MAX_GROUP_BYTES", 1 << 20)
    set_constant(monkeypatch, rewritten_file, "_BATCH_ROWS", 1 << 10)
    table = pa.table({"text": [f"{i}".rjust(1000) for i in range(20_000)]})
    pq.write_table(table, tmp_path / "a.parquet")
    zb.rewrite(tmp_path / "a.parquet", tmp_path / "new")
    metadata = pq.read_metadata(tmp_path / "new" / "a.parquet")
    assert metadata.num_row_groups > 1
    assert pq.read_table(tmp_path / "new").equals(table)


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "lz4", "none", "brotli"])
def test_codecs_are_kept_or_chosen(tmp_path, codec):
    table = pa.table({"a": range(1000), "b": ["b"] * 1000})
    pq.write_table(table, tmp_path / "a.parquet", compression={"a": codec, "b": "snappy"})
    for option, expected in [("source", codec), ("gzip", "gzip"), ("none", "none")]:
        zb.rewrite(tmp_path / "a.parquet", tmp_path / option, compression=option)
        group = pq.read_metadata(tmp_path / option / "a.parquet").row_group(0)
        if expected == "brotli":
            expected = "zstd"
        wanted = "UNCOMPRESSED" if expected == "none" else expected.upper()
        assert group.column(0).compression == wanted
        assert (group.column(1).compression == "SNAPPY") == (option == "source")


def test_files_of_other_writers_keep_their_schemas(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "old").mkdir()
    duckdb.sql(
        f"""COPY (SELECT i AS id, uuid() AS u, i::DECIMAL(9, 2) AS d, [i, NULL] AS l,
        {{'a': i, 'b': 'x'}} AS s, MAP {{'k': i}} AS m, now() AS t, i::TINYINT AS tiny,
        '{{}}'::JSON AS j, i::UTINYINT AS ut, TIME '12:00' AS tm, 'abc'::BLOB AS bl
        FROM range(100) r(i)) TO '{tmp_path}/old/a.parquet' (FORMAT parquet, KV_METADATA
        {{owner: 'me'}})"""
    )
    zb.rewrite(tmp_path / "old", tmp_path / "new")
    assert_same_file(tmp_path / "old" / "a.parquet", tmp_path / "new" / "a.parquet")
    rows = [
        duckdb.sql(f"FROM '{tmp_path}/{name}/a.parquet' ORDER BY id").fetchall()
        for name in ("old", "new")
    ]
    assert rows[0] == rows[1]
    types = [
        duckdb.sql(f"DESCRIBE FROM '{tmp_path}/{name}/a.parquet'").fetchall()
        for name in ("old", "new")
    ]
    assert types[0] == types[1]


def test_types_that_pyarrow_cannot_write_are_refused(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "old").mkdir()
    duckdb.sql(f"COPY (SELECT INTERVAL 1 DAY AS i) TO '{tmp_path}/old/a.parquet' (FORMAT parquet)")
    with pytest.raises(UnsupportedType, match="stores i as INTERVAL"):
        zb.rewrite(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_timestamps_of_int96_are_kept_or_refused(tmp_path):
    moments = pa.array([0, 1_700_000_000_123_456_789, None], pa.timestamp("ns"))
    pq.write_table(
        pa.table({"t": moments}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True
    )
    zb.rewrite(tmp_path / "a.parquet", tmp_path / "new")
    written = pq.ParquetFile(tmp_path / "new" / "a.parquet")
    assert written.schema.column(0).physical_type == "INT96"
    assert written.read()["t"].to_pylist() == moments.to_pylist()
    # pyarrow reads the end of the year 9999, which Spark writes, as a time in 1816.
    late = pa.array([253_402_300_799_000_000], pa.timestamp("us"))
    pq.write_table(
        pa.table({"t": late}), tmp_path / "b.parquet", use_deprecated_int96_timestamps=True
    )
    if pq.read_table(tmp_path / "b.parquet", coerce_int96_timestamp_unit="us")["t"].equals(
        pa.chunked_array([late])
    ):
        with pytest.raises(UnsupportedType, match="INT96"):
            zb.rewrite(tmp_path / "b.parquet", tmp_path / "late")


# Destinations


def test_destinations_in_the_source_or_with_files_are_refused(orders, tmp_path):
    before = {key: path.read_bytes() for key, path in files_below(orders).items()}
    (tmp_path / "link").symlink_to(orders)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for destination, message in [
        (orders, "inside it"),
        (orders / "new", "inside it"),
        (tmp_path / "link" / "new", "inside it"),
        (tmp_path / "full", "is not empty"),
        (tmp_path / "file", "is not a folder"),
        ("s3://bucket/new", "is not a local folder"),
        ("", "names no file"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            zb.rewrite(orders, destination)
    assert before == {key: path.read_bytes() for key, path in files_below(orders).items()}
    assert (tmp_path / "full" / "note.txt").read_text() == "mine"


def test_a_source_never_changes_whatever_the_destination(orders, tmp_path):
    before = {key: path.read_bytes() for key, path in files_below(orders).items()}
    # Datasets that share an index folder have the whole paths of files as their keys.
    shared = zb.dataset(orders, index_dir=tmp_path / "shared")
    zb.rewrite(shared, tmp_path / "new")
    assert_same_dataset(orders, tmp_path / "new")
    # The new folder contains a link to a folder of the source.
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "year=2020").symlink_to(orders / "year=2020")
    with pytest.raises(InvalidArgument, match="is not empty"):
        zb.rewrite(orders, tmp_path / "links")
    # The source contains a link to the folder above the new one.
    (tmp_path / "elsewhere").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "elsewhere" / "a.parquet")
    (orders / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgument, match="inside it"):
        zb.rewrite(orders, tmp_path / "elsewhere" / "new")
    (orders / "link").unlink()
    subtree = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    for source, filesystem in [
        (zb.dataset(orders), None),
        (pads.dataset(orders), None),
        (orders.as_uri(), None),
        ([orders], None),
        ("orders", subtree),
    ]:
        with pytest.raises(InvalidArgument, match="inside it"):
            zb.rewrite(source, orders / "new", filesystem=filesystem)
    with pytest.raises(InvalidArgument, match="is not empty"):
        zb.rewrite(orders, tmp_path)
    assert before == {key: path.read_bytes() for key, path in files_below(orders).items()}


def test_names_that_readers_skip_are_refused(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "_a.parquet")
    with pytest.raises(InvalidArgument, match=r"would skip _a\.parquet"):
        zb.rewrite([tmp_path / "_a.parquet"], tmp_path / "new")


def test_a_file_that_is_named_twice_is_refused(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InvalidArgument, match="twice"):
        zb.rewrite([tmp_path / "a.parquet"] * 2, tmp_path / "new")


def test_names_may_be_as_long_as_the_file_system_allows(tmp_path):
    names = [f"{'x' * 246}{number}.parquet" for number in range(2)]
    (tmp_path / "old").mkdir()
    for number, name in enumerate(names):
        pq.write_table(pa.table({"a": [number]}), tmp_path / "old" / name)
    zb.rewrite(tmp_path / "old", tmp_path / "new")
    assert_same_dataset(tmp_path / "old", tmp_path / "new")


def test_other_sources_are_refused(orders, tmp_path):
    target = tmp_path / "new"
    with pytest.raises(NoFragments):
        zb.rewrite(tmp_path / "nothing", target)
    with pytest.raises(InvalidArgument, match="a table in memory"):
        zb.rewrite(pa.table({"a": [1]}), target)
    csv = tmp_path / "csv"
    csv.mkdir()
    (csv / "a.csv").write_text("a\n1\n")
    with pytest.raises(InvalidArgument, match="only plain Parquet"):
        zb.rewrite(pads.dataset(csv, format="csv"), target)
    with pytest.raises(ColumnNotFound):
        zb.rewrite(orders, target, index=["id", "nothing"])
    with pytest.raises(InvalidArgument, match="filter"):
        zb.rewrite(zb.dataset(orders).filter("id = 5"), target)
    for name, value in [
        ("compression", "zip"),
        ("row_group_rows", 5),
        ("resume", "yes"),
        ("progress", 5),
        ("index", 5),
    ]:
        with pytest.raises(InvalidArgument, match=name):
            zb.rewrite(orders, target, **{name: value})
    assert not target.exists()


def test_delta_tables_are_refused_with_advice(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(tmp_path / "delta"), pa.table({"a": [1]}))
    for source in (str(tmp_path / "delta"), deltalake.DeltaTable(str(tmp_path / "delta"))):
        with pytest.raises(SourceError, match="data_page_row_count_limit=2048"):
            zb.rewrite(source, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_encrypted_and_damaged_files_are_refused_before_anything_is_written(orders, tmp_path):
    (orders / "year=2020" / "month=1" / "2.parquet").write_bytes(b"PAR1 no footer PAR1")
    with pytest.raises(FragmentUnreadable, match=r"2\.parquet"):
        zb.rewrite(orders, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    # pyarrow ignores what follows the fields that it knows. Our parser does not.
    good = (orders / "year=2020" / "month=1" / "0.parquet").read_bytes()
    length = int.from_bytes(good[-8:-4], "little")
    footer = good[-8 - length : -8]
    assert footer.endswith(b"\0")
    damaged = good[: -8 - length] + footer[:-1] + b"\x0f\0"
    (orders / "year=2020" / "month=1" / "2.parquet").write_bytes(
        damaged + (length + 1).to_bytes(4, "little") + b"PAR1"
    )
    with pytest.raises(FragmentUnreadable, match=r"2\.parquet"):
        zb.rewrite(orders, tmp_path / "new")


def test_sources_may_be_files_lists_patterns_and_datasets(orders, tmp_path):
    files = list(files_below(orders).values())
    for number, source in enumerate(
        [files[0], files[:2], f"{orders}/*/*/[12].parquet", zb.dataset(orders)]
    ):
        # Files that are named one by one may lie beside the new folder.
        rewritten = zb.rewrite(
            source, tmp_path / "orders" / f"new{number}" if number < 3 else tmp_path / "new"
        )
        assert len(rewritten.files) == [1, 2, 2, 6][number]
    assert "6 files, 50,000 rows" in str(rewritten)
    assert "<td>" in rewritten._repr_html_() and repr(rewritten).startswith("<Rewritten: 6 files")


# Faults


def fail_at(monkeypatch, key: str, error: BaseException) -> list[str]:
    """Raise an error when a file is rewritten. Return a list of the files that are begun."""
    begun: list[str] = []
    rewrite_file = rewrite_module.rewrite_file

    def rewrite(filesystem, path, *arguments, **options):
        begun.append(os.path.basename(path))
        if path.endswith(key):
            raise error
        rewrite_file(filesystem, path, *arguments, **options)

    replace_function(monkeypatch, rewrite_module, "rewrite_file", rewrite)
    return begun


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_rewrite_is_continued(orders, tmp_path, monkeypatch, error):
    target = tmp_path / "new"
    with monkeypatch.context() as patch:
        fail_at(patch, "wider.parquet", error)
        with pytest.raises(type(error)):
            zb.rewrite(orders, target)
    # Readers of the folder find no rows.
    with pytest.raises(NoFragments):
        zb.dataset(target)
    # Readers of the folder find no rows.
    with pytest.raises(NoFragments):
        zb.dataset(target)
    staging = target / ".zonebloom-rewrite"
    complete = {key for key in files_below(staging) if key.endswith(".parquet")}
    assert 0 < len(complete) < 6
    assert not [key for key in files_below(staging) if key.endswith(".partial")]
    for key in complete:
        assert_same_file(orders / key, staging / key)
    with pytest.raises(InvalidArgument, match="interrupted rewrite"):
        zb.rewrite(orders, target)
    with pytest.raises(InvalidArgument, match="other options"):
        zb.rewrite(orders, target, compression="zstd", resume=True)
    # A file whose source changed is written again, and so is one that was truncated.
    first, second = sorted(complete)[:2]
    pq.write_table(pa.table({"id": [5], "name": ["new"]}), orders / first)
    with open(staging / second, "r+b") as file:
        file.truncate(100)
    # A crash leaves a part of a line.
    with open(staging / ".list", "a") as file:
        file.write('{"path": "year')
    with monkeypatch.context() as patch:
        begun = fail_at(patch, "nothing", error)
        rewritten = zb.rewrite(orders, target, resume=True)
    assert sorted(begun) == sorted(
        os.path.basename(key)
        for key in files_below(orders)
        if key not in complete or key in (first, second)
    )
    assert {file.path for file in rewritten.files if file.was_complete} == complete - {
        first,
        second,
    }
    assert_same_dataset(orders, target)
    with pytest.raises(InvalidArgument, match="is not empty"):
        zb.rewrite(orders, target, resume=True)


@pytest.fixture
def begun_rewrite(orders, tmp_path, monkeypatch):
    """Interrupt a rewrite of `orders` into ``new``. Return the paths of its complete files."""
    with monkeypatch.context() as patch:
        fail_at(patch, "wider.parquet", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            zb.rewrite(orders, tmp_path / "new")
    staging = tmp_path / "new" / ".zonebloom-rewrite"
    return [key for key in files_below(staging) if key.endswith(".parquet")]


def test_a_continued_rewrite_keeps_no_rows_of_deleted_files(orders, tmp_path, begun_rewrite):
    new = tmp_path / "new"
    (orders / begun_rewrite[0]).unlink()
    # A kill leaves such a file.
    partial = new / ".zonebloom-rewrite" / "year=2020" / "month=1" / ".empty.parquet.partial"
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(b"PAR1")
    zb.rewrite(orders, new, resume=True)
    assert_same_dataset(orders, new)


@pytest.mark.parametrize("place", [".zonebloom-rewrite", ""])
def test_a_continued_rewrite_does_not_delete_files_of_others(
    orders, tmp_path, begun_rewrite, place
):
    new = tmp_path / "new"
    mine = new / place / begun_rewrite[0]
    (orders / begun_rewrite[0]).unlink()
    mine.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"mine": [1]}), mine)
    with pytest.raises(InvalidArgument, match=r"is not a file of the source; move it"):
        zb.rewrite(orders, new, resume=True)
    assert pq.read_table(mine).column_names == ["mine"]
    mine.unlink()
    (new / place / "link").symlink_to(orders)
    with pytest.raises(InvalidArgument, match=r"link is not a file of the source"):
        zb.rewrite(orders, new, resume=True)


def test_a_rewrite_that_stopped_while_files_moved_is_continued(orders, tmp_path, monkeypatch):
    replace, moved = os.replace, []

    def stop(source, target):
        if ".zonebloom-rewrite" not in os.fspath(target):
            if len(moved) == 2:
                raise KeyboardInterrupt
            moved.append(target)
        replace(source, target)

    with monkeypatch.context() as patch:
        replace_function(patch, complete_files.os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            zb.rewrite(orders, tmp_path / "new")
    rewritten = zb.rewrite(orders, tmp_path / "new", resume=True)
    assert all(file.was_complete for file in rewritten.files)
    assert_same_dataset(orders, tmp_path / "new")
    assert not (tmp_path / "new" / ".zonebloom-rewrite").exists()


def test_a_file_written_again_with_its_size_and_time_is_read_again(orders, tmp_path, begun_rewrite):
    path = orders / begun_rewrite[0]
    status, data = path.stat(), path.read_bytes()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    rewritten = zb.rewrite(orders, tmp_path / "new", resume=True)
    complete = {file.path for file in rewritten.files if file.was_complete}
    assert complete == set(begun_rewrite[1:])


def test_a_rewrite_is_not_continued_while_it_runs(orders, tmp_path, monkeypatch):
    rewrite_file = rewrite_module.rewrite_file
    errors = []

    def rewrite(*arguments, **options):
        if not errors:
            errors.append(None)
            for resume in [True, False]:
                with pytest.raises(InvalidArgument, match="another rewrite writes") as error:
                    zb.rewrite(orders, tmp_path / "new", resume=resume)
                errors.append(error.value)
        rewrite_file(*arguments, **options)

    replace_function(monkeypatch, rewrite_module, "rewrite_file", rewrite)
    zb.rewrite(orders, tmp_path / "new")
    assert len(errors) == 3
    assert_same_dataset(orders, tmp_path / "new")


def test_a_killed_rewrite_leaves_no_half_file(tmp_path):
    source, target = tmp_path / "old", tmp_path / "new"
    source.mkdir()
    table = pa.table({"id": np.random.default_rng(0).permutation(1_000_000)})
    for number in range(6):
        pq.write_table(table, source / f"{number}.parquet", row_group_size=130_000)
    program = "import sys, zonebloom as zb; zb.rewrite(sys.argv[1], sys.argv[2])"
    process = subprocess.Popen([sys.executable, "-c", program, str(source), str(target)])
    staging = target / ".zonebloom-rewrite"
    while process.poll() is None and not list(staging.glob("*.parquet")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for path in staging.glob("*.parquet"):
        assert pq.read_table(path).equals(table)
    if staging.exists():
        zb.rewrite(source, target, resume=True)
    assert_same_dataset(source, target)


@pytest.mark.parametrize("data", [None, b"", b"not Parquet" * 100])
def test_a_file_that_changes_meanwhile_is_not_kept(orders, tmp_path, monkeypatch, data):
    rewrite_file = rewrite_module.rewrite_file
    named_files = []

    def change(path):
        if data is None:
            pq.write_table(pa.table({"id": [1]}), path)
        else:
            Path(path).write_bytes(data)

    def rewrite(filesystem, path, target, options, *, report, require_unchanged):
        is_changed = path.endswith("wider.parquet")
        if is_changed and data is not None:
            # The file changes before it is read. It then looks damaged.
            change(path)

        def change_and_report(rows):
            report(rows)
            if is_changed:
                change(path)
                named_files.extend(files_below(tmp_path / "new"))

        rewrite_file(
            filesystem,
            path,
            target,
            options,
            report=change_and_report,
            require_unchanged=require_unchanged,
        )

    replace_function(monkeypatch, rewrite_module, "rewrite_file", rewrite)
    with pytest.raises(FragmentChanged, match="wider"):
        zb.rewrite(orders, tmp_path / "new")
    key = "year=2021/month=1/wider.parquet"
    assert key not in named_files and key not in files_below(tmp_path / "new")


def test_a_failed_first_file_leaves_no_folder(tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with monkeypatch.context() as patch:
        fail_at(patch, "a.parquet", OSError(28, "No space left on device"))
        with pytest.raises(OSError, match="No space"):
            zb.rewrite(tmp_path / "a.parquet", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    zb.rewrite(tmp_path / "a.parquet", tmp_path / "new")


def test_errors_of_writing_name_the_new_file(tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    tables = []

    def fail_after_the_sample(table):
        tables.append(table)
        if len(tables) > 1:
            raise OSError(28, "No space left on device")
        return table

    replace_function(monkeypatch, rewritten_file, "_with_equal_dictionaries", fail_after_the_sample)
    with pytest.raises(FragmentUnreadable, match=r"cannot write .*new.*No space.*make room"):
        zb.rewrite(tmp_path / "a.parquet", tmp_path / "new")


def test_two_rewrites_into_one_folder_do_not_mix(orders, tmp_path):
    results: list[object] = []

    def run():
        try:
            results.append(zb.rewrite(orders, tmp_path / "new"))
        except InvalidArgument as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(result, InvalidArgument) for result in results) == 1
    assert_same_dataset(orders, tmp_path / "new")


def test_a_new_rewrite_does_not_mix_with_files_of_one_that_just_ended(orders, tmp_path):
    zb.rewrite(orders, tmp_path / "new")
    before = files_below(tmp_path / "new")
    (tmp_path / "new" / ".zonebloom-rewrite").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    for resume in (True, False):
        with pytest.raises(InvalidArgument, match="is not empty"):
            zb.rewrite(tmp_path / "a.parquet", tmp_path / "new", resume=resume)
    assert files_below(tmp_path / "new") == before


def test_a_complete_file_that_is_deleted_is_not_left_out(orders, tmp_path, monkeypatch):
    move_all = complete_files.CompleteFiles.move_all
    deleted = []

    def delete_one_and_move(self, keys):
        deleted.append(min(keys))
        os.remove(self.path_of(deleted[0]))
        move_all(self, keys)

    with monkeypatch.context() as patch:
        replace_function(patch, complete_files.CompleteFiles, "move_all", delete_one_and_move)
        with pytest.raises(FragmentUnreadable, match=r"was deleted before it moved.*resume=True"):
            zb.rewrite(orders, tmp_path / "new")
    rewritten = zb.rewrite(orders, tmp_path / "new", resume=True)
    assert [file.path for file in rewritten.files if not file.was_complete] == deleted
    assert_same_dataset(orders, tmp_path / "new")


# The command


def test_the_command_rewrites_indexes_and_says_what_to_do_next(orders, tmp_path, capsys):
    pytest.importorskip("click")
    target = tmp_path / "new"
    assert cli.main(["rewrite", str(orders), str(target), "--index", "id,name"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["file", "rows", "before", "after"]
    assert sorted(line[0] for line in lines[1:]) == sorted(files_below(orders))
    assert "6 files, 50,000 rows" in err and "look up: zonebloom lookup" in err
    assert {index.column for index in zb.dataset(target).describe_indices()} == {"id", "name"}
    assert cli.main(["rewrite", str(orders), str(target)]) == 1
    assert "is not empty" in capsys.readouterr().err
    options = ["--compression=zstd", "--row-group-rows=5000", "--output=json"]
    assert cli.main(["rewrite", str(orders), str(tmp_path / "json"), *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["num_rows"], len(document["files"]), document["indices"]) == (50_000, 6, [])
    assert document["bytes_after"] == sum(
        path.stat().st_size for path in files_below(tmp_path / "json").values()
    )
    assert cli.main(["rewrite", str(orders), str(tmp_path / "x"), "--row-group-rows=1"]) == 2

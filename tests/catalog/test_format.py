"""The format that docs/format.md describes is the format that zonebloom writes and reads.

`format_reader` is written by the rules of the page alone, and finds the same zones.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from support import format_reader
from support.e2e_helpers import array_of, numbered, raw_values, scalar_of, write_files
from support.format_decryption import decrypt_folder
from support.format_writer import FILTERS, LISTING, write_index
from support.helpers import GOLDEN_KEYS, PLAIN_TYPES, ROOT, copy_golden, index_folder
from support.pages import Page

import zonebloom as zb
from zonebloom.errors import IndexNotUsedWarning, StaleIndexWarning

PAGE = ROOT / "docs" / "format.md"
TYPES = [
    *PLAIN_TYPES,
    pa.dictionary(pa.int16(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_binary()),
]

Ranges = dict[str, list[tuple[int, int]] | None]


def found_by_zonebloom(ds: zb.Dataset, folder: Path, column: str, key: pa.Scalar) -> Ranges:
    """Return the rows of each file that may hold a key, in the form of `format_reader.find`."""
    items = ds.index_statistics(f"{column}_idx")["number_of_items"]
    rows = ds.key_ranges(column).select(["fragment_id", "path"]).to_pylist()
    paths = {row["fragment_id"]: row["path"] for row in rows}
    names = {i: os.path.relpath(path, folder) for i, path in paths.items()}
    ranges: Ranges = {name: [] for name in names.values()}
    keys = pa.array([key], key.type)
    for pair in sorted(
        ds.search_many(column, keys).read_all().to_pylist(), key=lambda pair: pair["zone"] or 0
    ):
        name, zone = names[pair["fragment_id"]], pair["zone"]
        if zone is None:
            ranges[name] = None
        else:
            of_file = ranges[name]
            assert of_file is not None
            num_rows = pq.ParquetFile(paths[pair["fragment_id"]]).metadata.num_rows
            of_file.append((zone * items, min(zone * items + items, num_rows)))
    return ranges


def found_by_reader(folder: Path, index_dir: Path, column: str, key: pa.Scalar) -> Ranges:
    files = {
        path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.parquet"))
    }
    return format_reader.find(index_dir, files, column, key)


def assert_agree(folder: Path, column: str, keys: list[pa.Scalar], **options: Any) -> Ranges:
    """Check that the plain reader finds what zonebloom finds. Return the last result."""
    ds = zb.dataset(folder, **options)
    result: Ranges = {}
    for key in keys:
        result = found_by_reader(folder, Path(ds.index_dir), column, key)
        assert result == found_by_zonebloom(ds, folder, column, key), key
    return result


def value_type_of(arrow_type: pa.DataType) -> pa.DataType:
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


@pytest.mark.many
@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
@pytest.mark.parametrize("arrow_type", TYPES, ids=str)
def test_the_reader_finds_the_same_zones_for_every_type(tmp_path, arrow_type, kind):
    value_type = value_type_of(arrow_type)
    raws = raw_values(value_type, 110)
    rows = [None if row % 11 == 5 else raw for row, raw in enumerate(raws[:100])]
    tables = [
        numbered(start, 50, key=array_of(arrow_type, rows[start : start + 50])) for start in (0, 50)
    ]
    write_files(tmp_path / "data", tables)
    zb.dataset(tmp_path / "data").create_scalar_index("key", kind, number_of_items=16, spark=False)
    # Parquet stores some types as others, such as date64 as date32.
    stored_type = value_type_of(zb.dataset(tmp_path / "data").schema.field("key").type)
    sample = [*raws[:8], *raws[60:68], *raws[100:]]
    keys = [scalar_of(value_type, raw).cast(stored_type) for raw in sample]
    assert_agree(tmp_path / "data", "key", keys)


def test_zeros_and_nan_are_found_alike(tmp_path):
    values = [1.5, -0.0, 2.5, None, 0.0, 3.5, float("nan"), -1.0]
    write_files(tmp_path / "data", [pa.table({"key": pa.array(values, pa.float64())})])
    zb.dataset(tmp_path / "data").create_scalar_index("key", number_of_items=2, spark=False)
    keys = [pa.scalar(value, pa.float64()) for value in (0.0, -0.0, 1.5, 7.5, float("nan"))]
    assert assert_agree(tmp_path / "data", "key", keys) == {"part-000.parquet": None}
    assert assert_agree(tmp_path / "data", "key", keys[:1]) == {
        "part-000.parquet": [(0, 2), (4, 6)]
    }


def orders(first: int, rows: int) -> pa.Table:
    """Return rows whose column ``few`` repeats one value in each zone, so its filters fold."""
    ids = np.random.default_rng(first).permutation(np.arange(first, first + rows))
    few = pa.array([None if i % 5 == 0 else f"customer {i // 40 % 3}" for i in range(rows)])
    return pa.table({"id": ids, "few": few})


def write(folder: Path, number: int, table: pa.Table) -> Path:
    (path,) = write_files(folder / f"day={number}", [table])
    return path


def refresh(folder: Path) -> None:
    zb.dataset(folder).optimize.optimize_indices(spark=False)


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        *itertools.product(["BLOOMFILTER"], [{}, {"fold": False}]),
        *itertools.product(["HASH"], [{}, {"probability": 0.2}]),
    ],
    ids=str,
)
def test_the_reader_agrees_after_refreshes_merges_and_changes(tmp_path, kind, parameters):
    """Segments are added and merged, filters have several sizes, and files change or vanish."""
    folder = tmp_path / "data"
    keys = [pa.scalar(i, pa.int64()) for i in (0, 7, 333, 500, 1007, 1777, 5000)]
    names = [pa.scalar(f"customer {i}") for i in range(4)]
    write(folder, 0, orders(0, 330))
    options = {"number_of_items": 40, "spark": False, **parameters}
    zb.dataset(folder).create_scalar_index(["id", "few"], kind, **options)
    for number in range(1, 4):
        write(folder, number, orders(500 * number, 45))
        refresh(folder)
    assert_agree(folder, "id", keys)
    assert_agree(folder, "few", names)
    write(folder, 1, orders(500, 46))
    (folder / "day=2/part-000.parquet").unlink()
    write(folder, 9, orders(5000, 3))
    with pytest.warns(StaleIndexWarning):
        result = assert_agree(folder, "id", keys)
    assert (result["day=1/part-000.parquet"], result["day=9/part-000.parquet"]) == (None, None)
    refresh(folder)
    assert_agree(folder, "id", keys)
    result = assert_agree(folder, "few", names)
    assert None not in result.values() and "day=2/part-000.parquet" not in result


def test_only_times_or_bytes_prove_that_a_file_is_unchanged(tmp_path):
    small, large = orders(0, 100), orders(0, 300_000)
    for number, table in enumerate((small, small, large)):
        write(tmp_path / "data", number, table)
    zb.dataset(tmp_path / "data").create_scalar_index("id", number_of_items=1000, spark=False)
    key = [pa.scalar(-1, pa.int64())]
    paths = [tmp_path / f"data/day={number}/part-000.parquet" for number in range(3)]
    assert list(assert_agree(tmp_path / "data", "id", key).values()) == [[], [], []]
    for path in paths:
        os.utime(path, ns=(1_700_000_000_000_000_001,) * 2)
    with pytest.warns(StaleIndexWarning):
        result = assert_agree(tmp_path / "data", "id", key)
    # The digest covers all bytes of the small files only.
    assert list(result.values()) == [[], [], None]
    # Other bytes of the same size, with the old time.
    status = paths[0].stat()
    paths[0].write_bytes(paths[0].read_bytes()[:-9] + bytes(9))
    os.utime(paths[0], ns=(status.st_mtime_ns,) * 2)
    assert not format_reader.is_fresh(paths[0], entry_of(tmp_path / "data", 0))
    assert format_reader.is_fresh(paths[1], entry_of(tmp_path / "data", 1))


def entry_of(folder: Path, number: int) -> dict[str, Any]:
    version = format_reader.newest_version(index_folder(folder))
    assert version is not None
    return version[1][f"day={number}/part-000.parquet"]


GOLDEN_IDS = [pa.scalar(i, pa.int64()) for i in (0, 7919, 15838, 59383, 67302, 75221, -3)]
GOLDEN_NAMES = [pa.scalar(name) for name in ("n31-0", "n62-0", "n31-500", "n62-500", "n0")]


def test_the_reader_agrees_on_a_folder_that_was_written_before(tmp_path):
    folder, index_dir = copy_golden(tmp_path, "plain")
    ds = zb.dataset(folder)
    ds.drop_index("id_zones")
    for column, keys in (("id", GOLDEN_IDS), ("name", GOLDEN_NAMES)):
        for key in keys:
            result = found_by_reader(folder, index_dir, column, key)
            assert None not in result.values()
            assert result == found_by_zonebloom(ds, folder, column, key)


def test_the_reader_agrees_on_an_encrypted_folder_that_it_decrypts(tmp_path):
    folder, index_dir = copy_golden(tmp_path, "sealed")
    result = found_by_reader(folder, index_dir, "id", GOLDEN_IDS[1])
    assert set(result.values()) == {None}
    encryption = zb.Encryption("golden", GOLDEN_KEYS)
    ds = zb.dataset(folder, encryption=encryption)
    ds.drop_index("id_zones")
    decrypt_folder(index_dir, tmp_path / "clear", GOLDEN_KEYS)
    for column, column_keys in (("id", GOLDEN_IDS), ("name", GOLDEN_NAMES)):
        for key in column_keys:
            result = found_by_reader(folder, tmp_path / "clear", column, key)
            assert result == found_by_zonebloom(ds, folder, column, key)
            assert None not in result.values()


@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_the_reader_finds_the_zones_with_a_null(tmp_path, kind):
    folder = tmp_path / "data"
    rows = [None if 30 <= i < 35 or i in (50, 99) else i for i in range(100)]
    write(folder, 0, pa.table({"id": pa.array(rows, pa.int32())}))
    write(folder, 1, pa.table({"id": pa.array(range(7), pa.int32())}))
    options = {"number_of_items": 10, "spark": False}
    zb.dataset(folder).create_scalar_index("id", kind, **options)
    null = pa.scalar(None, pa.int32())
    assert found_by_reader(folder, index_folder(folder), "id", null) == {
        "day=0/part-000.parquet": [(30, 40), (50, 60), (90, 100)],
        "day=1/part-000.parquet": [],
    }
    assert len(zb.dataset(folder).search("id IS NULL").at_most) == 30


def change_document(index_dir: Path, old: bytes, new: bytes) -> None:
    """Replace a text in the newest document of an index folder, and correct its checksum."""
    path = max((index_dir / "versions").glob("*.json"))
    head, _, tail = re.split(rb'(?<="checksum": ")([0-9a-f]{32})', path.read_bytes(), maxsplit=1)
    head, tail = head.replace(old, new), tail.replace(old, new)
    path.write_bytes(head + xxhash.xxh3_128_hexdigest(head + tail).encode() + tail)


@pytest.mark.parametrize("is_newer", [True, False])
def test_the_reader_uses_the_version_before_a_newer_or_damaged_one(tmp_path, is_newer):
    folder = tmp_path / "data"
    write(folder, 0, orders(0, 100))
    zb.dataset(folder).create_scalar_index("id", number_of_items=10, spark=False)
    write(folder, 1, orders(100, 100))
    refresh(folder)
    keys = [pa.scalar(i, pa.int64()) for i in (7, 107)]
    assert None not in assert_agree(folder, "id", keys).values()
    if is_newer:
        change_document(index_folder(folder), b'"format_version": 1', b'"format_version": 2')
    else:
        (document,) = index_folder(folder).glob("versions/*2.json")
        document.write_bytes(document.read_bytes()[:-9])
    with pytest.warns(IndexNotUsedWarning), pytest.warns(StaleIndexWarning):
        ranges = assert_agree(folder, "id", keys)
    assert ranges["day=0/part-000.parquet"] is not None
    assert ranges["day=1/part-000.parquet"] is None


def test_an_index_folder_of_its_own_has_whole_paths_as_keys(tmp_path):
    folder, index_dir = tmp_path / "data", tmp_path / "index"
    write(folder, 0, orders(0, 100))
    ds = zb.dataset(folder, index_dir=str(index_dir))
    ds.create_scalar_index("id", number_of_items=10, spark=False)
    (path,) = folder.rglob("*.parquet")
    ranges = format_reader.find(index_dir, {str(path): path}, "id", pa.scalar(-1, pa.int64()))
    assert ranges == {str(path): []}


@pytest.mark.parametrize("kind", ["BLOOMFILTER", "HASH"])
def test_files_of_one_encrypted_index_may_have_several_keys(tmp_path, kind):
    folder, keys = tmp_path / "data", {"old": bytes(16), "new €": bytes(range(24))}
    write(folder, 0, orders(0, 600))
    ds = zb.dataset(folder, encryption=zb.Encryption("old", keys))
    options = {"number_of_items": 20, "spark": False}
    ds.create_scalar_index("id", kind, **options)
    write(folder, 1, orders(1000, 600))
    ds = zb.dataset(folder, encryption=zb.Encryption("new €", keys))
    ds.optimize.optimize_indices(spark=False)
    index_dir = index_folder(folder)
    tables = [*index_dir.glob("*/*/bloom*"), *index_dir.glob("*/*/hash*")]
    heads = {path.read_bytes()[8:64].rstrip(b"\0") for path in tables}
    assert heads == {key_id.encode() for key_id in keys}
    decrypt_folder(index_dir, tmp_path / "clear", keys)
    for key in (pa.scalar(i, pa.int64()) for i in (0, 7, 599, 600, 1007, 1599)):
        ranges = found_by_reader(folder, tmp_path / "clear", "id", key)
        assert ranges == found_by_zonebloom(ds, folder, "id", key)
        assert None not in ranges.values()


@pytest.mark.slow
def test_zonebloom_uses_an_index_that_the_page_taught_to_write(tmp_path):
    folder = tmp_path / "data"
    values = np.random.default_rng(0).permutation(1000).tolist()
    for number in range(2):
        ids = [None if i % 50 == 0 else i for i in values[500 * number : 500 * (number + 1)]]
        write(folder, number, pa.table({"id": pa.array(ids, pa.int64())}))
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.parquet")}
    write_index(tmp_path / "_zonebloom" / "data", files, "id")
    ds = zb.dataset(folder)
    (index,) = ds.describe_indices()
    assert (index.num_zones, index.num_fragments_indexed, index.num_rows_indexed) == (10, 2, 1000)
    assert ds.validate_index("id_idx") == 10
    assert_agree(folder, "id", [pa.scalar(i, pa.int64()) for i in (1, 2, 50, 777, -1)])
    assert len(ds.search("id = -1").at_most) < 500
    assert ds.count_rows("id IS NULL") == 20
    write(folder, 2, orders(5000, 100).select(["id"]))
    refresh(folder)
    assert zb.dataset(folder).version == 2
    result = assert_agree(folder, "id", [pa.scalar(5007, pa.int64())])
    assert len(result) == 3 and None not in result.values()


# The page


def without_random_parts(text: str) -> str:
    """Return the text with placeholders for random names, checksums, times and sizes."""
    text = re.sub(r"(?m)^(mtime_ns|ctime_ns|seen_at|inode|size)( +)[0-9]+$", r"\1\2NUMBER", text)
    text = re.sub(r"'(num_bytes|ranges_bytes)': [0-9]+", r"'\1': NUMBER", text)
    text = re.sub(r"[0-9-]{10}T[0-9:]{8}\+00:00", "TIME", text)
    text = re.sub(r"\b(?![0-9]{20}\b)(?:[0-9a-f]{32}|[0-9a-f]{16})\b", "HEX", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


class ExamplePage(Page):
    """A page whose varying output is compared too, apart from its random parts."""

    num_compared = 0

    def _checked(self, match: re.Match[str], output: str, where: str) -> str:
        assert without_random_parts(output) == without_random_parts(match["body"]), where
        self.num_compared += 1
        return super()._checked(match, output, where)


def test_the_example_of_the_page_is_what_a_build_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ExamplePage(PAGE)
    page.run()
    assert page.num_compared == page.text.count("```text")


@pytest.fixture
def written_folders(tmp_path) -> list[Path]:
    """Return index folders with every kind of file that a build or a merge writes."""
    encryption = zb.Encryption("2026", {"2026": bytes(16)})
    folders = []
    for kind, keys in (("BLOOMFILTER", None), ("BLOOMFILTER", encryption), ("HASH", None)):
        data = tmp_path / f"{kind}-{keys is None}"
        write(data, 0, orders(0, 100))
        ds = zb.dataset(data, encryption=keys)
        options = {
            "global_filter": True,
            "number_of_items": 10,
            "spark": False,
        }
        ds.create_scalar_index(["id", "few"], kind, **options)
        write(data, 1, orders(100, 100))
        ds.optimize.optimize_indices(spark=False)
        folders.append(index_folder(data))
    return folders


def keys_of(value: Any) -> set[str]:
    """Return the keys of all objects in a JSON value."""
    if isinstance(value, list):
        return set[str]().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*map(keys_of, value.values()))


def test_the_page_names_everything_that_a_build_writes(written_folders):
    names: set[str] = set()
    patterns: set[str] = set()
    for path in (path for folder in written_folders for path in folder.rglob("*.*")):
        data = path.read_bytes()
        if path.parent.name == "versions":
            assert re.fullmatch(r"[0-9]{20}(-[0-9a-f]{16}\.arrow|\.json)", path.name)
            patterns.add(path.suffix)
        else:
            assert re.fullmatch(SEGMENT_NAME, path.parent.name)
            names.add(path.name)
        if path.suffix == ".json":
            names |= keys_of(json.loads(data))
        elif data.startswith(b"ARROW1"):
            schema = pa.ipc.open_file(data).schema
            names |= {*schema.names, *(key.decode() for key in schema.metadata)}
        elif path.suffix != ".sbbf":
            assert data[:8] in (b"ZBSEALED", b"ZBBUCKET")
            names.add(data[:8].decode())
    assert patterns == {".json", ".arrow"}
    assert {"bloomfilter.arrow", "bloomfilter_item", "sealed_by"} <= names
    assert {"hash.buckets", "ZBBUCKET"} <= names
    # Names in the output of the example alone are not explained.
    text = re.sub(r"(?ms)^```.*?^```$", "", PAGE.read_text(encoding="utf-8"))
    in_code = set(re.findall(r"`([^`\n]+)`", text))
    assert names <= in_code | {name.rpartition("/")[2] for name in in_code}
    assert SEGMENT_NAME in in_code


def test_the_page_names_the_format_of_written_folders(tmp_path):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "0.parquet")
    zb.dataset(tmp_path).create_scalar_index("id", spark=False)
    (document,) = index_folder(tmp_path).glob("versions/*.json")
    written = str(json.loads(document.read_bytes())["format_version"])
    page = PAGE.read_text(encoding="utf-8")
    numbers = re.findall(r"`format_version` is at most (\d+)|`zonebloom_format` \| `(\d+)`", page)
    assert numbers == [(written, ""), ("", written)]


# The pattern of the page.
SEGMENT_NAME = "[0-9a-f]{16}(-(all|keys|pages|[0-9]+|[0-9a-f]{8}))+"


@pytest.mark.parametrize("schema", [FILTERS, LISTING], ids=["filters", "listing"])
def test_the_page_has_the_columns_of_a_table_in_their_order(schema):
    page = PAGE.read_text(encoding="utf-8")
    places = [page.index(f"\n| `{field.name}` | {field.type} |") for field in list(schema)[1:]]
    assert places == sorted(places)


def test_the_files_by_the_page_do_not_use_zonebloom():
    for name in ("reader", "writer", "decryption"):
        code = (ROOT / "tests" / "support" / f"format_{name}.py").read_text(encoding="utf-8")
        imports = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
        allowed = {"pyarrow", "xxhash", "cryptography", "support", *sys.stdlib_module_names}
        assert set(imports) <= allowed

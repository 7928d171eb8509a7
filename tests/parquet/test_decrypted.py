"""Test that encrypted files of PyArrow, read page by page, hold the rows that were written."""

from __future__ import annotations

import base64
import functools
import json
import pickle
import random
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption
from support.helpers import cases
from support.seams import set_constant

import zonebloom as zb
from zonebloom import RowRanges
from zonebloom.base.memory_cache import MEMORY_CACHE
from zonebloom.catalog import freshness
from zonebloom.errors import FragmentUnreadable, InvalidArgument, ZoneBloomError
from zonebloom.parquet import leaf_reader
from zonebloom.parquet.decrypted_file import DecryptedFile
from zonebloom.sources.discovery import discover_source
from zonebloom.sources.fragment_rows import open_rows
from zonebloom.storage.files import ReadCounter
from zonebloom.storage.store import identities

ROWS, GROUP, PAGE = 6_000, 2_500, 250
KEY = b"0123456789abcdef"
NAMES = ["id", "text", "number", "pair", "list"]


class Kms(encryption.KmsClient):
    """A KMS that wraps keys with the name of their master key. ``requests`` are these names."""

    requests: ClassVar[list[str]] = []
    refused_ids: ClassVar[set[str]] = set()

    def __init__(self, config):
        super().__init__()

    def wrap_key(self, key_bytes, master_key_identifier):
        return base64.b64encode(master_key_identifier.encode() + b"|" + key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        self.requests.append(master_key_identifier)
        if master_key_identifier in self.refused_ids:
            raise PermissionError(master_key_identifier)
        master, key = base64.b64decode(wrapped_key).split(b"|", 1)
        assert master.decode() == master_key_identifier
        return key


def present(value: Any) -> Any:
    assert value is not None
    return value


@pytest.fixture(autouse=True)
def reset_kms(monkeypatch: pytest.MonkeyPatch) -> None:
    set_constant(monkeypatch, Kms, "requests", [])
    set_constant(monkeypatch, Kms, "refused_ids", set())


@functools.cache
def rows(number: int = 0) -> pa.Table:
    generator = np.random.default_rng(number)
    ids = generator.permutation(ROWS)
    return pa.table(
        {
            "id": ids,
            "text": [None if i % 7 == 0 else f"text {i % 50}" for i in ids],
            "number": generator.random(ROWS),
            "pair": [{"a": i, "b": str(i)} for i in ids.tolist()],
            "list": [list(range(i % 3)) for i in ids.tolist()],
        }
    )


def write(path: Path, table: pa.Table, properties: Any, **options: Any) -> None:
    options = {"row_group_size": GROUP, "max_rows_per_page": PAGE, **options}
    pq.write_table(table, path, encryption_properties=properties, **options)


def by_kms(**options: Any) -> Any:
    if not options.get("uniform_encryption"):
        options["column_keys"] = {"ids": ["id", "pair.b"], "texts": ["text", "list.list.element"]}
    configuration = encryption.EncryptionConfiguration("footer", **options)
    factory = encryption.CryptoFactory(Kms)
    return factory.file_encryption_properties(encryption.KmsConnectionConfig(), configuration)


def by_one(**options: Any) -> Any:
    return encryption.create_encryption_properties(KEY, **options)


def read(path: Path, keys: zb.ParquetKeys, names=NAMES, wanted=None, filesystem=None):
    """Return the rows, read page by page, and the number of bytes read."""
    source = discover_source(str(path), "parquet", filesystem, None, rows().schema, keys)
    source, counter = replace(source, file_format=None, parquet_keys=keys), ReadCounter()
    (identity,) = source.identities()
    reader = open_rows(source, source.fragments[0], present(identity), None, counter)
    assert reader is not None
    try:
        groups = reader.row_groups(RowRanges([(0, ROWS)]) if wanted is None else wanted)
        parts = [reader.read(number, names, inside) for number, _, inside in groups]
    finally:
        reader.close()
    return pa.concat_tables(parts), counter.num_bytes


def kinds() -> list[dict[str, Any]]:
    generator = random.Random(17)
    cases_of_options = []
    for number in range(cases(200, quick=24)):
        cases_of_options.append(
            {
                "how": {
                    "uniform_encryption": generator.random() < 0.3,
                    # Each combination occurs in a quarter of the cases.
                    "plaintext_footer": number % 2 == 0,
                    "encryption_algorithm": ["AES_GCM_V1", "AES_GCM_CTR_V1"][number // 2 % 2],
                    "double_wrapping": generator.random() < 0.5,
                    "data_key_length_bits": generator.choice([128, 192, 256]),
                },
                "written": {
                    "use_dictionary": generator.random() < 0.5,
                    "data_page_version": generator.choice(["1.0", "2.0"]),
                    "compression": generator.choice(["none", "snappy", "zstd", "lz4", "gzip"]),
                    "write_page_index": generator.random() < 0.5,
                    "write_page_checksum": generator.random() < 0.5,
                },
            }
        )
    return cases_of_options


@pytest.mark.parametrize("kind", kinds(), ids=str)
def test_decrypted_pages_hold_the_written_rows(tmp_path, kind):
    path, table = tmp_path / "0.parquet", rows()
    write(path, table, by_kms(**kind["how"]), **kind["written"])
    theirs = encryption.CryptoFactory(Kms).file_decryption_properties(
        encryption.KmsConnectionConfig()
    )
    assert pq.read_table(path, decryption_properties=theirs).equals(table)
    keys = zb.ParquetKeys(Kms)
    assert read(path, keys)[0].equals(table)
    ranges = RowRanges([(3, 4), (PAGE - 1, PAGE + 1), (GROUP - 1, GROUP + 1), (ROWS - 1, ROWS)])
    wanted = table.take(ranges.rows())
    assert read(path, keys, wanted=ranges)[0].equals(wanted)
    # The second read reuses the page locations of the first.
    selected_rows, num_bytes = read(path, keys, ["id", "text"], ranges)
    assert selected_rows.equals(wanted.select(["id", "text"]))
    assert num_bytes < path.stat().st_size / 4


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_encrypted_row_groups_are_read_whole_if_kernels_lack_their_codec(
    tmp_path, plaintext_footer
):
    path, table = tmp_path / "0.parquet", rows()
    write(path, table, by_kms(plaintext_footer=plaintext_footer), compression="brotli")
    ranges = RowRanges([(3, 4), (PAGE - 1, PAGE + 1), (GROUP - 1, GROUP + 1), (ROWS - 1, ROWS)])
    assert read(path, zb.ParquetKeys(Kms), wanted=ranges)[0].equals(table.take(ranges.rows()))
    write(path, table, by_one(), compression="brotli")
    assert read(path, zb.ParquetKeys(KEY), wanted=ranges)[0].equals(table.take(ranges.rows()))


def test_a_lookup_reads_pages_and_asks_for_each_key_once(tmp_path):
    write(tmp_path / "0.parquet", rows(), by_kms(double_wrapping=False), write_page_index=True)
    keys = zb.ParquetKeys(Kms)
    ds = zb.dataset(tmp_path, parquet_keys=keys)
    ds.create_scalar_index("id", number_of_items=PAGE, plaintext=True, spark=False)
    Kms.requests.clear()
    expression = pc.field("id") == 4242
    for _ in range(3):
        result = ds.to_table(["id", "number"], filter=expression)
        assert result.equals(rows().filter(expression).select(["id", "number"]))
    # `number` is not encrypted, and `text` was not read.
    assert sorted(Kms.requests) == ["footer", "ids"]
    plan = ds.scanner(["id", "number"], filter=expression).analyze_plan()
    assert 0 < plan.stats.data_bytes < (tmp_path / "0.parquet").stat().st_size / 10
    assert not plan.stats.whole_row_groups
    # Encrypted files have no page map, because pages read by a map are not decrypted.
    index = Path(ds.index_dir)
    assert list(index.rglob("bloomfilter.arrow")) and not list(index.rglob("pages.arrow"))


def test_columns_whose_key_is_refused_are_left_to_pyarrow(tmp_path, monkeypatch):
    write(tmp_path / "0.parquet", rows(), by_kms(double_wrapping=False), write_page_index=True)
    ds = zb.dataset(tmp_path, parquet_keys=zb.ParquetKeys(Kms))
    ds.create_scalar_index("id", number_of_items=PAGE, plaintext=True, spark=False)
    set_constant(monkeypatch, Kms, "refused_ids", {"texts"})
    ds = zb.dataset(tmp_path, parquet_keys=zb.ParquetKeys(Kms))
    assert ds.to_table(["id"], filter="id = 42").to_pylist() == [{"id": 42}]
    with pytest.raises(FragmentUnreadable, match=r"0\.parquet: texts"):
        ds.to_table(["id", "text"], filter="id = 42")


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("is_clear", [True, False])
def test_one_key_may_encrypt_all_columns_with_an_aad_prefix(tmp_path, is_stored, is_clear):
    path, table = tmp_path / "0.parquet", rows()
    properties = by_one(aad_prefix=b"a", store_aad_prefix=is_stored, plaintext_footer=is_clear)
    write(path, table, properties, write_page_index=True)
    keys = zb.ParquetKeys(KEY, aad_prefix=b"a")
    assert read(path, keys)[0].equals(table)
    ds = zb.dataset(path, parquet_keys=keys)
    ds.create_scalar_index("id", plaintext=True, spark=False)
    assert ds.count_rows("id = 42") == 1
    for wrong in (zb.ParquetKeys(KEY, aad_prefix=b"b"), zb.ParquetKeys(KEY[::-1], aad_prefix=b"a")):
        with pytest.raises(FragmentUnreadable):
            read(path, wrong)
        with pytest.raises(FragmentUnreadable, match=r"0\.parquet"):
            zb.dataset(path, parquet_keys=wrong).to_table()
    if is_stored:
        assert read(path, zb.ParquetKeys(KEY))[0].equals(table)
    pq.write_table(table, path)
    with pytest.raises(FragmentUnreadable, match="it is not encrypted"):
        read(path, zb.ParquetKeys(KEY))
    # With a KMS, files that are not encrypted can be read, as in PyArrow.
    assert read(path, zb.ParquetKeys(Kms))[0].equals(table)


def check_damaged(path: Path, table: pa.Table, keys: zb.ParquetKeys, damaged: bytes) -> bool:
    """Return whether reading a damaged file fails. Assert that it returns the right rows if not."""
    path.write_bytes(damaged)
    try:
        result = read(path, keys, ["id", "text", "number"])[0]
    except FragmentUnreadable:
        return True
    assert result.equals(table.select(["id", "text", "number"]))
    return False


# AES_GCM_CTR_V1 does not authenticate values, so only checksums can reveal damage to them.
@pytest.mark.parametrize("algorithm", ["AES_GCM_V1", "AES_GCM_CTR_V1"])
@pytest.mark.parametrize("is_clear", [True, False])
def test_changed_bytes_are_noticed(tmp_path, algorithm, is_clear):
    path, table = tmp_path / "0.parquet", rows().slice(0, 2000)
    properties = by_one(encryption_algorithm=algorithm, plaintext_footer=is_clear)
    write(path, table, properties, write_page_index=True, write_page_checksum=True)
    whole, generator = path.read_bytes(), random.Random(5)
    noticed = 0
    for _ in range(cases(1000, quick=150)):
        position = generator.randrange(4, len(whole) - 4)
        changed = bytes([whole[position] ^ 1 << generator.randrange(8)])
        noticed += check_damaged(
            path, table, zb.ParquetKeys(KEY), whole[:position] + changed + whole[position + 1 :]
        )
    # The remaining changes are in columns that are not read, or in statistics.
    assert noticed > 40


def test_pages_cannot_be_exchanged(tmp_path):
    path, other_path = tmp_path / "0.parquet", tmp_path / "1.parquet"
    table = rows().select(["id", "number"]).append_column("text", rows()["text"])
    options: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
    write(path, table, by_one(plaintext_footer=True), **options)
    write(other_path, table, by_one(plaintext_footer=True), **options)
    whole, other = path.read_bytes(), other_path.read_bytes()
    keys = zb.ParquetKeys(KEY)
    local = pafs.LocalFileSystem()
    (identity,) = identities(local, [str(path)])
    with DecryptedFile(local, str(path), present(identity), ReadCounter()) as file:
        located = file.pages(keys)
        chunks = [located.locations(*number) for number in [(0, 0), (0, 1), (1, 0)]]
    (first, second, *_), (other_column, *_), (other_group, *_) = (
        present(pages).starts.tolist() for pages in chunks
    )
    sizes = {size for pages in chunks for size in present(pages).sizes[:2].tolist()}
    # All pages have one size, so the size does not reveal an exchange.
    (size,) = sizes
    for start in (second, other_column, other_group):
        swapped = bytearray(whole)
        swapped[first : first + size] = whole[start : start + size]
        assert check_damaged(path, table, keys, bytes(swapped))
    with_other_page = whole[:first] + other[first : first + size] + whole[first + size :]
    assert check_damaged(path, table, keys, with_other_page)
    assert not check_damaged(path, table, keys, whole)


def test_a_store_reads_only_ranges(tmp_path):
    path, table = tmp_path / "0.parquet", rows()
    for has_index in (True, False):
        write(path, table, by_kms(), write_page_index=has_index)
        store = fsspec.filesystem("file")
        for names in (NAMES, ["id"]):
            ranges = RowRanges([(7, 9), (GROUP + 1, GROUP + 2)])
            result, num_bytes = read(path, zb.ParquetKeys(Kms), names, ranges, store)
            assert result.equals(table.take(ranges.rows()).select(names))
        assert num_bytes < path.stat().st_size / (2 if has_index else 1)


def test_other_engines_read_by_the_same_keys(tmp_path):
    write(tmp_path / "0.parquet", rows(), by_kms())
    ds = zb.dataset(tmp_path, parquet_keys=zb.ParquetKeys(Kms))
    expected = pl.DataFrame(rows())
    for indexed in (False, True):
        if indexed:
            ds.create_scalar_index("id", plaintext=True, spark=False)
        assert ds.to_polars().collect().equals(expected)
        condition = pl.col("id").is_in([3, 4242])
        assert ds.to_polars().filter(condition).collect().equals(expected.filter(condition))
        result = duckdb.sql("SELECT id, text FROM ds WHERE id = 4242").fetchall()
        assert result == expected.filter(pl.col("id") == 4242).select("id", "text").rows()


def test_pyarrow_reads_by_the_same_keys(tmp_path):
    write(tmp_path / "0.parquet", rows(), by_kms())
    keys = zb.ParquetKeys(Kms, encryption.KmsConnectionConfig(key_access_token="token"))
    for parquet_keys in (keys, pickle.loads(pickle.dumps(zb.ParquetKeys(Kms)))):
        ds = pads.dataset(tmp_path, format=parquet_keys.format)
        assert ds.to_table().equals(rows())
        assert zb.dataset(ds, parquet_keys=parquet_keys).to_table().equals(rows())
        assert "0123456789abcdef" not in repr(parquet_keys)
    options = keys.format.default_fragment_scan_options
    by_options = pads.ParquetFileFormat(
        dictionary_columns=["text"], default_fragment_scan_options=options
    )
    ds = pads.dataset(tmp_path, format=by_options)
    assert zb.dataset(ds, parquet_keys=keys).to_table().equals(ds.to_table())


@pytest.mark.parametrize(
    "arguments",
    [(b"short",), (KEY.decode(),), (None,), (KEY, 5), (KEY, None, "text"), (Kms, None, b"prefix")],
    ids=str,
)
def test_invalid_keys_are_refused_and_not_shown(arguments):
    with pytest.raises(InvalidArgument) as caught:
        zb.ParquetKeys(*arguments)
    assert "short" not in str(caught.value)


def test_decoded_pages_are_used_by_the_keys_that_decrypted_them_alone(tmp_path, monkeypatch):
    set_constant(monkeypatch, leaf_reader, "_MAX_UNCACHED_ROWS", 0)
    path = tmp_path / "0.parquet"
    write(path, rows(), by_kms(double_wrapping=False), write_page_index=True, use_dictionary=False)
    freshness.wait_for_rest(
        file for file in identities(pafs.LocalFileSystem(), [str(path)]) if file is not None
    )
    keys = zb.ParquetKeys(Kms)
    ds = zb.dataset(tmp_path, parquet_keys=keys)
    ds.create_scalar_index("id", number_of_items=PAGE, plaintext=True, spark=False)
    expected = rows().filter(pc.field("id") == 42)["text"]
    MEMORY_CACHE.clear()
    for _ in range(3):
        assert ds.lookup("id", [42])["text"].equals(expected)
        plan = ds.scanner(["text"], filter="id = 42").analyze_plan()
    assert plan.stats.data_bytes == 0
    set_constant(monkeypatch, Kms, "refused_ids", {"texts"})
    assert ds.lookup("id", [42])["text"].equals(expected)
    for other_keys in (zb.ParquetKeys(Kms), zb.ParquetKeys(KEY), None):
        with pytest.raises(ZoneBloomError):
            zb.dataset(tmp_path, parquet_keys=other_keys).lookup("id", [42])


def test_an_error_of_a_kms_client_is_not_repeated():
    class Refusing:
        def unwrap_key(self, wrapped_key, master_key_identifier):
            raise PermissionError("token=SECRET was refused")

    keys = zb.ParquetKeys(lambda connection: Refusing())
    material = {
        "keyMaterialType": "PKMT1",
        "internalStorage": True,
        "wrappedDEK": "",
        "masterKeyID": "a",
        "doubleWrapping": False,
    }
    with pytest.raises(FragmentUnreadable, match="PermissionError") as raised:
        keys.find_key(json.dumps(material).encode(), is_column_key=True)
    assert "SECRET" not in "".join(traceback.format_exception(raised.value))
    assert raised.value.__context__ is None

"""Test that a dataset pickled to another process has the same files, rows and index, and no key."""

from __future__ import annotations

import concurrent.futures
import copy
import functools
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyspark.cloudpickle
import pytest
from obstore.store import LocalStore
from pyarrow import feather
from pyarrow.parquet import encryption

import zonebloom as zb
from zonebloom.errors import (
    CorruptIndex,
    FragmentUnreadable,
    IndexNotUsedWarning,
    NotPicklable,
)

ROWS, ZONE = 300, 10
SECRET = "PASSWORD"
KEY = b"0123456789abcdef"
FILTER = pc.field("id") == 42


def find_key(key_id: str) -> bytes:
    """Return a key that the other process can find by itself."""
    return {"2026": KEY}[key_id]


class Kms(encryption.KmsClient):
    """A KMS that wraps a key by reversing it."""

    def __init__(self, config: Any):
        super().__init__()

    def wrap_key(self, key: bytes, master: str) -> bytes:
        return key[::-1].hex().encode()

    def unwrap_key(self, wrapped: bytes, master: str) -> bytes:
        text = wrapped if isinstance(wrapped, str) else wrapped.decode()
        return bytes.fromhex(text)[::-1]


class KeyHolder:
    """A function that contains its key."""

    key = KEY

    def __call__(self, key_id: str) -> bytes:
        return self.key


def rows(number: int = 0) -> pa.Table:
    ids = list(range(number * ROWS, (number + 1) * ROWS))
    return pa.table({"id": ids, "day": [f"day {i % 7}" for i in ids]})


def write(folder: Path, files: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        pq.write_table(rows(number), folder / f"{number}.parquet")
    return folder


def build(ds: zb.Dataset, kind: str = "BLOOMFILTER") -> zb.Dataset:
    ds.create_scalar_index("id", kind, number_of_items=ZONE, spark=False)
    return ds


def facts(ds: zb.Dataset) -> dict[str, Any]:
    """Return the properties and results that must be the same in every process."""
    scan = ds.scanner(filter=FILTER)
    return {
        "files": ds.files,
        "schema": ds.schema,
        "version": ds.version,
        "rows": ds.to_table(),
        "matches": scan.to_table(),
        "zones": [use.kept_zones for use in scan.plan().indices],
        "text": str(ds),
    }


def unpickled_facts(data: bytes) -> dict[str, Any]:
    return facts(pickle.loads(data))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[concurrent.futures.Executor]:
    """A process with another working directory that imports all modules itself."""
    with concurrent.futures.ProcessPoolExecutor(
        1,
        multiprocessing.get_context("spawn"),
        initializer=os.chdir,
        initargs=(tmp_path_factory.mktemp("elsewhere"),),
    ) as pool:
        yield pool


def partitioned(folder: Path) -> zb.Dataset:
    for number in range(3):
        write(folder / f"part={number}", 1)
    scheme = pads.partitioning(pa.schema([("part", pa.int8())]), flavor="hive")
    return zb.dataset(folder, partitioning=scheme)


def csv_dataset(folder: Path) -> zb.Dataset:
    folder.mkdir()
    (folder / "0.csv").write_text("id;day\n41;a\n42;b\n")
    format = pads.CsvFileFormat(parse_options=pacsv.ParseOptions(delimiter=";"))
    return zb.dataset(pads.dataset(folder, format=format))


def ipc_dataset(folder: Path) -> zb.Dataset:
    folder.mkdir()
    feather.write_feather(rows(), folder / "0.arrow")
    return zb.dataset(folder, format="ipc")


def delta_table(folder: Path) -> zb.Dataset:
    deltalake = pytest.importorskip("deltalake")
    for number in range(3):
        deltalake.write_deltalake(folder, rows(number), mode="append", partition_by="day")
    return zb.dataset(deltalake.DeltaTable(folder))


def iceberg_table(folder: Path) -> zb.Dataset:
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir()
    catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=folder.as_uri())
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema=rows().schema)
    table.append(rows(0))
    table.append(rows(1))
    return zb.dataset(table)


def encrypted_files(folder: Path) -> zb.Dataset:
    folder.mkdir()
    properties = encryption.CryptoFactory(Kms).file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration(footer_key="f", column_keys={"k": ["id", "day"]}),
    )
    pq.write_table(rows(), folder / "0.parquet", encryption_properties=properties)
    sealed = zb.Encryption("2026", find_key)
    return zb.dataset(folder, parquet_keys=zb.ParquetKeys(Kms), encryption=sealed)


def relative(folder: Path, open_it: Callable[[str], zb.Dataset]) -> zb.Dataset:
    write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        return open_it(folder.name)


SOURCES: dict[str, Callable[[Path], zb.Dataset]] = {
    "folder": lambda f: zb.dataset(write(f)),
    "file": lambda f: zb.dataset(write(f) / "0.parquet"),
    "list": lambda f: zb.dataset([write(f) / "0.parquet", f / "1.parquet"]),
    "glob": lambda f: zb.dataset(write(f) / "[01].parquet"),
    "uri": lambda f: zb.dataset(write(f).as_uri()),
    "index_dir": lambda f: relative(f, lambda name: zb.dataset(name, index_dir="own")),
    "relative": lambda f: relative(f, lambda n: zb.dataset(n, filesystem=pafs.LocalFileSystem())),
    "relative arrow": lambda f: relative(f, lambda name: zb.dataset(pads.dataset(name))),
    "partitioned": partitioned,
    "union": lambda f: zb.dataset(write(f), schema="union"),
    "csv": csv_dataset,
    "ipc": ipc_dataset,
    "delta": delta_table,
    "iceberg": iceberg_table,
    "encrypted": encrypted_files,
    "fsspec": lambda f: zb.dataset(
        "lake/rows",
        filesystem=fsspec.filesystem("dir", path=str(write(f / "lake/rows").parents[1])),
    ),
    "obstore": lambda f: zb.dataset("rows", filesystem=LocalStore(write(f / "rows").parent)),
    "memory": lambda f: zb.dataset(
        rows()
        .slice(20, 100)
        .append_column("text", rows()["day"].slice(20, 100).dictionary_encode())
    ),
}


@pytest.mark.many
@pytest.mark.parametrize(
    ("source", "index_kind"),
    [(source, "BLOOMFILTER") for source in SOURCES] + [(next(iter(SOURCES)), "HASH")],
)
def test_another_process_opens_the_same(
    source: str, index_kind: str, tmp_path: Path, elsewhere: concurrent.futures.Executor
):
    ds = build(SOURCES[source](tmp_path / "data"), index_kind)
    wanted = facts(ds)
    assert wanted["rows"].filter(FILTER).equals(wanted["matches"]) and len(wanted["matches"])
    assert all(zones <= 3 for zones in wanted["zones"]) and wanted["zones"]
    data = pickle.dumps(ds)
    assert KEY not in data
    assert elsewhere.submit(unpickled_facts, data).result(60) == wanted
    # The executor pickles its arguments by itself.
    assert elsewhere.submit(facts, ds).result(60) == wanted
    for same in (copy.copy(ds), copy.deepcopy(ds), cloudpickle.loads(cloudpickle.dumps(ds))):
        assert facts(same) == wanted
        assert facts(pickle.loads(pickle.dumps(same))) == wanted
    arrow = pickle.loads(pickle.dumps(ds.filter(FILTER)))
    assert arrow.to_table().equals(wanted["matches"])


def test_later_files_and_indices_are_not_seen(tmp_path: Path):
    ds = zb.dataset(write(tmp_path / "rows"))
    unindexed, indexed = pickle.dumps(ds), pickle.dumps(build(ds))
    ds.create_scalar_index("day", spark=False)
    pq.write_table(rows(3), tmp_path / "rows/3.parquet")
    for data, version in ((unindexed, 0), (indexed, 1)):
        reopened = pickle.loads(data)
        assert (reopened.version, len(reopened.files), reopened.count_rows()) == (
            version,
            3,
            3 * ROWS,
        )
        reopened.refresh()
        assert (reopened.version, len(reopened.files), reopened.count_rows()) == (2, 4, 4 * ROWS)


def test_a_missing_file_is_an_error(tmp_path: Path):
    data = pickle.dumps(build(zb.dataset(write(tmp_path / "rows"))))
    (tmp_path / "rows/1.parquet").unlink()
    with pytest.raises(FragmentUnreadable, match=r"1\.parquet is gone"):
        pickle.loads(data).count_rows()


def test_the_newest_version_replaces_a_missing_one(tmp_path: Path):
    for stale in ("read", "raise"):
        ds = build(zb.dataset(write(tmp_path / stale), stale=stale))
        data = pickle.dumps(ds)
        ds.create_scalar_index("day", spark=False)
        ds.vacuum(timedelta(0))
        if stale == "raise":
            with pytest.raises(CorruptIndex):
                pickle.loads(data)
            continue
        with pytest.warns(IndexNotUsedWarning, match="version 1 .* the newest is used"):
            reopened = pickle.loads(data)
        assert reopened.version > 1 and reopened.count_rows("id = 42") == 1


def test_tables_in_memory_pickle_their_own_rows_and_index(tmp_path: Path):
    table = pa.concat_tables(rows(number) for number in range(300))
    ds = build(zb.dataset(table.slice(40, 10)))
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(ds, 5, buffer_callback=buffers.append)
    assert len(data) + sum(len(buffer.raw()) for buffer in buffers) < 50_000
    reopened = pickle.loads(data, buffers=buffers)
    shared = copy.deepcopy(ds)
    folder, own = Path(ds.index_dir), Path(reopened.index_dir)
    assert folder != own and shared.index_dir == ds.index_dir
    del ds
    assert folder.is_dir() and shared.count_rows("id = 42") == 1
    del shared
    assert not folder.exists()
    build(reopened)
    assert reopened.count_rows("id = 42") == 1
    del reopened
    assert not own.exists()


def with_encryption(keys: Any) -> Callable[[Path], zb.Dataset]:
    return lambda f: build(zb.dataset(write(f), encryption=zb.Encryption("2026", keys)))


def with_parquet_keys(*arguments: Any) -> Callable[[Path], zb.Dataset]:
    return lambda f: zb.dataset(write(f), parquet_keys=zb.ParquetKeys(*arguments))


def one_key(folder: Path) -> zb.Dataset:
    properties = encryption.create_encryption_properties(KEY)
    folder.mkdir()
    pq.write_table(rows(), folder / "0.parquet", encryption_properties=properties)
    return zb.dataset(folder, parquet_keys=zb.ParquetKeys(KEY))


def in_main(function: Any) -> Any:
    """Return the function as if a script or a notebook had defined it."""
    main: Any = sys.modules["__main__"]
    function.__module__, function.__qualname__ = "__main__", function.__name__
    setattr(main, function.__name__, function)
    return function


CONNECTION = encryption.KmsConnectionConfig
REFUSED: dict[str, Callable[[Path], zb.Dataset]] = {
    "mapping": with_encryption({"2026": KEY}),
    "bound method of a mapping": with_encryption({"2026": KEY}.__getitem__),
    "object": with_encryption(KeyHolder()),
    "bound method": with_encryption(KeyHolder().__call__),
    "lambda": with_encryption(lambda key_id: KEY),
    "partial": with_encryption(functools.partial(lambda key, key_id: key, KEY)),
    "function of a notebook": with_encryption(in_main(lambda key_id: KEY)),
    "parquet key": one_key,
    "class in a function": with_parquet_keys(type("Local", (Kms,), {"key": KEY})),
    "access token": with_parquet_keys(Kms, CONNECTION(key_access_token=SECRET)),
    "KMS configuration": with_parquet_keys(Kms, CONNECTION(custom_kms_conf={"a": SECRET})),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_datasets_that_may_hold_keys_in_clear_do_not_pickle(kind: str, tmp_path: Path):
    ds = REFUSED[kind](tmp_path / "data")
    for value in (ds, ds.optimize):
        for dumps in (pickle.dumps, cloudpickle.dumps, pyspark.cloudpickle.dumps):
            with pytest.raises(NotPicklable, match="importable module that finds") as refused:
                dumps(value)
            assert SECRET not in str(refused.value) and KEY.decode() not in str(refused.value)
    # Copies stay in the process, so they are allowed.
    keys = ds.opened.catalog.encryption or ds.opened.source.parquet_keys
    assert copy.copy(keys) is copy.deepcopy(keys) is keys
    for same in (copy.copy(ds), copy.deepcopy(ds)):
        assert same.count_rows(filter=FILTER) == 1


def test_the_keys_of_a_pyarrow_dataset_are_not_pickled(tmp_path: Path):
    one_key(tmp_path / "rows")
    options = pads.ParquetFragmentScanOptions(
        decryption_properties=encryption.create_decryption_properties(KEY)
    )
    format = pads.ParquetFileFormat(default_fragment_scan_options=options)
    ds = zb.dataset(pads.dataset(tmp_path / "rows", format=format))
    assert ds.count_rows(FILTER) == 1
    data = pickle.dumps(ds)
    assert KEY not in data
    with pytest.raises(FragmentUnreadable, match="decrypt"):
        pickle.loads(data).count_rows(FILTER)


def test_results_pickle_or_raise_with_a_reason(tmp_path: Path):
    ds = build(zb.dataset(write(tmp_path / "rows")))
    runs: list[Any] = []
    scan = ds.scanner(filter="id = 42", scan_stats_callback=runs.append)
    assert scan.count_rows() == 1
    for result in (
        ds.search("id = 42"),
        ds.describe_indices(),
        ds.index_statistics("id_idx"),
        ds.validate_index("id_idx"),
        ds.advise("id"),
        ds.locate("id", [42]),
        runs[0],
        scan.explain_plan(),
    ):
        reopened = pickle.loads(pickle.dumps(result))
        assert str(reopened) == str(result)
    result = pickle.loads(pickle.dumps(ds.search("id = 42")))
    assert result.at_most == ds.search("id = 42").at_most
    fragment = next(iter(ds.get_fragments(FILTER)))
    for bound in (scan, scan.plan(), fragment):
        with pytest.raises(NotPicklable, match=f"{type(bound).__name__} objects .* the dataset"):
            pickle.dumps(bound)
        assert copy.copy(bound) is copy.deepcopy(bound) is bound

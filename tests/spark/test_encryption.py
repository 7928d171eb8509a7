"""Encrypted indices on Spark are used with their keys, and no log or plan shows the keys."""

from __future__ import annotations

import base64
import contextlib
import pickle
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption
from pyspark.cloudpickle import dumps
from support.helpers import index_folder
from support.seams import set_constant
from support.spark_data import enabled, files_read, settings

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import IndexNotUsedWarning, InvalidArgument, NotPicklable
from zonebloom.spark.jobs import pickle_for_workers
from zonebloom.spark.pruning.explanation import Reason
from zonebloom.spark.pruning.index_lookup import IndexLookup
from zonebloom.spark.tagging import locate

KEY = b"\0never seen \xff elsewhere, 32 bytes"[:32]
KEYS = zb.Encryption("a", {"a": KEY})
FILES, ROWS = 3, 100


@pytest.fixture
def lake(tmp_path):
    write(tmp_path)
    zb.dataset(tmp_path, encryption=KEYS).create_scalar_index("id", spark=False)
    return str(tmp_path)


def write(folder, **options):
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": ids, "text": [f"t{i}" for i in ids]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=ROWS // 2, **options)


@contextlib.contextmanager
def untold(spark, folder, frames=()):
    """Check that neither event logs nor the plans of the collected frames contain the key."""
    context = spark._jsc.sc()
    log = spark._jvm.org.apache.spark.scheduler.EventLoggingListener(
        "encryption",
        spark._jvm.scala.Option.empty(),
        spark._jvm.java.net.URI(folder.as_uri()),
        context.getConf().set("spark.eventLog.compress", "false"),
        context.hadoopConfiguration(),
    )
    folder.mkdir()
    log.start()
    context.addSparkListener(log)
    try:
        yield
    finally:
        context.listenerBus().waitUntilEmpty()
        context.removeSparkListener(log)
        log.stop()
    log_bytes = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    log_bytes += "".join(frame._jdf.queryExecution().toString() for frame in frames).encode()
    assert b"SparkListenerTaskEnd" in log_bytes and b"id" in log_bytes
    require_no_key(log_bytes)


def require_no_key(data):
    ways = [b"elsewhere, 32", KEY.hex().encode(), str(list(KEY)).encode()[1:-1]]
    # The key may be part of a longer text in base64, at any offset.
    ways += [base64.b64encode(b"x" * before + KEY)[4:-4] for before in range(3)]
    assert not [way for way in ways if way in data]


def function_of_tasks(frame):
    """Return the pickled function that the tasks of a scan run."""
    leaf = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
    fields = leaf.readerFactory().getClass().getDeclaredFields()
    (field,) = [field for field in fields if field.getName().endswith("pickledReadFunc")]
    field.setAccessible(True)
    return bytes(field.get(leaf.readerFactory()))


def test_leaked_keys_are_noticed():
    pickled = pickle_for_workers(KEYS)
    assert pickle.loads(pickled) == KEYS
    for data in (KEY, pickled, base64.b64encode(b"..." + pickled)):
        with pytest.raises(AssertionError):
            require_no_key(data)


def test_scans_and_sessions_use_an_encrypted_index(spark, lake, tmp_path_factory):
    frames = []
    with untold(spark, tmp_path_factory.mktemp("log") / "events", frames):
        frames.append(zs.scan(spark, zb.dataset(lake, encryption=KEYS), "id = 142"))
        assert frames[0].collect() == spark.read.parquet(lake).where("id = 142").collect() != []
    assert zs.explain(frames[0]).scans[0].indices
    with pytest.warns(IndexNotUsedWarning, match="encrypted"):
        assert not zs.explain(zs.scan(spark, lake, "id = 142")).scans[0].indices
    with enabled(spark, encryption=KEYS):
        frame = spark.read.parquet(lake).where("id = 142")
        assert len(frame.collect()) == 1 and files_read(frame) == [1]
    function = function_of_tasks(frames[0])
    assert b"zonebloom" in function
    require_no_key(function)


def test_tasks_get_keys_that_do_not_pickle(spark, tmp_path, tmp_path_factory):
    """Tasks of a build get both kinds of keys, and those that locate keys read encrypted files."""
    sealed = encryption.create_encryption_properties(KEY)
    write(tmp_path, encryption_properties=sealed)
    by_function = zb.Encryption("a", lambda key_id: KEY)
    ds = zb.dataset(tmp_path, encryption=by_function, parquet_keys=zb.ParquetKeys(KEY))
    with pytest.raises(NotPicklable):
        dumps(ds)
    frames = []
    with untold(spark, tmp_path_factory.mktemp("log") / "events", frames):
        ds.create_scalar_index("id", spark=spark)
        frames.append(zs.tag_location(spark.range(142, 144), ds, "id"))
        assert {row.id: row.row_offset for row in frames[0].collect()} == {142: 42, 143: 43}
        keys = spark.range(0, 300, 1).where("id >= 142")
        with pytest.MonkeyPatch.context() as patched:
            # Let tasks read the candidates, and not the driver.
            set_constant(patched, locate, "_MAX_DRIVER_ROWS", -1)
            frames.append(zs.tag_location(keys, ds, "id"))
            assert frames[1].where("row_offset >= 0").count() == 158
    assert ds.count_rows("id = 142") == 1


def test_joins_and_tags_use_an_encrypted_index(spark, lake, tmp_path_factory):
    keys = spark.createDataFrame([(142,), (999,)], "id bigint")
    stored = spark.read.parquet(lake)
    wanted = sorted(keys.join(stored, "id").collect())
    frames = []
    with untold(spark, tmp_path_factory.mktemp("log") / "events", frames):
        ds = zb.dataset(lake, encryption=KEYS)
        frames.append(zs.filter_join(keys, stored, "id", right_index=ds))
        assert sorted(frames[0].collect()) == wanted != []
        frames.append(zs.tag_location(keys, ds, "id"))
        result = {row.id: (row.path, row.row_offset) for row in frames[1].collect()}
        (file,) = zs.files_with_keys(keys, ds, "id").collect()
    assert result == {142: (f"{lake}/1.parquet", 42), 999: (None, None)}
    assert (file.path, file.num_keys) == (f"{lake}/1.parquet", 1)
    with pytest.warns(IndexNotUsedWarning) as warned:
        assert zs.tag_location(keys, lake, "id").where("row_offset = 42").count() == 1
    assert any("encrypted by key 'a'" in str(warning.message) for warning in warned)


def test_the_manager_builds_and_uses_an_encrypted_index(spark, tmp_path):
    lake = tmp_path / "lake"
    lake.mkdir()
    write(lake)
    whole = spark.read.parquet(str(lake))
    wanted = whole.where("id = 142").collect()
    frames = []
    with settings(spark, **{"zonebloom.system.path": str(tmp_path / "system")}):
        manager = zs.IndexManager(spark, encryption=KEYS)
        with untold(spark, tmp_path / "events", frames):
            manager.create_index(str(lake), zs.BFIndexConfig("ids", ["id"]))
            frames.append(manager.apply(whole.where("id = 142")))
            assert frames[0].collect() == wanted != [] and files_read(frames[0]) == [1]
            manager.refresh_index("ids")
            (row,) = manager.indexes().collect()
        assert (row.state, row.numSourceFiles) == ("ACTIVE", FILES)
        with pytest.warns(IndexNotUsedWarning, match="encrypted by key 'a'"):
            assert zb.dataset(lake).opened.version.locked_reason
        require_no_key(b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()))
        # A manager without keys reads all files, and warns about the reason.
        other = zs.IndexManager(spark)
        with pytest.warns(IndexNotUsedWarning, match="encrypted"):
            frame = other.apply(whole.where("id = 142"))
            assert frame.collect() == wanted and files_read(frame) == [FILES]
        assert Reason.DATA_UNREADABLE in other.why_not(whole.where("id = 142")).reasons


def test_a_manager_without_keys_does_not_index_encrypted_files(spark, tmp_path):
    """With a plaintext footer, Spark can read the columns that are not encrypted."""
    lake = tmp_path / "lake"
    lake.mkdir()

    class Kms(encryption.KmsClient):
        def __init__(self, config):
            super().__init__()

        def wrap_key(self, key_bytes, master_key_identifier):
            return base64.b64encode(key_bytes)

    factory = encryption.CryptoFactory(Kms)
    secret = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"x": ["secret"]}, plaintext_footer=True
    )
    sealed = factory.file_encryption_properties(encryption.KmsConnectionConfig(), secret)
    table = pa.table({"id": range(100), "secret": range(100)})
    pq.write_table(table, lake / "a.parquet", encryption_properties=sealed)
    with settings(spark, **{"zonebloom.system.path": str(tmp_path / "system")}):
        config = zs.BFIndexConfig("ids", ["id"])
        with pytest.raises(InvalidArgument, match="are encrypted"):
            zs.IndexManager(spark).create_index(str(lake), config)
        assert not (tmp_path / "system").exists() and not index_folder(lake).exists()
        zs.IndexManager(spark, encryption=KEYS).create_index(str(lake), config)
    result = zb.dataset(lake, encryption=KEYS).scanner(["id"], "id = 42").to_table()
    assert result["id"].to_pylist() == [42]


def test_pruning_refuses_a_key_that_is_no_encryption_and_does_not_show_it():
    with pytest.raises(InvalidArgument, match="encryption is of type str") as raised:
        IndexLookup(None, encryption=cast(Any, "a-secret-key"))
    assert "a-secret-key" not in str(raised.value)

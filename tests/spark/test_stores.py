"""Tables on S3 with the ``fs.s3a`` settings of a session, and paths that cannot be opened."""

from __future__ import annotations

import os
import traceback
import warnings

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from support.seams import set_constant
from support.spark_data import enabled, files_read

import zonebloom as zb
import zonebloom.spark as zs
from zonebloom.errors import ZoneBloomError
from zonebloom.spark import BFIndexConfig, IndexManager
from zonebloom.spark.load import Load, ScanRequest
from zonebloom.spark.managed_indices import SYSTEM_PATH
from zonebloom.storage import paths

SECRET = "SECRET-of-the-session"
FILES, ROWS = 4, 200


@pytest.fixture(scope="module")
def store():
    """Start a server of buckets with its own folder."""
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(spark, conf, store, tmp_path, monkeypatch):
    """Make a bucket whose location only the session's settings tell. Spark reads a local copy.

    Spark's jars lack Hadoop's S3 client, so a mount table maps the bucket to the copy in the JVM.
    """
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    s3 = pafs.S3FileSystem(
        access_key="KEY",
        secret_key=SECRET,
        endpoint_override=store,
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    name = tmp_path.name.replace("_", "-").lower().strip("-")[-40:].strip("-")
    s3.create_dir(name)
    folder = tmp_path / "lake"
    folder.mkdir()
    for number in range(FILES):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table({"id": [*range(number * ROWS, (number + 1) * ROWS)]}), path)
        with s3.open_output_stream(f"{name}/lake/{number}.parquet") as sink:
            sink.write(path.read_bytes())
        # Listings of object stores have times in whole seconds.
        seconds = s3.get_file_info(f"{name}/lake/{number}.parquet").mtime_ns // 10**9
        os.utime(path, (seconds, seconds))
    settings = {
        "fs.s3a.access.key": "KEY",
        f"fs.s3a.bucket.{name}.secret.key": SECRET,
        "fs.s3a.endpoint": f"http://{store}",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.viewfs.overload.scheme.target.s3a.impl": "org.apache.hadoop.fs.LocalFileSystem",
        f"fs.viewfs.mounttable.{name}.link./lake": f"file://{folder}",
        SYSTEM_PATH: f"s3a://{name}/records",
    }
    for key, value in settings.items():
        conf.set(key, value)
    return s3, name


def stored(s3, name):
    """Return all bytes that were written beside the data."""
    infos = s3.get_file_info(pafs.FileSelector(name, recursive=True))
    paths = [info.path for info in infos if info.is_file and not info.path.endswith(".parquet")]
    assert paths
    return b"".join(s3.open_input_stream(path).read() for path in paths)


def test_a_table_on_a_store_is_indexed_and_queried(spark, bucket, capfd):
    s3, name = bucket
    path = f"s3a://{name}/lake"
    # Spark tasks build it, because a session is active.
    ds = zb.dataset(path)
    ds.create_scalar_index("id", "BLOOMFILTER", spark=spark, global_filter=True)
    assert s3.get_file_info(f"{name}/_zonebloom/lake").type == pafs.FileType.Directory

    frames = [zs.scan(spark, path, filter="id = 7")]
    assert [row.id for row in frames[0].collect()] == [7]
    assert "1 of" in str(zs.explain(zs.scan(spark, path, filter="id = 7")).scans[0])
    assert zs.scan(spark, [f"{path}/1.parquet"], filter="id = 207").count() == 1
    frames += [
        zs.prune(spark.read.parquet(path)).where("id = 7"),
        zs.prune(spark.read.parquet(path).where("id = 7")),
    ]
    with enabled(spark):
        frames.append(spark.read.parquet(path).where("id = 7 AND id > 0"))
        for frame in frames[1:]:
            assert [row.id for row in frame.collect()] == [7] and files_read(frame) == [1]

    keys = spark.createDataFrame([(5,), (10_000,)], "id bigint")
    tagged = {row.id: row.path for row in zs.tag_location(keys, path, "id").collect()}
    assert tagged == {5: f"{name}/lake/0.parquet", 10_000: None}
    joined = zs.filter_join(keys, spark.read.parquet(path), "id", right_index=path)
    assert [row.id for row in joined.collect()] == [5]

    manager = IndexManager(spark)
    manager.create_index(path, BFIndexConfig("ids", ["id"]))
    used = manager.apply(spark.read.parquet(path).where("id = 7"))
    assert [row.id for row in used.collect()] == [7] and files_read(used) == [1]
    assert manager.indexes().first().numSourceFiles == FILES
    text = f"{manager!r}{manager.why_not(used)}"
    manager.delete_index("ids")
    manager.vacuum_index("ids")
    assert manager.indexes().collect() == []

    output = capfd.readouterr()
    plans = [frame._jdf.queryExecution().toString() for frame in [*frames, used, joined]]
    all_text = "".join([*plans, text, output.out, output.err])
    assert SECRET not in all_text and SECRET.encode() not in stored(s3, name)


def test_errors_about_settings_contain_no_secrets(spark, bucket):
    _, name = bucket
    spark.conf.set("fs.s3a.endpoint", "http://127.0.0.1:9")
    spark.conf.set("fs.s3a.connection.timeout", "1s")
    with pytest.raises(ZoneBloomError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zb.dataset(f"s3a://{name}/lake")
    error = caught.value
    assert SECRET not in "".join(traceback.format_exception(error)) + repr(error)


PLACES = [
    "wasbs://c@account.blob.core.windows.net/lake",
    "wasb://c@account.blob.core.windows.net/lake",
    "oss://bucket/lake",
    "dbfs:/lake",
    "viewfs://cluster/lake",
    "hdfs://host:8020/lake",
    "other://bucket/lake",
]
ENTRIES = {
    "dataset": lambda spark, path: zb.dataset(path),
    "files": lambda spark, path: zb.dataset([f"{path}/a.parquet"]),
    "index_dir": lambda spark, path: zb.dataset(os.path.dirname(__file__), index_dir=path),
    "scan": lambda spark, path: zs.scan(spark, path, filter="id = 1"),
    "tag_location": lambda spark, path: zs.tag_location(spark.range(1), path, "id"),
    "files_with_keys": lambda spark, path: zs.files_with_keys(spark.range(1), path, "id"),
    "index": lambda spark, path: zs.filter_join(
        spark.range(1), spark.range(1), "id", right_index=path
    ),
    "manager": lambda spark, path: IndexManager(spark).create_index(
        path, BFIndexConfig("ids", ["id"])
    ),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_paths_that_cannot_be_opened_are_named_with_advice(spark, entry, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if entry == "index_dir":
        pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
        monkeypatch.setitem(
            ENTRIES, entry, lambda spark, path: zb.dataset(str(tmp_path), index_dir=path)
        )
    for place in PLACES if entry != "scan" else PLACES[:2]:
        # Spark raises the errors of its own processes as exceptions that contain ours.
        with pytest.raises(Exception if entry == "scan" else ZoneBloomError) as caught:
            ENTRIES[entry](spark, place)
        text = str(caught.value)
        assert place.partition(":")[0] + ":" in text
        assert "give a path in it" in text or "filesystem=" in text
    assert {path.name for path in tmp_path.iterdir()} <= {"a.parquet"}


def test_dbfs_is_read_where_it_is_mounted(spark, tmp_path, monkeypatch):
    set_constant(monkeypatch, paths, "DBFS_MOUNT", str(tmp_path))
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    assert zb.dataset("dbfs:/a.parquet").count_rows() == 2
    assert Load(ScanRequest("dbfs:/a.parquet"), spark).dataset.count_rows() == 2


def test_a_path_with_credentials_is_not_recorded(spark):
    with pytest.raises(ZoneBloomError, match=r"s3://\*\*\*@bucket/lake.*fs\.s3a") as caught:
        IndexManager(spark).create_index(
            f"s3://KEY:{SECRET}@bucket/lake", BFIndexConfig("i", ["id"])
        )
    assert SECRET not in str(caught.value)

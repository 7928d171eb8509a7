"""Test results, requests, bytes and the catalog on a server with S3's protocol on loopback."""

from __future__ import annotations

import os
import posixpath
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from support.helpers import index_folder
from support.snapshot_rows import in_order, rows

import zonebloom as zb
from zonebloom.errors import FragmentUnreadable, NoFragments, SourceError, StaleIndexWarning
from zonebloom.storage import object_store
from zonebloom.storage.store import identities

ROWS = 60_000


def table(seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "id": random.permutation(ROWS) + seed * ROWS,
            "text": pa.array([f"{i:032x}" for i in random.integers(0, 2**60, ROWS)]),
            "x": random.random(ROWS),
        }
    )


def write(filesystem, seed: int) -> None:
    pq.write_table(
        table(seed),
        f"lake/data/part-{seed}.parquet",
        filesystem=filesystem,
        write_page_index=True,
        max_rows_per_page=1024,
        row_group_size=40_000,
        use_dictionary=False,
    )


@pytest.fixture(params=["obstore", "pyarrow alone"])
def reader(request, monkeypatch):
    """Choose pyarrow or obstore to read ranges of objects of pyarrow's S3."""
    object_store._open_bucket.cache_clear()
    if request.param == "pyarrow alone":
        monkeypatch.setitem(sys.modules, "obstore.store", None)
    yield request.param
    object_store._open_bucket.cache_clear()


@pytest.fixture
def s3(s3, reader):
    return s3


@pytest.fixture
def indexed(s3):
    for seed in range(3):
        write(s3, seed)
    dataset = zb.dataset("lake/data", filesystem=s3)
    dataset.create_scalar_index("id", number_of_items=1024, spark=False)
    return dataset


@pytest.mark.slow
def test_lookups_equal_pyarrow_and_read_few_bytes(indexed, s3):
    scan = pads.dataset("lake/data", filesystem=s3, format="parquet")
    size = sum(info.size for info in s3.get_file_info(pafs.FileSelector("lake/data")) if info.size)
    for key in (0, ROWS + 5, 3 * ROWS - 1, 4 * ROWS):
        stats = []
        scanner = indexed.scanner(filter=pc.field("id") == key, scan_stats_callback=stats.append)
        matches = scanner.to_table()
        assert matches.equals(scan.to_table(filter=pc.field("id") == key))
        assert stats[0].data_bytes < size / 20
        # Each zone needs at most the page of the filter's column and the pages of the others.
        assert stats[0].data_reads <= 6


def test_objects_are_read_by_obstore_where_it_is_installed(indexed, s3, reader):
    bucket = object_store.object_reader(s3, *indexed.files)
    assert (bucket is not None) == (reader == "obstore")
    if bucket is not None:
        expected = s3.open_input_file(indexed.files[0]).read_buffer()
        assert bucket.read(indexed.files[0], len(expected)) == expected
        with pytest.raises(OSError, match="at most"):
            bucket.read(indexed.files[0], len(expected) - 1)
        # Files of one file system may lie in several buckets.
        assert object_store.object_reader(s3, "lake/a", "sea/a") is None


OPTIONS = {
    "access_key": "a",
    "secret_key": "b",
    "region": "eu-west-1",
    "scheme": "http",
    "endpoint_override": "127.0.0.1:9",
    "force_virtual_addressing": True,
}


def test_the_options_of_a_file_system_are_read_from_it():
    """Fail if a new pyarrow pickles S3 file systems in another way, and obstore cannot be used."""
    options = object_store.s3_options(pafs.S3FileSystem(**OPTIONS))
    assert {name: options[name] for name in OPTIONS} == OPTIONS
    assert (options["anonymous"], options["session_token"]) == (False, "")
    assert not any(options[name] for name in object_store._UNSUPPORTED_OPTIONS)
    uri = "s3://a:b@bucket/x?region=eu-west-1&scheme=http&endpoint_override=127.0.0.1%3A9"
    options = object_store.s3_options(pafs.FileSystem.from_uri(uri)[0])
    assert all(options[name] == OPTIONS[name] for name in OPTIONS if "virtual" not in name)
    assert object_store.object_reader(pafs.S3FileSystem(**OPTIONS), "bucket/x") is not None


@pytest.mark.parametrize(
    "layout",
    ["S3FileSystem", (), (dict, ()), (dict, ("options",)), (dict, ({"access_key": "a"},))],
)
def test_pyarrow_reads_a_file_system_of_another_layout(layout):
    class Other(pafs.S3FileSystem):
        def __reduce__(self):
            return layout

    assert object_store.object_reader(Other(**OPTIONS), "bucket/x") is None


def test_a_name_with_a_control_character_is_read(s3):
    pq.write_table(raw(0), "lake/a\tb/x.parquet", filesystem=s3)
    ds = zb.dataset("lake/a\tb", filesystem=s3)
    ds.create_scalar_index("id", number_of_items=100, spark=False)
    assert ds.take([0])["id"].to_pylist() == [0]
    assert ds.count_rows("id = 7") == 1


@pytest.mark.slow
def test_credentials_of_a_uri_are_never_shown_or_stored(indexed, s3, endpoint):
    query = f"endpoint_override=http%3A%2F%2F{endpoint}&region=us-east-1"
    uri = f"s3://test:PASSWORD@lake/data?{query}"
    for options in ({}, {"index_dir": "lake/index"}):
        ds = zb.dataset(uri, **options)
        ds.create_scalar_index("id", number_of_items=1024, spark=False)
        texts = [repr(ds), ds._repr_html_(), ds.title, str(ds.search("id = 7"))]
        texts += [ds.scanner(filter="id = 7").analyze_plan(), *ds.files, ds.index_dir]
        assert "PASSWORD" not in "".join(texts)
        assert "data" in ds.title
        files = s3.get_file_info(pafs.FileSelector(ds.index_dir, recursive=True))
        contents = [s3.open_input_file(info.path).read() for info in files if info.is_file]
        assert len(contents) > 2 and b"PASSWORD" not in b"".join(contents)
    s3.delete_file("lake/data/part-0.parquet")
    with pytest.raises(SourceError) as caught:
        ds.to_table(filter="id = 7")
    assert "PASSWORD" not in str(caught.value)
    with pytest.raises(SourceError) as caught:
        zb.dataset(uri.replace("lake/data", "lake/nowhere"))
    assert "nowhere" in str(caught.value) and "PASSWORD" not in str(caught.value)


PATTERNS = {"*.parquet": 3, "part-[!1]*": 2, "**": 3, "?art-1.parquet": 1, "[n]o*": 0}


@pytest.mark.many
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_objects(indexed, s3, endpoint, pattern):
    options = f"endpoint_override=http%3A%2F%2F{endpoint}&region=us-east-1"
    opens = [lambda: zb.dataset(f"lake/data/{pattern}", filesystem=s3)]
    # In a URI, a question mark begins the options.
    if "?" not in pattern:
        opens.append(lambda: zb.dataset(f"s3://test:test@lake/data/{pattern}?{options}"))
    for open_dataset in opens:
        if not PATTERNS[pattern]:
            with pytest.raises(NoFragments, match="no file matches"):
                open_dataset()
            continue
        dataset = open_dataset()
        assert dataset.count_rows() == PATTERNS[pattern] * ROWS
        assert {posixpath.dirname(file) for file in dataset.files} == {"lake/data"}


def raw(seed: int) -> pa.Table:
    """Return rows whose file always has the same size."""
    return pa.table({"id": pa.array(np.arange(1000) + seed * 1000)})


PLAIN = {"compression": "none", "use_dictionary": False, "write_statistics": False}


def test_object_overwritten_within_a_second_is_noticed_by_its_tag(s3):
    """Stores record whole seconds, so only the tag shows a change within a second."""
    while True:
        results = []
        for seed in range(2):
            pq.write_table(raw(seed), "lake/same/a.parquet", filesystem=s3, **PLAIN)
            info = s3.get_file_info("lake/same/a.parquet")
            results.append((info.size, info.mtime_ns, *identities(s3, ["lake/same/a.parquet"])))
        (size, mtime_ns, first), (other_size, other_mtime_ns, second) = results
        assert size == other_size == first.size
        assert first.mtime_ns == mtime_ns
        assert not first.is_still(second)
        if mtime_ns == other_mtime_ns:
            break


def test_an_object_overwritten_with_the_same_size_is_noticed(s3):
    pq.write_table(raw(0), "lake/same/a.parquet", filesystem=s3, **PLAIN)
    dataset = zb.dataset("lake/same", filesystem=s3)
    dataset.create_scalar_index("id", number_of_items=100, spark=False)
    assert dataset.count_rows("id = 7") == 1
    pq.write_table(raw(1), "lake/same/a.parquet", filesystem=s3, **PLAIN)
    for ds in (dataset, zb.dataset("lake/same", filesystem=s3)):
        with pytest.warns(StaleIndexWarning, match="changed since it was indexed"):
            assert ds.count_rows("id = 1007") == 1
        assert ds.count_rows("id = 7") == 0
    # A file that is written again with the same content has the same identity.
    pq.write_table(raw(0), "lake/same/a.parquet", filesystem=s3, **PLAIN)
    assert zb.dataset("lake/same", filesystem=s3).count_rows("id = 7") == 1


@pytest.mark.slow
def test_a_store_that_does_not_answer_raises(s3, endpoint):
    pq.write_table(raw(0), "lake/same/a.parquet", filesystem=s3, **PLAIN)
    deaf = pafs.S3FileSystem(
        access_key="test",
        secret_key="test",
        endpoint_override="127.0.0.1:1",
        scheme="http",
        region="us-east-1",
        connect_timeout=0.5,
        request_timeout=0.5,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
    )
    paths = ["lake/same/a.parquet", "lake/same/b.parquet"]
    assert [identity is None for identity in identities(s3, paths)] == [False, True]
    with pytest.raises(FragmentUnreadable, match=r"cannot look at lake/same/a\.parquet"):
        identities(deaf, paths)


@pytest.mark.slow
def test_an_index_is_copied_to_a_store_and_back(s3, tmp_path):
    local_folder, copied_back = tmp_path / "here", tmp_path / "back"
    local_folder.mkdir()
    for seed in range(2):
        pq.write_table(table(seed), local_folder / f"part-{seed}.parquet")
    zb.dataset(local_folder).create_scalar_index("id", number_of_items=1024, spark=False)
    local = pafs.LocalFileSystem()
    places = [
        (str(local_folder), "lake/up"),
        (str(index_folder(local_folder)), "lake/_zonebloom/up"),
    ]
    for source, target in places:
        pafs.copy_files(source, target, source_filesystem=local, destination_filesystem=s3)
    remote = zb.dataset("lake/up", filesystem=s3)
    assert [index.num_fragments_indexed for index in remote.describe_indices()] == [0]
    remote.optimize.optimize_indices(spark=False)
    assert remote.count_rows("id = 70000") == 1
    assert len(remote.search("id = 70000").at_most) == 1024
    places = [("lake/up", str(copied_back)), ("lake/_zonebloom/up", str(index_folder(copied_back)))]
    for source, target in places:
        os.makedirs(target)
        pafs.copy_files(source, target, source_filesystem=s3, destination_filesystem=local)
    reopened = zb.dataset(copied_back)
    reopened.optimize.optimize_indices(spark=False)
    assert reopened.validate_index("id_idx", sample="all").zones_read == 2 * -(-ROWS // 1024)


def test_a_bucket_is_opened_with_the_keys_that_the_environment_has_now(monkeypatch):
    filesystem = pafs.S3FileSystem(region="eu-west-1", endpoint_override="127.0.0.1:9")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    buckets = []
    for key, token in [("old", "1"), ("new", "1"), ("new", "2"), ("new", "2")]:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
        bucket = object_store.object_reader(filesystem, "bucket/x")
        assert bucket is not None
        config = bucket.store.config
        assert (config["access_key_id"], config["session_token"]) == (key, token)
        buckets.append(bucket)
    assert buckets[2] is buckets[3]


def test_a_delta_table_on_s3(s3, endpoint):
    deltalake = pytest.importorskip("deltalake")
    uri = "s3://lake/some tables/t"
    options = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ENDPOINT_URL": f"http://{endpoint}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
    }
    deltalake.write_deltalake(uri, rows(0, 5000), partition_by=["part"], storage_options=options)
    table = deltalake.DeltaTable(uri, storage_options=options)
    ds = zb.dataset(table, filesystem=s3)
    ds.create_scalar_index("id")
    want = table.to_pyarrow_table().filter(pc.field("id").isin([7, 4000]))
    ds = zb.dataset(deltalake.DeltaTable(uri, storage_options=options), filesystem=s3)
    assert in_order(ds.to_table(filter="id IN (7, 4000)")) == in_order(want)
    assert ds.index_dir == "lake/some tables/t/_zonebloom"

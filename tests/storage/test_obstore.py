"""Test obstore's stores as sources, compared with pyarrow on the same bucket, and as catalogs."""

from __future__ import annotations

import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from obstore.store import AzureStore, HTTPStore, LocalStore, MemoryStore, S3Store

import zonebloom as zb
from bench.store_server import Handler
from zonebloom.catalog.store import Catalog
from zonebloom.errors import (
    CatalogError,
    CommitConflict,
    IndexNotUsedWarning,
    InvalidArgument,
    SourceError,
    StaleIndexWarning,
)
from zonebloom.storage import object_store
from zonebloom.storage.object_store import as_arrow_filesystem
from zonebloom.storage.store import identities, store_of

ROWS = 6_000


def s3_store(endpoint, **options):
    return S3Store(
        endpoint=f"http://{endpoint}",
        access_key_id="test",
        secret_access_key="PASSWORD",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
        **options,
    )


@pytest.fixture
def bucket(s3, endpoint):
    return s3_store(endpoint, bucket="lake")


@pytest.fixture(params=["s3", "memory", "local"])
def store(request, tmp_path):
    if request.param == "s3":
        return request.getfixturevalue("bucket")
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path)


def table(seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table({"id": random.permutation(ROWS) + seed * ROWS, "x": random.random(ROWS)})


def put(store, path: str, seed: int) -> None:
    sink = io.BytesIO()
    pq.write_table(table(seed), sink, write_page_index=True, max_rows_per_page=512)
    store.put(path, sink.getvalue())


@pytest.mark.slow
def test_rows_of_a_store_equal_those_written(store):
    names = ["a b=é", "p%20q/b", "c"]
    for seed, name in enumerate(names):
        put(store, f"data/{name}.parquet", seed)
    ds = zb.dataset("data", filesystem=store, partitioning=None)
    ds.create_scalar_index("id", number_of_items=512, spark=False)
    whole = pa.concat_tables([table(seed) for seed in range(len(names))])
    for key in (0, ROWS + 5, 3 * ROWS - 1, 4 * ROWS):
        stats = []
        scanner = ds.scanner(filter=f"id = {key}", scan_stats_callback=stats.append)
        matches = scanner.to_table()
        assert matches.equals(whole.filter(pa.compute.equal(whole["id"], key)))
        assert stats[0].fragments_read <= 1
        # One request reads the pages of all columns.
        assert stats[0].data_reads == stats[0].fragments_read
    assert ds.to_table().sort_by("id").equals(whole.sort_by("id"))
    # Reopening the folder and opening a list of files both find the index.
    assert zb.dataset("data", filesystem=store, partitioning=None).version == 1
    listed = zb.dataset([file for file in ds.files], filesystem=store, index_dir="index")
    assert listed.count_rows("id = 7") == 1
    ds.optimize.optimize_indices(spark=False)
    ds.vacuum()
    ds.drop_index("id_idx")
    assert ds.count_rows("id = 7") == 1


def test_a_uri_is_below_the_root_of_the_store(bucket, endpoint):
    put(bucket, "data/of/a.parquet", 0)
    inner = s3_store(endpoint, bucket="lake", prefix="data")
    for store in (bucket, inner):
        assert zb.dataset("s3://lake/data/of", filesystem=store).count_rows() == ROWS
    for uri in ("s3://other/data", "gs://other/data"):
        with pytest.raises(InvalidArgument, match="is not in the store"):
            zb.dataset(uri, filesystem=bucket)
    with pytest.raises(InvalidArgument, match="is not in the store"):
        zb.dataset("s3://lake/elsewhere", filesystem=inner)


def test_one_index_serves_all_views_of_a_bucket(bucket, s3):
    for seed in range(3):
        put(bucket, f"data/{seed}.parquet", seed)
    zb.dataset("lake/data", filesystem=s3).create_scalar_index("id", spark=False)
    for ds in (zb.dataset("data", filesystem=bucket), zb.dataset("lake/data", filesystem=s3)):
        # A file whose identity changed since the build would warn, and warnings are errors here.
        assert ds.count_rows(f"id = {ROWS + 5}") == 1
        assert ds.search("id = 7").to_table().num_rows == 1


def test_a_rewritten_object_is_read_whole(store):
    for seed in range(2):
        put(store, f"data/{seed}.parquet", seed)
    ds = zb.dataset("data", filesystem=store)
    ds.create_scalar_index("id", spark=False, number_of_items=512)
    scanner = ds.scanner(filter="id = 7")
    plan = scanner.plan()
    scanner = scanner.planned(plan)
    sink = io.BytesIO()
    pq.write_table(table(0).sort_by("id"), sink)
    store.put("data/0.parquet", sink.getvalue())
    # The file changes after the plan, so the reads themselves raise.
    assert scanner.to_table()["id"].to_pylist() == [7]
    with pytest.warns(StaleIndexWarning):
        assert ds.count_rows("id = 7") == 1
    store.delete("data/0.parquet")
    with pytest.raises(SourceError, match="gone since the dataset was opened"):
        ds.count_rows("id = 7")


def test_identities_of_many_objects_equal_single_ones(store):
    paths = [f"data/{number // 10}/{number:03d}.bin" for number in range(60)]
    for path in paths:
        store.put(path, path.encode())
    store.put("data/3/other.bin", b"")
    filesystem = as_arrow_filesystem(store)
    all_paths = [*paths, "data/6/gone.bin"]
    of_each = [identities(filesystem, [path])[0] for path in all_paths]
    assert identities(filesystem, all_paths) == of_each
    assert of_each[-1] is None
    assert all(identity.size == len(paths[0]) for identity in of_each[:-1])
    assert len({identity.tag for identity in of_each[:-1]}) == len(paths)


class PlainFiles(BaseHTTPRequestHandler):
    """A server that returns ranges of one file under every name."""

    content = b""

    def do_GET(self):
        start, stop = 0, len(self.content)
        if range_header := self.headers.get("Range"):
            first, _, last = range_header.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1, stop)
        self.send_response(206 if range_header else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(self.content)}")
        self.send_header("Last-Modified", "Sun, 22 Nov 2026 12:00:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.content[start:stop])

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format, *arguments):
        pass


@pytest.mark.slow
def test_a_plain_http_server_is_read_file_by_file():
    sink = io.BytesIO()
    pq.write_table(table(0), sink)
    handler = type("Served", (PlainFiles,), {"content": sink.getvalue()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    store = HTTPStore(f"http://127.0.0.1:{server.server_port}", **options)
    # The server has no listings and no tags, so each file needs requests of its own.
    paths = [f"data/{number}.parquet" for number in range(20)]
    with pytest.warns(IndexNotUsedWarning, match="_zonebloom/data cannot be listed"):
        ds = zb.dataset(paths, filesystem=store)
    assert ds.count_rows("id = 7") == len(paths)
    assert ds.take([5])["id"][0] == table(0)["id"][5]
    server.shutdown()


# Commits


def write_at_once(views, names):
    """Build several indices at the same moment, and return the names of the committed ones."""
    barrier = threading.Barrier(len(names))

    def build(view, name):
        ds = zb.dataset(*view[:1], filesystem=view[1])
        barrier.wait()
        try:
            ds.create_scalar_index("id", name=name, spark=False, number_of_items=512)
        except CommitConflict:
            return None
        return name

    with ThreadPoolExecutor(len(names)) as pool:
        results = list(pool.map(build, views, names))
    return {name for name in results if name is not None}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["obstore", "pyarrow", "mixed"])
def test_concurrent_writers_lose_no_commit(bucket, s3, kind):
    put(bucket, "data/a.parquet", 0)
    views = {
        "obstore": [("data", bucket)],
        "pyarrow": [("lake/data", s3)],
        "mixed": [("data", bucket), ("lake/data", s3)],
    }[kind]
    names = [f"idx{number}" for number in range(6)]
    committed = write_at_once(views * len(names), names)
    assert len(committed) > 1
    ds = zb.dataset("data", filesystem=bucket)
    assert {index.name for index in ds.describe_indices()} == committed


def test_only_the_first_of_two_puts_succeeds(bucket, s3):
    stores = [as_arrow_filesystem(MemoryStore()), as_arrow_filesystem(bucket), s3]
    for filesystem in stores:
        path = "lake/versions/1" if filesystem is s3 else "versions/of/store/1"
        store = store_of(filesystem)
        assert store.put_if_absent(path, b"one")
        assert not store.put_if_absent(path, b"two")
        # The object is the writer's own, because its request was sent again.
        assert store.put_if_absent(path, b"one")
        with filesystem.open_input_file(path) as file:
            assert file.read() == b"one"


class Heedless(Handler):
    """A server that ignores conditions and stores whatever it receives."""

    def _put(self, *arguments):
        del self.headers["If-None-Match"]
        super()._put(*arguments)


@pytest.fixture
def heedless(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Heedless, tmp_path, 0))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield s3_store(f"127.0.0.1:{server.server_port}", bucket="lake")
    server.shutdown()


def test_a_store_that_ignores_the_condition_is_noticed(heedless):
    heedless.put("a", b"one")
    heedless.put("a", b"two", mode="create", use_multipart=False)
    assert heedless.get("a").bytes() == b"two"
    store = store_of(as_arrow_filesystem(heedless))
    assert [store.put_if_absent("lake/1", data) for data in (b"1", b"2")] == [True, False]
    put(heedless, "data/a.parquet", 0)
    for name in ("a", "b"):
        ds = zb.dataset("data", filesystem=heedless)
        ds.create_scalar_index("id", name=name, spark=False, number_of_items=512)
    ds = zb.dataset("data", filesystem=heedless)
    assert {index.name for index in ds.describe_indices()} == {"a", "b"}
    assert ds.count_rows("id = 7") == 1


def test_file_systems_without_a_conditional_put_look_first(s3, endpoint, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    of_a_role = pafs.S3FileSystem(region="us-east-1", endpoint_override=endpoint, scheme="http")
    memory = pafs.PyFileSystem(pafs.FSSpecHandler(MemoryFileSystem()))
    for filesystem in (memory, pafs.SubTreeFileSystem("lake", s3)):
        store = store_of(filesystem)
        assert [store.put_if_absent("lake/1", data) for data in (b"1", b"2")] == [True, False]
    assert object_store.object_reader(of_a_role, "lake/1") is None


# Credentials


def test_credentials_of_a_store_are_never_shown(bucket, endpoint):
    put(bucket, "data/a.parquet", 0)
    ds = zb.dataset("s3://lake/data", filesystem=bucket)
    ds.create_scalar_index("id", spark=False)
    texts = [repr(ds), ds._repr_html_(), ds.title, str(ds.search("id = 7"))]
    texts += [ds.scanner(filter="id = 7").analyze_plan(), *ds.files, ds.index_dir]
    contents = [bucket.get(meta["path"]).bytes().to_bytes() for meta in bucket.list().collect()]
    assert "PASSWORD" not in "".join(texts) and b"PASSWORD" not in b"".join(contents)
    closed = {"retry_config": {"max_retries": 0}, "client_options": {"allow_http": True}}
    azure = {"account_name": "a", "endpoint": "http://127.0.0.1:1", "sas_key": "sig=PASSWORD"}
    deaf = [
        s3_store("127.0.0.1:1", bucket="b"),
        AzureStore("c", **azure, **closed),
        HTTPStore("http://user:PASSWORD@127.0.0.1:1/x?sig=PASSWORD", **closed),
    ]
    for store in deaf:
        for source in ("data", ["data/a.parquet"], "s3://user:PASSWORD@lake/x"):
            with pytest.raises((SourceError, InvalidArgument)) as caught:
                zb.dataset(source, filesystem=store)
            text = f"{caught.value!r}{caught.value}{pickle.loads(pickle.dumps(caught.value))}"
            assert "PASSWORD" not in text and "Debug source" not in text
        with pytest.raises(OSError) as failed:
            identities(as_arrow_filesystem(store), ["a"])
        assert "PASSWORD" not in f"{failed.value!r}"
    wrong = s3_store(endpoint, bucket="nowhere")
    with pytest.raises(CatalogError) as caught:
        Catalog(as_arrow_filesystem(wrong), "index").commit(lambda latest: latest)
    assert "PASSWORD" not in str(caught.value)

"""Test how many requests to a store an opening and the first lookup make, and what they return.

A server delays each response, so requests that are sent together overlap. It counts the longest
chain of requests that follow one another.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store
from support.limits import set_limit

import zonebloom as zb
from bench.store_server import BUCKET, Server, serving
from zonebloom.errors import (
    FragmentUnreadable,
    IndexNotUsedWarning,
    SourceError,
    StaleIndexWarning,
    ZoneBloomError,
)

FILES, ROWS = 24, 6_000
# Long enough that requests of one step overlap on a busy machine.
MILLISECONDS = 100
ABSENT = "no such key"


def open_data(server: Server, library: str, **options) -> zb.Dataset:
    if library == "obstore":
        store = S3Store(
            BUCKET,
            access_key_id="a",
            secret_access_key="b",
            region="us-east-1",
            endpoint=f"http://{server.endpoint}",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        return zb.dataset("data", filesystem=store, **options)
    s3 = pafs.S3FileSystem(
        access_key="a",
        secret_key="b",
        region="us-east-1",
        endpoint_override=server.endpoint,
        scheme="http",
    )
    return zb.dataset(f"{BUCKET}/data", filesystem=s3, **options)


def rows_of(file: int) -> pa.Table:
    keys = np.random.default_rng(file).permutation(ROWS) + file * ROWS
    return pa.table(
        {
            "key": [f"{key:08x}" for key in keys.tolist()],
            "at": pa.array(keys, pa.timestamp("ms")),
            "service": [f"service {key % 9}" for key in keys.tolist()],
        }
    )


def write(folder: Path, file: int, table: pa.Table | None = None) -> None:
    options = {"write_page_index": True, "max_rows_per_page": 512, "row_group_size": ROWS // 2}
    path = folder / "data" / f"{file:03d}.parquet"
    pq.write_table(rows_of(file) if table is None else table, path, **options)


@pytest.fixture(scope="module", params=["BLOOMFILTER", "HASH", "BLOOMFILTER segments"])
def folder(request, tmp_path_factory) -> Path:
    """Return a bucket with 24 indexed files."""
    folder = tmp_path_factory.mktemp("bucket")
    (folder / "data").mkdir()
    kind = request.param.split()[0]
    batches = [range(0, 8), range(8, 16), range(16, FILES)]
    if "segments" not in request.param:
        batches = [range(FILES)]
    with serving(folder, 0) as server:
        for batch in batches:
            for file in batch:
                write(folder, file)
            ds = open_data(server, "obstore")
            if batch.start == 0:
                ds.create_scalar_index("key", kind, number_of_items=512, spark=False)
            else:
                ds.optimize.optimize_indices(spark=False)
        (entry,) = ds.opened.catalog.latest().indices.values()
        assert (len(entry.segments) > 1) == (len(batches) > 1)
    return folder


@pytest.fixture
def server(folder):
    with serving(folder, MILLISECONDS) as server:
        yield server


@pytest.fixture
def copy(folder, tmp_path):
    """Serve a copy of the bucket, which the test may change."""
    shutil.copytree(folder, tmp_path / "bucket")
    with serving(tmp_path / "bucket", 0) as server:
        # The copies have other tags, so index them.
        open_data(server, "obstore").optimize.optimize_indices(spark=False)
        yield server


LOOKUPS = {
    "count": lambda ds, key: ds.count_rows(f"key = '{key}'"),
    "table": lambda ds, key: ds.to_table(filter=f"key = '{key}'").to_pylist(),
    "lookup": lambda ds, key: ds.lookup("key", [key]).drop(["key_index"]).to_pylist(),
}


@pytest.mark.many
@pytest.mark.parametrize(
    ("library", "method"),
    [("obstore", "count"), ("obstore", "table"), ("obstore", "lookup"), ("pyarrow", "table")],
)
def test_the_first_lookup_waits_twice(server, library, method):
    file, row = 17, 4_321
    expected = rows_of(file).slice(row, 1).to_pylist()
    key = expected[0]["key"]
    lookup = LOOKUPS[method]
    ds = open_data(server, library)
    server.count_requests()
    result = lookup(ds, key)
    first = server.count_requests()
    assert result == (1 if method == "count" else expected)
    assert first.waits <= 2, first.lines
    # Neither footers nor sizes are asked for again.
    assert not [line for line in first.lines if line.startswith("HEAD")]
    other = rows_of(3).slice(5, 1).to_pylist()
    result = lookup(ds, other[0]["key"])
    assert result == (1 if method == "count" else other)
    assert server.count_requests().waits <= 2
    assert lookup(ds, ABSENT) == (0 if method == "count" else [])
    assert server.count_requests().waits <= 2


@pytest.mark.many
@pytest.mark.parametrize("library", ["obstore", "pyarrow"])
def test_an_opening_lists_the_folder_once(server, library):
    server.count_requests()
    open_data(server, library)
    counts = server.count_requests()
    lines = [line.split()[1] for line in counts.lines]
    listings = [line for line in lines if "prefix=data%2F&" in f"{line}&"]
    objects = [line for line in lines if "/data/0" in line and "?" not in line]
    assert len(listings) == 1 and len(objects) == 1, lines
    assert not [line for line in counts.lines if line.startswith("HEAD")]
    # The directory of a hash index may be longer than the end that is read first.
    assert counts.waits <= 8


@pytest.mark.parametrize("library", ["obstore", "pyarrow"])
def test_a_missing_index_file_is_reported_by_the_lookup(copy, library):
    tables = [
        path
        for path in (copy.folder / "_zonebloom/data/segments").glob("*/*")
        if path.name.startswith(("bloomfilter", "hash"))
    ]
    for path in tables:
        path.unlink()
    ds = open_data(copy, library)
    key = rows_of(2)["key"][7].as_py()
    with pytest.warns((IndexNotUsedWarning, StaleIndexWarning)) as issued:
        assert ds.count_rows(f"key = '{key}'") == 1
    assert [w for w in issued if w.category is IndexNotUsedWarning]
    # The warnings name the line that called the package, not a thread of it.
    assert {Path(w.filename).name for w in issued} == {Path(__file__).name}


def test_a_damaged_page_map_is_reported_by_the_lookup(copy):
    for path in copy.folder.glob("_zonebloom/data/segments/*/pages.arrow"):
        path.write_bytes(path.read_bytes()[:-8] + b"\0" * 8)
    ds = open_data(copy, "obstore")
    row = rows_of(2).slice(7, 1)
    with pytest.warns(IndexNotUsedWarning, match="Footers are read instead"):
        found = ds.to_table(filter=f"key = '{row['key'][0]}'")
    assert found.equals(row)


def test_an_error_of_the_store_ends_all_threads(folder, tmp_path):
    threads = set(threading.enumerate())
    with serving(folder, 0) as server:
        ds = open_data(server, "obstore")
    # The server is gone, so the listing and the reads of the index fail together.
    with pytest.raises(ZoneBloomError):
        ds.count_rows(f"key = '{ABSENT}'")
    with pytest.raises(SourceError):
        open_data(server, "obstore")
    assert set(threading.enumerate()) <= threads


def test_many_objects_are_listed_at_once(tmp_path, monkeypatch):
    """Listings of ten objects each cover the objects that a lookup compares."""
    (tmp_path / "data").mkdir()
    for number in range(100):
        table = pa.table({"key": [f"{number} {row}" for row in range(10)]})
        pq.write_table(table, tmp_path / f"data/{number:03d}.parquet")
    with serving(tmp_path, 0) as server:
        open_data(server, "obstore").create_scalar_index("key", spark=False)
        set_limit(monkeypatch, "objects of a listing", 10)
        ds = open_data(server, "obstore")
        server.count_requests()
        assert ds.count_rows("key = '77 3'") == 1
        lines = server.count_requests().lines
        assert len([line for line in lines if "list-type" in line]) == 10
        assert not [line for line in lines if line.startswith("HEAD")]
        (tmp_path / "data/042.parquet").unlink()
        with pytest.raises(FragmentUnreadable, match=r"042\.parquet is gone"):
            ds.count_rows("key = '77 3'")


@pytest.mark.parametrize("marker", ["_delta_log/0.json", ".hoodie/hoodie.properties"])
@pytest.mark.parametrize("place", ["data", "data/below", "."])
def test_tables_are_recognised_by_the_listing(tmp_path, marker, place):
    (tmp_path / "data/below").mkdir(parents=True)
    pq.write_table(rows_of(0), tmp_path / "data/below/a.parquet")
    path = tmp_path / place / marker
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with serving(tmp_path, 0) as server:
        for library in ("pyarrow",) if place == "." else ("obstore", "pyarrow"):
            with pytest.raises(SourceError, match="table, and its"):
                open_data(server, library)

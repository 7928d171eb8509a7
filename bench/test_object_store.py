"""Look up keys in a store that delays each response by 30 ms: requests, waits, and peers.

There are 170 files of traces, whose ids are random or begin with their time. A folder of 10,000
objects is only opened.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from obstore.fsspec import FsspecStore
from obstore.store import S3Store

import zonebloom as zb
from bench.conftest import NOTES
from bench.data import uuids
from bench.store_server import BUCKET, Server, serving

FILES, ROWS = 170, 20_000
MANY_FILES = 10_000
MILLISECONDS = 30
_KEYS = {"access_key": "a", "secret_key": "b", "region": "us-east-1"}


class Traces(NamedTuple):
    """A dataset of traces in a store, and some of their ids."""

    server: Server
    keys: list[str]

    @property
    def store(self) -> S3Store:
        return S3Store(BUCKET, config=self.config, client_options={"allow_http": True})

    @property
    def config(self) -> dict[str, str]:
        return {
            "access_key_id": "a",
            "secret_access_key": "b",
            "region": "us-east-1",
            "endpoint": f"http://{self.server.endpoint}",
        }

    @property
    def s3(self) -> pafs.S3FileSystem:
        endpoint = self.server.endpoint
        return pafs.S3FileSystem(**_KEYS, endpoint_override=endpoint, scheme="http")

    def open(self, library: str) -> zb.Dataset:
        if library == "obstore":
            return zb.dataset("traces", filesystem=self.store)
        return zb.dataset(f"{BUCKET}/traces", filesystem=self.s3)


def _ids(random: np.random.Generator, first_ms: int | None) -> list[str]:
    """Return random UUIDs, or UUIDs that begin with their time (RFC 9562, section 5.7).

    The times are one millisecond apart.
    """
    random_ids = uuids(random, ROWS).to_pylist()
    if first_ms is None:
        return random_ids
    times = [f"{first_ms + number:012x}" for number in range(ROWS)]
    return [
        f"{time[:8]}-{time[8:]}-7{random_id[15:]}"
        for time, random_id in zip(times, random_ids, strict=True)
    ]


# By the ids and the kind of the files of the index, the arguments that build it.
_INDICES = {
    "random ids": {},
    "time-ordered ids": {},
    "random ids, HASH": {"index_type": "HASH"},
}


@pytest.fixture(scope="module", params=_INDICES)
def traces(request: pytest.FixtureRequest) -> Iterator[Traces]:
    folder = Path(tempfile.mkdtemp(prefix="zonebloom-traces-"))
    (folder / "traces").mkdir()
    random, keys = np.random.default_rng(0), []
    for number in range(FILES):
        is_ordered = request.param == "time-ordered ids"
        ids = _ids(random, 1_767_225_600_000 + number * ROWS if is_ordered else None)
        keys.append(ids[number])
        table = {
            "trace_id": ids,
            "at": pa.array(np.arange(ROWS) + number * ROWS, pa.timestamp("ms")),
            "service": [f"service {i % 9}" for i in range(ROWS)],
            "message": [f"span {trace_id[:20]} is done" for trace_id in ids],
        }
        path = folder / f"traces/{number:04d}.parquet"
        options = {"write_page_index": True, "max_rows_per_page": 2048}
        pq.write_table(pa.table(table), path, use_dictionary=["service"], **options)
    with serving(folder, 0) as server:
        ds = Traces(server, keys).open("obstore")
        ds.create_scalar_index("trace_id", spark=False, **_INDICES[request.param])
    with serving(folder, MILLISECONDS) as server:
        yield Traces(server, random.permutation(keys).tolist())
    shutil.rmtree(folder)


@pytest.mark.parametrize("library", ["obstore", "pyarrow"])
def test_waits_of_one_lookup(traces, library, request):
    counts = {}
    server, endless_keys = traces.server, iter(traces.keys)
    server.count_requests()
    ds = traces.open(library)
    counts["opening"] = server.count_requests()
    for name in ("first", "warm"):
        assert ds.count_rows(f"trace_id = '{next(endless_keys)}'") == 1
        counts[name] = server.count_requests()
    assert ds.to_table(filter=f"trace_id = '{next(endless_keys)}'").num_rows == 1
    counts["warm, all columns"] = server.count_requests()
    assert ds.count_rows(f"trace_id = '{uuid.UUID(int=0)}'") == 0
    counts["absent"] = server.count_requests()
    summary = "; ".join(f"{name} {count}" for name, count in counts.items())
    NOTES.append(f"{request.node.callspec.id}: {summary}.")
    assert counts["first"].waits <= 2
    assert counts["warm"].waits <= 2 and counts["warm, all columns"].waits <= 2


def test_one_trace(versus, traces):
    """Compare with engines that read the same store, and skip row groups by minima and maxima."""
    ds, endless_keys = traces.open("obstore"), itertools.cycle(traces.keys)
    endpoint = {"aws_endpoint_url": traces.config["endpoint"], "aws_allow_http": "true"}
    options = {f"aws_{name}": traces.config[name] for name in list(traces.config)[:3]} | endpoint
    connection, duckdb_name = _duckdb(traces)

    def query_with_polars() -> pl.DataFrame:
        files = pl.scan_parquet(f"s3://{BUCKET}/traces/*.parquet", storage_options=options)
        return files.filter(pl.col("trace_id") == next(endless_keys)).collect()

    def query_with_duckdb() -> pa.Table:
        files = [f"s3://{BUCKET}/traces/{number:04d}.parquet" for number in range(FILES)]
        return connection.sql(
            f"FROM read_parquet({files}) WHERE trace_id = '{next(endless_keys)}'"
        ).to_arrow_table()

    def query_with_pyarrow() -> pa.Table:
        files = pads.dataset(f"{BUCKET}/traces", filesystem=traces.s3)
        return files.to_table(filter=pads.field("trace_id") == next(endless_keys))

    peers = {
        "pyarrow.dataset": query_with_pyarrow,
        "Polars": query_with_polars,
        duckdb_name: query_with_duckdb,
    }
    for peer, query in peers.items():
        traces.server.count_requests()
        start = time.perf_counter()
        assert len(query()) == 1
        seconds = time.perf_counter() - start
        NOTES.append(f"{peer}: {traces.server.count_requests()}, {seconds:.2f} s at first.")
    versus(lambda: ds.to_table(filter=f"trace_id = '{next(endless_keys)}'"), peers, rounds=3)


@pytest.mark.parametrize("library", ["obstore", "pyarrow"])
def test_opening_many_objects(tmp_path, library):
    folder = tmp_path / "traces"
    folder.mkdir()
    first = folder / "00000.parquet"
    pq.write_table(pa.table({"trace_id": ["a"]}), first)
    for number in range(1, MANY_FILES):
        os.link(first, folder / f"{number:05d}.parquet")
    with serving(tmp_path, MILLISECONDS) as server:
        traces = Traces(server, [])
        server.count_requests()
        assert len(traces.open(library).files) == MANY_FILES
        counts = server.count_requests()
        pads.dataset(f"{BUCKET}/traces", filesystem=traces.s3)
        peer_counts = server.count_requests()
    NOTES.append(f"Opening {MANY_FILES:,} objects by {library}: {counts}.")
    NOTES.append(f"Opening {MANY_FILES:,} objects by pyarrow.dataset: {peer_counts}.")
    listings = [line for line in counts.lines if line.endswith("prefix=traces%2F HTTP/1.1")]
    objects = [line for line in counts.lines if ".parquet HTTP" in line]
    # A listing returns a thousand objects. The only object that is read has the schema.
    assert len(listings) == MANY_FILES // 1000 and len(objects) == 1, counts.lines
    assert not [line for line in counts.lines if line.startswith("HEAD")]
    assert counts.requests <= MANY_FILES // 1000 + 7


def _duckdb(traces: Traces) -> tuple[duckdb.DuckDBPyConnection, str]:
    """Connect DuckDB to the store: by httpfs if that is installed, else by obstore."""
    connection = duckdb.connect()
    try:
        connection.execute("LOAD httpfs")
    except duckdb.Error:
        options = {"client_options": {"allow_http": True}}
        connection.register_filesystem(FsspecStore("s3", config=traces.config, **options))
        return connection, "DuckDB by obstore's fsspec"
    connection.execute(
        "CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'b', REGION 'us-east-1', URL_STYLE 'path', "
        f"USE_SSL false, ENDPOINT '{traces.server.endpoint}')"
    )
    return connection, "DuckDB by httpfs"

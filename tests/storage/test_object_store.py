"""A real S3 protocol on loopback: results, requests and bytes, and the catalog on it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import zonebloom as zb
from zonebloom.errors import SourceError, StaleIndexWarning

ROWS = 60_000


@pytest.fixture(scope="module")
def endpoint():
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint):
    filesystem = pafs.S3FileSystem(
        access_key="test",
        secret_key="test",
        endpoint_override=endpoint,
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
        allow_bucket_deletion=True,
    )
    filesystem.create_dir("lake")
    yield filesystem
    filesystem.delete_dir("lake")


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


@pytest.fixture
def indexed(s3):
    for seed in range(3):
        write(s3, seed)
    dataset = zb.dataset("lake/data", filesystem=s3)
    dataset.create_scalar_index("id", number_of_items=1024, spark=False)
    return dataset


def test_lookups_equal_pyarrow_and_read_few_bytes(indexed, s3):
    scan = pads.dataset("lake/data", filesystem=s3, format="parquet")
    size = sum(info.size for info in s3.get_file_info(pafs.FileSelector("lake/data")) if info.size)
    for key in (0, ROWS + 5, 3 * ROWS - 1, 4 * ROWS):
        stats = []
        scanner = indexed.scanner(filter=pc.field("id") == key, scan_stats_callback=stats.append)
        found = scanner.to_table()
        assert found.equals(scan.to_table(filter=pc.field("id") == key))
        assert stats[0].data_bytes < size / 20
        # At most the filter's page and the pages of the rest, each zone.
        assert stats[0].data_reads <= 6


def test_ranges_of_one_fragment_are_few_requests(indexed):
    stats = []
    keys = list(range(0, ROWS, 997))
    found = indexed.to_table(
        filter=pc.field("id").isin(keys), columns=["id"], scan_stats_callback=stats.append
    )
    assert sorted(found["id"].to_pylist()) == keys
    # Two row groups: the pages of each lie near one another and are read together.
    assert stats[0].data_reads <= 4


def test_dataset_is_opened_from_a_uri(indexed, endpoint):
    uri = f"s3://test:test@lake/data?endpoint_override=http%3A%2F%2F{endpoint}&region=us-east-1"
    dataset = zb.dataset(uri)
    assert dataset.version == 1
    assert dataset.count_rows(filter="id = 7") == 1


def test_rewritten_object_is_read_whole(indexed, s3):
    changed = table(1).set_column(0, "id", pa.array(np.arange(ROWS) + 10**9))
    pq.write_table(changed, "lake/data/part-1.parquet", filesystem=s3)
    dataset = zb.dataset("lake/data", filesystem=s3)
    with pytest.warns(StaleIndexWarning):
        assert dataset.count_rows(filter=f"id = {10**9 + 5}") == 1


def test_object_replaced_between_plan_and_read_is_read_whole(indexed, s3):
    scanner = indexed.scanner(filter=f"id = {ROWS + 5}")
    plan = scanner.plan()
    scanner._plan = lambda described: plan
    # The same rows in another order: the plan's row ranges say nothing of them.
    part = table(1).sort_by("id")
    pq.write_table(part, "lake/data/part-1.parquet", filesystem=s3, use_dictionary=False)
    assert scanner.to_table()["id"].to_pylist() == [ROWS + 5]


def test_folders_of_a_table_are_refused(s3):
    pq.write_table(table(0), "lake/t/data/day=a/removed.parquet", filesystem=s3)
    assert len(zb.dataset("lake/t/data", filesystem=s3).files) == 1
    with s3.open_output_stream("lake/t/_delta_log/00000000000000000000.json") as log:
        log.write(b"{}")
    for path in ("lake/t", "lake/t/data", "lake/t/data/day=a/removed.parquet", "lake"):
        for source in (path, [f"{path}"]) if path.endswith("parquet") else (path,):
            with pytest.raises(SourceError, match="lake/t is a Delta table"):
                zb.dataset(source, filesystem=s3)


def test_fsspec_file_system_is_accepted():
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.makedirs("/lake-memory/data", exist_ok=True)
    with memory.open("/lake-memory/data/a.parquet", "wb") as sink:
        pq.write_table(table(0), sink, write_page_index=True)
    dataset = zb.dataset("/lake-memory/data", filesystem=memory)
    dataset.create_scalar_index("id", spark=False)
    assert dataset.count_rows(filter="id = 7") == 1
    assert "read in part" in dataset.scanner(filter="id = 7").explain_plan()

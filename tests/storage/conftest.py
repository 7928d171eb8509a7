"""Start an S3 server on loopback."""

from __future__ import annotations

import logging

import pyarrow.fs as pafs
import pytest


@pytest.fixture(scope="session")
def endpoint():
    from moto.server import ThreadedMotoServer

    # The server writes a line to this log for every request.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
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

"""Test that batches of one column have the values and the order of a scan."""

from __future__ import annotations

import os
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.helpers import without_privileges

import zonebloom as zb
from zonebloom import errors


def test_a_file_without_permission_is_not_to_be_removed():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        for number in range(2):
            pq.write_table(pa.table({"id": [number]}), f"{folder}/data-{number}.parquet")
        os.chmod(f"{folder}/data-1.parquet", 0)
        requests = [
            lambda ds: ds.to_table(),
            lambda ds: ds.to_table(filter="id = 1"),
            lambda ds: ds.lookup("id", [1]),
            lambda ds: ds.create_scalar_index("id", spark=False),
        ]
        with without_privileges():
            for request in requests:
                with pytest.raises(errors.FragmentUnreadable, match="make it readable") as raised:
                    request(zb.dataset(folder, index_dir=f"{folder}/_index"))
                assert "remove" not in str(raised.value)
